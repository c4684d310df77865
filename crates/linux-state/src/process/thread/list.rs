//! The threads of a process.

use crate::machine::Machine;
use crate::memory::own::Foreign;
use crate::process::credentials::Credentials;
use crate::process::thread::{Thread, work};
use crate::{Pid, Process};
use quire_heap::{Map, SpareEntry, Vec};
use quire_sync::atomic::Ordering;
use quire_task::ThreadRef;

/// The living threads of a process. The first thread needs no allocation, and most processes have only one. The lock
/// [`Process::threads`] guards the list.
pub struct Threads<M: Machine> {
    first: Option<ThreadRef<M>>,
    others: Map<Pid, ThreadRef<M>>,
    /// The number of ending threads.
    leaving: usize,
    /// No thread may be added any more: the process ends, or one of its threads execs.
    pub closed: bool,
}

/// The thread's id; 0 for a kernel thread, which is on no list.
fn tid_of<M: Machine>(task: &ThreadRef<M>) -> Pid {
    task.payload().as_ref().map_or(0, Thread::tid)
}

impl<M: Machine> Threads<M> {
    /// An empty list.
    pub const fn new() -> Self {
        Threads { first: None, others: Map::new(), leaving: 0, closed: false }
    }

    /// Adds the first thread.
    pub fn begin(&mut self, thread: ThreadRef<M>) {
        debug_assert!(self.is_empty());
        self.first = Some(thread);
    }

    /// Adds a thread. The caller has allocated `memory` for its entry before it acquired the lock.
    pub fn join(&mut self, thread: ThreadRef<M>, memory: SpareEntry<Pid, ThreadRef<M>>) {
        if self.is_empty() {
            self.begin(thread);
        } else {
            self.others.insert(memory, tid_of(&thread), thread);
        }
    }

    /// Removes the thread `tid`. The caller drops the returned reference with no lock held.
    pub fn remove(&mut self, tid: Pid) -> Option<ThreadRef<M>> {
        if self.first.as_ref().is_some_and(|t| tid_of(t) == tid) {
            return self.first.take();
        }
        self.others.remove(&tid)
    }

    /// Marks `thread`, the caller, as ending until its [`leave`](Self::leave). Returns whether all threads are now
    /// ending.
    pub fn last_leaves(&mut self, thread: &Thread<M>) -> bool {
        thread.leaving.store(true, Ordering::Relaxed);
        self.leaving += 1;
        self.leaving == self.len()
    }

    /// Removes the ending thread `tid`. The caller drops the returned reference with no lock held.
    pub fn leave(&mut self, tid: Pid) -> Option<ThreadRef<M>> {
        self.leaving -= 1;
        self.remove(tid)
    }

    /// Number of threads.
    pub fn len(&self) -> usize {
        usize::from(self.first.is_some()) + self.others.len()
    }

    /// Whether no thread is left.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// All threads, beginning with the first one.
    pub fn iter(&self) -> impl Iterator<Item = &ThreadRef<M>> {
        self.first.iter().chain(self.others.values())
    }

    /// The first thread, or any other thread if the first thread has ended.
    pub fn any(&self) -> Option<&ThreadRef<M>> {
        self.iter().next()
    }

    /// The thread with id `tid`.
    pub fn get(&self, tid: Pid) -> Option<&ThreadRef<M>> {
        match &self.first {
            Some(t) if tid_of(t) == tid => Some(t),
            _ => self.others.get(&tid),
        }
    }
}

impl<M: Machine> Default for Threads<M> {
    fn default() -> Self {
        Self::new()
    }
}

impl<M: Machine> Process<M> {
    /// The first thread, or any other thread if the first thread has ended.
    pub fn any_thread(&self) -> Option<ThreadRef<M>> {
        self.threads.lock().any().cloned()
    }

