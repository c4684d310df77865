//! The lists of held locks, in debug builds. One check uses them for the lock order (relies on C6). Another check
//! asserts that no thread sleeps, or waits for other CPUs, while it holds a spin lock (relies on C5). The models check
//! the second rule too, with a count.
//!
//! Spin locks belong to a CPU, because their holders stay on it. Sleeping locks belong to a thread. On the host,
//! threads stand for CPUs, so both kinds of locks belong to the thread. Elsewhere the hooks `Cpu::held` and
//! `Wait::held` return the lists. If a hook returns null, its locks are not checked.

use core::fmt;

/// A spin lock that is held.
#[derive(Clone, Copy)]
struct Spin {
    rank: u8,
    at: usize,
}

impl fmt::Debug for Spin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rank {} at {:#x}", self.rank, self.at)
    }
}

/// A sleeping lock that is held.
#[derive(Clone, Copy)]
struct Sleeping {
    of: &'static str,
    at: usize,
}

impl fmt::Debug for Sleeping {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "around {} at {:#x}", self.of, self.at)
    }
}

/// The locks that a CPU or a thread holds, oldest first.
struct Locks<T, const N: usize> {
    list: [T; N],
    len: usize,
    /// The number of further held locks, for which the list had no room.
    more: usize,
}

impl<T: fmt::Debug, const N: usize> fmt::Debug for Locks<T, N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (held, more) = (&self.list[..self.len], self.more);
        write!(f, "{held:?} and {more} more")
    }
}

impl<T: Copy, const N: usize> Locks<T, N> {
    const fn new(none: T) -> Self {
        Locks { list: [none; N], len: 0, more: 0 }
    }
}

#[cfg(all(debug_assertions, not(any(loom, shuttle))))]
impl<T: Copy, const N: usize> Locks<T, N> {
    fn held(&self) -> &[T] {
        &self.list[..self.len]
    }

    fn push(&mut self, lock: T) {
        if self.len < N {
            self.list[self.len] = lock;
            self.len += 1;
        } else {
            self.more += 1;
        }
    }

    /// Removes the last lock for which `is` returns true. Returns whether it found such a lock.
    fn pop(&mut self, is: impl Fn(&T) -> bool) -> bool {
        if let Some(i) = self.held().iter().rposition(is) {
            self.list.copy_within(i + 1..self.len, i);
            self.len -= 1;
            true
        } else if self.more > 0 {
            self.more -= 1;
            true
        } else {
            false
        }
    }
}

/// The spin locks that a CPU holds, for [`Cpu::held`](crate::Cpu::held).
pub struct SpinsHeld(Locks<Spin, 32>);

impl SpinsHeld {
    /// A list without locks.
    pub const fn new() -> Self {
        SpinsHeld(Locks::new(Spin { rank: 0, at: 0 }))
    }
}

#[cfg(all(debug_assertions, not(any(loom, shuttle))))]
impl SpinsHeld {
    /// Whether the lock at address `at` is in the list. An interrupt handler that interrupts an update may see the
    /// older list.
    pub fn has(&self, at: usize) -> bool {
        self.0.list.iter().take(self.0.len).any(|held| held.at == at)
    }
}

impl fmt::Debug for SpinsHeld {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl Default for SpinsHeld {
    fn default() -> Self {
        Self::new()
    }
}

/// The sleeping locks that a thread holds, for [`Wait::held`](crate::Wait::held).
pub struct MutexesHeld(Locks<Sleeping, 16>);

impl MutexesHeld {
    /// A list without locks.
    pub const fn new() -> Self {
        MutexesHeld(Locks::new(Sleeping { of: "", at: 0 }))
    }

    /// Whether the thread holds no sleeping lock.
    pub fn is_empty(&self) -> bool {
        self.0.len == 0 && self.0.more == 0
    }
}

impl fmt::Debug for MutexesHeld {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl Default for MutexesHeld {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(all(debug_assertions, not(any(loom, shuttle))))]
mod checked {
    use super::{Sleeping, Spin};
    use crate::backtrace::Trace;
    use crate::order::{self, OrderNode};
    use crate::rank::Rank;
    use crate::spin::Beside;

    /// Checks that the caller may wait for the lock at `at`, and notes the lock as held.
    #[inline]
    pub fn spin(rank: Rank, beside: Beside, at: usize) {
        super::store::spins(|held| {
            for h in held {
                if h.rank > rank.number() || (h.rank == rank.number() && beside == Beside::None) {
                    wrong(rank.number(), *h, held);
                }
                if h.rank != rank.number() {
                    order::ranks(h.rank, rank.number());
                } else if beside == Beside::Equal {
                    order::after(OrderNode::Lock(h.at), OrderNode::Lock(at));
                }
            }
        });
        spin_taken(rank, at);
    }

