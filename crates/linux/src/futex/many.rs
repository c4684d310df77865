//! `futex_waitv`, which waits on several words at once.

use crate::futex::{ANY, key_of};
use quire_heap::Vec;
use quire_linux_state::Ctx;
use quire_linux_state::errno::Errno;
use quire_linux_state::futex::table::Futexes;
use quire_linux_state::machine::{BadAddress, Machine};
use quire_linux_state::time::Timespec;
use quire_task::FutexWait;
use quire_task::futex::Waiter;

/// The most words of a call.
const MOST: u32 = 128;
/// The size of a `struct futex_waitv` in bytes.
const ENTRY: u64 = 24;
/// The flags of a word: `SIZE_32` for a size of 32 bits, and `PRIVATE`. Other sizes are refused.
const SIZE_32: u32 = 2;
const PRIVATE: u32 = 128;
const CLOCK_REALTIME: i32 = 0;
const CLOCK_MONOTONIC: i32 = 1;

/// A word, and the value that the caller expects in it.
#[derive(Clone, Copy)]
struct Word {
    at: u64,
    value: u32,
    private: bool,
}

impl Word {
    fn read<M: Machine>(ctx: &Ctx<'_, M>, at: u64) -> Result<Word, Errno> {
        let [value, address, flags] = ctx.read::<[u64; 3]>(at)?;
        let (flags, reserved) = (flags as u32, flags >> 32);
        if flags & !(SIZE_32 | PRIVATE) != 0 || flags & SIZE_32 == 0 || reserved != 0 {
            return Err(Errno::EINVAL);
        }
        let value = u32::try_from(value).map_err(|_| Errno::EINVAL)?;
        Ok(Word { at: address, value, private: flags & PRIVATE != 0 })
    }
}

/// The waiters for the words. They are listed in the futex table, and the drop of this value takes them off the table.
struct Listed<'a, M: Machine> {
    futexes: &'a Futexes<M>,
    scheduler: &'static quire_task::Scheduler<M>,
    /// The vector never grows, so that listed waiters are not moved.
    waiters: Vec<Waiter<M>>,
    /// The number of waiters that are listed, from the first on.
    listed: usize,
}

impl<M: Machine> Listed<'_, M> {
    /// The first waiter that a wake-up chose.
    fn woken(&self) -> Option<usize> {
        self.waiters[..self.listed].iter().position(|waiter| {
            // SAFETY: the waiter is listed, or a wake-up has chosen it and no call of `end` has returned that result
            // yet.
            let end = unsafe { self.futexes.table.end(self.scheduler, waiter, None, &mut || false) };
            end == Some(FutexWait::Woken)
        })
    }

    /// Takes all waiters except `but` off the table. Returns the index of the first waiter that a wake-up had chosen
    /// before it was taken off.
    fn take_off(&mut self, but: Option<usize>) -> Option<usize> {
        let mut chosen = None;
        for at in (0..core::mem::take(&mut self.listed)).filter(|at| Some(*at) != but) {
            // SAFETY: the waiter is listed, or a wake-up has chosen it. A deadline in the past ends the wait at once.
            let end = unsafe { self.futexes.table.end(self.scheduler, &self.waiters[at], Some(0), &mut || false) };
            if end == Some(FutexWait::Woken) {
                chosen = chosen.or(Some(at));
            }
        }
        chosen
    }
}

impl<M: Machine> Drop for Listed<'_, M> {
    fn drop(&mut self) {
        self.take_off(None);
    }
}

/// `futex_waitv`
pub fn sys_futex_waitv<M: Machine>(
    ctx: &mut Ctx<'_, M>,
    at: u64,
    count: u32,
    flags: u32,
    timeout: u64,
    clock: i32,
) -> Result<usize, Errno> {
    if flags != 0 || count == 0 || count > MOST || at == 0 {
        return Err(Errno::EINVAL);
    }
    let (linux, thread) = (ctx.linux, ctx.thread);
    let deadline = match timeout {
        0 => None,
        from => {
            let nanos = || ctx.read::<Timespec>(from)?.nanos();
            match clock {
                CLOCK_MONOTONIC => Some(nanos()?),
                CLOCK_REALTIME => Some(ctx.until_day(nanos()?)),
                _ => return Err(Errno::EINVAL),
            }
        }
    };
    let mut words = Vec::try_with_capacity(count as usize)?;
    for n in 0..u64::from(count) {
        words.push_reserved(Word::read(ctx, at.checked_add(n * ENTRY).ok_or(Errno::EFAULT)?)?);
    }
    let waiters = Vec::try_from_iter(words.iter().map(|_| Waiter::new()))?;
    let mut all = Listed { futexes: &linux.futexes, scheduler: linux.scheduler, waiters, listed: 0 };
    for word in &words {
        let key = key_of(linux.machine, thread, word.at, word.private)?;
        loop {
            let mut check = || linux.machine.peek_user_u32(word.at).map(|found| found == word.value);
            let waiter = &all.waiters[all.listed];
            // SAFETY: the waiter is not listed yet. It is not moved, and the drop of `Listed` takes it off.
            match unsafe { linux.futexes.table.begin(linux.scheduler, waiter, key, ANY, &mut check) } {
                Ok(true) => break,
                // A wake-up on an earlier word takes precedence over EAGAIN.
                Ok(false) => return all.take_off(None).ok_or(Errno::EAGAIN),
                Err(BadAddress { .. }) => match linux.machine.load_user_u32(word.at) {
                    Ok(_) => {}
                    Err(e) => return all.take_off(None).ok_or(e.into()),
                },
            }
        }
        all.listed += 1;
    }
    loop {
        if let Some(woken) = all.woken() {
            all.take_off(Some(woken));
            return Ok(woken);
        }
        let why = match () {
            () if ctx.interrupted() => Errno::ERESTARTSYS,
            () if deadline.is_some_and(|deadline| deadline <= ctx.now()) => Errno::ETIMEDOUT,
            () => {
                linux.scheduler.park(deadline);
                continue;
            }
        };
        return all.take_off(None).ok_or(why);
    }
}
