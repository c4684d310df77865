//! Converts records into named spans of time, each on the track of its CPU or of its thread.

use std::collections::BTreeMap;

use super::memory::{Record, Recorded};
use super::sites::Sites;

/// The lowest number of the kernel's own threads.
const KERNEL: u32 = 1 << 31;

/// The place where an event is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Track {
    /// The track of a CPU, for events that are independent of the running thread.
    Cpu(usize),
    /// The track of a thread, by the thread's number.
    Thread(u32),
}

/// The sort of an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Sort {
    /// A thread runs on a CPU.
    Run,
    /// A system call.
    Call,
    Fault,
    /// A change of an address map.
    Map,
    /// A shootdown: CPUs drop translations on the request of another CPU.
    Shootdown,
    /// Pages that are written, read or freed.
    Paging,
    /// A thread waits for a lock, a page or memory.
    Wait,
    /// A thread ends.
    End,
}

impl Sort {
    /// The sort of the events whose kind has the name `kind`. An unknown kind counts as a map change.
    fn of(kind: &str) -> Sort {
        match kind {
            "call" => Sort::Call,
            "fault" | "fault around" | "fault ahead" => Sort::Fault,
            "shootdown" | "shootdown answered" => Sort::Shootdown,
            "page in" | "pageout" | "launder" => Sort::Paging,
            "busy page" | "memory" | "spin lock" | "lock" => Sort::Wait,
            "end" => Sort::End,
            _ => Sort::Map,
        }
    }

    /// The name for the user and for the viewer's filter.
    pub fn name(self) -> &'static str {
        match self {
            Sort::Run => "running",
            Sort::Call => "system call",
            Sort::Fault => "fault",
            Sort::Map => "map",
            Sort::Shootdown => "shootdown",
            Sort::Paging => "paging",
            Sort::Wait => "wait",
            Sort::End => "end",
        }
    }
}

/// A span of time, or a moment.
#[derive(Debug, Clone, PartialEq)]
pub struct Item {
    pub track: Track,
    pub sort: Sort,
    /// The event's name, for example `fault zero-fill`, `mmap` or `spin lock`.
    pub name: String,
    /// The start in nanoseconds after the first program's first instruction.
    pub start: u64,
    /// The duration in nanoseconds; `None` for a moment.
    pub length: Option<u64>,
    /// The CPU on which the event ended.
    pub cpu: usize,
    /// Further figures, by name.
    pub figures: Vec<(&'static str, String)>,
    /// The program or the code that caused the event. It is empty if that is unknown.
    pub site: String,
}

/// A thread.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Thread {
    pub name: String,
    /// The number of the thread's process; 0 for the kernel's own threads.
    pub process: u32,
    /// Whether the thread is the idle thread of a CPU.
    pub idle: bool,
}

/// The whole timeline.
#[derive(Debug, Default)]
pub struct Timeline {
    pub cpus: usize,
    pub threads: BTreeMap<u32, Thread>,
    /// The events, sorted by track, then by start. An enclosing event comes before the events in it.
    pub items: Vec<Item>,
    pub lost: u64,
}

impl Timeline {
    pub fn of(recorded: &Recorded, sites: &Sites) -> Self {
        let mut timeline = Timeline { cpus: recorded.cpus.len(), lost: recorded.lost(), ..Timeline::default() };
        // All names are read first, because the last name of a thread counts.
        for record in recorded.cpus.iter().flat_map(|cpu| &cpu.records) {
            if kind_of(recorded, record) == "name" {
                timeline.name(record);
            }
        }
        let ns = |ticks: u64| {
            let ticks = u128::from(ticks.saturating_sub(recorded.start));
            u64::try_from(ticks * 1_000_000_000 / u128::from(recorded.hz)).unwrap_or(u64::MAX)
        };
        let end = recorded.cpus.iter().flat_map(|cpu| &cpu.records).map(|r| ns(r.start + r.length)).max().unwrap_or(0);
        for (cpu, part) in recorded.cpus.iter().enumerate() {
            let mut running: Option<(u32, u64)> = None;
            for record in &part.records {
                let (kind, start) = (kind_of(recorded, record), ns(record.start));
                match kind {
                    "name" => {}
                    "switch" => {
                        let next = u32::try_from(record.a).unwrap_or(0);
                        timeline.ran(cpu, running.replace((next, start)), start);
                    }
                    _ => {
                        let length = ns(record.start + record.length) - start;
                        timeline.items.push(item(recorded, sites, &timeline.threads, cpu, record, (start, length)));
                    }
                }
            }
            timeline.ran(cpu, running, end);
        }
        // An enclosing event comes before the events in it.
        timeline.items.sort_by_key(|i| (i.track, i.start, std::cmp::Reverse(i.length)));
        timeline
    }

