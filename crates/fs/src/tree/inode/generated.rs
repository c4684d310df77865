//! Files that are generated when they are read: the framework of procfs. Providers of contents implement
//! [`GeneratedDirectory`], [`GeneratedFile`] and [`GeneratedLink`]. This module handles names, paths, reads of parts
//! and listings.

use crate::host::Host;
use crate::stream::readiness::{Readiness, Ready};
use crate::tree::attr::{FileKind, NewAttr};
use crate::tree::dentry::Dentry;
use crate::{FsError, Sink, Source};
use core::any::Any;
use core::fmt;
use quire_heap::{Arc, Vec};

/// The provider of a generated inode.
pub enum Generated<H: Host> {
    /// A directory of names.
    Directory(Arc<dyn GeneratedDirectory<H>>),
    /// A file of text.
    File(Arc<dyn GeneratedFile>),
    /// A link.
    Link(Arc<dyn GeneratedLink<H>>),
}

impl<H: Host> Generated<H> {
    /// The kind of the inode.
    pub fn kind(&self) -> FileKind {
        match self {
            Generated::Directory(_) => FileKind::Directory,
            Generated::File(_) => FileKind::Regular,
            Generated::Link(_) => FileKind::Symlink,
        }
    }
}

/// A generated entry from its directory.
pub struct Entry<H: Host> {
    /// The inode number, which is equal at all lookups of the entry.
    pub number: u64,
    /// Permissions and owner.
    pub attr: NewAttr,
    /// The provider.
    pub node: Generated<H>,
}

/// A directory whose entries are generated at lookup.
pub trait GeneratedDirectory<H: Host>: Send + Sync {
    /// Called at open: checks the caller beyond the permission bits.
    fn open(&self) -> Result<(), FsError> {
        Ok(())
    }
    /// The entry called `name`.
    fn lookup(&self, name: &[u8]) -> Result<Option<Entry<H>>, FsError>;
    /// Calls `each(cookie, name, kind, inode number)` for the entries with cookies above `after`, in ascending order of
    /// cookies (all above zero), until it returns false.
    #[allow(clippy::type_complexity)]
    fn list(&self, after: u64, each: &mut dyn FnMut(u64, &[u8], FileKind, u64) -> bool) -> Result<(), FsError>;
    /// The number of directories among the entries, for the directory's link count.
    fn directories(&self) -> u32 {
        0
    }
    /// The object that the whole directory describes, for the provider's own use.
    fn subject(&self) -> Option<&dyn Any> {
        None
    }
    /// Whether users may remove files of the directory, as far as its permission bits allow.
    fn removes(&self) -> bool {
        false
    }
    /// Removes the file `name` if it is inode `number`. The caller has checked the rights to remove it.
    fn remove(&self, name: &[u8], number: u64) -> Result<(), FsError> {
        let _ = (name, number);
        Err(FsError::NotPermitted)
    }
    /// Whether the caller may use the directory regardless of its permission bits.
    fn admits(&self) -> bool {
        false
    }
}

