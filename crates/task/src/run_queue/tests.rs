//! A run queue beside two lists of numbers, step by step.
#![allow(clippy::undocumented_unsafe_blocks)] // all memory is the test's own

use super::*;
use crate::irq::Irq;
use crate::thread::ThreadRef;
use proptest::prelude::*;
use quire_sync::cpuset::{CpuMask, MAX_CPUS};
use std::collections::VecDeque;

const THREADS: usize = 10;
/// In two words of a mask.
const CPUS: [CpuId; 3] = [0, 1, 70];

/// A machine on which nothing runs.
struct Still;
unsafe impl Machine for Still {
    type Context = ();
    type Payload = usize;
    fn now(&self) -> u64 {
        0
    }
    fn arm(&self, _deadline: Option<u64>) {}
    fn kick(&self, _cpu: CpuId) {}
    fn halt(&self) {}
    fn mask(&self) -> Irq {
        Irq::Off
    }
    fn restore(&self, _was: Irq) {}
    fn current(&self) -> *const Thread<Self> {
        core::ptr::null()
    }
    unsafe fn set_current(&self, _thread: *const Thread<Self>) {}
    fn set_pending(&self, _pending: bool) {}
    unsafe fn switch(&self, _prev: &Thread<Self>, _next: &Thread<Self>) {}
    fn reap(&self, _thread: ThreadRef<Self>) {}
}

#[derive(Clone, Debug)]
enum Step {
    /// One of those that do not wait joins; nothing where all do.
    Join(usize, Join),
    /// So many nanoseconds pass, and the next one is taken.
    Pop(u64),
    Steal(CpuId),
    SetNice(usize, i8),
    Restrict(usize, CpuMask),
    /// It has its CPU again, or has left it.
    OnCpu(usize, bool),
    /// It has run for so long.
    Ran(usize, u64),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let thread = || 0..THREADS;
    let cpu = || prop::sample::select(&CPUS);
    let mask = prop_oneof![
        Just(CpuMask::first(MAX_CPUS)),
        cpu().prop_map(CpuMask::only),
        (cpu(), cpu()).prop_map(|(a, b)| {
            let mut mask = CpuMask::only(a);
            mask.insert(b);
            mask
        }),
    ];
    let join = prop::sample::select(vec![Join::First, Join::Front, Join::Back]);
    let step = prop_oneof![
        5 => (thread(), join).prop_map(|(t, j)| Step::Join(t, j)),
        3 => (0..PATIENCE).prop_map(Step::Pop),
        2 => cpu().prop_map(Step::Steal),
        1 => (thread(), -20..20i8).prop_map(|(t, n)| Step::SetNice(t, n)),
        2 => (thread(), mask).prop_map(|(t, m)| Step::Restrict(t, m)),
        1 => (thread(), any::<bool>()).prop_map(|(t, on)| Step::OnCpu(t, on)),
        1 => (thread(), 0..10_000_000u64).prop_map(|(t, ns)| Step::Ran(t, ns)),
    ];
    prop::collection::vec(step, 1..120)
}

#[derive(Clone)]
struct Known {
    nice: i8,
    allowed: CpuMask,
    on_cpu: bool,
    slice: u64,
    /// It might go elsewhere when it joined.
    moves: bool,
}

struct Model {
    threads: Vec<Known>,
    front: VecDeque<usize>,
    back: VecDeque<usize>,
    served: u64,
}

impl Model {
    fn join(&mut self, thread: usize, join: Join, now: u64) {
        let known = &mut self.threads[thread];
        known.moves = known.allowed.len() > 1;
        match join {
            Join::First => self.front.push_front(thread),
            Join::Front => self.front.push_back(thread),
            Join::Back => {
                if self.back.is_empty() {
                    self.served = now;
                }
                self.back.push_back(thread);
            }
        }
    }

    fn pop(&mut self, now: u64) -> Option<usize> {
        let starved = !self.back.is_empty() && now > self.served + PATIENCE;
        if !starved && let Some(thread) = self.front.pop_front() {
            return Some(thread);
        }
        let thread = self.back.pop_front()?;
        self.served = now;
        self.threads[thread].slice = turn(self.threads[thread].nice);
        Some(thread)
    }

