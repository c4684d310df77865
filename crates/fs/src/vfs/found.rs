//! The result of a path walk.

use crate::FsError;
use crate::host::Host;
use crate::tree::dentry::Dentry;
use quire_heap::Arc;

/// The longest name of one component, in bytes.
pub const NAME_MAX: usize = 255;

/// One component's name, stored inline.
#[derive(Clone)]
pub struct Name {
    len: u8,
    bytes: [u8; NAME_MAX],
}

impl Name {
    /// Makes a name, and checks its length.
    pub fn new(name: &[u8]) -> Result<Self, FsError> {
        if name.len() > NAME_MAX {
            return Err(FsError::NameTooLong);
        }
        let mut bytes = [0; NAME_MAX];
        bytes[..name.len()].copy_from_slice(name);
        Ok(Name { len: name.len() as u8, bytes })
    }
    /// The bytes of the name.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }
    pub(crate) fn shared(&self) -> Result<Arc<[u8]>, FsError> {
        Ok(Arc::try_copy(self.bytes())?)
    }
}

/// The kind of the last component.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Last {
    /// A name.
    Name,
    /// `.`
    Dot,
    /// `..`
    DotDot,
    /// There was no component: the path consists of slashes.
    Root,
    /// A link that leads directly to a dentry, which may have no name.
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

/// The result of a path walk.
pub struct FoundPath<H: Host> {
    /// The directory of the last component.
    pub parent: Arc<Dentry<H>>,
    /// The kind of the last component.
    pub last: Last,
    /// The last component, if it was a name.
    pub name: Name,
    /// The dentry of the last component, if it exists.
    pub target: Option<Arc<Dentry<H>>>,
    /// Whether the path ends in a slash, so that the last component must be a directory.
    pub slash: bool,
}
