//! Admission: which system calls may begin while memory is short.
//!
//! # Why
//! Much of this crate and of the file layer keeps its data in containers that abort where memory is out. None of them may
//! ever meet that. The memory core promises each thread some memory ([`quire_vm::frames`], `promise`): this module decides which
//! calls may begin, so that the promises hold.
//!
//! # Classes
//! - [`Class::Keeps`]: the call leaves memory behind (an open file, a process, a name). It begins where more is free than all
//!   promises. Else it waits for pageout, and fails with ENOMEM where nothing can be freed. Every call that is not listed is of
//!   this class: a call that is forgotten is refused too early, and never too late.
//! - [`Class::Passes`]: what it takes it gives back before it returns, so its thread's promise covers it.
//! - [`Class::Ends`]: it gives memory back (exit, close, kill, wait, munmap). It is never refused, and the core's structures that it needs
//!   come from a part of the reserve that no other call reaches.
//!
//! What a `clone` takes of its promise is asserted when the kernel is compiled ([`Takes`]): a fork takes more than a frame, so it is
//! admitted again before it makes the process. What a call takes at once above [`quire_vm::slab::PROMISED`] bytes is refused like any structure of the core, so its maker
//! handles the error. What it takes in a loop is [admitted](Linux::admit) in each round.

use crate::errno::Errno;
use crate::machine::Machine;
use crate::thread::{Again, Thread};
use crate::{Ctx, Linux};
use core::alloc::Layout;
use core::sync::atomic::Ordering;
use linux_raw_sys::general as raw;
use quire_vm::Vm;
use quire_vm::frames::FRAMES_A_THREAD;
use quire_vm::slab::taken_for;

/// What a call does to memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Class {
    /// It leaves memory behind.
    Keeps,
    /// It gives back what it takes.
    Passes,
    /// It ends something.
    Ends,
}

/// How often a call is begun again, or waits to be admitted, where pageout makes room that others take.
pub(crate) const ATTEMPTS: u32 = 32;

