// Signals about open files, checked one by one; the same on Linux and on Quire: receivers (F_SETOWN), streams that
// become ready (O_ASYNC), directories that change (F_NOTIFY), broken leases (F_SETLEASE).
//
//   --only NAME   only checks whose name starts so
#define _GNU_SOURCE
#include "checks.h"
#include <limits.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>

// musl brings only some of them.
enum {
    SETSIG = 10,
    GETSIG = 11,
    SETOWN_EX = 15,
    GETOWN_EX = 16,
    SETLEASE = 1024,
    GETLEASE = 1025,
    NOTIFY = 1026,
};
enum { THREAD, PROCESS, GROUP };
enum { ACCESS = 1, MODIFY = 2, CREATE = 4, DELETE = 8, RENAME = 0x10, ATTRIB = 0x20 };
#define MULTISHOT 0x80000000u
struct owner {
    int type, pid;
};

static int command(int fd, int number, unsigned long argument) { return syscall(SYS_fcntl, fd, number, argument); }

// A blocked signal that comes within 2 s. With `none`, none may come within 50 ms.
static siginfo_t awaited(int signal, bool none) {
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, signal);
    siginfo_t info = {0};
    struct timespec most = {none ? 0 : 2, none ? 50000000 : 0};
    int got = sigtimedwait(&set, &info, &most);
    CHECK(none ? got == -1 : got == signal, "signal %d: %d", signal, got);
    return info;
}
static void block(void) {
    sigset_t all;
    sigfillset(&all);
    CHECK(!sigprocmask(SIG_SETMASK, &all, NULL), "mask");
}
static void make_async(int fd) {
    int flags = fcntl(fd, F_GETFL);
    CHECK(!fcntl(fd, F_SETFL, flags | O_ASYNC), "O_ASYNC");
    CHECK(fcntl(fd, F_GETFL) & O_ASYNC, "O_ASYNC is shown");
}

static void owners(void) {
    int ends[2];
    CHECK(!pipe(ends), "pipe");
    int fd = ends[0];
    CHECK(command(fd, F_GETOWN, 0) == 0 && command(fd, GETSIG, 0) == 0, "none at first");
    ANSWERS(0, command(fd, F_SETOWN, getpid()));
    CHECK(command(fd, F_GETOWN, 0) == getpid(), "the process");
    CHECK(!setpgid(0, 0), "setpgid");
    ANSWERS(0, command(fd, F_SETOWN, -getpid()));
    struct owner owner;
    ANSWERS(0, command(fd, GETOWN_EX, (unsigned long)&owner));
    CHECK(owner.type == GROUP && owner.pid == getpid(), "%d %d", owner.type, owner.pid);
    owner = (struct owner){THREAD, syscall(SYS_gettid)};
    ANSWERS(0, command(fd, SETOWN_EX, (unsigned long)&owner));
    owner = (struct owner){9, 9};
    ANSWERS(0, command(fd, GETOWN_EX, (unsigned long)&owner));
    CHECK(owner.type == THREAD && owner.pid == getpid(), "%d %d", owner.type, owner.pid);
    owner = (struct owner){3, getpid()};
    ANSWERS(EINVAL, command(fd, SETOWN_EX, (unsigned long)&owner));
    ANSWERS(EFAULT, command(fd, SETOWN_EX, 1));
    ANSWERS(ESRCH, command(fd, F_SETOWN, 0x3ffffff));
    ANSWERS(EINVAL, command(fd, F_SETOWN, INT_MIN));
    ANSWERS(EINVAL, command(fd, SETSIG, 65));
    ANSWERS(0, command(fd, SETSIG, SIGRTMIN));
    CHECK(command(fd, GETSIG, 0) == SIGRTMIN, "signal");
    // A process that has ended receives nothing.
    pid_t child = fork();
    if (!child) _exit(0);
    ANSWERS(0, command(fd, F_SETOWN, child));
    ended(child);
    CHECK(command(fd, F_GETOWN, 0) == 0, "an ended process");
    ANSWERS(0, command(fd, F_SETOWN, 0));
    CHECK(command(fd, F_GETOWN, 0) == 0, "none again");
}

