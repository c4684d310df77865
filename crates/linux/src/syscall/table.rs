//! The system call table. It has a line for each call:
//! `number name => handler, flags "supported ones", "missing or different parts";`.

use crate::syscall::{Handler, Supported};
use crate::{exec, file, futex, ipc, memory, mount, process, rseq, signal, socket, syslog, system, time};
use quire_linux_state::errno::{Errno, encode};
use quire_linux_state::shortage::ends;
use quire_linux_state::{Ctx, Machine};

macro_rules! table {
    ($($number:literal $name:ident => $($handler:ident)::+ $(, flags $flags:literal)? $(, $note:literal)?;)*) => {
        /// Calls handler `number` and encodes its result. `None` if there is no such call.
        #[inline(always)]
        pub fn dispatch<M: Machine>(ctx: &mut Ctx<'_, M>, number: u64) -> Option<u64> {
            Some(match number {
                $($number => encode(match const { ends($number) } {
                    true => end($($handler)::+::<M>, ctx),
                    false => Handler::serve($($handler)::+::<M>, ctx),
                }),)*
                _ => return None,
            })
        }

        /// The supported calls, ascending by number.
        pub static SUPPORTED: &[Supported] =
            &[$(Supported {
                number: $number,
                name: stringify!($name),
                handler: concat!($("::", stringify!($handler)),+),
                flags: concat!("", $($flags)?),
                note: concat!("", $($note)?),
            },)*];
    };
}

/// Runs a handler that ends something (a process, a mapping). It may allocate from the floor, the last part of the
/// memory reserve. The function is never inlined, so that the dispatcher keeps no state across a call.
#[inline(never)]
fn end<M: Machine, Args>(handler: impl Handler<M, Args>, ctx: &mut Ctx<'_, M>) -> Result<usize, Errno> {
    let thread = ctx.thread;
    thread.ending(|| handler.serve(ctx))
}

