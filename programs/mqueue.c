// POSIX message queues: each check holds on Linux and on Quire.
#include "checks.h"
#include <mqueue.h>
#include <poll.h>
#include <pthread.h>
#include <semaphore.h>
#include <sys/socket.h>
#include <sys/syscall.h>

#define NAME "/quire-queue"

static mqd_t made(long messages, long size, int flags) {
    struct mq_attr attr = {.mq_maxmsg = messages, .mq_msgsize = size};
    mq_unlink(NAME);
    mqd_t queue = mq_open(NAME, O_CREAT | O_EXCL | O_RDWR | flags, 0600, &attr);
    CHECK(queue >= 0, "mq_open");
    return queue;
}

static void names_and_sizes(void) {
    mq_unlink(NAME);
    ANSWERS(ENOENT, mq_open(NAME, O_RDWR));
    ANSWERS(ENOENT, mq_unlink(NAME));
    ANSWERS(EINVAL, mq_open(NAME, O_CREAT | O_RDWR, 0600, &(struct mq_attr){.mq_maxmsg = 0, .mq_msgsize = 1}));
    ANSWERS(EINVAL, mq_open(NAME, O_CREAT | O_RDWR, 0600, &(struct mq_attr){.mq_maxmsg = 1, .mq_msgsize = -1}));
    ANSWERS(EINVAL, mq_open(NAME, O_CREAT | O_RDWR, 0600, &(struct mq_attr){.mq_maxmsg = 65537, .mq_msgsize = 1}));
    ANSWERS(EACCES, mq_open("/a/b", O_CREAT | O_RDWR, 0600, NULL));
    ANSWERS(ENOENT, mq_open("/", O_CREAT | O_RDWR, 0600, NULL));
    mqd_t one = mq_open(NAME, O_CREAT | O_EXCL | O_RDWR, 0600, NULL);
    CHECK(one >= 0 && fcntl(one, F_GETFD) == FD_CLOEXEC, "mq_open");
    struct mq_attr attr;
    CHECK(!mq_getattr(one, &attr) && attr.mq_maxmsg == 10 && attr.mq_msgsize == 8192 && !attr.mq_curmsgs &&
        !attr.mq_flags, "attributes");
    ANSWERS(EEXIST, mq_open(NAME, O_CREAT | O_EXCL | O_RDWR, 0600, NULL));
    mqd_t two = mq_open(NAME, O_RDONLY | O_NONBLOCK);
    CHECK(two >= 0 && !mq_send(one, "x", 1, 0) && !mq_getattr(two, &attr) && attr.mq_curmsgs == 1 &&
        attr.mq_flags == O_NONBLOCK, "another");
    ANSWERS(EBADF, mq_send(two, "x", 1, 0));
    ANSWERS(EBADF, mq_send(0, "x", 1, 0));
    ANSWERS(EINVAL, mq_setattr(two, &(struct mq_attr){.mq_flags = 1}, NULL));
    ANSWERS(0, mq_setattr(two, &(struct mq_attr){.mq_flags = 0}, &attr));
    CHECK(attr.mq_flags == O_NONBLOCK && !mq_getattr(two, &attr) && !attr.mq_flags, "mq_setattr");
    // It lives while it is open.
    ANSWERS(0, mq_unlink(NAME));
    ANSWERS(ENOENT, mq_open(NAME, O_RDWR));
    char text[8192];
    CHECK(mq_receive(two, text, sizeof text, NULL) == 1, "receive");
    CHECK(!mq_close(one) && !mq_close(two), "close");
}

static void priorities(void) {
    mqd_t queue = made(5, 100, O_NONBLOCK);
    const unsigned sent[5] = {3, 32767, 0, 3, 7};
    char text[100];
    for (int i = 0; i < 5; i++) {
        text[0] = 'a' + i;
        CHECK(!mq_send(queue, text, i + 1, sent[i]), "send");
    }
    ANSWERS(EAGAIN, mq_send(queue, text, 1, 0));
    ANSWERS(EMSGSIZE, mq_send(queue, text, 101, 0));
    ANSWERS(EINVAL, mq_send(queue, text, 1, 32768));
    ANSWERS(EMSGSIZE, mq_receive(queue, text, 99, NULL));
    const char *order = "beadc";
    for (int i = 0; i < 5; i++) {
        unsigned priority;
        CHECK(mq_receive(queue, text, 100, &priority) == order[i] - 'a' + 1 && text[0] == order[i] &&
            priority == sent[order[i] - 'a'], "message %d: %c", i, text[0]);
    }
    ANSWERS(EAGAIN, mq_receive(queue, text, 100, NULL));
    CHECK(!mq_unlink(NAME), "unlink");
}

