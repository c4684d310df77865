//! Binds `quire_fs` to the memory core: the bytes of a file are an object, and the pages of a pipe are frames.

use crate::base::owned::FreesItself;
use crate::file::host::{Dentry, FileHost};
use crate::file::notices::Notices;
use crate::file::pipes::PipeCharge;
use crate::process::credentials::capabilities::cap;
use crate::process::users::{Account, Charge};
use crate::system::settings::Setting;
use crate::time::SECOND;
use crate::{Errno, Linux, Machine};
use core::any::Any;
use core::fmt;
use core::ops::{Deref, DerefMut};
use quire_fs::{FileObject, FsError, Host, Origin, PAGE_SIZE, Sink, Source, Timestamp};
use quire_heap::{Arc, Box};
use quire_sync::Quota;
use quire_sync::atomic::Ordering;
use quire_sync::epoch::Domain;
use quire_vm::Vm;
use quire_vm::content::IoError;
use quire_vm::machine::{FrameBytes, FrameBytesMut};
use quire_vm::map::EntryInfo;
use quire_vm::object::{ObjectRef, WriteErrors};
use quire_vm::paging::pager::Pager;
use quire_vm::phys::frames::{Fill, For, Frame};
use quire_vm::stats::Event;

impl<M: Machine> FileHost<M> {
    /// Whether the caller is exempt from the limit on open files.
    #[cold]
    fn may_exceed(&self) -> bool {
        let Some(linux) = self.linux() else { return true };
        let task = quire_task::Machine::current(linux.machine);
        // SAFETY: the machine returns the running thread, which lives while it runs.
        let thread = unsafe { (*task).payload() }.as_ref();
        // Kernel threads have no user, so no limit applies to them. SAFETY: the thread itself runs this, and does not
        // replace its credentials during the check.
        thread.is_none_or(|thread| unsafe { thread.credentials.get() }.may(cap::SYS_ADMIN))
    }

    /// The root of the file tree, relative to which file names are shown. `None` before there is a Linux layer.
    fn root(&self) -> Option<&'static Arc<Dentry<M>>> {
        Some(self.linux()?.files.vfs().root())
    }
}

/// The bytes of a file: a handle on its memory object.
pub struct FileBytes<M: Machine>(pub ObjectRef<M>);

impl<M: Machine> Clone for FileBytes<M> {
    fn clone(&self) -> Self {
        FileBytes(self.0.clone())
    }
}

/// The pager of a file in memory. The file's pages exist nowhere else, so the pager needs no storage and has only the
/// file's name. The pager is freed with its object, which may outlive the file.
struct FilePager<M: Machine> {
    origin: Arc<Origin<FileHost<M>>>,
    host: FileHost<M>,
    _frees_itself: FreesItself,
}

/// The dentry by which a mapped file was last created or opened. `None` if that dentry no longer exists, or if the
/// mapping shows no file.
pub fn dentry_of<M: Machine>(entry: &EntryInfo<M>) -> Option<Arc<Dentry<M>>> {
    entry.pager()?.downcast_ref::<FilePager<M>>()?.origin.dentry()
}

/// Whether the mapping shows a file.
pub fn is_file<M: Machine>(entry: &EntryInfo<M>) -> bool {
    entry.pager().is_some_and(|pager| pager.is::<FilePager<M>>())
}

impl<M: Machine> Pager for FilePager<M> {
    fn as_any(&self) -> Option<&dyn Any> {
        Some(self)
    }

