//! Experiments with servers of Debian: the machines of `tests/servers`. Their scripts do checks and also print figures.

use std::{collections::BTreeMap, fs};

use quire_results::Better;

use super::plan::{Job, Plan};
use crate::{
    cli,
    failure::{Doing, Failure, Result},
    image::{order::Order, tree::Tree},
    places::Places,
    run,
};

/// The directory of the scripts on the host (`PLACE`) and in a guest (`THERE`).
pub const PLACE: &str = "tests/servers";
const THERE: &str = "/servers";
/// The most rounds in a run, because a round takes a minute or more.
pub const ROUNDS: u32 = 2;

/// A figure that a script prints: `figure LINE VALUE UNIT` on standard error.
pub struct Figure {
    /// The name of the figure in the script's output.
    pub line: &'static str,
    /// The measure of the case that gets the figure.
    pub measure: &'static str,
    pub unit: &'static str,
    pub better: Better,
    /// The parameters of the case.
    of: &'static [(&'static str, &'static str)],
}

/// An experiment with a server: the machine that runs it, and its figures.
pub struct Server {
    pub experiment: &'static str,
    pub machine: &'static str,
    /// The estimated seconds of a boot, divided by the number of its cases.
    pub seconds: f64,
    figures: &'static [Figure],
}

const fn figure(
    line: &'static str,
    (measure, unit, better): (&'static str, &'static str, Better),
    of: &'static [(&'static str, &'static str)],
) -> Figure {
    Figure { line, measure, unit, better, of }
}

const TRANSACTIONS: (&str, &str, Better) = ("transactions", "transactions/s", Better::More);
const KERNEL: (&str, &str, Better) = ("kernel_bytes", "bytes/page", Better::Less);
const CLIENT: (&str, &str, Better) = ("kernel_memory", "KiB/client", Better::Less);
const REQUESTS: (&str, &str, Better) = ("requests", "requests/s", Better::More);
const SAMPLES: (&str, &str, Better) = ("samples", "samples/s", Better::More);
const WALL: (&str, &str, Better) = ("wall", "s", Better::Less);
const SYSTEM: (&str, &str, Better) = ("system", "s", Better::Less);

/// All experiments with servers.
#[rustfmt::skip] // A figure a line.
pub const SERVERS: &[Server] = &[
    Server { experiment: "postgres", machine: "postgres", seconds: 25.0, figures: &[
        figure("pgbench_2", TRANSACTIONS, &[("what", "pgbench"), ("clients", "2")]),
        figure("pgbench_20", TRANSACTIONS, &[("what", "pgbench"), ("clients", "20")]),
        figure("pgbench_200", TRANSACTIONS, &[("what", "pgbench"), ("clients", "200")]),
        figure("kernel_20", KERNEL, &[("what", "kernel memory, a mapped page"), ("clients", "20")]),
        figure("kernel_200", KERNEL, &[("what", "kernel memory, a mapped page"), ("clients", "200")]),
        figure("kernel_client_20", CLIENT, &[("what", "kernel memory, a client"), ("clients", "20")]),
        figure("kernel_client_200", CLIENT, &[("what", "kernel memory, a client"), ("clients", "200")]),
    ] },
    Server { experiment: "redis", machine: "redis", seconds: 15.0, figures: &[
        figure("set", REQUESTS, &[("what", "set")]),
        figure("get", REQUESTS, &[("what", "get")]),
        figure("fork", ("fork", "us", Better::Less), &[("what", "save")]),
        figure("copied", ("copied", "bytes", Better::Less), &[("what", "save")]),
    ] },
    Server { experiment: "prometheus", machine: "go", seconds: 40.0, figures: &[
        figure("samples", SAMPLES, &[("what", "write")]),
        figure("samples_system", SYSTEM, &[("what", "write")]),
    ] },
    Server { experiment: "bulk-build", machine: "build", seconds: 60.0, figures: &[
        figure("ten_builds", WALL, &[("what", "ten packages at once")]),
        figure("ten_builds_system", SYSTEM, &[("what", "ten packages at once")]),
    ] },
];

/// Whether the experiment of this name is one with a server.
pub fn is_one(experiment: &str) -> bool {
    SERVERS.iter().any(|server| server.experiment == experiment)
}

impl Server {
    /// The cases of the experiment: their parameters, and the figures of each.
    pub fn cases(&self) -> impl Iterator<Item = (&'static [(&'static str, &'static str)], Vec<&'static Figure>)> {
        let mut cases: Vec<(_, Vec<&Figure>)> = Vec::new();
        for figure in self.figures {
            match cases.iter_mut().find(|(of, _)| *of == figure.of) {
                Some((_, figures)) => figures.push(figure),
                None => cases.push((figure.of, vec![figure])),
            }
        }
        cases.into_iter()
    }
}

/// The command that runs a machine's script in the guest.
pub fn command(machine: &str) -> String {
    format!("FIGURES=1 bash {THERE}/{machine}.sh")
}

