//! The Linux layer as one value: the state that all its processes share.

use crate::errno::Errno;
use crate::exec::Prepared;
use crate::file::pipe_limits::PipeLimits;
use crate::file::system::System;
use crate::futex::table::Futexes;
use crate::host_name::HostName;
use crate::load::Load;
use crate::machine::Machine;
use crate::process::Process;
use crate::process::ids::Ids;
use crate::process::thread::Thread;
use crate::process::users::Users;
use crate::process::victims::Victims;
use crate::random::Random;
use crate::tables::{TableMemory, padded};
use crate::time::timer_file::TimerFiles;
use crate::unknown::Unknown;
use crate::vdso::Vdso;
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use quire_heap::Arc;
use quire_sync::{CachePadded, Rank, SpinLock};
use quire_task::{RollCall, Scheduler, Thread as Task};
use quire_vm::{PAGE_SIZE, Vm};

/// The Linux layer of a running kernel: one a machine, never freed.
pub struct Linux<M: Machine> {
    /// The kernel beneath.
    pub machine: &'static M,
    /// Memory.
    pub vm: &'static Vm<M>,
    /// Threads.
    pub scheduler: &'static Scheduler<M>,
    /// Process, thread, group and session ids.
    pub ids: Ids<M>,
    /// The load average.
    pub(crate) load: Load<M>,
    /// Users.
    pub(crate) users: Users<M>,
    /// Futexes.
    pub futexes: Futexes<M>,
    /// Random numbers.
    pub random: Random,
    /// Which unknown system calls were logged.
    pub unknown: Unknown,
    /// The file layer's state: the root directory, devices.
    pub files: System<M>,
    /// How large pipes may be.
    pub pipes: PipeLimits,
    /// The files of `timerfd_create`.
    pub(crate) timer_files: TimerFiles<M>,
    /// The machine's names in `uname`.
    pub host_name: HostName,
    /// Process 1.
    pub(crate) first: SpinLock<Option<Arc<Process<M>>>>,
    /// The program of process 1, whose stack it fills before its first instruction.
    pub(crate) first_program: SpinLock<Option<Prepared<M>>>,
    /// The number of stopped threads. Only job control writes it, so that readers mostly find it in their cache.
    pub(crate) stopped: AtomicUsize,
    /// Calls to all processes, which a concurrent fork must not miss. Every fork reads it.
    pub(crate) roll_call: CachePadded<RollCall>,
    /// The most mappings that a new program may have.
    pub(crate) map_count: AtomicU64,
    /// The choice of a process to end when memory is out.
    pub(crate) victims: Victims<M>,
    /// What each program finds mapped.
    pub(crate) vdso: Vdso<M>,
}

/// Frames of memory for each id: about as many as a sleeping process takes with its page tables.
const FRAMES_A_PROCESS: u64 = 8;
/// Ids that the smallest machine has.
const LEAST_IDS: u64 = 1024;
/// The highest id that Linux has on 64 bits.
const MOST_IDS: u64 = 4 << 20;
/// `vm.max_map_count`: the value that distributions set; Linux's own is 65,530. A mapping costs no more here.
const MAP_COUNT: u64 = 1 << 20;

impl<M: Machine> Linux<M> {
    /// The highest id on a machine of `memory` bytes.
    const fn most_ids(memory: u64) -> crate::Pid {
        let ids = memory / PAGE_SIZE / FRAMES_A_PROCESS;
        (if ids < LEAST_IDS {
            LEAST_IDS
        } else if ids > MOST_IDS {
            MOST_IDS
        } else {
            ids
        }) as crate::Pid
    }

    /// Bytes of the tables that [`Linux::new`] needs on a machine of `memory` bytes and `cpus` CPUs.
    pub const fn table_bytes(memory: u64, cpus: usize) -> usize {
        padded(Ids::<M>::bytes(Self::most_ids(memory), cpus))
            + padded(Futexes::<M>::bytes(memory))
            + padded(Random::bytes(cpus))
    }

    /// The Linux layer over `vm` and `scheduler`, never freed, on a machine of `memory` bytes. No thread runs yet.
    /// ENOMEM if `tables` has less than [`Linux::table_bytes`].
    pub fn new(
        vm: &'static Vm<M>,
        scheduler: &'static Scheduler<M>,
        memory: u64,
        mut tables: TableMemory,
    ) -> Result<&'static Self, Errno> {
        let (machine, cpus) = (vm.machine(), scheduler.cpus());
        Ok(quire_heap::try_leak(Linux {
            machine,
            vm,
            scheduler,
            ids: Ids::new(Self::most_ids(memory), cpus, &mut tables)?,
            load: Load::new(scheduler),
            users: Users::new(cpus)?,
            futexes: Futexes::new(memory, &mut tables)?,
            random: Random::new(machine.entropy(), cpus, &mut tables)?,
            unknown: Unknown::new(),
            files: System::new(vm, machine)?,
            pipes: PipeLimits::new(),
            timer_files: TimerFiles::new(),
            host_name: HostName::new(),
            first: SpinLock::new(Rank::OWNED, None),
            first_program: SpinLock::new(Rank::OWNED, None),
            stopped: AtomicUsize::new(0),
            roll_call: CachePadded(RollCall::new()),
            map_count: AtomicU64::new(MAP_COUNT),
            victims: Victims::new(),
            vdso: Vdso::new(vm, machine)?,
        })?)
    }

    /// Notifies the waiters for expired timer files. Called once, by a thread of the kernel, which stays here.
    pub fn notify_timer_files(&'static self) -> ! {
        self.timer_files.notify(self.machine)
    }

    /// The most mappings that a new program may have.
    pub fn max_map_count(&self) -> u64 {
        self.map_count.load(Ordering::Relaxed)
    }

    /// The calling thread.
    ///
    /// # Panics
    /// On a kernel thread: only threads of programs call this.
    #[inline(always)]
    pub fn current(&self) -> &'static Thread<M> {
        let task = quire_task::Machine::current(self.machine);
        // SAFETY: the machine returns the running thread, which lives while it runs. The returned reference does not
        // outlive the current system call or fault.
        let payload = unsafe { (*task).payload() };
        payload.as_ref().expect("a kernel thread has no process")
    }

    /// Makes `task` check its work flags soon, even if it sleeps or runs in user mode on another CPU.
    pub(crate) fn poke(&self, task: &Task<M>) {
        self.scheduler.unpark(task);
        if task.is_running() {
            let home = task.home();
            if home != quire_sync::current_cpu() {
                quire_task::Machine::kick(self.machine, home);
            }
        }
    }
}
