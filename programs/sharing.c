// Many processes map one large region and touch all of it, as a database's buffers. Measures the kernel's memory for
// each mapped page, and the last process's time to attach. Also measures the time to remove the pages from all of them
// at once, and to end them.
//
//   --sharers N      so many processes (default 32)
//   --megabytes N    the region (default 16)
#include "report.h"
#include <sys/syscall.h>

static long sharers = 32, megabytes = 16;

static void cost(const char *name, uint64_t ticks, double each) {
    char line[64];
    snprintf(line, sizeof line, "%s_%s", name, options.count ? "instructions" : "ticks");
    report(line, ticks / each / (options.count ? 8 : 1), options.count ? "instructions" : "ticks");
}

// The kernel's memory in page tables and in small structures.
static uint64_t kernel_bytes(void) {
    refresh_counters();
    FILE *file = fopen("/proc/meminfo", "r");
    CHECK(file, "/proc/meminfo");
    char line[128];
    unsigned long kib, sum = 0, found = 0;
    while (fgets(line, sizeof line, file)) {
        if (sscanf(line, "PageTables: %lu", &kib) == 1 || sscanf(line, "Slab: %lu", &kib) == 1) {
            sum += kib;
            found++;
        }
    }
    fclose(file);
    CHECK(found == 2, "/proc/meminfo reports no page tables or no slabs");
    return sum * 1024;
}

struct shared {
    atomic_long attached, leave;
    _Atomic uint64_t ticks; // of the last to attach
};

static void sharer(struct shared *state, int file, size_t bytes) {
    uint64_t start = __rdtsc();
    LAP_MARK(1);
    char *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    CHECK(memory != MAP_FAILED, "mmap");
    uint64_t sum = 0;
    for (size_t at = 0; at < bytes; at += PAGE) sum += *(volatile uint64_t *)(memory + at);
    LAP_MARK(2);
    state->ticks = __rdtsc() - start;
    uint64_t pages = bytes / PAGE;
    CHECK(sum == pages * (pages - 1) / 2, "the region's contents are wrong");
    state->attached++;
    // Asleep until all have seen it: polling would be measured too.
    while (!state->leave) syscall(SYS_futex, &state->leave, 0, 0, NULL, NULL, 0);
    _exit(0);
}

int main(int argc, char **argv) {
    struct setting own[] = {{"--sharers", &sharers, NULL}, {"--megabytes", &megabytes, NULL}, {0}};
    parse_options(argc, argv, own);
    CHECK(sharers > 1 && sharers <= 4096 && megabytes > 0, "from 2 to 4096 sharers");
    size_t bytes = megabytes * MIB, pages = bytes / PAGE;
    struct shared *state = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(state != MAP_FAILED, "mmap");
    int file = syscall(SYS_memfd_create, "region", 0);
    CHECK(file >= 0 && !ftruncate(file, bytes), "memfd_create");
    char *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    CHECK(memory != MAP_FAILED, "mmap");
    for (size_t page = 0; page < pages; page++) *(uint64_t *)(memory + page * PAGE) = page;
    munmap(memory, bytes);
    pid_t children[sharers];
    // A process costs memory even without the region. So the processes that map the region are compared with as many
    // that map one page of it. Before both, as many processes fill the kernel's caches.
    enum { WARM, ONE, ALL, GONE, ROUNDS };
    uint64_t used[ROUNDS];
    for (int round = WARM; round < ROUNDS; round++) {
        bool all = round >= ALL;
        state->attached = state->leave = 0;
        size_t mapped = all ? bytes : PAGE;
        for (long i = 0; i < sharers; i++) {
            children[i] = fork();
            CHECK(children[i] >= 0, "fork");
            if (!children[i]) sharer(state, file, mapped);
            while (state->attached <= i) {
                int status;
                CHECK(waitpid(children[i], &status, WNOHANG) == 0, "a sharer failed");
                usleep(1000);
            }
        }
        used[round] = kernel_bytes();
        if (round == ALL) cost("attach_last", state->ticks, pages);
        if (round == GONE) {
            // The pages vanish from every process at once.
            uint64_t start = __rdtsc();
            LAP_MARK(1);
            CHECK(!ftruncate(file, 0), "ftruncate");
            LAP_MARK(2);
            cost("take_away", __rdtsc() - start, (double)pages * sharers);
        }
        uint64_t start = __rdtsc();
        state->leave = 1;
        syscall(SYS_futex, &state->leave, 1, sharers, NULL, NULL, 0);
        for (long i = 0; i < sharers; i++) {
            int status;
            CHECK(waitpid(children[i], &status, 0) == children[i] && !status, "a sharer failed");
        }
        if (round == ALL) cost("exit", __rdtsc() - start, sharers);
    }
    report("kernel_bytes", ((double)used[ALL] - used[ONE]) / ((double)pages * sharers), "bytes/page");
}
