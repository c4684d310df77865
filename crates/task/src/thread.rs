//! A thread: the scheduler's state of it, its saved context, and the payload of the layer above.

use crate::account::Account;
use crate::list::{Adapter, Links};
use crate::machine::Machine;
use crate::scheduler::share::User;
use crate::timer::{Expire, Timer};
use crate::token::Token;
use crate::weight::{unweighted, weighted};
use core::cell::UnsafeCell;
use core::marker::PhantomData;
use core::ops::Deref;
use core::ptr::NonNull;
use quire_sync::CpuId;
use quire_sync::atomic::{AtomicBool, AtomicPtr, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};
use quire_sync::cpuset::{CpuMask, CpuSet, MAX_CPUS};
use quire_sync::hooks::ThreadHandle;

/// The length of a turn (time slice) at nice 0, in nanoseconds. It is long compared with a context switch, and too
/// short for a person to notice.
pub(crate) const SLICE: u32 = 4_000_000;

/// How many turns in a row a thread of a user may continue in the kernel before other threads of the user.
const MOST_OVERRUNS: u8 = 4;

/// The most urgent real-time priority; the least urgent one is 1.
pub const MOST_URGENT: u8 = 99;
/// The number of nice values.
const NICES: u8 = 40;
/// The level of nice value -20. Levels order threads by urgency; level 0 is the most urgent. The real-time priorities
/// from 99 to 1 have the first levels, and the nice values follow.
const FIRST_NICE: u8 = MOST_URGENT;
/// The level of nice value 0.
const NICE_0: u8 = FIRST_NICE + NICES / 2;
/// The level of a thread that inherits no priority. It is less urgent than the level of every nice value.
pub(crate) const NO_LEVEL: u8 = FIRST_NICE + NICES;

/// A scheduling class.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Class {
    /// The thread shares CPU time by its nice value.
    Normal,
    /// As `Normal`; the user has declared that the thread is not interactive.
    Batch,
    /// The thread has the least weight, whatever its nice value is.
    Background,
    /// Real-time, at a priority from 1 to [`MOST_URGENT`]. The thread runs before all threads of lesser priority and of
    /// other classes, until it sleeps or yields.
    Fifo(u8),
    /// As `Fifo`, but threads of one priority take turns.
    RoundRobin(u8),
}

/// Stored forms of the classes that are not real-time.
const NORMAL: u8 = 0;
const BATCH: u8 = 1;
const BACKGROUND: u8 = 2;
/// A bit in a thread's stored real-time priority: the class is [`Class::RoundRobin`].
const ROUND: u8 = 0x80;
/// A mark in the low bits of the field `Thread::user`. It means that the thread's level is, or was at some time, not
/// that of nice value 0. The cause may be its class, its nice value or an inherited priority. Without the mark, the
/// scheduler need not read the fields that determine the level, which are in another cache line.
const HAS_LEVEL: usize = 1;
/// A mark in the low bits of the field `Thread::user`: the thread's affinity excludes some CPU, or did at some time.
/// Without the mark, the scheduler need not read the affinity.
const RESTRICTED: usize = 2;
const MARKS: usize = HAS_LEVEL | RESTRICTED;
/// The number that is added to a stored class if the class is reset at fork, as by Linux's `SCHED_RESET_ON_FORK`.
const RESETS: u8 = 3;

