//! The choice of a CPU for a runnable thread, and of a thread for an idle CPU.

use super::cpu::{Cpu, Scheduler};
use super::run_queue::RunQueue;
use super::share::Join;
use crate::irq::Masked;
use crate::machine::Machine;
use crate::mutant::{Mutant, mutant};
use crate::thread::Thread;
use core::ptr::{self, NonNull};
use quire_sync::atomic::{Ordering, fence_full};
use quire_sync::{CpuId, current_cpu};

/// If at least this number of a user's threads wait on the list that an ending thread would join, or on which it
/// waits, that thread leaves the user's share. With fewer threads, an exiting thread runs as soon as others. With more,
/// exiting threads neither delay the user's other threads nor wait for their turns.
pub(super) const CROWD: usize = if cfg!(any(loom, shuttle)) { 1 } else { 64 };

/// How many locked queues an idle CPU may find in its search for a thread. The search then ends, because other CPUs
/// already take threads from the crowded CPUs.
const TRIES: usize = 4;

impl<M: Machine> Scheduler<M> {
    /// Chooses the CPU for a woken thread. It is the home CPU, on which the thread ran last, if that CPU is idle,
    /// because its caches may still hold the thread's data. Else it is an idle CPU on which the thread may run, else
    /// the home CPU. The chosen idle CPU is removed from the idle set atomically, so two wakers do not choose the same
    /// CPU.
    pub(crate) fn place(&self, thread: &Thread<M>) -> CpuId {
        let home = thread.home();
        if thread.on_cpu.load(Ordering::Acquire) && !mutant(Mutant::PlaceBeforeLeft) {
            // The switch away from the thread is not complete, so it may be queued only on the CPU that it leaves.
            return home;
        }
        if self.stays(thread, home) || thread.may_run_on(home) && self.idle.take(home) {
            return home;
        }
        self.choose(thread, home)
    }

    /// Whether `thread` is queued on `near` without a search for another CPU: no CPU is idle, and no real-time thread
    /// is involved. This is the usual case on a busy machine, and the check reads few words.
    #[inline]
    fn stays(&self, thread: &Thread<M>, near: CpuId) -> bool {
        self.idle.has_none()
            && thread.may_run_on(near)
            && thread.urgency() == 0
            && self.cpus.of(near).urgency.load(Ordering::Relaxed) == 0
    }

    /// Chooses the CPU for a new thread: an idle CPU, else the CPU of its creator.
    pub(crate) fn place_new(&self, thread: &Thread<M>) -> CpuId {
        let here = current_cpu();
        if self.stays(thread, here) { here } else { self.choose(thread, here) }
    }

    /// Returns an idle CPU on which `thread` may run, else `near`, else the least busy CPU. For a real-time thread, a
    /// CPU that runs a less urgent thread is preferred to `near`.
    fn choose(&self, thread: &Thread<M>, near: CpuId) -> CpuId {
        let allowed = thread.affinity();
        let here = allowed.contains(near);
        if here && allowed.is_single() {
            return near;
        }
        // A CPU that has not started runs no thread, urgent or not.
        let started = |cpu: &CpuId| !self.cpus.of(*cpu).idle.load(Ordering::Relaxed).is_null();
        let existing = || allowed.iter().take_while(|cpu| *cpu < self.cpus.len()).filter(started);
        // The real-time priority of the most urgent thread that runs or waits on the CPU.
        let runs = |cpu: CpuId| self.cpus.of(cpu).urgency.load(Ordering::Relaxed);
        let less_urgent = || {
            let urgency = thread.urgency();
            if urgency == 0 || here && runs(near) < urgency {
                return None;
            }
            existing().min_by_key(|cpu| runs(*cpu)).filter(|cpu| runs(*cpu) < urgency)
        };
        let idle = self.idle.take_any(near, &allowed);
        // An ordinary thread stays on `near` unless a real-time thread runs there, which may use most of the CPU time.
        let stays = || (here && (runs(near) == 0 || thread.urgency() > 0)).then_some(near);
        idle.or_else(less_urgent).or_else(stays).unwrap_or_else(|| {
            let busy = |cpu: &CpuId| (runs(*cpu) > 0, self.cpus.of(*cpu).waiting.load(Ordering::Relaxed), *cpu != near);
            existing().min_by_key(busy).unwrap_or(near)
        })
    }

    /// Queues a runnable thread on `cpu`. Interrupts that CPU if it must run the thread now or set its timer.
    pub(crate) fn enqueue(&self, thread: &Thread<M>, cpu: CpuId, join: Join) {
        let masked = Masked::new(self.machine);
        self.enqueue_masked(&masked, thread, cpu, join, false);
    }

