// Linux's behaviour in corner cases that programs rely on: each is the same on Linux and on Quire.
#include "checks.h"
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <sys/epoll.h>
#include <sys/fsuid.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#define PAGE 4096ul
#define FUTEX_WAKE 1
#define FUTEX_CMP_REQUEUE 4
#define FUTEX_WAIT_PRIVATE 128
#define FUTEX_WAKE_PRIVATE 129
static long futex(void *word, int operation, unsigned value, unsigned long timeout, void *other, unsigned third) {
    return syscall(SYS_futex, word, operation, value, timeout, other, third);
}

static char *map(size_t len, int protection, int flags) {
    char *at = mmap(NULL, len, protection, flags | MAP_ANONYMOUS, -1, 0);
    CHECK(at != MAP_FAILED, "mmap");
    return at;
}

// A file of `len` bytes without a name.
static int file(off_t len) {
    int fd = memfd_create("file", 0);
    CHECK(fd >= 0 && !ftruncate(fd, len), "memfd_create");
    return fd;
}

static void exclusive_waiters_are_woken_one_by_one(void) {
    int pipe_ends[2], seen[2];
    CHECK(!pipe(pipe_ends) && !pipe(seen), "pipe");
    pid_t waiters[3];
    for (int i = 0; i < 3; i++) {
        waiters[i] = fork();
        if (!waiters[i]) {
            close(pipe_ends[1]);
            alarm(5);
            int set = epoll_create1(0);
            struct epoll_event event = {.events = EPOLLIN | EPOLLEXCLUSIVE};
            CHECK(!epoll_ctl(set, EPOLL_CTL_ADD, pipe_ends[0], &event), "EPOLLEXCLUSIVE");
            CHECK(write(seen[1], "r", 1) == 1 && epoll_wait(set, &event, 1, -1) == 1 && write(seen[1], "w", 1) == 1,
                "wait");
            _exit(0);
        }
    }
    char ready[3];
    for (int i = 0; i < 3; i++) CHECK(read(seen[0], ready + i, 1) == 1 && ready[i] == 'r', "ready");
    for (int i = 0; i < 3; i++) until_asleep(waiters[i]);
    CHECK(write(pipe_ends[1], "x", 1) == 1, "write");
    CHECK(read(seen[0], ready, 1) == 1 && ready[0] == 'w', "a waiter is woken");
    // A second waiter would report within this time.
    usleep(200000);
    fcntl(seen[0], F_SETFL, O_NONBLOCK);
    ANSWERS(EAGAIN, read(seen[0], ready, 3));
    // A hang-up wakes the other readers too.
    CHECK(read(pipe_ends[0], ready, 1) == 1, "read");
    close(pipe_ends[1]);
    for (int i = 0; i < 3; i++) ended(waiters[i]);
    CHECK(read(seen[0], ready, 3) == 2, "a hang-up");
}

