//! Pipes: a ring of bytes in pages, between writers and readers that copy at the same time.
//!
//! Positions only grow: `written` is moved by the writer that holds `writer`, `read` by the reader that holds `reader`. The
//! bytes between them belong to readers, the others to writers; each page has a sleeping lock, held over one copy, for the
//! page where the two meet. No spin lock is held over a copy, which may fault and sleep.

use crate::host::{Host, PAGE_SIZE};
use crate::readiness::{Readiness, Ready};
use crate::stream::{Io, Stream};
use crate::transfer::{Sink, Source};
use crate::{FsError, rank};
use alloc::sync::Arc;
use core::any::Any;
use quire_sync::atomic::{AtomicU64, AtomicUsize, Ordering, fence_full};
use quire_sync::{Mutex, SpinLock};

/// Pages of a pipe's ring.
const PAGES: usize = 16;
/// Bytes that a pipe holds.
pub const CAPACITY: usize = PAGES * PAGE_SIZE;
/// A write of at most so many bytes is never torn apart by another.
pub const ATOMIC: usize = PAGE_SIZE;

/// A pipe. Its ends are [`PipeEnd`]s.
pub struct Pipe<H: Host> {
    host: H,
    /// Allocated by the writer that first gets there, kept until the pipe goes.
    pages: [Mutex<Option<H::Page>>; PAGES],
    /// One reader copies at a time.
    reader: Mutex<()>,
    /// One writer copies at a time.
    writer: Mutex<()>,
    written: AtomicU64,
    read: AtomicU64,
    /// Open ends.
    readers: AtomicUsize,
    writers: AtomicUsize,
    /// How often each side was opened: who waits for the other end sees one that came and went.
    reader_opens: AtomicU64,
    writer_opens: AtomicU64,
    /// Shared by the two pipes of a socket pair, which is polled as one thing.
    readiness: Arc<Readiness>,
}

/// An end (or both ends) of a pipe; closes when dropped.
pub struct PipeEnd<H: Host> {
    pipe: Arc<Pipe<H>>,
    reads: bool,
    writes: bool,
    /// How often the writing side had been opened when this end was opened without anybody there: it is not hung up before
    /// a writer came. `u64::MAX` for all others.
    unmet: u64,
}

impl<H: Host> Pipe<H> {
    /// A pipe with no end open.
    pub fn new(host: H) -> Arc<Self> {
        Self::announced_by(host, Arc::new(Readiness::new()))
    }

    fn announced_by(host: H, readiness: Arc<Readiness>) -> Arc<Self> {
        Arc::new(Pipe {
            host,
            pages: [const { Mutex::new(None) }; PAGES],
            reader: Mutex::new(()),
            writer: Mutex::new(()),
            written: AtomicU64::new(0),
            read: AtomicU64::new(0),
            readers: AtomicUsize::new(0),
            writers: AtomicUsize::new(0),
            reader_opens: AtomicU64::new(0),
            writer_opens: AtomicU64::new(0),
            readiness,
        })
    }

    /// Opens ends without waiting for the other.
    pub fn open_now(self: &Arc<Self>, reads: bool, writes: bool) -> Arc<dyn Stream> {
        Arc::new(self.end(reads, writes))
    }

    fn end(self: &Arc<Self>, reads: bool, writes: bool) -> PipeEnd<H> {
        if reads {
            self.readers.fetch_add(1, Ordering::AcqRel);
            self.reader_opens.fetch_add(1, Ordering::AcqRel);
        }
        if writes {
            self.writers.fetch_add(1, Ordering::AcqRel);
            self.writer_opens.fetch_add(1, Ordering::AcqRel);
        }
        self.readiness.notify();
        PipeEnd { pipe: self.clone(), reads, writes, unmet: u64::MAX }
    }