static void a_pipe_signals(void) {
    int ends[2];
    char byte;
    block();
    CHECK(!pipe(ends), "pipe");
    make_async(ends[0]);
    CHECK(write(ends[1], "x", 1) == 1, "write");
    awaited(SIGIO, true);
    CHECK(read(ends[0], &byte, 1) == 1, "read");
    ANSWERS(0, command(ends[0], F_SETOWN, getpid()));
    CHECK(write(ends[1], "x", 1) == 1, "write");
    siginfo_t info = awaited(SIGIO, false);
    CHECK(info.si_code == SI_KERNEL, "code %d", info.si_code);
    CHECK(read(ends[0], &byte, 1) == 1, "read");
    ANSWERS(0, command(ends[0], SETSIG, SIGRTMIN + 1));
    CHECK(write(ends[1], "x", 1) == 1, "write");
    info = awaited(SIGRTMIN + 1, false);
    CHECK(info.si_code == POLL_IN && info.si_fd == ends[0] && info.si_band == (POLLIN | POLLRDNORM), "%d %d %lx",
        info.si_code,
          info.si_fd, (long)info.si_band);
    CHECK(read(ends[0], &byte, 1) == 1, "read");
    awaited(SIGRTMIN + 1, true);
    CHECK(!fcntl(ends[0], F_SETFL, 0), "no O_ASYNC");
    CHECK(write(ends[1], "x", 1) == 1, "write");
    awaited(SIGRTMIN + 1, true);
}

static void a_socket_signals_a_group(void) {
    int ends[2], on = 1;
    block();
    CHECK(!setpgid(0, 0), "setpgid");
    CHECK(!socketpair(AF_UNIX, SOCK_DGRAM, 0, ends), "socketpair");
    int owner = -getpid(), found;
    ANSWERS(0, ioctl(ends[0], 0x8901, &owner));
    ANSWERS(0, ioctl(ends[0], 0x8903, &found));
    CHECK(found == owner, "owner %d", found);
    ANSWERS(0, ioctl(ends[0], FIOASYNC, &on));
    pid_t child = fork();
    if (!child) {
        awaited(SIGIO, false);
        _exit(3);
    }
    CHECK(write(ends[1], "x", 1) == 1, "write");
    awaited(SIGIO, false);
    CHECK(WEXITSTATUS(ended(child)) == 3, "the child has it too");
    // The last close ends it.
    close(ends[0]);
    CHECK(write(ends[1], "x", 1) == -1, "write to a closed socket");
    awaited(SIGIO, true);
}

static char directory[64];
static void make_directory(void) {
    strcpy(directory, "/tmp/sigioXXXXXX");
    CHECK(mkdtemp(directory), "mkdtemp");
    CHECK(!chdir(directory), "chdir");
}
static void make_file(const char *name) {
    int f = open(name, O_CREAT | O_RDWR, 0644);
    CHECK(f >= 0, "%s", name);
    close(f);
}

