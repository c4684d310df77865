//! One CPU's queue of runnable threads.
//!
//! Two lists. Threads that wake up, or were preempted, with some of their turn left stand on the *front* list and take
//! short stretches round-robin, so that whoever mostly sleeps runs soon; a thread whose turn is used up goes to the end of
//! the *back* list and gets a new turn when it comes off it. So a thread that wakes up a thousand times is ahead of a busy
//! one for one turn's worth of CPU time in all, then waits like everybody else. Should the front list never run dry, the
//! back list is served every [`PATIENCE`] nonetheless.

use crate::list::List;
use crate::machine::Machine;
use crate::mutant::{Mutant, mutant};
use crate::thread::{Queued, Thread};
use core::ptr::NonNull;
use quire_sync::CpuId;
use quire_sync::atomic::Ordering::Relaxed;

/// A turn at nice 0, in nanoseconds: long beside the cost of a switch, short beside what a person notices.
pub(crate) const SLICE: u32 = 4_000_000;
/// How long a thread runs before it lets a woken one in, in nanoseconds.
pub(crate) const STRETCH: u64 = 1_000_000;
/// How long the back list may be passed over, in nanoseconds: a few turns.
const PATIENCE: u64 = 20_000_000;

/// The turn of a thread at `nice`: a factor of 1.25 a step as on Linux, between a quarter of a millisecond (below that
/// switching dominates) and forty (above it others starve).
pub(crate) fn slice_for(nice: i8) -> u32 {
    let mut ns = SLICE;
    for _ in 0..nice.unsigned_abs() {
        ns = if nice > 0 { ns * 4 / 5 } else { ns * 5 / 4 };
    }
    ns.clamp(250_000, 40_000_000)
}

/// Where a thread joins the queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Join {
    /// It is next: the thread that runs is about to give way to it.
    First,
    /// Behind the others that have some of their turn left.
    Front,
    /// Behind everybody, for a new turn.
    Back,
}

/// How far a thread may go from its queue, as it was when it joined.
const PINNED: u8 = 0;
const SOME: u8 = 1;
const ANYWHERE: u8 = 2;

pub(crate) struct RunQueue<M: Machine> {
    front: List<Queued<M>>,
    back: List<Queued<M>>,
    front_len: usize,
    back_len: usize,
    /// Threads by reach.
    reach: [usize; 3],
    /// When the back list was last served or was empty, in nanoseconds of CPU clock.
    back_served: u64,
    /// The CPU runs its idle thread, or is about to: whoever queues a thread here must wake it.
    pub idle: bool,
    /// Threads that left this CPU for good, until they are reaped.
    pub dead: List<Queued<M>>,
}

impl<M: Machine> RunQueue<M> {
    pub fn new() -> Self {
        RunQueue {
            front: List::new(),
            back: List::new(),
            front_len: 0,
            back_len: 0,
            reach: [0; 3],
            back_served: 0,
            idle: false,
            dead: List::new(),
        }
    }

    pub fn len(&self) -> usize {
        self.front_len + self.back_len
    }

    /// Threads that should not wait for a whole turn of the running one.
    pub fn eager(&self) -> usize {
        self.front_len
    }

    /// Threads that may run on another CPU.
    pub fn movable(&self) -> usize {
        self.reach[SOME as usize] + self.reach[ANYWHERE as usize]
    }

    /// Puts a runnable thread, which is on no queue, on this one. `now`, the CPU's clock, is read where it matters alone: where
    /// the back list begins.
    pub fn push(&mut self, thread: &Thread<M>, join: Join, now: impl FnOnce() -> u64) {
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
        // SAFETY: a runnable thread has one queuer: who got `true` from its token, spawned it, or switches away from it.
        // It is alive until it has exited, which it cannot while it is queued.
        unsafe {
            match join {
                Join::First => self.front.push_front(node),
                Join::Front => self.front.push_back(node),
                Join::Back => self.back.push_back(node),
            }
        }
        if join == Join::Back {
            if self.back_len == 0 {
                self.back_served = now();
            }
            self.back_len += 1;
        } else {
            self.front_len += 1;
        }
    }

    /// Takes off the thread that is to run next; one from the back list gets a new turn.
    pub fn pop(&mut self, now: u64) -> Option<NonNull<Thread<M>>> {
        let starved = self.back_len > 0 && now.saturating_sub(self.back_served) > PATIENCE;
        if !starved && let Some(node) = self.front.pop_front() {
            self.front_len -= 1;
            // SAFETY: it was queued, so it is alive.
            self.left(unsafe { node.as_ref() });
            return Some(node);
        }
        let node = self.back.pop_front()?;
        self.back_len -= 1;
        self.back_served = now;
        // SAFETY: it was queued, so it is alive.
        let thread = unsafe { node.as_ref() };
        self.left(thread);
        thread.new_slice();
        Some(node)
    }

    fn left(&mut self, thread: &Thread<M>) {
        self.reach[thread.reach.load(Relaxed) as usize] -= 1;
    }

    /// Takes off a thread that may move to `cpu`: the one that waits longest on either list. One that has not left this CPU
    /// yet stays.
    pub fn steal(&mut self, cpu: CpuId) -> Option<NonNull<Thread<M>>> {
        // Acquire: its saved context is complete once `on_cpu` reads false.
        let off = |n: NonNull<Thread<M>>| {
            // SAFETY: queued, so alive.
            !unsafe { n.as_ref() }.on_cpu.load(quire_sync::atomic::Ordering::Acquire) || mutant(Mutant::StealBeforeLeft)
        };
        let (node, back) = self.bound_for(cpu, off)?;
        // SAFETY: it is on that list.
        unsafe {
            if back {
                self.back.remove(node);
                self.back_len -= 1;
            } else {
                self.front.remove(node);
                self.front_len -= 1;
            }
            self.left(node.as_ref());
        }
        Some(node)
    }

    /// Whether a thread waits here that may run on `cpu`.
    pub fn has_for(&self, cpu: CpuId) -> bool {
        self.bound_for(cpu, |_| true).is_some()
    }

    /// The first thread of the back list, else of the front list, that may run on `cpu` and that `take` accepts; whether it
    /// is on the back list. Passes over threads only where some may not run on `cpu`.
    fn bound_for(&self, cpu: CpuId, take: impl Fn(NonNull<Thread<M>>) -> bool) -> Option<(NonNull<Thread<M>>, bool)> {
        if self.movable() == 0 {
            return None;
        }
        // SAFETY: queued, so alive.
        let may = |n: &NonNull<Thread<M>>| unsafe { n.as_ref() }.may_run_on(cpu);
        let first = |list: &List<Queued<M>>| list.iter().find(may).filter(|n| take(*n));
        first(&self.back).map(|n| (n, true)).or_else(|| first(&self.front).map(|n| (n, false)))
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;
