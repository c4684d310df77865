// Calls on descriptors, memory and processes that few programs make: their flags, their errors, and the order of their
// checks. All by their numbers, because a C library makes some of them of others. The same on Linux.
#include "checks.h"
#include <grp.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/sysinfo.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <ucontext.h>

#define BAD_ADDRESS ((void *)8)
enum { RWF_HIPRI_ = 1, RWF_DSYNC_ = 2, RWF_SYNC_ = 4, RWF_NOWAIT_ = 8, RWF_APPEND_ = 16, RWF_NOAPPEND_ = 32 };
enum { SECOND = 1000000000 };

// A file of `name`'s text without a name.
static int unnamed(const char *text) {
    char path[] = "/tmp/quire-rest-XXXXXX";
    int fd = mkstemp(path);
    CHECK(fd >= 0 && !unlink(path) && write(fd, text, strlen(text)) == (long)strlen(text), "mkstemp");
    return fd;
}

static char *fresh(int pages) {
    char *at = mmap(NULL, pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(at != MAP_FAILED, "mmap");
    return at;
}

static void time_of_day(void) {
    struct timeval time = {-1, -1};
    int zone[2] = {7, 7};
    struct timespec clock;
    ANSWERS(0, syscall(SYS_gettimeofday, &time, zone));
    clock_gettime(CLOCK_REALTIME, &clock);
    CHECK(zone[0] == 0 && zone[1] == 0, "zone %d %d", zone[0], zone[1]);
    CHECK(time.tv_usec >= 0 && time.tv_usec < 1000000 && clock.tv_sec - time.tv_sec <= 2 && time.tv_sec <= clock.tv_sec,
        "time");
    ANSWERS(0, syscall(SYS_gettimeofday, NULL, NULL));
    ANSWERS(EFAULT, syscall(SYS_gettimeofday, BAD_ADDRESS, NULL));
    ANSWERS(EFAULT, syscall(SYS_gettimeofday, &time, BAD_ADDRESS));
}

static unsigned long long kib_of(const char *what) {
    FILE *file = fopen("/proc/meminfo", "r");
    CHECK(file, "meminfo");
    char line[200];
    unsigned long long kib = -1ull;
    while (fgets(line, sizeof line, file))
        if (!strncmp(line, what, strlen(what))) kib = strtoull(line + strlen(what), NULL, 10);
    fclose(file);
    return kib;
}

static void memory_of_the_machine(void) {
    struct sysinfo info;
    ANSWERS(EFAULT, syscall(SYS_sysinfo, BAD_ADDRESS));
    ANSWERS(0, syscall(SYS_sysinfo, &info));
    CHECK(info.mem_unit == 1 && info.totalram / 1024 == kib_of("MemTotal:"), "%lu", info.totalram);
    CHECK(info.totalswap / 1024 == kib_of("SwapTotal:") && info.freeswap <= info.totalswap, "%lu", info.totalswap);
    CHECK(info.freeram < info.totalram && info.procs > 0, "%lu", info.freeram);
    // Memory of files in memory counts as shared.
    unsigned long long before = info.sharedram;
    int fd = memfd_create("shared", 0);
    CHECK(fd >= 0 && !ftruncate(fd, 8 * MIB), "memfd");
    char *at = mmap(NULL, 8 * MIB, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, 0);
    CHECK(at != MAP_FAILED, "mmap");
    for (size_t i = 0; i < 8 * MIB; i += PAGE) at[i] = 1;
    ANSWERS(0, syscall(SYS_sysinfo, &info));
    CHECK(info.sharedram >= before + 4 * MIB, "%lu after %llu", info.sharedram, before);
}

static void groups_of_the_caller(void) {
    unsigned all[4] = {30, 10, 20, 10}, got[8] = {0};
    ANSWERS(0, syscall(SYS_setgroups, 4, all));
    CHECK(syscall(SYS_getgroups, 0, BAD_ADDRESS) == 4, "their number");
    CHECK(syscall(SYS_getgroups, 8, got) == 4 && got[0] == 10 && got[1] == 10 && got[2] == 20 && got[3] == 30,
        "sorted");
    ANSWERS(EINVAL, syscall(SYS_getgroups, 3, got));
    ANSWERS(EINVAL, syscall(SYS_getgroups, -1, got));
    ANSWERS(EFAULT, syscall(SYS_getgroups, 4, BAD_ADDRESS));
    ANSWERS(EINVAL, syscall(SYS_setgroups, 65537, all));
    ANSWERS(EFAULT, syscall(SYS_setgroups, 1, BAD_ADDRESS));
    CHECK(syscall(SYS_getgid) == 0 && !syscall(SYS_setresgid, 5, 6, 7), "setresgid");
    CHECK(syscall(SYS_getgid) == 5 && syscall(SYS_getegid) == 6, "the real one");
    ANSWERS(0, syscall(SYS_setgroups, 0, NULL));
    CHECK(syscall(SYS_getgroups, 0, NULL) == 0, "none");
    CHECK(!setuid(1000), "setuid");
    ANSWERS(EPERM, syscall(SYS_setgroups, 0, NULL));
}

static void priorities_of_policies(void) {
    const int policies[] = {0, 1, 2, 3, 5, 6}, most[] = {0, 99, 99, 0, 0, 0}, least[] = {0, 1, 1, 0, 0, 0};
    for (int i = 0; i < 6; i++) {
        CHECK(syscall(SYS_sched_get_priority_max, policies[i]) == most[i], "most of %d", policies[i]);
        CHECK(syscall(SYS_sched_get_priority_min, policies[i]) == least[i], "least of %d", policies[i]);
    }
    const int none[] = {-1, 4, 8, 1 << 30};
    for (int i = 0; i < 4; i++) {
        ANSWERS(EINVAL, syscall(SYS_sched_get_priority_max, none[i]));
        ANSWERS(EINVAL, syscall(SYS_sched_get_priority_min, none[i]));
    }
}

static void syncing(void) {
    int fd = unnamed("text"), ends[2];
    ANSWERS(0, syscall(SYS_sync));
    ANSWERS(0, syscall(SYS_syncfs, fd));
    ANSWERS(0, syscall(SYS_syncfs, open("/tmp", O_RDONLY | O_DIRECTORY)));
    CHECK(!pipe(ends), "pipe");
    ANSWERS(0, syscall(SYS_syncfs, ends[0]));
    ANSWERS(EBADF, syscall(SYS_syncfs, open("/tmp", O_PATH)));
    ANSWERS(EBADF, syscall(SYS_syncfs, 999));
}

static void advice_about_files(void) {
    int fd = unnamed("text"), ends[2], socket_fd = socket(AF_UNIX, SOCK_STREAM, 0);
    CHECK(!pipe(ends) && socket_fd >= 0, "pipe");
    for (int advice = 0; advice < 6; advice++) ANSWERS(0, syscall(SYS_fadvise64, fd, 0, 0, advice));
    ANSWERS(0, syscall(SYS_fadvise64, fd, -5, 3, 4));
    ANSWERS(EINVAL, syscall(SYS_fadvise64, fd, 0, 0, 6));
    ANSWERS(EINVAL, syscall(SYS_fadvise64, fd, 0, 0, -1));
    ANSWERS(EINVAL, syscall(SYS_fadvise64, fd, 0, -1l, 0));
    ANSWERS(ESPIPE, syscall(SYS_fadvise64, ends[0], 0, -1l, 9));
    ANSWERS(0, syscall(SYS_fadvise64, socket_fd, 0, 0, 3));
    ANSWERS(EINVAL, syscall(SYS_fadvise64, socket_fd, 0, 0, 6));
    ANSWERS(0, syscall(SYS_fadvise64, open("/dev/null", O_RDONLY), 0, 0, 0));
    ANSWERS(EBADF, syscall(SYS_fadvise64, open("/tmp", O_PATH), 0, 0, 0));
    ANSWERS(EBADF, syscall(SYS_fadvise64, -1, 0, 0, 9));
    ANSWERS(0, syscall(SYS_readahead, fd, 0, 4096));
    ANSWERS(0, syscall(SYS_readahead, fd, 1l << 40, 1));
    ANSWERS(EINVAL, syscall(SYS_readahead, fd, 0, -1l));
    ANSWERS(EINVAL, syscall(SYS_readahead, ends[0], 0, 1));
    ANSWERS(EINVAL, syscall(SYS_readahead, socket_fd, 0, 1));
    ANSWERS(EINVAL, syscall(SYS_readahead, open("/tmp", O_RDONLY), 0, 1));
    ANSWERS(EINVAL, syscall(SYS_readahead, open("/dev/null", O_RDONLY), 0, 1));
    ANSWERS(EBADF, syscall(SYS_readahead, ends[1], 0, 1));
    ANSWERS(EBADF, syscall(SYS_readahead, 999, 0, 1));
}

static void sets_of_events(void) {
    ANSWERS(EINVAL, syscall(SYS_epoll_create, 0));
    ANSWERS(EINVAL, syscall(SYS_epoll_create, -1));
    ANSWERS(EINVAL, syscall(SYS_epoll_create1, 1));
    int set = syscall(SYS_epoll_create, 1), closing = syscall(SYS_epoll_create1, EPOLL_CLOEXEC), ends[2];
    CHECK(set >= 0 && !fcntl(set, F_GETFD) && fcntl(closing, F_GETFD) == FD_CLOEXEC, "closing on exec");
    CHECK(!pipe(ends) && write(ends[1], "x", 1) == 1, "pipe");
    struct epoll_event event = {EPOLLIN, {.u64 = 77}}, got[2];
    CHECK(!epoll_ctl(set, EPOLL_CTL_ADD, ends[0], &event), "epoll_ctl");
    struct timespec none = {0, 0}, bad = {0, SECOND}, negative = {-1, 0}, little = {0, 20 * MS};
    CHECK(syscall(SYS_epoll_pwait2, set, got, 2, &none, NULL, 0) == 1 && got[0].data.u64 == 77, "an event");
    CHECK(syscall(SYS_epoll_pwait2, set, got, 2, NULL, NULL, 0) == 1, "without a limit");
    ANSWERS(EINVAL, syscall(SYS_epoll_pwait2, set, got, 0, &none, NULL, 0));
    ANSWERS(EINVAL, syscall(SYS_epoll_pwait2, set, got, 2, &bad, NULL, 0));
    ANSWERS(EINVAL, syscall(SYS_epoll_pwait2, set, got, 2, &negative, NULL, 0));
    ANSWERS(EFAULT, syscall(SYS_epoll_pwait2, set, got, 2, BAD_ADDRESS, NULL, 0));
    ANSWERS(EFAULT, syscall(SYS_epoll_pwait2, set, BAD_ADDRESS, 2, &none, NULL, 0));
    ANSWERS(EINVAL, syscall(SYS_epoll_pwait2, ends[0], got, 2, &none, NULL, 0));
    ANSWERS(EBADF, syscall(SYS_epoll_pwait2, 999, got, 2, &none, NULL, 0));
    unsigned long mask = 1ul << (SIGUSR1 - 1);
    ANSWERS(EINVAL, syscall(SYS_epoll_pwait2, set, got, 2, &none, &mask, 4));
    ANSWERS(EFAULT, syscall(SYS_epoll_pwait2, set, got, 2, &none, BAD_ADDRESS, 8));
    char byte;
    CHECK(read(ends[0], &byte, 1) == 1, "read");
    uint64_t before = now_ns();
    CHECK(syscall(SYS_epoll_pwait2, set, got, 2, &little, NULL, 0) == 0 && now_ns() - before >= 20 * MS,
        "a time limit");
    // The mask holds while the call waits, and no longer.
    handle(SIGUSR1, SA_RESTART);
    CHECK(!kill(getpid(), 0) && !sigprocmask(SIG_BLOCK, (sigset_t[]){{{mask}}}, NULL) && !raise(SIGUSR1), "raise");
    unsigned long open_mask = 0;
    ANSWERS(EINTR, syscall(SYS_epoll_pwait2, set, got, 2, NULL, &open_mask, 8));
    CHECK(caught == SIGUSR1, "%d", caught);
}

static void counters(void) {
    unsigned long value = 5;
    int plain = syscall(SYS_eventfd2, 3, 0), one = syscall(SYS_eventfd2, 2, 1 | O_NONBLOCK | O_CLOEXEC);
    CHECK(plain >= 0 && !(fcntl(plain, F_GETFL) & O_NONBLOCK) && !fcntl(plain, F_GETFD), "plain");
    CHECK(fcntl(one, F_GETFL) & O_NONBLOCK && fcntl(one, F_GETFD) == FD_CLOEXEC, "flags");
    CHECK(write(plain, &value, 8) == 8 && read(plain, &value, 8) == 8 && value == 8, "%lu", value);
    for (int i = 0; i < 2; i++) CHECK(read(one, &value, 8) == 8 && value == 1, "%lu", value);
    ANSWERS(EAGAIN, read(one, &value, 8));
    ANSWERS(EINVAL, read(one, &value, 7));
    ANSWERS(EINVAL, write(one, &value, 7));
    value = -1ul;
    ANSWERS(EINVAL, write(one, &value, 8));
    value = -2ul;
    CHECK(write(one, &value, 8) == 8, "the most");
    struct pollfd events = {one, POLLIN | POLLOUT, 0};
    CHECK(poll(&events, 1, 0) == 1 && events.revents == POLLIN, "%#x", events.revents);
    value = 1;
    ANSWERS(EAGAIN, write(one, &value, 8));
    value = 0;
    CHECK(write(one, &value, 8) == 8, "nothing to add");
    ANSWERS(EINVAL, syscall(SYS_eventfd2, 0, 2));
    CHECK(lseek(plain, 5, SEEK_SET) == 0, "it has no position");
}

static void accepting_with_flags(void) {
    int listener = socket(AF_INET, SOCK_STREAM, 0), dgram = socket(AF_INET, SOCK_DGRAM, 0);
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}}, peer;
    socklen_t len = sizeof at;
    CHECK(!bind(listener, (void *)&at, len), "bind");
    ANSWERS(EINVAL, syscall(SYS_accept4, listener, NULL, NULL, 0));
    CHECK(!listen(listener, 4) && !getsockname(listener, (void *)&at, &len), "listen");
    ANSWERS(EINVAL, syscall(SYS_accept4, listener, NULL, NULL, 1));
    ANSWERS(EBADF, syscall(SYS_accept4, -1, NULL, NULL, 1));
    ANSWERS(EINVAL, syscall(SYS_accept4, open("/dev/null", O_RDWR), NULL, NULL, 1));
    ANSWERS(ENOTSOCK, syscall(SYS_accept4, open("/dev/null", O_RDWR), NULL, NULL, 0));
    ANSWERS(EOPNOTSUPP, syscall(SYS_accept4, dgram, NULL, NULL, 0));
    CHECK(!fcntl(listener, F_SETFL, O_NONBLOCK), "fcntl");
    ANSWERS(EAGAIN, syscall(SYS_accept4, listener, NULL, NULL, 0));
    for (int i = 0; i < 3; i++) {
        int one = socket(AF_INET, SOCK_STREAM, 0);
        CHECK(!connect(one, (void *)&at, sizeof at), "connect");
    }
    len = sizeof peer;
    int both = syscall(SYS_accept4, listener, &peer, &len, SOCK_NONBLOCK | SOCK_CLOEXEC);
    CHECK(both >= 0 && fcntl(both, F_GETFL) & O_NONBLOCK && fcntl(both, F_GETFD) == FD_CLOEXEC, "flags");
    CHECK(len == sizeof peer && peer.sin_family == AF_INET && peer.sin_addr.s_addr == htonl(INADDR_LOOPBACK),
        "the peer");
    int none = syscall(SYS_accept4, listener, NULL, NULL, 0);
    CHECK(none >= 0 && !(fcntl(none, F_GETFL) & O_NONBLOCK) && !fcntl(none, F_GETFD),
        "the listener's flags are not taken over");
    len = 3;
    CHECK(syscall(SYS_accept4, listener, &peer, &len, 0) >= 0 && len == sizeof peer, "a name is cut");
}

