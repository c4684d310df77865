// Files of `/proc` about accesses, mapped files and frames: the same on Linux, as root.
#define _GNU_SOURCE
#include "checks.h"
#include "proc.h"
#include <dirent.h>
#include <sys/mman.h>
#include <sys/stat.h>

#define KIB_A_PAGE 4
#define FRAME ((1ull << 55) - 1)
#define MAY_HAVE_CHANGED (1ull << 55)
#define PRESENT (1ull << 63)

// Bits of kpageflags.
enum { UPTODATE = 3, SLAB = 7, BUDDY = 10, MMAP = 11, ANON = 12, SWAPBACKED = 14, NOPAGE = 20, PGTABLE = 26,
    MLOCKED = 33 };

// Private memory between pages that no access is allowed to, so that no neighbour is merged with it.
static char *pages(int count) {
    char *at = mmap(NULL, (count + 2) * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(at != MAP_FAILED && !mprotect(at + PAGE, count * PAGE, PROT_READ | PROT_WRITE), "mmap");
    return at + PAGE;
}

// A file of so many pages of numbered bytes, in the working directory.
static int file_of(const char *name, int count) {
    int fd = open(name, O_RDWR | O_CREAT | O_TRUNC, 0600);
    CHECK(fd >= 0, "%s", name);
    for (int n = 0; n < count; n++) {
        char page[PAGE];
        memset(page, 'a' + n % 26, sizeof page);
        CHECK(write(fd, page, sizeof page) == sizeof page, "%s", name);
    }
    return fd;
}

// ---- clear_refs ----------------------------------------------------------------------------------------------------

// KiB of the mapping at `at` in a row of smaps.
static long in_smaps(const void *at, const char *key) {
    char under[32], line[512];
    snprintf(under, sizeof under, "%lx-", (unsigned long)at);
    FILE *f = fopen("/proc/self/smaps", "r");
    CHECK(f, "smaps");
    long found = -1;
    for (bool below = false; found < 0 && fgets(line, sizeof line, f);) {
        if (!strncmp(line, under, strlen(under))) below = true;
        if (below && !strncmp(line, key, strlen(key))) found = atol(line + strlen(key));
    }
    fclose(f);
    return found;
}
static long referenced(const void *at) { return in_smaps(at, "Referenced:"); }

static long clears(const char *text, size_t len) {
    int fd = open("/proc/self/clear_refs", O_WRONLY);
    CHECK(fd >= 0, "clear_refs");
    errno = 0;
    long done = write(fd, text, len);
    close(fd);
    return done < 0 ? -errno : done;
}
static void clear(const char *text) {
    long done = clears(text, strlen(text));
    CHECK(done == (long)strlen(text), "clear_refs %s: %ld", text, done);
}

static void touch(volatile char *at, int count) {
    for (int n = 0; n < count; n++) (void)at[n * PAGE];
}

static void accesses(void) {
    char *own = pages(16);
    memset(own, 1, 16 * PAGE);
    int fd = file_of("accessed", 4);
    char *shared = mmap(NULL, 4 * PAGE, PROT_READ, MAP_SHARED, fd, 0);
    char *copied = mmap(NULL, 4 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 0);
    CHECK(shared != MAP_FAILED && copied != MAP_FAILED, "mmap");
    touch(shared, 4);
    memset(copied, 2, 4 * PAGE);
    CHECK(referenced(own) == 64 && referenced(shared) == 16 && referenced(copied) == 16, "%ld, %ld, %ld",
        referenced(own), referenced(shared), referenced(copied));
    clear("2\n");
    CHECK(referenced(own) == 0 && referenced(shared) == 16 && referenced(copied) == 16, "%ld, %ld, %ld",
        referenced(own), referenced(shared), referenced(copied));
    // A change of rights drops the translations, which need not note an access again.
    CHECK(!mprotect(own, 16 * PAGE, PROT_READ), "mprotect");
    touch(own + 3 * PAGE, 5);
    CHECK(referenced(own) == 20, "%ld", referenced(own));
    clear("3");
    CHECK(referenced(own) == 20 && referenced(shared) == 0 && referenced(copied) == 0, "%ld, %ld, %ld", referenced(own),
        referenced(shared), referenced(copied));
    clear("1");
    CHECK(referenced(own) == 0 && in_smaps(own, "Rss:") == 64 && own[PAGE] == 1, "%ld", referenced(own));
    CHECK(!mprotect(own, 16 * PAGE, PROT_READ | PROT_WRITE) && !unlink("accessed"), "mprotect");
    for (int n = 0; n < 16; n++) own[n * PAGE] = 3;
    CHECK(referenced(own) == 64, "%ld", referenced(own));
}

static unsigned long long entry(const void *at) {
    unsigned long long e;
    int fd = open("/proc/self/pagemap", O_RDONLY);
    CHECK(fd >= 0 && pread(fd, &e, 8, (unsigned long)at / PAGE * 8) == 8, "pagemap");
    close(fd);
    return e;
}

// A changed page is reported, by a kernel that reports any.
static void changes(void) {
    char *own = pages(2);
    own[0] = own[PAGE] = 1;
    bool knows = entry(own) & MAY_HAVE_CHANGED;
    clear("4");
    own[PAGE] = 2;
    CHECK(entry(own + PAGE) & PRESENT && !(entry(own + PAGE) & MAY_HAVE_CHANGED) == !knows, "%#llx", entry(own + PAGE));
    CHECK(own[0] == 1 && own[PAGE] == 2, "content");
}

static void peak(void) {
    enum { SIZE = 32 << 20, NEAR = 4096 };
    long before = row("/proc/self/status", "VmRSS");
    char *much = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(much != MAP_FAILED, "mmap");
    memset(much, 1, SIZE);
    CHECK(!munmap(much, SIZE), "munmap");
    struct rusage used;
    CHECK(!getrusage(RUSAGE_SELF, &used), "getrusage");
    long most = row("/proc/self/status", "VmHWM");
    CHECK(most > before + SIZE / 1024 - NEAR && used.ru_maxrss > most - NEAR, "%ld, %ld", most, used.ru_maxrss);
    clear("5");
    long again = row("/proc/self/status", "VmHWM");
    CHECK(!getrusage(RUSAGE_SELF, &used), "getrusage");
    // The peak of the program, of which no other one ran before in this process.
    CHECK(again < before + NEAR && used.ru_maxrss < before + NEAR, "%ld, %ld of %ld", again, used.ru_maxrss, before);
    CHECK(again >= row("/proc/self/status", "VmRSS") - NEAR, "%ld", again);
}

// Reads of untouched memory show one page of zeroes, which is no resident page.
static void peak_of_zeroes(void) {
    enum { SIZE = 32 << 20, NEAR = 4096 };
    char *much = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(much != MAP_FAILED && !madvise(much, SIZE, MADV_NOHUGEPAGE), "mmap");
    clear("5");
    long before = row("/proc/self/status", "VmRSS");
    touch(much, SIZE / PAGE);
    struct rusage used;
    CHECK(!getrusage(RUSAGE_SELF, &used), "getrusage");
    long most = row("/proc/self/status", "VmHWM"), now = row("/proc/self/status", "VmRSS");
    CHECK(most < before + NEAR && now < before + NEAR && used.ru_maxrss < before + NEAR, "%ld, %ld, %ld of %ld", most,
        now, used.ru_maxrss, before);
    CHECK(!munmap(much, SIZE), "munmap");
}

// Pages of a row of the figures of the process `name`: `statm` and `stat`.
static long in_statm(const char *name) {
    char path[64];
    long size, pages;
    snprintf(path, sizeof path, "/proc/%s/statm", name);
    CHECK(sscanf(contents(path), "%ld %ld", &size, &pages) == 2, "%s", path);
    return pages * KIB_A_PAGE;
}
static long in_stat(const char *name) {
    char path[64];
    snprintf(path, sizeof path, "/proc/%s/stat", name);
    const char *at = strrchr(contents(path), ')');
    for (int field = 2; at && field < 24; field++) at = strchr(at + 1, ' ');
    CHECK(at, "%s", path);
    return atol(at) * KIB_A_PAGE;
}

// A child has its parent's private memory, although it has not touched it yet.
static void children(void) {
    enum { SIZE = 16 << 20, KIB = SIZE / 1024, PART = 4 << 20, NEAR = 2048 };
    char *own = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), byte;
    CHECK(own != MAP_FAILED && !madvise(own, SIZE, MADV_NOHUGEPAGE), "mmap");
    memset(own, 1, SIZE);
    int go[2], done[2], end;
    CHECK(!pipe(go) && !pipe(done), "pipe");
    int child = fork();
    CHECK(child >= 0, "fork");
    if (!child) {
        struct rusage used;
        CHECK(!getrusage(RUSAGE_SELF, &used) && used.ru_maxrss >= KIB, "%ld", used.ru_maxrss);
        long anonymous = row("/proc/self/status", "RssAnon"), peak = row("/proc/self/status", "VmHWM");
        CHECK(anonymous >= KIB && anonymous < KIB + NEAR && peak >= anonymous, "%ld, %ld", anonymous, peak);
        CHECK(in_statm("self") >= KIB && in_statm("self") < KIB + 2 * NEAR, "%ld", in_statm("self"));
        CHECK(in_stat("self") >= KIB && in_stat("self") < KIB + 2 * NEAR, "%ld", in_stat("self"));
        CHECK(in_smaps(own, "Rss:") == KIB && in_smaps(own, "Anonymous:") == KIB, "%ld", in_smaps(own, "Rss:"));
        CHECK(in_smaps(own, "Shared_Dirty:") == KIB && !in_smaps(own, "Private_Dirty:"), "%ld",
            in_smaps(own, "Private_Dirty:"));
        CHECK(write(done[1], "", 1) == 1 && read(go[0], &byte, 1) == 1, "pipe");
        // The parent has stored into a part, so it sees copies of its own there.
        long rollup = row("/proc/self/smaps_rollup", "Private_Dirty");
        CHECK(in_smaps(own, "Private_Dirty:") == PART / 1024 && rollup >= PART / 1024, "%ld, %ld",
            in_smaps(own, "Private_Dirty:"), rollup);
        CHECK(in_smaps(own, "Shared_Dirty:") == KIB - PART / 1024, "%ld", in_smaps(own, "Shared_Dirty:"));
        // Loads and stores change the sharing, and not the number.
        touch(own, 1024);
        memset(own + SIZE - PART, 3, PART);
        CHECK(in_smaps(own, "Rss:") == KIB && in_smaps(own, "Private_Dirty:") == 2 * PART / 1024, "%ld",
            in_smaps(own, "Private_Dirty:"));
        CHECK(row("/proc/self/status", "RssAnon") < anonymous + NEAR, "%ld", row("/proc/self/status", "RssAnon"));
        // Memory that goes counts no more, whether the child has touched it or not.
        CHECK(!munmap(own, SIZE / 2) && !madvise(own + SIZE / 2, SIZE / 4, MADV_DONTNEED), "munmap");
        long left = row("/proc/self/status", "RssAnon");
        long kept = anonymous - KIB * 3 / 4;
        CHECK(left > kept - NEAR && left < kept + NEAR, "%ld of %ld", left, anonymous);
        CHECK(row("/proc/self/status", "VmHWM") >= KIB, "%ld", row("/proc/self/status", "VmHWM"));
        _exit(0);
    }
    CHECK(read(done[0], &byte, 1) == 1, "pipe");
    char name[16];
    snprintf(name, sizeof name, "%d", child);
    CHECK(in_statm(name) >= KIB && in_stat(name) >= KIB, "%ld, %ld", in_statm(name), in_stat(name));
    memset(own, 2, PART);
    CHECK(in_smaps(own, "Private_Dirty:") == PART / 1024, "%ld", in_smaps(own, "Private_Dirty:"));
    CHECK(write(go[1], "", 1) == 1, "pipe");
    struct rusage used;
    CHECK(wait4(child, &end, 0, &used) == child && !end, "child");
    CHECK(used.ru_maxrss >= KIB && used.ru_maxrss < KIB + 4 * NEAR, "%ld", used.ru_maxrss);
    CHECK(in_smaps(own, "Private_Dirty:") == KIB, "%ld", in_smaps(own, "Private_Dirty:"));
    close(go[0]), close(go[1]), close(done[0]), close(done[1]);
    CHECK(!munmap(own, SIZE), "munmap");
}

