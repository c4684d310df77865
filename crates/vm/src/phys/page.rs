//! Page descriptors: one cache line for each frame, never freed.
//!
//! # Contract C1: identity
//! A page's object, index and validity change only while a thread holds it exclusively busy. Leaving an identity raises
//! the generation, so a thread that looked the page up before sees that it is another page now.
//!
//! # Guards of the fields
//! - `state` changes by read-modify-write only; identity (`object`, `index`) and VALID as C1 says.
//! - A page is dirty before a writable leaf for it exists (relies on C2).
//! - `next` and `prev` belong to the owner of the list that the frame is on: the buddy lists, a magazine, a slab's
//!   depot, a page queue. The frame's `kind` says which.
//! - `words` belong to the frame's user by kind: the descriptor of a page-table page, a slab's free list.

use crate::mutant::{Mutant, mutant};
use crate::types::Pfn;
use quire_sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering, fence_after_rmw};

/// What a frame is used for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum FrameKind {
    /// Not RAM, or taken before the core started.
    Reserved = 0,
    /// On a buddy list (the first frame of a block) or inside a free block.
    Free = 1,
    /// In a magazine or the depot.
    Cached = 2,
    /// Handed out with no page identity: kernel memory, or not yet inserted into an object.
    Unowned = 3,
    /// A page of an object.
    Object = 4,
    /// A page-table page.
    Table = 5,
    /// A slab's frame.
    Slab = 6,
}

/// Earlier copies of a page, as its descriptor records them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Copied {
    /// No copy was made before.
    First,
    /// The page was copied before, and no CPU has searched for a backing that still maps it.
    Again,
    /// The number of a backing that still mapped the page at the last search.
    Watched(u64),
}

/// The bit of a frame's home that says its group.
const GROUP: u8 = 1 << 7;

const COPIED: u8 = 1;
const WATCHED: u8 = 2;
/// The word that a watch is kept in.
const WATCH: usize = 1;

impl FrameKind {
    fn from_u8(v: u8) -> FrameKind {
        match v {
            1 => FrameKind::Free,
            2 => FrameKind::Cached,
            3 => FrameKind::Unowned,
            4 => FrameKind::Object,
            5 => FrameKind::Table,
            6 => FrameKind::Slab,
            _ => FrameKind::Reserved,
        }
    }
}

/// The page's state word, taken apart.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct State(pub u64);

impl State {
    /// Exclusively busy: identity and validity may change.
    pub(crate) const BUSY: u64 = 1;
    /// The frame holds the content of (object, index).
    pub(crate) const VALID: u64 = 1 << 1;
    /// Memory is newer than what the pager has.
    pub const DIRTY: u64 = 1 << 2;
    /// A thread sleeps until the page is not busy.
    pub(crate) const WAITERS: u64 = 1 << 3;
    /// Referenced since the queues last looked.
    pub const REFERENCED: u64 = 1 << 4;
    /// The content is being written out. No second write begins; freeing takes the frame only when the write is done.
    /// See [`crate::paging::laundry`].
    pub(crate) const LAUNDERING: u64 = 1 << 5;
    /// The frame is a page. No thread may set another frame busy, because the thread that gives it an identity writes
    /// the whole word.
    pub(crate) const IDENTITY: u64 = 1 << 6;
    /// A page of an object that is not private memory: of a file, or of memory that is mapped shared.
    pub(crate) const SHARED: u64 = 1 << 7;
    /// Lowest bit of the queue field: three bits for the queue, then the shard (see [`queues`](crate::phys::queues)).
    pub(crate) const QUEUE_SHIFT: u32 = 8;
    /// Bits of the queue field that number a shard.
    pub(crate) const PART_BITS: u32 = 10;
    /// Mask of the queue field.
    pub(crate) const QUEUE_MASK: u64 = ((1 << (3 + Self::PART_BITS)) - 1) << Self::QUEUE_SHIFT;
    /// Lowest bit of the generation: 40 bits, which a frame that gets a new identity each microsecond uses up in 12
    /// days.
    pub(crate) const GENERATION_SHIFT: u32 = 24;

