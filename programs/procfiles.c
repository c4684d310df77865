// Files of `/proc` about the pages of a process, and settings: the same on Linux.
#define _GNU_SOURCE
#include "checks.h"
#include <dirent.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/shm.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/utsname.h>

#define PRESENT (1ull << 63)
#define SWAPPED (1ull << 62)
#define SHARED (1ull << 61)
#define ALONE (1ull << 56)
#define FRAME ((1ull << 55) - 1)

static char *pages(int count) {
    char *at = mmap(NULL, count * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(at != MAP_FAILED, "mmap");
    return at;
}

static unsigned long long entry(int fd, const void *at) {
    unsigned long long e;
    CHECK(pread(fd, &e, 8, (unsigned long)at / 4096 * 8) == 8, "pagemap");
    return e;
}

static void page_map(void) {
    char *at = pages(4);
    at[4096] = 1;
    int fd = open("/proc/self/pagemap", O_RDONLY);
    CHECK(fd >= 0, "open");
    CHECK(!entry(fd, at), "%#llx", entry(fd, at));
    unsigned long long e = entry(fd, at + 4096);
    CHECK(e & PRESENT && !(e & (SWAPPED | SHARED)) && e & ALONE && e & FRAME, "%#llx", e);
    unsigned long long all[4];
    CHECK(pread(fd, all, sizeof all, (unsigned long)at / 4096 * 8) == sizeof all && all[1] == e && !all[2], "four");
    ANSWERS(EINVAL, pread(fd, all, 8, 4));
    ANSWERS(EINVAL, pread(fd, all, 7, 0));
    char *file = mmap(NULL, 4096, PROT_READ, MAP_SHARED, open("/proc/self/exe", O_RDONLY), 0);
    CHECK(file != MAP_FAILED && *file == 0x7f, "mmap");
    e = entry(fd, file);
    CHECK(e & PRESENT && e & SHARED, "%#llx", e);
    // A child that has not touched the page sees it too, and neither has it alone.
    if (!fork()) {
        int own = open("/proc/self/pagemap", O_RDONLY);
        e = entry(own, at + 4096);
        CHECK(e & PRESENT && !(e & ALONE), "%#llx", e);
        CHECK(!setuid(1000), "setuid");
        _exit(0);
    }
    int status;
    CHECK(wait(&status) > 0 && !status, "child");
    if (!fork()) {
        // Without rights there are no frame numbers.
        CHECK(!setuid(1000), "setuid");
        if (!fork()) {
            char *mine = pages(1);
            *mine = 1;
            int own = open("/proc/self/pagemap", O_RDONLY);
            // After a change of ids the memory is closed, until the next program.
            if (own >= 0) CHECK(!(entry(own, mine) & FRAME), "a frame number");
            _exit(0);
        }
        CHECK(wait(&status) > 0 && !status, "child");
        ANSWERS(EACCES, open("/proc/1/pagemap", O_RDONLY));
        ANSWERS(EACCES, open("/proc/1/mem", O_RDONLY));
        _exit(0);
    }
    CHECK(wait(&status) > 0 && !status, "child");
}

static void memory(void) {
    char *at = pages(2), got[8192];
    memset(at, 'a', 4096);
    int fd = open("/proc/self/mem", O_RDWR);
    CHECK(fd >= 0, "open");
    CHECK(pread(fd, got, 8192, (unsigned long)at) == 8192 && got[4095] == 'a' && !got[4096], "pread");
    CHECK(pwrite(fd, "hello", 5, (unsigned long)at + 4094) == 5 && !memcmp(at + 4094, "hello", 5), "pwrite");
    CHECK(lseek(fd, (unsigned long)at, SEEK_SET) == (off_t)(unsigned long)at && read(fd, got, 3) == 3, "read");
    CHECK(read(fd, got, 1) == 1 && *got == 'a', "read on");
    ANSWERS(EIO, pread(fd, got, 1, 4096));
    CHECK(!munmap(at + 4096, 4096), "munmap");
    CHECK(pread(fd, got, 8192, (unsigned long)at) == 4096, "cut");
    char name[64];
    pid_t child = fork();
    if (!child) {
        while (at[0] != 'z') usleep(1000);
        _exit(3);
    }
    snprintf(name, sizeof name, "/proc/%d/mem", child);
    int theirs = open(name, O_RDWR);
    CHECK(theirs >= 0 && pwrite(theirs, "z", 1, (unsigned long)at) == 1, "their memory");
    CHECK(at[0] == 'a' && ended(child) == 3 << 8, "child");
    CHECK(pread(theirs, got, 1, (unsigned long)at) == 0, "after the end");
}

// The number in the line of `path` that begins with `key`, below the line that begins with `under` if there is one.
static long number(const char *path, const char *under, const char *key) {
    char line[512];
    FILE *f = fopen(path, "r");
    CHECK(f, "%s", path);
    long found = -1;
    bool below = !under;
    while (found < 0 && fgets(line, sizeof line, f)) {
        if (under && !strncmp(line, under, strlen(under))) below = true;
        if (below && !strncmp(line, key, strlen(key))) found = atol(line + strlen(key));
    }
    fclose(f);
    return found;
}

static void sums(void) {
    char *at = pages(100), under[32];
    memset(at, 1, 10 * 4096);
    snprintf(under, sizeof under, "%lx-", (unsigned long)at);
    // A neighbour may have been merged with it.
    CHECK(!mprotect(at, 4096, PROT_NONE) && !mprotect(at + 99 * 4096, 4096, PROT_NONE), "mprotect");
    snprintf(under, sizeof under, "%lx-", (unsigned long)at + 4096);
    const char *path = "/proc/self/smaps";
    CHECK(number(path, under, "Size:") == 98 * 4, "Size %ld", number(path, under, "Size:"));
    CHECK(number(path, under, "Rss:") == 36, "Rss %ld", number(path, under, "Rss:"));
    CHECK(number(path, under, "Private_Dirty:") == 36, "Private_Dirty %ld", number(path, under, "Private_Dirty:"));
    CHECK(number(path, under, "Shared_Clean:") == 0 && number(path, under, "Anonymous:") == 36, "kinds");
    long rss = number("/proc/self/smaps_rollup", NULL, "Rss:");
    CHECK(rss >= 40 && rss >= number("/proc/self/smaps_rollup", NULL, "Anonymous:"), "sum %ld", rss);
    CHECK(!access("/proc/self/numa_maps", R_OK) && !access("/proc/self/limits", R_OK), "access");
}

static void text(const char *path, const char *wanted) {
    char got[256] = "";
    int fd = open(path, O_RDONLY);
    CHECK(fd >= 0 && read(fd, got, sizeof got - 1) >= 0, "%s", path);
    close(fd);
    CHECK(!strcmp(got, wanted), "%s: %s", path, got);
}

static void set(const char *path, const char *value, int error) {
    int fd = open(path, O_WRONLY);
    CHECK(fd >= 0, "%s", path);
    ANSWERS(error, write(fd, value, strlen(value)));
    close(fd);
}

static void of_process(void) {
    text("/proc/self/oom_adj", "0\n");
    set("/proc/self/oom_score_adj", "500\n", 0);
    text("/proc/self/oom_adj", "8\n");
    set("/proc/self/oom_adj", "15\n", 0);
    text("/proc/self/oom_score_adj", "1000\n");
    set("/proc/self/oom_adj", "-18\n", EINVAL);
    set("/proc/self/oom_adj", "16\n", EINVAL);
    text("/proc/self/personality", "00000000\n");
    text("/proc/self/loginuid", "4294967295");
}

static void settings(void) {
    struct utsname names;
    set("/proc/sys/kernel/domainname", "quire.test\n", 0);
    CHECK(!uname(&names) && !strcmp(names.domainname, "quire.test"), "%s", names.domainname);
    text("/proc/sys/kernel/domainname", "quire.test\n");
    char first[64], second[64];
    FILE *f = fopen("/proc/sys/kernel/random/boot_id", "r");
    CHECK(f && fgets(first, sizeof first, f) && strlen(first) == 37, "boot_id");
    rewind(f);
    CHECK(fgets(second, sizeof second, f) && !strcmp(first, second), "boot_id");
    CHECK(number("/proc/sys/kernel/randomize_va_space", NULL, "") == 2, "randomize_va_space");
    CHECK(number("/proc/sys/vm/nr_hugepages", NULL, "") == 0 && number("/proc/sys/vm/panic_on_oom", NULL, "") == 0,
        "vm");
    CHECK(number("/proc/sys/fs/lease-break-time", NULL, "") == 45 && number("/proc/sys/fs/inode-nr", NULL, "") > 0,
        "fs");
    set("/proc/sys/vm/swappiness", "70\n", 0);
    CHECK(number("/proc/sys/vm/swappiness", NULL, "") == 70, "swappiness");
    set("/proc/sys/vm/swappiness", "201\n", EINVAL);
    set("/proc/sys/vm/swappiness", "60\n", 0);
    text("/proc/sys/kernel/core_pattern", "core\n");
    CHECK(!access("/proc/partitions", R_OK) && !access("/proc/diskstats", R_OK), "tables");
}

static char **arguments;

// A title over the arguments, as setproctitle(3) writes it: it runs on into the environment and ends with a zero.
static void title(void) {
    pid_t child = fork();
    if (child == 0) {
        char *last = arguments[0];
        for (char **a = arguments; *a; a++) last = *a;
        size_t room = (size_t)(last + strlen(last) + 1 - arguments[0]);
        char wanted[256], found[512];
        size_t len = room + 10;
        if (len >= sizeof wanted) _exit(2);
        memset(wanted, 't', len);
        memcpy(arguments[0], wanted, len);
        arguments[0][len] = 0;
        FILE *f = fopen("/proc/self/cmdline", "r");
        size_t got = f ? fread(found, 1, sizeof found, f) : 0;
        _exit(got == len + 1 && !memcmp(found, wanted, len) && !found[len] ? 0 : 1);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0, "title: %#x", status);
}

// The value of a row of `/proc/self/status`, in KiB.
static long row(const char *name) {
    return number("/proc/self/status", NULL, name);
}

static void kinds(void) {
    enum { SIZE = 4 << 20, NEAR = 1024 };
    const char *names[] = {"RssAnon:", "RssFile:", "RssShmem:"};
    long before[3], want[3] = {0};
    for (int i = 0; i < 3; i++) before[i] = row(names[i]);
    int fd = open("kinds", O_RDWR | O_CREAT | O_TRUNC, 0600);
    CHECK(fd >= 0 && !ftruncate(fd, SIZE), "file");
    int key = shmget(IPC_PRIVATE, SIZE, 0600);
    char *anonymous = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    char *shared = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    char *copied = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 0);
    char *file = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    char *segment = shmat(key, NULL, 0);
    CHECK(anonymous != MAP_FAILED && shared != MAP_FAILED && copied != MAP_FAILED && file != MAP_FAILED, "mmap");
    CHECK(segment != (void *)-1 && !shmctl(key, IPC_RMID, NULL), "shmat");
    memset(file, 1, SIZE);
    want[1] += SIZE / 1024;
    memset(anonymous, 1, SIZE);
    want[0] += SIZE / 1024;
    memset(shared, 1, SIZE);
    memset(segment, 1, SIZE);
    want[2] += 2 * SIZE / 1024;
    // The first half is copied, and the second half is read.
    memset(copied, 2, SIZE / 2);
    for (int at = SIZE / 2; at < SIZE; at += 4096) CHECK(copied[at] == 1, "at %#x", at);
    want[0] += SIZE / 2048, want[1] += SIZE / 2048;
    long sum = 0;
    for (int i = 0; i < 3; i++) {
        long now = row(names[i]), more = now - before[i];
        CHECK(more > want[i] - NEAR && more < want[i] + NEAR, "%s %ld more, not %ld", names[i], more, want[i]);
        sum += now;
    }
    long resident = row("VmRSS:");
    CHECK(sum > resident - NEAR && sum < resident + NEAR, "%ld of %ld", sum, resident);
    long size, pages, others;
    FILE *statm = fopen("/proc/self/statm", "r");
    CHECK(statm && fscanf(statm, "%ld %ld %ld", &size, &pages, &others) == 3, "statm");
    fclose(statm);
    CHECK(size > pages && labs(4 * pages - resident) < NEAR, "%ld of %ld pages", pages, size);
    CHECK(labs(4 * others - row(names[1]) - row(names[2])) < NEAR, "%ld pages", others);
    CHECK(!munmap(shared, SIZE) && !shmdt(segment), "munmap");
    CHECK(labs(row(names[2]) - before[2]) < NEAR, "%s %ld", names[2], row(names[2]));
    CHECK(!unlink("kinds"), "unlink");
}

