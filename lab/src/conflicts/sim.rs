//! CPUs under the scheduler, timers, futexes and process ids of `quire-task`, played by one thread of the host.

use super::fiber::{Fiber, Pause};
use quire_sync::record::{self, as_cpu, unrecorded};
use quire_sync::{CpuId, current_cpu};
use quire_task::futex::Key;
use quire_task::ids::CHUNK_BYTES;
use quire_task::{FutexTable, IdTable, Irq, Machine, Scheduler, Thread, ThreadRef};
use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::cell::{Cell, RefCell};
use std::convert::Infallible;
use std::ops::Range;
use std::ptr::{self, NonNull};
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, OnceLock, PoisonError};

/// Numbers that there are for threads.
const IDS: u32 = 1 << 16;
/// Buckets of the futex table.
const BUCKETS: usize = 1024;
/// Turns after which a CPU that should have come to rest counts as hung.
const TURNS: usize = 64;

/// The purpose of a thread.
pub enum Role {
    /// The idle thread of a CPU.
    Idle,
    /// Runs the driver's jobs.
    Program,
    /// Is always runnable, so a CPU that loses its thread never goes idle.
    Busy,
    /// Sleeps until it is woken, again and again.
    Sleeper,
    /// Waits on its word, again and again.
    Waiter(&'static Word),
    /// Exits at once.
    Brief,
}

/// The data of the layer above the scheduler about a thread.
pub struct Payload {
    /// Its process id; 0 for a thread of the machine's own.
    pub id: Cell<u32>,
}
// SAFETY: one thread of the host plays all CPUs, so payloads are never used by two at once.
unsafe impl Send for Payload {}
// SAFETY: one thread of the host plays all CPUs, so no cell is touched by two.
unsafe impl Sync for Payload {}

/// A word of a program's memory that threads wait on.
#[repr(C, align(128))]
pub struct Word(pub AtomicU32);

struct SimCpu {
    current: AtomicPtr<Thread<Sim>>,
    masked: AtomicBool,
}

/// The machine.
pub struct Sim {
    cpus: Vec<SimCpu>,
    clock: AtomicU64,
    scheduler: OnceLock<&'static Scheduler<Sim>>,
}

/// A job for a CPU's current thread.
type Job = Box<dyn FnOnce()>;

std::thread_local! {
    static JOB: RefCell<Option<Job>> = const { RefCell::new(None) };
    /// Numbers of threads that have exited.
    static EXITED: RefCell<Vec<u32>> = const { RefCell::new(Vec::new()) };
}

/// Zeroed memory that lives on, aligned as the structures of `quire-task` require.
fn memory(bytes: usize) -> NonNull<u8> {
    let layout = Layout::from_size_align(bytes.max(1), 128).expect("sizes of tables are valid");
    // SAFETY: the layout's size is at least one byte.
    let memory = NonNull::new(unsafe { alloc_zeroed(layout) }).expect("the host gives memory");
    let at = memory.addr().get();
    GIVEN.lock().unwrap_or_else(PoisonError::into_inner).push(at..at + bytes);
    memory
}

/// Memory that was given to the structures of `quire-task`.
static GIVEN: Mutex<Vec<Range<usize>>> = Mutex::new(Vec::new());

/// Its ranges.
pub fn given() -> Vec<Range<usize>> {
    GIVEN.lock().unwrap_or_else(PoisonError::into_inner).clone()
}

/// A value on lines of its own, which live on.
pub fn alone<T>(value: T, label: &'static str) -> &'static T {
    let bytes = size_of::<T>().next_multiple_of(128);
    let place = memory(bytes).cast::<T>();
    record::own(place.as_ptr().cast(), bytes, label);
    // SAFETY: fresh, large enough, aligned to 128, and never freed.
    unsafe {
        place.write(value);
        place.as_ref()
    }
}

fn thread_layout() -> Layout {
    Layout::from_size_align(size_of::<Thread<Sim>>().next_multiple_of(128), 128).expect("a thread has a size")
}

unsafe fn release(thread: NonNull<Thread<Sim>>) {
    // SAFETY: the last reference is gone, and `make` allocated it so.
    unsafe {
        thread.drop_in_place();
        record::disown(thread.as_ptr().cast());
        dealloc(thread.as_ptr().cast(), thread_layout());
    }
}

/// A thread with `role`, which has not run yet. Its memory exists already, as in a kernel's slab.
pub fn make(role: Role, tasks: Tasks) -> ThreadRef<Sim> {
    let thread = unrecorded(|| {
        // SAFETY: a thread is not of size zero, so its layout is not.
        let place = NonNull::new(unsafe { alloc_zeroed(thread_layout()) }).expect("the host gives memory");
        record::own(place.as_ptr(), thread_layout().size(), "thread");
        place.cast::<Thread<Sim>>()
    });
    let payload = Payload { id: Cell::new(0) };
    // SAFETY: fresh memory of its size; this is the first reference.
    let thread = unsafe {
        thread.write(Thread::new(Fiber::empty(), payload, release));
        ThreadRef::adopt(thread)
    };
    unrecorded(|| {
        // SAFETY: the thread was made above, and no CPU runs it before it is queued.
        let fiber = unsafe { &*thread.context() };
        fiber.start(move || live(role, tasks));
    });
    thread
}

/// A thread's life.
fn live(role: Role, tasks: Tasks) {
    let s = tasks.scheduler;
    if !matches!(role, Role::Idle) {
        s.started();
    }
    loop {
        match role {
            Role::Idle => s.idle_once(),
            Role::Program | Role::Busy => rest(tasks),
            Role::Sleeper => s.park(None),
            Role::Waiter(word) => tasks.wait_on(word.key(), word),
            Role::Brief => s.exit(),
        }
    }
}

/// Returns control to the driver, and runs its jobs.
fn rest(tasks: Tasks) {
    loop {
        // SAFETY: the calling thread's own context.
        unsafe { (*tasks.scheduler.current().context()).pause(Pause::Rests) };
        match JOB.take() {
            Some(job) => job(),
            None => return,
        }
    }
}

// SAFETY: nothing interrupts: the driver calls handlers where it wants them. `switch` gives the host's thread to `run`,
// which resumes the current thread.
unsafe impl Machine for Sim {
    type Context = Fiber;
    type Payload = Payload;

    fn now(&self) -> u64 {
        self.clock.load(Relaxed)
    }
    fn arm(&self, _deadline: Option<u64>) {}
    fn kick(&self, _cpu: CpuId) {}
    fn halt(&self) {
        self.here().masked.store(false, Relaxed);
        // SAFETY: the idle thread's own context.
        unsafe { (*(*self.current()).context()).pause(Pause::Rests) };
    }
    fn mask(&self) -> Irq {
        if self.here().masked.swap(true, Relaxed) { Irq::Off } else { Irq::On }
    }
    fn restore(&self, was: Irq) {
        self.here().masked.store(was == Irq::Off, Relaxed);
    }
    fn current(&self) -> *const Thread<Self> {
        self.here().current.load(Relaxed)
    }
    unsafe fn set_current(&self, thread: *const Thread<Self>) {
        self.here().current.store(thread.cast_mut(), Relaxed);
    }
    fn set_pending(&self, _pending: bool) {}
    unsafe fn switch(&self, prev: &Thread<Self>, _next: &Thread<Self>) {
        // SAFETY: `prev` is the calling thread, so its context is used by no other CPU.
        unsafe { (*prev.context()).pause(Pause::Switched) };
        self.here().masked.store(true, Relaxed);
    }
    fn reap(&self, thread: ThreadRef<Self>) {
        EXITED.with_borrow_mut(|e| e.push(thread.payload().id.get()));
        drop(thread);
    }
}

impl Sim {
    fn here(&self) -> &SimCpu {
        &self.cpus[current_cpu()]
    }
}

/// The structures of `quire-task`, for ever.
#[derive(Clone, Copy)]
pub struct Tasks {
    /// The machine.
    pub sim: &'static Sim,
    /// Its scheduler.
    pub scheduler: &'static Scheduler<Sim>,
    /// Its process ids, which name threads.
    pub ids: &'static IdTable<Thread<Sim>, ()>,
    /// Its futexes.
    pub futexes: &'static FutexTable<Sim>,
}

impl Tasks {
    /// A machine of `cpus` CPUs, each of which runs a program and has another thread that is runnable.
    pub fn boot(cpus: usize) -> Tasks {
        let cpu = |_| SimCpu { current: AtomicPtr::new(ptr::null_mut()), masked: AtomicBool::new(true) };
        let sim =
            Sim { cpus: (0..cpus).map(cpu).collect(), clock: AtomicU64::new(1 << 30), scheduler: OnceLock::new() };
        let sim: &'static Sim = Box::leak(Box::new(sim));
        // SAFETY: fresh memory of the required sizes, which lives on; nothing is moved once it is used.
        let tasks = unsafe {
            let scheduler = Scheduler::new(sim, memory(Scheduler::<Sim>::bytes(cpus)), cpus);
            let ids = IdTable::new(memory(IdTable::<Thread<Sim>, ()>::bytes(IDS, cpus)), IDS, cpus);
            let bytes = FutexTable::<Sim>::bytes(BUCKETS);
            let buckets = memory(bytes);
            record::own_array(buckets.as_ptr(), bytes, bytes / BUCKETS, "futex-bucket");
            Tasks {
                sim,
                scheduler: alone(scheduler, "scheduler"),
                ids: alone(ids, "id-table"),
                futexes: alone(FutexTable::new(buckets, BUCKETS), "futex-table"),
            }
        };
        let _once = sim.scheduler.set(tasks.scheduler);
        // Programs first, so that no idle CPU steals another CPU's second thread before that CPU's program runs.
        for cpu in 0..cpus {
            as_cpu(cpu, || tasks.scheduler.start_cpu(make(Role::Idle, tasks)));
            tasks.spawn(cpu, Role::Program);
            tasks.run(cpu);
        }
        (0..cpus).for_each(|cpu| drop(tasks.spawn(cpu, Role::Busy)));
        tasks
    }

    /// A new thread on `cpu`'s queue, with a reference for the caller.
    pub fn spawn(&self, cpu: CpuId, role: Role) -> ThreadRef<Sim> {
        let thread = make(role, *self);
        as_cpu(cpu, || self.scheduler.spawn_on(thread.clone(), cpu));
        thread
    }

    /// Lets `cpu` run until its current thread has nothing to do.
    pub fn run(&self, cpu: CpuId) {
        as_cpu(cpu, || {
            for _ in 0..TURNS {
                let current = self.sim.current();
                // SAFETY: a thread that is current is alive.
                match unsafe { (*(*current).context()).resume() } {
                    Some(Pause::Rests) => return,
                    Some(Pause::Switched) => {}
                    None => panic!("a thread's body came to its end"),
                }
            }
            panic!("CPU {cpu} does not become idle");
        })
    }

    /// The current thread of `cpu` does `job`. `None` if it sleeps before it is done.
    pub fn on<R: 'static>(&self, cpu: CpuId, job: impl FnOnce() -> R + 'static) -> Option<R> {
        let result = Rc::new(Cell::new(None));
        let to = result.clone();
        JOB.set(Some(Box::new(move || to.set(Some(job())))));
        self.run(cpu);
        result.take()
    }

    /// Lets the threads of `cpu` take turns until `thread` is current there.
    pub fn until_current(&self, cpu: CpuId, thread: &ThreadRef<Sim>) {
        let s = self.scheduler;
        for _ in 0..TURNS {
            if as_cpu(cpu, || ptr::eq(self.sim.current(), &**thread)) {
                return;
            }
            let _done_later = self.on(cpu, || s.yield_now());
        }
        panic!("CPU {cpu} does not come back to a thread");
    }

    /// The current thread of `cpu`.
    pub fn current(&self, cpu: CpuId) -> ThreadRef<Sim> {
        as_cpu(cpu, || self.scheduler.current().to_ref())
    }

    /// The calling thread waits until it is woken on `key`.
    pub fn wait_on(&self, key: Key, word: &'static Word) {
        let mut same = || Ok::<_, Infallible>(word.0.load(Relaxed) == 0);
        let all = quire_task::futex::ANY;
        let _woken = self.futexes.wait(self.scheduler, key, all, None, &mut same, &mut || false);
    }

    /// A number for a thread.
    pub fn new_id(&self) -> u32 {
        let mut grow = || Some(unrecorded(|| memory(CHUNK_BYTES)));
        self.ids.allocate(&mut grow).expect("there are numbers")
    }

    /// Gives the numbers of threads that have exited back.
    pub fn collect_ids(&self) {
        for id in EXITED.take().into_iter().filter(|id| *id != 0) {
            self.ids.set_thread(id, None);
            self.ids.release(id);
        }
    }

    /// Lets time pass; nothing happens by itself.
    pub fn pass(&self, nanoseconds: u64) {
        self.sim.clock.fetch_add(nanoseconds, Relaxed);
    }
}

impl Word {
    /// Its futex key for programs that share nothing.
    pub fn key(&self) -> Key {
        (1, ptr::from_ref(self).addr() as u64)
    }
}

/// The address of a thread, without a count.
pub fn raw(thread: &ThreadRef<Sim>) -> NonNull<Thread<Sim>> {
    NonNull::from(&**thread)
}
