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
use crate::fault::{At, FaultKind, Stop};
use crate::machine::{Enter, Machine, Pmap, Table};
use crate::tlb::flush::Obligation;
use crate::types::{MemoryType, PAGE_SIZE, Pfn, PhysRange, VirtRange};
use quire_sync::atomic::{Ordering, fence_full};
use quire_sync::epoch::Pinned;

/// Pages that a fault maps at once, an aligned window: a driver that touches one register touches its neighbours.
const AROUND: u64 = 16;

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
        vm: &'static crate::Vm<M>,
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

impl<'e, M: Machine> At<'e, M> {
    /// Maps the device's page at the address, and its neighbours.
    pub(crate) fn map_device(
        &self,
        object: &Object<M>,
        device: Device,
        pin: &Pinned<'_>,
    ) -> Result<FaultKind, Stop<M>> {
        let front = self.entry.front();
        let mut table = self.table(pin)?;
        let end = object.end();
        if front.key(self.va) >= end {
            return Err(Stop::Again);
        }
        let needs = self.access.needs();
        let kind = match table.get(self.va) {
            Some(leaf) if leaf.prot.contains(needs) => FaultKind::Spurious,
            Some(_) => FaultKind::Reuse,
            None => FaultKind::Resident,
        };
        let start = self.va & !(AROUND * PAGE_SIZE - 1);
        let window = VirtRange { start, end: start + AROUND * PAGE_SIZE };
        let window = window.intersect(&self.entry.range()).and_then(|w| w.intersect(&table.span()));
        let window = window.unwrap_or(VirtRange { start: self.va, end: self.va + PAGE_SIZE });
        for va in (window.start..window.end).step_by(PAGE_SIZE as usize) {
            let key = front.key(va);
            if key < end && (va == self.va || table.get(va).is_none()) {
                let pfn = Pfn(device.first.0 + key);
                table.enter(va, Enter { pfn, prot: self.entry.prot(), memory: device.memory });
            }
        }
        Ok(kind)
    }
}