    /// Whether `BUSY` is set.
    pub fn busy(self) -> bool {
        self.0 & Self::BUSY != 0
    }
    /// Whether `VALID` is set.
    pub(crate) fn valid(self) -> bool {
        self.0 & Self::VALID != 0
    }
    /// Whether `DIRTY` is set.
    pub fn dirty(self) -> bool {
        self.0 & Self::DIRTY != 0
    }
    /// Whether a thread sleeps until the page is not busy.
    pub(crate) fn waiters(self) -> bool {
        self.0 & Self::WAITERS != 0
    }
    /// Whether the content is being written out.
    pub(crate) fn laundering(self) -> bool {
        self.0 & Self::LAUNDERING != 0
    }
    /// Whether `SHARED` is set.
    pub(crate) fn shared(self) -> bool {
        self.0 & Self::SHARED != 0
    }
    /// The generation: another value means another identity.
    pub(crate) fn generation(self) -> u64 {
        self.0 >> Self::GENERATION_SHIFT
    }
    /// The queue field.
    pub(crate) fn queue(self) -> u16 {
        ((self.0 & Self::QUEUE_MASK) >> Self::QUEUE_SHIFT) as u16
    }
}

impl core::fmt::Debug for State {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(
            f,
            "State(busy={} valid={} dirty={} generation={})",
            self.busy(),
            self.valid(),
            self.dirty(),
            self.generation()
        )
    }
}

/// The descriptor of one frame.
#[repr(C, align(64))]
pub struct Page {
    state: AtomicU64,
    /// Address of the object, 0 for none. Guarded by busy (C1); read freely, then validated by generation.
    object: AtomicU64,
    /// Page index within the object. As `object`.
    index: AtomicU64,
    /// List links, as frame number plus one; 0 ends a list.
    next: AtomicU32,
    prev: AtomicU32,
    /// While the frame is a page: one for its identity, and one for each transient user of the frame's memory (a copy
    /// to or from a program). The thread that lowers it to zero frees the frame. From zero it rises only with a new
    /// identity.
    holds: AtomicU32,
    kind: AtomicU8,
    order: AtomicU8,
    /// Of an object's page: whether it was copied for a front, and whether its second word is its watch.
    copied: AtomicU8,
    /// The memory domain of the frame, and in the top bit its group. Written by the CPU that takes the frame off the
    /// free lists; the domain never changes.
    home: AtomicU8,
    words: [AtomicU64; 3],
}

// One line a page: the budget of the whole design.
quire_sync::assert_layout!(Page {
    size: 64,
    align: 64,
    state: 0,
    object: 8,
    index: 16,
    next: 24,
    prev: 28,
    holds: 32,
    kind: 36,
    order: 37,
    words: 40,
});

impl Page {
    /// A descriptor of a frame that is not RAM.
    pub(crate) fn new() -> Page {
        Page {
            state: AtomicU64::new(0),
            object: AtomicU64::new(0),
            index: AtomicU64::new(0),
            next: AtomicU32::new(0),
            prev: AtomicU32::new(0),
            holds: AtomicU32::new(0),
            kind: AtomicU8::new(0),
            order: AtomicU8::new(0),
            copied: AtomicU8::new(0),
            home: AtomicU8::new(0),
            words: core::array::from_fn(|_| AtomicU64::new(0)),
        }
    }

    /// A descriptor of a free frame of `domain` that begins no block of the buddy lists, as `order` says.
    pub(crate) fn free(domain: u8, order: u8) -> Page {
        let (kind, order, home) =
            (AtomicU8::new(FrameKind::Free as u8), AtomicU8::new(order), AtomicU8::new(domain & !GROUP));
        Page { kind, order, home, ..Page::new() }
    }

    /// The state word now.
    #[inline(always)]
    pub fn state(&self) -> State {
        State(self.state.load(Ordering::Acquire))
    }

    /// Sets exclusive busy where it is clear, the frame is a page and the generation is still `generation`. A full
    /// fence on x86.
    #[inline]
    pub(crate) fn try_busy(&self, generation: u64) -> bool {
        let mut s = self.state.load(Ordering::Acquire);
        loop {
            let other = s >> State::GENERATION_SHIFT != generation && !mutant(Mutant::BusyAnyIdentity);
            // Else the thread that next makes a page of the frame would not see our busy bit. Clearing ours would then
            // clear its own.
            let wild = s & State::IDENTITY == 0 && !mutant(Mutant::BusyNoPage);
            if s & State::BUSY != 0 || other || wild {
                return false;
            }
            if mutant(Mutant::BusyNotAtomic) {
                self.state.store(s | State::BUSY, Ordering::Release);
                return true;
            }
            match self.state.compare_exchange_weak(s, s | State::BUSY, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return true,
                Err(now) => s = now,
            }
        }
    }

