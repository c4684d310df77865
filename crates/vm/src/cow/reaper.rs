//! The reaper: frees pages, resident or in swap, that nobody shows any more because those who did have left.
//!
//! A copy finds by itself that it hid a page from the last one who saw it ([`last_sharer`]). An exit, an unmapping or
//! a cut that takes the last one away leaves the object here, and looks no further: it costs the leaver a mark, and nothing
//! where the object is marked already. The reaper goes over what was left, some pages at a time ([`Vm::reap`]).
//!
//! What it looks at: of each stretch of an object, the pages of the layers in front of that one backing, of a few, that has the
//! fewest there. A page that is hidden everywhere is hidden by those too; so a shell's children, who come and go over a large
//! parent, cost what the parent wrote in between.
//!
//! # Lists
//! One a CPU, of objects, doubly linked through them, each with its lock. A marked object holds no reference: the last one of
//! its own unlinks it. Who takes it off the list takes a reference first, under the list's lock.

use crate::cow::chain::Backing;
use crate::cow::last_sharer;
use crate::machine::Machine;
use crate::mutant::{Mutant, mutant};
use crate::object::Object;
use crate::object::index::{Cursor, KEYS, Slot};
use crate::object::interval::Interval;
use crate::sleep::MaySleep;
use crate::types::VirtRange;
use crate::vm::{BootMemory, Vm};
use core::cell::Cell;
use core::ops::{ControlFlow, Range};
use core::ptr::{self, NonNull};
use quire_sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence_full};
use quire_sync::epoch::Pinned;
use quire_sync::{PerCpu, Rank, SpinLock, WaitQueue, preempt_off};

/// Pages of an object that are looked at under one pin.
const BLOCK: u64 = 512;
/// Backings of which the one with the fewest pages in front is chosen.
const SAMPLE: usize = 8;
/// Objects on one CPU's list that wake the reaper.
const MANY: usize = 32;
/// Pages that its thread looks at in one call.
const PASS: u64 = 4096;

/// An object's place on a list.
pub(crate) struct Place<M: Machine> {
    /// The list, plus one; 0: on none. Written under that list's lock.
    list: AtomicU32,
    /// Guarded by that lock.
    next: Cell<*const Object<M>>,
    previous: Cell<*const Object<M>>,
    /// The page to go on with, where the last pass ran out of its budget.
    from: AtomicU64,
}

impl<M: Machine> Place<M> {
    pub fn new() -> Self {
        Place {
            list: AtomicU32::new(0),
            next: Cell::new(ptr::null()),
            previous: Cell::new(ptr::null()),
            from: AtomicU64::new(0),
        }
    }
}

struct List<M: Machine> {
    first: *const Object<M>,
    len: usize,
}
// SAFETY: objects on a list are alive, and their links are guarded by its lock.
unsafe impl<M: Machine> Send for List<M> {}

/// The objects that the reaper shall look at.
pub(crate) struct Reaper<M: Machine> {
    lists: PerCpu<SpinLock<List<M>>>,
    /// Where its thread sleeps.
    waits: WaitQueue,
    /// Somebody wants it to look now.
    asked: AtomicBool,
}

impl<M: Machine> Reaper<M> {
    pub fn new(boot: &mut BootMemory<'_, impl Machine>) -> Self {
        Reaper {
            lists: boot.per_cpu(|_| SpinLock::new(Rank::REAPER, List { first: ptr::null(), len: 0 })),
            waits: WaitQueue::new(),
            asked: AtomicBool::new(false),
        }
    }

    /// Leaves `object` to the reaper. The caller keeps it reachable, by a pin at least: it may be going.
    pub fn flag(&self, object: &Object<M>) {
        let place = object.reaping();
        if place.list.load(Ordering::Relaxed) != 0 {
            return;
        }
        let many = {
            let cpu = preempt_off();
            let mut list = self.lists.mine(&cpu).lock();
            let mine = cpu.cpu() as u32 + 1;
            if place.list.compare_exchange(0, mine, Ordering::AcqRel, Ordering::Relaxed).is_err() {
                return;
            }
            place.previous.set(ptr::null());
            place.next.set(list.first);
            // SAFETY: on the list, hence alive.
            if let Some(first) = unsafe { list.first.as_ref() } {
                first.reaping().previous.set(object);
            }
            list.first = object;
            list.len += 1;
            // Teardown: "mark dead, fence, look whether it is on a list". One of the two sees the other.
            fence_full();
            if object.is_dead() && !mutant(Mutant::FlagTheDead) {
                unlink(&mut list, object);
                return;
            }
            list.len == MANY
        };
        if many {
            self.waits.wake_all();
        }
    }

