// Mappings of files while the files change. It covers truncation and growth with private copies and with stores behind
// the end, punched holes, and /dev/zero. It also covers results of synchronising calls, the times of files and the list
// of mappings. Prints the results: the same on Linux.
#include "report.h"

#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <sys/stat.h>

static sigjmp_buf back;

static void on_bus(int signal) {
    siglongjmp(back, signal);
}

// A byte, or -7 if none can be read.
static int peek(const volatile char *at) {
    if (sigsetjmp(back, 1)) return -SIGBUS;
    return *at;
}

static void poke(volatile char *at, char value) {
    if (!sigsetjmp(back, 1)) *at = value;
}

static int scratch(void) {
    char path[64];
    snprintf(path, sizeof path, "/tmp/filemap.%d", getpid());
    int file = open(path, O_RDWR | O_CREAT | O_TRUNC, 0600);
    CHECK(file >= 0, "cannot create %s", path);
    unlink(path);
    return file;
}

static char *show(int file, int kind, long pages) {
    char *at = mmap(NULL, pages * PAGE, PROT_READ | PROT_WRITE, kind, file, 0);
    CHECK(at != MAP_FAILED, "mmap");
    return at;
}

static void line(const char *what, const char *at, long pages) {
    printf("%s:", what);
    for (long n = 0; n < pages; n++) printf(" %d", peek(at + n * PAGE));
    printf("\n");
    fflush(stdout);
}

// Runs it in a child, and waits.
static void in_child(void (*work)(const char *, char *, char *), const char *what, char *a, char *b) {
    pid_t child = fork();
    CHECK(child >= 0, "fork");
    if (!child) {
        work(what, a, b);
        _exit(0);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && !status, "the child ends with %#x", status);
}

static void look(const char *what, char *a, char *b) {
    char name[64];
    snprintf(name, sizeof name, "%s, a child's private mapping", what);
    line(name, a, 8);
    snprintf(name, sizeof name, "%s, a child's shared mapping", what);
    line(name, b, 8);
}

static void copies_and_truncation(void) {
    int file = scratch();
    CHECK(!ftruncate(file, 8 * PAGE), "ftruncate");
    char *copies = show(file, MAP_PRIVATE, 8), *shared = show(file, MAP_SHARED, 8);
    for (int n = 0; n < 8; n++) shared[n * PAGE] = 10 + n;
    for (int n = 0; n < 8; n += 2) copies[n * PAGE] = 20 + n;
    in_child(look, "before", copies, shared);
    // A child that lives on, with copies of its own.
    int go[2], went[2];
    CHECK(!pipe(go) && !pipe(went), "pipe");
    pid_t child = fork();
    CHECK(child >= 0, "fork");
    char word = 0;
    if (!child) {
        for (int n = 0; n < 8; n += 3) copies[n * PAGE] = 30 + n;
        CHECK(write(went[1], &word, 1) == 1 && read(go[0], &word, 1) == 1, "pipe");
        line("cut short and grown, a child that lived on", copies, 8);
        _exit(0);
    }
    CHECK(read(went[0], &word, 1) == 1, "pipe");
    CHECK(!ftruncate(file, 3 * PAGE + 100), "ftruncate");
    line("cut short, private", copies, 8);
    line("cut short, shared", shared, 8);
    CHECK(!ftruncate(file, 8 * PAGE), "ftruncate");
    CHECK(write(go[1], &word, 1) == 1, "pipe");
    int status;
    CHECK(waitpid(child, &status, 0) == child && !status, "the child ends with %#x", status);
    line("grown again, private", copies, 8);
    line("grown again, shared", shared, 8);
    in_child(look, "grown again", copies, shared);
    for (int n = 0; n < 8; n++) poke(copies + n * PAGE, 40 + n);
    CHECK(!ftruncate(file, 0), "ftruncate");
    CHECK(!ftruncate(file, 8 * PAGE), "ftruncate");
    line("emptied and grown, private", copies, 8);
    munmap(copies, 8 * PAGE), munmap(shared, 8 * PAGE), close(file);
}

static void stores_behind_the_end(void) {
    int file = scratch();
    CHECK(write(file, "abc", 3) == 3, "write");
    char *shared = show(file, MAP_SHARED, 2), *copy = show(file, MAP_PRIVATE, 2), byte[PAGE] = {0};
    shared[2] = 'C', shared[3] = 'd', shared[PAGE - 1] = 'e', copy[4] = 'f';
    printf("behind the end: %d %d %d, size %ld\n", shared[3], shared[PAGE - 1], copy[4],
        (long)lseek(file, 0, SEEK_END));
    CHECK(!ftruncate(file, 2 * PAGE), "ftruncate");
    CHECK(pread(file, byte, PAGE, 0) == PAGE, "pread");
    printf("grown by ftruncate: %d %d %d %d, %d\n", byte[2], byte[3], byte[PAGE - 1], shared[PAGE - 1],
        peek(shared + PAGE));
    printf("the private copy keeps: %d\n", copy[4]);
    CHECK(!ftruncate(file, 3), "ftruncate");
    shared[100] = 'g';
    CHECK(pwrite(file, "z", 1, PAGE + 7) == 1, "pwrite");
    CHECK(pread(file, byte, PAGE, 0) == PAGE, "pread");
    printf("grown by a write further on: %d %d %d\n", byte[2], byte[100], peek(shared + PAGE + 7));
    munmap(shared, 2 * PAGE), munmap(copy, 2 * PAGE), close(file);
}

