//! `poll`, and the parts that it shares with other calls that wait for many files at once.

use crate::file::open::no_restart;
use linux_raw_sys::general as raw;
use quire_fs::{FsError, Ready};
use quire_heap::{Arc, Vec};
use quire_linux_state::file::host::File;
use quire_linux_state::process::sleep::{Listening, PollCall, PollWait, Sleep};
use quire_linux_state::process::thread::Restart;
use quire_linux_state::shortage::ATTEMPTS;
use quire_linux_state::signal::SigSet;
use quire_linux_state::{Ctx, Errno, Machine};
use quire_sync::atomic::Ordering;

/// The `poll` bits of a readiness state.
#[inline]
pub(super) fn poll_bits(ready: Ready) -> u32 {
    u32::from(POLL_BITS[usize::from(ready.bits() & Ready::all().bits())])
}

/// The `poll` bits of each readiness state. The index is the bits of the [`Ready`] value.
static POLL_BITS: [u16; Ready::all().bits() as usize + 1] = {
    const PAIRS: [(Ready, u32); 6] = [
        (Ready::READ, raw::POLLIN | raw::POLLRDNORM),
        (Ready::WRITE, raw::POLLOUT | raw::POLLWRNORM),
        (Ready::HANGUP, raw::POLLHUP),
        (Ready::ERROR, raw::POLLERR),
        (Ready::PRIORITY, raw::POLLPRI),
        (Ready::READ_HANGUP, raw::POLLRDHUP),
    ];
    let mut all = [0; Ready::all().bits() as usize + 1];
    let mut state = 0;
    while state < all.len() {
        let mut at = 0;
        while at < PAIRS.len() {
            if state & PAIRS[at].0.bits() as usize != 0 {
                all[state] |= PAIRS[at].1 as u16;
            }
            at += 1;
        }
        state += 1;
    }
    all
};

/// The deadline of a call that does not wait. Such a call need not read the clock.
pub(super) const AT_ONCE: u64 = 0;

/// Converts a relative time in milliseconds to a deadline. `None`, for a negative time, means no deadline.
pub(super) fn deadline_of<M: Machine>(ctx: &Ctx<'_, M>, milliseconds: i32) -> Option<u64> {
    match u64::try_from(milliseconds) {
        Ok(0) => Some(AT_ONCE),
        Ok(ms) => Some(ctx.now() + ms * 1_000_000),
        Err(_) => None,
    }
}

/// Converts a relative time in nanoseconds to a deadline. `None`, after an overflow, means no deadline.
pub(super) fn deadline_after(now: u64, ns: u64) -> Option<u64> {
    now.checked_add(ns)
}

/// Reads a relative time, a `timespec` argument, in nanoseconds. `None` for a null pointer.
pub(crate) fn timeout<M: Machine>(ctx: &Ctx<'_, M>, at: u64) -> Result<Option<u64>, Errno> {
    if at == 0 {
        return Ok(None);
    }
    let [seconds, nanos] = ctx.read::<[i64; 2]>(at)?;
    if seconds < 0 || !(0..1_000_000_000).contains(&nanos) {
        return Err(Errno::EINVAL);
    }
    Ok(Some((seconds as u64).saturating_mul(1_000_000_000).saturating_add(nanos as u64)))
}

/// Replaces the signal mask until the call ends with [`end_temporary_mask`]. A null `mask` changes nothing.
pub(super) fn temporary_mask<M: Machine>(ctx: &mut Ctx<'_, M>, mask: u64, size: u64) -> Result<(), Errno> {
    if mask == 0 {
        return Ok(());
    }
    if size != 8 {
        return Err(Errno::EINVAL);
    }
    let new = SigSet(ctx.read::<u64>(mask)?);
    ctx.set_temporary_mask(new);
    Ok(())
}

/// Ends a call that may have a temporary mask. If no signal interrupted the call, the old mask is restored at once. As
/// on Linux, signals that arrived during the call stay pending, because no handler runs unless the call returns EINTR.
pub(super) fn end_temporary_mask<M: Machine>(
    ctx: &mut Ctx<'_, M>,
    outcome: Result<usize, Errno>,
) -> Result<usize, Errno> {
    if !matches!(outcome, Err(Errno::EINTR | Errno::ERESTARTNOHAND)) {
        ctx.thread.restore_mask();
    }
    outcome
}

struct Entry<M: Machine> {
    file: Option<Arc<File<M>>>,
    events: u32,
    result: u32,
}

