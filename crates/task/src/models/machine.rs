//! The machine of the models. It has two CPUs, each of which is a thread of the model checker. CPU 0 runs the thread A.
//! CPU 1 is idle. When CPU 1 first halts, it gets an interrupt, whose handler the model provides. There may be a thread
//! B too.
//!
//! Each CPU has one stack. A switch away from A calls the next work of that CPU (B's body, the idle loop) instead of
//! changing stacks. It returns after a CPU has switched back to A. If both CPUs would halt for ever, a wake-up was
//! lost, and the model fails.
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

/// The body of a thread, or the handler of an interrupt.
type Doing = Box<dyn FnOnce(&'static Model, &'static Scheduler<Model>) + Send>;

const CPUS: usize = 2;
/// The numbers of the threads A and B; the idle threads have the numbers 0 and 1.
pub(super) const A: usize = 2;
pub(super) const B: usize = 3;
/// The machine's time, in nanoseconds.
pub(super) const NOW: u64 = 1 << 20;

/// The machine. Its fields of type `Plain` are the model's bookkeeping, and are used by one CPU at a time.
pub(super) struct Model {
    current: [AtomicPtr<Thread<Model>>; CPUS],
    scheduler: AtomicPtr<Scheduler<Model>>,
    threads: AtomicPtr<[Thread<Model>; 4]>,
    interrupts: [Mutex<Option<Doing>>; CPUS],
    b: Mutex<Option<Doing>>,
    kicked: [AtomicBool; CPUS],
    /// CPU 1 is halted.
    halted: AtomicBool,
    /// Thread A has left its CPU, so its context is complete. All accesses are relaxed, because the scheduler itself
    /// must order them.
    saved: AtomicBool,
    /// The CPU that runs the innermost loop has switched to A.
    resumed: [Plain; CPUS],
    /// CPU 1 has taken thread A, and runs it from now on.
    taken: AtomicBool,
    /// Thread A has finished its body.
    ended: AtomicBool,
}

/// Whether the flag is set now. All accesses of flags are read-modify-writes. In loom a load may see an old value for
/// ever, and two swaps may both miss a plain store between them.
fn is_up(flag: &AtomicBool) -> bool {
    flag.fetch_or(false, Ordering::AcqRel)
}

impl Model {
    fn scheduler(&self) -> &'static Scheduler<Model> {
        unsafe { &*self.scheduler.load(SeqCst) }
    }

    /// The thread with the number `n`.
    pub(super) fn thread(&self, n: usize) -> &'static Thread<Model> {
        unsafe { &(&*self.threads.load(SeqCst))[n] }
    }

    /// Whether CPU 1 is halted and no kick is pending. The kick is read first, because CPU 1 first leaves its halt and
    /// then clears the kick.
    fn is_quiet(&self) -> bool {
        !is_up(&self.kicked[1]) && is_up(&self.halted)
    }

    /// Spins as thread A until `done` returns true, which depends on CPU 1.
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
                // This must be a load: without an ordering by the scheduler it may return an old value. A
                // read-modify-write would not.
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
                // The thread has finished its body, so its CPU runs the next work.
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

/// Calls `f` with `bytes` bytes of zeroed memory, aligned to 128 as the scheduler and the tables require. Frees the
/// memory afterwards.
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
    /// A cast of thread A alone, without interrupts.
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

    /// Sets the function that is called when a thread's last reference is dropped.
    pub(super) fn release(mut self, f: unsafe fn(NonNull<Thread<Model>>)) -> Cast {
        self.release = f;
        self
    }

    /// Calls `f` with a machine on which no thread runs. `f` decides which thread of the checker acts as which CPU.
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
        // SAFETY (of all `unsafe` below): the references are used until this function returns, and `f` joins all
        // threads before.
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
            // The scheduler gets the only reference to A.
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
