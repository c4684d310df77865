//! Fields that begin on a cache line of their own.

/// The fields behind it begin on a line of their own.
#[derive(Clone, Copy, Default)]
#[repr(align(64))]
pub(crate) struct Line;
