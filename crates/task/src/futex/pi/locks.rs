//! The data of locks with priority inheritance: waiters, locks, the list of a thread's locks, and what guards each. The
//! parent module chooses the owners. A thread's *thread lock* is in a bucket of the futex table, and guards what the
//! thread owns and waits for.

use crate::futex::{Key, Waiter};
use crate::list::{Adapter, Links, List};
use crate::machine::Machine;
use crate::scheduler::Scheduler;
use crate::thread::{NO_LEVEL, Thread};
use core::cell::{Cell, UnsafeCell};
use core::marker::PhantomData;
use core::mem::offset_of;
use core::ptr::{self, NonNull};
use quire_sync::atomic::{AtomicU8, Ordering};

/// The number of levels (see `Thread::level`): one for each real-time priority and each nice value.
const LEVELS: usize = NO_LEVEL as usize;
const WORDS: usize = LEVELS.div_ceil(64);

/// State of a waiter: it waits on a plain futex word, until a requeue moves it to a lock.
pub(super) const LISTED: u8 = 0;
/// State of a waiter: it waits for a lock.
pub(super) const BLOCKED: u8 = 1;
/// State of a waiter: its thread owns the lock, and the word names that thread.
pub(super) const OWNS: u8 = 2;
/// State of a waiter: its thread owns the lock because the last owner exited. The thread must write the word.
pub(super) const INHERITS: u8 = 3;

/// The list node of a thread that waits for a lock with priority inheritance. It is on the thread's stack.
#[repr(C)]
pub struct PiWaiter<M: Machine> {
    /// The waiter's thread and bucket, and its links on the chain of a plain word until it is moved to a lock.
    pub(super) plain: Waiter<M>,
    /// The links on the list of `level` in the lock `lock`. The bucket's lock guards `links`, `lock` and `level`.
    links: Links<PiWaiter<M>>,
    pub(super) lock: Cell<Option<NonNull<PiLock<M>>>>,
    pub(super) level: Cell<u8>,
    /// The key of the lock to which the waiter may be moved. Written before the waiter is listed.
    pub(super) target: Cell<Key>,
    /// The waiter's state, such as [`BLOCKED`]. Written under the bucket's lock. `OWNS` and `INHERITS` are final.
    pub(super) state: AtomicU8,
}

struct OfLevel<M>(PhantomData<M>);
// SAFETY: `PiWaiter::links` is used by no other adapter.
unsafe impl<M: Machine> Adapter for OfLevel<M> {
    type Node = PiWaiter<M>;
    fn links(node: &PiWaiter<M>) -> &Links<PiWaiter<M>> {
        &node.links
    }
}

impl<M: Machine> PiWaiter<M> {
    pub(super) fn new(scheduler: &Scheduler<M>, state: u8, bucket: usize, target: Key) -> Self {
        let plain = Waiter::new();
        let current = scheduler.current();
        plain.urgency.set(current.own_urgency());
        plain.thread.set(Some(NonNull::from(&*current)));
        plain.bucket.store(bucket, Ordering::Relaxed);
        plain.moves.set(true);
        PiWaiter {
            plain,
            links: Links::new(),
            lock: Cell::new(None),
            level: Cell::new(NO_LEVEL),
            target: Cell::new(target),
            state: AtomicU8::new(state),
        }
    }

    /// The waiting thread.
    ///
    /// # Safety
    /// The waiter is listed, so its thread is alive.
    pub(super) unsafe fn thread<'a>(&self) -> &'a Thread<M> {
        // SAFETY: `new` has stored the thread, which stays alive while its waiter is listed.
        unsafe { self.plain.thread.get().unwrap_unchecked().as_ref() }
    }

    /// The [`PiWaiter`] of which `plain` is a field.
    ///
    /// # Safety
    /// `plain` has `moves` set, so it is part of a [`PiWaiter`].
    pub(super) unsafe fn of(plain: NonNull<Waiter<M>>) -> NonNull<PiWaiter<M>> {
        // SAFETY: only `PiWaiter::new` sets `moves`, on its own field.
        unsafe { plain.byte_sub(offset_of!(PiWaiter<M>, plain)).cast() }
    }
}

