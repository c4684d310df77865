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
//! A thread that parks first sets its token word to `PARKED`. From then on a waker may queue the thread, although the
//! thread still runs on its old CPU until the switch. That is safe because a thread whose `on_cpu` is set is queued
//! only on its own CPU. No other CPU takes it from that queue, and its own CPU takes a thread from the queue again only
//! after the switch. The CPU clears `on_cpu` (release) in [`finish_switch`](Scheduler::finish_switch), on the next
//! thread's stack. A CPU that reads `on_cpu` clear (acquire) finds the saved context complete.
//!
//! | | parks | is preempted | exits |
//! |---|---|---|---|
//! | **waker** on another CPU | before `PARKED`: leaves a token; after it: queues the thread | leaves a token | leaves a token, without effect |
//! | **idle CPU** that looks for a thread | skips the thread while `on_cpu` is set | skips the thread while `on_cpu` is set | never finds the thread, which is on no queue |
//! | **interrupt** on this CPU | masked from before `PARKED` until the next thread runs | masked during the switch | masked during the switch |
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
use quire_sync::atomic::{Ordering, fence, fence_full};
use quire_sync::cpuset::{CpuMask, MAX_CPUS};
use quire_sync::{CpuId, current_cpu};
use run_queue::RunQueue;
use share::Join;

/// Whether a thread needs its kernel stack after it has left its CPU.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stack {
    Kept,
    /// The machine may give the stack to another thread: [`Machine::depart`].
    GivenUp,
}

