//! The memory near each CPU: the SRAT (ACPI 6.4, 5.2.16).
//!
//! The firmware's numbers of proximity domains are arbitrary. This module numbers domains from 0, in the order in which
//! the table first lists their memory. A CPU of a domain without memory belongs to domain 0.

use super::{AcpiError, Physical, each_entry, listed, u32_at, u64_at};

/// The most domains with memory. Memory and CPUs of further domains belong to domain 0.
pub const MAX_DOMAINS: usize = 64;
/// The most ranges of memory that are kept.
const MAX_RANGES: usize = 128;

/// A range of physical bytes, `start..end`, and its domain.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Near {
    start: u64,
    end: u64,
    domain: u8,
}

/// The machine's memory domains.
#[derive(Clone, Debug)]
pub struct Affinity {
    /// The firmware's number of each domain.
    names: [u32; MAX_DOMAINS],
    domains: usize,
    /// The ranges of memory, ascending and disjoint.
    ranges: [Near; MAX_RANGES],
    ranges_len: usize,
    cpus: [(u32, u8); super::MAX_CPUS],
    cpus_len: usize,
}

impl Affinity {
    /// One domain with all memory and all CPUs.
    pub const fn flat() -> Affinity {
        Affinity {
            names: [0; MAX_DOMAINS],
            domains: 1,
            ranges: [Near { start: 0, end: 0, domain: 0 }; MAX_RANGES],
            ranges_len: 0,
            cpus: [(0, 0); super::MAX_CPUS],
            cpus_len: 0,
        }
    }

    /// The number of domains, at least one.
    pub fn domains(&self) -> usize {
        self.domains
    }

    /// Returns the domain of physical address `at`, and an address above `at` up to which all memory is of that domain.
    pub fn of_address(&self, at: u64) -> (usize, u64) {
        let ranges = &self.ranges[..self.ranges_len];
        let next = ranges.partition_point(|r| r.end <= at);
        match ranges.get(next) {
            Some(r) if r.start <= at => (r.domain.into(), r.end),
            Some(r) => (0, r.start),
            None => (0, u64::MAX),
        }
    }

    /// The domain of the CPU with local APIC identifier `apic`; 0 if the table does not list it.
    pub fn of_cpu(&self, apic: u32) -> usize {
        self.cpus[..self.cpus_len].iter().find(|(id, _)| *id == apic).map_or(0, |(_, domain)| (*domain).into())
    }

    fn find(&self, name: u32) -> Option<usize> {
        self.names[..self.domains].iter().position(|n| *n == name)
    }

    /// Returns the number of a domain that has memory, and adds the domain if it is new. 0 if there are too many
    /// domains.
    fn number(&mut self, name: u32) -> u8 {
        if let Some(known) = self.find(name) {
            return known as u8;
        }
        match self.names.get_mut(self.domains) {
            Some(slot) => {
                *slot = name;
                self.domains += 1;
                self.domains as u8 - 1
            }
            None => 0,
        }
    }

    /// Keeps a range, unless it overlaps a kept range or the list is full. Memory in no kept range belongs to domain 0.
    fn add(&mut self, new: Near) {
        let at = self.ranges[..self.ranges_len].partition_point(|r| r.end <= new.start);
        let overlaps = self.ranges[at..self.ranges_len].first().is_some_and(|r| r.start < new.end);
        if new.start >= new.end || overlaps || self.ranges_len == MAX_RANGES {
            return;
        }
        self.ranges.copy_within(at..self.ranges_len, at + 1);
        self.ranges[at] = new;
        self.ranges_len += 1;
    }
}

/// Reads the machine's domains, or returns a single domain if the firmware describes none. `root_hint` is as for
/// [`topology`](super::topology).
pub fn affinity(memory: &impl Physical, root_hint: u64) -> Result<Affinity, AcpiError> {
    match listed(memory, root_hint, b"SRAT")? {
        Some(table) => srat(table),
        None => Ok(Affinity::flat()),
    }
}

const ENABLED: u32 = 1;
/// The offset of the table's entries.
const FIRST: usize = 48;

