//! An axis: its range, the positions of values on it, and the values that are written beside it.

use std::ops::Range;

use plotters::coord::ranged1d::{KeyPointHint, NoDefaultFormatting, Ranged, ValueFormatter};

/// An axis of numbers. On a logarithmic axis, zero has its own position below the least value, because counts of zero
/// are common.
#[derive(Debug, Clone, PartialEq)]
pub struct Axis {
    log: bool,
    /// The values at the two ends. On a logarithmic axis, their logarithms.
    low: f64,
    high: f64,
    /// The position of zero, on a logarithmic axis that shows zero.
    zero: Option<f64>,
    ticks: Vec<f64>,
}

/// The distance, in decades, of zero from the least value.
const ZERO_GAP: f64 = 0.5;

impl Axis {
    /// Makes an axis for these values. A logarithmic axis needs a value above zero and none below zero. Otherwise the
    /// axis is linear.
    pub fn new(values: impl IntoIterator<Item = f64>, log: bool, ticks: usize) -> Axis {
        // Values of 1e300 and above are left out, because their sums and differences would not be finite.
        let values: Vec<f64> = values.into_iter().filter(|v| v.is_finite() && v.abs() < 1e300).collect();
        let positive = values.iter().copied().filter(|v| *v > 0.0).fold(f64::INFINITY, f64::min);
        let least = values.iter().copied().fold(f64::INFINITY, f64::min);
        let most = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        if log && positive.is_finite() && least >= 0.0 {
            Axis::logarithmic(positive, most, least == 0.0, ticks)
        } else {
            Axis::linear(least.min(0.0), most.max(0.0), ticks)
        }
    }

    /// Makes a horizontal axis. If it is linear, it begins and ends near its values, because no length is read from it.
    pub fn across(values: impl IntoIterator<Item = f64>, log: bool, ticks: usize) -> Axis {
        let values: Vec<f64> = values.into_iter().collect();
        let mut axis = Axis::new(values.iter().copied(), log, ticks);
        let finite = || values.iter().copied().filter(|v| v.is_finite() && v.abs() < 1e300);
        let (least, most) = (finite().fold(f64::INFINITY, f64::min), finite().fold(f64::NEG_INFINITY, f64::max));
        if !axis.log && most > least {
            (axis.low, axis.high) = (least - (most - least) * 0.08, most + (most - least) * 0.08);
            let (low, high) = (axis.low, axis.high);
            axis.ticks.retain(|t| (low..=high).contains(t));
        }
        axis
    }

    fn linear(low: f64, high: f64, ticks: usize) -> Axis {
        let high = if high > low { high } else { low + 1.0 };
        let step = nice((high - low) / ticks.max(1) as f64);
        // The axis ends only a little above the highest value, so that no part of the picture is empty.
        let (first, end) = ((low / step).floor(), high + (high - low) * 0.04);
        let last = (end / step).floor();
        let ticks = (0..=(last - first).clamp(0.0, 100.0) as usize).map(|i| (first + i as f64) * step).collect();
        Axis { log: false, low: first * step, high: end, zero: None, ticks }
    }

    fn logarithmic(low: f64, high: f64, zero: bool, ticks: usize) -> Axis {
        let (mut from, mut to) = (low.log10(), high.log10());
        if to - from < 0.3 {
            (from, to) = (from - 0.15, to + 0.15);
        } else {
            to += (to - from) * 0.03;
            from -= (to - from) * 0.03;
        }
        let (first, last) = (from.floor() as i32, to.ceil() as i32);
        let within = |v: &f64| (from..=to).contains(&v.log10());
        let digits = |set: &'static [f64]| {
            (first..=last).flat_map(move |e| set.iter().map(move |d| d * 10f64.powi(e))).filter(within)
        };
        let every = ((to - from) / ticks.max(1) as f64).ceil().max(1.0) as i32;
        let mut chosen: Vec<f64> =
            (first..=last).filter(|e| e % every == 0).map(|e| 10f64.powi(e)).filter(within).collect();
        for set in [&[1.0, 3.0][..], &[1.0, 2.0, 5.0], &[1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0]] {
            if chosen.len() < 3 {
                chosen = digits(set).collect();
            }
        }
        let place = zero.then_some(from - ZERO_GAP.max((to - from) * 0.08));
        if zero {
            chosen.insert(0, 0.0);
        }
        Axis { log: true, low: place.unwrap_or(from), high: to, zero: place, ticks: chosen }
    }

    /// Returns the axis with only `values` written beside it. The axis is unchanged if there are more than `most`
    /// values.
    pub fn at(mut self, mut values: Vec<f64>, most: usize) -> Axis {
        values.retain(|v| v.is_finite() && (0.0..=1.0).contains(&self.place(*v)));
        values.sort_by(f64::total_cmp);
        values.dedup();
        if (1..=most).contains(&values.len()) {
            self.ticks = values;
        }
        self
    }

    /// Whether the axis is logarithmic. [`Axis::new`] may have made it linear.
    pub fn is_log(&self) -> bool {
        self.log
    }

    /// The values that are written beside the axis.
    pub fn ticks(&self) -> &[f64] {
        &self.ticks
    }

    /// The value at the upper end of the axis.
    pub fn end(&self) -> f64 {
        if self.log { 10f64.powf(self.high) } else { self.high }
    }

    /// The value at the lower end of the axis.
    pub fn floor(&self) -> f64 {
        match self.log {
            true if self.zero.is_some() => 0.0,
            true => 10f64.powf(self.low),
            false => self.low,
        }
    }

    /// The position of a value, from 0 at the lower end to 1 at the upper end.
    pub fn place(&self, value: f64) -> f64 {
        let at = match (self.log, value > 0.0) {
            (true, true) => value.log10(),
            (true, false) => self.zero.unwrap_or(self.low),
            (false, _) => value,
        };
        (at - self.low) / (self.high - self.low)
    }
}

