// Processes, threads, signals, timers, futexes, and calls about a process itself.
#pragma once
#include "counts.h"
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/sysinfo.h>
#include <sys/time.h>
#include <sys/times.h>
#include <sys/utsname.h>

// musl has no headers of the kernel.
enum { FUTEX_WAIT = 0, FUTEX_WAKE = 1, FUTEX_LOCK_PI = 6, FUTEX_UNLOCK_PI = 7, FUTEX_PRIVATE_FLAG = 128 };

// ---- processes -----------------------------------------------------------------------------------------------------

static void fork_and_exit(long times) {
    COUNT(2, times, pid_t child = fork(); if (!child) _exit(0); reap(child));
}
static void fork_exit(void) { fork_and_exit(50); }
static void fork_exit_64MiB(void) {
    char *at = anonymous(64 * MIB);
    for (size_t i = 0; i < 64 * MIB; i += PAGE) at[i] = 1;
    fork_and_exit(10);
}
static void fork_exit_64MiB_stores(void) {
    char *at = anonymous(64 * MIB);
    for (size_t i = 0; i < 64 * MIB; i += PAGE) at[i] = 1;
    COUNT(2, 10, pid_t child = fork(); if (!child) {
        for (int p = 0; p < 64; p++) at[p * MIB] = 2;
        _exit(0);
    } reap(child));
}
static void fork_exit_many_mappings(void) {
    char *at = mmap(NULL, 100000 * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    for (int m = 0; m < 100000; m += 2) CHECK(!mprotect(at + m * PAGE, PAGE, PROT_READ | PROT_WRITE), "mprotect");
    COUNT(1, 2, pid_t child = fork(); if (!child) _exit(0); reap(child));
}
static void fork_exit_threads(void) {
    with_threads();
    fork_and_exit(50);
}
// The cost of a fork right after the end of a large process.
static void fork_after_teardown(void) {
    pid_t large = fork();
    if (!large) {
        char *at = anonymous(256 * MIB);
        for (size_t i = 0; i < 256 * MIB; i += PAGE) at[i] = 1;
        _exit(0);
    }
    reap(large);
    begin();
    pid_t child = fork();
    if (!child) _exit(0);
    reap(child);
    end(1);
}
// A line of forks whose members all live: each stores into some pages of 16 MiB.
static void line_of_forks(void) {
    char *at = anonymous(16 * MIB);
    for (size_t i = 0; i < 16 * MIB; i += PAGE) at[i] = 1;
    int ends[2];
    CHECK(!pipe(ends), "pipe");
    uint64_t seed = 3;
    begin();
    for (int generation = 0; generation < 50; generation++) {
        pid_t child = fork();
        CHECK(child >= 0, "fork");
        if (child) {
            char byte;
            close(ends[1]);
            if (generation) _exit(read(ends[0], &byte, 1) != 0);
            reap(child);
            return;
        }
        for (int store = 0; store < 64; store++) at[random_next(&seed) % 4096 * PAGE]++;
    }
    end(50);
    _exit(0);
}
static char *const child_args[] = {"/programs/child", NULL};
static void exec_once(const char *path, bool shares) {
    pid_t child = shares ? vfork() : fork();
    if (!child) {
        execv(path, child_args);
        _exit(1);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && WEXITSTATUS(status) == 41, "exec of %s", path);
}
static void exec_child(const char *path, bool shares) { COUNT(2, 20, exec_once(path, shares)); }
static void fork_exec(void) { exec_child("/programs/child", false); }
static void vfork_exec(void) { exec_child("/programs/child", true); }
static void fork_exec_dynamic(void) { exec_child("/programs/child-dynamic", false); }
static void vfork_exec_dynamic(void) { exec_child("/programs/child-dynamic", true); }

static void *returns(void *argument) { return argument; }
static void thread_create_join(void) {
    COUNT(4, 100, pthread_t thread; CHECK(!pthread_create(&thread, NULL, returns, NULL), "pthread_create");
        pthread_join(thread, NULL));
}
static void exit_resident(void) {
    int ends[2];
    char byte = 0;
    CHECK(!pipe(ends), "pipe");
    pid_t child = fork();
    if (!child) {
        char *at = anonymous(32 * MIB);
        for (size_t i = 0; i < 32 * MIB; i += PAGE) at[i] = 1;
        CHECK(write(ends[1], &byte, 1) == 1, "write");
        pause();
    }
    CHECK(read(ends[0], &byte, 1) == 1, "read");
    begin();
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    end(8192);
}
static void wait_for_none(void) { COUNT(16, 1000, CHECK(waitpid(-1, NULL, WNOHANG) == -1, "waitpid")); }
static void wait_for_living(void) {
    pid_t child = fork();
    if (!child) for (;;) pause();
    COUNT(16, 1000, CHECK(!waitpid(child, NULL, WNOHANG), "waitpid"));
    kill(child, SIGKILL);
}

// ---- calls about itself --------------------------------------------------------------------------------------------

static void call_nothing(void) { COUNT(100, 5000, syscall(SYS_getppid)); }
static void call_unknown(void) { COUNT(100, 5000, CHECK(syscall(999) == -1, "a call that does not exist")); }
static void call_clock(void) {
    struct timespec t;
    COUNT(100, 5000, syscall(SYS_clock_gettime, CLOCK_MONOTONIC, &t));
}
static void call_clock_real(void) {
    struct timespec t;
    COUNT(100, 5000, syscall(SYS_clock_gettime, CLOCK_REALTIME, &t));
}
static void call_clock_thread(void) {
    struct timespec t;
    COUNT(100, 2000, syscall(SYS_clock_gettime, CLOCK_THREAD_CPUTIME_ID, &t));
}
static void call_identity(void) { COUNT(100, 2000, syscall(SYS_getuid)); }
static void call_thread_id(void) { COUNT(100, 2000, syscall(SYS_gettid)); }
static void call_usage(void) {
    struct rusage used;
    COUNT(100, 1000, CHECK(!getrusage(RUSAGE_SELF, &used), "getrusage"));
}
static void call_names(void) {
    struct utsname name;
    COUNT(100, 1000, CHECK(!uname(&name), "uname"));
}
static void call_machine(void) {
    struct sysinfo info;
    COUNT(16, 500, CHECK(!sysinfo(&info), "sysinfo"));
}
static void call_yield(void) { COUNT(100, 2000, sched_yield()); }
static void call_limits(void) {
    struct rlimit limit;
    COUNT(100, 1000, CHECK(!getrlimit(RLIMIT_NOFILE, &limit), "getrlimit"));
}
static void call_affinity(void) {
    cpu_set_t set;
    COUNT(100, 1000, CHECK(!sched_getaffinity(0, sizeof set, &set), "sched_getaffinity"));
}
static void call_random(void) {
    char bytes[16];
    COUNT(100, 1000, CHECK(getrandom(bytes, 16, 0) == 16, "getrandom"));
}
static void call_name(void) {
    char name[16];
    COUNT(100, 1000, CHECK(!prctl(PR_GET_NAME, name), "prctl"));
}

// ---- signals -------------------------------------------------------------------------------------------------------

static void handler(int signal) { (void)signal; }
static void signal_itself(void) {
    signal(SIGUSR1, handler);
    pid_t self = getpid();
    COUNT(16, 1000, kill(self, SIGUSR1));
}
static void signal_thread(void) {
    with_threads();
    signal(SIGUSR1, handler);
    pid_t self = getpid();
    COUNT(16, 1000, syscall(SYS_tgkill, self, self, SIGUSR1));
}
static void signal_mask(void) {
    sigset_t set, old;
    sigemptyset(&set);
    sigaddset(&set, SIGUSR1);
    COUNT(16, 1000, sigprocmask(SIG_BLOCK, &set, &old); sigprocmask(SIG_SETMASK, &old, NULL));
}
static void signal_action(void) {
    struct sigaction action = {.sa_handler = handler};
    COUNT(16, 1000, sigaction(SIGUSR2, &action, NULL));
}
static void signal_awaited(void) {
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGUSR1);
    sigprocmask(SIG_BLOCK, &set, NULL);
    pid_t self = getpid();
    int got;
    COUNT(16, 1000, kill(self, SIGUSR1); CHECK(!sigwait(&set, &got), "sigwait"));
}
static void signal_round_trip(void) {
    sigset_t set;
    int got;
    sigemptyset(&set);
    sigaddset(&set, SIGUSR1);
    sigprocmask(SIG_BLOCK, &set, NULL);
    pid_t parent = getpid(), child = fork();
    if (!child)
        for (;;) sigwait(&set, &got), kill(parent, SIGUSR1);
    COUNT(16, 300, kill(child, SIGUSR1); sigwait(&set, &got));
    kill(child, SIGKILL);
}
static char *faulting;
static void repair(int signal) {
    (void)signal;
    mprotect(faulting, PAGE, PROT_READ | PROT_WRITE);
}
static void signal_of_fault(void) {
    signal(SIGSEGV, repair);
    faulting = anonymous(PAGE);
    faulting[0] = 1;
    COUNT(16, 500, mprotect(faulting, PAGE, PROT_READ); *(volatile char *)faulting = 1);
}

