//! All spaces of a system, for pageout, which takes page tables of idle ones.
//!
//! Each CPU has a list of the spaces that it made, each from its birth until its last handle is gone. So making and
//! ending spaces on different CPUs share no line (relies on C8); an end elsewhere takes the maker's list. A list holds
//! no reference. Pageout takes one before it looks at a space, under the list's lock, which the space's end takes too.
//!
//! Pageout goes round: it takes the first space of a list and puts it last ([`Spaces::next`]), a few in each round of a
//! pass. So a pass looks at all spaces only if it has found nothing else.

use super::space::{Space, SpaceRef};
use crate::machine::{Machine, Pmap};
use crate::map::Maps;
use crate::phys::boot::BootMemory;
use core::cell::Cell;
use core::ptr;
use quire_sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use quire_sync::{CpuId, PerCpu, Rank, SpinLock, current_cpu};

/// Nanoseconds without a run after which a space is idle: its tables go although there are pages to take. Also the time
/// for which tables that were dropped once and came back stay, however short memory is: they were needed.
pub const IDLE: u64 = 1_000_000_000;

/// A space's place on a list, and the times of its use. On a line of its own: neighbours on the list write it.
#[repr(align(64))]
pub(super) struct SpacePlace<M: Machine> {
    list: CpuId,
    /// Both guarded by the list's lock.
    next: Cell<*const Space<M>>,
    previous: Cell<*const Space<M>>,
    /// When pageout last found that the space had run. Only pageout writes this and the next; one pass looks at a time.
    ran: AtomicU64,
    /// When its tables were dropped last; 0: never.
    dropped: AtomicU64,
}

// SAFETY: the links are guarded by the list's lock; the rest never changes or is atomic.
unsafe impl<M: Machine> Sync for SpacePlace<M> {}

impl<M: Machine> SpacePlace<M> {
    /// A place on this CPU's list.
    pub fn new() -> Self {
        SpacePlace {
            list: current_cpu(),
            next: Cell::new(ptr::null()),
            previous: Cell::new(ptr::null()),
            ran: AtomicU64::new(0),
            dropped: AtomicU64::new(0),
        }
    }
}

struct Ends<M: Machine> {
    first: *const Space<M>,
    last: *const Space<M>,
}

// SAFETY: spaces on a list are alive, and their links are guarded by its lock.
unsafe impl<M: Machine> Send for Ends<M> {}

struct SpaceList<M: Machine> {
    ends: SpinLock<Ends<M>>,
    /// Written under the lock; passes read it without.
    len: AtomicUsize,
}

/// The lists.
pub(super) struct Spaces<M: Machine>(PerCpu<SpaceList<M>>);

/// Where pageout continues: a list, and how many spaces of it are still to be visited.
#[derive(Default)]
pub(crate) struct Hand {
    list: usize,
    left: usize,
}

impl<M: Machine> Ends<M> {
    /// # Requires
    /// `space` is on no list, and is whole.
    fn append(&mut self, space: &Space<M>) {
        space.place.next.set(ptr::null());
        space.place.previous.set(self.last);
        // SAFETY: a space is taken off its list before its memory goes (`forget`), and the list is locked, so those on it are
        // alive.
        match unsafe { self.last.as_ref() } {
            Some(last) => last.place.next.set(space),
            None => self.first = space,
        }
        self.last = space;
    }

    /// # Requires
    /// `space` is on this list.
    fn unlink(&mut self, space: &Space<M>) {
        let (next, previous) = (space.place.next.get(), space.place.previous.get());
        // SAFETY: a space is taken off its list before its memory goes (`forget`), and the list is locked, so those on it are
        // alive.
        unsafe {
            match previous.as_ref() {
                Some(p) => p.place.next.set(next),
                None => self.first = next,
            }
            match next.as_ref() {
                Some(n) => n.place.previous.set(previous),
                None => self.last = previous,
            }
        }
    }
}

