//! The descriptor of a table page, and the memory of table pages.
//!
//! # The descriptor
//! The descriptor is eight bytes in the page descriptor of the table's frame: {lock, live count or dead, unflushed}. It
//! names neither an address nor a pmap, so that table pages can be shared later.
//!
//! The page descriptor has two more words for a table page. `occupied` has one bit for each group of entries that was
//! ever used; scans skip the other groups. `writable` has one bit for each group in which a leaf got the right to
//! store; write-protection reads only those groups.
//!
//! | field | guarded by |
//! |---|---|
//! | `live` | written under the lock; read under it, or as a hint |
//! | dead mark (a value of `live`) | written under the parent's lock *and* this one; final |
//! | store-protected mark (a bit beside `unflushed`) | written and read under the lock: the entry above allows no stores |
//! | `unflushed` | one for each obligation that took leaves here. Raised under the lock, before the first leaf is cleared or in the same hold (`take_alone`). Lowered by the CPU that flushed, without the lock. |
//! | `writable` | written and read under the lock, until the page is dead: then the epoch's header lies there |
//! | `occupied` | written under the lock; read under the lock, or after a fence by walkers, which read the entries without the lock too |

use crate::Format;
use crate::format::FANOUT;
use crate::mutant::{Mutant, mutant};
use crate::shootdown::residency::Residency;
use quire_sync::atomic::{AtomicU16, AtomicU32, AtomicU64, Ordering};
use quire_sync::{Rank, SpinGuard, SpinLock};
use quire_vm::{OutOfMemory, Pfn};

/// The entries of a table page.
pub(crate) type TableEntries = [AtomicU64; FANOUT];

/// The number of entries that share one bit of `occupied`: the entries of one cache line.
pub(crate) const GROUP: usize = if FANOUT < 64 { 1 } else { FANOUT / 64 };

/// The value of `live` in a table page that was unlinked for ever.
const DEAD: u16 = u16::MAX;

/// The bit beside the count of unflushed removals that marks a store-protected table page.
const STORE_PROTECTED: u32 = 1 << 31;
/// The bit beside it that marks a table page in which the frame of zeroes was mapped.
const SHOWS_ZEROES: u32 = 1 << 30;
/// Both bits.
const MARKS: u32 = STORE_PROTECTED | SHOWS_ZEROES;

/// The state of a table page besides its entries.
pub(crate) struct TableState {
    lock: SpinLock<()>,
    live: AtomicU16,
    unflushed: AtomicU32,
}

// The state overlays one word of the frame's page descriptor.
quire_sync::assert_layout!(TableState { size: 8, align: 4 });

impl TableState {
    /// Makes the state of an empty table page at `level` (0 is the last).
    pub(crate) fn new(level: u32) -> Self {
        let rank = if level == 0 { Rank::TABLE } else { Rank::TABLE_UPPER };
        TableState { lock: SpinLock::new(rank, ()), live: AtomicU16::new(0), unflushed: AtomicU32::new(0) }
    }

