//! Page descriptors: one cache line for each frame, never freed.
//!
//! # Who may change what
//! - `state` changes by read-modify-write only. Identity (`object`, `index`) and VALID change only while the holder has the
//!   page exclusively busy (Contract C1); leaving an identity raises the generation, so that whoever looked the page up
//!   before can tell that it is another page now.
//! - A page is dirty before a writable leaf for it exists (Contract C2).
//! - `next` and `prev` belong to whoever has the frame on a list: the buddy lists, a magazine, a slab's depot, a page queue;
//!   the frame's `kind` says which.
//! - `words` belong to the frame's user by kind: the descriptor of a page-table page, a slab's free list.

use crate::types::Pfn;
use quire_sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};

/// What a frame is used for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Kind {
    /// Not RAM, or taken before the core started.
    Reserved = 0,
    /// On a buddy list (the first frame of a block) or inside a free block.
    Free = 1,
    /// In a magazine or the depot.
    Cached = 2,
    /// Handed out with no page identity: kernel memory, or not yet inserted into an object.
    Wild = 3,
    /// A page of an object.
    Object = 4,
    /// A page-table page.
    Table = 5,
    /// A slab's frame.
    Slab = 6,
}

impl Kind {
    fn from_u8(v: u8) -> Kind {
        match v {
            1 => Kind::Free,
            2 => Kind::Cached,
            3 => Kind::Wild,
            4 => Kind::Object,
            5 => Kind::Table,
            6 => Kind::Slab,
            _ => Kind::Reserved,
        }
    }
}

/// The page's state word, taken apart.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct State(pub u64);

impl State {
    /// Exclusively busy: identity and validity may change.
    pub const BUSY: u64 = 1;
    /// The frame holds the content of (object, index).
    pub const VALID: u64 = 1 << 1;
    /// Memory is newer than what the pager has.
    pub const DIRTY: u64 = 1 << 2;
    /// Somebody sleeps until the page is not busy.
    pub const WAITERS: u64 = 1 << 3;
    /// Referenced since the queues last looked.
    pub const REFERENCED: u64 = 1 << 4;
    /// Lowest bit of the queue field (three bits; see [`crate::page::Page::queue`]).
    pub const QUEUE_SHIFT: u32 = 8;
    /// Mask of the queue field.
    pub const QUEUE_MASK: u64 = 0b111 << Self::QUEUE_SHIFT;
    /// Lowest bit of the generation.
    pub const GENERATION_SHIFT: u32 = 16;

    /// Whether `BUSY` is set.
    pub fn busy(self) -> bool {
        self.0 & Self::BUSY != 0
    }
    /// Whether `VALID` is set.
    pub fn valid(self) -> bool {
        self.0 & Self::VALID != 0
    }
    /// Whether `DIRTY` is set.
    pub fn dirty(self) -> bool {
        self.0 & Self::DIRTY != 0
    }
    /// Whether somebody sleeps until the page is not busy.
    pub fn waiters(self) -> bool {
        self.0 & Self::WAITERS != 0
    }
    /// The generation: another value means another identity.
    pub fn generation(self) -> u64 {
        self.0 >> Self::GENERATION_SHIFT
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
    /// While the frame is a page: one for its identity, and one for each transient user of the frame's memory (a copy to or
    /// from a program). Who takes it to zero frees the frame; from zero it rises only with a new identity.
    holds: AtomicU32,
    kind: AtomicU8,
    order: AtomicU8,
    _pad: [u8; 2],
    words: [AtomicU64; 3],
}

// One line a page: the budget of the whole design.
#[cfg(not(any(loom, shuttle)))]
const _: () = assert!(size_of::<Page>() == 64);

impl Page {
    /// A descriptor of a frame that is not RAM.
    pub fn new() -> Page {
        Page {
            state: AtomicU64::new(0),
            object: AtomicU64::new(0),
            index: AtomicU64::new(0),
            next: AtomicU32::new(0),
            prev: AtomicU32::new(0),
            holds: AtomicU32::new(0),
            kind: AtomicU8::new(0),
            order: AtomicU8::new(0),
            _pad: [0; 2],
            words: core::array::from_fn(|_| AtomicU64::new(0)),
        }
    }

    /// The state word now.
    #[inline(always)]
    pub fn state(&self) -> State {
        State(self.state.load(Ordering::Acquire))
    }

    /// Sets exclusive busy where it is clear and the generation is still `generation`. A full fence on x86.
    #[inline]
    pub fn try_busy(&self, generation: u64) -> bool {
        let mut s = self.state.load(Ordering::Acquire);
        loop {
            if s & State::BUSY != 0 || s >> State::GENERATION_SHIFT != generation {
                return false;
            }
            match self.state.compare_exchange_weak(s, s | State::BUSY, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return true,
                Err(now) => s = now,
            }
        }
    }

    /// Clears busy, and `WAITERS` with it; returns whether somebody waits and must be woken.
    #[inline]
    #[must_use = "waiters must be woken"]
    pub fn unbusy(&self) -> bool {
        let old = self.state.fetch_and(!(State::BUSY | State::WAITERS), Ordering::AcqRel);
        debug_assert!(old & State::BUSY != 0, "a page is unbusied that is not busy");
        old & State::WAITERS != 0
    }

