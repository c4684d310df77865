//! The table of process ids: one number space for threads, process groups and sessions. A lookup by number finds a
//! thread or a group. A session only holds its number.
//!
//! A number is in use as long as a thread, a group or a session with that number *holds* it. A lookup takes no lock of
//! the table. Each slot has a word for the thread and a word for the group that the number names. The lowest bit of
//! such a word is a lock, which a reader holds while it takes a reference.
//!
//! Numbers are allocated in rising order. Released numbers are queued, and are reused, oldest first, only when 4,096
//! others wait. So a stale number does not soon name another process. CPUs take and return numbers in small batches.
//! The table grows by pages with the numbers in use.
//!
//! Numbers above a *limit* are not allocated. Numbers in use remain in use, also above the limit. When a number above
//! the limit is released, it is set aside until the limit rises.

use crate::mutant::{Mutant, mutant};
use core::marker::PhantomData;
use core::ptr::NonNull;
use quire_sync::atomic::{AtomicPtr, AtomicU32, AtomicUsize, Ordering};
use quire_sync::hooks::{preempt_off, relax};
use quire_sync::{CachePadded, PerCpu, Rank, SpinLock, record};

/// How many returned numbers must wait before the oldest one is reused.
const DELAY: usize = 4096;
/// How many numbers a CPU takes from the depot (the numbers that all CPUs share), or returns to it, at once. The batch
/// is small, so that numbers rise roughly in the order of forks. It is large enough that CPUs that fork all the time
/// rarely contend for the depot.
const BATCH: usize = 32;
/// The size in bytes of a chunk, by which the table grows.
pub const CHUNK_BYTES: usize = 4096;
/// The size in bytes of the slot of a number.
pub const SLOT_BYTES: usize = size_of::<Slot>();
const PER_CHUNK: usize = CHUNK_BYTES / SLOT_BYTES;

/// Why a number could not be allocated.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum IdError {
    /// All numbers up to the limit are in use.
    Exhausted,
    /// The table had to grow, and there was no memory.
    OutOfMemory,
}

impl core::fmt::Display for IdError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(match self {
            IdError::Exhausted => "no free id",
            IdError::OutOfMemory => "no memory for the id table",
        })
    }
}
impl core::error::Error for IdError {}

/// The slot of one number: pointers to the thread and the group that it names; their lowest bit is a lock. Each slot
/// has its own cache line, because different CPUs may reuse neighbouring numbers.
#[repr(align(64))]
struct Slot {
    thread: AtomicUsize,
    group: AtomicUsize,
    /// How many holders the number has. At 0 the number is free.
    holds: AtomicU32,
    /// The next of the returned numbers; guarded by the depot's lock.
    next: AtomicU32,
}

const LOCKED: usize = 1;

/// One CPU's cache of numbers: numbers to allocate, and released numbers that are not yet returned to the depot.
struct Magazine {
    ready: [u32; BATCH],
    ready_len: usize,
    returned: [u32; BATCH],
    returned_len: usize,
}

/// The numbers that one CPU caches. An opaque type, stored in the memory of [`IdTable::new`].
pub struct CpuIds(SpinLock<Magazine>);

struct Depot {
    /// The number of chunks that were allocated.
    chunks: usize,
    /// Returned numbers that wait to be reused, oldest first.
    waiting: Queue,
    /// Returned numbers above the limit, which are not reused until the limit rises.
    aside: Queue,
}

/// A queue of numbers, which are linked by [`Slot::next`]. The number 0 means none.
#[derive(Default)]
struct Queue {
    first: u32,
    last: u32,
    len: usize,
}

/// The fields that CPUs share.
struct Shelf {
    depot: SpinLock<Depot>,
    /// The lowest number that was never allocated. Written under the lock of `depot`; `next_thread` reads it without
    /// the lock.
    fresh: AtomicU32,
}

/// The result of a request to refill a magazine.
#[derive(PartialEq, Eq)]
enum Refill {
    /// The magazine may have numbers now. If it has none, the caller requests a refill again.
    Done,
    /// The table must grow first.
    Grow,
}

