//! A user's fork bomb beside root's shell (`programs/forkbomb.c`), with a limit on the user's processes and with as many as the machine
//! has ids: the shell comes back in time, and the bomb ends when it is told to.
//!
//! Time is counted (`-icount`): the guest's seconds are instructions, whatever else this machine does.

use std::time::Duration;

use super::{Context, verdict::Check};
use crate::boot::{Kernel, On, Shape};
use crate::failure::Result;
use crate::image::{order::Order, root};
use crate::machine::outcome::Outcome;
use crate::programs;

/// A machine that takes so long hangs.
const LIMIT: Duration = Duration::from_secs(600);

/// A number of CPUs, and of processes that the user may have; 0: no limit.
type Bomb = (u32, u32);

const BOMBS: &[Bomb] = &[(1, 100), (4, 100), (1, 0), (4, 0)];

fn name((cpus, limit): Bomb) -> String {
    match limit {
        0 => format!("users/root's shell beside a fork bomb on {cpus} CPUs"),
        limit => format!("users/root's shell beside a fork bomb of {limit} processes on {cpus} CPUs"),
    }
}

/// One name a machine.
pub fn names(_: &Context<'_>) -> Result<Vec<String>> {
    Ok(BOMBS.iter().copied().map(name).collect())
}

/// Boots a machine for each bomb that is selected.
pub fn run(context: &Context<'_>, done: &mut dyn FnMut(Check)) -> Result<()> {
    for bomb in BOMBS.iter().copied() {
        if context.selects(&name(bomb)) {
            let result = explode(context, bomb).map_err(|failure| failure.to_string()).and_then(|wrong| match wrong {
                None => Ok(()),
                Some(wrong) => Err(wrong),
            });
            done(Check::of(name(bomb), result));
        }
    }
    Ok(())
}

/// What was wrong.
fn explode(context: &Context<'_>, (cpus, limit): Bomb) -> Result<Option<String>> {
    let kernel = Kernel::with(context.places, On::Quire, || context.kernel())?;
    let mut tree = root::tree()?;
    let program = programs::compile(context.places, &context.places.root.join("programs/forkbomb.c"))?;
    let at = programs::in_guest("forkbomb");
    tree.host_file(&at, &program)?;
    let args = vec![at.into(), "--limit".into(), limit.to_string().into(), "--rounds".into(), "2".into()];
    let order = Order { args, env: vec![], cwd: "/".into(), tty: false, size: None };
    let image = kernel.image(tree, &order)?;
    let shape = Shape { cpus, memory: 256, count: true, ..Shape::default() };
    let ended = kernel.kept(&image, &shape, LIMIT)?;
    let said = String::from_utf8_lossy(&ended.output);
    let well = ended.report.outcome == Outcome::Exit(0) && said.contains("checks_passed 1");
    let log = crate::run::last_lines(&ended.report.log_tail, 20);
    Ok((!well).then(|| format!("{:?}; it printed {said:?}; the log ends:\n{log}", ended.report.outcome)))
}