static void holes(void) {
    int file = scratch();
    CHECK(!ftruncate(file, 6 * PAGE), "ftruncate");
    char *shared = show(file, MAP_SHARED, 6), *copies = show(file, MAP_PRIVATE, 6);
    line("a hole, private", copies, 6);
    line("a hole, shared", shared, 6);
    // A page that was read as a hole follows the file until a store.
    shared[PAGE] = 1;
    CHECK(pwrite(file, "\2", 1, 2 * PAGE) == 1, "pwrite");
    copies[3 * PAGE] = 3;
    CHECK(pwrite(file, "\4", 1, 3 * PAGE) == 1, "pwrite");
    line("filled, private", copies, 6);
    line("filled, shared", shared, 6);
    CHECK(!madvise(shared + PAGE, 3 * PAGE, MADV_REMOVE), "MADV_REMOVE");
    line("punched, private", copies, 6);
    line("punched, shared", shared, 6);
    CHECK(!madvise(copies, 6 * PAGE, MADV_DONTNEED), "MADV_DONTNEED");
    line("forgotten, private", copies, 6);
    munmap(shared, 6 * PAGE), munmap(copies, 6 * PAGE), close(file);
}

static void store(const char *what, char *a, char *b) {
    (void)what;
    a[0] = 5, b[0] = 6;
}

static void zeroes(void) {
    int file = open("/dev/zero", O_RDWR);
    CHECK(file >= 0, "/dev/zero");
    char *copies = show(file, MAP_PRIVATE, 2), *shared = show(file, MAP_SHARED, 2), *other = show(file, MAP_SHARED, 2);
    copies[PAGE] = 1, shared[PAGE] = 2;
    line("/dev/zero, private", copies, 2);
    line("/dev/zero, shared", shared, 2);
    line("/dev/zero, another", other, 2);
    in_child(store, "", copies, shared);
    line("/dev/zero, private, after a child's store", copies, 2);
    line("/dev/zero, shared, after a child's store", shared, 2);
    close(file);
    int reads = open("/dev/zero", O_RDONLY);
    char *only = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE, reads, 0);
    CHECK(only != MAP_FAILED, "a private mapping of a file that is open for reading");
    only[0] = 9;
    printf("/dev/zero, open for reading: %d, shared: %d\n", only[0],
        mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, reads, 0) == MAP_FAILED ? errno : 0);
    munmap(copies, 2 * PAGE), munmap(shared, 2 * PAGE), munmap(other, 2 * PAGE), munmap(only, PAGE), close(reads);
}

