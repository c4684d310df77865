//! The remover: it removes pages from an object and from every mapping (relies on C2).
//!
//! # The protocol
//! 1. Set the page exclusively busy.
//! 2. Fence.
//! 3. ([`rmap::unmap`]) Under the lock of each shard (a part) of the mapping list, visit each backing that shows the
//!    page. Lock the table page that covers the page's address there. Clear the leaf if it maps the frame, and credit
//!    its dirty bit. Unlock the shard and flush that space before the next backing.
//! 4. Empty the index slot, drop the page's identity (its generation rises), and free the frame.
//!
//! A fault checks the busy state and the generation under the table page's lock, after a fence. So either the fault
//! sees that the page is busy, or the scan sees the fault's leaf. If another remover has cleared a leaf and not flushed
//! yet, the table page's count of unflushed removals is not zero. Then this scan flushes that space too.
//!
//! This list names concurrent operations, and the lock or rule that orders each against the operation in bold:
//!
//! - **remover**
//!   - fault: the page is busy, with a fence; the fault checks that under the table page's lock
//!   - another remover: only one of the two can hold the page busy; each also flushes removals that the table page
//!     counts as unflushed
//!   - copy-on-write: it checks the page's generation after the copy
//!   - first touch, fork, clip (a split of an entry): the shard's lock; the scan finds the old backing or the new one
//!
//! Pages are removed in batches, so that one scan and one flush serve many pages. No page of a batch stays busy during
//! a wait. If the next page is busy, the remover first finishes the batch so far. Then it waits without holding
//! anything.

use crate::machine::Machine;
use crate::object::batch::Batch;
use crate::object::removal::{CollectEnd, EVERYTHING, collect, finish};
use crate::object::{Object, ObjectRef};
use crate::rmap;
use crate::sleep::MaySleep;
use core::ops::Range;

/// Removes the pages, and the zero markers (marks that the content is zeroes), of `keys` from `object` and from every
/// mapping.
pub(crate) fn remove_pages<M: Machine>(object: &Object<M>, keys: Range<u64>, may: &mut MaySleep) {
    let vm = object.vm();
    let mut range = object.range(keys.clone(), EVERYTHING);
    loop {
        let mut batch = Batch::new();
        let stop = {
            let pin = may.pin(vm.epoch());
            collect(&mut range, &mut batch, &pin)
        };
        if !batch.is_empty() {
            let _flushed = rmap::unmap(object, &batch);
            let pin = may.pin(vm.epoch());
            finish(object, &batch, &pin);
        }
        match stop {
            CollectEnd::Done => break,
            CollectEnd::Full => {}
            CollectEnd::Busy(page) => vm.wait_unbusy(page, may),
            CollectEnd::Reserved => quire_sync::hooks::relax(),
            CollectEnd::Laundering(page) => vm.wait_laundered(page, may),
        }
    }
    let pin = may.pin(vm.epoch());
    object.index().prune(keys, &pin);
}

impl<M: Machine> ObjectRef<M> {
    /// Removes the pages of `pages` from the object and from every mapping. Their next use gets zeroes, or the pager's
    /// copy. May sleep.
    pub fn discard(&self, pages: Range<u64>) {
        remove_pages(self, pages, &mut MaySleep::here());
    }
}
