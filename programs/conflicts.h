// The operations of the conflict matrix: each actor's calls, on things of its own wherever possible.
#pragma once
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <netinet/in.h>
#include <sys/ipc.h>
#include <sys/mman.h>
#include <sys/msg.h>
#include <sys/resource.h>
#include <sys/sem.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/times.h>
#include <sys/utsname.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define PAGE 4096L
#ifndef FUTEX_WAIT
#define FUTEX_WAIT 0
#define FUTEX_WAKE 1
#define FUTEX_PRIVATE_FLAG 128
#endif
#define CHECK(what, ...)                                                                                               \
    do {                                                                                                               \
        if (!(what)) {                                                                                                 \
            fprintf(stderr, "conflicts:%d: %s: errno %d: ", __LINE__, #what, errno);                                   \
            fprintf(stderr, __VA_ARGS__);                                                                              \
            fputc('\n', stderr);                                                                                       \
            _exit(__LINE__ % 100 + 100); \
        }                                                                                                              \
    } while (0)

enum state { THREADS, APART, SHARED_FILE, SHARED_REGION, FAMILY, STATES };
static const char *const state_names[STATES] = {"threads", "apart", "file", "region", "family"};

// Pages of an actor's own in its region, and in the file. They are more than a page table and a leaf of an index cover.
#define OWN 1024L
#define FILE_PAGES 16L

struct actor {
    int actor;
    enum state state;
    char *region;  // its own OWN pages
    char *readable; // FILE_PAGES pages of its file, mapped privately
    long at;       // where its part of the file begins, in bytes
    int directory, file, shared, pipe[2], event;
    int local[2], tcp[2], udp[2], semaphores, messages;
    uint32_t word __attribute__((aligned(64)));
    char program[64];
    // The results of `prepare` for `run`.
    char *memory;
    int fd;
    struct timespec written;
};

struct operation {
    const char *name;
    void (*prepare)(struct actor *);
    long (*run)(struct actor *);     // its result, without the parts that may differ from run to run
    long (*finish)(struct actor *);  // cleans up; returns the visible state afterwards
    unsigned states;
};

static inline long given(long value) { return value < 0 ? -errno : value; }
static inline long done(long value) { return value < 0 ? -errno : 0; }
// An address or an id: any will do.
static inline long some(long value) { return value == -1 ? -errno : 1; }

static inline char *map_fresh(long pages, int flags) {
    char *memory = mmap(NULL, pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | flags, -1, 0);
    CHECK(memory != MAP_FAILED, "mmap");
    return memory;
}

#define P(name) static void prepare_##name(struct actor *me __attribute__((unused)))
#define R(name) static long run_##name(struct actor *me __attribute__((unused)))
#define F(name) static long finish_##name(struct actor *me __attribute__((unused)))

P(nothing) {}
F(nothing) { return 0; }

// --- Memory.
P(fresh) {
    // In a shared mapping the pages stay; elsewhere they are fresh again.
    madvise(me->region, 4 * PAGE, me->state == SHARED_REGION ? MADV_REMOVE : MADV_DONTNEED);
}
R(touch) { return (((volatile char *)me->region)[8] = 5); }
F(region) { return me->region[8]; }
R(load) { return ((volatile char *)me->region)[PAGE + 8]; }

P(unmapped_file) { madvise(me->readable, FILE_PAGES * PAGE, MADV_DONTNEED); }
R(file_load) { return ((volatile char *)me->readable)[8]; }
R(file_cow) { return (((volatile char *)me->readable)[8] = 5); }

P(inherited) {
    me->region[8] = 1;
    pid_t child = fork();
    CHECK(child >= 0, "fork");
    if (child == 0) _exit(0);
    CHECK(waitpid(child, NULL, 0) == child, "waitpid");
}

R(mmap) { return some((long)(me->memory = map_fresh(4, 0))); }
F(unmap) { return done(munmap(me->memory, 4 * PAGE)); }
P(place) { me->memory = me->region + 64 * PAGE; }
R(mmap_fixed) {
    return done((long)mmap(me->memory, 4 * PAGE, PROT_READ | PROT_WRITE,
                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) < 0);
}
R(mmap_file) {
    me->memory = mmap(NULL, 4 * PAGE, PROT_READ, MAP_SHARED, me->file, me->at);
    return some((long)me->memory);
}
P(mapped) { memset(me->memory = map_fresh(4, 0), 1, 4 * PAGE); }
R(munmap) { return done(munmap(me->memory, 4 * PAGE)); }
R(mprotect) { return done(mprotect(me->memory, 4 * PAGE, PROT_READ)); }
R(madvise) { return done(madvise(me->memory, 4 * PAGE, MADV_DONTNEED)); }
R(mremap) {
    me->memory = mremap(me->memory, 4 * PAGE, 4 * PAGE, 0);
    return some((long)me->memory);
}
R(brk) {
    long before = syscall(SYS_brk, 0);
    return syscall(SYS_brk, before + 4 * PAGE) - before;
}
F(brk) { return syscall(SYS_brk, syscall(SYS_brk, 0) - 4 * PAGE) < 0; }

// --- Processes and threads.
R(getpid) { return some(syscall(SYS_getpid)); }
R(getppid) { return some(syscall(SYS_getppid)); }
R(gettid) { return some(syscall(SYS_gettid)); }
R(getuid) { return syscall(SYS_getuid); }
R(uname) {
    struct utsname names;
    return done(syscall(SYS_uname, &names));
}
R(getrusage) {
    struct rusage usage;
    return done(syscall(SYS_getrusage, RUSAGE_THREAD, &usage));
}
R(clock) {
    struct timespec now;
    return done(syscall(SYS_clock_gettime, CLOCK_MONOTONIC, &now));
}
R(umask) { return given(syscall(SYS_umask, 022)); }
R(yield) { return done(syscall(SYS_sched_yield)); }
R(getcwd) {
    char name[256];
    return given(syscall(SYS_getcwd, name, sizeof name));
}
R(fork) {
    pid_t child = fork();
    if (child == 0) _exit(7);
    int status = 0;
    if (child < 0 || waitpid(child, &status, 0) != child) return -errno;
    return WEXITSTATUS(status);
}
static long spawn(const char *program) {
    char *const arguments[] = {(char *)program, "nothing", NULL}, *const none[] = {NULL};
    pid_t child = vfork();
    if (child == 0) {
        execve(program, arguments, none);
        _exit(127);
    }
    int status = 0;
    if (child < 0 || waitpid(child, &status, 0) != child) return -errno;
    return WEXITSTATUS(status);
}
R(exec) { return spawn(me->program); }
R(exec_same) { return spawn("/tmp/conflicts/same"); }
static void *nothing(void *argument) { return argument; }
R(thread) {
    pthread_t thread;
    int error = pthread_create(&thread, NULL, nothing, NULL);
    return error ? -error : -pthread_join(thread, NULL);
}

// --- Files.
R(open) { return given(me->fd = openat(me->directory, "file", O_RDONLY)); }
R(open_same) { return given(me->fd = open("/tmp/conflicts/file", O_RDONLY)); }
F(close) { return done(close(me->fd)); }
P(opened) { CHECK((me->fd = openat(me->directory, "file", O_RDONLY)) >= 0, "open"); }
P(opened_same) { CHECK((me->fd = open("/tmp/conflicts/file", O_RDONLY)) >= 0, "open"); }
R(close) { return done(close(me->fd)); }
R(create) { return given(me->fd = openat(me->directory, "other", O_RDWR | O_CREAT | O_EXCL, 0600)); }
F(unlink) {
    close(me->fd);
    return done(unlinkat(me->directory, "other", 0));
}
P(created) {
    CHECK((me->fd = openat(me->directory, "other", O_RDWR | O_CREAT, 0600)) >= 0, "create");
    close(me->fd);
}
R(unlink) { return done(unlinkat(me->directory, "other", 0)); }
// The size, and in bit 0 whether the file was written since the last look: the purpose of a write's time.
#define WRITTEN 1l
static long size_and_written(struct actor *me, const struct stat *about) {
    struct timespec last = me->written;
    me->written = about->st_mtim;
    return 2 * about->st_size | (last.tv_sec != me->written.tv_sec || last.tv_nsec != me->written.tv_nsec);
}
R(stat) {
    struct stat about;
    return done(fstatat(me->directory, "file", &about, 0)) ? -errno : size_and_written(me, &about);
}
P(stat) { run_stat(me); }
R(stat_same) {
    struct stat about;
    return done(stat("/tmp/conflicts/file", &about)) ? -errno : size_and_written(me, &about);
}
P(stat_same) { run_stat_same(me); }
R(fstat) {
    struct stat about;
    return done(fstat(me->file, &about)) ? -errno : size_and_written(me, &about);
}
P(fstat) { run_fstat(me); }
R(access) { return done(faccessat(me->directory, "file", R_OK, 0)); }
static char buffer[2][64] __attribute__((aligned(64)));
R(pread) { return given(pread(me->file, buffer[me->actor], 64, me->at)); }
R(pwrite) { return given(pwrite(me->file, buffer[me->actor], 64, me->at)); }
P(seek) { lseek(me->file, me->at, SEEK_SET); }
R(read) { return given(read(me->file, buffer[me->actor], 64)); }
R(write) { return given(write(me->file, buffer[me->actor], 64)); }
R(lseek) { return given(lseek(me->file, me->at + 8, SEEK_SET)); }
F(position) { return lseek(me->file, 0, SEEK_CUR); }
R(dup) { return given(me->fd = dup(me->file)); }
R(fcntl) { return given(fcntl(me->file, F_GETFL)); }
R(fsync) { return done(fsync(me->file)); }
R(append) {
    lseek(me->shared, 0, SEEK_END);
    return given(write(me->shared, buffer[me->actor], 8));
}
F(truncate) { return done(ftruncate(me->shared, 2 * OWN * PAGE)); }

// --- Pipes, events, waiting.
R(pipe_write) { return given(write(me->pipe[1], buffer[me->actor], 8)); }
F(drain) { return given(read(me->pipe[0], buffer[me->actor], 8)); }
P(filled) { CHECK(write(me->pipe[1], buffer[me->actor], 8) == 8, "pipe"); }
R(pipe_read) { return given(read(me->pipe[0], buffer[me->actor], 8)); }
R(poll) {
    struct pollfd on = {me->pipe[1], POLLOUT, 0};
    return given(poll(&on, 1, 0));
}
R(event) {
    uint64_t one = 1, got = 0;
    return write(me->event, &one, 8) == 8 && read(me->event, &got, 8) == 8 ? (long)got : -errno;
}
R(futex_wake) { return given(syscall(SYS_futex, &me->word, FUTEX_WAKE | FUTEX_PRIVATE_FLAG, 1, NULL)); }
R(futex_wait) { return given(syscall(SYS_futex, &me->word, FUTEX_WAIT | FUTEX_PRIVATE_FLAG, 77, NULL)); }
R(futex_sleep) {
    struct timespec soon = {0, 100000};
    return given(syscall(SYS_futex, &me->word, FUTEX_WAIT | FUTEX_PRIVATE_FLAG, me->word, &soon));
}
R(sleep) {
    struct timespec soon = {0, 100000};
    return given(syscall(SYS_nanosleep, &soon, NULL));
}
R(timer) {
    struct itimerval late = {{0, 0}, {100, 0}}, old;
    return setitimer(ITIMER_REAL, &late, &old) ? -errno : old.it_value.tv_sec != 0;
}
F(timer) {
    struct itimerval off = {{0, 0}, {0, 0}};
    return done(setitimer(ITIMER_REAL, &off, NULL));
}
R(signal) { return done(syscall(SYS_tgkill, syscall(SYS_getpid), syscall(SYS_gettid), SIGUSR1)); }
R(mask) {
    uint64_t set = 1 << (SIGUSR2 - 1), old;
    if (syscall(SYS_rt_sigprocmask, SIG_BLOCK, &set, &old, 8)) return -errno;
    return given(syscall(SYS_rt_sigprocmask, SIG_SETMASK, &old, NULL, 8));
}

// --- Sockets and IPC.
R(socket) {
    int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    return fd < 0 ? -errno : done(close(fd));
}
static long sent(struct actor *me, int fd) { return given(send(fd, buffer[me->actor], 8, MSG_DONTWAIT)); }
static long received(struct actor *me, int fd) { return given(recv(fd, buffer[me->actor], 8, MSG_DONTWAIT)); }
R(unix_send) { return sent(me, me->local[0]); }
F(unix_send) { return received(me, me->local[1]); }
P(unix_receive) { CHECK(sent(me, me->local[0]) == 8, "send"); }
R(unix_receive) { return received(me, me->local[1]); }
R(tcp_send) { return sent(me, me->tcp[0]); }
F(tcp_send) { return received(me, me->tcp[1]); }
P(tcp_receive) { CHECK(sent(me, me->tcp[0]) == 8, "send"); }
R(tcp_receive) { return received(me, me->tcp[1]); }
R(udp_send) { return sent(me, me->udp[0]); }
F(udp_send) { return received(me, me->udp[1]); }
R(semop) {
    struct sembuf up = {0, 1, IPC_NOWAIT}, down = {0, -1, IPC_NOWAIT};
    return semop(me->semaphores, &up, 1) ? -errno : done(semop(me->semaphores, &down, 1));
}
R(message) {
    struct { long kind; char text[8]; } message = {1, ""};
    if (msgsnd(me->messages, &message, 8, IPC_NOWAIT)) return -errno;
    return given(msgrcv(me->messages, &message, 8, 0, IPC_NOWAIT));
}
// A connected pair on the loopback.
static void connect_inet(int kind, int ends[2]) {
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t len = sizeof at;
    int listener = socket(AF_INET, kind, 0);
    ends[0] = socket(AF_INET, kind, 0);
    CHECK(listener >= 0 && ends[0] >= 0 && !bind(listener, (void *)&at, sizeof at), "bind");
    CHECK(kind == SOCK_DGRAM || !listen(listener, 1), "listen");
    CHECK(!getsockname(listener, (void *)&at, &len) && !connect(ends[0], (void *)&at, sizeof at), "connect");
    ends[1] = kind == SOCK_DGRAM ? listener : accept(listener, NULL, NULL);
    CHECK(ends[1] >= 0 && (kind == SOCK_DGRAM || !close(listener)), "accept");
}
static void equip_sockets(struct actor *me) {
    CHECK(!socketpair(AF_UNIX, SOCK_STREAM, 0, me->local), "socketpair");
    connect_inet(SOCK_STREAM, me->tcp);
    connect_inet(SOCK_DGRAM, me->udp);
    me->semaphores = semget(IPC_PRIVATE, 1, 0600);
    me->messages = msgget(IPC_PRIVATE, 0600);
    CHECK(me->semaphores >= 0 && me->messages >= 0, "System V");
}

// --- Operations of both on one thing: for the check that conflicts are found.
R(same_pipe) {
    int *ends = (int *)me->memory;
    char byte[1] = {0};
    return write(ends[1], byte, 1) == 1 ? given(read(ends[0], byte, 1)) : -errno;
}
static int same_pipe[2];
P(same_pipe) {
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    pthread_mutex_lock(&lock);
    if (same_pipe[1] == 0) CHECK(pipe(same_pipe) == 0, "pipe");
    pthread_mutex_unlock(&lock);
    me->memory = (char *)same_pipe;
}

#define PLAIN (1u << THREADS | 1u << APART | 1u << FAMILY)
#define FILES (1u << THREADS | 1u << APART | 1u << SHARED_FILE)
#define MEMORY ((1u << STATES) - 1)
#define SEPARATE (MEMORY & ~(1u << THREADS))
#define O(name, prepare, finish, states) {#name, prepare_##prepare, run_##name, finish_##finish, states}

static const struct operation operations[] = {
    {"zero-fill", prepare_fresh, run_touch, finish_region, MEMORY},
    {"zero-read", prepare_fresh, run_load, finish_nothing, MEMORY},
    {"cow", prepare_inherited, run_touch, finish_region, 1u << APART | 1u << FAMILY},
    {"file-fault", prepare_unmapped_file, run_file_load, finish_nothing, FILES},
    {"file-cow", prepare_unmapped_file, run_file_cow, finish_nothing, FILES},
    O(mmap, nothing, unmap, MEMORY),
    {"mmap-fixed", prepare_place, run_mmap_fixed, finish_nothing, PLAIN},
    {"mmap-file", prepare_nothing, run_mmap_file, finish_unmap, FILES},
    O(munmap, mapped, nothing, MEMORY),
    O(mprotect, mapped, unmap, MEMORY),
    O(madvise, mapped, unmap, MEMORY),
    O(mremap, mapped, unmap, PLAIN),
    O(brk, nothing, brk, PLAIN),
    O(getpid, nothing, nothing, PLAIN),
    O(getppid, nothing, nothing, PLAIN),
    O(gettid, nothing, nothing, PLAIN),
    O(getuid, nothing, nothing, PLAIN),
    O(uname, nothing, nothing, PLAIN),
    O(getrusage, nothing, nothing, PLAIN),
    O(clock, nothing, nothing, PLAIN),
    O(umask, nothing, nothing, PLAIN),
    O(yield, nothing, nothing, PLAIN),
    O(getcwd, nothing, nothing, PLAIN),
    O(fork, nothing, nothing, SEPARATE),
    O(exec, nothing, nothing, SEPARATE),
    {"exec-same", prepare_nothing, run_exec_same, finish_nothing, 1u << APART},
    O(thread, nothing, nothing, PLAIN),
    O(open, nothing, close, FILES),
    {"open-same", prepare_nothing, run_open_same, finish_close, FILES},
    O(close, opened, nothing, FILES),
    {"close-same", prepare_opened_same, run_close, finish_nothing, FILES},
    O(create, nothing, unlink, FILES),
    O(unlink, created, nothing, FILES),
    O(stat, stat, nothing, FILES),
    {"stat-same", prepare_stat_same, run_stat_same, finish_nothing, FILES},
    O(fstat, fstat, nothing, FILES),
    O(access, nothing, nothing, FILES),
    O(pread, nothing, nothing, FILES),
    O(pwrite, nothing, nothing, FILES),
    O(read, seek, position, FILES),
    O(write, seek, position, FILES),
    O(lseek, nothing, position, FILES),
    O(append, nothing, truncate, 1u << SHARED_FILE),
    O(dup, nothing, close, PLAIN),
    O(fcntl, nothing, nothing, PLAIN),
    O(fsync, nothing, nothing, FILES),
    {"pipe-write", prepare_nothing, run_pipe_write, finish_drain, PLAIN},
    {"pipe-read", prepare_filled, run_pipe_read, finish_nothing, PLAIN},
    O(poll, nothing, nothing, PLAIN),
    O(event, nothing, nothing, PLAIN),
    {"futex-wake", prepare_nothing, run_futex_wake, finish_nothing, PLAIN},
    {"futex-wait", prepare_nothing, run_futex_wait, finish_nothing, PLAIN},
    {"futex-sleep", prepare_nothing, run_futex_sleep, finish_nothing, PLAIN},
    O(sleep, nothing, nothing, PLAIN),
    O(timer, nothing, timer, PLAIN),
    O(signal, nothing, nothing, PLAIN),
    O(mask, nothing, nothing, PLAIN),
    // Threads of one process take the lowest descriptor in turn.
    O(socket, nothing, nothing, 1u << APART | 1u << FAMILY),
    {"unix-send", prepare_nothing, run_unix_send, finish_unix_send, PLAIN},
    {"unix-receive", prepare_unix_receive, run_unix_receive, finish_nothing, PLAIN},
    {"tcp-send", prepare_nothing, run_tcp_send, finish_tcp_send, PLAIN},
    {"tcp-receive", prepare_tcp_receive, run_tcp_receive, finish_nothing, PLAIN},
    {"udp-send", prepare_nothing, run_udp_send, finish_udp_send, PLAIN},
    O(semop, nothing, nothing, PLAIN),
    O(message, nothing, nothing, PLAIN),
    {"same-pipe", prepare_same_pipe, run_same_pipe, finish_nothing, 1u << THREADS},
};
#define OPERATIONS ((int)(sizeof operations / sizeof *operations))
#define ON_PURPOSE (OPERATIONS - 1)
