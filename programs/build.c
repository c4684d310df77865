// A real build, repeated in one boot: `make -jN` of Lua's sources by this machine's gcc, into the guest's memory. The
// output must be the same each time, and the built interpreter must run.
//
//   --per-cpu N   so many jobs for each processor (default 1)
//   --jobs N      so many jobs, however many processors there are
//   --builds N    so many builds (default 3)
//   --goal NAMES  make's goals, separated by commas (default posix: all of it); for instance lzio.o, a short one
//   --source DIR  where the sources are (default /usr/src/lua)
//
// The first build finds nothing mapped and nothing compiled. The later ones are reported apart, as means.
#include "report.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/resource.h>

// Without optimisation the compiler's start, its headers and its files take most of the time.
#define OPTIMISE "MYCFLAGS=-O0"

static long per_cpu = 1, jobs, builds = 3;
static const char *goal = "posix", *source = "/usr/src/lua";

struct cost {
    double wall, user, system, faults;
};

// Runs a program in the directory of the sources, without its standard output; it must succeed.
static struct cost run(const char **words) {
    uint64_t start = now_ns();
    pid_t child = fork();
    CHECK(child >= 0, "fork");
    if (!child) {
        int nothing = open("/dev/null", O_WRONLY);
        if (nothing < 0 || dup2(nothing, 1) < 0) _exit(126);
        execvp(words[0], (char **)words);
        _exit(127);
    }
    int status;
    struct rusage used;
    CHECK(wait4(child, &status, 0, &used) == child, "wait4");
    uint64_t end = now_ns();
    CHECK(WIFEXITED(status) && !WEXITSTATUS(status), "%s %s ended with status %#x", words[0], words[1], status);
    return (struct cost){
        .wall = (end - start) / 1e9,
        .user = used.ru_utime.tv_sec + used.ru_utime.tv_usec / 1e6,
        .system = used.ru_stime.tv_sec + used.ru_stime.tv_usec / 1e6,
        .faults = used.ru_minflt,
    };
}

static int by_name(const void *a, const void *b) { return strcmp(*(char *const *)a, *(char *const *)b); }

// Whether a build of Lua makes this file: an object, the library, the two programs.
static bool made(const char *name) {
    const char *end = strrchr(name, '.');
    return (end && (!strcmp(end, ".o") || !strcmp(end, ".a"))) || !strcmp(name, "lua") || !strcmp(name, "luac");
}

// The CRC-32 of everything that was built, name by name.
static uint32_t sum(void) {
    DIR *directory = opendir(".");
    CHECK(directory, "%s", source);
    char *names[256];
    size_t count = 0;
    for (struct dirent *entry; (entry = readdir(directory));) {
        if (!made(entry->d_name)) continue;
        CHECK(count < sizeof names / sizeof *names && (names[count] = strdup(entry->d_name)), "%s", entry->d_name);
        count++;
    }
    closedir(directory);
    CHECK(count, "nothing was built");
    qsort(names, count, sizeof *names, by_name);
    uint32_t crc = ~0u;
    for (size_t i = 0; i < count; i++) {
        FILE *file = fopen(names[i], "r");
        CHECK(file, "%s", names[i]);
        for (int byte; (byte = getc(file)) != EOF;) {
            crc ^= (uint32_t)byte;
            for (int bit = 0; bit < 8; bit++) crc = crc >> 1 ^ (crc & 1 ? 0xedb88320u : 0);
        }
        CHECK(!ferror(file), "%s", names[i]);
        fclose(file);
        free(names[i]);
    }
    return ~crc;
}

static struct cost mean(const struct cost *all, long count) {
    struct cost sum = {0};
    for (long i = 0; i < count; i++) {
        sum.wall += all[i].wall, sum.user += all[i].user;
        sum.system += all[i].system, sum.faults += all[i].faults;
    }
    return (struct cost){sum.wall / count, sum.user / count, sum.system / count, sum.faults / count};
}

static void report_of(const char *which, const char *what, double value, const char *unit) {
    char name[64];
    snprintf(name, sizeof name, "build_%s_%s", which, what);
    report(name, value, unit);
}

static void report_all(const char *which, struct cost cost) {
    // a billion instructions take eight seconds; how they are divided, Linux knows by its ticks alone
    if (options.count) {
        report_of(which, "instructions", cost.wall / 8 * 1e3, "million");
    } else {
        report_of(which, "wall", cost.wall, "s");
        report_of(which, "user", cost.user, "s");
        report_of(which, "system", cost.system, "s");
        report_of(which, "system_share", 100 * cost.system / (cost.user + cost.system), "%");
    }
    report_of(which, "faults", cost.faults, "faults");
}

int main(int argc, char **argv) {
    struct setting own[] = {{"--per-cpu", &per_cpu, NULL}, {"--jobs", &jobs, NULL},      {"--builds", &builds, NULL},
                            {"--goal", NULL, &goal},       {"--source", NULL, &source}, {0}};
    parse_options(argc, argv, own);
    if (!jobs) jobs = per_cpu * sysconf(_SC_NPROCESSORS_ONLN);
    CHECK(jobs > 0 && builds > 0 && builds <= 1000, "%ld builds with %ld jobs", builds, jobs);
    CHECK(!chdir(source), "%s", source);
    char parallel[32];
    snprintf(parallel, sizeof parallel, "-j%ld", jobs);
    const char *clean[] = {"make", "clean", NULL};
    enum { MOST = 64 };
    const char *build[MOST + 5] = {"make", parallel, OPTIMISE, "AR=ar rc"}; // then the goals, and NULL
    char *goals = strdup(goal);
    CHECK(goals, "strdup");
    int named = 0;
    for (char *next = strtok(goals, ","); next; next = strtok(NULL, ",")) {
        CHECK(named < MOST, "more than %d goals", MOST);
        build[4 + named++] = next;
    }
    CHECK(named, "no goal");
    const char *try[] = {"./lua", "-e", "local t = {} for i = 1, 1000 do t[i] = i * i end assert(#t == 1000 and t[999] "
        "== 998001)", NULL};
    struct cost costs[builds];
    uint32_t first = 0;
    for (long i = 0; i < builds; i++) {
        run(clean);
        LAP_MARK(1);
        costs[i] = run(build);
        LAP_MARK(2);
        uint32_t crc = sum();
        if (!i) first = crc;
        CHECK(crc == first, "build %ld made %08x, the first %08x", i + 1, crc, first);
        if (!strcmp(goal, "posix")) run(try);
    }
    report("build_jobs", jobs, "jobs");
    report_all("first", costs[0]);
    if (builds > 1) report_all("later", mean(costs + 1, builds - 1));
    report("build_crc", first, "");
}
