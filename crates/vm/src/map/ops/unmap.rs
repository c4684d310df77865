//! The removal of mappings: of a range, or of a whole space.

use crate::check::Level;
use crate::error::MapError;
use crate::machine::{Machine, Pmap};
use crate::map::arena::Writer;
use crate::map::entry::{Entry, Flags};
use crate::map::space::Space;
use crate::map::space::SpaceRef;
use crate::map::update::pte_update::Work;
use crate::map::update::{PART, Update};
use crate::mutant::{Mutant, mutant};
use crate::object::backing;
use crate::tlb::flush::Flushed;
use crate::types::VirtRange;
use core::ptr::NonNull;
use quire_sync::atomic::Ordering;
use quire_sync::trace::{EventKind, Span};

impl<M: Machine> Space<M> {
    /// Unmaps all mappings in `range`. Holes are no error. The cost is proportional to the resident pages and entries
    /// in the range, not to its length. When this returns, no CPU has a translation of the range any more.
    ///
    /// Many mappings are unmapped in several steps, in ascending order. A calling thread that must end stops between two
    /// steps ([`MapError::Ending`]). After [`MapError::OutOfMemory`] a first part may be unmapped, which ends between two
    /// mappings. Repeating the call completes it.
    pub fn unmap(&self, range: VirtRange) -> Result<(), MapError> {
        let _span = Span::begin(EventKind::Unmap, range.start, range.end.wrapping_sub(range.start));
        self.valid(range)?;
        self.in_parts(range, |rest| self.unmap_part(rest, rest.start == range.start))
    }

    /// Unmaps at most [`PART`] entries, from the start of `range` on. Returns the address at which the next part begins.
    /// `first`: nothing is unmapped yet, so a sealed entry in any part refuses the whole operation.
    fn unmap_part(&self, range: VirtRange, first: bool) -> Result<Option<u64>, MapError> {
        let mut update = Update::of_part(self, self.write(range)?, range, PART);
        let next = update.next();
        let part = VirtRange { start: range.start, end: next.unwrap_or(range.end) };
        if update.unmapped_in(part)? == 0 {
            return Ok(None);
        }
        if let Some(next) = next.filter(|_| first) {
            for (n, e) in update.writer().overlapping(next, range.end).enumerate() {
                if e.flags().contains(Flags::SEALED) {
                    return Err(MapError::Sealed);
                }
                if n % PART == 0 {
                    self.goes_on()?;
                }
            }
        }
        update.outside_before(part)?;
        update.outside_after(part)?;
        update.apply(Work::Clear(part))?;
        Ok(next)
    }

    /// Unmaps all mappings in `range` like [`Space::unmap`], but does not acquire a lock. `writer` is the writer of the
    /// arena (a part of the map with its own lock) to which all of `range` belongs.
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
        // If the thread unwinds, the space is not destroyed. The thread may have left an operation unfinished, and the
        // destruction would wait for that operation.
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
        // SAFETY: this was the last handle, so no thread faults in the space and no CPU runs it. After `take_apart` no
        // backing points to it.
        unsafe {
            take_apart(self);
            Space::free(self.0);
        }
    }
}

/// Unmaps everything in a space whose last handle was dropped. It visits no leaf, and walks no page table.
///
/// One flush suffices (relies on C4: frames are freed after the flush). After the flush no CPU has a translation, and
/// no CPU can fault in the space again. A reverse scan that found the space through a backing holds the lock of that
/// backing's shard (a part of a mapping list), or counts in the backing while it flushes. So the unlinking of all
/// backings waits for these scans. Only then are the page tables freed. The entries are freed without the epoch, because
/// no reader is left.
///
/// # Safety
/// Other threads can reach the space only through its backings, and no CPU runs it.
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
    // Without an entry there is no leaf, so no flush is needed.
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
    // The space may have empty table pages even if no entry was left.
    space.pmap().clear(vm);
}
