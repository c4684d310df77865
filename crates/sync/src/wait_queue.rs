//! A queue of sleeping threads. Waiters live on their threads' stacks, or in the threads; nothing is allocated.
//!
//! A waiter is on the list *before* it checks its condition. A waker changes the condition *before* it reads the list.
//! The list changes only under the queue's lock, so no wake-up is lost.

use crate::atomic::{AtomicBool, AtomicPtr, Ordering};
use crate::hooks::{ThreadHandle, current_thread, now, park, park_uninterruptibly, unpark};
use crate::mutant::{Mutant, mutant};
use crate::rank::Rank;
use crate::spin::SpinLock;
use core::cell::Cell;
use core::ptr;

/// How a wait ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WaitOutcome {
    /// The condition held.
    Ready,
    /// The deadline passed first.
    TimedOut,
    /// The caller's `interrupted` returned true first.
    Interrupted,
}

/// A thread's place on a queue while it sleeps.
pub struct Waiter {
    /// Guarded by the queue's lock, like `prev`.
    next: Cell<*const Waiter>,
    prev: Cell<*const Waiter>,
    /// Written before the waiter is listed.
    thread: Cell<ThreadHandle>,
    /// Whether a waker has chosen this waiter and taken it off the list. Changed under the queue's lock while the
    /// waiter is listed.
    woken: AtomicBool,
}

// SAFETY: the cells are written by the waiting thread before the waiter is listed, and under the queue's lock while it
// is listed.
unsafe impl Sync for Waiter {}
// SAFETY: an unlisted waiter is plain data, and `begin`'s contract keeps a listed waiter in place.
unsafe impl Send for Waiter {}

impl Waiter {
    /// A waiter on no queue.
    pub fn new() -> Self {
        Waiter {
            next: Cell::new(ptr::null()),
            prev: Cell::new(ptr::null()),
            thread: Cell::new(ThreadHandle::NONE),
            woken: AtomicBool::new(false),
        }
    }
}

impl Default for Waiter {
    fn default() -> Self {
        Self::new()
    }
}

/// A waiter that may stay listed after the call that listed it has returned. A thread that sleeps without a kernel
/// stack needs this, because its call returns before the sleep. Only that thread uses the waiter.
pub struct Listing {
    waiter: Waiter,
    /// The queue that lists the waiter, or null.
    queue: AtomicPtr<WaitQueue>,
}

impl Listing {
    /// A listing on no queue.
    ///
    /// # Safety
    /// While the listing is on a queue, the listing and the queue stay in place. The owner [unlists](Self::unlist) it
    /// before it drops the value that keeps the queue alive.
    pub unsafe fn new() -> Self {
        Listing { waiter: Waiter::new(), queue: AtomicPtr::new(ptr::null_mut()) }
    }

    /// The queue that lists the waiter, or null.
    #[inline]
    pub fn queue(&self) -> *const WaitQueue {
        self.queue.load(Ordering::Relaxed)
    }

    /// Lists the calling thread and checks its condition, as one iteration of [`WaitQueue::wait_until`] does. `None`
    /// means that the thread is listed, and that its call must return so that it can sleep. A thread is on one queue at
    /// a time, so further waits return `None` at once.
    pub fn wait<R>(
        &self,
        queue: &WaitQueue,
        deadline: Option<u64>,
        interrupted: impl FnMut() -> bool,
        ready: impl FnMut() -> Option<R>,
    ) -> Option<Result<R, WaitOutcome>> {
        debug_assert!(self.queue().is_null(), "a thread waits that is listed already");
        if !self.queue().is_null() {
            return None;
        }
        // SAFETY: the waiter is on no list. The contract of `new` keeps the waiter and the queue in place until
        // `unlist`.
        let out = unsafe { queue.begin(&self.waiter, deadline, interrupted, ready) };
        if out.is_none() {
            self.queue.store(ptr::from_ref(queue).cast_mut(), Ordering::Relaxed);
        }
        out
    }

    /// Takes the thread off its queue, after its sleep or instead of it. If a waker chose this thread, the wake-up is
    /// not passed on to another waiter. So listings are only for queues whose wakers wake all waiters.
    pub fn unlist(&self) {
        // SAFETY: by the contract of `new` the queue is alive.
        if let Some(queue) = unsafe { self.queue().as_ref() } {
            if !mutant(Mutant::ListingStays) {
                // SAFETY: `wait` listed the waiter on this queue, and this is the first call of `awake` since.
                let _woken = unsafe { queue.awake(&self.waiter) };
            }
            self.queue.store(ptr::null_mut(), Ordering::Relaxed);
        }
    }

