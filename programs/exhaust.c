// An ordinary user takes things that hold kernel memory until there is none. Each kind ends in errors, and the watching
// process continues. One signal ends the group, and the memory comes back.
//
//   --crowd N       how many processes take things at once (default 60)
//   --only KIND     one kind only: opens, eventfds, sockets, watches or forks
#include "report.h"
#include <signal.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>

static long crowd = 60;
static atomic_int *errors;

// Takes one thing; negative if that fails.
static int take(const char *kind, int set) {
    if (!strcmp(kind, "opens")) return open("/dev/null", O_RDONLY);
    if (!strcmp(kind, "eventfds")) return eventfd(0, 0);
    if (!strcmp(kind, "sockets")) {
        int pair[2];
        return socketpair(AF_UNIX, SOCK_STREAM, 0, pair);
    }
    if (!strcmp(kind, "watches")) {
        struct epoll_event event = {.events = EPOLLIN};
        int file = eventfd(0, 0);
        return file < 0 ? file : epoll_ctl(set, EPOLL_CTL_ADD, file, &event);
    }
    pid_t child = fork();
    if (!child)
        for (;;) pause();
    return child;
}

// One process takes things until its limit; if memory is out, it tries a few times again.
static void take_all(const char *kind) {
    int set = epoll_create1(0);
    for (int tries = 0; tries < 50;) {
        if (take(kind, set) >= 0) continue;
        if (errno == EMFILE) break;
        if (errno == ENOMEM) atomic_fetch_add(errors, 1);
        tries++;
        usleep(1000);
    }
    for (;;) pause();
}

// KiB of idle stacks, of 16 KiB each: a CPU keeps 64 and up to 16 more, and 64 of all CPUs wait for translations to
// end.
static long idle_stacks(void) {
    return (sysconf(_SC_NPROCESSORS_ONLN) * (64 + 16) + 64) * 16;
}

static void exhaust(const char *kind, long allowed) {
    long before = memory_info("MemFree:"), stacks = memory_info("KernelStack:");
    atomic_store(errors, 0);
    pid_t leader = fork();
    CHECK(leader >= 0, "fork");
    if (!leader) {
        setpgid(0, 0);
        struct rlimit files = {4096, 4096};
        CHECK(!setrlimit(RLIMIT_NOFILE, &files), "setrlimit");
        CHECK(!setgid(1000) && !setuid(1000), "setuid");
        for (long i = strcmp(kind, "forks") ? 0 : crowd - 1; i < crowd; i++) {
            pid_t child = fork();
            if (child < 0) break;
            if (!child) take_all(kind);
        }
        for (;;) pause();
    }
    setpgid(leader, leader);
    // Until memory was out, or everything is taken; a victim of the kernel's choice counts as well.
    for (int i = 0; i < 400 && atomic_load(errors) < 20; i++) usleep(10000);
    // With no memory left, one signal ends all.
    CHECK(!kill(-leader, SIGKILL), "kill the group");
    while (waitpid(-1, 0, 0) > 0) {}
    CHECK(kill(-leader, 0) < 0 && errno == ESRCH, "the group goes on");
    // Memory that readers may still see is freed within a moment. Each CPU's caches of objects keep a little, besides
    // the stacks.
    long missing = 0, more = 0;
    for (int i = 0; i < 2000; i++) {
        more = memory_info("KernelStack:") - stacks;
        missing = before - memory_info("MemFree:") - more;
        if (missing < allowed && more <= idle_stacks()) break;
        usleep(10000);
    }
    CHECK(missing < allowed, "%s: %ld KiB do not come back", kind, missing);
    CHECK(more <= idle_stacks(), "%s: %ld KiB of stacks do not come back", kind, more);
}

int main(int argc, char **argv) {
    struct setting own[] = {{"--crowd", &crowd, NULL}, {0}};
    parse_options(argc, argv, own);
    errors = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK((void *)errors != MAP_FAILED, "mmap");
    // Orphans come to the process that counts them.
    CHECK(!prctl(PR_SET_CHILD_SUBREAPER, 1), "subreaper");
    const char *kinds[] = {"opens", "eventfds", "sockets", "watches", "forks"};
    int survived = 0;
    for (unsigned i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        if (!wanted(kinds[i])) continue;
        // The first processes leave tables of ids and each CPU's stacks and objects behind, which the next ones use.
        if (!survived || !strcmp(kinds[i], "forks")) exhaust(kinds[i], 16 << 10);
        exhaust(kinds[i], (1 + sysconf(_SC_NPROCESSORS_ONLN)) << 10);
        survived++;
    }
    report("exhaust_survived", survived, "kinds");
}
