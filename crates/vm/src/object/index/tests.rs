//! Tests that compare the index with a plain map, and models for the checkers.

use super::*;

use quire_sync::PerCpu;
use quire_sync::epoch::{Domain, Slot as EpochSlot};
use std::ptr::NonNull;

/// Allocates nodes from the process's own heap.
#[derive(Clone, Copy)]
struct Boxes(&'static Domain);

// SAFETY: each box is fresh memory of a node's layout.
unsafe impl Nodes for Boxes {
    fn allocate(self) -> Result<NonNull<IndexNode<Self>>, OutOfMemory> {
        let layout = std::alloc::Layout::new::<IndexNode<Self>>();
        // SAFETY: the layout is not of size zero.
        NonNull::new(unsafe { std::alloc::alloc(layout) }.cast()).ok_or(OutOfMemory)
    }
    unsafe fn release(self, node: NonNull<IndexNode<Self>>) {
        // SAFETY: by the contract of `release`, the node came from `allocate`, which used this allocator and layout.
        unsafe { std::alloc::dealloc(node.as_ptr().cast(), std::alloc::Layout::new::<IndexNode<Self>>()) }
    }
    unsafe fn retire(self, node: *mut Retired, free: unsafe fn(*mut Retired)) {
        // SAFETY: the caller keeps the contract of `Nodes::retire`, which is that of `Domain::retire`.
        unsafe { self.0.retire(node, free) }
    }
}

/// An epoch for `cpus` CPUs. The calling thread is the first of them.
fn domain(cpus: usize) -> &'static Domain {
    #[cfg(not(any(loom, shuttle)))]
    quire_sync::hooks::threads::set_cpu(0);
    let layout = std::alloc::Layout::from_size_align(PerCpu::<EpochSlot>::bytes(cpus), 128).unwrap();
    // SAFETY: this is a fresh allocation of the size and alignment that `PerCpu` requires. It is leaked.
    let slots = unsafe { PerCpu::new(NonNull::new(std::alloc::alloc(layout)).unwrap(), cpus, |_| EpochSlot::new()) };
    Box::leak(Box::new(Domain::new(slots)))
}

#[cfg(not(any(loom, shuttle)))]
mod plain {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    #[derive(Clone, Debug)]
    enum Op {
        Fill(u64, u32),
        Run(u64, usize, u32),
        Clear(u64),
        Replace(u64, u32),
        Range(u64, u64),
        Few(u64, u64),
        Prune(u64, u64),
    }

    fn key() -> impl Strategy<Value = u64> {
        prop_oneof![
            4 => 0u64..200,
            2 => 4000u64..4200,
            1 => (0u32..52).prop_map(|b| (1u64 << b) - 1),
            1 => KEYS - 70..KEYS,
        ]
    }

    fn op() -> impl Strategy<Value = Op> {
        prop_oneof![
            4 => (key(), 1u32..1000).prop_map(|(k, v)| Op::Fill(k, v)),
            2 => (key(), 1usize..100, 1u32..1000).prop_map(|(k, n, v)| Op::Run(k, n, v)),
            3 => key().prop_map(Op::Clear),
            1 => (key(), 1u32..1000).prop_map(|(k, v)| Op::Replace(k, v)),
            2 => (key(), key()).prop_map(|(a, b)| Op::Range(a.min(b), a.max(b) + 1)),
            2 => (key(), any::<u64>()).prop_map(|(first, which)| Op::Few(first, which)),
            1 => (key(), key()).prop_map(|(a, b)| Op::Prune(a.min(b), a.max(b) + 1)),
        ]
    }

