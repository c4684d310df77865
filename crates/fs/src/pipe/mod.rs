//! Pipes: a ring of bytes in pages, between writers and readers that copy at the same time.
//!
//! Positions only grow. The writer that holds `writer` moves `written`, and the reader that holds `reader` moves
//! `read`. The bytes between these positions belong to readers, and the other bytes to writers. Each page has a
//! sleeping lock, held over one copy, because a reader and a writer may meet in a page. No spin lock is held over a
//! copy, which may fault and sleep.
//!
//! The ring changes its size under both locks ([`resize`](PipeEnd::resize)). So the ring is stable for a reader that
//! holds `reader`, and for a writer that holds `writer`. A ring of up to [`DEFAULT`] pages is part of the pipe; a
//! larger one is allocated.
//!
//! The user that opens the first end is charged with the ring until the last end is closed. The next opener of a FIFO
//! then pays for a new ring.

use crate::FsError;
use crate::host::{Host, PAGE_SIZE};
use crate::mutant::{Mutant, mutant};
use crate::stream::Stream;
use crate::stream::io::Io;
use crate::stream::readiness::{Readiness, Ready};
use crate::stream::transfer::{Sink, Source};
use core::any::Any;
use quire_heap::{Arc, Room, Vec, unsize};
use quire_sync::Mutex;
use quire_sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering, fence_full};

/// Pages of a new pipe's ring.
pub const DEFAULT: usize = 16;
/// The size in bytes of the largest write that other writes do not interrupt.
pub const ATOMIC: usize = PAGE_SIZE;
/// A writer waits for free memory, and other threads may take that memory first. This is the number of such waits in a
/// row before the write fails.
const PATIENCE: u32 = 32;

/// A pipe. Its ends are [`PipeEnd`]s.
pub struct Pipe<H: Host> {
    host: H,
    /// The ring, if it is not allocated separately. A smaller ring uses the first pages of this array.
    pages: [Slot<H>; DEFAULT],
    /// The number of the ring's pages: a power of two. Changed under both `reader` and `writer`, or under `writer`
    /// alone while no end is open.
    size: AtomicUsize,
    /// Guards `read`: one reader copies at a time.
    reader: Mutex<Large<H>>,
    /// Guards `written`: one writer copies at a time.
    writer: Mutex<Writing<H>>,
    written: AtomicU64,
    read: AtomicU64,
    /// Whether packets were written. If so, room is counted in whole pages.
    packets: AtomicBool,
    /// The number of gap bytes (see `packet.rs`) between the positions.
    gaps: AtomicUsize,
    /// The numbers of open ends.
    readers: AtomicUsize,
    writers: AtomicUsize,
    /// How often each side was opened. A thread that waits for the other end notices an end that was opened and closed
    /// during the wait.
    reader_opens: AtomicU64,
    writer_opens: AtomicU64,
    readiness: Readiness,
}

/// A page of the ring.
struct RingPage<H: Host> {
    /// The first writer that reaches the page allocates it. The page stays until the pipe is freed or resized.
    page: Option<H::Page>,
    mark: Mark,
}

impl<H: Host> RingPage<H> {
    const EMPTY: Self = RingPage { page: None, mark: Mark::NONE };
}

type Slot<H> = Mutex<RingPage<H>>;

/// A separately allocated ring. The reader's lock and the writer's lock each hold a reference to the same ring.
type Large<H> = Option<Arc<Vec<Slot<H>>>>;

/// A pipe, its reading end and its writing end.
pub type NewPipe<H> = (Arc<Pipe<H>>, [Arc<dyn Stream>; 2]);

/// The state under the writer's lock.
struct Writing<H: Host> {
    large: Large<H>,
    /// Present while an end is open.
    charge: Option<H::PipeCharge>,
}

/// An end (or both ends) of a pipe, which closes when dropped. Each use of a descriptor reads this struct, so the
/// alignment keeps other memory, which changes, off its cache line.
#[repr(align(64))]
pub struct PipeEnd<H: Host> {
    pipe: Arc<Pipe<H>>,
    reads: bool,
    writes: bool,
    /// The value of `writer_opens` when this end was opened without a writer; `u64::MAX` for all other ends. The end
    /// shows no hangup until a writer has opened the pipe.
    unmet: u64,
    /// Whether the end is closed. A thread may still use it.
    closed: AtomicBool,
}

