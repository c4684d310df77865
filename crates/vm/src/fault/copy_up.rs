//! Chains that are too deep while other chains still show their layers. Pages of the small layers near the front are
//! copied up into the front, and this chain gives the layers up.
//!
//! If a layer belongs to one chain, fork merges it into the next ([`collapse`](crate::cow::collapse)): pages move. If
//! relatives show it too, no page can move, and each generation's fork adds a layer. So some copy-on-write faults copy
//! more pages than their own. They are those with a source behind more layers than
//! [`Config::layers`](crate::Config::layers) allows. The last of them takes the emptied layers out. A fork never copies
//! up, and no file's page is copied up (a file at the end stays).
//!
//! A page of these layers that is in swap stays there. Sharing its swap slot would need a count for each slot. Copying
//! it would need a read, which this fault does not wait for. A layer that still shows a page in swap stays in the
//! chain. The others go, and the next generation tries again. Once relatives exit, [`collapse`](crate::cow::collapse)
//! moves pages in swap like resident ones, and the reaper frees hidden ones.
//!
//! # Which layers
//! A *run* of layers behind the front. It has at least as many layers as the chain has too many. It ends before a layer
//! that was copied up more often than every layer of the run, and before a layer that is too large. Too large is more
//! than twice the run's size so far, doubled for each time that the layer was copied less often. The last anonymous
//! layer, mostly the first generation's, is too large if it is larger than the run.
//!
//! Let *k* be the layers that a chain may have before the last one, its front included. If generations store about
//! equally much, a page is copied for the *n*th time only after C(k + n, n) generations. No way of merging copies it
//! later (the binomial transform of Bentley and Saxe, 1980). Log-structured stores compare populations alone. That is
//! worse where each generation stores into the same few pages, because such layers do not grow.
//!
//! # How, beside other threads
//! 1. *Copy*, no lock of the map held: page by page as a fault does it ([`FaultContext::copy_up_page`]). Each fault has
//!    a budget. Loads and stores of other threads wait for a busy page for the time of one copy at most. If the page is
//!    mapped, its leaf is replaced. If not, no page table is touched.
//! 2. *Take out*, with the map's lock. In a layer that goes, each page and zero marker must be hidden for good by the
//!    front or by a layer that stays. If a resident page or a marker is not hidden, the run waits for the next fault.
//!    Then no leaf maps a page of a layer that goes. A CPU that filled the front's slot cleared the leaf and flushed
//!    before it unbusied its page. A CPU that came later found the slot filled, under the table page's lock. So the
//!    layers are unlinked. A walk that stands in them continues, under its pin, to the layers behind.
//!
//! A zero marker is made with its slot held, and after a second walk. One walk alone may miss a page that a fork moves
//! forward past it (mutant [`Mutant::ZeroMarkerUnseen`]).
//!
//! - **copy**
//!   - fault in the same place: one fills the slot; the other waits, or begins again
//!   - fork, unmap, clip, `MADV_DONTNEED`: the entry is stale: given up; a CPU that reads the front's slots after the
//!     mark sees the copy (fences on both sides)
//!   - another copy-up: one at a time a front
//! - **take out**
//!   - fault in the same place: walks continue; a source in the run fails the front check
//!   - fork, unmap, clip, `MADV_DONTNEED`: the map's lock
//!   - another copy-up: the map's lock

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

/// Pages that one fault copies up, doubled for each layer too many, so that a line that forks faster than it copies
/// catches up. Later runs copy these pages again, so there are not few.
const PAGES: u64 = 128;
/// Doublings of that at most.
const DOUBLINGS: usize = 8;

/// The part of a fault's budget that a copied page takes. Any other page takes 1.
const A_COPY: u64 = 16;

/// Most layers of a run: a bit each.
const MOST: usize = 64;

/// A thread is copying up.
const RUNNING: u64 = u64::MAX - 1;
/// Impossible for this chain, until its map replaces it.
const NEVER: u64 = u64::MAX - 2;

/// The layers that are copied up: `layers` of them behind the front.
struct Run<'e, M: Machine> {
    front: &'e Backing<M>,
    layers: usize,
    /// Layers that the chain has too many.
    excess: usize,
}

impl<'e, M: Machine> Run<'e, M> {
    /// The run of a chain, or `None` where it is short enough or nothing can be done.
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
            // Read once: a fork may be changing the chain already, and then the entry is stale.
            let times = layer.merges();
            if !must && times > merges {
                break;
            }
            // Counted only as far as needed: the layer at the end may be large.
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

    /// The slots of `layer`, a layer of the run, that neither the front nor a layer in `stays` before it hides for
    /// good. A resident page or a zero marker comes before pages in swap.
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

    /// The first address from `at` on, and below `end`, for which a layer of the run has something.
    fn next(&self, at: u64, end: u64, pin: &Pinned<'_>) -> Option<u64> {
        let each = self.layers().filter_map(|layer| {
            let keys = window(layer, VirtRange { start: at, end })?;
            let (key, _) = layer.object()?.index().first(keys.start, keys.end, pin)?;
            Some(layer.va(key))
        });
        each.min()
    }
}

