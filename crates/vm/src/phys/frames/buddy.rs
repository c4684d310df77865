//! The free blocks of one domain: a buddy allocator that keeps large frames whole.
//!
//! # Large frames stay together
//! Blocks of [`LARGE`] (2 MiB) or more are *whole* and belong to no group. A smaller block is a piece of a *broken*
//! large frame. It is on the list of the [`Group`] for which the large frame was broken. A request uses the smallest
//! fitting piece of its own group first, so that broken frames are used up. If there is none, it breaks a whole block.
//! If there is no whole block, it uses the largest piece of the other group. The frames of the kernel never move, and
//! the frames of programs are freed together. So few large frames have frames of both groups (Linux's `migratetype`,
//! Gorman and Whitcroft 2006).
//!
//! # Fresh sections
//! Memory that was never used is on no list, but is counted by sections ([`crate::phys::descriptors`]). A section is
//! opened, as one largest block, only if neither the group's pieces nor the whole blocks can serve a request. So memory
//! that was used before is reused first.

use crate::mutant::{Mutant, mutant};
use crate::phys::descriptors::{Closed, Descriptors, SECTION};
use crate::phys::page::{FrameKind, Page};
use crate::types::Pfn;

/// The largest block has 2^MAX_ORDER frames (4 MiB), so a large page fits at any alignment.
#[cfg(not(any(loom, shuttle)))]
pub const MAX_ORDER: u8 = 10;
/// The largest block has 2^MAX_ORDER frames. The number is small, so that only the frames that a model uses have
/// descriptors. The time of a checker grows with the number of atomics.
#[cfg(any(loom, shuttle))]
pub const MAX_ORDER: u8 = 4;

/// log2 of the frames in a large frame (2 MiB).
#[cfg(not(any(loom, shuttle)))]
pub const LARGE: u8 = 9;
/// log2 of the frames in a large frame. It is small, so that the few frames of a checker include some large ones.
#[cfg(any(loom, shuttle))]
pub const LARGE: u8 = 3;

/// Frames that are likely to be freed together.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(crate) enum Group {
    /// Frames of programs. They can be moved or written out, and are freed when the program ends.
    User = 0,
    /// Frames of the kernel, which cannot be moved.
    Kernel = 1,
}

impl Group {
    pub const ALL: [Group; 2] = [Group::User, Group::Kernel];

    pub fn from_u8(n: u8) -> Group {
        if n == Group::Kernel as u8 { Group::Kernel } else { Group::User }
    }
    fn other(self) -> Group {
        if self == Group::User { Group::Kernel } else { Group::User }
    }
}

/// The value of the order field of each frame that is not the first frame of a block on a list.
const INSIDE: u8 = u8::MAX;

/// A list of free blocks of one size, linked in both directions through the descriptor of the first frame.
type Row = Option<Pfn>;

/// The free blocks of a domain. The kind of each free frame is `Free`. Only the first frame of a block that is on a
/// list has an order.
pub(crate) struct Buddy {
    pages: Descriptors,
    domain: u8,
    /// The blocks below [`LARGE`], by group and order.
    broken: [[Row; LARGE as usize]; 2],
    whole: [Row; (MAX_ORDER - LARGE + 1) as usize],
    /// The number of frames in all blocks.
    free: u64,
    /// The number of blocks of each order.
    blocks: [u64; MAX_ORDER as usize + 1],
    fresh: Fresh,
}

/// The position of the search for the domain's next fresh section (4 MiB of never used RAM), and the number of fresh
/// sections left.
struct Fresh {
    /// The index of a run of RAM.
    run: usize,
    section: u64,
    left: u64,
}

impl Buddy {
    /// Empty lists. All whole sections of the domain's RAM are fresh.
    pub fn new(pages: Descriptors, domain: u8) -> Buddy {
        let own = pages.runs().iter().filter(|r| r.domain == domain);
        let left = own.map(|r| r.sections().end - r.sections().start).sum();
        Buddy {
            pages,
            domain,
            broken: [[None; LARGE as usize]; 2],
            whole: [None; (MAX_ORDER - LARGE + 1) as usize],
            free: 0,
            blocks: [0; MAX_ORDER as usize + 1],
            fresh: Fresh { run: 0, section: 0, left },
        }
    }

    /// The number of frames in all blocks.
    pub fn free(&self) -> u64 {
        self.free
    }

    /// The number of blocks of each order.
    pub fn blocks(&self) -> &[u64; MAX_ORDER as usize + 1] {
        &self.blocks
    }

    /// The number of free frames in sections that are not open, because their RAM was never used.
    pub fn fresh(&self) -> u64 {
        self.fresh.left * SECTION
    }

