//! Models of parking and of the futex table, on the production scheduler: `RUSTFLAGS="--cfg loom" cargo test --release -p
//! quire-task --test model`, and the same with `shuttle`.
//!
//! Two CPUs, a thread of the checker each. CPU 0 runs the thread A, which goes to sleep; CPU 1 is idle, and its first
//! interrupt wakes A. A switch away from A calls, in place of another stack, the idle loop of its CPU, which returns once
//! it has switched back to A.
#![cfg(any(loom, shuttle))]
#![allow(clippy::undocumented_unsafe_blocks)] // all memory is the model's own

use quire_sync::CpuId;
use quire_sync::atomic::{AtomicBool, AtomicU32, Ordering};
use quire_sync::explore::{Arc, model, refute, thread};
use quire_sync::hooks::threads::set_cpu;
use quire_task::futex::{ANY, FutexTable};
use quire_task::{FutexWait, Irq, Machine, Scheduler, Thread, ThreadRef, mutant};
use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicPtr, Ordering::SeqCst};

const A: u32 = 2;

/// What the first halt of CPU 1 does: the interrupt.
type Interrupt = Box<dyn FnOnce(&Scheduler<Model>, &Thread<Model>) + Send>;

struct Model {
    /// Bookkeeping of the model in plain memory: each is used by one CPU.
    current: [AtomicPtr<Thread<Model>>; 2],
    scheduler: AtomicPtr<Scheduler<Model>>,
    a: AtomicPtr<Thread<Model>>,
    interrupt: std::sync::Mutex<Option<Interrupt>>,
    kicked: [AtomicBool; 2],
    /// A is off its CPU: its context is complete.
    saved: AtomicBool,
    /// CPU 1 has taken A over.
    taken: AtomicBool,
    /// CPU 1 will do nothing more.
    over: AtomicBool,
    /// The innermost idle loop on CPU 0 has switched back to A.
    resumed: AtomicBool,
}

impl Model {
    fn s(&self) -> &Scheduler<Model> {
        unsafe { &*self.scheduler.load(SeqCst) }
    }
}

unsafe impl Machine for Model {
    type Context = ();
    type Payload = u32;
    fn now(&self) -> u64 {
        1
    }
    fn arm(&self, _deadline: Option<u64>) {}
    fn kick(&self, cpu: CpuId) {
        // A read-modify-write: loom lets a plain store fall between two swaps of the halted CPU without either seeing it.
        self.kicked[cpu].swap(true, Ordering::AcqRel);
    }
    fn halt(&self) {
        let cpu = quire_sync::current_cpu();
        if cpu == 1 {
            let interrupt = self.interrupt.lock().unwrap().take();
            if let Some(f) = interrupt {
                f(self.s(), unsafe { &*self.a.load(SeqCst) });
            }
            return;
        }
        loop {
            let over = self.over.load(Ordering::Acquire);
            if self.kicked[0].swap(false, Ordering::AcqRel) {
                return;
            }
            if self.taken.load(Ordering::Acquire) {
                set_cpu(1);
                self.resumed.store(true, Ordering::Relaxed);
                return;
            }
            assert!(!over, "a wake-up was lost");
            thread::yield_now();
        }
    }
    fn mask(&self) -> Irq {
        Irq::On
    }
    fn restore(&self, _was: Irq) {}
    fn current(&self) -> *const Thread<Self> {
        self.current[quire_sync::current_cpu()].load(SeqCst)
    }
    unsafe fn set_current(&self, thread: *const Thread<Self>) {
        self.current[quire_sync::current_cpu()].store(thread.cast_mut(), SeqCst);
    }
    fn set_pending(&self, _pending: bool) {}
    unsafe fn switch(&self, prev: &Thread<Self>, next: &Thread<Self>) {
        if *prev.payload() == A {
            self.saved.store(true, Ordering::Relaxed);
            self.s().started();
            while !self.resumed.swap(false, Ordering::Relaxed) {
                self.s().idle_once();
            }
            return;
        }
        assert_eq!(*next.payload(), A);
        // Relaxed on both sides: the scheduler itself must order "saved" before the next run.
        assert!(self.saved.swap(false, Ordering::Relaxed), "a thread runs on two CPUs");
        if quire_sync::current_cpu() == 1 {
            self.taken.store(true, Ordering::Release);
        } else {
            self.resumed.store(true, Ordering::Relaxed);
        }
    }
    fn reap(&self, _thread: ThreadRef<Self>) {}
}

fn with_memory<R>(bytes: usize, f: impl FnOnce(NonNull<u8>) -> R) -> R {
    let layout = Layout::from_size_align(bytes, 128).unwrap();
    let memory = NonNull::new(unsafe { alloc_zeroed(layout) }).unwrap();
    let out = f(memory);
    unsafe { dealloc(memory.as_ptr(), layout) };
    out
}