impl<H: Host> Pipe<H> {
    /// A pipe with no end open.
    pub fn new(host: H) -> Result<Arc<Self>, FsError> {
        Self::made(host, DEFAULT, None)
    }

    /// The two ends of a new pipe, charged to the calling thread's user.
    pub fn ends(host: H) -> Result<NewPipe<H>, FsError> {
        let (pages, charge) = host.charge_pipe().ok_or(FsError::TooManyPipes)?;
        let pipe = Self::made(host, pages, Some(charge))?;
        let ends: [Arc<dyn Stream>; 2] =
            [unsize!(Self::end(&pipe, true, false)?), unsize!(Self::end(&pipe, false, true)?)];
        Ok((pipe, ends))
    }

    fn made(host: H, pages: usize, charge: Option<H::PipeCharge>) -> Result<Arc<Self>, FsError> {
        Ok(Arc::try_new(Pipe {
            host,
            pages: Self::no_pages(),
            size: AtomicUsize::new(pages),
            reader: Mutex::new(None),
            writer: Mutex::new(Writing { large: None, charge }),
            written: AtomicU64::new(0),
            read: AtomicU64::new(0),
            packets: AtomicBool::new(false),
            gaps: AtomicUsize::new(0),
            readers: AtomicUsize::new(0),
            writers: AtomicUsize::new(0),
            reader_opens: AtomicU64::new(0),
            writer_opens: AtomicU64::new(0),
            readiness: Readiness::new(),
        })?)
    }

    /// A ring without pages, made at compile time.
    #[cfg(not(any(loom, shuttle)))]
    const fn no_pages() -> [Slot<H>; DEFAULT] {
        [const { Mutex::new(RingPage::EMPTY) }; DEFAULT]
    }

    /// The checkers' locks are made at run time.
    #[cfg(any(loom, shuttle))]
    fn no_pages() -> [Slot<H>; DEFAULT] {
        core::array::from_fn(|_| Mutex::new(RingPage::EMPTY))
    }

    /// Opens the given ends without waiting for the other side.
    pub fn open_now(this: &Arc<Self>, reads: bool, writes: bool) -> Result<Arc<dyn Stream>, FsError> {
        let room = Room::try_new()?;
        Ok(unsize!(room.fill(Self::opened(this, reads, writes)?)))
    }

    /// Makes ends of a pipe whose pages are charged already. Other threads see each opening at once, so an opening
    /// cannot be undone. Therefore the allocation, which can fail, comes first.
    fn end(this: &Arc<Self>, reads: bool, writes: bool) -> Result<Arc<PipeEnd<H>>, FsError> {
        let room = Room::try_new()?;
        this.count(reads, writes);
        Ok(room.fill(Self::announced(this, reads, writes)))
    }

    /// Opens ends. The opener is charged if no end was open.
    fn opened(this: &Arc<Self>, reads: bool, writes: bool) -> Result<PipeEnd<H>, FsError> {
        let mut writer = this.writer.lock();
        // The last end has closed, but has not emptied the pipe yet. Its bytes and its charge do not belong to this
        // opener.
        while writer.charge.is_some() && this.is_closed() {
            drop(writer);
            this.empty_if_closed();
            writer = this.writer.lock();
        }
        if writer.charge.is_none() {
            let (pages, charge) = this.host.charge_pipe().ok_or(FsError::OutOfMemory)?;
            writer.charge = Some(charge);
            this.size.store(pages, Ordering::Release);
        }
        // Counted under the lock, so that the last end to close does not return the charge while this thread opens an
        // end.
        this.count(reads, writes);
        drop(writer);
        Ok(Self::announced(this, reads, writes))
    }

    fn count(&self, reads: bool, writes: bool) {
        if reads {
            self.readers.fetch_add(1, Ordering::AcqRel);
            self.reader_opens.fetch_add(1, Ordering::AcqRel);
        }
        if writes {
            self.writers.fetch_add(1, Ordering::AcqRel);
            self.writer_opens.fetch_add(1, Ordering::AcqRel);
        }
    }

    fn uncount(&self, reads: bool, writes: bool) {
        if reads {
            self.readers.fetch_sub(1, Ordering::AcqRel);
        }
        if writes {
            self.writers.fetch_sub(1, Ordering::AcqRel);
        }
    }

    /// Makes ends that are counted already, and notifies waiters.
    fn announced(this: &Arc<Self>, reads: bool, writes: bool) -> PipeEnd<H> {
        this.readiness.notify();
        PipeEnd { pipe: this.clone(), reads, writes, unmet: u64::MAX, closed: AtomicBool::new(false) }
    }

