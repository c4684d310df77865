//! Taking mappings away: a range, or everything.

use super::entry::Entry;
use super::leaves::Work;
use super::space::{Space, USER};
use super::update::Update;
use crate::backing;
use crate::error::MapError;
use crate::flush::{FlushSet, Flushed};
use crate::machine::{Machine, Pmap};
use crate::types::VirtRange;
use core::ptr::NonNull;

impl<M: Machine> Space<M> {
    /// Unmaps what is mapped in `range`; holes are no error. Proportional to the residents and entries in it, not to its
    /// length. When it returns, no CPU has a translation of the range left.
    pub fn unmap(&self, range: VirtRange) -> Result<(), MapError> {
        self.valid(range)?;
        let writer = self.arena.write();
        let mut update = Update::new(self, writer, range);
        if update.mapped_in(range) == 0 {
            return Ok(());
        }
        update.outside_before(range)?;
        update.outside_after(range)?;
        update.apply(Work::Clear(range))
    }

    /// Contract C10: a range from outside.
    pub(super) fn valid(&self, range: VirtRange) -> Result<(), MapError> {
        let len = range.end.checked_sub(range.start).ok_or(MapError::Invalid)?;
        VirtRange::from_outside(range.start, len)
            .filter(|r| r.start >= USER.start && r.end <= USER.end)
            .map(|_| ())
            .ok_or(MapError::Invalid)
    }
}

/// See [`Space::clear`].
pub(super) fn clear<M: Machine>(space: &Space<M>) {
    if space.is_single() {
        // Only the caller can reach the space, and is here.
        take_apart(space);
        return;
    }
    // Removing whole entries allocates nothing, so this cannot fail.
    let done = space.unmap(USER);
    debug_assert!(done.is_ok(), "unmapping everything needs no memory");
}

/// Empties a space that nobody but the caller can reach: no leaf is looked at one by one, no page table is walked.
///
/// Contract C4, exit: one flush leaves no CPU with a translation, and none will fault here again. Reverse scans that found
/// the space through a backing hold that backing's part, so unlinking every backing waits for them; only then do the page
/// tables go.
pub(super) fn take_apart<M: Machine>(space: &Space<M>) {
    let vm = space.vm();
    let mut writer = space.arena.write();
    let mut all: *const Entry<M> = core::ptr::null();
    for entry in writer.overlapping(0, u64::MAX) {
        entry.mark_stale();
        entry.link.set(all);
        all = entry;
    }
    if !all.is_null() {
        // Replacing everything by nothing builds no node.
        let Ok(change) = writer.prepare(0, u64::MAX, 0, core::iter::empty()) else {
            debug_assert!(false, "an empty tree needs no memory");
            return;
        };
        writer.commit(change, -(space.arena.mapped() as i64));
        let mut set = FlushSet::new();
        set.add_all();
        space.pmap().flush(vm, &set);
        // SAFETY: flushed just now, and nobody runs or faults in the space any more.
        let proof = unsafe { Flushed::never_mapped() };
        // SAFETY: the entries are off the tree; each is given up once, and its chain is its own.
        while let Some(entry) = unsafe { all.as_ref() } {
            all = entry.link.get();
            // SAFETY: as above.
            unsafe {
                backing::dispose(vm, entry.front_ptr(), &proof);
                Entry::retire(NonNull::from(entry));
            }
        }
    }
    // Table pages may be there even where nothing is mapped any more.
    space.pmap().clear(vm);
}
