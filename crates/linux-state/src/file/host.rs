//! The host of `quire_fs` in this kernel, and the file types with it. [`objects`](crate::file::objects) implements its
//! methods.

use crate::{Linux, Machine};
use quire_heap::{OutOfMemory, try_leak};
use quire_sync::LimitedCounter;
use quire_sync::atomic::{AtomicPtr, AtomicU64, Ordering};
use quire_vm::Vm;

/// Open files that a small machine may have. On larger ones they may take a tenth of memory at 1 KiB each, as on Linux.
const LEAST_FILES: u64 = 8192;

/// The host of `quire_fs` in this kernel.
pub struct FileHost<M: Machine> {
    pub vm: &'static Vm<M>,
    pub machine: &'static M,
    /// Allocated once a machine and never freed, so that files need no reference count on it.
    pub late: &'static Late<M>,
}

/// State that is set after the first files exist.
pub struct Late<M: Machine> {
    linux: AtomicPtr<Linux<M>>,
    pub open_files: LimitedCounter,
    /// The most open files; beyond it only the administrator opens files.
    pub(super) most_files: AtomicU64,
}

impl<M: Machine> Copy for FileHost<M> {}

impl<M: Machine> Clone for FileHost<M> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<M: Machine> FileHost<M> {
    /// A host without a Linux layer: files can be made, random bytes come straight from the machine.
    pub fn new(vm: &'static Vm<M>, machine: &'static M) -> Result<Self, OutOfMemory> {
        let late = Late {
            linux: AtomicPtr::new(core::ptr::null_mut()),
            open_files: quire_lookup::per_cpu::limited_counter(machine.cpus())?,
            most_files: AtomicU64::new((vm.frames().total() * 4 / 10).max(LEAST_FILES)),
        };
        Ok(FileHost { vm, machine, late: try_leak(late)? })
    }

    /// From now on random bytes come from `linux`.
    pub fn set_linux(&self, linux: &'static Linux<M>) {
        self.late.linux.store(core::ptr::from_ref(linux).cast_mut(), Ordering::Release);
    }

    /// The Linux layer, once there is one.
    pub fn linux(&self) -> Option<&'static Linux<M>> {
        // SAFETY: null, or set from a `&'static` in `set_linux`, and only read through.
        unsafe { self.late.linux.load(Ordering::Acquire).as_ref() }
    }

    /// Open files of the whole system at this moment, and how many there may be: `fs.file-nr`.
    pub fn open_files(&self) -> (u64, u64) {
        (self.late.open_files.count(), self.late.most_files.load(Ordering::Relaxed))
    }

    /// From now on there may be `most` open files: `fs.file-max`. Those that are open stay open.
    pub fn set_most_files(&self, most: u64) {
        self.late.most_files.store(most, Ordering::Relaxed);
    }
}

/// An open file of this kernel.
pub type File<M> = quire_fs::OpenFile<FileHost<M>>;
/// A dentry of this kernel.
pub type Dentry<M> = quire_fs::Dentry<FileHost<M>>;
/// The view that a process has of the tree.
pub type View<M> = quire_fs::View<FileHost<M>>;
