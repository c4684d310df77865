//! Checks of the machine that `./quire run` boots: panics, settings and boot words, bad input, QEMU, the debugger.

use super::program::one_line;
use super::{Bench, Done, ended, finish, text};
use crate::{build, programs};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Checks that a panic report names functions. The exit status must be that of the machine, not of the program.
pub(super) fn panic(bench: &Bench) -> Result<(), String> {
    let done = bench.run(&["run", "--append", "panic", "--", "busybox", "true"])?;
    ended(&done, 125)?;
    let named = done.stderr.lines().any(|l| l.contains("+0x") && l.contains("quire_kernel"));
    if done.stderr.contains("as asked") && named && done.stderr.contains("quire: the kernel panicked") {
        return Ok(());
    }
    Err(format!("it reported: {}", done.stderr))
}

/// Checks that settings on the kernel's command line take effect. Two counters show it: pages made ahead of touches,
/// and pages copied up out of deep chains.
pub(super) fn settings(bench: &Bench) -> Result<(), String> {
    let program = programs::named(&bench.places, "cowchain").map_err(text)?;
    let program = program.to_str().ok_or("the path of the program is not UTF-8")?;
    let line = "./cowchain --seconds 0 --only cowchain_kept >/dev/null && grep -E '^(pgfault_ahead|page_copied_up) ' \
        /proc/vmstat";
    let counts = |append: &str| {
        let done = bench.run(&["run", "--append", append, "--copy", program, "--", "busybox", "sh", "-c", line])?;
        ended(&done, 0)?;
        let said = String::from_utf8_lossy(&done.stdout).into_owned();
        let of = |name: &str| said.lines().find_map(|l| l.strip_prefix(name)?.trim().parse::<u64>().ok());
        of("pgfault_ahead").zip(of("page_copied_up")).ok_or(said)
    };
    let (usual, other, no_number) =
        (counts("")?, counts("zero-window=1 layers=12")?, counts("zero-window=none layers=")?);
    let as_usual = |(ahead, copied): (u64, u64)| ahead > 0 && copied == 0;
    if as_usual(usual) && as_usual(no_number) && other.0 == 0 && other.1 > 0 {
        return Ok(());
    }
    Err(format!(
        "pages made ahead and copied up: {usual:?} by default, {other:?} with single pages and short chains, \
        {no_number:?} with words without numbers"
    ))
}

/// Checks file systems of the smallest and of the usual size, with 1 CPU and 4, and with the fewest inodes. A full file
/// system must report that it is full, and no process may be killed.
pub(super) fn file_systems(bench: &Bench) -> Result<(), String> {
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
                [ $1 = $3 ] && [ $2 = $3 ] && ! dd if=/dev/zero of=/big bs=64k 2>&1 && rm /big && [ $(stat -f -c %a \
                /) = $1 ] && echo full";
    let done = bench.run(&["run", "--memory", "96M", "--", "busybox", "sh", "-c", line])?;
    ended(&done, 0)?;
    let said = String::from_utf8_lossy(&done.stdout);
    if said.contains("No space left on device") && said.ends_with("full\n") { Ok(()) } else { Err(said.into_owned()) }
}

/// Checks that each wrong boot word causes one sentence that names it. The least and the most possible swap must work.
pub(super) fn boot_words(bench: &Bench) -> Result<(), String> {
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
        "tick=",
        "tick=4",
        "tick=10us",
    ];
    let run = |append: &str, words: &[&str]| bench.run(&[&["run", "--append", append, "--"], words].concat());
    for word in words {
        let done = run(word, &["true"])?;
        let expected = format!("quire: the boot word {word} ");
        let named = if done.stderr.starts_with(&expected) { Ok(()) } else { Err(format!("it says {:?}", done.stderr)) };
        ended(&done, 2).and_then(|()| one_line(&done)).and(named).map_err(|e| format!("{word}: {e}"))?;
    }
    let most = run("swap=9999G", &["true"])?.stderr;
    let most = most.split_once("more than the ").and_then(|(_, rest)| rest.split_once(' ')?.0.parse::<u64>().ok());
    let most = most.ok_or("the message does not name the largest swap")?;
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

/// A script that acquires most of the kernel's locks on two CPUs. It uses processes, pipes, files, and mapped programs.
const BUSY: &str = "for i in 1 2 3 4 5 6; do (dd if=/dev/zero of=/tmp/f$i bs=64k count=16 2>/dev/null; sort \
    /etc/passwd | wc -l >/dev/null; \
                    mkdir -p /tmp/d$i/e; mv /tmp/f$i /tmp/d$i/e/f; cat /tmp/d$i/e/f /proc/self/maps | md5sum \
                    >/dev/null; rm -r /tmp/d$i) & done; \
                    sleep 1 & kill $!; wait; ps >/dev/null; echo done";

