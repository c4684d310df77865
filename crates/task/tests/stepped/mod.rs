//! A machine in virtual time, on one thread of the host: any number of CPUs, thousands of threads, the same run each
//! time.
//!
//! Its threads have no stacks. The machine does what each thread would do, as its [`Does`] says. When the scheduler
//! switches threads, a panic unwinds back to the machine. The machine then continues as the thread that has the CPU.
#![allow(dead_code)]

use quire_sync::CpuId;
use quire_sync::cpuset::CpuMask;
use quire_sync::hooks::threads::set_cpu;
use quire_task::{Irq, Machine, Scheduler, Thread, ThreadRef, User};
use std::alloc::{Layout, alloc_zeroed};
use std::cell::{Cell, RefCell};
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::ptr::{self, NonNull};

/// The endless behaviour of a thread.
#[derive(Clone, Copy, Debug)]
pub enum Does {
    /// Nothing: it is a CPU's idle thread.
    Idles,
    /// Runs.
    Runs,
    /// Runs for so long, then sleeps for so long, in nanoseconds.
    Sleeps { after: u64, sleep: u64 },
    /// As `Sleeps`, but from the second time on it runs for `then` and sleeps for `period`.
    Once { after: u64, sleep: u64, then: u64, period: u64 },
    /// As `Sleeps`, by a deadline of its own instead of another's wake-up.
    Timed { after: u64, sleep: u64 },
}

pub struct Scripted {
    number: usize,
    does: Cell<Does>,
    /// CPU time that it has had.
    pub ran: Cell<u64>,
    /// When it got its CPU.
    since: Cell<u64>,
    /// The time left to run before it sleeps.
    left: Cell<u64>,
    /// When it was woken, until it runs.
    pub woken: Cell<Option<u64>>,
    asleep: Cell<bool>,
    /// When it left its CPU without going to sleep.
    taken: Cell<Option<u64>>,
    /// The longest that it waited for a CPU after a wake-up or a preemption.
    longest: Cell<u64>,
    /// How often it has got a CPU.
    pub runs: Cell<u64>,
    /// The longest that it waited for a CPU after a wake-up.
    pub latest: Cell<u64>,
}
impl Scripted {
    /// The longest that it has waited for a CPU after a wake-up or a preemption, up to `now`.
    pub fn longest(&self, now: u64) -> u64 {
        let waits = |since: &Cell<Option<u64>>| since.get().map_or(0, |since| now - since);
        self.longest.get().max(waits(&self.woken)).max(waits(&self.taken))
    }
}
// SAFETY: one thread of the host does everything.
unsafe impl Send for Scripted {}
// SAFETY: one thread of the host does everything, so no cell is touched by two.
unsafe impl Sync for Scripted {}

struct SteppedCpu {
    current: Cell<*const Thread<Stepped>>,
    /// The thread that `ran` is counted for.
    counted: Cell<*const Thread<Stepped>>,
    pending: Cell<bool>,
    masked: Cell<bool>,
    kicked: Cell<bool>,
    deadline: Cell<u64>,
}

pub struct Stepped {
    now: Cell<u64>,
    cpus: Vec<SteppedCpu>,
    scheduler: Cell<Option<&'static Scheduler<Stepped>>>,
    threads: RefCell<Vec<ThreadRef<Stepped>>>,
    wakes: RefCell<BinaryHeap<Reverse<(u64, usize)>>>,
    switches: Cell<u64>,
    /// Timer interrupts that were asked for, and interrupts of other CPUs.
    arms: Cell<u64>,
    kicks: Cell<u64>,
}
// SAFETY: one thread of the host does everything.
unsafe impl Send for Stepped {}
// SAFETY: one thread of the host does everything, so no cell is touched by two.
unsafe impl Sync for Stepped {}

/// Unwinds out of the scheduler where it has switched to another thread.
struct Switched;

fn memory(bytes: usize) -> NonNull<u8> {
    NonNull::new(unsafe { alloc_zeroed(Layout::from_size_align(bytes, 128).unwrap()) }).unwrap()
}

