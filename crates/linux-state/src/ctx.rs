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

/// The calling thread and its registers, for a system call handler. Only the kernel entry creates a context, and only
/// for the running thread. So code with a context may use the fields of [`Thread`] as their owner.
pub struct Ctx<'a, M: Machine> {
    /// The Linux layer.
    pub linux: &'static Linux<M>,
    /// The calling thread.
    pub thread: &'a Thread<M>,
    /// The thread's user registers. After the handler has returned, the entry code sets `rax` to the result.
    pub regs: &'a mut UserRegs,
    /// The handler has set all registers itself (`rt_sigreturn`, exec), so the entry code does not store a result in
    /// `rax`.
    pub regs_replaced: bool,
    /// The call must sleep without a stack: see [`Served`](crate::process::sleep::Served).
    pub asleep: bool,
}

impl<'a, M: Machine> Ctx<'a, M> {
    /// The context of the calling thread.
    ///
    /// # Safety
    /// `thread` is the running thread, and no other context of this thread is in use.
    pub unsafe fn new(linux: &'static Linux<M>, thread: &'a Thread<M>, regs: &'a mut UserRegs) -> Self {
        Ctx { linux, thread, regs, regs_replaced: false, asleep: false }
    }

    /// The caller's process.
    pub fn process(&self) -> &'a Arc<Process<M>> {
        &self.thread.process
    }

    /// The caller's address space. ESRCH if the thread has left it.
    pub fn space(&self) -> Result<&Arc<AddressSpace<M>>, Errno> {
        // SAFETY: the thread of a context runs this. Nothing replaces the space while a handler borrows it from `self`.
        unsafe { self.thread.space.get() }.ok_or(Errno::ESRCH)
    }

    /// The caller's table of open files. EBADF if the thread has left it.
    pub fn files(&self) -> Result<&Arc<Files<M>>, Errno> {
        // SAFETY: the thread of a context runs this. Nothing replaces the table while a handler borrows it from `self`.
        unsafe { self.thread.files.get() }.as_ref().ok_or(Errno::EBADF)
    }

    /// The caller's working directory, root and umask. ENOENT if the thread has left them.
    pub fn fs(&self) -> Result<&Arc<FsState<M>>, Errno> {
        // SAFETY: the thread of a context runs this. Nothing replaces the state while a handler borrows it from `self`.
        unsafe { self.thread.fs.get() }.as_ref().ok_or(Errno::ENOENT)
    }

    /// Replaces the caller's table of open files (`unshare`, `close_range`).
    pub fn replace_files(&mut self, new: Arc<Files<M>>) {
        // SAFETY: the thread of a context runs this. `&mut self` ensures that no view of the old table is borrowed.
        drop(unsafe { self.thread.files.replace(Some(new)) });
    }

    /// Replaces the caller's working directory, root and umask (`unshare`).
    pub fn replace_fs(&mut self, new: Arc<FsState<M>>) {
        // SAFETY: the thread of a context runs this. `&mut self` ensures that no view of the old state is borrowed.
        let (old, seen) = unsafe { (self.thread.fs.replace(Some(new)), self.thread.seen.replace(None)) };
        drop((old, seen));
    }

    /// The caller's process id.
    pub fn pid(&self) -> Pid {
        self.thread.process.pid
    }

    /// Stores the state with which `restart_syscall` resumes the call. Returns the error that the caller must return.
    pub fn restart_with(&mut self, how: Restart) -> Errno {
        // SAFETY: the thread of a context runs this, and nothing borrows the old value.
        unsafe { self.thread.restart.replace(Some(how)) };
        Errno::ERESTARTBLOCK
    }

    /// Stores the state of a call that sleeps without a stack, at the latest until `deadline` (in nanoseconds since
    /// boot). Returns the error that the handler must return at once. Programs never see this error.
    #[inline(always)]
    pub fn sleep(&mut self, how: Sleep<M>, deadline: Option<u64>) -> Errno {
        self.thread.park.sleeps_until(deadline);
        // SAFETY: the thread of a context runs this, and nothing borrows the old value.
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
        // SAFETY: the thread of a context runs this. The credentials are replaced only through `&mut self`.
        unsafe { self.thread.credentials.get() }
    }

    /// Whether a wait should end. The call then returns its partial result, or an error such as [`Errno::ERESTARTSYS`]
    /// if it has none.
    pub fn interrupted(&self) -> bool {
        self.thread.interrupted()
    }
}

impl<'a, M: Machine> Ctx<'a, M> {
    /// The caller's user memory.
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
    /// Stores a value in user memory, unless the address is null.
    pub fn write_optional<T: Plain>(&self, to: u64, value: &T) -> Result<(), Errno> {
        if to == 0 { Ok(()) } else { self.write(to, value) }
    }
    /// Reads a path argument from user memory: at most 4095 bytes without the terminating zero. ENAMETOOLONG if the
    /// path is longer.
    pub fn path(&self, from: u64) -> Result<Vec<u8>, Errno> {
        self.user().read_string(from, 4095, Errno::ENAMETOOLONG)
    }
}
