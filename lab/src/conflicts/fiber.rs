//! Threads of the simulated scheduler, run on one thread of the host. Each has its own stack. While a fiber runs, the
//! thread of the host acts as the CPU that runs the simulated thread. So the steps of several CPUs run one after the
//! other, in a chosen order, and are recorded exactly.

use corosensei::{Coroutine, CoroutineResult, Yielder};
use std::cell::{Cell, RefCell};
use std::ptr;

/// The reason why a fiber paused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Pause {
    /// The CPU has switched to another thread, which is now current.
    Switched,
    /// The fiber has done its job, and its thread is still current.
    Rests,
}

/// A stack, with the coroutine that runs on it.
pub struct Fiber {
    coroutine: RefCell<Option<Coroutine<(), Pause, ()>>>,
    yielder: Cell<*const Yielder<(), Pause>>,
}

// SAFETY: one thread of the host acts as all CPUs, and only that thread makes, resumes and drops fibers. The
// scheduler's types require `Send`, because its CPUs could be threads.
unsafe impl Send for Fiber {}

impl Fiber {
    /// Makes a fiber without a body.
    pub fn empty() -> Fiber {
        Fiber { coroutine: RefCell::new(None), yielder: Cell::new(ptr::null()) }
    }

    /// Sets the body of the fiber. `body` begins to run when the fiber is resumed first.
    ///
    /// # Requires
    /// The fiber must not be moved from now on.
    pub fn start(&self, body: impl FnOnce() + 'static) {
        let own = ptr::from_ref(&self.yielder).addr();
        let coroutine = Coroutine::new(move |yielder: &Yielder<(), Pause>, ()| {
            let cell = ptr::with_exposed_provenance::<Cell<*const Yielder<(), Pause>>>(own);
            // SAFETY: the fiber is not moved while it runs, because this function's contract requires that.
            unsafe { (*cell).set(yielder) };
            body();
        });
        let _exposed = ptr::from_ref(&self.yielder).expose_provenance();
        *self.coroutine.borrow_mut() = Some(coroutine);
    }

    /// Resumes the fiber until it pauses. Returns the reason of the pause, or `None` if the fiber has ended.
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

    /// Pauses the calling fiber. Then [`Fiber::resume`] returns on the host's thread.
    pub fn pause(&self, why: Pause) {
        // SAFETY: the coroutine set the pointer when it began, and the yielder exists while the coroutine runs.
        unsafe { (*self.yielder.get()).suspend(why) }
    }
}

impl Drop for Fiber {
    fn drop(&mut self) {
        if let Some(mut coroutine) = self.coroutine.get_mut().take()
            && !coroutine.done()
        {
            // SAFETY: the thread will never be resumed, so nothing uses the data that its frames borrow.
            unsafe { coroutine.force_reset() };
        }
    }
}
