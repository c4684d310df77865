//! The resident private pages that an address space shows, with a leaf or without one.
//!
//! A fork copies no leaf, so the page tables of a child do not show the memory that it has from its parent. Page tables
//! of an idle space may be dropped. The queries here find such pages in the objects of the chains, through the bitmaps
//! of their indexes. They touch no page. A layer costs the same for 64 pages as for one.
//!
//! They take no lock of the map, so an answer may be outdated when it is returned.

use crate::cow::last_sharer::is_shown_to_others;
use crate::machine::{Machine, Pmap, Table};
use crate::map::entry::piece::layers;
use crate::map::entry::{Entry, Flags};
use crate::map::space::Space;
use crate::map::space::pages::{PageInfo, PagePlace, page_of};
use crate::object::Object;
use crate::object::backing::Backing;
use crate::object::index::Slot;
use crate::phys::page::Page;
use crate::types::{PAGE_SHIFT, PAGE_SIZE, VirtRange};
use core::ops::ControlFlow;
use quire_sync::atomic::Ordering;
use quire_sync::epoch::Pinned;

/// The space is a child of a fork. Pages of layers behind a front may lack a leaf.
pub(super) const CHILD: u8 = 1;
/// Any private page may lack a leaf: page tables were dropped, or layers of a child were merged.
pub(super) const ANY: u8 = 2;
/// In a child: the count of the page tables ([`Pmap::counted_pages`]) is that of all resident pages. It was made so by
/// a query. A fault that maps a page that was there does not change it. A removal of leaves ends this, because the
/// pages without leaves in its range went too.
const KNOWN: u8 = 4;

/// Entries that a query looks at under one pin.
const STEPS: usize = 256;
/// Pages of a window: one for each bit of a word. A window begins at a multiple of its size, so it lies in one table
/// page.
const WINDOW: u64 = 64;
const WINDOW_BYTES: u64 = WINDOW * PAGE_SIZE;
const _: () = assert!(WINDOW == u64::BITS as u64);

/// The private layers of an entry, from the front on.
fn private_layers<M: Machine>(entry: &Entry<M>) -> impl Iterator<Item = (&Backing<M>, &Object<M>)> {
    layers(entry.front()).filter_map(|b| Some((b, b.object().filter(|o| o.is_private())?)))
}

/// Whether `b` is the front of `entry`, and no other entry has that front.
fn is_own_front<M: Machine>(entry: &Entry<M>, b: &Backing<M>) -> bool {
    core::ptr::eq(b, entry.front()) && !entry.flags().contains(Flags::NEEDS_FRONT)
}

/// Whether only the chain of `entry` has pages of `object`, its layer `b`.
pub(super) fn is_own<M: Machine>(entry: &Entry<M>, b: &Backing<M>, object: &Object<M>) -> bool {
    is_own_front(entry, b) || object.is_exclusive()
}

/// Whether private pages of `entry` may lack a leaf in a space with these flags.
fn may_lack_leaves<M: Machine>(entry: &Entry<M>, flags: u8) -> bool {
    private_layers(entry).any(|(b, _)| flags & ANY != 0 || flags != 0 && !is_own_front(entry, b))
}

/// Whether only this space sees `page`, which the layer `b` of `entry` shows: page `key` of the private `object`.
pub(super) fn is_alone<M: Machine>(
    entry: &Entry<M>,
    b: &Backing<M>,
    object: &Object<M>,
    key: u64,
    page: &Page,
    pin: &Pinned<'_>,
) -> bool {
    is_own(entry, b, object) || !is_shown_to_others(object, key, page, b, pin)
}

/// Whether a page that is not mapped, or that another space may see, can be among the pages of `entry`. If not, its
/// leaves show all that a query asks.
fn is_shared_or_unmapped<M: Machine>(space: &Space<M>, entry: &Entry<M>) -> bool {
    may_lack_leaves(entry, space.lacks_leaves.load(Ordering::Relaxed))
        || private_layers(entry).any(|(b, object)| !is_own(entry, b, object))
}

/// The resident private pages that `entry` shows in `window`, which has [`WINDOW`] pages at most: a bit for each.
pub(super) fn shown_in<M: Machine>(entry: &Entry<M>, window: VirtRange, pin: &Pinned<'_>) -> u64 {
    let place = |va: u64| (va - window.start) >> PAGE_SHIFT;
    let mut open = u64::MAX >> (WINDOW - place(window.end));
    let mut shown = 0;
    for (b, object) in private_layers(entry) {
        let Some(part) = b.range().intersect(&window).filter(|part| !part.is_empty()) else { continue };
        let skipped = place(part.start);
        let wanted = (open >> skipped) & (u64::MAX >> (WINDOW - (part.bytes() >> PAGE_SHIFT)));
        let (filled, pages) = object.index().filled_of(b.key(part.start), wanted, pin);
        // A slot with a swapped page, a zero marker or a page that is being made hides the layers behind.
        open &= !(filled << skipped);
        shown |= pages << skipped;
        if open == 0 {
            break;
        }
    }
    shown
}

