//! Models of permits that are taken and put back while the count is made exact.

use crate::explore::{Arc, thread};
use crate::hooks::threads::set_cpu;
use crate::limited_counter::LimitedCounter;
use crate::protocol;

/// Calls `f` with a counter for two CPUs.
fn with_counter(f: impl FnOnce(Arc<LimitedCounter>)) {
    f(Arc::new(LimitedCounter::leaked(2)));
}

/// One permit is held. CPU 1 has a spare permit. CPU 0 has none, and must close CPU 1's stock to get the exact count.
fn take_against_close() {
    with_counter(|count| {
        set_cpu(1);
        assert!(count.take(2));
        let other = count.clone();
        let t = thread::spawn(move || {
            set_cpu(1);
            other.take(2)
        });
        set_cpu(0);
        let mine = count.take(2);
        let theirs = t.join().unwrap();
        assert!(!(mine && theirs), "more are counted than the limit allows");
        assert!(mine || theirs, "no taker got the last permit");
        assert_eq!(count.count(), 2, "permits are lost");
    });
}

/// One of two permits is put back on one CPU, while the other CPU takes a third.
fn put_against_close() {
    with_counter(|count| {
        set_cpu(1);
        assert!(count.take(u64::MAX));
        set_cpu(0);
        assert!(count.take(u64::MAX));
        let other = count.clone();
        let t = thread::spawn(move || {
            set_cpu(1);
            other.put();
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
