//! Zero-ahead: if a program touches new pages in ascending order, a fault makes pages ahead of the touched one.
//!
//! A program that fills new memory touches it page by page, and each first touch is a fault. If *n* pages directly
//! before the touched page are mapped, the fault makes *n* pages directly after it.
//! [`Config::zero_window`](crate::Config::zero_window) limits *n*. A program that touches scattered pages gets only the
//! pages that it touches.
//!
//! No state is kept for this. The table page shows which of the earlier pages were touched. The fault reads the table
//! page, whose lock it already holds. It counts whole cache lines of leaves. A line counts if all its leaves are
//! present and the last one has its access bit. A leaf is entered with the access bit set, except the last leaf of each
//! line that is made ahead. So pages that were made ahead count only once the program has touched the last page of
//! their line. The count begins anew in each table page.
//!
//! `MAP_POPULATE` faults on its range in the same order, so it also makes pages ahead, even beyond its range. No page
//! is made outside the mapping.
//!
//! # Against other CPUs
//! Each page is made as in any fault (relies on C2). The busy page is put into its slot and is zeroed. Then, under the
//! table page's lock, the entry and the layers behind the front are checked again, and the leaf is entered. Only then
//! is the page unbusied. If a check fails, the page is removed again; the fault itself was served before. The object
//! needs no check. It is the object of a front (the first backing of a chain), so it has no end. It is destroyed only
//! after its entry is stale.

impl<M: Machine> Maps<M> {
    /// `Config::zero_window`, limited to `MOST`.
    #[inline(always)]
    pub(crate) fn zero_window(&self) -> u64 {
        u64::from(self.config.zero_window).min(MOST)
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;

use crate::fault::{FaultContext, Walk};
use crate::machine::{Enter, Leaf, Machine, PREFETCHED_BEFORE, Table};
use crate::map::entry::Flags;
use crate::map::maps::Maps;
use crate::mutant::{Mutant, mutant};
use crate::object::Object;
use crate::object::backing::Backing;
use crate::object::index::Slot;
use crate::phys::page::State;
use crate::stats::Event;
use crate::types::{PAGE_SIZE, Pfn, Prot};
use quire_sync::epoch::Pinned;
use quire_sync::trace::{EventKind, note};

/// Number of leaves in a cache line. A window (the pages that one fault makes ahead) consists of whole lines.
const LINE: u64 = if cfg!(any(loom, shuttle)) { 2 } else { 8 };

/// The most pages of a window: a bit of a word for each.
pub(crate) const MOST: u64 = if cfg!(any(loom, shuttle)) { 2 } else { 64 };

impl<'e, M: Machine> FaultContext<'e, M> {
    /// The number of pages to make after the page that this fault has just zero-filled and mapped.
    ///
    /// # Requires
    /// The table page that covers the address is locked.
    #[inline(always)]
    pub fn room_ahead(&self, table: &impl Table<M>) -> u64 {
        let begins_line = (self.va / PAGE_SIZE).is_multiple_of(LINE);
        if begins_line && self.vm.zero_window() > 1 { self.room(table) } else { 0 }
    }

    #[inline(never)]
    fn room(&self, table: &impl Table<M>) -> u64 {
        let Some(here) = table.span().intersect(&self.entry.range()) else { return 0 };
        if self.vm.frames().is_low()
            || !self.entry.prot().contains(Prot::WRITE)
            || self.entry.flags().intersects(Flags::SHARED | Flags::WIRED_ON_FAULT)
        {
            return 0;
        }
        let leaf = |before: u64| table.get(self.va - before * PAGE_SIZE);
        // A leaf of the frame of zeroes is of a page that no store has touched.
        let own = |leaf: &Leaf| leaf.pfn != self.vm.zero_frame();
        let touched = |line: &u64| {
            leaf(line * LINE + 1).filter(own).is_some_and(|last| last.accessed)
                && (2..=LINE).all(|n| leaf(line * LINE + n).filter(own).is_some())
        };
        let most = ((self.va - here.start) / PAGE_SIZE).min(self.vm.zero_window()) / LINE;
        let window = (0..most).take_while(touched).count() as u64 * LINE;
        let next = self.va + PAGE_SIZE;
        let end = here.end.min(self.va + window * PAGE_SIZE);
        let end = if next < end { table.next_present(next, end).unwrap_or(end) } else { next };
        (end - next) / PAGE_SIZE
    }

    /// Makes up to `pages` pages of zeroes in the front, at the addresses directly after the fault's, and maps them.
    /// Makes fewer pages, or none, if a slot or a leaf is filled already or memory is short.
    ///
    /// # Requires
    /// No lock is held.
    #[inline(never)]
    pub fn fill_ahead(&self, object: &'e Object<M>, front: &'e Backing<M>, pages: u64, pin: &Pinned<'_>) {
        let mut made =
            Made { vm: self.vm, object, first: front.key(self.va) + 1, frames: [Pfn(0); MOST as usize], left: 0, pin };
        let unzeroed = made.insert(self, front, pages.min(MOST));
        made.zero(unzeroed);
        let Ok(mut table) = self.table(pin) else { return };
        // Another CPU may still translate an address to the frame of zeroes, as in `install`.
        if table.unflushed() && table.shows_zeroes() {
            return;
        }
        if front.behind().is_some() && !mutant(Mutant::NoLookBehind) {
            made.take_back(|n| !self.is_zero_behind(front, n, pin));
        }
        let prot = self.entry.prot();
        let (from, frames) = (self.va + PAGE_SIZE, &made.frames);
        let mut entered = 0u64;
        table.enter_absent(from, made.left, |n| {
            entered |= 1 << n;
            Enter::new(frames[n], prot)
        });
        for last in (LINE - 2..pages).step_by(LINE as usize).filter(|n| entered >> n & 1 != 0) {
            // No flush is needed, because the leaf was just entered.
            table.take_accessed(from + last * PAGE_SIZE);
        }
        drop(table);
        // No leaf was entered for a page if its address still has an old leaf, which another CPU is about to clear.
        made.take_back(|n| entered >> n & 1 == 0);
        made.keep(from);
    }

    /// Whether no layer behind the front has a page at the `n`th page after the fault's address.
    fn is_zero_behind(&self, front: &'e Backing<M>, n: u64, pin: &Pinned<'_>) -> bool {
        let va = self.va + (n + 1) * PAGE_SIZE;
        let walked = FaultContext { va, ..*self }.walk(front.behind(), false, pin);
        matches!(walked, Ok(Walk::Zero))
    }
}

/// Pages made ahead that are busy and in their object, and not kept yet. A drop removes and frees them; no other thread
/// has read their content then.
struct Made<'o, M: Machine> {
    vm: &'static Maps<M>,
    object: &'o Object<M>,
    /// The key of page 0.
    first: u64,
    frames: [Pfn; MOST as usize],
    /// A bit for each page that is in the object and not kept yet.
    left: u64,
    pin: &'o Pinned<'o>,
}

impl<M: Machine> Made<'_, M> {
    /// Makes up to `pages` pages. Returns a bit for each page that must still be zeroed.
    fn insert(&mut self, at: &FaultContext<'_, M>, front: &Backing<M>, pages: u64) -> u64 {
        let (vm, object) = (self.vm, self.object);
        let pages = match front.behind() {
            Some(_) => (0..pages).take_while(|n| at.is_zero_behind(front, *n, self.pin)).count(),
            None => pages as usize,
        };
        let (taken, zeroed) = vm.take_frames(&mut self.frames[..pages]);
        let bits = object.page_bits() | State::VALID | State::DIRTY;
        for (key, pfn) in (self.first..).zip(&self.frames[..taken]) {
            vm.assume_page(vm.page(*pfn), object.address(), key, bits);
        }
        let filled = object.index().fill_run(self.first, &self.frames[..taken], vm, self.pin);
        self.frames[filled..taken].iter().for_each(|pfn| vm.release_page(vm.page(*pfn)));
        vm.enqueue_all_new(self.frames[..filled].iter().copied());
        self.left = u64::MAX.checked_shr(u64::BITS - filled as u32).unwrap_or(0);
        self.left & !zeroed
    }

