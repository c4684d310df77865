//! Two CPUs, a thread of the checker each. CPU 0 runs the thread A. CPU 1 is idle; its first interrupt, when it halts,
//! does what the model says. There may be a thread B too.
//!
//! There is one stack a CPU. A switch away from A calls the next work of that CPU (B's body, the idle loop) instead of
//! changing stacks. It returns once a CPU has switched back to A. If both CPUs would halt for ever, the model fails: a
//! wake-up was lost.
#![allow(clippy::undocumented_unsafe_blocks)] // all memory is the model's own

use crate::{Irq, Machine, Scheduler, Thread, ThreadRef};
use quire_sync::CpuId;
use quire_sync::atomic::{AtomicBool, Ordering};
use quire_sync::explore::thread;
use quire_sync::hooks::threads::set_cpu;
use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ptr::{self, NonNull};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool as Plain, AtomicPtr, Ordering::SeqCst};

/// What a thread does, or an interrupt.
type Doing = Box<dyn FnOnce(&'static Model, &'static Scheduler<Model>) + Send>;

const CPUS: usize = 2;
/// Of the threads, after the idle ones.
pub(super) const A: usize = 2;
pub(super) const B: usize = 3;
/// The machine's time, in nanoseconds.
pub(super) const NOW: u64 = 1 << 20;

/// The machine. Its plain fields are bookkeeping of the model, each used by one CPU at a time.
pub(super) struct Model {
    current: [AtomicPtr<Thread<Model>>; CPUS],
    scheduler: AtomicPtr<Scheduler<Model>>,
    threads: AtomicPtr<[Thread<Model>; 4]>,
    interrupts: [Mutex<Option<Doing>>; CPUS],
    b: Mutex<Option<Doing>>,
    kicked: [AtomicBool; CPUS],
    /// CPU 1 halts.
    halted: AtomicBool,
    /// A is off its CPU: its context is complete. Relaxed throughout, because the scheduler must order it.
    saved: AtomicBool,
    /// The CPU that runs the innermost loop has switched to A.
    resumed: [Plain; CPUS],
    /// CPU 1 has taken A over, and is A's from now on.
    taken: AtomicBool,
    /// A has nothing more to do.
    ended: AtomicBool,
}

/// Whether the flag is up now. Read-modify-writes throughout: loom lets a load see an old value for ever, and lets a
/// plain store fall between two swaps that both miss it.
fn is_up(flag: &AtomicBool) -> bool {
    flag.fetch_or(false, Ordering::AcqRel)
}

impl Model {
    fn scheduler(&self) -> &'static Scheduler<Model> {
        unsafe { &*self.scheduler.load(SeqCst) }
    }

    /// The thread of that number.
    pub(super) fn thread(&self, n: usize) -> &'static Thread<Model> {
        unsafe { &(&*self.threads.load(SeqCst))[n] }
    }

    /// Whether CPU 1 halts and no kick is pending. In this order, because CPU 1 leaves its halt first, then takes the
    /// kick.
    fn is_quiet(&self) -> bool {
        !is_up(&self.kicked[1]) && is_up(&self.halted)
    }

    /// A spins until `done`, which is up to CPU 1.
    pub(super) fn wait_busily(&self, done: impl Fn() -> bool) {
        loop {
            let quiet = self.is_quiet();
            if done() {
                return;
            }
            assert!(!quiet, "a wake-up was lost");
            thread::yield_now();
        }
    }

    fn halt_0(&self) {
        loop {
            let quiet = self.is_quiet();
            if self.kicked[0].swap(false, Ordering::AcqRel) {
                return;
            }
            if is_up(&self.taken) {
                set_cpu(1);
                self.resumed[1].store(true, SeqCst);
                return;
            }
            assert!(!quiet, "a wake-up was lost");
            thread::yield_now();
        }
    }

    fn halt_1(&self) {
        self.halted.swap(true, Ordering::AcqRel);
        while !is_up(&self.kicked[1]) && !is_up(&self.ended) {
            thread::yield_now();
        }
        self.halted.swap(false, Ordering::AcqRel);
        self.kicked[1].swap(false, Ordering::AcqRel);
    }
}

