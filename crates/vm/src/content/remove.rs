//! The remover: removes pages from an object and from every mapping (relies on C2).
//!
//! # The protocol
//! 1. Set the page exclusively busy.
//! 2. Fence.
//! 3. ([`rmap::unmap`]) For each backing that shows the page, under the lock of the backing's shard: lock the table
//!    page over it, clear the leaf if it maps the frame, credit its dirty bit. Flush that space before the shard is
//!    unlocked.
//! 4. Empty the index slot, drop the identity (the generation rises), free the frame.
//!
//! A fault checks busy and generation under the table page's lock, after a fence. So either it sees busy, or the scan
//! sees its leaf. If another remover has cleared a leaf and not flushed yet, the table page's count of unflushed
//! removals shows it. Then this scan flushes that space too.
//!
//! - **remover**
//!   - fault enters: busy + fence, check under the table's lock
//!   - another remover: busy: one at a time; unflushed counts
//!   - copy-on-write: generation after the copy
//!   - first touch, fork, clip: the shard's lock: old or new backing is there
//!
//! Pages are removed in batches, so that a scan and a flush serve many. A batch is never held over a wait. At a busy
//! page the batch so far is finished first; then the remover waits with nothing held.

use crate::machine::Machine;
use crate::object::batch::Batch;
use crate::object::removal::{CollectEnd, EVERYTHING, collect, finish};
use crate::object::{Object, ObjectRef};
use crate::rmap;
use crate::sleep::MaySleep;
use core::ops::Range;

/// Removes the pages and zero markers of `keys` from `object` and from every mapping.
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
    /// Removes the pages of `pages` from the object and from every mapping. Their next use finds zeroes, or the pager's
    /// copy. May sleep.
    pub fn discard(&self, pages: Range<u64>) {
        remove_pages(self, pages, &mut MaySleep::here());
    }
}
