//! Generates `docs/status.md`: the design's budgets with their measured figures, the supported system calls of Linux,
//! the known gaps, and the number of lines with `unsafe`.

use std::{
    collections::BTreeMap,
    fmt::Write as _,
    fs,
    path::{Path, PathBuf},
};

use quire_results::{Place, Results, Run, Side, statistics};

use crate::{
    failure::{Doing, Failure, Result},
    places::Places,
};

/// A figure for which the design sets a bound.
struct Budget {
    what: &'static str,
    bound: Bound,
    from: FigureSource,
}

enum Bound {
    AtLeast(f64),
    AtMost(f64),
    /// The second figure equals the first, up to this relative difference.
    Same(f64),
}

/// The source of a figure.
enum FigureSource {
    /// One line of the output of `./quire bench`.
    Bench(&'static str),
    /// Two lines of the output of `./quire bench`.
    Both(&'static str, &'static str),
    /// Quire's figure in a run of the lab: the experiment, the measure, and the parameters of one or two cases.
    Lab(&'static str, &'static str, &'static [&'static [(&'static str, &'static str)]]),
}

#[rustfmt::skip] // A table.
const BUDGETS: &[Budget] = &[
    Budget { what: "zero-fill fault against taking and zeroing a frame, cold memory in random order, one CPU",
        bound: Bound::AtLeast(0.85), from: FigureSource::Bench("zero_fill_share_of_limit") },
    Budget { what: "the same on all CPUs at once", bound: Bound::AtLeast(0.85),
        from: FigureSource::Bench("zero_fill_share_of_limit_all_cpus") },
    Budget { what: "shared lines a zero-fill fault, 2 CPUs", bound: Bound::AtMost(1.0 / 32.0),
        from: FigureSource::Bench("shared_lines_per_fault_2cpu") },
    Budget { what: "shared lines a zero-fill fault, 16 CPUs", bound: Bound::AtMost(1.0 / 32.0),
        from: FigureSource::Bench("shared_lines_per_fault_16cpu") },
    Budget { what: "allocations of a fault on a resident page", bound: Bound::AtMost(0.0),
        from: FigureSource::Bench("allocations_per_resident_fault") },
    Budget { what: "spin locks of a fault on a resident page: the table page's", bound: Bound::AtMost(1.0),
        from: FigureSource::Bench("lock_takes_per_resident_fault") },
    Budget { what: "bytes for one more mapping of a page, beyond its leaf", bound: Bound::AtMost(0.0),
        from: FigureSource::Bench("rmap_bytes_per_extra_mapping") },
    Budget { what: "munmap of 1 TiB against 1 MiB with equal residents, visits", bound: Bound::Same(0.0),
        from: FigureSource::Both("munmap_visits_1mib", "munmap_visits_1tib") },
    Budget { what: "memory held over reachable after 1,000 generations of forks", bound: Bound::AtMost(1.05),
        from: FigureSource::Bench("chain_1000_overhead") },
    Budget { what: "copies of each page that a parent and 100 children hold", bound: Bound::AtMost(101.0),
        from: FigureSource::Bench("shadow_copies_100_children") },
    Budget { what: "the same after the parent has exited", bound: Bound::AtMost(100.0),
        from: FigureSource::Bench("shadow_copies_100_children_alone") },
    Budget { what: "page-table memory of a space after all mappings were removed: its root",
        bound: Bound::AtMost(4096.0), from: FigureSource::Bench("pagetable_bytes_after_unmap_all") },
    Budget { what: "kernel memory of a sleeping process, among 1,000: seven page-table pages and 6 KiB",
        bound: Bound::AtMost(34816.0),
        from: FigureSource::Lab("processes", "kernel_memory", &[&[("what", "asleep"), ("processes", "1000")]]) },
    Budget { what: "instructions of a timed sleep and wake-up, 1,000 processes against 100", bound: Bound::Same(0.2),
        from: FigureSource::Lab("processes", "instructions", &[
            &[("what", "timed sleep and wake-up"), ("processes", "100")],
                &[("what", "timed sleep and wake-up"), ("processes", "1000")]]) },
];

