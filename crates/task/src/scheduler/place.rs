//! The choice of a CPU for a runnable thread, and of a thread for an idle CPU.

use super::cpu::{Cpu, Scheduler};
use super::run_queue::RunQueue;
use super::share::Join;
use crate::irq::Masked;
use crate::machine::Machine;
use crate::mutant::{Mutant, mutant};
use crate::thread::Thread;
use core::ptr::NonNull;
use quire_sync::atomic::{Ordering, fence_full};
use quire_sync::{CpuId, current_cpu};

/// Threads of its user that wait for a stretch before a thread that is woken to end leaves their share. So a few ends
/// are as quick as other wake-ups, and many do not delay the user's other threads by more than these.
pub(super) const CROWD: usize = 64;

/// How many locked queues of crowded CPUs an idle CPU meets before it gives up: other CPUs work on them.
const TRIES: usize = 4;

impl<M: Machine> Scheduler<M> {
    /// The CPU for a woken thread. It is the home CPU if that is idle, because its caches may still hold the thread's
    /// data. Else it is an idle CPU that the thread may run on, else home. The waker that takes a CPU out of the idle
    /// set has it alone, so two wakers do not pick the same one.
    pub(crate) fn place(&self, thread: &Thread<M>) -> CpuId {
        let home = thread.home();
        if thread.on_cpu.load(Ordering::Acquire) && !mutant(Mutant::PlaceBeforeLeft) {
            // It has not left its CPU: only there can it be queued.
            return home;
        }
        if self.stays(thread, home) || thread.may_run_on(home) && self.idle.take(home) {
            return home;
        }
        self.choose(thread, home)
    }

    /// Whether `thread` is queued on `near` without a search: the usual case on a busy machine, decided by a few words.
    #[inline]
    fn stays(&self, thread: &Thread<M>, near: CpuId) -> bool {
        self.idle.has_none()
            && thread.may_run_on(near)
            && thread.urgency() == 0
            && self.cpus.of(near).urgency.load(Ordering::Relaxed) == 0
    }

    /// The CPU for a new thread: an idle CPU, else its maker's.
    pub(crate) fn place_new(&self, thread: &Thread<M>) -> CpuId {
        let here = current_cpu();
        if self.stays(thread, here) { here } else { self.choose(thread, here) }
    }

    /// An idle CPU that `thread` may run on, else `near`, else the least busy one. For a real-time thread, CPUs that
    /// run a less urgent thread come next after the idle ones.
    fn choose(&self, thread: &Thread<M>, near: CpuId) -> CpuId {
        let allowed = thread.affinity();
        let here = allowed.contains(near);
        if here && allowed.is_single() {
            return near;
        }
        // A CPU that has not started runs no thread, urgent or not.
        let started = |cpu: &CpuId| !self.cpus.of(*cpu).idle.load(Ordering::Relaxed).is_null();
        let existing = || allowed.iter().take_while(|cpu| *cpu < self.cpus.len()).filter(started);
        // The urgency of the most urgent thread that runs or waits there.
        let runs = |cpu: CpuId| self.cpus.of(cpu).urgency.load(Ordering::Relaxed);
        let less_urgent = || {
            let urgency = thread.urgency();
            if urgency == 0 || here && runs(near) < urgency {
                return None;
            }
            existing().min_by_key(|cpu| runs(*cpu)).filter(|cpu| runs(*cpu) < urgency)
        };
        let idle = self.idle.take_any(near, &allowed);
        // An ordinary thread stays near unless a real-time one runs there, which may leave it little of that CPU.
        let stays = || (here && (runs(near) == 0 || thread.urgency() > 0)).then_some(near);
        idle.or_else(less_urgent).or_else(stays).unwrap_or_else(|| {
            let busy = |cpu: &CpuId| (runs(*cpu) > 0, self.cpus.of(*cpu).waiting.load(Ordering::Relaxed), *cpu != near);
            existing().min_by_key(busy).unwrap_or(near)
        })
    }

    /// Queues a runnable thread on `cpu`, and interrupts that CPU where it must act.
    pub(crate) fn enqueue(&self, thread: &Thread<M>, cpu: CpuId, join: Join) {
        let masked = Masked::new(self.machine);
        self.enqueue_masked(&masked, thread, cpu, join, false);
    }

    /// As [`enqueue`](Self::enqueue), with interrupts masked already. `ends`: behind a crowd of its user, the thread
    /// belongs to the ending ones from now on.
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
                // A CPU that makes the thread real-time reads its home after that. Either this CPU sees the change, or
                // that CPU comes to this queue.
                if !mutant(Mutant::HomeNoFence) {
                    fence_full();
                }
            }
            let hints = || (target.eager.load(Ordering::Relaxed), target.turn_end.load(Ordering::Relaxed));
            let before = if own { Default::default() } else { hints() };
            if ends && self.share(thread, cpu).eager() >= CROWD {
                // SAFETY: the scheduler lives as long as the machine. The thread was asleep and has one waker, this
                // CPU, so it is on no queue, and no other CPU looks for its share.
                unsafe { thread.belong_to(Some(NonNull::from(&self.ending))) };
            }
            queue.push(thread, self.share_on(target, thread, cpu), join, || {
                self.machine.ticks_to_ns(self.machine.ticks())
            });
            self.note_inline(target, cpu, &queue);
            self.offer(cpu, &queue, thread);
            // Another CPU halts, or it must set its timer for the end of the running thread's stretch. The stretch is
            // shorter where a waiting thread is eager, or belongs to another user or class. Where such a thread waited
            // already, the CPU has been interrupted before.
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

    /// Updates the hints about a queue. Called under its lock, after each change.
    ///
    /// A CPU whose queue runs dry stays in the crowded set until it goes idle, or until an idle CPU has looked at it.
    /// So while all CPUs are busy, threads that sleep and wake write no shared line.
    pub(crate) fn note(&self, cpu: &Cpu<M>, id: CpuId, queue: &RunQueue<M>) {
        self.note_inline(cpu, id, queue);
    }

    /// As [`note`](Self::note), for the two places where most threads pass.
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

    /// `thread` has joined `id`'s queue and waits there: wakes another halted CPU that it may run on, to fetch it.
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

    /// Whether a thread waits on a crowded CPU that may run on `cpu`. A CPU that finds none may halt: a waker that
    /// queues such a thread later finds this CPU idle. The answer is exact, except that a search ends after a fixed
    /// number of threads that may not run on `cpu`. A thread behind them waits for its turn on its own CPU.
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

    /// Takes a waiting thread from another CPU's queue for `cpu`, which has none to run. `now` is in nanoseconds.
    ///
    /// # Requires
    /// Interrupts are masked, no queue is locked.
    pub(crate) fn steal(&self, cpu: CpuId, now: u64) -> Option<NonNull<Thread<M>>> {
        let (count, mut walked, mut locked) = (self.cpus.len(), 0, 0);
        // One round: the threads that wait on the nearest crowded CPUs may not be allowed here.
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
                // Written under the lock of the queue that it leaves: see `set_affinity`.
                // SAFETY: it was queued, so it is alive.
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
