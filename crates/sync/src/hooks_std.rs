//! The hooks of `Cpu` and `Wait`, implemented with ordinary threads. A thread *is* a CPU after it has called
//! [`become_cpu`]. In each turn of a spin loop, it calls the function that it gave to [`set_relax`], to serve a simulated
//! inbox. Any other thread has the number [`NO_CPU`]. No machine has that CPU, so per-CPU state refuses the thread. If
//! CPU 0 were the default, two such threads would use the memory of one CPU.
#![allow(missing_docs)]

use std::cell::{Cell, RefCell};
// The host's own atomic in every build, also under loom and shuttle: it counts, and orders nothing.
use std::sync::atomic::{AtomicU64, Ordering};

#[cfg(loom)]
use loom::thread;
#[cfg(shuttle)]
use shuttle::thread;
#[cfg(not(any(loom, shuttle)))]
use std::thread;

/// The number of a thread that stands for no CPU.
pub const NO_CPU: usize = usize::MAX;

// In this crate's own tests a thread begins as CPU 0, and sets another CPU where a test needs several.
#[cfg(not(any(loom, shuttle)))]
std::thread_local! {
    static CPU: Cell<usize> = const { Cell::new(if cfg!(test) { 0 } else { NO_CPU }) };
}
// The checkers' threads share one thread of the system, so they need the checkers' own thread-local storage. Models set
// the CPU of each thread but the first.
#[cfg(loom)]
loom::thread_local! {
    static CPU: Cell<usize> = Cell::new(0);
}
#[cfg(shuttle)]
shuttle::thread_local! {
    static CPU: Cell<usize> = Cell::new(0);
}
std::thread_local! {
    static RELAX: RefCell<Option<std::rc::Rc<dyn Fn()>>> = const { RefCell::new(None) };
    static DISTURB: Cell<Option<fn()>> = const { Cell::new(None) };
}

std::thread_local! {
    static APART: Cell<bool> = const { Cell::new(false) };
}

/// Runs `f`, which belongs to the checks and not to the checked code. While `f` runs, [`is_apart`] returns true.
// Builds for the model checkers do not call this function, because models have checks of their own.
#[cfg_attr(any(loom, shuttle), allow(dead_code))]
pub(crate) fn apart<R>(f: impl FnOnce() -> R) -> R {
    APART.set(true);
    let result = f();
    APART.set(false);
    result
}

/// Whether the calling thread is in a check of this crate that allocates. An allocator that refuses requests on purpose
/// does not refuse the requests of such a check.
pub fn is_apart() -> bool {
    APART.get()
}

static WAITS: AtomicU64 = AtomicU64::new(0);

/// How often threads of the process have waited for a spin lock that another thread held.
pub fn waits() -> u64 {
    WAITS.load(Ordering::Relaxed)
}

#[cfg(not(any(loom, shuttle)))]
pub(crate) fn count_wait() {
    WAITS.fetch_add(1, Ordering::Relaxed);
}

fn become_any(id: usize) {
    CPU.with(|c| c.set(id));
    #[cfg(recording)]
    if id != NO_CPU {
        crate::record::Mark::Cpu(id).say();
    }
}

fn run_as_any<R>(id: usize, f: impl FnOnce() -> R) -> R {
    struct Back(usize);
    impl Drop for Back {
        fn drop(&mut self) {
            become_any(self.0);
        }
    }
    let _back = Back(__quire_cpu());
    become_any(id);
    f()
}

/// Makes the calling thread CPU `id`.
///
/// # Safety
/// No other thread is CPU `id` of a machine that this thread uses, because a CPU changes its own state without locks.
/// The thread stays the only one until it is another CPU or [none](leave_cpu).
pub unsafe fn become_cpu(id: usize) {
    become_any(id);
}

/// Makes the calling thread no CPU.
pub fn leave_cpu() {
    become_any(NO_CPU);
}

