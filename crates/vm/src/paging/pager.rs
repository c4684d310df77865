//! Pagers: the backing stores of objects. A pager reads and writes an object's pages, and is notified when the object
//! is torn down.
//!
//! Reads and writes are [`Request`]s of neighbouring pages. A pager may complete a request at any time, in any order
//! and from any context ([`Request::complete`]). Memory without a pager of its own uses the system's [`SwapStore`].

pub use crate::error::PagerError;
use crate::paging::io::Request;
use crate::types::PAGE_SIZE;
use core::any::Any;
use core::fmt;

/// The backing store of an object: a file, a file in memory, a device.
///
/// The core holds no lock when it calls a method, except where the method's comment says so. All methods except
/// [`Pager::ident`], [`Pager::name`], [`Pager::as_any`] and [`Pager::in_memory`] may sleep.
///
/// A method that panics unwinds through the core. The request that it has is dropped, which fails it. A panic under
/// locks of the map ([`stores_noted`](Pager::stores_noted), [`mapping_noted`](Pager::mapping_noted)) aborts the
/// process.
pub trait Pager: Send + Sync {
    /// Writes the name that tools show for mappings of the object (a path).
    fn name(&self, to: &mut dyn fmt::Write) -> fmt::Result;

    /// The device and inode number that tools show for mappings of the object.
    fn ident(&self) -> (u64, u64);

    /// The pager as its concrete type, for the layer that made it ([`EntryInfo::pager`](crate::map::EntryInfo::pager)).
    fn as_any(&self) -> Option<&dyn Any> {
        None
    }

    /// Whether the object's pages exist nowhere else. If so, an absent page is all zeroes, and [`Pager::fill`] is never
    /// called. True for files in memory. There is no default, because each value would be wrong for some pagers. With
    /// `true`, the pages of a pager that only fills would read as zeroes. With `false`, a file in memory would lose its
    /// pages.
    fn in_memory(&self) -> bool;

    /// Fills page number `page` of the object. `frame` holds zeroes at first, if the pager does not [fill whole
    /// pages](Pager::fills_whole).
    fn fill(&self, page: u64, frame: &mut [u8; PAGE_SIZE as usize]) -> Result<(), PagerError> {
        let _zeroes = (page, frame);
        Ok(())
    }

    /// Whether each successful read overwrites all bytes of its pages. If so, the core does not zero frames before it
    /// reads. If such a pager leaves bytes unwritten, programs that map the object read the frame's old content.
    fn fills_whole(&self) -> bool {
        false
    }

    /// The number under which the pager's requests are counted. All pagers with one number may together hold half of the
    /// system's records of requests, or less if other pagers hold some. By default it is the pager's address. It never
    /// changes.
    fn share(&self) -> usize {
        core::ptr::from_ref(self).addr()
    }

    /// The most neighbouring pages that one read may have, if they are not resident either. It is 1 if readahead gains
    /// nothing. A read has at most [`CLUSTER`](crate::paging::io::CLUSTER) pages.
    fn cluster(&self) -> usize {
        1
    }

    /// Whether dirty pages can be written back. If not, and the pager is not [`in_memory`](Pager::in_memory), they stay
    /// in memory. There is no default. A wrong value would keep all dirty pages in memory for ever, or lose written
    /// data.
    fn takes_writes(&self) -> bool;

    /// Starts a read or a write. May sleep, and the request may be completed later. By default a read fills page after
    /// page, and a write fails.
    fn start(&self, request: Request) {
        request.fill_by(self);
    }

    /// Called before page number `page` becomes dirty for the first time since it was clean, to reserve room for its
    /// write-back. Not called for pagers [in memory](Pager::in_memory), which are never written to.
    fn make_writable(&self, page: u64) -> Result<(), PagerError> {
        let _nothing_to_reserve = page;
        Ok(())
    }

    /// Whether [`stores_noted`](Pager::stores_noted) is called for shared mappings that may store into the object. The
    /// core reads this once.
    fn counts_stores(&self) -> bool {
        false
    }

    /// A shared mapping that may store into the object was added (`came`) or removed. It may store now, or only after a
    /// change of its protection. When a mapping is replaced, the new one is added before the old one is removed. Called
    /// under locks of the map.
    fn stores_noted(&self, came: bool) {
        let _not_counted = came;
    }

    /// Whether [`Object::stored`](crate::object::Object::stored) has the time of stores through shared mappings. The
    /// core reads this once.
    fn times_stores(&self) -> bool {
        false
    }

    /// Whether [`mapping_noted`](Self::mapping_noted) is called for all mappings of the object. The core reads this
    /// once.
    fn counts_mappings(&self) -> bool {
        false
    }

    /// A mapping of the object was added (`came`) or removed. Each part of a divided mapping counts as a mapping. When
    /// a mapping is replaced, the new one is added before the old one is removed. Called under locks of the map.
    fn mapping_noted(&self, came: bool) {
        let _not_counted = came;
    }

    /// A program is about to drop pages of the object through a mapping that may store (MADV_REMOVE). Returns whether
    /// the program may. If so, a call of [`discard_ended`](Pager::discard_ended) follows.
    fn discard_begins(&self) -> bool {
        true
    }

    /// The pages of [`discard_begins`](Pager::discard_begins) have been dropped.
    fn discard_ended(&self) {}

    /// The object is torn down. The core does not use the pager after this call.
    fn released(&self) {}
}

/// The store for pages without a pager of their own: anonymous memory, private and shared, and files in memory. It has
/// slots of one page each. The core records which slots are in use.
pub trait SwapStore: Send + Sync {
    /// The number of slots. Fixed.
    fn slots(&self) -> u64;

    /// Starts a read or a write of slots. Called where the thread may sleep. Written data may be read back until it is
    /// overwritten. Reads and writes of the same slot never overlap.
    fn start(&self, request: Request);
}
impl Request {
    /// Fills all pages of a read with [`Pager::fill`], and completes the request. A write fails.
    pub fn fill_by<P: Pager + ?Sized>(mut self, pager: &P) {
        let first = self.first();
        let result = (0..self.len()).try_for_each(|i| match self.page_mut(i) {
            Some(bytes) => pager.fill(first + i as u64, bytes),
            None => Err(PagerError::Failed),
        });
        self.complete(result);
    }
}
