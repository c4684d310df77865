// Timers of `timer_create`, of `setitimer` on CPU time and of `timerfd_create`, and restartable sequences, checked one
// by one; the same on Linux and on Quire.
#include "checks.h"
#include <poll.h>
#include <sys/auxv.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/timerfd.h>
#include <ucontext.h>

#ifndef SIGEV_THREAD_ID
#define SIGEV_THREAD_ID 4
#endif
#define LATER 1000000 // seconds
#define S 1000000000ull
#define BAD ((void *)8)

// The kernel's own calls: libraries put threads of their own between.
static long create(int clock, struct sigevent *event, int *id) { return syscall(SYS_timer_create, clock, event, id); }
static long delete(int id) { return syscall(SYS_timer_delete, id); }
static long overrun(int id) { return syscall(SYS_timer_getoverrun, id); }
static long set_raw(int id, int flags, const void *new, void *old) {
    return syscall(SYS_timer_settime, id, flags, new, old);
}

static struct itimerspec spec(uint64_t value, uint64_t every) {
    return (struct itimerspec){{every / S, every % S}, {value / S, value % S}};
}
static uint64_t nanos(struct timespec t) { return t.tv_sec * S + t.tv_nsec; }
static long set(int id, int flags, uint64_t value, uint64_t every) {
    struct itimerspec new = spec(value, every);
    return set_raw(id, flags, &new, NULL);
}
static uint64_t rest(int id) {
    struct itimerspec now;
    CHECK(!syscall(SYS_timer_gettime, id, &now), "timer_gettime");
    return nanos(now.it_value);
}
static uint64_t time_on(int clock) {
    struct timespec t;
    CHECK(!clock_gettime(clock, &t), "clock_gettime of %d", clock);
    return nanos(t);
}
static int new_timer(int clock, int signal) {
    struct sigevent event = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = signal,
        .sigev_value.sival_ptr = (void *)0x123456789abcul};
    int id;
    CHECK(!create(clock, &event, &id), "timer_create on clock %d", clock);
    return id;
}
static sigset_t only(int signal) {
    sigset_t one;
    sigemptyset(&one);
    sigaddset(&one, signal);
    return one;
}
static void hold_back(int signal) {
    sigset_t one = only(signal);
    CHECK(!pthread_sigmask(SIG_BLOCK, &one, NULL), "a mask");
}
static bool is_pending(int signal) {
    sigset_t pending;
    sigpending(&pending);
    return sigismember(&pending, signal);
}
// Takes a signal that comes within `ns`; 0: none came.
static int await(int signal, uint64_t ns, siginfo_t *info) {
    sigset_t one = only(signal);
    struct timespec t = {ns / S, ns % S};
    int got;
    do got = sigtimedwait(&one, info, &t);
    while (got < 0 && errno == EINTR);
    CHECK(got == signal || errno == EAGAIN, "sigtimedwait");
    return got < 0 ? 0 : got;
}
static void spin(uint64_t ns) {
    for (uint64_t start = now_ns(); now_ns() - start < ns;) {}
}
static int cpus_of(cpu_set_t *set) {
    CHECK(!sched_getaffinity(0, sizeof *set, set), "sched_getaffinity");
    return CPU_COUNT(set);
}

// ---- timer_create --------------------------------------------------------------------------------------------------

static void errors_of_timers(void) {
    int id, clocks[] = {CLOCK_REALTIME, CLOCK_MONOTONIC, CLOCK_BOOTTIME, CLOCK_TAI, CLOCK_PROCESS_CPUTIME_ID,
        CLOCK_THREAD_CPUTIME_ID};
    for (int i = 0; i < 6; i++) {
        id = new_timer(clocks[i], SIGUSR1);
        CHECK(rest(id) == 0, "a new timer is off");
        ANSWERS(0, delete(id));
    }
    ANSWERS(EINVAL, create(99, NULL, &id));
    ANSWERS(EINVAL, create(-1, NULL, &id));
    ANSWERS(EOPNOTSUPP, create(CLOCK_MONOTONIC_RAW, NULL, &id));
    ANSWERS(EOPNOTSUPP, create(CLOCK_MONOTONIC_COARSE, NULL, &id));
    if (!create(CLOCK_BOOTTIME_ALARM, NULL, &id)) ANSWERS(0, delete(id));
    else CHECK(errno == EOPNOTSUPP || errno == EPERM, "an alarm clock");
    ANSWERS(EFAULT, create(CLOCK_MONOTONIC, BAD, &id));
    ANSWERS(EFAULT, create(CLOCK_MONOTONIC, NULL, BAD));
    struct sigevent event = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = 0};
    ANSWERS(EINVAL, create(CLOCK_MONOTONIC, &event, &id));
    event.sigev_signo = 65;
    ANSWERS(EINVAL, create(CLOCK_MONOTONIC, &event, &id));
    event.sigev_signo = -1;
    ANSWERS(EINVAL, create(CLOCK_MONOTONIC, &event, &id));
    event.sigev_signo = 64, event.sigev_notify = 77;
    ANSWERS(EINVAL, create(CLOCK_MONOTONIC, &event, &id));
    int thread[16] = {[2] = 64, [3] = SIGEV_THREAD_ID, [4] = getppid()};
    ANSWERS(EINVAL, create(CLOCK_MONOTONIC, (void *)thread, &id));
    thread[4] = -1;
    ANSWERS(EINVAL, create(CLOCK_MONOTONIC, (void *)thread, &id));
    struct itimerspec now, some = spec(5, 0), bad = some;
    id = new_timer(CLOCK_MONOTONIC, SIGUSR1);
    ANSWERS(EINVAL, set_raw(id, 0, NULL, NULL));
    ANSWERS(EFAULT, set_raw(id, 0, BAD, NULL));
    ANSWERS(EFAULT, syscall(SYS_timer_gettime, id, BAD));
    bad.it_value.tv_nsec = S;
    ANSWERS(EINVAL, set_raw(id, 0, &bad, NULL));
    bad = some, bad.it_interval.tv_nsec = -1;
    ANSWERS(EINVAL, set_raw(id, 0, &bad, NULL));
    bad = some, bad.it_value.tv_sec = -1;
    ANSWERS(EINVAL, set_raw(id, 0, &bad, NULL));
    some = spec(LATER * S, 7);
    ANSWERS(EFAULT, set_raw(id, 0, &some, BAD));
    CHECK(rest(id) > 0, "it is set although the old setting could not be stored");
    ANSWERS(0, set_raw(id, 0, &some, &now));
    CHECK(nanos(now.it_value) > (LATER - 1000) * S && nanos(now.it_interval) == 7, "the old setting");
    ANSWERS(0, delete(id));
    int gone[] = {id, -1, 1 << 30};
    for (int i = 0; i < 3; i++) {
        ANSWERS(EINVAL, delete(gone[i]));
        ANSWERS(EINVAL, set_raw(gone[i], 0, &some, NULL));
        ANSWERS(EINVAL, syscall(SYS_timer_gettime, gone[i], &now));
        ANSWERS(EINVAL, overrun(gone[i]));
    }
}

