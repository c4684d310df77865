//! The handover of the boot loader: its record of RAM and modules, the command line, and the symbols in the first file system.
//!
//! Uses nothing of the kernel and touches no hardware, so it is tested in an ordinary process.
//!
//! Invariant: bytes of the loader are input. Each parser answers hostile bytes with an error or with nothing, and never panics.

pub mod command_line;
pub mod memory_map;
pub mod start_info;
pub mod symbols;
