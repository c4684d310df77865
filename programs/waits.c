// The ends of waits, events with many waiters, and signals to all processes, checked one by one; the same on Linux and
// on Quire.
#include "checks.h"
#include <limits.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/file.h>
#include <sys/prctl.h>
#include <sys/select.h>
#include <sys/syscall.h>
#include <sys/utsname.h>

// musl brings no linux/futex.h.
enum { FUTEX_WAIT = 0 };

static int new_set(void) {
    int set = epoll_create1(EPOLL_CLOEXEC);
    CHECK(set >= 0, "epoll_create1");
    return set;
}

static int watch(int set, int fd, uint32_t events) {
    struct epoll_event event = {.events = events, .data.fd = fd};
    return epoll_ctl(set, EPOLL_CTL_ADD, fd, &event);
}

// ---- many waiters of one thing -------------------------------------------------------------------------------------

enum { ROUNDS = 200, LOOKS = 4000 };
static int the_set, the_event;
static pthread_barrier_t barrier;
static atomic_int got;

static void *waits_for_event(void *arg) {
    (void)arg;
    for (int i = 0; i < ROUNDS; i++) {
        pthread_barrier_wait(&barrier);
        struct epoll_event event;
        int n = epoll_wait(the_set, &event, 1, 1000);
        CHECK(n == 1 && event.data.fd == the_event, "round %d: %d events for a waiter", i, n);
        pthread_barrier_wait(&barrier);
    }
    return NULL;
}

// A lasting event wakes all of its waiters, not only the first.
static void an_event_that_stays_is_for_all(void) {
    the_set = new_set(), the_event = eventfd(0, EFD_NONBLOCK);
    CHECK(the_event >= 0 && !watch(the_set, the_event, EPOLLIN), "an event");
    pthread_t threads[3];
    pthread_barrier_init(&barrier, NULL, 4);
    for (int i = 0; i < 3; i++) CHECK(!pthread_create(&threads[i], NULL, waits_for_event, NULL), "a thread");
    uint64_t random = 1;
    for (int i = 0; i < ROUNDS; i++) {
        uint64_t one = 1, value;
        pthread_barrier_wait(&barrier);
        // Before, as and after they begin to wait.
        for (uint64_t start = now_ns(), some = random_next(&random) % 200000; now_ns() - start < some;) {}
        CHECK(write(the_event, &one, sizeof one) == sizeof one, "write");
        pthread_barrier_wait(&barrier);
        CHECK(read(the_event, &value, sizeof value) == sizeof value, "read");
    }
    for (int i = 0; i < 3; i++) pthread_join(threads[i], NULL);
}

static void *looks_for_event(void *arg) {
    struct pollfd entry = {.fd = the_set, .events = POLLIN};
    struct epoll_event event;
    for (int i = 0; i < LOOKS; i++) {
        int n = arg ? epoll_wait(the_set, &event, 1, 0) : poll(&entry, 1, 0);
        CHECK(n == 1, "look %d: a file that is always ready is not reported", i);
    }
    return NULL;
}

// A thread that polls while another one does finds the ready file all the same.
static void a_ready_file_is_ready_for_all_threads(void) {
    the_set = new_set(), the_event = eventfd(1, EFD_NONBLOCK);
    CHECK(the_event >= 0 && !watch(the_set, the_event, EPOLLIN), "an event");
    pthread_t threads[3];
    for (int i = 0; i < 3; i++)
        CHECK(!pthread_create(&threads[i], NULL, looks_for_event, i ? &the_set : NULL), "a thread");
    for (int i = 0; i < 3; i++) pthread_join(threads[i], NULL);
}

static void *takes_one(void *arg) {
    (void)arg;
    struct epoll_event event;
    got += epoll_wait(the_set, &event, 1, 5000);
    return NULL;
}

