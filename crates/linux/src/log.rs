//! `syslog`: the kernel's log, for programs.
//!
//! The machine keeps the last lines. A line may come from an interrupt or a panic, which wakes no thread. So a reader
//! that waits for the next line looks for it in intervals.

use crate::process::credentials::capabilities::cap;
use crate::settings::Setting;
use crate::user::in_user_space;
use crate::{Ctx, Errno, Machine};
use core::fmt::{self, Write};
use core::sync::atomic::{AtomicI32, Ordering};
use quire_sync::{Mutex, WaitOutcome, WaitQueue};

/// Lines that the machine keeps.
pub const LOG_LINES: usize = 512;
/// The most bytes of a line's text.
pub const LOG_TEXT: usize = 256;
/// Nanoseconds until a waiting reader looks again.
const AGAIN: u64 = 200_000_000;
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
struct Shown {
    bytes: [u8; LOG_TEXT + 64],
    len: usize,
}

impl Write for Shown {
    fn write_str(&mut self, s: &str) -> fmt::Result {
        self.push(s.as_bytes());
        Ok(())
    }
}

impl Shown {
    fn new(line: &LogLine) -> Self {
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

    fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

/// The readers' positions.
struct Positions {
    /// The next line to read.
    next: u64,
    /// Bytes of it that were read.
    partial: usize,
    /// Lines before it were cleared.
    clear: u64,
}

/// The readers' state, and the levels of messages.
pub struct Log {
    positions: Mutex<Positions>,
    sleepers: WaitQueue,
    /// `kernel.printk`: of the console, of messages without a level, the least of the console, the first of the console.
    levels: [AtomicI32; 4],
    /// The level of the console before it was turned off; zero while it is on.
    saved: AtomicI32,
}

/// Places in `levels`.
const CONSOLE: usize = 0;
const LEAST: usize = 2;

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
    pub(crate) fn levels(&self) -> [i32; 4] {
        core::array::from_fn(|at| self.levels[at].load(Ordering::Relaxed))
    }

    /// Changes one of them.
    pub(crate) fn set_level(&self, at: usize, level: i32) {
        self.levels[at].store(level, Ordering::Relaxed);
    }
}

/// Waits for the next line.
fn wait<M: Machine>(ctx: &Ctx<'_, M>) -> Result<(), Errno> {
    let (log, machine) = (&ctx.linux.log, ctx.linux.machine);
    loop {
        let next = log.positions.lock().next;
        let ready = || machine.log_line(next).map(drop);
        let until = machine.now().saturating_add(AGAIN);
        match log.sleepers.wait_until(Some(until), || ctx.thread.interrupted(), ready) {
            Ok(()) => return Ok(()),
            Err(WaitOutcome::TimedOut) => {}
            Err(_) => return Err(Errno::ERESTARTSYS),
        }
    }
}

/// Reads the lines that no reader has read, and waits for the first.
fn read<M: Machine>(ctx: &Ctx<'_, M>, to: u64, size: usize) -> Result<usize, Errno> {
    let (log, mut done) = (&ctx.linux.log, 0);
    while done < size {
        if done == 0 {
            wait(ctx)?;
        }
        let mut at = log.positions.lock();
        let Some(line) = ctx.linux.machine.log_line(at.next) else {
            // Another reader was faster.
            if done == 0 { continue } else { break }
        };
        if line.number != at.next {
            (at.next, at.partial) = (line.number, 0);
        }
        let shown = Shown::new(&line);
        let from = at.partial.min(shown.len);
        let rest = shown.len - from;
        let n = if rest <= size - done {
            (at.next, at.partial) = (line.number + 1, 0);
            rest
        } else if done == 0 {
            at.partial = from + size;
            size
        } else {
            break;
        };
        drop(at);
        match ctx.user().write_bytes(to + done as u64, &shown.bytes()[from..from + n]) {
            Ok(()) => done += n,
            Err(e) if done == 0 => return Err(e.into()),
            Err(_) => break,
        }
    }
    Ok(done)
}

/// Calls `each` for the lines from `first` to before `end`.
fn lines<M: Machine>(
    ctx: &Ctx<'_, M>,
    first: u64,
    end: u64,
    mut each: impl FnMut(u64, &Shown) -> Result<(), Errno>,
) -> Result<(), Errno> {
    let mut at = first;
    while let Some(line) = ctx.linux.machine.log_line(at).filter(|line| line.number < end) {
        each(line.number, &Shown::new(&line))?;
        at = line.number + 1;
    }
    Ok(())
}

/// Reads the last lines that fit and were not cleared.
fn read_all<M: Machine>(ctx: &Ctx<'_, M>, to: u64, size: usize, clear: bool) -> Result<usize, Errno> {
    let first = ctx.linux.log.positions.lock().clear;
    let (mut total, mut end) = (0, first);
    lines(ctx, first, u64::MAX, |number, line| {
        (total, end) = (total + line.len, number + 1);
        Ok(())
    })?;
    let mut done = 0;
    lines(ctx, first, end, |_, line| {
        if total > size {
            total -= line.len;
        } else if line.len <= size - done {
            ctx.user().write_bytes(to + done as u64, line.bytes())?;
            done += line.len;
        }
        Ok(())
    })?;
    if clear {
        ctx.linux.log.positions.lock().clear = end;
    }
    Ok(done)
}

// What to do, from Linux's syslog.h.
const CLOSE: i32 = 0;
const OPEN: i32 = 1;
const READ: i32 = 2;
const READ_ALL: i32 = 3;
const READ_CLEAR: i32 = 4;
const CLEAR: i32 = 5;
const CONSOLE_OFF: i32 = 6;
const CONSOLE_ON: i32 = 7;
const CONSOLE_LEVEL: i32 = 8;
const SIZE_UNREAD: i32 = 9;
const SIZE_BUFFER: i32 = 10;

/// `syslog`
pub fn sys_syslog<M: Machine>(ctx: &mut Ctx<'_, M>, action: i32, to: u64, len: i32) -> Result<usize, Errno> {
    let hidden = ctx.linux.settings.get(Setting::HideLog) != 0;
    if (hidden || !matches!(action, READ_ALL | SIZE_BUFFER)) && !ctx.credentials().may(cap::SYSLOG) {
        return Err(Errno::EPERM);
    }
    let log = &ctx.linux.log;
    match action {
        CLOSE | OPEN => {}
        READ | READ_ALL | READ_CLEAR => {
            let size = usize::try_from(len).ok().filter(|_| to != 0).ok_or(Errno::EINVAL)?;
            if size == 0 {
                return Ok(0);
            }
            if !in_user_space(to, size) {
                return Err(Errno::EFAULT);
            }
            return match action {
                READ => read(ctx, to, size),
                _ => read_all(ctx, to, size, action == READ_CLEAR),
            };
        }
        CLEAR => {
            let mut end = log.positions.lock().clear;
            lines(ctx, end, u64::MAX, |number, _| {
                end = number + 1;
                Ok(())
            })?;
            log.positions.lock().clear = end;
        }
        CONSOLE_OFF => {
            let [level, _, least, _] = log.levels();
            let _already_off = log.saved.compare_exchange(0, level, Ordering::Relaxed, Ordering::Relaxed);
            log.set_level(CONSOLE, least);
        }
        CONSOLE_ON => {
            let saved = log.saved.swap(0, Ordering::Relaxed);
            if saved != 0 {
                log.set_level(CONSOLE, saved);
            }
        }
        CONSOLE_LEVEL => {
            if !(1..=8).contains(&len) {
                return Err(Errno::EINVAL);
            }
            log.set_level(CONSOLE, len.max(log.levels()[LEAST]));
            log.saved.store(0, Ordering::Relaxed);
        }
        SIZE_UNREAD => {
            let (next, partial) = {
                let at = log.positions.lock();
                (at.next, at.partial)
            };
            let mut total = 0;
            lines(ctx, next, u64::MAX, |number, line| {
                total += line.len - if number == next { partial.min(line.len) } else { 0 };
                Ok(())
            })?;
            return Ok(total);
        }
        SIZE_BUFFER => return Ok(LOG_LINES * LOG_TEXT),
        _ => return Err(Errno::EINVAL),
    }
    Ok(0)
}

#[cfg(test)]
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
