//! Writes the file for viewers: the JSON of Chrome's tracing (*Trace Event Format*, 2016), which Perfetto's viewer
//! opens. Times are in microseconds. A complete event (`X`) has a duration, and an instant event (`i`) has none.
//! Metadata events (`M`) give names to tracks.

use std::io::{self, Write};

use serde::Serialize;
use serde_json::{Map, Value, json};

use super::timeline::{Item, Timeline, Track};

/// The process ids for the tracks of CPUs (`CPUS`) and of the kernel's own threads (`KERNEL`). No process of a guest
/// has such an id.
const CPUS: u32 = 1_000_000_000;
const KERNEL: u32 = 1_100_000_000;

#[derive(Serialize)]
struct Event<'e> {
    name: &'e str,
    ph: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    cat: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    ts: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    dur: Option<f64>,
    /// The scope of an instant event, which is its thread. `None` for other events.
    #[serde(skip_serializing_if = "Option::is_none")]
    s: Option<&'static str>,
    pid: u32,
    tid: u32,
    args: Value,
}

/// The process id and the thread id of a track.
fn place(timeline: &Timeline, track: Track) -> (u32, u32) {
    match track {
        Track::Cpu(cpu) => (CPUS, CPUS + 1 + cpu as u32),
        Track::Thread(id) => match timeline.threads.get(&id).map_or(0, |t| t.process) {
            0 => (KERNEL, KERNEL + 1 + (id & 0xffff)),
            process => (process, id),
        },
    }
}

fn metadata<'e>(what: &'e str, (pid, tid): (u32, u32), key: &str, value: Value) -> Event<'e> {
    let args = Value::Object(Map::from_iter([(key.to_owned(), value)]));
    Event { name: what, ph: "M", cat: None, ts: None, dur: None, s: None, pid, tid, args }
}

/// Writes the whole file.
pub fn write(timeline: &Timeline, title: &str, to: &mut impl Write) -> io::Result<()> {
    write!(to, "{{\"displayTimeUnit\":\"ns\",\"otherData\":")?;
    serde_json::to_writer(&mut *to, &json!({ "program": title, "lost": timeline.lost }))?;
    write!(to, ",\"traceEvents\":[")?;
    let mut first = true;
    let mut put = |event: &Event<'_>| -> io::Result<()> {
        to.write_all(if first { "\n" } else { ",\n" }.as_bytes())?;
        first = false;
        serde_json::to_writer(&mut *to, event).map_err(io::Error::from)
    };
    put(&metadata("process_name", (CPUS, CPUS), "name", "CPUs".into()))?;
    put(&metadata("process_sort_index", (CPUS, CPUS), "sort_index", (-2).into()))?;
    for cpu in 0..timeline.cpus {
        let at = place(timeline, Track::Cpu(cpu));
        put(&metadata("thread_name", at, "name", format!("CPU {cpu}").into()))?;
        put(&metadata("thread_sort_index", at, "sort_index", cpu.into()))?;
    }
    put(&metadata("process_name", (KERNEL, KERNEL), "name", "kernel".into()))?;
    put(&metadata("process_sort_index", (KERNEL, KERNEL), "sort_index", (-1).into()))?;
    for (id, thread) in timeline.threads.iter().filter(|(_, t)| !t.idle) {
        let at = place(timeline, Track::Thread(*id));
        put(&metadata("thread_name", at, "name", thread.name.as_str().into()))?;
        if *id == thread.process {
            put(&metadata("process_name", at, "name", thread.name.as_str().into()))?;
        }
    }
    for item in &timeline.items {
        put(&event(timeline, item))?;
    }
    writeln!(to, "\n]}}")
}

fn event<'e>(timeline: &Timeline, item: &'e Item) -> Event<'e> {
    let (pid, tid) = place(timeline, item.track);
    let us = |ns: u64| ns as f64 / 1000.0;
    let mut args: Map<String, Value> =
        item.figures.iter().map(|(key, value)| ((*key).to_owned(), Value::from(value.as_str()))).collect();
    if !item.site.is_empty() {
        args.insert("site".into(), item.site.as_str().into());
    }
    if let Track::Thread(_) = item.track {
        args.insert("cpu".into(), item.cpu.into());
    }
    Event {
        name: &item.name,
        ph: if item.length.is_some() { "X" } else { "i" },
        cat: Some(item.sort.name()),
        ts: Some(us(item.start)),
        dur: item.length.map(us),
        s: item.length.is_none().then_some("t"),
        pid,
        tid,
        args: Value::Object(args),
    }
}