/// The most numbers above the limit that are set aside under one acquisition of the depot's lock.
const ASIDE_BATCH: usize = 4 * BATCH;

/// The table of the numbers 1 to `max`, which name threads `T` and groups `G`. The caller allocates the threads and
/// groups; the table only points to them.
pub struct IdTable<T, G> {
    chunks: NonNull<AtomicPtr<Slot>>,
    max: u32,
    /// The highest number that may be allocated.
    limit: AtomicU32,
    cpus: PerCpu<CpuIds>,
    /// The shared fields, on separate cache lines, because every allocation reads the fields above.
    shelf: CachePadded<Shelf>,
    /// The table names `T` and `G`, and owns neither.
    _names: PhantomData<fn() -> (T, G)>,
}

// SAFETY: slots are atomics. The named threads and groups are shared with every reader, hence the bound `Sync`.
unsafe impl<T: Sync, G: Sync> Send for IdTable<T, G> {}
// SAFETY: a shared table gives references to the named `T` and `G`, which are `Sync`, and its slots are atomics.
unsafe impl<T: Sync, G: Sync> Sync for IdTable<T, G> {}

impl<T, G> IdTable<T, G> {
    const fn directory_bytes(max: u32) -> usize {
        ((max as usize / PER_CHUNK + 1) * size_of::<AtomicPtr<Slot>>()).next_multiple_of(128)
    }

    /// The size in bytes of the memory that [`new`](Self::new) needs.
    pub const fn bytes(max: u32, cpus: usize) -> usize {
        Self::directory_bytes(max) + PerCpu::<CpuIds>::bytes(cpus)
    }

    /// An empty table of the numbers 1 to `max`.
    ///
    /// # Safety
    /// `memory` points to [`bytes`](Self::bytes) writable bytes, aligned to 128, that nothing else uses while the table
    /// is used.
    pub unsafe fn new(memory: NonNull<u8>, max: u32, cpus: usize) -> Self {
        let chunks = memory.cast::<AtomicPtr<Slot>>();
        record::own(memory.as_ptr(), Self::directory_bytes(max), "id-directory");
        for i in 0..max as usize / PER_CHUNK + 1 {
            // SAFETY: the element is in the directory's part of the memory.
            unsafe { chunks.add(i).write(AtomicPtr::new(core::ptr::null_mut())) };
        }
        let empty = |_| {
            let m = Magazine { ready: [0; BATCH], ready_len: 0, returned: [0; BATCH], returned_len: 0 };
            CpuIds(SpinLock::new(Rank::IDS, m))
        };
        // SAFETY: the memory behind the directory has `PerCpu::bytes(cpus)` bytes. It is aligned, because the directory
        // is padded to a multiple of 128 bytes.
        let cpus = unsafe { PerCpu::new(memory.add(Self::directory_bytes(max)), cpus, empty) };
        let depot = Depot { chunks: 0, waiting: Queue::default(), aside: Queue::default() };
        let shelf = Shelf { depot: SpinLock::new(Rank::ID_DEPOT, depot), fresh: AtomicU32::new(1) };
        IdTable { chunks, max, limit: AtomicU32::new(max), cpus, shelf: CachePadded(shelf), _names: PhantomData }
    }

    /// The highest number that may be allocated.
    pub fn limit(&self) -> u32 {
        self.limit.load(Ordering::Relaxed)
    }

    /// The highest number for which the table has room.
    pub fn max(&self) -> u32 {
        self.max
    }

    /// Sets the highest number that may be allocated; a value above [`max`](Self::max) is lowered to it. A concurrent
    /// allocation may still use the old limit.
    pub fn set_limit(&self, limit: u32) {
        let mut depot = self.shelf.depot.lock();
        self.limit.store(limit.min(self.max), Ordering::Relaxed);
        // All numbers that were set aside wait again. `refill` sets numbers above the new limit aside again.
        let aside = core::mem::take(&mut depot.aside);
        self.append(&mut depot.waiting, aside);
    }

