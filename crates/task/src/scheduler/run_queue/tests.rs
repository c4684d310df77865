//! A run queue is compared step by step with a model, which has two lists of thread numbers for each user.
#![allow(clippy::undocumented_unsafe_blocks)] // all memory is the test's own

use super::*;
use crate::machine::Irq;
use crate::scheduler::share::{CREDIT, FRONT_TO_BACK, PATIENCE};
use crate::thread::{SLICE, ThreadRef};
use proptest::prelude::*;
use quire_sync::cpuset::{CpuMask, MAX_CPUS};
use std::collections::VecDeque;

const THREADS: usize = 12;
const USERS: usize = 4;
/// CPU numbers whose bits are in two different words of a mask.
const CPUS: [CpuId; 3] = [0, 1, 70];

/// A machine on which no thread runs.
pub(in crate::scheduler) struct Still;
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
    /// A sleeping thread joins the queue. Nothing happens if no thread sleeps.
    Join(usize, Join),
    /// The running thread has used the first number of nanoseconds, which count as the second number at nice 0. Then
    /// the next thread is popped.
    Pop(u64, u64),
    /// The running thread becomes a thread of another user.
    Begin(usize),
    /// The running thread yields.
    GiveWay,
    Steal(CpuId),
    SetNice(usize, i8),
    Restrict(usize, CpuMask),
    /// The thread's `on_cpu` is set or cleared.
    OnCpu(usize, bool),
    /// The thread has run for this number of nanoseconds.
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
    let join = prop::sample::select(vec![Join::Front, Join::Back, Join::Resume]);
    let step = prop_oneof![
        5 => (thread(), join).prop_map(|(t, j)| Step::Join(t, j)),
        3 => (0..PATIENCE, 0..PATIENCE).prop_map(|(ns, weighted)| Step::Pop(ns, weighted)),
        1 => (0..USERS).prop_map(Step::Begin),
        1 => Just(Step::GiveWay),
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
    /// Whether the thread was allowed on other CPUs when it joined.
    moves: bool,
}

#[derive(Clone, Default)]
struct User {
    used: u64,
    from_back: bool,
    ahead: u64,
    front: VecDeque<usize>,
    back: VecDeque<usize>,
}

impl User {
    fn waiting(&self) -> impl Iterator<Item = usize> {
        self.back.iter().chain(&self.front).copied()
    }
    fn pass(&mut self, ns: u64, weighted: u64) {
        if self.is_empty() {
            return;
        }
        if self.from_back {
            let cost = ns.max(weighted);
            let by_length = cost * self.front.len() as u64 / (self.back.len() as u64 + 1);
            self.ahead -= self.ahead.min(by_length.max(cost).min(FRONT_TO_BACK * cost));
        } else {
            self.ahead += ns.min(weighted);
        }
    }
    fn is_empty(&self) -> bool {
        self.front.is_empty() && self.back.is_empty()
    }
}

/// The model. A thread's user is its number modulo the number of users.
struct Model {
    threads: Vec<Known>,
    users: Vec<User>,
    current: Option<usize>,
    floor: u64,
    charged: u64,
}

impl Model {
    fn is_active(&self, user: usize) -> bool {
        self.current == Some(user) || !self.users[user].is_empty()
    }

    /// The least virtual time of users whose threads wait and do not run.
    fn least(&self) -> Option<u64> {
        let others = (0..USERS).filter(|u| self.current != Some(*u) && !self.users[*u].is_empty());
        others.map(|u| self.users[u].used).min()
    }

    fn charge(&mut self, now: u64) {
        if let Some(current) = self.current {
            self.users[current].used += now - self.charged;
            self.charged = now;
            self.floor = self.floor.max(self.users[current].used.min(self.least().unwrap_or(u64::MAX)));
        }
    }

    fn wake(&mut self, user: usize) {
        self.users[user].used = self.users[user].used.max(self.floor.saturating_sub(CREDIT));
    }

    fn join(&mut self, thread: usize, join: Join, now: u64) {
        let known = &mut self.threads[thread];
        known.moves = known.allowed.len() > 1;
        if !self.is_active(thread % USERS) {
            self.charge(now);
            self.wake(thread % USERS);
        }
        let user = &mut self.users[thread % USERS];
        match join {
            Join::Front => user.front.push_back(thread),
            Join::Back => user.back.push_back(thread),
            Join::Resume => user.back.push_front(thread),
        }
    }

