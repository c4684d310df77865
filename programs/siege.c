// A machine under siege. Four processes of two racing threads each make random system calls, two as uid 0 and two as
// uid 1000. Beside them run memory pressure (uid 1000), a fork bomb (uid 1000) and a heartbeat (a shell of root's once
// a second). For every third of the time the memory core checks itself at another level. The program must be process 1,
// because it ends all other processes at the end. Then it checks that the machine is as it was.
//
// --seed N        repeats the sequence of each thread; exactly, if time is counted (as ./quire test does in some
// rounds).
//   --seconds S     how long.
//   --megabytes N   memory that the pressure touches at random, and checks.
//   --patience N    seconds that the heartbeat may take.
#include "report.h"
#include "siege_calls.h"
#include <dirent.h>
#include <ftw.h>
#include <grp.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/time.h>

#define ATTACKERS 4
#define THREADS 2
#define NUMBERS 512
#define ERRNOS 256
#define MOST 16 // processes of the fork bomb
#define COUNT(list) (sizeof(list) / sizeof *(list))
#define HOME "/tmp/siege"

static long seed = 1, megabytes = 64, patience = 10;

static struct { // one page set for all, that attackers cannot harm: see `playground`
    struct thread {
        _Atomic uint64_t calls, state;
    } threads[ATTACKERS][THREADS];
    _Atomic uint8_t number[NUMBERS], error[ERRNOS];
    _Atomic uint64_t beats, longest, beating_since, pages_checked, bombs;
    _Atomic int alive; // processes of the fork bomb
    _Atomic int wrong; // the pressure found a wrong byte
} *shared;

// ---- the calls -----------------------------------------------------------------------------------------------------

// No errno, hence no thread-local storage, which the calls may have destroyed.
static long call(long n, const long *a) {
    register long r10 __asm__("r10") = a[3], r8 __asm__("r8") = a[4], r9 __asm__("r9") = a[5];
    long result;
    __asm__ volatile("syscall"
                     : "=a"(result)
                     : "a"(n), "D"(a[0]), "S"(a[1]), "d"(a[2]), "r"(r10), "r"(r8), "r"(r9)
                     : "rcx", "r11", "memory");
    return result;
}

// Pages of every kind, always at one place, so that a seed repeats. Calls may write to any address in their arguments,
// so the attacker relies on nothing elsewhere within their reach. If a call hits a lucky address, the attacker dies and
// is restarted.
#define playground ((char *)0x600000000000)
#define PAGES 32
#define NAMES (2 * (long)PAGE)
#define TIMES (3 * (long)PAGE) // short times, ranges, and sets of signals
// Root may write to what others may not, but not to the file of a running program (ETXTBSY), this one.
static const char *const names[] = {
    "a", "b/../c", ".", "..", "a/b", "d", "/proc/self/maps", "/dev/zero", "/dev/null", "/proc/self/cwd",
        "/proc/self/mem",
    "/proc/self/fd/3", "/proc/self/exe", "/proc/self/stat", "/dev/full", "/dev/ptmx", "/proc/1/environ", "user.name",
        "",
};
#define NAME_SIZE 24
#define OWN_NAMES 6 // names that may be removed: those within the attackers' directory

static void fill_playground(void) {
    for (size_t i = 0; i < COUNT(names); i++)
        memcpy(playground + NAMES + i * NAME_SIZE, names[i], strlen(names[i]) + 1);
    long *times = (long *)(playground + TIMES);
    for (int i = 0; i < 64; i++) times[i] = i % 2 ? i * 50000 : 0;
    for (int i = 64; i < 128; i++) times[i] = i % 2 ? (i * 64) % 4096 : (long)(playground + 8 * PAGE + i * 100);
}