    /// Opens ends as opening a FIFO does: one side waits until the other is, or was, there; a writer that does not wait
    /// fails instead.
    pub fn open(self: &Arc<Self>, reads: bool, writes: bool, io: &Io<'_>) -> Result<Arc<dyn Stream>, FsError> {
        if writes && !reads && io.nonblock && self.readers.load(Ordering::Acquire) == 0 {
            return Err(FsError::NoDevice);
        }
        // Who is there already may come to life by this opening, and be gone before this thread looks again.
        let (there, opens) = match reads {
            true => (&self.writers, &self.writer_opens),
            false => (&self.readers, &self.reader_opens),
        };
        let seen = opens.load(Ordering::Acquire);
        let met_already = there.load(Ordering::Acquire) > 0;
        let mut end = self.end(reads, writes);
        if reads == writes || io.nonblock || met_already {
            if reads && !writes && !met_already {
                end.unmet = seen;
            }
            return Ok(Arc::new(end));
        }
        let met = || there.load(Ordering::Acquire) > 0 || opens.load(Ordering::Acquire) != seen;
        self.readiness.wait(io, || met().then_some(()))?;
        Ok(Arc::new(end))
    }

    /// What nobody read is lost with the last end: whoever opens a FIFO then finds it empty.
    fn empty_if_closed(&self) {
        let closed = || self.readers.load(Ordering::Acquire) + self.writers.load(Ordering::Acquire) == 0;
        if closed() {
            let (_reader, _writer) = (self.reader.lock(), self.writer.lock());
            // A reader that opened meanwhile may lose what was written before it came, and a writer has the lock or comes
            // later.
            if closed() {
                self.read.store(self.written.load(Ordering::Acquire), Ordering::Release);
                self.pages.iter().for_each(|page| drop(page.lock().take()));
            }
        }
    }

    fn filled(&self) -> usize {
        let read = self.read.load(Ordering::Acquire);
        (self.written.load(Ordering::Acquire) - read) as usize
    }

    fn free(&self) -> usize {
        CAPACITY.saturating_sub(self.filled()) // both ends may move between the two looks
    }

