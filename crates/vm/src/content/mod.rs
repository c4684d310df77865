//! The content of objects: bytes read and written, sizes, holes, and writing back.
//!
//! - `read_write`: bytes for system calls. `truncate`, `remove`: removing pages from the object and from every mapping.
//! - `holes`: private mappings of a file in memory, where it has no page. `write_back`: dirty pages of files.
//! - `marks`: the use of a file's pages, for tools.
//!
//! Operations on an object's pages as a whole stand here, above the reverse mappings that they remove pages from. The
//! room owns the remover's order of steps (it relies on C2, whose home is the fault). It knows objects and paging, and
//! no map.

pub(crate) mod holes;
pub(crate) mod marks;
pub(crate) mod read_write;
pub(crate) mod remove;
pub(crate) mod truncate;
pub(crate) mod write_back;

pub use marks::RangeCounts;
pub use read_write::IoError;
