//! Models of changes of chains beside other threads: the last copy of a page, copy-up, moves of pages, truncation.

use super::*;
use crate::map::Advice;
use crate::phys::page::{FrameKind, Page};
use crate::sleep::MaySleep;
use crate::stats::FaultKind;

/// The number of pages of all objects but the file.
fn pages(w: &World) -> usize {
    let vm = w.boot.vm;
    vm.frame_span().filter(|n| vm.page(Pfn(*n)).kind() == FrameKind::Object).count() - w.file.resident() as usize
}

/// Asserts that a page that no space sees is freed, or that its object is marked for the reaper.
fn assert_no_page_is_forgotten(w: &World, seen: usize) {
    assert!(pages(w) == seen || w.boot.vm.reapable(), "a page that no space sees is leaked");
    w.boot.vm.reap(u64::MAX, &mut MaySleep::here());
    assert_eq!(pages(w), seen, "a page that no space sees is leaked");
}

/// The last two spaces that see a page copy it at the same time.
fn copy_against_copy() {
    let w = World::private(1);
    store(&w.space, 0, 1);
    let child = w.space.fork().unwrap();
    beside(
        w,
        move |_| {
            store(&child, 0, 2);
            child
        },
        |w| store(&w.space, 0, 3),
        |w, child, _| {
            assert_no_page_is_forgotten(w, 2);
            assert_eq!((load(&child, 0), load(&w.space, 0)), (Some(2), Some(3)));
        },
    );
}

protocol! {
    of_two_last_copies_one_destroys_the_page = copy_against_copy, Some(2);
    LookBeforeFill: "a page that no space sees is leaked";
}

/// A thread that has copied a page marks the object for the reaper while the object is destroyed.
fn flag_against_teardown() {
    let w = World::private(1);
    store(&w.space, 0, 1);
    let vm = w.boot.vm;
    let own = |p: &&Page| p.kind() == FrameKind::Object && p.object() != w.file.address();
    let page = vm.frame_span().map(|n| vm.page(Pfn(n))).find(own).expect("the private page");
    beside(
        w,
        |w| w.space.unmap(ONE).unwrap(),
        move |w| {
            let pin = w.boot.vm.epoch().pin();
            if let Some(object) = w.boot.vm.object_of(page, &pin) {
                w.boot.vm.reaper().flag(object);
            }
        },
        |w, _, _| assert!(!w.boot.vm.reapable(), "a destroyed object is left to the reaper"),
    );
}

protocol! {
    an_object_that_goes_is_on_no_list_of_the_reapers = flag_against_teardown, Some(2);
    FlagTheDead: "a destroyed object is left to the reaper";
}

/// The last two spaces that see a page copy it at the same time. The page's watch (the backing that the page remembers
/// as a sharer) belongs to one of them.
#[cfg(shuttle)]
fn copy_against_choice() {
    let w = World::private(1);
    store(&w.space, 0, 1);
    let children: Vec<_> = (0..3).map(|_| w.space.fork().unwrap()).collect();
    store(&children[0], 0, 2);
    // This copy finds that other spaces see the page, and makes one of them the watch.
    store(&children[1], 0, 3);
    let last = children[2].clone();
    beside(
        w,
        move |_| store(&last, 0, 4),
        |w| store(&w.space, 0, 5),
        // Moved into the closure, so that it is dropped before the system.
        move |w, _, _| {
            assert_no_page_is_forgotten(w, 4);
            assert!(children.iter().zip([2, 3, 4]).all(|(c, value)| load(c, 0) == Some(value)));
        },
    );
}

protocol! {
    #[cfg(shuttle)]
    a_watch_that_copies_while_it_is_chosen_is_not_waited_for = copy_against_choice, Some(2);
    NoSecondLook: "a page that no space sees is leaked";
}

/// A space copies a page while the only other space that sees it exits, and the reaper runs at once.
fn copy_against_exit() {
    let w = World::private(1);
    store(&w.space, 0, 1);
    let (stays, leaves) = (w.space.fork().unwrap(), w.space.fork().unwrap());
    store(&stays, 0, 2);
    beside(
        w,
        move |w| {
            drop(leaves);
            w.boot.vm.reap(u64::MAX, &mut MaySleep::here());
        },
        |w| store(&w.space, 0, 3),
        move |w, _, _| {
            assert_no_page_is_forgotten(w, 2);
            assert_eq!((load(&stays, 0), load(&w.space, 0)), (Some(2), Some(3)));
        },
    );
}

