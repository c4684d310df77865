//! Robust futexes: those that an ending thread holds are marked, and a waiter is woken.

use crate::errno::Errno;
use crate::machine::Machine;
use crate::process::access::By;
use crate::process::thread::Thread;
use crate::user::UserMemory;
use crate::{Ctx, Linux, Pid};
use core::sync::atomic::Ordering;

/// Bytes of `struct robust_list_head`.
const HEAD_LEN: usize = 24;
/// The most entries that are followed, as on Linux: a list may be a circle, or garbage.
const MOST: usize = 2048;
const WAITERS: u32 = 0x8000_0000;
const OWNER_DIED: u32 = 0x4000_0000;
const TID_MASK: u32 = 0x3fff_ffff;

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

/// Walks the calling thread's list. An invalid entry ends the walk.
pub(crate) fn walk<M: Machine>(linux: &Linux<M>, thread: &Thread<M>) {
    let head = thread.robust_list.swap(0, Ordering::Relaxed);
    if head != 0 {
        let _wrong_list = follow(linux, thread, head);
    }
}

fn follow<M: Machine>(linux: &Linux<M>, thread: &Thread<M>, head: u64) -> Result<(), Errno> {
    let memory = UserMemory(linux.machine);
    let [first, offset, pending] = memory.read::<[u64; 3]>(head)?;
    let mut at = first;
    for _ in 0..MOST {
        // The lowest bit marks priority inheritance, which is not supported.
        let entry = at & !1;
        if entry == head {
            break;
        }
        let next: u64 = memory.read(entry)?;
        if entry != pending & !1 {
            owner_died(linux, thread, entry.wrapping_add(offset), false)?;
        }
        at = next;
    }
    if pending & !1 != 0 {
        owner_died(linux, thread, (pending & !1).wrapping_add(offset), true)?;
    }
    Ok(())
}

fn owner_died<M: Machine>(linux: &Linux<M>, thread: &Thread<M>, word: u64, pending: bool) -> Result<(), Errno> {
    super::check_address(word)?;
    let machine = linux.machine;
    let mut old = machine.load_user_u32(word)?;
    loop {
        if pending && old == 0 {
            // The thread ended before it could wake a waiter.
            super::wake_address(linux, thread, word, 1)?;
            return Ok(());
        }
        if old & TID_MASK != thread.tid() {
            return Ok(());
        }
        let found = machine.compare_exchange_user_u32(word, old, (old & WAITERS) | OWNER_DIED)?;
        if found == old {
            break;
        }
        old = found;
    }
    if old & WAITERS != 0 {
        super::wake_address(linux, thread, word, 1)?;
    }
    Ok(())
}