/// A file whose text is generated when it is read from its start.
pub trait GeneratedFile: Send + Sync {
    /// Called at open, to check the caller beyond the permission bits. If this returns a file, that file is read
    /// instead of this one. Some objects, such as processes, may get another owner while the file is open. A file about
    /// such an object returns a file that is bound to the object's contents at the open, which the opener may read.
    fn open(&self) -> Result<Option<Arc<dyn GeneratedFile>>, FsError> {
        Ok(None)
    }
    /// Writes the whole text.
    fn text(&self, out: &mut Text) -> Result<(), FsError>;
    /// Writes records from `cursor` on until there are `enough` bytes, at least one record. Returns the cursor of the
    /// next record, and no cursor at the end. The first record has cursor 0. `None` for files that write the whole
    /// text. If the text grows with the objects that programs make, the file must have records, so that an open file
    /// keeps little text.
    fn records(&self, cursor: u64, enough: usize, out: &mut Text) -> Option<Result<Option<u64>, FsError>> {
        let _ = (cursor, enough, out);
        None
    }
    /// Reads from any offset, for files that have no text. Files with text return `None`.
    fn read_at(&self, offset: u64, sink: &mut dyn Sink) -> Option<Result<usize, FsError>> {
        let _ = (offset, sink);
        None
    }
    /// Writes at any offset, for files that have no text. Files with text return `None`.
    fn write_at(&self, offset: u64, source: &mut dyn Source) -> Option<Result<usize, FsError>> {
        let _ = (offset, source);
        None
    }
    /// Handles a program's write. Returns the number of accepted bytes.
    fn store(&self, bytes: &[u8]) -> Result<usize, FsError> {
        let _ = bytes;
        Err(FsError::NotPermitted)
    }
    /// Whether `splice` may move bytes from a pipe to the file.
    fn takes_from_pipes(&self) -> bool {
        false
    }
    /// The operations that would not wait now; `None` for files that are always ready.
    fn ready(&self) -> Option<Ready> {
        None
    }
    /// The readiness that announces changes of [`ready`](Self::ready).
    fn readiness(&self) -> Option<&Readiness> {
        None
    }
    /// The file itself, for layers above that use more of it than its text.
    fn as_any(&self) -> Option<&dyn Any> {
        None
    }
}

/// A link whose target is found when it is followed.
pub trait GeneratedLink<H: Host>: Send + Sync {
    /// The text of the link.
    fn target(&self) -> Result<Vec<u8>, FsError>;
    /// The dentry that the link leads to directly. `None` if the link leads to the path [`target`](Self::target). A
    /// link to an open file leads to a dentry, because an open file may have no path.
    fn jump(&self) -> Option<Result<Arc<Dentry<H>>, FsError>> {
        None
    }
}

/// The decimal digits of a number, with spaces before them.
pub(crate) struct Digits([u8; Digits::ROOM]);

impl Digits {
    /// The largest number has 20 digits.
    const ROOM: usize = 24;

    pub(crate) fn new() -> Self {
        Digits([b' '; Self::ROOM])
    }

    /// Writes and returns the digits of `value`. Called once.
    pub(crate) fn decimal(&mut self, mut value: u64) -> &[u8] {
        let mut at = Self::ROOM;
        loop {
            at -= 1;
            self.0[at] = b'0' + (value % 10) as u8;
            value /= 10;
            if value == 0 {
                return &self.0[at..];
            }
        }
    }
}

/// Writes and returns the hexadecimal digits of `value`, at least `least` (at most 16) of them. `digits` must be zeroes
/// before.
fn hexadecimal(digits: &mut [u8; 16], mut value: u64, least: usize) -> &[u8] {
    let mut at = digits.len();
    while value != 0 {
        at -= 1;
        digits[at] = b"0123456789abcdef"[(value % 16) as usize];
        value /= 16;
    }
    &digits[at.min(digits.len().saturating_sub(least))..]
}

/// The front of a line, up to `ROOM` bytes, which is built in this buffer and then copied at once. Bytes beyond the
/// room are lost.
pub struct Columns<const ROOM: usize> {
    bytes: [u8; ROOM],
    len: usize,
}

impl<const ROOM: usize> Columns<ROOM> {
    /// An empty line.
    #[allow(clippy::new_without_default)] // made where a line begins, never as a part of something
    pub fn new() -> Self {
        Columns { bytes: [b' '; ROOM], len: 0 }
    }

    /// The bytes so far.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len.min(ROOM)]
    }

    /// Adds bytes.
    #[inline(always)]
    pub fn push(&mut self, bytes: &[u8]) {
        let len = bytes.len().min(ROOM - self.len);
        let end = self.len + len;
        if let (Some(place), Some(bytes)) = (self.bytes.get_mut(self.len..end), bytes.get(..len)) {
            place.copy_from_slice(bytes);
            self.len = end;
        }
    }

    /// Adds spaces up to a column.
    pub fn fill_to(&mut self, column: usize) {
        self.len = self.len.max(column).min(ROOM);
    }

    /// Adds a number in decimal digits.
    pub fn push_decimal(&mut self, value: u64) {
        self.push(Digits::new().decimal(value));
    }

    /// Adds a number in hexadecimal digits, at least `least` (at most 16) of them.
    pub fn push_hexadecimal(&mut self, value: u64, least: usize) {
        self.push(hexadecimal(&mut [b'0'; 16], value, least));
    }
}

