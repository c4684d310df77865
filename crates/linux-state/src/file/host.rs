//! The host of `quire_fs` in this kernel, and the file types with that host. [`objects`](crate::file::objects)
//! implements the host's methods.

use crate::{Linux, Machine};
use quire_heap::{OutOfMemory, try_leak};
use quire_sync::LimitedCounter;
use quire_sync::atomic::{AtomicPtr, AtomicU64, Ordering};
use quire_vm::Vm;

/// The limit on open files of a small machine. On a larger machine, open files may use a tenth of memory, at 1 KiB for
/// each file, as on Linux.
const LEAST_FILES: u64 = 8192;

/// The host of `quire_fs` in this kernel.
pub struct FileHost<M: Machine> {
    pub vm: &'static Vm<M>,
    pub machine: &'static M,
    /// The state is allocated once for each machine and never freed, so that files need no reference count for it.
    pub late: &'static Late<M>,
}

/// The part of the host that changes after the first files exist.
pub struct Late<M: Machine> {
    linux: AtomicPtr<Linux<M>>,
    pub open_files: LimitedCounter,
    /// The limit on open files. Above it, only a privileged user can open files.
    pub(super) most_files: AtomicU64,
}

impl<M: Machine> Copy for FileHost<M> {}

impl<M: Machine> Clone for FileHost<M> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<M: Machine> FileHost<M> {
    /// A host without a Linux layer. Files can be created, and random bytes come from the machine.
    pub fn new(vm: &'static Vm<M>, machine: &'static M) -> Result<Self, OutOfMemory> {
        let late = Late {
            linux: AtomicPtr::new(core::ptr::null_mut()),
            open_files: quire_lookup::per_cpu::limited_counter(machine.cpus())?,
            most_files: AtomicU64::new((vm.frames().total() * 4 / 10).max(LEAST_FILES)),
        };
        Ok(FileHost { vm, machine, late: try_leak(late)? })
    }

    /// Sets the Linux layer, which then provides random bytes.
    pub fn set_linux(&self, linux: &'static Linux<M>) {
        self.late.linux.store(core::ptr::from_ref(linux).cast_mut(), Ordering::Release);
    }

    /// The Linux layer, if it was set.
    pub fn linux(&self) -> Option<&'static Linux<M>> {
        // SAFETY: the pointer is null, or `set_linux` stored it from a `&'static` reference. It is only read through.
        unsafe { self.late.linux.load(Ordering::Acquire).as_ref() }
    }

    /// The present number of open files of the whole system, and the limit: `fs.file-nr`.
    pub fn open_files(&self) -> (u64, u64) {
        (self.late.open_files.count(), self.late.most_files.load(Ordering::Relaxed))
    }

    /// Sets the limit on open files to `most`: `fs.file-max`. Open files stay open.
    pub fn set_most_files(&self, most: u64) {
        self.late.most_files.store(most, Ordering::Relaxed);
    }
}

/// An open file with this kernel's host.
pub type File<M> = quire_fs::OpenFile<FileHost<M>>;
/// A dentry with this kernel's host.
pub type Dentry<M> = quire_fs::Dentry<FileHost<M>>;
/// A process's view of the file tree: root and working directory.
pub type View<M> = quire_fs::View<FileHost<M>>;
