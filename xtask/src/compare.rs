//! `./quire compare`: one program on Quire and on Debian's Linux, in the same QEMU with the same files, alternating, and what
//! both printed side by side.

use std::{
    collections::BTreeMap,
    fs::File,
    io::{Read, Seek, Write as _},
    os::fd::AsFd,
    time::{Duration, Instant},
};

use comfy_table::{CellAlignment, Table, presets};

use crate::{
    boot::{Kernel, On, Shape},
    cli,
    failure::{Doing, Failure, Result},
    image::{order::Order, tree::Tree},
    machine::{
        outcome::Outcome,
        qemu,
        relay::{self, Ends},
    },
    places::Places,
    progress::Step,
    run,
};

/// One run of one side.
const LIMIT: Duration = Duration::from_secs(1200);

/// A line that the program printed: `name value unit`.
#[derive(Debug, Clone, PartialEq, serde::Serialize)]
pub struct Line {
    /// What was measured.
    pub name: String,
    /// How much.
    pub value: f64,
    /// Of what.
    pub unit: String,
}

/// The values of one name over the runs of both sides.
#[derive(Debug, Default, Clone, PartialEq)]
struct Row {
    quire: Vec<f64>,
    linux: Vec<f64>,
    unit: String,
}

/// Runs both sides and prints the table.
pub fn command(places: &Places, options: &cli::Compare) -> Result<u8> {
    if options.count && options.guest.cpus > 1 {
        return Err(Failure::usage("instructions are counted at one CPU: leave out --cpus"));
    }
    let (mut tree, order) = run::prepare(places, &options.guest, &options.program, false)?;
    // Linux is still busy with itself right after boot; its first program waits so many seconds.
    tree.file("/.quire/settle", 0o400, "2\n")?;
    let sides = [Kernel::ready(places, On::Quire)?, Kernel::ready(places, On::Linux)?];
    let shape =
        Shape { cpus: options.guest.cpus, memory: options.guest.memory, count: options.count, ..Shape::default() };
    let step = Step::new("comparing");
    if options.same {
        let [ours, theirs] = sides.each_ref().map(|kernel| {
            step.doing(&kernel.name);
            one(kernel, &tree, &order, &shape)
        });
        let (ours, theirs) = (ours?, theirs?);
        drop(step);
        return Ok(match difference(&ours, &theirs) {
            None => {
                println!("{} and {} printed the same {} lines", sides[0].name, sides[1].name, ours.lines().count());
                0
            }
            Some((line, [ours, theirs])) => {
                println!("line {line} differs\n{}: {ours}\n{}: {theirs}", sides[0].name, sides[1].name);
                1
            }
        });
    }
    let mut rows: Vec<(String, Row)> = Vec::new();
    for round in 1..=options.runs {
        for (side, kernel) in sides.iter().enumerate() {
            step.doing(&format!("run {round} of {}, {}", options.runs, kernel.name));
            let text = one(kernel, &tree, &order, &shape)?;
            let lines = parse(&text);
            if lines.is_empty() {
                return Err(Failure::usage(format_args!(
                    "on {} the program printed no line `name value unit`; it printed: {:.200}",
                    kernel.name,
                    text.trim()
                )));
            }
            for line in lines {
                let row = match rows.iter().position(|(name, _)| *name == line.name) {
                    Some(at) => &mut rows[at].1,
                    None => {
                        rows.push((line.name, Row { unit: line.unit, ..Row::default() }));
                        &mut rows.last_mut().expect("just pushed").1
                    }
                };
                if side == 0 { row.quire.push(line.value) } else { row.linux.push(line.value) }
            }
        }
    }
    drop(step);
    let how = if options.count { ", instructions counted (8 ns of guest time each)" } else { "" };
    println!(
        "{} against {}: {} CPU(s), {} MiB, {}{how}; medians of {}",
        sides[0].name,
        sides[1].name,
        shape.cpus,
        shape.memory,
        sides[0].accelerator(),
        options.runs
    );
    println!("{}", table(&rows));
    Ok(0)
}

/// One boot of one side; what the program printed.
fn one(kernel: &Kernel, tree: &Tree, order: &Order, shape: &Shape) -> Result<String> {
    let about = || "cannot keep the program's output".to_string();
    let image = kernel.image(tree.clone(), order)?;
    let (mut out, mut err) = (qemu::memory_file("output").doing(about)?, qemu::memory_file("errors").doing(about)?);
    let nothing = File::open("/dev/null").doing(about)?;
    let guest = kernel.start(&image, shape)?;
    let report = relay::run(
        guest,
        Ends {
            input: nothing.as_fd(),
            output: out.as_fd(),
            errors: err.as_fd(),
            wake: None,
            asked: Box::new(Vec::new),
            tty: false,
            verbose: false,
            log: None,
            deadline: Some(Instant::now() + LIMIT),
        },
    );
    let text = content(&mut out)?;
    if report.outcome == Outcome::Exit(0) {
        return Ok(text);
    }
    let _ = std::io::stderr().write_all(content(&mut err)?.as_bytes());
    eprint!("{}", run::last_lines(&report.log_tail, 20));
    Err(match report.outcome {
        Outcome::Exit(status) => {
            Failure { status, message: format!("on {} the program ended with {status}", kernel.name) }
        }
        Outcome::Signal(n) => Failure {
            status: report.outcome.status(),
            message: format!("on {} the program died of signal {n}", kernel.name),
        },
        Outcome::TimedOut => Failure::timed_out(format_args!("on {} the program took too long", kernel.name)),
        other => Failure::machine(format_args!("on {}: {}", kernel.name, other.to_failure())),
    })
}

