//! A set of CPUs that many CPUs change and read, such as the targets of a shootdown.

use crate::atomic::{AtomicU64, Ordering};
use crate::hooks::CpuId;

/// The largest number of CPUs that a set can name.
pub const MAX_CPUS: usize = 256;
const WORDS: usize = MAX_CPUS / 64;

/// A set of up to [`MAX_CPUS`] CPUs, changed one bit at a time by atomic read-modify-writes.
pub struct CpuSet {
    words: [AtomicU64; WORDS],
}

crate::assert_layout!(CpuSet { size: 32, align: 8, words: 0 });

impl CpuSet {
    /// The empty set.
    pub fn new() -> Self {
        CpuSet { words: core::array::from_fn(|_| AtomicU64::new(0)) }
    }

    /// Adds `cpu`. Returns whether it was not in the set before. Callers follow with
    /// [`fence_after_rmw`](crate::atomic::fence_after_rmw) where they need a full fence.
    pub fn insert(&self, cpu: CpuId) -> bool {
        self.words[cpu / 64].fetch_or(1 << (cpu % 64), Ordering::AcqRel) & 1 << (cpu % 64) == 0
    }

    /// Removes `cpu`.
    pub fn remove(&self, cpu: CpuId) {
        self.words[cpu / 64].fetch_and(!(1 << (cpu % 64)), Ordering::AcqRel);
    }

    /// Whether `cpu` is in the set.
    pub fn contains(&self, cpu: CpuId) -> bool {
        self.words[cpu / 64].load(Ordering::Acquire) & (1 << (cpu % 64)) != 0
    }

    /// Replaces the set by `mask`, one word at a time, so not atomically.
    pub fn replace(&self, mask: &CpuMask) {
        self.words.iter().zip(mask.words).for_each(|(word, new)| word.store(new, Ordering::Release));
    }

    /// Whether all [`MAX_CPUS`] CPUs are in the set. Each word is read once.
    pub fn is_full(&self) -> bool {
        self.words.iter().all(|word| word.load(Ordering::Acquire) == !0)
    }

    /// A copy of the set as it is now, each word read once.
    pub fn snapshot(&self) -> CpuMask {
        CpuMask { words: core::array::from_fn(|i| self.words[i].load(Ordering::Acquire)) }
    }
}

impl Default for CpuSet {
    fn default() -> Self {
        Self::new()
    }
}

/// A plain, unshared set of CPUs.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct CpuMask {
    words: [u64; WORDS],
}

impl CpuMask {
    /// The set that holds only `cpu`.
    pub fn only(cpu: CpuId) -> Self {
        let mut m = CpuMask::default();
        m.insert(cpu);
        m
    }
    /// The CPUs from 0 to `n - 1`.
    pub fn first(n: usize) -> Self {
        let word = |i: usize| match n.saturating_sub(i * 64) {
            left @ 0..64 => (1 << left) - 1,
            _ => !0,
        };
        CpuMask { words: core::array::from_fn(word) }
    }
    /// Adds `cpu`.
    pub fn insert(&mut self, cpu: CpuId) {
        self.words[cpu / 64] |= 1 << (cpu % 64);
    }
    /// Removes `cpu`.
    pub fn remove(&mut self, cpu: CpuId) {
        self.words[cpu / 64] &= !(1 << (cpu % 64));
    }
    /// Whether `cpu` is in the set.
    pub fn contains(&self, cpu: CpuId) -> bool {
        self.words[cpu / 64] & (1 << (cpu % 64)) != 0
    }
    /// The CPUs of the set that are in `a`, or not in `b`.
    pub fn in_or_not_in(&self, a: &CpuMask, b: &CpuMask) -> CpuMask {
        CpuMask { words: core::array::from_fn(|i| self.words[i] & (a.words[i] | !b.words[i])) }
    }
    /// The CPUs that are in both sets.
    pub fn and(&self, other: &CpuMask) -> CpuMask {
        self.in_or_not_in(other, &CpuMask::first(MAX_CPUS))
    }
    /// The number of CPUs in the set.
    pub fn len(&self) -> usize {
        self.words.iter().map(|w| w.count_ones() as usize).sum()
    }
    /// Whether all [`MAX_CPUS`] CPUs are in the set.
    pub fn is_full(&self) -> bool {
        self.words.iter().all(|w| *w == !0)
    }
    /// Whether exactly one CPU is in the set. Cheaper than a count of the CPUs.
    pub fn is_single(&self) -> bool {
        let mut some = self.words.iter().filter(|w| **w != 0);
        some.next().is_some_and(|w| w & (w - 1) == 0) && some.next().is_none()
    }
    /// The words of the set: CPU `n` is bit `n % 64` of word `n / 64`.
    pub fn words(&self) -> &[u64; WORDS] {
        &self.words
    }
    /// Whether no CPU is in the set.
    pub fn is_empty(&self) -> bool {
        self.words.iter().all(|w| *w == 0)
    }
    /// The CPUs in the set, ascending.
    pub fn iter(&self) -> impl Iterator<Item = CpuId> + '_ {
        self.words.iter().enumerate().flat_map(|(i, w)| {
            let mut w = *w;
            core::iter::from_fn(move || {
                (w != 0).then(|| {
                    let bit = w.trailing_zeros() as usize;
                    w &= w - 1;
                    i * 64 + bit
                })
            })
        })
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn a_set_is_single_or_full_where_its_count_says_so() {
        let mut masks: Vec<CpuMask> = [0, 1, 2, 64, 65, 255, 256].map(CpuMask::first).to_vec();
        masks.extend([0, 63, 64, 255].map(CpuMask::only));
        let mut two = CpuMask::only(3);
        two.insert(200);
        masks.push(two);
        for mask in masks {
            assert_eq!(mask.is_single(), mask.len() == 1, "{mask:?}");
            assert_eq!(mask.is_full(), mask.len() == MAX_CPUS, "{mask:?}");
        }
    }
}
