//! Threads of the scheduler on one thread of the host. Each has its own stack, and the code that resumes a fiber acts
//! as its CPU. So the steps of several CPUs run one after the other, in a chosen order, and are recorded exactly.

use corosensei::{Coroutine, CoroutineResult, Yielder};
use std::cell::{Cell, RefCell};
use std::ptr;

/// Why a fiber paused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Pause {
    /// Another thread is current on this CPU now.
    Switched,
    /// It has done its job, and is still current.
    Rests,
}

/// A stack, and the coroutine on it.
pub struct Fiber {
    coroutine: RefCell<Option<Coroutine<(), Pause, ()>>>,
    yielder: Cell<*const Yielder<(), Pause>>,
}

// SAFETY: one thread of the host plays all CPUs, and it alone makes, resumes and drops fibers. The scheduler's types
// require `Send` because its CPUs could be threads.
unsafe impl Send for Fiber {}

impl Fiber {
    /// A stack on which nothing runs yet.
    pub fn empty() -> Fiber {
        Fiber { coroutine: RefCell::new(None), yielder: Cell::new(ptr::null()) }
    }

    /// Sets `body` to run here from the first resumption on.
    ///
    /// # Requires
    /// The fiber stays in place from now on.
    pub fn start(&self, body: impl FnOnce() + 'static) {
        let own = ptr::from_ref(&self.yielder).addr();
        let coroutine = Coroutine::new(move |yielder: &Yielder<(), Pause>, ()| {
            let cell = ptr::with_exposed_provenance::<Cell<*const Yielder<(), Pause>>>(own);
            // SAFETY: the fiber stays in place while it runs, by this function's contract.
            unsafe { (*cell).set(yielder) };
            body();
        });
        let _exposed = ptr::from_ref(&self.yielder).expose_provenance();
        *self.coroutine.borrow_mut() = Some(coroutine);
    }

    /// Resumes it until it pauses; `None`: it has ended.
    pub fn resume(&self) -> Option<Pause> {
        let mut coroutine = self.coroutine.borrow_mut().take()?;
        let result = coroutine.resume(());
        match result {
            CoroutineResult::Yield(why) => {
                *self.coroutine.borrow_mut() = Some(coroutine);
                Some(why)
            }
            CoroutineResult::Return(()) => None,
        }
    }

    /// Pauses this fiber, which is the caller; `resume` returns on the host's thread.
    pub fn pause(&self, why: Pause) {
        // SAFETY: set when the coroutine began, and it lives while it runs.
        unsafe { (*self.yielder.get()).suspend(why) }
    }
}

impl Drop for Fiber {
    fn drop(&mut self) {
        if let Some(mut coroutine) = self.coroutine.get_mut().take()
            && !coroutine.done()
        {
            // SAFETY: the thread will never be resumed, so nothing uses what its frames borrow.
            unsafe { coroutine.force_reset() };
        }
    }
}
