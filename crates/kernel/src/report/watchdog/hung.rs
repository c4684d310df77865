//! The detection of hung threads, which sleep uninterruptibly for too long.
//!
//! A kernel thread checks all threads [`LOOKS`] times in each timeout. It counts checks instead of time, so that a
//! pause of the whole virtual machine does not make a thread look hung.

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

/// The number of checks in a timeout.
const LOOKS: u8 = 4;
/// The handle of the checking thread; 0 before it runs.
static WATCHMAN: AtomicUsize = AtomicUsize::new(0);

/// Starts the checking thread.
pub fn start() {
    WATCHMAN.store(kthread::kernel_thread("watch", watchman, 0).number(), Ordering::Release);
}

/// Wakes the checking thread, because the timeout has changed.
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
            // The timeout was changed during the sleep, so check at once and use the new timeout.
            if setting(WatchSetting::HungSeconds) != seconds {
                next = 0;
            }
            continue;
        }
        next = now + pause;
        look(seconds);
    }
}

/// A reference to `thread` if exactly [`LOOKS`] checks before this one found it in the same uninterruptible sleep;
/// otherwise `None`. So each sleep is reported once.
fn hangs(thread: &Thread<Machine>) -> Option<ThreadRef<Machine>> {
    (thread.overslept() == LOOKS).then(|| thread.to_ref())
}

/// Checks all threads once.
fn look(seconds: u32) {
    if let Some(linux) = personality::try_linux() {
        for process in linux.ids.processes() {
            // At each check at most one hung thread of a process is reported. If `report` printed stacks a short time
            // ago, it logs only one line.
            let found = process.threads.lock().iter().find_map(|thread| hangs(thread));
            found.into_iter().for_each(|thread| hung(&thread, "", seconds));
        }
    }
    kthread::listed()
        .filter(|(thread, _)| hangs(thread).is_some())
        .for_each(|(thread, name)| hung(&thread, name, seconds));
}

/// Reports a hung thread. `own` is the name of a kernel thread, and is empty for a program's thread.
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
