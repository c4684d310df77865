//! Copy-up: the shortening of a deep chain whose layers other chains share. Pages of the small layers near the front
//! (the first layer of the chain) are copied into the front. Then those layers are removed from this chain.
//!
//! A fork merges two layers that belong to one chain alone ([`collapse`](crate::cow::collapse)): pages move. If the
//! chains of related processes share a layer, no page can move, and each generation's fork adds a layer. So a
//! copy-on-write fault in a chain with more layers than [`Config::layers`](crate::Config::layers) allows also copies
//! other pages. The last such fault removes the layers that the front hides by then. A fork never copies up. Pages of a
//! file are never copied up: a file at the end of the chain stays.
//!
//! A page of these layers that is in swap is not copied. To share its swap slot, each swap slot would need a count of
//! its users. To copy the page, the fault would have to wait for a read. So a layer that still shows a page in swap
//! stays in the chain. The other layers are removed, and the next generation tries again. Once the related processes
//! exit, [`collapse`](crate::cow::collapse) moves pages in swap like resident ones, and the reaper frees hidden ones.
//!
//! # Which layers
//! The layers to copy up are a *run* that begins directly behind the front. The run has at least the number of layers
//! by which the chain exceeds its limit. After those layers, it ends before a layer that was copied up more often than
//! every layer of the run. It also ends before a layer that is too large. A layer is too large if it has more than
//! twice the pages of the run so far. The bound doubles for each copy-up that the run has had and this layer has not.
//! The last anonymous layer, usually the first generation's, is too large if it is larger than the run.
//!
//! Let *k* be the number of layers that a chain may have before the last one, its front included. If all generations
//! store into about the same number of pages, a page is copied for the *n*th time only after C(k + n, n) generations.
//! No order of merging copies it later (the binomial transform of Bentley and Saxe, 1980). Log-structured stores
//! compare the layers' sizes alone. That copies more if each generation stores into the same few pages, because such
//! layers do not grow.
//!
//! # The two steps, and concurrent threads
//! 1. *Copy*, without a lock of the map. Pages are copied one by one, as in a copy-on-write fault
//!    ([`FaultContext::copy_up_page`]). Each fault has a budget. Another thread's fault waits for a busy page, for the
//!    time of one copy at most. If the source page is mapped, its leaf is replaced. If not, no page table changes.
//! 2. *Take out*, with the lock of the entry's arena (a part of the map with its own lock). A layer may be removed if
//!    the front, or a layer that stays, permanently hides each of its pages and zero markers. (A zero marker is a mark
//!    in an index slot that the content is zeroes.) If a resident page or a zero marker is not hidden, the removal is
//!    left to a later fault. No leaf maps a page of a layer that may be removed. The CPU that filled the front's slot
//!    cleared the old leaf and flushed before it unbusied its page. Any later fault finds the slot filled, under the
//!    table page's lock. So the layers are unlinked. A concurrent walk that is in such a layer continues, under its
//!    pin, to the layers behind that layer.
//!
//! A zero marker is stored only after its slot was reserved and a second walk found no page. One walk alone may miss a
//! page that a fork moves to a layer nearer to the front during the walk (mutant [`Mutant::ZeroMarkerUnseen`]).
//!
//! This list names concurrent operations, and the lock or rule that orders each against the step in bold:
//!
//! - **copy**
//!   - fault on the same page: one of the two fills the slot; the other waits, or begins again
//!   - fork, unmap, clip (a split of the entry), `MADV_DONTNEED`: the copy is dropped if the entry is stale. If it was
//!     made before the mark, the writer sees it in the front's slots (fences on both sides)
//!   - another copy-up: a front has one copy-up at a time
//! - **take out**
//!   - fault on the same page: its walk continues to the layers behind the removed ones. If it copies a page of the
//!     run, its check under the table page's lock fails
//!   - fork, unmap, clip, `MADV_DONTNEED`: excluded by the arena's lock
//!   - another copy-up: excluded by the arena's lock

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;

