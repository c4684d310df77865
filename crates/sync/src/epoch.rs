//! Epoch-based reclamation: readers announce themselves per CPU, writers retire, memory is freed two epochs later.
//!
//! # The rule
//! The domain has a global epoch. A reader pins: it copies the global epoch to its CPU's slot and fences. The epoch may
//! advance from `e` to `e + 1` only when every slot is idle or at `e`. A value retired in epoch `e` was unlinked
//! before, so only readers pinned at `e` or `e - 1` can still hold it. When the global epoch reaches `e + 2`, none of
//! these readers is left. A halted CPU is not pinned, so it does not hold the epoch back. Retired values are linked
//! through an embedded header ([`Retired`]), so retiring allocates nothing and cannot fail.
//!
//! # How often the epoch advances
//! To find that all readers have passed, a CPU reads one cache line of each reading CPU. To announce the new epoch, it
//! writes another line. The retiring CPUs do this work in *steps*. A CPU makes a step each time it has retired
//! [`Domain::every`] structures in this epoch. A step reads at most `STRIDE` slots, and continues where the last step
//! of any CPU ended (`Domain::passed`). A slot that was seen idle or in this epoch, after the epoch began, is not
//! read again. So
//! - where all CPUs retire, a few of them read all slots once for all; the others find a new epoch;
//! - where few CPUs retire among many that read, a step still costs only the slots that it reads;
//! - a step that meets a pinned reader of the old epoch stops at that reader's slot, and the next step begins there.
//!
//! So the number of cache lines moved for each retired structure is bounded, whatever the number of CPUs. An idle slot
//! is not written, so reading it moves no line.
//!
//! # Waiting values
//! A CPU keeps the values that it retired, in one bag for each of three epochs. Where all CPUs retire, a bag grows to
//! this CPU's part of a share of memory ([`Domain::holding`]). Where a CPU retires alone, it makes all steps of an
//! advance, and its bag grows by that amount for each step. If a reader stalls (a virtual CPU that its host does not
//! run), retirements continue without an advance. Then writers are pushed back. A writer waits for the next advance if
//! its CPU has retired more than an advance needs, by `SLACK` times [`Domain::every`]. The writer waits before its
//! change begins, where it may still sleep ([`Domain::push_back`]).
//!
//! Values that no reader can hold any more are *ready*. A retirement frees ready values of twice its own weight, and a
//! step frees twice [`Domain::every`]. So the number of ready values falls, and no operation pays for a large
//! retirement of another one. An idle CPU frees all its ready values ([`Domain::collect_some`]). When memory is short,
//! all are freed ([`Domain::collect_everywhere`]).
//!
//! Pins nest on a CPU and keep the thread on that CPU. A pinned thread must not sleep (relies on C5).

use crate::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering, fence_full};
use crate::hooks::{PreemptOff, preempt_off, thread_tag};
use crate::mutant::{Mutant, mutant};
use crate::per_cpu::{CachePadded, PerCpu};
use crate::rank::Rank;
use crate::record;
use crate::spin::{SpinGuard, SpinLock};
use core::ptr;

/// The header of a value that is retired through a domain, embedded as its first field.
#[repr(C)]
pub struct Retired {
    next: *mut Retired,
    free: Option<unsafe fn(*mut Retired)>,
}

crate::assert_layout!(Retired { size: 16, align: 8, next: 0, free: 8 });

impl Retired {
    /// The header of a value that is not retired.
    pub const fn new() -> Self {
        Retired { next: ptr::null_mut(), free: None }
    }
}

impl Default for Retired {
    fn default() -> Self {
        Self::new()
    }
}

/// The same address, with the right to write there. The owner of a value may know it by a shared reference, which allows
/// reads alone. The value lies in memory whose provenance is exposed, for instance all RAM of a machine, or `value` has
/// the right itself.
fn given_up(value: *mut Retired) -> *mut Retired {
    ptr::with_exposed_provenance_mut(value.expose_provenance())
}

// SAFETY: only the domain accesses the header, once its owner has given the value up.
unsafe impl Send for Retired {}
// SAFETY: a shared header gives no access: its fields are private and only the domain uses them.
unsafe impl Sync for Retired {}

