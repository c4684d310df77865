//! Queries of a space's pages, for `smaps` and `pagemap` of Linux. They take no lock of the map, so an answer may be
//! outdated when it is returned.

use crate::machine::{Machine, Pmap, Table};
use crate::map::arena::arenas::Changed;
use crate::map::entry::piece::layers;
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
