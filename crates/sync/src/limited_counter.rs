//! A count with a limit. Far from the limit each CPU counts for itself.
//!
//! The unit of the count is a *permit*. Each CPU keeps a stock of spare permits. So a CPU that takes and puts back
//! mostly writes only its own cache line. The total counts all existing permits, held and spare. A taker uses a spare
//! permit only if the total is within its limit. So the limit holds, whatever other CPUs do.
//!
//! Close to the limit, spare permits on other CPUs would count as held. A taker that does not find room for a batch
//! *closes* the stocks of all CPUs, under the lock of the total. It swaps a mark into each stock, and subtracts the
//! spare permits from the total. From then on every taker acquires the lock, and the total is the exact number of held
//! permits. A stock is open again when its own CPU finds room for a batch.
//!
//! | | closes a stock: *swap* |
//! |---|---|
//! | **taker, putter** on that CPU (*compare and swap*) | If the compare and swap is first, the swap sees its result. If the swap is first, the compare and swap fails, and its CPU acquires the lock. |
//!
//! Takers may have different limits (the processes of a user). A limit may change (a file system after boot).
//!
//! Counts that belong together share each CPU's cache line: [`LimitedCounters`] has several counts, [`LimitedCounter`]
//! has one.

use crate::atomic::{AtomicU64, Ordering};
use crate::hooks::preempt_off;
use crate::mutant::{Mutant, mutant};
use crate::per_cpu::CachePadded;
use crate::{PerCpu, Rank, SpinLock};
use core::ptr::NonNull;

/// The number of permits that a CPU adds to its stock, or gives back, at once. So a CPU writes the shared total about
/// once in this number of operations.
const BATCH: u64 = if cfg!(any(loom, shuttle)) { 2 } else { 32 };
/// The mark of a stock that is closed.
const CLOSED: u64 = u64::MAX;

/// Several counts with limits, numbered from 0; see the module. A number of `N` or above panics.
pub struct LimitedCounters<const N: usize> {
    /// Spare permits of each count.
    spare: PerCpu<[AtomicU64; N]>,
    total: [CachePadded<Total>; N],
}

/// A count with a limit; see the module.
pub struct LimitedCounter(LimitedCounters<1>);

struct Total {
    lock: SpinLock<()>,
    /// The number of permits that exist. A CPU that holds `lock` changes it.
    permits: AtomicU64,
}

/// One CPU's stocks of spare permits, one for each count, all closed.
fn closed<const N: usize>() -> [AtomicU64; N] {
    core::array::from_fn(|_| AtomicU64::new(CLOSED))
}

impl LimitedCounter {
    /// The size in bytes of the memory that [`new`](Self::new) needs.
    pub const fn bytes(cpus: usize) -> usize {
        LimitedCounters::<1>::bytes(cpus)
    }

    /// Creates a count of zero, for a machine of `cpus` CPUs.
    ///
    /// # Safety
    /// As for [`LimitedCounters::new`].
    pub unsafe fn new(memory: NonNull<u8>, cpus: usize) -> Self {
        // SAFETY: the caller hands over the memory that `LimitedCounters::new` requires: the sizes are equal.
        LimitedCounter(unsafe { LimitedCounters::new(memory, cpus) })
    }

    /// Creates a count of zero, for a machine of `cpus` CPUs, in memory that is never freed. For programs with std.
    #[cfg(any(test, feature = "std"))]
    pub fn leaked(cpus: usize) -> Self {
        LimitedCounter(LimitedCounters::over(PerCpu::leaked(cpus, |_| closed())))
    }

    /// Counts one more if the count is then at most `limit`. Returns whether it did.
    #[inline]
    pub fn take(&self, limit: u64) -> bool {
        self.0.take(0, 1, limit)
    }

    /// Counts `n` more if the count is then at most `limit`, and none otherwise. Returns whether it did.
    #[inline]
    pub fn take_many(&self, n: u64, limit: u64) -> bool {
        self.0.take(0, n, limit)
    }

    /// Counts one less, after a [`take`](Self::take). Once other CPUs can see the lower count, the call does not access
    /// the counter any more.
    #[inline]
    pub fn put(&self) {
        self.0.put(0, 1);
    }

