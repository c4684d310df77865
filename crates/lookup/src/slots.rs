//! A table of reference-counted values by number, in which lookups take no lock. Tables of descriptors use it.
//!
//! # Protocol
//! A thread that changes the table holds its lock. A lookup takes no lock and writes only the reference count of the
//! value. Pinned in an [epoch](quire_sync::epoch), it reads the slot and counts the value found there, unless the count
//! is already zero. A thread that removes a value gets the table's reference, and may drop it at any time. A weak
//! reference keeps the *memory* of the value until all lookups that may have read the slot before have unpinned.
//!
//! A count of zero means that the value was removed after the slot was read. Another value may have replaced it in the
//! same step, so the slot is read again. So a lookup of a number that always has a value always finds one.
//!
//! A table that only one thread uses (until [`Slots::share`]) pins no epoch, and frees the memory of removed values at
//! once. It needs little memory: the cache lines for its numbers, and a lock [beside](Apart) the other fields.
//!
//! # Reserved numbers
//! A caller that must not start an operation without a number [reserves](Slots::reserve) one first, and later fills it
//! or gives it back. Until then lookups find no value there, and no other value gets the number.
//!
//! # Cache lines
//! In a shared table, the fields that lookups read are on other cache lines than the lock and the fields that it
//! guards. Neighbouring numbers are on different lines, so that a change of one does not disturb lookups of the next.

mod changes;
#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;

use crate::apart::{Apart, Held};
use crate::mutant::{Mutant, mutant};
use changes::{BITS, Changes, Word};
use core::alloc::Layout;
use core::marker::PhantomData;
use core::mem::ManuallyDrop;
use core::ptr::{self, NonNull};
use core::slice;
pub use quire_heap::OutOfMemory;
use quire_heap::{Arc, Box, Vec, Weak};
use quire_sync::atomic::{AtomicPtr, Ordering};
use quire_sync::epoch::{Domain, Retired};
use quire_sync::rank::Rank;

/// The number of slots in a cache line.
const IN_LINE: usize = 8;
/// The number of lines over which neighbouring numbers are spread, if the table has that many. Shared tables have that
/// many.
const SPREAD: usize = 16;
#[repr(align(64))]
struct Line<T>([AtomicPtr<T>; IN_LINE]);

/// The address of the lines. The low bits, which are zero in the address of a line, have log2 of the number of lines.
/// So a lookup need not read a length before it reads a line.
type Tagged<T> = *mut Line<T>;
/// The mask of the low bits of a [`Tagged`] address.
const TAG: usize = align_of::<Line<()>>() - 1;

/// All slots. The number of lines is a power of two.
struct Lines<'a, T>(&'a [Line<T>]);

impl<'a, T> Lines<'a, T> {
    /// The lines at `tagged`; `None` if it is null.
    ///
    /// # Safety
    /// `tagged` is null, or belongs to an [`Array`] that is not freed during `'a`.
    #[inline]
    unsafe fn of(tagged: Tagged<T>) -> Option<Self> {
        let first = NonNull::new(tagged.map_addr(|at| at & !TAG))?;
        // SAFETY: by this function's contract an array begins there, with the number of lines in the tag.
        Some(Lines(unsafe { slice::from_raw_parts(first.as_ptr(), 1 << (tagged.addr() & TAG)) }))
    }

    fn len(&self) -> usize {
        self.0.len() * IN_LINE
    }

    /// The slot of number `n`. `None` if the table has no such slot.
    #[inline]
    fn at(&self, n: usize) -> Option<&'a AtomicPtr<T>> {
        // Numbers are in blocks. A block has `1 << spread` lines, over which neighbouring numbers are spread. This is a
        // power of two, so shifts replace divisions.
        let spread = self.0.len().trailing_zeros().min(SPREAD.trailing_zeros());
        let block = n >> spread >> IN_LINE.trailing_zeros();
        self.0.get((block << spread) + (n & ((1 << spread) - 1))).map(|line| &line.0[n >> spread & (IN_LINE - 1)])
    }
}

/// The memory of all slots. Replaced by a larger array when there are too few.
struct Array<T>(Tagged<T>, PhantomData<Line<T>>);