    fn zero(&self, mut which: u64) {
        let machine = self.vm.machine();
        while which != 0 {
            let n = which.trailing_zeros() as usize;
            which &= which - 1;
            // The CPU loads the next frame's translation while it zeroes this frame.
            if which != 0 {
                machine.prefetch_frame::<PREFETCHED_BEFORE>(self.frames[which.trailing_zeros() as usize]);
            }
            // SAFETY: this fault holds the pages busy and has not mapped them, so no other CPU uses the frames.
            unsafe { machine.zero_frame(self.frames[n]) };
        }
    }

    /// Removes and frees the pages for which `which` returns true.
    fn take_back(&mut self, which: impl Fn(u64) -> bool) {
        let mut rest = self.left;
        while rest != 0 {
            let n = rest.trailing_zeros();
            rest &= rest - 1;
            if which(n.into()) {
                self.left &= !(1 << n);
                self.take_back_one(n);
            }
        }
    }

    #[cold]
    fn take_back_one(&self, n: u32) {
        let pfn = self.frames[n as usize];
        // If the index was torn down since the insert, the slot is empty already.
        let _gone = self.object.index().clear(self.first + u64::from(n), Slot::Page(pfn), self.pin);
        self.vm.release_page(self.vm.page(pfn));
    }

    /// Keeps the remaining pages and unbusies them. `from` is the address of page 0.
    fn keep(mut self, from: u64) {
        let mut rest = core::mem::take(&mut self.left);
        let kept = u64::from(rest.count_ones());
        while rest != 0 {
            self.vm.unbusy(self.vm.page(self.frames[rest.trailing_zeros() as usize]));
            rest &= rest - 1;
        }
        self.vm.stats().add(Event::FaultAhead, kept);
        note(EventKind::Ahead, 0, from, kept);
    }
}

impl<M: Machine> Drop for Made<'_, M> {
    fn drop(&mut self) {
        self.take_back(|_| true);
    }
}
