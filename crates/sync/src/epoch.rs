//! Epoch-based reclamation: readers announce themselves per CPU, writers retire, memory is freed two epochs later.
//!
//! # The rule
//! The domain has a global epoch. A reader pins: it copies the global epoch to its CPU's slot and fences. The epoch may
//! advance from `e` to `e + 1` only when every slot is idle or says `e`. Something retired in epoch `e` was unlinked before,
//! so only readers pinned at `e` or `e - 1` can still hold it; when the global epoch reaches `e + 2` none of them is left.
//! A CPU that halts is not pinned, hence quiescent. What waits is linked through the retired values themselves
//! ([`Retired`] is embedded): retiring allocates nothing and cannot fail.
//!
//! # How often
//! An advance reads the line of every CPU's slot, which pins write, and writes the epoch, which pins read: it is paid for by what was
//! retired since the last one. Each CPU collects until its part of a share of memory waits ([`Domain::holding`]), at most
//! [`MOST`] structures; where a reader stands in the way it tries again after as many more. So a CPU shares a line through its epoch at
//! most once in as many structures, and what waits is three times that share at most while no reader stalls.
//!
//! Pins nest on a CPU and keep the thread there; nothing may sleep while pinned (Contract C5).

use crate::atomic::{AtomicU64, Ordering, fence_full};
use crate::hooks::{PreemptOff, preempt_off, thread_tag};
use crate::mutant::{Mutant, mutant};
use crate::per_cpu::PerCpu;
use crate::rank::Rank;
use crate::record;
use crate::spin::SpinLock;
use core::ptr;

/// Embedded, as the first field, in whatever is retired through a domain.
#[repr(C)]
pub struct Retired {
    next: *mut Retired,
    free: Option<unsafe fn(*mut Retired)>,
}

crate::assert_layout!(Retired { size: 16, align: 8, next: 0, free: 8 });

impl Retired {
    /// A header of something that is not retired.
    pub const fn new() -> Self {
        Retired { next: ptr::null_mut(), free: None }
    }
}

impl Default for Retired {
    fn default() -> Self {
        Self::new()
    }
}

// SAFETY: the header is touched only by the domain, once its owner has given the value up.
unsafe impl Send for Retired {}
// SAFETY: as above.
unsafe impl Sync for Retired {}

/// One CPU's part of a domain.
pub struct Slot {
    /// 0: idle; else (epoch << 1) | 1.
    pinned: AtomicU64,
    /// Pins nest: only this CPU touches it, with preemption off. Where it can be checked that the CPU is one thread at a time,
    /// the thread's [`tag`](crate::hooks::thread_tag) stands above the depth.
    depth: AtomicU64,
    bags: SpinLock<Bags>,
}

crate::assert_layout!(Slot { size: 80, align: 8 });

struct Bags {
    /// What was retired in epoch `stamp[i]`, newest list first in its bag; bag = epoch mod 3.
    head: [*mut Retired; 3],
    stamp: [u64; 3],
    /// Structures that were retired since the last try to advance.
    count: u32,
}
// SAFETY: the lists are reached only under the slot's lock, and hold values that their owners gave up.
unsafe impl Send for Bags {}

impl Slot {
    /// An idle slot.
    pub fn new() -> Self {
        Slot {
            pinned: AtomicU64::new(0),
            depth: AtomicU64::new(0),
            bags: SpinLock::new(Rank::EPOCH, Bags { head: [ptr::null_mut(); 3], stamp: [0; 3], count: 0 }),
        }
    }
}

impl Default for Slot {
    fn default() -> Self {
        Self::new()
    }
}

/// The fewest retired structures that a CPU collects before it tries to advance the epoch: large enough that the scan over all CPUs'
/// slots is amortised, small enough that little memory waits and that what comes back is still in the cache: a single CPU, which
/// scans its own slot alone, waits for a quarter of what many do.
#[cfg(not(any(loom, shuttle)))]
const fn fewest(cpus: usize) -> u32 {
    if cpus >= 4 { 64 } else { 16 * cpus as u32 }
}
#[cfg(any(loom, shuttle))]
const fn fewest(_cpus: usize) -> u32 {
    1
}

/// The most: several forks and exits retire fewer together, and a quarter of a MiB still fits into a CPU's second cache.
const MOST: u32 = 1024;

/// Bytes of a structure, on average: entries, backings and nodes have 64 to 640.
const STRUCTURE: u64 = 256;

/// A reclamation domain.
pub struct Domain {
    global: crate::per_cpu::CachePadded<AtomicU64>,
    slots: PerCpu<Slot>,
    /// Structures that a CPU collects before it tries to advance the epoch. Fixed.
    every: u32,
}