    /// Opens ends of a FIFO. An opener of one side waits until the other side is open, or has been opened since the
    /// call began. A nonblocking writer fails with [`FsError::NoDevice`] instead.
    pub fn open(this: &Arc<Self>, reads: bool, writes: bool, io: &Io<'_>) -> Result<Arc<dyn Stream>, FsError> {
        if writes && !reads && io.nonblock && this.readers.load(Ordering::Acquire) == 0 {
            return Err(FsError::NoDevice);
        }
        let room = Room::try_new()?;
        // This opening may wake a thread of the other side, which may close its end before this thread checks again.
        let (there, opens) = match reads {
            true => (&this.writers, &this.writer_opens),
            false => (&this.readers, &this.reader_opens),
        };
        let seen = opens.load(Ordering::Acquire);
        let met_already = there.load(Ordering::Acquire) > 0;
        let mut end = Self::opened(this, reads, writes)?;
        if reads == writes || io.nonblock || met_already {
            if reads && !writes && !met_already {
                end.unmet = seen;
            }
            return Ok(unsize!(room.fill(end)));
        }
        let met = || there.load(Ordering::Acquire) > 0 || opens.load(Ordering::Acquire) != seen;
        this.readiness.wait(io, || met().then_some(()))?;
        Ok(unsize!(room.fill(end)))
    }

    /// Whether no end is open. If so, that stays true while the caller holds the writer's lock, under which ends are
    /// opened.
    fn is_closed(&self) -> bool {
        self.readers.load(Ordering::Acquire) + self.writers.load(Ordering::Acquire) == 0
    }

    /// Drops unread bytes after the last end has closed, so that the next opener of a FIFO finds it empty.
    fn empty_if_closed(&self) {
        if self.is_closed() {
            let (mut reader, mut writer) = (self.reader.lock(), self.writer.lock());
            // Another thread may have opened an end since the first check. Ends are opened under the writer's lock, so
            // the result of this second check cannot change before the lock is released.
            if self.is_closed() {
                self.read.store(self.written.load(Ordering::Acquire), Ordering::Release);
                self.gaps.store(0, Ordering::Release);
                self.packets.store(false, Ordering::Release);
                self.pages.iter().for_each(|slot| drop(slot.lock().page.take()));
                drop((reader.take(), writer.large.take(), writer.charge.take()));
                self.size.store(DEFAULT, Ordering::Release);
            }
        }
    }

    fn filled(&self) -> usize {
        let read = self.read.load(Ordering::Acquire);
        // A writer of packets may have advanced both positions between the two loads.
        self.written.load(Ordering::Acquire).saturating_sub(read) as usize
    }

    fn capacity(&self) -> usize {
        self.size.load(Ordering::Acquire) * PAGE_SIZE
    }

    fn free(&self) -> usize {
        let read = self.read.load(Ordering::Acquire);
        self.room(self.capacity(), read, self.written.load(Ordering::Acquire))
    }

    /// The free bytes in a pipe of `capacity` with these positions. The caller loaded them separately, so `read` may be
    /// ahead of `written`.
    fn room(&self, capacity: usize, read: u64, written: u64) -> usize {
        let mut used = written.saturating_sub(read);
        if used > 0 && self.packets.load(Ordering::Acquire) {
            used = written.next_multiple_of(PAGE_SIZE as u64) - read;
        }
        capacity.saturating_sub(used as usize)
    }

    /// The ring, for a thread that holds the reader's or the writer's lock, which guards `large`.
    fn ring<'a>(&'a self, large: &'a Large<H>) -> &'a [Slot<H>] {
        match large {
            None => &self.pages[..self.size.load(Ordering::Relaxed).min(DEFAULT)],
            Some(large) => large,
        }
    }

