//! Extended attributes: names with values that an inode keeps for programs.
//!
//! The list of an inode is copied on change. So a reader copies a value to a program with no lock held. Each attribute
//! is charged to the inodes of its file system, as many as would take its memory.

use super::inode::Inode;
use super::system::FileSystem;
use crate::FsError;
use crate::host::Host;
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

pub(super) const fn none() -> OwnXattrs {
    SpinLock::new(Rank::ATTRIBUTES, None)
}

impl<H: Host> Inode<H> {
    /// Its attributes, in the order of their making.
    pub fn xattrs(&self) -> Option<Xattrs> {
        self.xattrs.lock().clone()
    }

    /// The attribute `name`.
    pub fn xattr(&self, name: &[u8]) -> Option<Arc<Xattr>> {
        self.xattrs()?.iter().find(|one| *one.name == *name).cloned()
    }

    /// Sets attribute `name`. [`FsError::NoSpace`] if the file system has no room for it.
    pub fn set_xattr(&self, name: &[u8], value: Vec<u8>, before: Before) -> Result<(), FsError> {
        let name = Vec::try_copy(name)?;
        let system = self.system();
        let units = (EACH + name.len() + value.len()).div_ceil(INODE_BYTES) as u64;
        if !system.take_units(units) {
            return Err(FsError::NoSpace);
        }
        let new = Xattr { name, value, system, units };
        let new = Arc::try_new(new)?;
        self.renew_xattrs(&new.name, Some(&new), before)
    }

    /// Removes attribute `name`. [`FsError::NoData`] if there is none.
    pub fn remove_xattr(&self, name: &[u8]) -> Result<(), FsError> {
        self.renew_xattrs(name, None, Before::Present)
    }

    /// Replaces the list by one with `new` in the place of `name`, or without it.
    fn renew_xattrs(&self, name: &[u8], new: Option<&Arc<Xattr>>, before: Before) -> Result<(), FsError> {
        loop {
            let old = self.xattrs();
            let there = old.as_ref().map_or(&[][..], |all| &all[..]);
            let is_there = there.iter().any(|one| *one.name == *name);
            match (before, is_there) {
                (Before::Absent, true) => return Err(FsError::Exists),
                (Before::Present, false) => return Err(FsError::NoData),
                _ => {}
            }
            let mut all = Vec::try_with_capacity(there.len() + 1)?;
            for one in there {
                match (*one.name == *name, new) {
                    (false, _) => all.push_reserved(one.clone()),
                    (true, Some(new)) => all.push_reserved(new.clone()),
                    (true, None) => {}
                }
            }
            if !is_there {
                new.into_iter().for_each(|new| all.push_reserved(new.clone()));
            }
            let all = if all.is_empty() { None } else { Some(Arc::try_new(all)?) };
            let mut list = self.xattrs.lock();
            let same = match (&*list, &old) {
                (Some(now), Some(old)) => Arc::ptr_eq(now, old),
                (now, old) => now.is_none() && old.is_none(),
            };
            if same {
                let gone = core::mem::replace(&mut *list, all);
                drop(list);
                drop(gone);
                return Ok(());
            }
            drop(list);
        }
    }
}
