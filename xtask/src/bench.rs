//! `./quire bench`: builds the lab (`lab/`) in each way that the selected figures need, runs it, and prints its output
//! lines.

use std::{
    io::{BufRead, BufReader, Write as _},
    path::PathBuf,
    process::{Command, Stdio},
};

use crate::{
    build::with_cargo,
    cli,
    compare::{self, Line},
    failure::{Doing, Failure, Result},
    places::Places,
    progress::Step,
};

/// The builds of the lab: the name in `--list`, the flags for rustc, and the directory under `target/`.
const BUILDS: [(&str, &str, &str); 2] = [("Native", "", "lab"), ("Recording", "--cfg recording", "lab-recording")];

/// A figure that the lab can measure.
#[derive(Debug, Clone, PartialEq)]
struct Known {
    build: String,
    name: String,
    unit: String,
    how: String,
}

/// Measures the selected figures and prints them.
pub fn command(places: &Places, options: &cli::Bench) -> Result<u8> {
    let native = build(places, BUILDS[0])?;
    let list = Command::new(&native).arg("--list").output().doing(|| "cannot run the lab".to_string())?;
    let known = listed(&String::from_utf8_lossy(&list.stdout));
    let asked: Vec<&Known> = known.iter().filter(|k| selects(&options.names, &k.name)).collect();
    if asked.is_empty() {
        return Err(Failure::usage("no figure has a name with these words; ./quire bench --list prints all names"));
    }
    if options.list {
        asked.iter().for_each(|k| println!("{} [{}]\n    {}", k.name, k.unit, k.how));
        return Ok(0);
    }
    let mut lines = Vec::new();
    let mut failed = false;
    for way in BUILDS {
        if asked.iter().any(|k| k.build == way.0) {
            let lab = build(places, way)?;
            failed |= !run(&lab, options, &mut lines)?;
        }
    }
    for missing in asked.iter().filter(|k| !lines.iter().any(|l| l.name == k.name)) {
        eprintln!("quire: the bench gave no number for {}", missing.name);
        failed = true;
    }
    if options.json {
        let text = serde_json::to_string_pretty(&lines).doing(|| "cannot write JSON".to_string())?;
        println!("{text}");
    }
    Ok(if failed { 1 } else { 0 })
}

/// Runs the benches of one build, and prints each line at once. Returns false if a bench failed. The reason is then
/// printed on standard error.
fn run(lab: &PathBuf, options: &cli::Bench, lines: &mut Vec<Line>) -> Result<bool> {
    let about = || "cannot run the lab".to_string();
    let log = tempfile::tempfile().doing(about)?;
    let errors = log.try_clone().doing(about)?;
    let mut command = Command::new(lab);
    if options.short {
        command.arg("--short");
    }
    let mut child = command.args(&options.names).stdout(Stdio::piped()).stderr(errors).spawn().doing(about)?;
    let step = Step::new("measuring");
    for text in BufReader::new(child.stdout.take().expect("piped")).lines() {
        for line in compare::parse(&text.doing(about)?) {
            step.doing(&line.name);
            if !options.json {
                // The reader of standard output may have closed it, so an error is ignored.
                let _ = writeln!(std::io::stdout(), "{} {} {}", line.name, line.value, line.unit);
            }
            lines.push(line);
        }
    }
    let status = child.wait().doing(about)?;
    drop(step);
    if !status.success() {
        // Only the lab's own messages are printed. The harness's reports about its samples do not explain the failure.
        complaints(log).iter().for_each(|line| eprintln!("{line}"));
        eprintln!("quire: the bench failed ({status}); some figures are missing");
    }
    Ok(status.success())
}

/// The lines of the log that the lab itself wrote, and the lines of a panic message.
fn complaints(mut log: std::fs::File) -> Vec<String> {
    use std::io::{Read as _, Seek as _};
    let mut bytes = Vec::new();
    let read = log.rewind().and_then(|()| log.read_to_end(&mut bytes));
    let text = String::from_utf8_lossy(&bytes);
    let own = |l: &&str| l.starts_with("quire-lab:") || l.contains("panicked at");
    let mut lines: Vec<String> = Vec::new();
    for (at, line) in text.lines().enumerate().filter(|(_, l)| own(l)) {
        lines.push(line.to_owned());
        if line.contains("panicked at") {
            lines.extend(text.lines().nth(at + 1).map(str::to_owned));
        }
    }
    if read.is_err() {
        lines.push("quire: the lab's log cannot be read".to_owned());
    }
    lines
}

