//! Tests of the number of backings that a scan visits, in all and in one hold of the lock.

use super::{Scan, Step, VISITS};
use crate::map::{Space, SpaceRef};
use crate::mutant::{Mutant, set_mutant};
use crate::object::backing::Backing;
use crate::object::kept::KeptObject;
use crate::phys::page::FrameKind;
use crate::testing::{Boot, TestMachine, boot, page};
use crate::tests::{anonymous, store};
use core::ops::ControlFlow;
use std::collections::HashSet;

/// A space with one page, and spaces that were forked from it and also show the page.
struct Family {
    sharers: Vec<SpaceRef<TestMachine>>,
    parent: SpaceRef<TestMachine>,
    boot: Boot,
}

fn family(sharers: u64) -> Family {
    quire_sync::hooks::threads::set_cpu(0);
    let boot = boot(48 * sharers + 4096, 2);
    let parent = Space::new(boot.vm).unwrap();
    anonymous(&parent, 0, 1);
    store(&parent, page(0), 1);
    let sharers = (0..sharers).map(|_| parent.fork().unwrap()).collect();
    Family { sharers, parent, boot }
}

impl Family {
    /// The object of the page, and the page's key.
    fn base(&self) -> (KeptObject<TestMachine>, u64) {
        let vm = self.boot.vm;
        let pin = vm.epoch().pin();
        let page = vm.described().find(|p| p.kind() == FrameKind::Object).unwrap();
        (KeptObject::new(vm.object_of(page, &pin).unwrap(), &pin).unwrap(), page.index())
    }
}

fn address(b: &Backing<TestMachine>) -> usize {
    core::ptr::from_ref(b).addr()
}

/// The counts of a scan. Whenever the scan releases the lock, one forked space exits and a new one is forked.
struct Stormed {
    /// The number of visits of the longest hold.
    hold: u64,
    visits: u64,
    holds: u64,
    /// The number of backings that are in the list at the end and were not visited.
    missed: usize,
}

fn storm(sharers: u64, from_within: bool) -> Stormed {
    let mut f = family(sharers);
    let (base, key) = f.base();
    let object = base.object();
    let mut from = None;
    if from_within {
        let mut scan = Scan::new(key, key + 1, None);
        // This visits about half of the backings.
        for _ in 0..sharers / u64::from(2 * VISITS) {
            let _some = object.shards().step(&mut scan, |_| ControlFlow::<()>::Continue(()));
        }
        from = scan.last();
        object.shards().stop(scan);
    }
    let mut scan = Scan::new(key, key + 1, from);
    let (mut seen, mut hold, mut holds) = (HashSet::new(), 0, 0);
    loop {
        let before = scan.visits();
        let step = object.shards().step(&mut scan, |b| {
            seen.insert(address(b));
            ControlFlow::<()>::Continue(())
        });
        (hold, holds) = (hold.max(scan.visits() - before), holds + 1);
        if matches!(step, Step::Over) {
            break;
        }
        // The new backing may reuse the memory of a freed one. The tree orders by address, so it can be at any place.
        let came = f.parent.fork().unwrap();
        let left = holds as usize * 7919 % f.sharers.len();
        f.sharers[left] = came;
        f.boot.vm.epoch().drain();
    }
    let mut missed = 0;
    let _all = object.search(key, key + 1, |b| {
        missed += usize::from(!seen.contains(&address(b)));
        ControlFlow::<()>::Continue(())
    });
    let visits = scan.visits();
    drop(base);
    Stormed { hold, visits, holds, missed }
}

#[test]
fn a_hold_is_as_short_among_thousands_of_sharers_that_come_and_go() {
    for (sharers, from_within) in [(10, false), (1000, false), (1000, true)] {
        let s = storm(sharers, from_within);
        assert!(s.hold <= u64::from(VISITS), "{} visits in one hold", s.hold);
        assert!(s.visits <= sharers + 1 + 2 * s.holds, "{} visits of {sharers} sharers", s.visits);
        assert_eq!(s.missed, 0, "of {sharers}");
    }
}

#[test]
fn a_scan_without_later_passes_misses_backings() {
    let missed = |mutant| {
        set_mutant(Some(mutant));
        // New backings are last in the order, and the scan reaches them before its end.
        let s = storm(1000, true);
        set_mutant(None);
        s.missed
    };
    assert!(missed(Mutant::ScanGoesOn) > 0);
    assert!(missed(Mutant::LinkingUnnoted) > 0);
}
