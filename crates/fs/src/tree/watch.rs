//! Watches on inodes: who reads, writes, opens, changes, makes, moves and removes a file.
//!
//! A file system counts the watches on its inodes. Without any, an operation on a file only reads that count. The
//! watches of one inode are in a list that is copied on change, so watchers are told with no lock held. A watch that is
//! removed while a thread reads the list is marked as gone, and leaves the list with the next change.

use super::dentry::Dentry;
use super::inode::Inode;
use super::system::FileSystem;
use crate::FsError;
use crate::host::Host;
use quire_heap::{Arc, Vec, Weak};
use quire_sync::atomic::{AtomicBool, AtomicU32, Ordering};
use quire_sync::{Rank, SpinLock};

bitflags::bitflags! {
    /// The events of files, and how a watch waits for them.
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
    pub struct Happening: u32 {
        /// It was read.
        const ACCESS = 1;
        /// It was written, or its size changed.
        const MODIFY = 1 << 1;
        /// Its attributes changed.
        const ATTRIBUTES = 1 << 2;
        /// A file that was open for writing was closed.
        const CLOSE_WRITE = 1 << 3;
        /// Another file was closed.
        const CLOSE_OTHER = 1 << 4;
        /// It was opened.
        const OPEN = 1 << 5;
        /// A name left the directory.
        const MOVED_FROM = 1 << 6;
        /// A name came to the directory.
        const MOVED_TO = 1 << 7;
        /// A name was made in the directory.
        const CREATE = 1 << 8;
        /// A name was removed from the directory.
        const DELETE = 1 << 9;
        /// The inode is gone.
        const DELETE_SELF = 1 << 10;
        /// The inode has another name.
        const MOVE_SELF = 1 << 11;
        /// Of a watch: names that were removed are not watched.
        const LISTED_ONLY = 1 << 26;
        /// Of a watch: it ends with its first event.
        const ONCE = 1 << 27;
        /// Of an event: it concerns a directory.
        const DIRECTORY = 1 << 28;
    }
}

impl Happening {
    /// All events.
    pub const EVENTS: Happening = Happening::from_bits_retain((1 << 12) - 1);
}

/// Is told of events. Called from threads, with no lock held.
pub trait Watcher: Send + Sync {
    /// `what` happened to the watched inode, or to its entry `name`. The two halves of a move have the same `cookie`.
    fn happened(&self, watch: &Watch, what: Happening, cookie: u32, name: &[u8]);
    /// The watch ended.
    fn ended(&self, watch: &Watch);
}

/// A watcher's interest in an inode.
pub struct Watch {
    /// The watcher's number of it.
    pub id: i32,
    watcher: Weak<dyn Watcher>,
    wanted: AtomicU32,
    gone: AtomicBool,
    list: Weak<WatchList>,
    system: &'static FileSystem,
}

/// The watches of an inode.
pub(crate) struct WatchList(SpinLock<Arc<Vec<Arc<Watch>>>>);

/// An inode's list, made for its first watch.
pub(super) type OwnList = SpinLock<Option<Arc<WatchList>>>;

pub(super) const fn no_list() -> OwnList {
    SpinLock::new(Rank::ATTRIBUTES, None)
}

impl WatchList {
    fn watches(&self) -> Arc<Vec<Arc<Watch>>> {
        self.0.lock().clone()
    }

    /// Replaces the list by one without gone watches, and with `new`. The caller adds one at a time.
    fn renew(&self, new: Option<&Arc<Watch>>) -> Result<(), FsError> {
        loop {
            let old = self.watches();
            let mut all = Vec::try_with_capacity(old.len() + 1)?;
            let stay = old.iter().filter(|watch| !watch.is_gone());
            stay.chain(new).for_each(|watch| all.push_reserved(watch.clone()));
            let all = Arc::try_new(all)?;
            let mut list = self.0.lock();
            if Arc::ptr_eq(&list, &old) {
                let before = core::mem::replace(&mut *list, all);
                drop(list);
                drop(before);
                return Ok(());
            }
        }
    }
}

impl Watch {
    /// The events that it waits for, and how.
    pub fn wanted(&self) -> Happening {
        Happening::from_bits_truncate(self.wanted.load(Ordering::Acquire))
    }

    /// Changes that.
    pub fn set_wanted(&self, wanted: Happening) {
        self.wanted.store(wanted.bits(), Ordering::Release);
    }

    /// Whether it ended.
    pub fn is_gone(&self) -> bool {
        self.gone.load(Ordering::Acquire)
    }

    /// Ends it. `false` if it has ended already. The watcher is not told.
    pub fn end(&self) -> bool {
        if self.gone.swap(true, Ordering::AcqRel) {
            return false;
        }
        self.system.watches.fetch_sub(1, Ordering::Relaxed);
        // Without memory it stays on the list until the next change.
        let _stays = self.list.upgrade().map(|list| list.renew(None));
        true
    }

