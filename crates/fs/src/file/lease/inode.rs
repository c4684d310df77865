//! The leases of an inode: open files take, change and drop them, and openers break them.

use super::{Lease, LeaseHolder, LeaseKind, LeaseList, MOST};
use crate::stream::io::Io;
use crate::tree::inode::Inode;
use crate::{FsError, Host};
use quire_heap::Arc;
use quire_sync::atomic::Ordering;
use quire_sync::hooks::now;

impl<H: Host> Inode<H> {
    fn lease_list(&self) -> Option<Arc<LeaseList>> {
        self.leases.lock().clone()
    }

    /// The kind of the lease of the open file `file`, or `None` if it has no lease. A change for which an opener waits
    /// counts as done. So `Some(None)` is a lease that must be given up.
    pub fn lease_of(&self, file: u64) -> Option<Option<LeaseKind>> {
        let list = self.lease_list()?;
        let held = list.held.lock();
        let lease = held.iter().find(|lease| lease.file == file)?;
        Some(lease.broken.map_or(Some(lease.kind), |of| of.to))
    }

    /// Gives the open file `file` a lease, or changes its lease. Fails with [`FsError::WouldBlock`] if another lease or
    /// a waiting opener conflicts. Afterwards the caller checks whether other open files of the inode conflict. If one
    /// does, the caller [drops](Self::drop_lease) the lease again.
    pub fn set_lease(&self, file: u64, kind: LeaseKind, holder: Arc<dyn LeaseHolder>) -> Result<(), FsError> {
        let list = match self.lease_list() {
            Some(list) => list,
            None => {
                let new = LeaseList::new()?;
                self.leases.lock().get_or_insert(new).clone()
            }
        };
        let mut held = list.held.lock();
        if held.iter().any(|other| other.file != file && (kind == LeaseKind::Write || other.kind == LeaseKind::Write)) {
            return Err(FsError::WouldBlock);
        }
        let waits = list.waiting.load(Ordering::Acquire) > 0;
        let before = match held.iter_mut().find(|lease| lease.file == file) {
            Some(own) if waits && kind > own.kind => return Err(FsError::WouldBlock),
            None if waits => return Err(FsError::WouldBlock),
            Some(own) => {
                let may = own.broken.map_or(Some(kind), |of| of.to);
                if may.is_none_or(|may| kind > may) {
                    return Err(FsError::WouldBlock);
                }
                (own.kind, own.broken) = (kind, None);
                Some(core::mem::replace(&mut own.holder, holder))
            }
            None => {
                if held.len() >= MOST {
                    return Err(FsError::OutOfMemory);
                }
                held.try_push(Lease { file, kind, holder, broken: None })?;
                self.system().count_lease(true);
                None
            }
        };
        drop(held);
        drop(before);
        list.changed.notify();
        Ok(())
    }

    /// Ends the lease of the open file `file`. Returns false if it has none.
    pub fn drop_lease(&self, file: u64) -> bool {
        if !self.system().is_leased() {
            return false;
        }
        let Some(list) = self.lease_list() else { return false };
        let mut held = list.held.lock();
        let Some(at) = held.iter().position(|lease| lease.file == file) else { return false };
        let ended = held.swap_remove(at);
        self.system().count_lease(false);
        drop(held);
        drop(ended);
        list.changed.notify();
        true
    }

    /// Breaks the leases that conflict with an opener, and waits until they are given up, as `io` allows.
    pub(crate) fn break_leases(&self, host: &H, writes: bool, io: &Io<'_>) -> Result<(), FsError> {
        if !self.system().is_leased() {
            return Ok(());
        }
        let Some(list) = self.lease_list() else { return Ok(()) };
        if list.is_free(writes).is_some() {
            return Ok(());
        }
        list.waiting.fetch_add(1, Ordering::AcqRel);
        let done = self.await_leases(&list, host.lease_deadline(), writes, io);
        list.waiting.fetch_sub(1, Ordering::AcqRel);
        done
    }

    /// Makes a regular file `size` bytes long for a caller that has not opened it for writing. Fails if a program runs
    /// from the file. Breaks leases first.
    pub fn truncate_by_name(&self, host: &H, size: u64, io: &Io<'_>) -> Result<(), FsError> {
        let _writer = self.file().map(|file| file.writing.text.write()).transpose()?;
        self.break_leases(host, true, io)?;
        self.truncate(host, size, io)
    }

