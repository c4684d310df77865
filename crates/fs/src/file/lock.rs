//! Advisory locks: on byte ranges (held by processes or open files), and on whole files (held by open files).
//!
//! Processes that wait for each other's ranges in a circle would wait for ever. So the process that would close the
//! circle gets an error. A wait for a process is recorded in [`WAITS`], under the lock of the file with the conflicting
//! range. The record exists only as long as that process holds the range. So recorded waits are true, and no false
//! circle is found. A wait for an open file's range is not recorded. As on Linux, this stays so if a process locks a
//! conflicting range during the wait.

use crate::FsError;
use crate::stream::io::Io;
use crate::stream::readiness::Readiness;
use quire_heap::{OutOfMemory, Vec};
use quire_sync::atomic::{AtomicBool, Ordering};
use quire_sync::{Rank, SpinLock};

/// The most locks on one file, because each takes kernel memory.
const MOST: usize = 4096;

/// The number of locks for which a list keeps room beyond four times its length.
const FEW: usize = 8;

/// The holder of a lock. Locks of one owner never conflict.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Owner {
    /// A process (its table of open files).
    Process {
        /// The owner's id.
        id: u64,
        /// The process id reported to other processes.
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
    /// Whether no other owner may lock the range, not even for reading.
    pub exclusive: bool,
    /// The owner of the lock.
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

/// The charge to a user's account for an owner's range locks on one file, until it is dropped.
pub trait Charge: Send {
    /// Changes the charge to `n` locks. If the user may not have that many, it changes nothing and returns `false`.
    fn resize(&mut self, n: usize) -> bool;
}

/// No charge.
impl Charge for () {
    fn resize(&mut self, _n: usize) -> bool {
        true
    }
}

struct HeldLocks<C> {
    /// Byte ranges. No two ranges of one owner overlap.
    records: Vec<Record>,
    /// Owners with ranges, each with the charge for its ranges.
    charges: Vec<(Owner, C)>,
    /// Locks on the whole file, which do not conflict with ranges.
    whole: Vec<Record>,
    /// The number of entries in [`WAITS`] for this file.
    waiting: usize,
}

impl<C: Charge> HeldLocks<C> {
    fn ranges_of(&self, owner: Owner) -> usize {
        self.records.iter().filter(|r| r.owner == owner).count()
    }

    /// Reserves memory for `more` ranges of `owner`, which has `there` ranges, and charges them to its user.
    fn make_room(
        &mut self,
        owner: Owner,
        there: usize,
        more: usize,
        charge: impl FnOnce(usize) -> Option<C>,
    ) -> Result<(), OutOfMemory> {
        if self.records.len() + more > MOST {
            return Err(OutOfMemory);
        }
        self.records.try_reserve(more)?;
        let n = there + more;
        if there != 0
            && let Some((_, charge)) = self.charges.iter_mut().find(|(of, _)| *of == owner)
        {
            return if charge.resize(n) { Ok(()) } else { Err(OutOfMemory) };
        }
        self.charges.try_reserve(1)?;
        self.charges.push_reserved((owner, charge(n).ok_or(OutOfMemory)?));
        Ok(())
    }

    /// Reduces the charge of `owner` to its `n` ranges.
    fn settle(&mut self, owner: Owner, n: usize) {
        let Some(at) = self.charges.iter().position(|(of, _)| *of == owner) else { return };
        // A smaller charge is not refused.
        if n == 0 || !self.charges[at].1.resize(n) {
            take_out(&mut self.charges, at);
        }
    }

    /// The capacity of the largest list, in locks.
    fn capacity(&self) -> usize {
        self.records.capacity().max(self.whole.capacity()).max(self.charges.capacity())
    }

    /// Frees spare memory of the lists, because no user is charged for it. Empty lists keep their memory until a close
    /// (`closing`), because mostly a new lock is made before that close.
    #[cold]
    fn shrink(&mut self, closing: bool) {
        shrink(&mut self.records, closing);
        shrink(&mut self.whole, closing);
        shrink(&mut self.charges, closing);
    }

    /// Drops the ranges of `owner`.
    fn release(&mut self, owner: impl Fn(Owner) -> bool) {
        self.records.retain(|r| !owner(r.owner));
        self.charges.retain(|(of, _)| !owner(*of));
    }
}

/// A thread that waits for a range.
struct Wait {
    /// The thread, by the address of its [`Waiter`].
    waiter: usize,
    /// The file, by the address of its locks.
    at: usize,
    /// The thread's process.
    process: u64,
    /// A process with a conflicting lock; the first one in the list of ranges if there are several.
    holder: u64,
}

/// All processes that wait for ranges of other processes. One list serves all files, because a circle may go through
/// several files. A change of the list also requires the lock of the file.
#[cfg(not(any(loom, shuttle)))]
static WAITS: SpinLock<Vec<Wait>> = SpinLock::new(Rank::RANGE_WAITS, Vec::new());
/// The checkers' locks can be made only at run time. No model uses record locks.
#[cfg(any(loom, shuttle))]
static WAITS: std::sync::LazyLock<SpinLock<Vec<Wait>>> =
    std::sync::LazyLock::new(|| SpinLock::new(Rank::RANGE_WAITS, Vec::new()));

/// The longest chain of waiting processes that is followed.
const LONGEST: usize = 64;

/// Whether process `from` waits for `to`, directly or through other waiters. Each process counts as waiting for itself.
fn waits_for(waits: &[Wait], from: u64, to: u64) -> bool {
    let (mut met, mut len, mut at) = ([from; LONGEST], 1, 0);
    while at < len {
        if met[at] == to {
            return true;
        }
        let process = met[at];
        for next in waits.iter().filter(|wait| wait.process == process).map(|wait| wait.holder) {
            if len < LONGEST && !met[..len].contains(&next) {
                met[len] = next;
                len += 1;
            }
        }
        at += 1;
    }
    false
}

/// Moves the list to less memory if most of its room is unused. If there is no memory for the smaller list, the next
/// change tries again.
fn shrink<T>(list: &mut Vec<T>, closing: bool) {
    if closing && list.is_empty() {
        *list = Vec::new();
    }
    if list.capacity() <= 4 * list.len() + FEW {
        return;
    }
    if list.is_empty() {
        *list = Vec::new();
        return;
    }
    let Ok(mut smaller) = Vec::try_with_capacity(2 * list.len()) else { return };
    list.drain(..).for_each(|one| smaller.push_reserved(one));
    *list = smaller;
}

/// A thread that wants a lock. Its address identifies it, so it stays in place while it is recorded in [`WAITS`].
struct Waiter<'a, C: Charge>(&'a RecordLocks<C>);

