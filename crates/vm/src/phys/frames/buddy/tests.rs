use super::*;
use crate::phys::descriptors::Run;
use crate::phys::page::Page;
use core::ptr::NonNull;
use proptest::prelude::*;
use quire_sync::atomic::AtomicU64;

const FRAMES: u64 = 4096 + 700;

/// The descriptors of `n` frames. The whole sections of `runs` are fresh.
fn descriptors(n: u64, runs: &[Run]) -> Descriptors {
    let pages: &'static mut [Page] = (0..n).map(|_| Page::new()).collect::<Vec<_>>().leak();
    let open = (0..Descriptors::words(&(0..n))).map(|_| AtomicU64::new(0)).collect::<Vec<_>>().leak();
    let runs = runs.to_vec().leak();
    // SAFETY: the arrays are leaked, the bits are zero, and the callers' runs are sorted. No other code opens sections.
    let pages = unsafe { Descriptors::new(NonNull::from(&mut pages[0]), 0..n, open, runs) };
    for section in 0..n.div_ceil(SECTION) {
        if !runs.iter().any(|r| r.sections().contains(&section)) {
            // SAFETY: the section is closed, and no other thread has the descriptors.
            unsafe { pages.open(section, Page::new) };
        }
    }
    pages
}

/// Frames 3 to the last are free. They are on lists, or, if `fresh`, in sections that are opened at first use.
fn buddy(fresh: bool) -> Buddy {
    if !fresh {
        let mut b = Buddy::new(descriptors(FRAMES, &[]), 0);
        b.put_range(3, FRAMES, Group::User);
        return b;
    }
    let run = Run { start: 3, end: FRAMES, domain: 0 };
    let mut b = Buddy::new(descriptors(FRAMES, &[run]), 0);
    b.put_range(3, run.sections().start * SECTION, Group::User);
    b.put_range(run.sections().end * SECTION, FRAMES, Group::User);
    b
}

/// The free frames as a bitmap, which is the simple model.
struct Bitmap(Vec<bool>);

impl Bitmap {
    fn all(&self, start: u64, end: u64, free: bool) -> bool {
        (start..end).all(|i| self.0[i as usize] == free)
    }
    fn set(&mut self, start: u64, end: u64, free: bool) {
        self.0[start as usize..end as usize].fill(free);
    }
    /// Whether 2^`order` aligned frames are free at any place.
    fn has(&self, order: u8) -> bool {
        let n = 1u64 << order;
        (0..FRAMES / n).any(|i| self.all(i * n, (i + 1) * n, true))
    }
    fn large(&self) -> u64 {
        let n = 1u64 << LARGE;
        (0..FRAMES / n).filter(|i| self.all(i * n, (i + 1) * n, true)).count() as u64
    }
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Take(u8, bool),
    Piece(u8, bool),
    Exactly(u64, u64),
    Free(u64, u64),
    Put(usize),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => (0..=MAX_ORDER, any::<bool>()).prop_map(|(o, k)| Step::Take(o, k)),
        3 => (0..=8u8, any::<bool>()).prop_map(|(o, k)| Step::Piece(o, k)),
        1 => (3..FRAMES, 1..600u64).prop_map(|(s, n)| Step::Exactly(s, n)),
        1 => (3..FRAMES, 1..600u64).prop_map(|(s, n)| Step::Free(s, n)),
        7 => any::<usize>().prop_map(Step::Put),
    ]
}

