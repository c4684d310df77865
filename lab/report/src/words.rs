//! Readable texts for the names in a results file: operations, measures, parameters and places. A name without an entry
//! is shown unchanged.

use quire_results::{Parameter, Place, Side, operation::Operation};
use serde::Serialize;

use crate::number;

/// Texts for operations: the experiment (empty for any), the value of `what`, and the text.
#[rustfmt::skip] // A table.
const OPERATIONS: &[(&str, &str, &str)] = &[
    ("zero-fill", "threads", "zero-fill faults by the threads of one process"),
    ("zero-fill", "processes", "zero-fill faults by processes"),
    ("", "first touch, in a row", "first touch of pages in ascending order"),
    ("", "zero-fill fault", "zero-fill fault"),
    ("", "read fault, shared file", "read fault on a shared file"),
    ("", "write fault, shared file", "write fault on a shared file"),
    ("", "fork-touched", "fork of a process with touched memory"),
    ("", "fork-mapped", "fork of a process with a large, mostly untouched mapping"),
    ("", "fork-stored", "fork of a process that stores between forks"),
    ("", "exec-static", "exec of a static program"),
    ("", "exec-dynamic", "exec of a dynamic program"),
    ("", "fork + exit", "fork and exit"),
    ("", "fork of 64 MiB + exit", "fork and exit of a process with 64 MiB touched"),
    ("", "fork of 1 GiB with 100 pages + exit", "fork and exit of a process with 1 GiB mapped, 100 pages touched"),
    ("", "fork + exec, static", "fork and exec of a static program"),
    ("", "vfork + exec, static", "vfork and exec of a static program"),
    ("", "fork + exec, dynamic", "fork and exec of a dynamic program"),
    ("", "vfork + exec, dynamic", "vfork and exec of a dynamic program"),
    ("", "vfork + exec, static copies", "vfork and exec of a static program, a file for each process"),
    ("", "vfork + exec, dynamic copies", "vfork and exec of a dynamic program, a file for each process"),
    ("", "last attach, a page", "mapping and touching a page that other processes share"),
    ("", "take away, a mapping", "removal of a shared page from each mapping"),
    ("", "exit, a process", "exit of a process that shares a file"),
    ("", "kernel memory, a mapping", "kernel memory for each mapping of a shared page"),
    ("", "chain, parents gone", "a fork chain whose parents have exited"),
    ("", "chain, parents alive", "a fork chain whose parents live"),
    ("", "children of one parent", "stores by many children of one parent"),
    ("queues", "faults", "zero-fill faults"),
    ("queues", "sweep", "zero-fill faults by the number of parts"),
    ("queues", "reach", "processes until a lock is always held"),
    ("queues", "queue", "entering a page queue"),
    ("queues", "frames", "taking and freeing a frame"),
    ("map", "create", "mmap of many ranges"),
    ("map", "touch", "first touch of many ranges"),
    ("map", "protect", "mprotect of many ranges"),
    ("map", "remove", "munmap of many ranges"),
    ("map", "create, mixed", "mmap of many ranges of mixed sizes"),
    ("map", "remove, mixed", "munmap of many ranges of mixed sizes"),
    ("", "munmap + mmap in a hole", "munmap, and mmap in the lowest hole"),
    ("", "mmap + munmap", "mmap and munmap"),
    ("", "mmap + touch + munmap", "mmap, first touch and munmap"),
    ("processes", "sleep", "arming and firing a timer"),
    ("processes", "queue", "joining a run queue"),
    ("processes", "stacks", "placing a kernel stack"),
    ("processes", "create", "creation of a process"),
    ("processes", "kill", "killing a process"),
    ("processes", "asleep", "a sleeping process"),
    ("", "thread create + join", "creation and join of a thread"),
    ("ranges", "munmap", "munmap of a file with 100 resident pages"),
    ("ranges", "remap", "store, munmap and mmap of a file with 100 resident pages"),
    ("ranges", "truncate", "truncation of a file with 100 resident pages"),
    ("ranges", "discard", "discarding the pages of a file"),
    ("ranges", "flush", "writing back a file with 100 resident pages"),
    ("", "munmap + mmap + write", "munmap, mmap and store in a resident file"),
    ("", "munmap + mmap + write, 100 pages", "munmap, mmap and store in a file with 100 resident pages"),
    ("", "unmap, 100 pages", "munmap of a file with 100 resident pages"),
    ("", "truncate, 100 pages", "truncation of a file with 100 resident pages"),
    ("build", "first build", "first build of Lua after boot"),
    ("build", "later builds", "later builds of Lua"),
    ("postgres", "pgbench", "transactions of pgbench"),
    ("postgres", "kernel memory, a mapped page", "kernel memory for each page of the buffers that a client maps"),
    ("postgres", "kernel memory, a client", "kernel memory for each client that asks for random rows"),
    ("redis", "set", "SET requests"),
    ("redis", "get", "GET requests"),
    ("redis", "save", "a save by fork while clients store"),
    ("prometheus", "write", "writing samples into mapped files"),
    ("bulk-build", "ten packages at once", "ten builds of packages at once"),
    ("calibration", "memset-page", "memset of a page"),
    ("calibration", "system-call", "system call"),
    ("calibration", "pipe-byte", "byte through a pipe"),
];

