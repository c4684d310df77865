//! The file layer's interface to the kernel.

use crate::FsError;
use crate::file::lock::Charge;
use crate::file::seal::{Stores, ToStore};
use crate::stream::transfer::{Sink, Source};
use crate::tree::attr::{Ident, Timestamp};
use crate::tree::dentry::Dentry;
use core::ops::DerefMut;
use quire_heap::{Arc, Weak};
use quire_sync::atomic::{AtomicUsize, Ordering};
use quire_sync::epoch::Domain;
use quire_sync::{Quota, Rank, SpinLock};
use quire_vm::object::WriteErrors;

/// The size of a page in bytes. Pipes consist of pages, and sizes are rounded to pages.
pub const PAGE_SIZE: usize = quire_vm::PAGE_SIZE as usize;

/// The kernel around the file layer. A cheap handle: all clones are handles of the same kernel.
pub trait Host: Clone + Send + Sync + 'static {
    /// The container of a regular file's bytes.
    type Object: FileObject;
    /// One page of memory charged to a user; freed when dropped.
    type Page: DerefMut<Target = [u8]> + Send;

    /// A charge to a user's account for record locks.
    type LockCharge: Charge;

    /// Charges the calling thread's user with `n` record locks; `None` if it may have no more.
    fn charge_locks(&self, n: usize) -> Option<Self::LockCharge>;

    /// The state that the layer above attaches to an open file, which keeps it until it is closed.
    type Attached: Send + Sync;

    /// The time at which an opener that breaks a lease now stops waiting, in nanoseconds of the monotonic clock.
    fn lease_deadline(&self) -> u64;

    /// A charge to a user's account for the pages of a pipe's ring, until it is dropped.
    type PipeCharge: Send;

    /// Makes an empty object for a new file. The object keeps `origin`, which describes the file. The object's pages
    /// are charged to `quota`.
    fn object(&self, origin: Arc<Origin<Self>>, quota: Option<&'static Quota>) -> Result<Self::Object, FsError>;
    /// Allocates a page of [`PAGE_SIZE`] bytes with any contents. `None` if there is no memory.
    fn page(&self) -> Option<Self::Page>;

    /// Charges the calling thread's user with a ring of [`DEFAULT`](crate::pipe::DEFAULT) pages, or fewer if the user
    /// has many. Returns the number of pages. `None` if the user is at its limit.
    fn charge_pipe(&self) -> Option<(usize, Self::PipeCharge)>;
    /// Changes a charge to `pages` pages. If the calling thread's limits forbid that number, it changes nothing and
    /// returns `false`.
    fn recharge_pipe(&self, charge: &mut Self::PipeCharge, pages: usize) -> bool;

    /// Sleeps until there is free memory, after [`page`](Self::page) returned `None`. Returns false if no memory can be
    /// freed. The caller holds no lock.
    fn wait_for_memory(&self) -> bool {
        false
    }
    /// Counts an open file. Returns false if the limit is reached.
    fn file_opened(&self) -> bool;
    /// Uncounts an open file.
    fn file_closed(&self);
    /// The epoch domain that protects names during lookups.
    fn epoch(&self) -> &'static Domain;
    /// The wall clock.
    fn realtime(&self) -> Timestamp;
    /// Fills `into` with unpredictable bytes.
    fn random(&self, into: &mut [u8]);
    /// The number of processors.
    fn cpus(&self) -> usize;
}

/// The bytes of a regular file: an object of the memory core.
pub trait FileObject: Clone + Send + Sync + 'static {
    /// The size in bytes.
    fn size(&self) -> u64;
    /// Sets the size to `bytes` bytes. Removes the bytes behind that size, also from every mapping, or adds zeroes.
    fn set_size(&self, bytes: u64) -> Result<(), FsError>;
    /// Copies bytes from `offset` on into `sink`, as many as the sink accepts and the file has. May sleep in the sink.
    fn read(&self, offset: u64, sink: &mut dyn Sink) -> Result<usize, FsError>;
    /// Writes the bytes of `source` at `offset`, and grows the file to cover them. Fails only if no byte was written.
    fn write(&self, offset: u64, source: &mut dyn Source) -> Result<usize, FsError>;
    /// The number of pages that hold data.
    fn resident(&self) -> u64;
    /// The number of the first page at or after `page` that holds data.
    fn next_data(&self, page: u64) -> Option<u64>;
    /// The number of the first page at or after `page` that holds no data.
    fn next_hole(&self, page: u64) -> u64;
    /// Drops the pages `first..end`, so that they read as zeroes from now on.
    fn discard(&self, first: u64, end: u64);
    /// Writes the dirty pages of `first..end` to the file's storage, and waits until they are written. Errors are
    /// recorded in [`write_errors`](Self::write_errors). May sleep.
    fn write_back(&self, first: u64, end: u64);
    /// The time at which a program last stored into the file through a shared mapping, as far as faults show it. `None`
    /// if no program did, or the store was [forgotten](Self::forget_stores). A later call returns an earlier time only
    /// if pages were removed between the calls, or the clock was set back.
    fn stored(&self) -> Option<Timestamp>;
    /// Forgets stores through shared mappings up to the time `until`.
    fn forget_stores(&self, until: Timestamp);
    /// The failed writes of all callers.
    fn write_errors(&self) -> &WriteErrors;
    /// Makes the bytes `from..to` zeroes; holes stay holes.
    fn zero(&self, from: u64, to: u64) -> Result<(), FsError>;
    /// Allocates the pages `first..end`, so that stores to them cannot fail for lack of room or memory. If there is no
    /// room for all pages, none is allocated.
    fn allocate(&self, first: u64, end: u64) -> Result<(), FsError>;
}

