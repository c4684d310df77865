//! Rules for documents and for the kept runs in `lab/runs`. The kept runs must be recent. `docs/status.md` must show
//! the newest run, and README.md and docs/figures.md must state its figures.

use std::{fs, path::Path, process::Command};

use quire_results::{Place, Run, Side, Verdict, statistics};

use super::status;
use crate::{
    failure::{Doing, Failure, Result},
    places::Places,
};

/// The most commits since a kept run.
pub const OLDEST: u32 = 1000;

/// The age of a kept file in commits, or the reason why it cannot be found out.
pub type Age = std::result::Result<u32, String>;

/// The newest file of each kind in `lab/runs` from which documents take figures, and the age of its figures.
pub fn ages(places: &Places) -> Result<Vec<(String, Age)>> {
    let none = |what| Failure::usage(format_args!("lab/runs has no file of {what}"));
    let (file, run) = newest(places)?;
    let version = run.machine.versions.get("Quire").map(String::as_str).unwrap_or_default();
    let mut ages = vec![(name(&file), since(&places.root, version.split('-').next().unwrap_or_default()))];
    // The figures in a file of `./quire bench --json` name no commit. They are at least as old as the commit that added
    // the file.
    let bench = status::newest(places, "-bench.json").ok_or_else(|| none("./quire bench --json"))?;
    let added = git(&places.root, &["log", "-1", "--format=%H", "--", &bench.to_string_lossy()]);
    let age = added.and_then(|commit| if commit.is_empty() { Ok(0) } else { since(&places.root, &commit) });
    ages.push((name(&bench), age));
    Ok(ages)
}

/// The number of commits since `commit`. A shallow clone has too few commits to count.
fn since(root: &Path, commit: &str) -> Age {
    if git(root, &["rev-parse", "--is-shallow-repository"])? == "true" {
        return Err("a shallow clone does not have the commits since the run".to_owned());
    }
    git(root, &["rev-list", "--count", &format!("{commit}..HEAD")])?
        .parse()
        .map_err(|_| format!("git does not count the commits since {commit}"))
}

/// The output of git without its line end, or the error message.
fn git(root: &Path, arguments: &[&str]) -> std::result::Result<String, String> {
    let out = Command::new("git").args(arguments).current_dir(root).output().map_err(|e| format!("git: {e}"))?;
    if !out.status.success() {
        return Err(String::from_utf8_lossy(&out.stderr).trim().to_owned());
    }
    Ok(String::from_utf8_lossy(&out.stdout).trim().to_owned())
}

/// Sentences of `docs/status.md`, README.md and docs/figures.md that contradict the newest kept run.
pub fn contradictions(places: &Places) -> Result<Vec<String>> {
    let (file, run) = newest(places)?;
    let read = |name: &str| fs::read_to_string(places.root.join(name)).doing(|| format!("cannot read {name}"));
    let mut wrong = Vec::new();
    if !read("docs/status.md")?.contains(&status::measured(places)?) {
        wrong.push("the budgets of docs/status.md are of other runs; ./quire lab status writes them".to_owned());
    }
    for page in PAGES {
        wrong.extend(page.contradictions(&read(page.file)?, &run, comparisons(&run), &name(&file)));
    }
    Ok(wrong)
}

/// The number of comparisons in which Quire is behind, and the number of all comparisons.
fn comparisons(run: &Run) -> (usize, usize) {
    let all: Vec<Verdict> = run.experiments.iter().flat_map(|e| e.comparisons()).map(|c| c.verdict).collect();
    (all.iter().filter(|verdict| **verdict == Verdict::Behind).count(), all.len())
}

fn newest(places: &Places) -> Result<(std::path::PathBuf, Run)> {
    let runs = ["-quick.json", "-full.json"].into_iter().filter_map(|end| status::newest(places, end));
    status::latest(runs)?.ok_or_else(|| Failure::usage("lab/runs has no file of ./quire lab"))
}

fn name(file: &Path) -> String {
    file.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// A document that states figures of the newest run.
struct Page {
    file: &'static str,
    figures: &'static [Stated],
    /// Sentences about the run itself. `{date}`, `{file}`, `{behind}` and `{all}` stand for values of the run.
    sentences: &'static [&'static str],
}