/// Why a thread leaves its CPU.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Leave {
    Park,
    Yield,
    Preempt,
    Exit,
    /// The thread's new affinity excludes this CPU.
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
        here.idling.store(true, Ordering::Relaxed);
        here.queue.lock_masked().idle = true;
        let idle = idle.into_raw();
        here.idle.store(idle.as_ptr(), Ordering::Release);
        // SAFETY: the caller runs as that thread from now on.
        unsafe { self.machine.set_current(idle.as_ptr()) };
    }

    /// Runs this CPU's idle loop: runs threads of this CPU's queue, then threads of crowded CPUs' queues, else halts.
    pub fn idle(&self) -> ! {
        loop {
            self.idle_once();
        }
    }

    /// One iteration of [`idle`](Self::idle). If threads wait, runs them until none is left. Otherwise does one step of
    /// deferred work, or halts until an interrupt.
    pub fn idle_once(&self) {
        self.reap_dead();
        // A waker that makes a thread runnable during `idle_work` interrupts this CPU. The next iteration finds the
        // thread.
        if self.here().waiting.load(Ordering::Acquire) == 0 && self.crowded.any(0).is_none() && self.machine.idle_work()
        {
            return;
        }
        let was = self.machine.mask();
        let here = self.here();
        let work = || here.waiting.load(Ordering::Acquire) != 0 || self.crowd_has_for(current_cpu());
        let early = mutant(Mutant::LookBeforeIdle).then(work);
        // Mark this CPU as idle before the search for threads. A CPU that becomes crowded marks itself before it
        // searches for an idle CPU. So at least one of the two sees the other.
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

    /// Makes a new thread runnable, on an idle CPU if its affinity allows one. The scheduler keeps the reference until
    /// the thread has exited, and then passes it to [`Machine::reap`].
    pub fn spawn(&self, thread: ThreadRef<M>) {
        let cpu = self.place_new(&thread);
        self.spawn_on(thread, cpu);
    }

    /// Makes a new thread runnable on `cpu`, unlike [`spawn`](Self::spawn), which chooses a CPU itself. Used for
    /// per-CPU threads, and for a child for which its parent waits.
    pub fn spawn_on(&self, thread: ThreadRef<M>, cpu: CpuId) {
        let thread = thread.into_raw();
        let masked = Masked::new(self.machine);
        bump(&self.here().started, 1);
        // SAFETY: the reference from which `into_raw` got the pointer keeps the thread alive until it is reaped.
        self.enqueue_masked(&masked, unsafe { thread.as_ref() }, cpu, Join::Back, false);
    }

    /// Finishes the switch to the calling thread, and unmasks interrupts. It is the first call of a new thread, and of
    /// a preempted thread that gave up its stack. The caller runs on its new stack, with interrupts masked.
    pub fn started(&self) {
        self.finish_switch();
        self.machine.restore(Irq::On);
        self.reap_dead();
    }

    /// Puts the calling thread to sleep until another thread unparks it, or until `deadline`, in nanoseconds of
    /// [`Machine::now`]. Returns at once if the thread has a wake-up token already. May also return early, so callers
    /// check their condition again. The caller holds no spin lock.
    pub fn park(&self, deadline: Option<u64>) {
        self.sleep(deadline, Stack::Kept);
    }

    /// As [`park`](Self::park), for a caller that no longer needs its stack: see [`Machine::depart`]. If the machine
    /// gives the stack to another thread, `depart` does not return. The thread then continues in a function of the
    /// kernel, which calls [`resumed`](Self::resumed). If the thread does not sleep, `depart` returns.
    ///
    /// # Safety
    /// If the machine gives the stack to another thread: the machine knows where the thread continues, and no code
    /// holds a reference into the stack.
    pub unsafe fn depart(&self, deadline: Option<u64>) {
        self.sleep(deadline, Stack::GivenUp);
    }

    fn sleep(&self, deadline: Option<u64>, stack: Stack) {
        let me = self.current();
        // Fast path: a token is there already, so no switch, timer or interrupt masking is needed.
        if me.token.is_set() && me.token.take() {
            return;
        }
        if let Some(deadline) = deadline {
            if deadline <= self.machine.now() {
                return;
            }
            me.scheduler.store(ptr::from_ref(self).cast_mut().cast(), Ordering::Relaxed);
            // SAFETY: the timer is a field of the calling thread, which is alive until the cancel in `slept`.
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

    /// Finishes the switch to the calling thread, unmasks interrupts, and ends the thread's sleep. It is the first call
    /// of a thread that gave up its stack when it parked. The thread runs on its new stack, with interrupts masked.
    pub fn resumed(&self) {
        self.finish_switch();
        let me = self.current();
        me.token.take();
        self.machine.restore(Irq::On);
        // `slept` cancels the deadline timer. That has no effect if the timer is not armed.
        self.slept(&me, true);
    }

    /// As [`park`](Self::park) without a deadline, and marks the thread as uninterruptible: a signal does not wake it.
    /// The thread may hold locks of the kernel. So it runs soon after its wake-up, even if its turn was used up.
    pub fn park_uninterruptibly(&self) {
        let count = |by: u64| {
            let _masked = Masked::new(self.machine);
            bump(&self.here().blocked, by);
        };
        let run = {
            let _masked = Masked::new(self.machine);
            let now = self.machine.ticks_to_ns(self.machine.ticks());
            now.saturating_sub(self.here().dispatched.load(Ordering::Relaxed))
        };
        let me = self.current();
        me.keep_slice(run, run_queue::STRETCH as u32);
        me.uninterruptible.store(true, Ordering::Relaxed);
        count(1);
        self.park(None);
        count(1u64.wrapping_neg());
        self.current().uninterruptible.store(false, Ordering::Relaxed);
    }

    /// Gives `thread` a wake-up token, and queues the thread if it sleeps. Callable from interrupts and under any lock
    /// of a rank below the run queue's.
    pub fn unpark(&self, thread: &Thread<M>) {
        if thread.token.give() {
            let cpu = self.place(thread);
            let join = if thread.has_slice() { Join::Front } else { Join::Back };
            self.enqueue(thread, cpu, join);
        }
    }

    /// As [`unpark`](Self::unpark), for a thread that has nothing to do but to end. If it sleeps or waits for a CPU, and
    /// [`CROWD`](place::CROWD) threads of its user wait before it, it belongs to the shares of ending threads from then
    /// on. Those stand beside the shares of users. So a user with 100,000 threads that end at once still has the CPU
    /// time of a user for the others. A process that is killed for its memory frees it soon, however many threads of
    /// its user want a turn. A running thread calls [`leave_crowd`](Self::leave_crowd) itself.
    pub fn unpark_to_end(&self, thread: &Thread<M>) {
        if thread.token.give() {
            let cpu = self.place(thread);
            let join = if thread.has_slice() { Join::Front } else { Join::Back };
            self.enqueue_masked(&Masked::new(self.machine), thread, cpu, join, true);
        } else {
            self.hasten(thread);
        }
    }

    /// Moves the calling thread, which begins to end, to the shares of ending threads if many threads of its user wait
    /// for this CPU.
    pub fn leave_crowd(&self) {
        if self.here().waiting.load(Ordering::Relaxed) >= place::CROWD {
            self.leave_crowd_now();
        }
    }

    #[cold]
    fn leave_crowd_now(&self) {
        let is_crowd = {
            let _masked = Masked::new(self.machine);
            let (here, me) = (self.here(), self.current());
            let _queue = here.queue.lock_masked();
            !me.user().is_null() && self.share_on(here, &me, current_cpu()).len() >= place::CROWD
        };
        if is_crowd {
            // SAFETY: the shares of ending threads live as long as the scheduler. The thread's charge keeps its
            // previous user alive.
            unsafe { self.become_user(Some(NonNull::from(&self.ending))) };
        }
    }

    /// Yields the CPU: threads that wait for it run before the caller runs again.
    pub fn yield_now(&self) {
        let was = self.machine.mask();
        self.switch_from(Leave::Yield, Stack::Kept);
        self.machine.restore(was);
        self.reap_dead();
    }

    /// Yields the CPU as [`yield_now`](Self::yield_now) does, for a thread that waits for another thread's work. A
    /// real-time caller sleeps for a millisecond instead, so that less urgent threads run too.
    pub fn yield_to_all(&self) {
        const WHILE: u64 = 1_000_000;
        match self.current().urgency() {
            0 => self.yield_now(),
            _ => self.park(Some(self.machine.now().saturating_add(WHILE))),
        }
    }

    /// Preempts the calling thread, which runs in the kernel, if another thread waits for this CPU. Called by
    /// `preempt_enable` and on the return from interrupts to the kernel, when the flag of [`Machine::set_pending`] is
    /// set and the preemption count is zero. A thread whose turn is used up here continues before other threads of its
    /// user, for a few turns, because it may hold a lock.
    pub fn preempt(&self) {
        self.give_way(Stack::Kept);
    }

    /// As [`preempt`](Self::preempt), on the return to user mode, for a thread that no longer needs its stack: see
    /// [`Machine::depart`]. If the machine gives the stack to another thread, `preempt_departing` does not return. The
    /// thread then continues in a function of the kernel, which calls [`started`](Self::started). If the CPU does not
    /// switch threads, `preempt_departing` returns.
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

    /// Ends the calling thread. The scheduler passes its reference to [`Machine::reap`] once the thread's stack is no
    /// longer in use.
    pub fn exit(&self) -> ! {
        self.reap_dead();
        self.machine.mask();
        self.current().dying.store(true, Ordering::Relaxed);
        self.switch_from(Leave::Exit, Stack::Kept);
        unreachable!("Machine::switch came back to a thread that has exited");
    }

    /// Handles the timer interrupt: expires timers, and requests preemption if the running thread's stretch has ended.
    /// The stretch is the time for which it may keep the CPU while other threads wait.
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
                // This handler never clears the flag. Another CPU may have set it after a change of the running
                // thread's affinity.
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

    /// Restricts `thread` to the CPUs of `allowed`. Returns false, and changes nothing, if the machine has none of
    /// these CPUs.
    ///
    /// The calling thread has moved to an allowed CPU when the function returns. A thread that runs on another CPU gets
    /// an interrupt, which makes it leave that CPU. A waiting thread moves when its old CPU takes it off the queue.
    pub fn set_affinity(&self, thread: &Thread<M>, allowed: &CpuMask) -> bool {
        let machine = CpuMask::first(self.cpus.len());
        if allowed.and(&machine).is_empty() {
            return false;
        }
        // A thread that may run on all CPUs of this machine counts as unrestricted.
        let all = allowed.and(&machine) == machine;
        thread.restrict(&if all { CpuMask::first(MAX_CPUS) } else { *allowed });
        // Another CPU may take the thread off its queue at this moment. That CPU locks the queue, reads the affinity,
        // and writes `home` before it unlocks the queue. This function writes the affinity, executes the fence, and
        // then reads `home` under the lock of the same queue. So either that CPU sees the new affinity, or this
        // function sees the new `home`.
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
    /// As [`Thread::belong_to`]; the thread's previous user lives until this function returns.
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

    /// Handles the reschedule interrupt: another CPU has queued a thread here, or has excluded this CPU from the
    /// affinity of the running thread.
    pub fn kicked(&self) {
        let _masked = Masked::new(self.machine);
        let here = self.here();
        if here.watch.due() == NEVER {
            self.watch_kicked(here);
        }
        self.limit_stretch(here);
    }

    /// Switches to the next thread. Returns, with interrupts still masked, when the caller runs again, perhaps on
    /// another CPU.
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

        // Threads of this queue whose affinity now excludes this CPU.
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
                Leave::Preempt if stack == Stack::Kept && prev.overruns() => {
                    queue.push(&prev, share(), Join::Resume, || now);
                }
                Leave::Preempt => {
                    prev.turn_is_over();
                    queue.push(&prev, share(), Join::Back, || now);
                }
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
            // SAFETY: the thread was queued, so it is alive.
            let stray = unsafe { stray.as_ref() };
            self.enqueue(stray, self.place(stray), Join::Front);
        }
        // Search other CPUs' queues only after this queue is unlocked, because a CPU never holds two queue locks. This
        // queue is marked idle during the search, so a CPU that queues a thread here sends an interrupt.
        let next = next.or_else(|| self.steal(cpu, now));
        let next = next.unwrap_or_else(|| {
            self.idle.insert(cpu);
            // SAFETY: `start_cpu` stored this CPU's idle thread before the CPU scheduled for the first time.
            unsafe { NonNull::new_unchecked(here.idle.load(Ordering::Relaxed)) }
        });
        // SAFETY: the thread was queued, or is this CPU's idle thread. So it is alive, and no other CPU can run it.
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

        here.dispatched.store(now, Ordering::Relaxed);
        // A reader that sees the times below sees this dispatch too.
        fence(Ordering::Release);
        self.charge(here, &prev, prev_idle, next);
        here.idling.store(self.is_idle(here, next), Ordering::Relaxed);
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
        // `next` may run on this CPU: its affinity was checked under the queue's lock. A CPU that changes the affinity
        // after that check sends an interrupt.
        if here.waiting.load(Ordering::Relaxed) != 0 && !self.is_idle(here, next) {
            self.end_stretch(here, next, now);
        }
        // SAFETY: `prev` is the caller. `next` had left its CPU (its `on_cpu` was clear), and the lines above claim it
        // for this CPU. A caller that gives up its stack has no reference into it.
        unsafe {
            match stack {
                Stack::Kept => self.machine.switch(&prev, next),
                Stack::GivenUp => self.machine.depart(&prev, next),
            }
        }
        self.finish_switch();
    }

    /// Completes a switch, on the stack of the next thread: publishes that the previous thread has left this CPU.
    #[inline]
    fn finish_switch(&self) {
        let here = self.here();
        let prev = here.leaving.load(Ordering::Relaxed);
        here.leaving.store(ptr::null_mut(), Ordering::Relaxed);
        // SAFETY: the previous thread ran on this CPU until the switch. It is reaped or freed only after `on_cpu` is
        // cleared below.
        let Some(prev) = (unsafe { prev.as_ref() }) else { return };
        if prev.dying.load(Ordering::Relaxed) {
            return self.bury(here, prev);
        }
        let moves = here.moving.load(Ordering::Relaxed);
        // After this store another CPU may run the thread.
        prev.on_cpu.store(false, if mutant(Mutant::LeftRelaxed) { Ordering::Relaxed } else { Ordering::Release });
        if moves {
            self.move_away(prev);
        }
    }

    /// Puts `thread`, which has exited and left this CPU, on the CPU's list of dead threads.
    #[cold]
    fn bury(&self, here: &Cpu<M>, thread: &Thread<M>) {
        thread.on_cpu.store(false, Ordering::Relaxed);
        bump(&here.ended, 1);
        // SAFETY: the thread has exited, so it is on no queue; the scheduler's own reference keeps it alive.
        unsafe { here.queue.lock_masked().dead.push_back(NonNull::from(thread)) };
        here.has_dead.store(true, Ordering::Relaxed);
    }

    /// Queues, on another CPU, a thread that has left this CPU because its affinity excludes this CPU.
    #[cold]
    fn move_away(&self, thread: &Thread<M>) {
        // The thread neither waits on a queue nor sleeps, so no other CPU queues it at this moment.
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
            // SAFETY: `spawn` has taken over this reference, and only this code gives it away.
            self.machine.reap(unsafe { ThreadRef::adopt(dead) });
        }
    }

    /// Adds the time that `prev` has used since its dispatch to the times of this CPU.
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
    /// A thread that has never run, with one reference. The caller moves it to its final place, and wraps the reference
    /// by [`ThreadRef::adopt`]. `release` is called once, when the last reference is dropped, and frees the memory.
    pub fn new(context: M::Context, payload: M::Payload, release: unsafe fn(NonNull<Thread<M>>)) -> Self {
        Thread::made(context, payload, release, park_deadline::<M>)
    }
}

