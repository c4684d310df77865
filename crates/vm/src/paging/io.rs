//! Input and output under way: records, requests, completions.
//!
//! A *record* is the memory of one read or write of up to [`CLUSTER`] pages. All records are made at boot, so that
//! paging out never waits for memory. A thread takes a record first, and sets pages busy after that, so no page is held
//! over the wait.
//!
//! # The life of a record
//! Free → taken ([`Taken`]) → filled and *started*: the pager has it, as a [`Request`] → *completed*: pushed onto one
//! stack by one compare-and-swap, with no lock, so that an interrupt may do it → *finished* by the completion daemon or
//! a waiting thread → free.
//!
//! Exactly one owner has a record at any time: the thread that took it, then the pager, then the stack, then the thread
//! that popped it.
//!
//! # Work in an interrupt
//! Only [`Request::complete`]: a push, and the wake-up token for the completion daemon's thread. Pages, indexes, queues
//! and slots change only in finishing.

use crate::error::PagerError;
use crate::machine::Machine;
use crate::phys::Physical;
use crate::phys::boot::BootMemory;
use crate::tlb::flush::FlushedEverywhere;
use crate::types::Pfn;
use core::cell::UnsafeCell;
use core::ptr::{self, NonNull};
use quire_sync::atomic::{AtomicBool, AtomicPtr, AtomicU8, AtomicU64, AtomicUsize, Ordering, fence_full};
use quire_sync::hooks::{ThreadHandle, unpark};
use quire_sync::{Rank, SpinLock, WaitQueue};

/// Pages of one read or write at most: 64 KiB, beyond which disks gain little, and as much as a fault-around maps.
#[cfg(not(any(loom, shuttle)))]
pub const CLUSTER: usize = 16;
/// Pages of one read or write at most, few so that clusters have ends under the checkers.
#[cfg(any(loom, shuttle))]
pub const CLUSTER: usize = 2;

/// Records of a system: enough that a disk's queue stays full while others are being finished.
#[cfg(not(any(loom, shuttle)))]
pub(crate) const RECORDS: usize = 64;
#[cfg(any(loom, shuttle))]
pub(crate) const RECORDS: usize = 2;

/// Most pollers of a system.
const POLLED: usize = 8;

/// Which way the bytes go.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Direction {
    /// From the pager into memory.
    Read,
    /// From memory to the pager.
    Write,
}

/// The result of a read for its waiting thread. It stays until it is set.
pub(crate) struct Done(pub(super) AtomicU8);

impl Done {
    pub fn new() -> Done {
        Done(AtomicU8::new(0))
    }
    /// How it ended, once it has.
    pub fn get(&self) -> Option<Result<(), PagerError>> {
        match self.0.load(Ordering::Acquire) {
            0 => None,
            1 => Some(Ok(())),
            _ => Some(Err(PagerError)),
        }
    }
}

/// The content of a record; belongs to the record's owner.
pub(crate) struct Body {
    pub direction: Direction,
    /// The pager's number of the first page: a page of a file, a slot of a swap store.
    pub first: u64,
    /// Whether `first` is a swap slot.
    pub swap: bool,
    /// The object's number of each page; reads alone use it.
    pub keys: [u64; CLUSTER],
    frames: [(Pfn, *mut u8); CLUSTER],
    pub len: usize,
    /// The object, with a reference that finishing drops; null where none is held.
    pub object: *const (),
    /// Null where no thread waits.
    pub done: *const Done,
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
            done: ptr::null(),
        }
    }

    /// Adds a page.
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

/// One read or write; see the module.
pub(crate) struct Record {
    /// The next one: of the free ones, of those that a pager has, of those that are complete.
    pub(super) next: AtomicPtr<Record>,
    io: AtomicPtr<Io>,
    pub(super) failed: AtomicU8,
    pub(super) body: UnsafeCell<Body>,
}

/// A record that is taken and not started. Freed when dropped.
pub(crate) struct Taken<'v> {
    io: &'v Io,
    record: NonNull<Record>,
}

