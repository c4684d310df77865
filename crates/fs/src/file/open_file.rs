//! Open files, which file descriptors name.

use crate::FsError;
use crate::file::seal::Seals;
use crate::host::{FileObject, Host, PAGE_SIZE};
use crate::stream::Stream;
use crate::stream::flags::OpenFlags;
use crate::stream::io::Io;
use crate::stream::readiness::{Readiness, Ready};
use crate::stream::transfer::{Sink, Source};
use crate::tree::attr::FileKind;
use crate::tree::dentry::Dentry;
use crate::tree::inode::directory::FIRST_COOKIE;
use crate::tree::inode::generated::{Generated, GeneratedDirectory, GeneratedFile, Reading};
use crate::tree::inode::{InodeContent, RegularFile};
use crate::tree::watch::Happening;
use quire_heap::{Arc, Room};
use quire_lookup::Hold;
use quire_sync::atomic::{AtomicU32, Ordering};
use quire_sync::{Mutex, Rank, SpinLock};
use quire_vm::object::ErrorCursor;

/// The largest offset, and size, of a file.
pub const OFFSET_MAX: u64 = i64::MAX as u64;

/// The base of an offset.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Whence {
    /// The start of the file.
    Start,
    /// The current position.
    Current,
    /// The end of the file.
    End,
    /// The next data at or after the offset.
    Data,
    /// The next hole at or after the offset.
    Hole,
}

/// One entry of a directory listing.
pub struct Listed<'a> {
    /// The entry's name.
    pub name: &'a [u8],
    /// The number of the entry's inode.
    pub number: u64,
    /// The kind of the entry.
    pub kind: FileKind,
    /// The cookie at which the listing continues after this entry.
    pub next: u64,
}

/// The content that an open file reads and writes.
pub enum Body<H: Host> {
    /// The inode's object.
    File,
    /// The inode's entries.
    Directory,
    /// Generated entries.
    Names(Arc<dyn GeneratedDirectory<H>>),
    /// Generated text, and the part of it that the last read made.
    Text(Arc<dyn GeneratedFile>, Mutex<Reading>),
    /// A stream.
    Stream(Arc<dyn Stream>),
    /// No content: the file was opened with O_PATH, only as a name.
    Path,
}

impl<H: Host> Body<H> {
    pub(crate) fn generated(node: &Generated<H>) -> Result<Self, FsError> {
        Ok(match node {
            Generated::Directory(d) => {
                d.open()?;
                Body::Names(d.clone())
            }
            Generated::File(f) => Body::Text(f.open()?.unwrap_or_else(|| f.clone()), Mutex::new(Reading::default())),
            Generated::Link(_) => return Err(FsError::Loop),
        })
    }
}

/// An open file. Several file descriptors may share it; closing the last one closes the open file.
pub struct OpenFile<H: Host> {
    /// The dentry that was opened.
    pub dentry: Hold<Dentry<H>>,
    counted: Counted<H>,
    flags: AtomicU32,
    /// The current position. Held during the whole call that moves it, so that two readers do not get the same bytes.
    position: Mutex<u64>,
    body: Body<H>,
    /// For a regular file: the failed writes that this open file has reported.
    reported: Option<ErrorCursor>,
    /// Whether this open file counts as a writer of its file ([`crate::file::text`]).
    writes: bool,
    attached: SpinLock<Option<Arc<H::Attached>>>,
}

/// The system's count of one open file, until it is dropped.
struct Counted<H: Host>(H);

impl<H: Host> Drop for Counted<H> {
    fn drop(&mut self) {
        self.0.file_closed();
    }
}

/// All resources of a new open file. They are allocated before any change, so that a lack of a resource never requires
/// undoing a change.
pub(crate) struct Opening<H: Host> {
    room: Room<OpenFile<H>>,
    counted: Counted<H>,
}

impl<H: Host> Opening<H> {
    /// Allocates memory for an open file, and counts it in the system's limit.
    pub(crate) fn new(host: &H) -> Result<Self, FsError> {
        let room = Room::try_new()?;
        if !host.file_opened() {
            return Err(FsError::TooManyFiles);
        }
        Ok(Opening { room, counted: Counted(host.clone()) })
    }
}

