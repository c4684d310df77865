//! Moves between pipes, and between a pipe and another file: `splice` and `tee`.
//!
//! Bytes are copied through the caller's buffer. A mover holds the reader's lock of the pipe that it takes from, and
//! the writer's lock of the pipe that it gives to. So no other thread takes the same bytes. No byte is lost, because
//! bytes leave a pipe only after their receiver has them. No page's lock is held while another file is read or written.
//!
//! # Lock order
//! A reader's lock of any pipe is taken before a writer's lock of any pipe. A thread that holds a writer's lock waits
//! only for locks of pages, each held for one copy.

use super::packet::MarkedPage;
use super::{Large, Pipe, PipeEnd, place};
use crate::FsError;
use crate::host::{Host, PAGE_SIZE};
use crate::stream::io::Io;
use crate::stream::transfer::{Sink, SliceSink};
use quire_heap::Arc;
use quire_sync::atomic::Ordering;

/// A sink that drops the given number of bytes.
struct Nowhere(usize);

impl Sink for Nowhere {
    fn put(&mut self, bytes: &[u8]) -> Result<usize, FsError> {
        let n = bytes.len().min(self.0);
        self.0 -= n;
        Ok(n)
    }
    fn room(&self) -> usize {
        self.0
    }
}

impl<H: Host> PipeEnd<H> {
    /// Whether the two are ends of one pipe.
    pub fn is_of_same_pipe(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.pipe, &other.pipe)
    }

    /// Whether bytes can be read from this end.
    pub fn reads(&self) -> bool {
        self.reads
    }

    /// Whether bytes can be written to this end.
    pub fn writes(&self) -> bool {
        self.writes
    }

    /// Waits for bytes. Returns false at the end: the pipe is empty and has no writer.
    pub fn wait_for_bytes(&self, io: &Io<'_>) -> Result<bool, FsError> {
        let pipe = &self.pipe;
        pipe.readiness.wait(io, || {
            // The number of writers is read before the bytes, because the last writer wrote before it closed. So a
            // reader that finds no writer sees all bytes.
            let open = pipe.writers.load(Ordering::Acquire) > 0 && !self.closed.load(Ordering::Acquire);
            if pipe.filled() > 0 { Some(true) } else { (!open).then_some(false) }
        })
    }

    /// Waits for room. Fails with [`FsError::BrokenPipe`] if there is no reader.
    pub fn wait_for_room(&self, io: &Io<'_>) -> Result<(), FsError> {
        let pipe = &self.pipe;
        pipe.readiness.wait(io, || {
            if pipe.readers.load(Ordering::Acquire) == 0 || self.closed.load(Ordering::Acquire) {
                return Some(Err(FsError::BrokenPipe));
            }
            (pipe.free() > 0).then_some(Ok(()))
        })?
    }

    /// Moves bytes to `to`, an end of another pipe, as many as `buffer` and the two pipes allow now. Returns their
    /// number. With `keep` the bytes stay in this pipe too.
    pub fn move_to_pipe(&self, to: &Self, buffer: &mut [u8], keep: bool) -> Result<usize, FsError> {
        if self.is_of_same_pipe(to) {
            return Err(FsError::Invalid);
        }
        let (from, to) = (&*self.pipe, &*to.pipe);
        let reader = from.reader.lock();
        let writer = to.writer.lock();
        let n = to.reserve(&writer.large, buffer.len().min(from.filled()))?;
        let got = from.copy_out(&reader, &mut SliceSink::new(&mut buffer[..n]), keep)?;
        to.store(&writer.large, &buffer[..got]);
        drop(writer);
        drop(reader);
        if got > 0 {
            to.readiness.notify();
            from.readiness.notify();
        }
        Ok(got)
    }

    /// Passes bytes of the pipe to `write`, and removes the bytes that `write` accepts. `write` gets some of the bytes
    /// and returns how many it accepted. Returns that number, or 0 if the pipe is empty.
    pub fn give(
        &self,
        buffer: &mut [u8],
        write: &mut dyn FnMut(&[u8]) -> Result<usize, FsError>,
    ) -> Result<usize, FsError> {
        let pipe = &*self.pipe;
        let reader = pipe.reader.lock();
        let got = pipe.copy_out(&reader, &mut SliceSink::new(buffer), true)?;
        if got == 0 {
            return Ok(0);
        }
        let written = write(&buffer[..got])?.min(got);
        pipe.copy_out(&reader, &mut Nowhere(written), false)?;
        drop(reader);
        pipe.readiness.notify();
        Ok(written)
    }

    /// Adds the bytes that `read` supplies. `read` fills the front of a buffer and returns their number. Returns `None`
    /// if there is no room.
    pub fn receive(
        &self,
        buffer: &mut [u8],
        read: &mut dyn FnMut(&mut [u8]) -> Result<usize, FsError>,
    ) -> Result<Option<usize>, FsError> {
        let pipe = &*self.pipe;
        let writer = pipe.writer.lock();
        let n = pipe.reserve(&writer.large, buffer.len())?;
        if n == 0 {
            return Ok(None);
        }
        let got = read(&mut buffer[..n])?.min(n);
        pipe.store(&writer.large, &buffer[..got]);
        drop(writer);
        if got > 0 {
            pipe.readiness.notify();
        }
        Ok(Some(got))
    }
}

