//! One verdict for each operation. An operation may have many measurements: instructions and rates, several sizes,
//! several numbers of CPUs. It counts once, and its worst comparison decides.

use crate::{Case, Comparison, Experiment, Kind, Parameter, Run, Side, Verdict};

/// The relative difference below which two figures count as equal, even if their intervals do not overlap.
pub const EQUAL: f64 = 0.03;

/// An operation compared with another side, with all its comparisons.
#[derive(Debug, Clone, PartialEq)]
pub struct Operation<'a> {
    /// The experiment that measures the operation.
    pub experiment: &'a Experiment,
    /// The parameter `what` of the operation's cases. `None` if the experiment has only one operation.
    pub what: Option<&'a str>,
    /// The name of the measure, if each measure counts as an operation of its own.
    pub measure: Option<&'a str>,
    /// Whether memory is compared. Otherwise work is compared.
    pub memory: bool,
    /// The verdict for Quire.
    pub verdict: Verdict,
    /// All comparisons of the operation. Those that decide come first.
    pub comparisons: Vec<Comparison<'a>>,
}

/// The numbers of operations that Quire wins and loses.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Tally {
    /// Operations that Quire wins.
    pub ahead: usize,
    /// Operations without a difference.
    pub equal: usize,
    /// Operations that Quire loses in at least one comparison.
    pub behind: usize,
}

impl Tally {
    /// Counts the verdicts of these operations.
    pub fn of(operations: &[Operation<'_>]) -> Tally {
        let count = |verdict| operations.iter().filter(|o| o.verdict == verdict).count();
        Tally { ahead: count(Verdict::Ahead), equal: count(Verdict::None), behind: count(Verdict::Behind) }
    }

    /// The number of all operations.
    pub fn all(&self) -> usize {
        self.ahead + self.equal + self.behind
    }
}

impl std::fmt::Display for Tally {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ahead {}, equal {}, behind {}", self.ahead, self.equal, self.behind)
    }
}

impl Comparison<'_> {
    /// The factor by which Quire is better. It is below 1 if Quire is worse. If one of the two figures is zero, a count
    /// below one counts as one.
    pub fn times(&self) -> f64 {
        let worse = self.worse_by();
        if worse > 0.0 && worse.is_finite() { 1.0 / worse } else { 1.0 / self.weight() }
    }

    /// The verdict for Quire. A difference below [`EQUAL`] counts as no difference.
    pub fn judged(&self) -> Verdict {
        let times = self.times();
        if (1.0 / (1.0 + EQUAL)..=1.0 + EQUAL).contains(&times) { Verdict::None } else { self.verdict }
    }
}

impl Operation<'_> {
    /// The comparison with the smallest factor, which is shown if Quire is behind.
    pub fn worst(&self) -> Option<&Comparison<'_>> {
        self.comparisons.first()
    }

    /// The factor by which Quire is better in the worst comparison.
    pub fn times(&self) -> f64 {
        self.worst().map_or(1.0, Comparison::times)
    }

    /// The least and the largest factor by which Quire is better, among comparisons of this kind. `None` if there are
    /// none.
    pub fn range(&self, kind: Kind) -> Option<(f64, f64)> {
        let of = |c: &&Comparison<'_>| c.ours.measures.get(c.measure).is_some_and(|m| m.kind == kind);
        let times: Vec<f64> = self.comparisons.iter().filter(of).map(Comparison::times).collect();
        let least = times.iter().copied().reduce(f64::min)?;
        Some((least, times.iter().copied().fold(least, f64::max)))
    }
}

impl Run {
    /// Every operation that guests do on Quire and on `side`, the worst for Quire first. The calibration does not
    /// count. A program that belongs to two experiments counts once.
    pub fn operations(&self, side: Side) -> Vec<Operation<'_>> {
        self.gather(&[side], |case, name| {
            let program = case.command.split_once(" -- ").and_then(|(_, c)| c.split(' ').next());
            Some((program.map(str::to_owned), None, is_memory(case, name)))
        })
    }

    /// Every operation of Quire compared with the designs before and after each source. Each measure counts as an
    /// operation of its own.
    pub fn baselines(&self) -> Vec<Operation<'_>> {
        self.gather(&[Side::Before, Side::After, Side::Plain], |case, name| {
            Some((None, Some(name.to_owned()), is_memory(case, name)))
        })
    }

    /// Groups the comparisons with these sides by operation. `part` distinguishes operations of the same name.
    fn gather<'a>(
        &'a self,
        sides: &[Side],
        part: impl Fn(&Case, &str) -> Option<(Option<String>, Option<String>, bool)>,
    ) -> Vec<Operation<'a>> {
        type Key<'a> = (Option<String>, Option<&'a str>, Option<String>, bool);
        let mut all: Vec<(Key<'a>, Operation<'a>)> = Vec::new();
        for experiment in self.experiments.iter().filter(|e| e.name != CALIBRATION) {
            for comparison in experiment.comparisons() {
                if !sides.contains(&comparison.other.side) {
                    continue;
                }
                let Some((program, measure, memory)) = part(comparison.ours, comparison.measure) else { continue };
                let what = what(comparison.ours);
                let key = (program.or(Some(experiment.name.clone())), what, measure.clone(), memory);
                match all.iter_mut().find(|(k, _)| *k == key) {
                    Some((_, operation)) if operation.experiment.name == experiment.name => {
                        operation.comparisons.push(comparison);
                    }
                    // The same program already counts for another experiment.
                    Some(_) => {}
                    None => {
                        let (measure, verdict) = (measure.is_some().then_some(comparison.measure), Verdict::None);
                        let comparisons = vec![comparison];
                        all.push((key, Operation { experiment, what, measure, memory, verdict, comparisons }));
                    }
                }
            }
        }
        let mut all: Vec<Operation<'a>> = all.into_iter().map(|(_, operation)| operation).collect();
        all.iter_mut().for_each(decide);
        all.sort_by(|a, b| rank(a.verdict).cmp(&rank(b.verdict)).then(a.times().total_cmp(&b.times())));
        all
    }
}

