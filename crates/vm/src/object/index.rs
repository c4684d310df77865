//! The page index of an object: a radix tree read without locks and filled by compare-and-swap.
//!
//! # Shape
//! A key is a page index. A node has 64 slots and a bitmap of the occupied ones. The slots of a *leaf* node hold
//! [`Slot`]s, those of others hold nodes. The root word is either a node, or itself the slot of key 0, so an object of
//! one page has no node. All words are tagged, so the meaning of a word never depends on its place.
//!
//! # Permitted changes
//! - A slot leaves `Empty` and returns to it only through `Reserved`, which a CPU sets by compare-and-swap. That CPU
//!   owns the slot, and only the owner changes its occupancy bit (mutants [`Mutant::BitAfterPublish`] and
//!   [`Mutant::BitAfterEmpty`]). So a bit and its slot agree whenever the slot has no owner. Owners are pinned and
//!   finish soon. Other CPUs that want to fill the slot spin; readers return `Reserved`.
//! - From one occupied word to another (`Page` to `Swap`, a page for its copy) is one compare-and-swap.
//! - Content without a busy bit, such as a swap slot, is held by its index slot: occupied → `Reserved` → occupied
//!   again, or empty ([`Index::take`]).
//! - A child is linked the same way: `Empty`, `Reserved`, node.
//! - An empty node is taken out by *closing*: each of its slots goes `Empty` → `Closed`, or the attempt is undone.
//!   Readers take `Closed` for `Empty`; a CPU that wants to fill starts again from the root. Then the parent's slot
//!   goes node → `Reserved` → `Empty`, and the epoch frees the node.
//! - The tree grows at the root only: a new root whose slot 0 is the old root, by one compare-and-swap.
//!
//! | | get | fill, replace, clear | link a node | prune |
//! |---|---|---|---|---|
//! | **get** | free | sees before or after | sees Empty or the node | sees Empty |
//! | **fill, replace, clear** | | CAS on the slot | CAS on the parent's slot | Closed: again from the root |
//! | **link a node** | | | CAS on the slot | Closed: again from the root |
//! | **prune** | | | | CAS on each slot: one wins, or neither |
//!
//! Every function here needs an epoch pin of the caller, because the epoch frees nodes.

mod check;
mod prune;
mod range;
mod take;
#[cfg(test)]
mod tests;

pub(crate) use range::NodeCount;
pub use range::{Cursor, Visit};
pub use take::TakenSlot;

use crate::error::OutOfMemory;
use crate::mutant::{Mutant, mutant};
use crate::types::Pfn;
use core::marker::PhantomData;
use core::ops::Deref;
use core::ptr::NonNull;
use quire_sync::atomic::{AtomicU64, Ordering};
use quire_sync::epoch::{Pinned, Retired};
use quire_sync::hooks::relax;
use quire_sync::record;

/// log2 of a node's slots. 64 slots make the bitmaps one word each.
#[cfg(not(any(loom, shuttle)))]
const BITS: u32 = 6;
#[cfg(any(loom, shuttle))]
const BITS: u32 = 1;
/// Slots of a node.
pub(crate) const SLOTS: usize = 1 << BITS;
const MASK: u64 = SLOTS as u64 - 1;

/// One past the largest key: page indexes of files of 2^63 bytes fit.
pub const KEYS: u64 = 1 << if BITS * 31 < 52 { BITS * 31 } else { 52 };

// Words. Bit 0: a node (its address in the upper bits, its height in bits 1 to 5). Else bits 1 to 3 are the kind of
// content, bits 4 to 7 are its order (large pages; always 0 now), and the rest is the payload.
const NODE: u64 = 1;
const HEIGHT_SHIFT: u32 = 1;
const ADDRESS: u64 = !63;
const TAG: u64 = 0b1110;
const PAYLOAD_SHIFT: u32 = 8;
const EMPTY: u64 = 0;
const RESERVED: u64 = 1 << 1;
const PAGE: u64 = 2 << 1;
const SWAP: u64 = 3 << 1;
const ZERO_MARKER: u64 = 4 << 1;
/// In a node that is being taken out, and in the root of a dismantled index.
const CLOSED: u64 = 6 << 1;

/// The content of an index at a key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Slot {
    /// Nothing.
    Empty,
    /// A CPU is about to fill or to empty the slot.
    Reserved,
    /// A page, resident in this frame.
    Page(Pfn),
    /// A page, in this swap slot.
    Swap(u64),
    /// Zero marker: no page, and pages of layers behind are hidden at this key.
    ZeroMarker,
}