    /// The users that may run next: the running user if no user has less virtual time, else all users with the least.
    fn next_users(&self) -> Vec<usize> {
        let waiting: Vec<usize> = (0..USERS).filter(|u| !self.users[*u].is_empty()).collect();
        let least = waiting.iter().map(|u| self.users[*u].used).min();
        let stays = self.current.filter(|c| waiting.contains(c) && Some(self.users[*c].used) == least);
        stays.map_or_else(|| waiting.into_iter().filter(|u| Some(self.users[*u].used) == least).collect(), |c| vec![c])
    }

    fn pop_of(&mut self, user: usize) -> usize {
        let share = &mut self.users[user];
        if share.front.is_empty() || share.back.is_empty() {
            share.ahead = 0;
        }
        share.from_back = share.front.is_empty() || share.ahead > PATIENCE;
        if !share.from_back {
            return share.front.pop_front().expect("the list has a thread");
        }
        let thread = share.back.pop_front().expect("the list has a thread");
        if self.threads[thread].slice == 0 {
            self.threads[thread].slice = SLICE.into();
        }
        thread
    }

    fn new() -> Self {
        let allowed = CpuMask::first(MAX_CPUS);
        let known = Known { nice: 0, allowed, on_cpu: false, slice: SLICE.into(), moves: false };
        let users = vec![User::default(); USERS];
        Model { threads: vec![known; THREADS], users, current: None, floor: 0, charged: 0 }
    }

    fn movable(&self) -> usize {
        self.users.iter().flat_map(User::waiting).filter(|t| self.threads[*t].moves).count()
    }

    /// For each user: the thread that has waited longest of those that may run on `cpu`, on the back list, else on the
    /// front list.
    fn bound_for(&self, cpu: CpuId, off: bool) -> Vec<usize> {
        if self.movable() == 0 {
            return Vec::new();
        }
        let may = |t: &usize| self.threads[*t].allowed.contains(cpu) && !(off && self.threads[*t].on_cpu);
        self.users.iter().filter_map(|user| user.waiting().find(may)).collect()
    }
}

/// Checks that the queue and the model have the same contents.
fn agree(queue: &RunQueue<Still>, shares: &[Share<Still>], model: &Model) -> Result<(), TestCaseError> {
    let len = model.users.iter().flat_map(User::waiting).count();
    let eager = model.current.map_or(0, |c| model.users[c].front.len());
    prop_assert_eq!((queue.len(), queue.eager(), queue.movable()), (len, eager, model.movable()));
    let end = match (model.current, model.least()) {
        (Some(current), Some(least)) => model.charged + (least + STRETCH).saturating_sub(model.users[current].used),
        _ => u64::MAX,
    };
    prop_assert_eq!(queue.share_end(), end);
    for (user, share) in shares.iter().enumerate() {
        prop_assert_eq!(share.used(), model.users[user].used);
    }
    for cpu in CPUS {
        prop_assert_eq!(queue.has_for(cpu), !model.bound_for(cpu, false).is_empty());
    }
    Ok(())
}

