//! Reclaim: freeing memory when it is short.
//!
//! - [`scan`]: pageout: when it begins, which pages it visits, and how it wakes threads that wait for memory.
//! - `evict`: frees the frames of pages. `madv_free`: pages that a program gave up. `idle_tables`: page tables of idle
//!   spaces.
//! - `migrate`: moves pages, so that their frames form a run. `contiguous`: makes runs of consecutive frames.
//! - `progress`: decides whether waiting for memory still helps. It is the lowest module here, because paging reports
//!   refaults to it.
//! - [`daemon`]: the loops of the threads that run pageout, completion and the reaper.
//!
//! This folder uses objects, their mappings, paging and maps, but not faults. It owns the rules which threads wait for
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
