//! Input and output in progress: records, requests and completions.
//!
//! A *record* describes one read or write of up to [`CLUSTER`] pages. All records are allocated at boot, so that paging
//! out never waits for memory. A thread first takes a record, and then sets pages busy. So it holds no page while it
//! waits for a record.
//!
//! # The life of a record
//! A record goes through these states:
//! - *free*;
//! - *taken* by a thread (`Taken`), which fills it;
//! - *started*: the pager has it, as a [`Request`];
//! - *completed*: it is on a stack. One compare-and-swap pushes it without a lock, so an interrupt may do this;
//! - *finished* by the completion daemon or by a waiting thread, and free again.
//!
//! Exactly one owner has a record at any time: the thread that took it, then the pager, then the stack, then the thread
//! that popped it.
//!
//! # Work in an interrupt
//! An interrupt only calls [`Request::complete`]: a push, and a wake-up of the completion daemon's thread. Pages,
//! indexes, queues and swap slots change only when the record is finished.

use crate::error::PagerError;
use crate::machine::{FrameBytes, Machine};
use crate::phys::Physical;
use crate::phys::boot::BootMemory;
use crate::tlb::flush::FlushedEverywhere;
use crate::types::{PAGE_SIZE, Pfn};
use core::cell::UnsafeCell;
use core::num::NonZeroUsize;
use core::ptr::{self, NonNull};
use quire_sync::atomic::{AtomicBool, AtomicPtr, AtomicU8, AtomicU64, AtomicUsize, Ordering, fence_full};
use quire_sync::hooks::{ThreadHandle, unpark};
use quire_sync::{Rank, SpinLock, WaitQueue};

/// The most pages of one read or write: 64 KiB. Larger transfers hardly help a disk, and a fault-around maps the same
/// number of pages.
#[cfg(not(any(loom, shuttle)))]
pub const CLUSTER: usize = 16;
/// The most pages of one read or write. The number is small, so that the model checkers reach the ends of clusters.
#[cfg(any(loom, shuttle))]
pub const CLUSTER: usize = 2;

/// The number of records of a system. It is large enough that a disk's queue stays full while other records are
/// finished.
#[cfg(not(any(loom, shuttle)))]
pub(crate) const RECORDS: usize = 64;
#[cfg(any(loom, shuttle))]
pub(crate) const RECORDS: usize = 2;

/// The part of a system's records that one pager may hold: as many as are free then (the dynamic threshold of Choudhury
/// and Hahne, 1998). One pager gets half of all records, and N pagers that never complete their requests get N/(N+1) of
/// them. So a pager that keeps its requests for ever leaves records for all others.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Share(Option<NonZeroUsize>);

impl Share {
    /// Swap has no limit, because the system chose its store.
    pub(crate) const SWAP: Share = Share(None);

    /// The share of the pagers that have this number ([`Pager::share`](crate::paging::pager::Pager::share)).
    pub(crate) fn of(number: usize) -> Share {
        Share(NonZeroUsize::new(number))
    }
}

/// The most pollers of a system.
const POLLED: usize = 8;

/// The direction of a transfer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Direction {
    /// From the pager into memory.
    Read,
    /// From memory to the pager.
    Write,
}

/// The states of a record's [`waiter`](Record::waiter): no thread waits for the result.
const UNAWAITED: u8 = 0;
/// A thread waits for the result of the request.
const AWAITED: u8 = 1;
/// The request is finished, and the waiting thread owns the record.
const FINISHED: u8 = 2;
/// The waiting thread has unwound. Without a completion daemon, the threads that wait for the request's pages finish it.
const ABANDONED: u8 = 3;

/// The result of a started request, for the one thread that waits for it. The result is in the record, and not on the
/// thread's stack: a pager that panics may end the wait while the request goes on. Dropping the value ends the wait.
pub(crate) struct Awaited<'v> {
    io: &'v Io,
    record: NonNull<Record>,
}

impl Awaited<'_> {
    /// The result, or `None` while the request is in progress. It does not change after it is set.
    pub fn get(&self) -> Option<Result<(), PagerError>> {
        // SAFETY: records live as long as the system.
        let record = unsafe { self.record.as_ref() };
        let is_over = record.waiter.load(Ordering::Acquire) == FINISHED;
        is_over.then(|| PagerError::from_code(record.result.load(Ordering::Relaxed)))
    }
}

