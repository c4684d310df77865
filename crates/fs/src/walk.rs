//! From a path to a dentry.

use crate::dentry::Dentry;
use crate::generated::Generated;
use crate::host::Host;
use crate::inode::{Attr, Inode, Node};
use crate::vfs::Vfs;
use crate::{FileKind, FsError};
use core::ops::Deref;
use quire_heap::{Arc, Vec};
use quire_lookup::{Hold, names};

/// Longest name of one component.
pub const NAME_MAX: usize = 255;
/// Longest path, the terminating zero that Linux counts included.
pub const PATH_MAX: usize = 4096;
/// Most symbolic links that one path may lead through.
pub const LINKS_MAX: u32 = 40;

bitflags::bitflags! {
    /// What somebody wants to do with a file: the three permission bits.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub struct Want: u16 {
        /// Read it, or list it.
        const READ = 4;
        /// Write it, or change its entries.
        const WRITE = 2;
        /// Execute it, or look names up in it.
        const EXECUTE = 1;
    }
}

bitflags::bitflags! {
    /// What somebody may do with files whatever their bits and owners say: Linux's capabilities that concern files.
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
    pub struct Powers: u8 {
        /// Change owners and groups.
        const CHOWN = 1;
        /// Read and write, and execute where anybody may.
        const OVERRIDE = 1 << 1;
        /// Read files, list directories and look names up.
        const READ_SEARCH = 1 << 2;
        /// Do what only the owner may.
        const OWNER = 1 << 3;
        /// Keep set-id bits over writes, and give them to files of groups that one is not in.
        const SET_IDS = 1 << 4;
        /// Make devices' nodes.
        const DEVICES = 1 << 5;
    }
}

/// On whose behalf something is done.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Who {
    /// User. None is privileged by its number.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// More groups, ascending, where there are any.
    pub groups: Option<Arc<Vec<u32>>>,
    /// What it may do beside what its ids give it.
    pub powers: Powers,
}

impl Who {
    /// The one that may do everything.
    pub const ROOT: Who = Who { uid: 0, gid: 0, groups: None, powers: Powers::all() };

    /// Whether it is in the group `gid`.
    pub fn is_in(&self, gid: u32) -> bool {
        self.gid == gid || self.groups.as_deref().is_some_and(|groups| groups.binary_search(&gid).is_ok())
    }

    /// Whether it has that power.
    pub fn has(&self, power: Powers) -> bool {
        self.powers.contains(power)
    }

    /// Whether the permission bits let `self` do what it wants.
    pub fn may<H: Host>(&self, inode: &Inode<H>, want: Want) -> Result<(), FsError> {
        let rights = inode.rights();
        let shift = match () {
            () if self.uid == rights.uid => 6,
            // Mostly the group may what others may, and then the list need not be searched.
            () if (rights.mode ^ rights.mode >> 3) & want.bits() != 0 && self.is_in(rights.gid) => 3,
            () => 0,
        };
        if (rights.mode >> shift) & want.bits() == want.bits() || self.may_by_power(inode, rights.mode, want) {
            return Ok(());
        }
        match &inode.node {
            Node::Generated(Generated::Directory(directory)) if directory.admits() => Ok(()),
            _ => Err(FsError::Denied),
        }
    }

    fn may_by_power<H: Host>(&self, inode: &Inode<H>, mode: u16, want: Want) -> bool {
        if inode.is_directory() {
            return self.has(Powers::OVERRIDE) || (self.has(Powers::READ_SEARCH) && !want.contains(Want::WRITE));
        }
        // Execution of a file needs one execute bit.
        (self.has(Powers::OVERRIDE) && (!want.contains(Want::EXECUTE) || mode & 0o111 != 0))
            || (self.has(Powers::READ_SEARCH) && want == Want::READ)
    }

    /// Whether `self` may change a file's attributes.
    pub fn owns(&self, attr: &Attr) -> bool {
        self.uid == attr.uid || self.has(Powers::OWNER)
    }