// An edge is reported once.
static void an_edge_is_for_one(void) {
    the_set = new_set(), the_event = eventfd(0, EFD_NONBLOCK);
    CHECK(the_event >= 0 && !watch(the_set, the_event, EPOLLIN | EPOLLET), "an event");
    pthread_t threads[3];
    for (int i = 0; i < 3; i++) CHECK(!pthread_create(&threads[i], NULL, takes_one, NULL), "a thread");
    until_asleep(0);
    uint64_t one = 1;
    CHECK(write(the_event, &one, sizeof one) == sizeof one, "write");
    for (int i = 0; i < 3; i++) pthread_join(threads[i], NULL);
    CHECK(got == 1, "%d got it", got);
}

static void sets_in_sets(void) {
    int event = eventfd(0, EFD_NONBLOCK), sets[6];
    for (int i = 0; i < 6; i++) sets[i] = new_set();
    CHECK(!watch(sets[0], event, EPOLLIN), "the innermost one");
    for (int i = 1; i < 5; i++) CHECK(!watch(sets[i], sets[i - 1], EPOLLIN), "set %d in a set", i - 1);
    CHECK(watch(sets[5], sets[4], EPOLLIN) == -1 && (errno == ELOOP || errno == EINVAL), "one too many");
    CHECK(watch(sets[0], sets[4], EPOLLIN) == -1 && errno == ELOOP, "a circle");
    CHECK(watch(sets[0], sets[0], EPOLLIN) == -1 && errno == EINVAL, "itself");
    struct epoll_event got;
    CHECK(epoll_wait(sets[4], &got, 1, 0) == 0, "nothing yet");
    uint64_t one = 1;
    CHECK(write(event, &one, sizeof one) == sizeof one, "write");
    CHECK(epoll_wait(sets[4], &got, 1, 1000) == 1 && got.data.fd == sets[3], "reported through all of them");
    CHECK(read(event, &one, sizeof one) == sizeof one && epoll_wait(sets[4], &got, 1, 0) == 0, "and no more");
    // A set is a file that is waited for like others, again and again.
    for (int i = 0; i < 3; i++) {
        pid_t child = fork();
        if (!child) {
            until_asleep(getppid());
            CHECK(write(event, &one, sizeof one) == sizeof one, "write");
            _exit(0);
        }
        CHECK(poll(&(struct pollfd){.fd = sets[i], .events = POLLIN}, 1, 5000) == 1, "reported by poll of set %d", i);
        CHECK(read(event, &one, sizeof one) == sizeof one && ended(child) == 0, "read");
        CHECK(poll(&(struct pollfd){.fd = sets[i], .events = POLLIN}, 1, 0) == 0, "no more");
    }
    // A removed file does not count any more.
    CHECK(!epoll_ctl(sets[1], EPOLL_CTL_DEL, sets[0], NULL), "out");
    CHECK(!watch(sets[0], sets[4], EPOLLIN), "no circle any more, and room for one");
    CHECK(watch(sets[1], sets[0], EPOLLIN) == -1 && errno == ELOOP, "a circle again");
}

