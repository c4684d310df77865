//! Queries of a space's pages, for `smaps` and `pagemap` of Linux. They take no lock of the map, so an answer may be
//! outdated when it is returned.

use crate::machine::{Leaf, Machine, Pmap, Table};
use crate::map::arena::arenas::Changed;
use crate::map::entry::Entry;
use crate::map::entry::piece::layers;
use crate::map::maps::Maps;
use crate::map::space::Space;
use crate::object::index::Slot;
use crate::types::{PAGE_SIZE, Pfn, VirtRange};

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
fn page_of<M: Machine>(vm: &'static Maps<M>, entry: &Entry<M>, leaf: Leaf) -> Option<PageInfo> {
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
            for (depth, (layer, object, key)) in
                layers(entry.front()).filter_map(|b| b.layer(va).map(|(object, key)| (b, object, key))).enumerate()
            {
                let front = depth == 0 && core::ptr::eq(layer, entry.front());
                if zero_marker && object.is_private() {
                    continue;
                }
                match object.index().get(key, &pin) {
                    Slot::Empty | Slot::Reserved => {}
                    Slot::ZeroMarker => zero_marker = true,
                    there => {
                        found = Some((there, object.is_private(), front || object.is_exclusive()));
                        break;
                    }
                }
            }
            let (slot, private, own) = found?;
            let alone = private && own;
            return match slot {
                Slot::Page(pfn) => {
                    let mapped = leaf.is_some_and(|leaf| leaf.pfn == pfn);
                    let dirty = vm.page(pfn).state().dirty();
                    let accessed = mapped && leaf.is_some_and(|leaf| leaf.accessed);
                    let place = PagePlace::Frame(pfn);
                    let shown = PageInfo { place, mapped, shared: !private, alone, dirty, accessed };
                    (private || mapped).then_some(shown)
                }
                Slot::Swap(_) => {
                    let place = PagePlace::Swap;
                    Some(PageInfo { place, mapped: false, shared: !private, alone, dirty: true, accessed: false })
                }
                _ => None,
            };
        }
    }

    /// Calls `f` with each page that a leaf in `range` maps, and its address, until `f` returns false. Each table page and
    /// each entry is searched once, so a page costs a look at its leaf and its descriptor. A device's frames are left out,
    /// and so is the frame of zeroes.
    ///
    /// `f` runs under the lock of a table page: it must not sleep, nor look at this space.
    pub fn each_page(&self, range: VirtRange, f: &mut dyn FnMut(u64, &PageInfo) -> bool) {
        let vm = self.vm();
        let mut at = range.start;
        while at < range.end {
            let pin = vm.epoch().pin();
            let Some(table) = self.pmap().next_table(vm, VirtRange { start: at, end: range.end }) else { return };
            let (span, mut from) = (table.span(), at.max(table.span().start));
            let to = range.end.min(span.end);
            while let Some(first) = table.next_present(from, to) {
                let Some(entry) = self.lookup(first, &pin) else {
                    // The entry is being replaced, and its leaves are about to go.
                    from = first + PAGE_SIZE;
                    continue;
                };
                from = entry.range().end.min(to);
                let mut next = first;
                while let Some(va) = table.next_present(next, from) {
                    next = va + PAGE_SIZE;
                    if let Some(info) = table.get(va).and_then(|leaf| page_of(vm, entry, leaf))
                        && !f(va, &info)
                    {
                        return;
                    }
                }
            }
            at = span.end;
        }
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
            let (mut from, to) = (at.max(span.start), range.end.min(span.end));
            if from == span.start && to == span.end && !table.shows_zeroes() {
                leaves += u64::from(table.live());
            } else {
                while let Some(present) = table.next_present(from, to) {
                    leaves += u64::from(table.get(present).is_some_and(|leaf| leaf.pfn != zero));
                    from = present + PAGE_SIZE;
                }
            }
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
                let looked = pages.filter_map(|va| Some((va, space.page_at(va).filter(|page| page.mapped)?)));
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
