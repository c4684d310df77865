//! The profile of Debian's Linux. Its kernel file has no symbols. So a first boot without a random base reads the
//! addresses of its functions from `/proc/kallsyms`. In the measured boot, `xtask/guest/measure.c` starts the program
//! and marks its start and its end for the plugin.

use std::{io::Write as _, os::fd::AsRawFd as _, time::Duration};

use super::{Functions, KERNEL, LIMIT, Records};
use crate::{
    boot::{Kernel, On, Shape},
    cli,
    compare::{MEASURE, used::SplitErrors},
    conflicts::build_plugin,
    failure::{Doing, Failure, Result},
    image::order::Order,
    machine::{
        outcome::Outcome,
        qemu,
        relay::{GuestOutput, content},
    },
    places::Places,
    programs,
    progress::Step,
    run,
};

/// The word of Linux's command line that prevents a random base address.
const FIXED: &str = "nokaslr";
/// The first word of the report of `measure.c`. If a program prints a line with this word, the rest of the program's
/// error output is lost.
const TAG: &str = "quire-profile-measured";

/// Runs the program on Linux and reads the counts. The program's output is printed on standard error.
pub fn measure(places: &Places, options: &cli::Profile) -> Result<(Records, Functions)> {
    let plugin = build_plugin(places)?;
    let (mut tree, mut order) = run::prepare(places, &options.guest, &options.program, false)?;
    let kernel = Kernel::ready(places, On::Linux)?;
    let limit = options.guest.timeout.unwrap_or(LIMIT);
    let step = Step::new("profiling");
    step.doing("the addresses of Linux's functions");
    let functions = functions(places, &kernel)?;
    tree.host_file(MEASURE, &programs::compile(places, &places.root.join("xtask/guest/measure.c"))?)?;
    order.args.splice(0..0, [MEASURE.into(), TAG.into(), "0".into()]);
    let image = kernel.image(tree, &order)?;
    let mut counts = qemu::memory_file("profile").doing(|| "cannot keep the counts".to_string())?;
    let fd = counts.as_raw_fd();
    let what = if options.marked { "marked" } else { "between" };
    let words = format!("file={},profile={what},first=0,out=/proc/self/fd/{fd}", plugin.display());
    let shape = Shape {
        cpus: options.guest.cpus,
        memory: options.guest.memory,
        count: options.guest.cpus == 1,
        translated: true,
        append: FIXED.to_owned(),
        extra: vec!["-plugin".into(), words.into()],
        inherit: vec![fd],
        ..Shape::default()
    };
    step.doing(&kernel.name);
    let ended = kernel.kept(&image, &shape, limit)?;
    drop(step);
    let split = SplitErrors::find(&ended.errors, TAG)?;
    let _ = std::io::stderr().write_all(&[&ended.output, split.errors].concat());
    if split.report.is_none() {
        return Err(broken(&ended, &kernel));
    }
    let bytes = content(&mut counts)?;
    Ok((Records::read(&String::from_utf8_lossy(&bytes))?, functions))
}

/// The failure for a run without a report.
fn broken(ended: &GuestOutput, kernel: &Kernel) -> Failure {
    match &ended.report.outcome {
        Outcome::Exit(_) | Outcome::Signal(_) => {
            Failure::machine(format_args!("on {} nothing was measured", kernel.name))
        }
        other => {
            eprint!("{}", run::last_lines(&ended.report.log_tail, 20));
            other.to_failure()
        }
    }
}

/// The functions of Linux by address, read in a boot of its own.
fn functions(places: &Places, kernel: &Kernel) -> Result<Functions> {
    /// The time limit of a boot that only prints a file.
    const SHORT: Duration = Duration::from_secs(300);
    let words = ["busybox".into(), "cat".into(), "/proc/kallsyms".into()];
    let guest = cli::Guest::of(1, 512);
    let (tree, order): (_, Order) = run::prepare(places, &guest, &words, false)?;
    let shape = Shape { cpus: 1, memory: guest.memory, append: FIXED.to_owned(), ..Shape::default() };
    let ended = kernel.kept(&kernel.image(tree, &order)?, &shape, SHORT)?;
    let found = parse(&String::from_utf8_lossy(&ended.output));
    if found.is_empty() {
        return Err(broken(&ended, kernel));
    }
    Ok(Functions::of(found))
}

/// The functions in lines `ADDRESS KIND NAME`.
fn parse(text: &str) -> Vec<(u64, String)> {
    let line = |line: &str| {
        let [address, kind, name, ..] = line.split_whitespace().collect::<Vec<_>>()[..] else { return None };
        let address = u64::from_str_radix(address, 16).ok().filter(|address| *address >= KERNEL)?;
        matches!(kind, "t" | "T" | "w" | "W").then(|| (address, name.to_owned()))
    };
    text.lines().filter_map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_linuxs_symbols_the_functions_of_the_kernel_are_read() {
        let text = "ffffffff81000000 T _stext\nffffffff81000100 t do_one\t[module]\nffffffff82000000 D data\n\
                    0000000000001000 A per_cpu\nx T y\nffffffff81000200 W weak\n";
        let functions = Functions::of(parse(text));
        let at = [0xffff_ffff_8100_0000, 0xffff_ffff_8100_01ff, 0xffff_ffff_8100_0300, 5].map(|pc| functions.at(pc));
        assert_eq!(at, ["_stext", "do_one", "weak", "?"]);
    }
}
