//! A simulated machine in a process, whose CPUs run in parallel. Every thread of the scheduler is an OS thread, which
//! runs only while a simulated CPU has given it its [`Baton`]. Interrupts (kicks, the timer) are delivered where they
//! are unmasked. Preemption happens in [`Sim::poll`], which thread bodies call in place of executing instructions.
//!
//! The machine's clock counts polls, and jumps to the deadline of a CPU that halts. So no result depends on the host's
//! time. The host determines which threads run at the same moment, so the tests check only facts that hold in any
//! order.

use quire_sync::CpuId;
use quire_sync::hooks::threads::set_cpu;
use quire_task::{Irq, Machine, Scheduler, Thread, ThreadRef};
use std::alloc::{Layout, alloc_zeroed};
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Condvar, Mutex, OnceLock};

std::thread_local! {
    static MASKED: Cell<bool> = const { Cell::new(true) };
}

/// The time of a poll on the machine's clock, in nanoseconds.
const POLL: u64 = 500;

/// Whether an OS thread runs, waits for a CPU, or was given a CPU.
#[derive(PartialEq, Debug)]
enum State {
    Running,
    Waiting,
    Given(CpuId),
}

pub struct Baton(Mutex<State>, Condvar);

impl Baton {
    fn new() -> Arc<Self> {
        Arc::new(Baton(Mutex::new(State::Waiting), Condvar::new()))
    }
    fn give(&self, cpu: CpuId) {
        let mut state = self.0.lock().unwrap();
        assert_eq!(*state, State::Waiting, "a thread is given to CPU {cpu} before it has left another");
        *state = State::Given(cpu);
        self.1.notify_one();
    }
    fn leave(&self) {
        *self.0.lock().unwrap() = State::Waiting;
    }
    fn wait(&self) {
        let mut state = self.0.lock().unwrap();
        loop {
            if let State::Given(cpu) = *state {
                *state = State::Running;
                set_cpu(cpu);
                return;
            }
            state = self.1.wait(state).unwrap();
        }
    }
}

pub struct Payload {
    exiting: AtomicBool,
}

struct SimCpu {
    current: AtomicPtr<Thread<Sim>>,
    pending: AtomicBool,
    kicked: AtomicBool,
    deadline: AtomicU64,
    halted: Mutex<()>,
    wake: Condvar,
}

pub struct Sim {
    cpus: Vec<SimCpu>,
    clock: AtomicU64,
    scheduler: OnceLock<&'static Scheduler<Sim>>,
    spawned: AtomicUsize,
    reaped: AtomicUsize,
    stop: AtomicBool,
    failed: Mutex<Option<String>>,
    /// Signalled when a thread was reaped or has failed.
    ended: Condvar,
}

/// The panic payload that unwinds an OS thread whose scheduler thread has exited.
struct Gone;

impl Sim {
    /// A machine of `cpus` CPUs, each of which runs its idle thread.
    pub fn new(cpus: usize) -> &'static Sim {
        let cpu = || SimCpu {
            current: AtomicPtr::new(ptr::null_mut()),
            pending: AtomicBool::new(false),
            kicked: AtomicBool::new(false),
            deadline: AtomicU64::new(u64::MAX),
            halted: Mutex::new(()),
            wake: Condvar::new(),
        };
        let sim: &'static Sim = Box::leak(Box::new(Sim {
            cpus: (0..cpus + 1).map(|_| cpu()).collect(),
            clock: AtomicU64::new(1 << 30),
            scheduler: OnceLock::new(),
            spawned: AtomicUsize::new(0),
            reaped: AtomicUsize::new(0),
            stop: AtomicBool::new(false),
            failed: Mutex::new(None),
            ended: Condvar::new(),
        }));
        // The test's own OS thread is not a CPU. It gets the number of one more CPU, on which no thread ever runs.
        let memory = memory(Scheduler::<Sim>::bytes(cpus + 1));
        let scheduler: &'static Scheduler<Sim> = Box::leak(Box::new(unsafe { Scheduler::new(sim, memory, cpus + 1) }));
        set_cpu(cpus);
        let _ = sim.scheduler.set(scheduler);
        let ready = Arc::new(std::sync::Barrier::new(cpus + 1));
        for cpu in 0..cpus {
            let ready = ready.clone();
            std::thread::spawn(move || {
                set_cpu(cpu);
                let baton = Baton::new();
                *baton.0.lock().unwrap() = State::Running;
                scheduler.start_cpu(sim.thread(baton));
                ready.wait();
                sim.restore(Irq::On);
                while !sim.stop.load(SeqCst) {
                    scheduler.idle_once();
                }
            });
        }
        ready.wait();
        sim
    }

    pub fn scheduler(&self) -> &'static Scheduler<Sim> {
        self.scheduler.get().unwrap()
    }

    fn thread(&self, baton: Arc<Baton>) -> ThreadRef<Sim> {
        unsafe fn release(thread: NonNull<Thread<Sim>>) {
            drop(unsafe { Box::from_raw(thread.as_ptr()) });
        }
        let payload = Payload { exiting: AtomicBool::new(false) };
        let thread = Box::leak(Box::new(Thread::new(baton, payload, release)));
        unsafe { ThreadRef::adopt(NonNull::from(thread)) }
    }

    /// Starts a thread, on `cpu` if it is `Some`.
    pub fn spawn_at(
        &'static self,
        cpu: Option<CpuId>,
        name: &str,
        body: impl FnOnce() + Send + 'static,
    ) -> ThreadRef<Sim> {
        let baton = Baton::new();
        let thread = self.thread(baton.clone());
        self.spawned.fetch_add(1, SeqCst);
        let s = self.scheduler();
        std::thread::Builder::new()
            .name(name.to_string())
            .stack_size(256 << 10)
            .spawn(move || {
                baton.wait();
                MASKED.set(true);
                s.started();
                if let Err(panic) = catch_unwind(AssertUnwindSafe(body)) {
                    let text = panic.downcast_ref::<String>().cloned();
                    let text = text.or(panic.downcast_ref::<&str>().map(|s| s.to_string()));
                    *self.failed.lock().unwrap() = Some(text.unwrap_or_default());
                    self.ended.notify_all();
                }
                s.current().payload().exiting.store(true, SeqCst);
                let _ = catch_unwind(AssertUnwindSafe(|| s.exit()));
            })
            .unwrap();
        let cpus = self.cpus.len() - 1;
        match cpu {
            None if quire_sync::current_cpu() == cpus => {
                self.scheduler().spawn_on(thread.clone(), self.spawned.load(SeqCst) % cpus)
            }
            None => self.scheduler().spawn(thread.clone()),
            Some(cpu) => self.scheduler().spawn_on(thread.clone(), cpu),
        }
        thread
    }

    pub fn spawn(&'static self, name: &str, body: impl FnOnce() + Send + 'static) -> ThreadRef<Sim> {
        self.spawn_at(None, name, body)
    }

    /// Stands for an instruction of a thread body: interrupts may be delivered, and the thread may be preempted.
    pub fn poll(&self) {
        assert!(!MASKED.get());
        self.clock.fetch_add(POLL, SeqCst);
        self.deliver();
        if self.here().pending.load(SeqCst) {
            // SAFETY: this machine's threads keep their stacks.
            unsafe { self.scheduler().preempt_departing() };
        }
    }

    /// Waits until every thread has exited and was reaped, and then stops the machine. Called by the test's own OS
    /// thread.
    pub fn finish(&self) {
        let mut failed = self.failed.lock().unwrap();
        while failed.is_none() && self.reaped.load(SeqCst) != self.spawned.load(SeqCst) {
            failed = self.ended.wait(failed).unwrap();
        }
        assert_eq!(*failed, None, "in a thread");
        drop(failed);
        self.stop.store(true, SeqCst);
        (0..self.cpus.len()).for_each(|cpu| self.kick(cpu));
    }

    fn here(&self) -> &SimCpu {
        &self.cpus[quire_sync::current_cpu()]
    }

    fn deliver(&self) {
        // Repeat until no interrupt is pending, because a handler may wake a thread that kicks this CPU.
        while !MASKED.get() {
            let here = self.here();
            let kicked = here.kicked.swap(false, SeqCst);
            let timer = here.deadline.load(SeqCst) <= self.now();
            if !kicked && !timer {
                return;
            }
            MASKED.set(true);
            if timer {
                here.deadline.store(u64::MAX, SeqCst);
                self.scheduler().timer_interrupt();
            }
            if kicked {
                self.scheduler().kicked();
            }
            MASKED.set(false);
        }
    }
}

