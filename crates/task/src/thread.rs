//! A thread: what the scheduler knows about it, its saved context, and the payload of the layer above.

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
use quire_sync::atomic::{
    AtomicBool, AtomicPtr, AtomicU8, AtomicU16, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence,
};
use quire_sync::cpuset::{CpuMask, CpuSet, MAX_CPUS};
use quire_sync::hooks::ThreadHandle;

/// A turn at nice 0, in nanoseconds: long beside the cost of a switch, short beside what a person notices.
pub(crate) const SLICE: u32 = 4_000_000;

/// The most urgent real-time priority; the least urgent one is 1.
pub const MOST_URGENT: u8 = 99;
/// The number of nice values.
const NICES: u8 = 40;
/// Levels order threads by urgency, 0 first. The real-time priorities come first, from 99 to 1. This is the level of
/// nice value -20.
const FIRST_NICE: u8 = MOST_URGENT;
/// The level of nice value 0.
const NICE_0: u8 = FIRST_NICE + NICES / 2;
/// Less urgent than every level of a nice value: nothing is inherited.
pub(crate) const NO_LEVEL: u8 = FIRST_NICE + NICES;

/// A class of scheduling.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Class {
    /// By its nice value.
    Normal,
    /// As `Normal`; its user says that it never waits for a person.
    Batch,
    /// With the least weight, whatever its nice value.
    Background,
    /// Real-time, at a priority from 1 to [`MOST_URGENT`]: before all threads of lesser priority and all other classes,
    /// until it sleeps or yields.
    Fifo(u8),
    /// As `Fifo`, but threads of one priority take turns.
    RoundRobin(u8),
}

/// Stored forms of the classes that are not real-time.
const NORMAL: u8 = 0;
const BATCH: u8 = 1;
const BACKGROUND: u8 = 2;
/// In a stored real-time priority: threads of that priority take turns.
const ROUND: u8 = 0x80;
/// A mark in the address of a thread's user: the thread is or was once at another level than that of nice value 0, by
/// its class, its nice value or by inheritance. Without it the fields that say so, which are in another cache line, are
/// not read.
const HAS_LEVEL: usize = 1;
/// A mark there: the thread may not run on all CPUs, or might not once. Without it its mask is not read.
const RESTRICTED: usize = 2;
const MARKS: usize = HAS_LEVEL | RESTRICTED;
/// The part of a stored class that says that new threads are not favoured by its nice value.
const RESETS: u8 = 3;

/// A thread. Placed by its maker (a box, a slab), counted by [`ThreadRef`]s, linked by the scheduler.
///
/// A wake-up, a join, a steal and a turn's begin read only its first cache line. The lines of threads that wait on a
/// long queue are cold, and a waker on another CPU must fetch each.
#[repr(C, align(64))]
pub struct Thread<M: Machine> {
    /// Its place on a run queue or on the list of the dead; guarded by that queue's lock.
    pub(crate) links: Links<Thread<M>>,
    /// The CPUs that it may run on. Written by [`Scheduler::set_affinity`](crate::Scheduler::set_affinity).
    affinity: CpuSet,
    /// The user whose shares it belongs to; null for the share that each CPU keeps itself. Written before the spawn,
    /// by the thread itself, and by a CPU that [wakes it to end](crate::Scheduler::unpark_to_end). Any CPU adds
    /// [`HAS_LEVEL`] and [`RESTRICTED`] to the address. They stay.
    user: AtomicPtr<User<M>>,
    /// The rest of its turn, in nanoseconds at nice 0. Written by the CPU that it is on, or under the lock of its
    /// queue.
    pub(crate) slice: AtomicU32,
    pub(crate) token: Token,
    /// Where it is queued, runs or ran last. Written under the lock of the queue that it joins, or is stolen from.
    home: AtomicU8,
    /// Its context is in use: it runs, or has not quite left its CPU. The CPU that switches to it sets this, and the
    /// CPU that has switched away clears it. While it is set, the thread may only be queued on that CPU.
    pub(crate) on_cpu: AtomicBool,
    /// The list of its queue on which it waits, and its reach as counted there. Zero where it waits on none. Guarded by
    /// that queue's lock.
    pub(crate) waits: AtomicU8,

