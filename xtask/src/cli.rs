//! The command line. The `--help` texts teach by example: each option's first words are an imperative or a noun phrase.

use std::{ffi::OsString, os::unix::ffi::OsStrExt, path::PathBuf, time::Duration};

use clap::{
    Args, CommandFactory, Parser, Subcommand,
    builder::{OsStringValueParser, PathBufValueParser, TypedValueParser},
    error::{ContextKind, ContextValue, ErrorKind},
};

/// Quire: a virtual memory system and a kernel that runs unmodified Linux programs.
#[derive(Debug, Parser)]
#[command(name = "./quire", bin_name = "./quire", version, propagate_version = true, after_help = EXAMPLES,
    max_term_width = 110)]
pub struct Cli {
    /// The command to run.
    #[command(subcommand)]
    pub command: Command,

    /// Install missing tools without a question
    #[arg(long, global = true)]
    pub yes: bool,
}

const EXAMPLES: &str = "\
Examples:
  ./quire run                                       an interactive shell in the guest
  ./quire run -- busybox sort <names.txt            a program of the guest's root, with your standard input
  ./quire run --cpus 4 --memory 2G -- ./my-program  a Linux program of yours, with its libraries
  ./quire test                                      all checks
  ./quire test busybox                              the checks with `busybox` in their names
  ./quire doctor                                    this machine's features, and missing parts
  ./quire debug -- ./my-program                     gdb, stopped at the program's entry, kernel symbols loaded
  ./quire compare -- ./my-program                   the same program on Quire and on Debian's Linux, side by side
  ./quire bench mapper                              costs of the memory core's parts and of replaced designs
  ./quire lab                                       before, after, Quire and Linux: all claims measured and drawn
  ./quire counts --against HEAD~20                  instructions of operations, of two builds
  ./quire conflicts                                 the commutative operations that share cache lines
  ./quire profile -- ./my-program                   the kernel's instructions during a program, by function
  ./quire trace -- ./my-program                     the kernel's events during a program, for Perfetto's viewer
  ./quire fuzz elf --seconds 600                    generated programs for the ELF reader, guided by coverage";

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Boot a guest and run one program in it, or an interactive shell
    Run(Run),
    /// Build the kernel and print its path
    Build,
    /// Install all packages that the other commands need, and prepare their files
    Setup,
    /// Show this machine's features, the accelerator that runs guests, and steps to improve the setup
    #[command(after_help = DOCTOR_HELP)]
    Doctor,
    /// Run all checks: format, lints, unit and property tests, models, programs in the guest
    Test(Test),
    /// Stop at a program's entry with gdb attached
    Debug(Debug),
    /// Run a program on Quire and on Debian's Linux in the same QEMU, and print both sides
    Compare(Compare),
    /// Measure the memory core's parts and the designs that they replaced, on this machine, without a guest
    Bench(Bench),
    /// Repeat the published measurements behind Quire's design: before, after, Quire and Linux, in tables and a page
    Lab(Lab),
    /// Show which commutative operations share cache lines: the conflict matrix
    Conflicts(Conflicts),
    /// Count the kernel's instructions of some 160 operations, beside kept values, another commit or Linux
    Counts(Counts),
    /// Run a program and show how many instructions the kernel executes, by function
    Profile(Profile),
    /// Run a program and show its events by CPU and process: faults, map changes, shootdowns, paging, waits
    Trace(Trace),
    /// Feed generated inputs to the readers of foreign formats and to the memory core, guided by coverage
    Fuzz(Fuzz),
    /// Print the completions of a shell
    #[command(after_help = COMPLETION_EXAMPLES)]
    Completion(Completion),
    /// Print the manual page of ./quire, or of one command
    #[command(after_help = MAN_EXAMPLES)]
    Man(Man),
    /// Write the help texts that the script prints on machines without a compiler
    #[command(hide = true)]
    HelpPages,
}

const DOCTOR_HELP: &str = "\
Prints one screen: the processor, KVM and a trial guest, QEMU, memory, the Rust that builds the kernel, and apt.
Then it prints the accelerator that runs guests, the reason, and the steps to take. It installs and fetches nothing.
The exit status is 1 if guests cannot run.";

const COMPLETION_EXAMPLES: &str = "\
The completions are for the name `quire`, and bash also takes them for ./quire.

Examples:
  ./quire completion bash >~/.local/share/bash-completion/completions/quire
  ./quire completion zsh >~/.zfunc/_quire
  ./quire completion fish >~/.config/fish/completions/quire.fish";

