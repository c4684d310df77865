//! Users: their numbers of threads, their shares of CPU time, and the kernel memory charged to them.
//!
//! A thread holds a [`UserCharge`] of its real user. The charge counts the thread towards the limit on processes, and
//! keeps the user's record. A zombie holds the charge of its first thread until it is reaped, as Linux counts.
//!
//! User 0's charges for threads name no record: it has no limit on processes, and uses the share of CPU time that each
//! CPU keeps. Its other charges go to a record beside the table.
//!
//! Kernel memory held for a user is counted in its [`Account`]s. A [`Charge`] is a part of an account; a [`Payer`] is
//! an object of the user's, for which more will be charged later. Both keep the record, even after the user's last
//! thread has ended.
//!
//! Records are looked up by id in a sorted table, at changes of ids only; a fork uses its parent's charge. A record
//! that no thread, charge or payer holds is freed when the table has doubled since the last search for such records.

use crate::errno::Errno;
use crate::machine::Machine;
use core::alloc::Layout;
use core::ptr::NonNull;
use quire_heap::{Vec, allocate, deallocate};
use quire_sync::{LimitedCounters, Rank, SpinLock};
use quire_task::User;

/// The number of records at which unused ones are first searched for.
const FIRST_SEARCH: usize = 16;

/// The counted and limited resources of a user.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(usize)]
pub enum Account {
    /// Threads, and zombies: `RLIMIT_NPROC`.
    Threads,
    /// Objects for which more will be charged. They have no limit of their own.
    Payers,
    /// Pending signals: `RLIMIT_SIGPENDING`.
    Signals,
    /// Pages of the rings of pipes: `fs.pipe-user-pages-soft` and `-hard`.
    PipePages,
    /// Files in epoll sets: `fs.epoll.max_user_watches`.
    Watches,
    /// Record locks.
    Locks,
    /// Objects and messages of System V IPC, in units of 64 bytes.
    Ipc,
    /// Pages of segments that are kept in memory: `RLIMIT_MEMLOCK`.
    LockedSegments,
    /// Bytes of POSIX message queues: `RLIMIT_MSGQUEUE`.
    PosixQueues,
    /// Files of `inotify_init`: `fs.inotify.max_user_instances`.
    Notifiers,
    /// Their watches: `fs.inotify.max_user_watches`.
    Notices,
    /// Files in flight, which messages carry: `RLIMIT_NOFILE`.
    FilesInFlight,
}

impl Account {
    /// The number of accounts.
    const COUNT: usize = Account::FilesInFlight as usize + 1;
}

/// The counts of a user's accounts.
type Accounts = LimitedCounters<{ Account::COUNT }>;

/// One user.
struct Record<M: Machine> {
    id: u32,
    accounts: Accounts,
    share: User<M>,
    /// The per-CPU parts of both.
    memory: NonNull<u8>,
    cpus: usize,
}

// SAFETY: the memory is the record's own; its content is shared by the rules of `LimitedCounters` and `User`.
unsafe impl<M: Machine> Send for Record<M> {}
// SAFETY: a shared record gives `LimitedCounters` and `User`, which any CPU may use, and its memory stays.
unsafe impl<M: Machine> Sync for Record<M> {}

impl<M: Machine> Record<M> {
    fn layout(cpus: usize) -> Result<Layout, Errno> {
        Layout::from_size_align(Accounts::bytes(cpus) + User::<M>::bytes(cpus), 128).map_err(|_| Errno::ENOMEM)
    }

    fn new(id: u32, cpus: usize) -> Result<NonNull<Self>, Errno> {
        let layout = Self::layout(cpus)?;
        let memory = allocate(layout)?;
        let place = allocate(Layout::new::<Self>()).map(NonNull::cast::<Self>).inspect_err(|_| {
            // SAFETY: allocated above with this layout.
            unsafe { deallocate(memory, layout) };
        })?;
        // SAFETY: the two parts of that memory, the first of which is a multiple of 128 bytes long; `place` is for a
        // record.
        unsafe {
            let accounts = Accounts::new(memory, cpus);
            let share = User::new(memory.add(Accounts::bytes(cpus)), cpus);
            place.write(Record { id, accounts, share, memory, cpus });
        }
        Ok(place)
    }

