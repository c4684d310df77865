//! The subject of a file of `/proc`: the whole machine, or a process.

use quire_fs::FsError;
use quire_heap::Arc;
use quire_linux_state::memory::Foreign;
use quire_linux_state::process::access::{By, Granted};
use quire_linux_state::process::thread::Name;
use quire_linux_state::{Linux, Machine, Pid, Process};
use quire_task::ThreadRef;

/// The whole machine.
pub(super) struct System<M: Machine>(pub &'static Linux<M>);

impl<M: Machine> Clone for System<M> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<M: Machine> Copy for System<M> {}

/// A process, or one thread of it.
pub(super) struct Task<M: Machine> {
    pub process: Arc<Process<M>>,
    /// The thread's id; the process's id for the process as a whole.
    pub tid: Pid,
}

impl<M: Machine> Clone for Task<M> {
    fn clone(&self) -> Self {
        Task { process: self.process.clone(), tid: self.tid }
    }
}

impl<M: Machine> Task<M> {
    /// The thread, or any thread if the first one has ended. `None` for a zombie.
    pub fn task(&self) -> Option<ThreadRef<M>> {
        let threads = self.process.threads.lock();
        threads.get(self.tid).or_else(|| threads.any()).cloned()
    }

    /// The thread's memory, for files that all users may read.
    pub fn memory(&self) -> Option<Foreign<M>> {
        self.process.memory_of(self.tid)
    }

    /// The calling thread's right to read more than all users may; an error if it has none.
    pub fn look(&self) -> Result<Granted<M>, FsError> {
        let me = self.process.linux.current();
        self.process.look_at(self.tid, me, By::Files).map_err(|_| FsError::Denied)
    }

    /// The result of `f`, which takes files or directories from the process. The calling thread must have access before
    /// and after, and the process must not exec in between. The result then belongs to the program that was checked.
    pub fn taken<R>(&self, f: impl FnOnce(&Granted<M>) -> Result<R, FsError>) -> Result<R, FsError> {
        let before = self.look()?;
        let taken = f(&before)?;
        let after = self.look()?;
        // A thread that has left its memory has also left its files, or is about to.
        if before.is_of_same_program(&after) { Ok(taken) } else { Err(FsError::NotFound) }
    }

    /// The owner of its files: root if its user's other processes may not access it.
    pub fn files_owner(&self) -> (u32, u32) {
        // In the order of `quire_task::powers`: new ids are not shown together with memory that was open under the old
        // ones.
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

/// The first inode number of the files of `pid`.
pub(super) fn numbers(pid: Pid) -> u64 {
    u64::from(pid) << 20
}
