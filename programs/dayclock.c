// Waits until a time of day follow the clock when it is set. The program sets the clock of the whole machine, and must
// not run on a machine in use.
#define _GNU_SOURCE
#include "checks.h"
#include <mqueue.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/epoll.h>
#include <sys/syscall.h>
#include <sys/timex.h>
#include <time.h>

#define S 1000000000ull
#define FAR 1000 // seconds

enum { WAIT_BITSET = 9, LOCK_PI = 6, UNLOCK_PI = 7, WAIT_REQUEUE_PI = 11, BY_DAY = 256, WAITV = 449 };

static uint64_t nanos(struct timespec t) { return t.tv_sec * S + t.tv_nsec; }
static struct timespec spec(uint64_t nanos) { return (struct timespec){nanos / S, nanos % S}; }
static uint64_t time_on(int clock) {
    struct timespec t;
    CHECK(!clock_gettime(clock, &t), "clock_gettime");
    return nanos(t);
}
static void move_clock(long seconds) {
    struct timespec day;
    CHECK(!clock_gettime(CLOCK_REALTIME, &day), "clock_gettime");
    day.tv_sec += seconds;
    CHECK(!clock_settime(CLOCK_REALTIME, &day), "clock_settime");
}

// ---- kinds of waits: each returns 0, or the error that ended it ----------------------------------------------------

static unsigned int words[4], owned;
static mqd_t empty, full;
static char message[8];

static int error_of(long result) { return result < 0 ? errno : 0; }
static int sleeps(struct timespec *until) { return clock_nanosleep(CLOCK_REALTIME, TIMER_ABSTIME, until, NULL); }
static int sleeps_in_tai(struct timespec *until) { return clock_nanosleep(CLOCK_TAI, TIMER_ABSTIME, until, NULL); }
static int waits_for_word(struct timespec *until) {
    return error_of(syscall(SYS_futex, &words[0], WAIT_BITSET | BY_DAY, 0, until, NULL, 1));
}
static int waits_for_words(struct timespec *until) {
    struct {
        uint64_t value, at;
        uint32_t flags, zero;
    } all[2] = {{0, (uintptr_t)&words[1], 2, 0}, {0, (uintptr_t)&words[2], 2, 0}};
    return error_of(syscall(WAITV, all, 2, 0, until, CLOCK_REALTIME));
}
static int waits_for_lock(struct timespec *until) {
    return error_of(syscall(SYS_futex, &owned, LOCK_PI, 0, until, NULL, 0));
}
static int waits_to_be_moved(struct timespec *until) {
    return error_of(syscall(SYS_futex, &words[3], WAIT_REQUEUE_PI | BY_DAY, 0, until, &owned, 0));
}
static int receives(struct timespec *until) {
    return error_of(mq_timedreceive(empty, message, sizeof message, NULL, until));
}
static int sends(struct timespec *until) { return error_of(mq_timedsend(full, message, sizeof message, 0, until)); }

static const struct kind {
    const char *name;
    int (*wait)(struct timespec *);
    int passed; // the error at the deadline
} kinds[] = {
    {"clock_nanosleep", sleeps, 0},
    {"clock_nanosleep, TAI", sleeps_in_tai, 0},
    {"FUTEX_WAIT_BITSET", waits_for_word, ETIMEDOUT},
    {"futex_waitv", waits_for_words, ETIMEDOUT},
    {"FUTEX_LOCK_PI", waits_for_lock, ETIMEDOUT},
    {"FUTEX_WAIT_REQUEUE_PI", waits_to_be_moved, ETIMEDOUT},
    {"mq_timedreceive", receives, ETIMEDOUT},
    {"mq_timedsend", sends, ETIMEDOUT},
};
enum { KINDS = sizeof kinds / sizeof *kinds };

static mqd_t queue(const char *name) {
    struct mq_attr attributes = {.mq_maxmsg = 1, .mq_msgsize = sizeof message};
    mqd_t queue = mq_open(name, O_CREAT | O_EXCL | O_RDWR, 0600, &attributes);
    CHECK(queue >= 0 && !mq_unlink(name), "mq_open %s", name);
    return queue;
}

static void prepare(void) {
    empty = queue("/empty"), full = queue("/full");
    CHECK(!mq_send(full, message, sizeof message, 0), "mq_send");
    CHECK(!syscall(SYS_futex, &owned, LOCK_PI, 0, NULL, NULL, 0), "the lock");
}

// ---- threads that wait ---------------------------------------------------------------------------------------------

struct waiter {
    pthread_t thread;
    const struct kind *kind;
    uint64_t until;
    atomic_int tid, done;
    int error;
};

