// Pseudo-terminals, checked one by one; the same on Linux and on Quire. Starts as root.
#include "checks.h"
#include <poll.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/sysmacros.h>
#include <sys/syscall.h>
#include <termios.h>

#ifndef TIOCGPTPEER
#define TIOCGPTPEER 0x5441
#endif
#ifndef TIOCGPTLCK
#define TIOCGPTLCK 0x80045439
#endif
#ifndef TIOCGPKT
#define TIOCGPKT 0x80045438
#endif
#ifndef TIOCSIG
#define TIOCSIG 0x40045436
#endif
#ifndef TIOCPKT
#define TIOCPKT 0x5420
enum { TIOCPKT_FLUSHREAD = 1, TIOCPKT_FLUSHWRITE = 2, TIOCPKT_STOP = 4, TIOCPKT_START = 8, TIOCPKT_NOSTOP = 16,
    TIOCPKT_DOSTOP = 32 };
#endif

static char name[32];

// A pair that is unlocked; the name of its terminal is in `name`.
static int new_master(void) {
    int master = open("/dev/ptmx", O_RDWR | O_NOCTTY), zero = 0;
    unsigned index;
    CHECK(master >= 0, "ptmx");
    CHECK(!ioctl(master, TIOCSPTLCK, &zero) && !ioctl(master, TIOCGPTN, &index), "its number");
    snprintf(name, sizeof name, "/dev/pts/%u", index);
    return master;
}

static int open_slave(int flags) {
    int slave = open(name, O_RDWR | flags);
    CHECK(slave >= 0, "%s", name);
    return slave;
}

static void make_raw(int fd, int min, int time) {
    struct termios t;
    CHECK(!tcgetattr(fd, &t), "tcgetattr");
    t.c_iflag = t.c_oflag = t.c_lflag = 0;
    t.c_cc[VMIN] = min, t.c_cc[VTIME] = time;
    CHECK(!tcsetattr(fd, TCSANOW, &t), "tcsetattr");
}

static void put(int fd, const char *text) {
    CHECK(write(fd, text, strlen(text)) == (ssize_t)strlen(text), "write %s", text);
}

// Reads exactly `text`.
static void get(int fd, const char *text) {
    char bytes[256];
    size_t len = strlen(text), have = 0;
    while (have < len) {
        ssize_t n = read(fd, bytes + have, len - have);
        CHECK(n > 0, "read of %zd, wanted %s", n, text);
        have += n;
    }
    CHECK(!memcmp(bytes, text, len), "got %.*s, wanted %s", (int)len, bytes, text);
}

static int events(int fd, int wait) {
    struct pollfd one = {.fd = fd, .events = POLLIN | POLLOUT | POLLPRI};
    CHECK(poll(&one, 1, wait) >= 0, "poll");
    return one.revents;
}

