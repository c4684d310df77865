//! Changing what accesses are allowed.

use super::entry::{Entry, Flags};
use super::leaves::Work;
use super::piece::Piece;
use super::space::Space;
use super::update::Update;
use crate::error::MapError;
use crate::machine::Machine;
use crate::types::{Prot, VirtRange};

impl<M: Machine> Space<M> {
    /// Gives `range` the protection `prot`. Rights that are lost are lost when it returns; rights that are gained come by
    /// the next fault. Where a part of the range is a hole ([`MapError::NotMapped`]) or may not have the protection
    /// ([`MapError::Protection`]), what lies before that part is changed, as POSIX allows and Linux does.
    pub fn protect(&self, range: VirtRange, prot: Prot) -> Result<(), MapError> {
        self.valid(range)?;
        let writer = self.arena.write();
        // How far it goes, and what rights are lost there.
        let (mut end, mut error, mut changes) = (range.start, None, false);
        let mut lost = Prot::empty();
        for e in writer.overlapping(range.start, range.end) {
            if e.range().start > end {
                break;
            }
            if !e.attributes().max_prot.contains(prot) {
                error = Some(MapError::Protection);
                break;
            }
            changes |= e.prot() != prot;
            lost |= e.prot() - prot;
            end = e.range().end;
        }
        if end < range.end && error.is_none() {
            error = Some(MapError::NotMapped);
        }
        let range = VirtRange { start: range.start, end: end.min(range.end) };
        if changes && !range.is_empty() {
            self.change_protection(writer, range, prot, lost)?;
        }
        error.map_or(Ok(()), Err)
    }

    fn change_protection<'s>(
        &'s self,
        writer: super::Writer<'s, M>,
        range: VirtRange,
        prot: Prot,
        lost: Prot,
    ) -> Result<(), MapError> {
        let changed = |e: &Entry<M>| {
            let mut a = e.attributes();
            a.prot = prot;
            a.flags.set(Flags::NEEDS_FRONT, a.flags.contains(Flags::NEEDS_FRONT) && !prot.contains(Prot::WRITE));
            a
        };
        let mut update = Update::new(self, writer, range);
        let (first, last) = update.ends();
        update.outside_before(range)?;
        if let Some(e) = first.filter(|e| e.range().start >= range.start) {
            update.lean_on_previous(changed(e));
        }
        for e in update.writer().overlapping(range.start, range.end) {
            let mut piece = Piece::part(e, e.range().intersect(&range).unwrap_or(e.range()));
            piece.attributes = changed(e);
            piece.add_front = piece.attributes.flags != e.flags();
            update.push(piece)?;
        }
        update.outside_after(range)?;
        if let Some(e) = last.filter(|e| e.range().end <= range.end) {
            update.lean_on_next(changed(e));
        }
        update.apply(if lost.is_empty() { Work::None } else { Work::Weaken(range, prot) })
    }
}
