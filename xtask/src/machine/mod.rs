//! The virtual machine: its QEMU and accelerator, its command line, its ports, and the bytes that pass through them.
//!
//! A guest has three ports and a log. Each is a socket pair, of which QEMU inherits one end. The sockets have no names
//! in the file system, so no file can be left behind:
//!
//! | port | to the guest | from the guest |
//! |---|---|---|
//! | A | the program's standard input | its standard output |
//! | B | | its standard error |
//! | C | control lines ([`control::ToGuest`]) | control lines ([`control::FromGuest`]) |
//! | serial | | the kernel's log |
//!
//! The initial file system is an anonymous file in memory, which QEMU opens through `/proc/self/fd`.

pub mod accel;
pub mod boot_words;
pub mod control;
pub mod flow;
pub mod killed;
pub mod outcome;
pub mod probe_guest;
pub mod qemu;
pub mod relay;
pub mod terminal;