static void random_bytes(void) {
    char bytes[64] = {0}, zero[64] = {0};
    CHECK(syscall(SYS_getrandom, bytes, 64, 0) == 64 && memcmp(bytes, zero, 64), "bytes");
    CHECK(syscall(SYS_getrandom, bytes, 64, 1 | 2) == 64, "GRND_NONBLOCK and GRND_RANDOM");
    CHECK(syscall(SYS_getrandom, bytes, 64, 4) == 64, "GRND_INSECURE");
    CHECK(syscall(SYS_getrandom, bytes, 0, 0) == 0, "none");
    ANSWERS(EINVAL, syscall(SYS_getrandom, bytes, 64, 2 | 4));
    ANSWERS(EINVAL, syscall(SYS_getrandom, bytes, 64, 8));
    ANSWERS(EFAULT, syscall(SYS_getrandom, BAD_ADDRESS, 64, 0));
    char *at = fresh(2);
    CHECK(!munmap(at + PAGE, PAGE), "munmap");
    CHECK(syscall(SYS_getrandom, at + PAGE - 32, 256, 0) == 32, "up to the hole");
}

static void locking_on_fault(void) {
    char *at = fresh(4);
    unsigned char in[4];
    ANSWERS(0, syscall(SYS_mlock2, at, PAGE, 1));
    ANSWERS(0, syscall(SYS_mlock2, at + PAGE, PAGE, 0));
    CHECK(!mincore(at, 4 * PAGE, in) && !(in[0] & 1) && in[1] & 1 && !(in[2] & 1), "%d %d %d", in[0], in[1], in[2]);
    at[0] = 1;
    ANSWERS(EINVAL, madvise(at, PAGE, MADV_DONTNEED));
    CHECK(!mincore(at, PAGE, in) && in[0] & 1, "stays");
    ANSWERS(EINVAL, syscall(SYS_mlock2, at, PAGE, 2));
    ANSWERS(0, syscall(SYS_mlock2, at, 0, 1));
    CHECK(!munmap(at + 3 * PAGE, PAGE), "munmap");
    ANSWERS(ENOMEM, syscall(SYS_mlock2, at, 4 * PAGE, 1));
    ANSWERS(EINVAL, syscall(SYS_mlock2, at, -PAGE, 1));
    CHECK(!munlock(at, 3 * PAGE) && !madvise(at, PAGE, MADV_DONTNEED) && at[0] == 0, "munlock");
    CHECK(!setrlimit(RLIMIT_MEMLOCK, &(struct rlimit){PAGE, PAGE}) && !setuid(1000), "setuid");
    ANSWERS(0, syscall(SYS_mlock2, at, PAGE, 1));
    ANSWERS(ENOMEM, syscall(SYS_mlock2, at, 2 * PAGE, 1));
}

