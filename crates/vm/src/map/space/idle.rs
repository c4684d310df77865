//! The drop of all page tables of a space that no CPU runs, when memory is short. One later fault fills them again.
//!
//! Page tables are a cache of the map, so leaves may be removed at any time. Each leaf is removed under its table
//! page's lock, by an atomic exchange that returns the bits that hardware set. Its dirty and access bits are credited
//! to its page before the lock is released. The flush usually reaches no CPU, because none runs the space. A CPU that
//! begins to run the space during the drop is flushed like any other. The root is freed last, so that an idle space has
//! no table page.
//!
//! This list names concurrent operations, and the lock or rule that orders each against the step in bold:
//!
//! - **drop**
//!   - fault: the table page's lock. The fault's leaf is dropped, or the fault enters it afterwards. A table page with
//!     a leaf is not pruned
//!   - reverse scan: finds the leaf, or the count of unflushed removals
//!   - map operation: finds the leaf, or the count of unflushed removals
//!   - exit: the caller holds a handle, so the space is not destroyed during the drop
//! - **refill**
//!   - fault: the table page's lock, and the checks of a fault
//!   - reverse scan: the busy state and the generation of the page (it rises with each change of identity), as for a
//!     fault
//!   - map operation: the entry's stale mark (a writer is replacing the entry), as for a fault
//!   - exit: the caller holds a handle, so the space is not destroyed during the refill

use crate::machine::{Machine, Pmap, Removed, Table};
use crate::map::space::Space;
use crate::phys::page::State;
use crate::rmap::dirty::credit;
use crate::stats::Event;
use crate::tlb::flush::Obligation;
use crate::types::{PAGE_SIZE, VirtRange};

/// The most resident pages of a small space. After the space's tables were dropped, its first fault maps all these
/// pages. To map a resident page in that fault costs a twentieth of a fault of its own. In larger spaces programs touch
/// too few of their pages to make that worthwhile.
pub const SMALL: u64 = 512;

/// Counts of what [`Space::drop_tables`] dropped.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Dropped {
    /// Leaves that were removed.
    pub leaves: u64,
    /// Table pages that were freed, or will be once no walker can hold them.
    pub tables: u64,
}

impl<M: Machine> Space<M> {
    /// Drops all page tables, unless a CPU runs the space (then `None`). The only cost is the time of the faults that
    /// make them again: one fault if the space is small ([`SMALL`]). Locks only the table pages and the root, one after
    /// the other.
    ///
    /// A thread that runs the space or faults in it during the drop is served as usual. Tables that its faults make
    /// again are not dropped.
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

    /// Credits a leaf's access bit to its page as a reference, which pageout reads before it evicts the page.
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