static void *wait_as_asked(void *arg) {
    struct waiter *me = arg;
    struct timespec until = spec(me->until);
    me->tid = syscall(SYS_gettid);
    me->error = me->kind->wait(&until);
    me->done = 1;
    return NULL;
}

static bool is_asleep(int tid) {
    char path[64];
    snprintf(path, sizeof path, "/proc/self/task/%d/stat", tid);
    return state_in(path) == 'S';
}

// Starts a thread of each kind, and returns when all sleep.
static void start(struct waiter *all, uint64_t until) {
    for (int i = 0; i < KINDS; i++) {
        all[i] = (struct waiter){.kind = &kinds[i], .until = until};
        CHECK(!pthread_create(&all[i].thread, NULL, wait_as_asked, &all[i]), "a thread");
    }
    for (int i = 0; i < KINDS; i++)
        while (!all[i].tid || !(is_asleep(all[i].tid) || all[i].done)) sched_yield();
}

static void join(struct waiter *all) {
    for (int i = 0; i < KINDS; i++) {
        CHECK(!pthread_join(all[i].thread, NULL), "join");
        CHECK(all[i].error == all[i].kind->passed, "%s ends with %d", all[i].kind->name, all[i].error);
    }
}

static int none_is_done(struct waiter *all) {
    for (int i = 0; i < KINDS; i++) CHECK(!all[i].done, "%s ended early, with %d", all[i].kind->name, all[i].error);
    return 1;
}

// ---- checks --------------------------------------------------------------------------------------------------------

static void a_clock_that_is_set_forward_ends_waits(void) {
    prepare();
    struct waiter all[KINDS];
    start(all, time_on(CLOCK_REALTIME) + FAR / 2 * S);
    // A setting that changes little ends none.
    for (int i = 0; i < 3; i++) move_clock(0), move_clock(1);
    short_sleep();
    none_is_done(all);
    move_clock(FAR);
    join(all);
    move_clock(-FAR - 3);
}

static void a_clock_that_is_set_back_makes_waits_longer(void) {
    prepare();
    struct waiter all[KINDS];
    uint64_t ahead = 2 * S;
    for (;; ahead *= 2) {
        uint64_t began = now_ns();
        start(all, time_on(CLOCK_REALTIME) + ahead);
        move_clock(-FAR);
        if (now_ns() - began < ahead) break;
        // Too slow: some have ended before.
        move_clock(FAR);
        join(all);
    }
    usleep(ahead / 1000 + 300000);
    none_is_done(all);
    move_clock(FAR);
    join(all);
}

// The thread's earlier wait by the time of day has no part in its next call.
static void wait_by_day(void) {
    struct timespec past = {1, 0};
    CHECK(!sleeps(&past), "clock_nanosleep");
}
// The sleeper's old deadline passes before it runs again.
static void a_late_sleeper_does_not_end_early(void) {
    prepare();
    cpu_set_t first;
    CPU_ZERO(&first);
    CPU_SET(0, &first);
    CHECK(!sched_setaffinity(0, sizeof first, &first), "sched_setaffinity");
    struct waiter all[KINDS];
    uint64_t end = now_ns() + 300 * MS;
    start(all, time_on(CLOCK_REALTIME) + 300 * MS);
    struct sched_param urgent = {.sched_priority = 10}, usual = {0};
    CHECK(!syscall(SYS_sched_setscheduler, 0, SCHED_FIFO, &urgent), "SCHED_FIFO");
    move_clock(-FAR);
    CHECK(now_ns() < end, "too slow");
    while (now_ns() < end + 50 * MS) {}
    CHECK(!syscall(SYS_sched_setscheduler, 0, SCHED_OTHER, &usual), "SCHED_OTHER");
    usleep(300000);
    none_is_done(all);
    move_clock(FAR);
    join(all);
}

static void *polls(void *epoll) {
    struct epoll_event event;
    wait_by_day();
    uint64_t began = now_ns();
    ANSWERS(0, epoll_wait(*(int *)epoll, &event, 1, 700));
    CHECK(now_ns() - began >= 700 * MS, "epoll_wait was early");
    return NULL;
}
static void *waits_since_boot(void *word) {
    wait_by_day();
    uint64_t end = now_ns() + 700 * MS;
    struct timespec until = spec(end);
    ANSWERS(ETIMEDOUT, syscall(SYS_futex, word, WAIT_BITSET, 0, &until, NULL, 1));
    CHECK(now_ns() >= end, "a wait since boot was early");
    return NULL;
}
static void *sleeps_for_a_while(void *nothing) {
    wait_by_day();
    struct timespec time = spec(700 * MS);
    uint64_t began = now_ns();
    ANSWERS(0, nanosleep(&time, NULL));
    CHECK(now_ns() - began >= 700 * MS, "nanosleep was early");
    return nothing;
}

