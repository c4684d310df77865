//! The load average: the number of threads that run, wait for a CPU or sleep uninterruptibly, averaged over 1, 5 and 15
//! minutes.
//!
//! Each CPU keeps the length of its run queue for the scheduler. A timer adds up these lengths every five seconds. So a
//! thread that starts or ends writes nothing for the average.

use core::mem::offset_of;
use core::ptr::NonNull;
use quire_sync::atomic::{AtomicU64, Ordering};
use quire_task::{Machine, Scheduler, Timer};

/// Nanoseconds between two samples. The value is Linux's, so that averages rise and fall as programs expect.
const PERIOD: u64 = 5_000_000_000;
/// The number of fraction bits, as in `sysinfo`.
pub const SHIFT: u32 = 16;
/// The part of an average that remains after a period, in 65,536ths: e^(-period / t), where t is 1, 5 and 15 minutes.
const DECAY: [u64; 3] = [60_296, 64_453, 65_173];

/// The load averages of the machine.
pub struct Load<M: Machine> {
    timer: Timer,
    averages: [AtomicU64; 3],
    scheduler: &'static Scheduler<M>,
}

impl<M: Machine> Load<M> {
    /// The load of an idle machine.
    pub fn new(scheduler: &'static Scheduler<M>) -> Self {
        Load { timer: Timer::new(sample::<M>), averages: core::array::from_fn(|_| AtomicU64::new(0)), scheduler }
    }

    /// Starts the sampling. Called once, at boot.
    pub fn start(&'static self) {
        // SAFETY: the timer is never freed, because `self` is `'static`.
        unsafe { self.scheduler.arm(&self.timer, self.scheduler.machine().now() + PERIOD) };
    }

    /// The averages over 1, 5 and 15 minutes, in 65,536ths.
    pub fn averages(&self) -> [u64; 3] {
        self.averages.each_ref().map(|average| average.load(Ordering::Relaxed))
    }
}

/// The value of `average` one period later, if `threads` is the sample.
fn decayed(average: u64, decay: u64, threads: u64) -> u64 {
    // Rounded towards the sample, so that a constant sample is reached.
    let sum = average * decay + (threads << SHIFT) * ((1 << SHIFT) - decay);
    let up = if threads << SHIFT > average { (1 << SHIFT) - 1 } else { 0 };
    (sum + up) >> SHIFT
}

/// # Requires
/// `timer` is the field of a `Load`.
unsafe fn sample<M: Machine>(timer: NonNull<Timer>, now: u64) -> Option<u64> {
    // SAFETY: only `Load::new` makes timers with this function. Each is a field of a load that is never freed.
    let load = unsafe { timer.byte_sub(offset_of!(Load<M>, timer)).cast::<Load<M>>().as_ref() };
    let threads = (load.scheduler.runnable() + load.scheduler.blocked()) as u64;
    for (average, decay) in load.averages.iter().zip(DECAY) {
        // A plain load and store are enough, because only this timer writes the averages.
        average.store(decayed(average.load(Ordering::Relaxed), decay, threads), Ordering::Relaxed);
    }
    Some(now + PERIOD)
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn averages_go_towards_the_number_of_threads_and_reach_it() {
        for threads in [0, 1, 3, 100_000, 4 << 20] {
            for (decay, minutes) in DECAY.into_iter().zip([1u64, 5, 15]) {
                for from in [0, 7 << SHIFT, (4 << 20) << SHIFT] {
                    let after = |periods: u64| (0..periods).fold(from, |a, _| decayed(a, decay, threads));
                    let gap = |average: u64| average.abs_diff(threads << SHIFT) as f64;
                    // After an average's own time (1, 5 or 15 minutes), 1/e of the difference is left. After forty
                    // times this time, no difference is left.
                    let (left, expected) = (gap(after(minutes * 12)), gap(from) / core::f64::consts::E);
                    assert!(
                        (left - expected).abs() <= expected / 100.0 + 200.0,
                        "{threads} {minutes}: {left} {expected}"
                    );
                    assert_eq!(after(minutes * 12 * 40), threads << SHIFT);
                }
            }
        }
    }
}
