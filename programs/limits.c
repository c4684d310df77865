// Resource limits: each answer is the same on Linux and on Quire.
#include "checks.h"
#include <pthread.h>
#include <stdbool.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>

#define PAGE 4096ul
#define MIB (1ul << 20)
#define READ_WRITE (PROT_READ | PROT_WRITE)

static char bytes[65536];

static void limit(int which, rlim_t soft, rlim_t hard) {
    struct rlimit wanted = {soft, hard};
    CHECK(!setrlimit(which, &wanted), "setrlimit");
}

// The hard limit stays.
static void soft_limit(int which, rlim_t soft) {
    struct rlimit now;
    CHECK(!getrlimit(which, &now), "getrlimit");
    limit(which, soft, now.rlim_max);
}

static int file(off_t len) {
    int fd = memfd_create("file", 0);
    CHECK(fd >= 0 && !ftruncate(fd, len), "memfd_create");
    return fd;
}

// The call is refused with EFBIG, and SIGXFSZ comes from the caller itself.
#define TOO_LARGE(call) \
    do { \
        caught = 0; \
        ANSWERS(EFBIG, call); \
        CHECK(caught == SIGXFSZ && caught_code == SI_USER && caught_pid == getpid(), "%s: signal %d, code %d", #call, \
            caught, caught_code); \
    } while (0)
#define QUIET(result, call) \
    do { \
        caught = 0; \
        long answer = call; \
        CHECK(answer == (result) && !caught, "%s: %ld, signal %d, errno %d", #call, answer, caught, errno); \
    } while (0)

static void sizes_of_files(void) {
    int fd = file(20000), from = file(100000);
    char path[64];
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    handle(SIGXFSZ, 0);
    limit(RLIMIT_FSIZE, 10000, RLIM_INFINITY);
    // A part is written up to the limit; what lies beyond stays as it is.
    TOO_LARGE(pwrite(fd, bytes, 1, 10000));
    TOO_LARGE(pwrite(fd, bytes, 1, 15000));
    QUIET(0, pwrite(fd, bytes, 0, 15000));
    QUIET(1, pwrite(fd, bytes, 2, 9999));
    QUIET(10000, pwrite(fd, bytes, sizeof bytes, 0));
    // Truncation makes it smaller only.
    TOO_LARGE(ftruncate(fd, 20001));
    QUIET(0, ftruncate(fd, 15000));
    TOO_LARGE(ftruncate(fd, 20000));
    TOO_LARGE(truncate(path, 15001));
    QUIET(0, fallocate(fd, 0, 0, 15000));
    TOO_LARGE(fallocate(fd, 0, 0, 15001));
    TOO_LARGE(fallocate(fd, FALLOC_FL_KEEP_SIZE, 0, 15001));
    QUIET(0, fallocate(fd, FALLOC_FL_KEEP_SIZE | FALLOC_FL_PUNCH_HOLE, 0, 20001));
    QUIET(0, truncate(path, 9000));
    QUIET(9000, lseek(fd, 9000, SEEK_SET));
    struct iovec parts[2] = {{bytes, 500}, {bytes, 4000}};
    QUIET(1000, writev(fd, parts, 2));
    TOO_LARGE(write(fd, bytes, 1));
    QUIET(10000, lseek(fd, 0, SEEK_CUR));
    // To the end, wherever the end is.
    int end = open(path, O_WRONLY | O_APPEND);
    TOO_LARGE(write(end, bytes, 1));
    QUIET(0, ftruncate(fd, 9990));
    QUIET(10, write(end, bytes, 100));
    // From file to file.
    QUIET(0, lseek(fd, 0, SEEK_SET));
    caught = 0;
    long sent = sendfile(fd, from, NULL, sizeof bytes);
    CHECK(sent == 10000 && caught == SIGXFSZ, "sendfile: %ld, signal %d", sent, caught);
    QUIET(10000, lseek(from, 0, SEEK_CUR));
    TOO_LARGE(sendfile(fd, from, NULL, 1));
    QUIET(10000, lseek(from, 0, SEEK_CUR));
    QUIET(0, lseek(fd, 0, SEEK_SET));
    QUIET(10000, copy_file_range(from, NULL, fd, NULL, sizeof bytes, 0));
    TOO_LARGE(copy_file_range(from, NULL, fd, NULL, 1, 0));
    QUIET(0, lseek(fd, 0, SEEK_SET));
    QUIET(4000, sendfile(fd, from, NULL, 4000));
    // Only regular files have a size.
    int ends[2], null = open("/dev/null", O_WRONLY);
    limit(RLIMIT_FSIZE, 0, RLIM_INFINITY);
    CHECK(!pipe(ends), "pipe");
    QUIET(100, write(ends[1], bytes, 100));
    QUIET(100, write(null, bytes, 100));
    TOO_LARGE(pwrite(fd, bytes, 1, 0));
    QUIET(0, ftruncate(fd, 0));
    // It ends a process that does not handle it, and stays pending while it is blocked.
    sigset_t blocked, pending;
    sigemptyset(&blocked);
    sigaddset(&blocked, SIGXFSZ);
    sigprocmask(SIG_BLOCK, &blocked, NULL);
    ANSWERS(EFBIG, pwrite(fd, bytes, 1, 0));
    CHECK(!sigpending(&pending) && sigismember(&pending, SIGXFSZ), "pending");
    signal(SIGXFSZ, SIG_IGN);
    sigprocmask(SIG_UNBLOCK, &blocked, NULL);
    ANSWERS(EFBIG, pwrite(fd, bytes, 1, 0));
    pid_t child = fork();
    if (!child) {
        signal(SIGXFSZ, SIG_DFL);
        pwrite(fd, bytes, 1, 0);
        _exit(0);
    }
    int status = ended(child);
    CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGXFSZ, "status %#x", status);
}

