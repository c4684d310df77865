//! Threads with bodies. Each has an OS thread as its stack. The OS thread runs from the moment at which the machine
//! hands it the CPU, until it requests time or leaves the CPU.

use super::{Does, MOST_STEPS, POLL, Scripted, Stepped, Switched};
use quire_sync::CpuId;
use quire_sync::hooks::threads::set_cpu;
use quire_task::{Thread, ThreadRef};
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};

std::thread_local! {
    static IS_BODY: Cell<bool> = const { Cell::new(false) };
}

/// Whether the caller runs on the stack of a thread with a body.
pub fn is_body() -> bool {
    IS_BODY.get()
}

/// Why a body has returned control to the machine.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Left {
    /// The body requests time, and keeps its CPU.
    ForTime,
    /// The scheduler has given its CPU to another thread.
    Cpu,
    /// The body has panicked.
    Failed(String),
}

enum Turn {
    Machine(Left),
    Body(CpuId),
}

struct Baton {
    turn: Mutex<Turn>,
    changed: Condvar,
}

impl Baton {
    fn hand(&self, turn: Turn) {
        *self.turn.lock().unwrap() = turn;
        self.changed.notify_all();
    }

    /// Waits until the machine has handed the CPU over, and becomes that CPU.
    fn wait(&self) {
        let waits = |turn: &mut Turn| matches!(turn, Turn::Machine(_));
        let turn = self.changed.wait_while(self.turn.lock().unwrap(), waits).unwrap();
        if let Turn::Body(cpu) = *turn {
            set_cpu(cpu);
        }
    }

    /// Runs the body as `cpu` until it returns control to the machine.
    fn run(&self, cpu: CpuId) -> Left {
        self.hand(Turn::Body(cpu));
        let waits = |turn: &mut Turn| matches!(turn, Turn::Body(_));
        let turn = self.changed.wait_while(self.turn.lock().unwrap(), waits).unwrap();
        match &*turn {
            Turn::Machine(left) => left.clone(),
            Turn::Body(_) => unreachable!("the body has the CPU"),
        }
    }

    fn pause(&self, left: Left) {
        self.hand(Turn::Machine(left));
        self.wait();
    }
}

pub struct Stack {
    baton: Arc<Baton>,
    freed: Arc<AtomicUsize>,
}

impl Drop for Stack {
    fn drop(&mut self) {
        self.freed.fetch_add(1, Ordering::SeqCst);
    }
}

impl Stack {
    /// Leaves the CPU, which the scheduler has given to another thread. `me` is the caller. Returns when the caller has
    /// a CPU again.
    pub fn switch(&self, me: &Scripted) {
        if me.exits.get() {
            resume_unwind(Box::new(Switched));
        }
        me.inside.set(true);
        self.baton.pause(Left::Cpu);
    }
}

impl Stepped {
    /// Starts a thread of the kernel with a body. It starts on `cpu` if that is `Some`. Otherwise the scheduler or the
    /// order of starts determines its CPU.
    pub fn start_at(
        &'static self,
        cpu: Option<CpuId>,
        name: &str,
        body: impl FnOnce() + Send + 'static,
    ) -> ThreadRef<Stepped> {
        unsafe fn release(thread: NonNull<Thread<Stepped>>) {
            drop(unsafe { Box::from_raw(thread.as_ptr()) });
        }
        let baton = Arc::new(Baton { turn: Mutex::new(Turn::Machine(Left::Cpu)), changed: Condvar::new() });
        let stack = Stack { baton: baton.clone(), freed: self.freed.clone() };
        let script = self.scripted(Does::Body, u64::MAX, Some(stack));
        let thread = Box::leak(Box::new(Thread::new((), script, release)));
        let thread = unsafe { ThreadRef::adopt(NonNull::from(thread)) };
        std::thread::Builder::new()
            .name(name.to_string())
            .stack_size(256 << 10)
            .spawn(move || self.begin(&baton, body))
            .unwrap();
        self.started.set(self.started.get() + 1);
        let (s, new) = (self.scheduler(), thread.clone());
        match cpu {
            Some(cpu) if is_body() => s.spawn_on(new, cpu),
            None if is_body() => s.spawn(new),
            _ => {
                let cpu = cpu.unwrap_or(self.started.get() % self.cpus.len());
                self.on(cpu, || s.spawn_on(new, cpu));
            }
        }
        thread
    }

