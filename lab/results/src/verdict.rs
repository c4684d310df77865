//! Verdicts: which of two sides is better in a measure that both have.

use std::collections::BTreeMap;

use crate::{
    Better, Case, Claim, Experiment, Kind, Measure, Parameter, Place, Side,
    statistics::{self, Interval},
};

/// How one side compares with another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// The side is better.
    Ahead,
    /// The interval contains 1, so no difference is shown.
    None,
    /// The other side is better.
    Behind,
}

/// A comparison of Quire with another side, in the same place and with the same parameters.
#[derive(Debug, Clone, PartialEq)]
pub struct Comparison<'a> {
    /// Quire's case.
    pub ours: &'a Case,
    /// The other side's case.
    pub other: &'a Case,
    /// The measure's name.
    pub measure: &'a str,
    /// Quire's figure divided by the other side's.
    pub ratio: Interval,
    /// The verdict for Quire.
    pub verdict: Verdict,
}

impl Comparison<'_> {
    /// The factor by which Quire is worse, for costs and for rates. It is below 1 if Quire is better.
    pub fn worse_by(&self) -> f64 {
        match self.ours.measures.get(self.measure).map(|m| m.better) {
            Some(Better::More) => 1.0 / self.ratio.middle,
            _ => self.ratio.middle,
        }
    }

    /// [`Comparison::worse_by`], adjusted for lists that show the worst first. A counted cost below one counts as one,
    /// because a tenth of a line against none is little. Any other infinite ratio counts as 1.
    pub fn weight(&self) -> f64 {
        let figure = |case: &Case| {
            let measure = case.measures.get(self.measure)?;
            let counted = (measure.kind, measure.better) == (Kind::Count, Better::Less);
            counted.then(|| statistics::median(&measure.samples)).flatten()
        };
        match (figure(self.ours), figure(self.other)) {
            (Some(ours), Some(other)) => ours.max(1.0) / other.max(1.0),
            _ if self.worse_by().is_infinite() => 1.0,
            _ => self.worse_by(),
        }
    }
}

/// A claim, and the ratios that were measured.
#[derive(Debug, Clone, PartialEq)]
pub struct Judged<'a> {
    /// The claim.
    pub claim: &'a Claim,
    /// The factor by which Quire is better than the design that the source replaced.
    pub ours: Option<Interval>,
    /// The factor by which the source's own design is better than the design that it replaced, if the lab reruns it.
    pub source: Option<Interval>,
    /// The factor by which Quire is better than Linux.
    pub linux: Option<Interval>,
}

impl Judged<'_> {
    /// Whether Quire is better by at least the factor of the claim. `None` if a figure is missing.
    pub fn holds(&self) -> Option<bool> {
        self.ours.map(|i| i.middle >= self.claim.least)
    }

    /// Whether the source's own design is better by at least that factor. `None` if the claim is not about that design.
    pub fn reproduced(&self) -> Option<bool> {
        self.source.filter(|_| self.claim.reproduces).map(|i| i.middle >= self.claim.least)
    }
}

impl Measure {
    /// The median with its interval.
    pub fn interval(&self) -> Option<Interval> {
        statistics::interval(&self.samples)
    }
}

impl Experiment {
    /// The comparisons of Quire with each other side in cases of the same place and parameters. A limit is not a side.
    pub fn comparisons(&self) -> Vec<Comparison<'_>> {
        let mut all = Vec::new();
        for ours in self.cases.iter().filter(|c| c.side == Side::Ours) {
            for other in self.cases.iter().filter(|c| !matches!(c.side, Side::Ours | Side::Limit)) {
                if other.place != ours.place || other.parameters != ours.parameters {
                    continue;
                }
                for (name, mine) in &ours.measures {
                    let Some(theirs) = other.measures.get(name) else { continue };
                    if let Some((ratio, verdict)) = against(mine, theirs, ours.place) {
                        all.push(Comparison { ours, other, measure: name, ratio, verdict });
                    }
                }
            }
        }
        all
    }

    /// The experiment's claims, with their measured ratios.
    pub fn judged(&self) -> Vec<Judged<'_>> {
        self.claims.iter().map(|claim| self.judge(claim)).collect()
    }

    fn judge<'a>(&'a self, claim: &'a Claim) -> Judged<'a> {
        let times = |side| self.times(side, Side::Before, &claim.measure, claim.place, &claim.parameters);
        let reading = claim.linux.as_ref();
        Judged {
            claim,
            ours: times(Side::Ours),
            source: times(Side::After),
            linux: reading.and_then(|r| self.times(Side::Ours, Side::Linux, &r.measure, r.place, &r.parameters)),
        }
    }

    /// The factor by which `side` is better than `than`, in cases with these parameters. The cases may have further
    /// parameters.
    fn times(
        &self,
        side: Side,
        than: Side,
        measure: &str,
        place: Place,
        parameters: &BTreeMap<String, Parameter>,
    ) -> Option<Interval> {
        let of = |side| {
            let fits = |c: &&Case| {
                c.side == side && c.place == place && parameters.iter().all(|(k, v)| c.parameters.get(k) == Some(v))
            };
            self.cases.iter().filter(fits).find_map(|c| c.measures.get(measure))
        };
        let (a, b) = (of(side)?, of(than)?);
        match a.better {
            Better::More => quotient(a, b, place),
            Better::Less => quotient(b, a, place),
        }
    }
}

