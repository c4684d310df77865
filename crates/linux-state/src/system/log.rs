//! The lines of the kernel's log, and the state of its readers.

use core::fmt::{self, Write};
use quire_sync::atomic::{AtomicI32, Ordering};
use quire_sync::{Mutex, WaitQueue};

/// The number of lines that the machine keeps.
pub const LOG_LINES: usize = 512;
/// The most bytes of a line's text.
pub const LOG_TEXT: usize = 256;
/// The priority of all lines: informational.
const PRIORITY: u32 = 6;

/// A line of the kernel's log.
#[derive(Clone, Copy)]
pub struct LogLine {
    /// The number of the line; each line has one more than the line before.
    pub number: u64,
    /// The time in microseconds since boot.
    pub micros: u64,
    /// The number of bytes of the text.
    pub len: usize,
    /// The text, of which `len` bytes are used.
    pub text: [u8; LOG_TEXT],
}

impl LogLine {
    /// The value of a slot without a line.
    pub const EMPTY: LogLine = LogLine { number: 0, micros: 0, len: 0, text: [0; LOG_TEXT] };

    fn text(&self) -> &[u8] {
        &self.text[..self.len.min(LOG_TEXT)]
    }
}

/// A line in the format that programs read.
pub struct Shown {
    bytes: [u8; LOG_TEXT + 64],
    pub len: usize,
}

impl Write for Shown {
    fn write_str(&mut self, s: &str) -> fmt::Result {
        self.push(s.as_bytes());
        Ok(())
    }
}

impl Shown {
    pub fn new(line: &LogLine) -> Self {
        let mut shown = Shown { bytes: [0; LOG_TEXT + 64], len: 0 };
        let (seconds, micros) = (line.micros / 1_000_000, line.micros % 1_000_000);
        let _never_fails = write!(shown, "<{PRIORITY}>[{seconds:>5}.{micros:06}] ");
        shown.push(line.text());
        shown.push(b"\n");
        shown
    }

    fn push(&mut self, bytes: &[u8]) {
        let n = bytes.len().min(self.bytes.len() - self.len);
        self.bytes[self.len..self.len + n].copy_from_slice(&bytes[..n]);
        self.len += n;
    }

    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

/// The position in the log that all readers share.
pub struct Positions {
    /// The number of the next line to read.
    pub next: u64,
    /// The number of bytes of line `next` that were read already.
    pub partial: usize,
    /// Lines before this number were cleared.
    pub clear: u64,
}

/// The state of the log's readers, and the log levels.
pub struct Log {
    pub positions: Mutex<Positions>,
    pub sleepers: WaitQueue,
    /// `kernel.printk`: the console's level, the level of messages without one, the console's lowest level, the
    /// console's first level.
    levels: [AtomicI32; 4],
    /// The console's log level before the console was turned off; 0 while the console is on.
    pub saved: AtomicI32,
}

/// Indices in `levels`.
pub const CONSOLE: usize = 0;
pub const LEAST: usize = 2;

impl Log {
    pub(crate) fn new() -> Self {
        Log {
            positions: Mutex::new(Positions { next: 0, partial: 0, clear: 0 }),
            sleepers: WaitQueue::new(),
            levels: [4, 4, 1, 7].map(AtomicI32::new),
            saved: AtomicI32::new(0),
        }
    }

    /// The four levels of `kernel.printk`.
    pub fn levels(&self) -> [i32; 4] {
        core::array::from_fn(|at| self.levels[at].load(Ordering::Relaxed))
    }

    /// Sets the level with index `at`.
    pub fn set_level(&self, at: usize, level: i32) {
        self.levels[at].store(level, Ordering::Relaxed);
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_shown_as_linux_shows_it() {
        let mut line = LogLine { micros: 12_000_345, len: 5, ..LogLine::EMPTY };
        line.text[..5].copy_from_slice(b"hello");
        assert_eq!(Shown::new(&line).bytes(), b"<6>[   12.000345] hello\n");
        // The longest line at the latest time is not truncated.
        line = LogLine { micros: u64::MAX, len: LOG_TEXT + 1, text: [b'x'; LOG_TEXT], ..line };
        let shown = Shown::new(&line);
        assert!(shown.bytes().ends_with(b"x\n") && shown.len < shown.bytes.len());
    }
}
