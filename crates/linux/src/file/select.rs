//! `select` and `pselect6`.

use crate::file::poll::{deadline_after, end_temporary_mask, temporary_mask, timeout, write_remaining};
use linux_raw_sys::general::__NR_pselect6;
use quire_fs::Ready;
use quire_heap::{Arc, Vec};
use quire_linux_state::file::host::File;
use quire_linux_state::process::sleep::{Listening, SelectCall, SelectWait, Sleep};
use quire_linux_state::shortage::ATTEMPTS;
use quire_linux_state::{Ctx, Errno, Machine};

/// The events that make a descriptor ready in the read, write and exceptional sets.
const SETS: [Ready; 3] =
    [Ready::READ.union(Ready::HANGUP).union(Ready::ERROR), Ready::WRITE.union(Ready::ERROR), Ready::PRIORITY];

struct Watched<M: Machine> {
    fd: usize,
    /// `None`: the descriptor was closed while the call slept.
    file: Option<Arc<File<M>>>,
    /// For each set, 1 if the descriptor is in it, or 0.
    sets: [u64; 3],
}

/// Reads the caller's three sets of `count` descriptors. The result has the words of the first set, then the words of
/// the second and the third set.
fn read_sets<M: Machine>(ctx: &Ctx<'_, M>, count: i32, at: [u64; 3]) -> Result<Vec<u64>, Errno> {
    let count = usize::try_from(count).map_err(|_| Errno::EINVAL)?;
    // Descriptors beyond the table cannot be open, and Linux ignores them.
    let count = count.min(ctx.files()?.size().next_multiple_of(64));
    let words = count.div_ceil(64);
    let mut sets = Vec::new();
    sets.try_resize(3 * words, 0)?;
    for (i, at) in at.into_iter().enumerate().filter(|(_, at)| *at != 0) {
        ctx.user().read_slice(at, &mut sets[i * words..(i + 1) * words])?;
        // The last word may have bits beyond the count.
        if !count.is_multiple_of(64) {
            sets[(i + 1) * words - 1] &= (1 << (count % 64)) - 1;
        }
    }
    Ok(sets)
}

/// Calls `each` for the descriptors of the sets in ascending order. The second argument says for each set whether it
/// has the descriptor.
fn each_asked(asked: &[u64], mut each: impl FnMut(usize, [u64; 3]) -> Result<(), Errno>) -> Result<(), Errno> {
    let words = asked.len() / 3;
    for word in 0..words {
        let sets = [0, 1, 2].map(|i| asked[i * words + word]);
        let mut left = sets[0] | sets[1] | sets[2];
        while left != 0 {
            let bit = left.trailing_zeros();
            left &= left - 1;
            each(64 * word + bit as usize, sets.map(|set| set >> bit & 1))?;
        }
    }
    Ok(())
}

/// Marks in `found` the sets in which a file is ready, and returns their number. As on Linux, a descriptor that was
/// closed during the call is ready in all sets. Otherwise the call could sleep for ever.
#[inline]
fn mark<M: Machine>(found: &mut [u64], fd: usize, sets: [u64; 3], file: Option<&File<M>>) -> usize {
    let words = found.len() / 3;
    let ready = file.map_or(Ready::all(), |file| file.ready());
    let mut n = 0;
    for i in 0..3 {
        if sets[i] != 0 && ready.intersects(SETS[i]) {
            found[i * words + fd / 64] |= 1 << (fd % 64);
            n += 1;
        }
    }
    n
}