impl Taken<'_> {
    /// The record's content.
    pub fn body(&mut self) -> &mut Body {
        // SAFETY: the record was taken off the free list, so this value alone leads to its body.
        unsafe { &mut *self.record.as_ref().body.get() }
    }

    /// Starts it as a write. Relies on C4: its argument proves the flush after which no CPU stores into the pages.
    pub fn start_writing(mut self, flushed: &FlushedEverywhere) -> Request {
        let object = self.body().object;
        // A write to swap needs no reference on its object.
        debug_assert!(object.is_null() || object.addr() as u64 == flushed.object(), "another object was flushed");
        self.start()
    }

    /// Starts it as a request.
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

/// Pages that the caller's record writes.
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

/// A read or write for a pager: pages `first()..first() + len()`, to or from as many frames. The pager keeps it until
/// it is done, and then calls [`Request::complete`], once. Dropping it completes it as failed.
///
/// The pager reads a write's frames at any time until then. Programs may store into them meanwhile; then the page is
/// written again later.
pub struct Request(NonNull<Record>);

// SAFETY: a request is the one value that leads to its record, and records live as long as the system.
unsafe impl Send for Request {}
// SAFETY: shared references only read what does not change while the request is held.
unsafe impl Sync for Request {}

impl Request {
    fn record(&self) -> &Record {
        // SAFETY: records live as long as the system.
        unsafe { self.0.as_ref() }
    }
    fn body(&self) -> &Body {
        // SAFETY: nothing changes a record's body from `start` to the end of its request.
        unsafe { &*self.record().body.get() }
    }

    /// Which way the bytes go.
    pub fn direction(&self) -> Direction {
        self.body().direction
    }
    /// The first page's number: a page of the file, a slot of the swap store.
    pub fn first(&self) -> u64 {
        self.body().first
    }
    /// Pages: at least one, at most [`CLUSTER`].
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        self.body().len
    }
    /// The frame of page `first() + i`, for devices.
    pub fn pfn(&self, i: usize) -> Pfn {
        self.body().frames[i].0
    }
    /// The bytes of page `first() + i`: valid for reads of a page's length, and for writes where the request is a read.
    pub fn frame(&self, i: usize) -> *mut u8 {
        self.body().frames[i].1
    }

    /// Completes it. Callable from an interrupt: takes no lock. The first call of a request ends it.
    pub fn complete(self, result: Result<(), PagerError>) {
        self.push(result);
        core::mem::forget(self);
    }

    fn push(&self, result: Result<(), PagerError>) {
        let record = self.record();
        record.failed.store(result.is_err() as u8, Ordering::Relaxed);
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
        self.push(Err(PagerError));
    }
}

/// Requests that a pager has not served yet, oldest first.
#[derive(Default)]
pub struct Requests {
    first: Option<NonNull<Record>>,
    last: Option<NonNull<Record>>,
    len: usize,
}

// SAFETY: the records on the list are reached through it alone, and records live as long as the system.
unsafe impl Send for Requests {}

