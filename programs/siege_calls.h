// The shapes of system calls: the meaning of each argument, so that random calls get far into the kernel.
//
//   f  a descriptor            n  a path                  p  memory: good, bad, at an edge      s  a size of memory
//   a  an address of a mapping l  its length              o  an offset in a file                F  flags or a command
//   P  a process               S  a signal                T  a time                             m  a mode
//   u  a user or group         c  a clock                 i  a small number                     v  a vector of ranges
//   ?  anything
#pragma once
#include <stddef.h>
#include <stdint.h>
#include <sys/syscall.h>

static const struct shape {
    uint16_t number;
    const char *arguments;
} shapes[] = {
    {SYS_read, "fps"}, {SYS_write, "fps"}, {SYS_open, "nFm"}, {SYS_close, "f"}, {SYS_stat, "np"}, {SYS_fstat, "fp"},
    {SYS_lstat, "np"}, {SYS_poll, "pii"}, {SYS_lseek, "foi"}, {SYS_mmap, "alFFfo"}, {SYS_mprotect, "alF"},
        {SYS_munmap, "al"},
    {SYS_brk, "a"}, {SYS_rt_sigprocmask, "ippi"}, {SYS_rt_sigaction, "Sppi"}, {SYS_ioctl, "fFp"}, {SYS_pread64, "fpso"},
    {SYS_pwrite64, "fpso"}, {SYS_readv, "fvi"}, {SYS_writev, "fvi"}, {SYS_access, "ni"}, {SYS_pipe, "p"},
        {SYS_select, "ipppT"},
    {SYS_mremap, "allFa"}, {SYS_msync, "alF"}, {SYS_mincore, "alp"}, {SYS_madvise, "alF"}, {SYS_dup, "f"},
        {SYS_dup2, "ff"},
    {SYS_nanosleep, "Tp"}, {SYS_getitimer, "ip"}, {SYS_sendfile, "ffps"}, {SYS_socketpair, "iiip"},
        {SYS_shutdown, "fi"},
    {SYS_socket, "iii"}, {SYS_connect, "fpi"}, {SYS_accept, "fpp"}, {SYS_accept4, "fppF"}, {SYS_sendto, "fpsFpi"},
        {SYS_recvfrom, "fpsFpp"},
    {SYS_sendmsg, "fpF"}, {SYS_recvmsg, "fpF"}, {SYS_sendmmsg, "fpiF"}, {SYS_recvmmsg, "fpiFp"}, {SYS_bind, "fpi"},
        {SYS_listen, "fi"},
    {SYS_getsockname, "fpp"}, {SYS_getpeername, "fpp"}, {SYS_setsockopt, "fiipi"}, {SYS_getsockopt, "fiipp"},
    {SYS_clone, "Fappp"}, {SYS_fork, ""}, {SYS_vfork, ""}, {SYS_execve, "npp"}, {SYS_wait4, "PpFp"}, {SYS_kill, "PS"},
    {SYS_uname, "p"}, {SYS_fcntl, "fF?"}, {SYS_flock, "fi"}, {SYS_fsync, "f"}, {SYS_fdatasync, "f"},
        {SYS_truncate, "no"},
    {SYS_ftruncate, "fo"}, {SYS_getcwd, "ps"}, {SYS_chdir, "n"}, {SYS_fchdir, "f"}, {SYS_rename, "nn"},
        {SYS_mkdir, "nm"},
    {SYS_rmdir, "n"}, {SYS_creat, "nm"}, {SYS_link, "nn"}, {SYS_unlink, "n"}, {SYS_symlink, "nn"},
        {SYS_readlink, "nps"},
    {SYS_chmod, "nm"}, {SYS_fchmod, "fm"}, {SYS_chown, "nuu"}, {SYS_fchown, "fuu"}, {SYS_lchown, "nuu"},
        {SYS_umask, "m"},
    {SYS_getrlimit, "ip"}, {SYS_getrusage, "ip"}, {SYS_sysinfo, "p"}, {SYS_syslog, "ipi"}, {SYS_times, "p"},
        {SYS_setpgid, "PP"}, {SYS_setreuid, "uu"},
    {SYS_setregid, "uu"}, {SYS_getgroups, "ip"}, {SYS_setgroups, "ip"}, {SYS_setresgid, "uuu"}, {SYS_getresuid, "ppp"},
    {SYS_getpgid, "P"}, {SYS_getsid, "P"}, {SYS_capget, "pp"}, {SYS_rt_sigpending, "pi"}, {SYS_rt_sigtimedwait, "ppTi"},
    {SYS_rt_sigqueueinfo, "PSp"}, {SYS_sigaltstack, "pp"}, {SYS_utime, "np"}, {SYS_mknod, "nm?"}, {SYS_statfs, "np"},
    {SYS_fstatfs, "fp"}, {SYS_getpriority, "iP"}, {SYS_ioprio_get, "iP"}, {SYS_ioprio_set, "iPi"},
        {SYS_sched_getparam, "Pp"}, {SYS_sched_rr_get_interval, "Pp"}, {SYS_mlock, "al"},
    {SYS_munlock, "al"}, {SYS_mlockall, "F"}, {SYS_munlockall, ""}, {SYS_prctl, "ippii"}, {SYS_chroot, "n"},
    {SYS_sethostname, "ps"}, {SYS_readahead, "fos"}, {SYS_setxattr, "nnpsF"}, {SYS_getxattr, "nnps"}, {SYS_tkill, "PS"},
    {SYS_futex, "pFiTpi"}, {SYS_sched_setaffinity, "Psp"}, {SYS_sched_getaffinity, "Psp"}, {SYS_epoll_create, "i"},
    {SYS_getdents64, "fps"}, {SYS_set_tid_address, "p"}, {SYS_restart_syscall, ""}, {SYS_fadvise64, "fosi"},
    {SYS_clock_gettime, "cp"}, {SYS_adjtimex, "p"}, {SYS_clock_adjtime, "cp"}, {SYS_clock_getres, "cp"},
        {SYS_clock_nanosleep, "cFTp"}, {SYS_epoll_wait, "fpii"},
    {SYS_epoll_ctl, "fifp"}, {SYS_tgkill, "PPS"}, {SYS_waitid, "iPpFp"}, {SYS_openat, "fnFm"}, {SYS_mkdirat, "fnm"},
    {SYS_mknodat, "fnm?"}, {SYS_fchownat, "fnuuF"}, {SYS_newfstatat, "fnpF"}, {SYS_unlinkat, "fnF"},
        {SYS_renameat, "fnfn"},
    {SYS_linkat, "fnfnF"}, {SYS_symlinkat, "nfn"}, {SYS_readlinkat, "fnps"}, {SYS_fchmodat, "fnm"},
        {SYS_faccessat, "fni"},
    {SYS_pselect6, "ipppTp"}, {SYS_ppoll, "piTpi"}, {SYS_unshare, "F"}, {SYS_set_robust_list, "ps"},
        {SYS_get_robust_list, "Ppp"},
    {SYS_splice, "fpfpsF"}, {SYS_tee, "ffsF"}, {SYS_sync_file_range, "foosF"}, {SYS_vmsplice, "fviF"},
        {SYS_utimensat, "fnpF"},
    {SYS_epoll_pwait, "fpiip"}, {SYS_eventfd, "i"}, {SYS_fallocate, "fFoo"}, {SYS_eventfd2, "iF"},
        {SYS_epoll_create1, "F"},
    {SYS_shmget, "isF"}, {SYS_shmat, "iaF"}, {SYS_shmctl, "iip"}, {SYS_shmdt, "a"}, {SYS_semget, "iiF"},
        {SYS_semop, "ipi"},
    {SYS_semctl, "iiip"}, {SYS_semtimedop, "ipiT"}, {SYS_msgget, "iF"}, {SYS_msgsnd, "ipsF"}, {SYS_msgrcv, "ipsiF"},
        {SYS_msgctl, "iip"},
    {SYS_mq_open, "nFmp"}, {SYS_mq_unlink, "n"}, {SYS_mq_timedsend, "fpsiT"}, {SYS_mq_timedreceive, "fpspT"},
        {SYS_mq_notify, "fp"},
    {SYS_mq_getsetattr, "fpp"},
    {SYS_dup3, "ffF"}, {SYS_pipe2, "pF"}, {SYS_preadv, "fvio"}, {SYS_pwritev, "fvio"}, {SYS_rt_tgsigqueueinfo, "PPSp"},
    {SYS_getcpu, "ppp"}, {SYS_renameat2, "fnfnF"}, {SYS_getrandom, "psF"}, {SYS_memfd_create, "nF"},
        {SYS_execveat, "fnppF"},
    {SYS_mlock2, "alF"}, {SYS_copy_file_range, "fpfpsF"}, {SYS_preadv2, "fvioiF"}, {SYS_pwritev2, "fvioiF"},
        {SYS_statx, "fnFip"},
    {SYS_timer_create, "cpp"}, {SYS_timer_settime, "iFpp"}, {SYS_timer_gettime, "ip"}, {SYS_timer_getoverrun, "i"},
    {SYS_timer_delete, "i"}, {SYS_timerfd_create, "cF"}, {SYS_signalfd, "fpi"}, {SYS_signalfd4, "fpiF"},
        {SYS_timerfd_settime, "fFpp"}, {SYS_timerfd_gettime, "fp"},
    {SYS_process_vm_readv, "PviviF"}, {SYS_process_vm_writev, "PviviF"}, {SYS_sched_getattr, "PpiF"},
        {324 /* membarrier */, "FFi"},
    {437 /* openat2 */, "fnps"}, {449 /* futex_waitv */, "piFTc"}, {SYS_name_to_handle_at, "fnppF"},
    {SYS_rseq, "piF?"}, {SYS_inotify_init, ""}, {SYS_inotify_init1, "F"}, {SYS_inotify_add_watch, "fni"},
        {SYS_inotify_rm_watch, "fi"},
    {SYS_removexattr, "nn"}, {SYS_listxattr, "nps"}, {424 /* pidfd_send_signal */, "fSpF"},
        {434 /* pidfd_open */, "PF"}, {438 /* pidfd_getfd */, "ffF"}, {435 /* clone3 */, "ps"},
        {436 /* close_range */, "ffF"}, {439 /* faccessat2 */, "fniF"}, {441 /* epoll_pwait2 */, "fpiTp"},
        {SYS_remap_file_pages, "alioF"}, {462 /* mseal */, "alF"},
};