#[inline(always)]
fn encode(slot: Slot) -> u64 {
    match slot {
        Slot::Empty => EMPTY,
        Slot::Reserved => RESERVED,
        Slot::Page(pfn) => PAGE | pfn.0 << PAYLOAD_SHIFT,
        Slot::Swap(at) => SWAP | at << PAYLOAD_SHIFT,
        Slot::ZeroMarker => ZERO_MARKER,
    }
}

#[inline(always)]
fn decode(word: u64) -> Slot {
    match word & TAG {
        PAGE => Slot::Page(Pfn(word >> PAYLOAD_SHIFT)),
        RESERVED => Slot::Reserved,
        SWAP => Slot::Swap(word >> PAYLOAD_SHIFT),
        ZERO_MARKER => Slot::ZeroMarker,
        _ => Slot::Empty,
    }
}

/// Why a slot was not filled.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FillError {
    /// The slot holds something already.
    Taken(Slot),
    /// No memory for a node.
    OutOfMemory,
    /// The index was dismantled: its object is gone.
    Gone,
    /// The key is larger than that of any file's page.
    BeyondKeys,
}

/// Where nodes come from and go to. A copy stands in each node, so that the epoch can free it.
///
/// # Safety
/// `allocate` gives memory that is valid for a [`IndexNode<Self>`] and not used elsewhere.
pub unsafe trait Nodes: Copy + 'static {
    /// Memory for a node, uninitialised.
    fn allocate(self) -> Result<NonNull<IndexNode<Self>>, OutOfMemory>;
    /// Takes memory back at once.
    ///
    /// # Safety
    /// `node` came from `allocate`, and is not used any more.
    unsafe fn release(self, node: NonNull<IndexNode<Self>>);
    /// Calls `free` with the node's header once no reader can hold it.
    ///
    /// # Safety
    /// As [`quire_sync::epoch::Domain::retire`].
    unsafe fn retire(self, node: *mut Retired, free: unsafe fn(*mut Retired));
}

/// One node: a header line, then the slots.
#[repr(C, align(64))]
pub struct IndexNode<N: Nodes> {
    /// Must be first: the epoch hands it back.
    retired: Retired,
    nodes: N,
    /// Occupied slots. Changed by the slots' owners.
    present: AtomicU64,
    /// Leaves: slots whose page may be newer than the pager's copy. Set by the CPU that makes a page dirty, cleared by
    /// the cleaner or by a slot's owner.
    dirty: AtomicU64,
    /// 1: a leaf. Fixed.
    height: u32,
    /// Leaves: a time of a store into a page of theirs. On this line, because a fault that makes a page, or that makes
    /// it dirty, writes the line anyway.
    stored: AtomicU64,
    slots: NodeSlots,
}

#[cfg(test)]
quire_sync::assert_layout!(IndexNode<&'static crate::object::Objects<crate::testing::TestMachine>> {
    size: 576, align: 64,
    retired: 0, nodes: 16, present: 24, dirty: 32, height: 40, stored: 48, slots: 64,
});

/// A node's slots, aligned to a cache line. Eight leaf nodes cover the range of one page-table page, and their slots
/// are one line of their parent. So CPUs that fill different regions do not share a line of slots.
#[repr(align(64))]
struct NodeSlots([AtomicU64; SLOTS]);

impl Deref for NodeSlots {
    type Target = [AtomicU64; SLOTS];
    #[inline(always)]
    fn deref(&self) -> &[AtomicU64; SLOTS] {
        &self.0
    }
}

impl<N: Nodes> IndexNode<N> {
    fn build(nodes: N, height: u32) -> Result<NonNull<Self>, OutOfMemory> {
        let node = nodes.allocate()?;
        record::wrote(node.as_ptr());
        let at = node.as_ptr();
        // Field by field: a whole node would be made on the stack and copied.
        // SAFETY: fresh memory for a node, by the contract of `Nodes`; each field is written once.
        unsafe {
            (&raw mut (*at).retired).write(Retired::new());
            (&raw mut (*at).nodes).write(nodes);
            (&raw mut (*at).present).write(AtomicU64::new(0));
            (&raw mut (*at).dirty).write(AtomicU64::new(0));
            (&raw mut (*at).height).write(height);
            (&raw mut (*at).stored).write(AtomicU64::new(0));
            for i in 0..SLOTS {
                (&raw mut (*at).slots.0[i]).write(AtomicU64::new(EMPTY));
            }
        }
        Ok(node)
    }

