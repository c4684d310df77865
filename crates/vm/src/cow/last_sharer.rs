//! Pages that no chain can see any more, because every chain in front of them has something of its own there. They are
//! found when the last copy is made, and destroyed.
//!
//! # How the last sharer is found
//! No count of sharers is kept: every fork, exit, clip and move would change it for each page of a window. The reverse
//! list already has the backings that show a page, whatever became of their mappings. Each backing knows the layers in
//! front of it ([`Backing::in_front`]). So each page caches *one* backing that still shows it, its **watch**. Only a
//! copy that hides the page from the watch searches for another. If there is none, the page is destroyed. The search
//! begins behind the old watch and comes round once, so that all copies of a page together read about two slots each.
//!
//! # Long searches
//! A copy looks at [`LOOKS`] backings at most, and the reaper does the rest ([`search_all`]). The copy leaves a *void*
//! watch: it counts as no watch, and the next search goes on at its place. A backing that was passed hides the page for
//! good. So all searches for one page together look at each backing about twice, and at those linked later.
//!
//! An unlinking makes each watch doubtful, because it may be of the backing that went. A search then asks the watch
//! before all others: it looks its address up in the list, in O(log n). So an exit of one sharer costs no search while
//! the watch is another.
//!
//! The first copy of a page only leaves a mark. So a fork with one child pays one byte a copy, and no lock. A fault
//! that is about to make the last copy moves the page into its front instead ([`cow_move`](crate::fault::cow_move)).
//! Copies destroy only pages whose last two copies were made at once.
//!
//! # Why a page that was found hidden stays hidden
//! The page in front of it in a chain may move forward or back between layers, be paged out, or be replaced by a zero
//! marker. Each of these leaves something that hides the page too. The one exception is a page that a fault is making,
//! which may be given up while it is busy. So busy pages hide nothing here.
//!
//! A chain that replaces another (clip, protect, remap), or that a fork makes of it, has copies of the same layers.
//! They are in the same shards of the lists, and are linked before the old ones are unlinked. A fork leaves the front
//! out only where it is empty. So a later chain inherits the result. Merging layers may put a page into the slot
//! *behind*: that is another page, of another generation, than the page that was searched.
//!
//! # Races
//! - two copies at once
//!   - first: unbusies its new page (a full fence), then looks at the mark and the watch (mutant
//!     [`Mutant::LookBeforeFill`])
//!   - outcome: the later one sees both pages
//! - a copy, and a search that chooses its chain as the watch
//!   - first: the search writes the watch, fences, looks at that chain once more (mutant
//!     [`Mutant::NoSecondLook`])
//!   - outcome: the copy sees the watch, or the search sees the copy
//! - a copy, and the exit of the watch
//!   - first: the exit counts (`unlinked`), then hands the object to the reaper
//!   - outcome: a watch from before that count is no watch; or the reaper sees the copy
//!
//! Where something is busy, the page stays and the object is left to the [reaper](crate::cow::reaper). Every error is
//! towards keeping.
//!
//! # Pages in swap
//! They are hidden and freed as others are, without being read. A page that is paged out takes no mark and no watch
//! along: once it is read in again, the first copy searches ([`Page::suspect`]). The reaper, or a copy whose source was
//! just paged out, may search for a page in swap. Then the whole list is searched, and again while the slot is held
//! ([`Index::take`](crate::object::index::Index::take)). The reason is that a slot has no generation that would show a
//! change of page. A long search is not made again: it sees by the list's length that no other page can have come.

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

/// Backings that one search looks at for one page while it holds a pin. Longer searches are left to the reaper.
/// Models have lists of both kinds.
pub(crate) const LOOKS: u32 = if cfg!(any(loom, shuttle)) { 4 } else { 128 };

/// Whether the layers in front of a backing hide a page of it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Sight {
    /// One of them has a page, a page in swap, or a zero marker there.
    Hidden,
    /// None of them has.
    Shown,
    /// One of them has something busy there, which may stay or not.
    Unsure,
}

/// How `b`, which covers `key`, sees that page of its object.
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

