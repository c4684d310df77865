//! Users: how many threads each has, and their shares of CPU time.
//!
//! A thread holds a [`Permit`] of its real user. The permit counts the thread towards the limit on processes, and keeps the user's
//! record. A process's zombie holds that of its first thread until it was waited for, as Linux counts.
//!
//! User 0 has no record: it has no limit, and has part in the share of CPU time that each CPU keeps.
//!
//! Records are found by id in a sorted table, at changes of ids only; a fork has its parent's permit. A record that no thread holds is
//! freed when the table has doubled since the last search for such records.

use crate::errno::Errno;
use crate::machine::Machine;
use crate::rank;
use core::alloc::Layout;
use core::ptr::NonNull;
use quire_heap::{Vec, allocate, deallocate};
use quire_sync::{Headcount, SpinLock};
use quire_task::User;

/// The first search for records that are not used comes at this many.
const FIRST_SEARCH: usize = 16;

/// One user.
struct Record<M: Machine> {
    id: u32,
    threads: Headcount,
    share: User<M>,
    /// Where the two have their parts for each CPU.
    memory: NonNull<u8>,
    cpus: usize,
}

// SAFETY: the memory is the record's own; what is in it is shared as `Headcount` and `User` say.
unsafe impl<M: Machine> Send for Record<M> {}
// SAFETY: as above.
unsafe impl<M: Machine> Sync for Record<M> {}

impl<M: Machine> Record<M> {
    fn layout(cpus: usize) -> Result<Layout, Errno> {
        Layout::from_size_align(Headcount::bytes(cpus) + User::<M>::bytes(cpus), 128).map_err(|_| Errno::ENOMEM)
    }

    fn new(id: u32, cpus: usize) -> Result<NonNull<Self>, Errno> {
        let layout = Self::layout(cpus)?;
        let memory = allocate(layout)?;
        let place = allocate(Layout::new::<Self>()).map(NonNull::cast::<Self>).inspect_err(|_| {
            // SAFETY: allocated above with this layout.
            unsafe { deallocate(memory, layout) };
        })?;
        // SAFETY: the two parts of that memory, the first of which is a multiple of 128 bytes long; `place` is for a record.
        unsafe {
            let threads = Headcount::new(memory, cpus);
            let share = User::new(memory.add(Headcount::bytes(cpus)), cpus);
            place.write(Record { id, threads, share, memory, cpus });
        }
        Ok(place)
    }

    /// # Safety
    /// It came from `new`, and nobody uses it any more.
    unsafe fn free(record: NonNull<Self>) {
        // SAFETY: the caller's word; `new` allocated both with these layouts.
        unsafe {
            let Record { memory, cpus, .. } = record.read();
            deallocate(record.cast(), Layout::new::<Self>());
            if let Ok(layout) = Self::layout(cpus) {
                deallocate(memory, layout);
            }
        }
    }
}

struct Table<M: Machine> {
    /// By id.
    records: Vec<NonNull<Record<M>>>,
    /// The number of records at which those that are not used are searched for.
    search_at: usize,
}

// SAFETY: records are shared; the table only points to them.
unsafe impl<M: Machine> Send for Table<M> {}

/// All users that have threads, and some that had.
pub struct Users<M: Machine> {
    table: SpinLock<Table<M>>,
    cpus: usize,
}

impl<M: Machine> Users<M> {
    /// None, on a machine of `cpus` CPUs.
    pub fn new(cpus: usize) -> Self {
        Users { table: SpinLock::new(rank::OWNED, Table { records: Vec::new(), search_at: FIRST_SEARCH }), cpus }
    }

