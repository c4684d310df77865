//! The detection of a spin lock that is held too long, by a CPU that spins on it.
//!
//! Only the time during which the spinning CPU itself ran counts. The other CPUs must have run too, because a virtual
//! CPU that is descheduled may hold the lock. So a report requires that all other CPUs have answered [`ANSWERS`]
//! probes, one in each tick. The lock must not have been free in that time.

use super::stacks::{self, Mine};
use super::{TICKS, report, setting, threshold};
use crate::cpu::{self, clock};
use core::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use quire_linux_state::WatchSetting;
use quire_sync::spin::SPUN;

/// The state of one CPU's wait for a spin lock, on its own cache line. If an interrupt handler spins too, it overwrites
/// the state, and the interrupted wait counts from the beginning again.
#[repr(align(128))]
struct Wait {
    lock: AtomicUsize,
    /// The time of the last call of [`spun`]. The field `spun` is the time that the CPU has spun. Both in nanoseconds.
    called: AtomicU64,
    spun: AtomicU64,
    /// The number of probes that all other CPUs have answered, or [`REPORTED`].
    answers: AtomicU32,
}

const REPORTED: u32 = u32::MAX;
/// The number of probes that each other CPU must answer before a report.
const ANSWERS: u32 = 3;
/// The most time that counts between two calls, in nanoseconds. If more time has passed, the CPU did not run in
/// between.
const LONGEST: u64 = 100_000_000;

static WAITS: [Wait; cpu::MAX] = [const {
    Wait { lock: AtomicUsize::new(0), called: AtomicU64::new(0), spun: AtomicU64::new(0), answers: AtomicU32::new(0) }
}; cpu::MAX];

/// Counts the time of a CPU that spins on a lock, and reports it above the threshold. See [`quire_sync::Cpu::spun`].
pub fn spun(lock: usize, rank: u8, turns: u32) {
    let wait = &WAITS[cpu::id()];
    let now = clock::now();
    if turns <= SPUN || wait.lock.load(Ordering::Relaxed) != lock {
        wait.lock.store(if turns == 0 { 0 } else { lock }, Ordering::Relaxed);
        wait.called.store(now, Ordering::Relaxed);
        wait.spun.store(0, Ordering::Relaxed);
        wait.answers.store(0, Ordering::Relaxed);
        return;
    }
    let since = now.saturating_sub(wait.called.swap(now, Ordering::Relaxed)).min(LONGEST);
    let spun = wait.spun.load(Ordering::Relaxed) + since;
    wait.spun.store(spun, Ordering::Relaxed);

    let seconds = u64::from(threshold());
    let answers = wait.answers.load(Ordering::Relaxed);
    let tick = seconds * 1_000_000_000 / u64::from(TICKS);
    // The probes are sent in the last ticks before the threshold, one in each tick.
    let due = tick * u64::from((TICKS - ANSWERS).saturating_add(answers.saturating_add(1)));
    if seconds == 0 || answers == REPORTED || spun < due || crate::report::panic::in_progress() {
        return;
    }
    let Some(holder) = stacks::holder(lock) else { return };
    if answers + 1 < ANSWERS {
        wait.answers.store(answers + 1, Ordering::Relaxed);
        return;
    }
    wait.answers.store(REPORTED, Ordering::Relaxed);
    let me = cpu::id();
    let panics = setting(WatchSetting::LockupPanics) != 0;
    match holder {
        Some(cpu) => report(
            format_args!(
                "spin lock: CPU {me} has spun for {seconds} s on the lock at {lock:#x} of rank {rank}, which CPU {cpu} \
                 holds"
            ),
            &Mine::Here,
            panics,
        ),
        None => report(
            format_args!("spin lock: CPU {me} has spun for {seconds} s on the lock at {lock:#x} of rank {rank}"),
            &Mine::Here,
            panics,
        ),
    }
}
