//! `./quire trace`: shows events during a program's run: faults, map changes, shootdowns, paging, waits, and which
//! thread ran on which CPU.
//!
//! A kernel that is built for tracing ([`build::traced_kernel`]) keeps the events in a part of the guest's memory. That
//! memory is a file of this process, which is read when the machine has ended. The kernel sends nothing while it runs.
//! So the events before a failure are still in that file, unless its room was full.

mod chrome;
mod memory;
mod sites;
mod table;
mod timeline;

use std::{
    fs::File,
    io::{self, BufWriter, Write as _},
    os::{
        fd::{AsFd, AsRawFd},
        unix::fs::FileExt as _,
    },
    path::PathBuf,
    time::Duration,
};

use crate::{
    boot::{Kernel, On, Shape},
    build, cli,
    failure::{Doing, Failure, Result},
    machine::{boot_words, outcome::Outcome, qemu, relay},
    places::Places,
    programs,
    progress::Step,
    run,
};
use memory::Recorded;
use serde::Serialize;
use sites::Sites;
use table::Tables;
use timeline::Timeline;

/// The time limit of the whole run, without `--timeout`.
const LIMIT: Duration = Duration::from_secs(3600);

/// Runs the program, writes the file and prints the tables.
pub fn command(places: &Places, options: &cli::Trace) -> Result<u8> {
    if options.count && options.guest.cpus != 1 {
        return Err(Failure::usage("--count needs one CPU; leave out --count or --cpus"));
    }
    let (memory, kernel, outcome) = record(places, options)?;
    let recorded = match (Recorded::read(&memory), &outcome) {
        (Ok(recorded), _) => recorded,
        // If the machine failed, its failure explains why there are no records.
        (Err(_), Err(failure)) => return Err(failure.clone()),
        (Err(failure), Ok(())) => return Err(failure),
    };
    drop(memory);
    let sites = Sites::read(kernel.file(), program_file(places, options).as_deref())?;
    let timeline = Timeline::of(&recorded, &sites);
    let words: Vec<_> = options.program.iter().map(|w| w.to_string_lossy()).collect();
    let about = || format!("cannot write {}", options.out.display());
    let mut out = BufWriter::new(File::create(&options.out).doing(about)?);
    chrome::write(&timeline, &words.join(" "), &mut out).and_then(|()| out.flush()).doing(about)?;
    let tables = Tables::of(&timeline, options.top);
    print!("{}", tables.print());
    if let Some(file) = &options.json {
        let json = Json {
            version: 1,
            command: options.program.iter().map(|word| word.to_string_lossy().into_owned()).collect(),
            cpus: options.guest.cpus,
            memory_mib: options.guest.memory,
            counted: options.count,
            lost: timeline.lost,
            tables,
        };
        let about = || format!("cannot write {}", file.display());
        std::fs::write(file, serde_json::to_string_pretty(&json).doing(about)? + "\n").doing(about)?;
    }
    if timeline.lost != 0 {
        eprintln!("quire: the buffer was full and {} later events are missing; give a larger --buffer", timeline.lost);
    }
    outcome.map(|()| 0)
}

/// The tables, in the format for other tools (docs/commands.md, "Results as JSON").
#[derive(Serialize)]
struct Json {
    version: u32,
    command: Vec<String>,
    cpus: u32,
    memory_mib: u64,
    counted: bool,
    lost: u64,
    #[serde(flatten)]
    tables: Tables,
}

/// The path of the program's file on the host, which has the names of its functions. `None` if it is unknown.
fn program_file(places: &Places, options: &cli::Trace) -> Option<PathBuf> {
    let program = options.program.first()?;
    if !programs::is_named(places, program) {
        return Some(program.into());
    }
    programs::named(places, &program.to_string_lossy()).ok()
}

/// Boots a traced guest and runs the program there. Returns the kernel's records, the kernel, and the machine's failure
/// if there was one.
fn record(places: &Places, options: &cli::Trace) -> Result<(Vec<u8>, Kernel, Result<()>)> {
    boot_words::check(&options.append)?;
    let (tree, order) = run::prepare(places, &options.guest, &options.program, false)?;
    let kernel = Kernel::with(places, On::Quire, || build::traced_kernel(places))?;
    let image = kernel.image(tree, &order)?;
    let about = || "cannot keep the trace".to_string();
    // The trace's memory is added to the program's memory.
    let megabytes = options.guest.memory + options.buffer;
    let ram = qemu::memory_file("trace").doing(about)?;
    ram.set_len(megabytes << 20).doing(about)?;
    let fd = ram.as_raw_fd();
    let shape = Shape {
        cpus: options.guest.cpus,
        memory: megabytes,
        count: options.count,
        append: format!("trace={}M {}", options.buffer, options.append),
        extra: vec![
            "-object".into(),
            format!("memory-backend-file,id=ram,mem-path=/proc/self/fd/{fd},share=on,size={megabytes}M").into(),
            "-machine".into(),
            "memory-backend=ram".into(),
        ],
        inherit: vec![fd],
        ..Shape::default()
    };
    let mut log = qemu::memory_file("log").doing(about)?;
    let step = Step::new("tracing");
    // The guest's output goes to standard error, because standard output is only for the tables.
    let err = io::stderr();
    let kept = Some(log.try_clone().doing(about)?);
    let report = relay::unattended(
        kernel.start(&image, &shape)?,
        [err.as_fd(); 2],
        kept,
        options.guest.timeout.unwrap_or(LIMIT),
    )?;
    drop(step);
    let outcome = match report.outcome {
        Outcome::Exit(_) | Outcome::Signal(_) => Ok(()),
        other => {
            eprint!("{}", run::last_lines(&report.log_tail, 20));
            Err(other.to_failure())
        }
    };
    let text = relay::content(&mut log)?;
    let Some((at, len)) = buffer_of(&String::from_utf8_lossy(&text)) else {
        outcome?;
        return Err(Failure::machine("the kernel reserved no memory for a trace"));
    };
    let mut memory = Vec::new();
    if at.checked_add(len).is_some_and(|end| end <= megabytes << 20) {
        memory.resize(usize::try_from(len).doing(about)?, 0);
        ram.read_exact_at(&mut memory, at).doing(about)?;
    }
    Ok((memory, kernel, outcome))
}

