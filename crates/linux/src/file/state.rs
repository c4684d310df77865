//! Working directory, root directory and umask of a process.

use super::{Dentry, View};
use crate::{Ctx, Errno, Machine};
use alloc::sync::Arc;
use quire_fs::Who;
use quire_sync::{Rank, SpinLock};

struct Inner<M: Machine> {
    root: Arc<Dentry<M>>,
    cwd: Arc<Dentry<M>>,
    umask: u16,
}

/// See the module. Shared by the threads that CLONE_FS says.
pub struct FsState<M: Machine> {
    inner: SpinLock<Inner<M>>,
}

impl<M: Machine> FsState<M> {
    /// Everything at `root`, with Linux's first umask.
    pub fn new(root: Arc<Dentry<M>>, cwd: Arc<Dentry<M>>) -> Arc<Self> {
        Arc::new(FsState { inner: SpinLock::new(Rank::FILE, Inner { root, cwd, umask: 0o022 }) })
    }

    /// A copy for a forked child.
    pub fn fork(&self) -> Result<Arc<Self>, Errno> {
        let (root, cwd, umask) = self.get();
        Ok(Arc::new(FsState { inner: SpinLock::new(Rank::FILE, Inner { root, cwd, umask }) }))
    }

    /// Root, working directory and umask.
    pub fn get(&self) -> (Arc<Dentry<M>>, Arc<Dentry<M>>, u16) {
        let inner = self.inner.lock();
        (inner.root.clone(), inner.cwd.clone(), inner.umask)
    }

    /// Changes the working directory.
    pub fn set_cwd(&self, to: Arc<Dentry<M>>) {
        let old = core::mem::replace(&mut self.inner.lock().cwd, to);
        drop(old);
    }

    /// Changes the root directory.
    pub fn set_root(&self, to: Arc<Dentry<M>>) {
        let old = core::mem::replace(&mut self.inner.lock().root, to);
        drop(old);
    }

    /// Changes the umask, and returns the old one.
    pub fn set_umask(&self, mask: u16) -> u16 {
        core::mem::replace(&mut self.inner.lock().umask, mask & 0o777)
    }
}

impl<M: Machine> Ctx<'_, M> {
    /// How the caller sees the tree.
    pub fn view(&self) -> Result<View<M>, Errno> {
        let (root, cwd, umask) = self.fs()?.get();
        let c = self.credentials();
        Ok(View { root, cwd, who: Who { uid: c.file_user, gid: c.file_group }, umask })
    }
}

/// `umask`
pub fn sys_umask<M: Machine>(ctx: &mut Ctx<'_, M>, mask: u32) -> Result<usize, Errno> {
    Ok(usize::from(ctx.fs()?.set_umask(mask as u16)))
}
