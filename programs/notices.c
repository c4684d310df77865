// Signal files and process files, checked one by one; the same on Linux and on Quire.
#include "checks.h"
#include <poll.h>
#include <sys/epoll.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/syscall.h>

static sigset_t set_of(int a, int b) {
    sigset_t set;
    sigemptyset(&set);
    if (a) sigaddset(&set, a);
    if (b) sigaddset(&set, b);
    return set;
}

// A signal file for the two signals, which the caller blocks.
static int signal_file(int a, int b, int flags) {
    sigset_t set = set_of(a, b);
    CHECK(!sigprocmask(SIG_BLOCK, &set, NULL), "sigprocmask");
    int file = signalfd(-1, &set, flags);
    CHECK(file >= 0, "signalfd");
    return file;
}

static int is_ready(int file, int wait) {
    struct pollfd one = {.fd = file, .events = POLLIN};
    int n = poll(&one, 1, wait);
    CHECK(n >= 0 && (!n || one.revents == POLLIN), "poll: %d, %#x", n, one.revents);
    return n;
}

static void signals_are_read_with_their_details(void) {
    int file = signal_file(SIGUSR1, SIGRTMIN, SFD_NONBLOCK | SFD_CLOEXEC);
    CHECK(fcntl(file, F_GETFD) == FD_CLOEXEC && fcntl(file, F_GETFL) == (O_RDWR | O_NONBLOCK), "flags %#x",
        fcntl(file, F_GETFL));
    struct signalfd_siginfo info[4];
    ANSWERS(EAGAIN, read(file, info, sizeof info));
    CHECK(!is_ready(file, 0), "not ready");
    kill(getpid(), SIGUSR1);
    CHECK(is_ready(file, 0), "ready");
    union sigval value = {.sival_int = 77};
    CHECK(!sigqueue(getpid(), SIGRTMIN, value) && !sigqueue(getpid(), SIGRTMIN, value), "sigqueue");
    memset(info, 0xff, sizeof info);
    CHECK(read(file, info, 3 * 128 + 5) == 3 * 128, "three");
    CHECK(info[0].ssi_signo == SIGUSR1 && info[0].ssi_code == SI_USER && info[0].ssi_pid == (unsigned)getpid() &&
        info[0].ssi_uid == getuid(),
          "a kill");
    CHECK(info[1].ssi_signo == (unsigned)SIGRTMIN && info[1].ssi_code == SI_QUEUE && info[1].ssi_int == 77, "a value");
    for (int i = 0; i < 3; i++)
        for (size_t at = 104; at < 128; at++) CHECK(!((char *)&info[i])[at], "padding");
    ANSWERS(EAGAIN, read(file, info, sizeof info));
    ANSWERS(EINVAL, read(file, info, 127));
    ANSWERS(EINVAL, write(file, info, 128));
    kill(getpid(), SIGUSR1);
    ANSWERS(EFAULT, syscall(SYS_read, file, 8, 128));
}

static void arguments_are_checked(void) {
    sigset_t set = set_of(SIGUSR1, SIGKILL), later = set_of(SIGUSR2, SIGUSR1);
    ANSWERS(EINVAL, syscall(SYS_signalfd4, -1, &set, 4, 0));
    ANSWERS(EINVAL, syscall(SYS_signalfd4, -1, &set, 8, 1));
    ANSWERS(EFAULT, syscall(SYS_signalfd4, -1, 8, 8, 0));
    ANSWERS(EBADF, syscall(SYS_signalfd4, 99, &set, 8, 0));
    ANSWERS(EINVAL, syscall(SYS_signalfd4, 0, &set, 8, 0));
    int file = syscall(SYS_signalfd, -1, &set, 8);
    CHECK(file >= 0, "signalfd");
    sigprocmask(SIG_BLOCK, &later, NULL);
    kill(getpid(), SIGUSR2);
    CHECK(!is_ready(file, 0), "another signal");
    CHECK(syscall(SYS_signalfd4, file, &later, 8, 0) == file, "changed");
    CHECK(is_ready(file, 0), "its signal");
}

static int the_file;
static void *change(void *unused) {
    (void)unused;
    until_asleep(0);
    sigset_t later = set_of(SIGUSR2, 0);
    CHECK(signalfd(the_file, &later, 0) == the_file, "changed");
    return NULL;
}

