//! The search for the last sharer of a page. A page is destroyed if every chain in front of it hides it by a page of
//! its own. The fault that makes the last copy finds this out.
//!
//! # How the last sharer is found
//! No count of sharers is kept, because every fork, exit, split and move of a mapping would change it for each page of
//! a range. The object's mapping list already has all backings that show a page. Each backing leads to the layers in
//! front of it ([`Backing::in_front`]). So each page caches *one* backing that still shows it, its **watch**. Only a
//! copy that hides the page from the watch searches for another backing. If the search finds none, the page is
//! destroyed. The search begins after the old watch in the list and goes round the list once. So each copy of a page
//! reads about two slots on average.
//!
//! # Long searches
//! A copy looks at [`LOOKS`] backings at most, and leaves the rest to the reaper ([`search_all`]). The copy then stores
//! a *void* watch: it counts as no watch, and only marks the place in the list where the next search continues. A
//! backing that hides the page hides it for good. So all searches for one page together look at each backing about
//! twice, and at backings that are linked later.
//!
//! An unlinking makes every watch doubtful, because a watch may name the unlinked backing. So a search first checks the
//! watch: it looks up the watch's address in the list, in O(log n). So the exit of a sharer that is not the watch
//! causes no long search.
//!
//! The first copy of a page only sets a mark in the page. So after a fork with one child, a copy writes one byte more,
//! and acquires no lock. A fault that is about to make the last copy moves the page into its front (the first layer of
//! its chain) instead ([`cow_move`](crate::fault::cow_move)). So a copy destroys a page only if two CPUs made its last
//! two copies at the same time.
//!
//! # Why a page that was found hidden stays hidden
//! The page in front of it in a chain may move between layers, be paged out, or be replaced by a zero marker. (The
//! marker says that the content is zeroes.) In each case a page or a marker is left that hides the page too. The one
//! exception is a page that a fault is making, which may be dropped while it is busy. So busy pages hide nothing here.
//!
//! A chain that replaces another (clip, protect, remap), or that a fork derives from it, has copies of the original
//! backings. Each copy is in the shard (a separately locked part) of the mapping list that has its original. It is
//! linked before the original is unlinked. A fork leaves the front out of the child's chain only if the front is empty.
//! So a page that was hidden in the old chain is hidden in the new one. A merge of layers may put another page into the
//! slot of the page that was searched for. The new page has another generation, by which the search recognises it.
//!
//! # Races
//! - two copies at the same time
//!   - order: each copy unbusies its new page (a full fence), then reads the mark and the watch (mutant
//!     [`Mutant::LookBeforeFill`])
//!   - outcome: the later copy sees both new pages
//! - a copy, and a search that chooses its chain as the watch
//!   - order: the search writes the watch, fences, and looks at that chain once more (mutant [`Mutant::NoSecondLook`])
//!   - outcome: the copy sees the watch, or the search sees the copy
//! - a copy, and the exit of the watch
//!   - order: the exit raises the count `unlinked`, then marks the object for the reaper
//!   - outcome: the copy ignores a watch with an older count; or the reaper sees the copy
//!
//! If a page is busy, the searched page stays, and the object is left to the [reaper](crate::cow::reaper). In case of
//! doubt a page is kept.
//!
//! # Pages in swap
//! Pages in swap are hidden and freed as resident ones are, without a read. A page that is paged out loses its mark and
//! its watch. Once it is read in again, the first copy searches ([`Page::suspect`]). The reaper, or a copy whose source
//! was just paged out, may search for the sharers of a page in swap. Then the whole list is searched, and once more
//! while the slot is held ([`Index::take`](crate::object::index::Index::take)). The second search is needed because a
//! slot has no generation, which would show that it has another page now. A long search is not repeated. Instead the
//! list's length shows that the slot cannot have another page.

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;

use crate::cow::found::FoundPage;
use crate::machine::Machine;
use crate::mutant::{Mutant, mutant};
use crate::object::backing::Backing;
use crate::object::batch::Batch;
use crate::object::index::{Slot, TakenSlot};
use crate::object::interval::{Tree, TreePlace};
use crate::object::{Object, Objects, Scan, Step};
use crate::paging::swap::SwapSlots;
use crate::phys::page::{Copied, Page};
use crate::rmap;
use crate::sleep::MaySleep;
use crate::stats::Event;
use core::ops::ControlFlow;
use quire_sync::atomic::{fence_after_rmw, fence_full};
use quire_sync::epoch::Pinned;