static void names_and_owners(void) {
    int master = open("/dev/ptmx", O_RDWR | O_NOCTTY), state = 5;
    unsigned index;
    CHECK(master >= 0 && !ioctl(master, TIOCGPTN, &index), "ptmx");
    CHECK(!ioctl(master, TIOCGPTLCK, &state) && state == 1, "locked");
    snprintf(name, sizeof name, "/dev/pts/%u", index);
    ANSWERS(EIO, open(name, O_RDWR | O_NOCTTY));
    ANSWERS(EIO, ioctl(master, TIOCGPTPEER, O_RDWR | O_NOCTTY));
    state = 0;
    CHECK(!ioctl(master, TIOCSPTLCK, &state) && !ioctl(master, TIOCGPTLCK, &state) && !state, "unlocked");
    int slave = open_slave(O_NOCTTY);
    struct stat there, here;
    CHECK(!stat(name, &there) && !fstat(slave, &here) && there.st_ino == here.st_ino && there.st_dev == here.st_dev,
        "the same");
    CHECK(S_ISCHR(there.st_mode) && there.st_rdev == makedev(136, index) && there.st_uid == 0, "mode %#o",
        there.st_mode);
    char link[32], path[32];
    snprintf(path, sizeof path, "/proc/self/fd/%d", slave);
    ssize_t len = readlink(path, link, sizeof link);
    CHECK(len == (ssize_t)strlen(name) && !memcmp(link, name, len), "its name");
    CHECK(isatty(slave) && isatty(master), "terminals");
    int peer = ioctl(master, TIOCGPTPEER, O_RDWR | O_NOCTTY | O_CLOEXEC);
    CHECK(peer >= 0 && fcntl(peer, F_GETFD) == FD_CLOEXEC && !fstat(peer, &here) && here.st_ino == there.st_ino,
        "the peer");
    ANSWERS(ENOTTY, ioctl(slave, TIOCGPTN, &index));
    ANSWERS(EIO, ioctl(slave, TIOCGPTPEER, O_RDWR));
    int second = new_master();
    CHECK(!stat(name, &here) && here.st_rdev != there.st_rdev, "another one");
    close(second);
    ANSWERS(ENOENT, stat(name, &here));
    struct statfs system;
    CHECK(!statfs("/dev/pts", &system) && system.f_type == 0x1cd1, "devpts");
    ANSWERS(EPERM, mkdir("/dev/pts/d", 0755));
    snprintf(name, sizeof name, "/dev/pts/%u", index);
    ANSWERS(EPERM, unlink(name));
    ANSWERS(EPERM, rename(name, "/dev/pts/z"));
    ANSWERS(EACCES, open("/dev/pts/x", O_CREAT | O_RDWR, 0600));
    CHECK(!chown(name, 5, 6) && !chmod(name, 0600) && !stat(name, &there) && there.st_uid == 5 &&
        (there.st_mode & 07777) == 0600, "owner");
}

static void lines_and_echo(void) {
    int master = new_master(), slave = open_slave(O_NOCTTY), n;
    put(slave, "hi\n");
    get(master, "hi\r\n");
    put(master, "ab\nc");
    get(master, "ab\r\nc");
    CHECK(!ioctl(slave, FIONREAD, &n) && n == 3, "a line: %d", n);
    put(master, "d\177e\n");
    get(master, "d\b \be\r\n");
    CHECK(!ioctl(slave, FIONREAD, &n) && n == 6, "both: %d", n);
    get(slave, "ab\n");
    get(slave, "ce\n");
    put(master, "\004");
    char byte;
    CHECK(read(slave, &byte, 1) == 0, "the end");
    put(master, "x\004");
    get(master, "x");
    CHECK(read(slave, &byte, 1) == 1 && byte == 'x', "a part of a line");
    struct termios t, m;
    CHECK(!tcgetattr(slave, &t), "tcgetattr");
    CHECK(t.c_iflag == (ICRNL | IXON) && t.c_oflag == (OPOST | ONLCR) && t.c_cflag == (B38400 | CS8 | CREAD) &&
        t.c_lflag == 0x8a3b,
          "the first settings: %#x %#x %#x %#x", t.c_iflag, t.c_oflag, t.c_cflag, t.c_lflag);
    t.c_lflag &= ~ECHO;
    CHECK(!tcsetattr(master, TCSANOW, &t) && !tcgetattr(slave, &m) && !(m.c_lflag & ECHO),
        "settings through the master");
    put(master, "quiet\n");
    get(slave, "quiet\n");
    CHECK(events(master, 0) == POLLOUT, "no echo: %#x", events(master, 0));
    put(master, "gone\n");
    CHECK(!tcflush(slave, TCIFLUSH) && events(slave, 0) == POLLOUT, "flushed");
    ANSWERS(0, tcflush(slave, TCOFLUSH));
    CHECK(!tcdrain(slave) && !tcsendbreak(slave, 0) && !ioctl(slave, TIOCOUTQ, &n) && !n, "drained");
    ANSWERS(EINVAL, ioctl(slave, TCFLSH, 3));
    ANSWERS(EINVAL, ioctl(slave, TCXONC, 4));
    // Stopped output waits.
    fcntl(slave, F_SETFL, O_RDWR | O_NONBLOCK);
    CHECK(!tcflow(slave, TCOOFF) && events(slave, 0) == 0, "stopped");
    ANSWERS(EAGAIN, write(slave, "s", 1));
    CHECK(!tcflow(slave, TCOON) && write(slave, "s", 1) == 1, "started");
    get(master, "s");
    CHECK(!tcflow(slave, TCIOFF) && !tcflow(slave, TCION), "flow characters");
    get(master, "\023\021");
}

