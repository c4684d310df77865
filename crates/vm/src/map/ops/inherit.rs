//! What a fork makes of a range.

use crate::error::MapError;
use crate::machine::Machine;
use crate::map::entry::{Attributes, Entry, Flags};
use crate::map::ops::advise::{covered, shows_file};
use crate::map::pte_update::Work;
use crate::map::space::Space;
use crate::map::update::Update;
use crate::types::VirtRange;

/// What the child finds in a range that it gets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Content {
    /// A copy of private memory; shared memory itself.
    Copy,
    /// The memory itself: for shared memory only. What a private mapping holds is its own, layer by layer, and no second space can
    /// store into it.
    Share,
    /// Fresh, empty memory: for private anonymous memory only.
    Zero,
}

/// What is to change about that: whether the child gets the range, and what it finds there. Each stays where it is `None`; a range
/// that is left out remembers what it would hold.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Inherit {
    /// Whether the child gets the range at all.
    pub included: Option<bool>,
    /// What it finds there.
    pub content: Option<Content>,
}

impl Inherit {
    /// The child gets nothing.
    pub const NONE: Inherit = Inherit { included: Some(false), content: None };
    /// The child gets a copy, or the same shared memory: what every mapping begins with.
    pub const COPY: Inherit = Inherit { included: Some(true), content: Some(Content::Copy) };
    /// The child gets the same memory.
    pub const SHARE: Inherit = Inherit { included: Some(true), content: Some(Content::Share) };
    /// The child gets empty memory.
    pub const ZERO: Inherit = Inherit { included: Some(true), content: Some(Content::Zero) };

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
    /// Says what a fork makes of `range`. Where a part of it is a hole, the rest is served and [`MapError::NotMapped`] returned, as
    /// on Linux; [`MapError::Invalid`] where something in it cannot be inherited so, and nothing has changed.
    pub fn inherit(&self, range: VirtRange, how: Inherit) -> Result<(), MapError> {
        self.valid(range)?;
        self.with_memory(|| self.inherit_once(range, how))
    }

    fn inherit_once(&self, range: VirtRange, how: Inherit) -> Result<(), MapError> {
        let writer = self.write(range)?;
        let mut changes = false;
        for e in writer.overlapping(range.start, range.end) {
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
