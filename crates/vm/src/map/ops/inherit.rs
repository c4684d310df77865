//! The inheritance of a range by a fork.

use crate::error::MapError;
use crate::machine::Machine;
use crate::map::entry::{Attributes, Entry, Flags};
use crate::map::ops::advise::{covered, shows_file};
use crate::map::ops::seal::keeps_content;
use crate::map::space::Space;
use crate::map::update::PART;
use crate::types::VirtRange;

/// The content of a range that the child gets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Content {
    /// A copy of private memory, or the same shared memory.
    Copy,
    /// The memory itself, which parent and child then share. Allowed for shared memory only, because no second space
    /// can store into the layers of a private mapping.
    Share,
    /// New, zero-filled memory. For private anonymous memory only.
    Zero,
}

/// A change of a range's inheritance: whether the child gets the range, and with which content. `None` does not change
/// that setting. A range that forks leave out keeps its setting of the content for a later call.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Inherit {
    /// Whether the child gets the range at all.
    pub included: Option<bool>,
    /// The content that the child gets.
    pub content: Option<Content>,
}

impl Inherit {
    /// The child does not get the range.
    pub const NONE: Inherit = Inherit { included: Some(false), content: None };
    /// The child gets a copy of private memory, or the same shared memory. Every new mapping has this setting.
    pub const COPY: Inherit = Inherit { included: Some(true), content: Some(Content::Copy) };
    /// The child gets the same memory.
    pub const SHARE: Inherit = Inherit { included: Some(true), content: Some(Content::Share) };
    /// The child gets new, zero-filled memory.
    pub const ZERO: Inherit = Inherit { included: Some(true), content: Some(Content::Zero) };

    /// Whether a child does not get the content.
    fn discards(self) -> bool {
        self.included == Some(false) || self.content == Some(Content::Zero)
    }

    /// Whether the entry can have this inheritance: [`MapError::Sealed`] or [`MapError::Invalid`] if not.
    fn allowed<M: Machine>(self, e: &Entry<M>) -> Result<(), MapError> {
        if self.discards() && keeps_content(e) {
            return Err(MapError::Sealed);
        }
        if self.fits(e) { Ok(()) } else { Err(MapError::Invalid) }
    }

    fn applied<M: Machine>(self, e: &Entry<M>) -> Attributes {
        let mut a = e.attributes();
        if let Some(included) = self.included {
            a.flags.set(Flags::DONT_FORK, !included);
        }
        if let Some(content) = self.content {
            a.flags.set(Flags::WIPE_ON_FORK, content == Content::Zero);
        }
        a
    }

    fn fits<M: Machine>(self, e: &Entry<M>) -> bool {
        match self.content {
            Some(Content::Zero) => !e.shared() && !shows_file(e),
            Some(Content::Share) => e.shared(),
            _ => true,
        }
    }
}

impl<M: Machine> Space<M> {
    /// Sets the inheritance of `range`. If `range` has a hole, the rest is changed, and the result is
    /// [`MapError::NotMapped`], as on Linux. [`MapError::Invalid`]: a part cannot have this inheritance, and nothing
    /// has changed. [`MapError::Sealed`]: a child would not get sealed content, and nothing has changed. Many mappings are
    /// changed in several steps. A calling thread that must end stops between two steps ([`MapError::Ending`]).
    pub fn inherit(&self, range: VirtRange, how: Inherit) -> Result<(), MapError> {
        self.valid(range)?;
        let result = {
            let writer = self.write(range)?;
            for (n, e) in writer.overlapping(range.start, range.end).enumerate() {
                if n % PART == PART - 1 {
                    self.goes_on()?;
                }
                how.allowed(e)?;
            }
            covered(self, &writer, range)
        };
        if result == Err(MapError::Ending) {
            return result;
        }
        // Another thread may have mapped something since the check. It keeps its attributes if it cannot have these.
        let applied = |e: &Entry<M>| if how.allowed(e).is_ok() { how.applied(e) } else { e.attributes() };
        self.in_parts(range, |rest| self.change_part(rest, applied))?;
        result
    }
}
