//! A process's view of the tree: the start of its paths, and the caller for permission checks.

use super::credentials::FileCredentials;
use crate::host::Host;
use crate::tree::dentry::Dentry;
use core::ops::Deref;
use quire_heap::Arc;

/// A directory in which paths start.
pub enum StartDirectory<H: Host> {
    /// The root of a tree that is never freed, so it needs no reference count.
    Root(&'static Arc<Dentry<H>>),
    /// Any other directory.
    Counted(Arc<Dentry<H>>),
}

impl<H: Host> StartDirectory<H> {
    /// The directory `dentry`, of a permanent tree that begins at `root`.
    pub fn new(dentry: Arc<Dentry<H>>, root: &'static Arc<Dentry<H>>) -> Self {
        if Arc::ptr_eq(&dentry, root) { StartDirectory::Root(root) } else { StartDirectory::Counted(dentry) }
    }
}

impl<H: Host> Clone for StartDirectory<H> {
    fn clone(&self) -> Self {
        match self {
            StartDirectory::Root(root) => StartDirectory::Root(root),
            StartDirectory::Counted(dentry) => StartDirectory::Counted(dentry.clone()),
        }
    }
}

impl<H: Host> Deref for StartDirectory<H> {
    type Target = Arc<Dentry<H>>;
    fn deref(&self) -> &Arc<Dentry<H>> {
        match self {
            StartDirectory::Root(root) => root,
            StartDirectory::Counted(dentry) => dentry,
        }
    }
}

/// The directories in which paths start. Aligned, because each thread refers to one, and changes its reference count.
#[repr(align(64))]
pub struct Places<H: Host> {
    /// The directory that `/` means.
    pub root: StartDirectory<H>,
    /// The directory in which relative paths start.
    pub cwd: StartDirectory<H>,
}

impl<H: Host> Clone for Places<H> {
    fn clone(&self) -> Self {
        Places { root: self.root.clone(), cwd: self.cwd.clone() }
    }
}

bitflags::bitflags! {
    /// Limits on the walk of a path.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub struct Resolve: u8 {
        /// No step leads to another file system: [`FsError::CrossDevice`](crate::FsError::CrossDevice).
        const NO_CROSSING = 1;
        /// No link that leads directly to a file is followed: [`FsError::Loop`](crate::FsError::Loop).
        const NO_JUMPS = 1 << 1;
        /// No link is followed at all.
        const NO_LINKS = 1 << 2;
        /// No step leads out of the directory in which the walk begins, not even an absolute path:
        /// [`FsError::CrossDevice`](crate::FsError::CrossDevice).
        const BENEATH = 1 << 3;
        /// The caller has made the directory the view's root, and no link may lead directly to a file.
        const IN_ROOT = 1 << 4;
    }
}

/// A process's view of the tree: the start of its paths, its credentials, its umask.
pub struct View<H: Host> {
    /// The directories in which the process's paths start. Each view holds a reference to them, so path walks need
    /// none.
    pub places: Arc<Places<H>>,
    /// The caller.
    pub credentials: FileCredentials,
    /// Permission bits that new files do not get.
    pub umask: u16,
    /// The limits on its walks.
    pub resolve: Resolve,
}

impl<H: Host> View<H> {
    /// The directory that `/` means.
    #[inline]
    pub fn root(&self) -> &Arc<Dentry<H>> {
        &self.places.root
    }

    /// The directory in which relative paths start.
    #[inline]
    pub fn cwd(&self) -> &Arc<Dentry<H>> {
        &self.places.cwd
    }
}

impl<H: Host> Clone for View<H> {
    fn clone(&self) -> Self {
        View {
            places: self.places.clone(),
            credentials: self.credentials.clone(),
            umask: self.umask,
            resolve: self.resolve,
        }
    }
}
