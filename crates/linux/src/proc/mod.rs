//! The contents of `/proc` and `/sys`. `quire_fs::generated` generates directories when they are read, and serves reads
//! by pieces.
//!
//! A directory is a table of names (`node::Item`); processes and their descriptors are found by number.

mod clear_refs;
pub mod descriptors;
mod devices;
mod frames;
mod ipc;
mod kernel_memory;
pub mod machine;
mod map_files;
pub mod map_query;
mod maps;
pub(crate) mod memory;
mod mounts;
mod net;
pub mod node;
mod pages;
pub mod process;
pub mod root;
pub mod sys;
mod sys_net;

pub use root::{root, sys_root};
