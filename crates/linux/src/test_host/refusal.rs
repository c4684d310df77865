//! Refused allocations in system calls. Allocations from the host's allocator can be refused like allocations of
//! frames.
//!
//! The Linux layer counts the allocations of a call, and decides which one is refused. For each allocation of the
//! memory core, the machine asks the Linux layer. Files and processes use the host's test allocator, which asks the
//! Linux layer through this module. Allocations of the machine itself (its threads, their contexts, backtraces of
//! locks) always succeed.

use crate::test_host::machine::One;
use quire_heap::refusal::set_judge;
use quire_linux_state::Thread;
use std::cell::Cell;

std::thread_local! {
    /// The machine thread whose call this host thread runs. `None` within [`for_host`].
    static CALLER: Cell<Option<&'static Thread<One>>> = const { Cell::new(None) };
}

/// Restores the earlier caller when it is dropped.
struct Back(Option<&'static Thread<One>>);

impl Back {
    fn from(caller: Option<&'static Thread<One>>) -> Self {
        set_judge(caller.map(|_| refuses as fn() -> bool));
        Back(CALLER.replace(caller))
    }
}

impl Drop for Back {
    fn drop(&mut self) {
        set_judge(self.0.map(|_| refuses as fn() -> bool));
        CALLER.set(self.0);
    }
}

/// Runs `f`, a call of `thread`, whose allocations may be refused.
pub fn calling<R>(thread: &'static Thread<One>, f: impl FnOnce() -> R) -> R {
    let _back = Back::from(Some(thread));
    f()
}

/// Runs `f`, whose allocations belong to the machine itself and always succeed.
pub fn for_host<R>(f: impl FnOnce() -> R) -> R {
    let _back = Back::from(None);
    f()
}

/// Whether the present allocation of this host thread is refused.
pub fn refuses() -> bool {
    CALLER.get().is_some_and(|thread| !quire_sync::hooks::threads::is_apart() && is_refused(thread))
}

#[cfg(debug_assertions)]
fn is_refused(thread: &Thread<One>) -> bool {
    thread.is_refused()
}

/// Without debug assertions, the Linux layer refuses no allocation.
#[cfg(not(debug_assertions))]
fn is_refused(_thread: &Thread<One>) -> bool {
    false
}
