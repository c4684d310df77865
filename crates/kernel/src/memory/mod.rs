//! The kernel's own memory: its layout, page tables and stacks, the heap, user memory, and shootdowns.
//!
//! [`layout`], [`frame`] and [`bytes`] lie below the machine. The others use the machine and its memory system. On top
//! are [`shootdown`], which is traced, and `hardware`, which implements the machine for `quire_pmap`. No module here
//! uses threads.
//!
//! Invariants. No page is both writable and executable, under any alias. An unmapped page lies below each stack. Only
//! [`user`] accesses user addresses.

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
