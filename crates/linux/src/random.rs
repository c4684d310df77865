//! Random numbers: ChaCha20, a stream for each CPU, all seeded by the machine.

use crate::Ctx;
use crate::errno::Errno;
use crate::machine::Machine;
use crate::tables::TableMemory;
use linux_raw_sys::general as raw;
use quire_sync::{PerCpu, Rank, SpinLock, preempt_off};
use rand_chacha::ChaCha20Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};

/// The kernel's random number generator.
pub struct Random {
    cpus: PerCpu<SpinLock<ChaCha20Rng>>,
}

/// Bytes made in one hold of the lock.
const STEP: usize = 256;

impl Random {
    /// Bytes of the streams of `cpus` CPUs.
    pub(crate) const fn bytes(cpus: usize) -> usize {
        PerCpu::<SpinLock<ChaCha20Rng>>::bytes(cpus)
    }

    /// For `cpus` CPUs, seeded by `seed`. ENOMEM where there is no room for them.
    pub fn new(seed: [u8; 32], cpus: usize, tables: &mut TableMemory) -> Result<Random, Errno> {
        let memory = tables.take(Self::bytes(cpus))?;
        let mut seeds = ChaCha20Rng::from_seed(seed);
        let stream = |_| {
            let mut seed = [0; 32];
            seeds.fill_bytes(&mut seed);
            SpinLock::new(Rank::OWNED, ChaCha20Rng::from_seed(seed))
        };
        // SAFETY: fresh memory of that size and alignment, which is never freed.
        Ok(Random { cpus: unsafe { PerCpu::new(memory, cpus, stream) } })
    }

    /// Fills `into`.
    pub fn fill(&self, into: &mut [u8]) {
        for part in into.chunks_mut(STEP) {
            let cpu = preempt_off();
            self.cpus.mine(&cpu).lock().fill_bytes(part);
        }
    }
}

/// `getrandom`
pub fn sys_getrandom<M: Machine>(ctx: &mut Ctx<'_, M>, to: u64, len: usize, flags: u32) -> Result<usize, Errno> {
    /// As Linux: no call gives more.
    const MOST: usize = 0x7fff_f000;
    if flags & !(raw::GRND_NONBLOCK | raw::GRND_RANDOM | raw::GRND_INSECURE) != 0 {
        return Err(Errno::EINVAL);
    }
    if flags & raw::GRND_RANDOM != 0 && flags & raw::GRND_INSECURE != 0 {
        return Err(Errno::EINVAL);
    }
    let len = len.min(MOST);
    let mut done = 0;
    let mut part = [0u8; STEP];
    while done < len {
        let n = STEP.min(len - done);
        ctx.linux.random.fill(&mut part[..n]);
        if ctx.user().write_bytes(to.wrapping_add(done as u64), &part[..n]).is_err() {
            return if done > 0 { Ok(done) } else { Err(Errno::EFAULT) };
        }
        done += n;
        if ctx.interrupted() && done < len {
            break;
        }
    }
    Ok(done)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_fills_differ_and_a_seed_repeats() {
        quire_sync::hooks::threads::set_cpu(0);
        let random = || {
            let memory = vec![0u128; Random::bytes(2) / 16 + 16].leak();
            let at = memory.as_mut_ptr().cast::<u8>();
            let at = core::ptr::NonNull::new(at.wrapping_add(at.align_offset(128))).expect("an address");
            // SAFETY: leaked; what is behind the alignment is enough.
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
