//! Futex system calls over the futex table of `quire_task`.

pub mod many;
pub mod operation;
pub mod pi;
pub mod robust;

use linux_raw_sys::general as raw;
use quire_linux_state::errno::Errno;
use quire_linux_state::machine::{BadAddress, Machine};
use quire_linux_state::process::sleep::{FutexSleep, Sleep};
use quire_linux_state::process::thread::{Restart, Thread};
use quire_linux_state::time::Timespec;
use quire_linux_state::user::USER_END;
use quire_linux_state::{Ctx, Linux};
use quire_task::futex::Mixed;
use quire_task::{FutexWait, Key};

/// The bitset with all bits, so that any waker wakes the waiter.
pub(crate) const ANY: u32 = u32::MAX;

fn check_address(at: u64) -> Result<(), Errno> {
    if !at.is_multiple_of(4) {
        return Err(Errno::EINVAL);
    }
    if at >= USER_END { Err(Errno::EFAULT) } else { Ok(()) }
}

/// The key of the word at user address `at`. Private words need no lookup in the address space's map.
fn key_of<M: Machine>(machine: &M, thread: &Thread<M>, at: u64, private: bool) -> Result<Key, Errno> {
    check_address(at)?;
    // SAFETY: only the thread `thread` itself calls this function, for a word of its own memory.
    let space = unsafe { thread.space.get() }.ok_or(Errno::EFAULT)?;
    if private {
        // The lowest bit marks a private key. Words are aligned, so the lowest bit of a shared key is 0.
        return Ok((space.id(), at | 1));
    }
    let key = space.futex_key(at)?;
    // As on Linux, the caller must be able to read a shared word.
    if machine.peek_user_u32(at).is_err() {
        machine.load_user_u32(at)?;
    }
    Ok(key)
}

/// Waits if the word at `at` has the value `value`, until a waker with a common bit of `bitset` wakes the thread, or
/// until `deadline`. The thread sleeps without a kernel stack.
pub(crate) fn wait<M: Machine>(
    ctx: &mut Ctx<'_, M>,
    at: u64,
    value: u32,
    bitset: u32,
    private: bool,
    deadline: Option<u64>,
) -> Result<usize, Errno> {
    if bitset == 0 {
        return Err(Errno::EINVAL);
    }
    let linux = ctx.linux;
    let machine = linux.machine;
    let thread = ctx.thread;
    let key = key_of(machine, thread, at, private)?;
    loop {
        let mut check = || machine.peek_user_u32(at).map(|found| found == value);
        // SAFETY: the thread runs this, so its waiter is not listed. The waiter is part of the thread, and `go_on`
        // takes it off before the call ends.
        match unsafe { linux.futexes.table.begin(linux.scheduler, &thread.waiter, key, bitset, &mut check) } {
            Ok(true) => return go_on(ctx, FutexSleep { at, value, bitset, private, deadline }),
            Ok(false) => return Err(Errno::EAGAIN),
            // The page is not present. It is faulted in after the bucket's lock was released, and then the word is
            // compared again.
            Err(BadAddress { .. }) => {
                machine.load_user_u32(at)?;
            }
        }
    }
}

/// Continues after a wake-up: returns the result, or sleeps again.
pub(crate) fn go_on<M: Machine>(ctx: &mut Ctx<'_, M>, wait: FutexSleep) -> Result<usize, Errno> {
    let FutexSleep { at, value, bitset, private, deadline } = wait;
    let (linux, waiter) = (ctx.linux, &ctx.thread.waiter);
    // SAFETY: `wait` has listed the waiter of this thread, and the thread calls `end` until the wait is over.
    match unsafe { linux.futexes.table.end(linux.scheduler, waiter, deadline, &mut || ctx.interrupted()) } {
        None => Err(ctx.sleep(Sleep::Futex(wait), wait.deadline)),
        Some(FutexWait::Woken) => Ok(0),
        Some(FutexWait::Differs) => Err(Errno::EAGAIN),
        Some(FutexWait::TimedOut) => Err(Errno::ETIMEDOUT),
        Some(FutexWait::Interrupted) => Err(match deadline {
            None => Errno::ERESTARTSYS,
            // The deadline is a time of day. The remaining time may have changed, so the program's call is repeated
            // with its original arguments.
            Some(_) if ctx.thread.waits_by_day() => Errno::ERESTARTNOHAND,
            Some(deadline) => ctx.restart_with(Restart::Futex { at, value, bitset, private, deadline }),
        }),
    }
}

/// The error if the word has waiters that only priority-inheritance operations may wake.
fn mixed(_: Mixed) -> Errno {
    Errno::EINVAL
}

/// Wakes up to `most` waiters on the word at `at`.
pub(crate) fn wake<M: Machine>(
    linux: &Linux<M>,
    thread: &Thread<M>,
    at: u64,
    most: usize,
    bitset: u32,
    private: bool,
) -> Result<usize, Errno> {
    if bitset == 0 {
        return Err(Errno::EINVAL);
    }
    let key = key_of(linux.machine, thread, at, private)?;
    linux.futexes.table.wake(linux.scheduler, key, most, bitset).map_err(mixed)
}

/// Wakes waiters on a word at thread exit or for a robust list, where the kernel does not know whether the word is
/// private.
pub(crate) fn wake_address<M: Machine>(
    linux: &Linux<M>,
    thread: &Thread<M>,
    at: u64,
    most: usize,
) -> Result<usize, Errno> {
    wake(linux, thread, at, most, ANY, false)
}