const CHUNK: usize = 4000;
/// Records are added to a piece of text up to this length, so that most pieces end in their first chunk.
const ENOUGH: usize = CHUNK - 1000;

/// The part of the text that an open file keeps: the whole text, or the records around the last position.
#[derive(Default)]
pub struct Reading {
    /// Bytes of the file from `begins` on; `None` before the first read, and after an error.
    text: Option<Text>,
    begins: u64,
    /// The cursor of the record behind the text.
    next: Option<u64>,
}

impl Reading {
    /// The memory of the text that is kept, in bytes.
    pub(crate) fn held(&self) -> usize {
        self.text.as_ref().map_or(0, |text| text.chunks.len() * CHUNK)
    }

    /// Reads `file` from `offset` on. A read from offset 0 generates the text again. So does a read from an offset
    /// before the part of the text that is kept.
    pub(crate) fn read(
        &mut self,
        file: &dyn GeneratedFile,
        offset: u64,
        sink: &mut dyn Sink,
    ) -> Result<usize, FsError> {
        if offset == 0 || offset < self.begins || self.text.is_none() {
            *self = Reading::default();
            self.add(file, 0, Text::new(), sink.room())?;
        }
        let mut done = 0;
        loop {
            let Some(text) = &self.text else { return Ok(done) };
            let end = self.begins + text.len() as u64;
            let at = offset + done as u64;
            if at < end {
                match text.read(at - self.begins, sink) {
                    Ok(n) => done += n,
                    Err(e) if done == 0 => return Err(e),
                    Err(_) => return Ok(done),
                }
                // Its memory ended, or it has no room.
                if offset + (done as u64) < end {
                    return Ok(done);
                }
            }
            let Some(cursor) = self.next else { return Ok(done) };
            if sink.is_over() {
                return if done > 0 { Ok(done) } else { Err(FsError::Interrupted) };
            }
            if sink.room() == 0 {
                return Ok(done);
            }
            let mut old = self.text.take().unwrap_or_default();
            self.begins = end;
            old.clear();
            match self.add(file, cursor, old, sink.room()) {
                Err(e) if done == 0 => return Err(e),
                Err(_) => return Ok(done),
                Ok(()) => {}
            }
        }
    }

    /// Makes the text from `cursor` on, for a reader that has room for `room` bytes.
    fn add(&mut self, file: &dyn GeneratedFile, cursor: u64, mut text: Text, room: usize) -> Result<(), FsError> {
        self.next = match file.records(cursor, room.min(ENOUGH), &mut text) {
            Some(next) => next?,
            None => {
                file.text(&mut text)?;
                None
            }
        };
        self.text = Some(text);
        Ok(())
    }
}

/// Text in pieces of one page, so that a listing of a million lines needs no large allocation. Written with `write!`,
/// which fails if memory runs out.
#[derive(Default)]
pub struct Text {
    chunks: Vec<Vec<u8>>,
    len: usize,
}

impl Text {
    /// No text yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// The length of the text in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the text is empty.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Removes all bytes, and keeps room for a page of text.
    fn clear(&mut self) {
        self.chunks.truncate(1);
        self.chunks.iter_mut().for_each(Vec::clear);
        self.len = 0;
    }

    /// Adds bytes, which need not be UTF-8.
    #[inline]
    pub fn push(&mut self, bytes: &[u8]) -> Result<(), FsError> {
        match self.chunks.last_mut() {
            Some(chunk) if bytes.len() <= CHUNK - chunk.len() => {
                chunk.extend_reserved(bytes);
                self.len += bytes.len();
                Ok(())
            }
            _ => self.push_in_pieces(bytes),
        }
    }