impl<C: Charge> Waiter<'_, C> {
    fn address(&self) -> usize {
        core::ptr::from_ref(self).addr()
    }

    /// Records that the thread will wait for `wanted`. Fails with [`FsError::Deadlock`] if that would close a circle.
    fn wait(&self, held: &mut HeldLocks<C>, wanted: &Record) -> Result<(), FsError> {
        let Owner::Process { id: process, .. } = wanted.owner else { return Ok(()) };
        let holder = |r: &Record| match r.owner {
            Owner::Process { id, .. } if r.against(wanted) => Some(id),
            _ => None,
        };
        let mut waits = WAITS.lock();
        self.no_more(held, &mut waits);
        if held.records.iter().filter_map(holder).any(|holder| waits_for(&waits, holder, process)) {
            return Err(FsError::Deadlock);
        }
        if let Some(holder) = held.records.iter().find_map(holder) {
            waits.try_push(Wait { waiter: self.address(), at: self.0.at(), process, holder })?;
            held.waiting += 1;
        }
        Ok(())
    }

    fn no_more(&self, held: &mut HeldLocks<C>, waits: &mut Vec<Wait>) {
        if let Some(i) = waits.iter().position(|wait| wait.waiter == self.address()) {
            waits.swap_remove(i);
            held.waiting -= 1;
        }
    }
}

/// The locks on one inode.
pub struct RecordLocks<C = ()> {
    held: SpinLock<HeldLocks<C>>,
    /// Whether there are locks to release, or memory to free. If not, a close skips the lock.
    in_use: AtomicBool,
    readiness: Readiness,
}

impl<C: Charge> Default for RecordLocks<C> {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
impl RecordLocks {
    /// As [`lock_charged`](Self::lock_charged), without a charge.
    pub fn lock(&self, wanted: Record, io: &Io<'_>) -> Result<(), FsError> {
        self.lock_charged(wanted, io, &|_| Some(()))
    }
}

impl<C: Charge> RecordLocks<C> {
    /// The locks of an inode that has none yet.
    pub fn new() -> Self {
        RecordLocks {
            held: SpinLock::new(
                Rank::ATTRIBUTES,
                HeldLocks { records: Vec::new(), charges: Vec::new(), whole: Vec::new(), waiting: 0 },
            ),
            in_use: AtomicBool::new(false),
            readiness: Readiness::new(),
        }
    }

