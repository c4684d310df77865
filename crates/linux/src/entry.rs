//! The ways in from the kernel: system calls, faults, exceptions, and the way back to user mode.

use crate::errno::{Errno, encode};
use crate::machine::Machine;
use crate::process::ids::Ids;
use crate::regs::UserRegs;
use crate::signal::info::code;
use crate::signal::{SigInfo, Signal};
use crate::syscall;
use crate::thread::{Thread, work};
use crate::{Ctx, file, futex, random};
use core::sync::atomic::Ordering;
use quire_task::{Scheduler, ThreadRef};
use quire_vm::{Access, FaultError, Vm};

/// The Linux layer of a running kernel. One a machine, for ever.
pub struct Linux<M: Machine> {
    /// The kernel beneath.
    pub machine: &'static M,
    /// Memory.
    pub vm: &'static Vm<M>,
    /// Threads.
    pub scheduler: &'static Scheduler<M>,
    /// Process, thread, group and session ids.
    pub ids: Ids<M>,
    /// Futexes.
    pub futexes: futex::Futexes<M>,
    /// Random numbers.
    pub random: random::Random,
    /// Which unknown system calls were logged.
    pub unknown: syscall::Unknown,
    /// The file layer's state: the root directory, devices.
    pub files: file::System<M>,
    /// What `uname` calls this machine.
    pub host_name: crate::system::HostName,
}

impl<M: Machine> Linux<M> {
    /// The calling thread.
    ///
    /// # Panics
    /// On a kernel thread: only threads of programs come here.
    #[inline(always)]
    pub fn current(&self) -> &'static Thread<M> {
        let task = quire_task::Machine::current(self.machine);
        // SAFETY: the machine names the thread that runs, which lives while it runs; what is returned does not outlive the
        // system call or fault that asks.
        let payload = unsafe { (*task).payload() };
        payload.as_ref().expect("a kernel thread has no process")
    }

    /// Serves the system call in `regs`; its result is in `regs.rax` afterwards. The kernel has put the call's number in
    /// both `rax` and `orig_rax`.
    #[inline]
    pub fn syscall(&'static self, regs: &mut UserRegs) {
        let thread = self.current();
        let number = regs.orig_rax;
        let arguments = regs.arguments();
        // SAFETY: the thread that runs, at its only entry.
        let mut ctx = unsafe { Ctx::new(self, thread, regs) };
        let result = match syscall::dispatch(&mut ctx, number, &arguments) {
            Some(result) => result,
            None => self.unknown_call(number),
        };
        // `rt_sigreturn` and exec leave whole register sets behind.
        if ctx.regs_replaced {
            return;
        }
        regs.rax = encode(result);
    }

    #[cold]
    fn unknown_call(&self, number: u64) -> Result<usize, Errno> {
        if self.machine.verbose() && self.unknown.first_time(number) {
            match syscall::names::name(number) {
                Some(name) => self.machine.log(format_args!("system call {name} ({number}) is not supported")),
                None => self.machine.log(format_args!("there is no system call {number}")),
            }
        }
        Err(Errno::ENOSYS)
    }

    /// Serves a page fault at `address`. `from_user`: the program itself faulted, and what cannot be repaired becomes its
    /// signal. Otherwise the kernel faulted on a user address, and `false` tells it to take its fix-up path.
    pub fn page_fault(&'static self, regs: &mut UserRegs, address: u64, access: Access, from_user: bool) -> bool {
        match self.repair(address, access) {
            Ok(()) => true,
            Err(error) => {
                if from_user {
                    self.fault_signal(regs, address, error);
                }
                false
            }
        }
    }

    /// As [`page_fault`](Linux::page_fault) for a fault of the kernel itself on user memory.
    pub fn kernel_fault(&'static self, address: u64, access: Access) -> bool {
        self.repair(address, access).is_ok()
    }

    fn repair(&self, address: u64, access: Access) -> Result<(), FaultError> {
        let thread = self.current();
        // SAFETY: the thread that runs.
        let Some(space) = (unsafe { thread.space.get() }) else { return Err(FaultError::NotMapped) };
        let kind = space.fault(address, access)?;
        let count = if kind.is_major() { &thread.major_faults } else { &thread.minor_faults };
        // Only this thread writes it.
        count.store(count.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        Ok(())
    }

    #[cold]
    fn fault_signal(&'static self, regs: &UserRegs, address: u64, error: FaultError) {
        let thread = self.current();
        let info = match error {
            FaultError::NotMapped => SigInfo::fault(Signal::SEGV, code::SEGV_MAPERR, address),
            FaultError::Protection => SigInfo::fault(Signal::SEGV, code::SEGV_ACCERR, address),
            FaultError::BeyondEnd | FaultError::Pager => SigInfo::fault(Signal::BUS, code::BUS_ADRERR, address),
            FaultError::OutOfMemory => {
                self.out_of_memory(thread);
                return;
            }
        };
        if self.machine.verbose() {
            self.machine.log(format_args!(
                "process {} ({}): {:?} at {:#x}, instruction {:#x}, stack {:#x}",
                thread.process.pid,
                // SAFETY: the thread that runs.
                core::str::from_utf8(unsafe { thread.name.get() }.bytes()).unwrap_or("?"),
                error,
                address,
                regs.rip,
                regs.rsp
            ));
        }
        self.force_signal(thread, info);
    }

    /// The machine has no memory left for a page that `thread` touched: its process ends, as Linux's OOM killer would have
    /// it, and nobody else's.
    #[cold]
    pub(crate) fn out_of_memory(&'static self, thread: &Thread<M>) {
        self.machine.log(format_args!("out of memory: process {} is killed", thread.process.pid));
        self.kill_process(&thread.process, Signal::KILL);
    }

    /// Serves an exception other than a page fault that a program raised: its vector and error code.
    pub fn exception(&'static self, regs: &mut UserRegs, vector: u8, error: u64) {
        let info = crate::signal::send::of_exception(vector, error, regs.rip, || self.float_state());
        self.force_signal(self.current(), info);
    }

    /// Comes before every return to user mode, with interrupts on: signals, stops, the end of the process.
    #[inline(always)]
    pub fn return_to_user(&'static self, regs: &mut UserRegs) {
        let thread = self.current();
        if thread.work.load(Ordering::Acquire) != 0 {
            self.work(thread, regs);
        }
    }

    #[cold]
    fn work(&'static self, thread: &Thread<M>, regs: &mut UserRegs) {
        crate::signal::deliver::work(self, thread, regs);
    }

    /// What a new thread does before its first instruction, in place of [`return_to_user`](Linux::return_to_user).
    pub fn first_return(&'static self, regs: &mut UserRegs) {
        let thread = self.current();
        let set = thread.set_tid.load(Ordering::Relaxed);
        if set != 0 {
            // As in Linux, a bad address is the program's own loss.
            let _ignored = crate::user::UserMemory(self.machine).write(set, &thread.tid());
        }
        self.return_to_user(regs);
    }

    /// Makes `task` look at its work flags soon, wherever it is: asleep, or in user mode on another CPU.
    pub(crate) fn poke(&self, task: &ThreadRef<M>) {
        self.scheduler.unpark(task);
        if task.is_running() {
            let home = task.home();
            if home != quire_sync::current_cpu() {
                quire_task::Machine::kick(self.machine, home);
            }
        }
    }

    /// Whether `thread` has anything to do before it may go to user mode.
    pub fn has_work(thread: &Thread<M>) -> bool {
        thread.work.load(Ordering::Acquire) & !work::RESTORE_MASK != 0
    }
}
