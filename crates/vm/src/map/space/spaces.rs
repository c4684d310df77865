//! The lists of all spaces of a system. Pageout uses them to drop the page tables of idle spaces.
//!
//! Each CPU has a list of the spaces that were made on it. A space is on its list until its last handle is dropped. So
//! CPUs that make and destroy spaces of their own share no cache line. If a space is destroyed on another CPU, that CPU
//! acquires the lock of the space's list. A list holds no reference to its spaces. Under the list's lock, pageout
//! acquires a handle of a space before it looks at the space. The destruction of the space acquires the same lock to
//! unlink it.
//!
//! A list has two rows. A space whose tables were dropped is on the second row until its next fault. So a pass visits
//! only spaces that may have tables to drop, however many processes sleep.
//!
//! Pageout visits the spaces in turn: it moves the first space of a list to the end and visits it ([`Spaces::next`]). A
//! pass of pageout consists of rounds, and each round visits a few spaces. So a pass looks at all spaces only if it
//! finds nothing else to free. While memory is scarce, each fork and each refill of dropped tables also visits some
//! spaces of one list ([`Maps::drop_early`]). So a thread that makes tables drops idle ones itself, without pageout.

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

/// A space that no CPU has run for this time, in nanoseconds, is idle: its tables are dropped even if pageout finds
/// pages to free. Tables that a fault made again after a drop stay for this time too, even if memory is short, because
/// they were needed.
pub const IDLE: u64 = 1_000_000_000;

/// A space's place on a list, the times of its use, and the number of its handles. It has a cache line of its own,
/// because changes of neighbours on the list write it. The number of handles is here because it also changes rarely: at
/// a fork, an exit, or a read of `/proc`.
#[repr(align(64))]
pub(in crate::map) struct SpacePlace<M: Machine> {
    list: CpuId,
    /// The row that the space is on. The list's lock guards this field and the next two.
    row: Cell<Row>,
    next: Cell<*const Space<M>>,
    previous: Cell<*const Space<M>>,
    /// The time, in nanoseconds, at which a visit of pageout last found that the space had run. Two concurrent visits
    /// may each store their time.
    ran: AtomicU64,
    /// The time, in nanoseconds, of the last drop of the tables; 0 if they were never dropped.
    dropped: AtomicU64,
    /// Number of handles.
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

// SAFETY: spaces on a list are alive, and their links are guarded by the list's lock.
unsafe impl<M: Machine> Send for Ends<M> {}

struct SpaceList<M: Machine> {
    rows: SpinLock<Rows<M>>,
    /// Number of spaces on the row [`Row::Tabled`]. Written under the lock; pageout reads it without the lock.
    tabled: AtomicUsize,
}

/// The lists.
pub(in crate::map) struct Spaces<M: Machine>(PerCpu<SpaceList<M>>);

/// The place at which pageout continues: a list, and the number of spaces on its first row that are still to be
/// visited.
#[derive(Default)]
pub(crate) struct Hand {
    list: usize,
    left: usize,
}

impl<M: Machine> Ends<M> {
    const EMPTY: Self = Ends { first: ptr::null(), last: ptr::null() };

