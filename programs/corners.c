// Corners of calls that tests of Linux look at: sealed mappings, pages of a file in another order, queries of
// descriptors, timeouts that stay as they are, the owner of a file's signals, leases.
#include "checks.h"
#include <netinet/in.h>
#include <sys/mman.h>
#include <sys/personality.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/syscall.h>

#define PAGE 4096ul
#define READ_WRITE (PROT_READ | PROT_WRITE)
#ifndef SYS_mseal
#define SYS_mseal 462
#endif
#define DUPFD_QUERY 1027
#define CREATED_QUERY 1028
#define GET_CPUID 0x1011

static char *fresh(int prot, int kind, int pages) {
    char *at = mmap(NULL, pages * PAGE, prot, kind | MAP_ANONYMOUS, -1, 0);
    CHECK(at != MAP_FAILED, "mmap");
    return at;
}

static long mseal_(void *at, size_t len, unsigned long flags) { return syscall(SYS_mseal, at, len, flags); }

static void arguments_of_mseal(void) {
    char *at = fresh(READ_WRITE, MAP_PRIVATE, 4);
    ANSWERS(EINVAL, mseal_(at, PAGE, 1));
    ANSWERS(EINVAL, mseal_(at + 1, PAGE, 0));
    ANSWERS(EINVAL, mseal_(at, -PAGE + 1, 0));
    ANSWERS(EINVAL, mseal_((void *)-PAGE, 2 * PAGE, 0));
    ANSWERS(0, mseal_(at, 0, 0));
    ANSWERS(0, munmap(at + PAGE, PAGE));
    ANSWERS(ENOMEM, mseal_(at, 4 * PAGE, 0));
    ANSWERS(ENOMEM, mseal_(NULL, PAGE, 0));
    ANSWERS(0, munmap(at, 4 * PAGE));
}

static void a_seal_refuses_changes(void) {
    char *at = fresh(READ_WRITE, MAP_PRIVATE, 4);
    at[PAGE] = 7;
    ANSWERS(0, mseal_(at + PAGE, 1, 0));
    ANSWERS(0, mseal_(at + PAGE, PAGE, 0));
    ANSWERS(EPERM, munmap(at, 4 * PAGE));
    ANSWERS(EPERM, munmap(at + PAGE, PAGE));
    ANSWERS(EPERM, mmap(at, 2 * PAGE, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0));
    ANSWERS(EEXIST, mmap(at, 2 * PAGE, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0));
    ANSWERS(EPERM, mprotect(at + PAGE, PAGE, PROT_READ));
    ANSWERS(EPERM, mprotect(at + PAGE, PAGE, READ_WRITE));
    ANSWERS(EPERM, mremap(at + PAGE, PAGE, 2 * PAGE, MREMAP_MAYMOVE));
    ANSWERS(EPERM, mremap(at + 3 * PAGE, PAGE, PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, at + PAGE));
    // It protects a layout, not a content that may be stored into.
    ANSWERS(0, madvise(at + PAGE, PAGE, MADV_DONTNEED));
    CHECK(at[PAGE] == 0, "%d", at[PAGE]);
    at[PAGE] = 8;
    // The part before the seal is changed.
    ANSWERS(EPERM, mprotect(at, 4 * PAGE, PROT_NONE));
    ANSWERS(EFAULT, read(open("/dev/zero", O_RDONLY), at, 1));
    CHECK(at[PAGE] == 8, "%d", at[PAGE]);
    ANSWERS(0, munmap(at + 2 * PAGE, 2 * PAGE));
}

static void a_seal_keeps_what_cannot_be_stored_into(void) {
    char *at = fresh(READ_WRITE, MAP_PRIVATE, 2);
    *at = 3;
    ANSWERS(0, mprotect(at, 2 * PAGE, PROT_READ));
    ANSWERS(0, mseal_(at, 2 * PAGE, 0));
    ANSWERS(EPERM, madvise(at, PAGE, MADV_DONTNEED));
    ANSWERS(EPERM, madvise(at, PAGE, MADV_FREE));
    ANSWERS(EPERM, madvise(at, PAGE, MADV_DONTFORK));
    ANSWERS(EPERM, madvise(at, PAGE, MADV_WIPEONFORK));
    ANSWERS(0, madvise(at, PAGE, MADV_WILLNEED));
    CHECK(*at == 3, "%d", *at);
    pid_t child = fork();
    if (!child) {
        ANSWERS(EPERM, munmap(at, PAGE));
        _exit(0);
    }
    CHECK(ended(child) == 0, "a child has the seals, too");
    char *shared = fresh(PROT_READ, MAP_SHARED, 1);
    ANSWERS(0, mseal_(shared, PAGE, 0));
    ANSWERS(0, madvise(shared, PAGE, MADV_DONTNEED));
}