    fn movable(&self) -> usize {
        self.front.iter().chain(&self.back).filter(|t| self.threads[**t].moves).count()
    }

    /// Who waits longest of those on a list that may run there, the back list first.
    fn bound_for(&self, cpu: CpuId) -> [Option<usize>; 2] {
        let longest = |list: &VecDeque<usize>| list.iter().copied().find(|t| self.threads[*t].allowed.contains(cpu));
        if self.movable() == 0 { [None; 2] } else { [longest(&self.back), longest(&self.front)] }
    }

    fn steal(&mut self, cpu: CpuId) -> Option<usize> {
        let stolen = self.bound_for(cpu).into_iter().flatten().find(|t| !self.threads[*t].on_cpu)?;
        self.front.retain(|t| *t != stolen);
        self.back.retain(|t| *t != stolen);
        Some(stolen)
    }
}

/// As on Linux, a factor of 1.25 a step.
fn turn(nice: i8) -> u64 {
    (4e6 * 1.25f64.powi(-i32::from(nice))).clamp(250e3, 40e6) as u64
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn who_joins_is_taken_and_is_stolen_is_as_two_lists_of_numbers_say(steps in steps()) {
        unsafe fn never(_: NonNull<Thread<Still>>) {}
        let threads: Vec<Thread<Still>> = (0..THREADS).map(|n| Thread::new((), n, never)).collect();
        let known = Known { nice: 0, allowed: CpuMask::first(MAX_CPUS), on_cpu: false, slice: turn(0), moves: false };
        let (front, back) = (VecDeque::new(), VecDeque::new());
        let mut model = Model { threads: vec![known; THREADS], front, back, served: 0 };
        let mut queue = RunQueue::new();
        let mut now = 0;
        let number = |thread: Option<NonNull<Thread<Still>>>| thread.map(|t| *unsafe { t.as_ref() }.payload());
        // What is left is taken too.
        let all = steps.into_iter().chain((0..=THREADS).map(|_| Step::Pop(1)));
        for step in all {
            match step {
                Step::Join(from, join) => {
                    let waits = |t: &usize| model.front.contains(t) || model.back.contains(t);
                    let free = (from..THREADS).chain(0..from).find(|t| !waits(t));
                    if let Some(thread) = free {
                        model.join(thread, join, now);
                        queue.push(&threads[thread], join, || now);
                    }
                }
                Step::Pop(passed) => {
                    now += passed;
                    let taken = number(queue.pop(now));
                    prop_assert_eq!(taken, model.pop(now));
                    if let Some(thread) = taken {
                        let (slice, expected) = (threads[thread].slice(), model.threads[thread].slice);
                        prop_assert!(slice.abs_diff(expected) <= expected / 1000, "{} is not {}", slice, expected);
                        model.threads[thread].slice = slice;
                    }
                }
                Step::Steal(cpu) => prop_assert_eq!(number(queue.steal(cpu)), model.steal(cpu)),
                Step::SetNice(thread, nice) => {
                    threads[thread].set_nice(nice);
                    model.threads[thread].nice = nice;
                }
                Step::Restrict(thread, allowed) => {
                    threads[thread].restrict(&allowed);
                    model.threads[thread].allowed = allowed;
                }
                Step::OnCpu(thread, on) => {
                    threads[thread].on_cpu.store(on, Relaxed);
                    model.threads[thread].on_cpu = on;
                }
                Step::Ran(thread, ns) => {
                    let left = threads[thread].use_slice(ns);
                    model.threads[thread].slice = model.threads[thread].slice.saturating_sub(ns);
                    prop_assert_eq!(left, model.threads[thread].slice);
                }
            }
            let len = model.front.len() + model.back.len();
            prop_assert_eq!((queue.len(), queue.eager(), queue.movable()), (len, model.front.len(), model.movable()));
            for cpu in CPUS {
                prop_assert_eq!(queue.has_for(cpu), model.bound_for(cpu).iter().flatten().next().is_some());
            }
        }
        prop_assert!(queue.len() == 0);
    }
}
