//! Robust futexes. The futexes that an ending thread owns are marked, and for each one a waiter is woken.

use quire_linux_state::errno::Errno;
use quire_linux_state::machine::Machine;
use quire_linux_state::process::access::By;
use quire_linux_state::process::thread::Thread;
use quire_linux_state::user::UserMemory;
use quire_linux_state::{Ctx, Linux, Pid};
use quire_sync::atomic::Ordering;
use quire_task::futex::pi::{OWNER, OWNER_DIED, WAITERS};

/// The size of `struct robust_list_head` in bytes.
const HEAD_LEN: usize = 24;
/// The most entries that are followed, as on Linux, because a list may be circular or invalid.
const MOST: usize = 2048;

/// `set_robust_list`
pub fn sys_set_robust_list<M: Machine>(ctx: &mut Ctx<'_, M>, head: u64, len: usize) -> Result<usize, Errno> {
    if len != HEAD_LEN {
        return Err(Errno::EINVAL);
    }
    ctx.thread.robust_list.store(head, Ordering::Relaxed);
    Ok(0)
}

/// `get_robust_list`
pub fn sys_get_robust_list<M: Machine>(ctx: &mut Ctx<'_, M>, tid: i32, head: u64, len: u64) -> Result<usize, Errno> {
    let at = match tid {
        0 => ctx.thread.robust_list.load(Ordering::Relaxed),
        tid => {
            let task = ctx.linux.ids.thread(tid as Pid).ok_or(Errno::ESRCH)?;
            let Some(thread) = task.payload() else { return Err(Errno::ESRCH) };
            thread.process.look_at(thread.tid(), ctx.thread, By::Real)?;
            thread.robust_list.load(Ordering::Relaxed)
        }
    };
    ctx.write(len, &HEAD_LEN)?;
    ctx.write(head, &at)?;
    Ok(0)
}

/// Releases the futexes of the calling thread, which leaves its address space. The walk of the thread's list ends at
/// the first invalid entry. Locks with priority inheritance pass to their waiters. If `ends` is set, the thread ends;
/// otherwise it executes a program.
pub(crate) fn walk<M: Machine>(linux: &Linux<M>, thread: &Thread<M>, ends: bool) {
    let head = thread.robust_list.swap(0, Ordering::Relaxed);
    if head != 0 {
        let _wrong_list = follow(linux, thread, head);
    }
    crate::futex::pi::leave(linux, ends);
}

fn follow<M: Machine>(linux: &Linux<M>, thread: &Thread<M>, head: u64) -> Result<(), Errno> {
    let memory = UserMemory(linux.machine);
    let [first, offset, pending] = memory.read::<[u64; 3]>(head)?;
    let mut at = first;
    for _ in 0..MOST {
        // The lowest bit marks a lock with priority inheritance.
        let (entry, inherits) = (at & !1, at & 1 != 0);
        if entry == head {
            break;
        }
        let next: u64 = memory.read(entry)?;
        if entry != pending & !1 {
            owner_died(linux, thread, entry.wrapping_add(offset), inherits, false)?;
        }
        at = next;
    }
    if pending & !1 != 0 {
        owner_died(linux, thread, (pending & !1).wrapping_add(offset), pending & 1 != 0, true)?;
    }
    Ok(())
}

/// Marks the word of a lock that the ending thread owns, and wakes a waiter. With `inherits`, no waiter is woken here,
/// because `pi::leave` passes the lock on.
fn owner_died<M: Machine>(
    linux: &Linux<M>,
    thread: &Thread<M>,
    word: u64,
    inherits: bool,
    pending: bool,
) -> Result<(), Errno> {
    crate::futex::check_address(word)?;
    let wake_one = || {
        if !inherits {
            // As on Linux, the walk continues even if the wake-up fails.
            let _none_woken = crate::futex::wake_address(linux, thread, word, 1);
        }
    };
    let machine = linux.machine;
    let mut old = machine.load_user_u32(word)?;
    loop {
        if pending && old == 0 {
            // The thread has released the lock, but has ended before it could wake a waiter.
            wake_one();
            return Ok(());
        }
        if old & OWNER != thread.tid() {
            return Ok(());
        }
        let found = machine.compare_exchange_user_u32(word, old, (old & WAITERS) | OWNER_DIED)?;
        if found == old {
            break;
        }
        old = found;
    }
    if old & WAITERS != 0 {
        wake_one();
    }
    Ok(())
}
