//! Memory that is allocated while a memory system is built.

use crate::machine::Machine;
use core::ptr::NonNull;
use quire_sync::{CpuId, PerCpu};

/// Writes each field of one storey (nested value of the memory system) in its final place, once. No storey is ever on
/// the stack as a whole, because the boot stack is small. The fields after the semicolon are already written. They are
/// named so that the compiler rejects a call that omits a field. The machine type of the caller is called `M`.
///
/// # Safety
/// The place is valid for writes of the storey, and no reader can reach it. The calling function has the same contract.
macro_rules! write_storey {
    ($place:expr => $storey:ident { $($field:ident: $value:expr),* $(,)?; $($written:ident),* $(,)? }) => {{
        let _complete = |storey: &$storey<M>| {
            let $storey { $($field: _,)* $($written: _,)* } = storey;
        };
        let place: *mut $storey<M> = $place;
        $(
            let value = $value;
            // SAFETY: the contract of the function that calls this macro makes the place valid.
            unsafe { (&raw mut (*place).$field).write(value) };
        )*
    }};
}
pub(crate) use write_storey;

/// RAM that is allocated while the system is built and never freed: a bump allocator over one range.
pub struct BootMemory<'m, M: Machine> {
    pub(crate) machine: &'m M,
    pub(crate) next: *mut u8,
    pub(crate) end: *mut u8,
    /// The number of structures that the epoch may free at once. The code that makes the epoch sets it.
    pub(crate) burst: u32,
}

impl<'m, M: Machine> BootMemory<'m, M> {
    pub(crate) fn machine(&self) -> &'m M {
        self.machine
    }

    /// Allocates `bytes` bytes of zeroed memory, aligned to `align`.
    ///
    /// # Panics
    /// Panics at boot if [`Vm::new`](crate::Vm::new) estimated too little memory, which is a bug of this crate.
    pub(crate) fn take(&mut self, bytes: usize, align: usize) -> NonNull<u8> {
        let at = self.take_untouched(bytes, align);
        // SAFETY: the memory is inside the range that `Vm::new` set aside, and was taken just now.
        unsafe { core::ptr::write_bytes(at.as_ptr(), 0, bytes) };
        at
    }

    /// As [`BootMemory::take`], but the memory is not zeroed.
    pub(crate) fn take_untouched(&mut self, bytes: usize, align: usize) -> NonNull<u8> {
        let at = self.next.map_addr(|a| a.next_multiple_of(align));
        let next = at.wrapping_add(bytes);
        assert!(next as usize <= self.end as usize, "boot memory was estimated too small");
        self.next = next;
        NonNull::new(at).expect("RAM does not lie at address zero")
    }

    /// Allocates `n` elements for ever, each made by `init`.
    pub(crate) fn slice<T>(&mut self, n: usize, mut init: impl FnMut() -> T) -> &'static [T] {
        let first = self.take(n * size_of::<T>(), align_of::<T>()).cast::<T>();
        for i in 0..n {
            // SAFETY: the element is within the memory that was just taken.
            unsafe { first.add(i).write(init()) };
        }
        // SAFETY: the memory has `n` initialised elements, is never freed, and is only read through shared references
        // from now on.
        unsafe { core::slice::from_raw_parts(first.as_ptr(), n) }
    }

    /// Allocates one `T` for each CPU.
    pub(crate) fn per_cpu<T>(&mut self, init: impl FnMut(CpuId) -> T) -> PerCpu<T> {
        let cpus = self.machine.cpus();
        let memory = self.take(PerCpu::<T>::bytes(cpus), 128);
        // SAFETY: the memory is fresh, large enough and aligned, and is never freed.
        unsafe { PerCpu::new(memory, cpus, init) }
    }
}
