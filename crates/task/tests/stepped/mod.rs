//! A simulated machine in virtual time: any number of CPUs and thousands of threads. Each run is the same.
//!
//! Most of its threads have no stacks. The machine itself executes the behaviour of such a thread, which its [`Does`]
//! describes. When the scheduler switches threads, a panic unwinds back to the machine. The machine then continues with
//! the thread that has the CPU.
//!
//! A thread with a [body](bodies) has a stack, and runs until it requests time. Only one OS thread runs at any moment.
//! Time passes only in [`Stepped::spin`] and [`Stepped::poll`], where interrupts are delivered and threads are
//! preempted.
//!
//! A machine with a [seed](Stepped::seeded) makes some choices at random. They are the order of CPUs at the same
//! moment, the time of a [`Stepped::poll`], and the delay of interrupts between CPUs. The same seed gives the same
//! choices.
#![allow(dead_code)]

mod bodies;

use bodies::{Left, Stack};
use quire_sync::CpuId;
use quire_sync::cpuset::CpuMask;
use quire_sync::hooks::threads::set_cpu;
use quire_task::{Class, Irq, Machine, Scheduler, Thread, ThreadRef, User};
use std::alloc::{Layout, alloc_zeroed};
use std::cell::{Cell, RefCell};
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

/// The behaviour of a thread, which never ends except for `Body`. Times are in nanoseconds.
#[derive(Clone, Copy, Debug)]
pub enum Does {
    /// The thread is a CPU's idle thread.
    Idles,
    /// The thread runs all the time.
    Runs,
    /// The thread runs for `after`, then sleeps for `sleep`, until the machine wakes it.
    Sleeps { after: u64, sleep: u64 },
    /// As `Sleeps`, but from the second time on the thread runs for `then` and sleeps for `period`.
    Once { after: u64, sleep: u64, then: u64, period: u64 },
    /// As `Sleeps`, but the deadline of the thread's own park wakes it.
    Timed { after: u64, sleep: u64 },
    /// The thread executes its body, which ends.
    Body,
}

/// The time of a [poll](Stepped::poll) without a seed, in nanoseconds. With a seed it is up to twice as long.
pub const POLL: u64 = 1_000;
/// The longest delay of an interrupt between CPUs on a machine with a seed, in nanoseconds.
const DELAY: u64 = 3_000;
/// The most steps until all threads have ended, and the most events at one moment. Above these the machine hangs.
const MOST_STEPS: u64 = 2_000_000;

pub struct Scripted {
    number: usize,
    does: Cell<Does>,
    /// The CPU time that the thread has used, in nanoseconds.
    pub ran: Cell<u64>,
    /// The time at which the thread got its CPU.
    since: Cell<u64>,
    /// The time for which the thread still runs before it sleeps, in nanoseconds.
    left: Cell<u64>,
    /// The time at which the thread was woken; `None` again when it runs.
    pub woken: Cell<Option<u64>>,
    asleep: Cell<bool>,
    /// The thread runs in the kernel, and is preempted there.
    pub in_kernel: Cell<bool>,
    /// The time at which the thread left its CPU without going to sleep; `None` again when it runs.
    taken: Cell<Option<u64>>,
    /// The thread's longest wait for a CPU after a wake-up or a preemption, in nanoseconds.
    longest: Cell<u64>,
    /// How often the thread has got a CPU.
    pub runs: Cell<u64>,
    /// The thread's longest wait for a CPU after a wake-up, in nanoseconds.
    pub latest: Cell<u64>,
    /// The stack of a thread with a body.
    stack: Option<Stack>,
    /// The thread has a stack, on which it is inside the scheduler: it left its CPU voluntarily, or has not begun.
    inside: Cell<bool>,
    /// The thread has called `exit`. The field `ended` is set when it has left its stack.
    exits: Cell<bool>,
    ended: Cell<bool>,
}
impl Scripted {
    /// The thread's longest wait for a CPU after a wake-up or a preemption. A wait that has not ended counts up to
    /// `now`.
    pub fn longest(&self, now: u64) -> u64 {
        let waits = |since: &Cell<Option<u64>>| since.get().map_or(0, |since| now - since);
        self.longest.get().max(waits(&self.woken)).max(waits(&self.taken))
    }
}
// SAFETY: one thread of the host runs at any moment, and hands over to the next through a lock.
unsafe impl Send for Scripted {}
// SAFETY: one thread of the host runs at any moment, so no cell is touched by two.
unsafe impl Sync for Scripted {}

