//! The clock: time from the TSC, whose rate is measured against the PIT while boot does other work.

use core::arch::x86_64::{__cpuid, __cpuid_count, _rdtsc};
use core::sync::atomic::{AtomicU64, Ordering};
use quire_drivers::{local_apic, pit};

/// The TSC's value at boot, which is time zero.
static START: AtomicU64 = AtomicU64::new(0);
/// Nanoseconds per TSC tick, times 2^32. Before the calibration, a rate of 2.5 GHz is assumed.
static NS_PER_TICK: AtomicU64 = AtomicU64::new((2 << 32) / 5);
/// The time of boot, in nanoseconds since 1970.
static EPOCH: AtomicU64 = AtomicU64::new(0);
/// TSC ticks per nanosecond, times 2^32.
static TICKS_PER_NS: AtomicU64 = AtomicU64::new((5 << 32) / 2);

/// The value of the time-stamp counter.
#[inline(always)]
pub fn ticks() -> u64 {
    // SAFETY: every x86-64 CPU has the instruction, and it accesses no memory.
    unsafe { _rdtsc() }
}

/// The time since boot, in nanoseconds.
#[inline(always)]
pub fn now() -> u64 {
    ns_of(ticks().wrapping_sub(START.load(Ordering::Relaxed)))
}

/// The wall-clock time, in nanoseconds since 1970.
pub fn realtime() -> u64 {
    epoch().wrapping_add(now())
}

/// The time of boot, in nanoseconds since 1970.
pub fn epoch() -> u64 {
    EPOCH.load(Ordering::Relaxed)
}

/// Sets the wall clock. `ns` is the time of boot, in nanoseconds since 1970.
pub fn set_epoch(ns: u64) {
    EPOCH.store(ns, Ordering::Relaxed);
}

/// Converts a difference of [`ticks`] to nanoseconds.
#[inline(always)]
pub fn ns_of(ticks: u64) -> u64 {
    ((ticks as u128 * NS_PER_TICK.load(Ordering::Relaxed) as u128) >> 32) as u64
}

/// The TSC's value at boot, and nanoseconds per tick times 2^32. A reader can compute [`now`] from them and the TSC.
pub fn scale() -> (u64, u64) {
    (START.load(Ordering::Relaxed), NS_PER_TICK.load(Ordering::Relaxed))
}

/// The TSC's rate, in ticks per second.
pub fn hz() -> u64 {
    ((TICKS_PER_NS.load(Ordering::Relaxed) as u128 * 1_000_000_000) >> 32) as u64
}

/// The value that the TSC will have in `ns` nanoseconds, rounded up. It is computed from the TSC's present value,
/// because `NS_PER_TICK` and `TICKS_PER_NS` are not exact inverses. In a computation from boot their error would grow,
/// and a timer would expire before [`now`] reaches its deadline.
#[inline(always)]
pub fn ticks_in(ns: u64) -> u64 {
    ticks().saturating_add(ticks_for(ns, TICKS_PER_NS.load(Ordering::Relaxed)))
}

/// The number of ticks in `ns` nanoseconds, rounded up. `rate` is in ticks per nanosecond, times 2^32.
fn ticks_for(ns: u64, rate: u64) -> u64 {
    let ticks = ((ns as u128 * rate as u128) >> 32) + 1;
    ticks.min(u64::MAX as u128) as u64
}

/// A measurement of the clocks' rates, which runs while boot continues.
pub struct Calibration {
    reference: pit::Interval,
    first: Option<Sample>,
    apic_at: Option<u64>,
}

/// The values of both clocks at one moment.
#[derive(Clone, Copy)]
struct Sample {
    tsc: u64,
    pit: u64,
}