    /// Whether no thread, charge or payer holds it. The caller has locked the table: only by it a record without
    /// threads gets new ones.
    fn is_unused(&self) -> bool {
        // Threads first, because only they make payers; then payers, because only those two make new charges.
        (0..Account::COUNT).all(|account| self.accounts.count(account) == 0)
    }

    /// # Safety
    /// It came from `new`, and no reference to it is left.
    unsafe fn free(record: NonNull<Self>) {
        // SAFETY: by this function's contract; `new` allocated both with these layouts.
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
    /// The number of records at which unused ones are searched for.
    search_at: usize,
}

// SAFETY: records are shared; the table only points to them.
unsafe impl<M: Machine> Send for Table<M> {}

/// All users with threads, and some that had threads.
pub struct Users<M: Machine> {
    table: SpinLock<Table<M>>,
    /// The record of user 0, never freed.
    root: NonNull<Record<M>>,
    cpus: usize,
}

// SAFETY: the record is `Sync`, and never freed.
unsafe impl<M: Machine> Send for Users<M> {}
// SAFETY: the record is `Sync`, and never freed.
unsafe impl<M: Machine> Sync for Users<M> {}

impl<M: Machine> Users<M> {
    /// User 0 alone, on a machine of `cpus` CPUs.
    pub fn new(cpus: usize) -> Result<Self, Errno> {
        let table = SpinLock::new(Rank::OWNED, Table { records: Vec::new(), search_at: FIRST_SEARCH });
        Ok(Users { table, root: Record::new(0, cpus)?, cpus })
    }

    /// Charges `n` of `account` to the user of `user_charge`. `None` if the user would then exceed `limit`.
    #[inline]
    pub fn charge(&self, user_charge: &UserCharge<M>, account: Account, n: u64, limit: u64) -> Option<Charge> {
        Charge::take(self.accounts(user_charge), account, n, limit)
    }

    /// The user of `user_charge`, as the payer for an object.
    pub fn payer(&self, user_charge: &UserCharge<M>) -> Payer {
        let accounts = self.accounts(user_charge);
        // SAFETY: the charge keeps the record.
        unsafe { accounts.as_ref() }.take(Account::Payers as usize, 1, u64::MAX);
        Payer(accounts)
    }

    /// The count of `account` for the user of `user_charge` at this moment. Slow: it reads each CPU's line.
    pub fn charged(&self, user_charge: &UserCharge<M>, account: Account) -> u64 {
        // SAFETY: the charge keeps the record.
        unsafe { self.accounts(user_charge).as_ref() }.count(account as usize)
    }

    fn accounts(&self, user_charge: &UserCharge<M>) -> NonNull<Accounts> {
        // SAFETY: the charge keeps its record; that of user 0 is for ever.
        NonNull::from(unsafe { &user_charge.0.unwrap_or(self.root).as_ref().accounts })
    }

    /// Charges user `id` for a thread that changes to it. The limit is ignored: as on Linux, a change of user is
    /// not refused for it. ENOMEM if the user is new and there is no memory.
    pub fn charge_thread(&self, id: u32) -> Result<UserCharge<M>, Errno> {
        if id == 0 {
            return Ok(UserCharge::root());
        }
        // Before the lock: an allocation may need other locks.
        let mut new = None;
        let user_charge = loop {
            let mut table = self.table.lock();
            // SAFETY: a record in the table is alive.
            match table.records.binary_search_by_key(&id, |record| unsafe { record.as_ref() }.id) {
                Ok(at) => {
                    let record = table.records[at];
                    // SAFETY: the record is in the table, whose lock keeps it from being freed; from here on the charge
                    // does.
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
                        // SAFETY: the record was made above and put into no table, so this thread has it alone.
                        new.into_iter().for_each(|record| unsafe { Record::free(record) });
                        return Err(error);
                    }
                }
            }
        };
        // Another thread made it first. SAFETY: the record was made above and put into no table, so this thread has it
        // alone.
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

    /// Frees the unused records.
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
            // SAFETY: it is no longer in the table, and nothing holds it; the thread that returned the last part is
            // done with it.
            unsafe { Record::free(record) };
        }
    }
}

