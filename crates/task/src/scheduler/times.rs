//! CPU times of threads and CPUs, and counts of threads.

use super::cpu::{Cpu, Scheduler};
use crate::account::Times;
use crate::irq::Masked;
use crate::machine::Machine;
use crate::thread::Thread;
use core::ptr;
use quire_sync::CpuId;
use quire_sync::atomic::{AtomicU64, Ordering};

/// The times and counts of a CPU.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct CpuTimes {
    /// The time of threads in user mode, in nanoseconds.
    pub user_ns: u64,
    /// The time of threads in the kernel, in nanoseconds.
    pub system_ns: u64,
    /// The time of the idle thread, in nanoseconds.
    pub idle_ns: u64,
    /// The number of switches from one thread to another.
    pub switches: u64,
    /// The number of threads that were started by this CPU.
    pub started: u64,
}

impl<M: Machine> Scheduler<M> {
    /// The time that `thread` has used so far. For the calling thread it is exact; for others it ends at their last
    /// kernel entry, exit or switch.
    pub fn times(&self, thread: &Thread<M>) -> Times {
        if ptr::eq(self.machine.current(), thread) {
            let _masked = Masked::new(self.machine);
            thread.account.cut_system(self.machine.ticks());
        }
        let (user, system) = thread.account.ticks();
        Times { user_ns: self.machine.ticks_to_ns(user), system_ns: self.machine.ticks_to_ns(system) }
    }

    /// The times and counts of `cpu`. The time since its last switch counts as idle time if it halts, else as user
    /// time.
    pub fn cpu_times(&self, cpu: CpuId) -> CpuTimes {
        let c = self.cpus.of(cpu);
        let ns = |v: &AtomicU64| self.machine.ticks_to_ns(v.load(Ordering::Relaxed));
        let now = self.machine.ticks_to_ns(self.machine.ticks());
        let since = now.saturating_sub(c.dispatched.load(Ordering::Relaxed));
        let idle = self.idle.contains(cpu);
        CpuTimes {
            user_ns: ns(&c.user) + if idle { 0 } else { since },
            system_ns: ns(&c.system),
            idle_ns: ns(&c.idled) + if idle { since } else { 0 },
            switches: c.switches.load(Ordering::Relaxed),
            started: c.started.load(Ordering::Relaxed),
        }
    }

    /// How many threads run or wait for a CPU at this moment.
    pub fn runnable(&self) -> usize {
        let on = |(cpu, c): (CpuId, &Cpu<M>)| c.waiting.load(Ordering::Relaxed) + usize::from(!self.idle.contains(cpu));
        self.cpus.iter().enumerate().map(on).sum()
    }

    /// How many threads sleep uninterruptibly at this moment.
    pub fn blocked(&self) -> usize {
        let sum = self.cpus.iter().fold(0u64, |sum, cpu| sum.wrapping_add(cpu.blocked.load(Ordering::Relaxed)));
        // The sum may be negative. A thread may begin a sleep on a CPU whose count was read already, and end it on
        // another CPU. Then the sum includes only the end.
        usize::try_from(sum as i64).unwrap_or(0)
    }

    /// How many threads exist: those that were spawned and have not ended.
    pub fn threads(&self) -> u64 {
        // The ended threads are counted first. Otherwise the result would be too small if a thread started and ended
        // between the two counts.
        let ended: u64 = self.cpus.iter().map(|cpu| cpu.ended.load(Ordering::Acquire)).sum();
        let started: u64 = self.cpus.iter().map(|cpu| cpu.started.load(Ordering::Acquire)).sum();
        started.saturating_sub(ended)
    }
}
