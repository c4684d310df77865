//! Moving a page instead of copying it: a store does so if its chain is the only one left that sees the page behind.
//!
//! If a whole layer belongs to one chain, stores go to its pages in place. If other chains show the layer too, but all
//! have something in front of this page, a copy would leave a page behind that no chain sees. So the page itself
//! becomes the front's. After a fork with one child, if both write, this saves every second copy.
//!
//! # How
//! 1. *Search*, with nothing held: the page was copied before, and its watch ([`last_sharer`]) is this chain's backing
//!    or stale. Most copies end here, after a read of one byte. A search that finds another chain makes it the watch,
//!    as after a copy.
//! 2. Set the page busy, put it into the front's empty slot as well, fence. It still is the layer's page.
//! 3. Check the entry's stale mark, then *search again* (mutant [`Mutant::NoSecondAsk`]).
//! 4. Run the remover: it clears every translation of the page, and flushes those that other removers have cleared.
//! 5. Lock the table page; the entry is not stale, and the layers in between have nothing there. Then the page changes
//!    its identity, leaves the layer's slot (after it is in the front's: mutant [`Mutant::EmptyBeforeFill`]), and is
//!    mapped.
//!
//! Before the last step the move can be given up: the front's slot is emptied, and the page stays the layer's.
//!
//! # Against other CPUs
//! - another CPU has something in front of the page already
//!   - action: may move it, page it out, put a zero marker there
//!   - outcome: it hides the page for good ([`last_sharer`], *Why*)
//! - another CPU copies the page into its own front
//!   - action: is busy in front: hides nothing (mutant [`Mutant::BusyHides`])
//!   - outcome: step 1 or 3 sees it; a copy that begins later finds the page busy, or another generation, when it
//!     checks its source again
//! - another CPU forks this space
//!   - action: marks the entry stale, fences, looks whether the front is empty
//!   - outcome: it sees the front's slot filled, and the child's chain has the front; or step 3 sees the mark; or the
//!     fork was over, and step 3 finds the child
//! - another CPU unmaps, protects, clips
//!   - action: marks the entry stale, passes over the table page
//!   - outcome: step 5 sees the mark; or it comes after the page is the front's
//! - another CPU faults in this space
//!   - action: waits for the busy page
//!   - outcome: finds it in front
//! - another CPU merges layers
//!   - action: skips busy pages
//!   - outcome: step 5 checks the layers in between: a page copied into the front and merged since hides this one
//! - another CPU holds the page (a write to swap, a search)
//!   - action: took its hold before step 2
//!   - outcome: the page is copied; a CPU that takes its hold later sees busy

use crate::cow::found::FoundPage;
use crate::cow::last_sharer;
use crate::fault::{Attempt, FaultContext};
use crate::machine::{Enter, Machine, Table};
use crate::map::maps::Maps;
use crate::mutant::{Mutant, mutant};
use crate::object::Object;
use crate::object::backing::Backing;
use crate::object::batch::Batch;
use crate::object::index::{FillError, Slot};
use crate::paging::swap::SwapSlots;
use crate::phys::page::{Page, State};
use crate::rmap;
use crate::rmap::dirty::credit;
use crate::tlb::flush::Obligation;
use quire_sync::atomic::{fence_after_rmw, fence_full};
use quire_sync::epoch::Pinned;

/// A page on its way into the front: busy. If this is dropped, the page stays where it was.
struct Claim<'o, M: Machine> {
    vm: &'static Maps<M>,
    page: &'static Page,
    /// The front's object and the slot there.
    to: (&'o Object<M>, u64),
    /// Whether it is in that slot.
    listed: bool,
    pin: &'o Pinned<'o>,
}

impl<M: Machine> Drop for Claim<'_, M> {
    fn drop(&mut self) {
        if self.listed {
            // If the index was dismantled meanwhile, the slot is gone already.
            let slot = Slot::Page(self.vm.pfn_of_page(self.page));
            let _gone = self.to.0.index().clear(self.to.1, slot, self.pin);
        }
        self.vm.unbusy(self.page);
    }
}

impl<'e, M: Machine> FaultContext<'e, M> {
    /// Moves the page found behind the front into the front and maps it, if no other chain sees it. Returns `false` if
    /// it must be copied instead.
    pub fn claim(&self, source: &FoundPage<'e, M>, pin: &Pinned<'_>) -> Result<bool, Attempt<M>> {
        if !last_sharer::seems_last(source, pin) {
            return Ok(false);
        }
        let front = self.entry.front();
        let Some(object) = front.touch(pin)? else { return Err(Attempt::Stale) };
        let (page, key) = (source.page, front.key(self.va));
        if !page.try_busy(source.state.generation()) {
            return Ok(false);
        }
        let mut claim = Claim { vm: self.vm, page, to: (object, key), listed: false, pin };
        fence_after_rmw();
        if page.holds() != 1 {
            return Ok(false);
        }
        let pfn = self.vm.pfn_of_page(page);
        let slot = Slot::Page(pfn);
        if mutant(Mutant::EmptyBeforeFill) {
            source.object.index().clear(source.key, slot, pin);
        }
        match object.index().fill(key, slot, self.vm, pin) {
            Ok(()) => claim.listed = true,
            // A copy needs as much memory.
            Err(FillError::OutOfMemory) => return Ok(false),
            Err(_) => return Err(Attempt::Again),
        }
        // Relies on C2, *insert*. Orders the fill before a fork's check whether the front is empty, too.
        fence_full();
        if object.is_dead() {
            return Err(Attempt::Again);
        }
        self.check_entry()?;
        if !mutant(Mutant::NoSecondAsk) && last_sharer::is_shown_elsewhere(source, pin) {
            return Ok(false);
        }
        let mut batch = Batch::new();
        batch.push(source.key, pfn);
        let _flushed = rmap::unmap(source.object, &batch);
        let mut table = self.table(pin)?;
        if !nothing_between(front, source.layer, self.va, pin) {
            return Err(Attempt::Again);
        }
        if table.get(self.va).is_some_and(|leaf| leaf.pfn != pfn) {
            let mut owed = Obligation::new(self.vm, self.pmap);
            credit(self.vm, table.remove(self.va, &mut owed));
            drop(table);
            let _flushed = owed.discharge();
            return Err(Attempt::Again);
        }
        // Relies on C2, *dirty before writable*.
        page.set(State::DIRTY);
        // Relies on C1.
        page.rename(object.address(), key);
        source.object.index().clear(source.key, slot, pin);
        table.enter(self.va, Enter::new(pfn, self.entry.prot()));
        drop(table);
        claim.listed = false;
        // The next store makes the copy in swap old. A lock is taken here only after memory was short.
        if let Some(slot) = page.take_swap_slot() {
            self.vm.swap().release(SwapSlots { first: slot, len: 1 });
        }
        Ok(true)
    }
}

/// Whether the layers between `front` and `layer` have nothing at `va`.
fn nothing_between<M: Machine>(front: &Backing<M>, layer: &Backing<M>, va: u64, pin: &Pinned<'_>) -> bool {
    let mut at = front.behind();
    while let Some(b) = at {
        if core::ptr::eq(b, layer) {
            return true;
        }
        let there = b.layer(va).map_or(Slot::Empty, |(o, key)| o.index().get(key, pin));
        if !matches!(there, Slot::Empty) {
            return false;
        }
        at = b.behind();
    }
    false
}
