//! The implementation of `quire_task`'s `Machine` trait: timer, reschedule interrupts, thread switch, watchdog.

use super::context::{self, Context};
use crate::cpu::{self, clock, interrupt};
use crate::machine::{Machine, vm};
use crate::personality::Payload;
use crate::report::{trace, watchdog};
use core::sync::atomic::{AtomicU64, Ordering};
use quire_drivers::local_apic;
use quire_sync::CpuId;
use quire_task::{Irq, Thread, ThreadRef};

/// The longest interval between two timer interrupts of a CPU that runs a thread, in nanoseconds; 0 means no bound. Set
/// once, at boot. See `quire_task::Machine::tick`.
static TICK: AtomicU64 = AtomicU64::new(0);

/// Sets the longest interval between timer interrupts, from the word `tick` of the command line.
pub fn set_tick(ns: u64) {
    TICK.store(ns, Ordering::Relaxed);
}

// SAFETY: `mask` clears the interrupt flag; `current` is one load relative to GS. `switch` saves and restores the
// registers that the System V calling convention preserves, the FPU, FS, GS and the address space.
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
    #[inline(always)]
    fn tick(&self) -> u64 {
        TICK.load(Ordering::Relaxed)
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
        vm.epoch().collect_some() || vm.idle_zero(1)
    }
    fn watching(&self) -> Option<quire_task::Watching> {
        watchdog::watching()
    }
    fn probe(&self, cpu: CpuId) {
        watchdog::probe(cpu);
    }
    fn locked_up(&self, lockup: quire_task::Lockup) {
        watchdog::locked_up(lockup);
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
        if let Some(thread) = prev.payload() {
            thread.switched_away();
        }
        // SAFETY: the caller has masked interrupts, and runs as `prev` while `next` is on no CPU, as `context::switch`
        // requires.
        unsafe { context::switch(self, prev, next, false) }
    }
    #[inline]
    unsafe fn depart(&self, prev: &Thread<Self>, next: &Thread<Self>) {
        trace::switch(next);
        if let Some(thread) = prev.payload() {
            thread.switched_away();
        }
        // SAFETY: the caller has masked interrupts, and runs as `prev` while `next` is on no CPU. Only
        // `context::depart` and `context::depart_preempted` cause this call, and they have set how the thread
        // continues.
        unsafe { context::switch(self, prev, next, true) }
    }
    fn reap(&self, thread: ThreadRef<Self>) {
        trace::ended(&thread);
        drop(thread);
    }
}