    /// Clears busy, and `WAITERS` with it. Returns whether a thread waits and must be woken.
    #[inline]
    #[must_use = "waiters must be woken"]
    pub(crate) fn unbusy(&self) -> bool {
        if mutant(Mutant::WaitersForgotten) {
            let waiters = self.state().waiters();
            self.state.fetch_and(!(State::BUSY | State::WAITERS), Ordering::AcqRel);
            return waiters;
        }
        let old = self.state.fetch_and(!(State::BUSY | State::WAITERS), Ordering::AcqRel);
        debug_assert!(old & State::BUSY != 0, "a page that is not busy is unbusied");
        old & State::WAITERS != 0
    }

    /// Marks that the caller is about to sleep for this page; returns whether it is still busy.
    pub(crate) fn announce_waiter(&self) -> bool {
        if mutant(Mutant::WaitUnannounced) {
            return self.state().busy();
        }
        let mut s = self.state.load(Ordering::Acquire);
        loop {
            if s & State::BUSY == 0 {
                return false;
            }
            match self.state.compare_exchange_weak(s, s | State::WAITERS, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return true,
                Err(now) => s = now,
            }
        }
    }

    /// Sets bits of the state word (VALID, DIRTY, REFERENCED, LAUNDERING); returns the state before.
    #[inline]
    pub fn set(&self, bits: u64) -> State {
        debug_assert!(bits & !(State::VALID | State::DIRTY | State::REFERENCED | State::LAUNDERING) == 0);
        State(self.state.fetch_or(bits, Ordering::AcqRel))
    }

    /// Sets DIRTY where the page is not busy and its generation is still `generation`. The caller holds nothing, so the
    /// frame may be another page by now, for which no CPU sets the dirty tag.
    #[inline]
    pub(crate) fn set_dirty(&self, generation: u64) {
        let mut s = self.state.load(Ordering::Acquire);
        loop {
            let lost = s & State::BUSY != 0 || s >> State::GENERATION_SHIFT != generation;
            if lost && !mutant(Mutant::DirtyAnyIdentity) {
                return;
            }
            match self.state.compare_exchange_weak(s, s | State::DIRTY, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return,
                Err(now) => s = now,
            }
        }
    }

    /// Clears bits of the state word (VALID, DIRTY, REFERENCED); returns the state before.
    #[inline]
    pub(crate) fn clear(&self, bits: u64) -> State {
        debug_assert!(bits & !(State::VALID | State::DIRTY | State::REFERENCED) == 0);
        State(self.state.fetch_and(!bits, Ordering::AcqRel))
    }

    /// Ends a write of the content, and sets `bits` in the same step. False, without a change, where the page has lost
    /// its identity meanwhile. The caller has held the frame since the write began, so it is no other page yet.
    pub(crate) fn end_laundering(&self, bits: u64) -> bool {
        let mut s = self.state.load(Ordering::Acquire);
        while s & State::LAUNDERING != 0 {
            let new = s & !State::LAUNDERING | bits;
            match self.state.compare_exchange_weak(s, new, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return true,
                Err(now) => s = now,
            }
        }
        false
    }

    /// Gives a wild frame an identity: busy from the start, with `bits` of VALID, DIRTY and SHARED. The caller owns the
    /// frame.
    #[inline]
    pub(crate) fn assume(&self, object: u64, index: u64, bits: u64) {
        self.object.store(object, Ordering::Relaxed);
        self.index.store(index, Ordering::Relaxed);
        self.kind.store(FrameKind::Object as u8, Ordering::Relaxed);
        self.copied.store(0, Ordering::Relaxed);
        self.holds.store(1, Ordering::Relaxed);
        let generation = self.state.load(Ordering::Relaxed) >> State::GENERATION_SHIFT;
        let identity = generation << State::GENERATION_SHIFT | State::IDENTITY;
        self.state.store(identity | State::BUSY | bits, Ordering::Release);
    }

    /// Moves the page to another identity. Keeps C1: the caller holds it busy; the generation rises, busy stays.
    pub(crate) fn rename(&self, object: u64, index: u64) {
        debug_assert!(self.state().busy(), "Contract C1: a page changes its identity without being busy");
        self.object.store(object, Ordering::Relaxed);
        self.index.store(index, Ordering::Relaxed);
        self.copied.store(0, Ordering::Relaxed);
        self.state.fetch_add(1 << State::GENERATION_SHIFT, Ordering::AcqRel);
    }

