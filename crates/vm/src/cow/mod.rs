//! Copy-on-write: the merging of chains of backings, and the search for other chains that see a page.
//!
//! - [`collapse`]: merges a layer with the next one, if only one chain has both.
//! - `found`: a page that a walk along a chain found, and its place.
//! - `last_sharer`: decides whether another chain still sees a page.
//! - `reaper`: a daemon that destroys pages that no chain sees any more.
//!
//! A chain consists of [`backing`](crate::object::backing)s of the folder `object`. If a chain is deep, a fault copies
//! pages up (`fault::copy_up`). This folder owns the rule that a page which every chain hides is destroyed. The folder
//! may use objects, pages and reverse mappings, but no map.

pub mod collapse;
pub(crate) mod found;
pub(crate) mod last_sharer;
pub(crate) mod reaper;