/// Looks for files that are ready. If there are none, the thread sleeps without a kernel stack. With `again`, the call
/// has slept before, so a descriptor may have been closed during the sleep.
fn select<M: Machine>(
    ctx: &mut Ctx<'_, M>,
    call: SelectCall,
    asked: &mut Vec<u64>,
    deadline: Option<u64>,
    again: bool,
) -> Result<usize, Errno> {
    let words = asked.len() / 3;
    let mut found = Vec::new();
    found.try_resize(3 * words, 0)?;
    let mut n = 0;
    each_asked(asked, |fd, sets| {
        let file = match ctx.file(fd as i32) {
            Ok(file) => Some(file),
            Err(_) if again => None,
            Err(e) => return Err(e),
        };
        n += mark(&mut found, fd, sets, file.as_deref());
        Ok(())
    })?;
    if n == 0 && deadline.is_none_or(|d| d > ctx.now()) {
        let mut watched: Vec<Watched<M>> = Vec::new();
        each_asked(asked, |fd, sets| Ok(watched.try_push(Watched { fd, file: ctx.file(fd as i32).ok(), sets })?))?;
        // The files are in a separate list, which stays alive if the thread sleeps, unlike `watched`.
        let mut files: Vec<Arc<File<M>>> = Vec::new();
        files.try_reserve_exact(watched.len())?;
        watched.iter().filter_map(|w| w.file.clone()).for_each(|file| files.push_reserved(file));
        let mut scan = || {
            found.fill(0);
            watched.iter().map(|w| mark(&mut found, w.fd, w.sets, w.file.as_deref())).sum::<usize>()
        };
        let listening = Listening::to(files)?;
        loop {
            n = scan();
            if n > 0 {
                break;
            }
            if ctx.interrupted() {
                return Err(Errno::ERESTARTNOHAND);
            }
            // The scan above may have slept on a lock, and that sleep may have consumed the wake-up of a change. So
            // changes are checked again here. Nothing consumes a wake-up between this check and the sleep.
            if !listening.poller.take_changed() {
                let asked = core::mem::take(asked);
                return Err(ctx.sleep(Sleep::Select(SelectWait { call, asked, listening }), deadline));
            }
        }
    }
    for (i, at) in call.sets.into_iter().enumerate().filter(|(_, at)| *at != 0 && words > 0) {
        ctx.user().write_slice(at, &found[i * words..(i + 1) * words])?;
    }
    Ok(n)
}

/// Continues after a wake-up: returns the result, or sleeps again.
pub(crate) fn go_on<M: Machine>(ctx: &mut Ctx<'_, M>, wait: SelectWait<M>) -> Result<usize, Errno> {
    let deadline = ctx.thread.park.deadline();
    let SelectWait { call, mut asked, listening } = wait;
    drop(listening);
    let mut done = select(ctx, call, &mut asked, deadline, true);
    // If the scan fails for lack of memory, only the scan is repeated. The whole call cannot be repeated, because its
    // deadline may be relative.
    for _ in 0..ATTEMPTS {
        if done != Err(Errno::ENOMEM) || ctx.thread.killed() || !ctx.linux.has_made_room() {
            break;
        }
        done = select(ctx, call, &mut asked, deadline, true);
    }
    outcome(ctx, call, deadline, done)
}

/// Ends the call: writes the remaining time, and returns the result.
fn outcome<M: Machine>(
    ctx: &mut Ctx<'_, M>,
    call: SelectCall,
    deadline: Option<u64>,
    done: Result<usize, Errno>,
) -> Result<usize, Errno> {
    if ctx.asleep {
        return Err(Errno::EINTR);
    }
    if ctx.regs.orig_rax == u64::from(__NR_pselect6) {
        let parts = |left| [left / 1_000_000_000, left % 1_000_000_000];
        let done = write_remaining(ctx, call.time, deadline, parts, done);
        return end_temporary_mask(ctx, done);
    }
    write_remaining(ctx, call.time, deadline, |left| [left / 1_000_000_000, left / 1000 % 1_000_000], done)
}

/// Makes the call with `count` descriptors.
fn begin<M: Machine>(
    ctx: &mut Ctx<'_, M>,
    count: i32,
    call: SelectCall,
    deadline: Option<u64>,
) -> Result<usize, Errno> {
    let done = read_sets(ctx, count, call.sets).and_then(|mut asked| select(ctx, call, &mut asked, deadline, false));
    outcome(ctx, call, deadline, done)
}

/// `select`
pub fn sys_select<M: Machine>(
    ctx: &mut Ctx<'_, M>,
    count: i32,
    read: u64,
    write: u64,
    except: u64,
    time: u64,
) -> Result<usize, Errno> {
    let relative = match time {
        0 => None,
        at => {
            let [seconds, micros] = ctx.read::<[i64; 2]>(at)?;
            if seconds < 0 || micros < 0 {
                return Err(Errno::EINVAL);
            }
            let ns = (micros as u64).saturating_mul(1000);
            Some((seconds as u64).saturating_mul(1_000_000_000).saturating_add(ns))
        }
    };
    let deadline = relative.and_then(|ns| deadline_after(ctx.now(), ns));
    begin(ctx, count, SelectCall { sets: [read, write, except], time }, deadline)
}

/// `pselect6`
pub fn sys_pselect6<M: Machine>(
    ctx: &mut Ctx<'_, M>,
    count: i32,
    read: u64,
    write: u64,
    except: u64,
    time: u64,
    mask: u64,
) -> Result<usize, Errno> {
    let deadline = timeout(ctx, time)?.and_then(|ns| deadline_after(ctx.now(), ns));
    if mask != 0 {
        let [at, size] = ctx.read::<[u64; 2]>(mask)?;
        temporary_mask(ctx, at, size)?;
    }
    begin(ctx, count, SelectCall { sets: [read, write, except], time }, deadline)
}