use crate::error::FaultError;
use crate::fault::{Attempt, FaultContext, Walk};
use crate::machine::Machine;
use crate::map::entry::{Entry, Flags};
use crate::map::space::Space;
use crate::mutant::{Mutant, mutant};
use crate::object::Object;
use crate::object::backing::IDLE;
use crate::object::backing::{self, Backing};
use crate::object::index::{Cursor, FillError, Slot};
use crate::sleep::MaySleep;
use crate::stats::Event;
use crate::tlb::flush::NeverMapped;
use crate::types::{Access, PAGE_SIZE, VirtRange};
use core::ops::Range;
use core::ptr::NonNull;
use quire_sync::atomic::{Ordering, fence_full};
use quire_sync::epoch::Pinned;

/// Number of pages that one fault copies up. The number doubles for each layer above the limit, so that related
/// processes with frequent forks can still shorten their chains. It is large, because later runs must copy these pages
/// again.
const PAGES: u64 = 128;
/// The most doublings of [`PAGES`].
const DOUBLINGS: usize = 8;

/// The cost of a copied page, in units of a fault's budget. Any other page costs 1.
const A_COPY: u64 = 16;

/// The most layers of a run: a bit of a word for each.
const MOST: usize = 64;

/// A value of `progress`: a thread is copying up.
const RUNNING: u64 = u64::MAX - 1;
/// A value of `progress`: copy-up is impossible for this chain, until a map operation replaces it.
const NEVER: u64 = u64::MAX - 2;

/// The layers that are copied up: the first `layers` layers behind the front.
struct Run<'e, M: Machine> {
    front: &'e Backing<M>,
    layers: usize,
    /// The number of layers by which the chain exceeds its limit.
    excess: usize,
}

impl<'e, M: Machine> Run<'e, M> {
    /// The run of an entry's chain. `None` if the chain is short enough, or if it cannot be shortened.
    fn of(entry: &'e Entry<M>, pin: &Pinned<'_>) -> Option<Self> {
        if entry.is_stale() || entry.flags().intersects(Flags::SHARED | Flags::NEEDS_FRONT) {
            return None;
        }
        let front = entry.front();
        let (depth, most) = (backing::depth(front), front.vm().layers());
        if depth <= most {
            return None;
        }
        let private = private_behind(front).count();
        let least = depth - most;
        if private < least {
            return None;
        }
        let mut sum = 0u64;
        let mut merges = 0;
        let mut layers = 0;
        for (n, layer) in private_behind(front).enumerate() {
            let must = n < least;
            // The layer's count of merges is read once, because a fork may change it during this loop. In that case the
            // entry is stale.
            let times = layer.merges();
            if !must && times > merges {
                break;
            }
            // Pages are counted only up to the bound, because the last layer may be large.
            let enough = if must {
                u64::MAX
            } else if n + 1 == private {
                sum
            } else {
                sum.saturating_mul(2 << (merges - times).min(30))
            };
            let here = population(layer, entry.range(), enough, pin);
            if here > enough {
                break;
            }
            sum += here;
            merges = merges.max(times);
            layers = n + 1;
            if layers == MOST {
                break;
            }
        }
        Some(Run { front, layers, excess: least })
    }

    fn layers(&self) -> impl Iterator<Item = &'e Backing<M>> + use<'e, M> {
        private_behind(self.front).take(self.layers)
    }

    /// Searches `layer`, a layer of the run, for a slot that is not permanently hidden. The front and the earlier
    /// layers in `stays` (a bit for each layer) can hide a slot. Returns a resident page or a zero marker if there is
    /// one, else a page in swap. `None` if all slots are hidden.
    fn shows(&self, layer: &Backing<M>, stays: u64, pin: &Pinned<'_>) -> Option<Shown> {
        let (object, keys) = (layer.object()?, window(layer, self.front.range())?);
        let mut cursor = Cursor::over(keys);
        let mut swapped = None;
        for (key, slot) in cursor.resume(object.index(), pin) {
            let va = layer.va(key);
            let before = || self.layers().enumerate().take_while(|(_, l)| !core::ptr::eq(*l, layer));
            if is_filled(self.front, va, pin) || before().any(|(n, l)| stays >> n & 1 != 0 && is_filled(l, va, pin)) {
                continue;
            }
            if !matches!(slot, Slot::Swap(_)) {
                return Some(Shown::Page(va));
            }
            swapped = Some(Shown::Swapped);
        }
        swapped
    }

