// Processes asleep in each call in which a thread gives its kernel stack up: how many bytes of kernel stacks they hold,
// and whether each call ends as it should: by what it waits for, by its deadline, and by a signal. Also threads that
// wait for a CPU.
#include "checks.h"
#include <poll.h>
#include <pthread.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/select.h>
#include <sys/syscall.h>

enum { SLEEPERS = 300, RUNNERS = 300, FUTEX_WAIT = 0, FUTEX_WAKE = 1 };

static struct shared {
    atomic_int word;   // the futex
    atomic_int asleep; // sleepers that are about to sleep
    atomic_int woken;  // sleepers whose call ended as it should
} *shared;

static int in[2], event; // a pipe, and an eventfd

static double stack_bytes(void) {
    FILE *file = fopen("/proc/meminfo", "r");
    CHECK(file, "/proc/meminfo");
    char line[128];
    unsigned long kib, found = 0;
    while (fgets(line, sizeof line, file)) {
        if (sscanf(line, "KernelStack: %lu", &kib) == 1) found = kib + 1;
    }
    fclose(file);
    CHECK(found, "/proc/meminfo has no KernelStack");
    return (found - 1) * 1024.0;
}

static void in_futex(void) {
    while (!shared->word) syscall(SYS_futex, &shared->word, FUTEX_WAIT, 0, NULL, NULL, 0);
}
static void wake_futex(void) {
    shared->word = 1;
    syscall(SYS_futex, &shared->word, FUTEX_WAKE, SLEEPERS, NULL, NULL, 0);
}

static void in_read(void) {
    char byte;
    CHECK(read(in[0], &byte, 1) == 1 && byte == 'x', "read");
}
static void wake_read(void) {
    char bytes[SLEEPERS];
    memset(bytes, 'x', sizeof bytes);
    CHECK(write(in[1], bytes, sizeof bytes) == sizeof bytes, "write");
}

static void in_event(void) {
    uint64_t value;
    CHECK(read(event, &value, sizeof value) == sizeof value && value == 1, "read of an event: %lu", value);
}
static void wake_event(void) {
    uint64_t value = SLEEPERS;
    CHECK(write(event, &value, sizeof value) == sizeof value, "write of an event");
}

static void in_poll(void) {
    struct pollfd files[2] = {{.fd = in[0], .events = POLLIN}, {.fd = event, .events = POLLIN}};
    CHECK(poll(files, 2, -1) == 1 && files[0].revents == POLLIN && !files[1].revents, "poll: %#x", files[0].revents);
}
static void wake_poll(void) { CHECK(write(in[1], "x", 1) == 1, "write"); }

static void in_ppoll(void) {
    struct pollfd file = {.fd = in[0], .events = POLLIN};
    struct timespec limit = {1000, 0};
    sigset_t none;
    sigemptyset(&none);
    CHECK(ppoll(&file, 1, &limit, &none) == 1 && file.revents == POLLIN, "ppoll: %#x", file.revents);
}

static void in_select(void) {
    fd_set read_set, other;
    FD_ZERO(&read_set);
    FD_ZERO(&other);
    FD_SET(in[0], &read_set);
    FD_SET(event, &read_set);
    FD_SET(in[0], &other);
    struct timeval limit = {1000, 0};
    // The C library gives the kernel a copy of the limit.
    long found = syscall(SYS_select, (in[0] > event ? in[0] : event) + 1, &read_set, NULL, &other, &limit);
    CHECK(found == 1 && FD_ISSET(in[0], &read_set) && !FD_ISSET(event, &read_set) && !FD_ISSET(in[0], &other),
        "select: %ld", found);
    CHECK(limit.tv_sec > 900 && limit.tv_sec < 1000, "select leaves %ld s", limit.tv_sec);
}

static void in_pselect(void) {
    fd_set set;
    FD_ZERO(&set);
    FD_SET(in[0], &set);
    sigset_t none;
    sigemptyset(&none);
    CHECK(pselect(in[0] + 1, &set, NULL, NULL, NULL, &none) == 1 && FD_ISSET(in[0], &set), "pselect");
}

static int watching(int file) {
    int set = epoll_create1(0);
    struct epoll_event wanted = {.events = EPOLLIN, .data.u64 = 0x123456789a};
    CHECK(set >= 0 && !epoll_ctl(set, EPOLL_CTL_ADD, file, &wanted), "epoll_ctl");
    return set;
}

static void in_epoll(void) {
    struct epoll_event found[3];
    int count = epoll_wait(watching(in[0]), found, 3, -1);
    CHECK(count == 1 && found[0].events == EPOLLIN && found[0].data.u64 == 0x123456789a, "epoll_wait: %d", count);
}

// All of them wait for one set, made before they were.
static int one_set;
static void in_one_epoll(void) {
    struct epoll_event found;
    sigset_t none;
    sigemptyset(&none);
    CHECK(epoll_pwait(one_set, &found, 1, 1000000, &none) == 1 && found.events == EPOLLIN, "epoll_pwait");
}