static void a_pipe_without_a_reader(void) {
    int ends[2];
    CHECK(!pipe(ends) && !close(ends[0]), "pipe");
    handle(SIGPIPE, 0);
    ANSWERS(EPIPE, write(ends[1], "x", 1));
    CHECK(caught == SIGPIPE && caught_code == SI_USER && caught_pid == getpid(), "signal %d, code %d", caught,
        caught_code);
}

// What /proc/self/status says, in bytes.
static long status_of(const char *name) {
    char text[4096];
    int fd = open("/proc/self/status", O_RDONLY);
    ssize_t len = read(fd, text, sizeof text - 1);
    CHECK(len > 0 && !close(fd), "status");
    text[len] = 0;
    char *line = strstr(text, name);
    CHECK(line, "%s", name);
    return atol(line + strlen(name) + 1) * 1024;
}

static char *map(size_t pages, int protection, int flags) {
    return mmap(NULL, pages * PAGE, protection, flags | MAP_ANONYMOUS, -1, 0);
}

static struct {
    long data, stack, code;
} before;

static void note(void) {
    before.data = status_of("VmData");
    before.stack = status_of("VmStk");
    before.code = status_of("VmExe") + status_of("VmLib");
}

// By so many pages they have changed since `note`.
#define GREW(data_by, stack_by, code_by) \
    do { \
        long data = (status_of("VmData") - before.data) / (long)PAGE, \
            stack = (status_of("VmStk") - before.stack) / (long)PAGE; \
        long code = (status_of("VmExe") + status_of("VmLib") - before.code) / (long)PAGE; \
        CHECK(data == (data_by) && stack == (stack_by) && code == (code_by), "data %ld, stack %ld, code %ld", data, \
            stack, code); \
    } while (0)