/// Whether the layers in front of `b`, which covers `key`, hide that page of its object for good.
pub(crate) fn is_hidden<M: Machine>(b: &Backing<M>, key: u64, pin: &Pinned<'_>) -> bool {
    sight(b, key, pin) == Sight::Hidden
}

/// Destroys `source` if that was the last chain to see it. A copy of `source` stands in front of it and is not busy any
/// more.
///
/// # Requires
/// No lock is held.
#[inline]
pub(crate) fn hid<M: Machine>(source: &FoundPage<'_, M>, pin: &Pinned<'_>) {
    let object = source.object;
    if !object.is_private() {
        return;
    }
    // A read-modify-write unbusied the copy.
    fence_after_rmw();
    if !is_watched_elsewhere(source, source.page.note_copy()) {
        search(object, source.key, source.page, Some(source.layer), pin);
    }
}

/// Whether no search is needed when `source.layer` does not show the page any more.
fn is_watched_elsewhere<M: Machine>(source: &FoundPage<'_, M>, copied: Copied) -> bool {
    match copied {
        Copied::First => true,
        Copied::Again => false,
        Copied::Watched(watch) => {
            let unlinked = source.object.shards().unlinked();
            // A watch that was unlinked since does not count.
            watch != Watch::new(source.layer, unlinked).0 && Watch(watch).is_of(unlinked)
        }
    }
}

/// Whether `source` was copied before, and no other chain than its own is known to see it still. If one is found, it
/// becomes the page's watch.
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

/// Whether another chain than `source`'s own sees it, or may; that chain becomes the page's watch. The caller holds the
/// page, or has it busy.
pub(crate) fn is_shown_elsewhere<M: Machine>(source: &FoundPage<'_, M>, pin: &Pinned<'_>) -> bool {
    let seen = find(source.object, source.key, source.page, Some(source.layer), true, pin);
    if matches!(seen, Seen::Unsure | Seen::Unfinished) {
        source.object.vm().reaper().flag(source.object);
    }
    seen != Seen::Nowhere
}

/// The address of a backing, and how many had been unlinked from its object when it was chosen. Compared, never
/// followed. The address may be another backing's by now, which costs one search too many.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Watch(u64);

impl Watch {
    const VERSION: u64 = (1 << 22) - 1;

    fn new<M: Machine>(b: &Backing<M>, unlinked: u64) -> Watch {
        Self::at(core::ptr::from_ref(b).addr(), unlinked)
    }

    /// A watch that is none: the place of a backing that hides the page, where the next search begins.
    fn void(address: usize, unlinked: u64) -> Watch {
        Self::at(address, unlinked.wrapping_sub(1))
    }

    fn at(address: usize, unlinked: u64) -> Watch {
        // 64-byte aligned, and 48 bits distinguish addresses.
        Watch(((address as u64 & 0xffff_ffff_ffff) >> 6) << 22 | (unlinked & Self::VERSION))
    }

