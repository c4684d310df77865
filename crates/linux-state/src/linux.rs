//! The Linux layer: the state that all processes share.

use crate::base::tables::{TableMemory, padded};
use crate::errno::Errno;
use crate::file::pipe_limits::PipeLimits;
use crate::file::system::System;
use crate::file::trees::Trees;
use crate::futex::table::Futexes;
use crate::ipc::host::Ipc;
use crate::machine::Machine;
use crate::memory::victim::dying::Victims;
use crate::process::Process;
use crate::process::credentials::login::Logins;
use crate::process::first_use::FirstUse;
use crate::process::ids::Ids;
use crate::process::thread::Thread;
use crate::process::users::Users;
use crate::socket::host::{Network, SocketHost};
use crate::socket::netlink_ports::NetlinkPorts;
use crate::system::core_pattern::CorePattern;
use crate::system::host_name::HostName;
use crate::system::load::Load;
use crate::system::log::Log;
use crate::system::random::Random;
use crate::system::settings::Settings;
use crate::system::unknown::Unknown;
use crate::system::unsupported::{Logged, Unsupported};
use crate::time::timer_file::TimerFiles;
use crate::vdso::Vdso;
use quire_heap::{Arc, Vec};
use quire_sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use quire_sync::{CachePadded, Rank, SpinLock};
use quire_task::{Broadcasts, Class, MOST_URGENT, Scheduler, Thread as Task};
use quire_vm::{PAGE_SIZE, Vm};

/// The program of process 1, as `exec` has prepared it.
pub trait FirstProgram<M: Machine>: Send + Sync {
    /// Fills the initial stack of process 1. The first thread of process 1 calls this method before the program's first
    /// instruction.
    fn fill(&self, machine: &M) -> Result<(), Errno>;
}

/// The Linux layer of a running kernel. There is one for each machine, and it is never freed.
pub struct Linux<M: Machine> {
    /// The machine that the kernel runs on.
    pub machine: &'static M,
    /// The memory system.
    pub vm: &'static Vm<M>,
    /// The scheduler of threads.
    pub scheduler: &'static Scheduler<M>,
    /// Process, thread, group and session ids.
    pub ids: Ids<M>,
    /// The load average.
    pub load: Load<M>,
    /// The records of users.
    pub users: Users<M>,
    /// The futex table.
    pub futexes: Futexes<M>,
    /// The generator of random numbers.
    pub random: Random,
    /// The numbers of unknown system calls that were logged already.
    pub unknown: Unknown,
    /// The options and requests without support that were logged already.
    pub refused_options: Logged,
    /// The state of the file layer: the root directory and the devices.
    pub files: System<M>,
    /// The trees `/proc` and `/sys`.
    pub trees: &'static dyn Trees<M>,
    /// The paths of directory trees that the host wants to have when the machine ends.
    pub results: FirstUse<Vec<Vec<u8>>>,
    /// Whether the machine is ending.
    pub ending: AtomicBool,
    /// The names that sockets are bound to.
    pub network: &'static Network<M>,
    /// Shared memory segments, semaphore arrays, message queues.
    pub ipc: Ipc<M>,
    /// Random bytes that identify this boot.
    pub boot_id: [u8; 16],
    /// The numeric settings in `/proc/sys`.
    pub settings: Settings,
    /// The ids of netlink sockets.
    pub netlink_ports: NetlinkPorts,
    /// The limits on the sizes of pipes.
    pub pipes: PipeLimits,
    /// The files of `timerfd_create`.
    pub timer_files: TimerFiles<M>,
    /// The state of the kernel log's readers.
    pub log: Log,
    /// The machine's names that `uname` returns.
    pub host_name: HostName,
    /// The pattern for names of core files.
    pub core_pattern: CorePattern,
    /// Process 1. `None` before it starts.
    pub first: SpinLock<Option<Arc<Process<M>>>>,
    /// The program of process 1, which fills its stack before the first instruction.
    pub first_program: SpinLock<Option<Arc<dyn FirstProgram<M>>>>,
    /// The number of stopped threads. Only job control writes it, so readers usually have it in their CPU's cache.
    pub stopped: AtomicUsize,
    /// Signals to all processes. A concurrent fork must not miss such a signal, so every fork reads this field.
    pub broadcasts: CachePadded<Broadcasts>,
    /// The highest number of mappings that a new program may have (`vm.max_map_count`).
    pub map_count: AtomicU64,
    /// The highest number of threads, kernel threads included (`kernel.threads-max`). Every fork reads it.
    pub threads_max: AtomicU64,
    /// The numbers of logins.
    pub logins: Logins,
    /// The out-of-memory victim, and the threads that wait for its memory.
    pub victims: Victims<M>,
    /// The vDSO, which each program finds mapped.
    pub vdso: Vdso<M>,
}

