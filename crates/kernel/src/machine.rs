//! The type `Machine`, on which the memory system and the scheduler run, its parts, and access to RAM.
//!
//! The machine's other traits are implemented in the modules whose code they call. Translations are in
//! `memory::hardware`, scheduling in `thread::scheduling`, preemption and waiting in `thread::hooks`, programs in
//! `personality::machine`. So a user of the type does not depend on those modules.

use crate::cpu;
use crate::memory::frame;
use crate::memory::layout::{DIRECT, direct};
use core::sync::atomic::{AtomicPtr, Ordering};
use quire_drivers::acpi::Affinity;
use quire_pmap::kernel_pages;
use quire_pmap_x86_64::{Mmu, X86Pmap};
use quire_task::{Scheduler, Thread};
use quire_vm::machine::KernelPages;
use quire_vm::tlb::flush::FlushSet;
use quire_vm::{MemoryType, OutOfMemory, PAGE_SIZE, Pfn, Phys, Vm};

/// The machine. Its only value is a part of the memory system.
pub struct Machine {
    mmu: Mmu,
    affinity: Affinity,
}

// Four address spaces fit in a page. The size matters because each process has one.
const _: () = assert!(size_of::<quire_vm::map::Space<Machine>>() <= 1024);

/// A value that boot sets once, before its first reader.
pub struct Once<T: 'static>(AtomicPtr<T>);

impl<T> Once<T> {
    pub const fn new() -> Self {
        Once(AtomicPtr::new(core::ptr::null_mut()))
    }
    /// Sets the value.
    pub fn set(&self, value: &'static T) {
        self.0.store(core::ptr::from_ref(value).cast_mut(), Ordering::Release);
    }
    /// The value, which was set before.
    ///
    /// # Safety
    /// The value was set.
    #[inline(always)]
    pub unsafe fn get(&self) -> &'static T {
        // SAFETY: by this function's contract the pointer is a `&'static T`.
        unsafe { &*self.0.load(Ordering::Relaxed) }
    }
    /// The value; `None` before it was set.
    pub fn try_get(&self) -> Option<&'static T> {
        // SAFETY: the word is null, or a `&'static T` that `set` stored.
        unsafe { self.0.load(Ordering::Acquire).as_ref() }
    }
}

static VM: Once<Vm<Machine>> = Once::new();
static SCHEDULER: Once<Scheduler<Machine>> = Once::new();

/// The memory system.
#[inline(always)]
pub fn vm() -> &'static Vm<Machine> {
    // SAFETY: boot sets the memory system before the first allocation, the first thread, and the start of other CPUs'
    // threads.
    unsafe { VM.get() }
}
/// The scheduler.
#[inline(always)]
pub fn scheduler() -> &'static Scheduler<Machine> {
    // SAFETY: boot sets the scheduler before the first thread and before interrupts are on.
    unsafe { SCHEDULER.get() }
}
/// The memory system; `None` before boot has set it.
pub fn try_vm() -> Option<&'static Vm<Machine>> {
    VM.try_get()
}
/// The scheduler; `None` before boot has set it.
pub fn try_scheduler() -> Option<&'static Scheduler<Machine>> {
    SCHEDULER.try_get()
}
/// Sets the memory system. Boot calls it once.
pub fn set_vm(vm: &'static Vm<Machine>) {
    VM.set(vm);
}
/// Sets the scheduler. Boot calls it once.
pub fn set_scheduler(scheduler: &'static Scheduler<Machine>) {
    SCHEDULER.set(scheduler);
}

impl Machine {
    /// The machine with this translation state and these memory domains.
    pub fn new(mmu: Mmu, affinity: Affinity) -> Machine {
        Machine { mmu, affinity }
    }
    /// The state of address translation on all CPUs.
    #[inline(always)]
    pub fn mmu(&self) -> &Mmu {
        &self.mmu
    }
}

/// The running thread; null on a CPU that has no thread yet.
fn current() -> *const Thread<Machine> {
    cpu::current_thread() as *const Thread<Machine>
}

/// Access to RAM through the direct map, which is possible before there is a [`Machine`].
pub struct DirectMap;

// SAFETY: the direct map maps every frame of RAM at a constant address, and consecutive frames at consecutive
// addresses.
unsafe impl Phys for DirectMap {
    #[inline(always)]
    fn frame_ptr(&self, pfn: Pfn) -> *mut u8 {
        direct(pfn.address())
    }
    #[inline(always)]
    fn pfn_of(&self, ptr: *const u8) -> Pfn {
        Pfn::containing(ptr as u64 - DIRECT)
    }
    #[inline(always)]
    unsafe fn zero_frame(&self, pfn: Pfn) {
        // SAFETY: the trait's caller owns the frame, and the direct map maps all of it.
        unsafe { frame::zero(direct(pfn.address())) }
    }
    #[inline(always)]
    unsafe fn copy_frame(&self, from: Pfn, to: Pfn) {
        // SAFETY: the trait's caller owns `to` and may read `from`. They are different frames, and the direct map maps
        // both.
        unsafe { frame::copy(direct(from.address()), direct(to.address())) }
    }
}

