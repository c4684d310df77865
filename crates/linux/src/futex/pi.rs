//! Futexes with priority inheritance: the operations over the locks of `quire_task`.

use crate::futex::key_of;
use core::ptr::NonNull;
use quire_heap::Box;
use quire_linux_state::errno::Errno;
use quire_linux_state::machine::Machine;
use quire_linux_state::process::thread::Thread;
use quire_linux_state::{Ctx, Linux};
use quire_task::ThreadRef;
use quire_task::futex::pi::{PiLock, PiRefused, PiWord};

/// The word of a lock in the caller's memory.
struct Word<'a, M: Machine> {
    linux: &'a Linux<M>,
    thread: &'a Thread<M>,
    at: u64,
}

// SAFETY: a block stays in its box, which `discard` frees.
unsafe impl<M: Machine> PiWord<M> for Word<'_, M> {
    type Error = Errno;

    fn load(&self) -> Result<u32, Errno> {
        Ok(self.linux.machine.peek_user_u32(self.at)?)
    }

    fn exchange(&self, old: u32, new: u32) -> Result<u32, Errno> {
        Ok(self.linux.machine.try_exchange_user_u32(self.at, old, new)?)
    }

    fn make_present(&self) -> Result<(), Errno> {
        let value = self.linux.machine.load_user_u32(self.at)?;
        // Storing the present value makes the page writable.
        self.linux.machine.compare_exchange_user_u32(self.at, value, value)?;
        Ok(())
    }

    fn name(&self, thread: &quire_task::Thread<M>) -> u32 {
        thread.payload().as_ref().map_or(0, Thread::tid)
    }

    fn find(&self, name: u32) -> Option<ThreadRef<M>> {
        self.linux.ids.thread(name)
    }

    fn interrupted(&self) -> bool {
        self.thread.interrupted()
    }

    fn place(&self, lock: PiLock<M>) -> Option<NonNull<PiLock<M>>> {
        NonNull::new(Box::into_raw(Box::try_new(lock).ok()?))
    }

    fn discard(&self, lock: NonNull<PiLock<M>>) {
        // SAFETY: `place` made the box, and the table returns each block once.
        drop(unsafe { Box::from_raw(lock.as_ptr()) });
    }
}

fn errno(why: PiRefused<Errno>) -> Errno {
    match why {
        PiRefused::Word(error) => error,
        PiRefused::Deadlock => Errno::EDEADLK,
        PiRefused::Mismatch => Errno::EINVAL,
        PiRefused::NoOwner => Errno::ESRCH,
        PiRefused::NotOwner => Errno::EPERM,
        PiRefused::Busy | PiRefused::Differs | PiRefused::InterruptedMoved => Errno::EAGAIN,
        PiRefused::Memory => Errno::ENOMEM,
        PiRefused::TimedOut => Errno::ETIMEDOUT,
        // The call is restarted with its original arguments, because its deadline is absolute.
        PiRefused::Interrupted => Errno::ERESTARTNOINTR,
    }
}

/// `FUTEX_LOCK_PI`, `FUTEX_LOCK_PI2`, and with `only_try` `FUTEX_TRYLOCK_PI`. `deadline` is monotonic.
pub(super) fn lock<M: Machine>(
    ctx: &Ctx<'_, M>,
    at: u64,
    private: bool,
    deadline: Option<u64>,
    only_try: bool,
) -> Result<usize, Errno> {
    let (linux, thread) = (ctx.linux, ctx.thread);
    let key = key_of(linux.machine, thread, at, private)?;
    let word = Word { linux, thread, at };
    linux.futexes.table.pi_lock(linux.scheduler, key, &word, deadline, only_try).map_err(errno)?;
    Ok(0)
}

