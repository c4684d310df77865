//! `select` and `pselect6`.

use super::File;
use super::poll::{deadline_after, end_temporary_mask, tell_remaining, temporary_mask, timeout};
use crate::process::sleep::{Listening, SelectCall, SelectWait, Sleep};
use crate::shortage::ATTEMPTS;
use crate::{Ctx, Errno, Machine};
use quire_fs::Ready;
use quire_heap::{Arc, Vec};

/// The events of the read, write and exceptional sets.
const SETS: [Ready; 3] =
    [Ready::READ.union(Ready::HANGUP).union(Ready::ERROR), Ready::WRITE.union(Ready::ERROR), Ready::PRIORITY];

struct Watched<M: Machine> {
    fd: usize,
    /// `None`: it was closed while the call slept.
    file: Option<Arc<File<M>>>,
    /// The sets that it is in.
    sets: [bool; 3],
}

/// The sets that the caller asks for, of `count` descriptors.
fn read_sets<M: Machine>(ctx: &Ctx<'_, M>, count: i32, at: [u64; 3]) -> Result<Vec<u64>, Errno> {
    let count = usize::try_from(count).map_err(|_| Errno::EINVAL)?;
    // Descriptors beyond the table cannot be open, and Linux ignores them.
    let count = count.min(ctx.files()?.size().next_multiple_of(64));
    let words = count.div_ceil(64);
    let mut sets = Vec::new();
    sets.try_resize(3 * words, 0)?;
    for (i, at) in at.into_iter().enumerate().filter(|(_, at)| *at != 0) {
        let set: Vec<u64> = ctx.user().read_many(at, words, words)?;
        sets[i * words..(i + 1) * words].copy_from_slice(&set);
        // The last word may have bits beyond the count.
        if !count.is_multiple_of(64) {
            sets[(i + 1) * words - 1] &= (1 << (count % 64)) - 1;
        }
    }
    Ok(sets)
}

/// Looks for files that are ready. If there are none, the thread waits without a kernel stack. `again`: it has waited
/// already, so a descriptor may have been closed meanwhile.
fn select<M: Machine>(
    ctx: &mut Ctx<'_, M>,
    call: SelectCall,
    asked: &mut Vec<u64>,
    deadline: Option<u64>,
    again: bool,
) -> Result<usize, Errno> {
    let words = asked.len() / 3;
    let mut watched: Vec<Watched<M>> = Vec::new();
    for fd in 0..64 * words {
        let inside = [0, 1, 2].map(|i| asked[i * words + fd / 64] >> (fd % 64) & 1 != 0);
        if inside.contains(&true) {
            match ctx.file(fd as i32) {
                Ok(file) => watched.try_push(Watched { fd, file: Some(file), sets: inside })?,
                Err(_) if again => watched.try_push(Watched { fd, file: None, sets: inside })?,
                Err(e) => return Err(e),
            }
        }
    }
    // The files have a list of their own, which outlives this call if the thread sleeps.
    let mut files: Vec<Arc<File<M>>> = Vec::new();
    files.try_reserve_exact(watched.len())?;
    watched.iter().filter_map(|w| w.file.clone()).for_each(|file| files.push_reserved(file));
    let mut found = Vec::new();
    found.try_resize(3 * words, 0)?;
    let mut scan = || {
        found.fill(0);
        let mut n = 0;
        for w in &watched {
            // As on Linux, a descriptor that was closed meanwhile is ready for all. Else the call could sleep for ever.
            let ready = w.file.as_ref().map_or(Ready::all(), |file| file.ready());
            for i in 0..3 {
                if w.sets[i] && ready.intersects(SETS[i]) {
                    found[i * words + w.fd / 64] |= 1 << (w.fd % 64);
                    n += 1;
                }
            }
        }
        n
    };
    let mut n = scan();
    if n == 0 && deadline.is_none_or(|d| d > ctx.now()) {
        let listening = Listening::to(files)?;
        loop {
            n = scan();
            if n > 0 {
                break;
            }
            if ctx.interrupted() {
                return Err(Errno::ERESTARTNOHAND);
            }
            // A scan may sleep, and use up the wake-up of a change. Nothing from here to the sleep does.
            if !listening.poller.take_changed() {
                let asked = core::mem::take(asked);
                return Err(ctx.sleep(Sleep::Select(SelectWait { call, asked, deadline, listening })));
            }
        }
    }
    for (i, at) in call.sets.into_iter().enumerate().filter(|(_, at)| *at != 0) {
        for word in 0..words {
            ctx.write(at + 8 * word as u64, &found[i * words + word])?;
        }
    }
    Ok(n)
}

/// Ends the wait, or sleeps on.
pub(crate) fn go_on<M: Machine>(ctx: &mut Ctx<'_, M>, wait: SelectWait<M>) -> Result<usize, Errno> {
    let SelectWait { call, mut asked, deadline, listening } = wait;
    drop(listening);
    let mut done = select(ctx, call, &mut asked, deadline, true);
    // To look again takes memory. The call cannot be repeated, because its deadline may be relative.
    for _ in 0..ATTEMPTS {
        if done != Err(Errno::ENOMEM) || ctx.thread.killed() || !ctx.linux.has_made_room() {
            break;
        }
        done = select(ctx, call, &mut asked, deadline, true);
    }
    outcome(ctx, call, deadline, done)
}

/// The result of the call, and the remaining time.
fn outcome<M: Machine>(
    ctx: &mut Ctx<'_, M>,
    call: SelectCall,
    deadline: Option<u64>,
    done: Result<usize, Errno>,
) -> Result<usize, Errno> {
    if ctx.asleep {
        return Err(Errno::EINTR);
    }
    if call.masked {
        let parts = |left| [left / 1_000_000_000, left % 1_000_000_000];
        let done = tell_remaining(ctx, call.time, deadline, parts, done);
        return end_temporary_mask(ctx, done);
    }
    tell_remaining(ctx, call.time, deadline, |left| [left / 1_000_000_000, left / 1000 % 1_000_000], done)
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
    begin(ctx, count, SelectCall { sets: [read, write, except], time, masked: false }, deadline)
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
    begin(ctx, count, SelectCall { sets: [read, write, except], time, masked: true }, deadline)
}