    /// Notes a lock as held that the caller acquired without waiting. Such a caller may acquire locks in any order.
    #[inline]
    pub fn spin_taken(rank: Rank, at: usize) {
        super::store::push_spin(Spin { rank: rank.number(), at });
    }

    /// Notes the lock as free again.
    #[inline]
    pub fn spin_released(at: usize) {
        super::store::pop_spin(at);
    }

    #[cold]
    fn wrong(rank: u8, against: Spin, held: &[Spin]) -> ! {
        let now = Trace::here();
        match order::first(rank, against.rank) {
            Some(first) => panic!(
                "lock order (Contract C6): a lock of rank {rank} is taken while {held:?} are held\n\
                 rank {} was first taken while rank {rank} was held:\n{first}\nnow:\n{now}",
                against.rank
            ),
            None => {
                panic!("lock order (Contract C6): a lock of rank {rank} is taken while {held:?} are held\nnow:\n{now}")
            }
        }
    }

    /// Panics where the caller holds a spin lock.
    #[inline]
    pub fn assert_no_spin() {
        super::store::spins(|held| {
            assert!(held.is_empty(), "sleeping while spin locks are held: {held:?} (Contract C5)");
        });
    }

    /// Panics where the caller holds a spin lock, because it is about to wait for other CPUs.
    #[inline]
    pub fn assert_awaits_no_spinner() {
        super::store::spins(|held| {
            // A thread that unwinds from a panic may flush while guards are still to be dropped.
            assert!(
                held.is_empty() || super::store::unwinds(),
                "waiting for other CPUs while spin locks are held: {held:?} (Contract C5)"
            );
        });
    }

    /// Checks that the caller may wait for the sleeping lock at `at`, which guards a value of type `of`.
    pub fn before_sleeping(of: &'static str, at: usize) {
        super::store::sleeping(|held| {
            for h in held {
                assert!(
                    h.at != at,
                    "lock order (Contract C6): a mutex around {of} is taken by the thread that holds it"
                );
                if h.of == of {
                    order::after(OrderNode::Lock(h.at), OrderNode::Lock(at));
                } else {
                    order::after(OrderNode::Type(h.of), OrderNode::Type(of));
                }
            }
        });
    }

    /// Notes the sleeping lock as held.
    pub fn sleeping_taken(of: &'static str, at: usize) {
        super::store::push_sleeping(Sleeping { of, at });
    }

    /// Notes the lock as free again.
    pub fn sleeping_released(at: usize) {
        super::store::pop_sleeping(at);
    }

    /// Notes that the lock at `at` is destroyed.
    pub fn forget(at: usize) {
        order::forget(at);
    }
}

#[cfg(all(debug_assertions, any(test, feature = "std"), not(any(loom, shuttle))))]
mod store {
    use super::{MutexesHeld, Sleeping, Spin, SpinsHeld};
    use std::cell::RefCell;

    std::thread_local! {
        static SPINS: RefCell<SpinsHeld> = const { RefCell::new(SpinsHeld::new()) };
        static SLEEPING: RefCell<MutexesHeld> = const { RefCell::new(MutexesHeld::new()) };
    }
    /// Whether the thread unwinds from a panic.
    pub fn unwinds() -> bool {
        std::thread::panicking()
    }
    // Destructors at the very end of a thread may still take locks. The order of these locks is not checked, because
    // the list is gone.
    pub fn spins(f: impl FnOnce(&[Spin])) {
        let _gone = SPINS.try_with(|held| f(held.borrow().0.held()));
    }
    pub fn push_spin(new: Spin) {
        let _gone = SPINS.try_with(|held| held.borrow_mut().0.push(new));
    }
    pub fn pop_spin(at: usize) {
        let was = SPINS.try_with(|held| held.borrow_mut().0.pop(|h| h.at == at));
        assert!(was != Ok(false), "this CPU releases a lock that it does not hold");
    }
    pub fn sleeping(f: impl FnOnce(&[Sleeping])) {
        let _gone = SLEEPING.try_with(|held| f(held.borrow().0.held()));
    }
    pub fn push_sleeping(new: Sleeping) {
        let _gone = SLEEPING.try_with(|held| held.borrow_mut().0.push(new));
    }
    pub fn pop_sleeping(at: usize) {
        let _gone = SLEEPING.try_with(|held| held.borrow_mut().0.pop(|h| h.at == at));
    }
}

#[cfg(all(debug_assertions, not(any(test, feature = "std", loom, shuttle))))]
mod store {
    use super::{MutexesHeld, Sleeping, Spin, SpinsHeld};
    use crate::hooks;

