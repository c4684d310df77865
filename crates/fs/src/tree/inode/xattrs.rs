//! The extended attributes of an inode.

use super::Inode;
use crate::FsError;
use crate::host::Host;
use crate::tree::xattr::{Before, Xattr, Xattrs};
use quire_heap::{Arc, Vec};

impl<H: Host> Inode<H> {
    /// The inode's extended attributes, in the order of their creation.
    pub fn xattrs(&self) -> Option<Xattrs> {
        self.xattrs.lock().clone()
    }

    /// The attribute `name`.
    pub fn xattr(&self, name: &[u8]) -> Option<Arc<Xattr>> {
        self.xattrs()?.iter().find(|one| *one.name == *name).cloned()
    }

    /// Sets the attribute `name`. Fails with [`FsError::NoSpace`] if the file system has no room for it.
    pub fn set_xattr(&self, name: &[u8], value: Vec<u8>, before: Before) -> Result<(), FsError> {
        let new = Xattr::new(self.system(), name, value)?;
        self.renew_xattrs(&new.name, Some(&new), before)
    }

    /// Removes the attribute `name`. Fails with [`FsError::NoData`] if there is none.
    pub fn remove_xattr(&self, name: &[u8]) -> Result<(), FsError> {
        self.renew_xattrs(name, None, Before::Present)
    }

    /// Replaces the list by a copy in which `new` replaces the attribute `name`, or which lacks that attribute.
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