    /// Whether a file of group `gid` may have the set-group-id bit for all that `self` does with it.
    pub(crate) fn may_set_group_id(&self, gid: u32) -> bool {
        self.is_in(gid) || self.has(Powers::SET_IDS)
    }

    /// Whether `self` may remove or rename `victim` in `directory`, the sticky bit considered.
    pub(crate) fn may_take<H: Host>(&self, directory: &Inode<H>, victim: &Inode<H>) -> Result<(), FsError> {
        let attr = directory.attr();
        if attr.mode & 0o1000 != 0 && self.uid != attr.uid && !self.owns(&victim.attr()) {
            return Err(FsError::NotPermitted);
        }
        Ok(())
    }
}

impl Who {
    /// Whether `self` may give `inode` another name: the owner, and who may read and write it, where nobody's powers are behind it.
    /// (Linux's `fs.protected_hardlinks`, as distributions set it.) A name of a set-id program would keep the program when its
    /// owner removes it to mend it.
    pub(crate) fn may_link<H: Host>(&self, inode: &Inode<H>) -> Result<(), FsError> {
        let attr = inode.attr();
        let plain = inode.kind() == FileKind::Regular && crate::inode::without_set_ids(attr.mode) == attr.mode;
        let may = self.owns(&attr) || (plain && self.may(inode, Want::READ | Want::WRITE).is_ok());
        if may { Ok(()) } else { Err(FsError::NotPermitted) }
    }

    /// Whether `self` follows `link` of `directory` at the end of a path: not where anybody may have put it there. (Linux's
    /// `fs.protected_symlinks`.)
    fn may_follow<H: Host>(&self, directory: &Inode<H>, link: &Inode<H>) -> Result<(), FsError> {
        const ANYBODYS: u16 = 0o1002;
        let (directory, link) = (directory.rights(), link.rights());
        let trusted = directory.mode & ANYBODYS != ANYBODYS || [self.uid, directory.uid].contains(&link.uid);
        if trusted { Ok(()) } else { Err(FsError::Denied) }
    }
}

/// A directory that paths start in.
pub enum Place<H: Host> {
    /// The root of everything, of a tree that stays: nobody counts it.
    Root(&'static Arc<Dentry<H>>),
    /// Any other one.
    Counted(Arc<Dentry<H>>),
}

impl<H: Host> Place<H> {
    /// The directory `dentry`, of a tree that stays and begins at `root`.
    pub fn new(dentry: Arc<Dentry<H>>, root: &'static Arc<Dentry<H>>) -> Self {
        if Arc::ptr_eq(&dentry, root) { Place::Root(root) } else { Place::Counted(dentry) }
    }
}

impl<H: Host> Clone for Place<H> {
    fn clone(&self) -> Self {
        match self {
            Place::Root(root) => Place::Root(root),
            Place::Counted(dentry) => Place::Counted(dentry.clone()),
        }
    }
}

impl<H: Host> Deref for Place<H> {
    type Target = Arc<Dentry<H>>;
    fn deref(&self) -> &Arc<Dentry<H>> {
        match self {
            Place::Root(root) => root,
            Place::Counted(dentry) => dentry,
        }
    }
}

/// Where paths start. On lines of its own: each thread has one, and counts it.
#[repr(align(64))]
pub struct Places<H: Host> {
    /// What `/` means.
    pub root: Place<H>,
    /// Where relative paths start.
    pub cwd: Place<H>,
}

impl<H: Host> Clone for Places<H> {
    fn clone(&self) -> Self {
        Places { root: self.root.clone(), cwd: self.cwd.clone() }
    }
}

/// How a process sees the tree: where its paths start, who it is, what it takes from the modes of what it makes.
pub struct View<H: Host> {
    /// Where its paths start: counted by whoever has the view, not by each path that is looked up.
    pub places: Arc<Places<H>>,
    /// On whose behalf.
    pub who: Who,
    /// Permission bits that new files do not get.
    pub umask: u16,
}

impl<H: Host> View<H> {
    /// What `/` means.
    #[inline]
    pub fn root(&self) -> &Arc<Dentry<H>> {
        &self.places.root
    }

