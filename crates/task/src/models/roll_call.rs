//! An event is sent to all threads while a thread is made.

use super::ids::with_table;
use crate::RollCall;
use quire_sync::atomic::{AtomicBool, Ordering};
use quire_sync::explore::{Arc, thread};
use quire_sync::hooks::threads::set_cpu;
use quire_sync::protocol;
use std::ptr::NonNull;

/// The number of the new one, which is looked at first, and of its maker.
const NEW: u32 = 1;
const MAKER: u32 = 2;

/// A caller goes through the table and tells all threads in it; a maker in the table adds a new thread.
fn call_against_making() {
    with_table(|table| {
        let told = [(); 2].map(|()| Arc::new(AtomicBool::new(false)));
        let roll = Arc::new(RollCall::new());
        let place = |id: u32| Some(NonNull::from(&*told[id as usize - 1]));
        table.set_thread(MAKER, place(MAKER));
        let (calls, all) = (roll.clone(), told.clone());
        let maker = thread::spawn(move || {
            set_cpu(1);
            let Some(quiet) = calls.quiet() else { return false };
            if all[MAKER as usize - 1].load(Ordering::Acquire) {
                return false;
            }
            table.set_thread(NEW, Some(NonNull::from(&*all[NEW as usize - 1])));
            let made = !calls.called_since(quiet);
            if !made {
                table.set_thread(NEW, None);
            }
            made
        });
        {
            let _call = roll.begin();
            for id in [NEW, MAKER] {
                table.thread(id, |told| told.store(true, Ordering::Release));
            }
        }
        let made = maker.join().unwrap();
        assert!(
            !made || told[NEW as usize - 1].load(Ordering::Relaxed),
            "a new thread misses an event that is sent to all"
        );
    });
}

protocol! {
    a_thread_made_during_a_call_to_all_is_told_or_made_anew = call_against_making, Some(3);
    MadeUnasked: "a new thread misses an event that is sent to all";
    MadeDuringCall: "a new thread misses an event that is sent to all";
    #[cfg(loom)]
    MadeNoFence: "a new thread misses an event that is sent to all";
    #[cfg(loom)]
    CallNoFence: "a new thread misses an event that is sent to all";
}
