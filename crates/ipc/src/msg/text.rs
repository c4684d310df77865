//! The bytes of a message, in chunks.

use crate::error::Error;
use quire_heap::Vec;

/// The bytes of the largest chunk.
const CHUNK: usize = 4096;

/// The bytes of a message, in several allocations.
pub struct Text {
    chunks: Vec<Vec<u8>>,
    len: usize,
}

impl Text {
    /// A text of `len` zero bytes.
    pub fn new(len: usize) -> Result<Self, Error> {
        let mut chunks = Vec::try_with_capacity(len.div_ceil(CHUNK))?;
        for first in (0..len).step_by(CHUNK) {
            let mut chunk = Vec::new();
            chunk.try_resize(CHUNK.min(len - first), 0)?;
            chunks.push_reserved(chunk);
        }
        Ok(Text { chunks, len })
    }

    /// The number of bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the text has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The chunks of the text, in order.
    pub fn chunks(&self) -> impl Iterator<Item = &[u8]> {
        self.chunks.iter().map(|chunk| &chunk[..])
    }

    /// The chunks of the text, in order, to be filled.
    pub fn chunks_mut(&mut self) -> impl Iterator<Item = &mut [u8]> {
        self.chunks.iter_mut().map(|chunk| &mut chunk[..])
    }

    /// A copy of the text.
    pub(super) fn copy(&self) -> Result<Self, Error> {
        let mut copy = Text::new(self.len)?;
        for (to, from) in copy.chunks_mut().zip(self.chunks()) {
            to.copy_from_slice(from);
        }
        Ok(copy)
    }
}