/// A thread. Placed by its maker (a box, a slab), counted by [`ThreadRef`]s, linked by the scheduler.
///
/// A wake-up, the insertion in a queue, a migration and a dispatch read only the first cache line. The lines of threads
/// that wait on a long queue are cold, and a waker on another CPU must fetch each line.
#[repr(C, align(64))]
pub struct Thread<M: Machine> {
    /// The thread's links on a run queue or on a list of dead threads; guarded by that queue's lock.
    pub(crate) links: Links<Thread<M>>,
    /// The CPUs on which the thread may run. Written by [`Scheduler::set_affinity`](crate::Scheduler::set_affinity).
    affinity: CpuSet,
    /// The user to whose shares the thread belongs; null for the share that each CPU keeps for the kernel. Written
    /// before the spawn, by the thread itself, and by a CPU that [wakes it to end](crate::Scheduler::unpark_to_end).
    /// Any CPU may add the marks [`HAS_LEVEL`] and [`RESTRICTED`] to the address. Marks are never removed.
    user: AtomicPtr<User<M>>,
    /// The rest of the thread's turn (time slice), in nanoseconds at nice 0. Written by the CPU that runs the thread,
    /// or under the lock of its queue.
    pub(crate) slice: AtomicU32,
    pub(crate) token: Token,
    /// The CPU on which the thread is queued, runs or ran last. Written under the lock of the queue that the thread
    /// joins, or from which another CPU takes it.
    home: AtomicU8,
    /// The thread's context is in use: the thread runs, or the switch away from it is not complete. The CPU that
    /// switches to the thread sets the flag, and clears it after it has switched away. While the flag is set, the
    /// thread may be queued only on that CPU.
    pub(crate) on_cpu: AtomicBool,
    /// The list of the run queue on which the thread waits, and its reach as that queue counts it (see
    /// `scheduler/run_queue.rs`). Zero if the thread waits on no list. Guarded by that queue's lock.
    pub(crate) waits: AtomicU8,

    pub(crate) account: Account,
    /// The number of switches away from the thread by sleep or yield. Only the CPU that runs the thread writes it.
    pub(crate) voluntary: AtomicU64,
    pub(crate) involuntary: AtomicU64,
    /// The number of switches at the last call of [`overslept`](Self::overslept), and how many calls in a row found it
    /// unchanged.
    seen_switches: AtomicU64,
    seen_rounds: AtomicU8,
    /// How many turns in a row ended while the thread ran in the kernel. Written by the CPU that runs the thread.
    overruns: AtomicU8,
    /// The thread has called `exit`. Written by the thread itself.
    pub(crate) dying: AtomicBool,
    /// The thread sleeps, and only an unpark wakes it. Written by the thread itself.
    pub(crate) uninterruptible: AtomicBool,
    /// The nice value plus 20 (0 to 39), and in the same byte [`NICES`] times the sum of the class and [`RESETS`].
    nice: AtomicU8,
    /// The thread's real-time priority, with [`ROUND`]; 0 if the class is not real-time.
    realtime: AtomicU8,
    /// The real-time priority with which the thread was queued; guarded by the lock of its queue.
    pub(crate) queued_at: AtomicU8,
    /// The most urgent level of a thread that waits for a lock on the list `owned`, or [`NO_LEVEL`]. The thread lock of
    /// the futex table guards this field, `owned` and `blocked`.
    inherited: AtomicU8,
    /// The first `PiLock` of the list of locks with priority inheritance that the thread owns and that have waiters.
    /// The pointer is untyped because the module `futex`, which defines `PiLock`, is a higher layer.
    pub(crate) owned: AtomicPtr<()>,
    /// The `PiWaiter` by which the thread waits for a lock with priority inheritance; null if it waits for none.
    pub(crate) blocked: AtomicPtr<()>,

    /// The timer that ends a park with a deadline.
    pub(crate) deadline: Timer,
    /// The scheduler that armed `deadline`; the timer's callback reads it. Written by the thread itself.
    pub(crate) scheduler: AtomicPtr<()>,
    /// Number of [`ThreadRef`]s.
    count: AtomicUsize,
    /// Frees the thread's memory when the reference count reaches zero.
    release: unsafe fn(NonNull<Thread<M>>),
    context: UnsafeCell<M::Context>,
    payload: M::Payload,
}

// SAFETY: only the CPU that runs the thread, or switches to or from it, uses the context (`on_cpu`). All other fields
// are atomic, or guarded as their comments say.
unsafe impl<M: Machine> Sync for Thread<M> {}
// SAFETY: a thread is sent whole, with its context and payload, which are `Send`.
unsafe impl<M: Machine> Send for Thread<M> {}

fn everywhere() -> CpuSet {
    let set = CpuSet::new();
    set.replace(&CpuMask::first(MAX_CPUS));
    set
}

/// The list adapter for run queues and for lists of dead threads. A thread is on at most one of these lists.
pub(crate) struct Queued<M>(PhantomData<M>);
// SAFETY: `links` is the only field with list links, and no other adapter uses it.
unsafe impl<M: Machine> Adapter for Queued<M> {
    type Node = Thread<M>;
    fn links(node: &Thread<M>) -> &Links<Thread<M>> {
        &node.links
    }
}

