//! The undos: changes of semaphores that the end of a process reverts.
//!
//! The adjustments of a process are stored in the arrays, under the number of the process's list, and guarded by each
//! array's lock. The list has references to these arrays. Threads that share their undos share a list. The last of
//! these threads to end reverts the changes.

use super::array::Array;
use super::state::Undo;
use crate::error::Error;
use crate::host::Host;
use crate::mutant::{Mutant, mutant};
use quire_heap::{Arc, Vec};
use quire_sync::Mutex;
use quire_sync::atomic::{AtomicUsize, Ordering};

/// The bytes of kernel memory of a process's adjustments in an array, in addition to the adjustments themselves.
const OVERHEAD: u64 = 64;

/// A thread's share of its process's list of undos. The thread drops its share when it ends. The drop of the last share
/// reverts all changes.
pub struct Undos<H: Host>(Arc<UndoList<H>>);

impl<H: Host> Undos<H> {
    /// A new list, shared by one thread.
    pub(super) fn new(number: u64) -> Result<Self, Error> {
        let list = UndoList { number, threads: AtomicUsize::new(1), arrays: Mutex::new(Vec::new()) };
        Ok(Undos(Arc::try_new(list)?))
    }

    /// A share for another thread.
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
    /// The arrays in which the process has adjustments. Some of them may be removed. This lock is acquired before the
    /// lock of an array.
    arrays: Mutex<Vec<Arc<Array<H>>>>,
}

impl<H: Host> UndoList<H> {
    /// The number of the list, by which arrays find its adjustments.
    pub(super) fn number(&self) -> u64 {
        self.number
    }

    /// Allocates the adjustments of this list in `array`, if there are none yet.
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
            // Another thread of the process may have added the adjustments since the first check.
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

    /// Reverts all changes of the process.
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