static void data_is_private_writable_memory(void) {
    note();
    char *at = map(16, READ_WRITE, MAP_PRIVATE);
    GREW(16, 0, 0);
    mprotect(at, 4 * PAGE, PROT_READ);
    GREW(12, 0, 0);
    mprotect(at + 2 * PAGE, 4 * PAGE, PROT_READ | PROT_EXEC);
    GREW(10, 0, 4);
    mprotect(at + 3 * PAGE, PAGE, READ_WRITE | PROT_EXEC);
    GREW(11, 0, 3);
    mprotect(at, 16 * PAGE, PROT_NONE);
    GREW(0, 0, 0);
    mprotect(at, 16 * PAGE, READ_WRITE);
    GREW(16, 0, 0);
    pid_t child = fork();
    if (!child) {
        GREW(16, 0, 0);
        munmap(at, 16 * PAGE);
        GREW(0, 0, 0);
        _exit(0);
    }
    CHECK(!ended(child), "child");
    char *shared = map(16, READ_WRITE, MAP_SHARED), *down = map(16, READ_WRITE, MAP_PRIVATE | MAP_GROWSDOWN);
    GREW(16, 16, 0);
    mprotect(down, 8 * PAGE, PROT_READ);
    mprotect(shared, 8 * PAGE, PROT_READ | PROT_EXEC);
    GREW(16, 16, 8);
    munmap(down, 16 * PAGE);
    munmap(shared, 16 * PAGE);
    munmap(at + 4 * PAGE, 4 * PAGE);
    GREW(12, 0, 0);
    at = mremap(at, 4 * PAGE, 8 * PAGE, MREMAP_MAYMOVE);
    GREW(16, 0, 0);
    at = mremap(at, 8 * PAGE, 2 * PAGE, MREMAP_MAYMOVE);
    GREW(10, 0, 0);
    void *kept = mremap(at, 2 * PAGE, 2 * PAGE, MREMAP_MAYMOVE | 4 /* don't unmap */, NULL);
    CHECK(kept != MAP_FAILED, "mremap");
    GREW(12, 0, 0);
    syscall(SYS_brk, syscall(SYS_brk, 0) + 16 * PAGE);
    GREW(28, 0, 0);
    syscall(SYS_brk, syscall(SYS_brk, 0) - 8 * PAGE);
    GREW(20, 0, 0);
    int fd = file(4 * PAGE);
    char *copy = mmap(NULL, 4 * PAGE, READ_WRITE, MAP_PRIVATE, fd, 0);
    GREW(24, 0, 0);
    CHECK(mmap(copy + PAGE, PAGE, READ_WRITE, MAP_SHARED | MAP_FIXED, fd, 0) == copy + PAGE, "mmap");
    GREW(23, 0, 0);
}

static void data(void) {
    char *read_only = map(16, PROT_READ, MAP_PRIVATE), *there = map(4, READ_WRITE, MAP_PRIVATE),
        *grows = map(4, READ_WRITE, MAP_PRIVATE);
    char *small = map(4, PROT_READ, MAP_PRIVATE);
    int fd = file(16 * PAGE);
    limit(RLIMIT_DATA, status_of("VmData") + 8 * PAGE, RLIM_INFINITY);
#define MAPS(error, call) ANSWERS(error, (call) == MAP_FAILED ? -1 : 0)
    MAPS(ENOMEM, map(9, READ_WRITE, MAP_PRIVATE));
    MAPS(ENOMEM, mmap(NULL, 9 * PAGE, READ_WRITE, MAP_PRIVATE, fd, 0));
    MAPS(0, map(9, PROT_READ, MAP_PRIVATE));
    MAPS(0, map(9, PROT_READ | PROT_EXEC, MAP_PRIVATE));
    MAPS(0, map(9, READ_WRITE, MAP_SHARED));
    MAPS(0, map(9, READ_WRITE, MAP_PRIVATE | MAP_GROWSDOWN));
    ANSWERS(ENOMEM, mprotect(read_only, 9 * PAGE, READ_WRITE));
    ANSWERS(0, mprotect(read_only, 8 * PAGE, READ_WRITE));
    ANSWERS(ENOMEM, mprotect(read_only + 8 * PAGE, PAGE, READ_WRITE));
    // Data mappings may change their rights; of a range, the part before the refused one has changed.
    ANSWERS(ENOMEM, mprotect(read_only, 9 * PAGE, READ_WRITE | PROT_EXEC));
    ANSWERS(0, mprotect(read_only, 8 * PAGE, READ_WRITE));
    MAPS(0, mmap(there, 4 * PAGE, READ_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0));
    MAPS(ENOMEM, mremap(grows, 4 * PAGE, 5 * PAGE, MREMAP_MAYMOVE));
    MAPS(0, mremap(small, 4 * PAGE, 5 * PAGE, MREMAP_MAYMOVE));
    MAPS(0, mremap(there, 4 * PAGE, 4 * PAGE, MREMAP_MAYMOVE | 2 /* fixed */, read_only + 8 * PAGE));
    long end = syscall(SYS_brk, 0);
    CHECK(syscall(SYS_brk, end + PAGE) == end, "brk");
    munmap(read_only, PAGE);
    MAPS(0, map(1, READ_WRITE, MAP_PRIVATE));
    MAPS(ENOMEM, map(1, READ_WRITE, MAP_PRIVATE));
    // A stack still grows.
    volatile char deep[64 * PAGE];
    for (size_t i = sizeof deep; i >= PAGE; i -= PAGE) deep[i - 1] = 1;
    pid_t child = fork();
    if (!child) {
        MAPS(ENOMEM, map(1, READ_WRITE, MAP_PRIVATE));
        _exit(0);
    }
    CHECK(!ended(child), "child");
    // With a soft limit of 0 only the break stands still: the hard limit holds for all else.
    rlim_t most = status_of("VmData") + 4 * PAGE;
    limit(RLIMIT_DATA, 0, most);
    CHECK(syscall(SYS_brk, end + PAGE) == end, "brk");
    MAPS(0, map(4, READ_WRITE, MAP_PRIVATE));
    MAPS(ENOMEM, map(1, READ_WRITE, MAP_PRIVATE));
}

