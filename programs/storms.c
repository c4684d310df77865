// Storms: very many processes, threads, signals and waits at once. Each part counts what it began and what came to an
// end. After each part the kernel's memory must be free again.
//
//   --part NAME       only this part (default: all of them)
//       exec          forks, execs and exits
//       zombies       ended children, which four different reapers take
//       signals       signals to a process group
//       futex         waits that are moved from word to word, by threads and by processes
//       threads       threads that are created and joined
//       wrap          ids that begin again, beside ids in use
//       limits        what happens at a limit of processes, and after it
//   --large 1         the sizes in brackets
//   --execs N         programs in all (default 1000) [100,000], --at-once of them at a time (default 32)
//   --zombies N       ended children (default 500) [100,000]
//   --members N       processes of the group (default 500) [50,000]
//   --waiters N       threads that wait for a futex (default 100) [4,000]
//   --joined N        threads in all (default 3000) [1,000,000], --alive of them at a time (default 300) [3,000]
//   --ids N           ids of the parts wrap and limits (default 1000) [4,000]
//   --processes N     processes that share a futex (default 4)
//   --bound KIB       memory that may stay after a part (default: 512 on Quire, 65,536 on Linux), beside 64 bytes an id
//   --settings 1      the last two parts may change settings of a machine that runs Linux, too
//
// Prints NAME_kept KiB for each part, and `parts_passed N`. Needs user 0.
#include "checks.h"
#include "room.h"
#include <dirent.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

static long large, execs, at_once = 32, zombies, members, waiters, joined, alive, ids, bound, settings;
static const char *part = "";

static void *shared(size_t bytes) {
    void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(at != MAP_FAILED, "no memory for %zu bytes", bytes);
    return at;
}

// Forks without libc, which would store into pages of parent and child.
static pid_t plain_fork(void) { return syscall(SYS_fork); }

__attribute__((noreturn)) static void leave(int status) {
    syscall(SYS_exit_group, status);
    __builtin_unreachable();
}

// Waits until `value` is `wanted`. If it never is, the machine's limit ends the wait.
#define REACHES(value, wanted) \
    do { \
        while ((value) != (wanted)) usleep(1000); \
    } while (0)

// ---- the index of a child by its id --------------------------------------------------------------------------------

static uint32_t *by_id; // 1 + the index of a child that is not reaped, or 0
static long id_count;

