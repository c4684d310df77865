//! The matrix of the whole kernel: pairs of real system calls and faults from two CPUs of a guest, whose accesses a plugin of
//! QEMU's records (`plugin/`, `programs/conflicts.c`).

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::{self, File},
    io::{Read as _, Seek as _, Write as _},
    os::fd::{AsFd, AsRawFd},
    path::PathBuf,
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use super::{
    guest_records::{self, Case, Records},
    guest_sites::Sites,
};
use crate::{
    boot::{Kernel, On, Shape},
    cli,
    failure::{Doing, Failure, Result},
    machine::{
        outcome::Outcome,
        qemu,
        relay::{self, Ends},
    },
    places::Places,
    progress::Step,
    run,
};

/// For all cases.
const LIMIT: Duration = Duration::from_secs(1800);
/// A conflict counts where it is there in so many of a case's rounds: what happens once in many operations is amortised.
const ROUNDS: usize = 2;
/// Addresses from here on are the kernel's.
const KERNEL: u64 = 1 << 63;
/// The conflicts that are known: `label | reason`; a label that ends in `*` stands for all that begin so,
/// and one behind `~` may be absent.
const EXPECTED: &str = include_str!("guest.expected");

/// Runs the cases, prints what conflicts and the last line.
pub fn command(places: &Places, options: &cli::Conflicts) -> Result<u8> {
    let step = Step::new("two CPUs take turns");
    let (records, sites) = measure(places, &options.operations)?;
    drop(step);
    let expected = expected(EXPECTED)?;
    let found: Vec<(&Case, BTreeSet<String>)> = records.cases.iter().map(|c| (c, conflicts(c, &sites))).collect();
    if options.verbose {
        found.iter().filter(|(_, labels)| !labels.is_empty()).for_each(|(case, _)| explain(case, &sites));
    }
    print!("{}", report(&found));
    let whole = options.operations.is_empty();
    let complaints = judge(&found, &expected, whole);
    complaints.iter().for_each(|c| println!("{c}"));
    let clean = found.iter().filter(|(_, labels)| labels.is_empty()).count();
    println!("{} pairs depend on their order and are no cases", records.ordered);
    println!("{clean} of {} cases conflict-free", found.len());
    Ok(u8::from(!complaints.is_empty()))
}