    proptest! {
        #[test]
        fn an_index_agrees_with_a_map(ops in proptest::collection::vec(op(), 1..200)) {
            let nodes = Boxes(domain(1));
            let index = Index::<Boxes>::new();
            let mut model: BTreeMap<u64, Slot> = BTreeMap::new();
            for op in ops {
                let pin = nodes.0.pin();
                match op {
                    Op::Fill(k, v) => {
                        let v = match v {
                            v if v % 7 == 0 => Slot::ZeroMarker,
                            v if v % 5 == 0 => Slot::Swap(v as u64),
                            v => Slot::Page(Pfn(v as u64)),
                        };
                        let got = index.fill(k, v, nodes, &pin);
                        match model.get(&k) {
                            Some(there) => prop_assert_eq!(got, Err(FillError::Taken(*there))),
                            None => { prop_assert_eq!(got, Ok(())); model.insert(k, v); }
                        }
                    }
                    Op::Run(first, n, v) => {
                        let n = n.min((KEYS - first) as usize);
                        let frames: Vec<Pfn> = (u64::from(v)..).map(Pfn).take(n).collect();
                        let taken = model.range(first..first + n as u64).next();
                        let room = taken.map_or(n, |(k, _)| (*k - first) as usize);
                        prop_assert_eq!(index.fill_run(first, &frames, nodes, &pin), room);
                        model.extend((first..).zip(frames.into_iter().map(Slot::Page)).take(room));
                    }
                    Op::Clear(k) => match model.remove(&k) {
                        Some(v) => {
                            prop_assert!(!index.clear(k, Slot::Page(Pfn(1 << 40)), &pin));
                            prop_assert!(index.clear(k, v, &pin));
                        }
                        None => prop_assert!(!index.clear(k, Slot::ZeroMarker, &pin)),
                    },
                    Op::Replace(k, v) => if let Some(there) = model.get_mut(&k) {
                        let v = Slot::Page(Pfn(v as u64));
                        prop_assert!(index.replace(k, *there, v, &pin));
                        *there = v;
                    },
                    Op::Range(a, b) => {
                        let mut cursor = Cursor::over(a..b);
                        let got: Vec<_> = cursor.resume(&index, &pin).collect();
                        let want: Vec<_> = model.range(a..b).map(|(k, v)| (*k, *v)).collect();
                        prop_assert_eq!(index.count(a..b, &pin), want.len() as u64);
                        prop_assert_eq!(got, want);
                        prop_assert!(cursor.is_done());
                    }
                    Op::Few(first, which) => {
                        let mut got = Vec::new();
                        index.each_of(first, which, &pin, |n, slot| got.push((first + u64::from(n), slot)));
                        let few = model.range(first..first + 64).filter(|(k, _)| which >> (**k - first) & 1 != 0);
                        prop_assert_eq!(got, few.map(|(k, v)| (*k, *v)).collect::<Vec<_>>());
                    }
                    Op::Prune(a, b) => index.prune(a..b, &pin),
                }
                for (k, v) in &model {
                    prop_assert_eq!(index.get(*k, &pin), *v);
                }
                prop_assert_eq!(index.is_empty(&pin), model.is_empty());
            }
            let pin = nodes.0.pin();
            index.dismantle(&pin);
            prop_assert_eq!(index.fill(3, Slot::ZeroMarker, nodes, &pin), Err(FillError::Gone));
        }
    }

    /// The slot of key 0 is in the root word. Another CPU may own that word.
    #[test]
    fn a_filler_of_a_taken_root_waits_for_its_owner() {
        use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
        static WAITS: AtomicBool = AtomicBool::new(false);
        let nodes = Boxes(domain(2));
        let index = Index::<Boxes>::new();
        let pin = nodes.0.pin();
        let taken = index.take_empty(0, nodes, &pin).unwrap();
        std::thread::scope(|s| {
            let filler = s.spawn(|| {
                quire_sync::hooks::threads::set_cpu(1);
                quire_sync::hooks::threads::set_relax(Some(std::rc::Rc::new(|| WAITS.store(true, SeqCst))));
                index.fill(0, Slot::ZeroMarker, nodes, &nodes.0.pin())
            });
            while !WAITS.load(SeqCst) {
                std::thread::yield_now();
            }
            drop(taken);
            assert_eq!(filler.join().unwrap(), Ok(()));
        });
        assert_eq!(index.get(0, &pin), Slot::ZeroMarker);
    }

