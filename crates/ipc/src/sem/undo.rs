//! The changes that the end of a process reverts.
//!
//! The adjustments of a process lie in the arrays, by the number of the process's list, and change under an array's
//! lock. The list has the arrays. Threads that share their semaphore undos share a list; the last one reverts.

use super::array::Array;
use super::state::Undo;
use crate::error::Error;
use crate::host::Host;
use crate::mutant::{Mutant, mutant};
use quire_heap::{Arc, Vec};
use quire_sync::Mutex;
use quire_sync::atomic::{AtomicUsize, Ordering};

/// Kernel memory of an adjustment beside its numbers.
const OVERHEAD: u64 = 64;

/// A thread's share in the list of its process. Dropped when the thread ends; the last share reverts all changes.
pub struct Undos<H: Host>(Arc<UndoList<H>>);

impl<H: Host> Undos<H> {
    /// A new list with one thread.
    pub(super) fn new(number: u64) -> Result<Self, Error> {
        let list = UndoList { number, threads: AtomicUsize::new(1), arrays: Mutex::new(Vec::new()) };
        Ok(Undos(Arc::try_new(list)?))
    }

    /// The share of another thread.
    pub fn share(&self) -> Self {
        self.0.threads.fetch_add(1, Ordering::Relaxed);
        Undos(self.0.clone())
    }

    pub(super) fn list(&self) -> &UndoList<H> {
        &self.0
    }
}

impl<H: Host> Drop for Undos<H> {
    fn drop(&mut self) {
        if self.0.threads.fetch_sub(1, Ordering::AcqRel) == 1 || mutant(Mutant::EachThreadReverts) {
            self.0.revert();
        }
    }
}

/// The arrays in which a process has adjustments.
pub(super) struct UndoList<H: Host> {
    number: u64,
    threads: AtomicUsize,
    /// By id, and removed ones. Its lock is taken before that of an array.
    arrays: Mutex<Vec<Arc<Array<H>>>>,
}

impl<H: Host> UndoList<H> {
    /// The number that names it in arrays.
    pub(super) fn number(&self) -> u64 {
        self.number
    }

    /// Makes room for adjustments in `array`, if there is none.
    pub(super) fn prepare(&self, array: &Arc<Array<H>>) -> Result<(), Error> {
        let find = |undos: &[Undo<H::Charge>]| undos.binary_search_by_key(&self.number, |undo| undo.list);
        let there = |removed: bool, undos: &[Undo<H::Charge>]| match removed {
            true => Err(Error::Removed),
            false => Ok(find(undos).is_ok()),
        };
        if array.with(|state| there(state.removed, &state.undos))? {
            return Ok(());
        }
        let charge = array.host().charge(OVERHEAD + 2 * array.len() as u64).ok_or(Error::OutOfMemory)?;
        let mut adjust = Vec::new();
        adjust.try_resize(array.len(), 0)?;
        let mut arrays = self.arrays.lock();
        if arrays.len() == arrays.capacity() {
            arrays.retain(|array| !array.is_removed());
            arrays.try_reserve(1)?;
        }
        let added = array.with(|state| {
            // Another thread of the process may have been faster.
            if there(state.removed, &state.undos)? {
                return Ok(false);
            }
            let at = find(&state.undos).unwrap_or_else(|at| at);
            state.undos.try_insert(at, Undo { list: self.number, adjust, _charge: charge })?;
            Ok::<bool, Error>(true)
        })?;
        if added {
            arrays.push_reserved(array.clone());
        }
        Ok(())
    }

    /// Reverts all changes.
    fn revert(&self) {
        let arrays = core::mem::replace(&mut *self.arrays.lock(), Vec::new());
        for array in arrays {
            let pid = array.host().pid();
            let undo = array.with(|state| {
                let at = state.undos.binary_search_by_key(&self.number, |undo| undo.list).ok()?;
                let undo = state.undos.remove(at);
                for (number, by) in undo.adjust.iter().enumerate().filter(|(_, by)| **by != 0) {
                    state.adjust(number, i32::from(*by), pid);
                }
                state.operated = array.host().seconds();
                state.run();
                Some(undo)
            });
            drop(undo);
        }
    }
}
