//! Kernel threads: threads that run no program.

use crate::machine::{Machine, scheduler};
use crate::memory::heap::keep;
use crate::memory::stack::kernel_map;
use crate::thread::context::Context;
use core::ptr::NonNull;
use quire_sync::hooks::ThreadHandle;
use quire_sync::{Rank, SpinLock};
use quire_task::{Thread, ThreadRef};

/// The most kernel threads that the list has room for. Later threads run, but the watchdog does not check them.
const LISTED: usize = 16;

/// A kernel thread and its name.
pub type Own = (ThreadRef<Machine>, &'static str);

static OWN: SpinLock<[Option<Own>; LISTED]> = SpinLock::new(Rank::SYSTEM, [const { None }; LISTED]);

/// Starts a kernel thread that runs `main(argument)`. `main` never returns; it may end by `Scheduler::exit`.
pub fn kernel_thread(name: &'static str, main: extern "C" fn(usize) -> !, argument: usize) -> ThreadHandle {
    unsafe fn release(thread: NonNull<Thread<Machine>>) {
        // SAFETY: the box was leaked below, and the last reference is dropped.
        drop(unsafe { quire_heap::Box::from_raw(thread.as_ptr()) });
    }
    let Ok(context) = Context::kernel(name, main, argument) else {
        panic!("not enough memory for the kernel's own threads")
    };
    let thread = keep(Thread::new(context, None, release));
    let handle = thread.handle();
    list(thread.to_ref(), name);
    // SAFETY: the thread was leaked, so it stays in place. The scheduler takes over its first reference.
    scheduler().spawn(unsafe { ThreadRef::adopt(NonNull::from(thread)) });
    handle
}

/// Makes the caller this CPU's idle thread. Also allocates the CPU's first idle stack, for threads without a stack.
pub fn adopt_idle() {
    if kernel_map().stock().is_err() {
        panic!("not enough memory for the kernel's own stacks");
    }
    unsafe fn never_released(_thread: NonNull<Thread<Machine>>) {}
    let thread = keep(Thread::new(Context::running(), None, never_released));
    // SAFETY: the thread was leaked, so it stays in place. The scheduler takes over its first reference.
    scheduler().start_cpu(unsafe { ThreadRef::adopt(NonNull::from(thread)) });
}

fn list(thread: ThreadRef<Machine>, name: &'static str) {
    let mut own = OWN.lock();
    if let Some(free) = own.iter_mut().find(|t| t.is_none()) {
        *free = Some((thread, name));
    }
}

/// The listed threads. A thread that has ended is returned one last time, and is removed from the list.
pub fn listed() -> impl Iterator<Item = Own> {
    (0..LISTED).filter_map(|at| {
        // The lock is released before the reference is dropped, because the last reference frees the thread.
        let own = &mut OWN.lock()[at];
        if own.as_ref().is_some_and(|(t, _)| t.has_ended()) { own.take() } else { own.clone() }
    })
}
