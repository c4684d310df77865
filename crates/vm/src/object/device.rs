//! Devices: objects whose pages are physical addresses, registers or a frame buffer, and not pages of the core's.
//!
//! A device has no page in its index, no pager, and nothing in any queue: nobody ever takes its frames away but its driver,
//! with [`ObjectRef::revoke`]. A leaf is made of the address and the memory type alone. Mappings are shared, so a fork shows
//! the same device, and unmapping is a matter of leaves.
//!
//! A private mapping is refused: the core would have to copy a page at the first store, and it reaches RAM only; what a device
//! answers to reads of a whole page is the driver's to know. (Linux copies. What programs do map privately there, `/dev/zero`,
//! is private memory and no device.)
//!
//! | | fault | revoke |
//! |---|---|---|
//! | **fault** | table page's lock | the size is read under the table page's lock, which fences; it is written before the scan: one sees the other |

use super::{DEVICE, Object, ObjectRef};
use crate::error::OutOfMemory;
use crate::machine::{Machine, Pmap, Table};
use crate::tlb::flush::Obligation;
use crate::types::{MemoryType, PAGE_SIZE, Pfn, PhysRange, VirtRange};
use quire_sync::atomic::{Ordering, fence_full};

/// What a device object shows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Device {
    /// The frame of its first page: RAM that its owner keeps from other use, or no RAM at all.
    pub first: Pfn,
    /// How accesses are cached.
    pub memory: MemoryType,
}

impl<M: Machine> Object<M> {
    /// What it shows, where it is a device.
    #[inline(always)]
    pub(crate) fn device(&self) -> Option<Device> {
        if self.flags.load(Ordering::Relaxed) & DEVICE == 0 { None } else { self.device }
    }
}

impl<M: Machine> ObjectRef<M> {
    /// The physical addresses of `frames`, reached as `memory`. It can be mapped shared only, and neither read nor written as a
    /// file.
    ///
    /// # Safety
    /// The frames are not used for anything else while the object is mapped (managed RAM: its owner keeps it until the object
    /// is revoked), nor mapped elsewhere with another memory type; and letting those who map the object store to them breaks
    /// nothing that the kernel relies on.
    pub unsafe fn device(
        vm: &'static crate::object::Objects<M>,
        frames: PhysRange,
        memory: MemoryType,
    ) -> Result<Self, OutOfMemory> {
        let pages = frames.end.0.saturating_sub(frames.start.0);
        let size = pages.checked_mul(PAGE_SIZE).ok_or(OutOfMemory)?;
        let mut object = Object::build(vm, size, DEVICE, None);
        // Code that meets a leaf looks at the frame's descriptor.
        vm.describe_device(frames.start.0, frames.end.0);
        object.device = Some(Device { first: frames.start, memory });
        Ok(ObjectRef { object: vm.object_memory().objects.alloc(vm, object)? })
    }

    /// The device is gone, or its driver is: takes it away from everybody who maps it. When it returns no CPU reaches it, and
    /// accesses end as beyond the end of a file.
    pub fn revoke(&self) {
        if self.device().is_none() {
            return;
        }
        let pages = self.size.swap(0, Ordering::AcqRel).div_ceil(PAGE_SIZE);
        fence_full();
        let vm = self.vm();
        self.scan(0, pages, |b| {
            let (pmap, range) = (b.pmap(), b.range());
            let mut owed = Obligation::new(vm, pmap).pruning();
            let mut at = range.start;
            while let Some(mut table) = pmap.next_table(vm, VirtRange { start: at, end: range.end }) {
                let span = table.span();
                let (mut va, end) = (at.max(span.start), span.end.min(range.end));
                if table.unflushed() {
                    owed.owe_range(VirtRange { start: va, end });
                }
                while let Some(present) = table.next_present(va, end) {
                    let _gone = table.remove(present, &mut owed);
                    va = present + PAGE_SIZE;
                }
                drop(table);
                at = end;
                if owed.is_full() {
                    let _part = core::mem::replace(&mut owed, Obligation::new(vm, pmap).pruning()).discharge();
                }
            }
            let _flushed = owed.discharge();
        });
    }
}
