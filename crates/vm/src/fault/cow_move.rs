//! The move of a page in place of a copy. A store moves the page from a layer behind the front (the first layer of the
//! chain) to the front. It does so only if no other chain sees the page any more.
//!
//! If a whole layer belongs to one chain, stores go to its pages in place. Other chains may share the layer, but hide
//! this page by a page of their own. Then a copy would leave behind a page that no chain sees. So the page itself moves
//! to the front. If a parent and one child both store into a page after a fork, this saves the second copy.
//!
//! # Steps
//! 1. *Search*, without a lock. The search is made only if the page was copied before, and if its watch is this chain's
//!    backing or outdated. (The watch is the backing that the page remembers as a sharer, [`last_sharer`].) Most faults
//!    end here with a copy, after a read of one byte. If the search finds another chain that sees the page, that
//!    chain's backing becomes the watch, and the page is copied.
//! 2. Set the page busy, store it into the front's empty slot too, and fence. The page still belongs to the layer.
//! 3. Check the entry's stale mark, then *search again* (mutant [`Mutant::NoSecondAsk`]).
//! 4. Unmap the page everywhere ([`rmap::unmap`]), and flush. This also flushes leaves that other removers have cleared
//!    and not flushed yet.
//! 5. Lock the table page. Check that the entry is not stale, and that the slots of the layers in between are empty.
//!    Then change the page's identity, clear the layer's slot, and map the page. The layer's slot is cleared only after
//!    the front's is filled (mutant [`Mutant::EmptyBeforeFill`]).
//!
//! Before the last step the move can be undone: the front's slot is cleared, and the page still belongs to the layer.
//!
//! # Against other CPUs
//! - another chain already has a page in front of this page
//!   - action: another CPU may move that page, page it out, or replace it by a zero marker, a mark that the content is
//!     zeroes
//!   - outcome: each of these permanently hides this page ([`last_sharer`], *Why a page that was found hidden stays
//!     hidden*)
//! - another CPU copies the page into its own front
//!   - action: its new page is busy, and hides nothing yet (mutant [`Mutant::BusyHides`])
//!   - outcome: step 1 or 3 finds that this chain may see the page. A copy that begins later finds the page busy or
//!     with another generation when it checks its source
//! - another CPU forks this space
//!   - action: marks the entry stale, fences, checks whether the front is empty
//!   - outcome: the fork sees the front's slot filled, and keeps the front in the child's chain. Or step 3 sees the
//!     mark. Or the fork was over before, and step 3 finds the child's chain
//! - another CPU unmaps, protects, clips
//!   - action: marks the entry stale, visits the table page
//!   - outcome: step 5 sees the mark; or the writer visits the table page after the page belongs to the front
//! - another CPU faults in this space
//!   - action: waits for the busy page
//!   - outcome: finds the page in the front
//! - another CPU merges layers
//!   - action: skips busy pages
//!   - outcome: step 5 checks the layers in between, because a page that was copied into the front and merged since
//!     would hide this one
//! - another CPU has a hold on the page (a write to swap, a search)
//!   - action: acquired its hold before step 2
//!   - outcome: the page is copied. A CPU that acquires a hold later sees that the page is busy

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

/// A busy page that is being moved into the front. A drop undoes the move and unbusies the page.
struct Claim<'o, M: Machine> {
    vm: &'static Maps<M>,
    page: &'static Page,
    /// The front's object, and the key of the slot in it.
    to: (&'o Object<M>, u64),
    /// Whether that slot has the page.
    listed: bool,
    pin: &'o Pinned<'o>,
}

impl<M: Machine> Drop for Claim<'_, M> {
    fn drop(&mut self) {
        if self.listed {
            // If the index was dismantled since the slot was filled, the slot no longer exists.
            let slot = Slot::Page(self.vm.pfn_of_page(self.page));
            let _gone = self.to.0.index().clear(self.to.1, slot, self.pin);
        }
        self.vm.unbusy(self.page);
    }
}

impl<'e, M: Machine> FaultContext<'e, M> {
    /// Moves `source`, which was found behind the front, into the front and maps it, if no other chain sees it. Returns
    /// `false` if the page must be copied instead.
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
            // The lack of memory is no error here. The fault copies the page next, which needs this memory too, and
            // handles the failure.
            Err(FillError::OutOfMemory) => return Ok(false),
            Err(_) => return Err(Attempt::Again),
        }
        // Relies on C2: an inserter fills the slot, fences, and then reads the dead mark. The fence also orders the
        // fill before the check of the stale mark. So a fork sees the front's slot filled, or this fault sees the mark.
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
        // Relies on C2: a page is marked dirty before a leaf allows stores into it.
        page.set(State::DIRTY);
        // Relies on C1: the page is busy while its identity changes.
        page.rename(object.address(), key);
        source.object.index().clear(source.key, slot, pin);
        table.enter(self.va, Enter::existing(pfn, self.entry.prot(), true));
        drop(table);
        claim.listed = false;
        // The copy in swap becomes outdated at the next store, so it is freed. A page has one only after memory was
        // short.
        if let Some(slot) = page.take_swap_slot() {
            self.vm.swap().release(SwapSlots { first: slot, len: 1 });
        }
        Ok(true)
    }
}

/// Whether the slots of all layers between `front` and `layer` are empty at `va`.
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
