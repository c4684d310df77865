//! Extended attributes: names with values that an inode keeps for programs.
//!
//! The list of an inode is copied when it changes, so a reader copies a value to a program with no lock held. The
//! memory of each attribute is charged to its file system, in units of inodes.

use super::system::FileSystem;
use crate::FsError;
use quire_heap::{Arc, Vec};
use quire_sync::{Rank, SpinLock};

/// The memory that counts as one inode.
const INODE_BYTES: usize = 1024;
/// The memory of an attribute in bytes, without its name and value.
const EACH: usize = 128;

/// The longest name, in bytes.
pub const NAME_MAX: usize = 255;
/// The largest value, in bytes.
pub const SIZE_MAX: usize = 65536;

/// An attribute.
pub struct Xattr {
    /// The attribute's name, with the prefix.
    pub name: Vec<u8>,
    /// The attribute's value.
    pub value: Vec<u8>,
    system: &'static FileSystem,
    units: u64,
}

impl Xattr {
    /// An attribute, charged to `system`. Fails with [`FsError::NoSpace`] if `system` has no room for it.
    pub(super) fn new(system: &'static FileSystem, name: &[u8], value: Vec<u8>) -> Result<Arc<Self>, FsError> {
        let name = Vec::try_copy(name)?;
        let units = (EACH + name.len() + value.len()).div_ceil(INODE_BYTES) as u64;
        if !system.take_units(units) {
            return Err(FsError::NoSpace);
        }
        let new = Xattr { name, value, system, units };
        Ok(Arc::try_new(new)?)
    }
}

impl Drop for Xattr {
    fn drop(&mut self) {
        self.system.put_units(self.units);
    }
}

/// The condition under which an attribute is set.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Before {
    /// The attribute may exist, and is then replaced.
    Either,
    /// The attribute must not exist; otherwise [`FsError::Exists`].
    Absent,
    /// The attribute must exist; otherwise [`FsError::NoData`].
    Present,
}

/// All attributes of an inode.
pub type Xattrs = Arc<Vec<Arc<Xattr>>>;

/// The list of an inode's attributes; `None` while it is empty.
pub(super) type OwnXattrs = SpinLock<Option<Xattrs>>;

pub(super) fn none() -> OwnXattrs {
    SpinLock::new(Rank::ATTRIBUTES, None)
}
