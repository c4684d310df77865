// The frame of the measuring programs: options, workers that start together, and lines `name value unit`.
//
//   --seconds S     how long each measurement runs (default 1)
//   --processes N   so many processes at once (default 1)
//   --threads N     so many threads in each (default 1)
//   --count         the TSC counts 8 for each instruction (./quire compare --count): report instructions
//   --only NAME     only measurements whose name starts so
//
// A measurement prints NAME_rate (operations a second, all workers together) and NAME_ticks (TSC ticks of one worker
// for one operation). A wrong result ends the program with a message and status 1, a wrong option with status 2.
#pragma once
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include <x86intrin.h>

#define PAGE 4096ul
#define MIB (1ul << 20)

__attribute__((noreturn, format(printf, 1, 2))) static inline void fail(const char *format, ...) {
    int error = errno;
    va_list args;
    va_start(args, format);
    fprintf(stderr, "failed: ");
    vfprintf(stderr, format, args);
    fprintf(stderr, " (errno %d: %s)\n", error, strerror(error));
    fflush(NULL);
    _exit(1);
}

// The condition is part of the test: a false one is a wrong result.
#define CHECK(condition, ...) \
    do { \
        if (!(condition)) fail(__VA_ARGS__); \
    } while (0)

static inline uint64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000ull + t.tv_nsec;
}

// For `report_rate` alone.
static inline uint64_t stopwatch(void) { return now_ns(); }

// splitmix64: reproducible, any seed.
static inline uint64_t random_next(uint64_t *state) {
    uint64_t z = *state += 0x9e3779b97f4a7c15ull;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ z >> 27) * 0x94d049bb133111ebull;
    return z ^ z >> 31;
}

// ---- options -------------------------------------------------------------------------------------------------------

struct setting { // an option of one program: a number or a text
    const char *name;
    long *number;
    const char **text;
};

static struct {
    double seconds;
    int processes, threads;
    bool count;
    const char *only;
} options = {1, 1, 1, false, ""};

static inline void parse_options(int argc, char **argv, const struct setting *own) {
    for (int i = 1; i < argc; i++) {
        if (!strcmp(argv[i], "--count")) {
            options.count = true;
            continue;
        }
        char *value = argv[i + 1], *end = "";
        if (!value) goto usage;
        if (!strcmp(argv[i], "--seconds")) options.seconds = strtod(value, &end);
        else if (!strcmp(argv[i], "--processes")) options.processes = strtol(value, &end, 10);
        else if (!strcmp(argv[i], "--threads")) options.threads = strtol(value, &end, 10);
        else if (!strcmp(argv[i], "--only")) options.only = value;
        else {
            const struct setting *s = own;
            while (s && s->name && strcmp(s->name, argv[i])) s++;
            if (!s || !s->name) goto usage;
            if (s->text) *s->text = value;
            else *s->number = strtol(value, &end, 10);
        }
        if (*end || options.seconds < 0 || options.processes < 1 || options.threads < 1) goto usage;
        i++;
        continue;
    usage:
        fprintf(stderr, "usage: %s [--seconds S] [--processes N] [--threads N] [--count] [--only NAME]", argv[0]);
        for (const struct setting *s = own; s && s->name; s++)
            fprintf(stderr, " [%s %s]", s->name, s->text ? "TEXT" : "N");
        fprintf(stderr, "\n");
        exit(2);
    }
}

static inline bool wanted(const char *name) { return !strncmp(name, options.only, strlen(options.only)); }

static inline void report(const char *name, double value, const char *unit) {
    printf("%s %.*f %s\n", name, value < 100 && value != (long)value ? 2 : 0, value, unit);
    fflush(stdout);
}

// The rate of `count` things since `stopwatch()`; none for no things.
static inline void report_rate(const char *name, long count, uint64_t since) {
    if (count) report(name, count * 1e9 / (now_ns() - since), "1/s");
}

// ---- the kernel's memory -------------------------------------------------------------------------------------------

// A read makes Linux sum up its per-CPU counters.
static inline void refresh_counters(void) {
    char nothing[16];
    int refresh = open("/proc/sys/vm/stat_refresh", O_RDONLY);
    if (refresh < 0) return;
    CHECK(read(refresh, nothing, sizeof nothing) >= 0, "stat_refresh");
    close(refresh);
}

// A row of /proc/meminfo, in KiB. It allocates nothing: memory may be out.
static inline long memory_info(const char *row) {
    char text[4096];
    int file = open("/proc/meminfo", O_RDONLY);
    CHECK(file >= 0, "/proc/meminfo");
    ssize_t length = read(file, text, sizeof text - 1);
    CHECK(length > 0, "/proc/meminfo cannot be read");
    close(file);
    text[length] = 0;
    const char *at = strstr(text, row);
    CHECK(at, "/proc/meminfo has no %s", row);
    return atol(at + strlen(row));
}