static void a_timer_sends_its_signal(void) {
    hold_back(SIGALRM), hold_back(SIGRTMIN);
    siginfo_t info;
    int id;
    CHECK(!create(CLOCK_REALTIME, NULL, &id), "without an event");
    ANSWERS(0, set(id, 0, 1000 * S, 0));
    uint64_t left = rest(id), start = now_ns();
    CHECK(left > 900 * S && left <= 1000 * S, "the rest: %llu", (unsigned long long)left);
    ANSWERS(0, set(id, 0, 10 * MS, 0));
    CHECK(await(SIGALRM, 5 * S, &info) && now_ns() - start >= 10 * MS, "it expires, and not early");
    CHECK(info.si_code == SI_TIMER && info.si_value.sival_int == id && info.si_timerid == id && info.si_overrun == 0,
        "what it reports");
    CHECK(rest(id) == 0 && !await(SIGALRM, 20 * MS, NULL), "once");
    CHECK(overrun(id) == 0, "no overrun");
    int other = new_timer(CLOCK_MONOTONIC, SIGRTMIN);
    CHECK(other != id, "ids differ");
    // A time in the past, and a time in the future.
    ANSWERS(0, set(other, TIMER_ABSTIME, 1, 0));
    CHECK(await(SIGRTMIN, 5 * S, &info) && info.si_value.sival_ptr == (void *)0x123456789abcul, "at once");
    start = now_ns();
    ANSWERS(0, set(other, TIMER_ABSTIME, start + 15 * MS, 0));
    CHECK(await(SIGRTMIN, 5 * S, &info) && now_ns() >= start + 15 * MS, "at its time");
    ANSWERS(0, set(id, TIMER_ABSTIME, time_on(CLOCK_REALTIME) + 15 * MS, 0));
    CHECK(rest(id) <= 15 * MS && await(SIGALRM, 5 * S, &info), "at a time of day");
    // Off, and far away.
    ANSWERS(0, set(other, 0, 5 * MS, 5 * MS));
    ANSWERS(0, set(other, 0, 0, 5 * MS));
    await(SIGRTMIN, 0, &info);
    CHECK(!await(SIGRTMIN, 20 * MS, &info) && rest(other) == 0, "it is off");
    struct itimerspec never = {{0, 0}, {INT64_MAX, 999999999}};
    ANSWERS(0, set_raw(other, 0, &never, NULL));
    CHECK(rest(other) > LATER * S, "in a very long time");
    // A handler gets it, too.
    handle(SIGUSR1, 0);
    int third = new_timer(CLOCK_BOOTTIME, SIGUSR1);
    ANSWERS(0, set(third, 0, 5 * MS, 0));
    while (!caught) {}
    CHECK(caught_code == SI_TIMER && caught_value == (int)0x56789abc, "in a handler");
}

static void periods_and_overruns(void) {
    hold_back(SIGRTMIN);
    int id = new_timer(CLOCK_MONOTONIC, SIGRTMIN);
    siginfo_t info;
    uint64_t start = now_ns();
    ANSWERS(0, set(id, 0, 3 * MS, 10 * MS));
    for (int i = 0; i < 3; i++) CHECK(await(SIGRTMIN, 5 * S, &info), "period %d", i);
    CHECK(now_ns() - start >= 23 * MS, "three periods");
    // Blocked for many periods: one signal, which counts them.
    usleep(115000);
    uint64_t left = rest(id);
    CHECK(left > 0 && left <= 10 * MS, "a period goes on behind a signal that waits: %llu", (unsigned long long)left);
    uint64_t before = now_ns();
    CHECK(await(SIGRTMIN, 0, &info) == SIGRTMIN, "it is pending");
    CHECK(info.si_overrun >= 9 && info.si_overrun <= (int)((before - start) / (10 * MS)) + 1, "overruns: %d",
        info.si_overrun);
    CHECK(overrun(id) == info.si_overrun, "timer_getoverrun agrees");
    CHECK(await(SIGRTMIN, 5 * S, &info) && info.si_overrun <= 8, "the count begins anew: %d", info.si_overrun);
    // A period that no machine keeps up with.
    ANSWERS(0, set(id, 0, 1, 1));
    CHECK(overrun(id) == 0, "a new setting forgets the old count");
    usleep(10000);
    for (int i = 0; i < 50; i++) CHECK(await(SIGRTMIN, 5 * S, &info), "a period of a nanosecond, %d", i);
    CHECK(overrun(id) > 0, "overruns of a nanosecond");
    usleep(2300000);
    CHECK(await(SIGRTMIN, 0, &info) && info.si_overrun == INT32_MAX, "the largest count: %d", info.si_overrun);
    ANSWERS(0, delete(id));
}

static void a_timer_may_notify_of_nothing(void) {
    struct sigevent none = {.sigev_notify = SIGEV_NONE};
    int id;
    CHECK(!create(CLOCK_MONOTONIC, &none, &id), "SIGEV_NONE");
    ANSWERS(0, set(id, 0, 10 * MS, 0));
    CHECK(rest(id) > 0 && rest(id) <= 10 * MS, "it runs");
    usleep(20000);
    CHECK(rest(id) == 0, "it has run out");
    ANSWERS(0, set(id, 0, 10 * MS, 7 * MS));
    usleep(30000);
    CHECK(rest(id) > 0 && rest(id) <= 7 * MS, "it goes on");
    int cpu;
    CHECK(!create(CLOCK_PROCESS_CPUTIME_ID, &none, &cpu), "on CPU time");
    ANSWERS(0, set(cpu, 0, 1000 * S, 0));
    CHECK(rest(cpu) > 900 * S && rest(cpu) <= 1000 * S, "the rest of CPU time");
}

static void two_timers_with_one_signal(void) {
    hold_back(SIGUSR2), hold_back(SIGUSR1);
    int a = new_timer(CLOCK_MONOTONIC, SIGUSR2), b = new_timer(CLOCK_MONOTONIC, SIGUSR2);
    ANSWERS(0, set(a, 0, 1, 0));
    ANSWERS(0, set(b, 0, 1, 0));
    usleep(10000);
    siginfo_t first, second;
    CHECK(await(SIGUSR2, 5 * S, &first) && await(SIGUSR2, 5 * S, &second) && !await(SIGUSR2, 0, NULL), "two signals");
    CHECK(first.si_timerid != second.si_timerid, "of two timers");
    // Ignored for a while.
    signal(SIGUSR1, SIG_IGN);
    sigset_t one = only(SIGUSR1);
    pthread_sigmask(SIG_UNBLOCK, &one, NULL);
    int c = new_timer(CLOCK_MONOTONIC, SIGUSR1);
    ANSWERS(0, set(c, 0, 2 * MS, 2 * MS));
    usleep(30000);
    handle(SIGUSR1, 0);
    for (uint64_t start = now_ns(); !caught && now_ns() - start < 5 * S;) usleep(1000);
    CHECK(caught == SIGUSR1, "a timer outlives that its signal is ignored");
}

static _Atomic int notified_thread;
static atomic_int its_id, leave_now;
static void *listens(void *arg) {
    (void)arg;
    hold_back(SIGRTMIN);
    its_id = syscall(SYS_gettid);
    siginfo_t info;
    if (await(SIGRTMIN, 5 * S, &info)) notified_thread = syscall(SYS_gettid);
    while (!leave_now) usleep(1000);
    return NULL;
}