fn srat(table: &[u8]) -> Result<Affinity, AcpiError> {
    let mut found = Affinity { domains: 0, ..Affinity::flat() };
    each_entry(table, FIRST, |kind, e| {
        if kind == 1 && u32_at(e, 28)? & ENABLED != 0 {
            let (start, len) = (u64_at(e, 8)?, u64_at(e, 16)?);
            if len != 0 {
                let domain = found.number(u32_at(e, 2)?);
                found.add(Near { start, end: start.saturating_add(len), domain });
            }
        }
        Some(())
    })?;
    if found.domains <= 1 {
        return Ok(Affinity::flat());
    }
    each_entry(table, FIRST, |kind, e| {
        let (name, apic, flags) = match kind {
            0 => {
                let high = [0, *e.get(9)?, *e.get(10)?, *e.get(11)?];
                (u32::from(*e.get(2)?) | u32::from_le_bytes(high), u32::from(*e.get(3)?), u32_at(e, 4)?)
            }
            2 => (u32_at(e, 4)?, u32_at(e, 8)?, u32_at(e, 12)?),
            _ => return Some(()),
        };
        let domain = found.find(name).unwrap_or(0) as u8;
        if flags & ENABLED != 0
            && let Some(slot) = found.cpus.get_mut(found.cpus_len)
        {
            *slot = (apic, domain);
            found.cpus_len += 1;
        }
        Some(())
    })?;
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn memory(domain: u32, start: u64, len: u64, enabled: bool) -> Vec<u8> {
        let mut e = vec![1, 40];
        e.extend_from_slice(&domain.to_le_bytes());
        e.extend_from_slice(&[0; 2]);
        e.extend_from_slice(&start.to_le_bytes());
        e.extend_from_slice(&len.to_le_bytes());
        e.extend_from_slice(&[0; 4]);
        e.extend_from_slice(&u32::from(enabled).to_le_bytes());
        e.extend_from_slice(&[0; 8]);
        e
    }
    fn cpu(domain: u8, apic: u8) -> Vec<u8> {
        vec![0, 16, domain, apic, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]
    }
    fn x2apic(domain: u32, apic: u32) -> Vec<u8> {
        let mut e = vec![2, 24, 0, 0];
        for word in [domain, apic, 1, 0, 0] {
            e.extend_from_slice(&word.to_le_bytes());
        }
        e
    }
    fn table(entries: &[Vec<u8>]) -> Vec<u8> {
        [vec![0; 48], entries.concat()].concat()
    }

    #[test]
    fn memory_and_cpus_belong_to_the_domains_that_the_table_names() {
        const G: u64 = 1 << 30;
        let t = table(&[
            cpu(7, 0),
            x2apic(9, 300),
            memory(9, 4 * G, 2 * G, true),
            memory(7, 0, 2 * G, true),
            memory(7, 6 * G, G, true),
            memory(5, 8 * G, G, false),
        ]);
        let a = srat(&t).unwrap();
        assert_eq!(a.domains(), 2);
        assert_eq!([a.of_cpu(300), a.of_cpu(0), a.of_cpu(77)], [0, 1, 0]);
        assert_eq!(a.of_address(0), (1, 2 * G));
        assert_eq!(a.of_address(3 * G), (0, 4 * G), "between them");
        assert_eq!(a.of_address(5 * G), (0, 6 * G));
        assert_eq!(a.of_address(6 * G), (1, 7 * G));
        assert_eq!(a.of_address(8 * G), (0, u64::MAX), "memory that is not there");
    }

    #[test]
    fn overlaps_and_broken_entries_break_nothing() {
        let t = table(&[memory(1, 0, 100, true), memory(2, 50, 100, true), memory(2, u64::MAX - 5, 100, true)]);
        let a = srat(&t).unwrap();
        assert_eq!(a.of_address(60), (0, 100));
        assert_eq!(a.of_address(u64::MAX - 3), (1, u64::MAX));
        assert!(matches!(srat(&table(&[vec![1, 10, 0, 0, 0, 0, 0, 0, 0, 0]])), Err(AcpiError::BadTable)));
        assert!(matches!(srat(&table(&[vec![1, 1]])), Err(AcpiError::BadTable)));
        assert!(matches!(srat(&[0; 40]), Err(AcpiError::BadTable)));
        let one = srat(&table(&[memory(3, 0, 100, true), cpu(3, 1)])).unwrap();
        assert_eq!((one.domains(), one.of_address(7)), (1, (0, u64::MAX)));
    }

    #[test]
    fn more_domains_than_fit_count_to_the_first() {
        let many = (0..MAX_DOMAINS as u32 + 3).map(|n| memory(n, u64::from(n) * 100, 100, true)).collect::<Vec<_>>();
        let a = srat(&table(&many)).unwrap();
        assert_eq!(a.domains(), MAX_DOMAINS);
        assert_eq!(a.of_address(100 * MAX_DOMAINS as u64).0, 0);
    }

    proptest! {
        #[test]
        fn hostile_tables_give_ranges_that_move_on(
            bytes in proptest::collection::vec(any::<u8>(), 0..400),
            starts in proptest::collection::vec((any::<u64>(), any::<u64>(), 0u32..80), 0..140),
        ) {
            let _any = srat(&bytes);
            let entries = starts.iter().map(|(s, l, d)| memory(*d, *s >> 20, *l >> 30, true)).collect::<Vec<_>>();
            let a = srat(&table(&entries)).unwrap();
            for (at, ..) in starts {
                let (domain, end) = a.of_address(at);
                prop_assert!(domain < a.domains() && (end > at || end == u64::MAX));
            }
        }
    }
}