/// Reads both clocks. A virtual CPU may be descheduled between two instructions. So the function reads the clocks a few
/// times, and returns the sample with the least time between its two reads of the TSC. `None` if the PIT's interval has
/// ended.
fn sample(reference: &pit::Interval) -> Option<Sample> {
    let mut best: Option<(u64, Sample)> = None;
    for _ in 0..5 {
        let before = ticks();
        let pit = reference.elapsed()?;
        let spread = ticks() - before;
        if best.is_none_or(|(least, _)| spread < least) {
            best = Some((spread, Sample { tsc: before + spread / 2, pit }));
        }
    }
    best.map(|(_, sample)| sample)
}

/// The results of a calibration.
#[derive(Clone, Copy, Debug)]
pub struct Rates {
    /// The TSC's ticks per second.
    pub tsc: u64,
    /// The ticks of the local APIC's timer per second.
    pub apic: u64,
}

/// The most TSC ticks that two device accesses take if the virtual CPU is not descheduled between them.
const QUICK: u64 = 50_000;
/// The least length of the reference interval: 6 ms, in PIT ticks. If a port access takes a few microseconds, the error
/// is then below one part in a thousand.
const ENOUGH: u64 = pit::HZ * 6 / 1000;

impl Calibration {
    /// Sets time zero, and starts the reference interval.
    pub fn start() -> Calibration {
        // SAFETY: only the boot CPU runs, and no other code uses the PIT.
        let reference = unsafe { pit::Interval::start() };
        START.store(ticks(), Ordering::Relaxed);
        let first = sample(&reference);
        Calibration { reference, first, apic_at: None }
    }

    /// Starts the measurement of the local APIC's timer. Called after the local APIC was initialised.
    pub fn start_apic(&mut self) {
        // Try a few times, as in `sample`, because a late read of the TSC would falsify the measured rate.
        for _ in 0..5 {
            let before = ticks();
            local_apic::timer_calibration_start();
            let after = ticks();
            self.apic_at = Some(before + (after - before) / 2);
            if after - before < QUICK {
                break;
            }
        }
    }

    /// Waits until the interval is long enough, and sets the clock's rate.
    pub fn finish(self) -> Rates {
        let measured = self.first.and_then(|first| measure(&self.reference, first)).or_else(|| {
            // Boot took longer than the PIT's interval, so start another interval and wait for it. SAFETY: no other
            // code uses the PIT.
            let again = unsafe { pit::Interval::start() };
            measure(&again, sample(&again)?)
        });
        let tsc = stated_rate().or(measured).unwrap_or(2_500_000_000).max(1_000_000);
        NS_PER_TICK.store(((1_000_000_000u128 << 32) / tsc as u128) as u64, Ordering::Relaxed);
        TICKS_PER_NS.store((((tsc as u128) << 32) / 1_000_000_000) as u64, Ordering::Relaxed);
        let apic = self.apic_at.map_or(0, |at| {
            let tightest = (0..5).map(|_| {
                let before = ticks();
                let elapsed = local_apic::timer_elapsed();
                (ticks() - before, before, elapsed)
            });
            let (_, now, elapsed) = tightest.min().unwrap_or((0, at + 1, 0));
            (elapsed as u128 * tsc as u128 / (now - at).max(1) as u128) as u64
        });
        Rates { tsc, apic: apic.max(1_000_000) }
    }
}

/// Measures the TSC's rate since `first`, in ticks per second. `None` if the PIT's interval has ended, or if the PIT
/// does not run.
fn measure(reference: &pit::Interval, first: Sample) -> Option<u64> {
    for _ in 0..500_000 {
        let now = sample(reference)?;
        let elapsed = now.pit.checked_sub(first.pit)?;
        if elapsed >= ENOUGH {
            return Some(((now.tsc - first.tsc) as u128 * pit::HZ as u128 / elapsed as u128) as u64);
        }
        core::hint::spin_loop();
    }
    None
}

/// The TSC's rate in ticks per second, if CPUID reports it in leaf 0x15, or a hypervisor in leaf 0x4000_0010 (in kHz).
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