fn group(kernel: bool) -> Group {
    if kernel { Group::Kernel } else { Group::User }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn blocks_are_free_and_aligned_as_in_a_reference_bitmap(
        steps in prop::collection::vec(step(), 1..200),
        fresh in any::<bool>(),
    ) {
        let mut b = buddy(fresh);
        let mut map = Bitmap(vec![true; FRAMES as usize]);
        map.set(0, 3, false);
        let mut taken: Vec<(u64, u64, Group)> = Vec::new();
        for step in steps {
            match step {
                Step::Take(order, kernel) => {
                    let got = b.take(order, group(kernel));
                    prop_assert_eq!(got.is_some(), map.has(order));
                    if let Some(pfn) = got {
                        let end = pfn.0 + (1 << order);
                        prop_assert!(pfn.0.is_multiple_of(1 << order) && map.all(pfn.0, end, true));
                        map.set(pfn.0, end, false);
                        taken.push((pfn.0, end, group(kernel)));
                    }
                }
                Step::Piece(most, kernel) => {
                    let got = b.take_piece(most, group(kernel));
                    prop_assert_eq!(got.is_some(), map.has(0));
                    if let Some((pfn, order)) = got {
                        let end = pfn.0 + (1 << order);
                        prop_assert!(order <= most && map.all(pfn.0, end, true));
                        map.set(pfn.0, end, false);
                        taken.push((pfn.0, end, group(kernel)));
                    }
                }
                Step::Exactly(start, n) => {
                    let end = (start + n).min(FRAMES);
                    let free = map.all(start, end, true);
                    prop_assert_eq!(b.take_exactly(start, end), free);
                    if free {
                        map.set(start, end, false);
                        taken.push((start, end, Group::User));
                    }
                }
                Step::Free(start, n) => {
                    let end = (start + n).min(FRAMES);
                    let there: Vec<u64> = (start..end).filter(|i| map.0[*i as usize]).collect();
                    prop_assert_eq!(b.take_free(start, end, &mut |_| {}), there.len() as u64);
                    for i in there {
                        map.set(i, i + 1, false);
                        taken.push((i, i + 1, Group::Kernel));
                    }
                }
                Step::Put(n) => {
                    if !taken.is_empty() {
                        let (start, end, g) = taken.swap_remove(n % taken.len());
                        b.put_range(start, end, g);
                        map.set(start, end, true);
                    }
                }
            }
            prop_assert_eq!(b.free() + b.fresh(), map.0.iter().filter(|f| **f).count() as u64);
            prop_assert_eq!(b.large(), map.large());
        }
        taken.into_iter().for_each(|(s, e, g)| b.put_range(s, e, g));
        prop_assert_eq!(b.free() + b.fresh(), FRAMES - 3);
        prop_assert_eq!(b.large(), FRAMES / 512 - 1, "everything is joined again");
    }
}

#[test]
fn a_broken_large_frame_is_used_up_before_the_next_is_broken() {
    let mut b = buddy(false);
    let whole = b.large();
    let mut taken: Vec<Pfn> = (0..400).map(|_| b.take(0, Group::User).unwrap()).collect();
    assert_eq!(b.large(), whole, "the ends of memory are no large frames, and go first");
    taken.extend((0..600).map(|_| b.take(0, Group::User).unwrap()));
    // There are 509 frames before the first large one, and 188 after the last.
    assert_eq!(b.large(), whole - 1);
    // Every third frame is freed and allocated again. This breaks no further large frame.
    for _ in 0..10 {
        for i in (0..taken.len()).step_by(3) {
            b.put(taken[i], 0, Group::User);
        }
        for i in (0..taken.len()).step_by(3) {
            taken[i] = b.take(0, Group::User).unwrap();
        }
        assert_eq!(b.large(), whole - 1);
    }
}

#[test]
fn kernel_and_programs_share_no_large_frame_while_one_is_whole() {
    let mut b = buddy(false);
    let (mut user, mut kernel) = (Vec::new(), Vec::new());
    for i in 0..3000 {
        match i % 8 {
            0 => kernel.push(b.take(0, Group::Kernel).unwrap()),
            _ => user.push(b.take(0, Group::User).unwrap()),
        }
    }
    let large = |p: &Pfn| p.0 >> LARGE;
    let shared = kernel.iter().filter(|k| user.iter().any(|u| large(u) == large(k))).count();
    assert_eq!(shared, 0);
    user.into_iter().for_each(|p| b.put(p, 0, Group::User));
    assert!(b.large() >= 8 - 1, "the programs' frames are joined again: {}", b.large());
}
