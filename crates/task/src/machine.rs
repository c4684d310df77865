//! The hardware interface of the scheduler.

use crate::thread::{Thread, ThreadRef};
use crate::watch::{Lockup, Watching};
use quire_sync::CpuId;

/// How interrupts were before they were masked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Irq {
    /// Interrupts were on.
    On,
    /// Interrupts were masked already.
    Off,
}

/// CPUs that switch between threads, mask interrupts, halt, and wake each other.
///
/// Which CPU this is and whether it may be preempted come from `quire_sync`'s hooks, which the kernel binds to its
/// [`Scheduler`](crate::Scheduler):
/// - `Cpu::preempt_enable`, when the count reaches zero while the flag of [`set_pending`](Machine::set_pending) is up
///   *and interrupts are on*, calls [`Scheduler::preempt`](crate::Scheduler::preempt). With interrupts masked it does
///   nothing: the code that masked them drops a preemption guard after unmasking.
/// - The way out of an interrupt calls `preempt` on the same flag, if the interrupted code ran with a count of zero.
/// - The count is zero at every switch, so it need not be saved with a thread.
/// - `Wait::{current, park, unpark}` are [`Scheduler::current`](crate::Scheduler::current) (its address is the handle),
///   [`Scheduler::park`](crate::Scheduler::park) and [`Scheduler::unpark`](crate::Scheduler::unpark).
///
/// # Safety
/// - `mask` keeps interrupts, and with them every call into the scheduler from an interrupt handler, away from this CPU
///   until the matching `restore`.
/// - `current` returns what this CPU's last `set_current` was given, also on another CPU after the caller was moved
///   there: it reads CPU-local storage once.
/// - `switch` behaves as it says.
pub unsafe trait Machine: Sized + Send + Sync + 'static {
    /// The saved registers and the stack of a thread that is not running.
    type Context: Send;
    /// The data of the layer above about a thread.
    type Payload: Send + Sync;

    /// A monotonic clock in nanoseconds, the same on all CPUs.
    fn now(&self) -> u64;

    /// The counter for execution times; may be cheaper to read than [`now`](Machine::now).
    fn ticks(&self) -> u64 {
        self.now()
    }

    /// Converts a difference of [`ticks`](Machine::ticks) to nanoseconds.
    fn ticks_to_ns(&self, ticks: u64) -> u64 {
        ticks
    }

    /// Programs this CPU's one-shot timer for `deadline` (of [`now`](Machine::now)), or for now if that has passed. Its
    /// interrupt calls [`Scheduler::timer_interrupt`](crate::Scheduler::timer_interrupt). `None` turns it off. Called
    /// with interrupts masked.
    fn arm(&self, deadline: Option<u64>);

    /// The longest time that the timer of a CPU that runs a thread may be ahead, in nanoseconds. 0: no bound, so that a
    /// thread that runs alone is not interrupted. An emulator that lets virtual CPUs take turns gives each one the time
    /// up to its next timer, and then needs a bound.
    #[inline(always)]
    fn tick(&self) -> u64 {
        0
    }

    /// Interrupts `cpu`, which then calls [`Scheduler::kicked`](crate::Scheduler::kicked). Never this CPU.
    fn kick(&self, cpu: CpuId);

    /// Unmasks interrupts and halts, atomically: an interrupt that was pending ends the halt at once. Returns, with
    /// interrupts on, after any interrupt. Called by the idle thread with interrupts masked.
    fn halt(&self);

    /// Does one small step of deferred work before an idle CPU halts; true if more may remain. Called by the idle
    /// thread with interrupts on.
    fn idle_work(&self) -> bool {
        false
    }

    /// Masks interrupts on this CPU; returns how they were.
    fn mask(&self) -> Irq;

    /// Puts interrupts back to how [`mask`](Machine::mask) found them.
    fn restore(&self, was: Irq);

    /// The thread that runs on this CPU: a load from CPU-local storage, in as few instructions as it takes. Null before
    /// [`Scheduler::start_cpu`](crate::Scheduler::start_cpu).
    fn current(&self) -> *const Thread<Self>;

    /// Notes the thread that runs on this CPU from now on. Called with interrupts masked.
    ///
    /// # Safety
    /// Only the scheduler calls it, just before it switches.
    unsafe fn set_current(&self, thread: *const Thread<Self>);

    /// Sets the flag that `preempt_enable` and the way out of interrupts read. It is this CPU's own; called with
    /// interrupts masked.
    fn set_pending(&self, pending: bool);

    /// Saves the caller in `prev`'s context and continues `next`'s: address space, FPU, kernel stack and all. Returns
    /// when a CPU, perhaps another one, switches back to `prev`. Interrupts are masked before and after.
    ///
    /// A context that has never run starts at a function of the kernel, on its own stack, with interrupts masked. That
    /// function must call [`Scheduler::started`](crate::Scheduler::started) first.
    ///
    /// # Safety
    /// `prev` is the calling thread; `next` is not running anywhere and its context is complete.
    unsafe fn switch(&self, prev: &Thread<Self>, next: &Thread<Self>);

    /// As [`switch`](Machine::switch), but `prev` needs nothing of its stack any more. A machine may give the stack to
    /// another thread. Then this does not return: when a CPU switches to `prev` again, `prev` starts at a function of
    /// the kernel, on some other stack, with interrupts masked. That function must first call
    /// [`Scheduler::resumed`](crate::Scheduler::resumed) if `prev` parked, and
    /// [`Scheduler::started`](crate::Scheduler::started) if it was preempted. A machine that lets threads
    /// keep their stacks implements this as [`switch`](Machine::switch).
    ///
    /// # Safety
    /// As [`switch`](Machine::switch). No code holds a reference into the stack of `prev`.
    unsafe fn depart(&self, prev: &Thread<Self>, next: &Thread<Self>) {
        // SAFETY: by this function's contract, which has that of `switch`.
        unsafe { self.switch(prev, next) }
    }

    /// How CPUs are watched; `None`: not at all. Each tick calls it.
    fn watching(&self) -> Option<Watching> {
        None
    }

    /// Sends `cpu` a non-maskable interrupt that calls [`Scheduler::probed`](crate::Scheduler::probed) there.
    fn probe(&self, _cpu: CpuId) {}

    /// A CPU is stuck. Called once an incident by the timer interrupt, with interrupts masked and no lock held.
    fn locked_up(&self, _lockup: Lockup) {}

    /// A thread that called [`Scheduler::exit`](crate::Scheduler::exit) has left its stack for good: `thread` is the
    /// reference that [`Scheduler::spawn`](crate::Scheduler::spawn) was given. Runs on another thread's stack, with
    /// interrupts on and no lock held; must not sleep.
    fn reap(&self, thread: ThreadRef<Self>);
}
