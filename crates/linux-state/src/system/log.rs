//! The lines of the kernel's log, and the state of their readers.

use core::fmt::{self, Write};
use quire_sync::atomic::{AtomicI32, Ordering};
use quire_sync::{Mutex, WaitQueue};

/// Lines that the machine keeps.
pub const LOG_LINES: usize = 512;
/// The most bytes of a line's text.
pub const LOG_TEXT: usize = 256;
/// The priority of all lines: informational.
const PRIORITY: u32 = 6;

/// A line of the kernel's log.
#[derive(Clone, Copy)]
pub struct LogLine {
    /// One more than the number of the line before.
    pub number: u64,
    /// Microseconds since boot.
    pub micros: u64,
    /// Bytes of its text.
    pub len: usize,
    /// The text.
    pub text: [u8; LOG_TEXT],
}

impl LogLine {
    /// No line.
    pub const EMPTY: LogLine = LogLine { number: 0, micros: 0, len: 0, text: [0; LOG_TEXT] };

    fn text(&self) -> &[u8] {
        &self.text[..self.len.min(LOG_TEXT)]
    }
}

/// A line as programs read it.
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

/// The readers' positions.
pub struct Positions {
    /// The next line to read.
    pub next: u64,
    /// Bytes of it that were read.
    pub partial: usize,
    /// Lines before it were cleared.
    pub clear: u64,
}

/// The readers' state, and the levels of messages.
pub struct Log {
    pub positions: Mutex<Positions>,
    pub sleepers: WaitQueue,
    /// `kernel.printk`: of the console, of messages without a level, the least of the console, the first of the
    /// console.
    levels: [AtomicI32; 4],
    /// The level of the console before it was turned off; zero while it is on.
    pub saved: AtomicI32,
}

/// Places in `levels`.
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

    /// `kernel.printk`.
    pub fn levels(&self) -> [i32; 4] {
        core::array::from_fn(|at| self.levels[at].load(Ordering::Relaxed))
    }

    /// Changes one of them.
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
        // The longest, at the latest time, is whole.
        line = LogLine { micros: u64::MAX, len: LOG_TEXT + 1, text: [b'x'; LOG_TEXT], ..line };
        let shown = Shown::new(&line);
        assert!(shown.bytes().ends_with(b"x\n") && shown.len < shown.bytes.len());
    }
}
