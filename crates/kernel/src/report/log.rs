//! The kernel's log: lines on the first serial port, each with the time since boot.

use core::fmt::{self, Write};
use core::sync::atomic::{AtomicBool, Ordering};
use quire_drivers::uart;

static HELD: AtomicBool = AtomicBool::new(false);

/// Formats one line into the log.
macro_rules! log {
    ($($t:tt)*) => { $crate::report::log::line(format_args!($($t)*)) };
}

/// Formats text into the log without truncation. A long line of the text becomes several lines of the log.
macro_rules! log_text {
    ($($t:tt)*) => { $crate::report::log::text(format_args!($($t)*)) };
}

/// A buffer for one line, so that the line is written to the port in one piece. Longer lines are truncated.
struct Line {
    bytes: [u8; 256],
    len: usize,
}

impl Write for Line {
    fn write_str(&mut self, s: &str) -> fmt::Result {
        let room = self.bytes.len() - 1 - self.len;
        let n = s.len().min(room);
        self.bytes[self.len..self.len + n].copy_from_slice(&s.as_bytes()[..n]);
        self.len += n;
        Ok(())
    }
}

/// Writes one line. May be called in any context, including interrupt handlers and panics.
pub fn line(args: fmt::Arguments<'_>) {
    let mut line = Line { bytes: [0; 256], len: 0 };
    let us = crate::cpu::clock::now() / 1000;
    let _never_fails = write!(line, "[{:>5}.{:06}] ", us / 1_000_000, us % 1_000_000);
    let prefix = line.len;
    let _never_fails = line.write_fmt(args);
    super::ring::add(us, &line.bytes[prefix..line.len]);
    line.bytes[line.len] = b'\n';
    line.len += 1;
    raw(&line.bytes[..line.len]);
}

/// A writer that splits text in lines and writes each line to the log.
struct Text(Line);

impl Text {
    fn flush(&mut self) {
        if let Ok(text) = core::str::from_utf8(&self.0.bytes[..self.0.len]) {
            line(format_args!("{text}"));
        }
        self.0.len = 0;
    }
}

impl Write for Text {
    fn write_str(&mut self, s: &str) -> fmt::Result {
        for c in s.chars() {
            // 32 bytes are left for the prefix, which contains the time.
            if c == '\n' || self.0.len + c.len_utf8() > self.0.bytes.len() - 32 {
                self.flush();
            }
            if c != '\n' {
                self.0.write_char(c)?;
            }
        }
        Ok(())
    }
}

/// Writes text of any length. Each line of the text becomes one or more lines of the log.
pub fn text(args: fmt::Arguments<'_>) {
    let mut text = Text(Line { bytes: [0; 256], len: 0 });
    let _never_fails = text.write_fmt(args);
    text.flush();
}

/// Writes bytes to the port, under a lock, so that output of other CPUs does not come in between.
pub fn raw(bytes: &[u8]) {
    let interrupts = crate::cpu::interrupts_off();
    // Stop waiting for the lock after a while, because the CPU that holds it may have crashed.
    let mut patience = 50_000_000u32;
    while HELD.swap(true, Ordering::Acquire) && patience > 0 {
        core::hint::spin_loop();
        patience -= 1;
    }
    uart::write(bytes);
    HELD.store(false, Ordering::Release);
    crate::cpu::interrupts_restore(interrupts);
}
