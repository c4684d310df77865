//! Sealing: a sealed range keeps its mappings and their protection as long as the space exists.

use crate::error::MapError;
use crate::machine::Machine;
use crate::map::entry::{Attributes, Entry, Flags};
use crate::map::ops::advise::{covered, shows_file};
use crate::map::space::Space;
use crate::map::update::Update;
use crate::map::update::pte_update::Work;
use crate::types::{Prot, VirtRange};

impl<M: Machine> Space<M> {
    /// Seals `range`. A seal cannot be removed. Afterwards an operation that unmaps, moves, resizes or replaces a part
    /// of `range`, or changes its protection, fails with [`MapError::Sealed`]. [`MapError::NotMapped`] means that
    /// `range` has a hole; then nothing has changed. A fork's child inherits the seals.
    pub fn seal(&self, range: VirtRange) -> Result<(), MapError> {
        self.valid(range)?;
        self.with_memory(|| self.seal_once(range))
    }

    fn seal_once(&self, range: VirtRange) -> Result<(), MapError> {
        let writer = self.write(range)?;
        covered(self, &writer, range)?;
        if writer.overlapping(range.start, range.end).all(|e| e.flags().contains(Flags::SEALED)) {
            return Ok(());
        }
        let mut update = Update::new(self, writer, range);
        update.change(range, |e| {
            let a = e.attributes();
            Attributes { flags: a.flags | Flags::SEALED, ..a }
        })?;
        update.apply(Work::None)
    }
}

/// Whether advice must not drop the content of `entry`. This protects only sealed private memory without the right to
/// store, because a program that can store there can destroy the content anyway.
pub(in crate::map) fn keeps_content<M: Machine>(entry: &Entry<M>) -> bool {
    let a = entry.attributes();
    a.flags.contains(Flags::SEALED)
        && !a.flags.contains(Flags::SHARED)
        && !a.prot.contains(Prot::WRITE)
        && !shows_file(entry)
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;