impl<M: Machine> Spaces<M> {
    pub fn new(boot: &mut BootMemory<'_, impl Machine>) -> Self {
        let list = |_| SpaceList {
            ends: SpinLock::new(Rank::SPACES, Ends { first: ptr::null(), last: ptr::null() }),
            len: AtomicUsize::new(0),
        };
        Spaces(boot.per_cpu(list))
    }

    /// Lets pageout look at it.
    pub fn add(&self, space: &Space<M>) {
        let list = self.0.of(space.place.list);
        let mut ends = list.ends.lock();
        ends.append(space);
        list.len.store(list.len.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    }

    /// Its last handle is gone: no pass looks at it any more.
    pub fn forget(&self, space: &Space<M>) {
        let list = self.0.of(space.place.list);
        let mut ends = list.ends.lock();
        ends.unlink(space);
        list.len.store(list.len.load(Ordering::Relaxed) - 1, Ordering::Relaxed);
    }

    /// How many there are; spaces that are being made or freed may be missed.
    fn len(&self) -> usize {
        self.0.iter().map(|list| list.len.load(Ordering::Relaxed)).sum()
    }

    /// The next space; `None` where all lists were passed without finding one.
    fn next(&self, hand: &mut Hand) -> Option<SpaceRef<M>> {
        for _ in 0..=self.0.len() {
            while hand.left != 0 {
                let list = self.0.of(hand.list);
                let mut ends = list.ends.lock();
                // SAFETY: a space is taken off its list before its memory goes (`forget`), and the list is locked, so those on it
                // are alive.
                let Some(space) = (unsafe { ends.first.as_ref() }) else { break };
                hand.left -= 1;
                ends.unlink(space);
                ends.append(space);
                if let Some(handle) = space.try_handle() {
                    return Some(handle);
                }
            }
            hand.list = (hand.list + 1) % self.0.len();
            hand.left = self.0.of(hand.list).len.load(Ordering::Relaxed);
        }
        None
    }
}

/// The spaces that lose their tables.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Which {
    /// Those that no CPU has run for [`IDLE`].
    Idle,
    /// All that no CPU runs now, except those whose tables came back within [`IDLE`].
    NotRunning,
}

impl<M: Machine> Maps<M> {
    /// How many spaces there are.
    pub(crate) fn spaces(&self) -> usize {
        self.map_memory().all.len()
    }

    /// Looks at up to `n` spaces from `hand` on, and drops the page tables of those that `which` selects. Returns how
    /// many table pages were freed. May sleep, because this may drop the last handle.
    ///
    /// # Requires
    /// One caller at a time, which holds nothing that a fault could want.
    pub(crate) fn drop_tables(&'static self, hand: &mut Hand, n: usize, which: Which) -> u64 {
        if n == 0 {
            return 0;
        }
        let now = quire_sync::hooks::now();
        let mut tables = 0;
        for _ in 0..n {
            let Some(space) = self.map_memory().all.next(hand) else { break };
            let place = &space.place;
            if space.pmap().take_ran() {
                place.ran.store(now, Ordering::Relaxed);
            }
            let recent = |at: &AtomicU64| match at.load(Ordering::Relaxed) {
                0 => false,
                at => now.saturating_sub(at) < IDLE,
            };
            let needed = recent(&place.dropped) || which == Which::Idle && recent(&place.ran);
            // No thread has faulted there since: nothing has come back.
            if needed || space.were_tables_dropped() {
                continue;
            }
            if let Some(dropped) = space.drop_tables().filter(|d| d.tables != 0) {
                place.dropped.store(now.max(1), Ordering::Relaxed);
                tables += dropped.tables;
            }
        }
        if tables != 0 {
            // Freed tables wait for walkers, and then the CPU keeps some for later. Both cost memory that is short now.
            for _ in 0..GRACE {
                self.epoch().collect_everywhere();
            }
            M::Pmap::reclaim_tables(self);
        }
        tables
    }
}

/// Epoch steps after which retired memory is freed, if no reader is pinned.
const GRACE: usize = 3;
