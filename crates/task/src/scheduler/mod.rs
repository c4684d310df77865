//! The scheduler: how a thread leaves its CPU, and how a CPU takes the next thread.
//!
//! [`cpu`] holds the state of the CPUs; [`run_queue`], [`share`] and [`realtime`] hold their runnable threads. [`idle`]
//! and [`cpu_mask`] hold the sets of idle and of crowded CPUs. [`place`] chooses a CPU for a thread. [`timers`],
//! [`times`], [`urgency`] and [`watching`] add methods to [`Scheduler`], as this file does: parking, waking, switching.
//!
//! May use: threads, timers, tokens, and the machine's trait. Futexes are above. Invariants: a runnable thread is on
//! one queue, or runs; a thread whose context is in use is queued on its own CPU only.
//!
//! # How a thread leaves its CPU
//! A thread that parks first sets its token word to `PARKED`. From then on a waker may queue it, although it still runs
//! on its way out. That is safe because a thread whose `on_cpu` is set is queued only on its own CPU and is never
//! stolen. That CPU takes from its queue again only after it has left the thread. The CPU clears `on_cpu` (release) in
//! [`finish_switch`](Scheduler::finish_switch), on the next thread's stack. A CPU that reads it clear (acquire) finds
//! the saved context complete.
//!
//! | | parks | is preempted | exits |
//! |---|---|---|---|
//! | **waker** on another CPU | token word: taken, or queued by the waker | gives a token | gives a token in vain |
//! | **thief** | not queued; queued by a waker: `on_cpu` | queued: `on_cpu` | never queued |
//! | **interrupt** here | interrupts are masked from before `PARKED` until the next thread runs | same | same |
//!
//! No lock is held across a switch.

mod cpu;
mod cpu_mask;
pub(crate) mod idle;
mod place;
mod realtime;
mod run_queue;
pub(crate) mod share;
mod timers;
mod times;
mod urgency;
mod watching;

pub use cpu::Scheduler;
pub use realtime::Bound;
pub use share::User;
pub use times::CpuTimes;

use crate::account::bump;
use crate::irq::Masked;
use crate::list::List;
use crate::machine::{Irq, Machine};
use crate::mutant::{Mutant, mutant};
use crate::thread::{Queued, Thread, ThreadRef};
use crate::timer::Timer;
use core::mem::offset_of;
use core::ptr::{self, NonNull};
use cpu::{Cpu, NEVER};
use quire_sync::atomic::{Ordering, fence_full};
use quire_sync::cpuset::{CpuMask, MAX_CPUS};
use quire_sync::{CpuId, current_cpu};
use run_queue::RunQueue;
use share::Join;

/// The use of a thread's stack after the thread has left its CPU.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stack {
    Kept,
    /// The machine may give it to another thread: [`Machine::depart`].
    GivenUp,
}

/// Why a thread leaves its CPU.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Leave {
    Park,
    Yield,
    Preempt,
    Exit,
    /// The thread may not run on this CPU any more.
    Move,
}

impl<M: Machine> Scheduler<M> {
    /// Makes the caller the idle thread of this CPU. Called once on each CPU, with interrupts masked; the CPU then
    /// calls [`idle`](Self::idle).
    pub fn start_cpu(&self, idle: ThreadRef<M>) {
        let here = self.here();
        let now = self.machine.ticks();
        idle.on_cpu.store(true, Ordering::Relaxed);
        idle.set_home(current_cpu());
        idle.account.start(now);
        here.dispatched.store(self.machine.ticks_to_ns(now), Ordering::Relaxed);
        here.queue.lock_masked().idle = true;
        let idle = idle.into_raw();
        here.idle.store(idle.as_ptr(), Ordering::Release);
        // SAFETY: the caller is that thread from now on.
        unsafe { self.machine.set_current(idle.as_ptr()) };
    }

    /// Runs this CPU's idle thread: takes threads from its queue, steals from crowded CPUs, else halts.
    pub fn idle(&self) -> ! {
        loop {
            self.idle_once();
        }
    }

