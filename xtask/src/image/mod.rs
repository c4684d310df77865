//! The initial file system: a tree of the guest's files, written as a cpio archive into memory.
//!
//! - [`tree`]: the tree, and the archive made from it;
//! - [`root`]: the files of every guest (busybox and its names, a few files of `/etc`);
//! - [`libraries`]: the files that a dynamic program of the host needs;
//! - [`program`]: the user's words: the file, its origin, its name in the guest;
//! - [`compiler`]: this machine's C compiler, and the project that it builds;
//! - [`order`]: the file that names the guest's program.

pub mod compiler;
pub mod libraries;
pub mod order;
pub mod program;
pub mod root;
pub mod tree;
