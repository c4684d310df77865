//! Pagers: what gives an object its pages, and is told when it is gone.

use crate::types::PAGE_SIZE;
use core::fmt;

/// The pager could not do what was asked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PagerError;

/// Behind an object: a file, a file in memory, a device.
///
/// The core calls it with nothing held: every method but [`Pager::ident`], [`Pager::name`] and
/// [`Pager::in_memory`] may sleep.
pub trait Pager: Send + Sync {
    /// Writes the name that tools show for mappings of the object (a path).
    fn name(&self, to: &mut dyn fmt::Write) -> fmt::Result;

    /// Device and inode number, as tools show them.
    fn ident(&self) -> (u64, u64);

    /// Whether the object's pages exist nowhere else: a page that is not there is all zeroes, and [`Pager::fill`] is never
    /// called. True for files in memory.
    fn in_memory(&self) -> bool {
        true
    }

    /// Fills page number `page` of the object; `frame` holds zeroes.
    fn fill(&self, page: u64, frame: &mut [u8; PAGE_SIZE as usize]) -> Result<(), PagerError> {
        let _zeroes = (page, frame);
        Ok(())
    }

    /// Before page number `page` becomes dirty for the first time since it was clean: reserve what writing it back will need.
    fn make_writable(&self, page: u64) -> Result<(), PagerError> {
        let _nothing_to_reserve = page;
        Ok(())
    }

    /// The object is gone; the core does not use the pager after this call.
    fn released(&self) {}
}
