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

/// Bytes in a page, of pipes and of what sizes are rounded to.
pub const PAGE_SIZE: usize = quire_vm::PAGE_SIZE as usize;

/// The kernel around the file layer. A cheap handle: clones are the same kernel.
pub trait Host: Clone + Send + Sync + 'static {
    /// The container of a regular file's bytes.
    type Object: FileObject;
    /// One page of memory charged to a user; freed when dropped.
    type Page: DerefMut<Target = [u8]> + Send;

    /// A charge to a user's account for record locks.
    type LockCharge: Charge;

    /// Charges the calling thread's user with `n` record locks; `None` if it may have no more.
    fn charge_locks(&self, n: usize) -> Option<Self::LockCharge>;

    /// State of the layer above about an open file, which the file keeps until it is closed.
    type Attached: Send + Sync;

    /// When an opener stops to wait for a lease that it breaks now, on the monotonic clock in nanoseconds.
    fn lease_deadline(&self) -> u64;

    /// A charge to a user's account for the pages of a pipe's ring, until it is dropped.
    type PipeCharge: Send;

    /// An empty object for a new file; `origin` describes the file, for as long as the object lives. Its pages are
    /// charged to `quota`.
    fn object(&self, origin: Arc<Origin<Self>>, quota: Option<&'static Quota>) -> Result<Self::Object, FsError>;
    /// A page of [`PAGE_SIZE`] bytes with any contents.
    fn page(&self) -> Option<Self::Page>;

    /// Charges the calling thread's user with a ring of [`DEFAULT`](crate::pipe::DEFAULT) pages, or fewer if it has
    /// many; returns how many. `None` if it is at its limit.
    fn charge_pipe(&self) -> Option<(usize, Self::PipeCharge)>;
    /// Changes a charge to `pages` pages. If the calling thread's limits forbid so many, it changes nothing and returns
    /// `false`.
    fn recharge_pipe(&self, charge: &mut Self::PipeCharge, pages: usize) -> bool;

    /// Sleeps until there is memory again, after [`page`](Self::page) gave none; false if no memory can be freed. The
    /// caller holds no lock.
    fn wait_for_memory(&self) -> bool {
        false
    }
    /// Counts an open file; false if the limit is reached.
    fn file_opened(&self) -> bool;
    /// Uncounts an open file.
    fn file_closed(&self);
    /// The epoch domain that protects names during lookups.
    fn epoch(&self) -> &'static Domain;
    /// The wall clock.
    fn realtime(&self) -> Timestamp;
    /// Fills `into` with unpredictable bytes.
    fn random(&self, into: &mut [u8]);
    /// How many processors there are.
    fn cpus(&self) -> usize;
}

/// The bytes of a regular file: an object of the memory core.
pub trait FileObject: Clone + Send + Sync + 'static {
    /// The size in bytes.
    fn size(&self) -> u64;
    /// Makes the file `bytes` long: removes the bytes behind it, also from every mapping, or adds zeroes.
    fn set_size(&self, bytes: u64) -> Result<(), FsError>;
    /// Gives the bytes from `offset` to `sink`, as many as it takes and the file has. May sleep in the sink.
    fn read(&self, offset: u64, sink: &mut dyn Sink) -> Result<usize, FsError>;
    /// Writes the bytes of `source` at `offset`, growing the file to cover them. An error only if none was written.
    fn write(&self, offset: u64, source: &mut dyn Source) -> Result<usize, FsError>;
    /// Pages that hold data.
    fn resident(&self) -> u64;
    /// The first page from `page` on that holds data; its number.
    fn next_data(&self, page: u64) -> Option<u64>;
    /// The first page from `page` on that holds none; its number.
    fn next_hole(&self, page: u64) -> u64;
    /// Drops the pages `first..end`: they read as zeroes from now on.
    fn discard(&self, first: u64, end: u64);
    /// Writes changed pages of `first..end` to the file's storage, and waits for that. Errors are recorded in
    /// [`write_errors`](Self::write_errors). May sleep.
    fn write_back(&self, first: u64, end: u64);
    /// When a program last stored into the file through a shared mapping, as far as faults show it. `None`: never, or
    /// the store was [forgotten](Self::forget_stores). A later call returns an earlier time only if pages were removed
    /// between, or if the clock was set back.
    fn stored(&self) -> Option<Timestamp>;
    /// Forgets such stores up to `until`.
    fn forget_stores(&self, until: Timestamp);
    /// The failed writes of all callers.
    fn write_errors(&self) -> &WriteErrors;
    /// Makes the bytes `from..to` zeroes; holes stay holes.
    fn zero(&self, from: u64, to: u64) -> Result<(), FsError>;
    /// Makes sure that the pages `first..end` exist, so that storing to them runs out of neither room nor memory. If
    /// there is no room for all, none is made.
    fn allocate(&self, first: u64, end: u64) -> Result<(), FsError>;
}

