//! Medians and their intervals. The intervals come from the bootstrap (B. Efron, *Bootstrap methods: another look at
//! the jackknife*, Ann. Statist. 7, 1979). The samples are drawn again with replacement, and the interval is the middle
//! 95 % of the medians of the draws. With few samples this interval is the range of the samples, which contains the
//! true median less often ([`SURE`], [`by_chance`]).

/// The number of times that samples are drawn again.
const DRAWS: usize = 2000;
/// The quantiles of the draws at the two ends of the interval.
const TAILS: (f64, f64) = (0.025, 0.975);

/// The least number of samples with which a median's interval contains the true median in 95 % of cases. With fewer
/// samples the interval is their range. The range of three contains the true median in 75 % of cases, that of five in
/// 94 %.
pub const SURE: usize = 6;

/// The name of a median's interval of this number of samples: `range of 3` or `95 % interval of 9`.
pub fn told(samples: usize) -> String {
    if samples < SURE { format!("range of {samples}") } else { format!("95 % interval of {samples}") }
}

/// The probability that two equal sides seem to differ, because the interval of their ratio does not contain 1.
/// `samples` is the smaller number of samples of the two sides. With two or three samples, the ranges must not overlap.
/// This happens in 2 of the 6 orders of two samples, and in 2 of the 20 orders of three. The values for more samples
/// come from trials.
pub fn by_chance(samples: usize) -> f64 {
    match samples {
        0 | 1 => 0.0,
        2 => 1.0 / 3.0,
        3 => 1.0 / 10.0,
        4 => 1.0 / 15.0,
        _ => 1.0 / 20.0,
    }
}

/// A value and its interval. [`told`] returns the interval's confidence in words.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Interval {
    /// The median, or the ratio of two medians.
    pub middle: f64,
    /// The lower end of the interval.
    pub low: f64,
    /// The upper end of the interval.
    pub high: f64,
}

impl Interval {
    /// Whether the interval contains `value`.
    pub fn holds(&self, value: f64) -> bool {
        (self.low..=self.high).contains(&value)
    }
}

/// The median: the middle value, or the mean of the two middle values. `None` without values.
pub fn median(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    quantile(&sorted, 0.5)
}

/// The quantile `q` of sorted values, interpolated linearly. `None` without values.
pub fn quantile(sorted: &[f64], q: f64) -> Option<f64> {
    let last = sorted.len().checked_sub(1)?;
    let at = q.clamp(0.0, 1.0) * last as f64;
    let (below, above) = (at.floor() as usize, at.ceil() as usize);
    let (below, above, part) = (sorted[below], sorted[above], at - below as f64);
    if above.is_infinite() {
        // Between a number and infinity, the nearer of the two is returned, because interpolation is impossible.
        return Some(if part < 0.5 { below } else { above });
    }
    Some(below + (above - below) * part)
}

/// The median with its interval. One sample has no spread, so its interval is the whole line. If all samples are equal,
/// as counts usually are, the interval is one point.
pub fn interval(samples: &[f64]) -> Option<Interval> {
    let middle = median(samples)?;
    if samples.len() == 1 {
        return Some(Interval { middle, low: f64::NEG_INFINITY, high: f64::INFINITY });
    }
    let mut random = fastrand::Rng::with_seed(SEED);
    let draws = (0..DRAWS).filter_map(|_| median(&drawn(samples, &mut random))).collect();
    Some(between(middle, draws))
}

/// The ratio of two medians with its interval. `None` if a side has no samples, or if the divisor is 0. With one sample
/// on a side, the interval is the whole line, as in [`interval`].
pub fn ratio(over: &[f64], under: &[f64]) -> Option<Interval> {
    if median(under)? == 0.0 { None } else { quotient(over, under) }
}

/// The ratio of two medians that may be zero, with its interval. The ratio of two zeros is 1. The ratio of any other
/// value to zero is infinite.
pub fn quotient(over: &[f64], under: &[f64]) -> Option<Interval> {
    let quotient = |a: &[f64], b: &[f64]| match (median(a)?, median(b)?) {
        (0.0, 0.0) => Some(1.0),
        (a, b) => Some(a / b),
    };
    let middle = quotient(over, under)?;
    if over.len() == 1 || under.len() == 1 {
        return Some(Interval { middle, low: 0.0, high: f64::INFINITY });
    }
    let mut random = fastrand::Rng::with_seed(SEED);
    let draw = |_| quotient(&drawn(over, &mut random), &drawn(under, &mut random));
    Some(between(middle, (0..DRAWS).filter_map(draw).collect()))
}

/// The fixed seed of the draws, so that equal samples always get the same interval.
const SEED: u64 = 0x5175_6972_6500_0001;

fn drawn(samples: &[f64], random: &mut fastrand::Rng) -> Vec<f64> {
    samples.iter().map(|_| samples[random.usize(..samples.len())]).collect()
}

