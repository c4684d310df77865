//! A simple model of cache coherence: each line has an owner or sharers, caches are unlimited, and messages are
//! counted.

use super::recorder::Access;
use super::report::Record;
use crate::hooks::CpuId;
use std::collections::{BTreeMap, BTreeSet, HashMap};

#[derive(Default)]
struct Line {
    holders: BTreeSet<CpuId>,
    /// Whether its only holder has changed it.
    modified: bool,
}

/// Lines that moved between CPUs.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Traffic {
    /// The number of times that a CPU needed a line that another CPU held. It got the line from that CPU, or from
    /// memory if the line was unchanged.
    pub transfers: u64,
    /// The number of times that a CPU already held a line, and invalidated it in other CPUs to write it.
    pub upgrades: u64,
    /// The number of lines that no CPU held before, so that they came from memory.
    pub cold: u64,
}

impl Traffic {
    /// The number of times that a CPU waited for other CPUs.
    pub fn shared(&self) -> u64 {
        self.transfers + self.upgrades
    }
}

/// The state of all lines. Run the record of a few operations first to fill the caches, then measure the next
/// operations.
#[derive(Default)]
pub struct Coherence {
    lines: HashMap<usize, Line>,
}

impl Coherence {
    /// A state in which no CPU holds any line.
    pub fn new() -> Self {
        Self::default()
    }

    /// Continues with the accesses of `record`, and returns their traffic.
    pub fn run(&mut self, record: &Record) -> Traffic {
        self.run_by(record, |_| ()).remove(&()).unwrap_or_default()
    }

    /// As [`run`](Self::run), grouped by the `key` of each access, such as its label or its site.
    pub fn run_by<K: Ord>(&mut self, record: &Record, key: impl Fn(&Access) -> K) -> BTreeMap<K, Traffic> {
        let mut traffic = BTreeMap::new();
        for access in record.accesses().iter().filter(|a| a.kind.touches()) {
            for line in access.lines() {
                let moved = self.touch(line, access);
                let sum: &mut Traffic = traffic.entry(key(access)).or_default();
                sum.transfers += moved.transfers;
                sum.upgrades += moved.upgrades;
                sum.cold += moved.cold;
            }
        }
        traffic
    }

    /// Continues with `operation`, one operation of one CPU. Returns the number of lines that it wrote and that another
    /// CPU held before: the *shared lines written*. Each line counts once, however often it is touched.
    pub fn shared_lines_written(&mut self, operation: &Record) -> usize {
        let written: BTreeMap<usize, CpuId> = operation
            .accesses()
            .iter()
            .filter(|a| a.kind.writes())
            .flat_map(|a| a.lines().map(|l| (l, a.cpu)))
            .collect();
        let others = |(l, cpu): (&usize, &CpuId)| self.lines.get(l).is_some_and(|l| l.holders.iter().any(|c| c != cpu));
        let shared = written.iter().filter(|w| others(*w)).count();
        self.run(operation);
        shared
    }

    fn touch(&mut self, line: usize, access: &Access) -> Traffic {
        let mut traffic = Traffic::default();
        let line = self.lines.entry(line).or_default();
        let (mine, others) = (line.holders.contains(&access.cpu), line.holders.iter().any(|c| *c != access.cpu));
        if !mine {
            if others { traffic.transfers += 1 } else { traffic.cold += 1 }
        } else if others && access.kind.writes() {
            traffic.upgrades += 1;
        }
        if access.kind.writes() {
            line.holders.clear();
            line.modified = true;
        } else if !mine {
            line.modified = false;
        }
        line.holders.insert(access.cpu);
        traffic
    }

    /// The number of lines that only their last writer holds.
    pub fn modified(&self) -> usize {
        self.lines.values().filter(|l| l.modified).count()
    }
}
