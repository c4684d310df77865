//! Checks that each frame is accounted for exactly once.

use super::{Frames, Group, MAX_ORDER};
pub use crate::check::FrameError;
use crate::phys::page::FrameKind;
use crate::types::Pfn;
use quire_sync::atomic::Ordering;

/// The numbers of frames found so far.
#[derive(Default)]
struct FrameTally {
    free: u64,
    cached: u64,
}

impl Frames {
    /// Checks each list and each frame. No other CPU may allocate or free during the check. Takes O(frames) time.
    pub fn check(&self) -> Result<(), FrameError> {
        let mut all = FrameTally::default();
        for (number, depot) in self.domains.iter().enumerate() {
            let held = depot.held.lock();
            let mut here = FrameTally::default();
            for order in 0..=MAX_ORDER {
                let before = here.free;
                for group in Group::ALL {
                    // Large blocks belong to no group, and are on one list.
                    if order >= super::LARGE && group != Group::User {
                        continue;
                    }
                    self.check_row(held.buddy.first(order, group), order, group, number as u8, &mut here)?;
                }
                if held.buddy.blocks()[order as usize] != (here.free - before) >> order {
                    return Err(FrameError::Count(number));
                }
            }
            if held.buddy.free() != here.free {
                return Err(FrameError::Count(number));
            }
            let mut chains = 0;
            for group in Group::ALL {
                let mut next = held.full[group as usize];
                while let Some(head) = next {
                    self.check_chain(Some(head), self.chain(group), &mut here)?;
                    next = self.pages.get(head).prev();
                    chains += 1;
                }
            }
            if depot.chains.load(Ordering::Relaxed) != chains
                || depot.uncached.load(Ordering::Relaxed) != here.free + here.cached + held.buddy.fresh()
            {
                return Err(FrameError::Count(number));
            }
            all.free += here.free;
            all.cached += here.cached;
        }
        for magazine in self.magazines.iter() {
            for chain in magazine.local.lock().chains() {
                self.check_chain(chain.head(), chain.len, &mut all)?;
            }
        }
        // Each frame on a list has the right kind. If the number of frames on the lists equals the number of frames of
        // these kinds, no frame is on two lists or on none.
        let says = |kind| self.pages.opened().filter(|pfn| self.pages.get(*pfn).kind() == kind).count() as i64;
        match says(FrameKind::Free) + says(FrameKind::Cached) - (all.free + all.cached) as i64 {
            0 => Ok(()),
            n => Err(FrameError::Lost(n)),
        }
    }

    fn check_row(
        &self,
        first: Option<Pfn>,
        order: u8,
        group: Group,
        domain: u8,
        found: &mut FrameTally,
    ) -> Result<(), FrameError> {
        let (mut at, mut before) = (first, None);
        while let Some(pfn) = at {
            let page = self.pages.get(pfn);
            found.free += 1 << order;
            let fits = page.order() == order
                && page.domain() == domain
                && (before.is_none() || page.prev() == before)
                && pfn.0.is_multiple_of(1 << order)
                && (order >= super::LARGE || Group::from_u8(page.group()) == group)
                && found.free <= self.total;
            if !fits {
                return Err(FrameError::Block(pfn));
            }
            let frames = (pfn.0..pfn.0 + (1 << order)).map(Pfn);
            if let Some(other) = frames.into_iter().find(|p| self.pages.get(*p).kind() != FrameKind::Free) {
                return Err(FrameError::Kind(other));
            }
            let buddy = Pfn(pfn.0 ^ (1 << order));
            if order < MAX_ORDER
                && let Some(page) = self.pages.find(buddy)
            {
                // A free buddy of this order would have been joined with this block. (The buddy is not inside a larger
                // free block, because that block would contain this one as well.)
                if page.kind() == FrameKind::Free && page.order() == order && page.domain() == domain {
                    return Err(FrameError::Apart(pfn));
                }
            }
            (before, at) = (at, page.next());
        }
        Ok(())
    }

    fn check_chain(&self, head: Option<Pfn>, len: u32, found: &mut FrameTally) -> Result<(), FrameError> {
        let (mut at, mut n) = (head, 0);
        while let Some(pfn) = at
            && n < len
        {
            if self.pages.get(pfn).kind() != FrameKind::Cached {
                return Err(FrameError::Kind(pfn));
            }
            n += 1;
            at = self.pages.get(pfn).next();
        }
        found.cached += n as u64;
        match head {
            Some(first) if n != len || at.is_some() => Err(FrameError::Chain(first)),
            None if len != 0 => Err(FrameError::Lost(-(len as i64))),
            _ => Ok(()),
        }
    }
}