/// Texts for measures: the experiment (empty for any), the measure's name, and the text.
#[rustfmt::skip] // A table.
const MEASURES: &[(&str, &str, &str)] = &[
    ("sharing", "attach", "time to map and touch the file"),
    ("sharing", "exit", "time to exit"),
    ("sharing", "remove", "time to remove a page from all mappings"),
    ("sharing", "pageout", "time to page out one of 64 neighbours"),
    ("sharing", "bytes", "memory of the reverse mapping"),
    ("sharing", "locks", "spin locks taken by an attach"),
    ("sharing", "locks_remove", "spin locks taken by a removal"),
    ("chains", "fault", "time of a store at the end of the chain"),
    ("chains", "overhead", "pages held over pages reachable"),
    ("chains", "visits", "pages visited"),
    ("chains", "memory", "memory held over memory reachable"),
    ("map", "bytes", "memory of the map"),
    ("map", "nodes", "nodes of the map"),
    ("queues", "waits", "waits for a lock"),
    ("queues", "reach", "processes until a lock is always held"),
    ("calibration", "cost", "time"),
    ("", "kernel_bytes", "kernel memory"),
    ("", "kernel_memory", "kernel memory"),
    ("", "misses", "data-cache misses"),
    ("", "misses_last", "misses of the last-level cache"),
    ("", "lines", "cache lines moved between CPUs"),
    ("", "locks", "spin locks taken"),
    ("", "longest_hold", "longest hold of a page queue's lock"),
    ("", "queue_locks", "page queue locks taken"),
    ("", "visits", "slots and leaves visited"),
    ("", "share", "share of the limit"),
    ("", "interrupts", "timer interrupts"),
    ("redis", "fork", "time of the fork"),
    ("redis", "copied", "memory copied during the save"),
    ("", "requests", "requests"),
    ("", "samples", "samples"),
    ("", "system", "system time"),
    ("", "transactions", "transactions"),
    ("", "system_share", "system time's share"),
    ("", "user", "user time"),
    ("", "wall", "wall time"),
];

/// Texts for parameters, as names of axes and columns.
const AXES: &[(&str, &str)] = &[
    ("cpus", "CPUs"),
    ("what", "operation"),
    ("as", "run by"),
    ("programs", "program files"),
    ("spaces", "processes that map the file"),
    ("processes", "processes"),
    ("clients", "clients"),
    ("generations", "generations of the chain"),
    ("leaving", "exit of the parents"),
    ("reaper", "chain reaper"),
    ("parts", "parts of the queues"),
    ("entries", "ranges in the map"),
    ("ranges", "ranges in the map"),
    ("sizes", "sizes of ranges"),
    ("n", "timers, threads or stacks"),
    ("hints", "placement hints"),
    ("mib", "file size, MiB"),
    ("size", "file size, MiB"),
    ("pages", "resident pages"),
    ("jobs", "jobs"),
    ("objects", "objects built"),
];

