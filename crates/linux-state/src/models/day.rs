//! The time of day: a thread that sets it against waits until a time of day.

use crate::process::thread::work;
use crate::time::day::{end, notify, published, translate};
use quire_sync::atomic::{AtomicU32, AtomicU64, Ordering};
use quire_sync::explore::{Arc, thread};
use quire_sync::protocol;

/// A thread begins a wait until a time of day, while another thread sets the clock.
fn sleeper_against_setter() {
    let shared = Arc::new((AtomicU32::new(0), AtomicU64::new(0)));
    let theirs = shared.clone();
    let setter = thread::spawn(move || {
        let (flags, day) = &*theirs;
        day.store(1, Ordering::Relaxed);
        published();
        notify(flags);
    });
    let (flags, day) = &*shared;
    let read = translate(flags, || day.load(Ordering::Relaxed));
    setter.join().unwrap();
    let notified = end(flags) & work::DAY_SET != 0;
    assert!(read == 1 || notified, "a sleeper keeps the old time");
    assert_eq!(flags.load(Ordering::Relaxed), 0);
}

protocol! {
    a_sleeper_reads_the_new_time_or_is_notified = sleeper_against_setter, Some(3);
    #[cfg(loom)]
    DayMarkNoFence: "a sleeper keeps the old time";
    #[cfg(loom)]
    DaySetNoFence: "a sleeper keeps the old time";
}

/// A wait until a time of day ends, while another thread sets the clock.
fn end_against_setter() {
    let flags = Arc::new(AtomicU32::new(0));
    translate(&flags, || ());
    let theirs = flags.clone();
    let setter = thread::spawn(move || notify(&theirs));
    let during = end(&flags) & work::DAY_SET != 0;
    let notified = setter.join().unwrap();
    assert_eq!(flags.load(Ordering::Relaxed), 0, "the next call is notified");
    assert_eq!(during, notified, "a thread is notified that does not wait");
}

protocol! {
    a_set_clock_ends_no_later_call = end_against_setter, Some(3);
    DayNotifyNotAtomic: "the next call is notified";
}