    /// The address of the backing. The upper bits of an address are all as its 48th bit.
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

/// Finds a backing that shows `page`, which is `object`'s page `key`, and makes it the page's watch; destroys the page
/// if there is none. The search begins at the watch, or at `hider`, a backing that does not show the page any more. It
/// is left to the reaper where it is long.
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

/// As [`search`]. Breaks where the search is not over: the caller then leaves it to [`search_all`].
pub(crate) fn search_some<M: Machine>(
    object: &Object<M>,
    key: u64,
    page: &'static Page,
    hider: Option<&Backing<M>>,
    pin: &Pinned<'_>,
) -> ControlFlow<()> {
    let vm = object.vm();
    // Held, so that the descriptor keeps its identity while the watch is written into it.
    let held = page.try_hold();
    let state = page.state();
    let mut over = ControlFlow::Continue(());
    if held && state.valid() && page.object() == object.address() && page.index() == key {
        let seen = if state.busy() { Seen::Unsure } else { find(object, key, page, hider, false, pin) };
        match seen {
            // Or it is moving: a watch must not be written after the move.
            Seen::Unsure => vm.reaper().flag(object),
            Seen::Somewhere => {}
            Seen::Unfinished => over = ControlFlow::Break(()),
            Seen::Nowhere => destroy(object, key, page, state.generation(), pin),
        }
    } else {
        // Perhaps pageout took it since it was found.
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

/// As [`search_some`], of the page in swap at `object`'s `key`.
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

/// Frees a page in swap. Nothing replaces it: every chain hides the layers behind here, too.
fn free_swapped<M: Machine>(object: &Object<M>, slot: u64, taken: TakenSlot<'_, &'static Objects<M>>) {
    let vm = object.vm();
    taken.empty();
    vm.swap().release(SwapSlots { first: slot, len: 1 });
    vm.stats().count(Event::PageShadowed);
}

/// As [`search_some`], to the end. Holds no pin for longer than [`LOOKS`] backings. The caller has a reference to
/// `object`. Returns how many backings it looked at, at most.
pub(crate) fn search_all<M: Machine>(object: &Object<M>, key: u64, may: &mut MaySleep) -> u64 {
    let vm = object.vm();
    let slot = object.index().get(key, &may.pin(vm.epoch()));
    match slot {
        Slot::Page(pfn) => search_all_resident(object, key, vm.page(pfn), may),
        Slot::Swap(slot) => search_all_swapped(object, key, slot, may),
        _ => 0,
    }
}

/// As [`search_all`], of `page`, if it is still there.
fn search_all_resident<M: Machine>(object: &Object<M>, key: u64, page: &'static Page, may: &mut MaySleep) -> u64 {
    let vm = object.vm();
    // This asks the watch.
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

/// As [`search_all`], of the page in swap.
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
                // Only merging puts another page into the slot, and only while one backing shows the object. At no time
                // since the search began was there one alone.
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
    /// All hide it.
    Nowhere,
    /// A backing may show it.
    Unsure,
    /// Not all were looked at.
    Unfinished,
}

/// The next step of a search after a look at one backing.
fn sees(sight: Sight) -> ControlFlow<Seen> {
    match sight {
        Sight::Hidden => ControlFlow::Continue(()),
        Sight::Shown => ControlFlow::Break(Seen::Somewhere),
        Sight::Unsure => ControlFlow::Break(Seen::Unsure),
    }
}

/// Goes on with a scan, for about [`LOOKS`] backings.
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

/// Looks at about [`LOOKS`] backings, and then ends the scan. Where those were not all, returns the last one's place.
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

/// Looks at one listed backing: it becomes the page's watch unless it hides the page.
fn look<M: Machine>(object: &Object<M>, b: &Backing<M>, key: u64, page: &Page, pin: &Pinned<'_>) -> ControlFlow<Seen> {
    let first = sight(b, key, pin);
    if first == Sight::Hidden {
        return ControlFlow::Continue(());
    }
    // Its list is locked: it has not been unlinked yet.
    page.watch(Watch::new(b, object.shards().unlinked()).0);
    fence_full();
    sees(if mutant(Mutant::NoSecondLook) { first } else { sight(b, key, pin) })
}

/// The place of the page's watch, where it has one.
fn last_place<M: Machine>(object: &Object<M>, key: u64, page: &Page) -> Option<TreePlace> {
    let Copied::Watched(watch) = page.copied() else { return None };
    object.shards().visit_at(key, Watch(watch).address(), |_| ControlFlow::<()>::Continue(())).1
}

/// Searches for a watch, among [`LOOKS`] backings at most. `others`: the backing `hider` does not count.
///
/// Asks the watch first: it may show the page still, though other backings were unlinked since it was chosen. Then the
/// search goes on behind the watch's place and comes round once. Where it ends before, it leaves a void watch at the
/// place that it has reached.
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

/// Destroys a page that no chain shows. (It is hidden, so no leaf maps it: a copy is unbusied only after the old
/// translation is flushed. The remover looks all the same, and finds leaves that are about to be cleared.)
fn destroy<M: Machine>(object: &Object<M>, key: u64, page: &'static Page, generation: u64, pin: &Pinned<'_>) {
    let vm = object.vm();
    // The same generation: it never moved, so it is still hidden.
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
