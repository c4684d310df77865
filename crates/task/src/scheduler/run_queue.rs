//! One CPU's queue of runnable threads: the shares of users by virtual time ([`share`](super::share)), and in each
//! share the user's threads.
//!
//! The share whose thread runs is the *current* one, and is not in the heap. So while all runnable threads belong to
//! one user, which is most of the time, the heap is empty and nothing is compared.
//!
//! [Real-time threads](super::realtime) wait beside the shares, and go first. While one runs, no share is current. Its
//! time counts towards the bound of real-time threads, not towards its user's share.

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

/// In nanoseconds: how long a thread runs before a woken thread of its user preempts it, and how far a user gets ahead
/// of another.
pub(crate) const STRETCH: u64 = 1_000_000;
/// How many waiting threads a search for another CPU looks at. The searcher has masked interrupts and holds the lock of
/// the queue, and each look may miss the cache.
const LOOKS: usize = 64;
/// No deadline.
const NEVER: u64 = u64::MAX;

/// How far a thread could move from its queue when it joined.
const PINNED: u8 = 0;
const SOME: u8 = 1;
const ANYWHERE: u8 = 2;
const REACH: u8 = 3;
/// The list on which a thread waits, beside its reach. Zero: on none.
const FRONT: u8 = 4;
const BACK: u8 = 8;
const URGENT: u8 = 12;
const LIST: u8 = 12;

pub(crate) struct RunQueue<M: Machine> {
    /// Shares with threads that wait, but for the current one.
    shares: Heap<M>,
    /// The share of the thread that runs; none where that is the idle thread, or a real-time one.
    current: Option<NonNull<Share<M>>>,
    realtime: Realtime<M>,
    /// The thread that runs, for comparisons only, and its real-time priority as this queue knows it; null and 0 where
    /// that is the idle thread.
    running: *const Thread<M>,
    urgency: u8,
    len: usize,
    /// No runnable share has less virtual time. Never falls.
    floor: u64,
    /// Up to when the current share, or the bound of real-time threads, was charged, in nanoseconds of the CPU's
    /// counter.
    charged: u64,
    /// Threads by reach.
    reach: [u32; 3],
    /// The CPU runs its idle thread, or is about to: a CPU that queues a thread here must wake it.
    pub idle: bool,
    /// Threads that left this CPU for good, until they are reaped.
    pub dead: List<Queued<M>>,
}

// SAFETY: the shares that it points to are `Sync`, and their users live as long as they have runnable threads.
unsafe impl<M: Machine> Send for RunQueue<M> {}

/// How many CPUs `thread` may run on.
fn reach<M: Machine>(thread: &Thread<M>) -> u8 {
    match thread.is_restricted() {
        false => ANYWHERE,
        true if thread.affinity().is_single() => PINNED,
        true => SOME,
    }
}

/// A queued thread, and its share where it is not real-time.
type FoundThread<M> = (NonNull<Thread<M>>, Option<NonNull<Share<M>>>);