    /// # Requires
    /// `space` is on no list, and is fully initialised.
    fn append(&mut self, space: &Space<M>) {
        space.place.next.set(ptr::null());
        space.place.previous.set(self.last);
        // SAFETY: a space is unlinked from its list before its memory is freed (`forget`). The list is locked, so
        // spaces on it are alive.
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
        // SAFETY: a space is unlinked from its list before its memory is freed (`forget`). The list is locked, so
        // spaces on it are alive.
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

    /// Adds `space` to its list, so that pageout visits it.
    pub fn add(&self, space: &Space<M>) {
        let list = self.0.of(space.place.list);
        let mut rows = list.rows.lock();
        list.append(&mut rows, space, Row::Tabled);
    }

    /// Removes `space` from its list after its last handle was dropped, so that pageout does not visit it any more.
    pub fn forget(&self, space: &Space<M>) {
        let list = self.0.of(space.place.list);
        let mut rows = list.rows.lock();
        list.unlink(&mut rows, space);
    }

    /// Moves `space`, whose tables were dropped, to the second row. No pass visits it until [`Spaces::tabled`]. Does
    /// nothing if a fault has already cleared the note of the drop. That fault calls `tabled` only once, perhaps before
    /// this call. Then the space, which has tables again, would stay on the second row.
    pub fn bare(&self, space: &Space<M>) {
        let list = self.0.of(space.place.list);
        let mut rows = list.rows.lock();
        if space.place.row.get() == Row::Tabled && space.is_bare() {
            list.unlink(&mut rows, space);
            list.append(&mut rows, space, Row::Bare);
        }
    }

    /// Moves `space`, which has tables again, to the first row. The caller has cleared the note of the drop
    /// ([`Space::take_dropped`]), or has seen a table. In the second case the note may stay.
    pub fn tabled(&self, space: &Space<M>) {
        let list = self.0.of(space.place.list);
        let mut rows = list.rows.lock();
        if space.place.row.get() == Row::Bare {
            list.unlink(&mut rows, space);
            list.append(&mut rows, space, Row::Tabled);
        }
    }

    /// The number of spaces that may have tables. Spaces that are being made or freed may be missed.
    fn tabled_len(&self) -> usize {
        self.0.iter().map(|list| list.tabled.load(Ordering::Relaxed)).sum()
    }

    /// The next space that may have tables. `None` if no list has one.
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

/// The result of [`SpaceList::rotate`], which moves the first space of a row to its end.
enum Rotated<M: Machine> {
    /// The row is empty.
    Empty,
    /// The space's last handle is gone.
    Ending,
    To(SpaceRef<M>),
}

impl<M: Machine> SpaceList<M> {
    /// # Requires
    /// `space` is on no row, and is fully initialised.
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

    /// Moves the first space of the row [`Row::Tabled`] to the end of the row.
    fn rotate(&self) -> Rotated<M> {
        let mut rows = self.rows.lock();
        let row = &mut rows[Row::Tabled as usize];
        // SAFETY: a space is unlinked from its list before its memory is freed (`forget`). The list is locked, so
        // spaces on it are alive.
        let Some(space) = (unsafe { row.first.as_ref() }) else { return Rotated::Empty };
        row.unlink(space);
        row.append(space);
        space.try_handle().map_or(Rotated::Ending, Rotated::To)
    }
}

/// The spaces whose tables are dropped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Which {
    /// Spaces that no CPU has run for [`IDLE`].
    Idle,
    /// All spaces that no CPU runs now, except those whose tables were made again within [`IDLE`] after a drop.
    NotRunning,
}

impl<M: Machine> Maps<M> {
    /// The number of spaces that may have page tables.
    pub(crate) fn spaces_with_tables(&self) -> usize {
        self.map_memory().all.tabled_len()
    }

    /// Visits up to `n` spaces from the position `hand` on, and drops the page tables of those that `which` selects.
    /// Returns the number of freed table pages. May sleep, because it may drop the last handle of a space.
    ///
    /// # Requires
    /// The caller holds no lock that a fault could need.
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
            // Freed tables wait until no walker can hold them, and then each CPU keeps some for reuse. Free the waiting
            // and the kept tables now, because memory is short.
            for _ in 0..GRACE {
                self.epoch().collect_everywhere();
            }
            M::Pmap::reclaim_tables(self);
        }
        tables
    }

    /// Drops the tables of up to [`EARLY`] small spaces on `list` that no CPU has run for [`IDLE`]. The caller is about
    /// to make tables while memory is [scarce](crate::phys::frames::Frames::is_scarce), long before pageout begins. So
    /// small processes that sleep for long have no tables. One fault makes the tables of a small space again. Large
    /// spaces are skipped, because their drop would cost the caller too much time. May sleep, because this may drop the
    /// last handle of a space.
    ///
    /// # Requires
    /// The caller holds no lock that a fault could need.
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
    /// The CPU whose list the space is on. The space was made on this CPU.
    pub(crate) fn list(&self) -> CpuId {
        self.place.list
    }

    /// Drops the tables if `which` selects this space. Returns the number of freed table pages.
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
        // Tables that a fault made again were needed, so they stay for `IDLE`. Tables that a failed fault left may be
        // dropped: the space is still noted as bare.
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

/// The most spaces whose tables one call of [`Maps::drop_early`] drops. The caller makes the tables of one space. So a
/// number above 1 lowers the number of spaces with tables.
const EARLY: usize = 2;
/// The most spaces that one call of [`Maps::drop_early`] visits. A visit that drops nothing costs a few cache misses.
const EARLY_VISITS: usize = if cfg!(any(loom, shuttle)) { 0 } else { 8 };

/// Epoch steps after which retired memory is freed, if no reader is pinned.
const GRACE: usize = 3;