static void vectors_with_flags(void) {
    int fd = unnamed("0123456789"), ends[2];
    char text[32] = {0};
    struct iovec two[2] = {{text, 3}, {text + 10, 3}}, empty = {text, 0};
    CHECK(syscall(SYS_preadv2, fd, two, 2, 2l, 0, 0) == 6 && !memcmp(text, "234", 3) && !memcmp(text + 10, "567", 3),
        "%s", text);
    CHECK(lseek(fd, 0, SEEK_CUR) == 10, "the position stays");
    CHECK(lseek(fd, 1, SEEK_SET) == 1 && syscall(SYS_preadv2, fd, two, 2, -1l, 0, RWF_HIPRI_) == 6 &&
        lseek(fd, 0, SEEK_CUR) == 7, "at the position");
    CHECK(syscall(SYS_preadv2, fd, two, 2, 0l, -1l, 0) == 6, "the high half does not count");
    memcpy(text, "abc", 3), memcpy(text + 10, "def", 3);
    CHECK(syscall(SYS_pwritev2, fd, two, 2, 0l, 0, RWF_DSYNC_ | RWF_SYNC_) == 6, "synchronous");
    CHECK(syscall(SYS_pwritev2, fd, two, 1, 0l, 0, RWF_APPEND_) == 3 && lseek(fd, 0, SEEK_END) == 13, "appended");
    CHECK(lseek(fd, 2, SEEK_SET) == 2 && syscall(SYS_pwritev2, fd, two, 1, -1l, 0, RWF_APPEND_) == 3 &&
        lseek(fd, 0, SEEK_CUR) == 16, "the position moves");
    CHECK(pread(fd, text, 32, 0) == 16 && !memcmp(text, "abcdef6789abcabc", 16), "%s", text);
    CHECK(!fcntl(fd, F_SETFL, O_APPEND), "O_APPEND");
    CHECK(syscall(SYS_pwritev2, fd, two, 1, 0l, 0, 0) == 3 && lseek(fd, 0, SEEK_END) == 19, "always at the end");
    CHECK(syscall(SYS_pwritev2, fd, two, 1, 1l, 0, RWF_NOAPPEND_) == 3 && lseek(fd, 0, SEEK_END) == 19,
        "not at the end");
    ANSWERS(EINVAL, syscall(SYS_pwritev2, fd, two, 1, 0l, 0, RWF_APPEND_ | RWF_NOAPPEND_));
    ANSWERS(EOPNOTSUPP, syscall(SYS_preadv2, fd, two, 1, 0l, 0, 1 << 20));
    ANSWERS(EINVAL, syscall(SYS_preadv2, fd, two, 1, -2l, 0, 1 << 20));
    ANSWERS(EBADF, syscall(SYS_preadv2, -1, two, 1, 0l, 0, 1 << 20));
    ANSWERS(0, syscall(SYS_preadv2, fd, &empty, 1, 0l, 0, 1 << 20));
    ANSWERS(EINVAL, syscall(SYS_preadv2, fd, two, 1025, 0l, 0, 0));
    ANSWERS(EFAULT, syscall(SYS_preadv2, fd, BAD_ADDRESS, 1, 0l, 0, 0));
    CHECK(!pipe(ends), "pipe");
    ANSWERS(EAGAIN, syscall(SYS_preadv2, ends[0], two, 1, -1l, 0, RWF_NOWAIT_));
    CHECK(syscall(SYS_pwritev2, ends[1], two, 2, -1l, 0, RWF_NOWAIT_) == 6, "written at once");
    CHECK(syscall(SYS_preadv2, ends[0], two, 1, -1l, 0, RWF_NOWAIT_) == 3, "read at once");
    ANSWERS(ESPIPE, syscall(SYS_preadv2, ends[0], two, 1, 0l, 0, 0));
    ANSWERS(EBADF, syscall(SYS_preadv2, ends[1], two, 1, -1l, 0, 1 << 20));
}