    /// One turn of [`idle`](Self::idle): runs threads until none is left. Else it does one step of deferred work, or
    /// halts until an interrupt.
    pub fn idle_once(&self) {
        self.reap_dead();
        // A waker that makes a thread runnable meanwhile interrupts the step, and the next turn finds the thread.
        if self.here().waiting.load(Ordering::Acquire) == 0 && self.crowded.any(0).is_none() && self.machine.idle_work()
        {
            return;
        }
        let was = self.machine.mask();
        let here = self.here();
        let work = || here.waiting.load(Ordering::Acquire) != 0 || self.crowd_has_for(current_cpu());
        let early = mutant(Mutant::LookBeforeIdle).then(work);
        // Mark idle first, then search: a CPU that becomes crowded marks itself first, then searches for an idle one.
        self.idle.insert(current_cpu());
        if early.unwrap_or_else(work) {
            self.switch_from(Leave::Yield, Stack::Kept);
            self.machine.restore(was);
            if here.waiting.load(Ordering::Acquire) == 0 {
                quire_sync::hooks::relax();
            }
            return;
        }
        // A waker that queues a thread here from now on finds the queue marked idle and interrupts the halt. Interrupts
        // are masked until the CPU halts, so the interrupt is not lost.
        self.machine.halt();
    }

    /// Makes a new thread runnable, on an idle CPU that it may run on if there is one. The scheduler keeps the
    /// reference until the thread has exited, then passes it to [`Machine::reap`].
    pub fn spawn(&self, thread: ThreadRef<M>) {
        let cpu = self.place_new(&thread);
        self.spawn_on(thread, cpu);
    }

    /// As [`spawn`](Self::spawn), on `cpu`: for threads that belong to a CPU, or a child that its parent waits for.
    pub fn spawn_on(&self, thread: ThreadRef<M>, cpu: CpuId) {
        let thread = thread.into_raw();
        let masked = Masked::new(self.machine);
        bump(&self.here().started, 1);
        // SAFETY: the count that `into_raw` gave up keeps the thread alive until it is reaped.
        self.enqueue_masked(&masked, unsafe { thread.as_ref() }, cpu, Join::Back, false);
    }

    /// The first call of a new thread, and of a preempted thread that gave its stack up, on its new stack, with
    /// interrupts masked: finishes the switch to it, and unmasks interrupts.
    pub fn started(&self) {
        self.finish_switch();
        self.machine.restore(Irq::On);
        self.reap_dead();
    }

    /// Sleeps until unparked, or until `deadline` ([`Machine::now`]'s nanoseconds). Returns at once if a token waits.
    /// May also return early, so callers check their condition again. The caller holds no spin lock.
    pub fn park(&self, deadline: Option<u64>) {
        self.sleep(deadline, Stack::Kept);
    }

    /// As [`park`](Self::park), for a caller that needs nothing of its stack any more: see [`Machine::depart`]. Where
    /// the machine gives the stack to another thread, this returns only if the caller did not sleep. Else the thread
    /// goes on at the machine's own place, which calls [`resumed`](Self::resumed).
    ///
    /// # Safety
    /// Where the machine gives the stack to another thread: the machine knows how the thread goes on, and no code holds
    /// a reference into the stack.
    pub unsafe fn depart(&self, deadline: Option<u64>) {
        self.sleep(deadline, Stack::GivenUp);
    }

    fn sleep(&self, deadline: Option<u64>, stack: Stack) {
        let me = self.current();
        // An uncontended token costs no switch, no timer and no masking.
        if me.token.is_set() && me.token.take() {
            return;
        }
        if let Some(deadline) = deadline {
            if deadline <= self.machine.now() {
                return;
            }
            me.scheduler.store(ptr::from_ref(self).cast_mut().cast(), Ordering::Relaxed);
            // SAFETY: the timer is part of the thread, which stays alive until the cancel below.
            unsafe { self.arm(&me.deadline, deadline) };
        }
        let was = self.machine.mask();
        if me.token.park() {
            self.switch_from(Leave::Park, stack);
            me.token.take();
        }
        self.machine.restore(was);
        self.slept(&me, deadline.is_some());
    }

    fn slept(&self, me: &Thread<M>, had_deadline: bool) {
        if had_deadline && !mutant(Mutant::DeadlineStaysArmed) {
            self.cancel(&me.deadline);
        }
        self.reap_dead();
    }

    /// The first call of a thread that gave its stack up when it parked, on its new stack, with interrupts masked:
    /// finishes the switch to it and its sleep, and unmasks interrupts.
    pub fn resumed(&self) {
        self.finish_switch();
        let me = self.current();
        me.token.take();
        self.machine.restore(Irq::On);
        // Not armed if the sleep had no deadline, or the deadline ended it.
        self.slept(&me, true);
    }

