//! Users: their numbers of threads, their shares of CPU time, and the kernel memory charged to them.
//!
//! A thread holds a [`UserCharge`] to its real user. The charge counts the thread towards the limit on processes, and
//! keeps the user's record alive. A zombie holds the charge of its first thread until it is reaped, as on Linux.
//!
//! Threads of user 0 are charged to no record, because user 0 has no limit on processes. These threads use the share of
//! CPU time that each CPU has for user 0. Other charges of user 0 go to a record outside the table.
//!
//! The kernel memory that is held for a user is counted in the user's [`Account`]s. A [`Charge`] is an amount in one
//! account. A [`Payer`] belongs to an object that may grow, such as an epoll set. Parts that are added to the object
//! are charged to the payer's user. A charge and a payer keep the user's record alive, even after the user's last
//! thread has ended.
//!
//! A thread that changes its user looks up the new user's record by id in a sorted table. A fork needs no lookup,
//! because it uses the parent's charge. Records that no thread, charge or payer holds are freed by a search, which runs
//! whenever the table has doubled.

use crate::errno::Errno;
use crate::machine::Machine;
use core::alloc::Layout;
use core::ptr::NonNull;
use quire_heap::{Vec, allocate, deallocate};
use quire_sync::atomic::{AtomicU64, Ordering};
use quire_sync::{LimitedCounters, Rank, SpinLock};
use quire_task::User;

/// The number of records at which the first search for unused records runs.
const FIRST_SEARCH: usize = 16;

/// The counted and limited resources of a user.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(usize)]
pub enum Account {
    /// Threads, and zombies: `RLIMIT_NPROC`.
    Threads,
    /// Objects that have a [`Payer`], because parts that are charged to the user may be added to them. No limit.
    Payers,
    /// Pending signals: `RLIMIT_SIGPENDING`.
    Signals,
    /// Pages of pipe buffers: `fs.pipe-user-pages-soft` and `-hard`.
    PipePages,
    /// Files in epoll instances: `fs.epoll.max_user_watches`.
    Watches,
    /// Record locks.
    Locks,
    /// Objects and messages of System V IPC, in units of 64 bytes.
    Ipc,
    /// Pages of locked shared memory segments: `RLIMIT_MEMLOCK`.
    LockedSegments,
    /// Bytes of POSIX message queues: `RLIMIT_MSGQUEUE`.
    PosixQueues,
    /// Files of `inotify_init`: `fs.inotify.max_user_instances`.
    Notifiers,
    /// Watches of inotify files: `fs.inotify.max_user_watches`.
    Notices,
    /// Files in flight in messages of sockets: `RLIMIT_NOFILE`.
    FilesInFlight,
}

impl Account {
    /// The number of accounts.
    const COUNT: usize = Account::FilesInFlight as usize + 1;
}

/// The counts of a user's accounts.
type Accounts = LimitedCounters<{ Account::COUNT }>;

/// The record of one user.
struct Record<M: Machine> {
    id: u32,
    accounts: Accounts,
    /// Forks of the user wait until this time, in nanoseconds since boot, while memory is low. Set when a process of
    /// the user ends for want of memory.
    forks_wait: AtomicU64,
    share: User<M>,
    /// The memory for the per-CPU parts of `accounts` and `share`.
    memory: NonNull<u8>,
    cpus: usize,
}

// SAFETY: the record owns the memory. `LimitedCounters` and `User` define how its content is shared.
unsafe impl<M: Machine> Send for Record<M> {}
// SAFETY: a shared record gives access only to `LimitedCounters` and `User`, which any CPU may use. The memory of a
// record is not freed while a reference to it exists.
unsafe impl<M: Machine> Sync for Record<M> {}

impl<M: Machine> Record<M> {
    fn layout(cpus: usize) -> Result<Layout, Errno> {
        Layout::from_size_align(Accounts::bytes(cpus) + User::<M>::bytes(cpus), 128).map_err(|_| Errno::ENOMEM)
    }