impl<H: Host> OpenFile<H> {
    pub(crate) fn new(
        Opening { room, counted }: Opening<H>,
        dentry: Hold<Dentry<H>>,
        flags: OpenFlags,
        body: Body<H>,
        writes: bool,
    ) -> Arc<Self> {
        let flags = AtomicU32::new((flags - OpenFlags::OPENING).bits());
        let reported = match (&body, &dentry.inode.node) {
            (Body::File, InodeContent::File(f)) => Some(f.object.write_errors().follow()),
            _ => None,
        };
        let attached = SpinLock::new(Rank::FILE, None);
        room.fill(OpenFile { dentry, counted, flags, position: Mutex::new(0), body, reported, writes, attached })
    }

    /// The state that the layer above has attached.
    pub fn attached(&self) -> Option<Arc<H::Attached>> {
        self.attached.lock().clone()
    }

    /// Returns the attached state, or attaches the state that `make` returns if there is none. If two threads make a
    /// state at once, both get the state that was attached first.
    pub fn attach(
        &self,
        make: impl FnOnce() -> Result<Arc<H::Attached>, FsError>,
    ) -> Result<Arc<H::Attached>, FsError> {
        if let Some(there) = self.attached() {
            return Ok(there);
        }
        let new = make()?;
        Ok(self.attached.lock().get_or_insert(new).clone())
    }

    /// The open flags.
    pub fn flags(&self) -> OpenFlags {
        OpenFlags::from_bits_truncate(self.flags.load(Ordering::Relaxed))
    }

    /// Changes the flags that may change after the open ([`OpenFlags::CHANGEABLE`]).
    pub fn set_flags(&self, new: OpenFlags) {
        let keep = !OpenFlags::CHANGEABLE.bits();
        let new = (new & OpenFlags::CHANGEABLE).bits();
        let mut old = self.flags.load(Ordering::Relaxed);
        while let Err(now) =
            self.flags.compare_exchange_weak(old, (old & keep) | new, Ordering::Relaxed, Ordering::Relaxed)
        {
            old = now;
        }
    }

    /// The content that the file reads and writes.
    pub fn body(&self) -> &Body<H> {
        &self.body
    }

    /// The stream that the file reads and writes; `None` for other files.
    pub fn stream(&self) -> Option<&Arc<dyn Stream>> {
        match &self.body {
            Body::Stream(s) => Some(s),
            _ => None,
        }
    }

    /// The kernel memory of the open file in bytes, with what its stream holds ([`Stream::held`]), or its generated
    /// text. An estimate, for the choice of a process to kill: a text that a reader is using now does not count. Does
    /// not wait.
    pub fn held(&self) -> usize {
        let content = match &self.body {
            Body::Stream(stream) => stream.held(),
            Body::Text(_, reading) => reading.try_lock().map_or(0, |reading| reading.held()),
            _ => 0,
        };
        size_of::<Self>() + content
    }