    fn slot(&self, id: u32) -> Option<&Slot> {
        if id == 0 || id > self.max {
            return None;
        }
        // SAFETY: `id` is at most `max`, so the index is in bounds of the directory.
        let chunk = unsafe { self.chunks.add(id as usize / PER_CHUNK).as_ref() }.load(Ordering::Acquire);
        // SAFETY: a chunk in the directory is initialised, and is never freed.
        NonNull::new(chunk).map(|c| unsafe { c.add(id as usize % PER_CHUNK).as_ref() })
    }

    /// Appends the numbers of `more` to `queue`. The caller holds the depot's lock.
    fn append(&self, queue: &mut Queue, more: Queue) {
        if more.len == 0 {
            return;
        }
        match self.slot(queue.last) {
            Some(last) => last.next.store(more.first, Ordering::Relaxed),
            None => queue.first = more.first,
        }
        queue.last = more.last;
        queue.len += more.len;
    }

    /// Removes and returns the oldest number of `queue`. The caller holds the depot's lock.
    fn take_first(&self, queue: &mut Queue) -> Option<u32> {
        queue.len = queue.len.checked_sub(1)?;
        let id = queue.first;
        queue.first = self.slot(id).map_or(0, |s| s.next.load(Ordering::Relaxed));
        if queue.len == 0 {
            queue.last = 0;
        }
        Some(id)
    }

    /// Allocates a number, which names nothing yet and has one holder. If the table must grow, `grow` returns
    /// [`CHUNK_BYTES`] bytes of memory, aligned to 64, or `None` if there is no memory. `grow` is called without a
    /// lock, and the table never frees its memory.
    pub fn allocate(&self, grow: &mut dyn FnMut() -> Option<NonNull<u8>>) -> Result<u32, IdError> {
        loop {
            let got = {
                let cpu = preempt_off();
                let mut mine = self.cpus.mine(&cpu).0.lock();
                let got = if mine.ready_len == 0 { self.refill(&mut mine)? } else { Refill::Done };
                if mine.ready_len > 0 {
                    let id = mine.ready[0];
                    mine.ready_len -= 1;
                    mine.ready.copy_within(1.., 0);
                    if id <= self.limit() {
                        if let Some(slot) = self.slot(id) {
                            slot.holds.store(1, Ordering::Release);
                        }
                        return Ok(id);
                    }
                    // The limit was lowered after the magazine was filled.
                    self.give_back(&mut mine, id);
                }
                got
            };
            if got == Refill::Done {
                continue;
            }
            let chunk = grow().ok_or(IdError::OutOfMemory)?.cast::<Slot>();
            record::own_array(chunk.as_ptr().cast(), CHUNK_BYTES, size_of::<Slot>(), "id-slot");
            for i in 0..PER_CHUNK {
                let slot = Slot {
                    thread: AtomicUsize::new(0),
                    group: AtomicUsize::new(0),
                    holds: AtomicU32::new(0),
                    next: AtomicU32::new(0),
                };
                // SAFETY: within the memory that `grow` returned.
                unsafe { chunk.add(i).write(slot) };
            }
            let mut depot = self.shelf.depot.lock();
            if depot.chunks <= self.max as usize / PER_CHUNK {
                // If two CPUs grow the table at the same time, the second chunk is for the next numbers.
                // SAFETY: in bounds of the directory, by the condition above.
                unsafe { self.chunks.add(depot.chunks).as_ref() }.store(chunk.as_ptr(), Ordering::Release);
                depot.chunks += 1;
            }
        }
    }