/// An object's description of its file, for listings of mappings. Outlives the file's last name.
pub struct Origin<H: Host> {
    /// The file's identity.
    pub ident: Ident,
    name: SpinLock<Weak<Dentry<H>>>,
    /// The address of that name's dentry, unique while the name refers to it. Changed under the name's lock.
    at: AtomicUsize,
    /// Of a file that can be sealed: the mappings that may store into it.
    stores: Option<Stores>,
}

impl<H: Host> Origin<H> {
    /// An origin whose name is not known yet. `sealable`: the file can be sealed, so mappings that may store into it
    /// are counted.
    pub(crate) fn new(ident: Ident, sealable: bool) -> Self {
        let name = SpinLock::new(Rank::ATTRIBUTES, Weak::new());
        Origin { ident, name, at: AtomicUsize::new(0), stores: sealable.then(Stores::new) }
    }
    /// Whether shared mappings that may store into the file must be counted by [`note_stores`](Self::note_stores).
    pub fn counts_stores(&self) -> bool {
        self.stores.is_some()
    }
    /// Counts a new shared mapping that may store into the file, copied or
    /// [announced](crate::tree::inode::RegularFile::to_store). If not `came`, uncounts a removed one.
    pub fn note_stores(&self, came: bool) {
        match &self.stores {
            Some(stores) if came => stores.add(),
            Some(stores) => stores.leave(),
            None => {}
        }
    }
    /// Begins a change of the file through a mapping that may store, other than by a store. Returns whether seals allow
    /// it. Until [`end_change`](Self::end_change) the file cannot be sealed against writing.
    pub fn begin_change(&self) -> bool {
        self.stores.as_ref().is_none_or(Stores::begin_change)
    }
    /// Ends the change.
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
    /// Denies such mappings from now on; [`FsError::Busy`] if there is one.
    pub(crate) fn deny_stores(&self) -> Result<(), FsError> {
        self.stores.as_ref().map_or(Ok(()), Stores::deny)
    }
    /// Announces such a mapping, if they are counted.
    pub(crate) fn to_store(&self) -> Result<Option<ToStore<'_>>, FsError> {
        self.stores.as_ref().map(ToStore::announce).transpose()
    }
    /// Stores the name under which the file was made, or opened after an earlier name had gone.
    pub fn set_name(&self, dentry: &Arc<Dentry<H>>) {
        let new = Arc::downgrade(dentry);
        let mut name = self.name.lock();
        self.at.store(new.as_ptr().addr(), Ordering::Release);
        let old = core::mem::replace(&mut *name, new);
        drop(name);
        drop(old);
    }
    /// Stores `dentry`, by which the file was opened, unless the stored name still exists.
    pub(crate) fn opened_as(&self, dentry: &Arc<Dentry<H>>) {
        // Mostly `dentry` is stored already, which is checked without the lock.
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
