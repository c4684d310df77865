//! Models of passes over the mappings of a page, which flush without the lock of a shard (`object/mapping_list/flushing`).
//! The test machine's flush asserts that its thread holds no spin lock, so each model of a pass checks that too.

use super::*;
use crate::object::batch::Batch;
use crate::object::kept::KeptObject;
use crate::rmap;

/// Whether some TLB allows stores at the first address of the space.
fn allows_stores(w: &World) -> bool {
    w.space.pmap().cached(page(0)).any(|leaf| leaf.prot.contains(Prot::WRITE))
}

/// A page is removed while a space that maps it ends. The pass flushes the space, whose page tables are about to be
/// freed.
fn pass_against_exit() {
    let w = World::new();
    let ending = Space::new(w.boot.vm).unwrap();
    let object = Some((&w.file, 0));
    let r = MapRequest {
        object,
        shared: true,
        prot: Prot::READ,
        ..MapRequest::private(Placement::Fixed(page(0)), PAGE_SIZE)
    };
    ending.map(&r).unwrap();
    load(&ending, 0);
    beside(w, |w| w.file.discard(0..1), move |_| drop(ending), |w, _, ()| assert_eq!(w.file.resident(), 0));
}

protocol! {
    page_tables_stay_until_a_pass_has_flushed_them = pass_against_exit, Some(2);
    UnlinkUnawaited: "page tables are used after they were freed";
    FlushUnderShard: "waiting for other CPUs while spin locks are held";
}

/// Two passes take the right to store from the same leaf. The second finds it taken, but not flushed yet.
fn pass_against_pass() {
    let w = World::showing(true);
    set_cpu(1);
    store(&w.space, 0, 8);
    set_cpu(0);
    beside(
        w,
        |w| drop(w.file.write_protect(0..1)),
        |w| {
            let _flushed = w.file.write_protect(0..1);
            allows_stores(w)
        },
        |_, (), allowed| assert!(!allowed, "a TLB allows stores after a pass has ended"),
    );
}

protocol! {
    a_pass_flushes_what_another_pass_has_not_flushed_yet = pass_against_pass, Some(2);
    NoUnflushedCheck: "a TLB allows stores after a pass has ended";
}

/// A space forks while a pass has taken the right to store from its page, and has not flushed it yet.
fn pass_against_fork() {
    let w = World::private(1);
    set_cpu(1);
    store(&w.space, 0, 8);
    set_cpu(0);
    beside(
        w,
        |w| {
            let kept = {
                let pin = w.boot.vm.epoch().pin();
                let entry = w.space.lookup(page(0), &pin);
                entry.and_then(|e| KeptObject::new(e.front().object()?, &pin))
            };
            // The fork may have given the space a new front, without a page.
            let Some(kept) = kept else { return };
            let pin = w.boot.vm.epoch().pin();
            let first = kept.object().index().first(0, u64::MAX, &pin);
            drop(pin);
            let Some((key, Slot::Page(pfn))) = first else { return };
            let mut batch = Batch::new();
            batch.push(key, pfn);
            let _flushed = rmap::write_protect(kept.object(), &batch);
        },
        |w| {
            let child = w.space.fork().unwrap();
            (allows_stores(w), child)
        },
        |_, (), (allowed, _child)| assert!(!allowed, "a TLB allows stores after a fork"),
    );
}

protocol! {
    a_fork_flushes_what_a_pass_has_not_flushed_yet = pass_against_fork, Some(2);
    #[cfg(loom)]
    NoUnflushedSweep: "a TLB allows stores after a fork";
}
