//! Permits that are taken and put back while the count is made exact.

use super::machine::with_memory;
use crate::headcount::Headcount;
use quire_sync::explore::thread;
use quire_sync::hooks::threads::set_cpu;
use quire_sync::protocol;
use std::ptr;

/// `f` with a count of two CPUs that lives as long as the threads that `f` joins.
fn with_headcount(f: impl FnOnce(&'static Headcount)) {
    with_memory(Headcount::bytes(2), |memory| {
        // SAFETY: the memory is there as long as the threads are, which end in `f`.
        let count = unsafe { Headcount::new(memory, 2) };
        // SAFETY: as above.
        f(unsafe { &*ptr::from_ref(&count) });
    });
}

/// One permit is held. One CPU has a spare one; the other has none, and has to close that stock to know.
fn take_against_close() {
    with_headcount(|count| {
        set_cpu(1);
        assert!(count.take(2));
        let t = thread::spawn(move || {
            set_cpu(1);
            count.take(2)
        });
        set_cpu(0);
        let mine = count.take(2);
        let theirs = t.join().unwrap();
        assert!(!(mine && theirs), "more are counted than the limit allows");
        assert!(mine || theirs, "there was room for one");
        assert_eq!(count.count(), 2, "permits are lost");
    });
}

/// One of two permits is put back on one CPU, while the other one asks for a third.
fn put_against_close() {
    with_headcount(|count| {
        set_cpu(1);
        assert!(count.take(u64::MAX));
        set_cpu(0);
        assert!(count.take(u64::MAX));
        let t = thread::spawn(move || {
            set_cpu(1);
            count.put();
        });
        set_cpu(0);
        let more = count.take(2);
        t.join().unwrap();
        assert_eq!(count.count(), if more { 2 } else { 1 }, "permits are lost");
    });
}

protocol! {
    takers_of_the_last_permit_are_one = take_against_close, Some(3);
    TakeFromClosed: "more are counted than the limit allows";
    CloseNotAtomic;
}
protocol! {
    a_permit_that_is_put_back_is_counted = put_against_close, Some(3);
    CloseNotAtomic;
}