    /// Takes the identity away: the generation rises; everything else is cleared. The caller holds the page busy and
    /// has removed it from the index. The same step returns the old state, which names waiters to wake and the queue to
    /// take the page off.
    #[must_use = "waiters must be woken"]
    pub(crate) fn disown(&self) -> State {
        let old = self.state.load(Ordering::Acquire);
        debug_assert!(old & State::BUSY != 0, "Contract C1: a page loses its identity without being busy");
        self.object.store(0, Ordering::Relaxed);
        self.kind.store(FrameKind::Unowned as u8, Ordering::Relaxed);
        // The generation cannot change under us: the page is busy.
        let generation = (old >> State::GENERATION_SHIFT) + 1;
        State(self.state.swap(generation << State::GENERATION_SHIFT, Ordering::AcqRel))
    }

    /// Address of the object that the page belongs to, or 0.
    #[inline(always)]
    pub(crate) fn object(&self) -> u64 {
        self.object.load(Ordering::Acquire)
    }
    /// Index within the object.
    #[inline(always)]
    pub(crate) fn index(&self) -> u64 {
        self.index.load(Ordering::Acquire)
    }

    /// Moves the queue field from `from` to `to`; false where it was something else.
    pub(crate) fn change_queue(&self, from: u16, to: u16) -> bool {
        let mut s = self.state.load(Ordering::Acquire);
        loop {
            if State(s).queue() != from {
                return false;
            }
            let new = s & !State::QUEUE_MASK | (to as u64) << State::QUEUE_SHIFT;
            match self.state.compare_exchange_weak(s, new, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return true,
                Err(now) => s = now,
            }
        }
    }

    /// Keeps the frame from being freed while its memory is copied; false where it is about to be freed. The caller has
    /// found the page in an index. After the hold it validates identity and generation, and drops the hold where that
    /// fails.
    #[must_use]
    pub(crate) fn try_hold(&self) -> bool {
        let mut n = self.holds.load(Ordering::Relaxed);
        while n != 0 {
            match self.holds.compare_exchange_weak(n, n + 1, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => {
                    // Orders the hold before the taker's next reads. A thread that sets busy or clears dirty fences,
                    // then reads the holds.
                    fence_after_rmw();
                    return true;
                }
                Err(now) => n = now,
            }
        }
        false
    }
    /// Drops one hold, or the identity's own. True where it was the last: the caller then frees the frame.
    #[must_use = "the last holder frees the frame"]
    pub(crate) fn unhold(&self) -> bool {
        self.holds.fetch_sub(1, Ordering::AcqRel) == 1
    }
    /// Number of holds.
    pub(crate) fn holds(&self) -> u32 {
        self.holds.load(Ordering::Acquire)
    }

    /// Notes that the page was copied for a space that no longer maps it; see [`crate::cow::last_sharer`]. Where the
    /// frame is another page by now, the first copy of that page makes one search too many.
    #[inline]
    pub(crate) fn note_copy(&self) -> Copied {
        match self.copied.load(Ordering::Acquire) {
            0 if self.copied.compare_exchange(0, COPIED, Ordering::AcqRel, Ordering::Acquire).is_ok() => Copied::First,
            WATCHED => Copied::Watched(self.words[WATCH].load(Ordering::Acquire)),
            _ => Copied::Again,
        }
    }
    /// What [`Page::note_copy`] would return now, without the note.
    #[inline]
    pub(crate) fn copied(&self) -> Copied {
        match self.copied.load(Ordering::Acquire) {
            0 => Copied::First,
            WATCHED => Copied::Watched(self.words[WATCH].load(Ordering::Acquire)),
            _ => Copied::Again,
        }
    }
    /// Notes that the page may have been copied while it had another descriptor.
    ///
    /// # Requires
    /// The page is busy.
    pub(crate) fn suspect(&self) {
        self.copied.store(COPIED, Ordering::Relaxed);
    }
    /// Sets the page's watch: a backing that still maps it. The caller holds the page ([`Page::try_hold`]), which is a
    /// page of an object.
    pub(crate) fn watch(&self, watch: u64) {
        self.words[WATCH].store(watch, Ordering::Release);
        self.copied.store(WATCHED, Ordering::Release);
    }

    /// What the frame is used for.
    pub fn kind(&self) -> FrameKind {
        FrameKind::from_u8(self.kind.load(Ordering::Acquire))
    }
    /// Sets the frame's use; the frame's owner calls it.
    pub fn set_kind(&self, kind: FrameKind) {
        self.kind.store(kind as u8, Ordering::Release);
    }
    /// log2 of the frames in the block that this frame begins.
    pub(crate) fn order(&self) -> u8 {
        self.order.load(Ordering::Relaxed)
    }
    pub(crate) fn set_order(&self, order: u8) {
        self.order.store(order, Ordering::Relaxed);
    }

