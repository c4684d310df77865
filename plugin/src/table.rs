//! The cache lines that each CPU accessed, and the conflicts between two CPUs.

use std::collections::HashMap;

/// log2 of the bytes of a cache line.
const LINE: u32 = 6;

/// One access of a CPU.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Access {
    /// The address of the instruction.
    pub pc: u64,
    /// The virtual address of the access.
    pub at: u64,
}

/// One CPU's accesses to one line: the first access, and the first store.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Seen {
    first: Access,
    stored: Option<Access>,
}

/// The lines that one CPU accessed, by physical line number.
#[derive(Debug, Default)]
pub struct Table(HashMap<u64, Seen>);

/// A line that one CPU wrote and another CPU accessed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Conflict {
    /// The physical address of the line.
    pub line: u64,
    /// The CPU that wrote it, and its first store.
    pub writer: (usize, Access),
    /// Another CPU that accessed the line, with its first store, or with its first access if it did not store.
    pub toucher: (usize, Access),
    /// Whether the other CPU wrote the line too.
    pub both_wrote: bool,
}

impl Table {
    /// Records an access of `bytes` bytes at the physical address `physical`.
    pub fn note(&mut self, physical: u64, bytes: u64, access: Access, store: bool) {
        let last = (physical + bytes.max(1) - 1) >> LINE;
        for line in physical >> LINE..=last {
            let seen = self.0.entry(line).or_insert(Seen { first: access, stored: None });
            if store && seen.stored.is_none() {
                seen.stored = Some(access);
            }
        }
    }

    /// Clears the table.
    pub fn clear(&mut self) {
        self.0.clear();
    }
}

/// Returns the lines that one of the CPUs wrote and another accessed, each once, in order.
pub fn conflicts(tables: &[&Table]) -> Vec<Conflict> {
    let mut found = Vec::new();
    for (cpu, table) in tables.iter().enumerate() {
        for (line, seen) in &table.0 {
            let Some(store) = seen.stored else { continue };
            let others = tables.iter().enumerate().filter(|(other, _)| *other != cpu);
            let mut others = others.filter_map(|(other, table)| Some((other, *table.0.get(line)?)));
            let Some((other, theirs)) = others.next() else { continue };
            // If both wrote the line, it was found already for the lower CPU.
            if theirs.stored.is_some() && other < cpu {
                continue;
            }
            found.push(Conflict {
                line: line << LINE,
                writer: (cpu, store),
                toucher: (other, theirs.stored.unwrap_or(theirs.first)),
                both_wrote: theirs.stored.is_some(),
            });
        }
    }
    found.sort_unstable_by_key(|c| c.line);
    found.dedup_by_key(|c| c.line);
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn access(pc: u64) -> Access {
        Access { pc, at: pc + 0x1000 }
    }

    #[test]
    fn a_line_conflicts_where_one_wrote_and_another_touched() {
        let (mut a, mut b) = (Table::default(), Table::default());
        a.note(0x100, 8, access(1), false); // both only read
        b.note(0x108, 8, access(2), false);
        a.note(0x200, 8, access(3), false); // one reads, then writes, the other reads
        a.note(0x210, 4, access(4), true);
        b.note(0x23f, 1, access(5), false);
        a.note(0x300, 8, access(6), true); // one alone
        b.note(0x400, 8, access(7), true); // written by the second only
        a.note(0x400, 8, access(8), false);
        let found = conflicts(&[&a, &b]);
        assert_eq!(
            found,
            [
                Conflict { line: 0x200, writer: (0, access(4)), toucher: (1, access(5)), both_wrote: false },
                Conflict { line: 0x400, writer: (1, access(7)), toucher: (0, access(8)), both_wrote: false },
            ]
        );
    }

    #[test]
    fn an_access_conflicts_on_each_line_that_it_spans() {
        let (mut a, mut b) = (Table::default(), Table::default());
        a.note(0x1000, 8, access(1), true);
        b.note(0x1040, 8, access(2), true);
        assert!(conflicts(&[&a, &b]).is_empty());
        a.note(0x103c, 8, access(3), false);
        assert_eq!(conflicts(&[&a, &b]).len(), 1);
    }

    #[test]
    fn a_line_with_two_writers_is_found_once_until_cleared() {
        let (mut a, mut b) = (Table::default(), Table::default());
        a.note(0x80, 8, access(1), true);
        b.note(0x80, 8, access(2), true);
        let found = conflicts(&[&a, &b]);
        assert_eq!(found.len(), 1);
        assert!(found[0].both_wrote && found[0].writer.0 == 0);
        a.clear();
        assert!(conflicts(&[&a, &b]).is_empty());
    }
}
