//! Timers: cancelling against expiry.

use super::machine::{A, Cast, NOW};
use crate::Timer;
use quire_sync::atomic::{AtomicU32, Ordering};
use quire_sync::explore::{Arc, thread};
use quire_sync::hooks::threads::set_cpu;
use quire_sync::protocol;
use std::ptr::NonNull;

#[repr(C)]
struct Probe {
    timer: Timer,
    /// 1 while the callback runs, plus 2 for each time that it ran.
    state: AtomicU32,
    period: u64,
}

unsafe fn fire(timer: NonNull<Timer>, now: u64) -> Option<u64> {
    // SAFETY: the timer is the first field of a probe.
    let probe = unsafe { timer.cast::<Probe>().as_ref() };
    probe.state.fetch_add(1, Ordering::Relaxed);
    probe.state.fetch_add(1, Ordering::Relaxed);
    (probe.period != 0).then_some(now + probe.period)
}

/// A timer fires on CPU 0 while CPU 1 cancels and then drops it.
fn cancel_against_fire(period: u64) {
    Cast::new().machine(|_, s| {
        let probe = Arc::new(Probe { timer: Timer::new(fire), state: AtomicU32::new(0), period });
        set_cpu(0);
        // SAFETY: the probe lives until both threads have ended.
        unsafe { s.arm(&probe.timer, NOW - 1) };
        let theirs = probe.clone();
        let t = thread::spawn(move || {
            set_cpu(1);
            let taken = s.cancel(&theirs.timer);
            (taken, theirs.state.load(Ordering::Relaxed))
        });
        s.timer_interrupt();
        let (taken, then) = t.join().unwrap();
        s.timer_interrupt();
        let end = probe.state.load(Ordering::Relaxed);
        assert!(then % 2 == 0 && then == end, "a timer runs after it was cancelled");
        assert!(!probe.timer.is_armed(), "a timer stays armed");
        if period == 0 {
            assert_eq!(taken, end == 0, "a timer is cancelled or fires");
        }
    });
}

protocol! {
    a_timer_that_was_taken_back_does_not_run = || cancel_against_fire(0), Some(3);
    UnarmedBeforeFired: "a timer runs after it was cancelled";
    CancelTrustsFirstLook: "a timer is cancelled or fires";
}
protocol! {
    a_timer_that_fires_again_and_again_can_be_taken_back = || cancel_against_fire(1), Some(3);
    UnarmedBeforeFired: "a timer";
}

/// A thread sleeps until a deadline, and is woken before or after it. When the thread returns, the deadline's timer
/// must not be armed.
fn deadline_against_unpark() {
    let flag = Arc::new(AtomicU32::new(0));
    let seen = flag.clone();
    let cast = Cast::new().interrupt(0, |_, s| s.timer_interrupt()).interrupt(1, move |machine, s| {
        seen.store(1, Ordering::Relaxed);
        s.unpark(machine.thread(A));
    });
    cast.run(|machine, s| {
        while flag.load(Ordering::Relaxed) == 0 {
            s.park(Some(NOW + (1 << 14)));
            assert!(!machine.thread(A).deadline.is_armed(), "a deadline outlives the sleep");
        }
    });
}

protocol! {
    a_sleep_with_a_deadline_leaves_no_timer_behind = deadline_against_unpark, Some(2);
    DeadlineStaysArmed: "a deadline outlives the sleep";
}
