//! The results of a record.

use super::labels::LabelledAddress;
use super::recorder::{Access, AccessKind};
use crate::hooks::CpuId;
use crate::rank::Rank;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// Bytes of a cache line.
pub const LINE: usize = 64;

impl Access {
    /// The numbers of the lines that the access touches.
    pub fn lines(&self) -> std::ops::RangeInclusive<usize> {
        self.address / LINE..=(self.address + self.size.max(1) - 1) / LINE
    }
}

/// Accesses, in the order in which they happened.
#[derive(Clone, Default, Debug)]
pub struct Record {
    accesses: Vec<Access>,
}

/// A cache line that one CPU wrote and another CPU touched.
#[derive(Clone, Debug)]
pub struct Conflict {
    /// The line's first address.
    pub address: usize,
    /// The owner of its memory, from the first access that has an owner.
    pub place: Option<LabelledAddress>,
    /// CPUs that wrote it.
    pub writers: BTreeSet<CpuId>,
    /// CPUs that touched it, the writers included.
    pub cpus: BTreeSet<CpuId>,
    /// The accesses.
    pub accesses: Vec<Access>,
}

impl Conflict {
    /// The label of the object that the line belongs to, or an empty string if it has no owner.
    pub fn label(&self) -> &'static str {
        self.place.map_or("", |p| p.label)
    }
}

impl Record {
    pub(super) fn new(accesses: Vec<Access>) -> Self {
        Record { accesses }
    }

    /// All accesses.
    pub fn accesses(&self) -> &[Access] {
        &self.accesses
    }

    /// The accesses for which `keep` returns true.
    pub fn only(&self, keep: impl Fn(&Access) -> bool) -> Record {
        Record { accesses: self.accesses.iter().filter(|a| keep(a)).copied().collect() }
    }
    /// The accesses of one CPU.
    pub fn of(&self, cpu: CpuId) -> Record {
        self.only(|a| a.cpu == cpu)
    }

    /// How often a lock was taken.
    pub fn lock_takes(&self) -> usize {
        self.accesses.iter().filter(|a| matches!(a.kind, AccessKind::Take(_))).count()
    }
    /// How often a lock of each rank was taken (`None`: sleeping locks).
    pub fn lock_takes_by_rank(&self) -> BTreeMap<Option<Rank>, usize> {
        let mut takes = BTreeMap::new();
        for access in &self.accesses {
            if let AccessKind::Take(rank) = access.kind {
                *takes.entry(rank).or_default() += 1;
            }
        }
        takes
    }
    /// The longest time for which a CPU held a lock of `rank`, counted in that CPU's accesses to shared memory. 0 if no
    /// CPU took such a lock.
    pub fn longest_hold(&self, rank: Rank) -> usize {
        let mut longest = 0;
        // For each held lock and its CPU, the accesses since the lock was taken.
        let mut held: BTreeMap<(usize, CpuId), usize> = BTreeMap::new();
        for access in &self.accesses {
            let lock = (access.address, access.cpu);
            match access.kind {
                AccessKind::Take(Some(r)) if r == rank => drop(held.insert(lock, 0)),
                AccessKind::Release(Some(r)) if r == rank => longest = longest.max(held.remove(&lock).unwrap_or(0)),
                kind if kind.touches() => {
                    held.iter_mut().filter(|((_, cpu), _)| *cpu == access.cpu).for_each(|(_, n)| *n += 1);
                }
                _ => {}
            }
        }
        longest
    }
    /// The number of fences between accesses.
    pub fn fences(&self) -> usize {
        self.accesses.iter().filter(|a| a.kind == AccessKind::Fence).count()
    }

    /// How many different lines were touched.
    pub fn lines(&self) -> usize {
        self.distinct(|a| a.kind.touches())
    }
    /// How many different lines were written.
    pub fn lines_written(&self) -> usize {
        self.distinct(|a| a.kind.writes())
    }
    fn distinct(&self, keep: impl Fn(&Access) -> bool) -> usize {
        self.accesses.iter().filter(|a| keep(a)).flat_map(Access::lines).collect::<BTreeSet<_>>().len()
    }

    /// The cache lines that one CPU wrote and another CPU touched, by address.
    pub fn conflicts(&self) -> Vec<Conflict> {
        let mut lines: BTreeMap<usize, Vec<Access>> = BTreeMap::new();
        for access in self.accesses.iter().filter(|a| a.kind.touches()) {
            for line in access.lines() {
                lines.entry(line).or_default().push(*access);
            }
        }
        let conflict = |(line, accesses): (usize, Vec<Access>)| {
            let writers: BTreeSet<_> = accesses.iter().filter(|a| a.kind.writes()).map(|a| a.cpu).collect();
            let cpus: BTreeSet<_> = accesses.iter().map(|a| a.cpu).collect();
            let place = accesses.iter().find_map(|a| a.place);
            (!writers.is_empty() && cpus.len() > 1).then_some(Conflict {
                address: line * LINE,
                place,
                writers,
                cpus,
                accesses,
            })
        };
        lines.into_iter().filter_map(conflict).collect()
    }
}

/// Shortens the type names in a label to the last module and the name.
fn short(label: &str) -> String {
    let mut out = String::new();
    for part in label.split_inclusive(['<', '>', ',', ' ', '[', ';', '(', '&']) {
        let words: Vec<&str> = part.split("::").collect();
        out.push_str(&words[words.len().saturating_sub(2)..].join("::"));
    }
    out
}

impl fmt::Display for LabelledAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}+{} (at {:#x})", short(self.label), self.offset, self.object)
    }
}

impl fmt::Display for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CPU {} ", self.cpu)?;
        match self.kind {
            AccessKind::Read => write!(f, "reads {} at ", self.size)?,
            AccessKind::Write => write!(f, "writes {} at ", self.size)?,
            AccessKind::ReadModifyWrite => write!(f, "changes {} at ", self.size)?,
            AccessKind::Fence => write!(f, "fences")?,
            AccessKind::Take(Some(rank)) => write!(f, "takes {rank:?} at ")?,
            AccessKind::Take(None) => write!(f, "takes a sleeping lock at ")?,
            AccessKind::Release(Some(rank)) => write!(f, "releases {rank:?} at ")?,
            AccessKind::Release(None) => write!(f, "releases a sleeping lock at ")?,
        }
        match self.place {
            Some(place) => write!(f, "{place}")?,
            None if self.kind == AccessKind::Fence => {}
            None => write!(f, "{:#x}", self.address)?,
        }
        write!(f, ", {}:{}", self.site.file(), self.site.line())
    }
}

impl fmt::Display for Conflict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.place {
            Some(place) => writeln!(f, "line {:#x}, {place}:", self.address)?,
            None => writeln!(f, "line {:#x}:", self.address)?,
        }
        let said: BTreeSet<String> = self.accesses.iter().map(Access::to_string).collect();
        said.iter().try_for_each(|s| writeln!(f, "    {s}"))
    }
}

/// Prints each access on a line of its own.
impl fmt::Display for Record {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.accesses.iter().try_for_each(|a| writeln!(f, "{a}"))
    }
}
