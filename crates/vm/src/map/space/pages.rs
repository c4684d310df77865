//! Queries of a space's pages, for `smaps` and `pagemap` of Linux. They take no lock of the map, so an answer may be
//! outdated when it is returned.

use crate::machine::{Leaf, Machine, Pmap, Table};
use crate::map::arena::arenas::Changed;
use crate::map::entry::Entry;
use crate::map::entry::piece::layers;
use crate::map::maps::Maps;
use crate::map::space::Space;
use crate::map::space::shown::{is_alone, is_own};
use crate::object::index::Slot;
use crate::types::{PAGE_SIZE, Pfn, VirtRange};
use core::ops::ControlFlow;
use quire_sync::epoch::Pinned;

/// A page at an address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PageInfo {
    /// The place of the page.
    pub place: PagePlace,
    /// A leaf of this space maps the page.
    pub mapped: bool,
    /// The page belongs to a file or to shared memory.
    pub shared: bool,
    /// Only this space can see the page.
    pub alone: bool,
    /// The page has stores that were not written to its pager.
    pub dirty: bool,
    /// The leaf's access bit is set: a CPU accessed the page since pageout last cleared the bit.
    pub accessed: bool,
}

/// The place of a page's content.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PagePlace {
    /// In a frame.
    Frame(Pfn),
    /// In swap.
    Swap,
}

/// The page that `leaf` maps, if it is one of the chain of `entry`. The table page with the leaf is locked, which keeps
/// the page.
pub(super) fn page_of<M: Machine>(vm: &'static Maps<M>, entry: &Entry<M>, leaf: Leaf) -> Option<PageInfo> {
    let page = vm.page_of_leaf(leaf.pfn)?;
    let mut all = layers(entry.front()).filter_map(|b| b.object()).enumerate();
    let (depth, object) = all.find(|(_, object)| object.address() == page.object())?;
    let private = object.is_private();
    let alone = private && ((depth == 0 && entry.front().object().is_some()) || object.is_exclusive());
    let dirty = page.state().dirty();
    let place = PagePlace::Frame(leaf.pfn);
    Some(PageInfo { place, mapped: true, shared: !private, alone, dirty, accessed: leaf.accessed })
}

impl<M: Machine> Space<M> {
    /// The page at `va`. `None` if there is no page. Also `None` if no leaf of this space maps the page, and it belongs
    /// to a file or to shared memory.
    pub fn page_at(&self, va: u64) -> Option<PageInfo> {
        let va = va & !(PAGE_SIZE - 1);
        if !M::Pmap::USER.contains(va) {
            return None;
        }
        let vm = self.vm();
        loop {
            let pin = vm.epoch().pin();
            let entry = match self.look(va, &pin) {
                Ok(found) => found?,
                Err(Changed) => continue,
            };
            let leaf = self
                .pmap()
                .next_table(vm, VirtRange { start: va, end: va + PAGE_SIZE })
                .and_then(|table| table.get(va));
            let mut zero_marker = false;
            let mut found = None;
            for (layer, object, key) in
                layers(entry.front()).filter_map(|b| b.layer(va).map(|(object, key)| (b, object, key)))
            {
                if zero_marker && object.is_private() {
                    continue;
                }
                match object.index().get(key, &pin) {
                    Slot::Empty | Slot::Reserved => {}
                    Slot::ZeroMarker => zero_marker = true,
                    there => {
                        found = Some((there, layer, object, key));
                        break;
                    }
                }
            }
            let (slot, layer, object, key) = found?;
            let private = object.is_private();
            return match slot {
                Slot::Page(pfn) => {
                    let mapped = leaf.is_some_and(|leaf| leaf.pfn == pfn);
                    let page = vm.page(pfn);
                    let alone = private && is_alone(entry, layer, object, key, page, &pin);
                    let dirty = page.state().dirty();
                    let accessed = mapped && leaf.is_some_and(|leaf| leaf.accessed);
                    let place = PagePlace::Frame(pfn);
                    let shown = PageInfo { place, mapped, shared: !private, alone, dirty, accessed };
                    (private || mapped).then_some(shown)
                }
                Slot::Swap(_) => {
                    let place = PagePlace::Swap;
                    let alone = private && is_own(entry, layer, object);
                    Some(PageInfo { place, mapped: false, shared: !private, alone, dirty: true, accessed: false })
                }
                _ => None,
            };
        }
    }