    /// Copies available bytes into `sink`.
    fn take(&self, sink: &mut dyn Sink) -> Result<usize, FsError> {
        let one = self.reader.lock();
        let ring = self.ring(&one);
        let capacity = ring.len() * PAGE_SIZE;
        let start = self.read.load(Ordering::Relaxed);
        let end = self.written.load(Ordering::Acquire);
        let mut at = start;
        let mut done = 0;
        let mut failed = None;
        while at < end {
            let room = sink.room();
            if room == 0 {
                break;
            }
            let (page, from) = place(at, ring.len());
            let n = (PAGE_SIZE - from).min((end - at) as usize).min(room);
            let slot = ring[page].lock();
            if let Some(marked) = slot.mark.of(at) {
                match self.take_marked(&slot, marked, from, n, sink) {
                    Ok(taken) => {
                        at += taken.positions as u64;
                        done += taken.bytes;
                        if taken.last {
                            break;
                        }
                        continue;
                    }
                    Err(e) => {
                        failed = Some(e);
                        break;
                    }
                }
            }
            let moved = match &slot.page {
                Some(bytes) => sink.put(&bytes[from..from + n]),
                None => Err(FsError::Io), // written bytes have a page
            };
            drop(slot);
            match moved {
                Ok(m) => {
                    at += m as u64;
                    done += m;
                    if m < n {
                        break;
                    }
                }
                Err(e) => {
                    failed = Some(e);
                    break;
                }
            }
        }
        self.read.store(at, Ordering::Release);
        // Writers and polls wait for room only while less than ATOMIC bytes are free. As on Linux, the read after which
        // at least ATOMIC bytes are free wakes these waiters. The check comes after the store of the new position,
        // because writers continued during the copy. A writer that found the ring full had stored `written` for its
        // last write, and then read this reader's position. This reader stores the position, fences, and then loads
        // `written`. So either the writer saw the new position, or this reader sees the writer's last write.
        if !mutant(Mutant::RoomNoFence) {
            fence_full();
        }
        let written = if mutant(Mutant::RoomByFirstEnd) { end } else { self.written.load(Ordering::Acquire) };
        let makes_room = self.room(capacity, start, written) < ATOMIC && self.room(capacity, at, written) >= ATOMIC;
        // The lock is released before the notification. A notified listener may drop the last reference to an end, and
        // that drop acquires the reader's and the writer's lock.
        drop(one);
        // A read can fail after it skipped only a gap. It then took no byte, but made room.
        if makes_room {
            self.readiness.notify();
        }
        match failed {
            Some(e) if done == 0 => Err(e),
            _ => Ok(done),
        }
    }

    /// Copies up to `left` bytes from `source`, as far as they fit, and none if fewer than `need` fit. Returns their
    /// number. Readers see all copied bytes together, at the end.
    ///
    /// Inlined, because the loop of a write is its only caller. Packets are written by
    /// [`put_packet`](Self::put_packet).
    #[inline(always)]
    fn put(&self, source: &mut dyn Source, need: usize, left: usize) -> Result<usize, FsError> {
        let one = self.writer.lock();
        let ring = self.ring(&one.large);
        let mut at = self.written.load(Ordering::Relaxed);
        let free = ring.len() * PAGE_SIZE - (at - self.read.load(Ordering::Acquire)) as usize;
        if free < need {
            return Ok(0);
        }
        let end = at + free.min(left) as u64;
        let mut done = 0;
        let mut failed = None;
        while at < end {
            let (page, from) = place(at, ring.len());
            let n = (PAGE_SIZE - from).min((end - at) as usize);
            let mut slot = ring[page].lock();
            if slot.page.is_none() {
                slot.page = self.host.page();
            }
            let moved = match &mut slot.page {
                Some(bytes) => source.take(&mut bytes[from..from + n]),
                None => Err(FsError::OutOfMemory),
            };
            drop(slot);
            match moved {
                Ok(m) => {
                    at += m as u64;
                    done += m;
                    if m < n {
                        break;
                    }
                }
                Err(e) => {
                    failed = Some(e);
                    break;
                }
            }
        }
        self.written.store(at, Ordering::Release);
        // The lock is released before the notification. A notified listener may drop the last reference to an end, and
        // that drop acquires the reader's and the writer's lock.
        drop(one);
        if done > 0 {
            self.readiness.notify();
        }
        match failed {
            Some(e) if done == 0 => Err(e),
            _ => Ok(done),
        }
    }

    /// Reads for an end, until `closed` is set.
    fn read_end(&self, closed: &AtomicBool, io: &Io<'_>, sink: &mut dyn Sink) -> Result<usize, FsError> {
        if sink.room() == 0 {
            return Ok(0);
        }
        loop {
            if self.filled() > 0 {
                let n = self.take(sink)?;
                if n > 0 {
                    return Ok(n);
                }
                continue; // another reader was faster
            }
            // The number of writers is read before the bytes, because the last writer wrote before it closed. So a
            // reader that finds no writer sees all bytes.
            let state = || {
                let open = self.writers.load(Ordering::Acquire) > 0 && !closed.load(Ordering::Acquire);
                if self.filled() > 0 { Some(true) } else { (!open).then_some(false) }
            };
            if !self.readiness.wait_again(0, io, state)? {
                return Ok(0);
            }
        }
    }

