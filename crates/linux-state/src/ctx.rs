//! The context of a system call: the calling thread, its registers, and its process's resources.

use crate::base::plain::Plain;
use crate::errno::Errno;
use crate::file::files::Files;
use crate::file::state::FsState;
use crate::machine::Machine;
use crate::memory::AddressSpace;
use crate::process::Process;
use crate::process::credentials::Credentials;
use crate::process::sleep::Sleep;
use crate::process::thread::{Restart, Thread};
use crate::regs::UserRegs;
use crate::user::UserMemory;
use crate::{Linux, Pid};
use quire_heap::{Arc, Vec};

/// Handed to every system call handler: the calling thread and its registers. Only the entry path makes one, for the
/// running thread. The owner's view of [`Thread`]'s fields is safe because of that.
pub struct Ctx<'a, M: Machine> {
    /// The kernel.
    pub linux: &'static Linux<M>,
    /// The calling thread.
    pub thread: &'a Thread<M>,
    /// Its registers; `rax` is set from the handler's result afterwards.
    pub regs: &'a mut UserRegs,
    /// The handler has set all registers itself (`rt_sigreturn`, exec): `rax` stays as it is.
    pub regs_replaced: bool,
    /// The call has to sleep: see [`Served`](crate::process::sleep::Served).
    pub asleep: bool,
}

impl<'a, M: Machine> Ctx<'a, M> {
    /// The context of the calling thread.
    ///
    /// # Safety
    /// `thread` is the running thread, and no other context of it is in use.
    pub unsafe fn new(linux: &'static Linux<M>, thread: &'a Thread<M>, regs: &'a mut UserRegs) -> Self {
        Ctx { linux, thread, regs, regs_replaced: false, asleep: false }
    }

    /// The caller's process.
    pub fn process(&self) -> &'a Arc<Process<M>> {
        &self.thread.process
    }

    /// The caller's address space.
    pub fn space(&self) -> Result<&Arc<AddressSpace<M>>, Errno> {
        // SAFETY: a context is the owner's; nothing replaces the space while a handler borrows it from `self`.
        unsafe { self.thread.space.get() }.ok_or(Errno::ESRCH)
    }

    /// The caller's table of open files.
    pub fn files(&self) -> Result<&Arc<Files<M>>, Errno> {
        // SAFETY: a context is the owner's; nothing replaces the table while a handler borrows it from `self`.
        unsafe { self.thread.files.get() }.as_ref().ok_or(Errno::EBADF)
    }

    /// The caller's working directory, root and umask.
    pub fn fs(&self) -> Result<&Arc<FsState<M>>, Errno> {
        // SAFETY: a context is the owner's; nothing replaces the state while a handler borrows it from `self`.
        unsafe { self.thread.fs.get() }.as_ref().ok_or(Errno::ENOENT)
    }

    /// Gives the caller another table of open files (`unshare`, `close_range`).
    pub fn replace_files(&mut self, new: Arc<Files<M>>) {
        // SAFETY: the owner is here, and `&mut self` means that no view of the old table is borrowed from it.
        drop(unsafe { self.thread.files.replace(Some(new)) });
    }

    /// Gives the caller another working directory and root (`unshare`).
    pub fn replace_fs(&mut self, new: Arc<FsState<M>>) {
        // SAFETY: the owner is here, and `&mut self` means that no view of the old state is borrowed from it.
        let (old, seen) = unsafe { (self.thread.fs.replace(Some(new)), self.thread.seen.replace(None)) };
        drop((old, seen));
    }

    /// The caller's process id.
    pub fn pid(&self) -> Pid {
        self.thread.process.pid
    }

    /// Stores how `restart_syscall` resumes the call, and returns the error for the caller to return.
    pub fn restart_with(&mut self, how: Restart) -> Errno {
        // SAFETY: the owner is here; nothing borrows the old value.
        unsafe { self.thread.restart.replace(Some(how)) };
        Errno::ERESTARTBLOCK
    }

    /// Stores the state of a call that has to sleep, until `deadline` at the latest (in nanoseconds since boot).
    /// Returns the error that the call returns at once; no program gets to see it.
    #[inline(always)]
    pub fn sleep(&mut self, how: Sleep<M>, deadline: Option<u64>) -> Errno {
        self.thread.park.sleeps_until(deadline);
        // SAFETY: the owner is here; nothing borrows the old value.
        unsafe { self.thread.sleep.put(how) };
        self.asleep = true;
        Errno::EINTR
    }

    /// Nanoseconds since boot.
    pub fn now(&self) -> u64 {
        quire_sync::hooks::now()
    }

    /// The caller's credentials.
    pub fn credentials(&self) -> &Credentials {
        // SAFETY: a context is the owner's; `change` alone replaces them, by `&mut`.
        unsafe { self.thread.credentials.get() }
    }

    /// Whether a wait should end: with the partial result, else with [`Errno::ERESTARTSYS`] (or a similar one).
    pub fn interrupted(&self) -> bool {
        self.thread.interrupted()
    }
}

impl<'a, M: Machine> Ctx<'a, M> {
    /// The caller's memory.
    pub fn user(&self) -> UserMemory<'static, M> {
        UserMemory(self.linux.machine)
    }
    /// Loads a value from user memory.
    pub fn read<T: Plain>(&self, from: u64) -> Result<T, Errno> {
        Ok(self.user().read(from)?)
    }
    /// Stores a value in user memory.
    pub fn write<T: Plain>(&self, to: u64, value: &T) -> Result<(), Errno> {
        Ok(self.user().write(to, value)?)
    }
    /// Stores a value unless the address is null.
    pub fn write_optional<T: Plain>(&self, to: u64, value: &T) -> Result<(), Errno> {
        if to == 0 { Ok(()) } else { self.write(to, value) }
    }
    /// A path argument: at most 4095 bytes, not empty of its terminator.
    pub fn path(&self, from: u64) -> Result<Vec<u8>, Errno> {
        self.user().read_string(from, 4095, Errno::ENAMETOOLONG)
    }
}
