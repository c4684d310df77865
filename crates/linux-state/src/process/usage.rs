//! Resource usage of processes: exact times, faults by kind, switches, peak memory.

use crate::machine::Machine;
use crate::process::Process;
use quire_task::Thread as Task;

/// The resource usage of one or several threads.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Usage {
    /// Nanoseconds in user mode.
    pub user: u64,
    /// Nanoseconds in the kernel.
    pub system: u64,
    /// The number of faults that read nothing from a device.
    pub minor_faults: u64,
    /// The number of faults that waited for a device.
    pub major_faults: u64,
    /// The number of context switches because the thread slept.
    pub voluntary: u64,
    /// The number of context switches because the thread was preempted.
    pub involuntary: u64,
    /// The highest number of pages that were resident at once.
    pub peak_pages: u64,
}

impl Usage {
    /// Adds `other`. Of the two memory peaks, the higher is kept.
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

/// The resource usage of threads and children that have ended. The lock [`Process::accounts`] guards it.
#[derive(Default)]
pub struct Accounts {
    /// The sum for the threads of the process that have ended.
    pub ended_threads: Usage,
    /// The sum for the children that were reaped, including their own reaped children.
    pub children: Usage,
}

/// The usage of one thread so far. The peak of memory is 0, because memory belongs to the process.
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
    /// The peak number of resident pages of the process's present memory; 0 if the threads have left it. Reads no page
    /// table.
    pub fn peak_pages(&self) -> u64 {
        let memory = {
            let threads = self.threads.lock();
            threads.iter().find_map(|task| task.payload().as_ref()?.space.borrow())
        };
        memory.map_or(0, |memory| memory.peak_resident())
    }

    /// The usage of all threads so far, ended ones included. The memory peak is the peak of the programs that the
    /// process ran before its present one.
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