    fn new(id: u32, cpus: usize) -> Result<NonNull<Self>, Errno> {
        let layout = Self::layout(cpus)?;
        let memory = allocate(layout)?;
        let place = allocate(Layout::new::<Self>()).map(NonNull::cast::<Self>).inspect_err(|_| {
            // SAFETY: the memory was allocated above with this layout.
            unsafe { deallocate(memory, layout) };
        })?;
        // SAFETY: the memory has two parts, and the first is a multiple of 128 bytes long. `place` is large enough for
        // a record.
        unsafe {
            let accounts = Accounts::new(memory, cpus);
            let share = User::new(memory.add(Accounts::bytes(cpus)), cpus);
            place.write(Record { id, accounts, forks_wait: AtomicU64::new(0), share, memory, cpus });
        }
        Ok(place)
    }

    /// Whether no thread, charge or payer holds the record. The caller holds the table's lock: a record without threads
    /// gets a new thread only through the table.
    fn is_unused(&self) -> bool {
        // The accounts are read in this order: threads first, because only threads create payers. Payers are next,
        // because only threads and payers create charges.
        (0..Account::COUNT).all(|account| self.accounts.count(account) == 0)
    }

    /// # Safety
    /// `record` came from `new`, and no reference to it is left.
    unsafe fn free(record: NonNull<Self>) {
        // SAFETY: by this function's contract the record is unused. `new` allocated both parts with these layouts.
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
    /// The records, sorted by user id.
    records: Vec<NonNull<Record<M>>>,
    /// The number of records at which the next search for unused records runs.
    search_at: usize,
}

// SAFETY: the table only points to records, which may be shared.
unsafe impl<M: Machine> Send for Table<M> {}

/// The records of all users that have threads. Records of users without threads stay until the next search.
pub struct Users<M: Machine> {
    table: SpinLock<Table<M>>,
    /// The record of user 0, which is never freed.
    root: NonNull<Record<M>>,
    cpus: usize,
}

// SAFETY: the record is `Sync`, and never freed.
unsafe impl<M: Machine> Send for Users<M> {}
// SAFETY: the record is `Sync`, and never freed.
unsafe impl<M: Machine> Sync for Users<M> {}

impl<M: Machine> Users<M> {
    /// A table without records, and the record of user 0, on a machine with `cpus` CPUs.
    pub fn new(cpus: usize) -> Result<Self, Errno> {
        let table = SpinLock::new(Rank::OWNED, Table { records: Vec::new(), search_at: FIRST_SEARCH });
        Ok(Users { table, root: Record::new(0, cpus)?, cpus })
    }

    /// Charges `n` of `account` to the user of `user_charge`. `None` if the user would then exceed `limit`.
    #[inline]
    pub fn charge(&self, user_charge: &UserCharge<M>, account: Account, n: u64, limit: u64) -> Option<Charge> {
        Charge::take(self.accounts(user_charge), account, n, limit)
    }

    /// Makes the user of `user_charge` the payer for an object.
    pub fn payer(&self, user_charge: &UserCharge<M>) -> Payer {
        let accounts = self.accounts(user_charge);
        // SAFETY: the charge keeps the record alive.
        unsafe { accounts.as_ref() }.take(Account::Payers as usize, 1, u64::MAX);
        Payer(accounts)
    }

    /// The present count of `account` for the user of `user_charge`. Slow, because it reads a cache line of each CPU.
    pub fn charged(&self, user_charge: &UserCharge<M>, account: Account) -> u64 {
        // SAFETY: the charge keeps the record alive.
        unsafe { self.accounts(user_charge).as_ref() }.count(account as usize)
    }

    fn accounts(&self, user_charge: &UserCharge<M>) -> NonNull<Accounts> {
        // SAFETY: the charge keeps its record alive, and the record of user 0 is never freed.
        NonNull::from(unsafe { &user_charge.0.unwrap_or(self.root).as_ref().accounts })
    }