static long show(void *at, size_t len, int prot, size_t page, int flags) {
    return syscall(SYS_remap_file_pages, at, len, prot, page, flags);
}

static void pages_in_another_order(void) {
    int fd = memfd_create("pages", 0);
    CHECK(fd >= 0 && !ftruncate(fd, 4 * PAGE), "memfd");
    char *at = mmap(NULL, 4 * PAGE, READ_WRITE, MAP_SHARED, fd, 0);
    for (int i = 0; i < 4; i++) at[i * PAGE] = 'a' + i;
    ANSWERS(EINVAL, show(at, PAGE, PROT_READ, 0, 0));
    ANSWERS(EINVAL, show(at, PAGE - 1, 0, 0, 0));
    ANSWERS(EINVAL, show(at, 2 * PAGE, 0, -1ul, 0));
    ANSWERS(EINVAL, show(NULL, PAGE, 0, 0, 0));
    ANSWERS(0, show(at, PAGE, 0, 3, 0));
    ANSWERS(0, show(at + 3 * PAGE, PAGE + 5, 0, 0, MAP_NONBLOCK));
    CHECK(at[0] == 'd' && at[PAGE] == 'b' && at[2 * PAGE] == 'c' && at[3 * PAGE] == 'a', "%c%c%c%c", at[0], at[PAGE],
        at[2 * PAGE], at[3 * PAGE]);
    at[0] = 'x';
    char byte;
    CHECK(pread(fd, &byte, 1, 3 * PAGE) == 1 && byte == 'x', "a store goes to the file");
    ANSWERS(0, show(at, 4 * PAGE, 0, 0, 0));
    CHECK(at[0] == 'a' && at[3 * PAGE] == 'x', "in order again");
    char *private = mmap(NULL, PAGE, READ_WRITE, MAP_PRIVATE, fd, 0);
    ANSWERS(EINVAL, show(private, PAGE, 0, 1, 0));
    ANSWERS(0, munmap(at + PAGE, PAGE));
    ANSWERS(EINVAL, show(at, 3 * PAGE, 0, 0, 0));
    char *memory = fresh(READ_WRITE, MAP_SHARED, 2);
    memory[PAGE] = 'z';
    ANSWERS(0, show(memory, PAGE, 0, 1, 0));
    CHECK(*memory == 'z', "%c", *memory);
}

static void queries_of_descriptors(void) {
    const char *name = "/tmp/corners.created";
    unlink(name);
    int made = open(name, O_CREAT | O_RDWR, 0600), again = open(name, O_CREAT | O_RDWR, 0600),
        path = open(name, O_PATH);
    CHECK(made >= 0 && again >= 0 && path >= 0, "open");
    int copy = dup(made);
    CHECK(fcntl(made, CREATED_QUERY) == 1 && fcntl(copy, CREATED_QUERY) == 1, "made by this open");
    CHECK(fcntl(again, CREATED_QUERY) == 0 && fcntl(path, CREATED_QUERY) == 0, "made before");
    CHECK(fcntl(made, DUPFD_QUERY, copy) == 1 && fcntl(made, DUPFD_QUERY, made) == 1, "the same open file");
    CHECK(fcntl(made, DUPFD_QUERY, again) == 0 && fcntl(path, DUPFD_QUERY, made) == 0, "another open file");
    ANSWERS(EBADF, fcntl(made, DUPFD_QUERY, 999));
    unlink(name);
}

static void timeouts_that_stay(void) {
    fd_set set;
    struct timeval time = {0, 20000}; // musl hands `select` a copy
    CHECK(personality(STICKY_TIMEOUTS) != -1, "personality");
    CHECK(syscall(SYS_select, 0, NULL, NULL, NULL, &time) == 0 && time.tv_usec == 20000, "%ld", (long)time.tv_usec);
    CHECK(personality(0) != -1, "personality");
    FD_ZERO(&set);
    CHECK(syscall(SYS_select, 0, &set, NULL, NULL, &time) == 0 && time.tv_usec == 0, "%ld", (long)time.tv_usec);
}

static void processors_identify_themselves(void) {
    CHECK(syscall(SYS_arch_prctl, GET_CPUID, 0) == 1, "programs may execute CPUID");
}

static void levels_that_a_socket_has_not(void) {
    int value, families[] = {AF_INET, AF_INET6, AF_UNIX}, get[] = {EOPNOTSUPP, ENOPROTOOPT, EOPNOTSUPP},
        set[] = {ENOPROTOOPT, ENOPROTOOPT, EOPNOTSUPP};
    for (int i = 0; i < 3; i++) {
        int fd = socket(families[i], SOCK_STREAM, 0);
        socklen_t len = sizeof value;
        ANSWERS(get[i], getsockopt(fd, 500, 1, &value, &len));
        ANSWERS(set[i], setsockopt(fd, 500, 1, &value, sizeof value));
    }
}

