//! The local interrupt controller of a CPU: xAPIC through memory, x2APIC through MSRs if the CPU has it.

use core::arch::asm;
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

const MSR_APIC_BASE: u32 = 0x1b;
const BASE_ENABLE: u64 = 1 << 11;
const BASE_X2APIC: u64 = 1 << 10;

const ID: u32 = 0x20;
const TASK_PRIORITY: u32 = 0x80;
const END_OF_INTERRUPT: u32 = 0xb0;
const SPURIOUS: u32 = 0xf0;
const ERROR_STATUS: u32 = 0x280;
const COMMAND: u32 = 0x300;
const COMMAND_HIGH: u32 = 0x310;
const TIMER: u32 = 0x320;
const LINT0: u32 = 0x350;
const LINT1: u32 = 0x360;
const ERROR: u32 = 0x370;
const TIMER_INITIAL: u32 = 0x380;
const TIMER_CURRENT: u32 = 0x390;
const TIMER_DIVIDE: u32 = 0x3e0;

const MASKED: u32 = 1 << 16;
const DELIVERY_NMI: u32 = 4 << 8;
const DELIVERY_INIT: u32 = 5 << 8;
const DELIVERY_STARTUP: u32 = 6 << 8;
const LEVEL_ASSERT: u32 = 1 << 14;
const PENDING: u32 = 1 << 12;
const TIMER_TSC_DEADLINE: u32 = 2 << 17;
const MSR_TSC_DEADLINE: u32 = 0x6e0;

/// The address of the registers, or 0 for x2APIC mode. The same on all CPUs.
static REGISTERS: AtomicUsize = AtomicUsize::new(0);
/// Timer ticks per nanosecond at divisor 1, times 2^32; 0 if the TSC deadline is used.
static TIMER_RATE: AtomicU64 = AtomicU64::new(0);

unsafe fn rdmsr(msr: u32) -> u64 {
    let (low, high): (u32, u32);
    // SAFETY: the caller names an MSR that exists.
    unsafe { asm!("rdmsr", in("ecx") msr, out("eax") low, out("edx") high, options(nomem, nostack, preserves_flags)) }
    (high as u64) << 32 | low as u64
}
unsafe fn wrmsr(msr: u32, value: u64) {
    // SAFETY: the caller names an MSR that exists, and a value that this MSR accepts.
    unsafe {
        asm!(
            "wrmsr",
            in("ecx") msr,
            in("eax") value as u32,
            in("edx") (value >> 32) as u32,
            options(nostack, preserves_flags)
        )
    }
}

#[inline(always)]
fn read(register: u32) -> u32 {
    match REGISTERS.load(Ordering::Relaxed) {
        // SAFETY: x2APIC mode is on (`init`), and each register here exists in it.
        0 => unsafe { rdmsr(0x800 + (register >> 4)) as u32 },
        // SAFETY: `init` was given the mapped registers.
        base => unsafe { ((base + register as usize) as *const u32).read_volatile() },
    }
}

#[inline(always)]
fn write(register: u32, value: u32) {
    match REGISTERS.load(Ordering::Relaxed) {
        // SAFETY: without a base the CPU is in x2APIC mode, where each register is an MSR from 0x800 on.
        0 => unsafe { wrmsr(0x800 + (register >> 4), value as u64) },
        // SAFETY: `base` is the mapped page of the APIC's registers, and `register` is an offset within it.
        base => unsafe { ((base + register as usize) as *mut u32).write_volatile(value) },
    }
}

/// The physical address at which this CPU's registers appear in xAPIC mode.
pub fn physical_base() -> u64 {
    // SAFETY: every x86-64 CPU has this MSR.
    unsafe { rdmsr(MSR_APIC_BASE) & 0x000f_ffff_ffff_f000 }
}

/// Enables this CPU's controller: in x2APIC mode if `registers` is `None`, else in xAPIC mode with its registers mapped
/// at that address. All lines but NMI are masked. Spurious interrupts go to the vector `spurious`.
///
/// # Safety
/// `registers` is the permanent uncached mapping of [`physical_base`], the same for all CPUs; with `None` the CPU has
/// x2APIC. Interrupts are off.
pub unsafe fn init(registers: Option<usize>, spurious: u8) {
    REGISTERS.store(registers.unwrap_or(0), Ordering::Relaxed);
    // SAFETY: enabling, and switching from xAPIC to x2APIC, are legal transitions.
    unsafe {
        let mut base = rdmsr(MSR_APIC_BASE) | BASE_ENABLE;
        if registers.is_none() {
            base |= BASE_X2APIC;
        }
        wrmsr(MSR_APIC_BASE, base);
    }
    write(TASK_PRIORITY, 0);
    write(TIMER, MASKED);
    write(LINT0, MASKED);
    write(LINT1, DELIVERY_NMI);
    write(ERROR, MASKED);
    write(ERROR_STATUS, 0);
    write(SPURIOUS, 0x100 | spurious as u32);
}