impl Ranged for Axis {
    type FormatOption = NoDefaultFormatting;
    type ValueType = f64;

    fn map(&self, value: &f64, (from, to): (i32, i32)) -> i32 {
        let place = self.place(*value).clamp(-0.01, 1.01);
        if place.is_nan() { from } else { from + (f64::from(to - from) * place).round() as i32 }
    }

    fn key_points<Hint: KeyPointHint>(&self, _: Hint) -> Vec<f64> {
        self.ticks.clone()
    }

    fn range(&self) -> Range<f64> {
        self.floor()..self.end()
    }
}

impl ValueFormatter<f64> for Axis {
    fn format_ext(&self, value: &f64) -> String {
        crate::number::short(*value)
    }
}

/// The smallest number of the form 1, 2, 2.5 or 5 times a power of ten that is not below `step`.
fn nice(step: f64) -> f64 {
    if !(step.is_finite() && step > f64::MIN_POSITIVE) {
        return 1.0;
    }
    let power = 10f64.powf(step.log10().floor());
    let digit = [1.0, 2.0, 2.5, 5.0].into_iter().find(|d| step <= d * power * 1.0001).unwrap_or(10.0);
    digit * power
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_linear_axis_begins_at_zero_and_ends_just_above_its_highest_value() {
        let axis = Axis::new([3.0, 87.0], false, 5);
        assert_eq!((axis.floor(), axis.ticks().len()), (0.0, 5));
        assert!((0.9..1.0).contains(&axis.place(87.0)));
        assert_eq!(Axis::new([0.0], false, 5).place(0.0), 0.0);
        assert!(Axis::new([], false, 5).ticks().len() > 1);
    }

    #[test]
    fn an_axis_across_begins_beside_its_least_value() {
        let axis = Axis::across([1.0, 2.0], false, 5).at(vec![1.0, 2.0], 9);
        assert!(axis.place(1.0) < 0.1 && axis.place(2.0) > 0.9 && axis.ticks() == [1.0, 2.0]);
        assert!(Axis::across([3.0], false, 5).place(3.0) > 0.5);
    }

    #[test]
    fn zero_has_a_place_on_a_logarithmic_axis() {
        let axis = Axis::new([0.0, 1.0, 1000.0], true, 5);
        assert!(axis.is_log() && axis.place(0.0) == 0.0 && axis.place(1.0) > 0.05 && axis.ticks()[0] == 0.0);
        assert!(!Axis::new([0.0], true, 5).is_log(), "nothing is above zero");
        assert!(!Axis::new([-1.0, 5.0], true, 5).is_log());
    }

    #[test]
    fn any_values_have_an_axis_on_which_they_lie() {
        let ends = [0.0, 1e-320, 1e-9, 0.5, 1.0, 7e9, 1e299, f64::MAX, -3.0, f64::NAN, f64::INFINITY];
        for a in ends {
            for b in ends {
                for log in [false, true] {
                    let axis = Axis::new([a, b], log, 5);
                    for v in [a, b] {
                        let at = axis.map(&v, (0, 1000));
                        assert!((-20..=1020).contains(&at), "{a} {b} {v} {log}: {at}");
                    }
                    assert!(axis.ticks().len() < 120 && axis.ticks().iter().all(|t| t.is_finite()), "{a} {b}");
                }
            }
        }
    }

    #[test]
    fn few_values_stand_beside_it_themselves() {
        let axis = Axis::new([1.0, 256.0], true, 5).at(vec![1.0, 2.0, 4.0, 256.0, 2.0], 9);
        assert_eq!(axis.ticks(), [1.0, 2.0, 4.0, 256.0]);
    }
}