impl<H: Host> Pipe<H> {
    /// Allocates the pages for up to `most` more bytes. Returns how many bytes fit. The caller holds the writer's lock,
    /// which guards `large`.
    fn reserve(&self, large: &Large<H>, most: usize) -> Result<usize, FsError> {
        let ring = self.ring(large);
        let at = self.written.load(Ordering::Relaxed);
        let used = (at - self.read.load(Ordering::Acquire)) as usize;
        let n = most.min(ring.len() * PAGE_SIZE - used);
        let end = at + n as u64;
        let mut page = at;
        while page < end {
            let mut slot = ring[place(page, ring.len()).0].lock();
            if slot.page.is_none() {
                slot.page = Some(self.host.page().ok_or(FsError::OutOfMemory)?);
            }
            drop(slot);
            page = (page + 1).next_multiple_of(PAGE_SIZE as u64);
        }
        Ok(n)
    }

    /// Adds bytes for which [`reserve`](Self::reserve) has made room. The caller has held the writer's lock since that
    /// call.
    fn store(&self, large: &Large<H>, bytes: &[u8]) {
        let ring = self.ring(large);
        let mut at = self.written.load(Ordering::Relaxed);
        let mut rest = bytes;
        while !rest.is_empty() {
            let (page, from) = place(at, ring.len());
            let n = (PAGE_SIZE - from).min(rest.len());
            if let Some(page) = &mut ring[page].lock().page {
                page[from..from + n].copy_from_slice(&rest[..n]);
            }
            at += n as u64;
            rest = &rest[n..];
        }
        self.written.store(at, Ordering::Release);
    }

    /// Copies bytes into `sink`, and removes them from the pipe unless `keep`. The caller holds the reader's lock,
    /// which guards `large`.
    fn copy_out(&self, large: &Large<H>, sink: &mut dyn Sink, keep: bool) -> Result<usize, FsError> {
        let ring = self.ring(large);
        let mut at = self.read.load(Ordering::Relaxed);
        let end = self.written.load(Ordering::Acquire);
        let (mut done, mut gaps) = (0, 0);
        while at < end && sink.room() > 0 {
            let (page, from) = place(at, ring.len());
            let slot = ring[page].lock();
            let bytes = slot.page.as_ref().ok_or(FsError::Io)?; // written bytes have a page
            let marked = slot.mark.of(at);
            // The number of bytes in the page. Behind them, a marked page has positions without bytes.
            let len = marked.map_or(PAGE_SIZE.min(from + (end - at) as usize), |page| page.len);
            let n = len.saturating_sub(from).min(sink.room());
            let moved = if n == 0 { 0 } else { sink.put(&bytes[from..from + n])? };
            drop(slot);
            done += moved;
            match marked {
                // The rest of a packet is removed with its first bytes, but is not copied.
                Some(MarkedPage { len, packet }) if packet || from + moved >= len => {
                    gaps += PAGE_SIZE - len;
                    at += (PAGE_SIZE - from) as u64;
                    if packet {
                        break;
                    }
                }
                _ => at += moved as u64,
            }
            if moved < n {
                break;
            }
        }
        if !keep {
            self.gaps.fetch_sub(gaps, Ordering::AcqRel);
            self.read.store(at, Ordering::Release);
        }
        Ok(done)
    }
}