static void numbers(void) {
    static const struct { const char *text; int len; long answer; } rows[] = {
        {"1", 1, 1}, {"2\n", 2, 2}, {" 3 \n", 4, 4}, {"+1", 2, 2}, {"01", 2, 2}, {"1\0" "2", 3, 3}, {"\t1\v\f\r", 5, 5},
        {"0", 1, -EINVAL}, {"6", 1, -EINVAL}, {"-1", 2, -EINVAL}, {"", 0, -EINVAL}, {"\n", 1, -EINVAL},
            {"x", 1, -EINVAL},
        {"1 2", 3, -EINVAL}, {"0x1", 3, -EINVAL}, {"++1", 3, -EINVAL}, {"99999999999", 11, -ERANGE},
        // Twelve bytes are looked at.
        {"1                   x", 21, 12}, {"111111111111111", 15, -ERANGE},
    };
    for (size_t n = 0; n < sizeof rows / sizeof *rows; n++) {
        long answer = clears(rows[n].text, rows[n].len);
        CHECK(answer == rows[n].answer, "row %zu: %ld", n, answer);
    }
    char byte;
    int fd = open("/proc/self/clear_refs", O_RDWR);
    CHECK(fd >= 0, "clear_refs");
    ANSWERS(EINVAL, read(fd, &byte, 1));
    CHECK(pwrite(fd, "1", 1, 77) == 1, "at an offset");
    close(fd);
    pid_t child = fork();
    if (!child) for (;;) pause();
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/clear_refs", child);
    fd = open(path, O_WRONLY);
    CHECK(fd >= 0 && write(fd, "1", 1) == 1, "a child's");
    kill(child, SIGKILL);
    siginfo_t info;
    CHECK(!waitid(P_PID, child, &info, WEXITED | WNOWAIT), "waitid");
    CHECK(write(fd, "1", 1) == 1, "a zombie's");
    ended(child);
    ANSWERS(ESRCH, write(fd, "1", 1));
    close(fd);
    if (!fork()) {
        CHECK(!setuid(1000), "setuid");
        ANSWERS(EACCES, open("/proc/1/clear_refs", O_WRONLY));
        _exit(0);
    }
    int status;
    CHECK(wait(&status) > 0 && !status, "child");
}

