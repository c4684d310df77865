//! A table of open files: what descriptors name.

use super::File;
use crate::{Errno, Machine, Thread};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU64, Ordering};
use quire_fs::OpenFlags;
use quire_sync::{Rank, SpinLock};

/// A file layer lock that is taken with nothing else held.
const TABLE: Rank = Rank::FILE;

struct Slot<M: Machine> {
    file: Arc<File<M>>,
    close_on_exec: bool,
}

impl<M: Machine> Clone for Slot<M> {
    fn clone(&self) -> Self {
        Slot { file: self.file.clone(), close_on_exec: self.close_on_exec }
    }
}

struct Table<M: Machine> {
    slots: Vec<Option<Slot<M>>>,
    /// No slot below it is free.
    lowest: usize,
}

/// A table of open files, shared by the threads that CLONE_FILES says.
pub struct Files<M: Machine> {
    table: SpinLock<Table<M>>,
    /// Names the table among owners of record locks.
    /// Given when it is first asked for; 0 before.
    id: AtomicU64,
}

static LAST_ID: AtomicU64 = AtomicU64::new(0);

impl<M: Machine> Files<M> {
    fn with(table: Table<M>) -> Arc<Self> {
        Arc::new(Files { table: SpinLock::new(TABLE, table), id: AtomicU64::new(0) })
    }

    /// An empty table.
    pub fn new() -> Arc<Self> {
        Self::with(Table { slots: Vec::new(), lowest: 0 })
    }

    /// Names the table among owners of record locks.
    pub fn id(&self) -> u64 {
        match self.id.load(Ordering::Relaxed) {
            0 => {
                let new = LAST_ID.fetch_add(1, Ordering::Relaxed) + 1;
                self.id.compare_exchange(0, new, Ordering::Relaxed, Ordering::Relaxed).map_or_else(|is| is, |_| new)
            }
            id => id,
        }
    }

    /// The open file of descriptor `fd`.
    #[inline]
    pub fn get(&self, fd: u32) -> Result<Arc<File<M>>, Errno> {
        let table = self.table.lock();
        match table.slots.get(fd as usize) {
            Some(Some(slot)) => Ok(slot.file.clone()),
            _ => Err(Errno::EBADF),
        }
    }

    /// Whether `fd` closes on exec.
    pub fn closes_on_exec(&self, fd: u32) -> Result<bool, Errno> {
        let table = self.table.lock();
        match table.slots.get(fd as usize) {
            Some(Some(slot)) => Ok(slot.close_on_exec),
            _ => Err(Errno::EBADF),
        }
    }

    /// Sets whether `fd` closes on exec.
    pub fn set_close_on_exec(&self, fd: u32, close: bool) -> Result<(), Errno> {
        let mut table = self.table.lock();
        match table.slots.get_mut(fd as usize) {
            Some(Some(slot)) => {
                slot.close_on_exec = close;
                Ok(())
            }
            _ => Err(Errno::EBADF),
        }
    }

    /// Puts `file` under the lowest free descriptor from `from` on and below `limit`. Where there is none the file comes back,
    /// so that the caller drops it without the lock.
    pub fn insert(&self, file: Arc<File<M>>, close_on_exec: bool, from: u32, limit: u64) -> Result<u32, Errno> {
        let mut table = self.table.lock();
        let start = table.lowest.max(from as usize);
        let free = table.slots.iter().skip(start).position(Option::is_none);
        let fd = free.map_or(table.slots.len().max(start), |i| start + i);
        if fd as u64 >= limit {
            drop(table);
            return Err(Errno::EMFILE);
        }
        if let Err(e) = reach(&mut table.slots, fd) {
            drop(table);
            return Err(e);
        }
        table.slots[fd] = Some(Slot { file, close_on_exec });
        if from as usize <= table.lowest {
            table.lowest = fd + 1;
        }
        Ok(fd as u32)
    }

    /// Puts `file` under descriptor `fd`, below `limit`, and returns what was there.
    pub fn replace(
        &self,
        file: Arc<File<M>>,
        close_on_exec: bool,
        fd: u32,
        limit: u64,
    ) -> Result<Option<Arc<File<M>>>, Errno> {
        if u64::from(fd) >= limit {
            return Err(Errno::EBADF);
        }
        let mut table = self.table.lock();
        if let Err(e) = reach(&mut table.slots, fd as usize) {
            drop(table);
            return Err(e);
        }
        let old = table.slots[fd as usize].replace(Slot { file, close_on_exec });
        drop(table);
        Ok(old.map(|s| s.file))
    }

