//! File systems: their limits of inodes and pages, and the numbers of their inodes.

use crate::FsError;
use quire_heap::try_leak;
use quire_lookup::per_cpu;
use quire_sync::atomic::{AtomicU8, AtomicU64, AtomicUsize, Ordering};
use quire_sync::epoch::Domain;
use quire_sync::{PerCpu, Quota, preempt_off};

/// The limits of a file system. `None` means no limit.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Limits {
    /// Pages of files' contents, including pages in swap.
    pub pages: Option<u64>,
    /// Inodes, and the names of files beyond the first, because each takes kernel memory.
    pub inodes: Option<u64>,
}

impl Limits {
    /// No limits, and none can be set later.
    pub const NONE: Limits = Limits { pages: None, inodes: None };
    /// Limits that are set later ([`FileSystem::set_room`]).
    pub const UNSET: Limits = Limits { pages: Some(u64::MAX), inodes: Some(u64::MAX) };
}

bitflags::bitflags! {
    /// The uses that a mount refuses.
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
    pub struct Restrictions: u8 {
        /// Files and directories cannot be changed.
        const READ_ONLY = 1;
        /// Set-id bits of programs have no effect.
        const NO_SET_IDS = 1 << 1;
        /// Device files cannot be opened.
        const NO_DEVICES = 1 << 2;
        /// Files can neither be executed nor mapped for execution.
        const NO_EXECUTION = 1 << 3;
    }
}

/// A bit beside those of [`Restrictions`]: the whole file system takes no changes.
const UNCHANGING: u8 = 1 << 7;

/// The file system of an inode. It is mounted, or internal to the machine, and never freed.
///
/// Each processor counts inodes and pages, and numbers inodes, for itself. So threads that make, remove or write
/// different files at the same time share no cache line. The limits are exact, although each processor counts for
/// itself.
pub struct FileSystem {
    /// Device number that its inodes show.
    pub device: u64,
    /// The type of the file system, as mount tables name it.
    pub kind: &'static str,
    /// The counts of inodes and of pages. `None` means that there is no limit, and none can be set later.
    pub(super) inodes: Option<&'static Quota>,
    pages: Option<&'static Quota>,
    numbered: PerCpu<AtomicU64>,
    /// The [`Restrictions`] of its first mount, and the bit [`UNCHANGING`].
    restrictions: AtomicU8,
    /// Whether only the kernel makes and removes names in the file system.
    pub(crate) by_kernel: bool,
    /// The number of watches on its inodes.
    pub(super) watches: AtomicUsize,
    /// The number of leases on its inodes.
    leases: AtomicUsize,
    /// The number of its first mount; 0 if it never had a mount.
    mount: AtomicU64,
    /// The number of bind mounts that show this file system. It changes under the lock that serialises all changes of
    /// mounts.
    binds: AtomicUsize,
}

