//! Walking, linking and pruning the tree of table pages of one address space.
//!
//! # The protocol
//! Walkers go down without locks, pinned in the epoch, and lock only the table page that they searched for. Then they
//! check that it is not dead; if it is, they begin again. A table page is linked under its parent's lock, if the parent
//! is not dead. The pruner locks the parent, then the child, and verifies that the child is empty and owes no flush. It
//! marks the child dead, and clears the parent's entry. Then it releases both locks and flushes paging-structure
//! caches. Only after that it retires the page to the epoch. The root is made and dropped by the same rules, under the
//! lock of the word that names it ([`root`](crate::root)).
//!
//! | | walk and lock | link | prune |
//! |---|---|---|---|
//! | **walk and lock** | the page's lock | a walker finds the entry or links a page itself; one CPU wins under the parent's lock | the walker checks the dead mark under the page's lock; the epoch keeps pages that a walker has reached |
//! | **link** | | the parent's lock; the loser keeps its page as a spare | the parent's lock and its dead mark |
//! | **prune** | | | the parent's lock, then the child's; a child is unlinked once, under both locks |
//! | **scan for the next table** | none needed | the scanner marks, fences and scans; the linker links, locks the page, fences and checks marks: one sees the other (relies on C3: stale entries) | the scanner finds the page dead and searches again |

use crate::format::{FANOUT, Format, base, index, span};
use crate::mutant::{Mutant, mutant};
use crate::root::Root;
use crate::roots::Fan;
use crate::table::{Memory, View};
use core::marker::PhantomData;
use quire_sync::SpinGuard;
use quire_sync::atomic::{AtomicU64, Ordering, fence_after_rmw};
use quire_vm::{OutOfMemory, Pfn, VirtRange};

/// The most last-level table pages that are pruned under one pin. Preemption is off for that time.
#[cfg(not(any(loom, shuttle)))]
const STEP: u32 = 32;
/// The number is one, so that the model checkers interleave steps.
#[cfg(any(loom, shuttle))]
const STEP: u32 = 1;

/// A locked, live, last-level table page.
pub(crate) struct Locked<'a> {
    pub view: View<'a>,
    /// The first address that it covers.
    pub base: u64,
    _guard: SpinGuard<'a, ()>,
}

/// A list of table pages that were unlinked, and wait for one flush.
pub(crate) struct Dead {
    /// The first page of the list. The pages are linked through their descriptors.
    pub first: Option<Pfn>,
    /// A range that covers the addresses of all these pages.
    pub covered: VirtRange,
}

impl Dead {
    pub(crate) fn new() -> Dead {
        Dead { first: None, covered: VirtRange { start: u64::MAX, end: 0 } }
    }
}

/// The tables of one space.
pub(crate) struct Tree<'m, F: Format, A: Memory> {
    pub memory: &'m A,
    pub root: &'m Root,
    /// Says whether entries of the root must stay linked, because CPUs have copies of these entries. A CPU may copy an
    /// entry at any moment, so the pruner asks under the root's lock.
    pub fan: &'m Fan,
    pub format: PhantomData<F>,
}

/// A table page that was allocated but is not linked yet. Dropping this value frees the page, if it was not used.
struct SpareTable<'m, A: Memory> {
    memory: &'m A,
    page: Option<(Pfn, u32)>,
}

impl<A: Memory> SpareTable<'_, A> {
    fn provide(&mut self, level: u32) -> Result<(), OutOfMemory> {
        if self.page.is_some_and(|(_, l)| l != level)
            && let Some((pfn, _)) = self.page.take()
        {
            self.memory.free(pfn);
        }
        if self.page.is_none() {
            self.page = Some((self.memory.allocate(level)?, level));
        }
        Ok(())
    }
}

impl<A: Memory> Drop for SpareTable<'_, A> {
    fn drop(&mut self) {
        if let Some((pfn, _)) = self.page.take() {
            self.memory.free(pfn);
        }
    }
}

