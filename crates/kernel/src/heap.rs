//! The global allocator: the memory core's caches by size, and runs of frames. It draws on the reserve that user pages do not
//! reach.

use crate::machine::{try_vm, vm};
use core::alloc::{GlobalAlloc, Layout};
use core::ptr::NonNull;

struct Heap;

#[global_allocator]
static HEAP: Heap = Heap;

// SAFETY: the memory core's heap hands out memory of the layout asked for, to one owner at a time.
unsafe impl GlobalAlloc for Heap {
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // Boot allocates nothing before the memory system is up.
        let Some(vm) = try_vm() else { return core::ptr::null_mut() };
        vm.heap().alloc(vm, layout).map_or(core::ptr::null_mut(), NonNull::as_ptr)
    }
    #[inline]
    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: by the trait's contract the memory came from `alloc` with this layout, and is not null.
        unsafe { vm().heap().free(vm(), NonNull::new_unchecked(memory), layout) }
    }
}