fn between(middle: f64, mut draws: Vec<f64>) -> Interval {
    draws.sort_by(f64::total_cmp);
    let end = |q| quantile(&draws, q).unwrap_or(middle);
    Interval { middle, low: end(TAILS.0), high: end(TAILS.1) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_ignores_an_outlier() {
        assert_eq!(median(&[3.0, 1000.0, 1.0]), Some(3.0));
        assert_eq!(median(&[4.0, 2.0]), Some(3.0));
        assert_eq!(median(&[]), None);
        assert_eq!(quantile(&[1.0, 2.0, 3.0, 4.0, 5.0], 0.25), Some(2.0));
    }

    #[test]
    fn more_samples_narrow_the_interval_around_the_median() {
        let spread = |n: u32| (0..n).map(|i| 100.0 + f64::from(i * 37 % 21)).collect::<Vec<_>>();
        let (few, many) = (interval(&spread(5)).unwrap(), interval(&spread(500)).unwrap());
        for i in [few, many] {
            assert!(i.low <= i.middle && i.middle <= i.high && i.holds(i.middle), "{i:?}");
        }
        assert!(many.high - many.low < few.high - few.low, "{few:?} {many:?}");
    }

    #[test]
    fn counts_have_a_point_and_one_sample_has_the_whole_line() {
        let count = interval(&[7.0, 7.0, 7.0]).unwrap();
        assert_eq!((count.low, count.high), (7.0, 7.0));
        assert!(interval(&[7.0]).unwrap().holds(1e9) && ratio(&[1.0], &[7.0, 7.0]).unwrap().holds(1.0));
        assert_eq!(interval(&[]), None);
    }

    #[test]
    fn about_one_in_twenty_intervals_misses_the_truth() {
        let mut random = fastrand::Rng::with_seed(7);
        let missed = (0..60)
            .filter(|_| {
                let samples: Vec<f64> = (0..25).map(|_| random.f64()).collect();
                !interval(&samples).unwrap().holds(0.5)
            })
            .count();
        assert!((1..=10).contains(&missed), "{missed} of 60");
    }

    #[test]
    fn of_few_samples_the_interval_is_their_range_and_is_called_so() {
        let mut random = fastrand::Rng::with_seed(3);
        for samples in 2..9 {
            let drawn: Vec<f64> = (0..samples).map(|_| random.f64()).collect();
            let (low, high) = drawn.iter().fold((f64::MAX, f64::MIN), |(l, h), v| (l.min(*v), h.max(*v)));
            let of = interval(&drawn).unwrap();
            assert_eq!((of.low, of.high) == (low, high), samples < SURE, "{samples}");
        }
        assert_eq!((told(3), told(SURE)), ("range of 3".to_owned(), "95 % interval of 6".to_owned()));
    }

    #[test]
    fn equal_sides_seem_to_differ_as_often_as_is_said() {
        let mut random = fastrand::Rng::with_seed(11);
        for (samples, most) in [(2, 0.4), (3, 0.14), (4, 0.1), (5, 0.08)] {
            let mut side = || (0..samples).map(|_| 100.0 + random.f64()).collect::<Vec<_>>();
            let differ = (0..300).filter(|_| !quotient(&side(), &side()).unwrap().holds(1.0)).count();
            let share = differ as f64 / 300.0;
            let said = by_chance(samples);
            assert!(share <= most && share >= said / 3.0, "{share} of {samples} samples, {said} said");
        }
    }

    #[test]
    fn a_quotient_that_is_no_number_is_none() {
        assert_eq!(ratio(&[1.0, 2.0], &[0.0, 0.0]), None);
        let twice = ratio(&[2.0, 2.0], &[1.0, 1.0]).unwrap();
        assert_eq!((twice.low, twice.middle, twice.high), (2.0, 2.0, 2.0));
    }

    #[test]
    fn samples_that_may_be_nothing_widen_the_interval() {
        let of = |over: &[f64], under: &[f64]| quotient(over, under).map(|i| (i.low, i.middle, i.high)).unwrap();
        let infinity = f64::INFINITY;
        assert_eq!(of(&[0.0; 3], &[0.0; 3]), (1.0, 1.0, 1.0));
        assert_eq!(of(&[1.0; 3], &[0.0; 3]), (infinity, infinity, infinity));
        assert_eq!(of(&[0.0; 3], &[1.0; 3]), (0.0, 0.0, 0.0));
        // A draw may also give zero for the dividend of the first ratio, and for the divisor of the second.
        assert_eq!(of(&[0.25, 0.5, 0.0], &[0.0; 3]), (1.0, infinity, infinity));
        assert_eq!(of(&[1.0; 3], &[0.0, 2.0, 2.0]), (0.5, 0.5, infinity));
        assert_eq!(quantile(&[1.0, infinity], 0.4), Some(1.0));
        assert_eq!(quantile(&[infinity, infinity], 0.5), Some(infinity));
    }
}