// ---- timers --------------------------------------------------------------------------------------------------------

// So many that the timer wheel turns as often in any run: a sleep that crosses a turn costs more.
static void sleep_briefly(void) {
    struct timespec moment = {0, 100000};
    COUNT(16, 4000, nanosleep(&moment, NULL));
}
static void interval_timer(void) {
    struct itimerval later = {{0, 0}, {1000, 0}}, none = {{0, 0}, {0, 0}};
    COUNT(16, 500, setitimer(ITIMER_REAL, &later, NULL); setitimer(ITIMER_REAL, &none, NULL));
}
static void posix_timer(void) {
    struct sigevent event = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGUSR1};
    timer_t timer;
    struct itimerspec later = {{0, 0}, {1000, 0}};
    COUNT(16, 300, CHECK(!timer_create(CLOCK_MONOTONIC, &event, &timer), "timer_create");
        timer_settime(timer, 0, &later, NULL);
          timer_delete(timer));
}
static void posix_timer_set(void) {
    struct sigevent event = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGUSR1};
    timer_t timer;
    struct itimerspec later = {{0, 0}, {1000, 0}};
    CHECK(!timer_create(CLOCK_MONOTONIC, &event, &timer), "timer_create");
    COUNT(16, 1000, later.it_value.tv_sec = 1000 + i % 7; timer_settime(timer, 0, &later, NULL));
}

