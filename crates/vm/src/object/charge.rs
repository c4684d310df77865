//! Charges of an in-memory file's pages to the quota of its file system.
//!
//! # Invariant
//! Each index slot of a charged object that has a page, resident or in swap, is charged once. A page is charged before
//! it enters its slot, and uncharged after it has left the slot. So a quota is never below the number of pages, and is
//! exact while no CPU is between the two steps.
//!
//! The quota outlives the object. A fault that runs during the teardown of the object may give its charge back after
//! the pager is released.

use super::Object;
use crate::machine::Machine;
use quire_sync::Quota;

/// The object's quota has no room for another page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct NoRoom;

/// Pages that are charged, but not yet in a slot. Dropping the value gives the charge back.
#[must_use]
pub(crate) struct Charge {
    quota: Option<&'static Quota>,
    pages: u64,
}

impl Charge {
    /// Keeps the charge, because the pages are in their slots now. The thread that removes a page later gives its
    /// charge back.
    #[inline(always)]
    pub fn keep(self) {
        core::mem::forget(self);
    }

    /// Splits off a charge of one page. Returns `None` if no page is left.
    pub fn split(&mut self) -> Option<Charge> {
        self.pages = self.pages.checked_sub(1)?;
        Some(Charge { quota: self.quota, pages: 1 })
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        if let Some(quota) = self.quota.filter(|_| self.pages != 0) {
            quota.put(self.pages);
        }
    }
}

impl<M: Machine> Object<M> {
    /// Charges `pages` pages before they enter their slots. Charges all of them or none.
    #[inline]
    pub(crate) fn charge(&self, pages: u64) -> Result<Charge, NoRoom> {
        match self.quota {
            Some(quota) if pages != 0 && !quota.take(pages) => Err(NoRoom),
            quota => Ok(Charge { quota, pages }),
        }
    }

    /// Gives back the charge of `pages` pages that have left their slots.
    #[inline]
    pub(crate) fn uncharge(&self, pages: u64) {
        if let Some(quota) = self.quota.filter(|_| pages != 0) {
            quota.put(pages);
        }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;