    /// Queues a runnable thread on `cpu` as [`enqueue`](Self::enqueue) does, for a caller that has masked interrupts.
    /// `ends` is true for a thread that is about to exit. If at least [`CROWD`] threads would run before it, that thread
    /// moves to the share of ending threads.
    pub(crate) fn enqueue_masked(
        &self,
        _masked: &Masked<'_, M>,
        thread: &Thread<M>,
        cpu: CpuId,
        join: Join,
        ends: bool,
    ) {
        let target = self.cpus.of(cpu);
        let own = cpu == current_cpu();
        let kicks = {
            let mut queue = target.queue.lock_masked();
            if thread.home() != cpu {
                thread.set_home(cpu);
                // Another CPU may make the thread real-time at this moment. It writes the priority, fences, and then
                // reads the thread's home. This CPU writes the home, fences, and then reads the priority. So either
                // this CPU sees the new priority, or the other CPU sees the new home and updates this queue.
                if !mutant(Mutant::HomeNoFence) {
                    fence_full();
                }
            }
            let hints = || (target.eager.load(Ordering::Relaxed), target.turn_end.load(Ordering::Relaxed));
            let before = if own { Default::default() } else { hints() };
            if ends && self.share_on(target, thread, cpu).before(join) >= CROWD {
                // SAFETY: the scheduler lives as long as the machine. The thread was asleep, and this CPU is its only
                // waker. So the thread is on no queue, and no other CPU reads its share.
                unsafe { thread.belong_to(Some(NonNull::from(&self.ending))) };
            }
            queue.push(thread, self.share_on(target, thread, cpu), join, || {
                self.machine.ticks_to_ns(self.machine.ticks())
            });
            self.note_inline(target, cpu, &queue);
            self.offer(cpu, &queue, thread);
            // The CPU of the queue needs an interrupt if it halts, or if its running thread must now yield earlier. The
            // interrupt makes it set its timer. The running thread must yield earlier if the new thread is on its
            // user's front list, or belongs to another user or class. If a thread of that kind waited already, the CPU
            // was interrupted for that thread.
            let shorter = || {
                let after = hints();
                (before.0 == 0 && after.0 == 1) || after.1 < before.1
            };
            !own && (queue.len() == 1 || shorter())
        };
        if own {
            self.limit_stretch(target);
        } else if kicks && !mutant(Mutant::QueueWithoutKick) {
            self.machine.kick(cpu);
        }
    }

    /// Moves `thread`, which is about to exit, to the share of ending threads, if it waits for a CPU and at least
    /// [`CROWD`] threads of its user wait there. Races with:
    ///
    /// - **a CPU that takes the thread off its queue**, to run it or to steal it: the queue's lock orders the two. A
    ///   thread in transit waits on no queue and keeps its share.
    /// - **the thread itself, which changes its user**: only a running thread does that, and it waits on no queue.
    #[cold]
    pub(super) fn hasten(&self, thread: &Thread<M>) {
        let _masked = Masked::new(self.machine);
        loop {
            let home = thread.home();
            let target = self.cpus.of(home);
            if target.waiting.load(Ordering::Relaxed) < CROWD {
                return;
            }
            let mut queue = target.queue.lock_masked();
            let waits = RunQueue::is_in_share(thread);
            if thread.home() != home && !mutant(Mutant::HastenAtOldHome) {
                continue;
            }
            if !waits {
                return;
            }
            // The thread waits here, so its user is alive.
            let share = self.share_on(target, thread, home);
            let user = thread.user();
            if user.is_null() || ptr::eq(user, &self.ending) || share.len() < CROWD {
                return;
            }
            // SAFETY: the thread's list was read before its home, and the lock of its home's queue is held. So it waits
            // in its user's share of this queue.
            unsafe { queue.take(NonNull::from(thread), Some(NonNull::from(share))) };
            // SAFETY: the scheduler lives as long as the machine. The thread is on no queue, and the lock keeps other
            // CPUs from its share. Its charge keeps its previous user alive.
            unsafe { thread.belong_to(Some(NonNull::from(&self.ending))) };
            let now = || self.machine.ticks_to_ns(self.machine.ticks());
            let join = if thread.has_slice() { Join::Front } else { Join::Back };
            queue.push(thread, self.share_on(target, thread, home), join, now);
            self.note(target, home, &queue);
            drop(queue);
            self.end_turn_anew(target, home);
            return;
        }
    }

