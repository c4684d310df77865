//! Resource limits.

use crate::machine::Machine;
use crate::plain::Plain;
use crate::process::Process;

/// One limit.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limit {
    /// The limit in force.
    pub soft: u64,
    /// The value up to which the process may raise it.
    pub hard: u64,
}

// SAFETY: two words of eight bytes leave no padding, and every bit pattern is a value.
unsafe impl Plain for Limit {}

/// "No limit".
pub const INFINITY: u64 = u64::MAX;
/// Number of limits.
pub const COUNT: usize = 16;
/// Words that store them: of each limit the soft one, then the hard one.
pub(crate) const WORDS: usize = 2 * COUNT;

/// The limits' indices: Linux's RLIMIT_ numbers.
#[allow(missing_docs)]
pub mod which {
    pub const CPU: usize = 0;
    pub const FSIZE: usize = 1;
    pub const DATA: usize = 2;
    pub const STACK: usize = 3;
    pub const CORE: usize = 4;
    pub const RSS: usize = 5;
    pub const NPROC: usize = 6;
    pub const NOFILE: usize = 7;
    pub const MEMLOCK: usize = 8;
    pub const AS: usize = 9;
    pub const LOCKS: usize = 10;
    pub const SIGPENDING: usize = 11;
    pub const MSGQUEUE: usize = 12;
    pub const NICE: usize = 13;
    pub const RTPRIO: usize = 14;
    pub const RTTIME: usize = 15;
}

/// All limits of a process.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Limits(pub [Limit; COUNT]);

impl Limits {
    /// The limits of process 1: Linux's defaults. `threads` is the highest number of threads that memory allows.
    pub fn initial(threads: u64) -> Limits {
        let free = Limit { soft: INFINITY, hard: INFINITY };
        let mut all = [free; COUNT];
        all[which::STACK] = Limit { soft: 8 << 20, hard: INFINITY };
        all[which::CORE] = Limit { soft: 0, hard: INFINITY };
        all[which::NPROC] = Limit { soft: threads / 2, hard: threads / 2 };
        all[which::NOFILE] = Limit { soft: 1024, hard: 4096 };
        all[which::MEMLOCK] = Limit { soft: 8 << 20, hard: 8 << 20 };
        all[which::SIGPENDING] = Limit { soft: threads / 2, hard: threads / 2 };
        all[which::MSGQUEUE] = Limit { soft: 819_200, hard: 819_200 };
        all[which::NICE] = Limit { soft: 0, hard: 0 };
        all[which::RTPRIO] = Limit { soft: 0, hard: 0 };
        Limits(all)
    }

    /// The stored form.
    pub(crate) fn words(&self) -> [u64; WORDS] {
        core::array::from_fn(|i| if i % 2 == 0 { self.0[i / 2].soft } else { self.0[i / 2].hard })
    }
}

/// The name and unit of each limit as `/proc/<pid>/limits` shows them.
pub static NAMES: [(&str, &str); COUNT] = [
    ("Max cpu time", "seconds"),
    ("Max file size", "bytes"),
    ("Max data size", "bytes"),
    ("Max stack size", "bytes"),
    ("Max core file size", "bytes"),
    ("Max resident set", "bytes"),
    ("Max processes", "processes"),
    ("Max open files", "files"),
    ("Max locked memory", "bytes"),
    ("Max address space", "bytes"),
    ("Max file locks", "locks"),
    ("Max pending signals", "signals"),
    ("Max msgqueue size", "bytes"),
    ("Max nice priority", ""),
    ("Max realtime priority", ""),
    ("Max realtime timeout", "us"),
];

impl<M: Machine> Process<M> {
    /// Its limits, read without a lock.
    pub fn limits(&self) -> Limits {
        let words = self.limits.read();
        Limits(core::array::from_fn(|i| Limit { soft: words[2 * i], hard: words[2 * i + 1] }))
    }

    /// One of its limits.
    pub fn limit(&self, which: usize) -> Limit {
        let [soft, hard] = self.limits.read_part(2 * which);
        Limit { soft, hard }
    }

    /// The soft limit `which`.
    pub fn soft_limit(&self, which: usize) -> u64 {
        self.limits.word(2 * which)
    }

    /// Bytes of data that its mappings may have. If the soft limit is 0, the hard one applies, as on Linux. (Valgrind
    /// sets it to 0, to move the break itself.)
    pub(crate) fn data_limit(&self) -> u64 {
        let limit = self.limit(which::DATA);
        if limit.soft == 0 { limit.hard } else { limit.soft }
    }

    /// Raises the soft limit on CPU time, which was reached at `from`, by a second.
    pub(crate) fn raise_cpu_limit(&self, from: u64) {
        self.limits.update(|words| {
            let soft = &mut words[2 * which::CPU];
            if *soft == from {
                *soft += 1;
            }
        });
    }
}
