// The size of a file system in memory. Checks the operations that take or return pages and inodes, the refusals when it
// is full, and that statfs is right at each step. On Linux it mounts a tmpfs for that, if it may.
//
//   --pages N    the file system must have so many free pages at the start (0: any number)
//   --inodes N   and so many free inodes
#include "checks.h"
#include <setjmp.h>
#include <sys/mount.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/statfs.h>

#define DIRECTORY "/tmp/tmpfs"
#define SOME 600l // pages that the checks have; all others are taken by a ballast meanwhile
#define COUNT(list) (sizeof(list) / sizeof *(list))

static long pages_expected, inodes_expected;
static char bytes[64 * PAGE];

struct room {
    long pages, inodes;
};

static struct room room(void) {
    struct statfs s;
    CHECK(!statfs(".", &s), "statfs");
    CHECK(s.f_bsize == (long)PAGE && s.f_bavail == s.f_bfree && s.f_bfree <= s.f_blocks && s.f_ffree <= s.f_files,
        "statfs makes no sense");
    return (struct room){(long)s.f_bfree, (long)s.f_ffree};
}

static void same(struct room then, const char *when) {
    struct room now = room();
    CHECK(now.pages == then.pages && now.inodes == then.inodes, "%s: %ld pages and %ld inodes are free, not %ld and "
        "%ld", when, now.pages,
          now.inodes, then.pages, then.inodes);
}

static void free_pages(long pages, const char *when) {
    CHECK(room().pages == pages, "%s: %ld pages are free, not %ld", when, room().pages, pages);
}

static int make(const char *name) {
    int fd = open(name, O_RDWR | O_CREAT | O_EXCL, 0600);
    CHECK(fd >= 0, "cannot make %s", name);
    return fd;
}

static void gone(int fd, const char *name) { CHECK(!close(fd) && !unlink(name), "cannot remove %s", name); }

