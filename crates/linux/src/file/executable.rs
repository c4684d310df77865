//! Files that are executed.

use super::host::{Dentry, FileHost};
use crate::errno::Errno;
use crate::machine::Machine;
use crate::process::credentials::capabilities::SetIds;
use quire_fs::{Place, Program};
use quire_heap::Vec;
use quire_vm::object::ObjectRef;

/// A file to be executed; the right to do so is checked.
pub struct Executable<M: Machine> {
    /// Where it is. Nobody opens it for writing as long as somebody executes it.
    pub dentry: Program<FileHost<M>>,
    pub(super) root: Place<FileHost<M>>,
    /// Whether who executes it may read it, too. Else nobody may look at the program's memory.
    pub readable: bool,
}

impl<M: Machine> Executable<M> {
    /// Its bytes: borrowed, since who counts an object writes a line of all who run the program.
    pub fn object(&self) -> Result<&ObjectRef<M>, Errno> {
        self.dentry.inode.file().map(|f| &f.object.0).ok_or(Errno::EACCES)
    }

    /// The ids that its bits ask for; of one moment.
    pub fn set_ids(&self) -> SetIds {
        const GROUP: u16 = 0o2010;
        let attr = self.dentry.inode.attr();
        SetIds {
            user: (attr.mode & 0o4000 != 0).then_some(attr.uid),
            group: (attr.mode & GROUP == GROUP).then_some(attr.gid),
        }
    }

    /// Its absolute path, from the root of who opened it.
    pub fn path(&self) -> Result<Vec<u8>, Errno> {
        Ok(Dentry::path(&self.dentry, &self.root)?.0)
    }
}
