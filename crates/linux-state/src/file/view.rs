//! A system call's view of files: the descriptors and directories of its process, and its ids for permission checks.

use crate::file::host::{Dentry, File, FileHost, View};
use crate::file::state::FsState;
use crate::process::credentials::Credentials;
use crate::process::credentials::capabilities::{Caps, cap};
use crate::{Ctx, Errno, Machine};
use quire_fs::{FileCredentials, OpenFlags, Places, Powers, Resolve, StartDirectory, Vfs};
use quire_heap::{Arc, OutOfMemory};
use quire_sync::atomic::Ordering;

/// The credentials for the file layer's checks, with the user `uid`, the group `gid` and the capabilities `caps`.
fn with_ids(c: &Credentials, uid: u32, gid: u32, caps: Caps) -> FileCredentials {
    // Each of these powers has the bit of its capability. The bit of `DEVICES` differs from the bit of `CAP_MKNOD`, so
    // it is not in this list.
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
    /// The caller's view of the file tree.
    pub fn view(&self) -> Result<View<M>, Errno> {
        let fs = self.fs()?;
        Ok(View {
            places: self.places(fs)?,
            credentials: self.file_credentials(),
            umask: fs.umask(),
            resolve: Resolve::empty(),
        })
    }

    /// The caller's ids and capabilities for files: for permission checks, and as the owner of new files.
    pub fn file_credentials(&self) -> FileCredentials {
        let c = self.credentials();
        with_ids(c, c.file_user, c.file_group, c.capabilities.effective)
    }

    /// Whether a file keeps its set-id bits when the caller writes to it.
    pub fn keeps_set_ids(&self) -> bool {
        self.credentials().may(cap::FSETID)
    }

    /// The caller's real ids and their capabilities, for `access`. [`file_credentials`](Self::file_credentials) has the
    /// file-system ids.
    pub fn real_file_credentials(&self) -> FileCredentials {
        let c = self.credentials();
        with_ids(c, c.real_user, c.real_group, c.capabilities.of_real_user(c.real_user))
    }

    fn places(&self, fs: &FsState<M>) -> Result<Arc<Places<FileHost<M>>>, OutOfMemory> {
        // SAFETY: the thread of a context runs this. The reference ends before the value is replaced.
        let seen = unsafe { self.thread.seen.get() }.as_ref();
        if let Some(seen) = seen.filter(|seen| seen.changes == fs.changes.load(Ordering::Acquire)) {
            return Ok(seen.places.clone());
        }
        let now = fs.seen()?;
        let places = now.places.clone();
        // SAFETY: the thread of a context runs this, and the view of the old value has ended.
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

    /// The file tree and its state.
    pub fn vfs(&self) -> &'static Arc<Vfs<FileHost<M>>> {
        self.linux.files.vfs()
    }

    /// The open file of descriptor `fd`. EBADF if it is not open, or is an O_PATH file.
    #[inline]
    pub fn file(&self, fd: i32) -> Result<Arc<File<M>>, Errno> {
        let file = self.any_file(fd)?;
        if file.flags().contains(OpenFlags::PATH) { Err(Errno::EBADF) } else { Ok(file) }
    }

    /// The open file of descriptor `fd`, which may be an O_PATH file. EBADF if it is not open.
    #[inline]
    pub fn any_file(&self, fd: i32) -> Result<Arc<File<M>>, Errno> {
        // SAFETY: a context belongs to the calling thread.
        unsafe { self.files()?.get(u32::try_from(fd).map_err(|_| Errno::EBADF)?) }
    }

    /// Adds an open file at the lowest free descriptor. Returns the descriptor.
    pub fn install(&self, file: Arc<File<M>>, close_on_exec: bool) -> Result<usize, Errno> {
        Ok(self.files()?.insert(file, close_on_exec, 0, descriptor_limit(self.thread))? as usize)
    }
}

/// The limit on descriptors of the thread's process. Descriptors are below it.
pub fn descriptor_limit<M: Machine>(thread: &crate::Thread<M>) -> u64 {
    thread.process.soft_limit(crate::process::limits::which::NOFILE).min(1 << 20)
}