static void futexes_that_are_not_there(void) {
    char *none = map(PAGE, PROT_NONE, MAP_PRIVATE), *gone = map(PAGE, PROT_READ, MAP_PRIVATE);
    unsigned word = 1;
    munmap(gone, PAGE);
    ANSWERS(EFAULT, futex(gone, FUTEX_WAKE, 1, 0, NULL, 0));
    ANSWERS(EFAULT, futex(none, FUTEX_WAKE, 1, 0, NULL, 0));
    ANSWERS(EFAULT, futex(&word, FUTEX_CMP_REQUEUE, 1, 1, gone, 1));
    ANSWERS(EFAULT, futex(gone, FUTEX_CMP_REQUEUE, 1, 1, &word, 1));
    int fd = file(2 * PAGE);
    char *cut = mmap(NULL, 2 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    CHECK(cut != MAP_FAILED && !ftruncate(fd, PAGE), "mmap");
    ANSWERS(EFAULT, futex(cut + PAGE, FUTEX_WAKE, 1, 0, NULL, 0));
    ANSWERS(0, futex(cut, FUTEX_WAKE, 1, 0, NULL, 0));
}

static unsigned shared_word;

static void *waits_private(void *unused) {
    (void)unused;
    struct timespec most = {1, 0};
    return (void *)syscall(SYS_futex, &shared_word, FUTEX_WAIT_PRIVATE, 0, &most, NULL, 0);
}

static void private_and_shared_futexes_are_two(void) {
    pthread_t thread;
    void *result;
    CHECK(!pthread_create(&thread, NULL, waits_private, NULL), "thread");
    until_asleep(0);
    ANSWERS(0, futex(&shared_word, FUTEX_WAKE, 1, 0, NULL, 0));
    CHECK(!futex(&shared_word, FUTEX_WAKE, 1, 0, NULL, 0), "a shared wake woke a private waiter");
    CHECK(futex(&shared_word, FUTEX_WAKE_PRIVATE, 1, 0, NULL, 0) == 1, "a private wake");
    CHECK(!pthread_join(thread, &result) && !result, "join");
}

static void *nicer(void *nice) {
    CHECK(!setpriority(PRIO_PROCESS, 0, 7), "setpriority");
    *(int *)nice = getpriority(PRIO_PROCESS, 0);
    return NULL;
}

static void nice_is_a_threads(void) {
    pthread_t thread;
    int nice = 0;
    CHECK(!pthread_create(&thread, NULL, nicer, &nice) && !pthread_join(thread, NULL), "thread");
    CHECK(nice == 7 && getpriority(PRIO_PROCESS, 0) == 0, "%d and %d", nice, getpriority(PRIO_PROCESS, 0));
}

static void the_first_lock_in_the_way_is_returned(void) {
    int fd = file(100);
    struct flock late = {.l_type = F_WRLCK, .l_start = 50, .l_len = 10},
        early = {.l_type = F_WRLCK, .l_start = 10, .l_len = 10};
    CHECK(!fcntl(fd, F_SETLK, &late) && !fcntl(fd, F_SETLK, &early), "F_SETLK");
    pid_t child = fork();
    if (!child) {
        struct flock asked = {.l_type = F_WRLCK, .l_len = 100};
        CHECK(!fcntl(fd, F_GETLK, &asked) && asked.l_start == 10 && asked.l_pid == getppid(), "at %ld",
            (long)asked.l_start);
        _exit(0);
    }
    CHECK(!ended(child), "child");
}

static void locks_of_open_files(void) {
    char path[40];
    int fd = file(100);
    sprintf(path, "/proc/self/fd/%d", fd);
    int other = open(path, O_RDWR), same = dup(fd);
    struct flock lock = {.l_type = F_WRLCK, .l_len = 10}, asked = {.l_type = F_RDLCK, .l_len = 10};
    ANSWERS(0, fcntl(fd, F_OFD_SETLK, &lock));
    ANSWERS(0, fcntl(same, F_OFD_SETLK, &lock));
    ANSWERS(EAGAIN, fcntl(other, F_OFD_SETLK, &lock));
    ANSWERS(0, fcntl(other, F_OFD_GETLK, &asked));
    CHECK(asked.l_type == F_WRLCK && asked.l_pid == -1, "type %d of %d", asked.l_type, asked.l_pid);
    // The lock stays while one descriptor of the open file does.
    close(fd);
    ANSWERS(EAGAIN, fcntl(other, F_OFD_SETLK, &lock));
    close(same);
    ANSWERS(0, fcntl(other, F_OFD_SETLK, &lock));
    struct flock with_pid = {.l_type = F_WRLCK, .l_pid = 1};
    ANSWERS(EINVAL, fcntl(other, F_OFD_SETLK, &with_pid));
}

static void holes(void) {
    int fd = file(8 * PAGE);
    CHECK(pwrite(fd, "x", 1, 2 * PAGE) == 1 && pwrite(fd, "x", 1, 5 * PAGE) == 1, "pwrite");
    CHECK(lseek(fd, 0, SEEK_DATA) == (off_t)(2 * PAGE) && lseek(fd, 2 * PAGE, SEEK_HOLE) == (off_t)(3 * PAGE),
        "first data");
    CHECK(lseek(fd, 3 * PAGE, SEEK_DATA) == (off_t)(5 * PAGE) && lseek(fd, 0, SEEK_HOLE) == 0, "second data");
    ANSWERS(ENXIO, lseek(fd, 6 * PAGE, SEEK_DATA));
    CHECK(lseek(fd, 6 * PAGE, SEEK_HOLE) == (off_t)(6 * PAGE), "last hole");
    ANSWERS(ENXIO, lseek(fd, 8 * PAGE, SEEK_HOLE));
}

static void a_directory_outside_of_the_root(void) {
    char path[64] = "";
    CHECK(!mkdir("/tmp/behaviour-root", 0755) || errno == EEXIST, "mkdir");
    CHECK(!chdir("/tmp") && !chroot("/tmp/behaviour-root"), "chroot");
    CHECK(syscall(SYS_getcwd, path, sizeof path) > 0 && !strncmp(path, "(unreachable)", 13), "%s", path);
}

static void mappings(void) {
    int zero = open("/dev/zero", O_RDONLY);
    char *at = mmap(NULL, PAGE, PROT_READ, MAP_SHARED, zero, 0);
    CHECK(at != MAP_FAILED, "mmap");
    ANSWERS(EACCES, mprotect(at, PAGE, PROT_READ | PROT_WRITE));
    ANSWERS(EINVAL, mmap(NULL, PAGE, PROT_READ, MAP_PRIVATE | MAP_SHARED | MAP_ANONYMOUS, -1, 0));
    ANSWERS(EBADF, mmap(NULL, 0, PROT_READ, MAP_PRIVATE, 999, 0));
    ANSWERS(EINVAL, mmap(NULL, 0, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
}

static void arguments(void) {
    char *none[] = {NULL};
    ANSWERS(EINVAL, syscall(SYS_execveat, AT_FDCWD, "/bin/true", none, none, 0x8000));
    ANSWERS(EINVAL, syscall(SYS_sched_setparam, 0, NULL));
    cpu_set_t set;
    ANSWERS(ESRCH, syscall(SYS_sched_getaffinity, -1, sizeof set, &set));
    stack_t small = {.ss_sp = map(PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE), .ss_size = 1024};
    ANSWERS(ENOMEM, sigaltstack(&small, NULL));
    CHECK(setfsuid(-1) == 0 && setfsuid(5) == 0 && setfsuid(-1) == 5 && setfsuid(-1) == 5, "setfsuid");
}

static void a_root_that_may_not_be_searched(void) {
    CHECK(!mkdir("/tmp/behaviour-closed", 0700) || errno == EEXIST, "mkdir");
    CHECK(!setresuid(1000, 1000, 1000), "setresuid");
    ANSWERS(EACCES, chroot("/tmp/behaviour-closed"));
    ANSWERS(EPERM, chroot("/tmp"));
}

static void a_handler_that_is_reset(void) {
    struct sigaction left;
    handle(SIGUSR1, SA_RESETHAND);
    raise(SIGUSR1);
    CHECK(caught == SIGUSR1 && !sigaction(SIGUSR1, NULL, &left), "sigaction");
    CHECK(left.sa_handler == SIG_DFL && left.sa_flags & SA_SIGINFO, "flags %#x", left.sa_flags);
}

static void the_number_of_mappings(void) {
    int knob = open("/proc/sys/vm/max_map_count", O_RDWR);
    char before[16] = "";
    CHECK(knob >= 0 && read(knob, before, 15) > 0 && pwrite(knob, "100", 3, 0) == 3, "max_map_count");
    char *at = map(400 * PAGE, PROT_NONE, MAP_PRIVATE);
    int error = 0;
    for (int i = 0; i < 200 && !error; i++)
        if (mprotect(at + 2 * i * PAGE, PAGE, PROT_READ)) error = errno;
    // A refused move to a smaller size removes nothing.
    char *end = at + 400 * PAGE;
    unsigned char resident[8];
    void *moved = mremap(end - 8 * PAGE, 4 * PAGE, 2 * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, end - 4 * PAGE);
    int refused = moved == MAP_FAILED ? errno : 0, there = mincore(end - 8 * PAGE, 8 * PAGE, resident);
    pwrite(knob, before, strlen(before), 0);
    CHECK(error == ENOMEM, "%d", error);
    CHECK(refused == ENOMEM && !there, "mremap: %d, %d", refused, there);
}

// F_SETPIPE_SZ
static void a_pipe_changes_its_size(void) {
    int ends[2];
    static char bytes[1 << 20], back[1 << 20];
    for (size_t i = 0; i < sizeof bytes; i++) bytes[i] = i % 251;
    CHECK(!pipe2(ends, O_NONBLOCK), "pipe2");
    CHECK(fcntl(ends[0], F_GETPIPE_SZ) == 65536, "a new pipe's size");
    // Rounded to a power of two, a page at least.
    const struct { unsigned wanted; int given; } sizes[] = {{0, 4096}, {1, 4096}, {4097, 8192}, {65537, 131072},
        {1 << 20, 1 << 20}, {4096, 4096}};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        int given = fcntl(ends[i % 2], F_SETPIPE_SZ, sizes[i].wanted);
        CHECK(given == sizes[i].given && fcntl(ends[0], F_GETPIPE_SZ) == given, "%u: %d", sizes[i].wanted, given);
        // It holds as much as it says, and is writable until then.
        struct pollfd room = {.fd = ends[1], .events = POLLOUT};
        CHECK(poll(&room, 1, 0) == 1 && write(ends[1], bytes, sizeof bytes) == given, "%d bytes", given);
        int queued;
        CHECK(!ioctl(ends[0], FIONREAD, &queued) && queued == given && !poll(&room, 1, 0), "%d of %d", queued, given);
        ANSWERS(EAGAIN, write(ends[1], "x", 1));
        if (given > 4096) ANSWERS(EBUSY, fcntl(ends[1], F_SETPIPE_SZ, given / 2));
        CHECK(fcntl(ends[0], F_GETPIPE_SZ) == given && read(ends[0], back, sizeof back) == given, "read");
        CHECK(!memcmp(bytes, back, given), "%d bytes in order", given);
    }
    ANSWERS(EINVAL, fcntl(ends[1], F_SETPIPE_SZ, 0x80000001u));
    ANSWERS(EINVAL, fcntl(ends[1], F_SETPIPE_SZ, -1));
    CHECK(fcntl(ends[1], F_SETPIPE_SZ, 1ul << 32) == 4096, "only the low half counts");
    // The bytes are kept.
    CHECK(write(ends[1], bytes, 3000) == 3000 && fcntl(ends[1], F_SETPIPE_SZ, 16384) == 16384, "grow");
    CHECK(write(ends[1], bytes + 3000, 9000) == 9000 && read(ends[0], back, 8192) == 8192, "write");
    CHECK(fcntl(ends[1], F_SETPIPE_SZ, 4096) == 4096 && read(ends[0], back + 8192, 8192) == 12000 - 8192, "shrink");
    CHECK(!memcmp(bytes, back, 12000), "in order");
    // A waiting writer continues.
    CHECK(write(ends[1], bytes, 4096) == 4096, "write");
    pid_t writer = fork();
    if (!writer) {
        alarm(5);
        fcntl(ends[1], F_SETFL, 0);
        _exit(write(ends[1], "x", 1) != 1);
    }
    until_asleep(writer);
    CHECK(fcntl(ends[0], F_SETPIPE_SZ, 8192) == 8192 && !ended(writer), "a writer that waited");
    // Other files have no such size.
    int pair[2];
    CHECK(!socketpair(AF_UNIX, SOCK_STREAM, 0, pair), "socketpair");
    ANSWERS(EBADF, fcntl(pair[0], F_SETPIPE_SZ, 4096));
    ANSWERS(EBADF, fcntl(file(PAGE), F_GETPIPE_SZ));
}

static void a_fifo_has_its_first_size_again(void) {
    CHECK(!mkfifo("fifo", 0600), "mkfifo");
    int both = open("fifo", O_RDWR | O_NONBLOCK), other = open("fifo", O_RDONLY | O_NONBLOCK);
    unlink("fifo");
    CHECK(both >= 0 && fcntl(both, F_SETPIPE_SZ, 4096) == 4096 && fcntl(other, F_GETPIPE_SZ) == 4096, "a FIFO");
    CHECK(!mkfifo("fifo", 0600), "mkfifo");
    int again = open("fifo", O_RDWR);
    CHECK(fcntl(again, F_SETPIPE_SZ, 8192) == 8192 && !close(again), "close");
    again = open("fifo", O_RDWR);
    CHECK(fcntl(again, F_GETPIPE_SZ) == 65536, "opened again after the last end was closed");
    unlink("fifo");
}

// Writes `text` to a file of /proc/sys/fs.
static void set_limit(const char *name, const char *text) {
    char path[64];
    snprintf(path, sizeof path, "/proc/sys/fs/%s", name);
    int fd = open(path, O_WRONLY);
    CHECK(fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text), "%s", path);
    close(fd);
}
static unsigned long limit(const char *name) {
    char path[64], text[32] = "";
    snprintf(path, sizeof path, "/proc/sys/fs/%s", name);
    int fd = open(path, O_RDONLY);
    CHECK(fd >= 0 && read(fd, text, sizeof text - 1) > 0, "%s", path);
    close(fd);
    return strtoul(text, NULL, 10);
}

static void grows_to_the_largest(void) {
    int ends[2];
    CHECK(!setuid(4711) && !pipe(ends), "pipe");
    CHECK(fcntl(ends[0], F_SETPIPE_SZ, 131072) == 131072, "the largest");
    ANSWERS(EPERM, fcntl(ends[0], F_SETPIPE_SZ, 131073));
    CHECK(fcntl(ends[0], F_GETPIPE_SZ) == 131072 && open("/proc/sys/fs/pipe-max-size", O_WRONLY) < 0, "a user's");
}
static void keeps_what_is_too_large(void) {
    int ends[2];
    CHECK(!pipe(ends) && fcntl(ends[0], F_SETPIPE_SZ, 131072) == 131072, "pipe");
    set_limit("pipe-max-size", "4096");
    CHECK(!setuid(4711), "setuid");
    CHECK(fcntl(ends[0], F_SETPIPE_SZ, 65536) == 65536, "smaller, though too large");
    CHECK(fcntl(ends[0], F_SETPIPE_SZ, 65536) == 65536, "as large as it is");
    ANSWERS(EPERM, fcntl(ends[0], F_SETPIPE_SZ, 131072));
}
static void the_largest_pipe(void) {
    CHECK(limit("pipe-max-size") == 1 << 20, "pipe-max-size");
    set_limit("pipe-max-size", "70000");
    CHECK(limit("pipe-max-size") == 131072, "rounded");
    int grows = in_child(grows_to_the_largest), keeps = in_child(keeps_what_is_too_large);
    set_limit("pipe-max-size", "0");
    unsigned long least = limit("pipe-max-size");
    set_limit("pipe-max-size", "1048576");
    CHECK(!grows && !keeps && least == 4096, "%#x %#x %lu", grows, keeps, least);
}

static int a_pipe_of(int size) {
    int ends[2];
    if (pipe(ends)) return -1;
    int got = fcntl(ends[0], F_GETPIPE_SZ);
    CHECK(got == size, "%d bytes, not %d", got, size);
    close(ends[1]);
    return ends[0];
}
static void beyond_the_soft_limit(void) {
    CHECK(!setresuid(4712, 4712, 0), "setresuid"); // no capabilities, until the saved id comes back
    int first = a_pipe_of(65536), second = a_pipe_of(65536), small[4];
    CHECK(first >= 0 && second >= 0, "32 of 40 pages");
    for (int i = 0; i < 4; i++) CHECK((small[i] = a_pipe_of(8192)) >= 0, "a small one");
    // 40 of 40: no pipe grows, and a pipe that shrinks makes room.
    ANSWERS(EPERM, fcntl(small[0], F_SETPIPE_SZ, 16384));
    CHECK(fcntl(small[0], F_SETPIPE_SZ, 8192) == 8192 && fcntl(small[1], F_SETPIPE_SZ, 4096) == 4096,
        "as large, and smaller");
    ANSWERS(EPERM, fcntl(small[1], F_SETPIPE_SZ, 16384));
    CHECK(fcntl(small[1], F_SETPIPE_SZ, 8192) == 8192, "as before");
    CHECK(a_pipe_of(8192) >= 0 && a_pipe_of(8192) >= 0, "small ones beyond the soft limit");
    // A pipe that is closed is paid back.
    close(second), close(first);
    CHECK(a_pipe_of(65536) >= 0, "28 of 40 pages");
    CHECK(fcntl(small[0], F_SETPIPE_SZ, 65536) < 0 && errno == EPERM, "no more than the limit");
    CHECK(fcntl(small[0], F_SETPIPE_SZ, 32768) == 32768, "34 of 40 pages");
    CHECK(!mkfifo("fifo-of-many", 0600) || errno == EEXIST, "mkfifo");
    int fifo = open("fifo-of-many", O_RDWR);
    CHECK(fifo >= 0 && fcntl(fifo, F_GETPIPE_SZ) == 8192, "a FIFO is a pipe");
    // With a capability there is no limit.
    CHECK(!setresuid(-1, 0, -1) && a_pipe_of(65536) >= 0 && fcntl(small[2], F_SETPIPE_SZ, 65536) == 65536, "free");
    unlink("fifo-of-many");
}
static void up_to_the_hard_limit(void) {
    CHECK(!setresuid(4713, 4713, 0), "setresuid");
    int first = a_pipe_of(65536), second = a_pipe_of(65536), small = a_pipe_of(8192);
    CHECK(first >= 0 && second >= 0 && small >= 0, "34 of 35 pages");
    int ends[2];
    ANSWERS(ENFILE, pipe(ends));
    ANSWERS(EPERM, fcntl(small, F_SETPIPE_SZ, 16384));
    CHECK(fcntl(small, F_SETPIPE_SZ, 4096) == 4096, "one page less");
    CHECK(a_pipe_of(8192) >= 0, "35 of 35");
    CHECK(!mkfifo("fifo-too-many", 0600) || errno == EEXIST, "mkfifo");
    ANSWERS(ENOMEM, open("fifo-too-many", O_RDWR));
    close(first);
    CHECK(open("fifo-too-many", O_RDWR) >= 0, "again after a pipe was closed");
    unlink("fifo-too-many");
    CHECK(!setresuid(-1, 0, -1) && !pipe(ends), "free");
}
static void in_a_place(void (*body)(void)) {
    CHECK(!mkdir("/tmp/pipes", 0777) || errno == EEXIST, "mkdir");
    CHECK(!chmod("/tmp/pipes", 0777) && !chdir("/tmp/pipes"), "a place where users may make files");
    body();
}
static void soft(void) { in_a_place(beyond_the_soft_limit); }
static void hard(void) { in_a_place(up_to_the_hard_limit); }
static void a_users_pipes(void) {
    CHECK(limit("pipe-user-pages-soft") == 16384 && limit("pipe-user-pages-hard") == 0, "limits");
    int knob = open("/proc/sys/fs/pipe-user-pages-hard", O_WRONLY);
    ANSWERS(EINVAL, write(knob, "-1", 2));
    ANSWERS(EINVAL, write(knob, "many", 4));
    set_limit("pipe-user-pages-soft", "40");
    int softly = in_child(soft);
    set_limit("pipe-user-pages-soft", "32");
    set_limit("pipe-user-pages-hard", "35");
    int hardly = in_child(hard);
    // Only the hard limit refuses what the soft one allows.
    set_limit("pipe-user-pages-soft", "0");
    set_limit("pipe-user-pages-hard", "15");
    pid_t child = fork();
    if (!child) {
        int ends[2];
        CHECK(!setuid(4714), "setuid");
        ANSWERS(ENFILE, pipe(ends));
        _exit(0);
    }
    int none = ended(child);
    set_limit("pipe-user-pages-soft", "16384");
    set_limit("pipe-user-pages-hard", "0");
    CHECK(!softly && !hardly && !none, "%#x %#x %#x", softly, hardly, none);
}
static void small_by_the_largest(void) {
    set_limit("pipe-max-size", "8192");
    CHECK(!setuid(4715) && a_pipe_of(8192) >= 0, "a new pipe is no larger");
}
static void a_new_pipe_is_no_larger_than_the_largest(void) {
    int status = in_child(small_by_the_largest);
    set_limit("pipe-max-size", "1048576");
    CHECK(!status, "%#x", status);
}

// pipe2(O_DIRECT)
static void packets(void) {
    int ends[2];
    static char bytes[3 * PAGE], back[3 * PAGE];
    CHECK(!pipe2(ends, O_DIRECT | O_NONBLOCK), "pipe2");
    CHECK(!(fcntl(ends[0], F_GETFL) & O_DIRECT) && fcntl(ends[1], F_GETFL) & O_DIRECT, "of the writer");
    // A read returns one packet, and loses the rest of it. A write of nothing makes none.
    CHECK(write(ends[1], "one", 3) == 3 && !write(ends[1], "", 0) && write(ends[1], "second", 6) == 6, "write");
    int queued;
    CHECK(!ioctl(ends[0], FIONREAD, &queued) && queued == 9, "%d queued", queued);
    CHECK(read(ends[0], back, sizeof back) == 3 && !memcmp(back, "one", 3), "the first");
    CHECK(read(ends[0], back, 3) == 3 && !memcmp(back, "sec", 3), "half of the second");
    ANSWERS(EAGAIN, read(ends[0], back, sizeof back));
    // A large write is packets of PIPE_BUF.
    CHECK(write(ends[1], bytes, 2 * PAGE + 5) == 2 * PAGE + 5, "large");
    long lengths[3];
    for (int i = 0; i < 3; i++) lengths[i] = read(ends[0], back, sizeof back);
    CHECK(lengths[0] == PAGE && lengths[1] == PAGE && lengths[2] == 5, "%ld %ld %ld", lengths[0], lengths[1],
        lengths[2]);
    // As many packets as pages.
    struct pollfd room = {.fd = ends[1], .events = POLLOUT};
    for (int size = 4096; size <= 65536; size *= 4) {
        CHECK(fcntl(ends[1], F_SETPIPE_SZ, size) == size, "F_SETPIPE_SZ");
        for (int i = 0; i < size / 4096; i++)
            CHECK(poll(&room, 1, 0) == 1 && write(ends[1], "ab", 2) == 2, "packet %d", i);
        CHECK(!poll(&room, 1, 0), "POLLOUT");
        ANSWERS(EAGAIN, write(ends[1], "c", 1));
        if (size > 4096) ANSWERS(EBUSY, fcntl(ends[1], F_SETPIPE_SZ, size / 2));
        CHECK(read(ends[0], back, 1) == 1 && poll(&room, 1, 0) == 1, "a packet less");
        while (read(ends[0], back, 10) == 2);
    }
    // The part of a large write that fits.
    CHECK(fcntl(ends[1], F_SETPIPE_SZ, 8192) == 8192 && write(ends[1], bytes, 3 * PAGE) == 2 * PAGE, "in part");
    CHECK(read(ends[0], back, sizeof back) == PAGE && read(ends[0], back, sizeof back) == PAGE, "read");
    // A writer waits for a page.
    CHECK(write(ends[1], "a", 1) == 1 && write(ends[1], "b", 1) == 1, "full");
    pid_t writer = fork();
    if (!writer) {
        alarm(5);
        fcntl(ends[1], F_SETFL, O_DIRECT);
        _exit(write(ends[1], "c", 1) != 1);
    }
    until_asleep(writer);
    CHECK(read(ends[0], back, 9) == 1 && !ended(writer), "a writer that waited");
    while (read(ends[0], back, 10) > 0);
    // A packet that cannot be read or written as a whole stays as it is, or is not made.
    char *end = map(2 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE);
    CHECK(!mprotect(end + PAGE, PAGE, PROT_NONE), "mprotect");
    ANSWERS(EFAULT, write(ends[1], end + PAGE - 3, 6));
    ANSWERS(EAGAIN, read(ends[0], back, 10));
    CHECK(write(ends[1], "packet", 6) == 6, "write");
    ANSWERS(EFAULT, read(ends[0], end + PAGE - 3, 6));
    CHECK(read(ends[0], back, 10) == 6 && !memcmp(back, "packet", 6), "it stays");
}

static void packets_and_a_stream(void) {
    int ends[2];
    char back[3 * PAGE], bytes[PAGE] = "";
    CHECK(!pipe2(ends, O_NONBLOCK), "pipe2");
    // Each write is as its file says at that time. A packet joins a stream that leaves it room in its page.
    CHECK(write(ends[1], "abc", 3) == 3 && !fcntl(ends[1], F_SETFL, O_NONBLOCK | O_DIRECT), "F_SETFL");
    CHECK(fcntl(ends[1], F_GETFL) & O_DIRECT && write(ends[1], "def", 3) == 3, "joins");
    CHECK(write(ends[1], bytes, PAGE) == PAGE && write(ends[1], "ghi", 3) == 3, "packets");
    CHECK(!fcntl(ends[1], F_SETFL, O_NONBLOCK) && write(ends[1], "jkl", 3) == 3 && write(ends[1], "mno", 3) == 3,
        "a stream");
    CHECK(read(ends[0], back, 4) == 4 && !memcmp(back, "abcd", 4), "a stream loses nothing");
    CHECK(read(ends[0], back, sizeof back) == 2 + PAGE && !memcmp(back, "ef", 2), "up to the end of a packet");
    CHECK(read(ends[0], back, sizeof back) == 3 && !memcmp(back, "ghi", 3), "a packet");
    CHECK(read(ends[0], back, sizeof back) == 6 && !memcmp(back, "jklmno", 6), "a stream");
    // Only pipes that are open, and files, have it.
    CHECK(!mkfifo("fifo-direct", 0600), "mkfifo");
    int fifo = open("fifo-direct", O_RDWR | O_NONBLOCK), refused = open("fifo-direct", O_RDWR | O_DIRECT),
        error = errno;
    unlink("fifo-direct");
    CHECK(fifo >= 0 && refused == -1 && error == EINVAL, "a FIFO is opened for packets");
    CHECK(!fcntl(fifo, F_SETFL, O_NONBLOCK | O_DIRECT) && write(fifo, "a", 1) == 1 && write(fifo, "b", 1) == 1,
        "a FIFO");
    CHECK(read(fifo, back, 9) == 1 && read(fifo, back, 9) == 1, "packets of a FIFO");
    ANSWERS(EINVAL, open("/dev/null", O_RDONLY | O_DIRECT));
    ANSWERS(EINVAL, open("/proc/self/stat", O_RDONLY | O_DIRECT));
    ANSWERS(EINVAL, fcntl(open("/dev/null", O_RDONLY), F_SETFL, O_DIRECT));
    CHECK(!socketpair(AF_UNIX, SOCK_STREAM, 0, ends), "socketpair");
    ANSWERS(EINVAL, fcntl(ends[0], F_SETFL, O_DIRECT));
}

static const struct check checks[] = {
    {"exclusive_waiters_are_woken_one_by_one", exclusive_waiters_are_woken_one_by_one},
    {"futexes_that_are_not_there", futexes_that_are_not_there},
    {"private_and_shared_futexes_are_two", private_and_shared_futexes_are_two},
    {"nice_is_a_threads", nice_is_a_threads},
    {"the_first_lock_in_the_way_is_returned", the_first_lock_in_the_way_is_returned},
    {"locks_of_open_files", locks_of_open_files},
    {"holes", holes},
    {"a_directory_outside_of_the_root", a_directory_outside_of_the_root},
    {"mappings", mappings},
    {"arguments", arguments},
    {"a_root_that_may_not_be_searched", a_root_that_may_not_be_searched},
    {"a_handler_that_is_reset", a_handler_that_is_reset},
    {"the_number_of_mappings", the_number_of_mappings},
    {"a_pipe_changes_its_size", a_pipe_changes_its_size},
    {"a_fifo_has_its_first_size_again", a_fifo_has_its_first_size_again},
    {"the_largest_pipe", the_largest_pipe},
    {"a_users_pipes", a_users_pipes},
    {"a_new_pipe_is_no_larger_than_the_largest", a_new_pipe_is_no_larger_than_the_largest},
    {"packets", packets},
    {"packets_and_a_stream", packets_and_a_stream},
};

int main(int argc, char **argv) {
    parse_options(argc, argv, NULL);
    run_checks(checks, sizeof checks / sizeof *checks);
    return 0;
}
