//! Seeds for random numbers.

use crate::cpu::clock;
use crate::cpu::features::{Feature, has};
use core::arch::asm;

/// Returns a seed of 32 bytes. It is computed from the jitter of the time-stamp counter, and from the CPU's generator
/// (RDRAND) if there is one.
pub fn seed() -> [u8; 32] {
    let mut out = [0u8; 32];
    let mut state = clock::ticks();
    for word in out.chunks_exact_mut(8) {
        // The duration of the loop varies with the other activity of the machine.
        for _ in 0..64 {
            let before = clock::ticks();
            core::hint::black_box(state);
            state = mix(state ^ clock::ticks().wrapping_sub(before).rotate_left(32) ^ before);
        }
        let random = if has(Feature::Rdrand) { hardware() } else { None };
        word.copy_from_slice(&(state ^ random.unwrap_or(0)).to_le_bytes());
    }
    out
}

/// The finaliser of SplitMix64 (Steele, Lea, Flood 2014).
fn mix(mut z: u64) -> u64 {
    z = z.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// A word from the CPU's generator; `None` if it has none after ten attempts. It may be exhausted for a short time.
fn hardware() -> Option<u64> {
    for _ in 0..10 {
        let (value, there): (u64, u8);
        // SAFETY: the caller has checked that the CPU has RDRAND.
        unsafe { asm!("rdrand {}", "setc {}", out(reg) value, out(reg_byte) there, options(nomem, nostack)) }
        if there != 0 {
            return Some(value);
        }
    }
    None
}