/// `FUTEX_UNLOCK_PI`
pub(super) fn unlock<M: Machine>(ctx: &Ctx<'_, M>, at: u64, private: bool) -> Result<usize, Errno> {
    let (linux, thread) = (ctx.linux, ctx.thread);
    crate::futex::check_address(at)?;
    // The owner is checked first, so a caller that is not the owner gets EPERM.
    if linux.machine.load_user_u32(at)? & quire_task::futex::pi::OWNER != thread.tid() {
        return Err(Errno::EPERM);
    }
    let key = key_of(linux.machine, thread, at, private)?;
    linux.futexes.table.pi_unlock(linux.scheduler, key, &Word { linux, thread, at }).map_err(errno)?;
    Ok(0)
}

/// `FUTEX_WAIT_REQUEUE_PI`: waits at `from`, and returns as the owner of the lock at `to`.
pub(super) fn wait_requeue<M: Machine>(
    ctx: &Ctx<'_, M>,
    (from, to): (u64, u64),
    value: u32,
    private: bool,
    deadline: Option<u64>,
) -> Result<usize, Errno> {
    let (linux, thread) = (ctx.linux, ctx.thread);
    let (keys, machine) = (keys(ctx, from, to, private)?, linux.machine);
    let word = Word { linux, thread, at: to };
    let mut check = || Ok(machine.peek_user_u32(from).map(|found| found == value)?);
    let mut fetch = || Ok(machine.load_user_u32(from).map(drop)?);
    let table = &linux.futexes.table;
    table.pi_wait_moved(linux.scheduler, keys.0, keys.1, &word, deadline, &mut check, &mut fetch).map_err(errno)?;
    Ok(0)
}

/// `FUTEX_CMP_REQUEUE_PI`: gives the lock at `to` to the first waiter at `from`, and makes up to `most` others wait for
/// the lock.
pub(super) fn requeue<M: Machine>(
    ctx: &Ctx<'_, M>,
    (from, to): (u64, u64),
    (wake, most): (i32, i32),
    expected: u32,
    private: bool,
) -> Result<usize, Errno> {
    let most = usize::try_from(most).map_err(|_| Errno::EINVAL)?;
    if wake != 1 {
        return Err(Errno::EINVAL);
    }
    let (linux, thread) = (ctx.linux, ctx.thread);
    let (keys, machine) = (keys(ctx, from, to, private)?, linux.machine);
    let word = Word { linux, thread, at: to };
    let mut check = || Ok(machine.peek_user_u32(from).map(|found| found == expected)?);
    let mut fetch = || Ok(machine.load_user_u32(from).map(drop)?);
    let table = &linux.futexes.table;
    table.pi_requeue(linux.scheduler, keys.0, keys.1, &word, most, &mut check, &mut fetch).map_err(errno)
}

/// The keys of two words. EINVAL if they are the same word.
fn keys<M: Machine>(
    ctx: &Ctx<'_, M>,
    from: u64,
    to: u64,
    private: bool,
) -> Result<(quire_task::Key, quire_task::Key), Errno> {
    let key = |at| key_of(ctx.linux.machine, ctx.thread, at, private);
    if from == to {
        return Err(Errno::EINVAL);
    }
    let (from, to) = (key(from)?, key(to)?);
    if from == to { Err(Errno::EINVAL) } else { Ok((from, to)) }
}

/// Passes the locks of the calling thread to their waiters, because the thread leaves its address space. `ends` says
/// that the thread ends and acquires no more locks.
pub(super) fn leave<M: Machine>(linux: &Linux<M>, ends: bool) {
    linux.futexes.table.pi_leave(linux.scheduler, ends);
}

/// Passes locks whose words already name the new thread `thread` as owner to their waiters, because that thread will
/// never run.
pub(crate) fn never_runs<M: Machine>(linux: &Linux<M>, thread: &quire_task::Thread<M>) {
    linux.futexes.table.pi_leave_for(linux.scheduler, thread, true);
}

/// Updates the locks after the scheduling class or the nice value of `thread` has changed.
pub(crate) fn renice<M: Machine>(linux: &Linux<M>, thread: &quire_task::Thread<M>) {
    linux.futexes.table.pi_renice(linux.scheduler, thread);
}
