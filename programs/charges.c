// Kernel memory that programs make the kernel keep is counted, limited and reported: the same on Linux and on Quire.
// Runs as root.
#include "checks.h"
#include "proc.h"
#include <pthread.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>

#define USER 4711
#define PAGE 4096ul

static void become_user(void) { CHECK(!setgid(USER) && !setuid(USER), "setuid"); }

static void limit(int which, rlim_t most) {
    struct rlimit to = {most, most};
    CHECK(!setrlimit(which, &to), "setrlimit %d", which);
}

static long knob(const char *path) { return strtol(contents(path), NULL, 10); }

static void set_knob(const char *path, long to) {
    char text[24];
    int fd = open(path, O_WRONLY), len = snprintf(text, sizeof text, "%ld", to);
    CHECK(fd >= 0 && write(fd, text, len) == len, "%s to %ld", path, to);
    close(fd);
}

static long queued(void) { return row("/proc/self/status", "SigQ"); }

static void block(int signal) {
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, signal);
    CHECK(!sigprocmask(SIG_BLOCK, &set, NULL), "sigprocmask");
}

static int take(int signal, siginfo_t *info) {
    sigset_t set;
    struct timespec now = {0, 0};
    sigemptyset(&set);
    sigaddset(&set, signal);
    return sigtimedwait(&set, info, &now);
}

static void queued_signals_are_counted_for_the_user(void) {
    become_user();
    limit(RLIMIT_SIGPENDING, 10);
    for (int signal = SIGRTMIN; signal < SIGRTMIN + 3; signal++) block(signal);
    block(SIGUSR1);
    CHECK(queued() == 0, "%ld before", queued());
    union sigval value = {.sival_int = 7};
    for (int i = 0; i < 10; i++) CHECK(!sigqueue(getpid(), SIGRTMIN + i % 2, value), "sigqueue %d", i);
    CHECK(queued() == 10, "%ld queued", queued());
    CHECK(sigqueue(getpid(), SIGRTMIN, value) == -1 && errno == EAGAIN, "one too many: %d", errno);
    CHECK(sigqueue(getpid(), SIGRTMIN + 2, value) == -1 && errno == EAGAIN, "of another signal: %d", errno);
    // Such a one is not sent at all.
    siginfo_t info;
    CHECK(take(SIGRTMIN + 2, &info) == -1 && errno == EAGAIN, "it is pending");
    // Without room, kill sends a queued signal without details; standard signals always have room.
    CHECK(!kill(getpid(), SIGRTMIN + 2) && !kill(getpid(), SIGUSR1), "kill");
    CHECK(take(SIGRTMIN + 2, &info) == SIGRTMIN + 2 && info.si_code == SI_USER && info.si_pid == 0, "code %d of %d",
        info.si_code, info.si_pid);
    CHECK(take(SIGUSR1, &info) == SIGUSR1 && info.si_pid == getpid(), "SIGUSR1 of %d", info.si_pid);
    // Another process of the user's finds no room either.
    pid_t child = fork();
    if (!child) {
        CHECK(queued() == 10, "%ld for the child", queued());
        CHECK(sigqueue(getpid(), SIGRTMIN, value) == -1 && errno == EAGAIN, "the child's: %d", errno);
        _exit(0);
    }
    CHECK(!ended(child), "child");
    while (take(SIGCHLD, &info) > 0) continue;
    for (int i = 0; i < 5; i++) CHECK(take(SIGRTMIN, &info) == SIGRTMIN && info.si_value.sival_int == 7, "taken %d", i);
    CHECK(queued() == 5, "%ld after five", queued());
    CHECK(!sigqueue(getpid(), SIGRTMIN, value), "there is room again");
}

static void queued_signals_go_with_their_process(void) {
    become_user();
    pid_t child = fork();
    if (!child) {
        block(SIGRTMIN);
        union sigval value = {0};
        for (int i = 0; i < 500; i++) CHECK(!sigqueue(getpid(), SIGRTMIN, value), "sigqueue %d", i);
        CHECK(queued() == 500, "%ld", queued());
        _exit(0);
    }
    CHECK(!ended(child), "child");
    CHECK(queued() == 0, "%ld left", queued());
}