/// The most backings that one search for one page looks at under one pin. Longer searches are left to the reaper. The
/// models have lists below and above this number.
pub(crate) const LOOKS: u32 = if cfg!(any(loom, shuttle)) { 4 } else { 128 };

/// Whether the layers in front of a backing hide a page of it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Sight {
    /// One of the layers has a page, a page in swap, or a zero marker at the address.
    Hidden,
    /// No layer has a filled slot at the address.
    Shown,
    /// One of the layers has a busy page at the address. The page may be kept or dropped.
    Unsure,
}

/// Whether the layers in front of `b`, which covers `key`, hide page `key` of its object.
fn sight<M: Machine>(b: &Backing<M>, key: u64, pin: &Pinned<'_>) -> Sight {
    let va = b.va(key);
    let mut sight = Sight::Shown;
    let mut at = b.in_front(pin);
    while let Some(layer) = at {
        if let Some((object, key)) = layer.layer(va) {
            match object.index().get(key, pin) {
                Slot::Page(pfn) => {
                    let page = object.vm().page(pfn);
                    let state = page.state();
                    if (state.busy() && !mutant(Mutant::BusyHides)) || !state.valid() {
                        sight = Sight::Unsure;
                    } else if page.object() == object.address() && page.index() == key {
                        return Sight::Hidden;
                    }
                }
                Slot::Swap(_) | Slot::ZeroMarker => return Sight::Hidden,
                Slot::Reserved => sight = Sight::Unsure,
                Slot::Empty => {}
            }
        }
        at = layer.in_front(pin);
    }
    sight
}

/// Whether the layers in front of `b`, which covers `key`, hide page `key` of its object for good.
pub(crate) fn is_hidden<M: Machine>(b: &Backing<M>, key: u64, pin: &Pinned<'_>) -> bool {
    sight(b, key, pin) == Sight::Hidden
}

/// Called by a fault after it has put a copy of `source` in front of `source` and unbusied the copy. Destroys `source`
/// if no other chain sees it any more.
///
/// # Requires
/// No lock is held.
#[inline]
pub(crate) fn hid<M: Machine>(source: &FoundPage<'_, M>, pin: &Pinned<'_>) {
    let object = source.object;
    if !object.is_private() {
        return;
    }
    // An atomic read-modify-write unbusied the copy, so `fence_after_rmw` suffices.
    fence_after_rmw();
    if !is_watched_elsewhere(source, source.page.note_copy()) {
        search(object, source.key, source.page, Some(source.layer), pin);
    }
}

/// Whether no search is needed after `source.layer` ceased to show the page, because this was the page's first copy, or
/// another backing is its watch.
fn is_watched_elsewhere<M: Machine>(source: &FoundPage<'_, M>, copied: Copied) -> bool {
    match copied {
        Copied::First => true,
        Copied::Again => false,
        Copied::Watched(watch) => {
            let unlinked = source.object.shards().unlinked();
            // A watch is reliable only if no backing was unlinked since it was chosen.
            watch != Watch::new(source.layer, unlinked).0 && Watch(watch).is_of(unlinked)
        }
    }
}

/// Whether `source` was copied before, and a search finds no other chain that still sees it. If the search finds
/// another chain, the backing of that chain becomes the page's watch.
#[inline]
pub(crate) fn seems_last<M: Machine>(source: &FoundPage<'_, M>, pin: &Pinned<'_>) -> bool {
    let page = source.page;
    if !source.object.is_private() || is_watched_elsewhere(source, page.copied()) || !page.try_hold() {
        return false;
    }
    let state = page.state();
    let same = !state.busy() && state.generation() == source.state.generation();
    let last = same && !is_shown_elsewhere(source, pin);
    source.object.vm().unhold_page(page);
    last
}

/// Whether a chain other than `source`'s own sees the page or may see it. That chain's backing becomes the page's
/// watch. The caller has a hold on the page, or has it busy.
pub(crate) fn is_shown_elsewhere<M: Machine>(source: &FoundPage<'_, M>, pin: &Pinned<'_>) -> bool {
    let seen = find(source.object, source.key, source.page, Some(source.layer), true, pin);
    if matches!(seen, Seen::Unsure | Seen::Unfinished) {
        source.object.vm().reaper().flag(source.object);
    }
    seen != Seen::Nowhere
}