/// A figure that a document states.
struct Stated {
    /// The text around the figure, with `{}` for the figure.
    text: &'static str,
    experiment: &'static str,
    measure: &'static str,
    what: &'static str,
    /// A further parameter of the case, if there is one.
    of: Option<(&'static str, &'static str)>,
    /// The side whose figure divides Quire's figure; `None` for Quire's figure alone.
    by: Option<Side>,
}

/// The ratio of Quire's instructions to Linux's.
const fn ratio(text: &'static str, experiment: &'static str, what: &'static str) -> Stated {
    Stated { text, experiment, measure: "instructions", what, of: None, by: Some(Side::Linux) }
}

/// The documents with figures of a lab run.
const PAGES: &[Page] = &[
    Page { file: "README.md", figures: README, sentences: &["`./quire lab --full` on {date}"] },
    Page {
        file: "docs/figures.md",
        figures: FIGURES,
        sentences: &[
            "`./quire lab --full` on {date}",
            "In {behind} of the {all} comparisons of the lab's run of {date} Quire is behind",
            "`./quire lab report lab/runs/{file} ",
        ],
    },
];

#[rustfmt::skip] // A figure a line.
const README: &[Stated] = &[
    ratio("| fork and exit with 64 MiB | {} |", "exec-fork", "fork of 64 MiB + exit"),
    ratio("| first touch of pages in order | {} |", "zero-fill", "first touch, in a row"),
    ratio("| `munmap` and `mmap` of a file for each write | {} |", "ranges", "munmap + mmap + write"),
    Stated { by: Some(Side::LinuxLarge), ..ratio("| first touch in order, against Linux with large pages | {} |",
        "zero-fill", "first touch, in a row") },
];

#[rustfmt::skip] // A figure a line.
const FIGURES: &[Stated] = &[
    ratio("| zero-fill fault of one page | `zerofill --backward 1` | {} |", "zero-fill", "zero-fill fault"),
    ratio("| first touch of pages in order, per page | `zerofill` | {} |", "zero-fill", "first touch, in a row"),
    ratio("| copy-on-write fault | `micro` | {} |", "chains", "copy-on-write fault"),
    ratio("| `mmap` and `munmap` of a page | `micro` | {} |", "map", "mmap + munmap"),
    ratio("| `mprotect` of 16 pages | `micro` | {} |", "map", "mprotect of 16 pages"),
    ratio("| creation of one of many mappings | `mapper` | {} |", "map", "create"),
    ratio("| `mprotect` of one of many mappings | `mapper` | {} |", "map", "protect"),
    ratio("| `munmap`, then `mmap` into a hole among many mappings | `mapper` | {} |", "map",
        "munmap + mmap in a hole"),
    ratio("| `munmap` and `mmap` of a file for each write | `remap` | {} |", "ranges", "munmap + mmap + write"),
    ratio("| fork and exit of a small process | `forkexec` | {} |", "exec-fork", "fork + exit"),
    ratio("| fork and exit of a process with 64 MiB | `forkexec` | {} |", "exec-fork", "fork of 64 MiB + exit"),
    ratio("| fork and exec of a static program | `forkexec` | {} |", "exec-fork", "fork + exec, static"),
    ratio("| fork and exec of a dynamic program | `forkexec` | {} |", "exec-fork", "fork + exec, dynamic"),
    ratio("| line of forks with all ancestors alive | `cowchain` kept | {} |", "chains", "chain, parents alive"),
    ratio("| many forks of one parent | `cowchain` siblings | {} |", "chains", "children of one parent"),
    ratio("| system call that does nothing | `calibrate` | {} |", "calibration", "system call"),
    Stated { by: Some(Side::LinuxLarge), ..ratio("first touches in order: Quire's ratio to it is {}.", "zero-fill",
        "first touch, in a row") },
    Stated { by: Some(Side::LinuxLarge), ..ratio("fork and exit of a process with 64 MiB is {}.", "exec-fork",
        "fork of 64 MiB + exit") },
    Stated { measure: "memory", ..ratio("all ancestors alive holds {} times the memory that it holds on Linux",
        "chains", "chain, parents alive") },
    Stated { text: "A sleeping process takes {} bytes of kernel memory among 1,000 processes", experiment: "processes",
        measure: "kernel_memory", what: "asleep", of: Some(("processes", "1000")), by: None },
];

