// Limits of users, and reports about their threads: the limit on processes, states, the load average. The same on Linux
// and on Quire. Needs user 0.
#include "checks.h"
#include <sys/syscall.h>
#include <sys/sysinfo.h>

enum { USER = 4321, LIMIT = 12 };

static void become(unsigned user, rlim_t most) {
    struct rlimit processes = {most, most};
    CHECK(!setrlimit(RLIMIT_NPROC, &processes), "setrlimit");
    CHECK(!setgid(user) && !setuid(user), "setuid");
}

static pid_t sleeper(void) {
    pid_t child = fork();
    if (!child) {
        for (;;) pause();
    }
    return child;
}

static void the_limit_is_exact(void) {
    become(USER, LIMIT);
    pid_t children[LIMIT];
    for (int i = 0; i < LIMIT - 1; i++) CHECK((children[i] = sleeper()) > 0, "process %d of %d", i + 2, LIMIT);
    for (int i = 0; i < 100; i++) CHECK(sleeper() == -1 && errno == EAGAIN, "one more than the limit");
    // A zombie counts until it was waited for.
    for (int i = 0; i < 50; i++) {
        pid_t *child = &children[i % (LIMIT - 1)];
        CHECK(!kill(*child, SIGKILL), "kill");
        siginfo_t info;
        CHECK(!waitid(P_PID, *child, &info, WEXITED | WNOWAIT), "waitid");
        CHECK(sleeper() == -1 && errno == EAGAIN, "a zombie does not count");
        ended(*child);
        CHECK((*child = sleeper()) > 0, "there is room for one in round %d", i);
        CHECK(sleeper() == -1 && errno == EAGAIN, "there is room for two in round %d", i);
    }
    for (int i = 0; i < LIMIT - 1; i++) {
        kill(children[i], SIGKILL);
        ended(children[i]);
    }
}

static void *nothing(void *unused) { return unused; }

static void threads_count(void) {
    become(USER, 2);
    for (int i = 0; i < 200; i++) {
        pthread_t thread;
        CHECK(!pthread_create(&thread, NULL, nothing, NULL), "thread %d", i);
        CHECK(!pthread_join(thread, NULL), "join");
        // A joined thread is not quite gone.
        pid_t child;
        while ((child = fork()) == -1) CHECK(errno == EAGAIN && !usleep(1000), "fork");
        if (!child) _exit(0);
        ended(child);
    }
}

// Racing processes of one user that fork and wait never have more than the limit at once: they count in shared memory.
static void the_limit_holds_in_races(void) {
    enum { RACERS = 4 };
    struct {
        _Atomic long now, most, refused, made, begun;
    } *shared = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(shared != MAP_FAILED, "mmap");
    become(USER, LIMIT);
    pid_t racers[RACERS];
    // Here are this process and the racers; each racer's children are the rest.
    shared->now = 1;
    for (int r = 0; r < RACERS; r++) {
        shared->now++;
        CHECK((racers[r] = fork()) >= 0, "fork");
        if (racers[r]) continue;
        // Otherwise the first ones would leave no room for the others.
        while (!shared->begun) sched_yield();
        for (int i = 0; i < 100; i++) {
            pid_t children[LIMIT];
            int made = 0;
            while (made < 6) {
                pid_t child = fork();
                if (child < 0) {
                    CHECK(errno == EAGAIN, "fork");
                    shared->refused++;
                    break;
                }
                if (!child) {
                    for (;;) pause();
                }
                long now = ++shared->now;
                if (now > shared->most) shared->most = now;
                shared->made++;
                children[made++] = child;
            }
            sched_yield();
            while (made--) {
                // It leaves this count before it leaves the limit's count.
                shared->now--;
                kill(children[made], SIGKILL);
                ended(children[made]);
            }
        }
        shared->now--;
        _exit(0);
    }
    shared->begun = 1;
    for (int r = 0; r < RACERS; r++) CHECK(!ended(racers[r]), "a racer");
    CHECK(shared->most <= LIMIT && shared->refused && shared->made, "at most %ld, refused %ld, made %ld", shared->most,
          shared->refused, shared->made);
}

static void root_and_others_have_no_part_in_it(void) {
    become(USER, 1);
    CHECK(fork() == -1 && errno == EAGAIN, "the first one is one already");
}

static char state_of(pid_t pid) {
    char path[64], text[512], *after;
    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    int file = open(path, O_RDONLY);
    CHECK(file >= 0, "%s", path);
    ssize_t length = read(file, text, sizeof text - 1);
    close(file);
    CHECK(length > 0, "read %s", path);
    text[length] = 0;
    CHECK((after = strrchr(text, ')')) && after[1] == ' ', "%s", text);
    return after[2];
}