protocol! {
    a_sharer_that_leaves_during_copies_leaves_nothing_behind = copy_against_exit, Some(1);
    LookBeforeFill: "a page that no space sees is leaked";
}

// Copy-up is modelled under shuttle only. Three spaces are too large for loom, and only the order of steps matters
// here.

/// A grandchild whose chain is so deep that its next copy begins a copy-up. Page 0 is in the child's layer (content 3)
/// and in the first space's (1). Page 1 is in the first space's layer (2).
#[cfg(shuttle)]
fn deep() -> (World, [SpaceRef<TestMachine>; 2]) {
    let w = World::private(2);
    store(&w.space, 0, 1);
    store(&w.space, 1, 2);
    let child = w.space.fork().unwrap();
    store(&child, 0, 3);
    let grandchild = child.fork().unwrap();
    (w, [child, grandchild])
}

/// A page is copied up while another CPU loads from it and stores into it.
#[cfg(shuttle)]
fn copy_up_against_store() {
    let (w, [child, grandchild]) = deep();
    let (theirs, ours) = (grandchild.clone(), grandchild.clone());
    beside(
        w,
        move |_| {
            let seen = load(&theirs, 0);
            store(&theirs, 0, 9);
            seen
        },
        move |_| store(&ours, 1, 4),
        move |w, seen, _| {
            assert_eq!(seen, Some(3), "a page that is copied up is missed");
            assert_eq!((load(&grandchild, 0), load(&grandchild, 1)), (Some(9), Some(4)));
            assert_eq!((load(&child, 0), load(&child, 1)), (Some(3), Some(2)));
            assert_eq!((load(&w.space, 0), load(&w.space, 1)), (Some(1), Some(2)));
        },
    );
}

protocol! {
    #[cfg(shuttle)]
    a_page_that_is_copied_up_is_seen_all_the_time = copy_up_against_store, Some(2);
}

/// A page is copied up while `MADV_DONTNEED` hides it.
#[cfg(shuttle)]
fn copy_up_against_give_up() {
    let (w, [child, grandchild]) = deep();
    let (theirs, ours) = (grandchild.clone(), grandchild.clone());
    beside(
        w,
        move |_| theirs.advise(ONE, Advice::DontNeed).unwrap(),
        move |_| store(&ours, 1, 4),
        move |_, _, _| {
            assert_eq!(load(&grandchild, 0), Some(0), "old data comes back");
            assert_eq!(load(&child, 0), Some(3));
        },
    );
}

protocol! {
    #[cfg(shuttle)]
    a_page_discarded_during_a_copy_up_stays_zero = copy_up_against_give_up, Some(2);
    NoSourceCheck: "old data comes back";
}

/// Layers are removed from a chain while another CPU copies a page from them, and drops the copy.
#[cfg(shuttle)]
fn take_out_against_copy() {
    let (w, [child, grandchild]) = deep();
    let (theirs, ours) = (grandchild.clone(), grandchild.clone());
    beside(
        w,
        move |_| {
            // Each protection marks the entry stale, so that some copies are dropped.
            theirs.protect(VirtRange { start: page(1), end: page(2) }, crate::types::Prot::READ).unwrap();
            store(&theirs, 0, 9);
        },
        move |_| {
            let _any = ours.fault(page(1), Access::Write);
        },
        move |_, _, _| {
            assert_eq!(load(&grandchild, 0), Some(9));
            assert_eq!((load(&child, 0), load(&grandchild, 1)), (Some(3), Some(2)));
        },
    );
}

protocol! {
    #[cfg(shuttle)]
    a_copy_that_is_given_up_keeps_its_source = take_out_against_copy, Some(2);
}

