//! Per-CPU root tables for a space whose map has fanned out (relies on C9). Each CPU then works in an arena of its own,
//! a range of addresses with its own lock. A CPU with its own root gets no shootdowns for arenas whose addresses it has
//! never used.
//!
//! A CPU's own root has an empty user half at first. When the CPU first faults on an address, it copies the root entry
//! over that address from the space's root. Shootdowns below a root entry target only the CPUs that have copied that
//! entry. All levels below the root are shared, so nothing else about page tables changes. CPUs without a root of their
//! own use the space's root, and are always targets.
//!
//! # The protocol
//! A space has a generation and a set of CPUs ([`shootdown`](crate::shootdown)). With per-CPU roots, each entry of the
//! root has a generation and a set too: the CPUs that copied the entry.
//! - A flush raises the entry's generation, fences, and reads the entry's set.
//! - A CPU that copies an entry joins the entry's set, fences, and reads the entry's generation.
//! - A CPU that switches in joins the CPUs that run the space, fences, and compares the generations of all entries that
//!   it has copied.
//!
//! A *regime* number is odd while per-CPU roots are in use. A flush reads it after the leaves were cleared, to choose
//! its targets. A CPU reads it at switch-in, after it joined the CPUs that run the space. That CPU then drops
//! translations that were made under another regime. So a translation that a flush of one entry did not reach never
//! outlives the regime.
//!
//! In the table, a flush *bumps* when it raises the entry's generation.
//!
//! | | copy | flush of an entry | switch in | open | close |
//! |---|---|---|---|---|---|
//! | **copy** | each CPU writes only its own root | the copying CPU joins the set, then reads the generation; the flush bumps, then reads the set | both run on one CPU, with interrupts masked | a CPU copies only while the regime is odd | closing waits until every CPU has the space's root loaded, and holds no lock meanwhile |
//! | **flush of an entry** | | each flush has its own generation | the arriving CPU joins the running CPUs, then reads the generations | the flush reads the regime after it has cleared the leaves | the flush targets more CPUs than needed, or a CPU that left the regime drops the translations |
//! | **switch in** | | | both run on one CPU | the CPU reads the regime after it has joined | the CPU reads the regime after it has joined |
//!
//! Entries of the space's root are not unlinked while the regime is odd, and until every CPU has the space's root
//! loaded again. No regime begins in that time either ([`Roots::may_open`]).

use crate::format::FANOUT;
use crate::mutant::{Mutant, mutant};
use crate::shootdown::residency::Residency;
use core::ptr;
use quire_sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering, fence_after_rmw, fence_full};
use quire_sync::cpuset::{CpuMask, CpuSet, MAX_CPUS};
use quire_sync::{CpuId, Rank, SpinLock};
#[cfg(not(any(loom, shuttle)))]
use quire_vm::PAGE_SIZE;
use quire_vm::Pfn;

/// The number of root entries that belong to programs.
pub(crate) const USER_HALF: usize = FANOUT / 2;
/// The number of entries whose state shares a frame.
const PART: usize = if USER_HALF < 64 { USER_HALF } else { 64 };
const PARTS: usize = USER_HALF / PART;
const WORDS: usize = USER_HALF.div_ceil(64);

/// The shared state of one root entry: the number of flushes below it, and the CPUs that have copied it.
#[repr(align(64))]
pub(crate) struct Reach {
    generation: AtomicU64,
    copied: CpuSet,
}

/// The state of the entries that share a frame.
pub(crate) struct Part([Reach; PART]);

impl Part {
    pub(crate) fn new() -> Part {
        Part(core::array::from_fn(|_| Reach { generation: AtomicU64::new(1), copied: CpuSet::new() }))
    }
}

impl Reach {
    /// The newest generation.
    pub(crate) fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }
}

/// One CPU's own root. Until every CPU has the space's root loaded again, only that CPU uses this value, with
/// interrupts off or from a shootdown handler.
pub(crate) struct Own {
    root: Pfn,
    copied: [AtomicU64; WORDS],
    seen: [AtomicU64; USER_HALF],
}

