//! The powers of a thread, and the threads that may look at its memory while they change.
//!
//! A looker is admitted by the *ids* of the thread that it looks at. That thread's *memory* is [open](Openness) to its
//! owner's other processes, or closed. The ids and the memory are two words, so each side keeps an order:
//!
//! - the owner changes its powers ([`change`])
//!   - does first: closes its memory
//!   - the looker: takes the memory, reads the ids, then checks whether that memory is open ([`look`])
//!   - so the looker sees: old ids, or closed memory
//! - the owner enters other memory, then gets other powers (exec)
//!   - does first: makes the new memory closed
//!   - the looker: does the same
//!   - so the looker sees: the old memory, or closed memory
//! - the owner leaves its memory ([`leave`])
//!   - does first: notes whether it was closed
//!   - the looker: finds no memory, and reads the note
//!   - so the looker sees: closed, where it was
//! - the owner copies its memory (fork, [`copy`])
//!   - does first: copies, then reads whether the memory is open
//!   - the looker: looks at the copy
//!   - so the looker sees: a closed copy, where another thread closed its memory before it stored the copied data
//!
//! The looker is granted the memory that it checked, and no other that the thread has by then.

use crate::mutant::{Mutant, mutant};
use quire_sync::atomic::{AtomicBool, Ordering};

/// Whether memory is open to its owner's other processes.
#[derive(Debug)]
pub struct Openness(AtomicBool);

impl Openness {
    /// The openness of new memory, or a note about memory.
    pub fn new(open: bool) -> Openness {
        Openness(AtomicBool::new(open))
    }

    /// Whether the memory is open.
    pub fn is_open(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }

    /// Closes the memory, before new ids are shown.
    pub fn close(&self) {
        self.0.store(false, Ordering::Release);
    }

    /// Changes it, as its owner wants.
    pub fn set(&self, open: bool) {
        self.0.store(open, Ordering::Release);
    }
}

/// A thread at which others look.
pub trait Looked {
    /// The thread's memory, kept while it is looked at.
    type Memory;
    /// The ids by which lookers are admitted.
    type Ids;

    /// The memory in which it runs now; `None` once it has left it.
    fn memory(&self) -> Option<Self::Memory>;
    /// Its ids now.
    fn ids(&self) -> Self::Ids;
    /// Whether `memory` is open now. Without memory: whether the memory that it left was open.
    fn is_open(&self, memory: Option<&Self::Memory>) -> bool;
}

/// The part of `other` that a looker may see: its memory, or the fact that it has none. `admits` gets the ids and a
/// function that checks whether the memory is open. `None` if it refuses.
pub fn look<L: Looked>(
    other: &L,
    admits: impl FnOnce(&L::Ids, &dyn Fn() -> bool) -> bool,
) -> Option<Option<L::Memory>> {
    let memory = other.memory();
    let early = mutant(Mutant::OpenBeforeIds).then(|| other.is_open(memory.as_ref()));
    let ids = other.ids();
    let of_now = mutant(Mutant::OpenOfOther).then(|| other.memory());
    let asked = of_now.as_ref().unwrap_or(&memory);
    admits(&ids, &|| early.unwrap_or_else(|| other.is_open(asked.as_ref()))).then(|| {
        match mutant(Mutant::GrantsOther) {
            true => other.memory(),
            false => memory,
        }
    })
}

/// The owner changes its powers: first `memory`, in which it runs, is closed, then `show` sets its new ids.
pub fn change<R>(memory: Option<&Openness>, show: impl FnOnce() -> R) -> R {
    let close = || memory.into_iter().for_each(Openness::close);
    if mutant(Mutant::ClosesLate) {
        let shown = show();
        close();
        return shown;
    }
    close();
    show()
}

/// The owner leaves `memory` for good by `go`. From then on `left` says whether the memory was open.
pub fn leave<R>(memory: Option<&Openness>, left: &Openness, go: impl FnOnce() -> R) -> R {
    let note = || {
        if memory.is_some_and(|memory| !memory.is_open()) {
            left.close();
        }
    };
    if mutant(Mutant::NotesLate) {
        let gone = go();
        note();
        return gone;
    }
    note();
    go()
}

/// A copy of memory, by `make`, and whether it is open.
pub fn copy<T, E>(memory: &Openness, make: impl FnOnce() -> Result<T, E>) -> Result<(T, bool), E> {
    let early = mutant(Mutant::OpenBeforeCopy).then(|| memory.is_open());
    let copy = make()?;
    Ok((copy, early.unwrap_or_else(|| memory.is_open())))
}
