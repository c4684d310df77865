// Very many processes, each of which sleeps with a deadline again and again. Measures the memory of each, the cost of
// a wake-up by their number, and the cost of making and killing them all.
//
//   --sleepers N     so many processes (default 1000; 0 leaves the program itself and its answers)
//   --period MS      each sleeps so long at a time (default 1: more than one CPU can serve)
//   --total RATE     all together ask for so many wake-ups a second: the period is N / RATE seconds
//   --variant NAME   the kind of sleep of each process:
//       futex   sleeps on a futex with a deadline (the default)
//       poll    sleeps in ppoll with a timeout
//       exec    as futex, after it has executed this program anew
//       loop    as futex, and after each sleep it forks a child that executes a tiny program and ends
//       pipes   passes one byte from the process before it to the process behind it
//   --awake 1        each begins to sleep and wake once it is made, while others are made, and is killed so; else all
//                    begin at one moment, and are killed in a sleep without a deadline
//   --answers MS     another process forks and executes a tiny program at such intervals, and reports the longest time
//                    of each phase (default 0: never)
// --accounts P     the kernel's account of all sleepers must agree with the frames that they took, within P percent,
// and
// so must the memory of one of 1000 and one of all. At the end all frames must be free (default 0: no)
//
// User 0 raises kernel.pid_max, kernel.threads-max and its own RLIMIT_NPROC where they are too low for so many
// processes. The program prints what it sets.
//
// A process stores into one page of its stack and into one page that 504 processes share. Its page tables do not grow
// with the number of processes, because that page has the same address in each: beside the stack. For the same reason
// a process makes its system calls without libc, which would store into its own pages.
#include "room.h"
#include <signal.h>
#include <sys/resource.h>
#include <sys/syscall.h>

static long sleepers = 1000, period = 1, total, awake, interval, accounts;
static const char *variant = "futex";
static bool polls, execs, loops, pipes;
static uint64_t period_ns;

static void cost(const char *name, uint64_t ticks, uint64_t ns, double each) {
    char line[64];
    snprintf(line, sizeof line, options.count ? "%s_instructions" : "%s_rate", name);
    if (options.count) report(line, ticks / 8 / each, "instructions");
    else report(line, each * 1e9 / ns, "1/s");
}

// ---- what the kernel reports --------------------------------------------------------------------------------------

// Bytes: free ones, those of programs and files, and kinds of the kernel's own, which is the rest.
struct memory {
    double free, pages, tables, stacks, slabs;
};

static struct memory memory(void) {
    return (struct memory){
        .free = free_bytes(),
        .pages = (memory_info("Active:") + memory_info("Inactive:")) * 1024.0,
        .tables = memory_info("PageTables:") * 1024.0,
        .stacks = memory_info("KernelStack:") * 1024.0,
        .slabs = memory_info("Slab:") * 1024.0,
    };
}

// How often CPUs have interrupted each other: to schedule, to call, to drop translations.
static uint64_t between_cpus(void) {
    FILE *file = fopen("/proc/interrupts", "r");
    CHECK(file, "/proc/interrupts");
    char line[8192];
    uint64_t sum = 0;
    while (fgets(line, sizeof line, file)) {
        char *at = line + strspn(line, " "), *end;
        if (strncmp(at, "RES:", 4) && strncmp(at, "CAL:", 4) && strncmp(at, "TLB:", 4)) continue;
        for (at += 4;; at = end) {
            unsigned long n = strtoul(at, &end, 10);
            if (end == at) break;
            sum += n;
        }
    }
    fclose(file);
    return sum;
}

// Time of all CPUs in ticks, and how much of it they idled.
struct cpu_time {
    double idle, all;
};

