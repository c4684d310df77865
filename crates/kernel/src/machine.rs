//! The machine that the layers below the system call interface run on: RAM, page tables, scheduling, waiting.

use crate::cpu::{self, clock, interrupt, registers};
use crate::memory::layout::{DIRECT, direct};
use crate::memory::{frame, shootdown};
use crate::personality::Payload;
use crate::report::{trace, watchdog};
use crate::thread::context;
use crate::thread::context::Context;
use core::arch::asm;
use core::sync::atomic::{AtomicPtr, Ordering};
use quire_drivers::acpi::Affinity;
use quire_drivers::local_apic;
use quire_pmap::{Hardware, kernel_pages};
use quire_pmap_x86_64::registers::cr3;
use quire_pmap_x86_64::{Mmu, Request, X86_64, X86Pmap};
use quire_sync::cpuset::CpuMask;
use quire_sync::{CpuId, ThreadHandle};
use quire_task::{Irq, Scheduler, Thread, ThreadRef};
use quire_vm::machine::KernelPages;
use quire_vm::tlb::flush::FlushSet;
use quire_vm::{MemoryType, OutOfMemory, PAGE_SIZE, Pfn, Phys, Vm};

/// The machine: one value, inside the memory system.
pub struct Machine {
    mmu: Mmu,
    affinity: Affinity,
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
        // SAFETY: the word is null, or a `&'static T` that `set` stored.
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
    pub fn new(mmu: Mmu, affinity: Affinity) -> Machine {
        Machine { mmu, affinity }
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
        // SAFETY: the trait's caller owns the frame, and the direct map has all of it.
        unsafe { frame::zero(direct(pfn.address())) }
    }
    #[inline(always)]
    unsafe fn copy_frame(&self, from: Pfn, to: Pfn) {
        // SAFETY: the trait's caller owns `to` and may read `from`; the direct map has both, and they are two frames.
        unsafe { frame::copy(direct(from.address()), direct(to.address())) }
    }
}

// SAFETY: each call goes to `DirectMap`, which keeps this contract.
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
        // SAFETY: the caller owns the frame, as `DirectMap` asks.
        unsafe { DirectMap.zero_frame(pfn) }
    }
    #[inline(always)]
    unsafe fn copy_frame(&self, from: Pfn, to: Pfn) {
        // SAFETY: the caller owns `to` and may read `from`, as `DirectMap` asks.
        unsafe { DirectMap.copy_frame(from, to) }
    }
}

impl quire_vm::Machine for Machine {
    type Pmap = X86Pmap;
    #[inline(always)]
    fn cpus(&self) -> usize {
        cpu::count()
    }
    fn is_ending(&self) -> bool {
        // SAFETY: the thread that runs, where there is one yet; it lives while it runs.
        let task = unsafe { quire_task::Machine::current(self).as_ref() };
        task.and_then(|task| task.payload().as_ref()).is_some_and(quire_linux::Thread::killed)
    }
    #[cfg(debug_assertions)]
    fn refuses_allocation(&self) -> bool {
        // SAFETY: the thread that runs, if there is one, lives while it runs.
        let thread = unsafe { quire_task::Machine::current(self).as_ref() };
        thread.and_then(|thread| thread.payload().as_ref()).is_some_and(quire_linux::Thread::is_refused)
    }
    fn ends_something(&self) -> bool {
        // SAFETY: the thread that runs, if there is one, lives while it runs.
        let thread = unsafe { quire_task::Machine::current(self).as_ref() };
        // The kernel's own threads free memory, or make what boot needs.
        thread.and_then(|thread| thread.payload().as_ref()).is_none_or(quire_linux::Thread::ends_something)
    }
    fn domains(&self) -> usize {
        self.affinity.domains()
    }
    fn domain_of_cpu(&self, cpu: usize) -> usize {
        self.affinity.of_cpu(cpu::apic_id(cpu))
    }
    fn domain_of_frame(&self, pfn: Pfn) -> (usize, Pfn) {
        let (domain, end) = self.affinity.of_address(pfn.address());
        // A frame that lies in two domains counts to that of its first byte.
        (domain, Pfn(end.div_ceil(PAGE_SIZE)))
    }
}

/// INVPCID: everything of one PCID but global translations, or everything.
fn invpcid(kind: u64, pcid: u16) {
    let descriptor = [pcid as u64, 0];
    // SAFETY: called only where the CPU has INVPCID.
    unsafe { asm!("invpcid {}, [{}]", in(reg) kind, in(reg) &descriptor, options(nostack, preserves_flags)) }
}