    fn name(&self, to: &mut dyn fmt::Write) -> fmt::Result {
        let (Some(dentry), Some(root)) = (self.origin.dentry(), self.host.root()) else {
            return to.write_str("(deleted)");
        };
        let (path, exists) = Dentry::<M>::path(&dentry, root).map_err(|_| fmt::Error)?;
        // A newline is escaped as in Linux's listings, because the rest of the name would look like another line.
        match core::str::from_utf8(&path) {
            Ok(text) => {
                let mut lines = text.split('\n');
                to.write_str(lines.next().unwrap_or_default())?;
                lines.try_for_each(|line| to.write_str("\\012").and_then(|()| to.write_str(line)))?;
            }
            Err(_) => path.iter().try_for_each(|byte| match byte {
                b'\n' => to.write_str("\\012"),
                byte => to.write_char(char::from(*byte)),
            })?,
        }
        if exists { Ok(()) } else { to.write_str(" (deleted)") }
    }

    fn ident(&self) -> (u64, u64) {
        (self.origin.ident.device, self.origin.ident.number)
    }

    fn in_memory(&self) -> bool {
        true
    }

    // Pages are written to swap, not to the file.
    fn takes_writes(&self) -> bool {
        false
    }

    fn counts_stores(&self) -> bool {
        self.origin.counts_stores()
    }

    fn stores_noted(&self, came: bool) {
        self.origin.note_stores(came);
    }

    fn times_stores(&self) -> bool {
        true
    }

    fn discard_begins(&self) -> bool {
        self.origin.begin_change()
    }

    fn discard_ended(&self) {
        self.origin.end_change();
    }

    fn released(&self) {
        // SAFETY: `FileHost::object` leaked the box for exactly one object. The core calls this once, after all other
        // uses.
        drop(unsafe { Box::from_raw(core::ptr::from_ref(self).cast_mut()) });
    }
}

fn fs_error(e: IoError<FsError>) -> FsError {
    match e {
        IoError::OutOfMemory => FsError::OutOfMemory,
        IoError::NoRoom => FsError::NoSpace,
        IoError::TooLarge => FsError::TooLarge,
        IoError::Caller(e) => e,
        // The pager failed. There is no other error at present.
        _ => FsError::Io,
    }
}

/// Gives bytes of a page to a sink without a copy between.
fn put(sink: &mut dyn Sink, bytes: FrameBytes<'_>) -> Result<usize, FsError> {
    // SAFETY: the bytes are valid for reads while the caller's closure runs. A sink copies them, to user memory with
    // the machine's own copy. It checks none of them before the copy, so stores of programs change nothing that it
    // relies on.
    sink.put(unsafe { core::slice::from_raw_parts(bytes.as_ptr(), bytes.len()) })
}

impl<M: Machine> FileObject for FileBytes<M> {
    fn size(&self) -> u64 {
        self.0.size()
    }

    fn set_size(&self, bytes: u64) -> Result<(), FsError> {
        self.0.set_size(bytes);
        Ok(())
    }

    fn read(&self, offset: u64, sink: &mut dyn Sink) -> Result<usize, FsError> {
        let len = sink.room();
        self.0.read(offset, len, &mut |bytes| put(sink, bytes)).map_err(fs_error)
    }