static void other_waits_do_not_notice(void) {
    int epoll = epoll_create1(0), word = 0;
    CHECK(epoll >= 0, "epoll_create1");
    pthread_t threads[3];
    CHECK(!pthread_create(&threads[0], NULL, polls, &epoll), "a thread");
    CHECK(!pthread_create(&threads[1], NULL, waits_since_boot, &word), "a thread");
    CHECK(!pthread_create(&threads[2], NULL, sleeps_for_a_while, NULL), "a thread");
    for (uint64_t end = now_ns() + 600 * MS; now_ns() < end; usleep(1000)) move_clock(FAR), move_clock(-FAR);
    for (int i = 0; i < 3; i++) CHECK(!pthread_join(threads[i], NULL), "join");
}

static void signals_end_waits_as_ever(void) {
    handle(SIGUSR1, SA_RESTART);
    struct timespec until = spec(time_on(CLOCK_REALTIME) + FAR * S);
    int (*const interrupted[])(struct timespec *) = {sleeps, waits_for_word};
    for (int i = 0; i < 2; i++) {
        caught = 0;
        pid_t child = sender(SIGUSR1);
        CHECK(interrupted[i](&until) == EINTR && caught == SIGUSR1, "a handler ends wait %d", i);
        CHECK(!ended(child), "the sender");
    }
    // A stop does not, and the clock may be set meanwhile.
    pid_t child = fork();
    CHECK(child >= 0, "fork");
    if (!child) _exit(waits_for_word(&until) != ETIMEDOUT);
    until_asleep(child);
    int status;
    CHECK(!kill(child, SIGSTOP) && waitpid(child, &status, WUNTRACED) == child && WIFSTOPPED(status), "a stop");
    move_clock(2 * FAR);
    CHECK(!kill(child, SIGCONT) && !ended(child), "it has timed out");
    move_clock(-2 * FAR);
}

static atomic_int stopped;

static void *waits_often(void *arg) {
    const struct kind *kind = arg;
    int end;
    do {
        end = stopped;
        struct timespec until = spec(time_on(CLOCK_REALTIME) + 100000);
        int error = kind->wait(&until);
        CHECK(error == kind->passed, "%s ends with %d", kind->name, error);
    } while (!end);
    return NULL;
}

// A wait that misses a setting would not end: the last one is forward.
static void a_clock_that_is_set_often(void) {
    prepare();
    pthread_t threads[KINDS];
    for (int i = 0; i < KINDS; i++)
        CHECK(!pthread_create(&threads[i], NULL, waits_often, (void *)&kinds[i]), "a thread");
    uint64_t end = now_ns() + options.seconds * S;
    do {
        move_clock(-FAR);
        if (rand() % 2) sched_yield();
        move_clock(FAR);
        if (rand() % 4 == 0) usleep(rand() % 500);
    } while (now_ns() < end);
    stopped = 1;
    for (int i = 0; i < KINDS; i++) CHECK(!pthread_join(threads[i], NULL), "join");
}

// ---- adjustments ---------------------------------------------------------------------------------------------------

// Adjusts the clock with `modes`, and returns its state.
static int adjust(struct timex *t, unsigned modes) {
    t->modes = modes;
    int state = syscall(SYS_adjtimex, t);
    CHECK(state >= 0, "adjtimex %#x: errno %d", modes, errno);
    return state;
}

static void look_fails(int error, struct timex t, unsigned modes) {
    t.modes = modes;
    ANSWERS(error, syscall(SYS_adjtimex, &t));
    ANSWERS(error, syscall(SYS_clock_adjtime, CLOCK_REALTIME, &t));
}

enum { MOST_ERROR = 16000000 };

