//! The requeue of waiters from a plain word to a lock with priority inheritance, by which programs implement condition
//! variables.

use super::locks::{LISTED, OWNS, PiWaiter};
use super::{Attempt, FutexTable, How, PiRefused, PiWord, Place};
use crate::futex::{ANY, Key};
use crate::machine::Machine;
use crate::scheduler::Scheduler;
use crate::thread::Thread;
use core::ptr::{self, NonNull};
use quire_sync::atomic::Ordering;

impl<M: Machine> FutexTable<M> {
    /// Waits on the plain word of `from` until [`pi_requeue`](Self::pi_requeue) moves the waiter to the lock of `to`.
    /// Then waits until the calling thread owns that lock. `check` compares the plain word, as in [`wait`](Self::wait);
    /// `fetch` makes the word's page present.
    #[allow(clippy::too_many_arguments)]
    pub fn pi_wait_moved<W: PiWord<M>>(
        &self,
        scheduler: &Scheduler<M>,
        from: Key,
        to: Key,
        word: &W,
        deadline: Option<u64>,
        check: &mut dyn FnMut() -> Result<bool, W::Error>,
        fetch: &mut dyn FnMut() -> Result<(), W::Error>,
    ) -> Result<(), PiRefused<W::Error>> {
        let index = self.index_of(from);
        let waiter = PiWaiter::new(scheduler, LISTED, index, to);
        waiter.plain.key.set(from);
        waiter.plain.bits.set(ANY);
        loop {
            // SAFETY: the waiter is on no list, and stays on this stack until the wait has ended.
            match unsafe { self.list(&waiter.plain, index, check) } {
                Ok(true) => break,
                Ok(false) => return Err(PiRefused::Differs),
                Err(_) => fetch().map_err(PiRefused::Word)?,
            }
        }
        // SAFETY: this call has listed the waiter on the plain word. The waiter is on this stack until the call
        // returns.
        unsafe { self.wait_for_lock(scheduler, word, &waiter, deadline) }
    }

    /// Moves waiters from the plain word of `from` to the lock of `to`, if the word has the expected value. `check`
    /// compares the word. The first waiter becomes the owner if the lock is free. After the first waiter up to `most`
    /// others are moved. Returns the number of all these waiters.
    #[allow(clippy::too_many_arguments)]
    pub fn pi_requeue<W: PiWord<M>>(
        &self,
        scheduler: &Scheduler<M>,
        from: Key,
        to: Key,
        word: &W,
        most: usize,
        check: &mut dyn FnMut() -> Result<bool, W::Error>,
        fetch: &mut dyn FnMut() -> Result<(), W::Error>,
    ) -> Result<usize, PiRefused<W::Error>> {
        let (a, b) = (self.index_of(from), self.index_of(to));
        let (mut done, mut compared) = (0, false);
        while done <= most {
            let mut absent = false;
            let moved = match self.attempts(word, |owner, spare| {
                let (mut source, mut target) = self.lock_both(a, b);
                if !compared {
                    match check() {
                        Ok(true) => {}
                        Ok(false) => return Err(PiRefused::Differs.into()),
                        Err(_) => {
                            absent = true;
                            return Ok(None);
                        }
                    }
                    if source.lock_of(from).is_some() {
                        return Err(PiRefused::Mismatch.into());
                    }
                }
                let Some(plain) = source.first_of(from) else { return Ok(None) };
                // SAFETY: a waiter on the chain is alive, with its thread, while the bucket is locked.
                let waiter = unsafe {
                    if !plain.as_ref().moves.get() {
                        return Err(PiRefused::Mismatch.into());
                    }
                    PiWaiter::of(plain).as_ref()
                };
                if waiter.target.get() != to {
                    return Err(PiRefused::Mismatch.into());
                }
                // SAFETY: the waiter is on the chain of the word, whose bucket is locked, so its thread is alive.
                let thread = unsafe { waiter.thread() };
                let chain = target.as_deref_mut().unwrap_or(&mut source);
                let how = if most > 0 { How::Crowd } else { How::Wait };
                let at = Place { bucket: self.bucket(b), chain, index: b, key: to, word };
                let attempt = self.attempt(scheduler, at, thread, how, owner, spare)?;
                compared = true;
                let reference = thread.to_ref();
                // SAFETY: the waiter is listed in the bucket of `from`, and the lock in the bucket of `to`. Both
                // buckets are locked.
                unsafe {
                    source.take(plain);
                    self.bucket(a).waiting.fetch_sub(1, Ordering::Relaxed);
                    Ok(Some((
                        reference,
                        match attempt {
                            Attempt::Taken => {
                                waiter.state.store(OWNS, Ordering::Release);
                                None
                            }
                            Attempt::Wait(lock) => {
                                Some((self.block(scheduler, lock.as_ref(), waiter), NonNull::from(waiter)))
                            }
                        },
                    )))
                }
            }) {
                Ok(moved) => moved,
                // After some waiters were moved, the call succeeds, so that the program does not repeat it.
                Err(PiRefused::Memory | PiRefused::Interrupted) if done > 0 => return Ok(done),
                Err(why) => return Err(why),
            };
            match moved {
                None if absent => fetch().map_err(PiRefused::Word)?,
                None => break,
                Some((thread, None)) => {
                    scheduler.unpark(&thread);
                    done += 1;
                }
                Some((thread, Some((owner, waiter)))) => {
                    if self.walk(scheduler, owner, Some(&thread))
                        && self.move_back(scheduler, from, to, word, &thread, waiter)
                    {
                        return Err(PiRefused::Deadlock);
                    }
                    done += 1;
                }
            }
        }
        Ok(done)
    }

