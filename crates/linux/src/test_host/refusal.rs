//! Refused allocations in system calls: the layers' allocations on the host count like those of the machine's frames.
//!
//! The Linux layer counts the allocations of a call for the thread that makes it. The machine consults it for
//! allocations of the memory core. Allocations of files and processes come from the host's allocator for tests, which
//! consults it here. Allocations for the machine itself (its threads, their contexts, backtraces of locks) always
//! succeed.

use crate::test_host::machine::One;
use quire_heap::refusal::set_judge;
use quire_linux_state::Thread;
use std::cell::Cell;

std::thread_local! {
    /// The machine's thread whose call the host's thread is in, outside of [`for_host`].
    static CALLER: Cell<Option<&'static Thread<One>>> = const { Cell::new(None) };
}

/// Sets the caller back to what it was.
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

/// Does `f`, a call of `thread`.
pub fn calling<R>(thread: &'static Thread<One>, f: impl FnOnce() -> R) -> R {
    let _back = Back::from(Some(thread));
    f()
}

/// Does `f`, whose allocations belong to the host.
pub fn for_host<R>(f: impl FnOnce() -> R) -> R {
    let _back = Back::from(None);
    f()
}

/// Whether the allocation that the host's thread makes now is refused.
pub fn refuses() -> bool {
    CALLER.get().is_some_and(|thread| !quire_sync::hooks::threads::is_apart() && is_refused(thread))
}

#[cfg(debug_assertions)]
fn is_refused(thread: &Thread<One>) -> bool {
    thread.is_refused()
}

/// Without assertions the Linux layer refuses nothing.
#[cfg(not(debug_assertions))]
fn is_refused(_thread: &Thread<One>) -> bool {
    false
}
