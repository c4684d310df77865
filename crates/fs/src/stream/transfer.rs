//! Where bytes go to and come from: user memory, as a rule. Both may sleep.

use crate::FsError;

/// Takes bytes that were read.
pub trait Sink {
    /// Takes bytes from the front of `bytes` and returns how many. Fewer than all, or an error where it is none at all,
    /// mean that no more can be taken (the memory ends or faults).
    fn put(&mut self, bytes: &[u8]) -> Result<usize, FsError>;
    /// How many bytes it still takes, if its memory holds out.
    fn room(&self) -> usize;
}

/// Supplies bytes to be written.
pub trait Source {
    /// Fills the front of `into` and returns how much. Less than all means that no more comes now; nothing, or an error where
    /// it is nothing at all, that no more comes.
    fn take(&mut self, into: &mut [u8]) -> Result<usize, FsError>;
    /// How many bytes are still to come, if its memory holds out.
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
    /// Bytes taken so far.
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
    /// A source that gives `from`, once.
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

/// A sink that passes at most `room` bytes on: one file's part of a larger transfer.
pub struct Limited<'a> {
    inner: &'a mut dyn Sink,
    room: usize,
}

impl<'a> Limited<'a> {
    /// Passes at most `room` bytes on to `inner`.
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
}
