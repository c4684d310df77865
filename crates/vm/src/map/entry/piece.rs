//! Pieces: the parts that replace a range in a map change, and when two of them are joined.

use crate::machine::Machine;
use crate::map::entry::{Attributes, Entry, Flags};
use crate::map::space::USER;
use crate::object::backing::Backing;
use crate::types::{PAGE_SHIFT, PAGE_SIZE, VirtRange};
use core::ptr;

/// Addresses beyond a private mapping that its front backing covers in advance, so that the mapping can grow by a new
/// entry alone. They cost nothing; no page is ever kept there (a front that was clipped has none of them).
const ROOM: u64 = 1 << 30;

/// A stack's front covers at least this much, downward: 64 pages are one node of its object's index.
pub(in crate::map) const STACK_ROOM: u64 = 64 * PAGE_SIZE;

/// A part of the row that replaces a range.
pub(in crate::map) struct Piece<'s, M: Machine> {
    pub range: VirtRange,
    pub attributes: Attributes,
    /// Where its chain comes from.
    pub from: ChainSource<'s, M>,
    /// A new, untouched front goes before that chain.
    pub add_front: bool,
    /// Empty memory was joined to it: it will probably grow again.
    pub grown: bool,
}

/// Where a piece's chain comes from.
pub(in crate::map) enum ChainSource<'s, M: Machine> {
    /// This entry's chain there (or, in an update that moves, at the old place).
    Entry(&'s Entry<M>),
    /// Private, empty memory.
    Empty,
    /// The update's object.
    Object,
    /// The file at the end of this entry's chain.
    Tail(&'s Entry<M>),
}

impl<M: Machine> Clone for ChainSource<'_, M> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<M: Machine> Copy for ChainSource<'_, M> {}

impl<'s, M: Machine> Piece<'s, M> {
    pub fn new(range: VirtRange, attributes: Attributes, from: ChainSource<'s, M>) -> Self {
        Piece { range, attributes, from, add_front: false, grown: false }
    }

    /// The part of `entry` in `range`, unchanged.
    pub fn part(entry: &'s Entry<M>, range: VirtRange) -> Self {
        Self::new(range, entry.attributes(), ChainSource::Entry(entry))
    }

    /// The part of `entry` in `range` without the anonymous memory in front of it.
    pub fn without_private_layers(entry: &'s Entry<M>, range: VirtRange) -> Self {
        let mut a = entry.attributes();
        if layers(entry.front()).any(|b| b.object().is_some_and(|o| !o.is_private())) {
            // The file itself allows no stores.
            Piece { add_front: !a.flags.contains(Flags::NEEDS_FRONT), ..Self::new(range, a, ChainSource::Tail(entry)) }
        } else {
            a.flags -= Flags::NEEDS_FRONT;
            Self::new(range, a, ChainSource::Empty)
        }
    }

    pub fn is_all_of(&self, entry: &Entry<M>) -> bool {
        self.range == entry.range() && self.attributes == entry.attributes() && !self.add_front
    }
}

/// Whether `p`, private and anonymous, can grow over the empty memory `next`. A page that is not in `p`'s chain is zero
/// there, and no other mapping has its front.
pub(in crate::map) fn grows<M: Machine>(p: &Piece<'_, M>, next: &Piece<'_, M>, moved: u64) -> bool {
    let own = !p.attributes.flags.intersects(Flags::SHARED | Flags::NEEDS_FRONT);
    let empty = match next.from {
        ChainSource::Empty => true,
        ChainSource::Entry(e) => e.front().object().is_none() && e.front().behind().is_none(),
        ChainSource::Object | ChainSource::Tail(_) => false,
    };
    own && empty
        && !next.add_front
        && match p.from {
            ChainSource::Empty => true,
            ChainSource::Entry(e) => {
                // Pages of the front's object could lie where it would grow to. They could be the entry's own, of which
                // a part gives way. Or other fronts may show them (it was clipped, and that part moved away).
                p.range.end.wrapping_add(moved) >= e.range().end
                    && e.front().object().is_none_or(|o| o.is_alone())
                    && layers(e.front()).all(|b| b.object().is_none_or(|o| o.is_private()))
            }
            ChainSource::Object | ChainSource::Tail(_) => false,
        }
}

/// Whether each layer of `next` continues where the same layer of `p` ends, so that one chain can show both.
pub(in crate::map) fn continues<M: Machine>(p: &Piece<'_, M>, next: &Piece<'_, M>) -> bool {
    let (ChainSource::Entry(a), ChainSource::Entry(b)) = (p.from, next.from) else { return false };
    let (mut left, mut right) = (layers(a.front()), layers(b.front()));
    let mut front = true;
    loop {
        match (left.next(), right.next()) {
            (None, None) => return true,
            (Some(l), Some(r)) => {
                let same = match (l.object(), r.object()) {
                    (None, None) => front,
                    (Some(lo), Some(ro)) => ptr::eq(lo, ro) && origin_of(l) == origin_of(r),
                    _ => false,
                };
                // A copy of the left chain must show all of the right one. The front and a file grow to its range.
                let reaches = front || l.object().is_none_or(|o| !o.is_private()) || l.range().end >= next.range.end;
                if !same || !reaches {
                    return false;
                }
                front = false;
            }
            _ => return false,
        }
    }
}

/// The address at which a layer would show page 0 of its object.
fn origin_of<M: Machine>(b: &Backing<M>) -> u64 {
    b.range().start.wrapping_sub(b.offset() << PAGE_SHIFT)
}

pub(crate) fn layers<M: Machine>(front: &Backing<M>) -> impl Iterator<Item = &Backing<M>> {
    core::iter::successors(Some(front), |b| b.behind())
}

/// The range that the front of private memory over `range` covers: with room to grow where it may.
pub(in crate::map) fn with_room(range: VirtRange, flags: Flags, stack: u64) -> VirtRange {
    if flags.contains(Flags::GROWS_DOWN) {
        let room = range.len().max(stack);
        VirtRange { start: range.end.saturating_sub(room).max(USER.start), end: range.end }
    } else {
        VirtRange { start: range.start, end: range.end.saturating_add(ROOM).min(USER.end).max(range.end) }
    }
}
