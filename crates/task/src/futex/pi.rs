//! Futexes with priority inheritance: the owner of a lock runs at the real-time priority, or with the weight, of the
//! most urgent thread that waits.
//!
//! The word of a free lock is 0. Otherwise it has the number of its owner, and [`WAITERS`] once a thread has waited. A
//! program acquires and releases a lock without waiters in user mode. A lock with waiters has a [`PiLock`] in the
//! bucket of its key. The `PiLock` determines the owner of such a lock, and the kernel updates the word accordingly.
//!
//! A *level* is a thread's urgency as a number (`Thread::level`): 0 is the most urgent. An owner *inherits* the level
//! of its most urgent waiter.
//!
//! # Who guards what
//! - The bucket's lock guards the locks of the bucket, their waiters and owners, and a waiter's level and lock.
//! - The *thread lock* is a second lock in the bucket that the thread's address selects. It guards the list of locks
//!   that the thread owns, their `best`, the level that the thread inherits, and the waiter by which it waits.
//!
//! A thread lock is acquired after a bucket's lock, and a CPU holds one thread lock at a time. So unrelated futexes
//! share a lock only if their keys hash to the same bucket.
//!
//! # Why no inheritance is lost
//! A waiter is published as its thread's `blocked`, and its level is read, in one hold of the thread lock. A change of
//! a thread's level happens under the same lock, and is followed by a walk: the changer looks at
//! `blocked`, locks that bucket, looks again, sorts the waiter in anew and settles the next owner. So either the waiter
//! has the new level, or the changer finds the waiter. A walk holds one bucket's lock at a time.
//!
//! # Why no cycle is missed
//! A thread first lists its waiter, and then walks the chain of owners. If several threads close a cycle, the thread
//! whose waiter was listed last finds itself at the end of its walk. It removes its waiter, and its wait fails.
//!
//! # Why no lock is lost
//! A lock is handed to the most urgent waiter under the bucket's lock. A waiter that gives up acquires the bucket's
//! lock, and checks whether it has become the owner. An exiting thread first marks itself as gone, under its thread
//! lock, and then hands on its locks until it owns none. A thread that would make another one the owner of a `PiLock`
//! checks that mark under the same thread lock.

mod locks;
mod requeue;

use super::{Bucket, Chain, FutexTable, Key};
use crate::machine::Machine;
use crate::mutant::{Mutant, mutant};
use crate::scheduler::Scheduler;
use crate::thread::{NO_LEVEL, Thread, ThreadRef};
use core::ptr::{self, NonNull};
pub(super) use locks::OfBucket;
use locks::{BLOCKED, INHERITS, LISTED, OWNS, Unfit, gone, leaving};
pub use locks::{PiLock, PiWaiter};
use quire_sync::SpinLock;
use quire_sync::atomic::Ordering;

/// A bit of a lock's word: threads wait, so the owner must enter the kernel to release the lock.
pub const WAITERS: u32 = 0x8000_0000;
/// A bit of a lock's word: an owner exited without releasing the lock.
pub const OWNER_DIED: u32 = 0x4000_0000;
/// The bits of a lock's word that contain the number of its owner.
pub const OWNER: u32 = 0x3fff_ffff;

/// The greatest length of a chain of owners that wait for one another, as on Linux. A longer chain counts as a
/// deadlock.
pub const LONGEST_CHAIN: usize = 1024;

/// The access to a lock's word, and to the threads that the word names; implemented by the layer above.
///
/// # Safety
/// `place` returns memory that stays in place, and holds the given value, until `discard` is called with it.
pub unsafe trait PiWord<M: Machine> {
    /// Why the word cannot be accessed.
    type Error;
    /// Loads the word. Called under spin locks: it neither sleeps nor faults pages in.
    fn load(&self) -> Result<u32, Self::Error>;
    /// Stores `new` if the word is `old`; returns the previous value. Called under spin locks, as `load`.
    fn exchange(&self, old: u32, new: u32) -> Result<u32, Self::Error>;
    /// Makes the word present and writable. May sleep.
    fn make_present(&self) -> Result<(), Self::Error>;
    /// The number by which a word names `thread`.
    fn name(&self, thread: &Thread<M>) -> u32;
    /// The thread with the number `name`; `None` if there is none. Called without locks.
    fn find(&self, name: u32) -> Option<ThreadRef<M>>;
    /// Whether the calling thread must stop waiting. A thread that makes this true also unparks the waiter.
    fn interrupted(&self) -> bool;
    /// Allocates memory for a lock's state, and moves `lock` there; `None` if there is no memory. Called without locks.
    fn place(&self, lock: PiLock<M>) -> Option<NonNull<PiLock<M>>>;
    /// Frees memory from `place`. Called without locks.
    fn discard(&self, lock: NonNull<PiLock<M>>);
}

