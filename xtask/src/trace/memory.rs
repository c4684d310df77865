//! Reads the records that a traced kernel leaves in its memory. `crates/kernel/src/report/trace/on.rs` describes their
//! layout. The machine may have stopped at any instruction, and another version may have written the records. So each
//! value is checked, and a wrong value is an error.

use std::collections::BTreeMap;

use crate::failure::{Failure, Result};

const MAGIC: &[u8; 8] = b"QUIRETRC";
const VERSION: u32 = 1;
const CPUS_AT: usize = 4096;
/// The number of bytes from the counts of one CPU to those of the next.
const CPU_BYTES: usize = 128;
const MOST_CPUS: usize = (TEXT_AT - CPUS_AT) / CPU_BYTES;
const TEXT_AT: usize = 16 << 10;
const RECORDS_AT: usize = 64 << 10;
const RECORD_BYTES: usize = 88;
/// The number of return addresses in a record.
pub const SITES: usize = 5;

/// All events of a trace, and the names for their numbers.
#[derive(Debug, PartialEq)]
pub struct Recorded {
    /// The clock's ticks in a second.
    pub hz: u64,
    /// The time when the first program began, in ticks.
    pub start: u64,
    /// The events of each CPU, by its number.
    pub cpus: Vec<Cpu>,
    /// The names that the numbers in records stand for.
    pub names: Names,
}

/// The events of one CPU.
#[derive(Debug, PartialEq)]
pub struct Cpu {
    /// The events, in the order in which they ended.
    pub records: Vec<Record>,
    /// The number of events for which the memory had no room.
    pub lost: u64,
}

/// One event.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Record {
    /// The time when the event began, in ticks.
    pub start: u64,
    /// The event's duration in ticks.
    pub length: u64,
    /// The event's kind, as a key of [`Names::kinds`].
    pub kind: u32,
    pub detail: u32,
    /// The thread's number; 0 for none.
    pub thread: u32,
    pub a: u64,
    pub b: u64,
    /// Return addresses, innermost first. Unused elements are 0.
    pub sites: [u64; SITES],
}

/// The names that the numbers in records stand for.
#[derive(Debug, Default, PartialEq)]
pub struct Names {
    pub kinds: BTreeMap<u32, String>,
    /// Names of the outcomes of faults.
    pub outcomes: BTreeMap<u32, String>,
    /// Names of system calls.
    pub calls: BTreeMap<u32, String>,
}

fn bad(what: impl std::fmt::Display) -> Failure {
    Failure::machine(format_args!("the trace cannot be read: {what}"))
}

/// Reads a little-endian number at `at`. Returns an error if it does not lie within the bytes.
fn u64_at(bytes: &[u8], at: usize) -> Result<u64> {
    let word = at.checked_add(8).and_then(|end| bytes.get(at..end)).ok_or_else(|| bad("it is cut short"))?;
    Ok(u64::from_le_bytes(word.try_into().unwrap_or_default()))
}

fn u32_at(bytes: &[u8], at: usize) -> Result<u32> {
    let word = at.checked_add(4).and_then(|end| bytes.get(at..end)).ok_or_else(|| bad("it is cut short"))?;
    Ok(u32::from_le_bytes(word.try_into().unwrap_or_default()))
}

