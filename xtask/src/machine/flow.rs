//! One direction of a stream: a bounded buffer of bytes between two descriptors.

use std::collections::VecDeque;

use rustix::{
    fd::AsFd,
    io::{Errno, read, write},
};

/// The result of one read or write of a flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Moved {
    /// This many bytes were moved.
    Bytes(usize),
    /// No byte could be moved now.
    Nothing,
    /// The source has ended.
    End,
    /// The descriptor failed with this error.
    Failed(Errno),
}

/// The bytes between a source and a sink.
#[derive(Debug)]
pub struct Flow {
    buffer: VecDeque<u8>,
    limit: usize,
    /// The number of bytes that were read from the source so far.
    pub taken: u64,
    /// Whether the source has ended.
    pub ended: bool,
}

/// The size of the buffer in bytes. It is large enough to keep both sides busy.
const LIMIT: usize = 256 << 10;
/// The most bytes of one read.
const PIECE: usize = 64 << 10;
/// A pipe that polls as writable accepts at least this many bytes without blocking (pipe(7): `PIPE_BUF`).
const SURE: usize = 4096;

impl Default for Flow {
    fn default() -> Self {
        Self { buffer: VecDeque::new(), limit: LIMIT, taken: 0, ended: false }
    }
}

impl Flow {
    /// Whether more bytes may be read.
    pub fn has_room(&self) -> bool {
        !self.ended && self.buffer.len() < self.limit
    }

    /// Whether there are bytes to write.
    pub fn has_bytes(&self) -> bool {
        !self.buffer.is_empty()
    }

    /// Whether all bytes were written and no more will come.
    pub fn is_done(&self) -> bool {
        self.ended && self.buffer.is_empty()
    }

    /// Raises the limit to 64 MiB, so that a slow sink does not stop the source.
    pub fn widen(&mut self) {
        self.limit = 64 << 20;
    }

    /// Adds bytes that come from no source, such as control lines.
    pub fn put(&mut self, bytes: &[u8]) {
        self.buffer.extend(bytes);
    }

    /// Drops the bytes that are not written yet.
    pub fn discard(&mut self) {
        self.buffer.clear();
    }

    /// Whether the buffer holds only this byte.
    pub fn holds_only(&self, byte: u8) -> bool {
        self.buffer.len() == 1 && self.buffer.front() == Some(&byte)
    }

    /// Reads once from the source.
    pub fn fill(&mut self, from: impl AsFd) -> Moved {
        let mut piece = [0; PIECE];
        match read(from, &mut piece) {
            Ok(0) => {
                self.ended = true;
                Moved::End
            }
            Ok(n) => {
                self.taken += n as u64;
                self.buffer.extend(&piece[..n]);
                Moved::Bytes(n)
            }
            Err(Errno::AGAIN | Errno::INTR) => Moved::Nothing,
            Err(e) => {
                self.ended = true;
                Moved::Failed(e)
            }
        }
    }

    /// Writes once to the sink. With `may_block`, it writes only as many bytes as a writable pipe accepts without
    /// blocking.
    pub fn drain(&mut self, to: impl AsFd, may_block: bool) -> Moved {
        let (front, _) = self.buffer.as_slices();
        let piece = if may_block { &front[..front.len().min(SURE)] } else { front };
        if piece.is_empty() {
            return Moved::Nothing;
        }
        match write(to, piece) {
            Ok(n) => {
                self.buffer.drain(..n);
                Moved::Bytes(n)
            }
            Err(Errno::AGAIN | Errno::INTR) => Moved::Nothing,
            Err(e) => Moved::Failed(e),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};

    use super::*;

    #[test]
    fn bytes_arrive_whole_and_in_order() {
        let (mut source, from) = {
            let (r, w) = std::io::pipe().unwrap();
            (w, r)
        };
        let (mut result, to) = std::io::pipe().unwrap();
        let sent: Vec<u8> = (0..30_000u32).map(|i| (i % 251) as u8).collect();
        source.write_all(&sent).unwrap();
        drop(source);
        let mut flow = Flow::default();
        while flow.has_room() {
            flow.fill(&from);
        }
        assert!(flow.ended && flow.has_bytes() && !flow.is_done());
        while !flow.is_done() {
            assert!(matches!(flow.drain(&to, true), Moved::Bytes(1..=SURE)));
        }
        drop(to);
        let mut got = Vec::new();
        result.read_to_end(&mut got).unwrap();
        assert_eq!(got, sent);
        assert_eq!(flow.taken, sent.len() as u64);
    }

    #[test]
    fn a_full_buffer_stops_reading_until_it_is_widened() {
        let zero = std::fs::File::open("/dev/zero").unwrap();
        let mut flow = Flow::default();
        while flow.has_room() {
            flow.fill(&zero);
        }
        assert!(flow.buffer.len() < LIMIT + PIECE);
        flow.widen();
        assert!(flow.has_room());
    }

    #[test]
    fn a_sink_without_reader_is_a_failure_and_no_signal() {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let mut flow = Flow::default();
        flow.put(b"x");
        assert_eq!(flow.drain(&writer, true), Moved::Failed(Errno::PIPE));
    }
}
