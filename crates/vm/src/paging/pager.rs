//! Pagers: the backing store of an object. A pager reads and writes its pages, and gets a call when the object is gone.
//!
//! Reads and writes are [`Request`]s of neighbouring pages: a pager gets one, and may complete it at any time, in any
//! order and from any context ([`Request::complete`]). Memory that has no pager of its own goes to the system's
//! [`SwapStore`].

pub use crate::error::PagerError;
use crate::paging::io::{Direction, Request};
use crate::types::PAGE_SIZE;
use core::any::Any;
use core::fmt;

/// The backing store of an object: a file, a file in memory, a device.
///
/// The core calls it with nothing held: every method but [`Pager::ident`], [`Pager::name`], [`Pager::as_any`] and
/// [`Pager::in_memory`] may sleep.
pub trait Pager: Send + Sync {
    /// Writes the name that tools show for mappings of the object (a path).
    fn name(&self, to: &mut dyn fmt::Write) -> fmt::Result;

    /// Device and inode number, as tools show them.
    fn ident(&self) -> (u64, u64);

    /// The pager itself, for the layer that made it and knows more of it
    /// ([`EntryInfo::pager`](crate::map::EntryInfo::pager)).
    fn as_any(&self) -> Option<&dyn Any> {
        None
    }

    /// Whether the object's pages exist nowhere else: a page that is not there is all zeroes, and [`Pager::fill`] is
    /// never called. True for files in memory. No default, because either would be wrong for some. With `true`, a pager
    /// that only fills would read as zeroes. With `false`, a file in memory would lose its pages.
    fn in_memory(&self) -> bool;

    /// Fills page number `page` of the object; `frame` holds zeroes.
    fn fill(&self, page: u64, frame: &mut [u8; PAGE_SIZE as usize]) -> Result<(), PagerError> {
        let _zeroes = (page, frame);
        Ok(())
    }

    /// How many neighbouring pages one read may have, where they are not resident either: 1 where reading ahead gains
    /// nothing. A read has at most [`CLUSTER`](crate::paging::io::CLUSTER) pages.
    fn cluster(&self) -> usize {
        1
    }

    /// Whether dirty pages can be written back. If not, and not [`in_memory`](Pager::in_memory), they stay. No default,
    /// because a wrong one keeps every dirty page in memory for ever, or loses written data.
    fn takes_writes(&self) -> bool;

    /// Starts a read or a write. May sleep; completing may come later. By default a read fills page after page, and a
    /// write fails.
    fn start(&self, request: Request) {
        let result = match request.direction() {
            Direction::Read => (0..request.len()).try_for_each(|i| {
                // SAFETY: the frames of a read belong to its request, are a page long, and are mapped by no leaf until
                // it is complete.
                let bytes = unsafe { &mut *request.frame(i).cast::<[u8; PAGE_SIZE as usize]>() };
                self.fill(request.first() + i as u64, bytes)
            }),
            Direction::Write => Err(PagerError),
        };
        request.complete(result);
    }

    /// Called before page number `page` becomes dirty for the first time since it was clean, to reserve room for
    /// writing it back. Not called for pagers [in memory](Pager::in_memory), which are never written to.
    fn make_writable(&self, page: u64) -> Result<(), PagerError> {
        let _nothing_to_reserve = page;
        Ok(())
    }

    /// Whether [`stores_noted`](Pager::stores_noted) is called for shared mappings that may store into the object. Read
    /// once.
    fn counts_stores(&self) -> bool {
        false
    }

    /// A shared mapping that may store into the object was added, or removed where not `came`. It may store now or
    /// after a change of its protection. A replacement is added before the old mapping is removed. Called under locks
    /// of the map.
    fn stores_noted(&self, came: bool) {
        let _not_counted = came;
    }

    /// Whether [`Object::stored`](crate::object::Object::stored) has the time of stores through shared mappings. Read
    /// once.
    fn times_stores(&self) -> bool {
        false
    }

    /// Whether [`mapping_noted`](Self::mapping_noted) is called for all mappings of the object. Read once.
    fn counts_mappings(&self) -> bool {
        false
    }

    /// A mapping of the object was added, or removed where not `came`. A part of a divided mapping counts as a mapping.
    /// A replacement is added before the old mapping is removed. Called under locks of the map.
    fn mapping_noted(&self, came: bool) {
        let _not_counted = came;
    }

    /// A program is about to drop pages of the object through a mapping that may store (MADV_REMOVE). Returns whether
    /// it may; if so, [`discard_ended`](Pager::discard_ended) follows.
    fn discard_begins(&self) -> bool {
        true
    }

    /// The pages have been dropped.
    fn discard_ended(&self) {}

    /// The object is gone; the core does not use the pager after this call.
    fn released(&self) {}
}

/// The store for pages without a pager of their own: anonymous memory, private and shared, and files in memory. It has
/// slots of one page each; the core manages which are in use.
pub trait SwapStore: Send + Sync {
    /// How many slots there are. Fixed.
    fn slots(&self) -> u64;

    /// Starts a read or a write of slots. Called where sleeping is allowed. Written data may be read back until it is
    /// overwritten. Reads and writes of the same slot never overlap.
    fn start(&self, request: Request);
}
