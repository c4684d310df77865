//! Changes of a thread's powers (user ids and capabilities), against threads that access its memory at the same time.
//!
//! A *looker* is a thread that accesses another thread's memory, as a debugger does. The *owner* is the thread that is
//! accessed. The owner's *ids* and *memory* determine whether the looker is admitted. The memory may be
//! [open](Openness) to other processes of the same user (on Linux, "dumpable"). The ids and the memory are two words,
//! so each side keeps an order:
//!
//! - the owner changes its powers ([`change`])
//!   - the owner first closes its memory
//!   - the looker gets the memory, reads the ids, and then checks whether that memory is open ([`look`])
//!   - so the looker sees the old ids or closed memory
//! - the owner changes to other memory, and then gets other powers (exec)
//!   - the owner first makes the new memory closed
//!   - the looker gets the memory, reads the ids, and then checks whether that memory is open
//!   - so the looker sees the old memory or closed memory
//! - the owner leaves its memory ([`leave`])
//!   - the owner first stores a note whether the memory was closed
//!   - the looker finds no memory, and reads the note
//!   - so the looker sees closed memory if it was closed
//! - the owner copies its memory (fork, [`copy`])
//!   - the owner first copies the memory, and then reads whether the memory is open
//!   - the looker accesses the copy
//!   - so the copy is closed if another thread of the owner closed the memory before it stored the copied data
//!
//! The looker gets the memory that it checked, even if the owner has other memory by then.

use crate::mutant::{Mutant, mutant};
use quire_sync::atomic::{AtomicBool, Ordering};

/// Whether memory is open to other processes of its owner's user.
#[derive(Debug)]
pub struct Openness(AtomicBool);

impl Openness {
    /// The openness of new memory, or a note about memory that was left.
    pub fn new(open: bool) -> Openness {
        Openness(AtomicBool::new(open))
    }

    /// Whether the memory is open.
    pub fn is_open(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }

    /// Closes the memory. Called before the owner's new ids become visible.
    pub fn close(&self) {
        self.0.store(false, Ordering::Release);
    }

    /// Opens or closes the memory, at the owner's request.
    pub fn set(&self, open: bool) {
        self.0.store(open, Ordering::Release);
    }
}

/// A thread whose memory other threads may access.
pub trait Looked {
    /// A reference to the thread's memory, which keeps the memory while a looker accesses it.
    type Memory;
    /// The ids by which lookers are admitted.
    type Ids;

    /// The memory in which the thread runs now; `None` after it has left its memory.
    fn memory(&self) -> Option<Self::Memory>;
    /// The thread's present ids.
    fn ids(&self) -> Self::Ids;
    /// Whether `memory` is open now. For `None`: whether the memory that the thread has left was open.
    fn is_open(&self, memory: Option<&Self::Memory>) -> bool;
}

/// Returns the memory of `other` if the looker may access it: `Some(None)` if `other` has no memory any more, `None` if
/// `admits` refuses. `admits` gets the ids and a function that checks whether the memory is open.
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

/// Changes the owner's powers: first closes `memory`, in which the owner runs, and then calls `show`, which sets the
/// new ids.
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

/// Calls `go`, by which the owner leaves `memory` for ever. Before that, closes the note `left` if the memory is
/// closed.
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

/// Makes a copy of memory by `make`. Returns the copy and whether it is open.
pub fn copy<T, E>(memory: &Openness, make: impl FnOnce() -> Result<T, E>) -> Result<(T, bool), E> {
    let early = mutant(Mutant::OpenBeforeCopy).then(|| memory.is_open());
    let copy = make()?;
    Ok((copy, early.unwrap_or_else(|| memory.is_open())))
}
