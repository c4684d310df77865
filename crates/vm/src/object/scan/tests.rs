//! Tests of scans while other threads link and unlink members whenever the scan releases the lock, in the worst
//! possible ways.

use super::{MOST_VISITS, STEPS, Scan, Step, VISITS, VISITS_A_LINKING};
use crate::object::interval::tests::Member;
use crate::object::interval::{Tree, TreePlace};
use core::ops::ControlFlow;
use core::ptr;
use std::collections::HashSet;

/// The distance between two neighbours at the start.
const GAP: u64 = 1 << 32;

/// A tree, and its members.
struct World {
    tree: Tree<Member>,
    members: Vec<*mut Member>,
    linked: u64,
    seed: u64,
}

impl World {
    fn new(members: u64) -> World {
        let mut w = World { tree: Tree::new(ptr::null_mut()), members: vec![], linked: 0, seed: 88172645463325252 };
        (0..members).for_each(|n| w.link(n * GAP));
        w
    }

    /// Links a member. All members reach to the same end, so all of them overlap there.
    fn link(&mut self, start: u64) {
        let m = Member::new(start, u64::MAX);
        // SAFETY: the member was just made and is in no tree. It is freed only after its removal.
        unsafe { self.tree.insert(m, self.linked) };
        self.members.push(m);
        self.linked += 1;
    }

    fn unlink(&mut self, n: usize) -> TreePlace {
        let m = self.members.swap_remove(n);
        // SAFETY: the member is in the tree until now, and came from `Box::into_raw`.
        unsafe {
            let place = Tree::place(&*m);
            self.tree.remove(m);
            drop(Box::from_raw(m));
            place
        }
    }

    fn below(&mut self, n: u64) -> u64 {
        self.seed ^= self.seed << 13;
        self.seed ^= self.seed >> 7;
        self.seed ^= self.seed << 17;
        self.seed % n
    }

    /// Scans all members. Between two holds of the lock it calls `pause`, with the set of members seen so far. Returns
    /// the number of holds.
    fn scan(
        &mut self,
        from: Option<TreePlace>,
        mut pause: impl FnMut(&mut World, &Scan, &mut HashSet<TreePlace>),
    ) -> u64 {
        let mut scan = Scan::new(0, u64::MAX, from);
        let mut seen = HashSet::new();
        let (mut holds, mut held) = (0, self.linked);
        loop {
            let (before, linked) = (scan.visits(), self.linked);
            let step = scan.step(&mut self.tree, linked, &mut |m| {
                seen.insert(Tree::place(m));
                ControlFlow::<()>::Continue(())
            });
            holds += 1;
            let most = ((linked - held) * VISITS_A_LINKING).clamp(VISITS.into(), MOST_VISITS.into());
            assert!(scan.visits() - before <= most, "{} visits in one hold", scan.visits() - before);
            held = linked;
            assert!(holds < 100_000, "a scan does not end");
            match step {
                Step::More => pause(self, &scan, &mut seen),
                Step::Over => break,
                Step::Found(()) => unreachable!(),
            }
        }
        // SAFETY: members are in the tree until they are freed.
        let missed = self.members.iter().filter(|m| !seen.contains(&Tree::place(unsafe { &***m }))).count();
        assert_eq!(missed, 0, "of {}", self.members.len());
        holds
    }
}

impl Drop for World {
    fn drop(&mut self) {
        // SAFETY: each member came from `Box::into_raw`, and the tree is not used any more.
        self.members.iter().for_each(|m| drop(unsafe { Box::from_raw(*m) }));
    }
}

#[test]
fn a_scan_ends_though_all_that_is_linked_stands_ahead_of_it() {
    const MEMBERS: u64 = 2000;
    for a_pause in [1, 4, 7, 8, 9, 16, 40, 255] {
        let mut w = World::new(MEMBERS);
        let holds = w.scan(None, |w, scan, _| {
            let ahead = scan.last().map_or(0, |(start, _)| start) + 1;
            (0..a_pause).for_each(|n| w.link(ahead + n));
        });
        // A hold makes half of its visits for members that were linked since the hold before.
        assert!(holds <= 2 * MEMBERS / u64::from(VISITS) + 16, "{holds} holds with {a_pause} linkings a pause");
    }
}

#[test]
fn a_scan_of_a_long_list_ends_though_members_come_and_go_anywhere() {
    const MEMBERS: u64 = 30_000;
    for (a_pause, from) in [(1, None), (4, None), (7, Some((MEMBERS / 2 * GAP, 0))), (60, None)] {
        let mut w = World::new(MEMBERS);
        let holds = w.scan(from, |w, _, seen| {
            for _ in 0..a_pause {
                let start = w.below(MEMBERS * GAP);
                w.link(start);
                let gone = w.below(w.members.len() as u64) as usize;
                seen.remove(&w.unlink(gone));
            }
        });
        assert!(holds <= 2 * MEMBERS / u64::from(VISITS) + 16, "{holds} holds with {a_pause} linkings a pause");
    }
}

#[test]
fn a_stopped_scan_is_not_noted_any_more() {
    let mut w = World::new(100);
    let mut scan = Scan::new(0, u64::MAX, None);
    let mut go_on = |_: &Member| ControlFlow::<()>::Continue(());
    assert!(matches!(scan.step(&mut w.tree, w.linked, &mut go_on), Step::More));
    assert!(w.tree.is_walked());
    scan.stop(&mut w.tree);
    assert!(!w.tree.is_walked());
    const { assert!(STEPS > 1 && VISITS < MOST_VISITS) };
}
