//! Working directory, root directory and umask of a process.

use super::{Dentry, FileHost, View};
use crate::process::capabilities::{Caps, cap};
use crate::process::credentials::Credentials;
use crate::{Ctx, Errno, Machine};
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use quire_fs::{Place, Places, Powers, Who};
use quire_heap::{Arc, OutOfMemory, Room};
use quire_sync::{CachePadded, Rank, SpinLock};

/// See the module. Shared by the threads that CLONE_FS says.
///
/// Each thread keeps places of its own ([`Seen`]), made anew when the directories have changed: a path that is looked up
/// counts neither, nor takes the lock.
pub struct FsState<M: Machine> {
    look: CachePadded<Look>,
    places: SpinLock<Places<FileHost<M>>>,
}

/// What is read by each path that is looked up.
struct Look {
    /// How often a directory was changed; changed under the lock of `places`.
    changes: AtomicU64,
    umask: AtomicU32,
}

/// What a thread knows of its [`FsState`].
pub struct Seen<M: Machine> {
    /// As of which change.
    changes: u64,
    places: Arc<Places<FileHost<M>>>,
}

impl<M: Machine> FsState<M> {
    fn with(places: Places<FileHost<M>>, umask: u32) -> Result<Arc<Self>, OutOfMemory> {
        let look = Look { changes: AtomicU64::new(0), umask: AtomicU32::new(umask) };
        Arc::try_new(FsState { look: CachePadded(look), places: SpinLock::new(Rank::FILE, places) })
    }

    /// In directory `cwd` of the tree that begins at `root`, with Linux's first umask.
    pub fn new(root: &'static Arc<Dentry<M>>, cwd: Arc<Dentry<M>>) -> Result<Arc<Self>, OutOfMemory> {
        Self::with(Places { root: Place::Root(root), cwd: Place::new(cwd, root) }, 0o022)
    }

    /// A copy for a forked child.
    pub fn fork(&self) -> Result<Arc<Self>, Errno> {
        Ok(Self::with(self.places(), self.umask().into())?)
    }

    /// Root and working directory.
    pub fn places(&self) -> Places<FileHost<M>> {
        self.places.lock().clone()
    }

    /// The umask.
    pub fn umask(&self) -> u16 {
        self.look.umask.load(Ordering::Relaxed) as u16
    }

    fn change(&self, change: impl FnOnce(&mut Places<FileHost<M>>) -> Place<FileHost<M>>) {
        let mut places = self.places.lock();
        let old = change(&mut places);
        // Only the lock's holder writes.
        self.look.changes.store(self.look.changes.load(Ordering::Relaxed) + 1, Ordering::Release);
        drop(places);
        drop(old);
    }

    /// Changes the working directory.
    pub fn set_cwd(&self, to: Place<FileHost<M>>) {
        self.change(|places| core::mem::replace(&mut places.cwd, to));
    }

    /// Changes the root directory.
    pub fn set_root(&self, to: Place<FileHost<M>>) {
        self.change(|places| core::mem::replace(&mut places.root, to));
    }

    /// Changes the umask, and returns the old one.
    pub fn set_umask(&self, mask: u16) -> u16 {
        let new = u32::from(mask & 0o777);
        // One that stays is not written: most programs set it to what it is.
        if self.look.umask.load(Ordering::Relaxed) == new {
            return new as u16;
        }
        self.look.umask.swap(new, Ordering::Relaxed) as u16
    }

    /// What there is now, and as of which change.
    fn seen(&self) -> Result<Seen<M>, OutOfMemory> {
        let room = Room::try_new()?;
        let places = self.places.lock();
        let (changes, now) = (self.look.changes.load(Ordering::Relaxed), places.clone());
        drop(places);
        Ok(Seen { changes, places: room.fill(now) })
    }
}

/// Credentials as files see them.
fn who(c: &Credentials, uid: u32, gid: u32, caps: Caps) -> Who {
    const POWERS: [(u32, Powers); 6] = [
        (cap::CHOWN, Powers::CHOWN),
        (cap::DAC_OVERRIDE, Powers::OVERRIDE),
        (cap::DAC_READ_SEARCH, Powers::READ_SEARCH),
        (cap::FOWNER, Powers::OWNER),
        (cap::FSETID, Powers::SET_IDS),
        (cap::MKNOD, Powers::DEVICES),
    ];
    let mut powers = Powers::empty();
    POWERS.iter().for_each(|(number, power)| powers.set(*power, caps.has(*number)));
    Who { uid, gid, groups: c.groups.clone(), powers }
}

impl<M: Machine> Ctx<'_, M> {
    /// How the caller sees the tree.
    pub fn view(&self) -> Result<View<M>, Errno> {
        let fs = self.fs()?;
        Ok(View { places: self.places(fs)?, who: self.who(), umask: fs.umask() })
    }

    /// The caller as the owner of what it makes, and for checks of permissions.
    pub fn who(&self) -> Who {
        let c = self.credentials();
        who(c, c.file_user, c.file_group, c.capabilities.effective)
    }

    /// Whether what the caller writes to keeps its set-id bits.
    pub fn keeps_set_ids(&self) -> bool {
        self.credentials().may(cap::FSETID)
    }

    /// As [`who`](Self::who), by the real ids: for `access`.
    pub fn real_who(&self) -> Who {
        let c = self.credentials();
        who(c, c.real_user, c.real_group, c.capabilities.of_real_user(c.real_user))
    }

    fn places(&self, fs: &FsState<M>) -> Result<Arc<Places<FileHost<M>>>, OutOfMemory> {
        // SAFETY: a context is the owner's; the reference ends before the value is replaced.
        let seen = unsafe { self.thread.seen.get() }.as_ref();
        if let Some(seen) = seen.filter(|seen| seen.changes == fs.look.changes.load(Ordering::Acquire)) {
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
        self.fs()?.set_cwd(Place::new(to, self.vfs().root()));
        Ok(())
    }

    /// Makes `to` the root directory.
    pub fn set_root(&self, to: Arc<Dentry<M>>) -> Result<(), Errno> {
        self.fs()?.set_root(Place::new(to, self.vfs().root()));
        Ok(())
    }
}

/// `umask`
pub fn sys_umask<M: Machine>(ctx: &mut Ctx<'_, M>, mask: u32) -> Result<usize, Errno> {
    Ok(usize::from(ctx.fs()?.set_umask(mask as u16)))
}
