//! The state of the CPUs and of the scheduler. This file also has the functions for the current thread, for the end of
//! its stretch, and for the timer of a CPU.
//!
//! A *stretch* is the time for which a running thread may keep the CPU before it must yield to a waiting thread.

use super::cpu_mask::CpuBits;
use super::idle::IdleCpus;
use super::run_queue::{RunQueue, STRETCH};
use super::share::{Share, User};
use crate::irq::IrqLock;
use crate::machine::Machine;
use crate::mutant::{Mutant, mutant};
use crate::thread::{Current, Thread};
use crate::timer::Wheel;
use crate::watch::Watch;
use core::ptr::{self, NonNull};
use quire_sync::atomic::{AtomicBool, AtomicPtr, AtomicU8, AtomicU64, AtomicUsize, Ordering};
use quire_sync::per_cpu::CachePadded;
use quire_sync::{CpuId, PerCpu, Rank, current_cpu};

/// No deadline.
pub(super) const NEVER: u64 = u64::MAX;

/// The scheduler's state of one CPU. Other CPUs access its queue and its timer wheel under their locks. A field marked
/// (own) is written only by this CPU, with interrupts masked. The fields that wakers write come first.
#[repr(C)]
pub(crate) struct Cpu<M: Machine> {
    pub queue: IrqLock<RunQueue<M>>,
    /// The first of four hints. A CPU that changes the queue writes them under the queue's lock; wakers read them
    /// without the lock. `waiting` is the length of the queue. `eager` is the length of the front list of the running
    /// thread's user (woken threads with some of their turn left). `turn_end` is the time at which the running thread
    /// must yield to a thread of another user or class, in nanoseconds of the counter. `urgency` is the real-time
    /// priority of the most urgent thread that runs or waits.
    pub waiting: AtomicUsize,
    pub eager: AtomicUsize,
    pub turn_end: AtomicU64,
    pub urgency: AtomicU8,
    /// The share of user 0 and of the kernel's threads; guarded by the queue's lock.
    pub(super) share: Share<M>,
    /// (own) The idle thread; a counted reference.
    pub(super) idle: AtomicPtr<Thread<M>>,
    /// (own) The previous thread, between the switch and `finish_switch`.
    pub(super) leaving: AtomicPtr<Thread<M>>,
    /// (own) The thread `leaving` moves to another CPU.
    pub(super) moving: AtomicBool,
    /// (own) The time at which the running thread got the CPU, in nanoseconds of the CPU's counter.
    pub(super) dispatched: AtomicU64,
    /// (own) The running thread is the idle thread.
    pub(super) idling: AtomicBool,
    /// (own) The time at which the running thread must yield because other threads wait (the end of its stretch), in
    /// nanoseconds. `NEVER` if no thread waits.
    pub(super) stretch_end: AtomicU64,
    /// (own) The deadline for which the timer is programmed, in nanoseconds; `NEVER` if it is off.
    pub(super) armed: AtomicU64,
    /// Whether the list of dead threads that wait to be reaped is not empty.
    pub(super) has_dead: AtomicBool,
    /// (own) Ticks of this CPU in user mode, in the kernel (`system`) and idle (`idled`), up to the last switch.
    /// `at_dispatch` has the running thread's own user and system ticks at its dispatch.
    pub(super) user: AtomicU64,
    pub(super) system: AtomicU64,
    pub(super) idled: AtomicU64,
    pub(super) at_dispatch: (AtomicU64, AtomicU64),
    pub(super) switches: AtomicU64,
    /// (own) How often the CPU has checked whether to preempt.
    pub(super) looked: AtomicU64,
    /// (own) The number of threads that were started by this CPU.
    pub(super) started: AtomicU64,
    /// (own) The number of threads that have ended on this CPU.
    pub(super) ended: AtomicU64,
    /// (own) The number of uninterruptible sleeps that began on this CPU, less those that ended on it (wrapping).
    pub(super) blocked: AtomicU64,
    /// The time at which the timer wheel must be served, in nanoseconds. Written under the wheel's lock.
    pub(super) wheel_due: AtomicU64,
    pub(super) wheel: CachePadded<IrqLock<Wheel>>,
    pub(super) watch: CachePadded<Watch>,
    /// The times that readers were shown last.
    pub(super) shown: CachePadded<IrqLock<Shown>>,
}

/// The scheduler of a machine. Lives as long as the machine, at one address.
pub struct Scheduler<M: Machine> {
    pub(crate) machine: &'static M,
    pub(crate) cpus: PerCpu<Cpu<M>>,
    /// The CPUs that halt, or are about to halt.
    pub(crate) idle: IdleCpus,
    /// The crowded CPUs, from whose queues idle CPUs take threads. A crowded CPU runs a thread while other threads wait
    /// on its queue, or did so recently.
    pub(crate) crowded: CpuBits,
    /// The shares of threads that were [woken to end](Scheduler::unpark_to_end).
    pub(crate) ending: User<M>,
}

