//! The table of pseudo-terminals. Each pair has an index until both of its ends are closed.

use crate::Errno;
use quire_fs::terminal::pty::Pty;
use quire_heap::{Arc, Vec, Weak};
use quire_sync::Mutex;
use quire_sync::atomic::{AtomicU64, Ordering};

/// The default of `kernel.pty.max` on Linux.
const MOST: u64 = 4096;
/// An upper bound, in bytes, for the kernel memory of a pair: the queues of its line discipline and of its two
/// directions.
const PTY_BYTES: u64 = 40 << 10;
/// All pairs together may use one `PART`th of memory.
const PART: u64 = 16;
/// The low bits of a terminal's number are its index. The bits above them count pairs, so that the number is unique.
const INDEX_BITS: u32 = 20;

/// The table of pseudo-terminals.
pub struct Ptys {
    slots: Mutex<Vec<Slot>>,
    /// One more than the highest number of pairs: `kernel.pty.max`.
    most: AtomicU64,
    made: AtomicU64,
}

#[derive(Default)]
enum Slot {
    #[default]
    Free,
    /// The pair is being created, or both of its ends are closed and it is being freed.
    Reserved,
    Used(Weak<Pty>),
}

/// A reserved index. Its drop makes the index free.
pub struct Place {
    ptys: &'static Ptys,
    /// The index of the pair.
    pub index: u32,
    /// The number of the pair's terminal.
    pub number: u64,
}

impl Drop for Place {
    fn drop(&mut self) {
        let old = self.ptys.slots.lock().get_mut(self.index as usize).map(core::mem::take);
        drop(old);
    }
}

/// The index of the terminal with the number `number`.
pub fn index_of(number: u64) -> u32 {
    (number & ((1 << INDEX_BITS) - 1)) as u32
}

impl Ptys {
    /// A table without pairs, on a machine with `memory` bytes.
    pub fn new(memory: u64) -> Self {
        let most = AtomicU64::new((memory / PART / PTY_BYTES).clamp(2, MOST));
        Ptys { slots: Mutex::new(Vec::new()), most, made: AtomicU64::new(0) }
    }

    /// One more than the highest number of pairs: `kernel.pty.max`.
    pub fn most(&self) -> u64 {
        self.most.load(Ordering::Relaxed)
    }

    /// Sets `kernel.pty.max`. EINVAL if indices do not have enough bits for `most`. Existing pairs stay.
    pub fn set_most(&self, most: u64) -> Result<(), Errno> {
        if most >= 1 << INDEX_BITS {
            return Err(Errno::EINVAL);
        }
        self.most.store(most, Ordering::Relaxed);
        Ok(())
    }

    /// The number of pairs, reserved indices included.
    pub fn count(&self) -> u64 {
        self.slots.lock().iter().filter(|slot| !matches!(slot, Slot::Free)).count() as u64
    }

    /// Reserves the lowest free index. ENOSPC if the limit on pairs is reached.
    pub fn reserve(&'static self) -> Result<Place, Errno> {
        let mut slots = self.slots.lock();
        let used = slots.iter().filter(|slot| !matches!(slot, Slot::Free)).count() as u64;
        // As on Linux, the number of pairs stays one below `kernel.pty.max`.
        if used + 1 >= self.most() {
            return Err(Errno::ENOSPC);
        }
        let index = match slots.iter().position(|slot| matches!(slot, Slot::Free)) {
            Some(free) => free,
            None => {
                slots.try_push(Slot::Free)?;
                slots.len() - 1
            }
        };
        slots[index] = Slot::Reserved;
        let serial = self.made.fetch_add(1, Ordering::Relaxed) + 1;
        Ok(Place { ptys: self, index: index as u32, number: serial << INDEX_BITS | index as u64 })
    }

    /// Makes the reserved index `index` refer to its pair.
    pub fn fill(&self, index: u32, pty: &Arc<Pty>) {
        if let Some(slot) = self.slots.lock().get_mut(index as usize) {
            *slot = Slot::Used(Arc::downgrade(pty));
        }
    }

    /// The pair with the index `index`.
    pub fn get(&self, index: u32) -> Option<Arc<Pty>> {
        match self.slots.lock().get(index as usize) {
            Some(Slot::Used(pty)) => pty.upgrade(),
            _ => None,
        }
    }

    /// The pair whose terminal has the number `number`.
    pub fn numbered(&self, number: u64) -> Option<Arc<Pty>> {
        self.get(index_of(number)).filter(|pty| pty.terminal().number() == number)
    }
}