    /// Unparks the calling thread, which is listed, if a waker has chosen it. The thread may have waited for a lock
    /// since it was listed. That wait may have consumed the token (`unpark`) that the waker gave it.
    pub fn renew_token(&self) {
        if self.waiter.woken.load(Ordering::Acquire) && !mutant(Mutant::TokenNotRenewed) {
            unpark(self.waiter.thread.get());
        }
    }
}

struct WaiterList {
    first: *const Waiter,
    last: *const Waiter,
}
// SAFETY: the pointers are followed only under the queue's lock, while the waiters are on the list.
unsafe impl Send for WaiterList {}

/// A list of threads that wait for one event or one resource.
pub struct WaitQueue {
    list: SpinLock<WaiterList>,
    /// The number of listed waiters, so that a waker skips the lock where no thread waits. A waiter raises the number
    /// before it checks its condition.
    waiting: crate::atomic::AtomicUsize,
}

crate::assert_layout!(WaitQueue { size: 32, align: 8 });

impl WaitQueue {
    /// An empty queue.
    #[cfg(not(any(loom, shuttle)))]
    pub const fn new() -> Self {
        WaitQueue {
            list: SpinLock::new(Rank::WAIT, WaiterList { first: ptr::null(), last: ptr::null() }),
            waiting: crate::atomic::AtomicUsize::new(0),
        }
    }
    /// An empty queue.
    #[cfg(any(loom, shuttle))]
    pub fn new() -> Self {
        WaitQueue {
            list: SpinLock::new(Rank::WAIT, WaiterList { first: ptr::null(), last: ptr::null() }),
            waiting: crate::atomic::AtomicUsize::new(0),
        }
    }

    /// Sleeps until `ready` returns true, uninterruptibly. A machine that watches its threads reports a very long sleep
    /// as a fault. `ready` is called without the queue's lock, and may take locks and sleep.
    pub fn wait(&self, mut ready: impl FnMut() -> bool) {
        let _ready = self.wait_with(None, || false, || ready().then_some(()), |_| park_uninterruptibly());
    }

    /// Sleeps until `ready` returns true, for a thread that waits for work. Unlike [`wait`](Self::wait), a very long
    /// sleep is not reported as a fault.
    pub fn wait_for_work(&self, mut ready: impl FnMut() -> bool) {
        let _ready = self.wait_with(None, || false, || ready().then_some(()), park);
    }

    /// Sleeps until `ready` returns a value, `deadline` (nanoseconds, [`now`]'s clock) passes, or `interrupted` returns
    /// true. If several are true, the value counts first, then the interruption, then the deadline.
    pub fn wait_until<R>(
        &self,
        deadline: Option<u64>,
        interrupted: impl FnMut() -> bool,
        ready: impl FnMut() -> Option<R>,
    ) -> Result<R, WaitOutcome> {
        self.wait_with(deadline, interrupted, ready, park)
    }

    fn wait_with<R>(
        &self,
        deadline: Option<u64>,
        mut interrupted: impl FnMut() -> bool,
        mut ready: impl FnMut() -> Option<R>,
        sleep: impl Fn(Option<u64>),
    ) -> Result<R, WaitOutcome> {
        if let Some(r) = ready() {
            return Ok(r);
        }
        let me = Waiter::new();
        loop {
            // SAFETY: the waiter is on no list, and stays on this stack until `awake` has taken it off.
            if let Some(out) = unsafe { self.begin(&me, deadline, &mut interrupted, &mut ready) } {
                return out;
            }
            sleep(deadline);
            // SAFETY: `begin` has listed the waiter and returned `None`, and this is the first call of `awake` since.
            unsafe { self.awake(&me) };
        }
    }

