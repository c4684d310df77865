//! Real-time threads on a run queue. Their order is compared with a model, and the bound is checked in virtual time.
#![allow(clippy::undocumented_unsafe_blocks)] // all memory is the test's own

use super::*;
use crate::scheduler::run_queue::tests::Still;
use crate::scheduler::run_queue::{RunQueue, Sorted};
use crate::scheduler::share::{Join, Share};
use crate::thread::{Class, SLICE};
use proptest::prelude::*;
use quire_sync::cpuset::CpuMask;
use std::collections::VecDeque;

const THREADS: usize = 10;
const BOUND: Bound = Bound { runtime: 90_000, period: 100_000, turn: 5_000 };

fn threads(n: usize) -> Vec<Thread<Still>> {
    unsafe fn never(_: NonNull<Thread<Still>>) {}
    (0..n).map(|n| Thread::new((), n, never)).collect()
}

fn number(thread: Option<NonNull<Thread<Still>>>) -> Option<usize> {
    thread.map(|t| *unsafe { t.as_ref() }.payload())
}

#[derive(Clone, Debug)]
enum Step {
    /// A sleeping thread joins the queue. Nothing happens if no thread sleeps.
    Join(usize, Join),
    /// This number of nanoseconds pass, and then the running thread sleeps.
    Pop(u64),
    /// The thread's class changes, while it waits, runs or sleeps.
    SetClass(usize, Class),
    /// An idle CPU takes a waiting thread.
    Steal,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    // There are few priorities, so that some threads have the same one. The least and the most urgent are among them.
    let priority = || prop::sample::select(vec![1, 2, 50, 98, 99]);
    let class = prop_oneof![
        Just(Class::Normal),
        Just(Class::Background),
        priority().prop_map(Class::Fifo),
        priority().prop_map(Class::RoundRobin),
    ];
    let join = prop::sample::select(vec![Join::Front, Join::Back, Join::Resume]);
    let step = prop_oneof![
        5 => (0..THREADS, join).prop_map(|(t, j)| Step::Join(t, j)),
        4 => (0..BOUND.runtime).prop_map(Step::Pop),
        3 => (0..THREADS, class).prop_map(|(t, c)| Step::SetClass(t, c)),
        1 => Just(Step::Steal),
    ];
    prop::collection::vec(step, 1..150)
}

fn urgency(class: Class) -> u8 {
    match class {
        Class::Fifo(at) | Class::RoundRobin(at) => at,
        _ => 0,
    }
}

struct Model {
    class: Vec<Class>,
    /// The waiting threads of each priority; those of priority 0 are in no particular order.
    lists: Vec<VecDeque<usize>>,
    running: Option<usize>,
    /// The beginning of the window. `used` is the time of real-time threads in it.
    began: u64,
    used: u64,
}

impl Model {
    fn waits(&self, thread: usize) -> Option<usize> {
        self.lists.iter().position(|list| list.contains(&thread))
    }

    fn join(&mut self, thread: usize, join: Join) {
        let list = &mut self.lists[usize::from(urgency(self.class[thread]))];
        if join == Join::Resume { list.push_front(thread) } else { list.push_back(thread) }
    }