impl<T> Array<T> {
    /// Makes an array of `lines` empty lines; `lines` is a power of two.
    fn new(lines: usize) -> Result<Self, OutOfMemory> {
        debug_assert!(lines.is_power_of_two());
        let layout = Layout::array::<Line<T>>(lines).map_err(|_| OutOfMemory)?;
        let first = quire_heap::allocate(layout)?.cast::<Line<T>>();
        for n in 0..lines {
            // SAFETY: the line lies within the memory that was just allocated.
            unsafe { first.add(n).write(Line([const { ptr::null_mut() }; IN_LINE].map(AtomicPtr::new))) };
        }
        let order = lines.trailing_zeros() as usize;
        Ok(Array(first.as_ptr().map_addr(|at| at | order), PhantomData))
    }

    /// Gives up ownership of the array. [`from_tagged`](Self::from_tagged) takes it back.
    fn into_tagged(self) -> Tagged<T> {
        ManuallyDrop::new(self).0
    }

    /// # Safety
    /// `tagged` is null or came from [`into_tagged`](Self::into_tagged), and the caller owns the array.
    unsafe fn from_tagged(tagged: Tagged<T>) -> Option<Self> {
        (!tagged.is_null()).then_some(Array(tagged, PhantomData))
    }

    fn lines(&self) -> Lines<'_, T> {
        // SAFETY: the address is that of this array. It is not null, and the array is not freed while it is borrowed.
        unsafe { Lines::of(self.0) }.unwrap_or(Lines(&[]))
    }
}

impl<T> Drop for Array<T> {
    fn drop(&mut self) {
        let lines = self.lines().0;
        let layout = Layout::for_value(lines);
        #[cfg(any(loom, shuttle))]
        for n in 0..lines.len() {
            // SAFETY: the checkers' atomics must be dropped. Each line is dropped once, and not used again.
            unsafe { self.0.map_addr(|at| at & !TAG).add(n).drop_in_place() };
        }
        if let Some(memory) = NonNull::new(self.0.map_addr(|at| at & !TAG)) {
            // SAFETY: `new` allocated the memory with this layout, and no reference to a line is left.
            unsafe { quire_heap::deallocate(memory.cast(), layout) };
        }
    }
}

/// A table of values by number; see the module's comment. Each number with a value may also have a mark.
pub struct Slots<T> {
    /// Null until the first value. A thread that holds `changes` changes the pointer.
    array: AtomicPtr<Line<T>>,
    /// The lock, which moves to cache lines of its own ([`Apart`]) before several threads use the table.
    changes: Apart<Changes>,
    _values: PhantomData<Arc<T>>,
}

/// The reason why a value got no number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NoNumber {
    /// No number below the limit is free.
    Limit,
    /// There is no memory, as in [`OutOfMemory`].
    Memory,
    /// The number is reserved by another caller.
    Reserved,
}

impl From<OutOfMemory> for NoNumber {
    fn from(_: OutOfMemory) -> Self {
        NoNumber::Memory
    }
}

/// Keeps the memory of a removed value until no lookup can count the value any more.
#[repr(C)]
struct Gone<T> {
    /// Must be the first field, because the epoch's free function casts the header to this struct.
    retired: Retired,
    value: Weak<T>,
}

/// A replaced array. The caller passes it to [`Slots::outgrown`] after it has released the lock.
type Old<T> = Option<Array<T>>;

