//! The page: what its template is given, and the template's surroundings.

use base64::{Engine, prelude::BASE64_STANDARD};
use minijinja::{AutoEscape, Environment, UndefinedBehavior, Value, syntax::SyntaxConfig, value::Serde};
use quire_results::{Experiment, GUESTS_COUNTS, GUESTS_ONCE, Mode, Results, Run};
use serde::Serialize;
use sha2::{Digest, Sha256};

use crate::{
    behind::{self, Behind},
    change::{self, Against},
    escape::Escaped,
    plot::{self, Figure, Missing},
    summary::{self, Score, Scores},
    table::{self, Table},
};

const TEMPLATE: &str = include_str!("../templates/page.html");
const STYLE: &str = include_str!("../templates/style.css");
const SCRIPT: &str = include_str!("../templates/script.js");

/// How many of the places where Quire is behind stand in the open; the others unfold.
const OPEN: usize = 7;

/// All that the template is given.
#[derive(Debug, Serialize)]
struct Page<'a> {
    style: &'static str,
    script: &'static str,
    style_hash: String,
    script_hash: String,
    open: usize,
    several: bool,
    machines: Vec<MachineView<'a>>,
    views: Vec<View>,
    guests: Guests,
    lost: [Lost; 2],
    sources: Vec<summary::SourceClaims>,
    against: Vec<Against>,
    experiments: Vec<ExperimentView>,
}

/// How often Quire is ahead and behind, in all runs or in one.
#[derive(Debug, Default, Serialize)]
struct View {
    /// None: all of them.
    run: Option<usize>,
    total: Score,
    scores: Vec<Score>,
    /// How many comparisons are of times, and how many verdicts on them would be chance's, were all sides equal.
    timed: usize,
    chance: usize,
}

/// By how much intervals of guests' counts are widened, in percent.
#[derive(Debug, Serialize)]
struct Guests {
    several: String,
    once: String,
}

/// Where Quire is behind, by counts or by times.
#[derive(Debug, Serialize)]
struct Lost {
    title: &'static str,
    rows: Vec<Behind>,
}

/// One machine and time.
#[derive(Debug, Serialize)]
struct MachineView<'a> {
    index: usize,
    name: String,
    cpus: u32,
    memory: String,
    system: &'a str,
    emulator: &'a str,
    versions: Vec<(&'a str, &'a str)>,
    began: &'a str,
    mode: &'static str,
    took: String,
    remark: Option<&'a str>,
}

/// One experiment, of all runs that have it.
#[derive(Debug, Serialize)]
struct ExperimentView {
    id: String,
    name: String,
    source: &'static str,
    title: String,
    about: String,
    command: String,
    caveats: Vec<String>,
    blocks: Vec<Block>,
}

/// What one run found of it.
#[derive(Debug, Serialize)]
struct Block {
    run: usize,
    score: Score,
    absent: Vec<&'static str>,
    figures: Vec<Figure>,
    tables: Vec<Table>,
    missing: Vec<Missing>,
}

/// Renders it.
pub fn render(results: &Results) -> Result<String, minijinja::Error> {
    let names = experiment_names(results);
    let place = |name: &str| id(names.iter().position(|n| n == name).unwrap_or_default(), name);
    let href = |experiment: &Experiment| place(&experiment.name);
    // Of all runs, then of each.
    let mut scores: Vec<Scores> = results.runs.iter().map(|_| Scores::default()).collect();
    let mut all = Scores::default();
    let mut behind: Vec<Behind> = Vec::new();
    let mut experiments: Vec<ExperimentView> = Vec::new();
    for (at, name) in names.iter().enumerate() {
        let mut view: Option<ExperimentView> = None;
        for (run, experiment) in
            results.runs.iter().enumerate().flat_map(|(i, r)| r.experiments.iter().map(move |e| (i, e)))
        {
            if experiment.name != *name {
                continue;
            }
            let view = view.get_or_insert_with(|| head(experiment, id(at, name)));
            for caveat in &experiment.caveats {
                if !view.caveats.contains(caveat) {
                    view.caveats.push(caveat.clone());
                }
            }
            let comparisons = experiment.comparisons();
            all.add(&comparisons);
            scores[run].add(&comparisons);
            behind.extend(behind::of(&comparisons, run, &view.id, &experiment.title));
            let which = view.blocks.len();
            let figures = experiment.plots.iter().enumerate();
            view.blocks.push(Block {
                run,
                score: Score::of(&comparisons),
                absent: table::absent(experiment),
                figures: figures.map(|(i, p)| plot::draw(experiment, p, &format!("{}-{which}-{i}", view.id))).collect(),
                tables: table::tables(experiment, &comparisons),
                missing: missing(experiment),
            });
        }
        experiments.extend(view);
    }
    behind.sort_by(|a, b| b.weight.total_cmp(&a.weight));
    let (counts, times): (Vec<_>, Vec<_>) = behind.into_iter().partition(|b| b.counted);
    let mut views = vec![view(None, all)];
    if scores.len() > 1 {
        views.extend(scores.into_iter().enumerate().map(|(run, scores)| view(Some(run), scores)));
    }
    let machines = machines(&results.runs);
    let percent = |part: f64| crate::number::short(part * 100.0);
    let page = Page {
        style: STYLE,
        script: SCRIPT,
        style_hash: hash(STYLE),
        script_hash: hash(SCRIPT),
        open: OPEN,
        several: machines.len() > 1,
        machines,
        views,
        guests: Guests { several: percent(GUESTS_COUNTS), once: percent(GUESTS_ONCE) },
        lost: [("Counts", counts), ("Times", times)].map(|(title, rows)| Lost { title, rows }),
        sources: summary::sources(&results.runs, href),
        against: change::against_first(&results.runs, place),
        experiments,
    };
    environment()?.get_template("page.html")?.render(Value::from(Serde(&page)))
}

