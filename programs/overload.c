// More memory in use than RAM and swap together hold. Hogs store into their pages at random without end, and check the
// contents. Each killed hog is started again, so the overload lasts. Beside them a small process runs `ls` repeatedly,
// as a shell does. It must always end in time, and must never be killed.
//
//   --hogs N        how many (default 4).
//   --megabytes N   the memory of each (default 160).
//   --kills N       ends after so many hogs were killed (default 3).
//   --patience N    milliseconds that an `ls` may take (default 10000).
//   --seconds S     the time in which those kills must come.
#include "report.h"
#include <signal.h>
#include <sys/prctl.h>

#define MOST_HOGS 16

static long hogs = 4, megabytes = 160, kills = 3, patience = 10000;

static struct {
    _Atomic uint64_t stores;
    _Atomic uint64_t listed, refused; // each `ls` that listed, and each that was refused memory
    _Atomic uint64_t longest;         // nanoseconds
    _Atomic uint64_t since;           // when the one under way began
} *shared;

__attribute__((noreturn)) static void hog(long index) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    prctl(PR_SET_NAME, "hog");
    size_t pages = megabytes * MIB / PAGE;
    uint64_t *memory = mmap(NULL, pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1,
        0);
    CHECK(memory != MAP_FAILED, "mmap of %ld MiB", megabytes);
    uint64_t state = index;
    for (;;) {
        size_t page = random_next(&state) % pages;
        uint64_t *at = memory + page * (PAGE / 8), tag = page * 0x9e3779b97f4a7c15ull | 1;
        CHECK(*at == 0 || *at == tag, "page %zu differs from the stored value", page);
        *at = tag;
        shared->stores++;
    }
}

// Whether it listed; false where it was refused memory.
static bool list(void) {
    pid_t child = fork();
    if (child < 0) {
        CHECK(errno == ENOMEM || errno == EAGAIN, "fork");
        return false;
    }
    if (!child) {
        int null = open("/dev/null", O_WRONLY);
        if (null < 0 || dup2(null, 1) < 0 || dup2(null, 2) < 0) _exit(126);
        execl("/bin/busybox", "ls", "-l", "/", NULL);
        _exit(127);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child, "waitpid");
    CHECK(WIFEXITED(status), "an `ls` died of signal %d", WTERMSIG(status));
    return WEXITSTATUS(status) == 0;
}

// Repeats each `ls` until it lists: after a refusal it is tried again, and its time includes that.
__attribute__((noreturn)) static void lister(void) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    for (;;) {
        uint64_t start = now_ns();
        shared->since = start;
        while (!list()) {
            shared->refused++;
            usleep(10000);
        }
        uint64_t took = now_ns() - start;
        shared->listed++;
        if (took > shared->longest) shared->longest = took;
        usleep(20000);
    }
}

static pid_t start_hog(long index) {
    pid_t child;
    // The fork fails while the machine has no memory for another process.
    while ((child = fork()) < 0) usleep(10000);
    if (!child) hog(index);
    return child;
}

int main(int argc, char **argv) {
    struct setting own[] = {{"--hogs", &hogs, NULL},   {"--megabytes", &megabytes, NULL},
                            {"--kills", &kills, NULL}, {"--patience", &patience, NULL}, {0}};
    options.seconds = 60;
    parse_options(argc, argv, own);
    CHECK(hogs >= 1 && hogs <= MOST_HOGS, "%ld hogs", hogs);
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK((void *)shared != MAP_FAILED, "mmap");
    long room = (memory_info("MemTotal:") + memory_info("SwapTotal:")) / 1024;
    CHECK(hogs * megabytes > room, "%ld MiB are no overload of %ld MiB", hogs * megabytes, room);

    pid_t small = fork(), all[MOST_HOGS];
    CHECK(small >= 0, "fork");
    if (!small) lister();
    while (shared->listed < 20) usleep(1000);
    report("overload_calm_ls", shared->longest / 1e6, "ms");
    shared->longest = 0;

    uint64_t begin = now_ns(), last = begin, gap = 0;
    long killed = 0;
    for (long i = 0; i < hogs; i++) all[i] = start_hog(i);
    while (killed < kills) {
        uint64_t now = now_ns();
        uint64_t since = shared->since;
        CHECK(now < since || now - since < (uint64_t)patience * 1000000,
            "an `ls` has not ended in %ld ms; %ld hogs were killed",
              patience, killed);
        CHECK(now - begin < (uint64_t)(options.seconds * 1e9), "%ld of %ld hogs were killed in %.0f s", killed, kills,
            options.seconds);
        int status;
        pid_t gone = waitpid(-1, &status, WNOHANG);
        CHECK(gone >= 0, "waitpid");
        CHECK(gone != small, "the small process ended with %#x", status);
        for (long i = 0; gone && i < hogs; i++) {
            if (all[i] != gone) continue;
            CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL, "a hog ended with %#x", status);
            killed++;
            if (now - last > gap) gap = now - last;
            last = now;
            all[i] = start_hog(hogs + killed);
        }
        if (!gone) usleep(5000);
    }
    report("overload_kills", killed, "hogs");
    report("overload_longest_gap", gap / 1e6, "ms");
    report("overload_stores", shared->stores, "stores");
    report("overload_listed", shared->listed, "calls");
    report("overload_refused", shared->refused, "calls");
    report("overload_longest_ls", shared->longest / 1e6, "ms");
    for (long i = 0; i < hogs; i++) kill(all[i], SIGKILL);
    kill(small, SIGKILL);
    while (waitpid(-1, NULL, 0) > 0) {}
    return 0;
}
