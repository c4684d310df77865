//! Page descriptors: one cache line for each frame, never freed.
//!
//! # Contract C1: identity
//! A page's object, index and validity change only while a thread holds the page exclusively busy. When a page loses
//! its identity, its generation rises. So a thread that looked the page up before sees that it is another page now.
//!
//! # Guards of the fields
//! - `state` changes by atomic read-modify-write only. The identity (`object`, `index`) and VALID change as C1 states.
//! - A page is marked dirty before a writable PTE for it exists (relies on C2).
//! - `next` and `prev` belong to the owner of the list that has the frame: the buddy lists, a magazine, a slab's depot,
//!   a page queue. The frame's `kind` shows which list has the frame.
//! - `words` belong to the user of the frame, which its kind names: the descriptor of a page-table page, a slab's free
//!   list.

use crate::mutant::{Mutant, mutant};
use crate::types::Pfn;
use quire_sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering, fence_after_rmw};

/// The use of a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum FrameKind {
    /// Not RAM, or in use since before the core started.
    Reserved = 0,
    /// Free: the first frame of a block on a buddy list, or a frame inside such a block.
    Free = 1,
    /// Free, in a magazine or a depot.
    Cached = 2,
    /// Allocated without a page identity: kernel memory, or a frame that is not yet in an object.
    Unowned = 3,
    /// A page of an object.
    Object = 4,
    /// A page-table page.
    Table = 5,
    /// A frame of a slab.
    Slab = 6,
}

/// Whether copy-on-write faults have copied a page before, as its descriptor records it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Copied {
    /// No copy was made before.
    First,
    /// The page was copied before, and no CPU has searched for a backing that still maps it.
    Again,
    /// The number of a backing that still mapped the page at the last search.
    Watched(u64),
}

/// The bit of `home` that is the frame's group (0: frames of programs, 1: of the kernel).
const GROUP: u8 = 1 << 7;

const COPIED: u8 = 1;
const WATCHED: u8 = 2;
/// The index of the word that holds a page's watch (the number of a backing that still maps the page).
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

/// The value of a page's state word.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct State(pub u64);

impl State {
    /// Exclusively busy: identity and validity may change.
    pub(crate) const BUSY: u64 = 1;
    /// The frame holds the content of (object, index).
    pub(crate) const VALID: u64 = 1 << 1;
    /// The page is newer than the copy of its pager.
    pub const DIRTY: u64 = 1 << 2;
    /// A thread sleeps until the page is not busy.
    pub(crate) const WAITERS: u64 = 1 << 3;
    /// The page was referenced since the queues last checked it.
    pub const REFERENCED: u64 = 1 << 4;
    /// The content is being written out. No second write begins before this write is done. If the page is freed during
    /// the write, its frame is freed only when the write is done. See [`crate::paging::laundry`].
    pub(crate) const LAUNDERING: u64 = 1 << 5;
    /// The frame is a page. Other frames must not be set busy, because the thread that gives a frame an identity writes
    /// the whole word.
    pub(crate) const IDENTITY: u64 = 1 << 6;
    /// A page of an object that is not private memory: of a file, or of memory that is mapped shared.
    pub(crate) const SHARED: u64 = 1 << 7;
    /// The lowest bit of the queue field. It has three bits for the queue, then the shard (see
    /// [`queues`](crate::phys::queues)).
    pub(crate) const QUEUE_SHIFT: u32 = 8;
    /// The number of bits of the queue field for the shard.
    pub(crate) const PART_BITS: u32 = 10;
    /// The mask of the queue field.
    pub(crate) const QUEUE_MASK: u64 = ((1 << (3 + Self::PART_BITS)) - 1) << Self::QUEUE_SHIFT;
    /// The lowest bit of the generation, which has 40 bits. A frame that gets a new identity each microsecond uses them
    /// up in 12 days.
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
    /// The generation. A different value means a different identity.
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
    /// The address of the object, or 0 for none. Written only while the page is busy (C1). Readers need no lock, and
    /// validate it by the generation.
    object: AtomicU64,
    /// The page's index in the object. The rules of `object` hold.
    index: AtomicU64,
    /// Links of the list that has the frame, as frame numbers plus one. 0 ends a list.
    next: AtomicU32,
    prev: AtomicU32,
    /// While the frame is a page: one hold for its identity, and one for each copy to or from a program that uses the
    /// frame's memory. The thread that lowers the count to zero frees the frame. From zero the count rises only with a
    /// new identity.
    holds: AtomicU32,
    kind: AtomicU8,
    order: AtomicU8,
    /// For a page of an object: whether a copy-on-write fault has copied it, and whether it has a watch. A watch is the
    /// number of a backing that still maps the page.
    copied: AtomicU8,
    /// The memory domain of the frame, with its group in the top bit. The CPU that takes the frame off the free lists
    /// writes the group. The domain never changes.
    home: AtomicU8,
    words: [AtomicU64; 3],
}