/// The experiment that measures the machines themselves.
pub const CALIBRATION: &str = "calibration";

/// The measures that decide for an operation with many measures. The other measures are parts of these.
const DECIDE: [&str; 4] = ["instructions", "rate", "wall", "time"];

/// Keeps the deciding comparisons, the worst first, and sets the verdict. If any comparison is behind, the operation is
/// behind. Otherwise, if any is ahead, the operation is ahead.
fn decide(operation: &mut Operation<'_>) {
    let all = &mut operation.comparisons;
    if !operation.memory && all.iter().any(|c| DECIDE.contains(&c.measure)) {
        all.retain(|c| DECIDE.contains(&c.measure));
    }
    let has = |verdict| move |c: &Comparison<'_>| c.judged() == verdict;
    operation.verdict = if all.iter().any(has(Verdict::Behind)) {
        Verdict::Behind
    } else if all.iter().any(has(Verdict::Ahead)) {
        Verdict::Ahead
    } else {
        Verdict::None
    };
    let verdict = operation.verdict;
    // Comparisons with another verdict come last, so that they do not represent the operation.
    all.sort_by(|a, b| (a.judged() != verdict).cmp(&(b.judged() != verdict)).then(a.times().total_cmp(&b.times())));
}

fn rank(verdict: Verdict) -> u8 {
    match verdict {
        Verdict::Behind => 0,
        Verdict::None => 1,
        Verdict::Ahead => 2,
    }
}

/// The operation of a case: its parameter `what`, if that is a text.
fn what(case: &Case) -> Option<&str> {
    match case.parameters.get("what") {
        Some(Parameter::Text(what)) => Some(what),
        _ => None,
    }
}

/// Whether the measure is an amount of memory.
fn is_memory(case: &Case, measure: &str) -> bool {
    measure.contains("memory") || case.measures.get(measure).is_some_and(|m| m.unit.starts_with("bytes"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Better, Measure, Place, tests::example};
    use std::collections::BTreeMap;

    fn case(side: Side, cpus: u32, measures: &[(&str, Kind, Better, f64)]) -> Case {
        let measure = |(name, kind, better, n): &(&str, Kind, Better, f64)| {
            ((*name).to_owned(), Measure { unit: "x".into(), kind: *kind, better: *better, samples: vec![*n; 3] })
        };
        Case {
            side,
            place: Place::Guest,
            parameters: BTreeMap::from([("cpus".to_owned(), cpus.into()), ("what".to_owned(), "fault".into())]),
            command: "./quire compare -- zerofill --seconds 1".into(),
            measures: measures.iter().map(measure).collect(),
            trouble: None,
        }
    }

    fn run(ours: [f64; 3], linux: [f64; 3]) -> Run {
        let mut run = example().runs.remove(0);
        let of = |side, n: [f64; 3]| {
            let rate = |n| ("rate", Kind::Time, Better::More, n);
            let all = [
                rate(n[1]),
                ("instructions", Kind::Count, Better::Less, n[0]),
                ("user", Kind::Time, Better::Less, 1.0),
            ];
            [case(side, 1, &all), case(side, 2, &[rate(n[2])])]
        };
        run.experiments[0].cases = of(Side::Ours, ours).into_iter().chain(of(Side::Linux, linux)).collect();
        run
    }

    #[test]
    fn an_operation_that_is_measured_many_ways_counts_once_and_the_worst_decides() {
        let tally = |ours, linux| Tally::of(&run(ours, linux).operations(Side::Linux)).to_string();
        assert_eq!(tally([1.0, 2.0, 2.0], [2.0, 1.0, 1.0]), "ahead 1, equal 0, behind 0");
        assert_eq!(tally([1.0, 2.0, 1.0], [2.0, 1.0, 2.0]), "ahead 0, equal 0, behind 1");
        assert_eq!(tally([100.0, 100.0, 100.0], [102.0, 98.0, 101.0]), "ahead 0, equal 1, behind 0");
        let run = run([1.0, 2.0, 1.0], [2.0, 1.0, 2.0]);
        let operations = run.operations(Side::Linux);
        assert_eq!((operations[0].times(), operations[0].comparisons.len()), (0.5, 3), "a part of it does not decide");
        assert_eq!(operations[0].range(Kind::Time), Some((0.5, 2.0)));
        assert_eq!(operations[0].range(Kind::Count), Some((2.0, 2.0)));
        assert!(run.baselines().is_empty() && run.operations(Side::LinuxLarge).is_empty());
    }

    #[test]
    fn a_program_that_serves_two_experiments_counts_once_and_the_calibration_never() {
        let mut run = run([1.0, 2.0, 2.0], [2.0, 1.0, 1.0]);
        let mut other = run.experiments[0].clone();
        other.name = "queues".into();
        run.experiments.push(other.clone());
        assert_eq!(run.operations(Side::Linux).len(), 1);
        other.cases.iter_mut().for_each(|c| c.command = "./quire compare -- spin".into());
        other.name = CALIBRATION.into();
        run.experiments.push(other.clone());
        assert_eq!(run.operations(Side::Linux).len(), 1);
        other.name = "map".into();
        run.experiments.push(other);
        assert_eq!(run.operations(Side::Linux).len(), 2);
    }
}
