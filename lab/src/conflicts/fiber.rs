//! Threads of the scheduler on one thread of the host: each has a stack of its own, and a CPU is whoever resumes the one that
//! runs there. So what several CPUs do is done one after the other, in an order that somebody chooses, and recorded exactly.

use corosensei::{Coroutine, CoroutineResult, Yielder};
use std::cell::{Cell, RefCell};
use std::ptr;

/// Why a fiber gave the host's thread back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Pause {
    /// Another thread is current on this CPU now.
    Switched,
    /// It has done what was asked of it, and is current still.
    Rests,
}

/// A stack, and what runs on it.
pub struct Fiber {
    coroutine: RefCell<Option<Coroutine<(), Pause, ()>>>,
    yielder: Cell<*const Yielder<(), Pause>>,
}

// SAFETY: fibers are made, resumed and dropped by the one thread of the host that plays all CPUs; the scheduler's types ask for
// `Send` because its CPUs could be threads.
unsafe impl Send for Fiber {}

impl Fiber {
    /// A stack on which nothing runs yet.
    pub fn empty() -> Fiber {
        Fiber { coroutine: RefCell::new(None), yielder: Cell::new(ptr::null()) }
    }

    /// Makes `body` what runs here from the first resumption on.
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

    /// Goes on with it until it pauses; `None`: it has come to its end.
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

    /// Gives the host's thread back to whoever resumed this fiber, which is the caller.
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
            // SAFETY: a thread that will never be resumed; what its frames borrow is not used by anybody.
            unsafe { coroutine.force_reset() };
        }
    }
}