static struct cpu_time cpu_time(void) {
    struct cpu_time now = {0};
    unsigned long of[8] = {0};
    FILE *file = fopen("/proc/stat", "r");
    CHECK(file, "/proc/stat");
    int found = fscanf(file, "cpu %lu %lu %lu %lu %lu %lu %lu %lu", of, of + 1, of + 2, of + 3, of + 4, of + 5, of + 6,
        of + 7);
    fclose(file);
    CHECK(found == 8, "/proc/stat has %d kinds of time", found);
    for (int i = 0; i < 8; i++) now.all += of[i];
    now.idle = of[3] + of[4];
    return now;
}

// ---- shared memory -------------------------------------------------------------------------------------------------

enum { BORN, AWAKE, PARKED };

struct slot {
    atomic_uint woken;
    atomic_int parked; // 1 + the phase in which it waits for another
};

#define A_PAGE ((PAGE - 64) / sizeof(struct slot))

struct group { // a page
    atomic_int phase; // what its sleepers do
    atomic_int never; // nothing wakes waiters of this word
    char pad[64 - 2 * sizeof(atomic_int)];
    struct slot slots[A_PAGE];
};
_Static_assert(sizeof(struct group) == PAGE && sizeof(struct slot) == 8, "a page, and slots of eight bytes");

static struct group *groups;  // all of them: the parent's
static struct group *window;  // the page of the next children
static int file;              // of the groups
static pid_t *children;

// Memory of the parent that its children do not inherit, and that no fork makes it copy.
static void *parents(size_t bytes, int of) {
    void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | (of < 0 ? MAP_ANONYMOUS : 0), of, 0);
    CHECK(at != MAP_FAILED, "no memory for %zu bytes", bytes);
    CHECK(!madvise(at, bytes, MADV_DONTFORK), "MADV_DONTFORK");
    return at;
}

static void look_through_window(long group) {
    void *at = mmap(window, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | (window ? MAP_FIXED : 0), file, group * PAGE);
    CHECK(at != MAP_FAILED, "the page of group %ld", group);
    window = at;
}

static struct slot *slot(long sleeper) { return &groups[sleeper / A_PAGE].slots[sleeper % A_PAGE]; }

static uint64_t all_woken(void) {
    uint64_t sum = 0;
    for (long i = 0; i < sleepers; i++) sum += slot(i)->woken;
    return sum;
}

// ---- a sleeper -----------------------------------------------------------------------------------------------------

// A system call that leaves `errno` alone.
static inline long raw(long number, long a, long b, long c, long d) {
    long result;
    register long r10 __asm__("r10") = d;
    register long r8 __asm__("r8") = 0;
    __asm__ volatile("syscall" : "=a"(result) : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8) : "rcx", "r11",
        "memory");
    return result;
}

static void tiny(void) {
    char *const nothing[] = {"sleepers", "--nothing", NULL};
    pid_t child = raw(SYS_fork, 0, 0, 0, 0);
    if (!child) {
        raw(SYS_execve, (long)"/proc/self/exe", (long)nothing, (long)(nothing + 2), 0);
        raw(SYS_exit_group, 127, 0, 0, 0);
    }
    int status = -1;
    CHECK(child > 0 && raw(SYS_wait4, child, (long)&status, 0, 0) == child && !status, "a tiny program: %d, status %x",
        child, status);
}

static void doze(struct slot *slot, uint64_t ns) {
    struct timespec wait = {ns / 1000000000, ns % 1000000000};
    long result = polls ? raw(SYS_ppoll, 0, 0, (long)&wait, 0)
                        : raw(SYS_futex, (long)&window->never, 128, 0, (long)&wait);
    CHECK(result == (polls ? 0 : -ETIMEDOUT), "a sleep of %s ended with %ld", variant, result);
    if (loops) tiny();
    slot->woken++;
}