/// Runs `f` as CPU `id`. Then the thread is its former CPU again, so one thread can play many CPUs in turn.
///
/// # Safety
/// As for [`become_cpu`], while `f` runs.
pub unsafe fn run_as_cpu<R>(id: usize, f: impl FnOnce() -> R) -> R {
    run_as_any(id, f)
}

/// As [`become_cpu`], without its check by the compiler: for tests that play CPUs. `id` may be [`NO_CPU`]. Two threads
/// that are the same CPU of a machine race. So only the feature `unchecked-cpus`, and the checkers, have this function.
#[cfg(any(test, loom, shuttle, feature = "unchecked-cpus"))]
pub fn set_cpu(id: usize) {
    become_any(id);
}

/// As [`run_as_cpu`], without its check by the compiler; see [`set_cpu`].
#[cfg(any(test, loom, shuttle, feature = "unchecked-cpus"))]
pub fn as_cpu<R>(id: usize, f: impl FnOnce() -> R) -> R {
    run_as_any(id, f)
}

/// Sets the function that the calling thread calls in each turn of a spin loop (besides yielding). `None` removes it.
pub fn set_relax(f: Option<std::rc::Rc<dyn Fn()>>) {
    RELAX.with(|r| *r.borrow_mut() = f);
}

/// Sets the function that the calling thread calls just before it disables preemption. In this function, tests let
/// other threads run, for interleavings that a machine with few CPUs would rarely show.
pub fn set_disturb(f: Option<fn()>) {
    DISTURB.set(f);
}

pub(crate) fn __quire_preempt_disable() {
    if let Some(f) = DISTURB.get() {
        f();
    }
}
pub(crate) fn __quire_preempt_enable() {}
pub(crate) fn __quire_cpu() -> usize {
    CPU.with(|c| c.get())
}
pub(crate) fn __quire_relax() {
    let f = RELAX.with(|r| r.borrow().clone());
    if let Some(f) = f {
        f();
    }
    thread::yield_now();
}

#[cfg(not(any(loom, shuttle)))]
std::thread_local! {
    static CLOCK: std::cell::Cell<Option<u64>> = const { std::cell::Cell::new(None) };
}

#[cfg(not(any(loom, shuttle)))]
mod parking {
    use super::thread;
    // A thread's handle is a leaked clone of its std handle, which stays valid for late wakers.
    std::thread_local! {
        static HANDLE: usize = Box::into_raw(Box::new(thread::current())) as usize;
    }
    pub fn handle() -> usize {
        HANDLE.with(|h| *h)
    }
    pub fn park(deadline: Option<u64>) {
        match deadline {
            None => thread::park(),
            Some(d) => {
                let now = super::__quire_now();
                if d > now {
                    thread::park_timeout(std::time::Duration::from_nanos(d - now));
                }
            }
        }
    }
    pub fn unpark(t: usize) {
        // SAFETY: `t` came from `handle`, whose box is never freed.
        unsafe { &*(t as *const thread::Thread) }.unpark();
    }
}
#[cfg(any(loom, shuttle))]
mod parking {
    use crate::explore::Parker;
    // As in native builds, the handle points to a value that is never freed. The checkers report a state in which all
    // threads sleep.
    #[cfg(loom)]
    loom::thread_local! {
        static HANDLE: usize = Box::into_raw(Box::new(Parker::new())) as usize;
    }
    #[cfg(shuttle)]
    shuttle::thread_local! {
        static HANDLE: usize = Box::into_raw(Box::new(Parker::new())) as usize;
    }
    pub fn handle() -> usize {
        HANDLE.with(|h| *h)
    }
    pub fn park(deadline: Option<u64>) {
        match deadline {
            // SAFETY: the thread's own `handle` is a box that is never freed.
            None => unsafe { &*(handle() as *const Parker) }.park(),
            // A deadline may pass at any moment, so the thread only yields.
            Some(_) => super::thread::yield_now(),
        }
    }
    pub fn unpark(t: usize) {
        // SAFETY: `t` came from `handle`, whose box is never freed.
        unsafe { &*(t as *const Parker) }.unpark();
    }
}

