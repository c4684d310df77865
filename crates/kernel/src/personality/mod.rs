//! The Linux layer on this machine: the layer itself, its start, and its machine traits.
//!
//! This file has the part that the rest of the kernel uses: the layer, after it is set, and the host's signals to it.
//! It lies below traps and the watchdog. [`start`] and [`machine`] lie above traps and the host's ports, which they
//! use.
//!
//! Invariant: the layer is set once, before the first program's thread, and stays for ever.

pub mod machine;
pub mod start;

use crate::machine::{Machine, Once};
use quire_fs::terminal::Key;
use quire_linux_state::Linux;
use quire_linux_state::signal::Signal;

/// The payload of the scheduler's threads: a Linux thread, or `None` for the kernel's own.
pub type Payload = Option<quire_linux_state::Thread<Machine>>;

static LINUX: Once<Linux<Machine>> = Once::new();
/// The Linux layer.
#[inline(always)]
pub fn linux() -> &'static Linux<Machine> {
    // SAFETY: set before the first program runs, and only programs' traps and threads call this.
    unsafe { LINUX.get() }
}

/// The Linux layer, after it is set.
pub fn try_linux() -> Option<&'static Linux<Machine>> {
    LINUX.try_get()
}

/// Process 1, and the group that it began with.
const FIRST: u32 = 1;

/// Handles the host's interrupt: sends it to the terminal's foreground, or to the first process's group.
pub fn host_interrupt() {
    if let Some(linux) = LINUX.try_get()
        && !linux.files.key(Key::Interrupt)
    {
        linux.signal_group(FIRST, Signal::INT);
    }
}

/// Handles the host's request to end.
pub fn host_kill() {
    if let Some(linux) = LINUX.try_get()
        && let Some(first) = linux.ids.process(FIRST)
    {
        linux.kill_process(&first, Signal::KILL);
    }
}

/// Handles a new size of the host's window.
pub fn host_resize(rows: u16, columns: u16) {
    if let Some(linux) = LINUX.try_get() {
        linux.files.resize(rows, columns);
    }
}