    /// Returns the lock that conflicts with `wanted` and has the lowest start, if any.
    pub fn test(&self, wanted: &Record) -> Option<Record> {
        self.held.lock().records.iter().filter(|r| r.against(wanted)).min_by_key(|r| r.start).copied()
    }

    /// Locks the range `wanted`, and replaces the owner's locks in it. Waits as `io` allows. A process whose wait would
    /// close a circle of waiters gets [`FsError::Deadlock`]. `charge` charges the caller's user for a number of ranges,
    /// and returns `None` if the user may not have them. In that case, or without memory, the error is
    /// [`FsError::OutOfMemory`].
    pub fn lock_charged(
        &self,
        wanted: Record,
        io: &Io<'_>,
        charge: &dyn Fn(usize) -> Option<C>,
    ) -> Result<(), FsError> {
        let waiter = Waiter(self);
        let mut notifies = false;
        let locked = self.readiness.wait(io, || {
            let mut held = self.held.lock();
            if held.records.iter().any(|r| r.against(&wanted)) {
                return if io.nonblock { None } else { waiter.wait(&mut held, &wanted).err().map(Err) };
            }
            let there = held.ranges_of(wanted.owner);
            // An owner that has ranges may need two more: one from a split, and the new one.
            if held.make_room(wanted.owner, there, if there == 0 { 1 } else { 2 }, charge).is_err() {
                held.settle(wanted.owner, there);
                // `make_room` may have allocated memory, which the next close must free.
                self.in_use.store(held.capacity() != 0, Ordering::Release);
                return Some(Err(FsError::OutOfMemory));
            }
            if there == 0 {
                held.records.push_reserved(wanted);
            } else {
                cut(&mut held.records, wanted.owner, wanted.start, wanted.end);
                add(&mut held.records, wanted);
                let there = held.ranges_of(wanted.owner);
                held.settle(wanted.owner, there);
            }
            // The first range of an owner frees no other range. But recorded waits must be checked against the new
            // range.
            notifies = there != 0 || held.waiting != 0;
            self.changed(&mut held, false);
            Some(Ok(()))
        });
        if !matches!(locked, Ok(Ok(()))) {
            // The thread does not wait any more, so its recorded wait ends.
            let mut held = self.held.lock();
            if held.waiting != 0 {
                waiter.no_more(&mut held, &mut WAITS.lock());
            }
        }
        locked??;
        // If an exclusive lock became shared, other owners can proceed.
        if notifies {
            self.readiness.notify();
        }
        Ok(())
    }

    /// Removes the owner's locks from `start..end`.
    pub fn unlock(&self, owner: Owner, start: u64, end: u64) -> Result<(), FsError> {
        if !self.in_use.load(Ordering::Acquire) {
            return Ok(());
        }
        {
            let mut held = self.held.lock();
            // Only the split of a range needs memory.
            let splits = |r: &Record| r.start < start && end < r.end && r.owner == owner;
            if held.records.iter().any(splits) {
                let there = held.ranges_of(owner);
                // An owner that has a range has a charge.
                held.make_room(owner, there, 1, |_| None).map_err(|_| FsError::OutOfMemory)?;
            }
            let left = cut(&mut held.records, owner, start, end);
            held.settle(owner, left);
            self.changed(&mut held, false);
        }
        self.readiness.notify();
        Ok(())
    }

    /// Locks the whole file for the open file `file`; waits as `io` allows. As on Linux, a lock of the other kind that
    /// the open file holds is released first. So two open files with shared locks that both request an exclusive lock
    /// do not wait for each other.
    pub fn lock_whole(&self, file: u64, exclusive: bool, io: &Io<'_>) -> Result<(), FsError> {
        let wanted = Record { start: 0, end: u64::MAX, exclusive, owner: Owner::File(file) };
        let is_other = |r: &Record| r.owner == wanted.owner && r.exclusive != exclusive;
        let changes = {
            let mut held = self.held.lock();
            let changes = held.whole.iter().any(is_other);
            if changes {
                held.whole.retain(|r| !is_other(r));
                self.changed(&mut held, false);
            }
            changes
        };
        if changes {
            self.readiness.notify();
        }
        let mut notifies = false;
        self.readiness.wait(io, || {
            let mut held = self.held.lock();
            if held.whole.iter().any(|r| r.against(&wanted)) {
                return None;
            }
            // Another thread may have locked the file for the same open file, perhaps with the other kind of lock.
            let before = held.whole.len();
            held.whole.retain(|r| r.owner != wanted.owner);
            notifies = held.whole.len() != before || held.waiting != 0;
            if held.whole.try_push(wanted).is_err() {
                return Some(Err(FsError::OutOfMemory));
            }
            self.changed(&mut held, false);
            Some(Ok(()))
        })??;
        if notifies {
            self.readiness.notify();
        }
        Ok(())
    }

