//! The handover of the boot loader: its record of RAM and modules, the command line, and the kernel's symbols, the
//! first file of the initramfs.
//!
//! Uses neither the rest of the kernel nor hardware, so it is tested in an ordinary process.
//!
//! Invariant: the loader's bytes are untrusted input. For hostile bytes each parser returns an error or no result, and
//! never panics.

pub mod command_line;
pub mod memory_map;
pub mod start_info;
pub mod symbols;
