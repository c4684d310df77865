//! Reclaim: freeing memory when it is short.
//!
//! - [`scan`]: pageout: when it begins, which pages it visits, how it wakes threads that wait for memory.
//! - `evict`: takes the frame of one page. `madv_free`: pages that a program gave up. `idle_tables`: page tables of
//!   idle spaces.
//! - `migrate`: moves pages, so that their frames form a run; `contiguous` makes such runs.
//! - `progress`: whether waiting for memory still helps; it is the lowest module here, because paging reports refaults
//!   to it.
//! - [`daemon`]: the threads that run pageout, completion and the reaper.
//!
//! This folder uses objects, their mappings, paging and maps, and no fault. It owns the rules which threads wait for
//! memory, and when a wait ends.

pub(crate) mod contiguous;
pub mod daemon;
pub(crate) mod evict;
pub(crate) mod idle_tables;
pub(crate) mod madv_free;
pub(crate) mod memory_wait;
pub(crate) mod migrate;
pub(crate) mod progress;
mod reclaimer;
pub mod scan;

pub use reclaimer::Reclaimer;