// Calls that are never made, and why: they would legitimately end or blind the siege itself.
static const struct forbidden {
    uint16_t number;
    bool root_only; // another user is refused it, which is worth a try
    const char *why;
} forbidden[] = {
    {SYS_exit, false, "ends the attacker at once"},
    {SYS_exit_group, false, "ends the attacker at once"},
    {SYS_rt_sigreturn, false, "has a fuzzer of its own, for forged frames"},
    {SYS_pause, false, "only waits"},
    {SYS_rt_sigsuspend, false, "only waits, with the alarm blocked"},
    {SYS_reboot, true, "ends the machine"},
    {SYS_setrlimit, false, "lifts the limits that keep this an attack and no mere lack of memory"},
    {SYS_prlimit64, false, "the same"},
    {SYS_setuid, true, "an attacker of root's stays one"},
    {SYS_setresuid, true, "the same"},
    {SYS_setreuid, true, "the same"},
    {SYS_setfsuid, true, "the same"},
    {SYS_setpriority, true, "root may keep CPUs from root"},
    {SYS_sched_setscheduler, true, "the same"},
    {SYS_sched_setparam, true, "the same"},
    {SYS_sched_setattr, true, "the same"},
    {SYS_mount, true, "changes state that the check at the end reads"},
    {SYS_umount2, true, "the same"},
    {SYS_pivot_root, true, "the same"},
    {SYS_swapon, true, "the same"},
    {SYS_swapoff, true, "the same"},
    {SYS_shmget, false, "outlives the attacker"},
    {SYS_msgget, false, "the same"},
    {SYS_semget, false, "the same"},
};

// Processes that these name may only be the attacker itself, or none.
static const uint16_t harms_process[] = {
    SYS_kill, SYS_tkill, SYS_tgkill, SYS_rt_sigqueueinfo, SYS_rt_tgsigqueueinfo, SYS_setpgid, SYS_sched_setaffinity,
        SYS_ptrace,
    SYS_process_vm_writev, SYS_migrate_pages, SYS_move_pages, SYS_ioprio_set,
};