// `from` and `to`: its ends of pipes, where there are pipes.
__attribute__((noreturn)) static void sleeper(long index, int from, int to) {
    struct slot *slot = &window->slots[index % A_PAGE];
    if (pipes) {
        slot->parked = BORN + 1;
        for (char byte;;) {
            long got = raw(SYS_read, from, (long)&byte, 1, 0);
            // The process before it was killed, and this one is about to be.
            while (!got) raw(SYS_pause, 0, 0, 0, 0);
            CHECK(got == 1 && raw(SYS_write, to, (long)&byte, 1, 0) == 1, "a pipe");
            slot->woken++;
        }
    }
    // The parent waits for this.
    if (window->phase == AWAKE) slot->parked = BORN + 1;
    bool first = true;
    for (int now; (now = window->phase), true;) {
        if (now == AWAKE) {
            uint64_t seed = index;
            doze(slot, first ? random_next(&seed) % period_ns : period_ns);
            first = false;
        } else {
            slot->parked = now + 1;
            // Sleeps until the phase changes: no deadline, no work.
            raw(SYS_futex, (long)&window->phase, 0, now, 0);
        }
    }
}

// Executes this program, which goes on as the same sleeper.
static void again(long index) {
    char number[24], length[24], descriptor[24];
    snprintf(number, sizeof number, "%ld", index);
    snprintf(length, sizeof length, "%llu", (unsigned long long)period_ns);
    snprintf(descriptor, sizeof descriptor, "%d", file);
    execl("/proc/self/exe", "sleepers", "--again", number, length, descriptor, NULL);
    fail("exec of sleeper %ld", index);
}

static void change(int to) {
    for (long g = 0; g * (long)A_PAGE < sleepers; g++) {
        groups[g].phase = to;
        syscall(SYS_futex, &groups[g].phase, 1, A_PAGE, NULL, NULL, 0);
    }
}

// ---- answers -------------------------------------------------------------------------------------------------------

enum { CREATING, SLEEPING, KILLING, STAGES };

static struct {
    atomic_int stage;
    struct {
        atomic_ulong count, longest, sum;
    } in[STAGES];
} *answers;

static void answer(void) {
    for (;;) {
        uint64_t start = now_ns();
        int stage = answers->stage;
        tiny();
        uint64_t ns = now_ns() - start;
        answers->in[stage].count++;
        answers->in[stage].sum += ns;
        if (ns > answers->in[stage].longest) answers->in[stage].longest = ns;
        if (ns < interval * 1000000ull) usleep(interval * 1000 - ns / 1000);
    }
}

static void report_answers(void) {
    static const char *names[] = {"create", "wake", "kill"};
    char line[64];
    double longest = 0;
    for (int i = 0; i < STAGES; i++) {
        if (!answers->in[i].count) continue;
        snprintf(line, sizeof line, "answer_%s_mean", names[i]);
        report(line, answers->in[i].sum / 1e6 / answers->in[i].count, "ms");
        snprintf(line, sizeof line, "answer_%s_longest", names[i]);
        report(line, answers->in[i].longest / 1e6, "ms");
        if (answers->in[i].longest / 1e6 > longest) longest = answers->in[i].longest / 1e6;
    }
    report("answer_longest", longest, "ms");
}

// ---- stages --------------------------------------------------------------------------------------------------------

static void mention(const char *name, long of, double value, const char *unit) {
    char line[64];
    snprintf(line, sizeof line, name, of);
    report(line, value, unit);
}

static pid_t group;
static int first_pipe, last_pipe; // the ends of the chain

// Figures of one process. Without any process they are those of all: nothing.
static double of_one(double all) { return sleepers ? all / sleepers : all; }

static void wait_for_birth(long count) {
    for (long i = 0; i < count; i++)
        while (slot(i)->parked != BORN + 1) sched_yield();
}

