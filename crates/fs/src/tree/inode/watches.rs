//! The watches of an inode.

use super::Inode;
use crate::FsError;
use crate::host::Host;
use crate::tree::watch::{Happening, Watch, WatchList, Watcher};
use quire_heap::Arc;

impl<H: Host> Inode<H> {
    fn watch_list(&self) -> Option<Arc<WatchList>> {
        self.watches.lock().clone()
    }

    /// The watch of `watcher` on the inode, if there is one.
    pub fn watch_of(&self, watcher: &Arc<dyn Watcher>) -> Option<Arc<Watch>> {
        self.watch_list()?.watches().iter().find(|watch| watch.is_of(watcher)).cloned()
    }

    /// Adds a watch of `watcher` on the inode. The caller has checked that there is none, and holds a lock, so that no
    /// other thread adds one meanwhile.
    pub fn watch(&self, watcher: &Arc<dyn Watcher>, id: i32, wanted: Happening) -> Result<Arc<Watch>, FsError> {
        let list = match self.watch_list() {
            Some(list) => list,
            None => {
                let new = WatchList::new()?;
                self.watches.lock().get_or_insert(new).clone()
            }
        };
        Watch::begin(&list, self.system(), self.ident, watcher, id, wanted)
    }

    /// Notifies the watchers of the inode.
    #[cold]
    pub(in crate::tree) fn notify(&self, what: Happening, cookie: u32, name: &[u8], listed: bool) {
        let Some(list) = self.watch_list() else { return };
        list.watches().iter().for_each(|watch| watch.notify(what, cookie, name, listed));
    }

    /// Notifies the watchers that the inode is gone, and ends their watches.
    pub(crate) fn end_watches(&self) {
        if !self.system().is_watched() {
            return;
        }
        let Some(list) = self.watch_list() else { return };
        for watch in list.watches().iter() {
            watch.notify(Happening::DELETE_SELF, 0, b"", true);
            watch.end_and_notify();
        }
    }

    pub(in crate::tree) fn kind_bit(&self) -> Happening {
        if self.is_directory() { Happening::DIRECTORY } else { Happening::empty() }
    }
}
