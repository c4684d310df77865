//! Files opened for execution.

use crate::errno::Errno;
use crate::file::host::{Dentry, FileHost};
use crate::machine::Machine;
use crate::process::credentials::capabilities::SetIds;
use quire_fs::{Program, Restrictions, StartDirectory};
use quire_heap::Vec;
use quire_vm::object::ObjectRef;

/// A file that will be executed. The right to execute it was checked.
pub struct Executable<M: Machine> {
    /// The dentry of the file. No process can open the file for writing while a process executes it.
    pub dentry: Program<FileHost<M>>,
    pub root: StartDirectory<FileHost<M>>,
    /// Whether the executing user may also read the file. If not, other processes may not read the program's memory.
    pub readable: bool,
}

impl<M: Machine> Executable<M> {
    /// The memory object of the file's bytes. It is borrowed, because a new reference would write the reference count,
    /// whose cache line all processes of this program share.
    pub fn object(&self) -> Result<&ObjectRef<M>, Errno> {
        self.dentry.inode.file().map(|f| &f.object.0).ok_or(Errno::EACCES)
    }

    /// The ids from the file's set-user-id and set-group-id bits. The bits and the owner are read at one moment.
    pub fn set_ids(&self) -> SetIds {
        const GROUP: u16 = 0o2010;
        if self.dentry.refuses(Restrictions::NO_SET_IDS) {
            return SetIds::default();
        }
        let attr = self.dentry.inode.fixed_attr();
        SetIds {
            user: (attr.mode & 0o4000 != 0).then_some(attr.uid),
            group: (attr.mode & GROUP == GROUP).then_some(attr.gid),
        }
    }

    /// The file's absolute path, relative to the root of the process that opened it.
    pub fn path(&self) -> Result<Vec<u8>, Errno> {
        Ok(Dentry::path(&self.dentry, &self.root)?.0)
    }
}