/// Pages are copied up while they move from one layer behind the front to another, nearer to the front. They move
/// because the related processes have exited.
fn copy_up_against_merge() {
    let w = World::private(4);
    // Three layers behind an empty front. The page of the last layer moves into the layer in front of it, which has
    // more pages. None of these stores copies a page, which would have begun a copy-up.
    let layers = [&[1][..], &[0, 2], &[3]].map(|pages| {
        pages.iter().for_each(|n| store(&w.space, *n, *n as u8 + 1));
        w.space.fork().unwrap()
    });
    drop(layers);
    beside(
        w,
        |w| crate::fault::copy_up::copy_up(&w.space, page(0), &mut MaySleep::here()),
        merge,
        |w, (), ()| {
            // The leaf is dropped first, so that the load shows the page of the chain. A load through the leaf would
            // show the mapped page, even if the chain had lost it.
            let seen = [0, 1, 2, 3].map(|n| {
                w.space.pmap().forget(w.boot.vm, page(n));
                load(&w.space, n)
            });
            assert_eq!(seen, [Some(1), Some(2), Some(3), Some(4)], "a page that moves is taken for a zero marker");
        },
    );
}

protocol! {
    a_move_during_a_copy_up_is_not_taken_for_a_zero_marker = copy_up_against_merge, Some(1);
    #[cfg(loom)]
    ZeroMarkerUnseen: "a page that moves is taken for a zero marker";
}

/// A page in swap moves between layers while a fault reads it in.
fn swap_move_against_page_in() {
    let w = layered();
    let slots = super::paging::SLOTS;
    w.boot.swap(slots, super::paging::PROMPT);
    w.space.advise(ONE, Advice::PageOut).unwrap();
    assert!(w.boot.vm.swap().free() < slots);
    beside(
        w,
        |w| load(&w.space, 0),
        merge,
        move |w, seen, _| {
            assert_eq!(seen, Some(1), "a page is missed while it moves");
            assert_eq!(load(&w.space, 0), Some(1), "a page is lost by moving");
            let all = VirtRange { start: page(0), end: page(3) };
            w.space.unmap(all).unwrap();
            assert_eq!(w.boot.vm.swap().free(), slots, "a swap slot is lost");
        },
    );
}

protocol! {
    a_page_in_swap_that_moves_is_read_in_once = swap_move_against_page_in, Some(1);
    #[cfg(shuttle)]
    SwapInTwoSlots: "freed twice";
}

/// Calls `f` with the object of the layer directly behind the front at the first address.
#[cfg(shuttle)]
fn with_behind<R>(w: &World, f: impl FnOnce(&crate::object::Object<TestMachine>) -> R) {
    let pin = w.boot.vm.epoch().pin();
    let behind = w.space.lookup(page(0), &pin).and_then(|e| e.front().behind()).and_then(|b| b.object());
    let kept = crate::object::kept::KeptObject::new(behind.unwrap(), &pin).unwrap();
    drop(pin);
    f(kept.object());
}

/// The last two spaces that see a page in swap copy it at the same time. Pageout evicts the source pages again during
/// the copies.
#[cfg(shuttle)]
fn copy_from_swap_against_copy() {
    let w = World::private(1);
    store(&w.space, 0, 1);
    let slots = super::paging::SLOTS;
    w.boot.swap(slots, super::paging::PROMPT);
    let child = w.space.fork().unwrap();
    with_behind(&w, |object| crate::reclaim::evict::push_out(object, 0..1, &mut MaySleep::here()));
    beside(
        w,
        move |_| {
            store(&child, 0, 2);
            child
        },
        |w| store(&w.space, 0, 3),
        move |w, child, _| {
            w.boot.vm.reap(u64::MAX, &mut MaySleep::here());
            assert_eq!((pages(w), w.boot.vm.swap().free()), (2, slots), "a page that no space sees is leaked");
            assert_eq!((load(&child, 0), load(&w.space, 0)), (Some(2), Some(3)));
        },
    );
}

protocol! {
    #[cfg(shuttle)]
    of_two_last_copies_from_swap_one_destroys_the_page = copy_from_swap_against_copy, Some(2);
    LookBeforeFill: "a page that no space sees is leaked";
}