    /// Adds a number in decimal digits, right-aligned in `width` columns.
    pub fn push_decimal(&mut self, value: u64, width: usize) -> Result<(), FsError> {
        let mut digits = Digits::new();
        let len = digits.decimal(value).len().max(width).min(Digits::ROOM);
        self.push(&digits.0[Digits::ROOM - len..])
    }

    /// Adds a number in hexadecimal digits, at least `least` (at most 16) of them.
    pub fn push_hexadecimal(&mut self, value: u64, least: usize) -> Result<(), FsError> {
        self.push(hexadecimal(&mut [b'0'; 16], value, least))
    }

    #[cold]
    fn push_in_pieces(&mut self, mut bytes: &[u8]) -> Result<(), FsError> {
        while !bytes.is_empty() {
            if self.chunks.last().is_none_or(|c| c.len() == CHUNK) {
                self.chunks.try_push(Vec::try_with_capacity(CHUNK)?)?;
            }
            let Some(chunk) = self.chunks.last_mut() else { return Err(FsError::OutOfMemory) };
            let n = bytes.len().min(CHUNK - chunk.len());
            chunk.extend_reserved(&bytes[..n]);
            self.len += n;
            bytes = &bytes[n..];
        }
        Ok(())
    }

    /// Copies the bytes from `offset` on into `sink`. Returns their number.
    pub fn read(&self, offset: u64, sink: &mut dyn Sink) -> Result<usize, FsError> {
        let mut done = 0;
        let Ok(offset) = usize::try_from(offset) else { return Ok(0) };
        while sink.room() > 0 && offset + done < self.len {
            let at = offset + done;
            let Some(rest) = self.chunks.get(at / CHUNK).and_then(|c| c.get(at % CHUNK..)) else { break };
            match sink.put(rest) {
                Ok(n) => {
                    done += n;
                    if n < rest.len() {
                        break;
                    }
                }
                Err(e) if done == 0 => return Err(e),
                Err(_) => break,
            }
        }
        Ok(done)
    }
}

impl fmt::Write for Text {
    fn write_str(&mut self, s: &str) -> fmt::Result {
        self.push(s.as_bytes()).map_err(|_| fmt::Error)
    }

    /// The formatter fills columns with single characters, so they have a fast path.
    fn write_char(&mut self, c: char) -> fmt::Result {
        if let (true, Some(chunk)) = (c.is_ascii(), self.chunks.last_mut())
            && chunk.len() < CHUNK
        {
            chunk.push_reserved(c as u8);
            self.len += 1;
            return Ok(());
        }
        self.write_str(c.encode_utf8(&mut [0; 4]))
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use crate::stream::transfer::SliceSink;
    use fmt::Write;

    fn bytes(text: &Text) -> std::vec::Vec<u8> {
        let mut all = std::vec![0; text.len()];
        assert_eq!(text.read(0, &mut SliceSink::new(&mut all)), Ok(text.len()));
        all
    }

    #[test]
    fn numbers_are_written_as_the_formatter_writes_them() {
        for value in [0, 7, 10, 99, 1234, 1 << 32, u64::MAX - 1, u64::MAX] {
            for width in [0, 1, 8, 16] {
                let (mut ours, mut theirs) = (Text::new(), Text::new());
                ours.push_decimal(value, width).unwrap();
                ours.push_hexadecimal(value, width).unwrap();
                write!(theirs, "{value:width$}{value:0width$x}").unwrap();
                // The formatter writes at least one digit.
                let skip = usize::from(value == 0 && width == 0);
                assert_eq!(bytes(&ours), bytes(&theirs)[..bytes(&theirs).len() - skip]);
            }
        }
    }

    #[test]
    fn pieces_of_any_length_join_across_the_ends_of_chunks() {
        let mut text = Text::new();
        let mut expected = std::vec::Vec::new();
        for n in 0..600usize {
            let piece = std::vec![b'a' + (n % 26) as u8; n % 97];
            text.push(&piece).unwrap();
            expected.extend_from_slice(&piece);
            for c in ['x', 'é'] {
                text.write_char(c).unwrap();
                expected.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes());
            }
        }
        assert!(expected.len() > 3 * CHUNK);
        assert_eq!(bytes(&text), expected);
    }
}