/// While it lives, nothing that the holder can reach through shared pointers of the domain's structures is freed.
pub struct Pinned<'a> {
    slot: &'a Slot,
    _cpu: PreemptOff,
}

/// Bits of [`Slot::depth`] that count.
const DEPTH_BITS: u32 = 32;
const DEPTH: u64 = (1 << DEPTH_BITS) - 1;

/// What is per CPU is kept without locks by whoever has the CPU. Two threads that are the same CPU at once break all of it,
/// and most of that shows long after: the epoch stands still, a waiter is never woken.
#[inline(always)]
fn assert_one_thread(ok: bool) {
    if crate::hooks::TAGS && !crate::hooks::is_panicking() {
        assert!(ok, "two threads are CPU {} at once", crate::hooks::current_cpu());
    }
}

impl Domain {
    /// A domain over one [`Slot`] a CPU.
    pub fn new(slots: PerCpu<Slot>) -> Self {
        let every = fewest(slots.len());
        Domain { global: crate::per_cpu::CachePadded(AtomicU64::new(2)), slots, every }
    }

    /// As much as `bytes` may wait in each of two epochs, on all CPUs together; or the little that is always allowed. A single CPU
    /// has nobody to spare: it goes on freeing what is still in its cache.
    pub fn holding(mut self, bytes: u64) -> Self {
        let cpus = self.slots.len();
        if cpus > 1 && !cfg!(any(loom, shuttle)) {
            let share = u32::try_from(bytes / STRUCTURE / cpus as u64).unwrap_or(u32::MAX);
            self.every = share.clamp(fewest(cpus), MOST);
        }
        self
    }

    /// As how many structures something of `bytes` bytes counts: so that what is due together has at most [`MOST`] times
    /// [`STRUCTURE`] bytes, and no less where fewer structures are.
    fn weight(&self, bytes: u64) -> u32 {
        let share = bytes.div_ceil(STRUCTURE).saturating_mul(self.every.into()) / u64::from(MOST);
        u32::try_from(share).unwrap_or(self.every).max(1)
    }

    /// How many retired structures a CPU collects at most before it tries to advance the epoch, and gets back at once later.
    pub fn every(&self) -> u32 {
        self.every
    }

