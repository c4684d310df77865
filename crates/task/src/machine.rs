//! The hardware interface of the scheduler.

use crate::thread::{Thread, ThreadRef};
use crate::watch::{Lockup, Watching};
use quire_sync::CpuId;

/// Whether interrupts were on before [`Machine::mask`] masked them.
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
/// - `Cpu::preempt_enable` calls [`Scheduler::preempt`](crate::Scheduler::preempt) if the preemption count has become
///   zero, the flag of [`set_pending`](Machine::set_pending) is set, *and interrupts are on*. With interrupts masked it
///   does nothing, because the code that masked them drops a preemption guard after unmasking, and that drop calls
///   `preempt_enable` again.
/// - The return from an interrupt calls `preempt` if the same flag is set and the preemption count of the interrupted
///   code is zero.
/// - The preemption count is zero at every switch, so it need not be saved with a thread.
/// - `Wait::{current, park, unpark}` are [`Scheduler::current`](crate::Scheduler::current) (its address is the handle),
///   [`Scheduler::park`](crate::Scheduler::park) and [`Scheduler::unpark`](crate::Scheduler::unpark).
///
/// # Safety
/// - `mask` keeps interrupts, and with them every call into the scheduler from an interrupt handler, away from this CPU
///   until the matching `restore`.
/// - `current` returns the thread of the last `set_current` on the CPU that executes it. It reads CPU-local storage by
///   one load, so a migration of the caller cannot make the answer wrong.
/// - `switch` behaves as its documentation says.
pub unsafe trait Machine: Sized + Send + Sync + 'static {
    /// The saved registers and the stack of a thread that is not running.
    type Context: Send;
    /// The data that the layer above keeps for each thread.
    type Payload: Send + Sync;

    /// A monotonic clock in nanoseconds, the same on all CPUs.
    fn now(&self) -> u64;

    /// The present value of the counter for execution times, which may be cheaper to read than [`now`](Machine::now).
    fn ticks(&self) -> u64 {
        self.now()
    }

    /// Converts a difference of [`ticks`](Machine::ticks) to nanoseconds.
    fn ticks_to_ns(&self, ticks: u64) -> u64 {
        ticks
    }

    /// Programs this CPU's one-shot timer for `deadline`, in nanoseconds of [`now`](Machine::now). The timer fires at
    /// once if the deadline has passed. Its interrupt calls
    /// [`Scheduler::timer_interrupt`](crate::Scheduler::timer_interrupt). `None` turns the timer off. Called with
    /// interrupts masked.
    fn arm(&self, deadline: Option<u64>);

    /// The longest interval until the next timer interrupt of a CPU that runs a thread, in nanoseconds. 0 means no
    /// bound, so that a thread that runs alone is not interrupted. An emulator that runs its virtual CPUs one after
    /// another needs a bound, because it runs each one until that CPU's next timer.
    #[inline(always)]
    fn tick(&self) -> u64 {
        0
    }

    /// Interrupts `cpu`, which then calls [`Scheduler::kicked`](crate::Scheduler::kicked). Never this CPU.
    fn kick(&self, cpu: CpuId);

    /// Unmasks interrupts and halts, atomically: an interrupt that was pending ends the halt at once. Returns, with
    /// interrupts on, after any interrupt. Called by the idle thread with interrupts masked.
    fn halt(&self);

    /// Does one small step of deferred work before an idle CPU halts. Returns true if more may remain. Called by the
    /// idle thread with interrupts on.
    fn idle_work(&self) -> bool {
        false
    }

    /// Masks interrupts on this CPU. Returns whether they were on before.
    fn mask(&self) -> Irq;

    /// Unmasks interrupts if they were on before: `was` is the result of [`mask`](Machine::mask).
    fn restore(&self, was: Irq);

    /// The thread that runs on this CPU, by one load from CPU-local storage. Null before
    /// [`Scheduler::start_cpu`](crate::Scheduler::start_cpu).
    fn current(&self) -> *const Thread<Self>;

    /// Sets the thread that runs on this CPU from now on. Called with interrupts masked.
    ///
    /// # Safety
    /// Only the scheduler calls it, just before it switches.
    unsafe fn set_current(&self, thread: *const Thread<Self>);

    /// Sets this CPU's flag that `preempt_enable` and the return from interrupts read. Called with interrupts masked.
    fn set_pending(&self, pending: bool);

    /// Saves the caller's state in `prev`'s context and restores `next`'s: registers, kernel stack, address space and
    /// FPU. Returns when a CPU, perhaps another one, switches back to `prev`. Interrupts are masked before and after.
    ///
    /// A context that has never run starts at a function of the kernel, on its own stack, with interrupts masked. That
    /// function must call [`Scheduler::started`](crate::Scheduler::started) first.
    ///
    /// # Safety
    /// `prev` is the calling thread; `next` is not running anywhere and its context is complete.
    unsafe fn switch(&self, prev: &Thread<Self>, next: &Thread<Self>);

    /// As [`switch`](Machine::switch), but `prev` no longer needs its stack, and a machine may give the stack to
    /// another thread. Then `depart` does not return. When a CPU switches to `prev` again, `prev` starts at a function
    /// of the kernel, on another stack, with interrupts masked. That function must first call
    /// [`Scheduler::resumed`](crate::Scheduler::resumed) if `prev` parked, and
    /// [`Scheduler::started`](crate::Scheduler::started) if it was preempted. A machine that lets threads
    /// keep their stacks implements this as [`switch`](Machine::switch).
    ///
    /// # Safety
    /// As [`switch`](Machine::switch). No code holds a reference into the stack of `prev`.
    unsafe fn depart(&self, prev: &Thread<Self>, next: &Thread<Self>) {
        // SAFETY: the contract of this function includes that of `switch`.
        unsafe { self.switch(prev, next) }
    }

    /// The settings of the watchdog of CPUs; `None` if CPUs are not watched. Each tick calls it.
    fn watching(&self) -> Option<Watching> {
        None
    }

    /// Sends `cpu` a non-maskable interrupt that calls [`Scheduler::probed`](crate::Scheduler::probed) there.
    fn probe(&self, _cpu: CpuId) {}

    /// Reports a stuck CPU. The timer interrupt calls it once for each incident, with interrupts masked and no lock
    /// held.
    fn locked_up(&self, _lockup: Lockup) {}

    /// Takes the scheduler's reference to a thread that has exited and no longer uses its stack. It is the reference
    /// that [`Scheduler::spawn`](crate::Scheduler::spawn) got. Runs on another thread's stack, with interrupts on and
    /// no lock held; must not sleep.
    fn reap(&self, thread: ThreadRef<Self>);
}