    /// A permit of user `id` for a thread that becomes its. Whatever the limit is: as on Linux, who becomes another user is not refused
    /// for it. ENOMEM where the user is new and there is no memory.
    pub(crate) fn permit(&self, id: u32) -> Result<Permit<M>, Errno> {
        if id == 0 {
            return Ok(Permit::root());
        }
        // Before the lock: an allocation may need other locks.
        let mut new = None;
        let permit = loop {
            let mut table = self.table.lock();
            // SAFETY: a record in the table is alive.
            match table.records.binary_search_by_key(&id, |record| unsafe { record.as_ref() }.id) {
                Ok(at) => {
                    let record = table.records[at];
                    // SAFETY: as above; under the table's lock nobody frees it, and from here on the permit keeps it.
                    unsafe { record.as_ref() }.threads.take(u64::MAX);
                    break Permit(Some(record));
                }
                Err(at) if new.is_some() && table.records.len() < table.records.capacity() => {
                    let Some(record) = new.take() else { continue };
                    table.records.insert_reserved(at, record);
                }
                Err(_) => {
                    let (used, search) = (table.records.len(), table.records.len() >= table.search_at);
                    drop(table);
                    if search {
                        self.forget_unused();
                    }
                    if new.is_none() {
                        new = Some(Record::new(id, self.cpus)?);
                    }
                    if let Err(error) = self.make_room(used) {
                        // SAFETY: nobody has seen it.
                        new.into_iter().for_each(|record| unsafe { Record::free(record) });
                        return Err(error);
                    }
                }
            }
        };
        // Another thread was first.
        // SAFETY: nobody has seen it.
        new.into_iter().for_each(|record| unsafe { Record::free(record) });
        Ok(permit)
    }

    /// Sees to it that the table has room for more than `used` records.
    fn make_room(&self, used: usize) -> Result<(), Errno> {
        if self.table.lock().records.capacity() > used {
            return Ok(());
        }
        let mut larger = Vec::new();
        larger.try_reserve(2 * used + 4)?;
        let mut table = self.table.lock();
        if larger.capacity() > table.records.len() {
            larger.extend_reserved(&table.records);
            core::mem::swap(&mut larger, &mut table.records);
        }
        drop(table);
        Ok(())
    }

    /// Frees the records that no thread holds.
    fn forget_unused(&self) {
        loop {
            let mut table = self.table.lock();
            // SAFETY: a record in the table is alive. One that no thread holds can be held again through the table only, which
            // is locked.
            let unused = table.records.iter().position(|record| unsafe { record.as_ref() }.threads.count() == 0);
            let Some(at) = unused else {
                table.search_at = FIRST_SEARCH.max(2 * table.records.len());
                return;
            };
            let record = table.records.remove(at);
            drop(table);
            // SAFETY: it is in the table no more, and no thread holds it; who put the last permit back is done with it.
            unsafe { Record::free(record) };
        }
    }
}

/// A thread's, or a zombie's, part in its user.
pub(crate) struct Permit<M: Machine>(Option<NonNull<Record<M>>>);

// SAFETY: it keeps a record that is `Sync`.
unsafe impl<M: Machine> Send for Permit<M> {}
// SAFETY: as above.
unsafe impl<M: Machine> Sync for Permit<M> {}

impl<M: Machine> Permit<M> {
    /// That of user 0, and of what has no user any more.
    pub(crate) const fn root() -> Self {
        Permit(None)
    }

    fn record(&self) -> Option<&Record<M>> {
        // SAFETY: the permit keeps it.
        self.0.map(|record| unsafe { record.as_ref() })
    }

    /// One more of the same user. EAGAIN where the user has `limit` already.
    pub(crate) fn another(&self, limit: u64) -> Result<Self, Errno> {
        match self.record() {
            Some(record) if !record.threads.take(limit) => Err(Errno::EAGAIN),
            _ => Ok(Permit(self.0)),
        }
    }

    /// Whether the user has more than `limit`.
    pub(crate) fn exceeds(&self, limit: u64) -> bool {
        self.record().is_some_and(|record| record.threads.count() > limit)
    }

    /// Whose share of CPU time it gives.
    pub(crate) fn share(&self) -> Option<NonNull<User<M>>> {
        self.record().map(|record| NonNull::from(&record.share))
    }
}

impl<M: Machine> Drop for Permit<M> {
    fn drop(&mut self) {
        if let Some(record) = self.record() {
            record.threads.put();
        }
    }
}
