// The frame of the counted operations (counts.c). An operation prepares itself, warms up, and then marks the stretch
// that counts. The emulator's plugin writes the kernel's instructions of each stretch, in order (plugin/src/count.rs).
#pragma once
#include "report.h"
#include <sys/syscall.h>

// An operation runs in a process of its own, so that it finds the same state whatever ran before.
struct operation {
    const char *name;
    void (*run)(void);
};

// The no-operation that begins (5) or ends (6) a count, or a profile (1 and 2). See plugin/src/mark.rs.
#define COUNT_MARK(what) __asm__ volatile(".byte 0x0f, 0x1f, 0x80; .long 0x51756900 | " #what ::: "memory")

// How often the present operation did its work between the marks. The memory is shared with its processes.
static volatile long *counted_times;

// A profile contains this operation.
static bool profiled;

static inline void begin(void) {
    CHECK(!*counted_times, "an operation is counted twice");
    if (profiled) COUNT_MARK(1);
    COUNT_MARK(5);
}
static inline void end(long times) {
    COUNT_MARK(6);
    if (profiled) COUNT_MARK(2);
    *counted_times = times;
}

// Counts `times` executions of a statement, after `warm` others. The statement may use `i`.
#define COUNT(warm, times, ...) \
    do { \
        for (long i = 0; i < (warm); i++) { __VA_ARGS__; } \
        begin(); \
        for (long i = 0; i < (times); i++) { __VA_ARGS__; } \
        end(times); \
    } while (0)

static inline char *anonymous(size_t bytes) {
    char *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    CHECK(at != MAP_FAILED, "mmap of %zu bytes", bytes);
    return at;
}

// An open file of so many resident bytes, without a name.
static inline int resident_file(size_t bytes) {
    char path[] = "/tmp/counts.XXXXXX";
    int file = mkstemp(path);
    CHECK(file >= 0 && !unlink(path), "a file in /tmp");
    char page[PAGE];
    for (size_t at = 0; at < bytes; at += PAGE) {
        memset(page, (int)(at >> 12), PAGE);
        CHECK(write(file, page, PAGE) == PAGE, "write");
    }
    return file;
}

static inline char *mapped_file(int file, size_t bytes, int flags) {
    char *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, flags, file, 0);
    CHECK(at != MAP_FAILED, "mmap of a file");
    return at;
}

// Waits for a child that must succeed.
static inline void reap(pid_t child) {
    int status;
    CHECK(child > 0 && waitpid(child, &status, 0) == child && !status, "a child failed");
}

// Threads that only sleep make this a process with several.
static void *sleeps_for_ever(void *gate) {
    atomic_fetch_add((atomic_int *)gate, 1);
    for (;;) pause();
    return NULL;
}
static inline void with_threads(void) {
    static atomic_int gate;
    for (int i = 0; i < 3; i++) {
        pthread_t thread;
        CHECK(!pthread_create(&thread, NULL, sleeps_for_ever, &gate), "pthread_create");
    }
    while (atomic_load(&gate) < 3) sched_yield();
    struct timespec moment = {0, 1000000};
    nanosleep(&moment, NULL); // all threads sleep: the counted clock goes on only then
}