static void a_timer_notifies_a_thread(void) {
    hold_back(SIGRTMIN);
    pthread_t thread;
    CHECK(!pthread_create(&thread, NULL, listens, NULL), "a thread");
    while (!its_id) usleep(100);
    int event[16] = {[2] = SIGRTMIN, [3] = SIGEV_THREAD_ID, [4] = its_id}, id;
    CHECK(!create(CLOCK_MONOTONIC, (void *)event, &id), "SIGEV_THREAD_ID");
    ANSWERS(0, set(id, 0, 5 * MS, 5 * MS));
    for (uint64_t start = now_ns(); !notified_thread && now_ns() - start < 5 * S;) usleep(1000);
    CHECK(notified_thread == its_id && !await(SIGRTMIN, 20 * MS, NULL), "the thread gets it, and no other");
    leave_now = 1;
    pthread_join(thread, NULL);
    // The thread is gone, the timer is not.
    usleep(20000);
    CHECK(!await(SIGRTMIN, 20 * MS, NULL), "no thread gets it");
    ANSWERS(0, set(id, 0, 5 * MS, 0));
    ANSWERS(0, delete(id));
}

// The thread that armed a timer leaves: the timer goes on.
static int of_process;
static void *arms(void *arg) {
    (void)arg;
    CHECK(!set(of_process, 0, 3 * MS, 3 * MS), "it arms");
    return NULL;
}
static void a_timer_outlives_threads(void) {
    hold_back(SIGRTMIN);
    for (int i = 0; i < 20; i++) {
        of_process = new_timer(CLOCK_MONOTONIC, SIGRTMIN);
        pthread_t thread;
        CHECK(!pthread_create(&thread, NULL, arms, NULL) && !pthread_join(thread, NULL), "a thread");
        CHECK(await(SIGRTMIN, 5 * S, NULL) && await(SIGRTMIN, 5 * S, NULL), "its timer, round %d", i);
        ANSWERS(0, delete(of_process));
        await(SIGRTMIN, 0, NULL);
    }
}

static void other_user(void) {
    if (!geteuid()) CHECK(!setresuid(54321, 54321, 54321), "another user, who has nothing pending");
}
static void limit_pending(rlim_t most) {
    struct rlimit limit;
    CHECK(!getrlimit(RLIMIT_SIGPENDING, &limit), "getrlimit");
    limit.rlim_cur = most;
    CHECK(!setrlimit(RLIMIT_SIGPENDING, &limit), "setrlimit to %lu", (unsigned long)most);
}
static void timers_are_charged(void) {
    other_user();
    if (geteuid() != 54321) return;
    int ids[4], id;
    limit_pending(0);
    ANSWERS(EAGAIN, create(CLOCK_MONOTONIC, NULL, &id));
    limit_pending(1);
    ANSWERS(0, create(CLOCK_MONOTONIC, NULL, &id));
    ANSWERS(EAGAIN, create(CLOCK_MONOTONIC, NULL, &ids[0]));
    limit_pending(3);
    ids[0] = id;
    for (int i = 1; i < 3; i++) ANSWERS(0, create(CLOCK_MONOTONIC, NULL, &ids[i]));
    ANSWERS(EAGAIN, create(CLOCK_MONOTONIC, NULL, &ids[3]));
    ANSWERS(EAGAIN, create(CLOCK_MONOTONIC, NULL, BAD));
    // A signal of a timer needs no more room; one of a program does.
    hold_back(SIGRTMIN), hold_back(SIGALRM);
    union sigval value = {0};
    ANSWERS(EAGAIN, sigqueue(getpid(), SIGRTMIN, value));
    ANSWERS(0, set(ids[1], 0, 1, 0));
    siginfo_t info;
    CHECK(await(SIGALRM, 5 * S, &info) && info.si_timerid == ids[1], "its signal comes");
    ANSWERS(0, delete(ids[1]));
    ANSWERS(0, create(CLOCK_MONOTONIC, NULL, &ids[1]));
    ANSWERS(EAGAIN, create(CLOCK_MONOTONIC, NULL, &ids[3]));
    // A failed call leaves no charge.
    ANSWERS(0, delete(ids[0]));
    for (int i = 0; i < 10; i++) ANSWERS(EFAULT, create(CLOCK_MONOTONIC, NULL, BAD));
    struct sigevent bad = {.sigev_notify = 9};
    for (int i = 0; i < 10; i++) ANSWERS(EINVAL, create(CLOCK_MONOTONIC, &bad, &id));
    ANSWERS(0, create(CLOCK_MONOTONIC, NULL, &ids[0]));
    // The end of a process returns its charges.
    pid_t child = fork();
    if (!child) {
        struct sigevent none = {.sigev_notify = SIGEV_NONE};
        ANSWERS(EAGAIN, create(CLOCK_MONOTONIC, &none, &id));
        limit_pending(5);
        for (int i = 0; i < 2; i++) ANSWERS(0, create(CLOCK_MONOTONIC, &none, &id));
        ANSWERS(EAGAIN, create(CLOCK_MONOTONIC, &none, &id));
        _exit(0);
    }
    CHECK(!ended(child), "the child");
    limit_pending(5);
    for (int i = 0; i < 2; i++) ANSWERS(0, create(CLOCK_MONOTONIC, NULL, &id));
    ANSWERS(EAGAIN, create(CLOCK_MONOTONIC, NULL, &id));
}

static void many_timers(void) {
    enum { MANY = 10000 };
    struct rlimit limit;
    CHECK(!getrlimit(RLIMIT_SIGPENDING, &limit), "getrlimit");
    int many = MANY, *ids = calloc(MANY, sizeof *ids);
    hold_back(SIGRTMIN);
    for (int i = 0; i < many; i++) {
        struct sigevent event = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGRTMIN, .sigev_value.sival_int = i};
        if (create(CLOCK_MONOTONIC, &event, &ids[i])) {
            CHECK(errno == EAGAIN && i > 100, "timer %d", i);
            many = i;
        }
    }
    // Half of them expire.
    for (int i = 0; i < many; i++) CHECK(!set(ids[i], 0, i % 2 ? 20 * MS : LATER * S, 0), "armed");
    usleep(30000);
    for (int i = 0; i < many / 2; i++) {
        siginfo_t info;
        CHECK(await(SIGRTMIN, 5 * S, &info) && info.si_value.sival_int % 2, "signal %d", i);
    }
    CHECK(!await(SIGRTMIN, 0, NULL), "no more");
    for (int i = 0; i < many; i++) CHECK((rest(ids[i]) == 0) == i % 2, "timer %d", i);
    for (int i = 0; i < many; i += 3) ANSWERS(0, delete(ids[i]));
}

// ---- races ---------------------------------------------------------------------------------------------------------

