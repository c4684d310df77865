//! Kernel stacks and the kernel's map. A stack has 16 KiB (more in a checked build). An unmapped page lies below it, so
//! that an overflow is a double fault and not silent damage. The kernel's map has the stacks and all other mappings of
//! the kernel after boot.

use crate::machine::{DirectMap, Machine, Once, vm};
use crate::memory::layout::{MAP, MAP_END};
use core::sync::atomic::{AtomicU64, Ordering};
use quire_vm::map::kernel::{KernelMap, KernelRange};
use quire_vm::{OutOfMemory, PAGE_SIZE, VirtRange};

/// Bytes of a stack. In checked builds frames are larger, and the lock-order checker runs on top of the deepest calls.
pub const SIZE: u64 = if cfg!(debug_assertions) { 64 } else { 16 } * 1024;
const GUARD: u64 = PAGE_SIZE;

/// The next address for boot's permanent mappings; the kernel's map begins behind them.
static NEXT: AtomicU64 = AtomicU64::new(MAP);
static KERNEL_MAP: Once<KernelMap<Machine>> = Once::new();

/// Makes the kernel's map over the addresses behind boot's mappings. Called once, when there is a memory system.
pub fn init() -> Result<(), OutOfMemory> {
    let range = VirtRange { start: NEXT.swap(MAP_END, Ordering::Relaxed), end: MAP_END };
    // SAFETY: the range is set aside for this map.
    KERNEL_MAP.set(crate::memory::heap::keep(unsafe { KernelMap::new(vm(), range, SIZE)? }));
    vm().reclaim_from(kernel_map());
    Ok(())
}

/// The kernel's map.
pub fn kernel_map() -> &'static KernelMap<Machine> {
    // SAFETY: boot makes it before the first thread, and before it releases other CPUs.
    unsafe { KERNEL_MAP.get() }
}

/// A kernel stack; freed when dropped.
pub struct Stack(KernelRange<Machine>);

impl Stack {
    /// A stack, with the contents of its last use.
    pub fn new() -> Result<Stack, OutOfMemory> {
        // For want of frames or addresses the thread cannot be made.
        kernel_map().stack().map(Stack).map_err(|_| OutOfMemory)
    }

    /// An idle stack of this CPU, the last one too; see [`KernelMap::last_stack`]. Interrupts are masked.
    pub fn last() -> Option<Stack> {
        kernel_map().last_stack().map(Stack)
    }

    /// Gives it to this CPU's idle ones. Interrupts are masked, and the caller runs on another stack.
    pub fn put_by(self) {
        kernel_map().put_by(self.0);
    }

    /// One past the highest byte.
    pub fn top(&self) -> u64 {
        self.0.range().end
    }
}

/// Permanent addresses of `size` bytes above an unmapped guard, before there is a kernel's map.
pub fn fresh(size: u64) -> Option<u64> {
    let at = NEXT.fetch_add(size + GUARD, Ordering::Relaxed);
    (at + size + GUARD <= MAP_END).then_some(at + GUARD)
}

/// Whether kernel address `at` may be a stack's guard: in the kernel's map and not mapped.
pub fn is_guard(at: u64) -> bool {
    (MAP..MAP_END).contains(&at)
        && crate::machine::try_vm().is_some_and(|vm| vm.machine().mmu().kernel().lookup(&DirectMap, at).is_none())
}

/// Whether the two words at kernel address `at`, which lies on a kernel stack or in the image, can be read.
pub fn is_readable(at: u64) -> bool {
    !(MAP..MAP_END).contains(&at) || !is_guard(at) && !is_guard(at + 8)
}
