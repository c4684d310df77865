// The frame of programs that run checks in sequence, each in a process of its own; the same on Linux and on Quire.
//
//   --only NAME   only checks whose name starts so
#pragma once
#include "report.h"
#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/syscall.h>

#define MS 1000000ull

// Fails or succeeds as it should: `error` is 0 for success.
#define ANSWERS(error, call) \
    do { \
        errno = 0; \
        long answer = (long)(call); \
        CHECK((error) ? answer == -1 && errno == (error) : answer != -1, "%s: %ld, errno %d, not %d", #call, answer, \
            errno, error); \
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

// The state letter in a `stat` file of /proc, or 0 if the thread is gone.
static inline char state_in(const char *path) {
    char text[512];
    int file = open(path, O_RDONLY);
    if (file < 0) return 0;
    ssize_t length = read(file, text, sizeof text - 1);
    close(file);
    if (length <= 0) return 0;
    text[length] = 0;
    const char *name_end = strrchr(text, ')');
    CHECK(name_end && name_end[1], "%s: %s", path, text);
    return name_end[2];
}

// Whether each other thread of the process sleeps.
static inline int threads_sleep(void) {
    DIR *tasks = opendir("/proc/self/task");
    CHECK(tasks, "/proc/self/task");
    int all = 1;
    for (struct dirent *task; (task = readdir(tasks));) {
        char path[300];
        snprintf(path, sizeof path, "/proc/self/task/%s/stat", task->d_name);
        if (task->d_name[0] == '.' || atol(task->d_name) == syscall(SYS_gettid)) continue;
        char state = state_in(path);
        all &= state == 'S' || !state;
    }
    closedir(tasks);
    return all;
}

static inline int process_sleeps(pid_t process) {
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/stat", process);
    char state = state_in(path);
    CHECK(state && state != 'Z', "process %d has ended and does not sleep", process);
    return state == 'S';
}

// Waits until `process` sleeps, or for 0 until each other thread of this process does. It has to be seen so three
// times in a row, because a lock or a fault on the way to the awaited call may put a thread to sleep for a moment.
static inline void until_asleep(pid_t process) {
    for (int looks = 0; looks < 3; usleep(1000))
        looks = (process ? process_sleeps(process) : threads_sleep()) ? looks + 1 : 0;
}

// A child that sends `signal` to its parent when that sleeps, and ends.
static inline pid_t sender(int signal) {
    pid_t parent = getpid(), child = fork();
    CHECK(child >= 0, "fork");
    if (!child) {
        until_asleep(parent);
        kill(parent, signal);
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
