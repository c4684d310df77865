//! A thread that must end is moved to the shares of ending threads while another CPU queues it.

use super::machine::{A, B, Cast, Model, make_b, with_memory};
use crate::{ThreadRef, User};
use core::ptr::NonNull;
use quire_sync::explore::thread;
use quire_sync::hooks::threads::set_cpu;
use quire_sync::protocol;

/// A waits on CPU 0. CPU 1 queues B, of the same user, on its own queue, where B has not been before. At the same time
/// CPU 0 hastens B, which it may still find at home on CPU 0.
fn hasten_against_queueing() {
    Cast::new().machine(|machine, s| {
        with_memory(User::<Model>::bytes(2), |memory| {
            let user = unsafe { User::new(memory, 2) };
            for thread in [A, B] {
                unsafe { machine.thread(thread).belong_to(Some(NonNull::from(&user))) };
            }
            set_cpu(0);
            s.spawn_on(unsafe { ThreadRef::adopt(NonNull::from(machine.thread(A))) }, 0);
            let queueing = thread::spawn(move || {
                set_cpu(1);
                make_b(machine, s, 1);
            });
            s.unpark_to_end(machine.thread(B));
            queueing.join().unwrap();
            for (cpu, waits) in [(0, A), (1, B)] {
                let mut queue = s.cpus.of(cpu).queue.lock_masked();
                assert_eq!(queue.len(), 1, "a thread is on two queues, or on none");
                let found = queue.pop(0).map(|thread| *unsafe { thread.as_ref() }.payload());
                assert_eq!(found, Some(waits), "a thread is on two queues, or on none");
                assert!(queue.pop(0).is_none(), "a thread is on two queues, or on none");
            }
        });
    });
}

protocol! {
    a_thread_that_must_end_stays_on_one_queue = hasten_against_queueing, Some(3);
    HastenAtOldHome: "a thread is on two queues, or on none";
}
