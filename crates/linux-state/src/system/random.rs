//! Random numbers: a ChaCha20 stream for each CPU. The machine's entropy seeds all of them.

use crate::base::tables::TableMemory;
use crate::errno::Errno;
use quire_sync::{PerCpu, Rank, SpinLock, preempt_off};
use rand_chacha::ChaCha20Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};

/// The kernel's random number generator.
pub struct Random {
    cpus: PerCpu<SpinLock<ChaCha20Rng>>,
}

/// The number of bytes that are generated at a time with the lock held.
pub const STEP: usize = 256;

impl Random {
    /// The size of the memory for the streams of `cpus` CPUs, in bytes.
    pub const fn bytes(cpus: usize) -> usize {
        PerCpu::<SpinLock<ChaCha20Rng>>::bytes(cpus)
    }

    /// A generator for `cpus` CPUs with the seed `seed`. ENOMEM if `tables` has too little memory.
    pub fn new(seed: [u8; 32], cpus: usize, tables: &mut TableMemory) -> Result<Random, Errno> {
        let memory = tables.take(Self::bytes(cpus))?;
        let mut seeds = ChaCha20Rng::from_seed(seed);
        let stream = |_| {
            let mut seed = [0; 32];
            seeds.fill_bytes(&mut seed);
            SpinLock::new(Rank::OWNED, ChaCha20Rng::from_seed(seed))
        };
        // SAFETY: the memory is fresh, has that size and alignment, and is never freed.
        Ok(Random { cpus: unsafe { PerCpu::new(memory, cpus, stream) } })
    }

    /// Fills `into` with random bytes.
    pub fn fill(&self, into: &mut [u8]) {
        for part in into.chunks_mut(STEP) {
            let cpu = preempt_off();
            self.cpus.mine(&cpu).lock().fill_bytes(part);
        }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn two_fills_differ_and_a_seed_repeats() {
        quire_sync::hooks::threads::set_cpu(0);
        let random = || {
            let memory = vec![0u128; Random::bytes(2) / 16 + 16].leak();
            let at = memory.as_mut_ptr().cast::<u8>();
            let at = core::ptr::NonNull::new(at.wrapping_add(at.align_offset(128))).expect("an address");
            // SAFETY: the memory is leaked, and enough of its bytes follow the aligned address.
            let mut tables = unsafe { TableMemory::new(at, Random::bytes(2).next_multiple_of(128)) };
            Random::new([7; 32], 2, &mut tables).expect("memory")
        };
        let (a, b) = (random(), random());
        let (mut x, mut y, mut z) = ([0u8; 600], [0u8; 600], [0u8; 600]);
        a.fill(&mut x);
        a.fill(&mut y);
        b.fill(&mut z);
        assert!(x != y && x == z);
    }
}