table! {
    0 read => file::sys_read;
    1 write => file::sys_write;
    2 open => file::sys_open, flags "O_RDONLY, O_WRONLY, O_RDWR, O_CREAT, O_EXCL, O_NOCTTY, O_TRUNC, O_APPEND, \
         O_NONBLOCK, O_DIRECTORY, O_NOFOLLOW, O_NOATIME, O_CLOEXEC, O_PATH, O_TMPFILE, O_LARGEFILE", "O_DSYNC, O_SYNC \
         and O_DIRECT are accepted and do nothing: files are in memory";
    3 close => file::sys_close;
    4 stat => file::sys_stat;
    5 fstat => file::sys_fstat;
    6 lstat => file::sys_lstat;
    7 poll => file::sys_poll, flags "POLLIN, POLLOUT, POLLPRI, POLLRDNORM, POLLWRNORM, POLLRDHUP, POLLERR, POLLHUP, \
         POLLNVAL";
    8 lseek => file::sys_lseek, flags "SEEK_SET, SEEK_CUR, SEEK_END, SEEK_DATA, SEEK_HOLE";
    9 mmap => memory::map::sys_mmap, flags "MAP_SHARED, MAP_PRIVATE, MAP_SHARED_VALIDATE, MAP_FIXED, \
         MAP_FIXED_NOREPLACE, MAP_ANONYMOUS, MAP_GROWSDOWN, MAP_NORESERVE, MAP_POPULATE, MAP_NONBLOCK, MAP_LOCKED, \
         MAP_32BIT; PROT_READ, PROT_WRITE, PROT_EXEC", "no huge pages: MAP_HUGETLB is ENOMEM; no MAP_DROPPABLE: \
         EINVAL; x86 memory that can be written or executed can be read, and `/proc/<pid>/maps` says so";
    10 mprotect => memory::protect::sys_mprotect, flags "PROT_READ, PROT_WRITE, PROT_EXEC, PROT_SEM, PROT_GROWSDOWN";
    11 munmap => memory::map::sys_munmap;
    12 brk => memory::brk::sys_brk;
    13 rt_sigaction => signal::calls::sys_rt_sigaction, flags "SA_NOCLDSTOP, SA_NOCLDWAIT, SA_SIGINFO, SA_RESTORER, \
         SA_ONSTACK, SA_RESTART, SA_NODEFER, SA_RESETHAND";
    14 rt_sigprocmask => signal::calls::sys_rt_sigprocmask, flags "SIG_BLOCK, SIG_UNBLOCK, SIG_SETMASK";
    15 rt_sigreturn => signal::frame::sys_rt_sigreturn;
    16 ioctl => file::sys_ioctl, flags "FIOCLEX, FIONCLEX, FIONBIO, FIOASYNC, FIONREAD. Settings of terminals: \
         TCGETA, TCSETA, TCSETAW, TCSETAF, TIOCGLCKTRMIOS, TIOCSLCKTRMIOS, TCGETS, TCSETS, TCSETSW, TCSETSF, TCGETS2, TCSETS2, TCSETSW2, TCSETSF2. \
         Terminals: TCSBRK, TCSBRKP, TCXONC, TCFLSH, TIOCGWINSZ, TIOCSWINSZ, TIOCGPGRP, TIOCSPGRP, TIOCGSID, \
         TIOCSCTTY, TIOCNOTTY, TIOCGETD, TIOCOUTQ. Pseudo-terminals: TIOCGPTN, TIOCSPTLCK, TIOCGPTLCK, TIOCPKT, \
         TIOCGPKT, TIOCGPTPEER, TIOCSIG. Sockets: FIOSETOWN, FIOGETOWN, SIOCSPGRP, SIOCGPGRP, SIOCINQ, SIOCOUTQ, \
         SIOCATMARK. Interfaces: SIOCGIFNAME, SIOCGIFCONF, SIOCGIFFLAGS, SIOCGIFADDR, SIOCGIFDSTADDR, SIOCGIFBRDADDR, \
         SIOCGIFNETMASK, SIOCGIFMETRIC, SIOCGIFMTU, SIOCGIFHWADDR, SIOCGIFINDEX, SIOCGIFTXQLEN, SIOCGIFMAP. \
         `/proc/<pid>/maps`: PROCMAP_QUERY. `/dev/random` and `/dev/urandom`: RNDGETENTCNT, RNDADDTOENTCNT, \
         RNDADDENTROPY, RNDZAPENTCNT, RNDCLEARPOOL, RNDRESEEDCRNG", "TIOCOUTQ of a terminal is 0; SIOCATMARK is 0, \
         because no data is urgent. SIOCSIFFLAGS, SIOCSIFADDR, SIOCSIFDSTADDR, SIOCSIFBRDADDR, SIOCSIFNETMASK, \
         SIOCSIFMTU, SIOCSIFHWADDR, SIOCSIFHWBROADCAST and SIOCSIFTXQLEN take the present value alone: others \
         EOPNOTSUPP, as SIOCSIFMETRIC, SIOCSIFNAME and SIOCSIFMAP are. Other requests are ENOTTY.";
    17 pread64 => file::sys_pread64;
    18 pwrite64 => file::sys_pwrite64;
    19 readv => file::sys_readv;
    20 writev => file::sys_writev;
    21 access => file::sys_access, flags "F_OK, R_OK, W_OK, X_OK";
    22 pipe => file::sys_pipe;
    23 select => file::sys_select;
    24 sched_yield => process::scheduling::sys_sched_yield;
    25 mremap => memory::remap::sys_mremap, flags "MREMAP_MAYMOVE, MREMAP_FIXED, MREMAP_DONTUNMAP", "several mappings \
         are not moved by one call, as Linux does since 6.17: EFAULT";
    26 msync => memory::advise::sys_msync, flags "MS_ASYNC, MS_SYNC, MS_INVALIDATE";
    27 mincore => memory::advise::sys_mincore;
    28 madvise => memory::advise::sys_madvise, flags "MADV_NORMAL, MADV_WILLNEED, MADV_DONTNEED, \
         MADV_DONTNEED_LOCKED, MADV_FREE, MADV_REMOVE, MADV_DONTFORK, MADV_DOFORK, MADV_WIPEONFORK, MADV_KEEPONFORK, \
         MADV_POPULATE_READ, MADV_POPULATE_WRITE, MADV_DONTDUMP, MADV_DODUMP", "MADV_RANDOM, MADV_SEQUENTIAL, \
         MADV_HUGEPAGE, MADV_NOHUGEPAGE, MADV_COLD and MADV_PAGEOUT are accepted and do nothing; MADV_MERGEABLE, \
         MADV_UNMERGEABLE, MADV_COLLAPSE, MADV_HWPOISON and MADV_SOFT_OFFLINE are EINVAL";
    29 shmget => ipc::sys_shmget, flags "IPC_CREAT, IPC_EXCL, SHM_NORESERVE", "no huge pages: SHM_HUGETLB is ENOENT";
    30 shmat => ipc::sys_shmat, flags "SHM_RDONLY, SHM_RND, SHM_REMAP, SHM_EXEC";
    31 shmctl => ipc::sys_shmctl, flags "IPC_STAT, IPC_SET, IPC_RMID, IPC_INFO, SHM_INFO, SHM_STAT, SHM_STAT_ANY, \
         SHM_LOCK, SHM_UNLOCK", "pages in swap count as resident; locked pages that are in swap stay there until they \
         are used";
    32 dup => file::sys_dup;
    33 dup2 => file::sys_dup2;
    34 pause => signal::wait::sys_pause;
    35 nanosleep => time::sleep::sys_nanosleep;
    36 getitimer => process::timers::interval::sys_getitimer, flags "ITIMER_REAL, ITIMER_VIRTUAL, ITIMER_PROF";
    37 alarm => process::timers::interval::sys_alarm;
    38 setitimer => process::timers::interval::sys_setitimer, flags "ITIMER_REAL, ITIMER_VIRTUAL, ITIMER_PROF";
    39 getpid => process::identity::sys_getpid;
    40 sendfile => file::sys_sendfile;
    41 socket => socket::sys_socket, flags "AF_UNIX, AF_INET, AF_INET6, AF_NETLINK; SOCK_STREAM, SOCK_DGRAM, \
         SOCK_SEQPACKET, SOCK_RAW, SOCK_NONBLOCK, SOCK_CLOEXEC; IPPROTO_TCP, IPPROTO_UDP, NETLINK_ROUTE", "only the \
         loopback interface; no raw sockets of the Internet families: EPROTONOSUPPORT; other families EAFNOSUPPORT";
    42 connect => socket::sys_connect, flags "", "a TCP socket does not connect to itself: ECONNREFUSED; a Unix \
         socket with SO_PASSCRED gets a name at its first datagram";
    43 accept => socket::sys_accept;
    44 sendto => socket::sys_sendto, flags "MSG_DONTWAIT, MSG_NOSIGNAL", "no MSG_OOB: EOPNOTSUPP; MSG_MORE, MSG_EOR, \
         MSG_CONFIRM, MSG_DONTROUTE, MSG_FASTOPEN and MSG_ZEROCOPY do nothing";
    45 recvfrom => socket::sys_recvfrom, flags "MSG_DONTWAIT, MSG_PEEK, MSG_WAITALL, MSG_TRUNC", "no MSG_OOB: \
         EOPNOTSUPP or EINVAL; MSG_ERRQUEUE finds nothing: EAGAIN";
    46 sendmsg => socket::sys_sendmsg, flags "MSG_DONTWAIT, MSG_NOSIGNAL; SCM_RIGHTS, SCM_CREDENTIALS", "as `sendto`; \
         control messages of other levels than SOL_SOCKET do nothing. A receiver that is not connected back takes as \
         many Unix datagrams as its bytes allow, not 11.";
    47 recvmsg => socket::sys_recvmsg, flags "MSG_DONTWAIT, MSG_PEEK, MSG_WAITALL, MSG_TRUNC, MSG_CMSG_CLOEXEC; \
         SCM_RIGHTS, SCM_CREDENTIALS", "as `recvfrom`";
    48 shutdown => socket::sys_shutdown, flags "SHUT_RD, SHUT_WR, SHUT_RDWR";
    49 bind => socket::sys_bind, flags "", "an accepted TCP connection does not hold its port once its listener is \
         closed, and no port waits after a connection (TIME_WAIT)";
    50 listen => socket::sys_listen;
    51 getsockname => socket::sys_getsockname;
    52 getpeername => socket::sys_getpeername;
    53 socketpair => socket::sys_socketpair, flags "AF_UNIX; SOCK_STREAM, SOCK_DGRAM, SOCK_SEQPACKET, SOCK_RAW, \
         SOCK_NONBLOCK, SOCK_CLOEXEC";
    54 setsockopt => socket::sys_setsockopt, flags "SOL_SOCKET: SO_REUSEADDR, SO_REUSEPORT, SO_PASSCRED, SO_SNDBUF, \
         SO_RCVBUF, SO_SNDBUFFORCE, SO_RCVBUFFORCE, SO_RCVLOWAT, SO_LINGER, SO_RCVTIMEO, SO_SNDTIMEO; IPPROTO_IPV6: \
         IPV6_V6ONLY; IPPROTO_TCP: TCP_INQ; SOL_NETLINK: NETLINK_ADD_MEMBERSHIP, NETLINK_DROP_MEMBERSHIP, \
         NETLINK_CAP_ACK", "kept and read back, without effect: SO_KEEPALIVE, SO_BROADCAST, SO_OOBINLINE, SO_PRIORITY, SO_DONTROUTE. The same of TCP: \
         TCP_NODELAY, TCP_CORK, TCP_QUICKACK, TCP_KEEPIDLE, TCP_KEEPINTVL, TCP_KEEPCNT, TCP_USER_TIMEOUT, \
         TCP_LINGER2, TCP_DEFER_ACCEPT, TCP_NOTSENT_LOWAT, TCP_SYNCNT, TCP_FASTOPEN, TCP_WINDOW_CLAMP, \
         TCP_CONGESTION (cubic, reno). \
         TCP_ULP is ENOENT. The same of IP: IP_TOS, IP_TTL, IP_RECVERR, IP_MTU_DISCOVER, IP_BIND_ADDRESS_NO_PORT; \
         IPV6_TCLASS, IPV6_UNICAST_HOPS, IPV6_RECVERR, IPV6_MTU_DISCOVER. IPV6_MTU is checked and not kept; \
         NETLINK_PKTINFO, NETLINK_BROADCAST_ERROR, NETLINK_NO_ENOBUFS, NETLINK_LISTEN_ALL_NSID, NETLINK_EXT_ACK, \
         NETLINK_GET_STRICT_CHK; others ENOPROTOOPT";
    55 getsockopt => socket::sys_getsockopt, flags "the options of `setsockopt`; SO_TYPE, SO_DOMAIN, SO_PROTOCOL, \
         SO_ACCEPTCONN, SO_ERROR, SO_PEERCRED, SO_SNDLOWAT; TCP_INFO, TCP_MAXSEG, TCP_CONGESTION; \
         NETLINK_LIST_MEMBERSHIPS", "TCP_INFO has only the state and the segment sizes; others ENOPROTOOPT";
    56 clone => process::fork::sys_clone, flags "CLONE_VM, CLONE_FS, CLONE_FILES, CLONE_SIGHAND, CLONE_VFORK, \
         CLONE_PARENT, CLONE_THREAD, CLONE_SYSVSEM, CLONE_SETTLS, CLONE_PARENT_SETTID, CLONE_CHILD_CLEARTID, \
         CLONE_CHILD_SETTID, CLONE_PIDFD", "no namespaces or control groups: EINVAL; CLONE_DETACHED, CLONE_UNTRACED, \
         CLONE_PTRACE and CLONE_IO are accepted and do nothing";
    57 fork => process::fork::sys_fork;
    58 vfork => process::fork::sys_vfork;
    59 execve => exec::sys_execve;
    60 exit => process::exit::sys_exit;
    61 wait4 => process::wait::sys_wait4, flags "WNOHANG, WUNTRACED, WCONTINUED, __WALL, __WCLONE", "__WNOTHREAD is \
         accepted and does nothing";
    62 kill => signal::calls::sys_kill, "SIGKILL and SIGSTOP of other processes do nothing to process 1; any other \
         signal that it does not handle ends it";
    63 uname => system::sys_uname;
    64 semget => ipc::sys_semget, flags "IPC_CREAT, IPC_EXCL";
    65 semop => ipc::sys_semop, flags "IPC_NOWAIT, SEM_UNDO";
    66 semctl => ipc::sys_semctl, flags "IPC_STAT, IPC_SET, IPC_RMID, IPC_INFO, SEM_INFO, SEM_STAT, SEM_STAT_ANY, \
         GETVAL, SETVAL, GETALL, SETALL, GETPID, GETNCNT, GETZCNT";
    67 shmdt => ipc::sys_shmdt;
    68 msgget => ipc::sys_msgget, flags "IPC_CREAT, IPC_EXCL";
    69 msgsnd => ipc::sys_msgsnd, flags "IPC_NOWAIT";
    70 msgrcv => ipc::sys_msgrcv, flags "IPC_NOWAIT, MSG_NOERROR, MSG_EXCEPT, MSG_COPY";
    71 msgctl => ipc::sys_msgctl, flags "IPC_STAT, IPC_SET, IPC_RMID, IPC_INFO, MSG_INFO, MSG_STAT, MSG_STAT_ANY";
    72 fcntl => file::sys_fcntl, flags "F_DUPFD, F_DUPFD_CLOEXEC, F_DUPFD_QUERY, F_CREATED_QUERY, F_GETFD, F_SETFD, \
         F_GETFL, F_SETFL (O_APPEND, O_NONBLOCK, O_DIRECT, O_NOATIME, O_ASYNC), F_GETLK, F_SETLK, F_SETLKW, \
         F_OFD_GETLK, F_OFD_SETLK, F_OFD_SETLKW. Pipes and seals: F_GETPIPE_SZ, F_SETPIPE_SZ, F_GET_SEALS, \
         F_ADD_SEALS (F_SEAL_SEAL, F_SEAL_SHRINK, F_SEAL_GROW, F_SEAL_WRITE, F_SEAL_FUTURE_WRITE, F_SEAL_EXEC). \
         Signals and leases: F_SETOWN, F_GETOWN, F_SETOWN_EX, F_GETOWN_EX, F_GETOWNER_UIDS, F_SETSIG, F_GETSIG, \
         F_SETLEASE, F_GETLEASE (F_RDLCK, F_WRLCK, F_UNLCK), F_NOTIFY (DN_ACCESS, DN_MODIFY, DN_CREATE, DN_DELETE, \
         DN_RENAME, DN_ATTRIB, DN_MULTISHOT)", "A reader is signalled at each change that leaves bytes (`O_ASYNC`). A \
         write lease does not see an open that is under way. F_GET_RW_HINT and others are EINVAL.";
    73 flock => file::sys_flock, flags "LOCK_SH, LOCK_EX, LOCK_UN, LOCK_NB";
    74 fsync => file::sys_fsync;
    75 fdatasync => file::sys_fdatasync;
    76 truncate => file::sys_truncate;
    77 ftruncate => file::sys_ftruncate;
    78 getdents => file::sys_getdents;
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
    97 getrlimit => process::limits::sys_getrlimit, flags "RLIMIT_CPU, RLIMIT_FSIZE, RLIMIT_DATA, RLIMIT_STACK, \
         RLIMIT_CORE, RLIMIT_NPROC, RLIMIT_NOFILE, RLIMIT_MEMLOCK, RLIMIT_AS, RLIMIT_SIGPENDING, RLIMIT_MSGQUEUE, \
         RLIMIT_NICE, RLIMIT_RTPRIO", "as `prlimit64`";
    98 getrusage => process::usage::sys_getrusage, flags "RUSAGE_SELF, RUSAGE_CHILDREN, RUSAGE_THREAD";
    99 sysinfo => system::sys_sysinfo;
    100 times => process::usage::sys_times;
    102 getuid => process::identity::sys_getuid;
    103 syslog => syslog::sys_syslog, flags "all eleven actions", "all lines have priority 6, and the console shows \
         each, whatever its level";
    104 getgid => process::identity::sys_getgid;
    105 setuid => process::identity::sys_setuid;
    106 setgid => process::identity::sys_setgid;
    107 geteuid => process::identity::sys_geteuid;
    108 getegid => process::identity::sys_getegid;
    109 setpgid => process::job_control::sys_setpgid;
    110 getppid => process::identity::sys_getppid;
    111 getpgrp => process::job_control::sys_getpgrp;
    112 setsid => process::job_control::sys_setsid;
    113 setreuid => process::identity::sys_setreuid;
    114 setregid => process::identity::sys_setregid;
    115 getgroups => process::identity::sys_getgroups;
    116 setgroups => process::identity::sys_setgroups;
    117 setresuid => process::identity::sys_setresuid;
    118 getresuid => process::identity::sys_getresuid;
    119 setresgid => process::identity::sys_setresgid;
    120 getresgid => process::identity::sys_getresgid;
    121 getpgid => process::job_control::sys_getpgid;
    122 setfsuid => process::identity::sys_setfsuid;
    123 setfsgid => process::identity::sys_setfsgid;
    124 getsid => process::job_control::sys_getsid;
    125 capget => process::identity::sys_capget, flags "_LINUX_CAPABILITY_VERSION_1, _2, _3";
    126 capset => process::identity::sys_capset, flags "_LINUX_CAPABILITY_VERSION_1, _2, _3", "files have no \
         capabilities of their own";
    127 rt_sigpending => signal::calls::sys_rt_sigpending;
    128 rt_sigtimedwait => signal::wait::sys_rt_sigtimedwait;
    129 rt_sigqueueinfo => signal::calls::sys_rt_sigqueueinfo;
    130 rt_sigsuspend => signal::wait::sys_rt_sigsuspend;
    131 sigaltstack => signal::alt_stack::sys_sigaltstack, flags "SS_ONSTACK, SS_DISABLE, SS_AUTODISARM";
    132 utime => file::sys_utime;
    133 mknod => file::sys_mknod, flags "S_IFREG, S_IFIFO, S_IFSOCK, S_IFCHR, S_IFBLK";
    135 personality => process::identity::sys_personality, flags "ADDR_NO_RANDOMIZE, STICKY_TIMEOUTS", "other flags \
         are remembered and change nothing";
    137 statfs => file::sys_statfs;
    138 fstatfs => file::sys_fstatfs;
    140 getpriority => process::scheduling::sys_getpriority, flags "PRIO_PROCESS, PRIO_PGRP, PRIO_USER";
    141 setpriority => process::scheduling::sys_setpriority, flags "PRIO_PROCESS, PRIO_PGRP, PRIO_USER";
    142 sched_setparam => process::scheduling::class::sys_sched_setparam;
    143 sched_getparam => process::scheduling::class::sys_sched_getparam;
    144 sched_setscheduler => process::scheduling::class::sys_sched_setscheduler, flags "SCHED_OTHER, SCHED_FIFO, \
         SCHED_RR, SCHED_BATCH, SCHED_IDLE, SCHED_RESET_ON_FORK", "the deadline class is refused: EPERM";
    145 sched_getscheduler => process::scheduling::class::sys_sched_getscheduler, flags "SCHED_OTHER, SCHED_FIFO, \
         SCHED_RR, SCHED_BATCH, SCHED_IDLE, SCHED_RESET_ON_FORK";
    146 sched_get_priority_max => process::scheduling::sys_sched_get_priority_max, flags "SCHED_OTHER, SCHED_FIFO, \
         SCHED_RR, SCHED_BATCH, SCHED_IDLE, SCHED_DEADLINE, SCHED_EXT";
    147 sched_get_priority_min => process::scheduling::sys_sched_get_priority_min, flags "SCHED_OTHER, SCHED_FIFO, \
         SCHED_RR, SCHED_BATCH, SCHED_IDLE, SCHED_DEADLINE, SCHED_EXT";
    148 sched_rr_get_interval => process::scheduling::class::sys_sched_rr_get_interval;
    149 mlock => memory::lock::sys_mlock;
    150 munlock => memory::lock::sys_munlock;
    151 mlockall => memory::lock::sys_mlockall, flags "MCL_CURRENT, MCL_FUTURE, MCL_ONFAULT";
    152 munlockall => memory::lock::sys_munlockall;
    157 prctl => process::prctl::sys_prctl, flags "PR_SET_NAME, PR_GET_NAME, PR_SET_PDEATHSIG, PR_GET_PDEATHSIG, \
         PR_SET_DUMPABLE, PR_GET_DUMPABLE, PR_SET_CHILD_SUBREAPER, PR_GET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS, \
         PR_GET_NO_NEW_PRIVS, PR_SET_KEEPCAPS, PR_GET_KEEPCAPS, PR_CAPBSET_READ, PR_CAPBSET_DROP, PR_SET_SECUREBITS, \
         PR_GET_SECUREBITS, PR_CAP_AMBIENT, PR_GET_TID_ADDRESS, PR_GET_THP_DISABLE, PR_SET_TSC, PR_GET_TSC, \
         PR_GET_SECCOMP, PR_SET_TIMERSLACK, PR_GET_TIMERSLACK", "PR_SET_THP_DISABLE and the slack of timers are kept, \
         and do nothing: timers end at their deadlines; others EINVAL, and PR_SET_MM is EPERM without CAP_SYS_RESOURCE";
    158 arch_prctl => process::prctl::sys_arch_prctl, flags "ARCH_SET_FS, ARCH_GET_FS, ARCH_SET_GS, ARCH_GET_GS, \
         ARCH_GET_CPUID", "no ARCH_SET_CPUID: ENODEV; others EINVAL";
    159 adjtimex => time::adjust::sys_adjtimex, flags "ADJ_SETOFFSET, ADJ_NANO, ADJ_MICRO, ADJ_OFFSET_SS_READ", "The \
         clock has one rate and is not synchronised: another value than the present one is EINVAL. Times are in the \
         unit of the request.";
    160 setrlimit => process::limits::sys_setrlimit, flags "RLIMIT_CPU, RLIMIT_FSIZE, RLIMIT_DATA, RLIMIT_STACK, \
         RLIMIT_CORE, RLIMIT_NPROC, RLIMIT_NOFILE, RLIMIT_MEMLOCK, RLIMIT_AS, RLIMIT_SIGPENDING, RLIMIT_MSGQUEUE, \
         RLIMIT_NICE, RLIMIT_RTPRIO", "as `prlimit64`";
    161 chroot => file::sys_chroot;
    162 sync => file::sys_sync, "does nothing: files are in memory";
    164 settimeofday => time::clock::sys_settimeofday;
    165 mount => mount::sys_mount, flags "`tmpfs`, `ramfs`, `proc`, `sysfs`, `mqueue`, `devpts`; MS_BIND, MS_REC, \
         MS_MOVE, MS_REMOUNT, MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC; of `tmpfs` size, nr_blocks, nr_inodes, mode, \
         uid, gid, huge=never", "`devpts` shows the terminals of /dev/pts, its options do nothing, and no file is \
         made in `mqueue`; a mapping keeps no bind mount busy; the mounts of boot are not moved: EBUSY; nothing is \
         mounted on the root or in `/proc` and `/sys`: EBUSY; MS_SHARED, MS_PRIVATE, MS_SLAVE and MS_UNBINDABLE are \
         accepted and do nothing, as are MS_SYNCHRONOUS and all other flags";
    166 umount2 => mount::sys_umount2, flags "MNT_DETACH, UMOUNT_NOFOLLOW", "the mounts of boot stay: EBUSY; \
         MNT_FORCE does nothing, MNT_EXPIRE never unmounts: EAGAIN";
    169 reboot => system::sys_reboot, flags "LINUX_REBOOT_CMD_RESTART, LINUX_REBOOT_CMD_RESTART2, \
         LINUX_REBOOT_CMD_HALT, LINUX_REBOOT_CMD_POWER_OFF", "every command that ends the machine powers off; \
         LINUX_REBOOT_CMD_CAD_ON and LINUX_REBOOT_CMD_CAD_OFF are accepted and do nothing; others EINVAL";
    170 sethostname => system::sys_sethostname;
    171 setdomainname => system::sys_setdomainname;
    186 gettid => process::identity::sys_gettid;
    187 readahead => file::sys_readahead, "does nothing: files are in memory";
    188 setxattr => file::sys_setxattr, flags "XATTR_CREATE, XATTR_REPLACE";
    189 lsetxattr => file::sys_lsetxattr, flags "XATTR_CREATE, XATTR_REPLACE";
    190 fsetxattr => file::sys_fsetxattr, flags "XATTR_CREATE, XATTR_REPLACE";
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
    202 futex => futex::sys_futex, flags "FUTEX_WAIT, FUTEX_WAKE, FUTEX_REQUEUE, FUTEX_CMP_REQUEUE, FUTEX_WAKE_OP, \
         FUTEX_WAIT_BITSET, FUTEX_WAKE_BITSET, FUTEX_LOCK_PI, FUTEX_LOCK_PI2, FUTEX_TRYLOCK_PI, FUTEX_UNLOCK_PI, \
         FUTEX_WAIT_REQUEUE_PI, FUTEX_CMP_REQUEUE_PI; FUTEX_PRIVATE_FLAG, FUTEX_CLOCK_REALTIME", "with priority \
         inheritance by nice values; no FUTEX_FD: ENOSYS";
    203 sched_setaffinity => process::scheduling::sys_sched_setaffinity, "also for threads that run or wait elsewhere";
    204 sched_getaffinity => process::scheduling::sys_sched_getaffinity;
    213 epoll_create => file::sys_epoll_create;
    216 remap_file_pages => memory::show::sys_remap_file_pages, flags "MAP_NONBLOCK";
    217 getdents64 => file::sys_getdents64;
    218 set_tid_address => process::identity::sys_set_tid_address;
    219 restart_syscall => time::sleep::sys_restart_syscall;
    220 semtimedop => ipc::sys_semtimedop, flags "IPC_NOWAIT, SEM_UNDO";
    221 fadvise64 => file::sys_fadvise64, "every POSIX_FADV_ advice is accepted and does nothing: files are in memory";
    222 timer_create => process::timers::posix::sys_timer_create, flags "CLOCK_REALTIME, CLOCK_MONOTONIC, \
         CLOCK_BOOTTIME, CLOCK_TAI, CLOCK_PROCESS_CPUTIME_ID, CLOCK_THREAD_CPUTIME_ID, clocks of threads of the \
         process; SIGEV_SIGNAL, SIGEV_NONE, SIGEV_THREAD, SIGEV_THREAD_ID", "not on the CPU time of another process, \
         and no alarm clocks: EOPNOTSUPP";
    223 timer_settime => process::timers::posix::sys_timer_settime, flags "TIMER_ABSTIME";
    224 timer_gettime => process::timers::posix::sys_timer_gettime;
    225 timer_getoverrun => process::timers::posix::sys_timer_getoverrun;
    226 timer_delete => process::timers::posix::sys_timer_delete;
    227 clock_settime => time::clock::sys_clock_settime, flags "CLOCK_REALTIME";
    228 clock_gettime => time::clock::sys_clock_gettime, flags "CLOCK_REALTIME, CLOCK_MONOTONIC, \
         CLOCK_PROCESS_CPUTIME_ID, CLOCK_THREAD_CPUTIME_ID, CLOCK_MONOTONIC_RAW, CLOCK_REALTIME_COARSE, \
         CLOCK_MONOTONIC_COARSE, CLOCK_BOOTTIME, CLOCK_TAI, clocks of other processes and threads", "no alarm clocks: \
         EINVAL";
    229 clock_getres => time::clock::sys_clock_getres, flags "CLOCK_REALTIME, CLOCK_MONOTONIC, \
         CLOCK_PROCESS_CPUTIME_ID, CLOCK_THREAD_CPUTIME_ID, CLOCK_MONOTONIC_RAW, CLOCK_REALTIME_COARSE, \
         CLOCK_MONOTONIC_COARSE, CLOCK_BOOTTIME, CLOCK_TAI, clocks of other processes and threads", "no alarm clocks: \
         EINVAL";
    230 clock_nanosleep => time::sleep::sys_clock_nanosleep, flags "TIMER_ABSTIME; CLOCK_REALTIME, CLOCK_MONOTONIC, \
         CLOCK_BOOTTIME, CLOCK_TAI", "not on clocks of CPU time: EOPNOTSUPP; no alarm clocks: EINVAL";
    231 exit_group => process::exit::sys_exit_group;
    232 epoll_wait => file::sys_epoll_wait;
    233 epoll_ctl => file::sys_epoll_ctl, flags "EPOLL_CTL_ADD, EPOLL_CTL_MOD, EPOLL_CTL_DEL; EPOLLIN, EPOLLOUT, \
         EPOLLPRI, EPOLLRDNORM, EPOLLWRNORM, EPOLLRDHUP, EPOLLERR, EPOLLHUP, EPOLLET, EPOLLONESHOT, EPOLLEXCLUSIVE",
        "EPOLLWAKEUP is accepted and does nothing";
    234 tgkill => signal::calls::sys_tgkill;
    235 utimes => file::sys_utimes;
    240 mq_open => ipc::sys_mq_open, flags "O_RDONLY, O_WRONLY, O_RDWR, O_CREAT, O_EXCL, O_NONBLOCK, O_CLOEXEC", "a \
         queue has no file in a directory, and its mode cannot be changed";
    241 mq_unlink => ipc::sys_mq_unlink;
    242 mq_timedsend => ipc::sys_mq_timedsend;
    243 mq_timedreceive => ipc::sys_mq_timedreceive;
    244 mq_notify => ipc::sys_mq_notify, flags "SIGEV_SIGNAL, SIGEV_NONE, SIGEV_THREAD";
    245 mq_getsetattr => ipc::sys_mq_getsetattr, flags "O_NONBLOCK";
    247 waitid => process::wait::sys_waitid, flags "P_ALL, P_PID, P_PGID, P_PIDFD; WEXITED, WSTOPPED, WCONTINUED, \
         WNOHANG, WNOWAIT, __WALL, __WCLONE", "__WNOTHREAD is accepted and does nothing";
    251 ioprio_set => process::io_priority::sys_ioprio_set, flags "IOPRIO_WHO_PROCESS, IOPRIO_WHO_PGRP, \
         IOPRIO_WHO_USER", "files are in memory, so nothing obeys it";
    252 ioprio_get => process::io_priority::sys_ioprio_get, flags "IOPRIO_WHO_PROCESS, IOPRIO_WHO_PGRP, \
         IOPRIO_WHO_USER";
    253 inotify_init => file::inotify::sys_inotify_init;
    254 inotify_add_watch => file::inotify::sys_inotify_add_watch, flags "IN_ACCESS, IN_MODIFY, IN_ATTRIB, \
         IN_CLOSE_WRITE, IN_CLOSE_NOWRITE, IN_OPEN, IN_MOVED_FROM, IN_MOVED_TO, IN_CREATE, IN_DELETE, IN_DELETE_SELF, \
         IN_MOVE_SELF; IN_ONLYDIR, IN_DONT_FOLLOW, IN_EXCL_UNLINK, IN_MASK_CREATE, IN_MASK_ADD, IN_ONESHOT";
    255 inotify_rm_watch => file::inotify::sys_inotify_rm_watch;
    257 openat => file::sys_openat, flags "O_RDONLY, O_WRONLY, O_RDWR, O_CREAT, O_EXCL, O_NOCTTY, O_TRUNC, O_APPEND, \
         O_NONBLOCK, O_DIRECTORY, O_NOFOLLOW, O_NOATIME, O_CLOEXEC, O_PATH, O_TMPFILE, O_LARGEFILE", "as `open`";
    258 mkdirat => file::sys_mkdirat;
    259 mknodat => file::sys_mknodat, flags "S_IFREG, S_IFIFO, S_IFSOCK, S_IFCHR, S_IFBLK";
    260 fchownat => file::sys_fchownat, flags "AT_EMPTY_PATH, AT_SYMLINK_NOFOLLOW";
    261 futimesat => file::sys_futimesat;
    262 newfstatat => file::sys_newfstatat, flags "AT_EMPTY_PATH, AT_SYMLINK_NOFOLLOW", "AT_NO_AUTOMOUNT, \
         AT_STATX_FORCE_SYNC and AT_STATX_DONT_SYNC are accepted and do nothing";
    263 unlinkat => file::sys_unlinkat, flags "AT_REMOVEDIR";
    264 renameat => file::sys_renameat;
    265 linkat => file::sys_linkat, flags "AT_SYMLINK_FOLLOW, AT_EMPTY_PATH";
    266 symlinkat => file::sys_symlinkat;
    267 readlinkat => file::sys_readlinkat;
    268 fchmodat => file::sys_fchmodat;
    269 faccessat => file::sys_faccessat, flags "F_OK, R_OK, W_OK, X_OK";
    270 pselect6 => file::sys_pselect6;
    271 ppoll => file::sys_ppoll, flags "POLLIN, POLLOUT, POLLPRI, POLLRDNORM, POLLWRNORM, POLLRDHUP, POLLERR, \
         POLLHUP, POLLNVAL";
    272 unshare => process::identity::sys_unshare, flags "CLONE_FILES, CLONE_FS, CLONE_SYSVSEM", "no namespaces, \
         CLONE_THREAD, CLONE_SIGHAND or CLONE_VM: EINVAL";
    273 set_robust_list => futex::robust::sys_set_robust_list;
    274 get_robust_list => futex::robust::sys_get_robust_list;
    275 splice => file::sys_splice, flags "SPLICE_F_NONBLOCK", "bytes are copied: a pipe does not see later changes \
         of a page; SPLICE_F_MOVE, SPLICE_F_MORE and SPLICE_F_GIFT are accepted and do nothing";
    276 tee => file::sys_tee, flags "SPLICE_F_NONBLOCK", "SPLICE_F_MOVE, SPLICE_F_MORE and SPLICE_F_GIFT are accepted \
         and do nothing";
    277 sync_file_range => file::sys_sync_file_range, flags "SYNC_FILE_RANGE_WAIT_BEFORE, SYNC_FILE_RANGE_WRITE, \
         SYNC_FILE_RANGE_WAIT_AFTER";
    278 vmsplice => file::sys_vmsplice, flags "SPLICE_F_NONBLOCK", "as `splice`";
    280 utimensat => file::sys_utimensat, flags "AT_SYMLINK_NOFOLLOW, AT_EMPTY_PATH; UTIME_NOW, UTIME_OMIT";
    281 epoll_pwait => file::sys_epoll_pwait;
    282 signalfd => signal::signal_file::sys_signalfd;
    283 timerfd_create => time::timer_file::sys_timerfd_create, flags "CLOCK_REALTIME, CLOCK_MONOTONIC, \
         CLOCK_BOOTTIME, CLOCK_REALTIME_ALARM, CLOCK_BOOTTIME_ALARM; TFD_CLOEXEC, TFD_NONBLOCK", "alarm clocks wake \
         no machine: it never sleeps";
    284 eventfd => file::sys_eventfd;
    285 fallocate => file::sys_fallocate, flags "FALLOC_FL_KEEP_SIZE, FALLOC_FL_PUNCH_HOLE", "other modes are \
         EOPNOTSUPP, as of Linux's tmpfs; with FALLOC_FL_KEEP_SIZE takes no memory behind the end of the file";
    286 timerfd_settime => time::timer_file::sys_timerfd_settime, flags "TFD_TIMER_ABSTIME, TFD_TIMER_CANCEL_ON_SET";
    287 timerfd_gettime => time::timer_file::sys_timerfd_gettime;
    288 accept4 => socket::sys_accept4, flags "SOCK_NONBLOCK, SOCK_CLOEXEC";
    289 signalfd4 => signal::signal_file::sys_signalfd4, flags "SFD_CLOEXEC, SFD_NONBLOCK";
    290 eventfd2 => file::sys_eventfd2, flags "EFD_SEMAPHORE, EFD_CLOEXEC, EFD_NONBLOCK";
    291 epoll_create1 => file::sys_epoll_create1, flags "EPOLL_CLOEXEC";
    292 dup3 => file::sys_dup3, flags "O_CLOEXEC";
    293 pipe2 => file::sys_pipe2, flags "O_CLOEXEC, O_NONBLOCK, O_DIRECT", "no O_NOTIFICATION_PIPE: EINVAL";
    294 inotify_init1 => file::inotify::sys_inotify_init1, flags "IN_CLOEXEC, IN_NONBLOCK";
    295 preadv => file::sys_preadv;
    296 pwritev => file::sys_pwritev;
    297 rt_tgsigqueueinfo => signal::calls::sys_rt_tgsigqueueinfo;
    299 recvmmsg => socket::sys_recvmmsg, flags "MSG_DONTWAIT, MSG_PEEK, MSG_WAITALL, MSG_TRUNC, MSG_CMSG_CLOEXEC, \
         MSG_WAITFORONE; SCM_RIGHTS, SCM_CREDENTIALS", "as `recvfrom`";
    302 prlimit64 => process::limits::sys_prlimit64, flags "RLIMIT_CPU, RLIMIT_FSIZE, RLIMIT_DATA, RLIMIT_STACK, \
         RLIMIT_CORE, RLIMIT_NPROC, RLIMIT_NOFILE, RLIMIT_MEMLOCK, RLIMIT_AS, RLIMIT_SIGPENDING, RLIMIT_MSGQUEUE, \
         RLIMIT_NICE, RLIMIT_RTPRIO", "RLIMIT_RSS, RLIMIT_LOCKS and RLIMIT_RTTIME are kept and limit nothing";
    303 name_to_handle_at => file::sys_name_to_handle_at, "no handles: EOPNOTSUPP; AT_EMPTY_PATH, AT_SYMLINK_FOLLOW, \
         AT_HANDLE_FID and AT_HANDLE_MNT_ID_UNIQUE are accepted";
    304 open_by_handle_at => file::sys_open_by_handle_at, "no handles: ESTALE";
    305 clock_adjtime => time::adjust::sys_clock_adjtime, flags "CLOCK_REALTIME; the modes of `adjtimex`", "as \
         `adjtimex`";
    306 syncfs => file::sys_syncfs, "does nothing: files are in memory";
    307 sendmmsg => socket::sys_sendmmsg, flags "MSG_DONTWAIT, MSG_NOSIGNAL; SCM_RIGHTS, SCM_CREDENTIALS", "as \
         `sendmsg`";
    309 getcpu => process::scheduling::sys_getcpu;
    310 process_vm_readv => process::foreign::sys_process_vm_readv;
    311 process_vm_writev => process::foreign::sys_process_vm_writev;
    314 sched_setattr => process::scheduling::class::sys_sched_setattr, flags "SCHED_OTHER, SCHED_FIFO, SCHED_RR, \
         SCHED_BATCH, SCHED_IDLE; SCHED_FLAG_RESET_ON_FORK, SCHED_FLAG_KEEP_POLICY, SCHED_FLAG_KEEP_PARAMS", "the \
         deadline class is refused: EPERM; no limits of utilisation: EOPNOTSUPP; SCHED_FLAG_RECLAIM and \
         SCHED_FLAG_DL_OVERRUN are accepted and do nothing";
    315 sched_getattr => process::scheduling::class::sys_sched_getattr, flags "SCHED_OTHER, SCHED_FIFO, SCHED_RR, \
         SCHED_BATCH, SCHED_IDLE; SCHED_FLAG_RESET_ON_FORK";
    316 renameat2 => file::sys_renameat2, flags "RENAME_NOREPLACE, RENAME_EXCHANGE", "no RENAME_WHITEOUT: EINVAL";
    318 getrandom => system::sys_getrandom, flags "GRND_NONBLOCK, GRND_RANDOM, GRND_INSECURE", "the three do the \
         same: random bytes never wait";
    319 memfd_create => file::sys_memfd_create, flags "MFD_CLOEXEC, MFD_ALLOW_SEALING, MFD_NOEXEC_SEAL, MFD_EXEC",
        "no huge pages: MFD_HUGETLB is EINVAL";
    322 execveat => exec::sys_execveat, flags "AT_EMPTY_PATH, AT_SYMLINK_NOFOLLOW";
    324 membarrier => process::barrier::sys_membarrier, flags "MEMBARRIER_CMD_QUERY, MEMBARRIER_CMD_GLOBAL, \
         MEMBARRIER_CMD_GLOBAL_EXPEDITED, MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED, MEMBARRIER_CMD_PRIVATE_EXPEDITED, \
         MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED, MEMBARRIER_CMD_PRIVATE_EXPEDITED_SYNC_CORE, \
         MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED_SYNC_CORE, MEMBARRIER_CMD_GET_REGISTRATIONS", "no barriers of \
         restartable sequences: EINVAL";
    325 mlock2 => memory::lock::sys_mlock2, flags "MLOCK_ONFAULT";
    326 copy_file_range => file::sys_copy_file_range;
    327 preadv2 => file::sys_preadv2, flags "RWF_NOWAIT", "RWF_HIPRI, RWF_DSYNC, RWF_SYNC, RWF_APPEND and \
         RWF_NOAPPEND are accepted and do nothing; RWF_NOWAIT of files, terminals and inotify is EOPNOTSUPP";
    328 pwritev2 => file::sys_pwritev2, flags "RWF_APPEND, RWF_NOAPPEND, RWF_NOWAIT", "RWF_HIPRI, RWF_DSYNC and \
         RWF_SYNC are accepted and do nothing: files are in memory; RWF_NOWAIT of files, terminals and inotify is \
         EOPNOTSUPP, as is RWF_ATOMIC";
    332 statx => file::sys_statx, flags "AT_EMPTY_PATH, AT_SYMLINK_NOFOLLOW; STATX_BASIC_STATS, STATX_BTIME", "no \
         STATX_MNT_ID, STATX_DIOALIGN or attributes; AT_NO_AUTOMOUNT, AT_STATX_FORCE_SYNC and AT_STATX_DONT_SYNC are \
         accepted and do nothing";
    334 rseq => rseq::sys_rseq, flags "RSEQ_FLAG_UNREGISTER", "the concurrency id `mm_cid` is the CPU's number";
    424 pidfd_send_signal => signal::calls::sys_pidfd_send_signal, flags "PIDFD_SIGNAL_THREAD, \
         PIDFD_SIGNAL_THREAD_GROUP, PIDFD_SIGNAL_PROCESS_GROUP";
    434 pidfd_open => process::pidfd::sys_pidfd_open, flags "PIDFD_NONBLOCK", "not of a thread: PIDFD_THREAD is EINVAL";
    435 clone3 => process::fork::sys_clone3, flags "CLONE_VM, CLONE_FS, CLONE_FILES, CLONE_SIGHAND, CLONE_VFORK, \
         CLONE_PARENT, CLONE_THREAD, CLONE_SYSVSEM, CLONE_SETTLS, CLONE_PARENT_SETTID, CLONE_CHILD_CLEARTID, \
         CLONE_CHILD_SETTID, CLONE_PIDFD, CLONE_CLEAR_SIGHAND", "no namespaces, control groups or chosen ids: EINVAL; \
         CLONE_UNTRACED, CLONE_PTRACE and CLONE_IO are accepted and do nothing";
    436 close_range => file::sys_close_range, flags "CLOSE_RANGE_UNSHARE, CLOSE_RANGE_CLOEXEC";
    437 openat2 => file::sys_openat2, flags "the flags of `open`; RESOLVE_NO_XDEV, RESOLVE_NO_MAGICLINKS, \
         RESOLVE_NO_SYMLINKS, RESOLVE_BENEATH, RESOLVE_IN_ROOT, RESOLVE_CACHED", "as `open`";
    438 pidfd_getfd => process::pidfd::sys_pidfd_getfd;
    439 faccessat2 => file::sys_faccessat2, flags "F_OK, R_OK, W_OK, X_OK; AT_EACCESS, AT_SYMLINK_NOFOLLOW, \
         AT_EMPTY_PATH";
    441 epoll_pwait2 => file::sys_epoll_pwait2;
    449 futex_waitv => futex::many::sys_futex_waitv, flags "FUTEX2_SIZE_U32, FUTEX2_PRIVATE; CLOCK_MONOTONIC, \
         CLOCK_REALTIME";
    452 fchmodat2 => file::sys_fchmodat2, flags "AT_EMPTY_PATH, AT_SYMLINK_NOFOLLOW";
    462 mseal => memory::seal::sys_mseal;
}
