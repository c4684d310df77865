//! The recording of events for `./quire trace`. Only a kernel built with the feature `trace` records events.

pub mod known;
#[cfg(not(feature = "trace"))]
mod off;
#[cfg(feature = "trace")]
mod on;

#[cfg(not(feature = "trace"))]
pub use off::*;
#[cfg(feature = "trace")]
pub use on::*;
