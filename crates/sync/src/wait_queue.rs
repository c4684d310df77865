//! A queue of sleeping threads. Waiters live on their own stacks; nothing is allocated.
//!
//! A waiter is on the list *before* it checks its condition. A waker changes the condition *before* it reads the list.
//! The list changes only under the queue's lock, so no wake-up is lost.

use crate::atomic::{AtomicBool, Ordering};
use crate::hooks::{ThreadHandle, current_thread, now, park, park_uninterruptibly, unpark};
use crate::mutant::{Mutant, mutant};
use crate::rank::Rank;
use crate::spin::SpinLock;
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

struct Waiter {
    next: *const Waiter,
    prev: *const Waiter,
    thread: ThreadHandle,
    woken: AtomicBool,
}

struct WaiterList {
    first: *const Waiter,
    last: *const Waiter,
}
// SAFETY: the pointers are followed only under the queue's lock, while the waiters are on it.
unsafe impl Send for WaiterList {}

/// Threads that wait for the same thing.
pub struct WaitQueue {
    list: SpinLock<WaiterList>,
    /// Lets a waker skip the lock where no thread waits; raised before the waiter checks its condition.
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
    /// as a fault. `ready` is called without the queue's lock and may take locks.
    pub fn wait(&self, mut ready: impl FnMut() -> bool) {
        let _ready = self.wait_with(None, || false, || ready().then_some(()), |_| park_uninterruptibly());
    }

    /// As [`wait`](Self::wait), for a thread that has no work until then, so its sleep may be of any length.
    pub fn wait_for_work(&self, mut ready: impl FnMut() -> bool) {
        let _ready = self.wait_with(None, || false, || ready().then_some(()), park);
    }

    /// Sleeps until `ready` gives a value, `deadline` (nanoseconds, [`now`]'s clock) passes, or `interrupted` returns
    /// true. The value counts first, then the interruption, then the deadline.
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
        let mut me =
            Waiter { next: ptr::null(), prev: ptr::null(), thread: current_thread(), woken: AtomicBool::new(false) };
        loop {
            me.woken.store(false, Ordering::Relaxed);
            let early = mutant(Mutant::LookBeforeListed).then(&mut ready);
            let me_ptr: *mut Waiter = &mut me;
            self.enqueue(me_ptr);
            if !mutant(Mutant::WaitNoFence) {
                crate::atomic::fence_full();
            }
            let out = if let Some(r) = early.unwrap_or_else(&mut ready) {
                Some(Ok(r))
            } else if interrupted() {
                Some(Err(WaitOutcome::Interrupted))
            } else if deadline.is_some_and(|d| now() >= d) {
                Some(Err(WaitOutcome::TimedOut))
            } else {
                sleep(deadline);
                None
            };
            let was_woken = self.dequeue(me_ptr);
            if let Some(out) = out {
                // A wake-up that chose this waiter, which ends for another reason, is passed on. Also where its
                // condition held already, because the wake-up may be for a later change.
                let kept = mutant(Mutant::WakeNotPassedOn) || mutant(Mutant::WakeKept) && out.is_ok();
                if was_woken && !kept {
                    self.wake_one();
                }
                return out;
            }
        }
    }

    fn enqueue(&self, w: *mut Waiter) {
        let mut list = self.list.lock();
        // SAFETY: `w` is the caller's own waiter, not on the list; the last waiter stays alive while it is listed.
        unsafe {
            (*w).prev = list.last;
            (*w).next = ptr::null();
            if list.last.is_null() {
                list.first = w;
            } else {
                (*(list.last as *mut Waiter)).next = w;
            }
        }
        list.last = w;
        self.waiting.fetch_add(1, Ordering::AcqRel);
    }

    /// Takes `w` off the list if it is still on it; returns whether a waker had chosen it.
    fn dequeue(&self, w: *mut Waiter) -> bool {
        let mut list = self.list.lock();
        // SAFETY: `w` is the caller's own waiter; `woken` changes only under the lock, and says whether it is listed.
        unsafe {
            if (*w).woken.load(Ordering::Relaxed) {
                return true;
            }
            self.unlink(&mut list, w);
        }
        false
    }

    // SAFETY: `w` must be on `list`, whose lock the caller holds.
    unsafe fn unlink(&self, list: &mut WaiterList, w: *const Waiter) {
        // SAFETY: the neighbours are on the list too, so they are alive.
        unsafe {
            let (prev, next) = ((*w).prev, (*w).next);
            if prev.is_null() {
                list.first = next;
            } else {
                (*(prev as *mut Waiter)).next = next;
            }
            if next.is_null() {
                list.last = prev;
            } else {
                (*(next as *mut Waiter)).prev = prev;
            }
        }
        self.waiting.fetch_sub(1, Ordering::AcqRel);
    }

    /// Wakes the thread that waits longest; returns whether there was one.
    pub fn wake_one(&self) -> bool {
        self.wake(1) == 1
    }

    /// Wakes all waiters; returns their number.
    pub fn wake_all(&self) -> usize {
        self.wake(usize::MAX)
    }

    fn wake(&self, most: usize) -> usize {
        if !mutant(Mutant::WakeNoFence) {
            crate::atomic::fence_full();
        }
        if self.waiting.load(Ordering::Acquire) == 0 {
            return 0;
        }
        let mut list = self.list.lock();
        let mut n = 0;
        while n < most && !list.first.is_null() {
            let w = list.first;
            // SAFETY: listed, so alive; it cannot return before it takes this lock in `dequeue`.
            unsafe {
                self.unlink(&mut list, w);
                let thread = (*w).thread;
                (*w).woken.store(true, Ordering::Relaxed);
                unpark(thread);
            }
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