    /// Updates the hints about a queue, and the set of crowded CPUs. Called under the queue's lock, after each change.
    ///
    /// Idle CPUs take threads from the CPUs in the crowded set. A CPU whose queue becomes empty stays in that set until
    /// it is idle, or until an idle CPU has examined the queue. So while all CPUs are busy, threads that sleep and wake
    /// write no shared cache line.
    pub(crate) fn note(&self, cpu: &Cpu<M>, id: CpuId, queue: &RunQueue<M>) {
        self.note_inline(cpu, id, queue);
    }

    /// Does the work of [`note`](Self::note). Inlined in the two hottest callers, which call it directly.
    #[inline(always)]
    pub(super) fn note_inline(&self, cpu: &Cpu<M>, id: CpuId, queue: &RunQueue<M>) {
        cpu.waiting.store(queue.len(), Ordering::Release);
        cpu.eager.store(queue.eager(), Ordering::Relaxed);
        cpu.turn_end.store(queue.turn_end(), Ordering::Relaxed);
        cpu.urgency.store(queue.most_urgent(), Ordering::Relaxed);
        if queue.idle {
            self.crowded.remove(id);
        } else if queue.movable() > 0 {
            self.crowded.insert(id);
        }
    }

    /// Wakes a halted CPU on which `thread` may run, so that the woken CPU takes the thread from the queue of CPU `id`.
    /// Called after `thread` was inserted in that queue and waits there.
    pub(crate) fn offer(&self, id: CpuId, queue: &RunQueue<M>, thread: &Thread<M>) {
        if queue.movable() == 0 || queue.idle {
            return;
        }
        if !mutant(Mutant::OfferNoFence) {
            fence_full();
        }
        if self.idle.has_none() {
            return;
        }
        let mut others = thread.affinity();
        others.remove(id);
        others.remove(current_cpu());
        if let Some(idle) = self.idle.take_any(id, &others) {
            self.machine.kick(idle);
        }
    }

    /// Whether a thread that waits on another, crowded CPU (which has waiting threads) may run on `cpu`. If not, `cpu`
    /// may halt, because a waker that queues such a thread after this search finds `cpu` in the idle set. The search of
    /// a queue ends after a fixed number of threads that may not run on `cpu`. The search misses a thread behind them,
    /// which then waits for its own CPU.
    ///
    /// # Requires
    /// Interrupts are masked, no queue is locked.
    pub(crate) fn crowd_has_for(&self, cpu: CpuId) -> bool {
        let mut from = 0;
        while let Some(at) = self.crowded.any(from).filter(|at| *at >= from) {
            if self.cpus.of(at).queue.lock_masked().has_for(cpu) {
                return true;
            }
            from = at + 1;
            if from == self.cpus.len() {
                break;
            }
        }
        false
    }

    /// Takes a waiting thread from another CPU's queue, and makes it the running thread of the queue of `cpu`, which
    /// has no threads. `now` is in nanoseconds of the CPU's counter.
    ///
    /// # Requires
    /// Interrupts are masked, no queue is locked.
    pub(crate) fn steal(&self, cpu: CpuId, now: u64) -> Option<NonNull<Thread<M>>> {
        let (count, mut walked, mut locked) = (self.cpus.len(), 0, 0);
        // Visit each crowded CPU at most once. A visit may fail, because the affinity of its threads excludes `cpu`.
        loop {
            let next = (cpu + walked + 1) % count;
            let from = self.crowded.any(next)?;
            walked += (from + count - next) % count + 1;
            if walked >= count {
                return None;
            }
            let victim = self.cpus.of(from);
            let Some(mut queue) = victim.queue.try_lock_masked() else {
                locked += 1;
                if locked == TRIES {
                    return None;
                }
                continue;
            };
            let thread = queue.steal(cpu);
            if let Some(thread) = thread {
                // This CPU writes the home while it holds the lock of the queue that the thread leaves: see
                // `set_affinity`.
                // SAFETY: the thread was queued, so it is alive.
                unsafe { thread.as_ref() }.set_home(cpu);
            }
            self.note(victim, from, &queue);
            if queue.movable() == 0 {
                self.crowded.remove(from);
            }
            drop(queue);
            if let Some(stolen) = thread {
                let own = self.cpus.of(cpu);
                let mut queue = own.queue.lock_masked();
                queue.idle = false;
                // SAFETY: the thread was taken off its queue, so no other CPU runs or frees it.
                let stolen = unsafe { stolen.as_ref() };
                queue.run(stolen, self.share(stolen, cpu), now);
                self.note(own, cpu, &queue);
                return thread;
            }
        }
    }
}