#define SAY(call) \
    do { \
        errno = 0; \
        long result = (call); \
        printf(#call ": %ld %d\n", result, errno); \
    } while (0)

static void synchronising(void) {
    int file = scratch(), pipes[2];
    CHECK(!pipe(pipes) && !ftruncate(file, 4 * PAGE), "files");
    char *shared = show(file, MAP_SHARED, 4);
    shared[PAGE] = 1;
    SAY(fsync(file));
    SAY(fdatasync(file));
    SAY(fsync(pipes[0]));
    SAY(fsync(-1));
    SAY(msync(shared, 4 * PAGE, MS_SYNC));
    SAY(msync(shared, 4 * PAGE, MS_ASYNC));
    SAY(msync(shared, 4 * PAGE, 0));
    SAY(msync(shared, 4 * PAGE, MS_SYNC | MS_ASYNC));
    SAY(msync(shared + 1, PAGE, MS_SYNC));
    munmap(shared + 2 * PAGE, PAGE);
    SAY(msync(shared, 4 * PAGE, MS_SYNC));
    SAY(msync(shared, 2 * PAGE, MS_SYNC | MS_INVALIDATE));
    SAY(sync_file_range(file, 0, 0, SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE | SYNC_FILE_RANGE_WAIT_AFTER));
    SAY(sync_file_range(file, PAGE, PAGE, SYNC_FILE_RANGE_WRITE));
    SAY(sync_file_range(file, -1, 1, 0));
    SAY(sync_file_range(file, 0, 1, 8));
    SAY(sync_file_range(pipes[0], 0, 0, SYNC_FILE_RANGE_WRITE));
    SAY(sync_file_range(file, INT64_MAX, 1, 0));
    munmap(shared, 4 * PAGE), close(file), close(pipes[0]), close(pipes[1]);
}

static struct stat seen;

static int order(struct timespec a, struct timespec b) {
    return a.tv_sec != b.tv_sec ? (a.tv_sec > b.tv_sec) - (a.tv_sec < b.tv_sec)
        : (a.tv_nsec > b.tv_nsec) - (a.tv_nsec < b.tv_nsec);
}

// Prints how the times of modification and of change differ from those at the last call. Then it sleeps, so that the
// next change has another time even on a coarse clock.
static void times(const char *what, int file) {
    static const char *const words[] = {"earlier", "same", "later"};
    struct stat now;
    CHECK(!fstat(file, &now), "fstat");
    printf("times after %s: %s %s\n", what, words[order(now.st_mtim, seen.st_mtim) + 1],
        words[order(now.st_ctim, seen.st_ctim) + 1]);
    fflush(stdout);
    seen = now;
    usleep(30000);
}

static void store_there(const char *what, char *a, char *b) {
    (void)what, (void)b;
    *a = 1;
}

// A file system in memory on Linux too: others note more stores.
static void times_of_stores(void) {
    int file = memfd_create("times", 0), zero = open("/dev/zero", O_RDONLY);
    CHECK(file >= 0 && zero >= 0 && !ftruncate(file, 16 * PAGE) && pwrite(file, "x", 1, PAGE) == 1, "files");
    times("creation", file);
    char *shared = show(file, MAP_SHARED, 16), *own = show(file, MAP_PRIVATE, 16);
    times("mmap", file);
    shared[0] = 1;
    times("a store into a hole", file);
    CHECK(!msync(shared, 16 * PAGE, MS_SYNC), "msync");
    times("msync", file);
    shared[0] = 2;
    times("a store into the same page", file);
    shared[PAGE] = 1;
    times("a store into a written page", file);
    own[0] = own[2 * PAGE] = 1;
    times("private stores", file);
    CHECK(peek(shared + 3 * PAGE) == 0, "a load");
    times("a load", file);
    CHECK(read(zero, shared + 4 * PAGE, 1) == 1, "read");
    times("a read into the mapping", file);
    in_child(store_there, "", shared, NULL);
    times("a child's store", file);
    char *filled = show(file, MAP_SHARED | MAP_POPULATE, 16);
    times("MAP_POPULATE", file);
    shared[5 * PAGE] = 1;
    CHECK(!fchmod(file, 0600), "fchmod");
    times("a store and a change of mode", file);
    for (long when = 0; when < 2; when++) {
        // Early, then late.
        struct timespec set[2] = {{.tv_nsec = UTIME_OMIT}, {.tv_sec = when ? seen.st_mtim.tv_sec + 1000 : 1000,
            .tv_nsec = 7}};
        shared[(6 + 3 * when) * PAGE] = 1;
        CHECK(!futimens(file, set), "futimens");
        times(when ? "a store and a late time" : "a store and an early time", file);
        CHECK(!order(seen.st_mtim, set[1]), "another time was set");
        shared[(7 + 3 * when) * PAGE] = 1;
        // At once again, for clocks that are coarse.
        CHECK(!futimens(file, set), "futimens");
        shared[(8 + 3 * when) * PAGE] = 1;
        times("a time and a store", file);
    }
    CHECK(!madvise(shared, 16 * PAGE, MADV_REMOVE), "MADV_REMOVE");
    times("MADV_REMOVE", file);
    munmap(filled, 16 * PAGE), munmap(shared, 16 * PAGE), munmap(own, 16 * PAGE), close(file), close(zero);
    file = memfd_create("times", 0);
    CHECK(file >= 0 && write(file, "x", 1) == 1, "a file");
    times("the creation of a file of one page", file);
    shared = show(file, MAP_SHARED, 1);
    shared[0] = 1;
    times("a store", file);
    munmap(shared, PAGE), close(file);
}

// Rights of the mapping at `at`, as /proc/self/maps lists them.
static const char *rights(const char *at) {
    static char text[512], word[8];
    FILE *maps = fopen("/proc/self/maps", "r");
    CHECK(maps, "/proc/self/maps");
    strcpy(word, "none");
    while (fgets(text, sizeof text, maps)) {
        unsigned long start, end;
        char found[8];
        if (sscanf(text, "%lx-%lx %7s", &start, &end, found) == 3 && start <= (unsigned long)at &&
            (unsigned long)at < end)
            strcpy(word, found);
    }
    fclose(maps);
    return word;
}

static void listed(void) {
    int file = scratch();
    CHECK(!ftruncate(file, PAGE), "ftruncate");
    for (int prot = 0; prot < 8; prot++) {
        char *own = mmap(NULL, PAGE, prot, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0),
            *shared = mmap(NULL, PAGE, prot, MAP_SHARED, file, 0);
        CHECK(own != MAP_FAILED && shared != MAP_FAILED, "mmap with rights %d", prot);
        printf("rights %d: %s", prot, rights(own));
        printf(" %s", rights(shared));
        CHECK(!mprotect(own, PAGE, prot ^ 7), "mprotect");
        printf(", then %s\n", rights(own));
        munmap(own, PAGE), munmap(shared, PAGE);
    }
    close(file);
}

int main(int argc, char **argv) {
    parse_options(argc, argv, NULL);
    struct sigaction action = {.sa_handler = on_bus};
    CHECK(!sigaction(SIGBUS, &action, NULL), "sigaction");
    copies_and_truncation();
    stores_behind_the_end();
    holes();
    zeroes();
    synchronising();
    times_of_stores();
    listed();
}
