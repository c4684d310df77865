//! `process_vm_readv` and `process_vm_writev`: a process copies from or to the memory of another process.
//!
//! The bytes are copied through a buffer in kernel memory. So faults in the two address spaces are independent, and the
//! number of moved bytes is exact.

use quire_fs::{FsError, Sink, Source};
use quire_heap::Vec;
use quire_linux_state::errno::Errno;
use quire_linux_state::machine::Machine;
use quire_linux_state::memory::Foreign;
use quire_linux_state::process::access::By;
use quire_linux_state::process::thread::work;
use quire_linux_state::user::transfer::Vectors;
use quire_linux_state::{Ctx, Pid};
use quire_sync::atomic::Ordering;

/// The size of the buffer in bytes. It is on the kernel stack, which page faults need too, so it is small.
const PIECE: usize = 1024;
/// The most pairs of address and length.
const MOST: usize = 1024;

/// The memory of the process of thread `pid`. Fails if the caller may not access that memory.
fn memory<M: Machine>(ctx: &Ctx<'_, M>, pid: i32) -> Result<Foreign<M>, Errno> {
    let tid = Pid::try_from(pid).map_err(|_| Errno::ESRCH)?;
    let process = ctx.linux.ids.process_of_thread(tid).ok_or(Errno::ESRCH)?;
    process.look_at(tid, ctx.thread, By::Real)?.memory.ok_or(Errno::ESRCH)
}

/// Reads the addresses and lengths in the other process's memory.
fn remote<M: Machine>(ctx: &Ctx<'_, M>, at: u64, count: u64) -> Result<Vec<[u64; 2]>, Errno> {
    let count = usize::try_from(count).map_err(|_| Errno::EINVAL)?;
    let all: Vec<[u64; 2]> = ctx.user().read_many(at, count, MOST)?;
    // Lengths are signed, as on Linux.
    if all.iter().any(|[_, len]| i64::try_from(*len).is_err()) { Err(Errno::EINVAL) } else { Ok(all) }
}

/// Calls `step(address, length)` for pieces of the other memory, `room` bytes at most together. Ends when a step moves
/// fewer bytes than its length, or when `ends` returns true. Returns the number of moved bytes.
fn each_piece(
    remote: &[[u64; 2]],
    mut room: usize,
    mut ends: impl FnMut() -> bool,
    mut step: impl FnMut(u64, usize) -> Result<usize, Errno>,
) -> Result<usize, Errno> {
    let mut moved = 0;
    for &[start, len] in remote {
        let mut done = 0;
        while done < len && room > 0 {
            let at = start.checked_add(done).ok_or(Errno::EFAULT);
            let n = PIECE.min(room).min(usize::try_from(len - done).unwrap_or(PIECE));
            let stepped = match at.and_then(|at| step(at, n)) {
                Err(e) => return if moved > 0 { Ok(moved) } else { Err(e) },
                Ok(stepped) => stepped,
            };
            moved += stepped;
            room -= stepped;
            done += stepped as u64;
            if stepped < n || ends() {
                return Ok(moved);
            }
        }
    }
    Ok(moved)
}

/// Whether the caller must end. As on Linux, no other signal interrupts a transfer.
fn ends<M: Machine>(ctx: &Ctx<'_, M>) -> bool {
    ctx.thread.work.load(Ordering::Relaxed) & work::KILL != 0
}

/// The checked arguments of both calls.
struct Given<M: Machine> {
    local: Vectors,
    remote: Vec<[u64; 2]>,
    memory: Foreign<M>,
}

impl<M: Machine> Given<M> {
    fn read(
        ctx: &Ctx<'_, M>,
        pid: i32,
        (local, locals): (u64, u64),
        (at, remotes): (u64, u64),
        flags: u64,
    ) -> Result<Self, Errno> {
        if flags != 0 {
            return Err(Errno::EINVAL);
        }
        let local = Vectors::many(&ctx.user(), local, locals)?;
        let remote = remote(ctx, at, remotes)?;
        Ok(Given { local, remote, memory: memory(ctx, pid)? })
    }
}

/// `process_vm_readv`
pub fn sys_process_vm_readv<M: Machine>(
    ctx: &mut Ctx<'_, M>,
    pid: i32,
    local: u64,
    locals: u64,
    remote: u64,
    remotes: u64,
    flags: u64,
) -> Result<usize, Errno> {
    let given = Given::read(ctx, pid, (local, locals), (remote, remotes), flags)?;
    let mut to = given.local.transfer(ctx.user());
    let mut piece = [0; PIECE];
    each_piece(
        &given.remote,
        to.room(),
        || ends(ctx),
        |at, n| {
            let got = given.memory.read(at, &mut piece[..n]).map_err(foreign_error)?;
            Ok(to.put(&piece[..got])?)
        },
    )
}

/// `process_vm_writev`
pub fn sys_process_vm_writev<M: Machine>(
    ctx: &mut Ctx<'_, M>,
    pid: i32,
    local: u64,
    locals: u64,
    remote: u64,
    remotes: u64,
    flags: u64,
) -> Result<usize, Errno> {
    let given = Given::read(ctx, pid, (local, locals), (remote, remotes), flags)?;
    let mut from = given.local.transfer(ctx.user());
    let mut piece = [0; PIECE];
    each_piece(
        &given.remote,
        from.left(),
        || ends(ctx),
        |at, n| match from.take(&mut piece[..n])? {
            0 => Err(FsError::Fault.into()),
            got => given.memory.store(at, &piece[..got]).map_err(foreign_error),
        },
    )
}

/// The errno of a fault in the other memory. As on Linux, all faults except ENOMEM become EFAULT.
fn foreign_error(e: quire_vm::FaultError) -> Errno {
    match e {
        quire_vm::FaultError::OutOfMemory => Errno::ENOMEM,
        _ => Errno::EFAULT,
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn pieces_end_at_the_first_that_is_cut() {
        let remote = [[0, 10_000], [20_000, 5]];
        let mut seen = std::vec::Vec::new();
        let all = each_piece(
            &remote,
            2_500,
            || false,
            |at, n| {
                seen.push((at, n));
                Ok(n)
            },
        );
        assert_eq!((all, seen.as_slice()), (Ok(2_500), &[(0, 1024), (1024, 1024), (2048, 452)][..]));
        assert_eq!(each_piece(&remote, 20_000, || false, |_, n| Ok(n)), Ok(10_005));
        assert_eq!(each_piece(&remote, 20_000, || false, |_, n| Ok(n - 1)), Ok(1023));
        assert_eq!(each_piece(&remote, 20_000, || true, |_, n| Ok(n)), Ok(1024));
        assert_eq!(each_piece(&[[u64::MAX, 2]], 9, || false, |_, n| Ok(n.min(1))), Ok(1));
        let fails = |at, n| if at == 0 { Ok(n) } else { Err(Errno::EFAULT) };
        assert_eq!(each_piece(&remote, 9_000, || false, fails), Ok(1024));
        assert_eq!(each_piece(&remote[1..], 9_000, || false, fails), Err(Errno::EFAULT));
    }
}
