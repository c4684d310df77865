//! The change of a range's protection.

use crate::error::MapError;
use crate::machine::{Machine, Pmap};
use crate::map::arena::covered::Class;
use crate::map::entry::{Attributes, Entry, Flags, How, NewEntries};
use crate::map::space::Space;
use crate::map::update::pte_update::{Sweep, Work};
use crate::map::update::{PART, Update};
use crate::mutant::{Mutant, mutant};
use crate::types::{Access, Prot, VirtRange};
use core::ptr::NonNull;
use quire_sync::atomic::fence_full;
use quire_sync::trace::{EventKind, Span};

impl<M: Machine> Space<M> {
    /// Gives `range` the protection `prot`. When this returns, no CPU can use lost rights. Gained rights take effect at
    /// the next fault. The change stops at a hole ([`MapError::NotMapped`]), or at a part that may not have the
    /// protection ([`MapError::Protection`]), or at a sealed part ([`MapError::Sealed`]). It also stops at a part that
    /// would exceed the space's limit of data, or the limit of the commit charge ([`MapError::NoSpace`]). The range
    /// before that part is changed, as POSIX allows and Linux does. Many mappings are changed in several steps. A
    /// calling thread that must end stops between two steps.
    pub fn protect(&self, range: VirtRange, prot: Prot) -> Result<(), MapError> {
        let _span = Span::begin(EventKind::Protect, range.start, range.end.wrapping_sub(range.start));
        self.valid(range)?;
        self.in_parts(range, |rest| self.protect_part(rest, prot))
    }

    /// Changes at most [`PART`] entries, from the start of `range` on. Returns the address at which the next part
    /// begins.
    fn protect_part(&self, range: VirtRange, prot: Prot) -> Result<Option<u64>, MapError> {
        let mut writer = self.write(range)?;
        // Find the end of the part that may be changed, and the rights that are lost in it.
        let (mut end, mut error, mut changes) = (range.start, None, false);
        let mut lost = Prot::empty();
        let (most_data, mut data) = (self.limits().data, 0);
        let limited = most_data < M::Pmap::USER.len();
        // One descent in the tree finds the entries and their neighbours.
        let (previous, entries) = writer.around(range.start);
        let (mut first, mut following) = (None, None);
        let (mut entries_left, mut next) = (PART, None);
        for e in entries {
            if e.range().start > end || e.range().start >= range.end {
                following = Some(e);
                break;
            }
            if entries_left == 0 {
                (following, next) = (Some(e), Some(e.range().start));
                break;
            }
            entries_left -= 1;
            first.get_or_insert(e);
            if !e.attributes().max_prot.contains(prot) {
                error = Some(MapError::Protection);
                break;
            }
            if e.flags().contains(Flags::SEALED) {
                error = Some(MapError::Sealed);
                break;
            }
            let new = Attributes { prot, ..e.attributes() };
            if Class::of(&new) == Class::Data && Class::of(&e.attributes()) != Class::Data {
                data += e.range().intersect(&range).map_or(0, |part| part.len());
                if (limited && self.data_exceeds(data, most_data)) || !writer.charge_commit(data, 0, &new) {
                    error = Some(MapError::NoSpace);
                    break;
                }
            }
            changes |= e.prot() != prot;
            lost |= e.prot() - prot;
            // Memory with the right to store or to execute stays readable, because page tables cannot forbid loads
            // there.
            lost.set(Prot::READ, lost.contains(Prot::READ) && !prot.allows(Access::Read));
            end = e.range().end;
        }
        if end < range.end && error.is_none() && next.is_none() {
            error = Some(MapError::NotMapped);
        }
        let range = VirtRange { start: range.start, end: end.min(range.end) };
        if !changes || range.is_empty() {
            return error.map_or(Ok(next), Err);
        }
        let changed = |e: &Entry<M>| {
            let mut a = e.attributes();
            a.prot = prot;
            a.flags.set(Flags::NEEDS_FRONT, a.flags.contains(Flags::NEEDS_FRONT) && !prot.contains(Prot::WRITE));
            a
        };
        let stays_alone = |e: &&Entry<M>| {
            let a = changed(e);
            let previous = || previous.or_else(|| writer.before(range.start)).filter(|p| p.range().end == range.start);
            let next = following.filter(|n| n.range().start == range.end);
            e.range() == range
                && a.flags == e.flags()
                && previous().into_iter().chain(next).all(|n| n.attributes() != a)
        };
        if let Some(e) = first.filter(|e| error.is_none() && stays_alone(e)) {
            self.protect_whole(writer, e, changed(e), lost)?;
        } else {
            let mut update = Update::new(self, writer, range);
            update.change(range, changed)?;
            update.apply(Work::lose(range, lost, prot))?;
        }
        error.map_or(Ok(next), Err)
    }

    /// Gives one whole entry the attributes `a`, without joining it to neighbours. This is by far the most common
    /// change. The new entry takes over the old entry's chain and its place in the tree, so no plan is needed. The
    /// order of the steps is that of every change: mark, leaves, publish, retire (relies on C3).
    fn protect_whole(
        &self,
        mut writer: crate::map::arena::Writer<'_, M>,
        e: &Entry<M>,
        a: Attributes,
        lost: Prot,
    ) -> Result<(), MapError> {
        let mut new = NewEntries::new(self.vm());
        let entry = new.push(e.range(), a, How::Taken, e)?;
        e.mark_stale();
        if !mutant(Mutant::NoFenceAfterMark) {
            fence_full();
        }
        // Nothing from here on can fail.
        if !lost.is_empty() {
            let mut sweep = Sweep::new(self);
            sweep.perform(Work::lose(e.range(), lost, a.prot));
            let _flushed = sweep.finish();
        }
        // SAFETY: the entry was made by this call, and `replace` publishes it after this.
        unsafe { entry.as_ref() }.set_front(e.front_ptr());
        writer.replace(entry, &e.attributes());
        new.published();
        // SAFETY: `replace` took the entry out of the tree, this call alone retires it, and its chain is the new
        // entry's.
        unsafe { Entry::retire(NonNull::from(e)) };
        Ok(())
    }
}
