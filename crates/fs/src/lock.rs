//! Advisory locks: on ranges of bytes, held by processes or open files, and on whole files, held by open files.

use crate::readiness::Readiness;
use crate::stream::Io;
use crate::{FsError, rank};
use alloc::vec::Vec;
use quire_sync::SpinLock;
use quire_sync::atomic::{AtomicUsize, Ordering};

/// Most locks on one file: each takes kernel memory.
const MOST: usize = 4096;

/// Who holds a lock. Locks of one owner never stand against each other.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Owner {
    /// A process (its table of open files).
    Process {
        /// Names the owner.
        id: u64,
        /// What is reported to others.
        pid: u32,
    },
    /// An open file.
    File(u64),
}

/// A lock on the bytes `start..end`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Record {
    /// First byte.
    pub start: u64,
    /// One past the last byte.
    pub end: u64,
    /// Nobody else may lock it, not even for reading.
    pub exclusive: bool,
    /// Whose it is.
    pub owner: Owner,
}

impl Record {
    fn against(&self, other: &Record) -> bool {
        self.owner != other.owner
            && (self.exclusive || other.exclusive)
            && self.start < other.end
            && other.start < self.end
    }
}

#[derive(Default)]
struct Held {
    /// Byte ranges. No two of one owner overlap.
    records: Vec<Record>,
    /// Whole files, a family of their own.
    whole: Vec<Record>,
}

/// The locks on one inode.
pub struct RecordLocks {
    held: SpinLock<Held>,
    /// Lets a close skip the lock where there is nothing to release.
    count: AtomicUsize,
    readiness: Readiness,
}

impl Default for RecordLocks {
    fn default() -> Self {
        Self::new()
    }
}

impl RecordLocks {
    /// No locks.
    pub const fn new() -> Self {
        RecordLocks {
            held: SpinLock::new(rank::ATTR, Held { records: Vec::new(), whole: Vec::new() }),
            count: AtomicUsize::new(0),
            readiness: Readiness::new(),
        }
    }

    /// The lock that stands against `wanted`, if any.
    pub fn test(&self, wanted: &Record) -> Option<Record> {
        self.held.lock().records.iter().find(|r| r.against(wanted)).copied()
    }

    /// Locks the range, changing what the owner held there; waits as `io` allows.
    pub fn lock(&self, wanted: Record, io: &Io<'_>) -> Result<(), FsError> {
        self.readiness.wait(io, || {
            let mut held = self.held.lock();
            if held.records.iter().any(|r| r.against(&wanted)) {
                return None;
            }
            if held.records.len() + 2 > MOST {
                return Some(Err(FsError::OutOfMemory));
            }
            cut(&mut held.records, wanted.owner, wanted.start, wanted.end);
            held.records.push(wanted);
            self.counted(&held);
            Some(Ok(()))
        })??;
        // A lock that became shared lets others in.
        self.readiness.notify();
        Ok(())
    }

    /// Takes the owner's locks off `start..end`.
    pub fn unlock(&self, owner: Owner, start: u64, end: u64) -> Result<(), FsError> {
        if self.count.load(Ordering::Acquire) == 0 {
            return Ok(());
        }
        {
            let mut held = self.held.lock();
            if held.records.len() + 1 > MOST {
                return Err(FsError::OutOfMemory);
            }
            cut(&mut held.records, owner, start, end);
            self.counted(&held);
        }
        self.readiness.notify();
        Ok(())
    }

    /// Locks the whole file for an open file; waits as `io` allows.
    pub fn lock_whole(&self, file: u64, exclusive: bool, io: &Io<'_>) -> Result<(), FsError> {
        let wanted = Record { start: 0, end: u64::MAX, exclusive, owner: Owner::File(file) };
        self.readiness.wait(io, || {
            let mut held = self.held.lock();
            if held.whole.iter().any(|r| r.against(&wanted)) {
                return None;
            }
            held.whole.retain(|r| r.owner != wanted.owner);
            held.whole.push(wanted);
            self.counted(&held);
            Some(())
        })?;
        self.readiness.notify();
        Ok(())
    }

    /// Takes the open file's lock off the whole file.
    pub fn unlock_whole(&self, file: u64) {
        if self.count.load(Ordering::Acquire) == 0 {
            return;
        }
        {
            let mut held = self.held.lock();
            held.whole.retain(|r| r.owner != Owner::File(file));
            self.counted(&held);
        }
        self.readiness.notify();
    }

    /// The open file is closed.
    pub(crate) fn release_file(&self, file: u64) {
        if self.count.load(Ordering::Acquire) == 0 {
            return;
        }
        {
            let mut held = self.held.lock();
            held.whole.retain(|r| r.owner != Owner::File(file));
            held.records.retain(|r| r.owner != Owner::File(file));
            self.counted(&held);
        }
        self.readiness.notify();
    }

    /// The process closed a descriptor of the file: all its range locks end, as POSIX has it.
    pub fn release_process(&self, id: u64) {
        if self.count.load(Ordering::Acquire) == 0 {
            return;
        }
        {
            let mut held = self.held.lock();
            held.records.retain(|r| !matches!(r.owner, Owner::Process { id: i, .. } if i == id));
            self.counted(&held);
        }
        self.readiness.notify();
    }

    fn counted(&self, held: &Held) {
        self.count.store(held.records.len() + held.whole.len(), Ordering::Release);
    }
}

/// Takes `start..end` out of the owner's records; one that reaches over both ends becomes two.
fn cut(records: &mut Vec<Record>, owner: Owner, start: u64, end: u64) {
    let mut rest = None;
    records.retain_mut(|r| {
        if r.owner != owner || r.end <= start || end <= r.start {
            return true;
        }
        if r.start < start && end < r.end {
            rest = Some(Record { start: end, ..*r });
            r.end = start;
        } else if r.start < start {
            r.end = start;
        } else if end < r.end {
            r.start = end;
        } else {
            return false;
        }
        true
    });
    records.extend(rest);
}
