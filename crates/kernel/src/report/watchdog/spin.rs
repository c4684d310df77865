//! A spin lock that is held too long: noticed by a CPU that spins on it.
//!
//! What counts is the time in which the spinner itself turned. That the holder's CPU ran meanwhile is shown by its answers:
//! before the report all other CPUs have answered three questions, a tick's time apart, and the lock was never seen free.

use super::stacks::{self, Mine};
use super::{TICKS, report, setting, threshold};
use crate::cpu::{self, clock};
use core::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use quire_linux::WatchSetting;
use quire_sync::spin::SPUN;

/// A CPU's wait for a lock: its own line. An interrupt that spins in its turn takes the line over; the wait that it interrupted
/// begins anew.
#[repr(align(128))]
struct Wait {
    lock: AtomicUsize,
    /// When it last told, and for how many nanoseconds it has spun.
    told: AtomicU64,
    spun: AtomicU64,
    /// Questions that all other CPUs have answered; [`REPORTED`].
    answers: AtomicU32,
}

const REPORTED: u32 = u32::MAX;
/// So many answers of each other CPU are enough.
const ANSWERS: u32 = 3;
/// Between two of its words a spinner that runs takes far less; one that took longer did not run in between.
const LONGEST: u64 = 100_000_000;

static WAITS: [Wait; cpu::MAX] = [const {
    Wait { lock: AtomicUsize::new(0), told: AtomicU64::new(0), spun: AtomicU64::new(0), answers: AtomicU32::new(0) }
}; cpu::MAX];

/// A spinner's word; see [`quire_sync::Cpu::spun`].
pub fn spun(lock: usize, rank: u8, turns: u32) {
    let wait = &WAITS[cpu::id()];
    let now = clock::now();
    if turns <= SPUN || wait.lock.load(Ordering::Relaxed) != lock {
        wait.lock.store(if turns == 0 { 0 } else { lock }, Ordering::Relaxed);
        wait.told.store(now, Ordering::Relaxed);
        wait.spun.store(0, Ordering::Relaxed);
        wait.answers.store(0, Ordering::Relaxed);
        return;
    }
    let since = now.saturating_sub(wait.told.swap(now, Ordering::Relaxed)).min(LONGEST);
    let spun = wait.spun.load(Ordering::Relaxed) + since;
    wait.spun.store(spun, Ordering::Relaxed);

    let seconds = u64::from(threshold());
    let answers = wait.answers.load(Ordering::Relaxed);
    let tick = seconds * 1_000_000_000 / u64::from(TICKS);
    // The questions come in the last ticks before the threshold.
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
                "spin lock: CPU {me} has spun for {seconds} s on the lock at {lock:#x} of rank {rank}, which CPU {cpu} holds"
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
