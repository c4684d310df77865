//! The merging of layers: pages move from one layer into the next, if both belong to one chain alone.
//!
//! A fork puts a new front (the first layer, which gets the stores) before the layers of the parent, and one for the
//! child. Once the parent or the child exits, two layers belong to one chain alone. Then the pages of the layer with
//! fewer pages move into the other layer. Only the identity of each page changes, while it is busy. No byte is copied,
//! no leaf changes, and other CPUs can fault during the move. A layer that is empty then is removed from the chain. So
//! the chain of a process that forks repeatedly is only as deep as its living relatives require.
//!
//! # Hidden layers
//! A parent of many children stores into the same few pages between its forks. Each fork leaves a layer with these
//! pages, which one child shows. The parent's next layer hides all of it. Such a layer is taken out of the parent's
//! chain as an empty one is, and no later child gets it. Only small layers are examined (`MOST_HIDDEN`).
//!
//! A hidden page stays hidden (`crate::cow::last_sharer`). No leaf maps it. The CPU that filled the slot in front had
//! cleared the leaf, and flushed, before it unbusied its page. A fault that is about to copy the page fails the check
//! of its source, and begins again. A page that is being made hides nothing (mutant [`Mutant::BusyHides`]).
//!
//! # Against faults
//! A page that moves is in both slots for a moment, never in none. The new slot is filled before the old one is emptied
//! (mutant [`Mutant::EmptyBeforeFill`]). A fault that found the page before the move finds it busy or with another
//! generation, under its table page's lock. (The generation rises with each change of identity.) A fault that walked
//! from front to back while a page moved towards the front may have missed it in both layers. Before such a fault
//! installs its new page, it walks the layers behind again. Then it finds the front's slot filled, or the page. A load
//! that maps the frame of zeroes at neighbours looks at their slots again from back to front (mutant
//! [`Mutant::OneLookAtLayers`]). A page that a fault is making is busy until it is installed or dropped. Until then it
//! hides nothing (mutant [`Mutant::BusyHides`]).
//!
//! # Pages in swap
//! Pages in swap move too, without a read. The mover holds the index slot exclusively ([`TakenSlot`]), as it sets a
//! resident page busy. The mover fills the new slot before it empties the old one. A fault that finds the slot held
//! tries again. A fault may have found the swap slot before the move, and reads the page in. When it stores the page
//! into the index slot, it finds this slot changed (mutant [`Mutant::SwapInTwoSlots`]).
//!
//! # Truncation of the file behind
//! A truncation searches for copies beyond the file's end from the back of a chain to the front
//! ([`truncate`](crate::object::ObjectRef::set_size)). It could miss a copy that moves towards the back, in both
//! layers. So the mover reads the file's size again once the new slot is filled. If the copy lies beyond the end, the
//! mover empties the new slot again (mutant [`Mutant::MovesCutOff`]).

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;

use crate::cow::last_sharer::is_hidden;
use crate::machine::Machine;
use crate::mutant::{Mutant, mutant};
use crate::object::Object;
use crate::object::Objects;
use crate::object::backing::{self, Backing};
use crate::object::batch::Batch;
use crate::object::index::{Cursor, FillError, Slot, TakenSlot};
use crate::object::interval::Interval;
use crate::paging::swap::SwapSlots;
use crate::phys::page::Page;
use crate::rmap;
use crate::stats::Event;
use crate::tlb::flush::NeverMapped;
use crate::types::VirtRange;
use core::ptr::NonNull;
use quire_sync::atomic::fence_full;
use quire_sync::epoch::Pinned;

