//! What the file layer needs of the kernel around it.

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

/// The kernel around the file layer. A cheap handle: clones name the same kernel.
pub trait Host: Clone + Send + Sync + 'static {
    /// What holds a regular file's bytes.
    type Object: FileObject;
    /// One page of memory that a user is accountable for; given back when dropped.
    type Page: DerefMut<Target = [u8]> + Send;

    /// The part of a user's account that record locks take.
    type LockCharge: Charge;

    /// Charges the calling thread's user with `n` record locks; `None` where it may have no more.
    fn charge_locks(&self, n: usize) -> Option<Self::LockCharge>;

    /// The part of a user's account that the pages of a pipe's ring take, until it is dropped.
    type PipeCharge: Send;

    /// An empty object for a new file; `origin` tells which file, for as long as the object lives. Its pages are charged to `quota`.
    fn object(&self, origin: Arc<Origin<Self>>, quota: Option<&'static Quota>) -> Result<Self::Object, FsError>;
    /// A page of [`PAGE_SIZE`] bytes with any contents.
    fn page(&self) -> Option<Self::Page>;

    /// Charges the calling thread's user with a ring of [`DEFAULT`](crate::pipe::DEFAULT) pages, or fewer where it has many; returns how
    /// many. `None` where it has as many as it may.
    fn charge_pipe(&self) -> Option<(usize, Self::PipeCharge)>;
    /// Makes a charge one of `pages` pages. Where these are more than the calling thread may let the user have, it changes nothing and
    /// returns `false`.
    fn recharge_pipe(&self, charge: &mut Self::PipeCharge, pages: usize) -> bool;

    /// Sleeps until there is memory again, after [`page`](Self::page) gave none; false where nothing can be freed. The caller holds no
    /// lock.
    fn wait_for_memory(&self) -> bool {
        false
    }
    /// Counts an open file; whether there may be one more.
    fn file_opened(&self) -> bool;
    /// Counts one less.
    fn file_closed(&self);
    /// What keeps the memory of names that are looked up.
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
    /// Makes the file `bytes` long: cuts off what lies behind, also out of every mapping, or adds zeroes.
    fn set_size(&self, bytes: u64) -> Result<(), FsError>;
    /// Gives the bytes from `offset` to `sink`, as many as it takes and the file has. May sleep in the sink.
    fn read(&self, offset: u64, sink: &mut dyn Sink) -> Result<usize, FsError>;
    /// Writes what `source` has at `offset`, growing the file to cover what was written. An error only where nothing was.
    fn write(&self, offset: u64, source: &mut dyn Source) -> Result<usize, FsError>;
    /// Pages that hold data.
    fn resident(&self) -> u64;
    /// The first page from `page` on that holds data; its number.
    fn next_data(&self, page: u64) -> Option<u64>;
    /// The first page from `page` on that holds none; its number.
    fn next_hole(&self, page: u64) -> u64;
    /// Drops the pages `first..end`: they read as zeroes from now on.
    fn discard(&self, first: u64, end: u64);
    /// Writes what has changed in the pages `first..end` to where the file is kept, and waits for that. What fails is noted in
    /// [`write_errors`](Self::write_errors). May sleep.
    fn write_back(&self, first: u64, end: u64);
    /// Writes that failed, whoever started them.
    fn write_errors(&self) -> &WriteErrors;
    /// Makes the bytes `from..to` zeroes; holes stay holes.
    fn zero(&self, from: u64, to: u64) -> Result<(), FsError>;
    /// Makes sure that the pages `first..end` exist, so that storing to them runs out of neither room nor memory. Where there is no
    /// room for all, none is made.
    fn allocate(&self, first: u64, end: u64) -> Result<(), FsError>;
}

/// What an object tells of the file it belongs to, for listings of mappings. Outlives the file's last name.
pub struct Origin<H: Host> {
    /// The file's identity.
    pub ident: Ident,
    name: SpinLock<Weak<Dentry<H>>>,
    /// Where the dentry of that name lies: nothing else can as long as the name refers to it. Changed under the name's lock.
    at: AtomicUsize,
    /// Of a file that can be sealed: the mappings that may store into it.
    stores: Option<Stores>,
}

impl<H: Host> Origin<H> {
    /// An origin whose name is not known yet. `sealable`: the file can be sealed, so mappings that may store into it are counted.
    pub(crate) fn new(ident: Ident, sealable: bool) -> Self {
        let name = SpinLock::new(Rank::ATTRIBUTES, Weak::new());
        Origin { ident, name, at: AtomicUsize::new(0), stores: sealable.then(Stores::new) }
    }
    /// Whether shared mappings that may store into the file are to be counted by [`note_stores`](Self::note_stores).
    pub fn counts_stores(&self) -> bool {
        self.stores.is_some()
    }
    /// A shared mapping that may store into the file has come, made out of another one or [announced](crate::tree::inode::RegularFile::to_store);
    /// or, where not `came`, one has gone.
    pub fn note_stores(&self, came: bool) {
        match &self.stores {
            Some(stores) if came => stores.add(),
            Some(stores) => stores.leave(),
            None => {}
        }
    }
    /// A program is about to change the file through a mapping that may store, otherwise than by a store; whether seals allow it. Until
    /// [`end_change`](Self::end_change) the file is not sealed against writing.
    pub fn begin_change(&self) -> bool {
        self.stores.as_ref().is_none_or(Stores::begin_change)
    }
    /// The change that was allowed is done.
    pub fn end_change(&self) {
        if let Some(stores) = &self.stores {
            stores.leave();
        }
    }
    /// Seals forbid writes from now on.
    pub(crate) fn forbid_writes(&self) {
        if let Some(stores) = &self.stores {
            stores.forbid_writes();
        }
    }
    /// No such mapping comes from now on; [`FsError::Busy`] where there is one.
    pub(crate) fn deny_stores(&self) -> Result<(), FsError> {
        self.stores.as_ref().map_or(Ok(()), Stores::deny)
    }
    /// Announces such a mapping, where they are counted.
    pub(crate) fn to_store(&self) -> Result<Option<ToStore<'_>>, FsError> {
        self.stores.as_ref().map(ToStore::announce).transpose()
    }
    /// Notes the name under which the file was made or opened last.
    pub fn set_name(&self, dentry: &Arc<Dentry<H>>) {
        let new = Arc::downgrade(dentry);
        let mut name = self.name.lock();
        self.at.store(new.as_ptr().addr(), Ordering::Release);
        let old = core::mem::replace(&mut *name, new);
        drop(name);
        drop(old);
    }
    /// Notes that the file was opened as `dentry`, where it is known under no name that exists.
    pub(crate) fn opened_as(&self, dentry: &Arc<Dentry<H>>) {
        // Mostly it is the one that is noted, which can be seen without the lock.
        if self.at.load(Ordering::Acquire) != Arc::as_ptr(dentry).addr() && self.dentry().is_none() {
            self.set_name(dentry);
        }
    }
    /// The dentry under which the file is known, while it exists.
    pub fn dentry(&self) -> Option<Arc<Dentry<H>>> {
        let weak = self.name.lock().clone();
        weak.upgrade()
    }
}
