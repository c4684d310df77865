//! The command itself, as a user meets it: streams, statuses, signals, terminals, and what is left behind (nothing).

use std::{
    collections::BTreeMap,
    fs::{self, File},
    io::{Read, Write},
    os::{
        fd::OwnedFd,
        unix::{fs::PermissionsExt, process::CommandExt},
    },
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use object::{Object as _, ObjectSymbol as _};
use quire_results::Results;
use rustix::{
    fs::{Mode, OFlags},
    process::{Pid, Signal, kill_process},
    pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt},
    termios::{Winsize, tcgetattr, tcsetwinsize},
};

use serde_json::Value;

use super::{Context, verdict::Check};
use crate::build;
use crate::failure::{Doing, Failure, Result};
use crate::places::Places;
use crate::programs;

type Body = fn(&Bench) -> Result<(), String>;

const CHECKS: &[(&str, Body)] = &[
    ("exit status", exit_status),
    ("death by a signal", death_by_signal),
    ("streams are apart and byte-transparent", streams),
    ("a slow reader loses nothing", slow_reader),
    ("a reader that goes away", reader_goes),
    ("standard input from nowhere", no_input),
    ("copies, environment and directory", surroundings),
    ("a dynamic program of this machine", dynamic),
    ("a project in C is built as it is here", built),
    ("programs larger than memory", overcommit),
    ("a user takes all of the kernel's memory", exhausted),
    ("timeout", timeout),
    ("interrupt", interrupt),
    ("a second interrupt", second_interrupt),
    ("terminated", terminated),
    ("killed", killed),
    ("an interactive shell", interactive),
    ("a panic of the kernel", panic),
    ("settings of the memory core", settings),
    ("file systems in memory of every size", file_systems),
    ("boot words that ask for what cannot be", boot_words),
    ("programs on a kernel that checks itself", checked_programs),
    ("locks taken both ways round, on a kernel that checks itself", inversion),
    ("bad input", bad_input),
    ("QEMU that is missing, hangs or dies", bad_qemu),
    ("debugger", debugger),
    ("a profile begins with the program", profiled),
    ("comparison", comparison),
    ("lines that processors share in the guest", shared_lines),
    ("the lab is interrupted, goes on, and draws", lab),
    ("a trace of known events", traced),
    ("a trace that is too long", cut_trace),
    ("nothing of traces in the usual kernel", untraced),
];

/// The checks' names.
pub fn names(_: &Context<'_>) -> Result<Vec<String>> {
    Ok(CHECKS.iter().map(|(name, _)| format!("command/{name}")).collect())
}

/// Runs what is selected. Each check has a directory for temporary files of its own, which must be empty at the end, and a
/// mark in the environment by which what it left running is found.
pub fn run(context: &Context<'_>, done: &mut dyn FnMut(Check)) -> Result<()> {
    for (number, (name, body)) in CHECKS.iter().enumerate() {
        let full = format!("command/{name}");
        if !context.selects(&full) {
            continue;
        }
        let place = tempfile::tempdir().doing(|| "cannot make a temporary directory".to_string())?;
        let bench = Bench {
            kernel: context.kernel()?,
            quire: std::env::current_exe().doing(|| "cannot find this program".to_string())?,
            places: context.places.clone(),
            temporary: place.path().join("tmp"),
            place: place.path().to_owned(),
            mark: format!("QUIRE_TEST_MARK={}-{number}", std::process::id()),
        };
        fs::create_dir(&bench.temporary).doing(|| "cannot make a temporary directory".to_string())?;
        let result = body(&bench).and_then(|()| bench.nothing_left());
        done(Check::of(full, result));
    }
    Ok(())
}

struct Bench {
    kernel: PathBuf,
    quire: PathBuf,
    places: Places,
    place: PathBuf,
    temporary: PathBuf,
    mark: String,
}

#[derive(Debug)]
struct Done {
    status: i32,
    stdout: Vec<u8>,
    stderr: String,
}

