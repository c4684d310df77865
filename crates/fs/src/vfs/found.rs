//! Where a path leads.

use crate::FsError;
use crate::host::Host;
use crate::tree::dentry::Dentry;
use quire_heap::Arc;

/// Longest name of one component.
pub const NAME_MAX: usize = 255;

/// One component's name, stored inline.
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
    /// A link that leads straight to a dentry, which may have no name.
    Jump,
}

/// The treatment of a symbolic link at the end of a path.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Final {
    /// The link is followed: the path means the link's target.
    Follow,
    /// The link is not followed, unless a slash follows it: the path means the link.
    Stay,
    /// The link is never followed: the path means a name to be made, moved or removed.
    Name,
}

/// Where a path leads.
pub struct FoundPath<H: Host> {
    /// The directory of the last component.
    pub parent: Arc<Dentry<H>>,
    /// What the last component was.
    pub last: Last,
    /// The last component, if it was a name.
    pub name: Name,
    /// Its dentry, if that exists.
    pub target: Option<Arc<Dentry<H>>>,
    /// The path ends in a slash: it must be a directory.
    pub slash: bool,
}
