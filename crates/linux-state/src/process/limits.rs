//! Resource limits.
//!
//! Most processes use no memory for their own limits. A process has the limits that it inherited until one is changed.
//! All children of a parent share one set of limits, which the parent allocates at its first fork. The first change of
//! a limit allocates a set of the process's own.

use crate::base::plain::Plain;
use crate::machine::Machine;
use crate::process::Process;
use crate::process::first_use::FirstUse;
use core::alloc::Layout;
use quire_heap::{Arc, OutOfMemory, Room, allocation};
use quire_sync::{Rank, Sequenced, SpinLock};

/// One limit.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limit {
    /// The limit in force.
    pub soft: u64,
    /// The highest value to which the process may raise the soft limit.
    pub hard: u64,
}

// SAFETY: two words of eight bytes leave no padding, and every bit pattern is a value.
unsafe impl Plain for Limit {}

/// The value of a limit that is not set.
pub const INFINITY: u64 = u64::MAX;
/// The number of limits.
pub const COUNT: usize = 16;
/// The number of words that store the limits: for each limit the soft value, then the hard value.
pub const WORDS: usize = 2 * COUNT;

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

/// The limit of process 1 on pending signals. A signal queue in the largest heap block (4 MiB) holds this number of
/// entries.
const PENDING_MOST: u64 = 32_768;

/// The initial limit on a user's processes is the number of ids divided by this number. There is one id for each 8 KiB
/// of memory, and the smallest process uses 33 KB of kernel memory. So the processes of a user use about half of memory
/// at most.
const PROCESS_IDS: u64 = 8;

/// All limits of a process. Aligned to a cache line, because starting and ending siblings write the `Arc`'s reference
/// count, which lies before the limits.
#[derive(Clone, PartialEq, Eq, Debug)]
#[repr(align(64))]
pub struct Limits(pub [Limit; COUNT]);

impl Limits {
    /// The limits of process 1: Linux's defaults. `threads` is the highest number of threads that memory allows.
    pub fn initial(threads: u64) -> Limits {
        let free = Limit { soft: INFINITY, hard: INFINITY };
        let mut all = [free; COUNT];
        all[which::STACK] = Limit { soft: 8 << 20, hard: INFINITY };
        all[which::CORE] = Limit { soft: 0, hard: INFINITY };
        all[which::NPROC] = Limit { soft: threads / PROCESS_IDS, hard: threads / PROCESS_IDS };
        all[which::NOFILE] = Limit { soft: 1024, hard: 4096 };
        all[which::MEMLOCK] = Limit { soft: 8 << 20, hard: 8 << 20 };
        let pending = (threads / 2).min(PENDING_MOST);
        all[which::SIGPENDING] = Limit { soft: pending, hard: pending };
        all[which::MSGQUEUE] = Limit { soft: 819_200, hard: 819_200 };
        all[which::NICE] = Limit { soft: 0, hard: 0 };
        all[which::RTPRIO] = Limit { soft: 0, hard: 0 };
        Limits(all)
    }

