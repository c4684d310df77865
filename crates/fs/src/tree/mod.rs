//! Names, and the inodes that they lead to.
//!
//! A [`dentry`] ties a name in a [directory](inode::directory) to an [`inode`], which has attributes ([`attr`]) and
//! belongs to a file system ([`system`]). An inode may have [`watch`]es and extended attributes ([`xattr`]). Providers
//! make [generated](inode::generated) files when they are looked up. A bind mount shows dentries at a second place.
//!
//! May use: [`stream`](crate::stream), [`pipe`](crate::pipe), the [`host`](crate::host), and locks, seals and counts of
//! [`file`](crate::file). Paths and permissions are above, in [`vfs`](crate::vfs). Invariants: an inode is counted
//! while it exists; both listings of a directory have the same entries; a dentry refers to its parent.

pub(crate) mod attr;
pub mod dentry;
pub mod inode;
pub(crate) mod system;
pub mod watch;
pub mod xattr;
