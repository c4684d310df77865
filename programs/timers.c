// Timers by real time and by CPU time, set by setitimer and timer_create, checked one by one; the same on Linux and on Quire.
#include "checks.h"
#include <sys/syscall.h>
#include <sys/time.h>

// As the kernel has them: the C library's own run what they notify of in threads.
struct event {
    uint64_t value;
    int signal, notify, thread, unused[11];
};
enum { TO_PROCESS = 0, TO_NOBODY = 1, TO_THREAD = 4 };

static int create(clockid_t clock, const struct event *event) {
    int id = -1;
    return syscall(SYS_timer_create, clock, event, &id) ? -1 : id;
}
static int set(int id, int flags, uint64_t value, uint64_t every, struct itimerspec *old) {
    struct itimerspec new = {{every / 1000000000, every % 1000000000}, {value / 1000000000, value % 1000000000}};
    return syscall(SYS_timer_settime, id, flags, &new, old);
}
static int get(int id, struct itimerspec *now) { return syscall(SYS_timer_gettime, id, now); }
static int overrun(int id) { return syscall(SYS_timer_getoverrun, id); }
static int destroy(int id) { return syscall(SYS_timer_delete, id); }

static uint64_t ns_of(const struct timespec *time) { return time->tv_sec * 1000000000ull + time->tv_nsec; }
static uint64_t clock_ns(clockid_t clock) {
    struct timespec now;
    clock_gettime(clock, &now);
    return ns_of(&now);
}
static uint64_t cpu_ns(void) { return clock_ns(CLOCK_PROCESS_CPUTIME_ID); }

static sigset_t of_timers;
static volatile int count;
static void counts(int signal) {
    (void)signal;
    count++;
}

// Blocks the signals of timers, to wait for them.
static void block(void) {
    sigemptyset(&of_timers);
    sigaddset(&of_timers, SIGRTMIN + 2), sigaddset(&of_timers, SIGRTMIN + 3), sigaddset(&of_timers, SIGALRM);
    pthread_sigmask(SIG_BLOCK, &of_timers, NULL);
}
// The next one of them within so many milliseconds; 0: none.
static int next(siginfo_t *info, int ms) {
    struct timespec most = {ms / 1000, ms % 1000 * 1000000};
    int signal = sigtimedwait(&of_timers, info, &most);
    CHECK(signal > 0 || errno == EAGAIN, "sigtimedwait");
    return signal > 0 ? signal : 0;
}

// ---- interval timers by CPU time ---------------------------------------------------------------------------------------

static void spin_until(uint64_t cpu, int signals) {
    while (cpu_ns() < cpu && count < signals) {}
}
static void call_until(uint64_t cpu, int signals) {
    while (cpu_ns() < cpu && count < signals)
        for (int i = 0; i < 100; i++) getppid();
}

static void by_cpu_time(int which, int signal, void (*use)(uint64_t, int)) {
    struct itimerval every = {{0, 20000}, {0, 20000}}, none = {{0, 0}, {0, 0}}, left;
    sigaction(signal, &(struct sigaction){.sa_handler = counts}, NULL);
    count = 0;
    CHECK(!setitimer(which, &every, NULL), "setitimer");
    usleep(100000);
    CHECK(!count, "it runs out in a sleep");
    CHECK(!getitimer(which, &left) && left.it_interval.tv_usec == 20000 && left.it_value.tv_usec > 0, "it is set");
    uint64_t start = cpu_ns();
    use(start + 2000 * MS, 4);
    uint64_t used = cpu_ns() - start;
    CHECK(count == 4 && used > 50 * MS && used < 1000 * MS, "%d times in %llu us", count, (unsigned long long)used / 1000);
    CHECK(!setitimer(which, &none, &left) && left.it_interval.tv_usec == 20000 && left.it_value.tv_usec > 0, "what was left");
    count = 0;
    use(cpu_ns() + 60 * MS, 1);
    CHECK(!count, "it is off");
    CHECK(!getitimer(which, &left) && !left.it_interval.tv_usec && !left.it_value.tv_usec, "and says so");
}

static void user_time(void) { by_cpu_time(ITIMER_VIRTUAL, SIGVTALRM, spin_until); }
static void all_time(void) {
    by_cpu_time(ITIMER_PROF, SIGPROF, spin_until);
    by_cpu_time(ITIMER_PROF, SIGPROF, call_until);
    struct itimerval left;
    CHECK(getitimer(3, &left) == -1 && errno == EINVAL && setitimer(-1, &left, NULL) == -1 && errno == EINVAL, "no such");
}