impl Page {
    /// The figures and sentences of the page's `text` that contradict the run, one line for each.
    fn contradictions(&self, text: &str, run: &Run, (behind, all): (usize, usize), file: &str) -> Vec<String> {
        // Line ends are replaced by spaces, because a sentence may continue on the next line.
        let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
        let mut wrong = Vec::new();
        let mut expect = |said: &str| {
            if !text.contains(said) {
                wrong.push(format!("{} does not say \"{said}\", as {file} does", self.file));
            }
        };
        let date = run.began.split('T').next().unwrap_or_default();
        for sentence in self.sentences {
            let said = sentence.replace("{date}", date).replace("{file}", file);
            expect(&said.replace("{behind}", &behind.to_string()).replace("{all}", &all.to_string()));
        }
        let (known, unknown): (Vec<_>, Vec<_>) =
            self.figures.iter().map(|stated| (stated.text, stated.value(run))).partition(|(_, value)| value.is_some());
        for (text, value) in known {
            expect(&text.replace("{}", &value.unwrap_or_default()));
        }
        wrong.extend(unknown.iter().map(|(said, _)| format!("{file} has no figure for \"{said}\" of {}", self.file)));
        wrong
    }
}

impl Stated {
    fn value(&self, run: &Run) -> Option<String> {
        let ours = self.median(run, Side::Ours)?;
        Some(match self.by {
            Some(side) => format!("{:.2}", ours / self.median(run, side)?),
            None => thousands(ours),
        })
    }

    fn median(&self, run: &Run, side: Side) -> Option<f64> {
        let of: Vec<(&str, &str)> = [("what", self.what)].into_iter().chain(self.of).collect();
        let experiment = run.experiments.iter().find(|e| e.name == self.experiment)?;
        let case = experiment.cases.iter().find(|c| {
            c.side == side
                && c.place == Place::GuestCounted
                && c.measures.contains_key(self.measure)
                && of.iter().all(|(k, v)| c.parameters.get(*k).is_some_and(|p| p.to_string() == *v))
        })?;
        statistics::median(&case.measures[self.measure].samples)
    }
}

/// A whole number with commas between groups of three digits.
fn thousands(value: f64) -> String {
    let digits = format!("{value:.0}");
    let group = |(at, digit): (usize, char)| {
        let comma = (at > 0 && (digits.len() - at).is_multiple_of(3)).then_some(',');
        comma.into_iter().chain([digit])
    };
    digits.chars().enumerate().flat_map(group).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn documents_state_the_figures_of_the_run() {
        let places = Places::find();
        let (file, run) = newest(&places).unwrap();
        let counts = comparisons(&run);
        let wrong = |page: &Page, text: &str, run: &Run| page.contradictions(text, run, counts, &name(&file)).len();
        let older = Run { began: "2020-01-01T00:00:00Z".to_owned(), ..run.clone() };
        for (page, dated) in PAGES.iter().zip([1, 2]) {
            let text = fs::read_to_string(places.root.join(page.file)).unwrap();
            assert_eq!(wrong(page, &text, &run), 0);
            assert_eq!(wrong(page, &text.replacen("| 0.27 |", "| 9.27 |", 1), &run), 1);
            assert_eq!(wrong(page, &text, &older), dated);
        }
    }

    #[test]
    fn an_age_is_counted_in_commits_and_unknown_in_a_shallow_clone() {
        let home = tempfile::tempdir().unwrap();
        let here = home.path().join("whole");
        fs::create_dir(&here).unwrap();
        let run = |at: &Path, arguments: &[&str]| git(at, arguments).unwrap();
        let commit = |what: &str| {
            let me = ["-c", "user.name=a", "-c", "user.email=a@b"];
            run(&here, &[&me[..], &["commit", "--quiet", "--allow-empty", "-m", what]].concat());
            run(&here, &["rev-parse", "--short=12", "HEAD"])
        };
        run(&here, &["init", "--quiet"]);
        let commits = ["a", "b", "c"].map(commit);
        assert_eq!((since(&here, &commits[0]), since(&here, &commits[2])), (Ok(2), Ok(0)));
        assert!(since(&here, "0123456789ab").is_err());
        let from = format!("file://{}", here.display());
        run(home.path(), &["clone", "--quiet", "--depth", "1", &from, "shallow"]);
        assert!(since(&home.path().join("shallow"), &commits[2]).unwrap_err().contains("shallow"));
    }

    #[test]
    fn long_numbers_have_commas() {
        assert_eq!(
            [1.0, 999.0, 1000.0, 53_146.4, 1_048_576.0].map(thousands),
            ["1", "999", "1,000", "53,146", "1,048,576"]
        );
    }
}
