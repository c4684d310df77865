//! The right to sleep, as a value. Code that sleeps borrows it exclusively. A guard that forbids sleep borrows it too,
//! so that both cannot be used at once.
//!
//! # Contract C5: no sleep under a guard
//! No thread sleeps while it holds an iteration, a busy or page-table guard, a spin lock or an epoch pin. The types of
//! this module enforce this for pins, and for values that borrow pins. Debug builds also check the locks that a CPU
//! holds ([`quire_sync::rank::assert_may_sleep`]).
//!
//! No CPU waits for other CPUs while it holds a spin lock, because a CPU that spins for that lock would wait for them
//! too. Such waits are flushes, barriers, and waits for the readers of the epoch. Debug builds and models check this
//! where each wait begins ([`quire_sync::rank::assert_may_await_cpus`]).

use core::marker::PhantomData;
use quire_sync::epoch::{Domain, Pinned};
use quire_sync::{WaitQueue, rank};

/// The right to sleep (relies on C5). A pin is acquired through this value and borrows it, so the compiler refuses a
/// sleep under a pin. It also refuses a sleep during an iteration over an index, because the iteration borrows the pin.
pub struct MaySleep(PhantomData<*mut ()>);

impl MaySleep {
    /// Makes the value at the start of an operation that may sleep. The caller holds no spin lock, pin, table page or
    /// busy page. Debug builds check the locks.
    pub fn here() -> MaySleep {
        rank::assert_may_sleep();
        MaySleep(PhantomData)
    }

    /// Pins the epoch. The thread cannot sleep while the pin exists.
    #[inline]
    pub fn pin<'a>(&'a self, domain: &'a Domain) -> Pinned<'a> {
        domain.pin()
    }

    /// Sleeps on `queue` until `ready` returns true.
    pub(crate) fn sleep_on(&mut self, queue: &WaitQueue, ready: impl FnMut() -> bool) {
        queue.wait(ready);
    }

    /// Sleeps on `queue` until `ready` returns true. For a daemon without work, which may sleep for any time.
    pub(crate) fn wait_for_work(&mut self, queue: &WaitQueue, ready: impl FnMut() -> bool) {
        queue.wait_for_work(ready);
    }

    /// Yields until `ready` returns true. For waits for a few instructions of another CPU.
    pub fn sleep_until(&mut self, mut ready: impl FnMut() -> bool) {
        while !ready() {
            quire_sync::hooks::relax();
        }
    }
}
