//! Names, and the inodes that they lead to.
//!
//! A [`dentry`] ties a name in a [`directory`] to an [`inode`], which has attributes ([`attr`]) and belongs to a file system
//! ([`system`]). A provider makes [`generated`] things up when they are looked at.
//!
//! May use: [`stream`](crate::stream), [`pipe`](crate::pipe), the [`host`](crate::host), and locks, seals and counts of
//! [`file`](crate::file). Paths and permissions are above, in [`vfs`](crate::vfs).
//! Owns: an inode counts while it lives; both listings of a directory have the same entries; a dentry knows its parent.

pub(crate) mod attr;
pub mod dentry;
pub mod directory;
pub mod generated;
pub mod inode;
pub(crate) mod system;
