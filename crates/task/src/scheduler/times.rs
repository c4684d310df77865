//! CPU times of threads and CPUs, and counts of threads.

use super::cpu::{Cpu, Scheduler, Shown};
use crate::account::Times;
use crate::irq::Masked;
use crate::machine::Machine;
use crate::thread::Thread;
use core::ptr;
use quire_sync::atomic::{AtomicU64, Ordering};
use quire_sync::{CpuId, current_cpu};

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

    /// The time that `thread` has used up to now, in nanoseconds, also while another CPU runs it.
    pub fn used(&self, thread: &Thread<M>) -> u64 {
        if ptr::eq(self.machine.current(), thread) {
            let times = self.times(thread);
            return times.user_ns + times.system_ns;
        }
        self.machine.ticks_to_ns(thread.account.ticks_until_now(|| thread.is_running(), || self.machine.ticks()))
    }

    /// The times and counts of `cpu`. None of them is ever less than in an earlier call. The time since the CPU's last
    /// switch counts as idle time if its idle thread runs. For the caller's CPU it is split exactly. For another CPU it
    /// counts as user time, unless an earlier call has shown it otherwise.
    pub fn cpu_times(&self, cpu: CpuId) -> CpuTimes {
        let c = self.cpus.of(cpu);
        let mut shown = c.shown.lock(self.machine);
        let now = self.now_times(cpu, c);
        shown.advance(now);
        CpuTimes {
            user_ns: shown.user,
            system_ns: shown.system,
            idle_ns: shown.idle,
            switches: c.switches.load(Ordering::Relaxed),
            started: c.started.load(Ordering::Relaxed),
        }
    }

    /// The present times of `cpu`. The caller has masked interrupts.
    fn now_times(&self, cpu: CpuId, c: &Cpu<M>) -> Shown {
        let ns = |ticks: u64| self.machine.ticks_to_ns(ticks);
        let ticks = self.machine.ticks();
        if cpu == current_cpu() {
            let me = self.current();
            me.account.cut_system(ticks);
            let (user, system) = me.account.ticks();
            let then = |v: &AtomicU64| v.load(Ordering::Relaxed);
            let (user, since) = (user - then(&c.at_dispatch.0), system - then(&c.at_dispatch.1));
            let (system, idle) = if self.is_idle(c, &me) { (0, since) } else { (since, 0) };
            return Shown {
                user: ns(then(&c.user) + user),
                system: ns(then(&c.system) + system),
                idle: ns(then(&c.idled) + idle),
            };
        }
        // A switch stores the dispatch first. If it stands still, the times are those of before it or of after it, or
        // they lack the time that the switch is about to add. That is shown later.
        loop {
            let dispatched = c.dispatched.load(Ordering::Acquire);
            let [user, system, idle] = [&c.user, &c.system, &c.idled].map(|v| ns(v.load(Ordering::Acquire)));
            let idling = c.idling.load(Ordering::Acquire);
            if c.dispatched.load(Ordering::Acquire) != dispatched {
                quire_sync::hooks::relax();
                continue;
            }
            let since = ns(ticks).saturating_sub(dispatched);
            let (busy, idle_since) = if idling { (0, since) } else { (since, 0) };
            return Shown { user: user + busy, system, idle: idle + idle_since };
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
