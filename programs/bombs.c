// A fork bomb and a memory bomb, bounded: they end in errors, or in the death of the process, never in a dead machine.
//
//   --forks N       the fork bomb stops at N processes (default 1000), or at the first error
//   --megabytes N   the memory bomb touches up to so much (default 256); give more than the machine has
//   --strict 1      no error at all is a failure: for limits that are known to be too high
#include "report.h"
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>

static long forks = 1000, megabytes = 256, strict;

static struct {
    atomic_int processes, error;
} *shared;

// All processes fork until the bound or an error is reached, then wait to be killed.
static void explode(void) {
    while (!atomic_load(&shared->error) && atomic_fetch_add(&shared->processes, 1) < forks) {
        pid_t child = fork();
        if (child < 0) {
            int none = 0;
            atomic_compare_exchange_strong(&shared->error, &none, errno);
            atomic_fetch_sub(&shared->processes, 1);
        }
    }
    for (;;) pause();
}

static void fork_bomb(void) {
    pid_t leader = fork();
    CHECK(leader >= 0, "fork");
    if (!leader) {
        setpgid(0, 0);
        // Enforced for ordinary users only; elsewhere memory or process ids are the bound.
        struct rlimit limit = {forks / 2, forks / 2};
        setrlimit(RLIMIT_NPROC, &limit);
        explode();
    }
    setpgid(leader, leader);
    uint64_t limit = now_ns() + 60000000000;
    while (!atomic_load(&shared->error) && atomic_load(&shared->processes) < forks && now_ns() < limit)
        usleep(20000);
    // Some may still be forking: repeat until the group is empty.
    int status;
    do {
        kill(-leader, SIGKILL);
        usleep(1000);
        while (waitpid(-1, &status, WNOHANG) > 0) {}
    } while (kill(-leader, 0) == 0 && now_ns() < limit);
    CHECK(kill(-leader, 0) == -1 && errno == ESRCH, "some of the fork bomb survived");
    int error = atomic_load(&shared->error);
    // Processes that found the bound reached have counted themselves too.
    long processes = atomic_load(&shared->processes);
    report("fork_bomb_processes", processes < forks ? processes : forks, "processes");
    report("fork_bomb_error", error, "errno");
    CHECK(!error || error == EAGAIN || error == ENOMEM, "the fork bomb ended in error %d", error);
    CHECK(error || !strict, "the fork bomb met no error");
}

// Maps and touches; ends by an error of mmap, or is killed.
static void memory_bomb(void) {
    atomic_store(&shared->processes, 0);
    pid_t child = fork();
    CHECK(child >= 0, "fork");
    if (!child) {
        for (long i = 0; i < megabytes; i++) {
            char *memory = mmap(NULL, MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
            if (memory == MAP_FAILED) _exit(errno == ENOMEM ? 12 : 1);
            for (size_t at = 0; at < MIB; at += PAGE) memory[at] = 1;
            atomic_fetch_add(&shared->processes, 1);
        }
        _exit(0);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child, "waitpid");
    bool killed = WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
    bool refused = WIFEXITED(status) && WEXITSTATUS(status) == 12;
    report("memory_bomb_touched", atomic_load(&shared->processes), "MiB");
    report("memory_bomb_killed", killed, "times");
    CHECK(killed || refused || (!strict && status == 0), "the memory bomb ended with status %#x", status);
}

// Sizes that no machine has, and limits that refuse them.
static void refusals(void) {
    int flags = MAP_PRIVATE | MAP_ANONYMOUS;
    CHECK(mmap(NULL, 1ul << 47, PROT_READ, flags, -1, 0) == MAP_FAILED && errno == ENOMEM, "mmap of 2^47");
    CHECK(mmap(NULL, -PAGE, PROT_READ, flags, -1, 0) == MAP_FAILED && errno == ENOMEM, "mmap of -1 page");
    pid_t child = fork();
    CHECK(child >= 0, "fork");
    if (!child) {
        struct rlimit limit = {64 * MIB, 64 * MIB};
        CHECK(!setrlimit(RLIMIT_AS, &limit), "setrlimit");
        void *memory = mmap(NULL, 128 * MIB, PROT_READ, flags, -1, 0);
        CHECK(memory == MAP_FAILED && errno == ENOMEM, "RLIMIT_AS does not hold");
        _exit(0);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0, "status %#x", status);
}

// The machine still works.
static void alive(void) {
    for (int i = 0; i < 20; i++) {
        pid_t child = fork();
        CHECK(child >= 0, "no process can be made any more");
        if (!child) {
            char *memory = mmap(NULL, MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
            CHECK(memory != MAP_FAILED, "no memory can be mapped any more");
            for (size_t at = 0; at < MIB; at++) CHECK(memory[at] == 0, "a fresh page is not zero");
            _exit(0);
        }
        int status;
        CHECK(waitpid(child, &status, 0) == child && status == 0, "status %#x", status);
    }
}

int main(int argc, char **argv) {
    struct setting own[] = {
        {"--forks", &forks, NULL}, {"--megabytes", &megabytes, NULL}, {"--strict", &strict, NULL}, {0}};
    parse_options(argc, argv, own);
    shared = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK((void *)shared != MAP_FAILED, "mmap");
    prctl(PR_SET_CHILD_SUBREAPER, 1); // the bomb's orphans come to us
    if (wanted("fork_bomb")) fork_bomb();
    alive();
    if (wanted("memory_bomb")) memory_bomb();
    alive();
    refusals();
    report("bombs_survived", 2, "bombs");
}