/// Options of `completion`.
#[derive(Debug, Clone, Args)]
pub struct Completion {
    /// The shell
    #[arg(value_name = "SHELL")]
    pub shell: clap_complete::Shell,
}

const MAN_EXAMPLES: &str = "\
Examples:
  ./quire man | man -l -
  ./quire man run >~/.local/share/man/man1/quire-run.1";

/// Options of `man`.
#[derive(Debug, Clone, Args)]
pub struct Man {
    /// The command to describe, for instance run
    pub command: Option<String>,
}

/// The options of a guest.
#[derive(Debug, Clone, Args)]
pub struct Guest {
    /// Number of the guest's CPUs, 1 to 64
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=64))]
    pub cpus: u32,

    /// Size of the guest's memory, like 256M or 2G
    #[arg(short, long, value_name = "SIZE", default_value = "512M", value_parser = memory)]
    pub memory: u64,

    /// Take a root made of these Debian packages and their dependencies, separated by commas. apt fetches them once
    #[arg(long, value_name = "NAME,...", conflicts_with = "root")]
    pub packages: Option<String>,

    /// Put these Debian source packages into the guest's /usr/src, separated by commas. apt fetches them once
    #[arg(long, value_name = "NAME,...")]
    pub sources: Option<String>,

    /// Take this directory or tar archive as the guest's root, with owners, times and links
    #[arg(long, value_name = "DIR|TAR")]
    pub root: Option<PathBuf>,

    /// Copy a file or directory into the guest, with owners, times and links; libraries of programs are copied, too.
    /// Without GUEST it keeps its name and goes to the directory where the program starts
    #[arg(long, value_name = "HOST[:GUEST]")]
    pub copy: Vec<OsString>,

    /// Set an environment variable of the program
    #[arg(short, long, value_name = "K=V", value_parser = OsStringValueParser::new().try_map(variable))]
    pub env: Vec<OsString>,

    /// Directory of the guest where the program starts
    #[arg(short = 'w', long, value_name = "DIR", default_value = "/",
        value_parser = PathBufValueParser::new().try_map(directory))]
    pub cwd: PathBuf,

    /// Stop each machine after this number of seconds (exit status 124)
    #[arg(long, value_name = "S", value_parser = seconds)]
    pub timeout: Option<Duration>,
}

impl Guest {
    /// A guest of this size with Quire's own root, where programs start in `/`.
    pub fn of(cpus: u32, memory: u64) -> Self {
        Self {
            cpus,
            memory,
            packages: None,
            sources: None,
            root: None,
            copy: Vec::new(),
            env: Vec::new(),
            cwd: "/".into(),
            timeout: None,
        }
    }
}

/// Options of `run`.
#[derive(Debug, Clone, Args)]
#[command(after_help = RUN_EXAMPLES)]
pub struct Run {
    /// The guest.
    #[command(flatten)]
    pub guest: Guest,

    /// Name the accelerator, and show the kernel's log on standard error
    #[arg(short, long)]
    pub verbose: bool,

    /// Copy a file or directory out of the guest when the program has ended. Without HOST it keeps its name
    #[arg(long, value_name = "GUEST[:HOST]")]
    pub copy_out: Vec<OsString>,

    /// Words for the kernel's command line, like swap=256M (docs/commands.md lists them)
    #[arg(long, value_name = "WORDS", default_value = "")]
    pub append: String,

    /// Let instructions be the guest's clock (8 ns each), so that its times do not depend on this machine's load
    #[arg(long)]
    pub count: bool,

    /// Boot Debian's Linux instead, with the same image and the same ports
    #[arg(long)]
    pub linux: bool,

    /// Write how the run ended, and on which machine, to this file, as JSON
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,

    /// Options by habit.
    #[command(flatten)]
    pub habits: Habits,

    /// Program and its arguments: a path of this machine, or a name inside the guest's root
    #[arg(trailing_var_arg = true, value_name = "PROGRAM")]
    pub program: Vec<OsString>,
}

/// Options that users of other tools type by habit. The first three change nothing: the guest has a terminal where
/// there is one here, and nothing of it stays. The others are errors that say what to do.
#[derive(Debug, Clone, Default, Args)]
#[allow(dead_code)] // The parser alone looks at them.
pub struct Habits {
    /// Keep standard input open
    #[arg(short, long, hide = true)]
    interactive: bool,

    /// Give the program a terminal
    #[arg(short, long, hide = true)]
    tty: bool,

    /// Remove the guest afterwards
    #[arg(long, hide = true)]
    rm: bool,

    /// Publish a port
    #[arg(short, long, hide = true, value_parser = no_ports)]
    publish: Option<String>,

