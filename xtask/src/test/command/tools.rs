//! Checks of the other commands: profile, compare, conflicts, lab, trace.

use super::program::one_line;
use super::{Bench, ended, finish, same, text};
use crate::build;
use object::{Object as _, ObjectSymbol as _};
use quire_results::Results;
use rustix::process::{Pid, Signal};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{BufRead as _, BufReader, Read as _};
use std::os::unix::process::{CommandExt, ExitStatusExt as _};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

/// Checks that a profile counts neither the firmware's instructions nor the kernel's start. The bounds fit a program
/// that does nothing.
pub(super) fn profiled(bench: &Bench) -> Result<(), String> {
    let done = bench.run(&["profile", "--", "busybox", "true"])?;
    ended(&done, 0)?;
    let said = String::from_utf8_lossy(&done.stdout).into_owned();
    let numbers: Vec<u64> = said.lines().next().unwrap_or_default().split(' ').filter_map(|w| w.parse().ok()).collect();
    match numbers[..] {
        [10_000..1_000_000, _, 1000..100_000] => Ok(()),
        _ => Err(format!("the profile says: {said}")),
    }
}

/// Checks that a profile of Linux names its functions, begins at the program's start, and is separate from the
/// program's output.
pub(super) fn profiled_linux(bench: &Bench) -> Result<(), String> {
    let done = bench.run(&["profile", "--linux", "--", "busybox", "echo", "said"])?;
    ended(&done, 0)?;
    let said = String::from_utf8_lossy(&done.stdout).into_owned();
    let numbers: Vec<u64> = said.lines().next().unwrap_or_default().split(' ').filter_map(|w| w.parse().ok()).collect();
    let named = said.lines().any(|line| line.ends_with("  unmap_page_range"));
    match numbers[..] {
        [100_000..10_000_000, _, 1000..100_000] if named && done.stderr.contains("said\n") => Ok(()),
        _ => Err(format!("the profile says: {said}{}", done.stderr)),
    }
}

/// Checks that a comparison has the program's own figures and its used resources. The resources must also appear if the
/// program prints no figures.
pub(super) fn comparison(bench: &Bench) -> Result<(), String> {
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
            return wrong(&format!("{name} is missing on one side"), &said);
        }
    }
    // Only Quire, not Linux, counts its faults by kind.
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
    let short = bench.run(&["compare", "--repeat", "1", "--", "busybox", "true"])?;
    ended(&short, 0)?;
    let said = String::from_utf8_lossy(&short.stdout).into_owned();
    let emulated = said.lines().next().is_some_and(|head| head.contains("TCG"));
    let counted = said.contains("so its instructions are counted") && !row(&said, "instructions_kernel").is_empty();
    if emulated != counted {
        return wrong("a short program", &said);
    }
    let fails = bench.run(&["compare", "--repeat", "1", "--", "busybox", "sh", "-c", "echo why >&2; exit 7"])?;
    ended(&fails, 7)?;
    if fails.stderr.contains("why") && fails.stderr.contains("ended with 7") {
        return Ok(());
    }
    Err(format!("a program that fails: {}", fails.stderr))
}