static void a_directory_signals(void) {
    block();
    make_directory();
    make_file("old");
    int d = open(".", O_RDONLY), f = open("old", O_RDWR);
    CHECK(d >= 0 && f >= 0, "open");
    ANSWERS(ENOTDIR, command(f, NOTIFY, MODIFY));
    ANSWERS(0, command(d, SETSIG, SIGRTMIN + 2));
    ANSWERS(0, command(d, NOTIFY, CREATE));
    CHECK(command(d, F_GETOWN, 0) == getpid(), "the caller receives");
    make_file("new");
    siginfo_t info = awaited(SIGRTMIN + 2, false);
    CHECK(info.si_fd == d && info.si_code == POLL_MSG, "%d %d", info.si_fd, info.si_code);
    make_file("more");
    awaited(SIGRTMIN + 2, true);
    ANSWERS(0, command(d, NOTIFY, CREATE | DELETE | RENAME | ATTRIB | MODIFY | ACCESS | MULTISHOT));
    CHECK(!mkdir("sub", 0755), "mkdir");
    awaited(SIGRTMIN + 2, false);
    CHECK(!unlink("more"), "unlink");
    awaited(SIGRTMIN + 2, false);
    CHECK(!chmod("old", 0600), "chmod");
    awaited(SIGRTMIN + 2, false);
    CHECK(write(f, "x", 1) == 1, "write");
    awaited(SIGRTMIN + 2, false);
    CHECK(pread(f, &(char){0}, 1, 0) == 1, "read");
    awaited(SIGRTMIN + 2, false);
    CHECK(!rename("new", "sub/new"), "rename");
    awaited(SIGRTMIN + 2, false);
    // Alone, a rename is one inside of the directory.
    ANSWERS(0, command(d, NOTIFY, 0));
    ANSWERS(0, command(d, NOTIFY, RENAME));
    while (sigtimedwait(&(sigset_t){{~0ul}}, NULL, &(struct timespec){0}) > 0) {}
    CHECK(!rename("sub/new", "new") && !rename("new", "sub/new"), "rename");
    awaited(SIGRTMIN + 2, true);
    CHECK(!rename("sub", "under") && !rename("under", "sub"), "rename");
    awaited(SIGRTMIN + 2, false);
    awaited(SIGRTMIN + 2, true);
    ANSWERS(0, command(d, NOTIFY, CREATE | ATTRIB | MULTISHOT));
    while (sigtimedwait(&(sigset_t){{~0ul}}, NULL, &(struct timespec){0}) > 0) {}
    // Not below the directory, but the directory itself.
    CHECK(!unlink("sub/new"), "unlink");
    awaited(SIGRTMIN + 2, true);
    CHECK(!chmod(".", 0700), "chmod");
    awaited(SIGRTMIN + 2, false);
    ANSWERS(0, command(d, NOTIFY, 0));
    make_file("last");
    awaited(SIGRTMIN + 2, true);
    ANSWERS(0, command(d, NOTIFY, CREATE | MULTISHOT));
    close(d);
    make_file("very last");
    awaited(SIGRTMIN + 2, true);
}

static int opened(const char *name, int flags) {
    int f = open(name, flags, 0644);
    CHECK(f >= 0, "%s", name);
    return f;
}

static void leases_are_given(void) {
    make_directory();
    int writer = opened("file", O_RDWR | O_CREAT);
    ANSWERS(EINVAL, command(writer, SETLEASE, 7));
    ANSWERS(EAGAIN, command(writer, SETLEASE, F_UNLCK));
    CHECK(command(writer, GETLEASE, 0) == F_UNLCK, "none");
    ANSWERS(EAGAIN, command(writer, SETLEASE, F_RDLCK));
    ANSWERS(0, command(writer, SETLEASE, F_WRLCK));
    CHECK(command(writer, GETLEASE, 0) == F_WRLCK, "a write lease");
    ANSWERS(0, command(writer, SETLEASE, F_UNLCK));
    int reader = opened("file", O_RDONLY);
    ANSWERS(EAGAIN, command(writer, SETLEASE, F_WRLCK));
    ANSWERS(EAGAIN, command(reader, SETLEASE, F_RDLCK));
    close(writer);
    ANSWERS(0, command(reader, SETLEASE, F_RDLCK));
    CHECK(command(reader, GETLEASE, 0) == F_RDLCK, "a read lease");
    int other = opened("file", O_RDONLY);
    ANSWERS(0, command(other, SETLEASE, F_RDLCK));
    ANSWERS(EAGAIN, command(reader, SETLEASE, F_WRLCK));
    close(other);
    ANSWERS(0, command(reader, SETLEASE, F_WRLCK));
    int pipes[2];
    CHECK(!pipe(pipes), "pipe");
    ANSWERS(EINVAL, command(pipes[0], SETLEASE, F_RDLCK));
    ANSWERS(0, chmod("file", 0666));
    CHECK(!setgid(65534) && !setuid(65534), "setuid");
    int mine = open("/proc/self/exe", O_RDONLY);
    ANSWERS(EACCES, command(mine, SETLEASE, F_RDLCK));
}

