//! Sleeping without a kernel stack.
//!
//! A system call that has to sleep in a known place returns: all its frames and guards are gone. It has stored a
//! [`Sleep`] in its thread, and listed the thread where wakers look for it. The kernel then gives the thread's stack up.
//! When the thread is woken, [`Linux::go_on`] calls the same code again on another stack. It ends the call, or sleeps
//! on.
//!
//! Calls that do not sleep so use `quire_sync`'s parking, and keep their stack.

use crate::errno::{Errno, encode};
use crate::file::io::{self, ReadWait};
use crate::file::poll::{self, PollWait};
use crate::futex::Waiting;
use crate::machine::Machine;
use crate::process::wait::{self, ChildWait};
use crate::regs::UserRegs;
use crate::time::sleep::Sleeping;
use crate::{Ctx, Linux, futex, signal, time};

/// The state of a call that sleeps.
pub enum Sleep<M: Machine> {
    /// A futex wait. The thread's waiter is listed in the table.
    Futex(Waiting),
    /// A sleep for a time.
    Time(Sleeping),
    /// A wait for a child. The thread's waiter is on its process's queue.
    Child(ChildWait),
    /// A read that waits for bytes. The thread's waiter is on the file's queue.
    Read(ReadWait<M>),
    /// A poll. The thread listens to the files.
    Poll(PollWait<M>),
    /// A wait for a signal that interrupts it.
    Signal,
}

impl<M: Machine> Sleep<M> {
    /// When it ends at the latest, in nanoseconds since boot.
    pub fn deadline(&self) -> Option<u64> {
        match self {
            Sleep::Futex(wait) => wait.deadline,
            Sleep::Time(sleep) => Some(sleep.deadline),
            Sleep::Poll(poll) => poll.deadline,
            Sleep::Child(_) | Sleep::Read(_) | Sleep::Signal => None,
        }
    }
}

/// How a system call left its thread.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use]
pub enum Served {
    /// The result is in the registers.
    Done,
    /// The thread has to sleep until it is unparked, or until [`Linux::sleeps_until`]. Then [`Linux::go_on`] goes on.
    Asleep,
}

impl<M: Machine> Ctx<'_, M> {
    /// Stores the state of a call that has to sleep. Returns the error that the call returns at once; no program gets
    /// to see it.
    pub(crate) fn sleep(&mut self, how: Sleep<M>) -> Errno {
        // SAFETY: the owner is here; nothing borrows the old value.
        unsafe { self.thread.sleep.replace(Some(how)) };
        self.asleep = true;
        Errno::EINTR
    }
}

impl<M: Machine> Linux<M> {
    /// When the calling thread's sleep ends at the latest, in nanoseconds since boot.
    pub fn sleeps_until(&self) -> Option<u64> {
        // SAFETY: the thread itself runs this.
        unsafe { self.current().sleep.get() }.as_ref().and_then(Sleep::deadline)
    }

    /// Goes on with the sleeping call of the calling thread, whose registers are `regs`.
    pub fn go_on(&'static self, regs: &mut UserRegs) -> Served {
        let thread = self.current();
        // SAFETY: the thread itself runs this, and nothing borrows the value.
        let how = unsafe { thread.sleep.replace(None) };
        // SAFETY: the thread that runs, at its only entry.
        let mut ctx = unsafe { Ctx::new(self, thread, regs) };
        let result = match how {
            Some(Sleep::Futex(wait)) => futex::go_on(&mut ctx, wait),
            Some(Sleep::Time(sleep)) => time::sleep::go_on(&mut ctx, sleep),
            Some(Sleep::Child(child)) => wait::go_on(&mut ctx, child),
            Some(Sleep::Read(read)) => io::go_on(&mut ctx, read),
            Some(Sleep::Poll(wait)) => poll::go_on(&mut ctx, wait),
            Some(Sleep::Signal) => signal::wait::sys_pause(&mut ctx),
            None => return Served::Done,
        };
        if ctx.asleep {
            return Served::Asleep;
        }
        regs.rax = encode(result);
        Served::Done
    }
}