// ---- futexes and turns ---------------------------------------------------------------------------------------------

static atomic_int *shared_words(void) {
    void *at = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(at != MAP_FAILED, "mmap");
    return at;
}
static long futex(atomic_int *word, int operation, int value, const struct timespec *until) {
    return syscall(SYS_futex, word, operation, value, until, NULL, 0);
}
static void futex_wake_none(void) {
    static atomic_int word;
    COUNT(100, 2000, futex(&word, FUTEX_WAKE | FUTEX_PRIVATE_FLAG, 1, NULL));
}
static void futex_changed(void) {
    static atomic_int word = 1;
    COUNT(100, 2000, CHECK(futex(&word, FUTEX_WAIT | FUTEX_PRIVATE_FLAG, 0, NULL) == -1, "futex"));
}
static void futex_timeout(void) {
    static atomic_int word;
    struct timespec moment = {0, 100000};
    COUNT(16, 4000, CHECK(futex(&word, FUTEX_WAIT | FUTEX_PRIVATE_FLAG, 0, &moment) == -1, "futex"));
}
static void hand_over(atomic_int *words, int flag, long rounds, int own) {
    for (long i = 0; i < rounds; i++) {
        while (!atomic_load(&words[own])) futex(&words[own], FUTEX_WAIT | flag, 0, NULL);
        atomic_store(&words[own], 0);
        atomic_store(&words[!own], 1);
        futex(&words[!own], FUTEX_WAKE | flag, 1, NULL);
    }
}
static void *hands_over(void *words) {
    hand_over(words, FUTEX_PRIVATE_FLAG, 332, 1);
    return NULL;
}
static void futex_round_trip_threads(void) {
    static atomic_int words[2];
    pthread_t thread;
    CHECK(!pthread_create(&thread, NULL, hands_over, words), "pthread_create");
    atomic_store(&words[0], 1);
    hand_over(words, FUTEX_PRIVATE_FLAG, 32, 0);
    begin();
    hand_over(words, FUTEX_PRIVATE_FLAG, 300, 0);
    end(300);
    pthread_join(thread, NULL);
}
static void futex_round_trip_processes(void) {
    atomic_int *words = shared_words();
    pid_t child = fork();
    if (!child) {
        hand_over(words, 0, 332, 1);
        _exit(0);
    }
    atomic_store(&words[0], 1);
    hand_over(words, 0, 32, 0);
    begin();
    hand_over(words, 0, 300, 0);
    end(300);
    reap(child);
}
static void futex_pi(void) {
    static atomic_int word;
    // The word is made to look contended, so that each call reaches the kernel.
    COUNT(16, 500, CHECK(!futex(&word, FUTEX_LOCK_PI | FUTEX_PRIVATE_FLAG, 0, NULL), "lock");
          CHECK(!futex(&word, FUTEX_UNLOCK_PI | FUTEX_PRIVATE_FLAG, 0, NULL), "unlock"));
}
static void yield_to_other(void) {
    pid_t child = fork();
    if (!child)
        for (;;) sched_yield();
    COUNT(16, 500, sched_yield());
    kill(child, SIGKILL);
}