    /// The first address in `at..end` for which a layer of the run has a filled slot.
    fn next(&self, at: u64, end: u64, pin: &Pinned<'_>) -> Option<u64> {
        let each = self.layers().filter_map(|layer| {
            let keys = window(layer, VirtRange { start: at, end })?;
            let (key, _) = layer.object()?.index().first(keys.start, keys.end, pin)?;
            Some(layer.va(key))
        });
        each.min()
    }
}

/// A filled slot of a layer. No layer in front hides the slot.
enum Shown {
    /// A page, or a zero marker, at this address.
    Page(u64),
    /// The filled slots that no layer hides are all pages in swap.
    Swapped,
}

/// Whether `layer` permanently hides the layers behind it at `va`. It does if its slot has a valid page that is not
/// busy, a page in swap, or a zero marker.
fn is_filled<M: Machine>(layer: &Backing<M>, va: u64, pin: &Pinned<'_>) -> bool {
    let Some((object, key)) = layer.layer(va) else { return false };
    match object.index().get(key, pin) {
        Slot::Page(pfn) => {
            let page = object.vm().page(pfn);
            let state = page.state();
            !state.busy() && state.valid() && page.object() == object.address() && page.index() == key
        }
        Slot::Swap(_) | Slot::ZeroMarker => true,
        Slot::Empty | Slot::Reserved => false,
    }
}

/// The anonymous layers behind a front, up to a file.
fn private_behind<M: Machine>(front: &Backing<M>) -> impl Iterator<Item = &Backing<M>> {
    core::iter::successors(front.behind(), |b| b.behind()).take_while(|b| b.object().is_none_or(|o| o.is_private()))
}

/// The numbers of the object's pages that a layer shows in `range`.
fn window<M: Machine>(layer: &Backing<M>, range: VirtRange) -> Option<Range<u64>> {
    let shown = layer.range().intersect(&range)?;
    let first = layer.key(shown.start);
    Some(first..first + shown.bytes() / PAGE_SIZE)
}

/// The number of filled slots of a layer in `range`, counted up to about `enough`.
fn population<M: Machine>(layer: &Backing<M>, range: VirtRange, enough: u64, pin: &Pinned<'_>) -> u64 {
    let (Some(object), Some(keys)) = (layer.object(), window(layer, range)) else { return 0 };
    let mut n = 0;
    let mut at = keys.start;
    while at < keys.end && n <= enough {
        let Some((first, _)) = object.index().first(at, keys.end, pin) else { break };
        let end = (first + COUNTED).min(keys.end);
        n += object.index().count(first..end, pin);
        at = end;
    }
    n
}

/// The most pages of a stretch, the range of addresses that is examined at once: a bit of a word for each page.
const STRETCH: u64 = 64;
/// Number of pages that are counted at once.
const COUNTED: u64 = 1024;

/// The progress of step 1.
enum Came {
    /// All pages of the run are copied up.
    Through,
    /// All pages below this page number are copied up. Page 0 is the first page of the range of the entry's front (its
    /// first backing).
    To(u64),
}

/// Copies some pages up if the chain at `va` is too deep, and removes layers once all pages are copied. Called by a
/// fault that has just copied or moved a page. The caller holds no lock. May sleep for the arena's lock.
#[cold]
pub(crate) fn copy_up<M: Machine>(space: &Space<M>, va: u64, may: &mut MaySleep) {
    let vm = space.vm();
    let (front, layers) = {
        let pin = may.pin(vm.epoch());
        let Some(entry) = space.lookup(va, &pin) else { return };
        let progress = entry.front().progress();
        let was = progress.load(Ordering::Relaxed);
        if was == RUNNING || was == NEVER {
            return;
        }
        space.note_merge();
        let Some(run) = Run::of(entry, &pin) else { return };
        if progress.compare_exchange(was, RUNNING, Ordering::Acquire, Ordering::Relaxed).is_err() {
            return;
        }
        let came = copy(space, entry, &run, if was == IDLE { 0 } else { was }, &pin);
        match came {
            Came::Through => {}
            Came::To(page) => return progress.store(page, Ordering::Release),
        }
        (NonNull::from(run.front), run.layers)
    };
    take_out(space, va, front, layers);
}