// `struct termio` of asm/termbits-common.h, which no header of the C library gives beside termios.
struct old_settings {
    unsigned short iflag, oflag, cflag, lflag;
    unsigned char line, cc[8], pad;
};

static void older_settings(void) {
    enum { GET = 0x5405, SET, SET_DRAINED, SET_FLUSHED, GET_LOCKED = 0x5456, SET_LOCKED };
    int master = new_master(), slave = open_slave(O_NOCTTY);
    struct old_settings old, read_back;
    memset(&old, 0x55, sizeof old);
    ANSWERS(0, ioctl(slave, GET, &old));
    CHECK(old.iflag == (ICRNL | IXON) && old.oflag == (OPOST | ONLCR) && old.lflag == 0x8a3b && old.cc[VINTR] == 3 &&
        !old.pad,
          "the first settings: %#x %#x %#x", old.iflag, old.oflag, old.lflag);
    old.lflag &= ~ECHO;
    old.cc[VKILL] = 'k';
    struct termios t;
    ANSWERS(0, ioctl(slave, SET, &old));
    CHECK(!tcgetattr(slave, &t) && !(t.c_lflag & ECHO) && t.c_cc[VKILL] == 'k' && t.c_cc[VSUSP] == 26, "changed");
    old.lflag |= ECHO;
    ANSWERS(0, ioctl(master, SET_DRAINED, &old));
    CHECK(!ioctl(master, GET, &read_back) && !memcmp(&old, &read_back, sizeof old), "through the master");
    put(master, "typed\n");
    get(master, "typed\r\n");
    ANSWERS(0, ioctl(slave, SET_FLUSHED, &old));
    CHECK(events(slave, 0) == POLLOUT, "flushed");
    ANSWERS(EFAULT, ioctl(slave, GET, (void *)1));
    ANSWERS(EFAULT, ioctl(slave, SET, (void *)1));
    // Locked settings keep their values.
    char locked[36];
    memset(locked, 0x55, sizeof locked);
    ANSWERS(0, ioctl(slave, GET_LOCKED, locked));
    for (size_t i = 0; i < sizeof locked; i++)
        CHECK(!locked[i], "byte %zu is %d", i, locked[i]);
    unsigned echo = ECHO;
    memcpy(locked + 12, &echo, sizeof echo);
    locked[17 + VINTR] = 1;
    ANSWERS(0, ioctl(slave, SET_LOCKED, locked));
    CHECK(!tcgetattr(slave, &t) && (t.c_lflag & ECHO), "before");
    t.c_lflag &= ~(ECHO | ECHOE);
    t.c_cc[VINTR] = t.c_cc[VQUIT] = 7;
    CHECK(!tcsetattr(slave, TCSANOW, &t) && !tcgetattr(slave, &t), "set");
    CHECK((t.c_lflag & ECHO) && !(t.c_lflag & ECHOE) && t.c_cc[VINTR] == 3 && t.c_cc[VQUIT] == 7, "locked");
    if (!fork()) {
        CHECK(!setuid(65534), "setuid");
        ANSWERS(EPERM, ioctl(slave, SET_LOCKED, locked));
        ANSWERS(0, ioctl(slave, GET_LOCKED, locked));
        _exit(0);
    }
    int status;
    CHECK(wait(&status) > 0 && !status, "child");
    close(slave);
    close(master);
}

