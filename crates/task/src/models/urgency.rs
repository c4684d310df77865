//! A thread becomes real-time while another CPU queues it.

use super::machine::{B, Cast, make_b};
use crate::Class;
use quire_sync::explore::thread;
use quire_sync::hooks::threads::set_cpu;
use quire_sync::protocol;

/// CPU 1 queues B on its own queue, where B has not been before. At the same time CPU 0 makes B real-time.
fn change_against_queueing() {
    Cast::new().machine(|machine, s| {
        let queueing = thread::spawn(move || {
            set_cpu(1);
            make_b(machine, s, 1);
        });
        set_cpu(0);
        s.set_class(machine.thread(B), Class::Fifo(5), false);
        queueing.join().unwrap();
        let mut queue = s.cpus.of(1).queue.lock_masked();
        assert!(queue.pop(0).is_some(), "it waits there");
        assert_eq!(queue.most_urgent(), 5, "it runs as if it were not urgent");
    });
}

protocol! {
    a_thread_that_becomes_urgent_is_found_where_it_waits = change_against_queueing, Some(3);
    #[cfg(loom)]
    HomeNoFence: "it runs as if it were not urgent";
}