static void in_sigwait(void) {
    sigset_t set;
    sigemptyset(&set), sigaddset(&set, SIGUSR1);
    siginfo_t info;
    struct timespec limit = {1000, 0};
    CHECK(sigtimedwait(&set, &info, &limit) == SIGUSR1 && info.si_pid == getppid(), "sigtimedwait");
}

static void on_usr1(int signal) { (void)signal; }

static void in_pause(void) { CHECK(pause() == -1 && errno == EINTR, "pause"); }
static void in_sleep(void) {
    struct timespec wait = {1000, 0}, rest = {0, 0};
    CHECK(nanosleep(&wait, &rest) == -1 && errno == EINTR && rest.tv_sec > 900, "nanosleep: %ld s are left",
        rest.tv_sec);
}
static void in_absolute_sleep(void) {
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += 1000;
    CHECK(clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL) == EINTR, "clock_nanosleep");
}
static pid_t group;
static void wake_by_signal(void) { CHECK(!kill(-group, SIGUSR1), "kill"); }

// Waits for a child that waits for a byte. The child's read also counts as a sleeper.
static void in_wait(void) {
    pid_t child = fork();
    CHECK(child >= 0, "fork");
    if (!child) {
        in_read();
        _exit(7);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 7, "waitpid: %#x", status);
}

static const struct way {
    const char *name;
    void (*sleep)(void), (*wake)(void);
} ways[] = {
    {"futex", in_futex, wake_futex},
    {"read", in_read, wake_read},
    {"event", in_event, wake_event},
    {"poll", in_poll, wake_poll},
    {"ppoll", in_ppoll, wake_poll},
    {"select", in_select, wake_poll},
    {"pselect", in_pselect, wake_poll},
    {"epoll", in_epoll, wake_poll},
    {"one_epoll", in_one_epoll, wake_poll},
    {"sigwait", in_sigwait, wake_by_signal},
    {"pause", in_pause, wake_by_signal},
    {"sleep", in_sleep, wake_by_signal},
    {"absolute_sleep", in_absolute_sleep, wake_by_signal},
    {"wait", in_wait, wake_read},
};

static void many(const struct way *way) {
    memset(shared, 0, sizeof *shared);
    CHECK(!pipe(in) && (event = eventfd(0, EFD_SEMAPHORE)) >= 0, "a pipe and an event");
    struct sigaction action = {.sa_handler = on_usr1};
    CHECK(!sigaction(SIGUSR1, &action, NULL), "sigaction");
    one_set = watching(in[0]);
    sigset_t set;
    sigemptyset(&set), sigaddset(&set, SIGUSR1);
    // A signal that comes before the wait for it stays pending.
    CHECK(!sigprocmask(way->sleep == in_sigwait ? SIG_BLOCK : SIG_UNBLOCK, &set, NULL), "sigprocmask");
    pid_t children[SLEEPERS];
    group = 0;
    double before = stack_bytes();
    for (int i = 0; i < SLEEPERS; i++) {
        pid_t child = fork();
        CHECK(child >= 0, "fork");
        if (!child) {
            setpgid(0, group);
            shared->asleep++;
            way->sleep();
            shared->woken++;
            _exit(0);
        }
        if (!group) group = child;
        setpgid(child, group);
        children[i] = child;
    }
    while (shared->asleep != SLEEPERS) usleep(1000);
    // All sleep soon after they said so; until then they may hold a stack.
    double held;
    uint64_t start = now_ns();
    do {
        usleep(20000);
        held = (stack_bytes() - before) / SLEEPERS;
    } while (held > 2048 && now_ns() - start < 5000 * MS);
    char line[64];
    snprintf(line, sizeof line, "asleep_in_%s_stack", way->name);
    report(line, held < 0 ? 0 : held, "bytes/sleeper");
    CHECK(held <= 2048, "%s: %.0f bytes of stack a sleeper", way->name, held);
    way->wake();
    for (int i = 0; i < SLEEPERS; i++) {
        int status = ended(children[i]);
        CHECK(!status, "%s: sleeper %d ended with %#x", way->name, i, status);
    }
    CHECK(shared->woken == SLEEPERS, "%d woke", shared->woken);
    snprintf(line, sizeof line, "asleep_in_%s", way->name);
    report(line, shared->woken, "sleepers");
    close(in[0]), close(in[1]), close(event), close(one_set);
}