struct SteppedCpu {
    current: Cell<*const Thread<Stepped>>,
    /// The thread whose field `ran` counts the time at present.
    counted: Cell<*const Thread<Stepped>>,
    pending: Cell<bool>,
    masked: Cell<bool>,
    /// The running thread is not preempted.
    unpreemptible: Cell<bool>,
    /// The time at which another CPU's interrupt arrives; `u64::MAX` for none.
    kicked: Cell<u64>,
    deadline: Cell<u64>,
    halts: Cell<u64>,
    expired: Cell<u64>,
}

pub struct Stepped {
    now: Cell<u64>,
    cpus: Vec<SteppedCpu>,
    scheduler: Cell<Option<&'static Scheduler<Stepped>>>,
    threads: RefCell<Vec<ThreadRef<Stepped>>>,
    wakes: RefCell<BinaryHeap<Reverse<(u64, usize)>>>,
    switches: Cell<u64>,
    /// How often a timer was programmed. `kicks` counts the interrupts between CPUs.
    arms: Cell<u64>,
    kicks: Cell<u64>,
    /// The number of events at the present moment so far.
    at_once: Cell<u64>,
    seed: u64,
    /// The state of the random number generator; 0 means that there are no random choices.
    chance: Cell<u64>,
    /// The number of threads with bodies that were started. `reaped` counts the threads that were passed to `reap`, and
    /// `freed` counts the threads whose memory was freed.
    started: Cell<usize>,
    reaped: Cell<usize>,
    freed: Arc<AtomicUsize>,
}
// SAFETY: one thread of the host runs at any moment, and hands over to the next through a lock.
unsafe impl Send for Stepped {}
// SAFETY: one thread of the host runs at any moment, so no cell is touched by two.
unsafe impl Sync for Stepped {}

/// The panic payload that unwinds out of the scheduler after it has switched to another thread.
struct Switched;

pub fn memory(bytes: usize) -> NonNull<u8> {
    NonNull::new(unsafe { alloc_zeroed(Layout::from_size_align(bytes, 128).unwrap()) }).unwrap()
}