    /// The threads that may run next at `now`. The queue may choose any of them.
    fn next(&mut self, now: u64) -> Vec<usize> {
        let first = self.lists.iter().rev().find_map(|list| list.front().copied());
        let urgent = first.filter(|first| urgency(self.class[*first]) > 0);
        if urgent.is_some() && now - self.began >= BOUND.period {
            (self.began, self.used) = (now, 0);
        }
        match urgent {
            Some(urgent) if self.used < BOUND.runtime || self.lists[0].is_empty() => vec![urgent],
            _ => self.lists[0].iter().copied().collect(),
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn real_time_threads_are_taken_by_priority_and_then_in_turn(steps in steps()) {
        let threads = threads(THREADS);
        let share = Share::new();
        let lists = vec![VecDeque::new(); usize::from(MOST_URGENT) + 1];
        let mut model = Model { class: vec![Class::Normal; THREADS], lists, running: None, began: 0, used: 0 };
        let mut queue = RunQueue::new();
        queue.set_bound(BOUND);
        let mut now = 0;
        for step in steps.into_iter().chain((0..=THREADS).map(|_| Step::Pop(1))) {
            match step {
                Step::Join(from, join) => {
                    let asleep = |t: &usize| model.waits(*t).is_none() && model.running != Some(*t);
                    if let Some(thread) = (from..THREADS).chain(0..from).find(asleep) {
                        model.join(thread, join);
                        queue.push(&threads[thread], &share, join, || now);
                    }
                }
                Step::Pop(passed) => {
                    let before = now;
                    now += passed;
                    queue.charge(now, passed, passed);
                    if model.running.is_some_and(|t| urgency(model.class[t]) > 0) {
                        model.used += passed;
                        let past = now - model.began;
                        if past >= BOUND.period {
                            model.began += past / BOUND.period * BOUND.period;
                            model.used = (now - before).min(now - model.began);
                        }
                    }
                    let may = model.next(now);
                    let taken = number(queue.pop(now));
                    prop_assert_eq!(taken.is_some(), !may.is_empty());
                    if let Some(thread) = taken {
                        prop_assert!(may.contains(&thread), "{thread} of {may:?}");
                        let at = model.waits(thread).expect("it waits");
                        model.lists[at].retain(|t| *t != thread);
                        prop_assert!(threads[thread].has_slice());
                    }
                    model.running = taken;
                }
                Step::SetClass(thread, class) => {
                    threads[thread].set_class(class, false);
                    let before = model.class[thread];
                    model.class[thread] = class;
                    let sorted = queue.sort(&threads[thread], || true, || &share, || now);
                    let changed = urgency(before) != urgency(class);
                    let here = model.waits(thread).is_some() || model.running == Some(thread);
                    let moves = model.running == Some(thread) || here && changed;
                    let expected = if moves { Sorted::Moved } else { Sorted::Unchanged };
                    prop_assert_eq!(sorted, expected);
                    let running = model.running == Some(thread);
                    if running && changed && now - model.began >= BOUND.period && urgency(class) > 0 {
                        (model.began, model.used) = (now, 0);
                    }
                    if let Some(at) = model.waits(thread).filter(|_| changed) {
                        model.lists[at].retain(|t| *t != thread);
                        let lowered = urgency(class) < urgency(before) && urgency(class) > 0;
                        model.join(thread, if lowered { Join::Resume } else { Join::Back });
                    }
                }
                Step::Steal => {
                    let may = match model.lists.iter().rposition(|list| !list.is_empty()) {
                        None => vec![],
                        Some(0) => model.lists[0].iter().copied().collect(),
                        Some(at) => vec![model.lists[at][0]],
                    };
                    let stolen = number(queue.steal(1));
                    prop_assert_eq!(stolen.is_some(), !may.is_empty());
                    if let Some(thread) = stolen {
                        prop_assert!(may.contains(&thread));
                        let at = model.waits(thread).expect("it waits");
                        model.lists[at].retain(|t| *t != thread);
                    }
                }
            }
            let waiting: usize = model.lists.iter().map(VecDeque::len).sum();
            prop_assert_eq!((queue.len(), queue.movable()), (waiting, waiting));
            let runs = model.running.map_or(0, |t| urgency(model.class[t]));
            let urgent = model.lists.iter().rposition(|list| !list.is_empty()).unwrap_or(0) as u8;
            prop_assert_eq!(queue.most_urgent(), runs.max(urgent));
            if model.running.is_some() && urgent > runs {
                let spent = runs == 0 && model.used >= BOUND.runtime;
                prop_assert_eq!(queue.turn_end() == 0, !spent, "a more urgent thread runs at once");
            }
        }
        prop_assert_eq!(queue.len(), 0);
    }
}

#[test]
fn threads_that_spin_leave_others_the_rest_of_each_period() {
    for (urgent, others) in [(1, 1), (3, 2)] {
        let (threads, share) = (threads(urgent + others), Share::new());
        let mut queue = RunQueue::new();
        queue.set_bound(BOUND);
        for (n, thread) in threads.iter().enumerate() {
            if n < urgent {
                thread.set_class([Class::RoundRobin(7), Class::Fifo(7)][n % 2], false);
            }
            queue.push(thread, &share, Join::Back, || 0);
        }
        let (mut now, mut windows) = (0, vec![[0u64; 2]; 50]);
        let mut ran = queue.pop(now).expect("threads wait");
        while now < BOUND.period * windows.len() as u64 {
            let thread = unsafe { ran.as_ref() };
            // The CPU checks for preemption when the turn ends, or after a microsecond if that is earlier.
            let until = queue.turn_end().clamp(now + 1, now + 1_000);
            let passed = until - now;
            windows[(now / BOUND.period) as usize][usize::from(thread.urgency() == 0)] += passed;
            now = until;
            let weighted = thread.use_slice(passed);
            queue.charge(now, passed, weighted);
            let join = match (thread.urgency(), thread.has_slice()) {
                (_, false) => Join::Back,
                (0, true) => queue.preempted(),
                _ => Join::Resume,
            };
            queue.push(thread, &share, join, || now);
            ran = queue.pop(now).expect("threads wait");
        }
        for [real_time, other] in windows {
            assert!(real_time.abs_diff(BOUND.runtime) <= 1_000, "{real_time} of {}", BOUND.period);
            assert!(other.abs_diff(BOUND.period - BOUND.runtime) <= 1_000, "{other} of {}", BOUND.period);
        }
    }
}

#[test]
fn without_a_limit_or_without_others_real_time_threads_go_on() {
    for (bound, others) in [(Bound { runtime: BOUND.period, ..BOUND }, 1), (BOUND, 0)] {
        let (threads, share) = (threads(1 + others), Share::new());
        let mut queue = RunQueue::new();
        queue.set_bound(bound);
        threads[0].set_class(Class::Fifo(1), false);
        threads.iter().for_each(|thread| queue.push(thread, &share, Join::Back, || 0));
        for now in (0..1_000_000).step_by(1_000) {
            queue.charge(now, 1_000, 1_000);
            assert_eq!(number(queue.pop(now)), Some(0));
            assert_eq!(queue.turn_end(), NEVER);
            queue.push(&threads[0], &share, Join::Resume, || now);
        }
    }
}

#[test]
fn threads_of_one_priority_take_turns_and_others_do_not() {
    let threads = threads(3);
    let share = Share::new();
    let mut queue = RunQueue::new();
    queue.set_bound(BOUND);
    for (thread, class) in threads.iter().zip([Class::RoundRobin(5), Class::RoundRobin(5), Class::Fifo(5)]) {
        thread.set_class(class, false);
        thread.end_slice();
        queue.push(thread, &share, Join::Back, || 0);
    }
    let mut order = Vec::new();
    for n in 0..20u64 {
        let now = n * 1_000;
        let ran = queue.pop(now).expect("threads wait");
        order.extend(number(Some(ran)));
        let ran = unsafe { ran.as_ref() };
        ran.use_slice(1_000);
        queue.charge(now + 1_000, 1_000, 0);
        queue.push(ran, &share, if ran.has_slice() { Join::Resume } else { Join::Back }, || now);
    }
    assert_eq!(order, [[0; 5], [1; 5], [2; 5], [2; 5]].concat());
    assert_eq!(threads[2].slice(), u64::MAX);
    threads[2].set_class(Class::Normal, false);
    threads[2].new_round(BOUND.turn.max(2 * SLICE));
    assert_eq!(threads[2].slice(), SLICE.into(), "a turn ends with its class");
}

#[test]
fn a_search_finds_the_most_urgent_thread_that_may_move() {
    let threads = threads(4);
    let share = Share::new();
    let mut queue = RunQueue::new();
    for (thread, class) in threads.iter().zip([Class::Normal, Class::Fifo(3), Class::Fifo(90), Class::Fifo(4)]) {
        thread.set_class(class, false);
    }
    threads[2].restrict(&CpuMask::only(0));
    threads.iter().for_each(|thread| queue.push(thread, &share, Join::Back, || 0));
    assert_eq!([1, 1, 1, 1].map(|cpu| number(queue.steal(cpu))), [Some(3), Some(1), Some(0), None]);
    assert_eq!(number(queue.pop(0)), Some(2));
}
