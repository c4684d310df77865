//! Runs every system call, and makes its allocations fail one after the other (`programs/refusals.c`), in the
//! self-checking kernel.

use std::{fs, time::Duration};

use super::{Context, verdict::Check};
use crate::{
    boot::{Kernel, On, Shape},
    build,
    failure::{Doing, Result},
    image::{order::Order, root},
    machine::outcome::Outcome,
    programs,
};

/// The time after which a machine counts as hanging.
const LIMIT: Duration = Duration::from_secs(300);

/// The numbers of CPUs of the machines.
const MACHINES: [u32; 2] = [1, 2];

fn name(cpus: u32) -> String {
    format!("refusals/{cpus}cpu/each call fails without memory, leaks nothing, and succeeds afterwards")
}

/// The checks' names: one for each machine.
pub fn names(_: &Context<'_>) -> Result<Vec<String>> {
    Ok(MACHINES.map(name).to_vec())
}

/// Boots the selected machines.
pub fn run(context: &Context<'_>, done: &mut dyn FnMut(Check)) -> Result<()> {
    for cpus in MACHINES {
        if context.selects(&name(cpus)) {
            let judged = judge(context, cpus);
            done(Check::of(name(cpus), judged.unwrap_or_else(|failure| Err(failure.to_string()))));
        }
    }
    Ok(())
}

fn judge(context: &Context<'_>, cpus: u32) -> Result<std::result::Result<(), String>> {
    let kernel = Kernel::with(context.places, On::Quire, || build::checked_kernel(context.places))?;
    let program = programs::compile(context.places, &context.places.root.join("programs/refusals.c"))?;
    let mut tree = root::tree()?;
    let at = programs::in_guest("refusals");
    tree.host_file(&at, &program)?;
    let order = Order { args: vec![at.into()], env: vec![], cwd: "/".into(), ..Order::default() };
    let image = kernel.image(tree, &order)?;
    let ended = kernel.kept(&image, &Shape { cpus, memory: 256, ..Shape::default() }, LIMIT)?;
    let said = String::from_utf8([ended.output, ended.errors].concat()).unwrap_or_default();
    let kept = context.log_path(&format!("refusals-{cpus}cpu"));
    fs::write(&kept, said.as_bytes()).doing(|| format!("cannot write {}", kept.display()))?;
    if ended.report.outcome == Outcome::Exit(0) {
        return Ok(Ok(()));
    }
    let wrong: Vec<&str> =
        said.lines().filter(|line| ["FAILED", "LEFT", "ROW", "failed"].iter().any(|w| line.starts_with(w))).collect();
    let log = crate::run::last_lines(&ended.report.log_tail, 20);
    Ok(Err(format!("{:?}\n{}\nthe log ends:\n{log}", ended.report.outcome, wrong.join("\n"))))
}