static void address_space(void) {
    char *at = map(8, READ_WRITE, MAP_PRIVATE), *to = map(8, READ_WRITE, MAP_PRIVATE);
    munmap(to, 8 * PAGE);
    limit(RLIMIT_AS, status_of("VmSize") + 8 * PAGE, RLIM_INFINITY);
    MAPS(ENOMEM, map(9, PROT_NONE, MAP_PRIVATE));
    MAPS(ENOMEM, map(9, READ_WRITE, MAP_SHARED));
    MAPS(ENOMEM, mremap(at, 8 * PAGE, 17 * PAGE, MREMAP_MAYMOVE));
    long end = syscall(SYS_brk, 0);
    CHECK(syscall(SYS_brk, end + 9 * PAGE) == end, "brk");
    char *last = map(8, PROT_NONE, MAP_PRIVATE);
    CHECK(last != MAP_FAILED, "mmap");
    MAPS(ENOMEM, map(1, PROT_NONE, MAP_PRIVATE));
    MAPS(0, mmap(last, 8 * PAGE, READ_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0));
    // A mapping that does not grow may move under any limit.
    limit(RLIMIT_AS, 0, RLIM_INFINITY);
    MAPS(ENOMEM, mremap(at, 2 * PAGE, 3 * PAGE, MREMAP_MAYMOVE | 2 /* fixed */, to));
    MAPS(ENOMEM, mremap(at, 2 * PAGE, 2 * PAGE, MREMAP_MAYMOVE | 4 /* don't unmap */, NULL));
    unsigned char resident[8];
    CHECK(!mincore(at, 8 * PAGE, resident), "a refused call takes nothing away");
    MAPS(0, mremap(at, 8 * PAGE, 4 * PAGE, MREMAP_MAYMOVE | 2 /* fixed */, to));
    CHECK(mincore(at, PAGE, resident) && !mincore(to, 4 * PAGE, resident), "moved");
    ANSWERS(0, mprotect(to, PAGE, PROT_READ));
    ANSWERS(0, munmap(to, 4 * PAGE));
}