/// Why a lock was not acquired, or not released.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PiRefused<E> {
    /// The word cannot be accessed.
    Word(E),
    /// The caller owns the lock, or waits for itself along a chain of owners.
    Deadlock,
    /// The word contradicts the kernel's state of the lock, or threads wait on it by plain futex operations.
    Mismatch,
    /// The word names a thread that does not exist or has ended.
    NoOwner,
    /// The caller does not own the lock.
    NotOwner,
    /// Another thread owns the lock, and the caller does not wait.
    Busy,
    /// The word has another value than the caller expects.
    Differs,
    /// There is no memory for the lock's state.
    Memory,
    /// The deadline passed first.
    TimedOut,
    /// The calling thread was interrupted first.
    Interrupted,
    /// The wait was interrupted, after a requeue had moved the waiter to the lock.
    InterruptedMoved,
}

/// Why an attempt to acquire a lock, which runs under the bucket's lock, failed or must be repeated.
enum Stop<E> {
    Refused(PiRefused<E>),
    /// The word's page is not present.
    Absent,
    /// The word has changed.
    Changed,
    /// The attempt needs memory for the lock's state.
    Block,
}

impl<E> From<PiRefused<E>> for Stop<E> {
    fn from(why: PiRefused<E>) -> Self {
        Stop::Refused(why)
    }
}

/// The mode of an attempt to acquire a lock.
#[derive(Clone, Copy, PartialEq, Eq)]
enum How {
    /// The thread waits if the lock has an owner.
    Wait,
    /// The thread waits, as with `Wait`. If it acquires a free lock, the word gets the bit [`WAITERS`], because a
    /// requeue moves more threads to the lock.
    Crowd,
    /// The thread does not wait. As on Linux, the word of an owned lock gets the bit [`WAITERS`] all the same.
    Try,
}

/// The lock that an attempt tries to acquire: its key and word, and the locked chain of its bucket.
struct Place<'l, M: Machine, W> {
    bucket: &'l Bucket<M>,
    chain: &'l mut Chain<M>,
    index: usize,
    key: Key,
    word: &'l W,
}

/// The result of an attempt: the thread became the owner, or it must wait for the given lock.
enum Attempt<M: Machine> {
    Taken,
    Wait(NonNull<PiLock<M>>),
}

impl<M: Machine> FutexTable<M> {
    /// The thread lock of `thread`. Under a model checker all threads share one lock, because a checker must repeat
    /// each step exactly, and addresses differ between runs.
    fn thread_lock(&self, thread: &Thread<M>) -> &SpinLock<()> {
        let address = if cfg!(any(loom, shuttle)) { 0 } else { ptr::from_ref(thread).addr() as u64 };
        &self.bucket(self.index_of((address, 2))).threads
    }

    /// Updates the level of the most urgent waiter of `lock`, and the level that the owner inherits.
    ///
    /// # Safety
    /// The lock is in its bucket, which is locked.
    unsafe fn settle(&self, scheduler: &Scheduler<M>, lock: &PiLock<M>) {
        // SAFETY: the lock's bucket is locked, by this function's contract.
        let owner = unsafe { lock.owner() };
        let guard = self.thread_lock(owner).lock();
        let now = lock.most_urgent();
        // SAFETY: the owner's thread lock is held.
        unsafe { owner.settle(lock.best.replace(now), now) };
        drop(guard);
        scheduler.sort(owner);
    }

