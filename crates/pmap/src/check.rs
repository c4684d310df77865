//! Checks the invariants of the table pages of one address space: counts, occupied and writable groups, marks, links.

use crate::format::{FANOUT, Format, base, span};
use crate::table::{GROUP, Memory, View};
use crate::tree::Tree;
use quire_sync::atomic::Ordering;
use quire_vm::Pfn;
use quire_vm::check::Broken;

impl<F: Format, A: Memory> Tree<'_, F, A> {
    /// Checks all table pages, but of the root only the first `user` entries. `is_table` returns whether a frame is a
    /// table page at all. If `quiet` is false, other CPUs may walk, link, enter, remove and prune during the check. If
    /// it is true, the caller excludes this. Returns the number of checked entries.
    pub(crate) fn check(&self, user: usize, is_table: &dyn Fn(Pfn) -> bool, quiet: bool) -> Result<u64, Broken> {
        let _pin = self.memory.pin();
        let Some(root) = self.root.get() else { return Ok(0) };
        self.check_table(root, F::LEVELS - 1, 0, user, is_table, quiet)
    }

    /// Checks the table page `t` at `level`, which begins at `va`, and all table pages below it.
    ///
    /// # Requires
    /// The caller is pinned.
    fn check_table(
        &self,
        t: Pfn,
        level: u32,
        va: u64,
        entries: usize,
        is_table: &dyn Fn(Pfn) -> bool,
        quiet: bool,
    ) -> Result<u64, Broken> {
        let view = View::of(self.memory, t);
        {
            let _held = view.state.lock();
            if view.state.is_dead() {
                // The page was unlinked since its parent was checked. Under the parent's lock a dead child is already
                // unlinked.
                return Ok(0);
            }
            self.check_locked(&view, level, va, entries, is_table, quiet)?;
        }
        let mut cost = entries as u64;
        if level > 0 {
            for i in 0..entries {
                let word = view.slots[i].load(Ordering::Acquire);
                if F::present(word) {
                    let below = base(va + i as u64 * span(level), level);
                    cost += self.check_table(F::frame(word), level - 1, below, FANOUT, is_table, quiet)?;
                }
            }
        }
        Ok(cost)
    }

    /// Checks one table page by itself.
    ///
    /// # Requires
    /// The caller holds its lock.
    fn check_locked(
        &self,
        view: &View<'_>,
        level: u32,
        va: u64,
        entries: usize,
        is_table: &dyn Fn(Pfn) -> bool,
        quiet: bool,
    ) -> Result<(), Broken> {
        let mut live = 0;
        let occupied = view.occupied.load(Ordering::Acquire);
        for i in 0..entries {
            let word = view.slots[i].load(Ordering::Acquire);
            let at = va + i as u64 * span(level);
            if word == 0 {
                continue;
            }
            if !F::present(word) {
                return Err(Broken::TableWord(at));
            }
            live += 1;
            if occupied & (1 << (i / GROUP)) == 0 {
                return Err(Broken::TableOccupied(at));
            }
            if level == 0 && F::writable(word) && view.writable.load(Ordering::Acquire) & (1 << (i / GROUP)) == 0 {
                return Err(Broken::TableWritable(at));
            }
            if level > 0 && (!is_table(F::frame(word)) || self.memory.state(F::frame(word)).is_dead()) {
                return Err(Broken::TableDead(at));
            }
        }
        if level == 0 && F::STORES_BELOW != 0 && live != 0 {
            let store_protected = self.above(va).load(Ordering::Acquire) & F::STORES_BELOW == 0;
            if store_protected != view.state.is_store_protected() {
                return Err(Broken::TableStoreProtection(va));
            }
        }
        if live != view.state.live() {
            return Err(Broken::TableLive(va));
        }
        if quiet && view.state.unflushed() {
            return Err(Broken::TableUnflushed(va));
        }
        Ok(())
    }
}
