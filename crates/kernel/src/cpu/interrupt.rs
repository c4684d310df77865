//! Interrupt vectors, and the handlers of the device vectors.

use crate::cpu;
use core::arch::asm;
use core::sync::atomic::{AtomicPtr, AtomicU64, AtomicUsize, Ordering};
use quire_drivers::local_apic;
pub use quire_linux_state::Interrupt;

/// The vector of the local APIC's timer.
pub const TIMER: u8 = 0xf0;
/// The vector of reschedule interrupts: another CPU has queued a thread here, or requests a check of the work flags.
pub const RESCHEDULE: u8 = 0xf1;
/// The vector of TLB shootdowns.
pub const SHOOTDOWN: u8 = 0xf2;
/// The local APIC's spurious vector.
pub const SPURIOUS: u8 = 0xff;
/// The first vector for devices.
const DEVICES: u8 = 0x30;
/// The number of vectors for devices.
const MAX_DEVICES: usize = 16;

/// The handler of a device's interrupt. It is called with interrupts masked. It must not sleep, and must not acquire
/// locks that threads acquire with interrupts on.
pub type Handler = fn(usize);

static HANDLERS: [AtomicPtr<()>; MAX_DEVICES] = [const { AtomicPtr::new(core::ptr::null_mut()) }; MAX_DEVICES];
static ARGUMENTS: [AtomicUsize; MAX_DEVICES] = [const { AtomicUsize::new(0) }; MAX_DEVICES];
static NEXT: AtomicUsize = AtomicUsize::new(0);

/// A CPU's interrupt counts by kind, on cache lines that only this CPU writes.
#[repr(C, align(128))]
struct Counts([AtomicU64; Interrupt::ALL.len()]);

static COUNTS: [Counts; cpu::MAX] = [const { Counts([const { AtomicU64::new(0) }; Interrupt::ALL.len()]) }; cpu::MAX];

/// Adds `n` to this CPU's count of interrupts of `kind`.
///
/// # Requires
/// Preemption is off, or interrupts are masked.
#[inline(always)]
pub fn count(kind: Interrupt, n: u64) {
    let counter = COUNTS[cpu::id()].0[kind as usize].as_ptr();
    // SAFETY: the counter belongs to this CPU. One instruction changes it, so an interrupt cannot lose a count. No
    // other CPU writes it, so the instruction needs no lock prefix. Other CPUs read the whole word at once.
    unsafe { asm!("add qword ptr [{}], {}", in(reg) counter, in(reg) n, options(nostack)) }
}

/// How many interrupts of `kind` the CPU `cpu` has served.
pub fn counted(cpu: usize, kind: Interrupt) -> u64 {
    COUNTS[cpu].0[kind as usize].load(Ordering::Relaxed)
}

/// Allocates a vector for a device, whose interrupt will call `handler(argument)`. `None` if all are in use.
pub fn register(handler: Handler, argument: usize) -> Option<u8> {
    let i = NEXT.fetch_add(1, Ordering::Relaxed);
    ARGUMENTS.get(i)?.store(argument, Ordering::Relaxed);
    HANDLERS[i].store(handler as *mut (), Ordering::Release);
    Some(DEVICES + i as u8)
}

/// Serves device vector `vector`.
pub fn device(vector: u8) {
    count(Interrupt::Device, 1);
    let slot = vector.wrapping_sub(DEVICES) as usize;
    if let Some(handler) = HANDLERS.get(slot).map(|h| h.load(Ordering::Acquire))
        && !handler.is_null()
    {
        // SAFETY: only `register` stores to this word, and it stores only handlers.
        let handler = unsafe { core::mem::transmute::<*mut (), Handler>(handler) };
        handler(ARGUMENTS[slot].load(Ordering::Relaxed));
    }
    local_apic::end_of_interrupt();
}
