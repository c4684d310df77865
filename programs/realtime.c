// The real-time classes SCHED_FIFO and SCHED_RR, checked one by one; the same on Linux and on Quire.
//
//   --only NAME   only checks whose name starts so
#include "checks.h"
#include <limits.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/syscall.h>

// A C library may serve its own variants of these calls.
enum { NORMAL = 0, FIFO = 1, RR = 2, BATCH = 3, IDLE = 5, DEADLINE = 6, RESET = 0x40000000 };

static long set_class(pid_t tid, int policy, int priority) {
    return syscall(SYS_sched_setscheduler, tid, policy, &priority);
}
static long get_class(pid_t tid) { return syscall(SYS_sched_getscheduler, tid); }
static long set_priority(pid_t tid, int priority) { return syscall(SYS_sched_setparam, tid, &priority); }
static int get_priority(pid_t tid) {
    int priority = -1;
    CHECK(!syscall(SYS_sched_getparam, tid, &priority), "sched_getparam");
    return priority;
}
static void pin(int cpu) {
    unsigned long mask = 1ul << cpu;
    CHECK(!syscall(SYS_sched_setaffinity, 0, sizeof mask, &mask), "CPU %d", cpu);
}

struct attributes {
    uint32_t size, policy;
    uint64_t flags;
    int32_t nice;
    uint32_t priority;
    uint64_t runtime, deadline, period;
};

static void calls(void) {
    for (int policy = FIFO; policy <= RR; policy++) {
        CHECK(syscall(SYS_sched_get_priority_min, policy) == 1 && syscall(SYS_sched_get_priority_max, policy) == 99,
            "bounds");
        ANSWERS(EINVAL, set_class(0, policy, 0));
        ANSWERS(EINVAL, set_class(0, policy, 100));
        for (int priority = 1; priority <= 99; priority += 49) {
            ANSWERS(0, set_class(0, policy, priority));
            CHECK(get_class(0) == policy && get_priority(0) == priority, "class");
        }
        ANSWERS(0, set_priority(0, 7));
        CHECK(get_class(0) == policy && get_priority(0) == 7, "priority");
        ANSWERS(EINVAL, set_priority(0, 0));
        ANSWERS(EINVAL, set_priority(0, 100));
        struct timespec turn;
        ANSWERS(0, syscall(SYS_sched_rr_get_interval, 0, &turn));
        CHECK(turn.tv_sec == 0 && turn.tv_nsec == (policy == FIFO ? 0 : 100000000), "a turn of %ld ns", turn.tv_nsec);
    }
    CHECK(!syscall(SYS_sched_get_priority_min, DEADLINE) && !syscall(SYS_sched_get_priority_max, DEADLINE), "deadline");
    ANSWERS(EINVAL, syscall(SYS_sched_get_priority_max, 4711));
    ANSWERS(0, set_class(0, NORMAL, 0));
    ANSWERS(EINVAL, set_priority(0, 1));
    ANSWERS(EINVAL, set_class(0, NORMAL, 1));
}

static void attributes(void) {
    struct attributes a = {.size = sizeof a, .policy = RR, .priority = 42, .nice = 5};
    ANSWERS(0, setpriority(PRIO_PROCESS, 0, 3));
    ANSWERS(0, syscall(SYS_sched_setattr, 0, &a, 0));
    struct attributes found;
    ANSWERS(0, syscall(SYS_sched_getattr, 0, &found, sizeof found, 0));
    CHECK(found.policy == RR && found.priority == 42 && !found.nice && !found.runtime, "%u %u", found.policy,
        found.priority);
    CHECK(getpriority(PRIO_PROCESS, 0) == 3, "the nice value stays");
    a = (struct attributes){.size = sizeof a, .policy = FIFO, .priority = 43, .flags = 8};
    ANSWERS(0, syscall(SYS_sched_setattr, 0, &a, 0));
    CHECK(get_class(0) == RR && get_priority(0) == 43, "the policy is kept");
    a = (struct attributes){.size = sizeof a, .policy = FIFO, .priority = 100};
    ANSWERS(EINVAL, syscall(SYS_sched_setattr, 0, &a, 0));
    a = (struct attributes){.size = sizeof a, .policy = NORMAL, .nice = 4};
    ANSWERS(0, syscall(SYS_sched_setattr, 0, &a, 0));
    CHECK(get_class(0) == NORMAL && getpriority(PRIO_PROCESS, 0) == 4, "normal again");
}

