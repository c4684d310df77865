// The system's reports of resource use are true, within bounds that hold on any kernel: getrusage, wait4, and the files
// of /proc that ./quire compare reads. Prints usage_checked, the number of checks.
#include "proc.h"
#include <sys/resource.h>
#include <sys/syscall.h>

static int checked;
#define EXPECT(...) \
    do { \
        CHECK(__VA_ARGS__); \
        checked++; \
    } while (0)

// Field `n` of /proc/self/stat, as proc(5) counts them.
static long field(int n) {
    const char *at = strrchr(contents("/proc/self/stat"), ')');
    CHECK(at, "no name in /proc/self/stat");
    for (int i = 2; i < n; i++) at = strchr(at + 1, ' ');
    return strtol(at, NULL, 10);
}

static struct rusage used(int who) {
    struct rusage usage;
    CHECK(!getrusage(who, &usage), "getrusage of %d", who);
    return usage;
}

static uint64_t micros(const struct timeval *t) { return t->tv_sec * 1000000ull + t->tv_usec; }
static uint64_t all_time(const struct rusage *u) { return micros(&u->ru_utime) + micros(&u->ru_stime); }

static char *fresh(size_t pages) {
    int how = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    char *at = mmap(NULL, pages * PAGE, PROT_READ | PROT_WRITE, how, -1, 0);
    CHECK(at != MAP_FAILED, "no %zu pages", pages);
    return at;
}

// From the last to the first: a kernel that makes pages ahead makes none for that, so each is a fault.
static void touch(char *at, size_t pages, size_t apart) {
    for (size_t i = pages; i-- > 0;) *(volatile char *)(at + i * apart) = 1;
}

static void nap(void) {
    struct timespec t = {0, 5000000};
    nanosleep(&t, NULL);
}

static void spin(double seconds) {
    for (uint64_t end = now_ns() + (uint64_t)(seconds * 1e9); now_ns() < end;) {}
}

static void faults(void) {
    char *at = fresh(200);
    used(RUSAGE_SELF);
    row("/proc/vmstat", "pgfault");
    field(10);
    long all = row("/proc/vmstat", "pgfault"), own = field(10);
    struct rusage before = used(RUSAGE_SELF);
    touch(at, 200, PAGE);
    struct rusage after = used(RUSAGE_SELF);
    long more = after.ru_minflt - before.ru_minflt;
    EXPECT(more >= 200 && more < 260, "200 first touches are %ld faults", more);
    EXPECT(after.ru_majflt == before.ru_majflt, "none waited for a device");
    EXPECT(field(10) - own >= 200, "/proc/self/stat says %ld", field(10) - own);
    more = row("/proc/vmstat", "pgfault") - all;
    EXPECT(more >= 200, "/proc/vmstat says %ld", more);
    EXPECT(row("/proc/vmstat", "pgmajfault") >= 0, "pgmajfault is there");
    munmap(at, 200 * PAGE);
}

static void *one_thread(void *at) {
    struct rusage before = used(RUSAGE_THREAD);
    touch(at, 100, PAGE);
    struct rusage after = used(RUSAGE_THREAD);
    return (void *)(after.ru_minflt - before.ru_minflt);
}

static void threads(void) {
    char *at = fresh(100);
    struct rusage mine = used(RUSAGE_THREAD), all = used(RUSAGE_SELF);
    pthread_t thread;
    void *theirs;
    CHECK(!pthread_create(&thread, NULL, one_thread, at) && !pthread_join(thread, &theirs), "a thread");
    struct rusage mine_after = used(RUSAGE_THREAD), all_after = used(RUSAGE_SELF);
    EXPECT((long)theirs >= 100, "a thread has its own faults: %ld", (long)theirs);
    EXPECT(mine_after.ru_minflt - mine.ru_minflt < 100, "and no other thread has them");
    EXPECT(all_after.ru_minflt - all.ru_minflt >= 100, "but the process has, after its end, too");
    EXPECT(all_after.ru_maxrss >= 400, "the peak is the process's: %ld KiB", all_after.ru_maxrss);
    munmap(at, 100 * PAGE);
}

