use super::*;
use proptest::prelude::*;
use std::collections::BTreeSet;

#[test]
fn the_longest_run_of_free_slots_in_a_word_is_found() {
    assert_eq!(run(u64::MAX, 16), None);
    assert_eq!(run(0, 16), Some((0, 16)));
    assert_eq!(run(!0b0110_0111_0000, 16), Some((4, 3)));
    assert_eq!(run(!(1 << 63), 16), Some((63, 1)));
    assert_eq!(run(u64::MAX >> 16, 16), Some((48, 16)));
    assert_eq!(run(0, 64), Some((0, 64)));
    assert_eq!(run(!0xf0f0, 4), Some((4, 4)));
}

/// The slots of a store with `total` slots, without the store.
fn swap(total: u64) -> Swap {
    let swap = Swap::new();
    let words: &'static mut [u64] = vec![0; total.div_ceil(64) as usize].leak();
    if let Some(last) = words.last_mut()
        && !total.is_multiple_of(64)
    {
        *last = u64::MAX << (total % 64);
    }
    swap.bitmap.lock().words = words;
    swap.total.store(total, Ordering::Relaxed);
    swap.free.store(total, Ordering::Relaxed);
    swap
}

/// The length of the longest run of free slots in a word, at most `n`.
fn longest(used: &BTreeSet<u64>, total: u64, n: u64) -> u64 {
    let mut longest = 0;
    let mut here = 0;
    for slot in 0..total {
        if slot.is_multiple_of(64) {
            here = 0;
        }
        here = if used.contains(&slot) { 0 } else { here + 1 };
        longest = longest.max(here);
    }
    longest.min(n)
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Allocate(usize),
    /// Releases the given number of neighbouring slots, from the first used slot at or after the first number.
    Release(u64, u64),
    /// Releases every n-th used slot from the first number on, one by one, as a walk over an object does.
    Return(u64, usize),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (0..2 * CLUSTER).prop_map(Step::Allocate),
        2 => (any::<u64>(), 1..100u64).prop_map(|(from, n)| Step::Release(from, n)),
        1 => (any::<u64>(), 1..5usize).prop_map(|(from, every)| Step::Return(from, every)),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn each_slot_is_handed_out_once_from_the_longest_free_run(
        total in 1..400u64,
        steps in prop::collection::vec(step(), 1..120),
    ) {
        let swap = swap(total);
        let mut used = BTreeSet::new();
        for step in steps {
            match step {
                Step::Allocate(n) => {
                    let wanted = longest(&used, total, n.clamp(1, CLUSTER) as u64);
                    let got = swap.allocate(n);
                    prop_assert_eq!(got.map_or(0, |s| s.len), wanted);
                    for slot in got.map_or(0..0, |s| s.first..s.first + s.len) {
                        prop_assert!(slot < total && used.insert(slot), "slot {} was in use", slot);
                    }
                }
                Step::Release(from, n) => {
                    let Some(first) = used.range(from % total..).next().copied() else { continue };
                    let len = (first..first + n).take_while(|s| used.remove(s)).count() as u64;
                    swap.release(SwapSlots { first, len });
                }
                Step::Return(from, every) => {
                    let back: Vec<u64> = used.range(from % total..).step_by(every).copied().collect();
                    let mut returned = Returned::new(&swap);
                    for slot in back {
                        used.remove(&slot);
                        returned.add(slot);
                    }
                }
            }
            prop_assert_eq!(swap.free(), total - used.len() as u64);
            prop_assert!(swap.check().is_ok());
        }
        for slot in 0..total + 64 {
            prop_assert_eq!(swap.in_use(slot), used.contains(&slot));
        }
    }
}
