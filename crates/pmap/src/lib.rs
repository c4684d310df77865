//! Page tables for Quire, whatever the architecture: a tree of tables, a lock for each table page, no record for each mapping.
//!
//! # Principles
//! - **A cache of the map.** Everything here can be thrown away and made again by faults; nothing but the hardware's own
//!   words describes a mapping. The descriptor of a table page is eight bytes in its frame's page descriptor.
//! - **Locks stand where the writing is.** A fault locks one last-level table page. Upper levels are locked only while a
//!   table page is linked or pruned; walkers read them under an epoch pin.
//! - **Interrupt those who run it.** A flush asks the CPUs that run the space now; others notice when they switch in.
//! - **An architecture is a few words.** What differs between x86-64 and RISC-V is how an entry is spelt ([`Format`]) and
//!   which instructions load and drop translations ([`Hardware`]); both are small, and everything else is here, once.
//!
//! # Where to start reading
//! [`pmap`] is what the memory core calls. [`tree`](self) walks, links and prunes; [`table`](self) is one table page.
//! [`mmu`] loads spaces and keeps address-space tags; [`shootdown`] is the flush protocol; [`roots`](self) gives CPUs root tables
//! of their own where a map has fanned out. [`kernel_tables`] is the kernel's half, made at boot. An architecture implements [`Format`], a machine [`Hardware`].
//!
//! The protocols' reasoning and who settles each pair of operations stand at the heads of those modules.
#![cfg_attr(not(any(test, loom, shuttle)), no_std)]
#![deny(missing_docs)]

mod check;
pub mod format;
mod hardware;
pub mod kernel_pages;
pub mod kernel_tables;
pub mod mmu;
#[cfg(all(test, any(loom, shuttle)))]
mod models;
mod mutant;
pub mod pmap;
mod roots;
pub mod shootdown;
mod table;
mod tree;

pub use format::{Format, Rights};
pub use hardware::Hardware;
pub use kernel_tables::{KernelMapError, KernelTables};
pub use mmu::Mmu;
pub use pmap::{LockedTable, Tables};
pub use shootdown::Request;