    /// As [`park`](Self::park) without a deadline, and no signal ends the sleep either: the thread is marked
    /// uninterruptible.
    pub fn park_uninterruptibly(&self) {
        let count = |by: u64| {
            let _masked = Masked::new(self.machine);
            bump(&self.here().blocked, by);
        };
        self.current().uninterruptible.store(true, Ordering::Relaxed);
        count(1);
        self.park(None);
        count(1u64.wrapping_neg());
        self.current().uninterruptible.store(false, Ordering::Relaxed);
    }

    /// Gives `thread` its token, and queues it where it sleeps. Callable from interrupts and under any lock of a rank
    /// below the run queue's.
    pub fn unpark(&self, thread: &Thread<M>) {
        if thread.token.give() {
            let cpu = self.place(thread);
            let join = if thread.has_slice() { Join::Front } else { Join::Back };
            self.enqueue(thread, cpu, join);
        }
    }

    /// As [`unpark`](Self::unpark), for a thread that has nothing to do but to end. If it sleeps, and `CROWD`
    /// threads of its user wait already, it belongs to the shares of ending threads from then on. Those stand beside
    /// the shares of users. So a user with 100,000 threads that end at once still has the CPU time of a user for the
    /// others. A thread that runs, or waits for a CPU, stays where it is.
    pub fn unpark_to_end(&self, thread: &Thread<M>) {
        if thread.token.give() {
            let cpu = self.place(thread);
            let join = if thread.has_slice() { Join::Front } else { Join::Back };
            self.enqueue_masked(&Masked::new(self.machine), thread, cpu, join, true);
        }
    }

    /// Lets all other threads that wait for this CPU go first.
    pub fn yield_now(&self) {
        let was = self.machine.mask();
        self.switch_from(Leave::Yield, Stack::Kept);
        self.machine.restore(was);
        self.reap_dead();
    }

    /// As [`yield_now`](Self::yield_now), for a thread that waits for the work of another: less urgent threads get
    /// their turn too.
    pub fn yield_to_all(&self) {
        const WHILE: u64 = 1_000_000;
        match self.current().urgency() {
            0 => self.yield_now(),
            _ => self.park(Some(self.machine.now().saturating_add(WHILE))),
        }
    }

    /// Switches to a waiting thread if the running thread's stretch has ended. Called by `preempt_enable` and on the
    /// way out of interrupts, when the flag of [`Machine::set_pending`] is up and the preemption count is zero.
    pub fn preempt(&self) {
        self.give_way(Stack::Kept);
    }

    /// As [`preempt`](Self::preempt), on the way to user mode, for a thread that needs nothing of its stack any more:
    /// see [`Machine::depart`]. Where the machine gives the stack to another thread, this returns only if the thread
    /// did not leave its CPU. Else the thread goes on at the machine's own place, which calls
    /// [`started`](Self::started).
    ///
    /// # Safety
    /// As [`depart`](Self::depart).
    pub unsafe fn preempt_departing(&self) {
        self.give_way(Stack::GivenUp);
    }

    fn give_way(&self, stack: Stack) {
        let was = self.machine.mask();
        let here = self.here();
        bump(&here.looked, 1);
        // The idle thread is not preempted: its loop checks the queue after every interrupt.
        let current = self.current();
        let gives_way = here.waiting.load(Ordering::Relaxed) > 0 || !current.may_run_on(current_cpu());
        if gives_way && !self.is_idle(here, &current) {
            self.switch_from(Leave::Preempt, stack);
        } else {
            self.machine.set_pending(false);
        }
        self.machine.restore(was);
        if was == Irq::On {
            self.reap_dead();
        }
    }

    /// Ends the calling thread. Its reference reaches [`Machine::reap`] once its stack is no longer in use.
    pub fn exit(&self) -> ! {
        self.reap_dead();
        self.machine.mask();
        self.current().dying.store(true, Ordering::Relaxed);
        self.switch_from(Leave::Exit, Stack::Kept);
        unreachable!("Machine::switch came back to a thread that has exited");
    }

