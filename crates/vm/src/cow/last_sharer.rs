//! Pages that nobody can see any more because every chain in front of them has something of its own there: found when the last
//! copy is made, and destroyed.
//!
//! # How the last one is known
//! What would be counted, how many of those that show a layer have filled their slot, changes with every fork, exit, clip and
//! move, at each page of a window of its own. It need not be counted: the reverse list already says who shows a page, whatever
//! became of their mappings, and each backing knows the layers in front of it ([`Backing::in_front`]). So a page remembers
//! *one* backing that still shows it, its **watch**, and only whoever hides the page from that one looks for another. Where
//! there is none, the page goes. The search goes on behind the old watch and comes round once, so that all copies of a page
//! together read about two slots each.
//!
//! The first copy of a page only leaves a mark. A fork with one child so pays one byte a copy, and no lock. Who is about to
//! make the last one need not: the page moves into its front ([`cow_move`](crate::fault::cow_move)). What is left for copies to destroy are
//! pages whose last two copies were made at once.
//!
//! # Why a page that was found hidden stays hidden
//! What is in front of a page in a chain may move forward or back between its layers, be paged out, or be cut off; it never
//! goes without leaving something that hides the page too, but for one case: a page that a fault is making is given up while
//! it is busy. So busy pages hide nothing here. A chain that replaces another (clip, protect, remap) or that a fork makes of it
//! has copies of the same layers in the same parts of the lists, linked before the old ones are unlinked; a fork leaves the
//! front out only where it is empty. So who comes late inherits what was found. And a page that goes into the slot *behind*, as
//! merging layers does, is another page, of another generation, than the one that was looked at.
//!
//! # Who may miss whom
//! | | what it does first | what the other sees |
//! |---|---|---|
//! | two copies at once | lets go of its new page (a full fence), then looks at the mark and the watch (mutant [`Mutant::LookBeforeFill`]) | the later one sees both pages |
//! | a copy, and a search that chooses its chain as the watch | the search writes the watch, fences, looks at that chain once more (mutant [`Mutant::NoSecondLook`]) | the copy sees the watch, or the search sees the copy |
//! | a copy, and the exit of the watch | the exit counts (`unlinked`), then hands the object to the reaper | a watch from before that count is no watch; or the reaper sees the copy |
//!
//! Where something is busy, the page stays and the object is left to the [reaper](crate::cow::reaper). Every error is towards keeping.
//!
//! # Pages in swap
//! They are hidden and freed as others are, without being read. A page that is paged out takes no mark and no watch along: once
//! it is read in again, the first copy looks ([`Page::suspect`]). Where it is in swap when it is looked for, which is by the
//! reaper, or by a copy whose source was taken just then, all of the list is asked, and once more while the slot is held
//! ([`Index::take`](crate::object::index::Index::take)), since a slot has no generation that would say that it is another page's.

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;

use crate::cow::found::Found;
use crate::machine::Machine;
use crate::mutant::{Mutant, mutant};
use crate::object::Object;
use crate::object::backing::Backing;
use crate::object::batch::Batch;
use crate::object::index::Slot;
use crate::paging::swap::Slots;
use crate::phys::page::{Copied, Page};
use crate::rmap;
use crate::stats::Event;
use core::ops::ControlFlow;
use quire_sync::atomic::{fence_after_rmw, fence_full};
use quire_sync::epoch::Pinned;

/// Whether the layers in front of a backing hide a page of it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Sight {
    /// One of them has a page, a page in swap, or a cut there.
    Hidden,
    /// None has.
    Shown,
    /// One has something busy there, which may stay or not.
    Unsure,
}

/// What `b`, which covers `key`, makes of that page of its object.
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
                Slot::Swap(_) | Slot::Cut => return Sight::Hidden,
                Slot::Reserved => sight = Sight::Unsure,
                Slot::Empty => {}
            }
        }
        at = layer.in_front(pin);
    }
    sight
}

/// A copy of `source` stands in front of it, and is not busy any more: destroys `source` where that was the last chain to see
/// it.
///
/// # Requires
/// No lock is held.
#[inline]
pub(crate) fn hid<M: Machine>(source: &Found<'_, M>, pin: &Pinned<'_>) {
    let object = source.object;
    if !object.is_private() {
        return;
    }
    // The copy was let go of by a read-modify-write.
    fence_after_rmw();
    if !somebody_watches(source, source.page.note_copy()) {
        search(object, source.key, source.page, Some(source.layer), pin);
    }
}

/// Whether a page need not be looked for when `source.layer` does not show it any more.
fn somebody_watches<M: Machine>(source: &Found<'_, M>, copied: Copied) -> bool {
    match copied {
        Copied::First => true,
        Copied::Again => false,
        Copied::Watched(watch) => {
            let unlinked = source.object.parts().unlinked();
            // A watch that has been unlinked since is none.
            watch != Watch::new(source.layer, unlinked).0 && Watch(watch).is_of(unlinked)
        }
    }
}

/// Whether `source` was copied before and no chain but the one that it was found in is known to see it still. Where one is
/// found that does, it becomes the page's watch.
#[inline]
pub(crate) fn seems_last<M: Machine>(source: &Found<'_, M>, pin: &Pinned<'_>) -> bool {
    let page = source.page;
    if !source.object.is_private() || somebody_watches(source, page.copied()) || !page.try_hold() {
        return false;
    }
    let state = page.state();
    let same = !state.busy() && state.generation() == source.state.generation();
    let last = same && !is_shown_elsewhere(source, pin);
    source.object.vm().unhold_page(page);
    last
}