// Makes them all. Returns the memory after the first 1000.
static struct memory create(double free) {
    const long step = 50000, some = sleepers < 1000 ? sleepers : 1000;
    struct memory first = {0};
    uint64_t start = now_ns(), at_step = start, at_last = start, early = 0;
    int from = -1;
    for (long i = 0; i < sleepers; i++) {
        if (i == sleepers - some) at_last = now_ns();
        if (i % A_PAGE == 0) look_through_window(i / A_PAGE);
        int ends[2];
        if (pipes && !i) {
            CHECK(!pipe(ends), "the first pipe");
            from = ends[0], first_pipe = ends[1];
        }
        if (pipes) CHECK(!pipe(ends), "pipe %ld", i);
        pid_t child = raw(SYS_fork, 0, 0, 0, 0);
        CHECK(child >= 0, "fork of process %ld: %d", i, child);
        if (!child) {
            raw(SYS_setpgid, 0, group, 0, 0);
            if (pipes) raw(SYS_close, first_pipe, 0, 0, 0), raw(SYS_close, ends[0], 0, 0, 0);
            if (execs) again(i);
            sleeper(i, from, pipes ? ends[1] : -1);
        }
        if (!group) group = child;
        // Fails where the child has executed the program already, and is in its group.
        setpgid(child, group);
        children[i] = child;
        if (pipes) {
            close(from), close(ends[1]);
            from = last_pipe = ends[0];
        }
        if (i + 1 == some) early = now_ns() - start;
        if (i + 1 == some && accounts) wait_for_birth(some), first = memory();
        if (options.count || (i + 1) % step) continue;
        uint64_t now = now_ns();
        mention("create_%ld_rate", i + 1, step * 1e9 / (now - at_step), "1/s");
        mention("memory_%ld", i + 1, (free - free_bytes()) / (i + 1), "bytes/process");
        at_step = now_ns();
    }
    if (!options.count && some) {
        report("create_first_rate", some * 1e9 / early, "1/s");
        report("create_last_rate", some * 1e9 / (now_ns() - at_last), "1/s");
    }
    wait_for_birth(sleepers);
    return first;
}

// Sends a byte through all processes. Returns the nanoseconds that it took.
static uint64_t pass(void) {
    uint64_t start = now_ns();
    char byte = 1;
    CHECK(write(first_pipe, &byte, 1) == 1 && read(last_pipe, &byte, 1) == 1, "the chain of pipes");
    return now_ns() - start;
}

// The kernel's memory of one sleeper by kind, where the kernel reports it.
static void report_kinds(pid_t process) {
    char path[64], line[128], name[64], row[96];
    double bytes;
    snprintf(path, sizeof path, "/proc/%d/quire_memory", process);
    FILE *rows = fopen(path, "r");
    if (!rows) return;
    while (fgets(line, sizeof line, rows)) {
        CHECK(sscanf(line, "%63s %lf", name, &bytes) == 2, "%s: %s", path, line);
        snprintf(row, sizeof row, "of_one_%s", name);
        report(row, bytes, "bytes");
    }
    fclose(rows);
}

// The bytes of all sleepers by their own accounts.
static double accounts_of_all(void) {
    double sum = 0;
    for (long i = 0; i < sleepers; i++) {
        char path[64];
        snprintf(path, sizeof path, "/proc/%d/quire_memory", children[i]);
        long bytes = row(path, "total");
        CHECK(bytes > 0, "%s: %ld bytes", path, bytes);
        sum += bytes;
    }
    return sum;
}

// The kernel's part of the memory that was taken.
static double kernels(const struct memory *before, const struct memory *after) {
    return before->free - after->free - (after->pages - before->pages);
}

// Differences in percent of `right`.
static double apart(double value, double right) { return right ? 100 * (value - right) / right : 0; }

