//! Dentries: a name in a directory, and its parent.

use super::generated::Entry;
use super::inode::Inode;
use super::watch::Happening;
use crate::FsError;
use crate::host::Host;
use quire_heap::{Arc, Vec};
use quire_sync::{Rank, SpinLock};

/// A name of an inode. It exists while it is in use, even after the name is removed.
///
/// Guards: `place` has its own lock, and changes only under the locks of the name's old and new directories.
///
/// Aligned, because openers and closers of the file write its reference count on the line before, which readers of the
/// file do not access.
#[repr(align(64))]
pub struct Dentry<H: Host> {
    /// The name's inode.
    pub inode: Arc<Inode<H>>,
    place: SpinLock<DentryPlace<H>>,
    /// The root of something mounted, which cannot be renamed or removed.
    pub(crate) mounted: bool,
}

struct DentryPlace<H: Host> {
    /// The directory it is (or last was) in; `None` for the root of the tree and for nameless files.
    parent: Option<Arc<Dentry<H>>>,
    name: Arc<[u8]>,
    /// Whether the parent lists it.
    listed: bool,
}

impl<H: Host> Dentry<H> {
    fn with(
        parent: Option<Arc<Dentry<H>>>,
        name: Arc<[u8]>,
        inode: Arc<Inode<H>>,
        listed: bool,
        mounted: bool,
    ) -> Result<Arc<Self>, FsError> {
        let place = SpinLock::new(Rank::PLACE, DentryPlace { parent, name, listed });
        Ok(Arc::try_new(Dentry { inode, place, mounted })?)
    }

    /// The root of a tree.
    pub(crate) fn root(inode: Arc<Inode<H>>) -> Result<Arc<Self>, FsError> {
        Self::with(None, Arc::try_copy(b"")?, inode, true, true)
    }

    /// A name under `parent`, which lists it (or is about to).
    pub(crate) fn child(
        parent: &Arc<Dentry<H>>,
        name: Arc<[u8]>,
        inode: Arc<Inode<H>>,
        mounted: bool,
    ) -> Result<Arc<Self>, FsError> {
        Self::with(Some(parent.clone()), name, inode, true, mounted)
    }

    /// A file that no directory lists: a pipe, a memory file. Listings of open files show `label`.
    pub fn nameless(label: &[u8], inode: Arc<Inode<H>>) -> Result<Arc<Self>, FsError> {
        Self::with(None, Arc::try_copy(label)?, inode, false, false)
    }

    /// A file that was made in `parent` without a name there. Listings of open files show `label`, marked as a removed
    /// name.
    pub(crate) fn unlisted(parent: &Arc<Dentry<H>>, label: &[u8], inode: Arc<Inode<H>>) -> Result<Arc<Self>, FsError> {
        Self::with(Some(parent.clone()), Arc::try_copy(label)?, inode, false, false)
    }

    /// A dentry for `entry`, called `name`, in the generated directory `parent`. It is not cached: the next lookup
    /// makes another.
    pub(crate) fn for_generated(
        host: &H,
        parent: &Arc<Dentry<H>>,
        name: &[u8],
        entry: Entry<H>,
    ) -> Result<Arc<Self>, FsError> {
        let inode = Inode::generated(parent.inode.system(), entry.number, entry.attr, host.realtime(), entry.node)?;
        inode.change(host.realtime(), |a| a.links = if inode.is_directory() { 2 } else { 1 });
        Dentry::child(parent, Arc::try_copy(name)?, inode, false)
    }

    /// Whether its inode is a directory.
    pub(crate) fn is_directory(&self) -> bool {
        self.inode.is_directory()
    }

    /// The directory it is in.
    pub fn parent(&self) -> Option<Arc<Dentry<H>>> {
        self.place.lock().parent.clone()
    }

    /// Its name.
    pub fn name(&self) -> Arc<[u8]> {
        self.place.lock().name.clone()
    }

    /// Whether a directory lists it.
    pub fn listed(&self) -> bool {
        self.place.lock().listed
    }

    /// Marks the name as removed. The caller holds the directory's lock.
    pub(crate) fn unlist(&self) {
        self.place.lock().listed = false;
    }

    /// Moves the name. The caller holds the locks of both directories; the returned old parent is dropped without them.
    pub(crate) fn place_at(&self, parent: &Arc<Dentry<H>>, name: Arc<[u8]>) -> Option<Arc<Dentry<H>>> {
        let parent = Some(parent.clone());
        let mut place = self.place.lock();
        place.name = name;
        core::mem::replace(&mut place.parent, parent)
    }

    /// Whether it is `other` or lies below it.
    pub fn is_below(this: &Arc<Self>, other: &Arc<Dentry<H>>) -> bool {
        let mut at = Some(this.clone());
        while let Some(d) = at {
            if Arc::ptr_eq(&d, other) {
                return true;
            }
            at = d.parent();
        }
        false
    }

    /// The path from `root` (or from the root of the tree, if it is not below `root`), and whether that name still
    /// exists. Nameless files give their label.
    pub fn path(this: &Arc<Self>, root: &Arc<Dentry<H>>) -> Result<(Vec<u8>, bool), FsError> {
        Self::path_within(this, root).map(|(path, exists, _)| (path, exists))
    }

    /// The same, and whether it is `root` or lies below it.
    pub fn path_within(this: &Arc<Self>, root: &Arc<Dentry<H>>) -> Result<(Vec<u8>, bool, bool), FsError> {
        let mut inside = true;
        let mut names: Vec<Arc<[u8]>> = Vec::new();
        let mut exists = true;
        let mut above: Option<Arc<Dentry<H>>> = None;
        while let at = above.as_ref().unwrap_or(this)
            && !Arc::ptr_eq(at, root)
        {
            let (parent, name, listed) = {
                let p = at.place.lock();
                (p.parent.clone(), p.name.clone(), p.listed)
            };
            exists &= listed;
            let Some(parent) = parent else {
                if names.is_empty() && !listed {
                    names.try_push(name)?;
                    return joined(&names, b"").map(|path| (path, true, false));
                }
                inside = false;
                break;
            };
            names.try_push(name)?;
            above = Some(parent);
        }
        if names.is_empty() {
            return Ok((Vec::try_copy(b"/")?, exists, inside));
        }
        Ok((joined(&names, b"/")?, exists, inside))
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

/// Joins the names, given last to first, each after `separator`; reserves room for a few bytes more.
fn joined(names: &[Arc<[u8]>], separator: &[u8]) -> Result<Vec<u8>, FsError> {
    const MORE: usize = 16;
    let len = names.iter().map(|n| n.len() + separator.len()).sum::<usize>() + MORE;
    let mut path = Vec::try_with_capacity(len)?;
    for name in names.iter().rev() {
        path.extend_reserved(separator);
        path.extend_reserved(name);
    }
    Ok(path)
}

impl<H: Host> Drop for Dentry<H> {
    /// Drops a long chain of parents in a loop. Otherwise a deep tree that was removed under a working directory would
    /// recurse as deeply.
    fn drop(&mut self) {
        let mut up = self.place.get_mut().parent.take();
        while let Some(mut last) = up.and_then(Arc::into_inner) {
            up = last.place.get_mut().parent.take();
        }
    }
}
