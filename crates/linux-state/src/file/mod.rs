//! Files: descriptors, the host of `quire_fs` in this kernel, and the file state that a machine has once.
//!
//! [`host`] has this kernel's types of files. [`objects`] binds `quire_fs` to the memory core: the bytes of a file are
//! an `ObjectRef`. [`files`] is the table of descriptors.

pub mod errors;
pub mod executable;
pub mod files;
pub mod host;
pub mod notices;
pub mod notify_limits;
pub mod objects;
pub mod pipe_limits;
pub mod pipes;
pub mod ptys;
pub mod state;
pub mod system;
pub mod trees;
pub mod view;

pub use files::Files;
pub use host::{Dentry, File, FileHost, View};
pub use objects::{FileBytes, read_kernel};
pub use state::{FsState, Seen};
pub use system::System;