unsafe impl Machine for Model {
    type Context = ();
    type Payload = usize;
    fn now(&self) -> u64 {
        NOW
    }
    fn arm(&self, _deadline: Option<u64>) {}
    fn kick(&self, cpu: CpuId) {
        self.kicked[cpu].swap(true, Ordering::AcqRel);
    }
    fn halt(&self) {
        let cpu = quire_sync::current_cpu();
        let interrupt = self.interrupts[cpu].lock().unwrap().take();
        match interrupt {
            Some(interrupt) => interrupt(unsafe { &*ptr::from_ref(self) }, self.scheduler()),
            None if cpu == 0 => self.halt_0(),
            None => self.halt_1(),
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
        let s = self.scheduler();
        let leaves = *prev.payload() == A;
        if leaves {
            self.saved.store(true, Ordering::Relaxed);
        }
        match *next.payload() {
            A => {
                // A load, which may be of an old value where nothing orders it, unlike a read-modify-write's.
                assert!(self.saved.load(Ordering::Relaxed), "a thread runs on two CPUs");
                self.saved.store(false, Ordering::Relaxed);
                self.resumed[quire_sync::current_cpu()].store(true, SeqCst);
                return;
            }
            B => {
                s.started();
                let body = self.b.lock().unwrap().take();
                if let Some(body) = body {
                    body(unsafe { &*ptr::from_ref(self) }, s);
                }
                // The thread has nothing more to do; its CPU runs the next work.
                s.park(None);
            }
            _ if leaves => s.started(),
            _ => {}
        }
        while leaves && !self.resumed[quire_sync::current_cpu()].swap(false, SeqCst) {
            s.idle_once();
        }
    }
    fn reap(&self, _thread: ThreadRef<Self>) {}
}

/// `f` with memory of its own, as the scheduler and the tables want it.
pub(super) fn with_memory<R>(bytes: usize, f: impl FnOnce(NonNull<u8>) -> R) -> R {
    let layout = Layout::from_size_align(bytes, 128).unwrap();
    let memory = NonNull::new(unsafe { alloc_zeroed(layout) }).unwrap();
    let out = f(memory);
    unsafe { dealloc(memory.as_ptr(), layout) };
    out
}

/// The threads and interrupts of a model.
pub(super) struct Cast {
    interrupts: [Option<Doing>; CPUS],
    b: Option<Doing>,
    release: unsafe fn(NonNull<Thread<Model>>),
}

impl Cast {
    /// Nothing but A.
    pub(super) fn new() -> Cast {
        unsafe fn release(_: NonNull<Thread<Model>>) {}
        Cast { interrupts: [None, None], b: None, release }
    }

    /// Calls `f` as an interrupt when CPU `cpu` first halts.
    pub(super) fn interrupt(
        mut self,
        cpu: CpuId,
        f: impl FnOnce(&'static Model, &'static Scheduler<Model>) + Send + 'static,
    ) -> Cast {
        self.interrupts[cpu] = Some(Box::new(f));
        self
    }

    /// Adds a thread B, which the model [makes runnable](make_b).
    pub(super) fn b(mut self, f: impl FnOnce(&'static Model, &'static Scheduler<Model>) + Send + 'static) -> Cast {
        self.b = Some(Box::new(f));
        self
    }

    /// `f` is called where a thread's last reference is dropped.
    pub(super) fn release(mut self, f: unsafe fn(NonNull<Thread<Model>>)) -> Cast {
        self.release = f;
        self
    }

    /// A machine on which nothing runs; `f` decides which thread acts as which CPU.
    pub(super) fn machine<R>(self, f: impl FnOnce(&'static Model, &'static Scheduler<Model>) -> R) -> R {
        let machine = Model {
            current: [const { AtomicPtr::new(ptr::null_mut()) }; CPUS],
            scheduler: AtomicPtr::new(ptr::null_mut()),
            threads: AtomicPtr::new(ptr::null_mut()),
            interrupts: self.interrupts.map(Mutex::new),
            b: Mutex::new(self.b),
            kicked: [AtomicBool::new(false), AtomicBool::new(false)],
            halted: AtomicBool::new(false),
            saved: AtomicBool::new(true),
            resumed: [const { Plain::new(false) }; CPUS],
            taken: AtomicBool::new(false),
            ended: AtomicBool::new(false),
        };
        // SAFETY (of these): the references end with this function, whose `f` joins all threads.
        let machine: &'static Model = unsafe { &*ptr::from_ref(&machine) };
        with_memory(Scheduler::<Model>::bytes(CPUS), |memory| {
            let scheduler = unsafe { Scheduler::new(machine, memory, CPUS) };
            machine.scheduler.store(ptr::from_ref(&scheduler).cast_mut(), SeqCst);
            let threads: [Thread<Model>; 4] = std::array::from_fn(|n| Thread::new((), n, self.release));
            machine.threads.store(ptr::from_ref(&threads).cast_mut(), SeqCst);
            for cpu in (0..CPUS).rev() {
                set_cpu(cpu);
                machine.scheduler().start_cpu(machine.thread(cpu).to_ref());
            }
            f(machine, machine.scheduler())
        })
    }

    /// CPU 0 runs `body` as thread A, beside CPU 1.
    pub(super) fn run(self, body: impl FnOnce(&'static Model, &'static Scheduler<Model>)) {
        self.machine(|machine, s| {
            // The scheduler's is the only count.
            s.spawn_on(unsafe { ThreadRef::adopt(NonNull::from(machine.thread(A))) }, 0);
            s.idle_once();
            s.started();
            machine.resumed[0].store(false, SeqCst);
            let other = thread::spawn(move || {
                set_cpu(1);
                while !is_up(&machine.ended) {
                    s.idle_once();
                    if machine.resumed[1].swap(false, SeqCst) {
                        machine.taken.swap(true, Ordering::AcqRel);
                        return;
                    }
                }
            });
            body(machine, s);
            machine.ended.swap(true, Ordering::AcqRel);
            other.join().unwrap();
        });
    }
}

/// Makes B runnable on `cpu`.
pub(super) fn make_b(machine: &Model, s: &Scheduler<Model>, cpu: CpuId) {
    s.spawn_on(machine.thread(B).to_ref(), cpu);
}
