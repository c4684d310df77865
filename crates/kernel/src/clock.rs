//! Time from the TSC, calibrated against the PIT while the boot does other work.

use core::arch::x86_64::{__cpuid, __cpuid_count, _rdtsc};
use core::sync::atomic::{AtomicU64, Ordering};
use quire_drivers::{local_apic, pit};

/// TSC value at boot: time zero.
static START: AtomicU64 = AtomicU64::new(0);
/// Nanoseconds per tick, times 2^32. Until calibration, as if the TSC ran at 2.5 GHz.
static NS_PER_TICK: AtomicU64 = AtomicU64::new((2 << 32) / 5);
/// TSC ticks per nanosecond, times 2^32.
static TICKS_PER_NS: AtomicU64 = AtomicU64::new((5 << 32) / 2);

/// The time-stamp counter.
#[inline(always)]
pub fn ticks() -> u64 {
    // SAFETY: every x86-64 CPU has it.
    unsafe { _rdtsc() }
}

/// Nanoseconds since boot.
#[inline(always)]
pub fn now() -> u64 {
    ns_of(ticks().wrapping_sub(START.load(Ordering::Relaxed)))
}

/// Converts a difference of [`ticks`] to nanoseconds.
#[inline(always)]
pub fn ns_of(ticks: u64) -> u64 {
    ((ticks as u128 * NS_PER_TICK.load(Ordering::Relaxed) as u128) >> 32) as u64
}

/// Ticks a second.
pub fn hz() -> u64 {
    ((TICKS_PER_NS.load(Ordering::Relaxed) as u128 * 1_000_000_000) >> 32) as u64
}

/// The TSC's value at `ns` nanoseconds after boot.
#[inline(always)]
pub fn ticks_at(ns: u64) -> u64 {
    let ticks = (ns as u128 * TICKS_PER_NS.load(Ordering::Relaxed) as u128) >> 32;
    START.load(Ordering::Relaxed).saturating_add(ticks.min(u64::MAX as u128) as u64)
}

/// A calibration that runs while the boot goes on.
pub struct Calibration {
    reference: pit::Interval,
    at: u64,
    apic_at: Option<u64>,
}

/// What a calibration found.
#[derive(Clone, Copy, Debug)]
pub struct Rates {
    /// TSC ticks a second.
    pub tsc: u64,
    /// Ticks of the local APIC's timer a second.
    pub apic: u64,
}

/// How long the reference interval should be at least, in PIT ticks: 6 ms, for an error below one part in a thousand where a
/// port access takes a few microseconds.
const ENOUGH: u64 = pit::HZ * 6 / 1000;

impl Calibration {
    /// Sets time zero, and starts the reference interval.
    pub fn start() -> Calibration {
        // SAFETY: the boot CPU alone runs, and nothing else uses the PIT.
        let reference = unsafe { pit::Interval::start() };
        let at = ticks();
        START.store(at, Ordering::Relaxed);
        Calibration { reference, at, apic_at: None }
    }

    /// The local APIC works: its timer is measured from here on.
    pub fn start_apic(&mut self) {
        local_apic::timer_calibration_start();
        self.apic_at = Some(ticks());
    }

    /// Waits until the interval is long enough, and sets the clock's rate.
    pub fn finish(self) -> Rates {
        let measured = measure(&self.reference, self.at).or_else(|| {
            // The boot took longer than the counter runs: once more, waiting for it.
            // SAFETY: as in `start`.
            let again = unsafe { pit::Interval::start() };
            measure(&again, ticks())
        });
        let tsc = stated_rate().or(measured).unwrap_or(2_500_000_000).max(1_000_000);
        NS_PER_TICK.store(((1_000_000_000u128 << 32) / tsc as u128) as u64, Ordering::Relaxed);
        TICKS_PER_NS.store((((tsc as u128) << 32) / 1_000_000_000) as u64, Ordering::Relaxed);
        let apic = self.apic_at.map_or(0, |at| {
            let elapsed = local_apic::timer_elapsed();
            let span = (ticks() - at).max(1);
            (elapsed as u128 * tsc as u128 / span as u128) as u64
        });
        Rates { tsc, apic: apic.max(1_000_000) }
    }
}

/// The TSC's rate by an interval that began at TSC value `at`; `None` where its counter has run out or does not run.
fn measure(reference: &pit::Interval, at: u64) -> Option<u64> {
    for _ in 0..2_000_000 {
        let elapsed = reference.elapsed()?;
        let now = ticks();
        if elapsed >= ENOUGH {
            return Some(((now - at) as u128 * pit::HZ as u128 / elapsed as u128) as u64);
        }
        core::hint::spin_loop();
    }
    None
}

/// The TSC's rate where CPUID states it: leaf 0x15, or a hypervisor's leaf 0x4000_0010 (in kHz).
fn stated_rate() -> Option<u64> {
    let highest = __cpuid(0).eax;
    if highest >= 0x15 {
        let r = __cpuid_count(0x15, 0);
        if r.eax != 0 && r.ebx != 0 && r.ecx != 0 {
            return Some(r.ecx as u64 * r.ebx as u64 / r.eax as u64);
        }
    }
    let hypervisor = __cpuid(1).ecx & 1 << 31 != 0;
    if hypervisor && __cpuid(0x4000_0000).eax >= 0x4000_0010 {
        let khz = __cpuid(0x4000_0010).eax as u64;
        return (khz > 0).then_some(khz * 1000);
    }
    None
}
