//! The table of open files that maps descriptors to files.

use crate::file::host::File;
use crate::{Errno, Machine};
use core::alloc::Layout;
use core::mem::ManuallyDrop;
use quire_fs::OpenFlags;
use quire_heap::{Arc, OutOfMemory, Vec};
use quire_lookup::Slots;
use quire_lookup::slots::NoNumber;
use quire_sync::Rank;
use quire_sync::atomic::{AtomicU64, Ordering};
use quire_sync::epoch::Domain;
use quire_vm::Vm;

/// The rank of a file layer lock that is acquired with no other lock held.
const TABLE: Rank = Rank::FILE;

/// A table of open files, shared by threads that were cloned with CLONE_FILES. The mark of a descriptor's slot is the
/// close-on-exec flag. The type is aligned to a cache line. So the `Arc`'s reference count, which each starting or
/// ending thread writes, is on another line than the table.
#[repr(align(64))]
pub struct Files<M: Machine> {
    slots: Slots<File<M>>,
    vm: &'static Vm<M>,
    /// The table's id as an owner of record locks (`fcntl` locks); 0 until the id is first needed.
    id: AtomicU64,
}

// The reference counts and the table together use two cache lines.
quire_sync::assert_layout!(Slots<u8> { size: 48, align: 8 });

/// Descriptors and their open files.
pub type Listed<M> = Vec<(usize, Arc<File<M>>)>;

#[cfg(not(any(loom, shuttle)))]
static LAST_ID: AtomicU64 = AtomicU64::new(0);
/// The atomics of loom and shuttle cannot be constants, so they are created at run time. No model has record locks.
#[cfg(any(loom, shuttle))]
static LAST_ID: std::sync::LazyLock<AtomicU64> = std::sync::LazyLock::new(|| AtomicU64::new(0));

impl From<NoNumber> for Errno {
    fn from(why: NoNumber) -> Self {
        match why {
            NoNumber::Limit => Errno::EMFILE,
            NoNumber::Memory => Errno::ENOMEM,
            // Another thread has reserved this descriptor, and is about to open a file.
            NoNumber::Reserved => Errno::EBUSY,
        }
    }
}

/// A descriptor that is reserved before the file is opened. So a call that finds the table full does not open or create
/// a file. The drop releases the descriptor, unless it was [filled](Reserved::fill).
#[must_use]
pub struct Reserved<'a, M: Machine> {
    files: &'a Files<M>,
    fd: u32,
}

impl<M: Machine> Reserved<'_, M> {
    /// The reserved descriptor.
    pub fn number(&self) -> u32 {
        self.fd
    }

    /// Makes the descriptor refer to `file`, and returns the descriptor.
    pub fn fill(self, file: Arc<File<M>>) -> u32 {
        let this = ManuallyDrop::new(self);
        this.files.slots.fill_reserved(this.fd as usize, file);
        this.fd
    }
}

impl<M: Machine> Drop for Reserved<'_, M> {
    fn drop(&mut self) {
        self.files.slots.give_back(self.fd as usize);
    }
}

impl<M: Machine> Files<M> {
    fn with(vm: &'static Vm<M>, slots: Slots<File<M>>) -> Result<Arc<Self>, Errno> {
        Ok(Arc::try_new(Files { slots, vm, id: AtomicU64::new(0) })?)
    }

    /// An empty table.
    pub fn new(vm: &'static Vm<M>) -> Result<Arc<Self>, Errno> {
        Self::with(vm, Slots::new(TABLE))
    }