static void make_playground(void) {
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED;
    if (mmap(playground, PAGES * PAGE, PROT_READ | PROT_WRITE, flags, -1, 0) == MAP_FAILED) _exit(1);
    fill_playground();
    mprotect(playground + 4 * PAGE, PAGE, PROT_READ);
    mprotect(playground + 5 * PAGE, PAGE, PROT_NONE);
    munmap(playground + 6 * PAGE, PAGE);
    mmap(playground + 16 * PAGE, 8 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
}

static long any_address(uint64_t r) {
    uint64_t page = (r >> 8) % PAGES, offset = (r >> 16) % 4 ? 0 : (r >> 24) % PAGE;
    switch (r % 16) {
    case 0: return 0;
    case 1: return -1 - (long)(r >> 8) % 8192;
    case 2: return 0xffffffff80000000 + ((r >> 8) << 12 & 0x3fffffff);
    case 3: return 0xffff800000000000 + ((r >> 8) << 12 & 0x7fffffffffff);
    case 4: return 0x7ffffffff000 - page * PAGE + offset;
    case 5: return (r >> 8) & 0x7fffffffffff;
    case 6: return (long)playground + (page + 1) * PAGE - 1 - (r >> 24) % 16; // across a page's end
    default: return (long)playground + page * PAGE + offset;
    }
}

static long edge(uint64_t r) {
    switch (r % 8) {
    case 0: return 0;
    case 1: return 1l << (r >> 8) % 64;
    case 2: return (1l << (r >> 8) % 64) - 1;
    case 3: return -(long)((r >> 8) % 4096);
    case 4: return (r >> 8) % 16 * PAGE;
    default: return (r >> 8) % 300;
    }
}

static long argument(char kind, uint64_t *state, long self) {
    uint64_t r = random_next(state);
    // Now and then an argument of the wrong kind.
    if (r >> 56 == 0) kind = '?';
    r &= UINT64_MAX >> 8;
    switch (kind) {
    case 'f': return r % 16 == 0 ? edge(r >> 8) : r % 16 == 1 ? AT_FDCWD : (long)((r >> 8) % 24);
    case 'n': return r % 16 == 0 ? any_address(r >> 8)
        : (long)playground + NAMES + (long)((r >> 8) % COUNT(names)) * NAME_SIZE;
    case 'T': return r % 8 == 0 ? any_address(r >> 8) : (long)playground + TIMES + (long)((r >> 8) % 32) * 16;
    case 'v': return r % 8 == 0 ? any_address(r >> 8) : (long)playground + TIMES + 512 + (long)((r >> 8) % 24) * 16;
    case 'p': return r % 8 == 0 ? any_address(r >> 8)
        : (long)playground + (long)((r >> 8) % PAGES * PAGE + (r >> 20) % PAGE / 8 * 8);
    case 'a': return r % 8 == 0 ? any_address(r >> 8) & -4096l : r % 8 == 1 ? 0l
        : (long)(playground + (r >> 8) % PAGES * PAGE);
    case 'l': return r % 8 == 0 ? edge(r >> 8) : (long)(((r >> 8) % 8 + 1) * PAGE);
    case 's': return r % 8 == 0 ? edge(r >> 8) : (long)((r >> 8) % 8192);
    case 'o': return r % 4 == 0 ? edge(r >> 8) : (long)((r >> 8) % 65536);
    case 'F': return r % 4 == 0 ? 1l << (r >> 8) % 32 : r % 4 == 1 ? (long)((r >> 8) & (r >> 16) & 0x7ffff)
        : (long)((r >> 8) % 64);
    case 'P': return r % 4 ? self : (long)((r >> 8) % 64) - 8;
    case 'S': return (r >> 8) % 66;
    case 'm': return (r >> 8) % 010000;
    case 'u': return r % 4 == 0 ? -1 : r % 4 == 1 ? 0 : 1000;
    case 'c': return (long)((r >> 8) % 14) - 2;
    case 'i': return r % 8 == 0 ? edge(r >> 8) : (long)((r >> 8) % 40);
    default: return r % 2 ? edge(r >> 8) : any_address(r >> 8);
    }
}

static bool is_forbidden(long number, bool root) {
    for (size_t i = 0; i < COUNT(forbidden); i++)
        if (forbidden[i].number == number) return root || !forbidden[i].root_only;
    return false;
}

// A number and its arguments. False: nothing is called this time.
static bool choose(uint64_t *state, bool root, long self, long *number, long *a) {
    uint64_t r = random_next(state);
    const char *kinds = "??????";
    if (r % 16 == 0) { // any number, any arguments
        *number = r >> 8 & 1 ? (r >> 16) % 470 : r >> 9 & 1 ? 0x40000000 | (r >> 16) % 600 : (long)((r >> 16) % 4096);
    } else {
        const struct shape *shape = &shapes[(r >> 8) % COUNT(shapes)];
        *number = shape->number;
        kinds = shape->arguments;
    }
    bool more = true;
    for (int i = 0; i < 6; i++) {
        more = more && kinds[i];
        a[i] = more ? argument(kinds[i], state, self) : 0;
    }
    if (is_forbidden(*number, root)) return false;
    for (size_t i = 0; i < COUNT(harms_process); i++)
        if (harms_process[i] == *number)
            for (int j = 0; j < 2; j++)
                if (a[j] != self) a[j] = 0x3fffffff;
    // Root removes and makes names only within its directory.
    for (int i = 0; root && i < 6; i++) {
        long name = (a[i] - (long)playground - NAMES) / NAME_SIZE;
        bool reads = *number == SYS_openat || *number == SYS_open || *number == SYS_stat || *number == SYS_readlink;
        if (a[i] >= (long)playground + NAMES && name < (long)COUNT(names) && name >= OWN_NAMES && !reads)
            a[i] = (long)playground + NAMES + name % OWN_NAMES * NAME_SIZE;
    }
    return true;
}

// ---- the attackers -------------------------------------------------------------------------------------------------

static void on_alarm(int signal) { (void)signal; }

// A timer interrupts calls that block. It is set anew now and then, because the calls remove it.
static void interrupt_often(void) {
    sigset_t nothing;
    sigemptyset(&nothing);
    struct sigaction action = {.sa_handler = on_alarm};
    struct itimerval tick = {{0, 5000}, {0, 5000}};
    sigaction(SIGALRM, &action, NULL);
    sigprocmask(SIG_SETMASK, &nothing, NULL);
    setitimer(ITIMER_REAL, &tick, NULL);
    signal(SIGXFSZ, SIG_IGN);
    signal(SIGPIPE, SIG_IGN);
    // No limit binds root's children, and each stays a process until it is reaped.
    signal(SIGCHLD, SIG_IGN);
    long any[6] = {-1, 0, WNOHANG};
    while (call(SYS_wait4, any) > 0) {}
}

static struct attacker {
    int index, thread;
    bool root;
    long self;
} attackers[THREADS];

static void *attack(void *argument) {
    const struct attacker me = *(struct attacker *)argument;
    struct thread *my = &shared->threads[me.index][me.thread];
    long none[6] = {0};
    for (unsigned turn = 0;; turn++) {
        if (turn % 32 == 0) {
            // If calls have unmapped it, the attacker dies, and restarts with it.
            fill_playground();
            interrupt_often();
        }
        uint64_t state = my->state;
        long number, a[6];
        bool good = choose(&state, me.root, me.self, &number, a);
        my->state = state;
        if (!good) continue;
        long result = call(number, a);
        // The call may have returned in a child of ours.
        if (call(SYS_getpid, none) != me.self) call(SYS_exit_group, none);
        my->calls++;
        if (number < NUMBERS) shared->number[number] = 1;
        if (result < 0 && result > -ERRNOS) shared->error[-result] = 1;
    }
    return NULL;
}

static void limit(int what, rlim_t to) {
    struct rlimit l = {to, to};
    if (setrlimit(what, &l)) _exit(1);
}

static void become_user(void) {
    if (setgroups(0, NULL) || setresgid(1000, 1000, 1000) || setresuid(1000, 1000, 1000)) _exit(1);
}

__attribute__((noreturn)) static void attacker(int index) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    setsid();
    bool root = index % 2 == 0;
    if (chdir(HOME)) _exit(1);
    int null = open("/dev/null", O_RDWR);
    for (int fd = 0; fd < 64; fd++) fd < 3 ? dup2(null, fd) : close(fd);
    limit(RLIMIT_FSIZE, 65536);
    limit(RLIMIT_AS, 24 * MIB);
    limit(RLIMIT_NOFILE, 64);
    limit(RLIMIT_CORE, 0);
    limit(RLIMIT_NPROC, 100);
    if (!root) become_user();
    make_playground();
    for (int i = 0; i < THREADS; i++) attackers[i] = (struct attacker){index, i, root, getpid()};
    pthread_t other;
    for (int i = 1; i < THREADS; i++)
        if (pthread_create(&other, NULL, attack, &attackers[i])) _exit(1);
    attack(&attackers[0]);
    _exit(1);
}