// A descriptor has one cache line: the whole design relies on this size.
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
    /// The descriptor of a frame that is not RAM.
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

    /// The descriptor of a free frame of `domain`. `order` is the value for a frame that is not the first of a block.
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

    /// Sets the page exclusively busy, if it is not busy, is a page and has the generation `generation`. Returns
    /// whether it did. On x86 this is a full fence.
    #[inline]
    pub(crate) fn try_busy(&self, generation: u64) -> bool {
        let mut s = self.state.load(Ordering::Acquire);
        loop {
            let other = s >> State::GENERATION_SHIFT != generation && !mutant(Mutant::BusyAnyIdentity);
            // Without this check, the thread that next makes a page of the frame would not see the busy bit of this
            // thread. When this thread later clears the bit, it would clear the busy bit of that other thread.
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

    /// Clears `BUSY` and `WAITERS`. Returns whether a thread waits and must be woken.
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

    /// Sets `WAITERS`, because the caller is about to sleep for this page. Returns whether the page is still busy.
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

    /// Sets bits of the state word (VALID, DIRTY, REFERENCED, LAUNDERING). Returns the old state.
    #[inline]
    pub fn set(&self, bits: u64) -> State {
        debug_assert!(bits & !(State::VALID | State::DIRTY | State::REFERENCED | State::LAUNDERING) == 0);
        State(self.state.fetch_or(bits, Ordering::AcqRel))
    }

    /// Sets DIRTY if the page is not busy and its generation is still `generation`. The caller does not hold the page.
    /// So the frame may be another page by now, which must not get DIRTY without the dirty bit in its index.
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

    /// Clears bits of the state word (VALID, DIRTY, REFERENCED). Returns the old state.
    #[inline]
    pub(crate) fn clear(&self, bits: u64) -> State {
        debug_assert!(bits & !(State::VALID | State::DIRTY | State::REFERENCED) == 0);
        State(self.state.fetch_and(!bits, Ordering::AcqRel))
    }

    /// Ends a write of the content, and sets `bits` in the same step. Returns false, and changes nothing, if the page
    /// has lost its identity during the write. The caller has held the frame since the write began, so the frame is not
    /// another page yet.
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

    /// Gives an unowned frame an identity. The page is busy from the start, with `bits` of VALID, DIRTY and SHARED. The
    /// caller owns the frame.
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

    /// Gives the page another identity (keeps C1). The caller holds the page busy. The generation rises, and the page
    /// stays busy.
    pub(crate) fn rename(&self, object: u64, index: u64) {
        debug_assert!(self.state().busy(), "Contract C1: a page changes its identity without being busy");
        self.object.store(object, Ordering::Relaxed);
        self.index.store(index, Ordering::Relaxed);
        self.copied.store(0, Ordering::Relaxed);
        self.state.fetch_add(1 << State::GENERATION_SHIFT, Ordering::AcqRel);
    }

    /// Removes the identity: the generation rises, and everything else is cleared. The caller holds the page busy and
    /// has removed it from the index. The same step returns the old state, which shows whether waiters must be woken
    /// and from which queue the page must be taken.
    #[must_use = "waiters must be woken"]
    pub(crate) fn disown(&self) -> State {
        let old = self.state.load(Ordering::Acquire);
        debug_assert!(old & State::BUSY != 0, "Contract C1: a page loses its identity without being busy");
        self.object.store(0, Ordering::Relaxed);
        self.kind.store(FrameKind::Unowned as u8, Ordering::Relaxed);
        // The generation cannot change between the load and the swap, because the page is busy.
        let generation = (old >> State::GENERATION_SHIFT) + 1;
        State(self.state.swap(generation << State::GENERATION_SHIFT, Ordering::AcqRel))
    }

    /// The address of the object that the page belongs to, or 0.
    #[inline(always)]
    pub(crate) fn object(&self) -> u64 {
        self.object.load(Ordering::Acquire)
    }
    /// The page's index in its object.
    #[inline(always)]
    pub(crate) fn index(&self) -> u64 {
        self.index.load(Ordering::Acquire)
    }

    /// Changes the queue field from `from` to `to`. Returns false if it has another value.
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

    /// Adds a hold, which keeps the frame from being freed while its memory is copied. Returns false if the frame is
    /// about to be freed. The caller has found the page in an index. After this call it validates identity and
    /// generation, and drops the hold if they have changed.
    #[must_use]
    pub(crate) fn try_hold(&self) -> bool {
        let mut n = self.holds.load(Ordering::Relaxed);
        while n != 0 {
            match self.holds.compare_exchange_weak(n, n + 1, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => {
                    // Orders the hold before the caller's next reads. A thread that sets busy or clears dirty also
                    // fences, and then reads the holds.
                    fence_after_rmw();
                    return true;
                }
                Err(now) => n = now,
            }
        }
        false
    }
    /// Drops one hold, or the hold of the identity. Returns true if it was the last: the caller then frees the frame.
    #[must_use = "the last holder frees the frame"]
    pub(crate) fn unhold(&self) -> bool {
        self.holds.fetch_sub(1, Ordering::AcqRel) == 1
    }
    /// The number of holds.
    pub(crate) fn holds(&self) -> u32 {
        self.holds.load(Ordering::Acquire)
    }

    /// Records that the page was copied for a space that no longer maps it; see [`crate::cow::last_sharer`]. If the
    /// frame is another page by now, the first copy of that page searches once without need for a backing that maps it.
    #[inline]
    pub(crate) fn note_copy(&self) -> Copied {
        match self.copied.load(Ordering::Acquire) {
            0 if self.copied.compare_exchange(0, COPIED, Ordering::AcqRel, Ordering::Acquire).is_ok() => Copied::First,
            WATCHED => Copied::Watched(self.words[WATCH].load(Ordering::Acquire)),
            _ => Copied::Again,
        }
    }
    /// The value that [`Page::note_copy`] would return now. Records nothing.
    #[inline]
    pub(crate) fn copied(&self) -> Copied {
        match self.copied.load(Ordering::Acquire) {
            0 => Copied::First,
            WATCHED => Copied::Watched(self.words[WATCH].load(Ordering::Acquire)),
            _ => Copied::Again,
        }
    }
    /// Records that the page may have been copied while it had another descriptor.
    ///
    /// # Requires
    /// The page is busy.
    pub(crate) fn suspect(&self) {
        self.copied.store(COPIED, Ordering::Relaxed);
    }
    /// Sets the page's watch: the number of a backing that still maps it. The caller holds the page
    /// ([`Page::try_hold`]), which is a page of an object.
    pub(crate) fn watch(&self, watch: u64) {
        self.words[WATCH].store(watch, Ordering::Release);
        self.copied.store(WATCHED, Ordering::Release);
    }

    /// What the frame is used for.
    pub fn kind(&self) -> FrameKind {
        FrameKind::from_u8(self.kind.load(Ordering::Acquire))
    }
    /// Sets the frame's use. Only the owner of the frame calls this.
    pub fn set_kind(&self, kind: FrameKind) {
        self.kind.store(kind as u8, Ordering::Release);
    }
    /// log2 of the number of frames in the block that begins with this frame.
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
    /// The group to which the frame belongs while it is free: 0 or 1, defined by the frame allocator.
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
    /// Sets the next link. Only the owner of the list calls this.
    #[inline(always)]
    pub fn set_next(&self, pfn: Option<Pfn>) {
        self.next.store(pack(pfn), Ordering::Relaxed);
    }
    /// The previous frame on the list that this frame is on.
    #[inline(always)]
    pub(crate) fn prev(&self) -> Option<Pfn> {
        link(&self.prev)
    }
    /// Sets the previous link. Only the owner of the list calls this.
    #[inline(always)]
    pub(crate) fn set_prev(&self, pfn: Option<Pfn>) {
        self.prev.store(pack(pfn), Ordering::Relaxed);
    }

    /// The index word, as a fourth word for the user of a frame that is not a page of an object.
    #[inline(always)]
    pub fn spare(&self) -> &AtomicU64 {
        &self.index
    }
    /// Three words for the user of the frame, which its kind names.
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
    /// The swap slot that has a copy of the page, or `None`. It is `None` while the page is being written. The caller
    /// holds the page busy.
    pub(crate) fn swap_slot(&self) -> Option<u64> {
        self.words()[0].load(Ordering::Relaxed).checked_sub(1)
    }
    pub(crate) fn set_swap_slot(&self, slot: Option<u64>) {
        self.words()[0].store(slot.map_or(0, |s| s + 1), Ordering::Relaxed);
    }
    /// Removes the swap slot from the page, and returns it.
    pub(crate) fn take_swap_slot(&self) -> Option<u64> {
        let slot = self.swap_slot();
        if slot.is_some() {
            self.set_swap_slot(None);
        }
        slot
    }
}

/// The bits of a page's third word that count failed writes. The other bits are the number of the pageout pass that
/// last spared the page.
const FAILED: u64 = 0xffff_ffff;

impl Page {
    /// The number of failed writes of the page since the last successful one, as the pageout daemon counts them.
    pub(crate) fn failed_writes(&self) -> u64 {
        self.words()[2].load(Ordering::Acquire) & FAILED
    }
    /// The number of the pass that last spared the page because programs use it all the time.
    pub(crate) fn spared(&self) -> Option<u32> {
        let pass = (self.words()[2].load(Ordering::Relaxed) >> 32) as u32;
        (pass != 0).then_some(pass)
    }
    /// Records that pass number `pass` spares the page. Only pageout calls this, one pass at a time. A complete write
    /// of the page clears this record.
    pub(crate) fn shield(&self, pass: u32) {
        let spared = |word| Some(word & FAILED | u64::from(pass) << 32);
        let _same = self.words()[2].fetch_update(Ordering::Relaxed, Ordering::Relaxed, spared);
    }
    pub(crate) fn set_failed_writes(&self, value: u64) {
        self.words()[2].store(value, Ordering::Relaxed);
    }
}
