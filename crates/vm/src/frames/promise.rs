//! What is promised to threads: memory for what a system call allocates without being able to fail.
//!
//! # The problem
//! A kernel's layers above this core have containers that abort where memory is out. So a call must know at its beginning that
//! what it takes is there, and a thread that is preempted or asleep in mid-call must still find it there.
//!
//! # The promise
//! Each thread of a program is promised [`FRAMES_A_THREAD`]: what it may take between one admission and the next, and what a call
//! that keeps nothing may take at all. The promises of all threads are part of the floor, under which everything else is refused.
//! A call that keeps memory is [admitted](Frames::admits) where more than the floor is free. After the last admission each thread
//! takes what it was promised at most, so half of the base of the reserve is left: for what CPUs keep in caches of objects
//! that others need ([`FRAMES_A_CPU`]), and for what ends something.
//!
//! # The last promise
//! A thread is made only where its promise can be kept: where the floor that includes it is still free outside the magazines. So
//! `promised + base / 2 <= free` holds at each promise, however many threads were admitted at once and make others. The sum is raised,
//! and held against what is free, under the lock of a depot, because those that take frames compare under that lock. With several
//! domains a chain may leave another depot in between; half of the base of the reserve is there for that.
//!
//! # Cost
//! An admission reads one word that is hardly ever written ([`Frames::is_low`]); sums are made where memory is low alone. The
//! number of threads is kept in credits: a CPU has some that are promised already, and exchanges [`CREDITS`] at once with the sum.
//! So the sum is never less than what the threads were promised, and a CPU that forks and reaps in turns writes its own line only.

use super::Frames;
use crate::error::OutOfMemory;
use crate::machine::Machine;
use crate::mutant::{Mutant, mutant};
use crate::vm::{BootMemory, Vm};
use quire_sync::atomic::{AtomicU64, Ordering, fence_after_rmw};
use quire_sync::{CachePadded, PerCpu, preempt_off};

/// Frames that a thread is promised.
pub const FRAMES_A_THREAD: u64 = 1;

/// What the reserve has for each CPU: a slab of each small size may stay with it half used.
pub(super) const FRAMES_A_CPU: u64 = 8;

/// Promises that a CPU takes or gives back at once.
const CREDITS: u64 = if cfg!(any(loom, shuttle)) { 2 } else { 16 };

pub(super) struct Promises {
    /// Promises of a CPU that no thread has. Written by that CPU while preemption is off.
    credits: PerCpu<AtomicU64>,
    /// All promises, those credits included.
    made: CachePadded<AtomicU64>,
    /// The fewest frames that were ever left outside the magazines.
    least: AtomicU64,
}

impl Promises {
    pub fn new(boot: &mut BootMemory<'_, impl Machine>) -> Promises {
        Promises {
            credits: boot.per_cpu(|_| AtomicU64::new(0)),
            made: CachePadded(AtomicU64::new(0)),
            least: AtomicU64::new(u64::MAX),
        }
    }

    /// Frames that are promised.
    pub fn frames(&self) -> u64 {
        self.made.load(Ordering::Relaxed) * FRAMES_A_THREAD
    }

    /// So many frames are left outside the magazines now.
    pub fn note_level(&self, frames: u64) {
        if frames < self.least.load(Ordering::Relaxed) {
            self.least.fetch_min(frames, Ordering::Relaxed);
        }
    }
}

impl<M: Machine> Vm<M> {
    /// Promises a new thread its frames; nothing is taken. An error where the promise could not be kept.
    pub fn promise_frames(&self) -> Result<(), OutOfMemory> {
        let frames = self.frames();
        if frames.promise() {
            return Ok(());
        }
        // What CPUs keep counts as free, and is brought where promises count it.
        self.drain_caches();
        if frames.promise() { Ok(()) } else { Err(OutOfMemory) }
    }
}

impl Frames {
    /// Promises a new thread its frames, where that can be kept.
    pub(super) fn promise(&self) -> bool {
        let cpu = preempt_off();
        let credits = self.promises.credits.mine(&cpu);
        let have = credits.load(Ordering::Relaxed);
        if have != 0 {
            credits.store(have - 1, Ordering::Relaxed);
            return true;
        }
        // The last frames that can be promised are fewer than a CPU takes at once.
        let Some(more) = [CREDITS, 1].into_iter().find(|more| self.promise_more(*more)) else { return false };
        credits.store(more - 1, Ordering::Relaxed);
        self.move_marks();
        true
    }

    /// Raises the sum by `more`, where the floor is left with that.
    #[cold]
    fn promise_more(&self, more: u64) -> bool {
        let made = &self.promises.made;
        // A CPU that takes frames compares the floor with what is free under this lock.
        let _held = (!mutant(Mutant::PromiseUnlocked)).then(|| self.domains[self.here()].held.lock());
        if mutant(Mutant::PromisesNotAtomic) {
            made.store(made.load(Ordering::Relaxed) + more, Ordering::Release);
        } else {
            made.fetch_add(more, Ordering::AcqRel);
        }
        // Two CPUs of different domains that promise the last frame both see the other's, or one does.
        fence_after_rmw();
        let kept = self.outside() >= self.floor() || mutant(Mutant::PromiseUnlooked);
        if !kept {
            made.fetch_sub(more, Ordering::AcqRel);
        }
        kept
    }

    /// Takes the promise of a thread back that has ended.
    pub fn unpromise(&self) {
        let cpu = preempt_off();
        let credits = self.promises.credits.mine(&cpu);
        let have = credits.load(Ordering::Relaxed) + 1;
        if have < 2 * CREDITS {
            credits.store(have, Ordering::Relaxed);
            return;
        }
        credits.store(if mutant(Mutant::CreditsStay) { have } else { have - CREDITS }, Ordering::Relaxed);
        self.promises.made.fetch_sub(CREDITS, Ordering::AcqRel);
        self.move_marks();
    }

    /// Promises that lie ready with CPUs.
    #[cfg(all(test, any(loom, shuttle)))]
    pub(super) fn credits(&self) -> u64 {
        self.promises.credits.iter().map(|credits| credits.load(Ordering::Relaxed)).sum()
    }

    /// Whether a call may begin that keeps memory: more is free than what was promised already. One load where memory is not low.
    #[inline(always)]
    pub fn admits(&self) -> bool {
        !self.is_low() || self.admits_exactly(0)
    }

    /// The same, with `bytes` that it takes at once beside its promise.
    pub fn admits_also(&self, bytes: u64) -> bool {
        !self.is_low() && bytes < crate::types::PAGE_SIZE || self.admits_exactly(bytes / crate::types::PAGE_SIZE)
    }

    #[cold]
    fn admits_exactly(&self, more: u64) -> bool {
        let least = self.floor() + more;
        // The magazines are looked at only where the depots do not have it.
        self.outside() > least || self.free() > least
    }

    /// Frames that are promised to threads, or lie ready to be.
    pub fn promised(&self) -> u64 {
        self.promises.frames()
    }

    /// The fewest frames that were ever left outside the magazines while memory was low; `None` where it never was.
    pub fn lowest(&self) -> Option<u64> {
        Some(self.promises.least.load(Ordering::Relaxed)).filter(|n| *n != u64::MAX)
    }
}
