//! All spaces of a system, for pageout, which takes page tables of idle ones.
//!
//! Each CPU has a list of the spaces that it made, each from its birth until its last handle is gone. So making and
//! ending spaces on different CPUs share no line. A space that ends on another CPU takes the lock of its maker's list.
//! A list holds no reference. Under its lock, pageout takes a reference to a space before it looks at it. The space's
//! end takes the same lock.
//!
//! A list has two rows. Spaces whose tables were dropped stand in the second one until their next fault. So a pass
//! visits only spaces that may have tables to drop, however many processes sleep.
//!
//! Pageout goes round: it takes the first space of a list and puts it last ([`Spaces::next`]), a few in each round of a
//! pass. So a pass looks at all spaces only if it has found nothing else. While memory is scarce, each fork and each
//! return of dropped tables does the same with one list ([`Maps::drop_early`]). So a thread that makes tables drops
//! idle ones itself, without pageout.

use crate::machine::{Machine, Pmap};
use crate::map::maps::Maps;
use crate::map::space::idle::SMALL;
use crate::map::space::{Space, SpaceRef};
use crate::phys::boot::BootMemory;
use crate::stats::Event;
use core::cell::Cell;
use core::ptr;
use quire_sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use quire_sync::{CpuId, PerCpu, Rank, SpinLock, current_cpu};

/// Nanoseconds without a run after which a space is idle: its tables go although there are pages to take. Also the time
/// for which tables that were dropped once and came back stay, however short memory is: they were needed.
pub const IDLE: u64 = 1_000_000_000;

/// A space's place on a list, the times of its use, and the number of its handles. On a line of its own: neighbours on
/// the list write it. Handles are rare too: a fork, an end, a look through `/proc`.
#[repr(align(64))]
pub(in crate::map) struct SpacePlace<M: Machine> {
    list: CpuId,
    /// The row on which it stands. Guarded by the list's lock, as the next two.
    row: Cell<Row>,
    next: Cell<*const Space<M>>,
    previous: Cell<*const Space<M>>,
    /// When a visit last found that the space had run. Two visits at a time may each store their time.
    ran: AtomicU64,
    /// When its tables were dropped last; 0: never.
    dropped: AtomicU64,
    /// Handles.
    pub(in crate::map) refs: AtomicUsize,
}

// SAFETY: the links are guarded by the list's lock; the rest never changes or is atomic.
unsafe impl<M: Machine> Sync for SpacePlace<M> {}

impl<M: Machine> SpacePlace<M> {
    /// A place on this CPU's list.
    pub fn new() -> Self {
        SpacePlace {
            list: current_cpu(),
            row: Cell::new(Row::Tabled),
            next: Cell::new(ptr::null()),
            previous: Cell::new(ptr::null()),
            ran: AtomicU64::new(0),
            dropped: AtomicU64::new(0),
            refs: AtomicUsize::new(1),
        }
    }
}

/// A row of a list.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Row {
    /// Spaces that may have page tables.
    Tabled,
    /// Spaces whose tables were dropped, and in which no thread has faulted since.
    Bare,
}

/// The ends of a row.
struct Ends<M: Machine> {
    first: *const Space<M>,
    last: *const Space<M>,
}

/// Both rows of a list, by [`Row`].
type Rows<M> = [Ends<M>; 2];

// SAFETY: spaces on a list are alive, and their links are guarded by its lock.
unsafe impl<M: Machine> Send for Ends<M> {}

struct SpaceList<M: Machine> {
    rows: SpinLock<Rows<M>>,
    /// Spaces of the row that may have tables. Written under the lock; passes read it without.
    tabled: AtomicUsize,
}

/// The lists.
pub(in crate::map) struct Spaces<M: Machine>(PerCpu<SpaceList<M>>);

/// Where pageout continues: a list, and how many spaces of its first row are still to be visited.
#[derive(Default)]
pub(crate) struct Hand {
    list: usize,
    left: usize,
}

impl<M: Machine> Ends<M> {
    const EMPTY: Self = Ends { first: ptr::null(), last: ptr::null() };

