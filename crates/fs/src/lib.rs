//! Files: names, contents, pipes, devices, terminals.
//!
//! # Principles
//! - **A file's bytes live in a memory object.** There is no page cache here: reading, writing, mapping and executing a
//!   file all reach the same pages, through the [`Host`]'s objects.
//! - **The tree is made of [`Dentry`]s.** A dentry ties a name in a directory to an [`Inode`] and knows its parent. A mount
//!   is a dentry whose inode belongs to another file system; nothing else is special about it.
//! - **Lookups take no lock**, and count what a path leads to, not the directories on the way.
//! - **User memory is touched with nothing held but sleeping locks**: bytes move through [`Sink`] and [`Source`], which may
//!   sleep in a fault.
//! - **No errno, no Linux constant.** Errors are [`FsError`], flags are our own types; the Linux layer translates.
//!
//! # Where to start reading
//! [`walk`] turns a path into a dentry, [`vfs`] changes the tree, [`open_file`] is what a file descriptor names,
//! [`stream`] is everything that is not a regular file or a directory ([`pipe`], [`device`], [`terminal`], [`event`]).
#![cfg_attr(not(any(test, feature = "test-host")), no_std)]
#![forbid(unsafe_code)]
#![deny(missing_docs)]

mod attributes;
pub mod cpio;
pub mod dentry;
pub mod device;
pub mod directory;
pub mod error;
pub mod event;
pub mod generated;
pub mod host;
pub mod inode;
pub mod lock;
pub mod open_file;
pub mod pipe;
pub mod port;
pub mod readiness;
pub mod rename;
pub mod seal;
pub mod stream;
pub mod terminal;
pub mod text;
pub mod transfer;
pub mod vfs;
pub mod walk;

#[cfg(test)]
mod file_model;
#[cfg(test)]
mod refusals;
#[cfg(any(test, feature = "test-host"))]
pub mod test_host;
#[cfg(test)]
mod tree_model;

pub use dentry::Dentry;
pub use error::FsError;
pub use host::{FileObject, Host, Origin, PAGE_SIZE, Timestamp};
pub use inode::{Attr, DeviceNumber, FileKind, Ident, Inode, Limits, Node, Status};
pub use open_file::{OpenFile, OpenFlags, Whence};
pub use pipe::Pipe;
pub use port::Port;
pub use readiness::{Listener, Readiness, Ready};
pub use seal::Seals;
pub use stream::{Io, Stream};
pub use text::Program;
pub use transfer::{Sink, SliceSink, SliceSource, Source};
pub use vfs::{Create, Vfs};
pub use walk::{Final, Found, Last, Name, Place, Places, Powers, View, Who};
