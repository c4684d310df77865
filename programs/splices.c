// `splice`, `tee`, `vmsplice` and `sendfile` between all kinds of files, checked one by one; the same on Linux and on
// Quire.
#include "checks.h"
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/uio.h>

enum { BIG = 300000 };
static unsigned char data[BIG], back[BIG];

static void fill(void) {
    uint64_t seed = 7;
    for (int i = 0; i < BIG; i++) data[i] = random_next(&seed);
}

static int memory_file(size_t len) {
    int fd = memfd_create("f", 0);
    CHECK(fd >= 0 && write(fd, data, len) == (ssize_t)len && lseek(fd, 0, SEEK_SET) == 0, "a file");
    return fd;
}

static void a_pipe(int ends[2], int flags) { CHECK(!pipe2(ends, flags), "pipe"); }

static int same(int fd, size_t len) {
    size_t have = 0;
    for (ssize_t n; have < len && (n = read(fd, back + have, len - have)) > 0;) have += n;
    return have == len && !memcmp(back, data, len);
}

static void between_files_and_pipes(void) {
    fill();
    int ends[2], in = memory_file(BIG), out = memfd_create("o", 0);
    a_pipe(ends, 0);
    loff_t from = 1000, to = 500;
    CHECK(splice(in, &from, ends[1], NULL, 5000, 0) == 5000 && from == 6000 && lseek(in, 0, SEEK_CUR) == 0,
        "from an offset");
    CHECK(splice(ends[0], NULL, out, &to, 5000, 0) == 5000 && to == 5500 && lseek(out, 0, SEEK_CUR) == 0,
        "to an offset");
    CHECK(pread(out, back, 5000, 500) == 5000 && !memcmp(back, data + 1000, 5000), "the bytes");
    CHECK(splice(in, NULL, ends[1], NULL, BIG, 0) == 65536 && lseek(in, 0, SEEK_CUR) == 65536, "a full pipe");
    ANSWERS(EAGAIN, splice(in, NULL, ends[1], NULL, 1, SPLICE_F_NONBLOCK));
    CHECK(splice(ends[0], NULL, out, NULL, BIG, 0) == 65536 && lseek(out, 0, SEEK_CUR) == 65536, "all of it");
    CHECK(lseek(out, 0, SEEK_SET) == 0 && same(out, 65536), "the bytes");
    ANSWERS(EAGAIN, splice(ends[0], NULL, out, NULL, 1, SPLICE_F_NONBLOCK));
    from = BIG;
    CHECK(splice(in, &from, ends[1], NULL, 1, 0) == 0, "the end of the file");
    close(ends[1]);
    CHECK(splice(ends[0], NULL, out, NULL, 1, 0) == 0, "the end of the pipe");
    // Generated files and devices.
    a_pipe(ends, 0);
    int text = open("/proc/version", O_RDONLY), null = open("/dev/null", O_RDWR), zero = open("/dev/zero", O_RDONLY);
    ssize_t n = splice(text, NULL, ends[1], NULL, 65536, 0);
    CHECK(n > 30 && read(ends[0], back, n) == n && !memcmp(back, "Linux", 5), "generated: %zd", n);
    CHECK(splice(zero, NULL, ends[1], NULL, 3000, 0) == 3000 && splice(ends[0], NULL, null, NULL, 3000, 0) == 3000,
        "devices");
}