impl Recorded {
    /// Reads all records from the kernel's memory.
    pub fn read(bytes: &[u8]) -> Result<Self> {
        if bytes.get(..MAGIC.len()) != Some(&MAGIC[..]) {
            return Err(bad("no program has begun"));
        }
        let (version, cpus) = (u32_at(bytes, 8)?, u32_at(bytes, 12)? as usize);
        let (hz, start, room, text) = (u64_at(bytes, 16)?, u64_at(bytes, 24)?, u64_at(bytes, 32)?, u64_at(bytes, 40)?);
        if version != VERSION {
            return Err(bad(format_args!(
                "the kernel writes traces of version {version}; this command reads version {VERSION}"
            )));
        }
        if cpus == 0 || cpus > MOST_CPUS || hz == 0 {
            return Err(bad(format_args!("{cpus} CPUs, {hz} ticks a second")));
        }
        let text = usize::try_from(text).ok().filter(|n| *n <= RECORDS_AT - TEXT_AT);
        let text = text.and_then(|n| bytes.get(TEXT_AT..TEXT_AT + n)).ok_or_else(|| bad("its text is cut short"))?;
        let names = Names::read(std::str::from_utf8(text).map_err(bad)?)?;
        let all = bytes.get(RECORDS_AT..).unwrap_or_default().len() / RECORD_BYTES;
        let room = usize::try_from(room).ok().filter(|n| n.checked_mul(cpus).is_some_and(|n| n <= all));
        let room = room.ok_or_else(|| bad("it is cut short"))?;
        let part = |cpu: usize| -> Result<Cpu> {
            let (kept, lost) =
                (u64_at(bytes, CPUS_AT + cpu * CPU_BYTES)?, u64_at(bytes, CPUS_AT + cpu * CPU_BYTES + 8)?);
            let kept = usize::try_from(kept).ok().filter(|n| *n <= room);
            let kept = kept.ok_or_else(|| bad(format_args!("CPU {cpu} has more events than its buffer holds")))?;
            let at = |n: usize| RECORDS_AT + (cpu * room + n) * RECORD_BYTES;
            let records = (0..kept).map(|n| Record::read(&bytes[at(n)..at(n + 1)], &names));
            Ok(Cpu { records: records.collect::<Result<_>>()?, lost })
        };
        let cpus = (0..cpus).map(part).collect::<Result<_>>()?;
        Ok(Recorded { hz, start, cpus, names })
    }

    /// The number of events without room, on all CPUs together.
    pub fn lost(&self) -> u64 {
        self.cpus.iter().map(|cpu| cpu.lost).fold(0, u64::saturating_add)
    }
}

impl Record {
    fn read(bytes: &[u8], names: &Names) -> Result<Self> {
        let mut sites = [0; SITES];
        for (n, site) in sites.iter_mut().enumerate() {
            *site = u64_at(bytes, 48 + 8 * n)?;
        }
        let record = Record {
            start: u64_at(bytes, 0)?,
            length: u64_at(bytes, 8)?,
            kind: u32_at(bytes, 16)?,
            detail: u32_at(bytes, 20)?,
            thread: u32_at(bytes, 24)?,
            a: u64_at(bytes, 32)?,
            b: u64_at(bytes, 40)?,
            sites,
        };
        if !names.kinds.contains_key(&record.kind) {
            return Err(bad(format_args!("an event of kind {}, which has no name", record.kind)));
        }
        if record.start.checked_add(record.length).is_none() {
            return Err(bad("an event that ends before it begins"));
        }
        Ok(record)
    }
}