    fn epoch(&self) -> &'static Domain {
        self.vm.epoch()
    }

    /// A reference to the table for a new thread or process of the caller.
    pub fn share(this: &Arc<Self>) -> Result<Arc<Self>, Errno> {
        this.slots.share().map_err(|_| Errno::ENOMEM)?;
        Ok(this.clone())
    }

    /// The layouts of the table's own allocations, for memory accounting.
    pub fn allocations(&self) -> [Layout; 4] {
        self.slots.allocations()
    }

    /// The table's id as an owner of record locks.
    pub fn id(&self) -> u64 {
        match self.id.load(Ordering::Relaxed) {
            0 => {
                let new = LAST_ID.fetch_add(1, Ordering::Relaxed) + 1;
                self.id.compare_exchange(0, new, Ordering::Relaxed, Ordering::Relaxed).map_or_else(|is| is, |_| new)
            }
            id => id,
        }
    }

    /// The open file of descriptor `fd` in the caller's table.
    ///
    /// # Safety
    /// The table belongs to the calling thread. If no other thread shares the table, no other thread changes it.
    #[inline]
    pub unsafe fn get(&self, fd: u32) -> Result<Arc<File<M>>, Errno> {
        // SAFETY: the table is the calling thread's. If it is not shared, no other thread changes it.
        unsafe { self.slots.get(fd as usize, self.epoch()) }.ok_or(Errno::EBADF)
    }

    /// The open file of descriptor `fd`, for a reader of another process's table. `None` if the descriptor is not open.
    pub fn peek(&self, fd: u32) -> Option<Arc<File<M>>> {
        self.slots.peek(fd as usize)
    }

    /// Whether descriptor `fd` closes on exec. EBADF if it is not open.
    pub fn closes_on_exec(&self, fd: u32) -> Result<bool, Errno> {
        self.slots.marked(fd as usize).ok_or(Errno::EBADF)
    }

    /// Sets whether descriptor `fd` closes on exec. EBADF if it is not open.
    pub fn set_close_on_exec(&self, fd: u32, close: bool) -> Result<(), Errno> {
        self.slots.mark(fd as usize, close).ok_or(Errno::EBADF)
    }

    /// Adds `file` at the lowest free descriptor that is at least `from` and below `limit`. Returns the descriptor.
    pub fn insert(&self, file: Arc<File<M>>, close_on_exec: bool, from: u32, limit: u64) -> Result<u32, Errno> {
        let limit = usize::try_from(limit).unwrap_or(usize::MAX);
        Ok(self.slots.insert(file, close_on_exec, from as usize, limit, self.epoch())? as u32)
    }

    /// Reserves the lowest free descriptor below `limit`.
    pub fn reserve(&self, close_on_exec: bool, limit: u64) -> Result<Reserved<'_, M>, Errno> {
        let limit = usize::try_from(limit).unwrap_or(usize::MAX);
        let fd = self.slots.reserve(close_on_exec, 0, limit, self.epoch())? as u32;
        Ok(Reserved { files: self, fd })
    }

    /// Makes descriptor `fd` refer to `file`, and returns the file that it referred to before. EBADF if `fd` is not
    /// below `limit`.
    pub fn replace(
        &self,
        file: Arc<File<M>>,
        close_on_exec: bool,
        fd: u32,
        limit: u64,
    ) -> Result<Option<Arc<File<M>>>, Errno> {
        if u64::from(fd) >= limit {
            return Err(Errno::EBADF);
        }
        Ok(self.slots.replace(file, close_on_exec, fd as usize, self.epoch())?)
    }

    /// Removes descriptor `fd`, and returns its file. EBADF if it is not open.
    pub fn remove(&self, fd: u32) -> Result<Arc<File<M>>, Errno> {
        self.slots.remove(fd as usize, self.epoch()).ok_or(Errno::EBADF)
    }

    /// Closes the descriptors `first..=last`.
    pub fn close_range(&self, first: u32, last: u32) {
        self.slots.remove_range(first as usize, last as usize, false, self.epoch(), |file| self.closed(&file));
    }

    /// Sets the close-on-exec flag of the descriptors `first..=last`.
    pub fn mark_range(&self, first: u32, last: u32) {
        self.slots.mark_range(first as usize, last as usize);
    }

    /// Closes the files whose close-on-exec flag is set.
    pub fn close_on_exec(&self) {
        self.slots.remove_range(0, usize::MAX, true, self.epoch(), |file| self.closed(&file));
    }

    /// Releases the process's record locks of `file`, as POSIX requires when any descriptor of the file is closed. Also
    /// notifies the stream of the file.
    pub fn closed(&self, file: &File<M>) {
        if let Some(stream) = file.stream() {
            stream.descriptor_closed();
        }
        // A table without an id has never owned a record lock.
        let id = self.id.load(Ordering::Relaxed);
        if id != 0 && !file.flags().contains(OpenFlags::PATH) {
            file.dentry.inode.locks.release_process(id);
        }
    }

    /// A copy of the table for a forked child.
    pub fn fork(&self) -> Result<Arc<Self>, Errno> {
        let slots = self.slots.fork(TABLE).map_err(|_| Errno::ENOMEM)?;
        Self::with(self.vm, slots)
    }

    /// The open descriptors from `from` on, at most `most` of them.
    pub fn list(&self, from: u32, most: usize) -> Result<Listed<M>, OutOfMemory> {
        let mut out = Vec::try_with_capacity(most.min(256))?;
        self.slots.list(from as usize, &mut out);
        Ok(out)
    }

    /// The number of slots, used or not (`FDSize` in `/proc/<pid>/status`).
    pub fn size(&self) -> usize {
        self.slots.size()
    }
}

impl<M: Machine> Drop for Files<M> {
    fn drop(&mut self) {
        let id = self.id.load(Ordering::Relaxed);
        self.slots.iter_mut().for_each(|file| {
            if id != 0 {
                file.dentry.inode.locks.release_process(id);
            }
            if let Some(stream) = file.stream() {
                stream.descriptor_closed();
            }
        });
    }
}
