use super::*;
use crate::map::Advice;
use crate::map::space::SpaceRef;
use crate::object::ObjectRef;
use crate::testing::{TestMachine, page};
use crate::tests::{anonymous, load, range, show, store, system};
use proptest::prelude::*;
use std::collections::BTreeSet;

/// The pages that a query of `space` counts as resident, and those of them that it shows alone and dirty.
fn resident_and_alone(space: &Space<TestMachine>, part: VirtRange) -> (u64, u64) {
    let (mut resident, mut alone) = (0, 0);
    space.each_page(part, &mut |_, page| {
        resident += 1;
        alone += u64::from(page.alone && page.dirty);
        true
    });
    (resident, alone)
}

#[test]
fn a_child_counts_its_parents_pages_and_owns_those_that_the_parent_replaced() {
    let m = system();
    let parent = Space::new(m.vm).unwrap();
    anonymous(&parent, 0, 600);
    // Downwards, so that no fault makes pages ahead.
    (0..500).rev().for_each(|n| store(&parent, page(n), 1));
    (500..550).for_each(|n| _ = load(&parent, page(n)));
    let child = parent.fork().unwrap();
    let all = range(0, 600);
    assert_eq!((child.stats().resident_pages, parent.stats().resident_pages), (500, 500));
    assert_eq!((resident_and_alone(&child, all), resident_and_alone(&parent, all)), ((500, 0), (500, 0)));
    // A load maps an inherited page, and a store copies it. Neither changes the number.
    (0..10).for_each(|n| assert_eq!(load(&child, page(n)), 1));
    (10..20).for_each(|n| store(&child, page(n), 2));
    assert_eq!(child.stats().resident_pages, 500);
    assert_eq!((resident_and_alone(&child, all), resident_and_alone(&parent, all)), ((500, 10), (500, 10)));
    // After its own store the parent sees a copy, and the child alone sees the page from before.
    (100..200).for_each(|n| store(&parent, page(n), 3));
    assert_eq!((resident_and_alone(&child, all), resident_and_alone(&parent, all)), ((500, 110), (500, 110)));
    let grandchild = child.fork().unwrap();
    assert_eq!(grandchild.stats().resident_pages, 500);
    // Memory that a child gives up leaves only the number of that child.
    child.unmap(range(0, 50)).unwrap();
    child.advise(range(90, 20), Advice::DontNeed).unwrap();
    assert_eq!((child.stats().resident_pages, grandchild.stats().resident_pages), (430, 500));
    store(&child, page(95), 1);
    store(&child, page(599), 1);
    assert_eq!((child.stats().resident_pages, child.unmapped_in(range(110, 200))), (432, 200));
    drop(grandchild);
    drop(parent);
    assert_eq!(resident_and_alone(&child, all), (432, 432));
    child.check(true).unwrap();
}

#[test]
fn the_pages_of_a_file_count_in_a_child_when_it_maps_them() {
    let m = system();
    let parent = Space::new(m.vm).unwrap();
    let file = ObjectRef::anonymous(m.vm, 16).unwrap();
    show(&parent, 0, 16, &file, true);
    show(&parent, 20, 16, &file, false);
    (0..16).for_each(|n| store(&parent, page(n), 1));
    (20..36).for_each(|n| _ = load(&parent, page(n)));
    [22, 23].into_iter().for_each(|n| store(&parent, page(n), 2));
    assert_eq!(parent.stats().resident_pages, 32);
    let child = parent.fork().unwrap();
    // The copies, and no page of the file.
    assert_eq!((child.stats().resident_pages, child.unmapped_in(range(20, 16))), (2, 2));
    let mut seen = Vec::new();
    child.each_page(range(0, 40), &mut |va, page| {
        seen.push((va, page.mapped, page.shared));
        true
    });
    assert_eq!(seen, [(page(22), false, false), (page(23), false, false)]);
    [0, 22, 24].into_iter().for_each(|n| _ = load(&child, page(n)));
    assert_eq!(child.unmapped_in(range(0, 40)), 0, "the load mapped the neighbour, too");
    child.check(true).unwrap();
}

