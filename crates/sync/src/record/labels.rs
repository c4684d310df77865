//! Labels: the owner of the memory at an address.

use std::collections::BTreeMap;
use std::sync::{PoisonError, RwLock};

struct Owned {
    end: usize,
    stride: usize,
    label: &'static str,
}

/// Disjoint ranges, keyed by their first address.
static OWNED: RwLock<BTreeMap<usize, Owned>> = RwLock::new(BTreeMap::new());

/// An address with the label of its object.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct LabelledAddress {
    /// The name of the object.
    pub label: &'static str,
    /// The object's address.
    pub object: usize,
    /// The distance in bytes from the object's address to the address.
    pub offset: usize,
}

pub(super) fn own(at: usize, bytes: usize, stride: usize, label: &'static str) {
    if bytes == 0 {
        return;
    }
    let end = at + bytes;
    let mut owned = OWNED.write().unwrap_or_else(PoisonError::into_inner);
    // Labelled ranges are disjoint. So the ranges that overlap the new range are consecutive, and the last of these
    // begins below `end`.
    while let Some((start, old)) = owned.range(..end).next_back().map(|(s, o)| (*s, o.end)) {
        if old <= at {
            break;
        }
        owned.remove(&start);
    }
    owned.insert(at, Owned { end, stride, label });
}

pub(super) fn disown(at: usize) {
    OWNED.write().unwrap_or_else(PoisonError::into_inner).remove(&at);
}

pub(super) fn find(address: usize) -> Option<LabelledAddress> {
    let owned = OWNED.read().unwrap_or_else(PoisonError::into_inner);
    let (start, o) = owned.range(..=address).next_back().filter(|(_, o)| address < o.end)?;
    let offset = (address - start) % o.stride;
    Some(LabelledAddress { label: o.label, object: address - offset, offset })
}

/// A range of memory with an owner.
#[derive(Clone, Debug)]
pub struct Region {
    /// The addresses of the region.
    pub range: std::ops::Range<usize>,
    /// The size of each object there, in bytes.
    pub stride: usize,
    /// The name of the objects.
    pub label: &'static str,
}

/// All memory with an owner, sorted by address.
pub fn owned() -> Vec<Region> {
    let owned = OWNED.read().unwrap_or_else(PoisonError::into_inner);
    owned.iter().map(|(at, o)| Region { range: *at..o.end, stride: o.stride, label: o.label }).collect()
}