static void waits_end(void) {
    mqd_t queue = made(1, 10, 0);
    char text[10];
    struct timespec soon;
    clock_gettime(CLOCK_REALTIME, &soon);
    soon.tv_nsec += 30 * MS;
    if (soon.tv_nsec >= 1000000000) soon.tv_nsec -= 1000000000, soon.tv_sec++;
    ANSWERS(ETIMEDOUT, mq_timedreceive(queue, text, 10, NULL, &soon));
    CHECK(!mq_send(queue, "x", 1, 0), "send");
    ANSWERS(ETIMEDOUT, mq_timedsend(queue, "x", 1, 0, &soon));
    ANSWERS(EINVAL, mq_timedsend(queue, "x", 1, 0, &(struct timespec){1, -1}));
    handle(SIGUSR1, 0);
    pid_t child = sender(SIGUSR1);
    ANSWERS(EINTR, mq_send(queue, "x", 1, 0));
    ended(child);
    struct pollfd polled = {queue, POLLIN | POLLOUT, 0};
    CHECK(poll(&polled, 1, 0) == 1 && polled.revents == POLLIN, "full: %x", polled.revents);
    child = fork();
    if (!child) {
        until_asleep(getppid());
        _exit(mq_receive(queue, text, 10, NULL) != 1);
    }
    CHECK(!mq_send(queue, "y", 1, 0) && !ended(child), "it waits for room");
    CHECK(mq_receive(queue, text, 10, NULL) == 1 && text[0] == 'y', "receive");
    polled.revents = 0;
    CHECK(poll(&polled, 1, 0) == 1 && polled.revents == POLLOUT, "empty: %x", polled.revents);
    child = fork();
    if (!child) {
        until_asleep(getppid());
        _exit(!!mq_send(queue, "z", 1, 0));
    }
    polled.events = POLLIN;
    CHECK(poll(&polled, 1, -1) == 1 && mq_receive(queue, text, 10, NULL) == 1 && text[0] == 'z' && !ended(child),
        "poll");
    CHECK(!mq_unlink(NAME), "unlink");
}

static void notifications(void) {
    mqd_t queue = made(5, 10, O_NONBLOCK);
    char text[10];
    struct sigevent event = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGUSR1, .sigev_value.sival_int = 17};
    handle(SIGUSR1, SA_RESTART);
    ANSWERS(0, mq_notify(queue, &event));
    ANSWERS(EBUSY, mq_notify(queue, &event));
    pid_t child = fork();
    if (!child) _exit(mq_notify(queue, &event) != -1 || errno != EBUSY || mq_send(queue, "x", 1, 0));
    CHECK(!ended(child) && caught == SIGUSR1 && caught_code == SI_MESGQ && caught_pid == child && caught_value == 17,
        "notified: %d %d", caught, caught_code);
    // Once, and only where the queue was empty.
    caught = 0;
    CHECK(!mq_send(queue, "x", 1, 0) && !caught && !mq_notify(queue, &event) && !mq_send(queue, "x", 1, 0) && !caught,
        "not empty");
    while (mq_receive(queue, text, 10, NULL) > 0);
    ANSWERS(0, mq_notify(queue, NULL));
    CHECK(!mq_send(queue, "x", 1, 0) && !caught, "no more");
    event.sigev_notify = 99;
    ANSWERS(EINVAL, mq_notify(queue, &event));
    event.sigev_notify = SIGEV_SIGNAL, event.sigev_signo = 99;
    ANSWERS(EINVAL, mq_notify(queue, &event));
    // Signal 0 is none.
    event.sigev_signo = 0;
    CHECK(!mq_notify(queue, &event) && !mq_notify(queue, NULL), "signal 0");
    ANSWERS(EBADF, mq_notify(0, NULL));
    // The end of a process ends its notification.
    event.sigev_signo = SIGUSR1;
    child = fork();
    if (!child) _exit(!!mq_notify(queue, &event));
    CHECK(!ended(child) && !mq_notify(queue, &event), "its process has ended");
    CHECK(!mq_unlink(NAME), "unlink");
}

static sem_t called;
static int called_with;
static pthread_t caller;

static void call(union sigval value) {
    called_with = value.sival_int, caller = pthread_self();
    sem_post(&called);
}

