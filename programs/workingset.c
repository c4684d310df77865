// A working set that fits, with swap full. A hot set is touched at random throughout. Then another process fills the
// rest of memory and all of swap with pages that it does not touch again. No process is killed, and the rate of touches
// stays at half of the earlier rate or more.
//
//   --percent N     percentage of RAM that is hot (default 80).
//   --seconds S     seconds of touches while swap is full; a quarter as long before.
//   --patience N    milliseconds that an `ls` may take meanwhile (default 2000).
#include "report.h"
#include <signal.h>
#include <sys/prctl.h>

static long percent = 80, patience = 2000;

static struct {
    _Atomic int fill, full;
    _Atomic uint64_t listed, longest;
} *shared;

static uint64_t *private_memory(size_t bytes) {
    uint64_t *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    CHECK(memory != MAP_FAILED, "mmap of %zu bytes", bytes);
    return memory;
}

static uint64_t tag_of(size_t page) { return page * 0x9e3779b97f4a7c15ull | 1; }

// Stores into one page after the other until swap is full, and then holds them.
__attribute__((noreturn)) static void cold(void) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    while (!shared->fill) usleep(10000);
    size_t most = (memory_info("MemTotal:") + memory_info("SwapTotal:")) / (PAGE / 1024), page = 0;
    uint64_t *memory = private_memory(most * PAGE);
    for (; memory_info("SwapFree:") > 0; page += 8) {
        CHECK(page + 8 <= most, "swap is never full");
        for (size_t i = page; i < page + 8; i++) memory[i * (PAGE / 8)] = tag_of(i);
    }
    shared->full = page;
    while (shared->fill) usleep(100000);
    for (size_t i = 0; i < page; i++)
        CHECK(memory[i * (PAGE / 8)] == tag_of(i), "page %zu differs from the stored value", i);
    _exit(0);
}

__attribute__((noreturn)) static void lister(void) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    for (;; usleep(500000)) {
        uint64_t start = now_ns();
        pid_t child = fork();
        CHECK(child >= 0, "fork");
        if (!child) {
            int null = open("/dev/null", O_WRONLY);
            dup2(null, 1);
            execl("/bin/busybox", "ls", "-l", "/", NULL);
            _exit(127);
        }
        int status;
        CHECK(waitpid(child, &status, 0) == child && status == 0, "an `ls` ended with %#x", status);
        uint64_t took = now_ns() - start;
        if (took > shared->longest) shared->longest = took;
        shared->listed++;
    }
}

static uint64_t *hot;
static size_t hot_pages;

// Touches for so long; how many a second.
static double touch(double seconds) {
    static uint64_t state = 1;
    uint64_t begin = now_ns(), end = begin + (uint64_t)(seconds * 1e9), touches = 0, now;
    while ((now = now_ns()) < end)
        for (int i = 0; i < 64; i++, touches++) {
            size_t page = random_next(&state) % hot_pages;
            uint64_t *at = hot + page * (PAGE / 8);
            CHECK(*at == tag_of(page), "page %zu differs from the stored value", page);
            // Half of the touches are stores.
            if (touches % 2) *at = tag_of(page);
        }
    return touches * 1e9 / (now - begin);
}

int main(int argc, char **argv) {
    struct setting own[] = {{"--percent", &percent, NULL}, {"--patience", &patience, NULL}, {0}};
    options.seconds = 120;
    parse_options(argc, argv, own);
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK((void *)shared != MAP_FAILED, "mmap");
    CHECK(memory_info("SwapTotal:") > 0, "there is no swap");
    pid_t filler = fork();
    CHECK(filler >= 0, "fork");
    if (!filler) cold();
    pid_t small = fork();
    CHECK(small >= 0, "fork");
    if (!small) lister();

    hot_pages = memory_info("MemTotal:") / (PAGE / 1024) * percent / 100;
    hot = private_memory(hot_pages * PAGE);
    for (size_t page = 0; page < hot_pages; page++) hot[page * (PAGE / 8)] = tag_of(page);
    double calm = touch(options.seconds / 4);
    uint64_t calm_ls = shared->longest;
    shared->longest = 0;

    shared->fill = 1;
    while (!shared->full) touch(0.1);
    double begins = touch(options.seconds / 4), goes_on = touch(options.seconds * 3 / 4),
        pressed = (begins + 3 * goes_on) / 4;
    long left = memory_info("SwapFree:"), total = memory_info("SwapTotal:");
    uint64_t pressed_ls = shared->longest;

    report("workingset_hot", hot_pages * PAGE / MIB, "MiB");
    report("workingset_cold", shared->full * PAGE / MIB, "MiB");
    report("workingset_calm", calm, "1/s");
    report("workingset_first_quarter", begins, "1/s");
    report("workingset_then", goes_on, "1/s");
    report("workingset_swap_left", left, "KiB");
    report("workingset_listed", shared->listed, "calls");
    report("workingset_calm_ls", calm_ls / 1e6, "ms");
    report("workingset_longest_ls", pressed_ls / 1e6, "ms");
    CHECK(left < total / 16, "%ld of %ld KiB of swap are free: it is not full", left, total);
    CHECK(pressed >= calm / 2, "%.0f touches a second with swap full, %.0f without", pressed, calm);
    CHECK(pressed_ls < (uint64_t)patience * 1000000, "an `ls` took %.0f ms", pressed_ls / 1e6);
    int status;
    CHECK(waitpid(small, &status, WNOHANG) == 0, "the small process ended with %#x", status);
    kill(small, SIGKILL);
    CHECK(waitpid(small, &status, 0) == small, "waitpid");
    // The cold pages are still there, and read as they were stored.
    munmap(hot, hot_pages * PAGE);
    shared->fill = 0;
    CHECK(waitpid(filler, &status, 0) == filler && status == 0, "the holder of the cold pages ended with %#x", status);
    return 0;
}
