//! The results as text for a terminal: a table for each experiment, and the claims of the sources.

use std::collections::{BTreeMap, BTreeSet};

use comfy_table::{CellAlignment, Table, presets};
use quire_results::{
    Case, Experiment, Kind, Measure, Run, Side, Verdict,
    change::{Change, typical},
    operation::Tally,
    statistics::Interval,
};

/// One measure, in one place and with one set of parameters, of each side that has it.
struct Row<'a> {
    name: &'a str,
    like: &'a Case,
    sides: BTreeMap<Side, &'a Measure>,
}

/// The table of an experiment: a row for each measure and set of parameters, counts first, and a column for each side.
pub fn of(experiment: &Experiment) -> Table {
    let mut rows: Vec<Row<'_>> = Vec::new();
    for case in &experiment.cases {
        for (name, measure) in case.measures.iter().filter(|(_, m)| !m.samples.is_empty()) {
            let same =
                |r: &Row<'_>| r.name == name && r.like.place == case.place && r.like.parameters == case.parameters;
            match rows.iter_mut().find(|r| same(r)) {
                Some(row) => {
                    row.sides.insert(case.side, measure);
                }
                None => rows.push(Row { name, like: case, sides: BTreeMap::from([(case.side, measure)]) }),
            }
        }
    }
    rows.sort_by_key(|r| (r.sides.values().map(|m| m.kind).min().unwrap_or(Kind::Time), r.like.place));
    let sides: BTreeSet<Side> = rows.iter().flat_map(|r| r.sides.keys().copied()).collect();
    let mut table = Table::new();
    let mut header = vec!["where".to_owned(), "with".to_owned(), "measure".to_owned(), "unit".to_owned()];
    header.extend(sides.iter().map(|s| s.title().to_owned()));
    header.push("Quire over".to_owned());
    table.load_style(presets::ASCII_MARKDOWN).set_header(header);
    for column in 4..4 + sides.len() {
        if let Some(column) = table.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    let comparisons = experiment.comparisons();
    for row in rows {
        let with: Vec<String> = row.like.parameters.iter().map(|(k, v)| format!("{k} {v}")).collect();
        let unit = row.sides.values().next().map_or("", |m| m.unit.as_str());
        let mut cells = vec![row.like.place.name().to_owned(), with.join(", "), row.name.to_owned(), unit.to_owned()];
        let value = |side| row.sides.get(side).and_then(|m| m.interval()).map_or("-".to_owned(), figure);
        cells.extend(sides.iter().map(value));
        let over = comparisons.iter().filter(|c| {
            c.measure == row.name && c.ours.place == row.like.place && c.ours.parameters == row.like.parameters
        });
        let over: Vec<String> =
            over.map(|c| format!("{} {}", c.other.side.title(), quotient(c.ratio, c.verdict))).collect();
        cells.push(over.join(", "));
        table.add_row(cells);
    }
    let missing: Vec<&Case> = experiment.cases.iter().filter(|c| c.trouble.is_some()).collect();
    for case in missing {
        let why = case.trouble.as_deref().unwrap_or_default().to_owned();
        table.add_row([case.place.name().to_owned(), case.id(), "missing".to_owned(), String::new(), why]);
    }
    table
}

/// The summary for Quire: how often it is ahead and behind, the cases in which it is behind, and each source's claim.
pub fn summary(run: &Run) -> String {
    let mut counts = [0; 3];
    let mut behind = Vec::new();
    for experiment in &run.experiments {
        for c in experiment.comparisons() {
            counts[match c.verdict {
                Verdict::Ahead => 0,
                Verdict::None => 1,
                Verdict::Behind => 2,
            }] += 1;
            if c.verdict == Verdict::Behind {
                let other = c.other.side.title();
                behind.push((
                    c.weight(),
                    format!("{}: {} {}: {:.2} of {other}", experiment.name, c.ours.id(), c.measure, c.ratio.middle),
                ));
            }
        }
    }
    // The largest difference comes first.
    behind.sort_by(|a, b| b.0.total_cmp(&a.0));
    let mut text = String::from("\n");
    for side in [Side::Linux, Side::LinuxLarge] {
        let operations = run.operations(side);
        if !operations.is_empty() {
            text += &format!("Against {}: {}, one verdict an operation\n", side.title(), Tally::of(&operations));
        }
    }
    text += &format!("All comparisons: ahead {}, no difference {}, behind {}\n", counts[0], counts[1], counts[2]);
    behind.iter().for_each(|(_, line)| text += &format!("  {line}\n"));
    for judged in run.experiments.iter().flat_map(|e| e.judged()) {
        let times = |i: Option<Interval>| match i {
            None => "not measured".to_owned(),
            Some(i) if i.middle.is_infinite() => "infinitely many times".to_owned(),
            Some(i) => format!("{:.2} times", i.middle),
        };
        let source = match (judged.source, judged.reproduced()) {
            (None, _) => String::new(),
            (own, Some(false)) => format!("; the source's own figure: {}, not reproduced", times(own)),
            (own, _) => format!("; the source's own: {}", times(own)),
        };
        // The text names the measure and the place of Linux's figure, because they differ from those of the claim.
        let linux = match &judged.claim.linux {
            None => "no counterpart in a guest".to_owned(),
            Some(reading) => format!("{} ({})", times(judged.linux), reading.told()),
        };
        text += &format!(
            "{}\n  ours: {} as good as before ({}, {}){source}\n  as good as Linux: {linux}\n",
            judged.claim.headline,
            times(judged.ours),
            judged.claim.measure,
            judged.claim.place.name(),
        );
    }
    text
}

/// A comparison with an earlier run: how many times better the figures of each experiment typically are, for Quire and
/// for the other sides.
pub fn against(run: &Run, first: &Run) -> String {
    if run.mode != first.mode {
        return "measured in another mode; the figures cannot be compared".to_owned();
    }
    let changes = run.changes(first);
    let header = ["times better", "Quire, counted", "Quire, timed", "other sides, timed", "Quire better, same, worse"];
    let mut table = Table::new();
    table.load_style(presets::ASCII_MARKDOWN).set_header(header);
    for experiment in &run.experiments {
        let of = |ours: bool, kind: Kind| {
            let fits = move |c: &&Change<'_>| (c.case.side == Side::Ours) == ours && c.kind == kind;
            changes.iter().filter(|c| c.experiment.name == experiment.name).filter(fits)
        };
        let middle = |ours, kind| typical(of(ours, kind)).map_or("-".to_owned(), |t| format!("{t:.2}"));
        let all = || of(true, Kind::Count).chain(of(true, Kind::Time));
        let count = |verdict| all().filter(|c| c.verdict == verdict).count();
        table.add_row([
            experiment.title.clone(),
            middle(true, Kind::Count),
            middle(true, Kind::Time),
            middle(false, Kind::Time),
            format!("{}, {}, {}", count(Verdict::Ahead), count(Verdict::None), count(Verdict::Behind)),
        ]);
    }
    table.to_string()
}

/// A median, with half the width of its interval if that is finite and above zero.
fn figure(i: Interval) -> String {
    let half = (i.high - i.low) / 2.0;
    if half.is_finite() && half > 0.0 { format!("{} ±{}", digits(i.middle), digits(half)) } else { digits(i.middle) }
}

fn quotient(ratio: Interval, verdict: Verdict) -> String {
    match verdict {
        Verdict::None => "none".to_owned(),
        Verdict::Ahead => format!("{:.2}", ratio.middle),
        Verdict::Behind => format!("{:.2} (behind)", ratio.middle),
    }
}

/// A number with three significant digits, and with k, M or G.
fn digits(value: f64) -> String {
    let (scaled, unit) = match value.abs() {
        v if v >= 1e9 => (value / 1e9, " G"),
        v if v >= 1e6 => (value / 1e6, " M"),
        v if v >= 1e4 => (value / 1e3, " k"),
        _ => (value, ""),
    };
    match scaled.abs() {
        v if v == 0.0 || (v >= 100.0 && unit.is_empty() && value.fract() == 0.0) => format!("{scaled:.0}{unit}"),
        v if v >= 100.0 => format!("{scaled:.0}{unit}"),
        v if v >= 10.0 => format!("{scaled:.1}{unit}"),
        v if v >= 0.01 => format!("{scaled:.2}{unit}"),
        _ => format!("{scaled:.1e}"),
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use quire_results::{Better, Claim, Machine, Mode, Place, Reading, Source};

    fn case(side: Side, samples: &[f64]) -> Case {
        let measure =
            Measure { unit: "op/s".into(), kind: Kind::Time, better: Better::More, samples: samples.to_vec() };
        Case {
            side,
            place: Place::Guest,
            parameters: BTreeMap::from([("cpus".to_owned(), 2u32.into())]),
            command: String::new(),
            measures: BTreeMap::from([("rate".to_owned(), measure)]),
            trouble: None,
        }
    }

    pub fn experiment(cases: Vec<Case>) -> Experiment {
        Experiment {
            name: "x".into(),
            source: Source::S0,
            title: "X".into(),
            about: String::new(),
            caveats: Vec::new(),
            command: String::new(),
            seconds: 0.0,
            claims: Vec::new(),
            plots: Vec::new(),
            cases,
        }
    }

    #[test]
    fn a_row_has_all_sides_the_slower_side_and_reasons_for_gaps() {
        let broken = Case { trouble: Some("it died".into()), ..case(Side::Before, &[]) };
        let experiment = experiment(vec![case(Side::Ours, &[1.0, 1.0]), case(Side::Linux, &[2.0, 2.0]), broken]);
        let text = of(&experiment).to_string();
        assert!(text.contains("Linux 0.50 (behind)") && text.contains("cpus 2"), "{text}");
        assert!(text.contains("it died"), "{text}");
    }

    #[test]
    fn linuxs_figure_is_printed_with_its_reading() {
        let mut experiment = experiment(vec![case(Side::Ours, &[1.0, 1.0]), case(Side::Linux, &[2.0, 2.0])]);
        let reading = Reading { measure: "rate".into(), place: Place::Guest, parameters: BTreeMap::new() };
        let claim = |headline: &str, linux| Claim {
            headline: headline.into(),
            measure: "lines".into(),
            place: Place::Recording,
            parameters: BTreeMap::new(),
            least: 1.0,
            reproduces: true,
            linux,
        };
        experiment.claims = vec![claim("one", Some(reading)), claim("other", None)];
        let machine = Machine {
            processor: String::new(),
            cpus: 1,
            memory_mib: 1,
            system: String::new(),
            emulator: String::new(),
            versions: BTreeMap::new(),
        };
        let (began, mode, experiments) = (String::new(), Mode::Quick, vec![experiment]);
        let text =
            summary(&Run { machine, began, seconds: 0.0, mode, seed: 1, complete: true, remark: None, experiments });
        assert!(text.contains("as good as Linux: 0.50 times (rate, guest)"), "{text}");
        assert!(text.contains("as good as Linux: no counterpart in a guest"), "{text}");
    }

    #[test]
    fn figures_are_short() {
        let shown = [0.0, 0.5, 12.34, 1234.0, 123_456.0, 2.5e9, 1e-7].map(digits);
        assert_eq!(shown, ["0", "0.50", "12.3", "1234", "123 k", "2.50 G", "1.0e-7"]);
    }
}
