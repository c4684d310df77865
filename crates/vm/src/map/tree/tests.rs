//! Tests of the tree against a model. A small fan-out makes nodes split and merge often.

use super::*;
use crate::error::OutOfMemory;
use proptest::prelude::*;
use quire_sync::epoch::Retired;
use std::alloc::Layout;
use std::cell::Cell;
use std::collections::BTreeMap;

std::thread_local! {
    static LIVE: Cell<i64> = const { Cell::new(0) };
    static FAIL_IN: Cell<u64> = const { Cell::new(0) };
}

/// An allocator of nodes from the heap. Retired nodes are freed at once, because single-threaded tests have no readers.
#[derive(Clone, Copy)]
struct Boxes;

// SAFETY: `std::alloc` meets the trait's contract.
unsafe impl NodeAlloc for Boxes {
    fn alloc(self, _size: NodeSize, bytes: usize) -> Result<NonNull<u8>, OutOfMemory> {
        let left = FAIL_IN.get();
        if left > 0 {
            FAIL_IN.set(left - 1);
            if left == 1 {
                return Err(OutOfMemory);
            }
        }
        LIVE.set(LIVE.get() + 1);
        // SAFETY: a node has a header, so the layout is not of size zero.
        NonNull::new(unsafe { std::alloc::alloc(Layout::from_size_align(bytes, NODE_ALIGN).unwrap()) })
            .ok_or(OutOfMemory)
    }
    unsafe fn free(self, node: NonNull<u8>, _size: NodeSize, bytes: usize) {
        LIVE.set(LIVE.get() - 1);
        // SAFETY: by the trait's contract the node came from `alloc`. It is poisoned first, so that a use after free is
        // found.
        unsafe {
            node.as_ptr().write_bytes(0xdd, bytes);
            std::alloc::dealloc(node.as_ptr(), Layout::from_size_align(bytes, NODE_ALIGN).unwrap())
        }
    }
    unsafe fn retire(self, node: *mut Retired, free: unsafe fn(*mut Retired)) {
        // SAFETY: these tests run on one thread, which has no search in progress when it commits.
        unsafe { free(node) }
    }
}

const PAGE: u64 = 4096;

struct Pair<const F: usize> {
    tree: Tree<u64, Boxes, F>,
    owner: Owner,
    model: BTreeMap<u64, (u64, usize)>,
    tag: usize,
}

impl<const F: usize> Pair<F> {
    fn new() -> Self {
        let (tree, owner) = Tree::new(Boxes);
        Pair { tree, owner, model: BTreeMap::new(), tag: 8 }
    }

    /// Replaces all items between `lo` and `hi` by `new`. Items that cross the ends are clipped, as by a map.
    fn replace(&mut self, lo: u64, hi: u64, new: &[(u64, u64)]) -> bool {
        let mut items: Vec<(u64, u64, usize)> = Vec::new();
        let old: Vec<(u64, u64, usize)> =
            self.model.range(..hi).map(|(s, (e, t))| (*s, *e, *t)).filter(|(_, e, _)| *e > lo).collect();
        for &(s, _, t) in old.iter().filter(|o| o.0 < lo) {
            items.push((s, lo, t));
        }
        for &(s, e) in new {
            self.tag += 8;
            items.push((s, e, self.tag));
        }
        for &(_, e, t) in old.iter().filter(|o| o.1 > hi) {
            items.push((hi, e, t + 1));
        }
        let from = old.first().map_or(lo, |o| o.0.min(lo));
        let to = old.last().map_or(hi, |o| o.1.max(hi));
        let it = items.iter().map(|&(start, end, t)| Item { start, end, value: NonNull::new(t as *mut u64).unwrap() });
        match self.tree.prepare(&mut self.owner, from, to, items.len(), it) {
            Err(OutOfMemory) => false,
            Ok(change) => {
                self.tree.commit(&mut self.owner, change);
                for o in old {
                    self.model.remove(&o.0);
                }
                for (s, e, t) in items {
                    self.model.insert(s, (e, t));
                }
                true
            }
        }
    }

