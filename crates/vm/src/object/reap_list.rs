//! The objects that the reaper must check, in one list for each CPU.
//!
//! The lists are doubly linked through the objects, and each has a lock. A list holds no reference to its objects. The
//! thread that drops the last reference to an object unlinks it. When the reaper takes an object off a list, it takes a
//! reference under the list's lock.

use super::Object;
use crate::machine::Machine;
use crate::mutant::{Mutant, mutant};
use crate::phys::boot::BootMemory;
use core::cell::Cell;
use core::ptr::{self, NonNull};
use quire_sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence_full};
use quire_sync::epoch::Pinned;
use quire_sync::{PerCpu, Rank, SpinLock, WaitQueue, preempt_off};

/// If one CPU's list has this number of objects, the CPU wakes the reaper.
pub(crate) const MANY: usize = 32;

/// An object's links on a list of the reaper (the daemon that frees pages that no mapping shows any more).
pub(crate) struct ReapPlace<M: Machine> {
    /// The number of the list that has the object, plus one; 0 if the object is on no list. Written under the lock of
    /// that list.
    list: AtomicU32,
    /// Guarded by the lock of that list.
    next: Cell<*const Object<M>>,
    previous: Cell<*const Object<M>>,
    /// The page at which the next pass over the object continues, if the last pass used up its budget.
    pub(crate) from: AtomicU64,
}

impl<M: Machine> ReapPlace<M> {
    pub fn new() -> Self {
        ReapPlace {
            list: AtomicU32::new(0),
            next: Cell::new(ptr::null()),
            previous: Cell::new(ptr::null()),
            from: AtomicU64::new(0),
        }
    }
}

pub(crate) struct ReapList<M: Machine> {
    pub(crate) first: *const Object<M>,
    pub(crate) len: usize,
}

// SAFETY: the objects on a list are alive, and the list's lock guards their links.
unsafe impl<M: Machine> Send for ReapList<M> {}

/// The reaper's lists of objects.
pub(crate) struct Reaper<M: Machine> {
    pub(crate) lists: PerCpu<SpinLock<ReapList<M>>>,
    /// The wait queue on which the reaper (the daemon that frees pages that no mapping shows) sleeps.
    pub(crate) waits: WaitQueue,
    /// Set when a thread wants the reaper to run now.
    pub(crate) asked: AtomicBool,
}

impl<M: Machine> Reaper<M> {
    pub fn new(boot: &mut BootMemory<'_, impl Machine>) -> Self {
        Reaper {
            lists: boot.per_cpu(|_| SpinLock::new(Rank::REAPER, ReapList { first: ptr::null(), len: 0 })),
            waits: WaitQueue::new(),
            asked: AtomicBool::new(false),
        }
    }

    /// Puts `object` on this CPU's list, for the reaper to check. The caller keeps the object reachable, at least by a
    /// pin. The object may be in teardown.
    pub fn flag(&self, object: &Object<M>) {
        let place = object.reaping();
        if place.list.load(Ordering::Relaxed) != 0 {
            return;
        }
        let many = {
            let cpu = preempt_off();
            let mut list = self.lists.mine(&cpu).lock();
            let mine = cpu.cpu() as u32 + 1;
            if place.list.compare_exchange(0, mine, Ordering::AcqRel, Ordering::Relaxed).is_err() {
                return;
            }
            place.previous.set(ptr::null());
            place.next.set(list.first);
            // SAFETY: an object is taken off its list before it is retired. The list is locked, so the objects on it
            // are alive.
            if let Some(first) = unsafe { list.first.as_ref() } {
                first.reaping().previous.set(object);
            }
            list.first = object;
            list.len += 1;
            // This thread stores the list number, fences, then reads `DEAD`. The teardown sets `DEAD`, fences, then
            // reads the list number. So one of the two sees the other's write.
            fence_full();
            if object.is_dead() && !mutant(Mutant::FlagTheDead) {
                unlink(&mut list, object);
                return;
            }
            list.len == MANY
        };
        if many {
            self.waits.wake_all();
        }
    }

    /// Takes `object`, which is being torn down, off its list, if it is on one.
    pub fn forget(&self, object: &Object<M>) {
        let place = object.reaping();
        // If this load misses the number that another thread is just storing, that thread then sees the dead mark and
        // unlinks the object itself. So exactly one thread unlinks it: that thread, this thread or the reaper.
        let at = place.list.load(Ordering::Acquire);
        if at != 0 {
            let mut list = self.lists.of(at as usize - 1).lock();
            if place.list.load(Ordering::Relaxed) == at {
                unlink(&mut list, object);
            }
        }
    }

    /// Takes the next object off the list number `list`, with a reference. Returns `None` if the list is empty.
    pub(crate) fn take(&self, list: usize, pin: &Pinned<'_>) -> Option<NonNull<Object<M>>> {
        let mut list = self.lists.of(list).lock();
        loop {
            // SAFETY: an object is taken off its list before it is retired. The list is locked, so the objects on it
            // are alive.
            let object = unsafe { list.first.as_ref() }?;
            unlink(&mut list, object);
            if object.try_ref(pin) {
                return Some(NonNull::from(object));
            }
        }
    }
}

fn unlink<M: Machine>(list: &mut ReapList<M>, object: &Object<M>) {
    let place = object.reaping();
    let (next, previous) = (place.next.get(), place.previous.get());
    // SAFETY: an object is taken off its list before it is retired. The list is locked, so the objects on it are alive.
    unsafe {
        match previous.as_ref() {
            Some(p) => p.reaping().next.set(next),
            None => list.first = next,
        }
        if let Some(n) = next.as_ref() {
            n.reaping().previous.set(previous);
        }
    }
    list.len -= 1;
    place.list.store(0, Ordering::Release);
}
