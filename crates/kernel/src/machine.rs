//! The machine that the layers below the system call interface run on: RAM, page tables, scheduling, waiting.

use crate::context::Context;
use crate::cpu::{self, registers};
use crate::layout::{DIRECT, direct};
use crate::personality::Payload;
use crate::{clock, context, frame, interrupt, shootdown};
use core::arch::asm;
use core::sync::atomic::{AtomicPtr, Ordering};
use quire_drivers::local_apic;
use quire_pmap_x86_64::{Invpcid, Mmu, Request, X86, X86Pmap};
use quire_sync::cpuset::CpuMask;
use quire_sync::{CpuId, ThreadHandle};
use quire_task::{Irq, Scheduler, Thread, ThreadRef};
use quire_vm::{Pfn, Phys, Vm};

/// The machine: one value, inside the memory system.
pub struct Machine {
    mmu: Mmu,
}

/// A value that boot sets once, before anybody asks for it.
pub struct Once<T: 'static>(AtomicPtr<T>);

impl<T> Once<T> {
    pub const fn new() -> Self {
        Once(AtomicPtr::new(core::ptr::null_mut()))
    }
    /// Sets the value.
    pub fn set(&self, value: &'static T) {
        self.0.store(core::ptr::from_ref(value).cast_mut(), Ordering::Release);
    }
    /// The value.
    ///
    /// # Safety
    /// It was set.
    #[inline(always)]
    pub unsafe fn get(&self) -> &'static T {
        // SAFETY: by this function's contract the pointer is a `&'static T`.
        unsafe { &*self.0.load(Ordering::Relaxed) }
    }
    /// The value, if it was set.
    pub fn try_get(&self) -> Option<&'static T> {
        // SAFETY: null, or a `&'static T`.
        unsafe { self.0.load(Ordering::Acquire).as_ref() }
    }
}

static VM: Once<Vm<Machine>> = Once::new();
static SCHEDULER: Once<Scheduler<Machine>> = Once::new();

/// The memory system.
#[inline(always)]
pub fn vm() -> &'static Vm<Machine> {
    // SAFETY: boot sets it before the first allocation, thread and other CPU.
    unsafe { VM.get() }
}
/// The scheduler.
#[inline(always)]
pub fn scheduler() -> &'static Scheduler<Machine> {
    // SAFETY: boot sets it before the first thread and before interrupts are on.
    unsafe { SCHEDULER.get() }
}
/// The memory system, if boot has come that far.
pub fn try_vm() -> Option<&'static Vm<Machine>> {
    VM.try_get()
}
/// The scheduler, if boot has come that far.
pub fn try_scheduler() -> Option<&'static Scheduler<Machine>> {
    SCHEDULER.try_get()
}
/// Called once each by boot.
pub fn set_vm(vm: &'static Vm<Machine>) {
    VM.set(vm);
}
/// Called once by boot.
pub fn set_scheduler(scheduler: &'static Scheduler<Machine>) {
    SCHEDULER.set(scheduler);
}

impl Machine {
    /// The machine over its translation state.
    pub fn new(mmu: Mmu) -> Machine {
        Machine { mmu }
    }
}

/// RAM through the direct map; usable before there is a [`Machine`].
pub struct DirectMap;

// SAFETY: the direct map shows every frame of RAM at its own constant address, consecutive frames consecutively.
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
        // SAFETY: by the trait's contract.
        unsafe { frame::zero(direct(pfn.address())) }
    }
    #[inline(always)]
    unsafe fn copy_frame(&self, from: Pfn, to: Pfn) {
        // SAFETY: by the trait's contract.
        unsafe { frame::copy(direct(from.address()), direct(to.address())) }
    }
}

// SAFETY: as for `DirectMap`.
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
    unsafe fn zero_frame(&self, pfn: Pfn) {
        // SAFETY: by the trait's contract.
        unsafe { DirectMap.zero_frame(pfn) }
    }
    #[inline(always)]
    unsafe fn copy_frame(&self, from: Pfn, to: Pfn) {
        // SAFETY: by the trait's contract.
        unsafe { DirectMap.copy_frame(from, to) }
    }
}

impl quire_vm::Machine for Machine {
    type Pmap = X86Pmap;
    #[inline(always)]
    fn cpus(&self) -> usize {
        cpu::count()
    }
}