impl Stepped {
    pub fn new(cpus: usize) -> &'static Stepped {
        let cpu = |_| SteppedCpu {
            current: Cell::new(ptr::null()),
            counted: Cell::new(ptr::null()),
            pending: Cell::new(false),
            masked: Cell::new(true),
            kicked: Cell::new(false),
            deadline: Cell::new(u64::MAX),
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
        }));
        let bytes = memory(Scheduler::<Stepped>::bytes(cpus));
        let scheduler = Box::leak(Box::new(unsafe { Scheduler::new(machine, bytes, cpus) }));
        machine.scheduler.set(Some(scheduler));
        for cpu in 0..cpus {
            machine.on(cpu, || scheduler.start_cpu(machine.thread(Does::Idles)));
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
            Does::Idles | Does::Runs => u64::MAX,
        };
        let told = Scripted {
            number: self.threads.borrow().len(),
            does: Cell::new(does),
            ran: Cell::new(0),
            since: Cell::new(0),
            left: Cell::new(left),
            woken: Cell::new(None),
            asleep: Cell::new(false),
            taken: Cell::new(None),
            longest: Cell::new(0),
            runs: Cell::new(0),
            latest: Cell::new(0),
        };
        let thread = Box::leak(Box::new(Thread::new((), told, never)));
        let thread = unsafe { ThreadRef::adopt(NonNull::from(thread)) };
        self.threads.borrow_mut().push(thread.clone());
        thread
    }

    /// The virtual time.
    pub fn time(&self) -> u64 {
        self.now.get()
    }

    /// Starts a thread on `cpu`; without a user: one of the kernel's.
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

    /// How often a CPU set its timer, and how often it interrupted another CPU.
    pub fn interrupts(&self) -> [u64; 2] {
        [self.arms.get(), self.kicks.get()]
    }

    /// Does `f` on `cpu`, with interrupts on; then the work that became due meanwhile.
    fn on(&self, cpu: CpuId, f: impl FnOnce()) {
        self.step(cpu, f);
        loop {
            let kicked = self.cpus.iter().position(|c| c.kicked.replace(false));
            if let Some(kicked) = kicked {
                self.step(kicked, || self.scheduler().kicked());
                continue;
            }
            let pending = self.cpus.iter().position(|c| c.pending.get());
            if let Some(pending) = pending {
                self.step(pending, || self.scheduler().preempt());
                continue;
            }
            return;
        }
    }

    fn step(&self, cpu: CpuId, f: impl FnOnce()) {
        set_cpu(cpu);
        let _stays = self.leave(cpu, f);
        // An idle CPU checks for work after every interrupt.
        let idles = || matches!(self.running(cpu).payload().does.get(), Does::Idles);
        while !self.running_is_none(cpu) && idles() && self.leave(cpu, || self.scheduler().idle_once()) {}
    }

    /// Does `f` on `cpu`; true if the scheduler switched.
    fn leave(&self, cpu: CpuId, f: impl FnOnce()) -> bool {
        self.cpus[cpu].masked.set(false);
        let Err(left) = catch_unwind(AssertUnwindSafe(f)) else { return false };
        if !left.is::<Switched>() {
            resume_unwind(left);
        }
        self.switches.set(self.switches.get() + 1);
        self.scheduler().started();
        self.count(cpu);
        true
    }

    fn running_is_none(&self, cpu: CpuId) -> bool {
        self.cpus[cpu].current.get().is_null()
    }

    fn running(&self, cpu: CpuId) -> &Thread<Stepped> {
        unsafe { &*self.cpus[cpu].current.get() }
    }

    /// Lets `thread` run on the CPUs of `to` alone.
    pub fn restrict(&self, thread: &ThreadRef<Stepped>, to: &CpuMask) {
        self.on(0, || assert!(self.scheduler().set_affinity(thread, to)));
    }

    /// Wakes a thread that sleeps.
    pub fn wake(&self, thread: &ThreadRef<Stepped>) {
        self.wake_by(thread, Scheduler::unpark);
    }

    /// Wakes it only to end.
    pub fn wake_to_end(&self, thread: &ThreadRef<Stepped>) {
        self.wake_by(thread, Scheduler::unpark_to_end);
    }

    fn wake_by(&self, thread: &ThreadRef<Stepped>, unpark: impl FnOnce(&Scheduler<Stepped>, &Thread<Stepped>)) {
        thread.payload().woken.set(Some(self.now.get()));
        thread.payload().asleep.set(false);
        self.on(thread.home(), || unpark(self.scheduler(), thread));
    }

    /// Charges the thread that had `cpu` until now, and begins to count for the thread that has it.
    fn count(&self, cpu: CpuId) {
        let here = &self.cpus[cpu];
        let now = self.now.get();
        if let Some(before) = unsafe { here.counted.get().as_ref() } {
            let told = before.payload();
            let ran = now - told.since.get();
            told.ran.set(told.ran.get() + ran);
            told.left.set(told.left.get().saturating_sub(ran));
            told.since.set(now);
            let taken = here.current.get() != here.counted.get() && !told.asleep.get();
            told.taken.set(taken.then_some(now));
        }
        let next = here.current.get();
        let switched = here.counted.replace(next) != next;
        if let Some(next) = unsafe { next.as_ref() } {
            let told = next.payload();
            told.since.set(now);
            told.runs.set(told.runs.get() + u64::from(switched));
            told.longest.set(told.longest(now));
            told.taken.set(None);
            told.asleep.set(false);
            if let Some(woken) = told.woken.take() {
                told.latest.set(told.latest.get().max(now - woken));
            }
        }
    }

    /// Lets `ns` nanoseconds pass.
    pub fn run(&self, ns: u64) {
        let end = self.now.get() + ns;
        loop {
            let sleeps_at = |cpu: &SteppedCpu| {
                let told = unsafe { cpu.counted.get().as_ref() }.map(|t| t.payload());
                told.map_or(u64::MAX, |t| t.since.get().saturating_add(t.left.get()))
            };
            let due = |cpu: &SteppedCpu| cpu.deadline.get().min(sleeps_at(cpu));
            let (cpu, at) = self.cpus.iter().map(due).enumerate().min_by_key(|(_, at)| *at).unwrap();
            let wake = self.wakes.borrow().peek().map_or(u64::MAX, |Reverse((at, _))| *at);
            let next = at.min(wake).max(self.now.get());
            if next >= end {
                self.now.set(end);
                (0..self.cpus.len()).for_each(|cpu| self.count(cpu));
                return;
            }
            self.now.set(next);
            if wake <= at {
                let Some(Reverse((_, number))) = self.wakes.borrow_mut().pop() else { return };
                let thread = self.threads.borrow()[number].clone();
                self.wake(&thread);
            } else if self.cpus[cpu].deadline.get() <= next {
                self.cpus[cpu].deadline.set(u64::MAX);
                self.on(cpu, || self.scheduler().timer_interrupt());
            } else {
                self.count(cpu);
                let thread = self.running(cpu);
                let (after, sleep) = match thread.payload().does.get() {
                    Does::Sleeps { after, sleep } => (after, sleep),
                    Does::Timed { after, sleep } => {
                        thread.payload().left.set(after);
                        thread.payload().asleep.set(true);
                        // The token of its last wake-up comes first.
                        self.on(cpu, || {
                            self.scheduler().park(Some(next + sleep));
                            self.scheduler().park(Some(next + sleep));
                        });
                        continue;
                    }
                    Does::Once { sleep, then, period, .. } => {
                        thread.payload().does.set(Does::Sleeps { after: then, sleep: period });
                        (then, sleep)
                    }
                    Does::Idles | Does::Runs => panic!("it runs for ever"),
                };
                thread.payload().left.set(after);
                thread.payload().asleep.set(true);
                self.wakes.borrow_mut().push(Reverse((next + sleep, thread.payload().number)));
                // The token of its last wake-up comes first.
                self.on(cpu, || {
                    self.scheduler().park(None);
                    self.scheduler().park(None);
                });
            }
        }
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
        self.arms.set(self.arms.get() + 1);
        self.here().deadline.set(deadline.unwrap_or(u64::MAX));
    }
    fn kick(&self, cpu: CpuId) {
        self.kicks.set(self.kicks.get() + 1);
        self.cpus[cpu].kicked.set(true);
    }
    fn halt(&self) {
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
        self.here().pending.set(pending);
    }
    unsafe fn switch(&self, _prev: &Thread<Self>, _next: &Thread<Self>) {
        resume_unwind(Box::new(Switched));
    }
    fn reap(&self, _thread: ThreadRef<Self>) {}
}