    fn agree(&self) {
        self.tree.check(&self.owner).unwrap();
        // SAFETY: the tree is this thread's alone, and it does not change while the cursor is used.
        let got: Vec<_> = unsafe { self.tree.cursor(0) }.map(|i| (i.start, i.end, i.value.as_ptr() as usize)).collect();
        let want: Vec<_> = self.model.iter().map(|(s, (e, t))| (*s, *e, *t)).collect();
        assert_eq!(got, want);
    }

    fn model_fit(&self, len: u64, align: u64, lo: u64, hi: u64) -> Option<u64> {
        let mut at = lo.next_multiple_of(align);
        for (s, (e, _)) in &self.model {
            if *e <= at {
                continue;
            }
            if at + len <= *s {
                break;
            }
            at = e.next_multiple_of(align).max(at);
        }
        (at + len <= hi).then_some(at)
    }
}

impl<const F: usize> Drop for Pair<F> {
    fn drop(&mut self) {
        // SAFETY: the pair owns its tree, and no cursor on it outlives a step of the test.
        unsafe { self.tree.free_all() }
    }
}

fn ops<const F: usize>(ops: Vec<(u8, u64, u64)>) {
    let live = LIVE.get();
    let mut p = Pair::<F>::new();
    for (kind, a, n) in ops {
        let (lo, hi) = (a * PAGE, (a + n) * PAGE);
        match kind {
            0..=3 => {
                p.replace(lo, hi, &[(lo, hi)]);
            }
            4 => {
                p.replace(lo, hi, &[]);
            }
            5 => {
                let many: Vec<_> = (a..a + n).step_by(2).map(|k| (k * PAGE, (k + 1) * PAGE)).collect();
                p.replace(lo, hi, &many);
            }
            6 => {
                p.replace(lo / 4, hi + 200 * PAGE, &[]);
            }
            _ => {
                let len = (n % 7 + 1) * PAGE;
                for (l, h) in [(0, 1 << 40), (lo, 1 << 40), (lo, hi), (lo, hi + 40 * PAGE)] {
                    assert_eq!(
                        p.tree.first_fit(&p.owner, len, PAGE, l, h),
                        p.model_fit(len, PAGE, l, h),
                        "{len:x} {l:x} {h:x}"
                    );
                }
                if let Some(at) = p.tree.first_fit(&p.owner, len, 8 * PAGE, lo, 1 << 40) {
                    assert_eq!(at % (8 * PAGE), 0);
                    // SAFETY: the tree is this thread's alone, so no writer runs during `next`.
                    assert!(unsafe { p.tree.next(at) }.is_none_or(|i| i.start >= at + len));
                }
            }
        }
        p.agree();
        for at in [lo, hi, lo + PAGE, hi.saturating_sub(1), 0] {
            // SAFETY: the tree is this thread's alone, so no writer runs during the three searches.
            unsafe {
                let want = p.model.range(..=at).next_back().filter(|(_, (e, _))| *e > at).map(|(s, _)| *s);
                assert_eq!(p.tree.get(at).map(|i| i.start), want);
                let want = p.model.range(..at).next_back().map(|(s, _)| *s);
                assert_eq!(p.tree.before(at).map(|i| i.start), want);
                let want = p.model.iter().find(|(_, (e, _))| *e > at).map(|(s, _)| *s);
                assert_eq!(p.tree.next(at).map(|i| i.start), want);
            }
        }
    }
    drop(p);
    assert_eq!(LIVE.get(), live, "every node is freed");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 192, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_sequence_of_replacements_agrees_with_an_ordered_map(
        seq in prop::collection::vec((0u8..8, 0u64..400, 1u64..24), 1..160)
    ) {
        ops::<4>(seq.clone());
        ops::<15>(seq);
    }

    #[test]
    fn a_failed_allocation_changes_nothing(
        seq in prop::collection::vec((0u64..400, 1u64..40, 0u64..5), 1..60)
    ) {
        let live = LIVE.get();
        let mut p = Pair::<4>::new();
        for (a, n, fail) in seq {
            let many: Vec<_> = (a..a + n).step_by(2).map(|k| (k * PAGE, (k + 1) * PAGE)).collect();
            let before = p.model.clone();
            FAIL_IN.set(fail);
            let done = p.replace(a * PAGE, (a + n) * PAGE, &many);
            FAIL_IN.set(0);
            if !done {
                prop_assert_eq!(&before, &p.model);
            }
            p.agree();
        }
        drop(p);
        prop_assert_eq!(LIVE.get(), live);
    }
}