static void until_it_sleeps(pid_t pid) {
    while (state_of(pid) != 'S') usleep(1000);
}

static void exec_fails_for_a_user_with_too_many_processes(void) {
    pid_t holder = fork();
    if (!holder) {
        CHECK(!setuid(USER), "setuid");
        pause();
        _exit(0);
    }
    // By then it has become that user.
    until_it_sleeps(holder);
    become(USER, 1);
    char *args[] = {"/bin/busybox", "true", NULL}, *environment[] = {NULL};
    CHECK(execve(args[0], args, environment) == -1 && errno == EAGAIN, "exec with two of one");
    CHECK(!kill(holder, SIGKILL), "kill");
    ended(holder);
    execve(args[0], args, environment);
    fail("exec with one of one");
}

static void states_are_reported(void) {
    enum { BUSY = 9 };
    pid_t busy[BUSY], asleep = sleeper();
    atomic_int *begun = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(begun != MAP_FAILED, "mmap");
    until_it_sleeps(asleep);
    for (int i = 0; i < BUSY; i++) {
        CHECK((busy[i] = fork()) >= 0, "fork");
        if (!busy[i]) {
            // The first write makes the stack's page its own, before the child counts itself.
            volatile long n = 0;
            for (++*begun;; n++) {}
        }
    }
    while (*begun < BUSY) usleep(1000);
    // More than there are processors: threads that wait for one are no sleepers.
    for (int round = 0; round < 20; round++) {
        for (int i = 0; i < BUSY; i++) CHECK(state_of(busy[i]) == 'R', "busy, but %c", state_of(busy[i]));
        CHECK(state_of(asleep) == 'S', "asleep, but %c", state_of(asleep));
        usleep(1000);
    }
    CHECK(state_of(getpid()) == 'R', "oneself");
    for (int i = 0; i < BUSY; i++) {
        kill(busy[i], SIGKILL);
        // Ended, and not waited for.
        siginfo_t info;
        CHECK(!waitid(P_PID, busy[i], &info, WEXITED | WNOWAIT), "waitid");
        CHECK(state_of(busy[i]) == 'Z', "a zombie is %c", state_of(busy[i]));
        ended(busy[i]);
    }
    kill(asleep, SIGKILL);
    ended(asleep);
}

static void read_load(double *average, long *running, long *total, long *last) {
    FILE *file = fopen("/proc/loadavg", "r");
    CHECK(file, "loadavg");
    double five, fifteen;
    CHECK(fscanf(file, "%lf %lf %lf %ld/%ld %ld", average, &five, &fifteen, running, total, last) == 6, "its form");
    fclose(file);
}

static void the_load_rises_under_load(void) {
    double before, after;
    long running, total, last, more;
    read_load(&before, &running, &total, &last);
    enum { BUSY = 8 };
    pid_t busy[BUSY];
    for (int i = 0; i < BUSY; i++) {
        CHECK((busy[i] = fork()) >= 0, "fork");
        if (!busy[i]) {
            for (volatile long n = 0;; n++) {}
        }
    }
    read_load(&after, &running, &more, &last);
    CHECK(more >= total + BUSY && running >= BUSY && last == busy[BUSY - 1], "%ld/%ld after %ld, %ld after %d", running,
        more,
          total, last, (int)busy[BUSY - 1]);
    // Two samples at least: 8 * (1 - e^(-5/60)) is 0.64. An older load falls meanwhile, to e^(-11/60) of it or more.
    for (int i = 0; i < 11; i++) sleep(1);
    read_load(&after, &running, &more, &last);
    struct sysinfo info;
    CHECK(!sysinfo(&info), "sysinfo");
    double shown = info.loads[0] / 65536.0;
    CHECK(after > before * 0.8 + 0.5 && after < before + 8, "%.2f after %.2f", after, before);
    CHECK(shown > after - 1 && shown < after + 1, "sysinfo says %.2f, not %.2f", shown, after);
    for (int i = 0; i < BUSY; i++) {
        kill(busy[i], SIGKILL);
        ended(busy[i]);
    }
}