    #[inline]
    pub(crate) fn lock(&self) -> SpinGuard<'_, ()> {
        self.lock.lock()
    }

    /// Acquires the lock of a child while its parent's lock is held. The order is always parent before child.
    pub(crate) fn lock_child(&self) -> SpinGuard<'_, ()> {
        self.lock.lock_below()
    }

    #[inline]
    pub(crate) fn is_dead(&self) -> bool {
        self.live.load(Ordering::Acquire) == DEAD
    }

    /// Number of present entries.
    pub(crate) fn live(&self) -> u32 {
        match self.live.load(Ordering::Relaxed) {
            DEAD => 0,
            n => n as u32,
        }
    }

    /// Adds `by` to the number of present entries.
    ///
    /// # Requires
    /// The caller holds the lock.
    #[inline]
    pub(crate) fn change_live(&self, by: i16) {
        let live = self.live.load(Ordering::Relaxed);
        debug_assert!(live != DEAD, "a dead table page is changed");
        self.live.store(live.wrapping_add_signed(by), Ordering::Relaxed);
    }

    /// Marks the table page dead, for ever.
    ///
    /// # Requires
    /// The caller holds this lock and the parent's.
    fn kill(&self) {
        self.live.store(DEAD, Ordering::Release);
    }

    /// Whether the table page has removals that are not flushed yet.
    pub(crate) fn unflushed(&self) -> bool {
        self.unflushed.load(Ordering::Acquire) & !MARKS != 0
    }

    /// Marks the table page, for its life, as one in which the frame of zeroes was mapped.
    ///
    /// # Requires
    /// The caller holds the lock.
    pub(crate) fn note_zeroes(&self) {
        if !self.shows_zeroes() {
            self.unflushed.fetch_or(SHOWS_ZEROES, Ordering::AcqRel);
        }
    }

    /// Whether the frame of zeroes was mapped in the table page.
    pub(crate) fn shows_zeroes(&self) -> bool {
        self.unflushed.load(Ordering::Relaxed) & SHOWS_ZEROES != 0
    }

    /// Whether the table page is store-protected: the entry above it allows no stores.
    ///
    /// # Requires
    /// The caller holds the lock.
    #[inline(always)]
    pub(crate) fn is_store_protected(&self) -> bool {
        self.unflushed.load(Ordering::Relaxed) & STORE_PROTECTED != 0
    }

    /// Sets or clears the store-protected mark.
    ///
    /// # Requires
    /// The caller holds the lock.
    pub(crate) fn set_store_protected(&self, store_protected: bool) {
        match store_protected {
            true => self.unflushed.fetch_or(STORE_PROTECTED, Ordering::AcqRel),
            false => self.unflushed.fetch_and(!STORE_PROTECTED, Ordering::AcqRel),
        };
    }

    /// Lowers the count of unflushed removals by one, after the flush. Returns `true` if the count is zero then and the
    /// table page is empty.
    pub(crate) fn settle(&self) -> bool {
        let old = self.unflushed.fetch_sub(1, Ordering::AcqRel);
        debug_assert!(old & !MARKS != 0, "more removals are settled than were counted");
        // The result is a hint: once the count is zero, another CPU may free the table page.
        old & !MARKS == 1 && self.live.load(Ordering::Relaxed) == 0
    }
}

/// The storage of table pages. In production they are frames, described by page descriptors; in the models they are
/// arrays that check each access.
pub(crate) trait Memory {
    /// While a pin lives, table pages that a walker may reach are not reused.
    type Pin<'a>
    where
        Self: 'a;

    fn pin(&self) -> Self::Pin<'_>;
    fn slots(&self, t: Pfn) -> &TableEntries;
    fn state(&self, t: Pfn) -> &TableState;
    fn occupied(&self, t: Pfn) -> &AtomicU64;
    fn writable(&self, t: Pfn) -> &AtomicU64;
    /// Allocates a zeroed table page for `level`, with a fresh descriptor.
    fn allocate(&self, level: u32) -> Result<Pfn, OutOfMemory>;
    /// Frees a table page that no walker can reach. Its entries are all zero if its count of present entries is zero.
    fn free(&self, t: Pfn);
    /// Frees a dead table page after the walkers that may still read it have finished. The caller has flushed the page
    /// from every paging-structure cache.
    fn retire(&self, t: Pfn);
    /// Sets the link of `t` in the list of dead table pages that wait for one flush.
    fn set_next(&self, t: Pfn, next: Option<Pfn>);
    fn next(&self, t: Pfn) -> Option<Pfn>;
}

/// One table page: its entries and its descriptor.
pub(crate) struct View<'a> {
    pub pfn: Pfn,
    pub slots: &'a TableEntries,
    pub state: &'a TableState,
    pub occupied: &'a AtomicU64,
    pub writable: &'a AtomicU64,
}

