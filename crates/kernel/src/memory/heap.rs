//! The global allocator: the memory core's caches by size, and runs of frames. It may use the reserve that user pages
//! cannot use.

use crate::cpu;
use crate::machine::{try_vm, vm};
use core::alloc::{GlobalAlloc, Layout};
use core::ptr::{self, NonNull};
use quire_vm::OutOfMemory;

struct Heap;

#[global_allocator]
static HEAP: Heap = Heap;

// SAFETY: the memory core's heap hands out memory of the requested layout, to one owner at a time.
unsafe impl GlobalAlloc for Heap {
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // Boot does not allocate before the memory system is up.
        let Some(vm) = try_vm() else { return core::ptr::null_mut() };
        // SAFETY: the heap is the one of `vm`, which it is given.
        match unsafe { vm.heap().alloc(vm, layout) } {
            Ok(memory) => memory.as_ptr(),
            Err(OutOfMemory) => at_last(layout),
        }
    }
    #[inline]
    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: by the trait's contract the memory came from `alloc` with this layout, and is not null.
        unsafe { vm().heap().free(vm(), NonNull::new_unchecked(memory), layout) }
    }
}

/// Moves a value of boot to the heap, never freed. Before process 1 runs, memory can only be out on a machine that is
/// too small.
pub fn keep<T>(value: T) -> &'static mut T {
    match quire_heap::try_leak(value) {
        Ok(kept) => kept,
        Err(quire_heap::OutOfMemory) => panic!("not enough memory for the objects that boot makes"),
    }
}

/// How often a request waits for pageout.
const ATTEMPTS: u32 = 32;

/// Called when the heap is empty: waits for pageout if sleeping is allowed. Null if that frees nothing, which the
/// caller handles.
#[cold]
fn at_last(layout: Layout) -> *mut u8 {
    let vm = vm();
    // Refused on purpose: that is final.
    if cfg!(debug_assertions) && vm.is_injected() {
        return ptr::null_mut();
    }
    for _ in 0..ATTEMPTS {
        if !cpu::may_sleep() || !vm.wait_for_frames() {
            break;
        }
        // SAFETY: the heap is the one of `vm`, which it is given.
        if let Ok(memory) = unsafe { vm.heap().alloc(vm, layout) } {
            return memory.as_ptr();
        }
    }
    ptr::null_mut()
}
