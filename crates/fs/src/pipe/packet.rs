//! Packets: the writes to a pipe through a file opened with O_DIRECT.
//!
//! A packet begins a page of the ring and uses it alone, so the ring holds at most as many packets as pages. The
//! position behind a packet is the next page. The bytes from the end of a packet, or of the stream before it, to the
//! next page are a *gap*. A [`Mark`] in the page gives the end of its bytes. Only pages with a packet or a gap are
//! marked.
//!
//! A mark has its page's number, and a mark with another number is ignored. There are two reasons. First, a stream's
//! first and last bytes can lie in the same page of the ring. Second, a mark stays when the page is reused.
//!
//! As on Linux, a packet that fits into the page behind the bytes of a stream becomes part of that stream.

use super::{Large, Pipe, RingPage, Writing, place};
use crate::FsError;
use crate::host::{Host, PAGE_SIZE};
use crate::stream::transfer::{Sink, Source};
use quire_sync::MutexGuard;
use quire_sync::atomic::Ordering;

/// The end of a page's bytes, or 0 for no mark. The three fields are the number of the page plus one, the number of
/// bytes minus one, and whether they are a packet.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Mark(u64);

/// The bits of a number of bytes minus one, and the bit for a packet.
const BITS: u32 = PAGE_SIZE.trailing_zeros() + 1;

impl Mark {
    pub(super) const NONE: Mark = Mark(0);

    fn new(page: u64, len: usize, packet: bool) -> Self {
        debug_assert!((1..=PAGE_SIZE).contains(&len), "{len} bytes in a page");
        Mark((page + 1) << BITS | ((len as u64 - 1) << 1) | u64::from(packet))
    }

    /// The content of the mark, if it belongs to the page at position `at`.
    #[inline(always)]
    pub(super) fn of(self, at: u64) -> Option<MarkedPage> {
        if self == Self::NONE { None } else { self.of_page(at / PAGE_SIZE as u64) }
    }

    #[cold]
    fn of_page(self, page: u64) -> Option<MarkedPage> {
        let len = (self.0 >> 1) as usize % PAGE_SIZE + 1;
        (self.0 >> BITS == page + 1).then_some(MarkedPage { len, packet: self.0 & 1 != 0 })
    }
}

/// The content of a page's mark.
#[derive(Clone, Copy)]
pub(super) struct MarkedPage {
    /// The number of bytes that were written into the page.
    pub len: usize,
    /// Whether these bytes are a packet.
    pub packet: bool,
}

/// The bytes that a reader took from a page with a mark.
pub(super) struct Taken {
    pub bytes: usize,
    /// The number by which the reader's position advances.
    pub positions: usize,
    /// Whether the read ends after these bytes.
    pub last: bool,
}

impl<H: Host> Pipe<H> {
    /// Copies up to `n` bytes into `sink`, from offset `from` of a page with `len` bytes. The rest of a `packet` is
    /// lost.
    #[cold]
    pub(super) fn take_marked(
        &self,
        place: &RingPage<H>,
        MarkedPage { len, packet }: MarkedPage,
        from: usize,
        n: usize,
        sink: &mut dyn Sink,
    ) -> Result<Taken, FsError> {
        let n = n.min(len.saturating_sub(from));
        let bytes = place.page.as_ref().ok_or(FsError::Io)?;
        let moved = if n == 0 { 0 } else { sink.put(&bytes[from..from + n])? };
        if packet && moved < n {
            // A packet of which the sink took only a part stays whole in the ring, for the next read.
            return Err(FsError::Fault);
        }
        if !packet && from + moved < len {
            return Ok(Taken { bytes: moved, positions: moved, last: moved < n });
        }
        self.gaps.fetch_sub(PAGE_SIZE - len, Ordering::AcqRel);
        Ok(Taken { bytes: moved, positions: PAGE_SIZE - from, last: packet })
    }

