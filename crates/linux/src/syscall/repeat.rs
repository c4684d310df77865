//! The calls that may be repeated after ENOMEM.
//!
//! While memory is short, a call that failed with ENOMEM waits for pageout and is repeated
//! ([`Linux::syscall`](crate::entry::syscall)). That is correct only if effects of the failed attempt cannot disturb
//! the next one. Each supported call is in one of three lists. A call in none of them is not repeated.

use linux_raw_sys::general as raw;

/// The effects of a call that has failed with ENOMEM.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Repeat {
    /// No effects. The call allocates before it changes anything, undoes its changes, or succeeds with the completed
    /// part.
    Nothing,
    /// A failed call may have done a part of its effect. After a repetition, the effect equals that of a single
    /// successful call.
    Same,
    /// The call is not repeated.
    Never,
}

impl Repeat {
    /// The list of call `number`, or `None` if it is in no list.
    #[allow(clippy::too_many_lines)]
    pub const fn of(number: u64) -> Option<Repeat> {
        Some(match number as u32 {
            // The calls of this list reserve descriptors before they make files. A call for two descriptors reserves
            // both or none. The ids, threads and processes that a failed call has made are freed when their values are
            // dropped. Transfers that have moved bytes return the number of bytes. Names are linked after all
            // allocations.
            raw::__NR_read
            | raw::__NR_write
            | raw::__NR_open
            | raw::__NR_close
            | raw::__NR_mmap
            | raw::__NR_munmap
            | raw::__NR_rt_sigaction
            | raw::__NR_ioctl
            | raw::__NR_pread64
            | raw::__NR_pwrite64
            | raw::__NR_readv
            | raw::__NR_writev
            | raw::__NR_pipe
            | raw::__NR_mremap
            | raw::__NR_mseal
            | raw::__NR_remap_file_pages
            | raw::__NR_dup
            | raw::__NR_dup2
            | raw::__NR_nanosleep
            | raw::__NR_alarm
            | raw::__NR_setitimer
            | raw::__NR_sendfile
            | raw::__NR_socketpair
            | raw::__NR_socket
            | raw::__NR_connect
            | raw::__NR_accept
            | raw::__NR_accept4
            | raw::__NR_sendto
            | raw::__NR_sendmsg
            | raw::__NR_sendmmsg
            | raw::__NR_recvfrom
            | raw::__NR_recvmsg
            | raw::__NR_recvmmsg
            | raw::__NR_bind
            | raw::__NR_clone
            | raw::__NR_fork
            | raw::__NR_vfork
            | raw::__NR_execve
            | raw::__NR_wait4
            | raw::__NR_kill
            | raw::__NR_fcntl
            | raw::__NR_flock
            | raw::__NR_rename
            | raw::__NR_mkdir
            | raw::__NR_rmdir
            | raw::__NR_creat
            | raw::__NR_link
            | raw::__NR_unlink
            | raw::__NR_symlink
            | raw::__NR_setuid
            | raw::__NR_setgid
            | raw::__NR_setpgid
            | raw::__NR_setsid
            | raw::__NR_setreuid
            | raw::__NR_setregid
            | raw::__NR_setgroups
            | raw::__NR_setresuid
            | raw::__NR_setresgid
            | raw::__NR_setfsuid
            | raw::__NR_setfsgid
            | raw::__NR_capset
            | raw::__NR_rt_sigtimedwait
            | raw::__NR_rt_sigqueueinfo
            | raw::__NR_mknod
            | raw::__NR_prctl
            | raw::__NR_adjtimex
            | raw::__NR_clock_adjtime
            | raw::__NR_tkill
            | raw::__NR_futex
            | raw::__NR_epoll_create
            | raw::__NR_getdents64
            | raw::__NR_restart_syscall
            | raw::__NR_clock_nanosleep
            | raw::__NR_epoll_ctl
            | raw::__NR_tgkill
            | raw::__NR_waitid
            | raw::__NR_openat
            | raw::__NR_openat2
            | raw::__NR_mount
            | raw::__NR_umount2
            | raw::__NR_mkdirat
            | raw::__NR_mknodat
            | raw::__NR_unlinkat
            | raw::__NR_renameat
            | raw::__NR_linkat
            | raw::__NR_symlinkat
            | raw::__NR_timer_create
            | raw::__NR_timerfd_create
            | raw::__NR_signalfd
            | raw::__NR_inotify_init
            | raw::__NR_inotify_init1
            | raw::__NR_inotify_add_watch
            | raw::__NR_inotify_rm_watch
            | raw::__NR_pidfd_open
            | raw::__NR_pidfd_getfd
            | raw::__NR_pidfd_send_signal
            | raw::__NR_signalfd4
            | raw::__NR_eventfd
            | raw::__NR_eventfd2
            | raw::__NR_epoll_create1
            | raw::__NR_dup3
            | raw::__NR_pipe2
            | raw::__NR_preadv
            | raw::__NR_pwritev
            | raw::__NR_rt_tgsigqueueinfo
            | raw::__NR_renameat2
            | raw::__NR_memfd_create
            | raw::__NR_shmget
            | raw::__NR_shmat
            | raw::__NR_shmctl
            | raw::__NR_semget
            | raw::__NR_semop
            | raw::__NR_semtimedop
            | raw::__NR_semctl
            | raw::__NR_msgget
            | raw::__NR_msgsnd
            | raw::__NR_msgrcv
            | raw::__NR_msgctl
            | raw::__NR_mq_open
            | raw::__NR_mq_unlink
            | raw::__NR_mq_timedsend
            | raw::__NR_mq_timedreceive
            | raw::__NR_mq_notify
            | raw::__NR_mq_getsetattr
            | raw::__NR_execveat
            | raw::__NR_copy_file_range
            | raw::__NR_preadv2
            | raw::__NR_pwritev2
            | raw::__NR_clone3
            | raw::__NR_lseek
            | raw::__NR_epoll_wait
            | raw::__NR_epoll_pwait
            | raw::__NR_epoll_pwait2 => Repeat::Nothing,
            // The calls of this list read, set a given value, or finish the rest of a range. A call with a temporary
            // signal mask keeps the mask that its first attempt saved.
            raw::__NR_mprotect
            | raw::__NR_madvise
            | raw::__NR_msync
            | raw::__NR_mlock
            | raw::__NR_mlock2
            | raw::__NR_munlock
            | raw::__NR_mlockall
            | raw::__NR_munlockall
            | raw::__NR_brk
            | raw::__NR_shmdt
            | raw::__NR_mincore
            | raw::__NR_truncate
            | raw::__NR_ftruncate
            | raw::__NR_fallocate
            | raw::__NR_fsync
            | raw::__NR_fdatasync
            | raw::__NR_sync
            | raw::__NR_syncfs
            | raw::__NR_sync_file_range
            | raw::__NR_fadvise64
            | raw::__NR_readahead
            | raw::__NR_close_range
            | raw::__NR_unshare
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
            | raw::__NR_fchmodat2
            | raw::__NR_chown
            | raw::__NR_fchown
            | raw::__NR_lchown
            | raw::__NR_fchownat
            | raw::__NR_utime
            | raw::__NR_utimes
            | raw::__NR_futimesat
            | raw::__NR_utimensat
            | raw::__NR_umask
            | raw::__NR_chdir
            | raw::__NR_fchdir
            | raw::__NR_chroot
            | raw::__NR_uname
            | raw::__NR_sysinfo
            | raw::__NR_syslog
            | raw::__NR_times
            | raw::__NR_time
            | raw::__NR_getrusage
            | raw::__NR_getrlimit
            | raw::__NR_setrlimit
            | raw::__NR_prlimit64
            | raw::__NR_getuid
            | raw::__NR_getgid
            | raw::__NR_geteuid
            | raw::__NR_getegid
            | raw::__NR_getresuid
            | raw::__NR_getresgid
            | raw::__NR_getgroups
            | raw::__NR_getpid
            | raw::__NR_getppid
            | raw::__NR_getpgrp
            | raw::__NR_getpgid
            | raw::__NR_getsid
            | raw::__NR_gettid
            | raw::__NR_capget
            | raw::__NR_getpriority
            | raw::__NR_setpriority
            | raw::__NR_ioprio_get
            | raw::__NR_ioprio_set
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
            | raw::__NR_sched_setattr
            | raw::__NR_sched_getattr
            | raw::__NR_membarrier
            | raw::__NR_name_to_handle_at
            | raw::__NR_open_by_handle_at
            | raw::__NR_process_vm_readv
            | raw::__NR_process_vm_writev
            | raw::__NR_futex_waitv
            | raw::__NR_getrandom
            | raw::__NR_gettimeofday
            | raw::__NR_settimeofday
            | raw::__NR_clock_gettime
            | raw::__NR_clock_settime
            | raw::__NR_clock_getres
            | raw::__NR_getitimer
            | raw::__NR_rseq
            | raw::__NR_timer_settime
            | raw::__NR_timer_gettime
            | raw::__NR_timer_getoverrun
            | raw::__NR_timer_delete
            | raw::__NR_timerfd_settime
            | raw::__NR_timerfd_gettime
            | raw::__NR_rt_sigpending
            | raw::__NR_rt_sigprocmask
            | raw::__NR_sigaltstack
            | raw::__NR_set_tid_address
            | raw::__NR_set_robust_list
            | raw::__NR_get_robust_list
            | raw::__NR_arch_prctl
            | raw::__NR_personality
            | raw::__NR_sethostname
            | raw::__NR_setdomainname
            | raw::__NR_setxattr
            | raw::__NR_lsetxattr
            | raw::__NR_fsetxattr
            | raw::__NR_getxattr
            | raw::__NR_lgetxattr
            | raw::__NR_fgetxattr
            | raw::__NR_listxattr
            | raw::__NR_llistxattr
            | raw::__NR_flistxattr
            | raw::__NR_removexattr
            | raw::__NR_lremovexattr
            | raw::__NR_fremovexattr
            | raw::__NR_listen
            | raw::__NR_getsockname
            | raw::__NR_getpeername
            | raw::__NR_setsockopt
            | raw::__NR_getsockopt
            | raw::__NR_splice
            | raw::__NR_tee
            | raw::__NR_vmsplice
            | raw::__NR_shutdown
            | raw::__NR_poll
            | raw::__NR_ppoll
            | raw::__NR_select
            | raw::__NR_pselect6
            | raw::__NR_rt_sigsuspend
            | raw::__NR_pause => Repeat::Same,
            // The calls of this list do not return, or their result register belongs to the program.
            raw::__NR_rt_sigreturn | raw::__NR_exit | raw::__NR_reboot | raw::__NR_exit_group => Repeat::Never,
            _ => return None,
        })
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use crate::syscall::SUPPORTED;

    #[test]
    fn each_supported_call_is_in_a_list_of_repeat_effects() {
        let missing: Vec<_> = SUPPORTED
            .iter()
            .filter(|call| Repeat::of(u64::from(call.number)).is_none())
            .map(|call| call.name)
            .collect();
        assert!(missing.is_empty(), "no list of repeat effects has {missing:?}");
        // Unsupported calls are in no list.
        assert_eq!(Repeat::of(u64::from(raw::__NR_init_module)), None);
    }

    #[test]
    fn failed_calls_leave_nothing_and_endings_are_not_repeated() {
        let of = |n: u32| Repeat::of(u64::from(n));
        for call in
            [raw::__NR_read, raw::__NR_openat, raw::__NR_mkdir, raw::__NR_clone, raw::__NR_munmap, raw::__NR_mremap]
        {
            assert_eq!(of(call), Some(Repeat::Nothing));
        }
        assert_eq!(of(raw::__NR_madvise), Some(Repeat::Same));
        assert_eq!(of(raw::__NR_exit_group), Some(Repeat::Never));
    }
}