    pub(crate) account: Account,
    /// Switches away by sleep or yield, and by preemption. One writer: its CPU.
    pub(crate) voluntary: AtomicU64,
    pub(crate) involuntary: AtomicU64,
    /// The state at the last [`overslept`](Self::overslept): the switches, and how often in a row they were unchanged.
    seen_switches: AtomicU64,
    seen_rounds: AtomicU16,
    /// The thread has called `exit`. Written by itself.
    pub(crate) dying: AtomicBool,
    /// The thread sleeps, and only an unpark wakes it. Written by itself.
    pub(crate) uninterruptible: AtomicBool,
    /// Its nice value from 0 to 39. [`NICES`] times its class and [`RESETS`] are added, so that a thread stays small.
    nice: AtomicU8,
    /// Its real-time priority, with [`ROUND`]; 0 in another class.
    realtime: AtomicU8,
    /// The real-time priority at which it waits for a CPU; guarded by the lock of its queue.
    pub(crate) queued_at: AtomicU8,
    /// The least level of a thread that waits for one of `owned`, or [`NO_LEVEL`]. The futex table's lock of this
    /// thread guards it, as `owned` and `blocked`.
    inherited: AtomicU8,
    /// The first of the locks with priority inheritance that it owns and that have waiters: a `PiLock`. Futexes are
    /// above, so the type is theirs to know.
    pub(crate) owned: AtomicPtr<()>,
    /// The waiter by which it waits for such a lock, a `PiWaiter`; null where it does not.
    pub(crate) blocked: AtomicPtr<()>,

    /// Ends a park that has a deadline.
    pub(crate) deadline: Timer,
    /// The scheduler that arms the deadline, for its callback. Written by itself.
    pub(crate) scheduler: AtomicPtr<()>,
    /// Number of [`ThreadRef`]s.
    count: AtomicUsize,
    /// Gives the memory back when the count reaches zero.
    release: unsafe fn(NonNull<Thread<M>>),
    context: UnsafeCell<M::Context>,
    payload: M::Payload,
}

// SAFETY: only the CPU that runs the thread, or switches to or from it, uses the context (`on_cpu`). All else is
// atomic, or guarded as the fields say.
unsafe impl<M: Machine> Sync for Thread<M> {}
// SAFETY: a thread is sent whole, with its context and payload, which are `Send`.
unsafe impl<M: Machine> Send for Thread<M> {}

fn everywhere() -> CpuSet {
    let set = CpuSet::new();
    set.replace(&CpuMask::first(MAX_CPUS));
    set
}

/// Run queues and the list of the dead: a thread is on at most one of them.
pub(crate) struct Queued<M>(PhantomData<M>);
// SAFETY: the one field of links, used by no other adapter.
unsafe impl<M: Machine> Adapter for Queued<M> {
    type Node = Thread<M>;
    fn links(node: &Thread<M>) -> &Links<Thread<M>> {
        &node.links
    }
}

impl<M: Machine> Thread<M> {
    /// As [`Thread::new`]. `deadline` is called when a park's deadline passes, because only the scheduler can wake the
    /// thread.
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
            seen_rounds: AtomicU16::new(0),
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

    /// The data of the layer above.
    #[inline(always)]
    pub fn payload(&self) -> &M::Payload {
        &self.payload
    }

    /// The saved context; for [`Machine::switch`] and for the maker before [`spawn`](crate::Scheduler::spawn).
    #[inline(always)]
    pub fn context(&self) -> *mut M::Context {
        self.context.get()
    }

    /// The CPU on which it runs or ran last.
    pub fn home(&self) -> CpuId {
        self.home.load(Ordering::Relaxed) as CpuId
    }

    pub(crate) fn set_home(&self, cpu: CpuId) {
        self.home.store(cpu as u8, Ordering::Relaxed);
    }

    /// The CPUs that it may run on; of these the machine has at least one.
    pub fn affinity(&self) -> CpuMask {
        self.affinity.snapshot()
    }

    /// Gives it the affinity of `other`. Called before it is spawned; later only
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

    /// Whether it may not run on all CPUs.
    pub(crate) fn is_restricted(&self) -> bool {
        self.has_mark(RESTRICTED) && !self.affinity.is_full()
    }

    /// Whether it may run on `cpu`.
    #[inline]
    pub fn may_run_on(&self, cpu: CpuId) -> bool {
        !self.has_mark(RESTRICTED) || self.affinity.contains(cpu)
    }

    /// Whether it may run on all CPUs, and has the level of nice value 0; then no more has to be looked at.
    #[inline(always)]
    pub(crate) fn is_ordinary(&self) -> bool {
        !self.has_mark(MARKS)
    }

    /// Whether some of its turn is left.
    pub(crate) fn has_slice(&self) -> bool {
        self.slice.load(Ordering::Relaxed) != 0 || self.runs_on()
    }

    /// For how long it may run before its turn is used up, in nanoseconds.
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

    /// Charges its turn for a run of `ns`. Returns the charge: `ns` by its weight, in nanoseconds at nice 0.
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

    /// Gives up the rest of its turn.
    pub(crate) fn end_slice(&self) {
        self.slice.store(0, Ordering::Relaxed);
    }