static void arguments_are_checked(void) {
    int ends[2], more[2], in = memory_file(100), set = eventfd(1, 0), directory = open("/tmp", O_RDONLY);
    a_pipe(ends, 0), a_pipe(more, 0);
    loff_t at = 0;
    CHECK(write(ends[1], "ab", 2) == 2, "bytes");
    ANSWERS(0, splice(99, NULL, 98, NULL, 0, 99));
    ANSWERS(EINVAL, splice(in, NULL, ends[1], NULL, 1, 16));
    ANSWERS(EBADF, splice(99, NULL, ends[1], NULL, 1, 0));
    ANSWERS(EBADF, splice(ends[1], NULL, more[1], NULL, 1, 0));
    ANSWERS(EBADF, splice(ends[0], NULL, more[0], NULL, 1, 0));
    ANSWERS(ESPIPE, splice(ends[0], &at, more[1], NULL, 1, 0));
    ANSWERS(ESPIPE, splice(in, NULL, ends[1], &at, 1, 0));
    ANSWERS(EINVAL, splice(ends[0], NULL, ends[1], NULL, 1, 0));
    ANSWERS(EINVAL, splice(in, NULL, in, NULL, 1, 0));
    ANSWERS(EINVAL, splice(set, NULL, ends[1], NULL, 8, 0));
    ANSWERS(EINVAL, splice(directory, NULL, ends[1], NULL, 8, 0));
    at = -1;
    ANSWERS(EINVAL, splice(in, &at, ends[1], NULL, 1, 0));
    ANSWERS(EFAULT, splice(in, (void *)8, ends[1], NULL, 1, 0));
    int appended = open("/tmp/appended", O_CREAT | O_RDWR | O_APPEND, 0600);
    ANSWERS(EINVAL, splice(ends[0], NULL, appended, NULL, 1, 0));
    ANSWERS(EINVAL, tee(ends[0], ends[1], 1, 0));
    ANSWERS(EINVAL, tee(in, ends[1], 1, 0));
    ANSWERS(EINVAL, tee(ends[0], more[1], 1, 16));
    ANSWERS(EBADF, tee(ends[1], more[1], 1, 0));
    ANSWERS(0, tee(ends[0], more[1], 0, 0));
    ANSWERS(EAGAIN, tee(more[0], ends[1], 1, SPLICE_F_NONBLOCK));
    struct iovec one = {data, 1};
    ANSWERS(EBADF, vmsplice(in, &one, 1, 0));
    ANSWERS(EINVAL, vmsplice(ends[1], &one, 1, 16));
    ANSWERS(EINVAL, vmsplice(ends[1], &one, 1025, 0));
    one.iov_base = (void *)8;
    ANSWERS(EFAULT, vmsplice(ends[1], &one, 1, 0));
    ANSWERS(0, vmsplice(ends[1], &one, 0, 0));
    signal(SIGPIPE, SIG_IGN);
    close(more[0]);
    ANSWERS(EPIPE, splice(ends[0], NULL, more[1], NULL, 1, 0));
    ANSWERS(EPIPE, splice(in, NULL, more[1], NULL, 1, 0));
    ANSWERS(EPIPE, tee(ends[0], more[1], 1, 0));
    CHECK(read(ends[0], back, 9) == 2, "no byte is lost");
    unlink("/tmp/appended");
}

static void between_pipes(void) {
    fill();
    int a[2], b[2], c[2];
    a_pipe(a, 0), a_pipe(b, 0), a_pipe(c, 0);
    CHECK(write(a[1], data, 10000) == 10000, "bytes");
    CHECK(tee(a[0], b[1], 6000, 0) == 6000 && tee(a[0], c[1], 99999, 0) == 10000, "copies");
    CHECK(same(b[0], 6000) && same(c[0], 10000), "the bytes");
    CHECK(splice(a[0], NULL, b[1], NULL, 99999, 0) == 10000 && same(b[0], 10000), "moved");
    ANSWERS(EAGAIN, splice(a[0], NULL, b[1], NULL, 1, SPLICE_F_NONBLOCK));
    CHECK(write(a[1], data, 65536) == 65536 && write(b[1], data, 60000) == 60000, "nearly full");
    ssize_t n = splice(a[0], NULL, b[1], NULL, 65536, 0);
    CHECK(n > 0 && n <= 5536, "as much as fits: %zd", n);
    CHECK(same(b[0], 60000), "the bytes before");
    CHECK(read(b[0], back, n) == n && !memcmp(back, data, n), "and the moved bytes");
}

static void memory_and_pipes(void) {
    fill();
    int ends[2];
    a_pipe(ends, 0);
    struct iovec two[2] = {{data, 1000}, {data + 1000, 9000}};
    CHECK(vmsplice(ends[1], two, 2, 0) == 10000, "given");
    CHECK(read(ends[0], back, 10000) == 10000 && !memcmp(back, data, 10000), "the bytes");
    CHECK(write(ends[1], data, 500) == 500, "bytes");
    two[0] = (struct iovec){back, 100}, two[1] = (struct iovec){back + 100, 900};
    memset(back, 0, 1000);
    CHECK(vmsplice(ends[0], two, 2, 0) == 500 && !memcmp(back, data, 500), "taken");
    two[0] = (struct iovec){data, BIG};
    ssize_t n = vmsplice(ends[1], two, 1, SPLICE_F_NONBLOCK);
    CHECK(n > 50000 && n <= 65536, "as much as fits: %zd", n);
    ANSWERS(EAGAIN, vmsplice(ends[1], two, 1, SPLICE_F_NONBLOCK));
    CHECK(same(ends[0], n), "the bytes");
}

