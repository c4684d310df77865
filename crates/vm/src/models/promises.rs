//! Two spaces that want more memory than the limit of promises allows together (`map/space/promises.rs`).

use super::*;

const BYTES: u64 = PAGE_SIZE;

fn promise_against_promise() {
    let w = World::new();
    let promises = || w.boot.vm.map_memory().promises();
    promises().set_limit(promises().bytes() + BYTES);
    beside(
        w,
        |w| w.boot.vm.map_memory().promises().promise(BYTES, 0),
        |w| w.boot.vm.map_memory().promises().promise(BYTES, 0),
        |w, first, second| {
            assert!(!(first && second), "both writers exceeded the limit");
            let left = u64::from(first || second) * BYTES;
            let promises = w.boot.vm.map_memory().promises();
            assert_eq!(promises.limit() - promises.bytes(), BYTES - left, "a refused writer left bytes behind");
        },
    );
}

protocol! {
    writers_never_exceed_the_limit_of_promises_together = promise_against_promise, Some(3);
    #[cfg(loom)]
    NoFenceAfterPromise: "both writers exceeded the limit";
}
