//! The futex table: threads that sleep until a word of memory changes.
//!
//! A bucket is one cache line: a lock, a count of waiters, and a chain with one node for each *distinct key* that has
//! waiters. The first waiter of a key is on that chain. The other waiters of the key are on a list in the first one. So
//! a wake-up visits one node for each key of its bucket, and the waiters of its own key only.
//!
//! # Why no wake-up is lost
//! A waiter takes the bucket's lock, raises the count, executes a fence, and only then compares the word. A waker
//! changes the word before it calls [`FutexTable::wake`], which executes a fence and reads the count. So either the
//! waker sees the count and takes the lock, or the waiter sees the new word.
//!
//! The waker sets `woken` of each chosen waiter under the bucket's lock. The waiter then returns without that lock, and
//! its thread may exit. So the waker takes a counted reference to the thread before it sets `woken`.

pub mod pi;

use crate::list::{Adapter, Links, List};
use crate::machine::Machine;
use crate::mutant::{Mutant, mutant};
use crate::scheduler::Scheduler;
use crate::thread::{Thread, ThreadRef};
use core::cell::{Cell, UnsafeCell};
use core::marker::PhantomData;
use core::ptr::NonNull;
use pi::{OfBucket, PiLock};
use quire_sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering, fence_after_rmw, fence_full};
use quire_sync::{Rank, SpinGuard, SpinLock};

/// The key of a futex word: the address space and the address for a private futex, the object and the offset for a
/// shared one.
pub type Key = (u64, u64);

/// The bitset of a wait or a wake that specifies no bitset: all bits.
pub const ANY: u32 = !0;

/// How a wait ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FutexWait {
    /// A wake-up chose this waiter.
    Woken,
    /// The word did not have the expected value; the caller did not sleep.
    Differs,
    /// The deadline passed first.
    TimedOut,
    /// The caller's `interrupted` returned true first.
    Interrupted,
}

/// How many threads are woken at most under one acquisition of a bucket's lock. The lock is released between batches.
const BATCH: usize = 16;

/// The list node of a waiting thread. It is on the thread's stack, or elsewhere in the thread's memory if the thread
/// sleeps without a stack.
pub struct Waiter<M: Machine> {
    /// The links on the bucket's chain of keys, or on the list `behind` of the first waiter of the key. The lock of the
    /// bucket with the index `bucket` guards the links, `key` and `behind`.
    links: Links<Waiter<M>>,
    behind: UnsafeCell<List<Hung<M>>>,
    key: Cell<Key>,
    /// The bitset of the wait. The waiting thread writes it and `thread` before the waiter is listed.
    bits: Cell<u32>,
    /// The waiting thread's own real-time priority when the wait began; 0 if its class is not real-time. A priority
    /// that the thread inherits does not count.
    urgency: Cell<u8>,
    /// The waiting thread, which is alive while this waiter is listed.
    thread: Cell<Option<NonNull<Thread<M>>>>,
    /// The index of the bucket in which the waiter is listed. A requeue writes it under the locks of both the old and
    /// the new bucket.
    bucket: AtomicUsize,
    /// A wake-up chose the waiter, so it is no longer listed. Set under the bucket's lock; cleared only when the next
    /// wait begins.
    woken: AtomicBool,
    /// The waiter is part of a [`pi::PiWaiter`]: no wake-up chooses it, and only [`FutexTable::pi_requeue`] moves it.
    /// Written before the waiter is listed.
    moves: Cell<bool>,
}

/// The error of a plain futex operation on a word that has waiters for a lock with priority inheritance.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Mixed;

// SAFETY: `begin` writes the cells before the waiter is listed. While it is listed, a thread reaches them only under
// the lock of the bucket.
unsafe impl<M: Machine> Sync for Waiter<M> {}
// SAFETY: a waiter that is not listed is plain data, and the contract of `begin` forbids moving a listed one.
unsafe impl<M: Machine> Send for Waiter<M> {}

impl<M: Machine> Waiter<M> {
    /// A waiter that does not wait.
    pub fn new() -> Self {
        Waiter {
            links: Links::new(),
            behind: UnsafeCell::new(List::new()),
            key: Cell::new((0, 0)),
            bits: Cell::new(0),
            urgency: Cell::new(0),
            thread: Cell::new(None),
            bucket: AtomicUsize::new(0),
            woken: AtomicBool::new(false),
            moves: Cell::new(false),
        }
    }
}