    /// A new turn: as long as its nice weight says.
    pub(crate) fn new_slice(&self) {
        self.slice.store(SLICE, Ordering::Relaxed);
    }

    /// A new turn of `ns` among the real-time threads of its priority.
    pub(crate) fn new_round(&self, ns: u32) {
        self.slice.store(ns, Ordering::Relaxed);
    }

    pub(crate) fn user(&self) -> *const User<M> {
        self.user.load(Ordering::Relaxed).map_addr(|at| at & !MARKS)
    }

    /// Replaces the address of its user.
    fn replace_user(&self, new: impl Fn(*mut User<M>) -> *mut User<M>) {
        let mut old = self.user.load(Ordering::Relaxed);
        while let Err(found) = self.user.compare_exchange(old, new(old), Ordering::Relaxed, Ordering::Relaxed) {
            old = found;
        }
    }

    /// Whether its level is not that of nice value 0, or was not once.
    #[inline(always)]
    pub(crate) fn has_level(&self) -> bool {
        self.has_mark(HAS_LEVEL)
    }

    /// Whether it has one of `marks`.
    #[inline(always)]
    fn has_mark(&self, marks: usize) -> bool {
        self.user.load(Ordering::Relaxed).addr() & marks != 0
    }

    fn mark(&self, mark: usize) {
        if !self.has_mark(mark) {
            self.replace_user(|user| user.map_addr(|at| at | mark));
        }
    }

    /// The real-time priority at which it runs: its own, or a priority inherited through a lock with priority
    /// inheritance. 0 where it runs by its nice value.
    pub fn urgency(&self) -> u8 {
        if self.has_level() { MOST_URGENT.saturating_sub(self.level()) } else { 0 }
    }

    /// The thread's own real-time priority; 0 where its class is not real-time.
    pub(crate) fn own_urgency(&self) -> u8 {
        if self.has_level() { self.realtime.load(Ordering::Relaxed) & !ROUND } else { 0 }
    }

    /// Whether it is real-time and has no turns.
    fn runs_on(&self) -> bool {
        self.urgency() > 0 && self.realtime.load(Ordering::Relaxed) & ROUND == 0
    }

    /// Makes it a thread of `user`. For its maker, before it is spawned; later the thread calls
    /// [`Scheduler::become_user`](crate::Scheduler::become_user).
    ///
    /// # Safety
    /// The user lives until the thread has become another user's, or has left its CPU for good.
    pub unsafe fn belong_to(&self, user: Option<NonNull<User<M>>>) {
        let new = user.map_or(core::ptr::null_mut(), NonNull::as_ptr);
        self.replace_user(|old| new.map_addr(|at| at | old.addr() & MARKS));
    }

    /// Whether a CPU runs it at this moment.
    pub fn is_running(&self) -> bool {
        self.on_cpu.load(Ordering::Relaxed)
    }

    /// Whether it runs or waits for a CPU, and does not sleep.
    pub fn is_runnable(&self) -> bool {
        !self.token.is_parked()
    }

    /// The thread's nice value, -20 (greatest weight) to 19.
    pub fn nice(&self) -> i8 {
        (self.nice.load(Ordering::Relaxed) % NICES) as i8 - 20
    }

    /// Sets its nice value, clamped to -20..=19. It also applies to the rest of its turn.
    pub fn set_nice(&self, nice: i8) {
        let new = (nice.clamp(-20, 19) + 20) as u8;
        let changed = |old: u8| Some(old - old % NICES + new);
        let _before = self.nice.fetch_update(Ordering::Relaxed, Ordering::Relaxed, changed);
        if nice != 0 {
            self.mark(HAS_LEVEL);
        }
    }

    /// The thread's class, and whether threads that it makes are not favoured by its nice value.
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

