//! First touches in a row: a fault makes pages ahead of the touched one.
//!
//! A program that fills fresh memory touches it page by page, and each first touch is a fault. Where the pages before
//! the touched one are mapped, the fault makes as many behind it as lie before it in a row. A window limits them
//! ([`Config::zero_window`](crate::Config::zero_window)). A program that touches scattered pages gets only those.
//!
//! No state is kept for it: the fault reads from the leaves which pages were touched. It reads lines of the table page
//! that it writes or has just written, under the lock that it holds. A line of leaves counts if all its leaves are
//! present and the last one has its access bit. Every leaf is entered with the access bit, but for the last of each
//! line that is made ahead. So if no line was touched to its end, nothing is made. A row begins anew with each table
//! page.
//!
//! `MAP_POPULATE` touches its range in the same way, and the range may end within a window. No page is made outside the
//! mapping.
//!
//! # Against other CPUs
//! Each page is made as a fault makes a page (relies on C2). It is put busy into its slot and gets its content. Then,
//! under the table page's lock, the entry and the layers behind are checked again, and the leaf is entered. Only then
//! is it unbusied. If a check fails, the page is taken back; the fault itself has been served before. The object is not
//! checked: a front's object has no end, and is torn down after the entry is stale.

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
use crate::machine::{Enter, Machine, PREFETCHED_BEFORE, Table};
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

/// Pages of a line of leaves. Windows are whole lines.
const LINE: u64 = if cfg!(any(loom, shuttle)) { 2 } else { 8 };

/// Most pages of a window: a bit each.
pub(crate) const MOST: u64 = if cfg!(any(loom, shuttle)) { 2 } else { 64 };

impl<'e, M: Machine> FaultContext<'e, M> {
    /// How many pages to make behind the page that was just touched first and mapped.
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
        let touched = |line: &u64| {
            leaf(line * LINE + 1).is_some_and(|last| last.accessed)
                && (2..=LINE).all(|n| leaf(line * LINE + n).is_some())
        };
        let most = ((self.va - here.start) / PAGE_SIZE).min(self.vm.zero_window()) / LINE;
        let window = (0..most).take_while(touched).count() as u64 * LINE;
        let next = self.va + PAGE_SIZE;
        let end = here.end.min(self.va + window * PAGE_SIZE);
        let end = if next < end { table.next_present(next, end).unwrap_or(end) } else { next };
        (end - next) / PAGE_SIZE
    }

    /// Makes `pages` pages of zeroes behind the address in the front, and maps them. Makes fewer, or none, where
    /// anything is in the way.
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
            // Just entered: no CPU needs a flush.
            table.take_accessed(from + last * PAGE_SIZE);
        }
        drop(table);
        // An address that has another leaf, which is about to be cleared.
        made.take_back(|n| entered >> n & 1 == 0);
        made.keep(from);
    }

    /// Whether page `n` behind the address is zero in all layers behind the front.
    fn is_zero_behind(&self, front: &'e Backing<M>, n: u64, pin: &Pinned<'_>) -> bool {
        let va = self.va + (n + 1) * PAGE_SIZE;
        let walked = FaultContext { va, ..*self }.walk(front.behind(), false, pin);
        matches!(walked, Ok(Walk::Zero))
    }
}

/// Pages made ahead: busy, in their object, not mapped. Dropping takes back the remaining ones, and no other thread has
/// read their content.
struct Made<'o, M: Machine> {
    vm: &'static Maps<M>,
    object: &'o Object<M>,
    /// The key of page 0.
    first: u64,
    frames: [Pfn; MOST as usize],
    /// A bit for each page that is there.
    left: u64,
    pin: &'o Pinned<'o>,
}

impl<M: Machine> Made<'_, M> {
    /// Makes up to `pages` of them. Returns which must still be zeroed, a bit each.
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
            // The next frame's translation comes while this one is zeroed.
            if which != 0 {
                machine.prefetch_frame::<PREFETCHED_BEFORE>(self.frames[which.trailing_zeros() as usize]);
            }
            // SAFETY: this fault holds the pages busy and has not mapped them, so no other CPU uses the frames.
            unsafe { machine.zero_frame(self.frames[n]) };
        }
    }

    /// Takes back the pages for which `which` is true.
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
        // If the index was dismantled meanwhile, the slot is gone already.
        let _gone = self.object.index().clear(self.first + u64::from(n), Slot::Page(pfn), self.pin);
        self.vm.release_page(self.vm.page(pfn));
    }

    /// Keeps the remaining pages, from address `from` on, and unbusies them.
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
