//! The Linux layer on this machine: access to it, its start, and the implementation of its machine traits.
//!
//! This file has the functions that the rest of the kernel uses: access to the Linux layer, and the host's requests to
//! it. It is below `trap` and the watchdog. [`start`] and [`machine`] are above `trap` and `host::ports`, which they
//! use.
//!
//! Invariant: the Linux layer is created once, before the first program's thread, and is never dropped.

pub mod machine;
pub mod start;

use crate::machine::{Machine, Once};
use quire_fs::terminal::Key;
use quire_linux_state::Linux;
use quire_linux_state::signal::Signal;

/// The payload of the scheduler's threads: a Linux thread, or `None` for a kernel thread.
pub type Payload = Option<quire_linux_state::Thread<Machine>>;

static LINUX: Once<Linux<Machine>> = Once::new();
/// The Linux layer. Called only after it was set.
#[inline(always)]
pub fn linux() -> &'static Linux<Machine> {
    // SAFETY: the layer is set before the first program runs, and only programs' traps and threads call this.
    unsafe { LINUX.get() }
}

/// The Linux layer; `None` before boot has set it.
pub fn try_linux() -> Option<&'static Linux<Machine>> {
    LINUX.try_get()
}

/// The number of process 1, and of its first process group.
const FIRST: u32 = 1;

/// Handles the host's interrupt (Ctrl-C). Sends it to the terminal's foreground group, or, without a terminal, to the
/// group of process 1.
pub fn host_interrupt() {
    if let Some(linux) = LINUX.try_get()
        && !linux.files.key(Key::Interrupt)
    {
        linux.signal_group(FIRST, Signal::INT);
    }
}

/// Handles the host's request to end, by SIGKILL to process 1.
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