static void begin_index(void) {
    id_count = setting(PID_MAX);
    CHECK(id_count > 0, "no " PID_MAX);
    by_id = mmap(NULL, id_count * sizeof *by_id, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(by_id != MAP_FAILED, "no memory for %ld ids", id_count);
    // Children need no copy of it.
    CHECK(!madvise(by_id, id_count * sizeof *by_id, MADV_DONTFORK), "MADV_DONTFORK");
}

static void enter(pid_t id, long index) {
    CHECK(id > 0 && id < id_count && !by_id[id], "id %d of child %ld is in use", id, index);
    by_id[id] = index + 1;
}

// The index of a child that is reaped now, for the first time.
static long take(pid_t id) {
    CHECK(id > 0 && id < id_count && by_id[id], "%d is no child, or is reaped twice", id);
    long index = by_id[id] - 1;
    by_id[id] = 0;
    return index;
}

static void no_children(void) { CHECK(waitpid(-1, NULL, 0) == -1 && errno == ECHILD, "a child is left"); }

// ---- exec ----------------------------------------------------------------------------------------------------------

enum { STARTERS = 4 };

// Keeps `most` programs alive at a time until `count` have ended. Each ends with the status that it was given.
static void start(long count, long most) {
    begin_index();
    long begun = 0;
    for (long over = 0; over < count;) {
        if (begun < count && begun - over < most) {
            char status[8];
            snprintf(status, sizeof status, "%ld", begun % 100);
            char *const args[] = {"storms", "--end", status, NULL};
            pid_t child = fork();
            CHECK(child >= 0, "fork %ld", begun);
            if (!child) {
                execve("/proc/self/exe", args, args + 3);
                leave(127);
            }
            enter(child, begun++);
            continue;
        }
        int status;
        pid_t child = waitpid(-1, &status, 0);
        CHECK(child > 0, "waitpid after %ld of %ld", over, count);
        long index = take(child);
        CHECK(WIFEXITED(status) && WEXITSTATUS(status) == index % 100, "program %ld ended with %#x", index, status);
        over++;
    }
    no_children();
}

static void part_exec(void) {
    uint64_t began = stopwatch();
    pid_t starters[STARTERS];
    for (long i = 0; i < STARTERS; i++) {
        CHECK((starters[i] = fork()) >= 0, "fork");
        if (starters[i]) continue;
        start(execs * (i + 1) / STARTERS - execs * i / STARTERS, at_once < STARTERS ? 1 : at_once / STARTERS);
        _exit(0);
    }
    for (long i = 0; i < STARTERS; i++) CHECK(!ended(starters[i]), "starter %ld", i);
    report_rate("exec_rate", execs, began);
}

// ---- zombies -------------------------------------------------------------------------------------------------------

static pid_t *children;

// Makes children that end at once, each with a status of its own, and waits for their end without reaping them.
static void make_zombies(long count) {
    for (long i = 0; i < count; i++) {
        pid_t child = plain_fork();
        CHECK(child >= 0, "fork %ld", i);
        if (!child) leave(i & 127);
        children[i] = child;
    }
    for (long i = 0; i < count; i++) {
        siginfo_t info;
        CHECK(!waitid(P_PID, children[i], &info, WEXITED | WNOWAIT), "waitid of %d", children[i]);
        CHECK(info.si_code == CLD_EXITED && info.si_status == (i & 127), "status %d of child %ld", info.si_status, i);
    }
}

// /proc has all of them, and shows some as zombies.
static void zombies_are_listed(long count) {
    long seen = 0;
    struct dirent *entry;
    DIR *proc = opendir("/proc");
    CHECK(proc, "/proc");
    while ((entry = readdir(proc))) {
        long id = strtol(entry->d_name, NULL, 10);
        if (id > 0 && id < id_count && by_id[id]) seen++;
    }
    closedir(proc);
    CHECK(seen == count, "/proc lists %ld of %ld zombies", seen, count);
    for (long i = 0; i < count; i += 1 + count / 500) {
        char path[64];
        snprintf(path, sizeof path, "/proc/%d/stat", children[i]);
        const char *state = strrchr(contents(path), ')');
        CHECK(state && state[2] == 'Z', "%s: %s", path, contents(path));
    }
}

static void reaped(pid_t child, int status) {
    long index = take(child);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == (index & 127), "child %ld ended with %#x", index, status);
}

// A process makes zombies and ends. The caller, which is the reaper of its descendants, gets them, or the kernel reaps
// them where the caller ignores SIGCHLD.
static void zombies_of_an_ended_parent(long count, bool ignored) {
    CHECK(!prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0), "PR_SET_CHILD_SUBREAPER");
    int gate[2];
    CHECK(!pipe(gate), "pipe");
    pid_t parent = fork();
    CHECK(parent >= 0, "fork");
    char byte;
    if (!parent) {
        make_zombies(count);
        CHECK(write(gate[1], "x", 1) == 1, "pipe");
        for (;;) pause();
    }
    CHECK(read(gate[0], &byte, 1) == 1, "the parent of the zombies");
    signal(SIGCHLD, ignored ? SIG_IGN : SIG_DFL);
    uint64_t began = stopwatch();
    CHECK(!kill(parent, SIGKILL), "kill");
    if (ignored) {
        no_children();
        for (long i = 0; i < count; i++)
            CHECK(kill(children[i], 0) == -1 && errno == ESRCH, "%d is there", children[i]);
        report_rate("zombies_ignored_rate", count, began);
        return;
    }
    for (long i = 0; i < count; i++) enter(children[i], i);
    for (long i = 0; i <= count; i++) {
        int status;
        pid_t child = waitpid(-1, &status, 0);
        if (child == parent) CHECK(WIFSIGNALED(status), "the parent ended with %#x", status);
        else reaped(child, status);
    }
    no_children();
    report_rate("zombies_orphaned_rate", count, began);
}

// Two threads wait for the same child by its id. One gets it, and the other learns that there is none.
static atomic_int waited;
static pthread_barrier_t rounds;
static long reaped_by_second; // how many children

static pid_t wait_for_the_child(void) {
    pthread_barrier_wait(&rounds);
    pid_t child = waitpid(atomic_load(&waited), NULL, 0);
    CHECK(child == atomic_load(&waited) || (child == -1 && errno == ECHILD), "waitpid: %d, %s", child, strerror(errno));
    return child;
}

