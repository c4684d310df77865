//! The virtual machine: QEMU and its accelerator, its command line, its ports, and the traffic through them.
//!
//! A guest has three ports and a log, each a socket pair whose far end QEMU inherits. Nothing has a name in the file
//! system, so nothing can be left behind:
//!
//! | port | to the guest | from the guest |
//! |---|---|---|
//! | A | the program's standard input | its standard output |
//! | B | | its standard error |
//! | C | control lines ([`control::ToGuest`]) | control lines ([`control::FromGuest`]) |
//! | serial | | the kernel's log |
//!
//! The initial file system is an anonymous memory file that QEMU opens through `/proc/self/fd`.

pub mod accel;
pub mod control;
pub mod flow;
pub mod outcome;
pub mod probe_guest;
pub mod qemu;
pub mod relay;
pub mod terminal;