static atomic_int stop;
static void *spins(void *arg) {
    (void)arg;
    while (!stop) {}
    return NULL;
}

// Any thread's time counts, also of those that never call the kernel.
static void time_of_threads(void) {
    struct itimerval every = {{0, 30000}, {0, 30000}}, none = {{0, 0}, {0, 0}};
    sigaction(SIGPROF, &(struct sigaction){.sa_handler = counts}, NULL);
    // Before there is a second one, and after.
    for (int late = 0; late < 2; late++) {
        pthread_t thread;
        stop = 0;
        count = 0;
        if (!late) CHECK(!setitimer(ITIMER_PROF, &every, NULL), "setitimer");
        CHECK(!pthread_create(&thread, NULL, spins, NULL), "a thread");
        if (late) CHECK(!setitimer(ITIMER_PROF, &every, NULL), "setitimer");
        uint64_t start = now_ns();
        while (count < 3 && now_ns() - start < 5000 * MS) usleep(10000);
        CHECK(count >= 3, "%d signals", count);
        stop = 1;
        pthread_join(thread, NULL);
        setitimer(ITIMER_PROF, &none, NULL);
    }
}

// ---- timer_create --------------------------------------------------------------------------------------------------------

static void once(void) {
    block();
    siginfo_t info;
    struct event event = {.value = 77, .signal = SIGRTMIN + 2};
    clockid_t clocks[] = {CLOCK_MONOTONIC, CLOCK_REALTIME, CLOCK_BOOTTIME};
    for (int i = 0; i < 3; i++) {
        int id = create(clocks[i], &event);
        CHECK(id >= 0, "timer_create");
        struct itimerspec left;
        CHECK(!get(id, &left) && !ns_of(&left.it_value), "it is not set");
        uint64_t start = now_ns();
        CHECK(!set(id, 0, 30 * MS, 0, &left) && !ns_of(&left.it_value), "timer_settime");
        CHECK(!get(id, &left) && ns_of(&left.it_value) > 0 && ns_of(&left.it_value) <= 30 * MS, "it is");
        CHECK(next(&info, 5000) == SIGRTMIN + 2 && now_ns() - start >= 30 * MS, "its signal");
        CHECK(info.si_code == SI_TIMER && info.si_value.sival_int == 77 && info.si_timerid == id, "what it says");
        CHECK(!info.si_overrun && overrun(id) == 0, "once");
        CHECK(!get(id, &left) && !ns_of(&left.it_value), "it is set no more");
        // Until a time; one that has passed; and taken back.
        start = clock_ns(clocks[i]);
        CHECK(!set(id, TIMER_ABSTIME, start + 20 * MS, 0, NULL), "timer_settime");
        CHECK(next(&info, 5000) == SIGRTMIN + 2 && clock_ns(clocks[i]) >= start + 20 * MS, "its signal");
        CHECK(!set(id, TIMER_ABSTIME, 1, 0, NULL) && next(&info, 5000) == SIGRTMIN + 2, "a time that has passed");
        CHECK(!set(id, 0, 10 * MS, 0, NULL) && !set(id, 0, 0, 0, &left) && ns_of(&left.it_value) > 0, "taken back");
        CHECK(!next(&info, 40), "no signal");
        CHECK(!destroy(id) && destroy(id) == -1 && errno == EINVAL && get(id, &left) == -1 && errno == EINVAL, "gone");
    }
    // Without an event: SIGALRM, with the id.
    int id = create(CLOCK_MONOTONIC, NULL);
    CHECK(id >= 0 && !set(id, 0, MS, 0, NULL), "a timer");
    CHECK(next(&info, 5000) == SIGALRM && info.si_value.sival_int == id && info.si_timerid == id, "its signal");
}