    /// Opens the domain's next fresh section (4 MiB of RAM that was never used). Returns false if none is left.
    fn open_next(&mut self) -> bool {
        while self.fresh.left != 0 {
            let Some(run) = self.pages.runs().get(self.fresh.run) else { return false };
            let (sections, at) = (run.sections(), self.fresh.section);
            if run.domain != self.domain || at >= sections.end {
                (self.fresh.run, self.fresh.section) = (self.fresh.run + 1, 0);
            } else if at < sections.start {
                self.fresh.section = sections.start;
            } else {
                self.fresh.section += 1;
                if !self.pages.is_open(Pfn(at * SECTION)) {
                    self.open(at);
                    return true;
                }
            }
        }
        false
    }

    /// Opens all of the domain's fresh sections.
    pub fn open_all(&mut self) {
        while self.open_next() {}
    }

    /// Opens those fresh sections (4 MiB of never used RAM) of the domain that contain a frame of `start..end`.
    fn open_range(&mut self, start: u64, end: u64) {
        if self.fresh.left == 0 {
            return;
        }
        for section in self.pages.sections(start, end) {
            let first = Pfn(section * SECTION);
            if !self.pages.is_open(first) && self.pages.closed(first) == Closed::Fresh(self.domain) {
                self.open(section);
            }
        }
    }

    /// Opens a fresh section of the domain, which adds one largest block.
    fn open(&mut self, section: u64) {
        let domain = self.domain;
        // SAFETY: the section is closed, as the callers have checked. Whole sections of this domain are opened only
        // under the lock of the domain's depot, which guards this value.
        unsafe { self.pages.open(section, || Page::free(domain, INSIDE)) };
        self.fresh.left -= 1;
        self.link(Pfn(section * SECTION), MAX_ORDER, Group::User);
    }

    /// Opens the sections without RAM that contain a frame of `start..end`, so that a device's frames get descriptors.
    pub fn open_holes(&mut self, start: u64, end: u64) {
        for section in self.pages.sections(start, end) {
            let first = section * SECTION;
            if !self.pages.is_open(Pfn(first)) && matches!(self.pages.closed(Pfn(first)), Closed::Hole(_)) {
                // SAFETY: the section is closed. Sections without RAM are opened only under the lock of the first
                // domain's depot.
                unsafe { self.pages.open_reserved(first, first + SECTION) };
            }
        }
    }

    fn row(&mut self, order: u8, group: Group) -> &mut Row {
        match order.checked_sub(LARGE) {
            Some(o) => &mut self.whole[o as usize],
            None => &mut self.broken[group as usize][order as usize],
        }
    }

    /// The first block on the list of an order and group.
    pub fn first(&self, order: u8, group: Group) -> Option<Pfn> {
        match order.checked_sub(LARGE) {
            Some(o) => self.whole[o as usize],
            None => self.broken[group as usize][order as usize],
        }
    }

    fn link(&mut self, pfn: Pfn, order: u8, group: Group) {
        let pages = self.pages;
        let page = pages.get(pfn);
        page.set_kind(FrameKind::Free);
        page.set_order(order);
        page.set_group(group as u8);
        let row = self.row(order, group);
        page.set_next(*row);
        if let Some(h) = row.replace(pfn) {
            pages.get(h).set_prev(Some(pfn));
        }
        self.free += 1 << order;
        self.blocks[order as usize] += 1;
    }

    fn unlink(&mut self, pfn: Pfn) {
        let page = self.pages.get(pfn);
        let (order, group) = (page.order(), Group::from_u8(page.group()));
        if self.first(order, group) == Some(pfn) {
            // The new head keeps a stale `prev`, which is not read while it is the head. So taking the head of a list
            // writes no other block's descriptor.
            *self.row(order, group) = page.next();
        } else {
            if let Some(p) = page.prev() {
                self.pages.get(p).set_next(page.next());
            }
            if let Some(n) = page.next() {
                self.pages.get(n).set_prev(page.prev());
            }
        }
        if !mutant(Mutant::TakenStaysFree) {
            page.set_kind(FrameKind::Unowned);
            page.set_order(INSIDE);
        }
        self.free -= 1 << order;
        self.blocks[order as usize] -= 1;
    }

    /// The smallest block of at least `order`, on the group's lists of smaller blocks or among the blocks of 2 MiB or
    /// more.
    fn own(&self, order: u8, group: Group) -> Option<(Pfn, u8)> {
        (order..=MAX_ORDER).find_map(|o| self.first(o, group).map(|p| (p, o)))
    }

    /// The block from which a request for `order` is served, with its order.
    fn choose(&self, order: u8, group: Group) -> Option<(Pfn, u8)> {
        self.own(order, group).or_else(|| {
            // No block of 2 MiB or more is left. The largest block of the other group is used, so that this group does
            // not need another one soon.
            (order..LARGE).rev().find_map(|o| self.first(o, group.other()).map(|p| (p, o)))
        })
    }

