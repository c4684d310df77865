//! The inheritance of a range by a fork.

use crate::error::MapError;
use crate::machine::Machine;
use crate::map::entry::{Attributes, Entry, Flags};
use crate::map::ops::advise::{covered, shows_file};
use crate::map::ops::seal::keeps_content;
use crate::map::space::Space;
use crate::map::update::Update;
use crate::map::update::pte_update::Work;
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
    /// has changed. [`MapError::Sealed`]: a child would not get sealed content, and nothing has changed.
    pub fn inherit(&self, range: VirtRange, how: Inherit) -> Result<(), MapError> {
        self.valid(range)?;
        self.with_memory(|| self.inherit_once(range, how))
    }

    fn inherit_once(&self, range: VirtRange, how: Inherit) -> Result<(), MapError> {
        let writer = self.write(range)?;
        let mut changes = false;
        for e in writer.overlapping(range.start, range.end) {
            if how.discards() && keeps_content(e) {
                return Err(MapError::Sealed);
            }
            if !how.fits(e) {
                return Err(MapError::Invalid);
            }
            changes |= how.applied(e) != e.attributes();
        }
        let result = covered(&writer, range);
        if changes {
            let mut update = Update::new(self, writer, range);
            update.change(range, |e| how.applied(e))?;
            update.apply(Work::None)?;
        }
        result
    }
}