    /// Counts `n` less; otherwise as [`put`](Self::put).
    #[inline]
    pub fn put_many(&self, n: u64) {
        self.0.put(0, n);
    }

    /// The exact count at this moment. The call closes all CPUs' stocks of spare permits.
    pub fn count(&self) -> u64 {
        self.0.count(0)
    }
}

impl<const N: usize> LimitedCounters<N> {
    /// The size in bytes of the memory that [`new`](Self::new) needs.
    pub const fn bytes(cpus: usize) -> usize {
        PerCpu::<[AtomicU64; N]>::bytes(cpus)
    }

    /// Creates counts of zero, for a machine of `cpus` CPUs.
    ///
    /// # Safety
    /// `memory` points to [`bytes`](Self::bytes)`(cpus)` writable bytes, aligned to 128, that no other code uses as
    /// long as this lives.
    pub unsafe fn new(memory: NonNull<u8>, cpus: usize) -> Self {
        // SAFETY: the caller hands over the memory that `PerCpu::new` requires: `bytes` is the size of these elements.
        Self::over(unsafe { PerCpu::new(memory, cpus, |_| closed()) })
    }

    fn over(spare: PerCpu<[AtomicU64; N]>) -> Self {
        let none = |_| Total { lock: SpinLock::new(Rank::LIMITED_COUNTER, ()), permits: AtomicU64::new(0) };
        LimitedCounters { spare, total: core::array::from_fn(|which| CachePadded(none(which))) }
    }

    /// Counts `n` more of count `which` if the count is then at most `limit`, and none otherwise. Returns whether it
    /// did.
    pub fn take(&self, which: usize, n: u64, limit: u64) -> bool {
        let pinned = preempt_off();
        let (mine, total) = (&self.spare.mine(&pinned)[which], &self.total[which]);
        let spare = mine.load(Ordering::Relaxed);
        if spare != CLOSED && spare >= n && total.permits.load(Ordering::Acquire) <= limit {
            // The exchange fails if another CPU has closed the stock. Other CPUs change it in no other way.
            let taken = mine.compare_exchange(spare, spare - n, Ordering::AcqRel, Ordering::Relaxed).is_ok();
            if taken {
                return true;
            }
            if mutant(Mutant::TakeFromClosed) {
                mine.store(spare - n, Ordering::Release);
                return true;
            }
        }
        let _total = total.lock.lock();
        let permits = total.permits.load(Ordering::Relaxed);
        let more = permits.checked_add(n).and_then(|all| all.checked_add(BATCH - 1));
        if let Some(more) = more.filter(|more| *more <= limit) {
            let spare = mine.load(Ordering::Relaxed);
            let before = if spare == CLOSED { 0 } else { spare };
            total.permits.store(more, Ordering::Release);
            // No other CPU has closed the stock since, because closing requires the lock, which this CPU holds.
            mine.store(before + BATCH - 1, Ordering::Release);
            return true;
        }
        let held = self.close(which);
        match held.checked_add(n).filter(|held| *held <= limit) {
            Some(held) => total.permits.store(held, Ordering::Release),
            None => return false,
        }
        true
    }

    /// Counts `n` less of count `which`, after a [`take`](Self::take). Once other CPUs can see the lower count, the
    /// call does not access the counter any more.
    pub fn put(&self, which: usize, n: u64) {
        let pinned = preempt_off();
        let (mine, total) = (&self.spare.mine(&pinned)[which], &self.total[which]);
        let spare = mine.load(Ordering::Relaxed);
        let room = spare != CLOSED && spare.saturating_add(n) <= 2 * BATCH;
        if room && mine.compare_exchange(spare, spare + n, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
            return;
        }
        let _total = total.lock.lock();
        let permits = total.permits.load(Ordering::Relaxed);
        let spare = mine.load(Ordering::Relaxed);
        let back = if spare == CLOSED || spare < BATCH { 0 } else { BATCH };
        if back != 0 {
            mine.store(spare - back, Ordering::Release);
        }
        total.permits.store(permits - back - n, Ordering::Release);
    }

