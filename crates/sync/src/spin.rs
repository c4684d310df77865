//! A spin lock that keeps its holder on its CPU and has a rank.
//!
//! Holders must not sleep. Interrupts stay on, so an interrupt handler must not take such a lock. The exceptions are
//! locks whose owner also masks interrupts around them (the scheduler's run queues and timer wheels).

use crate::atomic::{AtomicBool, Ordering};
use crate::held;
use crate::hooks::{PreemptOff, preempt_off, relax};
use crate::mutant::{Mutant, mutant};
use crate::rank::Rank;
use crate::record;
use crate::trace::{EventKind, Span};
use core::cell::UnsafeCell;
use core::ops::{Deref, DerefMut};

/// The kind of lock that a caller may already hold when it acquires a lock of the same rank.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Beside {
    None,
    /// A lock that precedes the acquired lock in a fixed order of the caller.
    Equal,
    /// The parent in a tree.
    Parent,
}

/// The number of iterations after which a spinner calls the hook [`Cpu::spun`](crate::Cpu::spun). Under TCG (QEMU's
/// emulation of a CPU) these iterations take about a millisecond, because each pause leaves the translated code. On
/// hardware they take a twentieth of that.
pub const SPUN: u32 = 1 << 10;

/// A value guarded by spinning; see the module.
pub struct SpinLock<T: ?Sized> {
    held: AtomicBool,
    rank: Rank,
    value: UnsafeCell<T>,
}

crate::assert_layout!(SpinLock<()> { size: 2, align: 1, held: 0 });
crate::assert_layout!(SpinLock<u64> { size: 16, align: 8 });

// SAFETY: the lock hands out the value to one holder at a time.
unsafe impl<T: ?Sized + Send> Send for SpinLock<T> {}
// SAFETY: a shared lock gives the value to one holder at a time, so the value need not be `Sync`.
unsafe impl<T: ?Sized + Send> Sync for SpinLock<T> {}

impl<T> SpinLock<T> {
    /// A free lock at `rank` in the lock order.
    #[cfg(not(any(loom, shuttle)))]
    pub const fn new(rank: Rank, value: T) -> Self {
        SpinLock { held: AtomicBool::new(false), rank, value: UnsafeCell::new(value) }
    }
    /// A free lock at `rank` in the lock order.
    #[cfg(any(loom, shuttle))]
    pub fn new(rank: Rank, value: T) -> Self {
        SpinLock { held: AtomicBool::new(false), rank, value: UnsafeCell::new(value) }
    }

    /// Takes the value out of a lock that no other thread can reach any more.
    pub fn into_inner(self) -> T {
        self.leaves_its_place();
        // SAFETY: the value is read once, because `ManuallyDrop` keeps the lock from dropping it.
        unsafe { core::mem::ManuallyDrop::new(self).value.get().read() }
    }
}

#[cfg(all(debug_assertions, not(any(loom, shuttle))))]
impl<T: ?Sized> Drop for SpinLock<T> {
    fn drop(&mut self) {
        held::forget(self.address());
    }
}

impl<T: ?Sized> SpinLock<T> {
    /// Spins until the lock is free, then holds it.
    #[inline]
    #[cfg_attr(recording, track_caller)]
    pub fn lock(&self) -> SpinGuard<'_, T> {
        self.acquire(Beside::None)
    }

    /// Like [`lock`](Self::lock), for a caller that holds another lock of the same rank. The caller acquires locks of
    /// equal rank in one fixed order.
    #[inline]
    #[cfg_attr(recording, track_caller)]
    pub fn lock_nested(&self) -> SpinGuard<'_, T> {
        self.acquire(Beside::Equal)
    }

    /// Like [`lock`](Self::lock), for a caller that holds the lock of the parent in a tree, which has the same rank.
    /// The fixed order is from the root down.
    #[inline]
    #[cfg_attr(recording, track_caller)]
    pub fn lock_below(&self) -> SpinGuard<'_, T> {
        self.acquire(Beside::Parent)
    }

    #[inline]
    #[cfg_attr(recording, track_caller)]
    fn acquire(&self, beside: Beside) -> SpinGuard<'_, T> {
        let pinned = preempt_off();
        held::spin(self.rank, beside, self.address());
        while !self.take() {
            self.contended();
        }
        record::taken(&self.held, Some(self.rank));
        SpinGuard { lock: self, _pinned: pinned }
    }

    #[inline(always)]
    #[cfg_attr(recording, track_caller)]
    fn take(&self) -> bool {
        if mutant(Mutant::LockNotAtomic) {
            return !self.held.load(Ordering::Acquire) && {
                self.held.store(true, Ordering::Relaxed);
                true
            };
        }
        self.held.compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    #[cold]
    fn contended(&self) {
        let mut span = Span::begin(EventKind::Spin, self.address() as u64, 0);
        span.set(self.rank.number().into(), 0);
        #[cfg(all(any(test, feature = "std"), not(any(loom, shuttle))))]
        crate::hooks::threads::count_wait();
        let mut turns = 0u32;
        while self.held.load(Ordering::Relaxed) {
            relax();
            turns = turns.wrapping_add(1);
            if turns.is_multiple_of(SPUN) {
                crate::hooks::spun(self.address(), self.rank.number(), turns);
            }
        }
        if turns >= SPUN {
            crate::hooks::spun(self.address(), self.rank.number(), 0);
        }
    }

    /// Acquires the lock if it is free. The call never waits, so its rank is not checked against held locks.
    #[inline]
    #[cfg_attr(recording, track_caller)]
    pub fn try_lock(&self) -> Option<SpinGuard<'_, T>> {
        let pinned = preempt_off();
        if !self.take() {
            return None;
        }
        record::taken(&self.held, Some(self.rank));
        held::spin_taken(self.rank, self.address());
        Some(SpinGuard { lock: self, _pinned: pinned })
    }

    #[inline(always)]
    fn address(&self) -> usize {
        core::ptr::from_ref(&self.held).addr()
    }

    /// The value of a lock that the caller borrows exclusively.
    pub fn get_mut(&mut self) -> &mut T {
        self.value.get_mut()
    }

    /// Makes debug checks forget the lock orders that they have seen at this address. A caller that is about to move
    /// the lock calls this.
    pub fn leaves_its_place(&self) {
        #[cfg(all(debug_assertions, not(any(loom, shuttle))))]
        held::forget(self.address());
    }

    /// The lock's place in the lock order.
    pub fn rank(&self) -> Rank {
        self.rank
    }

    /// Whether the lock is held; for assertions only.
    pub fn is_locked(&self) -> bool {
        self.held.load(Ordering::Relaxed)
    }
}

