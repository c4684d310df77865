//! How CPU time and memory are divided. A user's fork bomb runs beside root's shell (`programs/forkbomb.c`). The user
//! may have a limited number of processes, or as many as the machine has ids. The shell must respond in time, and the
//! bomb must end on command. Nice weights are checked on machines with one CPU and with several (`programs/users.c`).
//!
//! In further cases a flood of sockets and a memory hog run beside the bomb, and memory is out all the time. Root's
//! programs must still end within a second (`programs/answers.c`). With swap the bomb is left out.
//!
//! Guest time counts instructions (`-icount`), so it does not depend on other work of this host.

use std::time::Duration;

use super::{Context, verdict::Check};
use crate::boot::{Kernel, On, Shape};
use crate::failure::Result;
use crate::image::{order::Order, root};
use crate::machine::outcome::Outcome;
use crate::programs;

/// The time after which a machine counts as hanging.
const LIMIT: Duration = Duration::from_secs(600);

/// The kernel's tick in the cases with several CPUs. The counted clock gives a CPU all the time up to its next timer.
const TICK: &str = "tick=1ms";

/// One machine, and the program that it runs.
struct Case {
    name: String,
    cpus: u32,
    /// In MiB.
    memory: u32,
    append: String,
    program: &'static str,
    args: Vec<String>,
}

fn cases() -> Vec<Case> {
    let mut cases = vec![];
    // Limit 0 stands for as many processes as the machine has ids.
    for (limit, processes) in [(100, " of 100 processes"), (0, "")] {
        for cpus in [1, 4] {
            cases.push(Case {
                name: format!("users/root's shell beside a fork bomb{processes} on {cpus} CPUs"),
                cpus,
                memory: 256,
                append: String::new(),
                program: "forkbomb",
                args: ["--limit", &limit.to_string(), "--rounds", "2"].map(str::to_owned).to_vec(),
            });
        }
    }
    for cpus in [1, 4] {
        cases.push(Case {
            name: format!("users/nice weights divide one processor of {cpus}"),
            cpus,
            memory: 256,
            append: String::new(),
            program: "users",
            args: ["--only", "weights"].map(str::to_owned).to_vec(),
        });
    }
    // Beside a fork bomb and with swap, root's answers still take seconds: pageout visits all spaces of the bomb.
    let cases_of_memory = [(1, "", "", ""), (2, "swap=64M", " with swap", "--bombs 0"), (4, "", "", "")];
    for (cpus, swap, named, args) in cases_of_memory {
        cases.push(Case {
            name: format!("users/root answers while a user takes all memory on {cpus} CPUs{named}"),
            cpus,
            memory: 384,
            append: format!("{TICK} {swap}"),
            program: "answers",
            args: ["--seconds", "10"].into_iter().chain(args.split_whitespace()).map(str::to_owned).collect(),
        });
    }
    cases
}

/// The checks' names: one for each machine.
pub fn names(_: &Context<'_>) -> Result<Vec<String>> {
    Ok(cases().into_iter().map(|case| case.name).collect())
}

/// Boots a machine for each case that is selected.
pub fn run(context: &Context<'_>, done: &mut dyn FnMut(Check)) -> Result<()> {
    for case in cases() {
        if context.selects(&case.name) {
            let result =
                try_case(context, &case).map_err(|failure| failure.to_string()).and_then(|wrong| match wrong {
                    None => Ok(()),
                    Some(wrong) => Err(wrong),
                });
            done(Check::of(case.name, result));
        }
    }
    Ok(())
}

/// Runs a case. Returns its failure, if it failed.
fn try_case(context: &Context<'_>, case: &Case) -> Result<Option<String>> {
    let kernel = Kernel::with(context.places, On::Quire, || context.kernel())?;
    let mut tree = root::tree()?;
    let program = programs::compile(context.places, &context.places.root.join(format!("programs/{}.c", case.program)))?;
    let at = programs::in_guest(case.program);
    tree.host_file(&at, &program)?;
    let mut args = vec![at.into()];
    args.extend(case.args.iter().map(Into::into));
    let order = Order { args, env: vec![], cwd: "/".into(), ..Order::default() };
    let image = kernel.image(tree, &order)?;
    let shape = Shape {
        cpus: case.cpus,
        memory: case.memory.into(),
        append: case.append.clone(),
        count: true,
        ..Shape::default()
    };
    let ended = kernel.kept(&image, &shape, LIMIT)?;
    let said = String::from_utf8_lossy(&ended.output);
    let well = ended.report.outcome == Outcome::Exit(0) && said.contains("checks_passed 1");
    let log = crate::run::last_lines(&ended.report.log_tail, 20);
    Ok((!well).then(|| format!("{:?}; it printed {said:?}; the log ends:\n{log}", ended.report.outcome)))
}
