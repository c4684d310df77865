//! The page index of an object: a radix tree that is read without locks and filled by compare-and-swap.
//!
//! # Shape
//! A key is a page number in the object. A node has 64 slots and a bitmap of the occupied slots. The slots of a *leaf*
//! node hold [`Slot`]s, and the slots of other nodes hold child nodes. The root word holds either a node, or the
//! content of key 0 itself. So an object of one page has no node. All words are tagged, so the meaning of a word never
//! depends on its place.
//!
//! # Permitted changes
//! - A slot leaves `Empty` and returns to it only through `Reserved`. A CPU sets `Reserved` by compare-and-swap, and
//!   then owns the slot. Only the owner changes the slot's occupancy bit (mutants [`Mutant::BitAfterPublish`] and
//!   [`Mutant::BitAfterEmpty`]). So the bit and the slot agree whenever the slot has no owner. Owners are pinned and
//!   finish soon. Other CPUs that want to fill the slot spin, and readers return `Reserved`.
//! - A change from one occupied word to another (`Page` to `Swap`, a page to its copy) is one compare-and-swap.
//! - Some content, such as a swap slot, has no busy bit. A CPU holds it by reserving its index slot: occupied →
//!   `Reserved` → occupied again, or empty ([`Index::take`]).
//! - A child node is linked by the same steps: `Empty` → `Reserved` → node.
//! - To remove an empty node, a CPU first *closes* it: it changes each slot from `Empty` to `Closed`. If one slot is
//!   not empty, it undoes these changes. Readers treat `Closed` as `Empty`. A CPU that wants to fill a closed slot
//!   starts again from the root. Then the parent's slot changes from node to `Reserved` to `Empty`, and the epoch frees
//!   the node.
//! - The tree grows at the root only. One compare-and-swap installs a new root whose slot 0 is the old root.
//!
//! | | get | fill, replace, clear | link a node | prune |
//! |---|---|---|---|---|
//! | **get** | free | sees before or after | sees Empty or the node | sees Empty |
//! | **fill, replace, clear** | | CAS on the slot | CAS on the parent's slot | Closed: again from the root |
//! | **link a node** | | | CAS on the slot | Closed: again from the root |
//! | **prune** | | | | CAS on each slot: one wins, or neither |
//!
//! Each function of this module needs an epoch pin of the caller, because the epoch frees nodes.

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
/// The number of slots of a node.
pub(crate) const SLOTS: usize = 1 << BITS;
const MASK: u64 = SLOTS as u64 - 1;

/// One past the largest key, so that all pages of a file of 2^63 bytes have keys.
pub const KEYS: u64 = 1 << if BITS * 31 < 52 { BITS * 31 } else { 52 };

// The format of a word. If bit 0 is set, the word is a node: bits 1 to 5 are its height, the upper bits its address.
// Otherwise bits 1 to 3 are the kind of content, bits 4 to 7 its order (for large pages, always 0 now), and the rest is
// the payload.
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
/// The word of each slot of a node that is being removed, and of the root of a dismantled index.
const CLOSED: u64 = 6 << 1;

/// The content of an index at a key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Slot {
    /// No page and no mark.
    Empty,
    /// A CPU owns the slot while it fills or empties it.
    Reserved,
    /// A page, resident in this frame.
    Page(Pfn),
    /// A page, in this swap slot.
    Swap(u64),
    /// Zero marker: the key has no page and reads as zeroes. It hides pages of the objects behind this one in a shadow
    /// chain.
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
    /// The slot is occupied, with this content.
    Taken(Slot),
    /// There is no memory for a node.
    OutOfMemory,
    /// The index was dismantled, because its object is being torn down.
    Gone,
    /// The key is [`KEYS`] or larger, beyond the last page of any file.
    BeyondKeys,
}

/// Allocates and frees nodes. Each node stores a copy of this value, so that the epoch can free the node.
///
/// # Safety
/// `allocate` returns memory that is valid for an [`IndexNode<Self>`] and not used elsewhere.
pub unsafe trait Nodes: Copy + 'static {
    /// Allocates memory for a node, uninitialised.
    fn allocate(self) -> Result<NonNull<IndexNode<Self>>, OutOfMemory>;
    /// Frees the memory of a node at once.
    ///
    /// # Safety
    /// `node` came from `allocate`, and is not used any more.
    unsafe fn release(self, node: NonNull<IndexNode<Self>>);
    /// Calls `free` with the node's header once no reader can reach the node.
    ///
    /// # Safety
    /// The rules of [`quire_sync::epoch::Domain::retire`] hold.
    unsafe fn retire(self, node: *mut Retired, free: unsafe fn(*mut Retired));
}

