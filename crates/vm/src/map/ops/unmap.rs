//! Taking mappings away: a range, or everything.

use crate::check::Level;
use crate::error::MapError;
use crate::machine::{Machine, Pmap};
use crate::map::arena::Writer;
use crate::map::entry::Entry;
use crate::map::space::Space;
use crate::map::space::SpaceRef;
use crate::map::update::Update;
use crate::map::update::pte_update::Work;
use crate::mutant::{Mutant, mutant};
use crate::object::backing;
use crate::tlb::flush::Flushed;
use crate::types::VirtRange;
use core::ptr::NonNull;
use quire_sync::atomic::Ordering;
use quire_sync::trace::{EventKind, Span};

impl<M: Machine> Space<M> {
    /// Unmaps the mappings in `range`; holes are no error. Proportional to the residents and entries in it, not to its
    /// length. When it returns, no CPU has a translation of the range left.
    pub fn unmap(&self, range: VirtRange) -> Result<(), MapError> {
        let _span = Span::begin(EventKind::Unmap, range.start, range.end.wrapping_sub(range.start));
        self.valid(range)?;
        self.with_memory(|| self.unmap_by(self.write(range)?, range))
    }

    /// As [`Space::unmap`], by the writer that has all of `range`.
    pub(in crate::map) fn unmap_by<'s>(&'s self, writer: Writer<'s, M>, range: VirtRange) -> Result<(), MapError> {
        let mut update = Update::new(self, writer, range);
        if update.unmapped_in(range)? == 0 {
            return Ok(());
        }
        update.outside_before(range)?;
        update.outside_after(range)?;
        update.apply(Work::Clear(range))
    }
}

impl<M: Machine> Drop for SpaceRef<M> {
    fn drop(&mut self) {
        // A thread that unwinds may have left work half-done, and taking the space apart would wait for it.
        let before = if mutant(Mutant::HandleNotAtomic) {
            let before = self.place.refs.load(Ordering::Acquire);
            self.place.refs.store(before - 1, Ordering::Release);
            before
        } else {
            self.place.refs.fetch_sub(1, Ordering::AcqRel)
        };
        if before != 1 || quire_sync::hooks::is_panicking() {
            return;
        }
        quire_sync::atomic::fence_after_rmw();
        let _span = Span::begin(EventKind::TakeApart, 0, 0);
        self.vm().map_memory().all.forget(self);
        // SAFETY: this was the last handle, so no thread faults in the space and no CPU runs it. After the first step
        // no backing leads to it.
        unsafe {
            take_apart(self);
            Space::free(self.0);
        }
    }
}

/// Takes a space apart whose last handle is gone: no leaf is looked at one by one, no page table is walked.
///
/// Relies on C4, exit: one flush leaves no CPU with a translation, and no CPU will fault here again. A reverse scan
/// that found the space through a backing holds that backing's shard. So unlinking every backing waits for the scans;
/// only then do the page tables go. The entries go at once: no reader is left.
///
/// # Safety
/// Other threads reach the space by its backings only, and no CPU runs it.
pub(in crate::map) unsafe fn take_apart<M: Machine>(space: &Space<M>) {
    let vm = space.vm();
    vm.epoch().push_back();
    if vm.check_level() != Level::Never {
        space.arenas.all().for_each(|arena| drop(arena.write(space)));
    }
    let mut all: *const Entry<M> = core::ptr::null();
    for arena in space.arenas.all() {
        // SAFETY: by this function's contract.
        for entry in unsafe { arena.all_at_last() } {
            entry.link.set(all);
            all = entry;
        }
    }
    // Without an entry there is no leaf, and nothing to flush.
    if !all.is_null() {
        let proof = Flushed::whole(vm, space.pmap());
        let mut pile = vm.epoch().pile();
        // SAFETY: the list has the tree's entries, each of which is freed after its link was read; no thread reaches
        // the tree.
        while let Some(entry) = unsafe { all.as_ref() } {
            all = entry.link.get();
            // SAFETY: no CPU can find the entries any more, the list has each of them once, and each owns its chain.
            unsafe {
                backing::dispose_onto(vm, entry.front_ptr(), &proof, &mut pile);
                vm.map_memory().entries.free(vm, NonNull::from(entry));
            }
            if pile.is_full() {
                pile = vm.epoch().pile();
            }
        }
    }
    // Table pages may be there even where nothing is mapped any more.
    space.pmap().clear(vm);
}
