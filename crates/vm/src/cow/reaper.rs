//! The reaper: a daemon that frees pages, resident or in swap, that no chain shows any more after exits and unmappings.
//!
//! A fault that copies a page searches itself whether the copy hides the page from its last sharer ([`last_sharer`]).
//! An exit, an unmapping or a zero marker that may remove the last sharer only marks the object for the reaper, and
//! searches nothing. The reaper examines marked objects, some pages at a time
//! ([`Objects::reap`](crate::object::Objects::reap)).
//!
//! For each stretch (a range of pages) of an object, the reaper samples a few backings. It chooses the backing with the
//! fewest pages in front. It examines only the pages that the layers in front of that backing hide. That suffices,
//! because these layers also hide each page that every chain hides. For example, a shell has a large memory and many
//! short-lived children. Then the cost follows the pages that the shell wrote between its forks.
//!
//! # Lists
//! Each CPU has a doubly linked list of marked objects, with its own lock. A list holds no reference to its objects:
//! dropping an object's last reference unlinks it. Under the list's lock, the reaper acquires a reference to an object
//! before it unlinks the object.

use crate::cow::last_sharer;
use crate::machine::Machine;
use crate::object::Object;
use crate::object::Objects;
use crate::object::backing::Backing;
use crate::object::index::{Cursor, KEYS, Slot};
use crate::object::interval::Interval;
use crate::sleep::MaySleep;
use crate::types::VirtRange;
use core::ops::{ControlFlow, Range};
use core::ptr::NonNull;
use quire_sync::atomic::{Ordering, fence_full};
use quire_sync::epoch::Pinned;

/// Number of pages of an object that are examined under one pin of the epoch (an RCU read section).
const BLOCK: u64 = 512;
/// The most backings that are looked at under one pin. Beyond this limit, each further page of the block gets a
/// long search of its own, after the pin ([`Long`]).
const LOOKS: u64 = 1024;
/// Number of backings that cost as much of the budget as one page.
const LOOKS_A_PAGE: u64 = 16;
/// Number of sampled backings, of which the one with the fewest pages in front is chosen.
const SAMPLE: usize = 8;

impl<M: Machine> Objects<M> {
    /// Frees the pages of marked objects that every chain hides. Examines about `budget` pages at most, and returns the
    /// number of examined pages. A result below the budget means that no work is left. May sleep.
    pub fn reap(&'static self, budget: u64, may: &mut MaySleep) -> u64 {
        let mut seen = 0;
        for list in 0..self.reaper().lists.len() {
            // An object that is marked again during this call waits for the next call.
            let mut left = self.reaper().lists.of(list).lock().len;
            while left > 0 && seen < budget {
                left -= 1;
                let _keeps = self.count_kept();
                let Some(object) = self.reaper().take(list, &may.pin(self.epoch())) else { break };
                // SAFETY: `take` counted a reference, which only the `unref` after the sweep drops.
                seen += sweep(unsafe { object.as_ref() }, budget - seen, may);
                // SAFETY: `take` counted the reference for this call, and the object is not used after this.
                unsafe { Object::unref(self, object) };
            }
        }
        seen
    }

    /// Whether any object is marked.
    pub fn reapable(&self) -> bool {
        self.reaper().lists.iter().any(|l| !l.lock().first.is_null())
    }

    /// Wakes the reaper's thread, if there is one, to reap the marked objects, even if they are few.
    pub(crate) fn wake_reaper(&self) {
        self.reaper().asked.store(true, Ordering::Release);
        self.reaper().waits.wake_all();
    }
}