    /// Fills an empty magazine.
    fn refill(&self, mine: &mut Magazine) -> Result<Refill, IdError> {
        let mut depot = self.shelf.depot.lock();
        let limit = self.limit();
        let mut set_aside = 0;
        while mine.ready_len < BATCH {
            let fresh = self.shelf.fresh.load(Ordering::Relaxed);
            let exhausted = fresh > limit;
            let id = if depot.waiting.len > DELAY || (exhausted && depot.waiting.len > 0) {
                let Some(id) = self.take_first(&mut depot.waiting) else { break };
                if id > limit {
                    self.append(&mut depot.aside, Queue { first: id, last: id, len: 1 });
                    set_aside += 1;
                    if set_aside == ASIDE_BATCH {
                        break;
                    }
                    continue;
                }
                id
            } else if !exhausted && (fresh as usize) < depot.chunks * PER_CHUNK {
                // A batch ends at a multiple of the batch size, so that no batch crosses the end of a chunk.
                if mine.ready_len > 0 && (fresh as usize).is_multiple_of(BATCH) {
                    break;
                }
                self.shelf.fresh.store(fresh + 1, Ordering::Release);
                fresh
            } else if mine.ready_len > 0 {
                break;
            } else if exhausted {
                // As the last resort, reuse a number that this CPU has released and not yet returned to the depot.
                let returned = &mine.returned[..mine.returned_len];
                let at = returned.iter().rposition(|id| *id <= limit).ok_or(IdError::Exhausted)?;
                let id = mine.returned[at];
                mine.returned_len -= 1;
                mine.returned.copy_within(at + 1.., at);
                id
            } else {
                return Ok(Refill::Grow);
            };
            mine.ready[mine.ready_len] = id;
            mine.ready_len += 1;
        }
        Ok(Refill::Done)
    }