static _Atomic int shared_id = -1;
static atomic_int over;
static atomic_long handled;
static void count_signal(int signal, siginfo_t *info, void *context) {
    (void)signal, (void)context;
    if (info->si_code == SI_TIMER) handled++;
}
static void *deletes(void *arg) {
    uint64_t random = (uintptr_t)arg + 1;
    while (!over) {
        int id = atomic_exchange(&shared_id, -1);
        if (id < 0) continue;
        for (uint64_t start = now_ns(), some = random_next(&random) % 60000; now_ns() - start < some;) {}
        CHECK(!delete(id), "the only one that deletes it");
    }
    return NULL;
}
static void *sets(void *arg) {
    uint64_t random = (uintptr_t)arg + 7;
    while (!over) {
        int id = shared_id;
        if (id >= 0 && set(id, 0, random_next(&random) % 30000, random_next(&random) % 3 ? 300000 : 0))
            CHECK(errno == EINVAL, "a timer that is gone");
        int count = overrun(id < 0 ? 0 : id);
        CHECK(count >= 0 || errno == EINVAL, "an overrun");
    }
    return NULL;
}
static void timers_race_with_their_end(void) {
    struct sigaction action = {.sa_sigaction = count_signal, .sa_flags = SA_SIGINFO | SA_RESTART};
    CHECK(!sigaction(SIGRTMIN, &action, NULL) && !sigaction(SIGUSR1, &action, NULL), "sigaction");
    int clocks[] = {CLOCK_MONOTONIC, CLOCK_REALTIME, CLOCK_PROCESS_CPUTIME_ID, CLOCK_THREAD_CPUTIME_ID};
    pthread_t threads[3];
    for (intptr_t i = 0; i < 3; i++)
        CHECK(!pthread_create(&threads[i], NULL, i < 2 ? deletes : sets, (void *)i), "a thread");
    int made = 0;
    for (uint64_t start = now_ns(); now_ns() - start < 700 * MS; made++) {
        int id = new_timer(clocks[made % 4], made % 3 ? SIGRTMIN : SIGUSR1);
        ANSWERS(0, set(id, 0, 1 + made % 5 * 7000, made % 2 ? 300000 : 0));
        while (shared_id >= 0 && now_ns() - start < 700 * MS) {}
        int before = atomic_exchange(&shared_id, id);
        if (before >= 0) ANSWERS(0, delete(before));
    }
    over = 1;
    for (int i = 0; i < 3; i++) pthread_join(threads[i], NULL);
    CHECK(made > 10 && handled > 0, "%d timers, %ld signals", made, handled);
    // A process ends in the midst of it.
    for (int i = 0; i < 10; i++) {
        pid_t child = fork();
        if (!child) {
            for (int n = 0; n < 20; n++) set(new_timer(clocks[n % 3], SIGRTMIN), 0, 1000 * n, 5 * MS);
            spin(300000 * i);
            _exit(0);
        }
        CHECK(!ended(child), "a child whose timers run");
    }
}

// ---- fork and exec -------------------------------------------------------------------------------------------------

static const char *self;
static long after_exec = -1;
static void a_child_has_no_timers(void) {
    hold_back(SIGRTMIN);
    int id = new_timer(CLOCK_MONOTONIC, SIGRTMIN);
    ANSWERS(0, set(id, 0, 10 * MS, 10 * MS));
    struct itimerval often = {{0, 1000}, {100, 0}};
    CHECK(!setitimer(ITIMER_PROF, &often, NULL), "setitimer");
    pid_t child = fork();
    if (!child) {
        struct itimerspec now;
        struct itimerval left;
        ANSWERS(EINVAL, syscall(SYS_timer_gettime, id, &now));
        CHECK(!await(SIGRTMIN, 30 * MS, NULL), "nor its signal");
        CHECK(!getitimer(ITIMER_PROF, &left) && !left.it_value.tv_sec && !left.it_value.tv_usec,
            "nor an interval timer");
        int own = new_timer(CLOCK_MONOTONIC, SIGRTMIN);
        ANSWERS(0, set(own, 0, MS, 0));
        CHECK(await(SIGRTMIN, 5 * S, NULL), "its own");
        _exit(0);
    }
    CHECK(!ended(child) && await(SIGRTMIN, 5 * S, NULL), "the parent's goes on");
}

static void exec_deletes_timers(void) {
    hold_back(SIGRTMIN), hold_back(SIGUSR2);
    pid_t child = fork();
    if (!child) {
        int id = new_timer(CLOCK_MONOTONIC, SIGRTMIN), other = new_timer(CLOCK_MONOTONIC, SIGUSR2);
        struct itimerval late = {{0, 0}, {100, 0}};
        CHECK(!setitimer(ITIMER_REAL, &late, NULL) && !setitimer(ITIMER_VIRTUAL, &late, NULL), "setitimer");
        ANSWERS(0, set(id, 0, 1, 5 * MS));
        ANSWERS(0, set(other, 0, LATER * S, 0));
        usleep(10000);
        CHECK(is_pending(SIGRTMIN), "its signal");
        char number[16];
        snprintf(number, sizeof number, "%d", id);
        execl(self, self, "--after-exec", number, NULL);
        fail("execl");
    }
    CHECK(!ended(child), "after exec");
}
static int begin_after_exec(void) {
    struct itimerspec now;
    struct itimerval left;
    usleep(20000);
    CHECK(!is_pending(SIGRTMIN), "no signal of a timer is left");
    ANSWERS(EINVAL, syscall(SYS_timer_gettime, (int)after_exec, &now));
    ANSWERS(EINVAL, delete(after_exec));
    CHECK(!getitimer(ITIMER_REAL, &left) && left.it_value.tv_sec > 50, "the interval timer is kept");
    CHECK(!getitimer(ITIMER_VIRTUAL, &left) && left.it_value.tv_sec > 50, "that of CPU time, too");
    return 0;
}

// ---- CPU time ------------------------------------------------------------------------------------------------------

static void *burns(void *arg) {
    (void)arg;
    while (!leave_now) {}
    return NULL;
}

static void timers_on_cpu_time(void) {
    hold_back(SIGRTMIN);
    siginfo_t info;
    int id = new_timer(CLOCK_PROCESS_CPUTIME_ID, SIGRTMIN);
    uint64_t start = time_on(CLOCK_PROCESS_CPUTIME_ID);
    ANSWERS(0, set(id, 0, 30 * MS, 0));
    CHECK(rest(id) > 0 && rest(id) <= 30 * MS, "CPU time that is left");
    usleep(60000);
    CHECK(!is_pending(SIGRTMIN), "sleep takes none");
    for (uint64_t since = now_ns(); !is_pending(SIGRTMIN) && now_ns() - since < 2 * S;) {}
    uint64_t used = time_on(CLOCK_PROCESS_CPUTIME_ID) - start;
    CHECK(used >= 30 * MS && await(SIGRTMIN, 0, &info) && info.si_code == SI_TIMER, "after %llu",
        (unsigned long long)used);
    CHECK(rest(id) == 0 || rest(id) == 1, "it has expired");
    // Periods, and a time that has passed.
    ANSWERS(0, set(id, TIMER_ABSTIME, 1, 10 * MS));
    int periods = 0;
    for (uint64_t since = now_ns(); periods < 3 && now_ns() - since < 2 * S;)
        periods += await(SIGRTMIN, 0, &info) == SIGRTMIN;
    CHECK(periods == 3, "periods of CPU time");
    ANSWERS(0, delete(id));
    await(SIGRTMIN, 0, &info);
    // A thread's own time is not that of another.
    id = new_timer(CLOCK_THREAD_CPUTIME_ID, SIGRTMIN);
    ANSWERS(0, set(id, 0, 30 * MS, 0));
    pthread_t thread;
    leave_now = 0;
    CHECK(!pthread_create(&thread, NULL, burns, NULL), "a thread");
    usleep(120000);
    CHECK(!is_pending(SIGRTMIN), "another thread's time does not count");
    clockid_t its;
    CHECK(!pthread_getcpuclockid(thread, &its), "its clock");
    int other = new_timer(its, SIGRTMIN);
    ANSWERS(0, set(other, 0, 20 * MS, 0));
    CHECK(await(SIGRTMIN, 2 * S, &info) && info.si_timerid == other, "on its clock");
    // Linux looks at its ticks, which a thread that runs for short stretches may miss.
    for (uint64_t since = now_ns(); !is_pending(SIGRTMIN) && now_ns() - since < 2 * S;) {}
    CHECK(await(SIGRTMIN, 0, &info) && info.si_timerid == id, "on the own clock");
    ANSWERS(0, set(other, 0, 1000 * S, 0));
    leave_now = 1;
    pthread_join(thread, NULL);
    struct itimerspec now;
    CHECK(!syscall(SYS_timer_gettime, other, &now), "the thread is gone, the timer is not");
    // A thread that was joined may still be on its way out.
    for (uint64_t since = now_ns(); !set(other, 0, 1000 * S, 0) && now_ns() - since < 2 * S;) usleep(1000);
    ANSWERS(ESRCH, set(other, 0, 1000 * S, 0));
    ANSWERS(0, delete(other));
}

