//! File system calls: descriptors, paths, flags and errors, between programs and `quire_fs`.
//!
//! # Where to start reading
//! [`files`] is the table of descriptors, [`path`] how path arguments become dentries, [`transfer`] how bytes move to and
//! from user memory. Each other module is one family of calls. [`host`] binds `quire_fs` to the memory core: a file's bytes
//! are an `ObjectRef`. [`system`] sets the tree up; [`terminals`] ties terminals to sessions and process groups.

pub mod attributes;
pub mod descriptors;
pub mod epoll;
pub mod errors;
pub mod fcntl;
pub mod files;
pub mod host;
pub mod io;
pub mod ioctl;
pub mod nameless;
pub mod names;
pub mod open;
pub mod path;
pub mod pipes;
pub mod poll;
pub mod select;
pub mod splice;
pub mod stat;
pub mod state;
pub mod system;
pub mod terminals;
pub mod transfer;
pub mod xattr;

pub use attributes::*;
pub use descriptors::*;
pub use epoll::{
    sys_epoll_create, sys_epoll_create1, sys_epoll_ctl, sys_epoll_pwait, sys_epoll_pwait2, sys_epoll_wait,
};
pub use fcntl::{sys_fcntl, sys_flock};
pub use files::Files;
pub use host::{FileBytes, FileHost, read_kernel};
pub use io::*;
pub use ioctl::sys_ioctl;
pub use nameless::*;
pub use names::*;
pub use open::*;
pub use path::AT_FDCWD;
pub use poll::{restart_poll, sys_poll, sys_ppoll};
pub use select::{sys_pselect6, sys_select};
pub use splice::*;
pub use stat::*;
pub use state::{FsState, Seen, sys_umask};
pub use system::System;
pub use terminals::session_ends;
pub use xattr::*;

/// An open file of this kernel.
pub type File<M> = quire_fs::OpenFile<FileHost<M>>;
/// A dentry of this kernel.
pub type Dentry<M> = quire_fs::Dentry<FileHost<M>>;
/// The view that a process has of the tree.
pub type View<M> = quire_fs::View<FileHost<M>>;