impl<'a> View<'a> {
    pub(crate) fn of<A: Memory>(memory: &'a A, pfn: Pfn) -> View<'a> {
        View {
            pfn,
            slots: memory.slots(pfn),
            state: memory.state(pfn),
            occupied: memory.occupied(pfn),
            writable: memory.writable(pfn),
        }
    }

    /// Puts `word` into the empty entry `i`, by a read-modify-write (relies on C2: a fault installs a leaf only after
    /// all checks under the lock).
    ///
    /// # Requires
    /// The caller holds the lock.
    #[inline]
    pub(crate) fn put(&self, i: usize, word: u64) {
        self.state.change_live(1);
        self.put_uncounted(i, word);
    }

    /// As [`put`](Self::put), but leaves the count of present entries to the caller.
    #[inline]
    pub(crate) fn put_uncounted(&self, i: usize, word: u64) {
        let bit = 1u64 << (i / GROUP);
        let occupied = self.occupied.load(Ordering::Relaxed);
        if occupied & bit == 0 {
            // This CPU sets the bit before the entry, so that a scan that could see the entry does not skip its group.
            self.occupied.store(occupied | bit, Ordering::Release);
        }
        let old = self.slots[i].swap(word, Ordering::AcqRel);
        debug_assert_eq!(old, 0, "an entry is overwritten");
    }

    /// Notes that the leaf `i` allows stores from now on.
    ///
    /// # Requires
    /// The caller holds the lock.
    #[inline]
    pub(crate) fn note_writable(&self, i: usize) {
        let bit = 1u64 << (i / GROUP);
        let writable = self.writable.load(Ordering::Relaxed);
        if writable & bit == 0 {
            self.writable.store(writable | bit, Ordering::Relaxed);
        }
    }

    /// Notes that no leaf from entry `from` to `last` allows stores any more. Clears the bits of the groups that lie
    /// wholly in that range. Clears the bits of the two border groups too, where no other leaf `allows` stores.
    ///
    /// # Requires
    /// The caller holds the lock.
    pub(crate) fn note_unwritable(&self, from: usize, last: usize, allows: impl Fn(u64) -> bool) {
        let (first, end) = (from.div_ceil(GROUP), (last + 1) / GROUP);
        let below = |g: usize| if g >= u64::BITS as usize { !0 } else { (1u64 << g) - 1 };
        let mut gone = below(end) & !below(first);
        let writable = self.writable.load(Ordering::Relaxed);
        for g in [from / GROUP, last / GROUP] {
            let slots = &self.slots[g * GROUP..(g + 1) * GROUP];
            if writable & !gone & 1 << g != 0 && !slots.iter().any(|s| allows(s.load(Ordering::Relaxed))) {
                gone |= 1 << g;
            }
        }
        if writable & gone != 0 {
            self.writable.store(writable & !gone, Ordering::Relaxed);
        }
    }

    /// Empties the entry `i` of a table above the last level.
    ///
    /// # Requires
    /// The caller holds the lock.
    pub(crate) fn unlink(&self, i: usize) {
        self.slots[i].swap(0, Ordering::AcqRel);
        self.state.change_live(-1);
        self.tidy(i / GROUP);
    }

    /// Empties the entry `i` of a table above the last level. No walker can reach that table any more.
    pub(crate) fn unlink_last(&self, i: usize) {
        self.slots[i].store(0, Ordering::Relaxed);
        self.state.change_live(-1);
    }

    /// Number of present leaves that show another frame than `zero`, the frame of zeroes.
    ///
    /// # Requires
    /// The table page is of the last level, and is not freed meanwhile.
    pub(crate) fn resident<F: Format>(&self, zero: Pfn) -> u64 {
        let live = u64::from(self.state.live());
        if live == 0 || !self.state.shows_zeroes() {
            return live;
        }
        let shows = |word: u64| F::present(word) && F::frame(word) != zero;
        self.slots.iter().filter(|slot| shows(slot.load(Ordering::Relaxed))).count() as u64
    }

    /// Empties the present leaf `i`, and returns its word.
    ///
    /// # Requires
    /// The caller holds the lock. If the removal is not flushed, the caller counts it ([`owe`](Self::owe)) before it
    /// releases the lock.
    #[inline]
    pub(crate) fn take(&self, i: usize) -> u64 {
        self.state.change_live(-1);
        self.slots[i].swap(0, Ordering::AcqRel)
    }

    /// Empties the leaf as [`take`](Self::take) does, and raises the space's generation. If a CPU runs `space`, also
    /// calls `owe`, which counts the removal as not flushed. If no CPU runs the space, the raised generation is the
    /// flush, because a CPU that switches in later compares the generation. Relies on C2: all this happens under the
    /// lock. So a CPU that finds the entry empty finds the count raised or the flush done.
    ///
    /// # Requires
    /// The caller holds the lock.
    #[inline]
    pub(crate) fn take_alone(&self, i: usize, space: &Residency, owe: impl FnOnce()) -> u64 {
        let word = self.take(i);
        // `bump` needs this order: the read-modify-write above cleared the leaf before the generation rises.
        let (_, targets) = space.bump(false);
        if !targets.is_empty() && !mutant(Mutant::TakenUnasked) {
            owe();
        }
        word
    }

    /// Raises the count of removals that are not flushed yet. Relies on C2: the lock is held from the clearing of the
    /// entry to this call. So a CPU that finds the entry empty finds the count.
    ///
    /// # Requires
    /// The caller holds the lock.
    #[inline]
    pub(crate) fn owe(&self) {
        if !mutant(Mutant::TakeNotCounted) {
            self.state.unflushed.fetch_add(1, Ordering::AcqRel);
        }
    }

    /// Clears the occupied bit of group `g` if all its entries are zero.
    ///
    /// # Requires
    /// The caller holds the lock.
    fn tidy(&self, g: usize) {
        let slots = &self.slots[g * GROUP..(g + 1) * GROUP];
        if slots.iter().all(|s| s.load(Ordering::Relaxed) == 0) {
            let occupied = self.occupied.load(Ordering::Relaxed);
            self.occupied.store(occupied & !(1 << g), Ordering::Release);
        }
    }

    /// Returns the first entry from `from` to `last` that is not zero, with its word.
    #[inline]
    pub(crate) fn next(&self, from: usize, last: usize) -> Option<(usize, u64)> {
        let mut i = from;
        while i <= last {
            let rest = self.occupied.load(Ordering::Acquire) >> (i / GROUP);
            if rest == 0 {
                return None;
            }
            if rest & 1 == 0 {
                i = (i / GROUP + rest.trailing_zeros() as usize) * GROUP;
                continue;
            }
            let end = ((i / GROUP + 1) * GROUP - 1).min(last);
            while i <= end {
                let word = self.slots[i].load(Ordering::Acquire);
                if word != 0 {
                    return Some((i, word));
                }
                i += 1;
            }
        }
        None
    }

    /// As [`next`](Self::next), but also clears the occupied bits of groups that it finds empty.
    ///
    /// # Requires
    /// The caller holds the lock.
    pub(crate) fn next_locked(&self, from: usize, last: usize) -> Option<(usize, u64)> {
        let found = self.next(from, last);
        let end = found.map_or(last + 1, |(i, _)| i);
        // These groups lie wholly inside the range that was just found empty.
        for g in from.div_ceil(GROUP)..end / GROUP {
            let occupied = self.occupied.load(Ordering::Relaxed);
            if occupied & (1 << g) != 0 {
                self.occupied.store(occupied & !(1 << g), Ordering::Release);
            }
        }
        found
    }

    /// The number of entries from `from` to `last` whose words `counts` accepts.
    ///
    /// # Requires
    /// The caller holds the lock.
    pub(crate) fn count_locked(&self, from: usize, last: usize, counts: impl Fn(u64) -> bool) -> u64 {
        let within = (!0 << (from / GROUP)) & (!0 >> (u64::BITS as usize - 1 - last / GROUP));
        let mut groups = self.occupied.load(Ordering::Relaxed) & within;
        let mut found = 0;
        while groups != 0 {
            let g = groups.trailing_zeros() as usize;
            groups &= groups - 1;
            let (first, end) = ((g * GROUP).max(from), (g * GROUP + GROUP - 1).min(last));
            let slots = self.slots.get(first..=end).unwrap_or_default();
            found += slots.iter().map(|slot| u64::from(counts(slot.load(Ordering::Relaxed)))).sum::<u64>();
        }
        found
    }

    /// Returns a bit for each group from entry `from` to `last` that is occupied and may have a leaf that allows
    /// stores.
    ///
    /// # Requires
    /// The caller holds the lock.
    #[inline]
    pub(crate) fn writable_groups(&self, from: usize, last: usize) -> u64 {
        let within = (!0 << (from / GROUP)) & (!0 >> (u64::BITS as usize - 1 - last / GROUP));
        self.occupied.load(Ordering::Relaxed) & self.writable.load(Ordering::Relaxed) & within
    }

    /// Returns the entries of group `g`, and a bit for each entry of the group that lies from entry `from` to `last`.
    /// At least one entry of the group lies in that range.
    #[inline]
    pub(crate) fn group(&self, g: usize, from: usize, last: usize) -> (&'a [AtomicU64; GROUP], u64) {
        let (groups, _) = self.slots.as_chunks::<GROUP>();
        let (first, end) = (from.saturating_sub(g * GROUP), (last + 1 - g * GROUP).min(GROUP));
        (&groups[g], (!0 << first) & (!0 >> (u64::BITS as usize - end)))
    }

    /// Calls `f` with each entry from `from` to `last` that is not zero, in order, with its word. Returns the number of
    /// calls. Clears the occupied bits of groups that it finds empty.
    ///
    /// # Requires
    /// The caller holds the lock.
    #[inline]
    pub(crate) fn scan_locked(&self, from: usize, last: usize, mut f: impl FnMut(usize, &AtomicU64, u64)) -> u64 {
        // `occupied` is written only under the lock, so a relaxed load suffices.
        let occupied = self.occupied.load(Ordering::Relaxed);
        let mut rest = occupied & (!0 << (from / GROUP));
        let (mut seen, mut empty) = (0, 0u64);
        while rest != 0 {
            let g = rest.trailing_zeros() as usize;
            rest &= rest - 1;
            let start = (g * GROUP).max(from);
            if start > last {
                break;
            }
            let end = (g * GROUP + GROUP - 1).min(last);
            let before = seen;
            for (i, slot) in (start..).zip(&self.slots[start..=end]) {
                let word = slot.load(Ordering::Relaxed);
                if word != 0 {
                    seen += 1;
                    f(i, slot, word);
                }
            }
            if seen == before && end - start == GROUP - 1 {
                empty |= 1 << g;
            }
        }
        if empty != 0 {
            self.occupied.store(occupied & !empty, Ordering::Release);
        }
        seen
    }

    /// Marks the table page dead if it is empty and owes no flush. Returns whether it did.
    ///
    /// # Requires
    /// The caller holds this lock and the parent's.
    pub(crate) fn kill_if_empty(&self) -> bool {
        let empty = self.state.live.load(Ordering::Relaxed) == 0;
        // A table page that owes flushes is not marked dead, for two reasons. Removers must find its count, and its
        // frame must not be reused before the count is settled.
        if !empty || (self.state.unflushed() && !mutant(Mutant::PruneUnflushed)) {
            return false;
        }
        self.state.kill();
        true
    }
}
