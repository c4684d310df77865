//! Architecture-independent page tables for Quire: a tree of tables, a lock for each table page, no record for each
//! mapping.
//!
//! # Principles
//! - **A cache of the map.** All tables can be dropped, and faults make them again; only the hardware's own words
//!   describe a mapping. The descriptor of a table page is eight bytes in its frame's page descriptor.
//! - **Locks per table page.** A fault locks one last-level table page. Upper levels are locked only while a table page
//!   is linked or pruned; walkers read them under an epoch pin.
//! - **Interrupt only running CPUs.** A flush interrupts the CPUs that run the space now; others catch up when they
//!   switch in.
//! - **An architecture is a few words.** x86-64 and RISC-V differ in the encoding of entries ([`Format`]) and in the
//!   instructions that load and drop translations ([`Hardware`]). Both are small; all other code is shared.
//!
//! # Where to start reading
//! The memory core calls [`pmap`]. [`tree`](self) walks, links and prunes; [`table`](self) is one table page. [`mmu`]
//! loads spaces and keeps address-space tags. [`shootdown`] is the flush protocol. [`root`](self) is the root
//! table, which an idle space lacks. [`roots`](self) gives CPUs root tables of their own where a map has fanned out.
//! [`kernel_tables`] is the kernel's half, made at boot. An architecture implements [`Format`], a machine [`Hardware`].
//!
//! The heads of those modules argue the protocols, with a matrix of what settles each pair of operations.
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
mod root;
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
