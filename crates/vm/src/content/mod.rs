//! The content of objects: bytes read and written, sizes, holes, and writing back.
//!
//! What changes an object's pages as a whole stands here, above the reverse mappings that it takes pages out of.

pub(crate) mod holes;
pub(crate) mod marks;
pub(crate) mod read_write;
pub(crate) mod remove;
pub(crate) mod truncate;
pub(crate) mod write_back;

pub use marks::Marks;
pub use read_write::IoError;