// ---- beside the attackers ------------------------------------------------------------------------------------------

__attribute__((noreturn)) static void pressure(void) {
    become_user();
    size_t pages = megabytes * MIB / PAGE;
    uint64_t *memory = mmap(NULL, pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1,
        0);
    if (memory == MAP_FAILED) _exit(1);
    uint64_t state = seed ^ 0x5eed;
    for (;;) {
        size_t page = random_next(&state) % pages;
        uint64_t *at = memory + page * PAGE / 8, tag = page * 0x9e3779b97f4a7c15ull | 1;
        if (at[0] && (at[0] != tag || at[511] != ~tag)) shared->wrong = 1;
        at[0] = tag;
        at[511] = ~tag;
        // Keeps pageout at work all the time, and leaves CPUs for the attackers.
        if (++shared->pages_checked % 256 == 0) usleep(1000);
    }
}

__attribute__((noreturn)) static void bomb(void) {
    setpgid(0, 0);
    become_user();
    shared->alive = 1;
    uint64_t state = seed + getpid();
    for (bool first = true;;) {
        // Bounded by its own count: an unbounded bomb is another attack, and RLIMIT_NPROC has a test of its own.
        pid_t child = -1;
        if (++shared->alive <= MOST) child = fork();
        if (child == 0) {
            first = false;
            state += getpid();
        } else if (child < 0) {
            shared->alive--;
            usleep(10000);
        } else {
            shared->bombs++;
        }
        while (waitpid(-1, NULL, WNOHANG) > 0) {}
        if (!first && random_next(&state) % 4 == 0) {
            shared->alive--;
            _exit(0);
        }
    }
}

