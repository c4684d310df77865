//! One CPU's queue of runnable threads: the shares of users by virtual time ([`share`](super::share)), and in each
//! share the user's threads.
//!
//! The share whose thread runs is the *current* share. The other shares with waiting threads are in a heap. Usually all
//! runnable threads belong to one user. Then the heap is empty and no shares are compared.
//!
//! [Real-time threads](super::realtime) wait on lists of their own, and run before the threads of shares. While a
//! real-time thread runs, no share is current. Its CPU time counts towards the bound of real-time threads, not towards
//! its user's share.

use super::realtime::{Bound, End, Realtime};
use super::share::{CREDIT, Heap, Join, Share};
use crate::list::List;
use crate::machine::Machine;
use crate::mutant::{Mutant, mutant};
use crate::thread::{Queued, Thread};
use core::cell::Cell;
use core::ptr::{self, NonNull};
use quire_sync::CpuId;
use quire_sync::atomic::Ordering::{Acquire, Relaxed, Release};

/// The length of a stretch, in nanoseconds: how long a thread runs before a woken thread of its user preempts it. A
/// user's virtual time also gets at most this far ahead of another user's.
pub(crate) const STRETCH: u64 = 1_000_000;
/// The most waiting threads that a search for another CPU examines. There is a limit because the searcher has masked
/// interrupts and holds the queue's lock, and each examined thread may be a cache miss.
const LOOKS: usize = 64;
/// No deadline.
const NEVER: u64 = u64::MAX;

/// The reach of a queued thread: on how many CPUs it may run, as its affinity was when it joined the queue. `PINNED` is
/// one CPU.
const PINNED: u8 = 0;
const SOME: u8 = 1;
const ANYWHERE: u8 = 2;
const REACH: u8 = 3;
/// The list on which a thread waits; stored in `Thread::waits` together with the reach. Zero if it waits on no list.
const FRONT: u8 = 4;
const BACK: u8 = 8;
const URGENT: u8 = 12;
const LIST: u8 = 12;

pub(crate) struct RunQueue<M: Machine> {
    /// The shares with waiting threads, except the current share.
    shares: Heap<M>,
    /// The share of the running thread; `None` if that is the idle thread or a real-time thread.
    current: Option<NonNull<Share<M>>>,
    realtime: Realtime<M>,
    /// The running thread; null if that is the idle thread. The pointer is compared only, never followed.
    running: *const Thread<M>,
    urgency: u8,
    len: usize,
    /// A lower bound of the virtual times of the shares with runnable threads. It never falls.
    floor: u64,
    /// The time up to which the current share, or the bound of real-time threads, was charged, in nanoseconds of the
    /// CPU's counter.
    charged: u64,
    /// The number of waiting threads of each reach.
    reach: [u32; 3],
    /// The CPU runs its idle thread, or is about to: a CPU that queues a thread here must wake it.
    pub idle: bool,
    /// Threads that have exited on this CPU and are not reaped yet.
    pub dead: List<Queued<M>>,
}

// SAFETY: the shares to which a queue points are `Sync`, and their users live as long as they have runnable threads.
unsafe impl<M: Machine> Send for RunQueue<M> {}

/// The reach of `thread`: whether its affinity has one CPU, some CPUs or all CPUs.
fn reach<M: Machine>(thread: &Thread<M>) -> u8 {
    match thread.is_restricted() {
        false => ANYWHERE,
        true if thread.affinity().is_single() => PINNED,
        true => SOME,
    }
}

/// A queued thread, and its share; `None` if the thread is real-time.
type FoundThread<M> = (NonNull<Thread<M>>, Option<NonNull<Share<M>>>);

/// The effect of a changed real-time priority on a queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Sorted {
    /// The thread neither waits nor runs on this CPU.
    Absent,
    /// The thread stays where it is.
    Unchanged,
    Moved,
}

impl<M: Machine> RunQueue<M> {
    pub fn new() -> Self {
        RunQueue {
            shares: Heap::new(),
            current: None,
            realtime: Realtime::new(),
            running: ptr::null(),
            urgency: 0,
            len: 0,
            floor: 0,
            charged: 0,
            reach: [0; 3],
            idle: false,
            dead: List::new(),
        }
    }