/// One CPU's part of a domain.
pub struct Slot {
    /// 0 if this CPU is idle (not pinned), else `(epoch << 1) | 1`.
    pinned: AtomicU64,
    /// Depth of nested pins. Only this CPU uses it, with preemption off. In builds that check that a CPU is one thread
    /// at a time, the thread's [`tag`](crate::hooks::thread_tag) is in the upper bits.
    depth: AtomicU32,
    /// Depth of nested [`free_list`] calls that this CPU executes, for values of any slot. Only this CPU writes it,
    /// with preemption off.
    freeing: AtomicU32,
    /// Structures that this CPU has retired since its first retirement in this epoch. Only this CPU writes it.
    count: AtomicU32,
    /// The value of `count` at which this CPU makes the next step (a part of the work of advancing the epoch). Only
    /// this CPU writes it.
    due: AtomicU32,
    /// Values that no reader can hold any more, which wait to be freed. Written under the lock of `bags`.
    ready: AtomicPtr<Retired>,
    bags: SpinLock<Bags>,
}

crate::assert_layout!(Slot { size: 128, align: 8 });

struct Bags {
    /// Lists of retired values, the newest first. Bag `i` has the values of epoch `stamp[i]`, where `i` is the epoch
    /// modulo 3. `tail[i]` (the last value) and `weight[i]` are valid only if the bag is not empty.
    head: [*mut Retired; 3],
    tail: [*mut Retired; 3],
    stamp: [u64; 3],
    weight: [u32; 3],
    /// An upper bound of the weight of the slot's `ready` values.
    ready_weight: u32,
}
// SAFETY: the lists are reached only under the slot's lock, and hold values that their owners gave up.
unsafe impl Send for Bags {}

impl Bags {
    const EMPTY: Bags =
        Bags { head: [ptr::null_mut(); 3], tail: [ptr::null_mut(); 3], stamp: [0; 3], weight: [0; 3], ready_weight: 0 };

    /// Moves the values that were retired two epochs before `e`, or earlier, to the ready values.
    fn ripen(&mut self, e: u64, ready: &AtomicPtr<Retired>) {
        let after = if mutant(Mutant::FreedTooSoon) { 1 } else { 2 };
        for i in 0..3 {
            let head = self.head[i];
            if !head.is_null() && self.stamp[i] + after <= e {
                self.head[i] = ptr::null_mut();
                record::wrote(self.tail[i]);
                // SAFETY: the bag's last value is retired and not freed, like the whole list.
                unsafe { (*self.tail[i]).next = ready.load(Ordering::Relaxed) };
                ready.store(head, Ordering::Relaxed);
                self.ready_weight = self.ready_weight.saturating_add(self.weight[i]);
            }
        }
    }

    /// Removes and returns ready values: all if they weigh at most `most`, otherwise the first `most` values.
    fn take_ready(&mut self, most: u32, ready: &AtomicPtr<Retired>) -> *mut Retired {
        let all = ready.load(Ordering::Relaxed);
        if all.is_null() {
            return all;
        }
        if self.ready_weight <= most {
            ready.store(ptr::null_mut(), Ordering::Relaxed);
            self.ready_weight = 0;
            return all;
        }
        // Each value weighs at least one, so `most` values weigh at least `most`.
        let mut last = all;
        for _ in 1..most {
            record::read(last);
            // SAFETY: the list has retired values that are not freed.
            match unsafe { (*last).next } {
                next if next.is_null() => break,
                next => last = next,
            }
        }
        record::wrote(last);
        // SAFETY: `last` is a value of the list, which is retired and not freed.
        let rest = unsafe { core::mem::replace(&mut (*last).next, ptr::null_mut()) };
        ready.store(rest, Ordering::Relaxed);
        self.ready_weight = if rest.is_null() { 0 } else { self.ready_weight - most };
        all
    }
}

impl Slot {
    /// An idle slot.
    pub fn new() -> Self {
        Slot {
            pinned: AtomicU64::new(0),
            depth: AtomicU32::new(0),
            freeing: AtomicU32::new(0),
            count: AtomicU32::new(0),
            due: AtomicU32::new(0),
            ready: AtomicPtr::new(ptr::null_mut()),
            bags: SpinLock::new(Rank::EPOCH, Bags::EMPTY),
        }
    }
}

impl Default for Slot {
    fn default() -> Self {
        Self::new()
    }
}

/// The fewest retired structures for which a CPU makes a step. With this number, few cache lines move for each
/// structure, and the values that wait use about a twentieth of a CPU's free frames. A machine with few CPUs has a
/// smaller number: its slots are soon read, and the freed memory is then still in the cache.
#[cfg(not(any(loom, shuttle)))]
const fn fewest(cpus: usize) -> u32 {
    if cpus >= 8 { 128 } else { 16 * cpus as u32 }
}
#[cfg(any(loom, shuttle))]
const fn fewest(_cpus: usize) -> u32 {
    1
}