impl FileSystem {
    /// An empty file system on a machine of `cpus` processors. A resource without a limit is not counted, and never
    /// gets one.
    pub fn new(device: u64, kind: &'static str, limits: Limits, cpus: usize) -> Result<&'static Self, FsError> {
        let quota = |limit: u64| -> Result<&'static Quota, FsError> { Ok(try_leak(per_cpu::quota(cpus, limit)?)?) };
        Ok(try_leak(FileSystem {
            device,
            kind,
            inodes: limits.inodes.map(quota).transpose()?,
            pages: limits.pages.map(quota).transpose()?,
            numbered: per_cpu::per_cpu(cpus, |_| AtomicU64::new(0))?,
            restrictions: AtomicU8::new(0),
            by_kernel: kind == "devpts",
            watches: AtomicUsize::new(0),
            leases: AtomicUsize::new(0),
            mount: AtomicU64::new(0),
            binds: AtomicUsize::new(0),
        })?)
    }

    /// The number of its first mount, which may have ended; 0 if it never had one.
    pub(crate) fn mount(&self) -> u64 {
        self.mount.load(Ordering::Relaxed)
    }

    /// Sets the number of its first mount.
    pub(crate) fn set_mount(&self, id: u64) {
        self.mount.store(id, Ordering::Relaxed);
    }

    /// Whether a bind mount shows the file system.
    pub(crate) fn is_bound(&self) -> bool {
        self.binds.load(Ordering::Relaxed) > 0
    }

    /// Counts a bind mount that begins to show the file system, or uncounts an ended one.
    pub(crate) fn count_bind(&self, begins: bool) {
        let now = self.binds.load(Ordering::Relaxed);
        self.binds.store(if begins { now + 1 } else { now - 1 }, Ordering::Relaxed);
    }

    /// Sets its limits to its present contents plus `more`.
    pub fn set_room(&self, more: Limits) {
        for (quota, more) in [(self.inodes, more.inodes), (self.pages, more.pages)] {
            if let Some(quota) = quota {
                quota.set_limit(more.map_or(u64::MAX, |more| quota.taken().saturating_add(more)));
            }
        }
    }

    /// Sets the limits of the resources that the file system counts. `None` means no limit.
    pub fn set_limits(&self, limits: Limits) {
        for (quota, limit) in [(self.inodes, limits.inodes), (self.pages, limits.pages)] {
            if let Some(quota) = quota {
                quota.set_limit(limit.unwrap_or(u64::MAX));
            }
        }
    }

    /// The limits of the file system, as far as they are set.
    pub fn limits(&self) -> Limits {
        let of = |quota: Option<&Quota>| quota.map(Quota::limit).filter(|limit| *limit != u64::MAX);
        Limits { pages: of(self.pages), inodes: of(self.inodes) }
    }

    /// The present numbers of pages and of inodes; 0 for a resource that is not counted.
    pub fn taken(&self) -> (u64, u64) {
        (self.pages.map_or(0, Quota::taken), self.inodes())
    }

    /// Whether files and directories take no changes through any mount.
    pub fn is_read_only(&self) -> bool {
        self.restrictions.load(Ordering::Relaxed) & UNCHANGING != 0
    }

    /// The uses that the first mount refuses. Bind mounts have restrictions of their own.
    pub(crate) fn restrictions(&self) -> Restrictions {
        Restrictions::from_bits_truncate(self.restrictions.load(Ordering::Relaxed))
    }

    /// Sets the restrictions of the first mount. [`Restrictions::READ_ONLY`] makes the whole file system read-only.
    pub fn restrict(&self, uses: Restrictions) {
        let whole = if uses.contains(Restrictions::READ_ONLY) { UNCHANGING } else { 0 };
        self.restrictions.store(uses.bits() | whole, Ordering::Relaxed);
    }

    /// Sets the restrictions of the first mount only.
    pub(crate) fn restrict_first_mount(&self, uses: Restrictions) {
        let change = |bits| Some(bits & UNCHANGING | uses.bits());
        let _ = self.restrictions.fetch_update(Ordering::Relaxed, Ordering::Relaxed, change);
    }

    /// Sets whether the file system takes no changes.
    pub(crate) fn set_read_only(&self, read_only: bool) {
        match read_only {
            true => self.restrictions.fetch_or(UNCHANGING, Ordering::Relaxed),
            false => self.restrictions.fetch_and(!UNCHANGING, Ordering::Relaxed),
        };
    }

    /// Fails with [`FsError::ReadOnly`] if it takes no changes.
    pub(crate) fn changeable(&self) -> Result<(), FsError> {
        if self.is_read_only() { Err(FsError::ReadOnly) } else { Ok(()) }
    }

    /// The limits of the file system, and how much is free. Zeroes mean no limit, as on Linux.
    pub fn space(&self) -> Space {
        let of = |quota: Option<&Quota>| match quota.map(|quota| (quota.limit(), quota.taken())) {
            None | Some((u64::MAX, _)) => Count::default(),
            Some((limit, taken)) => Count { total: limit, free: limit.saturating_sub(taken) },
        };
        Space { kind: self.kind, device: self.device, pages: of(self.pages), inodes: of(self.inodes) }
    }

    /// Whether an inode of the file system is watched.
    #[inline]
    pub(crate) fn is_watched(&self) -> bool {
        self.watches.load(Ordering::Relaxed) != 0
    }

    /// Whether an inode of the file system has a lease. An opener for writing counts itself before it calls this. The
    /// holder of a new lease counts the lease before it reads the number of such openers. So at least one of the two
    /// sees the other.
    #[inline]
    pub(crate) fn is_leased(&self) -> bool {
        self.leases.load(Ordering::SeqCst) != 0
    }

    /// Counts a lease, or uncounts it at its end.
    pub(crate) fn count_lease(&self, begins: bool) {
        match begins {
            true => self.leases.fetch_add(1, Ordering::SeqCst),
            false => self.leases.fetch_sub(1, Ordering::SeqCst),
        };
    }

    /// The number of existing inodes and further names; 0 if they are not counted.
    pub fn inodes(&self) -> u64 {
        self.inodes.map_or(0, Quota::taken)
    }

    /// The quota that contents are charged to.
    pub fn quota(&self) -> Option<&'static Quota> {
        self.pages
    }