static void locked_memory(void) {
    char *at = map(32, READ_WRITE, MAP_PRIVATE);
    soft_limit(RLIMIT_MEMLOCK, 8 * PAGE + 100);
    CHECK(!setresuid(1000, 1000, 1000), "setresuid");
    ANSWERS(ENOMEM, mlock(at, 9 * PAGE));
    ANSWERS(ENOMEM, mlock(at + 1, 8 * PAGE));
    ANSWERS(0, mlock(at, 8 * PAGE));
    ANSWERS(ENOMEM, mlock(at + 8 * PAGE, 1));
    // Locked pages do not count twice.
    ANSWERS(0, mlock(at, 8 * PAGE));
    ANSWERS(ENOMEM, mlock(at, 9 * PAGE));
    ANSWERS(0, munlock(at, 2 * PAGE));
    ANSWERS(0, mlock(at + 30 * PAGE, PAGE));
    CHECK(status_of("VmLck") == 7 * PAGE, "locked: %ld", status_of("VmLck"));
    MAPS(EAGAIN, map(2, READ_WRITE, MAP_PRIVATE | MAP_LOCKED));
    MAPS(0, map(1, READ_WRITE, MAP_PRIVATE | MAP_LOCKED));
    MAPS(EAGAIN, mremap(at + 30 * PAGE, PAGE, 2 * PAGE, MREMAP_MAYMOVE));
    MAPS(0, mremap(at, 2 * PAGE, 3 * PAGE, MREMAP_MAYMOVE));
    ANSWERS(ENOMEM, mlockall(MCL_CURRENT));
    ANSWERS(ENOMEM, mlockall(MCL_CURRENT | MCL_FUTURE));
    ANSWERS(EINVAL, mlockall(0));
    // A child begins with nothing locked.
    pid_t child = fork();
    if (!child) {
        CHECK(status_of("VmLck") == 0, "a child's");
        ANSWERS(0, mlock(at + 8 * PAGE, 8 * PAGE));
        _exit(0);
    }
    CHECK(!ended(child), "child");
    // For later mappings and the break.
    ANSWERS(0, munlockall());
    ANSWERS(0, mlockall(MCL_FUTURE));
    MAPS(EAGAIN, map(9, PROT_READ, MAP_PRIVATE));
    char *future = map(6, READ_WRITE, MAP_PRIVATE);
    CHECK(future != MAP_FAILED && status_of("VmLck") == 6 * PAGE, "locked: %ld", status_of("VmLck"));
    MAPS(EAGAIN, mremap(future, 6 * PAGE, 9 * PAGE, MREMAP_MAYMOVE));
    long end = syscall(SYS_brk, 0);
    CHECK(syscall(SYS_brk, end + 3 * PAGE) == end, "brk");
    CHECK(syscall(SYS_brk, end + PAGE) == end + (long)PAGE, "brk");
    munmap(future, 6 * PAGE);
    MAPS(0, map(7, READ_WRITE, MAP_PRIVATE));
    // A stack that is locked does not grow beyond it.
    child = fork();
    if (!child) {
        char *room = map(600, PROT_NONE, MAP_PRIVATE), *down = room + 550 * PAGE;
        munmap(room, 600 * PAGE);
        ANSWERS(0, mlockall(MCL_FUTURE));
        MAPS(0, mmap(down, 2 * PAGE, READ_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_GROWSDOWN | MAP_FIXED, -1, 0));
        for (int i = 1; i <= 6; i++) down[-i * (long)PAGE] = 1;
        CHECK(status_of("VmLck") == 8 * PAGE, "locked: %ld", status_of("VmLck"));
        down[-7 * (long)PAGE] = 1;
        _exit(0);
    }
    int status = ended(child);
    CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV, "a stack's growth: %#x", status);
    soft_limit(RLIMIT_MEMLOCK, 0);
    ANSWERS(EPERM, mlock(at + 8 * PAGE, 0));
    ANSWERS(EPERM, mlockall(MCL_FUTURE));
    // (The C library makes another error of this one.)
    ANSWERS(EPERM, syscall(SYS_mmap, NULL, PAGE, READ_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_LOCKED, -1, 0));
    MAPS(EAGAIN, map(1, READ_WRITE, MAP_PRIVATE));
    ANSWERS(0, munlock(at + 4 * PAGE, PAGE));
}

static void locked_memory_of_the_privileged(void) {
    char *at = map(16, READ_WRITE, MAP_PRIVATE);
    limit(RLIMIT_MEMLOCK, 0, 0);
    ANSWERS(0, mlock(at, 16 * PAGE));
    MAPS(0, map(16, READ_WRITE, MAP_PRIVATE | MAP_LOCKED));
    MAPS(0, mremap(at, 16 * PAGE, 32 * PAGE, MREMAP_MAYMOVE));
    ANSWERS(0, mlockall(MCL_FUTURE));
    MAPS(0, map(16, READ_WRITE, MAP_PRIVATE));
}

