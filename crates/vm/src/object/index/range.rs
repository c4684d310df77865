//! Visits the occupied slots of a range of an index, in O(occupied slots). A visit can be suspended and resumed by its
//! key.

use super::{
    BITS, CLOSED, EMPTY, Index, IndexNode, KEYS, MASK, NODE, Nodes, PAGE, SLOTS, Slot, SlotPlace, TAG, covers, decode,
    height, node,
};
use crate::mutant::{Mutant, mutant};
use core::ops::Range;
use quire_sync::atomic::{AtomicU64, Ordering};
use quire_sync::epoch::Pinned;

/// A position in a range of keys. It consists of plain numbers, so it may be kept while the thread sleeps.
/// [`Cursor::resume`] continues from it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cursor {
    at: u64,
    end: u64,
}

impl Cursor {
    /// A cursor at the start of `keys`.
    pub fn over(keys: Range<u64>) -> Cursor {
        Cursor { at: keys.start, end: keys.end.min(KEYS) }
    }

    /// The next key to visit.
    pub fn key(&self) -> u64 {
        self.at
    }

    /// Moves the cursor back to `key`, so that `key` is visited again.
    pub fn rewind(&mut self, key: u64) {
        self.at = key;
    }

    /// Whether the whole range is visited.
    pub fn is_done(&self) -> bool {
        self.at >= self.end
    }

    /// Continues the visit. Relies on C5: a thread never sleeps while it iterates. The compiler enforces this. Each
    /// function of this crate that sleeps needs an exclusive reference to [`MaySleep`](crate::sleep::MaySleep). The
    /// iterator borrows the pin, and the pin borrows `MaySleep`.
    ///
    /// ```compile_fail,E0502
    /// use quire_vm::object::index::{Cursor, Index, Nodes};
    /// use quire_vm::sleep::MaySleep;
    /// use quire_sync::epoch::Domain;
    ///
    /// fn visits_over_a_sleep<N: Nodes>(index: &Index<N>, domain: &Domain, may: &mut MaySleep) {
    ///     let mut cursor = Cursor::over(0..8);
    ///     let pin = may.pin(domain);
    ///     let mut visit = cursor.resume(index, &pin);
    ///     may.sleep_until(|| true); // error: `may` is borrowed by the pin, which the iteration holds
    ///     visit.next();
    /// }
    /// ```
    ///
    /// A thread may sleep while the visit is suspended in its cursor:
    /// ```
    /// use quire_vm::object::index::{Cursor, Index, Nodes};
    /// use quire_vm::sleep::MaySleep;
    /// use quire_sync::epoch::Domain;
    ///
    /// fn visits_around_a_sleep<N: Nodes>(index: &Index<N>, domain: &Domain, may: &mut MaySleep) {
    ///     let mut cursor = Cursor::over(0..8);
    ///     let pin = may.pin(domain);
    ///     cursor.resume(index, &pin).next();
    ///     drop(pin);
    ///     may.sleep_until(|| true);
    ///     let pin = may.pin(domain);
    ///     cursor.resume(index, &pin).next();
    /// }
    /// ```
    pub fn resume<'a, N: Nodes>(&'a mut self, index: &'a Index<N>, pin: &'a Pinned<'_>) -> Visit<'a, N> {
        Visit { cursor: self, index, pin, dirty: false, leaf: None, bits: 0, base: 0 }
    }

    /// Continues the visit like [`Cursor::resume`], but visits only slots with the dirty bit. (The slot in the root
    /// word counts as dirty.)
    pub(crate) fn resume_dirty<'a, N: Nodes>(&'a mut self, index: &'a Index<N>, pin: &'a Pinned<'_>) -> Visit<'a, N> {
        Visit { dirty: true, ..self.resume(index, pin) }
    }
}

/// An iterator over occupied slots, in order of their keys. Each slot that stays occupied during the iteration is
/// returned. A slot that is filled or emptied meanwhile may be returned or not.
pub struct Visit<'a, N: Nodes> {
    cursor: &'a mut Cursor,
    index: &'a Index<N>,
    pin: &'a Pinned<'a>,
    /// Visits only slots with the dirty bit.
    dirty: bool,
    leaf: Option<&'a IndexNode<N>>,
    /// The slots of `leaf` that are still to be visited, from the bitmap that was read when the visit entered the leaf.
    bits: u64,
    base: u64,
}

