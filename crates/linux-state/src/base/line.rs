//! Separates fields by cache lines.

/// The fields after it begin on a new line.
#[derive(Clone, Copy, Default)]
#[repr(align(64))]
pub struct Line;