// SAFETY: `kernel_pages` keeps the contract by way of `shoot`.
unsafe impl KernelPages for Machine {
    unsafe fn map_kernel(
        &self,
        vm: &'static quire_vm::phys::Physical<Self>,
        va: u64,
        pfn: Pfn,
        memory: MemoryType,
    ) -> Result<(), OutOfMemory> {
        kernel_pages::map(vm, va, pfn, memory)
    }
    unsafe fn unmap_kernel(&self, va: u64) -> Option<Pfn> {
        kernel_pages::unmap(self, va)
    }
    fn flush_kernel(&self, set: &FlushSet) {
        kernel_pages::flush(self, set);
    }
}

// SAFETY: the instructions are the CPU's own; `shootdown` returns when every target has answered.
unsafe impl Hardware for Machine {
    type Format = X86_64;

    #[inline(always)]
    fn mmu(&self) -> &Mmu {
        &self.mmu
    }
    #[inline(always)]
    unsafe fn load_root(&self, root: Pfn, tag: u16, keep: bool) {
        // SAFETY: by the trait's contract the root maps the kernel.
        unsafe { registers::set_cr3(cr3(root, tag, keep)) }
    }
    #[inline(always)]
    fn drop_page(&self, va: u64) {
        // SAFETY: dropping a translation changes nothing that the tables do not say.
        unsafe { asm!("invlpg [{}]", in(reg) va, options(nostack, preserves_flags)) }
    }
    fn drop_loaded(&self, root: Pfn, tag: u16) {
        if self.mmu.tags() {
            invpcid(1, tag);
        } else {
            // SAFETY: the root that is loaded is loaded again; without PCIDs that drops everything but global entries.
            unsafe { registers::set_cr3(cr3(root, 0, false)) }
        }
    }
    fn drop_all(&self) {
        if self.mmu.tags() {
            invpcid(2, 0);
        } else {
            // SAFETY: CR3 and CR4 get back what they had; turning global pages off and on drops all translations.
            unsafe { registers::drop_global() }
        }
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
            Some(at) => {
                let wait = at.saturating_sub(clock::now());
                local_apic::timer_arm(wait, clock::ticks_in(wait));
            }
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
    fn idle_work(&self) -> bool {
        let vm = vm();
        vm.drain_own_queue_batch();
        vm.idle_zero(1)
    }
    fn watching(&self) -> Option<quire_task::Watching> {
        watchdog::watching()
    }
    fn probe(&self, cpu: CpuId) {
        watchdog::probe(cpu);
    }
    fn locked_up(&self, what: quire_task::Lockup) {
        watchdog::locked_up(what);
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
        trace::switch(next);
        // SAFETY: the caller has masked interrupts, and runs as `prev` while `next` is on no CPU, as `context::switch` asks.
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
        cpu::preempt_enable();
    }
    #[inline(always)]
    fn current() -> CpuId {
        cpu::id()
    }
    #[inline(always)]
    fn relax() {
        core::hint::spin_loop();
    }
    fn spun(lock: usize, rank: u8, turns: u32) {
        watchdog::spun(lock, rank, turns);
    }

    #[cfg(debug_assertions)]
    fn uninterrupted(f: &mut dyn FnMut()) {
        let interrupts = cpu::interrupts_off();
        f();
        cpu::interrupts_restore(interrupts);
    }
    #[cfg(debug_assertions)]
    fn held() -> *mut quire_sync::held::SpinsHeld {
        // SAFETY: only the address is taken; who asks stays on this CPU.
        unsafe { &raw mut (*cpu::block()).held }
    }
    #[cfg(debug_assertions)]
    fn backtrace(into: &mut [usize]) -> usize {
        let mut n = 0;
        crate::report::panic::each_caller(|address| {
            if let Some(place) = into.get_mut(n) {
                *place = address as usize;
                n += 1;
            }
        });
        n
    }
    #[cfg(debug_assertions)]
    fn describe(address: usize, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        crate::report::panic::describe(address as u64, f)
    }
}

/// The last reason against preemption is gone, and a reschedule is pending.
#[cold]
pub extern "C" fn preempt_now() {
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
    fn park_uninterruptibly() {
        scheduler().park_uninterruptibly();
    }
    fn unpark(thread: ThreadHandle) {
        // SAFETY: whoever keeps a handle to wake somebody keeps that thread alive.
        scheduler().unpark(unsafe { Thread::from_handle(thread) });
    }
    #[inline(always)]
    fn now() -> u64 {
        clock::now()
    }

    #[cfg(debug_assertions)]
    fn held() -> *mut quire_sync::held::MutexesHeld {
        match cpu::current_thread() {
            // Boot, before there are threads.
            0 => core::ptr::null_mut(),
            // SAFETY: the running thread is alive; only its list's address is taken.
            at => unsafe { &raw mut (*Thread::<Machine>::from_handle(ThreadHandle(at)).context()).held },
        }
    }
}

quire_sync::provide!(Hooks);