    /// Share a directory
    #[arg(long, hide = true, value_parser = no_volumes)]
    volume: Option<String>,
}

const RUN_EXAMPLES: &str = "\
The exit status is the program's. It is 128+N if signal N ended the program, and 124 after --timeout.
It is 125 if the machine failed; 2, 126 and 127 mean the same as in a shell.
Standard input, output and error are the program's own, byte for byte.
Ctrl-C interrupts the program, and a second Ctrl-C ends the machine.
In an interactive shell, Ctrl-] ends the machine.

Examples:
  ./quire run                                             a shell
  ./quire run -- busybox sha256sum <big.iso
  ./quire run --copy data.csv -- busybox awk -F, '{print $2}' data.csv
  ./quire run --copy ./site:/srv --cwd /srv -- busybox ls -l
  ./quire run --memory 1G --packages redis-server -- redis-server --version
  ./quire run --packages gcc --copy hello.c --copy-out hello -- gcc -o hello hello.c
  ./quire run --root debian.tar.xz -- bash -c 'ls /usr/bin | wc -l'
  ./quire run --cpus 2 --env RUST_BACKTRACE=1 --timeout 60 -v -- ./target/debug/my-test";

const TEST_EXAMPLES: &str = "\
Examples:
  ./quire test
  ./quire test guest                         only the tests inside the guest
  ./quire test 'sort'                        the checks with `sort` in their names
  ./quire test --list                        all names, without running a check
  ./quire test --soak --minutes 720 attack   random system calls for twelve hours
  ./quire test layers --graph                the uses between the rooms of each crate
  ./quire test prose --table                 sentences of each file, with the number over 25 words

Logs are kept in target/test-logs/. With CI=true, a check that cannot run counts as failed.";

/// Options of `test`.
#[derive(Debug, Clone, Args)]
#[command(after_help = TEST_EXAMPLES)]
pub struct Test {
    /// Part of the name of each check to run
    pub filter: Option<String>,

    /// Print the names of all checks
    #[arg(long)]
    pub list: bool,

    /// Run the random tests ten times as long (ten million operations), and the guest tests also on a kernel that
    /// checks itself
    #[arg(long)]
    pub soak: bool,

    /// Minutes that `--soak attack` runs in all; an interrupted run continues
    #[arg(long, value_name = "N", requires = "soak", default_value_t = 10,
        value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub minutes: u32,

    /// Repeat one round of `--soak attack` by the seed in its failure message
    #[arg(long, value_name = "N", requires = "soak")]
    pub seed: Option<u64>,

    /// Run only the models, under both checkers; the last line counts models and the mutants that each checker finds
    #[arg(long)]
    pub model: bool,

    /// Run only ThreadSanitizer and AddressSanitizer on the random tests, with many operations
    #[arg(long, conflicts_with = "model")]
    pub sanitize: bool,

    /// Run only Miri, where it is installed, on the parts that need no machine
    #[arg(long, conflicts_with_all = ["model", "sanitize"])]
    pub miri: bool,

    /// With `layers`: print how the modules of each crate use each other, print its largest cycle, and write pictures
    #[arg(long, requires = "filter", conflicts_with_all = ["model", "sanitize", "miri", "list"])]
    pub graph: bool,

    /// With `prose`: print for each document and source its sentences, the longest, and the number over 25 words
    #[arg(long, requires = "filter", conflicts_with_all = ["model", "sanitize", "miri", "list", "graph"])]
    pub table: bool,

    /// Run the guest tests on Debian's Linux instead, as a check of the tests themselves
    #[arg(long)]
    pub linux: bool,
}

const DEBUG_EXAMPLES: &str = "\
Examples:
  ./quire debug -- ./my-program --with arguments
  ./quire debug -- busybox ls

gdb loads the symbols of the kernel and of the program, and stops at the program's first instruction.
The program prints to the same terminal as gdb. Its standard input is empty.";

/// Options of `debug`.
#[derive(Debug, Clone, Args)]
#[command(after_help = DEBUG_EXAMPLES)]
pub struct Debug {
    /// The guest.
    #[command(flatten)]
    pub guest: Guest,

    /// Commands for gdb, instead of its prompt
    #[arg(long = "ex", value_name = "COMMAND")]
    pub commands: Vec<OsString>,

    /// Program and its arguments
    #[arg(trailing_var_arg = true, required = true, value_name = "PROGRAM")]
    pub program: Vec<OsString>,
}

