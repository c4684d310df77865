//! Removes nodes of an index: empty nodes while other CPUs use the index, and all nodes when the object is torn down.

use super::{CLOSED, EMPTY, Index, IndexNode, KEYS, NODE, Nodes, RESERVED, SLOTS, SlotPlace, covers, height, node};
use crate::mutant::{Mutant, mutant};
use core::ops::Range;
use core::ptr::NonNull;
use quire_sync::atomic::Ordering;
use quire_sync::epoch::Pinned;

impl<N: Nodes> Index<N> {
    /// Frees the empty nodes that cover at least one key of `keys`.
    pub fn prune(&self, keys: Range<u64>, pin: &Pinned<'_>) {
        let (mut at, end) = (keys.start, keys.end.min(KEYS));
        while let Some((base, SlotPlace::Leaf(leaf))) = self.next_leaf(at, end, pin) {
            if leaf.present.load(Ordering::Acquire) == 0 {
                self.prune_node(base, leaf, pin);
            }
            at = base + SLOTS as u64;
        }
    }

    /// Removes `n`, which covers `key`, and then each ancestor that becomes empty.
    fn prune_node(&self, key: u64, n: &IndexNode<N>, pin: &Pinned<'_>) {
        let mut n = n;
        while n.present.load(Ordering::Acquire) == 0 && (mutant(Mutant::PruneUnclosed) || close(n)) {
            // This CPU has closed the node. So no CPU fills it, and no other CPU removes it.
            let parent = self.unlink(key, n, pin);
            // SAFETY: this call closed the node and unlinked it, and no other call can unlink a closed node.
            unsafe { IndexNode::retire(NonNull::from(n)) };
            match parent {
                Some(p) => n = p,
                None => return,
            }
        }
    }

    /// Empties the word that points to the closed node `n`. Returns the parent node that had the word, or `None` for
    /// the root word.
    fn unlink<'a>(&self, key: u64, n: &IndexNode<N>, pin: &'a Pinned<'_>) -> Option<&'a IndexNode<N>> {
        let _pinned = pin;
        let target = IndexNode::word(NonNull::from(n), n.height);
        loop {
            let mut word = self.root.load(Ordering::Acquire);
            if word == target {
                if self.root.compare_exchange(target, EMPTY, Ordering::AcqRel, Ordering::Acquire).is_ok() {
                    return None;
                }
                // The tree grew, so the node has a parent now.
                continue;
            }
            debug_assert!(
                word & NODE != 0 && covers(height(word), key),
                "a closed node is linked until it is unlinked"
            );
            while word & NODE != 0 {
                // SAFETY: the word is a node of this index, and the caller is pinned for 'a.
                let p = unsafe { node::<N>(word) };
                let (slot, bit) = p.slot(key);
                word = slot.load(Ordering::Acquire);
                if word == target {
                    // Only the CPU that closed the node changes this slot, so a plain store suffices.
                    let early = mutant(Mutant::BitAfterUnlink);
                    slot.store(if early { EMPTY } else { RESERVED }, Ordering::Release);
                    p.present.fetch_and(!bit, Ordering::AcqRel);
                    if !early {
                        slot.store(EMPTY, Ordering::Release);
                    }
                    return Some(p);
                }
            }
            // Another CPU may have dismantled the index, and the node with it.
            if self.root.load(Ordering::Acquire) == CLOSED {
                return None;
            }
        }
    }

    /// Frees all nodes. The object is already marked dead, so a CPU that fills a slot from now on removes its page
    /// again. No `prune` of this index runs during the call.
    pub fn dismantle(&self, _pin: &Pinned<'_>) {
        let word = self.root.swap(CLOSED, Ordering::AcqRel);
        if word & NODE != 0 {
            // SAFETY: the root was swapped out just now, and the caller is pinned.
            unsafe { dismantle::<N>(word) };
        }
    }
}

/// Closes all slots of `n`. Returns false, and closes none, if one slot is not empty.
fn close<N: Nodes>(n: &IndexNode<N>) -> bool {
    for i in 0..SLOTS {
        if n.slots[i].compare_exchange(EMPTY, CLOSED, Ordering::AcqRel, Ordering::Acquire).is_err() {
            n.slots[..i].iter().for_each(|s| s.store(EMPTY, Ordering::Release));
            return false;
        }
    }
    true
}

/// Retires the node that `word` points to, and its whole subtree. The recursion is as deep as the tree: at most nine
/// levels.
///
/// # Safety
/// The caller has just taken `word` out of a live tree, and is pinned. `word` points to a node of the same `N`.
unsafe fn dismantle<N: Nodes>(word: u64) {
    // SAFETY: by this function's contract the word was just taken out of a live tree.
    let n = unsafe { node::<N>(word) };
    if n.height > 1 {
        for slot in n.slots.iter() {
            // The slot is closed, so that a late fill links no child below a retired node. A late fill of a leaf is
            // harmless, because the filling CPU finds the object dead and removes its page.
            let child = loop {
                let child = slot.load(Ordering::Acquire);
                // `RESERVED` means that a child is being linked; its owner finishes soon.
                if child != RESERVED
                    && slot.compare_exchange(child, CLOSED, Ordering::AcqRel, Ordering::Acquire).is_ok()
                {
                    break child;
                }
                quire_sync::hooks::relax();
            };
            if child & NODE != 0 {
                // SAFETY: the exchange has just taken `child` out of the tree, and the caller's pin lasts until it is
                // retired.
                unsafe { dismantle::<N>(child) };
            }
        }
    }
    // SAFETY: the word that led to the node was taken out, so only readers that are pinned now can reach it.
    unsafe { IndexNode::retire(NonNull::from(n)) };
}