/// Checks that the files of `--json` have the fields of docs/commands.md.
pub(super) fn json(bench: &Bench) -> Result<(), String> {
    let file = bench.place.join("report.json");
    let path = file.to_string_lossy();
    let report = |words: &[&str], status: i32| -> Result<Value, String> {
        ended(&bench.run(words)?, status)?;
        serde_json::from_slice(&fs::read(&file).map_err(text)?).map_err(text)
    };
    let run = report(&["run", "--json", &path, "--", "sh", "-c", "kill -TERM $$"], 143)?;
    let profile = report(&["profile", "--json", &path, "--", "busybox", "true"], 0)?;
    let compared = report(&["compare", "--repeat", "1", "--json", &path, "--", "busybox", "true"], 0)?;
    let trace = bench.place.join("trace.json");
    let words = ["trace", "--json", &path, "--out", &trace.to_string_lossy(), "--", "busybox", "true"];
    let traced = report(&words, 0)?;
    let documented = fs::read_to_string(bench.places.root.join("docs/commands.md")).map_err(text)?;
    for (command, report) in [("run", &run), ("profile", &profile), ("compare", &compared), ("trace", &traced)] {
        let row = documented.lines().find(|line| line.starts_with(&format!("| `{command}` | `")));
        let row = row.ok_or_else(|| format!("docs/commands.md has no fields of {command}"))?;
        let fields = report.as_object().ok_or_else(|| format!("{command} wrote {report}"))?;
        if let Some(lacks) = fields.keys().find(|field| !row.contains(&format!("`{field}`"))) {
            return Err(format!("docs/commands.md does not name the field {lacks} of {command}"));
        }
    }
    let expected = [
        run["end"] == "signal" && run["status"] == 143 && run["signal"] == 15 && run["killed"].is_null(),
        profile["functions"].as_array().is_some_and(|all| !all.is_empty()),
        compared["kernels"].as_array().is_some_and(|both| both.len() == 2),
        traced["totals"]["system_calls"].as_u64().is_some_and(|calls| calls > 0),
    ];
    if expected == [true; 4] { Ok(()) } else { Err(format!("{expected:?}: {run} {}", traced["totals"])) }
}

/// Checks that the shell accepts the completions, and that the manual pages describe all commands.
pub(super) fn completions(bench: &Bench) -> Result<(), String> {
    let script = bench.run(&["completion", "bash"])?;
    ended(&script, 0)?;
    let file = bench.file("completions", &script.stdout)?;
    let checked = Command::new("bash").arg("-n").arg(file).status().map_err(text)?;
    let page = bench.run(&["man"])?;
    ended(&page, 0)?;
    ended(&bench.run(&["man", "run"])?, 0)?;
    let (reader, writer) = std::io::pipe().map_err(text)?;
    drop(reader);
    let unread = finish(bench.command(&["man"]).stdout(writer).spawn().map_err(text)?)?;
    ended(&unread, 141)?;
    same("standard error without a reader", unread.stderr.as_bytes(), b"")?;
    let wrong = bench.run(&["man", "fly"])?;
    ended(&wrong, 2).and_then(|()| one_line(&wrong))?;
    if checked.success() && String::from_utf8_lossy(&page.stdout).contains("compare") {
        return Ok(());
    }
    Err(format!("bash says {checked}; the page is {}", String::from_utf8_lossy(&page.stdout)))
}

/// Checks that a command reports when it waits for another command.
pub(super) fn waits(bench: &Bench) -> Result<(), String> {
    let mut places = bench.places.clone();
    places.cache = bench.place.join("cache");
    let held = places.lock("programs").map_err(text)?;
    let mut command = bench.command(&["run", "--", "zerofill", "--seconds", "0"]);
    let mut child = command.env("QUIRE_CACHE", &places.cache).spawn().map_err(text)?;
    let mut said = String::new();
    let errors = child.stderr.as_mut().ok_or("no standard error")?;
    BufReader::new(errors).read_line(&mut said).map_err(text)?;
    drop(held);
    ended(&finish(child)?, 0)?;
    if said.starts_with("quire: waiting for another ./quire") { Ok(()) } else { Err(format!("it says {said:?}")) }
}

/// Checks that a command with a fresh kernel does not wait for a cargo that builds in the same directory.
pub(super) fn fresh(bench: &Bench) -> Result<(), String> {
    let build = || {
        let mut command = bench.command(&["build"]);
        // The variable would name the kernel, and nothing would be looked at.
        command.env_remove("QUIRE_KERNEL");
        command
    };
    ended(&finish(build().spawn().map_err(text)?)?, 0)?;
    let mut held = Vec::new();
    for lock in cargo_locks(&bench.places.target.join("kernel"), 3) {
        let file = std::fs::File::open(&lock).map_err(text)?;
        // Another command may be building just now, which also shows that nothing is awaited.
        if file.try_lock().is_ok() {
            held.push(file);
        }
    }
    if held.is_empty() {
        return Err("cargo has no lock in the kernel's directory".to_owned());
    }
    let mut child = build().spawn().map_err(text)?;
    let mut said = String::new();
    // A command that waits says so. Otherwise it ends without a word.
    BufReader::new(child.stderr.as_mut().ok_or("no standard error")?).read_line(&mut said).map_err(text)?;
    drop(held);
    ended(&finish(child)?, 0)?;
    if said.is_empty() { Ok(()) } else { Err(format!("it says {said:?}")) }
}

