//! Calls for a program's memory.

pub mod advise;
pub mod brk;
pub mod commit;
pub mod lock;
pub mod map;
pub mod protect;
pub mod remap;
pub mod seal;
pub mod show;
