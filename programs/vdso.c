// The shared object of the kernel's that each program finds mapped, checked one by one; the same on Linux and on Quire.
#include "checks.h"
#include <elf.h>
#include <sys/auxv.h>
#include <sys/syscall.h>
#include <sys/time.h>

#ifndef CLOCK_TAI
#define CLOCK_TAI 11
#endif

enum { CALLS = 20000 };

// ---- finding it ----------------------------------------------------------------------------------------------------

typedef int gettime_call(clockid_t, struct timespec *);
typedef int gettimeofday_call(struct timeval *, struct timezone *);
typedef time_t time_call(time_t *);
typedef int getcpu_call(unsigned *, unsigned *, void *);

static struct {
    uintptr_t at; // of its file header; 0: there is none
    gettime_call *gettime, *getres;
    gettimeofday_call *gettimeofday;
    time_call *time;
    getcpu_call *getcpu;
} vdso;

// The address of a function with Linux's version, found by the dynamic section alone.
static void *function(const char *name) {
    const Elf64_Ehdr *head = (void *)vdso.at;
    const Elf64_Phdr *segments = (void *)(vdso.at + head->e_phoff);
    uintptr_t bias = 0;
    const Elf64_Dyn *dynamic = NULL;
    for (int i = 0; i < head->e_phnum; i++) {
        if (segments[i].p_type == PT_LOAD) bias = vdso.at + segments[i].p_offset - segments[i].p_vaddr;
        if (segments[i].p_type == PT_DYNAMIC) dynamic = (void *)(vdso.at + segments[i].p_offset);
    }
    CHECK(bias && dynamic, "no segments");
    const Elf64_Sym *symbols = NULL;
    const char *strings = NULL;
    const Elf64_Half *versions = NULL;
    const Elf64_Verdef *definition = NULL;
    for (; dynamic->d_tag != DT_NULL; dynamic++) {
        void *at = (void *)(bias + dynamic->d_un.d_ptr);
        if (dynamic->d_tag == DT_SYMTAB) symbols = at;
        if (dynamic->d_tag == DT_STRTAB) strings = at;
        if (dynamic->d_tag == DT_VERSYM) versions = at;
        if (dynamic->d_tag == DT_VERDEF) definition = at;
    }
    CHECK(symbols && strings && versions && definition, "no tables");
    Elf64_Half wanted_version = 0;
    for (;; definition = (void *)((char *)definition + definition->vd_next)) {
        const Elf64_Verdaux *own = (void *)((char *)definition + definition->vd_aux);
        if (!strcmp(strings + own->vda_name, "LINUX_2.6")) wanted_version = definition->vd_ndx;
        if (!definition->vd_next) break;
    }
    CHECK(wanted_version, "no version");
    // The strings follow the symbols, in Linux's image, too.
    for (int i = 1; &symbols[i + 1] <= (const Elf64_Sym *)strings; i++)
        if (!strcmp(strings + symbols[i].st_name, name)) {
            CHECK(versions[i] == wanted_version, "%s has version %d", name, versions[i]);
            return (void *)(bias + symbols[i].st_value);
        }
    fail("no %s", name);
}

static void look(uintptr_t at) {
    vdso.at = at;
    CHECK(vdso.at && !memcmp((void *)vdso.at, "\177ELF", 4), "AT_SYSINFO_EHDR");
    vdso.gettime = function("__vdso_clock_gettime");
    vdso.getres = function("__vdso_clock_getres");
    vdso.gettimeofday = function("__vdso_gettimeofday");
    vdso.time = function("__vdso_time");
    vdso.getcpu = function("__vdso_getcpu");
    CHECK(function("clock_gettime") == (void *)vdso.gettime, "the name without a prefix");
}

struct range {
    uintptr_t start, end;
    char rights[5];
    unsigned long offset;
};

// The first mapping of that name; all zero where there is none.
static struct range mapping(const char *name) {
    struct range found = {0};
    char line[512], here[256];
    FILE *maps = fopen("/proc/self/maps", "r");
    CHECK(maps, "/proc/self/maps");
    while (!found.start && fgets(line, sizeof line, maps)) {
        struct range r;
        int n = sscanf(line, "%lx-%lx %4s %lx %*s %*s %255s", &r.start, &r.end, r.rights, &r.offset, here);
        if (n == 5 && !strcmp(here, name)) found = r;
    }
    fclose(maps);
    return found;
}

