//! The checker of a map. It computes every invariant again: of the tree, the entries, their chains, and the page tables
//! that cache them.

use super::arena::Writer;
use super::entry::{Entry, Flags};
use super::space::Space;
use crate::check::Broken;
use crate::machine::{Leaf, Machine, Pmap, Table};
use crate::map::arena::covered::Covered;
use crate::map::entry::piece::layers;
use crate::map::space::query::shown;
use crate::object::backing::Backing;
use crate::object::index::Slot;
use crate::object::interval::Interval;
use crate::types::{PAGE_SIZE, Prot, VirtRange};
use core::ptr;
use quire_sync::epoch::Pinned;

impl<M: Machine> Drop for Writer<'_, M> {
    #[inline]
    fn drop(&mut self) {
        self.settle_commit();
        if self.space.vm().check_level() != crate::check::Level::Never {
            self.check_at_release();
        }
    }
}

impl<M: Machine> Writer<'_, M> {
    #[cold]
    fn check_at_release(&mut self) {
        let vm = self.space.vm();
        let level = vm.check_level();
        // A thread that unwinds may release its locks in the middle of a change.
        if quire_sync::hooks::is_panicking() {
            return;
        }
        if self.kept.entries_due.is_due(level) {
            let result = self.check_entries();
            vm.checked(&mut self.kept.entries_due, result);
        }
        if self.kept.leaves_due.is_due(level) {
            let result = self.check_leaves(false);
            vm.checked(&mut self.kept.leaves_due, result);
        }
        vm.check_at_release();
    }

    /// Checks the tree, the entries and their chains. Returns the number of checked entries and layers.
    fn check_entries(&self) -> Result<u64, Broken> {
        self.check_tree().map_err(Broken::Tree)?;
        let (mut covered, mut cost) = (Covered::default(), 0);
        for (range, entry) in self.items() {
            let inside =
                range.start >= M::Pmap::USER.start && range.end <= M::Pmap::USER.end && self.space.has(self, range);
            if entry.range() != range || entry.is_stale() || !inside {
                return Err(Broken::Entry(range.start));
            }
            covered.come_entry(entry);
            cost += 1 + self.check_entry(entry)?;
        }
        if covered != self.arena().covered() { Err(Broken::Count) } else { Ok(cost) }
    }

    fn check_entry(&self, entry: &Entry<M>) -> Result<u64, Broken> {
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
        let mut depth = 0;
        let pin = self.space.vm().epoch().pin();
        let mut before: Option<&Backing<M>> = None;
        for layer in layers(front) {
            depth += 1;
            let linked_back = match (before, layer.in_front(&pin)) {
                (None, None) => true,
                (Some(before), Some(front)) => ptr::eq(before, front),
                _ => false,
            };
            if !linked_back {
                return Err(Broken::Chain(layer.range().start));
            }
            before = Some(layer);
            let file_before_the_end = layer.object().is_some_and(|o| !o.is_private()) && layer.behind().is_some();
            if !ptr::eq(layer.pmap(), self.space.pmap()) || file_before_the_end {
                return Err(Broken::Chain(layer.range().start));
            }
            if layer.is_wired() != a.flags.contains(Flags::WIRED) {
                return Err(Broken::Chain(layer.range().start));
            }
            if !is_listed(layer) {
                return Err(Broken::Unlisted(layer.range().start));
            }
        }
        Ok(depth)
    }

    /// Checks the page tables, and the slots of the chains' private layers. With `quiet`, no fault and no remover runs.
    /// Returns the number of checked items.
    fn check_leaves(&self, quiet: bool) -> Result<u64, Broken> {
        let (vm, pmap) = (self.space.vm(), self.space.pmap());
        let mut cost = pmap.check(vm, quiet)?;
        let VirtRange { start: mut at, end } = self.arena().bounds();
        while let Some(table) = pmap.next_table(vm, VirtRange { start: at, end }) {
            let span = table.span();
            at = span.end;
            if !self.space.has(self, span) {
                continue;
            }
            let pin = vm.epoch().pin();
            let mut va = span.start;
            while let Some(present) = table.next_present(va, span.end) {
                let leaf = table.get(present).ok_or(Broken::LeafFrame(present))?;
                self.check_leaf(present, leaf, table.is_store_protected(), quiet, &pin)?;
                cost += 1;
                va = present + PAGE_SIZE;
            }
        }
        for (_, entry) in self.items() {
            for layer in layers(entry.front()) {
                if let Some(object) = layer.object().filter(|o| o.is_private()) {
                    cost += object.check_pages(Interval::start(layer)..Interval::end(layer), quiet)?;
                }
            }
        }
        Ok(cost)
    }

    /// Checks one leaf, under the lock of its table page. In a store-protected table page, a leaf's right to store has
    /// no effect.
    fn check_leaf(
        &self,
        va: u64,
        leaf: Leaf,
        store_protected: bool,
        quiet: bool,
        pin: &Pinned<'_>,
    ) -> Result<(), Broken> {
        let entry = self.get(va).ok_or(Broken::LeafWithoutEntry(va))?;
        let stores = leaf.prot.contains(Prot::WRITE) && !store_protected;
        if stores && (!entry.prot().contains(Prot::WRITE) || entry.has_no_stores()) {
            return Err(Broken::LeafRights(va));
        }
        if let Some((object, key)) = entry.front().layer(va)
            && let Some(device) = object.device()
        {
            // A device that is being revoked has lost its pages, and its leaves are about to be cleared. So a leaf
            // beyond the device's end is an error only if the machine is quiet.
            let right = leaf.pfn.0 == device.first.0 + key && (key < object.end() || !quiet);
            return if right { Ok(()) } else { Err(Broken::LeafFrame(va)) };
        }
        if leaf.pfn == self.space.vm().zero_frame() {
            let hole = !entry.shared() && !leaf.prot.contains(Prot::WRITE);
            let right = hole && (!quiet || matches!(shown(entry, va, pin), Slot::Empty | Slot::ZeroMarker));
            return if right { Ok(()) } else { Err(Broken::LeafFrame(va)) };
        }
        let page = self.space.vm().page(leaf.pfn);
        let state = page.state();
        if state.busy() && !quiet {
            // Another CPU is removing the page, or moving it between layers.
            return Ok(());
        }
        if leaf.prot.contains(Prot::WRITE) && !state.dirty() {
            return Err(Broken::LeafClean(va));
        }
        let right = if quiet {
            shown(entry, va, pin) == Slot::Page(leaf.pfn)
        } else {
            // A fault may just have put another page in front of this one, but a layer of the chain must have this
            // page.
            let (object, key) = (page.object(), page.index());
            layers(entry.front()).filter_map(|b| b.layer(va)).any(|(o, k)| o.address() == object && k == key)
                || page.state() != state
        };
        if right { Ok(()) } else { Err(Broken::LeafFrame(va)) }
    }
}

impl<M: Machine> Space<M> {
    /// Checks the map, and keeps its writers out during the check. Faults may continue. If the caller says that the
    /// machine is `quiet`, no other CPU changes memory, and more is checked. The cost is O(entries + resident pages).
    pub fn check(&self, quiet: bool) -> Result<(), Broken> {
        // While the writer of the home arena (the space's first arena) is held, no arena opens or closes.
        let home = self.arenas.home().write(self);
        home.check_entries()?;
        home.check_leaves(quiet)?;
        for arena in self.arenas.all().skip(1) {
            let writer = arena.write(self);
            writer.check_entries()?;
            writer.check_leaves(quiet)?;
        }
        Ok(())
    }
}

fn is_listed<M: Machine>(layer: &Backing<M>) -> bool {
    layer.object().is_none_or(|object| object.shards().lists(layer))
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;