static void audit(const struct memory *before, const struct memory *first, const struct memory *after) {
    const double some = sleepers < 1000 ? sleepers : 1000;
    double accounted = on_quire() ? accounts_of_all() : kernels(before, after);
    report("told_memory", of_one(accounted), "bytes/process");
    if (!sleepers) return;
    // Idle processes may have lost page tables while their accounts were read.
    struct memory now = memory();
    double early = kernels(before, first) / some, late = kernels(before, after) / sleepers;
    report("kernel_memory_first", early, "bytes/process");
    double most = kernels(before, after), least = kernels(before, &now);
    if (least > most) most = least, least = kernels(before, after);
    printf("told_apart %.3f %%\nfirst_apart %.3f %%\n", apart(accounted, kernels(before, &now)), apart(late, early));
    // Few processes do not fill the pieces in which the kernel takes memory.
    if (sleepers < 1000) return;
    CHECK(apart(accounted, most) <= accounts && apart(accounted, least) >= -accounts,
        "the accounts report %.0f bytes, %.0f to %.0f are taken", accounted, least, most);
    // One of many takes less where page tables of idle processes are dropped, because memory is short.
    if (on_quire()) CHECK(apart(late, early) <= accounts, "one of 1000 takes %.0f bytes, one of all %.0f", early, late);
    bool dropped = (after->tables - before->tables) / sleepers < 0.9 * (first->tables - before->tables) / some;
    if (on_quire() && !dropped)
        CHECK(apart(late, early) >= -accounts, "one of 1000 takes %.0f bytes, one of all %.0f", early, late);
}

static void wake(void) {
    uint64_t begin = now_ns();
    if (pipes) pass();
    else if (!awake) change(AWAKE);
    // Until every one of them has woken once.
    for (long i = 0; i < sleepers; i++)
        while (!slot(i)->woken) usleep(1000);
    if (!options.count) report("awake_after", (now_ns() - begin) / 1e9, "s");
    // Outside of the timed and counted part, because this read takes a while.
    uint64_t asked = between_cpus();
    struct cpu_time idle = cpu_time();
    uint64_t woken = all_woken(), start_ns = now_ns(), start = __rdtsc(), longest = 0, passes = 0;
    do {
        if (!pipes) {
            usleep(10000);
            continue;
        }
        uint64_t ns = pass();
        if (ns > longest) longest = ns;
        passes++;
    } while (now_ns() - start_ns < options.seconds * 1e9);
    uint64_t ticks = __rdtsc() - start, ns = now_ns() - start_ns;
    woken = all_woken() - woken;
    struct cpu_time now = cpu_time();
    asked = between_cpus() - asked;
    CHECK(woken > 0, "no sleeper woke");
    cost("wake", ticks, ns, woken);
    report("wake_interrupts", (double)asked / woken, "interrupts/wake-up");
    if (options.count) return;
    if (now.all > idle.all) report("idle_share", 100 * (now.idle - idle.idle) / (now.all - idle.all), "%");
    if (pipes) {
        report("chain_mean", ns / 1e6 / passes, "ms");
        report("chain_longest", longest / 1e6, "ms");
        return;
    }
    double wanted = sleepers * 1e9 / period_ns;
    report("wake_asked_rate", wanted, "1/s");
    report("wake_share", 100 * (woken * 1e9 / ns) / wanted, "%");
}

