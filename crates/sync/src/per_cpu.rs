//! Storage with one element a CPU, each on cache lines of its own.

use crate::hooks::{CpuId, PreemptOff};
use crate::record;
use core::ops::{Deref, DerefMut};
use core::ptr::NonNull;

/// A value on cache lines of its own: 128 bytes, since x86 prefetches lines in pairs.
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

/// One `T` a CPU, in memory that its maker provides and that lives as long as the machine.
///
/// Elements are shared references: what a CPU changes in its own element goes through atomics, cells guarded by
/// [`PreemptOff`], or locks inside `T`.
pub struct PerCpu<T> {
    base: NonNull<CachePadded<T>>,
    len: usize,
}

// SAFETY: a `PerCpu` is a slice of `T` shared between CPUs, so it needs of `T` what a `&[T]` needs.
unsafe impl<T: Sync + Send> Send for PerCpu<T> {}
// SAFETY: as above.
unsafe impl<T: Sync + Send> Sync for PerCpu<T> {}

impl<T> PerCpu<T> {
    /// The size in bytes of the memory that [`PerCpu::new`] needs for `cpus` CPUs.
    pub const fn bytes(cpus: usize) -> usize {
        cpus * size_of::<CachePadded<T>>()
    }

    /// Lays `cpus` elements out at `memory`.
    ///
    /// # Safety
    /// `memory` points to [`PerCpu::bytes`]`(cpus)` writable bytes, aligned to 128, that nobody else uses, for ever.
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

    /// One element for each of `cpus` CPUs, in memory of the host that is never freed.
    #[cfg(any(test, feature = "std"))]
    pub fn leaked(cpus: usize, init: impl FnMut(CpuId) -> T) -> Self {
        let layout = core::alloc::Layout::from_size_align(Self::bytes(cpus), align_of::<CachePadded<T>>());
        let layout = layout.expect("as many CPUs as memory has addresses");
        // SAFETY: a machine has CPUs, so the layout has a size.
        let memory = unsafe { alloc::alloc::alloc(layout) };
        let Some(memory) = NonNull::new(memory) else { alloc::alloc::handle_alloc_error(layout) };
        // SAFETY: fresh memory of that size and alignment, which nobody else has.
        unsafe { PerCpu::new(memory, cpus, init) }
    }

    /// The element of the CPU that the caller is kept on.
    #[inline(always)]
    #[cfg_attr(recording, track_caller)]
    pub fn mine(&self, pinned: &PreemptOff) -> &T {
        self.of(pinned.cpu())
    }

    /// The element of `cpu`.
    ///
    /// # Panics
    /// Where `cpu` is not a CPU of the machine.
    #[inline(always)]
    #[cfg_attr(recording, track_caller)]
    pub fn of(&self, cpu: CpuId) -> &T {
        record::read(self);
        assert!(cpu < self.len);
        // SAFETY: in bounds, initialised by `new`, never freed.
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

    /// Whether there is no element (a machine has at least one CPU, so: never).
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}