/// The number of slots that a step reads. With more, a CPU that retires alone among many readers moves more lines for
/// each structure. With fewer, more memory waits until that CPU has read all slots.
const STRIDE: usize = if cfg!(any(loom, shuttle)) { 2 } else { 16 };

/// A CPU may retire this number of times [`Domain::every`] structures more than an advance needs, before it waits for
/// readers.
const SLACK: u32 = 4;

/// The upper limit of [`Domain::every`]. Several forks and exits together retire fewer structures. This number of
/// structures is a quarter of a MiB, which still fits into a CPU's second-level cache.
const MOST: u32 = 1024;

/// The average size of a structure in bytes. Entries and backings of maps, and nodes of trees, have 64 to 640 bytes.
const STRUCTURE: u64 = 256;

/// A reclamation domain.
pub struct Domain {
    global: CachePadded<AtomicU64>,
    /// `(epoch << SLOT_BITS) | n`: each of the first `n` slots was seen idle or in that epoch, by a CPU that had fenced
    /// since the epoch began.
    passed: CachePadded<AtomicU64>,
    slots: PerCpu<Slot>,
    /// The number of structures that a CPU retires in one epoch for each step that it makes (a part of the work of an
    /// advance). Fixed.
    every: u32,
    /// The number of structures that a CPU retires in one epoch before its writers must wait for readers. Fixed.
    most: u32,
}

/// The low bits of [`Domain::passed`], which hold the number of a slot.
const SLOT_BITS: u32 = 16;
const SLOTS: u64 = (1 << SLOT_BITS) - 1;

/// A pinned reader. No value that the reader can reach through the domain's shared structures is freed until this guard
/// is dropped.
pub struct Pinned<'a> {
    slot: &'a Slot,
    _cpu: PreemptOff,
}

/// The number of low bits of [`Slot::depth`] that hold the depth, if a thread's tag is in the bits above. Without tags
/// all bits hold the depth.
const DEPTH_BITS: u32 = 12;
const DEPTH: u32 = if crate::hooks::TAGS { (1 << DEPTH_BITS) - 1 } else { u32::MAX };

/// The calling thread's tag, shifted above the bits that count.
#[inline(always)]
fn owner() -> u32 {
    (thread_tag() as u32) << DEPTH_BITS
}

/// Asserts that only one thread is this CPU. Per-CPU state is changed without locks by the thread on that CPU, so a
/// second thread corrupts it. Mostly the corruption shows much later: the epoch stops, or a waiter is never woken.
#[inline(always)]
fn assert_one_thread(ok: bool) {
    if crate::hooks::TAGS && !crate::hooks::is_panicking() {
        assert!(ok, "two threads are CPU {} at once", crate::hooks::current_cpu());
    }
}

impl Domain {
    /// A domain over one [`Slot`] for each CPU.
    pub fn new(slots: PerCpu<Slot>) -> Self {
        debug_assert!((slots.len() as u64) < SLOTS);
        let (global, passed) = (CachePadded(AtomicU64::new(2)), CachePadded(AtomicU64::new(0)));
        Domain { global, passed, every: 0, most: 0, slots }.stepping(0)
    }

    /// Lets retired values of `bytes` bytes wait in each of two epochs, counted over all CPUs. If the fixed minimum is
    /// larger, the minimum holds. A single CPU keeps the minimum. It gains nothing by waiting, and frees memory that is
    /// still in its cache.
    pub fn holding(self, bytes: u64) -> Self {
        let cpus = self.slots.len();
        if cpus == 1 || cfg!(any(loom, shuttle)) {
            return self;
        }
        let share = u32::try_from(bytes / STRUCTURE / cpus as u64).unwrap_or(u32::MAX);
        self.stepping(share)
    }

    fn stepping(mut self, share: u32) -> Self {
        self.every = share.clamp(fewest(self.slots.len()), MOST);
        // A CPU that retires alone makes the steps for all slots.
        let steps = self.slots.len().div_ceil(STRIDE) as u32;
        self.most = if cfg!(any(loom, shuttle)) { u32::MAX } else { self.every * (steps + SLACK) };
        self
    }

    /// Sets the number of retired structures after which writers must wait for readers. Models use this, because their
    /// constants are small.
    #[cfg(all(test, any(loom, shuttle)))]
    pub(crate) fn pushing_back_after(mut self, most: u32) -> Self {
        self.most = most;
        self
    }

