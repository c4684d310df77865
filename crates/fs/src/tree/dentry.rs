//! Dentries: each is a name in a directory, with its parent. [`bind`] shows dentries at a second place.

pub(crate) mod bind;

use super::inode::Inode;
use super::inode::generated::Entry;
use super::system::Restrictions;
use super::watch::Happening;
use crate::FsError;
use crate::host::Host;
use bind::{Bind, Through};
use quire_heap::{Arc, Box, Vec};
use quire_sync::atomic::{AtomicU32, Ordering};
use quire_sync::{Rank, SpinLock};

/// A name of an inode. It exists while it is in use, even after the name is removed.
///
/// Guards: `place` has its own lock. It changes only under the locks of the name's old and new directories.
///
/// The alignment puts the reference count on the cache line before this struct. Openers and closers of the file write
/// that count; readers of the file do not access it.
#[repr(align(64))]
pub struct Dentry<H: Host> {
    /// The name's inode.
    pub inode: Arc<Inode<H>>,
    place: SpinLock<DentryPlace<H>>,
    /// Whether this is the root of a mount, which cannot be renamed or removed.
    pub(crate) mounted: bool,
    /// The number of bind mounts that show a mount at this dentry. Changed under the lock of this dentry's directory.
    covers: AtomicU32,
    /// For a view through a bind mount: that mount, and the dentry that the view shows (the *seen* dentry).
    through: Option<Box<Through<H>>>,
}