// The value of a row of a file, after its name.
static const char *value_in(const char *file, const char *name) {
    static char line[256];
    FILE *f = fopen(file, "r");
    CHECK(f, "%s", file);
    bool found = false;
    while (!found && fgets(line, sizeof line, f)) found = !strncmp(line, name, strlen(name));
    fclose(f);
    CHECK(found, "%s in %s", name, file);
    return line + strlen(name);
}

static int ids[2], go_on[2];

static void *named(void *none) {
    char byte = 0;
    pid_t tid = gettid();
    CHECK(write(ids[1], &tid, sizeof tid) == sizeof tid && read(go_on[0], &byte, 1) == 1, "pipes");
    char name[16] = "";
    CHECK(!prctl(PR_GET_NAME, name) && !strcmp(name, "given by anothe"), "%s", name);
    return none;
}

// The threads of a process name each other.
static void names_of_threads(void) {
    CHECK(!pipe(ids) && !pipe(go_on), "pipe");
    pthread_t thread;
    pid_t tid;
    CHECK(!pthread_create(&thread, NULL, named, NULL) && read(ids[0], &tid, sizeof tid) == sizeof tid, "a thread");
    char path[64], was[16] = "", is[16] = "", text[32] = "";
    CHECK(!prctl(PR_GET_NAME, was), "PR_GET_NAME");
    snprintf(path, sizeof path, "/proc/self/task/%d/comm", tid);
    int fd = open(path, O_RDWR);
    CHECK(fd >= 0 && write(fd, "given by another", 16) == 16, "%s", path);
    CHECK(pread(fd, text, sizeof text, 0) == 16 && !strcmp(text, "given by anothe\n"), "%s", text);
    CHECK(!prctl(PR_GET_NAME, is) && !strcmp(was, is), "the own name");
    pid_t child = fork();
    if (!child) {
        ANSWERS(EINVAL, write(fd, "x", 1));
        _exit(0);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && !status, "another process");
    CHECK(write(go_on[1], "x", 1) == 1 && !pthread_join(thread, NULL) && !close(fd), "the end");
}