static void readers_are_woken(void) {
    the_file = signal_file(SIGUSR1, SIGUSR2, 0);
    struct signalfd_siginfo info;
    pid_t child = sender(SIGUSR1);
    CHECK(read(the_file, &info, sizeof info) == 128 && info.ssi_signo == SIGUSR1 && info.ssi_pid == (unsigned)child,
        "a read");
    ended(child);
    child = sender(SIGUSR2);
    CHECK(is_ready(the_file, 5000), "a poll");
    ended(child);
    CHECK(read(the_file, &info, sizeof info) == 128, "read");
    int epoll = epoll_create1(0);
    struct epoll_event event = {.events = EPOLLIN}, got;
    CHECK(!epoll_ctl(epoll, EPOLL_CTL_ADD, the_file, &event) && epoll_wait(epoll, &got, 1, 0) == 0, "epoll");
    child = sender(SIGUSR1);
    CHECK(epoll_wait(epoll, &got, 1, 5000) == 1, "an event");
    ended(child);
    CHECK(read(the_file, &info, sizeof info) == 128 && epoll_wait(epoll, &got, 1, 0) == 0, "no more");
    // A changed set wakes a reader.
    sigset_t first = set_of(SIGUSR1, 0);
    CHECK(signalfd(the_file, &first, 0) == the_file, "one signal");
    kill(getpid(), SIGUSR2);
    pthread_t thread;
    CHECK(!pthread_create(&thread, NULL, change, NULL), "a thread");
    CHECK(read(the_file, &info, sizeof info) == 128 && info.ssi_signo == SIGUSR2, "the new set");
    pthread_join(thread, NULL);
}

static void a_child_reads_its_own_signals(void) {
    int file = signal_file(SIGUSR1, SIGCHLD, 0);
    struct signalfd_siginfo info;
    kill(getpid(), SIGUSR1);
    pid_t parent = getpid(), child = fork();
    if (!child) {
        CHECK(!is_ready(file, 0), "its parent's signal");
        pid_t grandchild = sender(SIGUSR1);
        CHECK(read(file, &info, sizeof info) == 128 && info.ssi_pid == (unsigned)grandchild, "its own");
        CHECK(getppid() == parent, "its parent");
        _exit(3);
    }
    siginfo_t unused;
    CHECK(!waitid(P_PID, child, &unused, WEXITED | WNOWAIT), "waitid");
    CHECK(read(file, &info, sizeof info) == 128 && info.ssi_signo == SIGUSR1, "its own signal");
    CHECK(read(file, &info, sizeof info) == 128 && info.ssi_signo == SIGCHLD && info.ssi_pid == (unsigned)child &&
        info.ssi_status == 3,
          "the child's end: %u %u", info.ssi_signo, info.ssi_status);
    CHECK(ended(child) == 3 << 8, "its status");
}

static void a_received_file_wakes_its_receiver(void) {
    int pair[2];
    CHECK(!socketpair(AF_UNIX, SOCK_STREAM, 0, pair), "socketpair");
    pid_t receiver = fork();
    char room[CMSG_SPACE(sizeof(int))] = {0}, byte = 0;
    struct iovec one = {&byte, 1};
    struct msghdr message = {.msg_iov = &one, .msg_iovlen = 1, .msg_control = room, .msg_controllen = sizeof room};
    if (!receiver) {
        sigset_t set = set_of(SIGUSR1, 0);
        sigprocmask(SIG_BLOCK, &set, NULL);
        CHECK(recvmsg(pair[1], &message, 0) == 1, "recvmsg");
        int file;
        memcpy(&file, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof file);
        pid_t child = sender(SIGUSR1);
        CHECK(is_ready(file, 5000), "woken");
        ended(child);
        _exit(0);
    }
    int file = signal_file(SIGUSR1, 0, 0);
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    *header = (struct cmsghdr){.cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS, .cmsg_len = CMSG_LEN(sizeof file)};
    memcpy(CMSG_DATA(header), &file, sizeof file);
    CHECK(sendmsg(pair[0], &message, 0) == 1, "sendmsg");
    CHECK(!ended(receiver), "the receiver");
}

static void a_waiting_reader_is_interrupted(void) {
    int file = signal_file(SIGUSR1, 0, 0);
    handle(SIGUSR2, 0);
    struct signalfd_siginfo info;
    pid_t child = sender(SIGUSR2);
    ANSWERS(EINTR, read(file, &info, sizeof info));
    CHECK(caught == SIGUSR2, "handled");
    ended(child);
}

// ---- process files -------------------------------------------------------------------------------------------------

#ifndef SYS_pidfd_getfd
#define SYS_pidfd_getfd 438
#endif
enum { PID_FD = 3, PIDFD = 0x1000 };

static int process_file(pid_t pid, int flags) { return syscall(SYS_pidfd_open, pid, flags); }
static int send_by(int file, int signal, siginfo_t *info, int flags) {
    return syscall(SYS_pidfd_send_signal, file, signal, info, flags);
}

static pid_t sleeper(void) {
    pid_t child = fork();
    CHECK(child >= 0, "fork");
    if (!child)
        for (;;) pause();
    return child;
}

static int events(int file, int wait) {
    struct pollfd one = {.fd = file, .events = POLLIN | POLLOUT};
    CHECK(poll(&one, 1, wait) >= 0, "poll");
    return one.revents;
}

