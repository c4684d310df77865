// Threads run where sched_setaffinity says: at once, also if another thread calls it; their children inherit it.
#include "report.h"
#include <sys/syscall.h>

static int cpus;
static _Atomic int seen = -1, stop;

static int here(void) {
    unsigned cpu = 99;
    CHECK(syscall(SYS_getcpu, &cpu, NULL, NULL) == 0, "getcpu");
    return (int)cpu;
}

static int pin(pid_t thread, int cpu) {
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(cpu, &set);
    return sched_setaffinity(thread, sizeof set, &set) ? -errno : 0;
}

static int only(pid_t thread) {
    cpu_set_t set;
    CPU_ZERO(&set);
    CHECK(sched_getaffinity(thread, sizeof set, &set) == 0, "sched_getaffinity");
    for (int cpu = 0; cpu < cpus; cpu++) {
        if (CPU_ISSET(cpu, &set)) return CPU_COUNT(&set) == 1 ? cpu : -1;
    }
    return -1;
}

static _Atomic pid_t spinner_id;
static void *spinner(void *unused) {
    spinner_id = (pid_t)syscall(SYS_gettid);
    while (!stop) seen = here();
    return unused;
}

static void wait_until_on(int cpu) {
    while (seen != cpu) sched_yield();
}

int main(void) {
    cpu_set_t all;
    CHECK(sched_getaffinity(0, sizeof all, &all) == 0, "sched_getaffinity");
    cpus = CPU_COUNT(&all);
    CHECK(cpus == sysconf(_SC_NPROCESSORS_ONLN), "%d CPUs", cpus);
    uint64_t moves = 0;
    for (int round = 0; round < 50; round++) {
        for (int cpu = 0; cpu < cpus; cpu++, moves++) {
            CHECK(pin(0, cpu) == 0 && here() == cpu && only(0) == cpu, "on %d instead of %d", here(), cpu);
            sched_yield();
            usleep(100);
            CHECK(here() == cpu, "it went from %d to %d", cpu, here());
        }
    }
    CHECK(pin(0, 1000) == -EINVAL, "there is no such CPU");
    CHECK(pin(99999, 0) == -ESRCH, "there is no such thread");
    // A child inherits its parent's affinity.
    pid_t child = fork();
    if (child == 0) _exit(here() == cpus - 1 && only(0) == cpus - 1 ? 0 : 1);
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0, "a child went elsewhere");
    // A running thread is moved, from its own CPU and from another one's.
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, spinner, NULL) == 0, "thread");
    while (!spinner_id) sched_yield();
    for (int round = 0; round < 20; round++) {
        for (int cpu = 0; cpu < cpus; cpu++, moves++) {
            CHECK(pin(spinner_id, cpu) == 0, "pin");
            wait_until_on(cpu);
        }
    }
    stop = 1;
    CHECK(pthread_join(thread, NULL) == 0, "join");
    CHECK(sched_setaffinity(0, sizeof all, &all) == 0, "back to all");
    printf("affinity_moves %lu moves\n", (unsigned long)moves);
    return 0;
}