#[test]
fn ascending_insertion_leaves_full_leaves() {
    let live = LIVE.get();
    let mut p = Pair::<15>::new();
    for i in 0..1500 {
        p.replace(2 * i * PAGE, (2 * i + 1) * PAGE, &[(2 * i * PAGE, (2 * i + 1) * PAGE)]);
    }
    p.agree();
    assert!(LIVE.get() - live <= 100 + 7 + 1 + 1, "{} nodes for 1,500 items", LIVE.get() - live);
}

#[test]
fn removing_almost_everything_gives_the_nodes_back() {
    let live = LIVE.get();
    let mut p = Pair::<15>::new();
    for i in 0..4000 {
        p.replace(2 * i * PAGE, (2 * i + 1) * PAGE, &[(2 * i * PAGE, (2 * i + 1) * PAGE)]);
    }
    for i in (0..4000).filter(|i| i % 100 != 0) {
        p.replace(2 * i * PAGE, (2 * i + 1) * PAGE, &[]);
    }
    p.agree();
    assert!(LIVE.get() - live <= 40, "{} nodes for 40 items", LIVE.get() - live);
}

#[test]
fn a_hole_aligned_by_chance_is_found_as_the_last_resort() {
    let mut p = Pair::<4>::new();
    // The only hole has exactly four pages, and is aligned to four pages.
    p.replace(0, 8 * PAGE, &[(0, 8 * PAGE)]);
    p.replace(12 * PAGE, 64 * PAGE, &[(12 * PAGE, 64 * PAGE)]);
    assert_eq!(p.tree.first_fit(&p.owner, 4 * PAGE, 4 * PAGE, 0, 64 * PAGE), Some(8 * PAGE));
    assert_eq!(p.tree.first_fit(&p.owner, 4 * PAGE, 16 * PAGE, 0, 64 * PAGE), None);
}

/// A tree of `n` one-page items, with a free page between any two. Some items are removed at random. Returns also the
/// number of levels.
fn fragmented(n: u64) -> (Tree<u64, Boxes, 11>, Owner, u64) {
    let (tree, mut owner) = Tree::new(Boxes);
    let value = NonNull::dangling();
    let all = (0..n).map(|i| Item { start: 2 * i * PAGE, end: (2 * i + 1) * PAGE, value });
    let change = tree.prepare(&mut owner, 0, 2 * n * PAGE, n as usize, all).unwrap();
    tree.commit(&mut owner, change);
    let mut x = 1u64;
    for _ in 0..n / 50 {
        x = x.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        // Few removals are of many pages, and many are of few pages.
        let (at, pages) = ((x >> 20) % (2 * n - 40), 1 << ((x >> 60) % 5).min((x >> 56) % 5));
        let change = tree.prepare(&mut owner, at * PAGE, (at + pages) * PAGE, 0, core::iter::empty()).unwrap();
        tree.commit(&mut owner, change);
    }
    // SAFETY: the tree has items, hence a root, and this thread is its only writer.
    let levels = unsafe { (*tree.root.load(Ordering::Relaxed)).level } as u64 + 1;
    (tree, owner, levels)
}

#[test]
fn a_search_for_room_reads_two_nodes_a_level_at_most() {
    let live = LIVE.get();
    let mut most = Vec::new();
    for n in [1000u64, 10_000, 100_000, 1_000_000] {
        let (mut tree, owner, levels) = fragmented(n);
        let mut worst = 0;
        for k in 0..200 {
            let lo = n / 200 * k * 2 * PAGE;
            for pages in [1, 2, 3, 5, 9, 17, 33, 1 << 30] {
                let (found, visits) = tree.first_fit_visits(&owner, pages * PAGE, PAGE, lo, 2 * n * PAGE);
                // SAFETY: this thread is the tree's only writer, and changes nothing during `next`.
                assert!(found.is_none_or(|at| unsafe { tree.next(at) }.is_none_or(|i| i.start >= at + pages * PAGE)));
                assert!(visits <= 2 * levels, "{visits} nodes of {n} entries on {levels} levels");
                worst = visits.max(worst);
            }
        }
        most.push(worst);
        // SAFETY: the tree is this thread's alone, and has no cursor any more.
        unsafe { tree.free_all() };
    }
    // The search is O(log n). Ten times the entries need about one level more.
    assert!(most.windows(2).all(|w| w[1] <= w[0] + 4), "{most:?}");
    assert_eq!(LIVE.get(), live);
}

