//! A model of the shards of an object's mapping list. A CPU links into a new shard of its own while another CPU closes
//! all shards. It depends on fences, so it runs under loom too, unlike the models in [`lists`](super::lists).

use super::*;

/// A CPU gets a shard of its own and links a backing there, while another CPU closes the shards.
fn own_part_against_close() {
    let w = World::new();
    w.file.shards().widen(w.boot.vm);
    for (n, cpu) in [(1, 0), (2, 1)] {
        set_cpu(cpu);
        w.show(n, 0, Prot::READ);
    }
    assert!(!w.file.shards().has_own(), "the list has the intended shards");
    beside(
        w,
        |w| w.show(0, 0, Prot::READ),
        |w| w.file.close_shards(),
        |w, (), ()| {
            load(&w.space, 0);
            w.file.discard(0..1);
            let passed_over = !w.translations().is_empty();
            if passed_over {
                // The space and the file are leaked, because their destruction would fail too.
                std::mem::forget((w.space.clone(), w.file.clone()));
            }
            assert!(!passed_over, "a mapping is in a shard that scans skip");
        },
    );
}

protocol! {
    a_backing_in_a_new_own_shard_is_seen_when_all_shards_close = own_part_against_close, Some(2);
    #[cfg(loom)]
    NoFenceAfterOwn: "a mapping is in a shard that scans skip";
    #[cfg(loom)]
    NoFenceAfterClosing: "a mapping is in a shard that scans skip";
}