static void an_event_that_does_not_arrive_stays(void) {
    int set = new_set(), event = eventfd(1, EFD_NONBLOCK), edge = eventfd(1, EFD_NONBLOCK);
    CHECK(!watch(set, event, EPOLLIN | EPOLLONESHOT) && !watch(set, edge, EPOLLIN | EPOLLET), "watches");
    char *pages = mmap(NULL, 2 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(pages != MAP_FAILED && !munmap(pages + PAGE, PAGE), "a page");
    ANSWERS(EFAULT, epoll_wait(set, (struct epoll_event *)(pages + PAGE), 2, 0));
    // Room for one of the two.
    struct epoll_event *one = (struct epoll_event *)(pages + PAGE) - 1, got;
    CHECK(epoll_wait(set, one, 2, 0) == 1, "one of them");
    memcpy(&got, one, sizeof got);
    int first = got.data.fd;
    CHECK(epoll_wait(set, &got, 1, 0) == 1 && got.data.fd == event + edge - first, "the other");
    CHECK(epoll_wait(set, &got, 1, 0) == 0, "each once");
}

// ---- ends of waits -------------------------------------------------------------------------------------------------

static int ends[2], locked;
static sigset_t nothing;

// A time of `ms` milliseconds.
static struct timespec in_nanos(int ms) { return (struct timespec){ms / 1000, ms % 1000 * 1000000}; }
static struct timeval in_micros(int ms) { return (struct timeval){ms / 1000, ms % 1000 * 1000}; }

static const int *signals;
static pid_t sends;
// Makes a child that sends `signals` to the caller, 20 ms apart, once the caller waits.
static void go(void) {
    pid_t parent = getpid();
    sends = fork();
    if (sends) return;
    until_asleep(parent);
    for (; *signals; signals++) {
        kill(parent, *signals);
        if (signals[1]) short_sleep();
    }
    _exit(0);
}

static int wait_poll(int ms) {
    go();
    return poll(&(struct pollfd){.fd = ends[0], .events = POLLIN}, 1, ms);
}
static int wait_ppoll(int ms) {
    struct timespec time = in_nanos(ms);
    go();
    return ppoll(&(struct pollfd){.fd = ends[0], .events = POLLIN}, 1, &time, &nothing);
}
static int wait_select(int ms) {
    fd_set set;
    FD_ZERO(&set);
    FD_SET(ends[0], &set);
    struct timeval time = in_micros(ms);
    go();
    return select(ends[0] + 1, &set, NULL, NULL, &time);
}
static int wait_pselect(int ms) {
    fd_set set;
    FD_ZERO(&set);
    FD_SET(ends[0], &set);
    struct timespec time = in_nanos(ms);
    go();
    return pselect(ends[0] + 1, &set, NULL, NULL, &time, &nothing);
}
static int wait_nanosleep(int ms) {
    struct timespec time = in_nanos(ms);
    go();
    return nanosleep(&time, NULL);
}
static int wait_futex(int ms) {
    struct timespec time = in_nanos(ms);
    go();
    int n = syscall(SYS_futex, &(int){5}, FUTEX_WAIT, 5, &time, NULL, 0);
    return n == -1 && errno == ETIMEDOUT ? 0 : n;
}
static int wait_until_then(int ms) {
    struct timespec until;
    go();
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += ms / 1000, until.tv_nsec += ms % 1000 * 1000000;
    if (until.tv_nsec >= 1000000000) until.tv_nsec -= 1000000000, until.tv_sec++;
    int error = clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL);
    errno = error;
    return error ? -1 : 0;
}
static int wait_epoll(int ms) {
    int set = new_set();
    CHECK(!watch(set, ends[0], EPOLLIN), "watch");
    go();
    int n = epoll_wait(set, &(struct epoll_event){0}, 1, ms);
    int error = errno;
    close(set);
    errno = error;
    return n;
}
// Waits that another process ends after so long: a child. It is killed if the wait fails earlier.
static int wait_read(int ms) {
    pid_t child = fork();
    if (!child) {
        usleep(ms * 1000);
        write(ends[1], "x", 1);
        _exit(0);
    }
    char byte;
    go();
    int n = read(ends[0], &byte, 1), error = errno;
    if (n < 0) kill(child, SIGKILL);
    ended(child);
    errno = error;
    return n == 1 ? 0 : -1;
}
static int wait_child(int ms) {
    pid_t child = fork();
    if (!child) usleep(ms * 1000), _exit(0);
    go();
    int n = waitpid(child, NULL, 0), error = errno;
    if (n < 0) kill(child, SIGKILL), ended(child);
    errno = error;
    return n == child ? 0 : -1;
}
// A child that has the file locked for so long.
static pid_t holder(int ms, bool whole) {
    int ready[2];
    CHECK(!pipe(ready), "pipe");
    pid_t child = fork();
    if (!child) {
        // An open file of its own.
        char path[64];
        snprintf(path, sizeof path, "/proc/self/fd/%d", locked);
        int fd = open(path, O_RDWR);
        struct flock all = {.l_type = F_WRLCK};
        CHECK(fd >= 0 && !(whole ? flock(fd, LOCK_EX) : fcntl(fd, F_SETLK, &all)), "a lock");
        write(ready[1], "x", 1);
        usleep(ms * 1000);
        _exit(0);
    }
    char byte;
    CHECK(read(ready[0], &byte, 1) == 1, "the lock is there");
    close(ready[0]), close(ready[1]);
    return child;
}
static int wait_range(int ms) {
    pid_t child = holder(ms, false);
    struct flock all = {.l_type = F_WRLCK};
    go();
    int n = fcntl(locked, F_SETLKW, &all), error = errno;
    if (n < 0) kill(child, SIGKILL);
    ended(child);
    all.l_type = F_UNLCK;
    fcntl(locked, F_SETLK, &all);
    errno = error;
    return n;
}
static int wait_flock(int ms) {
    pid_t child = holder(ms, true);
    go();
    int n = flock(locked, LOCK_EX), error = errno;
    if (n < 0) kill(child, SIGKILL);
    ended(child);
    flock(locked, LOCK_UN);
    errno = error;
    return n;
}

