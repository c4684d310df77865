//! A marker field that places the fields of a struct on separate cache lines.

/// The fields after a field of this type begin on a new cache line.
#[derive(Clone, Copy, Default)]
#[repr(align(64))]
pub struct Line;