pub fn memory(bytes: usize) -> NonNull<u8> {
    NonNull::new(unsafe { alloc_zeroed(Layout::from_size_align(bytes, 128).unwrap()) }).unwrap()
}

unsafe impl Machine for Sim {
    type Context = Arc<Baton>;
    type Payload = Payload;

    fn now(&self) -> u64 {
        self.clock.load(SeqCst)
    }
    fn arm(&self, deadline: Option<u64>) {
        assert!(MASKED.get());
        self.here().deadline.store(deadline.unwrap_or(u64::MAX), SeqCst);
    }
    fn kick(&self, cpu: CpuId) {
        let cpu = &self.cpus[cpu];
        cpu.kicked.store(true, SeqCst);
        let _halted = cpu.halted.lock().unwrap();
        cpu.wake.notify_all();
    }
    fn halt(&self) {
        assert!(MASKED.get());
        let here = self.here();
        {
            let mut halted = here.halted.lock().unwrap();
            while !here.kicked.load(SeqCst) && !self.stop.load(SeqCst) {
                let due = here.deadline.load(SeqCst);
                if due != u64::MAX {
                    self.clock.fetch_max(due, SeqCst);
                    break;
                }
                halted = here.wake.wait(halted).unwrap();
            }
        }
        MASKED.set(false);
        self.deliver();
    }
    fn mask(&self) -> Irq {
        if MASKED.replace(true) { Irq::Off } else { Irq::On }
    }
    fn restore(&self, was: Irq) {
        if was == Irq::On {
            MASKED.set(false);
            self.deliver();
        }
    }
    fn current(&self) -> *const Thread<Self> {
        self.here().current.load(SeqCst)
    }
    unsafe fn set_current(&self, thread: *const Thread<Self>) {
        self.here().current.store(thread.cast_mut(), SeqCst);
    }
    fn set_pending(&self, pending: bool) {
        assert!(MASKED.get());
        self.here().pending.store(pending, SeqCst);
    }
    unsafe fn switch(&self, prev: &Thread<Self>, next: &Thread<Self>) {
        assert!(MASKED.get());
        let cpu = quire_sync::current_cpu();
        // Copy the needed fields of `prev` now, because `prev` may be freed as soon as `next` runs.
        let (own, gone) = (unsafe { (*prev.context()).clone() }, prev.payload().exiting.load(SeqCst));
        own.leave();
        unsafe { (*next.context()).give(cpu) };
        if gone {
            resume_unwind(Box::new(Gone));
        }
        own.wait();
        MASKED.set(true);
    }
    fn reap(&self, thread: ThreadRef<Self>) {
        assert!(!MASKED.get());
        drop(thread);
        let _waits = self.failed.lock().unwrap();
        self.reaped.fetch_add(1, SeqCst);
        self.ended.notify_all();
    }
}