// After a handler whose action says SA_RESTART: EINTR all the same, or made again. After a stop: made again, but for
// epoll_wait.
static const struct wait {
    const char *name;
    int (*wait)(int ms); // 0 after so long
    bool restarts, fails_after_stop;
} waits[] = {
    {"poll", wait_poll, false, false},
    {"ppoll", wait_ppoll, false, false},
    {"select", wait_select, false, false},
    {"pselect", wait_pselect, false, false},
    {"nanosleep", wait_nanosleep, false, false},
    {"clock_nanosleep", wait_until_then, false, false},
    {"futex", wait_futex, false, false},
    {"epoll_wait", wait_epoll, false, true},
    {"read", wait_read, true, false},
    {"waitpid", wait_child, true, false},
    {"F_SETLKW", wait_range, true, false},
    {"flock", wait_flock, true, false},
};
enum { WAITS = sizeof waits / sizeof *waits };

static void prepare_waits(void) {
    CHECK(!pipe(ends), "pipe");
    char path[] = "/tmp/waits.XXXXXX";
    locked = mkstemp(path);
    CHECK(locked >= 0 && !unlink(path), "a file");
}

static void for_each_wait(const char *when, const int *sent, int ms, int (*expected)(const struct wait *)) {
    for (int i = 0; i < WAITS; i++) {
        signals = sent;
        uint64_t start = now_ns();
        errno = 0;
        int wanted_error = expected(&waits[i]);
        int n = waits[i].wait(ms), error = errno;
        if (wanted_error) {
            CHECK(n == -1 && error == wanted_error, "%s ends %s: %d, %d", waits[i].name, when, n, error);
        } else {
            CHECK(n == 0, "%s goes on %s: %d, %d", waits[i].name, when, n, error);
            CHECK(now_ns() - start >= ms * MS - MS, "%s ends early %s", waits[i].name, when);
        }
        ended(sends);
    }
}

static int goes_on(const struct wait *wait) { (void)wait; return 0; }
static int is_interrupted(const struct wait *wait) { (void)wait; return EINTR; }
static int restarts(const struct wait *wait) { return wait->restarts ? 0 : EINTR; }
static int after_stop(const struct wait *wait) { return wait->fails_after_stop ? EINTR : 0; }

static void signals_that_do_nothing_end_no_wait(void) {
    prepare_waits();
    signal(SIGUSR1, SIG_IGN);
    // SIGCONT has no effect on a process that is not stopped; SIGWINCH and SIGURG are ignored unless a handler exists.
    for_each_wait("after signals that do nothing", (int[]){SIGCONT, SIGUSR1, SIGWINCH, SIGURG, 0}, 110, goes_on);
}

