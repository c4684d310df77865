//! Tables of reference-counted values by name and by number, in which lookups take no lock.
//!
//! # Principles
//! - **Lookups take no lock.** A reader pins an epoch of [`quire_sync::epoch`], follows pointers, and counts the value
//!   that it finds. Changes take a spin lock.
//! - **Refused allocations change nothing.** All memory comes from the global allocator through [`quire_heap`]. Each
//!   operation that needs memory returns an error if there is none.
//! - **The tables do not know files or processes.** A directory is a [`Names`], and a table of descriptors is a
//!   [`Slots`]. The layers above supply the values and the rank of the lock.
//!
//! `quire-sync` uses no heap: its callers supply the memory that it lays out for each CPU. [`per_cpu`] takes such
//! memory from the global allocator.
#![cfg_attr(not(any(test, loom, shuttle)), no_std)]
#![deny(missing_docs)]

pub mod apart;
pub mod hold;
#[cfg(all(test, any(loom, shuttle)))]
mod models;
mod mutant;
pub mod names;
pub mod per_cpu;
pub mod slots;

pub use apart::Apart;
pub use hold::Hold;
pub use names::Names;
pub use slots::Slots;
