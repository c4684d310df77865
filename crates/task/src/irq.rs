//! Locks that interrupt handlers take too: they mask interrupts around a spin lock.

use crate::machine::{Irq, Machine};
use core::ops::{Deref, DerefMut};
use quire_sync::hooks::{PreemptOff, preempt_off};
use quire_sync::{Rank, SpinGuard, SpinLock};

/// Masks interrupts on this CPU until it is dropped. A preemption that became due meanwhile happens then, unless
/// something else forbids it, because the preemption guard is dropped after interrupts are restored.
pub struct Masked<'a, M: Machine> {
    machine: &'a M,
    was: Irq,
    // Declared, hence dropped, after `drop` has restored interrupts.
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

/// A value that interrupt handlers reach as well.
pub struct IrqLock<T>(SpinLock<T>);

impl<T> IrqLock<T> {
    /// A lock at `rank` of the one lock order.
    pub fn new(rank: Rank, value: T) -> Self {
        IrqLock(SpinLock::new(rank, value))
    }

    /// Masks interrupts and takes the lock.
    #[inline]
    pub fn lock<'a, M: Machine>(&'a self, machine: &'a M) -> IrqGuard<'a, T, M> {
        let masked = Masked::new(machine);
        IrqGuard { guard: self.0.lock(), _masked: masked }
    }

    /// Takes the lock where interrupts are masked already, and stay so until after the guard is gone.
    #[inline]
    pub(crate) fn lock_masked(&self) -> SpinGuard<'_, T> {
        self.0.lock()
    }

    /// As [`lock_masked`](Self::lock_masked), if the lock is free.
    #[inline]
    pub(crate) fn try_lock_masked(&self) -> Option<SpinGuard<'_, T>> {
        self.0.try_lock()
    }
}

/// Holds an [`IrqLock`].
pub struct IrqGuard<'a, T, M: Machine> {
    // Dropped first: the lock is free before interrupts come back.
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
