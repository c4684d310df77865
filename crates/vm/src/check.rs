//! The consistency checker. If the [`Level`] demands it, every invariant is computed again from the basic data.
//!
//! Each structure has a `check` of its own beside its code. A check uses no cached value of the structure: it computes
//! sums, largest gaps, largest ends, bitmaps, counts and links again, and compares. This module has the common parts:
//! when checks run, and which errors they return.
//!
//! # When checks run
//! The level is one word ([`Physical::check_level`](crate::phys::Physical::check_level)). With [`Level::AtRelease`] a
//! structure is checked when its lock is released, but only after a number of updates ([`Due`]). That number is the
//! number of items that the last check visited. So checks cost each update a constant on average, however large the
//! structure is (the idea of FreeBSD's `vm_map` checker, D19826). With [`Level::Never`] a release costs one load of a
//! word that no CPU writes.
//!
//! # What a check may assume
//! The caller of a check keeps the structure's writers out. Other threads continue: faults install leaves, and pages
//! are added to and removed from indexes. So a check returns *broken* only for a state that no concurrent step can
//! explain. Rules that hold only while no other CPU changes memory are checked if the caller passes `quiet`.

use crate::types::{Pfn, Queue};
use core::fmt;

/// When structures are checked.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[repr(u8)]
pub enum Level {
    /// Never. The default of release builds.
    Never = 0,
    /// When a lock is released, once the number of updates equals the number of items that the last check visited. The
    /// default of debug builds.
    AtRelease = 1,
    /// Whenever a lock is released. Slow.
    Always = 2,
}

impl Level {
    /// The default level. Debug builds differ from release builds only in this default.
    pub const DEFAULT: Level =
        if cfg!(all(debug_assertions, not(any(loom, shuttle)))) { Level::AtRelease } else { Level::Never };

    /// The level with this number (0, 1, 2: the order of the variants).
    pub fn from_number(n: u8) -> Option<Level> {
        match n {
            0 => Some(Level::Never),
            1 => Some(Level::AtRelease),
            2 => Some(Level::Always),
            _ => None,
        }
    }
}

/// An invariant of a map's tree that does not hold, and the address at which the check found that. `map/tree/mod.rs`
/// states the invariants T1 to T3.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TreeError {
    /// T1: a range is empty, or begins before the end of the preceding range.
    Order(u64),
    /// T2: a start, end or gap in a parent does not match the leaves below.
    Summary(u64),
    /// T3: a node's level does not fit its place, or a node is empty.
    Shape(u64),
    /// The number of items does not match the tree's count.
    Count,
}

/// An invariant of the frame allocator that does not hold.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FrameError {
    /// A free block whose links, order, alignment, domain or group contradict its list.
    Block(Pfn),
    /// Two free blocks that should be merged.
    Apart(Pfn),
    /// A frame whose kind does not fit the list that it is on.
    Kind(Pfn),
    /// A chain of frames with a wrong count of its length. The value is the chain's first frame.
    Chain(Pfn),
    /// A domain's count of free frames does not match its lists.
    Count(usize),
    /// Frames marked free or cached that are on no list or on two. The value is their number minus the number on the
    /// lists.
    Lost(i64),
}

/// An invariant of the queues that does not hold.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum QueueError {
    /// A shard's length is not the number of pages that its links lead to.
    Length(Queue, usize),
    /// A page whose links contradict the links of its neighbours.
    Links(Pfn),
    /// A page in a shard, whose state names another place.
    Place(Pfn),
    /// A frame that is no object's page, in a shard.
    NoPage(Pfn),
    /// A page whose state names a shard that does not have it.
    Lost(Pfn),
}