/// Continues after a wake-up: returns the result, or sleeps again.
pub(crate) fn go_on<M: Machine>(ctx: &mut Ctx<'_, M>, wait: PollWait<M>) -> Result<usize, Errno> {
    let deadline = ctx.thread.park.deadline();
    let PollWait { call, asked, listening } = wait;
    drop(listening);
    let mut asked = Asked::Many(asked);
    let mut done = poll(ctx, call, &mut asked, deadline);
    // If the scan fails for lack of memory, only the scan is repeated. The whole call cannot be repeated, because its
    // deadline may be relative.
    for _ in 0..ATTEMPTS {
        if !done.as_ref().is_err_and(FsOrErrno::is_memory) || ctx.thread.killed() || !ctx.linux.has_made_room() {
            break;
        }
        done = poll(ctx, call, &mut asked, deadline);
    }
    outcome(ctx, call, deadline, done)
}

/// The most entries of an array that needs no heap memory.
const FEW: usize = 4;

/// A copy of the caller's array of `struct pollfd`.
enum Asked {
    Few([u64; FEW], usize),
    Many(Vec<u64>),
}

impl Asked {
    /// Reads the array of `count` entries at user address `at`.
    fn read<M: Machine>(ctx: &Ctx<'_, M>, at: u64, count: u64) -> Result<Self, Errno> {
        let limit = quire_linux_state::file::view::descriptor_limit(ctx.thread) as usize;
        let count = usize::try_from(count).map_err(|_| Errno::EINVAL)?;
        if count > FEW || count > limit {
            return Ok(Asked::Many(ctx.user().read_many(at, count, limit)?));
        }
        let mut few = [0; FEW];
        ctx.user().read_slice(at, &mut few[..count])?;
        Ok(Asked::Few(few, count))
    }

    fn all(&self) -> &[u64] {
        match self {
            Asked::Few(few, count) => &few[..*count],
            Asked::Many(many) => many,
        }
    }

    /// Takes the array, to store it while the call sleeps.
    fn take(&mut self) -> Result<Vec<u64>, Errno> {
        Ok(match self {
            Asked::Few(few, count) => Vec::try_copy(&few[..*count])?,
            Asked::Many(many) => core::mem::take(many),
        })
    }
}

/// The descriptor of an entry, and its awaited events. Errors and hang-ups are always awaited.
fn parts(entry: u64) -> (i32, u32) {
    (entry as u32 as i32, (entry >> 32) as u32 & 0xffff | raw::POLLERR | raw::POLLHUP)
}

fn poll<M: Machine>(
    ctx: &mut Ctx<'_, M>,
    call: PollCall,
    asked: &mut Asked,
    deadline: Option<u64>,
) -> Result<usize, FsOrErrno> {
    let (PollCall::Poll { fds: at, .. } | PollCall::Ppoll { fds: at, .. }) = call;
    let user = ctx.user();
    let store = |i: usize, result: u32| user.write(at + 8 * i as u64 + 6, &(result as u16)).map_err(Errno::from);
    // Each result is written to user memory when it is found. If the call then waits, the scan after the wake-up writes
    // all results again.
    let mut n = 0;
    for (i, word) in asked.all().iter().enumerate() {
        let (fd, events) = parts(*word);
        let ready = |file: Arc<File<M>>| poll_bits(file.ready()) & events;
        let result = if fd < 0 { 0 } else { ctx.file(fd).map_or(raw::POLLNVAL, ready) };
        n += usize::from(result != 0);
        store(i, result)?;
    }
    if n == 0 && deadline.is_none_or(|d| d != AT_ONCE && d > ctx.now()) {
        let mut entries: Vec<Entry<M>> = Vec::new();
        entries.try_reserve_exact(asked.all().len()).map_err(Errno::from)?;
        for word in asked.all() {
            let (fd, events) = parts(*word);
            let file = if fd < 0 { None } else { ctx.file(fd).ok() };
            let result = if fd >= 0 && file.is_none() { raw::POLLNVAL } else { 0 };
            entries.push_reserved(Entry { file, events, result });
        }
        // The files are in a separate list, which stays alive if the thread sleeps, unlike `entries`.
        let mut files: Vec<Arc<File<M>>> = Vec::new();
        files.try_reserve_exact(entries.len()).map_err(Errno::from)?;
        entries.iter().filter_map(|e| e.file.clone()).for_each(|file| files.push_reserved(file));
        let mut scan = || {
            let mut n = 0;
            for e in &mut entries {
                if let Some(file) = &e.file {
                    e.result = poll_bits(file.ready()) & e.events;
                }
                n += usize::from(e.result != 0);
            }
            n
        };
        let listening = Listening::to(files).map_err(FsOrErrno::Fs)?;
        loop {
            n = scan();
            if n > 0 {
                break;
            }
            if ctx.interrupted() {
                return Err(FsOrErrno::Fs(FsError::Interrupted));
            }
            // The scan above may have slept on a lock, and that sleep may have consumed the wake-up of a change. So
            // changes are checked again here. Nothing consumes a wake-up between this check and the sleep.
            if !listening.poller.take_changed() {
                let wait = PollWait { call, asked: asked.take()?, listening };
                return Err(FsOrErrno::Errno(ctx.sleep(Sleep::Poll(wait), deadline)));
            }
        }
        for (i, e) in entries.iter().enumerate() {
            store(i, e.result)?;
        }
    }
    Ok(n)
}