static void *second_waiter(void *count) {
    for (long i = 0; i < *(long *)count; i++) {
        if (wait_for_the_child() > 0) reaped_by_second++;
        pthread_barrier_wait(&rounds);
    }
    return NULL;
}

static void a_child_is_waited_for_twice(long count) {
    pthread_t second;
    long mine = 0;
    CHECK(!pthread_barrier_init(&rounds, NULL, 2), "pthread_barrier_init");
    CHECK(!pthread_create(&second, NULL, second_waiter, &count), "pthread_create");
    for (long i = 0; i < count; i++) {
        pid_t child = plain_fork();
        CHECK(child >= 0, "fork %ld", i);
        if (!child) leave(0);
        atomic_store(&waited, child);
        if (wait_for_the_child() > 0) mine++;
        pthread_barrier_wait(&rounds);
    }
    CHECK(!pthread_join(second, NULL), "pthread_join");
    CHECK(mine + reaped_by_second == count, "of %ld children %ld were reaped", count, mine + reaped_by_second);
}

static void part_zombies(void) {
    begin_index();
    children = shared(zombies * sizeof *children + PAGE);
    uint64_t began = stopwatch();
    make_zombies(zombies);
    report_rate("zombies_made_rate", zombies, began);
    for (long i = 0; i < zombies; i++) enter(children[i], i);
    began = stopwatch();
    zombies_are_listed(zombies);
    report_rate("zombies_listed_rate", zombies, began);
    began = stopwatch();
    for (long i = 0; i < zombies; i++) {
        int status;
        pid_t child = waitpid(-1, &status, 0);
        reaped(child, status);
    }
    no_children();
    report_rate("zombies_any_rate", zombies, began);

    make_zombies(zombies);
    for (long i = 0; i < zombies; i++) enter(children[i], i);
    began = stopwatch();
    for (long i = zombies; i-- > 0;) {
        int status;
        CHECK(waitpid(children[i], &status, 0) == children[i], "waitpid of %d", children[i]);
        reaped(children[i], status);
    }
    no_children();
    report_rate("zombies_reverse_rate", zombies, began);
    began = stopwatch();
    a_child_is_waited_for_twice(zombies);
    no_children();
    report_rate("zombies_twice_rate", zombies, began);

    zombies_of_an_ended_parent(zombies, false);
    zombies_of_an_ended_parent(zombies, true);
}

// ---- signals -------------------------------------------------------------------------------------------------------

enum { SIGNALS = 5 };

static atomic_uint *got, *place; // signals of each member; that of this process
static atomic_long *total;

static void count_signal(int signal) {
    (void)signal;
    atomic_fetch_add(place, 1);
    atomic_fetch_add(total, 1);
}

static void part_signals(void) {
    got = shared(members * sizeof *got + PAGE);
    total = shared(PAGE);
    children = shared(members * sizeof *children + PAGE);
    CHECK(!madvise(children, members * sizeof *children + PAGE, MADV_DONTFORK), "MADV_DONTFORK");
    struct sigaction action = {.sa_handler = count_signal};
    CHECK(!sigaction(SIGUSR1, &action, NULL), "sigaction");
    pid_t group = 0;
    uint64_t began = stopwatch();
    for (long i = 0; i < members; i++) {
        place = got + i;
        pid_t child = plain_fork();
        CHECK(child >= 0, "fork %ld", i);
        if (!child) {
            syscall(SYS_setpgid, 0, group);
            for (;;) syscall(SYS_pause);
        }
        if (!group) group = child;
        CHECK(!setpgid(child, group), "setpgid of %ld", i);
        children[i] = child;
    }
    report_rate("signals_members_rate", members, began);
    if (!group) return;
    for (int round = 1; round <= SIGNALS; round++) {
        began = stopwatch();
        CHECK(!kill(-group, SIGUSR1), "kill");
        REACHES(*total, members * round);
        report_rate("signals_rate", members, began);
        for (long i = 0; i < members; i++)
            CHECK(got[i] == (unsigned)round, "%u of %d signals at %ld", got[i], round, i);
    }
    CHECK(!kill(-group, 0), "the group is there");
    began = stopwatch();
    CHECK(!kill(-group, SIGKILL), "kill");
    for (long i = 0; i < members; i++) {
        int status = ended(children[i]);
        CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL, "member %ld ended with %#x", i, status);
    }
    no_children();
    report_rate("signals_kill_rate", members, began);
    CHECK(kill(-group, 0) == -1 && errno == ESRCH, "the group is there");
    // A signal that came twice would count now.
    for (long i = 0; i < members; i++) CHECK(got[i] == SIGNALS, "%u signals at %ld", got[i], i);
}