__attribute__((noreturn)) static void heartbeat(void) {
    for (;;) {
        uint64_t start = now_ns();
        shared->beating_since = start;
        pid_t shell = fork();
        if (shell == 0) {
            int null = open("/dev/null", O_RDWR);
            dup2(null, 1);
            dup2(null, 2);
            execl("/bin/busybox", "sh", "-c", "ls / | wc -l; exit 7", NULL);
            _exit(127);
        }
        int status = -1;
        if (shell > 0) waitpid(shell, &status, 0);
        uint64_t took = now_ns() - start;
        // A shell that cannot be started, or is killed, has not answered.
        if (shell > 0 && WIFEXITED(status) && WEXITSTATUS(status) == 7) {
            shared->beats++;
            if (took > shared->longest) shared->longest = took;
            shared->beating_since = 0;
            usleep(1000000);
        } else {
            usleep(100000);
        }
    }
}

// ---- process 1 -----------------------------------------------------------------------------------------------------

static uint64_t deaths, hangs;

static pid_t start(void (*what)(void)) {
    pid_t child = fork();
    CHECK(child >= 0, "fork");
    if (!child) what();
    return child;
}

static void set_check(int level) {
    int fd = open("/proc/sys/vm/quire_check", O_WRONLY);
    if (fd < 0) return; // another kernel
    char digit = '0' + level;
    CHECK(write(fd, &digit, 1) == 1, "the checker cannot be set");
    close(fd);
}

static int remove_entry(const char *path, const struct stat *s, int type, struct FTW *ftw) {
    (void)s, (void)type, (void)ftw;
    remove(path);
    return 0;
}