static volatile sig_atomic_t ticks_of[65];
static void tick(int signal) { ticks_of[signal]++; }
static void interval_timers_on_cpu_time(void) {
    signal(SIGVTALRM, tick), signal(SIGPROF, tick);
    struct itimerval bad = {{0, 0}, {0, 1000000}}, every = {{0, 20000}, {0, 20000}}, none = {{0, 0}, {0, 0}}, left;
    ANSWERS(EINVAL, setitimer(3, &every, NULL));
    ANSWERS(EINVAL, setitimer(-1, &every, NULL));
    ANSWERS(EINVAL, getitimer(3, &left));
    ANSWERS(EINVAL, setitimer(ITIMER_PROF, &bad, NULL));
    ANSWERS(EFAULT, syscall(SYS_setitimer, ITIMER_PROF, BAD, NULL));
    ANSWERS(EFAULT, syscall(SYS_getitimer, ITIMER_VIRTUAL, BAD));
    CHECK(!getitimer(ITIMER_PROF, &left) && !left.it_value.tv_usec && !left.it_interval.tv_usec, "off at first");
    CHECK(!setitimer(ITIMER_PROF, &every, NULL) && !setitimer(ITIMER_VIRTUAL, &every, NULL), "setitimer");
    CHECK(!getitimer(ITIMER_PROF, &left) && left.it_value.tv_usec > 0 && left.it_interval.tv_usec == 20000,
        "the time left");
    usleep(50000);
    CHECK(!ticks_of[SIGPROF] && !ticks_of[SIGVTALRM], "sleep takes no CPU time");
    uint64_t start = time_on(CLOCK_PROCESS_CPUTIME_ID);
    for (uint64_t since = now_ns(); (ticks_of[SIGPROF] < 3 || ticks_of[SIGVTALRM] < 2) && now_ns() - since < 2 * S;) {}
    CHECK(ticks_of[SIGPROF] >= 3 && ticks_of[SIGVTALRM] >= 2, "%d and %d", (int)ticks_of[SIGPROF],
        (int)ticks_of[SIGVTALRM]);
    CHECK(time_on(CLOCK_PROCESS_CPUTIME_ID) - start >= 35 * MS, "not more often than it should");
    CHECK(!setitimer(ITIMER_PROF, &none, &left) && left.it_interval.tv_usec == 20000, "the old setting");
    int before = ticks_of[SIGPROF];
    spin(60 * MS);
    CHECK(ticks_of[SIGPROF] == before, "it is off");
    struct itimerval once = {{0, 0}, {0, 10000}};
    CHECK(!setitimer(ITIMER_VIRTUAL, &once, NULL), "once");
    before = ticks_of[SIGVTALRM];
    spin(150 * MS);
    CHECK(ticks_of[SIGVTALRM] <= before + 1, "once");
}

// ---- timer files ---------------------------------------------------------------------------------------------------

static int new_file(int clock, int flags) {
    int file = timerfd_create(clock, flags);
    CHECK(file >= 0, "timerfd_create");
    return file;
}
static long set_file(int file, int flags, uint64_t value, uint64_t every) {
    struct itimerspec new = spec(value, every);
    return timerfd_settime(file, flags, &new, NULL);
}
static uint64_t expiries(int file) {
    uint64_t n;
    CHECK(read(file, &n, sizeof n) == sizeof n, "read");
    return n;
}
static bool can_be_read(int file, int ms) {
    struct pollfd poll_it = {.fd = file, .events = POLLIN | POLLOUT};
    int n = poll(&poll_it, 1, ms);
    CHECK(n == 0 || (n == 1 && poll_it.revents == POLLIN), "poll: %d, %#x", n, poll_it.revents);
    return n == 1;
}