/// The calling thread's number, from 1 on, which no other thread has.
#[cfg(all(any(debug_assertions, recording), not(any(loom, shuttle))))]
pub(crate) fn tag() -> u64 {
    use std::sync::atomic::{AtomicU32, Ordering};
    static NEXT: AtomicU32 = AtomicU32::new(1);
    std::thread_local! {
        static TAG: u32 = NEXT.fetch_add(1, Ordering::Relaxed);
    }
    // A destructor at the very end of a thread may unpin, when the number is gone.
    TAG.try_with(|t| *t as u64).unwrap_or(0)
}

/// A machine in this process whose threads share simulated CPUs. Its scheduler, not the host's, puts them to sleep.
///
/// # Safety
/// As for [`Wait`](super::Wait). A handle of [`current`](Sleeper::current) is used with this machine only: its threads
/// have the machine [set](set_sleeper) as long as they live, and no other thread gets their handles.
#[cfg(not(any(loom, shuttle)))]
pub unsafe trait Sleeper {
    /// The calling thread's handle.
    fn current(&self) -> usize;
    /// As [`Wait::park`](super::Wait::park).
    fn park(&self, deadline: Option<u64>);
    /// As [`Wait::unpark`](super::Wait::unpark).
    fn unpark(&self, thread: usize);
    /// The machine's clock.
    fn now(&self) -> u64;
}

#[cfg(not(any(loom, shuttle)))]
std::thread_local! {
    static SLEEPER: Cell<Option<&'static dyn Sleeper>> = const { Cell::new(None) };
}

/// Makes the calling thread a thread of `machine`. With `None`, the thread belongs to no machine.
#[cfg(not(any(loom, shuttle)))]
pub fn set_sleeper(machine: Option<&'static dyn Sleeper>) {
    SLEEPER.set(machine);
}

#[cfg(not(any(loom, shuttle)))]
fn sleeper() -> Option<&'static dyn Sleeper> {
    SLEEPER.get()
}

pub(crate) fn __quire_thread() -> usize {
    #[cfg(not(any(loom, shuttle)))]
    if let Some(machine) = sleeper() {
        return machine.current();
    }
    parking::handle()
}
pub(crate) fn __quire_park(deadline: Option<u64>) {
    #[cfg(not(any(loom, shuttle)))]
    if let Some(machine) = sleeper() {
        return machine.park(deadline);
    }
    // A parked CPU still serves its inbox, as a halted CPU serves interrupts.
    let f = RELAX.with(|r| r.borrow().clone());
    match f {
        None => parking::park(deadline),
        Some(f) => {
            f();
            let slice = __quire_now() + 50_000;
            parking::park(Some(deadline.map_or(slice, |d| d.min(slice))));
            f();
        }
    }
}
/// Threads of the host do not distinguish uninterruptible waits.
pub(crate) fn __quire_park_uninterruptibly() {
    __quire_park(None);
}
/// The host watches its own threads.
pub(crate) fn __quire_spun(_lock: usize, _rank: u8, _turns: u32) {}
pub(crate) fn __quire_unpark(thread: usize) {
    #[cfg(not(any(loom, shuttle)))]
    if let Some(machine) = sleeper() {
        return machine.unpark(thread);
    }
    parking::unpark(thread);
}
/// Sets the calling thread's clock to `time` (ns), for runs that must not depend on their speed. Each read advances
/// this clock by 1 ns. `None` restores the host's clock.
#[cfg(not(any(loom, shuttle)))]
pub fn set_clock(time: Option<u64>) {
    CLOCK.set(time);
}

pub(crate) fn __quire_now() -> u64 {
    use std::sync::OnceLock;
    #[cfg(not(any(loom, shuttle)))]
    if let Some(machine) = sleeper() {
        return machine.now();
    }
    #[cfg(not(any(loom, shuttle)))]
    if let Some(time) = CLOCK.get() {
        CLOCK.set(Some(time + 1));
        return time;
    }
    use std::time::Instant;
    static START: OnceLock<Instant> = OnceLock::new();
    START.get_or_init(Instant::now).elapsed().as_nanos() as u64
}
