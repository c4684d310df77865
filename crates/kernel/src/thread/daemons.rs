//! The daemons of the memory core, on kernel threads.

use super::kthread::kernel_thread;
use crate::machine::{scheduler, vm};
use quire_task::{Class, MOST_URGENT};
use quire_vm::reclaim::daemon::Daemon;

/// The name of each daemon's kernel thread, and the daemon.
const DAEMONS: [(&str, Daemon); 3] =
    [("completion", Daemon::Completion), ("pageout", Daemon::Pageout), ("reaper", Daemon::Reaper)];

/// Starts a kernel thread for each daemon.
pub fn start() {
    for (daemon, (name, _)) in DAEMONS.iter().enumerate() {
        kernel_thread(name, run, daemon);
    }
}

extern "C" fn run(daemon: usize) -> ! {
    if matches!(DAEMONS[daemon].1, Daemon::Completion) {
        // Real-time threads may wait for pages whose I/O this daemon completes, so it has the highest priority.
        scheduler().set_class(&scheduler().current(), Class::Fifo(MOST_URGENT), false);
    }
    vm().daemon_run(DAEMONS[daemon].1);
    // `daemon_run` returns only when the machine is shutting down.
    scheduler().exit()
}
