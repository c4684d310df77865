//! The setting whether a core dump leaves a range out. This crate only stores the setting.

use crate::error::MapError;
use crate::machine::Machine;
use crate::map::entry::{Attributes, Entry, Flags};
use crate::map::ops::advise::covered;
use crate::map::space::Space;
use crate::map::update::pte_update::Work;
use crate::map::update::{PART, Update};
use crate::types::VirtRange;

impl<M: Machine> Space<M> {
    /// Sets whether `range` is left out of core dumps. If `range` has a hole, the rest is changed, and the result is
    /// [`MapError::NotMapped`], as on Linux. Many mappings are changed in several steps. A calling thread that must end
    /// stops between two steps ([`MapError::Ending`]).
    pub fn leave_out_of_dumps(&self, range: VirtRange, left_out: bool) -> Result<(), MapError> {
        self.valid(range)?;
        let applied = |e: &Entry<M>| -> Attributes {
            let mut a = e.attributes();
            a.flags.set(Flags::DONT_DUMP, left_out);
            a
        };
        let result = covered(self, &self.write(range)?, range);
        if result == Err(MapError::Ending) {
            return result;
        }
        self.in_parts(range, |rest| self.change_part(rest, applied))?;
        result
    }

    /// Gives the first [`PART`] entries of `range` the attributes that `applied` returns. Returns the address at which
    /// the next part begins.
    pub(in crate::map) fn change_part(
        &self,
        range: VirtRange,
        applied: impl Fn(&Entry<M>) -> Attributes,
    ) -> Result<Option<u64>, MapError> {
        let writer = self.write(range)?;
        let (mut changes, mut next) = (false, None);
        for (n, e) in writer.overlapping(range.start, range.end).enumerate() {
            if n == PART {
                next = Some(e.range().start);
                break;
            }
            changes |= applied(e) != e.attributes();
        }
        if changes {
            let part = VirtRange { start: range.start, end: next.unwrap_or(range.end) };
            let mut update = Update::new(self, writer, part);
            update.change(part, applied)?;
            update.apply(Work::None)?;
        }
        Ok(next)
    }
}