impl Drop for Awaited<'_> {
    fn drop(&mut self) {
        // SAFETY: records live as long as the system.
        let waiter = &unsafe { self.record.as_ref() }.waiter;
        // Mostly the request is finished.
        if waiter.load(Ordering::Acquire) == AWAITED {
            self.io.abandoned.fetch_add(1, Ordering::AcqRel);
            if waiter.compare_exchange(AWAITED, ABANDONED, Ordering::AcqRel, Ordering::Acquire).is_ok() {
                // Its finisher frees the record.
                return;
            }
            self.io.abandoned.fetch_sub(1, Ordering::AcqRel);
        }
        self.io.give(self.record);
    }
}

/// The content of a record. Only the record's owner accesses it.
pub(crate) struct Body {
    pub direction: Direction,
    /// The pager's number of the first page: a page of a file, or a slot of a swap store.
    pub first: u64,
    /// Whether `first` is a swap slot.
    pub swap: bool,
    /// The key of each page in its object. Only reads use it.
    pub keys: [u64; CLUSTER],
    frames: [(Pfn, *mut u8); CLUSTER],
    pub len: usize,
    /// The object, with a reference that finishing drops. Null if no reference is held.
    pub object: *const (),
}

impl Body {
    const fn new() -> Body {
        Body {
            direction: Direction::Read,
            first: 0,
            swap: false,
            keys: [0; CLUSTER],
            frames: [(Pfn(0), ptr::null_mut()); CLUSTER],
            len: 0,
            object: ptr::null(),
        }
    }

    /// Adds a page to the transfer.
    pub fn push<M: Machine>(&mut self, vm: &Physical<M>, key: u64, pfn: Pfn) {
        self.keys[self.len] = key;
        self.frames[self.len] = (pfn, vm.machine().frame_ptr(pfn));
        self.len += 1;
    }
    /// The frame of page `i`.
    pub fn pfn(&self, i: usize) -> Pfn {
        self.frames[i].0
    }
}

/// One read or write; see the module's comment.
pub(crate) struct Record {
    /// The next record in the list of the owner: the free records, those of a pager, or the completed records.
    pub(super) next: AtomicPtr<Record>,
    io: AtomicPtr<Io>,
    /// The result of the request, which its completion sets ([`PagerError::to_code`]).
    pub(super) result: AtomicU8,
    /// Whether a thread waits for the result, and the result for it. The finisher and the waiting thread each change it
    /// once, by compare-and-swap. The later of the two frees the record.
    waiter: AtomicU8,
    /// The place of the share that the record is counted in, plus one; 0 for swap. Set by the record's taker.
    share: AtomicU8,
    pub(super) body: UnsafeCell<Body>,
}

/// A record that is taken and not started. Dropping the value frees the record.
pub(crate) struct Taken<'v> {
    io: &'v Io,
    record: NonNull<Record>,
}

impl Taken<'_> {
    /// The record's content.
    pub fn body(&mut self) -> &mut Body {
        // SAFETY: the record was taken off the free list, so only this value leads to its body.
        unsafe { &mut *self.record.as_ref().body.get() }
    }

    /// Starts the record as a write. Relies on C4: the argument proves the flush after which no CPU stores into the
    /// pages.
    pub fn start_writing(mut self, flushed: &FlushedEverywhere) -> Request {
        let object = self.body().object;
        // A write to swap needs no reference to its object.
        debug_assert!(object.is_null() || object.addr() as u64 == flushed.object(), "another object was flushed");
        self.start()
    }

    /// Starts the record as a request for a pager, whose result the caller waits for.
    pub fn start_awaited(self) -> (Request, Awaited<'static>)
    where
        Self: 'static,
    {
        let (io, record) = (self.io, self.record);
        // SAFETY: records live as long as the system, and this value owns the record.
        unsafe { record.as_ref() }.waiter.store(AWAITED, Ordering::Relaxed);
        (self.start(), Awaited { io, record })
    }

    /// Starts the record as a request for a pager.
    pub fn start(self) -> Request {
        let record = self.record;
        self.io.in_flight.fetch_add(1, Ordering::AcqRel);
        self.io.writing.fetch_add(written(self.record), Ordering::Relaxed);
        if self.io.has_polled() {
            self.io.wake_completer();
        }
        core::mem::forget(self);
        Request(record)
    }
}