impl<N: Nodes> Iterator for Visit<'_, N> {
    type Item = (u64, Slot);

    fn next(&mut self) -> Option<(u64, Slot)> {
        loop {
            if let Some(leaf) = self.leaf {
                while self.bits != 0 {
                    let i = self.bits.trailing_zeros();
                    let key = self.base + i as u64;
                    if key >= self.cursor.end {
                        break;
                    }
                    self.bits &= self.bits - 1;
                    let slot = decode(leaf.slots[i as usize].load(Ordering::Acquire));
                    if slot != Slot::Empty {
                        self.cursor.at = key + 1;
                        return Some((key, slot));
                    }
                }
                self.cursor.at = self.cursor.at.max(self.base + SLOTS as u64).min(self.cursor.end);
                self.leaf = None;
            }
            if self.cursor.is_done() {
                return None;
            }
            match self.index.next_leaf(self.cursor.at, self.cursor.end, self.pin) {
                None => {
                    self.cursor.at = self.cursor.end;
                    return None;
                }
                Some((_, SlotPlace::Root(word))) => {
                    self.cursor.at = 1;
                    let slot = decode(word);
                    if slot != Slot::Empty {
                        return Some((0, slot));
                    }
                }
                Some((base, SlotPlace::Leaf(leaf))) => {
                    let from = self.cursor.at.saturating_sub(base);
                    self.bits = leaf.present.load(Ordering::Acquire) & (u64::MAX << from);
                    if self.dirty {
                        self.bits &= leaf.dirty.load(Ordering::Acquire);
                    }
                    self.base = base;
                    self.leaf = Some(leaf);
                }
                Some((_, SlotPlace::Absent)) => return None,
            }
        }
    }
}

/// A count of the nodes with occupied slots below them. It is done in several calls.
pub(crate) struct NodeCount {
    keys: Range<u64>,
    /// A key of the leaf that was counted last, or `None` before the first leaf.
    before: Option<u64>,
    nodes: u64,
}

impl NodeCount {
    /// A count over `keys` that has not begun.
    pub fn new(keys: Range<u64>) -> Self {
        NodeCount { keys, before: None, nodes: 0 }
    }

    /// The number of nodes found so far.
    pub fn nodes(&self) -> u64 {
        self.nodes
    }

    /// Visits up to `most` more leaves. Returns whether the count is done.
    pub fn go_on<N: Nodes>(&mut self, index: &Index<N>, most: usize, pin: &Pinned<'_>) -> bool {
        let root = index.root.load(Ordering::Acquire);
        if root & NODE == 0 {
            return true;
        }
        for _ in 0..most {
            if self.keys.is_empty() {
                return true;
            }
            let Some((key, _)) = index.first(self.keys.start, self.keys.end, pin) else { return true };
            let other =
                |level: &u32| self.before.is_none_or(|before| before >> (BITS * level) != key >> (BITS * level));
            self.nodes += (1..=height(root)).filter(other).count() as u64;
            self.before = Some(key);
            self.keys.start = (key | MASK) + 1;
        }
        false
    }
}

impl<N: Nodes> Index<N> {
    /// The first occupied slot in `from..end`, with its key.
    pub fn first(&self, from: u64, end: u64, pin: &Pinned<'_>) -> Option<(u64, Slot)> {
        Cursor::over(from..end).resume(self, pin).next()
    }

    /// Calls `each` with `n` and the slot of key `first + n`, for each bit `n` of `which` whose slot is occupied, in
    /// order. It is meant for a few keys. For these, keeping an iterator's state would cost more than the reads. In
    /// inner nodes it reads only the slots, not the header.
    #[inline]
    pub(crate) fn each_of(&self, first: u64, mut which: u64, pin: &Pinned<'_>, mut each: impl FnMut(u32, Slot)) {
        while which != 0 {
            let n = which.trailing_zeros();
            let key = first + u64::from(n);
            let place = self.place(key, pin);
            if let SlotPlace::Root(word) = place {
                which &= which - 1;
                let slot = decode(word);
                if slot != Slot::Empty {
                    each(n, slot);
                }
                continue;
            }
            let i = (key & MASK) as u32;
            // The number of the first bit whose key lies after the leaf of `key`.
            let behind = n + (SLOTS as u32 - i);
            if let SlotPlace::Leaf(leaf) = place {
                let mut bits = leaf.present.load(Ordering::Acquire) & (which >> n << i);
                while bits != 0 {
                    let j = bits.trailing_zeros();
                    bits &= bits - 1;
                    let slot = decode(leaf.slots[j as usize].load(Ordering::Acquire));
                    if slot != Slot::Empty {
                        each(n + j - i, slot);
                    }
                }
            }
            which &= u64::MAX.checked_shl(behind).unwrap_or(0);
        }
    }