/// The files that cargo locks, in `place` and in the directories below it, down to this depth.
fn cargo_locks(place: &std::path::Path, depth: usize) -> Vec<std::path::PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(place).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        if name.starts_with(".cargo-") && name.ends_with("lock") {
            found.push(entry.path());
        } else if depth > 1 && entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            found.extend(cargo_locks(&entry.path(), depth - 1));
        }
    }
    found
}

/// Checks that Ctrl-C ends a command with one line, which names the kept work.
pub(super) fn interrupted(bench: &Bench) -> Result<(), String> {
    let mut places = bench.places.clone();
    places.cache = bench.place.join("cache");
    let held = places.lock("programs").map_err(text)?;
    let mut command = bench.command(&["compare", "--", "zerofill", "--seconds", "0"]);
    let mut child = command.env("QUIRE_CACHE", &places.cache).spawn().map_err(text)?;
    let mut errors = BufReader::new(child.stderr.take().ok_or("no standard error")?);
    let mut said = String::new();
    errors.read_line(&mut said).map_err(text)?;
    rustix::process::kill_process(Pid::from_child(&child), Signal::INT).map_err(text)?;
    errors.read_to_string(&mut said).map_err(text)?;
    let status = child.wait().map_err(text)?;
    drop(held);
    if status.signal() == Some(2) && said.contains("\nquire: interrupted; ") && said.contains("kept") {
        return Ok(());
    }
    Err(format!("{status}; it says {said:?}"))
}

/// How often the matrix is run at most. Only a complaint that occurs in every run is an error.
const MATRICES: usize = 3;

/// Checks that the kernel's matrix of shared lines agrees with its list. An operation that writes a line from both
/// processors on purpose must be found.
pub(super) fn shared_lines(bench: &Bench) -> Result<(), String> {
    // Two threads interleave differently in each run, and more so on a busy host. An error of the kernel occurs in
    // every run.
    let mut lasting: Option<BTreeSet<String>> = None;
    let mut said = String::new();
    for _ in 0..MATRICES {
        let whole = bench.run(&["conflicts", "--guest"])?;
        said = String::from_utf8_lossy(&whole.stdout).into_owned();
        let found = complaints(&said);
        if whole.status != 0 && found.is_empty() {
            return Err(format!("{}; it printed {said}", whole.stderr.trim()));
        }
        let both = lasting.map_or_else(|| found.clone(), |before| before.intersection(&found).cloned().collect());
        let none = both.is_empty();
        lasting = Some(both);
        if none {
            break;
        }
    }
    let lasting: Vec<String> = lasting.into_iter().flatten().collect();
    if !lasting.is_empty() {
        return Err(format!("in each of {MATRICES} runs: {}", lasting.join("; ")));
    }
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
    Err(format!("both processes share one pipe: {said}"))
}

/// Returns the complaints of a matrix, without their counts.
fn complaints(said: &str) -> BTreeSet<String> {
    let begins = ["not expected: ", "more often than once in ", "expected, but gone: "];
    let lines = said.lines().filter(|line| begins.iter().any(|b| line.starts_with(b)));
    lines.map(|line| line.split(", in ").next().unwrap_or(line).to_owned()).collect()
}

/// Checks that a lab run can be killed once it has samples. The same command must then continue the run, print all
/// figures, and draw them.
pub(super) fn lab(bench: &Bench) -> Result<(), String> {
    let out = bench.places.target.join("test-lab");
    let _ = fs::remove_dir_all(&out);
    let home = out.to_string_lossy().into_owned();
    let words = ["lab", "calibration", "--no-linux", "--cpus", "1", "--out", &home];
    let command = || {
        let mut command = bench.command(&words);
        // This test checks the drawing and not the speed. So it uses the lab's program as the tests have built it.
        command.env("QUIRE_LAB_PROFILE", "tests");
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
        return Err(format!("after the lab was killed the file holds {before} samples, complete: {complete}"));
    }
    let done = finish(command().spawn().map_err(text)?)?;
    ended(&done, 0)?;
    let said = String::from_utf8_lossy(&done.stdout).into_owned();
    if !done.stderr.contains("continues the run") || !said.contains("byte through a pipe") {
        return Err(format!("it printed: {said}{}", done.stderr));
    }
    let (after, complete) = samples(&file)?;
    // There are four operations. Each is counted in a guest, timed in a guest, and timed on the hosted machine, three
    // times each.
    if (after, complete) != (36, true) {
        return Err(format!("the file holds {after} samples, complete: {complete}"));
    }
    let page = fs::read_to_string(out.join("report.html")).map_err(text)?;
    if !page.contains("Calibration") || !page.contains("<svg") {
        return Err("the page does not show the experiment".to_owned());
    }
    fs::remove_dir_all(&out).map_err(text)
}