/// The number of pages that the caller's record writes; 0 for a read.
pub(super) fn written(record: NonNull<Record>) -> u64 {
    // SAFETY: the caller holds the record, so no other thread changes its body.
    let body = unsafe { &*record.as_ref().body.get() };
    if body.direction == Direction::Write { body.len as u64 } else { 0 }
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        self.io.give(self.record);
    }
}

/// A read or write for a pager: the pages `first()..first() + len()`, to or from the same number of frames. The pager
/// keeps the request until the transfer is done, and then calls [`Request::complete`] once. Dropping the request
/// completes it as failed.
///
/// # Time limits
/// The core sets none, because a device may still write into the frames. Only the pager knows when it does not: it
/// completes the request with [`PagerError::TimedOut`]. Until then the pages of a read stay busy, and a page of a write
/// is not written again. A waiting thread that is ending ([`Machine::is_ending`]) gives up its wait alone. A request that
/// is leaked keeps its frames, its record and its object for ever. The pager's share of records bounds their number.
///
/// The pager may read the frames of a write at any time until it completes the request. If programs store into the
/// frames before that, the pages are written again later.
pub struct Request(NonNull<Record>);

// SAFETY: only the request leads to its record, and records live as long as the system.
unsafe impl Send for Request {}
// SAFETY: shared references only read fields that do not change while the request is held.
unsafe impl Sync for Request {}

impl Request {
    fn record(&self) -> &Record {
        // SAFETY: records live as long as the system.
        unsafe { self.0.as_ref() }
    }
    fn body(&self) -> &Body {
        // SAFETY: the body of a record does not change between `start` and the end of its request.
        unsafe { &*self.record().body.get() }
    }

    /// The direction of the transfer.
    pub fn direction(&self) -> Direction {
        self.body().direction
    }
    /// The number of the first page: a page of the file, or a slot of the swap store.
    pub fn first(&self) -> u64 {
        self.body().first
    }
    /// The number of pages: at least one, at most [`CLUSTER`].
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        self.body().len
    }
    /// The frame of page `first() + i`, for devices.
    ///
    /// # Panics
    /// Panics if `i` is not below [`len`](Self::len).
    pub fn pfn(&self, i: usize) -> Pfn {
        self.body().frames[i].0
    }
    /// The bytes of page `first() + i`. They are valid for reads of a page's length, and for writes if the request is a
    /// read.
    pub fn frame(&self, i: usize) -> *mut u8 {
        self.body().frames[i].1
    }

    /// The bytes of page `first() + i` to fill, if the request is a read. `None` if it is a write, or has no such page.
    /// They hold zeroes at first, if the pager does not [fill whole pages](crate::paging::pager::Pager::fills_whole).
    /// Otherwise they hold bytes of the frame's last use, and the pager must overwrite all of them.
    pub fn page_mut(&mut self, i: usize) -> Option<&mut [u8; PAGE_SIZE as usize]> {
        if self.direction() != Direction::Read || i >= self.len() {
            return None;
        }
        // SAFETY: the frames of a read belong to its request alone and are a page long. No PTE maps them, and no other
        // thread uses their content, until the request is complete. `self` is borrowed as long as the bytes.
        Some(unsafe { &mut *self.frame(i).cast() })
    }

    /// The part of the transfer from `offset` on that lies in one page: the page, the place in it, and the length.
    fn part(&self, offset: usize, len: usize) -> Option<(usize, usize, usize)> {
        let (i, at) = (offset / PAGE_SIZE as usize, offset % PAGE_SIZE as usize);
        (i < self.len() && len != 0).then_some((i, at, len.min(PAGE_SIZE as usize - at)))
    }

    /// Copies bytes into the pages of a read, from byte `offset` of the first page on. Returns the number of copied
    /// bytes. It is lower than `from` if the pages end, and 0 for a write.
    pub fn copy_in(&mut self, mut offset: usize, from: &[u8]) -> usize {
        let mut done = 0;
        while let Some((i, at, len)) = self.part(offset, from.len() - done)
            && let Some(page) = self.page_mut(i)
        {
            page[at..at + len].copy_from_slice(&from[done..done + len]);
            (done, offset) = (done + len, offset + len);
        }
        done
    }

    /// Copies bytes of the pages out, from byte `offset` of the first page on. Returns the number of copied bytes, which
    /// is lower than `to` if the pages end. Programs may store into the pages of a write meanwhile. Then the bytes may be
    /// of different times, and the pages are written again later.
    pub fn copy_out(&self, mut offset: usize, to: &mut [u8]) -> usize {
        let mut done = 0;
        while let Some((i, at, len)) = self.part(offset, to.len() - done)
            && let Some(page) = self.page(i)
        {
            page.copy_to_from(at, &mut to[done..done + len]);
            (done, offset) = (done + len, offset + len);
        }
        done
    }

    /// The bytes of page `first() + i`, to copy them. Programs may store into the page of a write meanwhile. `None` if
    /// the request has no such page.
    pub fn page(&self, i: usize) -> Option<FrameBytes<'_>> {
        if i >= self.len() {
            return None;
        }
        // SAFETY: the frames are a page long, and the request holds them as long as it is borrowed.
        Some(unsafe { FrameBytes::new(self.frame(i), PAGE_SIZE as usize) })
    }

    /// Completes the request. Acquires no lock, so an interrupt may call it. It consumes the request.
    pub fn complete(self, result: Result<(), PagerError>) {
        self.push(result);
        core::mem::forget(self);
    }

    fn push(&self, result: Result<(), PagerError>) {
        let record = self.record();
        record.result.store(PagerError::to_code(result), Ordering::Relaxed);
        // SAFETY: `try_take` set the word, and `Io` lives as long as its records, which live as long as the system.
        let io = unsafe { &*record.io.load(Ordering::Relaxed) };
        let mut head = io.completed.load(Ordering::Relaxed);
        loop {
            record.next.store(head, Ordering::Relaxed);
            match io.completed.compare_exchange_weak(head, self.0.as_ptr(), Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => break,
                Err(now) => head = now,
            }
        }
        io.wake_completer();
    }
}

