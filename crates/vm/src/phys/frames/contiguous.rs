//! Consecutive frames by number, alignment and address limits, for devices and large pages.

use super::{For, Frame};
use crate::error::OutOfMemory;
use crate::machine::Machine;
use crate::phys::Physical;
use crate::phys::descriptors::{Closed, SECTION};
use crate::phys::page::{FrameKind, Page};
use crate::types::{Pfn, PhysRange};

/// A request for consecutive frames.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Contiguous {
    /// The number of frames.
    pub count: u64,
    /// The number of the first frame is a multiple of this power of two.
    pub align: u64,
    /// The range in which all the frames must lie.
    pub within: PhysRange,
}

impl Contiguous {
    /// A request for `count` frames at any address.
    pub fn anywhere(count: u64) -> Contiguous {
        Contiguous { count, align: 1, within: PhysRange { start: Pfn(0), end: Pfn(u32::MAX as u64) } }
    }
}

/// The descriptor of a frame, or why it has none.
pub(crate) enum FrameLookup {
    /// The descriptor of the frame.
    Frame(&'static Page),
    /// The frame has no descriptor yet, because its section is closed.
    Closed(Closed),
}

impl<M: Machine> Physical<M> {
    /// Allocates consecutive frames of one domain. The returned first frame stands for all of them.
    /// [`Physical::free_contiguous`](crate::phys::Physical::free_contiguous) frees them. Reads each descriptor within
    /// the limits at most twice, without a lock.
    pub fn alloc_contiguous(&self, want: Contiguous, on_behalf: For) -> Result<Frame, OutOfMemory> {
        if want.count == 0 || !want.align.is_power_of_two() || self.inject_failure() {
            return Err(OutOfMemory);
        }
        if let Some(frame) = self.find_contiguous(want, on_behalf) {
            return Ok(frame);
        }
        self.drain_magazines();
        self.find_contiguous(want, on_behalf).ok_or(OutOfMemory)
    }

    /// Frees frames of [`Physical::alloc_contiguous`](crate::phys::Physical::alloc_contiguous), with the same count.
    ///
    /// # Safety
    /// This system's [`Physical::alloc_contiguous`](crate::phys::Physical::alloc_contiguous) returned this number of
    /// frames, and none of them is used any more.
    pub unsafe fn free_contiguous(&self, first: Frame, count: u64) {
        self.return_contiguous(first, count);
    }

    /// Frees frames of this system, with the same count as they were allocated.
    pub(crate) fn return_contiguous(&self, first: Frame, count: u64) {
        let start = first.into_pfn().0;
        self.give_back(start, start + count);
    }

    /// Allocates the frames at the lowest fitting place.
    fn find_contiguous(&self, want: Contiguous, on_behalf: For) -> Option<Frame> {
        let end = want.within.end.0.min(self.page_count());
        let mut start = want.within.start.0.checked_next_multiple_of(want.align)?;
        while start.checked_add(want.count)? <= end {
            match self.obstacle(start, want.count) {
                Err(next) => start = next.checked_next_multiple_of(want.align)?,
                Ok(domain) if self.take_free_range(start, want.count, domain, on_behalf) => {
                    return Some(Frame::of(self, Pfn(start)));
                }
                Ok(_) => start += want.align,
            }
        }
        None
    }

    /// The domain of `count` frames from `start` on, if all look free. Otherwise the error is the number of the frame
    /// after the last obstacle, where the next candidate may begin.
    fn obstacle(&self, start: u64, count: u64) -> Result<u8, u64> {
        let domain = match self.frame_at(Pfn(start)) {
            FrameLookup::Frame(page) => page.domain(),
            FrameLookup::Closed(Closed::Fresh(domain)) => domain,
            FrameLookup::Closed(Closed::Hole(end)) => return Err(end),
        };
        let mut at = start + count;
        while at > start {
            at -= 1;
            match self.frame_at(Pfn(at)) {
                FrameLookup::Frame(page) if page.kind() == FrameKind::Free && page.domain() == domain => {}
                // The rest of the closed section is free too.
                FrameLookup::Closed(Closed::Fresh(here)) if here == domain => at &= !(SECTION - 1),
                FrameLookup::Closed(Closed::Hole(end)) => return Err(end),
                _ => return Err(at + 1),
            }
        }
        Ok(domain)
    }

    /// The state of frame `pfn`, whose section may be open or closed.
    pub(crate) fn frame_at(&self, pfn: Pfn) -> FrameLookup {
        let pages = &self.frames().pages;
        pages.find(pfn).map_or_else(|| FrameLookup::Closed(pages.closed(pfn)), FrameLookup::Frame)
    }

    fn take_free_range(&self, start: u64, count: u64, domain: u8, on_behalf: For) -> bool {
        let f = self.frames();
        let depot = &f.domains[domain as usize];
        let mut held = depot.held.lock();
        let refused = f.uncached() < f.limit(on_behalf) + count;
        if refused || !held.buddy.take_exactly(start, start + count) {
            return false;
        }
        f.account(depot, -(count as i64));
        drop(held);
        self.hand_out(start, start + count, on_behalf.group());
        true
    }
}