struct DentryPlace<H: Host> {
    /// The directory that the dentry is in, or was in last; `None` for the root of the tree and for nameless files.
    parent: Option<Arc<Dentry<H>>>,
    name: Arc<[u8]>,
    /// Whether the parent lists this name.
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
        Ok(Arc::try_new(Dentry { inode, place, mounted, covers: AtomicU32::new(0), through: None })?)
    }

    /// The root of a tree.
    pub(crate) fn root(inode: Arc<Inode<H>>) -> Result<Arc<Self>, FsError> {
        Self::with(None, Arc::try_copy(b"")?, inode, true, true)
    }

    /// A dentry called `name` in the directory `parent`, which lists the dentry or is about to.
    pub(crate) fn child(
        parent: &Arc<Dentry<H>>,
        name: Arc<[u8]>,
        inode: Arc<Inode<H>>,
        mounted: bool,
    ) -> Result<Arc<Self>, FsError> {
        Self::with(Some(parent.clone()), name, inode, true, mounted)
    }

    /// A dentry for a file that no directory lists, such as a pipe or a memory file. Listings of open files show
    /// `label`.
    pub fn nameless(label: &[u8], inode: Arc<Inode<H>>) -> Result<Arc<Self>, FsError> {
        Self::with(None, Arc::try_copy(label)?, inode, false, false)
    }

    /// A dentry for a file that was made in `parent` without a name there. Listings of open files show `label`, marked
    /// as a removed name.
    pub(crate) fn unlisted(parent: &Arc<Dentry<H>>, label: &[u8], inode: Arc<Inode<H>>) -> Result<Arc<Self>, FsError> {
        Self::with(Some(parent.clone()), Arc::try_copy(label)?, inode, false, false)
    }

    /// A dentry for `entry`, called `name`, in the generated directory `parent`. The dentry is not cached: the next
    /// lookup makes another dentry.
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

    /// Whether the inode is a directory.
    pub(crate) fn is_directory(&self) -> bool {
        self.inode.is_directory()
    }

    /// The view of `dentry` through `bind`.
    pub(crate) fn view(bind: &Arc<Bind<H>>, dentry: Arc<Dentry<H>>) -> Result<Arc<Self>, FsError> {
        let name = dentry.place.lock().name.clone();
        let place = SpinLock::new(Rank::PLACE, DentryPlace { parent: None, name, listed: true });
        let (inode, mounted) = (dentry.inode.clone(), Arc::ptr_eq(&dentry, &bind.source));
        let through = Some(Box::try_new(Through { bind: bind.clone(), dentry })?);
        Ok(Arc::try_new(Dentry { inode, place, mounted, covers: AtomicU32::new(0), through })?)
    }

    /// Returns `dentry` as it is seen from its directory `from`. If `from` is a view through a bind mount, the result
    /// is one too.
    pub(crate) fn seen_from(from: &Dentry<H>, dentry: Arc<Dentry<H>>) -> Result<Arc<Self>, FsError> {
        match &from.through {
            Some(through) => Dentry::view(&through.bind, dentry),
            None => Ok(dentry),
        }
    }

    /// Whether this dentry is a view through a bind mount.
    pub fn is_view(&self) -> bool {
        self.through.is_some()
    }

    /// The bind mount and the dentry that it shows, if this dentry is a view through a bind mount.
    pub(crate) fn through(&self) -> Option<&Through<H>> {
        self.through.as_deref()
    }

    /// The dentry that this view through a bind mount shows, or this dentry itself if it is no view.
    pub(crate) fn seen(this: &Arc<Self>) -> &Arc<Dentry<H>> {
        this.through.as_ref().map_or(this, |through| &through.dentry)
    }

    /// Whether both dentries are the same place.
    pub fn same(this: &Arc<Self>, other: &Arc<Dentry<H>>) -> bool {
        Arc::ptr_eq(this, other) || Arc::ptr_eq(Self::seen(this), Self::seen(other)) && Self::same_mount(this, other)
    }

    /// Whether both dentries are seen through the same bind mount, or both through none.
    fn same_bind(&self, other: &Dentry<H>) -> bool {
        match (&self.through, &other.through) {
            (Some(one), Some(other)) => Arc::ptr_eq(&one.bind, &other.bind),
            (None, None) => true,
            _ => false,
        }
    }

    /// The number of the mount that the dentry is in; that mount may have ended. 0 for files that are in no mount.
    pub(crate) fn mount(&self) -> u64 {
        self.through.as_ref().map_or_else(|| self.inode.system().mount(), |through| through.bind.id)
    }

    /// Whether both are in the same mount.
    pub fn same_mount(&self, other: &Dentry<H>) -> bool {
        core::ptr::eq(self.inode.system(), other.inode.system()) && self.same_bind(other)
    }

    /// Whether the dentry's mount or file system refuses these uses.
    pub fn refuses(&self, uses: Restrictions) -> bool {
        let system = self.inode.system();
        uses == Restrictions::READ_ONLY && system.is_read_only() || self.restrictions().contains(uses)
    }

    /// The uses that the dentry's mount refuses.
    pub fn restrictions(&self) -> Restrictions {
        match &self.through {
            Some(through) => through.bind.restrictions(),
            None => self.inode.system().restrictions(),
        }
    }

    /// Fails with [`FsError::ReadOnly`] if the file cannot be changed through this dentry.
    pub fn changeable(&self) -> Result<(), FsError> {
        if self.refuses(Restrictions::READ_ONLY) { Err(FsError::ReadOnly) } else { Ok(()) }
    }

    /// Whether a bind mount shows a mount at this dentry.
    pub(crate) fn covered(&self) -> bool {
        self.covers.load(Ordering::Relaxed) != 0
    }

    /// Whether something is mounted on this dentry, or it is the root of a mount. Such a dentry cannot be moved or
    /// removed.
    pub(crate) fn is_fixed(&self) -> bool {
        self.mounted || self.covered()
    }

    /// Counts a mount at this dentry that a bind mount shows, or uncounts it at its end. The caller holds the
    /// directory's lock.
    pub(crate) fn count_cover(&self, begins: bool) {
        match begins {
            true => self.covers.fetch_add(1, Ordering::Relaxed),
            false => self.covers.fetch_sub(1, Ordering::Relaxed),
        };
    }

    /// Whether `directory` lists this dentry now, under any name. The caller holds the directory's lock.
    pub(crate) fn is_in(&self, directory: &Arc<Dentry<H>>) -> bool {
        let place = self.place.lock();
        place.listed && place.parent.as_ref().is_some_and(|parent| Arc::ptr_eq(parent, directory))
    }

    /// The directory that the dentry is in. Fails with [`FsError::NotFound`] for a view of a directory that has left
    /// the bind mount's source.
    pub fn parent(this: &Arc<Self>) -> Result<Option<Arc<Dentry<H>>>, FsError> {
        let Some(Through { bind, dentry }) = this.through() else { return Ok(this.directory()) };
        let up = Spot::of(this).up().map(|(up, _, _)| up);
        let is_top = Arc::ptr_eq(dentry, &bind.source);
        // Another thread may move the seen dentry out of the source at any moment. So check that the found directory is
        // still in the source.
        if !is_top && !up.as_ref().is_some_and(|up| Dentry::is_below(&up.dentry, &bind.source)) {
            return Err(FsError::NotFound);
        }
        match up {
            Some(Spot { bind: Some(bind), dentry }) => Dentry::view(&bind, dentry).map(Some),
            other => Ok(other.map(|up| up.dentry)),
        }
    }

    /// The root of the mount that the dentry is in, for a dentry that is no view through a bind mount. `None` if it is
    /// in no mount.
    pub(crate) fn top(this: &Arc<Self>) -> Option<Arc<Dentry<H>>> {
        let mut at = this.clone();
        while !at.mounted {
            at = at.directory()?;
        }
        Some(at)
    }

    /// The directory of a dentry that is no view through a bind mount.
    pub(crate) fn directory(&self) -> Option<Arc<Dentry<H>>> {
        self.place.lock().parent.clone()
    }

    /// The number of the inode of the dentry's directory. If it is in no directory, the number of its own inode.
    pub(crate) fn parent_number(this: &Arc<Self>) -> u64 {
        let directory = match &this.through {
            None => this.directory(),
            Some(_) => Spot::of(this).up().map(|(up, _, _)| up.dentry),
        };
        directory.map_or(this.inode.ident.number, |up| up.inode.ident.number)
    }

    /// The dentry's name. The view at the top of a bind mount has the name of the mount's place.
    pub fn name(&self) -> Arc<[u8]> {
        let Some(through) = &self.through else { return self.place.lock().name.clone() };
        match through.bind.place().filter(|_| Arc::ptr_eq(&through.dentry, &through.bind.source)) {
            Some((_, name)) => name,
            None => through.dentry.place.lock().name.clone(),
        }
    }

    /// Whether a directory lists this dentry.
    pub fn listed(&self) -> bool {
        let seen = self.through.as_ref().map_or(self, |through| &through.dentry);
        seen.place.lock().listed
    }

    /// Marks the name as removed. The caller holds the directory's lock.
    pub(crate) fn unlist(&self) {
        self.place.lock().listed = false;
    }

    /// Moves the name. The caller holds the locks of both directories, and drops the returned old parent after it has
    /// released these locks.
    pub(crate) fn place_at(&self, parent: &Arc<Dentry<H>>, name: Arc<[u8]>) -> Option<Arc<Dentry<H>>> {
        let parent = Some(parent.clone());
        let mut place = self.place.lock();
        place.name = name;
        core::mem::replace(&mut place.parent, parent)
    }

    /// Moves the root of a mount to the name `name` in `parent`. The caller holds `Vfs::moving`. Returns the old
    /// directory, so that the caller drops this reference with no spin lock held.
    pub(crate) fn move_to(&self, parent: &Arc<Dentry<H>>, name: Arc<[u8]>) -> Option<Arc<Dentry<H>>> {
        match &self.through {
            Some(through) => {
                let earlier = through.bind.place();
                through.bind.set_place(Some((parent.clone(), name)));
                earlier.map(|(directory, _)| directory)
            }
            None => self.place_at(parent, name),
        }
    }

    /// Whether this dentry is `other`, or is below it.
    pub fn is_below(this: &Arc<Self>, other: &Arc<Dentry<H>>) -> bool {
        if Self::same(this, other) {
            return true;
        }
        let other = Spot::of(other);
        let mut at = Some(Spot::of(this));
        while let Some(spot) = at {
            if spot.is(&other) {
                return true;
            }
            at = spot.up().map(|(up, _, _)| up);
        }
        false
    }

    /// The path from `root`, or from the root of the tree if the dentry is not below `root`. Also returns whether that
    /// name still exists. The path of a nameless file is its label.
    pub fn path(this: &Arc<Self>, root: &Arc<Dentry<H>>) -> Result<(Vec<u8>, bool), FsError> {
        Self::path_within(this, root).map(|(path, exists, _)| (path, exists))
    }

    /// The path and its existence as [`path`](Self::path) returns them, and whether the dentry is `root` or below
    /// `root`.
    pub fn path_within(this: &Arc<Self>, root: &Arc<Dentry<H>>) -> Result<(Vec<u8>, bool, bool), FsError> {
        // All processes share the root, so this case avoids counting a reference to it.
        if Self::same(this, root) {
            return Ok((Vec::try_copy(b"/")?, true, true));
        }
        let mut inside = true;
        let mut names: Vec<Arc<[u8]>> = Vec::new();
        let mut exists = true;
        let (mut at, root) = (Spot::of(this), Spot::of(root));
        while !at.is(&root) {
            let Some((up, name, listed)) = at.up() else {
                let listed = at.dentry.listed();
                exists &= listed;
                if names.is_empty() && !listed {
                    names.try_push(at.dentry.name())?;
                    return joined(&names, b"").map(|path| (path, true, false));
                }
                inside = false;
                break;
            };
            exists &= listed;
            names.try_push(name)?;
            at = up;
        }
        if names.is_empty() {
            return Ok((Vec::try_copy(b"/")?, exists, inside));
        }
        Ok((joined(&names, b"/")?, exists, inside))
    }
}