    /// Acquires the lock of `key` for the calling thread. Sleeps until the thread owns the lock, until `deadline`, or
    /// until the thread is interrupted. With `only_try`, it does not sleep.
    pub fn pi_lock<W: PiWord<M>>(
        &self,
        scheduler: &Scheduler<M>,
        key: Key,
        word: &W,
        deadline: Option<u64>,
        only_try: bool,
    ) -> Result<(), PiRefused<W::Error>> {
        let me = scheduler.current();
        let index = self.index_of(key);
        let waiter = PiWaiter::new(scheduler, BLOCKED, index, key);
        let how = if only_try { How::Try } else { How::Wait };
        let next = {
            let bucket = self.bucket(index);
            let waits = self.attempts(word, |owner, spare| {
                let mut chain = bucket.chain.lock();
                let at = Place { bucket, chain: &mut chain, index, key, word };
                Ok(match self.attempt(scheduler, at, &me, how, owner, spare)? {
                    Attempt::Taken => None,
                    // SAFETY: the lock is in this bucket, which is locked. The waiter stays until the wait has ended.
                    Attempt::Wait(lock) => Some(unsafe { self.block(scheduler, lock.as_ref(), &waiter) }),
                })
            })?;
            match waits {
                None => return Ok(()),
                Some(next) => next,
            }
        };
        if self.walk(scheduler, next, Some(&me)) {
            // SAFETY: the waiter was listed above, and this thread has not removed it.
            if unsafe { self.leave(scheduler, word, &waiter) }.is_some() {
                return Err(PiRefused::Deadlock);
            }
        }
        // SAFETY: the waiter was listed above, and is still listed unless its thread was made the owner.
        unsafe { self.wait_for_lock(scheduler, word, &waiter, deadline) }
    }

