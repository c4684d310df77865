//! Models of changes of the map beside other threads: protection, clipping, and arenas that open or are merged. An
//! arena is a part of the map with its own lock.

use super::*;
use crate::types::Prot;

/// C3: a protection removes the right to store while a thread stores.
fn protect_against_store() {
    // No table page exists yet. The writer locks existing table pages, and would need no fence for them.
    beside(
        World::private(1),
        |w| store(&w.space, 0, 2),
        |w| {
            w.space.protect(ONE, Prot::READ).unwrap();
            load(&w.space, 0)
        },
        |w, _, then| {
            let pmap = w.space.pmap();
            let mut leaves = pmap.peek(page(0)).into_iter().chain(pmap.cached(page(0)));
            assert!(!leaves.any(|l| l.prot.contains(Prot::WRITE)), "a read-only page can be stored into");
            assert_eq!(load(&w.space, 0), then, "a read-only page changes");
        },
    );
}

protocol! {
    memory_made_read_only_does_not_change = protect_against_store, Some(2);
    NoStaleCheck: "a read-only page can be stored into";
    #[cfg(loom)]
    NoFenceAfterMark: "a read-only page can be stored into";
}

/// C3: a mapping loses its middle while threads use its ends.
fn clip_against_use() {
    let w = World::private(3);
    store(&w.space, 0, 1);
    store(&w.space, 1, 2);
    beside(
        w,
        |w| {
            store(&w.space, 2, 3);
            load(&w.space, 0)
        },
        |w| w.space.unmap(VirtRange { start: page(1), end: page(2) }).unwrap(),
        |w, seen, _| {
            assert_eq!((seen, load(&w.space, 2)), (Some(1), Some(3)), "a page is missed while its mapping is clipped");
            assert_eq!(load(&w.space, 1), None, "an unmapped page can be read");
            assert_eq!(w.space.stats().resident_pages, 2);
        },
    );
}

protocol! {
    the_rest_of_a_clipped_mapping_is_there_all_the_time = clip_against_use, Some(1);
}

/// C9: a CPU gets an arena of its own while another CPU maps at an address of that arena.
fn open_against_map() {
    beside(
        World::private(1),
        |w| w.space.open_arena(1),
        |w| w.space.map(&MapRequest::private(Placement::Fixed(page(2)), PAGE_SIZE)).unwrap(),
        |w, _, _| {
            store(&w.space, 2, 5);
            assert_eq!(load(&w.space, 2), Some(5), "a mapping is in an arena without its address");
            assert_eq!(load(&w.space, 0), Some(0));
            w.space.unmap(VirtRange { start: page(2), end: page(3) }).unwrap();
            assert_eq!(load(&w.space, 2), None, "an unmapped page can be read");
        },
    );
}

protocol! {
    a_mapping_made_as_arenas_fan_out_is_found = open_against_map, Some(2);
    ArenaBeforeLock: "an arena without its address";
}

/// C9: a CPU maps into its own arena while another CPU joins the arenas: it moves all entries to the first arena.
fn map_against_join() {
    let w = World::private(1);
    w.space.open_arena(1);
    beside(
        w,
        |w| w.space.map(&MapRequest::private(Placement::Any { hint: 0 }, PAGE_SIZE)).unwrap(),
        |w| w.space.join_arenas().unwrap(),
        |w, at, _| {
            let pin = w.boot.vm.epoch().pin();
            assert!(w.space.lookup(at, &pin).is_some(), "a mapping is in a closed arena");
        },
    );
}

protocol! {
    a_mapping_made_as_the_arena_closes_is_found = map_against_join, Some(2);
    OwnArenaBeforeLock: "a closed arena";
}