    pub fn len(&self) -> usize {
        self.len
    }

    fn current(&self) -> Option<&Share<M>> {
        // SAFETY: the share's user lives, because the running thread belongs to it.
        self.current.map(|share| unsafe { share.as_ref() })
    }

    /// The length of the front list of the running thread's user: woken threads with some of their turn left. They
    /// should not wait for the end of the running thread's turn.
    pub fn eager(&self) -> usize {
        self.current().map_or(0, Share::eager)
    }

    /// How many waiting threads may run on another CPU.
    pub fn movable(&self) -> usize {
        (self.reach[SOME as usize] + self.reach[ANYWHERE as usize]) as usize
    }

    /// The time at which the running thread must yield to another user's thread, because its user is then one
    /// [`STRETCH`] ahead. In nanoseconds of the CPU's counter; [`NEVER`] if no other user's thread waits.
    pub fn share_end(&self) -> u64 {
        match (self.current(), self.shares.first()) {
            (Some(current), Some(first)) => self.charged + (first.used() + STRETCH).saturating_sub(current.used()),
            _ => NEVER,
        }
    }

    /// The real-time priority of the most urgent thread that runs or waits.
    pub fn most_urgent(&self) -> u8 {
        self.urgency.max(self.realtime.most_urgent())
    }

    pub fn set_bound(&mut self, bound: Bound) {
        self.realtime.set_bound(bound);
    }

    /// The time at which the running thread must yield to a thread of another user or another class. In nanoseconds of
    /// the CPU's counter; [`NEVER`] if it need not yield.
    #[inline(always)]
    pub fn turn_end(&self) -> u64 {
        if self.urgency == 0 && self.realtime.len() == 0 { self.share_end() } else { self.turn_end_by_urgency() }
    }

    #[cold]
    fn turn_end_by_urgency(&self) -> u64 {
        let waits = self.realtime.most_urgent();
        if self.urgency == 0 {
            let at = if self.realtime.is_spent() { self.realtime.window_end() } else { 0 };
            return self.share_end().min(at);
        }
        if waits > self.urgency {
            return 0;
        }
        if self.len > self.realtime.len() { self.realtime.spent_at(self.charged) } else { NEVER }
    }

    /// Charges the current share for the time up to `now`. If the running thread leaves the CPU, `run` is the length of
    /// its run in nanoseconds, and `weighted` is the equivalent at nice 0. Otherwise both are zero.
    #[inline(always)]
    pub fn charge(&mut self, now: u64, run: u64, weighted: u64) {
        if self.urgency > 0 {
            return self.charge_urgent(now);
        }
        let Some(current) = self.current() else { return };
        current.pass(run, weighted);
        let ran = now.saturating_sub(self.charged);
        let used = current.used() + ran;
        current.set_used(used);
        let least = self.shares.first().map_or(used, |first| first.used().min(used));
        self.charged += ran;
        self.floor = self.floor.max(least);
    }

    #[cold]
    fn charge_urgent(&mut self, now: u64) {
        self.realtime.charge(self.charged, now);
        self.charged = self.charged.max(now);
    }

    /// Makes another user's share run before that of the running thread, which yields. Does nothing if another thread
    /// of the running thread's own user waits.
    pub fn give_way(&mut self) {
        if let (Some(current), Some(first)) = (self.current(), self.shares.first())
            && current.is_empty()
        {
            current.set_used(current.used().max(first.used() + 1));
        }
    }

    /// Limits how far the virtual time of `share` is behind that of the other shares. Called when `share` had no
    /// runnable threads and is about to get one.
    fn wake(&self, share: &Share<M>) {
        let least = self.floor.saturating_sub(CREDIT);
        if share.used() < least {
            share.set_used(least);
        }
    }