    /// Adds a holder of `id`, which has at least one holder already.
    pub fn hold(&self, id: u32) {
        if let Some(slot) = self.slot(id) {
            if mutant(Mutant::HoldNotAtomic) {
                slot.holds.store(slot.holds.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
                return;
            }
            slot.holds.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Removes a holder of `id`, and frees the number if it was the last one. Returns whether the number was freed.
    pub fn release(&self, id: u32) -> bool {
        let Some(slot) = self.slot(id) else { return false };
        if slot.holds.fetch_sub(1, Ordering::AcqRel) != 1 {
            return false;
        }
        let cpu = preempt_off();
        self.give_back(&mut self.cpus.mine(&cpu).0.lock(), id);
        true
    }

    /// Puts a free number in the CPU's magazine. If the magazine is full, returns its released numbers to the depot,
    /// which all CPUs share.
    fn give_back(&self, mine: &mut Magazine, id: u32) {
        mine.returned[mine.returned_len] = id;
        mine.returned_len += 1;
        if mine.returned_len == BATCH {
            let mut depot = self.shelf.depot.lock();
            for id in mine.returned {
                self.append(&mut depot.waiting, Queue { first: id, last: id, len: 1 });
            }
            mine.returned_len = 0;
        }
    }

    /// Makes `id` name a thread, or none. When the function returns, no lookup uses the old thread.
    pub fn set_thread(&self, id: u32, thread: Option<NonNull<T>>) {
        self.set(id, |s| &s.thread, thread);
    }
    /// Makes `id` name a process group, or none. When the function returns, no lookup uses the old group.
    pub fn set_group(&self, id: u32, group: Option<NonNull<G>>) {
        self.set(id, |s| &s.group, group);
    }

    /// Calls `f` with the thread that `id` names; `None` if it names no thread. The name does not change until `f`
    /// returns. `f` only takes a reference, and must not sleep.
    pub fn thread<R>(&self, id: u32, f: impl FnOnce(&T) -> R) -> Option<R> {
        self.with(id, |s| &s.thread, f)
    }
    /// Calls `f` with the process group that `id` names; see [`thread`](Self::thread).
    pub fn group<R>(&self, id: u32, f: impl FnOnce(&G) -> R) -> Option<R> {
        self.with(id, |s| &s.group, f)
    }

    /// The lowest number at or above `from` that names a thread. A listing of all threads calls it repeatedly. It takes
    /// no lock, so that it can be preempted during a long search.
    pub fn next_thread(&self, from: u32) -> Option<u32> {
        let end = self.shelf.fresh.load(Ordering::Acquire);
        (from.max(1)..end).find(|id| self.slot(*id).is_some_and(|s| s.thread.load(Ordering::Relaxed) & !LOCKED != 0))
    }

    fn set<N>(&self, id: u32, word: impl Fn(&Slot) -> &AtomicUsize, name: Option<NonNull<N>>) {
        let Some(slot) = self.slot(id) else { return };
        let _pinned = preempt_off();
        lock_word(word(slot));
        word(slot).store(name.map_or(0, |n| n.as_ptr() as usize), Ordering::Release);
    }

    fn with<N, R>(&self, id: u32, word: impl Fn(&Slot) -> &AtomicUsize, f: impl FnOnce(&N) -> R) -> Option<R> {
        let word = word(self.slot(id)?);
        if word.load(Ordering::Relaxed) == 0 {
            return None;
        }
        let _pinned = preempt_off();
        let value =
            if mutant(Mutant::LookupUnlocked) { word.load(Ordering::Acquire) & !LOCKED } else { lock_word(word) };
        // SAFETY: the word names the object, which its owner frees only after `set` has changed the word. `set` waits
        // for the lock bit.
        let found = NonNull::new(value as *mut N).map(|n| f(unsafe { n.as_ref() }));
        if !mutant(Mutant::LookupUnlocked) {
            word.store(value, Ordering::Release);
        }
        found
    }
}

/// Locks a name word, and returns its value without the lock bit. The caller has disabled preemption.
fn lock_word(word: &AtomicUsize) -> usize {
    loop {
        let value = word.load(Ordering::Relaxed) & !LOCKED;
        if word.compare_exchange(value, value | LOCKED, Ordering::Acquire, Ordering::Relaxed).is_ok() {
            return value;
        }
        relax();
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
#[allow(clippy::undocumented_unsafe_blocks)] // all memory is the test's own
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::alloc::{Layout, alloc_zeroed};
    use std::collections::{BTreeMap, HashSet};

    type Table = IdTable<u64, u64>;

    fn memory(bytes: usize) -> NonNull<u8> {
        NonNull::new(unsafe { alloc_zeroed(Layout::from_size_align(bytes, 128).unwrap()) }).unwrap()
    }
    fn table(max: u32, cpus: usize) -> Table {
        quire_sync::hooks::threads::set_cpu(0);
        unsafe { Table::new(memory(Table::bytes(max, cpus)), max, cpus) }
    }
    fn grow() -> Option<NonNull<u8>> {
        Some(memory(CHUNK_BYTES))
    }

    #[test]
    fn numbers_rise_from_one_and_are_not_used_again_soon() {
        let t = table(100_000, 1);
        let mut last = 0;
        for _ in 0..DELAY {
            let id = t.allocate(&mut grow).unwrap();
            assert_eq!(id, last + 1);
            last = id;
            assert!(t.release(id));
        }
        let again: Vec<u32> = (0..10 * DELAY)
            .map(|_| {
                let id = t.allocate(&mut grow).unwrap();
                t.release(id);
                id
            })
            .collect();
        for window in again.windows(DELAY - 4 * BATCH).step_by(997) {
            assert_eq!(window.iter().collect::<HashSet<_>>().len(), window.len(), "a number was reused too soon");
        }
        assert!(*again.iter().max().unwrap() < 2 * DELAY as u32 + 100, "the table grew although it had a free number");
    }

    #[test]
    fn all_numbers_can_be_used_and_then_it_is_an_error() {
        let t = table(300, 1);
        let all: HashSet<u32> = (0..300).map(|_| t.allocate(&mut grow).unwrap()).collect();
        assert_eq!(all.len(), 300);
        assert_eq!(t.allocate(&mut grow), Err(IdError::Exhausted));
        t.release(17);
        assert_eq!(t.allocate(&mut grow), Ok(17));
        assert_eq!(t.allocate(&mut grow), Err(IdError::Exhausted));
        (1..=300).for_each(|id| assert!(t.release(id)));
        assert_eq!((0..300).map(|_| t.allocate(&mut grow).unwrap()).collect::<HashSet<_>>().len(), 300);
    }

    #[test]
    fn numbers_are_used_again_at_both_ends_of_a_full_table() {
        for max in [1, BATCH as u32, PER_CHUNK as u32, 3 * DELAY as u32] {
            let t = table(max, 1);
            for id in 1..=max {
                assert_eq!(t.allocate(&mut grow), Ok(id));
            }
            for end in [1, max] {
                for _ in 0..3 * BATCH {
                    assert!(t.release(end));
                    assert_eq!(t.allocate(&mut grow), Ok(end), "the only free number of {max}");
                    assert_eq!(t.allocate(&mut grow), Err(IdError::Exhausted));
                }
            }
        }
    }

    #[test]
    fn numbers_begin_again_below_a_lowered_limit() {
        let t = table(1000, 1);
        let all: Vec<u32> = (0..600).map(|_| t.allocate(&mut grow).unwrap()).collect();
        t.set_limit(400);
        assert_eq!(t.allocate(&mut grow), Err(IdError::Exhausted), "all below the limit are in use");
        assert!(all.iter().all(|id| t.release(*id)));
        let again: HashSet<u32> = (0..400).map(|_| t.allocate(&mut grow).unwrap()).collect();
        assert!(again.iter().all(|id| *id <= 400) && again.len() == 400);
        assert_eq!(t.allocate(&mut grow), Err(IdError::Exhausted));
        t.set_limit(5000);
        assert_eq!(t.limit(), 1000);
        let rest: HashSet<u32> = (0..600).map(|_| t.allocate(&mut grow).unwrap()).collect();
        assert!(rest.iter().all(|id| *id > 400) && rest.len() == 600, "those that were set aside come back");
        assert_eq!(t.allocate(&mut grow), Err(IdError::Exhausted));
    }

    #[test]
    fn the_largest_table_has_all_numbers() {
        let max = (4 << 20) - 1;
        let t = table(max, 2);
        (1..=max).for_each(|id| assert_eq!(t.allocate(&mut grow), Ok(id)));
        assert_eq!(t.allocate(&mut grow), Err(IdError::Exhausted));
        let named = 7u64;
        t.set_thread(max, Some(NonNull::from(&named)));
        assert_eq!(t.next_thread(1), Some(max), "behind a gap of all others");
        assert_eq!(t.next_thread(max), Some(max));
        t.set_thread(max, None);
        assert_eq!(t.next_thread(1), None);
        assert!(t.release(max) && t.release(1));
        assert_eq!(t.allocate(&mut grow).map(|id| id == 1 || id == max), Ok(true));
    }

    #[test]
    fn no_memory_to_grow_is_an_error_and_changes_nothing() {
        let t = table(1000, 1);
        assert_eq!(t.allocate(&mut || None), Err(IdError::OutOfMemory));
        assert_eq!(t.allocate(&mut grow), Ok(1));
    }

    #[test]
    fn a_number_stays_in_use_while_anything_holds_it() {
        let t = table(1000, 1);
        let id = t.allocate(&mut grow).unwrap();
        let (process, group) = (11u64, 22u64);
        t.set_thread(id, Some(NonNull::from(&process)));
        t.hold(id);
        t.set_group(id, Some(NonNull::from(&group)));
        assert_eq!(t.thread(id, |p| *p), Some(11));
        t.set_thread(id, None);
        assert!(!t.release(id));
        assert_eq!((t.thread(id, |p| *p), t.group(id, |g| *g)), (None, Some(22)));
        t.set_group(id, None);
        assert!(t.release(id));
        assert_eq!(t.next_thread(0), None);
    }

    #[test]
    fn numbers_from_outside_that_name_nothing_are_none() {
        let t = table(1000, 1);
        for id in [0, 1, 500, 1000, 1001, u32::MAX] {
            assert_eq!(t.thread(id, |p| *p), None);
            t.hold(id);
            assert!(!t.release(id) || id <= 1000);
        }
    }

    #[test]
    fn concurrent_numbers_are_unique_and_freed_names_not_found() {
        let t = &table(2000, 4);
        let held: Vec<std::sync::atomic::AtomicBool> = (0..2001).map(|_| false.into()).collect();
        std::thread::scope(|s| {
            for cpu in 0..4 {
                let held = &held;
                s.spawn(move || {
                    quire_sync::hooks::threads::set_cpu(cpu);
                    let mut mine: Vec<(u32, Box<u64>)> = Vec::new();
                    for round in 0..20_000u64 {
                        if round % 2 == 0 || mine.len() > 100 {
                            if let Some((id, mut value)) =
                                (mine.len() > 50).then(|| mine.swap_remove(round as usize % 50))
                            {
                                t.set_thread(id, None);
                                *value = 0;
                                drop(value);
                                assert!(held[id as usize].swap(false, Ordering::SeqCst));
                                t.release(id);
                            }
                        } else {
                            let id = t.allocate(&mut grow).unwrap();
                            assert!(!held[id as usize].swap(true, Ordering::SeqCst), "{id} is held twice");
                            let value = Box::new(u64::from(id));
                            t.set_thread(id, Some(NonNull::from(&*value)));
                            mine.push((id, value));
                        }
                        let probe = (round * 7919 % 2000) as u32 + 1;
                        if let Some(seen) = t.thread(probe, |v| *v) {
                            assert_eq!(seen, u64::from(probe));
                        }
                    }
                    mine.iter().for_each(|(id, _)| t.set_thread(*id, None));
                });
            }
        });
    }

    #[derive(Clone, Copy, Debug)]
    enum Step {
        Allocate(bool),
        Hold(usize),
        Release(usize),
        Name(usize, bool),
        Limit(u32),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            5 => prop::bool::weighted(0.9).prop_map(Step::Allocate),
            1 => any::<usize>().prop_map(Step::Hold),
            5 => any::<usize>().prop_map(Step::Release),
            2 => (any::<usize>(), any::<bool>()).prop_map(|(n, named)| Step::Name(n, named)),
            1 => (1..400u32).prop_map(Step::Limit),
        ]
    }

    /// The expected state of a number in use.
    #[derive(Default)]
    struct Known {
        holds: u32,
        name: Option<Box<u64>>,
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 100, failure_persistence: None, ..ProptestConfig::default() })]
        #[test]
        fn numbers_in_use_are_those_that_a_map_has(
            max in 1..300u32,
            steps in prop::collection::vec(step(), 1..600),
        ) {
            let t = table(max, 1);
            let mut map: BTreeMap<u32, Known> = BTreeMap::new();
            let nth = |map: &BTreeMap<u32, Known>, n: usize| map.keys().nth(n % map.len().max(1)).copied();
            for step in steps {
                match step {
                    Step::Allocate(memory) => match t.allocate(&mut || if memory { grow() } else { None }) {
                        Ok(id) => {
                            prop_assert!((1..=t.limit()).contains(&id));
                            let known = Known { holds: 1, name: None };
                            prop_assert!(map.insert(id, known).is_none(), "{} is given out twice", id);
                        }
                        Err(IdError::Exhausted) => prop_assert_eq!(map.range(..=t.limit()).count(), t.limit() as usize),
                        Err(IdError::OutOfMemory) => {
                            prop_assert!(!memory && map.range(..=t.limit()).count() < t.limit() as usize);
                        }
                    },
                    Step::Hold(n) => {
                        let Some(id) = nth(&map, n) else { continue };
                        t.hold(id);
                        map.entry(id).or_default().holds += 1;
                    }
                    Step::Release(n) => {
                        let Some(id) = nth(&map, n) else { continue };
                        let known = map.entry(id).or_default();
                        known.holds -= 1;
                        let last = known.holds == 0;
                        if last {
                            t.set_thread(id, None);
                            map.remove(&id);
                        }
                        prop_assert_eq!(t.release(id), last);
                    }
                    Step::Name(n, named) => {
                        let Some(id) = nth(&map, n) else { continue };
                        let name = named.then(|| Box::new(u64::from(id)));
                        t.set_thread(id, name.as_deref().map(NonNull::from));
                        map.entry(id).or_default().name = name;
                    }
                    Step::Limit(limit) => {
                        t.set_limit(limit);
                        prop_assert_eq!(t.limit(), limit.min(max));
                    }
                }
            }
            for id in 0..=max + 1 {
                let name = map.get(&id).and_then(|k| k.name.as_deref().copied());
                prop_assert_eq!(t.thread(id, |name| *name), name);
                let next = map.range(id..).find(|(_, k)| k.name.is_some()).map(|(id, _)| *id);
                prop_assert_eq!(t.next_thread(id), next);
            }
        }
    }
}
