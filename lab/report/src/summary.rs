//! The summary of a run: how often Quire is ahead, and a line for each claim of a source (a published design).

use quire_results::{Comparison, Experiment, Judged, Run, Source, Verdict, statistics::Interval};
use serde::Serialize;

use crate::{number, words};

/// The numbers of comparisons that Quire wins and loses.
#[derive(Debug, Default, Serialize)]
pub struct Score {
    /// The comparisons that Quire wins.
    pub ahead: usize,
    /// The comparisons without a difference.
    pub none: usize,
    /// The comparisons that Quire loses.
    pub behind: usize,
}

impl Score {
    /// Counts one more verdict.
    fn add(&mut self, verdict: Verdict) {
        match verdict {
            Verdict::Ahead => self.ahead += 1,
            Verdict::None => self.none += 1,
            Verdict::Behind => self.behind += 1,
        }
    }

    /// The score of these comparisons, against all sides.
    pub fn of(comparisons: &[Comparison<'_>]) -> Score {
        Score::of_verdicts(comparisons.iter().map(|c| c.verdict))
    }

    /// The score of these verdicts.
    pub fn of_verdicts(verdicts: impl Iterator<Item = Verdict>) -> Score {
        let mut score = Score::default();
        verdicts.for_each(|v| score.add(v));
        score
    }
}

/// A source, and the results for its claims.
#[derive(Debug, Serialize)]
pub struct SourceClaims {
    /// The short name, for example `S0`.
    pub name: &'static str,
    /// The project and the year.
    pub who: &'static str,
    /// The design of the source.
    pub idea: &'static str,
    /// A line for each claim and run.
    pub lines: Vec<Line>,
    /// For each run, the claim that represents the source, and the number of claims that hold.
    pub heads: Vec<Head>,
}

/// The results of one source in one run.
#[derive(Debug, Serialize)]
pub struct Head {
    /// The index of the run, from 0.
    pub run: usize,
    /// The index of the claim that represents the source, in the list of the source's claims.
    pub line: usize,
    /// The number of claims that hold for Quire.
    pub holds: usize,
    /// The number of claims that were measured.
    pub claims: usize,
}

/// One claim in one run.
#[derive(Debug, Serialize)]
pub struct Line {
    /// The index of the run, from 0.
    pub run: usize,
    /// The link to the experiment in the page.
    pub href: String,
    /// The experiment's title.
    pub experiment: String,
    /// The source's statement.
    pub headline: String,
    /// The measure that is compared.
    pub measure: String,
    /// The place of the cases that are compared.
    pub place: &'static str,
    /// The factor by which Quire is better than the design that the source replaced.
    pub ours: Option<Times>,
    /// The factor by which the source's own design is better than the design that it replaced.
    pub source: Option<Times>,
    /// Whether the source's own design is rerun.
    pub reproduces: bool,
    /// The factor by which Quire is better than Linux.
    pub linux: Option<Times>,
    /// The measure and place of Linux's figure, which differ from those of the claim. `None` if the claim has no
    /// counterpart in a guest.
    pub reading: Option<String>,
    /// The least factor with which the claim holds.
    pub least: String,
}

/// A factor by which one side is better.
#[derive(Debug, Serialize)]
pub struct Times {
    /// The factor as text, for example `3.2×`.
    pub text: String,
    /// The interval of the factor.
    pub spread: String,
    /// The CSS class: `ahead`, `none` or `behind`.
    pub class: &'static str,
    /// Whether the factor reaches the claim's least factor.
    pub holds: bool,
}

impl Times {
    fn of(interval: Option<Interval>, holds: Option<bool>) -> Option<Times> {
        let interval = interval?;
        let (text, spread) = number::interval(&interval, number::short);
        let class = match interval {
            i if i.holds(1.0) || i.middle.is_nan() => "none",
            i if i.middle > 1.0 => "ahead",
            _ => "behind",
        };
        Some(Times {
            text: text + "×",
            spread: spread.unwrap_or_else(|| "one sample".to_owned()),
            class,
            holds: holds == Some(true),
        })
    }
}

/// The sources in order: short name, project and year, and design.
const SOURCES: [(Source, &str, &str, &str); 6] = [
    (Source::S0, "S0", "DragonFly BSD, 2019", "No record for a mapped page"),
    (Source::S1, "S1", "DragonFly BSD, 2011", "Page queues fan out"),
    (Source::S2, "S2", "FreeBSD D19826, 2019", "A map's tree that knows its gaps"),
    (Source::S3, "S3", "DragonFly BSD, 2017", "As many processes as memory holds"),
    (Source::S4, "S4", "OpenBSD, 2026", "Ranges of pages, not each offset"),
    (Source::All, "All", "The whole", "Everything at once"),
];

/// The short name of a source.
pub fn name(source: Source) -> &'static str {
    SOURCES.iter().find(|(s, ..)| *s == source).map_or("", |(_, name, ..)| name)
}

/// All sources. `href` returns the link to an experiment in the page. `Source::All` is left out if it has no claims.
pub fn sources(runs: &[Run], href: impl Fn(&Experiment) -> String) -> Vec<SourceClaims> {
    let told = SOURCES.iter().map(|&(source, name, who, idea)| {
        let mut lines = Vec::new();
        for (run, of) in runs.iter().enumerate() {
            for experiment in of.experiments.iter().filter(|e| e.source == source) {
                lines.extend(experiment.judged().iter().map(|judged| line(judged, run, &href(experiment), experiment)));
            }
        }
        lines.sort_by(|a, b| (&a.href, &a.headline, a.run).cmp(&(&b.href, &b.headline, b.run)));
        let heads = (0..runs.len()).filter_map(|run| head(&lines, run)).collect();
        SourceClaims { name, who, idea, lines, heads }
    });
    told.filter(|t| t.name != "All" || !t.lines.is_empty()).collect()
}

/// The results of a source in a run. The first claim that was measured represents the source.
fn head(lines: &[Line], run: usize) -> Option<Head> {
    let of = |l: &&Line| l.run == run && l.ours.is_some();
    let line = lines.iter().position(|l| of(&l)).or_else(|| lines.iter().position(|l| l.run == run))?;
    let claims = lines.iter().filter(of).count();
    let holds = lines.iter().filter(of).filter(|l| l.ours.as_ref().is_some_and(|t| t.holds)).count();
    Some(Head { run, line, holds, claims })
}

fn line(judged: &Judged<'_>, run: usize, href: &str, experiment: &Experiment) -> Line {
    Line {
        run,
        href: href.to_owned(),
        experiment: experiment.title.clone(),
        headline: judged.claim.headline.clone(),
        measure: words::measure(&experiment.name, &judged.claim.measure),
        place: judged.claim.place.name(),
        ours: Times::of(judged.ours, judged.holds()),
        source: Times::of(judged.source, judged.reproduced()),
        reproduces: judged.claim.reproduces,
        linux: Times::of(judged.linux, Some(true)),
        reading: judged.claim.linux.as_ref().map(quire_results::Reading::told),
        least: number::times(judged.claim.least),
    }
}