    #[test]
    fn a_dismantled_index_stays_empty_for_all_holders_of_its_root() {
        let nodes = Boxes(domain(1));
        let index = Index::<Boxes>::new();
        let pin = nodes.0.pin();
        let taken = index.take_empty(0, nodes, &pin).unwrap();
        index.dismantle(&pin);
        drop(taken);
        assert_eq!(index.fill(1, Slot::ZeroMarker, nodes, &pin), Err(FillError::Gone));
    }

    #[test]
    fn a_cursor_resumes_by_key_after_it_was_suspended() {
        let nodes = Boxes(domain(1));
        let index = Index::<Boxes>::new();
        let pin = nodes.0.pin();
        for k in [0, 1, 63, 64, 5000, 1 << 30] {
            index.fill(k, Slot::Page(Pfn(k)), nodes, &pin).unwrap();
        }
        let mut cursor = Cursor::over(0..KEYS);
        let mut seen = vec![];
        while let Some((k, _)) = cursor.resume(&index, &pin).next() {
            seen.push(k);
            assert_eq!(cursor.key(), k + 1);
        }
        assert_eq!(seen, [0, 1, 63, 64, 5000, 1 << 30]);
    }

    #[test]
    fn an_object_of_one_page_needs_no_node() {
        let nodes = Boxes(domain(1));
        let index = Index::<Boxes>::new();
        let pin = nodes.0.pin();
        index.fill(0, Slot::Page(Pfn(7)), nodes, &pin).unwrap();
        assert_eq!(index.root.load(Ordering::Relaxed) & NODE, 0);
        index.fill(1, Slot::Page(Pfn(8)), nodes, &pin).unwrap();
        assert_eq!(index.get(0, &pin), Slot::Page(Pfn(7)));
        assert!(index.clear(0, Slot::Page(Pfn(7)), &pin) && index.clear(1, Slot::Page(Pfn(8)), &pin));
        index.prune(0..KEYS, &pin);
        assert_eq!(index.root.load(Ordering::Relaxed), EMPTY);
    }

    #[test]
    fn a_key_beyond_the_largest_file_is_an_error() {
        let nodes = Boxes(domain(1));
        let index = Index::<Boxes>::new();
        let pin = nodes.0.pin();
        assert_eq!(index.fill(KEYS, Slot::ZeroMarker, nodes, &pin), Err(FillError::BeyondKeys));
        assert_eq!(index.get(u64::MAX, &pin), Slot::Empty);
        assert_eq!(index.first(KEYS, u64::MAX, &pin), None);
    }

    #[test]
    fn threads_that_fill_clear_and_prune_lose_nothing() {
        let nodes = Boxes(domain(4));
        let index: &'static Index<Boxes> = Box::leak(Box::new(Index::new()));
        std::thread::scope(|s| {
            for t in 0..4u64 {
                s.spawn(move || {
                    quire_sync::hooks::threads::set_cpu(t as usize);
                    let mut x = t + 1;
                    for _ in 0..30_000 {
                        x ^= x << 13;
                        x ^= x >> 7;
                        x ^= x << 17;
                        // Each thread uses its own keys, which lie among those of the others.
                        let k = (x % 300) * 4 + t;
                        let v = Slot::Page(Pfn(k + 1));
                        let pin = nodes.0.pin();
                        match index.fill(k, v, nodes, &pin) {
                            Ok(()) => assert_eq!(index.get(k, &pin), v),
                            Err(FillError::Taken(there)) => {
                                assert_eq!(there, v);
                                assert_eq!(index.first(k, k + 1, &pin), Some((k, v)), "a set bit was lost");
                                assert!(index.clear(k, v, &pin));
                                if x % 16 == 0 {
                                    index.prune(k..k + 1, &pin);
                                }
                            }
                            Err(e) => panic!("{e:?}"),
                        }
                    }
                });
            }
        });
    }
}

