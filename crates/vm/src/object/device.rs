//! Devices: objects that show physical addresses, such as registers or a frame buffer, and have no pages of the core.
//!
//! A device object has no page in its index, no pager, and nothing in any page queue. Only its driver takes its frames
//! away, with [`ObjectRef::revoke`]. A PTE is made of the address and the memory type alone. Mappings are shared, so a
//! fork shows the same device, and unmapping only clears PTEs.
//!
//! A private mapping is refused. The core would have to copy a page at the first store, and it can copy RAM only. Only
//! the driver knows the effect of reading a whole page of a device. (Linux copies. Programs map `/dev/zero` privately,
//! but that is private memory and no device.)
//!
//! - **fault**
//!   - fault: table page's lock
//!   - revoke: writes the size, then scans the leaves. The fault reads the size under the table page's lock, which
//!     fences. So the fault sees the new size, or the scan finds the fault's leaf

use super::{DEVICE, Object, ObjectRef};
use crate::error::OutOfMemory;
use crate::machine::{Machine, Pmap, Table};
use crate::tlb::flush::Pass;
use crate::types::{MemoryType, PAGE_SIZE, Pfn, PhysRange, VirtRange};
use quire_sync::atomic::{AtomicU64, Ordering, fence_full};

/// The frames of a device object.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Device {
    /// The frame of the first page. It is RAM that its owner keeps from other use, or no RAM at all.
    pub first: Pfn,
    /// The cache mode of accesses.
    pub memory: MemoryType,
}

/// Words that device objects and other objects use differently.
pub(super) struct Own {
    /// The number of a device's first frame. In other objects: the time of a store
    /// ([`store_times`](super::store_times)).
    pub value: AtomicU64,
    /// The memory type of a device, as a number. In other objects: the number of dirty pages ([`dirty`](super::dirty)).
    pub dirty: AtomicU64,
}

impl Own {
    pub(super) fn new() -> Own {
        Own { value: AtomicU64::new(0), dirty: AtomicU64::new(0) }
    }
}

/// The memory types, by the number in [`Own`].
const MEMORY_TYPES: [MemoryType; 3] = [MemoryType::WriteBack, MemoryType::WriteCombining, MemoryType::Uncached];

impl<M: Machine> Object<M> {
    /// The object's frames. `None` if the object is no device.
    #[inline(always)]
    pub(crate) fn device(&self) -> Option<Device> {
        // The flag is tested first, because it is on the cache line that each fault reads, and `own` is not.
        if self.flags.load(Ordering::Relaxed) & DEVICE == 0 {
            return None;
        }
        let memory = MEMORY_TYPES.get(self.own.dirty.load(Ordering::Relaxed) as usize).copied();
        Some(Device { first: Pfn(self.own.value.load(Ordering::Relaxed)), memory: memory? })
    }
}

impl<M: Machine> ObjectRef<M> {
    /// Makes a device object over the physical addresses of `frames`. PTEs map them with the memory type `memory`. The
    /// object can only be mapped shared, and cannot be read or written as a file.
    ///
    /// # Safety
    /// While the object is mapped, the frames have no other use and no mapping of another memory type. If the frames
    /// are RAM that the core manages, their owner frees them only after [`ObjectRef::revoke`]. Stores by programs that
    /// map the object break nothing that the kernel relies on.
    pub unsafe fn device(
        vm: &'static crate::object::Objects<M>,
        frames: PhysRange,
        memory: MemoryType,
    ) -> Result<Self, OutOfMemory> {
        let pages = frames.end.0.saturating_sub(frames.start.0);
        let size = pages.checked_mul(PAGE_SIZE).ok_or(OutOfMemory)?;
        let mut object = Object::build(vm, size, DEVICE, None);
        // Code that finds a PTE reads the frame's descriptor, so the frames need descriptors.
        vm.describe_device(frames.start.0, frames.end.0);
        object.own.value = AtomicU64::new(frames.start.0);
        let number = MEMORY_TYPES.iter().position(|m| *m == memory).unwrap_or(MEMORY_TYPES.len());
        object.own.dirty = AtomicU64::new(number as u64);
        Ok(ObjectRef { object: vm.object_memory().objects.alloc(vm, object)? })
    }

    /// Removes the device from all its mappings, when the device or its driver is removed. After the return no CPU
    /// accesses the device. Accesses by programs fail like accesses beyond the end of a file.
    pub fn revoke(&self) {
        if self.device().is_none() {
            return;
        }
        let pages = self.size.swap(0, Ordering::AcqRel).div_ceil(PAGE_SIZE);
        fence_full();
        let vm = self.vm();
        let mut passed = Pass::over(self.address());
        self.scan_flushing(0, pages, &mut passed, |b, from, owed| {
            let (pmap, range) = (b.pmap(), b.range());
            let mut at = range.start.max(from);
            while let Some(mut table) = pmap.next_table(vm, VirtRange { start: at, end: range.end }) {
                let span = table.span();
                let (mut va, end) = (at.max(span.start), span.end.min(range.end));
                if table.unflushed() {
                    owed.owe_range(VirtRange { start: va, end });
                }
                while let Some(present) = table.next_present(va, end) {
                    let _gone = table.remove(present, owed);
                    va = present + PAGE_SIZE;
                }
                drop(table);
                at = end;
                if owed.is_full() {
                    return Some(at);
                }
            }
            None
        });
        let _flushed = passed.end();
    }
}