static long info_of(int fd, const char *name, int base) {
    char path[64];
    snprintf(path, sizeof path, "/proc/self/fdinfo/%d", fd);
    return strtol(value_in(path, name), NULL, base);
}

static void descriptors(void) {
    int fd = open("described", O_CREAT | O_RDWR | O_APPEND | O_CLOEXEC, 0600);
    struct stat s;
    CHECK(fd >= 0 && write(fd, "12345", 5) == 5 && !fstat(fd, &s) && !unlink("described"), "a file");
    CHECK(info_of(fd, "pos:", 10) == 5 && info_of(fd, "ino:", 10) == (long)s.st_ino, "position and number");
    long flags = info_of(fd, "flags:", 8);
    CHECK((flags & ~0100000) == (O_RDWR | O_APPEND | O_CLOEXEC), "%#lo", flags);
    char row[16];
    snprintf(row, sizeof row, "%ld ", info_of(fd, "mnt_id:", 10));
    value_in("/proc/self/mountinfo", row);
    int event = eventfd(7, EFD_SEMAPHORE);
    CHECK(event >= 0 && info_of(event, "eventfd-count:", 16) == 7, "an event");
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGUSR1);
    int signals = signalfd(-1, &set, 0);
    CHECK(signals >= 0 && info_of(signals, "sigmask:", 16) == 1l << (SIGUSR1 - 1), "signals");
    pid_t child = fork();
    if (!child) _exit(0);
    int process = syscall(SYS_pidfd_open, child, 0);
    CHECK(process >= 0 && info_of(process, "Pid:", 10) == child, "a process");
    CHECK(waitpid(child, NULL, 0) == child && info_of(process, "Pid:", 10) == -1, "a process that is gone");
    char path[64];
    snprintf(path, sizeof path, "/proc/self/fdinfo/%d", fd);
    CHECK(!close(fd) && access(path, F_OK) < 0 && errno == ENOENT, "a closed descriptor");
    DIR *all = opendir("/proc/self/fdinfo");
    int entries = 0;
    for (struct dirent *e; all && (e = readdir(all));) entries += e->d_name[0] != '.';
    // Those of the directory itself and of the three files, and what the program began with.
    CHECK(entries >= 4 && !closedir(all), "%d entries", entries);
    pid_t parent = getpid();
    child = fork();
    if (!child) {
        CHECK(!setgid(1000) && !setuid(1000), "setuid");
        snprintf(path, sizeof path, "/proc/%d/fdinfo/%d", parent, event);
        ANSWERS(EACCES, open(path, O_RDONLY));
        _exit(0);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && !status, "another user");
}

