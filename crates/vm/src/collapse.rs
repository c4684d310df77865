//! Keeping chains short: pages move from one layer into the next where both are this chain's alone.
//!
//! A fork stacks a new front on what was there. Once the other side is gone, the two layers belong to one chain again, and
//! the smaller population moves into the larger: by identity, one page at a time, held busy; no byte is copied, no leaf is
//! touched, and other CPUs keep faulting meanwhile. A layer that is empty then is taken out. So a process that forks over and
//! over keeps the depth that its living relatives need, and no more.
//!
//! # Against faults
//! A page that moves is in both slots for a moment, never in none: the new slot is filled before the old one is emptied
//! (mutant [`Mutant::EmptyBeforeFill`]). A fault that looked at the page before sees busy, or another generation, under its
//! table page's lock. A fault that walked front to back while a page moved forward may have missed it in both layers; it
//! looks behind its new page once more before it installs it, and finds the front's slot taken, or the page. A page that a
//! fault is making is busy until it is installed or given up; until then it hides nothing (mutant [`Mutant::BusyHides`]).

use crate::backing::{self, Backing};
use crate::flush::Flushed;
use crate::index::{Cursor, FillError, Slot};
use crate::interval::Interval;
use crate::machine::Machine;
use crate::mutant::{Mutant, mutant};
use crate::object::Object;
use crate::page::Page;
use crate::rmap::{self, Batch};
use crate::stats::Event;
use crate::types::VirtRange;
use crate::vm::Vm;
use core::ptr::NonNull;
use quire_sync::epoch::Pinned;

/// Merges the layers of a private chain that only this chain shows, and takes empty ones out. For fork, before it marks the
/// entry stale. Skips what is busy; stops where there is no memory; either way the chain stays right. Does not sleep.
///
/// # Safety
/// The caller holds the lock of the map that the chain belongs to, and no pin.
pub unsafe fn collapse<M: Machine>(vm: &'static Vm<M>, front: NonNull<Backing<M>>) {
    let mut at = front;
    loop {
        // SAFETY: layers of the caller's chain, which changes under the map's lock only.
        let layer = unsafe { at.as_ref() };
        let Some(next) = NonNull::new(layer.behind_ptr()) else { break };
        // SAFETY: as above.
        let behind = unsafe { next.as_ref() };
        if let (Some(a), Some(b)) = (layer.object(), behind.object())
            && a.is_exclusive()
            && b.is_exclusive()
        {
            merge(vm, layer, a, behind, b);
        }
        let gone = {
            let pin = vm.epoch().pin();
            behind.object().is_some_and(|o| o.is_private()) && behind.is_empty(&pin)
        };
        if !gone {
            at = next;
            continue;
        }
        backing::take_out(layer, behind);
        if let Some(object) = behind.object() {
            // SAFETY: the layer shows no page, so no leaf is there because of it; it is linked, and unlinked once. Nobody
            // fills it: only fronts are filled.
            unsafe { Object::unlink(vm, NonNull::from(object), next, &Flushed::never_mapped()) };
        }
        // SAFETY: out of the chain, and unlinked.
        unsafe { Backing::retire(next) };
    }
    // SAFETY: as above.
    backing::note_depth(unsafe { front.as_ref() });
}

/// Moves the smaller of two populations into the larger, where both layers show the same addresses.
fn merge<M: Machine>(vm: &'static Vm<M>, layer: &Backing<M>, a: &Object<M>, behind: &Backing<M>, b: &Object<M>) {
    let Some(window) = layer.range().intersect(&behind.range()) else { return };
    let down = front_is_smaller(vm, layer, a, behind, b, window);
    let (from, source, to) = if down { (layer, a, behind) } else { (behind, b, layer) };
    let mut cursor = Cursor::over(keys(from, window));
    loop {
        // A pin for each page: this may go on for long.
        let pin = vm.epoch().pin();
        let Some((key, slot)) = cursor.resume(source.index(), &pin).next() else { break };
        let other = to.key(from.va(key));
        let moved = if down {
            move_down(vm, (a, key), slot, (b, other), behind.behind().is_some(), &pin)
        } else {
            move_up(vm, (b, key), slot, (a, other), behind.behind().is_some(), &pin)
        };
        if moved.is_err() {
            return;
        }
    }
    let pin = vm.epoch().pin();
    source.index().prune(keys(from, window), &pin);
}

fn keys<M: Machine>(b: &Backing<M>, window: VirtRange) -> core::ops::Range<u64> {
    let start = b.key(window.start);
    start..start + window.len() / crate::types::PAGE_SIZE
}