/// The frames of memory for each id at boot. The smallest process uses about 8 frames. So memory is full before all ids
/// are in use, unless [`MOST_IDS`] limits the number of ids.
const FRAMES_AN_ID: u64 = 2;
/// `kernel.pid_max` on the smallest machine.
const LEAST_IDS: u64 = 1024;
/// The highest `kernel.pid_max`, as on Linux with 64 bits. It is one above the highest id.
const MOST_IDS: u64 = 4 << 20;
/// The lowest `kernel.pid_max`, as on Linux.
const FEWEST_IDS: u64 = 301;
/// The bounds of `kernel.threads-max`, as on Linux.
const THREADS: core::ops::RangeInclusive<u64> = 1..=0x3fff_ffff;
/// The initial `vm.max_map_count`. Linux's default is 65,530, but distributions set 1,048,576. A large limit costs
/// nothing here.
const MAP_COUNT: u64 = 1 << 20;

/// The bytes of the tables that are allocated at boot.
pub struct TableSizes {
    /// The directory of ids.
    pub ids: u64,
    /// The futex table.
    pub futexes: u64,
}

const fn between(value: u64, least: u64, most: u64) -> u64 {
    if value < least {
        least
    } else if value > most {
        most
    } else {
        value
    }
}

/// `kernel.pid_max` on a machine of `memory` bytes.
const fn first_ids(memory: u64) -> u64 {
    between(memory / PAGE_SIZE / FRAMES_AN_ID, LEAST_IDS, MOST_IDS)
}

/// The highest value that `kernel.pid_max` may be set to: one id for each frame of memory, because each process uses at
/// least one frame.
const fn most_ids(memory: u64) -> u64 {
    between(memory / PAGE_SIZE, LEAST_IDS, MOST_IDS)
}

impl<M: Machine> Linux<M> {
    /// The sizes of the tables that were allocated at boot.
    pub fn table_sizes(&self) -> TableSizes {
        TableSizes {
            ids: Ids::<M>::bytes(self.ids.room(), self.scheduler.cpus()) as u64,
            futexes: self.futexes.table_bytes() as u64,
        }
    }

    /// The bytes of memory that [`Linux::new`] needs for tables, on a machine of `memory` bytes and `cpus` CPUs.
    pub const fn table_bytes(memory: u64, cpus: usize) -> usize {
        padded(Ids::<M>::bytes(most_ids(memory) as crate::Pid - 1, cpus))
            + padded(Futexes::<M>::bytes(memory))
            + padded(Random::bytes(cpus))
    }

