//! The ranges of whole frames that the kernel may use, from the loader's memory map.

use super::start_info::{MAX_RANGES, Range};

/// The size of a frame in bytes.
pub const FRAME: u64 = 4096;
/// The kind of usable RAM in E820's numbering.
const USABLE: u32 = 1;
/// The physical address (16 TiB less two frames) from which RAM is not used, because the memory core has 32-bit frame
/// numbers.
const LIMIT: u64 = (u32::MAX as u64 - 1) * FRAME;
/// The most ranges of usable RAM. The removal of holes may split ranges. Ranges above this number are not used.
const MAX_PIECES: usize = 2 * MAX_RANGES;

/// A range of physical bytes, `start..end`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Span {
    /// The address of the first byte.
    pub start: u64,
    /// The address one past the last byte.
    pub end: u64,
}

impl Span {
    /// The length in bytes.
    pub fn len(&self) -> u64 {
        self.end.saturating_sub(self.start)
    }
    /// Whether the range contains no byte.
    pub fn is_empty(&self) -> bool {
        self.end <= self.start
    }
}

/// The ranges of usable RAM. They are aligned to frames, ascending, disjoint and not empty.
#[derive(Clone, Debug)]
pub struct Ram {
    spans: [Span; MAX_PIECES],
    len: usize,
}

impl Ram {
    /// The usable ranges of `map`. A frame is left out if a range of another kind, or of `reserved`, covers any part of
    /// it.
    pub fn new(map: &[Range], reserved: &[Span]) -> Ram {
        let mut ram = Ram { spans: [Span::default(); MAX_PIECES], len: 0 };
        for r in map.iter().filter(|r| r.kind == USABLE) {
            let end = r.start.saturating_add(r.len).min(LIMIT);
            let span = Span { start: r.start.min(LIMIT).next_multiple_of(FRAME), end: end & !(FRAME - 1) };
            // Remove the range first, so that the part where it overlaps an earlier range is not in the list twice.
            ram.subtract(span);
            ram.insert(span);
        }
        for r in map.iter().filter(|r| r.kind != USABLE) {
            ram.subtract(outward(r.start, r.start.saturating_add(r.len)));
        }
        for r in reserved {
            ram.subtract(outward(r.start, r.end));
        }
        ram.merge();
        ram
    }

    /// The ranges, ascending.
    pub fn spans(&self) -> &[Span] {
        &self.spans[..self.len]
    }

    /// Whether every byte of `span` is usable.
    pub fn covers(&self, span: Span) -> bool {
        self.spans().iter().any(|s| s.start <= span.start && span.end <= s.end)
    }

    /// The address one past the highest usable byte.
    pub fn end(&self) -> u64 {
        self.spans().last().map_or(0, |s| s.end)
    }

    /// The number of usable bytes in all ranges.
    pub fn bytes(&self) -> u64 {
        self.spans().iter().map(Span::len).sum()
    }

    /// The size in bytes of the largest contiguous range of whole frames between the addresses `from` and `to`.
    pub fn largest(&self, from: u64, to: u64) -> u64 {
        let len = |s: &Span| s.end.min(to).saturating_sub(s.start.max(from)) / FRAME * FRAME;
        self.spans().iter().map(len).max().unwrap_or(0)
    }

    /// The most bytes that can be reserved, in one range between 1 MiB and `to`, for swap or traces. The other memory
    /// suffices for boot and the first program. Boot needs tables in proportion to the RAM, `files` bytes for the
    /// initial files, and `LEAST` bytes, the least memory of any machine.
    pub fn spare(&self, to: u64, files: u64) -> u64 {
        const LEAST: u64 = 24 << 20;
        let needed = (self.bytes() / 16).saturating_add(files).saturating_add(LEAST);
        self.largest(1 << 20, to).min(self.bytes().saturating_sub(needed)) / FRAME * FRAME
    }

    /// Removes `len` bytes (rounded up to frames) at the lowest suitable address at or above `from`. Returns the
    /// address, which is aligned to `align` (a power of two, at least a frame). `None` if no range is large enough.
    pub fn take(&mut self, len: u64, align: u64, from: u64) -> Option<u64> {
        let len = len.checked_next_multiple_of(FRAME)?;
        let at = self.spans().iter().find_map(|s| {
            let start = s.start.max(from).checked_next_multiple_of(align)?;
            (start.checked_add(len)? <= s.end).then_some(start)
        })?;
        self.subtract(Span { start: at, end: at + len });
        Some(at)
    }

    fn insert(&mut self, span: Span) {
        if span.is_empty() || self.len == MAX_PIECES {
            return;
        }
        let at = self.spans().iter().position(|s| s.start > span.start).unwrap_or(self.len);
        self.spans.copy_within(at..self.len, at + 1);
        self.spans[at] = span;
        self.len += 1;
    }

    fn subtract(&mut self, hole: Span) {
        if hole.is_empty() {
            return;
        }
        let mut i = 0;
        while i < self.len {
            let s = self.spans[i];
            if s.end <= hole.start || hole.end <= s.start {
                i += 1;
                continue;
            }
            self.spans.copy_within(i + 1..self.len, i);
            self.len -= 1;
            let after = Span { start: hole.end, end: s.end };
            let before = Span { start: s.start, end: hole.start };
            self.insert(before);
            self.insert(after);
        }
    }

    fn merge(&mut self) {
        let mut kept = 0;
        for i in 0..self.len {
            if kept > 0 && self.spans[kept - 1].end == self.spans[i].start {
                self.spans[kept - 1].end = self.spans[i].end;
            } else {
                self.spans[kept] = self.spans[i];
                kept += 1;
            }
        }
        self.len = kept;
    }
}

