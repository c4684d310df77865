//! Files opened for execution.

use crate::errno::Errno;
use crate::file::host::{Dentry, FileHost};
use crate::machine::Machine;
use crate::process::credentials::capabilities::SetIds;
use quire_fs::{Program, Restrictions, StartDirectory};
use quire_heap::Vec;
use quire_vm::object::ObjectRef;

/// A file to be executed; the right to execute it is checked.
pub struct Executable<M: Machine> {
    /// Its dentry. No process can open it for writing while a process executes it.
    pub dentry: Program<FileHost<M>>,
    pub root: StartDirectory<FileHost<M>>,
    /// Whether the executing user may also read it. Otherwise other processes may not read the program's memory.
    pub readable: bool,
}

impl<M: Machine> Executable<M> {
    /// Its bytes: borrowed, since counting a reference would write a cache line shared by all processes that run the
    /// program.
    pub fn object(&self) -> Result<&ObjectRef<M>, Errno> {
        self.dentry.inode.file().map(|f| &f.object.0).ok_or(Errno::EACCES)
    }

    /// The ids that its set-id bits give, read at one moment.
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

    /// Its absolute path, from the opening process's root.
    pub fn path(&self) -> Result<Vec<u8>, Errno> {
        Ok(Dentry::path(&self.dentry, &self.root)?.0)
    }
}