/// The address of the first filled slot of a private layer of `entry` in `range`.
fn first_filled<M: Machine>(entry: &Entry<M>, range: VirtRange, pin: &Pinned<'_>) -> Option<u64> {
    private_layers(entry)
        .filter_map(|(b, object)| {
            let part = b.range().intersect(&range).filter(|part| !part.is_empty())?;
            let first = b.key(part.start);
            let (key, _) = object.index().first(first, first + (part.bytes() >> PAGE_SHIFT), pin)?;
            Some(b.va(key))
        })
        .min()
}

/// The window over `va`, as far as it lies in `range`.
pub(super) fn window_at(va: u64, range: VirtRange) -> VirtRange {
    let start = va & !(WINDOW_BYTES - 1);
    VirtRange { start: start.max(range.start), end: range.end.min(start.saturating_add(WINDOW_BYTES)) }
}

/// The private page that `entry` shows at `va`, if it is resident.
pub(super) fn private_page<M: Machine>(entry: &Entry<M>, va: u64, pin: &Pinned<'_>) -> Option<PageInfo> {
    for (b, object) in private_layers(entry) {
        if !b.range().contains(va) {
            continue;
        }
        let key = b.key(va);
        match object.index().get(key, pin) {
            Slot::Empty => {}
            Slot::Page(pfn) => {
                let page = object.vm().page(pfn);
                let alone = is_alone(entry, b, object, key, page, pin);
                let (dirty, place) = (page.state().dirty(), PagePlace::Frame(pfn));
                return Some(PageInfo { place, mapped: false, shared: false, alone, dirty, accessed: false });
            }
            _ => return None,
        }
    }
    None
}

impl<M: Machine> Space<M> {
    /// The number of resident pages. Private pages count also where a fork did not copy their leaf, or a drop of tables
    /// removed it.
    pub(super) fn resident_pages(&self) -> u64 {
        self.with_unmapped(self.pmap().resident_pages(self.vm()))
    }

    /// As [`resident_pages`](Self::resident_pages), with the number of pages that leaves map.
    pub(super) fn with_unmapped(&self, mapped: u64) -> u64 {
        let flags = self.lacks_leaves.load(Ordering::Relaxed);
        if flags == 0 {
            return mapped;
        }
        // A page that returns from swap is mapped like a page that was there, but the count has lost it.
        let counts = flags & ANY == 0 && self.vm().swap().free() == self.vm().swap().total();
        if counts
            && flags & KNOWN != 0
            && let Some(counted) = self.pmap().counted_pages(self.vm())
        {
            return counted;
        }
        // A removal during the walk clears the flag again.
        self.lacks_leaves.fetch_or(KNOWN, Ordering::Relaxed);
        let all = mapped + self.unmapped_in(M::Pmap::USER);
        if counts {
            self.pmap().recount(self.vm(), all);
        }
        all
    }

    /// Whether any private page may lack a leaf, because page tables were dropped or layers of a child were merged.
    pub(in crate::map) fn lost_leaves(&self) -> bool {
        self.lacks_leaves.load(Ordering::Relaxed) & ANY != 0
    }

    /// Called before leaves are removed and pages may go.
    #[inline]
    pub(in crate::map) fn note_removal(&self) {
        if self.lacks_leaves.load(Ordering::Relaxed) & KNOWN != 0 {
            self.lacks_leaves.fetch_and(!KNOWN, Ordering::Relaxed);
        }
    }

    /// Called before layers of the space may be merged. Then a front may have pages that lack a leaf.
    #[inline]
    pub(crate) fn note_merge(&self) {
        if self.lacks_leaves.load(Ordering::Relaxed) != 0 {
            self.lacks_leaves.fetch_or(ANY, Ordering::Relaxed);
        }
    }

    /// The number of resident private pages in `range` that have no leaf because of a fork or a drop of page tables. An
    /// entry that cannot have such pages costs a step of the tree.
    pub(in crate::map) fn unmapped_in(&self, range: VirtRange) -> u64 {
        let flags = self.lacks_leaves.load(Ordering::Relaxed);
        let mut unmapped = 0;
        for arena in self.arenas.all().filter(|_| flags != 0) {
            let mut at = range.start;
            while at < range.end {
                let pin = self.vm().epoch().pin();
                let mut next = range.end;
                for (n, entry) in arena.walk(at, &pin).enumerate() {
                    let Some(part) = entry.range().intersect(&VirtRange { start: at, end: range.end }) else { break };
                    if n == STEPS {
                        next = part.start;
                        break;
                    }
                    if may_lack_leaves(entry, flags) {
                        next = self.unmapped_of(entry, part, &mut unmapped, &pin);
                        break;
                    }
                }
                at = next;
            }
        }
        unmapped
    }

