// Futexes with priority inheritance, checked one by one; the same on Linux and on Quire.
//
//   --only NAME   only checks whose name starts so
//
// The last check measures a priority inversion. A thread at nice 19 owns a lock, sixteen threads at nice 0 keep its CPU
// busy, and an urgent thread waits. The urgent thread has SCHED_FIFO where the kernel has that class (Linux lets
// nothing be inherited by nice values), else nice -10.
#include "checks.h"
#include <limits.h>
#include <sys/syscall.h>

// musl brings no linux/futex.h.
enum {
    FUTEX_WAIT = 0,
    FUTEX_WAKE = 1,
    FUTEX_REQUEUE = 3,
    FUTEX_LOCK_PI = 6,
    FUTEX_UNLOCK_PI = 7,
    FUTEX_TRYLOCK_PI = 8,
    FUTEX_WAIT_REQUEUE_PI = 11,
    FUTEX_CMP_REQUEUE_PI = 12,
    FUTEX_LOCK_PI2 = 13,
    PRIVATE = 128,
    REALTIME = 256,
};
#define WAITERS 0x80000000u
#define OWNER_DIED 0x40000000u
#define TID 0x3fffffffu

typedef _Atomic uint32_t word;

static long futex(word *at, int operation, unsigned value, const void *timeout, void *other, unsigned last) {
    return syscall(SYS_futex, at, operation, value, timeout, other, last);
}
static uint32_t self(void) { return syscall(SYS_gettid); }
static int kind = PRIVATE;

static bool take_free(word *lock) {
    uint32_t free = 0;
    return atomic_compare_exchange_strong(lock, &free, self());
}
static void lock_pi(word *lock) {
    if (!take_free(lock)) CHECK(!futex(lock, FUTEX_LOCK_PI | kind, 0, NULL, NULL, 0), "lock");
    CHECK((*lock & TID) == self(), "the word %#x names another owner", *lock);
}
static void unlock_pi(word *lock) {
    uint32_t mine = self();
    if (!atomic_compare_exchange_strong(lock, &mine, 0))
        CHECK(!futex(lock, FUTEX_UNLOCK_PI | kind, 0, NULL, NULL, 0), "unlock");
}
static struct timespec in(clockid_t clock, int ms) {
    struct timespec t;
    clock_gettime(clock, &t);
    t.tv_nsec += ms * 1000000l;
    for (; t.tv_nsec >= 1000000000; t.tv_nsec -= 1000000000) t.tv_sec++;
    return t;
}
static void until(word *at, uint32_t bits, uint32_t value) {
    while ((*at & bits) != value) usleep(1000);
}
static pthread_t begin(void *(*run)(void *), void *arg) {
    pthread_t thread;
    CHECK(!pthread_create(&thread, NULL, run, arg), "a thread");
    return thread;
}

// ---- words and errors ----------------------------------------------------------------------------------------------

static word lock, other_lock;
static word steps;

