//! Which locks are held, in debug builds on threads of the host: what the checks of the lock order (Contract C6) and of sleeping (C5) look at.
//!
//! Spin locks belong to a CPU, since their holders stay there; sleeping locks belong to a thread. Threads of the host stand for CPUs
//! here, so both are the thread's.

#[cfg(all(debug_assertions, any(test, feature = "std"), not(any(loom, shuttle))))]
mod checked {
    use crate::order::{self, Node};
    use crate::rank::Rank;
    use crate::spin::Beside;
    use crate::trace::Trace;
    use core::fmt;

    /// A spin lock that is held.
    #[derive(Clone, Copy, Default)]
    pub(super) struct Spin {
        pub rank: u8,
        pub at: usize,
    }

    impl fmt::Debug for Spin {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            write!(f, "rank {} at {:#x}", self.rank, self.at)
        }
    }

    /// A sleeping lock that is held.
    #[derive(Clone, Copy)]
    pub(super) struct Sleeping {
        pub of: &'static str,
        pub at: usize,
    }

    /// Checks that the lock at `at` may be waited for, and notes it as held.
    #[inline]
    pub fn spin(rank: Rank, beside: Beside, at: usize) {
        super::store::spins(|held| {
            for h in held {
                if h.rank > rank.0 || (h.rank == rank.0 && beside == Beside::None) {
                    wrong(rank.0, *h, held);
                }
                if h.rank != rank.0 {
                    order::ranks(h.rank, rank.0);
                } else if beside == Beside::Equal {
                    order::after(Node::Lock(h.at), Node::Lock(at));
                }
            }
        });
        spin_taken(rank, at);
    }

    /// Notes a lock as held that was free: who does not wait can take it in any order.
    #[inline]
    pub fn spin_taken(rank: Rank, at: usize) {
        super::store::push_spin(Spin { rank: rank.0, at });
    }

    /// It is free again.
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

    /// Checks that the sleeping lock at `at`, around an `of`, may be waited for.
    pub fn before_sleeping(of: &'static str, at: usize) {
        super::store::sleeping(|held| {
            for h in held {
                assert!(
                    h.at != at,
                    "lock order (Contract C6): a mutex around {of} is taken by the thread that holds it"
                );
                if h.of == of {
                    order::after(Node::Lock(h.at), Node::Lock(at));
                } else {
                    order::after(Node::Type(h.of), Node::Type(of));
                }
            }
        });
    }

    /// Notes it as held.
    pub fn sleeping_taken(of: &'static str, at: usize) {
        super::store::push_sleeping(Sleeping { of, at });
    }

    /// It is free again.
    pub fn sleeping_released(at: usize) {
        super::store::pop_sleeping(at);
    }

    /// The lock at `at` goes.
    pub fn forget(at: usize) {
        order::forget(at);
    }
}

#[cfg(all(debug_assertions, any(test, feature = "std"), not(any(loom, shuttle))))]
mod store {
    use super::checked::{Sleeping, Spin};
    use std::cell::RefCell;

    std::thread_local! {
        static SPINS: RefCell<Vec<Spin>> = const { RefCell::new(Vec::new()) };
        static SLEEPING: RefCell<Vec<Sleeping>> = const { RefCell::new(Vec::new()) };
    }
    // What a thread drops at its very end may still take locks: it is not watched any more.
    pub fn spins(f: impl FnOnce(&[Spin])) {
        let _gone = SPINS.try_with(|held| f(&held.borrow()));
    }
    pub fn push_spin(new: Spin) {
        let _gone = SPINS.try_with(|held| held.borrow_mut().push(new));
    }
    pub fn pop_spin(at: usize) {
        let _gone = SPINS.try_with(|held| {
            let mut held = held.borrow_mut();
            let i = held.iter().rposition(|h| h.at == at).expect("a lock is released that this CPU does not hold");
            held.remove(i);
        });
    }
    pub fn sleeping(f: impl FnOnce(&[Sleeping])) {
        let _gone = SLEEPING.try_with(|held| f(&held.borrow()));
    }
    pub fn push_sleeping(new: Sleeping) {
        let _gone = SLEEPING.try_with(|held| held.borrow_mut().push(new));
    }
    pub fn pop_sleeping(at: usize) {
        let _gone = SLEEPING.try_with(|held| held.borrow_mut().retain(|h| h.at != at));
    }
}

#[cfg(not(all(debug_assertions, any(test, feature = "std"), not(any(loom, shuttle)))))]
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
    pub fn before_sleeping(_of: &'static str, _at: usize) {}
    #[inline(always)]
    pub fn sleeping_taken(_of: &'static str, _at: usize) {}
    #[inline(always)]
    pub fn sleeping_released(_at: usize) {}
}

pub(crate) use checked::*;
