//! Checks of the connection between a program and `./quire run`: status, streams, signals, the terminal, and the
//! program's environment.

use super::{Bench, Done, bytes, ended, finish, prints, same, text};
use crate::programs;
use rustix::fs::{Mode, OFlags};
use rustix::process::{Pid, Signal, kill_process};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcgetattr, tcsetwinsize};
use std::fs;
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

pub(super) fn exit_status(bench: &Bench) -> Result<(), String> {
    ended(&bench.run(&["run", "--", "busybox", "true"])?, 0)?;
    ended(&bench.run(&["run", "--", "sh", "-c", "exit 42"])?, 42)
}

pub(super) fn death_by_signal(bench: &Bench) -> Result<(), String> {
    ended(&bench.run(&["run", "--", "sh", "-c", "kill -TERM $$"])?, 143)?;
    ended(&bench.run(&["run", "--", "sh", "-c", "sleep 100 & kill -SEGV $$"])?, 139)
}

pub(super) fn streams(bench: &Bench) -> Result<(), String> {
    let sent = bytes(1 << 20);
    let file = bench.file("input", &sent)?;
    let mut command = bench.command(&["run", "--", "sh", "-c", "echo to the errors >&2; cat; echo again >&2"]);
    let child = command.stdin(File::open(file).map_err(text)?).spawn().map_err(text)?;
    let done = finish(child)?;
    ended(&done, 0)?;
    same("standard output", &done.stdout, &sent)?;
    same("standard error", done.stderr.as_bytes(), b"to the errors\nagain\n")
}

