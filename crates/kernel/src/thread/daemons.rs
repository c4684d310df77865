//! The daemons of the memory core, on kernel threads.

use super::kthread::kernel_thread;
use crate::machine::{scheduler, vm};
use quire_task::{Class, MOST_URGENT};
use quire_vm::reclaim::daemon::Daemon;

/// The memory core's own threads.
const DAEMONS: [(&str, Daemon); 3] =
    [("completion", Daemon::Completion), ("pageout", Daemon::Pageout), ("reaper", Daemon::Reaper)];

/// Starts them.
pub fn start() {
    for (daemon, (name, _)) in DAEMONS.iter().enumerate() {
        kernel_thread(name, run, daemon);
    }
}

extern "C" fn run(daemon: usize) -> ! {
    if matches!(DAEMONS[daemon].1, Daemon::Completion) {
        // Real-time threads may wait for their pages.
        scheduler().set_class(&scheduler().current(), Class::Fifo(MOST_URGENT), false);
    }
    vm().daemon_run(DAEMONS[daemon].1);
    // Only the end of the machine stops the daemons.
    scheduler().exit()
}