// SAFETY: the instructions are the CPU's own; `shootdown` returns when every target has answered.
unsafe impl X86 for Machine {
    #[inline(always)]
    fn mmu(&self) -> &Mmu {
        &self.mmu
    }
    #[inline(always)]
    unsafe fn write_cr3(&self, value: u64) {
        // SAFETY: by the trait's contract the root maps the kernel.
        unsafe { registers::set_cr3(value) }
    }
    #[inline(always)]
    fn invlpg(&self, va: u64) {
        // SAFETY: dropping a translation changes nothing that the tables do not say.
        unsafe { asm!("invlpg [{}]", in(reg) va, options(nostack, preserves_flags)) }
    }
    fn invpcid(&self, what: Invpcid) {
        let (kind, pcid) = match what {
            Invpcid::Single(pcid) => (1u64, pcid as u64),
            Invpcid::All => (2, 0),
        };
        let descriptor = [pcid, 0];
        // SAFETY: called only where the CPU has INVPCID.
        unsafe { asm!("invpcid {}, [{}]", in(reg) kind, in(reg) &descriptor, options(nostack, preserves_flags)) }
    }
    fn masked<R>(&self, f: impl FnOnce() -> R) -> R {
        let interrupts = cpu::interrupts_off();
        let r = f();
        cpu::interrupts_restore(interrupts);
        r
    }
    fn shoot(&self, targets: &CpuMask, request: &Request<'_>) {
        shootdown::shoot(self, targets, request);
    }
}

// SAFETY: `mask` clears the interrupt flag; `current` is one load relative to GS; `switch` saves and restores all that the
// System V calling convention preserves, the FPU, FS, GS and the address space.
unsafe impl quire_task::Machine for Machine {
    type Context = Context;
    type Payload = Payload;

    #[inline(always)]
    fn now(&self) -> u64 {
        clock::now()
    }
    #[inline(always)]
    fn ticks(&self) -> u64 {
        clock::ticks()
    }
    #[inline(always)]
    fn ticks_to_ns(&self, ticks: u64) -> u64 {
        clock::ns_of(ticks)
    }
    fn arm(&self, deadline: Option<u64>) {
        match deadline {
            Some(at) => local_apic::timer_arm(at.saturating_sub(clock::now()), clock::ticks_at(at)),
            None => local_apic::timer_disarm(),
        }
    }
    fn kick(&self, cpu: CpuId) {
        local_apic::send(cpu::apic_id(cpu), interrupt::RESCHEDULE);
    }
    #[inline(always)]
    fn halt(&self) {
        cpu::halt();
    }
    #[inline(always)]
    fn mask(&self) -> Irq {
        if cpu::interrupts_off() { Irq::On } else { Irq::Off }
    }
    #[inline(always)]
    fn restore(&self, was: Irq) {
        cpu::interrupts_restore(was == Irq::On);
    }
    #[inline(always)]
    fn current(&self) -> *const Thread<Self> {
        cpu::current_thread() as *const Thread<Self>
    }
    #[inline(always)]
    unsafe fn set_current(&self, thread: *const Thread<Self>) {
        // SAFETY: only the scheduler calls this, with interrupts masked.
        unsafe { cpu::set_current_thread(thread as usize) }
    }
    #[inline(always)]
    fn set_pending(&self, pending: bool) {
        cpu::set_pending(pending);
    }
    #[inline]
    unsafe fn switch(&self, prev: &Thread<Self>, next: &Thread<Self>) {
        // SAFETY: by the trait's contract.
        unsafe { context::switch(self, prev, next) }
    }
    fn reap(&self, thread: ThreadRef<Self>) {
        crate::personality::reap(thread);
    }
}

/// Binds `quire_sync`'s hooks to this machine.
pub struct Hooks;

// SAFETY: the preemption word keeps the scheduler from switching while its count is not zero; `id` reads this CPU's block.
unsafe impl quire_sync::Cpu for Hooks {
    #[inline(always)]
    fn preempt_disable() {
        cpu::preempt_disable();
    }
    #[inline(always)]
    fn preempt_enable() {
        if cpu::preempt_enable() {
            preempt_now();
        }
    }
    #[inline(always)]
    fn current() -> CpuId {
        cpu::id()
    }
    #[inline(always)]
    fn relax() {
        core::hint::spin_loop();
    }
}

#[cold]
fn preempt_now() {
    // With interrupts masked, whoever masked them drops a guard later.
    if cpu::interrupts_are_on()
        && let Some(scheduler) = try_scheduler()
    {
        scheduler.preempt();
    }
}

// SAFETY: the scheduler's token keeps an `unpark` that comes before its `park`.
unsafe impl quire_sync::Wait for Hooks {
    #[inline(always)]
    fn current() -> ThreadHandle {
        ThreadHandle(cpu::current_thread())
    }
    fn park(deadline: Option<u64>) {
        scheduler().park(deadline);
    }
    fn unpark(thread: ThreadHandle) {
        // SAFETY: whoever keeps a handle to wake somebody keeps that thread alive.
        scheduler().unpark(unsafe { Thread::from_handle(thread) });
    }
    #[inline(always)]
    fn now() -> u64 {
        clock::now()
    }
}

quire_sync::provide!(Hooks);