fn of(table: &'static [(&str, &str, &str)], experiment: &str, name: &str) -> Option<&'static str> {
    let fits =
        |own: bool| table.iter().find(move |(e, n, _)| *n == name && if own { *e == experiment } else { e.is_empty() });
    fits(true).or_else(|| fits(false)).map(|(.., words)| *words)
}

/// The readable name of an operation.
pub fn operation(operation: &Operation<'_>) -> String {
    let experiment = operation.experiment;
    let what = operation.what.map(|w| of(OPERATIONS, &experiment.name, w).unwrap_or(w));
    let base = what.unwrap_or(&experiment.title);
    match operation.measure {
        Some(name) => format!("{base}: {}", measure(&experiment.name, name)),
        None if operation.memory && !base.starts_with("kernel memory") => format!("memory of {base}"),
        None => base.to_owned(),
    }
}

/// The readable name of a measure.
pub fn measure(experiment: &str, name: &str) -> String {
    of(MEASURES, experiment, name).unwrap_or(name).to_owned()
}

/// The readable name of a parameter.
pub fn axis(name: &str) -> String {
    AXES.iter().find(|(n, _)| *n == name).map_or(name, |(_, words)| *words).to_owned()
}

/// The readable value of a parameter, for places that show its name elsewhere.
pub fn value(experiment: &str, name: &str, value: &Parameter) -> String {
    match value {
        Parameter::Number(n) => number::short(*n),
        Parameter::Text(t) => match (name, &t[..]) {
            ("what", t) => of(OPERATIONS, experiment, t).unwrap_or(t).to_owned(),
            ("leaving", "each") => "after each store".to_owned(),
            ("leaving", "end") => "all at the end".to_owned(),
            ("leaving", "two") => "each has two children".to_owned(),
            ("programs", "shared") => "one shared file".to_owned(),
            ("programs", "copies") => "a file each".to_owned(),
            (_, t) => t.to_owned(),
        },
    }
}

/// A parameter with its value, for example `2 CPUs` or `reaper on`.
pub fn parameter(experiment: &str, name: &str, of: &Parameter) -> String {
    let value = value(experiment, name, of);
    let one = matches!(of, Parameter::Number(n) if *n == 1.0);
    let s = if one { "" } else { "s" };
    match (name, of) {
        ("what", _) => value,
        ("cpus", _) => format!("{value} CPU{s}"),
        ("as" | "programs", _) => format!("as {value}"),
        ("spaces" | "processes", Parameter::Number(_)) => format!("{value} process{}", if one { "" } else { "es" }),
        ("generations", _) => format!("{value} generation{s}"),
        ("leaving", _) => format!("parents exit: {value}"),
        ("parts", _) => format!("{value} part{s}"),
        ("entries" | "ranges", Parameter::Number(_)) => format!("{value} range{s}"),
        ("sizes", _) => format!("{value} sizes"),
        ("mib" | "size", Parameter::Number(n)) => format!("file of {}", number::value(*n, "MiB")),
        ("pages", Parameter::Number(_)) => format!("{value} page{s}"),
        ("jobs", _) => format!("jobs: {value}"),
        ("objects", _) => format!("{value} object{s}"),
        _ => format!("{} {value}", axis(name)),
    }
}

/// An entry of the page's legend.
#[derive(Debug, Serialize)]
pub struct Term {
    /// The term, as the page writes it.
    pub name: &'static str,
    /// The CSS class of the side, if the term is a side.
    pub side: Option<&'static str>,
    /// The meaning of the term.
    pub means: &'static str,
}

/// The legend: sides and places, explained for first-time readers of the page.
pub fn legend() -> Vec<Term> {
    let side = |side: Side, means| Term { name: side.title(), side: Some(side.name()), means };
    let place = |place: Place, means| Term { name: place.name(), side: None, means };
    vec![
        side(Side::Ours, "the design under test"),
        side(Side::Linux, "Debian's kernel in the same emulator, transparent large pages off"),
        side(Side::LinuxLarge, "the same kernel with transparent large pages on"),
        side(Side::Before, "the design that the source replaced, rebuilt behind the same traits as Quire"),
        side(Side::After, "the source's own design, rebuilt in the same way"),
        side(Side::Plain, "an ordered tree of the standard library, for scale"),
        side(Side::Limit, "the rate of the bare machine, which no design can exceed"),
        place(Place::Hosted, "the core runs in a process of this machine; times are measured"),
        place(
            Place::Recording,
            "the same with each access to shared memory recorded; cache lines and locks are counted",
        ),
        place(Place::Cachegrind, "the same under valgrind; instructions and cache misses are counted"),
        place(Place::Guest, "a kernel in the emulator, in real time; rates are measured"),
        place(Place::GuestCounted, "a kernel in the emulator with one CPU; guest instructions are counted"),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_the_file_become_words_and_others_stay() {
        let text = |t: &str| Parameter::from(t);
        assert_eq!(parameter("exec-fork", "what", &text("fork-touched")), "fork of a process with touched memory");
        assert_eq!(parameter("map", "what", &text("create")), "mmap of many ranges");
        assert_eq!(parameter("processes", "what", &text("create")), "creation of a process");
        assert_eq!(parameter("x", "cpus", &2u32.into()), "2 CPUs");
        assert_eq!(parameter("x", "cpus", &1u32.into()), "1 CPU");
        assert_eq!(parameter("x", "other", &text("y")), "other y");
        assert_eq!(measure("sharing", "locks_remove"), "spin locks taken by a removal");
        assert_eq!((measure("map", "a"), axis("b")), ("a".to_owned(), "b".to_owned()));
    }
}