    /// Repeats `attempt` until it succeeds or fails. `attempt` gets a value of the word and the thread that this value
    /// names. After it returned [`Stop::Block`], it also gets memory for the lock's state.
    fn attempts<W: PiWord<M>, R>(
        &self,
        word: &W,
        mut attempt: impl FnMut(Seen<'_, M>, &mut Option<NonNull<PiLock<M>>>) -> Result<R, Stop<W::Error>>,
    ) -> Result<R, PiRefused<W::Error>> {
        let mut spare = None;
        let out = loop {
            let value = match word.load() {
                Ok(value) => value,
                Err(_) => match word.make_present() {
                    Ok(()) => continue,
                    Err(error) => break Err(PiRefused::Word(error)),
                },
            };
            let owner = if value & OWNER == 0 { None } else { word.find(value & OWNER) };
            match attempt(Seen { value, owner: owner.as_deref() }, &mut spare) {
                Ok(out) => break Ok(out),
                Err(Stop::Refused(why)) => break Err(why),
                Err(Stop::Absent) if word.interrupted() => break Err(PiRefused::Interrupted),
                Err(Stop::Absent) => {
                    if let Err(error) = word.make_present() {
                        break Err(PiRefused::Word(error));
                    }
                }
                Err(Stop::Changed) if word.interrupted() => break Err(PiRefused::Interrupted),
                Err(Stop::Changed) => quire_sync::hooks::relax(),
                Err(Stop::Block) => {
                    // The attempt overwrites the key and the bucket.
                    spare = word.place(PiLock::new((0, 0), 0));
                    if spare.is_none() {
                        break Err(PiRefused::Memory);
                    }
                }
            }
        };
        if let Some(spare) = spare {
            word.discard(spare);
        }
        out
    }

    /// Makes `who` the owner of the lock `at` if the lock is free; else finds or creates the `PiLock` to wait for.
    #[inline(always)]
    fn attempt<W: PiWord<M>>(
        &self,
        scheduler: &Scheduler<M>,
        at: Place<'_, M, W>,
        who: &Thread<M>,
        how: How,
        seen: Seen<'_, M>,
        spare: &mut Option<NonNull<PiLock<M>>>,
    ) -> Result<Attempt<M>, Stop<W::Error>> {
        let Place { bucket, chain, index, key, word } = at;
        let value = word.load().map_err(|_| Stop::Absent)?;
        let exchange = |new| match word.exchange(value, new) {
            Ok(found) if found == value => Ok(()),
            Ok(_) => Err(Stop::Changed),
            Err(_) => Err(Stop::Absent),
        };
        let named = value & OWNER;
        if named == word.name(who) {
            return Err(PiRefused::Deadlock.into());
        }
        if let Some(at) = chain.lock_of(key) {
            // SAFETY: the lock is in this bucket, which is locked.
            let (lock, owner) = unsafe { (at.as_ref(), at.as_ref().owner()) };
            let dies = named == 0 && value & OWNER_DIED != 0;
            if !lock.unwritten.get() && !dies && named != word.name(owner) {
                return Err(PiRefused::Mismatch.into());
            }
            return if how == How::Try { Err(PiRefused::Busy.into()) } else { Ok(Attempt::Wait(at)) };
        }
        if chain.first_of(key).is_some() {
            return Err(PiRefused::Mismatch.into());
        }
        if named == 0 {
            exchange(value & OWNER_DIED | word.name(who) | if how == How::Crowd { WAITERS } else { 0 })?;
            return Ok(Attempt::Taken);
        }
        if seen.value & OWNER != named {
            return Err(Stop::Changed);
        }
        let Some(owner) = seen.owner else { return Err(PiRefused::NoOwner.into()) };
        if word.name(owner) != named {
            return Err(Stop::Changed);
        }
        if how == How::Try {
            exchange(value | WAITERS)?;
            let _guard = self.thread_lock(owner).lock();
            let ended = owner.blocked.load(Ordering::Relaxed) == gone();
            return Err(if ended { PiRefused::NoOwner } else { PiRefused::Busy }.into());
        }
        let block = spare.ok_or(Stop::Block)?;
        exchange(value | WAITERS)?;
        // SAFETY: only this attempt uses the spare memory, which stays in place by the contract of `place`.
        unsafe {
            block.write(PiLock::new(key, index));
            match self.give(scheduler, block.as_ref(), owner) {
                Ok(()) => {}
                Err(Unfit::Ended) => return Err(PiRefused::NoOwner.into()),
                Err(Unfit::Leaves) => return Err(Stop::Changed),
            }
            *spare = None;
            chain.locks.push_back(block);
        }
        bucket.waiting.fetch_add(1, Ordering::AcqRel);
        Ok(Attempt::Wait(block))
    }

    /// Makes `owner` the owner of `lock`, unless that thread has ended or leaves its address space.
    ///
    /// # Safety
    /// The lock has no owner, and its bucket is locked. The lock stays in place while it has an owner.
    unsafe fn give(&self, scheduler: &Scheduler<M>, lock: &PiLock<M>, owner: &Thread<M>) -> Result<(), Unfit> {
        let guard = self.thread_lock(owner).lock();
        match owner.blocked.load(Ordering::Relaxed) {
            at if at == gone() && !mutant(Mutant::PiOwnerUnlooked) => return Err(Unfit::Ended),
            at if at == leaving() => return Err(Unfit::Leaves),
            _ => {}
        }
        lock.owner.set(Some(NonNull::from(owner)));
        lock.best.set(lock.most_urgent());
        // SAFETY: the owner's thread lock is held, and the caller vouches for the lock.
        unsafe {
            owner.own(lock);
            owner.settle(NO_LEVEL, lock.best.get());
        }
        drop(guard);
        scheduler.sort(owner);
        Ok(())
    }

    /// Lists `waiter` at `lock`, and updates the level that the owner inherits. Returns the first step of a
    /// [walk](Self::walk) if the owner waits for a lock itself.
    ///
    /// # Safety
    /// The lock's bucket is locked. The waiter is on no list, its thread is alive, and it stays in place until it is
    /// removed.
    unsafe fn block(&self, scheduler: &Scheduler<M>, lock: &PiLock<M>, waiter: &PiWaiter<M>) -> Option<Step<M>> {
        // SAFETY: the caller vouches that the thread is alive.
        let thread = unsafe { waiter.thread() };
        waiter.lock.set(Some(NonNull::from(lock)));
        waiter.plain.bucket.store(lock.bucket, Ordering::Relaxed);
        waiter.state.store(BLOCKED, Ordering::Relaxed);
        let early = mutant(Mutant::PiLevelEarly).then(|| thread.level());
        let level = {
            let _guard = self.thread_lock(thread).lock();
            thread.blocked.store(ptr::from_ref(waiter).cast_mut().cast(), Ordering::Relaxed);
            early.unwrap_or_else(|| thread.level())
        };
        // SAFETY: the bucket is locked, and the caller vouches for the waiter.
        unsafe {
            lock.push(waiter, level);
            self.settle(scheduler, lock);
            self.step_from(lock)
        }
    }

    /// The step of a [walk](Self::walk) along owners, from `lock` to the lock for which its owner waits now. `None` if
    /// the owner does not wait.
    ///
    /// # Safety
    /// The lock is in its bucket, which is locked.
    unsafe fn step_from(&self, lock: &PiLock<M>) -> Option<Step<M>> {
        // SAFETY: the lock's bucket is locked, by this function's contract.
        self.step(unsafe { lock.owner() })
    }

    /// The step of a [walk](Self::walk) along owners, to the lock for which `thread` waits. `None` if it waits for
    /// none.
    fn step(&self, thread: &Thread<M>) -> Option<Step<M>> {
        let _guard = self.thread_lock(thread).lock();
        // SAFETY: the thread lock is held while the waiter is used.
        let waiter = unsafe { thread.blocked() }?;
        Some(Step { thread: thread.to_ref(), waiter, bucket: waiter.plain.bucket.load(Ordering::Relaxed) })
    }

    /// Follows the chain of owners that wait for locks. At each step it requeues the owner's waiter by the owner's
    /// present level, and updates the level that the next owner inherits.
    ///
    /// With a `target`, it continues to the end of the chain. It returns true if the chain leads to the target, or is
    /// longer than [`LONGEST_CHAIN`]. Without a target, it stops at the first owner whose level has not changed, and
    /// the result has no meaning.
    ///
    /// The walk determines each step while it holds the lock of a bucket: the bucket of a `PiLock` that the next thread
    /// owns. So at that moment the next thread both owned this `PiLock` and waited for another one.
    fn walk(&self, scheduler: &Scheduler<M>, from: Option<Step<M>>, target: Option<&Thread<M>>) -> bool {
        let mut next = from;
        for _ in 0..=LONGEST_CHAIN {
            let Some(at) = next else { return false };
            if target.is_some_and(|target| ptr::eq(target, &*at.thread)) {
                return true;
            }
            let chain = self.bucket(at.bucket).chain.lock();
            let level = {
                let _guard = self.thread_lock(&at.thread).lock();
                // If the thread has ended the wait of this step, no requeue is needed: its next wait reads its level
                // again.
                // SAFETY: the thread lock is held while the waiter is used.
                let still = unsafe { at.thread.blocked() }.is_some_and(|waiter| {
                    ptr::eq(waiter, at.waiter) && waiter.plain.bucket.load(Ordering::Relaxed) == at.bucket
                });
                if !still {
                    return false;
                }
                at.thread.level()
            };
            // SAFETY: the thread still waits by that waiter, which is listed at a lock in the locked bucket. A waiter
            // is moved between buckets only while its thread's `blocked` does not point to it.
            unsafe {
                let waiter = &*at.waiter;
                let Some(lock) = waiter.lock.get() else { return false };
                let lock = lock.as_ref();
                if waiter.level.get() != level {
                    lock.take(waiter);
                    lock.push(waiter, level);
                    self.settle(scheduler, lock);
                } else if target.is_none() {
                    return false;
                }
                next = self.step_from(lock);
            }
            drop(chain);
        }
        true
    }

    /// Updates the levels that owners inherit from `thread`, after its class or its nice value was changed.
    pub fn pi_renice(&self, scheduler: &Scheduler<M>, thread: &Thread<M>) {
        self.walk(scheduler, self.step(thread), None);
    }

    /// Sleeps until the calling thread owns the lock, or until the deadline or an interruption ends the wait.
    ///
    /// # Safety
    /// The waiter is the calling thread's. It was listed, and [`leave`](Self::leave) was not called for it since.
    unsafe fn wait_for_lock<W: PiWord<M>>(
        &self,
        scheduler: &Scheduler<M>,
        word: &W,
        waiter: &PiWaiter<M>,
        deadline: Option<u64>,
    ) -> Result<(), PiRefused<W::Error>> {
        loop {
            let why = match waiter.state.load(Ordering::Acquire) {
                OWNS => return Ok(()),
                INHERITS => return self.write_owner(scheduler, word, waiter.target.get()),
                _ if word.interrupted() => PiRefused::Interrupted,
                _ if deadline.is_some_and(|d| scheduler.machine().now() >= d) => PiRefused::TimedOut,
                _ => {
                    scheduler.park(deadline);
                    continue;
                }
            };
            // SAFETY: the waiter is listed, or its thread was made the owner.
            match (unsafe { self.leave(scheduler, word, waiter) }, why) {
                (Some(BLOCKED), PiRefused::Interrupted) if waiter.plain.key.get() != (0, 0) => {
                    return Err(PiRefused::InterruptedMoved);
                }
                (Some(_), why) => return Err(why),
                (None, _) => {}
            }
        }
    }

    /// Ends the calling thread's wait, and removes its waiter. Returns the state in which the waiter was, or `None` if
    /// the thread owns the lock.
    ///
    /// # Safety
    /// The waiter is the calling thread's. It is listed, or was made the owner.
    unsafe fn leave<W: PiWord<M>>(&self, scheduler: &Scheduler<M>, word: &W, waiter: &PiWaiter<M>) -> Option<u8> {
        let me = scheduler.current();
        let (bucket, mut chain) = self.lock_of(&waiter.plain);
        let state = waiter.state.load(Ordering::Acquire);
        if state == OWNS || state == INHERITS {
            if !mutant(Mutant::PiLeaveThoughOwner) {
                return None;
            }
            return Some(BLOCKED);
        }
        let Some(lock) = waiter.lock.get() else {
            // SAFETY: a waiter without a lock is on the chain of its plain word, in the bucket that is locked.
            unsafe { chain.take(NonNull::from(&waiter.plain)) };
            bucket.waiting.fetch_sub(1, Ordering::Relaxed);
            return Some(LISTED);
        };
        // SAFETY: the waiter is listed at its lock, which is in the bucket that is locked.
        let (owner, ended) = unsafe {
            let owner = lock.as_ref().owner().to_ref();
            (owner, self.unblock(scheduler, bucket, &mut chain, lock, waiter))
        };
        debug_assert!(me.blocked.load(Ordering::Relaxed).is_null());
        drop(chain);
        if let Some(ended) = ended {
            word.discard(ended);
        }
        self.walk(scheduler, self.step(&owner), None);
        Some(BLOCKED)
    }

    /// Removes `waiter` from the lock `at`. If it was the last waiter, the lock is removed too, and returned for the
    /// caller to free.
    ///
    /// # Safety
    /// The bucket is locked, the lock is in it, and the waiter is listed at the lock.
    unsafe fn unblock(
        &self,
        scheduler: &Scheduler<M>,
        bucket: &Bucket<M>,
        chain: &mut Chain<M>,
        at: NonNull<PiLock<M>>,
        waiter: &PiWaiter<M>,
    ) -> Option<NonNull<PiLock<M>>> {
        // SAFETY: by this function's contract.
        unsafe {
            let lock = at.as_ref();
            lock.take(waiter);
            waiter.lock.set(None);
            let thread = waiter.thread();
            {
                let _guard = self.thread_lock(thread).lock();
                thread.blocked.store(ptr::null_mut(), Ordering::Relaxed);
            }
            if lock.first().is_none() && !lock.unwritten.get() {
                self.retire(scheduler, bucket, chain, at);
                return Some(at);
            }
            if !mutant(Mutant::PiLeaveUnsettled) {
                self.settle(scheduler, lock);
            }
            None
        }
    }

    /// Removes the lock `at` from its owner's list and from its bucket. Its field `owner` still names the last owner.
    ///
    /// # Safety
    /// The bucket is locked, and the lock is in it.
    unsafe fn retire(
        &self,
        scheduler: &Scheduler<M>,
        bucket: &Bucket<M>,
        chain: &mut Chain<M>,
        at: NonNull<PiLock<M>>,
    ) {
        // SAFETY: by this function's contract.
        unsafe {
            let owner = at.as_ref().owner();
            let guard = self.thread_lock(owner).lock();
            owner.disown(at.as_ref());
            owner.settle(at.as_ref().best.get(), NO_LEVEL);
            drop(guard);
            scheduler.sort(owner);
            chain.locks.remove(at);
        }
        bucket.waiting.fetch_sub(1, Ordering::Relaxed);
    }

    /// Hands the lock `at` to `waiter`. Returns the new owner, for the caller to unpark. Also returns the lock, for the
    /// caller to free, if no waiter is left and so the kernel needs no `PiLock` any more.
    ///
    /// # Safety
    /// The bucket is locked, the lock is in it, and the waiter is listed at it. `state` is `OWNS` or `INHERITS`.
    unsafe fn hand(
        &self,
        scheduler: &Scheduler<M>,
        bucket: &Bucket<M>,
        chain: &mut Chain<M>,
        at: NonNull<PiLock<M>>,
        waiter: &PiWaiter<M>,
        state: u8,
    ) -> (ThreadRef<M>, Option<NonNull<PiLock<M>>>) {
        // SAFETY: the caller vouches for the lock and the waiter. The new owner waits until `state` is stored, so it is
        // alive until then.
        unsafe {
            let lock = at.as_ref();
            lock.unwritten.set(state == INHERITS);
            lock.take(waiter);
            waiter.lock.set(None);
            let (old, new) = (lock.owner(), waiter.thread());
            {
                let _guard = self.thread_lock(new).lock();
                new.blocked.store(ptr::null_mut(), Ordering::Relaxed);
            }
            let ends = lock.first().is_none() && !lock.unwritten.get();
            if ends {
                self.retire(scheduler, bucket, chain, at);
            } else {
                let guard = self.thread_lock(old).lock();
                old.disown(lock);
                old.settle(lock.best.get(), NO_LEVEL);
                drop(guard);
                scheduler.sort(old);
                let given = self.give(scheduler, lock, new);
                debug_assert!(given.is_ok(), "a thread that waits has not ended");
            }
            let new = new.to_ref();
            waiter.state.store(state, Ordering::Release);
            (new, ends.then_some(at))
        }
    }

    /// Writes the calling thread's number in the word of the lock of `key`. The thread got the lock from an owner that
    /// exited without releasing it.
    fn write_owner<W: PiWord<M>>(
        &self,
        scheduler: &Scheduler<M>,
        word: &W,
        key: Key,
    ) -> Result<(), PiRefused<W::Error>> {
        let index = self.index_of(key);
        let bucket = self.bucket(index);
        let me = scheduler.current();
        loop {
            let mut chain = bucket.chain.lock();
            let Some(at) = chain.lock_of(key) else { return Err(PiRefused::Mismatch) };
            let written = word.load().and_then(|value| {
                let new = OWNER_DIED | WAITERS | word.name(&me);
                word.exchange(value, new).map(|found| found == value)
            });
            match written {
                Ok(false) => continue,
                Ok(true) => {
                    // SAFETY: the bucket is locked, and the lock is in it.
                    let ended = unsafe {
                        at.as_ref().unwritten.set(false);
                        let ends = at.as_ref().first().is_none();
                        ends.then(|| self.retire(scheduler, bucket, &mut chain, at))
                    };
                    drop(chain);
                    if ended.is_some() {
                        word.discard(at);
                    }
                    return Ok(());
                }
                Err(_) => {
                    drop(chain);
                    if let Err(error) = word.make_present() {
                        self.pass_on(scheduler, word, key);
                        return Err(PiRefused::Word(error));
                    }
                }
            }
        }
    }

    /// Hands the lock of `key`, whose word the calling thread cannot write, to the next waiter.
    fn pass_on<W: PiWord<M>>(&self, scheduler: &Scheduler<M>, word: &W, key: Key) {
        let bucket = self.bucket(self.index_of(key));
        let mut chain = bucket.chain.lock();
        let Some(at) = chain.lock_of(key) else { return };
        // SAFETY: the bucket is locked, the lock is in it, and its first waiter is listed at it.
        unsafe {
            match at.as_ref().first() {
                Some(next) => {
                    let (next, _stays) = self.hand(scheduler, bucket, &mut chain, at, next.as_ref(), INHERITS);
                    drop(chain);
                    scheduler.unpark(&next);
                }
                None => {
                    self.retire(scheduler, bucket, &mut chain, at);
                    drop(chain);
                    word.discard(at);
                }
            }
        }
    }

    /// Releases the lock of `key`, which the calling thread owns, and hands it to the most urgent waiter.
    pub fn pi_unlock<W: PiWord<M>>(
        &self,
        scheduler: &Scheduler<M>,
        key: Key,
        word: &W,
    ) -> Result<(), PiRefused<W::Error>> {
        let me = scheduler.current();
        let bucket = self.bucket(self.index_of(key));
        loop {
            let mut chain = bucket.chain.lock();
            let step = word.load().and_then(|value| {
                if value & OWNER != word.name(&me) {
                    return Ok(Err(PiRefused::NotOwner));
                }
                let Some(at) = chain.lock_of(key) else {
                    if chain.first_of(key).is_some() {
                        return Ok(Err(PiRefused::Mismatch));
                    }
                    return word.exchange(value, 0).map(|found| Ok((found == value).then_some(None)));
                };
                // SAFETY: the bucket is locked, and the lock is in it.
                let (owner, first) = unsafe { (at.as_ref().owner(), at.as_ref().first()) };
                let Some(first) = first.filter(|_| ptr::eq(owner, &*me)) else { return Ok(Err(PiRefused::Mismatch)) };
                // SAFETY: a listed waiter and its thread stay alive while the bucket is locked.
                let next = word.name(unsafe { first.as_ref().thread() });
                word.exchange(value, WAITERS | next).map(|found| Ok((found == value).then_some(Some((at, first)))))
            });
            match step {
                Err(_) => {
                    drop(chain);
                    word.make_present().map_err(PiRefused::Word)?;
                }
                Ok(Err(why)) => return Err(why),
                // The program changed the word after it was loaded: try again.
                Ok(Ok(None)) => {}
                Ok(Ok(Some(None))) => return Ok(()),
                Ok(Ok(Some(Some((at, first))))) => {
                    // SAFETY: the bucket is locked since the lock and its first waiter were found there.
                    let (next, ended) = unsafe { self.hand(scheduler, bucket, &mut chain, at, first.as_ref(), OWNS) };
                    drop(chain);
                    scheduler.unpark(&next);
                    if let Some(ended) = ended {
                        word.discard(ended);
                    }
                    return Ok(());
                }
            }
        }
    }

    /// Hands on each lock that has waiters and that the calling thread owns, because the thread leaves its address
    /// space. The new owners write the locks' words. If `ends` is true, the thread can never own a `PiLock` again.
    /// Otherwise it can own a `PiLock` again, but only after the function has returned. So waiters cannot keep the
    /// thread in this loop by making it an owner again and again.
    pub fn pi_leave(&self, scheduler: &Scheduler<M>, ends: bool) {
        self.pi_leave_for(scheduler, &scheduler.current(), ends);
    }

    /// As [`pi_leave`](Self::pi_leave), for the thread `me` instead of the caller. `me` is a thread that other threads
    /// could find, and that will never run.
    pub fn pi_leave_for(&self, scheduler: &Scheduler<M>, me: &Thread<M>, ends: bool) {
        {
            let _guard = self.thread_lock(me).lock();
            me.blocked.store(if ends { gone() } else { leaving() }, Ordering::Relaxed);
        }
        loop {
            let first = || NonNull::new(me.owned.load(Ordering::Relaxed).cast::<PiLock<M>>());
            let index = {
                let _guard = self.thread_lock(me).lock();
                match first() {
                    // SAFETY: a lock on the thread's list stays alive while the thread lock is held.
                    Some(lock) => unsafe { lock.as_ref() }.bucket,
                    None => {
                        if !ends {
                            me.blocked.store(ptr::null_mut(), Ordering::Relaxed);
                        }
                        return;
                    }
                }
            };
            let bucket = self.bucket(index);
            let mut chain = bucket.chain.lock();
            let lock = {
                let _guard = self.thread_lock(me).lock();
                // SAFETY: a lock on the thread's list stays alive while the thread lock is held.
                first().filter(|lock| unsafe { lock.as_ref() }.bucket == index)
            };
            let Some(at) = lock else { continue };
            // SAFETY: the lock is in this bucket, so it stays alive while the bucket is locked. A lock that `me` owns
            // has a waiter, because a new owner writes the word before it returns from its wait.
            unsafe {
                let Some(next) = at.as_ref().first() else { continue };
                let (next, _stays) = self.hand(scheduler, bucket, &mut chain, at, next.as_ref(), INHERITS);
                drop(chain);
                scheduler.unpark(&next);
            }
        }
    }
}

/// One step of a walk along the owners of locks: a thread that waits for a lock, its waiter and the waiter's bucket.
/// The walk has read them under the thread lock, which it no longer holds, so they may be old.
struct Step<M: Machine> {
    thread: ThreadRef<M>,
    waiter: *const PiWaiter<M>,
    bucket: usize,
}

/// A value of the word, and the thread that it names.
#[derive(Clone, Copy)]
struct Seen<'a, M: Machine> {
    value: u32,
    owner: Option<&'a Thread<M>>,
}
