//! Pieces: the parts that replace a range in a map change, and the rules by which adjoining pieces are joined.

use crate::machine::Machine;
use crate::map::entry::{Attributes, Entry, Flags};
use crate::map::space::USER;
use crate::object::backing::Backing;
use crate::types::{PAGE_SHIFT, PAGE_SIZE, VirtRange};
use core::ptr;

/// The number of bytes beyond a private mapping that its front backing (the first of its chain) covers. So the mapping
/// can grow without a new backing. The additional bytes cost nothing, because they have no page. (A front that was
/// clipped does not cover them.)
const ROOM: u64 = 1 << 30;

/// The least number of bytes that a stack's front (the first backing of its chain) covers, downwards. These 64 pages
/// fill one node of its object's index.
pub(in crate::map) const STACK_ROOM: u64 = 64 * PAGE_SIZE;

/// One part of the row of pieces that replaces a range.
pub(in crate::map) struct Piece<'s, M: Machine> {
    pub range: VirtRange,
    pub attributes: Attributes,
    /// The source of the piece's chain.
    pub from: ChainSource<'s, M>,
    /// Whether a new, empty front is put before that chain.
    pub add_front: bool,
    /// Whether empty memory was joined to the piece, so that it will probably grow again.
    pub grown: bool,
}

/// The source of a piece's chain.
pub(in crate::map) enum ChainSource<'s, M: Machine> {
    /// This entry's chain at the piece's addresses (in an update that moves a mapping, at the old addresses).
    Entry(&'s Entry<M>),
    /// New private, zero-filled memory.
    Empty,
    /// The object that the operation passed to the update.
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
            // The chain is the file alone, which allows no stores, so it needs a new front.
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

/// Whether the private anonymous piece `p` can grow over the empty memory `next`. The chain of `p` must have no page at
/// the addresses of `next`, so that the memory is zero. And no other mapping may have the front of `p`.
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
                // The front's object must have no pages at the addresses of `next`. If `p` is only a part of the entry,
                // the object could have pages of the rest of the entry. If the entry was clipped and a part was moved,
                // the object could have pages that other fronts map.
                p.range.end.wrapping_add(moved) >= e.range().end
                    && e.front().object().is_none_or(|o| o.is_alone())
                    && layers(e.front()).all(|b| b.object().is_none_or(|o| o.is_private()))
            }
            ChainSource::Object | ChainSource::Tail(_) => false,
        }
}

/// Whether each layer of `next` begins in its object where the same layer of `p` ends, so that one chain can serve
/// both.
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
                // A copy of the left chain must cover all of the right piece. The copy extends the front and a file to
                // the end of the right piece. Any other layer must reach that end already.
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

/// The address at which a layer would map page 0 of its object.
fn origin_of<M: Machine>(b: &Backing<M>) -> u64 {
    b.range().start.wrapping_sub(b.offset() << PAGE_SHIFT)
}

pub(crate) fn layers<M: Machine>(front: &Backing<M>) -> impl Iterator<Item = &Backing<M>> {
    core::iter::successors(Some(front), |b| b.behind())
}

/// The range that the front (the chain's first layer) of private memory over `range` covers. It includes room to grow:
/// downwards for a stack, else upwards. `stack` is the least length of a stack's front, in bytes.
pub(in crate::map) fn with_room(range: VirtRange, flags: Flags, stack: u64) -> VirtRange {
    if flags.contains(Flags::GROWS_DOWN) {
        let room = range.len().max(stack);
        VirtRange { start: range.end.saturating_sub(room).max(USER.start), end: range.end }
    } else {
        VirtRange { start: range.start, end: range.end.saturating_add(ROOM).min(USER.end).max(range.end) }
    }
}