/// The charge of a thread or zombie to its user.
pub struct UserCharge<M: Machine>(Option<NonNull<Record<M>>>);

// SAFETY: it keeps a record that is `Sync`.
unsafe impl<M: Machine> Send for UserCharge<M> {}
// SAFETY: a shared charge gives a reference to a record, which is `Sync`.
unsafe impl<M: Machine> Sync for UserCharge<M> {}

impl<M: Machine> UserCharge<M> {
    /// The charge of user 0, and of threads that have left their user.
    pub const fn root() -> Self {
        UserCharge(None)
    }

    fn record(&self) -> Option<&Record<M>> {
        // SAFETY: the charge counts in the record, which is not freed while its count is above 0.
        self.0.map(|record| unsafe { record.as_ref() })
    }

    /// Another charge to the same user. EAGAIN if the user has `limit` already.
    pub fn another(&self, limit: u64) -> Result<Self, Errno> {
        match self.record() {
            Some(record) if !record.accounts.take(Account::Threads as usize, 1, limit) => Err(Errno::EAGAIN),
            _ => Ok(UserCharge(self.0)),
        }
    }

    /// Whether the user has more than `limit` threads.
    pub fn exceeds(&self, limit: u64) -> bool {
        self.record().is_some_and(|record| record.accounts.count(Account::Threads as usize) > limit)
    }

    /// The scheduler's user whose share of CPU time it uses.
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

// SAFETY: it keeps counts that are `Sync`.
unsafe impl Send for Charge {}
// SAFETY: it keeps counts that are `Sync`.
unsafe impl Sync for Charge {}

impl Charge {
    /// # Requires
    /// The caller keeps the record.
    #[inline]
    fn take(accounts: NonNull<Accounts>, account: Account, n: u64, limit: u64) -> Option<Self> {
        // SAFETY: the caller keeps the record.
        let taken = unsafe { accounts.as_ref() }.take(account as usize, n, limit);
        // Not `then_some`: a charge that was not taken must not be dropped.
        taken.then(|| Charge { accounts, account, n })
    }

    /// The amount.
    pub fn n(&self) -> u64 {
        self.n
    }

    /// Changes the amount to `n`, which is not 0. If the user would then exceed `limit` by an increase, it changes
    /// nothing and returns `false`.
    pub fn resize(&mut self, n: u64, limit: u64) -> bool {
        debug_assert!(n > 0 && self.n > 0);
        // SAFETY: the charge keeps the record, since some of it is left all the time.
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
        // SAFETY: the charge keeps the record.
        unsafe { self.accounts.as_ref() }.put(self.account as usize, self.n);
    }
}

/// A user who is charged for an object's parts, until the object is dropped.
pub struct Payer(NonNull<Accounts>);

// SAFETY: it keeps counts that are `Sync`.
unsafe impl Send for Payer {}
// SAFETY: it keeps counts that are `Sync`.
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
        // SAFETY: the payer keeps the record.
        unsafe { self.0.as_ref() }.put(Account::Payers as usize, 1);
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
pub(crate) mod testing {
    //! A user without a machine.

    use super::{Account, Accounts, Charge};
    use core::alloc::Layout;
    use core::ptr::NonNull;
    use quire_heap::allocate;

    /// A user's accounts, never freed.
    pub struct Counted(NonNull<Accounts>);

    impl Counted {
        /// Nothing charged, on one CPU.
        pub fn new() -> Self {
            quire_sync::hooks::threads::set_cpu(0);
            let layout = Layout::from_size_align(Accounts::bytes(1), 128).expect("a layout");
            let memory = allocate(layout).expect("memory");
            // SAFETY: fresh memory of that size, never freed.
            let accounts = unsafe { Accounts::new(memory, 1) };
            Counted(NonNull::from(quire_heap::try_leak(accounts).expect("memory")))
        }

        /// Charges one signal, if there are fewer than `limit`.
        pub fn signal(&self, limit: u64) -> Option<Charge> {
            Charge::take(self.0, Account::Signals, 1, limit)
        }

        /// How many signals are charged.
        pub fn signals(&self) -> u64 {
            // SAFETY: the counts were leaked by `new`.
            unsafe { self.0.as_ref() }.count(Account::Signals as usize)
        }
    }
}
