//! Copy-on-write: how chains of backings stay short, and which other chains see a page.
//!
//! - [`collapse`]: merging a layer with the next where one chain alone shows both.
//! - `found`: a page that a walk along a chain found, and where.
//! - `last_sharer`: whether some other chain still sees a page.
//! - `reaper`: pages that the daemon destroys later.
//!
//! Chains themselves are [`backing`](crate::object::backing)s, one room below. A fault copies pages up a long chain
//! (`fault::copy_up`). The room owns the rule that a page which every chain hides is destroyed. It knows objects, pages
//! and reverse mappings, and no map.

pub mod collapse;
pub(crate) mod found;
pub(crate) mod last_sharer;
pub(crate) mod reaper;
