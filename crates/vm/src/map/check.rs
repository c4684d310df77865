//! Re-derives every invariant of a map: its tree, its entries, their chains, and what the page tables cache of them.

use super::entry::{Entry, Flags};
use super::piece::layers;
use super::space::Space;
use super::tree::TreeError;
use crate::backing::Backing;
use crate::index::Slot;
use crate::machine::{Machine, Pmap, Table};
use crate::types::{PAGE_SIZE, Prot, VirtRange};
use core::ptr;
use quire_sync::epoch::Pinned;

/// An invariant that does not hold, and the address at which that was seen.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Broken {
    /// The tree of entries.
    Tree(TreeError),
    /// An entry is stale though no writer is there, or its range is not the tree's.
    Entry(u64),
    /// An entry's rights contradict its kind.
    Rights(u64),
    /// A chain does not fit its entry: the front does not cover it, a layer is another space's, shared and private mixed.
    Chain(u64),
    /// A backing is not on its object's list.
    Unlisted(u64),
    /// The number of mapped bytes is wrong.
    Count,
    /// A leaf where no entry is.
    LeafWithoutEntry(u64),
    /// A leaf allows more than its entry.
    LeafRights(u64),
    /// A leaf maps another frame than the chain shows.
    LeafFrame(u64),
    /// A writable leaf of a clean page.
    LeafClean(u64),
}

impl<M: Machine> Space<M> {
    /// Checks the map, with its writers kept out. Faults may go on; so only what no fault can have under way is checked of
    /// page tables unless `quiet`, which says that there are none. In O(entries + residents).
    pub fn check(&self, quiet: bool) -> Result<(), Broken> {
        let writer = self.arena.write();
        writer.check_tree().map_err(Broken::Tree)?;
        let mut bytes = 0;
        for (range, entry) in writer.items() {
            if entry.range() != range || entry.is_stale() {
                return Err(Broken::Entry(range.start));
            }
            bytes += range.len();
            self.check_entry(entry)?;
        }
        if bytes != self.arena.mapped() {
            return Err(Broken::Count);
        }
        let mut at = 0;
        while let Some(table) = self.pmap().next_table(self.vm(), VirtRange { start: at, end: super::USER.end }) {
            let span = table.span();
            let pin = self.vm().epoch().pin();
            let mut va = span.start;
            while let Some(present) = table.next_present(va, span.end) {
                let leaf = table.get(present).ok_or(Broken::LeafFrame(present))?;
                let entry = writer.get(present).ok_or(Broken::LeafWithoutEntry(present))?;
                if !entry.prot().contains(leaf.prot & Prot::WRITE) {
                    return Err(Broken::LeafRights(present));
                }
                if leaf.prot.contains(Prot::WRITE) && !self.vm().page(leaf.pfn).state().dirty() {
                    return Err(Broken::LeafClean(present));
                }
                if quiet && shown(entry, present, &pin) != Slot::Page(leaf.pfn) {
                    return Err(Broken::LeafFrame(present));
                }
                va = present + PAGE_SIZE;
            }
            at = span.end;
        }
        Ok(())
    }

    fn check_entry(&self, entry: &Entry<M>) -> Result<(), Broken> {
        let (range, a, front) = (entry.range(), entry.attributes(), entry.front());
        let needs_front = a.flags.contains(Flags::NEEDS_FRONT);
        if !a.max_prot.contains(a.prot) || (needs_front && (a.prot.contains(Prot::WRITE) || entry.shared())) {
            return Err(Broken::Rights(range.start));
        }
        let covers = front.range().start <= range.start && front.range().end >= range.end;
        let kind = match front.object() {
            Some(o) if entry.shared() => !o.is_private() && front.behind().is_none(),
            Some(o) => o.is_private() || needs_front,
            None => !entry.shared() && !needs_front,
        };
        if !covers || !kind {
            return Err(Broken::Chain(range.start));
        }
        for layer in layers(front) {
            if !ptr::eq(layer.pmap(), self.pmap()) {
                return Err(Broken::Chain(layer.range().start));
            }
            let file_before_the_end = layer.object().is_some_and(|o| !o.is_private()) && layer.behind().is_some();
            if file_before_the_end {
                return Err(Broken::Chain(layer.range().start));
            }
            if !is_listed(layer) {
                return Err(Broken::Unlisted(layer.range().start));
            }
        }
        Ok(())
    }
}

/// What a fault at `va` would find.
fn shown<M: Machine>(entry: &Entry<M>, va: u64, pin: &Pinned<'_>) -> Slot {
    let mut cut = false;
    for (object, key) in layers(entry.front()).filter_map(|b| b.layer(va)) {
        if cut && object.is_private() {
            continue;
        }
        match object.index().get(key, pin) {
            Slot::Empty | Slot::Cover(_) => {}
            Slot::Cut => cut = true,
            there => return there,
        }
    }
    Slot::Empty
}

fn is_listed<M: Machine>(layer: &Backing<M>) -> bool {
    let Some(object) = layer.object() else { return true };
    let mut listed = false;
    object.parts().scan(layer.offset(), layer.offset() + 1, |b| listed |= ptr::eq(b, layer));
    listed
}