    /// Where relative paths start.
    #[inline]
    pub fn cwd(&self) -> &Arc<Dentry<H>> {
        &self.places.cwd
    }
}

impl<H: Host> Clone for View<H> {
    fn clone(&self) -> Self {
        View { places: self.places.clone(), who: self.who.clone(), umask: self.umask }
    }
}

/// One component's name, kept in place.
#[derive(Clone)]
pub struct Name {
    len: u8,
    bytes: [u8; NAME_MAX],
}

impl Name {
    /// A checked name.
    pub fn new(name: &[u8]) -> Result<Self, FsError> {
        if name.len() > NAME_MAX {
            return Err(FsError::NameTooLong);
        }
        let mut bytes = [0; NAME_MAX];
        bytes[..name.len()].copy_from_slice(name);
        Ok(Name { len: name.len() as u8, bytes })
    }
    /// Its bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }
    pub(crate) fn shared(&self) -> Result<Arc<[u8]>, FsError> {
        Ok(Arc::try_copy(self.bytes())?)
    }
}

/// What the last component was.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Last {
    /// A name.
    Name,
    /// `.`
    Dot,
    /// `..`
    DotDot,
    /// There was none: the path is made of slashes.
    Root,
    /// A link that leads straight to a thing, which may have no name.
    Jump,
}

/// What to do about a symbolic link at the end of a path.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Final {
    /// It is followed: the path stands for what the link leads to.
    Follow,
    /// It is not followed, unless a slash stands behind it: the path stands for the link.
    Stay,
    /// It is never followed: the path stands for a name that is to be made, moved or removed.
    Name,
}

/// Where a path leads.
pub struct Found<H: Host> {
    /// The directory of the last component.
    pub parent: Arc<Dentry<H>>,
    /// What the last component was.
    pub last: Last,
    /// The last component, where it was a name.
    pub name: Name,
    /// What it leads to, if that exists.
    pub target: Option<Arc<Dentry<H>>>,
    /// The path ends in a slash: a directory is meant.
    pub slash: bool,
}

/// The directory that a walk has come to.
enum Here<'w, H: Host> {
    /// The one that it began in, which somebody else counts.
    Start(&'w Arc<Dentry<H>>),
    Below(Arc<Dentry<H>>),
}

impl<H: Host> Here<'_, H> {
    fn counted(self) -> Arc<Dentry<H>> {
        match self {
            Here::Start(start) => start.clone(),
            Here::Below(here) => here,
        }
    }
}

impl<H: Host> Deref for Here<'_, H> {
    type Target = Arc<Dentry<H>>;
    fn deref(&self) -> &Arc<Dentry<H>> {
        match self {
            Here::Start(start) => start,
            Here::Below(here) => here,
        }
    }
}

/// As [`Found`], where the last component's directory need not be kept.
struct Reached<'w, H: Host> {
    here: Here<'w, H>,
    last: Last,
    target: Option<Arc<Dentry<H>>>,
    slash: bool,
}

/// The rest of a path: borrowed until a link is followed.
enum Rest<'p> {
    Path(&'p [u8]),
    Link(Vec<u8>, usize),
}

impl Rest<'_> {
    fn bytes(&self) -> &[u8] {
        match self {
            Rest::Path(p) => p,
            Rest::Link(p, at) => &p[*at..],
        }
    }
    fn advance(&mut self, n: usize) {
        match self {
            Rest::Path(p) => *p = &p[n..],
            Rest::Link(_, at) => *at += n,
        }
    }
}

fn slashes(path: &[u8]) -> usize {
    path.iter().take_while(|&&b| b == b'/').count()
}