/// An object's description of its file, for listings of mappings. An origin outlives the file's last name.
pub struct Origin<H: Host> {
    /// The file's identity.
    pub ident: Ident,
    name: SpinLock<Weak<Dentry<H>>>,
    /// The address of the dentry in `name`, unique while `name` refers to it. Changed under the lock of `name`.
    at: AtomicUsize,
    /// For a file that can be sealed: the count of mappings that may store into it.
    stores: Option<Stores>,
}

impl<H: Host> Origin<H> {
    /// An origin whose name is not known yet. With `sealable`, the file can be sealed, so mappings that may store into
    /// it are counted.
    pub(crate) fn new(ident: Ident, sealable: bool) -> Self {
        let name = SpinLock::new(Rank::ATTRIBUTES, Weak::new());
        Origin { ident, name, at: AtomicUsize::new(0), stores: sealable.then(Stores::new) }
    }
    /// Whether shared mappings that may store into the file must be counted by [`note_stores`](Self::note_stores).
    pub fn counts_stores(&self) -> bool {
        self.stores.is_some()
    }
    /// Counts a shared mapping that may store into the file: a copied mapping, or an
    /// [announced](crate::tree::inode::RegularFile::to_store) one. If `came` is false, uncounts a removed mapping.
    pub fn note_stores(&self, came: bool) {
        match &self.stores {
            Some(stores) if came => stores.add(),
            Some(stores) => stores.leave(),
            None => {}
        }
    }
    /// Begins a change of the file through a mapping that may store, by an operation that is not a store. Returns
    /// whether seals allow the change. Until [`end_change`](Self::end_change) the file cannot be sealed against
    /// writing.
    pub fn begin_change(&self) -> bool {
        self.stores.as_ref().is_none_or(Stores::begin_change)
    }
    /// Ends a change that [`begin_change`](Self::begin_change) began.
    pub fn end_change(&self) {
        if let Some(stores) = &self.stores {
            stores.leave();
        }
    }
    /// Notes that seals forbid writes from now on.
    pub(crate) fn forbid_writes(&self) {
        if let Some(stores) = &self.stores {
            stores.forbid_writes();
        }
    }
    /// Denies mappings that may store from now on. Fails with [`FsError::Busy`] if such a mapping exists.
    pub(crate) fn deny_stores(&self) -> Result<(), FsError> {
        self.stores.as_ref().map_or(Ok(()), Stores::deny)
    }
    /// Announces a mapping that may store, if such mappings are counted.
    pub(crate) fn to_store(&self) -> Result<Option<ToStore<'_>>, FsError> {
        self.stores.as_ref().map(ToStore::announce).transpose()
    }
    /// Stores a name of the file: the name under which it was made, or a name by which it was opened after the stored
    /// name was removed.
    pub fn set_name(&self, dentry: &Arc<Dentry<H>>) {
        let new = Arc::downgrade(dentry);
        let mut name = self.name.lock();
        self.at.store(new.as_ptr().addr(), Ordering::Release);
        let old = core::mem::replace(&mut *name, new);
        drop(name);
        drop(old);
    }
    /// Stores `dentry`, by which the file was opened, unless the stored dentry still exists.
    pub(crate) fn opened_as(&self, dentry: &Arc<Dentry<H>>) {
        // Mostly `dentry` is stored already. This check needs no lock.
        if self.at.load(Ordering::Acquire) != Arc::as_ptr(dentry).addr() && self.dentry().is_none() {
            self.set_name(dentry);
        }
    }
    /// The stored dentry, while it exists.
    pub fn dentry(&self) -> Option<Arc<Dentry<H>>> {
        let weak = self.name.lock().clone();
        weak.upgrade()
    }
}
