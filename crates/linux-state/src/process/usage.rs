//! Resource usage of processes: exact times, faults by kind, switches, peak memory.

use crate::machine::Machine;
use crate::process::Process;
use quire_task::Thread as Task;

/// A sum of usage.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Usage {
    /// Nanoseconds in user mode.
    pub user: u64,
    /// Nanoseconds in the kernel.
    pub system: u64,
    /// Faults served without a device.
    pub minor_faults: u64,
    /// Faults that waited for a device.
    pub major_faults: u64,
    /// Switches away because it slept.
    pub voluntary: u64,
    /// Switches away because it was preempted.
    pub involuntary: u64,
    /// Most resident pages at a time.
    pub peak_pages: u64,
}

impl Usage {
    /// Adds `other`; peaks do not add up.
    pub fn add(&mut self, other: &Usage) {
        self.user += other.user;
        self.system += other.system;
        self.minor_faults += other.minor_faults;
        self.major_faults += other.major_faults;
        self.voluntary += other.voluntary;
        self.involuntary += other.involuntary;
        self.peak_pages = self.peak_pages.max(other.peak_pages);
    }
}

/// A process's sums. Guarded by [`Process::accounts`].
#[derive(Default)]
pub struct Accounts {
    /// Threads of the process that have ended.
    pub ended_threads: Usage,
    /// Reaped children, and theirs.
    pub children: Usage,
}

/// The usage of one thread so far, without memory, which is its process's.
pub fn of_thread<M: Machine>(linux: &crate::Linux<M>, task: &Task<M>) -> Usage {
    let times = linux.scheduler.times(task);
    let (voluntary, involuntary) = task.switches();
    let Some(thread) = task.payload() else { return Usage::default() };
    Usage {
        user: times.user_ns,
        system: times.system_ns,
        minor_faults: thread.minor_faults.load(quire_sync::atomic::Ordering::Relaxed),
        major_faults: thread.major_faults.load(quire_sync::atomic::Ordering::Relaxed),
        voluntary,
        involuntary,
        peak_pages: 0,
    }
}

impl<M: Machine> Process<M> {
    /// The most resident pages of its threads' present memory; 0 if they have left it. Reads no page table.
    pub fn peak_pages(&self) -> u64 {
        let memory = {
            let threads = self.threads.lock();
            threads.iter().find_map(|task| task.payload().as_ref()?.space.borrow())
        };
        memory.map_or(0, |memory| memory.peak_resident())
    }

    /// The usage of all its threads so far; for memory, the peak of its earlier programs.
    pub fn usage(&self) -> Usage {
        let mut sum = Usage::default();
        {
            let threads = self.threads.lock();
            for thread in threads.iter() {
                sum.add(&of_thread(self.linux, thread));
            }
        }
        sum.add(&self.accounts.lock().ended_threads);
        sum
    }
}