static void raw_reads(void) {
    int master = new_master(), slave = open_slave(O_NOCTTY);
    char bytes[16];
    make_raw(slave, 0, 0);
    CHECK(read(slave, bytes, 4) == 0, "nothing");
    make_raw(slave, 3, 0);
    put(master, "ab");
    CHECK(events(slave, 0) == POLLOUT, "too few");
    put(master, "\003d");
    CHECK(events(slave, 0) == (POLLIN | POLLOUT) && read(slave, bytes, 16) == 4 && bytes[2] == 3, "enough");
    make_raw(slave, 0, 1);
    uint64_t start = now_ns();
    CHECK(read(slave, bytes, 4) == 0 && now_ns() - start >= 80 * MS, "a tenth of a second");
    make_raw(slave, 4, 1);
    put(master, "xy");
    CHECK(read(slave, bytes, 4) == 2, "until a pause");
    fcntl(slave, F_SETFL, O_RDWR | O_NONBLOCK);
    ANSWERS(EAGAIN, read(slave, bytes, 4));
    // A full pair takes no more, and all of it arrives.
    make_raw(slave, 1, 0);
    fcntl(master, F_SETFL, O_RDWR | O_NONBLOCK);
    static char block[1000];
    for (int direction = 0; direction < 2; direction++) {
        int from = direction ? slave : master, to = direction ? master : slave;
        long sent = 0, received = 0, n;
        memset(block, 'a' + direction, sizeof block);
        while ((n = write(from, block, sizeof block)) > 0) sent += n;
        CHECK(n == -1 && errno == EAGAIN && sent >= 4000 && !(events(from, 0) & POLLOUT), "full after %ld", sent);
        while ((n = read(to, block, sizeof block)) > 0) received += n;
        CHECK(received == sent && events(from, 0) & POLLOUT, "%ld of %ld", received, sent);
    }
}

static void *closer(void *fd) {
    until_asleep(0);
    close(*(int *)fd);
    return NULL;
}

static void ends_of_the_master(void) {
    int master = new_master(), slave = open_slave(O_NOCTTY);
    char byte;
    pthread_t thread;
    CHECK(!pthread_create(&thread, NULL, closer, &master), "a thread");
    ANSWERS(EIO, read(slave, &byte, 1));
    pthread_join(thread, NULL);
    CHECK(read(slave, &byte, 1) == 0, "the end");
    ANSWERS(EIO, write(slave, "x", 1));
    struct termios t;
    ANSWERS(EIO, tcgetattr(slave, &t));
    int group = getpid();
    ANSWERS(ENOTTY, ioctl(slave, TIOCSPGRP, &group));
    CHECK(events(slave, 0) == (POLLIN | POLLOUT | POLLERR | POLLHUP), "events %#x", events(slave, 0));
    // A full terminal's writer ends too.
    master = new_master(), slave = open_slave(O_NOCTTY);
    fcntl(slave, F_SETFL, O_RDWR | O_NONBLOCK);
    while (write(slave, "0123456789", 10) > 0) {}
    fcntl(slave, F_SETFL, O_RDWR);
    CHECK(!pthread_create(&thread, NULL, closer, &master), "a thread");
    ANSWERS(EIO, write(slave, "x", 1));
    pthread_join(thread, NULL);
}

static void ends_of_the_slave(void) {
    int master = new_master(), slave;
    char bytes[64];
    fcntl(master, F_SETFL, O_RDWR | O_NONBLOCK);
    ANSWERS(EAGAIN, read(master, bytes, 1));
    CHECK(events(master, 0) == POLLOUT, "no slave yet");
    slave = open_slave(O_NOCTTY);
    int second = open_slave(O_NOCTTY);
    put(slave, "last");
    close(second);
    CHECK(events(master, 0) == (POLLIN | POLLOUT), "one is left");
    close(slave);
    CHECK(events(master, 0) == (POLLIN | POLLOUT | POLLHUP), "events %#x", events(master, 0));
    get(master, "last");
    ANSWERS(EIO, read(master, bytes, 1));
    CHECK(events(master, 0) == (POLLOUT | POLLHUP), "events %#x", events(master, 0));
    // Input waits for the next slave.
    put(master, "kept\n");
    short_sleep(); // Linux moves the bytes in another thread
    get(master, "kept\r\n");
    slave = open_slave(O_NOCTTY);
    ANSWERS(EAGAIN, read(master, bytes, 1));
    get(slave, "kept\n");
    fcntl(master, F_SETFL, O_RDWR);
    pthread_t thread;
    CHECK(!pthread_create(&thread, NULL, closer, &slave), "a thread");
    ANSWERS(EIO, read(master, bytes, 1));
    pthread_join(thread, NULL);
}

