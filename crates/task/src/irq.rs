//! Locks that interrupt handlers acquire too. Such a lock is a spin lock that masks interrupts while it is held.

use crate::machine::{Irq, Machine};
use core::ops::{Deref, DerefMut};
use quire_sync::hooks::{PreemptOff, preempt_off};
use quire_sync::{Rank, SpinGuard, SpinLock};

/// Masks interrupts on this CPU until it is dropped. A preemption that became due in the meantime happens at the drop,
/// because the preemption guard is dropped after interrupts are restored.
pub struct Masked<'a, M: Machine> {
    machine: &'a M,
    was: Irq,
    // A field is dropped after `drop` has run, so preemption is enabled after interrupts are restored.
    _preempt: PreemptOff,
}

impl<'a, M: Machine> Masked<'a, M> {
    /// Masks interrupts.
    #[inline]
    pub fn new(machine: &'a M) -> Self {
        let preempt = preempt_off();
        Masked { machine, was: machine.mask(), _preempt: preempt }
    }
}

impl<M: Machine> Drop for Masked<'_, M> {
    #[inline]
    fn drop(&mut self) {
        self.machine.restore(self.was);
    }
}

/// A lock of a value that interrupt handlers access too.
pub struct IrqLock<T>(SpinLock<T>);

impl<T> IrqLock<T> {
    /// An unlocked lock with this rank in the lock order.
    pub fn new(rank: Rank, value: T) -> Self {
        IrqLock(SpinLock::new(rank, value))
    }

    /// Masks interrupts and acquires the lock.
    #[inline]
    pub fn lock<'a, M: Machine>(&'a self, machine: &'a M) -> IrqGuard<'a, T, M> {
        let masked = Masked::new(machine);
        IrqGuard { guard: self.0.lock(), _masked: masked }
    }

    /// Acquires the lock. The caller has masked interrupts, and keeps them masked until after the guard is dropped.
    #[inline]
    pub(crate) fn lock_masked(&self) -> SpinGuard<'_, T> {
        self.0.lock()
    }

    /// As [`lock_masked`](Self::lock_masked), but returns `None` if the lock is held.
    #[inline]
    pub(crate) fn try_lock_masked(&self) -> Option<SpinGuard<'_, T>> {
        self.0.try_lock()
    }
}

/// The guard of an [`IrqLock`], which releases the lock when it is dropped.
pub struct IrqGuard<'a, T, M: Machine> {
    // Declared first, so dropped first: the lock is released before interrupts are restored.
    guard: SpinGuard<'a, T>,
    _masked: Masked<'a, M>,
}

impl<T, M: Machine> Deref for IrqGuard<'_, T, M> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.guard
    }
}
impl<T, M: Machine> DerefMut for IrqGuard<'_, T, M> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.guard
    }
}