// Threads that were preempted in their programs need no stack while they wait for a CPU.
static void preempted(void) {
    memset(shared, 0, sizeof *shared);
    pid_t children[RUNNERS];
    double before = stack_bytes();
    for (int i = 0; i < RUNNERS; i++) {
        children[i] = fork();
        CHECK(children[i] >= 0, "fork");
        if (!children[i]) {
            shared->asleep++;
            while (!shared->word) {}
            _exit(0);
        }
    }
    // All have run, so each has left its CPU in the middle of its loop.
    while (shared->asleep != RUNNERS) usleep(10000);
    // A processor has the stack of the runner that it runs, and keeps up to 64 idle ones.
    double held = (stack_bytes() - before - sysconf(_SC_NPROCESSORS_ONLN) * 65 * 16384.0) / RUNNERS;
    report("preempted_stack", held < 0 ? 0 : held, "bytes/runner");
    CHECK(held <= 2048, "%.0f bytes of stack a runner", held);
    shared->word = 1;
    for (int i = 0; i < RUNNERS; i++) CHECK(!ended(children[i]), "runner %d", i);
    report("preempted", RUNNERS, "runners");
}

// The deadline of each call that has one.
static void deadlines(void) {
    struct timespec limit = {0, 30000000};
    struct pollfd file = {.fd = in[0], .events = POLLIN};
    CHECK(!pipe(in), "pipe");
    file.fd = in[0];
    uint64_t start = now_ns();
    int word = 0;
    CHECK(syscall(SYS_futex, &word, FUTEX_WAIT, 0, &limit, NULL, 0) == -1 && errno == ETIMEDOUT, "futex");
    CHECK(now_ns() - start >= 30 * MS, "a futex's deadline came early");
    start = now_ns();
    CHECK(!poll(&file, 1, 30) && now_ns() - start >= 30 * MS, "poll's deadline");
    start = now_ns();
    CHECK(!ppoll(&file, 1, &limit, NULL) && now_ns() - start >= 30 * MS, "ppoll's deadline");
    fd_set set;
    FD_ZERO(&set);
    FD_SET(in[0], &set);
    struct timeval soon = {0, 30000};
    start = now_ns();
    CHECK(!syscall(SYS_select, in[0] + 1, &set, NULL, NULL, &soon) && now_ns() - start >= 30 * MS, "select's deadline");
    CHECK(!FD_ISSET(in[0], &set) && !soon.tv_sec && !soon.tv_usec, "select leaves %ld us", (long)soon.tv_usec);
    struct epoll_event found;
    int epoll = watching(in[0]);
    start = now_ns();
    CHECK(!epoll_wait(epoll, &found, 1, 30) && now_ns() - start >= 30 * MS, "epoll_wait's deadline");
    close(epoll);
    sigset_t usr1;
    sigemptyset(&usr1), sigaddset(&usr1, SIGUSR1);
    CHECK(!sigprocmask(SIG_BLOCK, &usr1, NULL), "sigprocmask");
    start = now_ns();
    CHECK(sigtimedwait(&usr1, NULL, &limit) == -1 && errno == EAGAIN, "sigtimedwait");
    CHECK(now_ns() - start >= 30 * MS, "sigtimedwait's deadline");
    start = now_ns();
    CHECK(!nanosleep(&limit, NULL) && now_ns() - start >= 30 * MS, "nanosleep's deadline");
}

static void *closes(void *arg) {
    (void)arg;
    until_asleep(0);
    CHECK(write(in[1], "x", 1) == 1 && !close(in[0]), "close");
    return NULL;
}

// The file becomes ready, and another thread closes it before the sleeper looks.
static void closed(void) {
    for (int i = 0; i < 50; i++) {
        CHECK(!pipe(in), "pipe");
        pthread_t thread;
        CHECK(!pthread_create(&thread, NULL, closes, NULL), "pthread_create");
        fd_set set;
        FD_ZERO(&set);
        FD_SET(in[0], &set);
        struct timeval limit = {60, 0};
        int fd = in[0], found = select(fd + 1, &set, NULL, NULL, &limit);
        CHECK(found == 1 && FD_ISSET(fd, &set), "select of a file that is closed: %d", found);
        CHECK(!pthread_join(thread, NULL) && !close(in[1]), "pthread_join");
    }
}

// Killed while asleep: nothing else ends the call, and the process's memory comes back.
static void killed(void) {
    CHECK(!pipe(in), "pipe");
    for (int i = 0; i < 50; i++) {
        pid_t child = fork();
        CHECK(child >= 0, "fork");
        if (!child) {
            ((void (*[])(void)){in_read, in_epoll, in_select, in_sigwait})[i / 2 % 4]();
            _exit(1);
        }
        if (i % 2) usleep(2000); // killed before, as and after it sleeps
        CHECK(!kill(child, SIGKILL), "kill");
        int status = ended(child);
        CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL, "status %#x", status);
    }
}

int main(int argc, char **argv) {
    parse_options(argc, argv, NULL);
    shared = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(shared != MAP_FAILED, "mmap");
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        if (wanted(ways[i].name)) many(&ways[i]);
    }
    if (wanted("preempted")) preempted();
    if (wanted("deadlines")) deadlines();
    if (wanted("closed")) closed();
    if (wanted("killed")) killed();
}