static void values_of_the_clock(void) {
    struct timex t = {0};
    move_clock(0);
    CHECK(adjust(&t, 0) == TIME_ERROR && t.status & STA_UNSYNC, "state with status %#x", t.status);
    CHECK(t.maxerror == MOST_ERROR && t.esterror == MOST_ERROR && t.tick == 10000, "errors and tick");
    CHECK(t.tolerance == 32768000 && t.precision == 1, "tolerance and precision");
    CHECK(!t.offset && !t.freq && !t.tai && !t.ppsfreq && !t.stbcnt, "zeroes");
    uint64_t now = time_on(CLOCK_REALTIME), shown = t.time.tv_sec * S + t.time.tv_usec * 1000;
    CHECK(shown <= now && now - shown < 60 * S, "%llu, not %llu", (unsigned long long)shown, (unsigned long long)now);
    adjust(&t, ADJ_NANO);
    CHECK(t.status & STA_NANO, "status %#x", t.status);
    adjust(&t, ADJ_MICRO);
    CHECK(!(t.status & STA_NANO), "status %#x", t.status);
    // The present values are taken.
    adjust(&t, ADJ_OFFSET | ADJ_FREQUENCY | ADJ_MAXERROR | ADJ_ESTERROR | ADJ_STATUS | ADJ_TICK);
    move_clock(0);
    CHECK(adjust(&t, 0) == TIME_ERROR && t.status == STA_UNSYNC, "state with status %#x", t.status);
    CHECK(t.maxerror == MOST_ERROR && t.esterror == MOST_ERROR, "errors");
}

static void adjustments_are_checked(void) {
    struct timex t = {0};
    ANSWERS(EFAULT, syscall(SYS_adjtimex, NULL));
    ANSWERS(EFAULT, syscall(SYS_clock_adjtime, 99, NULL));
    ANSWERS(EINVAL, syscall(SYS_clock_adjtime, 99, &t));
    ANSWERS(EINVAL, syscall(SYS_clock_adjtime, 10, &t));
    ANSWERS(EOPNOTSUPP, syscall(SYS_clock_adjtime, CLOCK_MONOTONIC, &t));
    ANSWERS(EOPNOTSUPP, syscall(SYS_clock_adjtime, CLOCK_TAI, &t));
    t.tick = 8999;
    look_fails(EINVAL, t, ADJ_TICK);
    t.tick = 11001;
    look_fails(EINVAL, t, ADJ_TICK);
    look_fails(EINVAL, t, 0x8000);
    t.time.tv_usec = 1000000;
    look_fails(EINVAL, t, ADJ_SETOFFSET);
    t.time.tv_usec = -1;
    look_fails(EINVAL, t, ADJ_SETOFFSET | ADJ_NANO);
    t.time.tv_usec = 0, t.time.tv_sec = -(time_t)(time_on(CLOCK_REALTIME) / S) - 5;
    look_fails(EINVAL, t, ADJ_SETOFFSET);
    t.time.tv_sec = 1ll << 62;
    look_fails(EINVAL, t, ADJ_SETOFFSET);
    CHECK(!setuid(1000), "setuid");
    look_fails(EPERM, t, ADJ_STATUS);
    look_fails(EPERM, t, ADJ_SETOFFSET);
    look_fails(EPERM, t, ADJ_OFFSET_SINGLESHOT);
    CHECK(adjust(&t, ADJ_OFFSET_SS_READ) >= 0 && !t.offset && adjust(&t, 0) >= 0, "a look");
}

// Steps the clock by `seconds` and a fraction on top, and expects that it moved so far.
static void step(long seconds, long fraction, unsigned modes) {
    struct timex t = {.time = {seconds, fraction}};
    long unit = modes & ADJ_NANO ? 1 : 1000;
    long long before = time_on(CLOCK_REALTIME) - time_on(CLOCK_MONOTONIC);
    adjust(&t, ADJ_SETOFFSET | modes);
    long long moved = time_on(CLOCK_REALTIME) - time_on(CLOCK_MONOTONIC) - before,
        wanted = seconds * (long long)S + fraction * unit;
    CHECK(llabs(moved - wanted) < (long long)(2 * S), "by %lld, not %lld", moved, wanted);
}

static void steps_of_the_clock_end_waits(void) {
    prepare();
    struct waiter all[KINDS];
    uint64_t now = time_on(CLOCK_REALTIME);
    start(all, now + FAR * S);
    step(-FAR, 500000, ADJ_MICRO);
    step(FAR / 2, 999999999, ADJ_NANO);
    CHECK(none_is_done(all), "early");
    step(2 * FAR, 0, ADJ_MICRO);
    join(all);
    move_clock(-3 * FAR / 2);
}

int main(int argc, char **argv) {
    parse_options(argc, argv, NULL);
    static const struct check checks[] = {
        {"forward", a_clock_that_is_set_forward_ends_waits},
        {"back", a_clock_that_is_set_back_makes_waits_longer},
        {"late", a_late_sleeper_does_not_end_early},
        {"others", other_waits_do_not_notice},
        {"signals", signals_end_waits_as_ever},
        {"often", a_clock_that_is_set_often},
        {"values", values_of_the_clock},
        {"adjustments", adjustments_are_checked},
        {"steps", steps_of_the_clock_end_waits},
    };
    run_checks(checks, sizeof checks / sizeof *checks);
    return 0;
}
