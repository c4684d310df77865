//! The parts of the kernel that touch no hardware, so that they are tested in an ordinary process: what the boot loader hands
//! over, how RAM is carved up, the command line, the symbol table of backtraces.
#![cfg_attr(not(test), no_std)]
#![forbid(unsafe_code)]

pub mod command_line;
pub mod memory_map;
pub mod start_info;
pub mod symbols;