const COMPARE_EXAMPLES: &str = "\
Any program can be compared. For each figure the command prints the medians of both sides and their ratio.
The figures are the program's use of time, faults, memory, switches and shootdowns.
Lines `name value unit` that the program prints are figures, too.
The last column has the 95 % interval of the ratio with --repeat 6 and more, and about the range of the runs with fewer.
It is `none` if the ratio may be 1. docs/commands.md explains the rows.

Examples:
  ./quire compare --cpus 2 -- target/programs/zerofill --seconds 2
  ./quire compare --repeat 9 --json sort.json -- busybox sort -o /tmp/out /big.txt
  ./quire compare --count -- target/programs/forkexec     guest instructions: repeatable";

/// Options of `compare`.
#[derive(Debug, Clone, Args)]
#[command(after_help = COMPARE_EXAMPLES)]
pub struct Compare {
    /// The guest.
    #[command(flatten)]
    pub guest: Guest,

    /// Count instructions of the kernel and of programs: one CPU, a clock of 8 ns an instruction, the same figures
    /// every time
    #[arg(long)]
    pub count: bool,

    /// Compare the output of both sides instead of figures, and show the first line that differs
    #[arg(long, conflicts_with_all = ["count", "time", "repeat", "json", "seed"])]
    pub same: bool,

    /// Measure the time also of a short program. Without this option a program of less than 200 ms is counted in the
    /// emulator, as with --count: the translation of its code would take most of its time
    #[arg(long, conflicts_with = "count")]
    pub time: bool,

    /// Number of runs of each side
    #[arg(long, alias = "runs", value_name = "K", default_value_t = 3,
        value_parser = clap::value_parser!(u32).range(1..=99))]
    pub repeat: u32,

    /// Write the figures of every run to this file, as JSON
    #[arg(long, value_name = "FILE")]
    pub json: Option<std::path::PathBuf>,

    /// Seed of the order of the sides; Quire runs first if it is even [default: random]
    #[arg(long, value_name = "N")]
    pub seed: Option<u64>,

    /// Words for the command lines of both kernels
    #[arg(long, value_name = "WORDS", default_value = "")]
    pub append: String,

    /// Program and its arguments
    #[arg(trailing_var_arg = true, required = true, value_name = "PROGRAM")]
    pub program: Vec<OsString>,
}

const BENCH_EXAMPLES: &str = "\
Prints one line `name value unit` for each figure. Counts repeat exactly, and times are medians.
docs/bench.md describes the methods.

Examples:
  ./quire bench                    all figures (some minutes)
  ./quire bench mapper fork        the figures with `mapper` or `fork` in their names
  ./quire bench --list             names, units and methods, without measuring
  ./quire bench --json fork >fork.json";

/// Options of `bench`.
#[derive(Debug, Clone, Args)]
#[command(after_help = BENCH_EXAMPLES)]
pub struct Bench {
    /// Parts of the names of the figures to measure
    #[arg(value_name = "NAME")]
    pub names: Vec<String>,

    /// Print all names with their units and methods
    #[arg(long)]
    pub list: bool,

    /// Print one JSON array of objects with name, value and unit
    #[arg(long)]
    pub json: bool,

    /// Do as little as shows that each figure is measured; the values mean nothing
    #[arg(long)]
    pub short: bool,
}

const LAB_EXAMPLES: &str = "\
Prints a table for each experiment. Writes results.json with every sample (docs/results.schema.json), and report.html.
An interrupted run keeps its samples, and the same command continues it.
docs/lab.md describes the methods, runs on several machines, and new experiments.

Examples:
  ./quire lab list
  ./quire lab --quick                     all experiments, small
  ./quire lab map ranges --cpus 1,2 --no-linux
  ./quire lab --full --out big            larger sizes, more rounds
  ./quire lab report */results.json --out all.html";

/// Options of `lab`.
#[derive(Debug, Clone, Args)]
#[command(
    args_conflicts_with_subcommands = true,
    subcommand_negates_reqs = true,
    after_help = LAB_EXAMPLES
)]
pub struct Lab {
    /// A subcommand that does not measure.
    #[command(subcommand)]
    pub part: Option<LabPart>,

    /// Parts of the names of the experiments to run
    #[arg(value_name = "NAME")]
    pub names: Vec<String>,

    /// Use small sizes and few rounds (as without --full)
    #[arg(long, conflicts_with = "full")]
    pub quick: bool,

    /// Use larger sizes and more rounds
    #[arg(long)]
    pub full: bool,

    /// Do the smallest case of each experiment once, on Quire alone; the values mean nothing
    #[arg(long, conflicts_with_all = ["quick", "full", "cpus"])]
    pub short: bool,

