//! Changes between two runs, of different machines or of different versions. Each side's figures are compared with its
//! own earlier figures.

use crate::{Better, Case, Experiment, Kind, Run, Verdict, statistics, statistics::Interval, verdict::against};

/// A figure of one run, compared with the same figure of another run.
#[derive(Debug, Clone, PartialEq)]
pub struct Change<'a> {
    /// The experiment in this run.
    pub experiment: &'a Experiment,
    /// The case in this run.
    pub case: &'a Case,
    /// The measure's name.
    pub measure: &'a str,
    /// Whether the figure is counted or timed.
    pub kind: Kind,
    /// This run's figure divided by the other run's.
    pub ratio: Interval,
    /// The factor by which this run's figure is better. Below 1 it is worse.
    pub times: f64,
    /// The verdict for this run.
    pub verdict: Verdict,
}

impl Run {
    /// Every figure that both runs have, compared. A quick and a full run have none in common, because their rounds do
    /// different work.
    pub fn changes<'a>(&'a self, other: &Run) -> Vec<Change<'a>> {
        let mut all = Vec::new();
        for experiment in self.experiments.iter().filter(|_| self.mode == other.mode) {
            let Some(was) = other.experiments.iter().find(|e| e.name == experiment.name) else { continue };
            for case in &experiment.cases {
                let same = |c: &&Case| (c.side, c.place, &c.parameters) == (case.side, case.place, &case.parameters);
                let Some(was) = was.cases.iter().find(same) else { continue };
                for (measure, now) in &case.measures {
                    let Some(then) = was.measures.get(measure).filter(|m| m.unit == now.unit) else { continue };
                    let Some((ratio, verdict)) = against(now, then, case.place) else { continue };
                    let times = match now.better {
                        Better::More => ratio.middle,
                        Better::Less => 1.0 / ratio.middle,
                    };
                    all.push(Change { experiment, case, measure, kind: now.kind, ratio, times, verdict });
                }
            }
        }
        all
    }
}

/// The factor by which the figures are typically better: the median of the finite factors. `None` if there are none.
pub fn typical<'a>(changes: impl IntoIterator<Item = &'a Change<'a>>) -> Option<f64> {
    let times: Vec<f64> = changes.into_iter().map(|c| c.times).filter(|t| t.is_finite()).collect();
    statistics::median(&times)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Mode, Side, tests::example};

    #[test]
    fn each_side_is_compared_with_itself() {
        let (first, mut second) = (example().runs.remove(0), example().runs.remove(0));
        for case in &mut second.experiments[0].cases {
            // The other sides' rates are twice as high as in the first run, and Quire's four times.
            let by = if case.side == Side::Ours { 4.0 } else { 2.0 };
            case.measures.values_mut().flat_map(|m| &mut m.samples).for_each(|s| *s *= by);
        }
        let changes = second.changes(&first);
        assert_eq!(changes.len(), second.experiments[0].cases.iter().map(|c| c.measures.len()).sum::<usize>());
        let of = |side| changes.iter().filter(move |c| c.case.side == side);
        assert!(of(Side::Ours).all(|c| c.verdict == Verdict::Ahead && (c.times - 4.0).abs() < 0.1), "{changes:?}");
        assert_eq!(typical(of(Side::Before)).map(f64::round), Some(2.0));
        assert_eq!(typical(of(Side::Linux)), None);
        assert!(first.changes(&first).iter().all(|c| c.verdict == Verdict::None && c.times == 1.0));
        second.mode = Mode::Full;
        assert!(second.changes(&first).is_empty(), "rounds of another mode do not do the same");
    }
}