    /// Changes both. The class also applies to the rest of its turn. A thread that was spawned must be
    /// [sorted in anew](crate::Scheduler::set_class) afterwards.
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
            // A turn among real-time threads may be longer.
            let _before = self.slice.fetch_min(SLICE, Ordering::Relaxed);
        }
        if realtime != 0 || stored == BACKGROUND {
            self.mark(HAS_LEVEL);
        }
    }

    /// Gives it the class and the nice value of `maker`. A maker that [resets](Self::class) passes on no real-time
    /// class, no nice value that favours the thread, and no reset. Called before it is spawned.
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

    /// The level of its class and nice value.
    fn own_level(&self) -> u8 {
        let realtime = self.realtime.load(Ordering::Relaxed) & !ROUND;
        if realtime != 0 {
            return MOST_URGENT - realtime;
        }
        let stored = self.nice.load(Ordering::Relaxed);
        // The usual class, without a division.
        if stored < NICES {
            return FIRST_NICE + stored;
        }
        match stored / NICES % RESETS {
            BACKGROUND => NO_LEVEL - 1,
            _ => FIRST_NICE + stored % NICES,
        }
    }

    /// The thread's level: 0 is the most urgent. It is that of the class and nice value, or the inherited one if that
    /// is more urgent.
    pub(crate) fn level(&self) -> u8 {
        self.own_level().min(self.inherited.load(Ordering::Relaxed))
    }

    /// The nice value by whose weight it runs where it is not real-time.
    #[inline]
    pub fn weight_nice(&self) -> i8 {
        if self.has_level() { self.level().saturating_sub(FIRST_NICE) as i8 - 20 } else { 0 }
    }

    /// The level that it inherits.
    pub(crate) fn inherited_level(&self) -> u8 {
        self.inherited.load(Ordering::Relaxed)
    }

    /// Sets the level that it inherits. True if its own level has changed.
    pub(crate) fn inherit_level(&self, level: u8) -> bool {
        let before = self.level();
        self.inherited.store(level, Ordering::Relaxed);
        if level < NICE_0 {
            self.mark(HAS_LEVEL);
        }
        self.level() != before
    }

    /// How often it left its CPU to sleep or yield, and how often it was preempted.
    pub fn switches(&self) -> (u64, u64) {
        (self.voluntary.load(Ordering::Relaxed), self.involuntary.load(Ordering::Relaxed))
    }

    /// Whether it has called [`exit`](crate::Scheduler::exit).
    pub fn has_ended(&self) -> bool {
        self.dying.load(Ordering::Relaxed)
    }

    /// Whether it sleeps, and neither a signal nor a deadline wakes it; a hint.
    pub fn sleeps_uninterruptibly(&self) -> bool {
        self.uninterruptible.load(Ordering::Relaxed) && self.token.is_parked()
    }

    /// One of a watchman's periodic checks: in how many checks in a row before this one it was in the same
    /// uninterruptible sleep.
    pub fn overslept(&self) -> u16 {
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

    /// The kernel was entered from this thread's user mode (system call, exception or interrupt), at
    /// [`Machine::ticks`] `ticks`. The first thing that a kernel entry does; this thread's CPU only.
    #[inline(always)]
    pub fn enter_kernel(&self, ticks: u64) {
        self.account.enter_kernel(ticks);
    }

    /// The kernel is left for this thread's user mode. The last thing that a kernel exit does, with interrupts masked.
    #[inline(always)]
    pub fn leave_kernel(&self, ticks: u64) {
        self.account.cut_system(ticks);
    }

    /// The thread's handle in `quire_sync`.
    #[inline(always)]
    pub fn handle(&self) -> ThreadHandle {
        // SAFETY: the number is this thread's address, which the scheduler's `unpark` expects.
        unsafe { ThreadHandle::from_number(self as *const Self as usize) }
    }

    /// The thread that a handle of [`handle`](Self::handle) names.
    ///
    /// # Safety
    /// The handle came from a thread of this machine, which is still alive, and stays so for `'a`.
    #[inline(always)]
    pub unsafe fn from_handle<'a>(handle: ThreadHandle) -> &'a Thread<M> {
        // SAFETY: the caller vouches that the handle came from a thread that is alive for `'a`.
        unsafe { &*(handle.number() as *const Thread<M>) }
    }

    /// Another counted reference to a thread that the caller can see (hence alive).
    pub fn to_ref(&self) -> ThreadRef<M> {
        self.count.fetch_add(1, Ordering::Relaxed);
        ThreadRef(NonNull::from(self))
    }
}

/// A counted reference to a thread. Dropping the last one calls the thread's `release`: drop references where that may
/// run, not under locks.
pub struct ThreadRef<M: Machine>(NonNull<Thread<M>>);

// SAFETY: a counted reference to something that is `Sync`.
unsafe impl<M: Machine> Send for ThreadRef<M> {}
// SAFETY: a shared reference gives `&Thread`, which is `Sync`, and its count is atomic.
unsafe impl<M: Machine> Sync for ThreadRef<M> {}

impl<M: Machine> ThreadRef<M> {
    /// Takes over one count of `thread`: the first one from [`Thread::new`], or one from [`into_raw`](Self::into_raw).
    ///
    /// # Safety
    /// The caller owns that count; the thread stays in place until its `release` is called.
    pub unsafe fn adopt(thread: NonNull<Thread<M>>) -> Self {
        ThreadRef(thread)
    }

    /// Gives the count up without lowering it, to be taken over by [`adopt`](Self::adopt).
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
        // SAFETY: this reference is counted, so the thread is alive as long as it.
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
    // The scheduler vouches that `thread` is the calling thread.
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
