//! Regular files and open files.
//!
//! [`lock`], [`seal`] and [`text`] restrict writers, mappings and programs, each by its own count or table. An inode
//! contains them, so they use neither inodes nor names. [`lease`]s belong to inodes, and delay openers. File
//! descriptors name [`open_file`]s, and an exec holds a [`program`]. Both use the tree; the tree uses neither of them.
//!
//! May use: [`stream`](crate::stream); [`open_file`] and [`program`] also [`tree`](crate::tree). Invariants: a lock of
//! a range excludes all conflicting locks; a file is never open for writing and executed at once; a seal stays.

pub mod lease;
pub mod lock;
pub mod open_file;
pub(crate) mod program;
pub mod seal;
pub mod text;