fn requeue<M: Machine>(
    ctx: &Ctx<'_, M>,
    (from, to): (u64, u64),
    (wake, move_most): (i32, i32),
    expected: Option<u32>,
    private: bool,
) -> Result<usize, Errno> {
    let linux = ctx.linux;
    let (wake, move_most) = match (usize::try_from(wake), usize::try_from(move_most)) {
        (Ok(wake), Ok(most)) => (wake, most),
        _ => return Err(Errno::EINVAL),
    };
    let (key, other) =
        (key_of(linux.machine, ctx.thread, from, private)?, key_of(linux.machine, ctx.thread, to, private)?);
    loop {
        let mut check = || match expected {
            None => Ok(true),
            Some(value) => linux.machine.peek_user_u32(from).map(|found| found == value),
        };
        match linux.futexes.table.requeue(linux.scheduler, key, other, wake, move_most, &mut check) {
            Ok(Err(refused)) => return Err(mixed(refused)),
            // `FUTEX_CMP_REQUEUE` returns the number of woken and moved waiters, and `FUTEX_REQUEUE` only the number of
            // woken waiters.
            Ok(Ok(Some((woken, moved)))) => return Ok(if expected.is_some() { woken + moved } else { woken }),
            Ok(Ok(None)) => return Err(Errno::EAGAIN),
            Err(BadAddress { .. }) => {
                linux.machine.load_user_u32(from)?;
            }
        }
    }
}

const PRIVATE: u32 = raw::FUTEX_PRIVATE_FLAG;
const REALTIME: u32 = raw::FUTEX_CLOCK_REALTIME;

/// `futex`
pub fn sys_futex<M: Machine>(
    ctx: &mut Ctx<'_, M>,
    at: u64,
    operation: u32,
    value: u32,
    timeout: u64,
    other: u64,
    last: u32,
) -> Result<usize, Errno> {
    let private = operation & PRIVATE != 0;
    let command = operation & !(PRIVATE | REALTIME);
    let by_realtime = operation & REALTIME != 0;
    let takes_clock = matches!(command, raw::FUTEX_WAIT_BITSET | raw::FUTEX_WAIT_REQUEUE_PI | raw::FUTEX_LOCK_PI2);
    if by_realtime && !takes_clock {
        return Err(Errno::ENOSYS);
    }
    let absolute = |ctx: &Ctx<'_, M>, realtime| match timeout {
        0 => Ok::<_, Errno>(None),
        from => {
            let nanos = ctx.read::<Timespec>(from)?.nanos()?;
            Ok(Some(if realtime { ctx.until_day(nanos) } else { nanos }))
        }
    };
    match command {
        raw::FUTEX_WAIT | raw::FUTEX_WAIT_BITSET => {
            let bitset = if command == raw::FUTEX_WAIT { ANY } else { last };
            let deadline = match (command, timeout) {
                (raw::FUTEX_WAIT, from) if from != 0 => {
                    Some(ctx.now().saturating_add(ctx.read::<Timespec>(from)?.nanos()?))
                }
                _ => absolute(ctx, by_realtime)?,
            };
            wait(ctx, at, value, bitset, private, deadline)
        }
        raw::FUTEX_WAKE => wake(ctx.linux, ctx.thread, at, count(value), ANY, private),
        raw::FUTEX_WAKE_BITSET => wake(ctx.linux, ctx.thread, at, count(value), last, private),
        raw::FUTEX_REQUEUE => requeue(ctx, (at, other), (value as i32, timeout as i32), None, private),
        raw::FUTEX_CMP_REQUEUE => requeue(ctx, (at, other), (value as i32, timeout as i32), Some(last), private),
        raw::FUTEX_WAKE_OP => operation::wake_operation(ctx, (at, other), (value, timeout as u32), last, private),
        raw::FUTEX_LOCK_PI => pi::lock(ctx, at, private, absolute(ctx, true)?, false),
        raw::FUTEX_LOCK_PI2 => pi::lock(ctx, at, private, absolute(ctx, by_realtime)?, false),
        raw::FUTEX_TRYLOCK_PI => pi::lock(ctx, at, private, None, true),
        raw::FUTEX_UNLOCK_PI => pi::unlock(ctx, at, private),
        raw::FUTEX_WAIT_REQUEUE_PI => {
            let deadline = absolute(ctx, by_realtime)?;
            pi::wait_requeue(ctx, (at, other), value, private, deadline)
        }
        raw::FUTEX_CMP_REQUEUE_PI => pi::requeue(ctx, (at, other), (value as i32, timeout as i32), last, private),
        _ => Err(Errno::ENOSYS),
    }
}

/// Converts a number of waiters to wake. As on Linux, 0 means one, and a negative number means all.
fn count(value: u32) -> usize {
    if (value as i32) < 0 { usize::MAX } else { value.max(1) as usize }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_aligned_words_of_user_space() {
        assert_eq!(check_address(0x1002), Err(Errno::EINVAL));
        assert_eq!(check_address(USER_END), Err(Errno::EFAULT));
        assert_eq!(check_address(u64::MAX - 3), Err(Errno::EFAULT));
        assert_eq!(check_address(0x1000), Ok(()));
    }
}