impl<M: Machine> Thread<M> {
    /// As [`Thread::new`]. `deadline` is the callback for the deadline of a park. It is an argument because it needs
    /// the scheduler, which is a higher layer.
    #[inline(always)]
    pub(crate) fn made(
        context: M::Context,
        payload: M::Payload,
        release: unsafe fn(NonNull<Thread<M>>),
        deadline: Expire,
    ) -> Self {
        #[cfg(not(any(loom, shuttle)))]
        const {
            assert!(core::mem::offset_of!(Self, account) == 64, "the first cache line of a thread has other fields");
            assert!(MAX_CPUS <= 1 << u8::BITS, "a home is a byte");
            assert!(align_of::<User<M>>() > MARKS, "the address of a user has room for marks");
        }
        Thread {
            links: Links::new(),
            affinity: everywhere(),
            user: AtomicPtr::new(core::ptr::null_mut()),
            slice: AtomicU32::new(SLICE),
            token: Token::new(),
            home: AtomicU8::new(0),
            on_cpu: AtomicBool::new(false),
            waits: AtomicU8::new(0),
            account: Account::new(),
            voluntary: AtomicU64::new(0),
            involuntary: AtomicU64::new(0),
            seen_switches: AtomicU64::new(0),
            seen_rounds: AtomicU8::new(0),
            overruns: AtomicU8::new(0),
            dying: AtomicBool::new(false),
            uninterruptible: AtomicBool::new(false),
            nice: AtomicU8::new(20),
            realtime: AtomicU8::new(0),
            queued_at: AtomicU8::new(0),
            inherited: AtomicU8::new(NO_LEVEL),
            owned: AtomicPtr::new(core::ptr::null_mut()),
            blocked: AtomicPtr::new(core::ptr::null_mut()),
            deadline: Timer::new(deadline),
            scheduler: AtomicPtr::new(core::ptr::null_mut()),
            count: AtomicUsize::new(1),
            release,
            context: UnsafeCell::new(context),
            payload,
        }
    }

    /// The data that the layer above keeps for this thread.
    #[inline(always)]
    pub fn payload(&self) -> &M::Payload {
        &self.payload
    }

    /// The saved context. Only [`Machine::switch`] uses it, and the thread's creator before
    /// [`spawn`](crate::Scheduler::spawn).
    #[inline(always)]
    pub fn context(&self) -> *mut M::Context {
        self.context.get()
    }

    /// The CPU on which the thread is queued, runs or ran last.
    pub fn home(&self) -> CpuId {
        self.home.load(Ordering::Relaxed) as CpuId
    }

    pub(crate) fn set_home(&self, cpu: CpuId) {
        self.home.store(cpu as u8, Ordering::Relaxed);
    }

    /// The CPUs on which the thread may run; the machine has at least one of them.
    pub fn affinity(&self) -> CpuMask {
        self.affinity.snapshot()
    }

    /// Copies the affinity of `other` to this thread. Called before this thread is spawned; later only
    /// [`Scheduler::set_affinity`](crate::Scheduler::set_affinity) may be used.
    pub fn inherit_affinity(&self, other: &Thread<M>) {
        self.restrict(&other.affinity());
    }

    pub(crate) fn restrict(&self, to: &CpuMask) {
        if *to != CpuMask::first(MAX_CPUS) {
            self.mark(RESTRICTED);
        }
        self.affinity.replace(to);
    }

    /// Whether the thread's affinity excludes some CPU.
    pub(crate) fn is_restricted(&self) -> bool {
        self.has_mark(RESTRICTED) && !self.affinity.is_full()
    }

    /// Whether the thread may run on `cpu`.
    #[inline]
    pub fn may_run_on(&self, cpu: CpuId) -> bool {
        !self.has_mark(RESTRICTED) || self.affinity.contains(cpu)
    }

    /// Whether the thread may run on all CPUs and has the level of nice value 0. Callers then need not read its
    /// affinity and level. False also if the thread was restricted or had another level earlier.
    #[inline(always)]
    pub(crate) fn is_ordinary(&self) -> bool {
        !self.has_mark(MARKS)
    }

