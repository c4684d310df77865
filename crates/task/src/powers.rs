//! The powers of a thread, and who may look at its memory while they change.
//!
//! Other threads are judged by the *ids* of the thread at which they look. Its *memory* is [open](Openness) to its owner's other
//! processes, or closed. The ids and the memory are two words, so each side keeps an order:
//!
//! | the owner | does first | a looker does | so it sees |
//! |---|---|---|---|
//! | changes its powers ([`change`]) | closes its memory | takes the memory, reads the ids, then asks whether that memory is open ([`look`]) | old ids, or closed memory |
//! | enters other memory, then has other powers (exec) | makes the new memory closed | the same | the old memory, or closed memory |
//! | leaves its memory ([`leave`]) | notes whether it was closed | finds no memory, and asks for the note | closed, where it was |
//! | copies its memory (fork, [`copy`]) | copies, then reads whether the memory is open | looks at the copy | the copy closed, where another thread closed its memory before it stored what is in the copy |
//!
//! What a looker is granted is the memory that it asked about, and no other that the thread has by then.

use crate::mutant::{Mutant, mutant};
use quire_sync::atomic::{AtomicBool, Ordering};

/// Whether memory is open to its owner's other processes.
#[derive(Debug)]
pub struct Openness(AtomicBool);

impl Openness {
    /// Of new memory, or of a note about memory.
    pub fn new(open: bool) -> Openness {
        Openness(AtomicBool::new(open))
    }

    /// Whether it is.
    pub fn is_open(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }

    /// Closes it, before new ids are shown.
    pub fn close(&self) {
        self.0.store(false, Ordering::Release);
    }

    /// Changes it, as its owner says.
    pub fn set(&self, open: bool) {
        self.0.store(open, Ordering::Release);
    }
}

/// A thread at which others look.
pub trait Looked {
    /// Its memory, kept while it is looked at.
    type Memory;
    /// What lookers are judged by.
    type Ids;

    /// The memory in which it runs now; `None` once it has left it.
    fn memory(&self) -> Option<Self::Memory>;
    /// Its ids now.
    fn ids(&self) -> Self::Ids;
    /// Whether `memory` is open now; without any, whether what it left was.
    fn is_open(&self, memory: Option<&Self::Memory>) -> bool;
}

/// What a looker may see of `other`: its memory, or that it has none. `None` where `admits`, which gets the ids and a way to ask
/// whether the memory is open, says no.
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

/// The owner gets other powers: `show` gives it its new ids, and `memory`, in which it runs, is closed first.
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

/// The owner leaves `memory` for good by `go`; `left` tells from then on whether that was open.
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