#[cfg(any(loom, shuttle))]
mod models {
    use super::*;
    use quire_sync::explore::{Arc, thread};
    use quire_sync::hooks::threads::set_cpu;
    use quire_sync::protocol;

    const NODES: fn() -> Boxes = || Boxes(domain(2));

    /// Runs `f` pinned, as CPU `cpu`. (Assertions are outside of `f`, because a failing assertion must not unwind
    /// through a pin.)
    fn pinned<R>(nodes: Boxes, cpu: usize, f: impl FnOnce(&Pinned<'_>) -> R) -> R {
        set_cpu(cpu);
        let pin = nodes.0.pin();
        f(&pin)
    }

    /// One thread empties a slot while another fills it again. At the end the bitmap agrees with the slot.
    fn clear_against_fill() {
        let nodes = NODES();
        let index = Arc::new(Index::<Boxes>::new());
        let (old, new) = (Slot::Page(Pfn(1)), Slot::Page(Pfn(2)));
        pinned(nodes, 0, |pin| index.fill(1, old, nodes, pin)).unwrap();
        let other = index.clone();
        let t = thread::spawn(move || pinned(nodes, 1, |pin| other.fill(1, new, nodes, pin).is_ok()));
        pinned(nodes, 0, |pin| index.clear(1, old, pin));
        t.join().unwrap();
        agree(nodes, &index, 1);
    }

    /// One thread fills a slot, and another empties it as soon as it sees the page there.
    fn fill_against_clear() {
        let nodes = NODES();
        let index = Arc::new(Index::<Boxes>::new());
        let value = Slot::Page(Pfn(1));
        pinned(nodes, 0, |pin| {
            // Two keys make a node, so that there is a bitmap.
            index.fill(0, value, nodes, pin).unwrap();
            index.fill(1, value, nodes, pin).unwrap();
            index.clear(1, value, pin);
        });
        let other = index.clone();
        let t = thread::spawn(move || pinned(nodes, 1, |pin| other.fill(1, value, nodes, pin).is_ok()));
        pinned(nodes, 0, |pin| index.clear(1, value, pin));
        t.join().unwrap();
        agree(nodes, &index, 1);
    }

    fn agree(nodes: Boxes, index: &Index<Boxes>, key: u64) {
        let (slot, first) = pinned(nodes, 0, |pin| {
            let n = index.count(key..key + 1, pin);
            (index.get(key, pin), n)
        });
        assert_eq!(first, (slot != Slot::Empty) as u64, "the bitmap differs from the slots");
    }

    protocol! {
        the_bitmap_agrees_with_a_slot_that_is_emptied = clear_against_fill, Some(3);
        BitAfterEmpty: "the bitmap differs from the slots";
    }
    protocol! {
        the_bitmap_agrees_with_a_slot_that_is_filled = fill_against_clear, Some(3);
        BitAfterPublish: "the bitmap differs from the slots";
    }

    /// Two threads fill the same slot.
    fn fill_against_fill() {
        let nodes = NODES();
        let index = Arc::new(Index::<Boxes>::new());
        let other = index.clone();
        let fill = move |index: &Index<Boxes>, cpu, pfn| {
            pinned(nodes, cpu, |pin| index.fill(1, Slot::Page(Pfn(pfn)), nodes, pin).is_ok())
        };
        let t = thread::spawn(move || fill(&other, 1, 1));
        let mine = fill(&index, 0, 2);
        let theirs = t.join().unwrap();
        assert!(mine != theirs, "not exactly one of two succeeds");
        let there = pinned(nodes, 0, |pin| index.get(1, pin));
        assert_eq!(there, Slot::Page(Pfn(if mine { 2 } else { 1 })));
    }

    protocol! {
        two_fillers_of_one_slot_agree_on_the_winner = fill_against_fill, Some(2);
        FillNotAtomic: "not exactly one of two succeeds";
    }

    /// Two threads fill slots. One of the fills makes the tree higher.
    fn fill_against_growth() {
        let nodes = NODES();
        let index = Arc::new(Index::<Boxes>::new());
        let other = index.clone();
        let fill = move |index: &Index<Boxes>, cpu, key| {
            pinned(nodes, cpu, |pin| index.fill(key, Slot::Page(Pfn(key)), nodes, pin).is_ok())
        };
        // Key 0 is in the root word until the other key makes the root a node.
        let t = thread::spawn(move || fill(&other, 1, 0));
        let mine = fill(&index, 0, 3);
        let theirs = t.join().unwrap();
        assert!(mine && theirs);
        let there = pinned(nodes, 0, |pin| (index.get(0, pin), index.get(3, pin), index.count(0..4, pin)));
        assert_eq!(there, (Slot::Page(Pfn(0)), Slot::Page(Pfn(3)), 2), "a page is lost while the tree grows");
    }

    protocol! {
        a_tree_that_grows_loses_nothing = fill_against_growth, Some(2);
        GrowNotAtomic: "a page is lost while the tree grows";
    }

    /// An empty node is removed while one of its slots is filled.
    fn fill_against_prune() {
        let nodes = NODES();
        let index = Arc::new(Index::<Boxes>::new());
        pinned(nodes, 0, |pin| {
            index.fill(2, Slot::ZeroMarker, nodes, pin).unwrap();
            index.clear(2, Slot::ZeroMarker, pin);
        });
        let other = index.clone();
        let t = thread::spawn(move || pinned(nodes, 1, |pin| other.fill(3, Slot::Page(Pfn(1)), nodes, pin).is_ok()));
        pinned(nodes, 0, |pin| index.prune(0..4, pin));
        assert!(t.join().unwrap());
        let there = pinned(nodes, 0, |pin| (index.get(3, pin), index.count(0..4, pin)));
        assert_eq!(there, (Slot::Page(Pfn(1)), 1), "a page goes with its node");
    }

    protocol! {
        a_node_is_not_taken_out_under_a_page = fill_against_prune, Some(2);
        PruneUnclosed: "a page goes with its node";
        BitAfterUnlink: "a page goes with its node";
    }

    /// A walk, and a second walk that continues at its key, while a node before the wanted key is removed and made
    /// again.
    fn walk_against_prune() {
        let nodes = NODES();
        let index = Arc::new(Index::<Boxes>::new());
        let value = Slot::Page(Pfn(1));
        pinned(nodes, 0, |pin| {
            [0, 3].iter().for_each(|k| index.fill(*k, value, nodes, pin).unwrap());
            assert!(index.clear(0, value, pin));
        });
        let other = index.clone();
        let t = thread::spawn(move || {
            pinned(nodes, 1, |pin| {
                other.prune(0..2, pin);
                other.fill(1, value, nodes, pin).unwrap();
            })
        });
        let first = pinned(nodes, 0, |pin| index.first(0, 4, pin)).expect("a page that stays is missed");
        let next = pinned(nodes, 0, |pin| index.first(first.0 + 1, 4, pin));
        match first.0 {
            1 => assert_eq!(next, Some((3, value)), "a page that stays is missed"),
            k => assert_eq!((k, next), (3, None)),
        }
        t.join().unwrap();
        let all = pinned(nodes, 0, |pin| (index.first(0, 4, pin), index.first(2, 4, pin), index.count(0..4, pin)));
        assert_eq!(all, (Some((1, value)), Some((3, value)), 2));
    }

    protocol! {
        a_walk_meets_lasting_entries_while_nodes_come_and_go = walk_against_prune, Some(2);
        GoneIsEnd: "a page that stays is missed";
    }
}