// SAFETY: each function calls that of `DirectMap`, which fulfils this contract.
unsafe impl Phys for Machine {
    #[inline(always)]
    fn frame_ptr(&self, pfn: Pfn) -> *mut u8 {
        DirectMap.frame_ptr(pfn)
    }
    #[inline(always)]
    fn pfn_of(&self, ptr: *const u8) -> Pfn {
        DirectMap.pfn_of(ptr)
    }
    #[inline(always)]
    fn prefetch(&self, at: *const u8) {
        frame::prefetch_line(at);
    }
    #[inline(always)]
    fn prefetch_frame<const LINES: usize>(&self, pfn: Pfn) {
        frame::prefetch::<LINES>(direct(pfn.address()));
    }
    #[inline(always)]
    unsafe fn zero_frame(&self, pfn: Pfn) {
        // SAFETY: the caller owns the frame, as `DirectMap` requires.
        unsafe { DirectMap.zero_frame(pfn) }
    }
    #[inline(always)]
    unsafe fn copy_frame(&self, from: Pfn, to: Pfn) {
        // SAFETY: the caller owns `to` and may read `from`, as `DirectMap` requires.
        unsafe { DirectMap.copy_frame(from, to) }
    }
}

impl quire_vm::Machine for Machine {
    type Pmap = X86Pmap;
    #[inline(always)]
    fn cpus(&self) -> usize {
        cpu::count()
    }
    fn store_time(&self) -> u64 {
        cpu::clock::realtime()
    }
    fn is_ending(&self) -> bool {
        // SAFETY: the pointer is null, or the running thread, which is alive while it runs.
        let task = unsafe { current().as_ref() };
        task.and_then(|task| task.payload().as_ref()).is_some_and(quire_linux_state::Thread::killed)
    }
    #[cfg(debug_assertions)]
    fn refuses_allocation(&self) -> bool {
        // SAFETY: the thread that runs, if there is one, lives while it runs.
        let thread = unsafe { current().as_ref() };
        thread.and_then(|thread| thread.payload().as_ref()).is_some_and(quire_linux_state::Thread::is_refused)
    }
    fn standing(&self) -> quire_vm::Standing {
        // SAFETY: the thread that runs, if there is one, lives while it runs.
        let thread = unsafe { current().as_ref() }.and_then(|thread| thread.payload().as_ref());
        thread.map_or(quire_vm::Standing::System, quire_linux_state::Thread::standing)
    }
    fn ends_something(&self) -> bool {
        // SAFETY: the thread that runs, if there is one, lives while it runs.
        let thread = unsafe { current().as_ref() };
        // A kernel thread counts too, because kernel threads free memory, or allocate for boot.
        thread.and_then(|thread| thread.payload().as_ref()).is_none_or(quire_linux_state::Thread::ends_something)
    }
    fn domains(&self) -> usize {
        self.affinity.domains()
    }
    fn domain_of_cpu(&self, cpu: usize) -> usize {
        self.affinity.of_cpu(cpu::apic_id(cpu))
    }
    fn domain_of_frame(&self, pfn: Pfn) -> (usize, Pfn) {
        let (domain, end) = self.affinity.of_address(pfn.address());
        // The end is rounded up, because a frame that crosses two domains belongs to the domain of its first byte.
        (domain, Pfn(end.div_ceil(PAGE_SIZE)))
    }
}

// SAFETY: `kernel_pages` fulfils the contract: it drops stale translations on all CPUs by `Hardware::shoot`.
unsafe impl KernelPages for Machine {
    unsafe fn map_kernel(
        &self,
        vm: &'static quire_vm::phys::Physical<Self>,
        va: u64,
        pfn: Pfn,
        memory: MemoryType,
    ) -> Result<(), OutOfMemory> {
        // SAFETY: `kernel_pages::map` requires of its caller just the contract of this function.
        unsafe { kernel_pages::map(vm, va, pfn, memory) }
    }
    unsafe fn unmap_kernel(&self, va: u64) -> Option<Pfn> {
        // SAFETY: `kernel_pages::unmap` requires of its caller just the contract of this function.
        unsafe { kernel_pages::unmap(self, va) }
    }
    fn flush_kernel(&self, set: &FlushSet) {
        kernel_pages::flush(self, set);
    }
}
