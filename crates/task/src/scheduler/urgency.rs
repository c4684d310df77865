//! Changes of a thread's class and urgency (real-time priority), and of the bound on real-time threads.

use super::cpu::Scheduler;
use super::realtime::Bound;
use super::run_queue::Sorted;
use crate::irq::Masked;
use crate::machine::Machine;
use crate::thread::{Class, Thread};
use quire_sync::atomic::fence_full;

impl<M: Machine> Scheduler<M> {
    /// Changes the class of `thread`, and whether its child threads [start with a reset class](Thread::class). A thread
    /// that waits for a CPU is requeued. Its CPU is interrupted, because that CPU may now have to preempt the running
    /// thread.
    pub fn set_class(&self, thread: &Thread<M>, class: Class, resets: bool) {
        thread.set_class(class, resets);
        self.sort(thread);
    }

    /// Updates the run queue of `thread`, whose urgency may have changed: a waiting thread is requeued, and the state
    /// of a running one is updated. A sleeping thread is queued by its new urgency when it wakes up. Callable under any
    /// lock of a rank below the run queue's. The function races with:
    ///
    /// - **a CPU that queues the thread** (*writes its home, executes a fence, reads its urgency, writes its list*).
    ///   Either that CPU sees the new urgency, or this CPU finds the thread on the queue of its new home.
    /// - **a CPU that takes the thread off a queue**. The queue's lock orders the two, so this CPU finds the thread
    ///   waiting or running.
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