fn thread_of(kind: u32) -> Thread<Model> {
    unsafe fn release(_: NonNull<Thread<Model>>) {}
    Thread::new((), kind, release)
}

/// CPU 0 runs `body` as thread A, CPU 1 is idle and `interrupt` comes in.
fn two_cpus(
    body: impl FnOnce(&Scheduler<Model>),
    interrupt: impl FnOnce(&Scheduler<Model>, &Thread<Model>) + Send + 'static,
) {
    let machine = Model {
        current: [const { AtomicPtr::new(ptr::null_mut()) }; 2],
        scheduler: AtomicPtr::new(ptr::null_mut()),
        a: AtomicPtr::new(ptr::null_mut()),
        interrupt: std::sync::Mutex::new(Some(Box::new(interrupt))),
        kicked: [AtomicBool::new(false), AtomicBool::new(false)],
        saved: AtomicBool::new(true),
        taken: AtomicBool::new(false),
        over: AtomicBool::new(false),
        resumed: AtomicBool::new(false),
    };
    // SAFETY (all of these): the references end with this function, which joins the other thread first.
    let machine: &'static Model = unsafe { &*ptr::from_ref(&machine) };
    with_memory(Scheduler::<Model>::bytes(2), |memory| {
        let s = unsafe { Scheduler::new(machine, memory, 2) };
        let s: &'static Scheduler<Model> = unsafe { &*ptr::from_ref(&s) };
        machine.scheduler.store(ptr::from_ref(s).cast_mut(), SeqCst);
        let threads = [thread_of(0), thread_of(1), thread_of(A)];
        let threads: &'static [Thread<Model>; 3] = unsafe { &*ptr::from_ref(&threads) };
        machine.a.store(ptr::from_ref(&threads[2]).cast_mut(), SeqCst);
        set_cpu(1);
        s.start_cpu(threads[1].to_ref());
        set_cpu(0);
        s.start_cpu(threads[0].to_ref());
        s.spawn_on(threads[2].to_ref(), 0);
        s.idle_once();
        s.started();
        machine.resumed.store(false, SeqCst);
        let other = thread::spawn(move || {
            set_cpu(1);
            // The interrupt, and what it may have brought.
            s.idle_once();
            s.idle_once();
            machine.over.store(true, Ordering::Release);
        });
        body(s);
        other.join().unwrap();
    });
}

fn park_and_unpark() {
    let flag = Arc::new(AtomicU32::new(0));
    let seen = flag.clone();
    two_cpus(
        |s| {
            while flag.load(Ordering::Relaxed) == 0 {
                s.park(None);
            }
        },
        move |s, a| {
            seen.store(1, Ordering::Relaxed);
            s.unpark(a);
        },
    );
}

fn futex_wait_and_wake() {
    with_memory(FutexTable::<Model>::bytes(1), |memory| {
        let table = unsafe { FutexTable::<Model>::new(memory, 1) };
        let table: &'static FutexTable<Model> = unsafe { &*ptr::from_ref(&table) };
        let word = Arc::new(AtomicU32::new(0));
        let changed = word.clone();
        two_cpus(
            |s| {
                let mut same = || Ok::<_, ()>(word.load(Ordering::Relaxed) == 0);
                let out = table.wait(s, (1, 2), ANY, None, &mut same, &mut || false);
                assert!(matches!(out, Ok(FutexWait::Woken | FutexWait::Differs)));
            },
            move |s, _| {
                changed.store(1, Ordering::Relaxed);
                table.wake(s, (1, 2), 1, ANY);
            },
        );
    });
}

fn check(which: u32, f: fn()) {
    mutant::choose(which);
    if which == 0 { model(Some(3), f) } else { refute(Some(3), f) }
}

#[test]
fn a_thread_that_parks_is_always_woken() {
    check(0, park_and_unpark);
}

#[test]
#[should_panic(expected = "lost")]
fn mutant_park_that_ignores_a_token_loses_a_wake_up() {
    check(mutant::PARK_OVER_TOKEN, park_and_unpark);
}

#[test]
#[should_panic(expected = "two CPUs")]
fn mutant_queueing_a_thread_elsewhere_before_it_has_left_runs_it_twice() {
    check(mutant::PLACE_BEFORE_LEFT, park_and_unpark);
}

#[test]
fn a_futex_waiter_is_always_woken() {
    check(0, futex_wait_and_wake);
}

#[test]
#[should_panic(expected = "lost")]
fn mutant_comparing_the_word_before_being_counted_loses_a_wake_up() {
    check(mutant::CHECK_BEFORE_COUNT, futex_wait_and_wake);
}
