//! Caches that pageout drops besides pages: page tables of idle spaces, and memory that layers above keep for later.
//!
//! Page tables are a cache of the map: dropping them costs some faults and no write. In each round of a pass a few
//! spaces that no CPU has run for a second lose theirs. Where pages are not enough, all spaces that no CPU runs lose
//! theirs. Tables that came back within a second of such a drop stay. So programs that together need more memory than
//! there is fail, instead of taking each other's tables for ever.

use crate::machine::Machine;
use crate::map::space::spaces::{IDLE, Which};
pub use crate::paging::waiting::Reclaim;
use crate::reclaim::Reclaimer;
use crate::reclaim::scan::{Hands, SHADOWED};
use crate::sleep::MaySleep;
use quire_sync::atomic::Ordering;
use quire_sync::hooks::now;

/// Spaces that a round of a pass visits.
const SOME: usize = if cfg!(any(loom, shuttle)) { 0 } else { 8 };

/// Spaces that the daemon visits under one hold of the hands.
const PART: usize = 64;

/// Whether the last resort goes over all spaces with tables. The models of pageout cover pages only.
const ALL: bool = !cfg!(any(loom, shuttle));

impl<M: Machine> Reclaimer<M> {
    /// From now on pageout calls `keeper` when memory is short, in place of an earlier keeper.
    pub fn reclaim_from(&self, keeper: &'static dyn Reclaim) {
        *self.pageout().keeper.lock() = Some(keeper);
    }

    /// Drops page tables of some spaces that no CPU has run for long; returns how many table pages were freed.
    pub(in crate::reclaim) fn drop_idle_tables(&'static self, hands: &mut Hands) -> u64 {
        self.drop_tables(&mut hands.spaces, SOME, Which::Idle)
    }

    /// Drops page tables of idle spaces while memory is low, each space visited once. For the daemon, where pages can
    /// neither be written nor dropped: no pass runs there, so threads would be refused memory before any table goes.
    /// After a round that found nothing, the next one comes when [`IDLE`] has passed.
    pub(in crate::reclaim) fn drop_tables_ahead(&'static self) {
        let p = self.pageout();
        if !ALL || now() < p.no_tables_until.load(Ordering::Relaxed) {
            return;
        }
        let (mut left, mut found) = (self.spaces_with_tables(), false);
        while left != 0 && self.frames().is_low() && !self.daemons().stopping() {
            // Threads that need the hands wait for a part of the spaces only.
            let tables = self.drop_tables(&mut p.hands.lock().spaces, left.min(PART), Which::Idle);
            left = left.saturating_sub(PART);
            if tables != 0 {
                found = true;
                // To the depots, where the marks are compared.
                self.drain_caches();
            }
        }
        if left == 0 && !found {
            p.no_tables_until.store(now() + IDLE, Ordering::Relaxed);
        }
    }

    /// Drops all caches other than pages; returns whether any memory came back.
    pub(in crate::reclaim) fn take_kept(&'static self, hands: &mut Hands) -> bool {
        let spaces = if ALL { self.spaces_with_tables() } else { 0 };
        let tables = self.drop_tables(&mut hands.spaces, spaces, Which::NotRunning);
        let given = self.ask_keeper();
        // To the buddy lists, where waiting threads count them.
        self.drain_caches();
        tables != 0 || given
    }

    /// Frees all memory that costs no write, whether memory is short or not. That is: pages that no space can see, page
    /// tables of spaces that no CPU runs, the keeper's memory, and free objects of slabs. A CPU can reach only its own
    /// free objects, so those of the calling CPU go. May sleep.
    pub fn give_back_kept(&'static self) {
        let mut may = MaySleep::here();
        while self.reap(SHADOWED, &mut may) >= SHADOWED {}
        // Memory that waits for readers in the epoch.
        self.epoch().drain();
        let slabs = self.map_memory().caches().into_iter().chain(self.object_memory().caches());
        // SAFETY: the caches are those of this system, which they are given.
        slabs.chain(self.heap().caches()).for_each(|cache| unsafe { cache.drain(self) });
        self.take_kept(&mut self.pageout().hands.lock());
    }

    /// Lets the keeper free its memory; returns whether it freed any.
    pub(in crate::reclaim) fn ask_keeper(&self) -> bool {
        let keeper = *self.pageout().keeper.lock();
        keeper.is_some_and(|k| k.reclaim())
    }
}
