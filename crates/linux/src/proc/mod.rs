//! What `/proc` and `/sys` say. The frame (directories made up when somebody looks, reading by pieces) is `quire_fs::generated`;
//! here are the contents.
//!
//! A directory is a table of names (`node::Item`); processes and their descriptors are found by number.

pub mod descriptors;
mod devices;
pub mod machine;
pub mod maps;
pub mod memory;
pub mod node;
pub mod process;
pub mod root;
pub mod sys;

pub use root::{root, sys_root};