impl Stepped {
    pub fn new(cpus: usize) -> &'static Stepped {
        Self::seeded(cpus, 0)
    }

    /// A machine that makes random choices, which depend on `seed`. Seed 0 means no random choices.
    pub fn seeded(cpus: usize, seed: u64) -> &'static Stepped {
        let cpu = |_| SteppedCpu {
            current: Cell::new(ptr::null()),
            counted: Cell::new(ptr::null()),
            pending: Cell::new(false),
            masked: Cell::new(true),
            unpreemptible: Cell::new(false),
            kicked: Cell::new(u64::MAX),
            deadline: Cell::new(u64::MAX),
            halts: Cell::new(0),
            expired: Cell::new(0),
        };
        let machine: &'static Stepped = Box::leak(Box::new(Stepped {
            now: Cell::new(1 << 30),
            cpus: (0..cpus).map(cpu).collect(),
            scheduler: Cell::new(None),
            threads: RefCell::default(),
            wakes: RefCell::default(),
            switches: Cell::new(0),
            arms: Cell::new(0),
            kicks: Cell::new(0),
            at_once: Cell::new(0),
            seed,
            chance: Cell::new(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15)),
            started: Cell::new(0),
            reaped: Cell::new(0),
            freed: Arc::default(),
        }));
        let bytes = memory(Scheduler::<Stepped>::bytes(cpus));
        let scheduler = Box::leak(Box::new(unsafe { Scheduler::new(machine, bytes, cpus) }));
        machine.scheduler.set(Some(scheduler));
        for cpu in 0..cpus {
            machine.on(cpu, || {
                scheduler.start_cpu(machine.thread(Does::Idles));
                machine.restore(Irq::On);
            });
        }
        machine
    }

    pub fn user(&self) -> &'static User<Stepped> {
        let cpus = self.cpus.len();
        Box::leak(Box::new(unsafe { User::new(memory(User::<Stepped>::bytes(cpus)), cpus) }))
    }

    fn thread(&self, does: Does) -> ThreadRef<Stepped> {
        unsafe fn never(_: NonNull<Thread<Stepped>>) {}
        let left = match does {
            Does::Sleeps { after, .. } | Does::Once { after, .. } | Does::Timed { after, .. } => after,
            Does::Idles | Does::Runs | Does::Body => u64::MAX,
        };
        let script = self.scripted(does, left, None);
        let thread = Box::leak(Box::new(Thread::new((), script, never)));
        let thread = unsafe { ThreadRef::adopt(NonNull::from(thread)) };
        self.threads.borrow_mut().push(thread.clone());
        thread
    }

    fn scripted(&self, does: Does, left: u64, stack: Option<Stack>) -> Scripted {
        Scripted {
            number: self.threads.borrow().len(),
            does: Cell::new(does),
            ran: Cell::new(0),
            since: Cell::new(0),
            left: Cell::new(left),
            woken: Cell::new(None),
            asleep: Cell::new(false),
            in_kernel: Cell::new(false),
            taken: Cell::new(None),
            longest: Cell::new(0),
            runs: Cell::new(0),
            latest: Cell::new(0),
            inside: Cell::new(stack.is_some()),
            stack,
            exits: Cell::new(false),
            ended: Cell::new(false),
        }
    }

    /// A random number below `below`; `else_` on a machine without a seed.
    fn chance(&self, below: u64, else_: u64) -> u64 {
        let mut x = self.chance.get();
        if x == 0 {
            return else_;
        }
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        self.chance.set(x);
        (x >> 11) % below
    }

    /// The virtual time in nanoseconds.
    pub fn time(&self) -> u64 {
        self.now.get()
    }

    /// Starts a thread on `cpu`. `None` for the user means a thread of the kernel.
    pub fn spawn(&self, cpu: CpuId, user: Option<&'static User<Stepped>>, nice: i8, does: Does) -> ThreadRef<Stepped> {
        let thread = self.thread(does);
        thread.set_nice(nice);
        unsafe { thread.belong_to(user.map(NonNull::from)) };
        self.on(cpu, || self.scheduler().spawn_on(thread.clone(), cpu));
        thread
    }

    pub fn scheduler(&self) -> &'static Scheduler<Stepped> {
        self.scheduler.get().unwrap()
    }

    pub fn switches(&self) -> u64 {
        self.switches.get()
    }

    /// How often CPUs have programmed their timers, and how often they have interrupted other CPUs.
    pub fn interrupts(&self) -> [u64; 2] {
        [self.arms.get(), self.kicks.get()]
    }

    /// How often `cpu` has halted.
    pub fn halts(&self, cpu: CpuId) -> u64 {
        self.cpus[cpu].halts.get()
    }

    /// How often its timer has interrupted `cpu`.
    pub fn expired(&self, cpu: CpuId) -> u64 {
        self.cpus[cpu].expired.get()
    }

    /// Calls `f` on `cpu`, and then does the work that became due on the machine.
    fn on(&self, cpu: CpuId, f: impl FnOnce()) {
        self.step(cpu, f);
        loop {
            let now = self.now.get();
            let kicked = self.cpus.iter().position(|c| c.kicked.get() <= now && !c.masked.get());
            if let Some(kicked) = kicked {
                self.cpus[kicked].kicked.set(u64::MAX);
                self.step(kicked, || self.scheduler().kicked());
                continue;
            }
            let gives_way = |c: &SteppedCpu| c.pending.get() && !c.masked.get() && !c.unpreemptible.get();
            let pending = self.cpus.iter().position(gives_way);
            if let Some(pending) = pending {
                let in_kernel = self.running(pending).payload().in_kernel.get();
                self.step(pending, || match in_kernel {
                    true => self.scheduler().preempt(),
                    // Threads keep their stacks here.
                    false => unsafe { self.scheduler().preempt_departing() },
                });
                continue;
            }
            return;
        }
    }

    fn step(&self, cpu: CpuId, f: impl FnOnce()) {
        set_cpu(cpu);
        let _stays = self.leave(cpu, f);
        // An idle CPU checks for work after every interrupt, and halts if there is none.
        let idles = || matches!(self.running(cpu).payload().does.get(), Does::Idles);
        while !self.running_is_none(cpu) && idles() {
            let before = self.halts(cpu);
            if !self.leave(cpu, || self.scheduler().idle_once()) && self.halts(cpu) != before {
                return;
            }
        }
    }

    /// Calls `f` on `cpu`. Returns whether the scheduler switched threads.
    fn leave(&self, cpu: CpuId, f: impl FnOnce()) -> bool {
        let Err(left) = catch_unwind(AssertUnwindSafe(f)) else { return false };
        if !left.is::<Switched>() {
            resume_unwind(left);
        }
        loop {
            self.switches.set(self.switches.get() + 1);
            if !self.running(cpu).payload().inside.replace(false) {
                // The next thread was preempted, or has no stack.
                self.scheduler().started();
                self.count(cpu);
                return true;
            }
            self.count(cpu);
            if self.resume(cpu) == Left::ForTime {
                return true;
            }
        }
    }

    fn running_is_none(&self, cpu: CpuId) -> bool {
        self.cpus[cpu].current.get().is_null()
    }

    fn running(&self, cpu: CpuId) -> &Thread<Stepped> {
        unsafe { &*self.cpus[cpu].current.get() }
    }

    /// Restricts `thread` to the CPUs of `to`.
    pub fn restrict(&self, thread: &ThreadRef<Stepped>, to: &CpuMask) {
        self.on(0, || assert!(self.scheduler().set_affinity(thread, to)));
    }

    /// Gives `thread` another class.
    pub fn set_class(&self, thread: &ThreadRef<Stepped>, class: Class) {
        self.on(0, || self.scheduler().set_class(thread, class, false));
    }

    /// Wakes a thread that sleeps.
    pub fn wake(&self, thread: &ThreadRef<Stepped>) {
        self.wake_by(thread, Scheduler::unpark);
    }

    /// Wakes a thread that sleeps and that is about to exit.
    pub fn wake_to_end(&self, thread: &ThreadRef<Stepped>) {
        self.wake_by(thread, Scheduler::unpark_to_end);
    }

    fn wake_by(&self, thread: &ThreadRef<Stepped>, unpark: impl FnOnce(&Scheduler<Stepped>, &Thread<Stepped>)) {
        thread.payload().woken.set(Some(self.now.get()));
        thread.payload().asleep.set(false);
        self.on(thread.home(), || unpark(self.scheduler(), thread));
    }

    /// Charges the thread that had `cpu` until now, and begins to count for the thread that has the CPU now.
    fn count(&self, cpu: CpuId) {
        let here = &self.cpus[cpu];
        let now = self.now.get();
        if let Some(before) = unsafe { here.counted.get().as_ref() } {
            let script = before.payload();
            let ran = now - script.since.get();
            script.ran.set(script.ran.get() + ran);
            script.left.set(script.left.get().saturating_sub(ran));
            script.since.set(now);
            let taken = here.current.get() != here.counted.get() && !script.asleep.get();
            script.taken.set(taken.then_some(now));
        }
        let next = here.current.get();
        let switched = here.counted.replace(next) != next;
        if let Some(next) = unsafe { next.as_ref() } {
            let script = next.payload();
            script.since.set(now);
            script.runs.set(script.runs.get() + u64::from(switched));
            script.longest.set(script.longest(now));
            script.taken.set(None);
            script.asleep.set(false);
            if let Some(woken) = script.woken.take() {
                script.latest.set(script.latest.get().max(now - woken));
            }
        }
    }

    /// Lets `ns` nanoseconds pass.
    pub fn run(&self, ns: u64) {
        let end = self.now.get() + ns;
        while self.event(end) {}
        self.now.set(end);
        (0..self.cpus.len()).for_each(|cpu| self.count(cpu));
    }

    /// Advances the time to the next event, and executes that event. Returns false, and does nothing, if there is no
    /// event before `end`.
    fn event(&self, end: u64) -> bool {
        let stops_at = |cpu: &SteppedCpu| {
            let script = unsafe { cpu.counted.get().as_ref() }.map(|t| t.payload());
            script.map_or(u64::MAX, |t| t.since.get().saturating_add(t.left.get()))
        };
        let interrupts = |cpu: &SteppedCpu| match cpu.masked.get() {
            true => u64::MAX,
            false => cpu.deadline.get().min(cpu.kicked.get()),
        };
        let due = |cpu: &SteppedCpu| interrupts(cpu).min(stops_at(cpu));
        let (mut cpu, at) = self.cpus.iter().map(due).enumerate().min_by_key(|(_, at)| *at).unwrap();
        let wake = self.wakes.borrow().peek().map_or(u64::MAX, |Reverse((at, _))| *at);
        let next = at.min(wake).max(self.now.get());
        if next >= end {
            return false;
        }
        let events = if next > self.now.get() { 0 } else { self.at_once.get() + 1 };
        assert!(events < MOST_STEPS, "with seed {}, the machine goes on without time", self.seed);
        self.at_once.set(events);
        self.now.set(next);
        if wake <= at {
            let Some(Reverse((_, number))) = self.wakes.borrow_mut().pop() else { return false };
            let thread = self.threads.borrow()[number].clone();
            self.wake(&thread);
            return true;
        }
        if self.chance.get() != 0 {
            let at_once: Vec<_> = (0..self.cpus.len()).filter(|cpu| due(&self.cpus[*cpu]) <= next).collect();
            cpu = at_once[self.chance(at_once.len() as u64, 0) as usize];
        }
        let here = &self.cpus[cpu];
        if interrupts(here) > next {
            self.stop(cpu);
        } else if here.kicked.get() <= next {
            // `on` delivers the pending interrupt.
            self.on(cpu, || {});
        } else {
            here.deadline.set(u64::MAX);
            here.expired.set(here.expired.get() + 1);
            self.on(cpu, || self.scheduler().timer_interrupt());
        }
        true
    }

    /// Executes what the thread on `cpu` does after the time for which it runs: it sleeps, or its body continues.
    fn stop(&self, cpu: CpuId) {
        self.count(cpu);
        let thread = self.running(cpu);
        let (script, now) = (thread.payload(), self.now.get());
        let (after, sleep) = match script.does.get() {
            Does::Sleeps { after, sleep } => (after, sleep),
            Does::Timed { after, sleep } => {
                script.left.set(after);
                script.asleep.set(true);
                // Park twice, because the first park may only take the token of the last wake-up.
                return self.on(cpu, || {
                    self.scheduler().park(Some(now + sleep));
                    self.scheduler().park(Some(now + sleep));
                });
            }
            Does::Once { sleep, then, period, .. } => {
                script.does.set(Does::Sleeps { after: then, sleep: period });
                (then, sleep)
            }
            Does::Body => return self.go_on(cpu),
            Does::Idles | Does::Runs => panic!("it runs for ever"),
        };
        script.left.set(after);
        script.asleep.set(true);
        self.wakes.borrow_mut().push(Reverse((now + sleep, script.number)));
        // Park twice, because the first park may only take the token of the last wake-up.
        self.on(cpu, || {
            self.scheduler().park(None);
            self.scheduler().park(None);
        });
    }

    fn here(&self) -> &SteppedCpu {
        &self.cpus[quire_sync::current_cpu()]
    }
}

