//! The walk from a path to a dentry.

use super::Vfs;
use super::credentials::Want;
use super::found::{Final, FoundPath, Last, NAME_MAX, Name};
use super::view::{Resolve, View};
use crate::FsError;
use crate::host::Host;
use crate::tree::attr::FileKind;
use crate::tree::dentry::Dentry;
use crate::tree::inode::InodeContent;
use crate::tree::inode::generated::Generated;
use core::ops::Deref;
use quire_heap::{Arc, Vec};
use quire_lookup::{Hold, names};

/// The longest path in bytes, including the terminating zero, which Linux counts too.
pub const PATH_MAX: usize = 4096;
/// The most symbolic links in the walk of one path.
pub const LINKS_MAX: u32 = 40;

/// The directory that a walk has reached.
enum Here<'w, H: Host> {
    /// The directory in which the walk began. The caller holds a reference to it.
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

/// The result of a walk, like [`FoundPath`], without a reference of its own to the last component's directory.
struct Reached<'w, H: Host> {
    here: Here<'w, H>,
    last: Last,
    target: Option<Arc<Dentry<H>>>,
    slash: bool,
}

/// The rest of a path, which is borrowed until a link is followed.
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

/// Refuses a path that is empty or too long. Also refuses an absolute path if `view` confines the walk to its start.
fn may_begin<H: Host>(view: &View<H>, path: &[u8]) -> Result<(), FsError> {
    if path.is_empty() {
        return Err(FsError::NotFound);
    }
    if path.len() >= PATH_MAX {
        return Err(FsError::NameTooLong);
    }
    if path[0] == b'/' && view.resolve.contains(Resolve::BENEATH) {
        return Err(FsError::CrossDevice);
    }
    Ok(())
}

impl<H: Host> Vfs<H> {
    /// Walks `path` from `base` (or from the root) to its last component, which may be missing. Links on the way are
    /// always followed. `end` determines whether a link at the end is followed. With a trailing slash the last
    /// component must be a directory, unless only its name matters.
    pub fn walk(
        &self,
        view: &View<H>,
        base: &Arc<Dentry<H>>,
        path: &[u8],
        end: Final,
    ) -> Result<FoundPath<H>, FsError> {
        let mut name = Name::new(b"")?;
        let reached = self.reach(view, base, path, end, Some(&mut name))?;
        let Reached { here, last, target, slash } = reached;
        Ok(FoundPath { parent: here.counted(), last, name, target, slash })
    }

