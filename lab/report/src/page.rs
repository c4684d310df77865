//! The data of the page's template, and the template environment that renders the page.

use base64::{Engine, prelude::BASE64_STANDARD};
use minijinja::{AutoEscape, Environment, UndefinedBehavior, Value, syntax::SyntaxConfig, value::Serde};
use quire_results::{
    Experiment, GUESTS_COUNTS, GUESTS_ONCE, Mode, Results, Run, conflicts::Conflicts, profile::Profile,
};
use serde::Serialize;
use sha2::{Digest, Sha256};

use crate::{
    Beside,
    change::{self, Against},
    conflicts,
    escape::Escaped,
    flame,
    front::{self, Front},
    history,
    plot::{self, Figure, Missing},
    summary::{self, Score},
    table::{self, Table},
    words,
};

/// The templates: the whole page, its two parts, and a page that has only one of these parts.
const TEMPLATES: [(&str, &str); 4] = [
    ("page.html", include_str!("../templates/page.html")),
    ("matrix.html", include_str!("../templates/matrix.html")),
    ("flame.html", include_str!("../templates/flame.html")),
    ("alone.html", include_str!("../templates/alone.html")),
];
const STYLE: &str = include_str!("../templates/style.css");
const SCRIPT: &str = include_str!("../templates/script.js");

/// The number of visible rows of a long list. The reader unfolds the others.
const OPEN: usize = 10;

/// All data of the page's template.
#[derive(Debug, Serialize)]
struct Page<'a> {
    style: &'static str,
    script: &'static str,
    style_hash: String,
    script_hash: String,
    open: usize,
    several: bool,
    machines: Vec<MachineView<'a>>,
    fronts: Vec<Front>,
    scale: Vec<(String, f64)>,
    legend: Vec<words::Term>,
    guests: Guests,
    leads: bool,
    history: Vec<history::Entry>,
    conflicts: Option<conflicts::View>,
    flame: Option<flame::View>,
    limits: Vec<Limits>,
    sources: Vec<summary::SourceClaims>,
    against: Vec<Against>,
    experiments: Vec<ExperimentView>,
}

/// The data of a page that has only one part.
#[derive(Debug, Serialize)]
struct Alone {
    style: &'static str,
    script: &'static str,
    style_hash: String,
    script_hash: String,
    title: String,
    conflicts: Option<conflicts::View>,
    flame: Option<flame::View>,
}

/// Renders a page that has only one part.
pub fn alone(title: &str, matrix: Option<&Conflicts>, profile: Option<&Profile>) -> Result<String, minijinja::Error> {
    let page = Alone {
        style: STYLE,
        script: SCRIPT,
        style_hash: hash(STYLE),
        script_hash: hash(SCRIPT),
        title: title.to_owned(),
        conflicts: matrix.map(conflicts::of),
        flame: profile.map(|profile| flame::of(profile, flame::LEAST_ALONE)),
    };
    environment()?.get_template("alone.html")?.render(Value::from(Serde(&page)))
}

/// The percentages by which the intervals of guests' counts are widened.
#[derive(Debug, Serialize)]
struct Guests {
    several: String,
    once: String,
}

/// An experiment with limitations of its figures, and its link.
#[derive(Debug, Serialize)]
struct Limits {
    href: String,
    title: String,
}

/// The view of one run: its machine and time.
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

/// The view of one experiment, with all runs that have it.
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

/// The results of one run for the experiment.
#[derive(Debug, Serialize)]
struct Block {
    run: usize,
    score: Score,
    absent: Vec<&'static str>,
    figures: Vec<Figure>,
    tables: Vec<Table>,
    missing: Vec<Missing>,
}

/// Renders the whole page.
pub fn render(results: &Results, beside: &Beside) -> Result<String, minijinja::Error> {
    let names = experiment_names(results);
    let place = |name: &str| id(names.iter().position(|n| n == name).unwrap_or_default(), name);
    let href = |experiment: &Experiment| place(&experiment.name);
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
    let machines = machines(&results.runs);
    let percent = |part: f64| crate::number::short(part * 100.0);
    let against = change::against_first(&results.runs, place);
    let limits = experiments
        .iter()
        .filter(|e| !e.caveats.is_empty())
        .map(|e| Limits { href: e.id.clone(), title: e.title.clone() });
    let page = Page {
        style: STYLE,
        script: SCRIPT,
        style_hash: hash(STYLE),
        script_hash: hash(SCRIPT),
        open: OPEN,
        several: machines.len() > 1,
        machines,
        fronts: results.runs.iter().enumerate().map(|(i, run)| front::of(run, i, place)).collect(),
        scale: front::scale(),
        legend: words::legend(),
        guests: Guests { several: percent(GUESTS_COUNTS), once: percent(GUESTS_ONCE) },
        leads: against.iter().any(|a| a.alike && a.same_machine),
        limits: limits.collect(),
        history: history::of(&beside.kept, results),
        conflicts: beside.conflicts.as_ref().map(conflicts::of),
        flame: beside.profile.as_ref().map(|profile| flame::of(profile, flame::LEAST)),
        sources: summary::sources(&results.runs, href),
        against,
        experiments,
    };
    environment()?.get_template("page.html")?.render(Value::from(Serde(&page)))
}

/// The template environment. It escapes all text except the markup that this crate makes.
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
    TEMPLATES.iter().try_for_each(|(name, text)| environment.add_template(name, text))?;
    Ok(environment)
}

/// The hash by which a content security policy allows a script or a style.
fn hash(text: &str) -> String {
    format!("sha256-{}", BASE64_STANDARD.encode(Sha256::digest(text.as_bytes())))
}

/// The names of all experiments, each once, in the order of the runs.
fn experiment_names(results: &Results) -> Vec<String> {
    let mut names: Vec<String> = Vec::new();
    for experiment in results.runs.iter().flat_map(|r| &r.experiments) {
        if !names.contains(&experiment.name) {
            names.push(experiment.name.clone());
        }
    }
    names
}

/// The identifier of an experiment in links.
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

/// The cases that could not be measured, with the reasons.
fn missing(experiment: &Experiment) -> Vec<Missing> {
    let of = |c: &quire_results::Case| {
        let reason = c.trouble.clone()?;
        Some(Missing { case: crate::case_name(&experiment.name, c), side: c.side.title(), reason })
    };
    experiment.cases.iter().filter_map(of).collect()
}

fn machines(runs: &[Run]) -> Vec<MachineView<'_>> {
    runs.iter()
        .enumerate()
        .map(|(index, run)| {
            let machine = &run.machine;
            // Runs on one processor model get the run's number in their name.
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