    /// The limits as words, in the order of [`WORDS`].
    pub fn words(&self) -> [u64; WORDS] {
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

/// The limits of one process: the limits that it inherited, its own changed limits, and the set for its children.
pub struct Held {
    /// The limits from the parent. They never change, and siblings share them.
    inherited: Arc<Limits>,
    /// The process's own limits; allocated at the first change.
    own: FirstUse<Sequenced<WORDS>>,
    /// The present limits, which the process's children inherit. `None` if the process has not forked since the last
    /// change.
    children: SpinLock<Option<Arc<Limits>>>,
}

impl Held {
    pub fn new(inherited: Arc<Limits>) -> Self {
        // `update` acquires the lock of `own` while it holds the lock of `children`.
        Held { inherited, own: FirstUse::new(), children: SpinLock::new(Rank::PROCESS, None) }
    }

    /// Whether the inherited limits restrict CPU time.
    pub fn is_of_cpu_time(&self) -> bool {
        self.inherited.0[which::CPU].soft != INFINITY
    }

    fn all(&self) -> Limits {
        let Some(own) = self.own.get() else { return (*self.inherited).clone() };
        let words = own.read();
        Limits(core::array::from_fn(|i| Limit { soft: words[2 * i], hard: words[2 * i + 1] }))
    }

    /// The limits that a child inherits.
    pub fn for_child(&self) -> Result<Arc<Limits>, OutOfMemory> {
        if let Some(there) = &*self.children.lock() {
            return Ok(there.clone());
        }
        let room = Room::try_new()?;
        let mut children = self.children.lock();
        // `update` holds the lock of `children` while it changes the limits, so no change runs now.
        let all = children.take().unwrap_or_else(|| room.fill(self.all()));
        *children = Some(all.clone());
        Ok(all)
    }

    /// The bytes of memory that the limits use. `heap` returns the size of an allocation. The inherited limits are
    /// divided by the number of their holders.
    pub fn bytes(&self, heap: impl Fn(Layout) -> u64) -> u64 {
        let own = if self.own.get().is_some() { heap(Layout::new::<Sequenced<WORDS>>()) } else { 0 };
        own + heap(allocation::<Limits>()) / Arc::strong_count(&self.inherited) as u64
    }

    /// Allocates the memory for a change, so that a later [`update`](Self::update) needs none.
    pub fn reserve(&self) -> Result<(), OutOfMemory> {
        let words = || Sequenced::new(Rank::OWNED, self.inherited.words());
        self.own.get_or_make(words).map(drop)
    }

    /// Changes the stored words with `edit`, and returns the result of `edit`. The words are stored even if `edit`
    /// returns an error.
    pub fn update<R>(&self, edit: impl FnOnce(&mut [u64; WORDS]) -> R) -> Result<R, OutOfMemory> {
        self.reserve()?;
        let Some(own) = self.own.get() else { return Err(OutOfMemory) };
        let mut children = self.children.lock();
        let result = own.update(edit);
        let old = children.take();
        drop(children);
        drop(old);
        Ok(result)
    }
}

impl<M: Machine> Process<M> {
    /// The process's limits, read without a lock.
    pub fn limits(&self) -> Limits {
        self.limits.all()
    }

    /// The soft and the hard limit `which`.
    pub fn limit(&self, which: usize) -> Limit {
        let Some(own) = self.limits.own.get() else { return self.limits.inherited.0[which] };
        let [soft, hard] = own.read_part(2 * which);
        Limit { soft, hard }
    }

    /// The soft limit `which`.
    pub fn soft_limit(&self, which: usize) -> u64 {
        self.limits.own.get().map_or_else(|| self.limits.inherited.0[which].soft, |own| own.word(2 * which))
    }

    /// The most bytes of data that the process's mappings may have. If the soft limit is 0, the hard limit applies, as
    /// on Linux. (Valgrind sets the soft limit to 0 and moves the break itself.)
    pub fn data_limit(&self) -> u64 {
        let limit = self.limit(which::DATA);
        if limit.soft == 0 { limit.hard } else { limit.soft }
    }

    /// Raises the soft limit on CPU time by a second, if the soft limit still equals `from`, the limit that was
    /// reached.
    pub(crate) fn raise_cpu_limit(&self, from: u64) {
        // The update needs no memory, because `reserve` allocated the process's own limits when the CPU limit was set.
        let _raised = self.limits.update(|words| {
            let soft = &mut words[2 * which::CPU];
            if *soft == from {
                *soft += 1;
            }
        });
    }
}

impl<M: Machine> Process<M> {
    /// Applies a changed limit to the address space, or to the timer on CPU time. `changed` is the limit's index.
    pub fn limits_changed(&self, changed: usize) {
        if changed == which::CPU
            && let Some(limit) = self.cpu_limit.get()
        {
            limit.changed(self.linux, self);
        }
        if !matches!(changed, which::STACK | which::AS | which::DATA) {
            return;
        }
        let Some(task) = self.any_thread() else { return };
        let Some(thread) = task.payload() else { return };
        if let Some(memory) = thread.space.borrow() {
            let stack = self.soft_limit(which::STACK);
            let bytes = self.soft_limit(which::AS).min(quire_vm::map::USER.end);
            let data = self.data_limit();
            memory.change_limits(|most| quire_vm::map::Limits { stack, bytes, data, ..most });
        }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    fn held() -> Held {
        Held::new(Arc::try_new(Limits::initial(1000)).expect("memory"))
    }

    fn set_stack(held: &Held, to: u64) -> Result<u64, OutOfMemory> {
        held.update(|words| core::mem::replace(&mut words[2 * which::STACK], to))
    }

    #[test]
    fn children_share_the_limits_until_one_is_changed() {
        let parent = held();
        let [first, second] = [(); 2].map(|()| parent.for_child().expect("memory"));
        assert!(Arc::ptr_eq(&first, &second) && !Arc::ptr_eq(&first, &parent.inherited));
        assert_eq!(set_stack(&parent, 5), Ok(8 << 20));
        let third = parent.for_child().expect("memory");
        assert_eq!((first.0[which::STACK].soft, third.0[which::STACK].soft), (8 << 20, 5));
        let child = Held::new(third);
        assert_eq!(set_stack(&child, 6), Ok(5));
        assert_eq!((child.all().0[which::STACK].soft, parent.all().0[which::STACK].soft), (6, 5));
    }

    #[test]
    fn a_change_without_memory_changes_nothing_and_a_reserved_one_needs_none() {
        let limits = held();
        // The checker of lock orders allocates when a thread acquires its first lock. A first change here makes that
        // allocation before the refused one.
        set_stack(&held(), 5).expect("memory");
        assert!(quire_heap::refusal::at(1, || set_stack(&limits, 5).is_err()).0);
        assert_eq!(limits.all().0[which::STACK].soft, 8 << 20);
        limits.reserve().expect("memory");
        assert!(quire_heap::refusal::at(1, || set_stack(&limits, 5).is_ok()).0);
    }
}
