//! Kernel stacks and the kernel's map. A stack has 16 KiB (64 KiB with debug assertions). The guard page below a stack
//! is not mapped, so that an overflow causes a double fault instead of silent damage. The kernel's map contains the
//! stacks and all other mappings that the kernel makes after boot.

use crate::machine::{DirectMap, Machine, Once, vm};
use crate::memory::layout::{MAP, MAP_END};
use core::sync::atomic::{AtomicU64, Ordering};
use quire_vm::map::kernel::{KernelMap, KernelRange};
use quire_vm::{OutOfMemory, PAGE_SIZE, VirtRange};

/// The size of a stack in bytes. With debug assertions stack frames are larger, and the lock-order checker runs on top
/// of the deepest calls.
pub const SIZE: u64 = if cfg!(debug_assertions) { 64 } else { 16 } * 1024;
const GUARD: u64 = PAGE_SIZE;

/// The next address for boot's permanent mappings. After [`init`], the addresses behind them belong to the kernel's
/// map.
static NEXT: AtomicU64 = AtomicU64::new(MAP);
static KERNEL_MAP: Once<KernelMap<Machine>> = Once::new();

/// Creates the kernel's map over the addresses behind boot's mappings. Called once, after the memory system was
/// created.
pub fn init() -> Result<(), OutOfMemory> {
    let range = VirtRange { start: NEXT.swap(MAP_END, Ordering::Relaxed), end: MAP_END };
    // SAFETY: after the swap of `NEXT` no other code uses addresses of the range.
    KERNEL_MAP.set(crate::memory::heap::keep(unsafe { KernelMap::new(vm(), range, SIZE)? }));
    vm().reclaim_from(kernel_map());
    Ok(())
}

/// The kernel's map.
pub fn kernel_map() -> &'static KernelMap<Machine> {
    // SAFETY: boot creates the map before the first thread, and before other CPUs run threads.
    unsafe { KERNEL_MAP.get() }
}

/// A kernel stack; freed when dropped.
pub struct Stack(KernelRange<Machine>);

impl Stack {
    /// Allocates a stack. It still has the contents of its last use.
    pub fn new() -> Result<Stack, OutOfMemory> {
        // A lack of frames and a lack of addresses are the same error for the caller.
        kernel_map().stack().map(Stack).map_err(|_| OutOfMemory)
    }

    /// Takes an idle stack of this CPU, even if it is the last one; see [`KernelMap::last_stack`]. `None` if the CPU
    /// has none. Interrupts are masked.
    pub fn last() -> Option<Stack> {
        kernel_map().last_stack().map(Stack)
    }

    /// Adds the stack to this CPU's idle stacks. Interrupts are masked, and the caller runs on another stack.
    pub fn put_by(self) {
        kernel_map().put_by(self.0);
    }

    /// The address one past the stack's highest byte.
    pub fn top(&self) -> u64 {
        self.0.range().end
    }
}

/// Reserves `size` bytes of kernel addresses for ever, above an unmapped guard page. Returns the first address; `None`
/// if no addresses are left. Called before the kernel's map exists.
pub fn fresh(size: u64) -> Option<u64> {
    let at = NEXT.fetch_add(size + GUARD, Ordering::Relaxed);
    (at + size + GUARD <= MAP_END).then_some(at + GUARD)
}

/// Whether kernel address `at` may be in a stack's guard page: it is in the kernel's map and is not mapped.
pub fn is_guard(at: u64) -> bool {
    (MAP..MAP_END).contains(&at)
        && crate::machine::try_vm().is_some_and(|vm| vm.machine().mmu().kernel().lookup(&DirectMap, at).is_none())
}

/// Whether the two words at kernel address `at`, which is in the kernel's map or in the image, can be read.
pub fn is_readable(at: u64) -> bool {
    !(MAP..MAP_END).contains(&at) || !is_guard(at) && !is_guard(at + 8)
}