/// Whether a chain other than that of `b` may see `page`, which is `object`'s page `key`. For a query: changes nothing.
/// A page that was never copied is seen by all that show the object.
pub(crate) fn is_shown_to_others<M: Machine>(
    object: &Object<M>,
    key: u64,
    page: &Page,
    b: &Backing<M>,
    pin: &Pinned<'_>,
) -> bool {
    let mut look = |other: &Backing<M>| match core::ptr::eq(other, b) {
        true => ControlFlow::Continue(()),
        false => sees(sight(other, key, pin)),
    };
    page.copied() == Copied::First || look_at_some(object, Scan::new(key, key + 1, None), &mut look).0 != Seen::Nowhere
}

/// A page's watch: the address of a backing, and the number of backings that were unlinked from its object before the
/// watch was chosen. The address is only compared, never dereferenced. It may belong to another backing by now, which
/// costs one needless search.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Watch(u64);

impl Watch {
    const VERSION: u64 = (1 << 22) - 1;

    fn new<M: Machine>(b: &Backing<M>, unlinked: u64) -> Watch {
        Self::at(core::ptr::from_ref(b).addr(), unlinked)
    }

    /// A void watch: the address of a backing that hides the page. The next search begins after that backing.
    fn void(address: usize, unlinked: u64) -> Watch {
        Self::at(address, unlinked.wrapping_sub(1))
    }

    fn at(address: usize, unlinked: u64) -> Watch {
        // Backings are 64-byte aligned, and the lower 48 bits distinguish all addresses.
        Watch(((address as u64 & 0xffff_ffff_ffff) >> 6) << 22 | (unlinked & Self::VERSION))
    }

    /// The address of the backing. The upper 16 bits of an address equal its bit 47.
    fn address(self) -> usize {
        (((self.0 >> 22 << 22) as i64) >> 16) as usize
    }

    fn is<M: Machine>(self, b: &Backing<M>) -> bool {
        self.address() == core::ptr::from_ref(b).addr()
    }

    fn is_of(self, unlinked: u64) -> bool {
        self.0 & Self::VERSION == unlinked & Self::VERSION
    }
}

/// Finds a backing that shows `page`, which is `object`'s page `key`, and makes it the page's watch. Destroys the page
/// if no backing shows it. The search begins at the watch, or at `hider`, a backing that does not show the page any
/// more. A long search is left to the reaper.
pub(crate) fn search<M: Machine>(
    object: &Object<M>,
    key: u64,
    page: &'static Page,
    hider: Option<&Backing<M>>,
    pin: &Pinned<'_>,
) {
    if search_some(object, key, page, hider, pin).is_break() {
        object.vm().reaper().flag(object);
    }
}

/// Searches like [`search`], but returns `Break` if the search is not over. The caller then leaves it to
/// [`search_all`].
pub(crate) fn search_some<M: Machine>(
    object: &Object<M>,
    key: u64,
    page: &'static Page,
    hider: Option<&Backing<M>>,
    pin: &Pinned<'_>,
) -> ControlFlow<()> {
    let vm = object.vm();
    // The hold keeps the descriptor's identity while the watch is written into it.
    let held = page.try_hold();
    let state = page.state();
    let mut over = ControlFlow::Continue(());
    if held && state.valid() && page.object() == object.address() && page.index() == key {
        let seen = if state.busy() { Seen::Unsure } else { find(object, key, page, hider, false, pin) };
        match seen {
            // `Unsure` includes a busy page, which another CPU may be moving. A watch must not be written after a move.
            Seen::Unsure => vm.reaper().flag(object),
            Seen::Somewhere => {}
            Seen::Unfinished => over = ControlFlow::Break(()),
            Seen::Nowhere => destroy(object, key, page, state.generation(), pin),
        }
    } else {
        // Pageout may have evicted the page since it was found.
        match object.index().get(key, pin) {
            Slot::Swap(slot) => over = search_swapped(object, key, slot, pin),
            Slot::Reserved => vm.reaper().flag(object),
            _ => {}
        }
    }
    if held {
        vm.unhold_page(page);
    }
    over
}

/// Searches like [`search_some`], for the page at `object`'s `key`, which is in swap slot `slot`.
pub(crate) fn search_swapped<M: Machine>(object: &Object<M>, key: u64, slot: u64, pin: &Pinned<'_>) -> ControlFlow<()> {
    let seen = || look_at_some(object, Scan::new(key, key + 1, None), &mut |b| sees(sight(b, key, pin))).0;
    let mut shown = seen();
    if shown == Seen::Nowhere {
        let Some(taken) = object.index().take(key, Slot::Swap(slot), pin) else { return ControlFlow::Continue(()) };
        shown = seen();
        if shown == Seen::Nowhere {
            free_swapped(object, slot, taken);
        }
    }
    match shown {
        Seen::Unfinished => return ControlFlow::Break(()),
        Seen::Unsure => object.vm().reaper().flag(object),
        Seen::Somewhere | Seen::Nowhere => {}
    }
    ControlFlow::Continue(())
}