impl Own {
    pub(crate) fn new(root: Pfn) -> Own {
        Own {
            root,
            copied: core::array::from_fn(|_| AtomicU64::new(0)),
            seen: core::array::from_fn(|_| AtomicU64::new(0)),
        }
    }

    pub(crate) fn root(&self) -> Pfn {
        self.root
    }

    /// Whether entry `i` was copied into this root.
    #[inline]
    pub(crate) fn has(&self, i: usize) -> bool {
        self.copied[i / 64].load(Ordering::Relaxed) & 1 << (i % 64) != 0
    }

    /// Calls `f` with each entry that was copied into this root.
    pub(crate) fn each(&self, mut f: impl FnMut(usize)) {
        for (w, word) in self.copied.iter().enumerate() {
            let mut bits = word.load(Ordering::Relaxed);
            while bits != 0 {
                f(w * 64 + bits.trailing_zeros() as usize);
                bits &= bits - 1;
            }
        }
    }

    /// The generation up to which this CPU has served the flushes of entry `i`.
    pub(crate) fn seen(&self, i: usize) -> u64 {
        self.seen[i].load(Ordering::Relaxed)
    }

    pub(crate) fn set_seen(&self, i: usize, generation: u64) {
        self.seen[i].store(generation, Ordering::Relaxed);
    }
}

/// A space's pointer to its [`Roots`]; null until its map fans out (gives CPUs ranges of their own) for the first time.
pub(crate) struct Fan(AtomicPtr<Roots>);

impl Fan {
    pub(crate) fn new() -> Fan {
        Fan(AtomicPtr::new(ptr::null_mut()))
    }

    /// The roots, if they were made already.
    #[inline(always)]
    pub(crate) fn get(&self) -> Option<&Roots> {
        // SAFETY: the pointer is set once, and the value is freed together with the space, of which `self` is a part.
        unsafe { self.0.load(Ordering::Acquire).as_ref() }
    }

    /// Publishes `new`. Returns `false` if another CPU was first; `new` is then still the caller's.
    pub(crate) fn put(&self, new: *mut Roots) -> bool {
        self.0.compare_exchange(ptr::null_mut(), new, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// Whether entries of the space's root must not be unlinked.
    ///
    /// # Requires
    /// The caller holds the root's lock; without it the value may be old.
    pub(crate) fn keeps_root(&self) -> bool {
        self.get().is_some_and(|r| r.keeps_root.load(Ordering::Acquire))
    }
}

/// The state of the per-CPU roots that a CPU finds when it switches in.
pub(crate) struct Arrival<'a> {
    /// The current regime, a number that changes when the use of per-CPU roots begins or ends. The CPU drops
    /// translations that were made under another regime.
    pub regime: u64,
    /// The CPU's own root, if it has one.
    pub own: Option<&'a Own>,
    /// Whether the CPU may have missed a flush of one entry.
    pub stale: bool,
}

/// The per-CPU roots of one space. Once made, this value lives as long as the space; it is closed while it is not in
/// use.
pub(crate) struct Roots {
    /// The number of the regime. It rises when the use of per-CPU roots begins or ends, and is odd while they are in
    /// use.
    regime: AtomicU64,
    /// While this flag is set, entries of the space's root are not unlinked. A CPU changes the flag under `lock` and
    /// under the lock of the space's root.
    pub keeps_root: AtomicBool,
    /// The CPUs that have a root of their own. These CPUs load no other root of this space.
    own_root: CpuSet,
    parts: [AtomicPtr<Part>; PARTS],
    own: [AtomicPtr<Own>; MAX_CPUS],
    /// Guards opening, closing, and giving a root to a CPU.
    pub lock: SpinLock<()>,
}

// Under the model checkers atomics are larger, and these values do not live in frames, so their sizes do not matter.
#[cfg(not(any(loom, shuttle)))]
const _: () = {
    assert!(size_of::<Roots>() <= PAGE_SIZE as usize);
    assert!(size_of::<Own>() <= PAGE_SIZE as usize);
    assert!(size_of::<Part>() <= PAGE_SIZE as usize);
};

impl Roots {
    pub(crate) fn new() -> Roots {
        Roots {
            regime: AtomicU64::new(0),
            keeps_root: AtomicBool::new(false),
            own_root: CpuSet::new(),
            parts: core::array::from_fn(|_| AtomicPtr::new(ptr::null_mut())),
            own: core::array::from_fn(|_| AtomicPtr::new(ptr::null_mut())),
            lock: SpinLock::new(Rank::ROOTS, ()),
        }
    }