static void timer_files(void) {
    uint64_t n[2];
    struct itimerspec now, bad = spec(1, 0);
    int bad_clocks[] = {CLOCK_PROCESS_CPUTIME_ID, CLOCK_THREAD_CPUTIME_ID, CLOCK_MONOTONIC_RAW, CLOCK_TAI, 99, -1};
    for (int i = 0; i < 6; i++) ANSWERS(EINVAL, timerfd_create(bad_clocks[i], 0));
    ANSWERS(EINVAL, timerfd_create(CLOCK_MONOTONIC, 1));
    int file = new_file(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
    CHECK(fcntl(file, F_GETFD) == FD_CLOEXEC && (fcntl(file, F_GETFL) & O_NONBLOCK), "its flags");
    ANSWERS(EAGAIN, read(file, n, 8));
    ANSWERS(EINVAL, read(file, n, 7));
    ANSWERS(EINVAL, write(file, n, 8));
    CHECK(!timerfd_gettime(file, &now) && !nanos(now.it_value) && !nanos(now.it_interval), "off at first");
    ANSWERS(EFAULT, syscall(SYS_timerfd_gettime, file, BAD));
    ANSWERS(EFAULT, syscall(SYS_timerfd_settime, file, 0, BAD, NULL));
    ANSWERS(EINVAL, timerfd_settime(file, 4, &bad, NULL));
    ANSWERS(EBADF, timerfd_settime(-1, 0, &bad, NULL));
    ANSWERS(EINVAL, timerfd_settime(0, 0, &bad, NULL));
    ANSWERS(EINVAL, timerfd_gettime(0, &now));
    bad.it_value.tv_nsec = S;
    ANSWERS(EINVAL, timerfd_settime(file, 0, &bad, NULL));
    CHECK(!can_be_read(file, 0), "nothing to read");
    uint64_t start = now_ns();
    ANSWERS(0, set_file(file, 0, 10 * MS, 0));
    CHECK(!timerfd_gettime(file, &now) && nanos(now.it_value) <= 10 * MS, "the time left");
    CHECK(can_be_read(file, 5000) && now_ns() - start >= 10 * MS, "poll");
    CHECK(!timerfd_gettime(file, &now) && !nanos(now.it_value), "it has expired");
    CHECK(read(file, n, 16) == 8 && n[0] == 1, "once");
    ANSWERS(EAGAIN, read(file, n, 8));
    // Periods.
    ANSWERS(0, set_file(file, 0, 5 * MS, 10 * MS));
    usleep(67000);
    CHECK(!timerfd_gettime(file, &now) && nanos(now.it_value) > 0 && nanos(now.it_value) <= 10 * MS, "the next period");
    CHECK(can_be_read(file, 0) && (n[0] = expiries(file)) >= 7 && n[0] < 1000, "%llu periods",
        (unsigned long long)n[0]);
    CHECK(can_be_read(file, 5000) && expiries(file) >= 1, "the next one");
    // A setting forgets what was not read.
    usleep(20000);
    struct itimerspec later = spec(LATER * S, 0);
    CHECK(!timerfd_settime(file, 0, &later, &now) && nanos(now.it_interval) == 10 * MS, "the old setting");
    ANSWERS(EAGAIN, read(file, n, 8));
    CHECK(!can_be_read(file, 0), "nor ready");
    ANSWERS(0, set_file(file, TFD_TIMER_ABSTIME, 1, 0));
    CHECK(can_be_read(file, 5000) && expiries(file) == 1, "a time that has passed");
    ANSWERS(0, set_file(file, 0, 5 * MS, 5 * MS));
    ANSWERS(0, set_file(file, 0, 0, 0));
    CHECK(!can_be_read(file, 20), "it is off");
    ANSWERS(0, set_file(file, 0, 1, 1));
    CHECK(can_be_read(file, 5000) && expiries(file) >= 1 && can_be_read(file, 5000), "a period of a nanosecond");
    close(file);
}

static void *sets_it(void *arg) {
    usleep(20000);
    CHECK(!set_file(*(int *)arg, 0, 10 * MS, 0), "a set from another thread");
    return NULL;
}
static void readers_of_timer_files(void) {
    int file = new_file(CLOCK_REALTIME, 0);
    // A reader sleeps; the timer is set meanwhile.
    pthread_t thread;
    CHECK(!pthread_create(&thread, NULL, sets_it, &file), "a thread");
    uint64_t start = now_ns();
    CHECK(expiries(file) == 1 && now_ns() - start >= 25 * MS, "a reader that was asleep");
    pthread_join(thread, NULL);
    // At a time of day, and from a child, which shares it.
    ANSWERS(0, set_file(file, TFD_TIMER_ABSTIME, time_on(CLOCK_REALTIME) + 20 * MS, 0));
    pid_t child = fork();
    if (!child) _exit(expiries(file) != 1);
    CHECK(!ended(child), "a child reads it");
    fcntl(file, F_SETFL, O_NONBLOCK);
    uint64_t n;
    ANSWERS(EAGAIN, read(file, &n, 8));
    fcntl(file, F_SETFL, 0);
    // A signal ends the wait.
    handle(SIGUSR1, 0);
    child = sender(SIGUSR1);
    ANSWERS(EINTR, read(file, &n, 8));
    ended(child);
    ANSWERS(0, set_file(file, 0, 1, 0));
    usleep(5000);
    ANSWERS(EFAULT, read(file, BAD, 8));
    // Closed while it runs.
    for (int i = 0; i < 200; i++) {
        int other = new_file(CLOCK_MONOTONIC, 0);
        ANSWERS(0, set_file(other, 0, 1 + i * 300, i % 2 ? 1000 : 0));
        if (i % 3) spin(20000);
        close(other);
    }
}

static void sets_of_timer_files(void) {
    enum { FILES = 20 };
    int set = epoll_create1(0), files[FILES];
    struct epoll_event event = {.events = EPOLLIN};
    for (int i = 0; i < FILES; i++) {
        files[i] = new_file(CLOCK_MONOTONIC, TFD_NONBLOCK);
        event.data.u32 = i;
        event.events = i % 2 ? EPOLLIN : EPOLLIN | EPOLLET;
        ANSWERS(0, epoll_ctl(set, EPOLL_CTL_ADD, files[i], &event));
    }
    CHECK(epoll_wait(set, &event, 1, 20) == 0, "none is ready");
    for (int i = 0; i < FILES; i++) ANSWERS(0, set_file(files[i], 0, (20 - i) * MS, 0));
    int seen = 0;
    for (uint64_t start = now_ns(); seen < FILES && now_ns() - start < 5 * S;) {
        int n = epoll_wait(set, &event, 1, 1000);
        if (n != 1) continue;
        CHECK(expiries(files[event.data.u32]) == 1, "file %u", event.data.u32);
        seen++;
    }
    CHECK(seen == FILES && epoll_wait(set, &event, 1, 0) == 0, "%d files", seen);
    // Edges: one event each time that it expires after a read.
    struct itimerspec often = spec(5 * MS, 5 * MS);
    CHECK(!timerfd_settime(files[0], 0, &often, NULL), "often");
    for (int i = 0; i < 3; i++)
        CHECK(epoll_wait(set, &event, 1, 5000) == 1 && event.data.u32 == 0 && expiries(files[0]) >= 1, "edge %d", i);
    CHECK(epoll_wait(set, &event, 1, 5000) == 1 && epoll_wait(set, &event, 1, 30) == 0, "no edge without a read");
    CHECK(expiries(files[0]) >= 3, "but it counts");
}

static void changes_of_the_clock(void) {
    struct timespec day;
    clock_gettime(CLOCK_REALTIME, &day);
    if (clock_settime(CLOCK_REALTIME, &day)) {
        CHECK(errno == EPERM, "clock_settime");
        return;
    }
    int file = new_file(CLOCK_REALTIME, TFD_NONBLOCK), plain = new_file(CLOCK_REALTIME, TFD_NONBLOCK),
        other = new_file(CLOCK_MONOTONIC, 0);
    int flags = TFD_TIMER_ABSTIME | TFD_TIMER_CANCEL_ON_SET;
    uint64_t n, far = time_on(CLOCK_REALTIME) + 1000 * S;
    ANSWERS(0, set_file(file, flags, far, 0));
    ANSWERS(0, set_file(plain, TFD_TIMER_ABSTIME, far, 0));
    ANSWERS(0, set_file(other, flags, now_ns() + 1000 * S, 0));
    clock_gettime(CLOCK_REALTIME, &day);
    CHECK(!clock_settime(CLOCK_REALTIME, &day), "clock_settime");
    CHECK(can_be_read(file, 1000) && !can_be_read(plain, 0) && !can_be_read(other, 0), "one is notified");
    ANSWERS(ECANCELED, read(file, &n, 8));
    ANSWERS(EAGAIN, read(file, &n, 8));
    clock_gettime(CLOCK_REALTIME, &day);
    CHECK(!clock_settime(CLOCK_REALTIME, &day), "clock_settime");
    ANSWERS(ECANCELED, set_file(file, flags, far, 0));
    ANSWERS(0, set_file(file, flags, far, 0));
    ANSWERS(0, set_file(file, TFD_TIMER_ABSTIME, far, 0));
    clock_gettime(CLOCK_REALTIME, &day);
    CHECK(!clock_settime(CLOCK_REALTIME, &day), "clock_settime");
    ANSWERS(EAGAIN, read(file, &n, 8));
}

// Absolute timers follow the time of day. Only where the machine is the program's own: process 1 there.
static void timers_follow_the_clock(void) {
    if (getppid() != 1) return;
    hold_back(SIGRTMIN);
    int id = new_timer(CLOCK_REALTIME, SIGRTMIN), relative = new_timer(CLOCK_REALTIME, SIGRTMIN),
        file = new_file(CLOCK_REALTIME, 0);
    uint64_t day = time_on(CLOCK_REALTIME);
    ANSWERS(0, set(id, TIMER_ABSTIME, day + 500 * S, 0));
    ANSWERS(0, set(relative, 0, 500 * S, 0));
    ANSWERS(0, set_file(file, TFD_TIMER_ABSTIME, day + 500 * S, 0));
    struct timespec then = {day / S + 1000, 0};
    CHECK(!clock_settime(CLOCK_REALTIME, &then), "clock_settime");
    siginfo_t info;
    CHECK(await(SIGRTMIN, 5 * S, &info) && info.si_timerid == id, "the time has come");
    CHECK(can_be_read(file, 5000) && expiries(file) == 1, "for the file, too");
    CHECK(rest(relative) > 400 * S && !is_pending(SIGRTMIN), "a relative one runs on");
    then.tv_sec -= 1000;
    CHECK(!clock_settime(CLOCK_REALTIME, &then), "back again");
}

// ---- restartable sequences -----------------------------------------------------------------------------------------

struct area {
    volatile uint32_t start_cpu, cpu;
    volatile uint64_t section;
    volatile uint32_t flags, node, id, pad;
} __attribute__((aligned(32)));
static struct area area, another;
static __thread struct area own_area;
#define MARK 0x53053053u

static long rseq(void *at, unsigned len, int flags, unsigned mark) { return syscall(334, at, len, flags, mark); }

// Sections that spin, and that add to the counter of a CPU. They return 0 after the commit, 1 after an abort.
long section_spin(struct area *, uint64_t turns), section_add(struct area *, uint64_t *counters);
extern char spin_aborts[], spin_begins[], spin_commits[];
__asm__(
    ".pushsection .data\n.balign 32\n"
    "spin_section: .long 0, 0\n.quad spin_begins, spin_commits - spin_begins, spin_aborts\n"
    "add_section: .long 0, 0\n.quad add_begins, add_commits - add_begins, add_aborts\n.popsection\n"
    ".pushsection .text\n"
    ".globl section_spin\nsection_spin:\n"
    " lea spin_section(%rip), %rax\n mov %rax, 8(%rdi)\n"
    "spin_begins:\n"
    "1: dec %rsi\n jnz 1b\n"
    "spin_commits:\n"
    " movq $0, 8(%rdi)\n xor %eax, %eax\n ret\n"
    " .byte 0x0f, 0xb9, 0x3d\n .long 0x53053053\n"
    "spin_aborts:\n mov $1, %eax\n ret\n"
    ".globl section_add\nsection_add:\n"
    " lea add_section(%rip), %rax\n mov %rax, 8(%rdi)\n"
    "add_begins:\n"
    " mov (%rdi), %edx\n cmp 4(%rdi), %edx\n jne add_aborts\n shl $6, %rdx\n mov (%rsi,%rdx), %rcx\n"
    " mov $100, %r8d\n2: dec %r8d\n jnz 2b\n"
    " inc %rcx\n mov %rcx, (%rsi,%rdx)\n"
    "add_commits:\n"
    " movq $0, 8(%rdi)\n xor %eax, %eax\n ret\n"
    " .byte 0x0f, 0xb9, 0x3d\n .long 0x53053053\n"
    "add_aborts:\n movq $0, 8(%rdi)\n mov $1, %eax\n ret\n"
    ".popsection\n");

static void errors_of_rseq(void) {
    ANSWERS(EINVAL, rseq(&area, 32, 1, MARK));
    ANSWERS(EINVAL, rseq(&area, 31, 0, MARK));
    ANSWERS(EINVAL, rseq(&area, 0, 0, MARK));
    ANSWERS(EINVAL, rseq((char *)&area + 8, 32, 0, MARK));
    ANSWERS(EINVAL, rseq(&area, 32, 2, MARK));
    ANSWERS(EFAULT, rseq((void *)(1ul << 63), 32, 0, MARK));
    area.cpu = -1;
    ANSWERS(0, rseq(&area, 32, 0, MARK));
    CHECK(area.cpu == area.start_cpu && area.cpu < 1024, "it is there at once: %u %u", area.cpu, area.start_cpu);
    ANSWERS(EBUSY, rseq(&area, 32, 0, MARK));
    ANSWERS(EPERM, rseq(&area, 32, 0, MARK + 1));
    ANSWERS(EINVAL, rseq(&another, 32, 0, MARK));
    ANSWERS(EINVAL, rseq(&area, 64, 0, MARK));
    ANSWERS(EINVAL, rseq(&area, 32, 3, MARK));
    ANSWERS(EINVAL, rseq(&area, 64, 1, MARK));
    ANSWERS(EPERM, rseq(&area, 32, 1, MARK + 1));
    ANSWERS(EINVAL, rseq(&another, 32, 1, MARK));
    ANSWERS(0, rseq(&area, 32, 1, MARK));
    CHECK(area.cpu == (unsigned)-1 && area.start_cpu == 0, "no CPU any more: %u %u", area.cpu, area.start_cpu);
    ANSWERS(0, rseq(&another, 32, 0, MARK + 1));
    ANSWERS(0, rseq(&another, 32, 1, MARK + 1));
    unsigned long len = getauxval(27), align = getauxval(28);
    CHECK((!len && !align) || (len >= 20 && align == 32), "the auxiliary vector: %lu, %lu", len, align);
}

static void the_cpu_is_reported(void) {
    cpu_set_t all, one;
    cpus_of(&all);
    ANSWERS(0, rseq(&area, 32, 0, MARK));
    for (int round = 0; round < 20; round++) {
        for (unsigned cpu = 0; cpu < CPU_SETSIZE; cpu++) {
            if (!CPU_ISSET(cpu, &all)) continue;
            CPU_ZERO(&one);
            CPU_SET(cpu, &one);
            CHECK(!sched_setaffinity(0, sizeof one, &one), "to CPU %u", cpu);
            CHECK(area.cpu == cpu && area.start_cpu == cpu && area.node < 64, "CPU %u: %u %u", cpu, area.cpu,
                area.start_cpu);
            usleep(100);
            CHECK(area.cpu == cpu, "after a sleep");
        }
    }
}

static pid_t rival(int cpu) {
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(cpu, &one);
    CHECK(!sched_setaffinity(0, sizeof one, &one), "one CPU");
    pid_t child = fork();
    if (!child) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        for (;;) {}
    }
    return child;
}
static int first_cpu(void) {
    cpu_set_t all;
    cpus_of(&all);
    for (int cpu = 0;; cpu++)
        if (CPU_ISSET(cpu, &all)) return cpu;
}
static void preemption_aborts(void) {
    pid_t child = rival(first_cpu());
    ANSWERS(0, rseq(&area, 32, 0, MARK));
    int aborted = 0;
    for (uint64_t start = now_ns(); aborted < 20 && now_ns() - start < 2 * S;) {
        aborted += section_spin(&area, 30000000);
        CHECK(area.section == 0, "the section is forgotten");
    }
    CHECK(aborted == 20, "%d sections ended", aborted);
    int through = 0;
    for (int i = 0; i < 1000; i++) through += !section_spin(&area, 10);
    CHECK(through > 500, "short ones come through: %d", through);
    kill(child, SIGKILL), ended(child);
}