static void a_sender_without_a_name(void) {
    int pair[2];
    CHECK(!socketpair(AF_UNIX, SOCK_STREAM, 0, pair), "socketpair");
    CHECK(write(pair[0], "ab", 2) == 2, "write");
    struct sockaddr_in from;
    socklen_t len = -1;
    char byte;
    ANSWERS(EINVAL, recvfrom(pair[1], &byte, 1, 0, (struct sockaddr *)&from, &len));
    len = sizeof from;
    CHECK(recvfrom(pair[1], &byte, 1, 0, (struct sockaddr *)&from, &len) == 1 && len == 0, "%u", len);
}

static pid_t unused(void) {
    pid_t child = fork();
    CHECK(child >= 0, "fork");
    if (!child) _exit(0);
    CHECK(!ended(child), "a child");
    return child;
}

// Number 0 asks whether the target is there.
static void no_signal(void) {
    union sigval value = {.sival_int = 1};
    ANSWERS(0, sigqueue(getpid(), 0, value));
    ANSWERS(0, sigqueue(getppid(), 0, value));
    ANSWERS(ESRCH, sigqueue(unused(), 0, value));
    ANSWERS(EINVAL, sigqueue(getpid(), 65, value));
    siginfo_t info = {.si_code = SI_QUEUE};
    ANSWERS(0, syscall(SYS_rt_tgsigqueueinfo, getpid(), gettid(), 0, &info));
    ANSWERS(ESRCH, syscall(SYS_rt_tgsigqueueinfo, getpid(), unused(), 0, &info));
    sigset_t pending;
    CHECK(!sigpending(&pending) && sigisemptyset(&pending), "nothing was sent");
}

static void processes_that_are_not_there(void) {
    pid_t gone = unused();
    clockid_t clock;
    // C libraries ask by clock_getres.
    CHECK(!clock_getcpuclockid(0, &clock), "clock_getcpuclockid");
    clockid_t of_gone = (clockid_t)((~(unsigned)gone << 3) | 2), of_thread = of_gone | 4;
    struct timespec time;
    ANSWERS(EINVAL, syscall(SYS_clock_getres, of_gone, &time));
    ANSWERS(EINVAL, syscall(SYS_clock_getres, of_thread, NULL));
    ANSWERS(ESRCH, setpgid(-1, getpgrp()));
    ANSWERS(EINVAL, setpgid(-1, 0));
    ANSWERS(EINVAL, setpgid(0, -1));
    ANSWERS(ESRCH, setpgid(gone, 0));
    unsigned long mask = 1;
    ANSWERS(ESRCH, syscall(SYS_sched_setaffinity, -1, sizeof mask, &mask));
    ANSWERS(ESRCH, syscall(SYS_sched_setaffinity, gone, sizeof mask, &mask));
}

static void copies_beyond_all_offsets(void) {
    int from = memfd_create("from", 0), to = memfd_create("to", 0);
    CHECK(from >= 0 && to >= 0 && write(from, "12345678", 8) == 8, "files");
    off_t at = 0x7fffffffffffffff;
    ANSWERS(EOVERFLOW, syscall(SYS_copy_file_range, from, NULL, to, &at, ~0ul, 0));
    at = 0;
    CHECK(syscall(SYS_copy_file_range, from, &at, to, NULL, 0x7ffffffffffffffful, 0) == 8 && at == 8, "the rest");
}

static const struct check checks[] = {
    {"arguments_of_mseal", arguments_of_mseal},
    {"a_seal_refuses_changes", a_seal_refuses_changes},
    {"a_seal_keeps_what_cannot_be_stored_into", a_seal_keeps_what_cannot_be_stored_into},
    {"pages_in_another_order", pages_in_another_order},
    {"queries_of_descriptors", queries_of_descriptors},
    {"timeouts_that_stay", timeouts_that_stay},
    {"processors_identify_themselves", processors_identify_themselves},
    {"levels_that_a_socket_has_not", levels_that_a_socket_has_not},
    {"a_sender_without_a_name", a_sender_without_a_name},
    {"no_signal", no_signal},
    {"processes_that_are_not_there", processes_that_are_not_there},
    {"copies_beyond_all_offsets", copies_beyond_all_offsets},
};

int main(int argc, char **argv) {
    parse_options(argc, argv, NULL);
    run_checks(checks, sizeof checks / sizeof *checks);
    return 0;
}
