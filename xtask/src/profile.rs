//! `./quire profile`: counts the kernel's instructions while a program runs, by function and by caller. A plugin for
//! QEMU (`plugin/`) counts each block of code that the kernel executes.

mod hosted;
mod linux;

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
    fs::{self},
    io::{self, Read as _, Seek as _},
    os::fd::{AsFd, AsRawFd},
    path::Path,
    time::Duration,
};

use object::{Object, ObjectKind, ObjectSymbol, SymbolKind};
use quire_results::Place;

use crate::{
    boot::{Kernel, On, Shape},
    cli,
    conflicts::{build_plugin, plain},
    failure::{Doing, Failure, Result},
    lab,
    machine::{outcome::Outcome, qemu, relay},
    places::Places,
    progress::Step,
    run,
};

/// The lowest address of the kernel.
pub const KERNEL: u64 = 1 << 63;
/// The time limit of the whole run without `--timeout`. With the plugin, a run takes about ten times as long.
const LIMIT: Duration = Duration::from_secs(3600);

/// Runs the program, writes the files and prints the table.
pub fn command(places: &Places, options: &cli::Profile) -> Result<u8> {
    if let Some(count) = options.hosted {
        let [workload] = &options.program[..] else {
            return Err(Failure::usage("--hosted takes the name of one workload, for example zero_fill"));
        };
        let stacks = hosted::measure(places, &workload.to_string_lossy(), count)?;
        let stacks = stacks.iter().map(|(stack, n)| (stack.iter().map(String::as_str).collect(), *n)).collect();
        return finish(places, options, &Profile::of_stacks(stacks));
    }
    let (records, functions) = if options.linux {
        linux::measure(places, options)?
    } else {
        let (records, kernel) = measure(places, options)?;
        (records, Functions::read(kernel.file())?)
    };
    finish(places, options, &Profile::of(&records, &functions))
}

/// Writes the files of a profile and prints the table.
fn finish(places: &Places, options: &cli::Profile, profile: &Profile<'_>) -> Result<u8> {
    if profile.total.instructions == 0 {
        return Err(Failure::usage(match options.marked {
            true => {
                "no instruction was counted, because the program marks no section (programs/report.h); leave out \
                --marked"
            }
            false => "no instruction was counted",
        }));
    }
    if let Some(file) = &options.folded {
        fs::write(file, profile.folded()).doing(|| format!("cannot write {}", file.display()))?;
    }
    let program: Vec<_> = options.program.iter().map(|w| w.to_string_lossy()).collect();
    let program = program.join(" ");
    if let Some(file) = &options.flame {
        let whose = if options.hosted.is_some() { "instructions" } else { "instructions of the kernel" };
        let title = format!("{program}: {} {whose}", profile.total.instructions);
        let kept = profile.kept(places, options, program.clone())?;
        let drawing = quire_report::flame_page(&title, &kept).doing(|| "cannot draw the page".to_string())?;
        fs::write(file, drawing).doing(|| format!("cannot write {}", file.display()))?;
    }
    if let Some(file) = &options.json {
        let kept = profile.kept(places, options, program)?;
        let about = || format!("cannot write {}", file.display());
        fs::write(file, serde_json::to_string(&kept).doing(about)? + "\n").doing(about)?;
    }
    print!("{}", profile.table(options.top));
    Ok(0)
}

/// Boots a guest with the plugin, runs the program there, and reads the counts.
fn measure(places: &Places, options: &cli::Profile) -> Result<(Records, Kernel)> {
    let plugin = build_plugin(places)?;
    let (tree, order) = run::prepare(places, &options.guest, &options.program, false)?;
    let kernel = Kernel::ready(places, On::Quire)?;
    let image = kernel.image(tree, &order)?;
    let about = || "cannot keep the counts".to_string();
    let mut counts = qemu::memory_file("profile").doing(about)?;
    let fd = counts.as_raw_fd();
    let what = if options.marked { "marked" } else { "all" };
    let first = address_of(kernel.file(), "trap_first_return")?;
    let shape = Shape {
        cpus: options.guest.cpus,
        memory: options.guest.memory,
        count: options.guest.cpus == 1,
        translated: true,
        extra: vec![
            "-plugin".into(),
            format!("file={},profile={what},first={first:x},out=/proc/self/fd/{fd}", plugin.display()).into(),
        ],
        inherit: vec![fd],
        ..Shape::default()
    };
    let step = Step::new("profiling");
    // The guest's output goes to standard error, because standard output is only for the table.
    let err = io::stderr();
    let report = relay::unattended(
        kernel.start(&image, &shape)?,
        [err.as_fd(); 2],
        None,
        options.guest.timeout.unwrap_or(LIMIT),
    )?;
    drop(step);
    match report.outcome {
        Outcome::Exit(_) | Outcome::Signal(_) => {}
        other => {
            eprint!("{}", run::last_lines(&report.log_tail, 20));
            return Err(other.to_failure());
        }
    }
    let mut text = String::new();
    counts.rewind().and_then(|()| counts.read_to_string(&mut text)).doing(about)?;
    Ok((Records::read(&text)?, kernel))
}

