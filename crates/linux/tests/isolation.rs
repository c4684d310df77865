//! Checks that each call that reaches another process, user or inode has a line in the table of `programs/isolation.c`.
//! That table is compared with Linux. A call that is added to the dispatch table must be added to one of these lists,
//! or get a line.

use quire_linux::syscall::SUPPORTED;
use std::collections::BTreeSet;

/// Calls that reach only the caller's own memory, threads, descriptors and time. The lines `ids` and `step` of the
/// table cover the calls that change the caller's rights.
const OWN: &str = "
    socket fsetxattr fgetxattr flistxattr fremovexattr splice tee vmsplice read close fstat poll mmap mprotect munmap
    brk rt_sigaction rt_sigprocmask rt_sigreturn ioctl pread64 readv sched_yield mremap msync mincore madvise mseal
    remap_file_pages dup dup2 pause nanosleep getitimer alarm setitimer getpid shutdown socketpair fork vfork clone exit
    uname flock fsync fdatasync getcwd lseek select umask gettimeofday getrlimit getrusage sysinfo times getuid getgid
    geteuid getegid getppid getpgrp setsid getresuid getresgid getgroups rt_sigpending rt_sigtimedwait rt_sigsuspend
    sigaltstack fstatfs sched_get_priority_max sched_get_priority_min mlock munlock mlockall munlockall arch_prctl
    setrlimit sync gettid readahead time futex epoll_create getdents getdents64 set_tid_address restart_syscall
    fadvise64 clock_gettime clock_getres clock_nanosleep exit_group epoll_wait epoll_ctl pselect6 ppoll unshare
    set_robust_list sync_file_range epoll_pwait eventfd eventfd2 epoll_create1 dup3 preadv syncfs getcpu getrandom
    mlock2 preadv2 clone3 close_range epoll_pwait2 setfsuid setfsgid personality prctl timer_create timer_settime
    timer_gettime timer_getoverrun timer_delete timerfd_create timerfd_settime timerfd_gettime rseq accept accept4
    listen recvfrom recvmsg recvmmsg getsockname getpeername setsockopt getsockopt signalfd signalfd4 pidfd_open
    inotify_init inotify_init1 inotify_rm_watch shmdt mq_timedsend mq_timedreceive mq_notify mq_getsetattr membarrier
    futex_waitv open_by_handle_at
";

/// Calls that use the same check as another call.
const AS_ANOTHER: &[(&str, &str)] = &[
    ("lstat", "stat"),
    ("newfstatat", "stat"),
    ("statx", "stat"),
    ("openat", "open"),
    ("openat2", "open"),
    ("name_to_handle_at", "stat"),
    ("sched_setattr", "sched_setscheduler"),
    ("sched_getattr", "sched_getscheduler"),
    ("pipe2", "pipe"),
    ("fchdir", "chdir"),
    ("unlinkat", "unlink"),
    ("renameat", "rename"),
    ("renameat2", "rename"),
    ("mkdirat", "mkdir"),
    ("mknodat", "mknod"),
    ("linkat", "link"),
    ("symlinkat", "symlink"),
    ("readlinkat", "readlink"),
    ("fchown", "chown"),
    ("fchownat", "chown"),
    ("fchmodat", "fchmod"),
    ("fchmodat2", "chmod"),
    ("utime", "utimes"),
    ("futimesat", "utimes"),
    ("utimensat", "utimes"),
    ("faccessat", "access"),
    ("faccessat2", "access"),
    ("execveat", "execve"),
    ("pwrite64", "write"),
    ("writev", "write"),
    ("pwritev", "write"),
    ("pwritev2", "write"),
    ("sendfile", "write"),
    ("copy_file_range", "write"),
    ("sendto", "connect"),
    ("sendmsg", "connect"),
    ("sendmmsg", "connect"),
    ("semtimedop", "semop"),
    ("lsetxattr", "setxattr"),
    ("lgetxattr", "getxattr"),
    ("listxattr", "getxattr"),
    ("llistxattr", "getxattr"),
    ("lremovexattr", "removexattr"),
];

fn table() -> String {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../programs/isolation.c");
    std::fs::read_to_string(path).expect("the table's program")
}

/// Whether the program has a line that begins with the call's name. The name must be the whole line, or be followed by
/// a colon or a dash.
fn has_line(table: &str, call: &str) -> bool {
    ["", "user-", "bare-"]
        .iter()
        .any(|actor| ["\"", ":", "-"].iter().any(|end| table.contains(&format!("\"{actor}{call}{end}"))))
}

#[test]
fn every_call_that_reaches_others_has_a_line_in_the_table() {
    let table = table();
    let own: BTreeSet<&str> = OWN.split_whitespace().collect();
    let mut missing = Vec::new();
    for call in SUPPORTED.iter().map(|call| call.name) {
        let another = AS_ANOTHER.iter().find(|(name, _)| *name == call).map(|(_, other)| *other);
        let covered = own.contains(call) || has_line(&table, another.unwrap_or(call));
        if !covered {
            missing.push(call);
        }
    }
    assert!(missing.is_empty(), "calls without a line in programs/isolation.c: {missing:?}");
}

#[test]
fn the_lists_name_calls_that_are_there_and_each_once() {
    let known: BTreeSet<&str> = SUPPORTED.iter().map(|call| call.name).collect();
    let mut seen = BTreeSet::new();
    for name in OWN.split_whitespace().chain(AS_ANOTHER.iter().map(|(name, _)| *name)) {
        assert!(known.contains(name), "{name} is no call of ours");
        assert!(seen.insert(name), "{name} is listed twice");
    }
    assert!(!has_line(&table(), "no_such_call"));
}
