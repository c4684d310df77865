//! What gives memory back when it is short, and where its content goes.
//!
//! - [`scan`]: pageout: when it begins, what it looks at, how threads that wait for memory are told.
//! - `evict`: takes the frame of one page. `laundry`: writes dirty pages first. `madv_free`: pages that a program gave up.
//! - `migrate`: moves pages, so that their frames form a run.
//! - [`swap`], [`memory_store`]: slots for private pages, and a store of them in memory. [`io`]: reads and writes under way.
//! - [`daemon`]: the thread that runs pageout and the reaper.
//!
//! The room knows objects, their mappings (`rmap`) and the queues, and no fault. It owns the rule who waits for memory, and when a wait ends.

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