/// One node of the tree: a cache line of header, then the slots.
#[repr(C, align(64))]
pub struct IndexNode<N: Nodes> {
    /// Must be the first field, because the epoch's free function casts the header to the node.
    retired: Retired,
    nodes: N,
    /// The bitmap of occupied slots. The owner of a slot changes the slot's bit.
    present: AtomicU64,
    /// In a leaf: the slots whose page may be newer than the pager's copy. The CPU that makes a page dirty sets the
    /// bit. The slot's owner clears it, or the CPU that writes the page back.
    dirty: AtomicU64,
    /// The height above the slots; 1 for a leaf. Fixed.
    height: u32,
    /// In a leaf: the time of a store into one of its pages. The field is on this cache line, because a fault that adds
    /// a page, or makes a page dirty, writes the line anyway.
    stored: AtomicU64,
    slots: NodeSlots,
}

#[cfg(test)]
quire_sync::assert_layout!(IndexNode<&'static crate::object::Objects<crate::testing::TestMachine>> {
    size: 576, align: 64,
    retired: 0, nodes: 16, present: 24, dirty: 32, height: 40, stored: 48, slots: 64,
});

/// A node's slots, aligned to a cache line. Eight leaf nodes cover the range of one page-table page, and the slots of
/// these eight nodes are one cache line of their parent. So CPUs that fill the ranges of different page-table pages do
/// not share a line of slots.
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
        // Each field is written by itself. An assignment of a whole node would build it on the stack and copy it.
        // SAFETY: the memory is new and fits a node, by the contract of `Nodes`. Each field is written once.
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

    /// Frees a node that no other CPU has ever been able to reach.
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

    /// Retires a node that was unlinked; the epoch frees it later.
    ///
    /// # Safety
    /// No new reader can reach the node, and it is retired once.
    unsafe fn retire(node: NonNull<Self>) {
        unsafe fn free<N: Nodes>(node: *mut Retired) {
            // SAFETY: the header is the first field of the node, and the epoch frees each node once.
            unsafe { IndexNode::discard(NonNull::new_unchecked(node.cast::<IndexNode<N>>())) }
        }
        // SAFETY: by this function's contract the node is unreachable for new readers.
        unsafe { node.as_ref().nodes.retire(node.as_ptr().cast(), free::<N>) }
    }

    fn slot(&self, key: u64) -> (&AtomicU64, u64) {
        record::read(&self.height);
        self.slot_at(key, self.height)
    }

    /// Returns the slot like [`slot`](Self::slot), but gets the height from the word that led to this node. So it does
    /// not read the node's header, whose cache line another CPU may have: each linking of a child writes it.
    fn slot_at(&self, key: u64, height: u32) -> (&AtomicU64, u64) {
        let i = (key >> (BITS * (height - 1))) & MASK;
        (&self.slots[i as usize], 1 << i)
    }
}

fn height(word: u64) -> u32 {
    ((word >> HEIGHT_SHIFT) & 31) as u32
}

/// Changes `word` from `from` to `to` in one atomic step. On failure returns the value that `word` has. (The mutant
/// `in_two` uses two steps.)
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

/// The node that the tree word `word` points to.
///
/// # Safety
/// `word` was read from an index of the same `N` while the caller was pinned, and the caller stays pinned for `'a`.
unsafe fn node<'a, N: Nodes>(word: u64) -> &'a IndexNode<N> {
    // SAFETY: by this function's contract.
    unsafe { &*((word & ADDRESS) as *const IndexNode<N>) }
}

/// Whether a tree whose root has height `height` covers `key`.
fn covers(height: u32, key: u64) -> bool {
    height * BITS >= 64 || key >> (height * BITS) == 0
}

/// The height of the smallest tree that covers `key`, at least 1.
fn height_for(key: u64) -> u32 {
    (64 - key.leading_zeros()).div_ceil(BITS).max(1)
}

/// The place of a key's slot in the tree.
enum SlotPlace<'a, N: Nodes> {
    /// The root word, which at present is the slot of key 0, with its value.
    Root(u64),
    /// A slot of this leaf.
    Leaf(&'a IndexNode<N>),
    /// No leaf covers the key.
    Absent,
}