static int opens(int fd) { return fcntl(fd, F_GETFD) >= 0; }

static int unshared_end[2];

static int closes_its_own(void *unused) {
    (void)unused;
    if (syscall(SYS_close_range, 0, ~0u, 2)) _exit(1);
    if (opens(unshared_end[0])) _exit(2);
    _exit(0);
}

static void ranges_of_descriptors(void) {
    for (int i = 10; i < 20; i++) CHECK(dup2(2, i) == i, "dup2");
    ANSWERS(0, syscall(SYS_close_range, 12, 13, 0));
    CHECK(opens(11) && !opens(12) && !opens(13) && opens(14), "closed");
    ANSWERS(0, syscall(SYS_close_range, 12, 14, 4));
    CHECK(fcntl(14, F_GETFD) == FD_CLOEXEC && !opens(12) && !fcntl(15, F_GETFD), "marked");
    ANSWERS(EINVAL, syscall(SYS_close_range, 5, 4, 0));
    ANSWERS(EINVAL, syscall(SYS_close_range, 5, 6, 1));
    ANSWERS(EINVAL, syscall(SYS_close_range, 5, 6, 8));
    ANSWERS(0, syscall(SYS_close_range, 1000000, ~0u, 0));
    ANSWERS(0, syscall(SYS_close_range, 16, 17, 2 | 4));
    CHECK(fcntl(16, F_GETFD) == FD_CLOEXEC, "both");
    ANSWERS(0, syscall(SYS_close_range, 18, ~0u, 0));
    CHECK(opens(17) && !opens(18) && !opens(19), "all above");
    // A thread's own copy of a shared table.
    CHECK(!pipe(unshared_end), "pipe");
    char *stack = fresh(16);
    pid_t child = clone(closes_its_own, stack + 16 * PAGE, CLONE_VM | CLONE_FILES | SIGCHLD, NULL);
    CHECK(child > 0 && !ended(child), "the child");
    CHECK(opens(unshared_end[0]) && opens(17), "the table of this process");
}