    /// Starts a read-side section on this CPU.
    #[inline]
    pub fn pin(&self) -> Pinned<'_> {
        let cpu = preempt_off();
        let slot = self.slots.mine(&cpu);
        let (depth, me) = (slot.depth.load(Ordering::Relaxed), thread_tag() << DEPTH_BITS);
        assert_one_thread(depth == 0 || depth >> DEPTH_BITS == me >> DEPTH_BITS);
        slot.depth.store(me | ((depth & DEPTH) + 1), Ordering::Relaxed);
        if depth == 0 {
            let e = self.global.load(Ordering::Relaxed);
            if mutant(Mutant::PinNoFence) {
                slot.pinned.store((e << 1) | 1, Ordering::Release);
            } else {
                // The swap is the store and the fence in one: what follows is not read before the pin is visible.
                slot.pinned.swap((e << 1) | 1, Ordering::AcqRel);
                crate::atomic::fence_after_rmw();
            }
        }
        Pinned { slot, _cpu: cpu }
    }

    /// Gives `value` up: `free` is called with it once no reader can hold it any more, on whichever CPU finds that out.
    ///
    /// # Safety
    /// `value` must be unreachable for new readers, be retired once, and stay untouched until `free`; `free` must not sleep.
    pub unsafe fn retire(&self, value: *mut Retired, free: unsafe fn(*mut Retired)) {
        // SAFETY: by this function's contract.
        unsafe { self.retire_large(value, STRUCTURE, free) }
    }

    /// As [`retire`](Self::retire), for something that holds `bytes` bytes back, more than structures have.
    ///
    /// # Safety
    /// As [`retire`](Self::retire).
    pub unsafe fn retire_large(&self, value: *mut Retired, bytes: u64, free: unsafe fn(*mut Retired)) {
        if !mutant(Mutant::AdvanceNoFence) {
            fence_full();
        }
        let due;
        {
            let cpu = preempt_off();
            let mut bags = self.slots.mine(&cpu).bags.lock();
            let e = self.global.load(Ordering::Acquire);
            let i = (e % 3) as usize;
            // A bag whose stamp differs is at least three epochs old: everything in it is free.
            let old = if bags.stamp[i] == e {
                ptr::null_mut()
            } else {
                core::mem::replace(&mut bags.head[i], ptr::null_mut())
            };
            bags.stamp[i] = e;
            record::wrote(value);
            // SAFETY: the caller gave the value up.
            unsafe {
                (*value).free = Some(free);
                (*value).next = bags.head[i];
            }
            bags.head[i] = value;
            bags.count += self.weight(bytes);
            due = bags.count >= self.every;
            if due {
                bags.count = 0;
            }
            drop(bags);
            // SAFETY: as argued above, nobody can hold these.
            unsafe { free_list(old) };
        }
        if due {
            self.collect();
        }
    }

    /// Advances the epoch where no reader holds it back, and frees what this CPU retired two epochs ago. Returns whether the
    /// epoch advanced.
    #[inline(never)]
    pub fn collect(&self) -> bool {
        let advanced = self.try_advance();
        let cpu = preempt_off();
        self.collect_slot(self.slots.mine(&cpu));
        advanced
    }

    /// As [`collect`](Self::collect), and frees what other CPUs retired two epochs ago: where memory is short.
    pub fn collect_everywhere(&self) -> bool {
        let advanced = self.try_advance();
        self.slots.iter().for_each(|slot| self.collect_slot(slot));
        advanced
    }

    fn collect_slot(&self, slot: &Slot) {
        let mut free = [ptr::null_mut(); 3];
        {
            let mut bags = slot.bags.lock();
            let e = self.global.load(Ordering::Acquire);
            for (i, list) in free.iter_mut().enumerate() {
                if bags.stamp[i] + if mutant(Mutant::FreedTooSoon) { 1 } else { 2 } <= e {
                    *list = core::mem::replace(&mut bags.head[i], ptr::null_mut());
                }
            }
        }
        for list in free {
            // SAFETY: retired at least two epochs ago.
            unsafe { free_list(list) };
        }
    }

    /// Advances as often as it takes for everything retired so far to be freed, on all CPUs; spins while readers are pinned.
    /// The caller must not be pinned.
    pub fn drain(&self) {
        let target = self.global.load(Ordering::Acquire) + 2;
        while self.global.load(Ordering::Acquire) < target {
            if !self.try_advance() {
                crate::hooks::relax();
            }
        }
        self.slots.iter().for_each(|slot| self.collect_slot(slot));
    }

    fn try_advance(&self) -> bool {
        let e = self.global.load(Ordering::Acquire);
        if !mutant(Mutant::AdvanceNoFence) {
            fence_full();
        }
        for slot in self.slots.iter() {
            let p = slot.pinned.load(Ordering::Acquire);
            if p & 1 == 1 && p >> 1 != e && !mutant(Mutant::AdvancePastReaders) {
                return false;
            }
        }
        if !mutant(Mutant::AdvanceNoFence) {
            fence_full();
        }
        self.global.compare_exchange(e, e + 1, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }
}

unsafe fn free_list(mut list: *mut Retired) {
    while !list.is_null() {
        record::read(list);
        // SAFETY: the list holds retired values, each with its next pointer and function set.
        unsafe {
            let next = (*list).next;
            if let Some(free) = (*list).free.take() {
                free(list);
            }
            list = next;
        }
    }
}