    /// The current regime.
    #[inline]
    pub(crate) fn regime(&self) -> u64 {
        self.regime.load(Ordering::Acquire)
    }

    /// Whether CPUs may have roots of their own.
    #[inline]
    pub(crate) fn is_open(&self) -> bool {
        self.regime() & 1 != 0
    }

    /// Whether per-CPU roots are not in use, and none is left of the last regime. A CPU that closes a regime holds no
    /// lock while it waits for the others to leave their own roots.
    ///
    /// # Requires
    /// The caller holds this lock and the lock of the space's root.
    pub(crate) fn may_open(&self) -> bool {
        !self.is_open() && (!self.keeps_root.load(Ordering::Acquire) || mutant(Mutant::OpenWhileClosing))
    }

    /// Begins the use of per-CPU roots.
    ///
    /// # Requires
    /// The caller holds this lock and the lock of the space's root; [`may_open`](Self::may_open) returned true.
    pub(crate) fn open(&self) {
        self.keeps_root.store(true, Ordering::Release);
        self.regime.fetch_add(1, Ordering::AcqRel);
    }

    /// Ends the use of per-CPU roots: from now on no CPU loads its own root. Returns the CPUs that have the space
    /// loaded. The caller makes each of these CPUs load the space's shared root, after it has released the lock. Then it
    /// [takes](Self::take) the own roots, and clears `keeps_root`. Until then the regime stays even.
    ///
    /// # Requires
    /// The caller holds the lock; the regime is odd.
    pub(crate) fn close(&self, space: &Residency) -> CpuMask {
        self.regime.fetch_add(1, Ordering::AcqRel);
        if !mutant(Mutant::CloseNoFence) {
            fence_after_rmw();
        }
        space.loaded()
    }

    /// Removes all per-CPU roots and passes each to `free`. Called after every CPU has loaded the space's root again.
    ///
    /// # Requires
    /// The caller holds the lock.
    pub(crate) fn take(&self, mut free: impl FnMut(*mut Own)) {
        // `own_root` is emptied first, because a CPU outside this set is a target of every flush.
        self.own_root.snapshot().iter().for_each(|cpu| self.own_root.remove(cpu));
        for own in &self.own {
            let own = own.swap(ptr::null_mut(), Ordering::AcqRel);
            if !own.is_null() {
                free(own);
            }
        }
        for part in self.parts() {
            for reach in &part.0 {
                reach.copied.snapshot().iter().for_each(|cpu| reach.copied.remove(cpu));
            }
        }
    }

    /// Returns the number of CPUs that have roots of their own.
    ///
    /// # Requires
    /// The caller holds the lock.
    pub(crate) fn count(&self) -> u64 {
        self.own.iter().filter(|o| !o.load(Ordering::Relaxed).is_null()).count() as u64
    }

    fn parts(&self) -> impl Iterator<Item = &Part> {
        // SAFETY: a part lives as long as the space.
        self.parts.iter().filter_map(|p| unsafe { p.load(Ordering::Acquire).as_ref() })
    }

    /// The pointer to the frame that has the state of entry `i`.
    pub(crate) fn part_of(&self, i: usize) -> &AtomicPtr<Part> {
        &self.parts[i / PART]
    }

    /// Passes each part to `f`, to be freed with the space.
    pub(crate) fn each_part(&self, f: impl FnMut(*mut Part)) {
        self.parts.iter().map(|p| p.load(Ordering::Acquire)).filter(|p| !p.is_null()).for_each(f);
    }

    /// The state of entry `i`. `None` if no CPU has yet copied an entry whose state is in the same frame.
    pub(crate) fn reach(&self, i: usize) -> Option<&Reach> {
        // SAFETY: a part lives as long as the space.
        unsafe { self.parts[i / PART].load(Ordering::Acquire).as_ref() }.map(|p| &p.0[i % PART])
    }