/// The effect of a changed urgency on a queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Sorted {
    /// The thread neither waits nor runs here.
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
        // SAFETY: its user lives, because the running thread is its thread.
        self.current.map(|share| unsafe { share.as_ref() })
    }

    /// How many threads should not wait for a whole turn of the running thread, which is of the same user.
    pub fn eager(&self) -> usize {
        self.current().map_or(0, Share::eager)
    }

    /// How many threads may run on another CPU.
    pub fn movable(&self) -> usize {
        (self.reach[SOME as usize] + self.reach[ANYWHERE as usize]) as usize
    }

    /// When the running thread must yield to another user's thread, in nanoseconds of the CPU's counter: once its user
    /// is a stretch ahead.
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

    /// When the running thread must yield to a thread of another user or another class, in nanoseconds of the CPU's
    /// counter.
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

    /// Charges the current share for the time up to `now`. The running thread leaves after a run of `run` nanoseconds,
    /// which are `weighted` nanoseconds at nice 0; both are zero if it goes on.
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

    /// Lets other users go before the running thread, if no other thread of its own user waits.
    pub fn give_way(&mut self) {
        if let (Some(current), Some(first)) = (self.current(), self.shares.first())
            && current.is_empty()
        {
            current.set_used(current.used().max(first.used() + 1));
        }
    }

    /// A share without waiting or running threads here is about to get one: it restarts not far behind the others.
    fn wake(&self, share: &Share<M>) {
        let least = self.floor.saturating_sub(CREDIT);
        if share.used() < least {
            share.set_used(least);
        }
    }

    /// Puts a runnable thread, which is on no queue, on this one, in its user's `share`. `now` is the CPU's counter,
    /// read only where another user's thread runs.
    pub fn push(&mut self, thread: &Thread<M>, share: &Share<M>, join: Join, now: impl FnOnce() -> u64) {
        let node = NonNull::from(thread);
        let (reach, urgency) = match thread.is_ordinary() {
            true => (ANYWHERE, 0),
            false => (reach(thread), thread.urgency()),
        };
        self.reach[reach as usize] += 1;
        self.len += 1;
        // Release: `sort` reads it without the lock of this queue, and reads the thread's home afterwards.
        let note = |list: u8| thread.waits.store(reach | list, Release);
        if urgency > 0 {
            note(URGENT);
            thread.queued_at.store(urgency, Relaxed);
            let end = if join == Join::Resume { End::Head } else { End::Tail };
            // SAFETY: a runnable thread has one queuer, so it is on no queue. It is alive while it is queued.
            unsafe { self.realtime.push(node, urgency, end) };
            return;
        }
        note(if join == Join::Front { FRONT } else { BACK });
        let runs = self.current.is_some_and(|current| ptr::eq(current.as_ptr(), share));
        if !runs && !share.is_in_heap() {
            // The running user's virtual time stays that of its dispatch until it is charged.
            self.charge(now(), 0, 0);
            self.wake(share);
            // SAFETY: the share's user lives, since the thread is its and is runnable.
            unsafe { self.shares.insert(NonNull::from(share)) };
        }
        // SAFETY: a runnable thread has one queuer: the CPU that got `true` from its token, spawned it, or switches
        // away from it. It is alive until it exits, which it cannot while it is queued.
        unsafe { share.push(node, join) };
    }

    /// Where the running thread joins if it is preempted with some of its turn left.
    pub fn preempted(&self) -> Join {
        self.current().map_or(Join::Front, Share::preempted)
    }

    /// Takes off the thread to run next, and makes its share the current one. A thread from a back list gets a new
    /// turn where it has used up the last one. Without a thread there is no current share.
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
        // SAFETY: it was queued, so it is alive.
        let next = unsafe { thread.as_ref() };
        self.left(next);
        if from_back && !next.has_slice() {
            next.new_slice();
        }
        self.running = thread.as_ptr();
        Some(thread)
    }

    /// As [`pop`](Self::pop), of the real-time threads. None where other threads have their turn.
    fn pop_urgent(&mut self, now: u64) -> Option<NonNull<Thread<M>>> {
        self.realtime.roll(now);
        if self.realtime.is_spent() && self.len > self.realtime.len() {
            return None;
        }
        let priority = self.realtime.most_urgent();
        let thread = self.realtime.first()?;
        // SAFETY: it is the first of that list.
        unsafe { self.realtime.remove(thread, priority) };
        self.len -= 1;
        self.set_aside();
        self.charged = now;
        // SAFETY: it was queued, so it is alive.
        let next = unsafe { thread.as_ref() };
        self.left(next);
        if !next.has_slice() {
            next.new_round(self.realtime.turn());
        }
        self.running = thread.as_ptr();
        self.urgency = priority;
        Some(thread)
    }

    /// No share is current from now on.
    fn set_aside(&mut self) {
        // SAFETY: its user had a thread here until now; while one waits, it has one still.
        if let Some(before) = self.current.take().filter(|b| !unsafe { b.as_ref() }.is_empty()) {
            // SAFETY: a current share is in no heap, and this one has a thread queued here, so its user stays.
            unsafe { self.shares.insert(before) };
        }
    }

    /// Records that `thread` runs on this CPU from now on. `share` is its user's. The thread is new on this queue, or
    /// its user or its real-time priority has just changed.
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

    /// Sorts `thread`, whose urgency may have changed, in anew: where it waits here, or as the running thread.
    /// `is_home` returns whether this is still the queue of its home, and is called after the thread was looked at.
    /// `share` is that of the thread here.
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
        // A thread that was woken while it still leaves this CPU both runs and waits here. Then its list counts.
        if waits == 0 {
            if !ptr::eq(self.running, thread) {
                return Sorted::Unchanged;
            }
            // Its turn may have another end even at the same urgency.
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
        // SAFETY: it waits here: the list is guarded by this queue's lock, and was read before its home was.
        unsafe { self.take(NonNull::from(thread), Some(NonNull::from(share))) };
        // As on Linux, a less urgent thread goes before others of its new priority.
        let join = match before {
            0 => Join::Back,
            _ if urgency == 0 => Join::Front,
            before if urgency < before => Join::Resume,
            _ => Join::Back,
        };
        self.push(thread, share, join, now);
        Sorted::Moved
    }

    /// Takes `thread` off the list on which it waits here.
    ///
    /// # Safety
    /// It waits on this queue. `share` is its share here; it may be `None` for a real-time thread.
    unsafe fn take(&mut self, node: NonNull<Thread<M>>, share: Option<NonNull<Share<M>>>) {
        // SAFETY: it is queued, so it is alive.
        let thread = unsafe { node.as_ref() };
        let list = thread.waits.load(Relaxed) & LIST;
        if list == URGENT {
            // SAFETY: `push` has noted the priority of its list.
            unsafe { self.realtime.remove(node, thread.queued_at.load(Relaxed)) };
        } else if let Some(share) = share {
            // SAFETY: its user lives, because this thread is its thread.
            let of = unsafe { share.as_ref() };
            // SAFETY: `push` has noted the list.
            unsafe { of.remove(node, list == BACK) };
            if of.is_empty() && of.is_in_heap() {
                // SAFETY: it is in this heap, as no other CPU's has it.
                unsafe { self.shares.remove(share) };
            }
        }
        self.len -= 1;
        self.left(thread);
    }

    /// A thread of `share` that is not real-time runs here from now on, and was not on this queue, or has just become
    /// that user's.
    fn begin(&mut self, share: &Share<M>, now: u64) {
        self.charge(now, 0, 0);
        let before = self.current.take();
        if share.is_in_heap() {
            // SAFETY: it is in a heap, which can only be this CPU's.
            unsafe { self.shares.remove(NonNull::from(share)) };
        } else if before != Some(NonNull::from(share)) {
            self.wake(share);
        }
        // SAFETY: it was the current share: its user had a thread here until now, and while one waits it has one still.
        if let Some(before) = before.filter(|b| !ptr::eq(b.as_ptr(), share) && !unsafe { b.as_ref() }.is_empty()) {
            // SAFETY: a current share is in no heap, and this one has a thread queued here, so its user stays.
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

    /// Takes off a thread that may move to `cpu`: the longest waiting thread of either list of a share. A thread that
    /// has not left this CPU yet stays.
    pub fn steal(&mut self, cpu: CpuId) -> Option<NonNull<Thread<M>>> {
        // Acquire: its saved context is complete once `on_cpu` reads false.
        let off = |n: NonNull<Thread<M>>| {
            // SAFETY: the thread is queued here, so it is alive while the queue's lock is held.
            !unsafe { n.as_ref() }.on_cpu.load(quire_sync::atomic::Ordering::Acquire) || mutant(Mutant::StealBeforeLeft)
        };
        let (node, share) = self.bound_for(cpu, off)?;
        // SAFETY: `bound_for` found the thread here and its share, and the lock was held since.
        unsafe { self.take(node, share) };
        Some(node)
    }

    /// Whether a thread waits here that may run on `cpu`, as far as a search goes.
    pub fn has_for(&self, cpu: CpuId) -> bool {
        self.bound_for(cpu, |_| true).is_some()
    }

    /// A thread that may run on `cpu` and that `take` accepts, and its share. The most urgent real-time thread comes
    /// first, then shares without a running thread. Threads are skipped only where some may not run on `cpu`, or have
    /// not left this one. It looks at [`LOOKS`] threads at most.
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
            // SAFETY: current, or in the heap: its user has a thread here.
            let found = unsafe { share.as_ref() }.find(&looks, may).map(|thread| (thread, Some(share)));
            (found.is_some() || looks.get() == 0).then_some(found)
        };
        self.shares.find(of).or_else(|| self.current.and_then(of)).flatten()
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
pub(super) mod tests;
