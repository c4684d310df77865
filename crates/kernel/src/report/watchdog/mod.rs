//! Detects stuck CPUs, spin locks and threads, and prints the stacks of all CPUs.
//!
//! | stuck | detected by | code |
//! |---|---|---|
//! | a CPU that does not enter its scheduler (*soft lockup*) | its own timer interrupt | [`quire_task::Watching`] |
//! | a CPU that takes no interrupts (*hard lockup*) | the CPU with the next number, by probes (NMIs) | [`quire_task::Watching`] |
//! | a spin lock that is held too long | a CPU that spins on it | [`spin`] |
//! | a thread that sleeps uninterruptibly too long | a kernel thread | [`hung`] |
//!
//! # Settings
//! The kernel's command line sets the initial values. Programs change them in `/proc/sys/kernel`.
//!
//! - `watchdog=off`, `watchdog=report` (the default) or `watchdog=panic`;
//! - `watchdog_thresh=SECONDS`: the threshold of hard lockups and of held spin locks; the threshold of soft lockups is
//!   twice as long;
//! - `hung_task_timeout_secs=SECONDS`: the longest uninterruptible sleep of a thread.
//!
//! A value of 0 seconds turns the detection off, as on Linux.

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

/// The values of the settings, by their numbers.
static VALUES: [AtomicU32; SETTINGS] = [const { AtomicU32::new(0) }; SETTINGS];

/// The value of a setting.
pub fn setting(of: WatchSetting) -> u32 {
    VALUES[of as usize].load(Ordering::Relaxed)
}

fn store(of: WatchSetting, value: u32) {
    VALUES[of as usize].store(value, Ordering::Relaxed);
}

/// Changes a setting. Returns false, and changes nothing, if the value is greater than the setting's largest value.
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

/// Sets the settings from the command line. For an invalid value, logs an error and keeps the default.
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

/// The number of watchdog ticks in the threshold time.
const TICKS: u32 = 10;

/// The threshold in seconds, 0 if CPUs are not watched.
fn threshold() -> u32 {
    if setting(WatchSetting::On) == 0 { 0 } else { setting(WatchSetting::Seconds) }
}

/// The parameters for the detection of lockups; `None` if CPUs are not watched.
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

/// The least time between two prints of all CPUs' stacks, in nanoseconds. An incident in between is logged as one line.
const PAUSE: u64 = 30_000_000_000;
/// The time from which the stacks may be printed again, in nanoseconds since boot.
static NEXT: AtomicU64 = AtomicU64::new(0);

/// Logs an incident and the stacks of all CPUs, and panics if `panics` is true.
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