    fn write(&self, offset: u64, source: &mut dyn Source) -> Result<usize, FsError> {
        let len = source.left();
        let take = &mut |bytes: FrameBytesMut<'_>| {
            // SAFETY: the bytes are valid for writes while the closure runs. A source stores bytes into them with the
            // machine's copy from user memory, or from a slice. It reads none of them, so stores of programs that map
            // the page, and of other writers, change nothing that it relies on.
            source.take(unsafe { core::slice::from_raw_parts_mut(bytes.as_mut_ptr(), bytes.len()) })
        };
        self.0.write(offset, len, take).map_err(fs_error)
    }

    fn resident(&self) -> u64 {
        self.0.resident()
    }

    fn next_data(&self, page: u64) -> Option<u64> {
        self.0.next_page(page)
    }

    fn next_hole(&self, page: u64) -> u64 {
        self.0.next_hole(page)
    }

    fn discard(&self, first: u64, end: u64) {
        self.0.discard(first..end);
    }

    fn write_back(&self, first: u64, end: u64) {
        // Errors are counted in `write_errors`, which other callers read.
        let _written = self.0.write_back(first..end);
    }

    fn write_errors(&self) -> &WriteErrors {
        self.0.write_errors()
    }

    fn stored(&self) -> Option<Timestamp> {
        // The machine times stores by the wall clock.
        Some(self.0.stored()).filter(|at| *at != 0).map(timestamp)
    }

    fn forget_stores(&self, until: Timestamp) {
        let seconds = u64::try_from(until.seconds).unwrap_or(0);
        self.0.forget_stores(seconds.saturating_mul(SECOND).saturating_add(until.nanos.into()));
    }

    fn allocate(&self, first: u64, end: u64) -> Result<(), FsError> {
        // A size larger than memory and swap is refused here, before the allocation evicts all other pages.
        let vm = self.0.vm();
        if end.saturating_sub(first) > vm.frames().total() + vm.swap().total() {
            return Err(FsError::NoSpace);
        }
        self.0.allocate(first..end).map_err(|e| fs_error(e.of_caller()))
    }

    fn zero(&self, from: u64, to: u64) -> Result<(), FsError> {
        self.0.zero(from..to).map_err(|e| fs_error(e.of_caller()))
    }
}

/// An upper bound, in bytes, for the kernel memory of a record lock. It covers the lock, its part of the
/// [`LockCharge`], and a spare lock.
const LOCK_BYTES: u64 = 256;

/// The most record locks of the caller's user. The locks may use a 256th of memory.
fn most_locks<M: Machine>(linux: &Linux<M>) -> u64 {
    // SAFETY: the thread itself runs this, and does not replace the value while it uses the reference.
    let credentials = unsafe { linux.current().credentials.get() };
    let most = linux.vm.frames().total() * quire_vm::PAGE_SIZE / 256 / LOCK_BYTES;
    if credentials.may(cap::SYS_RESOURCE) { u64::MAX } else { most }
}

/// The charge for one owner's record locks on one file. The user that made the first lock is charged.
pub struct LockCharge<M: Machine> {
    charge: Charge,
    linux: &'static Linux<M>,
}

impl<M: Machine> quire_fs::lock::Charge for LockCharge<M> {
    fn resize(&mut self, n: usize) -> bool {
        // A decrease is never refused.
        let fewer = n as u64 <= self.charge.n();
        self.charge.resize(n as u64, if fewer { u64::MAX } else { most_locks(self.linux) })
    }
}

/// A frame of a pipe's buffer. The drop of this value frees the frame.
pub struct PipePage<M: Machine> {
    vm: &'static Vm<M>,
    /// `None` only during the drop.
    frame: Option<Frame>,
}

impl<M: Machine> PipePage<M> {
    fn bytes(&self) -> *mut u8 {
        match &self.frame {
            Some(frame) => self.vm.machine().frame_ptr(frame.pfn()),
            None => core::ptr::NonNull::dangling().as_ptr(),
        }
    }
    fn len(&self) -> usize {
        if self.frame.is_some() { PAGE_SIZE } else { 0 }
    }
}

impl<M: Machine> Deref for PipePage<M> {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        // SAFETY: the page owns the frame, which was filled with zeroes. The machine maps all of it.
        unsafe { core::slice::from_raw_parts(self.bytes(), self.len()) }
    }
}

impl<M: Machine> DerefMut for PipePage<M> {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: the page owns the frame, and the machine maps all of it. `&mut self` makes this the only reference.
        unsafe { core::slice::from_raw_parts_mut(self.bytes(), self.len()) }
    }
}

impl<M: Machine> Drop for PipePage<M> {
    fn drop(&mut self) {
        if let Some(frame) = self.frame.take() {
            let freed = self.vm.free_frame(frame);
            debug_assert!(freed.is_ok(), "a pipe's page came from this system");
            self.vm.stats().count(Event::BufferPageGone);
        }
    }
}

