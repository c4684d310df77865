//! Objects for the reaper to check: one list a CPU.
//!
//! The lists are doubly linked through the objects, each with its lock. A listed object has no reference from its list:
//! dropping its last reference unlinks it. The reaper takes a reference as it takes an object off, under the list's
//! lock.

use super::Object;
use crate::machine::Machine;
use crate::mutant::{Mutant, mutant};
use crate::phys::boot::BootMemory;
use core::cell::Cell;
use core::ptr::{self, NonNull};
use quire_sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence_full};
use quire_sync::epoch::Pinned;
use quire_sync::{PerCpu, Rank, SpinLock, WaitQueue, preempt_off};

/// Objects on one CPU's list that wake the reaper.
pub(crate) const MANY: usize = 32;

/// An object's place on a list.
pub(crate) struct ReapPlace<M: Machine> {
    /// The list, plus one; 0: on none. Written under that list's lock.
    list: AtomicU32,
    /// Guarded by that lock.
    next: Cell<*const Object<M>>,
    previous: Cell<*const Object<M>>,
    /// The page to continue with, where the last pass ran out of its budget.
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

// SAFETY: objects on a list are alive, and their links are guarded by its lock.
unsafe impl<M: Machine> Send for ReapList<M> {}

/// The objects for the reaper to check.
pub(crate) struct Reaper<M: Machine> {
    pub(crate) lists: PerCpu<SpinLock<ReapList<M>>>,
    /// Where its thread sleeps.
    pub(crate) waits: WaitQueue,
    /// A thread wants a run of the reaper now.
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

    /// Leaves `object` to the reaper. The caller keeps it reachable, by a pin at least; it may be dying.
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
            // SAFETY: an object is taken off its list before it is retired, and the list is locked, so those on it are
            // alive.
            if let Some(first) = unsafe { list.first.as_ref() } {
                first.reaping().previous.set(object);
            }
            list.first = object;
            list.len += 1;
            // Teardown: "mark dead, fence, read the list number". One of the two sees the other.
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

    /// Takes a dying `object` off its list, where it is on one.
    pub fn forget(&self, object: &Object<M>) {
        let place = object.reaping();
        // A thread that still lists it sees the dead mark under the list's lock. So that thread, this one or the reaper
        // unlinks it, once.
        let at = place.list.load(Ordering::Acquire);
        if at != 0 {
            let mut list = self.lists.of(at as usize - 1).lock();
            if place.list.load(Ordering::Relaxed) == at {
                unlink(&mut list, object);
            }
        }
    }

    /// The next object of `list`, with a reference.
    pub(crate) fn take(&self, list: usize, pin: &Pinned<'_>) -> Option<NonNull<Object<M>>> {
        let mut list = self.lists.of(list).lock();
        loop {
            // SAFETY: an object is taken off its list before it is retired, and the list is locked, so those on it are
            // alive.
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
    // SAFETY: an object is taken off its list before it is retired, and the list is locked, so those on it are alive.
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