/// Boots a guest with the plugin, and reads what both wrote.
fn measure(places: &Places, operations: &[String]) -> Result<(Records, Sites)> {
    let plugin = build(places)?;
    let about = || "cannot keep the records".to_string();
    let [mut records, mut out, mut err] = [(); 3].map(|()| qemu::memory_file("conflicts"));
    let (records, out, err) = match (&mut records, &mut out, &mut err) {
        (Ok(records), Ok(out), Ok(err)) => (records, out, err),
        _ => return Err(Failure::machine(about())),
    };
    let guest = cli::Guest { cpus: 2, memory: 512, copy: vec![], env: vec![], cwd: "/".into() };
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
    let nothing = File::open("/dev/null").doing(about)?;
    let report = relay::run(
        kernel.start(&image, &shape)?,
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
    if report.outcome != Outcome::Exit(0) {
        let _ = std::io::stderr().write_all(content(err)?.as_bytes());
        eprint!("{}", run::last_lines(&report.log_tail, 20));
        return Err(match report.outcome {
            Outcome::Exit(2) => Failure::usage("no operation has such a name"),
            Outcome::Exit(status) => Failure::machine(format_args!("the program ended with {status}")),
            other => other.to_failure(),
        });
    }
    let (program, plugin) = (content(out)?, content(records)?);
    keep(places, &program, &plugin).doing(about)?;
    Ok((guest_records::read(&program, &plugin)?, Sites::read(kernel.file(), &program)?))
}

/// Keeps what the program and the plugin wrote, for whoever wants to know more.
fn keep(places: &Places, program: &str, plugin: &str) -> std::io::Result<()> {
    let home = places.target.join("conflicts-guest");
    fs::create_dir_all(&home)?;
    fs::write(home.join("program"), program)?;
    fs::write(home.join("plugin"), plugin)
}

fn content(file: &mut File) -> Result<String> {
    let mut text = String::new();
    file.rewind().and_then(|()| file.read_to_string(&mut text)).doing(|| "cannot read the records".to_string())?;
    Ok(text)
}

/// Builds the plugin and returns its library.
fn build(places: &Places) -> Result<PathBuf> {
    let target = places.target.join("plugin");
    let step = Step::new("building the plugin");
    let out = Command::new("cargo")
        .args(["build", "--release", "--locked", "-p", "quire-plugin", "--color", "never", "--target-dir"])
        .arg(&target)
        .current_dir(&places.root)
        .stdin(Stdio::null())
        .output()
        .doing(|| "cannot run cargo".to_string())?;
    drop(step);
    if !out.status.success() {
        eprint!("{}", String::from_utf8_lossy(&out.stderr));
        return Err(Failure::usage("the plugin did not build: see above"));
    }
    Ok(target.join("release/libquire_plugin.so"))
}

/// The labels that are there in enough of the case's rounds.
fn conflicts(case: &Case, sites: &Sites) -> BTreeSet<String> {
    let mut rounds: BTreeMap<String, usize> = BTreeMap::new();
    for round in &case.rounds {
        // What the kernel reaches at a program's address is the program's to keep apart.
        let own = round.iter().filter(|line| line.writer.at >= KERNEL && line.toucher.at >= KERNEL);
        let labels: BTreeSet<String> = own.map(|line| sites.label(line)).collect();
        labels.into_iter().for_each(|label| *rounds.entry(label).or_default() += 1);
    }
    rounds.into_iter().filter(|(_, n)| *n >= ROUNDS).map(|(label, _)| label).collect()
}

fn name(case: &Case) -> String {
    format!("{} {} {}", case.state, case.operations[0], case.operations[1])
}

fn explain(case: &Case, sites: &Sites) {
    println!("{}:", name(case));
    let lines: BTreeSet<String> = case.rounds.iter().flatten().map(|line| sites.describe(line)).collect();
    lines.iter().for_each(|line| println!("    {line}"));
}

/// Each label with the cases that have it.
fn report(found: &[(&Case, BTreeSet<String>)]) -> String {
    let mut cases: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for (case, labels) in found {
        labels.iter().for_each(|label| cases.entry(label).or_default().push(name(case)));
    }
    let mut text = String::new();
    for (label, cases) in cases {
        let first = cases[..cases.len().min(3)].join("; ");
        let more = if cases.len() > 3 { "; ..." } else { "" };
        text += &format!("{label}\n    {} cases: {first}{more}\n", cases.len());
    }
    text
}

/// The expected list: what is known, by label.
fn expected(text: &str) -> Result<BTreeMap<&str, &str>> {
    let lines = text.lines().filter(|l| !l.is_empty() && !l.starts_with('#'));
    let pair =
        |l| str::split_once(l, " | ").ok_or_else(|| Failure::usage(format_args!("{l:?} is not `label | reason`")));
    lines.map(pair).collect()
}

/// What is wrong: conflicts that nobody expects, and such that are expected and gone, which only a `whole` run can tell.
fn judge(found: &[(&Case, BTreeSet<String>)], expected: &BTreeMap<&str, &str>, whole: bool) -> Vec<String> {
    let labels: BTreeSet<&str> = found.iter().flat_map(|(_, labels)| labels).map(String::as_str).collect();
    let stands_for = |known: &str, label: &str| match known.trim_start_matches('~').strip_suffix('*') {
        Some(start) => label.starts_with(start),
        None => known.trim_start_matches('~') == label,
    };
    let unknown = labels.iter().filter(|label| !expected.keys().any(|known| stands_for(known, label)));
    let mut out: Vec<String> = unknown.map(|label| format!("not expected: {label}")).collect();
    if whole {
        let gone = expected
            .keys()
            .filter(|known| !known.starts_with('~') && !labels.iter().any(|label| stands_for(known, label)));
        out.extend(gone.map(|label| format!("expected, but gone: {label}")));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_nobody_expects_and_what_is_gone_is_told() {
        let case = Case { state: "apart".into(), operations: ["x".into(), "y".into()], rounds: vec![] };
        let found = [(&case, BTreeSet::from(["known".to_owned(), "new".to_owned(), "heap, a::b".to_owned()]))];
        let expected =
            expected("# comment\nknown | a reason\nold | another\nheap, a::* | a third\n~rare | x\n").unwrap();
        assert_eq!(judge(&found, &expected, true), ["not expected: new", "expected, but gone: old"]);
        assert_eq!(judge(&found, &expected, false), ["not expected: new"]);
        assert!(super::expected("no reason\n").is_err());
    }

    #[test]
    fn the_list_is_well_formed() {
        assert!(expected(EXPECTED).is_ok());
    }
}