// The C library's thread reads a netlink socket, into which the kernel puts a cookie.
static void threads(void) {
    mqd_t queue = made(5, 10, O_NONBLOCK);
    struct sigevent event = {.sigev_notify = SIGEV_THREAD, .sigev_notify_function = call, .sigev_value.sival_int = 5};
    CHECK(!sem_init(&called, 0, 0), "sem_init");
    ANSWERS(0, mq_notify(queue, &event));
    ANSWERS(EBUSY, mq_notify(queue, &event));
    CHECK(!mq_send(queue, "x", 1, 0) && !sem_wait(&called) && called_with == 5, "called with %d", called_with);
    CHECK(!pthread_equal(caller, pthread_self()), "the same thread");
    char text[10], cookie[32], got[64];
    CHECK(mq_receive(queue, text, 10, NULL) == 1, "receive");
    ANSWERS(0, mq_notify(queue, &event));
    ANSWERS(0, mq_notify(queue, NULL));
    // The same by hand.
    int fd = socket(AF_NETLINK, SOCK_RAW | SOCK_NONBLOCK, 0), other = socket(AF_UNIX, SOCK_STREAM, 0);
    memset(cookie, 'c', sizeof cookie);
    struct sigevent raw = {.sigev_notify = SIGEV_THREAD, .sigev_signo = fd, .sigev_value.sival_ptr = cookie};
    ANSWERS(0, syscall(SYS_mq_notify, queue, &raw));
    ANSWERS(EAGAIN, recv(fd, got, sizeof got, 0));
    CHECK(!mq_send(queue, "x", 1, 0) && recv(fd, got, sizeof got, 0) == 32, "a cookie");
    CHECK(!memcmp(got, cookie, 31) && got[31] == 1, "woken: %d", got[31]);
    ANSWERS(EAGAIN, recv(fd, got, sizeof got, 0));
    ANSWERS(0, syscall(SYS_mq_notify, queue, &raw));
    ANSWERS(0, mq_notify(queue, NULL));
    CHECK(recv(fd, got, sizeof got, 0) == 32 && got[31] == 2, "removed: %d", got[31]);
    // The end of the descriptor takes the notification back, after the socket's descriptor is closed too.
    int second = dup(queue);
    ANSWERS(0, syscall(SYS_mq_notify, queue, &raw));
    CHECK(second >= 0 && !close(second) && recv(fd, got, sizeof got, 0) == 32 && got[31] == 2, "closed: %d", got[31]);
    ANSWERS(0, syscall(SYS_mq_notify, queue, &raw));
    CHECK(!close(fd) && mq_receive(queue, text, 10, NULL) == 1 && !mq_send(queue, "x", 1, 0), "a closed socket");
    raw.sigev_signo = other;
    ANSWERS(EINVAL, syscall(SYS_mq_notify, queue, &raw));
    raw.sigev_signo = 99;
    ANSWERS(EBADF, syscall(SYS_mq_notify, queue, &raw));
    int file = open("/dev/null", O_RDONLY);
    raw.sigev_signo = file;
    ANSWERS(ENOTSOCK, syscall(SYS_mq_notify, queue, &raw));
    raw.sigev_value.sival_ptr = (void *)8;
    ANSWERS(EFAULT, syscall(SYS_mq_notify, queue, &raw));
    CHECK(!close(other) && !close(file) && !mq_unlink(NAME), "end");
}

static void rights_and_limits(void) {
    mqd_t queue = made(1, 1, 0);
    CHECK(queue >= 0, "mq_open");
    pid_t child = fork();
    if (!child) {
        CHECK(!setresgid(1000, 1000, 1000) && !setresuid(1000, 1000, 1000), "ids");
        ANSWERS(EACCES, mq_open(NAME, O_RDONLY));
        CHECK(mq_unlink(NAME) == -1 && (errno == EACCES || errno == EPERM), "unlink: %d", errno);
        ANSWERS(EINVAL, mq_open("/own", O_CREAT | O_RDWR, 0600, &(struct mq_attr){.mq_maxmsg = 11, .mq_msgsize = 1}));
        ANSWERS(EINVAL, mq_open("/own", O_CREAT | O_RDWR, 0600, &(struct mq_attr){.mq_maxmsg = 1, .mq_msgsize = 8193}));
        struct rlimit limit = {8192, 8192};
        setrlimit(RLIMIT_MSGQUEUE, &limit);
        ANSWERS(EMFILE, mq_open("/own", O_CREAT | O_RDWR, 0600, &(struct mq_attr){.mq_maxmsg = 1, .mq_msgsize = 8192}));
        mqd_t own = mq_open("/own", O_CREAT | O_WRONLY, 0400, &(struct mq_attr){.mq_maxmsg = 1, .mq_msgsize = 4000});
        CHECK(own >= 0 && !mq_send(own, "x", 1, 0), "own");
        ANSWERS(EACCES, mq_open("/own", O_WRONLY));
        CHECK(!mq_unlink("/own"), "unlink");
        _exit(0);
    }
    CHECK(!ended(child) && !mq_unlink(NAME), "child");
}

static void many_at_once(void) {
    mqd_t queue = made(10, 8, 0);
    pid_t children[4];
    for (int i = 0; i < 4; i++) {
        children[i] = fork();
        if (children[i]) continue;
        for (long n = 0; n < 2000; n++) {
            long got = n;
            if (i % 2) CHECK(!mq_send(queue, (char *)&got, 8, n % 3), "send");
            else CHECK(mq_receive(queue, (char *)&got, 8, NULL) == 8, "receive");
        }
        _exit(0);
    }
    for (int i = 0; i < 4; i++) CHECK(!ended(children[i]), "child");
    struct mq_attr attr;
    CHECK(!mq_getattr(queue, &attr) && !attr.mq_curmsgs && !mq_unlink(NAME), "left");
}

static const struct check checks[] = {
    {"names_and_sizes", names_and_sizes},
    {"priorities", priorities},
    {"waits_end", waits_end},
    {"notifications", notifications},
    {"threads", threads},
    {"rights_and_limits", rights_and_limits},
    {"many_at_once", many_at_once},
};

int main(int argc, char **argv) {
    parse_options(argc, argv, NULL);
    run_checks(checks, sizeof checks / sizeof *checks);
    return 0;
}