/// Whether another chain than the one that `source` was found in sees it, or may; it becomes the page's watch. The caller holds
/// the page, or has it busy.
pub(crate) fn is_shown_elsewhere<M: Machine>(source: &Found<'_, M>, pin: &Pinned<'_>) -> bool {
    let seen = find(source.object, source.key, source.page, Some(source.layer), true, pin);
    if seen == Some(Sight::Unsure) {
        source.object.vm().reaper().flag(source.object);
    }
    seen.is_some()
}

/// A backing, by its address, and how many had been unlinked from its object when it was chosen. Compared, never followed: the
/// address may be another's by now, which costs a search too many.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Watch(u64);

impl Watch {
    const VERSION: u64 = (1 << 22) - 1;

    fn new<M: Machine>(b: &Backing<M>, unlinked: u64) -> Watch {
        let address = core::ptr::from_ref(b).addr() as u64;
        // 64-byte aligned, and 48 bits tell addresses apart.
        Watch(((address & 0xffff_ffff_ffff) >> 6) << 22 | (unlinked & Self::VERSION))
    }

    fn is_of(self, unlinked: u64) -> bool {
        self.0 & Self::VERSION == unlinked & Self::VERSION
    }
}

/// Finds a backing that shows `page`, which is `object`'s page `key`, and makes it the page's watch; destroys the page where
/// there is none. `hider`: a backing that does not show it any more, where the search begins.
pub(crate) fn search<M: Machine>(
    object: &Object<M>,
    key: u64,
    page: &'static Page,
    hider: Option<&Backing<M>>,
    pin: &Pinned<'_>,
) {
    let vm = object.vm();
    // Held, so that the descriptor stays a page's while the watch is written into it.
    let held = page.try_hold();
    let state = page.state();
    if held && state.valid() && page.object() == object.address() && page.index() == key {
        let shown = if state.busy() { Some(Sight::Unsure) } else { find(object, key, page, hider, false, pin) };
        match shown {
            // Or on its way elsewhere: a watch must not come after it.
            Some(Sight::Unsure) => vm.reaper().flag(object),
            Some(_) => {}
            None => destroy(object, key, page, state.generation(), pin),
        }
    } else {
        // Taken by pageout since it was found?
        match object.index().get(key, pin) {
            Slot::Swap(slot) => search_swapped(object, key, slot, pin),
            Slot::Reserved => vm.reaper().flag(object),
            _ => {}
        }
    }
    if held {
        vm.unhold_page(page);
    }
}

/// As [`search`], of the page in swap at `object`'s `key`.
pub(crate) fn search_swapped<M: Machine>(object: &Object<M>, key: u64, slot: u64, pin: &Pinned<'_>) {
    let vm = object.vm();
    let seen = |object: &Object<M>| {
        object.search(key, key + 1, |b| match sight(b, key, pin) {
            Sight::Hidden => ControlFlow::Continue(()),
            seen => ControlFlow::Break(seen),
        })
    };
    let shown = match seen(object) {
        None => {
            let Some(taken) = object.index().take(key, Slot::Swap(slot), pin) else { return };
            let shown = seen(object);
            if shown.is_none() {
                // Nothing is left in its place: every chain hides what lies behind here, too.
                taken.empty();
                vm.swap().release(Slots { first: slot, len: 1 });
                vm.stats().count(Event::PageShadowed);
            }
            shown
        }
        shown => shown,
    };
    if shown == Some(Sight::Unsure) {
        vm.reaper().flag(object);
    }
}

/// The search proper: how the backing that it chose sees the page. `others`: the one where it begins does not count.
fn find<M: Machine>(
    object: &Object<M>,
    key: u64,
    page: &Page,
    hider: Option<&Backing<M>>,
    others: bool,
    pin: &Pinned<'_>,
) -> Option<Sight> {
    let unlinked = object.parts().unlinked();
    let mut look = |b: &Backing<M>| {
        if others && hider.is_some_and(|h| core::ptr::eq(h, b)) {
            return ControlFlow::Continue(());
        }
        let first = sight(b, key, pin);
        if first == Sight::Hidden {
            return ControlFlow::Continue(());
        }
        page.watch(Watch::new(b, unlinked).0);
        fence_full();
        match if mutant(Mutant::NoSecondLook) { first } else { sight(b, key, pin) } {
            Sight::Hidden => ControlFlow::Continue(()),
            seen => ControlFlow::Break(seen),
        }
    };
    let near = hider.and_then(|b| object.parts().search_after(b, key, &mut look));
    near.or_else(|| object.search(key, key + 1, &mut look))
}

/// Takes a page away that no chain shows. (Hidden, so no leaf maps it: a copy is let go of after the old translation is flushed.
/// The remover looks all the same, and meets what is on its way out.)
fn destroy<M: Machine>(object: &Object<M>, key: u64, page: &'static Page, generation: u64, pin: &Pinned<'_>) {
    let vm = object.vm();
    // The same generation: never moved, so what hid it hides it still.
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