    /// The memory domain of the frame.
    #[inline(always)]
    pub(crate) fn domain(&self) -> u8 {
        self.home.load(Ordering::Relaxed) & !GROUP
    }
    /// The group of frames that it is kept with while it is free: 0 or 1, defined by the frame allocator.
    #[inline(always)]
    pub(crate) fn group(&self) -> u8 {
        (self.home.load(Ordering::Relaxed) & GROUP != 0) as u8
    }
    pub(crate) fn set_domain(&self, domain: u8) {
        self.home.store(domain & !GROUP, Ordering::Relaxed);
    }
    pub(crate) fn set_group(&self, group: u8) {
        let home = self.domain() | if group != 0 { GROUP } else { 0 };
        self.home.store(home, Ordering::Relaxed);
    }

    /// The next frame on the list that this frame is on.
    #[inline(always)]
    pub fn next(&self) -> Option<Pfn> {
        link(&self.next)
    }
    /// Sets the next link; the list's owner calls it.
    #[inline(always)]
    pub fn set_next(&self, pfn: Option<Pfn>) {
        self.next.store(pack(pfn), Ordering::Relaxed);
    }
    /// The previous frame on the list that this frame is on.
    #[inline(always)]
    pub(crate) fn prev(&self) -> Option<Pfn> {
        link(&self.prev)
    }
    /// Sets the previous link; the list's owner calls it.
    #[inline(always)]
    pub(crate) fn set_prev(&self, pfn: Option<Pfn>) {
        self.prev.store(pack(pfn), Ordering::Relaxed);
    }

    /// The index word, as a fourth word for the user of a frame that is no object's page.
    #[inline(always)]
    pub fn spare(&self) -> &AtomicU64 {
        &self.index
    }
    /// Three words for the frame's user, by kind.
    #[inline(always)]
    pub fn words(&self) -> &[AtomicU64; 3] {
        &self.words
    }
}

impl Default for Page {
    fn default() -> Self {
        Self::new()
    }
}

fn link(field: &AtomicU32) -> Option<Pfn> {
    match field.load(Ordering::Relaxed) {
        0 => None,
        n => Some(Pfn(n as u64 - 1)),
    }
}

fn pack(pfn: Option<Pfn>) -> u32 {
    // Frame numbers fit: `Physical::new` refuses RAM beyond 2^32 - 2 frames.
    pfn.map_or(0, |p| p.0 as u32 + 1)
}

impl Page {
    /// The swap slot that the page has beside its frame; none while the page is being written. The caller holds the
    /// page busy.
    pub(crate) fn swap_slot(&self) -> Option<u64> {
        self.words()[0].load(Ordering::Relaxed).checked_sub(1)
    }
    pub(crate) fn set_swap_slot(&self, slot: Option<u64>) {
        self.words()[0].store(slot.map_or(0, |s| s + 1), Ordering::Relaxed);
    }
    /// Takes the slot from the page.
    pub(crate) fn take_swap_slot(&self) -> Option<u64> {
        let slot = self.swap_slot();
        if slot.is_some() {
            self.set_swap_slot(None);
        }
        slot
    }
}

/// The part of a page's word that counts failed writes; the rest is the pass that spared it.
const FAILED: u64 = 0xffff_ffff;

impl Page {
    /// Failed writes of the page since the last good one, as the pageout daemon counts them.
    pub(crate) fn failed_writes(&self) -> u64 {
        self.words()[2].load(Ordering::Acquire) & FAILED
    }
    /// The pass that last spared the page because programs use it all the time.
    pub(crate) fn spared(&self) -> Option<u32> {
        let pass = (self.words()[2].load(Ordering::Relaxed) >> 32) as u32;
        (pass != 0).then_some(pass)
    }
    /// Notes that pass number `pass` spares the page. Only pageout uses this, one pass at a time. A complete write
    /// clears it.
    pub(crate) fn shield(&self, pass: u32) {
        let spared = |word| Some(word & FAILED | u64::from(pass) << 32);
        let _same = self.words()[2].fetch_update(Ordering::Relaxed, Ordering::Relaxed, spared);
    }
    pub(crate) fn set_failed_writes(&self, value: u64) {
        self.words()[2].store(value, Ordering::Relaxed);
    }
}