/// Merges layers of a private chain that belong to this chain alone, and removes empty and hidden layers. Called by a
/// fork, which has marked the entry stale. Skips busy pages, and stops if no memory is free; the chain is correct in
/// either case. May sleep for a page of a removed layer.
///
/// # Safety
/// The caller holds the lock of the map that the chain belongs to, and no pin.
pub(crate) unsafe fn collapse<M: Machine>(vm: &'static Objects<M>, front: NonNull<Backing<M>>) {
    let mut at = front;
    let mut kept = 0;
    loop {
        // SAFETY: `at` is a layer of the caller's chain, which changes only under the map's lock.
        let layer = unsafe { at.as_ref() };
        let Some(next) = NonNull::new(layer.behind_ptr()) else { break };
        // SAFETY: `next` is a layer of the caller's chain, which changes only under the map's lock.
        let behind = unsafe { next.as_ref() };
        if let (Some(a), Some(b)) = (layer.object(), behind.object())
            && a.is_exclusive()
            && b.is_exclusive()
        {
            merge(vm, layer, a, behind, b);
        }
        let gone = {
            let pin = vm.epoch().pin();
            behind.object().is_some_and(|o| o.is_private()) && shows_nothing(behind, kept < MOST_IN_FRONT, &pin)
        };
        if !gone {
            at = next;
            kept += 1;
            continue;
        }
        backing::take_out(layer, behind);
        if let Some(object) = behind.object() {
            // SAFETY: the layer shows no page, so no leaf maps a page of it (see the module's head). No fault fills it,
            // because faults fill only fronts. The layer is linked, and this loop unlinks it once.
            unsafe { Object::unlink(vm, NonNull::from(object), next, &NeverMapped::new()) };
        }
        // SAFETY: `next` is out of the chain and on no list, and this loop retires it once.
        unsafe { Backing::retire(next) };
    }
    // SAFETY: the loop retires layers behind the front only, and the map's lock keeps the chain's owner from disposing
    // of it.
    backing::note_depth(unsafe { front.as_ref() });
}

/// The most filled slots of a layer that is examined for hidden pages. The limit keeps a fork from looking at each page
/// of a large layer.
const MOST_HIDDEN: usize = 16;

/// The most layers in front of a layer that is examined for hidden pages. Both limits together bound the work of a fork
/// for a chain.
const MOST_IN_FRONT: usize = 12;

/// Whether the layer shows no page, because it is empty. With `near`, also if it is small and the layers in front hide
/// all its pages for good.
fn shows_nothing<M: Machine>(layer: &Backing<M>, near: bool, pin: &Pinned<'_>) -> bool {
    let Some(object) = layer.object() else { return true };
    let slots = || Cursor::over(Interval::start(layer)..Interval::end(layer));
    let (mut first, mut number, mut all) = (slots(), slots(), slots());
    // Usually the first page decides.
    let Some((key, _)) = first.resume(object.index(), pin).next() else { return true };
    near && is_hidden(layer, key, pin)
        && number.resume(object.index(), pin).nth(MOST_HIDDEN).is_none()
        && all.resume(object.index(), pin).all(|(key, _)| is_hidden(layer, key, pin))
}

/// Moves the pages of one layer into the other, in the addresses that both cover. The pages of the layer with fewer
/// pages move.
fn merge<M: Machine>(vm: &'static Objects<M>, layer: &Backing<M>, a: &Object<M>, behind: &Backing<M>, b: &Object<M>) {
    let Some(window) = layer.range().intersect(&behind.range()) else { return };
    let down = front_is_smaller(vm, layer, a, behind, b, window);
    let (from, source, to) = if down { (layer, a, behind) } else { (behind, b, layer) };
    let mut cursor = Cursor::over(keys(from, window));
    loop {
        // Each page gets a pin of its own, because this loop may be long.
        let pin = vm.epoch().pin();
        let Some((key, slot)) = cursor.resume(source.index(), &pin).next() else { break };
        let va = from.va(key);
        let other = to.key(va);
        let moved = if down {
            move_down(vm, At { object: a, key }, slot, At { object: b, key: other }, behind, va, &pin)
        } else {
            let to = At { object: a, key: other };
            move_up(vm, At { object: b, key }, slot, to, behind.behind().is_some(), &pin)
        };
        if moved.is_err() {
            return;
        }
    }
    // The emptied layer may be kept, for example as the front, so its count of merges begins at 0 again.
    to.set_merges(to.merges().max(from.merges()));
    from.set_merges(0);
    let pin = vm.epoch().pin();
    source.index().prune(keys(from, window), &pin);
}

fn keys<M: Machine>(b: &Backing<M>, window: VirtRange) -> core::ops::Range<u64> {
    let start = b.key(window.start);
    start..start + window.len() / crate::types::PAGE_SIZE
}