static void descriptors(void) {
    int ends[2];
    while (dup(0) < 20) continue;
    limit(RLIMIT_NOFILE, 20, 100);
    ANSWERS(EMFILE, open("/dev/null", O_RDONLY));
    ANSWERS(EMFILE, dup(0));
    ANSWERS(EMFILE, pipe(ends));
    ANSWERS(EMFILE, memfd_create("m", 0));
    ANSWERS(EMFILE, fcntl(0, F_DUPFD, 19));
    ANSWERS(EINVAL, fcntl(0, F_DUPFD, 20));
    ANSWERS(EINVAL, fcntl(0, F_DUPFD, -1));
    ANSWERS(EBADF, dup2(0, 20));
    ANSWERS(EBADF, dup3(0, 50, O_CLOEXEC));
    ANSWERS(EBADF, dup2(0, -1));
    ANSWERS(0, dup2(0, 19) == 19 ? 0 : -1);
    // Descriptors beyond the limit stay open.
    ANSWERS(0, fcntl(20, F_GETFD));
    ANSWERS(0, dup2(20, 20) == 20 ? 0 : -1);
    close(7);
    ANSWERS(0, open("/dev/null", O_RDONLY) == 7 ? 0 : -1);
    ANSWERS(0, dup2(20, 7) == 7 ? 0 : -1);
    struct rlimit more = {21, 1ul << 40};
    ANSWERS(EPERM, setrlimit(RLIMIT_NOFILE, &more));
    limit(RLIMIT_NOFILE, 40, 100);
    ANSWERS(0, dup(0) == 21 ? 0 : -1);
}

// How far a child got before the place where a signal must end it.
static volatile int *reached;

static void touch_stack(void) {
    volatile char *here = __builtin_frame_address(0);
    limit(RLIMIT_STACK, 512 * 1024, RLIM_INFINITY);
    for (long down = PAGE; down < 400 * 1024; down += PAGE) here[-down] = 1;
    limit(RLIMIT_STACK, 640 * 1024, RLIM_INFINITY);
    here[-550 * 1024] = 1;
    handle(SIGUSR1, 0);
    raise(SIGUSR1);
    *reached = 1;
    here[-660 * 1024] = 1;
}

static void others(void) {
    reached = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(reached != MAP_FAILED, "mmap");
    int status = in_child(touch_stack);
    CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV && *reached == 1, "a stack: %#x at %d", status, *reached);
    // The number of file locks has no limit.
    int fd = file(PAGE);
    limit(RLIMIT_LOCKS, 0, 0);
    struct flock one = {.l_type = F_WRLCK, .l_len = 1};
    ANSWERS(0, fcntl(fd, F_SETLK, &one));
    // A nice value may be lowered to 20 less the limit.
    struct rlimit nice = {25, 25};
    struct rlimit wrong = {11, 10};
    ANSWERS(EINVAL, setrlimit(RLIMIT_NICE, &wrong));
    ANSWERS(EINVAL, setrlimit(16, &nice));
    ANSWERS(EFAULT, syscall(SYS_getrlimit, RLIMIT_NICE, 1));
    // A container's root may not raise it.
    if (setrlimit(RLIMIT_NICE, &nice)) {
        CHECK(errno == EPERM, "RLIMIT_NICE: %d", errno);
        return;
    }
    CHECK(!setresuid(1000, 1000, 1000), "setresuid");
    ANSWERS(0, setpriority(PRIO_PROCESS, 0, -5));
    ANSWERS(EACCES, setpriority(PRIO_PROCESS, 0, -6));
    ANSWERS(0, setpriority(PRIO_PROCESS, 0, 3));
    ANSWERS(0, setpriority(PRIO_PROCESS, 0, -5));
    // More needs privilege, less does not, and back only up to the hard limit.
    struct rlimit more = {26, 26}, less = {10, 25};
    ANSWERS(EPERM, setrlimit(RLIMIT_NICE, &more));
    ANSWERS(0, setrlimit(RLIMIT_NICE, &less));
}

