//! `select` and `pselect6`.

use super::File;
use super::poll::{deadline_after, end_temporary_mask, temporary_mask, timeout, wait_for, write_remaining};
use crate::{Ctx, Errno, Machine};
use quire_fs::{FsError, Ready};
use quire_heap::{Arc, Vec};

/// The events of the read, write and exceptional sets.
const SETS: [Ready; 3] =
    [Ready::READ.union(Ready::HANGUP).union(Ready::ERROR), Ready::WRITE.union(Ready::ERROR), Ready::PRIORITY];

struct Watched<M: Machine> {
    fd: usize,
    file: Arc<File<M>>,
    /// The sets that it is in.
    sets: [bool; 3],
}

fn select<M: Machine>(ctx: &Ctx<'_, M>, count: i32, at: [u64; 3], deadline: Option<u64>) -> Result<usize, Errno> {
    let count = usize::try_from(count).map_err(|_| Errno::EINVAL)?;
    // Descriptors beyond the table cannot be open, and Linux ignores them.
    let count = count.min(ctx.files()?.size().next_multiple_of(64));
    let words = count.div_ceil(64);
    let mut sets: [Vec<u64>; 3] = [const { Vec::new() }; 3];
    for (set, at) in sets.iter_mut().zip(at) {
        *set = match at {
            0 => {
                let mut empty = Vec::new();
                empty.try_resize(words, 0)?;
                empty
            }
            at => ctx.user().read_many(at, words, words)?,
        };
    }
    let mut watched: Vec<Watched<M>> = Vec::new();
    for fd in 0..count {
        let inside = [0, 1, 2].map(|i| sets[i][fd / 64] >> (fd % 64) & 1 != 0);
        if inside.contains(&true) {
            let file = ctx.file(fd as i32)?;
            watched.try_push(Watched { fd, file, sets: inside })?;
        }
    }
    let n = wait_for(ctx, watched.iter().map(|w| &w.file), deadline, || {
        sets.iter_mut().for_each(|set| set.fill(0));
        let mut n = 0;
        for w in &watched {
            let ready = w.file.ready();
            for ((set, wants), inside) in sets.iter_mut().zip(SETS).zip(w.sets) {
                if inside && ready.intersects(wants) {
                    set[w.fd / 64] |= 1 << (w.fd % 64);
                    n += 1;
                }
            }
        }
        n
    })
    .map_err(|e| match e {
        FsError::Interrupted => Errno::ERESTARTNOHAND,
        e => e.into(),
    })?;
    for (set, at) in sets.iter().zip(at) {
        if at != 0 {
            for (i, word) in set.iter().enumerate() {
                ctx.write(at + 8 * i as u64, word)?;
            }
        }
    }
    Ok(n)
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
    let outcome = select(ctx, count, [read, write, except], deadline);
    if let Some(deadline) = deadline {
        let left = deadline.saturating_sub(ctx.now()) / 1000;
        // A failed write is ignored.
        let _unwritten = ctx.write_optional(time, &[left / 1_000_000, left % 1_000_000]);
    }
    outcome
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
    let outcome = select(ctx, count, [read, write, except], deadline);
    write_remaining(ctx, time, deadline);
    end_temporary_mask(ctx, outcome)
}
