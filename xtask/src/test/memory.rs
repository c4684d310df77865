//! Machines without free memory, or with just enough: which process is killed, how soon, and which ones continue
//! (`programs/churn.c`, `hold.c`, `overload.c`, `workingset.c`).
//!
//! Guest time counts instructions (`-icount`), so it does not depend on other work of this host.

use std::time::Duration;

use super::{Context, verdict::Check};
use crate::boot::{Kernel, On, Shape};
use crate::failure::Result;
use crate::image::{order::Order, root};
use crate::machine::{outcome::Outcome, relay};
use crate::programs;

/// The time after which a machine counts as hanging.
const LIMIT: Duration = Duration::from_secs(1800);

/// One machine, in which process 1 is a shell that must live to the end.
struct Case {
    name: &'static str,
    cpus: &'static [u32],
    /// The machine's memory in MiB.
    memory: u64,
    append: &'static str,
    script: &'static str,
    /// Text that the kernel's log must contain.
    logged: &'static str,
    /// Text that the log must not contain.
    not_logged: Option<&'static str>,
    /// The expected output of the script.
    printed: &'static str,
}

const CASES: &[Case] = &[
    Case {
        name: "the largest process ends although it waits, and process 1 stays",
        cpus: &[1, 4],
        memory: 128,
        append: "",
        script: "for how in sleep pipe futex; do hold 70 $how & first=$!; sleep 2; hold 50 end; echo $how $?; \
                 wait $first; echo first $?; done 2>/dev/null",
        logged: "(hold) is killed: 7",
        not_logged: None,
        printed: "sleep 0\nfirst 137\npipe 0\nfirst 137\nfutex 0\nfirst 137\n",
    },
    Case {
        name: "an exempt process stays, and the next largest ends",
        cpus: &[1],
        memory: 128,
        append: "",
        script: "hold 60 sleep & exempt=$!; sleep 1; echo -1000 >/proc/$exempt/oom_score_adj; cat \
            /proc/$exempt/oom_score; \
                 (hold 80 end) 2>/dev/null; echo $?; kill -0 $exempt && echo there; kill -9 $exempt",
        logged: "(hold) is killed: ",
        not_logged: None,
        printed: "0\n137\nthere\n",
    },
    Case {
        name: "one process of those that exceed memory and swap ends, and ls works",
        cpus: &[1],
        memory: 320,
        append: "swap=64M",
        script: "overload >&2 && echo passed",
        logged: "(hog) is killed: ",
        not_logged: Some("(overload) is killed"),
        printed: "passed\n",
    },
    Case {
        name: "a hot set of 80 % survives full swap at half its rate",
        cpus: &[1],
        memory: 320,
        append: "swap=64M",
        script: "workingset >&2 && echo passed",
        logged: "",
        not_logged: Some(") is killed"),
        printed: "passed\n",
    },
    Case {
        name: "random calls of processes that fork end soon beside full memory",
        cpus: &[2],
        memory: 192,
        append: "swap=96M",
        script: "churn --mib 96 --within 30000 >&2 && echo passed",
        logged: "",
        not_logged: Some(") is killed"),
        printed: "passed\n",
    },
];

fn name(case: &Case, cpus: u32) -> String {
    format!("memory/{cpus}cpu/{}", case.name)
}

/// The checks' names: one for each machine.
pub fn names(_: &Context<'_>) -> Result<Vec<String>> {
    Ok(CASES.iter().flat_map(|case| case.cpus.iter().map(|cpus| name(case, *cpus))).collect())
}

/// Boots a machine for each case that is selected.
pub fn run(context: &Context<'_>, done: &mut dyn FnMut(Check)) -> Result<()> {
    for case in CASES {
        for cpus in case.cpus {
            let name = name(case, *cpus);
            if context.selects(&name) {
                let result = boot(context, case, *cpus).map_err(|failure| failure.to_string());
                done(Check::of(name, result.and_then(|ended| judge(case, &ended))));
            }
        }
    }
    Ok(())
}

fn boot(context: &Context<'_>, case: &Case, cpus: u32) -> Result<relay::GuestOutput> {
    let kernel = Kernel::with(context.places, On::Quire, || context.kernel())?;
    let mut tree = root::tree()?;
    for name in ["churn", "hold", "overload", "workingset"] {
        let program = programs::compile(context.places, &context.places.root.join(format!("programs/{name}.c")))?;
        programs::install(&mut tree, &[(name.to_string(), program)].into())?;
    }
    let args = ["/bin/busybox", "sh", "-c", case.script].map(Into::into).to_vec();
    let env = vec!["PATH=/bin:/programs".into()];
    let order = Order { args, env, cwd: "/".into(), ..Order::default() };
    let image = kernel.image(tree, &order)?;
    let shape = Shape { cpus, memory: case.memory, count: true, append: case.append.into(), ..Shape::default() };
    kernel.kept(&image, &shape, LIMIT)
}

fn judge(case: &Case, ended: &relay::GuestOutput) -> Result<(), String> {
    let log = &ended.report.log_tail;
    let errors = String::from_utf8_lossy(&ended.errors);
    let wrong = |what: &str| {
        Err(format!("{what}; on standard error: {errors}\nthe log ends:\n{}", crate::run::last_lines(log, 40)))
    };
    if ended.report.outcome != Outcome::Exit(0) {
        return wrong(&format!("{:?} of process 1", ended.report.outcome));
    }
    if !log.contains(case.logged) {
        return wrong(&format!("{:?} is missing", case.logged));
    }
    if let Some(said) = case.not_logged.and_then(|words| log.lines().find(|line| line.contains(words))) {
        return wrong(&format!("it says {said:?}"));
    }
    match String::from_utf8_lossy(&ended.output) {
        said if said == case.printed => Ok(()),
        said => wrong(&format!("it printed {said:?} instead of {:?}", case.printed)),
    }
}
