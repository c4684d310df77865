//! Tests that compare every map with a simple model: a protection for each page.

use super::hinted::Hinted;
use super::linear::Linear;
use super::ordered::Ordered;
use super::ours::Ours;
use super::splay::{After, Before};
use super::workload::{Plan, Sizes};
use super::{AddressMap, MapRange, PAGE};
use proptest::prelude::*;
use quire_vm::map::FAN_OUT;

/// The number of pages of the model. Addresses begin at page 1.
const PAGES: usize = 160;

#[derive(Clone, Copy, Debug)]
enum Op {
    Insert(u64, u64, u32),
    Remove(u64, u64),
    Protect(u64, u64, u32),
    Lookup(u64),
    Find(u64, u32, u64, u64),
}

fn op() -> impl Strategy<Value = Op> {
    let (at, len) = (1..PAGES as u64, 1u64..12);
    prop_oneof![
        5 => (at.clone(), len.clone(), 1u32..4).prop_map(|(a, n, p)| Op::Insert(a, n, p)),
        3 => (at.clone(), 1u64..30).prop_map(|(a, n)| Op::Remove(a, n)),
        3 => (at.clone(), 1u64..30, 1u32..4).prop_map(|(a, n, p)| Op::Protect(a, n, p)),
        2 => at.clone().prop_map(Op::Lookup),
        2 => (len, 0u32..5, at.clone(), at).prop_map(|(n, align, lo, hi)| Op::Find(n, align, lo, hi)),
    ]
}

struct Model([u32; PAGES + 64]);

impl Model {
    fn fill(&mut self, at: u64, n: u64, f: impl Fn(u32) -> u32) {
        for page in at..(at + n).min(self.0.len() as u64) {
            self.0[page as usize] = f(self.0[page as usize]);
        }
    }

    fn all(&self) -> Vec<MapRange> {
        let mut all: Vec<MapRange> = Vec::new();
        for (page, prot) in self.0.iter().enumerate().filter(|(_, p)| **p != 0) {
            let start = page as u64 * PAGE;
            match all.last_mut() {
                Some(h) if h.end == start && h.prot == *prot => h.end += PAGE,
                _ => all.push(MapRange { start, end: start + PAGE, prot: *prot }),
            }
        }
        all
    }

    fn fits(&self, at: u64, n: u64) -> bool {
        self.0[at as usize..].iter().take(n as usize).all(|p| *p == 0)
    }
}