#[test]
fn dropped_tables_hide_no_page() {
    let m = system();
    let space = Space::new(m.vm).unwrap();
    anonymous(&space, 0, 600);
    (0..600).step_by(3).for_each(|n| store(&space, page(n), 1));
    assert!(space.drop_tables().is_some_and(|dropped| dropped.leaves == 200));
    assert_eq!((space.stats().resident_pages, resident_and_alone(&space, range(0, 600))), (200, (200, 200)));
    assert_eq!(load(&space, page(3)), 1);
    assert_eq!((space.stats().resident_pages, space.unmapped_in(range(0, 600))), (200, 0), "one fault maps all");
}

#[derive(Clone, Debug)]
enum Step {
    Store(usize, u64),
    Load(usize, u64),
    Forget(usize, u64, u64),
    Replace(usize, u64, u64),
    Fork(usize),
    End(usize),
    Drop(usize),
}

/// Pages of the model's space.
const PAGES: u64 = 200;

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let (space, at, len) = (0..4usize, 0..PAGES, 1..40u64);
    let one = prop_oneof![
        // Every second page at most, so that no fault makes pages ahead.
        8 => (space.clone(), at.clone()).prop_map(|(s, n)| Step::Store(s, n & !1)),
        3 => (space.clone(), at.clone()).prop_map(|(s, n)| Step::Load(s, n)),
        2 => (space.clone(), at.clone(), len.clone()).prop_map(|(s, n, l)| Step::Forget(s, n, l)),
        1 => (space.clone(), at, len).prop_map(|(s, n, l)| Step::Replace(s, n, l)),
        2 => space.clone().prop_map(Step::Fork),
        1 => space.clone().prop_map(Step::End),
        1 => space.prop_map(Step::Drop),
    ];
    proptest::collection::vec(one, 1..80)
}

proptest! {
    /// Each space counts the pages that were stored by it, or by its ancestors before the fork, and have not gone
    /// since.
    #[test]
    fn the_number_is_that_of_copied_page_tables(steps in steps()) {
        let m = system();
        let first = Space::new(m.vm).unwrap();
        anonymous(&first, 0, PAGES);
        let mut spaces: Vec<(SpaceRef<TestMachine>, BTreeSet<u64>)> = vec![(first, BTreeSet::new())];
        for step in steps {
            let count = spaces.len();
            let of = |s: usize| s % count;
            match step {
                Step::Store(s, n) => {
                    let (space, pages) = &mut spaces[of(s)];
                    store(space, page(n), 1);
                    pages.insert(n);
                }
                Step::Load(s, n) => {
                    let (space, pages) = &spaces[of(s)];
                    prop_assert_eq!(load(space, page(n)), u8::from(pages.contains(&n)));
                }
                Step::Forget(s, n, len) | Step::Replace(s, n, len) => {
                    let len = len.min(PAGES - n);
                    let (space, pages) = &mut spaces[of(s)];
                    if matches!(step, Step::Forget(..)) {
                        space.advise(range(n, len), Advice::DontNeed).unwrap();
                    } else {
                        space.unmap(range(n, len)).unwrap();
                        anonymous(space, n, len);
                    }
                    pages.retain(|p| !(n..n + len).contains(p));
                }
                Step::Fork(s) if spaces.len() < 4 => {
                    let (space, pages) = &spaces[of(s)];
                    let child = (space.fork().unwrap(), pages.clone());
                    spaces.push(child);
                }
                Step::End(s) if spaces.len() > 1 => drop(spaces.remove(of(s))),
                Step::Drop(s) => _ = spaces[of(s)].0.drop_tables(),
                _ => {}
            }
            for (space, pages) in &spaces {
                let shown = resident_and_alone(space, range(0, PAGES)).0;
                prop_assert_eq!((space.stats().resident_pages, shown), (pages.len() as u64, pages.len() as u64));
            }
        }
        for (space, _) in &spaces {
            space.check(true).unwrap();
        }
    }
}