    /// The occupied slots among the keys `first + n` of the bits `n` of `which`, and those that have a resident page: a
    /// bit for each.
    pub(crate) fn filled_of(&self, first: u64, mut which: u64, pin: &Pinned<'_>) -> (u64, u64) {
        let (mut filled, mut pages) = (0, 0);
        while which != 0 {
            let n = which.trailing_zeros();
            let key = first + u64::from(n);
            // The number of the first bit whose key lies after the leaf of `key`.
            let mut behind = n + 1;
            match self.place(key, pin) {
                SlotPlace::Root(word) => {
                    filled |= u64::from(decode(word) != Slot::Empty) << n;
                    pages |= u64::from(word & TAG == PAGE) << n;
                }
                place => {
                    let i = (key & MASK) as u32;
                    behind = n + (SLOTS as u32 - i);
                    if let SlotPlace::Leaf(leaf) = place {
                        let there = leaf.present.load(Ordering::Acquire) & (which >> n << i);
                        let (mut bits, mut resident) = (there, 0);
                        while bits != 0 {
                            let j = bits.trailing_zeros();
                            bits &= bits - 1;
                            let word = leaf.slots[j as usize].load(Ordering::Acquire);
                            resident |= u64::from(word & TAG == PAGE) << j;
                        }
                        filled |= there >> i << n;
                        pages |= resident >> i << n;
                    }
                }
            }
            which &= u64::MAX.checked_shl(behind).unwrap_or(0);
        }
        (filled, pages)
    }

    /// The number of occupied slots in `keys`.
    pub fn count(&self, keys: Range<u64>, pin: &Pinned<'_>) -> u64 {
        let (mut at, end) = (keys.start, keys.end.min(KEYS));
        let mut n = 0;
        while at < end {
            match self.next_leaf(at, end, pin) {
                Some((base, SlotPlace::Leaf(leaf))) => {
                    let mut bits = leaf.present.load(Ordering::Acquire) & (u64::MAX << at.saturating_sub(base));
                    if base + SLOTS as u64 > end {
                        bits &= !(u64::MAX << (end - base));
                    }
                    n += bits.count_ones() as u64;
                    at = base + SLOTS as u64;
                }
                Some((_, SlotPlace::Root(word))) => {
                    n += (decode(word) != Slot::Empty) as u64;
                    at = 1;
                }
                _ => break,
            }
        }
        n
    }

    /// Calls `visit` with the time of stores of each leaf.
    pub(crate) fn each_stored(&self, pin: &Pinned<'_>, mut visit: impl FnMut(&AtomicU64)) {
        let mut at = 0;
        while let Some((base, place)) = self.next_leaf(at, KEYS, pin) {
            let SlotPlace::Leaf(leaf) = place else { return };
            visit(&leaf.stored);
            at = base + SLOTS as u64;
        }
    }

    /// The first leaf, occupied or not, that has a key in `from..end`. Returns it with its first key.
    pub(super) fn next_leaf<'a>(
        &self,
        mut from: u64,
        end: u64,
        pin: &'a Pinned<'_>,
    ) -> Option<(u64, SlotPlace<'a, N>)> {
        let _pinned = pin;
        'root: while from < end {
            let mut word = self.root.load(Ordering::Acquire);
            if word & NODE == 0 {
                return (from == 0 && word != EMPTY && word != CLOSED).then_some((0, SlotPlace::Root(word)));
            }
            if !covers(height(word), from) {
                return None;
            }
            loop {
                // SAFETY: the word is a node of this index, and the caller is pinned for 'a.
                let n = unsafe { node::<N>(word) };
                if n.height == 1 {
                    return Some((from & !(SLOTS as u64 - 1), SlotPlace::Leaf(n)));
                }
                let shift = BITS * (n.height - 1);
                let i = (from >> shift) & (SLOTS as u64 - 1);
                let bits = n.present.load(Ordering::Acquire) & (u64::MAX << i);
                if bits == 0 {
                    // The rest of this node is empty, so the search continues after it.
                    let span = shift + BITS;
                    if span >= 64 {
                        return None;
                    }
                    from = ((from >> span) + 1) << span;
                    continue 'root;
                }
                let j = bits.trailing_zeros() as u64;
                if j != i {
                    from = (from & !((1u64 << shift) - 1) & !((SLOTS as u64 - 1) << shift)) | j << shift;
                    if from >= end {
                        return None;
                    }
                }
                let child = n.slots[j as usize].load(Ordering::Acquire);
                if child & NODE == 0 {
                    if mutant(Mutant::GoneIsEnd) {
                        return None;
                    }
                    // The child is being linked and is still empty, or it was removed.
                    from = ((from >> shift) + 1) << shift;
                    continue 'root;
                }
                word = child;
            }
        }
        None
    }
}