    /// Whether some of the thread's turn is left.
    pub(crate) fn has_slice(&self) -> bool {
        self.slice.load(Ordering::Relaxed) != 0 || self.runs_on()
    }

    /// How long the thread may run before its turn is used up, in nanoseconds; `u64::MAX` if its turn never ends.
    pub(crate) fn slice(&self) -> u64 {
        let left = self.slice.load(Ordering::Relaxed);
        if !self.has_level() {
            return left.min(SLICE).into();
        }
        match self.urgency() {
            0 => unweighted(left.min(SLICE).into(), self.weight_nice()),
            _ if self.runs_on() => u64::MAX,
            _ => left.into(),
        }
    }

    /// Charges the thread's turn for a run of `ns` nanoseconds. Returns the charge, in nanoseconds at nice 0: `ns`
    /// scaled by the thread's weight.
    pub(crate) fn use_slice(&self, ns: u64) -> u64 {
        let mut used = ns;
        if self.has_level() {
            if self.runs_on() {
                return ns;
            }
            if self.urgency() == 0 {
                used = weighted(ns, self.weight_nice());
            }
        }
        let left = self.slice.load(Ordering::Relaxed).saturating_sub(u32::try_from(used).unwrap_or(u32::MAX));
        self.slice.store(left, Ordering::Relaxed);
        used
    }

    /// Called when the thread's turn has ended in the kernel. Returns whether the thread continues before other threads
    /// of its user: it may hold a lock for which others would wait longer than for its turn. Threads of the kernel and
    /// of user 0 always take turns, because these are few.
    #[cold]
    pub(crate) fn overruns(&self) -> bool {
        if self.user().is_null() || self.urgency() > 0 {
            return false;
        }
        let overruns = self.overruns.load(Ordering::Relaxed);
        if overruns < MOST_OVERRUNS {
            self.overruns.store(overruns + 1, Ordering::Relaxed);
        }
        overruns < MOST_OVERRUNS
    }

    /// Records that the thread's turn has ended, and the thread waits for another one.
    pub(crate) fn turn_is_over(&self) {
        if self.overruns.load(Ordering::Relaxed) != 0 {
            self.overruns.store(0, Ordering::Relaxed);
        }
    }

    /// Makes sure that at least `ns` nanoseconds of the turn are left after the present run, which has taken `run`
    /// nanoseconds so far. Has no effect on a real-time thread.
    pub(crate) fn keep_slice(&self, run: u64, ns: u32) {
        if self.urgency() > 0 {
            return;
        }
        let used = u32::try_from(weighted(run, self.weight_nice())).unwrap_or(u32::MAX);
        let least = used.saturating_add(ns);
        if self.slice.load(Ordering::Relaxed) < least {
            self.slice.store(least, Ordering::Relaxed);
        }
    }

    /// Gives up the rest of the thread's turn.
    pub(crate) fn end_slice(&self) {
        self.slice.store(0, Ordering::Relaxed);
    }

    /// Gives the thread a new turn. [`slice`](Self::slice) scales its length by the thread's nice weight.
    pub(crate) fn new_slice(&self) {
        self.slice.store(SLICE, Ordering::Relaxed);
    }

    /// Gives the thread a new turn of `ns` nanoseconds among the real-time threads of its priority.
    pub(crate) fn new_round(&self, ns: u32) {
        self.slice.store(ns, Ordering::Relaxed);
    }

    pub(crate) fn user(&self) -> *const User<M> {
        self.user.load(Ordering::Relaxed).map_addr(|at| at & !MARKS)
    }

    /// Replaces the field `user` (the address and its marks) by the result of `new` for the old value.
    fn replace_user(&self, new: impl Fn(*mut User<M>) -> *mut User<M>) {
        let mut old = self.user.load(Ordering::Relaxed);
        while let Err(found) = self.user.compare_exchange(old, new(old), Ordering::Relaxed, Ordering::Relaxed) {
            old = found;
        }
    }

    /// Whether the thread's level is not that of nice value 0, or was not at some time.
    #[inline(always)]
    pub(crate) fn has_level(&self) -> bool {
        self.has_mark(HAS_LEVEL)
    }

