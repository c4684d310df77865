//! The table: one line a call, `number name => handler, "what is missing or different";`.

use super::{Handler, Supported};
use crate::errno::{Errno, encode};
use crate::shortage::ends;
use crate::{Ctx, Machine};
use crate::{exec, file, futex, ipc, memory, mount, process, rseq, signal, socket, system, time};

macro_rules! table {
    ($($number:literal $name:ident => $($handler:ident)::+ $(, $note:literal)?;)*) => {
        /// Calls handler `number` with `registers` and encodes its result. `None` if there is no such call.
        #[inline(always)]
        pub fn dispatch<M: Machine>(
            ctx: &mut Ctx<'_, M>,
            number: u64,
            registers: &[u64; 6],
        ) -> Option<u64> {
            Some(match number {
                $($number => encode(match const { ends($number) } {
                    true => end($($handler)::+::<M>, ctx, *registers),
                    false => Handler::serve($($handler)::+::<M>, ctx, registers),
                }),)*
                _ => return None,
            })
        }

        /// The supported calls, ascending by number.
        pub static SUPPORTED: &[Supported] =
            &[$(Supported { number: $number, name: stringify!($name), note: concat!("", $($note)?) },)*];
    };
}

/// Runs `handler` with the rights of a call that ends something. Never inlined, so that the dispatcher keeps no state
/// across a call.
#[inline(never)]
fn end<M: Machine, Args>(
    handler: impl Handler<M, Args>,
    ctx: &mut Ctx<'_, M>,
    registers: [u64; 6],
) -> Result<usize, Errno> {
    let thread = ctx.thread;
    thread.ending(|| handler.serve(ctx, &registers))
}