static volatile int word = 1;

static int names_its_word(void *unused) {
    (void)unused;
    long id = syscall(SYS_set_tid_address, &word);
    _exit(id != syscall(SYS_gettid));
}

static void a_word_is_cleared_at_the_end(void) {
    int own;
    CHECK(syscall(SYS_set_tid_address, &own) == syscall(SYS_gettid), "its id");
    CHECK(syscall(SYS_set_tid_address, NULL) == getpid(), "no word");
    char *stack = fresh(16);
    pid_t child = clone(names_its_word, stack + 16 * PAGE, CLONE_VM | SIGCHLD, NULL);
    CHECK(child > 0, "clone");
    while (word == 1) syscall(SYS_futex, &word, 0, 1, NULL, NULL, 0);
    CHECK(word == 0 && !ended(child), "%d", word);
}

__attribute__((naked)) static void own_restorer(void) { __asm__("mov %0, %%eax; syscall" ::"i"(SYS_rt_sigreturn)); }

static void changes_its_context(int signal, siginfo_t *info, void *at) {
    ucontext_t *context = at;
    caught = signal + info->si_code * 0;
    context->uc_mcontext.gregs[REG_RAX] = 4711;
    *(unsigned long *)&context->uc_sigmask |= 1ul << (SIGUSR2 - 1);
}

