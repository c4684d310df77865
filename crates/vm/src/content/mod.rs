//! The content of objects: reads and writes of bytes, sizes, holes, and write-back.
//!
//! - `read_write`: reads and writes for system calls. `truncate`, `remove`: removal of pages from the object and from
//!   every mapping.
//! - `holes`: private mappings of holes of a file in memory. `write_back`: the writing of a file's dirty pages.
//! - `marks`: accessed and dirty state of a file's pages, for tools.
//!
//! Operations on many pages of an object are in this folder. It owns the order of a remover's steps, which relies on C2
//! (`fault/mod.rs`). The folder may use reverse mappings, objects and paging, but no map.

pub(crate) mod holes;
pub(crate) mod marks;
pub(crate) mod read_write;
pub(crate) mod remove;
pub(crate) mod truncate;
pub(crate) mod write_back;

pub use marks::RangeCounts;
pub use read_write::IoError;