    /// Calls `f` with the pages that leaves in `part` of `entry` map, all in one table page, and their addresses.
    /// Returns the address at which to continue. A page costs a look at its leaf and its descriptor.
    ///
    /// `f` runs under the lock of the table page.
    pub(super) fn each_leaf(
        &self,
        entry: &Entry<M>,
        part: VirtRange,
        f: &mut dyn FnMut(u64, &PageInfo) -> bool,
        _pin: &Pinned<'_>,
    ) -> ControlFlow<(), u64> {
        let vm = self.vm();
        let Some(table) = self.pmap().next_table(vm, part) else { return ControlFlow::Continue(part.end) };
        let (mut next, to) = (part.start.max(table.span().start), part.end.min(table.span().end));
        while let Some(va) = table.next_present(next, to) {
            next = va + PAGE_SIZE;
            if let Some(info) = table.get(va).and_then(|leaf| page_of(vm, entry, leaf))
                && !f(va, &info)
            {
                return ControlFlow::Break(());
            }
        }
        ControlFlow::Continue(to)
    }

    /// The first address in `range` that has a leaf. The cost follows the table pages, not the addresses.
    pub fn next_leaf(&self, range: VirtRange) -> Option<u64> {
        let mut at = range.start;
        while at < range.end {
            let _pin = self.vm().epoch().pin();
            let table = self.pmap().next_table(self.vm(), VirtRange { start: at, end: range.end })?;
            let span = table.span();
            let found = table.next_present(at.max(span.start), range.end.min(span.end));
            if found.is_some() {
                return found;
            }
            at = span.end;
        }
        None
    }

    /// The number of leaves in `range`. A table page that lies wholly in `range` is not searched, because it has a
    /// count of its leaves.
    pub fn leaves_in(&self, range: VirtRange) -> u64 {
        let (mut at, mut leaves) = (range.start, 0);
        let zero = self.vm().zero_frame();
        while at < range.end {
            let _pin = self.vm().epoch().pin();
            let Some(table) = self.pmap().next_table(self.vm(), VirtRange { start: at, end: range.end }) else { break };
            let span = table.span();
            let (from, to) = (at.max(span.start), range.end.min(span.end));
            leaves += match from == span.start && to == span.end && !table.shows_zeroes() {
                true => u64::from(table.live()),
                false => table.count_in(VirtRange { start: from, end: to }, zero),
            };
            at = span.end;
        }
        leaves
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use crate::object::ObjectRef;
    use crate::testing::page;
    use crate::tests::{anonymous, load, range, show, store, system};

    #[test]
    fn a_walk_by_table_pages_shows_what_a_look_at_each_page_shows() {
        let m = system();
        let space = Space::new(m.vm).unwrap();
        let file = ObjectRef::anonymous(m.vm, 16).unwrap();
        anonymous(&space, 0, 100);
        show(&space, 100, 8, &file, true);
        show(&space, 108, 8, &file, false);
        [0, 1, 63, 64, 65, 99, 101, 109].into_iter().for_each(|n| store(&space, page(n), 1));
        [5, 101, 110].into_iter().for_each(|n| _ = load(&space, page(n)));
        let child = space.fork().unwrap();
        [1, 64, 109].into_iter().for_each(|n| store(&child, page(n), 2));
        [0, 63, 101, 108].into_iter().for_each(|n| _ = load(&child, page(n)));
        for space in [&space, &child] {
            for part in [range(0, 120), range(64, 1), range(3, 61), range(100, 10)] {
                let mut walked = Vec::new();
                space.each_page(part, &mut |va, info| {
                    walked.push((va, *info));
                    true
                });
                let pages = (part.start..part.end).step_by(PAGE_SIZE as usize);
                let looked = pages.filter_map(|va| Some((va, space.page_at(va)?)));
                walked.sort_by_key(|(va, _)| *va);
                assert_eq!(walked, looked.collect::<Vec<_>>());
            }
        }
        let mut calls = 0;
        space.each_page(range(0, 120), &mut |_, _| {
            calls += 1;
            calls < 3
        });
        assert_eq!(calls, 3);
    }
}