// A handler returns by `rt_sigreturn`, which takes over the registers and the mask that it has changed.
static void a_handlers_return(void) {
    struct { void *handler; unsigned long flags; void *restorer; unsigned long mask; } action =
        {changes_its_context, SA_SIGINFO | 0x04000000, own_restorer, 0};
    ANSWERS(0, syscall(SYS_rt_sigaction, SIGUSR1, &action, NULL, 8));
    long result, number = SYS_tgkill;
    __asm__ volatile("syscall" : "=a"(result) : "a"(number), "D"(getpid()), "S"(syscall(SYS_gettid)), "d"(SIGUSR1)
        : "rcx", "r11", "memory");
    unsigned long mask = 0;
    ANSWERS(0, syscall(SYS_rt_sigprocmask, SIG_BLOCK, NULL, &mask, 8));
    CHECK(result == 4711 && caught == SIGUSR1 && mask == 1ul << (SIGUSR2 - 1), "%ld %#lx", result, mask);
}

static void sleeps_through_a_stop(void) {
    struct timespec time = {0, 300 * MS};
    uint64_t before = now_ns();
    if (syscall(SYS_nanosleep, &time, NULL)) _exit(1);
    _exit(now_ns() - before < 300 * MS ? 2 : 0);
}

static void calls_that_go_on(void) {
    ANSWERS(EINTR, syscall(SYS_restart_syscall));
    // A stop and a continuation interrupt a sleep, which the kernel resumes by this call for the rest of the time.
    pid_t child = fork();
    CHECK(child >= 0, "fork");
    if (!child) sleeps_through_a_stop();
    int status;
    until_asleep(child);
    CHECK(!kill(child, SIGSTOP) && waitpid(child, &status, WUNTRACED) == child && WIFSTOPPED(status), "stopped");
    usleep(50000);
    uint64_t before = now_ns();
    CHECK(!kill(child, SIGCONT) && !ended(child) && now_ns() - before < 280 * MS, "the rest of the time");
}