static uint64_t ns(struct timespec t) { return t.tv_sec * 1000000000ull + t.tv_nsec; }

static uint64_t system_time(clockid_t clock) {
    struct timespec t;
    CHECK(!syscall(SYS_clock_gettime, clock, &t), "clock_gettime of clock %d", clock);
    return ns(t);
}

static uint64_t own_time(clockid_t clock) {
    struct timespec t;
    CHECK(!vdso.gettime(clock, &t) && t.tv_nsec >= 0 && t.tv_nsec < 1000000000, "clock %d", clock);
    return ns(t);
}

// ---- checks --------------------------------------------------------------------------------------------------------

static void it_is_mapped_and_named(void) {
    struct range code = mapping("[vdso]"), data = mapping("[vvar]");
    CHECK(code.start == vdso.at && !strcmp(code.rights, "r-xp") && !code.offset, "[vdso] %lx %s", code.start,
        code.rights);
    CHECK(data.start && !strcmp(data.rights, "r--p"), "[vvar] %lx %s", data.start, data.rights);
}

// A time that a program computes lies between two results of the system call.
static void times_lie_between_those_of_system_calls(void) {
    static const clockid_t clocks[] = {CLOCK_REALTIME, CLOCK_MONOTONIC, CLOCK_MONOTONIC_RAW, CLOCK_BOOTTIME,
        CLOCK_REALTIME_COARSE, CLOCK_MONOTONIC_COARSE, CLOCK_TAI, CLOCK_PROCESS_CPUTIME_ID, CLOCK_THREAD_CPUTIME_ID};
    for (size_t c = 0; c < sizeof clocks / sizeof *clocks; c++) {
        for (int i = 0; i < CALLS / 10; i++) {
            uint64_t before = system_time(clocks[c]), own = own_time(clocks[c]), after = system_time(clocks[c]);
            CHECK(before <= own && own <= after, "clock %d: %lu, %lu, %lu", clocks[c], before, own, after);
        }
        struct timespec own, theirs;
        CHECK(!vdso.getres(clocks[c], &own) && !syscall(SYS_clock_getres, clocks[c], &theirs), "resolution");
        CHECK(ns(own) == ns(theirs), "clock %d: steps of %lu, not %lu ns", clocks[c], ns(own), ns(theirs));
    }
    struct timespec nothing;
    CHECK(vdso.gettime(99, &nothing) == -EINVAL && vdso.getres(99, &nothing) == -EINVAL, "a clock that is none");
    CHECK(!vdso.getres(CLOCK_MONOTONIC, NULL), "no place for a resolution");
}

static void the_time_of_day_in_other_units(void) {
    for (int i = 0; i < CALLS; i++) {
        struct timeval day;
        struct timezone zone = {7, 7};
        uint64_t before = system_time(CLOCK_REALTIME);
        CHECK(!vdso.gettimeofday(&day, &zone), "gettimeofday");
        uint64_t after = system_time(CLOCK_REALTIME), us = day.tv_sec * 1000000ull + day.tv_usec;
        CHECK(before / 1000 <= us && us <= after / 1000, "%lu, %lu us, %lu", before, us, after);
        CHECK(!zone.tz_minuteswest && !zone.tz_dsttime && day.tv_usec < 1000000, "the zone");
        time_t stored, first = syscall(SYS_time, NULL), now = vdso.time(&stored), last = syscall(SYS_time, NULL);
        CHECK(first <= now && now <= last && stored == now && vdso.time(NULL) >= now, "%ld, %ld, %ld", first, now,
            last);
    }
    CHECK(!vdso.gettimeofday(NULL, NULL), "no place for a time");
}

static int allowed_cpus(cpu_set_t *all) {
    CHECK(!sched_getaffinity(0, sizeof *all, all), "sched_getaffinity");
    return CPU_COUNT(all);
}

static void go_to_cpu(int cpu) {
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(cpu, &one);
    CHECK(!sched_setaffinity(0, sizeof one, &one), "sched_setaffinity to CPU %d", cpu);
}

static void each_cpu_has_its_number(void) {
    cpu_set_t all;
    allowed_cpus(&all);
    for (int round = 0; round < 50; round++)
        for (int cpu = 0; cpu < CPU_SETSIZE; cpu++) {
            if (!CPU_ISSET(cpu, &all)) continue;
            go_to_cpu(cpu);
            unsigned own = 999, node = 999, theirs, its_node;
            CHECK(!vdso.getcpu(&own, &node, NULL) && !syscall(SYS_getcpu, &theirs, &its_node, NULL), "getcpu");
            CHECK(own == (unsigned)cpu && theirs == own && node == its_node, "CPU %d: %u, %u", cpu, own, theirs);
        }
    CHECK(!vdso.getcpu(NULL, NULL, NULL), "no place for a number");
}