static void children(void) {
    struct rusage before = used(RUSAGE_CHILDREN), usage;
    pid_t child = fork();
    CHECK(child >= 0, "fork");
    if (!child) {
        if (!fork()) {
            touch(fresh(300), 300, PAGE);
            _exit(0);
        }
        int status;
        wait(&status);
        touch(fresh(1000), 1000, PAGE);
        for (int i = 0; i < 3; i++) nap();
        spin(0.05);
        _exit(status);
    }
    int status;
    CHECK(wait4(child, &status, 0, &usage) == child && status == 0, "wait4");
    EXPECT(usage.ru_minflt >= 1300, "a child's faults, its child's included: %ld", usage.ru_minflt);
    EXPECT(usage.ru_maxrss >= 3500 && usage.ru_maxrss < 9000, "the larger one's peak: %ld KiB", usage.ru_maxrss);
    EXPECT(usage.ru_nvcsw >= 3, "it slept: %ld", usage.ru_nvcsw);
    EXPECT(all_time(&usage) >= 5000, "it ran: %llu us", (unsigned long long)all_time(&usage));
    struct rusage after = used(RUSAGE_CHILDREN);
    EXPECT(after.ru_minflt - before.ru_minflt == usage.ru_minflt, "the children's sum grows by the result of wait4");
    EXPECT(after.ru_nvcsw - before.ru_nvcsw == usage.ru_nvcsw, "and by its switches");
    EXPECT(after.ru_maxrss >= usage.ru_maxrss, "peaks do not add up");
}

static void preempted(void) {
    cpu_set_t were, one;
    sched_getaffinity(0, sizeof were, &were);
    CPU_ZERO(&one);
    CPU_SET(sched_getcpu(), &one);
    sched_setaffinity(0, sizeof one, &one);
    pid_t child = fork();
    if (!child) {
        spin(0.3);
        _exit(0);
    }
    spin(0.3);
    int status;
    struct rusage usage;
    CHECK(wait4(child, &status, 0, &usage) == child, "wait4");
    EXPECT(usage.ru_nivcsw > 0, "two on a CPU are switched between");
    sched_setaffinity(0, sizeof were, &were);
}

static void kinds_of_time(void) {
    struct rusage before = used(RUSAGE_SELF);
    char *at = fresh(1);
    for (uint64_t end = now_ns() + 300000000; now_ns() < end;) {
        for (int i = 0; i < 20; i++) {
            at[0] = 1;
            madvise(at, PAGE, MADV_DONTNEED);
        }
    }
    struct rusage after = used(RUSAGE_SELF);
    EXPECT(micros(&after.ru_stime) - micros(&before.ru_stime) >= 10000, "the kernel worked");
    before = after;
    volatile uint64_t n = 0;
    for (uint64_t end = now_ns() + 300000000; now_ns() < end;)
        for (int i = 0; i < 100000; i++) n = n + i;
    after = used(RUSAGE_SELF);
    uint64_t user = micros(&after.ru_utime) - micros(&before.ru_utime);
    EXPECT(user >= 10000 && user > micros(&after.ru_stime) - micros(&before.ru_stime), "the program worked");
    munmap(at, PAGE);
}

static void memory(void) {
    const char *status = "/proc/self/status";
    long size = row(status, "VmSize");
    char *at = fresh(64 * MIB / PAGE);
    EXPECT(row(status, "VmSize") - size >= 64 << 10, "mapped pages count");
    touch(at, 4 * MIB / PAGE, PAGE);
    long resident = row(status, "VmRSS");
    EXPECT(resident >= 4 << 10, "touched pages are resident: %ld KiB", resident);
    munmap(at, 64 * MIB);
    EXPECT(row(status, "VmPeak") - row(status, "VmSize") >= 60 << 10, "the peak of mapped pages stays");
    EXPECT(row(status, "VmHWM") - row(status, "VmRSS") >= 3 << 10, "the peak of resident pages stays");
    // A page-table page each.
    enum { TABLES = 512 };
    long tables = row(status, "VmPTE"), everybodys = row("/proc/vmstat", "nr_page_table_pages");
    long info = row("/proc/meminfo", "PageTables");
    at = fresh((TABLES + 1) * 2 * MIB / PAGE);
    touch(at, TABLES, 2 * MIB);
    long more = row(status, "VmPTE") - tables;
    EXPECT(more >= (TABLES - 8) * 4, "%d table pages are %ld KiB", TABLES, more);
    // Linux sums these up once in a while.
    more = row("/proc/vmstat", "nr_page_table_pages") - everybodys;
    EXPECT(everybodys > 0 && more >= TABLES / 2, "nr_page_table_pages has %ld more", more);
    EXPECT(row("/proc/meminfo", "PageTables") - info >= TABLES / 2 * 4, "PageTables, too");
    munmap(at, (TABLES + 1) * 2 * MIB);
}

