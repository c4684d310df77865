//! The watched program: runs a few cases, each with few rounds, and prints its record of the accesses.

use super::super::measure::Play;
use super::super::model::State;
use super::super::operation::named;
use super::super::sim::{Tasks, alone, given};
use super::super::world::CPUS;
use crate::Failure;
use quire_sync::record::{Mark, as_cpu, marks, owned, scope};
use std::cell::Cell;
use std::io::Write as _;

/// The number of frames of a machine. It is small, because boot touches each frame, and lackey traces each access.
const FRAMES: u64 = 1024;
/// The number of rounds before the first counted round. In these rounds, the core makes all structures that it makes
/// only once.
const WARM: u32 = 3;
/// The number of counted rounds.
const ROUNDS: u32 = 1;

/// The cases: the operation that both CPUs do, and the relation of their processes. The cases use each part of the core
/// and of the scheduler. Their preparations are short, because lackey traces only about two million instructions in a
/// second.
const CASES: &[(&str, State)] = &[
    ("zero-fill", State::Threads),
    ("zero-fill", State::Anonymous),
    ("munmap", State::Threads),
    ("mprotect", State::Threads),
    ("fork", State::Parent),
    ("exec", State::Apart),
    ("exit", State::Parent),
    ("reclaim", State::Apart),
    ("futex-wake", State::Apart),
    ("thread-new", State::Threads),
    ("timer-fire", State::Apart),
    ("pid-alloc", State::Apart),
    ("wake-there", State::Apart),
];

/// Further cases for long runs (`$QUIRE_SOAK`).
const MORE: &[(&str, State)] = &[
    ("read-fault", State::File),
    ("mmap", State::Threads),
    ("page-alloc", State::Apart),
    ("futex-wait", State::Apart),
    ("timer-arm", State::Apart),
    ("wake-here", State::Apart),
];

// Symbols that the linker defines: the start of the program, the start of its writable data, and its end.
unsafe extern "C" {
    static __executable_start: u8;
    static __data_start: u8;
    static _end: u8;
}

/// Memory that both CPUs write without a record.
#[repr(align(128))]
struct Plain(Cell<u64>);

/// The command `quire-lab watched`. It prints the address of its marks, waits for an input line, runs all cases, and
/// prints the record. With `plain`, both CPUs also count in a word that is not recorded.
pub fn program(plain: bool) -> Result<(), Failure> {
    let tool = |e: std::io::Error| Failure::Tool(format!("the watching process has ended: {e}"));
    let mut out = std::io::stdout().lock();
    writeln!(out, "marks {:x}", marks()).and_then(|()| out.flush()).map_err(tool)?;
    std::io::stdin().read_line(&mut String::new()).map_err(tool)?;
    let counter = plain.then(|| alone(Plain(Cell::new(0)), "plain"));
    let mut told: Vec<String> = Vec::new();
    // With `plain`, one case is enough for the unrecorded word.
    let more = if std::env::var_os("QUIRE_SOAK").is_some() { MORE } else { &[] };
    for (name, state) in CASES.iter().chain(more).take(if plain { 1 } else { usize::MAX }) {
        let Some(operation) = named(name) else {
            return Err(Failure::Tool(format!("no operation has the name {name}")));
        };
        let tasks = Tasks::boot(CPUS);
        let play = Play { operations: [operation; 2], state: *state, frames: FRAMES, warm: WARM, rounds: ROUNDS };
        let mut memory = (std::ptr::null(), 0);
        play.run(tasks, &mut |world, both| {
            memory = world.vm.machine().memory();
            let (done, record) = scope(|| {
                Mark::Begin.say();
                let done = both();
                if let Some(Plain(count)) = counter {
                    (0..2).for_each(|cpu| as_cpu(cpu, || count.set(count.get() + 1)));
                }
                Mark::End.say();
                done
            });
            told.push(format!("round {name} by both, {}", state.name()));
            told.extend(record.conflicts().iter().map(|c| format!("shared {:x}", c.address)));
            done
        })?;
        told.push(format!("memory {:x} {:x}", memory.0.addr(), memory.1));
    }
    let (image, data, end) = (&raw const __executable_start, &raw const __data_start, &raw const _end);
    told.push(format!("image {:x}", image.addr()));
    // The judged memory includes the statics, except the marks.
    let after = marks() + Mark::BYTES;
    told.push(format!("memory {:x} {:x}", data.addr(), marks() - data.addr()));
    told.push(format!("memory {after:x} {:x}", end.addr() - after));
    told.extend(given().iter().map(|r| format!("memory {:x} {:x}", r.start, r.len())));
    told.extend(owned().iter().map(|r| {
        let (start, bytes) = (r.range.start, r.range.len());
        format!("owner {start:x} {bytes:x} {:x} {}", r.stride, r.label)
    }));
    told.push("end".to_owned());
    told.iter().try_for_each(|line| writeln!(out, "{line}")).map_err(tool)
}