    /// Takes descriptor `fd` away.
    pub fn remove(&self, fd: u32) -> Result<Arc<File<M>>, Errno> {
        let mut table = self.table.lock();
        let slot = table.slots.get_mut(fd as usize).and_then(Option::take).ok_or(Errno::EBADF)?;
        table.lowest = table.lowest.min(fd as usize);
        Ok(slot.file)
    }

    /// Takes the descriptors `first..=last` away that `which` wants, a batch at a time, and gives them to `each` without the
    /// lock.
    pub fn remove_range(
        &self,
        first: u32,
        last: u32,
        which: impl Fn(bool) -> bool,
        mut each: impl FnMut(Arc<File<M>>),
    ) {
        const BATCH: usize = 16;
        let mut at = first as usize;
        loop {
            let mut batch: [Option<Arc<File<M>>>; BATCH] = [const { None }; BATCH];
            let mut n = 0;
            {
                let mut table = self.table.lock();
                let end = table.slots.len().min((last as usize).saturating_add(1));
                while at < end && n < BATCH {
                    if table.slots[at].as_ref().is_some_and(|s| which(s.close_on_exec)) {
                        batch[n] = table.slots[at].take().map(|s| s.file);
                        table.lowest = table.lowest.min(at);
                        n += 1;
                    }
                    at += 1;
                }
            }
            if n == 0 {
                return;
            }
            batch.into_iter().flatten().for_each(&mut each);
        }
    }

    /// Marks `first..=last` to close on exec.
    pub fn mark_range(&self, first: u32, last: u32) {
        let mut table = self.table.lock();
        let end = table.slots.len().min((last as usize).saturating_add(1));
        for slot in table.slots.iter_mut().take(end).skip(first as usize).flatten() {
            slot.close_on_exec = true;
        }
    }

    /// Closes what is to be closed on exec.
    pub fn close_on_exec(&self) {
        self.remove_range(0, u32::MAX, |close| close, |file| self.closed(&file));
    }

    /// What POSIX wants at every close of a descriptor: the process's record locks on the file end.
    pub fn closed(&self, file: &File<M>) {
        // Without an id it has never locked anything.
        let id = self.id.load(Ordering::Relaxed);
        if id != 0 && !file.flags().contains(OpenFlags::PATH) {
            file.dentry.inode.locks.release_process(id);
        }
    }

    /// A copy for a forked child.
    pub fn fork(&self) -> Result<Arc<Self>, Errno> {
        let mut slots: Vec<Option<Slot<M>>> = Vec::new();
        loop {
            let need = self.table.lock().slots.len();
            slots.try_reserve_exact(need)?;
            let table = self.table.lock();
            // Free descriptors at the end are not copied.
            let used = table.slots.iter().rposition(Option::is_some).map_or(0, |i| i + 1);
            if used <= slots.capacity() {
                slots.extend(table.slots[..used].iter().cloned());
                let lowest = table.lowest.min(used);
                drop(table);
                return Ok(Self::with(Table { slots, lowest }));
            }
        }
    }

    /// The open descriptors from `from` on, at most `most`.
    pub fn list(&self, from: u32, most: usize) -> Vec<(u32, Arc<File<M>>)> {
        let mut out = Vec::with_capacity(most.min(256));
        let most = out.capacity();
        let table = self.table.lock();
        let open = table.slots.iter().enumerate().skip(from as usize);
        out.extend(open.filter_map(|(fd, s)| s.as_ref().map(|s| (fd as u32, s.file.clone()))).take(most));
        out
    }

    /// Number of slots, used or not (`FDSize`).
    pub fn size(&self) -> usize {
        self.table.lock().slots.len()
    }
}

impl<M: Machine> Drop for Files<M> {
    fn drop(&mut self) {
        let id = *self.id.get_mut();
        for slot in self.table.get_mut().slots.drain(..).flatten().filter(|_| id != 0) {
            slot.file.dentry.inode.locks.release_process(id);
        }
    }
}

/// Makes sure that slot `at` exists.
fn reach<M: Machine>(slots: &mut Vec<Option<Slot<M>>>, at: usize) -> Result<(), Errno> {
    if at >= slots.len() {
        slots.try_reserve(at + 1 - slots.len()).map_err(|_| Errno::EMFILE)?;
        slots.resize_with(at + 1, || None);
    }
    Ok(())
}

/// The highest number of descriptors that the thread's process may have.
pub fn descriptor_limit<M: Machine>(thread: &Thread<M>) -> u64 {
    thread.process.soft_limit(crate::process::limits::which::NOFILE).min(1 << 20)
}