fn view(run: Option<usize>, scores: Scores) -> View {
    let (timed, chance) = (scores.timed, scores.chance.round() as usize);
    let scores = scores.finish();
    let sum = |part: fn(&Score) -> usize| scores.iter().map(part).sum::<usize>();
    let total = Score { ahead: sum(|s| s.ahead), none: sum(|s| s.none), behind: sum(|s| s.behind), ..Score::default() };
    View { run, total, scores, timed, chance }
}

/// The template's surroundings: text is escaped whatever the template says, unless it is ours.
fn environment() -> Result<Environment<'static>, minijinja::Error> {
    let mut environment = Environment::new();
    environment.set_undefined_behavior(UndefinedBehavior::Strict);
    environment.set_auto_escape_callback(|_| AutoEscape::Html);
    environment.set_syntax(SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build()?);
    environment.set_formatter(|out, _, value| match value.as_str() {
        _ if value.is_none() => Ok(()),
        Some(text) if value.is_safe() => Ok(out.write_str(text)?),
        Some(text) => Ok(write!(out, "{}", Escaped(text))?),
        None => Ok(write!(out, "{}", Escaped(&value.to_string()))?),
    });
    environment.add_template("page.html", TEMPLATE)?;
    Ok(environment)
}

/// As a policy names what it allows.
fn hash(text: &str) -> String {
    format!("sha256-{}", BASE64_STANDARD.encode(Sha256::digest(text.as_bytes())))
}

/// Names of all experiments, each once, in their order.
fn experiment_names(results: &Results) -> Vec<String> {
    let mut names: Vec<String> = Vec::new();
    for experiment in results.runs.iter().flat_map(|r| &r.experiments) {
        if !names.contains(&experiment.name) {
            names.push(experiment.name.clone());
        }
    }
    names
}

/// What an experiment is called in links.
fn id(at: usize, name: &str) -> String {
    let plain: String = name.chars().filter(|c| c.is_ascii_alphanumeric() || *c == '-').take(40).collect();
    format!("e{at}-{plain}")
}

fn head(experiment: &Experiment, id: String) -> ExperimentView {
    ExperimentView {
        id,
        name: experiment.name.clone(),
        source: summary::name(experiment.source),
        title: experiment.title.clone(),
        about: experiment.about.clone(),
        command: experiment.command.clone(),
        caveats: Vec::new(),
        blocks: Vec::new(),
    }
}

/// Cases that ran into trouble.
fn missing(experiment: &Experiment) -> Vec<Missing> {
    let of = |c: &quire_results::Case| {
        let reason = c.trouble.clone()?;
        Some(Missing { case: crate::case_name(c), side: c.side.title(), reason })
    };
    experiment.cases.iter().filter_map(of).collect()
}

fn machines(runs: &[Run]) -> Vec<MachineView<'_>> {
    runs.iter()
        .enumerate()
        .map(|(index, run)| {
            let machine = &run.machine;
            // Runs of one processor are told apart by their number.
            let twice = runs.iter().filter(|r| r.machine.processor == machine.processor).count() > 1;
            let name = if twice { format!("{} ({})", machine.processor, index + 1) } else { machine.processor.clone() };
            MachineView {
                index,
                name,
                cpus: machine.cpus,
                memory: crate::number::value(machine.memory_mib as f64, "MiB"),
                system: &machine.system,
                emulator: &machine.emulator,
                versions: machine.versions.iter().map(|(k, v)| (&k[..], &v[..])).collect(),
                began: &run.began,
                mode: match run.mode {
                    Mode::Quick => "quick",
                    Mode::Full => "full",
                },
                took: took(run.seconds),
                remark: run.remark.as_deref(),
            }
        })
        .collect()
}

fn took(seconds: f64) -> String {
    if !seconds.is_finite() {
        return "an unknown time".to_owned();
    }
    if seconds < 90.0 { format!("{seconds:.0} s") } else { format!("{:.0} min", seconds / 60.0) }
}
