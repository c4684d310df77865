//! The kernel's own memory: its layout, page tables, stacks and heap, the access to user memory, and shootdowns.
//!
//! [`layout`], [`frame`] and [`bytes`] are below the module `machine`. The other modules use the machine and its memory
//! system. At the top are [`shootdown`], which calls the tracer, and `hardware`, which implements `quire_pmap`'s
//! machine trait. No module here uses threads.
//!
//! Invariants:
//! - No physical page is mapped both as writable and as executable, even at two different addresses.
//! - An unmapped page is below each stack.
//! - Only [`user`] accesses user addresses.

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