table! {
    0 read => file::sys_read;
    1 write => file::sys_write;
    2 open => file::sys_open;
    3 close => file::sys_close;
    4 stat => file::sys_stat;
    5 fstat => file::sys_fstat;
    6 lstat => file::sys_lstat;
    7 poll => file::sys_poll;
    8 lseek => file::sys_lseek;
    9 mmap => memory::map::sys_mmap, "no huge pages; x86 memory that can be written or executed can be read, and `/proc/<pid>/maps` says so";
    10 mprotect => memory::protect::sys_mprotect;
    11 munmap => memory::map::sys_munmap;
    12 brk => memory::brk::sys_brk;
    13 rt_sigaction => signal::calls::sys_rt_sigaction;
    14 rt_sigprocmask => signal::calls::sys_rt_sigprocmask;
    15 rt_sigreturn => signal::frame::sys_rt_sigreturn;
    16 ioctl => file::sys_ioctl;
    17 pread64 => file::sys_pread64;
    18 pwrite64 => file::sys_pwrite64;
    19 readv => file::sys_readv;
    20 writev => file::sys_writev;
    21 access => file::sys_access;
    22 pipe => file::sys_pipe;
    23 select => file::sys_select;
    24 sched_yield => process::scheduling::sys_sched_yield;
    25 mremap => memory::remap::sys_mremap, "several mappings are not moved by one call, as Linux does since 6.17: EFAULT";
    26 msync => memory::advise::sys_msync;
    27 mincore => memory::advise::sys_mincore;
    28 madvise => memory::advise::sys_madvise, "hints about huge pages, ageing and core files are accepted and do nothing; those about merging are EINVAL";
    29 shmget => ipc::sys_shmget, "no huge pages";
    30 shmat => ipc::sys_shmat;
    31 shmctl => ipc::sys_shmctl, "pages in swap count as resident; locked pages that are in swap stay there until they are used";
    32 dup => file::sys_dup;
    33 dup2 => file::sys_dup2;
    34 pause => signal::wait::sys_pause;
    35 nanosleep => time::sleep::sys_nanosleep;
    36 getitimer => time::interval::sys_getitimer;
    37 alarm => time::interval::sys_alarm;
    38 setitimer => time::interval::sys_setitimer;
    39 getpid => process::identity::sys_getpid;
    40 sendfile => file::sys_sendfile;
    41 socket => socket::sys_socket;
    42 connect => socket::sys_connect;
    43 accept => socket::sys_accept;
    44 sendto => socket::sys_sendto;
    45 recvfrom => socket::sys_recvfrom;
    46 sendmsg => socket::sys_sendmsg;
    47 recvmsg => socket::sys_recvmsg;
    48 shutdown => socket::sys_shutdown;
    49 bind => socket::sys_bind;
    50 listen => socket::sys_listen;
    51 getsockname => socket::sys_getsockname;
    52 getpeername => socket::sys_getpeername;
    53 socketpair => socket::sys_socketpair;
    54 setsockopt => socket::sys_setsockopt;
    55 getsockopt => socket::sys_getsockopt;
    56 clone => process::fork::sys_clone, "no namespaces or control groups";
    57 fork => process::fork::sys_fork;
    58 vfork => process::fork::sys_vfork;
    59 execve => exec::sys_execve;
    60 exit => process::exit::sys_exit;
    61 wait4 => process::wait::sys_wait4;
    62 kill => signal::calls::sys_kill, "SIGKILL and SIGSTOP of other processes do nothing to process 1; any other signal that it does not handle ends it";
    63 uname => system::sys_uname;
    64 semget => ipc::sys_semget;
    65 semop => ipc::sys_semop;
    66 semctl => ipc::sys_semctl;
    67 shmdt => ipc::sys_shmdt;
    68 msgget => ipc::sys_msgget;
    69 msgsnd => ipc::sys_msgsnd;
    70 msgrcv => ipc::sys_msgrcv;
    71 msgctl => ipc::sys_msgctl;
    72 fcntl => file::sys_fcntl;
    73 flock => file::sys_flock;
    74 fsync => file::sys_fsync;
    75 fdatasync => file::sys_fdatasync;
    76 truncate => file::sys_truncate;
    77 ftruncate => file::sys_ftruncate;
    79 getcwd => file::sys_getcwd;
    80 chdir => file::sys_chdir;
    81 fchdir => file::sys_fchdir;
    82 rename => file::sys_rename;
    83 mkdir => file::sys_mkdir;
    84 rmdir => file::sys_rmdir;
    85 creat => file::sys_creat;
    86 link => file::sys_link;
    87 unlink => file::sys_unlink;
    88 symlink => file::sys_symlink;
    89 readlink => file::sys_readlink;
    90 chmod => file::sys_chmod;
    91 fchmod => file::sys_fchmod;
    92 chown => file::sys_chown;
    93 fchown => file::sys_fchown;
    94 lchown => file::sys_lchown;
    95 umask => file::sys_umask;
    96 gettimeofday => time::clock::sys_gettimeofday, "the time zone is always zero";
    97 getrlimit => process::prlimit::sys_getrlimit;
    98 getrusage => process::rusage::sys_getrusage;
    99 sysinfo => system::sys_sysinfo;
    100 times => process::rusage::sys_times;
    102 getuid => process::identities::sys_getuid;
    104 getgid => process::identities::sys_getgid;
    105 setuid => process::identities::sys_setuid;
    106 setgid => process::identities::sys_setgid;
    107 geteuid => process::identities::sys_geteuid;
    108 getegid => process::identities::sys_getegid;
    109 setpgid => process::job_control::sys_setpgid;
    110 getppid => process::identity::sys_getppid;
    111 getpgrp => process::job_control::sys_getpgrp;
    112 setsid => process::job_control::sys_setsid;
    113 setreuid => process::identities::sys_setreuid;
    114 setregid => process::identities::sys_setregid;
    115 getgroups => process::identities::sys_getgroups;
    116 setgroups => process::identities::sys_setgroups;
    117 setresuid => process::identities::sys_setresuid;
    118 getresuid => process::identities::sys_getresuid;
    119 setresgid => process::identities::sys_setresgid;
    120 getresgid => process::identities::sys_getresgid;
    121 getpgid => process::job_control::sys_getpgid;
    122 setfsuid => process::identities::sys_setfsuid;
    123 setfsgid => process::identities::sys_setfsgid;
    124 getsid => process::job_control::sys_getsid;
    125 capget => process::identities::sys_capget;
    126 capset => process::identities::sys_capset, "files have no capabilities of their own";
    127 rt_sigpending => signal::calls::sys_rt_sigpending;
    128 rt_sigtimedwait => signal::wait::sys_rt_sigtimedwait;
    129 rt_sigqueueinfo => signal::calls::sys_rt_sigqueueinfo;
    130 rt_sigsuspend => signal::wait::sys_rt_sigsuspend;
    131 sigaltstack => signal::alt_stack::sys_sigaltstack;
    132 utime => file::sys_utime;
    133 mknod => file::sys_mknod;
    135 personality => process::identity::sys_personality, "`ADDR_NO_RANDOMIZE` and `STICKY_TIMEOUTS` have their effects; other flags are remembered and change nothing";
    137 statfs => file::sys_statfs;
    138 fstatfs => file::sys_fstatfs;
    140 getpriority => process::scheduling::sys_getpriority;
    141 setpriority => process::scheduling::sys_setpriority;
    142 sched_setparam => process::scheduling_class::sys_sched_setparam, "real-time classes are refused: EPERM";
    143 sched_getparam => process::scheduling_class::sys_sched_getparam;
    144 sched_setscheduler => process::scheduling_class::sys_sched_setscheduler, "real-time classes are refused: EPERM";
    145 sched_getscheduler => process::scheduling_class::sys_sched_getscheduler;
    146 sched_get_priority_max => process::scheduling::sys_sched_get_priority_max;
    147 sched_get_priority_min => process::scheduling::sys_sched_get_priority_min;
    148 sched_rr_get_interval => process::scheduling::sys_sched_rr_get_interval;
    149 mlock => memory::lock::sys_mlock;
    150 munlock => memory::lock::sys_munlock;
    151 mlockall => memory::lock::sys_mlockall;
    152 munlockall => memory::lock::sys_munlockall;
    157 prctl => process::prctl::sys_prctl, "names, death signal, subreaper, no-new-privileges, dumpable, capabilities; others EINVAL";
    158 arch_prctl => process::prctl::sys_arch_prctl;
    160 setrlimit => process::prlimit::sys_setrlimit, "as `prlimit64`";
    161 chroot => file::sys_chroot;
    162 sync => file::sys_sync;
    164 settimeofday => time::clock::sys_settimeofday;
    165 mount => mount::sys_mount, "`tmpfs`, `proc` and `sysfs`; no bind mounts and no moves: EINVAL";
    166 umount2 => mount::sys_umount2, "the mounts of boot stay: EBUSY";
    169 reboot => system::sys_reboot, "every command that ends the machine powers off";
    170 sethostname => system::sys_sethostname;
    171 setdomainname => system::sys_setdomainname;
    186 gettid => process::identity::sys_gettid;
    187 readahead => file::sys_readahead;
    188 setxattr => file::sys_setxattr;
    189 lsetxattr => file::sys_lsetxattr;
    190 fsetxattr => file::sys_fsetxattr;
    191 getxattr => file::sys_getxattr;
    192 lgetxattr => file::sys_lgetxattr;
    193 fgetxattr => file::sys_fgetxattr;
    194 listxattr => file::sys_listxattr;
    195 llistxattr => file::sys_llistxattr;
    196 flistxattr => file::sys_flistxattr;
    197 removexattr => file::sys_removexattr;
    198 lremovexattr => file::sys_lremovexattr;
    199 fremovexattr => file::sys_fremovexattr;
    200 tkill => signal::calls::sys_tkill;
    201 time => time::clock::sys_time;
    202 futex => futex::sys_futex, "with priority inheritance by nice values; all operations but `FUTEX_FD`";
    203 sched_setaffinity => process::scheduling::sys_sched_setaffinity, "also for threads that run or wait elsewhere";
    204 sched_getaffinity => process::scheduling::sys_sched_getaffinity;
    213 epoll_create => file::sys_epoll_create;
    216 remap_file_pages => memory::show::sys_remap_file_pages;
    217 getdents64 => file::sys_getdents64;
    218 set_tid_address => process::identity::sys_set_tid_address;
    219 restart_syscall => time::sleep::sys_restart_syscall;
    220 semtimedop => ipc::sys_semtimedop;
    221 fadvise64 => file::sys_fadvise64;
    222 timer_create => time::posix::sys_timer_create, "not on the CPU time of another process (EOPNOTSUPP)";
    223 timer_settime => time::posix::sys_timer_settime;
    224 timer_gettime => time::posix::sys_timer_gettime;
    225 timer_getoverrun => time::posix::sys_timer_getoverrun;
    226 timer_delete => time::posix::sys_timer_delete;
    227 clock_settime => time::clock::sys_clock_settime;
    228 clock_gettime => time::clock::sys_clock_gettime;
    229 clock_getres => time::clock::sys_clock_getres;
    230 clock_nanosleep => time::sleep::sys_clock_nanosleep, "not on clocks of CPU time";
    231 exit_group => process::exit::sys_exit_group;
    232 epoll_wait => file::sys_epoll_wait;
    233 epoll_ctl => file::sys_epoll_ctl;
    234 tgkill => signal::calls::sys_tgkill;
    235 utimes => file::sys_utimes;
    240 mq_open => ipc::sys_mq_open, "a queue has no file in a directory, and its mode cannot be changed";
    241 mq_unlink => ipc::sys_mq_unlink;
    242 mq_timedsend => ipc::sys_mq_timedsend;
    243 mq_timedreceive => ipc::sys_mq_timedreceive;
    244 mq_notify => ipc::sys_mq_notify, "no SIGEV_THREAD, which needs a netlink socket; a notification ends with the last close of the file";
    245 mq_getsetattr => ipc::sys_mq_getsetattr;
    247 waitid => process::wait::sys_waitid;
    251 ioprio_set => process::io_priority::sys_ioprio_set, "files are in memory, so nothing obeys it";
    252 ioprio_get => process::io_priority::sys_ioprio_get;
    253 inotify_init => file::inotify::sys_inotify_init;
    254 inotify_add_watch => file::inotify::sys_inotify_add_watch;
    255 inotify_rm_watch => file::inotify::sys_inotify_rm_watch;
    257 openat => file::sys_openat;
    258 mkdirat => file::sys_mkdirat;
    259 mknodat => file::sys_mknodat;
    260 fchownat => file::sys_fchownat;
    261 futimesat => file::sys_futimesat;
    262 newfstatat => file::sys_newfstatat;
    263 unlinkat => file::sys_unlinkat;
    264 renameat => file::sys_renameat;
    265 linkat => file::sys_linkat;
    266 symlinkat => file::sys_symlinkat;
    267 readlinkat => file::sys_readlinkat;
    268 fchmodat => file::sys_fchmodat;
    269 faccessat => file::sys_faccessat;
    270 pselect6 => file::sys_pselect6;
    271 ppoll => file::sys_ppoll;
    272 unshare => process::identity::sys_unshare, "files and file system state; no namespaces";
    273 set_robust_list => futex::robust::sys_set_robust_list;
    274 get_robust_list => futex::robust::sys_get_robust_list;
    275 splice => file::sys_splice, "bytes are copied: a pipe does not see later changes of a page";
    276 tee => file::sys_tee;
    277 sync_file_range => file::sys_sync_file_range;
    278 vmsplice => file::sys_vmsplice, "as `splice`";
    280 utimensat => file::sys_utimensat;
    281 epoll_pwait => file::sys_epoll_pwait;
    282 signalfd => signal::signal_file::sys_signalfd;
    283 timerfd_create => file::sys_timerfd_create;
    284 eventfd => file::sys_eventfd;
    285 fallocate => file::sys_fallocate, "with FALLOC_FL_KEEP_SIZE takes no memory behind the end of the file";
    286 timerfd_settime => file::sys_timerfd_settime;
    287 timerfd_gettime => file::sys_timerfd_gettime;
    288 accept4 => socket::sys_accept4;
    289 signalfd4 => signal::signal_file::sys_signalfd4;
    290 eventfd2 => file::sys_eventfd2;
    291 epoll_create1 => file::sys_epoll_create1;
    292 dup3 => file::sys_dup3;
    293 pipe2 => file::sys_pipe2;
    294 inotify_init1 => file::inotify::sys_inotify_init1;
    295 preadv => file::sys_preadv;
    296 pwritev => file::sys_pwritev;
    297 rt_tgsigqueueinfo => signal::calls::sys_rt_tgsigqueueinfo;
    299 recvmmsg => socket::sys_recvmmsg;
    302 prlimit64 => process::prlimit::sys_prlimit64, "no real-time classes, so their limits limit nothing";
    303 name_to_handle_at => file::sys_name_to_handle_at, "no handles: EOPNOTSUPP";
    304 open_by_handle_at => file::sys_open_by_handle_at, "no handles: EOPNOTSUPP";
    306 syncfs => file::sys_syncfs;
    307 sendmmsg => socket::sys_sendmmsg;
    309 getcpu => process::scheduling::sys_getcpu;
    310 process_vm_readv => process::foreign::sys_process_vm_readv;
    311 process_vm_writev => process::foreign::sys_process_vm_writev;
    314 sched_setattr => process::scheduling_class::sys_sched_setattr, "real-time and deadline classes are refused: EPERM";
    315 sched_getattr => process::scheduling_class::sys_sched_getattr;
    316 renameat2 => file::sys_renameat2;
    318 getrandom => system::sys_getrandom;
    319 memfd_create => file::sys_memfd_create, "no huge pages: MFD_HUGETLB is EINVAL";
    322 execveat => exec::sys_execveat;
    324 membarrier => process::barrier::sys_membarrier, "no barriers of restartable sequences";
    325 mlock2 => memory::lock::sys_mlock2;
    326 copy_file_range => file::sys_copy_file_range;
    327 preadv2 => file::sys_preadv2;
    328 pwritev2 => file::sys_pwritev2;
    332 statx => file::sys_statx;
    334 rseq => rseq::sys_rseq, "the concurrency id `mm_cid` is the CPU's number";
    424 pidfd_send_signal => signal::calls::sys_pidfd_send_signal;
    434 pidfd_open => process::pidfd::sys_pidfd_open, "not of a thread: PIDFD_THREAD is EINVAL";
    435 clone3 => process::fork::sys_clone3, "no namespaces, control groups or chosen ids";
    436 close_range => file::sys_close_range;
    437 openat2 => file::sys_openat2;
    438 pidfd_getfd => process::pidfd::sys_pidfd_getfd;
    439 faccessat2 => file::sys_faccessat2;
    441 epoll_pwait2 => file::sys_epoll_pwait2;
    449 futex_waitv => futex::many::sys_futex_waitv;
    452 fchmodat2 => file::sys_fchmodat2;
    462 mseal => memory::seal::sys_mseal;
}