    /// The timer interrupt: expires timers, and detects the end of the running thread's stretch.
    pub fn timer_interrupt(&self) {
        let _masked = Masked::new(self.machine);
        let here = self.here();
        let now = self.machine.now();
        here.armed.store(NEVER, Ordering::Relaxed);
        if here.wheel_due.load(Ordering::Relaxed) <= now {
            let mut wheel = here.wheel.lock_masked();
            wheel.expire(now);
            here.wheel_due.store(wheel.next().unwrap_or(NEVER), Ordering::Relaxed);
        }
        if here.stretch_end.load(Ordering::Relaxed) <= now {
            here.stretch_end.store(NEVER, Ordering::Relaxed);
            if here.waiting.load(Ordering::Relaxed) > 0 {
                // Never lowered here: it may stand for a change of the running thread's affinity.
                self.machine.set_pending(true);
            }
        }
        if here.watch.due() <= now {
            self.watch_tick(here, now);
        }
        self.program(here);
        if self.machine.tick() != 0 && !self.is_idle(here, &self.current()) {
            self.program_tick(here);
        }
    }

    /// Restricts `thread` to the CPUs of `allowed`. The calling thread has moved when this returns. A thread that runs
    /// elsewhere leaves that CPU at the interrupt that this sends. A waiting thread moves to another CPU when its turn
    /// comes. Returns false, and changes nothing, if the machine has none of these CPUs.
    pub fn set_affinity(&self, thread: &Thread<M>, allowed: &CpuMask) -> bool {
        let machine = CpuMask::first(self.cpus.len());
        if allowed.and(&machine).is_empty() {
            return false;
        }
        // A thread with all CPUs of this machine counts as unrestricted.
        let all = allowed.and(&machine) == machine;
        thread.restrict(&if all { CpuMask::first(MAX_CPUS) } else { *allowed });
        // A CPU that takes the thread off a queue reads the mask after it has locked that queue, under whose lock
        // `home` is written. Either it sees the new mask, or this thread sees the CPU that runs it.
        fence_full();
        let was = self.machine.mask();
        loop {
            let home = thread.home();
            let queue = self.cpus.of(home).queue.lock_masked();
            if thread.home() != home {
                continue;
            }
            drop(queue);
            if thread.may_run_on(home) {
                break;
            }
            if !ptr::eq(&*self.current(), thread) {
                if home == current_cpu() {
                    break; // It waits here.
                }
                self.machine.kick(home);
                break;
            }
            self.switch_from(Leave::Move, Stack::Kept);
            break;
        }
        self.machine.restore(was);
        if was == Irq::On {
            self.reap_dead();
        }
        true
    }

    /// Moves the calling thread to the shares of `user`. `None` means the share that each CPU keeps for the kernel and
    /// user 0.
    ///
    /// # Safety
    /// As [`Thread::belong_to`]; the user that it had lives until this returns.
    pub unsafe fn become_user(&self, user: Option<NonNull<User<M>>>) {
        if self.current().user() == user.map_or(ptr::null(), |user| user.as_ptr().cast_const()) {
            return;
        }
        let _masked = Masked::new(self.machine);
        let (cpu, here, me) = (current_cpu(), self.here(), self.current());
        let mut queue = here.queue.lock_masked();
        // SAFETY: the caller vouches for the user as `belong_to` requires, and the lock of this CPU's queue is held.
        unsafe { me.belong_to(user) };
        queue.run(&me, self.share(&me, cpu), self.machine.ticks_to_ns(self.machine.ticks()));
        self.note(here, cpu, &queue);
        drop(queue);
        self.limit_stretch(here);
    }

    /// The reschedule interrupt: another CPU has queued a thread here, or the running thread may not run here any more.
    pub fn kicked(&self) {
        let _masked = Masked::new(self.machine);
        let here = self.here();
        if here.watch.due() == NEVER {
            self.watch_kicked(here);
        }
        self.limit_stretch(here);
    }