// ---- map_files -----------------------------------------------------------------------------------------------------

#define LINKS "/proc/self/map_files/"
static const char *link_of(const void *at, unsigned long len) {
    static char path[96];
    snprintf(path, sizeof path, LINKS "%lx-%lx", (unsigned long)at, (unsigned long)at + len);
    return path;
}
static const char *leads_to(const char *path) {
    static char to[512];
    ssize_t n = readlink(path, to, sizeof to - 1);
    if (n < 0) return strerror(errno);
    to[n] = 0;
    return to;
}

static void links(void) {
    int fd = file_of("mapped", 3);
    char *shared = mmap(NULL, 3 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    int reading = open("mapped", O_RDONLY);
    char *read_only = mmap(NULL, 2 * PAGE, PROT_READ, MAP_PRIVATE, reading, PAGE);
    char *own = pages(4);
    CHECK(shared != MAP_FAILED && read_only != MAP_FAILED, "mmap");
    char whole[512];
    CHECK(realpath("mapped", whole), "realpath");
    CHECK(!strcmp(leads_to(link_of(shared, 3 * PAGE)), whole), "%s", leads_to(link_of(shared, 3 * PAGE)));
    CHECK(!strcmp(leads_to(link_of(read_only, 2 * PAGE)), whole), "%s", leads_to(link_of(read_only, 2 * PAGE)));
    struct stat status;
    CHECK(!lstat(link_of(shared, 3 * PAGE), &status) && status.st_mode == (S_IFLNK | 0600), "%o", status.st_mode);
    CHECK(!lstat(link_of(read_only, 2 * PAGE), &status) && status.st_mode == (S_IFLNK | 0400), "%o", status.st_mode);
    CHECK(!stat(LINKS, &status) && status.st_mode == (S_IFDIR | 0500), "%o", status.st_mode);
    // Only a whole mapping of a file has a name, and one name.
    ANSWERS(ENOENT, lstat(link_of(own, 4 * PAGE), &status));
    ANSWERS(ENOENT, lstat(link_of(shared, 2 * PAGE), &status));
    ANSWERS(ENOENT, lstat(link_of(shared + PAGE, 2 * PAGE), &status));
    unsigned long from = (unsigned long)shared, to = from + 3 * PAGE;
    const char *const wrong[] = {"0%lx-%lx", "%lx-0%lx", "0x%lx-%lx", "%lx-0x%lx", "%lx %lx", "%lx-%lx-", "-%lx-%lx",
        "%lx--%lx", "%lx-%lx ", "1%016lx-%lx", "%lx", "%lx-"};
    for (size_t n = 0; n < sizeof wrong / sizeof *wrong; n++) {
        char path[128] = LINKS;
        snprintf(path + strlen(path), sizeof path - strlen(path), wrong[n], from, to);
        ANSWERS(ENOENT, lstat(path, &status));
    }
    char capitals[96] = LINKS;
    snprintf(capitals + strlen(capitals), sizeof capitals - strlen(capitals), "%lX-%lX", from, to);
    CHECK(!lstat(capitals, &status), "capital letters");
    // The file is opened anew, also after its name has gone.
    char got[2];
    int again = open(link_of(shared, 3 * PAGE), O_RDWR);
    CHECK(again >= 0 && pread(again, got, 2, PAGE - 1) == 2 && got[0] == 'a' && got[1] == 'b', "content");
    shared[1] = 'z';
    CHECK(pread(again, got, 2, 0) == 2 && got[1] == 'z', "the same file");
    CHECK(!unlink("mapped"), "unlink");
    snprintf(whole + strlen(whole), sizeof whole - strlen(whole), " (deleted)");
    CHECK(!strcmp(leads_to(link_of(shared, 3 * PAGE)), whole), "%s", leads_to(link_of(shared, 3 * PAGE)));
    int unlinked = open(link_of(shared, 3 * PAGE), O_RDONLY);
    CHECK(unlinked >= 0 && pread(unlinked, got, 2, 0) == 2 && got[1] == 'z', "an unlinked file");
    CHECK(!munmap(shared, PAGE), "munmap");
    ANSWERS(ENOENT, lstat(link_of(shared, 3 * PAGE), &status));
    CHECK(!lstat(link_of(shared + PAGE, 2 * PAGE), &status), "the rest");
    // Without the capability the own links are shown, and lead nowhere.
    if (!fork()) {
        CHECK(!setuid(1000), "setuid");
        CHECK(!strcmp(leads_to(link_of(shared + PAGE, 2 * PAGE)), whole), "%s",
            leads_to(link_of(shared + PAGE, 2 * PAGE)));
        ANSWERS(EPERM, open(link_of(shared + PAGE, 2 * PAGE), O_RDONLY));
        ANSWERS(EPERM, stat(link_of(shared + PAGE, 2 * PAGE), &status));
        ANSWERS(EACCES, open("/proc/1/map_files", O_RDONLY | O_DIRECTORY));
        _exit(0);
    }
    int end;
    CHECK(wait(&end) > 0 && !end, "child");
}

static void listing(void) {
    enum { MANY = 3000 };
    // Every second page of a range shows the file, so that no two mappings are merged.
    int fd = file_of("listed", 1);
    char *base = mmap(NULL, 2 * MANY * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(base != MAP_FAILED, "mmap");
    for (int n = 0; n < MANY; n++)
        CHECK(mmap(base + 2 * n * PAGE, PAGE, PROT_READ, MAP_SHARED | MAP_FIXED, fd, 0) != MAP_FAILED, "mmap");
    DIR *entries = opendir(LINKS);
    CHECK(entries, LINKS);
    int seen = 0, all = 0;
    unsigned long last = 0;
    for (struct dirent *e; (e = readdir(entries));) {
        unsigned long start, end;
        if (e->d_name[0] == '.') continue;
        CHECK(sscanf(e->d_name, "%lx-%lx", &start, &end) == 2 && start >= last && e->d_type == DT_LNK, "%s", e->d_name);
        last = end;
        all++;
        seen += start >= (unsigned long)base && end <= (unsigned long)base + 2 * MANY * PAGE;
    }
    closedir(entries);
    CHECK(seen == MANY, "%d of %d", seen, MANY);
    // As many as `maps` has lines with a file.
    char line[512];
    FILE *maps = fopen("/proc/self/maps", "r");
    CHECK(maps, "maps");
    while (fgets(line, sizeof line, maps)) {
        long inode;
        CHECK(sscanf(line, "%*s %*s %*s %*s %ld", &inode) == 1, "%s", line);
        all -= inode != 0;
    }
    fclose(maps);
    CHECK(!all, "%d more than in maps", all);
    CHECK(!unlink("listed"), "unlink");
}

// ---- frames --------------------------------------------------------------------------------------------------------

static unsigned long long of_frame(const char *path, const void *at) {
    unsigned long long word = ~0ull, frame = entry(at) & FRAME;
    int fd = open(path, O_RDONLY);
    CHECK(fd >= 0 && frame && pread(fd, &word, 8, frame * 8) == 8, "%s of frame %#llx", path, frame);
    close(fd);
    return word;
}
static unsigned long long count_of(const void *at) { return of_frame("/proc/kpagecount", at); }
static bool has(const void *at, int bit) { return of_frame("/proc/kpageflags", at) >> bit & 1; }

static void counts(void) {
    char *own = pages(2);
    own[0] = 1;
    CHECK(count_of(own) == 1, "%llu", count_of(own));
    int ends[2], back[2];
    CHECK(!pipe(ends) && !pipe(back), "pipe");
    pid_t child = fork();
    if (!child) {
        char byte;
        CHECK(*(volatile char *)own == 1 && write(ends[1], "x", 1) == 1 && read(back[0], &byte, 1) == 1, "child");
        own[0] = 2;
        CHECK(count_of(own) == 1 && write(ends[1], "x", 1) == 1 && read(back[0], &byte, 1) == 1, "a copy");
        _exit(0);
    }
    char byte;
    CHECK(read(ends[0], &byte, 1) == 1 && count_of(own) == 2, "%llu", count_of(own));
    CHECK(write(back[1], "x", 1) == 1 && read(ends[0], &byte, 1) == 1 && count_of(own) == 1, "%llu", count_of(own));
    CHECK(write(back[1], "x", 1) == 1 && !ended(child) && count_of(own) == 1, "%llu", count_of(own));
    int fd = file_of("counted", 1);
    char *first = mmap(NULL, PAGE, PROT_READ, MAP_SHARED, fd, 0), *second = mmap(NULL, PAGE, PROT_READ, MAP_SHARED, fd,
        0);
    CHECK(first != MAP_FAILED && second != MAP_FAILED && *first == 'a' && *second == 'a', "mmap");
    CHECK(count_of(first) == 2, "%llu", count_of(first));
    CHECK(!munmap(second, PAGE) && count_of(first) == 1 && !unlink("counted"), "%llu", count_of(first));
}

static void flags(void) {
    char *own = pages(2);
    own[0] = 1;
    CHECK(has(own, ANON) && has(own, MMAP) && has(own, UPTODATE) && has(own, SWAPBACKED), "%#llx",
        of_frame("/proc/kpageflags", own));
    CHECK(!has(own, NOPAGE) && !has(own, BUDDY) && !has(own, SLAB) && !has(own, PGTABLE) && !has(own, MLOCKED), "%#llx",
        of_frame("/proc/kpageflags", own));
    CHECK(!mlock(own, PAGE) && has(own, MLOCKED), "mlock");
    CHECK(!munlock(own, PAGE) && !has(own, MLOCKED), "munlock");
    int fd = file_of("flagged", 1);
    char *shared = mmap(NULL, PAGE, PROT_READ, MAP_SHARED, fd, 0);
    CHECK(shared != MAP_FAILED && *shared == 'a', "mmap");
    CHECK(!has(shared, ANON) && has(shared, MMAP) && has(shared, UPTODATE), "%#llx",
        of_frame("/proc/kpageflags", shared));
    CHECK(!unlink("flagged") && of_frame("/proc/kpagecgroup", own) != ~0ull, "unlink");
    // Over all frames.
    static unsigned long long words[8192];
    unsigned long long free = 0, tables = 0, slabs = 0;
    fd = open("/proc/kpageflags", O_RDONLY);
    CHECK(fd >= 0, "open");
    long n;
    while ((n = read(fd, words, sizeof words)) > 0)
        for (long i = 0; i < n / 8; i++) {
            CHECK(!(words[i] >> NOPAGE & 1) || words[i] == 1ull << NOPAGE, "%#llx", words[i]);
            free += words[i] >> BUDDY & 1, tables += words[i] >> PGTABLE & 1, slabs += words[i] >> SLAB & 1;
        }
    CHECK(!n, "the end");
    long says = row("/proc/meminfo", "MemFree") / KIB_A_PAGE;
    // A Linux whose memory grows and shrinks while it runs shows less of it here.
    CHECK((long)free > says / 4 && (long)free < says + says / 4 && tables > 0 && slabs > 0,
        "%llu free of %ld, %llu tables, %llu slabs", free, says, tables, slabs);
}

static void offsets(void) {
    static const char *const files[] = {"/proc/kpagecount", "/proc/kpageflags", "/proc/kpagecgroup"};
    for (int n = 0; n < 3; n++) {
        unsigned long long words[2];
        struct stat status;
        int fd = open(files[n], O_RDONLY);
        CHECK(fd >= 0 && !fstat(fd, &status) && status.st_mode == (S_IFREG | 0400), "%s", files[n]);
        CHECK(pread(fd, words, 16, 8) == 16, "%s", files[n]);
        ANSWERS(EINVAL, pread(fd, words, 8, 4));
        ANSWERS(EINVAL, pread(fd, words, 7, 8));
        ANSWERS(EINVAL, pread(fd, words, 8, (1l << 50) + 4));
        CHECK(pread(fd, words, 8, 1l << 50) == 0, "beyond the last");
        CHECK(lseek(fd, 16, SEEK_SET) == 16 && read(fd, words, 8) == 8 && lseek(fd, 0, SEEK_CUR) == 24, "the position");
        ANSWERS(EINVAL, lseek(fd, 0, SEEK_END));
        close(fd);
        if (!fork()) {
            CHECK(!setuid(1000), "setuid");
            ANSWERS(EACCES, open(files[n], O_RDONLY));
            _exit(0);
        }
        int end;
        CHECK(wait(&end) > 0 && !end, "child");
    }
}

static void zones(void) {
    long total = row("/proc/meminfo", "MemTotal") / KIB_A_PAGE, says = row("/proc/meminfo", "MemFree") / KIB_A_PAGE;
    char line[512], zone[32];
    long in_blocks = 0, free = 0, managed = 0, number;
    int node, lines = 0, zones = 0;
    FILE *f = fopen("/proc/buddyinfo", "r");
    CHECK(f, "buddyinfo");
    while (fgets(line, sizeof line, f)) {
        int at = 0, more, orders = 0;
        CHECK(sscanf(line, "Node %d, zone %31s%n", &node, zone, &at) == 2, "%s", line);
        for (; sscanf(line + at, "%ld%n", &number, &more) == 1; at += more) in_blocks += number << orders++;
        CHECK(orders == 11, "%s", line);
        lines++;
    }
    fclose(f);
    f = fopen("/proc/zoneinfo", "r");
    CHECK(f, "zoneinfo");
    while (fgets(line, sizeof line, f)) {
        if (sscanf(line, "Node %d, zone %31s", &node, zone) == 2) zones++;
        if (sscanf(line, " pages free %ld", &number) == 1) free += number;
        if (sscanf(line, " managed %ld", &number) == 1) managed += number;
    }
    fclose(f);
    // A Linux whose memory grows and shrinks while it runs shows less of it here.
    CHECK(lines > 0 && zones >= lines && managed > total / 2 && managed <= total, "%d zones, %ld of %ld frames", zones,
        managed, total);
    // The CPUs' own frames are not in blocks.
    CHECK(labs(in_blocks - free) < total / 16 && free > says / 4 && free < says + total / 16, "%ld, %ld, %ld",
        in_blocks, free, says);
}

int main(int argc, char **argv) {
    parse_options(argc, argv, NULL);
    static const struct check checks[] = {
        {"accesses", accesses}, {"changes", changes}, {"peak", peak}, {"peak_of_zeroes", peak_of_zeroes},
        {"children", children}, {"numbers", numbers}, {"links", links},
        {"listing", listing}, {"counts", counts}, {"flags", flags}, {"offsets", offsets}, {"zones", zones},
    };
    run_checks(checks, sizeof checks / sizeof *checks);
    return 0;
}