static void packets(void) {
    int master = new_master(), slave = open_slave(O_NOCTTY), on = 1, n;
    char bytes[16];
    CHECK(!ioctl(master, TIOCPKT, &on) && !ioctl(master, TIOCGPKT, &n) && n == 1, "packet mode");
    put(slave, "data");
    CHECK(read(master, bytes, 16) == 5 && !memcmp(bytes, "\0data", 5), "a packet");
    tcflush(slave, TCIFLUSH);
    CHECK((events(master, 0) & (POLLPRI | POLLIN)) == (POLLPRI | POLLIN), "a state");
    CHECK(read(master, bytes, 16) == 1 && bytes[0] == TIOCPKT_FLUSHREAD, "flushed: %d", bytes[0]);
    tcflow(slave, TCOOFF);
    CHECK(read(master, bytes, 16) == 1 && bytes[0] == TIOCPKT_STOP, "stopped: %d", bytes[0]);
    tcflow(slave, TCOON);
    CHECK(read(master, bytes, 16) == 1 && bytes[0] == TIOCPKT_START, "started: %d", bytes[0]);
    struct termios t;
    tcgetattr(slave, &t);
    t.c_iflag &= ~IXON;
    tcsetattr(slave, TCSANOW, &t);
    CHECK(read(master, bytes, 16) == 1 && bytes[0] == TIOCPKT_NOSTOP, "no flow: %d", bytes[0]);
    t.c_iflag |= IXON;
    tcsetattr(slave, TCSANOW, &t);
    CHECK(read(master, bytes, 16) == 1 && bytes[0] == TIOCPKT_DOSTOP, "flow: %d", bytes[0]);
}

// ---- sessions ------------------------------------------------------------------------------------------------------

static int the_master;

// In a new session, with the pair's terminal.
static int lead(void) {
    CHECK(setsid() == getpid(), "setsid");
    return open_slave(0);
}

static void opening_claims(void) {
    the_master = new_master();
    CHECK(setsid() == getpid(), "setsid");
    ANSWERS(ENXIO, open("/dev/tty", O_RDWR));
    int slave = open_slave(O_NOCTTY), value;
    ANSWERS(ENOTTY, ioctl(slave, TIOCGSID, &value));
    ANSWERS(ENOTTY, ioctl(the_master, TIOCGSID, &value));
    // A file that is not read does not claim.
    int writer = open(name, O_WRONLY);
    ANSWERS(ENOTTY, ioctl(slave, TIOCGSID, &value));
    close(writer);
    int second = open_slave(0);
    CHECK(!ioctl(slave, TIOCGSID, &value) && value == getpid(), "its session");
    CHECK(!ioctl(slave, TIOCGPGRP, &value) && value == getpgrp(), "its foreground");
    CHECK(!ioctl(the_master, TIOCGPGRP, &value) && value == getpgrp() && !ioctl(the_master, TIOCGSID, &value),
        "by the master");
    ANSWERS(0, ioctl(second, TIOCSCTTY, 0));
    int tty = open("/dev/tty", O_RDWR);
    CHECK(tty >= 0, "/dev/tty");
    put(tty, "here");
    get(the_master, "here");
    struct stat node;
    char text[512] = "";
    int stat_fd = open("/proc/self/stat", O_RDONLY);
    CHECK(read(stat_fd, text, sizeof text - 1) > 0 && !fstat(slave, &node), "stat");
    int group, session, number, foreground;
    CHECK(sscanf(strrchr(text, ')') + 2, "%*c %*d %d %d %d %d", &group, &session, &number, &foreground) == 4, "%s",
        text);
    CHECK(number == (int)(major(node.st_rdev) << 8 | (minor(node.st_rdev) & 0xff) |
        (minor(node.st_rdev) & ~0xff) << 12), "tty_nr %d", number);
    CHECK(session == getpid() && foreground == getpgrp(), "tpgid %d", foreground);
    // Another session cannot have it, but steal it with a right.
    pid_t child = fork();
    if (!child) {
        CHECK(!setpgid(0, 0), "a group");
        ANSWERS(EPERM, ioctl(slave, TIOCSCTTY, 0));
        CHECK(setsid() > 0 || errno == EPERM, "setsid");
        _exit(0);
    }
    CHECK(!ended(child), "the child");
    child = fork();
    if (!child) {
        CHECK(setsid() > 0, "setsid");
        ANSWERS(EPERM, ioctl(slave, TIOCSCTTY, 0));
        ANSWERS(ENOTTY, ioctl(slave, TIOCGPGRP, &value));
        ANSWERS(0, ioctl(slave, TIOCSCTTY, 1));
        CHECK(!ioctl(slave, TIOCGSID, &value) && value == getpid(), "stolen");
        _exit(0);
    }
    signal(SIGHUP, SIG_IGN);
    CHECK(!ended(child), "the thief");
    ANSWERS(ENXIO, open("/dev/tty", O_RDWR));
}