impl<M: Machine> Default for Waiter<M> {
    fn default() -> Self {
        Self::new()
    }
}

struct Hung<M>(PhantomData<M>);
// SAFETY: `links` is the only field with list links. A waiter is on a chain or on a list `behind`, never on both.
unsafe impl<M: Machine> Adapter for Hung<M> {
    type Node = Waiter<M>;
    fn links(node: &Waiter<M>) -> &Links<Waiter<M>> {
        &node.links
    }
}

/// The chain of keys of one bucket, and the list of its locks with priority inheritance that have waiters.
struct Chain<M: Machine> {
    keys: List<Hung<M>>,
    locks: List<OfBucket<M>>,
}
// SAFETY: waiters are accessed only under the bucket's lock, while they are listed.
unsafe impl<M: Machine> Send for Chain<M> {}

impl<M: Machine> Chain<M> {
    fn first_of(&self, key: Key) -> Option<NonNull<Waiter<M>>> {
        // SAFETY: a waiter on the chain stays alive until it is removed, and the bucket's lock is held.
        self.keys.iter().find(|w| unsafe { w.as_ref() }.key.get() == key)
    }

    /// The lock with priority inheritance of `key`, if it has waiters.
    fn lock_of(&self, key: Key) -> Option<NonNull<PiLock<M>>> {
        // SAFETY: a lock on the list stays alive until it is removed, and the bucket's lock is held.
        self.locks.iter().find(|lock| unsafe { lock.as_ref() }.key() == key)
    }

    /// Inserts `waiter` behind the waiters of its key that are at least as urgent. If less urgent waiters wait too, the
    /// insertion takes a step for each waiter that is at least as urgent. These waiters are real-time threads.
    ///
    /// # Safety
    /// `waiter` is on no list, its key is set, and it stays alive and in place until it is removed.
    unsafe fn add(&mut self, waiter: NonNull<Waiter<M>>) {
        // SAFETY: the caller vouches for `waiter`. The other waiters of the key are listed, so they are alive, and the
        // bucket's lock, which guards them, is held.
        unsafe {
            let urgency = waiter.as_ref().urgency.get();
            let Some(first) = self.first_of(waiter.as_ref().key.get()) else {
                self.keys.push_back(waiter);
                return;
            };
            let behind = &mut *first.as_ref().behind.get();
            let is_last = |last: NonNull<Waiter<M>>| last.as_ref().urgency.get() >= urgency;
            if urgency > first.as_ref().urgency.get() {
                let mut behind = core::mem::take(behind);
                self.keys.remove(first);
                behind.push_front(first);
                *waiter.as_ref().behind.get() = behind;
                self.keys.push_back(waiter);
            } else if behind.last().is_none_or(is_last) {
                behind.push_back(waiter);
            } else {
                let after = behind.iter().take_while(|other| other.as_ref().urgency.get() >= urgency).last();
                behind.insert_after(after, waiter);
            }
        }
    }

    /// Removes `waiter` from the chain, or from the list behind the first waiter of its key.
    ///
    /// # Safety
    /// `waiter` is listed in this bucket.
    unsafe fn take(&mut self, waiter: NonNull<Waiter<M>>) {
        // SAFETY: the caller vouches that `waiter` is listed here. Each waiter of a key is the first one, or is on the
        // list of the first one.
        unsafe {
            let Some(first) = self.first_of(waiter.as_ref().key.get()) else { return };
            if first != waiter {
                (*first.as_ref().behind.get()).remove(waiter);
                return;
            }
            self.keys.remove(waiter);
            let mut behind = core::mem::take(&mut *waiter.as_ref().behind.get());
            if let Some(heir) = behind.pop_front() {
                *heir.as_ref().behind.get() = behind;
                self.keys.push_back(heir);
            }
        }
    }