    /// Allocates 2^`order` frames, aligned to their size, for `group`. The caller sets their kind after it has released
    /// the lock.
    pub fn take(&mut self, order: u8, group: Group) -> Option<Pfn> {
        if self.own(order, group).is_none() {
            self.open_next();
        }
        let (pfn, from) = self.choose(order, group)?;
        self.unlink(pfn);
        for o in (order..from).rev() {
            self.link(Pfn(pfn.0 + (1 << o)), o, group);
        }
        Some(pfn)
    }

    /// Allocates one block of at most 2^`most` frames: the smallest piece of `group`, or if there is none, a block that
    /// [`Buddy::take`] breaks. Also returns its order.
    pub fn take_piece(&mut self, most: u8, group: Group) -> Option<(Pfn, u8)> {
        match (0..=most.min(LARGE - 1)).find_map(|o| self.first(o, group).map(|p| (p, o))) {
            Some((pfn, order)) => {
                self.unlink(pfn);
                Some((pfn, order))
            }
            None => {
                if self.own(most, group).is_none() {
                    self.open_next();
                }
                // The largest order up to `most` that can still be served.
                let fits = |o: &u8| self.choose(*o, group).is_some();
                let order = (0..=most).rev().find(fits)?;
                self.take(order, group).map(|pfn| (pfn, order))
            }
        }
    }

    /// Frees a block, and joins it with its free neighbours.
    pub fn put(&mut self, mut pfn: Pfn, mut order: u8, group: Group) {
        for i in pfn.0..pfn.0 + (1 << order) {
            self.pages.get(Pfn(i)).set_kind(FrameKind::Free);
            self.pages.get(Pfn(i)).set_order(INSIDE);
        }
        while order < MAX_ORDER {
            let buddy = Pfn(pfn.0 ^ (1 << order));
            if !self.is_block(buddy, order) {
                break;
            }
            self.unlink(buddy);
            self.pages.get(buddy).set_kind(FrameKind::Free);
            pfn = Pfn(pfn.0 & !(1 << order));
            order += 1;
        }
        self.link(pfn, order, group);
    }

    /// Whether a free block of this order and domain begins at `pfn`.
    fn is_block(&self, pfn: Pfn, order: u8) -> bool {
        let is = |page: &Page| page.kind() == FrameKind::Free && page.order() == order && page.domain() == self.domain;
        self.pages.find(pfn).is_some_and(is)
    }

    /// The free block that contains `pfn`: its first frame and its order.
    fn block_of(&self, pfn: Pfn) -> Option<(Pfn, u8)> {
        (0..=MAX_ORDER).map(|o| (Pfn(pfn.0 & !((1 << o) - 1)), o)).find(|(first, o)| self.is_block(*first, *o))
    }

    /// Allocates exactly the frames `start..end` if all are free in this domain. Otherwise returns false and allocates
    /// none.
    pub fn take_exactly(&mut self, start: u64, end: u64) -> bool {
        self.open_range(start, end);
        let mut at = start;
        while at < end {
            let Some((first, order)) = self.block_of(Pfn(at)) else { return false };
            at = first.0 + (1 << order);
        }
        self.take_free(start, end, &mut |_| {});
        true
    }

    /// Allocates the frames of `start..end` that are free in this domain, and calls `f` with each. Returns their
    /// number.
    pub fn take_free(&mut self, start: u64, end: u64, f: &mut dyn FnMut(Pfn)) -> u64 {
        self.open_range(start, end);
        let (mut at, mut taken) = (start, 0);
        while at < end {
            let Some((first, order)) = self.block_of(Pfn(at)) else {
                at += 1;
                continue;
            };
            let group = Group::from_u8(self.pages.get(first).group());
            self.unlink(first);
            let (block_start, block_end) = (first.0, first.0 + (1 << order));
            // The taken frames are marked first. Otherwise the rest of the block would be joined with them.
            (start.max(block_start)..end.min(block_end)).for_each(|i| {
                self.pages.get(Pfn(i)).set_kind(FrameKind::Unowned);
                f(Pfn(i));
            });
            self.put_range(block_start, start.max(block_start), group);
            self.put_range(end.min(block_end), block_end, group);
            taken += end.min(block_end) - start.max(block_start);
            at = block_end;
        }
        taken
    }

    /// Frees consecutive frames that do not form one block.
    pub fn put_range(&mut self, mut start: u64, end: u64, group: Group) {
        while start < end {
            let align = if start == 0 { MAX_ORDER as u32 } else { start.trailing_zeros() };
            let order = align.min((end - start).ilog2()).min(MAX_ORDER as u32) as u8;
            self.put(Pfn(start), order, group);
            start += 1 << order;
        }
    }

    /// The number of large frames that are wholly free.
    pub fn large(&self) -> u64 {
        let blocks =
            |o: u8| core::iter::successors(self.first(o, Group::User), |p| self.pages.get(*p).next()).count() as u64;
        (LARGE..=MAX_ORDER).map(|o| blocks(o) << (o - LARGE)).sum::<u64>() + (self.fresh() >> LARGE)
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;