    /// Takes `object` off its list, where it is on one: it goes.
    pub fn forget(&self, object: &Object<M>) {
        let place = object.reaping();
        // Who still marks it sees that it is dead, under the list's lock; so it leaves its list once, by them, by us or by the reaper.
        let at = place.list.load(Ordering::Acquire);
        if at != 0 {
            let mut list = self.lists.of(at as usize - 1).lock();
            if place.list.load(Ordering::Relaxed) == at {
                unlink(&mut list, object);
            }
        }
    }

    /// The next object of `list`, with a reference.
    fn take(&self, list: usize, pin: &Pinned<'_>) -> Option<NonNull<Object<M>>> {
        let mut list = self.lists.of(list).lock();
        loop {
            // SAFETY: on the list, hence alive.
            let object = unsafe { list.first.as_ref() }?;
            unlink(&mut list, object);
            if object.try_ref(pin) {
                return Some(NonNull::from(object));
            }
        }
    }
}

fn unlink<M: Machine>(list: &mut List<M>, object: &Object<M>) {
    let place = object.reaping();
    let (next, previous) = (place.next.get(), place.previous.get());
    // SAFETY: neighbours on the list, hence alive.
    unsafe {
        match previous.as_ref() {
            Some(p) => p.reaping().next.set(next),
            None => list.first = next,
        }
        if let Some(n) = next.as_ref() {
            n.reaping().previous.set(previous);
        }
    }
    list.len -= 1;
    place.list.store(0, Ordering::Release);
}

impl<M: Machine> Vm<M> {
    /// Frees pages that every chain in front of them hides, of objects that somebody has left since they were last looked at,
    /// up to about `budget` pages looked at; returns how many were. Fewer than the budget: nothing is left to do. May sleep.
    pub fn reap(&'static self, budget: u64, may: &mut MaySleep) -> u64 {
        let mut seen = 0;
        for list in 0..self.reaper().lists.len() {
            // What is marked again meanwhile waits for the next call.
            let mut left = self.reaper().lists.of(list).lock().len;
            while left > 0 && seen < budget {
                left -= 1;
                let Some(object) = self.reaper().take(list, &may.pin(self.epoch())) else { break };
                // SAFETY: the reference keeps it.
                seen += sweep(unsafe { object.as_ref() }, budget - seen, may);
                // SAFETY: the reference that `take` took.
                unsafe { Object::unref(self, object) };
            }
        }
        seen
    }

    /// Whether there is something to reap.
    pub fn reapable(&self) -> bool {
        self.reaper().lists.iter().any(|l| !l.lock().first.is_null())
    }

    /// Makes the reaper's thread, where there is one, look at what there is, however little.
    pub(crate) fn wake_reaper(&self) {
        self.reaper().asked.store(true, Ordering::Release);
        self.reaper().waits.wake_all();
    }

    /// Reaps when there is a good deal to do, or somebody asks, until the daemons are stopped.
    pub(crate) fn run_reaper(&'static self) {
        let mut may = MaySleep::here();
        while !self.daemons().stopping() {
            let reaper = self.reaper();
            may.wait_for_work(&reaper.waits, || {
                reaper.asked.swap(false, Ordering::AcqRel) || reaper.lists.iter().any(|l| l.lock().len >= MANY)
            });
            while self.reap(PASS, &mut may) >= PASS && !self.daemons().stopping() {}
        }
    }
}