/// The address of the kernel's symbol `name`.
fn address_of(kernel: &Path, name: &str) -> Result<u64> {
    let about = || format!("cannot read {}", kernel.display());
    let bytes = fs::read(kernel).doing(about)?;
    let file = object::File::parse(&*bytes).doing(about)?;
    let found = file.symbols().find(|s| s.name() == Ok(name)).map(|s| s.address());
    found.ok_or_else(|| Failure::machine(format_args!("{} has no symbol {name}", kernel.display())))
}

/// The number of executed instructions, and the number of locked instructions among them.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
struct Count {
    instructions: u64,
    locked: u64,
}

impl Count {
    fn add(&mut self, other: Count) {
        self.instructions += other.instructions;
        self.locked += other.locked;
    }
}

/// The records that the plugin wrote.
#[derive(Debug, Default, PartialEq, Eq)]
struct Records {
    /// The number of instructions that programs executed.
    programs: u64,
    /// The nodes of the call tree, except the root, which has number 0. Each has its caller's node and the address of
    /// the call.
    calls: Vec<(usize, u64)>,
    /// The executed blocks: the node, the address, and the count.
    counts: Vec<(usize, u64, Count)>,
}

impl Records {
    fn read(text: &str) -> Result<Self> {
        let mut records = Self::default();
        let mut ended = false;
        for line in text.lines() {
            let bad = || Failure::machine(format_args!("the emulator's plugin wrote an unknown line: {line:?}"));
            let number = |word: &str| word.parse::<u64>().map_err(|_| bad());
            let hex = |word| u64::from_str_radix(word, 16).map_err(|_| bad());
            // A node's number is higher than the number of its caller's node.
            let node =
                |word, nodes: usize| number(word)?.try_into().ok().filter(|n: &usize| *n <= nodes).ok_or_else(bad);
            let nodes = records.calls.len();
            match line.split(' ').collect::<Vec<_>>()[..] {
                ["programs", n] => records.programs = number(n)?,
                ["call", parent, site] => records.calls.push((node(parent, nodes)?, hex(site)?)),
                ["count", at, pc, instructions, locked] => {
                    let count = Count { instructions: number(instructions)?, locked: number(locked)? };
                    records.counts.push((node(at, nodes)?, hex(pc)?, count));
                }
                ["end"] => ended = true,
                _ => return Err(bad()),
            }
        }
        if ended {
            Ok(records)
        } else {
            Err(Failure::machine("the emulator's plugin stopped before it wrote all its counts"))
        }
    }
}

/// The functions of a program, sorted by address.
#[derive(Debug, Default)]
pub struct Functions(Vec<(u64, String)>);

impl Functions {
    /// Reads the functions of the kernel's ELF file. Functions in assembly have no symbol type, so these are read too.
    pub fn read(kernel: &Path) -> Result<Self> {
        let about = || format!("cannot read {}", kernel.display());
        let bytes = fs::read(kernel).doing(about)?;
        let file = object::File::parse(&*bytes).doing(about)?;
        let code = file.symbols().filter(|s| matches!(s.kind(), SymbolKind::Text | SymbolKind::Unknown));
        let named = code.filter(|s| s.address() >= KERNEL).filter_map(|s| {
            let name = plain(&format!("{:#}", rustc_demangle::demangle(s.name().ok()?)));
            (!name.is_empty()).then_some((s.address(), name))
        });
        Ok(Self::of(named))
    }

    /// Reads the functions of a program with a fixed address. Returns `None` for any other program or file.
    pub fn of_fixed(program: &Path) -> Option<Self> {
        let bytes = fs::read(program).ok()?;
        let file = object::File::parse(&*bytes).ok().filter(|f| f.kind() == ObjectKind::Executable)?;
        let code = file.symbols().filter(|s| s.kind() == SymbolKind::Text && s.address() != 0);
        Some(Self::of(code.filter_map(|s| Some((s.address(), s.name().ok()?.to_owned())))))
    }

    pub fn of(named: impl IntoIterator<Item = (u64, String)>) -> Self {
        let mut all: Vec<_> = named.into_iter().collect();
        all.sort();
        Functions(all)
    }

    /// The name of the function that contains `pc`; `?` if there is none.
    pub fn at(&self, pc: u64) -> &str {
        let next = self.0.partition_point(|(start, _)| *start <= pc);
        next.checked_sub(1).map_or("?", |i| &self.0[i].1)
    }
}

/// The counts of one function.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
struct Row {
    /// The instructions executed in the function itself.
    own: Count,
    /// The number of instructions executed in the function and in its callees.
    with_below: u64,
}

/// The counts by function and by call stack.
struct Profile<'f> {
    programs: u64,
    total: Count,
    functions: BTreeMap<&'f str, Row>,
    /// Instructions by call stack, outermost function first. The last function executed the instructions.
    stacks: BTreeMap<Vec<&'f str>, u64>,
}

