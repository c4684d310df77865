//! A thread becomes real-time while another CPU queues it.

use super::machine::{B, Cast, is_up, make_b};
use crate::Class;
use quire_sync::atomic::{AtomicBool, Ordering};
use quire_sync::explore::{Arc, thread};
use quire_sync::protocol;

/// CPU 1 queues B there, where it has not been before, and runs it. Meanwhile CPU 0 makes B real-time.
fn change_against_queueing() {
    let (changed, ran) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    let (wait, tell) = (changed.clone(), ran.clone());
    let cast = Cast::new().interrupt(1, |machine, s| make_b(machine, s, 1)).b(move |_, s| {
        while !is_up(&wait) {
            thread::yield_now();
        }
        let urgency = s.here().queue.lock_masked().urgency();
        assert_eq!(urgency, 5, "it runs as if it were not urgent");
        tell.store(true, Ordering::Release);
    });
    cast.run(|machine, s| {
        s.set_class(machine.thread(B), Class::Fifo(5), false);
        changed.store(true, Ordering::Release);
        while !is_up(&ran) {
            thread::yield_now();
        }
    });
}

protocol! {
    a_thread_that_becomes_urgent_is_found_where_it_waits_or_runs = change_against_queueing, Some(2);
    #[cfg(loom)]
    HomeNoFence: "it runs as if it were not urgent";
}