impl<H: Host> Dentry<H> {
    /// Notifies the watchers of the inode, and of its directory, that `what` happened to the inode by this name.
    #[inline]
    pub fn happened(&self, what: Happening) {
        if self.inode.system().is_watched() {
            self.notify_both(what);
        }
    }

    #[cold]
    fn notify_both(&self, what: Happening) {
        let what = what | self.inode.kind_bit();
        let seen = self.through.as_ref().map_or(self, |through| &through.dentry);
        let (parent, name, listed) = seen.place();
        if let Some(parent) = parent {
            parent.inode.notify(what, 0, &name, listed);
        }
        self.inode.notify(what, 0, b"", listed);
    }

    /// Notifies the watchers of this directory that `what` happened to its entry `name`, which leads to `inode`.
    pub(crate) fn entry_happened(&self, what: Happening, cookie: u32, name: &[u8], inode: &Inode<H>) {
        if self.inode.system().is_watched() {
            self.inode.notify(what | inode.kind_bit(), cookie, name, true);
        }
    }

    /// Notifies the watchers of this directory that its entry `name` was removed. `directory` is whether that was a
    /// directory.
    pub(crate) fn name_removed(&self, name: &[u8], directory: bool) {
        if self.inode.system().is_watched() {
            let kind = if directory { Happening::DIRECTORY } else { Happening::empty() };
            self.inode.notify(Happening::DELETE | kind, 0, name, true);
        }
    }