/// Whether the front layer has at most as many pages as the layer behind it. Both are counted in parallel, so that the
/// cost follows the smaller layer.
fn front_is_smaller<M: Machine>(
    vm: &'static Objects<M>,
    layer: &Backing<M>,
    a: &Object<M>,
    behind: &Backing<M>,
    b: &Object<M>,
    window: VirtRange,
) -> bool {
    let mut front = Cursor::over(keys(layer, window));
    let mut back = Cursor::over(Interval::start(behind)..Interval::end(behind));
    loop {
        let pin = vm.epoch().pin();
        let (mut f, mut k) = (front.resume(a.index(), &pin), back.resume(b.index(), &pin));
        for _ in 0..64 {
            if f.next().is_none() {
                return true;
            }
            if k.next().is_none() {
                return false;
            }
        }
    }
}

/// The merge ended because no memory is free.
struct Full;

/// The slot of a key in an object's index.
struct At<'o, M: Machine> {
    object: &'o Object<M>,
    key: u64,
}

impl<M: Machine> Clone for At<'_, M> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<M: Machine> Copy for At<'_, M> {}

/// The page or marker to move. It is held, so that no other thread changes its slot during the move.
enum HeldSlot<'p, M: Machine> {
    /// A page, busy.
    Page(&'static Page),
    /// A page in swap, whose index slot is held. It must never be in both slots, because a fault that reads it in
    /// clears the swap slot from one index slot only.
    Swap(TakenSlot<'p, &'static Objects<M>>),
    /// A zero marker: a mark in the slot that the content is zeroes.
    ZeroMarker,
}

impl<'p, M: Machine> HeldSlot<'p, M> {
    /// Holds the page or marker in `slot`, so that no other thread changes it. `None` if another thread holds it, or if
    /// the slot has nothing to move.
    fn take(vm: &'static Objects<M>, from: At<'p, M>, slot: Slot, pin: &'p Pinned<'_>) -> Option<Self> {
        match slot {
            Slot::Page(pfn) => vm.try_busy_page(from.object, from.key, vm.page(pfn)).map(HeldSlot::Page),
            Slot::Swap(_) if mutant(Mutant::SwapInTwoSlots) => Some(HeldSlot::ZeroMarker),
            Slot::Swap(_) => from.object.index().take(from.key, slot, pin).map(HeldSlot::Swap),
            Slot::ZeroMarker => Some(HeldSlot::ZeroMarker),
            _ => None,
        }
    }

    /// Completes the move after the new slot was filled.
    fn settle(self, vm: &'static Objects<M>, slot: Slot, from: At<'_, M>, to: At<'_, M>, pin: &Pinned<'_>) {
        match self {
            HeldSlot::Page(page) => {
                page.rename(to.object.address(), to.key);
                from.object.index().clear(from.key, slot, pin);
                vm.unbusy(page);
                vm.stats().count(Event::PageMoved);
            }
            HeldSlot::Swap(taken) => {
                taken.empty();
                vm.stats().count(Event::PageMoved);
            }
            // If a fault has put a page into the slot since `slot` was read, the page correctly stays there.
            HeldSlot::ZeroMarker => _ = from.object.index().clear(from.key, slot, pin),
        }
    }

    /// Releases the page or marker, which stays in its slot.
    fn stay(self, vm: &'static Objects<M>) {
        if let HeldSlot::Page(page) = self {
            vm.unbusy(page);
        }
    }

    /// Destroys the page or marker, because it is hidden for good.
    fn destroy(self, vm: &'static Objects<M>, slot: Slot, from: At<'_, M>, pin: &Pinned<'_>) {
        match (self, slot) {
            (HeldSlot::Page(page), Slot::Page(pfn)) => {
                // The page is hidden, but another CPU may not have cleared its leaf yet.
                let mut batch = Batch::new();
                batch.push(from.key, pfn);
                let _flushed = rmap::unmap(from.object, &batch);
                from.object.index().clear(from.key, slot, pin);
                vm.release_page(page);
            }
            (HeldSlot::Swap(taken), Slot::Swap(at)) => {
                taken.empty();
                vm.swap().release(SwapSlots { first: at, len: 1 });
            }
            _ => _ = from.object.index().clear(from.key, slot, pin),
        }
    }
}