impl<H: Host> Vfs<H> {
    /// The entry `name` of the directory `here`, if it exists.
    pub(crate) fn child(&self, here: &Arc<Dentry<H>>, name: &[u8]) -> Result<Option<Arc<Dentry<H>>>, FsError> {
        match &here.inode.node {
            Node::Directory(d) => Ok(d.get(name, &self.host().epoch().pin()).map(names::Found::counted)),
            Node::Generated(Generated::Directory(d)) => {
                let entry = d.lookup(name)?;
                entry.map(|entry| Dentry::for_generated(self.host(), here, name, entry)).transpose()
            }
            _ => Err(FsError::NotDirectory),
        }
    }

    /// Walks `path` from `base` (or from the root) to its last component, which may be missing. Links on the way are always
    /// followed, one at the end as `end` says. With a slash behind it the last component must be a directory, unless only
    /// its name matters.
    pub fn walk(&self, view: &View<H>, base: &Arc<Dentry<H>>, path: &[u8], end: Final) -> Result<Found<H>, FsError> {
        let mut name = Name::new(b"")?;
        let reached = self.reach(view, base, path, end, Some(&mut name))?;
        let Reached { here, last, target, slash } = reached;
        Ok(Found { parent: here.counted(), last, name, target, slash })
    }

    /// What a path leads to, if it exists; links as with [`walk`](Self::walk). Counts nothing else, where only directories lie on
    /// the way.
    pub(crate) fn target(
        &self,
        view: &View<H>,
        base: &Arc<Dentry<H>>,
        path: &[u8],
        end: Final,
    ) -> Result<Option<Hold<Dentry<H>>>, FsError> {
        if path.is_empty() {
            return Err(FsError::NotFound);
        }
        if path.len() < PATH_MAX
            && let Some(found) = self.straight(view, base, path)
        {
            return Ok(found);
        }
        Ok(self.reach(view, base, path, end, None)?.target.map(Hold::from))
    }

    /// What a path leads to, if it exists, where that can be told without stopping on the way: by names of directories that
    /// are kept, and no link at the end. `None` where it has to be walked.
    fn straight(&self, view: &View<H>, base: &Arc<Dentry<H>>, path: &[u8]) -> Option<Option<Hold<Dentry<H>>>> {
        // What was counted in vain goes after the pin: it may be the last of it.
        let mut _in_vain = None;
        let pin = self.host().epoch().pin();
        let mut below: Option<names::Kept<'_, Dentry<H>>> = None;
        let mut rest = path;
        loop {
            let here: &Arc<Dentry<H>> = match &below {
                Some(found) => found,
                None if path[0] == b'/' => view.root(),
                None => base,
            };
            rest = &rest[slashes(rest)..];
            let len = rest.iter().position(|&b| b == b'/').unwrap_or(rest.len());
            let name = &rest[..len];
            let Node::Directory(directory) = &here.inode.node else { return None };
            if matches!(name, b"" | b"." | b"..") || len > NAME_MAX || view.who.may(&here.inode, Want::EXECUTE).is_err()
            {
                return None;
            }
            let found = directory.get(name, &pin);
            if len == rest.len() {
                let found = found.map(names::Found::held);
                if found.as_ref().is_some_and(|found| found.inode.kind() == FileKind::Symlink) {
                    _in_vain = found;
                    return None;
                }
                return Some(found);
            }
            match found {
                Some(names::Found::Kept(directory)) => below = Some(directory),
                Some(names::Found::Counted(other)) => {
                    _in_vain = Some(other);
                    return None;
                }
                None => return None,
            }
            rest = &rest[len..];
        }
    }