/// Checks that usual programs run on the self-checking kernel. That kernel checks assertions, the order of locks and
/// the maps' consistency.
pub(super) fn checked_programs(bench: &Bench) -> Result<(), String> {
    let done = on_checked(bench, &["run", "--cpus", "2", "--", "busybox", "sh", "-c", BUSY])?;
    ended(&done, 0)?;
    if done.stdout == b"done\n" { Ok(()) } else { Err(format!("it printed {:?}: {}", done.stdout, done.stderr)) }
}

/// Checks that the first run that acquires two locks in both orders fails, and reports where each order was used.
pub(super) fn inversion(bench: &Bench) -> Result<(), String> {
    for locks in ["invert=spin", "invert=sleep"] {
        let done = on_checked(bench, &["run", "--append", locks, "--", "busybox", "true"])?;
        ended(&done, 125)?;
        let reported = ["lock order (Contract C6)", "the_one_way", "the_other_way"].map(|t| done.stderr.contains(t));
        if reported != [true; 3] {
            return Err(format!("{locks}: it reported: {}", done.stderr));
        }
    }
    Ok(())
}

fn on_checked(bench: &Bench, words: &[&str]) -> Result<Done, String> {
    let kernel = build::checked_kernel(&bench.places).map_err(text)?;
    finish(bench.command(words).env("QUIRE_KERNEL", kernel).spawn().map_err(text)?)
}

pub(super) fn bad_input(bench: &Bench) -> Result<(), String> {
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
        (&["run", "--cwd", "/nope", "--", "true"], 2),
        (&["run", "--append", "wibble=3", "--", "true"], 2),
        (&["run", "--append", "swp=1G", "--", "true"], 2),
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

pub(super) fn bad_qemu(bench: &Bench) -> Result<(), String> {
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
        return Err(format!("QEMU's own error message is missing: {:?}", dies.stderr));
    }
    let hangs = with(&fake("hangs", "sleep 1000")?, &["run", "--timeout", "1", "--", "true"])?;
    ended(&hangs, 124).map_err(|e| format!("hangs: {e}"))
}

pub(super) fn debugger(bench: &Bench) -> Result<(), String> {
    let mut commands =
        vec!["--ex", "printf \"at entry: %d\\n\", $pc == $entry", "--ex", "info symbol trap_first_return"];
    // An ordinary breakpoint can be set only if its page is mapped, as it is at the entry.
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

/// A program that asks twice for options that no kernel of this project supports, and for supported ones in a wrong
/// way.
const OPTIONS: &str = "
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/socket.h>
int main(void) {
    int stream = socket(AF_INET, SOCK_STREAM, 0), datagram = socket(AF_UNIX, SOCK_DGRAM, 0), value = 1;
    socklen_t len = sizeof value;
    for (int round = 0; round < 2; round++) {
        setsockopt(stream, SOL_TCP, 14, &value, len);
        getsockopt(stream, SOL_SOCKET, 9999, &value, &len);
        ioctl(stream, TIOCMGET, &value);
        prctl(PR_SET_SECCOMP, 99, 0, 0, 0);
        setsockopt(datagram, SOL_TCP, TCP_NODELAY, &value, len);
        ioctl(stream, TIOCGWINSZ, &value);
        prctl(PR_SET_DUMPABLE, 99, 0, 0, 0);
    }
    return 0;
}
";

/// Checks that the log of `-v` names each option without support once, and no other.
pub(super) fn refused_options(bench: &Bench) -> Result<(), String> {
    let (source, program) = (bench.file("options.c", OPTIONS.as_bytes())?, bench.place.join("options"));
    let built = Command::new("musl-gcc").arg("-static").arg("-o").args([&program, &source]).output().map_err(text)?;
    if !built.status.success() {
        return Err(String::from_utf8_lossy(&built.stderr).into_owned());
    }
    let done = bench.run(&["run", "-v", "--", &program.to_string_lossy()])?;
    ended(&done, 0)?;
    let told = done.stderr.lines().filter_map(|line| line.split_once("] ")?.1.strip_suffix(" is not supported"));
    let told: Vec<&str> = told.collect();
    let expected = [
        "setsockopt(SOL_TCP, TCP_MD5SIG)",
        "getsockopt(SOL_SOCKET, 0x270f)",
        "ioctl(TIOCMGET)",
        "prctl(PR_SET_SECCOMP)",
    ];
    if told == expected { Ok(()) } else { Err(format!("it names {told:?}")) }
}
