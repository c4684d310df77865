//! The contents of `/proc` and `/sys`. `quire_fs::generated` generates the directories and files when they are read,
//! and handles reads of parts.
//!
//! A directory is a table of names (`node::Item`). Processes and their descriptors are found by number. The kernel
//! passes [`Procfs`] to the Linux layer, which uses it only through the trait [`Trees`].
#![cfg_attr(not(test), no_std)]

mod about;
mod clear_refs;
mod descriptors;
mod devices;
mod frames;
mod ipc;
mod kernel_memory;
mod machine;
mod map_files;
mod map_query;
mod maps;
mod memory;
mod mounts;
mod net;
mod node;
mod pages;
mod process;
mod root;
mod setting;
mod sys;

use quire_fs::generated::GeneratedFile;
use quire_linux_state::file::trees::{Root, Trees};
use quire_linux_state::{Ctx, Errno, Linux, Machine};

/// The trees `/proc` and `/sys`.
pub struct Procfs;

impl<M: Machine> Trees<M> for Procfs {
    fn proc(&self, linux: &'static Linux<M>) -> Result<Root<M>, Errno> {
        Ok(root::root(linux)?)
    }

    fn sys(&self, linux: &'static Linux<M>) -> Result<Root<M>, Errno> {
        Ok(root::sys_root(linux)?)
    }

    fn ioctl(
        &self,
        ctx: &Ctx<'_, M>,
        file: &dyn GeneratedFile,
        request: u32,
        argument: u64,
    ) -> Option<Result<usize, Errno>> {
        memory::ioctl(ctx, file, request, argument)
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;