    /// Records the name of a thread.
    fn name(&mut self, record: &Record) {
        let bytes = [record.a.to_le_bytes(), record.b.to_le_bytes()].concat();
        let text: Vec<u8> = bytes.into_iter().take_while(|b| *b != 0).collect();
        let thread = Thread {
            name: String::from_utf8_lossy(&text).into_owned(),
            process: u32::try_from(record.sites[0]).unwrap_or(0),
            idle: record.detail == 2,
        };
        self.threads.insert(record.thread, thread);
    }

    /// Adds the span of a thread that ran on a CPU until `until`.
    fn ran(&mut self, cpu: usize, ran: Option<(u32, u64)>, until: u64) {
        let Some((id, since)) = ran else { return };
        let thread = self.threads.get(&id).cloned().unwrap_or_default();
        if thread.idle {
            return;
        }
        self.items.push(Item {
            track: Track::Cpu(cpu),
            sort: Sort::Run,
            name: thread.name,
            start: since,
            length: Some(until.saturating_sub(since)),
            cpu,
            figures: vec![("thread", if id < KERNEL { id.to_string() } else { "the kernel's".into() })],
            site: String::new(),
        });
    }
}

fn kind_of<'r>(recorded: &'r Recorded, record: &Record) -> &'r str {
    recorded.names.kinds.get(&record.kind).map_or("", String::as_str)
}

fn item(
    recorded: &Recorded,
    sites: &Sites,
    threads: &BTreeMap<u32, Thread>,
    cpu: usize,
    r: &Record,
    (start, length): (u64, u64),
) -> Item {
    let kind = kind_of(recorded, r);
    let sort = Sort::of(kind);
    let known = |names: &BTreeMap<u32, String>| names.get(&r.detail).cloned().unwrap_or_else(|| r.detail.to_string());
    let name = match kind {
        "fault" => format!("fault: {}", known(&recorded.names.outcomes)),
        "call" => known(&recorded.names.calls),
        other => other.to_owned(),
    };
    let hex = |n: u64| format!("{n:#x}");
    let figures = match kind {
        "fault" => {
            let access = ["read", "write", "execute"].get(r.b as usize).copied().unwrap_or("?");
            vec![("address", hex(r.a)), ("access", access.into())]
        }
        "fault around" | "fault ahead" => vec![("address", hex(r.a)), ("pages", r.b.to_string())],
        "call" => vec![("first", hex(r.a)), ("result", (r.b as i64).to_string())],
        "shootdown" => vec![("CPUs", r.a.to_string())],
        "shootdown answered" => vec![("asked by CPU", r.a.to_string())],
        "page in" | "launder" => vec![("pages", r.a.to_string())],
        "pageout" => vec![("freed", r.a.to_string()), ("written", r.b.to_string())],
        "spin lock" => vec![("lock", hex(r.a)), ("rank", r.detail.to_string())],
        "lock" => vec![("lock", hex(r.a))],
        "end" | "memory" | "fork" | "take apart" => vec![],
        "busy page" => vec![("object", hex(r.a)), ("page", r.b.to_string())],
        _ => vec![("address", hex(r.a)), ("bytes", r.b.to_string())],
    };
    // A CPU answers shootdowns of other CPUs regardless of the thread that runs there.
    let of_cpu = kind == "shootdown answered" || r.thread == 0 || threads.get(&r.thread).is_some_and(|t| t.idle);
    let subject = if kind == "end" { u32::try_from(r.a).unwrap_or(r.thread) } else { r.thread };
    let track = if of_cpu && kind != "end" { Track::Cpu(cpu) } else { Track::Thread(subject) };
    let program = threads.get(&r.thread).map_or("", |t| t.name.as_str());
    let moment = matches!(kind, "fault around" | "fault ahead" | "end");
    Item {
        track,
        sort,
        name,
        start,
        length: (!moment).then_some(length),
        cpu,
        figures,
        site: if kind == "end" { String::new() } else { sites.of(program, &r.sites) },
    }
}