static void watches_of_epoll_are_limited(void) {
    const char *path = "/proc/sys/fs/epoll/max_user_watches";
    long before = knob(path);
    CHECK(before > 1000, "%ld", before);
    set_knob(path, 6);
    pid_t child = fork();
    if (!child) {
        become_user();
        int sets[2] = {epoll_create1(0), epoll_create1(0)};
        struct epoll_event event = {.events = EPOLLIN};
        int files[7];
        for (int i = 0; i < 7; i++) {
            files[i] = eventfd(0, 0);
            int added = epoll_ctl(sets[i % 2], EPOLL_CTL_ADD, files[i], &event);
            CHECK(i < 6 ? !added : added == -1 && errno == ENOSPC, "file %d: %d", i, errno);
        }
        CHECK(!epoll_ctl(sets[0], EPOLL_CTL_DEL, files[0], NULL), "DEL");
        CHECK(!epoll_ctl(sets[0], EPOLL_CTL_ADD, files[6], &event), "after one left");
        // A set that is closed releases its files.
        close(sets[0]);
        CHECK(!epoll_ctl(sets[1], EPOLL_CTL_ADD, files[0], &event), "after a set has gone");
        // A closed file leaves every set.
        sets[0] = epoll_create1(0);
        CHECK(!epoll_ctl(sets[0], EPOLL_CTL_ADD, files[2], &event) &&
            !epoll_ctl(sets[0], EPOLL_CTL_ADD, files[4], &event), "up to the limit");
        CHECK(epoll_ctl(sets[0], EPOLL_CTL_ADD, files[6], &event) == -1 && errno == ENOSPC, "beyond the limit: %d",
            errno);
        // A file that is in the set already is reported first.
        CHECK(epoll_ctl(sets[0], EPOLL_CTL_ADD, files[4], &event) == -1 && errno == EEXIST, "again: %d", errno);
        close(files[1]);
        CHECK(!epoll_ctl(sets[0], EPOLL_CTL_ADD, files[6], &event), "after a file has gone");
        // An end of a pipe is closed while the pipe stays.
        int ends[2];
        close(files[3]);
        CHECK(!pipe(ends) && !epoll_ctl(sets[0], EPOLL_CTL_ADD, ends[1], &event), "a pipe");
        close(ends[1]);
        CHECK(!epoll_ctl(sets[1], EPOLL_CTL_ADD, ends[0], &event), "after the pipe's end has gone");
        // A descriptor's earlier file does not count, though that is open elsewhere.
        int name = dup(files[0]), other = eventfd(0, 0);
        CHECK(!epoll_ctl(sets[1], EPOLL_CTL_DEL, files[5], NULL), "DEL");
        for (int i = 0; i < 100; i++) {
            CHECK(dup2(i % 2 ? files[5] : other, name) == name, "dup2");
            CHECK(!epoll_ctl(sets[1], EPOLL_CTL_ADD, name, &event), "round %d: %d", i, errno);
            CHECK(!epoll_ctl(sets[1], EPOLL_CTL_DEL, name, NULL), "DEL");
        }
        _exit(0);
    }
    int status = ended(child);
    set_knob(path, before);
    CHECK(!status, "status %#x", status);
}