// ---- futex ---------------------------------------------------------------------------------------------------------

// A storm ends after so many waits and moves for each waiter.
enum { WORDS = 3, MOVERS = 2, ROUNDS = 20 };

// Memory that the threads and processes of a storm share. Each word has a page of its own.
struct storm {
    struct {
        atomic_int word;
        char pad[PAGE - sizeof(atomic_int)];
    } at[WORDS];
    atomic_long waits, refused;  // that ended by a wake-up; that found another value
    atomic_long wakes, moves;    // that calls have reported
    atomic_long ready, over;     // waiters
    atomic_int stop;
};

static struct storm *storm;
static int kind; // FUTEX_PRIVATE_FLAG or 0

static long futex(int word, int operation, int value, long more, int to, int expected) {
    return syscall(SYS_futex, &storm->at[word].word, operation | kind, value, more, &storm->at[to].word, expected);
}

enum { WAIT = 0, WAKE = 1, CMP_REQUEUE = 4 };

static void wait_once(int word) {
    long result = futex(word, WAIT, 0, 0, word, 0);
    if (!result) storm->waits++;
    else if (errno == EAGAIN) storm->refused++;
    else CHECK(errno == EINTR, "a wait ended with errno %d", errno);
}

static void *one_wait(void *arg) {
    storm->ready++;
    wait_once((int)(long)arg);
    storm->over++;
    return NULL;
}

static void *many_waits(void *arg) {
    long word = (long)arg;
    storm->ready++;
    while (!storm->stop) wait_once(word++ % WORDS);
    storm->over++;
    return NULL;
}

// Moves and wakes waiters between all words until the storm stops, a few at a time.
static void *mover(void *arg) {
    uint64_t seed = (long)arg;
    while (!storm->stop) {
        uint64_t random = random_next(&seed);
        int from = random % WORDS, to = random / WORDS % WORDS, few = 1 + random / 64 % 8;
        // It returns the sum of woken and moved waiters, so it wakes none.
        long moved = from == to ? 0 : futex(from, CMP_REQUEUE, 0, few, to, 0);
        if (moved >= 0) storm->moves += moved;
        else CHECK(errno == EAGAIN, "a requeue ended with errno %d", errno);
        long woken = futex(to, WAKE, few, 0, to, 0);
        CHECK(woken >= 0 && woken <= few, "%ld of %d are woken", woken, few);
        storm->wakes += woken;
    }
    return NULL;
}

static pthread_t begin_thread(void *(*body)(void *), long arg) {
    pthread_attr_t small;
    pthread_t thread;
    pthread_attr_init(&small);
    CHECK(!pthread_attr_setstacksize(&small, 16384) && !pthread_attr_setguardsize(&small, 0), "a small stack");
    CHECK(!(errno = pthread_create(&thread, &small, body, (void *)arg)), "pthread_create");
    return thread;
}

// A process with `count` of the waiters.
static pid_t waiting_process(void *(*body)(void *), long count, bool same) {
    pid_t child = fork();
    CHECK(child >= 0, "fork");
    if (child) return child;
    pthread_t *threads = calloc(count + 1, sizeof *threads);
    CHECK(threads, "no memory for %ld threads", count);
    for (long i = 0; i < count; i++) threads[i] = begin_thread(body, same ? 0 : i);
    for (long i = 0; i < count; i++) CHECK(!pthread_join(threads[i], NULL), "pthread_join");
    _exit(0);
}

// Wakes all that wait, wherever they are, until `over` of them have ended.
static void wake_all(long count) {
    while (storm->over != count) {
        for (int i = 0; i < WORDS; i++) {
            long woken = futex(i, WAKE, INT32_MAX, 0, i, 0);
            CHECK(woken >= 0, "wake");
            storm->wakes += woken;
        }
        sched_yield();
    }
}

