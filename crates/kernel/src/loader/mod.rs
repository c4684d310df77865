//! The data that the boot loader passes: the memory map, the modules, and the command line. Also the kernel's symbols,
//! which are the first file of the initramfs.
//!
//! This module uses neither the rest of the kernel nor hardware, so ordinary unit tests can run it.
//!
//! Invariant: the loader's bytes are untrusted input. For hostile bytes each parser returns an error or no result, and
//! never panics.

pub mod command_line;
pub mod memory_map;
pub mod start_info;
pub mod symbols;
