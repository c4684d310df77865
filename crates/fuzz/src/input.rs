//! An input of the fuzzer: bytes as a list of decisions.

/// Bytes that are consumed from the front. When none is left, further bytes read as zero.
pub struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    /// An input of all `bytes`.
    pub fn new(bytes: &'a [u8]) -> Self {
        Input(bytes)
    }

    /// Whether all bytes are consumed.
    pub fn is_over(&self) -> bool {
        self.0.is_empty()
    }

    /// The bytes that are not consumed yet.
    pub fn rest(&self) -> &'a [u8] {
        self.0
    }

    /// Consumes the next byte.
    pub fn byte(&mut self) -> u8 {
        match self.0.split_first() {
            Some((first, rest)) => {
                self.0 = rest;
                *first
            }
            None => 0,
        }
    }

    /// Consumes a little-endian number of two bytes.
    pub fn short(&mut self) -> u16 {
        u16::from_le_bytes([self.byte(), self.byte()])
    }

    /// Consumes a little-endian number of eight bytes.
    pub fn long(&mut self) -> u64 {
        u64::from_le_bytes(std::array::from_fn(|_| self.byte()))
    }

    /// Consumes a number below `n`: one byte if `n` is at most 256, otherwise two.
    pub fn below(&mut self, n: usize) -> usize {
        if n <= 256 { usize::from(self.byte()) % n } else { usize::from(self.short()) % n }
    }

    /// Consumes the next `len` bytes, or as many as are left.
    pub fn take(&mut self, len: usize) -> &'a [u8] {
        let (front, rest) = self.0.split_at(len.min(self.0.len()));
        self.0 = rest;
        front
    }
}