enum { ADDERS = 4, SUMS = 20000 };
static uint64_t counters[1024 * 8];
static atomic_long retries;
static void *adds(void *arg) {
    (void)arg;
    CHECK(!rseq(&own_area, 32, 0, MARK), "a thread registers for itself");
    for (int i = 0; i < SUMS; i++)
        while (section_add(&own_area, counters)) retries++;
    ANSWERS(0, rseq(&own_area, 32, 1, MARK));
    return NULL;
}
static void counters_of_cpus(void) {
    pthread_t threads[ADDERS];
    for (int i = 0; i < ADDERS; i++) CHECK(!pthread_create(&threads[i], NULL, adds, NULL), "a thread");
    for (int i = 0; i < ADDERS; i++) pthread_join(threads[i], NULL);
    uint64_t sum = 0;
    for (int i = 0; i < 1024; i++) sum += counters[i * 8];
    CHECK(sum == ADDERS * SUMS, "%llu sums of %d, %ld retries", (unsigned long long)sum, ADDERS * SUMS, (long)retries);
}

static volatile uint64_t interrupted_at;
static void note_address(int signal, siginfo_t *info, void *context) {
    (void)signal, (void)info;
    interrupted_at = ((ucontext_t *)context)->uc_mcontext.gregs[16 /* REG_RIP */];
}
static void signals_abort(void) {
    struct sigaction action = {.sa_sigaction = note_address, .sa_flags = SA_SIGINFO};
    CHECK(!sigaction(SIGUSR1, &action, NULL), "sigaction");
    ANSWERS(0, rseq(&area, 32, 0, MARK));
    int id = new_timer(CLOCK_MONOTONIC, SIGUSR1), aborted = 0;
    for (uint64_t start = now_ns(); aborted < 20 && now_ns() - start < 2 * S;) {
        interrupted_at = 0;
        ANSWERS(0, set(id, 0, 2 * MS, 0));
        if (!section_spin(&area, 1000000000)) continue;
        aborted++;
        // A preemption may have come first.
        while (!interrupted_at) {}
        CHECK(interrupted_at < (uint64_t)spin_begins || interrupted_at >= (uint64_t)spin_commits,
            "the handler saw %#lx", (long)interrupted_at);
    }
    CHECK(aborted == 20, "%d sections ended", aborted);
}

