//! Map operations for structures that change one entry at a time: find the position, clip, change, merge.

use super::{AddressMap, MapFootprint, MapRange, Taken};

/// An ordered set of entries that are changed one at a time. The start of an entry identifies it.
pub trait Entries {
    /// The last entry that starts at or before `at`, and the first that starts after it.
    fn around(&mut self, at: u64) -> (Option<MapRange>, Option<MapRange>);

    /// Adds an entry, which must not overlap another.
    fn link(&mut self, entry: MapRange);

    /// Removes the entry at `start`.
    fn unlink(&mut self, start: u64);

    /// Splits the entry at `start`. It then ends where `rest` begins, and `rest` becomes an entry of its own.
    fn clip(&mut self, start: u64, rest: MapRange);

    /// Sets the end of the entry at `start`. The hole after the entry shrinks or grows.
    fn resize(&mut self, start: u64, end: u64);

    /// Raises the start of the entry at `start` to `to`.
    fn shrink_start(&mut self, start: u64, to: u64);

    /// Sets the rights of the entry at `start` to `prot`.
    fn set_prot(&mut self, start: u64, prot: u32);

    /// Does the work of [`AddressMap::first_fit`].
    fn find(&mut self, len: u64, align: u64, lo: u64, hi: u64) -> Option<u64>;

    /// Does the work of [`AddressMap::all`].
    fn entries(&self) -> Vec<MapRange>;

    /// Does the work of [`AddressMap::kept`].
    fn nodes(&self) -> Option<MapFootprint> {
        None
    }

    /// Does the work of [`AddressMap::check`].
    fn consistent(&self) -> Result<(), String>;
}

impl<E: Entries> AddressMap for E {
    fn lookup(&mut self, at: u64) -> Option<MapRange> {
        self.around(at).0.filter(|e| e.end > at)
    }

    fn insert(&mut self, start: u64, end: u64, prot: u32) -> Result<(), Taken> {
        let (before, after) = self.around(start);
        if before.is_some_and(|b| b.end > start) || after.is_some_and(|a| a.start < end) {
            return Err(Taken);
        }
        let after = after.filter(|a| a.start == end && a.prot == prot);
        match (before.filter(|b| b.end == start && b.prot == prot), after) {
            (None, None) => self.link(MapRange { start, end, prot }),
            (Some(b), None) => self.resize(b.start, end),
            (Some(b), Some(a)) => {
                self.unlink(a.start);
                self.resize(b.start, a.end);
            }
            (None, Some(a)) => {
                self.unlink(a.start);
                self.link(MapRange { start, end: a.end, prot });
            }
        }
        Ok(())
    }

    fn remove(&mut self, start: u64, end: u64) {
        let mut at = start;
        while let Some(e) = self.overlapping(at, end) {
            match (e.start < start, e.end > end) {
                (false, false) => self.unlink(e.start),
                (true, false) => self.resize(e.start, start),
                (false, true) => self.shrink_start(e.start, end),
                (true, true) => {
                    self.clip(e.start, MapRange { start: end, ..e });
                    self.resize(e.start, start);
                }
            }
            at = e.end;
            if at >= end {
                return;
            }
        }
    }

    fn protect(&mut self, start: u64, end: u64, prot: u32) {
        let (mut at, mut changed) = (start, false);
        while let Some(mut e) = self.overlapping(at, end) {
            if e.prot != prot {
                if e.start < start {
                    self.clip(e.start, MapRange { start, ..e });
                    e.start = start;
                }
                if e.end > end {
                    self.clip(e.start, MapRange { start: end, ..e });
                    e.end = end;
                }
                self.set_prot(e.start, prot);
                changed = true;
            }
            at = e.end;
            if at >= end {
                break;
            }
        }
        if changed {
            self.merge(start, end);
        }
    }

    fn first_fit(&mut self, len: u64, align: u64, lo: u64, hi: u64) -> Option<u64> {
        self.find(len, align, lo, hi)
    }

    fn kept(&self) -> Option<MapFootprint> {
        self.nodes()
    }

    fn all(&self) -> Vec<MapRange> {
        self.entries()
    }

    fn check(&self) -> Result<(), String> {
        self.consistent()
    }
}

/// Parts that several of the operations above use.
trait Pieces: Entries {
    /// The first entry that ends after `at` and starts before `end`.
    fn overlapping(&mut self, at: u64, end: u64) -> Option<MapRange> {
        let (before, after) = self.around(at);
        before.filter(|b| b.end > at).or(after.filter(|a| a.start < end))
    }

    /// Merges adjacent entries with equal rights, from the entry that ends at `start` to the entry that starts at
    /// `end`.
    fn merge(&mut self, start: u64, end: u64) {
        let (before, after) = self.around(start.saturating_sub(1));
        let Some(mut left) = before.filter(|b| b.end >= start).or(after) else { return };
        while left.start < end {
            let (_, Some(right)) = self.around(left.end - 1) else { return };
            if right.start > end {
                return;
            }
            if right.start == left.end && right.prot == left.prot {
                self.unlink(right.start);
                self.resize(left.start, right.end);
                left.end = right.end;
            } else {
                left = right;
            }
        }
    }
}
impl<E: Entries> Pieces for E {}

/// The lowest multiple of `align` in the hole `from..to`, clipped to `lo..hi`, with `len` free bytes after it.
pub(super) fn in_hole(len: u64, align: u64, (lo, hi): (u64, u64), (from, to): (u64, u64)) -> Option<u64> {
    let at = from.max(lo).checked_next_multiple_of(align)?;
    let to = to.min(hi);
    (at < to && to - at >= len).then_some(at)
}
