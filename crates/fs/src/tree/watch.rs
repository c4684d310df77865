//! Watches on inodes: notifications of reads, writes, opens, changes, creations, moves and removals of a file.
//!
//! A file system counts the watches on its inodes. Without any, an operation on a file only reads that count. The
//! watches of one inode are in a list that is copied on change, so watchers are notified with no lock held. A watch
//! that is removed while a thread reads the list is marked as gone, and leaves the list with the next change.

use super::attr::Ident;
use super::system::FileSystem;
use crate::FsError;
use quire_heap::{Arc, Vec, Weak};
use quire_sync::atomic::{AtomicBool, AtomicU32, Ordering};
use quire_sync::{Rank, SpinLock};

bitflags::bitflags! {
    /// The events of files, and how a watch waits for them.
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
    pub struct Happening: u32 {
        /// The file was read.
        const ACCESS = 1;
        /// The file was written, or its size changed.
        const MODIFY = 1 << 1;
        /// The file's attributes changed.
        const ATTRIBUTES = 1 << 2;
        /// A file that was open for writing was closed.
        const CLOSE_WRITE = 1 << 3;
        /// Another file was closed.
        const CLOSE_OTHER = 1 << 4;
        /// The file was opened.
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
        /// In a watch: names that were removed are not watched.
        const LISTED_ONLY = 1 << 26;
        /// In a watch: the watch ends with its first event.
        const ONCE = 1 << 27;
        /// In an event: the event concerns a directory.
        const DIRECTORY = 1 << 28;
    }
}

impl Happening {
    /// All events.
    pub const EVENTS: Happening = Happening::from_bits_retain((1 << 12) - 1);
}

/// The receiver of events. Called from threads, with no lock held.
pub trait Watcher: Send + Sync {
    /// Called when `what` happened to the watched inode, or to its entry `name`. Both events of a move have the same
    /// `cookie`.
    fn happened(&self, watch: &Watch, what: Happening, cookie: u32, name: &[u8]);
    /// Called when the watch has ended.
    fn ended(&self, watch: &Watch);
}

/// A watcher's interest in an inode.
pub struct Watch {
    /// The watcher's number for this watch.
    pub id: i32,
    /// The watched inode's identity.
    pub ident: Ident,
    watcher: Weak<dyn Watcher>,
    wanted: AtomicU32,
    gone: AtomicBool,
    list: Weak<WatchList>,
    system: &'static FileSystem,
}

/// The watches of an inode.
pub(crate) struct WatchList(SpinLock<Arc<Vec<Arc<Watch>>>>);

/// The list of an inode's watches, made for its first watch.
pub(super) type OwnList = SpinLock<Option<Arc<WatchList>>>;

pub(super) fn no_list() -> OwnList {
    SpinLock::new(Rank::ATTRIBUTES, None)
}

impl WatchList {
    pub(super) fn new() -> Result<Arc<Self>, FsError> {
        Ok(Arc::try_new(WatchList(SpinLock::new(Rank::ATTRIBUTES, Arc::try_new(Vec::new())?)))?)
    }

    pub(super) fn watches(&self) -> Arc<Vec<Arc<Watch>>> {
        self.0.lock().clone()
    }

    /// Replaces the list by a copy without ended watches, and with `new`. The caller adds one watch at a time.
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
    /// A new watch in `list`, of the inode `ident` of `system`.
    pub(super) fn begin(
        list: &Arc<WatchList>,
        system: &'static FileSystem,
        ident: Ident,
        watcher: &Arc<dyn Watcher>,
        id: i32,
        wanted: Happening,
    ) -> Result<Arc<Self>, FsError> {
        let watch = Arc::try_new(Watch {
            id,
            ident,
            watcher: Arc::downgrade(watcher),
            wanted: AtomicU32::new(wanted.bits()),
            gone: AtomicBool::new(false),
            list: Arc::downgrade(list),
            system,
        })?;
        list.renew(Some(&watch))?;
        system.watches.fetch_add(1, Ordering::Relaxed);
        Ok(watch)
    }

    /// Whether this is a watch of `watcher`, and has not ended.
    pub(super) fn is_of(&self, watcher: &Arc<dyn Watcher>) -> bool {
        !self.is_gone() && self.watcher.upgrade().is_some_and(|other| Arc::ptr_eq(&other, watcher))
    }

    /// Ends the watch, and notifies its watcher.
    pub(super) fn end_and_notify(&self) {
        if self.end()
            && let Some(watcher) = self.watcher.upgrade()
        {
            watcher.ended(self);
        }
    }

    /// The events that the watch waits for, and its options.
    pub fn wanted(&self) -> Happening {
        Happening::from_bits_truncate(self.wanted.load(Ordering::Acquire))
    }

    /// Changes the events that the watch waits for, and its options.
    pub fn set_wanted(&self, wanted: Happening) {
        self.wanted.store(wanted.bits(), Ordering::Release);
    }

    /// Whether the watch has ended.
    pub fn is_gone(&self) -> bool {
        self.gone.load(Ordering::Acquire)
    }

    /// Ends the watch. Returns `false` if it has ended already. The watcher is not notified.
    pub fn end(&self) -> bool {
        if self.gone.swap(true, Ordering::AcqRel) {
            return false;
        }
        self.system.watches.fetch_sub(1, Ordering::Relaxed);
        // Without memory, the watch stays in the list until the next change.
        let _stays = self.list.upgrade().map(|list| list.renew(None));
        true
    }

    pub(super) fn notify(&self, what: Happening, cookie: u32, name: &[u8], listed: bool) {
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
