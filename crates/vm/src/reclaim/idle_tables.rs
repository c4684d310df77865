//! The caches other than pages that pageout drops: page tables of idle spaces, and memory that the layers above keep
//! for later.
//!
//! Page tables are a cache of the map: dropping them costs some faults and no write. In each round of a pass, a few
//! spaces that no CPU has run for a second lose their tables. If evicting pages does not free enough, all spaces that
//! no CPU runs lose their tables. Tables that faults rebuilt within a second after that drop stay. So if programs
//! together need more memory than the machine has, they fail. If such tables did not stay, the programs would drop each
//! other's tables for ever.

use crate::machine::Machine;
use crate::map::space::spaces::{IDLE, Which};
pub use crate::paging::waiting::Reclaim;
use crate::reclaim::Reclaimer;
use crate::reclaim::scan::{Hands, SHADOWED};
use crate::sleep::MaySleep;
use quire_sync::atomic::Ordering;
use quire_sync::hooks::now;

/// The number of spaces that a round of a pass visits.
const SOME: usize = if cfg!(any(loom, shuttle)) { 0 } else { 8 };

/// The number of spaces that the daemon visits under one hold of the lock of [`Hands`].
const PART: usize = 64;

/// Whether the last resort visits all spaces with tables. The models of pageout cover only pages.
const ALL: bool = !cfg!(any(loom, shuttle));

impl<M: Machine> Reclaimer<M> {
    /// Registers `keeper`: from now on pageout calls it when memory is short. It replaces an earlier keeper.
    pub fn reclaim_from(&self, keeper: &'static dyn Reclaim) {
        *self.pageout().keeper.lock() = Some(keeper);
    }

    /// Drops page tables of some spaces that no CPU has run for long. Returns the number of table pages freed.
    pub(in crate::reclaim) fn drop_idle_tables(&'static self, hands: &mut Hands) -> u64 {
        self.drop_tables(&mut hands.spaces, SOME, Which::Idle)
    }

    /// Drops page tables of idle spaces while memory is low, and visits each space once. The daemon calls this if pages
    /// can neither be written nor dropped. In that state no pass runs. Without this call, threads would be refused
    /// memory before any table is dropped. After a round that found nothing, the next one runs only after [`IDLE`].
    pub(in crate::reclaim) fn drop_tables_ahead(&'static self) {
        let p = self.pageout();
        if !ALL || now() < p.no_tables_until.load(Ordering::Relaxed) {
            return;
        }
        let (mut left, mut found) = (self.spaces_with_tables(), false);
        while left != 0 && self.frames().is_low() && !self.daemons().stopping() {
            // The lock is released after each part of the spaces, for threads that need it.
            let tables = self.drop_tables(&mut p.hands.lock().spaces, left.min(PART), Which::Idle);
            left = left.saturating_sub(PART);
            if tables != 0 {
                found = true;
                // The freed frames move to the depots, where they are compared with the watermarks.
                self.drain_caches();
            }
        }
        if left == 0 && !found {
            p.no_tables_until.store(now() + IDLE, Ordering::Relaxed);
        }
    }

    /// Drops all memory that is kept only for speed: page tables of spaces that no CPU runs, and the cache of the
    /// kernel's keeper, such as names of files. Returns whether any memory was freed.
    pub(in crate::reclaim) fn take_kept(&'static self, hands: &mut Hands) -> bool {
        let spaces = if ALL { self.spaces_with_tables() } else { 0 };
        let tables = self.drop_tables(&mut hands.spaces, spaces, Which::NotRunning);
        let given = self.ask_keeper();
        // The freed frames move to the buddy lists, where waiting threads count them.
        self.drain_caches();
        tables != 0 || given
    }

    /// Frees all memory that can be freed without a write, whether or not memory is short. This is: pages that no space
    /// can see, page tables of spaces that no CPU runs, the keeper's memory, and free objects of slabs. A CPU can reach
    /// only its own free objects, so only those of the calling CPU are freed. May sleep.
    pub fn give_back_kept(&'static self) {
        let mut may = MaySleep::here();
        while self.reap(SHADOWED, &mut may) >= SHADOWED {}
        // This frees memory that waits for readers in the epoch.
        self.epoch().drain();
        let slabs = self.map_memory().caches().into_iter().chain(self.object_memory().caches());
        // SAFETY: the caches belong to this system.
        slabs.chain(self.heap().caches()).for_each(|cache| unsafe { cache.drain(self) });
        self.take_kept(&mut self.pageout().hands.lock());
    }

    /// Waits for the end of spaces and objects whose last handles were dropped, and frees their memory. Pages may be in
    /// a write, and pageout may still use an object. Readers may use structures, and no space may see some pages any
    /// more. It is meant for the end of a program or of a test. Handles that other threads drop meanwhile may leave
    /// more. The caller waits for requests of pagers, and for a moment in which no thread reads or writes pages.
    pub fn settle(&'static self, may: &mut MaySleep) {
        // A structure that the first round frees may be the last that kept an object.
        for _ in 0..2 {
            self.finish_io(may);
            while self.reap(SHADOWED, may) >= SHADOWED {}
            self.epoch().drain();
            self.wait_for_kept(may);
            self.epoch().drain();
        }
        self.drain_caches();
    }

    /// Makes the registered cache of the layers above free its memory. Returns whether it freed any.
    pub(in crate::reclaim) fn ask_keeper(&self) -> bool {
        let keeper = *self.pageout().keeper.lock();
        keeper.is_some_and(|k| k.reclaim())
    }
}