    /// The stream of type `T` that the file reads and writes; `None` for other files.
    pub fn stream_as<T: 'static>(&self) -> Option<&T> {
        self.stream()?.as_any().downcast_ref()
    }

    /// The regular file that is open here; `None` for other files.
    pub fn regular(&self) -> Option<&RegularFile<H>> {
        match (&self.body, &self.dentry.inode.node) {
            (Body::File, InodeContent::File(f)) => Some(f),
            _ => None,
        }
    }

    /// Fails with [`FsError::NotSeekable`] if the file has no positions.
    pub fn has_positions(&self) -> Result<(), FsError> {
        match &self.body {
            Body::Stream(s) if !s.seekable() => Err(FsError::NotSeekable),
            _ => Ok(()),
        }
    }

    fn permits(&self, flag: OpenFlags) -> Result<OpenFlags, FsError> {
        let flags = self.flags();
        if flags.contains(flag) && !flags.contains(OpenFlags::PATH) { Ok(flags) } else { Err(FsError::BadFile) }
    }

    /// Reads from the current position, and advances the position.
    pub fn read(&self, io: &Io<'_>, sink: &mut dyn Sink) -> Result<usize, FsError> {
        let flags = self.permits(OpenFlags::READ)?;
        if let Body::Stream(s) = &self.body {
            return self.was_read(io.with(flags, |io| s.read(io, sink))?);
        }
        let mut position = self.position.lock();
        let n = self.read_here(*position, sink)?;
        *position += n as u64;
        drop(position);
        self.was_read(n)
    }

    /// Notifies watchers that `n` bytes were read, unless `n` is 0. Returns `n`.
    #[inline]
    fn was_read(&self, n: usize) -> Result<usize, FsError> {
        if n > 0 {
            self.dentry.happened(Happening::ACCESS);
        }
        Ok(n)
    }

    /// Notifies watchers that `n` bytes were written, unless `n` is 0. Returns `n`.
    #[inline]
    fn was_written(&self, n: usize) -> Result<usize, FsError> {
        if n > 0 {
            self.dentry.happened(Happening::MODIFY);
        }
        Ok(n)
    }

    /// Reads from `offset`.
    pub fn read_at(&self, io: &Io<'_>, offset: u64, sink: &mut dyn Sink) -> Result<usize, FsError> {
        if offset > OFFSET_MAX {
            return Err(FsError::Invalid);
        }
        self.has_positions()?;
        let flags = self.permits(OpenFlags::READ)?;
        self.was_read(match &self.body {
            Body::Stream(s) => io.with(flags, |io| s.read(io, sink)),
            _ => self.read_here(offset, sink),
        }?)
    }

    fn read_here(&self, offset: u64, sink: &mut dyn Sink) -> Result<usize, FsError> {
        match &self.body {
            Body::Text(file, text) => {
                if let Some(done) = file.read_at(offset, sink) {
                    return done;
                }
                text.lock().read(&**file, offset, sink)
            }
            Body::File => match self.regular().ok_or(FsError::BadFile)?.object.read(offset, sink)? {
                // Only a read that finds nothing has a range that may reach beyond all offsets.
                0 => within_offsets(offset, sink.room()).map(|()| 0),
                n => Ok(n),
            },
            Body::Directory | Body::Names(_) => Err(FsError::IsDirectory),
            Body::Stream(_) | Body::Path => Err(FsError::BadFile),
        }
    }

    /// Writes at the current position, and advances the position.
    pub fn write(&self, io: &Io<'_>, source: &mut dyn Source) -> Result<usize, FsError> {
        let flags = self.permits(OpenFlags::WRITE)?;
        if let Body::Stream(s) = &self.body {
            return self.was_written(io.with(flags, |io| s.write(io, source))?);
        }
        let mut position = self.position.lock();
        let (n, end) = self.write_here(io, flags, *position, source)?;
        *position = end;
        drop(position);
        self.was_written(n)
    }

    /// Writes at `offset`, or at the end if the file is open for appending.
    pub fn write_at(&self, io: &Io<'_>, offset: u64, source: &mut dyn Source) -> Result<usize, FsError> {
        if offset > OFFSET_MAX {
            return Err(FsError::Invalid);
        }
        self.has_positions()?;
        let flags = self.permits(OpenFlags::WRITE)?;
        self.was_written(match &self.body {
            Body::Stream(s) => io.with(flags, |io| s.write(io, source))?,
            _ => self.write_here(io, flags, offset, source)?.0,
        })
    }

    /// Returns the number of bytes written, and the offset behind the last one.
    fn write_here(
        &self,
        io: &Io<'_>,
        flags: OpenFlags,
        offset: u64,
        source: &mut dyn Source,
    ) -> Result<(usize, u64), FsError> {
        match &self.body {
            Body::File => {
                let file = self.regular().ok_or(FsError::BadFile)?;
                if source.left() == 0 {
                    return Ok((0, offset)); // moves nothing, not even the position to the end
                }
                within_offsets(offset, source.left())?;
                let _one = file.writing.lock();
                let appends = io.appends.unwrap_or(flags.contains(OpenFlags::APPEND));
                let offset = if appends { file.object.size() } else { offset };
                let mut room = OFFSET_MAX.min(io.most).saturating_sub(offset);
                if room == 0 {
                    return Err(if offset >= io.most { FsError::OverLimit } else { FsError::TooLarge });
                }
                let seals = file.writing.seals();
                if seals.intersects(Seals::WRITES.union(Seals::GROW)) {
                    // Linux cuts the write by the limit first. So a write that would reach beyond the sealed end may be
                    // cut before that end, and succeeds.
                    let len = source.left().min(usize::try_from(room).unwrap_or(usize::MAX));
                    room = room.min(sealed_room(seals, file.object.size(), offset, len)?);
                }
                self.dentry.inode.lose_set_ids(&self.counted.0, io.keeps_set_ids);
                let mut source = Capped { inner: source, left: usize::try_from(room).unwrap_or(usize::MAX) };
                let n = file.object.write(offset, &mut source)?;
                if n > 0 {
                    self.dentry.inode.touch(self.counted.0.realtime());
                }
                Ok((n, offset + n as u64))
            }
            Body::Text(file, _) => {
                if let Some(done) = file.write_at(offset, source) {
                    return done.map(|n| (n, offset + n as u64));
                }
                let mut bytes = [0; 1024];
                let n = source.left().min(bytes.len());
                let n = source.take(&mut bytes[..n])?;
                let n = file.store(&bytes[..n])?;
                Ok((n, offset + n as u64))
            }
            _ => Err(FsError::BadFile),
        }
    }

    /// Moves the position, and returns it. Inlined, because `lseek` does little else.
    #[inline(always)]
    pub fn seek(&self, offset: i64, whence: Whence) -> Result<u64, FsError> {
        if let Body::Stream(s) = &self.body {
            return s.seek();
        }
        let mut position = self.position.lock();
        let (base, size) = match (&self.body, whence) {
            (Body::Path, _) => return Err(FsError::BadFile),
            (_, Whence::Start) => (0, None),
            (_, Whence::Current) => (*position, None),
            (Body::File, _) => {
                let size = self.regular().ok_or(FsError::BadFile)?.object.size();
                (if whence == Whence::End { size } else { 0 }, Some(size))
            }
            _ => return Err(FsError::Invalid),
        };
        if offset < 0 && matches!(whence, Whence::Data | Whence::Hole) {
            return Err(FsError::NoDevice);
        }
        let mut to = base.checked_add_signed(offset).filter(|&to| to <= OFFSET_MAX).ok_or(FsError::Invalid)?;
        if let (Whence::Data | Whence::Hole, Some(size)) = (whence, size) {
            if to >= size {
                return Err(FsError::NoDevice);
            }
            let (object, page) = (&self.regular().ok_or(FsError::BadFile)?.object, to / PAGE_SIZE as u64);
            let found = match whence {
                Whence::Data => object.next_data(page).filter(|at| at * (PAGE_SIZE as u64) < size),
                _ => Some(object.next_hole(page)),
            };
            // The end of a file counts as a hole. A search for data behind the last data fails.
            to = to.max(found.ok_or(FsError::NoDevice)?.saturating_mul(PAGE_SIZE as u64)).min(size);
        }
        *position = to;
        Ok(to)
    }

    /// The current position.
    pub fn position(&self) -> u64 {
        *self.position.lock()
    }

    /// Makes the file `size` bytes long.
    pub fn truncate(&self, io: &Io<'_>, size: u64) -> Result<(), FsError> {
        let flags = self.flags();
        if flags.contains(OpenFlags::PATH) {
            return Err(FsError::BadFile);
        }
        let generated = matches!(self.body(), Body::Text(..));
        if self.regular().is_none() && !generated || !flags.contains(OpenFlags::WRITE) || size > OFFSET_MAX {
            return Err(FsError::Invalid);
        }
        // As on Linux, a generated text has no size to change, and the call succeeds. PAM truncates such a file.
        if generated {
            return Ok(());
        }
        self.dentry.inode.truncate(&self.counted.0, size, io)?;
        self.dentry.happened(Happening::MODIFY);
        Ok(())
    }

    /// Writes the dirty pages in `offset..end` to the file's storage, and waits until they are written.
    pub fn write_back(&self, offset: u64, end: u64) {
        if let Some(file) = self.regular() {
            let page = PAGE_SIZE as u64;
            file.object.write_back(offset / page, end.div_ceil(page));
        }
    }

    /// Fails with [`FsError::Io`] if a write of the file by any caller failed, and this open file has not reported that
    /// failure yet.
    pub fn write_error(&self) -> Result<(), FsError> {
        match (self.regular(), &self.reported) {
            (Some(file), Some(reported)) => file.object.write_errors().report(reported).map_err(|_| FsError::Io),
            _ => Ok(()),
        }
    }

    /// Allocates memory for `offset..offset + len`. Grows the file to cover the range, unless `keep_size`.
    pub fn allocate(&self, io: &Io<'_>, offset: u64, len: u64, keep_size: bool) -> Result<(), FsError> {
        self.permits(OpenFlags::WRITE)?;
        let file = self.regular().ok_or(FsError::NoDevice)?;
        let end = offset.checked_add(len).filter(|&e| e <= OFFSET_MAX).ok_or(FsError::TooLarge)?;
        let one = file.writing.lock();
        let old = file.object.size();
        if end > old && end > io.most {
            return Err(FsError::OverLimit);
        }
        if end > old && file.writing.seals().contains(Seals::GROW) {
            return Err(FsError::NotPermitted);
        }
        self.dentry.inode.lose_set_ids(&self.counted.0, io.keeps_set_ids);
        if end > old && !keep_size {
            file.object.set_size(end)?;
        }
        let page = PAGE_SIZE as u64;
        let covered = end.min(file.object.size()).div_ceil(page);
        if let Err(e) = file.object.allocate(offset / page, covered) {
            if end > old && !keep_size {
                file.object.set_size(old)?;
            }
            return Err(e);
        }
        self.dentry.inode.touch(self.counted.0.realtime());
        drop(one);
        self.dentry.happened(Happening::MODIFY);
        Ok(())
    }

    /// Makes `offset..offset + len` read as zeroes, and frees its whole pages. The size stays.
    pub fn punch(&self, io: &Io<'_>, offset: u64, len: u64) -> Result<(), FsError> {
        self.permits(OpenFlags::WRITE)?;
        let file = self.regular().ok_or(FsError::NoDevice)?;
        let end = offset.checked_add(len).filter(|&e| e <= OFFSET_MAX).ok_or(FsError::TooLarge)?;
        let one = file.writing.lock();
        if file.writing.seals().intersects(Seals::WRITES) {
            return Err(FsError::NotPermitted);
        }
        self.dentry.inode.lose_set_ids(&self.counted.0, io.keeps_set_ids);
        let end = end.min(file.object.size());
        if offset >= end {
            return Ok(());
        }
        let page = PAGE_SIZE as u64;
        let (first, last) = (offset.div_ceil(page), end / page);
        if first > last {
            file.object.zero(offset, end)?;
        } else {
            file.object.zero(offset, (first * page).min(end))?;
            file.object.zero(last * page, end)?;
            file.object.discard(first, last);
        }
        self.dentry.inode.touch(self.counted.0.realtime());
        drop(one);
        self.dentry.happened(Happening::MODIFY);
        Ok(())
    }

    /// Lists a directory from the current position: calls `each` until it returns false, and leaves the position behind
    /// the last accepted entry.
    pub fn list(&self, each: &mut dyn FnMut(&Listed<'_>) -> bool) -> Result<(), FsError> {
        let flags = self.flags();
        if !matches!(self.body, Body::Directory | Body::Names(_)) {
            return Err(if flags.contains(OpenFlags::PATH) { FsError::BadFile } else { FsError::NotDirectory });
        }
        self.dentry.happened(Happening::ACCESS);
        let mut position = self.position.lock();
        let here = &self.dentry;
        for (at, name) in [(0, &b"."[..]), (1, b"..")] {
            if *position == at {
                let number = match at {
                    0 => here.inode.ident.number,
                    _ => Dentry::parent_number(here),
                };
                if !each(&Listed { name, number, kind: FileKind::Directory, next: at + 1 }) {
                    return Ok(());
                }
                *position = at + 1;
            }
        }
        match (&self.body, &here.inode.node) {
            (Body::Directory, InodeContent::Directory(d)) => {
                if !here.listed() {
                    return Err(FsError::NotFound);
                }
                loop {
                    let batch = d.batch(*position, 32)?;
                    if batch.is_empty() {
                        return Ok(());
                    }
                    for (next, name, dentry) in &batch {
                        let number = dentry.inode.ident.number;
                        if !each(&Listed { name, number, kind: dentry.inode.kind(), next: *next }) {
                            return Ok(());
                        }
                        *position = *next;
                    }
                }
            }
            (Body::Names(d), _) => {
                let mut at = *position;
                let listed = d.list(at - FIRST_COOKIE, &mut |cookie, name, kind, number| {
                    let next = cookie + FIRST_COOKIE;
                    let taken = each(&Listed { name, number, kind, next });
                    if taken {
                        at = next;
                    }
                    taken
                });
                *position = at;
                listed
            }
            _ => Err(FsError::NotDirectory),
        }
    }

    /// The operations that would not wait now. Most files are always ready for all operations.
    pub fn ready(&self) -> Ready {
        match &self.body {
            Body::Stream(s) => Some(s.ready()),
            Body::Text(text, _) => text.ready(),
            Body::Path => Some(Ready::empty()),
            _ => None,
        }
        .unwrap_or(Ready::READ | Ready::WRITE)
    }

    /// The readiness that announces changes of [`ready`](Self::ready), if the result of `ready` can change.
    pub fn readiness(&self) -> Option<&Readiness> {
        match &self.body {
            Body::Stream(s) => s.readiness(),
            Body::Text(text, _) => text.readiness(),
            _ => None,
        }
    }
}