// Free bytes, with the pages that CPUs keep for themselves. MemFree has those on Quire, and lacks them on Linux: many,
// if much was freed just now. The zones report both numbers on both.
static inline uint64_t free_bytes(void) {
    refresh_counters();
    FILE *file = fopen("/proc/zoneinfo", "r");
    if (!file) return memory_info("MemFree:") * 1024ul;
    char line[128];
    unsigned long n, pages = 0, zones = 0;
    while (fgets(line, sizeof line, file)) {
        if (sscanf(line, " pages free %lu", &n) == 1) pages += n, zones++;
        if (sscanf(line, " count: %lu", &n) == 1) pages += n;
    }
    fclose(file);
    CHECK(zones, "/proc/zoneinfo reports no free memory");
    return pages * PAGE;
}

// ---- workers -------------------------------------------------------------------------------------------------------

struct worker {
    int index, workers;
    uint64_t deadline;          // of CLOCK_MONOTONIC, in nanoseconds
    uint64_t ops, ticks, ns;    // sums over the laps
    uint64_t lap_tick, lap_ns;
    atomic_int *gate;           // counts the workers that are ready
    void (*body)(struct worker *);
    bool warm;                  // a lap is behind it
    char pad[128 - 80];         // no two workers share a cache line, or its neighbour
};
_Static_assert(sizeof(struct worker) == 128, "two lines for each worker");

// A no-operation that makes a plugin of the emulator begin (1) or end (2) its count. See plugin/src/mark.rs.
// nopl WORD(%rax)
#define LAP_MARK(what) __asm__ volatile(".byte 0x0f, 0x1f, 0x80; .long 0x51756900 | " #what ::: "memory")

// Only the time between lap_begin and lap_end is measured, except the first time, which warms up.
static inline void lap_begin(struct worker *w) {
    w->lap_ns = now_ns();
    if (w->warm) LAP_MARK(1);
    w->lap_tick = __rdtsc();
}
static inline void lap_end(struct worker *w, uint64_t ops) {
    uint64_t ticks = __rdtsc() - w->lap_tick;
    if (!w->warm) {
        w->warm = true;
        w->deadline = now_ns() + (uint64_t)(options.seconds * 1e9);
        return;
    }
    LAP_MARK(2);
    w->ticks += ticks;
    w->ns += now_ns() - w->lap_ns;
    w->ops += ops;
}

// True once at least, then until the time is up.
static inline bool running(struct worker *w) { return w->ops == 0 || now_ns() < w->deadline; }

static inline void *worker_main(void *arg) {
    struct worker *w = arg;
    atomic_fetch_add(w->gate, 1);
    while (atomic_load(w->gate) < w->workers) sched_yield();
    w->deadline = now_ns() + (uint64_t)(options.seconds * 1e9);
    w->body(w);
    return NULL;
}

// Runs `body` in every worker at once, and reports.
static inline void measure(const char *name, void (*body)(struct worker *)) {
    if (!wanted(name)) return;
    int workers = options.processes * options.threads;
    size_t bytes = PAGE + workers * sizeof(struct worker);
    char *shared = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(shared != MAP_FAILED, "no shared memory for %d workers", workers);
    struct worker *all = (struct worker *)(shared + PAGE);
    for (int i = 0; i < workers; i++)
        all[i] = (struct worker){.index = i, .workers = workers, .gate = (atomic_int *)shared, .body = body};
    pid_t children[options.processes];
    for (int p = 0; p < options.processes; p++) {
        struct worker *first = all + p * options.threads;
        children[p] = fork();
        CHECK(children[p] >= 0, "fork");
        if (children[p]) continue;
        pthread_t threads[options.threads];
        for (int t = 1; t < options.threads; t++)
            CHECK(!(errno = pthread_create(&threads[t], NULL, worker_main, first + t)), "pthread_create");
        worker_main(first);
        for (int t = 1; t < options.threads; t++) pthread_join(threads[t], NULL);
        fflush(NULL);
        _exit(0);
    }
    for (int p = 0; p < options.processes; p++) {
        int status;
        // By pid, because as process 1 the program also gets orphans.
        CHECK(waitpid(children[p], &status, 0) == children[p], "waitpid");
        if (!WIFEXITED(status) || WEXITSTATUS(status)) {
            if (WIFSIGNALED(status)) fprintf(stderr, "failed: a worker died of signal %d\n", WTERMSIG(status));
            exit(1);
        }
    }
    double rate = 0, ticks = 0, ops = 0;
    for (int i = 0; i < workers; i++) {
        CHECK(all[i].ops > 0, "%s: worker %d did nothing", name, i);
        rate += all[i].ops * 1e9 / (all[i].ns ? all[i].ns : 1);
        ticks += all[i].ticks;
        ops += all[i].ops;
    }
    char line[128];
    snprintf(line, sizeof line, "%s_rate", name);
    report(line, rate, "1/s");
    snprintf(line, sizeof line, options.count ? "%s_instructions" : "%s_ticks", name);
    report(line, ticks / ops / (options.count ? 8 : 1), options.count ? "instructions" : "ticks");
    munmap(shared, bytes);
}