    /// Gives the CPU to the next thread. Returns, with interrupts still masked, when the caller gets a CPU again
    /// (perhaps another one).
    ///
    /// # Requires
    /// Interrupts are masked; the preemption count is zero; no lock is held.
    fn switch_from(&self, mut why: Leave, stack: Stack) {
        let cpu = current_cpu();
        let here = self.cpus.of(cpu);
        let prev = self.current();
        let prev_idle = self.is_idle(here, &prev);
        if matches!(why, Leave::Yield | Leave::Preempt) && !prev_idle && !prev.may_run_on(cpu) {
            why = Leave::Move;
        }
        let ticks = self.machine.ticks();
        prev.account.cut_system(ticks);
        let now = self.machine.ticks_to_ns(ticks);
        let run = now.saturating_sub(here.dispatched.load(Ordering::Relaxed));
        let weighted = prev.use_slice(run);
        self.machine.set_pending(false);

        // Threads that waited here when their affinity changed.
        let mut strays: List<Queued<M>> = List::new();
        let next = {
            let mut queue = here.queue.lock_masked();
            queue.charge(now, run, weighted);
            let share = || self.share_on(here, &prev, cpu);
            match why {
                Leave::Preempt if prev.has_slice() => {
                    let join = if prev.urgency() > 0 { Join::Resume } else { queue.preempted() };
                    queue.push(&prev, share(), join, || now);
                }
                Leave::Preempt => queue.push(&prev, share(), Join::Back, || now),
                Leave::Yield if !prev_idle => {
                    queue.give_way();
                    prev.end_slice();
                    queue.push(&prev, share(), Join::Back, || now);
                }
                Leave::Yield | Leave::Park | Leave::Exit | Leave::Move => {}
            }
            let next = pop_fitting(&mut queue, &prev, cpu, now, &mut strays);
            queue.idle = next.is_none();
            self.note_inline(here, cpu, &queue);
            if why == Leave::Preempt {
                self.offer(cpu, &queue, &prev);
            }
            next
        };
        while let Some(stray) = strays.pop_front() {
            // SAFETY: it was queued, so it is alive.
            let stray = unsafe { stray.as_ref() };
            self.enqueue(stray, self.place(stray), Join::Front);
        }
        // Search elsewhere only now: a CPU never holds two queue locks. This queue is marked idle meanwhile, so a CPU
        // that queues a thread here sends an interrupt.
        let next = next.or_else(|| self.steal(cpu, now));
        let next = next.unwrap_or_else(|| {
            self.idle.insert(cpu);
            // SAFETY: `start_cpu` stored this CPU's idle thread before the CPU scheduled for the first time.
            unsafe { NonNull::new_unchecked(here.idle.load(Ordering::Relaxed)) }
        });
        // SAFETY: it was queued, or is the idle thread: alive, and this CPU's alone now.
        let next = unsafe { next.as_ref() };
        if prev_idle && !ptr::eq(next, &*prev) {
            self.idle.take(cpu);
            if !here.watch.is_busy() {
                self.watch_busy(here);
            }
            if self.machine.tick() != 0 {
                self.program_tick(here);
            }
        }

        self.charge(here, &prev, prev_idle, next);
        here.dispatched.store(now, Ordering::Relaxed);
        here.stretch_end.store(NEVER, Ordering::Relaxed);
        if ptr::eq(next, &*prev) {
            self.limit_stretch(here);
            return;
        }
        let count = if why == Leave::Preempt { &prev.involuntary } else { &prev.voluntary };
        bump(count, 1);
        bump(&here.switches, 1);
        next.account.start(ticks);
        next.on_cpu.store(true, Ordering::Relaxed);
        here.leaving.store(ptr::from_ref(&*prev).cast_mut(), Ordering::Relaxed);
        here.moving.store(why == Leave::Move, Ordering::Relaxed);
        // SAFETY: interrupts are masked, and the switch to `next` follows on this CPU.
        unsafe { self.machine.set_current(next) };
        // The queue let it go under its lock, so it may run here. If that changes, an interrupt comes.
        if here.waiting.load(Ordering::Relaxed) != 0 && !self.is_idle(here, next) {
            self.end_stretch(here, next, now);
        }
        // SAFETY: `prev` is the caller, `next` was off its CPU (its `on_cpu` was clear) and is claimed by the lines
        // above. A caller that gives its stack up holds nothing on it.
        unsafe {
            match stack {
                Stack::Kept => self.machine.switch(&prev, next),
                Stack::GivenUp => self.machine.depart(&prev, next),
            }
        }
        self.finish_switch();
    }

    /// Runs on the stack of the thread that got the CPU: the previous one has left now.
    #[inline]
    fn finish_switch(&self) {
        let here = self.here();
        let prev = here.leaving.load(Ordering::Relaxed);
        here.leaving.store(ptr::null_mut(), Ordering::Relaxed);
        // SAFETY: it ran on this CPU until the switch, and cannot be reaped before the lines below.
        let Some(prev) = (unsafe { prev.as_ref() }) else { return };
        if prev.dying.load(Ordering::Relaxed) {
            return self.bury(here, prev);
        }
        let moves = here.moving.load(Ordering::Relaxed);
        // From here on another CPU may run it.
        prev.on_cpu.store(false, if mutant(Mutant::LeftRelaxed) { Ordering::Relaxed } else { Ordering::Release });
        if moves {
            self.move_away(prev);
        }
    }

