//! The root table of a space: an atomic word that names a table page, or says that there is none.
//!
//! A space that no CPU runs may lose its root too, so that it has no table page at all. A CPU that runs a space without
//! a root has the kernel's own root loaded, which has no user half. Its first fault makes a root.
//!
//! # The protocol
//! The word has a lock, which comes before the root's own lock, as a parent's lock comes before a table page's. A root
//! is made and dropped under the word's lock. A root is dropped only if it is empty and owes no flush, and is marked
//! dead under its own lock.
//!
//! The thread that changed the word fences, and reads which CPUs have the space loaded. It sends them a request
//! ([`Request`](crate::Request)). A CPU that serves the request loads the table that the word names at that moment. A
//! CPU that switches in joins the CPUs that run the space, fences, and then reads the word. So the CPU sees the change,
//! or receives the request. The frame of a dropped root is retired to the epoch when all CPUs have answered.
//!
//! | | switch in | walk and link | make | drop |
//! |---|---|---|---|---|
//! | **switch in** | each CPU changes only its own state | none needed | the maker changes the word, then reads the set; the arriving CPU joins the set, then reads the word | the dropper changes the word, then reads the set, as a maker does; if a CPU already runs the space, the root is not dropped |
//! | **walk and link** | | see [`tree`](crate::tree) | a walker that finds no root makes one, and reads the word again | the root's lock and its dead mark; the epoch keeps tables that a walker has reached |
//! | **make** | | | the word's lock; the loser frees its page | the word's lock; a CPU that serves a request reads the newest word |
//! | **drop** | | | | the word's lock; a root is dropped once |
//!
//! An absent root counts as an absent level (relies on C2: unflushed removals are visible to other removers). Nothing
//! below an absent root owes a flush, because a table page that owes flushes stays linked.
//!
//! CPUs may have roots of their own ([`roots`](crate::roots)), whose entries are copies of the root's entries. The root
//! is not dropped as long as copies of its entries exist.

use crate::mutant::{Mutant, mutant};
use crate::roots::Fan;
use crate::shootdown::residency::Residency;
use crate::table::{Memory, View};
use quire_sync::atomic::{AtomicU64, Ordering, fence_after_rmw};
use quire_sync::cpuset::CpuMask;
use quire_sync::{CpuId, Rank, SpinGuard, SpinLock};
use quire_vm::Pfn;

/// The value of the word in a space without a root. No frame has this number.
const NONE: u64 = u64::MAX;

/// The root of one space.
pub(crate) struct Root {
    word: AtomicU64,
    /// Held while the word changes, and while the use of per-CPU roots begins or ends.
    lock: SpinLock<()>,
}

/// The result of a CPU's first step into a space.
pub(crate) struct Entered {
    /// The generation of the space that the CPU must catch up with.
    pub generation: u64,
    /// Whether the CPU begins to run the space with this step.
    pub new: bool,
    /// The space's root, if it has one.
    pub root: Option<Pfn>,
}

impl Root {
    pub(crate) fn new(root: Option<Pfn>) -> Root {
        let word = root.map_or(NONE, |root| root.0);
        Root { word: AtomicU64::new(word), lock: SpinLock::new(Rank::TABLE_UPPER, ()) }
    }

    /// Returns the root, if there is one. A walker that is pinned in the epoch may read it for as long as it is pinned.
    #[inline(always)]
    pub(crate) fn get(&self) -> Option<Pfn> {
        match self.word.load(Ordering::Acquire) {
            NONE => None,
            root => Some(Pfn(root)),
        }
    }

    /// Acquires the lock of the word that names the root table: the word does not change while the guard lives.
    pub(crate) fn lock(&self) -> SpinGuard<'_, ()> {
        self.lock.lock()
    }

    /// First half of switch-in: `cpu` joins the CPUs that run `space`, and then reads the word.
    #[inline]
    pub(crate) fn enter(&self, space: &Residency, cpu: CpuId) -> Entered {
        let early = mutant(Mutant::RootReadEarly).then(|| self.get());
        let (generation, new) = space.arrive(cpu);
        Entered { generation, new, root: early.unwrap_or_else(|| self.get()) }
    }

    /// Publishes `new`, an empty root, and returns the CPUs that run `space`. The caller sends them a request to load
    /// it. Returns `None` if the space has a root already.
    pub(crate) fn put(&self, new: Pfn, space: &Residency) -> Option<CpuMask> {
        {
            let _held = self.lock.lock();
            if self.get().is_some() && !mutant(Mutant::PutRootUnlooked) {
                return None;
            }
            self.word.swap(new.0, Ordering::AcqRel);
        }
        // A CPU that is not in the set yet reads the word after it has joined the set, so it finds the new root.
        if !mutant(Mutant::PutRootNoFence) {
            fence_after_rmw();
        }
        Some(space.running())
    }

    /// Drops the root, if no CPU runs `space`, and the root is empty, owes no flush and has no copies. Returns the
    /// root, which is marked dead, and the CPUs that have the space loaded. The caller sends them a request to leave
    /// the root, and then retires it.
    pub(crate) fn take<A: Memory>(&self, memory: &A, space: &Residency, fan: &Fan) -> Option<(Pfn, CpuMask)> {
        let root = {
            let _held = self.lock.lock();
            let root = self.get()?;
            // This check is only a hint, because a CPU may begin to run the space at any moment. Such a CPU is among
            // the CPUs returned below, and loads the kernel's root.
            if !space.running().is_empty() {
                return None;
            }
            let view = View::of(memory, root);
            let _root = (!mutant(Mutant::TakeRootNoLock)).then(|| view.state.lock_child());
            if fan.keeps_root() && !mutant(Mutant::TakeRootCopied) || !view.kill_if_empty() {
                return None;
            }
            self.word.swap(NONE, Ordering::AcqRel);
            root
        };
        // A CPU that is not in the set yet reads the word after it has joined the set, so it does not find this root.
        if !mutant(Mutant::TakeRootNoFence) {
            fence_after_rmw();
        }
        let loaded = if mutant(Mutant::TakeRootAsksRunning) { space.running() } else { space.loaded() };
        Some((root, loaded))
    }
}