// All wait for the first word, go to the second word in one call, and then to the third by small steps. A wake-up of
// all on the third finds each of them.
static void in_order(long count) {
    REACHES(storm->ready, count);
    // A waiter counts as ready just before it waits.
    while (storm->moves != count) {
        long moved = futex(0, CMP_REQUEUE, 0, INT32_MAX, 1, 0);
        CHECK(moved >= 0, "requeue");
        storm->moves += moved;
        sched_yield();
    }
    CHECK(futex(0, CMP_REQUEUE, 0, 1, 1, 5) == -1 && errno == EAGAIN, "a requeue with a wrong value");
    CHECK(futex(0, WAKE, INT32_MAX, 0, 0, 0) == 0, "a waiter is left on the first word");
    for (long left = count; left > 0;) {
        long moved = futex(1, CMP_REQUEUE, 0, 7, 2, 0);
        CHECK(moved == (left < 7 ? left : 7), "%ld of 7 moved, %ld were left", moved, left);
        left -= moved;
    }
    CHECK(futex(1, WAKE, INT32_MAX, 0, 1, 0) == 0, "a waiter is left on the second word");
    CHECK(storm->waits == 0 && storm->over == 0, "a waiter woke early");
    CHECK(futex(2, WAKE, INT32_MAX, 0, 2, 0) == count, "not all %ld waiters are woken", count);
    REACHES(storm->over, count);
    CHECK(storm->waits == count, "%ld of %ld waits were woken", (long)storm->waits, count);
}

// `processes` processes have `waiters` threads in all. With one process the words are private to it.
static void futexes(int processes, const char *name) {
    char line[64];
    kind = processes > 1 ? 0 : 128;
    for (int races = 0; races < 2; races++) {
        storm = shared(sizeof *storm);
        void *(*body)(void *) = races ? many_waits : one_wait;
        pid_t others[processes];
        pthread_t *threads = calloc(waiters + 1, sizeof *threads), movers[MOVERS];
        CHECK(threads, "no memory for %ld threads", waiters);
        long here = processes > 1 ? 0 : waiters;
        for (long i = 0; processes > 1 && i < processes; i++)
            others[i] = waiting_process(body, waiters * (i + 1) / processes - waiters * i / processes, !races);
        for (long i = 0; i < here; i++) threads[i] = begin_thread(body, races ? i : 0);
        if (races) {
            for (long i = 0; i < MOVERS; i++) movers[i] = begin_thread(mover, i + 1);
            REACHES(storm->ready, waiters);
            uint64_t began = stopwatch();
            // The storm.
            while (storm->waits < waiters * ROUNDS || storm->moves < waiters * ROUNDS) usleep(1000);
            snprintf(line, sizeof line, "futex_%s_waits_rate", name);
            report_rate(line, storm->waits, began);
            snprintf(line, sizeof line, "futex_%s_moves_rate", name);
            report_rate(line, storm->moves, began);
            storm->stop = 1;
            for (int i = 0; i < WORDS; i++) storm->at[i].word = 1;
            for (long i = 0; i < MOVERS; i++) CHECK(!pthread_join(movers[i], NULL), "pthread_join");
            wake_all(waiters);
            CHECK(storm->waits == storm->wakes, "%ld wake-ups ended %ld waits", (long)storm->wakes, (long)storm->waits);
        } else {
            in_order(waiters);
        }
        for (long i = 0; i < here; i++) CHECK(!pthread_join(threads[i], NULL), "pthread_join");
        for (long i = 0; processes > 1 && i < processes; i++) CHECK(!ended(others[i]), "process %ld", i);
        free(threads);
        munmap(storm, sizeof *storm);
    }
}

static void part_futex(void) {
    futexes(1, "private");
    futexes(options.processes > 1 ? options.processes : 4, "shared");
}

// ---- threads -------------------------------------------------------------------------------------------------------

static atomic_int gate;
static atomic_long arrived, sum;

static void *thread(void *arg) {
    arrived++;
    while (!gate) syscall(SYS_futex, &gate, WAIT | 128, 0, NULL, NULL, 0);
    sum += (long)arg;
    return arg;
}