/// The kernel's state of a lock that has waiters, or whose word its new owner has not written yet.
pub struct PiLock<M: Machine> {
    /// The links on the bucket's list of locks. The bucket's lock guards them, and all other fields for which no other
    /// lock is named.
    links: Links<PiLock<M>>,
    key: Key,
    pub(super) bucket: usize,
    pub(super) owner: Cell<Option<NonNull<Thread<M>>>>,
    /// The word does not name the owner yet.
    pub(super) unwritten: Cell<bool>,
    /// Bit n is set if threads wait at level n.
    occupied: Cell<[u64; WORDS]>,
    levels: UnsafeCell<[List<OfLevel<M>>; LEVELS]>,
    /// The next and the previous lock on the owner's list of locks. The owner's thread lock (in the futex table) guards
    /// `next`, `prev` and `best`.
    next: Cell<Option<NonNull<PiLock<M>>>>,
    prev: Cell<Option<NonNull<PiLock<M>>>>,
    /// The level of the most urgent waiter.
    pub(super) best: Cell<u8>,
}

// SAFETY: the cells are accessed only under the locks that the fields' comments name.
unsafe impl<M: Machine> Send for PiLock<M> {}
// SAFETY: only a holder of the lock that a field's comment names accesses that cell.
unsafe impl<M: Machine> Sync for PiLock<M> {}

/// The list adapter for the locks of a bucket.
pub(in crate::futex) struct OfBucket<M>(PhantomData<M>);
// SAFETY: `PiLock::links` is used by no other adapter.
unsafe impl<M: Machine> Adapter for OfBucket<M> {
    type Node = PiLock<M>;
    fn links(node: &PiLock<M>) -> &Links<PiLock<M>> {
        &node.links
    }
}

impl<M: Machine> PiLock<M> {
    pub(super) fn new(key: Key, bucket: usize) -> Self {
        PiLock {
            links: Links::new(),
            key,
            bucket,
            owner: Cell::new(None),
            unwritten: Cell::new(false),
            occupied: Cell::new([0; WORDS]),
            levels: UnsafeCell::new([const { List::new() }; LEVELS]),
            next: Cell::new(None),
            prev: Cell::new(None),
            best: Cell::new(NO_LEVEL),
        }
    }

    pub(in crate::futex) fn key(&self) -> Key {
        self.key
    }

    /// The owner, which is alive while it owns the lock, because it hands the lock on before it ends.
    ///
    /// # Safety
    /// The lock is in its bucket, which the caller has locked.
    pub(super) unsafe fn owner<'a>(&self) -> &'a Thread<M> {
        // SAFETY: a lock in its bucket has an owner, which is alive until it has handed the lock on.
        unsafe { self.owner.get().unwrap_unchecked().as_ref() }
    }

    /// The level of the lock's most urgent waiter, or [`NO_LEVEL`].
    pub(super) fn most_urgent(&self) -> u8 {
        let occupied = self.occupied.get();
        let first = occupied.iter().zip((0u8..).step_by(64)).find(|(word, _)| **word != 0);
        first.map_or(NO_LEVEL, |(word, from)| from + word.trailing_zeros() as u8)
    }

    /// The most urgent waiter; among equals, the longest waiting.
    ///
    /// # Safety
    /// The bucket is locked.
    pub(super) unsafe fn first(&self) -> Option<NonNull<PiWaiter<M>>> {
        // SAFETY: the bucket's lock guards the levels.
        unsafe { (*self.levels.get()).get(usize::from(self.most_urgent()))?.first() }
    }

    fn occupy(&self, level: u8, by: bool) {
        let mut occupied = self.occupied.get();
        let bit = 1 << (level % 64);
        let word = &mut occupied[usize::from(level / 64)];
        *word = if by { *word | bit } else { *word & !bit };
        self.occupied.set(occupied);
    }

    /// Appends `waiter` to the list of `level`.
    ///
    /// # Safety
    /// The bucket is locked. `waiter` is on no list of a level, and stays in place until it is removed.
    pub(super) unsafe fn push(&self, waiter: &PiWaiter<M>, level: u8) {
        waiter.level.set(level);
        self.occupy(level, true);
        // SAFETY: the bucket's lock guards the levels, and the caller vouches for the waiter.
        unsafe { (&mut (*self.levels.get()))[usize::from(level)].push_back(NonNull::from(waiter)) };
    }