impl<T: Send + Sync + 'static> Slots<T> {
    /// An empty table, whose lock has `rank`.
    pub fn new(rank: Rank) -> Self {
        let changes = Apart::new(rank, Changes::Few(Word::default()));
        Slots { array: AtomicPtr::new(ptr::null_mut()), changes, _values: PhantomData }
    }

    /// Whether several threads use the table.
    #[inline]
    fn is_shared(&self) -> bool {
        self.changes.is_apart()
    }

    /// Prepares the table for several threads. Its only thread calls this before a second thread gets the table.
    pub fn share(&self) -> Result<(), OutOfMemory> {
        if self.is_shared() {
            return Ok(());
        }
        let mut changes = self.changes.lock();
        let old = self.reach(&mut changes, SPREAD * IN_LINE - 1)?;
        drop(changes);
        // The old array is dropped at once, because no other thread uses it yet.
        drop(old);
        self.changes.move_apart()
    }

    /// Looks up the value of number `n`. Returns `None` if it has none.
    ///
    /// # Safety
    /// Until the table is shared, no other thread changes it during the call.
    #[inline]
    pub unsafe fn get(&self, n: usize, epoch: &Domain) -> Option<Arc<T>> {
        if !self.is_shared() {
            // SAFETY: no thread changes the table during the call, so the array is not freed.
            let array = unsafe { Lines::of(self.array.load(Ordering::Relaxed)) }?;
            let value = array.at(n)?.load(Ordering::Relaxed);
            // SAFETY: by this function's contract, no thread changes the table during the call. So the slot's reference
            // keeps the value.
            return unsafe { counted(value) };
        }
        let _pin = epoch.pin();
        // SAFETY: a replaced array is freed only after all pinned lookups.
        let array = unsafe { Lines::of(self.array.load(Ordering::Acquire)) }?;
        let slot = array.at(n)?;
        let mut value = slot.load(Ordering::Acquire);
        loop {
            if value.is_null() {
                return None;
            }
            #[cfg(any(loom, shuttle))]
            checked::about_to_count(value, || _ = slot.load(Ordering::Relaxed));
            // SAFETY: the slot had the pointer of a counted value, whose memory is kept for all lookups that were
            // pinned then. `ManuallyDrop` never drops this weak handle, which has no count of its own.
            let found = ManuallyDrop::new(unsafe { Weak::from_raw(value) }).upgrade();
            if found.is_some() || mutant(Mutant::SlotReadOnce) {
                return found;
            }
            // A count of zero means that the value was removed after the slot had changed. This read-modify-write sees
            // that change, and returns the present value of the slot.
            value = slot.compare_exchange(value, value, Ordering::AcqRel, Ordering::Acquire).unwrap_or_else(|now| now);
        }
    }

    /// The value of number `n`, for a reader that is not one of the threads that use the table.
    pub fn peek(&self, n: usize) -> Option<Arc<T>> {
        let changes = self.changes.lock();
        let value = self.array(&changes)?.at(n)?.load(Ordering::Acquire);
        // SAFETY: the lock is held, and values are removed only under the lock.
        unsafe { counted(value) }
    }

    /// Whether number `n` is marked. `None` if it has no value.
    pub fn marked(&self, n: usize) -> Option<bool> {
        let changes = self.changes.lock();
        self.has_value(&changes, n).then(|| changes.is_marked(n))
    }

    /// Sets or removes the mark of number `n`. Returns `None` if it has no value.
    pub fn mark(&self, n: usize, mark: bool) -> Option<()> {
        let mut changes = self.changes.lock();
        self.has_value(&changes, n).then(|| changes.set_mark(n, mark))
    }

    /// Marks all numbers in `first..=last` that have a value.
    pub fn mark_range(&self, first: usize, last: usize) {
        let mut changes = self.changes.lock();
        let mut at = first;
        while let Some(n) = changes.next_used(at).filter(|&n| n <= last) {
            changes.set_mark(n, true);
            at = n + 1;
        }
    }

    /// Stores `value` under the lowest free number that is at least `from` and below `limit`. Returns the number.
    pub fn insert(
        &self,
        value: Arc<T>,
        mark: bool,
        from: usize,
        limit: usize,
        epoch: &Domain,
    ) -> Result<usize, NoNumber> {
        let mut changes = self.changes.lock();
        let n = changes.lowest_free(from);
        if n >= limit {
            drop(changes);
            return Err(NoNumber::Limit); // the value is dropped without the lock
        }
        let old = match self.reach(&mut changes, n) {
            Ok(old) => old,
            Err(e) => {
                drop(changes);
                return Err(e.into());
            }
        };
        let before = self.fill(&mut changes, n, value, mark);
        drop(changes);
        debug_assert!(before.is_none());
        self.outgrown(old, epoch);
        Ok(n)
    }

    /// Reserves the lowest free number that is at least `from` and below `limit`, and sets its mark to `mark`. The
    /// caller later [fills](Self::fill_reserved) it or [gives it back](Self::give_back).
    pub fn reserve(&self, mark: bool, from: usize, limit: usize, epoch: &Domain) -> Result<usize, NoNumber> {
        let mut changes = self.changes.lock();
        let n = changes.lowest_free(from);
        if n >= limit {
            return Err(NoNumber::Limit);
        }
        let old = self.reach(&mut changes, n)?;
        changes.take(n);
        changes.set_mark(n, mark);
        drop(changes);
        self.outgrown(old, epoch);
        Ok(n)
    }

    /// Stores `value` under the number `n`, which the caller has reserved.
    pub fn fill_reserved(&self, n: usize, value: Arc<T>) {
        // In a shared table another thread may replace the array, so the lock is needed. A table that only this thread
        // uses needs no lock.
        let changes = self.is_shared().then(|| self.changes.lock());
        // SAFETY: the array is replaced only under the lock, or by this thread.
        let array = unsafe { Lines::of(self.array.load(Ordering::Relaxed)) };
        let Some(slot) = array.and_then(|array| array.at(n)) else {
            debug_assert!(false, "the number was not reserved");
            return;
        };
        let before = slot.swap(Arc::into_raw(value).cast_mut(), Ordering::AcqRel);
        drop(changes);
        debug_assert!(before.is_null(), "the number was filled by another caller");
    }

    /// Frees the number `n`, which the caller has reserved and not filled.
    pub fn give_back(&self, n: usize) {
        let mut changes = self.changes.lock();
        debug_assert!(!self.has_value(&changes, n), "a filled number must be emptied before it is returned");
        changes.give(n);
    }

    /// Stores `value` under number `n`, and returns the old value. Returns an error if the number is reserved.
    pub fn replace(&self, value: Arc<T>, mark: bool, n: usize, epoch: &Domain) -> Result<Option<Arc<T>>, NoNumber> {
        let mut changes = self.changes.lock();
        if changes.is_used(n) && !self.has_value(&changes, n) {
            drop(changes);
            return Err(NoNumber::Reserved);
        }
        let old = match self.reach(&mut changes, n) {
            Ok(old) => old,
            Err(e) => {
                drop(changes);
                return Err(e.into());
            }
        };
        let before = self.fill(&mut changes, n, value, mark);
        drop(changes);
        self.outgrown(old, epoch);
        if let Some(before) = &before {
            self.gone(before, epoch);
        }
        Ok(before)
    }

    /// Removes the value of number `n`, and returns it.
    pub fn remove(&self, n: usize, epoch: &Domain) -> Option<Arc<T>> {
        let mut changes = self.changes.lock();
        let value = self.empty(&mut changes, n)?;
        drop(changes);
        self.gone(&value, epoch);
        Some(value)
    }

    /// Removes all values of `first..=last`, or only the marked ones, in batches. Passes each to `each` without the
    /// lock held.
    pub fn remove_range(&self, first: usize, last: usize, marked: bool, epoch: &Domain, mut each: impl FnMut(Arc<T>)) {
        const BATCH: usize = 16;
        let mut at = first;
        loop {
            let mut batch: [Option<Arc<T>>; BATCH] = [const { None }; BATCH];
            let mut taken = 0;
            {
                let mut changes = self.changes.lock();
                while taken < BATCH
                    && let Some(n) = changes.next_used(at).filter(|&n| n <= last)
                {
                    if !marked || changes.is_marked(n) {
                        batch[taken] = self.empty(&mut changes, n);
                        taken += 1;
                    }
                    at = n + 1;
                }
            }
            if taken == 0 {
                return;
            }
            for value in batch.into_iter().flatten() {
                self.gone(&value, epoch);
                each(value);
            }
        }
    }

    /// Makes a copy of the table, for one thread alone. Reserved numbers are free in the copy.
    pub fn fork(&self, rank: Rank) -> Result<Self, OutOfMemory> {
        let copy = Self::new(rank);
        // Memory is allocated before the lock is taken. If the table has grown since the memory was allocated, the loop
        // starts again.
        loop {
            let used = self.changes.lock().used();
            if used > 0 {
                copy.reach(&mut copy.changes.lock(), used - 1)?;
            }
            let changes = self.changes.lock();
            let (used, Some(array)) = (changes.used(), self.array(&changes)) else { return Ok(copy) };
            if used == 0 {
                return Ok(copy);
            }
            let mut copied = copy.changes.lock_nested();
            if copy.array(&copied).is_none_or(|a| a.len() < used) {
                continue;
            }
            let (mut at, mut lowest) = (0, changes.lowest());
            while let Some(n) = changes.next_used(at) {
                if let Some(slot) = array.at(n)
                    // SAFETY: the lock is held, and values are removed only under the lock.
                    && let Some(value) = unsafe { counted(slot.load(Ordering::Relaxed)) }
                {
                    let marked = changes.is_marked(n);
                    let before = copy.fill(&mut copied, n, value, marked);
                    debug_assert!(before.is_none());
                } else {
                    // A number that is reserved in this table is free in the copy.
                    lowest = lowest.min(n / BITS);
                }
                at = n + 1;
            }
            let words = copied.words().len();
            copied.set_lowest(lowest.min(words));
            drop(copied);
            drop(changes);
            return Ok(copy);
        }
    }

    /// Adds the values with their numbers, from `from` on, up to the capacity of `into`.
    pub fn list(&self, from: usize, into: &mut Vec<(usize, Arc<T>)>) {
        let changes = self.changes.lock();
        let Some(array) = self.array(&changes) else { return };
        let mut at = from;
        while into.len() < into.capacity()
            && let Some(n) = changes.next_used(at)
        {
            // SAFETY: the lock is held, and values are removed only under the lock.
            let value = array.at(n).and_then(|slot| unsafe { counted(slot.load(Ordering::Acquire)) });
            if let Some(value) = value {
                into.push_reserved((n, value));
            }
            at = n + 1;
        }
    }

    /// The number of slots.
    pub fn size(&self) -> usize {
        let changes = self.changes.lock();
        self.array(&changes).map_or(0, |array| array.len())
    }

    /// The layouts of the table's allocations: its lines, the states of many numbers, and the lock of a shared table. A
    /// layout of zero bytes is not an allocation.
    pub fn allocations(&self) -> [Layout; 4] {
        let changes = self.changes.lock();
        let none = Layout::new::<()>();
        let lines = self.array(&changes).map_or(none, |array| Layout::for_value(array.0));
        let [many, words] = changes.allocations();
        [lines, many, words, if self.is_shared() { Apart::<Changes>::FAR } else { none }]
    }

    /// All values. The caller has exclusive access to the table.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &T> {
        // SAFETY: no other thread has the table.
        let array = unsafe { Lines::of(self.array.load(Ordering::Relaxed)) };
        let slots = array.into_iter().flat_map(|array| array.0).flat_map(|line| &line.0);
        // SAFETY: the table's reference keeps the value while the table is borrowed.
        slots.filter_map(|slot| unsafe { slot.load(Ordering::Relaxed).as_ref() })
    }

    fn array<'a>(&self, _locked: &'a Held<'_, Changes>) -> Option<Lines<'a, T>> {
        // SAFETY: the lock is held, and the array is replaced only under the lock.
        unsafe { Lines::of(self.array.load(Ordering::Relaxed)) }
    }

    /// Whether number `n` has a value. A number that is only reserved has none.
    fn has_value(&self, changes: &Held<'_, Changes>, n: usize) -> bool {
        let slot = self.array(changes).and_then(|array| array.at(n));
        slot.is_some_and(|slot| !slot.load(Ordering::Relaxed).is_null())
    }

    /// Makes sure that number `n` has a slot. Returns the old array if it was replaced.
    fn reach(&self, changes: &mut Held<'_, Changes>, n: usize) -> Result<Old<T>, OutOfMemory> {
        let there = self.array(changes);
        if there.is_some_and(|a| n < a.len()) {
            return Ok(None);
        }
        let lines = (n / IN_LINE + 1).next_power_of_two();
        let words = (lines * IN_LINE).div_ceil(BITS);
        let many = changes.reserve(words)?;
        let new = Array::new(lines)?;
        if let Some(there) = self.array(changes) {
            let mut at = 0;
            while let Some(n) = changes.next_used(at) {
                if let (Some(from), Some(to)) = (there.at(n), new.lines().at(n)) {
                    to.store(from.load(Ordering::Relaxed), Ordering::Relaxed);
                }
                at = n + 1;
            }
        }
        changes.grow(many, words);
        let old = self.array.swap(new.into_tagged(), Ordering::AcqRel);
        // SAFETY: the pointer is null, or an earlier call of this function made it by `into_tagged`; it is replaced
        // once.
        Ok(unsafe { Array::from_tagged(old) })
    }

    /// Fills a slot that [`reach`](Self::reach) has made. Returns the table's reference to the old value.
    fn fill(&self, changes: &mut Held<'_, Changes>, n: usize, value: Arc<T>, mark: bool) -> Option<Arc<T>> {
        let slot = self.array(changes)?.at(n)?;
        let before = slot.swap(Arc::into_raw(value).cast_mut(), Ordering::AcqRel);
        changes.take(n);
        changes.set_mark(n, mark);
        // SAFETY: the pointer is null, or the table's reference, which was taken out of the slot.
        (!before.is_null()).then(|| unsafe { Arc::from_raw(before) })
    }

    fn empty(&self, changes: &mut Held<'_, Changes>, n: usize) -> Option<Arc<T>> {
        let slot = self.array(changes)?.at(n)?;
        if slot.load(Ordering::Relaxed).is_null() {
            return None;
        }
        let before = slot.swap(ptr::null_mut(), Ordering::AcqRel);
        changes.give(n);
        // SAFETY: this is the table's reference, which was taken out of the slot.
        Some(unsafe { Arc::from_raw(before) })
    }

    /// Keeps the memory of a removed value, for lookups that may still count it.
    fn gone(&self, value: &Arc<T>, epoch: &Domain) {
        if !self.is_shared() {
            return;
        }
        let kept = Arc::downgrade(value);
        let Ok(gone) = Box::try_new(Gone { retired: Retired::new(), value: kept.clone() }) else {
            epoch.drain();
            drop(kept);
            return;
        };
        drop(kept);
        let gone = Box::into_raw(gone);
        if mutant(Mutant::SlotValueFreed) {
            // SAFETY: the box was made above, and no other thread can reach it. This mutant does not wait for lookups.
            unsafe { free::<T>(gone.cast()) };
            return;
        }
        // SAFETY: the slot has another value, or none. The box is retired once, and `free` does not sleep.
        unsafe { epoch.retire(gone.cast(), free::<T>) };
    }

    /// Frees an array that was replaced. The caller holds no lock.
    fn outgrown(&self, old: Old<T>, epoch: &Domain) {
        if let Some(old) = old {
            if self.is_shared() {
                // The cost of the wait is amortised, because each new array is twice as large. This function frees the
                // array itself, because freeing a large array may sleep, and functions that the epoch calls must not
                // sleep.
                epoch.drain();
            }
            drop(old);
        }
    }
}