    /// Returns how many structures a value of `bytes` bytes counts as; at least 1. A CPU makes a step for each
    /// [`Domain::every`] structures. The scale is such that large values with the weight [`Domain::every`] have
    /// [`MOST`] times [`STRUCTURE`] bytes together.
    fn weight(&self, bytes: u64) -> u32 {
        let share = bytes.div_ceil(STRUCTURE).saturating_mul(self.every.into()) / u64::from(MOST);
        u32::try_from(share).unwrap_or(self.every).max(1)
    }

    /// The number of structures that a CPU retires before it makes a step (a part of the work of advancing the epoch).
    pub fn every(&self) -> u32 {
        self.every
    }

    /// Starts a read-side section on this CPU.
    #[inline]
    pub fn pin(&self) -> Pinned<'_> {
        let cpu = preempt_off();
        let slot = self.slots.mine(&cpu);
        let depth = slot.depth.load(Ordering::Relaxed);
        assert_one_thread(depth == 0 || depth & !DEPTH == owner());
        slot.depth.store(owner() | ((depth & DEPTH) + 1), Ordering::Relaxed);
        if depth == 0 {
            let e = self.global.load(Ordering::Relaxed);
            if mutant(Mutant::PinNoFence) {
                slot.pinned.store((e << 1) | 1, Ordering::Release);
            } else {
                // The swap is a store and a full fence in one: no later load is executed before the pin is visible.
                slot.pinned.swap((e << 1) | 1, Ordering::AcqRel);
                crate::atomic::fence_after_rmw();
            }
        }
        Pinned { slot, _cpu: cpu }
    }

    /// Retires `value`: some CPU calls `free` with it when no reader can hold it any more.
    ///
    /// # Safety
    /// `value` must be unreachable for new readers, be retired once, and stay untouched until `free`; `free` must not
    /// sleep.
    pub unsafe fn retire(&self, value: *mut Retired, free: unsafe fn(*mut Retired)) {
        // SAFETY: the caller vouches for the value as `retire_large` requires, and a structure has the smallest weight.
        unsafe { self.retire_large(value, STRUCTURE, free) }
    }

    /// Returns an empty [`Pile`], for values that are retired while the caller holds a lock.
    pub fn pile(&self) -> Pile<'_> {
        Pile { domain: self, first: ptr::null_mut(), last: ptr::null_mut(), len: 0 }
    }

    /// Retires a value of `bytes` bytes as [`retire`](Self::retire) does. A value that is larger than an average
    /// structure counts as several structures.
    ///
    /// # Safety
    /// As [`retire`](Self::retire).
    pub unsafe fn retire_large(&self, value: *mut Retired, bytes: u64, free: unsafe fn(*mut Retired)) {
        let value = given_up(value);
        // SAFETY: the caller gave the value up.
        unsafe { (*value).free = Some(free) };
        // SAFETY: by this function's contract, `value` is a list of one retired value.
        unsafe { self.retire_list(value, value, self.weight(bytes)) }
    }

    /// Retires the linked values from `first` to `last`, each as [`retire`](Self::retire) does. The caller has set the
    /// `free` of each value. The values count as `weight` structures together.
    ///
    /// # Safety
    /// Each value meets the requirements of [`retire`](Self::retire).
    unsafe fn retire_list(&self, first: *mut Retired, last: *mut Retired, weight: u32) {
        if !mutant(Mutant::AdvanceNoFence) {
            fence_full();
        }
        let steps = {
            let cpu = preempt_off();
            let slot = self.slots.mine(&cpu);
            let mut bags = slot.bags.lock();
            let e = self.global.load(Ordering::Acquire);
            let i = (e % 3) as usize;
            let (mut count, mut due) = (slot.count.load(Ordering::Relaxed), slot.due.load(Ordering::Relaxed));
            if bags.stamp[i] != e {
                // This CPU retires its first value in this epoch. Values left in the bag are at least three epochs old.
                bags.ripen(e, &slot.ready);
                bags.stamp[i] = e;
                (count, due) = (0, self.every);
            }
            record::wrote(last);
            // SAFETY: the caller gave the values up.
            unsafe { (*last).next = bags.head[i] };
            if bags.head[i].is_null() {
                bags.tail[i] = last;
            }
            bags.head[i] = first;
            count = count.saturating_add(weight);
            bags.weight[i] = count;
            let steps = if count < due { 0 } else { 1 + (count - due) / self.every };
            if steps != 0 {
                due = count.saturating_add(self.every);
            }
            slot.count.store(count, Ordering::Relaxed);
            slot.due.store(due, Ordering::Relaxed);
            // This retirement frees values that weigh more than the values that it retires, so the number of ready
            // values falls.
            let free = bags.take_ready(weight.saturating_mul(2), &slot.ready);
            // SAFETY: the values are those of an epoch that every reader has left, so no reader can reach them.
            unsafe { free_list(free, slot, bags) };
            steps
        };
        for _ in 0..steps {
            self.step();
        }
    }

    /// Reads up to [`STRIDE`] further slots. If no slot is left, advances the epoch and frees some of the values that
    /// this CPU retired two epochs ago. Returns whether the epoch advanced.
    #[inline(never)]
    pub(crate) fn step(&self) -> bool {
        let advanced = self.look(STRIDE);
        if advanced {
            self.collect_mine(self.every.saturating_mul(2));
        }
        advanced
    }

    /// Advances the epoch if no reader holds it back. Then frees all values that this CPU retired two epochs ago.
    /// Returns whether the epoch advanced.
    pub fn collect(&self) -> bool {
        let advanced = self.look(usize::MAX);
        self.collect_mine(u32::MAX);
        advanced
    }

    /// Advances the epoch as [`collect`](Self::collect) does. Then frees the values that any CPU retired two epochs
    /// ago. Callers use it when memory is short.
    pub fn collect_everywhere(&self) -> bool {
        let advanced = self.look(usize::MAX);
        self.slots.iter().for_each(|slot| self.collect_whole(slot));
        advanced
    }

    /// Frees some of this CPU's ready values. Returns whether any value was ready. An idle CPU calls this. If no value
    /// is ready, the call reads only one word of this CPU's slot.
    pub fn collect_some(&self) -> bool {
        let waits = !self.slots.of(crate::hooks::current_cpu()).ready.load(Ordering::Relaxed).is_null();
        if waits {
            self.collect_mine(self.every.saturating_mul(2));
        }
        waits
    }

    fn collect_mine(&self, most: u32) {
        let cpu = preempt_off();
        let mine = self.slots.mine(&cpu);
        self.collect_slot(mine, mine, most);
    }

    /// Frees all values of any CPU's `slot` that were retired two epochs ago.
    fn collect_whole(&self, slot: &Slot) {
        // Each call frees a part, so that interrupts can switch threads between the parts.
        let part = || {
            let cpu = preempt_off();
            self.collect_slot(slot, self.slots.mine(&cpu), self.every.saturating_mul(2))
        };
        while part() {}
    }

    /// Frees values of `slot` that were retired two epochs ago, up to a weight of about `most`. Returns whether it
    /// freed any value. The caller keeps preemption off; `mine` is its CPU's slot.
    fn collect_slot(&self, slot: &Slot, mine: &Slot, most: u32) -> bool {
        let mut bags = slot.bags.lock();
        let e = self.global.load(Ordering::Acquire);
        bags.ripen(e, &slot.ready);
        let free = bags.take_ready(most, &slot.ready);
        // SAFETY: the values were retired at least two epochs ago, so no reader can reach them.
        unsafe { free_list(free, mine, bags) };
        !free.is_null()
    }

    /// Waits until readers let the epoch advance, if this CPU has retired too many structures since the last advance. A
    /// writer calls this before its change, where it may still wait. The wait bounds the memory that retired values
    /// use. It ends because readers do not sleep before they unpin.
    ///
    /// # Requires
    /// The caller may sleep: it is not pinned and holds no spin lock.
    #[inline]
    pub fn push_back(&self) {
        if cfg!(debug_assertions) {
            crate::rank::assert_may_sleep();
            let cpu = preempt_off();
            debug_assert!(
                self.slots.mine(&cpu).depth.load(Ordering::Relaxed) & DEPTH == 0,
                "a reader would wait for itself"
            );
        }
        // The thread may move to another CPU before it reads the count. Then it reads the count of its earlier CPU.
        // That is good enough, because the check only has to bound the waiting values.
        if self.slots.of(crate::hooks::current_cpu()).count.load(Ordering::Relaxed) >= self.most {
            self.wait_for_readers();
        }
    }

    #[cold]
    fn wait_for_readers(&self) {
        if mutant(Mutant::NoPushBack) {
            return;
        }
        let full = || {
            let cpu = preempt_off();
            let slot = self.slots.mine(&cpu);
            let e = self.global.load(Ordering::Acquire);
            let bags = slot.bags.lock();
            bags.stamp[(e % 3) as usize] == e && slot.count.load(Ordering::Relaxed) >= self.most
        };
        while full() {
            if !self.look(usize::MAX) {
                crate::hooks::relax();
            }
        }
        self.collect_mine(self.every.saturating_mul(2));
    }

    /// Waits until all values that any CPU has retired so far are freed, also values that other threads are freeing.
    /// Advances the epoch as often as that takes, and spins while readers are pinned.
    ///
    /// # Requires
    /// The caller is not pinned, and is not called by the function that frees a value.
    pub fn drain(&self) {
        crate::rank::assert_may_await_cpus();
        let advances = if mutant(Mutant::DrainAdvancesNothing) { 0 } else { 2 };
        let target = self.global.load(Ordering::Acquire) + advances;
        while self.global.load(Ordering::Acquire) < target {
            if !self.look(usize::MAX) {
                crate::hooks::relax();
            }
        }
        for slot in self.slots.iter() {
            self.collect_whole(slot);
        }
        // Another CPU may have emptied a bag, and may still be freeing its values. That CPU raised `freeing` before it
        // released the lock of its bags, so the loop below sees the raised count.
        for slot in self.slots.iter() {
            while slot.freeing.load(Ordering::Acquire) != 0 && !mutant(Mutant::DrainTrustsEmptyBags) {
                crate::hooks::relax();
            }
        }
    }

    /// Reads up to `most` slots, beginning where the last call of any CPU ended. If no slot is left, advances the
    /// epoch. Returns whether this call advanced it.
    fn look(&self, most: usize) -> bool {
        let e = self.global.load(Ordering::Acquire);
        let before = self.passed.load(Ordering::Acquire);
        let from = match before >> SLOT_BITS {
            // Another CPU has advanced the epoch since this call read it.
            newer if newer > e => return false,
            older if older < e && !mutant(Mutant::PassedInAnyEpoch) => 0,
            _ => (before & SLOTS) as usize,
        };
        // This fence is after the read of the epoch and before the reads of the slots. A reader fences between its pin
        // and its loads. So if this CPU does not see the pin of a reader, that reader sees all unlinkings up to now.
        if !mutant(Mutant::AdvanceNoFence) {
            fence_full();
        }
        let end = from.saturating_add(most).min(self.slots.len());
        let stands = |n: &usize| {
            let p = self.slots.of(*n).pinned.load(Ordering::Acquire);
            p & 1 == 1 && p >> 1 != e && !mutant(Mutant::AdvancePastReaders)
        };
        let to = (from..end).find(stands).unwrap_or(end);
        let after = e << SLOT_BITS | to as u64;
        // If the exchange fails, another CPU has read these slots too. That CPU continues the steps, and this CPU
        // stops.
        if after != before && self.passed.compare_exchange(before, after, Ordering::AcqRel, Ordering::Acquire).is_err()
        {
            return false;
        }
        if to < self.slots.len() {
            return false;
        }
        if !mutant(Mutant::AdvanceNoFence) {
            fence_full();
        }
        self.global.compare_exchange(e, e + 1, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }
}

