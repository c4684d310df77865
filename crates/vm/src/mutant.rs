//! Switches that leave out one step of a protocol, so that the model checkers can be seen to notice.
//!
//! A model first passes with everything in place, then fails with each switch on. Natively [`mutant`] is constant false and
//! the switches are compiled away.

/// A step that can be left out; each names the protocol and the step.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Mutant {
    /// Index: the occupancy bit is set after the slot was published, when another may already own it.
    BitAfterPublish = 1,
    /// Index: the occupancy bit is cleared after the slot was emptied, when another may already own it.
    BitAfterEmpty,
    /// Enter: the fence between locking the table page and checking the page is left out (the test machine's pmap).
    NoFenceAfterLock,
    /// Enter: the page's busy bit and generation are not checked under the table page's lock.
    NoBusyCheck,
    /// Enter: the slots of the layers in front are not checked under the table page's lock.
    NoFrontCheck,
    /// Enter: the entry's stale mark is not checked under the table page's lock.
    NoStaleCheck,
    /// Remove: the fence between setting busy and the scan is left out.
    NoFenceBeforeScan,
    /// Remove: unflushed removals of others are not waited for.
    NoUnflushedCheck,
    /// Copy-on-write: the copy is taken before the old translation is flushed.
    CopyBeforeFlush,
    /// Copy-on-write: the source's generation is not checked after the copy.
    NoSourceCheck,
    /// Insert: the object's end and dead mark are not read again after the insert.
    NoEndCheck,
    /// Move: the old slot is emptied before the new one is filled.
    EmptyBeforeFill,
}

#[cfg(any(loom, shuttle, test))]
mod switch {
    use super::Mutant;
    use std::cell::Cell;
    use std::sync::atomic::{AtomicU8, Ordering};

    // Plain memory of the process: not an atomic of the checkers, so that reading it is no step of the model.
    static ON: AtomicU8 = AtomicU8::new(0);
    std::thread_local! {
        static HERE: Cell<u8> = const { Cell::new(0) };
    }

    /// Whether the step that `m` names is to be left out.
    pub fn mutant(m: Mutant) -> bool {
        ON.load(Ordering::Relaxed) == m as u8 || HERE.get() == m as u8
    }
    /// Leaves out `m` (or nothing) from now on, in all threads of the process.
    pub fn set_mutant(m: Option<Mutant>) {
        ON.store(m.map_or(0, |m| m as u8), Ordering::Relaxed);
    }
    /// Leaves out `m` (or nothing) from now on, in this thread.
    pub fn set_mutant_here(m: Option<Mutant>) {
        HERE.set(m.map_or(0, |m| m as u8));
    }
}
#[cfg(any(loom, shuttle, test))]
pub use switch::{mutant, set_mutant, set_mutant_here};

/// Whether the step that `m` names is to be left out: never, outside tests.
#[cfg(not(any(loom, shuttle, test)))]
#[inline(always)]
pub const fn mutant(m: Mutant) -> bool {
    let _named = m;
    false
}