    /// Inserts a runnable thread, which is on no queue, in this queue. `share` is its user's share on this CPU. `now`
    /// reads the CPU's counter; it is called only if another user's thread runs.
    pub fn push(&mut self, thread: &Thread<M>, share: &Share<M>, join: Join, now: impl FnOnce() -> u64) {
        let node = NonNull::from(thread);
        let (reach, urgency) = match thread.is_ordinary() {
            true => (ANYWHERE, 0),
            false => (reach(thread), thread.urgency()),
        };
        self.reach[reach as usize] += 1;
        self.len += 1;
        // Release: `sort` may read `waits` without this queue's lock, and reads the thread's home afterwards.
        let note = |list: u8| thread.waits.store(reach | list, Release);
        if urgency > 0 {
            note(URGENT);
            thread.queued_at.store(urgency, Relaxed);
            let end = if join == Join::Resume { End::Head } else { End::Tail };
            // SAFETY: only one CPU at a time queues a runnable thread, so it is on no queue. It is alive while queued.
            unsafe { self.realtime.push(node, urgency, end) };
            return;
        }
        note(if join == Join::Front { FRONT } else { BACK });
        let runs = self.current.is_some_and(|current| ptr::eq(current.as_ptr(), share));
        if !runs && !share.is_in_heap() {
            // Charge the current share first, because its virtual time, on which `floor` depends, is updated only then.
            self.charge(now(), 0, 0);
            self.wake(share);
            // SAFETY: the share's user lives, because the thread belongs to it and is runnable.
            unsafe { self.shares.insert(NonNull::from(share)) };
        }
        // SAFETY: only one CPU at a time queues a runnable thread. It is the CPU that got `true` from its token,
        // spawned it, or switches away from it. The thread is alive until it exits, which it cannot do while it is
        // queued.
        unsafe { share.push(node, join) };
    }

    /// The list and the end at which the running thread is inserted if it is preempted with some of its turn left.
    pub fn preempted(&self) -> Join {
        self.current().map_or(Join::Front, Share::preempted)
    }

    /// Removes the thread that runs next, and makes its share the current share. A thread from a back list gets a new
    /// turn if it has used up the last one. `None` if no thread waits; then no share is current.
    pub fn pop(&mut self, now: u64) -> Option<NonNull<Thread<M>>> {
        if self.realtime.len() > 0
            && let Some(thread) = self.pop_urgent(now)
        {
            return Some(thread);
        }
        self.running = ptr::null();
        self.urgency = 0;
        let stays = match (self.current(), self.shares.first()) {
            (Some(current), Some(first)) => !current.is_empty() && current.used() <= first.used(),
            (Some(current), None) => !current.is_empty(),
            (None, _) => false,
        };
        if !stays {
            let next = self.shares.pop();
            self.set_aside();
            self.current = next;
        }
        self.charged = now;
        let (thread, from_back) = self.current()?.pop()?;
        self.len -= 1;
        // SAFETY: the thread was queued, so it is alive.
        let next = unsafe { thread.as_ref() };
        self.left(next);
        if from_back && !next.has_slice() {
            next.new_slice();
        }
        self.running = thread.as_ptr();
        Some(thread)
    }

    /// As [`pop`](Self::pop), for real-time threads only. `None` if real-time threads have used up their bound and
    /// other threads wait.
    fn pop_urgent(&mut self, now: u64) -> Option<NonNull<Thread<M>>> {
        self.realtime.roll(now);
        if self.realtime.is_spent() && self.len > self.realtime.len() {
            return None;
        }
        let priority = self.realtime.most_urgent();
        let thread = self.realtime.first()?;
        // SAFETY: the thread is the first of the list of this priority.
        unsafe { self.realtime.remove(thread, priority) };
        self.len -= 1;
        self.set_aside();
        self.charged = now;
        // SAFETY: the thread was queued, so it is alive.
        let next = unsafe { thread.as_ref() };
        self.left(next);
        if !next.has_slice() {
            next.new_round(self.realtime.turn());
        }
        self.running = thread.as_ptr();
        self.urgency = priority;
        Some(thread)
    }

