//! Holds an index slot while its content is moved, made or destroyed. It is meant for content without a busy bit: a
//! swap slot or a zero marker.

use super::{
    CLOSED, EMPTY, FillError, Index, IndexNode, KEYS, NODE, Nodes, RESERVED, Slot, SlotPlace, decode, encode, relax,
};
use quire_sync::atomic::{AtomicU64, Ordering};
use quire_sync::epoch::Pinned;

/// A slot that this CPU owns. Readers see [`Slot::Reserved`] and read again, so the slot is held only briefly and under
/// one pin. Dropping the value stores the old content again.
pub struct TakenSlot<'p, N: Nodes> {
    slot: &'p AtomicU64,
    /// The node and the bit for occupancy and dirtiness. The root word has neither.
    bits: Option<(&'p IndexNode<N>, u64)>,
    was: u64,
}

impl<N: Nodes> Index<N> {
    /// Takes over the slot at `key`, which holds `from`. Returns `None` if it holds something else.
    pub fn take<'p>(&'p self, key: u64, from: Slot, pin: &'p Pinned<'_>) -> Option<TakenSlot<'p, N>> {
        debug_assert!(!matches!(from, Slot::Empty | Slot::Reserved));
        let was = encode(from);
        loop {
            let (slot, bits) = match self.place(key, pin) {
                SlotPlace::Root(_) => (&self.root, None),
                SlotPlace::Leaf(leaf) => {
                    let (slot, bit) = leaf.slot(key);
                    (slot, Some((leaf, bit)))
                }
                SlotPlace::Absent => return None,
            };
            match slot.compare_exchange(was, RESERVED, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return Some(TakenSlot { slot, bits, was }),
                // The tree grew during this call, so the root word is a node now.
                Err(word) if word & NODE != 0 => continue,
                Err(_) => return None,
            }
        }
    }

    /// Takes over the empty slot at `key`. Returns an error if it cannot be filled.
    pub(crate) fn take_empty<'p>(
        &'p self,
        key: u64,
        nodes: N,
        pin: &'p Pinned<'_>,
    ) -> Result<TakenSlot<'p, N>, FillError> {
        if key >= KEYS {
            return Err(FillError::BeyondKeys);
        }
        loop {
            let (slot, bits) = match self.leaf(key, nodes, pin)? {
                SlotPlace::Root(_) => (&self.root, None),
                SlotPlace::Leaf(leaf) => {
                    let (slot, bit) = leaf.slot(key);
                    (slot, Some((leaf, bit)))
                }
                SlotPlace::Absent => continue,
            };
            match slot.compare_exchange(EMPTY, RESERVED, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => {
                    if let Some((leaf, bit)) = bits {
                        leaf.present.fetch_or(bit, Ordering::AcqRel);
                    }
                    return Ok(TakenSlot { slot, bits, was: EMPTY });
                }
                Err(RESERVED | CLOSED) => relax(),
                // The tree grew during this call, so the root word is a node now.
                Err(word) if word & NODE != 0 => {}
                Err(word) => return Err(FillError::Taken(decode(word))),
            }
        }
    }
}

impl<N: Nodes> TakenSlot<'_, N> {
    /// Sets the content that the drop stores in the slot.
    pub fn replace(&mut self, to: Slot) {
        debug_assert!(!matches!(to, Slot::Empty | Slot::Reserved));
        self.was = encode(to);
    }

    /// Empties the slot. The caller has freed or moved its content.
    pub fn empty(mut self) {
        self.was = EMPTY;
    }
}

impl<N: Nodes> Drop for TakenSlot<'_, N> {
    fn drop(&mut self) {
        if let Some((leaf, bit)) = self.bits
            && self.was == EMPTY
        {
            if leaf.dirty.load(Ordering::Relaxed) & bit != 0 {
                leaf.dirty.fetch_and(!bit, Ordering::AcqRel);
            }
            leaf.present.fetch_and(!bit, Ordering::AcqRel);
        }
        if self.bits.is_some() {
            self.slot.store(self.was, Ordering::Release);
        } else {
            // The slot is the root word. If the index was dismantled since the slot was taken, the exchange fails and
            // the word stays closed.
            let _dismantled = self.slot.compare_exchange(RESERVED, self.was, Ordering::Release, Ordering::Relaxed);
        }
    }
}