impl<H: Host> Drop for OpenFile<H> {
    fn drop(&mut self) {
        if let Some(file) = self.dentry.inode.file().filter(|_| self.writes) {
            file.writing.text.end_write();
        }
        if let Some(readiness) = self.readiness() {
            readiness.drop_closed();
        }
        // Locks on the whole file belong to the open file and end with it.
        self.dentry.inode.locks.release_file(self.lock_owner());
        self.dentry.inode.drop_lease(self.lock_owner());
        if !matches!(self.body, Body::Path) {
            let writes = self.flags().contains(OpenFlags::WRITE);
            self.dentry.happened(if writes { Happening::CLOSE_WRITE } else { Happening::CLOSE_OTHER });
        }
    }
}

impl<H: Host> OpenFile<H> {
    /// The id of this open file as an owner of locks.
    pub fn lock_owner(&self) -> u64 {
        core::ptr::from_ref(self).addr() as u64
    }
}

/// Returns how many of `len` bytes at `offset` a writer may write to a file with these seals. As on Linux, a writer
/// skips a whole page that would reach beyond the end of a file sealed against growth.
#[cold]
fn sealed_room(seals: Seals, size: u64, offset: u64, len: usize) -> Result<u64, FsError> {
    if seals.intersects(Seals::WRITES) {
        return Err(FsError::NotPermitted);
    }
    let end = offset.saturating_add(len as u64);
    let last = if end <= size { end } else { size & !(PAGE_SIZE as u64 - 1) };
    if last > offset { Ok(last - offset) } else { Err(FsError::NotPermitted) }
}

/// A source that ends after at most `left` bytes of another source.
struct Capped<'a> {
    inner: &'a mut dyn Source,
    left: usize,
}

impl Source for Capped<'_> {
    fn take(&mut self, into: &mut [u8]) -> Result<usize, FsError> {
        let n = into.len().min(self.left);
        let n = self.inner.take(&mut into[..n])?;
        self.left -= n;
        Ok(n)
    }
    fn left(&self) -> usize {
        self.left.min(self.inner.left())
    }
}
/// Fails with [`FsError::Invalid`] if `len` bytes from `offset` on reach beyond the largest offset.
#[inline]
pub fn within_offsets(offset: u64, len: usize) -> Result<(), FsError> {
    match offset.checked_add(len as u64) {
        Some(end) if end <= OFFSET_MAX => Ok(()),
        _ => Err(FsError::Invalid),
    }
}
