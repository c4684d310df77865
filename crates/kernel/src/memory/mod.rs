//! The kernel's own memory: where things lie, the kernel's page tables and stacks, the heap, user memory, and shootdowns.
//!
//! Below the machine stand [`layout`], [`frame`] and [`bytes`]. The others use the machine and its memory system. On top stand
//! [`shootdown`], which is traced, and `hardware`, which implements the machine for `quire_pmap`. Nothing here uses threads.
//!
//! Invariants: no page is both writable and executable, under any alias; below each stack lies an unmapped page; a user address is
//! touched by [`user`] alone.

pub mod bytes;
pub mod frame;
mod hardware;
pub mod heap;
pub mod layout;
pub mod memtest;
pub mod paging;
pub mod shootdown;
pub mod stack;
pub mod swap;
pub mod user;
