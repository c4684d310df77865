//! The machine as the core sees it: RAM, instructions, interrupts of other CPUs, and sleep.

use crate::firmware;
use core::arch::asm;
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use quire_pmap::{Hardware, Inboxes, Mmu, Request, Tables};
use quire_pmap_sv39::{Sv39, instructions};
use quire_sync::cpuset::CpuMask;
use quire_sync::{CpuId, ThreadHandle};
use quire_vm::{DirectMap, Machine, Pfn, Phys};

/// The number of CPUs. Each runs one thread.
pub const CPUS: usize = 3;
// SAFETY: the first tables map the first 4 GiB there, and the kernel's own tables all of RAM.
pub const DIRECT: DirectMap = unsafe { DirectMap::new(0xffff_ffc0_0000_0000) };
/// The hart that is each CPU.
pub static HARTS: [AtomicUsize; CPUS] = [const { AtomicUsize::new(usize::MAX) }; CPUS];

static INBOXES: Inboxes<Sv39, CPUS> = Inboxes::new();

pub struct Board {
    pub mmu: Mmu<Sv39>,
}

impl Board {
    /// Serves the requests of other CPUs to this one.
    pub fn serve(&self) {
        INBOXES.serve(self);
    }
}

// SAFETY: `DirectMap` keeps this contract, and each call goes to it.
unsafe impl Phys for Board {
    fn frame_ptr(&self, pfn: Pfn) -> *mut u8 {
        DIRECT.frame_ptr(pfn)
    }
    fn pfn_of(&self, at: *const u8) -> Pfn {
        DIRECT.pfn_of(at)
    }
}

impl Machine for Board {
    type Pmap = Tables<Sv39>;
    fn cpus(&self) -> usize {
        CPUS
    }
}

// SAFETY: each function executes the instruction that its contract names, and `Inboxes` waits for all answers.
unsafe impl Hardware for Board {
    type Format = Sv39;
    fn mmu(&self) -> &Mmu<Sv39> {
        &self.mmu
    }
    unsafe fn load_root(&self, root: Pfn, tag: u16, keep: bool) {
        // SAFETY: by this function's contract.
        unsafe { instructions::load_root(root, tag, keep) };
    }
    fn drop_page(&self, va: u64) {
        instructions::fence_page(va);
    }
    fn drop_loaded(&self, _root: Pfn, tag: u16) {
        instructions::fence_space(tag);
    }
    fn drop_all(&self) {
        instructions::fence_all();
    }
    fn masked<R>(&self, f: impl FnOnce() -> R) -> R {
        instructions::masked(f)
    }
    fn shoot(&self, targets: &CpuMask, request: &Request<'_, Sv39>) {
        INBOXES.shoot(self, targets, request, interrupt);
    }
}

fn interrupt(cpu: CpuId) {
    firmware::interrupt(HARTS[cpu].load(Ordering::Relaxed));
}

/// The number of this CPU, which `tp` holds.
pub fn cpu() -> CpuId {
    let tp: usize;
    // SAFETY: reads a register that nothing else changes.
    unsafe { asm!("mv {}, tp", out(reg) tp, options(nomem, nostack, preserves_flags)) };
    tp
}

/// The hooks of `quire-sync`: a thread for each CPU, which never moves.
struct Hooks;

/// Whether each CPU's thread was unparked since it last parked.
static TOKENS: [AtomicBool; CPUS] = [const { AtomicBool::new(false) }; CPUS];

// SAFETY: threads never move, and `tp` is below the number of CPUs.
unsafe impl quire_sync::Cpu for Hooks {
    fn preempt_disable() {}
    fn preempt_enable() {}
    fn current() -> CpuId {
        cpu()
    }
    fn relax() {
        core::hint::spin_loop();
    }
}

// SAFETY: a token stays until the thread takes it in `park`. An interrupt after the last look at the token is pending
// while interrupts are masked, so it ends the wait for interrupts.
unsafe impl quire_sync::Wait for Hooks {
    fn current() -> ThreadHandle {
        // SAFETY: threads are numbered as their CPUs are, and live for ever.
        unsafe { ThreadHandle::from_number(cpu()) }
    }
    fn park(deadline: Option<u64>) {
        // The counter has 10 MHz.
        firmware::set_timer(deadline.map_or(u64::MAX, |ns| ns / 100));
        let is_over = || TOKENS[cpu()].swap(false, Ordering::AcqRel) || deadline.is_some_and(|end| Self::now() >= end);
        while !instructions::masked(|| {
            let over = is_over();
            if !over {
                // SAFETY: stops until an interrupt is pending. The handler runs when interrupts are unmasked.
                unsafe { asm!("wfi", options(nomem, nostack)) };
            }
            over
        }) {}
    }
    fn unpark(thread: ThreadHandle) {
        TOKENS[thread.number()].store(true, Ordering::Release);
        interrupt(thread.number());
    }
    fn now() -> u64 {
        let time: u64;
        // SAFETY: reads the counter that every hart has.
        unsafe { asm!("rdtime {}", out(reg) time, options(nomem, nostack)) };
        time * 100
    }
}

quire_sync::provide!(Hooks);