    fn word(node: NonNull<Self>, height: u32) -> u64 {
        node.as_ptr() as u64 | (height as u64) << HEIGHT_SHIFT | NODE
    }

    /// Frees a node that was never reachable.
    ///
    /// # Safety
    /// The node came from [`IndexNode::build`], the caller alone can reach it, and it is discarded once.
    unsafe fn discard(node: NonNull<Self>) {
        // SAFETY: the caller alone can reach the node, by this function's contract, and `nodes` allocated it.
        unsafe {
            let nodes = node.as_ref().nodes;
            node.drop_in_place();
            nodes.release(node);
        }
    }

    /// Gives a node that was unlinked to the epoch.
    ///
    /// # Safety
    /// No new reader can reach the node, and it is retired once.
    unsafe fn retire(node: NonNull<Self>) {
        unsafe fn free<N: Nodes>(node: *mut Retired) {
            // SAFETY: the header is the node's first field, and the epoch gives each node back once.
            unsafe { IndexNode::discard(NonNull::new_unchecked(node.cast::<IndexNode<N>>())) }
        }
        // SAFETY: by this function's contract the node is unreachable for new readers.
        unsafe { node.as_ref().nodes.retire(node.as_ptr().cast(), free::<N>) }
    }

    fn slot(&self, key: u64) -> (&AtomicU64, u64) {
        record::read(&self.height);
        self.slot_at(key, self.height)
    }

    /// As [`slot`](Self::slot), with the height from the word that led here. So the node's header, which each linking
    /// below an inner node writes, is not read.
    fn slot_at(&self, key: u64, height: u32) -> (&AtomicU64, u64) {
        let i = (key >> (BITS * (height - 1))) & MASK;
        (&self.slots[i as usize], 1 << i)
    }
}

fn height(word: u64) -> u32 {
    ((word >> HEIGHT_SHIFT) & 31) as u32
}

/// Changes `word` from `from` to `to` in one step, or returns its value. (The mutant `in_two`: in two.)
#[inline(always)]
#[track_caller]
fn exchange(word: &AtomicU64, from: u64, to: u64, in_two: Mutant) -> Result<u64, u64> {
    if mutant(in_two) {
        let there = word.load(Ordering::Acquire);
        if there != from {
            return Err(there);
        }
        word.store(to, Ordering::Release);
        return Ok(there);
    }
    word.compare_exchange(from, to, Ordering::AcqRel, Ordering::Acquire)
}

/// The node that `word` points to.
///
/// # Safety
/// `word` was read from an index of the same `N` while the caller was pinned, and the caller stays pinned for `'a`.
unsafe fn node<'a, N: Nodes>(word: u64) -> &'a IndexNode<N> {
    // SAFETY: by this function's contract.
    unsafe { &*((word & ADDRESS) as *const IndexNode<N>) }
}

/// Whether `key` lies in a tree whose root has this height.
fn covers(height: u32, key: u64) -> bool {
    height * BITS >= 64 || key >> (height * BITS) == 0
}

/// The height of the smallest tree that has `key`, at least 1.
fn height_for(key: u64) -> u32 {
    (64 - key.leading_zeros()).div_ceil(BITS).max(1)
}

/// The place of a key's slot.
enum SlotPlace<'a, N: Nodes> {
    /// The root word, which now is the slot of key 0.
    Root(u64),
    /// In a leaf.
    Leaf(&'a IndexNode<N>),
    /// No leaf covers the key.
    Absent,
}

/// The page index of an object; see the module.
pub struct Index<N: Nodes> {
    root: AtomicU64,
    _nodes: PhantomData<fn(N) -> N>,
}

impl<N: Nodes> Index<N> {
    /// An empty index of no object, for tests and measurements.
    ///
    /// # Safety
    /// Every pin that is passed with it is of the domain that its nodes are retired to.
    pub unsafe fn detached() -> Self {
        Index::new()
    }

    /// An empty index.
    pub(crate) fn new() -> Self {
        Index { root: AtomicU64::new(EMPTY), _nodes: PhantomData }
    }

