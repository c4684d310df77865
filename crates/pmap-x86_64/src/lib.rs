//! x86-64 page tables for Quire: four levels, a lock for each table page, no record for each mapping.
//!
//! # Principles
//! - **A cache of the map.** Everything here can be thrown away and made again by faults; nothing but the hardware's own
//!   words describes a mapping. The descriptor of a table page is eight bytes in its frame's page descriptor.
//! - **Locks stand where the writing is.** A fault locks one last-level table page. Upper levels are locked only while a
//!   table page is linked or pruned; walkers read them under an epoch pin.
//! - **Interrupt those who run it.** A flush asks the CPUs that run the space now; others notice when they switch in.
//!
//! # Where to start reading
//! [`pmap`] is what the memory core calls. [`tree`](self) walks, links and prunes; [`table`](self) is one table page;
//! [`word`] one entry. [`mmu`] loads spaces and keeps PCIDs; [`shootdown`] is the flush protocol. [`kernel_tables`] is the
//! kernel's half, made at boot. A machine implements [`X86`].
//!
//! The protocols' reasoning and who settles each pair of operations stand at the heads of those modules.
#![cfg_attr(not(any(test, loom, shuttle)), no_std)]
#![deny(missing_docs)]

pub mod kernel_tables;
pub mod mmu;
#[cfg(all(test, any(loom, shuttle)))]
mod models;
mod mutant;
pub mod pmap;
pub mod shootdown;
mod table;
mod tree;
pub mod word;
mod x86;

pub use kernel_tables::{Caching, KernelMapError, KernelTables, Rights};
pub use mmu::Mmu;
pub use pmap::{LockedTable, X86Pmap};
pub use shootdown::Request;
pub use x86::{Invpcid, X86};