/// The guest address and the length in bytes of the trace buffer, from the kernel's log.
fn buffer_of(log: &str) -> Option<(u64, u64)> {
    let words = log.lines().find_map(|line| line.split_once("] trace: ").map(|(_, words)| words))?;
    let (len, at) = words.trim().split_once(" bytes at 0x")?;
    Some((u64::from_str_radix(at, 16).ok()?, len.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::{
        memory::tests::{laid_out, record},
        timeline::{Sort, Track},
        *,
    };
    use crate::profile::Functions;

    const TEXT: &str = "kind 0 switch\nkind 1 name\nkind 2 end\nkind 3 call\nkind 4 fault\nkind 13 shootdown\nkind 14 \
        shootdown \
                        answered\noutcome 2 zero-fill\ncall 9 mmap\n";

    /// A timeline of two CPUs. On the first, a program's thread maps, faults and is interrupted. The second idles, then
    /// runs the thread.
    fn timeline() -> Timeline {
        let name = |thread, item, text: [u8; 8], process| {
            let mut r = record(1000, 0, 1, item, thread, u64::from_le_bytes(text));
            (r.b, r.sites[0]) = (0, process);
            r
        };
        let first = [
            name(5, 0, *b"prog\0\0\0\0", 4),
            record(1000, 0, 0, 0, 5, 5),
            record(1010, 10, 4, 2, 5, 0xff),
            record(1030, 5, 14, 0, 5, 1),
            record(1001, 50, 3, 9, 5, 0),
            name(0x8000_0001, 2, *b"idle\0\0\0\0", 0),
            record(1100, 0, 0, 0, 5, 0x8000_0001),
        ];
        let second = [record(1100, 0, 0, 0, 0, 5), record(1200, 0, 2, 0, 0, 5)];
        let recorded = Recorded::read(&laid_out(TEXT, 8, &[(&first, 0), (&second, 3)])).unwrap();
        Timeline::of(&recorded, &Sites::of_functions(Functions::default(), None))
    }

    #[test]
    fn each_event_is_on_the_track_of_its_cpu_or_thread() {
        let timeline = timeline();
        let items: Vec<_> = timeline.items.iter().map(|i| (i.track, i.name.as_str(), i.start, i.length)).collect();
        let (zero, one, thread) = (Track::Cpu(0), Track::Cpu(1), Track::Thread(5));
        assert_eq!(
            items,
            [
                (zero, "prog", 0, Some(100)),
                (zero, "shootdown answered", 30, Some(5)),
                (one, "prog", 100, Some(100)),
                (thread, "mmap", 1, Some(50)),
                (thread, "fault: zero-fill", 10, Some(10)),
                (thread, "end", 200, None),
            ]
        );
        assert_eq!((timeline.lost, timeline.threads[&5].process, timeline.items[4].sort), (3, 4, Sort::Fault));
    }

    #[test]
    fn the_viewers_file_has_a_track_for_each_cpu_and_process() {
        let mut bytes = Vec::new();
        chrome::write(&timeline(), "a \"program\"", &mut bytes).unwrap();
        let file: serde_json::Value = serde_json::from_slice(&bytes).unwrap();
        assert_eq!(file["otherData"], serde_json::json!({ "program": "a \"program\"", "lost": 3 }));
        let events = file["traceEvents"].as_array().unwrap();
        assert!(events.iter().all(|e| e["pid"].is_u64() && e["tid"].is_u64() && e["name"].is_string()));
        let named = |what: &str| -> Vec<_> {
            let of = events.iter().filter(|e| e["name"] == what);
            of.map(|e| e["args"]["name"].as_str().unwrap_or_default().to_owned()).collect()
        };
        assert_eq!(named("thread_name"), ["CPU 0", "CPU 1", "prog"]);
        let fault = events.iter().find(|e| e["name"] == "fault: zero-fill").unwrap();
        assert_eq!((&fault["pid"], &fault["tid"], &fault["ph"]), (&4.into(), &5.into(), &"X".into()));
        assert_eq!((fault["ts"].as_f64(), fault["dur"].as_f64()), (Some(0.01), Some(0.01)));
    }

    #[test]
    fn the_kernels_line_is_found_and_others_are_not() {
        assert_eq!(buffer_of("[    0.1] up\r\n[    0.2] trace: 4096 bytes at 0x1f000\r\n"), Some((0x1f000, 4096)));
        for log in ["", "trace: 1 bytes at 0x1", "[ 0.2] trace: x bytes at 0x1", "[ 0.2] trace: 1 bytes at 0xz"] {
            assert_eq!(buffer_of(log), None, "{log:?}");
        }
    }
}
