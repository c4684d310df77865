//! Paging: moves pages between memory and their store, which is a file's pager or swap.
//!
//! - [`io`]: records of reads and writes in progress. [`pager`]: the traits of a store. [`swap`]: slots of the swap
//!   store.
//! - `waiting`: the trait by which lower modules wait for memory; pageout implements it.
//! - `page_in`: reads pages that are not resident. `laundry`: writes dirty pages, so that they can be evicted.
//! - `slots`: pages that free their swap slots. `completion`: finishes completed reads and writes.
//!
//! `io`, `pager`, `swap` and `waiting` do not know objects, because objects use them. The other modules are above
//! objects and reverse mapping. This folder owns two rules: a placeholder is busy while it is read, and a record has
//! exactly one owner at any time.

mod completion;
pub mod io;
pub(crate) mod laundry;
pub mod memory_store;
pub(crate) mod page_in;
pub mod pager;
mod slots;
pub mod swap;
pub(crate) mod waiting;