    /// Charges user `id` for a thread that changes to this user. The charge may exceed the limit on processes, because
    /// Linux does not refuse a change of user for this limit either. ENOMEM if the user is new and there is no memory.
    pub fn charge_thread(&self, id: u32) -> Result<UserCharge<M>, Errno> {
        if id == 0 {
            return Ok(UserCharge::root());
        }
        // A record is allocated before the table's lock is acquired, because the allocation may acquire other locks.
        let mut new = None;
        let user_charge = loop {
            let mut table = self.table.lock();
            // SAFETY: a record in the table is alive.
            match table.records.binary_search_by_key(&id, |record| unsafe { record.as_ref() }.id) {
                Ok(at) => {
                    let record = table.records[at];
                    // SAFETY: the record is in the table, whose lock keeps it alive. From here on the charge keeps it
                    // alive.
                    unsafe { record.as_ref() }.accounts.take(Account::Threads as usize, 1, u64::MAX);
                    break UserCharge(Some(record));
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
                        // SAFETY: the record was made above and added to no table, so only this thread has it.
                        new.into_iter().for_each(|record| unsafe { Record::free(record) });
                        return Err(error);
                    }
                }
            }
        };
        // If another thread has added a record for this user first, the new record is not needed. SAFETY: the new
        // record was made above and added to no table, so only this thread has it.
        new.into_iter().for_each(|record| unsafe { Record::free(record) });
        Ok(user_charge)
    }

    /// Ensures that the table has room for more than `used` records.
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

    /// Frees all unused records.
    fn forget_unused(&self) {
        loop {
            let mut table = self.table.lock();
            // SAFETY: a record in the table is alive.
            let unused = table.records.iter().position(|record| unsafe { record.as_ref() }.is_unused());
            let Some(at) = unused else {
                table.search_at = FIRST_SEARCH.max(2 * table.records.len());
                return;
            };
            let record = table.records.remove(at);
            drop(table);
            // SAFETY: the record is no longer in the table, and no charge holds it. The thread that returned the last
            // charge does not use it any more.
            unsafe { Record::free(record) };
        }
    }
}

/// The charge of a thread or zombie to its user.
pub struct UserCharge<M: Machine>(Option<NonNull<Record<M>>>);

// SAFETY: the charge keeps a record alive, and the record is `Sync`.
unsafe impl<M: Machine> Send for UserCharge<M> {}
// SAFETY: a shared charge gives a reference to a record, which is `Sync`.
unsafe impl<M: Machine> Sync for UserCharge<M> {}

impl<M: Machine> UserCharge<M> {
    /// The charge of a thread of user 0, or of a thread that no longer has a user.
    pub const fn root() -> Self {
        UserCharge(None)
    }

    fn record(&self) -> Option<&Record<M>> {
        // SAFETY: the charge is counted in the record, which is not freed while a count is above 0.
        self.0.map(|record| unsafe { record.as_ref() })
    }

    /// A further charge to the same user. EAGAIN if the user already has `limit` threads.
    pub fn another(&self, limit: u64) -> Result<Self, Errno> {
        match self.record() {
            Some(record) if !record.accounts.take(Account::Threads as usize, 1, limit) => Err(Errno::EAGAIN),
            _ => Ok(UserCharge(self.0)),
        }
    }

    /// Makes forks of the user wait until `time`, in nanoseconds since boot, while memory is low. Forks of user 0 never
    /// wait.
    pub fn make_forks_wait(&self, time: u64) {
        if let Some(record) = self.record() {
            record.forks_wait.store(time, Ordering::Relaxed);
        }
    }

    /// The time up to which forks of the user wait while memory is low; 0 if they do not wait.
    #[inline]
    pub fn forks_wait(&self) -> u64 {
        self.record().map_or(0, |record| record.forks_wait.load(Ordering::Relaxed))
    }

    /// Whether the user is user 0.
    pub fn is_root(&self) -> bool {
        self.0.is_none()
    }

    /// Whether the user has more than `limit` threads.
    pub fn exceeds(&self, limit: u64) -> bool {
        self.record().is_some_and(|record| record.accounts.count(Account::Threads as usize) > limit)
    }

    /// The scheduler's record of the user's share of CPU time. `None` for user 0.
    pub fn share(&self) -> Option<NonNull<User<M>>> {
        self.record().map(|record| NonNull::from(&record.share))
    }
}