static void an_opener_breaks_a_lease(void) {
    block();
    make_directory();
    int f = opened("file", O_RDWR | O_CREAT);
    ANSWERS(0, command(f, SETSIG, SIGRTMIN + 3));
    ANSWERS(0, command(f, SETLEASE, F_WRLCK));
    CHECK(command(f, F_GETOWN, 0) == getpid(), "the holder receives");
    ANSWERS(EWOULDBLOCK, open("file", O_RDONLY | O_NONBLOCK));
    siginfo_t info = awaited(SIGRTMIN + 3, false);
    CHECK(info.si_fd == f && info.si_code == POLL_MSG, "%d %d", info.si_fd, info.si_code);
    CHECK(command(f, GETLEASE, 0) == F_RDLCK, "what may stay");
    ANSWERS(0, command(f, SETLEASE, F_UNLCK));
    CHECK(command(f, F_GETOWN, 0) == 0 && command(f, GETSIG, 0) == 0, "the receiver goes with the lease");
    ANSWERS(0, command(f, SETSIG, SIGRTMIN + 3));
    ANSWERS(0, command(f, SETLEASE, F_WRLCK));
    // A waiting opener goes on when the lease is given up.
    pid_t child = fork();
    if (!child) {
        close(f);
        int g = open("file", O_RDONLY);
        _exit(g >= 0 ? 5 : 6);
    }
    info = awaited(SIGRTMIN + 3, false);
    CHECK(waitpid(child, NULL, WNOHANG) == 0, "it waits");
    ANSWERS(0, command(f, SETLEASE, F_UNLCK));
    CHECK(WEXITSTATUS(ended(child)) == 5, "it has opened the file");
    // The close of the holder's file gives it up too; and truncate breaks a read lease.
    close(f);
    f = opened("file", O_RDONLY);
    ANSWERS(0, command(f, SETSIG, SIGRTMIN + 3));
    ANSWERS(0, command(f, SETLEASE, F_RDLCK));
    close(opened("file", O_RDONLY));
    awaited(SIGRTMIN + 3, true);
    child = fork();
    if (!child) {
        close(f);
        _exit(truncate("file", 0) ? 6 : 5);
    }
    awaited(SIGRTMIN + 3, false);
    CHECK(command(f, GETLEASE, 0) == F_UNLCK, "nothing may stay");
    close(f);
    CHECK(WEXITSTATUS(ended(child)) == 5, "it has truncated the file");
}

static void stop_here(int signal) { (void)signal; }

static void a_waiting_opener_is_interrupted_or_gets_its_turn(void) {
    make_directory();
    int f = opened("file", O_RDWR | O_CREAT);
    signal(SIGIO, SIG_IGN);
    ANSWERS(0, command(f, SETLEASE, F_WRLCK));
    struct sigaction action = {.sa_handler = stop_here};
    CHECK(!sigaction(SIGALRM, &action, NULL), "sigaction");
    pid_t child = sender(SIGALRM);
    ANSWERS(EINTR, open("file", O_RDONLY));
    ended(child);
    // After fs.lease-break-time the kernel ends the lease.
    int s = open("/proc/sys/fs/lease-break-time", O_RDWR);
    if (s < 0) return; // read-only in a container
    ANSWERS(0, command(f, SETLEASE, F_UNLCK));
    CHECK(write(s, "1", 1) == 1, "write");
    ANSWERS(0, command(f, SETLEASE, F_WRLCK));
    uint64_t start = now_ns();
    int g = open("file", O_WRONLY);
    uint64_t took = now_ns() - start;
    CHECK(pwrite(s, "45", 2, 0) == 2, "write");
    CHECK(g >= 0 && took > 500 * MS && took < 1200 * MS, "%d after %llu ms", g, (unsigned long long)took / 1000000);
    CHECK(command(f, GETLEASE, 0) == F_UNLCK, "none");
}

int main(int argc, char **argv) {
    parse_options(argc, argv, NULL);
    static const struct check checks[] = {
        {"owners", owners},
        {"a_pipe_signals", a_pipe_signals},
        {"a_socket_signals_a_group", a_socket_signals_a_group},
        {"a_directory_signals", a_directory_signals},
        {"leases_are_given", leases_are_given},
        {"an_opener_breaks_a_lease", an_opener_breaks_a_lease},
        {"a_waiting_opener", a_waiting_opener_is_interrupted_or_gets_its_turn},
    };
    run_checks(checks, sizeof checks / sizeof *checks);
    return 0;
}