/// Counts both in step, so that the cost is that of the smaller one. A front that is not smaller than what lies behind takes
/// that up instead.
fn front_is_smaller<M: Machine>(
    vm: &'static Vm<M>,
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

/// No memory to go on.
struct Full;

/// Moves what is at `from` (in front) into `to` (behind it), whose content it hides. `more`: there are layers behind `to`.
fn move_down<M: Machine>(
    vm: &'static Vm<M>,
    from: (&Object<M>, u64),
    slot: Slot,
    to: (&Object<M>, u64),
    more: bool,
    pin: &Pinned<'_>,
) -> Result<(), Full> {
    let page = match slot {
        Slot::Page(pfn) => match vm.try_busy_page(from.0, from.1, vm.page(pfn)) {
            Some(page) => Some(page),
            None => return Ok(()),
        },
        Slot::Cut => None,
        _ => return Ok(()),
    };
    let done = match to.0.index().get(to.1, pin) {
        Slot::Page(old) => match vm.try_busy_page(to.0, to.1, vm.page(old)) {
            Some(hidden) => {
                // Hidden, so hardly mapped; but a leaf may be on its way out still.
                let mut batch = Batch::new();
                batch.push(to.1, old);
                let _flushed = rmap::unmap(to.0, &batch);
                let replaced = if page.is_some() || more {
                    to.0.index().replace(to.1, Slot::Page(old), slot, pin)
                } else {
                    to.0.index().clear(to.1, Slot::Page(old), pin)
                };
                debug_assert!(replaced, "a busy page stays in its slot");
                vm.release_page(hidden);
                true
            }
            None => false,
        },
        Slot::Cut => page.is_none() || to.0.index().replace(to.1, Slot::Cut, slot, pin),
        Slot::Empty if page.is_none() && !more => true,
        Slot::Empty => match to.0.index().fill(to.1, slot, vm, pin) {
            Ok(()) => true,
            Err(FillError::OutOfMemory) => {
                page.inspect(|p| vm.unbusy(p));
                return Err(Full);
            }
            Err(_) => false,
        },
        _ => false,
    };
    settle(vm, page, slot, from, to, done, pin);
    Ok(())
}

/// Moves what is at `from` (behind) into `to` (in front of it), or destroys it where `to` hides it.
fn move_up<M: Machine>(
    vm: &'static Vm<M>,
    from: (&Object<M>, u64),
    slot: Slot,
    to: (&Object<M>, u64),
    more: bool,
    pin: &Pinned<'_>,
) -> Result<(), Full> {
    let page = match slot {
        Slot::Page(pfn) => match vm.try_busy_page(from.0, from.1, vm.page(pfn)) {
            Some(page) => Some(page),
            None => return Ok(()),
        },
        Slot::Cut => None,
        _ => return Ok(()),
    };
    if page.is_none() && !more {
        from.0.index().clear(from.1, slot, pin);
        return Ok(());
    }
    if mutant(Mutant::EmptyBeforeFill) {
        from.0.index().clear(from.1, slot, pin);
    }
    match to.0.index().fill(to.1, slot, vm, pin) {
        Ok(()) => settle(vm, page, slot, from, to, true, pin),
        Err(FillError::Taken(taken @ (Slot::Page(_) | Slot::Cut))) => {
            // What stands in front hides this one, where it is there to stay: a page that a fault is making right now may
            // be a copy of this one, and be given up.
            let over = match taken {
                Slot::Page(pfn) => match vm.try_busy_page(to.0, to.1, vm.page(pfn)) {
                    Some(over) => Some(over),
                    None if mutant(Mutant::BusyHides) => None,
                    None => {
                        page.inspect(|p| vm.unbusy(p));
                        return Ok(());
                    }
                },
                _ => None,
            };
            if let (Some(hidden), Slot::Page(pfn)) = (page, slot) {
                let mut batch = Batch::new();
                batch.push(from.1, pfn);
                let _flushed = rmap::unmap(from.0, &batch);
                from.0.index().clear(from.1, slot, pin);
                vm.release_page(hidden);
            } else {
                from.0.index().clear(from.1, slot, pin);
            }
            over.inspect(|p| vm.unbusy(p));
        }
        Err(e) => {
            page.inspect(|p| vm.unbusy(p));
            if e == FillError::OutOfMemory {
                return Err(Full);
            }
        }
    }
    Ok(())
}

/// The new slot is filled (`done`), or nothing happened: completes the move, and lets go of the page.
fn settle<M: Machine>(
    vm: &'static Vm<M>,
    page: Option<&Page>,
    slot: Slot,
    from: (&Object<M>, u64),
    to: (&Object<M>, u64),
    done: bool,
    pin: &Pinned<'_>,
) {
    if done {
        page.inspect(|p| p.rename(to.0.address(), to.1));
        // A cut may have been filled by a fault meanwhile: then that page stays in front, as it should.
        from.0.index().clear(from.1, slot, pin);
        if page.is_some() {
            vm.stats().count(Event::PageMoved);
        }
    }
    page.inspect(|p| vm.unbusy(p));
}
