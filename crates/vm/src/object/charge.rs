//! Charges for pages of a file in memory, to the quota of its file system.
//!
//! # What must hold
//! Each slot of a charged object's index that has a page, in a frame or in swap, is charged once. A page is charged
//! before it comes into its slot, and given back after it has left it. So a quota never says less than there is, and
//! says exactly that when no CPU is between the two.
//!
//! The quota outlives the object: a fault that lost against the object's end gives its charge back when the pager is
//! gone.

use super::Object;
use crate::machine::Machine;
use quire_sync::Quota;

/// There is no room for a page in the object's quota.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct NoRoom;

/// Pages that are charged and in no slot yet; given back when dropped.
#[must_use]
pub(crate) struct Charge {
    quota: Option<&'static Quota>,
    pages: u64,
}

impl Charge {
    /// The pages are in their slots: the remover that takes them out returns the charge.
    #[inline(always)]
    pub fn keep(self) {
        core::mem::forget(self);
    }

    /// A charge of one page out of this one; `None` where none is left.
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
    /// Charges `pages` pages that are to come into their slots; all or none.
    #[inline]
    pub(crate) fn charge(&self, pages: u64) -> Result<Charge, NoRoom> {
        match self.quota {
            Some(quota) if pages != 0 && !quota.take(pages) => Err(NoRoom),
            quota => Ok(Charge { quota, pages }),
        }
    }

    /// Takes back the charge of `pages` pages that have left their slots.
    #[inline]
    pub(crate) fn uncharge(&self, pages: u64) {
        if let Some(quota) = self.quota.filter(|_| pages != 0) {
            quota.put(pages);
        }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;