// Field n of /proc/self/stat, from 1.
static long field(int n) {
    char text[4096];
    int f = open("/proc/self/stat", O_RDONLY);
    CHECK(f >= 0, "stat");
    ssize_t got = read(f, text, sizeof text - 1);
    CHECK(got > 0, "stat");
    text[got] = 0;
    close(f);
    char *at = strrchr(text, ')') + 2;
    for (int i = 3; i < n; i++) at = strchr(at, ' ') + 1;
    return atol(at);
}

static void shown_in_proc(void) {
    ANSWERS(0, set_class(0, FIFO, 30));
    CHECK(field(18) == -31 && field(40) == 30 && field(41) == FIFO, "%ld %ld %ld", field(18), field(40), field(41));
    ANSWERS(0, set_class(0, RR, 1));
    CHECK(field(18) == -2 && field(40) == 1 && field(41) == RR, "%ld %ld %ld", field(18), field(40), field(41));
    ANSWERS(0, set_class(0, NORMAL, 0));
    CHECK(field(18) == 20 && field(40) == 0 && field(41) == NORMAL, "%ld %ld %ld", field(18), field(40), field(41));
}

static void children(void) {
    ANSWERS(0, set_class(0, FIFO, 20));
    pid_t child = fork();
    if (!child) _exit(!(get_class(0) == FIFO && get_priority(0) == 20));
    CHECK(!ended(child), "a child has its parent's class");
    ANSWERS(0, set_class(0, RR | RESET, 20));
    CHECK(get_class(0) == (RR | RESET), "reset on fork");
    ANSWERS(0, setpriority(PRIO_PROCESS, 0, -5));
    child = fork();
    if (!child) _exit(!(get_class(0) == NORMAL && !get_priority(0) && !getpriority(PRIO_PROCESS, 0)));
    CHECK(!ended(child), "a child of a thread that resets is normal");
    ANSWERS(0, set_class(0, NORMAL, 0));
}

static void become_nobody(void) {
    CHECK(!syscall(SYS_setgid, 65534) && !syscall(SYS_setuid, 65534), "setuid");
}

static void without_rights(void) {
    ANSWERS(0, set_class(0, FIFO, 10));
    struct rlimit none = {0, 0};
    CHECK(!setrlimit(RLIMIT_RTPRIO, &none), "RLIMIT_RTPRIO");
    become_nobody();
    ANSWERS(EPERM, set_priority(0, 11));
    ANSWERS(0, set_priority(0, 10));
    ANSWERS(0, set_priority(0, 9));
    ANSWERS(EPERM, set_priority(0, 10));
    ANSWERS(EPERM, set_class(0, RR, 5));
    ANSWERS(0, set_class(0, NORMAL, 0));
    ANSWERS(EPERM, set_class(0, FIFO, 1));
    ANSWERS(EPERM, set_class(getppid(), NORMAL, 0));
}

static void with_a_limit(void) {
    struct rlimit limit = {15, 15};
    // Root of a container may not raise it.
    if (setrlimit(RLIMIT_RTPRIO, &limit)) return;
    become_nobody();
    ANSWERS(EPERM, set_class(0, FIFO, 16));
    ANSWERS(0, set_class(0, FIFO, 15));
    ANSWERS(0, set_class(0, RR | RESET, 3));
    ANSWERS(EPERM, set_class(0, RR, 3));
    ANSWERS(0, set_class(0, RR | RESET, 15));
}

// What threads share in the checks below.
static _Atomic int order[64], taken, ready, stop;
static int pipes[64][2];

static void *sleeper(void *of) {
    int n = (int)(long)of;
    char byte;
    pin(0);
    // Number n has priority n; 0 is normal.
    CHECK(!set_class(0, n ? FIFO : NORMAL, n), "class");
    ready++;
    CHECK(read(pipes[n][0], &byte, 1) == 1, "read");
    order[taken++] = n;
    return NULL;
}

