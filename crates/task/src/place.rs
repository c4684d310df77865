//! Which CPU a runnable thread goes to, and from where an idle CPU takes one.

use crate::irq::Masked;
use crate::machine::Machine;
use crate::mutant;
use crate::run_queue::{Join, RunQueue};
use crate::scheduler::{Cpu, Scheduler};
use crate::thread::Thread;
use core::ptr::NonNull;
use quire_sync::atomic::{Ordering, fence_full};
use quire_sync::{CpuId, current_cpu};

/// How many crowded CPUs an idle one tries before it gives up: a try that fails means that somebody else is at it.
const TRIES: usize = 4;

impl<M: Machine> Scheduler<M> {
    /// Where a woken thread goes: home if that CPU is idle (its caches may still hold the thread's data), else to an idle
    /// CPU, else home. Who takes an idle CPU's bit has it for itself, so two wakers do not pick the same one.
    pub(crate) fn place(&self, thread: &Thread<M>) -> CpuId {
        let home = thread.home();
        if thread.on_cpu.load(Ordering::Acquire) && !mutant::on(mutant::PLACE_BEFORE_LEFT) {
            // It has not left its CPU: only there can it be queued.
            return home;
        }
        if self.idle.remove(home) {
            return home;
        }
        self.claim_idle(home).unwrap_or(home)
    }

    /// Where a new thread goes: to an idle CPU, else it stays with its maker.
    pub(crate) fn place_new(&self) -> CpuId {
        let here = current_cpu();
        self.claim_idle(here).unwrap_or(here)
    }

    fn claim_idle(&self, from: CpuId) -> Option<CpuId> {
        while let Some(cpu) = self.idle.any(from) {
            if self.idle.remove(cpu) {
                return Some(cpu);
            }
        }
        None
    }

    /// Queues a runnable thread on `cpu`, and tells that CPU where it must know.
    pub(crate) fn enqueue(&self, thread: &Thread<M>, cpu: CpuId, join: Join) {
        let target = self.cpus.of(cpu);
        let _masked = Masked::new(self.machine);
        let first = {
            let mut queue = target.queue.lock_masked();
            queue.push(thread, join, self.machine.ticks_to_ns(self.machine.ticks()));
            self.note(target, cpu, &queue);
            if join != Join::First {
                self.offer(cpu, &queue);
            }
            queue.len() == 1
        };
        if cpu == current_cpu() {
            self.limit_stretch(target);
        } else if first {
            // It halts, or it has to set its timer for the end of the running thread's stretch. Where others wait there
            // already it has been told.
            self.machine.kick(cpu);
        }
    }

    /// Brings the hints about a queue up to date. Called under its lock, after each change.
    pub(crate) fn note(&self, cpu: &Cpu<M>, id: CpuId, queue: &RunQueue<M>) {
        cpu.waiting.store(queue.len(), Ordering::Release);
        cpu.eager.store(queue.eager(), Ordering::Relaxed);
        if queue.len() > 0 && !queue.idle {
            self.crowded.insert(id);
        } else {
            self.crowded.remove(id);
        }
    }

    /// Where threads wait on `id`'s queue while another CPU halts, wakes that one to look for them.
    pub(crate) fn offer(&self, id: CpuId, queue: &RunQueue<M>) {
        if queue.len() == 0 || queue.idle {
            return;
        }
        fence_full();
        if let Some(idle) = self.idle.any(id).filter(|i| *i != id && *i != current_cpu() && self.idle.remove(*i)) {
            self.machine.kick(idle);
        }
    }

    /// Takes a thread from a crowded CPU for `cpu`, which has none.
    ///
    /// => Interrupts are masked, no queue is locked.
    pub(crate) fn steal(&self, cpu: CpuId) -> Option<NonNull<Thread<M>>> {
        let mut from = cpu;
        for _ in 0..TRIES {
            from = self.crowded.any((from + 1) % self.cpus.len())?;
            let victim = self.cpus.of(from);
            let Some(mut queue) = victim.queue.try_lock_masked() else { continue };
            let thread = queue.steal();
            self.note(victim, from, &queue);
            drop(queue);
            if thread.is_some() {
                let own = self.cpus.of(cpu);
                let mut queue = own.queue.lock_masked();
                queue.idle = false;
                self.note(own, cpu, &queue);
                return thread;
            }
        }
        None
    }
}
