//! Architecture-independent page tables for Quire: a tree of tables, with a lock for each table page and no record for
//! each mapping.
//!
//! # Principles
//! - **A cache of the map.** All tables can be dropped, because faults make them again. Only the hardware's own entries
//!   describe a mapping. The descriptor of a table page is eight bytes in its frame's page descriptor.
//! - **Locks per table page.** A fault locks one last-level table page. Upper levels are locked only while a table page
//!   is linked or pruned; walkers read them under an epoch pin.
//! - **Interrupt only running CPUs.** A flush interrupts the CPUs that run the space now. Other CPUs catch up when they
//!   switch in.
//! - **An architecture is two traits.** x86-64 and RISC-V differ in the encoding of entries ([`Format`]) and in the
//!   instructions that load and drop translations ([`Hardware`]). Both are small; all other code is shared.
//!
//! # Where to start reading
//! The memory core calls [`pmap`]. [`tree`](self) walks, links and prunes; [`table`](self) is one table page. [`mmu`]
//! loads spaces and keeps address-space tags. [`shootdown`] is the flush protocol. [`root`](self) is the root table,
//! which an idle space may lose. [`roots`](self) gives each CPU a root table of its own in spaces whose map has fanned
//! out. [`kernel_tables`] is the kernel's half, made at boot. An architecture implements [`Format`], a machine
//! [`Hardware`].
//!
//! Each protocol is explained at the head of its module, with a table that says what orders each pair of operations.
#![cfg_attr(not(any(test, loom, shuttle)), no_std)]
#![deny(missing_docs)]

pub mod boot;
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
pub use shootdown::{Inboxes, Request};
