//! `syslog`: the kernel's log, for programs.
//!
//! The machine stores the last lines. Lines may come from an interrupt or a panic, which cannot wake a thread. So a
//! reader that waits for the next line polls for it.

use quire_linux_state::process::credentials::capabilities::cap;
use quire_linux_state::system::log::{CONSOLE, LEAST, LOG_LINES, LOG_TEXT, Shown};
use quire_linux_state::system::settings::Setting;
use quire_linux_state::user::in_user_space;
use quire_linux_state::{Ctx, Errno, Machine};
use quire_sync::WaitOutcome;
use quire_sync::atomic::Ordering;

/// The nanoseconds after which a waiting reader polls again.
const AGAIN: u64 = 200_000_000;

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

/// Reads the lines that no reader has read, and waits until there is one. Returns the number of bytes.
fn read<M: Machine>(ctx: &Ctx<'_, M>, to: u64, size: usize) -> Result<usize, Errno> {
    let (log, mut done) = (&ctx.linux.log, 0);
    while done < size {
        if done == 0 {
            wait(ctx)?;
        }
        let mut at = log.positions.lock();
        let Some(line) = ctx.linux.machine.log_line(at.next) else {
            // Another reader has taken the line.
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

/// Calls `each` for the lines from `first` up to, but not including, `end`.
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

/// Reads the last lines that fit into `size` bytes. Cleared lines are left out.
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

// The actions, from Linux's syslog.h.
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
