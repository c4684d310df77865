//! The conflict matrix of the whole kernel. Two CPUs of a guest run pairs of real system calls and faults. A plugin of
//! QEMU records their memory accesses (`plugin/`, `programs/conflicts.c`).

mod matrix;
mod records;
mod sites;
mod verdict;

pub use sites::plain;

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    io::Write as _,
    os::fd::AsRawFd,
    path::PathBuf,
    process::Command,
    time::Duration,
};

use records::{Case, Records};
use sites::Sites;
use verdict::{Counts, EXPECTED, Judged, complaints, judge, list, shares};

use crate::{
    boot::{Kernel, On, Shape},
    build::with_cargo,
    cli,
    failure::{Doing, Failure, Result},
    machine::{
        outcome::Outcome,
        qemu,
        relay::{GuestOutput, content},
    },
    places::Places,
    progress::Step,
    run,
};

/// The time limit of all cases together.
const LIMIT: Duration = Duration::from_secs(1800);
/// Runs the cases. Prints the conflicts and the last line of the report.
pub fn command(places: &Places, options: &cli::Conflicts) -> Result<u8> {
    let step = Step::new("two CPUs take turns");
    let (records, sites) = measure(places, &options.operations)?;
    drop(step);
    let expected = list(EXPECTED)?;
    let all: Vec<Judged<'_>> = records.cases.iter().map(|case| judge(case, &sites, &expected)).collect();
    if options.verbose {
        all.iter().filter(|j| !j.is_free()).for_each(|j| explain(j.case, &sites));
    }
    print!("{}", report(&all));
    let complaints = complaints(&all, &expected, options.operations.is_empty());
    complaints.iter().for_each(|c| println!("{c}"));
    if options.html.is_some() || options.json.is_some() {
        super::write(places, matrix::of(&all, &expected), "kernel", options)?;
    }
    let counts = Counts::of(&all);
    println!("{} pairs depend on their order and are not tested", records.ordered);
    println!(
        "{} share no line, {} share lines only at stated rates, {} are as listed, {} differ from the list",
        counts.free, counts.amortised, counts.listed, counts.wrong
    );
    println!("{}", counts.last_line());
    Ok(u8::from(!complaints.is_empty()))
}

/// Boots a guest with the plugin. Returns the parsed output of the program and of the plugin.
fn measure(places: &Places, operations: &[String]) -> Result<(Records, Sites)> {
    let plugin = build(places)?;
    let about = || "cannot keep the records".to_string();
    let mut records = qemu::memory_file("conflicts").doing(about)?;
    let guest = cli::Guest::of(2, 512);
    let mut words = vec!["conflicts".into()];
    words.extend(operations.iter().map(Into::into));
    let (tree, order) = run::prepare(places, &guest, &words, false)?;
    let kernel = Kernel::ready(places, On::Quire)?;
    let image = kernel.image(tree, &order)?;
    let fd = records.as_raw_fd();
    let shape = Shape {
        cpus: guest.cpus,
        memory: guest.memory,
        translated: true,
        extra: vec!["-plugin".into(), format!("file={},out=/proc/self/fd/{fd}", plugin.display()).into()],
        inherit: vec![fd],
        ..Shape::default()
    };
    let GuestOutput { report, output, errors } = kernel.kept(&image, &shape, LIMIT)?;
    if report.outcome != Outcome::Exit(0) {
        let _ = std::io::stderr().write_all(&errors);
        eprint!("{}", run::last_lines(&report.log_tail, 20));
        return Err(match report.outcome {
            Outcome::Exit(2) => Failure::usage("no operation has a name with these words"),
            Outcome::Exit(status) => Failure::machine(format_args!("the program ended with {status}")),
            other => other.to_failure(),
        });
    }
    let text = |bytes| String::from_utf8(bytes).doing(|| "the records are not text".to_string());
    let (program, plugin) = (text(output)?, text(content(&mut records)?)?);
    keep(places, &program, &plugin).doing(about)?;
    Ok((records::read(&program, &plugin)?, Sites::read(kernel.file(), &program)?))
}

/// Stores the output of the program and of the plugin, for later study.
fn keep(places: &Places, program: &str, plugin: &str) -> std::io::Result<()> {
    let home = places.target.join("conflicts-guest");
    fs::create_dir_all(&home)?;
    fs::write(home.join("program"), program)?;
    fs::write(home.join("plugin"), plugin)
}

/// Builds the plugin. Returns the path of its library.
pub fn build(places: &Places) -> Result<PathBuf> {
    let target = places.target.join("plugin");
    let mut cargo = Command::new("cargo");
    cargo.args(["build", "--release", "--locked", "-p", "quire-plugin", "--target-dir"]).arg(&target);
    with_cargo("the emulator's plugin", "some seconds, once", cargo.current_dir(&places.root))?;
    Ok(target.join("release/libquire_plugin.so"))
}

fn name(case: &Case) -> String {
    format!("{} {} {}", case.state, case.operations[0], case.operations[1])
}

fn explain(case: &Case, sites: &Sites) {
    println!("{}:", name(case));
    let lines: BTreeSet<String> = case.rounds.iter().flatten().map(|line| sites.describe(line)).collect();
    lines.iter().for_each(|line| println!("    {line}"));
}

/// The labels of conflicts, each with the cases against which it counts and the number of rounds that had it.
fn report(all: &[Judged<'_>]) -> String {
    let mut cases: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for judged in all {
        judged.steady().for_each(|label| cases.entry(label).or_default().push(name(judged.case)));
    }
    let mut text = String::new();
    for (label, share) in shares(all) {
        let cases = cases.get(label).map_or(&[][..], Vec::as_slice);
        let first = cases[..cases.len().min(3)].join("; ");
        let more = if cases.len() > 3 { "; ..." } else { "" };
        text += &format!("{label}\n    in {} of {} rounds", share.rounds, share.of);
        if !cases.is_empty() {
            text += &format!(", {} cases: {first}{more}", cases.len());
        }
        text += "\n";
    }
    text
}