static const struct operation process_operations[] = {
    {"fork_exit", fork_exit},
    {"fork_exit_64MiB", fork_exit_64MiB},
    {"fork_exit_64MiB_stores", fork_exit_64MiB_stores},
    {"fork_exit_many_mappings", fork_exit_many_mappings},
    {"fork_exit_threads", fork_exit_threads},
    {"fork_after_teardown", fork_after_teardown},
    {"line_of_forks", line_of_forks},
    {"fork_exec", fork_exec},
    {"vfork_exec", vfork_exec},
    {"fork_exec_dynamic", fork_exec_dynamic},
    {"vfork_exec_dynamic", vfork_exec_dynamic},
    {"thread_create_join", thread_create_join},
    {"exit_resident", exit_resident},
    {"wait_for_none", wait_for_none},
    {"wait_for_living", wait_for_living},
    {"call_nothing", call_nothing},
    {"call_unknown", call_unknown},
    {"call_clock", call_clock},
    {"call_clock_real", call_clock_real},
    {"call_clock_thread", call_clock_thread},
    {"call_identity", call_identity},
    {"call_thread_id", call_thread_id},
    {"call_usage", call_usage},
    {"call_names", call_names},
    {"call_machine", call_machine},
    {"call_yield", call_yield},
    {"call_limits", call_limits},
    {"call_affinity", call_affinity},
    {"call_random", call_random},
    {"call_name", call_name},
    {"signal_itself", signal_itself},
    {"signal_thread", signal_thread},
    {"signal_mask", signal_mask},
    {"signal_action", signal_action},
    {"signal_awaited", signal_awaited},
    {"signal_round_trip", signal_round_trip},
    {"signal_of_fault", signal_of_fault},
    {"sleep_briefly", sleep_briefly},
    {"interval_timer", interval_timer},
    {"posix_timer", posix_timer},
    {"posix_timer_set", posix_timer_set},
    {"futex_wake_none", futex_wake_none},
    {"futex_changed", futex_changed},
    {"futex_timeout", futex_timeout},
    {"futex_round_trip_threads", futex_round_trip_threads},
    {"futex_round_trip_processes", futex_round_trip_processes},
    {"futex_pi", futex_pi},
    {"yield_to_other", yield_to_other},
    {NULL, NULL},
};