impl Drop for Request {
    fn drop(&mut self) {
        self.push(Err(PagerError::Failed));
    }
}

/// The requests that a pager has not served yet, oldest first.
#[derive(Default)]
pub struct Requests {
    first: Option<NonNull<Record>>,
    last: Option<NonNull<Record>>,
    len: usize,
}

// SAFETY: the records on the list are reached only through it, and records live as long as the system.
unsafe impl Send for Requests {}

impl Requests {
    /// An empty list.
    pub(crate) const fn new() -> Requests {
        Requests { first: None, last: None, len: 0 }
    }
    /// The number of requests.
    pub(crate) fn len(&self) -> usize {
        self.len
    }
    /// Whether the list is empty.
    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }
    /// Adds a request at the end.
    pub(crate) fn push(&mut self, request: Request) {
        let record = request.0;
        core::mem::forget(request);
        // SAFETY: the caller owned the request's record, and the records on the list are reached only through it.
        unsafe {
            record.as_ref().next.store(ptr::null_mut(), Ordering::Relaxed);
            match self.last {
                Some(last) => last.as_ref().next.store(record.as_ptr(), Ordering::Relaxed),
                None => self.first = Some(record),
            }
        }
        self.last = Some(record);
        self.len += 1;
    }
    /// Removes request number `n`, where 0 is the oldest. Returns `None` if the list is shorter.
    pub(crate) fn take(&mut self, n: usize) -> Option<Request> {
        let mut before: Option<NonNull<Record>> = None;
        let mut at = self.first?;
        for _ in 0..n {
            // SAFETY: `at` is a record on this list, and records live as long as the system.
            let next = NonNull::new(unsafe { at.as_ref() }.next.load(Ordering::Relaxed))?;
            before = Some(core::mem::replace(&mut at, next));
        }
        // SAFETY: `at` and `before` are records on this list, and records live as long as the system.
        unsafe {
            let next = at.as_ref().next.load(Ordering::Relaxed);
            match before {
                Some(b) => b.as_ref().next.store(next, Ordering::Relaxed),
                None => self.first = NonNull::new(next),
            }
            if next.is_null() {
                self.last = before;
            }
        }
        self.len -= 1;
        Some(Request(at))
    }
}

impl Drop for Requests {
    fn drop(&mut self) {
        while self.take(0).is_some() {}
    }
}

/// A pager that completes requests only when it is polled: a device without interrupts, or a store that simulates a
/// slow device.
pub trait Polled: Send + Sync {
    /// Completes requests that are due. Returns whether any are left. Does not sleep.
    fn poll(&self) -> bool;
}

struct Free {
    first: *mut Record,
    len: usize,
    /// The shares that hold records, and how many. A place with no records is free. There are as many places as records,
    /// so each share finds one.
    shares: [(Share, u8); RECORDS],
}