/// A page that only one chain sees moves into the front while its space is forked.
#[cfg(shuttle)]
fn claim_against_fork() {
    let w = World::private(1);
    store(&w.space, 0, 1);
    let first = w.space.fork().unwrap();
    store(&first, 0, 2);
    beside(
        w,
        |w| w.space.fork().unwrap(),
        |w| store(&w.space, 0, 3),
        move |w, child, _| {
            let seen = load(&child, 0);
            assert!(matches!(seen, Some(1 | 3)), "a child loses a page that moves");
            assert_eq!((load(&first, 0), load(&w.space, 0)), (Some(2), Some(3)));
            assert_no_page_is_forgotten(w, if seen == Some(1) { 3 } else { 2 });
        },
    );
}

protocol! {
    #[cfg(shuttle)]
    a_page_that_moves_to_its_last_sharer_reaches_the_child_too = claim_against_fork, Some(2);
    NoSecondAsk: "a child loses a page that moves";
}

/// A page moves to its last sharer while another chain copies it, and then drops the copy.
#[cfg(shuttle)]
fn claim_against_copy() {
    let w = World::private(1);
    store(&w.space, 0, 1);
    let (first, child) = (w.space.fork().unwrap(), w.space.fork().unwrap());
    store(&first, 0, 2);
    let theirs = child.clone();
    beside(
        w,
        move |_| {
            // The store goes to the second byte, because the loads below compare the first byte of each page.
            if let Some(at) = reach(&theirs, page(0), Access::Write) {
                // SAFETY: `reach` returned the first byte of a frame in the machine's RAM, so the second byte is in
                // that frame.
                unsafe { at.add(1).write(9) };
            }
        },
        |w| store(&w.space, 0, 3),
        move |w, _, _| {
            assert_eq!(load(&child, 0), Some(1), "a page moves away from its copier");
            assert_eq!((load(&first, 0), load(&w.space, 0)), (Some(2), Some(3)));
            assert_no_page_is_forgotten(w, 3);
        },
    );
}

protocol! {
    #[cfg(shuttle)]
    a_page_under_a_copy_does_not_move = claim_against_copy, Some(2);
    BusyHides: "a page moves away from its copier";
}

/// A page moves to its last sharer while another CPU of the same space loads from it.
fn claim_against_load() {
    let w = World::private(1);
    store(&w.space, 0, 1);
    let child = w.space.fork().unwrap();
    store(&child, 0, 2);
    // The leaf is dropped, so that the load faults.
    w.space.pmap().forget(w.boot.vm, page(0));
    beside(
        w,
        |w| load(&w.space, 0),
        |w| store(&w.space, 0, 3),
        move |w, seen, _| {
            assert!(matches!(seen, Some(1 | 3)), "a page that moves is missed");
            assert_eq!((load(&child, 0), load(&w.space, 0)), (Some(2), Some(3)), "a page that moves is missed");
            assert_eq!(w.boot.vm.stats().faults_of(FaultKind::Move), 1);
            assert_no_page_is_forgotten(w, 2);
        },
    );
}

protocol! {
    a_page_that_moves_is_seen_all_the_time = claim_against_load, Some(1);
    #[cfg(shuttle)]
    EmptyBeforeFill: "a page that moves is missed";
}

/// The last sharer of a page stores into it while a write of the page to swap ends.
#[cfg(shuttle)]
fn claim_against_completion() {
    let w = World::private(1);
    store(&w.space, 0, 1);
    let slots = super::paging::SLOTS;
    w.boot.swap(slots, super::paging::LATE);
    let child = w.space.fork().unwrap();
    store(&child, 0, 2);
    with_behind(&w, |object| crate::reclaim::evict::write_out(object, 0..1, &mut MaySleep::here()));
    beside(
        w,
        |w| w.boot.vm.finish_io(&mut MaySleep::here()),
        |w| store(&w.space, 0, 3),
        move |w, _, _| {
            w.boot.vm.finish_io(&mut MaySleep::here());
            assert_eq!((load(&child, 0), load(&w.space, 0)), (Some(2), Some(3)));
            w.space.unmap(ONE).unwrap();
            child.unmap(ONE).unwrap();
            w.boot.vm.reap(u64::MAX, &mut MaySleep::here());
            w.boot.vm.finish_io(&mut MaySleep::here());
            assert_eq!(w.boot.vm.swap().free(), slots, "a swap slot is lost");
        },
    );
}