    /// The waiter of `key` after the waiter `after`, or the first one if `after` is `None`. Returns `None` at the end.
    ///
    /// # Safety
    /// `after` is listed under that key.
    unsafe fn following(&self, key: Key, after: Option<NonNull<Waiter<M>>>) -> Option<NonNull<Waiter<M>>> {
        let first = self.first_of(key)?;
        // SAFETY: waiters that are listed, on the chain or behind the first, are alive while the bucket's lock is held.
        unsafe {
            match after {
                None => Some(first),
                Some(a) if a == first => (*first.as_ref().behind.get()).first(),
                Some(a) => (*first.as_ref().behind.get()).next(a),
            }
        }
    }
}

#[cfg_attr(not(any(loom, shuttle)), repr(C, align(64)))]
struct Bucket<M: Machine> {
    /// The number of waiters that are listed here or about to compare, plus the number of locks with priority
    /// inheritance. At zero a waker need not take the lock.
    waiting: AtomicU32,
    chain: SpinLock<Chain<M>>,
    /// The thread lock of the threads whose addresses select this bucket. It guards which locks with priority
    /// inheritance they own and wait for: see [`pi`].
    threads: SpinLock<()>,
}

/// The futex table. [`buckets_for`](FutexTable::buckets_for) computes its size from the size of the machine's memory.
pub struct FutexTable<M: Machine> {
    buckets: NonNull<Bucket<M>>,
    mask: usize,
}

// SAFETY: buckets are shared through their locks and atomics.
unsafe impl<M: Machine> Send for FutexTable<M> {}
// SAFETY: a shared table gives access to buckets only, whose fields are atomics and locks.
unsafe impl<M: Machine> Sync for FutexTable<M> {}

struct Batch<M: Machine> {
    threads: [Option<ThreadRef<M>>; BATCH],
    len: usize,
}

impl<M: Machine> Batch<M> {
    fn new() -> Self {
        Batch { threads: [const { None }; BATCH], len: 0 }
    }
    fn unpark(self, scheduler: &Scheduler<M>) {
        for thread in self.threads.into_iter().flatten() {
            scheduler.unpark(&thread);
        }
    }
}

impl<M: Machine> FutexTable<M> {
    const LINE: () = assert!(cfg!(any(loom, shuttle)) || size_of::<Bucket<M>>() == 64, "a bucket is one cache line");

    /// The number of buckets for a machine with `memory` bytes, a power of two. There is one bucket for each 32 KiB,
    /// which is the least memory that a sleeping process needs. At least 64 and at most 2^20 buckets.
    pub const fn buckets_for(memory: u64) -> usize {
        let wanted = memory / (32 << 10);
        let wanted = if wanted < 64 { 64 } else { wanted };
        let wanted = if wanted > 1 << 20 { 1 << 20 } else { wanted };
        (wanted as usize).next_power_of_two()
    }

    /// The size in bytes of the memory that [`new`](Self::new) needs.
    pub const fn bytes(buckets: usize) -> usize {
        buckets.next_power_of_two() * size_of::<Bucket<M>>()
    }

    /// The size in bytes of the table's memory.
    pub fn table_bytes(&self) -> usize {
        Self::bytes(self.mask + 1)
    }

    /// A table of `buckets` (rounded up to a power of two) without waiters.
    ///
    /// # Safety
    /// `memory` points to [`bytes`](Self::bytes)`(buckets)` writable bytes, aligned to 64, that nothing else uses while
    /// the table is used.
    pub unsafe fn new(memory: NonNull<u8>, buckets: usize) -> Self {
        let () = Self::LINE;
        let buckets = buckets.next_power_of_two();
        let base = memory.cast::<Bucket<M>>();
        for i in 0..buckets {
            let bucket = Bucket {
                waiting: AtomicU32::new(0),
                chain: SpinLock::new(Rank::FUTEX, Chain { keys: List::new(), locks: List::new() }),
                threads: SpinLock::new(Rank::FUTEX_THREAD, ()),
            };
            // SAFETY: within the memory that the caller handed over.
            unsafe { base.add(i).write(bucket) };
        }
        FutexTable { buckets: base, mask: buckets - 1 }
    }

    pub(crate) fn index_of(&self, key: Key) -> usize {
        // Futex words are aligned to four bytes, and neighbouring words are used together. So the low bits of keys
        // differ little: multiply, and use the high bits of the product.
        let mixed = (key.0 ^ key.1.rotate_left(32)).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ key.1;
        (mixed.wrapping_mul(0xd6e8_feb8_6659_fd93) >> 32) as usize & self.mask
    }