/// The ratio of two medians. Counts are equal in each round, so one sample of a count is enough. Counts of guests vary
/// a little, so their interval is widened.
fn quotient(over: &Measure, under: &Measure, place: Place) -> Option<Interval> {
    let samples = |m: &Measure| match (m.kind, &m.samples[..]) {
        (Kind::Count, &[one]) => vec![one, one],
        (_, all) => all.to_vec(),
    };
    let mut quotient = statistics::quotient(&samples(over), &samples(under))?;
    if place == Place::GuestCounted {
        let several = over.samples.len().min(under.samples.len()) >= SEVERAL;
        let wrong = if several { GUESTS_COUNTS } else { GUESTS_ONCE };
        quotient.low = quotient.low.min(quotient.middle * (1.0 - wrong));
        quotient.high = quotient.high.max(quotient.middle * (1.0 + wrong));
    }
    Some(quotient)
}

/// The relative error of a ratio of two medians of guests' counts. Most counts vary by one or two percent, some by
/// five.
pub const GUESTS_COUNTS: f64 = 0.02;
/// The relative error for counts with fewer than [`SEVERAL`] samples.
pub const GUESTS_ONCE: f64 = 0.05;
/// The number of samples from which [`GUESTS_COUNTS`] is the error of a guest's count.
pub const SEVERAL: usize = 3;