protocol! {
    #[cfg(shuttle)]
    a_claim_of_a_page_that_is_written_loses_no_swap_slot = claim_against_completion, Some(2);
}

/// A private mapping of the file, whose first page was copied. A child has a copy of its own in front of that copy.
#[cfg(shuttle)]
fn copied() -> (World, SpaceRef<TestMachine>) {
    let w = World::showing(false);
    store(&w.space, 0, 1);
    let child = w.space.fork().unwrap();
    store(&child, 0, 2);
    (w, child)
}

/// Asserts that no copy of the truncated pages is left.
#[cfg(shuttle)]
fn assert_cut_off(w: &World) {
    assert_eq!((load(&w.space, 0), w.translations()), (None, Vec::new()), "a copy is left beyond the end");
    assert_no_page_is_forgotten(w, 0);
}

/// A file is truncated while the last sharer of a copy of its page moves that copy into its front.
#[cfg(shuttle)]
fn claim_against_truncate() {
    let (w, child) = copied();
    beside(
        w,
        |w| w.file.set_size(0),
        |w| {
            let _any = w.space.fault(page(0), Access::Write);
        },
        move |w, _, _| {
            assert_eq!(load(&child, 0), None, "a copy is left beyond the end");
            assert_cut_off(w);
        },
    );
}

protocol! {
    #[cfg(shuttle)]
    no_copy_that_moves_is_left_beyond_the_end = claim_against_truncate, Some(2);
}

/// A file is truncated while the layers in front of it merge.
#[cfg(shuttle)]
fn collapse_against_truncate() {
    let w = World::showing(false);
    store(&w.space, 0, 1);
    drop(w.space.fork().unwrap());
    beside(w, |w| w.file.set_size(0), merge, |w, _, _| assert_cut_off(w));
}

protocol! {
    #[cfg(shuttle)]
    no_copy_that_merges_is_left_beyond_the_end = collapse_against_truncate, Some(2);
}

/// A private mapping of all of the file's pages, with a layer in front of it for each member of `stored`. Each layer
/// has copies of that member's pages, and this chain alone shows it.
#[cfg(shuttle)]
fn stacked(stored: &[&[u64]]) -> World {
    let w = World::new();
    let object = Some((&w.file, 0));
    let all = MapRequest { object, ..MapRequest::private(Placement::Fixed(page(0)), 4 * PAGE_SIZE) };
    w.space.map(&all).unwrap();
    let mut children = Vec::new();
    for (n, pages) in stored.iter().enumerate() {
        if n > 0 {
            children.push(w.space.fork().unwrap());
        }
        pages.iter().for_each(|p| store(&w.space, *p, 1));
    }
    drop(children);
    w
}

/// The last of four pages of a file is truncated while layers merge. The copies of the other pages must stay.
#[cfg(shuttle)]
fn merge_against_cut(w: World) {
    beside(
        w,
        |w| w.file.set_size(3 * PAGE_SIZE),
        merge,
        |w, _, _| {
            assert_eq!(pages(w), 3, "a copy is left beyond the end");
            assert_eq!((load(&w.space, 2), load(&w.space, 3)), (Some(1), None));
        },
    );
}

/// The page's copy moves back, to the layer that has more pages.
#[cfg(shuttle)]
fn merge_back_against_truncate() {
    merge_against_cut(stacked(&[&[0, 1, 2], &[3]]));
}

protocol! {
    #[cfg(shuttle)]
    no_copy_that_moves_back_is_left_beyond_the_end = merge_back_against_truncate, Some(2);
    MovesCutOff: "a copy is left beyond the end";
}

/// If the file were not truncated, the page's copy would move back twice, from layer to layer.
#[cfg(shuttle)]
fn merge_twice_against_truncate() {
    merge_against_cut(stacked(&[&[0, 1], &[2], &[3]]));
}

protocol! {
    #[cfg(shuttle)]
    no_copy_that_moves_back_twice_is_left_beyond_the_end = merge_twice_against_truncate, Some(2);
    MovesCutOff: "a copy is left beyond the end";
}
