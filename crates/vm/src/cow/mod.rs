//! Copy-on-write: how chains of backings stay short, and which other chains see a page.
//!
//! - [`collapse`]: a backing that only one other still needs is joined with it.
//! - `found`: a page that a walk along a chain found, and where.
//! - `last_sharer`: whether some other chain still sees a page.
//! - `reaper`: what is destroyed later, by the daemon.
//!
//! Chains themselves are [`backing`](crate::object::backing)s, one room below; copying pages up a long chain is a fault's work
//! (`fault::flatten`). The room owns the rule that a page which every chain hides goes. It knows objects, pages and reverse
//! mappings, and no map.

pub mod collapse;
pub(crate) mod found;
pub(crate) mod last_sharer;
pub(crate) mod reaper;
