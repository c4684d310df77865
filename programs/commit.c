// The limit of the memory that all programs may have together (`vm.overcommit_memory` 2). The program changes it for
// the whole machine, and must not run on a machine in use.
#define _GNU_SOURCE
#include "checks.h"
#include <pthread.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/shm.h>

#define SETTING "/proc/sys/vm/overcommit_"
#define KIB 1024l

static void set(const char *name, long value, int error) {
    char path[64], text[32];
    snprintf(path, sizeof path, SETTING "%s", name);
    int fd = open(path, O_WRONLY), len = snprintf(text, sizeof text, "%ld\n", value);
    CHECK(fd >= 0, "%s", path);
    long done = write(fd, text, len);
    CHECK(done == (error ? -1 : len) && (!error || errno == error), "%s %ld: %ld %d", name, value, done, errno);
    close(fd);
}

// Needs no memory of its own: there may be none.
static long number(const char *path, const char *key) {
    char text[8192];
    int fd = open(path, O_RDONLY);
    CHECK(fd >= 0, "%s", path);
    ssize_t len = read(fd, text, sizeof text - 1);
    CHECK(len > 0 && !close(fd), "%s", path);
    text[len] = 0;
    for (char *line = text; *line;) {
        if (!strncmp(line, key, strlen(key))) return atol(line + strlen(key));
        line += strcspn(line, "\n");
        line += *line != 0;
    }
    return -1;
}

static long committed(void) { return number("/proc/meminfo", "Committed_AS:"); }