static void part_threads(void) {
    pthread_t *threads = calloc(alive + 1, sizeof *threads);
    CHECK(threads, "no memory for %ld threads", alive);
    uint64_t began = stopwatch();
    long made = 0, expected = 0;
    while (made < joined) {
        long some = joined - made < alive ? joined - made : alive;
        gate = 0;
        arrived = 0;
        for (long i = 0; i < some; i++) threads[i] = begin_thread(thread, made + i), expected += made + i;
        // All of them are alive at once.
        REACHES(arrived, some);
        gate = 1;
        syscall(SYS_futex, &gate, WAKE | 128, INT32_MAX, NULL, NULL, 0);
        for (long i = 0; i < some; i++) {
            void *result;
            CHECK(!pthread_join(threads[i], &result) && (long)result == made + i, "thread %ld", made + i);
        }
        made += some;
    }
    CHECK(sum == expected, "the sum of %ld threads is %ld, not %ld", joined, (long)sum, expected);
    // A join ends a little before its thread leaves the list.
    REACHES(row("/proc/self/status", "Threads"), 1);
    report_rate("threads_rate", joined, began);
}

// ---- wrap ----------------------------------------------------------------------------------------------------------

static long saved_ids, saved_threads;

// Whether this machine's settings may be changed. Those of a Linux machine belong to others, too.
static bool may_set(const char *name) {
    if (on_quire() || settings) return true;
    fprintf(stderr, "%s is left out: it changes settings of the machine, and --settings 1 is not given\n", name);
    return false;
}

static void restore(void) {
    CHECK(set(PID_MAX, saved_ids) && set(THREADS_MAX, saved_threads), "the settings cannot be restored");
}

// Ids in use by a living process, by a group without its leader, by a session without its leader.
enum { HOLDERS = 8 };

static const char *const kinds[] = {"process", "group", "session"};

static pid_t holder(int how, pid_t *helper) {
    int gate[2];
    CHECK(!pipe(gate), "pipe");
    pid_t first = fork();
    CHECK(first >= 0, "fork");
    if (!first) {
        if (how == 1) CHECK(!setpgid(0, 0), "setpgid");
        if (how == 2) CHECK(setsid() > 0, "setsid");
        if (how) {
            // A child stays in the group or in the session, and its parent, the leader, ends.
            pid_t child = fork();
            CHECK(child >= 0, "fork");
            if (child) _exit(0);
            // Only the session has its leader's id then.
            if (how == 2) CHECK(!setpgid(0, 0), "setpgid");
        }
        pid_t self = getpid();
        CHECK(write(gate[1], &self, sizeof self) == sizeof self, "pipe");
        for (;;) pause();
    }
    CHECK(read(gate[0], helper, sizeof *helper) == sizeof *helper, "the holder of an id");
    close(gate[0]), close(gate[1]);
    if (how) CHECK(!ended(first), "a leader");
    return first;
}

static int cpu_count(cpu_set_t *all) {
    CHECK(!sched_getaffinity(0, sizeof *all, all), "sched_getaffinity");
    return CPU_COUNT(all);
}

// Each CPU has some ids at hand, so forks go round all CPUs.
static void go_to_cpu(const cpu_set_t *all, long turn) {
    cpu_set_t one;
    long nth = turn % CPU_COUNT(all);
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++) {
        if (!CPU_ISSET(cpu, all) || nth-- > 0) continue;
        CPU_ZERO(&one);
        CPU_SET(cpu, &one);
        CHECK(!sched_setaffinity(0, sizeof one, &one), "sched_setaffinity");
        return;
    }
}