/// Frees a page in swap, and empties its index slot. No zero marker is needed there, because every chain hides also the
/// layers behind this one at the address.
fn free_swapped<M: Machine>(object: &Object<M>, slot: u64, taken: TakenSlot<'_, &'static Objects<M>>) {
    let vm = object.vm();
    taken.empty();
    vm.swap().release(SwapSlots { first: slot, len: 1 });
    vm.stats().count(Event::PageShadowed);
}

/// Searches like [`search_some`], but through the whole list. A pin lasts for [`LOOKS`] backings at most. The caller
/// has a reference to `object`. Returns an upper bound of the number of backings that it looked at.
pub(crate) fn search_all<M: Machine>(object: &Object<M>, key: u64, may: &mut MaySleep) -> u64 {
    let vm = object.vm();
    let slot = object.index().get(key, &may.pin(vm.epoch()));
    match slot {
        Slot::Page(pfn) => search_all_resident(object, key, vm.page(pfn), may),
        Slot::Swap(slot) => search_all_swapped(object, key, slot, may),
        _ => 0,
    }
}

/// Searches like [`search_all`], for the resident page `page`, if it is still at `key`.
fn search_all_resident<M: Machine>(object: &Object<M>, key: u64, page: &'static Page, may: &mut MaySleep) -> u64 {
    let vm = object.vm();
    // This call checks the page's watch first.
    let over = search_some(object, key, page, None, &may.pin(vm.epoch()));
    if over.is_continue() || !page.try_hold() {
        return LOOKS.into();
    }
    let mut looks = 0;
    let state = page.state();
    if state.valid() && !state.busy() && page.object() == object.address() && page.index() == key {
        let mut scan = Scan::new(key, key + 1, last_place(object, key, page));
        let seen = loop {
            let pin = may.pin(vm.epoch());
            let seen = go_on(object, &mut scan, &mut |b| look(object, b, key, page, &pin));
            looks += u64::from(LOOKS);
            match seen {
                Seen::Unfinished => {}
                Seen::Nowhere => {
                    destroy(object, key, page, state.generation(), &pin);
                    break seen;
                }
                _ => break seen,
            }
        };
        if seen == Seen::Unsure {
            vm.reaper().flag(object);
        }
    } else {
        vm.reaper().flag(object);
    }
    vm.unhold_page(page);
    looks
}

/// As [`search_all`], for a page in swap.
fn search_all_swapped<M: Machine>(object: &Object<M>, key: u64, slot: u64, may: &mut MaySleep) -> u64 {
    let vm = object.vm();
    let (unlinked, backings) = object.shards().unlinked_and_len();
    let mut scan = Scan::new(key, key + 1, None);
    let mut looks = 0;
    loop {
        let pin = may.pin(vm.epoch());
        let seen = go_on(object, &mut scan, &mut |b| sees(sight(b, key, &pin)));
        looks += u64::from(LOOKS);
        match seen {
            Seen::Unfinished => continue,
            Seen::Nowhere => {
                let Some(taken) = object.index().take(key, Slot::Swap(slot), &pin) else { break };
                // Only a merge of layers puts another page into the slot, and only while one backing alone shows the
                // object. If the list is longer than the number of unlinked backings, at least two backings showed the
                // object at any time since the search began.
                if object.shards().unlinked().wrapping_sub(unlinked).saturating_add(1) < backings {
                    free_swapped(object, slot, taken);
                } else {
                    drop(taken);
                    vm.reaper().flag(object);
                }
            }
            Seen::Unsure => vm.reaper().flag(object),
            Seen::Somewhere => {}
        }
        break;
    }
    looks
}

/// The result of a search.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Seen {
    /// A backing shows the page.
    Somewhere,
    /// All backings hide the page.
    Nowhere,
    /// A backing may show the page.
    Unsure,
    /// Not all backings were looked at.
    Unfinished,
}

/// Whether a search continues after it looked at one backing, or the search's result.
fn sees(sight: Sight) -> ControlFlow<Seen> {
    match sight {
        Sight::Hidden => ControlFlow::Continue(()),
        Sight::Shown => ControlFlow::Break(Seen::Somewhere),
        Sight::Unsure => ControlFlow::Break(Seen::Unsure),
    }
}

