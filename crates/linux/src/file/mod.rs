//! File system calls: descriptors, paths, flags and errors, between programs and `quire_fs`.
//!
//! # Where to start reading
//! [`path`] finds the dentries of path arguments, and `park` lets calls on streams sleep without a stack. [`start`]
//! sets up the file tree, and [`terminals`] connects terminals with sessions and process groups. Each other module has
//! one family of calls. The table of descriptors and this kernel's types of files are in [`quire_linux_state::file`].

pub mod attributes;
pub mod descriptors;
pub mod epoll;
pub mod fcntl;
pub mod inotify;
pub mod io;
pub mod io_flags;
pub mod ioctl;
pub mod leases;
pub mod list;
pub mod nameless;
pub mod names;
pub mod open;
pub mod open_how;
pub(crate) mod park;
pub mod path;
pub mod poll;
pub mod ptys;
pub mod select;
pub mod splice;
pub mod start;
pub mod stat;
pub mod terminals;
pub mod xattr;

pub use attributes::*;
pub use descriptors::*;
pub use epoll::{
    sys_epoll_create, sys_epoll_create1, sys_epoll_ctl, sys_epoll_pwait, sys_epoll_pwait2, sys_epoll_wait,
};
pub use fcntl::{sys_fcntl, sys_flock};
pub use io::*;
pub use io_flags::{sys_preadv2, sys_pwritev2};
pub use ioctl::sys_ioctl;
pub use list::{sys_getdents, sys_getdents64};
pub use nameless::*;
pub use names::*;
pub use open::*;
pub use open_how::{sys_name_to_handle_at, sys_open_by_handle_at, sys_openat2};
pub use path::AT_FDCWD;
pub(crate) use path::{find_path, walk_path};
pub(crate) use poll::timeout;
pub use poll::{restart_poll, sys_poll, sys_ppoll};
pub use select::{sys_pselect6, sys_select};
pub use splice::*;
pub use stat::*;
pub use terminals::session_ends;
pub use xattr::*;