    /// Threads of a kernel do not unwind.
    pub fn unwinds() -> bool {
        false
    }

    /// Calls `f` with this CPU's list. Returns `None` if there is no list.
    fn of_cpu<R>(f: impl FnOnce(&mut SpinsHeld) -> R) -> Option<R> {
        hooks::uninterrupted(|| {
            // SAFETY: by the hook's contract the list is this CPU's own and stays; with interrupts masked no other code
            // of this CPU uses it.
            unsafe { hooks::spins_held().as_mut() }.map(f)
        })
    }

    /// Calls `f` with the calling thread's list. Returns `None` if there is no list.
    fn of_thread<R>(f: impl FnOnce(&mut MutexesHeld) -> R) -> Option<R> {
        hooks::uninterrupted(|| {
            // SAFETY: by the hook's contract the list is this thread's own; with interrupts masked the thread stays on
            // this CPU while `f` runs.
            unsafe { hooks::mutexes_held().as_mut() }.map(f)
        })
    }

    pub fn spins(f: impl FnOnce(&[Spin])) {
        let _unwatched = of_cpu(|held| f(held.0.held()));
    }
    pub fn push_spin(new: Spin) {
        let _unwatched = of_cpu(|held| held.0.push(new));
    }
    pub fn pop_spin(at: usize) {
        let was = of_cpu(|held| held.0.pop(|h| h.at == at));
        assert!(was != Some(false), "this CPU releases a lock that it does not hold");
    }
    pub fn sleeping(f: impl FnOnce(&[Sleeping])) {
        let _unwatched = of_thread(|held| f(held.0.held()));
    }
    pub fn push_sleeping(new: Sleeping) {
        let _unwatched = of_thread(|held| held.0.push(new));
    }
    pub fn pop_sleeping(at: usize) {
        let _unwatched = of_thread(|held| held.0.pop(|h| h.at == at));
    }
}

#[cfg(any(loom, shuttle))]
mod checked {
    //! Models count the spin locks of each thread. They have no lists, because a list allocates at each lock.

    use crate::rank::Rank;
    use crate::spin::Beside;
    use std::cell::Cell;

    // The checkers' threads share one thread of the system, so they need the checkers' own thread-local storage.
    #[cfg(loom)]
    loom::thread_local! {
        static SPINS: Cell<u32> = Cell::new(0);
    }
    #[cfg(shuttle)]
    shuttle::thread_local! {
        static SPINS: Cell<u32> = Cell::new(0);
    }

    /// Changes the calling thread's count. Destructors at the very end of a thread are not counted.
    fn change(by: i32) {
        let _gone = SPINS.try_with(|held| held.set(held.get().wrapping_add_signed(by)));
    }

    pub fn spin(_rank: Rank, _beside: Beside, _at: usize) {
        change(1);
    }
    pub fn spin_taken(_rank: Rank, _at: usize) {
        change(1);
    }
    pub fn spin_released(_at: usize) {
        change(-1);
    }
    /// The checkers report a thread that sleeps for ever under a lock.
    pub fn assert_no_spin() {}
    /// Panics where the caller holds a spin lock, because it is about to wait for other CPUs.
    pub fn assert_awaits_no_spinner() {
        let held = SPINS.try_with(Cell::get).unwrap_or(0);
        // A thread that unwinds from a panic may flush while guards are still to be dropped.
        assert!(held == 0 || std::thread::panicking(), "waiting for other CPUs while spin locks are held");
    }
    pub fn before_sleeping(_of: &'static str, _at: usize) {}
    pub fn sleeping_taken(_of: &'static str, _at: usize) {}
    pub fn sleeping_released(_at: usize) {}
}

#[cfg(not(any(debug_assertions, loom, shuttle)))]
mod checked {
    use crate::rank::Rank;
    use crate::spin::Beside;
    #[inline(always)]
    pub fn spin(_rank: Rank, _beside: Beside, _at: usize) {}
    #[inline(always)]
    pub fn spin_taken(_rank: Rank, _at: usize) {}
    #[inline(always)]
    pub fn spin_released(_at: usize) {}
    #[inline(always)]
    pub fn assert_no_spin() {}
    #[inline(always)]
    pub fn assert_awaits_no_spinner() {}
    #[inline(always)]
    pub fn before_sleeping(_of: &'static str, _at: usize) {}
    #[inline(always)]
    pub fn sleeping_taken(_of: &'static str, _at: usize) {}
    #[inline(always)]
    pub fn sleeping_released(_at: usize) {}
}

pub(crate) use checked::*;