    /// Counts an inode, or a name of one. The caller holds no lock and is not pinned.
    pub(crate) fn admit(&self, epoch: &Domain) -> Result<Admitted<'_>, FsError> {
        let Some(quota) = self.inodes else { return Ok(Admitted(self)) };
        if !quota.take(1) {
            // A removed directory stays counted until no lookup can use it any more.
            epoch.drain();
            if !quota.take(1) {
                return Err(FsError::NoSpace);
            }
        }
        Ok(Admitted(self))
    }

    /// Counts `units` more inodes, for the memory of another object. Returns `false` if there is no room.
    pub(super) fn take_units(&self, units: u64) -> bool {
        self.inodes.is_none_or(|quota| quota.take(units))
    }

    /// Uncounts `units` inodes that [`take_units`](Self::take_units) counted.
    pub(super) fn put_units(&self, units: u64) {
        if let Some(quota) = self.inodes {
            quota.put(units);
        }
    }

    /// Uncounts an inode, or a name of one.
    pub(crate) fn forget(&self) {
        if let Some(quota) = self.inodes {
            quota.put(1);
        }
    }

    /// A number that no other inode has or had.
    pub(super) fn number(&self) -> u64 {
        let pinned = preempt_off();
        // Only this processor writes its counter.
        let mine = self.numbered.mine(&pinned);
        let n = mine.load(Ordering::Relaxed);
        mine.store(n + 1, Ordering::Relaxed);
        n * self.numbered.len() as u64 + pinned.cpu() as u64 + 1
    }
}

/// The count of an inode or a name, until it is dropped.
#[must_use]
pub(crate) struct Admitted<'a>(&'a FileSystem);

impl Admitted<'_> {
    /// Keeps the inode or name counted until its remover calls [`FileSystem::forget`].
    pub fn keep(self) {
        core::mem::forget(self);
    }
}

impl Drop for Admitted<'_> {
    fn drop(&mut self) {
        self.0.forget();
    }
}

/// A limit, and its free part; zeroes for no limit.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Count {
    /// The limit.
    pub total: u64,
    /// The free part.
    pub free: u64,
}

/// Space on a file system.
#[derive(Clone, Copy, Debug)]
pub struct Space {
    /// The type's name.
    pub kind: &'static str,
    /// Device number.
    pub device: u64,
    /// Pages.
    pub pages: Count,
    /// Inodes.
    pub inodes: Count,
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use crate::Host;
    use crate::test_host::TestHost;
    use quire_sync::hooks::threads::set_cpu;
    use std::collections::BTreeSet;

    /// The limit of inodes is exact on any processors, and each inode has a unique number.
    #[test]
    fn an_inode_freed_on_one_cpu_serves_another_cpu() {
        const LIMIT: u64 = 200;
        let system = FileSystem::new(1, "test", Limits { inodes: Some(LIMIT), pages: None }, 3).unwrap();
        let epoch = TestHost.epoch();
        let mut numbers = BTreeSet::new();
        for n in 0..LIMIT {
            set_cpu(n as usize % 3);
            assert_eq!(system.space().inodes, Count { total: LIMIT, free: LIMIT - n });
            system.admit(epoch).unwrap().keep();
            assert!(numbers.insert(system.number()));
        }
        assert_eq!((system.admit(epoch).err(), system.inodes()), (Some(FsError::NoSpace), LIMIT));
        set_cpu(1);
        (0..LIMIT).for_each(|_| system.forget());
        assert_eq!(system.inodes(), 0);
        set_cpu(2);
        (0..LIMIT).for_each(|_| system.admit(epoch).unwrap().keep());
        set_cpu(0);
        assert_eq!(system.admit(epoch).err(), Some(FsError::NoSpace));
        system.forget();
        drop(system.admit(epoch).unwrap());
        assert_eq!(system.inodes(), LIMIT - 1);
    }
}