static void *tries(void *arg) {
    (void)arg;
    ANSWERS(EAGAIN, futex(&lock, FUTEX_TRYLOCK_PI | kind, 0, NULL, NULL, 0));
    ANSWERS(EPERM, futex(&lock, FUTEX_UNLOCK_PI | kind, 0, NULL, NULL, 0));
    return NULL;
}
static void *ends_at_once(void *arg) {
    *(word *)arg = self();
    return NULL;
}
static void words_and_errors(void) {
    ANSWERS(0, futex(&lock, FUTEX_LOCK_PI | kind, 0, NULL, NULL, 0));
    CHECK(lock == self(), "the word of a lock without waiters is %#x", lock);
    ANSWERS(EDEADLK, futex(&lock, FUTEX_LOCK_PI | kind, 0, NULL, NULL, 0));
    ANSWERS(EDEADLK, futex(&lock, FUTEX_TRYLOCK_PI | kind, 0, NULL, NULL, 0));
    pthread_join(begin(tries, NULL), NULL);
    CHECK(lock == (self() | WAITERS), "after a try of another thread: %#x", lock);
    ANSWERS(0, futex(&lock, FUTEX_UNLOCK_PI | kind, 0, NULL, NULL, 0));
    CHECK(lock == 0, "the word of a free lock is %#x", lock);
    ANSWERS(0, futex(&lock, FUTEX_TRYLOCK_PI | kind, 0, NULL, NULL, 0));
    ANSWERS(0, futex(&lock, FUTEX_UNLOCK_PI | kind, 0, NULL, NULL, 0));
    ANSWERS(EPERM, futex(&lock, FUTEX_UNLOCK_PI | kind, 0, NULL, NULL, 0));
    // The owner does not exist.
    word gone;
    pthread_join(begin(ends_at_once, &gone), NULL);
    while (!syscall(SYS_tgkill, getpid(), gone, 0)) usleep(1000);
    lock = gone;
    ANSWERS(ESRCH, futex(&lock, FUTEX_LOCK_PI | kind, 0, NULL, NULL, 0));
    CHECK((lock & TID) == gone, "the word %#x", lock);
    // A free lock whose last owner died.
    lock = OWNER_DIED;
    ANSWERS(0, futex(&lock, FUTEX_LOCK_PI | kind, 0, NULL, NULL, 0));
    CHECK(lock == (OWNER_DIED | self()), "the word %#x", lock);
    lock = 0;
    // Bad addresses, clocks and times.
    ANSWERS(EINVAL, futex((word *)2, FUTEX_LOCK_PI | kind, 0, NULL, NULL, 0));
    ANSWERS(EFAULT, futex((word *)4, FUTEX_LOCK_PI | kind, 0, NULL, NULL, 0));
    ANSWERS(EFAULT, futex((word *)4, FUTEX_UNLOCK_PI | kind, 0, NULL, NULL, 0));
    ANSWERS(EFAULT, futex((word *)4, FUTEX_TRYLOCK_PI | kind, 0, NULL, NULL, 0));
    ANSWERS(ENOSYS, futex(&lock, FUTEX_LOCK_PI | REALTIME | kind, 0, NULL, NULL, 0));
    ANSWERS(ENOSYS, futex(&lock, FUTEX_WAIT | REALTIME | kind, 0, NULL, NULL, 0));
    ANSWERS(EINVAL, futex(&lock, FUTEX_LOCK_PI | kind, 0, &(struct timespec){0, 1000000000}, NULL, 0));
    ANSWERS(EFAULT, futex(&lock, FUTEX_LOCK_PI | kind, 0, (void *)8, NULL, 0));
    word *read_only = mmap(NULL, PAGE, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    ANSWERS(EFAULT, futex(read_only, FUTEX_LOCK_PI | kind, 0, NULL, NULL, 0));
}

static void *waits_plainly(void *arg) {
    (void)arg;
    struct timespec soon = {5, 0};
    steps = 1;
    CHECK(!futex(&lock, FUTEX_WAIT | kind, lock, &soon, NULL, 0), "a plain wait");
    return NULL;
}
static void *takes_and_leaves(void *arg) {
    lock_pi(arg);
    steps++;
    unlock_pi(arg);
    return NULL;
}
// Plain operations refuse a word with waiters for a lock, and the other way round.
static void plain_waiters_are_refused(void) {
    lock = self();
    pthread_t plain = begin(waits_plainly, NULL);
    until(&steps, ~0u, 1);
    until_asleep(0);
    ANSWERS(EINVAL, futex(&lock, FUTEX_UNLOCK_PI | kind, 0, NULL, NULL, 0));
    CHECK(futex(&lock, FUTEX_WAKE | kind, 1, NULL, NULL, 0) == 1, "the plain waiter");
    pthread_join(plain, NULL);
    pthread_t waiter = begin(takes_and_leaves, &lock);
    until(&lock, WAITERS, WAITERS);
    until_asleep(0);
    ANSWERS(EINVAL, futex(&lock, FUTEX_WAKE | kind, 1, NULL, NULL, 0));
    ANSWERS(EINVAL, futex(&lock, FUTEX_REQUEUE | kind, 1, (void *)1, &other_lock, 0));
    unlock_pi(&lock);
    pthread_join(waiter, NULL);
    CHECK(lock == 0, "the word %#x", lock);
}

// ---- times and signals ---------------------------------------------------------------------------------------------

static void *timed(void *arg) {
    (void)arg;
    uint64_t start = now_ns();
    struct timespec past = {1, 0}, soon = in(CLOCK_REALTIME, 60);
    ANSWERS(ETIMEDOUT, futex(&lock, FUTEX_LOCK_PI | kind, 0, &past, NULL, 0));
    ANSWERS(ETIMEDOUT, futex(&lock, FUTEX_LOCK_PI | kind, 0, &soon, NULL, 0));
    CHECK(now_ns() - start >= 55 * MS, "too early");
    start = now_ns(), soon = in(CLOCK_MONOTONIC, 60);
    ANSWERS(ETIMEDOUT, futex(&lock, FUTEX_LOCK_PI2 | kind, 0, &soon, NULL, 0));
    CHECK(now_ns() - start >= 55 * MS, "too early by the monotonic clock");
    start = now_ns(), soon = in(CLOCK_REALTIME, 60);
    ANSWERS(ETIMEDOUT, futex(&lock, FUTEX_LOCK_PI2 | REALTIME | kind, 0, &soon, NULL, 0));
    CHECK(now_ns() - start >= 55 * MS, "too early by the other clock");
    // The lock is free in time.
    steps = 1;
    soon = in(CLOCK_REALTIME, 1000);
    ANSWERS(0, futex(&lock, FUTEX_LOCK_PI | kind, 0, &soon, NULL, 0));
    CHECK((lock & TID) == self(), "the word %#x", lock);
    unlock_pi(&lock);
    return NULL;
}
static void times_are_absolute(void) {
    lock_pi(&lock);
    pthread_t thread = begin(timed, NULL);
    until(&steps, ~0u, 1);
    until_asleep(0);
    unlock_pi(&lock);
    pthread_join(thread, NULL);
    CHECK(lock == 0, "the word %#x", lock);
}

// A handler runs, and the wait goes on, with SA_RESTART or without.
static void signals_do_not_end_a_wait(void) {
    handle(SIGUSR1, 0);
    lock_pi(&lock);
    pthread_t thread = begin(takes_and_leaves, &lock);
    until(&lock, WAITERS, WAITERS);
    for (int i = 0; i < 5; i++) {
        usleep(10000);
        caught = 0;
        CHECK(!pthread_kill(thread, SIGUSR1), "a signal");
        while (caught != SIGUSR1) usleep(1000);
        CHECK(steps == 0, "the wait has ended");
    }
    unlock_pi(&lock);
    pthread_join(thread, NULL);
    CHECK(steps == 1 && lock == 0, "the word %#x", lock);
}

// ---- owners --------------------------------------------------------------------------------------------------------

static uint32_t order[3];
static word tids[3];
static void *waits_in_line(void *arg) {
    long n = (long)arg;
    tids[n] = self();
    CHECK(!futex(&lock, FUTEX_LOCK_PI | kind, 0, NULL, NULL, 0), "lock");
    order[steps++] = n;
    unlock_pi(&lock);
    return NULL;
}
static void a_release_names_the_next_owner(void) {
    lock_pi(&lock);
    pthread_t threads[3];
    for (long n = 0; n < 3; n++) {
        threads[n] = begin(waits_in_line, (void *)n);
        until(&lock, WAITERS, WAITERS);
        until_asleep(0);
    }
    unlock_pi(&lock);
    for (int n = 0; n < 3; n++) pthread_join(threads[n], NULL);
    CHECK(order[0] == 0 && order[1] == 1 && order[2] == 2, "equal waiters are not served in turn");
    CHECK(lock == 0, "the word %#x", lock);
}

enum { RING = 4 };
static word ring[RING], deadlocks, ready;
static void *closes_ring(void *arg) {
    long n = (long)arg;
    lock_pi(&ring[n]);
    ready++;
    until(&ready, ~0u, RING);
    // The last one to wait closes the circle. It gets EDEADLK, releases its lock, and all others get theirs.
    long error = futex(&ring[(n + 1) % RING], FUTEX_LOCK_PI | kind, 0, NULL, NULL, 0);
    if (error) {
        CHECK(errno == EDEADLK, "errno %d", errno);
        deadlocks++;
    } else {
        unlock_pi(&ring[(n + 1) % RING]);
    }
    unlock_pi(&ring[n]);
    return NULL;
}
static void circles_are_found(void) {
    for (int round = 0; round < 30; round++) {
        pthread_t threads[RING];
        deadlocks = ready = 0;
        for (long n = 0; n < RING; n++) threads[n] = begin(closes_ring, (void *)n);
        for (int n = 0; n < RING; n++) pthread_join(threads[n], NULL);
        CHECK(deadlocks >= 1, "no thread got EDEADLK");
        for (int n = 0; n < RING; n++) CHECK(ring[n] == 0, "word %d is %#x", n, ring[n]);
    }
}

struct robust {
    struct robust *next;
    word lock;
};
static struct {
    struct robust *next;
    long offset;
    struct robust *pending;
} head;
static struct robust entry;

// The owner sleeps in one call until its end, because `until_asleep` looks for threads that stay asleep.
static void sleep_until_ending(void) {
    while (steps != 2) futex(&steps, FUTEX_WAIT | kind, 1, NULL, NULL, 0);
}
static void let_it_end(void) {
    steps = 2;
    futex(&steps, FUTEX_WAKE | kind, 1, NULL, NULL, 0);
}
// Ends as the owner of a lock on its robust list; the lowest bit marks priority inheritance.
static void *ends_as_robust_owner(void *arg) {
    (void)arg;
    entry.next = (void *)&head;
    head.next = (void *)((uintptr_t)&entry | 1);
    head.offset = offsetof(struct robust, lock);
    CHECK(!syscall(SYS_set_robust_list, &head, sizeof head), "set_robust_list");
    lock_pi(&entry.lock);
    steps = 1;
    sleep_until_ending();
    syscall(SYS_exit, 0);
    return NULL;
}
static void *inherits(void *arg) {
    word *at = arg;
    CHECK(!futex(at, FUTEX_LOCK_PI | kind, 0, NULL, NULL, 0), "lock");
    CHECK((*at & (TID | OWNER_DIED)) == (self() | OWNER_DIED), "the word of an inherited lock is %#x", *at);
    *at &= ~OWNER_DIED;
    unlock_pi(at);
    return NULL;
}
static void a_dead_owners_lock_goes_on(void) {
    // Without waiters, and with one.
    for (int waits = 0; waits < 2; waits++) {
        steps = 0;
        begin(ends_as_robust_owner, NULL);
        until(&steps, ~0u, 1);
        pthread_t waiter = waits ? begin(inherits, &entry.lock) : 0;
        if (waits) until(&entry.lock, WAITERS, WAITERS), until_asleep(0);
        let_it_end();
        if (waits) {
            pthread_join(waiter, NULL);
            CHECK(entry.lock == 0, "the word %#x", entry.lock);
        } else {
            until(&entry.lock, ~0u, OWNER_DIED);
            pthread_join(begin(inherits, &entry.lock), NULL);
        }
    }
}

static void *ends_as_owner(void *arg) {
    (void)arg;
    lock_pi(&lock);
    steps = 1;
    sleep_until_ending();
    syscall(SYS_exit, 0);
    return NULL;
}
// An owner that is on no list: the waiter gets the lock all the same. Three waiters get it one after another.
static void an_owner_that_just_ends_hands_on(void) {
    begin(ends_as_owner, NULL);
    until(&steps, ~0u, 1);
    pthread_t waiters[3];
    for (int i = 0; i < 3; i++) {
        waiters[i] = begin(i ? takes_and_leaves : inherits, &lock);
        until(&lock, WAITERS, WAITERS);
        until_asleep(0);
    }
    let_it_end();
    for (int i = 0; i < 3; i++) pthread_join(waiters[i], NULL);
    CHECK(lock == 0 && steps == 4, "the word %#x", lock);
}

// A killed process that owns a lock in shared memory, and a killed waiter.
static void killed_processes_hold_nothing_up(void) {
    kind = 0;
    word *shared = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    pid_t owner = fork();
    if (!owner) {
        lock_pi(shared);
        pause();
    }
    until(shared, TID, owner);
    pid_t waiter = fork();
    if (!waiter) {
        lock_pi(shared);
        pause();
    }
    until(shared, WAITERS, WAITERS);
    until_asleep(waiter);
    kill(waiter, SIGKILL);
    CHECK(WTERMSIG(ended(waiter)) == SIGKILL, "the waiter");
    CHECK(*shared == (owner | WAITERS), "the word %#x", *shared);
    pid_t next = fork();
    if (!next) {
        inherits(shared);
        _exit(0);
    }
    until_asleep(next);
    kill(owner, SIGKILL);
    CHECK(WTERMSIG(ended(owner)) == SIGKILL, "the owner");
    CHECK(ended(next) == 0, "the next owner");
    CHECK(*shared == 0, "the word %#x", *shared);
}

// ---- mutexes of the C library --------------------------------------------------------------------------------------

static pthread_mutex_t mutex;
static long counter;
enum { TURNS = 20000 };

static void new_mutex(int type, int robust) {
    pthread_mutexattr_t how;
    pthread_mutexattr_init(&how);
    CHECK(!pthread_mutexattr_setprotocol(&how, PTHREAD_PRIO_INHERIT), "PTHREAD_PRIO_INHERIT");
    pthread_mutexattr_settype(&how, type);
    if (robust) pthread_mutexattr_setrobust(&how, PTHREAD_MUTEX_ROBUST);
    CHECK(!pthread_mutex_init(&mutex, &how), "a mutex");
}
static void *adds(void *arg) {
    (void)arg;
    for (int i = 0; i < TURNS; i++) {
        CHECK(!pthread_mutex_lock(&mutex), "lock");
        long before = counter;
        if (i % 64 == 0) sched_yield();
        counter = before + 1;
        CHECK(!pthread_mutex_unlock(&mutex), "unlock");
    }
    return NULL;
}
static void mutexes_exclude(void) {
    new_mutex(PTHREAD_MUTEX_NORMAL, 0);
    pthread_t threads[4];
    for (int i = 0; i < 4; i++) threads[i] = begin(adds, NULL);
    for (int i = 0; i < 4; i++) pthread_join(threads[i], NULL);
    CHECK(counter == 4 * TURNS, "%ld", counter);
}
static void *keeps_mutex(void *arg) {
    CHECK(!pthread_mutex_lock(&mutex), "lock");
    steps = 1;
    usleep(arg ? 100000 : 0);
    return NULL;
}
static void robust_mutexes_report(void) {
    new_mutex(PTHREAD_MUTEX_ERRORCHECK, 1);
    for (int i = 0; i < 2; i++) {
        steps = 0;
        pthread_t thread = begin(keeps_mutex, i ? &lock : NULL);
        until(&steps, ~0u, 1);
        CHECK(pthread_mutex_lock(&mutex) == EOWNERDEAD, "a mutex of a dead owner");
        CHECK(!pthread_mutex_consistent(&mutex) && !pthread_mutex_unlock(&mutex), "put right");
        pthread_join(thread, NULL);
    }
    CHECK(!pthread_mutex_lock(&mutex) && pthread_mutex_lock(&mutex) == EDEADLK, "twice");
    CHECK(!pthread_mutex_unlock(&mutex), "unlock");
}

// ---- moving to a lock ----------------------------------------------------------------------------------------------

static word condition, served, waiting;

static void *waits_for_condition(void *arg) {
    (void)arg;
    lock_pi(&lock);
    uint32_t now = condition;
    waiting++;
    unlock_pi(&lock);
    struct timespec late = in(CLOCK_MONOTONIC, 5000);
    CHECK(!futex(&condition, FUTEX_WAIT_REQUEUE_PI | kind, now, &late, &lock, 0), "the wait");
    CHECK((lock & TID) == self(), "it returns without the lock: %#x", lock);
    served++;
    unlock_pi(&lock);
    return NULL;
}
static void wait_for_waiters(uint32_t n) {
    until(&waiting, ~0u, n);
    until_asleep(0);
}
static void conditions_hand_the_lock_over(void) {
    for (int held = 0; held < 2; held++) {
        pthread_t threads[4];
        waiting = served = 0;
        for (int i = 0; i < 4; i++) threads[i] = begin(waits_for_condition, NULL);
        wait_for_waiters(4);
        // Held: all of them wait for the caller. Else the first one gets the lock at once.
        if (held) lock_pi(&lock);
        ANSWERS(EAGAIN, futex(&condition, FUTEX_CMP_REQUEUE_PI | kind, 1, (void *)1l, &lock, condition + 1));
        ANSWERS(EINVAL, futex(&condition, FUTEX_CMP_REQUEUE_PI | kind, 2, (void *)1l, &lock, condition));
        ANSWERS(EINVAL, futex(&condition, FUTEX_CMP_REQUEUE_PI | kind, 1, (void *)1l, &condition, condition));
        ANSWERS(EINVAL, futex(&condition, FUTEX_CMP_REQUEUE_PI | kind, 1, (void *)1l, &other_lock, condition));
        ANSWERS(EINVAL, futex(&condition, FUTEX_WAKE | kind, 1, NULL, NULL, 0));
        CHECK(futex(&condition, FUTEX_CMP_REQUEUE_PI | kind, 1, (void *)0l, &lock, condition) == 1, "one");
        if (held) CHECK((lock & TID) == self() && lock & WAITERS && !served, "the word %#x", lock);
        condition++;
        long moved = futex(&condition, FUTEX_CMP_REQUEUE_PI | kind, 1, (void *)(long)INT_MAX, &lock, condition);
        CHECK(moved == 3, "%ld of the other three", moved);
        if (held) {
            usleep(50000);
            CHECK(!served, "a waiter returned without the lock");
            unlock_pi(&lock);
        }
        for (int i = 0; i < 4; i++) pthread_join(threads[i], NULL);
        CHECK(served == 4 && lock == 0, "%u, the word %#x", served, lock);
        CHECK(futex(&condition, FUTEX_CMP_REQUEUE_PI | kind, 1, (void *)1l, &lock, condition) == 0, "none waits");
    }
}
static void *waits_in_vain(void *arg) {
    (void)arg;
    struct timespec soon = in(CLOCK_REALTIME, 200);
    ANSWERS(ETIMEDOUT, futex(&condition, FUTEX_WAIT_REQUEUE_PI | REALTIME | kind, condition, &soon, &lock, 0));
    steps++;
    return NULL;
}
static void moved_waits_end_in_time(void) {
    struct timespec soon = in(CLOCK_MONOTONIC, 30);
    ANSWERS(ETIMEDOUT, futex(&condition, FUTEX_WAIT_REQUEUE_PI | kind, 0, &soon, &lock, 0));
    ANSWERS(EAGAIN, futex(&condition, FUTEX_WAIT_REQUEUE_PI | kind, 1, &soon, &lock, 0));
    ANSWERS(EINVAL, futex(&condition, FUTEX_WAIT_REQUEUE_PI | kind, 0, &soon, &condition, 0));
    lock_pi(&lock);
    pthread_t thread = begin(waits_in_vain, NULL);
    until_asleep(0);
    long moved = futex(&condition, FUTEX_CMP_REQUEUE_PI | kind, 1, (void *)1l, &lock, 0);
    pthread_join(thread, NULL);
    CHECK(moved == 1 || steps, "%ld", moved);
    unlock_pi(&lock);
    CHECK(lock == 0, "the word %#x", lock);
}

// ---- storms --------------------------------------------------------------------------------------------------------

enum { LOCKS = 3, STORM = 4 };
static word locks[LOCKS];
static long inside[LOCKS], entries[LOCKS];
static atomic_long entered;
static uint64_t storm_end;

static void *storms(void *arg) {
    uint64_t random = (long)arg;
    while (now_ns() < storm_end) {
        int n = random_next(&random) % LOCKS;
        struct timespec soon = in(CLOCK_MONOTONIC, random_next(&random) % 3);
        long how = random_next(&random) % 4, error = 0;
        if (how == 0) error = futex(&locks[n], FUTEX_TRYLOCK_PI | kind, 0, NULL, NULL, 0);
        else if (how == 1) error = futex(&locks[n], FUTEX_LOCK_PI2 | kind, 0, &soon, NULL, 0);
        else lock_pi(&locks[n]);
        if (error) {
            CHECK(errno == EAGAIN || errno == ETIMEDOUT, "errno %d", errno);
            continue;
        }
        CHECK(!inside[n]++, "two threads own lock %d", n);
        entries[n]++;
        if (random_next(&random) % 8 == 0) sched_yield();
        if (random_next(&random) % 64 == 0) setpriority(PRIO_PROCESS, self(), random_next(&random) % 20);
        inside[n]--;
        entered++;
        unlock_pi(&locks[n]);
    }
    return NULL;
}
static void storms_lose_no_lock(void) {
    storm_end = now_ns() + 2000 * MS;
    pthread_t threads[STORM];
    for (long i = 0; i < STORM; i++) threads[i] = begin(storms, (void *)(i + 1));
    for (int i = 0; i < STORM; i++) pthread_join(threads[i], NULL);
    long sum = 0;
    for (int n = 0; n < LOCKS; n++) {
        CHECK(locks[n] == 0, "lock %d: %#x", n, locks[n]);
        sum += entries[n];
    }
    CHECK(sum == entered && sum > 100, "%ld entries, counted %ld", (long)entered, sum);
}

// ---- inversion -----------------------------------------------------------------------------------------------------

enum { CROWD = 16 };
static bool with_inheritance;
static word contended, turn;
static atomic_long rounds;
static uint64_t period_end;

static void acquire(void) {
    if (with_inheritance) {
        lock_pi(&contended);
        return;
    }
    for (uint32_t free = 0; !atomic_compare_exchange_strong(&contended, &free, 1); free = 0)
        futex(&contended, FUTEX_WAIT | kind, 1, &(struct timespec){0, 100000000}, NULL, 0);
}
static void release(void) {
    if (with_inheritance) {
        unlock_pi(&contended);
        return;
    }
    contended = 0;
    futex(&contended, FUTEX_WAKE | kind, 1, NULL, NULL, 0);
}
static uint64_t used_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return t.tv_sec * 1000000000ull + t.tv_nsec;
}
static void *crowds(void *arg) {
    (void)arg;
    while (now_ns() < period_end) {}
    return NULL;
}
static void *owns(void *arg) {
    (void)arg;
    while (now_ns() < period_end) {
        acquire();
        turn++;
        futex(&turn, FUTEX_WAKE | kind, 1, NULL, NULL, 0);
        // Only for the work under the lock, so that nothing else of a round depends on it.
        CHECK(!setpriority(PRIO_PROCESS, self(), 19), "nice 19");
        for (uint64_t start = used_ns(); used_ns() - start < 30 * MS && now_ns() < period_end + 2000 * MS;) {}
        CHECK(!setpriority(PRIO_PROCESS, self(), 0), "nice 0");
        release();
    }
    turn += 1000000;
    futex(&turn, FUTEX_WAKE | kind, 1, NULL, NULL, 0);
    return NULL;
}
static void *is_urgent(void *arg) {
    (void)arg;
    // By number: the C library's own function answers ENOSYS.
    if (syscall(SYS_sched_setscheduler, 0, 1, &(int){1})) CHECK(!setpriority(PRIO_PROCESS, self(), -10), "nice -10");
    for (uint32_t seen = 0; now_ns() < period_end;) {
        uint32_t now = turn;
        if (now == seen) {
            futex(&turn, FUTEX_WAIT | kind, now, &(struct timespec){0, 100000000}, NULL, 0);
            continue;
        }
        seen = now;
        acquire();
        if (now_ns() < period_end) rounds++;
        release();
    }
    return NULL;
}
static long rounds_in(uint64_t ns) {
    pthread_t threads[CROWD + 2];
    rounds = contended = turn = 0;
    period_end = now_ns() + ns;
    threads[0] = begin(owns, NULL);
    threads[1] = begin(is_urgent, NULL);
    for (int i = 0; i < CROWD; i++) threads[i + 2] = begin(crowds, NULL);
    for (int i = 0; i < CROWD + 2; i++) pthread_join(threads[i], NULL);
    return rounds;
}
static void an_urgent_waiter_speeds_the_owner_up(void) {
    // One CPU for all.
    unsigned long mask = 1;
    CHECK(syscall(SYS_sched_setaffinity, 0, sizeof mask, &mask) >= 0, "CPU 0");
    long plain = rounds_in(5000 * MS);
    with_inheritance = true;
    long inheriting = rounds_in(5000 * MS);
    fprintf(stderr, "%ld rounds without inheritance, %ld with it\n", plain, inheriting);
    CHECK(inheriting >= 4 * plain && inheriting >= 4, "%ld rounds without inheritance, %ld with it", plain, inheriting);
}

static const struct check checks[] = {
    {"words_and_errors", words_and_errors},
    {"plain_waiters_are_refused", plain_waiters_are_refused},
    {"times_are_absolute", times_are_absolute},
    {"signals_do_not_end_a_wait", signals_do_not_end_a_wait},
    {"a_release_names_the_next_owner", a_release_names_the_next_owner},
    {"circles_are_found", circles_are_found},
    {"a_dead_owners_lock_goes_on", a_dead_owners_lock_goes_on},
    {"an_owner_that_just_ends_hands_on", an_owner_that_just_ends_hands_on},
    {"killed_processes_hold_nothing_up", killed_processes_hold_nothing_up},
    {"mutexes_exclude", mutexes_exclude},
    {"robust_mutexes_report", robust_mutexes_report},
    {"conditions_hand_the_lock_over", conditions_hand_the_lock_over},
    {"moved_waits_end_in_time", moved_waits_end_in_time},
    {"storms_lose_no_lock", storms_lose_no_lock},
    {"an_urgent_waiter_speeds_the_owner_up", an_urgent_waiter_speeds_the_owner_up},
};

int main(int argc, char **argv) {
    parse_options(argc, argv, NULL);
    run_checks(checks, sizeof checks / sizeof *checks);
    return 0;
}