    /// Whether the thread has one of `marks`.
    #[inline(always)]
    fn has_mark(&self, marks: usize) -> bool {
        self.user.load(Ordering::Relaxed).addr() & marks != 0
    }

    fn mark(&self, mark: usize) {
        if !self.has_mark(mark) {
            self.replace_user(|user| user.map_addr(|at| at | mark));
        }
    }

    /// The real-time priority at which the thread runs: its own, or a higher priority inherited through a lock with
    /// priority inheritance. 0 if the thread runs by its nice value.
    pub fn urgency(&self) -> u8 {
        if self.has_level() { MOST_URGENT.saturating_sub(self.level()) } else { 0 }
    }

    /// The thread's own real-time priority; 0 if its class is not real-time.
    pub(crate) fn own_urgency(&self) -> u8 {
        if self.has_level() { self.realtime.load(Ordering::Relaxed) & !ROUND } else { 0 }
    }

    /// Whether the thread is real-time and its turn never ends, as in [`Class::Fifo`].
    fn runs_on(&self) -> bool {
        self.urgency() > 0 && self.realtime.load(Ordering::Relaxed) & ROUND == 0
    }

    /// Makes the thread a thread of `user`. Its creator calls this before the spawn. Later the thread itself calls
    /// [`Scheduler::become_user`](crate::Scheduler::become_user).
    ///
    /// # Safety
    /// The user lives until the thread belongs to another user, or has exited and left its CPU.
    pub unsafe fn belong_to(&self, user: Option<NonNull<User<M>>>) {
        let new = user.map_or(core::ptr::null_mut(), NonNull::as_ptr);
        self.replace_user(|old| new.map_addr(|at| at | old.addr() & MARKS));
    }

    /// Whether a CPU runs the thread at this moment.
    pub fn is_running(&self) -> bool {
        self.on_cpu.load(Ordering::Relaxed)
    }

    /// Whether the thread is runnable: it runs, or waits for a CPU.
    pub fn is_runnable(&self) -> bool {
        !self.token.is_parked()
    }

    /// The thread's nice value, -20 (greatest weight) to 19.
    pub fn nice(&self) -> i8 {
        (self.nice.load(Ordering::Relaxed) % NICES) as i8 - 20
    }

    /// Sets the thread's nice value, clamped to -20..=19. It also applies to the rest of the current turn.
    pub fn set_nice(&self, nice: i8) {
        let new = (nice.clamp(-20, 19) + 20) as u8;
        let changed = |old: u8| Some(old - old % NICES + new);
        let _before = self.nice.fetch_update(Ordering::Relaxed, Ordering::Relaxed, changed);
        if nice != 0 {
            self.mark(HAS_LEVEL);
        }
    }

    /// The thread's class, and whether its child threads start with a reset class and nice value (on Linux
    /// `SCHED_RESET_ON_FORK`).
    pub fn class(&self) -> (Class, bool) {
        let stored = self.nice.load(Ordering::Relaxed) / NICES;
        let class = match (self.realtime.load(Ordering::Relaxed), stored % RESETS) {
            (0, BATCH) => Class::Batch,
            (0, BACKGROUND) => Class::Background,
            (0, _) => Class::Normal,
            (at, _) if at & ROUND != 0 => Class::RoundRobin(at & !ROUND),
            (at, _) => Class::Fifo(at),
        };
        (class, stored >= RESETS)
    }

    /// Sets the class, and whether child threads start with a reset one. The class also applies to the rest of the
    /// thread's turn. After the spawn, the caller must then [requeue](crate::Scheduler::set_class) the thread.
    pub(crate) fn set_class(&self, class: Class, resets: bool) {
        let (stored, realtime) = match class {
            Class::Normal => (NORMAL, 0),
            Class::Batch => (BATCH, 0),
            Class::Background => (BACKGROUND, 0),
            Class::Fifo(at) => (NORMAL, at.clamp(1, MOST_URGENT)),
            Class::RoundRobin(at) => (NORMAL, at.clamp(1, MOST_URGENT) | ROUND),
        };
        let new = stored + if resets { RESETS } else { 0 };
        let changed = |old: u8| Some(old % NICES + new * NICES);
        let _before = self.nice.fetch_update(Ordering::Relaxed, Ordering::Relaxed, changed);
        self.realtime.store(realtime, Ordering::Relaxed);
        if realtime == 0 {
            // The rest of a real-time turn may be longer than an ordinary turn, so shorten it.
            let _before = self.slice.fetch_min(SLICE, Ordering::Relaxed);
        }
        if realtime != 0 || stored == BACKGROUND {
            self.mark(HAS_LEVEL);
        }
    }

