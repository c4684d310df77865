//! Swap space in RAM.
//!
//! `swap=SIZE` on the kernel's command line reserves memory that serves as a swap disk. Programs never map this memory.
//! A fault on a page in swap copies the page, and some of its neighbours, back into frames.

use crate::machine::vm;
use crate::memory::layout::direct;
use crate::memory::paging;
use core::ptr::NonNull;
use quire_kernel::loader::command_line::{self, Unusable};
use quire_kernel::loader::memory_map::Ram;
use quire_vm::PAGE_SIZE;
use quire_vm::paging::memory_store::{FaultPlan, MemoryStore};

/// The memory for swap: its address in the direct map, and its size in pages.
pub struct Memory {
    at: NonNull<u8>,
    pages: u64,
}

/// Takes the memory that the word `swap` of the command line requests out of `free`. Returns `None` without the word,
/// or if there is no such free range. `files` is the size of the initial files in bytes.
pub fn set_aside<'a>(line: &'a [u8], free: &mut Ram, files: u64) -> Result<Option<Memory>, Unusable<'a>> {
    let most = free.spare(u64::MAX, files);
    let Some(bytes) = command_line::set_aside(line, "swap", PAGE_SIZE, most)? else { return Ok(None) };
    let pages = bytes / PAGE_SIZE;
    let at = paging::take_large(free, pages * PAGE_SIZE).and_then(|at| NonNull::new(direct(at)));
    Ok(at.map(|at| Memory { at, pages }))
}

/// Passes the swap memory to the memory core, which uses it as swap from then on.
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