    /// The number of leaves in `range`, a part of mappings of files, that map private copies.
    pub fn mapped_copies_in(&self, range: VirtRange) -> u64 {
        let (mut at, mut copies) = (range.start, 0);
        while at < range.end {
            let pin = self.vm().epoch().pin();
            let rest = VirtRange { start: at, end: range.end };
            let Some(entry) = self.arenas.next_in(rest, &pin) else { break };
            let Some(part) = entry.range().intersect(&rest) else { break };
            at = part.end;
            if let Some(first) = first_filled(entry, part, &pin) {
                let window = window_at(first, part);
                at = window.end;
                copies += u64::from((shown_in(entry, window, &pin) & self.mapped_in(window)).count_ones());
            }
        }
        copies
    }

    /// Adds the pages of `entry` in `part` that have no leaf to `unmapped`, for some windows. Returns the address at
    /// which to continue.
    fn unmapped_of(&self, entry: &Entry<M>, part: VirtRange, unmapped: &mut u64, pin: &Pinned<'_>) -> u64 {
        /// Windows under one pin.
        const STEP: usize = 64;
        // In a mapping of a file a leaf may show a page of the file.
        let of_file = entry.flags().contains(Flags::FILE);
        let (mut at, mut shown) = (part.start, 0);
        for _ in 0..STEP {
            let Some(first) = first_filled(entry, VirtRange { start: at, end: part.end }, pin) else {
                at = part.end;
                break;
            };
            let window = window_at(first, VirtRange { start: at, end: part.end });
            let there = shown_in(entry, window, pin);
            shown += u64::from(there.count_ones());
            if of_file {
                shown -= u64::from((there & self.mapped_in(window)).count_ones());
            }
            at = window.end;
            if at == part.end {
                break;
            }
        }
        let leaves = if of_file { 0 } else { self.leaves_in(VirtRange { start: part.start, end: at }) };
        *unmapped += u64::saturating_sub(shown, leaves);
        at
    }

    /// The pages of `window` that have a leaf: a bit for each.
    fn mapped_in(&self, window: VirtRange) -> u64 {
        let Some(table) = self.pmap().next_table(self.vm(), window) else { return 0 };
        let (mut at, mut mapped) = (window.start, 0);
        while let Some(va) = table.next_present(at, window.end) {
            mapped |= 1 << ((va - window.start) >> PAGE_SHIFT);
            at = va + PAGE_SIZE;
        }
        mapped
    }

    /// Calls `f` with each resident page in `range`, and its address, until `f` returns false. Private pages without a
    /// leaf are included, as [`unmapped_in`](Self::unmapped_in) counts them. Among up to 64 pages, pages of a file come
    /// first. A device's frames are left out, and so is the frame of zeroes. `f` must not sleep, nor look at this
    /// space.
    pub fn each_page(&self, range: VirtRange, f: &mut dyn FnMut(u64, &PageInfo) -> bool) {
        let mut at = range.start;
        while at < range.end {
            let pin = self.vm().epoch().pin();
            let rest = VirtRange { start: at, end: range.end };
            let Some(entry) = self.arenas.next_in(rest, &pin) else { return };
            let Some(part) = entry.range().intersect(&rest) else { return };
            let next = if is_shared_or_unmapped(self, entry) {
                self.each_of_window(entry, part, f, &pin)
            } else {
                self.each_leaf(entry, part, f, &pin)
            };
            let ControlFlow::Continue(next) = next else { return };
            at = next;
        }
    }

    /// Calls `f` with the pages of `entry` in the first window of `part` that has any. Returns the address after it.
    fn each_of_window(
        &self,
        entry: &Entry<M>,
        part: VirtRange,
        f: &mut dyn FnMut(u64, &PageInfo) -> bool,
        pin: &Pinned<'_>,
    ) -> ControlFlow<(), u64> {
        let first = [first_filled(entry, part, pin), self.next_leaf(part)].into_iter().flatten().min();
        let Some(first) = first else { return ControlFlow::Continue(part.end) };
        let window = window_at(first, part);
        let shown = shown_in(entry, window, pin);
        // The table page's lock is released before `f` is called with private pages. The search for other sharers of a
        // page takes locks that come before that lock.
        let (mut mapped, mut accessed) = (0u64, 0u64);
        if let Some(table) = self.pmap().next_table(self.vm(), window) {
            let mut at = window.start;
            while let Some(va) = table.next_present(at, window.end) {
                at = va + PAGE_SIZE;
                let bit = 1 << ((va - window.start) >> PAGE_SHIFT);
                let Some(leaf) = table.get(va) else { continue };
                if shown & bit != 0 {
                    mapped |= bit;
                    accessed |= if leaf.accessed { bit } else { 0 };
                } else if page_of(self.vm(), entry, leaf).is_some_and(|page| !f(va, &page)) {
                    return ControlFlow::Break(());
                }
            }
        }
        let mut rest = shown;
        while rest != 0 {
            let n = rest.trailing_zeros();
            rest &= rest - 1;
            let va = window.start + u64::from(n) * PAGE_SIZE;
            let Some(page) = private_page(entry, va, pin) else { continue };
            let page = PageInfo { mapped: mapped & 1 << n != 0, accessed: accessed & 1 << n != 0, ..page };
            if !f(va, &page) {
                return ControlFlow::Break(());
            }
        }
        ControlFlow::Continue(window.end)
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;