static void giving_up(void) {
    the_master = new_master();
    int slave = lead();
    handle(SIGHUP, 0);
    handle(SIGCONT, 0);
    signal(SIGCONT, SIG_IGN);
    ANSWERS(0, ioctl(slave, TIOCNOTTY));
    CHECK(caught == SIGHUP, "hung up");
    ANSWERS(ENXIO, open("/dev/tty", O_RDWR));
    ANSWERS(ENOTTY, ioctl(slave, TIOCNOTTY));
    put(slave, "still");
    get(the_master, "still");
}

static void keys_send_signals(void) {
    the_master = new_master();
    int slave = lead();
    static const struct {
        char key[2];
        int signal;
    } keys[] = {{"\003", SIGINT}, {"\034", SIGQUIT}, {"\032", SIGTSTP}};
    for (int i = 0; i < 3; i++) {
        handle(keys[i].signal, 0);
        put(the_master, "lost");
        get(the_master, "lost");
        put(the_master, keys[i].key);
        short_sleep();
        CHECK(caught == keys[i].signal, "signal %d", caught);
        char shown[] = {'^', keys[i].key[0] ^ 0x40, 0};
        get(the_master, shown);
    }
    struct winsize size = {.ws_row = 10, .ws_col = 20}, got;
    handle(SIGWINCH, 0);
    CHECK(!ioctl(the_master, TIOCSWINSZ, &size) && caught == SIGWINCH, "resized");
    CHECK(!ioctl(slave, TIOCGWINSZ, &got) && got.ws_row == 10 && got.ws_col == 20, "its size");
    caught = 0;
    CHECK(!ioctl(slave, TIOCSWINSZ, &size) && !caught, "the same size");
    ANSWERS(0, ioctl(the_master, TIOCSIG, SIGINT));
    CHECK(caught == SIGINT, "a signal by the master");
    ANSWERS(EINVAL, ioctl(the_master, TIOCSIG, SIGKILL));
}