/// Continues a scan, for about [`LOOKS`] backings.
fn go_on<M: Machine>(
    object: &Object<M>,
    scan: &mut Scan,
    look: &mut impl FnMut(&Backing<M>) -> ControlFlow<Seen>,
) -> Seen {
    let end = scan.visits() + u64::from(LOOKS);
    while scan.visits() < end {
        match object.shards().step(scan, &mut *look) {
            Step::Found(seen) => return seen,
            Step::Over => return Seen::Nowhere,
            Step::More => {}
        }
    }
    Seen::Unfinished
}

/// Looks at about [`LOOKS`] backings, and then ends the scan. If the list has more backings, also returns the place of
/// the last backing that it looked at.
fn look_at_some<M: Machine>(
    object: &Object<M>,
    mut scan: Scan,
    look: &mut impl FnMut(&Backing<M>) -> ControlFlow<Seen>,
) -> (Seen, Option<TreePlace>) {
    let seen = go_on(object, &mut scan, look);
    if seen != Seen::Unfinished {
        return (seen, None);
    }
    let last = scan.last();
    object.shards().stop(scan);
    (seen, last)
}

/// Looks at one backing of the mapping list. The backing becomes the page's watch unless its chain hides the page.
fn look<M: Machine>(object: &Object<M>, b: &Backing<M>, key: u64, page: &Page, pin: &Pinned<'_>) -> ControlFlow<Seen> {
    let first = sight(b, key, pin);
    if first == Sight::Hidden {
        return ControlFlow::Continue(());
    }
    // The backing's shard of the list is locked, so the backing is not unlinked yet.
    page.watch(Watch::new(b, object.shards().unlinked()).0);
    fence_full();
    sees(if mutant(Mutant::NoSecondLook) { first } else { sight(b, key, pin) })
}

/// The place of the page's watch in the list, if the page has a watch.
fn last_place<M: Machine>(object: &Object<M>, key: u64, page: &Page) -> Option<TreePlace> {
    let Copied::Watched(watch) = page.copied() else { return None };
    object.shards().visit_at(key, Watch(watch).address(), |_| ControlFlow::<()>::Continue(())).1
}

/// Searches for a watch among [`LOOKS`] backings at most. With `others`, the backing `hider` is skipped.
///
/// Checks the present watch first, because it may still show the page, although other backings were unlinked since it
/// was chosen. Then the search begins after the watch's place and goes round the list once. If a search ends before it
/// has gone round the list, it stores a void watch, which marks the place that it has reached.
fn find<M: Machine>(
    object: &Object<M>,
    key: u64,
    page: &Page,
    hider: Option<&Backing<M>>,
    others: bool,
    pin: &Pinned<'_>,
) -> Seen {
    let mut look = |b: &Backing<M>| match hider {
        Some(h) if others && core::ptr::eq(h, b) => ControlFlow::Continue(()),
        _ => look(object, b, key, page, pin),
    };
    let mut from = hider.map(Tree::place);
    if let Copied::Watched(watch) = page.copied()
        && hider.is_none_or(|h| !Watch(watch).is(h))
    {
        let (seen, place) = object.shards().visit_at(key, Watch(watch).address(), look);
        if let ControlFlow::Break(seen) = seen {
            return seen;
        }
        from = place;
    }
    let (seen, last) = look_at_some(object, Scan::new(key, key + 1, from), &mut look);
    if let Some((_, address)) = last {
        page.watch(Watch::void(address, object.shards().unlinked()).0);
    }
    seen
}

/// Destroys a page that no chain shows. (No chain sees the page, so no leaf maps it: a copy is unbusied only after the
/// old translation is flushed. `rmap::unmap` is called nevertheless, and clears leaves that other CPUs are about to
/// clear.)
fn destroy<M: Machine>(object: &Object<M>, key: u64, page: &'static Page, generation: u64, pin: &Pinned<'_>) {
    let vm = object.vm();
    // `try_busy` succeeds only if the generation is unchanged. Then the page did not move, and is still hidden.
    if !page.try_busy(generation) {
        vm.reaper().flag(object);
        return;
    }
    let pfn = vm.pfn_of_page(page);
    let mut batch = Batch::new();
    batch.push(key, pfn);
    let _flushed = rmap::unmap(object, &batch);
    let cleared = object.index().clear(key, Slot::Page(pfn), pin);
    debug_assert!(cleared, "a busy page stays in its slot");
    vm.release_page(page);
    vm.stats().count(Event::PageShadowed);
}