/// Writes the page from the newest figures under `lab/runs`.
pub fn write(places: &Places) -> Result<u8> {
    let page = page(places)?;
    let file = places.root.join("docs/status.md");
    fs::write(&file, page).doing(|| format!("cannot write {}", file.display()))?;
    println!("{}", file.display());
    crate::test::api::write(places)?;
    Ok(0)
}

/// The newest file under `lab/runs` whose name ends with `end`. Names begin with a date.
pub fn newest(places: &Places, end: &str) -> Option<PathBuf> {
    let mut files: Vec<PathBuf> =
        fs::read_dir(places.root.join("lab/runs")).ok()?.flatten().map(|e| e.path()).collect();
    files.retain(|f| f.to_string_lossy().ends_with(end));
    files.sort();
    files.pop()
}

/// The files of the lab's runs under `lab/runs`.
pub fn kept(places: &Places) -> Vec<PathBuf> {
    let files = fs::read_dir(places.root.join("lab/runs")).into_iter().flatten().flatten().map(|e| e.path());
    files.filter(|f| ["-quick.json", "-full.json"].iter().any(|end| f.to_string_lossy().ends_with(end))).collect()
}

/// The budgets with their figures, read from the newest files.
pub fn measured(places: &Places) -> Result<String> {
    let missing =
        |what| Failure::usage(format_args!("lab/runs has no file of {what}; docs/lab.md describes how to make one"));
    let bench = newest(places, "-bench.json").ok_or_else(|| missing("./quire bench --json"))?;
    let figures = bench_lines(&bench)?;
    let runs = ["-quick.json", "-full.json"].into_iter().filter_map(|end| newest(places, end));
    let (lab, run) = latest(runs)?.ok_or_else(|| missing("./quire lab"))?;
    let mut text = String::new();
    budgets(
        &mut text,
        &figures,
        &run,
        [&bench, &lab].map(|f| f.file_name().unwrap_or_default().to_string_lossy().into_owned()),
    );
    Ok(text)
}

fn page(places: &Places) -> Result<String> {
    let mut text =
        "# Status\n\nGenerated by `./quire lab status` from the newest files of `lab/runs/` and the source.\n\n"
            .to_owned();
    text += &measured(places)?;
    text += "\n## Linux's system calls\n\n";
    let calls =
        fs::read_to_string(places.root.join("docs/system-calls.md")).doing(|| "docs/system-calls.md".to_string())?;
    let sentence: Vec<&str> =
        calls.lines().skip_while(|l| !l.contains(" calls that Linux has")).take_while(|l| !l.is_empty()).collect();
    let _ = writeln!(text, "{} [system-calls.md](system-calls.md) lists them.", sentence.join("\n"));
    text += "\n## Known gaps\n\n";
    text += fs::read_to_string(places.root.join("lab/gaps.md")).doing(|| "lab/gaps.md".to_string())?.trim_end();
    text += "\n\n## Unsafe code\n\nLines with the word `unsafe` in each module that has any, without comments and \
        tests. All other modules have none.\n\n";
    text += "| crate | lines | in |\n|---|---|---|\n";
    for (name, files) in unsafe_lines(&places.root.join("crates"))? {
        let all: usize = files.values().sum();
        let files: Vec<String> = files.iter().map(|(f, n)| format!("{f} {n}")).collect();
        let _ = writeln!(text, "| {name} | {all} | {} |", files.join(", "));
    }
    Ok(text)
}

/// The file whose run began last, and that run; `None` if there is no run.
pub fn latest(files: impl Iterator<Item = PathBuf>) -> Result<Option<(PathBuf, Run)>> {
    let mut latest: Option<(PathBuf, Run)> = None;
    for file in files {
        let runs = Results::read(&file).map_err(Failure::usage)?.runs;
        // These are RFC 3339 texts in UTC, which sort by time.
        if let Some(run) = runs.into_iter().max_by(|a, b| a.began.cmp(&b.began))
            && latest.as_ref().is_none_or(|(_, other)| other.began < run.began)
        {
            latest = Some((file, run));
        }
    }
    Ok(latest)
}

