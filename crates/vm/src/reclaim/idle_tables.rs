//! What pageout takes that is no page of anybody's: page tables of idle spaces, and what layers above keep for later.
//!
//! Page tables are a cache of the map: dropped, they cost a fault or some, no write. In each round of a pass a few spaces that
//! nobody has run for a second lose theirs. Where pages are not enough, so do all that no CPU runs, except that tables which
//! came back within a second of such a drop stay: programs that together need more than there is are told so, instead of
//! taking each other's tables for ever.

use crate::machine::Machine;
use crate::map::Which;
pub use crate::paging::waiting::Reclaim;
use crate::reclaim::Reclaimer;
use crate::reclaim::scan::{Hands, SHADOWED};
use crate::sleep::MaySleep;

/// Spaces that a round of a pass looks at.
const SOME: usize = if cfg!(any(loom, shuttle)) { 0 } else { 8 };

/// Whether the last resort goes over all spaces. The models of pageout are of pages.
const ALL: bool = !cfg!(any(loom, shuttle));

impl<M: Machine> Reclaimer<M> {
    /// From now on pageout asks `keeper` when memory is short; who was told before is not asked any more.
    pub fn reclaim_from(&self, keeper: &'static dyn Reclaim) {
        *self.pageout().keeper.lock() = Some(keeper);
    }

    /// Page tables of some spaces that nobody has run for long; returns how many table pages went.
    pub(in crate::reclaim) fn drop_idle_tables(&'static self, hands: &mut Hands) -> u64 {
        self.drop_tables(&mut hands.spaces, SOME, Which::Idle)
    }

    /// All that can go without a look at a page; returns whether anything came back.
    pub(in crate::reclaim) fn take_kept(&'static self, hands: &mut Hands) -> bool {
        let spaces = if ALL { self.spaces() } else { 0 };
        let tables = self.drop_tables(&mut hands.spaces, spaces, Which::NotRunning);
        let given = self.ask_keeper();
        // Where whoever waits counts them.
        self.drain_caches();
        tables != 0 || given
    }

    /// Gives back all that costs no write, short or not: what nobody sees any more, page tables of spaces that no CPU runs, what the keeper
    /// keeps, and free objects of slabs. Of those each CPU reaches its own only, so the calling one gives back its own. May sleep.
    pub fn give_back_kept(&'static self) {
        let mut may = MaySleep::here();
        while self.reap(SHADOWED, &mut may) >= SHADOWED {}
        // What waits for readers to go.
        self.epoch().drain();
        let slabs = self.map_memory().caches().into_iter().chain(self.object_memory().caches());
        // SAFETY: the caches are those of this system, which they are given.
        slabs.chain(self.heap().caches()).for_each(|cache| unsafe { cache.drain(self) });
        self.take_kept(&mut self.pageout().hands.lock());
    }

    /// Lets the keeper give back what it keeps; returns whether anything came.
    pub(in crate::reclaim) fn ask_keeper(&self) -> bool {
        let keeper = *self.pageout().keeper.lock();
        keeper.is_some_and(|k| k.reclaim())
    }
}