    /// Copies the class and the nice value of `maker` to this thread. A maker that [resets](Self::class) passes on no
    /// real-time class and no negative nice value. The reset itself is never passed on. Called before the thread is
    /// spawned.
    pub fn inherit_class(&self, maker: &Thread<M>) {
        let (class, resets) = maker.class();
        let realtime = matches!(class, Class::Fifo(_) | Class::RoundRobin(_));
        self.set_nice(match resets {
            true if realtime => 0,
            true => maker.nice().max(0),
            false => maker.nice(),
        });
        self.set_class(if resets && realtime { Class::Normal } else { class }, false);
    }

    /// The level that follows from the thread's class and nice value.
    fn own_level(&self) -> u8 {
        let realtime = self.realtime.load(Ordering::Relaxed) & !ROUND;
        if realtime != 0 {
            return MOST_URGENT - realtime;
        }
        let stored = self.nice.load(Ordering::Relaxed);
        // Fast path for the class `Normal`: no division.
        if stored < NICES {
            return FIRST_NICE + stored;
        }
        match stored / NICES % RESETS {
            BACKGROUND => NO_LEVEL - 1,
            _ => FIRST_NICE + stored % NICES,
        }
    }

    /// The thread's level: 0 is the most urgent. It is the more urgent of its own level, which follows from the class
    /// and nice value, and the inherited level.
    pub(crate) fn level(&self) -> u8 {
        self.own_level().min(self.inherited.load(Ordering::Relaxed))
    }

    /// The nice value whose weight applies while the thread is not real-time. It may be inherited.
    #[inline]
    pub fn weight_nice(&self) -> i8 {
        if self.has_level() { self.level().saturating_sub(FIRST_NICE) as i8 - 20 } else { 0 }
    }

    /// The level that the thread inherits from waiters of its locks, or [`NO_LEVEL`].
    pub(crate) fn inherited_level(&self) -> u8 {
        self.inherited.load(Ordering::Relaxed)
    }

    /// Sets the level that the thread inherits. Returns whether the thread's level has changed.
    pub(crate) fn inherit_level(&self, level: u8) -> bool {
        let before = self.level();
        self.inherited.store(level, Ordering::Relaxed);
        if level < NICE_0 {
            self.mark(HAS_LEVEL);
        }
        self.level() != before
    }

    /// How often the thread left its CPU to sleep or yield, and how often it was preempted.
    pub fn switches(&self) -> (u64, u64) {
        (self.voluntary.load(Ordering::Relaxed), self.involuntary.load(Ordering::Relaxed))
    }

    /// Whether the thread has called [`exit`](crate::Scheduler::exit).
    pub fn has_ended(&self) -> bool {
        self.dying.load(Ordering::Relaxed)
    }

    /// Whether the thread sleeps, and neither a signal nor a deadline wakes it. The answer is a hint.
    pub fn sleeps_uninterruptibly(&self) -> bool {
        self.uninterruptible.load(Ordering::Relaxed) && self.token.is_parked()
    }

    /// Checks for a hung thread; the caller calls it at regular intervals. Returns how many calls in a row before this
    /// one found the thread in the same uninterruptible sleep.
    pub fn overslept(&self) -> u8 {
        let (slept, taken) = self.switches();
        let switches = slept + taken;
        let same = self.seen_switches.swap(switches, Ordering::Relaxed) == switches;
        let rounds = match self.sleeps_uninterruptibly() && same {
            true => self.seen_rounds.load(Ordering::Relaxed).saturating_add(1),
            false => 0,
        };
        self.seen_rounds.store(rounds, Ordering::Relaxed);
        rounds
    }

    /// Accounts for an entry from user mode to the kernel (system call, exception or interrupt) at `ticks`, a value of
    /// [`Machine::ticks`]. A kernel entry calls it first. Only the CPU that runs this thread may call it.
    #[inline(always)]
    pub fn enter_kernel(&self, ticks: u64) {
        self.account.enter_kernel(ticks);
    }