impl<M: Machine> Drop for UserCharge<M> {
    fn drop(&mut self) {
        if let Some(record) = self.record() {
            record.accounts.put(Account::Threads as usize, 1);
        }
    }
}

/// An amount charged to one account of a user, until it is dropped.
pub struct Charge {
    accounts: NonNull<Accounts>,
    account: Account,
    n: u64,
}

// SAFETY: the charge keeps its user's counters alive, and they are `Sync`.
unsafe impl Send for Charge {}
// SAFETY: the charge keeps its user's counters alive, and they are `Sync`.
unsafe impl Sync for Charge {}

impl Charge {
    /// # Requires
    /// The caller keeps the user's record alive.
    #[inline]
    fn take(accounts: NonNull<Accounts>, account: Account, n: u64, limit: u64) -> Option<Self> {
        // SAFETY: the caller keeps the record alive.
        let taken = unsafe { accounts.as_ref() }.take(account as usize, n, limit);
        // Not `then_some`: it would build and drop a charge that was refused, and the drop would give back the amount.
        taken.then(|| Charge { accounts, account, n })
    }

    /// The amount.
    pub fn n(&self) -> u64 {
        self.n
    }

    /// Changes the amount to `n`, which is not 0. If an increase would exceed the user's `limit`, changes nothing and
    /// returns `false`.
    pub fn resize(&mut self, n: u64, limit: u64) -> bool {
        debug_assert!(n > 0 && self.n > 0);
        // SAFETY: the charge keeps the record alive, because a part of the amount remains all the time.
        let accounts = unsafe { self.accounts.as_ref() };
        if n > self.n && !accounts.take(self.account as usize, n - self.n, limit) {
            return false;
        }
        if n < self.n {
            accounts.put(self.account as usize, self.n - n);
        }
        self.n = n;
        true
    }
}

impl Drop for Charge {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: the charge keeps the record alive.
        unsafe { self.accounts.as_ref() }.put(self.account as usize, self.n);
    }
}

/// The user to charge for the parts of an object. The object holds this value until its end.
pub struct Payer(NonNull<Accounts>);

// SAFETY: the payer keeps its user's counters alive, and they are `Sync`.
unsafe impl Send for Payer {}
// SAFETY: the payer keeps its user's counters alive, and they are `Sync`.
unsafe impl Sync for Payer {}

impl Payer {
    /// Charges `n` of `account`. `None` if the user would then exceed `limit`.
    #[inline]
    pub fn charge(&self, account: Account, n: u64, limit: u64) -> Option<Charge> {
        Charge::take(self.0, account, n, limit)
    }
}

impl Drop for Payer {
    fn drop(&mut self) {
        // SAFETY: the payer keeps the record alive.
        unsafe { self.0.as_ref() }.put(Account::Payers as usize, 1);
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
pub(crate) mod testing {
    //! A user's accounts for tests without a machine.

    use super::{Account, Accounts, Charge};
    use core::alloc::Layout;
    use core::ptr::NonNull;
    use quire_heap::allocate;

    /// The accounts of one user, which are never freed.
    pub struct Counted(NonNull<Accounts>);

    impl Counted {
        /// Accounts without charges, on one CPU.
        pub fn new() -> Self {
            quire_sync::hooks::threads::set_cpu(0);
            let layout = Layout::from_size_align(Accounts::bytes(1), 128).expect("a layout");
            let memory = allocate(layout).expect("memory");
            // SAFETY: the memory is fresh, has that size and is never freed.
            let accounts = unsafe { Accounts::new(memory, 1) };
            Counted(NonNull::from(quire_heap::try_leak(accounts).expect("memory")))
        }

        /// Charges one signal; `None` if `limit` signals are charged already.
        pub fn signal(&self, limit: u64) -> Option<Charge> {
            Charge::take(self.0, Account::Signals, 1, limit)
        }

        /// The number of charged signals.
        pub fn signals(&self) -> u64 {
            // SAFETY: the counts were leaked by `new`.
            unsafe { self.0.as_ref() }.count(Account::Signals as usize)
        }
    }
}