    /// Waits until no lease conflicts with the opener, for [`break_leases`](Self::break_leases). Leases that this
    /// opener breaks end by themselves at `due` (nanoseconds of the monotonic clock).
    fn await_leases(&self, list: &LeaseList, due: u64, writes: bool, io: &Io<'_>) -> Result<(), FsError> {
        loop {
            let gone = list.expire(now());
            if gone > 0 {
                (0..gone).for_each(|_| self.system().count_lease(false));
                list.changed.notify();
            }
            if list.is_free(writes).is_some() {
                return Ok(());
            }
            let (holder, first) = list.note(writes, due);
            if let Some(holder) = holder {
                holder.broken();
                continue;
            }
            let until = Io { deadline: Some(first.min(io.deadline.unwrap_or(u64::MAX))), ..*io };
            match list.changed.wait(&until, || list.is_free(writes)) {
                Err(FsError::WouldBlock) if io.nonblock => return Err(FsError::WouldBlock),
                Err(FsError::WouldBlock) if io.deadline.is_some_and(|deadline| deadline <= now()) => {
                    return Err(FsError::WouldBlock);
                }
                // The time `first` has passed, so a lease ends by itself now. The next `expire` removes it.
                Err(FsError::WouldBlock) => {}
                Err(other) => return Err(other),
                Ok(()) => {}
            }
        }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use crate::test_host::TestHost;
    use crate::{Limits, OpenFlags, Vfs};
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[derive(Default)]
    struct Notified(AtomicUsize);
    impl LeaseHolder for Notified {
        fn broken(&self) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn holder() -> (Arc<Notified>, Arc<dyn LeaseHolder>) {
        let notified = Arc::try_new(Notified::default()).expect("memory");
        (notified.clone(), quire_heap::unsize!(notified))
    }

    #[test]
    fn an_opener_breaks_leases_and_waits_for_their_end() {
        TestHost.be_cpu();
        let vfs = Vfs::new(TestHost, Limits { inodes: Some(20), pages: Some(100) }).expect("a file system");
        let open = |flags: OpenFlags| {
            vfs.open(&vfs.view(), vfs.root(), b"/file", flags | OpenFlags::NONBLOCK, 0o644, &Io::NOW)
        };
        let file = open(OpenFlags::READ | OpenFlags::WRITE | OpenFlags::CREATE).expect("a file");
        let (inode, own) = (file.dentry.inode.clone(), file.lock_owner());
        let (recorder, lease) = holder();
        assert_eq!(inode.lease_of(own), None);
        inode.set_lease(own, LeaseKind::Write, lease.clone()).expect("a lease");
        assert_eq!(inode.lease_of(own), Some(Some(LeaseKind::Write)));
        let (_, other) = holder();
        assert_eq!(inode.set_lease(own + 1, LeaseKind::Read, other), Err(FsError::WouldBlock));
        for _ in 0..2 {
            assert_eq!(open(OpenFlags::READ).err(), Some(FsError::WouldBlock));
            assert_eq!(recorder.0.load(Ordering::Relaxed), 1, "a holder is notified once");
        }
        assert_eq!(inode.lease_of(own), Some(Some(LeaseKind::Read)), "a reader lets it keep out writers");
        assert_eq!(inode.set_lease(own, LeaseKind::Write, lease.clone()), Err(FsError::WouldBlock));
        inode.set_lease(own, LeaseKind::Read, lease.clone()).expect("the lease that may stay");
        assert!(open(OpenFlags::READ).is_ok());
        assert_eq!(open(OpenFlags::WRITE).err(), Some(FsError::WouldBlock));
        assert_eq!((inode.lease_of(own), recorder.0.load(Ordering::Relaxed)), (Some(None), 2));
        assert!(inode.drop_lease(own) && !inode.drop_lease(own));
        assert!(open(OpenFlags::WRITE).is_ok());
        // A lease ends with its open file, and by itself after a time limit.
        inode.set_lease(own, LeaseKind::Read, lease.clone()).expect("a lease");
        drop(file);
        assert!(!inode.system().is_leased());
        inode.set_lease(7, LeaseKind::Write, lease).expect("a lease");
        vfs.open(&vfs.view(), vfs.root(), b"/file", OpenFlags::WRITE, 0, &Io::WAIT)
            .expect("it is not waited for for ever");
        assert_eq!((inode.lease_of(7), inode.system().is_leased()), (None, false));
    }
}
