//! The workload that compares maps: separate ranges are mapped, looked up, protected and unmapped in random order.

use super::{AddressMap, PAGE};

/// The distance in bytes between two places. A mapping is smaller, so there is a gap on both sides.
const PLACE: u64 = 16 * PAGE;
/// The address of the first place.
const BASE: u64 = 1 << 32;

/// The random generator SplitMix64.
pub struct Random(pub u64);

impl Random {
    /// A random number below `n`. `n` must not be zero.
    pub fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % n
    }

    /// The numbers below `n` in random order.
    pub fn shuffled(&mut self, n: usize) -> Vec<u32> {
        let mut order: Vec<u32> = (0..n as u32).collect();
        for i in (1..n).rev() {
            order.swap(i, self.below(i as u64 + 1) as usize);
        }
        order
    }
}

/// Whether all ranges have the same size.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sizes {
    /// Each range has four pages, and all gaps are equal.
    Equal,
    /// Each range has one to fourteen pages, at a random position in its place.
    Mixed,
}

/// The steps of a workload, each with its ranges in order. The plan is made in advance and read sequentially. So
/// reading it touches only one cache line for four operations.
pub struct Plan {
    map: Vec<(u64, u64)>,
    touch: Vec<(u64, u64)>,
    protect: Vec<(u64, u64)>,
    unmap: Vec<(u64, u64)>,
    again: Vec<(u64, u64)>,
}

impl Plan {
    /// Makes a plan for `entries` ranges.
    pub fn new(entries: usize, sizes: Sizes, seed: u64) -> Self {
        let mut random = Random(seed);
        let ranges = (0..entries as u64).map(|place| {
            let (from, pages) = match sizes {
                Sizes::Equal => (6, 4),
                Sizes::Mixed => {
                    let pages = 1 + random.below(14);
                    (1 + random.below(15 - pages), pages)
                }
            };
            let start = BASE + place * PLACE + from * PAGE;
            (start, start + pages * PAGE)
        });
        let ranges: Vec<(u64, u64)> = ranges.collect();
        let mut ordered = || random.shuffled(entries).into_iter().map(|i| ranges[i as usize]).collect::<Vec<_>>();
        let [map, touch, protect, unmap, mut again] = [(); 5].map(|()| ordered());
        // The half of the ranges that was unmapped first is mapped again, in another order.
        let half: std::collections::HashSet<u64> = unmap[..entries / 2].iter().map(|r| r.0).collect();
        again.retain(|r| half.contains(&r.0));
        Plan { map, touch, protect, unmap, again }
    }

    /// The number of operations that [`Plan::run`] does.
    pub fn operations(&self) -> usize {
        // The terms: all ranges are mapped, touched, protected and unmapped; half of them is unmapped and mapped once
        // more.
        self.map.len() * 4 + self.again.len() * 2
    }

    /// Maps all ranges.
    ///
    /// # Panics
    /// Panics if the map has wrong contents.
    pub fn fill(&self, map: &mut impl AddressMap) {
        for &(start, end) in &self.map {
            assert_eq!(map.insert(start, end, 3), Ok(()));
        }
    }

    /// Maps all ranges, touches all, protects all, unmaps half and maps that half again, and unmaps all. Each step has
    /// its own random order.
    ///
    /// # Panics
    /// Panics if the map has wrong contents.
    pub fn run(&self, map: &mut impl AddressMap) {
        self.fill(map);
        for &(start, end) in &self.touch {
            assert!(map.lookup(end - PAGE).is_some_and(|h| h.start == start));
        }
        for &(start, end) in &self.protect {
            map.protect(start, end, 1);
        }
        for &(start, end) in &self.unmap[..self.again.len()] {
            map.remove(start, end);
        }
        for &(start, end) in &self.again {
            assert_eq!(map.insert(start, end, 3), Ok(()));
        }
        for &(start, end) in &self.unmap {
            map.remove(start, end);
        }
    }
}