/// A machine that is ready to boot.
pub struct Machine {
    /// The memory of the guest in MiB.
    pub memory: u64,
    pub tree: Tree,
    pub order: Order,
}

/// The machines that a plan needs, by name.
pub struct Machines(BTreeMap<String, Machine>);

#[derive(serde::Deserialize)]
struct Rows {
    machine: Vec<Row>,
}

/// A row of `servers.toml`. Tests read further fields of it.
#[derive(serde::Deserialize)]
struct Row {
    name: String,
    packages: String,
    sources: Option<String>,
    memory: u64,
}

impl Machines {
    /// Fetches the packages of the machines that the plan needs.
    pub fn ready(places: &Places, plan: &Plan) -> Result<Self> {
        let boots = plan.jobs.iter().filter_map(|job| match &job.what {
            Job::Guest(boot) => boot.machine(),
            Job::Hosted(_) => None,
        });
        let mut names: Vec<&str> = boots.collect();
        names.sort_unstable();
        names.dedup();
        if names.is_empty() {
            return Ok(Machines(BTreeMap::new()));
        }
        let path = places.root.join(PLACE).join("servers.toml");
        let text = fs::read_to_string(&path).doing(|| format!("cannot read {}", path.display()))?;
        let wrong = |why: String| Failure::usage(format_args!("{}: {why}", path.display()));
        let rows: Rows = toml::from_str(&text).map_err(|e| wrong(e.to_string()))?;
        let mut machines = BTreeMap::new();
        for name in names {
            let row = rows.machine.iter().find(|row| row.name == name).ok_or_else(|| wrong(format!("no {name}")))?;
            let mut scripts = places.root.join(PLACE).into_os_string();
            scripts.push(format!(":{THERE}"));
            let guest = cli::Guest {
                packages: Some(row.packages.clone()),
                sources: row.sources.clone(),
                copy: vec![scripts],
                env: vec!["FIGURES=1".into()],
                ..cli::Guest::of(2, row.memory)
            };
            let words = ["bash".into(), format!("{THERE}/{name}.sh").into()];
            let (tree, order) = run::prepare(places, &guest, &words, false)?;
            machines.insert(name.to_owned(), Machine { memory: row.memory, tree, order });
        }
        Ok(Machines(machines))
    }

    /// The machine of that name.
    pub fn get(&self, name: &str) -> Option<&Machine> {
        self.0.get(name)
    }
}

/// The figures in a script's output, as text with one line `name value unit` for each. Returns an error if a check
/// failed, or if the script did not end with status 0.
pub fn figures(output: &str, errors: &str, ended: &str) -> Result<String, String> {
    if let Some(failed) = output.lines().find(|l| l.starts_with("NOT ")) {
        return Err(failed.to_owned());
    }
    if ended != "the script ended with 0" || !output.lines().any(|l| l.starts_with("ok ")) {
        return Err(ended.to_owned());
    }
    let mut lines = String::new();
    for line in errors.lines().filter_map(|l| l.strip_prefix("figure ")) {
        let words: Vec<&str> = line.split_whitespace().collect();
        if let [name @ .., value, unit] = &words[..] {
            lines += &format!("{} {value} {unit}\n", name.join("_"));
        }
    }
    Ok(lines)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_read_from_the_errors_of_scripts_that_passed() {
        let errors = "noise\nfigure ten builds 12 s\nfigure set 3.5 requests/s\n";
        let well = "the script ended with 0";
        let read = figures("ok a\n", errors, well);
        assert_eq!(read.as_deref(), Ok("ten_builds 12 s\nset 3.5 requests/s\n"));
        assert_eq!(figures("ok a\nNOT b\n", errors, well), Err("NOT b".to_owned()));
        assert_eq!(figures("ok a\n", errors, "signal 9 killed the script").unwrap_err(), "signal 9 killed the script");
        assert!(figures("", errors, well).is_err());
    }

    #[test]
    fn each_figure_is_printed_by_a_script() {
        let root = Places::find().root.join(PLACE);
        for server in SERVERS {
            let text = fs::read_to_string(root.join(server.machine).with_extension("sh")).unwrap();
            for figure in server.figures {
                let spaced = figure.line.replace('_', " ");
                let prints = |name: &str| {
                    text.contains(&format!("figure \"{name}\"")) || text.contains(&format!("figure {name} "))
                };
                // The scripts of PostgreSQL add the number of clients to the name at run time.
                let by_clients = format!("{}$clients", figure.line.trim_end_matches(|c: char| c.is_ascii_digit()));
                let all = [figure.line, &spaced, &by_clients];
                assert!(all.iter().any(|name| prints(name)), "{}: {}", server.machine, figure.line);
            }
        }
    }

    #[test]
    fn figures_with_the_same_parameters_are_one_case() {
        let of = |experiment: &str| SERVERS.iter().find(|s| s.experiment == experiment).unwrap().cases().count();
        assert_eq!((of("postgres"), of("redis"), of("prometheus")), (7, 3, 1));
    }
}