/// As on Linux, each nice step is a factor of 1.25.
fn weighted(ns: u64, nice: i8) -> u64 {
    (ns as f64 * 1.25f64.powi(nice.into())) as u64
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn run_queues_take_and_steal_threads_as_the_reference_lists(steps in steps()) {
        unsafe fn never(_: NonNull<Thread<Still>>) {}
        let threads: Vec<Thread<Still>> = (0..THREADS).map(|n| Thread::new((), n, never)).collect();
        let shares: Vec<Share<Still>> = (0..USERS).map(|_| Share::new()).collect();
        let mut model = Model::new();
        let mut queue = RunQueue::new();
        let mut now = 0;
        let number = |thread: Option<NonNull<Thread<Still>>>| thread.map(|t| *unsafe { t.as_ref() }.payload());
        // At the end all remaining threads are popped.
        let all = steps.into_iter().chain((0..=THREADS).map(|_| Step::Pop(1, 1)));
        for step in all {
            match step {
                Step::Join(from, join) => {
                    let waits = |t: &usize| model.users.iter().flat_map(User::waiting).any(|w| w == *t);
                    let free = (from..THREADS).chain(0..from).find(|t| !waits(t));
                    if let Some(thread) = free {
                        model.join(thread, join, now);
                        queue.push(&threads[thread], &shares[thread % USERS], join, || now);
                    }
                }
                Step::Pop(passed, weighted) => {
                    now += passed;
                    queue.charge(now, passed, weighted);
                    model.charge(now);
                    if let Some(current) = model.current {
                        model.users[current].pass(passed, weighted);
                        let join = if model.users[current].from_back { Join::Resume } else { Join::Front };
                        prop_assert_eq!(queue.preempted(), join);
                    }
                    let may = model.next_users();
                    let taken = number(queue.pop(now));
                    prop_assert_eq!(taken.is_some(), !may.is_empty());
                    model.current = taken.map(|t| t % USERS);
                    model.charged = now;
                    if let Some(thread) = taken {
                        prop_assert!(may.contains(&(thread % USERS)), "{} of {:?}", thread, may);
                        prop_assert_eq!(model.pop_of(thread % USERS), thread);
                        prop_assert_eq!(threads[thread].slice.load(Relaxed) as u64, model.threads[thread].slice);
                    }
                }
                Step::Begin(user) => {
                    // The thread that begins is not one of the model's threads.
                    queue.begin(&shares[user], now);
                    model.charge(now);
                    if !model.is_active(user) {
                        model.wake(user);
                    }
                    model.current = Some(user);
                    model.users[user].from_back = false;
                    model.charged = now;
                }
                Step::GiveWay => {
                    queue.give_way();
                    if let (Some(current), Some(least)) = (model.current, model.least())
                        && model.users[current].is_empty()
                    {
                        model.users[current].used = model.users[current].used.max(least + 1);
                    }
                }
                Step::Steal(cpu) => {
                    let may = model.bound_for(cpu, true);
                    let stolen = number(queue.steal(cpu));
                    prop_assert_eq!(stolen.is_some(), !may.is_empty());
                    if let Some(stolen) = stolen {
                        prop_assert!(may.contains(&stolen));
                        model.users[stolen % USERS].front.retain(|t| *t != stolen);
                        model.users[stolen % USERS].back.retain(|t| *t != stolen);
                    }
                }
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
                    let used = threads[thread].use_slice(ns);
                    let expected = weighted(ns, model.threads[thread].nice);
                    prop_assert!(used.abs_diff(expected) <= expected / 1000 + 2, "{} is not {}", used, expected);
                    model.threads[thread].slice = model.threads[thread].slice.saturating_sub(used);
                }
            }
            agree(&queue, &shares, &model)?;
        }
        prop_assert!(queue.len() == 0);
    }
}

#[test]
fn a_search_for_another_cpu_looks_at_a_bounded_number_of_threads() {
    unsafe fn never(_: NonNull<Thread<Still>>) {}
    let threads: Vec<Thread<Still>> = (0..10_000).map(|n| Thread::new((), n, never)).collect();
    let shares: Vec<Share<Still>> = (0..100).map(|_| Share::new()).collect();
    let mut queue = RunQueue::new();
    for (n, thread) in threads.iter().enumerate() {
        // Only the last thread may move to another CPU.
        if n < threads.len() - 1 {
            thread.restrict(&CpuMask::only(0));
        }
        queue.push(thread, &shares[n % shares.len()], [Join::Front, Join::Back][n / 100 % 2], || 0);
    }
    let looks = Cell::new(0);
    let count = |_| {
        looks.set(looks.get() + 1);
        false
    };
    assert!(queue.bound_for(0, count).is_none());
    assert_eq!(looks.get(), LOOKS);
    let mut popped = 0;
    while !queue.has_for(1) {
        assert!(queue.pop(0).is_some(), "it comes into reach");
        popped += 1;
    }
    assert!(popped > 0, "it was out of reach");
    assert_eq!(queue.steal(1), Some(NonNull::from(&threads[9_999])));
    assert_eq!((queue.len(), queue.movable()), (9_999 - popped, 0));
}
