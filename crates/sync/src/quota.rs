//! A limit on the number of objects that many CPUs make and free: a [`LimitedCounter`] with one limit.
//!
//! The limit is exact. Far from the limit, a CPU writes only its own cache line. It writes the shared line once for
//! each batch of permits.

use crate::LimitedCounter;
use crate::atomic::{AtomicU64, Ordering};
use crate::per_cpu::CachePadded;
use core::ptr::NonNull;

/// A limited number of objects; see the module.
pub struct Quota {
    count: LimitedCounter,
    /// Each taker reads the limit. Written at boot.
    limit: CachePadded<AtomicU64>,
}

impl Quota {
    /// The size in bytes of the memory that [`new`](Self::new) needs.
    pub const fn bytes(cpus: usize) -> usize {
        LimitedCounter::bytes(cpus)
    }

    /// A quota of `limit` objects, none of them taken, on a machine of `cpus` CPUs.
    ///
    /// # Safety
    /// As for [`LimitedCounter::new`], with [`bytes`](Self::bytes)`(cpus)` bytes.
    pub unsafe fn new(memory: NonNull<u8>, cpus: usize, limit: u64) -> Self {
        // SAFETY: the caller hands over the memory that `LimitedCounter::new` requires: the sizes are equal.
        Self::over(unsafe { LimitedCounter::new(memory, cpus) }, limit)
    }

    /// A quota of `limit` objects, none of them taken, on a machine of `cpus` CPUs, in memory that is never freed. For
    /// programs with std.
    #[cfg(any(test, feature = "std"))]
    pub fn leaked(cpus: usize, limit: u64) -> Self {
        Self::over(LimitedCounter::leaked(cpus), limit)
    }

    fn over(count: LimitedCounter, limit: u64) -> Self {
        Quota { count, limit: CachePadded(AtomicU64::new(limit)) }
    }

    /// The most objects that may be taken.
    pub fn limit(&self) -> u64 {
        self.limit.load(Ordering::Relaxed)
    }

    /// Sets the limit. Objects already taken beyond it stay taken.
    pub fn set_limit(&self, limit: u64) {
        self.limit.store(limit, Ordering::Relaxed);
    }

    /// Takes `n` objects, all or none. Returns whether there was room.
    #[inline]
    pub fn take(&self, n: u64) -> bool {
        self.count.take_many(n, self.limit())
    }

    /// Gives `n` taken objects back.
    #[inline]
    pub fn put(&self, n: u64) {
        self.count.put_many(n);
    }

    /// The exact number of taken objects at one moment.
    pub fn taken(&self) -> u64 {
        self.count.count()
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use crate::hooks::threads::set_cpu;
    use std::boxed::Box;

    #[test]
    fn runs_of_many_are_taken_whole_or_not_at_all() {
        for cpus in [1, 3, 64] {
            for limit in [1, 31, 32, 33, 1000] {
                let quota = Quota::leaked(cpus, limit);
                let mut taken = 0;
                for i in 0..200u64 {
                    set_cpu(i as usize % cpus);
                    let n = i % 70 + 1;
                    if i % 4 == 3 && taken > 0 {
                        let back = n.min(taken);
                        quota.put(back);
                        taken -= back;
                    } else {
                        let fits = taken + n <= limit;
                        assert_eq!(quota.take(n), fits, "{cpus} CPUs, {taken} + {n} of {limit}");
                        taken += if fits { n } else { 0 };
                    }
                    if i % 16 == 0 {
                        assert_eq!(quota.taken(), taken);
                    }
                }
                assert_eq!(quota.taken(), taken);
            }
        }
    }

    #[test]
    fn a_raised_limit_admits_exactly_the_increase() {
        let quota = Quota::leaked(2, u64::MAX);
        (0..100).for_each(|_| assert!(quota.take(1)));
        quota.set_limit(quota.taken() + 7);
        set_cpu(1);
        (0..7).for_each(|_| assert!(quota.take(1)));
        assert!(!quota.take(1));
        quota.set_limit(50);
        quota.put(50);
        assert!(!quota.take(1), "the amount taken exceeds the limit");
        assert_eq!(quota.taken(), 57);
    }

    /// Each taker continues until it is refused. So at the end exactly the limit is taken, whatever the batches were.
    #[test]
    fn racing_takers_take_exactly_the_limit() {
        for limit in [1, 40, 1000, 100_003] {
            let quota: &'static Quota = Box::leak(Box::new(Quota::leaked(4, limit)));
            let takers: std::vec::Vec<_> = (0..4)
                .map(|cpu| {
                    std::thread::spawn(move || {
                        set_cpu(cpu);
                        let mut mine = 0;
                        while quota.take(1) {
                            mine += 1;
                        }
                        mine
                    })
                })
                .collect();
            let sum: u64 = takers.into_iter().map(|t| t.join().expect("a taker")).sum();
            assert_eq!((sum, quota.taken()), (limit, limit));
        }
    }
}