// Ends all processes but process 1, and removes their files.
static void end_all(void) {
    uint64_t end = now_ns() + 60000000000ull;
    for (;;) {
        // Stopped ones too; processes that are being forked meanwhile end at the next turn.
        kill(-1, SIGKILL);
        pid_t gone = waitpid(-1, NULL, WNOHANG);
        if (gone < 0 && errno == ECHILD) break;
        CHECK(now_ns() < end, "a killed process does not end");
        if (gone == 0) usleep(1000);
    }
    nftw(HOME, remove_entry, 16, FTW_DEPTH | FTW_PHYS);
    for (size_t i = 0; i < COUNT(names); i++)
        if (names[i][0] != '/' && names[i][0] != '.' && names[i][0]) {
            char path[64];
            snprintf(path, sizeof path, "/%s", names[i]);
            nftw(path, remove_entry, 16, FTW_DEPTH | FTW_PHYS);
            snprintf(path, sizeof path, "/tmp/%s", names[i]);
            nftw(path, remove_entry, 16, FTW_DEPTH | FTW_PHYS);
        }
}

static void siege(double seconds) {
    CHECK(!mkdir(HOME, 0777) && !chmod(HOME, 0777), "cannot make " HOME);
    pid_t heart = start(heartbeat), presses = start(pressure), bombs = start(bomb), at[ATTACKERS] = {0};
    uint64_t seen[ATTACKERS] = {0}, since[ATTACKERS] = {0}, begin = now_ns(), end = begin + (uint64_t)(seconds * 1e9);
    shared->beating_since = begin;
    int level = -1;
    for (uint64_t now; (now = now_ns()) < end; usleep(2000)) {
        int wanted = (now - begin) * 3 / (end - begin);
        if (wanted != level) set_check(level = wanted);
        int status;
        for (pid_t gone; (gone = waitpid(-1, &status, WNOHANG | WUNTRACED)) > 0;) {
            CHECK(gone != heart, "the heartbeat of root's ended with status %#x", status);
            if (gone == presses) presses = start(pressure); // memory was short
            if (gone == bombs) bombs = start(bomb);
            for (int i = 0; i < ATTACKERS; i++)
                if (gone == at[i]) {
                    deaths++;
                    kill(-gone, SIGKILL);
                    kill(gone, SIGKILL);
                    if (WIFSTOPPED(status)) continue; // its end comes
                    at[i] = 0;
                }
        }
        uint64_t beating = shared->beating_since;
        CHECK(!beating || now < beating || now - beating < (uint64_t)patience * 1000000000,
            "a shell of root's has not answered in %ld s", patience);
        CHECK(!shared->wrong, "memory under pressure has a wrong byte");
        for (int i = 0; i < ATTACKERS; i++) {
            uint64_t calls = 0;
            for (int t = 0; t < THREADS; t++) calls += shared->threads[i][t].calls;
            if (calls != seen[i] || !at[i]) seen[i] = calls, since[i] = now;
            if (at[i] && now - since[i] > 300000000) {
                hangs++;
                kill(-at[i], SIGKILL);
                kill(at[i], SIGKILL);
                since[i] = now;
            }
            if (!at[i]) {
                pid_t child = fork();
                if (child == 0) attacker(i);
                if (child > 0) at[i] = child;
            }
        }
    }
    set_check(0);
    end_all();
}

// The use of frames, by the kernel's own account.
static struct use {
    char name[48];
    long before, after; // KiB
} uses[128];

static void count_uses(bool after) {
    FILE *file = fopen("/proc/sys/vm/quire_frames", "r");
    if (!file) return; // another kernel
    char line[128], name[48], label[32];
    for (unsigned long frames; fgets(line, sizeof line, file);) {
        int words = sscanf(line, "%*x %lx %47s %31s", &frames, name, label);
        CHECK(words >= 2, "quire_frames has the line %s", line);
        if (words == 3) snprintf(name, sizeof name, "%s", label);
        struct use *use = uses;
        while (use->name[0] && strcmp(use->name, name)) use++;
        CHECK(use < uses + COUNT(uses) - 1, "memory has too many uses");
        strcpy(use->name, name);
        *(after ? &use->after : &use->before) += frames * (long)(PAGE / 1024);
    }
    fclose(file);
}

