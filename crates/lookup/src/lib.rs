//! Counted values by name and by number, found without a lock.
//!
//! # Principles
//! - **Lookups take no lock.** A reader pins an epoch of [`quire_sync::epoch`], follows pointers, and counts the value
//!   that it finds. Changes take a spin lock.
//! - **Refusals change nothing.** All memory comes from the global allocator through [`quire_heap`], and each operation
//!   that needs some returns an error where there is none.
//! - **The tables know no files and no processes.** A directory is [`Names`], a table of descriptors is [`Slots`]; the
//!   layers above give them their values and the rank of their lock.
//!
//! `quire-sync` needs no heap: memory that it lays out for each CPU comes from its caller. [`per_cpu`] takes such
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