    /// `thread` has exited, and left this CPU.
    #[cold]
    fn bury(&self, here: &Cpu<M>, thread: &Thread<M>) {
        thread.on_cpu.store(false, Ordering::Relaxed);
        bump(&here.ended, 1);
        // SAFETY: it exited, so it is on no queue; the scheduler's own count keeps it alive.
        unsafe { here.queue.lock_masked().dead.push_back(NonNull::from(thread)) };
        here.has_dead.store(true, Ordering::Relaxed);
    }

    /// Queues a thread that has left this CPU because it may not run here any more.
    #[cold]
    fn move_away(&self, thread: &Thread<M>) {
        // It neither waits on a queue nor sleeps, so no other CPU queues it.
        self.enqueue(thread, self.place(thread), Join::Front);
    }

    /// Passes the threads that have exited on this CPU to the machine.
    ///
    /// # Requires
    /// Interrupts are on, no lock is held.
    #[inline]
    fn reap_dead(&self) {
        if self.here().has_dead.load(Ordering::Relaxed) {
            self.reap_all();
        }
    }

    #[cold]
    fn reap_all(&self) {
        loop {
            let masked = Masked::new(self.machine);
            let here = self.here();
            let dead = here.queue.lock_masked().dead.pop_front();
            if dead.is_none() {
                here.has_dead.store(false, Ordering::Relaxed);
            }
            drop(masked);
            let Some(dead) = dead else { return };
            // SAFETY: the count that `spawn` took over.
            self.machine.reap(unsafe { ThreadRef::adopt(dead) });
        }
    }

    /// Adds the time that `prev` has used since its dispatch to its CPU's times.
    fn charge(&self, here: &Cpu<M>, prev: &Thread<M>, prev_idle: bool, next: &Thread<M>) {
        let (user, system) = prev.account.ticks();
        let (user_then, system_then) = (&here.at_dispatch.0, &here.at_dispatch.1);
        let (user, system) = (user - user_then.load(Ordering::Relaxed), system - system_then.load(Ordering::Relaxed));
        bump(&here.user, user);
        bump(if prev_idle { &here.idled } else { &here.system }, system);
        let (user, system) = next.account.ticks();
        user_then.store(user, Ordering::Relaxed);
        system_then.store(system, Ordering::Relaxed);
    }
}

impl<M: Machine> Thread<M> {
    /// A thread that has never run, with one reference. Its maker places it and wraps it by [`ThreadRef::adopt`].
    /// `release` is called once, when the last reference is dropped, and frees the memory.
    pub fn new(context: M::Context, payload: M::Payload, release: unsafe fn(NonNull<Thread<M>>)) -> Self {
        Thread::made(context, payload, release, park_deadline::<M>)
    }
}

/// The deadline of a park has passed.
///
/// # Safety
/// `timer` is the deadline of a thread that is alive.
unsafe fn park_deadline<M: Machine>(timer: NonNull<Timer>, _now: u64) -> Option<u64> {
    // SAFETY: armed by `park` only, as part of a thread that cancels it before its `park` returns; `park` ran on that
    // scheduler.
    unsafe {
        let thread = timer.byte_sub(offset_of!(Thread<M>, deadline)).cast::<Thread<M>>().as_ref();
        let scheduler = thread.scheduler.load(Ordering::Relaxed).cast::<Scheduler<M>>();
        if let Some(scheduler) = scheduler.as_ref() {
            scheduler.unpark(thread);
        }
    }
    None
}

/// Takes the thread that runs next on `cpu` off its queue. Threads before it that may not run there any more go to
/// `strays`, except for `prev`, which has the CPU still.
#[inline(always)]
fn pop_fitting<M: Machine>(
    queue: &mut RunQueue<M>,
    prev: &Thread<M>,
    cpu: CpuId,
    now: u64,
    strays: &mut List<Queued<M>>,
) -> Option<NonNull<Thread<M>>> {
    loop {
        let next = queue.pop(now);
        // SAFETY: it was queued, so it is alive.
        let stray = next.filter(|n| !unsafe { n.as_ref() }.may_run_on(cpu) && *n != NonNull::from(prev));
        let Some(stray) = stray else { return next };
        // SAFETY: `pop` took the thread off its list, and it stays alive: it is runnable.
        unsafe { strays.push_back(stray) };
    }
}