    /// The own root of `cpu`, if it has one.
    pub(crate) fn own(&self, cpu: CpuId) -> Option<&Own> {
        // SAFETY: an own root is freed only when every CPU has the space's root loaded again. The caller is that CPU,
        // or holds the lock.
        unsafe { self.own[cpu].load(Ordering::Acquire).as_ref() }
    }

    /// Makes `own` the root of `cpu`. From now on flushes target `cpu` only below the entries that it copies. The CPU
    /// has just loaded `own`, with nothing cached.
    ///
    /// # Requires
    /// Runs on that CPU, with interrupts off; the caller holds the lock, and the regime is odd.
    pub(crate) fn adopt(&self, cpu: CpuId, own: *mut Own) {
        self.own[cpu].store(own, Ordering::Release);
        self.own_root.insert(cpu);
    }

    /// Announces that `cpu` is about to copy entry `i`: flushes below that entry target this CPU from now on.
    ///
    /// # Requires
    /// Runs on that CPU, which has `own` loaded, with interrupts off.
    pub(crate) fn join(&self, cpu: CpuId, own: &Own, i: usize, reach: &Reach) {
        reach.copied.insert(cpu);
        if !mutant(Mutant::CopyNoFence) {
            fence_after_rmw();
        }
        own.set_seen(i, reach.generation());
        own.copied[i / 64].fetch_or(1 << (i % 64), Ordering::Relaxed);
    }

    /// First half of a flush below entry `i`. Raises the entry's generation. Returns its state, the new generation, and
    /// which of the machine's `cpus` CPUs to interrupt. Returns `None` if the regime is even, or if the entry has no
    /// state yet ([`reach`](Self::reach)).
    ///
    /// If the calling CPU is the only possible target, the set of running CPUs is not read. CPUs that go idle and come
    /// back write the cache line of that set.
    ///
    /// # Requires
    /// The leaves were cleared before.
    pub(crate) fn bump(
        &self,
        i: usize,
        space: &Residency,
        structure: bool,
        cpus: usize,
    ) -> Option<(&Reach, u64, CpuMask)> {
        // This CPU must read the regime after its read-modify-writes that removed or weakened the leaves. The fence
        // orders the two.
        fence_full();
        if !self.is_open() {
            return None;
        }
        let reach = self.reach(i)?;
        let generation = reach.generation.fetch_add(1, Ordering::AcqRel) + 1;
        fence_after_rmw();
        let own_root = self.own_root.snapshot();
        let copied = reach.copied.snapshot();
        let concerned = CpuMask::first(cpus).in_or_not_in(&copied, &own_root);
        // If this CPU is the only possible target, the set of running CPUs is not read. Then this CPU is a target
        // whether or not it runs the space, even if the thread moves to another CPU after this check.
        if concerned.and(&CpuMask::only(quire_sync::current_cpu())) == concerned {
            return Some((reach, generation, concerned));
        }
        let asked = if structure { space.loaded() } else { space.running() };
        Some((reach, generation, asked.and(&concerned)))
    }

    /// The part of a switch-in that concerns per-CPU roots. `new` is whether the CPU did not run the space until now.
    ///
    /// # Requires
    /// Runs on that CPU, with interrupts off, after it joined the CPUs that run the space, and a full fence.
    pub(crate) fn arrive(&self, cpu: CpuId, new: bool) -> Arrival<'_> {
        let regime = self.regime();
        if regime & 1 == 0 {
            return Arrival { regime, own: None, stale: false };
        }
        let Some(own) = self.own(cpu) else {
            // Flushes of single entries are not recorded for a CPU that has no own root and does not run the space.
            return Arrival { regime, own: None, stale: new };
        };
        let mut stale = false;
        if new {
            own.each(|i| {
                let generation = self.reach(i).map_or(0, Reach::generation);
                stale |= own.seen(i) != generation;
                own.set_seen(i, generation);
            });
        }
        Arrival { regime, own: Some(own), stale }
    }
}