/// Holds a [`SpinLock`]; released when dropped. Keeps the holder on its CPU.
pub struct SpinGuard<'a, T: ?Sized> {
    lock: &'a SpinLock<T>,
    _pinned: PreemptOff,
}

impl<T: ?Sized> Deref for SpinGuard<'_, T> {
    type Target = T;
    #[inline(always)]
    #[cfg_attr(recording, track_caller)]
    fn deref(&self) -> &T {
        // SAFETY: the guard holds the lock.
        let value = unsafe { &*self.lock.value.get() };
        record::guarded(value, false);
        value
    }
}

impl<T: ?Sized> DerefMut for SpinGuard<'_, T> {
    #[inline(always)]
    #[cfg_attr(recording, track_caller)]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: the guard holds the lock, and is borrowed exclusively.
        let value = unsafe { &mut *self.lock.value.get() };
        record::guarded(value, true);
        value
    }
}

impl<T: ?Sized> Drop for SpinGuard<'_, T> {
    #[inline(always)]
    fn drop(&mut self) {
        record::released(&self.lock.held, Some(self.lock.rank));
        self.lock.held.store(false, if mutant(Mutant::UnlockRelaxed) { Ordering::Relaxed } else { Ordering::Release });
        held::spin_released(self.lock.address());
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn two_threads_never_hold_it_together() {
        let lock = SpinLock::new(Rank::of_test(1), 0u64);
        // All threads start together, also on a loaded machine. If a thread began after another had ended,
        // ThreadSanitizer would take the two for one thread.
        let all = std::sync::Barrier::new(4);
        std::thread::scope(|s| {
            for _ in 0..4 {
                s.spawn(|| {
                    all.wait();
                    for _ in 0..10_000 {
                        *lock.lock() += 1;
                    }
                });
            }
        });
        assert_eq!(lock.into_inner(), 40_000);
    }

    #[test]
    fn a_cpu_that_finds_the_lock_held_is_counted() {
        let lock = SpinLock::new(Rank::of_test(1), ());
        let held = lock.lock();
        let before = crate::hooks::threads::waits();
        std::thread::scope(|s| {
            let waits = s.spawn(|| drop(lock.lock()));
            while crate::hooks::threads::waits() == before {
                std::thread::yield_now();
            }
            drop(held);
            assert!(waits.join().is_ok());
        });
    }

    /// A race that x86 hides, for ThreadSanitizer to find: `./quire test sanitize`.
    #[test]
    #[cfg(sanitized)]
    #[ignore = "races on purpose"]
    fn an_unlock_that_publishes_nothing() {
        crate::mutant::set_mutant(Some(Mutant::UnlockRelaxed));
        two_threads_never_hold_it_together();
    }

    #[test]
    #[should_panic(expected = "lock order")]
    #[cfg(debug_assertions)]
    fn taking_locks_against_the_order_panics() {
        let (a, b) = (SpinLock::new(Rank::of_test(1), ()), SpinLock::new(Rank::of_test(2), ()));
        let _b = b.lock();
        let _a = a.lock();
    }
}