    /// Removes the open file's lock on the whole file.
    pub fn unlock_whole(&self, file: u64) {
        if !self.in_use.load(Ordering::Acquire) {
            return;
        }
        {
            let mut held = self.held.lock();
            held.whole.retain(|r| r.owner != Owner::File(file));
            self.changed(&mut held, false);
        }
        self.readiness.notify();
    }

    /// Removes the locks of a closed open file.
    pub(crate) fn release_file(&self, file: u64) {
        if !self.in_use.load(Ordering::Acquire) {
            return;
        }
        {
            let mut held = self.held.lock();
            held.whole.retain(|r| r.owner != Owner::File(file));
            held.release(|owner| owner == Owner::File(file));
            self.changed(&mut held, true);
        }
        self.readiness.notify();
    }

    /// Ends all range locks of the process `id`, as POSIX requires. Called when the process has closed any descriptor
    /// of the file.
    pub fn release_process(&self, id: u64) {
        if !self.in_use.load(Ordering::Acquire) {
            return;
        }
        {
            let mut held = self.held.lock();
            held.release(|owner| matches!(owner, Owner::Process { id: i, .. } if i == id));
            self.changed(&mut held, true);
        }
        self.readiness.notify();
    }

    /// Frees memory and removes recorded waits after a change of the locks. The caller notifies the waiters after it
    /// has released the lock; each waiter then checks its conflicts again.
    fn changed(&self, held: &mut HeldLocks<C>, closing: bool) {
        let mut capacity = held.capacity();
        // Lists with room for only a few locks keep that room until a close.
        if closing || capacity > FEW {
            held.shrink(closing);
            capacity = held.capacity();
        }
        self.in_use.store(capacity != 0, Ordering::Release);
        if held.waiting != 0 {
            WAITS.lock().retain(|wait| wait.at != self.at());
            held.waiting = 0;
        }
    }

    /// The id of this file's locks in [`WAITS`].
    fn at(&self) -> usize {
        core::ptr::from_ref(self).addr()
    }
}

/// Adds a lock to a range in which the owner has no locks, and merges it with adjacent locks of the same kind. The
/// caller has reserved room.
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
    records.push_reserved(new);
}

/// Drops the element at `at`, which mostly is the last one.
fn take_out<T>(list: &mut Vec<T>, at: usize) {
    match at + 1 == list.len() {
        true => list.truncate(at),
        false => drop(list.swap_remove(at)),
    }
}

