//! Changes of an object's size. If it shrinks, pages beyond the new end are removed from the object and from every
//! mapping.
//!
//! # Copies
//! Private mappings have copies of a file's pages in layers in front of the file. Copies beyond the new end are removed
//! too, as on Linux. Otherwise they would waste memory that no program can reach, and reappear if the file grew again.
//! In all chains that share a layer with copies, the file is at the same offset behind it. So the range of keys that
//! one chain gives for a layer holds for every chain.
//!
//! This list names concurrent operations, and the lock or rule that orders each against the operation in bold:
//!
//! - **truncate**
//!   - fault that copies a page beyond the end: it inserts the copy, fences, and reads the size. The truncation writes
//!     the size, fences, and looks for pages. So one of the two removes the copy
//!   - merge of layers that moves a copy: the new slot is filled before the old one is emptied. The search finds a copy
//!     that moves towards the front, because the search also goes from the back to the front. For a move back, the
//!     mover inserts, fences and checks the size, as a fault does (mutant
//!     [`Mutant::MovesCutOff`](crate::mutant::Mutant::MovesCutOff))
//!   - fork, clip (a split of an entry): the lock of the mapping list's shard; the search finds the old backing or the
//!     new one

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
    /// Changes the size, in bytes. A smaller size removes the pages beyond the end from the object and from every
    /// mapping, and private mappings' copies of them. It also zeroes the rest of the last page. The caller serialises
    /// size changes of one object (the file's own lock). May sleep. The size of a device does not change here
    /// ([`ObjectRef::revoke`]).
    pub fn set_size(&self, bytes: u64) {
        if self.device().is_some() {
            return;
        }
        let old = self.size();
        if bytes > old && !old.is_multiple_of(PAGE_SIZE) {
            // Programs may have stored bytes beyond the old end through mappings. These bytes must not become part of
            // the file.
            read_write::zero_tail(self, old, &mut MaySleep::here());
        }
        self.size.store(bytes, Ordering::Release);
        if bytes < old {
            // Pairs with a fault, which inserts a busy page, fences, and reads the size.
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

/// The most layers that one search collects, under the lock of a shard of the mapping list.
const LAYERS: usize = 16;

/// Layers with copies of removed pages, kept alive while no lock is held, and the keys of the copies.
struct Copies<M: Machine> {
    layers: [Option<(KeptObject<M>, Range<u64>)>; LAYERS],
    len: usize,
}

impl<M: Machine> Copies<M> {
    /// Adds the layers in front of `b`, a backing of the file, that have copies of pages in `gone`. Returns `Break`
    /// when the list is full.
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

/// Removes private mappings' copies of the pages `gone` of `file`. The file's size is below these pages now.
fn drop_copies<M: Machine>(file: &Object<M>, gone: Range<u64>, may: &mut MaySleep) {
    // The search goes from the file to the front, so it finds copies that move towards the front during the search. A
    // copy beyond the file's end is not moved back (`cow/collapse.rs`).
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