/// This CPU's identifier in interrupt commands.
pub fn id() -> u32 {
    let id = read(ID);
    if REGISTERS.load(Ordering::Relaxed) == 0 { id } else { id >> 24 }
}

/// Signals the end of the present interrupt to the controller.
#[inline(always)]
pub fn end_of_interrupt() {
    write(END_OF_INTERRUPT, 0);
}

fn command(target: u32, low: u32) {
    if REGISTERS.load(Ordering::Relaxed) == 0 {
        // SAFETY: x2APIC mode is on. The fences order earlier stores before the interrupt, because a write of this MSR
        // does not.
        unsafe {
            asm!("mfence", "lfence", options(nostack, preserves_flags));
            wrmsr(0x800 + (COMMAND >> 4), (target as u64) << 32 | low as u64);
        }
    } else {
        // The pair of registers belongs to this CPU. Interrupts are masked, because this CPU's interrupt handlers may
        // send commands too.
        let interrupts = interrupts_off();
        write(COMMAND_HIGH, target << 24);
        write(COMMAND, low);
        while read(COMMAND) & PENDING != 0 {
            core::hint::spin_loop();
        }
        if interrupts {
            // SAFETY: interrupts were on when this function was called.
            unsafe { asm!("sti", options(nomem, nostack)) }
        }
    }
}

fn interrupts_off() -> bool {
    let flags: u64;
    // SAFETY: reads the flags and masks interrupts; the caller restores them.
    unsafe { asm!("pushfq", "pop {}", "cli", out(reg) flags) }
    flags & 0x200 != 0
}

/// Sends interrupt `vector` to the CPU with identifier `target`.
pub fn send(target: u32, vector: u8) {
    command(target, LEVEL_ASSERT | vector as u32);
}

/// Sends a non-maskable interrupt to the CPU with identifier `target`.
pub fn send_nmi(target: u32) {
    command(target, LEVEL_ASSERT | DELIVERY_NMI);
}

/// Resets the CPU with identifier `target`: it then waits for [`send_startup`].
pub fn send_init(target: u32) {
    command(target, LEVEL_ASSERT | DELIVERY_INIT);
}

/// Starts a CPU that waits after [`send_init`]. The CPU begins in real mode at physical address `page << 12`.
pub fn send_startup(target: u32, page: u8) {
    command(target, LEVEL_ASSERT | DELIVERY_STARTUP | page as u32);
}

/// Lets the timer count down from the largest value, with its interrupt masked, for [`timer_elapsed`].
pub fn timer_calibration_start() {
    write(TIMER, MASKED);
    write(TIMER_DIVIDE, 0b1011);
    write(TIMER_INITIAL, u32::MAX);
}

/// Timer ticks since [`timer_calibration_start`].
pub fn timer_elapsed() -> u64 {
    (u32::MAX - read(TIMER_CURRENT)) as u64
}

/// Sets this CPU's timer to send `vector` once, when armed. With `hz` the timer counts its own ticks, `hz` in a second.
/// With `None` it compares a deadline with the TSC, which the CPU must support.
pub fn timer_init(vector: u8, hz: Option<u64>) {
    let rate = hz.map_or(0, |hz| ((hz as u128) << 32) / 1_000_000_000);
    TIMER_RATE.store(rate as u64, Ordering::Relaxed);
    match hz {
        Some(_) => {
            write(TIMER_DIVIDE, 0b1011);
            write(TIMER, vector as u32);
            write(TIMER_INITIAL, 0);
        }
        None => {
            write(TIMER, TIMER_TSC_DEADLINE | vector as u32);
            // SAFETY: orders the switch of mode before the first deadline, as the manual requires.
            unsafe { asm!("mfence", options(nostack, preserves_flags)) }
        }
    }
}

/// Arms this CPU's timer: `nanoseconds` from now, or, in TSC-deadline mode, at TSC value `deadline`.
#[inline]
pub fn timer_arm(nanoseconds: u64, deadline: u64) {
    let rate = TIMER_RATE.load(Ordering::Relaxed);
    if rate == 0 {
        // SAFETY: the caller of `timer_init` found that the CPU has the deadline mode.
        unsafe { wrmsr(MSR_TSC_DEADLINE, deadline.max(1)) }
    } else {
        // At least one tick, because 0 disarms. At most the register's largest value: after a timer that ends too
        // early, the handler arms it again.
        let ticks = ((nanoseconds as u128 * rate as u128) >> 32).clamp(1, u32::MAX as u128);
        write(TIMER_INITIAL, ticks as u32);
    }
}

/// Disarms this CPU's timer.
pub fn timer_disarm() {
    if TIMER_RATE.load(Ordering::Relaxed) == 0 {
        // SAFETY: a TSC-deadline timer is in use if there is no rate, so the MSR exists; zero disarms it.
        unsafe { wrmsr(MSR_TSC_DEADLINE, 0) }
    } else {
        write(TIMER_INITIAL, 0);
    }
}