/// Step 1 (*copy*), from page number `from` of the front's range on.
fn copy<'e, M: Machine>(
    space: &'e Space<M>,
    entry: &'e Entry<M>,
    run: &Run<'e, M>,
    from: u64,
    pin: &'e Pinned<'_>,
) -> Came {
    let mut budget = (PAGES * A_COPY) << (run.excess - 1).min(DOUBLINGS);
    let start = run.front.range().start;
    let mut at = (start + from * PAGE_SIZE).max(entry.range().start);
    let mut stuck = None;
    'all: while let Some(first) = run.next(at, entry.range().end, pin) {
        let stretch = VirtRange { start: first, end: (first + STRETCH * PAGE_SIZE).min(entry.range().end) };
        let mut wanted = run.layers().map(|l| filled(l, stretch, pin)).fold(0, |all, l| all | l);
        wanted &= !filled(run.front, stretch, pin);
        budget = budget.saturating_sub(1);
        at = stretch.end;
        while wanted != 0 {
            let va = first + u64::from(wanted.trailing_zeros()) * PAGE_SIZE;
            wanted &= wanted - 1;
            if budget == 0 {
                stuck.get_or_insert(va);
                break 'all;
            }
            match one(
                &FaultContext {
                    vm: space.vm(),
                    pmap: space.pmap(),
                    entry,
                    condemned: space.condemned(),
                    va,
                    access: Access::Write,
                },
                pin,
            ) {
                Ok(One::Copied) => budget = budget.saturating_sub(A_COPY),
                Ok(One::There) => budget -= 1,
                Err(Attempt::Again | Attempt::Busy(_) | Attempt::Progress) => {
                    budget = budget.saturating_sub(A_COPY);
                    stuck.get_or_insert(va);
                }
                // No memory is free, or the entry is being replaced.
                Err(_) => {
                    stuck.get_or_insert(va);
                    break 'all;
                }
            }
        }
    }
    stuck.map_or(Came::Through, |va| Came::To((va - start) / PAGE_SIZE))
}

/// The filled slots of a layer in `stretch`: a bit for each of up to [`STRETCH`] pages. A busy page of the front counts
/// as filled here. If it is removed again, the check before the run's layers leave the chain finds the empty slot.
fn filled<M: Machine>(layer: &Backing<M>, stretch: VirtRange, pin: &Pinned<'_>) -> u64 {
    let (Some(object), Some(keys)) = (layer.object(), window(layer, stretch)) else { return 0 };
    let skipped = (layer.va(keys.start) - stretch.start) / PAGE_SIZE;
    let mut all = 0;
    object.index().each_of(keys.start, u64::MAX >> (STRETCH - (keys.end - keys.start)), pin, |n, _| {
        all |= 1 << (u64::from(n) + skipped);
    });
    all
}

/// The outcome of step 1 for one address.
enum One {
    /// The page was copied.
    Copied,
    /// No copy was needed: the front's slot was filled already, or has a zero marker now, or the page is in swap.
    There,
}