    fn bucket(&self, index: usize) -> &Bucket<M> {
        // SAFETY: the mask keeps the index in bounds, and `new` has initialised all buckets.
        unsafe { self.buckets.add(index & self.mask).as_ref() }
    }

    /// Whether the count of waiters of every bucket is zero.
    #[cfg(all(test, any(loom, shuttle)))]
    pub(crate) fn is_quiet(&self) -> bool {
        (0..=self.mask).all(|i| self.bucket(i).waiting.load(Ordering::Relaxed) == 0)
    }

    /// Sleeps until a wake-up on `key` with a common bit in `bits`, until `deadline` in nanoseconds of
    /// [`Machine::now`], or until `interrupted` returns true. A thread that makes `interrupted` return true also
    /// unparks the sleeper.
    ///
    /// `check` compares the word, and returns true if it has the expected value. It runs under the bucket's lock, so it
    /// must not sleep or fault pages in. If it returns an error, the wait does not begin. The caller then makes the
    /// page present and tries again.
    pub fn wait<E>(
        &self,
        scheduler: &Scheduler<M>,
        key: Key,
        bits: u32,
        deadline: Option<u64>,
        check: &mut dyn FnMut() -> Result<bool, E>,
        interrupted: &mut dyn FnMut() -> bool,
    ) -> Result<FutexWait, E> {
        let waiter = Waiter::new();
        // SAFETY: the waiter stays on this stack until `end` has returned how the wait ended.
        if !unsafe { self.begin(scheduler, &waiter, key, bits, check)? } {
            return Ok(FutexWait::Differs);
        }
        loop {
            // SAFETY: `begin` returned true above, and the loop ends when `end` returns `Some`.
            match unsafe { self.end(scheduler, &waiter, deadline, interrupted) } {
                Some(ended) => return Ok(ended),
                None => scheduler.park(deadline),
            }
        }
    }

    /// Begins a wait; for a thread that sleeps without a stack, which cannot use [`wait`](Self::wait). Compares the
    /// word by `check`, and lists the calling thread by `waiter`. Returns false, and lists nothing, if the word
    /// differs. After `true` the thread calls [`end`](Self::end) until the wait has ended, and parks in between.
    ///
    /// # Errors
    /// The errors of `check`; then `waiter` is not listed.
    ///
    /// # Safety
    /// `waiter` is on no list. After `true` it stays alive and in place until `end` returns `Some`.
    pub unsafe fn begin<E>(
        &self,
        scheduler: &Scheduler<M>,
        waiter: &Waiter<M>,
        key: Key,
        bits: u32,
        check: &mut dyn FnMut() -> Result<bool, E>,
    ) -> Result<bool, E> {
        let index = self.index_of(key);
        waiter.key.set(key);
        waiter.bits.set(bits);
        let current = scheduler.current();
        waiter.urgency.set(current.own_urgency());
        waiter.thread.set(Some(NonNull::from(&*current)));
        waiter.bucket.store(index, Ordering::Relaxed);
        waiter.woken.store(false, Ordering::Relaxed);
        waiter.moves.set(false);
        // SAFETY: the contract of `list` is that of this function.
        unsafe { self.list(waiter, index, check) }
    }

    /// Compares the word by `check`, and lists `waiter`, whose fields are set, in the bucket with this index. Returns
    /// false, and lists nothing, if the word differs.
    ///
    /// # Safety
    /// As [`begin`](Self::begin).
    unsafe fn list<E>(
        &self,
        waiter: &Waiter<M>,
        index: usize,
        check: &mut dyn FnMut() -> Result<bool, E>,
    ) -> Result<bool, E> {
        let bucket = self.bucket(index);
        let mut chain = bucket.chain.lock();
        let early = if mutant(Mutant::CheckBeforeCount) { Some(check()) } else { None };
        bucket.waiting.fetch_add(1, Ordering::AcqRel);
        if !mutant(Mutant::CountNoFence) {
            fence_after_rmw();
        }
        match early.unwrap_or_else(check) {
            Ok(true) => {
                // SAFETY: the caller vouches that the waiter is on no list and stays in place until it is removed.
                unsafe { chain.add(NonNull::from(waiter)) };
                Ok(true)
            }
            other => {
                bucket.waiting.fetch_sub(1, Ordering::Relaxed);
                other
            }
        }
    }