    fn tell(&self, what: Happening, cookie: u32, name: &[u8], listed: bool) {
        let wanted = self.wanted();
        if self.is_gone()
            || !wanted.intersects(what & Happening::EVENTS)
            || (!listed && wanted.contains(Happening::LISTED_ONLY))
        {
            return;
        }
        let Some(watcher) = self.watcher.upgrade() else { return };
        watcher.happened(self, what, cookie, name);
        if wanted.contains(Happening::ONCE) && self.end() {
            watcher.ended(self);
        }
    }
}

impl<H: Host> Inode<H> {
    fn watch_list(&self) -> Option<Arc<WatchList>> {
        self.watches.lock().clone()
    }

    /// The watch of `watcher` on it.
    pub fn watch_of(&self, watcher: &Arc<dyn Watcher>) -> Option<Arc<Watch>> {
        let watches = self.watch_list()?.watches();
        let is = |watch: &&Arc<Watch>| {
            !watch.is_gone() && watch.watcher.upgrade().is_some_and(|other| Arc::ptr_eq(&other, watcher))
        };
        watches.iter().find(is).cloned()
    }

    /// A new watch of `watcher` on it. The caller knows that there is none, and makes one at a time.
    pub fn watch(&self, watcher: &Arc<dyn Watcher>, id: i32, wanted: Happening) -> Result<Arc<Watch>, FsError> {
        let list = match self.watch_list() {
            Some(list) => list,
            None => {
                let new = SpinLock::new(Rank(Rank::ATTRIBUTES.0), Arc::try_new(Vec::new())?);
                let new = Arc::try_new(WatchList(new))?;
                self.watches.lock().get_or_insert(new).clone()
            }
        };
        let system = self.system();
        let watch = Arc::try_new(Watch {
            id,
            watcher: Arc::downgrade(watcher),
            wanted: AtomicU32::new(wanted.bits()),
            gone: AtomicBool::new(false),
            list: Arc::downgrade(&list),
            system,
        })?;
        list.renew(Some(&watch))?;
        system.watches.fetch_add(1, Ordering::Relaxed);
        Ok(watch)
    }

    /// Tells the watchers of the inode.
    #[cold]
    fn tell(&self, what: Happening, cookie: u32, name: &[u8], listed: bool) {
        let Some(list) = self.watch_list() else { return };
        list.watches().iter().for_each(|watch| watch.tell(what, cookie, name, listed));
    }

    /// The inode is gone: its watchers are told, and their watches end.
    pub(crate) fn end_watches(&self) {
        if !self.system().is_watched() {
            return;
        }
        let Some(list) = self.watch_list() else { return };
        for watch in list.watches().iter() {
            watch.tell(Happening::DELETE_SELF, 0, b"", true);
            if watch.end()
                && let Some(watcher) = watch.watcher.upgrade()
            {
                watcher.ended(watch);
            }
        }
    }

    fn kind_bit(&self) -> Happening {
        if self.is_directory() { Happening::DIRECTORY } else { Happening::empty() }
    }
}

impl<H: Host> Dentry<H> {
    /// `what` happened to the inode, by this name: the watchers of its directory and its own are told.
    #[inline]
    pub fn happened(&self, what: Happening) {
        if self.inode.system().is_watched() {
            self.tell_both(what);
        }
    }

    #[cold]
    fn tell_both(&self, what: Happening) {
        let what = what | self.inode.kind_bit();
        let listed = self.listed();
        if let Some(parent) = self.parent() {
            parent.inode.tell(what, 0, &self.name(), listed);
        }
        self.inode.tell(what, 0, b"", listed);
    }

    /// `what` happened to the name `name` of `inode` in this directory.
    pub(crate) fn entry_happened(&self, what: Happening, cookie: u32, name: &[u8], inode: &Inode<H>) {
        if self.inode.system().is_watched() {
            self.inode.tell(what | inode.kind_bit(), cookie, name, true);
        }
    }

    /// The name `name` of a directory or another file is gone from this directory.
    pub(crate) fn name_removed(&self, name: &[u8], directory: bool) {
        if self.inode.system().is_watched() {
            let kind = if directory { Happening::DIRECTORY } else { Happening::empty() };
            self.inode.tell(Happening::DELETE | kind, 0, name, true);
        }
    }

    /// `what` happened to the inode itself, by whatever name.
    pub(crate) fn inode_happened(&self, what: Happening) {
        if self.inode.system().is_watched() {
            self.inode.tell(what | self.inode.kind_bit(), 0, b"", true);
        }
    }
}