/// The ratio of our figure and theirs, and the verdict for our side.
pub(crate) fn against(ours: &Measure, theirs: &Measure, place: Place) -> Option<(Interval, Verdict)> {
    let ratio = quotient(ours, theirs, place)?;
    let verdict = match ours.better {
        _ if ratio.holds(1.0) => Verdict::None,
        Better::Less if ratio.middle < 1.0 => Verdict::Ahead,
        Better::More if ratio.middle > 1.0 => Verdict::Ahead,
        _ => Verdict::Behind,
    };
    Some((ratio, verdict))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Reading, tests::example};

    #[test]
    fn ours_is_compared_where_place_and_parameters_are_equal() {
        let mut results = example();
        let experiment = &mut results.runs[0].experiments[0];
        let all = experiment.comparisons();
        assert_eq!(all.len(), 1);
        assert_eq!((all[0].measure, all[0].verdict), ("rate", Verdict::Ahead));
        assert!((9.0..12.0).contains(&all[0].ratio.middle));
        experiment.cases[1].place = Place::Guest;
        assert!(experiment.comparisons().is_empty());
    }

    #[test]
    fn a_tenth_of_a_line_against_none_is_little() {
        let mut results = example();
        let experiment = &mut results.runs[0].experiments[0];
        let mut weigh = |kind, ours: f64, other: f64| {
            for (case, n) in experiment.cases.iter_mut().zip([ours, other]) {
                let measure = case.measures.get_mut("rate").unwrap();
                (measure.kind, measure.better, measure.samples) = (kind, Better::Less, vec![n; 3]);
            }
            let all = experiment.comparisons();
            (all[0].worse_by(), all[0].weight())
        };
        assert_eq!(weigh(Kind::Count, 0.1, 0.0), (f64::INFINITY, 1.0));
        assert_eq!(weigh(Kind::Count, 20.0, 0.0), (f64::INFINITY, 20.0));
        assert_eq!(weigh(Kind::Count, 8.0, 2.0), (4.0, 4.0));
        assert_eq!(weigh(Kind::Time, 0.5, 0.125), (4.0, 4.0));
        assert_eq!(weigh(Kind::Time, 0.5, 0.0), (f64::INFINITY, 1.0));
    }

    #[test]
    fn a_difference_within_its_interval_does_not_count() {
        let measure =
            |better, samples: &[f64]| Measure { unit: "x".into(), kind: Kind::Time, better, samples: samples.to_vec() };
        let judge =
            |better, a: &[f64], b: &[f64]| against(&measure(better, a), &measure(better, b), Place::Hosted).unwrap().1;
        assert_eq!(judge(Better::Less, &[1.0, 2.0, 3.0], &[1.1, 2.1, 2.9]), Verdict::None);
        assert_eq!(judge(Better::Less, &[2.0, 2.0], &[1.0, 1.0]), Verdict::Behind);
        assert_eq!(judge(Better::More, &[2.0, 2.0], &[1.0, 1.0]), Verdict::Ahead);
        assert_eq!(judge(Better::Less, &[2.0], &[1.0]), Verdict::None, "one sample has no interval");
        assert_eq!(judge(Better::Less, &[0.0, 0.0], &[0.0, 0.0]), Verdict::None);
        assert_eq!(judge(Better::Less, &[1.0, 1.0], &[0.0, 0.0]), Verdict::Behind);
        assert_eq!(judge(Better::Less, &[0.0, 0.0], &[1.0, 1.0]), Verdict::Ahead);
        let count = |n: f64| Measure { kind: Kind::Count, ..measure(Better::Less, &[n]) };
        let counted = |a, b, place| against(&count(a), &count(b), place).unwrap().1;
        assert_eq!(counted(101.0, 100.0, Place::Hosted), Verdict::Behind, "what is counted repeats");
        assert_eq!(counted(104.0, 100.0, Place::GuestCounted), Verdict::None, "but in guests to some percent");
        assert_eq!(counted(94.0, 100.0, Place::GuestCounted), Verdict::Ahead);
        let several = |n: f64| Measure { samples: vec![n; 3], ..count(n) };
        let several = |a, b| against(&several(a), &several(b), Place::GuestCounted).unwrap().1;
        assert_eq!((several(101.0, 100.0), several(103.0, 100.0)), (Verdict::None, Verdict::Behind));
        assert_eq!(judge(Better::Less, &[0.25, 0.5, 0.0], &[0.0; 3]), Verdict::None, "it may have been nothing, too");
        let times =
            |a, b| quotient(&measure(Better::Less, a), &measure(Better::Less, b), Place::Hosted).unwrap().middle;
        assert_eq!((times(&[4.0], &[0.0]), times(&[0.0], &[0.0])), (f64::INFINITY, 1.0));
    }

    #[test]
    fn a_claim_is_held_against_the_sides_that_it_names() {
        let mut results = example();
        let experiment = &mut results.runs[0].experiments[0];
        experiment.claims.push(Claim {
            headline: "four times".into(),
            measure: "rate".into(),
            place: Place::Hosted,
            parameters: [("cpus".to_owned(), 2u32.into())].into(),
            least: 4.0,
            reproduces: true,
            linux: None,
        });
        let judged = experiment.judged();
        assert_eq!((judged[0].holds(), judged[0].reproduced(), judged[0].linux), (Some(true), None, None));
    }

    #[test]
    fn a_guest_count_is_as_uncertain_in_a_claim_as_in_a_comparison() {
        let mut results = example();
        let experiment = &mut results.runs[0].experiments[0];
        for (case, (side, n)) in experiment.cases.iter_mut().zip([(Side::Ours, 100.0), (Side::Linux, 101.0)]) {
            (case.side, case.place) = (side, Place::GuestCounted);
            let measure = case.measures.get_mut("rate").unwrap();
            (measure.kind, measure.better, measure.samples) = (Kind::Count, Better::Less, vec![n; 3]);
        }
        experiment.claims.push(Claim {
            headline: "four times".into(),
            measure: "rate".into(),
            place: Place::Hosted,
            parameters: BTreeMap::new(),
            least: 4.0,
            reproduces: true,
            linux: Some(Reading {
                measure: "rate".into(),
                place: Place::GuestCounted,
                parameters: [("cpus".to_owned(), 2u32.into())].into(),
            }),
        });
        let linux = experiment.judged()[0].linux.unwrap();
        assert!((linux.middle - 1.01).abs() < 1e-9 && linux.holds(1.0), "{linux:?}");
        assert_eq!(experiment.comparisons()[0].verdict, Verdict::None);
    }
}