    /// Checks whether the calling thread's wait has ended, and how; `None` if it has not. [`begin`](Self::begin) has
    /// listed `waiter` before. After `Some` it is no longer listed.
    ///
    /// # Safety
    /// `begin` of this table returned true for `waiter`, and no call since has returned `Some`.
    pub unsafe fn end(
        &self,
        scheduler: &Scheduler<M>,
        waiter: &Waiter<M>,
        deadline: Option<u64>,
        interrupted: &mut dyn FnMut() -> bool,
    ) -> Option<FutexWait> {
        let ended = if waiter.woken.load(Ordering::Acquire) {
            return Some(FutexWait::Woken);
        } else if interrupted() {
            FutexWait::Interrupted
        } else if deadline.is_some_and(|d| scheduler.machine().now() >= d) {
            FutexWait::TimedOut
        } else {
            return None;
        };
        let (bucket, mut chain) = self.lock_of(waiter);
        if waiter.woken.load(Ordering::Acquire) && !mutant(Mutant::LeaveThoughChosen) {
            return Some(FutexWait::Woken);
        }
        // SAFETY: `woken` is not set, so the waiter is still listed, in the bucket that is locked.
        unsafe { chain.take(NonNull::from(waiter)) };
        bucket.waiting.fetch_sub(1, Ordering::Relaxed);
        Some(ended)
    }

    // Locks the bucket of the caller's own waiter. The loop is needed because a requeue may move the waiter to another
    // bucket before this thread acquires the lock.
    fn lock_of(&self, waiter: &Waiter<M>) -> (&Bucket<M>, SpinGuard<'_, Chain<M>>) {
        loop {
            let index = waiter.bucket.load(Ordering::Acquire);
            let bucket = self.bucket(index);
            let chain = bucket.chain.lock();
            if waiter.bucket.load(Ordering::Acquire) == index || mutant(Mutant::LeaveOldBucket) {
                return (bucket, chain);
            }
        }
    }

    /// Wakes up to `most` threads that wait on `key` with a bit in common with `bits`. The most urgent threads are
    /// woken first; among equals the longest waiting. The caller has changed the word before. Returns how many were
    /// woken.
    ///
    /// # Errors
    /// [`Mixed`] if a thread waits on `key` for a lock with priority inheritance, or waits to be moved to such a lock.
    pub fn wake(&self, scheduler: &Scheduler<M>, key: Key, most: usize, bits: u32) -> Result<usize, Mixed> {
        if !mutant(Mutant::WakeNoFence) {
            fence_full();
        }
        let bucket = self.bucket(self.index_of(key));
        let mut woken = 0;
        // A thread that begins to wait between two batches, while the lock is free, may be woken too. That is harmless.
        while woken < most && bucket.waiting.load(Ordering::Acquire) != 0 {
            let mut batch = Batch::new();
            let chosen = self.choose(bucket, &mut bucket.chain.lock(), key, bits, most - woken, &mut batch);
            let len = batch.len;
            woken += len;
            batch.unpark(scheduler);
            chosen?;
            if len < BATCH {
                break;
            }
        }
        Ok(woken)
    }

    /// Wakes threads that wait on `from`, and moves other waiters from `from` to `to`, if the word has the expected
    /// value. `check` compares the word, as in [`wait`](Self::wait). At most `wake` threads are woken, and at most
    /// `requeue` are moved. Returns both numbers, or `None` if the word differed. The inner error is that of
    /// [`wake`](Self::wake).
    #[allow(clippy::too_many_arguments)]
    pub fn requeue<E>(
        &self,
        scheduler: &Scheduler<M>,
        from: Key,
        to: Key,
        wake: usize,
        requeue: usize,
        check: &mut dyn FnMut() -> Result<bool, E>,
    ) -> Result<Result<Option<(usize, usize)>, Mixed>, E> {
        let (a, b) = (self.index_of(from), self.index_of(to));
        let (mut woken, mut first) = (0, true);
        loop {
            let mut batch = Batch::new();
            let (chosen, moved);
            {
                let (mut source, mut target) = self.lock_both(a, b);
                if core::mem::take(&mut first) && !check()? {
                    return Ok(Ok(None));
                }
                chosen = self.choose(self.bucket(a), &mut source, from, ANY, wake - woken, &mut batch);
                woken += batch.len;
                let more = chosen.is_err() || batch.len == BATCH && woken < wake;
                moved = (!more).then(|| self.transfer(&mut source, target.as_deref_mut(), from, to, requeue));
            }
            batch.unpark(scheduler);
            match (chosen, moved) {
                (Err(mixed), _) | (_, Some(Err(mixed))) => return Ok(Err(mixed)),
                (Ok(()), Some(Ok(moved))) => return Ok(Ok(Some((woken, moved)))),
                (Ok(()), None) => {}
            }
        }
    }

