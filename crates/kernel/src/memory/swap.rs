//! Swap in memory.
//!
//! `swap=SIZE` on the kernel's command line sets memory aside that stands for a disk until there is one: what is in it is out
//! of programs' reach, and comes back page by page.

use crate::machine::vm;
use crate::memory::layout::direct;
use crate::memory::paging;
use core::ptr::NonNull;
use quire_kernel::loader::command_line::{self, Unusable};
use quire_kernel::loader::memory_map::Ram;
use quire_vm::PAGE_SIZE;
use quire_vm::paging::memory_store::{FaultPlan, MemoryStore};

/// Memory for swap.
pub struct Memory {
    at: NonNull<u8>,
    pages: u64,
}

/// Takes the memory that the command line asks for out of `free`; none where it does not ask. `files`: bytes of initial files.
pub fn set_aside<'a>(line: &'a [u8], free: &mut Ram, files: u64) -> Result<Option<Memory>, Unusable<'a>> {
    let most = free.spare(u64::MAX, files);
    let Some(bytes) = command_line::set_aside(line, "swap", PAGE_SIZE, most)? else { return Ok(None) };
    let pages = bytes / PAGE_SIZE;
    let at = paging::take_large(free, pages * PAGE_SIZE).and_then(|at| NonNull::new(direct(at)));
    Ok(at.map(|at| Memory { at, pages }))
}

/// Gives it to the memory core.
///
/// # Safety
/// The memory came from [`set_aside`], and nobody else uses it.
pub unsafe fn add(memory: Option<Memory>) {
    let Some(memory) = memory else { return };
    // SAFETY: the memory came from `set_aside`, so it is `pages` long, and it is used by the store alone.
    let store = unsafe { MemoryStore::new(memory.at, memory.pages, FaultPlan::default()) };
    match vm().add_swap(crate::memory::heap::keep(store)) {
        Ok(()) => log!("{} MiB of swap, in memory", (memory.pages * PAGE_SIZE) >> 20),
        Err(e) => log!("swap cannot be used: {e:?}"),
    }
}
