//! Machines with very many processes (`programs/sleepers.c`, `programs/storms.c`). The programs check their results and
//! their memory themselves. With `--soak` they run with the largest numbers of processes that Quire is made for.

use std::time::Duration;

use super::{Context, verdict::Check};
use crate::boot::{Kernel, On, Shape};
use crate::failure::{Doing, Result};
use crate::image::{order::Order, root};
use crate::machine::{outcome::Outcome, relay::GuestOutput};
use crate::programs;

const GIB: u64 = 1024;

/// One machine, and the program that it runs.
struct Case {
    name: &'static str,
    cpus: &'static [u32],
    /// The machine's memory in MiB.
    memory: u64,
    /// The script for the shell.
    script: &'static str,
    /// Names of lines that the output must have.
    lines: &'static [&'static str],
    /// The seconds after which the machine counts as hanging.
    seconds: u64,
    /// Whether the case runs only with `--soak`.
    soak: bool,
}

const CASES: &[Case] = &[
    Case {
        name: "20,000 sleepers take the memory that their accounts report, and give it back",
        cpus: &[2],
        memory: 3 * GIB,
        script: "sleepers --sleepers 20000 --total 4000 --seconds 1 --accounts 2",
        lines: &["told_memory", "kernel_memory_first", "kept", "kill_rate"],
        seconds: 600,
        soak: false,
    },
    Case {
        name: "30,000 sleepers in 1 GiB, which their page tables alone would fill",
        cpus: &[2],
        memory: GIB,
        script: "sleepers --sleepers 30000 --total 3000 --seconds 1 --answers 500",
        lines: &["wake_rate", "kill_rate", "answer_longest"],
        seconds: 600,
        soak: false,
    },
    Case {
        name: "storms with the consistency checker on at every release",
        cpus: &[2],
        memory: 512,
        script: "echo 2 >/proc/sys/vm/quire_check && storms",
        lines: &["parts_passed"],
        seconds: 900,
        soak: false,
    },
    Case {
        name: "1,048,576 sleepers are made, woken and killed",
        cpus: &[2],
        memory: 20 * GIB,
        script: "sleepers --sleepers 1048576 --total 2000 --seconds 30 --answers 500 --accounts 2 --awake 1",
        lines: &["told_memory", "wake_rate", "kept", "kill_rate", "answer_longest"],
        seconds: 6 * 3600,
        soak: true,
    },
    large("100,000 programs, 32 at a time", 512, "storms --large 1 --part exec"),
    large("100,000 zombies and four reapers", GIB, "storms --large 1 --part zombies"),
    large("signals to a group of 50,000 processes", 4 * GIB, "storms --large 1 --part signals"),
    large("4,000 waiters of a futex move from word to word", GIB, "storms --large 1 --part futex"),
    large("a million threads, 3,000 at a time", 512, "storms --large 1 --part threads"),
    large("4,000 ids begin again", 512, "storms --large 1 --part wrap"),
    large("4,000 ids are used up, and come back", 512, "storms --large 1 --part limits"),
];

/// A large case, for a soak.
const fn large(name: &'static str, memory: u64, script: &'static str) -> Case {
    Case { name, cpus: &[1, 2], memory, script, lines: &["parts_passed"], seconds: 3 * 3600, soak: true }
}

fn name(case: &Case, cpus: u32) -> String {
    format!("processes/{cpus}cpu/{}", case.name)
}

/// Returns the cases of this run, with their numbers of CPUs.
fn placed(context: &Context<'_>) -> impl Iterator<Item = (&'static Case, u32)> {
    let soak = context.soak;
    let cases = CASES.iter().filter(move |case| soak || !case.soak);
    cases.flat_map(|case| case.cpus.iter().map(move |cpus| (case, *cpus)))
}

/// The checks' names: one for each machine.
pub fn names(context: &Context<'_>) -> Result<Vec<String>> {
    Ok(placed(context).map(|(case, cpus)| name(case, cpus)).collect())
}

/// Boots a machine for each case that is selected.
pub fn run(context: &Context<'_>, done: &mut dyn FnMut(Check)) -> Result<()> {
    for (case, cpus) in placed(context) {
        let name = name(case, cpus);
        if context.selects(&name) {
            let result = boot(context, case, cpus).map_err(|failure| failure.to_string());
            done(Check::of(name, result.and_then(|ended| judge(case, &ended))));
        }
    }
    Ok(())
}

fn boot(context: &Context<'_>, case: &Case, cpus: u32) -> Result<GuestOutput> {
    let kernel = Kernel::with(context.places, On::Quire, || context.kernel())?;
    let mut tree = root::tree()?;
    for name in ["sleepers", "storms"] {
        let program = programs::compile(context.places, &context.places.root.join(format!("programs/{name}.c")))?;
        programs::install(&mut tree, &[(name.to_string(), program)].into())?;
    }
    let args = ["/bin/busybox", "sh", "-c", case.script].map(Into::into).to_vec();
    let env = vec!["PATH=/bin:/programs".into()];
    let order = Order { args, env, cwd: "/".into(), ..Order::default() };
    let image = kernel.image(tree, &order)?;
    let shape = Shape { cpus, memory: case.memory, ..Shape::default() };
    let ended = kernel.kept(&image, &shape, Duration::from_secs(case.seconds))?;
    // The figures are kept, because a soak is also run for its figures.
    let figures = [&ended.output[..], &ended.errors[..], ended.report.log_tail.as_bytes()].concat();
    std::fs::write(context.log_path(&name(case, cpus)), figures).doing(|| "cannot keep the figures".to_string())?;
    Ok(ended)
}

fn judge(case: &Case, ended: &GuestOutput) -> Result<(), String> {
    let (said, errors) = (String::from_utf8_lossy(&ended.output), String::from_utf8_lossy(&ended.errors));
    let missing = case.lines.iter().find(|name| !said.lines().any(|line| line.split(' ').next() == Some(**name)));
    let log = &ended.report.log_tail;
    let wrong = match (&ended.report.outcome, missing, log.lines().find(|line| line.contains(") is killed"))) {
        (Outcome::Exit(0), None, None) => return Ok(()),
        (Outcome::Exit(0), Some(name), _) => format!("no line {name}"),
        (Outcome::Exit(0), None, Some(killed)) => killed.to_owned(),
        (outcome, ..) => format!("{outcome:?}"),
    };
    Err(format!("{wrong}; it printed {said}{errors}the log ends:\n{}", crate::run::last_lines(log, 20)))
}