/// Checks that the trace has a program's faults, each with its kind, and the changes of its maps. Events on a track
/// must be nested. An unmapping must cause a shootdown, and the other processor must answer it.
pub(super) fn traced(bench: &Bench) -> Result<(), String> {
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
        return Err(format!("events of the area are missing; the program printed {area:?}"));
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
    // The program touches its pages in order, so most pages are made by a fault ahead of their touch.
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
        return Err("a CPU has no track".into());
    }
    nested(events)
}

/// The begin and the end of a span in ns, and its event.
type Spanned<'e> = (u64, u64, &'e Value);

/// Checks that on each track an event that begins within another event ends within it.
fn nested(events: &[Value]) -> Result<(), String> {
    let mut tracks: BTreeMap<(u64, u64), Vec<Spanned<'_>>> = BTreeMap::new();
    // Converts microseconds to nanoseconds.
    let ns = |v: &Value| v.as_f64().map(|us| (us * 1000.0).round() as u64);
    for e in events.iter().filter(|e| e["ph"] == "X") {
        let (Some(pid), Some(tid)) = (e["pid"].as_u64(), e["tid"].as_u64()) else { continue };
        let (start, length) = ns(&e["ts"]).zip(ns(&e["dur"])).ok_or_else(|| format!("without a time: {e}"))?;
        tracks.entry((pid, tid)).or_default().push((start, start + length, e));
    }
    if tracks.len() < 4 {
        return Err(format!("{} tracks instead of four (two CPUs, a parent and a child)", tracks.len()));
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

/// Checks that events for which the buffer has no room are counted and reported. The earlier events must be usable.
pub(super) fn cut_trace(bench: &Bench) -> Result<(), String> {
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

/// Checks that tracing costs nothing when it is off. The usual kernel must have no function of the tracer, so it cannot
/// call one.
pub(super) fn untraced(bench: &Bench) -> Result<(), String> {
    const NAMES: [&str; 3] = ["quire_kernel::report::trace", "quire_sync::trace", "__quire_trace"];
    let look = |kernel: &Path| -> Result<Vec<String>, String> {
        let bytes = fs::read(kernel).map_err(text)?;
        let file = object::File::parse(&*bytes).map_err(text)?;
        let names = file.symbols().filter_map(|s| Some(format!("{:#}", rustc_demangle::demangle(s.name().ok()?))));
        Ok(names.filter(|name| NAMES.iter().any(|n| name.contains(n))).collect())
    };
    let traced = look(&build::traced_kernel(&bench.places).map_err(text)?)?;
    if !traced.iter().any(|n| n.contains("quire_kernel::report::trace")) {
        return Err(format!("this check cannot find trace code: the traced kernel has {traced:?}"));
    }
    let usual = look(&bench.kernel)?;
    if usual.is_empty() { Ok(()) } else { Err(format!("the usual kernel contains trace code: {usual:?}")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn complaints_are_equal_however_often_they_were_met() {
        let said = |n| {
            format!(
                "heap, f\n    in {n} of 9 rounds\nnot expected: heap, a::b, in {n} of 9 rounds\nexpected, but gone: x\n"
            )
        };
        let expected = ["expected, but gone: x", "not expected: heap, a::b"].map(str::to_owned);
        assert_eq!(complaints(&said(3)), BTreeSet::from(expected));
        assert_eq!(complaints(&said(3)), complaints(&said(7)));
    }
}