static void switches(void) {
    long before = row("/proc/self/status", "voluntary_ctxt_switches"), all = row("/proc/stat", "ctxt");
    long started = row("/proc/stat", "processes");
    // A sleep whose end has passed before the thread leaves its processor does not count: the host may have paused the
    // machine.
    long more = 0;
    for (int i = 0; i < 60 && more < 20; i++) {
        nap();
        more = row("/proc/self/status", "voluntary_ctxt_switches") - before;
    }
    EXPECT(more >= 20, "60 sleeps are %ld switches", more);
    EXPECT(row("/proc/stat", "ctxt") - all >= 20, "the system's, too");
    for (int i = 0; i < 5; i++) {
        pid_t child = fork();
        if (!child) _exit(0);
        waitpid(child, NULL, 0);
        pthread_t thread;
        CHECK(!pthread_create(&thread, NULL, one_thread, fresh(100)) && !pthread_join(thread, NULL), "a thread");
    }
    EXPECT(row("/proc/stat", "processes") - started >= 10, "processes and threads that were started");
    EXPECT(row("/proc/stat", "cpu") > 0, "ticks");
}

static char *shared;
static atomic_int stop, looks;
static void *look(void *arg) {
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(1, &one);
    sched_setaffinity(0, sizeof one, &one);
    while (!atomic_load(&stop)) {
        *(volatile char *)shared;
        atomic_fetch_add(&looks, 1);
    }
    return arg;
}

static void interrupts(void) {
    const char *path = "/proc/interrupts";
    long cpus = sysconf(_SC_NPROCESSORS_ONLN), columns = 0;
    const char *text = contents(path), *end = strchr(text, '\n');
    for (const char *at = text; (at = strstr(at, "CPU")) && at < end; at++) columns++;
    EXPECT(columns == cpus, "a column for each of %ld CPUs, not %ld", cpus, columns);
    EXPECT(row(path, "LOC") > 0, "timers");
    long before = row(path, "TLB");
    EXPECT(before >= 0, "shootdowns");
    if (cpus < 2) return;
    shared = fresh(1);
    shared[0] = 1;
    cpu_set_t were, one;
    sched_getaffinity(0, sizeof were, &were);
    CPU_ZERO(&one);
    CPU_SET(0, &one);
    sched_setaffinity(0, sizeof one, &one);
    pthread_t thread;
    CHECK(!pthread_create(&thread, NULL, look, NULL), "a thread");
    for (int i = 0; i < 200; i++) {
        // It has the page in its TLB, and is running most likely.
        for (int now = atomic_load(&looks); atomic_load(&looks) < now + 3;) sched_yield();
        mprotect(shared, PAGE, PROT_READ);
        mprotect(shared, PAGE, PROT_READ | PROT_WRITE);
        *(volatile char *)shared = 1;
    }
    atomic_store(&stop, 1);
    pthread_join(thread, NULL);
    long more = row(path, "TLB") - before;
    EXPECT(more >= 50, "200 shootdowns of one CPU by another are %ld", more);
    sched_setaffinity(0, sizeof were, &were);
}

static void refused(void) {
    struct rusage usage;
    EXPECT(getrusage(7, &usage) == -1 && errno == EINVAL, "usage of an unknown kind");
    EXPECT(syscall(SYS_getrusage, RUSAGE_SELF, 8) == -1 && errno == EFAULT, "usage to nowhere");
}

int main(int argc, char **argv) {
    parse_options(argc, argv, NULL);
    faults();
    threads();
    children();
    preempted();
    kinds_of_time();
    memory();
    switches();
    interrupts();
    refused();
    report("usage_checked", checked, "checks");
}
