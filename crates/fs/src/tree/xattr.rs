//! Extended attributes: names with values that an inode keeps for programs.
//!
//! The list of an inode is copied on change. So a reader copies a value to a program with no lock held. Each attribute
//! is charged to the inodes of its file system, as many as would take its memory.

use super::system::FileSystem;
use crate::FsError;
use quire_heap::{Arc, Vec};
use quire_sync::{Rank, SpinLock};

/// The memory that counts as one inode.
const INODE_BYTES: usize = 1024;
/// Memory of an attribute beside its name and its value.
const EACH: usize = 128;

/// Longest name.
pub const NAME_MAX: usize = 255;
/// Largest value.
pub const SIZE_MAX: usize = 65536;

/// An attribute.
pub struct Xattr {
    /// Its name, with the prefix.
    pub name: Vec<u8>,
    /// Its value.
    pub value: Vec<u8>,
    system: &'static FileSystem,
    units: u64,
}

impl Xattr {
    /// An attribute, charged to `system`. [`FsError::NoSpace`] if that has no room for it.
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

/// What may exist when an attribute is set.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Before {
    /// There may be one, which is replaced.
    Either,
    /// There is none: else [`FsError::Exists`].
    Absent,
    /// There is one: else [`FsError::NoData`].
    Present,
}

/// All attributes of an inode.
pub type Xattrs = Arc<Vec<Arc<Xattr>>>;

/// An inode's list; `None` while it is empty.
pub(super) type OwnXattrs = SpinLock<Option<Xattrs>>;

pub(super) fn none() -> OwnXattrs {
    SpinLock::new(Rank::ATTRIBUTES, None)
}