    /// Writes for an end, until `closed` is set.
    fn write_end(&self, closed: &AtomicBool, io: &Io<'_>, source: &mut dyn Source) -> Result<usize, FsError> {
        let mut done = 0;
        let in_vain = || self.readers.load(Ordering::Acquire) == 0 || closed.load(Ordering::Acquire);
        // A large nonblocking write starts when any byte fits, a packet when a page is free.
        let grain = if io.nonblock && !io.packets && source.left() > ATOMIC { 1 } else { ATOMIC };
        let mut patience = PATIENCE;
        loop {
            let left = source.left();
            if left == 0 {
                return Ok(done);
            }
            let need = if io.packets { grain } else { left.min(grain) };
            if in_vain() {
                return if done > 0 { Ok(done) } else { Err(FsError::BrokenPipe) };
            }
            let put = if io.packets { self.put_packet(source, done == 0) } else { self.put(source, need, left) };
            let outcome = match put {
                Ok(0) => {
                    let state = || (self.free() >= need || in_vain()).then_some(());
                    // Written bytes cannot be taken back, so the rest of the call keeps its kernel stack while it
                    // waits.
                    if done > 0 { self.readiness.wait(&io.on_stack(), state) } else { self.readiness.wait(io, state) }
                }
                Ok(n) => {
                    done += n;
                    if n == left {
                        return Ok(done);
                    }
                    patience = PATIENCE;
                    Ok(())
                }
                Err(FsError::OutOfMemory) if patience != 0 && self.host.wait_for_memory() => {
                    patience -= 1;
                    Ok(())
                }
                Err(e) => Err(e),
            };
            match outcome {
                Ok(()) => {}
                Err(_) if done > 0 => return Ok(done),
                Err(e) => return Err(e),
            }
        }
    }
}

impl<H: Host> Stream for PipeEnd<H> {
    fn read(&self, io: &Io<'_>, sink: &mut dyn Sink) -> Result<usize, FsError> {
        if self.reads { self.pipe.read_end(&self.closed, io, sink) } else { Err(FsError::BadFile) }
    }

    fn write(&self, io: &Io<'_>, source: &mut dyn Source) -> Result<usize, FsError> {
        if self.writes { self.pipe.write_end(&self.closed, io, source) } else { Err(FsError::BadFile) }
    }

    fn ready(&self) -> Ready {
        let pipe = &self.pipe;
        let mut ready = Ready::empty();
        if self.reads {
            let closed = pipe.writers.load(Ordering::Acquire) == 0;
            ready.set(Ready::READ, pipe.filled() > 0);
            ready.set(Ready::HANGUP, closed && pipe.writer_opens.load(Ordering::Acquire) != self.unmet);
        }
        if self.writes {
            ready.set(Ready::WRITE, pipe.free() >= ATOMIC);
            ready.set(Ready::ERROR, pipe.readers.load(Ordering::Acquire) == 0);
        }
        ready
    }

    fn readiness(&self) -> Option<&Readiness> {
        Some(&self.pipe.readiness)
    }

    fn queued(&self) -> Result<usize, FsError> {
        Ok(self.pipe.filled().saturating_sub(self.pipe.gaps.load(Ordering::Acquire)))
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl<H: Host> PipeEnd<H> {
    /// Closes the end: threads that wait on it stop waiting, and threads that wait at the other side find it closed.
    fn close(&self) {
        if self.closed.swap(true, Ordering::AcqRel) {
            return;
        }
        self.pipe.uncount(self.reads, self.writes);
        self.pipe.empty_if_closed();
        self.pipe.readiness.notify();
    }
}

impl<H: Host> Drop for PipeEnd<H> {
    fn drop(&mut self) {
        self.close();
    }
}

/// The index of the page at position `at` in a ring of `pages` pages (a power of two), and the offset in that page.
fn place(at: u64, pages: usize) -> (usize, usize) {
    ((at as usize / PAGE_SIZE) & (pages - 1), at as usize % PAGE_SIZE)
}

mod packet;
mod resize;
mod splice;
#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;

use packet::Mark;