    /// Creates the Linux layer over `vm` and `scheduler`, on a machine of `memory` bytes. The layer is never freed. The
    /// caller is the boot code, and no thread runs yet. ENOMEM if `tables` has less than [`Linux::table_bytes`].
    pub fn new(
        vm: &'static Vm<M>,
        scheduler: &'static Scheduler<M>,
        memory: u64,
        mut tables: TableMemory,
        trees: &'static dyn Trees<M>,
    ) -> Result<&'static Self, Errno> {
        let (machine, cpus) = (vm.machine(), scheduler.cpus());
        let first = first_ids(memory);
        let ids = Ids::new(most_ids(memory) as crate::Pid - 1, cpus, &mut tables)?;
        ids.set_max(first as crate::Pid - 1);
        let files = System::new(vm, machine)?;
        let entropy = machine.entropy();
        Ok(quire_heap::try_leak(Linux {
            machine,
            vm,
            scheduler,
            ids,
            load: Load::new(scheduler),
            users: Users::new(cpus)?,
            futexes: Futexes::new(memory, &mut tables)?,
            random: Random::new(machine.entropy(), cpus, &mut tables)?,
            unknown: Unknown::new(),
            refused_options: Logged::new(),
            results: FirstUse::new(),
            ending: AtomicBool::new(false),
            network: Network::new(SocketHost(*files.vfs().host()))?,
            ipc: Ipc::new(*files.vfs().host())?,
            boot_id: core::array::from_fn(|at| entropy[at] ^ entropy[at + 16]),
            settings: Settings::new(),
            netlink_ports: NetlinkPorts::new(),
            files,
            trees,
            pipes: PipeLimits::new(),
            timer_files: TimerFiles::new(),
            log: Log::new(),
            host_name: HostName::new(),
            core_pattern: CorePattern::new(),
            first: SpinLock::new(Rank::OWNED, None),
            first_program: SpinLock::new(Rank::OWNED, None),
            stopped: AtomicUsize::new(0),
            broadcasts: CachePadded(Broadcasts::new()),
            map_count: AtomicU64::new(MAP_COUNT),
            threads_max: AtomicU64::new(first),
            logins: Logins::new(),
            victims: Victims::new(),
            vdso: Vdso::new(vm, machine)?,
        })?)
    }

    /// Notifies the waiters for expired timer files, in an endless loop. Called once, by a kernel thread.
    pub fn notify_timer_files(&'static self) -> ! {
        // The priority is the highest, because real-time threads of programs may wait for the notification.
        self.scheduler.set_class(&self.scheduler.current(), Class::Fifo(MOST_URGENT), false);
        self.timer_files.notify(self.machine)
    }

    /// The highest number of mappings that a new program may have.
    pub fn max_map_count(&self) -> u64 {
        self.map_count.load(Ordering::Relaxed)
    }

    /// `kernel.pid_max`: one above the highest id that may be allocated.
    pub fn pid_max(&self) -> u64 {
        u64::from(self.ids.max()) + 1
    }

    /// Sets `kernel.pid_max`. EINVAL if it is below the minimum, or above the size of the id table.
    pub fn set_pid_max(&self, most: u64) -> Result<(), Errno> {
        if most < FEWEST_IDS || most > u64::from(self.ids.room()) + 1 {
            return Err(Errno::EINVAL);
        }
        self.ids.set_max(most as crate::Pid - 1);
        Ok(())
    }

    /// Sets the highest number of threads. EINVAL if it is out of range. Existing threads above the limit continue.
    pub fn set_threads_max(&self, most: u64) -> Result<(), Errno> {
        if !THREADS.contains(&most) {
            return Err(Errno::EINVAL);
        }
        self.threads_max.store(most, Ordering::Relaxed);
        Ok(())
    }

    /// EAGAIN if the highest number of threads is reached. Counting the threads reads a cache line of each CPU. If the
    /// limit is above the number of ids, the ids run out first, so the threads are not counted.
    pub fn check_threads(&self) -> Result<(), Errno> {
        let most = self.threads_max.load(Ordering::Relaxed);
        if most <= u64::from(self.ids.max()) && self.scheduler.threads() >= most {
            return Err(Errno::EAGAIN);
        }
        Ok(())
    }

    /// Logs that a program asks for an option that is not supported.
    #[cold]
    pub fn refuses_option(&self, option: Unsupported) {
        if self.machine.verbose() && self.refused_options.first_time(option) {
            self.machine.log(format_args!("{option} is not supported"));
        }
    }

    /// The calling thread.
    ///
    /// # Panics
    /// Panics on a kernel thread, because only threads of programs have a process.
    #[inline(always)]
    pub fn current(&self) -> &'static Thread<M> {
        let task = quire_task::Machine::current(self.machine);
        // SAFETY: the machine returns the running thread, which lives while it runs. The returned reference does not
        // outlive the current system call or fault.
        let payload = unsafe { (*task).payload() };
        payload.as_ref().expect("a kernel thread has no process")
    }

    /// Makes `task` check its work flags soon, even if it sleeps or runs in user mode on another CPU.
    pub fn poke(&self, task: &Task<M>) {
        self.scheduler.unpark(task);
        self.interrupt(task);
    }

    /// Does the work of [`poke`](Self::poke) for a thread whose work flags say that it must end. If many such threads
    /// wait for a CPU at once, they share one part of the CPU time; see [`Scheduler::unpark_to_end`].
    pub(crate) fn poke_to_end(&self, task: &Task<M>) {
        self.scheduler.unpark_to_end(task);
        self.interrupt(task);
    }

    /// Interrupts the CPU that runs `task`, unless it is the current CPU.
    fn interrupt(&self, task: &Task<M>) {
        if task.is_running() {
            let home = task.home();
            if home != quire_sync::current_cpu() {
                quire_task::Machine::kick(self.machine, home);
            }
        }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use quire_task::IdTable;

    const MIB: u64 = 1 << 20;

    #[test]
    fn ids_suffice_for_a_million_processes_and_a_user_gets_half_of_memory() {
        assert_eq!(first_ids(20 << 30), 2_621_440);
        // The smallest process takes 33 KB of kernel memory.
        for memory in [64 * MIB, 384 * MIB, 20 << 30] {
            let limits = crate::process::limits::Limits::initial(first_ids(memory));
            let processes = limits.0[crate::process::limits::which::NPROC].soft;
            assert!(processes * 33_000 > memory / 3 && processes * 33_000 < memory * 11 / 20, "{processes}");
        }
    }

    #[test]
    fn ids_follow_memory_between_their_ends() {
        assert_eq!((first_ids(0), most_ids(0)), (LEAST_IDS, LEAST_IDS));
        assert_eq!((first_ids(64 * MIB), most_ids(64 * MIB)), (8192, 16384));
        assert_eq!((first_ids(16 << 40), most_ids(16 << 40)), (MOST_IDS, MOST_IDS));
    }

    #[test]
    fn the_directory_of_ids_takes_less_than_a_thousandth_of_memory() {
        for shift in 0..19 {
            let memory = (32 * MIB) << shift;
            let bytes = IdTable::<u64, u64>::bytes(most_ids(memory) as crate::Pid - 1, 4) as u64;
            assert!(bytes * 1000 < memory, "{bytes} of {memory}");
        }
    }
}
