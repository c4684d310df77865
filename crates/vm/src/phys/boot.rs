//! Memory that is handed out while a memory system is built.

use crate::machine::Machine;
use core::ptr::NonNull;
use quire_sync::{CpuId, PerCpu};

/// Writes the fields of one storey where it will live, each once. No storey ever stands on the stack as a whole,
/// because the boot stack is small. Fields after the semicolon were written before. They are named so that the compiler
/// rejects a call that forgets a field. The caller's machine is called `M`.
///
/// # Safety
/// The place is valid for writes of the storey, and no reader knows it. The calling function has the same contract.
macro_rules! write_storey {
    ($place:expr => $storey:ident { $($field:ident: $value:expr),* $(,)?; $($written:ident),* $(,)? }) => {{
        let _complete = |storey: &$storey<M>| {
            let $storey { $($field: _,)* $($written: _,)* } = storey;
        };
        let place: *mut $storey<M> = $place;
        $(
            let value = $value;
            // SAFETY: by the contract of the function that calls this macro.
            unsafe { (&raw mut (*place).$field).write(value) };
        )*
    }};
}
pub(crate) use write_storey;

/// RAM handed out while the system is built, never taken back: a bump allocator over one range.
pub struct BootMemory<'m, M: Machine> {
    pub(crate) machine: &'m M,
    pub(crate) next: *mut u8,
    pub(crate) end: *mut u8,
    /// How many structures come back through the epoch at once; set when the epoch is made.
    pub(crate) burst: u32,
}

impl<'m, M: Machine> BootMemory<'m, M> {
    pub(crate) fn machine(&self) -> &'m M {
        self.machine
    }

    /// `bytes` of zeroed memory, aligned to `align`.
    ///
    /// # Panics
    /// Where [`Vm::new`](crate::Vm::new)'s estimate was too small: a bug of this crate, at boot.
    pub(crate) fn take(&mut self, bytes: usize, align: usize) -> NonNull<u8> {
        let at = self.take_untouched(bytes, align);
        // SAFETY: inside the range that `Vm::new` set aside, and taken just now.
        unsafe { core::ptr::write_bytes(at.as_ptr(), 0, bytes) };
        at
    }

    /// As [`BootMemory::take`], with whatever the memory holds.
    pub(crate) fn take_untouched(&mut self, bytes: usize, align: usize) -> NonNull<u8> {
        let at = self.next.map_addr(|a| a.next_multiple_of(align));
        let next = at.wrapping_add(bytes);
        assert!(next as usize <= self.end as usize, "boot memory was estimated too small");
        self.next = next;
        NonNull::new(at).expect("RAM does not lie at address zero")
    }

    /// `n` elements, for ever.
    pub(crate) fn slice<T>(&mut self, n: usize, mut init: impl FnMut() -> T) -> &'static [T] {
        let first = self.take(n * size_of::<T>(), align_of::<T>()).cast::<T>();
        for i in 0..n {
            // SAFETY: within the memory just taken.
            unsafe { first.add(i).write(init()) };
        }
        // SAFETY: `n` initialised elements, never freed, and from now on only shared.
        unsafe { core::slice::from_raw_parts(first.as_ptr(), n) }
    }

    /// One `T` a CPU.
    pub(crate) fn per_cpu<T>(&mut self, init: impl FnMut(CpuId) -> T) -> PerCpu<T> {
        let cpus = self.machine.cpus();
        let memory = self.take(PerCpu::<T>::bytes(cpus), 128);
        // SAFETY: fresh, large enough and aligned, and never freed.
        unsafe { PerCpu::new(memory, cpus, init) }
    }
}