enum { THREADS = 4 };
static _Atomic uint64_t latest;
static pthread_barrier_t barrier;

// No time lies before an earlier reading of another thread, on another CPU or by the system call.
static void *reads_in_turn(void *arg) {
    cpu_set_t all;
    allowed_cpus(&all);
    int n = (intptr_t)arg;
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++)
        if (CPU_ISSET(cpu, &all) && n-- % CPU_COUNT(&all) == 0) {
            go_to_cpu(cpu);
            break;
        }
    pthread_barrier_wait(&barrier);
    for (int i = 0; i < CALLS; i++) {
        uint64_t seen = latest;
        uint64_t now = i % 16 ? own_time(CLOCK_MONOTONIC) : system_time(CLOCK_MONOTONIC);
        CHECK(now >= seen, "%lu after %lu", now, seen);
        while (seen < now && !atomic_compare_exchange_weak(&latest, &seen, now)) {}
        if (i % 512 == 0) sched_yield();
    }
    return NULL;
}

static void time_never_goes_back(void) {
    pthread_t threads[THREADS];
    pthread_barrier_init(&barrier, NULL, THREADS);
    for (intptr_t i = 0; i < THREADS; i++)
        CHECK(!pthread_create(&threads[i], NULL, reads_in_turn, (void *)i), "a thread");
    for (int i = 0; i < THREADS; i++) CHECK(!pthread_join(threads[i], NULL), "join");
}

#define FAR 100000000000ull // 100 s, by which the wall clock is moved
static atomic_bool done;

// While the wall clock is moved to and fro, it is at one of two distances from the other clock.
static void *reads_while_it_moves(void *arg) {
    uint64_t base = *(uint64_t *)arg;
    while (!done) {
        uint64_t before = own_time(CLOCK_MONOTONIC), day = own_time(CLOCK_REALTIME), after = own_time(CLOCK_MONOTONIC);
        uint64_t least = day - after - base, most = day - before - base;
        // The distance lies between both. A second is far more than setting the clock takes.
        bool near = most < 1000000000 || least >= -1000000000ull;
        bool far = most - FAR < 1000000000 || least - FAR >= -1000000000ull;
        CHECK(near || far || after - before > 1000000000, "moved by %ld to %ld ns", least, most);
    }
    return NULL;
}

static void set(uint64_t to) {
    struct timespec t = {to / 1000000000, to % 1000000000};
    CHECK(!clock_settime(CLOCK_REALTIME, &t), "clock_settime");
}

static void a_set_clock_is_seen_at_once(void) {
    uint64_t base = system_time(CLOCK_REALTIME) - system_time(CLOCK_MONOTONIC);
    pthread_t reader;
    CHECK(!pthread_create(&reader, NULL, reads_while_it_moves, &base), "a thread");
    for (int i = 0; i < 200; i++) {
        uint64_t other = i % 2 ? 0 : FAR;
        set(base + own_time(CLOCK_MONOTONIC) + other);
        uint64_t before = system_time(CLOCK_REALTIME), own = own_time(CLOCK_REALTIME);
        uint64_t coarse = own_time(CLOCK_REALTIME_COARSE), after = system_time(CLOCK_REALTIME);
        CHECK(before <= own && own <= after && coarse <= after, "%lu, %lu, %lu", before, own, after);
        CHECK(own - own_time(CLOCK_MONOTONIC) - base - other + 1000000000 < 2000000000, "it was not set");
    }
    done = true;
    pthread_join(reader, NULL);
}

static void works_in_a_child(void) {
    look(vdso.at);
    times_lie_between_those_of_system_calls();
}
static void a_fork_keeps_it(void) { CHECK(in_child(works_in_a_child) == 0, "the child"); }

static const char *self;