    /// Directory for results.json and report.html [default: target/lab-runs/quick, full or short]
    #[arg(long, value_name = "DIR")]
    pub out: Option<std::path::PathBuf>,

    /// Numbers of CPUs to try, for instance 1,2,8 [default: the powers of two that this machine has, and all]
    #[arg(long, value_name = "N,...", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..=256))]
    pub cpus: Vec<u32>,

    /// Measure without Linux
    #[arg(long)]
    pub no_linux: bool,

    /// Begin a new run instead of continuing an unfinished one; its results are moved aside
    #[arg(long)]
    pub again: bool,
}

/// Subcommands of `lab` that do not measure.
#[derive(Debug, Clone, Subcommand)]
pub enum LabPart {
    /// Print the experiments, what each measures, and how long it takes
    List(LabList),
    /// Merge and compare runs, for instance of several machines, in one page
    Report(LabReport),
    /// Draw the lines moved by a fault, and faults a second, of a kept run: a picture for a document
    Picture(LabPicture),
    /// Write docs/status.md and docs/api.md. The first has budgets met and missed, Linux's features, gaps and unsafe
    /// code. The second lists the core's public items
    Status,
}

/// Options of `lab list`.
#[derive(Debug, Clone, Args)]
pub struct LabList {
    /// Print only the names, one a line
    #[arg(long)]
    pub names: bool,
}

/// Options of `lab report`.
#[derive(Debug, Clone, Args)]
pub struct LabReport {
    /// Files results.json to merge
    #[arg(required = true, value_name = "FILE")]
    pub files: Vec<std::path::PathBuf>,

    /// Page to write
    #[arg(long, value_name = "FILE", default_value = "report.html")]
    pub out: std::path::PathBuf,
}

/// Options of `lab picture`.
#[derive(Debug, Clone, Args)]
pub struct LabPicture {
    /// The run [default: the newest full run in lab/runs/]
    #[arg(value_name = "FILE")]
    pub file: Option<std::path::PathBuf>,

    /// The picture
    #[arg(long, value_name = "FILE", default_value = "docs/faults.svg")]
    pub out: std::path::PathBuf,
}

const CONFLICTS_EXAMPLES: &str = "\
Two virtual CPUs run each pair of operations that commute, and every access to shared memory is recorded.
The exit status is 1 if the matrix differs from its list. docs/conflicts.md explains the matrix.

Examples:
  ./quire conflicts                      all pairs (a minute)
  ./quire conflicts fork exec            the pairs with one of these operations
  ./quire conflicts --html matrix.html   also writes a page
  ./quire conflicts --json lab/runs/2026-11-26-conflicts.json    also writes the file for the lab's page
  ./quire conflicts --scale              lines moved for an operation, with 2 to 256 CPUs
  ./quire conflicts --guest              the whole kernel: system calls from two CPUs of a guest
  ./quire conflicts --guest -v munmap    the pairs of munmap, and the code sites of each line";

/// Options of `conflicts`.
#[derive(Debug, Clone, Args)]
#[command(after_help = CONFLICTS_EXAMPLES)]
pub struct Conflicts {
    /// Operations whose pairs run; with --scale, parts of the names of workloads
    #[arg(value_name = "OPERATION")]
    pub operations: Vec<String>,

    /// Write a page with the matrix
    #[arg(long, value_name = "FILE")]
    pub html: Option<std::path::PathBuf>,

    /// Write the matrix with the commit and the machine, for the lab's page: lab/runs/DATE-conflicts.json
    #[arg(long, value_name = "FILE", conflicts_with_all = ["counted", "operations"])]
    pub json: Option<std::path::PathBuf>,

    /// Count the lines that move from CPU to CPU for each operation, by the number of CPUs, instead of pairs
    #[arg(long, group = "counted", conflicts_with = "html")]
    pub scale: bool,

    /// Run real system calls and faults in a guest instead
    #[arg(long, group = "counted")]
    pub guest: bool,

    /// With --guest: show the code that wrote each conflicting line, and the code that touched it. With --scale: show
    /// the code that needed the lines
    #[arg(short, long, requires = "counted")]
    pub verbose: bool,
}

const COUNTS_EXAMPLES: &str = "\
Each operation of programs/counts.c runs in a guest on a counted clock, so figures repeat.
./quire test counts fails where a row is more than 2 % above its value in lab/counts.toml.

Examples:
  ./quire counts                       all operations, beside the kept values
  ./quire counts protect fork          the operations with `protect` or `fork` in their names
  ./quire counts --against HEAD~20     beside the kernel of another commit, which is built once
  ./quire counts --linux               beside Debian's Linux
  ./quire counts --all                 also requests to servers, and the memory core's lines and locks
  ./quire counts --keep protect        keeps the new values of these rows";

