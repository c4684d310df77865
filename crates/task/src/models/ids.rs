//! Process ids: lookups against the removal of a name, and concurrent holders.

use super::machine::with_memory;
use crate::IdTable;
use crate::ids::CHUNK_BYTES;
use quire_sync::atomic::{AtomicBool, Ordering};
use quire_sync::explore::{Arc, thread};
use quire_sync::hooks::threads::set_cpu;
use quire_sync::protocol;
use std::ptr::{self, NonNull};

/// Calls `f` with a table of two numbers, for two CPUs. The first number is held.
pub(super) fn with_table(f: impl FnOnce(&'static IdTable<AtomicBool, ()>)) {
    with_memory(IdTable::<AtomicBool, ()>::bytes(2, 2), |memory| {
        with_memory(CHUNK_BYTES, |chunk| {
            // SAFETY: the memory lives as long as the table is used.
            let table = unsafe { IdTable::new(memory, 2, 2) };
            set_cpu(0);
            let id = table.allocate(&mut || Some(chunk));
            assert_eq!(id, Ok(1));
            // SAFETY: `f` joins all its threads and returns before the table is dropped.
            f(unsafe { &*ptr::from_ref(&table) });
        });
    });
}

/// A number stops naming a thread while another thread looks it up.
fn lookup_against_exit() {
    with_table(|table| {
        let alive = Arc::new(AtomicBool::new(true));
        table.set_thread(1, Some(NonNull::from(&*alive)));
        let t = thread::spawn(move || {
            set_cpu(1);
            table.thread(1, |alive| alive.load(Ordering::Relaxed))
        });
        table.set_thread(1, None);
        // Stands for the free of the named object.
        alive.store(false, Ordering::Relaxed);
        assert_ne!(t.join().unwrap(), Some(false), "a name is used after it was removed");
    });
}

protocol! {
    a_lookup_by_number_holds_the_thread = lookup_against_exit, Some(3);
    LookupUnlocked: "a name is used after it was removed";
}

/// Two threads hold a number for a while. The first holder releases it last, and only then it is freed.
fn hold_against_hold() {
    with_table(|table| {
        let for_a_while = move || {
            table.hold(1);
            table.release(1)
        };
        let t = thread::spawn(move || {
            set_cpu(1);
            for_a_while()
        });
        let mine = for_a_while();
        let theirs = t.join().unwrap();
        assert!(!mine && !theirs, "a number is freed while a thread holds it");
        assert!(table.release(1), "a number is freed while a thread holds it");
    });
}

protocol! {
    a_number_is_freed_by_its_last_holder = hold_against_hold, Some(3);
    HoldNotAtomic: "a number is freed while a thread holds it";
}