/// Returns one more reference to a value. Another reference keeps the value during the call.
///
/// # Safety
/// `value` is null, or the pointer of a counted value. One of its references lasts for the length of the call.
unsafe fn counted<T>(value: *const T) -> Option<Arc<T>> {
    if value.is_null() {
        return None;
    }
    // SAFETY: the pointer belongs to a counted value, one of whose references lasts for the length of the call.
    unsafe {
        Arc::increment_strong_count(value);
        Some(Arc::from_raw(value))
    }
}

/// # Safety
/// `gone` is a [`Gone<T>`] that the epoch passes to this function, once.
unsafe fn free<T>(gone: *mut Retired) {
    let gone = gone.cast::<Gone<T>>();
    // SAFETY: by this function's contract, the epoch passes a `Gone<T>`. The header is its first field.
    unsafe {
        let Gone { value, .. } = Box::from_raw(gone).into_inner();
        #[cfg(any(loom, shuttle))]
        checked::memory_goes(&value);
        drop(value);
    }
}

impl<T> Drop for Slots<T> {
    fn drop(&mut self) {
        // SAFETY: the pointer is null, or was made by `into_tagged`. No other thread has the table any more.
        let Some(array) = (unsafe { Array::from_tagged(self.array.load(Ordering::Relaxed)) }) else { return };
        for slot in array.lines().0.iter().flat_map(|line| &line.0) {
            let value = slot.load(Ordering::Relaxed);
            if !value.is_null() {
                // SAFETY: this is the table's reference, which is dropped with the table.
                drop(unsafe { Arc::from_raw(value) });
            }
        }
    }
}

/// A check for the model checkers: the memory of a value is not freed while a lookup is about to count the value. In
/// these builds the memory is kept for ever, and its address is recorded as freed.
#[cfg(any(loom, shuttle))]
pub(crate) mod checked {
    use super::*;
    use std::sync::Mutex;
    use std::vec::Vec;

    static WENT: Mutex<Vec<usize>> = Mutex::new(Vec::new());

    /// Checks the memory of `value`. `step` is a step of the model between the read and the count.
    pub(crate) fn about_to_count<T>(value: *mut T, step: impl FnOnce()) {
        step();
        let went = WENT.lock().unwrap().contains(&value.addr());
        assert!(!went, "the memory of a value is freed during a lookup");
    }

    pub(crate) fn memory_goes<T>(value: &Weak<T>) {
        core::mem::forget(value.clone());
        WENT.lock().unwrap().push(value.as_ptr().addr());
    }
}
