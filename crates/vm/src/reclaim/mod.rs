//! What gives memory back when it is short.
//!
//! - [`scan`]: pageout: when it begins, what it looks at, how threads that wait for memory are told.
//! - `evict`: takes the frame of one page. `madv_free`: pages that a program gave up. `idle_tables`: page tables of idle spaces.
//! - `migrate`: moves pages, so that their frames form a run; `contiguous` asks for such runs.
//! - `progress`: whether waiting for memory still helps; it stands at the bottom, since paging notes what comes back.
//! - [`daemon`]: the threads that run pageout, completion and the reaper.
//!
//! The room knows objects, their mappings, paging and maps, and no fault. It owns the rule which thread waits for memory, and
//! when a wait ends.

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