/// The figures of the recording build, which are counts of lines, locks and allocations. They come from a short run of
/// the program that the test stage `record` has built.
pub fn counts(places: &Places) -> Result<Vec<(String, f64)>> {
    let lab = built_by_tests(places, "quire-lab", BUILDS[1].2)?;
    let about = || "cannot run the lab".to_string();
    let out = Command::new(lab).arg("--short").stdin(Stdio::null()).output().doing(about)?;
    if !out.status.success() {
        eprint!("{}", String::from_utf8_lossy(&out.stderr));
        return Err(Failure::machine(format_args!("the recording benches ended with {}", out.status)));
    }
    let lines = compare::parse(&String::from_utf8_lossy(&out.stdout));
    // The designs that were replaced are left out. Two of their counts depend on addresses.
    let of_ours = |line: &Line| !line.name.contains("_before") && !line.name.contains("_after");
    Ok(lines.into_iter().filter(of_ours).map(|line| (line.name, line.value)).collect())
}

/// Builds the lab as production is built. Returns the program's path.
pub fn build_native(places: &Places) -> Result<PathBuf> {
    build(places, BUILDS[0])
}

/// Builds the lab with recording. Returns the program's path.
pub fn build_recording(places: &Places) -> Result<PathBuf> {
    build(places, BUILDS[1])
}

/// Builds the lab in one way. Returns the program's path.
fn build(places: &Places, (name, flags, directory): (&str, &str, &str)) -> Result<PathBuf> {
    build_package(places, "quire-lab", &format!("the lab ({})", name.to_lowercase()), flags, directory)
}

/// Builds a program of the lab for measurements as `target/DIRECTORY/measure/PACKAGE`. `$QUIRE_LAB_PROFILE` selects
/// another profile. Its value `tests` selects the program that the tests have built, and then nothing is built.
pub fn build_package(places: &Places, package: &str, what: &str, flags: &str, directory: &str) -> Result<PathBuf> {
    let profile = std::env::var("QUIRE_LAB_PROFILE").unwrap_or_else(|_| "measure".to_owned());
    let (target, made) = match &profile[..] {
        "dev" => (places.target.join(directory), "debug"),
        other => (places.target.join(directory), other),
    };
    if profile == "tests" {
        return built_by_tests(places, package, directory);
    }
    let mut command = Command::new("cargo");
    command.args(["build", "--profile", &profile, "--locked", "-p", package, "--target-dir"]);
    if !flags.is_empty() {
        command.env("RUSTFLAGS", flags);
    }
    with_cargo(what, "some 3 min the first time", command.arg(&target).current_dir(&places.root))?;
    Ok(target.join(made).join(package))
}

/// The path of the program that the tests of the unit build or of the recording build use. Their stages have built it.
/// It contains the switches that leave out a step of the memory core (mutants), all off.
fn built_by_tests(places: &Places, package: &str, directory: &str) -> Result<PathBuf> {
    let target = if directory == BUILDS[0].2 { places.target.clone() } else { places.target.join("recording") };
    let program = target.join("debug").join(package);
    if program.exists() {
        return Ok(program);
    }
    Err(Failure::usage(format_args!("{} is not built; ./quire test unit record builds it", program.display())))
}

/// Whether `name` contains one of the filters. True if there are no filters.
fn selects(filters: &[String], name: &str) -> bool {
    filters.is_empty() || filters.iter().any(|f| name.contains(f.as_str()))
}

/// Parses the output of the lab's `--list`.
fn listed(text: &str) -> Vec<Known> {
    let known = |l: &str| {
        let mut parts = l.split('\t').map(str::to_owned);
        Some(Known { build: parts.next()?, name: parts.next()?, unit: parts.next()?, how: parts.next()? })
    };
    text.lines().filter_map(known).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_labs_list_is_read_and_filtered() {
        let known = listed("Native\tfork_a\tms\tForks.\nRecording\tlocks_b\tlocks\tCounts.\nnoise\n");
        assert_eq!(known.len(), 2);
        assert_eq!((known[1].build.as_str(), known[1].how.as_str()), ("Recording", "Counts."));
        let filters = ["fork".to_owned(), "x".to_owned()];
        assert!(selects(&filters, &known[0].name) && !selects(&filters, &known[1].name) && selects(&[], "any"));
    }

    #[test]
    fn only_complaints_of_the_lab_itself_are_shown() {
        let mut log = tempfile::tempfile().unwrap();
        log.write_all(
            b"lab/fork time: [1 ms]\nquire-lab: fork: out\nthread 'main' panicked at x.rs:1:\nreason\nmore\n",
        )
        .unwrap();
        let lines = complaints(log);
        assert_eq!(lines, ["quire-lab: fork: out", "thread 'main' panicked at x.rs:1:", "reason"]);
    }

    #[test]
    fn the_ways_to_build_are_the_labs_own() {
        let source = include_str!("../../lab/src/bench/mod.rs");
        for (name, ..) in BUILDS {
            assert!(source.contains(&format!("    {name},\n")), "{name} is a Build of the lab");
        }
    }
}