static void clocks_that_measure_no_sleep(void) {
    struct timespec little = {0, MS}, bad = {0, SECOND};
    const int sleeps[] = {CLOCK_REALTIME, CLOCK_MONOTONIC, CLOCK_BOOTTIME, CLOCK_TAI};
    for (int i = 0; i < 4; i++) ANSWERS(0, syscall(SYS_clock_nanosleep, sleeps[i], 0, &little, NULL));
    const int none[] = {CLOCK_MONOTONIC_RAW, CLOCK_REALTIME_COARSE, CLOCK_MONOTONIC_COARSE, CLOCK_THREAD_CPUTIME_ID};
    for (int i = 0; i < 4; i++) ANSWERS(EOPNOTSUPP, syscall(SYS_clock_nanosleep, none[i], 0, &little, NULL));
    ANSWERS(EOPNOTSUPP, syscall(SYS_clock_nanosleep, CLOCK_MONOTONIC_RAW, 0, BAD_ADDRESS, NULL));
    ANSWERS(EINVAL, syscall(SYS_clock_nanosleep, 99, 0, BAD_ADDRESS, NULL));
    ANSWERS(EFAULT, syscall(SYS_clock_nanosleep, CLOCK_MONOTONIC, 0, BAD_ADDRESS, NULL));
    ANSWERS(EINVAL, syscall(SYS_clock_nanosleep, CLOCK_MONOTONIC, 0, &bad, NULL));
}

static const struct check checks[] = {
    {"time_of_day", time_of_day},
    {"memory_of_the_machine", memory_of_the_machine},
    {"groups_of_the_caller", groups_of_the_caller},
    {"priorities_of_policies", priorities_of_policies},
    {"syncing", syncing},
    {"advice_about_files", advice_about_files},
    {"sets_of_events", sets_of_events},
    {"counters", counters},
    {"accepting_with_flags", accepting_with_flags},
    {"random_bytes", random_bytes},
    {"locking_on_fault", locking_on_fault},
    {"vectors_with_flags", vectors_with_flags},
    {"ranges_of_descriptors", ranges_of_descriptors},
    {"a_word_is_cleared_at_the_end", a_word_is_cleared_at_the_end},
    {"a_handlers_return", a_handlers_return},
    {"calls_that_go_on", calls_that_go_on},
    {"clocks_that_measure_no_sleep", clocks_that_measure_no_sleep},
};

int main(int argc, char **argv) {
    parse_options(argc, argv, NULL);
    run_checks(checks, sizeof checks / sizeof *checks);
    return 0;
}