static void again_and_again(void) {
    block();
    siginfo_t info;
    struct event event = {.value = 5, .signal = SIGRTMIN + 2};
    int id = create(CLOCK_MONOTONIC, &event);
    uint64_t start = now_ns();
    CHECK(id >= 0 && !set(id, 0, 5 * MS, 5 * MS, NULL), "a timer");
    uint64_t told = 0;
    for (int i = 0; i < 5; i++) {
        CHECK(next(&info, 5000) == SIGRTMIN + 2 && overrun(id) == info.si_overrun, "its signal");
        told += 1 + info.si_overrun;
        CHECK(now_ns() - start >= told * 5 * MS, "not early");
    }
    // While nobody looks it is one signal, which says how often.
    usleep(200000);
    CHECK(next(&info, 5000) == SIGRTMIN + 2 && info.si_overrun >= 30, "%d in 200 ms", info.si_overrun);
    told += 1 + info.si_overrun;
    CHECK(now_ns() - start >= told * 5 * MS && overrun(id) == info.si_overrun, "all of them");
    // A period far too short for anybody: the program goes on.
    CHECK(!set(id, 0, 1, 1, NULL), "a period of a nanosecond");
    for (start = now_ns(); now_ns() - start < 50 * MS;) {}
    CHECK(next(&info, 5000) == SIGRTMIN + 2 && info.si_overrun > 0, "its signal");
    CHECK(!destroy(id), "timer_delete");
}

// Two timers with one signal each have their own.
static void two_of_one_signal(void) {
    block();
    siginfo_t info;
    int ids[2], seen = 0;
    for (int i = 0; i < 2; i++) {
        ids[i] = create(CLOCK_MONOTONIC, &(struct event){.value = 10 + i, .signal = SIGALRM});
        CHECK(ids[i] >= 0 && !set(ids[i], 0, MS, 0, NULL), "a timer");
    }
    usleep(30000);
    for (int i = 0; i < 2; i++) {
        CHECK(next(&info, 5000) == SIGALRM && info.si_code == SI_TIMER, "its signal");
        seen |= 1 << (info.si_value.sival_int - 10);
    }
    CHECK(seen == 3 && !next(&info, 20), "one of each");
}

static void nobody_is_told(void) {
    int id = create(CLOCK_MONOTONIC, &(struct event){.notify = TO_NOBODY, .signal = 999});
    struct itimerspec left;
    CHECK(id >= 0 && !set(id, 0, 20 * MS, 30 * MS, NULL), "a timer");
    for (int i = 0; i < 4; i++) {
        usleep(25000);
        CHECK(!get(id, &left) && ns_of(&left.it_value) > 0 && ns_of(&left.it_value) <= 30 * MS, "it keeps its beat");
    }
    CHECK(!set(id, 0, MS, 0, NULL), "once");
    usleep(10000);
    CHECK(!get(id, &left) && !ns_of(&left.it_value), "it has run out");
}

static atomic_int thread_id, thread_got;
static void *waits_for_its_own(void *arg) {
    siginfo_t info;
    (void)arg;
    thread_id = syscall(SYS_gettid);
    CHECK(next(&info, 5000) == SIGRTMIN + 3 && info.si_value.sival_int == 9, "its signal");
    thread_got = 1;
    return NULL;
}

static void one_thread_is_told(void) {
    block();
    pthread_t thread;
    CHECK(!pthread_create(&thread, NULL, waits_for_its_own, NULL), "a thread");
    while (!thread_id) usleep(1000);
    int id = create(CLOCK_MONOTONIC, &(struct event){.value = 9, .signal = SIGRTMIN + 3, .notify = TO_THREAD, .thread = thread_id});
    CHECK(id >= 0 && !set(id, 0, 20 * MS, 0, NULL), "a timer");
    siginfo_t info;
    CHECK(!next(&info, 100) && thread_got, "it is not for others");
    pthread_join(thread, NULL);
    // It has gone: nobody is told, and nothing breaks.
    CHECK(!set(id, 0, MS, 0, NULL) && !next(&info, 30), "nobody");
    CHECK(create(CLOCK_MONOTONIC, &(struct event){.signal = SIGRTMIN + 3, .notify = TO_THREAD, .thread = getppid()}) == -1
              && errno == EINVAL, "a thread of another process");
}

static void cpu_time(void) {
    block();
    siginfo_t info;
    int id = create(CLOCK_PROCESS_CPUTIME_ID, &(struct event){.value = 3, .signal = SIGRTMIN + 2});
    struct itimerspec left;
    CHECK(id >= 0 && !set(id, 0, 40 * MS, 0, NULL), "a timer");
    CHECK(!next(&info, 150), "it runs out in a sleep");
    CHECK(!get(id, &left) && ns_of(&left.it_value) > 0 && ns_of(&left.it_value) <= 40 * MS, "it is set");
    uint64_t start = cpu_ns();
    while (!next(&info, 0) && cpu_ns() - start < 2000 * MS) {}
    uint64_t used = cpu_ns() - start;
    CHECK(used > 20 * MS && used < 500 * MS && info.si_value.sival_int == 3, "after %llu us", (unsigned long long)used / 1000);
    // Until a time of that clock.
    start = cpu_ns();
    CHECK(!set(id, TIMER_ABSTIME, start + 30 * MS, 0, NULL), "timer_settime");
    while (!next(&info, 0) && cpu_ns() - start < 2000 * MS) {}
    used = cpu_ns() - start;
    CHECK(used > 15 * MS && used < 500 * MS, "after %llu us", (unsigned long long)used / 1000);
}

