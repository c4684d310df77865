//! The setting whether a core dump leaves a range out. This crate only stores the setting.

use crate::error::MapError;
use crate::machine::Machine;
use crate::map::entry::{Attributes, Entry, Flags};
use crate::map::ops::advise::covered;
use crate::map::space::Space;
use crate::map::update::Update;
use crate::map::update::pte_update::Work;
use crate::types::VirtRange;

impl<M: Machine> Space<M> {
    /// Sets whether `range` is left out of core dumps. If `range` has a hole, the rest is changed, and the result is
    /// [`MapError::NotMapped`], as on Linux.
    pub fn leave_out_of_dumps(&self, range: VirtRange, left_out: bool) -> Result<(), MapError> {
        self.valid(range)?;
        self.with_memory(|| self.leave_out_once(range, left_out))
    }

    fn leave_out_once(&self, range: VirtRange, left_out: bool) -> Result<(), MapError> {
        let applied = |e: &Entry<M>| -> Attributes {
            let mut a = e.attributes();
            a.flags.set(Flags::DONT_DUMP, left_out);
            a
        };
        let writer = self.write(range)?;
        let changes = writer.overlapping(range.start, range.end).any(|e| applied(e) != e.attributes());
        let result = covered(&writer, range);
        if changes {
            let mut update = Update::new(self, writer, range);
            update.change(range, applied)?;
            update.apply(Work::None)?;
        }
        result
    }
}