impl<'f> Profile<'f> {
    fn of(records: &Records, functions: &'f Functions) -> Self {
        let mut profile = Profile {
            programs: records.programs,
            total: Count::default(),
            functions: BTreeMap::new(),
            stacks: BTreeMap::new(),
        };
        for (node, pc, count) in &records.counts {
            let mut stack = vec![functions.at(*pc)];
            let mut at = *node;
            while let Some((parent, site)) = at.checked_sub(1).map(|i| records.calls[i]) {
                stack.push(functions.at(site));
                at = parent;
            }
            stack.reverse();
            profile.total.add(*count);
            profile.functions.entry(functions.at(*pc)).or_default().own.add(*count);
            for function in stack.iter().collect::<BTreeSet<_>>() {
                profile.functions.entry(function).or_default().with_below += count.instructions;
            }
            *profile.stacks.entry(stack).or_default() += count.instructions;
        }
        profile
    }

    /// A profile from the counts of stacks. Such counts do not include locked instructions, so their number stays 0.
    fn of_stacks(stacks: BTreeMap<Vec<&'f str>, u64>) -> Self {
        let mut functions: BTreeMap<&str, Row> = BTreeMap::new();
        let mut total = Count::default();
        for (stack, instructions) in &stacks {
            let count = Count { instructions: *instructions, locked: 0 };
            total.add(count);
            if let Some(last) = stack.last() {
                functions.entry(last).or_default().own.add(count);
            }
            for function in stack.iter().collect::<BTreeSet<_>>() {
                functions.entry(function).or_default().with_below += instructions;
            }
        }
        Profile { programs: 0, total, functions, stacks }
    }

    /// The profile in the file format that the lab's page reads.
    fn kept(
        &self,
        places: &Places,
        options: &cli::Profile,
        program: String,
    ) -> Result<quire_results::profile::Profile> {
        let (functions, stacks) = quire_results::profile::Profile::number(&self.stacks);
        let way = match options.hosted {
            Some(count) => format!("--hosted {count} "),
            None => [("--linux ", options.linux), ("--marked ", options.marked)]
                .iter()
                .filter_map(|(word, given)| given.then_some(*word))
                .collect(),
        };
        Ok(quire_results::profile::Profile {
            schema: quire_results::VERSION,
            machine: lab::describe(places)?,
            ended: lab::now(),
            command: format!("./quire profile {way}-- {program}"),
            operation: program,
            place: if options.hosted.is_some() { Place::Cachegrind } else { Place::GuestCounted },
            count: options.hosted,
            functions,
            stacks,
        })
    }

    /// A table of the functions with the most instructions.
    fn table(&self, top: usize) -> String {
        let mut rows: Vec<_> = self.functions.iter().collect();
        rows.sort_by_key(|(_, row)| std::cmp::Reverse(row.own.instructions));
        let share = |n: u64| 100.0 * n as f64 / self.total.instructions as f64;
        let mut text = format!(
            "{} instructions, {} of them locked; {} of programs\n{:>6} {:>7} {:>8}  function\n",
            self.total.instructions, self.total.locked, self.programs, "own", "below", "locked"
        );
        for (name, row) in rows.into_iter().take(top).filter(|(_, row)| row.own.instructions != 0) {
            let (own, below) = (share(row.own.instructions), share(row.with_below));
            let _ = writeln!(text, "{own:5.1}% {below:6.1}% {:8}  {name}", row.own.locked);
        }
        text
    }

    /// A line `outermost;...;innermost INSTRUCTIONS` for each stack, which tools that draw flame graphs read.
    fn folded(&self) -> String {
        self.stacks.iter().map(|(stack, n)| format!("{} {n}\n", stack.join(";"))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str =
        "programs 7\ncall 0 1010\ncall 1 2010\ncount 0 1000 50 1\ncount 1 2000 30 0\ncount 2 1000 20 2\nend\n";

    #[test]
    fn instructions_count_by_function_with_and_without_its_callees() {
        let functions = Functions::of([(0x2000, "inner".to_owned()), (0x1000, "outer".to_owned())]);
        let records = Records::read(TEXT).unwrap();
        let profile = Profile::of(&records, &functions);
        assert_eq!((profile.total, profile.programs), (Count { instructions: 100, locked: 3 }, 7));
        let row = |name| profile.functions[name];
        // A recursive function, called through another function, counts once.
        assert_eq!((row("outer").own.instructions, row("outer").with_below), (70, 100));
        assert_eq!((row("inner").own.instructions, row("inner").with_below), (30, 50));
        let table = profile.table(1);
        assert!(table.contains(" 70.0%  100.0%        3  outer") && !table.contains("inner"), "{table}");
        assert_eq!(profile.folded(), "outer 50\nouter;inner 30\nouter;inner;outer 20\n");
    }

    #[test]
    fn counts_that_are_torn_or_name_no_node_are_refused() {
        assert!(Records::read(TEXT.trim_end_matches("end\n")).is_err());
        for bad in ["count 1 1000 5 0\nend\n", "call 1 1000\nend\n", "count 0 x 5 0\nend\n", "noise\nend\n"] {
            assert!(Records::read(bad).is_err(), "{bad:?}");
        }
    }
}
