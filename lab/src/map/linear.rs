//! A list of entries that is searched linearly, with hints. One hint is the entry that was found last. Four others help
//! the search for space: each is the lowest possible address for one size and alignment. Early address maps were such
//! lists. DragonFly's kernel map still used such hints to find space in 2017.
//!
//! The list is a sorted vector. Its memory is contiguous, which makes it faster than a linked list.

use super::MapRange;
use super::by_entry::{Entries, in_hole};
use super::hinted::below_no_hint;
use super::hints::Hints;

/// A sorted list, with hints or without.
#[derive(Default)]
pub struct Linear {
    without_hints: bool,
    list: Vec<MapRange>,
    /// The index of the entry that was found last.
    last: usize,
    hints: Hints,
    /// The number of entries that the last search for space visited.
    visits: u64,
}

impl Linear {
    /// An empty map.
    pub fn new() -> Self {
        Self::default()
    }

    /// An empty map whose searches for space begin at the lowest address.
    pub fn without_hints() -> Self {
        Linear { without_hints: true, ..Self::default() }
    }

    /// The number of entries that start at or before `at`. The search begins at the entry that was found last.
    fn upto(&mut self, at: u64) -> usize {
        let mut i = self.last.min(self.list.len());
        while i > 0 && self.list[i - 1].start > at {
            i -= 1;
        }
        while i < self.list.len() && self.list[i].start <= at {
            i += 1;
        }
        self.last = i;
        i
    }

    fn index(&mut self, start: u64) -> Option<usize> {
        let i = self.upto(start).checked_sub(1)?;
        (self.list[i].start == start).then_some(i)
    }

    /// The number of entries that the last search for space visited.
    pub fn visits(&self) -> u64 {
        self.visits
    }

    /// The start of the hole that contains `at` or ends at it.
    fn hole_before(&mut self, at: u64) -> u64 {
        let i = self.upto(at.saturating_sub(1));
        i.checked_sub(1).map_or(0, |i| self.list[i].end.min(at))
    }
}

impl Entries for Linear {
    fn around(&mut self, at: u64) -> (Option<MapRange>, Option<MapRange>) {
        let i = self.upto(at);
        (i.checked_sub(1).map(|i| self.list[i]), self.list.get(i).copied())
    }

    fn link(&mut self, entry: MapRange) {
        let i = self.upto(entry.start);
        self.list.insert(i, entry);
    }

    fn unlink(&mut self, start: u64) {
        if let Some(i) = self.index(start) {
            self.list.remove(i);
            let from = self.hole_before(start);
            self.hints.freed(from);
        }
    }

    fn clip(&mut self, start: u64, rest: MapRange) {
        if let Some(i) = self.index(start) {
            self.list[i].end = rest.start;
            self.list.insert(i + 1, rest);
        }
    }

    fn resize(&mut self, start: u64, end: u64) {
        if let Some(i) = self.index(start) {
            self.list[i].end = end;
            self.hints.freed(end);
        }
    }

    fn shrink_start(&mut self, start: u64, to: u64) {
        if let Some(i) = self.index(start) {
            self.list[i].start = to;
            let from = self.hole_before(start);
            self.hints.freed(from);
        }
    }

    fn set_prot(&mut self, start: u64, prot: u32) {
        if let Some(i) = self.index(start) {
            self.list[i].prot = prot;
        }
    }

    fn find(&mut self, len: u64, align: u64, lo: u64, hi: u64) -> Option<u64> {
        let begin = self.hints.begin(len, align, lo);
        self.visits = 1;
        let mut i = self.upto(begin);
        let mut from = i.checked_sub(1).map_or(0, |i| self.list[i].end);
        let found = loop {
            let to = self.list.get(i).map_or(hi, |e| e.start);
            if let Some(at) = in_hole(len, align, (begin, hi), (from, to)) {
                break Some(at);
            }
            match self.list.get(i) {
                Some(e) if e.start < hi => from = e.end,
                _ => break None,
            }
            i += 1;
            self.visits += 1;
        };
        if let Some(at) = found.filter(|_| !self.without_hints) {
            self.hints.found(len, align, lo, at);
        }
        found
    }

    fn entries(&self) -> Vec<MapRange> {
        self.list.clone()
    }

    fn consistent(&self) -> Result<(), String> {
        let mut last = 0;
        for e in &self.list {
            if e.start < last || e.end <= e.start {
                return Err(format!(
                    "{:#x}..{:#x} is empty or overlaps the range that ends at {last:#x}",
                    e.start, e.end
                ));
            }
            last = e.end;
        }
        below_no_hint(&self.hints, &self.list)
    }
}
