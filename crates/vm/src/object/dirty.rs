//! The dirty pages of files whose pagers have pages elsewhere, and their limit. Such pages leave memory only if the pager
//! writes them. So one file whose pager refuses writes, or never ends them, could take all memory.
//!
//! An object may have as many dirty pages as the system may still have (the dynamic threshold of Choudhury and Hahne,
//! 1998). One object gets half of [`Config::dirty`](crate::Config::dirty), and N objects that are never written get
//! N/(N+1) of it. Before it dirties a page beyond that, a thread writes its own object's pages
//! ([`wait_to_dirty`](crate::content)). Each object may have one dirty page, whatever others have.
//!
//! A page is counted when it becomes dirty, until its write has succeeded. A page that is removed while it is dirty
//! stays counted until the object reaches its limit, and its pages are counted again.

use super::{Object, SlotFilter};
use crate::machine::Machine;
use crate::object::index::{KEYS, Slot};
use crate::sleep::MaySleep;
use quire_sync::atomic::{AtomicU64, Ordering};

/// The count of a system, and its limit.
pub(crate) struct DirtyPages {
    /// The sum of the objects' counts.
    count: AtomicU64,
    most: u64,
}

impl DirtyPages {
    pub fn new(most: u64) -> DirtyPages {
        DirtyPages { count: AtomicU64::new(0), most }
    }
}

impl<M: Machine> Object<M> {
    /// Whether the object may have one more dirty page. The result is a hint, because other threads may dirty pages.
    pub(crate) fn may_dirty(&self) -> bool {
        let all = &self.vm.dirty;
        self.own.dirty.load(Ordering::Relaxed) < all.most.saturating_sub(all.count.load(Ordering::Relaxed))
    }

    /// Whether no page of the object counts as dirty.
    pub(crate) fn has_no_dirty(&self) -> bool {
        self.own.dirty.load(Ordering::Relaxed) == 0
    }

    /// Counts a page that has become dirty.
    pub(crate) fn count_dirty(&self) {
        self.own.dirty.fetch_add(1, Ordering::Relaxed);
        self.vm.dirty.count.fetch_add(1, Ordering::Relaxed);
    }

    /// Ends the count of a page that was written. A new count of all pages may have left this page out.
    pub(crate) fn count_written(&self) {
        if self.own.dirty.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| n.checked_sub(1)).is_ok() {
            self.vm.dirty.count.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Counts the object's dirty pages, and those that are being written, again.
    pub(crate) fn recount_dirty(&self, may: &mut MaySleep) {
        let mut range = self.range(0..KEYS, SlotFilter::PAGES);
        let pin = may.pin(self.vm.epoch());
        let is_counted = |slot| match slot {
            Slot::Page(pfn) => {
                let state = self.vm.page(pfn).state();
                state.dirty() || state.laundering()
            }
            _ => false,
        };
        let found = range.walk(&pin).filter(|found| is_counted(found.slot())).count() as u64;
        self.set_dirty_count(found);
    }

    /// Ends the counts of an object that is torn down.
    pub(super) fn forget_dirty(&self) {
        self.set_dirty_count(0);
    }

    fn set_dirty_count(&self, now: u64) {
        let before = self.own.dirty.swap(now, Ordering::Relaxed);
        // Most objects never have a dirty page that counts, and share no line then.
        if now != before {
            // The difference may be negative, and the sum wraps to the right value.
            self.vm.dirty.count.fetch_add(now.wrapping_sub(before), Ordering::Relaxed);
        }
    }
}
