//! Threads that sleep too long where nothing but what they wait for wakes them.
//!
//! A thread of the kernel's own looks at all threads a few times in the timeout. What counts are its looks: that the machine
//! stood still for an hour between two of them says nothing of a thread.

use super::stacks::Mine;
use super::{report, setting};
use crate::cpu::clock;
use crate::machine::Machine;
use crate::personality;
use crate::thread::kthread;
use core::sync::atomic::{AtomicUsize, Ordering};
use quire_linux::WatchSetting;
use quire_sync::hooks::{ThreadHandle, park, unpark};
use quire_task::{Thread, ThreadRef};

/// Looks in a timeout.
const LOOKS: u32 = 4;
/// The thread that looks.
static WATCHMAN: AtomicUsize = AtomicUsize::new(0);

/// Starts the thread that looks.
pub fn start() {
    WATCHMAN.store(kthread::kernel_thread("watch", watchman, 0).0, Ordering::Release);
}

/// The timeout has changed.
pub fn look_again() {
    let watchman = WATCHMAN.load(Ordering::Acquire);
    if watchman != 0 {
        unpark(ThreadHandle(watchman));
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
            // Another timeout counts from now on.
            if setting(WatchSetting::HungSeconds) != seconds {
                next = 0;
            }
            continue;
        }
        next = now + pause;
        look(seconds);
    }
}

/// The first look that finds a thread asleep counts nothing.
fn hangs(thread: &Thread<Machine>) -> Option<ThreadRef<Machine>> {
    (thread.overslept() == LOOKS).then(|| thread.to_ref())
}

/// One look at all threads.
fn look(seconds: u32) {
    if let Some(linux) = personality::try_linux() {
        for process in linux.ids.processes() {
            // One a look and a process: each incident is reported once, at its own look, and what the pause between reports
            // leaves of it is a line.
            let found = process.threads.lock().iter().find_map(|thread| hangs(thread));
            found.into_iter().for_each(|thread| hung(&thread, "", seconds));
        }
    }
    kthread::listed()
        .filter(|(thread, _)| hangs(thread).is_some())
        .for_each(|(thread, name)| hung(&thread, name, seconds));
}

/// `own` is the name of a thread of the kernel's own.
fn hung(thread: &Thread<Machine>, own: &str, seconds: u32) {
    let panics = setting(WatchSetting::HungPanics) != 0;
    let tid = thread.payload().as_ref().map_or(0, quire_linux::Thread::tid);
    let name = thread.payload().as_ref().map(|t| t.name.look(|name| *name)).unwrap_or_default();
    let name = name.bytes().utf8_chunks().next().map_or(own, |c| c.valid());
    report(
        format_args!("hung task: thread {tid} ({name}) has slept for {seconds} s, and no signal wakes it"),
        &Mine::Sleeper(thread),
        panics,
    );
}