    /// Accounts for a return to user mode at `ticks`. A kernel exit calls it last, with interrupts masked.
    #[inline(always)]
    pub fn leave_kernel(&self, ticks: u64) {
        self.account.cut_system(ticks);
    }

    /// The handle by which `quire_sync` names the thread.
    #[inline(always)]
    pub fn handle(&self) -> ThreadHandle {
        // SAFETY: the number is this thread's address, which the scheduler's `unpark` expects.
        unsafe { ThreadHandle::from_number(self as *const Self as usize) }
    }

    /// The thread that a handle of [`handle`](Self::handle) names.
    ///
    /// # Safety
    /// The handle came from a thread of this machine, and the thread stays alive for `'a`.
    #[inline(always)]
    pub unsafe fn from_handle<'a>(handle: ThreadHandle) -> &'a Thread<M> {
        // SAFETY: the caller vouches that the handle came from a thread that is alive for `'a`.
        unsafe { &*(handle.number() as *const Thread<M>) }
    }

    /// Returns another counted reference to the thread.
    pub fn to_ref(&self) -> ThreadRef<M> {
        self.count.fetch_add(1, Ordering::Relaxed);
        ThreadRef(NonNull::from(self))
    }
}

/// A counted reference to a thread. The drop of the last reference calls the thread's `release` function. So drop
/// references only where `release` may run, not under locks.
pub struct ThreadRef<M: Machine>(NonNull<Thread<M>>);

// SAFETY: a counted reference to something that is `Sync`.
unsafe impl<M: Machine> Send for ThreadRef<M> {}
// SAFETY: a shared reference gives `&Thread`, which is `Sync`, and its count is atomic.
unsafe impl<M: Machine> Sync for ThreadRef<M> {}

impl<M: Machine> ThreadRef<M> {
    /// Takes over one reference of `thread`: the first one, from [`Thread::new`], or one from
    /// [`into_raw`](Self::into_raw).
    ///
    /// # Safety
    /// The caller owns that reference; the thread stays in place until its `release` is called.
    pub unsafe fn adopt(thread: NonNull<Thread<M>>) -> Self {
        ThreadRef(thread)
    }

    /// Returns the thread without lowering its reference count. [`adopt`](Self::adopt) takes the reference over again.
    pub fn into_raw(self) -> NonNull<Thread<M>> {
        let thread = self.0;
        core::mem::forget(self);
        thread
    }
}

impl<M: Machine> Clone for ThreadRef<M> {
    fn clone(&self) -> Self {
        self.to_ref()
    }
}

impl<M: Machine> Deref for ThreadRef<M> {
    type Target = Thread<M>;
    #[inline(always)]
    fn deref(&self) -> &Thread<M> {
        // SAFETY: this reference is counted, so the thread is alive while the reference exists.
        unsafe { self.0.as_ref() }
    }
}

impl<M: Machine> PartialEq for ThreadRef<M> {
    fn eq(&self, other: &Self) -> bool {
        self.0 == other.0
    }
}
impl<M: Machine> Eq for ThreadRef<M> {}

impl<M: Machine> Drop for ThreadRef<M> {
    fn drop(&mut self) {
        if self.count.fetch_sub(1, Ordering::Release) == 1 {
            fence(Ordering::Acquire);
            let release = self.release;
            // SAFETY: the last reference is gone, so no other CPU can reach the thread.
            unsafe { release(self.0) };
        }
    }
}

/// The calling thread. It cannot be sent to another thread.
pub struct Current<'a, M: Machine> {
    thread: NonNull<Thread<M>>,
    _here: PhantomData<(&'a (), *mut ())>,
}

impl<M: Machine> Current<'_, M> {
    // Called only by the scheduler, which vouches that `thread` is the calling thread.
    pub(crate) fn new(thread: NonNull<Thread<M>>) -> Self {
        Current { thread, _here: PhantomData }
    }
}

impl<M: Machine> Deref for Current<'_, M> {
    type Target = Thread<M>;
    #[inline(always)]
    fn deref(&self) -> &Thread<M> {
        // SAFETY: a thread that runs is alive.
        unsafe { self.thread.as_ref() }
    }
}