impl Requests {
    /// None.
    pub(crate) const fn new() -> Requests {
        Requests { first: None, last: None, len: 0 }
    }
    /// How many.
    pub(crate) fn len(&self) -> usize {
        self.len
    }
    /// Whether there is none.
    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }
    /// Adds one at the end.
    pub(crate) fn push(&mut self, request: Request) {
        let record = request.0;
        core::mem::forget(request);
        // SAFETY: the request's record comes from the caller, and those on the list are reached through it alone.
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
    /// Takes number `n` out, 0 being the oldest.
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

/// A pager that completes requests only when it is polled: a device without interrupts, a store that simulates a slow
/// one.
pub trait Polled: Send + Sync {
    /// Completes requests that are due; returns whether any are left. Does not sleep.
    fn poll(&self) -> bool;
}

struct Free {
    first: *mut Record,
    len: usize,
}
// SAFETY: free records are reached under the lock only.
unsafe impl Send for Free {}

/// The records of a system, and the stack of completed ones.
pub struct Io {
    free: SpinLock<Free>,
    /// Where threads sleep for a free record, and for their reads.
    pub(super) waits: WaitQueue,
    pub(super) completed: AtomicPtr<Record>,
    /// Started and not finished.
    pub(super) in_flight: AtomicU64,
    /// Finished, ever.
    pub(super) finished: AtomicU64,
    /// Pages that are being written.
    pub(super) writing: AtomicU64,
    /// The completion daemon's thread, plus one; 0: none.
    completer: AtomicUsize,
    pub(super) polled: [SpinLock<Option<&'static dyn Polled>>; POLLED],
    pub(super) polling: AtomicBool,
    /// There was ever an object whose pager has its pages, or memory that was given up.
    has_freeable: AtomicBool,
}

impl Io {
    pub(crate) fn new(boot: &mut BootMemory<'_, impl Machine>) -> Io {
        let mut free = Free { first: ptr::null_mut(), len: RECORDS };
        for _ in 0..RECORDS {
            let record = boot.take(size_of::<Record>(), align_of::<Record>()).cast::<Record>();
            // SAFETY: fresh memory of the right size, never freed.
            unsafe {
                record.write(Record {
                    next: AtomicPtr::new(free.first),
                    io: AtomicPtr::new(ptr::null_mut()),
                    failed: AtomicU8::new(0),
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
            writing: AtomicU64::new(0),
            completer: AtomicUsize::new(0),
            polled: core::array::from_fn(|_| SpinLock::new(Rank::IO, None)),
            polling: AtomicBool::new(false),
            has_freeable: AtomicBool::new(false),
        }
    }

    /// Bytes that the records take.
    pub(crate) const fn boot_bytes() -> usize {
        RECORDS * (size_of::<Record>() + 16)
    }

    /// An object has a pager that has its pages, or memory was given up: there may be something to free without swap.
    pub(crate) fn note_freeable(&self) {
        if !self.has_freeable.load(Ordering::Relaxed) {
            self.has_freeable.store(true, Ordering::Relaxed);
        }
    }

    /// Whether there may be something to free without swap.
    pub(crate) fn has_freeable(&self) -> bool {
        self.has_freeable.load(Ordering::Relaxed)
    }

    /// Reads and writes that are started and not finished.
    pub(crate) fn in_flight(&self) -> u64 {
        self.in_flight.load(Ordering::Acquire)
    }

    /// Reads and writes that were ever finished.
    pub(crate) fn finished(&self) -> u64 {
        self.finished.load(Ordering::Acquire)
    }

    /// Pages that are being written now.
    pub fn writing(&self) -> u64 {
        self.writing.load(Ordering::Relaxed)
    }

    /// Free records.
    pub(crate) fn free(&self) -> usize {
        self.free.lock().len
    }

    /// A record, where one is free.
    pub(crate) fn try_take(&self) -> Option<Taken<'_>> {
        let mut free = self.free.lock();
        let record = NonNull::new(free.first)?;
        // SAFETY: records live as long as the system, and the lock on the free list is held.
        free.first = unsafe { record.as_ref() }.next.load(Ordering::Relaxed);
        free.len -= 1;
        drop(free);
        // SAFETY: the record was taken off the free list under its lock, so no other thread reaches its body.
        unsafe {
            record.as_ref().io.store(ptr::from_ref(self).cast_mut(), Ordering::Relaxed);
            *record.as_ref().body.get() = Body::new();
        }
        Some(Taken { io: self, record })
    }

    pub(super) fn give(&self, record: NonNull<Record>) {
        {
            let mut free = self.free.lock();
            // SAFETY: records live as long as the system, and the caller gives up this one, which is on no list.
            unsafe { record.as_ref() }.next.store(free.first, Ordering::Relaxed);
            free.first = record.as_ptr();
            free.len += 1;
        }
        self.waits.wake_all();
    }

    /// `thread` finishes completed requests from now on, and is woken for them. `None`: no thread does.
    pub(crate) fn set_completer(&self, thread: Option<ThreadHandle>) {
        self.completer.store(thread.map_or(0, |t| t.0.wrapping_add(1)), Ordering::Release);
        // Before the daemon reads whether it is to stop, and its requests; see [`Physical::stop_daemons`] and
        // [`Taken::start`].
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
            unpark(ThreadHandle(thread.wrapping_sub(1)));
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

/// No place for another poller: a system has at most eight.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TooManyPolled;
