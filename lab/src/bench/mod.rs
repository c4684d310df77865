//! All benches. A bench is a function that gives the figures of one or more lines. It stands in a file of its own with
//! its description, and in [`ALL`].

pub mod chain;
pub mod fault;
pub mod find_space;
pub mod flush;
pub mod fork;
pub mod kernel_map;
pub mod mapper;
pub mod operations;
pub mod queues;
pub mod range;
pub mod rmap;
pub mod transfers;
pub mod zero_fill;

use crate::Failure;
use crate::cachegrind::Workload;
use quire_sync::hooks::threads::{self, NO_CPU};
use std::fs::File;
use std::io::Write as _;

/// Every bench, in the order in which they run and print.
#[rustfmt::skip] // One a line, however few.
pub const ALL: &[&Bench] = &[
    &fault::COSTS,
    &fork::TOUCHED,
    &fork::MAPPED,
    &mapper::MISSES_BEFORE,
    &mapper::MISSES_AFTER,
    &mapper::MISSES_OURS,
    &mapper::MISSES_ORDERED,
    &mapper::TIME,
    &mapper::ASKED,
    &mapper::TOUCHED,
    &operations::INSTRUCTIONS,
    &zero_fill::SHARE,
    &queues::BASELINES,
    &transfers::LINES,
    &chain::LINES,
    &chain::FAMILY,
    &range::VISITS,
    &flush::QUEUES,
    &rmap::BYTES,
    &rmap::LOCKS,
    &kernel_map::FIND,
    &find_space::HINTS,
    &kernel_map::TABLES,
];

/// Every workload that cachegrind can run.
#[rustfmt::skip] // As above.
pub const WORKLOADS: &[&Workload] = &[
    &mapper::BEFORE,
    &mapper::AFTER,
    &mapper::OURS,
    &mapper::ORDERED,
    &zero_fill::FAULTS,
    &operations::MAP_UNMAP,
    &operations::PROTECT,
    &operations::CREATE,
    &operations::REMOVE,
];

/// How much a bench does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Size {
    /// As little as proves that it works: tests run every bench. The figures have no meaning.
    Short,
    /// What the method of each line says.
    Whole,
}

impl Size {
    /// One of two.
    pub fn of<T>(self, short: T, whole: T) -> T {
        match self {
            Size::Short => short,
            Size::Whole => whole,
        }
    }
}

/// Which build of the lab a bench runs in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Build {
    /// As production is compiled: times, and the structures' own counters.
    Native,
    /// `--cfg recording`: each shared access is recorded; times mean nothing.
    Recording,
}

/// One line of output: `name value unit`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Line {
    /// Lower case, words joined by `_`.
    pub name: &'static str,
    /// Of the value, for instance `ms` or `misses/op`; a pure number has `ratio` or the name of the counted things.
    pub unit: &'static str,
    /// The method, in a sentence or two.
    pub how: &'static str,
}

/// A measurement.
pub struct Bench {
    /// The build that it needs.
    pub build: Build,
    /// The lines that it gives.
    pub lines: &'static [Line],
    /// Measures, and gives each line to the report.
    pub run: fn(&mut Report) -> Result<(), Failure>,
}

impl Bench {
    /// Whether any of its lines is selected.
    pub fn selected(&self, filters: &[String]) -> bool {
        self.lines.iter().any(|l| selects(filters, l.name))
    }
}

/// Whether `name` contains one of the filters, or there are none.
pub fn selects(filters: &[String], name: &str) -> bool {
    filters.is_empty() || filters.iter().any(|f| name.contains(f.as_str()))
}

/// The output of figures.
pub struct Report {
    /// How much each bench does.
    pub size: Size,
    lines: &'static [Line],
    filters: Vec<String>,
    out: File,
    given: Vec<(&'static str, f64)>,
}

impl Report {
    /// Reserves standard output for figures: output that benchmark harnesses print there goes to standard error from
    /// now on.
    pub fn to_stdout(size: Size, filters: Vec<String>) -> Result<Report, Failure> {
        let tool = |e: rustix::io::Errno| Failure::Tool(format!("standard output cannot be redirected: {e}"));
        let out = rustix::io::dup(std::io::stdout()).map_err(tool)?;
        rustix::stdio::dup2_stdout(std::io::stderr()).map_err(tool)?;
        Ok(Report { size, lines: &[], filters, out: out.into(), given: Vec::new() })
    }

    /// Runs a bench, which must give each of its lines a number.
    pub fn run(&mut self, bench: &'static Bench) -> Result<(), Failure> {
        self.lines = bench.lines;
        self.given.clear();
        // A bench attaches to its own machine. Otherwise it would run as a CPU of the last bench's.
        threads::set_cpu(NO_CPU);
        (bench.run)(self)?;
        if let Some((name, value)) = self.given.iter().find(|(_, value)| !value.is_finite()) {
            return Err(Failure::Wrong(format!("{name} is {value}")));
        }
        match bench.lines.iter().find(|l| !self.given.iter().any(|(n, _)| *n == l.name)) {
            Some(missing) => Err(Failure::Wrong(format!("the bench gave no {}", missing.name))),
            None => Ok(()),
        }
    }

    /// Records `value` for the line `name` of the running bench, and prints it if the filters select the line.
    ///
    /// # Panics
    /// If the bench declares no line `name`, which is an error in the bench.
    pub fn put(&mut self, name: &str, value: f64) {
        let line = self.lines.iter().find(|l| l.name == name);
        let line = line.unwrap_or_else(|| panic!("{name} is not a figure of this bench"));
        self.given.push((line.name, value));
        if selects(&self.filters, name) {
            // The reader may have closed the pipe: then the rest is not missed.
            let _ = writeln!(self.out, "{name} {} {}", figure(value), line.unit);
        }
    }
}

/// Whole numbers as they are, others to four significant digits.
fn figure(value: f64) -> String {
    if value.fract() == 0.0 && value.abs() < 1e15 {
        return format!("{value:.0}");
    }
    let before = value.abs().log10().floor().max(-9.0) as i32 + 1;
    format!("{value:.*}", (4 - before).max(0) as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_whole_or_have_four_digits() {
        assert_eq!(
            [12345.0, 0.0, 12345.6, 12.3456, 0.00123456].map(figure),
            ["12345", "0", "12346", "12.35", "0.001235"]
        );
    }

    #[test]
    fn no_two_lines_have_one_name_and_each_says_how_it_is_measured() {
        let mut names: Vec<&str> = ALL.iter().flat_map(|b| b.lines).map(|l| l.name).collect();
        names.sort_unstable();
        let all = names.len();
        names.dedup();
        assert_eq!(names.len(), all, "two lines have one name");
        for line in ALL.iter().flat_map(|b| b.lines) {
            let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
            assert!(line.name.chars().all(plain), "{}", line.name);
            assert!(line.how.len() > 10 && line.how.ends_with('.'), "{} says how", line.name);
            assert!(!line.unit.is_empty() && !line.unit.contains(char::is_whitespace), "{} has a unit", line.name);
        }
    }

    #[test]
    fn the_documentation_has_every_line() {
        let page = include_str!("../../../docs/bench.md");
        for line in ALL.iter().flat_map(|b| b.lines) {
            assert!(
                page.contains(&format!("| `{}` | {} |", line.name, line.unit)),
                "docs/bench.md lacks {}",
                line.name
            );
        }
    }
}