static void *other_thread(void *tid) {
    *(pid_t *)tid = syscall(SYS_gettid);
    pause();
    return NULL;
}

static void the_end_of_a_process_is_announced(void) {
    pid_t child = sleeper();
    int file = process_file(child, 0), set = epoll_create1(0);
    CHECK(file >= 0 && fcntl(file, F_GETFD) == FD_CLOEXEC && fcntl(file, F_GETFL) == O_RDWR, "a file");
    struct epoll_event event = {.events = EPOLLIN}, got;
    CHECK(!epoll_ctl(set, EPOLL_CTL_ADD, file, &event) && epoll_wait(set, &got, 1, 0) == 0 && !events(file, 0),
        "alive");
    char byte;
    ANSWERS(EINVAL, read(file, &byte, 1));
    ANSWERS(EINVAL, write(file, &byte, 1));
    pid_t killer = fork();
    if (!killer) {
        until_asleep(getppid());
        ANSWERS(0, send_by(file, SIGKILL, NULL, 0));
        _exit(0);
    }
    CHECK(epoll_wait(set, &got, 1, 5000) == 1 && events(file, 0) == POLLIN, "ended: %#x", events(file, 0));
    CHECK(!ended(killer), "the killer");
    ANSWERS(0, send_by(file, SIGUSR1, NULL, 0)); // to a zombie
    int second = process_file(child, 0);
    CHECK(second >= 0 && events(second, 0) == POLLIN, "of a zombie");
    siginfo_t info;
    CHECK(!waitid(PID_FD, file, &info, WEXITED | WNOWAIT) && info.si_pid == child && info.si_status == SIGKILL,
        "it stays");
    CHECK(!waitid(PID_FD, file, &info, WEXITED) && info.si_pid == child && info.si_code == CLD_KILLED, "it is reaped");
    CHECK(events(file, 0) == (POLLIN | POLLHUP), "reaped: %#x", events(file, 0));
    ANSWERS(ECHILD, waitid(PID_FD, file, &info, WEXITED));
    ANSWERS(ESRCH, send_by(file, 0, NULL, 0));
    ANSWERS(ESRCH, process_file(child, 0));
    ANSWERS(ESRCH, syscall(SYS_pidfd_getfd, file, 0, 0));
}

static void process_files_are_checked(void) {
    ANSWERS(EINVAL, process_file(0, 0));
    ANSWERS(EINVAL, process_file(-1, 0));
    ANSWERS(EINVAL, process_file(getpid(), 1));
    ANSWERS(ESRCH, process_file(0x3fffffff, 0));
    ANSWERS(EBADF, send_by(0, 0, NULL, 0));
    ANSWERS(EBADF, send_by(99, 0, NULL, 0));
    siginfo_t info = {.si_signo = SIGUSR1, .si_code = SI_QUEUE};
    ANSWERS(EBADF, waitid(PID_FD, 0, &info, WEXITED));
    ANSWERS(EINVAL, waitid(PID_FD, -1, &info, WEXITED));
    pid_t child = sleeper();
    int file = process_file(child, O_NONBLOCK), own = process_file(getpid(), 0);
    CHECK(file >= 0 && fcntl(file, F_GETFL) == (O_RDWR | O_NONBLOCK), "nonblocking");
    ANSWERS(EAGAIN, waitid(PID_FD, file, &info, WEXITED));
    info = (siginfo_t){.si_pid = 7};
    CHECK(!waitid(PID_FD, file, &info, WEXITED | WNOHANG) && info.si_pid == 0, "nothing");
    ANSWERS(ECHILD, waitid(PID_FD, own, &info, WEXITED));
    ANSWERS(EINVAL, send_by(file, 65, NULL, 0));
    ANSWERS(EINVAL, send_by(file, 0, NULL, 3));
    ANSWERS(EINVAL, send_by(file, 0, NULL, 8));
    info = (siginfo_t){.si_signo = SIGUSR1, .si_code = SI_USER};
    ANSWERS(EPERM, send_by(file, SIGUSR1, &info, 0));
    ANSWERS(EINVAL, send_by(file, SIGUSR2, &info, 0));
    ANSWERS(EFAULT, send_by(file, SIGUSR2, (void *)8, 0));
    handle(SIGUSR1, 0);
    info.si_value.sival_int = 9;
    info.si_code = SI_QUEUE;
    ANSWERS(0, send_by(own, SIGUSR1, &info, 0));
    CHECK(caught == SIGUSR1 && caught_code == SI_QUEUE && caught_value == 9, "with a value");
    CHECK(!kill(child, SIGKILL) && ended(child) == SIGKILL, "killed");
    CHECK(!setuid(1000) || 1, "a user");
    ANSWERS(EPERM, send_by(process_file(1, 0), 0, NULL, 0));
    ANSWERS(EPERM, syscall(SYS_pidfd_getfd, process_file(1, 0), 0, 0));
    // A directory of /proc stands for its process, and no other directory for any.
    int directory = open("/proc/self", O_RDONLY | O_DIRECTORY), tasks = open("/proc/self/task", O_RDONLY | O_DIRECTORY);
    CHECK(directory >= 0 && tasks >= 0, "open");
    CHECK(!send_by(directory, 0, NULL, 0), "a directory");
    CHECK(send_by(tasks, 0, NULL, 0) < 0 && errno == EBADF, "a directory of threads");
    close(directory);
    close(tasks);
}