static void bad_section(void) {
    static uint64_t wrong[4] __attribute__((aligned(32)));
    wrong[1] = (uint64_t)spin_begins, wrong[2] = 1, wrong[3] = (uint64_t)spin_aborts + 1;
    area.section = (uint64_t)wrong;
}
static void kernel_section(void) { area.section = 0xffff800000000000ul; }
static void no_section(void) { area.section = 64; }
static void version_section(void) {
    static uint64_t wrong[4] __attribute__((aligned(32)));
    wrong[0] = 1, wrong[1] = (uint64_t)spin_begins, wrong[2] = 1, wrong[3] = (uint64_t)spin_aborts;
    area.section = (uint64_t)wrong;
}
static void inside_section(void) {
    static uint64_t wrong[4] __attribute__((aligned(32)));
    wrong[1] = (uint64_t)spin_begins, wrong[2] = (uint64_t)(spin_aborts - spin_begins) + 1,
        wrong[3] = (uint64_t)spin_aborts;
    area.section = (uint64_t)wrong;
}
static void bad_areas_end_the_program(void) {
    void (*bad[])(void) = {bad_section, kernel_section, no_section, version_section, inside_section};
    for (int i = 0; i < 5; i++) {
        pid_t child = fork();
        if (!child) {
            handle(SIGUSR1, 0);
            CHECK(!rseq(&area, 32, 0, MARK), "rseq");
            bad[i]();
            raise(SIGUSR1);
            // Where the signal had no effect, a switch has.
            for (int n = 0; n < 100; n++) usleep(100);
            _exit(0);
        }
        int status = ended(child);
        CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV, "bad area %d: %#x", i, status);
    }
    // The area's memory is gone.
    pid_t child = fork();
    if (!child) {
        void *page = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        CHECK(!rseq(page, 32, 0, MARK), "rseq");
        munmap(page, PAGE);
        for (int n = 0; n < 100; n++) usleep(100);
        _exit(0);
    }
    int status = ended(child);
    CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV, "no area: %#x", status);
}

static void *has_none(void *arg) {
    (void)arg;
    ANSWERS(EINVAL, rseq(&area, 32, 1, MARK));
    CHECK(!rseq(&own_area, 32, 0, MARK) && own_area.cpu < 1024, "its own");
    ANSWERS(0, rseq(&own_area, 32, 1, MARK));
    return NULL;
}
static void areas_of_children(void) {
    ANSWERS(0, rseq(&area, 32, 0, MARK));
    pthread_t thread;
    CHECK(!pthread_create(&thread, NULL, has_none, NULL) && !pthread_join(thread, NULL), "a thread");
    pid_t child = fork();
    if (!child) {
        ANSWERS(EBUSY, rseq(&area, 32, 0, MARK));
        CHECK(area.cpu == area.start_cpu && area.cpu < 1024, "the child's CPU");
        ANSWERS(0, rseq(&area, 32, 1, MARK));
        _exit(0);
    }
    CHECK(!ended(child), "a child inherits it");
    child = fork();
    if (!child) {
        execl(self, self, "--after-exec", "-2", NULL);
        fail("execl");
    }
    CHECK(!ended(child), "a program does not");
}

// ---- sleeps beside a busy CPU --------------------------------------------------------------------------------------

static void stay_on(int cpu) {
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(cpu, &one);
    CHECK(!sched_setaffinity(0, sizeof one, &one), "to CPU %d", cpu);
}

// A thread that spins on another CPU delays neither a timer of this one nor the processes that it makes.
static void nothing(void) {}
static void sleeps_beside_a_spinner(void) {
    pid_t spinner = fork();
    CHECK(spinner >= 0, "fork");
    if (!spinner) {
        stay_on(1);
        for (volatile long n = 0;; n++) {}
    }
    stay_on(0);
    uint64_t start = now_ns();
    for (int i = 0; i < 10; i++) {
        usleep(20000);
        CHECK(!in_child(nothing), "a child");
    }
    uint64_t took = now_ns() - start;
    kill(spinner, SIGKILL);
    ended(spinner);
    CHECK(took >= 200 * MS && took < 500 * MS, "ten sleeps of 20 ms take %llu us", (unsigned long long)took / 1000);
}

static const struct check all[] = {
    {"beside_spinner", sleeps_beside_a_spinner},
    {"timer_errors", errors_of_timers},
    {"timer_signal", a_timer_sends_its_signal},
    {"timer_periods", periods_and_overruns},
    {"timer_silent", a_timer_may_notify_of_nothing},
    {"timer_one_signal", two_timers_with_one_signal},
    {"timer_thread", a_timer_notifies_a_thread},
    {"timer_outlives", a_timer_outlives_threads},
    {"timer_charges", timers_are_charged},
    {"timer_many", many_timers},
    {"timer_races", timers_race_with_their_end},
    {"timer_fork", a_child_has_no_timers},
    {"timer_exec", exec_deletes_timers},
    {"cpu_timers", timers_on_cpu_time},
    {"cpu_intervals", interval_timers_on_cpu_time},
    {"file_calls", timer_files},
    {"file_readers", readers_of_timer_files},
    {"file_sets", sets_of_timer_files},
    {"clock_changes", changes_of_the_clock},
    {"clock_follows", timers_follow_the_clock},
    {"rseq_errors", errors_of_rseq},
    {"rseq_cpu", the_cpu_is_reported},
    {"rseq_preempted", preemption_aborts},
    {"rseq_counters", counters_of_cpus},
    {"rseq_signals", signals_abort},
    {"rseq_bad", bad_areas_end_the_program},
    {"rseq_children", areas_of_children},
};

int main(int argc, char **argv) {
    static char path[4096];
    ssize_t length = readlink("/proc/self/exe", path, sizeof path - 1);
    CHECK(length > 0, "/proc/self/exe");
    self = path;
    parse_options(argc, argv, (struct setting[]){{"--after-exec", &after_exec, NULL}, {NULL, NULL, NULL}});
    if (after_exec == -2) {
        // A program begins without a registered area.
        ANSWERS(EINVAL, rseq(&area, 32, 1, MARK));
        return 0;
    }
    if (after_exec >= 0) return begin_after_exec();
    run_checks(all, sizeof all / sizeof *all);
}