    /// Copies one packet from `source` if a page of the ring is free. Returns its number of bytes, or 0 if no page is
    /// free. The `first` packet of a write may join the stream before it.
    #[cold]
    pub(super) fn put_packet(&self, source: &mut dyn Source, first: bool) -> Result<usize, FsError> {
        // Set before the check for room: from now on readers notify writers when a whole page is free.
        self.packets.store(true, Ordering::Release);
        let reader = self.reader.lock();
        let writer = self.writer.lock();
        let ring = self.ring(&writer.large);
        let (mut read, mut at) = (self.read.load(Ordering::Acquire), self.written.load(Ordering::Relaxed));
        let odd = source.left() % PAGE_SIZE;
        let from = at as usize % PAGE_SIZE;
        if first && read < at && from != 0 && odd != 0 && from + odd <= PAGE_SIZE {
            return self.join(source, odd, reader, writer);
        }
        if read == at {
            // The ring is empty, so both positions move to the next page. That leaves no gap; a small ring would have
            // no room for a gap. The reader's position moves first, so that no thread sees bytes between the two
            // positions.
            at = at.next_multiple_of(PAGE_SIZE as u64);
            read = at;
            self.read.store(at, Ordering::Release);
            self.written.store(at, Ordering::Release);
        }
        drop(reader);
        let start = at.next_multiple_of(PAGE_SIZE as u64);
        let end = start + PAGE_SIZE as u64;
        if end - read > (ring.len() * PAGE_SIZE) as u64 {
            return Ok(0);
        }
        let len = source.left().min(PAGE_SIZE);
        let mut slot = ring[place(start, ring.len()).0].lock();
        if slot.page.is_none() {
            slot.page = self.host.page();
        }
        let bytes = slot.page.as_mut().ok_or(FsError::OutOfMemory)?;
        // A packet that was copied only in part is not written.
        if source.take(&mut bytes[..len])? < len {
            return Err(FsError::Fault);
        }
        slot.mark = Mark::new(start / PAGE_SIZE as u64, len, true);
        drop(slot);
        if at < start {
            let from = at as usize % PAGE_SIZE;
            ring[place(at, ring.len()).0].lock().mark = Mark::new(at / PAGE_SIZE as u64, from, false);
        }
        self.gaps.fetch_add((end - at) as usize - len, Ordering::AcqRel);
        self.written.store(end, Ordering::Release);
        // The lock is released before the notification. A notified listener may drop the last reference to an end, and
        // that drop acquires the reader's and the writer's lock.
        drop(writer);
        self.readiness.notify();
        Ok(len)
    }

    /// Copies the `odd` bytes of a packet to the end of the stream before it, in the stream's last page. Returns 0 if
    /// the ring has no room for them.
    ///
    /// Both locks are held during the copy, for two reasons. Another writer's packet must not come between the stream
    /// and this packet. Also, no reader may take the whole stream during the copy. The packet's bytes would then be
    /// left as a stream of their own, which the next packet would join.
    fn join(
        &self,
        source: &mut dyn Source,
        odd: usize,
        reader: MutexGuard<'_, Large<H>>,
        writer: MutexGuard<'_, Writing<H>>,
    ) -> Result<usize, FsError> {
        let ring = self.ring(&writer.large);
        let at = self.written.load(Ordering::Relaxed);
        if at - self.read.load(Ordering::Relaxed) + odd as u64 > (ring.len() * PAGE_SIZE) as u64 {
            return Ok(0);
        }
        let (page, from) = place(at, ring.len());
        let mut slot = ring[page].lock();
        let bytes = slot.page.as_mut().ok_or(FsError::Io)?; // written bytes have a page
        // A packet that was copied only in part is not written.
        if source.take(&mut bytes[from..from + odd])? < odd {
            return Err(FsError::Fault);
        }
        drop(slot);
        self.written.store(at + odd as u64, Ordering::Release);
        // The locks are released before the notification. A notified listener may drop the last reference to an end,
        // and that drop acquires the reader's and the writer's lock.
        drop((writer, reader));
        self.readiness.notify();
        Ok(odd)
    }
}
