//! Events for `./quire trace`: recorded by a kernel built with the feature `trace`, absent in others.

pub mod known;
#[cfg(not(feature = "trace"))]
mod off;
#[cfg(feature = "trace")]
mod on;

#[cfg(not(feature = "trace"))]
pub use off::*;
#[cfg(feature = "trace")]
pub use on::*;
