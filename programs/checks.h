// The frame of programs that run checks in sequence, each in a process of its own; the same on Linux and on Quire.
//
//   --only NAME   only checks whose name starts so
#pragma once
#include "report.h"
#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>

#define MS 1000000ull

// Fails or succeeds as it should: `error` is 0 for success.
#define ANSWERS(error, call) \
    do { \
        errno = 0; \
        long answer = (long)(call); \
        CHECK((error) ? answer == -1 && errno == (error) : answer != -1, "%s: %ld, errno %d, not %d", #call, answer, errno, error); \
    } while (0)

static volatile sig_atomic_t caught, caught_code, caught_pid;
static volatile int caught_value;

static inline void on(int signal, siginfo_t *info, void *context) {
    (void)context;
    caught = signal;
    caught_code = info->si_code;
    caught_pid = info->si_pid;
    caught_value = info->si_value.sival_int;
}

static inline void handle(int signal, int flags) {
    struct sigaction action = {.sa_sigaction = on, .sa_flags = SA_SIGINFO | flags};
    CHECK(!sigaction(signal, &action, NULL), "sigaction");
    caught = 0;
}

static inline int ended(pid_t child) {
    int status;
    CHECK(waitpid(child, &status, 0) == child, "waitpid");
    return status;
}

// Runs `body` in a child, whose status it returns.
static inline int in_child(void (*body)(void)) {
    pid_t child = fork();
    CHECK(child >= 0, "fork");
    if (!child) {
        body();
        _exit(0);
    }
    return ended(child);
}

static inline void short_sleep(void) { usleep(20000); }

// A child that sends `signal` to its parent after a while, and ends.
static inline pid_t sender(int signal) {
    pid_t child = fork();
    CHECK(child >= 0, "fork");
    if (!child) {
        short_sleep();
        kill(getppid(), signal);
        _exit(0);
    }
    return child;
}

struct check {
    const char *name;
    void (*run)(void);
};

// Runs the selected checks, and prints how many passed.
static inline void run_checks(const struct check *checks, size_t count) {
    struct rlimit none = {0, 0};
    setrlimit(RLIMIT_CORE, &none);
    int passed = 0;
    for (size_t i = 0; i < count; i++) {
        if (!wanted(checks[i].name)) continue;
        // Each in a process of its own, so that none depends on the state of another.
        int status = in_child(checks[i].run);
        if (status) fprintf(stderr, "%s: status %#x\n", checks[i].name, status);
        else passed++;
    }
    report("checks_passed", passed, "checks");
}