    /// Marks that somebody is about to sleep for this page; returns whether it is still busy.
    pub fn announce_waiter(&self) -> bool {
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

    /// Sets bits of the state word (VALID, DIRTY, REFERENCED); returns the state before.
    #[inline]
    pub fn set(&self, bits: u64) -> State {
        debug_assert!(bits & !(State::VALID | State::DIRTY | State::REFERENCED) == 0);
        State(self.state.fetch_or(bits, Ordering::AcqRel))
    }

    /// Clears bits of the state word (VALID, DIRTY, REFERENCED); returns the state before.
    #[inline]
    pub fn clear(&self, bits: u64) -> State {
        debug_assert!(bits & !(State::VALID | State::DIRTY | State::REFERENCED) == 0);
        State(self.state.fetch_and(!bits, Ordering::AcqRel))
    }

    /// Gives a wild frame an identity: busy from the start, `bits` of VALID and DIRTY as told. The caller owns the frame.
    #[inline]
    pub fn assume(&self, object: u64, index: u64, bits: u64) {
        self.object.store(object, Ordering::Relaxed);
        self.index.store(index, Ordering::Relaxed);
        self.kind.store(Kind::Object as u8, Ordering::Relaxed);
        self.holds.store(1, Ordering::Relaxed);
        let generation = self.state.load(Ordering::Relaxed) >> State::GENERATION_SHIFT;
        self.state.store(generation << State::GENERATION_SHIFT | State::BUSY | bits, Ordering::Release);
    }

    /// Moves the page to another identity. Contract C1: the caller holds it busy; the generation rises, busy stays.
    pub fn rename(&self, object: u64, index: u64) {
        debug_assert!(self.state().busy(), "Contract C1: a page changes its identity without being busy");
        self.object.store(object, Ordering::Relaxed);
        self.index.store(index, Ordering::Relaxed);
        self.state.fetch_add(1 << State::GENERATION_SHIFT, Ordering::AcqRel);
    }

    /// Takes the identity away: the generation rises; busy, valid, dirty and the queue field are cleared. The caller holds the
    /// page busy, has removed it from the index, and gets back the state before, in the same step: whom to wake, and which
    /// queue to take the page off.
    #[must_use = "waiters must be woken"]
    pub fn disown(&self) -> State {
        let old = self.state.load(Ordering::Acquire);
        debug_assert!(old & State::BUSY != 0, "Contract C1: a page loses its identity without being busy");
        self.object.store(0, Ordering::Relaxed);
        self.kind.store(Kind::Wild as u8, Ordering::Relaxed);
        // The generation cannot change under us: the page is busy.
        let generation = (old >> State::GENERATION_SHIFT) + 1;
        State(self.state.swap(generation << State::GENERATION_SHIFT, Ordering::AcqRel))
    }

    /// Address of the object that the page belongs to, or 0.
    #[inline(always)]
    pub fn object(&self) -> u64 {
        self.object.load(Ordering::Acquire)
    }
    /// Index within the object.
    #[inline(always)]
    pub fn index(&self) -> u64 {
        self.index.load(Ordering::Acquire)
    }

    /// Which queue the page is in (the meaning is the queue module's).
    pub fn queue(&self) -> u8 {
        ((self.state.load(Ordering::Acquire) & State::QUEUE_MASK) >> State::QUEUE_SHIFT) as u8
    }
    /// Moves the queue field from `from` to `to`; false where it was something else.
    pub fn change_queue(&self, from: u8, to: u8) -> bool {
        let mut s = self.state.load(Ordering::Acquire);
        loop {
            if (s & State::QUEUE_MASK) >> State::QUEUE_SHIFT != from as u64 {
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
    /// found the page in an index, and validates identity and generation after the hold; where that fails it lets go.
    #[must_use]
    pub fn try_hold(&self) -> bool {
        let mut n = self.holds.load(Ordering::Relaxed);
        while n != 0 {
            match self.holds.compare_exchange_weak(n, n + 1, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => return true,
                Err(now) => n = now,
            }
        }
        false
    }
    /// Undoes one hold, or the identity's own; true where it was the last, and the caller frees the frame.
    #[must_use = "the last one frees the frame"]
    pub fn unhold(&self) -> bool {
        self.holds.fetch_sub(1, Ordering::AcqRel) == 1
    }
    /// Number of holds.
    pub fn holds(&self) -> u32 {
        self.holds.load(Ordering::Acquire)
    }

    /// What the frame is used for.
    pub fn kind(&self) -> Kind {
        Kind::from_u8(self.kind.load(Ordering::Acquire))
    }
    /// Says what the frame is used for; the frame's owner calls it.
    pub fn set_kind(&self, kind: Kind) {
        self.kind.store(kind as u8, Ordering::Release);
    }
    /// log2 of the frames in the block that this frame begins.
    pub fn order(&self) -> u8 {
        self.order.load(Ordering::Relaxed)
    }
    pub(crate) fn set_order(&self, order: u8) {
        self.order.store(order, Ordering::Relaxed);
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
    pub fn prev(&self) -> Option<Pfn> {
        link(&self.prev)
    }
    /// Sets the previous link; the list's owner calls it.
    #[inline(always)]
    pub fn set_prev(&self, pfn: Option<Pfn>) {
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
    // Frame numbers fit: `Vm::new` refuses RAM beyond 2^32 - 2 frames.
    pfn.map_or(0, |p| p.0 as u32 + 1)
}