impl Bench {
    fn command(&self, words: &[&str]) -> Command {
        let (name, value) = self.mark.split_once('=').unwrap_or_default();
        let mut command = Command::new(&self.quire);
        command.args(words).env("QUIRE_ROOT", &self.places.root).env("TMPDIR", &self.temporary).env(name, value);
        command.env("QUIRE_KERNEL", &self.kernel);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    fn run(&self, words: &[&str]) -> Result<Done, String> {
        finish(self.command(words).spawn().map_err(text)?)
    }

    /// Runs and waits until the program has printed `word`.
    fn until(&self, words: &[&str], word: &str) -> Result<Child, String> {
        let mut child = self.command(words).spawn().map_err(text)?;
        let mut seen = Vec::new();
        let out = child.stdout.as_mut().ok_or("no standard output")?;
        while !String::from_utf8_lossy(&seen).contains(word) {
            let mut byte = [0];
            if out.read(&mut byte).map_err(text)? == 0 {
                let done = finish(child)?;
                return Err(format!("ended with {} before it printed {word:?}: {}", done.status, done.stderr));
            }
            seen.push(byte[0]);
        }
        Ok(child)
    }

    /// Neither a file nor a process.
    fn nothing_left(&self) -> Result<(), String> {
        let files: Vec<_> = fs::read_dir(&self.temporary).map_err(text)?.filter_map(|e| Some(e.ok()?.path())).collect();
        if !files.is_empty() {
            return Err(format!("left behind: {files:?}"));
        }
        // A killed parent's QEMU gets its signal at once, but takes a moment to be gone.
        let start = Instant::now();
        loop {
            let left = self.running();
            if left.is_empty() {
                return Ok(());
            }
            if start.elapsed() > Duration::from_secs(3) {
                return Err(format!("still running: {left:?}"));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn running(&self) -> Vec<String> {
        let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
        let marked = |path: &Path| {
            let environment = fs::read(path.join("environ")).unwrap_or_default();
            environment.split(|b| *b == 0).any(|v| v == self.mark.as_bytes())
        };
        processes
            .filter(|p| p.file_name().to_string_lossy().bytes().all(|b| b.is_ascii_digit()) && marked(&p.path()))
            .map(|p| fs::read_to_string(p.path().join("cmdline")).unwrap_or_default().replace('\0', " "))
            .collect()
    }

    fn file(&self, name: &str, bytes: &[u8]) -> Result<PathBuf, String> {
        let path = self.place.join(name);
        fs::write(&path, bytes).map_err(text)?;
        Ok(path)
    }
}

fn text(e: impl std::fmt::Display) -> String {
    e.to_string()
}

fn finish(child: Child) -> Result<Done, String> {
    let out = child.wait_with_output().map_err(text)?;
    let status = out.status.code().unwrap_or(-1);
    Ok(Done { status, stdout: out.stdout, stderr: String::from_utf8_lossy(&out.stderr).into_owned() })
}

/// Did it end with `status`? Says what it said if not.
fn ended(done: &Done, status: i32) -> Result<(), String> {
    if done.status == status {
        return Ok(());
    }
    Err(format!("status {} instead of {status}; standard error: {}", done.status, done.stderr.trim()))
}

fn same(what: &str, got: &[u8], expected: &[u8]) -> Result<(), String> {
    if got == expected {
        return Ok(());
    }
    let show = |b: &[u8]| format!("{} bytes, {:?}", b.len(), String::from_utf8_lossy(&b[..b.len().min(80)]));
    Err(format!("{what}: {} instead of {}", show(got), show(expected)))
}

/// Bytes of every value, lines and none.
fn bytes(count: usize) -> Vec<u8> {
    (0..count).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8).collect()
}

fn exit_status(bench: &Bench) -> Result<(), String> {
    ended(&bench.run(&["run", "--", "busybox", "true"])?, 0)?;
    ended(&bench.run(&["run", "--", "sh", "-c", "exit 42"])?, 42)
}

fn death_by_signal(bench: &Bench) -> Result<(), String> {
    ended(&bench.run(&["run", "--", "sh", "-c", "kill -TERM $$"])?, 143)?;
    ended(&bench.run(&["run", "--", "sh", "-c", "sleep 100 & kill -SEGV $$"])?, 139)
}

fn streams(bench: &Bench) -> Result<(), String> {
    let sent = bytes(1 << 20);
    let file = bench.file("input", &sent)?;
    let mut command = bench.command(&["run", "--", "sh", "-c", "echo to the errors >&2; cat; echo again >&2"]);
    let child = command.stdin(File::open(file).map_err(text)?).spawn().map_err(text)?;
    let done = finish(child)?;
    ended(&done, 0)?;
    same("standard output", &done.stdout, &sent)?;
    same("standard error", done.stderr.as_bytes(), b"to the errors\nagain\n")
}

fn slow_reader(bench: &Bench) -> Result<(), String> {
    let sent = bytes(3 << 20);
    let file = bench.file("input", &sent)?;
    let mut command = bench.command(&["run", "--", "busybox", "cat"]);
    let mut child = command.stdin(File::open(file).map_err(text)?).spawn().map_err(text)?;
    std::thread::sleep(Duration::from_secs(3));
    let mut got = Vec::new();
    let out = child.stdout.as_mut().ok_or("no standard output")?;
    let mut piece = [0; 30_000];
    loop {
        match out.read(&mut piece).map_err(text)? {
            0 => break,
            n => got.extend(&piece[..n]),
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    ended(&finish(child)?, 0)?;
    same("standard output", &got, &sent)
}

fn reader_goes(bench: &Bench) -> Result<(), String> {
    let mut child = bench.until(&["run", "--", "busybox", "yes"], "y\n")?;
    drop(child.stdout.take());
    ended(&finish(child)?, 141)
}

fn no_input(bench: &Bench) -> Result<(), String> {
    let done = bench.run(&["run", "--", "busybox", "wc", "-c"])?;
    ended(&done, 0)?;
    same("standard output", &done.stdout, b"0\n")
}

fn surroundings(bench: &Bench) -> Result<(), String> {
    let file = bench.file("data", b"the data\n")?;
    fs::create_dir(bench.place.join("tree")).map_err(text)?;
    bench.file("tree/inner", b"inner\n")?;
    let tree = format!("{}:/srv/tree", bench.place.join("tree").display());
    let script = "cat data /srv/tree/inner; pwd; echo $WORD; echo \"$PATH\" | grep -c bin; tty";
    let copy = file.to_string_lossy();
    let words =
        ["run", "--copy", &copy, "--copy", &tree, "--env", "WORD=a b", "--cwd", "/work", "--", "sh", "-c", script];
    let done = bench.run(&words)?;
    same("standard output", &done.stdout, b"the data\ninner\n/work\na b\n1\nnot a tty\n")?;
    ended(&done, 1)
}

fn dynamic(bench: &Bench) -> Result<(), String> {
    let sent = bytes(100_000);
    let file = bench.file("input", &sent)?;
    let here = Command::new("/usr/bin/sha256sum").stdin(File::open(&file).map_err(text)?).output().map_err(text)?;
    let mut command = bench.command(&["run", "--", "/usr/bin/sha256sum"]);
    let done = finish(command.stdin(File::open(&file).map_err(text)?).spawn().map_err(text)?)?;
    ended(&done, 0)?;
    same("standard output", &done.stdout, &here.stdout)
}

/// A small project in the shape of Lua's: make runs itself, with jobs at a time, and the compiler, the archiver and the linker.
const PROJECT: [(&str, &str); 5] = [
    (
        "Makefile",
        "posix:\n\t$(MAKE) lua\nlua: lua.o libab.a\n\t$(CC) -o lua lua.o libab.a -lm\n\
         libab.a: a.o b.o\n\t$(AR) libab.a a.o b.o\nclean:\n\trm -f *.o *.a lua\n%.o: %.c ab.h\n\t$(CC) $(MYCFLAGS) -c $<\n",
    ),
    ("ab.h", "double a(double), b(double);\n"),
    ("a.c", "#include \"ab.h\"\n#include <math.h>\ndouble a(double x) { return sqrt(b(x)); }\n"),
    ("b.c", "#include \"ab.h\"\ndouble b(double x) { return 2 * x; }\n"),
    (
        "lua.c",
        "#include \"ab.h\"\n#include <stdio.h>\nint main(int n, char **words) { return printf(\"%s %f\\n\", words[0], a(n)) < 0; }\n",
    ),
];

/// This machine's compiler makes the same bytes in the guest, and what it made runs there.
fn built(bench: &Bench) -> Result<(), String> {
    for (name, content) in PROJECT {
        bench.file(name, content.as_bytes())?;
    }
    let source = bench.place.to_str().ok_or("no UTF-8")?;
    let mut command = bench.command(&["run", "--cpus", "2", "--", "build", "--builds", "2"]);
    let done = finish(command.env("QUIRE_LUA", source).spawn().map_err(text)?)?;
    ended(&done, 0)?;
    let program = programs::compile(&bench.places, &bench.places.root.join("programs/build.c")).map_err(text)?;
    let here = Command::new(program).args(["--builds", "1", "--source", source]).output().map_err(text)?;
    let crc =
        |out: &[u8]| String::from_utf8_lossy(out).lines().find(|l| l.starts_with("build_crc ")).map(str::to_owned);
    match (crc(&done.stdout), crc(&here.stdout)) {
        (Some(there), Some(here)) if there == here => Ok(()),
        (there, here) => Err(format!("there {there:?}, here {here:?}: {}", done.stderr)),
    }
}

/// Two processes show three quarters more than the guest has, what is missing in swap; nothing is lost.
fn overcommit(bench: &Bench) -> Result<(), String> {
    let size = ["run", "--memory", "160M", "--append", "swap=96M", "--"];
    let done = bench.run(&[&size[..], &["overcommit", "--megabytes", "72", "--rounds", "1"]].concat())?;
    ended(&done, 0)?;
    same("standard output", &done.stdout, b"overcommit_pages 18432 pages\n")
}

/// Process 1 goes on, one signal ends a group that has taken all memory, and the memory comes back.
fn exhausted(bench: &Bench) -> Result<(), String> {
    for (cpus, memory) in [("1", "128M"), ("4", "256M")] {
        let done = bench.run(&["run", "--cpus", cpus, "--memory", memory, "--", "exhaust"])?;
        ended(&done, 0)?;
        same("standard output", &done.stdout, b"exhaust_survived 5 kinds\n")?;
    }
    Ok(())
}

fn timeout(bench: &Bench) -> Result<(), String> {
    let start = Instant::now();
    let done = bench.run(&["run", "--timeout", "3", "--", "busybox", "sleep", "100"])?;
    ended(&done, 124)?;
    if start.elapsed() > Duration::from_secs(20) { Err("it took far longer than told".into()) } else { one_line(&done) }
}

fn signal(child: &Child, signal: Signal) -> Result<(), String> {
    kill_process(Pid::from_child(child), signal).map_err(text)
}

fn interrupt(bench: &Bench) -> Result<(), String> {
    let script = "trap 'echo got it; exit 7' INT; echo ready; while :; do sleep 0.1; done";
    let child = bench.until(&["run", "--timeout", "60", "--", "sh", "-c", script], "ready")?;
    signal(&child, Signal::INT)?;
    let done = finish(child)?;
    ended(&done, 7)?;
    same("standard output", &done.stdout, b"\ngot it\n")?;
    let child = bench.until(&["run", "--timeout", "60", "--", "sh", "-c", "echo ready; exec sleep 100"], "ready")?;
    signal(&child, Signal::INT)?;
    ended(&finish(child)?, 130)
}

fn second_interrupt(bench: &Bench) -> Result<(), String> {
    let script = "trap '' INT; echo ready; while :; do sleep 0.1; done";
    let child = bench.until(&["run", "--timeout", "60", "--", "sh", "-c", script], "ready")?;
    signal(&child, Signal::INT)?;
    std::thread::sleep(Duration::from_millis(500));
    signal(&child, Signal::INT)?;
    ended(&finish(child)?, 130)
}

fn terminated(bench: &Bench) -> Result<(), String> {
    let child = bench.until(&["run", "--", "sh", "-c", "echo ready; sleep 100"], "ready")?;
    signal(&child, Signal::TERM)?;
    ended(&finish(child)?, 143)
}

fn killed(bench: &Bench) -> Result<(), String> {
    let child = bench.until(&["run", "--", "sh", "-c", "echo ready; sleep 100"], "ready")?;
    signal(&child, Signal::KILL)?;
    finish(child).map(drop)
}

/// A shell on a terminal: what is typed is echoed and run, and the terminal is as before in the end.
fn interactive(bench: &Bench) -> Result<(), String> {
    let controller = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).map_err(text)?;
    grantpt(&controller).and_then(|()| unlockpt(&controller)).map_err(text)?;
    let name = ptsname(&controller, Vec::new()).map_err(text)?;
    let terminal: OwnedFd = rustix::fs::open(name, OFlags::RDWR | OFlags::NOCTTY, Mode::empty()).map_err(text)?;
    let size = Winsize { ws_row: 30, ws_col: 100, ws_xpixel: 0, ws_ypixel: 0 };
    tcsetwinsize(&terminal, size).map_err(text)?;
    let settings = |fd: &OwnedFd| tcgetattr(fd).map(|t| (t.input_modes, t.output_modes, t.local_modes)).map_err(text);
    let before = settings(&terminal)?;
    let mut command = bench.command(&["run", "--timeout", "60"]);
    let copy = || terminal.try_clone().map(Stdio::from).map_err(text);
    let mut child = command.stdin(copy()?).stdout(copy()?).stderr(copy()?).spawn().map_err(text)?;
    let mut controller = File::from(controller);
    let mut seen = String::new();
    // Before there is a prompt, or a machine: it is run all the same, as is the half of a line that goes on later.
    controller.write_all(b"echo early$((1 + 1))\recho ab").map_err(text)?;
    wait_for(&mut controller, &mut seen, "early2\r\n")?;
    wait_for(&mut controller, &mut seen, "# ")?;
    // The guest's own shell edits lines: the cursor goes back one, and the line before comes again.
    controller.write_all(b"d\x1b[Dc\r").map_err(text)?;
    wait_for(&mut controller, &mut seen, "abcd\r\n")?;
    controller.write_all(b"\x1b[A\x1b[A\r").map_err(text)?;
    wait_for(&mut controller, &mut seen, "early2\r\n")?;
    wait_for(&mut controller, &mut seen, "# ")?;
    controller.write_all(b"echo $((6 * 7)); tty; stty -a | grep -c icanon; stty size\r").map_err(text)?;
    wait_for(&mut controller, &mut seen, "42\r\n")?;
    wait_for(&mut controller, &mut seen, "/dev/console\r\n1\r\n30 100\r\n")?;
    // Ctrl-C reaches the program in the foreground, not the shell.
    controller.write_all(b"sleep 100; echo then $?\r").map_err(text)?;
    std::thread::sleep(Duration::from_millis(500));
    controller.write_all(b"\x03").map_err(text)?;
    wait_for(&mut controller, &mut seen, "# ")?;
    controller.write_all(b"exit 5\r").map_err(text)?;
    let status = child.wait().map_err(text)?.code();
    if status != Some(5) {
        return Err(format!("status {status:?} instead of 5 after: {seen}"));
    }
    if settings(&terminal)? != before {
        return Err("the terminal was not restored".into());
    }
    Ok(())
}

/// Reads until `word` appears behind what was consumed before; what comes up to it is consumed.
fn wait_for(from: &mut File, seen: &mut String, word: &str) -> Result<(), String> {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let start = Instant::now();
    loop {
        if let Some(at) = seen.find(word) {
            seen.drain(..at + word.len());
            return Ok(());
        }
        if start.elapsed() > Duration::from_secs(30) {
            return Err(format!("{word:?} did not appear; seen: {seen:?}"));
        }
        let timeout = Timespec { tv_sec: 1, tv_nsec: 0 };
        if poll(&mut [PollFd::new(&*from, PollFlags::IN)], Some(&timeout)).map_err(text)? > 0 {
            let mut piece = [0; 1024];
            let n = from.read(&mut piece).map_err(text)?;
            seen.push_str(&String::from_utf8_lossy(&piece[..n]));
        }
    }
}

/// Errors are one line that begins with the command's name.
fn one_line(done: &Done) -> Result<(), String> {
    let lines: Vec<&str> = done.stderr.lines().collect();
    match lines[..] {
        [line] if line.starts_with("quire: ") => Ok(()),
        // The argument parser adds how to get help.
        [line, ..] if line.starts_with("error: ") => Ok(()),
        _ => Err(format!("not one line: {:?}", done.stderr)),
    }
}

/// The report names functions, and the status is the machine's, not the program's.
fn panic(bench: &Bench) -> Result<(), String> {
    let done = bench.run(&["run", "--append", "panic", "--", "busybox", "true"])?;
    ended(&done, 125)?;
    let named = done.stderr.lines().any(|l| l.contains("+0x") && l.contains("quire_kernel"));
    if done.stderr.contains("as asked") && named && done.stderr.contains("quire: the kernel panicked") {
        return Ok(());
    }
    Err(format!("it reported: {}", done.stderr))
}

/// What the command line sets, the kernel's counts show: pages made ahead of touches, and copied up out of deep chains.
fn settings(bench: &Bench) -> Result<(), String> {
    let program = programs::all(&bench.places).map_err(text)?.remove("cowchain").ok_or("there is no cowchain")?;
    let program = program.to_str().ok_or("its path is no text")?;
    let line = "./cowchain --seconds 0 --only cowchain_kept >/dev/null && grep -E '^(pgfault_ahead|page_copied_up) ' /proc/vmstat";
    let counts = |append: &str| {
        let done = bench.run(&["run", "--append", append, "--copy", program, "--", "busybox", "sh", "-c", line])?;
        ended(&done, 0)?;
        let said = String::from_utf8_lossy(&done.stdout).into_owned();
        let of = |name: &str| said.lines().find_map(|l| l.strip_prefix(name)?.trim().parse::<u64>().ok());
        of("pgfault_ahead").zip(of("page_copied_up")).ok_or(said)
    };
    let (usual, neither, no_number) =
        (counts("")?, counts("zero-window=1 layers=254")?, counts("zero-window=none layers=")?);
    if usual.0 > 0 && usual.1 > 0 && neither == (0, 0) && no_number.0 > 0 && no_number.1 > 0 {
        return Ok(());
    }
    Err(format!("pages made ahead and copied up: {usual:?}, with neither {neither:?}, without numbers {no_number:?}"))
}

/// The smallest size and the usual one, with 1 CPU and 4, and the fewest inodes. What is full says so, and nobody is killed.
fn file_systems(bench: &Bench) -> Result<(), String> {
    let all = ["run", "--timeout", "300"];
    let cases: [(&[&str], &[&str]); 3] = [
        (&["--append", "tmpfs-size=4096"], &["tmpfs", "--pages", "1"]),
        (
            &["--append", "tmpfs-size=1M tmpfs-inodes=300", "--cpus", "4"],
            &["tmpfs", "--pages", "256", "--inodes", "300"],
        ),
        (&["--append", "tmpfs-inodes=1"], &["tmpfs", "--inodes", "1", "--only", "inodes"]),
    ];
    for (machine, program) in cases {
        let done = bench.run(&[&all, machine, &["--"], program].concat())?;
        let checks = if program.contains(&"--only") { 1 } else { 10 };
        let passed = format!("begun 1 program\nchecks_passed {checks} checks\n");
        ended(&done, 0).map_err(|e| format!("{machine:?}: {e}"))?;
        if done.stdout != passed.as_bytes() {
            return Err(format!("{machine:?}: {:?}, {:?}", String::from_utf8_lossy(&done.stdout), done.stderr));
        }
    }
    // The usual size is half of memory.
    let line = "set -- $(stat -f -c '%a %d' /) $(awk '/^MemTotal/ { print int($2 / 8) }' /proc/meminfo); \
                [ $1 = $3 ] && [ $2 = $3 ] && ! dd if=/dev/zero of=/big bs=64k 2>&1 && rm /big && [ $(stat -f -c %a /) = $1 ] && echo full";
    let done = bench.run(&["run", "--memory", "96M", "--", "busybox", "sh", "-c", line])?;
    ended(&done, 0)?;
    let said = String::from_utf8_lossy(&done.stdout);
    if said.contains("No space left on device") && said.ends_with("full\n") { Ok(()) } else { Err(said.into_owned()) }
}

/// Each ends with one sentence that names the word; the least and the most that can be had are had.
fn boot_words(bench: &Bench) -> Result<(), String> {
    let words = [
        "swap",
        "swap=",
        "swap=much",
        "swap=-1",
        "swap=0",
        "swap=4095",
        "swap=9999G",
        "swap=99999999999G",
        "tmpfs-size=",
        "tmpfs-size=x",
        "tmpfs-size=0",
        "tmpfs-size=9999G",
        "tmpfs-inodes=many",
        "tmpfs-inodes=0",
        "tmpfs-inodes=9999G",
    ];
    let run = |append: &str, words: &[&str]| bench.run(&[&["run", "--append", append, "--"], words].concat());
    for word in words {
        let done = run(word, &["true"])?;
        let told = format!("quire: Quire cannot run on this machine: {word} ");
        let named = if done.stderr.starts_with(&told) { Ok(()) } else { Err(format!("it says {:?}", done.stderr)) };
        ended(&done, 2).and_then(|()| one_line(&done)).and(named).map_err(|e| format!("{word}: {e}"))?;
    }
    let most = run("swap=9999G", &["true"])?.stderr;
    let most = most.split_once("more than the ").and_then(|(_, rest)| rest.split_once(' ')?.0.parse::<u64>().ok());
    let most = most.ok_or("the most swap is not told")?;
    for (asked, kib) in [("4K".to_owned(), 4), (format!("{most}M"), most << 10)] {
        let done = run(&format!("swap={asked}"), &["busybox", "grep", "SwapTotal", "/proc/meminfo"])?;
        ended(&done, 0).map_err(|e| format!("swap={asked}: {e}"))?;
        let said = String::from_utf8_lossy(&done.stdout).into_owned();
        if said.split_whitespace().nth(1) != Some(&kib.to_string()) {
            return Err(format!("swap={asked}: {said}"));
        }
    }
    ended(&run(&format!("swap={}M", most + 1), &["true"])?, 2)
}

/// What takes most of the kernel's locks: processes, pipes, files, and programs that are mapped, while two CPUs are at it.
const BUSY: &str = "for i in 1 2 3 4 5 6; do (dd if=/dev/zero of=/tmp/f$i bs=64k count=16 2>/dev/null; sort /etc/passwd | wc -l >/dev/null; \
                    mkdir -p /tmp/d$i/e; mv /tmp/f$i /tmp/d$i/e/f; cat /tmp/d$i/e/f /proc/self/maps | md5sum >/dev/null; rm -r /tmp/d$i) & done; \
                    sleep 1 & kill $!; wait; ps >/dev/null; echo done";

/// The same kernel, but assertions, the order of locks and the maps' consistency are checked as it runs.
fn checked_programs(bench: &Bench) -> Result<(), String> {
    let done = on_checked(bench, &["run", "--cpus", "2", "--", "busybox", "sh", "-c", BUSY])?;
    ended(&done, 0)?;
    if done.stdout == b"done\n" { Ok(()) } else { Err(format!("it printed {:?}: {}", done.stdout, done.stderr)) }
}

/// The first run that takes two locks both ways round fails, and shows where each way was taken.
fn inversion(bench: &Bench) -> Result<(), String> {
    for locks in ["invert=spin", "invert=sleep"] {
        let done = on_checked(bench, &["run", "--append", locks, "--", "busybox", "true"])?;
        ended(&done, 125)?;
        let told = ["lock order (Contract C6)", "the_one_way", "the_other_way"].map(|t| done.stderr.contains(t));
        if told != [true; 3] {
            return Err(format!("{locks}: it reported: {}", done.stderr));
        }
    }
    Ok(())
}

fn on_checked(bench: &Bench, words: &[&str]) -> Result<Done, String> {
    let kernel = build::checked_kernel(&bench.places).map_err(text)?;
    finish(bench.command(words).env("QUIRE_KERNEL", kernel).spawn().map_err(text)?)
}

fn bad_input(bench: &Bench) -> Result<(), String> {
    let plain = bench.file("plain", b"text\n")?;
    let script = bench.file("mode", b"text\n")?;
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).map_err(text)?;
    let mut foreign = fs::read(&bench.quire).map_err(text)?;
    foreign.truncate(1 << 20);
    foreign[18] = 183; // aarch64
    let foreign = bench.file("foreign", &foreign)?;
    fs::set_permissions(&foreign, fs::Permissions::from_mode(0o755)).map_err(text)?;
    let (plain, script, foreign) = (plain.to_string_lossy(), script.to_string_lossy(), foreign.to_string_lossy());
    let cases: &[(&[&str], i32)] = &[
        (&["run", "--", "no-such-program"], 127),
        (&["run", "--", "./no/such/file"], 127),
        (&["run", "--", ""], 127),
        (&["run", "--", &plain], 126),
        (&["run", "--", &script], 126),
        (&["run", "--", &foreign], 126),
        (&["run", "--", "/"], 126),
        (&["run", "--memory", "1M", "--", "true"], 2),
        (&["run", "--memory", "much", "--", "true"], 2),
        (&["run", "--cpus", "0", "--", "true"], 2),
        (&["run", "--cpus", "65", "--", "true"], 2),
        (&["run", "--timeout", "-1", "--", "true"], 2),
        (&["run", "--copy", "/no/such/file", "--", "true"], 2),
        (&["run", "--env", "NOVALUE", "--", "true"], 2),
        (&["run", "--cwd", "relative", "--", "true"], 2),
        (&["debug"], 2),
        (&["fly"], 2),
        (&["compare", "--count", "--cpus", "2", "--", "busybox", "true"], 2),
    ];
    for (words, status) in cases {
        let done = bench.run(words)?;
        ended(&done, *status).and_then(|()| one_line(&done)).map_err(|e| format!("{words:?}: {e}"))?;
    }
    Ok(())
}

fn bad_qemu(bench: &Bench) -> Result<(), String> {
    let fake = |name: &str, script: &str| -> Result<PathBuf, String> {
        let path = bench.file(name, format!("#!/bin/sh\n{script}\n").as_bytes())?;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).map_err(text)?;
        Ok(path)
    };
    let with = |qemu: &Path, words: &[&str]| -> Result<Done, String> {
        let mut command = bench.command(words);
        command.env("QUIRE_QEMU", qemu).env("QUIRE_ACCEL", "tcg");
        finish(command.spawn().map_err(text)?)
    };
    let missing = with(Path::new("/no/such/qemu"), &["run", "--", "true"])?;
    ended(&missing, 2).and_then(|()| one_line(&missing)).map_err(|e| format!("missing: {e}"))?;
    let dies = with(&fake("dies", "echo it broke >&2; exit 1")?, &["run", "--", "true"])?;
    ended(&dies, 125).map_err(|e| format!("dies: {e}"))?;
    if !dies.stderr.contains("it broke") {
        return Err(format!("QEMU's own complaint is lost: {:?}", dies.stderr));
    }
    let hangs = with(&fake("hangs", "sleep 1000")?, &["run", "--timeout", "1", "--", "true"])?;
    ended(&hangs, 124).map_err(|e| format!("hangs: {e}"))
}

fn debugger(bench: &Bench) -> Result<(), String> {
    let mut commands =
        vec!["--ex", "printf \"at entry: %d\\n\", $pc == $entry", "--ex", "info symbol trap_first_return"];
    // A breakpoint of the usual kind needs the page that it lies in.
    commands.extend(["--ex", "break *$entry", "--ex", "x/2i $pc", "--ex", "stepi"]);
    let words = [&["debug"][..], &commands, &["--", "busybox", "true"]].concat();
    let done = bench.run(&words)?;
    let said = String::from_utf8_lossy(&done.stdout).into_owned();
    let before = said.lines().position(|line| line.starts_with("at entry: 1"));
    let quiet = before.is_some_and(|lines| lines <= 2) && !done.stderr.contains("Error") && !said.contains("Cannot");
    if quiet
        && said.contains("trap_first_return in section")
        && said.lines().any(|l| l.starts_with("Breakpoint ") && l.contains(" at 0x"))
    {
        return Ok(());
    }
    Err(format!("gdb said: {said}\n{}", done.stderr))
}

/// Neither what firmware executes counts nor the kernel's own start: the bounds are those of a program that does nothing.
fn profiled(bench: &Bench) -> Result<(), String> {
    let done = bench.run(&["profile", "--", "busybox", "true"])?;
    ended(&done, 0)?;
    let said = String::from_utf8_lossy(&done.stdout).into_owned();
    let numbers: Vec<u64> = said.lines().next().unwrap_or_default().split(' ').filter_map(|w| w.parse().ok()).collect();
    match numbers[..] {
        [10_000..1_000_000, _, 1000..100_000] => Ok(()),
        _ => Err(format!("the profile says: {said}")),
    }
}

/// What a program prints is compared, and what it used, whether or not it prints anything.
fn comparison(bench: &Bench) -> Result<(), String> {
    let json = bench.file("compared.json", b"")?;
    let words = ["compare", "--count", "--runs", "1", "--seed", "3", "--json", &json.to_string_lossy(), "--"];
    let done = bench.run(&[&words[..], &["busybox", "echo", "answer", "42", "units"]].concat())?;
    ended(&done, 0)?;
    let said = String::from_utf8_lossy(&done.stdout).into_owned();
    let row = |said: &str, name: &str| -> Vec<String> {
        let line = said.lines().find(|line| line.split('|').nth(1).is_some_and(|cell| cell.trim() == name));
        line.map(|line| line.split('|').map(|cell| cell.trim().to_owned()).collect()).unwrap_or_default()
    };
    let wrong = |what: &str, said: &str| Err(format!("{what} in: {said}"));
    if row(&said, "answer").get(2..5) != Some(&["42", "42", "1.00"].map(str::to_owned)) || !said.contains("Linux 6") {
        return wrong("no answer", &said);
    }
    for name in ["wall_time", "instructions_kernel", "faults_minor", "peak_resident", "switches_all", "tasks_started"] {
        let cells = row(&said, name);
        let positive = |at: usize| cells.get(at).and_then(|cell| cell.parse::<f64>().ok()).is_some_and(|v| v > 0.0);
        if !positive(2) || !positive(3) {
            return wrong(&format!("{name} is not there on both sides"), &said);
        }
    }
    // Only one side tells its faults by kind.
    let zero = row(&said, "faults_zero");
    if zero.get(2).is_none_or(|v| v == "-") || zero.get(3).is_none_or(|v| v != "-") {
        return wrong("faults by kind", &said);
    }
    let text = fs::read_to_string(&json).map_err(text)?;
    let all: serde_json::Value = serde_json::from_str(&text).map_err(|e| format!("{e}: {text}"))?;
    let kernels: Vec<_> = all["runs"].as_array().into_iter().flatten().map(|run| run["kernel"].clone()).collect();
    if kernels.len() != 2 || kernels[1] != "Quire" || all["lines"][0]["linux"][0] != 42.0 {
        return wrong("the samples", &text);
    }
    let silent = bench.run(&["compare", "--repeat", "2", "--cpus", "2", "--", "busybox", "sleep", "0.3"])?;
    ended(&silent, 0)?;
    let said = String::from_utf8_lossy(&silent.stdout).into_owned();
    let wall = row(&said, "wall_time");
    if wall.get(2).and_then(|v| v.parse::<f64>().ok()).is_none_or(|v| v < 300.0) || said.contains("| printed") {
        return wrong("a program that prints nothing", &said);
    }
    let fails = bench.run(&["compare", "--repeat", "1", "--", "busybox", "sh", "-c", "echo why >&2; exit 7"])?;
    ended(&fails, 7)?;
    if fails.stderr.contains("why") && fails.stderr.contains("ended with 7") {
        return Ok(());
    }
    Err(format!("a program that fails: {}", fails.stderr))
}

/// The kernel's matrix is as its list says; an operation that writes a line from both processors on purpose is found.
fn shared_lines(bench: &Bench) -> Result<(), String> {
    // What two threads happen to do at once differs from run to run: what is not as listed must be so twice.
    let mut whole = bench.run(&["conflicts", "--guest"])?;
    if ended(&whole, 0).is_err() {
        whole = bench.run(&["conflicts", "--guest"])?;
        ended(&whole, 0)?;
    }
    let said = String::from_utf8_lossy(&whole.stdout).into_owned();
    let counts = said.lines().last().and_then(|line| line.strip_suffix(" cases conflict-free")?.split_once(" of "));
    match counts.and_then(|(free, all)| Some((free.parse::<u64>().ok()?, all.parse::<u64>().ok()?))) {
        Some((free, all)) if all >= 300 && free * 100 >= all * 98 => {}
        _ => return Err(format!("the whole matrix: {said}")),
    }
    let wrong = bench.run(&["conflicts", "--guest", "same-pipe"])?;
    ended(&wrong, 1)?;
    let said = String::from_utf8_lossy(&wrong.stdout).into_owned();
    if said.contains("not expected: heap, quire_fs::pipe::") && said.ends_with("0 of 1 cases conflict-free\n") {
        return Ok(());
    }
    Err(format!("one pipe for two: {said}"))
}

/// A run of the lab is killed once it has samples; the same command goes on with them, tells all figures, and draws them.
fn lab(bench: &Bench) -> Result<(), String> {
    let out = bench.places.target.join("test-lab");
    let _ = fs::remove_dir_all(&out);
    let home = out.to_string_lossy().into_owned();
    let words = ["lab", "calibration", "--no-linux", "--cpus", "1", "--out", &home];
    let command = || {
        let mut command = bench.command(&words);
        // What is drawn is checked here, not how fast it was: the lab as tests have built it will do.
        command.env("QUIRE_LAB_PROFILE", "dev");
        command
    };
    let (file, begun) = (out.join("results.json"), Instant::now());
    let samples = |file: &Path| -> Result<(usize, bool), String> {
        let run = Results::read(file).map_err(text)?.runs.pop().ok_or("the file holds no run")?;
        let cases = run.experiments.iter().flat_map(|e| &e.cases);
        Ok((cases.flat_map(|c| c.measures.values()).map(|m| m.samples.len()).sum(), run.complete))
    };
    let mut child = command().process_group(0).spawn().map_err(text)?;
    while !file.exists() || samples(&file)?.0 == 0 {
        if begun.elapsed() > Duration::from_secs(600) || child.try_wait().map_err(text)?.is_some() {
            return Err(format!("it wrote no samples: {}", finish(child)?.stderr));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    let group = Pid::from_child(&child);
    rustix::process::kill_process_group(group, Signal::KILL).map_err(text)?;
    finish(child)?;
    let (before, complete) = samples(&file)?;
    if before == 0 || complete {
        return Err(format!("after it was killed the file holds {before} samples, complete: {complete}"));
    }
    let done = finish(command().spawn().map_err(text)?)?;
    ended(&done, 0)?;
    let said = String::from_utf8_lossy(&done.stdout).into_owned();
    if !done.stderr.contains("going on with the run") || !said.contains("byte through a pipe") {
        return Err(format!("it printed: {said}{}", done.stderr));
    }
    let (after, complete) = samples(&file)?;
    // Four things, counted and timed in a guest, and timed hosted, three times each.
    if (after, complete) != (36, true) {
        return Err(format!("the file holds {after} samples, complete: {complete}"));
    }
    let page = fs::read_to_string(out.join("report.html")).map_err(text)?;
    if !page.contains("Calibration") || !page.contains("<svg") {
        return Err("the page does not show the experiment".to_owned());
    }
    fs::remove_dir_all(&out).map_err(text)
}

/// A program's faults are there, each of its kind, and its maps' changes; what stands on a track is nested; the unmapping that the
/// other processor had to hear of was told there.
fn traced(bench: &Bench) -> Result<(), String> {
    let out = bench.place.join("trace.json");
    let done = bench.run(&["trace", "--cpus", "2", "--out", &out.to_string_lossy(), "--", "events"])?;
    ended(&done, 0)?;
    let said = String::from_utf8_lossy(&done.stdout).into_owned();
    for word in ["fault: zero-fill", "fault: copy", "the costliest sites", "events: main"] {
        if !said.contains(word) {
            return Err(format!("no {word:?} in: {said}"));
        }
    }
    let file: Value = serde_json::from_slice(&fs::read(&out).map_err(text)?).map_err(text)?;
    let events = file["traceEvents"].as_array().ok_or("no events in the file")?;
    let area = done.stderr.lines().find_map(|l| l.strip_prefix("area 0x")).ok_or("the program printed no area")?;
    let words: Vec<&str> = area.split(' ').collect();
    let (&[at, len, "child", child], true) = (&words[..], file["otherData"]["lost"] == 0) else {
        return Err(format!("events are missing, or the program printed {area:?}"));
    };
    let at = u64::from_str_radix(at, 16).map_err(text)?;
    let range = at..at + len.parse::<u64>().map_err(text)?;
    let child: u64 = child.parse().map_err(text)?;

    if let Some(event) = events.iter().find(|e| !e["pid"].is_u64() || !e["tid"].is_u64()) {
        return Err(format!("on no track: {event}"));
    }
    let address = |e: &Value| u64::from_str_radix(e["args"]["address"].as_str()?.strip_prefix("0x")?, 16).ok();
    let count = |name: &str, of: &dyn Fn(&Value) -> bool| events.iter().filter(|e| e["name"] == name && of(e)).count();
    let inside = |e: &Value| address(e).is_some_and(|a| range.contains(&a));
    let whole = |e: &Value| inside(e) && e["args"]["bytes"] == *len;
    let (copied, gone) = (|e: &Value| inside(e) && e["pid"] == child, |e: &Value| e["tid"] == child);
    // The program touches its pages in a row, so most are made ahead.
    let made = |e: &Value| e["args"]["pages"].as_str().and_then(|n| n.parse::<usize>().ok());
    let ahead: usize = events.iter().filter(|e| e["name"] == "fault ahead" && inside(e)).filter_map(made).sum();
    let faults = count("fault: zero-fill", &inside);
    if ahead <= faults {
        return Err(format!("{ahead} pages were made ahead, by {faults} faults: {said}"));
    }
    let counts = [
        ("pages of zeroes", faults + ahead, 100),
        ("copies", count("fault: copy", &inside), 10),
        ("copies by the child", count("fault: copy", &copied), 10),
        ("mappings of the area", count("map", &whole), 1),
        ("ends of it", count("unmap", &whole), 1),
        ("ends of the child", count("end", &gone), 1),
    ];
    if let Some((what, n, expected)) = counts.iter().find(|(_, n, expected)| n != expected) {
        return Err(format!("{n} {what} instead of {expected}: {said}"));
    }
    for name in ["fork", "take apart", "mmap", "munmap", "wait4", "shootdown", "shootdown answered"] {
        if count(name, &|e| e["ph"] == "X") == 0 {
            return Err(format!("no {name}: {said}"));
        }
    }
    let tracks = |name: &str| count("thread_name", &|e: &Value| e["args"]["name"] == name);
    if (tracks("CPU 0"), tracks("CPU 1"), tracks("CPU 2")) != (1, 1, 0) {
        return Err("not a track for each CPU".into());
    }
    nested(events)
}

/// A span's beginning and end, and the event.
type Spanned<'e> = (u64, u64, &'e Value);

/// On each track, what begins within something ends within it.
fn nested(events: &[Value]) -> Result<(), String> {
    let mut tracks: BTreeMap<(u64, u64), Vec<Spanned<'_>>> = BTreeMap::new();
    // Nanoseconds.
    let ns = |v: &Value| v.as_f64().map(|us| (us * 1000.0).round() as u64);
    for e in events.iter().filter(|e| e["ph"] == "X") {
        let (Some(pid), Some(tid)) = (e["pid"].as_u64(), e["tid"].as_u64()) else { continue };
        let (start, length) = ns(&e["ts"]).zip(ns(&e["dur"])).ok_or_else(|| format!("without a time: {e}"))?;
        tracks.entry((pid, tid)).or_default().push((start, start + length, e));
    }
    if tracks.len() < 4 {
        return Err(format!("{} tracks: two CPUs, a parent and a child are four", tracks.len()));
    }
    for spans in tracks.values_mut() {
        spans.sort_by_key(|(start, end, _)| (*start, std::cmp::Reverse(*end)));
        let mut open: Vec<(u64, &Value)> = Vec::new();
        for (start, end, event) in spans {
            while open.last().is_some_and(|(until, _)| until <= start) {
                open.pop();
            }
            if let Some((_, around)) = open.last().filter(|(until, _)| until < end) {
                return Err(format!("{event} begins within {around} and ends after it"));
            }
            open.push((*end, event));
        }
    }
    Ok(())
}

/// What there was no room for is counted and told; what is there can be used.
fn cut_trace(bench: &Bench) -> Result<(), String> {
    let out = bench.place.join("trace.json");
    let words = ["trace", "--buffer", "1M", "--out", &out.to_string_lossy(), "--", "events", "--calls", "20000"];
    let done = bench.run(&words)?;
    ended(&done, 0)?;
    let file: Value = serde_json::from_slice(&fs::read(&out).map_err(text)?).map_err(text)?;
    let lost = file["otherData"]["lost"].as_u64().unwrap_or(0);
    if lost < 5_000 || !done.stderr.contains(&format!("{lost} later events are missing")) {
        return Err(format!("{lost} events lost; standard error: {}", done.stderr));
    }
    let there = file["traceEvents"].as_array().map_or(0, Vec::len);
    if there < 5_000 {
        return Err(format!("{there} events are left"));
    }
    let wrong = bench.run(&["trace", "--count", "--cpus", "2", "--", "events"])?;
    ended(&wrong, 2).and_then(|()| one_line(&wrong))
}

/// Tracing costs nothing when it is off: the usual kernel has no function of it, and so no call either, which would find nothing to call.
fn untraced(bench: &Bench) -> Result<(), String> {
    const NAMES: [&str; 3] = ["quire_kernel::trace", "quire_sync::trace", "__quire_trace"];
    let look = |kernel: &Path| -> Result<Vec<String>, String> {
        let bytes = fs::read(kernel).map_err(text)?;
        let file = object::File::parse(&*bytes).map_err(text)?;
        let names = file.symbols().filter_map(|s| Some(format!("{:#}", rustc_demangle::demangle(s.name().ok()?))));
        Ok(names.filter(|name| NAMES.iter().any(|n| name.contains(n))).collect())
    };
    let traced = look(&build::traced_kernel(&bench.places).map_err(text)?)?;
    if !traced.iter().any(|n| n.contains("quire_kernel::trace")) {
        return Err(format!("this check sees nothing: the traced kernel has {traced:?}"));
    }
    let usual = look(&bench.kernel)?;
    if usual.is_empty() { Ok(()) } else { Err(format!("the usual kernel has {usual:?}")) }
}

impl From<Failure> for String {
    fn from(failure: Failure) -> Self {
        failure.message
    }
}