// A call that must fail with that error.
#define FAILS(call, number) \
    do { \
        errno = 0; \
        CHECK((call) == -1 && errno == (number), "%s does not fail with " #number, #call); \
    } while (0)

// Bytes that encode their place.
static void fill(char *to, size_t length, uint64_t at, uint64_t seed) {
    for (size_t i = 0; i < length; i += 8) {
        uint64_t word = (at + i) * 0x9e3779b97f4a7c15ull ^ seed;
        memcpy(to + i, &word, 8);
    }
}

// Writes until the file system is full; returns the bytes.
static long write_all(int fd, uint64_t seed) {
    for (long done = 0;;) {
        fill(bytes, sizeof bytes, done, seed);
        ssize_t n = write(fd, bytes, sizeof bytes);
        if (n < 0) {
            CHECK(errno == ENOSPC, "a write fails otherwise");
            return done;
        }
        CHECK(n > 0, "a write of nothing");
        done += n;
        CHECK(n == sizeof bytes || n % (long)PAGE == 0, "a write ended within a page");
    }
}

static void verify(int fd, long length, uint64_t seed) {
    static char there[sizeof bytes];
    CHECK(lseek(fd, 0, SEEK_END) == length && !lseek(fd, 0, SEEK_SET), "the file has another length");
    for (long done = 0; done < length;) {
        ssize_t n = read(fd, there, sizeof there);
        CHECK(n > 0, "read");
        fill(bytes, n, done, seed);
        CHECK(!memcmp(bytes, there, n), "bytes are lost at %ld", done);
        done += n;
    }
}

// Leaves at most SOME pages: fallocate takes all others.
static int ballast(long *left) {
    long all = room().pages;
    int fd = make("ballast");
    if (all > SOME) CHECK(!posix_fallocate(fd, 0, (all - SOME) * PAGE), "posix_fallocate");
    *left = all < SOME ? all : SOME;
    free_pages(*left, "with the ballast");
    return fd;
}

static void drop_ballast(int fd) { gone(fd, "ballast"); }

// ---- pages ---------------------------------------------------------------------------------------------------------

static void writes(void) {
    struct room start = room();
    for (int round = 0; round < 2; round++) {
        int fd = make("a");
        long length = write_all(fd, round);
        CHECK(length == start.pages * (long)PAGE, "%ld bytes fit into %ld pages", length, start.pages);
        free_pages(0, "full");
        struct stat s;
        CHECK(!fstat(fd, &s) && s.st_blocks == length / 512, "stat reports %ld blocks", (long)s.st_blocks);
        FAILS(pwrite(fd, "x", 1, length), ENOSPC);
        CHECK(pwrite(fd, bytes, 0, length) == 0, "a write of nothing");
        verify(fd, length, round);
        CHECK(pwrite(fd, "x", 1, length - 1) == 1, "present pages can be written over");
        gone(fd, "a");
        same(start, "all removed");
    }
}

static void truncations(void) {
    struct room start = room();
    int fd = make("a");
    CHECK(!ftruncate(fd, 1l << 40), "a file of holes");
    free_pages(start.pages, "holes");
    CHECK(pwrite(fd, "x", 1, 5 * PAGE + 7) == 1 && pwrite(fd, "x", 1, 5 * PAGE) == 1, "pwrite");
    free_pages(start.pages - 1, "one page");
    CHECK(!ftruncate(fd, 5 * PAGE + 1), "ftruncate");
    free_pages(start.pages - 1, "cut within it");
    CHECK(!ftruncate(fd, 5 * PAGE), "ftruncate");
    free_pages(start.pages, "cut before it");
    long length = write_all(fd, 3);
    CHECK(length == start.pages * (long)PAGE, "%ld bytes over %ld pages", length, start.pages);
    CHECK(!ftruncate(fd, 0), "ftruncate");
    free_pages(start.pages, "cut to nothing");
    CHECK(pwrite(fd, "x", 1, 0) == 1, "pwrite");
    int again = open("a", O_WRONLY | O_TRUNC);
    free_pages(start.pages, "opened with O_TRUNC");
    close(again);
    gone(fd, "a");
    same(start, "removed");
}

static void last_close(void) {
    struct room start = room();
    int fd = make("a"), other = dup(fd);
    CHECK(pwrite(fd, "x", 1, 0) == 1, "pwrite");
    char *map = mmap(NULL, PAGE, PROT_READ, MAP_SHARED, fd, 0);
    CHECK(map != MAP_FAILED, "mmap");
    gone(fd, "a");
    free_pages(start.pages - 1, "open still");
    close(other);
    free_pages(start.pages - 1, "mapped still");
    CHECK(*map == 'x', "the mapping");
    munmap(map, PAGE);
    same(start, "unmapped");
    int none = open(".", O_TMPFILE | O_RDWR, 0600);
    CHECK(none >= 0 && write(none, "x", 1) == 1, "O_TMPFILE");
    free_pages(start.pages - 1, "a file without a name");
    CHECK(room().inodes == start.inodes - 1, "and its inode");
    close(none);
    same(start, "closed");
}

static void allocations(void) {
    struct room start = room();
    long left;
    int weight = ballast(&left), fd = make("a");
    FAILS(fallocate(fd, 0, 0, (left + 1) * PAGE), ENOSPC);
    struct stat s;
    CHECK(!fstat(fd, &s) && s.st_size == 0 && s.st_blocks == 0, "a refused allocation changes nothing");
    free_pages(left, "refused");
    CHECK(!ftruncate(fd, left * PAGE - 7) && !fallocate(fd, FALLOC_FL_KEEP_SIZE, 0, left * PAGE), "fallocate");
    free_pages(0, "allocated");
    CHECK(!fstat(fd, &s) && s.st_size == left * (long)PAGE - 7, "FALLOC_FL_KEEP_SIZE");
    for (long n = 0; n < left; n++) CHECK(pwrite(fd, "x", 1, n * PAGE) == 1, "a write into the allocated range");
    CHECK(!fallocate(fd, 0, 0, left * PAGE), "again");
    CHECK(!fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 1, left * PAGE - 1), "a hole");
    free_pages(left - 1, "all but the page of the first byte");
    CHECK(!fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 1), "a hole of a byte");
    free_pages(left - 1, "a part of a page");
    CHECK(!fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, left * PAGE), "a hole of all");
    free_pages(left, "nothing");
    gone(fd, "a");
    drop_ballast(weight);
    same(start, "removed");
}

static sigjmp_buf back;
static volatile long fault_at, fault_code;

static void on_bus(int signal, siginfo_t *info, void *context) {
    (void)signal, (void)context;
    fault_at = (long)info->si_addr;
    fault_code = info->si_code;
    siglongjmp(back, 1);
}