static void woken_by_priority(void) {
    static const int priorities[] = {3, 0, 40, 1, 60, 20};
    enum { COUNT = 6 };
    pthread_t threads[COUNT];
    pin(0);
    CHECK(!set_class(0, FIFO, 50), "class");
    for (int i = 0; i < COUNT; i++) {
        CHECK(!pipe(pipes[priorities[i]]), "pipe");
        CHECK(!pthread_create(&threads[i], NULL, sleeper, (void *)(long)priorities[i]), "thread");
    }
    for (int i = 0; ready < COUNT && i < 5000; i++) usleep(1000);
    until_asleep(0);
    CHECK(ready == COUNT && !taken, "they sleep");
    for (int i = 0; i < COUNT; i++) {
        CHECK(write(pipes[priorities[i]][1], "x", 1) == 1, "write");
        // Only the more urgent thread has run by now.
        CHECK(taken == (i >= 4), "%d have run after write %d", taken, i);
    }
    for (int i = 0; i < COUNT; i++) pthread_join(threads[i], NULL);
    static const int expected[] = {60, 40, 20, 3, 1, 0};
    for (int i = 0; i < COUNT; i++) CHECK(order[i] == expected[i], "place %d has priority %d", i, order[i]);
}

static _Atomic uint64_t counts[8];

static void *spinner(void *of) {
    long n = (long)of;
    pin(0);
    ready++;
    while (!stop) counts[n]++;
    return NULL;
}

// Threads that spin at `policy` and priority 10 on CPU 0, for `ms` milliseconds. The caller is more urgent.
static void spin(int policy, int threads, int ms) {
    pthread_t all[8];
    pin(0);
    stop = ready = 0;
    CHECK(!set_class(0, policy, 10), "class");
    for (long i = 0; i < threads; i++) {
        counts[i] = 0;
        CHECK(!pthread_create(&all[i], NULL, spinner, (void *)i), "thread");
    }
    CHECK(!set_class(0, FIFO, 80), "class");
    usleep(ms * 1000);
    stop = 1;
    for (int i = 0; i < threads; i++) pthread_join(all[i], NULL);
}

static void round_robin_takes_turns(void) {
    spin(RR, 3, 1500);
    uint64_t least = counts[0], most = counts[0];
    for (int i = 1; i < 3; i++) {
        if (counts[i] < least) least = counts[i];
        if (counts[i] > most) most = counts[i];
    }
    // Each has five turns of 100 ms, and may lack one.
    CHECK(least > most / 4, "%llu and %llu", (unsigned long long)least, (unsigned long long)most);
}

static void fifo_does_not(void) {
    spin(FIFO, 2, 400);
    uint64_t least = counts[0] < counts[1] ? counts[0] : counts[1], most = counts[0] + counts[1] - least;
    CHECK(!least && most, "%llu and %llu", (unsigned long long)least, (unsigned long long)most);
}

static void *yielder(void *of) {
    long n = (long)of;
    pin(0);
    while (!stop) {
        counts[n]++;
        sched_yield();
    }
    return NULL;
}

static void yielding_lets_equals_run(void) {
    pthread_t all[2];
    pin(0);
    CHECK(!set_class(0, FIFO, 10), "class");
    for (long i = 0; i < 2; i++) CHECK(!pthread_create(&all[i], NULL, yielder, (void *)i), "thread");
    CHECK(!set_class(0, FIFO, 80), "class");
    usleep(200000);
    stop = 1;
    for (int i = 0; i < 2; i++) pthread_join(all[i], NULL);
    uint64_t apart = counts[0] > counts[1] ? counts[0] - counts[1] : counts[1] - counts[0];
    CHECK(counts[0] > 10 && apart <= 2, "%llu and %llu", (unsigned long long)counts[0], (unsigned long long)counts[1]);
}

static void *normal(void *of) {
    (void)of;
    pin(0);
    CHECK(!set_class(0, NORMAL, 0), "class");
    ready = 1;
    while (!stop) counts[7]++;
    return NULL;
}

// A thread that spins for ever leaves others 50 ms of each second.
static void a_spinner_is_bound(void) {
    pthread_t other;
    pin(0);
    CHECK(!pthread_create(&other, NULL, normal, NULL), "thread");
    while (!ready) usleep(1000);
    CHECK(!set_class(0, FIFO, 99), "class");
    uint64_t start = now_ns();
    while (now_ns() - start < 100 * MS) {}
    uint64_t before = counts[7];
    while (now_ns() - start < 3100 * MS) {}
    uint64_t after = counts[7];
    stop = 1;
    CHECK(!set_class(0, NORMAL, 0), "class");
    pthread_join(other, NULL);
    CHECK(after > before, "the other thread never runs");
}

