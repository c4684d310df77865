//! Checks the invariants of an index: heights, occupancy bits, dirty bits.

use super::{BITS, CLOSED, EMPTY, Index, IndexNode, KEYS, NODE, Nodes, RESERVED, SLOTS, Slot, decode, height, node};
use crate::check::Broken;
use core::ops::Range;
use quire_sync::atomic::Ordering;
use quire_sync::epoch::Pinned;
use quire_sync::hooks::relax;

/// The number of reads after which a wrong value of a word counts as an error. Until then another CPU may be changing
/// it.
const LOOKS: u32 = 10_000;

/// Checks one occupied slot, given its key, content and dirty bit. Returns `Ok(false)` if the slot is wrong at present,
/// but another CPU may be changing it.
type Judge<'a> = &'a mut dyn FnMut(u64, Slot, bool) -> Result<bool, Broken>;

impl<N: Nodes> Index<N> {
    /// Checks the nodes over `keys`, and calls `judge` with each occupied slot, its key and its dirty bit. `quiet`
    /// states that no other CPU changes the index. Returns the number of checked nodes and slots.
    pub(crate) fn check(
        &self,
        keys: Range<u64>,
        quiet: bool,
        pin: &Pinned<'_>,
        judge: Judge<'_>,
    ) -> Result<u64, Broken> {
        let _pinned = pin;
        let word = self.root.load(Ordering::Acquire);
        if word & NODE != 0 {
            // SAFETY: the word is the root of this index, and the caller is pinned.
            return unsafe { check_node::<N>(word, height(word), 0, &keys, quiet, judge) };
        }
        if word == EMPTY || word == CLOSED || keys.start > 0 {
            return Ok(1);
        }
        if quiet && word == RESERVED {
            return Err(Broken::Occupancy(0));
        }
        for look in 0..LOOKS {
            if judge(0, decode(word), true)? || self.root.load(Ordering::Acquire) != word {
                return Ok(1);
            }
            if quiet || look + 1 == LOOKS {
                break;
            }
            relax();
        }
        Err(Broken::Identity(0))
    }
}

/// Checks the node of `word` and its subtree. The recursion is as deep as the tree: at most nine levels.
///
/// # Safety
/// The word was read from an index of the same `N` while the caller was pinned, as it still is.
unsafe fn check_node<N: Nodes>(
    word: u64,
    at_height: u32,
    base: u64,
    keys: &Range<u64>,
    quiet: bool,
    judge: Judge<'_>,
) -> Result<u64, Broken> {
    // SAFETY: by this function's contract.
    let n = unsafe { node::<N>(word) };
    if n.height != at_height || height(word) != at_height || at_height == 0 {
        return Err(Broken::NodeHeight(base));
    }
    let shift = BITS * (at_height - 1);
    let mut cost = 1;
    for i in 0..SLOTS as u64 {
        let key = base + (i << shift);
        if key >= keys.end.min(KEYS) || key + ((1 << shift) - 1) < keys.start {
            continue;
        }
        let word = settled(n, i as usize, key, quiet)?;
        if word & NODE != 0 {
            if at_height == 1 {
                return Err(Broken::NodeHeight(key));
            }
            // SAFETY: `word` was read from a live node of this index, and the caller's pin lasts until the call
            // returns.
            cost += unsafe { check_node::<N>(word, at_height - 1, key, keys, quiet, judge)? };
        } else if word != EMPTY {
            if at_height > 1 {
                return Err(Broken::NodeHeight(key));
            }
            cost += 1;
            check_slot(n, i as usize, key, word, quiet, judge)?;
        }
    }
    Ok(cost)
}

/// Compares slot `i` with its occupancy bit and its dirty bit. Returns its word, or `EMPTY` if the slot has an owner. A
/// slot without an owner always agrees with its bits. The slot and its bits are read one after the other, so a
/// difference is an error only if it lasts.
fn settled<N: Nodes>(n: &IndexNode<N>, i: usize, key: u64, quiet: bool) -> Result<u64, Broken> {
    let bit = 1u64 << i;
    let mut wrong = Broken::Occupancy(key);
    for _ in 0..if quiet { 1 } else { LOOKS } {
        let word = n.slots[i].load(Ordering::Acquire);
        let (present, dirty) = (n.present.load(Ordering::Acquire), n.dirty.load(Ordering::Acquire));
        let owned = word == RESERVED || word == CLOSED;
        if owned && !quiet {
            return Ok(EMPTY);
        }
        let occupied = word != EMPTY && !owned;
        wrong = match (present & bit != 0) == occupied && !owned {
            true if occupied || dirty & bit == 0 => return Ok(word),
            true => Broken::DirtyTag(key),
            false => Broken::Occupancy(key),
        };
        relax();
    }
    Err(wrong)
}

/// Checks an occupied slot of a leaf with `judge`.
fn check_slot<N: Nodes>(
    n: &IndexNode<N>,
    i: usize,
    key: u64,
    word: u64,
    quiet: bool,
    judge: Judge<'_>,
) -> Result<(), Broken> {
    for _ in 0..if quiet { 1 } else { LOOKS } {
        let tagged = n.dirty.load(Ordering::Acquire) & (1 << i) != 0;
        if judge(key, decode(word), tagged)? || n.slots[i].load(Ordering::Acquire) != word {
            return Ok(());
        }
        relax();
    }
    Err(Broken::Identity(key))
}

/// Access to private parts for tests of the checker.
#[cfg(all(test, not(any(loom, shuttle))))]
impl<N: Nodes> Index<N> {
    /// Corrupts the field that `damage` names, at `key`, in an index that has nodes.
    pub fn corrupt(&self, key: u64, damage: Broken, pin: &Pinned<'_>) {
        let super::SlotPlace::Leaf(leaf) = self.place(key, pin) else { panic!("no leaf covers the key") };
        let bit = leaf.slot(key).1;
        match damage {
            Broken::Occupancy(_) => leaf.present.fetch_xor(bit, Ordering::AcqRel),
            Broken::DirtyTag(_) => leaf.dirty.fetch_xor(bit, Ordering::AcqRel),
            _ => self.root.fetch_add(1 << super::HEIGHT_SHIFT, Ordering::AcqRel),
        };
    }
}