/// Removes `start..end` from the owner's records, and returns how many records are left. A record that extends beyond
/// both ends is split; the caller has reserved room.
fn cut(records: &mut Vec<Record>, owner: Owner, start: u64, end: u64) -> usize {
    let (mut at, mut left, mut rest) = (0, 0, None);
    while let Some(r) = records.get_mut(at) {
        at += 1;
        if r.owner != owner {
            continue;
        }
        left += 1;
        if r.end <= start || end <= r.start {
            continue;
        }
        if r.start < start && end < r.end {
            rest = Some(Record { start: end, ..*r });
            r.end = start;
        } else if r.start < start {
            r.end = start;
        } else if end < r.end {
            r.start = end;
        } else {
            (at, left) = (at - 1, left - 1);
            take_out(records, at);
        }
    }
    if let Some(rest) = rest {
        records.push_reserved(rest);
        left += 1;
    }
    left
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use crate::test_host::Looks;
    use core::sync::atomic::AtomicUsize;
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
        let looks = Looks::default();
        lock(1, false, &Io::NOW).unwrap();
        lock(2, false, &Io::NOW).unwrap();
        assert_eq!(lock(3, true, &Io::NOW), Err(FsError::WouldBlock));
        std::thread::scope(|s| {
            let waiter = s.spawn(|| lock(3, true, &Io { interrupted: &looks.ask(), ..Io::WAIT }));
            looks.until(1);
            locks.unlock(owner(1), 0, 10).unwrap();
            looks.until(2);
            assert!(!waiter.is_finished());
            locks.release_process(2);
            waiter.join().unwrap().unwrap();
        });
        locks.lock_whole(7, true, &Io::NOW).unwrap();
        assert_eq!(locks.lock_whole(8, false, &Io::NOW), Err(FsError::WouldBlock));
        locks.release_file(7);
        locks.lock_whole(8, false, &Io::NOW).unwrap();
        // An owner that requests the other kind of lock loses its present lock, even if it does not get the new one.
        locks.lock_whole(9, false, &Io::NOW).unwrap();
        assert_eq!(locks.lock_whole(8, true, &Io::NOW), Err(FsError::WouldBlock));
        locks.lock_whole(9, true, &Io::NOW).unwrap();
    }

    /// Waits up to a time limit, so that a failing test ends.
    fn patient() -> Io<'static> {
        Io { deadline: Some(quire_sync::hooks::now() + 10_000_000_000), ..Io::WAIT }
    }

    /// Makes a circle of waiting processes. Its owners are in no other test, because all waiters are in one list.
    fn wait_in_turn(files: &[RecordLocks], first_owner: u64) {
        let record = |i: usize| Record { start: 0, end: 1, exclusive: true, owner: owner(first_owner + i as u64) };
        for (i, locks) in files.iter().enumerate() {
            locks.lock(record(i), &Io::NOW).unwrap();
        }
        let next = |i: usize| &files[(i + 1) % files.len()];
        std::thread::scope(|s| {
            // Each process waits for the next one; the last one would close the circle.
            let waiters: Vec<_> = (0..files.len() - 1)
                .map(|i| {
                    let waiter = s.spawn(move || next(i).lock(record(i), &patient()));
                    while next(i).held.lock().waiting == 0 {
                        std::thread::yield_now();
                    }
                    waiter
                })
                .collect();
            let last = files.len() - 1;
            assert_eq!(next(last).lock(record(last), &Io::NOW), Err(FsError::WouldBlock));
            for _ in 0..3 {
                assert_eq!(next(last).lock(record(last), &patient()), Err(FsError::Deadlock));
            }
            // An open file's lock is part of no circle, as on Linux.
            let by_file = Record { owner: Owner::File(first_owner), ..record(last) };
            let io = Io { deadline: Some(quire_sync::hooks::now() + 20_000_000), ..Io::WAIT };
            assert_eq!(next(last).lock(by_file, &io), Err(FsError::WouldBlock));
            // Each release ends the wait of the process before it in the circle.
            files[last].release_process(first_owner + last as u64);
            for (i, waiter) in waiters.into_iter().enumerate().rev() {
                waiter.join().unwrap().unwrap();
                files.iter().for_each(|locks| locks.release_process(first_owner + i as u64));
            }
        });
        assert!(files.iter().all(|locks| locks.held.lock().waiting == 0));
        let mine = |wait: &Wait| (first_owner..first_owner + files.len() as u64).contains(&wait.process);
        assert!(!WAITS.lock().iter().any(mine));
    }

    #[test]
    fn a_lock_that_would_close_a_cycle_of_waiters_is_refused() {
        for (n, files) in [2, 3, 9].into_iter().enumerate() {
            let files: Vec<_> = (0..files).map(|_| RecordLocks::new()).collect();
            wait_in_turn(&files, 1000 * (n as u64 + 1));
        }
    }

    #[test]
    fn a_released_lock_closes_no_cycle() {
        let (a, b) = (RecordLocks::new(), RecordLocks::new());
        let record = |id, start| Record { start, end: start + 1, exclusive: true, owner: owner(id) };
        let (first, second) = (5001, 5002);
        a.lock(record(first, 0), &Io::NOW).unwrap();
        b.lock(record(second, 0), &Io::NOW).unwrap();
        b.lock(record(5003, 1), &Io::NOW).unwrap();
        std::thread::scope(|s| {
            // The first process waits for the second and for a third.
            let waiter = s.spawn(|| b.lock(Record { end: 2, ..record(first, 0) }, &patient()));
            while b.held.lock().waiting == 0 {
                std::thread::yield_now();
            }
            b.unlock(owner(second), 0, 1).unwrap();
            // Now the first process waits for the third alone, so the second may wait for the first.
            let other = s.spawn(|| a.lock(record(second, 0), &patient()));
            while a.held.lock().waiting == 0 {
                assert!(!other.is_finished(), "a deadlock was reported where there is none");
                std::thread::yield_now();
            }
            a.release_process(first);
            other.join().unwrap().unwrap();
            b.release_process(5003);
            waiter.join().unwrap().unwrap();
        });
    }

    /// The locks of a user: their number on all files, their number on this file, and the user's limit.
    struct Counted<'a>(&'a AtomicUsize, usize, usize);

    impl Charge for Counted<'_> {
        fn resize(&mut self, n: usize) -> bool {
            let others = self.0.load(Ordering::Relaxed) - self.1;
            if n > self.1 && others + n > self.2 {
                return false;
            }
            self.0.store(others + n, Ordering::Relaxed);
            self.1 = n;
            true
        }
    }

    impl Drop for Counted<'_> {
        fn drop(&mut self) {
            self.0.fetch_sub(self.1, Ordering::Relaxed);
        }
    }

    #[test]
    fn a_user_is_charged_for_each_range_on_all_files() {
        const MOST: usize = 8;
        let count = AtomicUsize::new(0);
        let files: [RecordLocks<Counted<'_>>; 2] = [RecordLocks::new(), RecordLocks::new()];
        let charge = |n| {
            let mut new = Counted(&count, 0, MOST);
            new.resize(n).then_some(new)
        };
        let lock = |file: usize, id, start, len| {
            let wanted = Record { start, end: start + len, exclusive: true, owner: owner(id) };
            files[file].lock_charged(wanted, &Io::NOW, &charge)
        };
        let charged = || count.load(Ordering::Relaxed);
        for at in 0..3 {
            lock(0, 9001, 100 * at, 50).unwrap();
            lock(1, 9002, 100 * at, 50).unwrap();
        }
        assert_eq!(charged(), 6);
        files[0].unlock(owner(9001), 10, 20).unwrap();
        assert_eq!(charged(), 7, "a range that is split is two");
        // The lock could split a range of its owner, and needs room for both halves.
        assert_eq!((lock(1, 9002, 400, 1), charged()), (Err(FsError::OutOfMemory), 7));
        // An owner without ranges needs room for one.
        assert_eq!((lock(1, 9003, 400, 1), charged()), (Ok(()), 8));
        assert_eq!((lock(1, 9004, 500, 1), charged()), (Err(FsError::OutOfMemory), 8));
        files[1].release_process(9003);
        lock(0, 9001, 10, 10).unwrap_err();
        files[0].unlock(owner(9001), 200, 250).unwrap();
        lock(0, 9001, 10, 10).unwrap();
        assert_eq!(charged(), 5, "neighbouring ranges are merged");
        assert_eq!(lock(1, 9001, 0, 50), Err(FsError::WouldBlock));
        assert_eq!(charged(), 5, "a refused lock is not charged");
        files[1].release_process(9002);
        assert_eq!(charged(), 2);
        let capacity = |file: usize| files[file].held.lock().records.capacity();
        assert_eq!((capacity(1), files[1].held.lock().charges.capacity()), (0, 0));
        files[0].unlock(owner(9001), 0, 1000).unwrap();
        assert_eq!((charged(), capacity(0) == 0), (0, false), "the memory stays for the next lock");
        files[0].release_process(9001);
        assert_eq!((capacity(0), files[0].held.lock().charges.capacity()), (0, 0), "a close frees it");
        drop(files);
        assert_eq!(charged(), 0);
    }

    proptest! {
        #[test]
        fn ranges_are_locked_byte_by_byte(
            steps in prop::collection::vec((0u64..3, 0u64..20, 1u64..10, 0u8..3), 1..60),
        ) {
            let locks = RecordLocks::new();
            // The owners of each byte: one exclusive owner, or a set of sharing owners.
            let mut model = std::vec![[None::<bool>; 3]; 40];
            for (number, start, len, kind) in steps {
                let end = start + len;
                let bytes = start as usize..end as usize;
                if kind == 2 {
                    locks.unlock(owner(number), start, end).unwrap();
                    model[bytes].iter_mut().for_each(|b| b[number as usize] = None);
                } else {
                    let exclusive = kind == 1;
                    let free = model[bytes.clone()].iter().all(|b| {
                        (0..3).all(|o| o == number as usize || !b[o].is_some_and(|e| e || exclusive))
                    });
                    let record = Record { start, end, exclusive, owner: owner(number) };
                    prop_assert_eq!(locks.test(&record).is_none(), free);
                    prop_assert_eq!(locks.lock(record, &Io::NOW).is_ok(), free);
                    if free {
                        model[bytes].iter_mut().for_each(|b| b[number as usize] = Some(exclusive));
                    }
                }
                let held = locks.held.lock().records.to_vec();
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
