// Resource limits: each answer is the same on Linux and on Quire.
#include "checks.h"
#include <pthread.h>
#include <stdbool.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>

#define PAGE 4096ul
#define MIB (1ul << 20)
#define READ_WRITE (PROT_READ | PROT_WRITE)

static char bytes[65536];

static void limit(int which, rlim_t soft, rlim_t hard) {
    struct rlimit wanted = {soft, hard};
    CHECK(!setrlimit(which, &wanted), "setrlimit");
}

static int file(off_t len) {
    int fd = memfd_create("file", 0);
    CHECK(fd >= 0 && !ftruncate(fd, len), "memfd_create");
    return fd;
}

// The call is refused with EFBIG, and SIGXFSZ comes from the caller itself.
#define TOO_LARGE(call) \
    do { \
        caught = 0; \
        ANSWERS(EFBIG, call); \
        CHECK(caught == SIGXFSZ && caught_code == SI_USER && caught_pid == getpid(), "%s: signal %d, code %d", #call, caught, caught_code); \
    } while (0)
#define QUIET(result, call) \
    do { \
        caught = 0; \
        long answer = call; \
        CHECK(answer == (result) && !caught, "%s: %ld, signal %d, errno %d", #call, answer, caught, errno); \
    } while (0)

static void sizes_of_files(void) {
    int fd = file(20000), from = file(100000);
    char path[64];
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    handle(SIGXFSZ, 0);
    limit(RLIMIT_FSIZE, 10000, RLIM_INFINITY);
    // A part is written up to the limit; what lies beyond stays as it is.
    TOO_LARGE(pwrite(fd, bytes, 1, 10000));
    TOO_LARGE(pwrite(fd, bytes, 1, 15000));
    QUIET(0, pwrite(fd, bytes, 0, 15000));
    QUIET(1, pwrite(fd, bytes, 2, 9999));
    QUIET(10000, pwrite(fd, bytes, sizeof bytes, 0));
    // Truncation makes it smaller only.
    TOO_LARGE(ftruncate(fd, 20001));
    QUIET(0, ftruncate(fd, 15000));
    TOO_LARGE(ftruncate(fd, 20000));
    TOO_LARGE(truncate(path, 15001));
    QUIET(0, fallocate(fd, 0, 0, 15000));
    TOO_LARGE(fallocate(fd, 0, 0, 15001));
    TOO_LARGE(fallocate(fd, FALLOC_FL_KEEP_SIZE, 0, 15001));
    QUIET(0, fallocate(fd, FALLOC_FL_KEEP_SIZE | FALLOC_FL_PUNCH_HOLE, 0, 20001));
    QUIET(0, truncate(path, 9000));
    QUIET(9000, lseek(fd, 9000, SEEK_SET));
    struct iovec parts[2] = {{bytes, 500}, {bytes, 4000}};
    QUIET(1000, writev(fd, parts, 2));
    TOO_LARGE(write(fd, bytes, 1));
    QUIET(10000, lseek(fd, 0, SEEK_CUR));
    // To the end, where the end is.
    int end = open(path, O_WRONLY | O_APPEND);
    TOO_LARGE(write(end, bytes, 1));
    QUIET(0, ftruncate(fd, 9990));
    QUIET(10, write(end, bytes, 100));
    // From file to file.
    QUIET(0, lseek(fd, 0, SEEK_SET));
    caught = 0;
    long sent = sendfile(fd, from, NULL, sizeof bytes);
    CHECK(sent == 10000 && caught == SIGXFSZ, "sendfile: %ld, signal %d", sent, caught);
    QUIET(10000, lseek(from, 0, SEEK_CUR));
    TOO_LARGE(sendfile(fd, from, NULL, 1));
    QUIET(10000, lseek(from, 0, SEEK_CUR));
    QUIET(0, lseek(fd, 0, SEEK_SET));
    QUIET(10000, copy_file_range(from, NULL, fd, NULL, sizeof bytes, 0));
    TOO_LARGE(copy_file_range(from, NULL, fd, NULL, 1, 0));
    QUIET(0, lseek(fd, 0, SEEK_SET));
    QUIET(4000, sendfile(fd, from, NULL, 4000));
    // Only regular files have a size.
    int ends[2], null = open("/dev/null", O_WRONLY);
    limit(RLIMIT_FSIZE, 0, RLIM_INFINITY);
    CHECK(!pipe(ends), "pipe");
    QUIET(100, write(ends[1], bytes, 100));
    QUIET(100, write(null, bytes, 100));
    TOO_LARGE(pwrite(fd, bytes, 1, 0));
    QUIET(0, ftruncate(fd, 0));
    // It ends what does not handle it, and is pending where it is blocked.
    sigset_t blocked, pending;
    sigemptyset(&blocked);
    sigaddset(&blocked, SIGXFSZ);
    sigprocmask(SIG_BLOCK, &blocked, NULL);
    ANSWERS(EFBIG, pwrite(fd, bytes, 1, 0));
    CHECK(!sigpending(&pending) && sigismember(&pending, SIGXFSZ), "pending");
    signal(SIGXFSZ, SIG_IGN);
    sigprocmask(SIG_UNBLOCK, &blocked, NULL);
    ANSWERS(EFBIG, pwrite(fd, bytes, 1, 0));
    pid_t child = fork();
    if (!child) {
        signal(SIGXFSZ, SIG_DFL);
        pwrite(fd, bytes, 1, 0);
        _exit(0);
    }
    int status = ended(child);
    CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGXFSZ, "status %#x", status);
}

static void a_pipe_without_a_reader(void) {
    int ends[2];
    CHECK(!pipe(ends) && !close(ends[0]), "pipe");
    handle(SIGPIPE, 0);
    ANSWERS(EPIPE, write(ends[1], "x", 1));
    CHECK(caught == SIGPIPE && caught_code == SI_USER && caught_pid == getpid(), "signal %d, code %d", caught, caught_code);
}

static const struct check checks[] = {
    {"sizes_of_files", sizes_of_files},
    {"a_pipe_without_a_reader", a_pipe_without_a_reader},
};

int main(int argc, char **argv) {
    parse_options(argc, argv, NULL);
    run_checks(checks, sizeof checks / sizeof *checks);
    return 0;
}
