//! Files: names, contents, pipes, devices, terminals.
//!
//! # Principles
//! - **A file's bytes live in a memory object.** There is no separate page cache: read, write, mapping and execution
//!   all use the same pages, through the [`Host`]'s objects.
//! - **The tree is made of [`Dentry`]s.** A dentry ties a name in a directory to an [`Inode`] and refers to its parent.
//!   A mount is a dentry whose inode belongs to another file system; it has no other special property.
//! - **Lookups take no lock.** They take a reference to the path's target, not to the directories on the way.
//! - **User memory is accessed with only sleeping locks held**: bytes move through [`Sink`] and [`Source`], which may
//!   sleep in a fault.
//! - **No errno, no Linux constant.** Errors are [`FsError`], flags are our own types; the Linux layer translates.
//!
//! # Where to start reading
//! [`walk`] turns a path into a dentry, [`vfs`] changes the tree, and file descriptors name an [`open_file`]. A
//! [`stream`] is any open file but a regular file or a directory ([`pipe`], [`device`], [`terminal`], [`event`]).
#![cfg_attr(not(any(test, loom, shuttle, feature = "test-host")), no_std)]
#![forbid(unsafe_code)]
#![deny(missing_docs)]

pub mod cpio;
pub mod device;
pub mod error;
mod file;
pub mod host;
#[cfg(all(test, any(loom, shuttle)))]
mod models;
mod mutant;
pub mod pack;
pub mod pipe;
pub mod stream;
pub mod terminal;
mod tree;
pub mod vfs;

#[cfg(all(test, not(any(loom, shuttle))))]
mod file_model;
#[cfg(all(test, not(any(loom, shuttle))))]
mod refusals;
#[cfg(any(test, feature = "test-host"))]
pub mod test_host;
#[cfg(all(test, not(any(loom, shuttle))))]
mod tree_model;
#[cfg(all(test, not(any(loom, shuttle))))]
mod watch_tests;

pub use device::port;
pub use device::port::Port;
pub use error::FsError;
pub use file::open_file::{OpenFile, Whence};
pub use file::program::Program;
pub use file::seal::Seals;
pub use file::{lease, lock, open_file, seal, text};
pub use host::{FileObject, Host, Origin, PAGE_SIZE};
pub use pipe::Pipe;
pub use stream::flags::OpenFlags;
pub use stream::io::Io;
pub use stream::readiness::{Listener, Readiness, Ready};
pub use stream::transfer::{Sink, SliceSink, SliceSource, Source};
pub use stream::{Stream, event, readiness, transfer};
pub use tree::attr::{Attr, DeviceNumber, FileKind, Ident, NewAttr, Status, Timestamp};
pub use tree::dentry::Dentry;
pub use tree::inode::{Inode, InodeContent};
pub use tree::inode::{directory, generated};
pub use tree::system::{Count, FileSystem, Limits, Restrictions, Space};
pub use tree::watch::{Happening, Watch, Watcher};
pub use tree::xattr;
pub use tree::{dentry, inode};
pub use vfs::credentials::{FileCredentials, Powers, Want};
pub use vfs::found::{Final, FoundPath, Last, NAME_MAX, Name};
pub use vfs::make::Create;
pub use vfs::view::{Places, Resolve, StartDirectory, View};
pub use vfs::{ROOT_DEVICE, Vfs, mounts, rename, walk};