/// Moves the slot at `from` (in front) to `to` (behind it), and destroys the content of `to`, which it hides. `behind`
/// shows `to` at `va`.
fn move_down<M: Machine>(
    vm: &'static Objects<M>,
    from: At<'_, M>,
    slot: Slot,
    to: At<'_, M>,
    behind: &Backing<M>,
    va: u64,
    pin: &Pinned<'_>,
) -> Result<(), Full> {
    let more = behind.behind().is_some();
    let Some(held) = HeldSlot::take(vm, from, slot, pin) else { return Ok(()) };
    // A zero marker with no layer behind it hides nothing.
    let keeps = slot != Slot::ZeroMarker || more;
    let there = to.object.index().get(to.key, pin);
    let done = match there {
        Slot::Page(_) | Slot::Swap(_) => match HeldSlot::take(vm, to, there, pin) {
            Some(HeldSlot::Page(hidden)) if keeps => {
                let mut batch = Batch::new();
                batch.push(to.key, vm.pfn_of_page(hidden));
                let _flushed = rmap::unmap(to.object, &batch);
                let replaced = to.object.index().replace(to.key, there, slot, pin);
                debug_assert!(replaced, "a busy page stays in its slot");
                vm.release_page(hidden);
                true
            }
            Some(HeldSlot::Swap(mut hidden)) if keeps => {
                hidden.replace(slot);
                if let Slot::Swap(at) = there {
                    vm.swap().release(SwapSlots { first: at, len: 1 });
                }
                true
            }
            Some(hidden) => {
                hidden.destroy(vm, there, to, pin);
                true
            }
            None => false,
        },
        Slot::ZeroMarker => slot == Slot::ZeroMarker || to.object.index().replace(to.key, Slot::ZeroMarker, slot, pin),
        Slot::Empty if !keeps => true,
        Slot::Empty => match to.object.index().fill(to.key, slot, vm, pin) {
            Ok(()) => {
                // A truncation that writes the size after this fence finds the page in the new slot. If it wrote the
                // size before, the check below sees the new size (relies on C2: insert, fence, then check).
                fence_full();
                let stays = !behind.is_cut_off(va) || mutant(Mutant::MovesCutOff);
                // If the clear fails, a fault is reading the page in from the new slot, and has seen the longer file.
                // Then the page stays in the new slot.
                stays || !to.object.index().clear(to.key, slot, pin)
            }
            Err(FillError::OutOfMemory) => {
                held.stay(vm);
                return Err(Full);
            }
            Err(_) => false,
        },
        _ => false,
    };
    if done {
        held.settle(vm, slot, from, to, pin)
    } else {
        held.stay(vm)
    }
    Ok(())
}

/// Moves the slot at `from` (behind) to `to` (in front of it), or destroys its content if `to` hides it.
fn move_up<M: Machine>(
    vm: &'static Objects<M>,
    from: At<'_, M>,
    slot: Slot,
    to: At<'_, M>,
    more: bool,
    pin: &Pinned<'_>,
) -> Result<(), Full> {
    let Some(held) = HeldSlot::take(vm, from, slot, pin) else { return Ok(()) };
    if slot == Slot::ZeroMarker && !more {
        held.destroy(vm, slot, from, pin);
        return Ok(());
    }
    if mutant(Mutant::EmptyBeforeFill) {
        from.object.index().clear(from.key, slot, pin);
    }
    match to.object.index().fill(to.key, slot, vm, pin) {
        Ok(()) => held.settle(vm, slot, from, to, pin),
        Err(FillError::Taken(taken @ (Slot::Page(_) | Slot::Swap(_) | Slot::ZeroMarker))) => {
            // The slot in front hides this one only if its content stays. A page that a fault is making may be a copy
            // of this one, and may be dropped. (A page that is being read from swap stays in swap if the read fails.)
            let over = match taken {
                Slot::Page(pfn) => match vm.try_busy_page(to.object, to.key, vm.page(pfn)) {
                    Some(over) => Some(over),
                    None if mutant(Mutant::BusyHides) => None,
                    None => {
                        held.stay(vm);
                        return Ok(());
                    }
                },
                _ => None,
            };
            held.destroy(vm, slot, from, pin);
            over.inspect(|p| vm.unbusy(p));
        }
        Err(e) => {
            held.stay(vm);
            if e == FillError::OutOfMemory {
                return Err(Full);
            }
        }
    }
    Ok(())
}
