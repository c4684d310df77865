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
            add(&mut held.records, wanted);
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

    /// Locks the whole file for an open file; waits as `io` allows. A lock of the other kind that it has goes first, as on Linux:
    /// two that share the file and both want it alone do not wait for each other.
    pub fn lock_whole(&self, file: u64, exclusive: bool, io: &Io<'_>) -> Result<(), FsError> {
        let wanted = Record { start: 0, end: u64::MAX, exclusive, owner: Owner::File(file) };
        let changes = {
            let mut held = self.held.lock();
            let before = held.whole.len();
            held.whole.retain(|r| r.owner != wanted.owner || r.exclusive == exclusive);
            self.counted(&held);
            held.whole.len() != before
        };
        if changes {
            self.readiness.notify();
        }
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

/// Adds a lock to a range that the owner has cut free; it and equal neighbours become one.
fn add(records: &mut Vec<Record>, mut new: Record) {
    records.retain(|r| {
        let equal = r.owner == new.owner && r.exclusive == new.exclusive;
        let touches = equal && (r.end == new.start || r.start == new.end);
        if touches {
            new.start = new.start.min(r.start);
            new.end = new.end.max(r.end);
        }
        !touches
    });
    records.push(new);
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

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::vec::Vec;

    fn owner(id: u64) -> Owner {
        Owner::Process { id, pid: id as u32 }
    }

    #[test]
    fn a_lock_waits_for_the_one_against_it_and_ends_with_its_owner() {
        let locks = RecordLocks::new();
        let lock =
            |id, exclusive, io: &Io<'_>| locks.lock(Record { start: 0, end: 10, exclusive, owner: owner(id) }, io);
        lock(1, false, &Io::NOW).unwrap();
        lock(2, false, &Io::NOW).unwrap();
        assert_eq!(lock(3, true, &Io::NOW), Err(FsError::WouldBlock));
        std::thread::scope(|s| {
            let waiter = s.spawn(|| lock(3, true, &Io::WAIT));
            locks.unlock(owner(1), 0, 10).unwrap();
            std::thread::sleep(std::time::Duration::from_millis(5));
            assert!(!waiter.is_finished());
            locks.release_process(2);
            waiter.join().unwrap().unwrap();
        });
        locks.lock_whole(7, true, &Io::NOW).unwrap();
        assert_eq!(locks.lock_whole(8, false, &Io::NOW), Err(FsError::WouldBlock));
        locks.release_file(7);
        locks.lock_whole(8, false, &Io::NOW).unwrap();
        // Who wants another kind of lock gives up the one that it has, whether or not it gets that.
        locks.lock_whole(9, false, &Io::NOW).unwrap();
        assert_eq!(locks.lock_whole(8, true, &Io::NOW), Err(FsError::WouldBlock));
        locks.lock_whole(9, true, &Io::NOW).unwrap();
    }

    proptest! {
        #[test]
        fn ranges_are_locked_byte_by_byte(
            steps in prop::collection::vec((0u64..3, 0u64..20, 1u64..10, 0u8..3), 1..60),
        ) {
            let locks = RecordLocks::new();
            // Who has each byte: an exclusive owner, or a set of sharing ones.
            let mut model = std::vec![[None::<bool>; 3]; 40];
            for (who, start, len, what) in steps {
                let end = start + len;
                let bytes = start as usize..end as usize;
                if what == 2 {
                    locks.unlock(owner(who), start, end).unwrap();
                    model[bytes].iter_mut().for_each(|b| b[who as usize] = None);
                } else {
                    let exclusive = what == 1;
                    let free = model[bytes.clone()].iter().all(|b| {
                        (0..3).all(|o| o == who as usize || !b[o].is_some_and(|e| e || exclusive))
                    });
                    let record = Record { start, end, exclusive, owner: owner(who) };
                    prop_assert_eq!(locks.test(&record).is_none(), free);
                    prop_assert_eq!(locks.lock(record, &Io::NOW).is_ok(), free);
                    if free {
                        model[bytes].iter_mut().for_each(|b| b[who as usize] = Some(exclusive));
                    }
                }
                let held = locks.held.lock().records.clone();
                for (at, byte) in model.iter().enumerate() {
                    for (o, want) in byte.iter().enumerate() {
                        let here: Vec<bool> = held
                            .iter()
                            .filter(|r| r.owner == owner(o as u64) && r.start <= at as u64 && (at as u64) < r.end)
                            .map(|r| r.exclusive)
                            .collect();
                        prop_assert_eq!(here, want.iter().copied().collect::<Vec<bool>>());
                    }
                }
            }
        }
    }
}