static void report_uses(void) {
    for (struct use *use = uses; use->name[0]; use++)
        if (use->before != use->after)
            printf("siege_use %s before %ld after %ld KiB\n", use->name, use->before, use->after);
    fflush(stdout);
}

// Empties the kernel's caches, so that memory missing after it is lost. Each CPU empties its own.
static void drop_caches(void) {
    cpu_set_t all, one;
    CHECK(!sched_getaffinity(0, sizeof all, &all), "sched_getaffinity");
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++) {
        if (!CPU_ISSET(cpu, &all)) continue;
        CPU_ZERO(&one);
        CPU_SET(cpu, &one);
        CHECK(!sched_setaffinity(0, sizeof one, &one), "sched_setaffinity");
        int fd = open("/proc/sys/vm/drop_caches", O_WRONLY);
        CHECK(fd >= 0 && write(fd, "3", 1) == 1, "drop_caches");
        close(fd);
    }
    CHECK(!sched_setaffinity(0, sizeof all, &all), "sched_setaffinity");
}

// KiB of free memory and swap, once the kernel's own threads have done their deferred frees.
static struct room {
    long memory, swap;
} settled(void) {
    struct room last = {-1, -1};
    for (int i = 0; i < 50; i++) {
        drop_caches();
        struct room now = {memory_info("MemFree:"), memory_info("SwapFree:")};
        if (now.memory == last.memory && now.swap == last.swap) break;
        last = now;
        usleep(200000);
    }
    return last;
}

int main(int argc, char **argv) {
    // Attackers may execute this program with any arguments.
    if (getpid() != 1) return 3;
    struct setting own[] = {
        {"--seed", &seed, NULL}, {"--megabytes", &megabytes, NULL}, {"--patience", &patience, NULL}, {0}};
    parse_options(argc, argv, own);
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK((void *)shared != MAP_FAILED, "mmap");
    for (int i = 0; i < ATTACKERS; i++)
        for (int t = 0; t < THREADS; t++) shared->threads[i][t].state = seed * 1000003 + i * THREADS + t;

    // The first part makes the objects of first use; it is not measured.
    siege(options.seconds / 4);
    struct room before = settled();
    count_uses(false);
    siege(options.seconds * 3 / 4);
    struct room after = settled();
    count_uses(true);

    uint64_t calls = 0, numbers = 0, errors = 0;
    for (int i = 0; i < ATTACKERS; i++)
        for (int t = 0; t < THREADS; t++) calls += shared->threads[i][t].calls;
    for (int n = 0; n < NUMBERS; n++) numbers += shared->number[n];
    for (int e = 0; e < ERRNOS; e++) errors += shared->error[e];
    report("siege_calls", calls, "calls");
    report("siege_numbers", numbers, "numbers");
    report("siege_errnos", errors, "errnos");
    report("siege_deaths", deaths, "attackers");
    report("siege_hangs", hangs, "attackers");
    report("siege_forks", shared->bombs, "processes");
    report("siege_pages", shared->pages_checked, "touches");
    report("siege_beats", shared->beats, "shells");
    report("siege_longest_beat", shared->longest / 1000000, "ms");
    report("siege_free_before", before.memory, "KiB");
    report("siege_free_after", after.memory, "KiB");
    report("siege_swap_before", before.swap, "KiB");
    report("siege_swap_after", after.swap, "KiB");
    report_uses();
    CHECK(calls > 0 && shared->beats > 0, "nothing was called, or no shell answered");
    // Files of the image that were paged out and read again keep their slots.
    CHECK(before.swap - after.swap < 8192, "%ld KiB of swap are lost", before.swap - after.swap);
    CHECK(before.memory - after.memory < 2048, "%ld KiB of memory are lost", before.memory - after.memory);
    return 0;
}