    /// Removes `waiter` from the list of its level.
    ///
    /// # Safety
    /// The bucket is locked, and `waiter` is on the list of its level.
    pub(super) unsafe fn take(&self, waiter: &PiWaiter<M>) {
        let level = waiter.level.get();
        // SAFETY: the bucket's lock guards the levels, and `level` is the level of the waiter.
        let list = unsafe { &mut (&mut (*self.levels.get()))[usize::from(level)] };
        // SAFETY: the caller vouches that the waiter is on this level.
        unsafe { list.remove(NonNull::from(waiter)) };
        if list.is_empty() {
            self.occupy(level, false);
        }
    }
}

/// A special value of `Thread::blocked`: the thread has ended, and can own no more locks.
pub(super) fn gone() -> *mut () {
    NonNull::dangling().as_ptr()
}

/// A special value of `Thread::blocked`: the thread is handing on its locks, and can own new ones only after that.
pub(super) fn leaving() -> *mut () {
    ptr::without_provenance_mut(2)
}

/// Why a thread cannot own a lock.
pub(super) enum Unfit {
    Ended,
    Leaves,
}

impl<M: Machine> Thread<M> {
    /// The waiter by which this thread waits for a lock; `None` if it waits for none.
    ///
    /// # Safety
    /// The thread lock of this thread is held. The waiter is used only while the thread lock or the lock of the
    /// waiter's bucket is held.
    pub(super) unsafe fn blocked<'a>(&self) -> Option<&'a PiWaiter<M>> {
        let at = self.blocked.load(Ordering::Relaxed);
        // SAFETY: a waiter stays alive until its thread's `blocked` is cleared, which requires both locks.
        if at == gone() || at == leaving() { None } else { unsafe { at.cast::<PiWaiter<M>>().as_ref() } }
    }

    /// Inserts `lock` in the list of locks that this thread owns.
    ///
    /// # Safety
    /// The thread lock is held. `lock` is on no thread's list, and stays in place until it is removed.
    pub(super) unsafe fn own(&self, lock: &PiLock<M>) {
        let head = NonNull::new(self.owned.load(Ordering::Relaxed).cast::<PiLock<M>>());
        lock.next.set(head);
        lock.prev.set(None);
        if let Some(head) = head {
            // SAFETY: a lock on the list stays until it is taken off.
            unsafe { head.as_ref() }.prev.set(Some(NonNull::from(lock)));
        }
        self.owned.store(ptr::from_ref(lock).cast_mut().cast(), Ordering::Relaxed);
    }

    /// Removes `lock` from the list of locks that this thread owns.
    ///
    /// # Safety
    /// The thread lock is held, and `lock` is on this thread's list.
    pub(super) unsafe fn disown(&self, lock: &PiLock<M>) {
        let (prev, next) = (lock.prev.take(), lock.next.take());
        match prev {
            // SAFETY: a lock on the list stays until it is taken off.
            Some(prev) => unsafe { prev.as_ref() }.next.set(next),
            None => self.owned.store(next.map_or(ptr::null_mut(), |next| next.as_ptr().cast()), Ordering::Relaxed),
        }
        if let Some(next) = next {
            // SAFETY: a lock on the list stays until it is taken off.
            unsafe { next.as_ref() }.prev.set(prev);
        }
    }

    /// Updates the level that this thread inherits, after the level of the most urgent waiter of one lock has changed
    /// from `was` to `now`. For a lock that is added to the thread's list, `was` is [`NO_LEVEL`]; for a removed lock,
    /// `now` is [`NO_LEVEL`]. The function searches the thread's locks only if the most urgent lock has become less
    /// urgent. The search ends at a lock of the level that the thread has inherited so far. The caller then calls
    /// [`Scheduler::sort`] for the thread.
    ///
    /// # Safety
    /// The thread lock is held.
    pub(super) unsafe fn settle(&self, was: u8, now: u8) {
        let before = self.inherited_level();
        if now <= before {
            self.inherit_level(now);
            return;
        }
        if was != before {
            return;
        }
        let mut best = NO_LEVEL;
        let mut at = NonNull::new(self.owned.load(Ordering::Relaxed).cast::<PiLock<M>>());
        while let Some(lock) = at {
            // SAFETY: a lock on the list stays until it is taken off, and the thread lock guards the list.
            let lock = unsafe { lock.as_ref() };
            best = best.min(lock.best.get());
            if best == before {
                break;
            }
            at = lock.next.get();
        }
        self.inherit_level(best);
    }
}