/// The page index of an object: a radix tree that readers walk without locks. The module's comment has the rules.
pub struct Index<N: Nodes> {
    root: AtomicU64,
    _nodes: PhantomData<fn(N) -> N>,
}

impl<N: Nodes> Index<N> {
    /// An empty index that belongs to no object, for tests and measurements.
    ///
    /// # Safety
    /// `N` retires the index's nodes to one epoch domain. Each caller of the index's functions passes a pin of this
    /// domain.
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

    /// Returns the slot like [`get`](Self::get), and the leaf's time of the last noted store. The time is `None` if the
    /// root word is the slot, or no leaf covers the key.
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
                // No child is here: the slot is empty, or its child is still being linked or is being removed, and has
                // no content.
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

    /// Fills the empty slot at `key`. Fails with [`FillError::Taken`] if the slot is occupied.
    #[inline(always)]
    pub fn fill(&self, key: u64, value: Slot, nodes: N, pin: &Pinned<'_>) -> Result<(), FillError> {
        debug_assert!(!matches!(value, Slot::Empty | Slot::Reserved));
        // A key of [`KEYS`] or more has no leaf, so `fill_growing` refuses it.
        match self.place(key, pin) {
            SlotPlace::Leaf(leaf) if Self::fill_slot(leaf, key, encode(value)).is_ok() => Ok(()),
            _ => self.fill_growing(key, encode(value), nodes, pin),
        }
    }

    /// Fills the slot of `key` in its leaf. If the slot is not empty, returns its word as the error.
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

    /// Fills consecutive slots from `key` on with the pages `frames`, up to the first slot that is not empty. Returns
    /// the number of slots filled. Slots of one leaf are filled together.
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

    /// Fills consecutive slots like [`fill_slot`](Self::fill_slot), up to the first slot that is not empty. Returns the
    /// number of slots filled.
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

    /// The slow path of [`fill`](Self::fill): no leaf covers the key yet, or the slot is not empty.
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

    /// Finds the place of `key`, and grows the tree as needed. Returns `Absent` only if the tree changed during the
    /// call; the caller then tries again.
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
                        // SAFETY: no other CPU has been able to reach the child.
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

    /// Installs a new root above `old`. It is one level higher than `old`, or high enough for `key` if the tree has no
    /// node yet.
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
            // The root word has no dirty bit, so the page that it held is treated as dirty.
            n.dirty.store((old & NODE == 0) as u64, Ordering::Relaxed);
        }
        if old == RESERVED || exchange(&self.root, old, IndexNode::word(root, h), Mutant::GrowNotAtomic).is_err() {
            // SAFETY: no other CPU has been able to reach the new root.
            unsafe { IndexNode::discard(root) };
            relax();
        }
        Ok(())
    }

    /// Replaces the content `from` by `to` in one step. Neither may be empty. Returns false if the slot holds something
    /// else.
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
                // The tree grew during this call, so the root word is a node now.
                Err(word) if word & NODE != 0 => continue,
                Err(_) => return false,
            }
        }
    }

    /// Empties the slot at `key`, which holds `from`. Returns false if it holds something else.
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

    /// Sets the dirty bit of `key` in its leaf. The caller holds the slot's content (by its busy bit or a hold), so the
    /// content stays in the slot.
    pub(crate) fn tag_dirty(&self, key: u64, pin: &Pinned<'_>) {
        if let SlotPlace::Leaf(leaf) = self.place(key, pin) {
            let bit = leaf.slot(key).1;
            if leaf.dirty.load(Ordering::Relaxed) & bit == 0 {
                leaf.dirty.fetch_or(bit, Ordering::AcqRel);
            }
        }
    }

    /// The leaf's time of a store into one of its pages. `None` if no leaf covers `key`.
    pub(crate) fn stored<'a>(&self, key: u64, pin: &'a Pinned<'_>) -> Option<&'a AtomicU64> {
        match self.place(key, pin) {
            SlotPlace::Leaf(leaf) => Some(&leaf.stored),
            SlotPlace::Root(_) | SlotPlace::Absent => None,
        }
    }

    /// Clears the dirty bit of `key` in its leaf. The page is LAUNDERING, and its write starts next.
    pub(crate) fn untag_dirty(&self, key: u64, pin: &Pinned<'_>) {
        if let SlotPlace::Leaf(leaf) = self.place(key, pin) {
            leaf.dirty.fetch_and(!leaf.slot(key).1, Ordering::AcqRel);
        }
    }
}