static int pair[2];
static void *receiver(void *ok) {
    *(int *)ok = same(pair[1], BIG);
    return NULL;
}

static void to_and_from_sockets(void) {
    fill();
    int ends[2], ok = 0, in = memory_file(BIG);
    CHECK(!socketpair(AF_UNIX, SOCK_STREAM, 0, pair), "socketpair");
    a_pipe(ends, 0);
    pthread_t thread;
    pthread_create(&thread, NULL, receiver, &ok);
    for (size_t sent = 0; sent < BIG;) {
        ssize_t n = splice(in, NULL, ends[1], NULL, BIG, 0);
        CHECK(n > 0, "from the file");
        for (ssize_t m; n > 0; n -= m, sent += m)
            CHECK((m = splice(ends[0], NULL, pair[0], NULL, n, 0)) > 0, "to the socket");
    }
    pthread_join(thread, NULL);
    CHECK(ok, "the bytes");
    lseek(in, 0, SEEK_SET);
    pthread_create(&thread, NULL, receiver, &ok);
    for (size_t sent = 0; sent < BIG;) {
        ssize_t n = sendfile(pair[0], in, NULL, BIG - sent);
        CHECK(n > 0, "sendfile");
        sent += n;
    }
    pthread_join(thread, NULL);
    CHECK(ok, "the bytes");
    CHECK(write(pair[0], data, 4000) == 4000, "sent");
    for (size_t got = 0; got < 4000;) {
        ssize_t n = splice(pair[1], NULL, ends[1], NULL, 4000 - got, 0);
        CHECK(n > 0, "from the socket");
        got += n;
    }
    CHECK(same(ends[0], 4000), "the bytes");
    fcntl(pair[1], F_SETFL, O_RDWR | O_NONBLOCK);
    ANSWERS(EAGAIN, splice(pair[1], NULL, ends[1], NULL, 1, 0));
    CHECK(write(pair[1], "abc", 3) == 3 && sendfile(ends[1], pair[0], NULL, 10) == 3 && read(ends[0], back, 9) == 3,
        "to a pipe");
    ANSWERS(EINVAL, sendfile(in, pair[0], NULL, 1));
    close(pair[0]);
    CHECK(splice(pair[1], NULL, ends[1], NULL, 1, 0) == 0, "the end");
    // Files, pipes and devices as the output and input of sendfile.
    off_t at = 100;
    CHECK(sendfile(ends[1], in, &at, 1000) == 1000 && at == 1100, "to a pipe");
    CHECK(read(ends[0], back, 1000) == 1000 && !memcmp(back, data + 100, 1000), "the bytes");
    int zero = open("/dev/zero", O_RDONLY);
    CHECK(sendfile(ends[1], zero, NULL, 100) == 100, "from a device");
    ANSWERS(EINVAL, sendfile(ends[1], ends[0], NULL, 1));
}

static int relay[3][2];
static void *mover(void *index) {
    int i = (long)index;
    ssize_t n;
    while ((n = splice(relay[i][0], NULL, relay[i + 1][1], NULL, 1 << 20, 0)) > 0) {}
    close(relay[i + 1][1]);
    return NULL;
}

static void movers_wait_and_are_woken(void) {
    fill();
    for (int i = 0; i < 3; i++) a_pipe(relay[i], 0);
    pthread_t threads[2];
    for (long i = 0; i < 2; i++) pthread_create(&threads[i], NULL, mover, (void *)i);
    pid_t child = fork();
    if (!child) {
        for (int i = 0; i < 3; i++) close(relay[i][0]);
        for (int round = 0; round < 4; round++) CHECK(write(relay[0][1], data, BIG) == BIG, "write");
        _exit(0);
    }
    close(relay[0][1]);
    for (int round = 0; round < 4; round++) CHECK(same(relay[2][0], BIG), "round %d", round);
    CHECK(!ended(child), "the writer");
    // The child's copies of the other ends are closed now.
    CHECK(read(relay[2][0], back, 1) == 0, "the end");
    for (int i = 0; i < 2; i++) pthread_join(threads[i], NULL);
    int ends[2], other[2];
    a_pipe(ends, 0), a_pipe(other, 0);
    handle(SIGUSR1, 0);
    child = sender(SIGUSR1);
    ANSWERS(EINTR, splice(ends[0], NULL, other[1], NULL, 1, 0));
    ended(child);
    child = sender(SIGUSR1);
    ANSWERS(EINTR, tee(ends[0], other[1], 1, 0));
    ended(child);
}

