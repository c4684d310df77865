//! Faults on mappings of devices. A leaf's frame is computed from the address, because no page exists.

use super::{Attempt, FaultContext};
use crate::machine::{Enter, Machine, Table};
use crate::object::{Device, Object};
use crate::stats::FaultKind;
use crate::types::{PAGE_SIZE, Pfn, VirtRange};
use quire_sync::epoch::Pinned;

/// Number of pages of the aligned window that a fault maps at once, because a driver that uses one register also uses
/// its neighbours.
const AROUND: u64 = 16;

impl<'e, M: Machine> FaultContext<'e, M> {
    /// Maps the device's frame at the address, and the neighbours in the window.
    pub(crate) fn map_device(
        &self,
        object: &Object<M>,
        device: Device,
        pin: &Pinned<'_>,
    ) -> Result<FaultKind, Attempt<M>> {
        let front = self.entry.front();
        let mut table = self.table(pin)?;
        let end = object.end();
        if front.key(self.va) >= end {
            return Err(Attempt::Again);
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
                table.enter(va, Enter { memory: device.memory, ..Enter::new(pfn, self.entry.prot()) });
            }
        }
        Ok(kind)
    }
}