impl<M: Machine> Scheduler<M> {
    /// The size in bytes of the memory that [`new`](Self::new) needs.
    pub const fn bytes(cpus: usize) -> usize {
        PerCpu::<Cpu<M>>::bytes(cpus) + IdleCpus::bytes(cpus) + User::<M>::bytes(cpus)
    }

    /// A scheduler for `cpus` CPUs (at most [`quire_sync::cpuset::MAX_CPUS`]) on which no threads run yet.
    ///
    /// # Safety
    /// `memory` points to [`bytes`](Self::bytes)`(cpus)` writable bytes, aligned to 128, that nothing else ever uses.
    /// The scheduler is not moved once a thread was spawned.
    pub unsafe fn new(machine: &'static M, memory: NonNull<u8>, cpus: usize) -> Self {
        let init = |cpu| Cpu {
            queue: IrqLock::new(Rank::RUN_QUEUE, RunQueue::new()),
            waiting: AtomicUsize::new(0),
            eager: AtomicUsize::new(0),
            turn_end: AtomicU64::new(NEVER),
            urgency: AtomicU8::new(0),
            share: Share::new(),
            idle: AtomicPtr::new(ptr::null_mut()),
            leaving: AtomicPtr::new(ptr::null_mut()),
            moving: AtomicBool::new(false),
            dispatched: AtomicU64::new(0),
            idling: AtomicBool::new(false),
            stretch_end: AtomicU64::new(NEVER),
            armed: AtomicU64::new(NEVER),
            has_dead: AtomicBool::new(false),
            user: AtomicU64::new(0),
            system: AtomicU64::new(0),
            idled: AtomicU64::new(0),
            at_dispatch: (AtomicU64::new(0), AtomicU64::new(0)),
            switches: AtomicU64::new(0),
            looked: AtomicU64::new(0),
            started: AtomicU64::new(0),
            ended: AtomicU64::new(0),
            blocked: AtomicU64::new(0),
            wheel_due: AtomicU64::new(NEVER),
            wheel: CachePadded(IrqLock::new(Rank::TIMER, Wheel::new(cpu))),
            watch: CachePadded(Watch::new()),
            shown: CachePadded(IrqLock::new(Rank::TIMER, Shown::default())),
        };
        // SAFETY: the caller provides the memory. It has three parts, which do not overlap, and each is used once.
        let (cpus, idle, ending) = unsafe {
            let of_idle = memory.add(PerCpu::<Cpu<M>>::bytes(cpus));
            let of_ending = of_idle.add(IdleCpus::bytes(cpus));
            (PerCpu::new(memory, cpus, init), IdleCpus::new(of_idle, cpus), User::new(of_ending, cpus))
        };
        Scheduler { machine, cpus, idle, crowded: CpuBits::new(), ending }
    }

