//! Checks that the commands which documents name as proofs work. Each is found in the documents and runs, in a short
//! form. The kept runs of the lab must be recent, and the documents must state their figures.
//!
//! A command is a text between backquotes or a line of a block, and begins with `./quire`. [`WAYS`] says how this
//! module runs the command, or which other check runs it. Figures of `./quire bench` and `./quire lab` come from one
//! short run of each. The stages `unit` and `record` have built the programs for these runs.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
    process::{Command, Stdio},
};

use clap::Parser as _;
use quire_results::{Experiment, Results};
use serde_json::Value;

use super::{Context, GUESTS, HERE, cargo, docs, verdict::Check};
use crate::{
    cli,
    failure::{Doing, Failure, Result},
    lab::kept,
    places::Places,
};

const KNOWN: &str = "proofs/every command of a document is known";
const BENCHES: &str = "proofs/every figure of the benches is measured";
const EXPERIMENTS: &str = "proofs/every experiment of the lab runs";
const AGES: &str = "proofs/the kept runs of the lab are recent";
const FIGURES: &str = "proofs/documents state the figures of the kept run";

/// Experiments whose cases are machines of the stage `servers`, which run for minutes each.
const SERVERS: [&str; 4] = ["postgres", "redis", "prometheus", "bulk-build"];

