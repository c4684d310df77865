//! One CPU's queue of runnable threads: the shares of users by virtual time ([`share`](super::share)), and in each
//! share the user's threads.
//!
//! The share whose thread runs is the *current* one, and is not in the heap. So while all runnable threads belong to
//! one user, which is most of the time, the heap is empty and nothing is compared.

use super::share::{CREDIT, Heap, Join, Share};
use crate::list::List;
use crate::machine::Machine;
use crate::mutant::{Mutant, mutant};
use crate::thread::{Queued, Thread};
use core::cell::Cell;
use core::ptr::{self, NonNull};
use quire_sync::CpuId;
use quire_sync::atomic::Ordering::Relaxed;

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

pub(crate) struct RunQueue<M: Machine> {
    /// Shares with threads that wait, but for the current one.
    shares: Heap<M>,
    /// The share of the thread that runs; none where that is the idle thread.
    current: Option<NonNull<Share<M>>>,
    len: usize,
    /// No runnable share has less virtual time. Never falls.
    floor: u64,
    /// Up to when the current share was charged, in nanoseconds of the CPU's counter.
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

/// A queued thread, its share, and whether it is on the share's back list.
type FoundThread<M> = (NonNull<Share<M>>, NonNull<Thread<M>>, bool);

impl<M: Machine> RunQueue<M> {
    pub fn new() -> Self {
        RunQueue {
            shares: Heap::new(),
            current: None,
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

    /// Charges the current share for the time up to `now`. The running thread leaves after a run of `run` nanoseconds,
    /// which are `weighted` nanoseconds at nice 0; both are zero if it goes on.
    pub fn charge(&mut self, now: u64, run: u64, weighted: u64) {
        let Some(current) = self.current() else { return };
        current.pass(run, weighted);
        let ran = now.saturating_sub(self.charged);
        let used = current.used() + ran;
        current.set_used(used);
        let least = self.shares.first().map_or(used, |first| first.used().min(used));
        self.charged += ran;
        self.floor = self.floor.max(least);
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
        let allowed = thread.affinity();
        let reach = if allowed.is_full() {
            ANYWHERE
        } else if allowed.is_single() {
            PINNED
        } else {
            SOME
        };
        thread.reach.store(reach, Relaxed);
        self.reach[reach as usize] += 1;
        self.len += 1;
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
        let stays = match (self.current(), self.shares.first()) {
            (Some(current), Some(first)) => !current.is_empty() && current.used() <= first.used(),
            (Some(current), None) => !current.is_empty(),
            (None, _) => false,
        };
        if !stays {
            let before = self.current.take();
            self.current = self.shares.pop();
            // SAFETY: its user had a thread here until now; while one waits, it has one still.
            if let Some(before) = before.filter(|b| !unsafe { b.as_ref() }.is_empty()) {
                // SAFETY: a current share is in no heap, and this one has a thread queued here, so its user stays.
                unsafe { self.shares.insert(before) };
            }
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
        Some(thread)
    }

    /// A thread of `share` runs here from now on that was not on this queue, or has just become that user's.
    pub fn begin(&mut self, share: &Share<M>, now: u64) {
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
        self.reach[thread.reach.load(Relaxed) as usize] -= 1;
    }

    /// Takes off a thread that may move to `cpu`: the longest waiting thread of either list of a share. A thread that
    /// has not left this CPU yet stays.
    pub fn steal(&mut self, cpu: CpuId) -> Option<NonNull<Thread<M>>> {
        // Acquire: its saved context is complete once `on_cpu` reads false.
        let off = |n: NonNull<Thread<M>>| {
            // SAFETY: the thread is queued here, so it is alive while the queue's lock is held.
            !unsafe { n.as_ref() }.on_cpu.load(quire_sync::atomic::Ordering::Acquire) || mutant(Mutant::StealBeforeLeft)
        };
        let (share, node, back) = self.bound_for(cpu, off)?;
        // SAFETY: its user lives, because the thread that was found here is its thread.
        let of = unsafe { share.as_ref() };
        // SAFETY: `bound_for` found the thread on the list that `back` names, and the lock was held since.
        unsafe { of.remove(node, back) };
        self.len -= 1;
        if of.is_empty() && of.is_in_heap() {
            // SAFETY: it is in this heap, as no other CPU's has it.
            unsafe { self.shares.remove(share) };
        }
        // SAFETY: it was queued, so it is alive.
        self.left(unsafe { node.as_ref() });
        Some(node)
    }

    /// Whether a thread waits here that may run on `cpu`, as far as a search goes.
    pub fn has_for(&self, cpu: CpuId) -> bool {
        self.bound_for(cpu, |_| true).is_some()
    }

    /// A thread that may run on `cpu` and that `take` accepts, its share, and whether it is on the back list there.
    /// Shares without a running thread come first. Threads are skipped only where some may not run on `cpu`, or have
    /// not left this one. It looks at [`LOOKS`] threads at most.
    fn bound_for(&self, cpu: CpuId, take: impl Fn(NonNull<Thread<M>>) -> bool) -> Option<FoundThread<M>> {
        if self.movable() == 0 {
            return None;
        }
        // SAFETY: the thread is queued here, so it is alive while the queue's lock is held.
        let may = |n: NonNull<Thread<M>>| unsafe { n.as_ref() }.may_run_on(cpu) && take(n);
        let looks = Cell::new(LOOKS);
        // `Some(None)` ends the search of the shares.
        let of = |share: NonNull<Share<M>>| {
            // SAFETY: current, or in the heap: its user has a thread here.
            let found = unsafe { share.as_ref() }.find(&looks, may).map(|(thread, back)| (share, thread, back));
            (found.is_some() || looks.get() == 0).then_some(found)
        };
        self.shares.find(of).or_else(|| self.current.and_then(of)).flatten()
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;