static void the_background_is_stopped(void) {
    the_master = new_master();
    int slave = lead(), status;
    pid_t child = fork();
    if (!child) {
        CHECK(!setpgid(0, 0), "a group");
        char line[8];
        // Stopped until it is in the foreground.
        CHECK(read(slave, line, 8) == 3, "a line");
        _exit(0);
    }
    CHECK(waitpid(child, &status, WUNTRACED) == child && WIFSTOPPED(status) && WSTOPSIG(status) == SIGTTIN,
        "SIGTTIN: %#x", status);
    CHECK(!ioctl(slave, TIOCSPGRP, &child), "the foreground");
    put(the_master, "go\n");
    kill(child, SIGCONT);
    CHECK(!ended(child), "it read");
    // This process is in the background now.
    signal(SIGTTOU, SIG_IGN);
    int own = getpgrp(), none = 0x7ffffff;
    ANSWERS(0, ioctl(slave, TIOCSPGRP, &own));
    ANSWERS(ESRCH, ioctl(slave, TIOCSPGRP, &none));
    none = -1;
    ANSWERS(EINVAL, ioctl(slave, TIOCSPGRP, &none));
    none = getppid();
    ANSWERS(EPERM, ioctl(slave, TIOCSPGRP, &none));
    child = fork();
    if (!child) {
        signal(SIGTTOU, SIG_DFL);
        CHECK(!setpgid(0, 0), "a group");
        put(slave, "free\n"); // without TOSTOP
        struct termios t;
        CHECK(!tcgetattr(slave, &t), "tcgetattr");
        t.c_lflag |= TOSTOP;
        CHECK(!tcsetattr(slave, TCSANOW, &t), "tcsetattr");
        put(slave, "then\n");
        _exit(0);
    }
    CHECK(waitpid(child, &status, WUNTRACED) == child && WIFSTOPPED(status) && WSTOPSIG(status) == SIGTTOU,
        "SIGTTOU: %#x", status);
    CHECK(!ioctl(slave, TIOCSPGRP, &child), "the foreground");
    kill(child, SIGCONT);
    CHECK(!ended(child), "it wrote");
    get(the_master, "go\r\nfree\r\nthen\r\n");
    // An orphaned group is not stopped.
    CHECK(!ioctl(slave, TIOCSPGRP, &own), "back");
    child = fork();
    if (!child) {
        pid_t parent = getpid();
        pid_t orphan = fork();
        if (!orphan) {
            setpgid(0, 0);
            while (getppid() == parent) usleep(1000);
            char byte;
            errno = 0;
            ssize_t n = read(slave, &byte, 1);
            int error = errno;
            put(slave, n == -1 && error == EIO ? "EIO" : "???");
            _exit(0);
        }
        _exit(0);
    }
    CHECK(!ended(child), "the parent of an orphan");
    struct termios t;
    tcgetattr(slave, &t);
    t.c_lflag &= ~TOSTOP;
    tcsetattr(slave, TCSANOW, &t);
    get(the_master, "EIO");
}

static void the_leaders_end_hangs_up(void) {
    int out[2];
    the_master = new_master();
    CHECK(!pipe(out), "pipe");
    pid_t leader = fork();
    if (!leader) {
        int slave = lead();
        pid_t other = fork();
        if (!other) {
            sigset_t hup;
            sigemptyset(&hup), sigaddset(&hup, SIGHUP), sigprocmask(SIG_BLOCK, &hup, NULL);
            put(out[1], "r");
            int signal, error = sigwait(&hup, &signal);
            ssize_t none = open("/dev/tty", O_RDWR);
            put(out[1], !error && signal == SIGHUP && none == -1 && errno == ENXIO ? "H" : "?");
            put(slave, "open\n");
            _exit(0);
        }
        char byte;
        while (poll(&(struct pollfd){.fd = out[0], .events = POLLIN}, 1, 10) == 0) {}
        byte = 0;
        _exit(byte);
    }
    CHECK(!ended(leader), "the leader");
    get(out[0], "rH");
    get(the_master, "open\r\n");
}

static void the_masters_end_hangs_up(void) {
    int out[2];
    the_master = new_master();
    CHECK(!pipe(out), "pipe");
    pid_t leader = fork();
    if (!leader) {
        close(the_master);
        int slave = lead();
        sigset_t hup;
        sigemptyset(&hup), sigaddset(&hup, SIGHUP), sigprocmask(SIG_BLOCK, &hup, NULL);
        pid_t other = fork();
        if (!other) {
            // In the foreground, and no leader: the end of the leader notifies it.
            setpgid(0, 0);
            signal(SIGTTOU, SIG_IGN);
            int own = getpgrp(), signal;
            CHECK(!ioctl(slave, TIOCSPGRP, &own), "the foreground");
            put(out[1], "r");
            CHECK(!sigwait(&hup, &signal), "sigwait");
            put(out[1], "o");
            _exit(0);
        }
        int signal;
        CHECK(!sigwait(&hup, &signal), "sigwait");
        ANSWERS(ENXIO, open("/dev/tty", O_RDWR));
        put(out[1], "l");
        short_sleep();
        put(out[1], "x");
        _exit(0);
    }
    get(out[0], "r");
    close(the_master);
    CHECK(!ended(leader), "the leader");
    get(out[0], "lxo");
}