/// Options of `counts`.
#[derive(Debug, Clone, Args)]
#[command(after_help = COUNTS_EXAMPLES)]
pub struct Counts {
    /// Parts of the names of the operations to count
    #[arg(value_name = "NAME")]
    pub names: Vec<String>,

    /// Build the kernel of this commit, too, and print its counts beside
    #[arg(long, value_name = "COMMIT", group = "beside")]
    pub against: Option<String>,

    /// Print the counts of Debian's Linux beside
    #[arg(long, group = "beside")]
    pub linux: bool,

    /// Count requests to servers too, and the lines and locks of the memory core on the hosted machine
    #[arg(long)]
    pub all: bool,

    /// Write the new values to lab/counts.toml. The reasons beside values stay
    #[arg(long)]
    pub keep: bool,
}

const PROFILE_EXAMPLES: &str = "\
A plugin of the emulator counts each instruction. With one CPU the figures repeat exactly.
The program's output appears on standard error. The programs of programs/ mark their measured sections.

Examples:
  ./quire profile -- target/programs/forkexec --seconds 1
  ./quire profile --marked --top 20 -- micro --only cow
  ./quire profile --flame flame.html -- busybox find /      a flame graph, for a browser
  ./quire profile --linux -- target/programs/forkexec       Linux's functions during the same program
  ./quire profile --hosted 2000 -- zero_fill                one operation of the memory core alone, without a guest";

/// Options of `profile`.
#[derive(Debug, Clone, Args)]
#[command(after_help = PROFILE_EXAMPLES)]
pub struct Profile {
    /// The guest.
    #[command(flatten)]
    pub guest: Guest,

    /// Count only the sections that the program marks, as those of programs/ do
    #[arg(long)]
    pub marked: bool,

    /// Count the instructions of Debian's Linux instead, from the program's start to its end. Its output appears at the
    /// end
    #[arg(long, conflicts_with = "hosted")]
    pub linux: bool,

    /// Number of functions to show
    #[arg(long, value_name = "N", default_value_t = 40)]
    pub top: usize,

    /// Write a line `outermost;...;innermost INSTRUCTIONS` for each stack of calls
    #[arg(long, value_name = "FILE")]
    pub folded: Option<std::path::PathBuf>,

    /// Write the stacks of calls as a flame graph: a page for a browser, in which a click on a function enlarges it
    #[arg(long, value_name = "FILE")]
    pub flame: Option<std::path::PathBuf>,

    /// Write the stacks of calls with the commit and the machine, for the lab's page: lab/runs/DATE-profile.json
    #[arg(long, value_name = "FILE")]
    pub json: Option<std::path::PathBuf>,

    /// Count N operations of the lab's workload PROGRAM instead, in a process of this machine, under valgrind
    #[arg(long, value_name = "N", conflicts_with = "marked")]
    pub hosted: Option<u64>,

    /// Program and its arguments
    #[arg(trailing_var_arg = true, required = true, value_name = "PROGRAM")]
    pub program: Vec<OsString>,
}

const TRACE_EXAMPLES: &str = "\
The command builds a kernel with trace events; the usual kernel has none.
It prints the number of events of each kind with their latencies, and the most expensive sites.
The file has a track for each CPU, process and thread. Open it at https://ui.perfetto.dev; it stays in the browser.
The program's output appears on standard error.

Examples:
  ./quire trace --cpus 2 -- target/programs/micro --seconds 0.1
  ./quire trace --count -- busybox find /        a clock of 8 ns an instruction: figures repeat almost exactly
  ./quire trace --out sort.json --buffer 256M -- busybox sh -c 'seq 100000 | sort -n | tail -1'";

/// Options of `trace`.
#[derive(Debug, Clone, Args)]
#[command(after_help = TRACE_EXAMPLES)]
pub struct Trace {
    /// The guest.
    #[command(flatten)]
    pub guest: Guest,

    /// File to write, for Perfetto's viewer
    #[arg(long, value_name = "FILE", default_value = "trace.json")]
    pub out: std::path::PathBuf,

    /// Memory for events beside the guest's own, like 256M. A MiB holds some 12,000 events; further events are only
    /// counted
    #[arg(long, value_name = "SIZE", default_value = "64M", value_parser = buffer)]
    pub buffer: u64,

    /// Count instructions: one CPU, a clock of 8 ns an instruction; figures repeat but for a few instructions
    #[arg(long)]
    pub count: bool,