static void open_files_of_the_system_are_limited(void) {
    const char *path = "/proc/sys/fs/file-max";
    char text[24];
    long before = knob(path), open_now = knob("/proc/sys/fs/file-nr");
    CHECK(before > 0 && open_now > 0 && open_now < before, "%ld of %ld", open_now, before);
    int pipe_ends[2];
    CHECK(!pipe(pipe_ends), "pipe");
    pid_t child = fork();
    if (!child) {
        become_user();
        CHECK(read(pipe_ends[0], text, 1) == 1, "read");
        int opened = 0, error = 0;
        while (opened < 1000 && !error) {
            int fd = open("/dev/null", O_RDONLY);
            if (fd < 0) error = errno;
            else opened++;
        }
        // A call that needs a file fails, and leaves nothing.
        CHECK(error == ENFILE, "%d after %d files", error, opened);
        CHECK(eventfd(0, 0) == -1 && errno == ENFILE, "eventfd: %d", errno);
        CHECK(pipe(pipe_ends) == -1 && errno == ENFILE, "pipe: %d", errno);
        CHECK(open("/tmp/charges-new", O_CREAT | O_RDWR, 0600) == -1 && errno == ENFILE, "open: %d", errno);
        CHECK(access("/tmp/charges-new", F_OK) == -1 && errno == ENOENT, "the file was made");
        _exit(0);
    }
    set_knob(path, open_now + 100);
    CHECK(write(pipe_ends[1], "x", 1) == 1, "write");
    // The administrator may exceed the limit.
    int fd = open("/dev/null", O_RDONLY);
    int status = ended(child);
    set_knob(path, before);
    CHECK(fd >= 0 && !status, "status %#x", status);
    long after = knob("/proc/sys/fs/file-nr");
    CHECK(after < open_now + 90, "%ld open files after %ld", after, open_now);
}