/// Examines one object. Returns the number of examined pages, plus one.
fn sweep<M: Machine>(object: &Object<M>, budget: u64, may: &mut MaySleep) -> u64 {
    let mut at = object.reaping().from.swap(0, Ordering::Relaxed);
    let mut seen = 1;
    // Pairs with the thread that raised the count `unlinked` and then marked the object. After this fence, this thread
    // sees all copies that were made before the mark.
    fence_full();
    while at < KEYS {
        let pin = may.pin(object.vm().epoch());
        let Some(block) = next_block(object, at, &pin) else { break };
        at = block.keys.end;
        let mut long = Long { start: block.keys.start, keys: [0; (BLOCK / 64) as usize], looks: 0 };
        if let Some(b) = block.by {
            for layer in b.all_in_front(&pin) {
                seen += 1 + look(object, b, layer, &block.keys, &mut long, &pin);
            }
        }
        drop(pin);
        seen += long.search(object, may) / LOOKS_A_PAGE;
        if seen >= budget {
            object.reaping().from.store(at, Ordering::Relaxed);
            object.vm().reaper().flag(object);
            break;
        }
    }
    seen
}

/// A stretch of an object, and a backing that shows it and has few pages in front. `by` is `None` if no page of the
/// stretch can be hidden.
struct Block<'p, M: Machine> {
    keys: Range<u64>,
    by: Option<&'p Backing<M>>,
}

/// The pages of one stretch that need a long search, which looks at more backings than one pin allows.
struct Long {
    start: u64,
    keys: [u64; (BLOCK / 64) as usize],
    /// An upper bound of the number of backings that were looked at under the stretch's pin.
    looks: u64,
}

impl Long {
    fn add(&mut self, key: u64) {
        let n = key - self.start;
        self.keys[(n / 64) as usize] |= 1 << (n % 64);
    }

    /// Searches for the sharers of the pages in `keys`, each under pins of its own. Returns the number of backings that
    /// it looked at.
    fn search<M: Machine>(self, object: &Object<M>, may: &mut MaySleep) -> u64 {
        let wanted = (0..BLOCK).filter(|n| self.keys[(n / 64) as usize] & 1 << (n % 64) != 0);
        wanted.map(|n| last_sharer::search_all(object, self.start + n, may)).sum()
    }
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
    // If no backing shows the page, the thread that unlinked the last one is about to free it.
    let Some((pages, b)) = best else { return Some(Block { keys: key..key + 1, by: None }) };
    // SAFETY: the backing was linked under the pin, and its memory is freed through the epoch.
    let b: &'p Backing<M> = unsafe { b.as_ref() };
    let shown = Interval::end(b);
    if pages > 0 {
        return Some(Block { keys: key..shown.min(key + BLOCK), by: Some(b) });
    }
    // No layer in front has a page in this block, so continue at the next page of a layer in front.
    let next = b.all_in_front(pin).filter_map(|l| {
        let keys = window(b, l, &(key..shown))?;
        let (first, _) = l.object()?.index().first(keys.start, keys.end, pin)?;
        Some(b.key(l.va(first)))
    });
    let end = next.min().unwrap_or(shown).max(key + 1);
    Some(Block { keys: key..end, by: None })
}

/// The keys of `layer`'s object that are in front of the keys `keys` of `b`'s object.
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

/// Examines the pages of `object` that are behind pages of `layer`. Returns their number.
fn look<M: Machine>(
    object: &Object<M>,
    b: &Backing<M>,
    layer: &Backing<M>,
    keys: &Range<u64>,
    long: &mut Long,
    pin: &Pinned<'_>,
) -> u64 {
    let (Some(front), Some(keys)) = (layer.object(), window(b, layer, keys)) else { return 0 };
    let mut cursor = Cursor::over(keys);
    let mut seen = 0;
    for (key, _) in cursor.resume(front.index(), pin) {
        seen += 1;
        let key = b.key(layer.va(key));
        let slot = object.index().get(key, pin);
        let over = match slot {
            Slot::Page(_) | Slot::Swap(_) if long.looks >= LOOKS => ControlFlow::Break(()),
            Slot::Page(pfn) => last_sharer::search_some(object, key, object.vm().page(pfn), None, pin),
            Slot::Swap(slot) => last_sharer::search_swapped(object, key, slot, pin),
            _ => continue,
        };
        long.looks += object.shards().len().min(last_sharer::LOOKS.into());
        if over.is_break() {
            long.add(key);
        }
    }
    seen
}
