//! Makes a part of a shared mapping show other pages of its object (`remap_file_pages` of Linux).

use crate::error::MapError;
use crate::machine::Machine;
use crate::map::entry::piece::{ChainSource, Piece, layers};
use crate::map::space::Space;
use crate::map::update::Update;
use crate::map::update::pte_update::Work;
use crate::object::ObjectRef;
use crate::types::{PAGE_SHIFT, PAGE_SIZE, Prot, VirtRange};

impl<M: Machine> Space<M> {
    /// Maps the object of the shared mapping at `range.start` in all of `range`, from the object's page number `page`
    /// on. Protection and kind do not change. All mappings in `range` must be of the same object with the same
    /// attributes, without a hole, else the result is [`MapError::Invalid`]. With `populate`, the pages are made
    /// resident.
    pub fn show_from(&self, range: VirtRange, page: u64, populate: bool) -> Result<(), MapError> {
        self.valid(range)?;
        let end = page.checked_add(range.len() / PAGE_SIZE).ok_or(MapError::Invalid)?;
        if end > i64::MAX as u64 >> PAGE_SHIFT {
            return Err(MapError::Invalid);
        }
        let prot = self.with_memory(|| self.show_once(range, page))?;
        if populate {
            self.populate(range, prot, true);
        }
        Ok(())
    }

    fn show_once(&self, range: VirtRange, page: u64) -> Result<Prot, MapError> {
        let writer = self.write(range)?;
        let first = writer.get(range.start).filter(|e| e.shared()).ok_or(MapError::Invalid)?;
        let attributes = first.attributes();
        let shown = {
            let pin = self.vm().epoch().pin();
            layers(first.front()).find_map(|b| b.object()).and_then(|o| ObjectRef::of(o, &pin))
        };
        let object = shown.ok_or(MapError::Invalid)?;
        let mut at = range.start;
        for e in writer.overlapping(range.start, range.end) {
            let same = layers(e.front()).find_map(|b| b.object()).is_some_and(|o| o.id() == object.id());
            if !same || e.attributes() != attributes || e.range().start > at {
                return Err(MapError::Invalid);
            }
            at = e.range().end;
        }
        if at < range.end {
            return Err(MapError::Invalid);
        }
        let mut update = Update::new(self, writer, range);
        update.unmapped_in(range)?;
        update.show(Some((&object, page)));
        update.outside_before(range)?;
        update.push(Piece::new(range, attributes, ChainSource::Object))?;
        update.outside_after(range)?;
        update.apply(Work::Clear(range))?;
        Ok(attributes.prot)
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;