/// How a command is tried.
enum Way {
    /// The command runs with these words replaced.
    Runs(&'static [(&'static str, &'static str)]),
    /// Checks whose names begin with this text run the same command.
    Elsewhere(&'static str),
    /// The command is not tried, for this reason.
    Untried(&'static str),
}

use Way::{Elsewhere, Runs, Untried};

/// How all commands except `bench`, `lab NAME` and `test` are tried. For a command, the first row counts whose text is
/// the beginning of the command.
#[rustfmt::skip] // A command a row.
const WAYS: &[(&str, Way)] = &[
    ("--help", Runs(&[])),
    ("setup", Untried("continuous integration begins with it")),
    ("doctor", Elsewhere("doctor/")),
    ("debug", Elsewhere("command/debugger")),
    ("fuzz --list", Runs(&[])),
    ("run -- busybox sh -c 'uname", Elsewhere("readme/./quire run")),
    ("run -- sleepers --sleepers 1000 --total 1000", Runs(&[])),
    ("run --cpus 2 --memory 20G -- sleepers", Runs(&[("20G", "512M"), ("1048576", "500"),
        ("--total 2000", "--total 250"), ("--answers 500", "--answers 5")])),
    ("run --packages redis-server", Elsewhere("servers/redis")),
    ("run -v", Elsewhere("command/an interactive shell")),
    ("run", Elsewhere("command/an interactive shell")),
    ("compare --count --repeat 1 --append layers=N -- cowchain", Runs(&[("layers=N", "layers=4"),
        ("--seconds 1", "--seconds 0")])),
    ("compare", Elsewhere("command/comparison")),
    ("conflicts --guest", Elsewhere("command/cache lines that processors share in the guest")),
    ("conflicts --scale", Elsewhere("record/")),
    ("conflicts", Elsewhere("record/")),
    ("profile --hosted", Runs(&[("--hosted 2000", "--hosted 20"), ("lab/runs/2026-11-26-profile.json",
        "target/test-logs/proofs-profile.json")])),
    ("profile", Elsewhere("command/a profile begins with the program")),
    ("trace", Elsewhere("command/a trace of known events")),
    ("counts", Elsewhere("counts/kernel")),
    ("lab list", Runs(&[])),
    ("lab report lab/runs/", Runs(&[("--out page.html", "--out target/test-logs/proofs-page.html")])),
    ("lab report", Untried("the names of the files are the reader's")),
    ("lab picture", Runs(&[("picture", "picture --out target/test-logs/proofs-faults.svg")])),
    ("lab status", Elsewhere("proofs/documents state")),
];

/// The commands of the documents, each with the names of the documents.
type Commands = BTreeMap<String, BTreeSet<String>>;

/// Returns the commands of all documents, without the word `./quire`. Commands that only show a form are left out.
fn commands(places: &Places) -> Result<Commands> {
    let mut found = Commands::new();
    let mut take = |path: &Path| {
        let text = fs::read_to_string(path).doing(|| format!("cannot read {}", path.display()))?;
        let name = path.strip_prefix(&places.root).unwrap_or(path).display().to_string();
        for command in named(&text).into_iter().filter(|c| !is_form(c)) {
            found.entry(command).or_default().insert(name.clone());
        }
        Ok::<_, Failure>(())
    };
    for name in ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md"] {
        take(&places.root.join(name))?;
    }
    for (name, _) in docs::files_below(&places.root, &["docs"], &["md"])? {
        take(&places.root.join(name))?;
    }
    Ok(found)
}

/// Returns the words after `./quire` of each command in a text.
fn named(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    let (mut fenced, mut prose, mut open) = (false, String::new(), None::<String>);
    for line in text.lines() {
        if line.starts_with("```") {
            fenced = !fenced;
            continue;
        }
        if !fenced && !line.starts_with("    ") {
            prose.push_str(line);
            prose.push('\n');
            continue;
        }
        // A comment follows several blanks, or a hash.
        let code = line.trim_start();
        let code = code.strip_prefix("$ ").unwrap_or(code);
        let code = code.split("  ").next().unwrap_or_default().split(" #").next().unwrap_or_default();
        let code = match open.take() {
            Some(begun) => format!("{begun} {code}"),
            None => code.to_owned(),
        };
        if let Some(begun) = code.strip_suffix('\\') {
            open = Some(begun.trim_end().to_owned());
        } else if let Some(words) = code.strip_prefix("./quire ") {
            found.push(words.split(['>', '&']).next().unwrap_or_default().trim_end().to_owned());
        }
    }
    for quoted in prose.split('`').skip(1).step_by(2) {
        let words = quoted.split_whitespace().collect::<Vec<_>>().join(" ");
        found.extend(words.strip_prefix("./quire ").map(str::to_owned));
    }
    found
}

/// Whether a command only shows a form: a word of it is variable (in capitals), optional, or left out.
fn is_form(command: &str) -> bool {
    let variable = |word: &str| {
        let word = word.split('=').next_back().unwrap_or_default();
        // A single capital may be the N of a boot word, which has a row in `WAYS`.
        word.len() > 1 && word.chars().all(|c| c.is_ascii_uppercase())
    };
    command.contains('[') || command.contains("...") || command.split(' ').any(|w| variable(w) || w == "N")
}

/// The checks' names.
pub fn names(context: &Context<'_>) -> Result<Vec<String>> {
    let one = [KNOWN, BENCHES, EXPERIMENTS, AGES, FIGURES].map(str::to_owned);
    Ok(one.into_iter().chain(commands(context.places)?.keys().filter(|c| runs(c)).map(|c| name_of(c))).collect())
}

fn name_of(command: &str) -> String {
    format!("proofs/./quire {command}")
}

/// Whether this stage runs a command, by itself or as a part of a short run.
fn runs(command: &str) -> bool {
    figures(command).is_some() || matches!(way(command), Some(Runs(_)))
}

/// Returns the row of a command.
fn way(command: &str) -> Option<&'static Way> {
    let begins = |begin: &str| {
        command
            .strip_prefix(begin)
            .is_some_and(|rest| !begin.ends_with(char::is_alphanumeric) || !rest.starts_with(char::is_alphanumeric))
    };
    WAYS.iter().find(|(begin, _)| begins(begin)).map(|(_, way)| way)
}

/// Returns the kind of a command that measures (`bench` or `lab`), and the parts of names by which it selects figures.
fn figures(command: &str) -> Option<(&str, Vec<&str>)> {
    let mut words = command.split(' ');
    let what = words.next().filter(|w| ["bench", "lab"].contains(w))?;
    if way(command).is_some() {
        return None;
    }
    let mut names = Vec::new();
    while let Some(word) = words.next() {
        if ["--cpus", "--out"].contains(&word) {
            words.next();
        } else if !word.starts_with("--") {
            names.push(word);
        }
    }
    Some((what, names))
}

/// Runs the selected checks.
pub fn run(context: &Context<'_>, done: &mut dyn FnMut(Check)) -> Result<()> {
    let all = commands(context.places)?;
    if context.selects(KNOWN) {
        done(check(KNOWN, unknown(context, &all)?));
    }
    if context.selects(FIGURES) {
        done(check(FIGURES, kept::contradictions(context.places)?));
    }
    if context.selects(AGES) {
        done(recent(&kept::ages(context.places)?));
    }
    let selected: Vec<&String> = all.keys().filter(|c| runs(c) && context.selects(&name_of(c))).collect();
    if context.names_another("proofs") {
        return Ok(());
    }
    if !selected.is_empty() || [BENCHES, EXPERIMENTS].iter().any(|name| context.selects(name)) {
        cargo::build_lab(context)?;
    }
    let of = |what: &str| -> Vec<&String> {
        selected.iter().copied().filter(|c| figures(c).is_some_and(|(w, _)| w == what)).collect()
    };
    for (what, whole) in [("bench", BENCHES), ("lab", EXPERIMENTS)] {
        let selected = of(what);
        if selected.is_empty() && !context.selects(whole) {
            continue;
        }
        let measured = if what == "bench" { benches(context)? } else { experiments(context)? };
        if context.selects(whole) {
            done(check(whole, measured.wrong(&[])));
        }
        for command in selected {
            let names = figures(command).map(|(_, names)| names).unwrap_or_default();
            done(check(&name_of(command), measured.wrong(&names)));
        }
    }
    for command in selected {
        if let Some(Runs(replaced)) = way(command) {
            done(Check::of(name_of(command), shortened(context, command, replaced)));
        }
    }
    Ok(())
}

fn check(name: &str, wrong: Vec<String>) -> Check {
    if wrong.is_empty() { Check::passed(name) } else { Check::failed(name, wrong.join("\n")) }
}

/// Returns the commands that this stage does not know, and the rows that no command needs.
fn unknown(context: &Context<'_>, all: &Commands) -> Result<Vec<String>> {
    let mut wrong = Vec::new();
    let mut say = |command: &str, what: String| {
        let places = all[command].iter().cloned().collect::<Vec<_>>().join(", ");
        wrong.push(format!("`./quire {command}` ({places}): {what}"));
    };
    for command in all.keys() {
        let words = ["quire"].into_iter().chain(command.split(' '));
        if let Err(e) = cli::Cli::try_parse_from(words.filter(|w| !w.contains('\'')))
            && e.use_stderr()
            // This error is allowed, because a document may name a command without its program.
            && e.kind() != clap::error::ErrorKind::MissingRequiredArgument
        {
            say(command, e.to_string().lines().next().unwrap_or_default().to_owned());
            continue;
        }
        let mut words = command.split(' ');
        if words.next() == Some("test") {
            let filter = words.find(|w| !w.starts_with("--")).unwrap_or_default().trim_matches('\'');
            let stage = filter.split('/').next().unwrap_or_default();
            if !filter.is_empty() && !HERE.iter().chain(GUESTS).any(|s| s.name == stage) {
                say(command, format!("no stage has the name {stage}"));
            }
        } else if figures(command).is_none() && way(command).is_none() {
            say(command, "xtask/src/test/proofs.rs has no row for it".to_owned());
        }
    }
    for (begin, way) in WAYS {
        if !all.keys().any(|c| c.starts_with(begin)) {
            wrong.push(format!("the row `{begin}` is of no document's command; remove it"));
        }
        if let Elsewhere(check) = way {
            // The names of compiled tests are not checked, because that would compile them.
            let stage = HERE.iter().chain(GUESTS).find(|s| check.split('/').next() == Some(s.name));
            let there = match stage {
                Some(s) if ["record", "proofs"].contains(&s.name) => true,
                Some(s) => (s.names)(context)?.iter().any(|name| name.starts_with(check)),
                None => false,
            };
            if !there {
                wrong.push(format!("the row `{begin}` names the check {check}, which does not exist"));
            }
        }
        if let Untried(why) = way
            && why.is_empty()
        {
            wrong.push(format!("the row `{begin}` has no reason"));
        }
    }
    Ok(wrong)
}

/// Fails if a run is too old. Skips the check if no age is known.
fn recent(ages: &[(String, kept::Age)]) -> Check {
    let old = |(file, age): &(String, kept::Age)| match age {
        Ok(n) if *n > kept::OLDEST => Some(format!(
            "lab/runs/{file} is {n} commits old, and {} are allowed; docs/lab.md says how to keep a new one",
            kept::OLDEST
        )),
        _ => None,
    };
    let old: Vec<String> = ages.iter().filter_map(old).collect();
    match ages.iter().find_map(|(file, age)| age.as_ref().err().map(|why| format!("{file}: {why}"))) {
        Some(why) if old.is_empty() => Check::skipped(AGES, why, true),
        _ => check(AGES, old),
    }
}

/// The results of a short run: the expected figures or cases, and an error for each that is missing.
struct Measured {
    found: BTreeMap<String, Option<String>>,
    /// How the run ended, if it failed.
    ended: Option<String>,
}

impl Measured {
    /// Returns the errors of the names that contain one of these words, or of all names.
    fn wrong(&self, words: &[&str]) -> Vec<String> {
        let asked = |name: &str| words.is_empty() || words.iter().any(|w| name.contains(w));
        let mut wrong: Vec<String> = words
            .iter()
            .filter(|w| !self.found.keys().any(|n| n.contains(**w)))
            .map(|w| format!("nothing has {w} in its name"))
            .collect();
        wrong.extend(
            self.found
                .iter()
                .filter(|(name, _)| asked(name))
                .filter_map(|(name, trouble)| Some(format!("{name}: {}", trouble.as_ref()?))),
        );
        if self.found.is_empty() || words.is_empty() || !wrong.is_empty() {
            wrong.extend(self.ended.clone());
        }
        wrong
    }
}

/// Measures all figures of the benches in short runs.
fn benches(context: &Context<'_>) -> Result<Measured> {
    let list = quire(context, "bench --list", "proofs-bench-list")?;
    let named = list.output.lines().filter(|l| !l.starts_with(' ')).filter_map(|l| l.split(" [").next());
    let mut found: BTreeMap<String, Option<String>> =
        named.map(|name| (name.to_owned(), Some("it was not measured".to_owned()))).collect();
    let done = quire(context, "bench --short --json", "proofs-bench")?;
    let lines: Vec<Value> = serde_json::from_str(&done.output).unwrap_or_default();
    for line in &lines {
        if let Some((name, _)) = line["name"].as_str().zip(line["value"].as_f64().filter(|v| v.is_finite())) {
            found.insert(name.to_owned(), None);
        }
    }
    Ok(Measured { found, ended: done.failed() })
}

/// Runs the smallest case of each experiment.
fn experiments(context: &Context<'_>) -> Result<Measured> {
    let out = context.places.target.join("test-proofs");
    // Removes the results of an earlier run, because the lab would keep another copy of them each time.
    let _ = fs::remove_dir_all(&out);
    let done = quire(context, &format!("lab --short --out {}", out.display()), "proofs-lab")?;
    let run = Results::read(&out.join("results.json")).map_err(Failure::usage).and_then(|mut results| {
        results
            .runs
            .pop()
            .ok_or_else(|| Failure::usage(done.failed().unwrap_or_else(|| "the file holds no run".into())))
    })?;
    let mut found: BTreeMap<String, Option<String>> =
        run.experiments.iter().map(|e| (e.name.clone(), missing(e))).collect();
    for name in SERVERS {
        found.insert(name.to_owned(), None);
    }
    let texts = context.places.root.join("lab/experiments.json");
    let texts: Vec<Value> =
        serde_json::from_str(&fs::read_to_string(&texts).doing(|| texts.display())?).doing(|| texts.display())?;
    for name in texts.iter().filter_map(|e| e["name"].as_str()) {
        found.entry(name.to_owned()).or_insert_with(|| Some("it has no short case".to_owned()));
    }
    Ok(Measured { found, ended: done.failed() })
}

/// Returns the errors of an experiment's cases. Each figure needs a sample.
fn missing(experiment: &Experiment) -> Option<String> {
    let cases = experiment.cases.iter().filter_map(|case| {
        let finite = |m: &quire_results::Measure| m.samples.iter().any(|s| s.is_finite());
        match &case.trouble {
            Some(trouble) => Some(format!("{}: {trouble}", case.id())),
            None if case.measures.is_empty() || !case.measures.values().all(finite) => {
                Some(format!("{}: no figure", case.id()))
            }
            None => None,
        }
    });
    let cases: Vec<String> = cases.collect();
    let none = experiment.cases.is_empty().then(|| "it has no case".to_owned());
    none.or((!cases.is_empty()).then(|| cases.join("; ")))
}

/// Runs a command in its short form. `replaced`: words to replace, and their replacements.
fn shortened(context: &Context<'_>, command: &str, replaced: &[(&str, &str)]) -> std::result::Result<(), String> {
    let mut short = command.to_owned();
    for (from, to) in replaced {
        if short.contains(from) {
            short = short.replace(from, to);
        }
    }
    let log: String = command.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).take(60).collect();
    let done = quire(context, &short, &format!("proofs-{log}")).map_err(|e| e.message)?;
    match done.failed() {
        Some(why) => Err(format!("./quire {short}: {why}")),
        None if done.output.trim().is_empty() => Err(format!("./quire {short} printed nothing")),
        None => Ok(()),
    }
}

