// Very many processes, each of which sleeps on a futex with a deadline again and again. Measures the cost of a wake-up
// by their number, and the cost of making and killing them all.
//
//   --sleepers N     so many processes (default 1000)
//   --period MS      each sleeps so long at a time (default 1: more than one CPU can serve)
#include "report.h"
#include <signal.h>
#include <sys/syscall.h>

static long sleepers = 1000, period = 1;

static void cost(const char *name, uint64_t ticks, uint64_t ns, double each) {
    char line[64];
    snprintf(line, sizeof line, options.count ? "%s_instructions" : "%s_rate", name);
    if (options.count) report(line, ticks / 8 / each, "instructions");
    else report(line, each * 1e9 / ns, "1/s");
}

// Free bytes, and the bytes of programs and files: the rest is the kernel's own.
struct memory {
    double free, pages;
};

static struct memory memory(void) {
    struct memory now = {.free = free_bytes()};
    FILE *file = fopen("/proc/meminfo", "r");
    CHECK(file, "/proc/meminfo");
    char line[128];
    unsigned long kib;
    int found = 0;
    while (fgets(line, sizeof line, file)) {
        if (sscanf(line, "Active: %lu", &kib) != 1 && sscanf(line, "Inactive: %lu", &kib) != 1) continue;
        now.pages += kib * 1024.0;
        found++;
    }
    fclose(file);
    CHECK(found == 2, "/proc/meminfo tells no active or inactive memory");
    return now;
}

// How often CPUs have interrupted each other: to schedule, to call, to drop translations.
static uint64_t between_cpus(void) {
    FILE *file = fopen("/proc/interrupts", "r");
    CHECK(file, "/proc/interrupts");
    char line[8192];
    uint64_t sum = 0;
    while (fgets(line, sizeof line, file)) {
        char *at = line + strspn(line, " "), *end;
        if (strncmp(at, "RES:", 4) && strncmp(at, "CAL:", 4) && strncmp(at, "TLB:", 4)) continue;
        for (at += 4;; at = end) {
            unsigned long n = strtoul(at, &end, 10);
            if (end == at) break;
            sum += n;
        }
    }
    fclose(file);
    return sum;
}

struct slot { // a cache line each, so that counting does not disturb
    atomic_long woken;
    atomic_int parked; // 1 + the phase in which it waits for another
    char pad[64 - sizeof(atomic_long) - sizeof(atomic_int)];
};

enum { BORN, AWAKE, PARKED };
static atomic_int *phase; // what the sleepers do; shared

static void sleeper(struct slot *slot) {
    static int word;
    struct timespec wait = {period / 1000, period % 1000 * 1000000};
    for (int now; (now = *phase), true;) {
        if (now == AWAKE) {
            CHECK(syscall(SYS_futex, &word, 128, 0, &wait, NULL, 0) == -1 && errno == ETIMEDOUT, "futex");
            slot->woken++;
        } else {
            slot->parked = now + 1;
            // Sleeps until the phase changes: no deadline, no work.
            syscall(SYS_futex, phase, 0, now, NULL, NULL, 0);
        }
    }
}

static void change(int to) {
    *phase = to;
    syscall(SYS_futex, phase, 1, sleepers, NULL, NULL, 0);
}

int main(int argc, char **argv) {
    struct setting own[] = {{"--sleepers", &sleepers, NULL}, {"--period", &period, NULL}, {0}};
    parse_options(argc, argv, own);
    CHECK(sleepers > 0 && sleepers <= 400000 && period > 0, "from 1 to 400,000 sleepers");
    struct slot *slots = mmap(NULL, (sleepers + 1) * sizeof *slots, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    pid_t *children = malloc(sleepers * sizeof *children);
    CHECK(slots != MAP_FAILED && children, "no memory");
    phase = &slots[sleepers].parked;
    pid_t group = 0;
    // Makes all shared memory present.
    for (long i = 0; i < sleepers; i++) slots[i].parked = children[i] = 0;
    struct memory before = memory();
    uint64_t start_ns = now_ns(), start = __rdtsc();
    for (long i = 0; i < sleepers; i++) {
        pid_t child = fork();
        CHECK(child >= 0, "fork of process %ld", i);
        if (!child) {
            setpgid(0, group);
            sleeper(&slots[i]);
        }
        if (!group) group = child;
        setpgid(child, group);
        children[i] = child;
    }
    for (long i = 0; i < sleepers; i++)
        while (slots[i].parked != BORN + 1) sched_yield();
    uint64_t made = __rdtsc() - start, made_ns = now_ns() - start_ns;
    struct memory after = memory();
    double taken = before.free - after.free;
    report("memory", taken / sleepers, "bytes/process");
    report("kernel_memory", (taken - (after.pages - before.pages)) / sleepers, "bytes/process");
    change(AWAKE);
    // Until every one of them has woken once.
    for (long i = 0; i < sleepers; i++)
        while (!slots[i].woken) usleep(1000);
    // Outside of the timed and counted part, because this read takes a while.
    uint64_t asked = between_cpus();
    long woken = 0;
    for (long i = 0; i < sleepers; i++) woken -= slots[i].woken;
    start_ns = now_ns();
    start = __rdtsc();
    while (now_ns() - start_ns < options.seconds * 1e9) usleep(10000);
    uint64_t ticks = __rdtsc() - start, ns = now_ns() - start_ns;
    for (long i = 0; i < sleepers; i++) woken += slots[i].woken;
    asked = between_cpus() - asked;
    CHECK(woken > 0, "no sleeper woke");
    change(PARKED);
    for (long i = 0; i < sleepers; i++)
        while (slots[i].parked != PARKED + 1) usleep(1000);
    start_ns = now_ns();
    start = __rdtsc();
    CHECK(!kill(-group, SIGKILL), "kill");
    for (long i = 0; i < sleepers; i++) {
        int status;
        CHECK(waitpid(children[i], &status, 0) == children[i] && WIFSIGNALED(status), "process %ld", i);
    }
    uint64_t killed = __rdtsc() - start, killed_ns = now_ns() - start_ns;
    cost("create", made, made_ns, sleepers);
    cost("wake", ticks, ns, woken);
    report("wake_interrupts", (double)asked / woken, "interrupts/wake-up");
    cost("kill", killed, killed_ns, sleepers);
}