    /// The dentry at a path, if it exists. Links are treated as by [`walk`](Self::walk). If all components before the
    /// last one are directories, the walk takes a reference only to the result.
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
            && view.resolve.is_empty()
            && let Some(found) = self.straight(view, base, path)
        {
            return Ok(found);
        }
        Ok(self.reach(view, base, path, end, None)?.target.map(Hold::from))
    }

    /// The fast way of [`target`](Self::target), for paths of only names in stored directories without a link at the
    /// end. `None` means that the path needs a full walk. `Some(None)` means that there is no such file.
    fn straight(&self, view: &View<H>, base: &Arc<Dentry<H>>, path: &[u8]) -> Option<Option<Hold<Dentry<H>>>> {
        // A reference that is not returned is dropped after the pin is released, because it may be the last reference.
        let mut _in_vain = None;
        let pin = self.host().epoch().pin();
        let mut below: Option<names::PinnedValue<'_, Dentry<H>>> = None;
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
            let InodeContent::Directory(directory) = &here.inode.node else { return None };
            if here.through().is_some() {
                return None;
            }
            if matches!(name, b"" | b"." | b"..")
                || len > NAME_MAX
                || view.credentials.may(&here.inode, Want::EXECUTE).is_err()
            {
                return None;
            }
            let found = directory.get(name, &pin);
            if len == rest.len() {
                let found = found.map(names::FoundName::held);
                if found.as_ref().is_some_and(|found| found.inode.kind() == FileKind::Symlink) {
                    _in_vain = found;
                    return None;
                }
                return Some(found);
            }
            match found {
                Some(names::FoundName::Kept(directory)) => below = Some(directory),
                Some(names::FoundName::Counted(other)) => {
                    _in_vain = Some(other);
                    return None;
                }
                None => return None,
            }
            rest = &rest[len..];
        }
    }

    /// Walks as [`walk`](Self::walk) does, without a reference to the starting directory. Stores the last component's
    /// name in `last_name`.
    fn reach<'w>(
        &self,
        view: &'w View<H>,
        base: &'w Arc<Dentry<H>>,
        path: &[u8],
        end: Final,
        last_name: Option<&mut Name>,
    ) -> Result<Reached<'w, H>, FsError> {
        may_begin(view, path)?;
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
            view.credentials.may(&here.inode, Want::EXECUTE)?;
            if len > NAME_MAX {
                return Err(FsError::NameTooLong);
            }
            let (mut last, mut child) = match name {
                b"." => (Last::Dot, Some(Arc::clone(&here))),
                b".." if view.resolve.contains(Resolve::BENEATH) && Dentry::same(&here, base) => {
                    return Err(FsError::CrossDevice);
                }
                b".." if Dentry::same(&here, view.root()) => (Last::DotDot, Some(Arc::clone(&here))),
                b".." => (Last::DotDot, Some(Dentry::parent(&here)?.unwrap_or_else(|| Arc::clone(&here)))),
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
                    view.credentials.may_follow(&here.inode, &link.inode)?;
                }
                if view.resolve.contains(Resolve::NO_LINKS) {
                    return Err(FsError::Loop);
                }
                match self.follow(link)? {
                    Step::Path(mut target) => {
                        target.try_extend_from_slice(&bytes[len..])?;
                        if target[0] == b'/' {
                            let crosses = !here.same_mount(view.root());
                            if view.resolve.contains(Resolve::BENEATH)
                                || crosses && view.resolve.contains(Resolve::NO_CROSSING)
                            {
                                return Err(FsError::CrossDevice);
                            }
                            here = Here::Start(view.root());
                        }
                        rest = Rest::Link(target, 0);
                        continue;
                    }
                    Step::Jump(_) if view.resolve.contains(Resolve::NO_JUMPS) => return Err(FsError::Loop),
                    Step::Jump(_) if view.resolve.intersects(Resolve::BENEATH | Resolve::IN_ROOT) => {
                        return Err(FsError::CrossDevice);
                    }
                    Step::Jump(to) => {
                        child = Some(to);
                        last = Last::Jump;
                    }
                }
            }
            if !view.resolve.is_empty()
                && let Some(child) = &child
            {
                confined(view, base, &here, child, last)?;
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

    /// Walks a path to a dentry that must exist.
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
        if let InodeContent::Generated(Generated::Link(l)) = &link.inode.node
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

    /// The target of a symbolic link.
    pub fn link_target(&self, link: &Dentry<H>) -> Result<Vec<u8>, FsError> {
        match &link.inode.node {
            InodeContent::Symlink(target) => Ok(Vec::try_copy(target)?),
            InodeContent::Generated(Generated::Link(l)) => l.target(),
            _ => Err(FsError::Invalid),
        }
    }
}

/// Checks the step from `here` to `child`, in a walk that began at `base` and that `view.resolve` limits.
///
/// A directory may be moved while a walk is in it, and its new parent may be outside the limits. So each step to a
/// parent checks the parent's own ancestors. A step to a name leads no further out.
fn confined<H: Host>(
    view: &View<H>,
    base: &Arc<Dentry<H>>,
    here: &Dentry<H>,
    child: &Arc<Dentry<H>>,
    last: Last,
) -> Result<(), FsError> {
    if view.resolve.contains(Resolve::NO_CROSSING) && !here.same_mount(child) {
        return Err(FsError::CrossDevice);
    }
    if last != Last::DotDot || !view.resolve.intersects(Resolve::BENEATH | Resolve::IN_ROOT) {
        return Ok(());
    }
    let top = if view.resolve.contains(Resolve::IN_ROOT) { view.root() } else { base };
    if Dentry::is_below(child, top) { Ok(()) } else { Err(FsError::WouldBlock) }
}

enum Step<H: Host> {
    Path(Vec<u8>),
    Jump(Arc<Dentry<H>>),
}
