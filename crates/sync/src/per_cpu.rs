//! Storage with one element for each CPU, each on cache lines of its own.

use crate::hooks::{CpuId, PreemptOff};
use crate::record;
use core::cell::UnsafeCell;
use core::ops::{Deref, DerefMut};
use core::ptr::NonNull;
#[cfg(debug_assertions)]
use core::sync::atomic::{AtomicBool, Ordering};

/// A value on cache lines of its own. The alignment is 128 bytes, because x86 prefetches lines in pairs.
#[derive(Default, Debug)]
#[repr(align(128))]
pub struct CachePadded<T>(pub T);

impl<T> Deref for CachePadded<T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.0
    }
}

crate::assert_layout!(CachePadded<u64> { size: 128, align: 128 });
impl<T> DerefMut for CachePadded<T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.0
    }
}

/// One `T` for each CPU, in memory that the caller of [`new`](Self::new) provides, and that lives as long as the
/// machine.
///
/// Elements are shared references: a CPU changes its own element through atomics, cells guarded by [`PreemptOff`], or
/// locks inside `T`.
pub struct PerCpu<T> {
    base: NonNull<CachePadded<T>>,
    len: usize,
}

// SAFETY: a `PerCpu` is a slice of `T` shared between CPUs, so it needs of `T` what a `&[T]` needs.
unsafe impl<T: Sync + Send> Send for PerCpu<T> {}
// SAFETY: a shared `PerCpu` gives `&T` to any CPU, so it needs of `T` what a shared `&[T]` needs.
unsafe impl<T: Sync + Send> Sync for PerCpu<T> {}

impl<T> PerCpu<T> {
    /// The size in bytes of the memory that [`PerCpu::new`] needs for `cpus` CPUs.
    ///
    /// # Panics
    /// Panics if the size is beyond the address space.
    pub const fn bytes(cpus: usize) -> usize {
        match cpus.checked_mul(size_of::<CachePadded<T>>()) {
            Some(bytes) => bytes,
            // A wrapped size would be memory for fewer CPUs.
            None => panic!("more CPUs than fit the address space"),
        }
    }

    /// Lays `cpus` elements out at `memory`.
    ///
    /// # Safety
    /// `memory` points to [`PerCpu::bytes`]`(cpus)` writable bytes, aligned to 128, that no other code ever uses.
    pub unsafe fn new(memory: NonNull<u8>, cpus: usize, mut init: impl FnMut(CpuId) -> T) -> Self {
        let base = memory.cast::<CachePadded<T>>();
        let (bytes, stride) = (Self::bytes(cpus), size_of::<CachePadded<T>>());
        record::own_array(memory.as_ptr(), bytes, stride, core::any::type_name::<T>());
        for cpu in 0..cpus {
            // SAFETY: within the memory that the caller handed over.
            unsafe { base.add(cpu).write(CachePadded(init(cpu))) };
        }
        PerCpu { base, len: cpus }
    }

    /// Allocates one element for each of `cpus` CPUs, in memory that is never freed. For programs with std, where a
    /// failed allocation may end the program.
    ///
    /// # Panics
    /// Panics if there is no memory for so many CPUs.
    #[cfg(any(test, feature = "std"))]
    pub fn leaked(cpus: usize, init: impl FnMut(CpuId) -> T) -> Self {
        let layout = core::alloc::Layout::from_size_align(Self::bytes(cpus).max(1), align_of::<CachePadded<T>>());
        // SAFETY: the layout's size is at least one byte.
        let memory = unsafe { std::alloc::alloc(layout.expect("a size below half of the address space")) };
        // SAFETY: a fresh allocation of `bytes(cpus)` bytes, aligned for an element, that is never freed.
        unsafe { PerCpu::new(NonNull::new(memory).expect("memory for each CPU"), cpus, init) }
    }

    /// The element of the CPU on which `pinned` keeps the caller.
    #[inline(always)]
    #[cfg_attr(recording, track_caller)]
    pub fn mine(&self, pinned: &PreemptOff) -> &T {
        self.of(pinned.cpu())
    }

    /// The element of `cpu`.
    ///
    /// # Panics
    /// Panics if `cpu` is not a CPU of the machine, such as the number of a thread that never became a CPU.
    #[inline(always)]
    #[cfg_attr(recording, track_caller)]
    pub fn of(&self, cpu: CpuId) -> &T {
        record::read(self);
        assert!(cpu < self.len, "the calling thread is no CPU of this machine");
        // SAFETY: the element is in bounds, was initialised by `new`, and is never freed.
        unsafe { &self.base.add(cpu).as_ref().0 }
    }

    /// All elements, by CPU.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        (0..self.len).map(|c| self.of(c))
    }

    /// The number of CPUs.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there is no element. Always false, because a machine has at least one CPU.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

/// A value that only one CPU uses, while preemption is off, without a lock. Usually an element of a [`PerCpu`].
///
/// Such a value saves the atomic step of an uncontended lock. If other CPUs sometimes access the value, it needs a
/// lock.
pub struct Own<T> {
    value: UnsafeCell<T>,
    /// Whether the value is in use, so that debug builds detect two uses at once.
    #[cfg(debug_assertions)]
    used: AtomicBool,
}

// SAFETY: by the contract of `get` one CPU at a time uses the value, and one thread at a time runs on that CPU.
unsafe impl<T: Send> Sync for Own<T> {}

impl<T> Own<T> {
    /// A value that is not in use yet.
    pub const fn new(value: T) -> Self {
        Own {
            value: UnsafeCell::new(value),
            #[cfg(debug_assertions)]
            used: AtomicBool::new(false),
        }
    }

    /// The value.
    ///
    /// # Safety
    /// The caller stays on the CPU to which this value belongs, or that CPU does not use the value while the result
    /// lives. No earlier [`Owned`] of the value is alive.
    #[inline(always)]
    pub unsafe fn get(&self) -> Owned<'_, T> {
        #[cfg(debug_assertions)]
        assert!(
            !record::apart(|| self.used.swap(true, Ordering::Relaxed)),
            "a CPU's own value is used by two callers at once"
        );
        Owned { own: self, _here: core::marker::PhantomData }
    }
}

/// The value of an [`Own`], while it is used.
pub struct Owned<'a, T> {
    own: &'a Own<T>,
    _here: core::marker::PhantomData<*mut ()>,
}

impl<T> Deref for Owned<'_, T> {
    type Target = T;
    #[inline(always)]
    #[cfg_attr(recording, track_caller)]
    fn deref(&self) -> &T {
        // SAFETY: by the contract of `get` no other code uses the value while the holder exists.
        let value = unsafe { &*self.own.value.get() };
        record::guarded(value, false);
        value
    }
}

impl<T> DerefMut for Owned<'_, T> {
    #[inline(always)]
    #[cfg_attr(recording, track_caller)]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: by the contract of `get` no other code uses the value, and `&mut self` makes this the only reference.
        let value = unsafe { &mut *self.own.value.get() };
        record::guarded(value, true);
        value
    }
}

#[cfg(debug_assertions)]
impl<T> Drop for Owned<'_, T> {
    fn drop(&mut self) {
        record::apart(|| self.own.used.store(false, Ordering::Relaxed));
    }
}

#[cfg(all(test, debug_assertions, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    #[should_panic(expected = "used by two callers at once")]
    fn concurrent_use_of_per_cpu_data_is_found() {
        let own = Own::new(1);
        // SAFETY: this breaks the contract, as the test must detect; the second value is never used.
        let (_first, _second) = unsafe { (own.get(), own.get()) };
    }
}
