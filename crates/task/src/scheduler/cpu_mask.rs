//! A shared set of CPUs whose bits can be claimed: if several CPUs clear a bit, only one of them gets `true`.

use quire_sync::CpuId;
use quire_sync::atomic::{AtomicU64, Ordering};
use quire_sync::cpuset::{CpuMask, MAX_CPUS};
use quire_sync::per_cpu::CachePadded;

const WORDS: usize = MAX_CPUS / 64;

/// A bit for each CPU. The words are written only when a CPU becomes idle, or crowded (threads wait on its queue). So
/// they stay in all caches.
pub(crate) struct CpuBits {
    words: CachePadded<[AtomicU64; WORDS]>,
}

impl CpuBits {
    pub fn new() -> Self {
        CpuBits { words: CachePadded(core::array::from_fn(|_| AtomicU64::new(0))) }
    }

    pub fn contains(&self, cpu: CpuId) -> bool {
        self.words[cpu / 64].load(Ordering::Relaxed) & (1 << (cpu % 64)) != 0
    }

    /// Whether no CPU is in the set.
    pub fn is_empty(&self) -> bool {
        self.words.iter().fold(0, |all, word| all | word.load(Ordering::Relaxed)) == 0
    }

    /// Adds `cpu` to the set. Writes nothing if it is in the set already.
    pub fn insert(&self, cpu: CpuId) {
        if !self.contains(cpu) {
            self.words[cpu / 64].fetch_or(1 << (cpu % 64), Ordering::AcqRel);
        }
    }

    /// Removes `cpu` from the set. Returns whether it was in the set. Writes nothing if it was not.
    pub fn remove(&self, cpu: CpuId) -> bool {
        self.contains(cpu)
            && self.words[cpu / 64].fetch_and(!(1 << (cpu % 64)), Ordering::AcqRel) & (1 << (cpu % 64)) != 0
    }

    /// A CPU that is in the set. The search goes upwards from `from`, and wraps around.
    pub fn any(&self, from: CpuId) -> Option<CpuId> {
        self.any_of(from, &[!0; WORDS])
    }

    /// As [`any`](Self::any), but only CPUs in `mask` are found.
    pub fn any_in(&self, from: CpuId, mask: &CpuMask) -> Option<CpuId> {
        self.any_of(from, mask.words())
    }

    fn any_of(&self, from: CpuId, mask: &[u64; WORDS]) -> Option<CpuId> {
        // Fast path: the set is usually empty.
        if self.words.iter().zip(mask).all(|(word, mask)| word.load(Ordering::Relaxed) & mask == 0) {
            return None;
        }
        let first = from / 64;
        for step in 0..=WORDS {
            let at = (first + step) % WORDS;
            let mut word = self.words[at].load(Ordering::Relaxed) & mask[at];
            if step == 0 {
                word &= !0 << (from % 64);
            } else if step == WORDS {
                word &= (1 << (from % 64)) - 1;
            }
            if word != 0 {
                return Some(at * 64 + word.trailing_zeros() as usize);
            }
        }
        None
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn a_search_goes_round_once_and_finds_every_bit() {
        let set = CpuBits::new();
        assert_eq!(set.any(5), None);
        assert!(set.is_empty());
        for cpu in [0, 5, 63, 64, 200, 255] {
            set.insert(cpu);
            for from in 0..MAX_CPUS {
                assert_eq!(set.any(from), Some(cpu), "from {from}");
            }
            assert!(set.remove(cpu) && !set.remove(cpu));
        }
        set.insert(3);
        set.insert(70);
        assert!(!set.is_empty());
        assert_eq!((set.any(4), set.any(71), set.any(0)), (Some(70), Some(3), Some(3)));
        assert_eq!(set.any_in(4, &CpuMask::only(3)), Some(3));
        assert_eq!(set.any_in(4, &CpuMask::only(71)), None);
    }
}