/// What a layer shows.
enum Shown {
    /// A page, or a zero marker, at this address.
    Page(u64),
    /// Nothing but pages in swap.
    Swapped,
}

/// Whether `layer` has something at `va` that is there to stay.
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

/// The pages of a layer's object that it shows in `range`.
fn window<M: Machine>(layer: &Backing<M>, range: VirtRange) -> Option<Range<u64>> {
    let shown = layer.range().intersect(&range)?;
    let first = layer.key(shown.start);
    Some(first..first + shown.bytes() / PAGE_SIZE)
}

/// The slots that a layer fills in `range`, counted up to about `enough`.
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

/// Pages of a stretch that is copied up at once: a bit each.
const STRETCH: u64 = 64;
/// Pages that are counted at once.
const COUNTED: u64 = 1024;

/// How far a pass came.
enum Came {
    /// Everything is copied up.
    Through,
    /// To this page of the front's range.
    To(u64),
}

/// Copies some pages up where the chain that shows `va` is too deep, and takes layers out once all are copied. For a
/// fault that has just copied a page. Holds nothing; may sleep for the map's lock.
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

/// Step 1, from page `from` of the front's range on.
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
                // No memory, or the entry is being replaced.
                Err(_) => {
                    stuck.get_or_insert(va);
                    break 'all;
                }
            }
        }
    }
    stuck.map_or(Came::Through, |va| Came::To((va - start) / PAGE_SIZE))
}

/// The filled slots of a layer, a bit each of up to [`STRETCH`] pages. A busy slot of the front counts as filled here.
/// If it is emptied again, the check before the run is taken out sees that.
fn filled<M: Machine>(layer: &Backing<M>, stretch: VirtRange, pin: &Pinned<'_>) -> u64 {
    let (Some(object), Some(keys)) = (layer.object(), window(layer, stretch)) else { return 0 };
    let skipped = (layer.va(keys.start) - stretch.start) / PAGE_SIZE;
    let mut all = 0;
    object.index().each_of(keys.start, u64::MAX >> (STRETCH - (keys.end - keys.start)), pin, |n, _| {
        all |= 1 << (u64::from(n) + skipped);
    });
    all
}

/// The outcome for one address.
enum One {
    /// The page was copied.
    Copied,
    /// The front had something there already, or has it now without a copy; or the page is in swap.
    There,
}

/// Fills the front's slot at one address with the content that the chain shows there.
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
    // A zero marker stands there, in the front or in the run, and hides the layers behind. Or a page moved forward past
    // the walk, as at a fork. So the slot is held during a second walk. A page that a fork moves after its mark fails
    // the check of the entry, and the walk finds one moved before.
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

/// Step 2.
fn take_out<M: Machine>(space: &Space<M>, va: u64, front: NonNull<Backing<M>>, layers: usize) {
    let vm = space.vm();
    let _writer = space.keep_writers_out(va);
    // Layers of the run that stay because of pages in swap, a bit each.
    let mut stays = 0u64;
    let merges;
    {
        let pin = vm.epoch().pin();
        // If the map has another chain there by now, this front may be gone.
        let Some(entry) = space.lookup(va, &pin).filter(|e| core::ptr::eq(e.front(), front.as_ptr())) else { return };
        let run = Run { front: entry.front(), layers, excess: 0 };
        let progress = run.front.progress();
        if run.layers().count() != layers {
            // Fork has merged some.
            progress.store(IDLE, Ordering::Release);
            return;
        }
        merges = run.layers().map(|l| l.merges()).max().unwrap_or(0);
        for (n, l) in run.layers().enumerate() {
            match run.shows(l, stays, &pin) {
                None => {}
                Some(Shown::Swapped) => stays |= 1 << n,
                Some(Shown::Page(va)) => {
                    // In the entry: another thread was copying it just then. Outside of it no thread will.
                    progress.store(if entry.range().contains(va) { IDLE } else { NEVER }, Ordering::Release);
                    return;
                }
            }
        }
    }
    // SAFETY: `front` is the front of an entry, whose chain changes under the map's lock only, and the lock is held.
    let first = unsafe { front.as_ref() };
    let mut layer = first;
    for n in 0..layers {
        let Some(gone) = NonNull::new(layer.behind_ptr()) else { break };
        if stays >> n & 1 != 0 {
            // SAFETY: `gone` is a layer of this chain, which changes under the map's lock only, and the lock is held.
            layer = unsafe { gone.as_ref() };
            continue;
        }
        // SAFETY: `gone` is still a layer of this chain, under the map's lock, and is retired below at the earliest.
        let object = unsafe {
            backing::take_out(layer, gone.as_ref());
            gone.as_ref().object().map(NonNull::from)
        };
        if let Some(object) = object {
            // SAFETY: no leaf maps a page that it shows (see the module's head), nor will; it is linked, and unlinked
            // once.
            unsafe { Object::unlink(vm, object, gone, &NeverMapped::new()) };
        }
        // SAFETY: `gone` is out of the chain and on no list, and this loop retires it once.
        unsafe { Backing::retire(gone) };
    }
    backing::note_depth(first);
    first.set_merges(first.merges().max(merges.saturating_add(1)));
    first.progress().store(if stays == 0 { IDLE } else { NEVER }, Ordering::Release);
}
