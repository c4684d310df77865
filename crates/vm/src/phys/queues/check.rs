//! Checks the queues: recomputes the length and links of each shard, and compares the place in each page's state.

use super::{Queue, QueuePlace, Queues};
pub use crate::check::QueueError;
use crate::phys::page::FrameKind;
use crate::types::Pfn;
use quire_sync::atomic::Ordering;

impl Queues {
    /// Checks each shard under its lock, one after the other. `quiet` states that no other CPU changes queues. Without
    /// `quiet`, a page whose identity has just been removed is accepted. With `quiet`, each page whose state names a
    /// queue must also be found in it. Takes O(pages in queues) time, and O(frames) with `quiet`.
    pub fn check(&self, quiet: bool) -> Result<(), QueueError> {
        let mut listed = 0;
        for queue in Queue::ALL {
            // The loop is by number. The iterator skips empty shards, but a length of zero may be the error.
            for number in 0..self.count {
                listed += self.check_part(queue, number, quiet)?;
            }
        }
        if !quiet {
            return Ok(());
        }
        let says = |pfn: &Pfn| matches!(QueuePlace::of(self.pages.get(*pfn).state()), QueuePlace::Listed(..));
        let mut all = self.pages.opened().filter(says);
        // The number of states that name a queue must equal the number of pages found in the queues. Otherwise the
        // error names the first page that is in no shard.
        match all.clone().count() as u64 == listed {
            true => Ok(()),
            false => Err(QueueError::Lost(all.find(|pfn| !self.is_linked(*pfn)).unwrap_or(Pfn(0)))),
        }
    }

    fn check_part(&self, queue: Queue, number: usize, quiet: bool) -> Result<u64, QueueError> {
        let part = self.part(queue, number);
        let list = part.list.lock();
        let len = part.len.load(Ordering::Relaxed) as u64;
        let (mut at, mut before, mut found) = (list.head, None, 0);
        while let Some(pfn) = at {
            found += 1;
            if found > len {
                return Err(QueueError::Length(queue, number));
            }
            let page = self.pages.get(pfn);
            if page.prev() != before {
                return Err(QueueError::Links(pfn));
            }
            let place = QueuePlace::of(page.state());
            let leaving = place == QueuePlace::Nowhere && !quiet;
            if place != QueuePlace::Listed(queue, number as u16) && !leaving {
                return Err(QueueError::Place(pfn));
            }
            // A page that is leaving its queue changes its kind first.
            if quiet && page.kind() != FrameKind::Object {
                return Err(QueueError::NoPage(pfn));
            }
            (before, at) = (at, page.next());
        }
        if list.tail != before {
            return Err(before.map_or(QueueError::Length(queue, number), QueueError::Links));
        }
        if found != len {
            return Err(QueueError::Length(queue, number));
        }
        Ok(found)
    }

    /// Whether `pfn` is in the list of the shard that its state names.
    fn is_linked(&self, pfn: Pfn) -> bool {
        let QueuePlace::Listed(queue, number) = QueuePlace::of(self.pages.get(pfn).state()) else { return false };
        let list = self.part(queue, number as usize).list.lock();
        core::iter::successors(list.head, |p| self.pages.get(*p).next()).any(|p| p == pfn)
    }
}