    /// # Requires
    /// `space` is on no list, and is whole.
    fn append(&mut self, space: &Space<M>) {
        space.place.next.set(ptr::null());
        space.place.previous.set(self.last);
        // SAFETY: a space is taken off its list before its memory goes (`forget`), and the list is locked, so those on
        // it are alive.
        match unsafe { self.last.as_ref() } {
            Some(last) => last.place.next.set(space),
            None => self.first = space,
        }
        self.last = space;
    }

    /// # Requires
    /// `space` is on this row.
    fn unlink(&mut self, space: &Space<M>) {
        let (next, previous) = (space.place.next.get(), space.place.previous.get());
        // SAFETY: a space is taken off its list before its memory goes (`forget`), and the list is locked, so those on
        // it are alive.
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
            rows: SpinLock::new(Rank::SPACES, [Ends::EMPTY, Ends::EMPTY]),
            tabled: AtomicUsize::new(0),
        };
        Spaces(boot.per_cpu(list))
    }

    /// Lets pageout look at it.
    pub fn add(&self, space: &Space<M>) {
        let list = self.0.of(space.place.list);
        let mut rows = list.rows.lock();
        list.append(&mut rows, space, Row::Tabled);
    }

    /// The last handle of `space` is gone: no pass looks at it any more.
    pub fn forget(&self, space: &Space<M>) {
        let list = self.0.of(space.place.list);
        let mut rows = list.rows.lock();
        list.unlink(&mut rows, space);
    }

    /// The tables of `space` are gone: no pass visits it until [`Spaces::tabled`]. Does nothing if a fault came
    /// between. That fault's call of `tabled` then either saw the space here, or comes later.
    pub fn bare(&self, space: &Space<M>) {
        let list = self.0.of(space.place.list);
        let mut rows = list.rows.lock();
        if space.place.row.get() == Row::Tabled && space.is_bare() {
            list.unlink(&mut rows, space);
            list.append(&mut rows, space, Row::Bare);
        }
    }

    /// Notes that `space` has tables again. The caller has taken the note of the drop ([`Space::take_dropped`]), or has
    /// seen a table. In the second case the note may stay.
    pub fn tabled(&self, space: &Space<M>) {
        let list = self.0.of(space.place.list);
        let mut rows = list.rows.lock();
        if space.place.row.get() == Row::Bare {
            list.unlink(&mut rows, space);
            list.append(&mut rows, space, Row::Tabled);
        }
    }

    /// How many may have tables; spaces that are being made or freed may be missed.
    fn tabled_len(&self) -> usize {
        self.0.iter().map(|list| list.tabled.load(Ordering::Relaxed)).sum()
    }

    /// The next space; `None` where all lists were passed without finding one.
    fn next(&self, hand: &mut Hand) -> Option<SpaceRef<M>> {
        for _ in 0..=self.0.len() {
            while hand.left != 0 {
                hand.left -= 1;
                match self.0.of(hand.list).rotate() {
                    Rotated::Empty => break,
                    Rotated::Ending => {}
                    Rotated::To(handle) => return Some(handle),
                }
            }
            hand.list = (hand.list + 1) % self.0.len();
            hand.left = self.0.of(hand.list).tabled.load(Ordering::Relaxed);
        }
        None
    }
}

/// The space that was first on a row, and is last now.
enum Rotated<M: Machine> {
    /// There is none.
    Empty,
    /// The space's last handle is gone.
    Ending,
    To(SpaceRef<M>),
}

impl<M: Machine> SpaceList<M> {
    /// # Requires
    /// `space` is on no row, and is whole.
    fn append(&self, rows: &mut Rows<M>, space: &Space<M>, row: Row) {
        space.place.row.set(row);
        rows[row as usize].append(space);
        if row == Row::Tabled {
            self.tabled.store(self.tabled.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        }
    }

    /// # Requires
    /// `space` is on this list.
    fn unlink(&self, rows: &mut Rows<M>, space: &Space<M>) {
        let row = space.place.row.get();
        rows[row as usize].unlink(space);
        if row == Row::Tabled {
            self.tabled.store(self.tabled.load(Ordering::Relaxed) - 1, Ordering::Relaxed);
        }
    }

    /// Puts the first space that may have tables last.
    fn rotate(&self) -> Rotated<M> {
        let mut rows = self.rows.lock();
        let row = &mut rows[Row::Tabled as usize];
        // SAFETY: a space is taken off its list before its memory goes (`forget`), and the list is locked, so those on
        // it are alive.
        let Some(space) = (unsafe { row.first.as_ref() }) else { return Rotated::Empty };
        row.unlink(space);
        row.append(space);
        space.try_handle().map_or(Rotated::Ending, Rotated::To)
    }
}

/// The spaces that lose their tables.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Which {
    /// Spaces that no CPU has run for [`IDLE`].
    Idle,
    /// All that no CPU runs now, except those whose tables came back within [`IDLE`].
    NotRunning,
}