/// Fills the front's slot at one address with the content that the chain has there.
fn one<M: Machine>(at: &FaultContext<'_, M>, pin: &Pinned<'_>) -> Result<One, Attempt<M>> {
    let front = at.entry.front();
    match at.walk(Some(front), false, pin)? {
        Walk::Page(found) if found.depth == 0 => return Ok(One::There),
        Walk::Page(found) if found.object.is_private() => {
            at.copy_up_page(&found, pin)?;
            at.vm.stats().count(Event::PageCopiedUp);
            return Ok(One::Copied);
        }
        Walk::Swapped(..) => return Ok(One::There),
        Walk::Page(_) | Walk::Hole(..) | Walk::Zero => {}
    }
    // The walk found no anonymous page. Either a zero marker, in the front or in the run, hides the layers behind. Or a
    // fork moved a page to a layer nearer to the front, so that the walk missed it. So walk again while the front's
    // slot is reserved. The second walk finds a page that was moved before. If a fork moves a page later, it marked the
    // entry stale before, and the check of the entry fails.
    let Some(object) = front.touch(pin)? else { return Err(Attempt::Stale) };
    let mut slot = match object.index().take_empty(front.key(at.va), at.vm, pin) {
        Ok(slot) => slot,
        Err(FillError::Taken(_)) => return Ok(One::There),
        Err(FillError::OutOfMemory) => return Err(Attempt::Fail(FaultError::OutOfMemory)),
        Err(FillError::Gone | FillError::BeyondKeys) => return Err(Attempt::Stale),
    };
    fence_full();
    if !mutant(Mutant::ZeroMarkerUnseen) {
        match at.walk(front.behind(), false, pin)? {
            Walk::Page(found) if found.object.is_private() => return Err(Attempt::Again),
            Walk::Swapped(..) => return Err(Attempt::Again),
            Walk::Page(_) | Walk::Hole(..) | Walk::Zero => {}
        }
        at.check_entry()?;
    }
    slot.replace(Slot::ZeroMarker);
    Ok(One::There)
}

/// Step 2 (*take out*): removes the run's hidden layers from the chain at `va`.
fn take_out<M: Machine>(space: &Space<M>, va: u64, front: NonNull<Backing<M>>, layers: usize) {
    let vm = space.vm();
    let _writer = space.keep_writers_out(va);
    // The layers of the run that stay because of pages in swap, a bit for each.
    let mut stays = 0u64;
    let merges;
    {
        let pin = vm.epoch().pin();
        // If the map has another chain at `va` now, this front may have been freed.
        let Some(entry) = space.lookup(va, &pin).filter(|e| core::ptr::eq(e.front(), front.as_ptr())) else { return };
        let run = Run { front: entry.front(), layers, excess: 0 };
        let progress = run.front.progress();
        if run.layers().count() != layers {
            // A fork has merged some layers.
            progress.store(IDLE, Ordering::Release);
            return;
        }
        merges = run.layers().map(|l| l.merges()).max().unwrap_or(0);
        for (n, l) in run.layers().enumerate() {
            match run.shows(l, stays, &pin) {
                None => {}
                Some(Shown::Swapped) => stays |= 1 << n,
                Some(Shown::Page(va)) => {
                    // A page within the entry is not hidden yet, because another thread is just copying it. So a later
                    // fault tries again. A page of the front outside the entry is never copied, so copy-up is
                    // impossible.
                    progress.store(if entry.range().contains(va) { IDLE } else { NEVER }, Ordering::Release);
                    return;
                }
            }
        }
    }
    // SAFETY: `front` is the front of an entry. Its chain changes only under the arena's lock, which is held.
    let first = unsafe { front.as_ref() };
    let mut layer = first;
    for n in 0..layers {
        let Some(gone) = NonNull::new(layer.behind_ptr()) else { break };
        if stays >> n & 1 != 0 {
            // SAFETY: `gone` is a layer of this chain, which changes only under the arena's lock, and the lock is held.
            layer = unsafe { gone.as_ref() };
            continue;
        }
        // SAFETY: `gone` is still a layer of this chain, because the arena's lock is held. It is retired only below.
        let object = unsafe {
            backing::take_out(layer, gone.as_ref());
            gone.as_ref().object().map(NonNull::from)
        };
        if let Some(object) = object {
            // SAFETY: no leaf maps a page that `gone` shows, now or later (see the module's head). `gone` is linked,
            // and this loop unlinks it once.
            unsafe { Object::unlink(vm, object, gone, &NeverMapped::new()) };
        }
        // SAFETY: `gone` is out of the chain and on no list, and this loop retires it once.
        unsafe { Backing::retire(gone) };
    }
    backing::note_depth(first);
    first.set_merges(first.merges().max(merges.saturating_add(1)));
    first.progress().store(if stays == 0 { IDLE } else { NEVER }, Ordering::Release);
}
