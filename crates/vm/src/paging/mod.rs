//! Pages between memory and the store behind them: files' pagers and swap.
//!
//! - [`io`]: records of reads and writes under way. [`pager`]: the traits of a store. [`swap`]: slots of the swap store.
//! - `waiting`: the trait by which a room asks for memory and sleeps; pageout implements it.
//! - `page_in`: a page that has to be read before it is there. `laundry`: pages that are written before they can go.
//! - `slots`: pages that give their slot of swap back. `completion`: finishing reads and writes that are complete.
//!
//! The first four know no object: objects use them. The others stand above objects and reverse mappings. The room owns the rule
//! that a placeholder is busy while it is read, and that one party has a record at any time.

mod completion;
pub mod io;
pub(crate) mod laundry;
pub mod memory_store;
pub(crate) mod page_in;
pub mod pager;
mod slots;
pub mod swap;
pub(crate) mod waiting;
