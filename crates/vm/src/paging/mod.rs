//! Pages between memory and the store behind them: files' pagers and swap.
//!
//! - [`io`]: records of reads and writes under way. [`pager`]: the traits of a store. [`swap`]: slots of the swap
//!   store.
//! - `waiting`: the trait by which lower modules wait for memory; pageout implements it.
//! - `page_in`: a page that has to be read before it is there. `laundry`: pages that are written before they can go.
//! - `slots`: pages that give their slot of swap back. `completion`: finishing reads and writes that are complete.
//!
//! The first four know no object: objects use them. The others stand above objects and reverse mappings. This folder
//! owns two rules: a placeholder is busy while it is read, and a record has exactly one owner at any time.

mod completion;
pub mod io;
pub(crate) mod laundry;
pub mod memory_store;
pub(crate) mod page_in;
pub mod pager;
mod slots;
pub mod swap;
pub(crate) mod waiting;