fn content(file: &mut File) -> Result<String> {
    let mut bytes = Vec::new();
    file.rewind().and_then(|()| file.read_to_end(&mut bytes)).doing(|| "cannot read the output".to_string())?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// All lines of the form `name value unit`; others are passed over.
pub fn parse(text: &str) -> Vec<Line> {
    let line = |l: &str| {
        let words: Vec<&str> = l.split_whitespace().collect();
        let [name, value, unit @ ..] = &words[..] else { return None };
        let value = value.parse().ok().filter(|v: &f64| v.is_finite())?;
        Some(Line { name: (*name).to_owned(), value, unit: unit.join(" ") })
    };
    let mut seen = BTreeMap::new();
    text.lines().filter_map(line).filter(|l| seen.insert(l.name.clone(), ()).is_none()).collect()
}

/// The first line, from 1 on, that the two do not share, and what each has there.
fn difference<'a>(ours: &'a str, theirs: &'a str) -> Option<(usize, [&'a str; 2])> {
    let (mut ours, mut theirs) = (ours.lines(), theirs.lines());
    (1..)
        .map_while(|line| match (ours.next(), theirs.next()) {
            (None, None) => None,
            pair => Some((line, pair)),
        })
        .find(|(_, (a, b))| a != b)
        .map(|(line, (a, b))| (line, [a, b].map(|side| side.unwrap_or("(nothing)"))))
}

/// The middle value; of an even number the mean of the two in the middle.
fn median(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    match sorted.len() {
        0 => None,
        n if n % 2 == 1 => Some(sorted[middle]),
        _ => Some((sorted[middle - 1] + sorted[middle]) / 2.0),
    }
}

fn table(rows: &[(String, Row)]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::ASCII_MARKDOWN).set_header(["name", "Quire", "Linux", "Quire / Linux", "unit"]);
    for column in 1..4 {
        if let Some(column) = table.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    for (name, row) in rows {
        let (quire, linux) = (median(&row.quire), median(&row.linux));
        let ratio = match (quire, linux) {
            (Some(q), Some(l)) if l != 0.0 => format!("{:.2}", q / l),
            _ => "-".into(),
        };
        table.add_row([name.clone(), figure(quire), figure(linux), ratio, row.unit.clone()]);
    }
    table
}

/// Four significant digits or whole numbers.
fn figure(value: Option<f64>) -> String {
    match value {
        None => "-".into(),
        Some(v) if v.abs() >= 1000.0 || v.fract() == 0.0 => format!("{v:.0}"),
        Some(v) if v.abs() >= 10.0 => format!("{v:.1}"),
        Some(v) => format!("{v:.3}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_lines_with_a_name_and_a_number_count() {
        let lines = parse("zerofill 1234.5 pages/s\nplain text here\nforks 3\n\nx nan u\nzerofill 9 again\n");
        let names: Vec<_> = lines.iter().map(|l| (l.name.as_str(), l.value, l.unit.as_str())).collect();
        assert_eq!(names, [("zerofill", 1234.5, "pages/s"), ("forks", 3.0, "")]);
    }

    #[test]
    fn the_first_line_that_differs_is_told() {
        assert_eq!(difference("a\nb\n", "a\nb\n"), None);
        assert_eq!(difference("a\nb\nd", "a\nc\nd"), Some((2, ["b", "c"])));
        assert_eq!(difference("a\n", "a\nb\n"), Some((2, ["(nothing)", "b"])));
        assert_eq!(difference("", "a"), Some((1, ["(nothing)", "a"])));
    }

    #[test]
    fn the_median_ignores_one_that_strays() {
        assert_eq!(median(&[3.0, 1000.0, 1.0]), Some(3.0));
        assert_eq!(median(&[4.0, 2.0]), Some(3.0));
        assert_eq!(median(&[]), None);
    }

    #[test]
    fn the_table_holds_both_sides_and_their_ratio() {
        let row = Row { quire: vec![50.0], linux: vec![200.0], unit: "ns".into() };
        let alone = Row { quire: vec![1.0], ..Row::default() };
        let text = table(&[("fault".into(), row), ("odd".into(), alone)]).to_string();
        assert!(text.contains("| fault |") && text.contains("0.25") && text.contains("ns"), "{text}");
        assert!(text.lines().last().unwrap().contains('-'));
    }
}
