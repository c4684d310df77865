//! The initial file system: a tree of what the guest shall find, written as a cpio archive into memory.
//!
//! - [`tree`]: the tree, and the archive made from it;
//! - [`root`]: what is always there (busybox and its names, a few files of `/etc`);
//! - [`libraries`]: what a dynamic program of the host needs to run;
//! - [`program`]: what the user's words mean: which file, from where, under which name;
//! - [`compiler`]: this machine's C compiler, and what it builds;
//! - [`order`]: the file that tells the guest what to run.

pub mod compiler;
pub mod libraries;
pub mod order;
pub mod program;
pub mod root;
pub mod tree;
