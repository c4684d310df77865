// Room for very many processes and threads, and the settings of the machine that bound them.
//
// Linux hands out 32,768 ids at boot, limits threads by its memory, and limits the threads of each user. Root raises
// all three. A limit of a control group stays, and nothing here raises it.
#pragma once
#include "proc.h"
#include <sys/resource.h>

#define PID_MAX "/proc/sys/kernel/pid_max"
#define THREADS_MAX "/proc/sys/kernel/threads-max"

// Whether this is Quire, which has rows about the kernel's memory.
static inline bool on_quire(void) { return !access("/proc/self/quire_memory", F_OK); }

// The number in a file, or -1 where there is none.
static inline long setting(const char *path) {
    char text[24] = "";
    int file = open(path, O_RDONLY);
    if (file < 0) return -1;
    ssize_t length = read(file, text, sizeof text - 1);
    close(file);
    return length > 0 ? atol(text) : -1;
}

// Returns whether the kernel takes the number.
static inline bool set(const char *path, long to) {
    char text[24];
    int file = open(path, O_WRONLY), length = snprintf(text, sizeof text, "%ld", to);
    if (file < 0) return false;
    bool taken = write(file, text, length) == length;
    close(file);
    return taken;
}

static inline void raise_setting(const char *path, const char *name, long least) {
    long now = setting(path);
    if (now < 0 || now >= least) return;
    if (set(path, least)) report(name, least, "set");
    else fprintf(stderr, "%s stays at %ld: %s\n", path, now, strerror(errno));
}

// Raises what bounds the number of processes, where it is too low for `more` beside those that are there. Prints a line
// for each setting that it changes. Only root can do this.
static inline void make_room(long more) {
    long least = more + 4096;
    if (geteuid()) return;
    raise_setting(PID_MAX, "pid_max", least);
    raise_setting(THREADS_MAX, "threads_max", least);
    struct rlimit limit;
    CHECK(!getrlimit(RLIMIT_NPROC, &limit), "getrlimit");
    if (limit.rlim_cur == RLIM_INFINITY || limit.rlim_cur >= (rlim_t)least) return;
    limit.rlim_cur = least;
    if (limit.rlim_max != RLIM_INFINITY && limit.rlim_max < (rlim_t)least) limit.rlim_max = least;
    if (!setrlimit(RLIMIT_NPROC, &limit)) report("nproc_limit", least, "set");
    else fprintf(stderr, "RLIMIT_NPROC stays: %s\n", strerror(errno));
}

// ---- the kernel's memory comes back --------------------------------------------------------------------------------

// Bytes that are free once the kernel has given back what it keeps for later. A CPU gives back only its own part, so
// each of them is asked. On Linux, files stay cached, because other programs of that machine need them.
static inline uint64_t free_at_rest(void) {
    if (!on_quire()) return free_bytes();
    cpu_set_t all, one;
    CHECK(!sched_getaffinity(0, sizeof all, &all), "sched_getaffinity");
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++) {
        if (!CPU_ISSET(cpu, &all)) continue;
        CPU_ZERO(&one);
        CPU_SET(cpu, &one);
        CHECK(!sched_setaffinity(0, sizeof one, &one), "sched_setaffinity");
        CHECK(set("/proc/sys/vm/drop_caches", 3), "drop_caches");
    }
    CHECK(!sched_setaffinity(0, sizeof all, &all), "sched_setaffinity");
    // An idle CPU then zeroes frames for later. A frame that it takes during a reading counts twice, so the readings go
    // on until it rests: until two of them agree.
    uint64_t now = free_bytes(), last = 0;
    for (int readings = 0; now != last && readings < 100; readings++) {
        last = now;
        usleep(10000);
        now = free_bytes();
    }
    return now;
}

// The rows of /proc/vmstat that count memory by its use.
static inline bool counts_memory(const char *row) { return !strncmp(row, "quire_", 6) || !strncmp(row, "nr_", 3); }

// Waits until as much memory is free as before, except `bound` bytes, and returns the bytes that are missing then.
// Fails after a minute, and prints the rows that have grown. `rows` is the text of /proc/vmstat from before.
static inline double memory_is_back(uint64_t before, const char *rows, uint64_t bound, const char *of) {
    for (uint64_t until = now_ns() + 60 * 1000000000ull;;) {
        uint64_t now = free_at_rest();
        if (now + bound >= before) return (double)before - (double)now;
        if (now_ns() > until) {
            fprintf(stderr, "%s: %.0f KiB are not free again, at most %.0f may stay\n", of, (before - now) / 1024.0,
                bound / 1024.0);
            break;
        }
        usleep(10000);
    }
    const char *text = contents("/proc/vmstat");
    for (const char *line = text; *line; line += strcspn(line, "\n") + 1) {
        char name[96], was[128];
        long number;
        if (sscanf(line, "%95s %ld", name, &number) == 2 && counts_memory(name)) {
            snprintf(was, sizeof was, "%s ", name);
            const char *old = strstr(rows, was);
            long begun = old ? atol(old + strlen(was)) : 0;
            if (number != begun) fprintf(stderr, "    %s %+ld\n", name, number - begun);
        }
        if (!line[strcspn(line, "\n")]) break;
    }
    fail("memory that %s took is not free again", of);
}