    pub fn start(&'static self, name: &str, body: impl FnOnce() + Send + 'static) -> ThreadRef<Stepped> {
        self.start_at(None, name, body)
    }

    /// The main function of the OS thread of a body.
    fn begin(&'static self, baton: &Baton, body: impl FnOnce()) {
        IS_BODY.set(true);
        baton.wait();
        let s = self.scheduler();
        s.started();
        let me = s.current().to_ref();
        // The body begins with a poll, so that its creator can store the new thread first.
        let done = catch_unwind(AssertUnwindSafe(|| {
            self.poll();
            body();
        }));
        if let Err(panic) = done {
            let text = panic.downcast_ref::<String>().cloned();
            let text = text.or(panic.downcast_ref::<&str>().map(|s| s.to_string())).unwrap_or_default();
            return baton.hand(Turn::Machine(Left::Failed(text)));
        }
        me.payload().exits.set(true);
        let _gone = catch_unwind(AssertUnwindSafe(|| s.exit()));
        me.payload().ended.set(true);
        drop(me);
        baton.hand(Turn::Machine(Left::Cpu));
    }

    /// Executes for `ns` nanoseconds. Interrupts are delivered if they are unmasked, and the thread may be preempted.
    /// Called by bodies.
    pub fn spin(&self, ns: u64) {
        assert!(is_body(), "only a thread with a body executes");
        let me = self.scheduler().current();
        me.payload().left.set(ns);
        let baton = me.payload().stack.as_ref().map(|stack| stack.baton.clone());
        baton.unwrap().pause(Left::ForTime);
    }

    /// Executes for a short time. Called by bodies.
    pub fn poll(&self) {
        self.spin(1 + self.chance(2 * POLL, POLL - 1));
    }

    /// Yields to other threads until `done` returns true. Called by bodies.
    pub fn until(&self, done: impl Fn() -> bool) {
        while !done() {
            self.poll();
            self.scheduler().yield_now();
        }
    }

    /// Forbids or allows the preemption of the running thread. Called by bodies.
    pub fn keep_cpu(&self, keeps: bool) {
        self.here().unpreemptible.set(keeps);
    }

    /// Continues the body on `cpu` until it requests time or leaves the CPU.
    pub(super) fn resume(&self, cpu: CpuId) -> Left {
        let baton = self.running(cpu).payload().stack.as_ref().map(|stack| stack.baton.clone());
        match baton.unwrap().run(cpu) {
            Left::Failed(text) => panic!("with seed {}, in a thread: {text}", self.seed),
            left => left,
        }
    }

    pub(super) fn go_on(&self, cpu: CpuId) {
        self.on(cpu, || {
            if self.resume(cpu) == Left::Cpu {
                resume_unwind(Box::new(Switched));
            }
        });
    }

    /// Lets time pass until every thread with a body has ended and was reaped.
    ///
    /// # Panics
    /// If no event is left although some threads have not ended.
    pub fn finish(&self) {
        let mut steps = 0;
        while self.reaped.get() < self.started.get() {
            let (seed, left) = (self.seed, self.started.get() - self.reaped.get());
            assert!(self.event(u64::MAX), "with seed {seed}, {left} threads hang: a wake-up was lost");
            steps += 1;
            assert!(steps < MOST_STEPS, "with seed {seed}, {left} threads do not end");
        }
    }

    /// The number of threads with bodies that were reaped, and the number of these threads whose memory was freed.
    pub fn reaped(&self) -> [usize; 2] {
        [self.reaped.get(), self.freed.load(Ordering::SeqCst)]
    }
}