static void wrong_arguments(void) {
    struct event right = {.signal = SIGRTMIN + 2}, event = right;
    struct itimerspec time = {{0, 0}, {0, 1000000000}};
    CHECK(create(99, &right) == -1 && errno == EINVAL, "clock");
    event.signal = 65;
    CHECK(create(CLOCK_MONOTONIC, &event) == -1 && errno == EINVAL, "signal");
    event = right, event.notify = 9;
    CHECK(create(CLOCK_MONOTONIC, &event) == -1 && errno == EINVAL, "notify");
    CHECK(create(CLOCK_MONOTONIC, (void *)8) == -1 && errno == EFAULT, "event");
    CHECK(syscall(SYS_timer_create, CLOCK_MONOTONIC, &right, (void *)8) == -1 && errno == EFAULT, "id");
    int id = create(CLOCK_MONOTONIC, &right);
    CHECK(id >= 0 && syscall(SYS_timer_settime, id, 0, &time, NULL) == -1 && errno == EINVAL, "time");
    CHECK(syscall(SYS_timer_settime, id, 0, NULL, NULL) == -1 && errno == EINVAL, "no time");
    CHECK(set(id + 1000, 0, 1, 0, NULL) == -1 && errno == EINVAL && overrun(id + 1000) == -1 && errno == EINVAL, "no such");
    int many[300];
    for (int i = 0; i < 300; i++) CHECK((many[i] = create(CLOCK_MONOTONIC, &right)) >= 0, "timer %d", i);
    signal(SIGRTMIN + 2, SIG_IGN);
    for (int i = 0; i < 300; i++) CHECK(!set(many[i], 0, MS + i * 1000, 0, NULL), "timer %d", i);
    usleep(20000);
    for (int i = 0; i < 300; i++) CHECK(!destroy(many[i]), "timer %d", i);
}

static const char *self;
static void who_inherits(void) {
    int id = create(CLOCK_MONOTONIC, &(struct event){.signal = SIGRTMIN + 2});
    struct itimerspec left;
    struct itimerval real = {{0, 0}, {500, 0}};
    CHECK(id >= 0 && !set(id, 0, 100000 * MS, 0, NULL) && !setitimer(ITIMER_REAL, &real, NULL), "timers");
    pid_t child = fork();
    if (!child) {
        struct itimerval none;
        CHECK(get(id, &left) == -1 && errno == EINVAL, "a child has none");
        CHECK(!getitimer(ITIMER_REAL, &none) && !none.it_value.tv_sec, "nor the other kind");
        _exit(0);
    }
    CHECK(ended(child) == 0, "the child");
    char number[16];
    snprintf(number, sizeof number, "%d", id);
    execl(self, self, "--after-exec", number, NULL);
    fail("exec");
}
static int after_exec(int id) {
    struct itimerspec left;
    struct itimerval real;
    CHECK(get(id, &left) == -1 && errno == EINVAL, "another program has none");
    CHECK(!getitimer(ITIMER_REAL, &real) && real.it_value.tv_sec > 400, "but the other kind");
    return 0;
}

static const struct check checks[] = {
    {"user_time", user_time},
    {"all_time", all_time},
    {"time_of_threads", time_of_threads},
    {"once", once},
    {"again_and_again", again_and_again},
    {"two_of_one_signal", two_of_one_signal},
    {"nobody_is_told", nobody_is_told},
    {"one_thread_is_told", one_thread_is_told},
    {"cpu_time", cpu_time},
    {"wrong_arguments", wrong_arguments},
    {"who_inherits", who_inherits},
};

int main(int argc, char **argv) {
    if (argc == 3 && !strcmp(argv[1], "--after-exec")) return after_exec(atoi(argv[2]));
    static char path[4096];
    CHECK(readlink("/proc/self/exe", path, sizeof path - 1) > 0, "/proc/self/exe");
    self = path;
    parse_options(argc, argv, NULL);
    run_checks(checks, sizeof checks / sizeof *checks);
    return 0;
}
