//! Page tables of spaces that no CPU runs: dropped whole when memory is short, and filled again by one fault.
//!
//! Page tables are a cache of the map, so leaves may be removed at any time. Each goes under its table page's lock, by
//! an exchange that keeps the bits that hardware set. Its dirty and access bits are credited to its page before the
//! lock is released. The flush reaches no CPU, because none runs the space; a CPU that begins to meanwhile is flushed
//! like any other. The root goes last, so that an idle space has no table page.
//!
//! - **drop**
//!   - fault: table page's lock: it goes, or comes after; a table page with a leaf is not pruned
//!   - reverse scan: its leaf, or the unflushed count
//!   - map operation: its leaf, or the unflushed count
//!   - exit: the caller holds a handle
//! - **refill**
//!   - fault: table page's lock, checks as a fault's
//!   - reverse scan: busy and generation, as a fault
//!   - map operation: stale mark, as a fault
//!   - exit: as above

use crate::machine::{Machine, Pmap, Removed, Table};
use crate::map::space::Space;
use crate::phys::page::State;
use crate::rmap::dirty::credit;
use crate::stats::Event;
use crate::tlb::flush::Obligation;
use crate::types::{PAGE_SIZE, VirtRange};

/// A space with at most so many resident pages is small: the first fault after its tables were dropped maps all of
/// them. Mapping a resident page costs a twentieth of a fault. In larger spaces programs touch too small a part of
/// their pages for that to pay.
pub const SMALL: u64 = 512;

/// Counts of what [`Space::drop_tables`] dropped.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Dropped {
    /// Leaves.
    pub leaves: u64,
    /// Table pages that were freed, or will be when the last walker has left.
    pub tables: u64,
}

impl<M: Machine> Space<M> {
    /// Drops all page tables, unless a CPU runs the space (then `None`). The only cost is the time of the
    /// faults that make them again: one fault if the space is small ([`SMALL`]). Takes no lock but table pages' and the
    /// root's, one after the other.
    ///
    /// A thread that runs the space or faults in it meanwhile is served as always; tables that come back are left.
    pub fn drop_tables(&self) -> Option<Dropped> {
        let (vm, pmap) = (self.vm(), self.pmap());
        if pmap.is_running() {
            return None;
        }
        let user = M::Pmap::USER;
        let before = pmap.table_pages(vm);
        let mut owed = Obligation::new(vm, pmap);
        let (mut leaves, mut at) = (0, user.start);
        while at < user.end {
            if owed.is_full() {
                let _part = core::mem::replace(&mut owed, Obligation::new(vm, pmap)).discharge();
            }
            let Some(mut table) = pmap.next_table(vm, VirtRange { start: at, end: user.end }) else { break };
            let span = table.span();
            let mut va = span.start;
            while let Some(present) = table.next_present(va, span.end) {
                let old = table.remove(present, &mut owed);
                credit(vm, old);
                self.credit_reference(old);
                leaves += 1;
                va = present + PAGE_SIZE;
            }
            at = span.end;
        }
        let _flushed = owed.discharge();
        pmap.fan_in(vm);
        pmap.prune(vm, user);
        pmap.drop_root(vm);
        let left = pmap.table_pages(vm);
        if leaves != 0 || left == 0 {
            self.note_dropped(leaves, left == 0);
        }
        let tables = before.saturating_sub(left);
        vm.stats().add(Event::TablesDropped, tables);
        Some(Dropped { leaves, tables })
    }

    /// Credits a leaf's access bit to its page, where the queues' second chance finds it.
    fn credit_reference(&self, old: Option<Removed>) {
        if let Some(leaf) = old
            && leaf.accessed
            && let Some(page) = self.vm().page_of_leaf(leaf.pfn)
            && page.state().0 & State::REFERENCED == 0
        {
            page.set(State::REFERENCED);
        }
    }
}
