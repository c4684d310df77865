//! A new size: pages beyond a nearer end are removed from the object and from every mapping.
//!
//! # Copies
//! Private mappings have copies of a file's pages in layers in front of it. Those beyond the new end are removed too,
//! wherever they are, as on Linux. They are memory that no program can reach, and would reappear if the file grew
//! again. All chains that show a layer in front of a file have the file behind it at the same place. So the window of
//! one chain holds for every chain that shows the layer.
//!
//! - **truncate**
//!   - fault copies, beyond the end: insert, fence, read the size; here: write the size, fence, look for pages: one of
//!     them removes the copy
//!   - collapse moves a copy: filled before it is emptied; forward: the search meets it, as it goes the same way; back:
//!     insert, fence, check the end, as a fault (mutant [`Mutant::MovesCutOff`](crate::mutant::Mutant::MovesCutOff))
//!   - fork, clip: the list's shard is locked; the old or the new backing is there

use crate::content::read_write;
use crate::content::remove;
use crate::machine::Machine;
use crate::object::backing::Backing;
use crate::object::index::KEYS;
use crate::object::interval::Interval;
use crate::object::kept::KeptObject;
use crate::object::{Object, ObjectRef};
use crate::rmap;
use crate::sleep::MaySleep;
use crate::types::{PAGE_SHIFT, PAGE_SIZE, VirtRange};
use core::ops::{ControlFlow, Range};
use quire_sync::atomic::{Ordering, fence_full};
use quire_sync::epoch::Pinned;

impl<M: Machine> ObjectRef<M> {
    /// Changes the size. Shrinking removes the pages beyond the end from the object and from every mapping, with
    /// private mappings' copies of them. It zeroes the rest of the last page. The caller serialises size changes of one
    /// object (the file's own lock). May sleep. A device keeps its size ([`ObjectRef::revoke`]).
    pub fn set_size(&self, bytes: u64) {
        if self.device().is_some() {
            return;
        }
        let old = self.size();
        if bytes > old && !old.is_multiple_of(PAGE_SIZE) {
            // Bytes that programs stored behind the end through mappings do not become the file's.
            read_write::zero_tail(self, old, &mut MaySleep::here());
        }
        self.size.store(bytes, Ordering::Release);
        if bytes < old {
            // A fault inserts a busy page, fences and reads the size. This writes the size, fences and looks.
            fence_full();
            let mut may = MaySleep::here();
            let gone = bytes.div_ceil(PAGE_SIZE)..KEYS;
            remove::remove_pages(self, gone.clone(), &mut may);
            drop_copies(self, gone.clone(), &mut may);
            let _flushed = rmap::unmap_shown(self, gone);
            if !bytes.is_multiple_of(PAGE_SIZE) {
                read_write::zero_tail(self, bytes, &mut may);
            }
        }
    }
}

/// Layers that are searched for at a time, under the lock of a shard of the list.
const LAYERS: usize = 16;

/// Layers with copies, kept while nothing else is held.
struct Copies<M: Machine> {
    layers: [Option<(KeptObject<M>, Range<u64>)>; LAYERS],
    len: usize,
}

impl<M: Machine> Copies<M> {
    /// Adds the layers in front of `b`, which shows a file, that have anything where `b` shows `gone`. Breaks when
    /// full.
    fn add_in_front(&mut self, b: &Backing<M>, gone: &Range<u64>, pin: &Pinned<'_>) -> ControlFlow<()> {
        let (from, to) = (gone.start.max(Interval::start(b)), gone.end.min(Interval::end(b)));
        if from >= to {
            return ControlFlow::Continue(());
        }
        let start = b.va(from);
        let part = VirtRange { start, end: start + ((to - from) << PAGE_SHIFT) };
        for layer in b.all_in_front(pin) {
            let Some(part) = layer.range().intersect(&part) else { continue };
            let Some(object) = layer.object().filter(|o| o.is_private()) else { continue };
            let first = layer.key(part.start);
            let keys = first..first + (part.len() >> PAGE_SHIFT);
            if object.index().first(keys.start, keys.end, pin).is_none() {
                continue;
            }
            let Some(kept) = KeptObject::new(object, pin) else { continue };
            self.layers[self.len] = Some((kept, keys));
            self.len += 1;
            if self.len == LAYERS {
                return ControlFlow::Break(());
            }
        }
        ControlFlow::Continue(())
    }
}

/// Removes private mappings' copies of the pages `gone` of `file`, which now ends before them.
fn drop_copies<M: Machine>(file: &Object<M>, gone: Range<u64>, may: &mut MaySleep) {
    // The search goes from behind to the front, so it meets copies that move forward meanwhile. A copy that moves back
    // stays in its slot if the file ends before it.
    loop {
        let mut copies = Copies { layers: [const { None }; LAYERS], len: 0 };
        {
            let pin = may.pin(file.vm().epoch());
            let _full = file.search(gone.start, gone.end, |b| copies.add_in_front(b, &gone, &pin));
        }
        if copies.len == 0 {
            return;
        }
        for (layer, keys) in copies.layers.into_iter().flatten() {
            remove::remove_pages(layer.object(), keys, may);
        }
    }
}