/// Values that a thread collects for retirement while it holds a lock. Dropping the pile retires them. The holder drops
/// the pile after it has released the lock, because a retirement may free any value, and freeing may need that lock. A
/// pile also makes the retirement of many values cheaper, because it acquires the domain's lock once.
pub struct Pile<'d> {
    domain: &'d Domain,
    first: *mut Retired,
    last: *mut Retired,
    len: u32,
}

impl Pile<'_> {
    /// Whether the pile has [`Domain::every`] structures or more. A holder that can drop the pile drops it now, because
    /// its values are retired, and later freed, only after the drop.
    pub fn is_full(&self) -> bool {
        self.len >= self.domain.every
    }

    /// Adds `value`. The drop of the pile retires `value` as [`Domain::retire`] does.
    ///
    /// # Safety
    /// As [`Domain::retire`].
    pub unsafe fn add(&mut self, value: *mut Retired, free: unsafe fn(*mut Retired)) {
        record::wrote(value);
        let value = given_up(value);
        // SAFETY: the caller gave the value up.
        unsafe { value.write(Retired { next: self.first, free: Some(free) }) };
        self.first = value;
        if self.last.is_null() {
            self.last = value;
        }
        self.len += 1;
    }
}

impl Drop for Pile<'_> {
    fn drop(&mut self) {
        if !self.first.is_null() {
            let weight = self.len.saturating_mul(self.domain.weight(STRUCTURE));
            // SAFETY: by `add`'s contract each value is given up, and no other code has this list.
            unsafe { self.domain.retire_list(self.first, self.last, weight) };
        }
    }
}