    /// Makes no share current. The share that was current returns to the heap if it has waiting threads.
    fn set_aside(&mut self) {
        // SAFETY: the share's user had the running thread, and has a runnable thread still if one waits in the share.
        if let Some(before) = self.current.take().filter(|b| !unsafe { b.as_ref() }.is_empty()) {
            // SAFETY: a current share is in no heap, and this one has a thread queued here, so its user lives.
            unsafe { self.shares.insert(before) };
        }
    }

    /// Records that `thread` runs on this CPU from now on. `share` is its user's share here. Called if the thread came
    /// from another CPU's queue, or if its user or its real-time priority has just changed.
    pub fn run(&mut self, thread: &Thread<M>, share: &Share<M>, now: u64) {
        let urgency = thread.urgency();
        if urgency > 0 {
            self.charge(now, 0, 0);
            self.set_aside();
            self.realtime.roll(now);
            self.charged = now;
        } else {
            self.begin(share, now);
        }
        self.running = thread;
        self.urgency = urgency;
    }

    /// Updates the queue for `thread`, whose real-time priority may have changed. A waiting thread moves to the list of
    /// its new priority. For the running thread, updates the queue's state. `is_home` returns whether the thread's home
    /// (the CPU on which it is queued or runs) is still the CPU of this queue. `sort` calls it after it has read
    /// `Thread::waits`. `share` returns the share of the thread's user on this CPU.
    pub fn sort<'a>(
        &mut self,
        thread: &Thread<M>,
        is_home: impl FnOnce() -> bool,
        share: impl FnOnce() -> &'a Share<M>,
        now: impl FnOnce() -> u64,
    ) -> Sorted
    where
        M: 'a,
    {
        let waits = thread.waits.load(Acquire) & LIST;
        if !is_home() {
            return Sorted::Absent;
        }
        let urgency = thread.urgency();
        // A thread that was woken while it leaves this CPU both runs and waits here. Such a thread counts as waiting.
        if waits == 0 {
            if !ptr::eq(self.running, thread) {
                return Sorted::Unchanged;
            }
            // `Moved` even at the same priority, because the end of the thread's turn may have changed.
            if urgency != self.urgency {
                self.run(thread, share(), now());
            }
            return Sorted::Moved;
        }
        let before = if waits == URGENT { thread.queued_at.load(Relaxed) } else { 0 };
        if urgency == before {
            return Sorted::Unchanged;
        }
        let share = share();
        // SAFETY: the thread waits on this queue: `waits` is guarded by this queue's lock, and was read before `home`.
        unsafe { self.take(NonNull::from(thread), Some(NonNull::from(share))) };
        // As on Linux, a thread that becomes less urgent goes before other threads of its new priority.
        let join = match before {
            0 => Join::Back,
            _ if urgency == 0 => Join::Front,
            before if urgency < before => Join::Resume,
            _ => Join::Back,
        };
        self.push(thread, share, join, now);
        Sorted::Moved
    }

    /// Whether `thread` waits in a share of some queue. A caller that holds the lock of a queue, and reads the thread's
    /// home afterwards, knows whether it waits on that queue.
    pub fn is_in_share(thread: &Thread<M>) -> bool {
        matches!(thread.waits.load(Acquire) & LIST, FRONT | BACK)
    }

    /// Removes the thread `node` from the list on which it waits.
    ///
    /// # Safety
    /// The thread waits on this queue. `share` is its user's share here; it may be `None` for a real-time thread.
    pub unsafe fn take(&mut self, node: NonNull<Thread<M>>, share: Option<NonNull<Share<M>>>) {
        // SAFETY: the thread is queued, so it is alive.
        let thread = unsafe { node.as_ref() };
        let list = thread.waits.load(Relaxed) & LIST;
        if list == URGENT {
            // SAFETY: `push` has stored in `queued_at` the priority of the list on which it put the thread.
            unsafe { self.realtime.remove(node, thread.queued_at.load(Relaxed)) };
        } else if let Some(share) = share {
            // SAFETY: the share's user lives, because this runnable thread belongs to it.
            let of = unsafe { share.as_ref() };
            // SAFETY: `push` has stored in `waits` the list on which it put the thread.
            unsafe { of.remove(node, list == BACK) };
            if of.is_empty() && of.is_in_heap() {
                // SAFETY: the share belongs to this CPU, so the heap that it is in is this queue's heap.
                unsafe { self.shares.remove(share) };
            }
        }
        self.len -= 1;
        self.left(thread);
    }

    /// Makes `share` the current share, which is that of the running thread. A thread of `share` that is not real-time
    /// runs on this CPU from now on. The thread was not on this queue, or has just become that user's thread.
    fn begin(&mut self, share: &Share<M>, now: u64) {
        self.charge(now, 0, 0);
        let before = self.current.take();
        if share.is_in_heap() {
            // SAFETY: the share belongs to this CPU, so the heap that it is in is this queue's heap.
            unsafe { self.shares.remove(NonNull::from(share)) };
        } else if before != Some(NonNull::from(share)) {
            self.wake(share);
        }
        // SAFETY: `before` was the current share. Its user had the running thread, and has a runnable thread still if
        // one waits in the share.
        if let Some(before) = before.filter(|b| !ptr::eq(b.as_ptr(), share) && !unsafe { b.as_ref() }.is_empty()) {
            // SAFETY: a current share is in no heap, and this one has a thread queued here, so its user lives.
            unsafe { self.shares.insert(before) };
        }
        self.current = Some(NonNull::from(share));
        share.begin();
        self.charged = now;
    }

    fn left(&mut self, thread: &Thread<M>) {
        self.reach[(thread.waits.load(Relaxed) & REACH) as usize] -= 1;
        thread.waits.store(0, Relaxed);
    }

    /// Removes and returns a thread that may move to `cpu`: the thread that has waited longest on a list of a share. A
    /// thread whose context is still in use by this CPU stays.
    pub fn steal(&mut self, cpu: CpuId) -> Option<NonNull<Thread<M>>> {
        // Acquire: the thread's saved context is complete once `on_cpu` reads false.
        let off = |n: NonNull<Thread<M>>| {
            // SAFETY: the thread is queued here, so it is alive while the queue's lock is held.
            !unsafe { n.as_ref() }.on_cpu.load(quire_sync::atomic::Ordering::Acquire) || mutant(Mutant::StealBeforeLeft)
        };
        let (node, share) = self.bound_for(cpu, off)?;
        // SAFETY: `bound_for` found the thread and its share on this queue, and the lock is held since then.
        unsafe { self.take(node, share) };
        Some(node)
    }

    /// Whether a thread that waits here may run on `cpu`. The search examines at most [`LOOKS`] threads.
    pub fn has_for(&self, cpu: CpuId) -> bool {
        self.bound_for(cpu, |_| true).is_some()
    }

    /// Finds a thread that may run on `cpu` and that `take` accepts; returns it and its share. Real-time threads are
    /// examined first, the most urgent one before the others, then the shares of the heap, and last the current share.
    /// The search examines at most [`LOOKS`] threads.
    fn bound_for(&self, cpu: CpuId, take: impl Fn(NonNull<Thread<M>>) -> bool) -> Option<FoundThread<M>> {
        if self.movable() == 0 {
            return None;
        }
        // SAFETY: the thread is queued here, so it is alive while the queue's lock is held.
        let may = |n: NonNull<Thread<M>>| unsafe { n.as_ref() }.may_run_on(cpu) && take(n);
        let looks = Cell::new(LOOKS);
        let urgent = self.realtime.find(&looks, may);
        if urgent.is_some() || looks.get() == 0 {
            return urgent.map(|thread| (thread, None));
        }
        // `Some(None)` ends the search of the shares.
        let of = |share: NonNull<Share<M>>| {
            // SAFETY: the share is current or in the heap, so its user has a runnable thread here and lives.
            let found = unsafe { share.as_ref() }.find(&looks, may).map(|thread| (thread, Some(share)));
            (found.is_some() || looks.get() == 0).then_some(found)
        };
        self.shares.find(of).or_else(|| self.current.and_then(of)).flatten()
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
pub(super) mod tests;