int main(int argc, char **argv) {
    if (argc == 2 && !strcmp(argv[1], "--nothing")) return 0;
    if (argc == 5 && !strcmp(argv[1], "--again")) {
        long index = atol(argv[2]);
        period_ns = strtoull(argv[3], NULL, 10), file = atoi(argv[4]);
        look_through_window(index / A_PAGE);
        sleeper(index, -1, -1);
    }
    struct setting own[] = {
        {"--sleepers", &sleepers, NULL}, {"--period", &period, NULL}, {"--total", &total, NULL},
        {"--awake", &awake, NULL}, {"--answers", &interval, NULL}, {"--variant", NULL, &variant},
            {"--accounts", &accounts, NULL}, {0},
    };
    parse_options(argc, argv, own);
    polls = !strcmp(variant, "poll"), execs = !strcmp(variant, "exec"), loops = !strcmp(variant, "loop"),
        pipes = !strcmp(variant, "pipes");
    CHECK(!awake || !pipes, "a chain of pipes does not wake by itself");
    CHECK(polls || execs || loops || pipes || !strcmp(variant, "futex"),
        "variants are futex, poll, exec, loop and pipes, not %s", variant);
    CHECK(sleepers >= 0 && sleepers <= 4000000 && period > 0 && total >= 0 && interval >= 0 && accounts >= 0,
        "at most 4,000,000 sleepers");
    make_room(sleepers);
    period_ns = total && sleepers ? sleepers * 1000000000ull / total : period * 1000000ull;
    CHECK(period_ns > 0, "at most 1,000,000,000 wake-ups a second for each sleeper");
    size_t bytes = (sleepers / A_PAGE + 1) * PAGE;
    file = memfd_create("sleepers", 0);
    CHECK(file >= 0 && !ftruncate(file, bytes), "a file in memory of %zu bytes", bytes);
    look_through_window(0);
    groups = parents(bytes, file);
    children = parents((sleepers + 1) * sizeof *children, -1);
    // Makes all shared memory present.
    for (long i = 0; i < sleepers; i++) slot(i)->parked = children[i] = 0;
    for (size_t i = 0; awake && i < bytes / PAGE; i++) groups[i].phase = AWAKE;
    pid_t answerer = 0;
    if (interval) {
        answers = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        CHECK(answers != MAP_FAILED && !madvise(answers, PAGE, MADV_DOFORK), "no memory for answers");
        answerer = fork();
        CHECK(answerer >= 0, "fork");
        if (!answerer) answer();
        CHECK(!madvise(answers, PAGE, MADV_DONTFORK), "MADV_DONTFORK");
        while (!answers->in[CREATING].count) usleep(1000);
    }

    char *rows = accounts ? strdup(contents("/proc/vmstat")) : NULL;
    uint64_t at_rest = accounts ? free_at_rest() : 0;
    struct memory before = memory();
    uint64_t start_ns = now_ns(), start = __rdtsc();
    struct memory first = create(before.free);
    uint64_t made = __rdtsc() - start, made_ns = now_ns() - start_ns;
    struct memory after = memory();
    double taken = before.free - after.free;
    report("memory", of_one(taken), "bytes/process");
    report("kernel_memory", of_one(kernels(&before, &after)), "bytes/process");
    report("page_tables", of_one(after.tables - before.tables), "bytes/process");
    report("kernel_stacks", of_one(after.stacks - before.stacks), "bytes/process");
    report("slabs", of_one(after.slabs - before.slabs), "bytes/process");
    if (sleepers) report_kinds(children[sleepers - 1]), cost("create", made, made_ns, sleepers);
    if (accounts) audit(&before, &first, &after);

    if (interval) answers->stage = SLEEPING;
    // The parent only counts from here on. It is not to wait behind those that it counts.
    if (!options.count) setpriority(PRIO_PROCESS, 0, -20);
    if (sleepers) wake();
    if (!pipes && !awake) {
        change(PARKED);
        for (long i = 0; i < sleepers; i++)
            while (slot(i)->parked != PARKED + 1) usleep(1000);
    }

    if (interval) answers->stage = KILLING;
    start_ns = now_ns();
    start = __rdtsc();
    if (sleepers) CHECK(!kill(-group, SIGKILL), "kill");
    for (long i = 0; i < sleepers; i++) {
        int status;
        CHECK(waitpid(children[i], &status, 0) == children[i] && WIFSIGNALED(status), "process %ld", i);
    }
    uint64_t killed = __rdtsc() - start, killed_ns = now_ns() - start_ns;
    if (sleepers) cost("kill", killed, killed_ns, sleepers);
    // The table of ids keeps 64 bytes for each, and does not shrink. This process keeps layers of its own memory that
    // the forks left, and their page tables.
    if (accounts) report("kept", memory_is_back(at_rest, rows, 4 * MIB + 64 * sleepers, "sleepers") / 1024, "KiB");
    if (!interval) return 0;
    int status;
    CHECK(!kill(answerer, SIGKILL) && waitpid(answerer, &status, 0) == answerer, "the process that answers");
    CHECK(WIFSIGNALED(status), "the process that answers ended with status %x", status);
    report_answers();
}