impl Names {
    fn read(text: &str) -> Result<Self> {
        let mut names = Names::default();
        for line in text.lines() {
            let unknown = || bad(format_args!("{line:?} names nothing"));
            let mut words = line.splitn(3, ' ');
            let (what, number, name) = (words.next(), words.next(), words.next());
            let number = number.and_then(|n| n.parse::<u32>().ok()).ok_or_else(unknown)?;
            let name = name.filter(|name| !name.is_empty()).ok_or_else(unknown)?.to_owned();
            let place = match what {
                Some("kind") => &mut names.kinds,
                Some("outcome") => &mut names.outcomes,
                Some("call") => &mut names.calls,
                _ => return Err(unknown()),
            };
            if place.insert(number, name).is_some() {
                return Err(bad(format_args!("{line:?} gives a second name")));
            }
        }
        Ok(names)
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;

    /// Encodes records in the kernel's layout.
    pub fn laid_out(text: &str, room: usize, cpus: &[(&[Record], u64)]) -> Vec<u8> {
        let mut bytes = vec![0; RECORDS_AT + cpus.len() * room * RECORD_BYTES];
        let mut put = |at: usize, word: &[u8]| bytes[at..at + word.len()].copy_from_slice(word);
        put(0, MAGIC);
        put(8, &VERSION.to_le_bytes());
        put(12, &(cpus.len() as u32).to_le_bytes());
        for (at, word) in [(16, 1_000_000_000), (24, 1000), (32, room as u64), (40, text.len() as u64)] {
            put(at, &u64::to_le_bytes(word));
        }
        put(TEXT_AT, text.as_bytes());
        for (cpu, (records, lost)) in cpus.iter().enumerate() {
            put(CPUS_AT + cpu * CPU_BYTES, &(records.len() as u64).to_le_bytes());
            put(CPUS_AT + cpu * CPU_BYTES + 8, &lost.to_le_bytes());
            for (n, r) in records.iter().enumerate() {
                let at = RECORDS_AT + (cpu * room + n) * RECORD_BYTES;
                let head = u64::from(r.kind) | u64::from(r.detail) << 32;
                let words = [r.start, r.length, head, r.thread.into(), r.a, r.b].into_iter().chain(r.sites);
                words.enumerate().for_each(|(i, word)| put(at + 8 * i, &word.to_le_bytes()));
            }
        }
        bytes
    }

    pub fn record(start: u64, length: u64, kind: u32, detail: u32, thread: u32, a: u64) -> Record {
        Record { start, length, kind, detail, thread, a, b: 7, sites: [1, 2, 3, 4, 5] }
    }

    const TEXT: &str = "kind 0 switch\nkind 4 fault\noutcome 2 zero-fill\ncall 9 mmap\n";

    #[test]
    fn a_trace_buffer_reads_back_as_it_was_laid_out() {
        let (first, second) = (record(1000, 5, 4, 2, 1, 0xff), record(2000, 0, 0, 0, 2, 3));
        let read = Recorded::read(&laid_out(TEXT, 2, &[(&[first, second], 0), (&[], 11)])).unwrap();
        assert_eq!(read.cpus[0], Cpu { records: vec![first, second], lost: 0 });
        assert_eq!(read.cpus[1], Cpu { records: vec![], lost: 11 });
        assert_eq!((read.hz, read.start, read.lost()), (1_000_000_000, 1000, 11));
        assert_eq!(read.names.outcomes[&2], "zero-fill");
    }

    #[test]
    fn torn_or_unknown_records_are_refused() {
        let good = laid_out(TEXT, 2, &[(&[record(1000, 5, 4, 2, 1, 0)], 0)]);
        assert!(Recorded::read(&good).is_ok());
        let with = |at: usize, byte: u8| {
            let mut bytes = good.clone();
            bytes[at] = byte;
            Recorded::read(&bytes).map_err(|e| e.message)
        };
        let refuses = |result: Result<_, String>, word: &str| {
            let message = result.unwrap_err();
            assert!(message.contains(word), "{message}");
        };
        refuses(with(0, 0), "no program has begun");
        refuses(with(8, 9), "version 9");
        refuses(with(12, 0), "0 CPUs");
        refuses(with(39, 1), "cut short");
        refuses(with(47, 1), "text");
        refuses(with(CPUS_AT, 3), "more events than its buffer holds");
        refuses(with(RECORDS_AT + 16, 3), "kind 3");
        refuses(Recorded::read(&good[..RECORDS_AT + 100]).map_err(|e| e.message), "cut short");
        refuses(Recorded::read(&[]).map_err(|e| e.message), "no program");
        for text in ["kind x name\n", "kind 1\n", "noise\n", "kind 0 a\nkind 0 b\n", "colour 1 red\n"] {
            assert!(Names::read(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn an_event_that_ends_beyond_all_time_is_refused() {
        let late = record(u64::MAX, 1, 4, 2, 1, 0);
        assert!(Recorded::read(&laid_out(TEXT, 1, &[(&[late], 0)])).unwrap_err().message.contains("before it begins"));
    }

    proptest::proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(
            changes in proptest::collection::vec((0usize..RECORDS_AT + 400, proptest::prelude::any::<u8>()), 0..20),
            len in 0usize..RECORDS_AT + 400,
        ) {
            let mut bytes = laid_out(TEXT, 2, &[(&[record(1000, 5, 4, 2, 1, 0)], 0), (&[], 0)]);
            for (at, byte) in changes {
                // Half of the changes are at the start, where the kernel has written.
                let at = if at % 2 == 0 { at % 64 } else { at };
                if let Some(there) = bytes.get_mut(at) {
                    *there = byte;
                }
            }
            bytes.truncate(len.max(RECORDS_AT - 1000));
            let _any = Recorded::read(&bytes);
        }
    }
}
