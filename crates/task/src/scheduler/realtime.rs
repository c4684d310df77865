//! The real-time threads that wait for one CPU, and the bound on the CPU time that they may take from other threads.
//!
//! There is a list for each priority, and a bitmap of the lists that are not empty. So all operations take constant
//! time.
//!
//! # The bound
//! Time is divided into windows, whose length is the *period*. In each window, while other threads wait, real-time
//! threads run for at most the *runtime*. Then the other threads run until the end of the window. If no other threads
//! wait, real-time threads continue. Windows are not aligned between CPUs. A window begins at the end of the last one,
//! or later, when the queue next chooses a real-time thread. So nothing is counted while no thread is real-time.

use crate::list::List;
use crate::machine::Machine;
use crate::thread::{MOST_URGENT, Queued, Thread};
use core::cell::Cell;
use core::ptr::NonNull;

/// No deadline.
const NEVER: u64 = u64::MAX;

/// The limits of the real-time classes, in nanoseconds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Bound {
    /// How long real-time threads may run on a CPU in each period while other threads wait. A value of at least the
    /// period means no limit.
    pub runtime: u64,
    /// The length of a window; at least 1.
    pub period: u64,
    /// The turn (time slice) of a round-robin thread among the threads of its priority.
    pub turn: u32,
}

impl Bound {
    /// The default, as on Linux: 0.95 s of each second, and turns of 100 ms.
    pub const USUAL: Bound = Bound { runtime: 950_000_000, period: 1_000_000_000, turn: 100_000_000 };
}

/// The end at which a thread joins the list of its priority.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum End {
    /// The thread runs next, because it was preempted before the end of its turn.
    Head,
    Tail,
}

pub(crate) struct Realtime<M: Machine> {
    /// Bit n is set if threads wait at priority n.
    occupied: u128,
    lists: [List<Queued<M>>; MOST_URGENT as usize + 1],
    len: usize,
    bound: Bound,
    /// The beginning of the window, in nanoseconds of the CPU's counter. `used` is the CPU time that real-time threads
    /// have used in the window.
    began: u64,
    used: u64,
}

impl<M: Machine> Realtime<M> {
    pub fn new() -> Self {
        Realtime {
            occupied: 0,
            lists: [const { List::new() }; MOST_URGENT as usize + 1],
            len: 0,
            bound: Bound::USUAL,
            began: 0,
            used: 0,
        }
    }

    /// How many real-time threads wait.
    pub fn len(&self) -> usize {
        self.len
    }

    /// The priority of the most urgent thread that waits; 0 if none waits.
    #[inline(always)]
    pub fn most_urgent(&self) -> u8 {
        if self.len == 0 {
            return 0;
        }
        127u8.saturating_sub(self.occupied.leading_zeros() as u8)
    }

    /// The turn of a thread among others of its priority, in nanoseconds.
    pub fn turn(&self) -> u32 {
        self.bound.turn
    }

    pub fn set_bound(&mut self, bound: Bound) {
        self.bound = bound;
    }

    /// Puts `thread` on the list of `priority`, from 1 to [`MOST_URGENT`].
    ///
    /// # Safety
    /// The thread is on no list, and stays alive and in place until it is removed.
    pub unsafe fn push(&mut self, thread: NonNull<Thread<M>>, priority: u8, end: End) {
        let list = &mut self.lists[usize::from(priority)];
        // SAFETY: the caller vouches that the thread is on no list and stays in place.
        unsafe {
            match end {
                End::Head => list.push_front(thread),
                End::Tail => list.push_back(thread),
            }
        }
        self.occupied |= 1 << priority;
        self.len += 1;
    }

    /// Removes `thread` from the list of `priority`.
    ///
    /// # Safety
    /// The thread is on that list.
    pub unsafe fn remove(&mut self, thread: NonNull<Thread<M>>, priority: u8) {
        let list = &mut self.lists[usize::from(priority)];
        // SAFETY: the caller vouches that the thread is on this list.
        unsafe { list.remove(thread) };
        if list.is_empty() {
            self.occupied &= !(1 << priority);
        }
        self.len -= 1;
    }

    /// The real-time thread that runs next; `None` if none waits.
    pub fn first(&self) -> Option<NonNull<Thread<M>>> {
        self.lists[usize::from(self.most_urgent())].first()
    }

    /// Finds the most urgent thread that `may` accepts. Each examined thread lowers `looks` by one, and the search ends
    /// when `looks` is 0.
    pub fn find(&self, looks: &Cell<usize>, may: impl Fn(NonNull<Thread<M>>) -> bool) -> Option<NonNull<Thread<M>>> {
        let look = || looks.replace(looks.get().saturating_sub(1)) > 0;
        let mut left = self.occupied;
        while left != 0 {
            let priority = 127 - left.leading_zeros();
            let found = self.lists[priority as usize].iter().take_while(|_| look()).find(|thread| may(*thread));
            if found.is_some() || looks.get() == 0 {
                return found;
            }
            left &= !(1 << priority);
        }
        None
    }

    /// Adds the run of a real-time thread from `from` to `to` to the time used in the window. Begins a new window if
    /// the last one has ended.
    pub fn charge(&mut self, from: u64, to: u64) {
        let ran = to.saturating_sub(from);
        self.used = self.used.saturating_add(ran);
        let past = to.saturating_sub(self.began);
        if past >= self.bound.period {
            self.began = to - past % self.bound.period;
            self.used = ran.min(to - self.began);
        }
    }

    /// Begins a window at `now` if the last one has ended.
    pub fn roll(&mut self, now: u64) {
        if now.saturating_sub(self.began) >= self.bound.period {
            self.began = now;
            self.used = 0;
        }
    }

    fn is_bound(&self) -> bool {
        self.bound.runtime < self.bound.period
    }

    /// Whether real-time threads have used up their runtime, so that other threads get the rest of this window.
    pub fn is_spent(&self) -> bool {
        self.is_bound() && self.used >= self.bound.runtime
    }

    /// The time at which the window ends.
    pub fn window_end(&self) -> u64 {
        self.began.saturating_add(self.bound.period)
    }

    /// The time at which a real-time thread that was charged up to `charged` must let other threads run; [`NEVER`] if
    /// there is no bound.
    pub fn spent_at(&self, charged: u64) -> u64 {
        if !self.is_bound() {
            return NEVER;
        }
        let at = charged.saturating_add(self.bound.runtime.saturating_sub(self.used));
        let end = self.window_end();
        if at <= end { at } else { end.saturating_add(self.bound.runtime) }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;