    /// Number of the costliest sites to show
    #[arg(long, value_name = "N", default_value_t = 10)]
    pub top: usize,

    /// Write the tables to this file, as JSON
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,

    /// Words for the kernel's command line, like swap=256M (docs/commands.md lists them)
    #[arg(long, value_name = "WORDS", default_value = "")]
    pub append: String,

    /// Program and its arguments
    #[arg(trailing_var_arg = true, required = true, value_name = "PROGRAM")]
    pub program: Vec<OsString>,
}

const FUZZ_EXAMPLES: &str = "\
Failing inputs are written to target/fuzz/artifacts/, and inputs that reach new code to target/fuzz/corpus/.
docs/checking.md describes how to add a target.

Examples:
  ./quire fuzz --list
  ./quire fuzz elf --seconds 600
  ./quire fuzz elf --input target/fuzz/artifacts/elf-crash-0a1b";

/// Options of `fuzz`.
#[derive(Debug, Clone, Args)]
#[command(after_help = FUZZ_EXAMPLES)]
pub struct Fuzz {
    /// Fuzz target to run
    pub target: Option<String>,

    /// Seconds to run
    #[arg(long, value_name = "N", default_value_t = 60, value_parser = clap::value_parser!(u32).range(1..))]
    pub seconds: u32,

    /// Try only this input
    #[arg(long, value_name = "FILE")]
    pub input: Option<std::path::PathBuf>,

    /// Print all targets
    #[arg(long)]
    pub list: bool,
}

/// The MiB of a guest's memory, from `256M`, `2G` or `512` (MiB).
fn memory(text: &str) -> Result<u64, String> {
    match mebibytes(text)? {
        0..LEAST_MEMORY => Err(format!("{text} is too little memory; give at least {LEAST_MEMORY}M")),
        1_048_577.. => Err(format!("{text} is more memory than a guest can have; give at most 1024G")),
        mib => Ok(mib),
    }
}

/// The MiB of a trace's buffer, which must lie where the boot loader sees it.
fn buffer(text: &str) -> Result<u64, String> {
    match mebibytes(text)? {
        mib @ 1..=2048 => Ok(mib),
        _ => Err(format!("{text} is not a valid trace size; give 1M to 2G")),
    }
}

fn mebibytes(text: &str) -> Result<u64, String> {
    let wrong = || format!("{text:?} is not a size; write for example 256M or 2G");
    let (digits, unit) = match text.to_ascii_uppercase().trim_end_matches("IB").trim_end_matches('B') {
        t if t.ends_with('G') => (t.trim_end_matches('G').to_owned(), 1024),
        t => (t.trim_end_matches('M').to_owned(), 1),
    };
    digits.parse::<u64>().ok().and_then(|n| n.checked_mul(unit)).ok_or_else(wrong)
}

/// The least memory of a guest in MiB: the kernel, its tables and a shell fit into it.
pub const LEAST_MEMORY: u64 = 32;

fn no_ports(_: &str) -> Result<String, String> {
    Err("a guest's network reaches no other machine, so no port can be published".into())
}

fn no_volumes(_: &str) -> Result<String, String> {
    Err("a guest shares no files; --copy copies them into it, and --copy-out copies them back".into())
}

/// Adds the nearest command to an error about an unknown one, also where letters have changed places.
pub fn with_nearest(mut error: clap::Error) -> clap::Error {
    if error.kind() == ErrorKind::InvalidSubcommand
        && error.get(ContextKind::SuggestedSubcommand).is_none()
        && let Some(ContextValue::String(said)) = error.get(ContextKind::InvalidSubcommand)
    {
        let cli = Cli::command();
        let names = cli.get_subcommands().filter(|c| !c.is_hide_set()).map(clap::Command::get_name);
        let near =
            names.map(|name| (strsim::osa_distance(said, name), name)).min().filter(|(distance, _)| *distance <= 2);
        if let Some((_, name)) = near {
            let name = ContextValue::Strings(vec![name.to_owned()]);
            error.insert(ContextKind::SuggestedSubcommand, name);
        }
    }
    error
}

fn variable(text: OsString) -> Result<OsString, String> {
    match text.as_bytes().iter().position(|b| *b == b'=') {
        Some(1..) => Ok(text),
        _ => Err("write NAME=VALUE".into()),
    }
}

fn directory(path: PathBuf) -> Result<PathBuf, String> {
    if path.is_absolute() { Ok(path) } else { Err("write an absolute path of the guest".into()) }
}