impl Class {
    /// The class of call `number`.
    #[allow(clippy::too_many_lines)]
    pub const fn of(number: u64) -> Class {
        match number as u32 {
            raw::__NR_exit
            | raw::__NR_exit_group
            | raw::__NR_close
            | raw::__NR_close_range
            | raw::__NR_kill
            | raw::__NR_tkill
            | raw::__NR_tgkill
            | raw::__NR_wait4
            | raw::__NR_waitid
            | raw::__NR_munmap
            | raw::__NR_madvise
            | raw::__NR_rt_sigreturn
            | raw::__NR_unlink
            | raw::__NR_unlinkat
            | raw::__NR_rmdir
            | raw::__NR_truncate
            | raw::__NR_ftruncate
            | raw::__NR_shutdown
            | raw::__NR_reboot => Class::Ends,
            raw::__NR_read
            | raw::__NR_write
            | raw::__NR_readv
            | raw::__NR_writev
            | raw::__NR_pread64
            | raw::__NR_pwrite64
            | raw::__NR_preadv
            | raw::__NR_pwritev
            | raw::__NR_preadv2
            | raw::__NR_pwritev2
            | raw::__NR_sendfile
            | raw::__NR_copy_file_range
            | raw::__NR_lseek
            | raw::__NR_fcntl
            | raw::__NR_flock
            | raw::__NR_ioctl
            | raw::__NR_fsync
            | raw::__NR_fdatasync
            | raw::__NR_sync
            | raw::__NR_syncfs
            | raw::__NR_sync_file_range
            | raw::__NR_fadvise64
            | raw::__NR_readahead
            | raw::__NR_fallocate
            | raw::__NR_getdents64
            | raw::__NR_poll
            | raw::__NR_ppoll
            | raw::__NR_select
            | raw::__NR_pselect6
            | raw::__NR_epoll_wait
            | raw::__NR_epoll_pwait
            | raw::__NR_epoll_pwait2
            | raw::__NR_epoll_ctl
            | raw::__NR_stat
            | raw::__NR_fstat
            | raw::__NR_lstat
            | raw::__NR_newfstatat
            | raw::__NR_statx
            | raw::__NR_access
            | raw::__NR_faccessat
            | raw::__NR_faccessat2
            | raw::__NR_readlink
            | raw::__NR_readlinkat
            | raw::__NR_getcwd
            | raw::__NR_statfs
            | raw::__NR_fstatfs
            | raw::__NR_chmod
            | raw::__NR_fchmod
            | raw::__NR_fchmodat
            | raw::__NR_chown
            | raw::__NR_fchown
            | raw::__NR_lchown
            | raw::__NR_fchownat
            | raw::__NR_utime
            | raw::__NR_utimes
            | raw::__NR_futimesat
            | raw::__NR_utimensat
            | raw::__NR_umask
            | raw::__NR_mmap
            | raw::__NR_mprotect
            | raw::__NR_mremap
            | raw::__NR_brk
            | raw::__NR_msync
            | raw::__NR_mincore
            | raw::__NR_mlock
            | raw::__NR_mlock2
            | raw::__NR_munlock
            | raw::__NR_mlockall
            | raw::__NR_munlockall
            | raw::__NR_rt_sigaction
            | raw::__NR_rt_sigprocmask
            | raw::__NR_rt_sigpending
            | raw::__NR_rt_sigtimedwait
            | raw::__NR_rt_sigsuspend
            | raw::__NR_sigaltstack
            | raw::__NR_pause
            | raw::__NR_nanosleep
            | raw::__NR_clock_nanosleep
            | raw::__NR_restart_syscall
            | raw::__NR_clock_gettime
            | raw::__NR_clock_getres
            | raw::__NR_clock_settime
            | raw::__NR_gettimeofday
            | raw::__NR_settimeofday
            | raw::__NR_time
            | raw::__NR_times
            | raw::__NR_getitimer
            | raw::__NR_setitimer
            | raw::__NR_alarm
            | raw::__NR_futex
            | raw::__NR_set_robust_list
            | raw::__NR_get_robust_list
            | raw::__NR_set_tid_address
            | raw::__NR_arch_prctl
            | raw::__NR_prctl
            | raw::__NR_personality
            | raw::__NR_getpid
            | raw::__NR_getppid
            | raw::__NR_gettid
            | raw::__NR_getpgrp
            | raw::__NR_getpgid
            | raw::__NR_getsid
            | raw::__NR_getuid
            | raw::__NR_geteuid
            | raw::__NR_getgid
            | raw::__NR_getegid
            | raw::__NR_getresuid
            | raw::__NR_getresgid
            | raw::__NR_getgroups
            | raw::__NR_setuid
            | raw::__NR_setgid
            | raw::__NR_setreuid
            | raw::__NR_setregid
            | raw::__NR_setresuid
            | raw::__NR_setresgid
            | raw::__NR_setfsuid
            | raw::__NR_setfsgid
            | raw::__NR_capget
            | raw::__NR_getpriority
            | raw::__NR_setpriority
            | raw::__NR_getrlimit
            | raw::__NR_setrlimit
            | raw::__NR_prlimit64
            | raw::__NR_getrusage
            | raw::__NR_sysinfo
            | raw::__NR_uname
            | raw::__NR_sethostname
            | raw::__NR_setdomainname
            | raw::__NR_sched_yield
            | raw::__NR_sched_setparam
            | raw::__NR_sched_getparam
            | raw::__NR_sched_setscheduler
            | raw::__NR_sched_getscheduler
            | raw::__NR_sched_get_priority_max
            | raw::__NR_sched_get_priority_min
            | raw::__NR_sched_rr_get_interval
            | raw::__NR_sched_setaffinity
            | raw::__NR_sched_getaffinity
            | raw::__NR_getcpu
            | raw::__NR_getrandom => Class::Passes,
            _ => Class::Keeps,
        }
    }
}

/// Bytes of its promise that a thread takes at most for what a `clone` keeps, between one admission and the next. [`FITS`](Self::FITS)
/// holds them against what is promised, in the program whose machine is `M`: how large a thread is, is known there alone.
///
/// Tables of open files and of signal actions beyond the least are left out: their makers meet an error.
pub struct Takes<M>(core::marker::PhantomData<M>);

impl<M: Machine> Takes<M> {
    /// Of a fork, from its admission to the next: what the child's thread refers to.
    pub const FOR_CHILD: usize = counted::<crate::memory::AddressSpace<M>>()
        + counted::<crate::file::Files<M>>()
        + crate::file::Files::<M>::LEAST
        + counted::<crate::file::FsState<M>>();
    /// Of a fork, from there to its end: the process and its first thread.
    pub const FOR_PROCESS: usize =
        Self::FOR_TASK + counted::<crate::Process<M>>() + counted::<crate::signal::Actions>();
    /// Of a `clone` that makes a thread: the thread, and its place in its process's tree of threads.
    pub const FOR_THREAD: usize =
        Self::FOR_TASK + taken_for(quire_heap::Spare::<crate::Pid, quire_task::ThreadRef<M>>::LAYOUT);
    const FOR_TASK: usize = taken_for(Layout::new::<quire_task::Thread<M>>());

