//! Small types that all parts use.

pub mod line;
pub mod owned;
pub mod pid;
pub mod plain;
#[cfg(debug_assertions)]
pub mod refusal;
pub mod tables;