static void part_wrap(void) {
    if (!may_set("wrap")) return;
    // Its holders' members come to this process when their leaders end.
    CHECK(!prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0), "PR_SET_CHILD_SUBREAPER");
    CHECK(!set(PID_MAX, 300) && set(PID_MAX, 301) && setting(PID_MAX) == 301, "301 is the lowest limit");
    CHECK(set(PID_MAX, ids), "a limit of %ld ids", ids);
    cpu_set_t all;
    cpu_count(&all);
    // Linux does not hand out an id below 300 again.
    for (pid_t child = 0; !on_quire() && child <= 300;) {
        CHECK((child = plain_fork()) >= 0, "fork");
        if (!child) leave(0);
        CHECK(!ended(child), "child");
    }
    pid_t held[HOLDERS * 3], helpers[HOLDERS * 3];
    for (int i = 0; i < HOLDERS * 3; i++) {
        held[i] = holder(i % 3, helpers + i);
        CHECK(held[i] < ids, "id %d is not below %ld", held[i], ids);
    }
    unsigned *seen = calloc(ids, sizeof *seen);
    CHECK(seen, "no memory");
    long turns = 0, falls = 0;
    pid_t last = 0;
    uint64_t began = stopwatch();
    for (; turns < 4 * ids; turns++) {
        if (turns % 64 == 0) go_to_cpu(&all, turns / 64);
        pid_t child = plain_fork();
        CHECK(child >= 0, "fork %ld below %ld", turns, ids);
        if (!child) leave(0);
        CHECK(child > 0 && child < ids, "id %d, not below %ld", child, ids);
        for (int i = 0; i < HOLDERS * 3; i++)
            CHECK(child != held[i] && child != helpers[i], "id %d is in use: by %s %d", child, kinds[i % 3], held[i]);
        CHECK(!ended(child), "child");
        seen[child]++;
        if (child < last) falls++;
        last = child;
    }
    report_rate("wrap_rate", turns, began);
    long again = 0, new = 0;
    for (long id = 1; id < ids; id++) new += seen[id] > 0, again += seen[id] > 1;
    report("wrap_ids", new, "ids");
    report("wrap_ids_again", again, "ids");
    CHECK(falls > 0 && again > ids / 4, "%ld ids came again, in %ld rounds", again, falls);
    for (int i = 0; i < HOLDERS * 3; i++) {
        CHECK(!kill(helpers[i], 0), "holder %d", i);
        if (i % 3 == 1) CHECK(getpgid(helpers[i]) == held[i] && !kill(-held[i], 0), "the group %d", held[i]);
        if (i % 3 == 2) CHECK(getsid(helpers[i]) == held[i], "the session %d", held[i]);
        CHECK(!kill(helpers[i], SIGKILL) && WIFSIGNALED(ended(helpers[i])), "holder %d", i);
    }
    // Ids that are free now come again, too.
    unsigned missing = HOLDERS * 3;
    for (turns = 0; missing && turns < 8 * ids; turns++) {
        if (turns % 64 == 0) go_to_cpu(&all, turns / 64);
        pid_t child = plain_fork();
        CHECK(child >= 0, "fork %ld below %ld", turns, ids);
        if (!child) leave(0);
        CHECK(!ended(child), "child");
        for (int i = 0; i < HOLDERS * 3; i++)
            if (child == held[i]) held[i] = 0, missing--;
    }
    CHECK(!missing, "%u ids that became free did not come again in %ld forks", missing, turns);
}

// ---- limits --------------------------------------------------------------------------------------------------------

static pid_t sleeping(void) {
    pid_t child = plain_fork();
    if (!child)
        for (;;) syscall(SYS_pause);
    return child;
}

// Forks until it is refused, and then refuses so again. Ends all children. Returns their number.
static long fill(const cpu_set_t *all, long most) {
    pid_t *children = calloc(most + 1, sizeof *children);
    CHECK(children, "no memory");
    long count = 0;
    // A CPU may have ids at hand where another has none.
    for (int refused = 0; refused < 2 * CPU_COUNT(all); refused++) {
        go_to_cpu(all, refused);
        for (pid_t child; count <= most && (child = sleeping()) > 0;) children[count++] = child;
        CHECK(count <= most, "more than %ld processes", most);
        CHECK(errno == EAGAIN, "fork %ld is refused with errno %d", count, errno);
    }
    CHECK(sleeping() == -1 && errno == EAGAIN, "a refused fork succeeds");
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, mover, NULL) == EAGAIN, "a thread beyond the limit");
    for (long i = 0; i < count; i++) CHECK(!kill(children[i], SIGKILL), "kill");
    for (long i = 0; i < count; i++) CHECK(WIFSIGNALED(ended(children[i])), "child %ld", i);
    no_children();
    free(children);
    CHECK(!sched_setaffinity(0, sizeof *all, all), "sched_setaffinity");
    return count;
}

static void of_a_user(void) {
    const rlim_t most = ids / 2;
    cpu_set_t all;
    cpu_count(&all);
    struct rlimit processes = {most, most};
    CHECK(!setrlimit(RLIMIT_NPROC, &processes), "setrlimit");
    CHECK(!setgid(54321) && !setuid(54321), "setuid");
    for (int round = 0; round < 3; round++) {
        long count = fill(&all, most);
        CHECK(count == (long)most - 1, "%ld of %ld processes in round %d", count, (long)most, round);
    }
    report("limits_of_a_user", most, "processes");
}