static void files_are_taken_from_a_process(void) {
    int ends[2], ready[2];
    CHECK(!pipe(ends) && !pipe(ready), "pipe");
    pid_t child = fork();
    if (!child) {
        int hidden = memfd_create("hidden", 0);
        CHECK(write(hidden, "found", 5) == 5 && dup2(hidden, 77) == 77 && write(ready[1], "r", 1) == 1, "a file");
        for (;;) pause();
    }
    char byte, text[8] = "";
    CHECK(read(ready[0], &byte, 1) == 1, "ready");
    int file = process_file(child, 0);
    ANSWERS(EBADF, syscall(SYS_pidfd_getfd, file, 78, 0));
    ANSWERS(EBADF, syscall(SYS_pidfd_getfd, file, -1, 0));
    ANSWERS(EINVAL, syscall(SYS_pidfd_getfd, file, 77, 1));
    ANSWERS(EBADF, syscall(SYS_pidfd_getfd, 0, 77, 0));
    int taken = syscall(SYS_pidfd_getfd, file, 77, 0);
    CHECK(taken >= 0 && fcntl(taken, F_GETFD) == FD_CLOEXEC && pread(taken, text, 5, 0) == 5 && !strcmp(text, "found"),
        "its file");
    kill(child, SIGKILL);
}

static void clones_come_with_a_file(void) {
    int file = -1;
    pid_t child = syscall(SYS_clone, PIDFD | SIGCHLD, 0, &file, 0, 0);
    if (!child) _exit(5);
    siginfo_t info;
    CHECK(child > 0 && file >= 0 && fcntl(file, F_GETFD) == FD_CLOEXEC, "clone");
    CHECK(!waitid(PID_FD, file, &info, WEXITED) && info.si_pid == child && info.si_status == 5, "its end");
    ANSWERS(EINVAL, syscall(SYS_clone, PIDFD | 0x100000 | SIGCHLD, 0, &file, 0, 0));
    ANSWERS(EINVAL, syscall(SYS_clone, PIDFD | 0x400000 | SIGCHLD, 0, &file, 0, 0));
    ANSWERS(EFAULT, syscall(SYS_clone, PIDFD | SIGCHLD, 0, 8, 0, 0));
    uint64_t args[8] = {PIDFD, (uintptr_t)&file, 0, 0, SIGCHLD, 0, 0, 0};
    child = syscall(435, args, sizeof args);
    if (!child) _exit(6);
    CHECK(child > 0 && !waitid(PID_FD, file, &info, WEXITED) && info.si_status == 6, "clone3");
    ANSWERS(ECHILD, waitid(P_ALL, 0, &info, WEXITED));
    // Parents that ignore the end have none to wait for.
    signal(SIGCHLD, SIG_IGN);
    child = syscall(SYS_clone, PIDFD | SIGCHLD, 0, &file, 0, 0);
    if (!child) _exit(0);
    CHECK(events(file, 5000) & POLLIN, "its end");
    pid_t tid = 0;
    pthread_t thread;
    pthread_create(&thread, NULL, other_thread, &tid);
    while (!*(volatile pid_t *)&tid) usleep(1000);
    errno = 0;
    CHECK(process_file(tid, 0) == -1 && (errno == EINVAL || errno == ENOENT), "a thread: %d", errno);
}

int main(int argc, char **argv) {
    parse_options(argc, argv, NULL);
    static const struct check checks[] = {
        {"signals are read with their details", signals_are_read_with_their_details},
        {"arguments of signalfd are checked", arguments_are_checked},
        {"readers of signals are woken", readers_are_woken},
        {"a child reads its own signals", a_child_reads_its_own_signals},
        {"a received file wakes its receiver", a_received_file_wakes_its_receiver},
        {"a waiting reader of signals is interrupted", a_waiting_reader_is_interrupted},
        {"the end of a process is announced", the_end_of_a_process_is_announced},
        {"process files are checked", process_files_are_checked},
        {"files are taken from a process", files_are_taken_from_a_process},
        {"clones come with a file", clones_come_with_a_file},
    };
    run_checks(checks, sizeof checks / sizeof *checks);
    return 0;
}
