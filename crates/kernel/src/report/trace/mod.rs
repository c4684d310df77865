//! Events for `./quire trace`: kept by a kernel that is built with the feature `trace`, nothing at all in others.

pub mod known;
#[cfg(not(feature = "trace"))]
mod off;
#[cfg(feature = "trace")]
mod on;

#[cfg(not(feature = "trace"))]
pub use off::*;
#[cfg(feature = "trace")]
pub use on::*;