// Memory of each kind shows in /proc/meminfo, and is freed again. Bounds are wide, because other programs run and
// kernels keep caches.
static void memory_is_reported_by_kind(void) {
    const size_t pages = 4096;
    long anonymous = row("/proc/meminfo", "AnonPages"), shared = row("/proc/meminfo", "Shmem"),
        cached = row("/proc/meminfo", "Cached");
    char *at = mmap(NULL, pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(at != MAP_FAILED, "mmap");
    for (size_t i = 0; i < pages; i++) at[i * PAGE] = 1;
    long more = row("/proc/meminfo", "AnonPages") - anonymous;
    CHECK(more > 15000 && more < 18500, "AnonPages: %ld KiB more", more);
    CHECK(!munmap(at, pages * PAGE), "munmap");
    long left = row("/proc/meminfo", "AnonPages") - anonymous;
    CHECK(left < 1500, "AnonPages: %ld KiB left", left);
    at = mmap(NULL, pages * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(at != MAP_FAILED, "mmap");
    for (size_t i = 0; i < pages; i++) at[i * PAGE] = 1;
    int file = memfd_create("memory", 0);
    for (size_t i = 0; i < pages / 16; i++)
        CHECK(pwrite(file, at, 16 * PAGE, i * 16 * PAGE) == 16 * (long)PAGE, "pwrite");
    more = row("/proc/meminfo", "Shmem") - shared;
    CHECK(more > 32000 && more < 34500, "Shmem: %ld KiB more", more);
    CHECK(row("/proc/meminfo", "Cached") - cached > 30000, "Cached");
    left = row("/proc/meminfo", "AnonPages") - anonymous;
    CHECK(left < 1500, "AnonPages: %ld KiB more by shared memory", left);
    munmap(at, pages * PAGE);
    close(file);
    left = row("/proc/meminfo", "Shmem") - shared;
    CHECK(left < 1500, "Shmem: %ld KiB left", left);
}

static void threads_and_tables_are_reported(void) {
    long stacks = row("/proc/meminfo", "KernelStack"), tables = row("/proc/meminfo", "PageTables"),
        slab = row("/proc/meminfo", "Slab");
    int ends[2];
    CHECK(!pipe(ends), "pipe");
    // Many more than idle stacks, which count too, and which new threads take first.
    enum { CHILDREN = 300, IDLE = 200 };
    pid_t children[CHILDREN];
    for (int i = 0; i < CHILDREN; i++) {
        children[i] = fork();
        CHECK(children[i] >= 0, "fork");
        if (!children[i]) {
            close(ends[1]);
            // Quire keeps the stack of a thread that sleeps in this call, unlike in `read`.
            int to[2];
            _exit(pipe(to) || splice(ends[0], NULL, to[1], NULL, 1, 0) != 0);
        }
    }
    for (int i = 0; i < CHILDREN; i++) until_asleep(children[i]);
    long more = row("/proc/meminfo", "KernelStack") - stacks;
    // From 4 KiB a stack.
    CHECK(more > (CHILDREN - IDLE) * 3 && more < CHILDREN * 40, "KernelStack: %ld KiB more", more);
    more = row("/proc/meminfo", "PageTables") - tables;
    CHECK(more > CHILDREN * 12, "PageTables: %ld KiB more", more);
    more = row("/proc/meminfo", "Slab") - slab;
    CHECK(more > 0, "Slab: %ld KiB more", more);
    close(ends[1]);
    for (int i = 0; i < CHILDREN; i++) CHECK(!ended(children[i]), "child");
}

// The number in the row of `text` that begins with `name`, or -1.
static long in_row(const char *text, const char *name) {
    size_t length = strlen(name);
    for (const char *line = text; *line; line++) {
        if (!strncmp(line, name, length) && line[length] == ' ') return strtol(line + length, NULL, 10);
        line = strchr(line, '\n');
        if (!line) break;
    }
    return -1;
}

// Quire alone has the file. The sum of what processes take is held against what the frame allocator has given for
// page tables, stacks and slabs.
static void kernel_memory_is_reported_for_each_process(void) {
    if (access("/proc/self/quire_memory", F_OK)) return;
    static const char *const kinds[] = {"page-tables", "kernel-stack", "thread", "process", "space", "entries",
        "backings",
                                        "objects", "index", "files", "signals", "fpu"};
    enum { CHILDREN = 1000, KINDS = sizeof kinds / sizeof *kinds };
    int ends[2], ready[2];
    CHECK(!pipe(ends) && !pipe(ready), "pipe");
    // Slabs that ended processes left partly free would serve the children.
    set_knob("/proc/sys/vm/drop_caches", 3);
    pid_t children[CHILDREN];
    char path[64], byte = 0;
    long before = row("/proc/meminfo", "KernelStack") + row("/proc/meminfo", "PageTables") + row("/proc/meminfo",
        "Slab");
    long own = row("/proc/self/quire_memory", "total");
    for (int i = 0; i < CHILDREN; i++) {
        children[i] = fork();
        CHECK(children[i] >= 0, "fork");
        if (!children[i]) {
            close(ends[1]);
            CHECK(write(ready[1], &byte, 1) == 1, "write");
            _exit(read(ends[0], &byte, 1) != 0);
        }
    }
    for (int i = 0; i < CHILDREN; i++) CHECK(read(ready[0], &byte, 1) == 1, "read");
    long taken = row("/proc/meminfo", "KernelStack") + row("/proc/meminfo", "PageTables") + row("/proc/meminfo",
        "Slab") - before;
    long reported = row("/proc/self/quire_memory", "total") - own, rows = 0;
    for (int i = 0; i < CHILDREN; i++) {
        snprintf(path, sizeof path, "/proc/%d/quire_memory", children[i]);
        // In one read, because parts that relatives share change with their number.
        const char *text = contents(path);
        long total = in_row(text, "total"), sum = 0;
        for (int k = 0; k < KINDS; k++) {
            long bytes = in_row(text, kinds[k]);
            CHECK(bytes >= 0, "%s has no %s", path, kinds[k]);
            sum += bytes;
            rows += bytes > 0;
        }
        CHECK(sum == total, "%s: the kinds are %ld bytes, the total %ld", path, sum, total);
        reported += total;
    }
    // Of the kinds, only these may be 0: the part of objects that many show, of their indexes, and the kernel stack.
    CHECK(rows >= CHILDREN * (KINDS - 3), "%ld rows are not 0", rows);
    // Slabs that were partly free before, and stacks that waited for a thread, make up the rest.
    double share = reported / 1024.0 / taken;
    CHECK(share > 0.9 && share < 1.1, "processes report %ld KiB, the allocator gave %ld KiB", reported / 1024, taken);
    close(ends[1]);
    for (int i = 0; i < CHILDREN; i++) CHECK(!ended(children[i]), "child");
    close(ends[0]), close(ready[0]), close(ready[1]);
}

// The values that a thread of a sleeper stored, and waits to find again.
struct stored {
    int wait; // the end of a pipe
    char *at[3];
};

static void *find_again(void *of) {
    struct stored *stored = of;
    char byte;
    if (read(stored->wait, &byte, 1)) return NULL;
    for (int i = 0; i < 3; i++) {
        for (int page = 0; page < 4; page++) {
            char *at = stored->at[i] + page * PAGE;
            if (*at != i + page + 1) return NULL;
            *at = 7;
        }
    }
    return of;
}

// Quire alone has the file. Sleeping processes have no page table, not even a root, once caches are dropped. Their
// threads wake on several processors at once, and find what they stored.
static void sleepers_wake_without_page_tables(void) {
    if (access("/proc/self/quire_memory", F_OK)) return;
    enum { CHILDREN = 100, THREADS = 3, ROUNDS = 4 };
    for (int round = 0; round < ROUNDS; round++) {
        int ends[2], ready[2];
        CHECK(!pipe(ends) && !pipe(ready), "pipe");
        pid_t children[CHILDREN];
        char path[64], byte = 0;
        for (int i = 0; i < CHILDREN; i++) {
            children[i] = fork();
            CHECK(children[i] >= 0, "fork");
            if (children[i]) continue;
            close(ends[1]);
            struct stored stored[THREADS];
            pthread_t threads[THREADS];
            for (int t = 0; t < THREADS; t++) {
                stored[t].wait = ends[0];
                for (int k = 0; k < 3; k++) {
                    // Below table pages of different levels.
                    void *place = (void *)(0x100000000000ul + t * 64 * PAGE + (k == 1) * (2ul << 20) +
                        (k == 2) * (1ul << 39));
                    int how = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE;
                    char *at = stored[t].at[k] = mmap(place, 4 * PAGE, PROT_READ | PROT_WRITE, how, -1, 0);
                    CHECK(at == place, "mmap");
                    for (int page = 0; page < 4; page++) at[page * PAGE] = k + page + 1;
                }
                if (t) CHECK(!pthread_create(&threads[t], NULL, find_again, &stored[t]), "a thread");
            }
            CHECK(write(ready[1], &byte, 1) == 1, "write");
            int wrong = !find_again(&stored[0]);
            for (int t = 1; t < THREADS; t++) {
                void *found = NULL;
                wrong |= pthread_join(threads[t], &found) || !found;
            }
            _exit(wrong);
        }
        for (int i = 0; i < CHILDREN; i++) CHECK(read(ready[0], &byte, 1) == 1, "read");
        for (int i = 0; i < CHILDREN; i++) until_asleep(children[i]);
        set_knob("/proc/sys/vm/drop_caches", 3);
        long left = 0;
        for (int i = 0; i < CHILDREN; i++) {
            snprintf(path, sizeof path, "/proc/%d/quire_memory", children[i]);
            left += row(path, "page-tables") != 0;
        }
        CHECK(!left, "%ld of %d sleepers have page tables", left, CHILDREN);
        // Some end without a wake-up.
        for (int i = 0; i < CHILDREN; i += 10) CHECK(!kill(children[i], SIGKILL), "kill");
        close(ends[1]);
        for (int i = 0; i < CHILDREN; i++) {
            int status;
            CHECK(waitpid(children[i], &status, 0) == children[i], "wait");
            CHECK(i % 10 ? !status : status == SIGKILL, "sleeper %d ended with %#x", i, status);
        }
        close(ends[0]), close(ready[0]), close(ready[1]);
    }
}

static const struct check checks[] = {
    {"queued_signals_are_counted_for_the_user", queued_signals_are_counted_for_the_user},
    {"queued_signals_go_with_their_process", queued_signals_go_with_their_process},
    {"watches_of_epoll_are_limited", watches_of_epoll_are_limited},
    {"open_files_of_the_system_are_limited", open_files_of_the_system_are_limited},
    {"memory_is_reported_by_kind", memory_is_reported_by_kind},
    {"threads_and_tables_are_reported", threads_and_tables_are_reported},
    {"kernel_memory_is_reported_for_each_process", kernel_memory_is_reported_for_each_process},
    {"sleepers_wake_without_page_tables", sleepers_wake_without_page_tables},
};

int main(int argc, char **argv) {
    parse_options(argc, argv, NULL);
    run_checks(checks, sizeof checks / sizeof *checks);
    return 0;
}
