//! Changing modes, owners and times.

use crate::host::Host;
use crate::tree::attr::Timestamp;
use crate::tree::attr::{EXECUTE, without_set_ids};
use crate::tree::inode::Inode;
use crate::vfs::Vfs;
use crate::vfs::credentials::{FileCredentials, Powers, Want};
use crate::{FsError, Seals};

impl<H: Host> Vfs<H> {
    /// Changes the permission bits.
    pub fn set_mode(&self, caller: &FileCredentials, inode: &Inode<H>, mode: u16) -> Result<(), FsError> {
        inode.system().changeable()?;
        inode.change_or(self.host().realtime(), |a| {
            if !caller.owns(a) {
                return Err(FsError::NotPermitted);
            }
            if (a.mode ^ mode) & EXECUTE != 0 && inode.seals().is_some_and(|seals| seals.contains(Seals::EXEC)) {
                return Err(FsError::NotPermitted);
            }
            a.mode = mode & 0o7777;
            if !caller.may_set_group_id(a.gid) {
                a.mode &= !0o2000;
            }
            Ok(())
        })
    }

    /// Changes owner and group, if given. Files lose their set-id bits, even if a privileged caller changes them.
    pub fn set_owner(
        &self,
        caller: &FileCredentials,
        inode: &Inode<H>,
        uid: Option<u32>,
        gid: Option<u32>,
    ) -> Result<(), FsError> {
        inode.system().changeable()?;
        let is_directory = inode.is_directory();
        inode.change_or(self.host().realtime(), |a| {
            let own = caller.uid == a.uid;
            let may = caller.has(Powers::CHOWN)
                || (uid.is_none_or(|u| own && u == a.uid)
                    && gid.is_none_or(|g| own && (g == a.gid || caller.is_in(g))));
            let mut mode = a.mode;
            if !is_directory {
                mode = without_set_ids(mode);
                if !caller.may_set_group_id(a.gid) {
                    mode &= !0o2000;
                }
            }
            // Clearing these bits is a change of the mode, for which the caller must own the file.
            if !may || (mode != a.mode && !caller.owns(a)) {
                return Err(FsError::NotPermitted);
            }
            a.uid = uid.unwrap_or(a.uid);
            a.gid = gid.unwrap_or(a.gid);
            a.mode = mode;
            Ok(())
        })
    }

    /// Changes the times of last access and modification, if given. Only the owner may set `explicit` times. For the
    /// current time, the permission to write also suffices.
    pub fn set_times(
        &self,
        caller: &FileCredentials,
        inode: &Inode<H>,
        accessed: Option<Timestamp>,
        modified: Option<Timestamp>,
        explicit: bool,
    ) -> Result<(), FsError> {
        inode.system().changeable()?;
        let owner = caller.owns(&inode.fixed_attr());
        if !owner {
            if explicit {
                return Err(FsError::NotPermitted);
            }
            caller.may(inode, Want::WRITE)?;
        }
        inode.set_times(self.host().realtime(), accessed, modified);
        Ok(())
    }
}