impl<M: Machine> Host for FileHost<M> {
    type Object = FileBytes<M>;
    type Page = PipePage<M>;
    type LockCharge = LockCharge<M>;
    type PipeCharge = PipeCharge;
    type Attached = Notices<M>;

    fn lease_deadline(&self) -> u64 {
        let seconds = self.linux().map_or(0, |linux| linux.settings.get(Setting::LeaseTime));
        self.machine.now().saturating_add(seconds.unsigned_abs().saturating_mul(1_000_000_000))
    }

    fn object(&self, origin: Arc<Origin<Self>>, quota: Option<&'static Quota>) -> Result<FileBytes<M>, FsError> {
        let pager = Box::into_raw(Box::try_new(FilePager { origin, host: *self, _frees_itself: [] })?);
        // SAFETY: the pager was just leaked. Only `released` frees it, after the last use, or the code below if no
        // object was made.
        let object = ObjectRef::charged(self.vm, unsafe { &*pager }, 0, quota);
        object.map(FileBytes).map_err(|_| {
            // SAFETY: no object was made, so no other reference to the pager exists.
            drop(unsafe { Box::from_raw(pager) });
            FsError::OutOfMemory
        })
    }

    fn charge_locks(&self, n: usize) -> Option<LockCharge<M>> {
        let linux = self.linux()?;
        let thread = linux.current();
        // SAFETY: the thread itself runs this, and does not replace the value while it uses the reference.
        let user_charge = unsafe { thread.user_charge.get() };
        let charge = linux.users.charge(user_charge, Account::Locks, n as u64, most_locks(linux))?;
        Some(LockCharge { charge, linux })
    }

    fn page(&self) -> Option<PipePage<M>> {
        // Zeroed, so that all bytes of the page's slice are initialised.
        let frame = self.vm.alloc_frame(Fill::Zeroed, For::User).ok()?;
        self.vm.stats().count(Event::BufferPage);
        Some(PipePage { vm: self.vm, frame: Some(frame) })
    }

    fn file_opened(&self) -> bool {
        let most = self.late.most_files.load(Ordering::Relaxed);
        self.late.open_files.take(most) || (self.may_exceed() && self.late.open_files.take(u64::MAX))
    }

    fn file_closed(&self) {
        self.late.open_files.put();
    }

    fn charge_pipe(&self) -> Option<(usize, PipeCharge)> {
        PipeCharge::new(self.linux())
    }

    fn recharge_pipe(&self, charge: &mut PipeCharge, pages: usize) -> bool {
        charge.resize(self.linux(), pages)
    }

    fn wait_for_memory(&self) -> bool {
        self.vm.wait_for_frames()
    }

    fn epoch(&self) -> &'static Domain {
        self.vm.epoch()
    }

    fn realtime(&self) -> Timestamp {
        timestamp(self.machine.realtime())
    }

    fn random(&self, into: &mut [u8]) {
        match self.linux() {
            Some(linux) => linux.random.fill(into),
            None => {
                for chunk in into.chunks_mut(32) {
                    chunk.copy_from_slice(&self.machine.entropy()[..chunk.len()]);
                }
            }
        }
    }

    fn cpus(&self) -> usize {
        self.vm.machine().cpus()
    }
}

/// `ns` nanoseconds since 1970 as a timestamp.
pub fn timestamp(ns: u64) -> Timestamp {
    Timestamp { seconds: (ns / SECOND) as i64, nanos: (ns % SECOND) as u32 }
}

/// Reads from a file's object into kernel memory. Returns the number of bytes, which is smaller at the end of the file.
pub fn read_kernel<M: Machine>(object: &ObjectRef<M>, offset: u64, into: &mut [u8]) -> Result<usize, Errno> {
    let mut sink = quire_fs::SliceSink::new(into);
    let len = sink.room();
    let n = object.read(offset, len, &mut |bytes| put(&mut sink, bytes)).map_err(fs_error)?;
    Ok(n)
}
