//! Tests of layers that a parent's later stores hide: when they are removed from the parent's chain, and that every
//! child keeps its pages.

use super::MOST_HIDDEN;
use crate::map::{Space, SpaceRef};
use crate::object::backing;
use crate::paging::memory_store::FaultPlan;
use crate::testing::{Boot, TestMachine, boot, page};
use crate::tests::{Vm, anonymous, held, load, page_out, settled, store};

const PAGES: u64 = 64;

/// A system, and a parent with `pages` written pages. The system is the first of the pair, so that it is dropped last.
fn parent(pages: u64) -> (Boot, SpaceRef<TestMachine>) {
    quire_sync::hooks::threads::set_cpu(0);
    let boot = boot(8_000, 2);
    let space = Space::new(boot.vm).unwrap();
    anonymous(&space, 0, PAGES);
    (0..pages).for_each(|n| store(&space, page(n), 255));
    (boot, space)
}

fn layers(vm: &'static Vm, space: &Space<TestMachine>) -> usize {
    let pin = vm.epoch().pin();
    backing::depth(space.lookup(page(0), &pin).unwrap().front())
}

#[test]
fn many_children_of_a_parent_that_stores_see_short_chains() {
    let (boot, parent) = parent(PAGES);
    let mut children = Vec::new();
    for g in 0..200u8 {
        (0..3).for_each(|n| store(&parent, page(n), g));
        children.push(parent.fork().unwrap());
        assert!(layers(boot.vm, &parent) <= 3, "{} layers of child {g}", layers(boot.vm, &parent));
    }
    for (g, child) in children.iter().enumerate() {
        child.check(true).unwrap();
        assert!(layers(boot.vm, child) <= 3);
        (0..PAGES).for_each(|n| assert_eq!(load(child, page(n)), if n < 3 { g as u8 } else { 255 }, "page {n}"));
    }
    parent.check(true).unwrap();
    drop((children, parent));
    settled(boot.vm);
    assert_eq!(held(boot.vm), 0);
}

#[test]
fn stores_into_pages_by_turns_leave_as_many_layers_as_turns() {
    let (boot, parent) = parent(PAGES);
    let mut children = Vec::new();
    for g in 0..60u8 {
        store(&parent, page(u64::from(g) % 3), g);
        children.push(parent.fork().unwrap());
        assert!(layers(boot.vm, &parent) <= 5);
    }
    for (g, child) in (0..60u64).zip(&children) {
        for n in 0..3 {
            let last = (0..=g).rev().find(|g| g % 3 == n);
            assert_eq!(load(child, page(n)), last.map_or(255, |g| g as u8), "page {n} of {g}");
        }
    }
    parent.check(true).unwrap();
}

/// A parent stores `first` pages, forks, stores the first `second` pages again, and forks again. Returns the number of
/// its layers, and the spaces.
fn after(first: u64, second: u64) -> (Boot, usize, SpaceRef<TestMachine>, [SpaceRef<TestMachine>; 2]) {
    let (boot, parent) = parent(first);
    let one = parent.fork().unwrap();
    (0..second).for_each(|n| store(&parent, page(n), 2));
    let two = parent.fork().unwrap();
    let layers = layers(boot.vm, &parent);
    (boot, layers, parent, [one, two])
}

#[test]
fn a_layer_goes_when_all_of_it_is_hidden() {
    let most = MOST_HIDDEN as u64;
    // The layers are a front, the layer of the stores between the forks, and the first layer if it is not hidden.
    for (first, second, layers) in [(1, 1, 2), (most, most, 2), (most, PAGES, 2), (2, 1, 3), (most, most - 1, 3)] {
        let (_boot, found, parent, [one, two]) = after(first, second);
        assert_eq!(found, layers, "{second} of {first} pages are hidden");
        for n in 0..PAGES {
            let old = if n < first { 255 } else { 0 };
            assert_eq!(load(&one, page(n)), old);
            let new = if n < second { 2 } else { old };
            assert_eq!((load(&two, page(n)), load(&parent, page(n))), (new, new));
        }
        [&parent, &one, &two].into_iter().for_each(|s| s.check(true).unwrap());
    }
}

#[test]
fn a_fork_looks_at_few_pages_of_a_large_layer() {
    let (_boot, found, ..) = after(MOST_HIDDEN as u64 + 1, PAGES);
    assert_eq!(found, 3, "more pages than are looked at");
}

#[test]
fn pages_in_swap_hide_and_are_hidden() {
    let (boot, parent) = parent(2);
    boot.swap(256, FaultPlan::default());
    let one = parent.fork().unwrap();
    page_out(&one);
    (0..2).for_each(|n| store(&parent, page(n), 2));
    page_out(&parent);
    let two = parent.fork().unwrap();
    assert_eq!(layers(boot.vm, &parent), 2);
    for n in 0..2 {
        assert_eq!([&one, &two, &parent].map(|s| load(s, page(n))), [255, 2, 2]);
    }
    drop((one, two, parent));
    settled(boot.vm);
    assert_eq!(held(boot.vm), 0);
}

#[test]
fn children_that_end_return_what_hidden_layers_held() {
    let (boot, parent) = parent(4);
    let mut children: Vec<_> = (0..50u8)
        .map(|g| {
            (0..4).for_each(|n| store(&parent, page(n), g));
            parent.fork().unwrap()
        })
        .collect();
    // The children exit from the middle outwards, which gives different orders of exits.
    while !children.is_empty() {
        drop(children.swap_remove(children.len() / 2));
        settled(boot.vm);
        assert!(held(boot.vm) <= 4 * (children.len() as u64 + 1), "{} pages", held(boot.vm));
    }
    (0..4).for_each(|n| assert_eq!(load(&parent, page(n)), 49));
}