    /// Does one iteration of [`wait_until`](Self::wait_until), for a thread that sleeps without a stack. Puts `waiter`
    /// on the list for the calling thread, and checks whether the wait is over. `None` means that the wait is not over.
    /// The thread then parks until `deadline`, calls [`awake`](Self::awake), and begins again. After `Some` the waiter
    /// is not listed.
    ///
    /// # Safety
    /// `waiter` is on no list. After `None`, the waiter and the queue stay alive and in place until `awake` has
    /// returned.
    pub unsafe fn begin<R>(
        &self,
        waiter: &Waiter,
        deadline: Option<u64>,
        mut interrupted: impl FnMut() -> bool,
        mut ready: impl FnMut() -> Option<R>,
    ) -> Option<Result<R, WaitOutcome>> {
        waiter.thread.set(current_thread());
        let out = loop {
            waiter.woken.store(false, Ordering::Relaxed);
            let early = mutant(Mutant::LookBeforeListed).then(&mut ready);
            self.enqueue(waiter);
            if !mutant(Mutant::WaitNoFence) {
                crate::atomic::fence_full();
            }
            if let Some(r) = early.unwrap_or_else(&mut ready) {
                break Ok(r);
            }
            if interrupted() {
                break Err(WaitOutcome::Interrupted);
            }
            if deadline.is_some_and(|d| now() >= d) {
                break Err(WaitOutcome::TimedOut);
            }
            // If `ready` slept, it may have used up the thread's token for a change that it did not see. So a waiter
            // that was woken while `ready` ran checks again.
            if !waiter.woken.load(Ordering::Acquire) || mutant(Mutant::TokenUsedUp) {
                return None;
            }
        };
        // SAFETY: the waiter was listed on this queue above, and no call has taken it off since.
        let was_woken = unsafe { self.awake(waiter) };
        // If a waker chose this waiter, but the wait ends for another reason, the wake-up is passed on. This includes a
        // wait whose condition held already, because the wake-up may be for a later change.
        let kept = mutant(Mutant::WakeNotPassedOn) || mutant(Mutant::WakeKept) && out.is_ok();
        if was_woken && !kept {
            self.wake_one();
        }
        Some(out)
    }

    /// Takes `waiter` off the list if it is still listed. Returns whether a waker had chosen it. The thread that listed
    /// it calls this after its sleep.
    ///
    /// # Safety
    /// [`begin`](Self::begin) of this queue listed `waiter` and returned `None`, and this is the first call since.
    pub unsafe fn awake(&self, waiter: &Waiter) -> bool {
        let mut list = self.list.lock();
        // `woken` changes only under the lock. If it is set, a waker has already taken the waiter off the list.
        if waiter.woken.load(Ordering::Relaxed) {
            return true;
        }
        // SAFETY: listed, and the lock is held.
        unsafe { self.unlink(&mut list, waiter) };
        false
    }

    fn enqueue(&self, w: &Waiter) {
        let mut list = self.list.lock();
        w.prev.set(list.last);
        w.next.set(ptr::null());
        // SAFETY: the last waiter stays alive while it is listed, and the lock is held.
        match unsafe { list.last.as_ref() } {
            None => list.first = w,
            Some(last) => last.next.set(w),
        }
        list.last = w;
        self.waiting.fetch_add(1, Ordering::AcqRel);
    }

    // SAFETY: `w` must be on `list`, whose lock the caller holds.
    unsafe fn unlink(&self, list: &mut WaiterList, w: &Waiter) {
        let (prev, next) = (w.prev.get(), w.next.get());
        // SAFETY: the neighbours are on the list too, so they are alive.
        unsafe {
            match prev.as_ref() {
                None => list.first = next,
                Some(prev) => prev.next.set(next),
            }
            match next.as_ref() {
                None => list.last = prev,
                Some(next) => next.prev.set(prev),
            }
        }
        self.waiting.fetch_sub(1, Ordering::AcqRel);
    }

    /// Wakes the thread that waits longest; returns whether there was one.
    #[inline]
    pub fn wake_one(&self) -> bool {
        self.wake(1) == 1
    }

    /// Wakes all waiters; returns their number.
    #[inline]
    pub fn wake_all(&self) -> usize {
        self.wake(usize::MAX)
    }

    // Mostly no thread waits, so the check for waiters is inlined, and the code that wakes threads is not.
    #[inline(always)]
    fn wake(&self, most: usize) -> usize {
        if !mutant(Mutant::WakeNoFence) {
            crate::atomic::fence_full();
        }
        if self.waiting.load(Ordering::Acquire) == 0 { 0 } else { self.wake_listed(most) }
    }

    #[inline(never)]
    fn wake_listed(&self, most: usize) -> usize {
        let mut list = self.list.lock();
        let mut n = 0;
        while n < most {
            // SAFETY: a listed waiter is alive, because its thread takes this lock in `awake` before it drops the
            // waiter.
            let Some(w) = (unsafe { list.first.as_ref() }) else { break };
            // SAFETY: listed, and the lock is held.
            unsafe { self.unlink(&mut list, w) };
            let thread = w.thread.get();
            w.woken.store(true, Ordering::Relaxed);
            unpark(thread);
            n += 1;
        }
        n
    }
}

impl Default for WaitQueue {
    fn default() -> Self {
        Self::new()
    }
}
