//! Time measurements with Criterion: a warm-up, samples, and their median. Criterion prints the confidence interval
//! too.

use crate::Failure;
use crate::bench::Size;
use criterion::{BatchSize, Criterion, SamplingMode};
use std::time::Duration;

/// The least time for all samples. Sampling takes longer if one call of the routine for each sample takes longer.
const LONG: Duration = Duration::from_millis(1500);
/// The number of samples. It is Criterion's least number, because a routine of the lab consists of thousands of
/// operations.
const SAMPLES: usize = 10;

/// The median time in seconds of one call of `routine`. `setup` makes the argument of each call. The time includes
/// neither `setup` nor the drop of the result. Criterion's own report goes to standard error, because
/// [`crate::bench::Report`] has reserved standard output.
pub fn median<I, O>(
    size: Size,
    name: &str,
    mut setup: impl FnMut() -> I,
    mut routine: impl FnMut(I) -> O,
) -> Result<f64, Failure> {
    let long = size.of(LONG / 1000, LONG);
    let tool = |what: &str, e: &dyn std::fmt::Display| Failure::Tool(format!("{name}: {what}: {e}"));
    let kept = tempfile::tempdir().map_err(|e| tool("no directory could be made for the samples", &e))?;
    let mut criterion = Criterion::default().without_plots().output_directory(kept.path());
    let mut group = criterion.benchmark_group("lab");
    group.sample_size(SAMPLES).measurement_time(long).warm_up_time(long / 5).sampling_mode(SamplingMode::Flat);
    group.bench_function(name, |b| b.iter_batched(&mut setup, &mut routine, BatchSize::PerIteration));
    group.finish();
    let file = kept.path().join("lab").join(name).join("new/estimates.json");
    let text = std::fs::read_to_string(&file).map_err(|e| tool("Criterion kept no estimates", &e))?;
    let estimates: serde_json::Value = serde_json::from_str(&text).map_err(|e| tool("Criterion's estimates", &e))?;
    let nanoseconds = estimates["median"]["point_estimate"].as_f64();
    nanoseconds.map(|n| n * 1e-9).ok_or_else(|| Failure::Tool(format!("{name}: Criterion's estimates hold no median")))
}

/// The seconds that `a` and `b` took in each round. The first round runs `a` before `b`, the next `b` before `a`, and
/// so on. So on a busy machine, a disturbance of one sample also affects the other sample of the round.
pub fn pairs(
    rounds: usize,
    mut a: impl FnMut() -> Result<Duration, Failure>,
    mut b: impl FnMut() -> Result<Duration, Failure>,
) -> Result<Vec<(f64, f64)>, Failure> {
    // One call of each warms the caches, and makes the host allocate memory.
    a()?;
    b()?;
    (0..rounds)
        .map(|round| {
            let (a, b) = if round % 2 == 0 {
                let a = a()?;
                (a, b()?)
            } else {
                let b = b()?;
                (a()?, b)
            };
            Ok((a.as_secs_f64(), b.as_secs_f64()))
        })
        .collect()
}

/// The median of a few values.
pub fn middle(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_the_routines_time_without_its_setup() {
        let wait = |ms| std::thread::sleep(Duration::from_millis(ms));
        // The assertion holds even on a busy machine: half of the short waits take less than the shortest long wait.
        let seconds = median(Size::Whole, "wait", || wait(40), |()| wait(2)).unwrap();
        assert!((0.002..0.040).contains(&seconds), "{seconds}");
    }

    #[test]
    fn a_median_is_the_value_in_the_middle_and_pairs_alternate() {
        assert_eq!(middle([3.0, 1.0, 100.0].into_iter()), 3.0);
        let order = std::cell::RefCell::new(String::new());
        let note = |c: char, ms| {
            order.borrow_mut().push(c);
            Ok(Duration::from_millis(ms))
        };
        let both = pairs(3, || note('a', 1), || note('b', 2)).unwrap();
        assert_eq!((both, order.into_inner().as_str()), (vec![(0.001, 0.002); 3], "ababbaab"));
    }
}
