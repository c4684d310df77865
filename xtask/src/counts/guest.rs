//! Counts instructions in a guest. A program marks sections of its run and prints their names (`programs/counts.c`).
//! The emulator's plugin writes the number of instructions of each section.

use std::{io::Write as _, os::fd::AsRawFd, time::Duration};

use crate::{
    boot::{Kernel, Shape},
    cli,
    conflicts::build_plugin,
    failure::{Doing, Failure, Result},
    image::{order::Order, root},
    machine::{outcome::Outcome, qemu, relay::content},
    places::Places,
    programs, run,
};

/// The time limit of a machine. A machine that takes longer counts as hung.
const LIMIT: Duration = Duration::from_secs(900);
/// The memory in MiB of the machine for operations.
const MEMORY: u64 = 1024;
/// The memory in MiB of the machine for servers.
const MEMORY_OF_SERVERS: u64 = 2048;

/// A row: the operation's name and the kernel's instructions for one execution.
pub type Row = (String, f64);

/// Counts the operations of `programs/counts.c` whose names contain one of `words`, or all. With `lenient`, operations
/// that the kernel does not have are left out.
pub fn operations(places: &Places, kernel: &Kernel, words: &[String], lenient: bool) -> Result<Vec<Row>> {
    let mut tree = root::tree()?;
    programs::install(&mut tree, &programs::with_companions(places, "counts".as_ref())?)?;
    let mut args = vec![programs::in_guest("counts").into()];
    args.extend(lenient.then(|| "-k".into()));
    args.extend(words.iter().map(Into::into));
    let order = Order { args, env: vec![], cwd: "/".into(), ..Order::default() };
    let image = kernel.image(tree, &order)?;
    measured(places, kernel, &image, MEMORY)
}

/// The Debian packages that [`servers`] needs.
const PACKAGES: &str = "redis-server,redis-tools,postgresql-15,prometheus,procps";

/// Counts requests to server programs of Debian (`tests/counts/servers.sh`).
pub fn servers(places: &Places, kernel: &Kernel) -> Result<Vec<Row>> {
    let copy = |from: &str, to: &str| {
        let mut words = places.root.join(from).into_os_string();
        words.push(to);
        words
    };
    let copy = vec![copy("tests/servers", ":/servers"), copy("tests/counts", ":/counts")];
    let guest = cli::Guest { packages: Some(PACKAGES.to_owned()), copy, ..cli::Guest::of(1, MEMORY_OF_SERVERS) };
    let words = ["bash".into(), "/counts/servers.sh".into()];
    let (mut tree, order) = run::prepare(places, &guest, &words, false)?;
    let counts = programs::compile(places, &places.root.join("programs/counts.c"))?;
    tree.host_file(programs::in_guest("counts"), &counts)?;
    let image = kernel.image(tree, &order)?;
    measured(places, kernel, &image, guest.memory)
}

/// Boots the machine. Returns a row for each section, from the outputs of the program and of the plugin.
fn measured(places: &Places, kernel: &Kernel, image: &std::fs::File, memory: u64) -> Result<Vec<Row>> {
    let plugin = build_plugin(places)?;
    let mut counts = qemu::memory_file("counts").doing(|| "cannot keep the counts".to_string())?;
    let fd = counts.as_raw_fd();
    let words = format!("file={},profile=count,out=/proc/self/fd/{fd}", plugin.display());
    let extra = vec!["-plugin".into(), words.into()];
    let shape = Shape { cpus: 1, memory, count: true, extra, inherit: vec![fd], ..Shape::default() };
    let ended = kernel.kept(image, &shape, LIMIT)?;
    if ended.report.outcome != Outcome::Exit(0) {
        let _ = std::io::stderr().write_all(&ended.errors);
        let log = run::last_lines(&ended.report.log_tail, 20);
        return Err(Failure::machine(format_args!(
            "{:?} of the counted program on {}; the log ends:\n{log}",
            ended.report.outcome, kernel.name
        )));
    }
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    paired(&text(&ended.output), &text(&content(&mut counts)?))
}

/// Combines the program's lines `counted NAME TIMES` with the plugin's lines `counted KERNEL PROGRAMS`, in their order.
fn paired(program: &str, plugin: &str) -> Result<Vec<Row>> {
    let lines = |text: &str| -> Vec<[String; 2]> {
        let pair = |line: &str| match line.split_whitespace().collect::<Vec<_>>()[..] {
            ["counted", a, b] => Some([a.to_owned(), b.to_owned()]),
            _ => None,
        };
        text.lines().filter_map(pair).collect()
    };
    let (named, counted) = (lines(program), lines(plugin));
    if named.len() != counted.len() {
        return Err(Failure::machine(format_args!(
            "the program named {} stretches, and the plugin counted {}",
            named.len(),
            counted.len()
        )));
    }
    let number = |word: &str| {
        word.parse::<u64>()
            .ok()
            .filter(|n| *n < 1 << 50)
            .ok_or_else(|| Failure::machine(format_args!("{word:?} is no count")))
    };
    named
        .into_iter()
        .zip(counted)
        .map(|([name, times], [kernel, _])| match number(&times)? {
            0 => Err(Failure::machine(format_args!("{name} counted nothing"))),
            times => Ok((name, number(&kernel)? as f64 / times as f64)),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stretches_are_paired_in_their_order() {
        let rows = paired("noise\ncounted a 10\ncounted b 4\n", "counted 1000 5\ncounted 2 7\n").unwrap();
        assert_eq!(rows, [("a".to_owned(), 100.0), ("b".to_owned(), 0.5)]);
    }

    #[test]
    fn torn_or_foreign_counts_are_refused() {
        for (program, plugin) in [
            ("counted a 10\n", ""),
            ("", "counted 1 2\n"),
            ("counted a 0\n", "counted 1 2\n"),
            ("counted a x\n", "counted 1 2\n"),
            ("counted a 1\n", "counted -1 2\n"),
        ] {
            assert!(paired(program, plugin).is_err(), "{program:?} {plugin:?}");
        }
    }
}
