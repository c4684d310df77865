//! Consecutive frames by number, alignment and limits: what a device or a large page asks for.

use super::{For, Frame};
use crate::error::OutOfMemory;
use crate::machine::Machine;
use crate::page::Kind;
use crate::types::{Pfn, PhysRange};
use crate::vm::Vm;

/// Consecutive frames that are asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Contiguous {
    /// How many.
    pub count: u64,
    /// The first frame's number is a multiple of this: a power of two.
    pub align: u64,
    /// They lie in here.
    pub within: PhysRange,
}

impl Contiguous {
    /// `count` frames anywhere.
    pub fn anywhere(count: u64) -> Contiguous {
        Contiguous { count, align: 1, within: PhysRange { start: Pfn(0), end: Pfn(u32::MAX as u64) } }
    }
}

impl<M: Machine> Vm<M> {
    /// Consecutive frames of one domain. The first stands for all; they go back with [`Vm::free_contiguous`]. Looks at each
    /// descriptor in the limits at most twice, without a lock.
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

    /// Takes back what [`Vm::alloc_contiguous`] gave, with the same count.
    pub fn free_contiguous(&self, first: Frame, count: u64) {
        let start = first.into_pfn().0;
        self.give_back(start, start + count);
    }

    /// The lowest place that is free.
    fn find_contiguous(&self, want: Contiguous, on_behalf: For) -> Option<Frame> {
        let end = want.within.end.0.min(self.page_count());
        let mut start = want.within.start.0.checked_next_multiple_of(want.align)?;
        while start.checked_add(want.count)? <= end {
            // The last frame that is in the way: the next place begins behind it.
            let domain = self.page(Pfn(start)).domain();
            let obstacle = (start..start + want.count).rev().find(|i| {
                let page = self.page(Pfn(*i));
                page.kind() != Kind::Free || page.domain() != domain
            });
            match obstacle {
                Some(at) => start = (at + 1).checked_next_multiple_of(want.align)?,
                None if self.take_free_range(start, want.count, domain, on_behalf) => return Some(Frame(Pfn(start))),
                None => start += want.align,
            }
        }
        None
    }

    fn take_free_range(&self, start: u64, count: u64, domain: u8, on_behalf: For) -> bool {
        let f = self.frames();
        let depot = &f.domains[domain as usize];
        let mut held = depot.held.lock();
        let refused = on_behalf.is_limited() && f.outside() < f.reserve + count;
        if refused || !held.buddy.take_exactly(start, start + count) {
            return false;
        }
        f.account(depot, -(count as i64));
        drop(held);
        self.hand_out(start, start + count, on_behalf.group());
        true
    }
}