static void waiters_are_woken(void) {
    int master = new_master(), slave = open_slave(O_NOCTTY), set = epoll_create1(0);
    struct epoll_event event = {.events = EPOLLIN | EPOLLET, .data.fd = 1}, got;
    CHECK(!epoll_ctl(set, EPOLL_CTL_ADD, master, &event), "epoll_ctl");
    event.data.fd = 2;
    CHECK(!epoll_ctl(set, EPOLL_CTL_ADD, slave, &event) && epoll_wait(set, &got, 1, 0) == 0, "epoll");
    pid_t child = fork();
    if (!child) {
        until_asleep(getppid());
        put(master, "a\n");
        _exit(0);
    }
    int seen = 0;
    while (seen != 3) {
        CHECK(epoll_wait(set, &got, 1, 5000) == 1, "an event");
        seen |= got.data.fd;
    }
    ended(child);
    get(slave, "a\n");
    get(master, "a\r\n");
    handle(SIGUSR1, 0);
    child = sender(SIGUSR1);
    char byte;
    ANSWERS(EINTR, read(master, &byte, 1));
    ended(child);
    child = sender(SIGUSR1);
    ANSWERS(EINTR, read(slave, &byte, 1));
    ended(child);
}

static void their_number_is_limited(void) {
    int fd = open("/proc/sys/kernel/pty/max", O_RDWR), nr = open("/proc/sys/kernel/pty/nr", O_RDONLY);
    char most[16] = "", count[16] = "", few[16];
    CHECK(fd >= 0 && read(fd, most, 15) > 0 && atoi(most) > 0, "max");
    int first = new_master();
    CHECK(read(nr, count, 15) > 0 && atoi(count) >= 1, "nr %s", count);
    // The number itself is not reached.
    snprintf(few, sizeof few, "%d\n", atoi(count) + 2);
    CHECK(pwrite(fd, few, strlen(few), 0) > 0, "a limit");
    int slave = open_slave(O_NOCTTY), second = open("/dev/ptmx", O_RDWR | O_NOCTTY);
    CHECK(second >= 0, "one more");
    ANSWERS(ENOSPC, open("/dev/ptmx", O_RDWR | O_NOCTTY));
    // A pair counts until both ends are closed.
    close(first);
    ANSWERS(ENOSPC, open("/dev/ptmx", O_RDWR | O_NOCTTY));
    close(slave);
    for (int i = 0; i < 1000 && (first = open("/dev/ptmx", O_RDWR | O_NOCTTY)) < 0; i++) usleep(1000);
    CHECK(first >= 0, "room again");
    CHECK(pwrite(fd, most, strlen(most), 0) > 0, "the limit is back");
    for (int i = 0; i < 2000; i++) {
        int master = new_master();
        slave = open_slave(O_NOCTTY);
        if (i & 1) close(master), close(slave);
        else close(slave), close(master);
    }
}

int main(int argc, char **argv) {
    parse_options(argc, argv, NULL);
    static const struct check checks[] = {
        {"names_and_owners", names_and_owners},
        {"lines_and_echo", lines_and_echo},
        {"older_settings", older_settings},
        {"raw_reads", raw_reads},
        {"ends_of_the_master", ends_of_the_master},
        {"ends_of_the_slave", ends_of_the_slave},
        {"packets", packets},
        {"opening_claims", opening_claims},
        {"giving_up", giving_up},
        {"keys_send_signals", keys_send_signals},
        {"the_background_is_stopped", the_background_is_stopped},
        {"the_leaders_end_hangs_up", the_leaders_end_hangs_up},
        {"the_masters_end_hangs_up", the_masters_end_hangs_up},
        {"waiters_are_woken", waiters_are_woken},
        {"their_number_is_limited", their_number_is_limited},
    };
    run_checks(checks, sizeof checks / sizeof *checks);
    return 0;
}
