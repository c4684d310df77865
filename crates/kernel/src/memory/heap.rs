//! The global allocator. It uses the memory core's heap: caches for small sizes, and contiguous frames for large ones.
//! Allocations may use the reserve of frames that user pages cannot use.

use crate::cpu;
use crate::machine::{try_vm, vm};
use core::alloc::{GlobalAlloc, Layout};
use core::ptr::{self, NonNull};
use quire_vm::OutOfMemory;

struct Heap;

#[global_allocator]
static HEAP: Heap = Heap;

// SAFETY: the memory core's heap returns memory of the requested layout, and gives each piece to one owner at a time.
unsafe impl GlobalAlloc for Heap {
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // Boot does not allocate before the memory system exists.
        let Some(vm) = try_vm() else { return core::ptr::null_mut() };
        // SAFETY: the heap belongs to `vm`, which is its first argument.
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

/// Moves a value of boot to the heap, where it is never freed. Panics if there is no memory: before process 1 runs,
/// that only happens on a machine that is too small.
pub fn keep<T>(value: T) -> &'static mut T {
    match quire_heap::try_leak(value) {
        Ok(kept) => kept,
        Err(quire_heap::OutOfMemory) => panic!("not enough memory for the objects that boot makes"),
    }
}

/// How often an allocation waits for pageout at most.
const ATTEMPTS: u32 = 32;

/// Allocates after the heap had no memory: waits for pageout, if the caller may sleep, and tries again. Returns null if
/// that does not help.
#[cold]
fn at_last(layout: Layout) -> *mut u8 {
    let vm = vm();
    // A test has injected this failure, so it must not be repaired.
    if cfg!(debug_assertions) && vm.is_injected() {
        return ptr::null_mut();
    }
    for _ in 0..ATTEMPTS {
        if !cpu::may_sleep() || !vm.wait_for_frames() {
            break;
        }
        // SAFETY: the heap belongs to `vm`, which is its first argument.
        if let Ok(memory) = unsafe { vm.heap().alloc(vm, layout) } {
            return memory.as_ptr();
        }
    }
    ptr::null_mut()
}