// A thread that wakes up beside busy ones on all CPUs runs at once.
static void a_woken_thread_preempts(void) {
    long cpus = sysconf(_SC_NPROCESSORS_ONLN);
    pid_t hogs[64];
    if (cpus > 64) cpus = 64;
    for (long i = 0; i < 2 * cpus; i++) {
        pid_t child = fork();
        CHECK(child >= 0, "fork");
        if (!child) for (;;) {}
        hogs[i % 64] = child;
    }
    CHECK(!set_class(0, RR, 1), "class");
    uint64_t worst = 0;
    for (int i = 0; i < 50; i++) {
        struct timespec nap = {0, 5000000};
        uint64_t start = now_ns();
        nanosleep(&nap, NULL);
        uint64_t late = now_ns() - start - 5 * MS;
        if (late > worst) worst = late;
    }
    for (long i = 0; i < 2 * cpus; i++) {
        kill(hogs[i % 64], SIGKILL);
        ended(hogs[i % 64]);
    }
    CHECK(worst < 20 * MS, "%llu us late", (unsigned long long)worst / 1000);
}

// Another thread's class changes while it waits for the CPU of the changer.
static void a_change_takes_effect_at_once(void) {
    pin(0);
    CHECK(!set_class(0, FIFO, 30), "class");
    pid_t child = fork();
    if (!child) _exit(7);
    CHECK(!set_class(child, FIFO, 29), "class");
    uint64_t start = now_ns();
    while (now_ns() - start < 50 * MS) {}
    siginfo_t info = {0};
    CHECK(!waitid(P_PID, child, &info, WEXITED | WNOHANG | WNOWAIT) && !info.si_pid, "a less urgent child has run");
    CHECK(!set_class(child, FIFO, 31), "class");
    CHECK(!waitid(P_PID, child, &info, WEXITED | WNOHANG | WNOWAIT) && info.si_pid == child,
        "a more urgent child has not run");
    CHECK(WEXITSTATUS(ended(child)) == 7, "status");
}

static long number_in(const char *path) {
    char text[64] = "";
    int f = open(path, O_RDONLY);
    CHECK(f >= 0 && read(f, text, sizeof text - 1) > 0, "%s", path);
    close(f);
    return atol(text);
}
static long write_to(const char *path, const char *text) {
    int f = open(path, O_WRONLY);
    CHECK(f >= 0, "%s", path);
    long done = write(f, text, strlen(text));
    int error = errno;
    close(f);
    errno = error;
    return done;
}

static void settings(void) {
    CHECK(number_in("/proc/sys/kernel/sched_rt_period_us") == 1000000, "period");
    CHECK(number_in("/proc/sys/kernel/sched_rt_runtime_us") == 950000, "runtime");
    CHECK(number_in("/proc/sys/kernel/sched_rr_timeslice_ms") == 100, "turn");
    ANSWERS(EINVAL, write_to("/proc/sys/kernel/sched_rt_runtime_us", "1000001"));
    ANSWERS(EINVAL, write_to("/proc/sys/kernel/sched_rt_runtime_us", "-2"));
    ANSWERS(EINVAL, write_to("/proc/sys/kernel/sched_rt_period_us", "0"));
}

int main(int argc, char **argv) {
    parse_options(argc, argv, NULL);
    static const struct check checks[] = {
        {"calls", calls},
        {"attributes", attributes},
        {"shown in proc", shown_in_proc},
        {"children", children},
        {"without rights", without_rights},
        {"with a limit", with_a_limit},
        {"woken by priority", woken_by_priority},
        {"round robin", round_robin_takes_turns},
        {"fifo", fifo_does_not},
        {"yield", yielding_lets_equals_run},
        {"bound", a_spinner_is_bound},
        {"preempts", a_woken_thread_preempts},
        {"change", a_change_takes_effect_at_once},
        {"settings", settings},
    };
    run_checks(checks, sizeof checks / sizeof *checks);
    return 0;
}