    /// Copies what is there into `sink`.
    fn take(&self, sink: &mut dyn Sink) -> Result<usize, FsError> {
        let _one = self.reader.lock();
        let start = self.read.load(Ordering::Relaxed);
        let end = self.written.load(Ordering::Acquire);
        let mut at = start;
        let mut done = 0;
        let mut failed = None;
        while at < end && sink.room() > 0 {
            let (page, from) = place(at);
            let n = (PAGE_SIZE - from).min((end - at) as usize).min(sink.room());
            let moved = match &*self.pages[page].lock() {
                Some(bytes) => sink.put(&bytes[from..from + n]),
                None => Err(FsError::Io), // written bytes have a page
            };
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
        // Writers and polls wait for room only while less than ATOMIC bytes are free. Whether that was so is asked now, after
        // the new position: writers went on during the copy, and one that then found the ring full looked at the position
        // after its last write; so either it saw the new one, or its write is seen here.
        fence_full();
        let free_until_now = CAPACITY.saturating_sub((self.written.load(Ordering::Acquire) - start) as usize);
        if done > 0 && free_until_now < ATOMIC {
            self.readiness.notify();
        }
        match failed {
            Some(e) if done == 0 => Err(e),
            _ => Ok(done),
        }
    }

    /// Copies from `source` what fits, if that is at least `need`; else nothing. What is copied becomes visible at once.
    fn put(&self, source: &mut dyn Source, need: usize) -> Result<usize, FsError> {
        let _one = self.writer.lock();
        let mut at = self.written.load(Ordering::Relaxed);
        let free = CAPACITY - (at - self.read.load(Ordering::Acquire)) as usize;
        let left = source.left();
        if free < need {
            return Ok(0);
        }
        let end = at + free.min(left) as u64;
        let mut done = 0;
        let mut failed = None;
        while at < end {
            let (page, from) = place(at);
            let n = (PAGE_SIZE - from).min((end - at) as usize);
            let mut slot = self.pages[page].lock();
            if slot.is_none() {
                *slot = self.host.page();
            }
            let moved = match &mut *slot {
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
        if done > 0 {
            self.readiness.notify();
        }
        match failed {
            Some(e) if done == 0 => Err(e),
            _ => Ok(done),
        }
    }

    fn read_end(&self, io: &Io<'_>, sink: &mut dyn Sink) -> Result<usize, FsError> {
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
            // The writers are looked at first: the last one wrote before it closed.
            let state = || {
                let open = self.writers.load(Ordering::Acquire) > 0;
                if self.filled() > 0 { Some(true) } else { (!open).then_some(false) }
            };
            if !self.readiness.wait(io, state)? {
                return Ok(0);
            }
        }
    }

    fn write_end(&self, io: &Io<'_>, source: &mut dyn Source) -> Result<usize, FsError> {
        let mut done = 0;
        // What cannot wait and is large goes on as soon as anything fits.
        let grain = if io.nonblock && source.left() > ATOMIC { 1 } else { ATOMIC };
        loop {
            let need = source.left().min(grain);
            if need == 0 {
                return Ok(done);
            }
            if self.readers.load(Ordering::Acquire) == 0 {
                return if done > 0 { Ok(done) } else { Err(FsError::BrokenPipe) };
            }
            let outcome = match self.put(source, need) {
                Ok(0) => {
                    let state = || (self.free() >= need || self.readers.load(Ordering::Acquire) == 0).then_some(());
                    self.readiness.wait(io, state)
                }
                Ok(n) => {
                    done += n;
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
        if self.reads { self.pipe.read_end(io, sink) } else { Err(FsError::BadFile) }
    }

    fn write(&self, io: &Io<'_>, source: &mut dyn Source) -> Result<usize, FsError> {
        if self.writes { self.pipe.write_end(io, source) } else { Err(FsError::BadFile) }
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
        Ok(self.pipe.filled())
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl<H: Host> Drop for PipeEnd<H> {
    fn drop(&mut self) {
        if self.reads {
            self.pipe.readers.fetch_sub(1, Ordering::AcqRel);
        }
        if self.writes {
            self.pipe.writers.fetch_sub(1, Ordering::AcqRel);
        }
        self.pipe.empty_if_closed();
        self.pipe.readiness.notify();
    }
}

/// The page of the ring, and the place in it, of position `at`.
fn place(at: u64) -> (usize, usize) {
    let in_ring = (at % CAPACITY as u64) as usize;
    (in_ring / PAGE_SIZE, in_ring % PAGE_SIZE)
}

/// One end of a pair of connected sockets: two pipes, one each way.
pub struct Pair<H: Host> {
    /// `None` once that direction was shut down.
    from: SpinLock<Option<Arc<PipeEnd<H>>>>,
    to: SpinLock<Option<Arc<PipeEnd<H>>>>,
    readiness: Arc<Readiness>,
}

impl<H: Host> Pair<H> {
    /// Two ends that are connected to each other.
    #[allow(clippy::new_ret_no_self)]
    pub fn new(host: H) -> (Arc<Self>, Arc<Self>) {
        let readiness = Arc::new(Readiness::new());
        let pipes = [(); 2].map(|()| Pipe::announced_by(host.clone(), readiness.clone()));
        let end = |from: &Arc<Pipe<H>>, to: &Arc<Pipe<H>>| {
            let direction = |end| SpinLock::new(rank::ATTR, Some(Arc::new(end)));
            Arc::new(Pair {
                from: direction(from.end(true, false)),
                to: direction(to.end(false, true)),
                readiness: readiness.clone(),
            })
        };
        (end(&pipes[0], &pipes[1]), end(&pipes[1], &pipes[0]))
    }

    /// Closes the directions that are named, for both ends.
    pub fn shut(&self, reading: bool, writing: bool) {
        let from = if reading { self.from.lock().take() } else { None };
        let to = if writing { self.to.lock().take() } else { None };
        drop((from, to));
        self.readiness.notify();
    }
}

impl<H: Host> Stream for Pair<H> {
    fn read(&self, io: &Io<'_>, sink: &mut dyn Sink) -> Result<usize, FsError> {
        let end = self.from.lock().clone();
        end.map_or(Ok(0), |end| end.read(io, sink))
    }

    fn write(&self, io: &Io<'_>, source: &mut dyn Source) -> Result<usize, FsError> {
        let end = self.to.lock().clone();
        end.ok_or(FsError::BrokenPipe)?.write(io, source)
    }

    fn ready(&self) -> Ready {
        let from = self.from.lock().clone();
        let to = self.to.lock().clone();
        let from = from.map_or(Ready::HANGUP, |end| end.ready());
        let to = to.map_or(Ready::ERROR, |end| end.ready());
        let mut ready = (from & Ready::READ) | (to & Ready::WRITE);
        let (no_more, nobody) = (from.contains(Ready::HANGUP), to.contains(Ready::ERROR));
        if no_more {
            ready |= Ready::READ | Ready::READ_HANGUP;
        }
        if nobody {
            ready |= Ready::WRITE; // a write would not wait: it fails
        }
        ready.set(Ready::HANGUP, no_more && nobody);
        ready
    }

    fn readiness(&self) -> Option<&Readiness> {
        Some(&self.readiness)
    }

    fn queued(&self) -> Result<usize, FsError> {
        let end = self.from.lock().clone();
        end.map_or(Ok(0), |end| end.queued())
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_host::TestHost;
    use crate::transfer::{SliceSink, SliceSource};
    use proptest::prelude::*;
    use std::collections::VecDeque;
    use std::sync::atomic::AtomicBool;
    use std::vec::Vec;

    fn pipe() -> (Arc<dyn Stream>, Arc<dyn Stream>) {
        let p = Pipe::new(TestHost);
        (p.open_now(true, false), p.open_now(false, true))
    }
    fn write(s: &dyn Stream, io: &Io<'_>, bytes: &[u8]) -> Result<usize, FsError> {
        s.write(io, &mut SliceSource::new(bytes))
    }
    fn read(s: &dyn Stream, io: &Io<'_>, most: usize) -> Result<Vec<u8>, FsError> {
        let mut into = std::vec![0; most];
        let n = s.read(io, &mut SliceSink::new(&mut into))?;
        into.truncate(n);
        Ok(into)
    }

    #[test]
    fn many_bytes_arrive_in_order_through_a_pipe_that_fills_up() {
        let (r, w) = pipe();
        std::thread::scope(|s| {
            s.spawn(move || {
                for i in 0..40_000u32 {
                    let message: Vec<u8> = (0..i % 200).map(|k| (i + k) as u8).collect();
                    assert_eq!(write(&*w, &Io::WAIT, &message).unwrap(), message.len());
                }
            });
            let mut got = Vec::new();
            loop {
                let part = read(&*r, &Io::WAIT, 10_000).unwrap();
                if part.is_empty() {
                    break;
                }
                got.extend(part);
            }
            let want: Vec<u8> = (0..40_000u32).flat_map(|i| (0..i % 200).map(move |k| (i + k) as u8)).collect();
            assert!(got == want);
        });
    }

    #[test]
    fn small_writes_of_several_writers_are_never_torn_apart() {
        let p = Pipe::new(TestHost);
        let r = p.open_now(true, false);
        std::thread::scope(|s| {
            for id in 1..=3u8 {
                let w = p.open_now(false, true);
                s.spawn(move || {
                    for _ in 0..500 {
                        write(&*w, &Io::WAIT, &[id; 4000]).unwrap();
                    }
                });
            }
            let mut got = Vec::new();
            while got.len() < 3 * 500 * 4000 {
                got.extend(read(&*r, &Io::WAIT, 5000).unwrap());
            }
            assert!(got.chunks(4000).all(|c| c.iter().all(|b| *b == c[0])));
        });
    }

    #[test]
    fn a_writer_that_fills_the_pipe_during_a_read_is_woken_by_it() {
        /// Lets the writer go on until it sleeps, in the middle of the copy.
        struct Slow<'a>(&'a AtomicBool, usize);
        impl Sink for Slow<'_> {
            fn put(&mut self, bytes: &[u8]) -> Result<usize, FsError> {
                self.0.store(true, Ordering::SeqCst);
                std::thread::sleep(std::time::Duration::from_millis(30));
                self.1 -= bytes.len();
                Ok(bytes.len())
            }
            fn room(&self) -> usize {
                self.1
            }
        }
        let (r, w) = pipe();
        let copying = AtomicBool::new(false);
        write(&*w, &Io::NOW, b"x").unwrap();
        std::thread::scope(|s| {
            let writer = s.spawn(|| {
                while !copying.load(Ordering::SeqCst) {
                    std::thread::yield_now();
                }
                write(&*w, &Io { deadline: Some(quire_sync::hooks::now() + 5_000_000_000), ..Io::WAIT }, &[0; CAPACITY])
            });
            assert_eq!(r.read(&Io::NOW, &mut Slow(&copying, 1)), Ok(1));
            assert_eq!(writer.join().unwrap(), Ok(CAPACITY));
        });
    }

    #[test]
    fn ends_that_close_are_noticed() {
        let (r, w) = pipe();
        write(&*w, &Io::NOW, b"last").unwrap();
        assert_eq!(read(&*r, &Io::NOW, 2).unwrap(), b"la");
        drop(w);
        assert_eq!(r.ready(), Ready::READ | Ready::HANGUP);
        assert_eq!(read(&*r, &Io::WAIT, 10).unwrap(), b"st");
        assert_eq!(read(&*r, &Io::WAIT, 10).unwrap(), b"");
        let (r, w) = pipe();
        drop(r);
        assert_eq!(write(&*w, &Io::WAIT, b"x"), Err(FsError::BrokenPipe));
        assert!(w.ready().contains(Ready::ERROR));
    }

    #[test]
    fn a_reader_that_waits_is_woken_by_the_last_writer_leaving() {
        let (r, w) = pipe();
        std::thread::scope(|s| {
            let reader = s.spawn(move || read(&*r, &Io::WAIT, 10));
            std::thread::sleep(std::time::Duration::from_millis(20));
            drop(w);
            assert_eq!(reader.join().unwrap().unwrap(), b"");
        });
    }

    #[test]
    fn who_does_not_wait_is_told_so_and_who_is_interrupted_too() {
        let (r, w) = pipe();
        assert_eq!(read(&*r, &Io::NOW, 1), Err(FsError::WouldBlock));
        let big = std::vec![7; CAPACITY + 5];
        assert_eq!(write(&*w, &Io::NOW, &big), Ok(CAPACITY));
        assert_eq!(write(&*w, &Io::NOW, b"x"), Err(FsError::WouldBlock));
        read(&*r, &Io::NOW, 100).unwrap();
        assert_eq!(write(&*w, &Io::NOW, &[0; 101]), Err(FsError::WouldBlock), "small writes are whole");
        assert_eq!(write(&*w, &Io::NOW, &big), Ok(100), "large ones are not");
        let io = Io { interrupted: &|| true, ..Io::WAIT };
        assert_eq!(write(&*w, &io, b"x"), Err(FsError::Interrupted));
    }

    #[test]
    fn a_fifo_that_everybody_left_is_empty() {
        let p = Pipe::new(TestHost);
        let both = p.open(true, true, &Io::NOW).unwrap();
        write(&*both, &Io::NOW, b"never read").unwrap();
        drop(both);
        let both = p.open(true, true, &Io::NOW).unwrap();
        assert_eq!(read(&*both, &Io::NOW, 99), Err(FsError::WouldBlock));
    }

    #[test]
    fn opening_a_fifo_waits_for_the_other_end() {
        let p = Pipe::new(TestHost);
        assert!(matches!(p.open(false, true, &Io::NOW), Err(FsError::NoDevice)));
        let met = AtomicBool::new(false);
        std::thread::scope(|s| {
            s.spawn(|| {
                let r = p.open(true, false, &Io::WAIT).unwrap();
                met.store(true, Ordering::SeqCst);
                assert_eq!(read(&*r, &Io::WAIT, 9).unwrap(), b"hello");
            });
            std::thread::sleep(std::time::Duration::from_millis(20));
            assert!(!met.load(Ordering::SeqCst));
            let w = p.open(false, true, &Io::WAIT).unwrap();
            write(&*w, &Io::WAIT, b"hello").unwrap();
        });
    }

    #[test]
    fn a_writer_that_opened_first_and_leaves_at_once_is_met() {
        let p = Pipe::new(TestHost);
        std::thread::scope(|s| {
            let writer = s.spawn(|| write(&*p.open(false, true, &Io::WAIT).unwrap(), &Io::WAIT, b"x"));
            std::thread::sleep(std::time::Duration::from_millis(20));
            // As preempted right after the opening was announced: the writer has come and gone.
            struct Late(Arc<Pipe<TestHost>>, std::thread::ThreadId);
            impl crate::Listener for Late {
                fn changed(&self) {
                    let opener = std::thread::current().id() == self.1;
                    while opener && (self.0.filled() == 0 || self.0.writers.load(Ordering::SeqCst) > 0) {
                        std::thread::yield_now();
                    }
                }
            }
            let late: Arc<dyn crate::Listener> = Arc::new(Late(p.clone(), std::thread::current().id()));
            p.readiness.listen(&late);
            let io = Io { deadline: Some(quire_sync::hooks::now() + 2_000_000_000), ..Io::WAIT };
            let r = p.open(true, false, &io).expect("the writer was there");
            p.readiness.unlisten(&late);
            assert_eq!(read(&*r, &Io::WAIT, 9).unwrap(), b"x");
            assert_eq!(writer.join().unwrap(), Ok(1));
        });
    }

    #[test]
    fn a_socket_pair_carries_both_ways_and_ends_when_one_side_goes() {
        let (a, b) = Pair::new(TestHost);
        write(&*a, &Io::NOW, b"ping").unwrap();
        write(&*b, &Io::NOW, b"pong").unwrap();
        assert_eq!(read(&*b, &Io::NOW, 9).unwrap(), b"ping");
        assert_eq!(read(&*a, &Io::NOW, 9).unwrap(), b"pong");
        a.shut(false, true);
        assert_eq!(read(&*b, &Io::NOW, 9).unwrap(), b"");
        drop(a);
        assert!(b.ready().contains(Ready::HANGUP));
        assert_eq!(write(&*b, &Io::NOW, b"x"), Err(FsError::BrokenPipe));
    }

    proptest! {
        #[test]
        fn a_pipe_is_a_queue_of_bytes(steps in prop::collection::vec((any::<bool>(), 0usize..20_000), 1..60)) {
            let (r, w) = pipe();
            let mut model = VecDeque::new();
            let mut next = 0u8;
            for (writes, n) in steps {
                if writes {
                    let bytes: Vec<u8> = (0..n).map(|_| { next = next.wrapping_add(1); next }).collect();
                    let done = write(&*w, &Io::NOW, &bytes).unwrap_or(0);
                    let free = CAPACITY - model.len();
                    prop_assert_eq!(done, if n <= ATOMIC && n > free { 0 } else { n.min(free) });
                    model.extend(&bytes[..done]);
                } else if n > 0 {
                    let got = read(&*r, &Io::NOW, n).unwrap_or_default();
                    prop_assert_eq!(got.len(), n.min(model.len()));
                    prop_assert!(got.iter().all(|b| Some(*b) == model.pop_front()));
                }
                prop_assert_eq!(r.queued().unwrap(), model.len());
                prop_assert_eq!(w.ready().contains(Ready::WRITE), CAPACITY - model.len() >= ATOMIC);
            }
        }
    }
}