    /// References to all threads. ENOMEM if there is no memory for the list.
    pub fn all_threads(&self) -> Result<Vec<ThreadRef<M>>, crate::Errno> {
        let mut out = Vec::new();
        loop {
            let need = self.threads.lock().len();
            out.try_reserve(need)?;
            let threads = self.threads.lock();
            if threads.len() <= out.capacity() {
                threads.iter().for_each(|thread| out.push_reserved(thread.clone()));
                return Ok(out);
            }
        }
    }

    /// Makes all threads except `except` end, and wakes them.
    pub fn kill_threads(&self, except: Option<&Thread<M>>) {
        let threads = self.threads.lock();
        for task in threads.iter() {
            if let Some(thread) = task.payload()
                && except.is_none_or(|e| !core::ptr::eq(e, thread))
            {
                thread.work.fetch_or(work::KILL, Ordering::AcqRel);
                self.linux.poke_to_end(task);
            }
        }
    }

    /// The process's memory; `None` once its threads have left it.
    pub fn memory(&self) -> Option<Foreign<M>> {
        let threads = self.threads.lock();
        threads.iter().find_map(|task| task.payload().as_ref()?.space.borrow())
    }

    /// Whether no thread of the process holds its memory or its files any more.
    pub fn has_left_memory(&self) -> bool {
        self.threads.lock().is_empty()
    }

    /// The real user of the first thread.
    pub fn real_user(&self) -> u32 {
        self.credentials.lock().real_user
    }

    /// Makes forks of the process's user wait until `time`, in nanoseconds since boot, while memory is low.
    pub fn make_forks_wait(&self, time: u64) {
        let task = self.any_thread();
        if let Some(thread) = task.as_ref().and_then(|task| task.payload().as_ref()) {
            thread.user_charge.look(|user| user.make_forks_wait(time));
        }
    }

    /// The kernel memory that the process's descriptors and its timers hold, in bytes: bytes in pipes and sockets,
    /// texts of `/proc`, and the watches and timers of files of epoll, inotify and timerfd. A file that several
    /// descriptors or processes share counts for each. The result is an estimate.
    pub fn held_by_files(&self) -> u64 {
        let timers = self.posix_timers.get().map_or(0, |timers| timers.held());
        let Some(task) = self.any_thread() else { return timers };
        let Some(files) = task.payload().as_ref().and_then(|thread| thread.files.look(|files| files.clone())) else {
            return timers;
        };
        let open = (0..files.size() as u32).filter_map(|fd| files.peek(fd));
        timers + open.map(|file| file.held() as u64).sum::<u64>()
    }

    /// Makes all threads end. The process then reports `status` (in the format of `wait4`). If there are several
    /// callers, the first one's status counts. Returns whether this call was the first.
    pub fn begin_exit(&self, status: i32) -> bool {
        {
            let mut threads = self.threads.lock();
            if self.exiting.swap(true, Ordering::AcqRel) {
                return false;
            }
            self.status.store(status, Ordering::Release);
            threads.closed = true;
            let me = quire_task::Machine::current(self.linux.machine);
            for task in threads.iter() {
                if let Some(thread) = task.payload() {
                    thread.work.fetch_or(work::KILL, Ordering::AcqRel);
                    if !core::ptr::eq(me, &**task) {
                        self.linux.poke_to_end(task);
                    }
                }
            }
        }
        true
    }

    /// Lets the threads of a process that ends already end before other threads of their user.
    pub fn hasten_end(&self) {
        for task in self.threads.lock().iter() {
            self.linux.poke_to_end(task);
        }
    }

    /// The credentials of thread `tid` of this process, or of the first thread if `tid` has ended.
    pub fn credentials_of(&self, tid: crate::Pid) -> Credentials {
        let task = self.threads.lock().get(tid).cloned();
        let own =
            task.as_ref().and_then(|task| task.payload().as_ref()).map(|thread| thread.credentials.look(Clone::clone));
        own.unwrap_or_else(|| self.credentials())
    }
}