static char *take(size_t bytes, int prot) {
    return mmap(NULL, bytes, prot, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
}

static char *refused(size_t bytes) {
    char *at = take(bytes, PROT_READ | PROT_WRITE);
    CHECK(at == MAP_FAILED && errno == ENOMEM, "%zu bytes: %p %d", bytes, at, errno);
    return at;
}

static char *granted(size_t bytes, int prot) {
    char *at = take(bytes, prot);
    CHECK(at != MAP_FAILED, "%zu bytes: %d", bytes, errno);
    return at;
}

// `free` bytes from now on.
static void leave(long free) {
    long kib = committed() + free / KIB - number("/proc/meminfo", "SwapTotal:");
    set("kbytes", kib > 0 ? kib : 1, 0);
    set("memory", 2, 0);
}

static void settings(void) {
    long total = number("/proc/meminfo", "MemTotal:"), swap = number("/proc/meminfo", "SwapTotal:");
    set("ratio", 50, 0);
    long limit = number("/proc/meminfo", "CommitLimit:");
    CHECK(labs(limit - total / 2 - swap) < 4, "%ld of %ld and %ld", limit, total, swap);
    set("ratio", 200, 0);
    limit = number("/proc/meminfo", "CommitLimit:");
    CHECK(labs(limit - 2 * total - swap) < 8, "%ld", limit);
    set("kbytes", 4096, 0);
    CHECK(number(SETTING "ratio", "") == 0 && number("/proc/meminfo", "CommitLimit:") == 4096 + swap, "kbytes");
    set("ratio", 50, 0);
    CHECK(number(SETTING "kbytes", "") == 0, "kbytes");
    set("memory", 3, EINVAL);
    set("memory", -1, EINVAL);
    set("ratio", -1, EINVAL);
    set("kbytes", -1, EINVAL);
    CHECK(number(SETTING "memory", "") == 0, "mode");
}

static void modes(void) {
    refused(1l << 40);
    set("memory", 1, 0);
    CHECK(!munmap(granted(1l << 40, PROT_READ | PROT_WRITE), 1l << 40), "munmap");
    set("memory", 0, 0);
    char *loose = mmap(NULL, 1l << 40, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    CHECK(loose != MAP_FAILED && !munmap(loose, 1l << 40), "MAP_NORESERVE");
    long before = committed();
    char *at = granted(32 * MIB, PROT_READ | PROT_WRITE);
    CHECK(labs(committed() - before - 32 * KIB) < KIB, "%ld after %ld", committed(), before);
    CHECK(!mprotect(at, 16 * MIB, PROT_READ), "mprotect");
    CHECK(!munmap(at, 32 * MIB), "munmap");
    CHECK(labs(committed() - before) < KIB, "%ld after %ld", committed(), before);
}

static void limited(void) {
    leave(32 * MIB);
    char *at = granted(16 * MIB, PROT_READ | PROT_WRITE);
    refused(64 * MIB);
    char *read = granted(64 * MIB, PROT_READ);
    ANSWERS(ENOMEM, mprotect(read, 64 * MIB, PROT_READ | PROT_WRITE));
    CHECK(!mprotect(read, MIB, PROT_READ | PROT_WRITE), "mprotect");
    CHECK(mremap(at, 16 * MIB, 64 * MIB, MREMAP_MAYMOVE) == MAP_FAILED && errno == ENOMEM, "mremap");
    void *end = sbrk(0);
    CHECK(sbrk(64 * MIB) == (void *)-1 && errno == ENOMEM && sbrk(0) == end, "brk");
    CHECK(!munmap(read, 64 * MIB), "munmap");
    // Inaccessible memory has no charge, which stores in its place need.
    char *none = granted(64 * MIB, PROT_NONE);
    void *over = mmap(none, 64 * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    CHECK(over == MAP_FAILED && errno == ENOMEM, "MAP_FIXED");
    munmap(none, 64 * MIB);
    void *shared = mmap(NULL, 64 * MIB, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    CHECK(shared == MAP_FAILED && errno == ENOMEM, "MAP_SHARED");
    ANSWERS(ENOMEM, shmget(IPC_PRIVATE, 64 * MIB, 0600));
    // A child would double the program.
    memset(at, 1, 16 * MIB);
    char *more = granted(10 * MIB, PROT_READ | PROT_WRITE);
    CHECK(fork() == -1 && errno == ENOMEM, "fork");
    CHECK(!munmap(more, 10 * MIB) && !munmap(at, 16 * MIB), "munmap");
    int status;
    pid_t child = fork();
    if (!child) _exit(0);
    CHECK(child > 0 && wait(&status) == child && !status, "child");
}

static void grow(int pages) {
    volatile char here[4096];
    here[0] = 1;
    if (pages) grow(pages - 1);
    CHECK(here[0] == 1, "the stack");
}

static void stacks(void) {
    struct rlimit most = {64 * MIB, RLIM_INFINITY};
    CHECK(!setrlimit(RLIMIT_STACK, &most), "setrlimit");
    leave(16 * MIB);
    int status;
    for (int i = 0; i < 2; i++) {
        pid_t child = fork();
        CHECK(child >= 0, "fork");
        if (!child) {
            grow((i ? 32 : 1) * MIB / 4096);
            _exit(0);
        }
        CHECK(wait(&status) == child, "wait");
        CHECK(i ? WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV : !status, "%d: %#x", i, status);
    }
}

enum { THREADS = 2, CHILDREN = 3 };

// Passed by all threads together: none takes memory that another thread's stack needs.
static pthread_barrier_t *start;

// Takes memory until there is none, and gives it back: the limit holds at each moment. Requests that are being refused
// may be in the sum.
static void *hungry(void *past) {
    pthread_barrier_wait(start);
    for (int round = 0; round < 200; round++) {
        char *all[64];
        int n = 0;
        while (n < 64 && (all[n] = take(MIB, PROT_READ | PROT_WRITE)) != MAP_FAILED) n++;
        if (committed() > number("/proc/meminfo", "CommitLimit:") + (THREADS * CHILDREN + 1) * KIB) *(int *)past += 1;
        while (n) munmap(all[--n], MIB);
    }
    return NULL;
}

static void together(void) {
    start = mmap(NULL, sizeof *start, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(start != MAP_FAILED, "mmap");
    pthread_barrierattr_t shared;
    CHECK(!pthread_barrierattr_init(&shared), "barrier");
    CHECK(!pthread_barrierattr_setpshared(&shared, PTHREAD_PROCESS_SHARED), "barrier");
    CHECK(!pthread_barrier_init(start, &shared, THREADS * CHILDREN), "barrier");
    long before = committed();
    leave(128 * MIB);
    for (int i = 0; i < CHILDREN; i++) {
        pid_t child = fork();
        CHECK(child >= 0, "fork");
        if (child) continue;
        pthread_t threads[THREADS];
        int past[THREADS] = {0}, all = 0;
        for (int t = 0; t < THREADS; t++) CHECK(!pthread_create(&threads[t], NULL, hungry, &past[t]), "thread");
        for (int t = 0; t < THREADS; t++) CHECK(!pthread_join(threads[t], NULL), "join");
        for (int t = 0; t < THREADS; t++) all += past[t];
        _exit(all != 0);
    }
    for (int i = 0; i < CHILDREN; i++) {
        int status;
        CHECK(wait(&status) > 0 && !status, "child: %#x", status);
    }
    set("memory", 0, 0);
    CHECK(labs(committed() - before) < KIB, "%ld after %ld", committed(), before);
}

static void usual(void) {
    set("memory", 0, 0);
    set("ratio", 50, 0);
}

static void in_mode(void (*check)(void)) {
    check();
    usual();
}
static void settings_check(void) { in_mode(settings); }
static void modes_check(void) { in_mode(modes); }
static void limited_check(void) { in_mode(limited); }
static void stacks_check(void) { in_mode(stacks); }
static void together_check(void) { in_mode(together); }

int main(int argc, char **argv) {
    parse_options(argc, argv, NULL);
    static const struct check checks[] = {
        {"settings", settings_check}, {"modes", modes_check}, {"limited", limited_check},
        {"stacks", stacks_check},     {"together", together_check},
    };
    run_checks(checks, sizeof checks / sizeof *checks);
    return 0;
}
