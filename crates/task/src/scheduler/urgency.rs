//! Changes of a thread's class and urgency, and of the bound on real-time threads.

use super::cpu::{Cpu, Scheduler};
use super::realtime::Bound;
use super::run_queue::Sorted;
use crate::irq::Masked;
use crate::machine::Machine;
use crate::mutant::{Mutant, mutant};
use crate::thread::{Class, Thread};
use quire_sync::atomic::fence_full;
use quire_sync::{CpuId, current_cpu};

impl<M: Machine> Scheduler<M> {
    /// Changes the class of `thread`, and whether threads that it makes are [not favoured](Thread::class). A thread
    /// that waits for a CPU moves to its new place there. A CPU that runs a less urgent thread now is interrupted.
    pub fn set_class(&self, thread: &Thread<M>, class: Class, resets: bool) {
        thread.set_class(class, resets);
        self.sort(thread);
    }

    /// The urgency of `thread` may have changed: sorts it in anew where it waits or runs. Callable under any lock of a
    /// rank below the run queue's. A thread that sleeps is sorted in when it wakes up.
    ///
    /// - **a CPU queues the thread** (*writes its home, fences, reads its urgency, writes its list*): that CPU sees the
    ///   new urgency, or this one finds the thread on its new home's queue
    /// - **a CPU takes it off a queue**: its lock: this CPU finds the thread as it waits there, or as it runs
    pub(crate) fn sort(&self, thread: &Thread<M>) {
        if !thread.has_level() {
            return;
        }
        let _masked = Masked::new(self.machine);
        fence_full();
        loop {
            let home = thread.home();
            let target = self.cpus.of(home);
            let mut queue = target.queue.lock_masked();
            let is_home = || thread.home() == home;
            let now = || self.machine.ticks_to_ns(self.machine.ticks());
            match queue.sort(thread, is_home, || self.share(thread, home), now) {
                Sorted::Absent => continue,
                Sorted::Unchanged => return,
                Sorted::Moved => self.note(target, home, &queue),
            }
            drop(queue);
            self.end_turn_anew(target, home);
            return;
        }
    }

    /// The end of the turn on `id` may have changed: that CPU sets its timer anew.
    fn end_turn_anew(&self, cpu: &Cpu<M>, id: CpuId) {
        if id == current_cpu() {
            // The caller may be the machine itself, before it has threads.
            if !self.machine.current().is_null() {
                self.limit_stretch(cpu);
            }
        } else if !mutant(Mutant::QueueWithoutKick) {
            self.machine.kick(id);
        }
    }

    /// Sets the bound on real-time threads for all CPUs.
    pub fn set_bound(&self, bound: Bound) {
        let _masked = Masked::new(self.machine);
        for (id, cpu) in self.cpus.iter().enumerate() {
            let mut queue = cpu.queue.lock_masked();
            queue.set_bound(bound);
            self.note(cpu, id, &queue);
            drop(queue);
            self.end_turn_anew(cpu, id);
        }
    }
}
