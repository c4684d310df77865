//! The destinations and sources of bytes, mostly user memory. The methods of both may sleep.

use crate::FsError;

/// A receiver of bytes that were read.
pub trait Sink {
    /// Takes bytes from the front of `bytes` and returns their number. If it takes fewer than all, or fails, it can
    /// take no more, because its memory ends or faults.
    fn put(&mut self, bytes: &[u8]) -> Result<usize, FsError>;
    /// The number of bytes that the sink can still take, unless its memory ends before.
    fn room(&self) -> usize;
    /// Whether the owner of the sink must exit, and needs no bytes any more. A long search for bytes calls this from
    /// time to time.
    fn is_over(&self) -> bool {
        false
    }
}

/// A supplier of bytes to be written.
pub trait Source {
    /// Fills the front of `into` and returns the number of bytes. A smaller number than requested means that no more
    /// bytes come now. 0 or an error means that no more bytes will come.
    fn take(&mut self, into: &mut [u8]) -> Result<usize, FsError>;
    /// The number of bytes still to come, unless its memory ends before.
    fn left(&self) -> usize;
}

/// A sink over a slice of kernel memory.
pub struct SliceSink<'a> {
    into: &'a mut [u8],
    used: usize,
}

impl<'a> SliceSink<'a> {
    /// A sink that fills `into` from its front.
    pub fn new(into: &'a mut [u8]) -> Self {
        SliceSink { into, used: 0 }
    }
    /// The number of bytes taken so far.
    pub fn used(&self) -> usize {
        self.used
    }
}

impl Sink for SliceSink<'_> {
    fn put(&mut self, bytes: &[u8]) -> Result<usize, FsError> {
        let n = bytes.len().min(self.room());
        self.into[self.used..self.used + n].copy_from_slice(&bytes[..n]);
        self.used += n;
        Ok(n)
    }
    fn room(&self) -> usize {
        self.into.len() - self.used
    }
}

/// A source over a slice of kernel memory.
pub struct SliceSource<'a> {
    from: &'a [u8],
}

impl<'a> SliceSource<'a> {
    /// A source that supplies the bytes of `from` once.
    pub fn new(from: &'a [u8]) -> Self {
        SliceSource { from }
    }
}

impl Source for SliceSource<'_> {
    fn take(&mut self, into: &mut [u8]) -> Result<usize, FsError> {
        let n = into.len().min(self.from.len());
        let (now, later) = self.from.split_at(n);
        into[..n].copy_from_slice(now);
        self.from = later;
        Ok(n)
    }
    fn left(&self) -> usize {
        self.from.len()
    }
}

/// A sink that passes at most `room` bytes on to another sink: one file's part of a larger transfer.
pub struct Limited<'a> {
    inner: &'a mut dyn Sink,
    room: usize,
}

impl<'a> Limited<'a> {
    /// A sink that passes at most `room` bytes on to `inner`.
    pub fn new(inner: &'a mut dyn Sink, room: usize) -> Self {
        Limited { inner, room }
    }
}

impl Sink for Limited<'_> {
    fn put(&mut self, bytes: &[u8]) -> Result<usize, FsError> {
        let n = self.inner.put(&bytes[..bytes.len().min(self.room)])?;
        self.room -= n;
        Ok(n)
    }
    fn room(&self) -> usize {
        self.room.min(self.inner.room())
    }
    fn is_over(&self) -> bool {
        self.inner.is_over()
    }
}
