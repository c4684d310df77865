// Calls about other processes' memory, paths with limits, barriers, words and classes of scheduling: the same on Linux.
#define _GNU_SOURCE
#include "checks.h"
#include <pthread.h>
#include <sched.h>
#include <stddef.h>
#include <sys/mman.h>
#include <sys/personality.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/utsname.h>
#include <time.h>

// A number that an older C library lacks.
#ifndef SYS_futex_waitv
#define SYS_futex_waitv 449
#endif

static char *pages(int count, int prot) {
    char *at = mmap(NULL, count * 4096, prot, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(at != MAP_FAILED, "mmap");
    return at;
}

// A child that has `at` as the caller has, writes when it is ready, and ends when the pipe's other end closes.
static pid_t holder(int ends[2]) {
    CHECK(!pipe(ends), "pipe");
    pid_t child = fork();
    CHECK(child >= 0, "fork");
    if (!child) {
        char byte;
        close(ends[1]);
        (void)!read(ends[0], &byte, 1);
        _exit(0);
    }
    close(ends[0]);
    return child;
}

static void memory_of_others(void) {
    char *at = pages(4, PROT_READ | PROT_WRITE), got[16384];
    memset(at, 'a', 4096);
    memset(at + 4096, 'b', 4096);
    int ends[2];
    pid_t child = holder(ends);
    // The child's memory is its own from now on.
    memset(at, 'x', 8192);
    struct iovec to[2] = {{got, 100}, {got + 100, 9900}};
    struct iovec from[3] = {{at + 4000, 200}, {at, 0}, {at + 8192, 8192}};
    CHECK(process_vm_readv(child, to, 2, from, 3, 0) == 8392, "read");
    CHECK(got[0] == 'a' && got[95] == 'a' && got[96] == 'b' && got[199] == 'b' && !got[200], "bytes");
    // A write reaches the child, and not this process.
    memset(got, 'w', sizeof got);
    CHECK(process_vm_writev(child, to, 2, from, 3, 0) == 8392, "write");
    CHECK(at[4000] == 'x' && !at[8192], "own memory");
    memset(got, 0, sizeof got);
    CHECK(process_vm_readv(child, to, 2, from, 3, 0) == 8392 && got[0] == 'w' && got[8391] == 'w', "read again");
    // An address without a mapping ends the transfer.
    CHECK(!mprotect(at, 4096, PROT_READ), "mprotect");
    char *hole = pages(2, PROT_READ | PROT_WRITE);
    CHECK(!munmap(hole + 4096, 4096), "munmap");
    struct iovec over = {hole, 8192}, one = {got, 8192};
    CHECK(process_vm_readv(getpid(), &one, 1, &over, 1, 0) == 4096, "cut");
    over.iov_base = hole + 4096;
    ANSWERS(EFAULT, process_vm_readv(getpid(), &one, 1, &over, 1, 0));
    struct iovec constant = {at, 1};
    ANSWERS(EFAULT, process_vm_writev(getpid(), &one, 1, &constant, 1, 0));
    ANSWERS(EINVAL, process_vm_readv(child, to, 2, from, 3, 1));
    ANSWERS(EINVAL, process_vm_readv(child, to, 1025, from, 3, 0));
    ANSWERS(EINVAL, process_vm_readv(child, to, 2, from, 1025, 0));
    ANSWERS(EFAULT, process_vm_readv(child, to, 2, (void *)8, 3, 0));
    CHECK(process_vm_readv(child, to, 0, from, 3, 0) == 0, "no room");
    ANSWERS(ESRCH, process_vm_readv(0x3ffffff, to, 2, from, 3, 0));
    if (!fork()) {
        CHECK(!setuid(1000), "setuid");
        ANSWERS(EPERM, process_vm_readv(child, to, 2, from, 3, 0));
        _exit(0);
    }
    int status;
    CHECK(wait(&status) > 0 && !status, "another user");
    close(ends[1]);
    CHECK(!ended(child), "child");
    ANSWERS(ESRCH, process_vm_readv(child, to, 2, from, 3, 0));
}

static void *writes_elsewhere(void *at) {
    // The other process copies its pages while they are written to.
    for (int i = 0; i < 20000; i++) ((volatile char *)at)[i % 4 * 4096]++;
    return NULL;
}

static void memory_that_changes(void) {
    char *at = pages(4, PROT_READ | PROT_WRITE);
    memset(at, 1, 4 * 4096);
    pthread_t thread;
    CHECK(!pthread_create(&thread, NULL, writes_elsewhere, at), "pthread_create");
    for (int i = 0; i < 50; i++) {
        int ends[2];
        pid_t child = holder(ends);
        unsigned value = i, seen = -1;
        struct iovec mine = {&value, 4}, theirs = {at + 100, 4};
        CHECK(process_vm_writev(child, &mine, 1, &theirs, 1, 0) == 4, "write");
        mine.iov_base = &seen;
        CHECK(process_vm_readv(child, &mine, 1, &theirs, 1, 0) == 4 && seen == (unsigned)i, "read %u", seen);
        CHECK(at[100] == 1, "own memory");
        close(ends[1]);
        CHECK(!ended(child), "child");
    }
    CHECK(!pthread_join(thread, NULL), "pthread_join");
}

struct how {
    unsigned long long flags, mode, resolve;
};
enum { NO_XDEV = 1, NO_MAGICLINKS = 2, NO_SYMLINKS = 4, BENEATH = 8, IN_ROOT = 16, CACHED = 32 };

static int open2(int dir, const char *path, unsigned long long flags, unsigned long long resolve) {
    struct how how = {flags, 0, resolve};
    int fd = syscall(SYS_openat2, dir, path, &how, sizeof how);
    if (fd >= 0) close(fd);
    return fd;
}

static void paths_with_limits(void) {
    char dir[] = "/tmp/quire-calls-XXXXXX";
    CHECK(mkdtemp(dir) && !chdir(dir), "mkdtemp");
    CHECK(!mkdir("in", 0755) && !mkdir("in/deep", 0755) && close(creat("in/file", 0644)) == 0, "mkdir");
    CHECK(close(creat("outside", 0644)) == 0, "creat");
    CHECK(!symlink("file", "in/link") && !symlink("/file", "in/absolute") && !symlink("../outside", "in/out"),
        "symlink");
    int in = open("in", O_RDONLY | O_DIRECTORY);
    ANSWERS(0, open2(in, "file", O_RDONLY, 0));
    ANSWERS(0, open2(in, "link", O_RDONLY, BENEATH));
    ANSWERS(0, open2(in, "deep/../link", O_RDONLY, BENEATH));
    ANSWERS(EXDEV, open2(in, "..", O_RDONLY, BENEATH));
    ANSWERS(EXDEV, open2(in, "out", O_RDONLY, BENEATH));
    ANSWERS(EXDEV, open2(in, "absolute", O_RDONLY, BENEATH));
    ANSWERS(EXDEV, open2(in, "/file", O_RDONLY, BENEATH));
    ANSWERS(0, open2(in, "/file", O_RDONLY, IN_ROOT));
    ANSWERS(0, open2(in, "absolute", O_RDONLY, IN_ROOT));
    ANSWERS(0, open2(in, "../../file", O_RDONLY, IN_ROOT));
    ANSWERS(ENOENT, open2(in, "out", O_RDONLY, IN_ROOT));
    ANSWERS(ELOOP, open2(in, "link", O_RDONLY, NO_SYMLINKS));
    ANSWERS(0, open2(in, "link", O_PATH | O_NOFOLLOW, NO_SYMLINKS));
    ANSWERS(0, open2(in, "file", O_RDONLY, NO_SYMLINKS | CACHED));
    ANSWERS(ELOOP, open2(in, "/proc/self/exe", O_RDONLY, NO_MAGICLINKS));
    ANSWERS(EXDEV, open2(AT_FDCWD, "/proc/self/status", O_RDONLY, NO_XDEV));
    ANSWERS(EXDEV, open2(open("/proc", O_PATH), "self/exe", O_RDONLY, BENEATH));
    ANSWERS(EINVAL, open2(in, "file", O_RDONLY, BENEATH | IN_ROOT));
    ANSWERS(EINVAL, open2(in, "file", O_RDONLY, 64));
    ANSWERS(EINVAL, open2(in, "file", 1ull << 40, 0));
    ANSWERS(EINVAL, open2(in, "file", O_PATH | O_RDWR, 0));
    ANSWERS(ENOENT, open2(in, "", O_RDONLY, 0));
    struct how how = {O_RDONLY, 0644, 0};
    ANSWERS(EINVAL, syscall(SYS_openat2, in, "file", &how, sizeof how));
    how = (struct how){O_RDWR | O_CREAT, 0600, 0};
    ANSWERS(0, syscall(SYS_openat2, in, "new", &how, sizeof how));
    ANSWERS(EINVAL, syscall(SYS_openat2, in, "new", &how, 23));
    ANSWERS(E2BIG, syscall(SYS_openat2, in, "new", &how, 1 << 20));
    struct { struct how how; long more; } longer = {{O_RDONLY, 0, 0}, 0};
    ANSWERS(0, syscall(SYS_openat2, in, "new", &longer, sizeof longer));
    longer.more = 1;
    ANSWERS(E2BIG, syscall(SYS_openat2, in, "new", &longer, sizeof longer));
    ANSWERS(EFAULT, syscall(SYS_openat2, in, "new", (void *)8, 24));
    const char *all[] = {"in/link", "in/absolute", "in/out", "in/file", "in/new", "outside"};
    for (int i = 0; i < 6; i++) unlink(all[i]);
    CHECK(!rmdir("in/deep") && !rmdir("in") && !rmdir(dir), "rmdir");
}

static long barrier(int command) { return syscall(SYS_membarrier, command, 0, 0); }

static volatile int first, second, seen_first, seen_second, rounds;

static void *other_side(void *unused) {
    for (int i = 1; i <= 2000; i++) {
        while (rounds < i) sched_yield();
        second = i;
        __asm__ volatile("" ::: "memory");
        seen_first = first;
        __atomic_store_n(&rounds, -i, __ATOMIC_SEQ_CST);
        while (rounds == -i) sched_yield();
    }
    return unused;
}

static void barriers(void) {
    CHECK((barrier(0) & 0x7f) == 0x7f, "query");
    ANSWERS(EPERM, barrier(8));
    ANSWERS(EPERM, barrier(32));
    ANSWERS(EINVAL, barrier(1 << 20));
    ANSWERS(EINVAL, syscall(SYS_membarrier, 0, 2, 0));
    ANSWERS(EINVAL, barrier(3));
    CHECK(barrier(512) == 0, "no registration");
    ANSWERS(0, barrier(1));
    ANSWERS(0, barrier(4));
    ANSWERS(0, barrier(2));
    // One registration shows two, and does not allow the other barrier.
    ANSWERS(0, barrier(64));
    CHECK(barrier(512) == (64 | 16 | 4), "registrations %#lx", barrier(512));
    ANSWERS(EPERM, barrier(8));
    ANSWERS(0, barrier(16));
    ANSWERS(0, barrier(8));
    ANSWERS(0, barrier(32));
    // Without the barrier, both may miss each other's store.
    pthread_t thread;
    CHECK(!pthread_create(&thread, NULL, other_side, NULL), "pthread_create");
    for (int i = 1; i <= 2000; i++) {
        __atomic_store_n(&rounds, i, __ATOMIC_SEQ_CST);
        first = i;
        CHECK(!barrier(8), "barrier");
        seen_second = second;
        while (__atomic_load_n(&rounds, __ATOMIC_SEQ_CST) != -i) sched_yield();
        CHECK(seen_first == i || seen_second == i, "round %d: %d %d", i, seen_first, seen_second);
        __atomic_store_n(&rounds, 0, __ATOMIC_SEQ_CST);
    }
    CHECK(!pthread_join(thread, NULL), "pthread_join");
}

struct word {
    unsigned long long value, at;
    unsigned flags, reserved;
};

static int words[3];

static long wait_for(struct word *all, int count, struct timespec *until) {
    return syscall(SYS_futex_waitv, all, count, 0, until, CLOCK_MONOTONIC);
}

static void *wakes(void *unused) {
    until_asleep(0);
    words[1] = 1;
    while (syscall(SYS_futex, &words[1], 1 | 128, 1, NULL, NULL, 0) != 1) short_sleep();
    return unused;
}

static void words_at_once(void) {
    struct word all[3];
    for (int i = 0; i < 3; i++) all[i] = (struct word){0, (unsigned long)&words[i], 2 | 128, 0};
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    ANSWERS(ETIMEDOUT, wait_for(all, 3, &until));
    all[2].value = 5;
    ANSWERS(EAGAIN, wait_for(all, 3, NULL));
    all[2].value = 1ull << 32;
    ANSWERS(EINVAL, wait_for(all, 3, NULL));
    all[2].value = 0;
    all[2].flags = 128;
    ANSWERS(EINVAL, wait_for(all, 3, NULL));
    all[2].flags = 2 | 128;
    all[2].reserved = 1;
    ANSWERS(EINVAL, wait_for(all, 3, NULL));
    all[2].reserved = 0;
    ANSWERS(EINVAL, wait_for(all, 0, NULL));
    ANSWERS(EINVAL, wait_for(all, 129, NULL));
    all[2].at = 3;
    ANSWERS(EINVAL, wait_for(all, 3, NULL));
    all[2].at = (unsigned long)&words[2];
    pthread_t thread;
    CHECK(!pthread_create(&thread, NULL, wakes, NULL), "pthread_create");
    CHECK(wait_for(all, 3, NULL) == 1, "which word");
    CHECK(!pthread_join(thread, NULL), "pthread_join");
    // The others are waited for no more.
    CHECK(syscall(SYS_futex, &words[0], 1 | 128, 1, NULL, NULL, 0) == 0, "a waiter that stayed");
    all[1].value = 1;
    handle(SIGUSR1, 0);
    pid_t child = sender(SIGUSR1);
    ANSWERS(EINTR, wait_for(all, 3, NULL));
    ended(child);
}

struct attributes {
    unsigned size, policy;
    unsigned long long flags;
    int nice;
    unsigned priority;
    unsigned long long runtime, deadline, period;
    unsigned least, most;
};

static long attributes_of(struct attributes *a) { return syscall(SYS_sched_getattr, 0, a, sizeof *a, 0); }
static long set_attributes(struct attributes *a) { return syscall(SYS_sched_setattr, 0, a, 0); }
static long set_policy(int policy, int priority) { return syscall(SYS_sched_setscheduler, 0, policy, &priority); }
static long policy(void) { return syscall(SYS_sched_getscheduler, 0); }

static void classes(void) {
    CHECK(policy() == SCHED_OTHER, "policy %ld", policy());
    ANSWERS(0, set_policy(SCHED_BATCH, 0));
    CHECK(policy() == SCHED_BATCH, "policy %ld", policy());
    ANSWERS(EINVAL, set_policy(SCHED_BATCH, 1));
    ANSWERS(EINVAL, set_policy(SCHED_FIFO, 0));
    ANSWERS(EINVAL, set_policy(SCHED_RR, 100));
    ANSWERS(EINVAL, set_policy(77, 0));
    ANSWERS(EINVAL, set_policy(-1, 0));
    ANSWERS(0, set_policy(SCHED_IDLE | SCHED_RESET_ON_FORK, 0));
    CHECK(policy() == (SCHED_IDLE | SCHED_RESET_ON_FORK), "policy %ld", policy());
    struct attributes a;
    CHECK(!attributes_of(&a) && a.policy == SCHED_IDLE && a.flags == 1 && !a.nice && !a.priority && a.size >= 56,
        "attributes");
    if (!fork()) {
        CHECK(policy() == SCHED_IDLE, "policy %ld", policy());
        _exit(0);
    }
    int status;
    CHECK(wait(&status) > 0 && !status, "child");
    a = (struct attributes){.size = 48, .policy = SCHED_OTHER, .nice = 7};
    ANSWERS(0, set_attributes(&a));
    CHECK(policy() == SCHED_OTHER && getpriority(PRIO_PROCESS, 0) == 7, "nice");
    a.size = 47;
    ANSWERS(E2BIG, set_attributes(&a));
    CHECK(a.size >= 56, "size %u", a.size);
    a.size = 56;
    a.flags = 1 << 20;
    ANSWERS(EINVAL, set_attributes(&a));
    a.flags = 0;
    a.policy = -1;
    ANSWERS(EINVAL, set_attributes(&a));
    ANSWERS(EINVAL, syscall(SYS_sched_getattr, 0, &a, 47, 0));
    ANSWERS(ESRCH, syscall(SYS_sched_getattr, 0x3ffffff, &a, 48, 0));
    CHECK(!setuid(1000), "setuid");
    a = (struct attributes){.size = 56, .policy = SCHED_OTHER, .nice = 3};
    ANSWERS(EPERM, set_attributes(&a));
    ANSWERS(EPERM, set_policy(SCHED_FIFO, 1));
    a.nice = 9;
    ANSWERS(0, set_attributes(&a));
    ANSWERS(0, set_policy(SCHED_IDLE, 0));
    ANSWERS(EPERM, set_policy(SCHED_OTHER, 0));
}

static long device_priority(int which, int who) { return syscall(SYS_ioprio_get, which, who); }
static long set_device_priority(int which, int who, int value) { return syscall(SYS_ioprio_set, which, who, value); }

static void device_priorities(void) {
    enum { THREAD = 1, GROUP, USER, REAL_TIME = 1 << 13, BEST = 2 << 13, IDLE = 3 << 13 };
    setpgid(0, 0);
    CHECK(device_priority(THREAD, 0) == 0 && device_priority(THREAD, getpid()) == 0, "%ld at first",
        device_priority(THREAD, 0));
    CHECK(device_priority(GROUP, 0) == (BEST | 4), "%#lx from the nice value", device_priority(GROUP, 0));
    setpriority(PRIO_PROCESS, 0, 10);
    CHECK(device_priority(GROUP, getpgrp()) == (BEST | 6), "%#lx from nice 10", device_priority(GROUP, 0));
    set_policy(SCHED_IDLE, 0);
    CHECK(device_priority(GROUP, 0) == (IDLE | 6), "%#lx from the idle class", device_priority(GROUP, 0));
    set_policy(SCHED_OTHER, 0);
    ANSWERS(0, set_device_priority(THREAD, 0, BEST | 2));
    CHECK(device_priority(THREAD, 0) == (BEST | 2) && device_priority(GROUP, 0) == (BEST | 2), "set");
    ANSWERS(EINVAL, set_device_priority(THREAD, 0, 3));
    ANSWERS(EINVAL, set_device_priority(THREAD, 0, 4 << 13));
    ANSWERS(EINVAL, set_device_priority(THREAD, 0, 7 << 13));
    ANSWERS(EINVAL, set_device_priority(0, 0, BEST));
    ANSWERS(EINVAL, set_device_priority(4, 0, BEST));
    ANSWERS(EINVAL, device_priority(0, 0));
    ANSWERS(EINVAL, device_priority(4, 0));
    ANSWERS(ESRCH, device_priority(THREAD, 0x7ffffff));
    ANSWERS(ESRCH, set_device_priority(THREAD, 0x7ffffff, BEST));
    ANSWERS(ESRCH, device_priority(GROUP, 0x7ffffff));
    ANSWERS(ESRCH, device_priority(USER, 4242));
    pid_t child = fork();
    if (!child) {
        CHECK(device_priority(THREAD, 0) == (BEST | 2), "inherited");
        ANSWERS(0, set_device_priority(GROUP, 0, REAL_TIME | 1));
        CHECK(device_priority(THREAD, getppid()) == (REAL_TIME | 1), "the group");
        CHECK(!setuid(4242), "setuid");
        ANSWERS(EPERM, set_device_priority(THREAD, 0, REAL_TIME));
        ANSWERS(EPERM, set_device_priority(THREAD, getppid(), IDLE));
        CHECK(device_priority(THREAD, getppid()) == (REAL_TIME | 1), "of another user");
        // Here user 0 is root, not the caller.
        ANSWERS(EPERM, set_device_priority(USER, 0, IDLE));
        ANSWERS(0, set_device_priority(USER, 4242, IDLE));
        CHECK(device_priority(USER, 4242) == IDLE, "of the user");
        ANSWERS(0, set_device_priority(THREAD, 0, 0));
        _exit(0);
    }
    int status;
    CHECK(wait(&status) == child && !status, "child");
}

static void controls(void) {
    int *at = NULL, value = 0;
    CHECK(!prctl(40, &at), "PR_GET_TID_ADDRESS");
    CHECK(!prctl(41, 1, 0, 0, 0) && prctl(42, 0, 0, 0, 0) == 1 && !prctl(41, 0, 0, 0, 0), "PR_SET_THP_DISABLE");
    ANSWERS(EINVAL, prctl(41, 1, 1, 0, 0));
    CHECK(prctl(PR_GET_SECCOMP) == 0, "PR_GET_SECCOMP");
    CHECK(!prctl(PR_GET_TSC, &value) && value == PR_TSC_ENABLE, "PR_GET_TSC");
    CHECK(prctl(PR_SET_KEEPCAPS, 1) == 0 && prctl(PR_GET_KEEPCAPS) == 1, "PR_SET_KEEPCAPS");
    CHECK(prctl(PR_CAPBSET_READ, 0) == 1 && !prctl(PR_CAPBSET_DROP, 0) && prctl(PR_CAPBSET_READ, 0) == 0,
        "PR_CAPBSET_DROP");
    ANSWERS(EINVAL, prctl(PR_CAPBSET_READ, 99));
    CHECK(!setuid(1000), "setuid");
    ANSWERS(EPERM, prctl(PR_SET_MM, PR_SET_MM_BRK, 0, 0, 0));
}

// A program without random addresses has its stack at the same place each time.
static void fixed_addresses(void) {
    unsigned long places[2];
    for (int i = 0; i < 2; i++) {
        int ends[2];
        CHECK(!pipe(ends), "pipe");
        pid_t child = fork();
        if (!child) {
            personality(ADDR_NO_RANDOMIZE);
            dup2(ends[1], 1);
            execl("/proc/self/exe", "calls", "--only", "place", NULL);
            _exit(9);
        }
        CHECK(read(ends[0], &places[i], sizeof places[i]) == sizeof places[i] && !ended(child), "a place");
        close(ends[0]), close(ends[1]);
    }
    CHECK(places[0] == places[1], "%#lx %#lx", places[0], places[1]);
}

enum { SET_SLACK = 29, GET_SLACK = 30 };

static unsigned long slack(void) { return syscall(SYS_prctl, GET_SLACK); }

static void *slack_of_new_thread(void *of) {
    *(unsigned long *)of = slack();
    return NULL;
}

// The error of a write to a file of slack; 0 for success.
static int write_slack(pid_t of, const char *text) {
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/timerslack_ns", of);
    int fd = open(path, O_WRONLY);
    CHECK(fd >= 0, "%s", path);
    long n = write(fd, text, strlen(text));
    int error = n < 0 ? errno : 0;
    CHECK(error || n == (long)strlen(text), "a part: %ld", n);
    close(fd);
    return error;
}

// The slack that a file shows; the negative error of the read if there is one.
static long read_slack(pid_t of) {
    char path[64], text[32] = "";
    snprintf(path, sizeof path, "/proc/%d/timerslack_ns", of);
    int fd = open(path, O_RDONLY);
    CHECK(fd >= 0, "%s", path);
    long n = read(fd, text, sizeof text - 1);
    int error = n < 0 ? errno : 0;
    close(fd);
    return error ? -error : atol(text);
}

static void *other_threads_need_a_right(void *none) {
    (void)none;
    CHECK(!syscall(SYS_setuid, 4242), "setuid");
    CHECK(read_slack(getpid()) == -EPERM && write_slack(getpid(), "5") == EPERM, "of the first thread");
    return NULL;
}

// A new thread or process has its maker's slack, and 0 sets it back to that. Real-time threads have none.
static void timer_slack(void) {
    pthread_t thread;
    unsigned long usual = slack(), seen = 0;
    CHECK(usual > 0 && (unsigned long)read_slack(getpid()) == usual, "%lu", usual);
    CHECK(!syscall(SYS_prctl, SET_SLACK, 70000) && slack() == 70000 && read_slack(getpid()) == 70000, "%lu", slack());
    CHECK(!pthread_create(&thread, NULL, slack_of_new_thread, &seen) && !pthread_join(thread, NULL) && seen == 70000,
        "a thread: %lu", seen);
    pid_t child = fork();
    CHECK(child >= 0, "fork");
    if (!child) {
        CHECK(slack() == 70000 && !syscall(SYS_prctl, SET_SLACK, 5) && slack() == 5 && read_slack(getppid()) == 70000,
            "a child: %lu", slack());
        CHECK(!syscall(SYS_prctl, SET_SLACK, 0) && slack() == 70000, "0: %lu", slack());
        CHECK(!write_slack(getppid(), "81000\n"), "of another process");
        CHECK(!syscall(SYS_setuid, 4242), "setuid");
        CHECK(read_slack(getppid()) == -EPERM && write_slack(getppid(), "5") == EPERM &&
            write_slack(getppid(), "x") == EINVAL, "of root");
        CHECK(!write_slack(getpid(), "+6\n") && slack() == 6, "its own: %lu", slack());
        execl("/proc/self/exe", "calls", "--only", "slack", NULL);
        _exit(9);
    }
    CHECK(ended(child) == 6 << 8, "after exec");
    CHECK(slack() == 81000, "written: %lu", slack());
    CHECK(!write_slack(getpid(), "0") && slack() == usual, "0: %lu", slack());
    const char *bad[] = {"\n", "-1", " 7", "7 ", "0x7", "seven"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        CHECK(write_slack(getpid(), bad[i]) == EINVAL, "'%s'", bad[i]);
    CHECK(write_slack(getpid(), "18446744073709551616") == ERANGE && slack() == usual, "out of range");
    CHECK(!syscall(SYS_prctl, SET_SLACK, -1ul) && slack() == -1ul, "the most: %lu", slack());
    char of_thread[64];
    snprintf(of_thread, sizeof of_thread, "/proc/self/task/%d/timerslack_ns", getpid());
    CHECK(access(of_thread, F_OK) < 0 && access("/proc/thread-self/timerslack_ns", F_OK) < 0, "of threads");
    struct stat status;
    CHECK(!stat("/proc/self/timerslack_ns", &status) && (status.st_mode & 0777) == 0666, "its mode");
    // Before Linux 6.12 real-time threads had slack too.
    struct utsname name;
    int major = 0, minor = 0;
    CHECK(!uname(&name) && sscanf(name.release, "%d.%d", &major, &minor) == 2, "uname");
    struct sched_param urgent = {.sched_priority = 1}, none = {0};
    if (major * 100 + minor >= 612 && !syscall(SYS_sched_setscheduler, 0, SCHED_FIFO, &urgent)) {
        CHECK(slack() == 0 && !syscall(SYS_prctl, SET_SLACK, 5) && slack() == 0 && !write_slack(getpid(), "5") &&
            slack() == 0, "real-time: %lu", slack());
        CHECK(!syscall(SYS_sched_setscheduler, 0, SCHED_OTHER, &none) && slack() == usual, "no more: %lu", slack());
    }
    CHECK(!pthread_create(&thread, NULL, other_threads_need_a_right, NULL) && !pthread_join(thread, NULL),
        "pthread_create");
}

int main(int argc, char **argv) {
    if (argc == 3 && !strcmp(argv[2], "slack")) return slack();
    if (argc == 3 && !strcmp(argv[2], "place")) {
        unsigned long here = (unsigned long)argv;
        return write(1, &here, sizeof here) != sizeof here;
    }
    parse_options(argc, argv, NULL);
    static const struct check checks[] = {
        {"memory_of_others", memory_of_others},
        {"memory_that_changes", memory_that_changes},
        {"paths_with_limits", paths_with_limits},
        {"barriers", barriers},
        {"words_at_once", words_at_once},
        {"classes", classes},
        {"device_priorities", device_priorities},
        {"controls", controls},
        {"fixed_addresses", fixed_addresses},
        {"timer_slack", timer_slack},
    };
    run_checks(checks, sizeof checks / sizeof *checks);
    return 0;
}
