//! The calling thread's view of the tree: its directories, and its ids for permission checks.

use super::host::{Dentry, FileHost, View};
use super::state::FsState;
use crate::process::credentials::Credentials;
use crate::process::credentials::capabilities::{Caps, cap};
use crate::{Ctx, Errno, Machine};
use quire_fs::{FileCredentials, Places, Powers, Resolve, StartDirectory};
use quire_heap::{Arc, OutOfMemory};
use quire_sync::atomic::Ordering;

/// Credentials for the checks of the file layer.
fn with_ids(c: &Credentials, uid: u32, gid: u32, caps: Caps) -> FileCredentials {
    // All but the last have the bits of their capabilities.
    const SAME: [(u32, Powers); 5] = [
        (cap::CHOWN, Powers::CHOWN),
        (cap::DAC_OVERRIDE, Powers::OVERRIDE),
        (cap::DAC_READ_SEARCH, Powers::READ_SEARCH),
        (cap::FOWNER, Powers::OWNER),
        (cap::FSETID, Powers::SET_IDS),
    ];
    const {
        let mut at = 0;
        while at < SAME.len() {
            assert!(1 << SAME[at].0 == SAME[at].1.bits(), "the bit of a power is that of its capability");
            at += 1;
        }
    }
    let mut powers = Powers::from_bits_truncate(caps.0 as u8) - Powers::DEVICES;
    powers.set(Powers::DEVICES, caps.has(cap::MKNOD));
    FileCredentials { uid, gid, groups: c.groups.clone(), powers }
}

impl<M: Machine> Ctx<'_, M> {
    /// The caller's view of the tree.
    pub fn view(&self) -> Result<View<M>, Errno> {
        let fs = self.fs()?;
        Ok(View {
            places: self.places(fs)?,
            credentials: self.file_credentials(),
            umask: fs.umask(),
            resolve: Resolve::empty(),
        })
    }

    /// The caller as the owner of new files, and for permission checks.
    pub fn file_credentials(&self) -> FileCredentials {
        let c = self.credentials();
        with_ids(c, c.file_user, c.file_group, c.capabilities.effective)
    }

    /// Whether files that the caller writes to keep their set-id bits.
    pub fn keeps_set_ids(&self) -> bool {
        self.credentials().may(cap::FSETID)
    }

    /// As [`file_credentials`](Self::file_credentials), by the real ids: for `access`.
    pub fn real_file_credentials(&self) -> FileCredentials {
        let c = self.credentials();
        with_ids(c, c.real_user, c.real_group, c.capabilities.of_real_user(c.real_user))
    }

    fn places(&self, fs: &FsState<M>) -> Result<Arc<Places<FileHost<M>>>, OutOfMemory> {
        // SAFETY: a context is the owner's; the reference ends before the value is replaced.
        let seen = unsafe { self.thread.seen.get() }.as_ref();
        if let Some(seen) = seen.filter(|seen| seen.changes == fs.changes.load(Ordering::Acquire)) {
            return Ok(seen.places.clone());
        }
        let now = fs.seen()?;
        let places = now.places.clone();
        // SAFETY: a context is the owner's, and the view of the old value has ended.
        drop(unsafe { self.thread.seen.replace(Some(now)) });
        Ok(places)
    }

    /// Makes `to` the working directory.
    pub fn set_cwd(&self, to: Arc<Dentry<M>>) -> Result<(), Errno> {
        self.fs()?.set_cwd(StartDirectory::new(to, self.vfs().root()));
        Ok(())
    }

    /// Makes `to` the root directory.
    pub fn set_root(&self, to: Arc<Dentry<M>>) -> Result<(), Errno> {
        self.fs()?.set_root(StartDirectory::new(to, self.vfs().root()));
        Ok(())
    }
}

/// `umask`
pub fn sys_umask<M: Machine>(ctx: &mut Ctx<'_, M>, mask: u32) -> Result<usize, Errno> {
    Ok(usize::from(ctx.fs()?.set_umask(mask as u16)))
}
