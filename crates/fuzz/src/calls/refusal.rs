//! Refused allocations in system calls: what the layers allocate on the host counts as what they allocate of the machine's frames.
//!
//! The Linux layer counts the allocations of a call for the thread that makes it. The machine asks it for those of the memory core.
//! Those of files and processes come from the global allocator, which asks it here. What the host needs for the machine itself (its
//! threads, their contexts, backtraces of locks) is left alone.

use super::machine::One;
use quire_linux::Thread;
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::ptr;

struct Refusing;

#[global_allocator]
static ALLOCATOR: Refusing = Refusing;

std::thread_local! {
    /// The machine's thread whose call the host's thread is in, outside of [`for_host`].
    static CALLER: Cell<Option<&'static Thread<One>>> = const { Cell::new(None) };
}

/// Sets the caller back to what it was.
struct Back(Option<&'static Thread<One>>);

impl Drop for Back {
    fn drop(&mut self) {
        CALLER.set(self.0);
    }
}

/// Does `f`, a call of `thread`.
pub fn calling<R>(thread: &'static Thread<One>, f: impl FnOnce() -> R) -> R {
    let _back = Back(CALLER.replace(Some(thread)));
    f()
}

/// Does `f`, whose memory is the host's affair.
pub fn for_host<R>(f: impl FnOnce() -> R) -> R {
    let _back = Back(CALLER.take());
    f()
}

/// Whether the allocation that the host's thread makes now is refused.
pub fn refuses() -> bool {
    // A thread that ends has no caller any more, and is refused nothing.
    let caller = CALLER.try_with(Cell::get).ok().flatten();
    caller.is_some_and(|thread| !quire_sync::hooks::threads::is_apart() && is_refused(thread))
}

#[cfg(debug_assertions)]
fn is_refused(thread: &Thread<One>) -> bool {
    thread.is_refused()
}

/// Without assertions the Linux layer refuses nothing.
#[cfg(not(debug_assertions))]
fn is_refused(_thread: &Thread<One>) -> bool {
    false
}

// SAFETY: all memory is the system's; a refusal is null, as the trait wants it.
unsafe impl GlobalAlloc for Refusing {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: by this function's contract.
        if refuses() { ptr::null_mut() } else { unsafe { System.alloc(layout) } }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: by this function's contract; the memory is the system's.
        unsafe { System.dealloc(memory, layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: by this function's contract.
        if refuses() { ptr::null_mut() } else { unsafe { System.alloc_zeroed(layout) } }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, new: usize) -> *mut u8 {
        // SAFETY: by this function's contract; the memory is the system's.
        if refuses() { ptr::null_mut() } else { unsafe { System.realloc(memory, layout, new) } }
    }
}