    /// As [`walk`](Self::walk), without counting the directory that the walk begins in; the last component's name goes into `last_name`.
    fn reach<'w>(
        &self,
        view: &'w View<H>,
        base: &'w Arc<Dentry<H>>,
        path: &[u8],
        end: Final,
        last_name: Option<&mut Name>,
    ) -> Result<Reached<'w, H>, FsError> {
        if path.is_empty() {
            return Err(FsError::NotFound);
        }
        if path.len() >= PATH_MAX {
            return Err(FsError::NameTooLong);
        }
        let mut here = Here::Start(if path[0] == b'/' { view.root() } else { base });
        let mut rest = Rest::Path(path);
        let mut links = 0;
        loop {
            let skip = slashes(rest.bytes());
            rest.advance(skip);
            let bytes = rest.bytes();
            let len = bytes.iter().position(|&b| b == b'/').unwrap_or(bytes.len());
            let name = &bytes[..len];
            if name.is_empty() {
                return Ok(Reached { target: Some(Arc::clone(&here)), here, last: Last::Root, slash: true });
            }
            let behind = slashes(&bytes[len..]);
            let (is_final, slash) = (len + behind == bytes.len(), behind > 0);
            if !here.inode.is_directory() {
                return Err(FsError::NotDirectory);
            }
            view.who.may(&here.inode, Want::EXECUTE)?;
            if len > NAME_MAX {
                return Err(FsError::NameTooLong);
            }
            let (mut last, mut child) = match name {
                b"." => (Last::Dot, Some(Arc::clone(&here))),
                b".." if Arc::ptr_eq(&here, view.root()) => (Last::DotDot, Some(Arc::clone(&here))),
                b".." => (Last::DotDot, Some(here.parent().unwrap_or_else(|| Arc::clone(&here)))),
                _ => (Last::Name, self.child(&here, name)?),
            };
            if let Some(link) = &child
                && link.inode.kind() == FileKind::Symlink
                && (!is_final || end == Final::Follow || (slash && end == Final::Stay))
            {
                links += 1;
                if links > LINKS_MAX {
                    return Err(FsError::Loop);
                }
                if is_final {
                    view.who.may_follow(&here.inode, &link.inode)?;
                }
                match self.follow(link)? {
                    Step::Path(mut target) => {
                        target.try_extend_from_slice(&bytes[len..])?;
                        if target[0] == b'/' {
                            here = Here::Start(view.root());
                        }
                        rest = Rest::Link(target, 0);
                        continue;
                    }
                    Step::Jump(to) => {
                        child = Some(to);
                        last = Last::Jump;
                    }
                }
            }
            if is_final {
                if let Some(last_name) = last_name {
                    *last_name = Name::new(name)?;
                }
                if slash && end != Final::Name && child.as_ref().is_some_and(|c| !c.inode.is_directory()) {
                    return Err(FsError::NotDirectory);
                }
                return Ok(Reached { here, last, target: child, slash });
            }
            here = Here::Below(child.ok_or(FsError::NotFound)?);
            rest.advance(len);
        }
    }

    /// Walks a path to something that must exist.
    pub fn find(
        &self,
        view: &View<H>,
        base: &Arc<Dentry<H>>,
        path: &[u8],
        follow: bool,
    ) -> Result<Hold<Dentry<H>>, FsError> {
        let end = if follow { Final::Follow } else { Final::Stay };
        self.target(view, base, path, end)?.ok_or(FsError::NotFound)
    }

    fn follow(&self, link: &Arc<Dentry<H>>) -> Result<Step<H>, FsError> {
        if let Node::Generated(Generated::Link(l)) = &link.inode.node
            && let Some(to) = l.jump()
        {
            return Ok(Step::Jump(to?));
        }
        let target = self.link_target(link)?;
        if target.is_empty() {
            return Err(FsError::NotFound);
        }
        if target.len() >= PATH_MAX {
            return Err(FsError::NameTooLong);
        }
        Ok(Step::Path(target))
    }

    /// What a symbolic link says.
    pub fn link_target(&self, link: &Dentry<H>) -> Result<Vec<u8>, FsError> {
        match &link.inode.node {
            Node::Symlink(target) => Ok(Vec::try_copy(target)?),
            Node::Generated(Generated::Link(l)) => l.target(),
            _ => Err(FsError::Invalid),
        }
    }
}

enum Step<H: Host> {
    Path(Vec<u8>),
    Jump(Arc<Dentry<H>>),
}