/// Ends the call: converts its result, and prepares the restart after a signal.
fn outcome<M: Machine>(
    ctx: &mut Ctx<'_, M>,
    call: PollCall,
    deadline: Option<u64>,
    done: Result<usize, FsOrErrno>,
) -> Result<usize, Errno> {
    if ctx.asleep {
        return Err(Errno::EINTR);
    }
    match call {
        PollCall::Poll { fds, count } => match done {
            Ok(n) => Ok(n),
            Err(FsOrErrno::Fs(FsError::Interrupted)) => {
                let deadline = deadline.unwrap_or(u64::MAX);
                Err(ctx.restart_with(Restart::Poll { fds, count, deadline }))
            }
            Err(FsOrErrno::Fs(e)) => Err(e.into()),
            Err(FsOrErrno::Errno(e)) => Err(e),
        },
        PollCall::Ppoll { time, .. } => {
            let done = done.map_err(|e| match e {
                FsOrErrno::Fs(FsError::Interrupted) => Errno::ERESTARTNOHAND,
                FsOrErrno::Fs(e) => no_restart(e),
                FsOrErrno::Errno(e) => e,
            });
            let parts = |left| [left / 1_000_000_000, left % 1_000_000_000];
            let done = write_remaining(ctx, time, deadline, parts, done);
            end_temporary_mask(ctx, done)
        }
    }
}

enum FsOrErrno {
    Fs(FsError),
    Errno(Errno),
}

impl FsOrErrno {
    fn is_memory(&self) -> bool {
        match self {
            FsOrErrno::Fs(e) => Errno::from(*e) == Errno::ENOMEM,
            FsOrErrno::Errno(e) => *e == Errno::ENOMEM,
        }
    }
}

impl From<Errno> for FsOrErrno {
    fn from(e: Errno) -> Self {
        FsOrErrno::Errno(e)
    }
}

/// `poll` with an absolute deadline in nanoseconds (`u64::MAX`: none). `restart_syscall` resumes the call here.
pub fn restart_poll<M: Machine>(ctx: &mut Ctx<'_, M>, fds: u64, count: u64, deadline: u64) -> Result<usize, Errno> {
    let (call, deadline) = (PollCall::Poll { fds, count }, (deadline != u64::MAX).then_some(deadline));
    let done = match Asked::read(ctx, fds, count) {
        Ok(mut asked) => poll(ctx, call, &mut asked, deadline),
        Err(e) => Err(e.into()),
    };
    outcome(ctx, call, deadline, done)
}

/// `poll`
pub fn sys_poll<M: Machine>(ctx: &mut Ctx<'_, M>, fds: u64, count: u64, milliseconds: i32) -> Result<usize, Errno> {
    let deadline = deadline_of(ctx, milliseconds).unwrap_or(u64::MAX);
    restart_poll(ctx, fds, count, deadline)
}

/// `ppoll`
pub fn sys_ppoll<M: Machine>(
    ctx: &mut Ctx<'_, M>,
    fds: u64,
    count: u64,
    time: u64,
    mask: u64,
    mask_size: u64,
) -> Result<usize, Errno> {
    let relative = timeout(ctx, time)?;
    let deadline = relative.and_then(|ns| deadline_after(ctx.now(), ns));
    temporary_mask(ctx, mask, mask_size)?;
    let call = PollCall::Ppoll { fds, time };
    let done = match Asked::read(ctx, fds, count) {
        Ok(mut asked) => poll(ctx, call, &mut asked, deadline),
        Err(e) => Err(e.into()),
    };
    outcome(ctx, call, deadline, done)
}

/// Writes the remaining time to user address `at`, in the form that `parts` makes, unless the process's personality
/// forbids that. Returns the result of the call. If the time was not written, the call is not restarted after a signal,
/// because it would wait too long.
pub(super) fn write_remaining<M: Machine>(
    ctx: &Ctx<'_, M>,
    at: u64,
    deadline: Option<u64>,
    parts: impl FnOnce(u64) -> [u64; 2],
    done: Result<usize, Errno>,
) -> Result<usize, Errno> {
    /// Linux's STICKY_TIMEOUTS, which forbids to write the remaining time.
    const STICKY: u32 = 0x0400_0000;
    if at == 0 {
        return done;
    }
    let keeps = ctx.process().personality.load(Ordering::Relaxed) & STICKY != 0;
    let write = |deadline: u64| ctx.write(at, &parts(deadline.saturating_sub(ctx.now()))).is_ok();
    let written = !keeps && deadline.is_none_or(write);
    if written { done } else { done.map_err(|e| if e == Errno::ERESTARTNOHAND { Errno::EINTR } else { e }) }
}
