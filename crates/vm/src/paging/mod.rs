//! Pages between memory and the store behind them: files' pagers and swap.
//!
//! - [`pager`]: the traits of a store. [`io`]: records of reads and writes under way. [`swap`]: slots of the swap store.
//! - `page_in`: a page that has to be read before it is there. `laundry`: pages that are written before they can go.
//! - `completion`: finishing reads and writes that are complete.
//!
//! [`pager`], [`io`] and [`swap`] know no object: objects use them. The others stand above objects and reverse mappings.

mod completion;
pub mod io;
pub(crate) mod laundry;
pub mod memory_store;
pub(crate) mod page_in;
pub mod pager;
mod slots;
pub mod swap;
pub(crate) mod waiting;
