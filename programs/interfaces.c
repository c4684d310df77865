// Calls that common programs try first and can do without, and pipes that are reopened by name. Each result is the same
// on Linux and on Quire, or a result that Linux gives for a file that cannot do it.
#include "checks.h"
#include <poll.h>
#include <sys/stat.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/xattr.h>

// Fails or succeeds as it should: `error` is 0 for success.
#define ANSWERS(error, call) \
    do { \
        errno = 0; \
        long answer = (call); \
        CHECK(answer < 0 ? errno == (error) : (error) == 0, "%s: %ld, not %d", #call, answer, error); \
    } while (0)

static int reopen(int fd, int flags) {
    char path[40];
    sprintf(path, "/proc/self/fd/%d", fd);
    return open(path, flags);
}

static short polled(int fd) {
    struct pollfd p = {fd, POLLIN | POLLOUT, 0};
    CHECK(poll(&p, 1, 0) >= 0, "poll");
    return p.revents;
}

static void pipes_whose_writer_left(void) {
    int ends[2];
    char got[8];
    CHECK(!pipe(ends) && write(ends[1], "left", 4) == 4, "pipe");
    close(ends[1]);
    // Neither open waits for a writer that will not come; a read at the end does not wait either.
    int again = reopen(ends[0], O_RDONLY), calm = reopen(ends[0], O_RDONLY | O_NONBLOCK);
    CHECK(again >= 0 && calm >= 0, "reopen");
    CHECK(read(again, got, 8) == 4 && !read(again, got, 8) && !read(calm, got, 8), "read");
    CHECK(polled(calm) == POLLHUP, "poll: %#x", polled(calm));
    // A writer that opens it again revives it.
    int writer = reopen(ends[0], O_WRONLY);
    CHECK(writer >= 0 && !polled(calm), "a writer again");
    ANSWERS(EAGAIN, read(calm, got, 8));
    CHECK(write(writer, "x", 1) == 1 && read(again, got, 8) == 1, "through");
}

static void pipes_whose_reader_left(void) {
    int ends[2];
    char got[8];
    signal(SIGPIPE, SIG_IGN);
    CHECK(!pipe(ends), "pipe");
    close(ends[0]);
    int waits = reopen(ends[1], O_WRONLY), calm = reopen(ends[1], O_WRONLY | O_NONBLOCK);
    CHECK(waits >= 0 && calm >= 0, "reopen");
    ANSWERS(EPIPE, write(waits, "x", 1));
    ANSWERS(EPIPE, write(calm, "x", 1));
    CHECK(polled(calm) == (POLLOUT | POLLERR), "poll: %#x", polled(calm));
    int both = reopen(ends[1], O_RDWR);
    CHECK(both >= 0 && write(both, "own", 3) == 3 && read(both, got, 8) == 3, "both");
}

static void pipes_belong_to_their_maker(void) {
    int ends[2];
    struct stat s;
    if (geteuid() == 0) CHECK(!setgid(1234) && !setuid(1234), "setuid");
    CHECK(!pipe(ends) && !fstat(ends[0], &s) && s.st_uid == geteuid() && s.st_gid == getegid(), "fstat");
    CHECK(reopen(ends[0], O_RDONLY) >= 0 && reopen(ends[1], O_WRONLY) >= 0, "reopen");
}

// Named pipes still wait for each other.
static void fifos_meet(void) {
    char got[8];
    CHECK(!mkfifo("fifo", 0600), "mkfifo");
    ANSWERS(ENXIO, open("fifo", O_WRONLY | O_NONBLOCK));
    pid_t child = fork();
    if (!child) {
        int w = open("fifo", O_WRONLY);
        _exit(w < 0 || write(w, "met", 3) != 3);
    }
    int r = open("fifo", O_RDONLY);
    CHECK(r >= 0 && read(r, got, 8) == 3 && !ended(child), "met");
    unlink("fifo");
}

// All of `from` comes out of `to`, by splice where the files can and by copying where it says EINVAL.
static void moves(int from, int to, size_t len) {
    char bytes[4096];
    while (len) {
        ssize_t n = splice(from, NULL, to, NULL, len, 0);
        if (n < 0) {
            CHECK(errno == EINVAL, "splice");
            n = read(from, bytes, len < sizeof bytes ? len : sizeof bytes);
            CHECK(n > 0 && write(to, bytes, n) == n, "copy");
        }
        CHECK(n > 0, "splice ended early");
        len -= n;
    }
}

static void splice_moves_or_says_that_it_cannot(void) {
    int ends[2], others[2];
    char got[16];
    int file = open("data", O_RDWR | O_CREAT | O_TRUNC, 0600), null = open("/dev/null", O_WRONLY);
    CHECK(!pipe(ends) && !pipe(others) && file >= 0 && null >= 0 && write(file, "0123456789", 10) == 10, "files");
    lseek(file, 2, SEEK_SET);
    moves(file, ends[1], 6);
    moves(ends[0], others[1], 4);
    moves(ends[0], null, 2);
    CHECK(read(others[0], got, 16) == 4 && !memcmp(got, "2345", 4), "the moved bytes");
    off_t at = 0;
    ANSWERS(0, splice(-1, NULL, -1, NULL, 0, ~0u));
    ANSWERS(EINVAL, splice(file, NULL, ends[1], NULL, 1, 1u << 20));
    ANSWERS(EBADF, splice(-1, NULL, ends[1], NULL, 1, 0));
    ANSWERS(EBADF, splice(ends[0], NULL, -1, NULL, 1, 0));
    ANSWERS(EBADF, splice(ends[1], NULL, file, NULL, 1, 0));
    ANSWERS(ESPIPE, splice(ends[0], &at, file, NULL, 1, 0));
    ANSWERS(ESPIPE, splice(file, NULL, ends[1], &at, 1, 0));
    ANSWERS(EFAULT, splice(file, (off_t *)8, ends[1], NULL, 1, 0));
    ANSWERS(EINVAL, splice(file, NULL, file, NULL, 1, 0));
    ANSWERS(0, tee(-1, -1, 0, 0));
    ANSWERS(EINVAL, tee(ends[0], others[1], 1, 1u << 20));
    ANSWERS(EBADF, tee(-1, others[1], 1, 0));
    ANSWERS(EINVAL, tee(file, others[1], 1, 0));
    struct iovec one = {got, 1};
    ANSWERS(EBADF, vmsplice(-1, &one, 1, 0));
    ANSWERS(EBADF, vmsplice(file, &one, 1, 0));
    ANSWERS(EINVAL, vmsplice(ends[1], &one, 1, 1u << 20));
    unlink("data");
}

// On a file of /proc, which has no attributes on Linux either.
static void extended_attributes(void) {
    static char big[70000], name[300];
    const char *file = "/proc/self/status";
    int fd = open(file, O_RDONLY), path = open(file, O_PATH);
    memset(name, 'n', sizeof name - 1);
    memcpy(name, "user.", 5);
    CHECK(!symlink("/no/such/file", "dangling"), "symlink");
    ANSWERS(EOPNOTSUPP, getxattr(file, "user.x", big, 10));
    ANSWERS(EOPNOTSUPP, fgetxattr(fd, "security.capability", big, 10));
    ANSWERS(geteuid() ? ENODATA : EOPNOTSUPP, getxattr(file, "trusted.x", big, 10));
    ANSWERS(ENOENT, getxattr("/no/such/file", "user.x", big, 10));
    ANSWERS(ENOENT, getxattr("dangling", "user.x", big, 10));
    ANSWERS(ENOENT, listxattr("dangling", big, 10));
    ANSWERS(0, llistxattr("dangling", big, 10));
    ANSWERS(EFAULT, getxattr((char *)8, "user.x", big, 10));
    ANSWERS(EFAULT, getxattr(file, (char *)8, big, 10));
    ANSWERS(ERANGE, getxattr(file, "", big, 10));
    ANSWERS(ERANGE, getxattr(file, name, big, 10));
    name[255] = 0;
    ANSWERS(EOPNOTSUPP, getxattr(file, name, big, 10));
    ANSWERS(EINVAL, setxattr(file, "user.x", big, 1, 4));
    ANSWERS(E2BIG, setxattr(file, "user.x", big, 65537, 0));
    ANSWERS(EFAULT, setxattr(file, "user.x", (char *)8, 65536, 0));
    if (geteuid() == 0) ANSWERS(EOPNOTSUPP, setxattr(file, "user.x", big, 65536, 0));
    ANSWERS(EBADF, fgetxattr(-1, "user.x", big, 10));
    ANSWERS(EBADF, fsetxattr(path, "user.x", big, 1, 0));
    ANSWERS(EBADF, flistxattr(path, big, 10));
    CHECK(listxattr(file, NULL, 0) == 0 && flistxattr(fd, big, 10) == 0, "lists are empty");
    if (geteuid() == 0) ANSWERS(EOPNOTSUPP, removexattr(file, "user.x"));
    ANSWERS(ERANGE, fremovexattr(fd, ""));
    unlink("dangling");
}

static void families_of_sockets(void) {
    ANSWERS(EAFNOSUPPORT, socket(46, SOCK_STREAM, 0));
    ANSWERS(EAFNOSUPPORT, socket(-1, SOCK_STREAM, 0));
    ANSWERS(EINVAL, socket(AF_UNIX, SOCK_STREAM | 1 << 30, 0));
    ANSWERS(EINVAL, socket(AF_UNIX, 12, 0));
    // A socket of a supported family, or none.
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    CHECK(fd >= 0 || errno == EAFNOSUPPORT, "AF_UNIX");
}

static const struct check checks[] = {
    {"pipes_whose_writer_left", pipes_whose_writer_left},
    {"pipes_whose_reader_left", pipes_whose_reader_left},
    {"pipes_belong_to_their_maker", pipes_belong_to_their_maker},
    {"fifos_meet", fifos_meet},
    {"splice_moves_or_says_that_it_cannot", splice_moves_or_says_that_it_cannot},
    {"extended_attributes", extended_attributes},
    {"families_of_sockets", families_of_sockets},
};

int main(int argc, char **argv) {
    parse_options(argc, argv, NULL);
    run_checks(checks, sizeof checks / sizeof *checks);
    return 0;
}
