//! Detects stuck CPUs, spin locks and threads, and prints the stacks of all CPUs.
//!
//! | stuck | detected by | code |
//! |---|---|---|
//! | a CPU that does not schedule (*soft lockup*) | its own timer interrupt | [`quire_task::Watching`] |
//! | a CPU that takes no interrupts (*hard lockup*) | the CPU with the next number, by probes (NMIs) | the same |
//! | a spin lock that is held too long | a CPU that spins on it | [`spin`] |
//! | a thread that sleeps uninterruptibly too long | a kernel thread | [`hung`] |
//!
//! # Settings
//! The command line sets them before the first thread, `/proc/sys/kernel` later:
//!
//! - `watchdog=off`, `watchdog=report` (the default) or `watchdog=panic`;
//! - `watchdog_thresh=SECONDS`: the threshold of hard lockups and of held spin locks; that of soft lockups is twice as
//!   long;
//! - `hung_task_timeout_secs=SECONDS`: the longest uninterruptible sleep of a thread.
//!
//! 0 seconds turn the part off, as on Linux.

mod hung;
pub mod provoke;
mod spin;
mod stacks;

use crate::cpu::clock;
use core::fmt;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use quire_kernel::loader::command_line;
use quire_linux_state::WatchSetting;
use quire_task::{Lockup, Watching};

pub use hung::start;
pub use spin::spun;
use stacks::Mine;
pub use stacks::{interrupted_by_timer, nmi, probe};

const SETTINGS: usize = WatchSetting::ALL.len();

/// The settings, by their numbers. Read by ticks, spinners and the thread that checks for hung threads; rarely written.
static VALUES: [AtomicU32; SETTINGS] = [const { AtomicU32::new(0) }; SETTINGS];

/// The value of a setting.
pub fn setting(of: WatchSetting) -> u32 {
    VALUES[of as usize].load(Ordering::Relaxed)
}

fn store(of: WatchSetting, value: u32) {
    VALUES[of as usize].store(value, Ordering::Relaxed);
}

/// Changes a setting; false if the value is above its largest, and nothing changes.
pub fn set(of: WatchSetting, value: u32) -> bool {
    let fits = value <= of.largest();
    if fits {
        store(of, value);
        if of == WatchSetting::HungSeconds {
            hung::look_again();
        }
    }
    fits
}

/// Takes the settings from the command line. An invalid value is logged, and the default stays.
pub fn configure(line: &[u8]) {
    WatchSetting::ALL.iter().for_each(|of| store(*of, of.usual()));
    match command_line::value(line, "watchdog") {
        None | Some(b"report") => {}
        Some(b"off") => [WatchSetting::On, WatchSetting::HungSeconds].into_iter().for_each(|of| store(of, 0)),
        Some(b"panic") => {
            [WatchSetting::LockupPanics, WatchSetting::HungPanics].into_iter().for_each(|of| store(of, 1));
        }
        Some(_) => log!("the word watchdog= takes off, report or panic"),
    }
    for of in [WatchSetting::Seconds, WatchSetting::HungSeconds] {
        let Some(given) = command_line::value(line, of.name()) else { continue };
        let number = core::str::from_utf8(given).ok().and_then(command_line::number);
        match number.and_then(|n| u32::try_from(n).ok()).filter(|n| *n <= of.largest()) {
            Some(n) => store(of, n),
            None => log!("the word {}= takes a number of seconds up to {}", of.name(), of.largest()),
        }
    }
}

/// Ticks in the threshold.
const TICKS: u32 = 10;

/// The threshold in seconds, 0 if CPUs are not watched.
fn threshold() -> u32 {
    if setting(WatchSetting::On) == 0 { 0 } else { setting(WatchSetting::Seconds) }
}

/// The parameters of the watch over CPUs.
pub fn watching() -> Option<Watching> {
    let period = u64::from(threshold()) * 1_000_000_000 / u64::from(TICKS);
    (period > 0).then_some(Watching { period, soft: 2 * TICKS, hard: TICKS })
}

/// Reports a stuck CPU. Called by the timer interrupt.
pub fn locked_up(lockup: Lockup) {
    let (me, seconds) = (crate::cpu::id(), threshold());
    let panics = setting(WatchSetting::LockupPanics) != 0;
    match lockup {
        Lockup::Soft(ticks) => report(
            format_args!("soft lockup: CPU {me} did not schedule in {} s, {ticks} ticks that it served", 2 * seconds),
            &Mine::Interrupted,
            panics,
        ),
        Lockup::Hard(cpu) => report(
            format_args!("hard lockup: CPU {cpu} took no interrupt in {seconds} s, only the probes of CPU {me}"),
            &Mine::Interrupted,
            panics,
        ),
    }
}

/// The least nanoseconds between two prints of all CPUs' stacks; an incident in between is a line.
const PAUSE: u64 = 30_000_000_000;
/// The time at which they may be printed again.
static NEXT: AtomicU64 = AtomicU64::new(0);

/// Logs an incident, and the stacks of all CPUs.
fn report(incident: fmt::Arguments<'_>, mine: &Mine<'_>, panics: bool) {
    log!("watchdog: {incident}");
    if let Mine::Sleeper(thread) = mine {
        stacks::print_sleeper(thread);
    }
    let (now, next) = (clock::now(), NEXT.load(Ordering::Relaxed));
    let due = now >= next || panics;
    if due && NEXT.compare_exchange(next, now + PAUSE, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
        stacks::print_all(mine);
    }
    if panics {
        panic!("watchdog: {incident}");
    }
}
