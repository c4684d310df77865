//! Ids and the objects that they name: processes and threads, groups, sessions.
//!
//! In the id table, every thread's id names the *process* of the thread. The thread itself is found in the process's
//! list. A number stays in use while a thread, an unreaped process, a group or a session has it as its id.

use crate::base::tables::{TableMemory, padded};
use crate::errno::Errno;
use crate::machine::Machine;
use crate::process::group::Group;
use crate::{Pid, Process};
use core::alloc::Layout;
use core::ptr::NonNull;
use quire_heap::Arc;
use quire_sync::PerCpu;
use quire_sync::atomic::{AtomicU32, AtomicU64, Ordering};
use quire_sync::hooks::{now, preempt_off};
use quire_task::ids::CHUNK_BYTES;
use quire_task::{IdTable, ThreadRef};

/// The id table of the machine; see the module.
pub struct Ids<M: Machine> {
    table: IdTable<Process<M>, Group<M>>,
    latest: PerCpu<Latest>,
}

/// The time in nanoseconds and the id of a CPU's last allocation. Only that CPU writes it.
type Latest = (AtomicU64, AtomicU32);

/// A new reference to an object that a table names.
///
/// # Safety
/// `named` is the content of an `Arc` that stays alive as long as the table has it.
unsafe fn count<T>(named: &T) -> Arc<T> {
    // SAFETY: `named` is the content of an `Arc` whose count is above zero as long as the table names it.
    unsafe {
        Arc::increment_strong_count(named);
        Arc::from_raw(named)
    }
}

impl<M: Machine> Ids<M> {
    /// The bytes of memory that the tables need for ids 1 to `max`.
    pub const fn bytes(max: Pid, cpus: usize) -> usize {
        padded(IdTable::<Process<M>, Group<M>>::bytes(max, cpus)) + PerCpu::<Latest>::bytes(cpus)
    }

    /// A table of the ids 1 to `max` for `cpus` CPUs.
    pub fn new(max: Pid, cpus: usize, tables: &mut TableMemory) -> Result<Self, Errno> {
        let memory = tables.take(IdTable::<Process<M>, Group<M>>::bytes(max, cpus))?;
        let latest = tables.take(PerCpu::<Latest>::bytes(cpus))?;
        // SAFETY: fresh memory of these sizes and alignments, which is never freed.
        let (table, latest) =
            unsafe { (IdTable::new(memory, max, cpus), PerCpu::new(latest, cpus, |_| Latest::default())) };
        Ok(Ids { table, latest })
    }

    /// The highest id that may be allocated.
    pub fn max(&self) -> Pid {
        self.table.limit()
    }

    /// Sets the highest id that may be allocated. Higher ids that are in use stay in use until they are released.
    pub(crate) fn set_max(&self, max: Pid) {
        self.table.set_limit(max);
    }

    /// The highest id that the table has room for.
    pub fn room(&self) -> Pid {
        self.table.max()
    }

    /// Allocates an id that names nothing yet.
    pub fn allocate(&self) -> Result<Pid, Errno> {
        let layout = Layout::from_size_align(CHUNK_BYTES, 64).map_err(|_| Errno::ENOMEM)?;
        let mut grow = || quire_heap::allocate_zeroed(layout).ok();
        let id = self.table.allocate(&mut grow).map_err(|e| match e {
            quire_task::IdError::Exhausted => Errno::EAGAIN,
            quire_task::IdError::OutOfMemory => Errno::ENOMEM,
        })?;
        let pinned = preempt_off();
        let (at, latest) = self.latest.mine(&pinned);
        at.store(now(), Ordering::Relaxed);
        latest.store(id, Ordering::Relaxed);
        Ok(id)
    }

    /// The id that was allocated last. If two CPUs allocated ids at the same time, one of the two ids.
    pub fn last(&self) -> Pid {
        let latest = self.latest.iter().max_by_key(|(at, _)| at.load(Ordering::Relaxed));
        latest.map_or(0, |(_, id)| id.load(Ordering::Relaxed))
    }

    /// Removes a holder of `id`. The id becomes free with its last holder.
    pub fn release(&self, id: Pid) {
        self.table.release(id);
    }

    /// Adds a holder of `id`.
    pub fn hold(&self, id: Pid) {
        self.table.hold(id);
    }

    /// Makes `id` name `process`. `id` is the id of the process or of one of its threads. The caller ensures that the
    /// process outlives the name.
    pub fn name_process(&self, id: Pid, process: &Arc<Process<M>>) {
        self.table.set_thread(id, NonNull::new(Arc::as_ptr(process).cast_mut()));
    }

    /// Makes `id` name no process or thread.
    pub fn forget_process(&self, id: Pid) {
        self.table.set_thread(id, None);
    }

    pub(super) fn name_group(&self, group: &Arc<Group<M>>) {
        self.table.set_group(group.id, NonNull::new(Arc::as_ptr(group).cast_mut()));
    }

    pub(super) fn forget_group(&self, id: Pid) {
        self.table.set_group(id, None);
    }

    /// The process that has thread `id`.
    pub fn process_of_thread(&self, id: Pid) -> Option<Arc<Process<M>>> {
        // SAFETY: the table got the pointer from an `Arc` that outlives the name.
        self.table.thread(id, |process| unsafe { count(process) })
    }

    /// The process with id `pid`.
    pub fn process(&self, pid: Pid) -> Option<Arc<Process<M>>> {
        self.process_of_thread(pid).filter(|process| process.pid == pid)
    }

    /// The living thread with id `tid`.
    pub fn thread(&self, tid: Pid) -> Option<ThreadRef<M>> {
        let process = self.process_of_thread(tid)?;
        let threads = process.threads.lock();
        threads.get(tid).cloned()
    }

    /// The group with id `id`.
    pub fn group(&self, id: Pid) -> Option<Arc<Group<M>>> {
        // SAFETY: the table got the pointer from an `Arc`, and a group removes its name before it is freed.
        self.table.group(id, |group| unsafe { count(group) })
    }

    /// The process with the lowest id at or above `from`.
    pub fn next_process(&self, from: Pid) -> Option<Arc<Process<M>>> {
        let mut at = from;
        loop {
            at = self.table.next_thread(at)?;
            if let Some(process) = self.process(at) {
                return Some(process);
            }
            at += 1;
        }
    }

    /// Every process, by ascending id.
    pub fn processes(&self) -> impl Iterator<Item = Arc<Process<M>>> + '_ {
        let mut from = 1;
        core::iter::from_fn(move || {
            let process = self.next_process(from)?;
            from = process.pid + 1;
            Some(process)
        })
    }
}