    /// The slot at `key`. Takes no lock and never waits.
    #[inline]
    pub fn get(&self, key: u64, pin: &Pinned<'_>) -> Slot {
        self.get_timed(key, pin).0
    }

    /// As [`get`](Self::get), with the time of stores of the leaf, unless the root is the slot. `None` also where no
    /// leaf covers the key.
    #[inline(always)]
    pub(crate) fn get_timed<'a>(&self, key: u64, _pin: &'a Pinned<'_>) -> (Slot, Option<&'a AtomicU64>) {
        let mut word = self.root.load(Ordering::Acquire);
        if word & NODE == 0 {
            return (if key == 0 { decode(word) } else { Slot::Empty }, None);
        }
        let mut h = height(word);
        if !covers(h, key) {
            return (Slot::Empty, None);
        }
        loop {
            h -= 1;
            let i = (key >> (BITS * h)) & MASK;
            // SAFETY: the word is a node of this index, and the caller is pinned for 'a.
            let node = unsafe { node::<N>(word) };
            word = node.slots[i as usize].load(Ordering::Acquire);
            if h == 0 {
                return (decode(word), Some(&node.stored));
            }
            if word & NODE == 0 {
                // Empty, being linked (not filled yet) or taken out (already empty).
                return (Slot::Empty, None);
            }
        }
    }

    /// Whether all slots are empty now.
    pub fn is_empty(&self, pin: &Pinned<'_>) -> bool {
        self.first(0, KEYS, pin).is_none()
    }

    #[inline(always)]
    fn place<'a>(&self, key: u64, _pin: &'a Pinned<'_>) -> SlotPlace<'a, N> {
        let mut word = self.root.load(Ordering::Acquire);
        if word & NODE == 0 {
            return if key == 0 { SlotPlace::Root(word) } else { SlotPlace::Absent };
        }
        if !covers(height(word), key) {
            return SlotPlace::Absent;
        }
        loop {
            // SAFETY: the word is a node of this index, and the caller is pinned for 'a.
            let n = unsafe { node::<N>(word) };
            let h = height(word);
            if h == 1 {
                return SlotPlace::Leaf(n);
            }
            word = n.slot_at(key, h).0.load(Ordering::Acquire);
            if word & NODE == 0 {
                return SlotPlace::Absent;
            }
        }
    }

    /// Fills the empty slot at `key`.
    #[inline(always)]
    pub fn fill(&self, key: u64, value: Slot, nodes: N, pin: &Pinned<'_>) -> Result<(), FillError> {
        debug_assert!(!matches!(value, Slot::Empty | Slot::Reserved));
        // No leaf covers a key beyond the last.
        match self.place(key, pin) {
            SlotPlace::Leaf(leaf) if Self::fill_slot(leaf, key, encode(value)).is_ok() => Ok(()),
            _ => self.fill_growing(key, encode(value), nodes, pin),
        }
    }

    /// Fills the slot of `key` in its leaf, or returns its word.
    #[inline(always)]
    fn fill_slot(leaf: &IndexNode<N>, key: u64, value: u64) -> Result<(), u64> {
        let (slot, bit) = leaf.slot_at(key, 1);
        exchange(slot, EMPTY, RESERVED, Mutant::FillNotAtomic)?;
        if mutant(Mutant::BitAfterPublish) {
            slot.store(value, Ordering::Release);
            leaf.present.fetch_or(bit, Ordering::AcqRel);
            return Ok(());
        }
        leaf.present.fetch_or(bit, Ordering::AcqRel);
        slot.store(value, Ordering::Release);
        Ok(())
    }

    /// Fills the slots from `key` on with the pages `frames`, in order, up to the first that is not empty, and returns
    /// how many. Slots of one leaf are filled together.
    pub(crate) fn fill_run(&self, key: u64, frames: &[Pfn], nodes: N, pin: &Pinned<'_>) -> usize {
        let mut done = 0;
        while let Some(first) = frames.get(done) {
            let at = key + done as u64;
            match self.place(at, pin) {
                SlotPlace::Leaf(leaf) => {
                    let here = frames.len().min(done + SLOTS - (at & MASK) as usize);
                    let filled = Self::fill_slots(leaf, at, &frames[done..here]);
                    done += filled;
                    if done < here {
                        break;
                    }
                }
                _ if self.fill(at, Slot::Page(*first), nodes, pin).is_ok() => done += 1,
                _ => break,
            }
        }
        done
    }

    /// As [`fill_slot`](Self::fill_slot), for consecutive slots up to the first that is not empty; returns how many it
    /// filled.
    fn fill_slots(leaf: &IndexNode<N>, key: u64, frames: &[Pfn]) -> usize {
        let slots = || (key..).map(|k| leaf.slot_at(k, 1)).zip(frames);
        let mut bits = 0;
        for ((slot, bit), _) in slots() {
            if exchange(slot, EMPTY, RESERVED, Mutant::FillNotAtomic).is_err() {
                break;
            }
            bits |= bit;
        }
        let publish = || {
            let reserved = slots().take(bits.count_ones() as usize);
            reserved.for_each(|((slot, _), pfn)| slot.store(encode(Slot::Page(*pfn)), Ordering::Release));
        };
        if mutant(Mutant::BitAfterPublish) {
            publish();
            leaf.present.fetch_or(bits, Ordering::AcqRel);
        } else {
            leaf.present.fetch_or(bits, Ordering::AcqRel);
            publish();
        }
        bits.count_ones() as usize
    }

    /// As [`fill`](Self::fill), where there is no leaf yet, or the slot is not empty.
    #[inline(never)]
    fn fill_growing(&self, key: u64, value: u64, nodes: N, pin: &Pinned<'_>) -> Result<(), FillError> {
        if key >= KEYS {
            return Err(FillError::BeyondKeys);
        }
        loop {
            let leaf = match self.leaf(key, nodes, pin)? {
                SlotPlace::Leaf(leaf) => leaf,
                SlotPlace::Root(EMPTY) => {
                    if exchange(&self.root, EMPTY, value, Mutant::FillNotAtomic).is_ok() {
                        return Ok(());
                    }
                    continue;
                }
                SlotPlace::Root(RESERVED) => {
                    relax();
                    continue;
                }
                SlotPlace::Root(word) => return Err(FillError::Taken(decode(word))),
                SlotPlace::Absent => continue,
            };
            match Self::fill_slot(leaf, key, value) {
                Ok(()) => return Ok(()),
                Err(RESERVED | CLOSED) => relax(),
                Err(word) => return Err(FillError::Taken(decode(word))),
            }
        }
    }

    /// Finds the place of `key`, growing the tree as needed. `Absent` only where the tree changed meanwhile.
    fn leaf<'a>(&self, key: u64, nodes: N, pin: &'a Pinned<'_>) -> Result<SlotPlace<'a, N>, FillError> {
        let _pinned = pin;
        let mut word = self.root.load(Ordering::Acquire);
        if word == CLOSED {
            return Err(FillError::Gone);
        }
        if word & NODE == 0 && key == 0 {
            return Ok(SlotPlace::Root(word));
        }
        if word & NODE == 0 || !covers(height(word), key) {
            self.grow(word, key, nodes)?;
            return Ok(SlotPlace::Absent);
        }
        loop {
            // SAFETY: the word is a node of this index, and the caller is pinned for 'a.
            let n = unsafe { node::<N>(word) };
            let h = height(word);
            if h == 1 {
                return Ok(SlotPlace::Leaf(n));
            }
            let (slot, bit) = n.slot_at(key, h);
            word = slot.load(Ordering::Acquire);
            if word == EMPTY {
                let child = IndexNode::build(nodes, h - 1).map_err(|_| FillError::OutOfMemory)?;
                match slot.compare_exchange(EMPTY, RESERVED, Ordering::AcqRel, Ordering::Acquire) {
                    Ok(_) => {
                        n.present.fetch_or(bit, Ordering::AcqRel);
                        word = IndexNode::word(child, h - 1);
                        slot.store(word, Ordering::Release);
                        continue;
                    }
                    Err(now) => {
                        // SAFETY: the child was never reachable.
                        unsafe { IndexNode::discard(child) };
                        word = now;
                    }
                }
            }
            if word & NODE == 0 {
                relax();
                return Ok(SlotPlace::Absent);
            }
        }
    }

    /// Puts a root above `old`: one level higher, or high enough for `key` where there is no node yet.
    fn grow(&self, old: u64, key: u64, nodes: N) -> Result<(), FillError> {
        let h = if old & NODE != 0 {
            height(old) + 1
        } else if old == EMPTY {
            height_for(key)
        } else {
            1
        };
        let root = IndexNode::build(nodes, h).map_err(|_| FillError::OutOfMemory)?;
        if old != EMPTY {
            // SAFETY: `build` has just made the root, and no word leads to it before the exchange below.
            let n = unsafe { root.as_ref() };
            n.slots[0].store(old, Ordering::Relaxed);
            n.present.store(1, Ordering::Relaxed);
            // The root word has no tag, so a page that was in it may be dirty.
            n.dirty.store((old & NODE == 0) as u64, Ordering::Relaxed);
        }
        if old == RESERVED || exchange(&self.root, old, IndexNode::word(root, h), Mutant::GrowNotAtomic).is_err() {
            // SAFETY: the root was never reachable.
            unsafe { IndexNode::discard(root) };
            relax();
        }
        Ok(())
    }

    /// Replaces `from` by `to`, both occupied, in one step; false where the slot holds something else.
    pub fn replace(&self, key: u64, from: Slot, to: Slot, pin: &Pinned<'_>) -> bool {
        debug_assert!(!matches!(from, Slot::Empty | Slot::Reserved) && !matches!(to, Slot::Empty | Slot::Reserved));
        loop {
            let slot = match self.place(key, pin) {
                SlotPlace::Root(_) => &self.root,
                SlotPlace::Leaf(leaf) => leaf.slot(key).0,
                SlotPlace::Absent => return false,
            };
            match exchange(slot, encode(from), encode(to), Mutant::ReplaceNotAtomic) {
                Ok(_) => return true,
                // The tree grew above the root's slot meanwhile.
                Err(word) if word & NODE != 0 => continue,
                Err(_) => return false,
            }
        }
    }

    /// Empties the slot at `key`, which holds `from`; false where it holds something else.
    pub fn clear(&self, key: u64, from: Slot, pin: &Pinned<'_>) -> bool {
        debug_assert!(!matches!(from, Slot::Empty | Slot::Reserved));
        let from = encode(from);
        loop {
            match self.place(key, pin) {
                SlotPlace::Absent => return false,
                SlotPlace::Root(_) => {
                    match self.root.compare_exchange(from, EMPTY, Ordering::AcqRel, Ordering::Acquire) {
                        Ok(_) => return true,
                        Err(word) if word & NODE != 0 => continue,
                        Err(_) => return false,
                    }
                }
                SlotPlace::Leaf(leaf) => {
                    let (slot, bit) = leaf.slot(key);
                    if slot.compare_exchange(from, RESERVED, Ordering::AcqRel, Ordering::Acquire).is_err() {
                        return false;
                    }
                    if mutant(Mutant::BitAfterEmpty) {
                        slot.store(EMPTY, Ordering::Release);
                        leaf.present.fetch_and(!bit, Ordering::AcqRel);
                        return true;
                    }
                    if leaf.dirty.load(Ordering::Relaxed) & bit != 0 {
                        leaf.dirty.fetch_and(!bit, Ordering::AcqRel);
                    }
                    leaf.present.fetch_and(!bit, Ordering::AcqRel);
                    slot.store(EMPTY, Ordering::Release);
                    return true;
                }
            }
        }
    }

    /// Tags `key` as dirty. The caller holds the slot's content, so that it stays.
    pub(crate) fn tag_dirty(&self, key: u64, pin: &Pinned<'_>) {
        if let SlotPlace::Leaf(leaf) = self.place(key, pin) {
            let bit = leaf.slot(key).1;
            if leaf.dirty.load(Ordering::Relaxed) & bit == 0 {
                leaf.dirty.fetch_or(bit, Ordering::AcqRel);
            }
        }
    }

    /// The time of a store into a page of the leaf that covers `key`, if there is a leaf.
    pub(crate) fn stored<'a>(&self, key: u64, pin: &'a Pinned<'_>) -> Option<&'a AtomicU64> {
        match self.place(key, pin) {
            SlotPlace::Leaf(leaf) => Some(&leaf.stored),
            SlotPlace::Root(_) | SlotPlace::Absent => None,
        }
    }

    /// Takes the dirty tag of `key` away, before its page is cleaned.
    pub(crate) fn untag_dirty(&self, key: u64, pin: &Pinned<'_>) {
        if let SlotPlace::Leaf(leaf) = self.place(key, pin) {
            leaf.dirty.fetch_and(!leaf.slot(key).1, Ordering::AcqRel);
        }
    }
}
