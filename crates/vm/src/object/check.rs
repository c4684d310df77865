//! Checks the invariants of an object: its mapping list, its index, and the identity of its pages.

use super::Object;
use crate::check::Broken;
use crate::machine::Machine;
use crate::object::index::{KEYS, Slot};
use crate::phys::page::FrameKind;
use core::ops::Range;

impl<M: Machine> Object<M> {
    /// Checks the object. Other CPUs may link, unlink, fault and remove pages during the check. With `quiet` the caller
    /// states that no CPU does, so more can be checked. Takes O(backings + pages) time. Returns the number of checked
    /// items.
    pub fn check(&self, quiet: bool) -> Result<u64, Broken> {
        let size = self.size();
        if self.is_private() && (size != u64::MAX || self.pager().is_some()) {
            return Err(Broken::Kind(size));
        }
        let (backings, shards) = self.shards().check(self)?;
        let refs = self.refs.count();
        if quiet && (refs < shards || self.shards().counting() != self.refs.own()) {
            return Err(Broken::References(refs));
        }
        Ok(1 + backings + self.check_pages(0..KEYS, quiet)?)
    }

    /// As [`Object::check`], only for the index over `keys` and the pages in that part.
    pub(crate) fn check_pages(&self, keys: Range<u64>, quiet: bool) -> Result<u64, Broken> {
        let pin = self.vm().epoch().pin();
        self.index().check(keys, quiet, &pin, &mut |key, slot, tagged| self.check_slot(key, slot, tagged, quiet))
    }

    /// Checks that the index slot at `key` agrees with its page. Returns false if this cannot be decided at this
    /// moment.
    fn check_slot(&self, key: u64, slot: Slot, tagged: bool, quiet: bool) -> Result<bool, Broken> {
        // A page beyond the end would show its old content when the object grows.
        if quiet && !self.is_private() && key >= self.end() && matches!(slot, Slot::Page(_) | Slot::Swap(_)) {
            return Err(Broken::BeyondEnd(key));
        }
        if let Slot::Swap(slot) = slot
            && quiet
            && !self.vm().swap().in_use(slot)
        {
            return Err(Broken::SwapSlot(key));
        }
        let Slot::Page(pfn) = slot else { return Ok(true) };
        let page = self.vm().page(pfn);
        let state = page.state();
        if state.busy() && !quiet {
            return Ok(true);
        }
        let named = page.kind() == FrameKind::Object && page.object() == self.address() && page.index() == key;
        if !named || !state.valid() || state.busy() {
            return if quiet { Err(Broken::Identity(key)) } else { Ok(false) };
        }
        if quiet && page.swap_slot().is_some_and(|slot| !self.vm().swap().in_use(slot)) {
            return Err(Broken::SwapSlot(key));
        }
        // A thread that makes a page dirty sets the dirty bit in the index next.
        if quiet && state.dirty() && !tagged && !self.is_private() {
            return Err(Broken::DirtyTag(key));
        }
        Ok(true)
    }
}

/// Access to private parts for models.
#[cfg(all(test, any(loom, shuttle)))]
impl<M: Machine> Object<M> {
    /// Closes the shards of the mapping list, or helps a CPU that does so.
    pub(crate) fn close_shards(&self) {
        self.shards.shrink(&self.refs);
    }
    /// The object's reference count. Models of one checker read it.
    #[cfg_attr(loom, allow(dead_code))]
    pub(crate) fn references(&self) -> u32 {
        self.refs.count()
    }
}

/// Access to private parts for tests of the checker.
#[cfg(all(test, not(any(loom, shuttle))))]
impl<M: Machine> Object<M> {
    /// Makes the object's reference count wrong.
    pub(crate) fn corrupt_references(&self) {
        self.refs.corrupt();
    }
    /// Gives a private object an end, which it must not have.
    pub(crate) fn corrupt_size(&self) {
        self.size.store(1, quire_sync::atomic::Ordering::Release);
    }
}