// Each program gets one of its own, at a random address.
static void an_exec_has_another(void) {
    enum { RUNS = 6 };
    uintptr_t at[RUNS];
    bool differs = false;
    for (int i = 0; i < RUNS; i++) {
        int ends[2];
        CHECK(!pipe(ends), "pipe");
        pid_t child = fork();
        CHECK(child >= 0, "fork");
        if (!child) {
            dup2(ends[1], 1);
            execl(self, self, "--only", "address", (char *)NULL);
            _exit(9);
        }
        close(ends[1]);
        CHECK(read(ends[0], &at[i], sizeof at[i]) == sizeof at[i] && ended(child) == 0, "the program");
        close(ends[0]);
        differs |= at[i] != at[0];
    }
    CHECK(differs, "always at %lx", at[0]);
}

static void without_it_system_calls_work(void) {
    struct range code = mapping("[vdso]"), data = mapping("[vvar]");
    CHECK(!munmap((void *)code.start, code.end - code.start), "munmap of the code");
    uint64_t before = system_time(CLOCK_MONOTONIC);
    CHECK(!munmap((void *)data.start, data.end - data.start), "munmap of the data");
    CHECK(system_time(CLOCK_MONOTONIC) >= before, "clock_gettime");
    CHECK(!mapping("[vdso]").start && !mapping("[vvar]").start, "it is mapped");
    pid_t child = syscall(SYS_fork);
    CHECK(child >= 0, "fork");
    if (!child) _exit(system_time(CLOCK_REALTIME) > before && !mapping("[vdso]").start ? 0 : 1);
    CHECK(ended(child) == 0, "the child");
}

// Programs that restore others move it: the distance of code and data must stay.
static void it_can_be_moved(void) {
    struct range code = mapping("[vdso]"), data = mapping("[vvar]");
    uintptr_t start = data.start < code.start ? data.start : code.start;
    size_t bytes = (data.end > code.end ? data.end : code.end) - start;
    char *to = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(to != MAP_FAILED, "mmap");
    struct range parts[] = {data, code};
    for (int i = 0; i < 2; i++) {
        size_t len = parts[i].end - parts[i].start;
        char *wish = to + (parts[i].start - start);
        CHECK(mremap((void *)parts[i].start, len, len, MREMAP_MAYMOVE | MREMAP_FIXED, wish) == wish, "mremap %d", i);
    }
    look((uintptr_t)to + (code.start - start));
    CHECK(mapping("[vdso]").start == vdso.at, "it has its name");
    times_lie_between_those_of_system_calls();
}

static void its_data_cannot_be_changed(void) {
    struct range data = mapping("[vvar]");
    void *at = (void *)data.start;
    ANSWERS(EACCES, mprotect(at, PAGE, PROT_READ | PROT_WRITE));
    int zero = open("/dev/zero", O_RDONLY);
    CHECK(zero >= 0, "/dev/zero");
    ANSWERS(EFAULT, read(zero, at, 8));
    pid_t child = fork();
    CHECK(child >= 0, "fork");
    if (!child) {
        *(volatile char *)at = 1;
        _exit(0);
    }
    int status = ended(child);
    CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV, "status %#x", status);
    CHECK(own_time(CLOCK_MONOTONIC) <= system_time(CLOCK_MONOTONIC), "the clock");
}

static void a_bad_pointer_is_the_programs_fault(void) {
    vdso.gettime(CLOCK_MONOTONIC, (void *)8);
}
static void bad_pointers(void) {
    int status = in_child(a_bad_pointer_is_the_programs_fault);
    CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV, "status %#x", status);
}

static const struct check checks[] = {
    {"it_is_mapped_and_named", it_is_mapped_and_named},
    {"times_lie_between_those_of_system_calls", times_lie_between_those_of_system_calls},
    {"the_time_of_day_in_other_units", the_time_of_day_in_other_units},
    {"each_cpu_has_its_number", each_cpu_has_its_number},
    {"time_never_goes_back", time_never_goes_back},
    {"a_set_clock_is_seen_at_once", a_set_clock_is_seen_at_once},
    {"a_fork_keeps_it", a_fork_keeps_it},
    {"an_exec_has_another", an_exec_has_another},
    {"without_it_system_calls_work", without_it_system_calls_work},
    {"it_can_be_moved", it_can_be_moved},
    {"its_data_cannot_be_changed", its_data_cannot_be_changed},
    {"bad_pointers", bad_pointers},
};

int main(int argc, char **argv) {
    parse_options(argc, argv, NULL);
    self = argv[0];
    uintptr_t at = getauxval(AT_SYSINFO_EHDR);
    if (!strcmp(options.only, "address")) return write(1, &at, sizeof at) != sizeof at;
    look(at);
    run_checks(checks, sizeof checks / sizeof *checks);
    return 0;
}