/// An invariant that does not hold, and the place at which the check found that. The words in parentheses name a
/// variant's value. Addresses are those of the address space, keys are page numbers of an object, and frames are frame
/// numbers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Broken {
    /// Map: the tree of entries.
    Tree(TreeError),
    /// Map: an entry is stale although no writer holds the lock, or its range differs from the tree's (address).
    Entry(u64),
    /// Map: an entry's rights contradict its kind (address).
    Rights(u64),
    /// Map: a chain does not fit its entry. For example, the front does not cover it, a layer belongs to another space,
    /// or shared and private layers are mixed (address).
    Chain(u64),
    /// Map: the number of mapped bytes, or of the bytes of one class, is wrong.
    Count,
    /// Backing: it is not on its object's list (address).
    Unlisted(u64),
    /// Backing: it is on the list of an object that it does not show, or in another shard than it records (address).
    Stranger(u64),
    /// List of backings: a member's links do not lead back to it, because it is in the list twice, or in two lists
    /// (first key).
    ListLinks(u64),
    /// List of backings: members are not in their order (first key).
    ListOrder(u64),
    /// List of backings: a member's largest end is not that of the members below it (first key).
    ListMax(u64),
    /// List of backings: its length does not match its count (the count).
    ListCount(u64),
    /// Object: it has fewer references than its list of backings holds (the count).
    References(u32),
    /// Object: its size or its pager contradict its kind (the size).
    Kind(u64),
    /// Index: a node has a height that does not fit its place (first key).
    NodeHeight(u64),
    /// Index: an occupancy bit contradicts its slot (key).
    Occupancy(u64),
    /// Index: an empty slot is tagged dirty, or a dirty page of a file is not tagged (key).
    DirtyTag(u64),
    /// Index: a slot has a page with another identity (key).
    Identity(u64),
    /// Index: a page beyond the object's end (key).
    BeyondEnd(u64),
    /// Page tables: a present entry leads to a frame that is no table page, or to a dead table page (address).
    TableDead(u64),
    /// Page tables: the count of present entries is wrong (address).
    TableLive(u64),
    /// Page tables: a present entry is not noted as occupied, so that scans would skip it (address).
    TableOccupied(u64),
    /// Page tables: a CPU's own root differs from the space's (address).
    TableRoot(u64),
    /// Page tables: the count of unflushed removals is not zero, although no operation is in progress (address).
    TableUnflushed(u64),
    /// Page tables: a writable leaf is not noted as writable, so that a fork would skip it (address).
    TableWritable(u64),
    /// Page tables: a table page's mark of store protection contradicts the entry above it (address).
    TableStoreProtection(u64),
    /// Page tables: an entry that is neither empty nor present (address).
    TableWord(u64),
    /// Leaf: no entry of the map covers it (address).
    LeafWithoutEntry(u64),
    /// Leaf: it has a right that its entry does not have (address).
    LeafRights(u64),
    /// Leaf: its frame is not the chain's page, or no layer of the chain has it (address).
    LeafFrame(u64),
    /// Leaf: it is writable, and the page is clean (address).
    LeafClean(u64),
    /// The page queues.
    Queue(QueueError),
    /// The frame allocator.
    Frames(FrameError),
    /// Swap: the bitmap and the count of free slots differ (the count).
    SwapCount(u64),
    /// Swap: an index or a page has a slot that is free (key).
    SwapSlot(u64),
    /// Slab: free objects and counts do not add up (first frame).
    Slab(u64),
}

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (text, at) = match *self {
            Broken::Tree(TreeError::Order(at)) => ("map: entries overlap or are out of order", at),
            Broken::Tree(TreeError::Summary(at)) => {
                ("map: a start, end or largest gap differs from the nodes below", at)
            }
            Broken::Tree(TreeError::Shape(at)) => ("map: a tree node at the wrong level, or an empty one", at),
            Broken::Tree(TreeError::Count) => ("map: the number of entries is wrong", 0),
            Broken::Entry(at) => ("map: a stale entry has no writer, or its range differs from the tree's", at),
            Broken::Rights(at) => ("map: an entry's rights contradict its kind", at),
            Broken::Chain(at) => ("map: a chain does not fit its entry", at),
            Broken::Count => ("map: the number of mapped bytes is wrong", 0),
            Broken::Unlisted(at) => ("backing: not on its object's list", at),
            Broken::Stranger(at) => ("backing: on the list of an object that it does not show", at),
            Broken::ListLinks(at) => ("backings: links do not lead back", at),
            Broken::ListOrder(at) => ("backings: out of order", at),
            Broken::ListMax(at) => ("backings: a largest end is wrong", at),
            Broken::ListCount(n) => ("backings: the list differs from its length", n),
            Broken::References(n) => ("object: fewer references than its list has", n as u64),
            Broken::Kind(at) => ("object: size or pager contradict its kind", at),
            Broken::NodeHeight(at) => ("index: a node at the wrong height", at),
            Broken::Occupancy(at) => ("index: an occupancy bit contradicts its slot", at),
            Broken::DirtyTag(at) => ("index: a dirty tag is wrong", at),
            Broken::Identity(at) => ("index: a page with another identity", at),
            Broken::BeyondEnd(at) => ("index: a page beyond the end of the object", at),
            Broken::TableDead(at) => ("page tables: an entry leads to no live table page", at),
            Broken::TableLive(at) => ("page tables: the count of present entries is wrong", at),
            Broken::TableOccupied(at) => ("page tables: a present entry is not noted as occupied", at),
            Broken::TableRoot(at) => ("page tables: a CPU's own root contradicts the space's", at),
            Broken::TableUnflushed(at) => ("page tables: removals without a flush", at),
            Broken::TableStoreProtection(at) => ("page tables: the entry above contradicts the store protection", at),
            Broken::TableWritable(at) => ("page tables: a leaf that allows stores is not noted as one", at),
            Broken::TableWord(at) => ("page tables: an entry is neither empty nor present", at),
            Broken::LeafWithoutEntry(at) => ("leaf: no entry covers it", at),
            Broken::LeafRights(at) => ("leaf: allows more than its entry", at),
            Broken::LeafFrame(at) => ("leaf: maps another page than the chain shows", at),
            Broken::LeafClean(at) => ("leaf: a writable leaf maps a clean page", at),
            Broken::Queue(QueueError::Links(p)) => ("page queue: links do not lead back", p.0),
            Broken::Queue(QueueError::Place(p)) => ("page queue: a page with another place", p.0),
            Broken::Queue(QueueError::NoPage(p)) => ("page queue: a frame that is no page", p.0),
            Broken::Queue(QueueError::Lost(p)) => {
                ("page queue: a page that is in no part, but is marked as listed", p.0)
            }
            Broken::Queue(QueueError::Length(_, part)) => ("page queue: a part differs from its length", part as u64),
            Broken::Frames(FrameError::Block(p)) => ("frames: a free block contradicts its list", p.0),
            Broken::Frames(FrameError::Apart(p)) => ("frames: two free blocks that should be one", p.0),
            Broken::Frames(FrameError::Kind(p)) => ("frames: a frame on a list has another kind", p.0),
            Broken::Frames(FrameError::Chain(p)) => ("frames: a chain differs from its length", p.0),
            Broken::Frames(FrameError::Count(domain)) => ("frames: a domain's count is wrong", domain as u64),
            Broken::Frames(FrameError::Lost(n)) => ("frames: a frame is on two lists or on none", n.unsigned_abs()),
            Broken::SwapCount(n) => ("swap: the bitmap and the count of free slots differ", n),
            Broken::SwapSlot(at) => ("swap: a page's slot is free", at),
            Broken::Slab(at) => ("slab: free objects and counts do not add up", at),
        };
        write!(f, "{text} ({at:#x})")
    }
}
impl core::error::Error for Broken {}

/// The count that decides when a structure is checked next. The structure's lock guards it.
#[derive(Debug, Default)]
pub struct Due {
    updates: u32,
    /// Number of items that the last check visited. Both fields saturate.
    cost: u32,
}

impl Due {
    /// A structure that is first due after its first update.
    pub(crate) const fn new() -> Due {
        Due { updates: 0, cost: 0 }
    }

    /// Counts `n` updates.
    #[inline(always)]
    pub(crate) fn note(&mut self, n: u64) {
        self.updates = self.updates.saturating_add(n.min(u32::MAX.into()) as u32);
    }

    /// Records that a check visited `cost` items. The next check is due after the same number of updates.
    pub(crate) fn checked(&mut self, cost: u64) {
        *self = Due { updates: 0, cost: cost.min(u32::MAX.into()) as u32 };
    }

    /// Whether the structure must be checked now, when its lock is released.
    #[inline]
    pub(crate) fn is_due(&self, level: Level) -> bool {
        match level {
            Level::Never => false,
            Level::AtRelease => self.updates > 0 && self.updates >= self.cost,
            Level::Always => true,
        }
    }
}