fn outward(start: u64, end: u64) -> Span {
    Span { start: start & !(FRAME - 1), end: end.min(LIMIT).next_multiple_of(FRAME) }
}

/// The most pieces into which the archive's frames are divided.
pub const PIECES: usize = 64;
/// The alignment of pieces, in frames: all pieces but the first begin at a multiple of it.
const PIECE: u64 = 1024;

/// The size of a piece, in frames: at most half of a range of `largest` frames. 0 if that range is too small.
pub fn piece(largest: u64) -> u64 {
    largest / 2 / PIECE * PIECE
}

/// Divides the frames `start..end` into pieces of at most `most` frames, which [`piece`] has computed. Returns the
/// start and the end of each piece.
pub fn pieces(start: u64, end: u64, most: u64) -> impl Iterator<Item = (u64, u64)> {
    let mut at = start;
    core::iter::from_fn(move || {
        let start = at;
        at = (start / PIECE * PIECE + most).min(end);
        (start < at).then_some((start, at))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn usable(start: u64, len: u64) -> Range {
        Range { start, len, kind: 1 }
    }

    #[test]
    fn pieces_join_and_are_smaller_than_the_largest_range() {
        assert_eq!([0, 2047, 2048, 4095, 100_000].map(piece), [0, 0, 1024, 1024, 49_152]);
        let all = |start, end, most| pieces(start, end, most).collect::<Vec<_>>();
        assert_eq!(all(1500, 1500, 1024), []);
        assert_eq!(all(1500, 9000, 0), []);
        assert_eq!(all(1500, 1501, 1024), [(1500, 1501)]);
        assert_eq!(all(1500, 4500, 1024), [(1500, 2048), (2048, 3072), (3072, 4096), (4096, 4500)]);
        for (start, most) in [(0, 1024), (1, 1024), (1023, 2048), (262_143, 49_152)] {
            let all = all(start, start + most * (PIECES as u64 - 1), most);
            assert!(all.len() <= PIECES && all.iter().all(|(start, end)| end - start <= most));
            assert!(all.windows(2).all(|two| two[0].1 == two[1].0));
        }
    }

    #[test]
    fn reserved_parts_are_cut_out_to_whole_frames() {
        let ram = Ram::new(&[usable(0x1000, 0x9000)], &[Span { start: 0x3001, end: 0x4001 }]);
        assert_eq!(ram.spans(), [Span { start: 0x1000, end: 0x3000 }, Span { start: 0x5000, end: 0xa000 }]);
    }

    #[test]
    fn ranges_shrink_to_whole_frames_and_neighbours_merge() {
        let ram = Ram::new(&[usable(0x5000, 0x1000), usable(0x10, 0x2fff), usable(0x4000, 0x1000)], &[]);
        assert_eq!(ram.spans(), [Span { start: 0x1000, end: 0x3000 }, Span { start: 0x4000, end: 0x6000 }]);
    }

    #[test]
    fn a_taken_range_is_gone_from_the_map() {
        let mut ram = Ram::new(&[usable(0x1000, 0x9000)], &[]);
        assert_eq!(ram.take(0x1800, 0x4000, 0), Some(0x4000));
        assert_eq!(ram.spans(), [Span { start: 0x1000, end: 0x4000 }, Span { start: 0x6000, end: 0xa000 }]);
        assert_eq!(ram.take(0x5000, 0x1000, 0), None);
        assert_eq!(ram.take(u64::MAX, 0x1000, 0), None);
    }

    #[test]
    fn spare_memory_excludes_the_memory_that_boot_needs() {
        const MIB: u64 = 1 << 20;
        let two = [usable(0, 256 * MIB), usable(4096 * MIB, 64 * MIB)];
        let ram = Ram::new(&two, &[]);
        assert_eq!((ram.largest(MIB, u64::MAX), ram.largest(MIB, 100 * MIB)), (255 * MIB, 99 * MIB));
        assert_eq!(ram.largest(4096 * MIB, u64::MAX), 64 * MIB);
        // Of 320 MiB, 20 MiB are for tables, and 24 MiB are the least memory of a machine.
        assert_eq!(ram.spare(u64::MAX, 10 * MIB), 255 * MIB);
        assert_eq!(ram.spare(u64::MAX, 100 * MIB), (320 - 20 - 24 - 100) * MIB);
        assert_eq!((ram.spare(u64::MAX, u64::MAX), ram.spare(0, 0)), (0, 0));
        assert_eq!(Ram::new(&[usable(0, 24 * MIB)], &[]).spare(u64::MAX, 0), 0);
    }

    proptest! {
        #[test]
        fn every_map_gives_sorted_disjoint_unreserved_frames(
            map in proptest::collection::vec((any::<u64>(), any::<u64>(), 0u32..4, 0u32..60), 0..40),
            reserved in proptest::collection::vec((0u64..1 << 34, 0u64..1 << 20), 0..4),
        ) {
            let range = |(start, len, kind, shift)| Range { start: start >> shift, len: len >> shift, kind };
            let map: Vec<_> = map.into_iter().map(range).collect();
            let reserved: Vec<_> = reserved.into_iter().map(|(s, l)| Span { start: s, end: s + l }).collect();
            let ram = Ram::new(&map, &reserved);
            let mut last = 0;
            for s in ram.spans() {
                prop_assert!(s.start % FRAME == 0 && s.end % FRAME == 0 && !s.is_empty());
                prop_assert!(s.start >= last);
                last = s.end;
                for r in map.iter().filter(|r| r.kind != 1 && r.len != 0) {
                    prop_assert!(r.start.saturating_add(r.len) <= s.start || s.end <= r.start);
                }
                for r in &reserved {
                    prop_assert!(r.is_empty() || r.end <= s.start || s.end <= r.start);
                }
            }
        }
    }
}
