//! The subject of a file in `/proc`: the whole machine, or a process.

use quire_fs::FsError;
use quire_heap::Arc;
use quire_linux_state::memory::Foreign;
use quire_linux_state::process::access::{By, Granted};
use quire_linux_state::process::thread::Name;
use quire_linux_state::{Linux, Machine, Pid, Process};
use quire_task::ThreadRef;

/// The subject of a file about the whole machine.
pub(super) struct System<M: Machine>(pub &'static Linux<M>);

impl<M: Machine> Clone for System<M> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<M: Machine> Copy for System<M> {}

/// The subject of a file about a process, or about one of its threads.
pub(super) struct Task<M: Machine> {
    pub process: Arc<Process<M>>,
    /// The thread's id. For the process as a whole, the process's id.
    pub tid: Pid,
}

impl<M: Machine> Clone for Task<M> {
    fn clone(&self) -> Self {
        Task { process: self.process.clone(), tid: self.tid }
    }
}

impl<M: Machine> Task<M> {
    /// The thread, or any thread of the process if the thread has ended. `None` for a zombie.
    pub fn task(&self) -> Option<ThreadRef<M>> {
        let threads = self.process.threads.lock();
        threads.get(self.tid).or_else(|| threads.any()).cloned()
    }

    /// The thread's memory, for files that all users may read. `None` if the process has left its memory.
    pub fn memory(&self) -> Option<Foreign<M>> {
        self.process.memory_of(self.tid)
    }

    /// Checks whether the calling thread may access the process's memory
    /// ([`access`](quire_linux_state::process::access)). `Denied` if not.
    pub fn look(&self) -> Result<Granted<M>, FsError> {
        let me = self.process.linux.current();
        self.process.look_at(self.tid, me, By::Files).map_err(|_| FsError::Denied)
    }

    /// The result of `f`, which reads files or directories of the process. The calling thread must have access before
    /// and after the call of `f`, and the process must not exec in between. So the result belongs to the program whose
    /// access was checked.
    pub fn taken<R>(&self, f: impl FnOnce(&Granted<M>) -> Result<R, FsError>) -> Result<R, FsError> {
        let before = self.look()?;
        let taken = f(&before)?;
        let after = self.look()?;
        // A thread that has left its memory has also left its files, or is about to leave them.
        if before.is_of_same_program(&after) { Ok(taken) } else { Err(FsError::NotFound) }
    }

    /// The owner of the process's files in `/proc`: root if other processes of the same user may not access the
    /// process.
    pub fn files_owner(&self) -> (u32, u32) {
        // The memory is read before the ids, in the order of `quire_task::powers`. So new ids are never combined with
        // memory that was open under the old ids.
        let memory = self.memory();
        let owner = self.owner();
        if memory.is_some_and(|memory| memory.is_dumpable()) { owner } else { (0, 0) }
    }

    pub fn owner(&self) -> (u32, u32) {
        let c = self.process.credentials_of(self.tid);
        (c.effective_user, c.effective_group)
    }

    pub fn name(&self) -> Name {
        let task = self.task();
        let thread = task.as_ref().and_then(|task| task.payload().as_ref());
        thread.map_or_else(|| self.process.last_name(), |thread| *thread.name.lock())
    }
}

/// The first inode number of the files about process `pid`.
pub(super) fn numbers(pid: Pid) -> u64 {
    u64::from(pid) << 20
}
