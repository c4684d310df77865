//! The initial file system: a tree of the guest's files, written as a cpio archive into memory.
//!
//! - [`tree`]: the tree, and the archive made from it;
//! - [`root`]: the files of every guest (busybox and its names, a few files of `/etc`);
//! - [`archive`]: a tar archive on the host, whose members are read only when the image is written;
//! - [`debian`]: a root file system made of Debian's packages;
//! - [`libraries`]: the files that a dynamic program of the host needs;
//! - [`program`]: the meaning of the user's command line: which file is meant, from where, under which name;
//! - [`compiler`]: the host's C compiler, and a project for it;
//! - [`results`]: files that come back from the guest;
//! - [`order`]: the file that names the program to run in the guest.

pub mod archive;
pub mod compiler;
pub mod debian;
pub mod libraries;
pub mod order;
pub mod program;
pub mod results;
pub mod root;
pub mod tree;
