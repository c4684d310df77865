//! Netlink messages: reading requests, and writing answers.

use quire_fs::FsError;
use quire_heap::Vec;

/// The size of a message's header in bytes: length, type, flags, sequence number, port.
pub(super) const HEADER: usize = 16;
/// The size of an attribute's header in bytes: length, type.
const ATTRIBUTE: usize = 4;
/// The bits of an attribute's type field without the flags.
const TYPE_MASK: u16 = 0x3fff;

const fn align(len: usize) -> usize {
    len.next_multiple_of(4)
}

/// The header of a request.
#[derive(Clone, Copy)]
pub(super) struct Header {
    pub len: u32,
    pub kind: u16,
    pub flags: u16,
    pub sequence: u32,
    pub port: u32,
}

impl Header {
    /// The header at the beginning of `bytes`. `None` if `bytes` is shorter than a header.
    fn read(bytes: &[u8]) -> Option<Header> {
        let [a, b, c, d] = bytes.first_chunk::<HEADER>()?.as_chunks::<4>().0.first_chunk::<4>()?;
        let word = |bytes: &[u8; 4]| u32::from_le_bytes(*bytes);
        let kinds = word(b);
        Some(Header { len: word(a), kind: kinds as u16, flags: (kinds >> 16) as u16, sequence: word(c), port: word(d) })
    }
}

/// A request: its header, and the body that follows.
pub(super) struct Request<'a> {
    pub header: Header,
    pub body: &'a [u8],
}

/// The requests in `bytes`. As on Linux, a request with a wrong length ends the list.
pub(super) fn requests(mut bytes: &[u8]) -> impl Iterator<Item = Request<'_>> {
    core::iter::from_fn(move || {
        let header = Header::read(bytes)?;
        let len = usize::try_from(header.len).ok().filter(|len| (HEADER..=bytes.len()).contains(len))?;
        let body = &bytes[HEADER..len];
        bytes = bytes.get(align(len)..).unwrap_or(&[]);
        Some(Request { header, body })
    })
}

impl<'a> Request<'a> {
    /// The address family, which is the first byte of every body.
    pub(super) fn family(&self) -> Option<u8> {
        self.body.first().copied()
    }

    /// The last attribute of type `kind`. The attributes follow a structure of `behind` bytes in the body.
    pub(super) fn attribute(&self, behind: usize, kind: u16) -> Option<&'a [u8]> {
        let mut rest = self.body.get(align(behind)..)?;
        let mut found = None;
        while let Some((head, _)) = rest.split_first_chunk::<ATTRIBUTE>() {
            let [a, b, c, d] = *head;
            let len = usize::from(u16::from_le_bytes([a, b]));
            if len < ATTRIBUTE || len > rest.len() {
                break;
            }
            if u16::from_le_bytes([c, d]) & TYPE_MASK == kind {
                found = Some(&rest[ATTRIBUTE..len]);
            }
            rest = rest.get(align(len)..).unwrap_or(&[]);
        }
        found
    }

    /// The 32-bit number at offset `at` in the body.
    pub(super) fn word(&self, at: usize) -> Option<u32> {
        Some(u32::from_le_bytes(*self.body.get(at..)?.first_chunk()?))
    }
}

/// The answers in one datagram. Every part is padded to 4 bytes.
pub(super) struct Answers {
    pub bytes: Vec<u8>,
}

impl Answers {
    pub(super) fn new() -> Self {
        Answers { bytes: Vec::new() }
    }

    /// Adds a message, whose parts `fill` adds.
    pub(super) fn message(
        &mut self,
        (kind, flags): (u16, u16),
        to: &Header,
        port: u32,
        fill: impl FnOnce(&mut Self) -> Result<(), FsError>,
    ) -> Result<(), FsError> {
        let start = self.bytes.len();
        self.part(&[0; 4])?;
        self.part(&two(kind, flags))?;
        self.part(&to.sequence.to_le_bytes())?;
        self.part(&port.to_le_bytes())?;
        fill(self)?;
        let len = (self.bytes.len() - start) as u32;
        self.bytes[start..start + 4].copy_from_slice(&len.to_le_bytes());
        Ok(())
    }

    /// Adds the header of a request as it was received.
    pub(super) fn header(&mut self, of: &Header) -> Result<(), FsError> {
        self.part(&of.len.to_le_bytes())?;
        self.part(&two(of.kind, of.flags))?;
        self.part(&of.sequence.to_le_bytes())?;
        self.part(&of.port.to_le_bytes())
    }

    /// Adds bytes, and padding.
    pub(super) fn part(&mut self, bytes: &[u8]) -> Result<(), FsError> {
        self.bytes.try_extend_from_slice(bytes)?;
        self.bytes.try_resize(align(self.bytes.len()), 0)?;
        Ok(())
    }

    /// Adds an attribute.
    pub(super) fn attribute(&mut self, kind: u16, value: &[u8]) -> Result<(), FsError> {
        let len = (ATTRIBUTE + value.len()) as u16;
        self.part(&two(len, kind))?;
        self.part(value)
    }

    /// Adds an attribute of 32 bits.
    pub(super) fn number(&mut self, kind: u16, value: u32) -> Result<(), FsError> {
        self.attribute(kind, &value.to_le_bytes())
    }
}

/// The bytes of two 16-bit numbers, one after the other.
fn two(one: u16, other: u16) -> [u8; 4] {
    (u32::from(one) | u32::from(other) << 16).to_le_bytes()
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    fn to() -> Header {
        Header { len: 16, kind: 0, flags: 0, sequence: 5, port: 0 }
    }

    #[test]
    fn answers_are_read_as_they_are_written() {
        let mut answers = Answers::new();
        for _ in 0..2 {
            answers
                .message((16, 2), &to(), 9, |a| {
                    a.part(&[17, 0, 0, 0])?;
                    a.attribute(3, b"lo\0")?;
                    a.number(4, 7)
                })
                .unwrap();
        }
        let all: std::vec::Vec<_> = requests(&answers.bytes).collect();
        assert_eq!(all.len(), 2);
        for one in &all {
            let Header { len, kind, flags, sequence, port } = one.header;
            assert_eq!((len, kind, flags, sequence, port), (36, 16, 2, 5, 9));
            assert_eq!(one.family(), Some(17));
            assert_eq!(one.attribute(1, 3), Some(&b"lo\0"[..]));
            assert_eq!(one.attribute(1, 4), Some(&[7, 0, 0, 0][..]));
            assert_eq!(one.attribute(1, 5), None);
        }
    }

    #[test]
    fn wrong_lengths_end_the_requests() {
        let mut answers = Answers::new();
        answers.message((16, 0), &to(), 0, |a| a.attribute(1, b"abcd")).unwrap();
        let good = answers.bytes.len();
        for len in [0u32, 15, 25, u32::MAX] {
            answers.bytes[..4].copy_from_slice(&len.to_le_bytes());
            assert_eq!(requests(&answers.bytes).count(), 0, "{len}");
        }
        answers.bytes[..4].copy_from_slice(&(good as u32).to_le_bytes());
        assert_eq!(requests(&answers.bytes[..good - 1]).count(), 0);
        assert_eq!(requests(&answers.bytes).count(), 1);
        // The attribute is longer than its message now.
        answers.bytes[16] = 9;
        assert_eq!(requests(&answers.bytes).next().unwrap().attribute(0, 1), None);
    }
}