/// The figures of a file that `./quire bench --json` wrote.
fn bench_lines(file: &Path) -> Result<BTreeMap<String, f64>> {
    let about = || format!("cannot read {}", file.display());
    let text = fs::read_to_string(file).doing(about)?;
    let lines: Vec<serde_json::Value> = serde_json::from_str(&text).doing(about)?;
    Ok(lines.iter().filter_map(|l| Some((l["name"].as_str()?.to_owned(), l["value"].as_f64()?))).collect())
}

fn budgets(text: &mut String, figures: &BTreeMap<String, f64>, run: &Run, files: [String; 2]) {
    let _ = writeln!(
        text,
        "## Budgets\n\nThe lab's figures are of {} ({} CPUs), {}. Files: `{}`, which records no machine name, and \
         `{}`.\n\n| what | budget | measured | | command |\n|---|---|---|---|---|",
        run.machine.processor, run.machine.cpus, run.machine.system, files[0], files[1]
    );
    for budget in BUDGETS {
        let (values, command) = match &budget.from {
            FigureSource::Bench(name) => (vec![figures.get(*name).copied()], format!("`./quire bench {name}`")),
            FigureSource::Both(a, b) => {
                (vec![figures.get(*a).copied(), figures.get(*b).copied()], format!("`./quire bench {a} {b}`"))
            }
            FigureSource::Lab(experiment, measure, cases) => (
                cases.iter().map(|of| read(run, experiment, measure, of)).collect(),
                format!("`./quire lab {experiment}`"),
            ),
        };
        let values: Option<Vec<f64>> = values.into_iter().collect();
        let bound = match budget.bound {
            Bound::AtLeast(v) => format!("at least {}", short(v)),
            Bound::AtMost(v) => format!("at most {}", short(v)),
            Bound::Same(0.0) => "equal".to_owned(),
            Bound::Same(part) => format!("equal within {:.0} %", part * 100.0),
        };
        let (measured, verdict) = match &values {
            None => ("not measured".to_owned(), "?"),
            Some(values) => {
                let shown: Vec<String> = values.iter().map(|v| short(*v)).collect();
                (shown.join(", "), if holds(&budget.bound, values) { "met" } else { "**missed**" })
            }
        };
        let _ = writeln!(text, "| {} | {bound} | {measured} | {verdict} | {command} |", budget.what);
    }
}

fn holds(bound: &Bound, values: &[f64]) -> bool {
    match *bound {
        Bound::AtLeast(least) => values.iter().all(|v| *v >= least),
        Bound::AtMost(most) => values.iter().all(|v| *v <= most),
        Bound::Same(part) => values.windows(2).all(|w| (w[1] - w[0]).abs() <= part * w[0].abs()),
    }
}

/// The median of a measure in one of Quire's cases in a counted guest.
fn read(run: &Run, experiment: &str, measure: &str, of: &[(&str, &str)]) -> Option<f64> {
    let experiment = run.experiments.iter().find(|e| e.name == experiment)?;
    let case = experiment.cases.iter().find(|c| {
        c.side == Side::Ours
            && c.place == Place::GuestCounted
            && c.measures.contains_key(measure)
            && of.iter().all(|(k, v)| c.parameters.get(*k).is_some_and(|p| p.to_string() == *v))
    })?;
    statistics::median(&case.measures[measure].samples)
}

fn short(value: f64) -> String {
    if value.fract() == 0.0 { format!("{value:.0}") } else { format!("{value:.4}") }
}