impl Free {
    fn has_room(&self, share: Share) -> bool {
        // A model under loom or shuttle has too few records for shares, so there each caller may take all.
        cfg!(any(loom, shuttle)) || share == Share::SWAP || self.held(share) < self.len
    }

    /// The number of records that `share` holds.
    fn held(&self, share: Share) -> usize {
        self.shares.iter().find(|(of, n)| *of == share && *n != 0).map_or(0, |(_, n)| (*n).into())
    }

    /// Counts one more record of `share`. Returns its place, plus one, or 0 for swap.
    fn count(&mut self, share: Share) -> u8 {
        if share == Share::SWAP {
            return 0;
        }
        let own = self.shares.iter().position(|(of, n)| *of == share && *n != 0);
        let Some(at) = own.or_else(|| self.shares.iter().position(|(_, n)| *n == 0)) else { return 0 };
        self.shares[at] = (share, self.shares[at].1 + 1);
        at as u8 + 1
    }
}

// SAFETY: free records are reached only under the lock.
unsafe impl Send for Free {}

/// The records of a system, and the stack of completed records.
pub struct Io {
    free: SpinLock<Free>,
    /// The wait queue of threads that wait for a free record or for their reads.
    pub(super) waits: WaitQueue,
    pub(super) completed: AtomicPtr<Record>,
    /// The number of requests that are started and not finished.
    pub(super) in_flight: AtomicU64,
    /// The number of requests whose waiting thread has unwound.
    abandoned: AtomicU64,
    /// The number of requests that were ever finished.
    pub(super) finished: AtomicU64,
    /// The number of pages that are being written.
    pub(super) writing: AtomicU64,
    /// The thread of the completion daemon, plus one; 0 if there is none.
    completer: AtomicUsize,
    pub(super) polled: [SpinLock<Option<&'static dyn Polled>>; POLLED],
    pub(super) polling: AtomicBool,
    /// Whether memory may be freed without swap: an object's pager has its pages, or a program gave memory up
    /// (`MADV_FREE`). It stays set.
    has_freeable: AtomicBool,
}

impl Io {
    pub(crate) fn new(boot: &mut BootMemory<'_, impl Machine>) -> Io {
        let mut free = Free { first: ptr::null_mut(), len: RECORDS, shares: [(Share::SWAP, 0); RECORDS] };
        for _ in 0..RECORDS {
            let record = boot.take(size_of::<Record>(), align_of::<Record>()).cast::<Record>();
            // SAFETY: this is fresh memory of the right size, and is never freed.
            unsafe {
                record.write(Record {
                    next: AtomicPtr::new(free.first),
                    io: AtomicPtr::new(ptr::null_mut()),
                    result: AtomicU8::new(0),
                    waiter: AtomicU8::new(UNAWAITED),
                    share: AtomicU8::new(0),
                    body: UnsafeCell::new(Body::new()),
                });
            }
            free.first = record.as_ptr();
        }
        Io {
            free: SpinLock::new(Rank::IO, free),
            waits: WaitQueue::new(),
            completed: AtomicPtr::new(ptr::null_mut()),
            in_flight: AtomicU64::new(0),
            finished: AtomicU64::new(0),
            abandoned: AtomicU64::new(0),
            writing: AtomicU64::new(0),
            completer: AtomicUsize::new(0),
            polled: core::array::from_fn(|_| SpinLock::new(Rank::IO, None)),
            polling: AtomicBool::new(false),
            has_freeable: AtomicBool::new(false),
        }
    }

    /// The bytes of boot memory that the records need.
    pub(crate) const fn boot_bytes() -> usize {
        RECORDS * (size_of::<Record>() + 16)
    }

    /// Records that memory may be freed without swap: an object's pager has its pages, or a program gave memory up
    /// (`MADV_FREE`).
    pub(crate) fn note_freeable(&self) {
        if !self.has_freeable.load(Ordering::Relaxed) {
            self.has_freeable.store(true, Ordering::Relaxed);
        }
    }

    /// Whether memory may be freed without swap.
    pub(crate) fn has_freeable(&self) -> bool {
        self.has_freeable.load(Ordering::Relaxed)
    }

    /// Whether requests may be completed that neither a daemon nor the thread that started them finishes.
    pub(crate) fn needs_finisher(&self) -> bool {
        self.abandoned.load(Ordering::Acquire) != 0 && !self.has_completer()
    }