    /// Fails to compile where a promise does not cover one of them.
    pub const FITS: () = {
        let promised = FRAMES_A_THREAD as usize * quire_vm::PAGE_SIZE as usize;
        assert!(Self::FOR_CHILD <= promised, "what a fork copies takes more than a thread is promised");
        assert!(Self::FOR_PROCESS <= promised, "a process takes more than a thread is promised");
        assert!(Self::FOR_THREAD <= promised, "a thread takes more than a thread is promised");
    };
}

/// Bytes that the heap takes for an `Arc` of a `T`.
const fn counted<T>() -> usize {
    #[repr(C)]
    struct Counted<T>([usize; 2], T);
    taken_for(Layout::new::<Counted<T>>())
}

/// What a thread is promised, from its making to its end.
pub(crate) struct Promise<M: Machine>(&'static Vm<M>);

impl<M: Machine> Promise<M> {
    /// ENOMEM where it could not be kept.
    pub fn new(vm: &'static Vm<M>) -> Result<Self, Errno> {
        vm.promise_frames()?;
        Ok(Promise(vm))
    }
}

impl<M: Machine> Drop for Promise<M> {
    fn drop(&mut self) {
        self.0.frames().unpromise();
    }
}

impl<M: Machine> Linux<M> {
    /// Lets the calling thread's call keep memory; waits for pageout where that is short. ENOMEM where nothing can be freed.
    /// The caller holds no lock.
    #[inline(always)]
    pub fn admit(&self) -> Result<(), Errno> {
        if self.is_admitted() { Ok(()) } else { self.wait_to_be_admitted() }
    }

    /// Whether a call may keep memory now.
    #[inline(always)]
    pub(crate) fn is_admitted(&self) -> bool {
        self.vm.frames().admits()
    }

    #[cold]
    fn wait_to_be_admitted(&self) -> Result<(), Errno> {
        for _ in 0..ATTEMPTS {
            if !self.vm.wait_for_frames() {
                break;
            }
            if self.vm.frames().admits() {
                return Ok(());
            }
        }
        if self.vm.frames().admits() { Ok(()) } else { Err(Errno::ENOMEM) }
    }

    /// Whether a call that failed with ENOMEM should begin again: memory is short, and pageout has made room since.
    #[cold]
    pub(crate) fn has_made_room(&self) -> bool {
        self.vm.frames().is_low() && self.vm.wait_for_frames()
    }
}

impl<M: Machine> Ctx<'_, M> {
    /// Whether the call may begin if it keeps memory: memory is not low, or the call was refused and admitted since.
    #[inline(always)]
    pub(crate) fn may_keep(&self) -> bool {
        !self.linux.vm.frames().is_low() || self.thread.again.load(Ordering::Relaxed) == Again::TRIES
    }

    /// As [`Linux::admit`]: for a part of a call that keeps memory, and for each round of a loop that does.
    pub fn admit(&self) -> Result<(), Errno> {
        self.linux.admit()
    }
}

impl<M: Machine> Thread<M> {
    /// Whether the allocation that it makes now is refused on purpose.
    #[cfg(debug_assertions)]
    pub fn is_refused(&self) -> bool {
        self.refusals.refuses()
    }

    /// Whether it ends something just now, so that what it needs of the core comes from the last part of the reserve.
    pub fn ends_something(&self) -> bool {
        self.ending.load(Ordering::Relaxed) != 0
    }

    /// Does `f` as something that ends something. The thread itself calls it.
    #[inline(always)]
    pub(crate) fn ending<T>(&self, f: impl FnOnce() -> T) -> T {
        self.ending.store(1, Ordering::Relaxed);
        let done = f();
        self.ending.store(0, Ordering::Relaxed);
        done
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::syscall::SUPPORTED;

    #[test]
    fn what_makes_things_is_admitted_and_what_ends_them_never_refused() {
        let of = |name: &str| {
            let call = SUPPORTED.iter().find(|call| call.name == name).expect("a supported call");
            Class::of(u64::from(call.number))
        };
        for name in
            ["fork", "execve", "open", "openat", "pipe2", "eventfd2", "socketpair", "mkdir", "dup", "memfd_create"]
        {
            assert_eq!(of(name), Class::Keeps, "{name}");
        }
        for name in ["exit", "exit_group", "close", "kill", "wait4", "munmap", "unlink"] {
            assert_eq!(of(name), Class::Ends, "{name}");
        }
        assert_eq!(of("getpid"), Class::Passes);
    }
}