/// The number of lines with `unsafe`, by crate and file.
fn unsafe_lines(crates: &Path) -> Result<BTreeMap<String, BTreeMap<String, usize>>> {
    let mut all = BTreeMap::new();
    for entry in fs::read_dir(crates).doing(|| format!("cannot read {}", crates.display()))?.flatten() {
        let (source, mut found) = (entry.path().join("src"), BTreeMap::new());
        walk(&source, &source, &mut found)?;
        if !found.is_empty() {
            all.insert(entry.file_name().to_string_lossy().into_owned(), found);
        }
    }
    Ok(all)
}

fn walk(at: &Path, from: &Path, found: &mut BTreeMap<String, usize>) -> Result<()> {
    for entry in fs::read_dir(at).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() {
            walk(&path, from, found)?;
        } else if path.extension().is_some_and(|e| e == "rs") && !path.ends_with("tests.rs") {
            let text = fs::read_to_string(&path).doing(|| format!("cannot read {}", path.display()))?;
            let lines = count(&text);
            if lines > 0 {
                let name = path.strip_prefix(from).unwrap_or(&path).to_string_lossy().into_owned();
                found.insert(name, lines);
            }
        }
    }
    Ok(())
}

/// The number of code lines with `unsafe`. Items at the left margin that are compiled only for tests do not count.
fn count(text: &str) -> usize {
    let (mut tests, mut lines) = (false, 0);
    for line in text.lines() {
        if line.starts_with("#[cfg(test)]") || line.starts_with("#[cfg(all(test") {
            tests = true;
        } else if tests {
            // A test item ends with its closing brace or, without a body, at the end of its line. Its attributes come
            // before it.
            tests = !(line.starts_with('}') || line.ends_with(';') && !line.starts_with(' '));
        } else {
            let code = line.trim_start();
            let says = || code.split(|c: char| !c.is_alphanumeric() && c != '_').any(|w| w == "unsafe");
            lines += usize::from(!code.starts_with("//") && !code.starts_with("#![") && says());
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unsafe_is_counted_in_code_alone() {
        let text = "#![forbid(unsafe_code)]\n// unsafe\nunsafe { x() }\nlet unsafer = 1;\nunsafe fn f() {}\n";
        assert_eq!(count(text), 2);
        let tests = "#[cfg(test)]\nmod tests;\nunsafe {}\n#[cfg(all(test, not(loom)))]\n#[allow(x)]\nmod more \
            {\n    unsafe {};\n}\nunsafe {}\n";
        assert_eq!(count(tests), 2);
    }

    #[test]
    fn the_run_that_began_last_is_named_in_each_mode() {
        let lab = kept(&Places::find());
        let (file, run) = latest(lab.iter().cloned()).unwrap().unwrap();
        let (same, _) = latest(lab.iter().rev().cloned()).unwrap().unwrap();
        assert_eq!(file, same);
        let began = |f: &PathBuf| Results::read(f).unwrap().runs[0].began.clone();
        assert_eq!(Some(run.began), lab.iter().map(began).max());
    }

    #[test]
    fn a_bound_is_kept_or_missed() {
        assert!(holds(&Bound::AtLeast(0.85), &[0.86]) && !holds(&Bound::AtLeast(0.85), &[0.84]));
        assert!(holds(&Bound::AtMost(0.0), &[0.0]) && !holds(&Bound::AtMost(0.0), &[0.1]));
        assert!(holds(&Bound::Same(0.2), &[100.0, 119.0]) && !holds(&Bound::Same(0.0), &[100.0, 101.0]));
    }

    #[test]
    fn every_budget_is_read_from_something_that_is_measured() {
        let source = fs::read_to_string(Places::find().root.join("docs/bench.md")).unwrap();
        for budget in BUDGETS {
            match budget.from {
                FigureSource::Bench(name) => assert!(source.contains(&format!("| `{name}` |")), "{name}"),
                FigureSource::Both(a, b) => {
                    assert!([a, b].iter().all(|n| source.contains(&format!("| `{n}` |"))), "{a} {b}")
                }
                FigureSource::Lab(experiment, ..) => assert_eq!(experiment, "processes"),
            }
        }
    }
}
