//! Simulated CPUs below the scheduler, timers, futexes and process ids of `quire-task`. One thread of the host runs
//! them all.

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

/// The number of process ids.
const IDS: u32 = 1 << 16;
/// The number of buckets of the futex table.
const BUCKETS: usize = 1024;
/// The most times that a CPU is resumed before its threads have nothing to do. A CPU that needs more counts as hung.
const TURNS: usize = 64;

/// The role of a thread in the experiment.
pub enum Role {
    /// The idle thread of a CPU.
    Idle,
    /// The thread runs the driver's jobs.
    Program,
    /// The thread is always runnable, so a CPU whose other thread sleeps never idles.
    Busy,
    /// The thread sleeps until it is woken, repeatedly.
    Sleeper,
    /// The thread waits on its word, repeatedly.
    Waiter(&'static Word),
    /// The thread exits at once.
    Brief,
}

/// The data that the layer above the scheduler keeps for a thread.
pub struct Payload {
    /// The thread's process id; 0 for a thread without one.
    pub id: Cell<u32>,
}
// SAFETY: one thread of the host runs all CPUs, so two threads never use a payload at once.
unsafe impl Send for Payload {}
// SAFETY: one thread of the host runs all CPUs, so two threads never access the cell at once.
unsafe impl Sync for Payload {}

/// A word of a program's memory on which threads wait.
#[repr(C, align(128))]
pub struct Word(pub AtomicU32);

struct SimCpu {
    current: AtomicPtr<Thread<Sim>>,
    masked: AtomicBool,
}

/// The simulated machine.
pub struct Sim {
    cpus: Vec<SimCpu>,
    clock: AtomicU64,
    scheduler: OnceLock<&'static Scheduler<Sim>>,
}

/// A job for a CPU's current thread.
type Job = Box<dyn FnOnce()>;

std::thread_local! {
    static JOB: RefCell<Option<Job>> = const { RefCell::new(None) };
    /// The process ids of threads that have exited.
    static EXITED: RefCell<Vec<u32>> = const { RefCell::new(Vec::new()) };
}

/// Zeroed memory that is never freed, aligned as the structures of `quire-task` require.
fn memory(bytes: usize) -> NonNull<u8> {
    let layout = Layout::from_size_align(bytes.max(1), 128).expect("sizes of tables are valid");
    // SAFETY: the layout's size is at least one byte.
    let memory = NonNull::new(unsafe { alloc_zeroed(layout) }).expect("the host gives memory");
    let at = memory.addr().get();
    GIVEN.lock().unwrap_or_else(PoisonError::into_inner).push(at..at + bytes);
    memory
}

/// The address ranges of the memory that the structures of `quire-task` got.
static GIVEN: Mutex<Vec<Range<usize>>> = Mutex::new(Vec::new());

/// Returns the address ranges that the structures of `quire-task` got.
pub fn given() -> Vec<Range<usize>> {
    GIVEN.lock().unwrap_or_else(PoisonError::into_inner).clone()
}

/// Places a value on cache lines of its own, which are never freed. `label` names the lines in the record of accesses.
pub fn alone<T>(value: T, label: &'static str) -> &'static T {
    let bytes = size_of::<T>().next_multiple_of(128);
    let place = memory(bytes).cast::<T>();
    record::own(place.as_ptr().cast(), bytes, label);
    // SAFETY: the memory is fresh, large enough, aligned to 128 bytes, and never freed.
    unsafe {
        place.write(value);
        place.as_ref()
    }
}

fn thread_layout() -> Layout {
    Layout::from_size_align(size_of::<Thread<Sim>>().next_multiple_of(128), 128).expect("a thread has a size")
}

unsafe fn release(thread: NonNull<Thread<Sim>>) {
    // SAFETY: the last reference is gone, and `make` allocated the thread with this layout.
    unsafe {
        thread.drop_in_place();
        record::disown(thread.as_ptr().cast());
        dealloc(thread.as_ptr().cast(), thread_layout());
    }
}

/// Makes a thread with `role`, which has not run yet. Its allocation is not recorded, because a kernel would allocate
/// it from a slab.
pub fn make(role: Role, tasks: Tasks) -> ThreadRef<Sim> {
    let thread = unrecorded(|| {
        // SAFETY: a thread has a size above zero, so its layout has too.
        let place = NonNull::new(unsafe { alloc_zeroed(thread_layout()) }).expect("the host gives memory");
        record::own(place.as_ptr(), thread_layout().size(), "thread");
        place.cast::<Thread<Sim>>()
    });
    let payload = Payload { id: Cell::new(0) };
    // SAFETY: the memory is fresh and has a thread's size, and this is the first reference.
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

/// The body of a thread.
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

/// Returns control to the driver (`Tasks::run` and `Tasks::on`) whenever the thread has nothing to do, and runs the
/// driver's jobs. Returns when the driver resumes it without a job.
fn rest(tasks: Tasks) {
    loop {
        // SAFETY: this is the context of the calling thread.
        unsafe { (*tasks.scheduler.current().context()).pause(Pause::Rests) };
        match JOB.take() {
            Some(job) => job(),
            None => return,
        }
    }
}

// SAFETY: no interrupt occurs by itself, because the driver calls the handlers. `switch` returns control of the host's
// thread to `run`, which resumes the thread that is now current.
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
        // SAFETY: this is the context of the calling thread, the idle thread.
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
        // SAFETY: `prev` is the calling thread, so no other CPU uses its context.
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

/// A machine with the structures of `quire-task`, which are never freed.
#[derive(Clone, Copy)]
pub struct Tasks {
    /// The machine.
    pub sim: &'static Sim,
    /// The machine's scheduler.
    pub scheduler: &'static Scheduler<Sim>,
    /// The machine's table of process ids, which maps them to threads.
    pub ids: &'static IdTable<Thread<Sim>, ()>,
    /// The machine's futexes.
    pub futexes: &'static FutexTable<Sim>,
}

impl Tasks {
    /// Boots a machine of `cpus` CPUs. Each runs a program's thread and has a second runnable thread.
    pub fn boot(cpus: usize) -> Tasks {
        let cpu = |_| SimCpu { current: AtomicPtr::new(ptr::null_mut()), masked: AtomicBool::new(true) };
        let sim =
            Sim { cpus: (0..cpus).map(cpu).collect(), clock: AtomicU64::new(1 << 30), scheduler: OnceLock::new() };
        let sim: &'static Sim = Box::leak(Box::new(sim));
        // SAFETY: the memory is fresh, has the required sizes and is never freed, and nothing is moved once it is used.
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
        // The programs start first, so that each CPU runs its own program. Otherwise an idle CPU could take another
        // CPU's second thread before that CPU's program runs.
        for cpu in 0..cpus {
            as_cpu(cpu, || tasks.scheduler.start_cpu(make(Role::Idle, tasks)));
            tasks.spawn(cpu, Role::Program);
            tasks.run(cpu);
        }
        (0..cpus).for_each(|cpu| drop(tasks.spawn(cpu, Role::Busy)));
        tasks
    }

    /// Puts a new thread into the run queue of `cpu`. Returns a reference to it.
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
                // SAFETY: a current thread is alive.
                match unsafe { (*(*current).context()).resume() } {
                    Some(Pause::Rests) => return,
                    Some(Pause::Switched) => {}
                    None => panic!("a thread's body came to its end"),
                }
            }
            panic!("CPU {cpu} does not become idle");
        })
    }

    /// Lets the current thread of `cpu` do `job`. Returns `None` if the thread sleeps before the job is done.
    pub fn on<R: 'static>(&self, cpu: CpuId, job: impl FnOnce() -> R + 'static) -> Option<R> {
        let result = Rc::new(Cell::new(None));
        let to = result.clone();
        JOB.set(Some(Box::new(move || to.set(Some(job())))));
        self.run(cpu);
        result.take()
    }

    /// Lets the threads of `cpu` take turns until `thread` is the current one.
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

    /// Lets the calling thread wait until it is woken on `key`.
    pub fn wait_on(&self, key: Key, word: &'static Word) {
        let mut same = || Ok::<_, Infallible>(word.0.load(Relaxed) == 0);
        let all = quire_task::futex::ANY;
        let _woken = self.futexes.wait(self.scheduler, key, all, None, &mut same, &mut || false);
    }

    /// Allocates a process id for a thread.
    pub fn new_id(&self) -> u32 {
        let mut grow = || Some(unrecorded(|| memory(CHUNK_BYTES)));
        self.ids.allocate(&mut grow).expect("there are numbers")
    }

    /// Frees the process ids of threads that have exited.
    pub fn collect_ids(&self) {
        for id in EXITED.take().into_iter().filter(|id| *id != 0) {
            self.ids.set_thread(id, None);
            self.ids.release(id);
        }
    }

    /// Advances the clock. No timer fires by itself.
    pub fn pass(&self, nanoseconds: u64) {
        self.sim.clock.fetch_add(nanoseconds, Relaxed);
    }
}

impl Word {
    /// The word's futex key, for programs that share no memory.
    pub fn key(&self) -> Key {
        (1, ptr::from_ref(self).addr() as u64)
    }
}

/// The address of a thread, without a reference count.
pub fn raw(thread: &ThreadRef<Sim>) -> NonNull<Thread<Sim>> {
    NonNull::from(&**thread)
}