static void circles_do_not_lock_up(void) {
    int a[2], b[2];
    a_pipe(a, O_NONBLOCK), a_pipe(b, O_NONBLOCK);
    memset(back, 'x', 30000);
    CHECK(write(a[1], back, 30000) == 30000 && write(b[1], back, 30000) == 30000, "bytes");
    pid_t child = fork();
    for (int i = 0; i < 3000; i++) {
        if (child) splice(a[0], NULL, b[1], NULL, 7000, 0);
        else splice(b[0], NULL, a[1], NULL, 7000, 0);
        if (i % 3 == 0) {
            ssize_t n = read(child ? b[0] : a[0], back, 3000);
            if (n > 0) CHECK(write(child ? b[1] : a[1], back, n) >= -1, "back");
        }
    }
    if (!child) _exit(0);
    CHECK(!ended(child), "the other");
}

// Expects that `text` moves from a pipe to the file at `path`, and returns what the file shows then.
static const char *moved_to(const char *path, const char *text) {
    static char shown[100];
    int ends[2], file = open(path, O_RDWR);
    long len = strlen(text), n;
    a_pipe(ends, 0);
    CHECK(file >= 0 && write(ends[1], text, len) == len, "%s", path);
    CHECK((n = splice(ends[0], NULL, file, NULL, 100, 0)) == len, "%s: %ld, errno %d", path, n, errno);
    CHECK((n = pread(file, shown, sizeof shown - 1, 0)) > 0, "read");
    shown[n] = 0;
    close(file), close(ends[0]), close(ends[1]);
    return shown;
}

// Of the files of /proc, settings take bytes of pipes, and only they.
static void settings_take_bytes_of_pipes(void) {
    const char *setting = "/proc/sys/fs/pipe-max-size";
    int ends[2], file = open(setting, O_RDWR), log = open(setting, O_WRONLY | O_APPEND),
        own = open("/proc/self/comm", O_RDWR);
    if (file < 0) return; // the machine's settings are read-only
    char before[32] = "";
    loff_t start = 0;
    a_pipe(ends, 0);
    CHECK(log >= 0 && own >= 0 && pread(file, before, sizeof before - 1, 0) > 0, "open");
    const char *now = moved_to(setting, "524288\n");
    CHECK(!strcmp(now, "524288\n"), "%s", now);
    now = moved_to(setting, before);
    CHECK(!strcmp(now, before), "%s, not %s", now, before);
    CHECK(write(ends[1], "words\n", 6) == 6, "write");
    ANSWERS(EINVAL, splice(ends[0], NULL, file, NULL, 6, 0));
    ANSWERS(EINVAL, splice(ends[0], NULL, log, NULL, 6, 0));
    ANSWERS(EINVAL, splice(ends[0], NULL, own, NULL, 6, 0));
    // Bytes that a file does not take stay in the pipe.
    CHECK(read(ends[0], back, 10) == 6 && !memcmp(back, "words\n", 6), "the bytes");
    CHECK(splice(file, &start, ends[1], NULL, 100, 0) == (long)strlen(before) &&
        read(ends[0], back, 100) == (long)strlen(before), "to a pipe");
}

int main(int argc, char **argv) {
    parse_options(argc, argv, NULL);
    static const struct check checks[] = {
        {"between_files_and_pipes", between_files_and_pipes},
        {"arguments_are_checked", arguments_are_checked},
        {"between_pipes", between_pipes},
        {"memory_and_pipes", memory_and_pipes},
        {"to_and_from_sockets", to_and_from_sockets},
        {"movers_wait_and_are_woken", movers_wait_and_are_woken},
        {"circles_do_not_lock_up", circles_do_not_lock_up},
        {"settings_take_bytes_of_pipes", settings_take_bytes_of_pipes},
    };
    run_checks(checks, sizeof checks / sizeof *checks);
    return 0;
}