/// The result of a command.
struct Done {
    output: String,
    errors: String,
    status: Option<i32>,
}

impl Done {
    /// Returns the status and the last lines of a command that failed.
    fn failed(&self) -> Option<String> {
        let mut last: Vec<&str> = self.errors.lines().rev().filter(|l| !l.trim().is_empty()).take(4).collect();
        last.reverse();
        (self.status != Some(0)).then(|| format!("it ended with status {:?}: {}", self.status, last.join(" | ")))
    }
}

/// Runs this program with these words, the kernel under test, and the lab as the tests have built it. Keeps the output
/// in a log.
fn quire(context: &Context<'_>, words: &str, log: &str) -> Result<Done> {
    let own = std::env::current_exe().doing(|| "cannot find this program".to_string())?;
    let mut command = Command::new("sh");
    // A shell runs this program, because the words may be quoted for the shell.
    command.args(["-c", &format!("exec \"$0\" {words}")]).arg(own).current_dir(&context.places.root);
    command
        .env("QUIRE_KERNEL", context.kernel()?)
        .env("QUIRE_LAB_PROFILE", "tests")
        .env("QUIRE_ROOT", &context.places.root);
    let out = command.stdin(Stdio::null()).output().doing(|| "cannot run sh".to_string())?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let done = Done { output: text(&out.stdout), errors: text(&out.stderr), status: out.status.code() };
    let path = context.log_path(log);
    fs::write(&path, format!("./quire {words}\n{}{}", done.output, done.errors)).doing(|| path.display())?;
    Ok(done)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_found_in_prose_and_in_blocks_without_comments() {
        let text = "Run `./quire lab\nmap` or `./quire lab [NAME...]`.\n\n    ./quire bench a b     some\n    ./quire \
            lab # all\n\
                    ```sh\n$ ./quire run -- busybox sh -c 'a  | b'\n./quire compare --count \\\n    --repeat 1 -- \
                    x\n```\n`quire`\n";
        let all = named(text);
        assert_eq!(
            all,
            [
                "bench a b",
                "lab",
                "run -- busybox sh -c 'a",
                "compare --count --repeat 1 -- x",
                "lab map",
                "lab [NAME...]"
            ]
        );
        let real: Vec<_> = all.into_iter().filter(|c| !is_form(c)).collect();
        assert!(!real.contains(&"lab [NAME...]".to_owned()) && real.len() == 5);
        assert!(
            is_form("profile -- PROGRAM ARGS")
                && is_form("fuzz TARGET --seconds N")
                && !is_form("run --append layers=N -- a")
        );
    }

    #[test]
    fn each_command_has_a_way() {
        assert_eq!(figures("lab postgres redis --cpus 2 --full"), Some(("lab", vec!["postgres", "redis"])));
        assert_eq!(figures("bench --json"), Some(("bench", vec![])));
        assert!(figures("lab list").is_none() && matches!(way("lab list"), Some(Runs(_))));
        assert!(way("runs").is_none() && way("test docs").is_none());
        assert!(matches!(way("conflicts --guest -v"), Some(Elsewhere(check)) if check.starts_with("command/")));
    }

    #[test]
    fn a_missing_figure_fails_the_commands_that_name_it() {
        let found = [("fork_a", None), ("fork_b", Some("gone".to_owned()))].map(|(n, t)| (n.to_owned(), t));
        let measured = Measured { found: found.into(), ended: Some("status 1".to_owned()) };
        assert_eq!(measured.wrong(&["fork"]), ["fork_b: gone", "status 1"]);
        assert_eq!(measured.wrong(&["_a"]), Vec::<String>::new());
        assert_eq!(measured.wrong(&["mapper"]), ["nothing has mapper in its name", "status 1"]);
        assert_eq!(measured.wrong(&[]).len(), 2);
    }

    #[test]
    fn an_old_run_fails_and_an_unknown_age_is_skipped() {
        use super::super::verdict::Outcome;
        let of = |ages: &[kept::Age]| {
            let named: Vec<_> = ages.iter().map(|a| ("a.json".to_owned(), a.clone())).collect();
            recent(&named).outcome
        };
        assert_eq!(of(&[Ok(kept::OLDEST), Ok(0)]), Outcome::Passed);
        assert!(matches!(of(&[Ok(kept::OLDEST + 1), Err("shallow".into())]), Outcome::Failed(_)));
        assert!(matches!(of(&[Ok(1), Err("shallow".into())]), Outcome::Skipped(skip) if skip.excepted));
    }
}
