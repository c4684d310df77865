//! Broadcasts: an event is sent to all threads while a thread is created.

use super::ids::with_table;
use crate::Broadcasts;
use quire_sync::atomic::{AtomicBool, Ordering};
use quire_sync::explore::{Arc, thread};
use quire_sync::hooks::threads::set_cpu;
use quire_sync::protocol;
use std::ptr::NonNull;

/// The numbers of the new thread and of its maker. The broadcast visits the new thread first.
const NEW: u32 = 1;
const MAKER: u32 = 2;

/// A broadcast walks the table and sends to all threads in it, while a maker in the table adds a new thread.
fn broadcast_against_making() {
    with_table(|table| {
        let reached = [(); 2].map(|()| Arc::new(AtomicBool::new(false)));
        let broadcasts = Arc::new(Broadcasts::new());
        let place = |id: u32| Some(NonNull::from(&*reached[id as usize - 1]));
        table.set_thread(MAKER, place(MAKER));
        let (count, all) = (broadcasts.clone(), reached.clone());
        let maker = thread::spawn(move || {
            set_cpu(1);
            let Some(quiet) = count.quiet() else { return false };
            if all[MAKER as usize - 1].load(Ordering::Acquire) {
                return false;
            }
            table.set_thread(NEW, Some(NonNull::from(&*all[NEW as usize - 1])));
            let made = !count.was_sent_since(quiet);
            if !made {
                table.set_thread(NEW, None);
            }
            made
        });
        {
            let _broadcast = broadcasts.begin();
            for id in [NEW, MAKER] {
                table.thread(id, |it| it.store(true, Ordering::Release));
            }
        }
        let made = maker.join().unwrap();
        assert!(
            !made || reached[NEW as usize - 1].load(Ordering::Relaxed),
            "a new thread misses an event that is sent to all"
        );
    });
}

protocol! {
    a_thread_made_during_a_broadcast_gets_it_or_is_made_anew = broadcast_against_making, Some(3);
    MadeUnchecked: "a new thread misses an event that is sent to all";
    MadeDuringBroadcast: "a new thread misses an event that is sent to all";
    #[cfg(loom)]
    MadeNoFence: "a new thread misses an event that is sent to all";
    #[cfg(loom)]
    BroadcastNoFence: "a new thread misses an event that is sent to all";
}