static void catch_bus(void) {
    struct sigaction action = {.sa_sigaction = on_bus, .sa_flags = SA_SIGINFO};
    CHECK(!sigaction(SIGBUS, &action, NULL), "sigaction");
}

static void faults(void) {
    struct room start = room();
    long left;
    int weight = ballast(&left), fd = make("a");
    CHECK(!ftruncate(fd, (left + 5) * PAGE), "ftruncate");
    char *map = mmap(NULL, (left + 5) * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    CHECK(map != MAP_FAILED, "mmap");
    free_pages(left, "mapped");
    catch_bus();
    volatile long n = 0;
    if (!sigsetjmp(back, 1))
        for (; n < left + 5; n++) {
            // Loads through a shared mapping fill holes, too.
            if (n % 3 == 2) CHECK(map[n * PAGE] == 0, "a hole is zeroes");
            map[n * PAGE + 8] = (char)n;
        }
    CHECK(n == left && fault_code == BUS_ADRERR && fault_at == (long)(map + n * PAGE + 8),
        "SIGBUS at page %ld of %ld, code %ld", n, left, fault_code);
    free_pages(0, "full");
    volatile bool loaded = false;
    if (!sigsetjmp(back, 1)) {
        (void)*(volatile char *)(map + left * PAGE);
        loaded = true;
    }
    CHECK(!loaded, "a load of a hole finds room");
    // The kernel's own stores fail in the same way.
    int zero = open("/dev/zero", O_RDONLY);
    FAILS(read(zero, map + left * PAGE, 10), EFAULT);
    for (n = 0; n < left; n++) CHECK(map[n * PAGE + 8] == (char)n, "page %ld has lost its byte", n);
    CHECK(!madvise(map, PAGE, MADV_REMOVE), "MADV_REMOVE");
    free_pages(1, "one page removed");
    CHECK(read(zero, map + left * PAGE, 10) == 10, "there is room again");
    free_pages(0, "full again");
    signal(SIGBUS, SIG_DFL);
    // Stores through private mappings take memory, not space of the file system.
    char *own = mmap(NULL, (left + 5) * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 0);
    CHECK(own != MAP_FAILED, "mmap");
    for (n = 1; n < left; n++) own[n * PAGE] = 1;
    munmap(own, (left + 5) * PAGE);
    munmap(map, (left + 5) * PAGE);
    free_pages(0, "unmapped");
    gone(fd, "a");
    drop_ballast(weight);
    same(start, "removed");
}

static void not_counted(void) {
    struct room start = room();
    int fd = make("a");
    CHECK(write_all(fd, 1) == start.pages * (long)PAGE, "full");
    int memory = memfd_create("m", 0);
    struct statfs s;
    CHECK(memory >= 0 && !fstatfs(memory, &s), "memfd_create");
    CHECK(s.f_type == 0x01021994 && s.f_blocks == 0 && s.f_files == 0, "memory files have a limit");
    CHECK(write(memory, bytes, sizeof bytes) == sizeof bytes, "a memory file");
    char *shared = mmap(NULL, 20 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(shared != MAP_FAILED, "mmap");
    for (int n = 0; n < 20; n++) shared[n * PAGE] = 1;
    free_pages(0, "still full");
    // From there into a full file system: nothing; into one free page: one page.
    int to = start.inodes > 1 ? make("b") : -1;
    if (to >= 0) {
        off_t at = 0;
        FAILS(sendfile(to, memory, &at, 2 * PAGE), ENOSPC);
        CHECK(!ftruncate(fd, (start.pages - 1) * PAGE), "ftruncate");
        at = 0;
        CHECK(sendfile(to, memory, &at, 2 * PAGE) == PAGE && at == PAGE, "sendfile gets as far as there is room");
        FAILS(sendfile(to, memory, &at, 2 * PAGE), ENOSPC);
        CHECK(!ftruncate(to, 0), "ftruncate");
        ssize_t copied = copy_file_range(fd, NULL, to, NULL, 0, 0);
        CHECK(copied == 0 || errno == EXDEV || errno == EINVAL, "copy_file_range");
        gone(to, "b");
    }
    gone(fd, "a");
    same(start, "removed");
}

// ---- inodes --------------------------------------------------------------------------------------------------------

static int make_numbered(int maker, long n) {
    char name[32];
    snprintf(name, sizeof name, "n%d.%ld", maker, n);
    switch (n % 4) {
    case 0: return mkdir(name, 0700);
    case 1: return symlink("target", name);
    case 2: return mknod(name, S_IFIFO | 0600, 0);
    default: {
        int fd = open(name, O_RDWR | O_CREAT | O_EXCL, 0600);
        return fd < 0 ? -1 : close(fd);
    }
    }
}

static void remove_numbered(int maker, long n) {
    char name[32];
    snprintf(name, sizeof name, "n%d.%ld", maker, n);
    CHECK(!(n % 4 == 0 ? rmdir(name) : unlink(name)), "cannot remove %s", name);
}

// Creates until there is no inode left, at most `most`; how many.
static long make_all(int maker, long most) {
    for (long n = 0; n < most; n++)
        if (make_numbered(maker, n)) {
            CHECK(errno == ENOSPC, "a creation fails otherwise");
            return n;
        }
    return most;
}

static void inodes(void) {
    struct room start = room();
    for (int round = 0; round < 2; round++) {
        long made = make_all(0, start.inodes + 5);
        CHECK(made == start.inodes && room().inodes == 0, "%ld things are made of %ld inodes", made, start.inodes);
        FAILS(mkdir("x", 0700), ENOSPC);
        FAILS(symlink("x", "x"), ENOSPC);
        FAILS(mknod("x", S_IFIFO | 0600, 0), ENOSPC);
        FAILS(open("x", O_CREAT | O_WRONLY, 0600), ENOSPC);
        FAILS(open(".", O_TMPFILE | O_WRONLY, 0600), ENOSPC);
        CHECK(access("x", F_OK) == -1 && errno == ENOENT, "a refused name is there");
        FAILS(mkdir("n0.0", 0700), EEXIST);
        if (made > 3) {
            // A further name takes an inode, a change of names does not.
            FAILS(link("n0.3", "x"), ENOSPC);
            CHECK(!rename("n0.3", "x") && !rename("x", "n0.3"), "rename");
            remove_numbered(0, 1);
            CHECK(!link("n0.3", "n0.1") && room().inodes == 0, "link");
            CHECK(!rename("n0.2", "n0.1") && room().inodes == 1, "the second name is gone");
            CHECK(!rename("n0.1", "n0.2") && !symlink("target", "n0.1"), "as before");
        }
        for (long n = 0; n < made; n++) remove_numbered(0, n);
        same(start, "all removed");
    }
}

// ---- races ---------------------------------------------------------------------------------------------------------

static struct {
    _Atomic long ready, done[8];
} *shared;

static void race(void (*run)(int), int workers) {
    shared = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK((void *)shared != MAP_FAILED, "mmap");
    pid_t child[8];
    for (int i = 0; i < workers; i++) {
        child[i] = fork();
        CHECK(child[i] >= 0, "fork");
        if (!child[i]) {
            shared->ready++;
            while (shared->ready < workers) sched_yield();
            run(i);
            _exit(0);
        }
    }
    for (int i = 0; i < workers; i++) {
        int status = ended(child[i]);
        CHECK(!status, "a worker ends with %#x", status);
    }
}

static long sum(int workers) {
    long all = 0;
    for (int i = 0; i < workers; i++) all += shared->done[i];
    return all;
}

static int numbered(int maker) {
    char name[16];
    snprintf(name, sizeof name, "r%d", maker);
    return open(name, O_RDWR | O_CREAT, 0600);
}

// Each fills holes of its own file, by stores or by writes, until it is refused.
static void take_pages(int maker) {
    int fd = numbered(maker);
    CHECK(fd >= 0 && !ftruncate(fd, (SOME + 5) * PAGE), "a file");
    char *map = mmap(NULL, (SOME + 5) * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    CHECK(map != MAP_FAILED, "mmap");
    catch_bus();
    volatile long n = 0;
    if (maker % 2 == 0) {
        if (!sigsetjmp(back, 1))
            for (; n < SOME + 5; n++) map[n * PAGE] = 1;
    } else {
        while (n < SOME + 5 && pwrite(fd, "x", 1, n * PAGE) == 1) n++;
    }
    shared->done[maker] = n;
}

static void racing_pages(void) {
    struct room start = room();
    long left;
    int weight = ballast(&left);
    for (int round = 0; round < 10; round++) {
        race(take_pages, 4);
        CHECK(sum(4) == left, "four took %ld of %ld pages", sum(4), left);
        free_pages(0, "all taken");
        for (int i = 0; i < 4; i++) {
            char name[16];
            snprintf(name, sizeof name, "r%d", i);
            CHECK(!unlink(name), "unlink");
        }
        free_pages(left, "all removed");
    }
    drop_ballast(weight);
    same(start, "removed");
}

static void take_inodes(int maker) { shared->done[maker] = make_all(maker, 100000); }

static void racing_inodes(void) {
    struct room start = room();
    for (int round = 0; round < 3; round++) {
        race(take_inodes, 4);
        CHECK(sum(4) == start.inodes && room().inodes == 0, "four made %ld things of %ld inodes", sum(4), start.inodes);
        for (int i = 0; i < 4; i++)
            for (long n = 0; n < shared->done[i]; n++) remove_numbered(i, n);
        same(start, "all removed");
    }
}

// Writers, truncations, holes and stores of four files, with a file system that is full most of the time: nothing is
// lost.
static void churn(int maker) {
    uint64_t state = maker + 1;
    int fd = numbered(maker);
    CHECK(fd >= 0, "a file");
    for (int i = 0; i < 2000; i++) {
        uint64_t r = random_next(&state);
        off_t at = r % SOME * PAGE;
        switch (r >> 32 & 3) {
        case 0: CHECK(!ftruncate(fd, at), "ftruncate"); break;
        case 1: CHECK(!fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, at, 50 * PAGE), "punch"); break;
        case 2: CHECK(!fallocate(fd, 0, at, 30 * PAGE) || errno == ENOSPC, "fallocate"); break;
        default: CHECK(pwrite(fd, bytes, sizeof bytes, at) > 0 || errno == ENOSPC, "pwrite");
        }
    }
}

static void churning(void) {
    struct room start = room();
    long left;
    int weight = ballast(&left);
    race(churn, 4);
    long blocks = 0;
    for (int i = 0; i < 4; i++) {
        int fd = numbered(i);
        struct stat s;
        CHECK(!fstat(fd, &s), "stat");
        blocks += s.st_blocks / 8;
        close(fd);
    }
    free_pages(left - blocks, "the pages that the files do not have");
    for (int i = 0; i < 4; i++) {
        char name[16];
        snprintf(name, sizeof name, "r%d", i);
        CHECK(!unlink(name), "unlink");
    }
    drop_ballast(weight);
    same(start, "removed");
}

// --------------------------------------------------------------------------------------------------------------------

static const struct check checks[] = {
    {"writes", writes},           {"truncations", truncations}, {"last_close", last_close},
        {"allocations", allocations},
    {"faults", faults},           {"not_counted", not_counted}, {"inodes", inodes},
        {"racing_pages", racing_pages},
    {"racing_inodes", racing_inodes}, {"churning", churning},
};

int main(int argc, char **argv) {
    struct setting own[] = {{"--pages", &pages_expected, NULL}, {"--inodes", &inodes_expected, NULL}, {0}};
    parse_options(argc, argv, own);
    // The directory takes an inode of the root's, of which there may be none.
    bool made = !mkdir(DIRECTORY, 0700) || errno == EEXIST;
    bool mounts = made && !pages_expected && !inodes_expected && !mount("tmpfs", DIRECTORY, "tmpfs", 0,
        "size=20m,nr_inodes=3000");
    CHECK(!chdir(mounts ? DIRECTORY : "/tmp"), "chdir");
    if (made && !mounts) CHECK(!rmdir(DIRECTORY), "rmdir");
    // Where output goes to a file, its page is taken before the count.
    printf("begun 1 program\n");
    fflush(stdout);
    struct room start = room();
    CHECK(!pages_expected || start.pages == pages_expected, "%ld pages are free, not %ld", start.pages, pages_expected);
    CHECK(!inodes_expected || start.inodes == inodes_expected, "%ld inodes are free, not %ld", start.inodes,
        inodes_expected);
    run_checks(checks, COUNT(checks));
    same(start, "at the end");
    return 0;
}