    /// The number of reads and writes that are started and not finished.
    pub(crate) fn in_flight(&self) -> u64 {
        self.in_flight.load(Ordering::Acquire)
    }

    /// The number of reads and writes that were ever finished.
    pub(crate) fn finished(&self) -> u64 {
        self.finished.load(Ordering::Acquire)
    }

    /// The number of pages that are being written now.
    pub fn writing(&self) -> u64 {
        self.writing.load(Ordering::Relaxed)
    }

    /// The number of free records.
    pub(crate) fn free(&self) -> usize {
        self.free.lock().len
    }

    /// Whether `share` may get a record when it needs one. The result is a hint, because other threads may take it.
    pub(crate) fn has_room(&self, share: Share) -> bool {
        share == Share::SWAP || self.free.lock().has_room(share)
    }

    /// Takes a record. Returns `None` if no record is free, or if `share` holds its part.
    pub(crate) fn try_take(&self, share: Share) -> Option<Taken<'_>> {
        let mut free = self.free.lock();
        let record = NonNull::new(free.first).filter(|_| free.has_room(share))?;
        let place = free.count(share);
        // SAFETY: records live as long as the system, and the lock on the free list is held.
        free.first = unsafe { record.as_ref() }.next.load(Ordering::Relaxed);
        free.len -= 1;
        drop(free);
        // SAFETY: the record was taken off the free list under its lock, so no other thread reaches its body.
        unsafe {
            record.as_ref().io.store(ptr::from_ref(self).cast_mut(), Ordering::Relaxed);
            record.as_ref().waiter.store(UNAWAITED, Ordering::Relaxed);
            record.as_ref().share.store(place, Ordering::Relaxed);
            *record.as_ref().body.get() = Body::new();
        }
        Some(Taken { io: self, record })
    }

    /// Ends a record whose request was finished: a waiting thread gets the result, otherwise the record is free.
    pub(super) fn end(&self, record: NonNull<Record>) {
        // SAFETY: records live as long as the system.
        let waiter = &unsafe { record.as_ref() }.waiter;
        match waiter.compare_exchange(AWAITED, FINISHED, Ordering::AcqRel, Ordering::Acquire) {
            // From here on the waiting thread may free the record.
            Ok(_) => _ = self.waits.wake_all(),
            Err(state) => {
                if state == ABANDONED {
                    self.abandoned.fetch_sub(1, Ordering::AcqRel);
                }
                self.give(record);
            }
        }
    }

    pub(super) fn give(&self, record: NonNull<Record>) {
        {
            let mut free = self.free.lock();
            // SAFETY: records live as long as the system. The caller gives up this record, which is on no list.
            let r = unsafe { record.as_ref() };
            if let Some(place) = r.share.load(Ordering::Relaxed).checked_sub(1) {
                free.shares[usize::from(place)].1 -= 1;
            }
            r.next.store(free.first, Ordering::Relaxed);
            free.first = record.as_ptr();
            free.len += 1;
        }
        self.waits.wake_all();
    }

    /// Registers `thread`, which finishes completed requests from now on and is woken for them. `None`: no thread does.
    pub(crate) fn set_completer(&self, thread: Option<ThreadHandle>) {
        self.completer.store(thread.map_or(0, |t| t.number().wrapping_add(1)), Ordering::Release);
        // The fence orders this store before the daemon checks whether it must stop, and before it reads its requests;
        // see [`Physical::stop_daemons`] and [`Taken::start`].
        fence_full();
        // Sleeping threads that relied on the daemon now finish their I/O themselves.
        self.waits.wake_all();
    }
    pub(crate) fn has_completer(&self) -> bool {
        self.completer.load(Ordering::Acquire) != 0
    }
    pub(crate) fn wake_completer(&self) {
        let thread = self.completer.load(Ordering::Acquire);
        if thread != 0 {
            // SAFETY: `set_completer` stored the number of a thread that exists until another one is registered.
            unpark(unsafe { ThreadHandle::from_number(thread.wrapping_sub(1)) });
        }
    }

    /// Whether any pager is polled.
    pub(crate) fn has_polled(&self) -> bool {
        self.polling.load(Ordering::Acquire)
    }
    /// Whether a request is completed and not finished.
    pub(crate) fn has_completed(&self) -> bool {
        !self.completed.load(Ordering::Acquire).is_null()
    }
}

/// All places for pollers are taken. A system has at most eight.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TooManyPolled;