fn agrees(mut map: impl AddressMap, ops: &[Op]) -> Result<(), TestCaseError> {
    let mut model = Model([0; PAGES + 64]);
    for op in ops {
        match *op {
            Op::Insert(at, n, prot) => {
                let free = model.fits(at, n);
                prop_assert_eq!(map.insert(at * PAGE, (at + n) * PAGE, prot).is_ok(), free, "{:?}", op);
                if free {
                    model.fill(at, n, |_| prot);
                }
            }
            Op::Remove(at, n) => {
                map.remove(at * PAGE, (at + n) * PAGE);
                model.fill(at, n, |_| 0);
            }
            Op::Protect(at, n, prot) => {
                map.protect(at * PAGE, (at + n) * PAGE, prot);
                model.fill(at, n, |p| if p == 0 { 0 } else { prot });
            }
            Op::Lookup(at) => {
                let want = model.all().into_iter().find(|h| h.start <= at * PAGE && h.end > at * PAGE);
                prop_assert_eq!(map.lookup(at * PAGE), want, "{:?}", op);
            }
            Op::Find(n, align, lo, hi) => {
                let align = 1u64 << align;
                let fits = |at: &u64| at.is_multiple_of(align) && at + n <= hi && model.fits(*at, n);
                let lowest = (lo..hi).find(fits);
                let found = map.first_fit(n * PAGE, align * PAGE, lo * PAGE, hi * PAGE).map(|at| at / PAGE);
                if align == 1 {
                    prop_assert_eq!(found, lowest, "{:?}", op);
                } else {
                    prop_assert_eq!(found.is_some(), lowest.is_some(), "{:?}", op);
                    prop_assert!(found.is_none_or(|at| at >= lo && fits(&at)), "{:?} {:?}", op, found);
                }
            }
        }
        if let Err(broken) = map.check() {
            prop_assert!(false, "{:?} broke {}", op, broken);
        }
        prop_assert_eq!(map.all(), model.all(), "{:?}", op);
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_splay_that_reads_both_children_agrees_with_the_model(ops in prop::collection::vec(op(), 1..120)) {
        agrees(Before::with_capacity(0), &ops)?;
    }

    #[test]
    fn the_splay_that_infers_agrees_with_the_model(ops in prop::collection::vec(op(), 1..120)) {
        agrees(After::with_capacity(0), &ops)?;
    }

    #[test]
    fn the_linear_list_and_its_hints_agree_with_the_model(ops in prop::collection::vec(op(), 1..120)) {
        agrees(Linear::new(), &ops)?;
        agrees(Linear::without_hints(), &ops)?;
    }

    #[test]
    fn productions_tree_with_hints_agrees_with_the_model(ops in prop::collection::vec(op(), 1..120)) {
        agrees(Hinted::<4>::new(), &ops)?;
    }

    #[test]
    fn the_crates_tree_agrees_with_the_model(ops in prop::collection::vec(op(), 1..120)) {
        agrees(Ordered::with_capacity(0), &ops)?;
    }

    #[test]
    fn productions_tree_agrees_with_the_model(ops in prop::collection::vec(op(), 1..120)) {
        agrees(Ours::<4>::new(), &ops)?;
        agrees(Ours::<FAN_OUT>::new(), &ops)?;
    }
}

#[test]
fn after_the_workload_the_map_is_empty_and_consistent() {
    fn one(mut map: impl AddressMap, sizes: Sizes) {
        Plan::new(3000, sizes, 7).run(&mut map);
        map.check().unwrap();
        assert_eq!(map.all(), []);
    }
    for sizes in [Sizes::Equal, Sizes::Mixed] {
        one(Before::with_capacity(0), sizes);
        one(After::with_capacity(0), sizes);
        one(Linear::new(), sizes);
        one(Ordered::with_capacity(0), sizes);
        one(Ours::<FAN_OUT>::new(), sizes);
    }
}

#[test]
fn only_the_inferring_splay_reads_fewer_children() {
    let (mut before, mut after) = (Before::with_capacity(0), After::with_capacity(0));
    let plan = Plan::new(5000, Sizes::Mixed, 7);
    plan.run(&mut before);
    plan.run(&mut after);
    let (b, a) = (before.asked(), after.asked());
    assert_eq!(b.declines, 0);
    assert!(a.declines > a.reads / 4 && a.zeros < a.reads, "{a:?}");
}

#[test]
fn maps_report_the_nodes_and_bytes_of_their_ranges() {
    const RANGES: usize = 5000;
    fn kept(mut map: impl AddressMap) -> [super::MapFootprint; 2] {
        let plan = Plan::new(RANGES, Sizes::Mixed, 1);
        plan.fill(&mut map);
        let full = map.kept().expect("the map reports its size");
        for held in map.all() {
            map.remove(held.start, held.end);
        }
        [full, map.kept().expect("the map reports its size")]
    }
    for [full, empty] in [kept(Before::with_capacity(RANGES)), kept(After::with_capacity(RANGES))] {
        assert_eq!((full.nodes, full.bytes), (RANGES, RANGES * 64));
        assert_eq!((empty.nodes, empty.bytes), (0, 0));
    }
    let [full, empty] = kept(Ours::<FAN_OUT>::new());
    // Nodes except the root are at least half full. The upper bound includes the inner nodes.
    assert!((RANGES / FAN_OUT..RANGES / (FAN_OUT / 2) * 5 / 4).contains(&full.nodes), "{full:?}");
    assert!(full.bytes > RANGES * 64 && full.bytes < RANGES * 64 * 2, "{full:?}");
    assert!(empty.nodes <= 1 && empty.bytes < 1024, "{empty:?}");
}