    /// Notifies the watchers of the inode that `what` happened to it, by whatever name.
    pub(crate) fn inode_happened(&self, what: Happening) {
        if self.inode.system().is_watched() {
            self.inode.notify(what | self.inode.kind_bit(), 0, b"", true);
        }
    }
}

/// The parent and the name of a dentry, and whether the parent lists it.
type PlaceOf<H> = (Option<Arc<Dentry<H>>>, Arc<[u8]>, bool);

impl<H: Host> Dentry<H> {
    /// The place of a dentry that is no view through a bind mount.
    fn place(&self) -> PlaceOf<H> {
        let place = self.place.lock();
        (place.parent.clone(), place.name.clone(), place.listed)
    }
}

/// A place in the tree: a dentry, and perhaps the bind mount through which it is seen. Unlike a view, a spot needs no
/// allocation.
struct Spot<H: Host> {
    bind: Option<Arc<Bind<H>>>,
    /// The dentry, which is no view.
    dentry: Arc<Dentry<H>>,
}

impl<H: Host> Spot<H> {
    fn of(dentry: &Arc<Dentry<H>>) -> Self {
        match dentry.through() {
            Some(through) => Spot { bind: Some(through.bind.clone()), dentry: through.dentry.clone() },
            None => Spot { bind: None, dentry: dentry.clone() },
        }
    }

    fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.dentry, &other.dentry)
            && match (&self.bind, &other.bind) {
                (Some(one), Some(other)) => Arc::ptr_eq(one, other),
                (None, None) => true,
                _ => false,
            }
    }

    /// The place above, the name of this place there, and whether the directory above lists it.
    fn up(&self) -> Option<(Self, Arc<[u8]>, bool)> {
        if let Some(bind) = &self.bind {
            if Arc::ptr_eq(&self.dentry, &bind.source) {
                return bind.place().map(|(parent, name)| (Spot::of(&parent), name, true));
            }
            // The dentry has left the source, and the way up ends at the root of the file system.
            if self.dentry.mounted {
                return None;
            }
        }
        let (parent, name, listed) = self.dentry.place();
        let parent = parent?;
        Some(match &self.bind {
            Some(bind) => (Spot { bind: Some(bind.clone()), dentry: parent }, name, listed),
            None => (Spot::of(&parent), name, listed),
        })
    }
}

/// Joins the names, which are given last to first, each after `separator`. Reserves room for a few more bytes.
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
    /// Drops a long chain of parents in a loop. Otherwise the drop of a dentry deep in a removed tree would recurse
    /// once for each ancestor.
    fn drop(&mut self) {
        let mut up = self.place.get_mut().parent.take();
        while let Some(mut last) = up.and_then(Arc::into_inner) {
            up = last.place.get_mut().parent.take();
        }
    }
}