impl<'m, F: Format, A: Memory> Tree<'m, F, A> {
    /// Locks the last-level table page over `va`, and links missing levels. A full fence follows the locking, before
    /// the return. If the space has no root, `make` makes and publishes one.
    #[inline(always)]
    pub(crate) fn lock_last(
        &self,
        va: u64,
        pin: &A::Pin<'_>,
        make: impl Fn() -> Result<(), OutOfMemory>,
    ) -> Result<Locked<'m>, OutOfMemory> {
        loop {
            // `last_linking` returns only the frame number. The locked value is built here, so that it stays in
            // registers.
            let t = match self.last(va) {
                Some(t) => t,
                None => self.last_linking(va, pin, &make)?,
            };
            // If the page is dead, its parent no longer names it, and the next iteration links another page.
            if let Some(locked) = self.lock_live(t, va) {
                return Ok(locked);
            }
        }
    }

    /// Returns the last-level table page over `va`, if it exists.
    ///
    /// # Requires
    /// The caller is pinned.
    #[inline(always)]
    fn last(&self, va: u64) -> Option<Pfn> {
        let mut t = self.root.get()?;
        for level in (1..F::LEVELS).rev() {
            let word = self.memory.slots(t)[index(va, level)].load(Ordering::Acquire);
            if !F::present(word) {
                return None;
            }
            t = F::frame(word);
        }
        Some(t)
    }

    /// Returns the entry that names the last-level table page over `va`. The caller has locked that page, which is
    /// live, so no pruner changes the entry.
    pub(crate) fn above(&self, va: u64) -> &'m AtomicU64 {
        let above = |t, level| &self.memory.slots(t)[index(va, level)];
        let below = |t, level| F::frame(above(t, level).load(Ordering::Acquire));
        let Some(root) = self.root.get() else { unreachable!("a live table page has a root above it") };
        above((2..F::LEVELS).rev().fold(root, below), 1)
    }

    /// As [`last`](Self::last), but links missing levels. If the space has no root, calls `make` first.
    ///
    /// # Requires
    /// The caller is pinned.
    #[cold]
    #[inline(never)]
    fn last_linking(
        &self,
        va: u64,
        _pin: &A::Pin<'_>,
        make: &impl Fn() -> Result<(), OutOfMemory>,
    ) -> Result<Pfn, OutOfMemory> {
        let mut spare = SpareTable { memory: self.memory, page: None };
        'again: loop {
            let Some(mut t) = self.root.get() else {
                make()?;
                continue;
            };
            for level in (1..F::LEVELS).rev() {
                let word = self.memory.slots(t)[index(va, level)].load(Ordering::Acquire);
                t = if F::present(word) {
                    F::frame(word)
                } else {
                    match self.link(t, level, va, &mut spare)? {
                        Some(child) => child,
                        None => continue 'again,
                    }
                };
            }
            return Ok(t);
        }
    }

    /// Links a table page into the empty entry over `va` of `parent`, a table at `level`. Returns the table page of
    /// that entry, or `None` if the parent is dead.
    ///
    /// # Requires
    /// The caller is pinned.
    #[cold]
    fn link(
        &self,
        parent: Pfn,
        level: u32,
        va: u64,
        spare: &mut SpareTable<'_, A>,
    ) -> Result<Option<Pfn>, OutOfMemory> {
        // The page is provided before the lock, because zeroing it under the lock would delay every other fault below
        // this parent.
        spare.provide(level - 1)?;
        let parent = View::of(self.memory, parent);
        let _guard = parent.state.lock();
        if parent.state.is_dead() && !mutant(Mutant::LinkNoDeadCheck) {
            return Ok(None);
        }
        let i = index(va, level);
        let word = parent.slots[i].load(Ordering::Acquire);
        if F::present(word) && !mutant(Mutant::LinkUnlooked) {
            return Ok(Some(F::frame(word)));
        }
        let Some((child, _)) = spare.page.take() else { unreachable!("a spare was just provided") };
        parent.put(i, F::user_table(child));
        Ok(Some(child))
    }

    /// Locks `t` and fences. Returns `None` if `t` is dead.
    ///
    /// # Requires
    /// The caller is pinned.
    #[inline(always)]
    fn lock_live(&self, t: Pfn, va: u64) -> Option<Locked<'m>> {
        let view = View::of(self.memory, t);
        let guard = view.state.lock();
        // Relies on C2: a fault checks everything under this lock. The caller reads stale marks and busy bits after
        // this fence, and the table page was linked before it. A remover marks, fences, and then scans. So the caller
        // sees the mark, or the remover's scan reaches this table page.
        if !mutant(Mutant::TableNoFence) {
            fence_after_rmw();
        }
        if view.state.is_dead() && !mutant(Mutant::TableNoDeadCheck) {
            return None;
        }
        Some(Locked { view, base: base(va, 1), _guard: guard })
    }

    /// Locks the first existing last-level table page that covers an address of `range`; `None` if there is none.
    ///
    /// # Requires
    /// The caller has fenced since it published its marks (stale entries, busy pages).
    #[inline]
    pub(crate) fn lock_next(&self, range: VirtRange) -> Option<Locked<'m>> {
        loop {
            let _pin = self.memory.pin();
            // Most often there is a table page over the start of the range.
            let (t, va) = match self.last(range.start) {
                Some(t) if !range.is_empty() => (t, range.start),
                _ => self.find(self.root.get()?, F::LEVELS - 1, range.start, range.end)?,
            };
            if let Some(locked) = self.lock_live(t, va) {
                return Some(locked);
            }
        }
    }

    /// Searches below `t`, a table at `level`. Returns the first last-level table page that covers an address of
    /// `from..to`, with the first address that it covers.
    ///
    /// # Requires
    /// The caller is pinned.
    fn find(&self, t: Pfn, level: u32, from: u64, to: u64) -> Option<(Pfn, u64)> {
        let view = View::of(self.memory, t);
        let (mut from, last) = (from, index(to.checked_sub(1)?, level));
        while from < to {
            let (i, word) = view.next(index(from, level), last)?;
            let start = base(from, level) + (i - index(from, level)) as u64 * span(level);
            let end = start + span(level);
            if F::present(word) {
                if level == 1 {
                    return Some((F::frame(word), start));
                }
                if let Some(found) = self.find(F::frame(word), level - 1, from.max(start), to.min(end)) {
                    return Some(found);
                }
            }
            if i == last {
                return None;
            }
            from = end;
        }
        None
    }

    /// Whether a removal in the last-level table page over `va` is not flushed yet. If that page is absent, the lowest
    /// existing table page above it decides. A space without a root owes nothing.
    pub(crate) fn unflushed(&self, va: u64) -> bool {
        let _pin = self.memory.pin();
        let Some(mut t) = self.root.get() else { return false };
        for level in (1..F::LEVELS).rev() {
            let word = self.memory.slots(t)[index(va, level)].load(Ordering::Acquire);
            if !F::present(word) {
                break;
            }
            t = F::frame(word);
        }
        self.memory.state(t).unflushed()
    }

    /// Does one step of pruning `range`. Visits at most [`STEP`] last-level table pages. Unlinks the empty ones that
    /// lie wholly inside, and upper tables that become empty. Adds them to `dead`; the caller flushes them from
    /// paging-structure caches and then retires them. Returns the start of the next step, or `range.end` if nothing is
    /// left. Between steps nothing is pinned, so each step begins at the root again.
    pub(crate) fn prune_some(&self, range: VirtRange, dead: &mut Dead) -> u64 {
        let _pin = self.memory.pin();
        let mut left = STEP;
        let Some(root) = self.root.get() else { return range.end };
        self.prune_below(root, F::LEVELS - 1, range.start, range.end, &mut left, dead).unwrap_or(range.end)
    }

    /// Prunes below `t`, a table at `level`. Returns the address where the next step continues, or `None` if it has
    /// finished.
    ///
    /// # Requires
    /// The caller is pinned.
    fn prune_below(&self, t: Pfn, level: u32, from: u64, to: u64, left: &mut u32, dead: &mut Dead) -> Option<u64> {
        let view = View::of(self.memory, t);
        let keeps_early = mutant(Mutant::KeepsRootEarly) && level == F::LEVELS - 1 && self.fan.keeps_root();
        let mut at = from;
        while at < to {
            let (i, word) = view.next(index(at, level), index(to - 1, level))?;
            let start = base(at, level) + (i - index(at, level)) as u64 * span(level);
            let end = start + span(level);
            if F::present(word) {
                let child = F::frame(word);
                if level > 1 {
                    if let Some(next) = self.prune_below(child, level - 1, at.max(start), to.min(end), left, dead) {
                        return Some(next);
                    }
                } else if *left == 0 {
                    return Some(at.max(start));
                } else {
                    *left -= 1;
                }
                let whole = from <= start && end <= to;
                if !keeps_early
                    && (whole || level > 1)
                    && self.memory.state(child).live() == 0
                    && self.unlink(&view, i, child, dead)
                {
                    dead.covered.start = dead.covered.start.min(start);
                    dead.covered.end = dead.covered.end.max(end);
                }
            }
            at = end;
        }
        None
    }

    /// Unlinks `child` from entry `i` of `parent`, if it is still there, empty and owes no flush. Returns whether it
    /// did.
    fn unlink(&self, parent: &View<'m>, i: usize, child: Pfn, dead: &mut Dead) -> bool {
        let _parent = parent.state.lock();
        let word = parent.slots[i].load(Ordering::Acquire);
        if !F::present(word) || F::frame(word) != child {
            return false;
        }
        if self.root.get() == Some(parent.pfn) && !mutant(Mutant::KeepsRootEarly) && self.fan.keeps_root() {
            return false;
        }
        let view = View::of(self.memory, child);
        let child_lock = (!mutant(Mutant::PruneNoChildLock)).then(|| view.state.lock_child());
        let empty = view.kill_if_empty();
        if empty {
            parent.unlink(i);
            self.memory.set_next(child, dead.first);
            dead.first = Some(child);
        }
        drop(child_lock);
        empty
    }

    /// Retires dead table pages to the epoch.
    ///
    /// # Requires
    /// The pages have left every paging-structure cache.
    pub(crate) fn retire(&self, dead: Dead) {
        let mut next = dead.first;
        while let Some(t) = next {
            next = self.memory.next(t);
            self.memory.retire(t);
        }
    }

    /// Frees the table page `t` at `level` and all table pages below, which no walker can reach any more. Clears the
    /// entries above the last level first.
    pub(crate) fn free_below(&self, t: Pfn, level: u32) {
        if level > 0 {
            let view = View::of(self.memory, t);
            let mut i = 0;
            while let Some((at, word)) = view.next(i, FANOUT - 1) {
                self.free_below(F::frame(word), level - 1);
                view.unlink_last(at);
                i = at + 1;
            }
        }
        self.memory.free(t);
    }
}
