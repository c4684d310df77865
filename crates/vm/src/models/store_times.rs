//! Times of stores: an explicit time of a file beside a later store.

use super::*;
use crate::testing::MemoryFile;

const EARLY: u64 = 1 << 40;
const LATE: u64 = 1 << 41;

/// The file's time is set explicitly, which forgets the time of an earlier store. At the same time a fault stores at a
/// later time, which must be kept.
fn store_against_explicit_time() {
    let mut w = World::new();
    w.file = ObjectRef::with_pager(w.boot.vm, &MemoryFile { timed: true }, PAGE_SIZE).unwrap();
    w.show(0, 0, Prot::READ | Prot::WRITE);
    let clock = |time| w.boot.vm.machine().store_time.store(time, core::sync::atomic::Ordering::Relaxed);
    clock(EARLY);
    store(&w.space, 0, 1);
    assert_eq!(w.file.stored(), EARLY);
    clock(LATE);
    beside(
        w,
        |w| w.space.fault(page(0), Access::Write).is_ok(),
        |w| w.file.forget_stores(EARLY),
        |w, served, ()| {
            assert!(served, "a mapped page faults");
            assert_eq!(w.file.stored(), LATE, "a store has no time");
        },
    );
}

protocol! {
    a_store_beside_an_explicit_time_keeps_its_own = store_against_explicit_time, Some(3);
    ForgetsUnlooked: "a store has no time";
}
