//! The weights of nice values. As on Linux, each nice step changes the weight by a factor of 1.25.

const STEPS: usize = 40;

/// 1.25 to the powers from 20 (nice -20) to -19 (nice 19), times 2^`shift`, rounded. With `up`, the exponents have the
/// opposite sign.
const fn powers(shift: u32, up: bool) -> [u32; STEPS] {
    let mut out = [0; STEPS];
    let mut i = 0;
    while i < STEPS {
        let nice = i as i32 - 20;
        let steps = nice.unsigned_abs();
        // 1.25^n is 5^n / 4^n.
        let (mut five, mut four) = (1u128, 1u128);
        let mut n = 0;
        while n < steps {
            five *= 5;
            four *= 4;
            n += 1;
        }
        let (by, over) = if (nice > 0) == up { (five, four) } else { (four, five) };
        out[i] = (((by << shift) + over / 2) / over) as u32;
        i += 1;
    }
    out
}

/// The weight of each nice value: 1024 at nice 0.
static WEIGHTS: [u32; STEPS] = powers(10, false);
/// The inverse of each weight, scaled so that it is 2^16 at nice 0.
static INVERSE: [u32; STEPS] = powers(16, true);

fn index(nice: i8) -> usize {
    (nice.clamp(-20, 19) + 20) as usize
}

/// Converts CPU time of a thread at `nice` to the time that its turn is charged, both in nanoseconds. It is `ns`
/// divided by the thread's weight relative to nice 0. The result is rounded up, so that every run makes the rest of a
/// turn shorter.
#[inline(always)]
pub(crate) fn weighted(ns: u64, nice: i8) -> u64 {
    // Fast path: most threads have nice 0.
    if nice == 0 {
        return ns;
    }
    // A limit of 2^40 ns (18 minutes) prevents an overflow. Beyond it the exact value makes no difference.
    (ns.min(1 << 40) * u64::from(INVERSE[index(nice)])).div_ceil(1 << 16)
}

/// The inverse of [`weighted`]: how many nanoseconds a thread at `nice` runs for a charge of `ns`. Rounded up, so that
/// the rest of a turn is never 0.
#[inline(always)]
pub(crate) fn unweighted(ns: u64, nice: i8) -> u64 {
    if nice == 0 {
        return ns;
    }
    (ns.min(1 << 40) * u64::from(WEIGHTS[index(nice)])).div_ceil(1 << 10)
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn a_step_is_a_factor_of_five_quarters_from_end_to_end() {
        for nice in -20..=19i8 {
            let exact = 4e6 * 1.25f64.powi(-i32::from(nice));
            let turn = unweighted(4_000_000, nice) as f64;
            assert!((turn - exact).abs() <= exact * 0.04, "{nice}: {turn} is not {exact}");
            let back = weighted(turn as u64, nice) as f64;
            assert!((back - 4e6).abs() <= 4e6 * 0.04, "{nice}: {back}");
        }
        assert_eq!((unweighted(1024, -20), unweighted(1024, 0)), (88_818, 1024));
        assert_eq!(weighted(u64::MAX, 19), weighted(1 << 40, 19), "nothing overflows");
        assert_eq!(weighted(77, 0), 77);
        for nice in -20..=19 {
            for left in 1..1000 {
                assert!(unweighted(left, nice) > 0 && weighted(unweighted(left, nice), nice) * 100 >= left * 96);
                assert!(weighted(1, nice) > 0);
            }
        }
    }
}
