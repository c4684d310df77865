//! A map on an ordered tree of a library: the standard library's B-tree. The tree keeps no gaps, so the search for
//! space walks along the entries.

use super::by_entry::{Entries, in_hole};
use super::{MapRange, PAGE};
use std::collections::BTreeMap;

/// The data of an entry outside the tree, as in a kernel. It is as large as the other maps' entries.
#[repr(align(64))]
#[derive(Clone, Copy, Default)]
struct Record {
    prot: u32,
}

/// A `BTreeMap` from the start of an entry to its end and its record.
#[derive(Default)]
pub struct Ordered {
    entries: BTreeMap<u64, (u64, u32)>,
    records: Vec<Record>,
    free: Vec<u32>,
}

impl Ordered {
    /// An empty map with room for the records of `entries` entries.
    pub fn with_capacity(entries: usize) -> Self {
        Ordered { entries: BTreeMap::new(), records: Vec::with_capacity(entries), free: Vec::with_capacity(entries) }
    }

    fn record(&mut self, prot: u32) -> u32 {
        match self.free.pop() {
            Some(i) => {
                self.records[i as usize].prot = prot;
                i
            }
            None => {
                self.records.push(Record { prot });
                self.records.len() as u32 - 1
            }
        }
    }

    fn held(&self, start: u64, end: u64, record: u32) -> MapRange {
        MapRange { start, end, prot: self.records[record as usize].prot }
    }
}

impl Entries for Ordered {
    fn around(&mut self, at: u64) -> (Option<MapRange>, Option<MapRange>) {
        let before = self.entries.range(..=at).next_back().map(|(s, (e, r))| self.held(*s, *e, *r));
        let after = self.entries.range(at + 1..).next().map(|(s, (e, r))| self.held(*s, *e, *r));
        (before, after)
    }

    fn link(&mut self, entry: MapRange) {
        let record = self.record(entry.prot);
        self.entries.insert(entry.start, (entry.end, record));
    }

    fn unlink(&mut self, start: u64) {
        if let Some((_, record)) = self.entries.remove(&start) {
            self.free.push(record);
        }
    }

    fn clip(&mut self, start: u64, rest: MapRange) {
        self.resize(start, rest.start);
        self.link(rest);
    }

    fn resize(&mut self, start: u64, end: u64) {
        if let Some(e) = self.entries.get_mut(&start) {
            e.0 = end;
        }
    }

    fn shrink_start(&mut self, start: u64, to: u64) {
        if let Some(e) = self.entries.remove(&start) {
            self.entries.insert(to, e);
        }
    }

    fn set_prot(&mut self, start: u64, prot: u32) {
        if let Some((_, record)) = self.entries.get(&start) {
            self.records[*record as usize].prot = prot;
        }
    }

    fn find(&mut self, len: u64, align: u64, lo: u64, hi: u64) -> Option<u64> {
        let mut from = self.entries.range(..lo).next_back().map_or(0, |(_, (e, _))| *e);
        for (start, (end, _)) in self.entries.range(lo..) {
            if let Some(at) = in_hole(len, align, (lo, hi), (from, *start)) {
                return Some(at);
            }
            from = *end;
        }
        in_hole(len, align.max(PAGE), (lo, hi), (from, hi))
    }

    fn entries(&self) -> Vec<MapRange> {
        self.entries.iter().map(|(s, (e, r))| self.held(*s, *e, *r)).collect()
    }

    fn consistent(&self) -> Result<(), String> {
        let mut last = 0;
        for (start, (end, _)) in &self.entries {
            if *start < last || end <= start {
                return Err(format!("{start:#x}..{end:#x} is empty or overlaps the range that ends at {last:#x}"));
            }
            last = *end;
        }
        Ok(())
    }
}