/// Looks at one object; returns how many pages it looked at, plus one.
fn sweep<M: Machine>(object: &Object<M>, budget: u64, may: &mut MaySleep) -> u64 {
    let mut at = object.reaping().from.swap(0, Ordering::Relaxed);
    let mut seen = 1;
    // Who left has counted itself before it marked the object; what was copied before is seen from here on.
    fence_full();
    while at < KEYS {
        let pin = may.pin(object.vm().epoch());
        let Some(block) = next_block(object, at, &pin) else { break };
        at = block.keys.end;
        let Some(b) = block.by else { continue };
        for layer in b.all_in_front(&pin) {
            seen += 1 + look(object, b, layer, &block.keys, &pin);
        }
        if seen >= budget {
            object.reaping().from.store(at, Ordering::Relaxed);
            object.vm().reaper().flag(object);
            break;
        }
    }
    seen
}

/// A stretch of an object, and a backing that shows it and has few pages in front, but some.
struct Block<'p, M: Machine> {
    keys: Range<u64>,
    by: Option<&'p Backing<M>>,
}

/// The next stretch from `at` on in which a page of the object may be hidden.
fn next_block<'p, M: Machine>(object: &Object<M>, at: u64, pin: &'p Pinned<'_>) -> Option<Block<'p, M>> {
    let (key, _) = object.index().first(at, KEYS, pin)?;
    let mut best: Option<(u64, NonNull<Backing<M>>)> = None;
    let mut sampled = 0;
    let _enough = object.search(key, key + 1, |b| {
        let keys = key..Interval::end(b).min(key + BLOCK);
        let pages = b.all_in_front(pin).map(|l| count(b, l, &keys, pin)).sum();
        if best.is_none_or(|(fewest, _)| pages < fewest) {
            best = Some((pages, NonNull::from(b)));
        }
        sampled += 1;
        if sampled == SAMPLE || pages == 0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    // Shown by nobody: whoever showed it last is about to free it.
    let Some((pages, b)) = best else { return Some(Block { keys: key..key + 1, by: None }) };
    // SAFETY: it was linked under the pin, and its memory goes through the epoch.
    let b: &'p Backing<M> = unsafe { b.as_ref() };
    let shown = Interval::end(b);
    if pages > 0 {
        return Some(Block { keys: key..shown.min(key + BLOCK), by: Some(b) });
    }
    // Nothing in front: on to where there is something.
    let next = b.all_in_front(pin).filter_map(|l| {
        let keys = window(b, l, &(key..shown))?;
        let (first, _) = l.object()?.index().first(keys.start, keys.end, pin)?;
        Some(b.key(l.va(first)))
    });
    let end = next.min().unwrap_or(shown).max(key + 1);
    Some(Block { keys: key..end, by: None })
}

/// The pages of `layer`'s object that stand in front of `keys` of `b`'s.
fn window<M: Machine>(b: &Backing<M>, layer: &Backing<M>, keys: &Range<u64>) -> Option<Range<u64>> {
    let bytes = VirtRange { start: b.va(keys.start), end: b.va(keys.end - 1) + crate::types::PAGE_SIZE };
    let shown = layer.range().intersect(&bytes)?;
    let first = layer.key(shown.start);
    Some(first..first + shown.len() / crate::types::PAGE_SIZE)
}

fn count<M: Machine>(b: &Backing<M>, layer: &Backing<M>, keys: &Range<u64>, pin: &Pinned<'_>) -> u64 {
    match (layer.object(), window(b, layer, keys)) {
        (Some(object), Some(keys)) => object.index().count(keys, pin),
        _ => 0,
    }
}

/// Looks at the pages of `object` behind those of `layer`; returns how many.
fn look<M: Machine>(
    object: &Object<M>,
    b: &Backing<M>,
    layer: &Backing<M>,
    keys: &Range<u64>,
    pin: &Pinned<'_>,
) -> u64 {
    let (Some(front), Some(keys)) = (layer.object(), window(b, layer, keys)) else { return 0 };
    let mut cursor = Cursor::over(keys);
    let mut seen = 0;
    for (key, _) in cursor.resume(front.index(), pin) {
        seen += 1;
        let key = b.key(layer.va(key));
        match object.index().get(key, pin) {
            Slot::Page(pfn) => last_sharer::search(object, key, object.vm().page(pfn), None, pin),
            Slot::Swap(slot) => last_sharer::search_swapped(object, key, slot, pin),
            _ => {}
        }
    }
    seen
}