/// Releases the lock of `bags`, and then frees the values of `list`, which was taken out of these bags. The caller
/// keeps preemption off; `mine` is its CPU's slot. [`Domain::drain`] of another thread waits until the values are
/// freed.
///
/// # Safety
/// No reader can reach the values of the list, and each is freed once.
#[inline]
unsafe fn free_list(mut list: *mut Retired, mine: &Slot, bags: SpinGuard<'_, Bags>) {
    if list.is_null() {
        return;
    }
    let depth = mine.freeing.load(Ordering::Relaxed);
    mine.freeing.store(depth + 1, Ordering::Relaxed);
    drop(bags);
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
    mine.freeing.store(depth, Ordering::Release);
}

impl Drop for Pinned<'_> {
    #[inline]
    fn drop(&mut self) {
        let held = self.slot.depth.load(Ordering::Relaxed);
        let depth = (held & DEPTH).wrapping_sub(1);
        assert_one_thread(held & !DEPTH == owner() && depth < DEPTH);
        self.slot.depth.store(if depth == 0 { 0 } else { held & !DEPTH | depth }, Ordering::Relaxed);
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
    struct RetiredNode {
        header: Retired,
        alive: u64,
    }
    unsafe fn free(n: *mut Retired) {
        // SAFETY: the header is the first field; the domain gives each node up once.
        let mut n = unsafe { Box::from_raw(n.cast::<RetiredNode>()) };
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
        // SAFETY: the header is the first field of a `Counted`, whose box the domain gives up once.
        unsafe { (*Box::from_raw(n.cast::<Counted>()).1).fetch_add(1, std::sync::atomic::Ordering::SeqCst) };
    }
    fn retire(domain: &Domain, freed: &Count, bytes: u64, times: u32) {
        for _ in 0..times {
            let node = Box::into_raw(Box::new(Counted(Retired::new(), freed)));
            // SAFETY: no other thread has it; retired once.
            unsafe { domain.retire_large(node.cast(), bytes, count) };
        }
    }

    #[test]
    fn the_epoch_advances_once_in_as_much_as_a_cpu_may_hold() {
        set_cpu(0);
        let freed = Count::new(0);
        // The cases are: a share of memory, the minimum with 2 and with 8 CPUs, the maximum, and a single CPU.
        for (cpus, bytes, every) in [(2, 200 * 512, 200), (2, 0, 32), (8, 0, 128), (2, 1 << 30, MOST), (1, 1 << 30, 16)]
        {
            let domain = domain(cpus).holding(bytes);
            let epoch = || domain.global.load(Ordering::Relaxed);
            for round in 0..4 {
                retire(&domain, &freed, STRUCTURE, every - 1);
                assert_eq!(epoch(), 2 + round);
                retire(&domain, &freed, 1, 1);
                assert_eq!(epoch(), 3 + round);
            }
            // A large value counts as more.
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
                // The first advance succeeds, because the reader is pinned in the current epoch. The next advances
                // fail.
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
        // A CPU that is short of memory frees values that another CPU has retired.
        while domain.collect_everywhere() && freed.load(std::sync::atomic::Ordering::SeqCst) < 64 * 9 {}
        assert_eq!(freed.load(std::sync::atomic::Ordering::SeqCst), 64 * 9);
    }

    #[test]
    fn retirement_scans_slots_in_proportion_and_in_turn() {
        let cpus = 5 * STRIDE;
        let (domain, freed) = (domain(cpus), Count::new(0));
        let every = domain.every();
        let epoch = || domain.global.load(Ordering::Relaxed);
        let passed = || (domain.passed.load(Ordering::Relaxed) & SLOTS) as usize;
        // A CPU that retires alone makes all steps.
        set_cpu(0);
        for step in 1..5 {
            retire(&domain, &freed, STRUCTURE, every);
            assert_eq!((epoch(), passed()), (2, step * STRIDE));
        }
        retire(&domain, &freed, STRUCTURE, every);
        assert_eq!(epoch(), 3);
        // Several CPUs make one step each. A CPU that has retired less since the epoch advanced makes none, nor does a
        // CPU that begins now.
        for cpu in 0..5 {
            set_cpu(cpu);
            retire(&domain, &freed, STRUCTURE, every - 1);
            assert_eq!(epoch(), 3);
        }
        for cpu in 0..5 {
            set_cpu(cpu);
            assert_eq!(epoch(), 3);
            retire(&domain, &freed, STRUCTURE, 1);
        }
        assert_eq!(epoch(), 4);
        set_cpu(5);
        retire(&domain, &freed, STRUCTURE, every - 1);
        assert_eq!((epoch(), passed()), (4, cpus));
        // The slot of the pinned reader is read again, and no slot before it.
        let reader = domain.pin();
        set_cpu(0);
        assert!(domain.collect() && !domain.collect());
        assert_eq!((epoch(), passed()), (5, 5));
        retire(&domain, &freed, STRUCTURE, every);
        assert_eq!((epoch(), passed()), (5, 5));
        set_cpu(5);
        drop(reader);
        set_cpu(0);
        retire(&domain, &freed, STRUCTURE, every);
        assert_eq!((epoch(), passed()), (5, 5 + STRIDE));
        domain.drain();
    }

    #[test]
    fn a_cpu_that_retired_too_much_waits_for_readers() {
        let (domain, freed) = (domain(2), Count::new(0));
        let waits = || domain.slots.of(0).count.load(Ordering::Relaxed);
        set_cpu(0);
        // No reader is pinned, so no writer waits.
        domain.push_back();
        retire(&domain, &freed, STRUCTURE, domain.most);
        domain.push_back();
        set_cpu(1);
        let reader = domain.pin();
        let go = std::sync::Barrier::new(2);
        std::thread::scope(|s| {
            s.spawn(|| {
                set_cpu(0);
                domain.collect();
                retire(&domain, &freed, STRUCTURE, domain.most);
                assert_eq!(waits(), domain.most);
                go.wait();
                let before = domain.global.load(Ordering::Relaxed);
                domain.push_back();
                assert!(domain.global.load(Ordering::Relaxed) > before);
                retire(&domain, &freed, STRUCTURE, 1);
                assert_eq!(waits(), 1);
            });
            go.wait();
            drop(reader);
        });
        domain.drain();
    }

    /// One thread retires a thousand values in one epoch. Each later retirement frees a few of them.
    #[test]
    fn each_retirement_frees_a_few_of_many_values() {
        let (domain, freed) = (domain(1), Count::new(0));
        set_cpu(0);
        let now = || freed.load(std::sync::atomic::Ordering::SeqCst);
        let reader = domain.pin();
        retire(&domain, &freed, STRUCTURE, 1000);
        drop(reader);
        assert_eq!(now(), 0);
        let mut rounds = 0;
        while now() < 1000 {
            let before = now();
            domain.push_back();
            retire(&domain, &freed, STRUCTURE, 1);
            // The bound covers the steps of one iteration (twice `every` values each) and the retirement itself
            // (two values).
            assert!(now() - before <= 4 * domain.every as usize + 2, "{} at once", now() - before);
            rounds += 1;
            assert!(rounds <= 1000, "{} wait", 1000 - now());
        }
        domain.drain();
        assert_eq!(now(), 1000 + rounds);
    }

    #[test]
    fn an_idle_cpu_frees_what_waits_a_part_at_a_time() {
        let (domain, freed) = (domain(1), Count::new(0));
        set_cpu(0);
        assert!(!domain.collect_some());
        let reader = domain.pin();
        retire(&domain, &freed, STRUCTURE, 1000);
        drop(reader);
        while domain.look(usize::MAX) && domain.global.load(Ordering::Relaxed) < 6 {}
        retire(&domain, &freed, STRUCTURE, 1);
        let mut turns = 0;
        while domain.collect_some() {
            turns += 1;
        }
        assert_eq!(freed.load(std::sync::atomic::Ordering::SeqCst), 1000);
        assert!(turns >= 1000 / (2 * domain.every as usize), "{turns}");
        domain.drain();
    }

    #[test]
    fn readers_see_only_live_nodes_and_all_nodes_are_freed() {
        const ROUNDS: usize = 20_000;
        let domain = domain(3);
        let node = || Box::into_raw(Box::new(RetiredNode { header: Retired::new(), alive: 0xfeed }));
        let shared = crate::atomic::AtomicPtr::new(node());
        std::thread::scope(|s| {
            for cpu in 1..3 {
                let (domain, shared) = (&domain, &shared);
                s.spawn(move || {
                    set_cpu(cpu);
                    for _ in 0..ROUNDS {
                        let _pin = domain.pin();
                        let p = shared.load(Ordering::Acquire);
                        // SAFETY: the reader is pinned, so the domain frees no node that it reached.
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