pub(super) fn slow_reader(bench: &Bench) -> Result<(), String> {
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

pub(super) fn reader_goes(bench: &Bench) -> Result<(), String> {
    let mut child = bench.until(&["run", "--", "busybox", "yes"], "y\n")?;
    drop(child.stdout.take());
    ended(&finish(child)?, 141)
}

pub(super) fn no_input(bench: &Bench) -> Result<(), String> {
    let done = bench.run(&["run", "--", "busybox", "wc", "-c"])?;
    ended(&done, 0)?;
    same("standard output", &done.stdout, b"0\n")
}

pub(super) fn surroundings(bench: &Bench) -> Result<(), String> {
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

/// Checks that the guest frees the archive while it unpacks the root. So the guest's memory holds its files only once.
pub(super) fn large_root(bench: &Bench) -> Result<(), String> {
    const FILES: u8 = 9;
    const MIB: usize = 16;
    fs::create_dir(bench.place.join("big")).map_err(text)?;
    for n in 1..=FILES {
        bench.file(&format!("big/{n}"), &vec![b'0' + n; MIB << 20])?;
    }
    let tree = format!("{}:/big", bench.place.join("big").display());
    // Each file contains only the digit that is its name.
    let script = "cd /big; for f in *; do tr -d $f <$f | wc -c; wc -c <$f; done | sort -n | uniq -c; free -m | wc -l";
    let done = bench.run(&["run", "--memory", "224M", "--copy", &tree, "--", "busybox", "sh", "-c", script])?;
    ended(&done, 0)?;
    let words: Vec<String> = String::from_utf8_lossy(&done.stdout).split_whitespace().map(str::to_owned).collect();
    if words != ["9", "0", "9", &(MIB << 20).to_string(), "3"] {
        return Err(format!("a large root: {words:?}"));
    }
    let small = bench.run(&["run", "--memory", "160M", "--copy", &tree, "--", "busybox", "true"])?;
    ended(&small, 2)
}

pub(super) fn dynamic(bench: &Bench) -> Result<(), String> {
    let sent = bytes(100_000);
    let file = bench.file("input", &sent)?;
    let here = Command::new("/usr/bin/sha256sum").stdin(File::open(&file).map_err(text)?).output().map_err(text)?;
    let mut command = bench.command(&["run", "--", "/usr/bin/sha256sum"]);
    let done = finish(command.stdin(File::open(&file).map_err(text)?).spawn().map_err(text)?)?;
    ended(&done, 0)?;
    same("standard output", &done.stdout, &here.stdout)
}

/// A small project in the form of Lua's: make runs itself with parallel jobs, the compiler, the archiver and the
/// linker.
const PROJECT: [(&str, &str); 5] = [
    (
        "Makefile",
        "posix:\n\t$(MAKE) lua\nlua: lua.o libab.a\n\t$(CC) -o lua lua.o libab.a -lm\n\
         libab.a: a.o b.o\n\t$(AR) libab.a a.o b.o\nclean:\n\trm -f *.o *.a lua\n%.o: %.c ab.h\n\t$(CC) $(MYCFLAGS) \
         -c $<\n",
    ),
    ("ab.h", "double a(double), b(double);\n"),
    ("a.c", "#include \"ab.h\"\n#include <math.h>\ndouble a(double x) { return sqrt(b(x)); }\n"),
    ("b.c", "#include \"ab.h\"\ndouble b(double x) { return 2 * x; }\n"),
    (
        "lua.c",
        "#include \"ab.h\"\n#include <stdio.h>\nint main(int n, char **words) { return printf(\"%s %f\\n\", words[0], \
            a(n)) < 0; }\n",
    ),
];

/// Checks that this machine's compiler makes the same bytes in the guest, and that the built program runs there.
pub(super) fn built(bench: &Bench) -> Result<(), String> {
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

/// Checks that two processes can map three quarters more memory than the guest has. The rest is swapped, and no page
/// may be lost.
pub(super) fn overcommit(bench: &Bench) -> Result<(), String> {
    // The kernel and the files of the root leave a few MiB more than this for swap.
    let size = ["run", "--memory", "164M", "--append", "swap=96M", "--"];
    let done = bench.run(&[&size[..], &["overcommit", "--megabytes", "72", "--rounds", "1"]].concat())?;
    ended(&done, 0)?;
    same("standard output", &done.stdout, b"overcommit_pages 18432 pages\n")
}

/// Checks that one line names the program that the kernel kills for lack of memory. The line must say which options to
/// use.
pub(super) fn killed_for_memory(bench: &Bench) -> Result<(), String> {
    let grows = "BEGIN { for (i = 0; ; i++) a[i] = i }";
    let done = bench.run(&["run", "--memory", "64M", "--", "busybox", "awk", grows])?;
    ended(&done, 137)?;
    one_line(&done)?;
    if ["killed busybox", " MiB;", "--memory 64M", "swap="].iter().all(|part| done.stderr.contains(part)) {
        return Ok(());
    }
    Err(format!("it says {:?}", done.stderr))
}

/// Checks that process 1 continues when memory is exhausted, that one signal ends the group that uses all memory, and
/// that the memory becomes free.
pub(super) fn exhausted(bench: &Bench) -> Result<(), String> {
    for (cpus, memory) in [("1", "128M"), ("4", "256M")] {
        let done = bench.run(&["run", "--cpus", cpus, "--memory", memory, "--", "exhaust"])?;
        ended(&done, 0)?;
        same("standard output", &done.stdout, b"exhaust_survived 5 kinds\n")?;
    }
    Ok(())
}

pub(super) fn timeout(bench: &Bench) -> Result<(), String> {
    let start = Instant::now();
    let done = bench.run(&["run", "--timeout", "3", "--", "busybox", "sleep", "100"])?;
    ended(&done, 124)?;
    if start.elapsed() > Duration::from_secs(60) {
        return Err("the program ran far longer than its --timeout".into());
    }
    one_line(&done)?;
    let forever = ["--timeout", "2", "--", "busybox", "sh", "-c", "while :; do :; done"];
    for command in [&["profile"][..], &["debug", "--ex", "continue"], &["compare", "--repeat", "1"]] {
        let done = bench.run(&[command, &forever].concat())?;
        ended(&done, 124).map_err(|e| format!("{command:?}: {e}"))?;
    }
    Ok(())
}

fn signal(child: &Child, signal: Signal) -> Result<(), String> {
    kill_process(Pid::from_child(child), signal).map_err(text)
}

pub(super) fn interrupt(bench: &Bench) -> Result<(), String> {
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

pub(super) fn second_interrupt(bench: &Bench) -> Result<(), String> {
    let script = "trap 'echo goes on' INT; echo ready; while :; do sleep 0.1; done";
    let child = bench.until(&["run", "--timeout", "60", "--", "sh", "-c", script], "ready")?;
    signal(&child, Signal::INT)?;
    // The test waits, because signals that arrive together count once.
    let child = prints(child, "goes on")?;
    signal(&child, Signal::INT)?;
    ended(&finish(child)?, 130)
}

pub(super) fn terminated(bench: &Bench) -> Result<(), String> {
    let child = bench.until(&["run", "--", "sh", "-c", "echo ready; sleep 100"], "ready")?;
    signal(&child, Signal::TERM)?;
    ended(&finish(child)?, 143)
}

pub(super) fn killed(bench: &Bench) -> Result<(), String> {
    let child = bench.until(&["run", "--", "sh", "-c", "echo ready; sleep 100"], "ready")?;
    signal(&child, Signal::KILL)?;
    finish(child).map(drop)
}

/// Checks that a shell on a terminal echoes and runs each typed line, and that the terminal is restored at the end.
pub(super) fn interactive(bench: &Bench) -> Result<(), String> {
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
    // Input that arrives before the prompt, or even before the machine runs, must still be executed. So must a line
    // whose second half arrives later.
    controller.write_all(b"echo early$((1 + 1))\recho ab").map_err(text)?;
    wait_for(&mut controller, &mut seen, "early2\r\n")?;
    wait_for(&mut controller, &mut seen, "# ")?;
    // The guest's own shell edits lines. The test moves the cursor back by one, and then recalls the previous line.
    controller.write_all(b"d\x1b[Dc\r").map_err(text)?;
    wait_for(&mut controller, &mut seen, "abcd\r\n")?;
    controller.write_all(b"\x1b[A\x1b[A\r").map_err(text)?;
    wait_for(&mut controller, &mut seen, "early2\r\n")?;
    wait_for(&mut controller, &mut seen, "# ")?;
    controller.write_all(b"echo $((6 * 7)); tty; stty -a | grep -c icanon; stty size\r").map_err(text)?;
    wait_for(&mut controller, &mut seen, "42\r\n")?;
    wait_for(&mut controller, &mut seen, "/dev/console\r\n1\r\n30 100\r\n")?;
    // Ctrl-C interrupts the program in the foreground, not the shell.
    wait_for(&mut controller, &mut seen, "# ")?;
    // The program prints a word when it has begun. Between the fork and that moment the shell's handler would catch the
    // signal. The echo of the typed line does not contain the word.
    controller.write_all(b"sh -c 'echo be''gun; exec sleep 100'; echo then $?\r").map_err(text)?;
    wait_for(&mut controller, &mut seen, "begun\r\n")?;
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

/// Reads until `word` appears in the text that was not consumed yet. Consumes the text up to the end of `word`.
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

/// Checks that the error is one line that begins with the command's name.
pub(super) fn one_line(done: &Done) -> Result<(), String> {
    let lines: Vec<&str> = done.stderr.lines().collect();
    match lines[..] {
        [line] if line.starts_with("quire: ") => Ok(()),
        // The argument parser adds a line about `--help`.
        [line, ..] if line.starts_with("error: ") => Ok(()),
        _ => Err(format!("not one line: {:?}", done.stderr)),
    }
}