static void of_the_machine(const char *path, const char *name, long most, long slack) {
    cpu_set_t all;
    long saved = setting(path);
    cpu_count(&all);
    CHECK(set(path, most), "%s to %ld", path, most);
    long first = 0;
    for (int round = 0; round < 3; round++) {
        long count = fill(&all, most);
        if (!round) first = count;
        CHECK(count > 0 && count + slack >= first, "%s: %ld processes, %ld in round %d", path, first, count, round);
    }
    CHECK(set(path, saved), "%s to %ld", path, saved);
    report(name, first, "processes");
}

static void part_limits(void) {
    CHECK(!in_child(of_a_user), "the limit of a user");
    if (!may_set("limits of the machine")) return;
    cpu_set_t all;
    // Each CPU keeps up to 63 ids at hand. Threads of the kernel come and go.
    of_the_machine(PID_MAX, "limits_of_ids", ids, 63 * cpu_count(&all));
    of_the_machine(THREADS_MAX, "limits_of_threads", ids / 2, on_quire() ? 0 : 16);
}

// ---- all parts -----------------------------------------------------------------------------------------------------

static const struct {
    const char *name;
    void (*run)(void);
} parts[] = {
    {"exec", part_exec},       {"zombies", part_zombies}, {"signals", part_signals}, {"futex", part_futex},
    {"threads", part_threads}, {"wrap", part_wrap},       {"limits", part_limits},
};
enum { PARTS = sizeof parts / sizeof *parts };

static void nothing(void) { free(calloc(1, 100000)); }

// The most ids that were in use at once. The table of ids does not shrink.
static long most_ids(void) {
    long most = at_once;
    const long each[] = {zombies, members, waiters, alive, ids};
    for (size_t i = 0; i < sizeof each / sizeof *each; i++)
        if (each[i] > most) most = each[i];
    return most + 4096;
}

static void size(long *number, long small, long big) {
    if (*number < 0) *number = large ? big : small;
    CHECK(*number >= 0 && *number < 1l << 31, "a size of %ld", *number);
}

int main(int argc, char **argv) {
    if (argc == 3 && !strcmp(argv[1], "--end")) return atoi(argv[2]);
    execs = zombies = members = waiters = joined = alive = ids = bound = -1;
    struct setting own[] = {
        {"--part", NULL, &part}, {"--large", &large, NULL}, {"--execs", &execs, NULL}, {"--at-once", &at_once, NULL},
        {"--zombies", &zombies, NULL}, {"--members", &members, NULL}, {"--waiters", &waiters, NULL},
        {"--joined", &joined, NULL}, {"--alive", &alive, NULL}, {"--ids", &ids, NULL}, {"--bound", &bound, NULL},
        {"--settings", &settings, NULL}, {0},
    };
    parse_options(argc, argv, own);
    size(&execs, 1000, 100000), size(&zombies, 500, 100000), size(&members, 500, 50000), size(&waiters, 100, 4000);
    size(&joined, 3000, 1000000), size(&alive, 300, 3000), size(&ids, 1000, 4000);
    size(&bound, on_quire() ? 512 : 65536, on_quire() ? 512 : 65536);
    CHECK(alive > 0 && at_once > 0 && ids >= 500, "at least one at a time, and 500 ids");
    CHECK(!geteuid(), "only root can change the settings that this program needs");
    make_room(most_ids());
    saved_ids = setting(PID_MAX), saved_threads = setting(THREADS_MAX);
    struct rlimit none = {0, 0};
    CHECK(!setrlimit(RLIMIT_CORE, &none), "setrlimit");
    // Things of first use are made.
    CHECK(!in_child(nothing), "a child");
    free_at_rest(), contents("/proc/vmstat");

    int passed = 0, selected = 0;
    for (int i = 0; i < PARTS; i++) {
        if (*part && strcmp(part, parts[i].name)) continue;
        selected++;
        char *rows = strdup(contents("/proc/vmstat")), line[64];
        CHECK(rows, "no memory");
        uint64_t before = free_at_rest();
        int status = in_child(parts[i].run);
        if (status) {
            restore();
            fprintf(stderr, "%s: status %#x\n", parts[i].name, status);
            continue;
        }
        if (on_quire() || settings) restore();
        double kept = memory_is_back(before, rows, bound * 1024 + most_ids() * 64, parts[i].name);
        snprintf(line, sizeof line, "%s_kept", parts[i].name);
        report(line, kept / 1024, "KiB");
        free(rows);
        passed++;
    }
    CHECK(selected, "no part has the name %s", part);
    report("parts_passed", passed, "parts");
    return passed != selected;
}