static void weights_divide_a_processor(void) {
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(0, &one);
    CHECK(!sched_setaffinity(0, sizeof one, &one), "affinity");
    const int nices[] = {0, 5, 10};
    pid_t busy[3];
    int begin[2];
    CHECK(!pipe(begin), "pipe");
    for (int i = 0; i < 3; i++) {
        CHECK((busy[i] = fork()) >= 0, "fork");
        if (!busy[i]) {
            char nothing;
            CHECK(!setpriority(PRIO_PROCESS, 0, nices[i]), "setpriority");
            close(begin[1]);
            CHECK(!read(begin[0], &nothing, 1), "read");
            for (volatile long n = 0;; n++) {}
        }
    }
    // All begin at once.
    close(begin[1]);
    sleep(2);
    double used[3];
    for (int i = 0; i < 3; i++) kill(busy[i], SIGKILL);
    for (int i = 0; i < 3; i++) {
        struct rusage usage;
        CHECK(wait4(busy[i], NULL, 0, &usage) == busy[i], "wait4");
        used[i] = usage.ru_utime.tv_sec + usage.ru_utime.tv_usec / 1e6;
    }
    // Five steps are a factor of 3.05.
    for (int i = 0; i < 2; i++) {
        double ratio = used[i] / used[i + 1];
        CHECK(ratio > 2.6 && ratio < 3.6, "%.2f s, %.2f s, %.2f s", used[0], used[1], used[2]);
    }
}

static void refuses(const char *path, const char *number) {
    int file = open(path, O_WRONLY);
    // A container may have it read-only.
    if (file < 0) return;
    CHECK(write(file, number, strlen(number)) == -1 && errno == EINVAL, "%s takes %s", path, number);
    close(file);
}

static void set(const char *path, long number) {
    char text[24];
    int file = open(path, O_WRONLY), length = snprintf(text, sizeof text, "%ld", number);
    CHECK(file >= 0 && write(file, text, length) == length, "%s does not take %ld", path, number);
    close(file);
}

static long setting(const char *path) {
    char text[24] = "";
    int file = open(path, O_RDONLY);
    CHECK(file >= 0 && read(file, text, sizeof text - 1) > 0, "%s", path);
    close(file);
    return atol(text);
}

#define PID_MAX "/proc/sys/kernel/pid_max"
#define THREADS_MAX "/proc/sys/kernel/threads-max"

static void limits_of_ids_have_bounds(void) {
    CHECK(setting(PID_MAX) >= 301 && setting(PID_MAX) <= 4194304, "%ld ids", setting(PID_MAX));
    CHECK(setting(THREADS_MAX) >= 1, "%ld threads", setting(THREADS_MAX));
    if (geteuid()) return;
    const char *ids[] = {"300", "0", "-1", "4194305", "x"}, *threads[] = {"0", "-1", "1073741824"};
    for (int i = 0; i < 5; i++) refuses(PID_MAX, ids[i]);
    for (int i = 0; i < 3; i++) refuses(THREADS_MAX, threads[i]);
}

// Changes settings of the machine, so only in a guest of Quire.
static void ids_begin_again_below_a_lowered_limit(void) {
    if (geteuid() || access("/proc/self/quire_memory", F_OK)) return;
    long ids = setting(PID_MAX), threads = setting(THREADS_MAX), highest = 0;
    pid_t child = fork();
    CHECK(child >= 0, "fork");
    if (!child) _exit(0);
    CHECK(!ended(child), "child");
    long limit = child < 300 ? 400 : child + 100;
    set(PID_MAX, limit);
    CHECK(setting(PID_MAX) == limit, "the limit is %ld", setting(PID_MAX));
    for (int i = 0; i < 1000; i++) {
        child = fork();
        CHECK(child >= 0, "fork %d below %ld", i, limit);
        if (!child) _exit(0);
        CHECK(!ended(child), "child");
        if (child > highest) highest = child;
    }
    CHECK(highest < limit, "id %ld, not below %ld", highest, limit);
    set(PID_MAX, ids);
    // One thread is here, and those of the kernel.
    set(THREADS_MAX, 1);
    child = fork();
    if (!child) _exit(0);
    int error = errno;
    set(THREADS_MAX, threads);
    CHECK(child < 0 && error == EAGAIN, "a second thread of one: %d, errno %d", child, error);
    CHECK((child = fork()) >= 0, "fork");
    if (!child) _exit(0);
    CHECK(!ended(child), "child");
}

static const struct check checks[] = {
    {"the_limit_is_exact", the_limit_is_exact},
    {"threads_count", threads_count},
    {"the_limit_holds_in_races", the_limit_holds_in_races},
    {"root_and_others_have_no_part_in_it", root_and_others_have_no_part_in_it},
    {"exec_fails_for_a_user_with_too_many_processes", exec_fails_for_a_user_with_too_many_processes},
    {"limits_of_ids_have_bounds", limits_of_ids_have_bounds},
    {"ids_begin_again_below_a_lowered_limit", ids_begin_again_below_a_lowered_limit},
    {"states_are_reported", states_are_reported},
    {"the_load_rises_under_load", the_load_rises_under_load},
    {"weights_divide_a_processor", weights_divide_a_processor},
};

int main(int argc, char **argv) {
    parse_options(argc, argv, NULL);
    run_checks(checks, sizeof checks / sizeof *checks);
    return 0;
}