    /// The machine on which the scheduler runs.
    pub fn machine(&self) -> &'static M {
        self.machine
    }

    /// The number of CPUs.
    pub fn cpus(&self) -> usize {
        self.cpus.len()
    }

    /// The state of this CPU. The caller has masked interrupts, or uses the result as a hint.
    #[inline(always)]
    pub(crate) fn here(&self) -> &Cpu<M> {
        self.cpus.of(current_cpu())
    }

    /// The calling thread.
    ///
    /// # Panics
    /// In debug builds, before this CPU's [`start_cpu`](Self::start_cpu).
    #[inline(always)]
    pub fn current(&self) -> Current<'_, M> {
        let thread = self.machine.current();
        debug_assert!(!thread.is_null(), "no thread runs on this CPU yet");
        // SAFETY: `start_cpu` or a switch has set the pointer, and a running thread is alive.
        Current::new(unsafe { NonNull::new_unchecked(thread.cast_mut()) })
    }

    /// Whether `thread` is the idle thread of `here`, the caller's CPU.
    #[inline(always)]
    pub(super) fn is_idle(&self, here: &Cpu<M>, thread: &Thread<M>) -> bool {
        ptr::eq(here.idle.load(Ordering::Relaxed), thread)
    }

    /// The share of CPU time to which `thread` belongs on `cpu`.
    pub(crate) fn share<'a>(&'a self, thread: &'a Thread<M>, cpu: CpuId) -> &'a Share<M> {
        self.share_on(self.cpus.of(cpu), thread, cpu)
    }

    /// As [`share`](Self::share), for a caller that has a reference to the CPU.
    #[inline(always)]
    pub(super) fn share_on<'a>(&self, on: &'a Cpu<M>, thread: &'a Thread<M>, cpu: CpuId) -> &'a Share<M> {
        // SAFETY: by the contract of `belong_to`, a user lives as long as the thread belongs to it.
        match unsafe { thread.user().as_ref() } {
            Some(user) => user.share(cpu),
            None => &on.share,
        }
    }

    /// Limits the running thread's stretch if threads wait for this CPU. If the thread may not run on this CPU any
    /// more, requests preemption at once.
    ///
    /// # Requires
    /// Interrupts are masked.
    pub(crate) fn limit_stretch(&self, here: &Cpu<M>) {
        let current = self.current();
        if self.is_idle(here, &current) {
            return;
        }
        if !current.may_run_on(current_cpu()) {
            self.machine.set_pending(true);
            return;
        }
        if here.waiting.load(Ordering::Relaxed) != 0 {
            self.end_stretch(here, &current, self.machine.ticks_to_ns(self.machine.ticks()));
        }
    }

    /// Makes the CPU `id` compute again when its running thread must yield to waiting threads, because this time may
    /// have changed.
    pub(super) fn end_turn_anew(&self, cpu: &Cpu<M>, id: CpuId) {
        if id == current_cpu() {
            // Before the first thread runs, the caller may be the machine's initialization.
            if !self.machine.current().is_null() {
                self.limit_stretch(cpu);
            }
        } else if !mutant(Mutant::QueueWithoutKick) {
            self.machine.kick(id);
        }
    }

    /// Sets the time at which `current` must yield (the end of its stretch), because other threads wait. `current` runs
    /// on this CPU, or is about to. Programs the timer for that time, or requests preemption if the stretch has ended.
    /// `now` is in nanoseconds of the CPU's counter.
    ///
    /// # Requires
    /// Interrupts are masked.
    pub(super) fn end_stretch(&self, here: &Cpu<M>, current: &Thread<M>, now: u64) {
        let ran = now.saturating_sub(here.dispatched.load(Ordering::Relaxed));
        let slice = current.slice();
        let limit = if here.eager.load(Ordering::Relaxed) > 0 { slice.min(STRETCH) } else { slice };
        let turn_end = here.turn_end.load(Ordering::Relaxed);
        let for_others = if turn_end == NEVER { NEVER } else { turn_end.saturating_sub(now) };
        let left = limit.saturating_sub(ran).min(for_others);
        if left == 0 {
            here.stretch_end.store(NEVER, Ordering::Relaxed);
            self.machine.set_pending(true);
        } else {
            here.stretch_end.store(self.machine.now().saturating_add(left), Ordering::Relaxed);
            self.program(here);
        }
    }

    /// Programs this CPU's timer to fire after a [tick](Machine::tick), unless it fires earlier already. A CPU calls
    /// this when it stops being idle, and after each timer interrupt until it is idle again.
    ///
    /// # Requires
    /// Interrupts are masked; the CPU runs a thread, or is about to.
    #[cold]
    pub(super) fn program_tick(&self, here: &Cpu<M>) {
        let due = self.machine.now().saturating_add(self.machine.tick());
        if due < here.armed.load(Ordering::Relaxed) {
            here.armed.store(due, Ordering::Relaxed);
            self.machine.arm(Some(due));
        }
    }

    /// Programs this CPU's timer if a deadline is earlier than the programmed one. If a deadline is cancelled or
    /// postponed, the timer is not programmed again: it may fire once without work, which is cheaper.
    ///
    /// # Requires
    /// Interrupts are masked.
    pub(super) fn program(&self, here: &Cpu<M>) {
        let due = here.wheel_due.load(Ordering::Relaxed).min(here.stretch_end.load(Ordering::Relaxed));
        let due = due.min(here.watch.due());
        if due < here.armed.load(Ordering::Relaxed) {
            here.armed.store(due, Ordering::Relaxed);
            self.machine.arm(Some(due));
        }
    }
}

/// The times of a CPU as they were shown, in nanoseconds.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub(super) struct Shown {
    pub user: u64,
    pub system: u64,
    pub idle: u64,
}

impl Shown {
    /// Raises the shown times to the times `now`, by the time that has passed. No part falls: a time that was shown as
    /// user time and is system time now stays user time, and later user time makes up for it.
    pub fn advance(&mut self, now: Shown) {
        let before = *self;
        let all = (now.user + now.system + now.idle).max(before.user + before.system + before.idle);
        self.idle = now.idle.clamp(before.idle, all - before.user - before.system);
        self.user = now.user.clamp(before.user, all - self.idle - before.system);
        self.system = all - self.idle - self.user;
    }
}