static void processors(void) {
    unsigned long mask[16] = {0}, words[32] = {0}, seen = 0;
    long length = syscall(SYS_sched_getaffinity, 0, sizeof mask, mask);
    CHECK(length > 0, "sched_getaffinity");
    char text[256];
    snprintf(text, sizeof text, "%s", value_in("/proc/self/status", "Cpus_allowed:"));
    int n = 0;
    for (char *word = strtok(text, ","); word && n < 32; word = strtok(NULL, ",")) words[n++] = strtoul(word, NULL, 16);
    CHECK(n > 0, "words");
    seen = words[n - 1] | (n > 1 ? words[n - 2] << 32 : 0);
    CHECK(seen == mask[0], "%lx and %lx", seen, mask[0]);
    value_in("/proc/self/status", "Mems_allowed:");
    value_in("/proc/stat", "softirq ");
}

int main(int argc, char **argv) {
    arguments = argv;
    parse_options(argc, argv, NULL);
    static const struct check checks[] = {
        {"page_map", page_map}, {"memory", memory}, {"sums", sums}, {"of_process", of_process}, {"kinds", kinds},
        {"settings", settings}, {"title", title}, {"names_of_threads", names_of_threads}, {"descriptors", descriptors},
        {"processors", processors},
    };
    run_checks(checks, sizeof checks / sizeof *checks);
    return 0;
}