#[test]
fn readers_beside_a_writer_see_every_item_that_stays() {
    use quire_sync::epoch::{Domain, Slot};
    use std::sync::atomic::{AtomicBool, Ordering};

    // Items at multiples of eight pages are never removed. Items between them are added and removed. A reader that
    // misses a permanent item has seen a half-finished change.
    #[derive(Clone, Copy)]
    struct Epoch(&'static Domain);
    // SAFETY: `std::alloc` returns memory of the size and alignment that the trait requires, and the epoch waits for
    // pinned readers.
    unsafe impl NodeAlloc for Epoch {
        fn alloc(self, size: NodeSize, bytes: usize) -> Result<NonNull<u8>, OutOfMemory> {
            Boxes.alloc(size, bytes)
        }
        unsafe fn free(self, node: NonNull<u8>, size: NodeSize, bytes: usize) {
            // SAFETY: the node came from `alloc` with this size, hence from `Boxes`: the contract of `NodeAlloc::free`.
            unsafe { Boxes.free(node, size, bytes) }
        }
        unsafe fn retire(self, node: *mut Retired, free: unsafe fn(*mut Retired)) {
            // SAFETY: no new reader can reach the node, by the contract of `NodeAlloc::retire`; readers pin this
            // domain.
            unsafe { self.0.retire(node, free) }
        }
    }
    quire_sync::hooks::threads::set_cpu(0);
    let bytes = quire_sync::PerCpu::<Slot>::bytes(3);
    // SAFETY: the memory is leaked, large enough and aligned.
    let domain: &'static Domain = unsafe {
        let memory = std::alloc::alloc(Layout::from_size_align(bytes, 128).unwrap());
        let slots = quire_sync::PerCpu::new(NonNull::new(memory).unwrap(), 3, |_| Slot::new());
        Box::leak(Box::new(Domain::new(slots)))
    };
    quire_sync::hooks::threads::set_cpu(0);
    let (tree, mut owner) = Tree::<u64, Epoch, 4>::new(Epoch(domain));
    let item = |s: u64, e: u64| Item { start: s * PAGE, end: e * PAGE, value: NonNull::<u64>::dangling() };
    for i in 0..64 {
        let c = tree.prepare(&mut owner, 8 * i * PAGE, (8 * i + 1) * PAGE, 1, [item(8 * i, 8 * i + 1)].into_iter());
        tree.commit(&mut owner, c.unwrap());
    }
    let stop = AtomicBool::new(false);
    std::thread::scope(|s| {
        for cpu in 1..3 {
            let (tree, stop) = (&tree, &stop);
            s.spawn(move || {
                quire_sync::hooks::threads::set_cpu(cpu);
                let mut at = cpu as u64;
                while !stop.load(Ordering::Relaxed) {
                    at = (at * 5 + 7) % 64;
                    let _pin = domain.pin();
                    // SAFETY: the pin is of the domain that the tree's allocator retires into.
                    let hit = unsafe { tree.get(8 * at * PAGE) };
                    assert_eq!(hit.map(|i| i.start), Some(8 * at * PAGE));
                    // SAFETY: the pin is of the domain that the tree's allocator retires into, and lasts until the
                    // count is there.
                    let walked = unsafe { tree.cursor(0) }.filter(|i| i.start % (8 * PAGE) == 0).count();
                    assert!(walked <= 128);
                }
            });
        }
        let mut x = 1u64;
        for _ in 0..if cfg!(debug_assertions) { 20_000 } else { 200_000 } {
            x = x.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            let at = (x >> 33) % 64 * 8 + 1 + (x >> 50) % 7;
            // SAFETY: this thread is the tree's only writer, and changes nothing during `get`.
            let there = unsafe { tree.get(at * PAGE) }.is_some();
            let new = (!there).then(|| item(at, at + 1));
            let c = tree.prepare(&mut owner, at * PAGE, (at + 1) * PAGE, new.iter().len(), new.into_iter());
            tree.commit(&mut owner, c.unwrap());
        }
        stop.store(true, Ordering::Relaxed);
    });
    tree.check(&owner).unwrap();
}
