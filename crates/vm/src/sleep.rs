//! The right to sleep, as a value: code that may sleep borrows it exclusively, and a guard that forbids sleep borrows
//! it too.
//!
//! # Contract C5: no sleep under a guard
//! No thread sleeps while it holds an iteration, a busy or page-table guard, a spin lock or an epoch pin. Types keep it
//! here; debug builds also look at the locks that a CPU holds ([`quire_sync::rank::assert_may_sleep`]).

use core::marker::PhantomData;
use quire_sync::epoch::{Domain, Pinned};
use quire_sync::{WaitQueue, rank};

/// Held by code that may sleep (relies on C5). Pins are taken through it and borrow it. So the compiler refuses a sleep
/// under a pin. The same holds under an iteration over an index, which borrows the pin.
pub struct MaySleep(PhantomData<*mut ()>);

impl MaySleep {
    /// At the entry of an operation that may sleep: its caller holds no spin lock, pin, table page or busy page. Debug
    /// builds check the locks.
    pub fn here() -> MaySleep {
        rank::assert_may_sleep();
        MaySleep(PhantomData)
    }

    /// A pin; nothing can sleep while it lives.
    #[inline]
    pub fn pin<'a>(&'a self, domain: &'a Domain) -> Pinned<'a> {
        domain.pin()
    }

    /// Sleeps on `queue` until `ready`.
    pub(crate) fn sleep_on(&mut self, queue: &WaitQueue, ready: impl FnMut() -> bool) {
        queue.wait(ready);
    }

    /// A daemon with nothing to do sleeps on `queue` until `ready`, however long that is.
    pub(crate) fn wait_for_work(&mut self, queue: &WaitQueue, ready: impl FnMut() -> bool) {
        queue.wait_for_work(ready);
    }

    /// Yields until `ready`: for waits of a few instructions of another CPU.
    pub fn sleep_until(&mut self, mut ready: impl FnMut() -> bool) {
        while !ready() {
            quire_sync::hooks::relax();
        }
    }
}