/// Wakes the thread whose park deadline has passed. It is the callback of the timer `Thread::deadline`.
///
/// # Safety
/// `timer` is the deadline of a thread that is alive.
unsafe fn park_deadline<M: Machine>(timer: NonNull<Timer>, _now: u64) -> Option<u64> {
    // SAFETY: only `park` arms this timer, which is a field of the thread. The thread cancels it before `park` returns,
    // so the thread is alive. `park` has stored the scheduler's address.
    unsafe {
        let thread = timer.byte_sub(offset_of!(Thread<M>, deadline)).cast::<Thread<M>>().as_ref();
        let scheduler = thread.scheduler.load(Ordering::Relaxed).cast::<Scheduler<M>>();
        if let Some(scheduler) = scheduler.as_ref() {
            scheduler.unpark(thread);
        }
    }
    None
}

/// Removes the thread that runs next on `cpu` from the CPU's queue. Threads before it whose affinity excludes `cpu` are
/// moved to `strays`. `prev` is never moved there, because it still runs on `cpu`.
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
        // SAFETY: the thread was queued, so it is alive.
        let stray = next.filter(|n| !unsafe { n.as_ref() }.may_run_on(cpu) && *n != NonNull::from(prev));
        let Some(stray) = stray else { return next };
        // SAFETY: `pop` took the thread off its list. The thread is runnable, so it stays alive.
        unsafe { strays.push_back(stray) };
    }
}
