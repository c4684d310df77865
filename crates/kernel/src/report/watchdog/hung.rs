//! Threads that sleep uninterruptibly for too long.
//!
//! A kernel thread checks all threads a few times in the timeout. It counts checks and not time, because a pause of the
//! whole machine between two checks is no thread's fault.

use super::stacks::Mine;
use super::{report, setting};
use crate::cpu::clock;
use crate::machine::Machine;
use crate::personality;
use crate::thread::kthread;
use core::sync::atomic::{AtomicUsize, Ordering};
use quire_linux_state::WatchSetting;
use quire_sync::hooks::{ThreadHandle, park, unpark};
use quire_task::{Thread, ThreadRef};

/// Checks in a timeout.
const LOOKS: u16 = 4;
/// The checking thread.
static WATCHMAN: AtomicUsize = AtomicUsize::new(0);

/// Starts the checking thread.
pub fn start() {
    WATCHMAN.store(kthread::kernel_thread("watch", watchman, 0).number(), Ordering::Release);
}

/// Called when the timeout has changed.
pub fn look_again() {
    let watchman = WATCHMAN.load(Ordering::Acquire);
    if watchman != 0 {
        // SAFETY: the number is that of the checking thread, which never ends.
        unpark(unsafe { ThreadHandle::from_number(watchman) });
    }
}

extern "C" fn watchman(_: usize) -> ! {
    let mut next = 0;
    loop {
        let seconds = setting(WatchSetting::HungSeconds);
        let pause = u64::from(seconds) * 1_000_000_000 / u64::from(LOOKS);
        if seconds == 0 {
            park(None);
            continue;
        }
        let now = clock::now();
        if now < next {
            park(Some(next));
            // Another timeout applies from now on.
            if setting(WatchSetting::HungSeconds) != seconds {
                next = 0;
            }
            continue;
        }
        next = now + pause;
        look(seconds);
    }
}

/// The first check that finds a thread asleep does not count.
fn hangs(thread: &Thread<Machine>) -> Option<ThreadRef<Machine>> {
    (thread.overslept() == LOOKS).then(|| thread.to_ref())
}

/// Checks all threads once.
fn look(seconds: u32) {
    if let Some(linux) = personality::try_linux() {
        for process in linux.ids.processes() {
            // At most one thread a process and check. Each incident is reported once, at its check; within the pause
            // between reports it is only a line.
            let found = process.threads.lock().iter().find_map(|thread| hangs(thread));
            found.into_iter().for_each(|thread| hung(&thread, "", seconds));
        }
    }
    kthread::listed()
        .filter(|(thread, _)| hangs(thread).is_some())
        .for_each(|(thread, name)| hung(&thread, name, seconds));
}

/// `own` is the name of a kernel thread.
fn hung(thread: &Thread<Machine>, own: &str, seconds: u32) {
    let panics = setting(WatchSetting::HungPanics) != 0;
    let tid = thread.payload().as_ref().map_or(0, quire_linux_state::Thread::tid);
    let name = thread.payload().as_ref().map(|t| *t.name.lock()).unwrap_or_default();
    let name = name.bytes().utf8_chunks().next().map_or(own, |c| c.valid());
    report(
        format_args!("hung task: thread {tid} ({name}) has slept for {seconds} s, and no signal wakes it"),
        &Mine::Sleeper(thread),
        panics,
    );
}