unsafe impl Machine for Stepped {
    type Context = ();
    type Payload = Scripted;
    fn now(&self) -> u64 {
        self.now.get()
    }
    fn arm(&self, deadline: Option<u64>) {
        assert!(self.here().masked.get());
        self.arms.set(self.arms.get() + 1);
        self.here().deadline.set(deadline.unwrap_or(u64::MAX));
    }
    fn kick(&self, cpu: CpuId) {
        assert_ne!(cpu, quire_sync::current_cpu(), "a CPU interrupts itself");
        self.kicks.set(self.kicks.get() + 1);
        let kicked = &self.cpus[cpu].kicked;
        kicked.set(kicked.get().min(self.now.get() + self.chance(DELAY, 0)));
    }
    fn halt(&self) {
        assert!(self.here().masked.get());
        self.here().halts.set(self.here().halts.get() + 1);
        self.here().masked.set(false);
    }
    fn mask(&self) -> Irq {
        if self.here().masked.replace(true) { Irq::Off } else { Irq::On }
    }
    fn restore(&self, was: Irq) {
        self.here().masked.set(was == Irq::Off);
    }
    fn current(&self) -> *const Thread<Self> {
        self.here().current.get()
    }
    unsafe fn set_current(&self, thread: *const Thread<Self>) {
        self.here().current.set(thread);
    }
    fn set_pending(&self, pending: bool) {
        assert!(self.here().masked.get());
        self.here().pending.set(pending);
    }
    unsafe fn switch(&self, prev: &Thread<Self>, _next: &Thread<Self>) {
        assert!(self.here().masked.get());
        match &prev.payload().stack {
            Some(stack) if bodies::is_body() => stack.switch(prev.payload()),
            _ => resume_unwind(Box::new(Switched)),
        }
    }
    fn reap(&self, thread: ThreadRef<Self>) {
        assert!(!self.here().masked.get());
        assert!(thread.payload().ended.get(), "a thread is reaped on its own stack");
        self.reaped.set(self.reaped.get() + 1);
    }
}