static void handlers_end_waits(void) {
    prepare_waits();
    handle(SIGUSR1, 0);
    for_each_wait("after a handler", (int[]){SIGUSR1, 0}, 300, is_interrupted);
    handle(SIGUSR1, SA_RESTART);
    for_each_wait("after a handler with SA_RESTART", (int[]){SIGUSR1, 0}, 300, restarts);
    handle(SIGCONT, 0);
    for_each_wait("after a handler of SIGCONT", (int[]){SIGCONT, 0}, 300, is_interrupted);
}

static void waits_go_on_after_a_stop(void) {
    prepare_waits();
    for_each_wait("after a stop", (int[]){SIGSTOP, SIGCONT, 0}, 300, after_stop);
}

// A call that succeeds under another mask returns its result, and signals that came meanwhile stay pending.
static void masks_of_calls_that_succeed(void) {
    prepare_waits();
    handle(SIGUSR1, 0);
    sigset_t set, now;
    sigemptyset(&set), sigaddset(&set, SIGUSR1);
    sigprocmask(SIG_BLOCK, &set, NULL);
    CHECK(write(ends[1], "x", 1) == 1, "write");
    int poller = new_set();
    CHECK(!watch(poller, ends[0], EPOLLIN), "watch");
    for (int i = 0; i < 3; i++) {
        fd_set fds;
        FD_ZERO(&fds);
        FD_SET(ends[0], &fds);
        kill(getpid(), SIGUSR1);
        int n = i == 0   ? ppoll(&(struct pollfd){.fd = ends[0], .events = POLLIN}, 1, NULL, &nothing)
                : i == 1 ? pselect(ends[0] + 1, &fds, NULL, NULL, NULL, &nothing)
                         : epoll_pwait(poller, &(struct epoll_event){0}, 1, -1, &nothing);
        CHECK(n == 1 && !caught, "call %d: %d, and no handler ran", i, n);
        sigprocmask(SIG_BLOCK, NULL, &now);
        CHECK(sigismember(&now, SIGUSR1), "the mask is back");
        CHECK(!sigpending(&now) && sigismember(&now, SIGUSR1), "it is still pending");
    }
    // Without a result, the signal ends it.
    char byte;
    CHECK(read(ends[0], &byte, 1) == 1, "read");
    CHECK(ppoll(&(struct pollfd){.fd = ends[0], .events = POLLIN}, 1, NULL, &nothing) == -1 && errno == EINTR, "ppoll");
    CHECK(caught == SIGUSR1, "by its handler");
}

// ---- locks ---------------------------------------------------------------------------------------------------------

static int lock_byte(int command, int fd, int at, int type) {
    struct flock lock = {.l_type = type, .l_start = at, .l_len = 1};
    return fcntl(fd, command, &lock);
}

// Processes that each hold a byte's lock and want the next one: one gets an error, and all end.
static void circles_of_locks(void) {
    prepare_waits();
    int second = memfd_create("other", 0);
    CHECK(second >= 0, "memfd_create");
    int files[] = {locked, second};
    for (int n = 2; n <= 5; n++) {
        int have[2], go[2];
        CHECK(!pipe(have) && !pipe(go), "pipes");
        for (int i = 0; i < n; i++) {
            pid_t child = fork();
            if (child) continue;
            CHECK(!lock_byte(F_SETLK, files[i % 2], i, F_WRLCK), "its own");
            char byte;
            CHECK(write(have[1], "x", 1) == 1 && read(go[0], &byte, 1) == 1, "woken");
            int next = (i + 1) % n;
            if (!lock_byte(F_SETLKW, files[next % 2], next, i % 3 ? F_WRLCK : F_RDLCK)) _exit(1);
            CHECK(errno == EDEADLK, "an error");
            _exit(2);
        }
        char bytes[5];
        for (int i = 0; i < n; i++) CHECK(read(have[0], bytes, 1) == 1, "it has it");
        CHECK(write(go[1], "xxxxx", n) == n, "go");
        int woken = 0;
        for (int i = 0, status; i < n; i++) {
            CHECK(wait(&status) > 0 && WIFEXITED(status) && WEXITSTATUS(status), "status %#x", status);
            woken += WEXITSTATUS(status) == 2;
        }
        CHECK(woken == 1, "%d of %d were woken", woken, n);
        close(have[0]), close(have[1]), close(go[0]), close(go[1]);
    }
}

