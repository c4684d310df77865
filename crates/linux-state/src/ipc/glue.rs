//! Implements the host of `quire_ipc` for this kernel: the clock, the calling process, and the accounts of users.

use crate::ipc::host::{IpcCharge, IpcHost};
use crate::process::credentials::Credentials;
use crate::process::credentials::capabilities::cap;
use crate::process::limits::{INFINITY, which};
use crate::process::thread::Thread;
use crate::process::users::Account;
use crate::{Ctx, Machine};
use quire_fs::Host as _;
use quire_ipc::{Caller, Host};
use quire_sync::epoch::Domain;
use quire_vm::PAGE_SIZE;

/// The bytes of one unit of the account for IPC.
const UNIT: u64 = 64;
/// The objects and messages of a user may use one `PART`th of memory.
const PART: u64 = 16;

impl<M: Machine> IpcHost<M> {
    /// The calling thread. `None` if the kernel itself calls.
    fn thread(&self) -> Option<&'static Thread<M>> {
        let linux = self.0.linux()?;
        let task = quire_task::Machine::current(linux.machine);
        // SAFETY: the machine returns the running thread, which lives while it runs. The caller does not use the
        // reference after its system call.
        unsafe { (*task).payload() }.as_ref()
    }

    /// Charges `n` units of `account` to the caller's user. The limit is `most`, or none if the caller has
    /// `capability`.
    fn charge_to(
        &self,
        account: Account,
        n: u64,
        capability: u32,
        most: impl FnOnce(&Thread<M>) -> u64,
    ) -> Option<IpcCharge> {
        let thread = self.thread()?;
        // SAFETY: the calling thread reads its own fields.
        let (user_charge, own) = unsafe { (thread.user_charge.get(), thread.credentials.get()) };
        let most = if own.may(capability) { INFINITY } else { most(thread) };
        thread.linux.users.charge(user_charge, account, n, most).map(IpcCharge::new)
    }
}

impl<M: Machine> Host for IpcHost<M> {
    type Charge = IpcCharge;

    fn epoch(&self) -> &'static Domain {
        self.0.epoch()
    }

    fn seconds(&self) -> i64 {
        self.0.realtime().seconds
    }

    fn pid(&self) -> u32 {
        self.thread().map_or(0, |thread| thread.process.pid)
    }

    fn charge(&self, bytes: u64) -> Option<IpcCharge> {
        let most = |thread: &Thread<M>| thread.linux.vm.frames().total() * PAGE_SIZE / PART / UNIT;
        self.charge_to(Account::Ipc, bytes.div_ceil(UNIT), cap::SYS_RESOURCE, most)
    }

    fn charge_queue(&self, bytes: u64) -> Option<IpcCharge> {
        let thread = self.thread()?;
        let limit = thread.process.soft_limit(which::MSGQUEUE);
        // SAFETY: the calling thread reads its own field.
        let user_charge = unsafe { thread.user_charge.get() };
        thread.linux.users.charge(user_charge, Account::PosixQueues, bytes, limit).map(IpcCharge::new)
    }

    fn charge_locked(&self, bytes: u64) -> Option<IpcCharge> {
        let limit = |thread: &Thread<M>| thread.process.soft_limit(which::MEMLOCK) / PAGE_SIZE;
        self.charge_to(Account::LockedSegments, bytes / PAGE_SIZE, cap::IPC_LOCK, limit)
    }
}

impl<M: Machine> Ctx<'_, M> {
    /// Calls `with` with the calling thread's file-system ids and capabilities. [`as_caller`](Self::as_caller) passes
    /// the effective ids.
    pub fn as_file_caller<R>(&self, with: impl FnOnce(&Caller<'_>) -> R) -> R {
        let own = self.credentials();
        let (user, group) = (own.file_user, own.file_group);
        let ignores_modes = own.may(cap::DAC_OVERRIDE);
        self.as_caller(|caller| with(&Caller { user, group, ignores_modes, ..*caller }))
    }

    /// Calls `with` with the calling thread's ids and capabilities, in the form that `quire_ipc` needs.
    pub fn as_caller<R>(&self, with: impl FnOnce(&Caller<'_>) -> R) -> R {
        let own: &Credentials = self.credentials();
        let in_group = |group: u32| {
            own.file_group == group || own.groups.as_ref().is_some_and(|groups| groups.binary_search(&group).is_ok())
        };
        with(&Caller {
            user: own.effective_user,
            group: own.effective_group,
            in_group: &in_group,
            ignores_modes: own.may(cap::IPC_OWNER),
            administers: own.may(cap::SYS_ADMIN),
            locks: own.may(cap::IPC_LOCK),
            exceeds: own.may(cap::SYS_RESOURCE),
        })
    }
}
