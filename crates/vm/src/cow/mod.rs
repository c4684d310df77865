//! Copy-on-write: how chains of backings stay short, and who else sees a page.
//!
//! - [`collapse`]: a backing that only one other still needs is joined with it.
//! - `flatten`: pages that many generations read through are copied near their readers.
//! - `last_sharer`: whether some other chain still sees a page.
//! - `reaper`: what is destroyed later, by the daemon.
//!
//! The room owns the order of a chain. It knows objects and pages, and no map or fault.

pub mod collapse;
pub(crate) mod found;
pub(crate) mod last_sharer;
pub(crate) mod reaper;