// ---- to all processes ----------------------------------------------------------------------------------------------

// Processes in sequence, each made by the one before, which ends: only a signal that misses no process can stop them.
// (The C library's fork blocks signals, so a process that gets the signal just before forks a child that does not.)
static void runs_away(void) {
    for (;;) {
        pid_t next = syscall(SYS_fork);
        if (next > 0) _exit(0);
        if (next < 0) sched_yield();
    }
}

static void kill_all(void) {
    CHECK(!prctl(PR_SET_CHILD_SUBREAPER, 1), "subreaper");
    // A process that is just being made has it pending until it runs.
    sigset_t term;
    sigemptyset(&term), sigaddset(&term, SIGTERM);
    sigprocmask(SIG_BLOCK, &term, NULL);
    signal(SIGTERM, SIG_DFL);
    uint64_t random = getpid();
    for (int round = 0; round < 60; round++) {
        for (int i = 0; i < 3; i++) {
            pid_t child = fork();
            CHECK(child >= 0, "fork");
            if (!child) {
                sigprocmask(SIG_UNBLOCK, &term, NULL);
                runs_away();
            }
        }
        usleep(random_next(&random) % 3000);
        CHECK(!kill(-1, SIGTERM), "kill");
        uint64_t start = now_ns();
        for (;;) {
            pid_t one = waitpid(-1, NULL, WNOHANG);
            if (one == -1 && errno == ECHILD) break;
            if (now_ns() - start > 10000 * MS) {
                for (int i = 0; i < 1000; i++) kill(-1, SIGTERM);
                fail("round %d: a process was missed", round);
            }
            if (!one) sched_yield();
        }
    }
}

// The same in a namespace of its own on Linux, where it would reach all other processes.
static void kill_of_all_misses_no_process(void) {
    struct utsname names;
    CHECK(!uname(&names), "uname");
    if (strstr(names.version, "Quire")) {
        kill_all();
        return;
    }
    if (unshare(CLONE_NEWPID)) return; // not allowed here
    pid_t first = fork();
    CHECK(first >= 0, "fork");
    if (!first) {
        if (getpid() == 1) kill_all();
        _exit(0);
    }
    CHECK(ended(first) == 0, "the first process of the namespace");
}

static const struct check checks[] = {
    {"an_event_that_stays_is_for_all", an_event_that_stays_is_for_all},
    {"a_ready_file_is_ready_for_all_threads", a_ready_file_is_ready_for_all_threads},
    {"an_edge_is_for_one", an_edge_is_for_one},
    {"sets_in_sets", sets_in_sets},
    {"an_event_that_does_not_arrive_stays", an_event_that_does_not_arrive_stays},
    {"signals_that_do_nothing_end_no_wait", signals_that_do_nothing_end_no_wait},
    {"handlers_end_waits", handlers_end_waits},
    {"waits_go_on_after_a_stop", waits_go_on_after_a_stop},
    {"masks_of_calls_that_succeed", masks_of_calls_that_succeed},
    {"circles_of_locks", circles_of_locks},
    {"kill_of_all_misses_no_process", kill_of_all_misses_no_process},
};

int main(int argc, char **argv) {
    parse_options(argc, argv, NULL);
    sigemptyset(&nothing);
    // The signal that is sent to all.
    signal(SIGTERM, SIG_IGN);
    run_checks(checks, sizeof checks / sizeof *checks);
    return 0;
}