impl Drop for Pinned<'_> {
    #[inline]
    fn drop(&mut self) {
        let held = self.slot.depth.load(Ordering::Relaxed);
        let (owner, depth) = (held >> DEPTH_BITS, (held & DEPTH).wrapping_sub(1));
        assert_one_thread(owner == thread_tag() && depth <= DEPTH);
        self.slot.depth.store(if depth == 0 { 0 } else { owner << DEPTH_BITS | depth }, Ordering::Relaxed);
        if depth == 0 || mutant(Mutant::NestedPinEnds) {
            self.slot.pinned.store(0, Ordering::Release);
        }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use crate::hooks::threads::set_cpu;
    use std::sync::atomic::AtomicUsize as Count;

    fn domain(cpus: usize) -> Domain {
        Domain::new(PerCpu::leaked(cpus, |_| Slot::new()))
    }

    static FREED: Count = Count::new(0);
    #[repr(C)]
    struct Node {
        header: Retired,
        alive: u64,
    }
    unsafe fn free(n: *mut Retired) {
        // SAFETY: the header is the first field; the domain gives each node up once.
        let mut n = unsafe { Box::from_raw(n.cast::<Node>()) };
        n.alive = 0;
        FREED.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
    }

    #[test]
    #[cfg(any(debug_assertions, recording))]
    #[should_panic(expected = "two threads are CPU 1 at once")]
    fn two_threads_that_are_one_cpu_are_found() {
        let domain = domain(2);
        set_cpu(1);
        let _pin = domain.pin();
        std::thread::scope(|s| {
            let other = s.spawn(|| {
                set_cpu(1);
                drop(domain.pin());
            });
            other.join().unwrap_or_else(|why| std::panic::resume_unwind(why));
        });
    }

    #[repr(C)]
    struct Counted(Retired, *const Count);
    unsafe fn count(n: *mut Retired) {
        // SAFETY: as in `free`; the counter outlives the domain's test.
        unsafe { (*Box::from_raw(n.cast::<Counted>()).1).fetch_add(1, std::sync::atomic::Ordering::SeqCst) };
    }
    fn retire(domain: &Domain, freed: &Count, bytes: u64, times: u32) {
        for _ in 0..times {
            let node = Box::into_raw(Box::new(Counted(Retired::new(), freed)));
            // SAFETY: nobody else has it; retired once.
            unsafe { domain.retire_large(node.cast(), bytes, count) };
        }
    }

    #[test]
    fn the_epoch_advances_once_in_as_much_as_a_cpu_may_hold() {
        set_cpu(0);
        let freed = Count::new(0);
        // The share of memory, the fewest, the most; what one CPU has.
        for (cpus, bytes, every) in [(2, 200 * 512, 200), (2, 0, 32), (8, 0, 64), (2, 1 << 30, MOST), (1, 1 << 30, 16)]
        {
            let domain = domain(cpus).holding(bytes);
            let epoch = || domain.global.load(Ordering::Relaxed);
            for round in 0..4 {
                retire(&domain, &freed, STRUCTURE, every - 1);
                assert_eq!(epoch(), 2 + round);
                retire(&domain, &freed, 1, 1);
                assert_eq!(epoch(), 3 + round);
            }
            // Something large counts as more.
            let weight = (16 * every / MOST).max(1);
            retire(&domain, &freed, 16 * STRUCTURE, every.div_ceil(weight) - 1);
            assert_eq!(epoch(), 6);
            retire(&domain, &freed, 16 * STRUCTURE, 1);
            assert_eq!(epoch(), 7);
            domain.drain();
        }
    }

    #[test]
    fn a_stalled_epoch_is_tried_again_and_then_everything_is_freed() {
        set_cpu(1);
        let (domain, freed) = (domain(2).holding(64 * 512), Count::new(0));
        let reader = domain.pin();
        std::thread::scope(|s| {
            s.spawn(|| {
                set_cpu(0);
                // One advance leads past the reader's epoch, no further.
                retire(&domain, &freed, STRUCTURE, 64 * 8);
                assert_eq!(
                    (domain.global.load(Ordering::Relaxed), freed.load(std::sync::atomic::Ordering::SeqCst)),
                    (3, 0)
                );
            });
        });
        drop(reader);
        set_cpu(0);
        retire(&domain, &freed, STRUCTURE, 64);
        assert_eq!(domain.global.load(Ordering::Relaxed), 4);
        set_cpu(1);
        // Whoever is short of memory frees what another CPU has retired.
        while domain.collect_everywhere() && freed.load(std::sync::atomic::Ordering::SeqCst) < 64 * 9 {}
        assert_eq!(freed.load(std::sync::atomic::Ordering::SeqCst), 64 * 9);
    }

    #[test]
    fn readers_only_ever_see_live_nodes_and_everything_is_freed_in_the_end() {
        const ROUNDS: usize = 20_000;
        let domain = domain(3);
        let node = || Box::into_raw(Box::new(Node { header: Retired::new(), alive: 0xfeed }));
        let shared = crate::atomic::AtomicPtr::new(node());
        std::thread::scope(|s| {
            for cpu in 1..3 {
                let (domain, shared) = (&domain, &shared);
                s.spawn(move || {
                    set_cpu(cpu);
                    for _ in 0..ROUNDS {
                        let _pin = domain.pin();
                        let p = shared.load(Ordering::Acquire);
                        // SAFETY: reached while pinned.
                        assert_eq!(unsafe { (*p).alive }, 0xfeed);
                    }
                });
            }
            set_cpu(0);
            for _ in 0..ROUNDS {
                let old = shared.swap(node(), Ordering::AcqRel);
                // SAFETY: unreachable for new readers since the swap.
                unsafe { domain.retire(old.cast(), free) };
            }
        });
        domain.drain();
        assert_eq!(FREED.load(std::sync::atomic::Ordering::SeqCst), ROUNDS);
    }
}
