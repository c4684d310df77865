//! Swap in memory.
//!
//! `swap=SIZE` on the kernel's command line sets memory aside in place of a disk. No program maps it. A fault on a
//! page in swap first copies the page back into a frame, and neighbours with it.

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

/// Takes the memory for the command line's word out of `free`; none without the word. `files`: bytes of initial files.
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
/// The memory came from [`set_aside`], and has no other user.
pub unsafe fn add(memory: Option<Memory>) {
    let Some(memory) = memory else { return };
    // SAFETY: the memory came from `set_aside`, so it is `pages` long, and only the store uses it.
    let store = unsafe { MemoryStore::new(memory.at, memory.pages, FaultPlan::default()) };
    match vm().add_swap(crate::memory::heap::keep(store)) {
        Ok(()) => log!("{} MiB of swap, in memory", (memory.pages * PAGE_SIZE) >> 20),
        Err(e) => log!("swap cannot be used: {e:?}"),
    }
}