    /// The exact count of `which` at this moment. The call closes all CPUs' stocks of its spare permits.
    pub fn count(&self, which: usize) -> u64 {
        let _total = self.total[which].lock.lock();
        self.close(which)
    }

    /// Closes all CPUs' stocks of spare permits of count `which`, and returns the exact count.
    ///
    /// # Requires
    /// The total is locked.
    fn close(&self, which: usize) -> u64 {
        let total = &self.total[which];
        let mut permits = total.permits.load(Ordering::Relaxed);
        for stock in self.spare.iter().map(|of_cpu| &of_cpu[which]) {
            // Reads first: near the limit most stocks are closed already, and their cache lines need no write.
            let seen = stock.load(Ordering::Acquire);
            if seen == CLOSED {
                continue;
            }
            let spare = if mutant(Mutant::CloseNotAtomic) {
                stock.store(CLOSED, Ordering::Release);
                seen
            } else {
                stock.swap(CLOSED, Ordering::AcqRel)
            };
            permits -= spare;
        }
        total.permits.store(permits, Ordering::Release);
        permits
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use crate::hooks::threads::set_cpu;
    use std::alloc::{Layout, alloc};

    fn limited_counter(cpus: usize) -> &'static LimitedCounter {
        let layout = Layout::from_size_align(LimitedCounter::bytes(cpus), 128).expect("a layout");
        // SAFETY: a fresh allocation of that size, never freed.
        Box::leak(Box::new(unsafe { LimitedCounter::new(NonNull::new(alloc(layout)).expect("memory"), cpus) }))
    }

    #[test]
    fn the_limit_is_exact_wherever_permits_were_left() {
        for (cpus, limit) in [(1, 0), (1, 1), (2, 31), (3, 32), (64, 33), (64, 1000), (256, 5)] {
            let count = limited_counter(cpus);
            let mut held = 0;
            // Takes and puts on all CPUs, so that each keeps spare permits.
            for i in 0..40 * cpus as u64 {
                set_cpu(i as usize % cpus);
                if i % 3 == 2 && held > 0 {
                    count.put();
                    held -= 1;
                } else {
                    assert_eq!(count.take(limit), held < limit, "{cpus} CPUs, {held} of {limit}");
                    held = (held + 1).min(limit);
                }
            }
            while held < limit {
                set_cpu(held as usize % cpus);
                assert!(count.take(limit), "{cpus} CPUs, {held} of {limit}");
                held += 1;
            }
            assert!(!count.take(limit));
            assert!(count.take(limit + 1) && !count.take(limit + 1), "another caller's limit may be higher");
            (0..=limit).for_each(|_| count.put());
            assert_eq!(count.count(), 0);
        }
    }

    #[test]
    fn without_a_limit_the_books_are_written_once_in_a_batch() {
        let count = limited_counter(2);
        for round in 0..100 * BATCH {
            set_cpu(0);
            assert!(count.take(u64::MAX));
            // The permit is put back on the other CPU, which returns its surplus to the total.
            set_cpu(1);
            count.put();
            let permits = count.0.total[0].permits.load(Ordering::Relaxed);
            assert!(permits <= 3 * BATCH, "round {round}: {permits} permits for one thread");
        }
        assert_eq!(count.count(), 0);
    }

    #[test]
    fn many_takers_never_hold_more_than_the_limit() {
        const LIMIT: u64 = 50;
        let count = limited_counter(4);
        let held = AtomicU64::new(0);
        std::thread::scope(|scope| {
            for cpu in 0..4 {
                let held = &held;
                scope.spawn(move || {
                    set_cpu(cpu);
                    let mut mine = 0;
                    for round in 0..20_000u64 {
                        if (round / 40 + cpu as u64).is_multiple_of(2) {
                            if count.take(LIMIT) {
                                assert!(held.fetch_add(1, Ordering::SeqCst) < LIMIT);
                                mine += 1;
                            }
                        } else if mine > 0 {
                            held.fetch_sub(1, Ordering::SeqCst);
                            count.put();
                            mine -= 1;
                        }
                    }
                    for _ in 0..mine {
                        held.fetch_sub(1, Ordering::SeqCst);
                        count.put();
                    }
                });
            }
        });
        assert_eq!(count.count(), 0);
    }
}