impl<M: Machine> Maps<M> {
    /// How many spaces may have page tables.
    pub(crate) fn spaces_with_tables(&self) -> usize {
        self.map_memory().all.tabled_len()
    }

    /// Looks at up to `n` spaces from `hand` on, and drops the page tables of those that `which` selects. Returns how
    /// many table pages were freed. May sleep, because this may drop the last handle.
    ///
    /// # Requires
    /// The caller holds nothing that a fault could want.
    pub(crate) fn drop_tables(&'static self, hand: &mut Hand, n: usize, which: Which) -> u64 {
        if n == 0 {
            return 0;
        }
        let now = quire_sync::hooks::now();
        let mut tables = 0;
        for _ in 0..n {
            let Some(space) = self.map_memory().all.next(hand) else { break };
            tables += space.drop_tables_if(now, which);
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

    /// Drops the tables of up to [`EARLY`] small spaces on `list` that no CPU has run for [`IDLE`]. The caller makes
    /// tables while memory is [scarce](crate::phys::frames::Frames::is_scarce), long before pageout begins. A small
    /// process that sleeps for long then costs no tables. One fault brings them back, and no caller pays for a large
    /// space. May sleep, because this may drop the last handle.
    ///
    /// # Requires
    /// The caller holds nothing that a fault could want.
    pub(crate) fn drop_early(&'static self, list: CpuId) {
        let list = self.map_memory().all.0.of(list);
        let now = quire_sync::hooks::now();
        let mut dropped = 0;
        for _ in 0..EARLY_VISITS.min(list.tabled.load(Ordering::Relaxed)) {
            match list.rotate() {
                Rotated::Empty => break,
                Rotated::Ending => {}
                Rotated::To(space) if space.peak_resident() > SMALL => {}
                Rotated::To(space) => dropped += usize::from(space.drop_tables_if(now, Which::Idle) != 0),
            }
            if dropped == EARLY {
                break;
            }
        }
    }
}

impl<M: Machine> Space<M> {
    /// The list on which it stands.
    pub(crate) fn list(&self) -> CpuId {
        self.place.list
    }

    /// Drops the tables if `which` selects this space. Returns how many table pages were freed.
    fn drop_tables_if(&self, now: u64, which: Which) -> u64 {
        let place = &self.place;
        self.vm().stats().count(Event::SpacesVisited);
        if self.pmap().take_ran() {
            place.ran.store(now, Ordering::Relaxed);
        }
        let recent = |at: &AtomicU64| match at.load(Ordering::Relaxed) {
            0 => false,
            at => now.saturating_sub(at) < IDLE,
        };
        // Tables that came back were needed. A fault that failed leaves some, and the note that all were dropped.
        if recent(&place.dropped) && !self.is_bare() || which == Which::Idle && recent(&place.ran) {
            return 0;
        }
        let tables = self.drop_tables().map_or(0, |dropped| dropped.tables);
        if tables != 0 {
            place.dropped.store(now.max(1), Ordering::Relaxed);
        }
        tables
    }
}

/// Spaces that lose their tables when a space gets some while memory is scarce. It is above 1, so their number falls.
const EARLY: usize = 2;
/// Spaces that are visited for that at most. A visit that drops nothing costs a few cache lines.
const EARLY_VISITS: usize = if cfg!(any(loom, shuttle)) { 0 } else { 8 };

/// Epoch steps after which retired memory is freed, if no reader is pinned.
const GRACE: usize = 3;
