//! The caller of a file operation, and the check of its permissions by a file's bits and owners.

use crate::FsError;
use crate::host::Host;
use crate::tree::attr::{Attr, FileKind, without_set_ids};
use crate::tree::dentry::Dentry;
use crate::tree::inode::generated::Generated;
use crate::tree::inode::{Inode, InodeContent};
use quire_heap::{Arc, Vec};

bitflags::bitflags! {
    /// The requested access to a file: the three permission bits.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub struct Want: u16 {
        /// Read the file, or list the directory.
        const READ = 4;
        /// Write the file, or change the directory's entries.
        const WRITE = 2;
        /// Execute the file, or look names up in the directory.
        const EXECUTE = 1;
    }
}

bitflags::bitflags! {
    /// A caller's powers over files regardless of bits and owners: Linux's capabilities that concern files.
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
    pub struct Powers: u8 {
        /// Change owners and groups.
        const CHOWN = 1;
        /// Read and write, and execute if any execute bit is set.
        const OVERRIDE = 1 << 1;
        /// Read files, list directories and look names up.
        const READ_SEARCH = 1 << 2;
        /// Do operations that only the owner may.
        const OWNER = 1 << 3;
        /// Keep set-id bits over writes, and give them to files of groups that the caller is not in.
        const SET_IDS = 1 << 4;
        /// Make devices' nodes.
        const DEVICES = 1 << 5;
    }
}

/// The caller of an operation.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct FileCredentials {
    /// User id. No id has privileges by its number.
    pub uid: u32,
    /// Group id.
    pub gid: u32,
    /// Further groups in ascending order, if there are any.
    pub groups: Option<Arc<Vec<u32>>>,
    /// The caller's powers, in addition to the rights of its ids.
    pub powers: Powers,
}

impl FileCredentials {
    /// A caller that may do everything.
    pub const ROOT: FileCredentials = FileCredentials { uid: 0, gid: 0, groups: None, powers: Powers::all() };

    /// Whether the caller is in the group `gid`.
    pub fn is_in(&self, gid: u32) -> bool {
        self.gid == gid || self.groups.as_deref().is_some_and(|groups| groups.binary_search(&gid).is_ok())
    }

    /// Whether the caller has the power `power`.
    pub fn has(&self, power: Powers) -> bool {
        self.powers.contains(power)
    }

    /// Checks that the permission bits, or a power of `self`, allow the access `want`.
    pub fn may<H: Host>(&self, inode: &Inode<H>, want: Want) -> Result<(), FsError> {
        if want.contains(Want::WRITE) && inode.system().is_read_only() && inode.kind().takes_changes() {
            return Err(FsError::ReadOnly);
        }
        let rights = inode.rights();
        let shift = match () {
            () if self.uid == rights.uid => 6,
            // Mostly the group and others have the same bits. Then the list of groups need not be searched.
            () if (rights.mode ^ rights.mode >> 3) & want.bits() != 0 && self.is_in(rights.gid) => 3,
            () => 0,
        };
        if (rights.mode >> shift) & want.bits() == want.bits() || self.may_by_power(inode, rights.mode, want) {
            return Ok(());
        }
        match &inode.node {
            InodeContent::Generated(Generated::Directory(directory)) if directory.admits() => Ok(()),
            _ => Err(FsError::Denied),
        }
    }

    /// As [`may`](Self::may), and checks the mount through which the file was reached.
    pub fn may_at<H: Host>(&self, dentry: &Dentry<H>, want: Want) -> Result<(), FsError> {
        if want.contains(Want::WRITE) && dentry.inode.kind().takes_changes() {
            dentry.changeable()?;
        }
        self.may(&dentry.inode, want)
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

    /// Whether a file of group `gid` may keep the set-group-id bit when `self` changes it.
    pub(crate) fn may_set_group_id(&self, gid: u32) -> bool {
        self.is_in(gid) || self.has(Powers::SET_IDS)
    }

    /// Checks that the sticky bit lets `self` remove or rename `victim` in `directory`.
    pub(crate) fn may_take<H: Host>(&self, directory: &Inode<H>, victim: &Inode<H>) -> Result<(), FsError> {
        let attr = directory.fixed_attr();
        if attr.mode & 0o1000 != 0 && self.uid != attr.uid && !self.owns(&victim.fixed_attr()) {
            return Err(FsError::NotPermitted);
        }
        Ok(())
    }
}

impl FileCredentials {
    /// Checks that `self` may give `inode` another name. The inode's owner may. A caller that may read and write a
    /// regular file without set-id bits also may. (Linux's `fs.protected_hardlinks`, as distributions set it.)
    /// Otherwise any user could make a new name of a set-id program, and so keep a faulty version after its owner has
    /// removed it.
    pub(crate) fn may_link<H: Host>(&self, inode: &Inode<H>) -> Result<(), FsError> {
        let attr = inode.fixed_attr();
        let plain = inode.kind() == FileKind::Regular && without_set_ids(attr.mode) == attr.mode;
        let may = self.owns(&attr) || (plain && self.may(inode, Want::READ | Want::WRITE).is_ok());
        if may { Ok(()) } else { Err(FsError::NotPermitted) }
    }

    /// Checks that `self` may follow `link` of `directory` at the end of a path. `self` may not if any user could have
    /// made the link in that directory. (Linux's `fs.protected_symlinks`.)
    pub(crate) fn may_follow<H: Host>(&self, directory: &Inode<H>, link: &Inode<H>) -> Result<(), FsError> {
        const SHARED_STICKY: u16 = 0o1002;
        let (directory, link) = (directory.rights(), link.rights());
        let trusted = directory.mode & SHARED_STICKY != SHARED_STICKY || [self.uid, directory.uid].contains(&link.uid);
        if trusted { Ok(()) } else { Err(FsError::Denied) }
    }
}
