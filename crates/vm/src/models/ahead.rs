//! Models of pages that a fault makes ahead of the touched one ([`zero_ahead`](crate::fault::zero_ahead)).

use super::*;
use crate::phys::Config;
use crate::phys::page::FrameKind;
use crate::testing::boot_with;

const LAST: VirtRange =
    VirtRange { start: crate::testing::BASE + 3 * PAGE_SIZE, end: crate::testing::BASE + 4 * PAGE_SIZE };

/// A world with four pages of untouched private memory, where a zero-ahead window has two pages.
fn empty() -> World {
    set_cpu(0);
    let boot = boot_with(FRAMES, 2, Config { poison: true, reserve: Some(4), zero_window: 2, ..Config::default() });
    let w = World { space: Space::new(boot.vm).unwrap(), file: ObjectRef::anonymous(boot.vm, 1).unwrap(), boot };
    w.space.map(&MapRequest::private(Placement::Fixed(page(0)), 4 * PAGE_SIZE)).unwrap();
    w
}

/// Private memory of four pages, of which the first two were touched. A touch of the third page also makes the last
/// one.
fn in_a_row() -> World {
    let w = empty();
    (0..2).for_each(|n| store(&w.space, n, 1));
    w
}

/// The number of pages of all objects.
fn pages(w: &World) -> usize {
    let vm = w.boot.vm;
    vm.frame_span().filter(|n| vm.page(Pfn(*n)).kind() == FrameKind::Object).count()
}

/// A page is made ahead while another CPU touches it.
fn ahead_against_touch() {
    beside(
        in_a_row(),
        |w| store(&w.space, 3, 3),
        |w| store(&w.space, 2, 2),
        |w, _, _| {
            assert_eq!([2, 3].map(|n| load(&w.space, n)), [2, 3].map(Some));
            assert_eq!(pages(w), 4, "two pages at one address");
        },
    );
}

protocol! {
    a_page_that_is_made_ahead_is_the_addresss_only_one = ahead_against_touch, Some(2);
    FillNotAtomic: "two pages at one address";
}

/// A page is made ahead while its mapping is removed.
fn ahead_against_unmap() {
    beside(
        in_a_row(),
        |w| w.space.unmap(LAST).unwrap(),
        |w| store(&w.space, 2, 2),
        |w, _, _| {
            assert!(w.space.pmap().peek(page(3)).is_none(), "an unmapped address is translated");
            w.space.map(&MapRequest::private(Placement::Fixed(page(3)), PAGE_SIZE)).unwrap();
            assert_eq!([2, 3].map(|n| load(&w.space, n)), [2, 0].map(Some));
        },
    );
}

protocol! {
    nothing_is_made_ahead_where_nothing_is_mapped = ahead_against_unmap, Some(2);
    NoStaleCheck: "an unmapped address is translated";
}

/// A page is made ahead while the whole mapping is removed, and its object is destroyed.
fn ahead_against_teardown() {
    beside(
        in_a_row(),
        |w| w.space.unmap(VirtRange { end: LAST.end, ..ONE }).unwrap(),
        |w| _ = w.space.fault(page(2), Access::Write),
        |w, _, _| {
            let left = (0..4).any(|n| w.space.pmap().peek(page(n)).is_some());
            assert!(!left, "an unmapped address is translated");
            assert_eq!(pages(w), 0, "a page that no space sees is leaked");
        },
    );
}

protocol! {
    pages_made_ahead_go_with_their_object = ahead_against_teardown, Some(2);
    NoStaleCheck: "an unmapped address is translated";
}

/// A page is made ahead, and is stored into, while the space is forked.
fn ahead_against_fork() {
    beside(
        in_a_row(),
        |w| {
            store(&w.space, 2, 2);
            store(&w.space, 3, 3);
        },
        |w| {
            let child = w.space.fork().unwrap();
            let first = load(&child, 3);
            (first, child)
        },
        |w, _, (first, child)| {
            store(&w.space, 3, 4);
            assert_eq!(load(&child, 3), first, "the parent's store reaches the child");
            assert!(matches!(first, Some(0 | 3)));
        },
    );
}

protocol! {
    pages_made_ahead_reach_the_child_as_of_one_moment = ahead_against_fork, Some(2);
    NoStaleCheck: "the parent's store reaches the child";
}

/// A page moves to a layer nearer to the front. A fault is about to make a page ahead at the same address in the front.
fn ahead_against_move() {
    let w = empty();
    // Three layers that belong to this space alone. The last layer has the last page, the next one the first two pages,
    // and the front has none.
    store(&w.space, 3, 7);
    let first = w.space.fork().unwrap();
    (0..2).for_each(|n| store(&w.space, n, 1));
    drop((first, w.space.fork().unwrap()));
    (0..2).for_each(|n| _ = load(&w.space, n));
    w.space.pmap().forget(w.boot.vm, page(3));
    beside(
        w,
        |w| store(&w.space, 2, 2),
        |w| w.space.fork().unwrap(),
        |w, _, child| {
            assert_eq!([load(&w.space, 3), load(&child, 3)], [Some(7); 2], "a page made ahead hides another page");
            assert_eq!(load(&w.space, 2), Some(2));
        },
    );
}

protocol! {
    a_page_made_ahead_does_not_hide_a_page_that_moves = ahead_against_move, Some(2);
    #[cfg(shuttle)]
    NoLookBehind: "a page made ahead hides another page";
}

/// A load of untouched memory maps the frame of zeroes at its neighbours too. Meanwhile the page of a neighbour moves to
/// a layer nearer to the front.
#[cfg(shuttle)]
fn zeroes_against_move() {
    let w = World::private(4);
    store(&w.space, 0, 1);
    let child = w.space.fork().unwrap();
    store(&w.space, 1, 2);
    store(&w.space, 2, 3);
    drop(child);
    // The leaf is dropped, so that the load may map the neighbour.
    w.space.pmap().forget(w.boot.vm, page(0));
    beside(
        w,
        |w| load(&w.space, 3),
        merge,
        |w, seen, ()| {
            let all = [0, 1, 2].map(|n| load(&w.space, n));
            assert_eq!((all, seen), ([1, 2, 3].map(Some), Some(0)), "the frame of zeroes hides a page that moves");
        },
    );
}

protocol! {
    #[cfg(shuttle)]
    a_page_that_moves_is_not_shown_as_zeroes = zeroes_against_move, Some(1);
    OneLookAtLayers: "the frame of zeroes hides a page that moves";
}