    /// Locks the chains of the buckets `a` and `b`, which may be the same. The lock with the lower index is acquired
    /// first, because both locks have the same rank. Returns the guard of `a`, and the guard of `b` if `b` is another
    /// bucket.
    fn lock_both(&self, a: usize, b: usize) -> (SpinGuard<'_, Chain<M>>, Option<SpinGuard<'_, Chain<M>>>) {
        let low = self.bucket(a.min(b)).chain.lock();
        let high = (a != b).then(|| self.bucket(a.max(b)).chain.lock_nested());
        match high {
            Some(high) if a < b => (low, Some(high)),
            Some(high) => (high, Some(low)),
            None => (low, None),
        }
    }

    /// Removes waiters of `key` with a bit in common with `bits`, and marks them as woken. At most `most` waiters, and
    /// at most a batch, are chosen. Their threads are added to `out`.
    fn choose(
        &self,
        bucket: &Bucket<M>,
        chain: &mut Chain<M>,
        key: Key,
        bits: u32,
        most: usize,
        out: &mut Batch<M>,
    ) -> Result<(), Mixed> {
        if most != 0 && chain.lock_of(key).is_some() {
            return Err(Mixed);
        }
        // SAFETY: waiters on the chain are alive, and so are their threads, until `woken` is written.
        unsafe {
            let mut at = chain.following(key, None);
            while out.len < BATCH.min(most)
                && let Some(node) = at
            {
                let waiter = node.as_ref();
                let next = chain.following(key, at);
                if waiter.moves.get() {
                    return Err(Mixed);
                }
                if waiter.bits.get() & bits != 0
                    && let Some(thread) = waiter.thread.get()
                {
                    chain.take(node);
                    bucket.waiting.fetch_sub(1, Ordering::Relaxed);
                    let early = mutant(Mutant::WokenBeforeReference);
                    if early {
                        waiter.woken.store(true, Ordering::Release);
                        // The waiter may have returned before the next statement.
                        quire_sync::hooks::relax();
                    }
                    out.threads[out.len] = Some(thread.as_ref().to_ref());
                    out.len += 1;
                    if !early {
                        waiter.woken.store(true, Ordering::Release);
                    }
                }
                at = next;
            }
        }
        Ok(())
    }

    /// Moves up to `most` waiters of `from` to `to`, and returns how many. `target` is `None` if both keys are in one
    /// bucket.
    fn transfer(
        &self,
        source: &mut Chain<M>,
        mut target: Option<&mut Chain<M>>,
        from: Key,
        to: Key,
        most: usize,
    ) -> Result<usize, Mixed> {
        let (a, b) = (self.index_of(from), self.index_of(to));
        let mut moved = 0;
        while moved < most
            && from != to
            && let Some(node) = source.first_of(from)
        {
            // SAFETY: the waiter is listed, so it is alive, and both buckets are locked.
            unsafe {
                let waiter = node.as_ref();
                if waiter.moves.get() {
                    return Err(Mixed);
                }
                source.take(node);
                waiter.key.set(to);
                if !mutant(Mutant::RequeueUncounted) {
                    self.bucket(b).waiting.fetch_add(1, Ordering::AcqRel);
                }
                waiter.bucket.store(b, Ordering::Release);
                match &mut target {
                    Some(target) => target.add(node),
                    None => source.add(node),
                }
                self.bucket(a).waiting.fetch_sub(1, Ordering::Relaxed);
            }
            moved += 1;
        }
        Ok(moved)
    }
}
