//! Two spaces that want more memory than the limit of the commit charge allows together (`map/space/commit.rs`).

use super::*;

const BYTES: u64 = PAGE_SIZE;

fn charge_against_charge() {
    let w = World::new();
    let commit_charge = || w.boot.vm.map_memory().commit_charge();
    commit_charge().set_limit(commit_charge().bytes() + BYTES);
    beside(
        w,
        |w| w.boot.vm.map_memory().commit_charge().charge_commit(BYTES, 0),
        |w| w.boot.vm.map_memory().commit_charge().charge_commit(BYTES, 0),
        |w, first, second| {
            assert!(!(first && second), "both writers exceeded the limit");
            let left = u64::from(first || second) * BYTES;
            let commit_charge = w.boot.vm.map_memory().commit_charge();
            assert_eq!(
                commit_charge.limit() - commit_charge.bytes(),
                BYTES - left,
                "a refused writer left bytes behind"
            );
        },
    );
}

protocol! {
    writers_never_exceed_the_commit_limit_together = charge_against_charge, Some(3);
    #[cfg(loom)]
    NoFenceAfterCharge: "both writers exceeded the limit";
}