fn seconds(text: &str) -> Result<Duration, String> {
    text.parse::<f64>()
        .ok()
        .filter(|s| *s > 0.0)
        .and_then(|s| Duration::try_from_secs_f64(s).ok())
        .ok_or_else(|| "write a number of seconds, like 10 or 0.5".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn sizes_are_read_and_nonsense_is_refused() {
        assert_eq!(memory("256M"), Ok(256));
        assert_eq!(memory("2g"), Ok(2048));
        assert_eq!(memory("512"), Ok(512));
        assert_eq!(memory("1GiB"), Ok(1024));
        for bad in ["", "M", "1.5G", "-1", "8M", "0", "99999999999999999999G", "18014398509481984G", "2T"] {
            assert!(memory(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn times_are_read_and_nonsense_is_refused() {
        assert_eq!(seconds("0.5"), Ok(Duration::from_millis(500)));
        for bad in ["", "0", "-1", "x", "nan", "inf", "1e300"] {
            assert!(seconds(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn everything_after_the_program_is_its_own() {
        for line in [
            vec!["./quire", "run", "--cpus", "2", "--", "ls", "-l", "--help"],
            vec!["./quire", "run", "--cpus", "2", "ls", "-l", "--help"],
        ] {
            let Command::Run(run) = Cli::try_parse_from(line).unwrap().command else { panic!("not run") };
            assert_eq!(run.program, ["ls", "-l", "--help"]);
            assert_eq!(run.guest.cpus, 2);
        }
    }

    #[test]
    fn an_unknown_option_is_an_error_that_names_the_nearest() {
        for command in ["run", "debug", "compare", "profile", "trace"] {
            let line = ["./quire", command, "--cpu", "2", "--", "ls"];
            let error = Cli::try_parse_from(line).unwrap_err();
            let text = error.to_string();
            assert_eq!(error.exit_code(), 2, "{text}");
            assert!(text.contains("'--cpu'") && text.contains("'--cpus'"), "{text}");
            assert_eq!(Cli::try_parse_from(["./quire", command, "-z", "ls"]).unwrap_err().exit_code(), 2);
        }
    }

    #[test]
    fn an_unknown_command_is_an_error_that_names_the_nearest() {
        let said = |word: &str| with_nearest(Cli::try_parse_from(["./quire", word]).unwrap_err()).to_string();
        for (word, nearest) in [("rnu", "'run'"), ("tset", "'test'"), ("dcotor", "'doctor'"), ("lba", "'lab'")] {
            assert!(said(word).contains(nearest), "{}", said(word));
        }
        assert!(!said("wibble").contains("similar"), "{}", said("wibble"));
    }

    #[test]
    fn options_by_habit_work_or_say_what_to_do() {
        let line = ["./quire", "run", "-it", "--rm", "-m", "1G", "-e", "A=b", "-w", "/srv", "--", "ls"];
        let Command::Run(run) = Cli::try_parse_from(line).unwrap().command else { panic!("not run") };
        assert_eq!((run.guest.memory, run.guest.env, run.guest.cwd), (1024, vec!["A=b".into()], "/srv".into()));
        for (option, value, said) in [("-p", "80:80", "no port"), ("--volume", "/a:/b", "--copy copies")] {
            let error = Cli::try_parse_from(["./quire", "run", option, value, "--", "ls"]).unwrap_err();
            assert!(error.exit_code() == 2 && error.to_string().contains(said), "{error}");
        }
    }

    #[test]
    fn words_need_not_be_utf_8() {
        let raw = |bytes: &[u8]| OsString::from(std::ffi::OsStr::from_bytes(bytes));
        let mut line: Vec<OsString> = ["./quire", "run", "--env"].map(Into::into).to_vec();
        line.extend([raw(b"A=\xff"), "--cwd".into(), raw(b"/\xfe"), "--copy".into(), raw(b"\xfd"), raw(b"./\xfc")]);
        let Command::Run(run) = Cli::try_parse_from(line).unwrap().command else { panic!("not run") };
        assert_eq!((run.guest.env, run.guest.cwd.into_os_string()), (vec![raw(b"A=\xff")], raw(b"/\xfe")));
        assert_eq!((run.guest.copy, run.program), (vec![raw(b"\xfd")], vec![raw(b"./\xfc")]));
        for bad in ["=x", "x", ""] {
            assert!(Cli::try_parse_from(["./quire", "run", "--env", bad]).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn too_many_cpus_are_refused_with_status_2() {
        for cpus in ["0", "65", "-1", "x"] {
            let error = Cli::try_parse_from(["./quire", "run", "--cpus", cpus, "--", "true"]).unwrap_err();
            assert_eq!(error.exit_code(), 2);
        }
    }
}
