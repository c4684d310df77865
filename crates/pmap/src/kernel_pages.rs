//! The three calls by which a machine implements [`KernelPages`](quire_vm::machine::KernelPages) on
//! [`KernelTables`](crate::KernelTables).

use crate::format::Rights;
use crate::hardware::Hardware;
use crate::kernel_tables::KernelMapError;
use crate::shootdown::Request;
use quire_sync::cpuset::CpuMask;
use quire_sync::preempt_off;
use quire_sync::rank::assert_may_await_cpus;
use quire_vm::phys::Physical;
use quire_vm::phys::frames::{Fill, For};
use quire_vm::phys::page::FrameKind;
use quire_vm::stats::Event;
use quire_vm::tlb::flush::FlushSet;
use quire_vm::{MemoryType, OutOfMemory, PAGE_SIZE, Pfn, VirtRange};

/// Maps the page at `va` for loads and stores; see [`quire_vm::machine::KernelPages::map_kernel`].
///
/// # Panics
/// If `va` was not reserved at boot, or is mapped already. The kernel's map gives an address out only once.
///
/// # Safety
/// As for [`map_kernel`](quire_vm::machine::KernelPages::map_kernel).
pub unsafe fn map<M: Hardware>(
    vm: &'static Physical<M>,
    va: u64,
    pfn: Pfn,
    memory: MemoryType,
) -> Result<(), OutOfMemory> {
    let machine = vm.machine();
    let mut frames = || {
        let pfn = vm.alloc_frame(Fill::Any, For::Kernel).ok()?.into_pfn();
        // SAFETY: the frame was allocated just now, and becomes a table page.
        unsafe { vm.descriptor(pfn) }.set_kind(FrameKind::Table);
        vm.stats().count(Event::TableAlloc);
        Some(pfn)
    };
    let range = VirtRange { start: va, end: va.saturating_add(PAGE_SIZE) };
    // SAFETY: the machine's tables lie in its own memory, and the frames were allocated for them. The caller may have the
    // page mapped, by this function's contract.
    let mapped =
        unsafe { machine.mmu().kernel().map(machine, range, pfn.address(), Rights::Write, memory, &mut frames) };
    match mapped {
        Ok(()) => Ok(()),
        Err(KernelMapError::OutOfMemory) => Err(OutOfMemory),
        Err(e) => panic!("kernel address {va:#x} cannot be mapped: {e:?}"),
    }
}

/// Whether a retry suffices after a kernel fault at `va`. A retry suffices if the page is mapped: this CPU then had
/// cached the absent entry, and this function has fenced the address. Faults of this kind exist only if
/// [`Format::CACHES_ABSENT`](crate::Format::CACHES_ABSENT) is true; x86-64 has none.
pub fn look_again<M: Hardware>(machine: &M, va: u64) -> bool {
    let there = machine.mmu().kernel().lookup(machine, va).is_some();
    if there {
        machine.drop_page(va);
    }
    there
}

/// Removes the mapping of the page at `va`; see [`quire_vm::machine::KernelPages::unmap_kernel`].
///
/// # Safety
/// As for [`unmap_kernel`](quire_vm::machine::KernelPages::unmap_kernel).
pub unsafe fn unmap<M: Hardware>(machine: &M, va: u64) -> Option<Pfn> {
    // SAFETY: the tables lie in the machine's own memory, and the caller uses the page no more, by the contract.
    unsafe { machine.mmu().kernel().take(machine, va) }
}

/// Makes every CPU drop its translations of `set`; see [`quire_vm::machine::KernelPages::flush_kernel`].
pub fn flush<M: Hardware>(machine: &M, set: &FlushSet) {
    let request = match set.ranges() {
        Some(ranges) => Request::kernel(ranges),
        None => Request::everything(),
    };
    assert_may_await_cpus();
    let _here = preempt_off();
    machine.shoot(&CpuMask::first(machine.cpus()), &request);
}