    /// Moves the `waiter` of `thread` from the lock of `to` back to the plain word of `from`, because the thread would
    /// wait for itself. Returns false, and moves nothing, if the thread no longer waits for that lock.
    fn move_back<W: PiWord<M>>(
        &self,
        scheduler: &Scheduler<M>,
        from: Key,
        to: Key,
        word: &W,
        thread: &Thread<M>,
        waiter: NonNull<PiWaiter<M>>,
    ) -> bool {
        let (a, b) = (self.index_of(from), self.index_of(to));
        let (mut source, mut target) = self.lock_both(a, b);
        {
            let _guard = self.thread_lock(thread).lock();
            // The thread may have ended its wait, and may wait again by a new waiter at the same address.
            // SAFETY: the thread lock is held while the waiter is used. The bucket of its key is locked if it is `b`.
            let still = unsafe { thread.blocked() }.is_some_and(|now| {
                ptr::eq(now, waiter.as_ptr())
                    && now.plain.bucket.load(Ordering::Relaxed) == b
                    && now.plain.key.get() == from
            });
            if !still {
                return false;
            }
        }
        // SAFETY: the thread waits by this waiter, which stays alive while the bucket of its lock is locked.
        let ended = unsafe {
            let waiter = waiter.as_ref();
            let Some(lock) = waiter.lock.get().filter(|lock| lock.as_ref().key() == to) else { return false };
            let owner = lock.as_ref().owner().to_ref();
            let chain = target.as_deref_mut().unwrap_or(&mut source);
            let ended = self.unblock(scheduler, self.bucket(b), chain, lock, waiter);
            waiter.state.store(LISTED, Ordering::Relaxed);
            waiter.plain.key.set(from);
            waiter.plain.bucket.store(a, Ordering::Release);
            self.bucket(a).waiting.fetch_add(1, Ordering::AcqRel);
            source.add(NonNull::from(&waiter.plain));
            (ended, owner)
        };
        drop((source, target));
        let (ended, owner) = ended;
        if let Some(ended) = ended {
            word.discard(ended);
        }
        self.walk(scheduler, self.step(&owner), None);
        true
    }
}