static double used(void) {
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return t.tv_sec + t.tv_nsec / 1e9;
}

static void *burn(void *until) {
    while (used() < *(double *)until) continue;
    return NULL;
}

static void burn_to(double until) { burn(&until); }

static volatile int times;
static volatile double when[8];

static void note_time(int signal, siginfo_t *info, void *context) {
    on(signal, info, context);
    if (times < 8) when[times++] = used();
}

static void note_times(void) {
    struct sigaction action = {.sa_sigaction = note_time, .sa_flags = SA_SIGINFO};
    CHECK(!sigaction(SIGXCPU, &action, NULL), "sigaction");
}

// So many signals have come so far, the last with `at` seconds used; the soft limit is `soft` now.
#define REPORTED(count, at, soft) \
    do { \
        struct rlimit now; \
        CHECK(!getrlimit(RLIMIT_CPU, &now) && times == (count), "reported %d times", times); \
        double last = when[times - 1]; \
        CHECK(caught_code == SI_KERNEL && last > (at) - 0.1 && last < (at) + 0.25, "code %d, at %f", caught_code, \
            last); \
        CHECK(now.rlim_cur == (soft), "limit %lu", (unsigned long)now.rlim_cur); \
    } while (0)

static void each_second(void) {
    note_times();
    limit(RLIMIT_CPU, 1, 3);
    burn_to(1.4);
    REPORTED(1, 1, 2);
    burn_to(2.4);
    REPORTED(2, 2, 3);
    burn_to(5);
}

static void of_all_threads(void) {
    note_times();
    limit(RLIMIT_CPU, 1, RLIM_INFINITY);
    pthread_t threads[3];
    double until = 1.4;
    for (int i = 0; i < 3; i++) CHECK(!pthread_create(threads + i, NULL, burn, &until), "pthread_create");
    for (int i = 0; i < 3; i++) pthread_join(threads[i], NULL);
    REPORTED(1, 1, 2);
}

static void at_once(void) {
    note_times();
    burn_to(0.3);
    limit(RLIMIT_CPU, 0, RLIM_INFINITY);
    burn_to(0.7);
    REPORTED(1, 0.3, 1);
    limit(RLIMIT_CPU, RLIM_INFINITY, RLIM_INFINITY);
    burn_to(1.3);
    CHECK(times == 1, "without a limit");
}

static void not_a_childs(void) {
    limit(RLIMIT_CPU, 1, RLIM_INFINITY);
    burn_to(0.7);
    pid_t child = fork();
    if (!child) {
        burn_to(0.7);
        _exit(0);
    }
    CHECK(!ended(child), "child");
    // Sleep costs nothing, and is not interrupted.
    struct timespec pause = {1, 0};
    CHECK(!nanosleep(&pause, NULL), "nanosleep");
    child = fork();
    if (!child) burn_to(3);
    int status = ended(child);
    CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGXCPU, "inherited: %#x", status);
}

static void time_on_cpus(void) {
    int status = in_child(each_second);
    CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL, "the hard limit: %#x", status);
    CHECK(!in_child(of_all_threads) && !in_child(at_once) && !in_child(not_a_childs), "child");
    // One process limits another.
    pid_t child = fork();
    if (!child) burn_to(5);
    usleep(100000);
    struct rlimit one = {1, 2};
    CHECK(!prlimit(child, RLIMIT_CPU, &one, NULL), "prlimit");
    status = ended(child);
    CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGXCPU, "another's: %#x", status);
}

static const struct check checks[] = {
    {"time_on_cpus", time_on_cpus},
    {"others", others},
    {"address_space", address_space},
    {"descriptors", descriptors},
    {"locked_memory", locked_memory},
    {"locked_memory_of_the_privileged", locked_memory_of_the_privileged},
    {"data_is_private_writable_memory", data_is_private_writable_memory},
    {"data", data},
    {"sizes_of_files", sizes_of_files},
    {"a_pipe_without_a_reader", a_pipe_without_a_reader},
};

int main(int argc, char **argv) {
    parse_options(argc, argv, NULL);
    run_checks(checks, sizeof checks / sizeof *checks);
    return 0;
}
