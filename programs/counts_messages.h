// Pipes, sockets, readiness, and System V's messages.
#pragma once
#include "counts.h"
#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/ipc.h>
#include <sys/msg.h>
#include <sys/select.h>
#include <sys/sem.h>
#include <sys/shm.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <sys/un.h>

// A process that sends back each byte that it reads, until the other end closes.
static pid_t echo(int in, int out, int theirs, int also) {
    pid_t child = fork();
    CHECK(child >= 0, "fork");
    if (child) return child;
    char byte;
    close(theirs);
    if (also >= 0) close(also);
    while (read(in, &byte, 1) == 1) CHECK(write(out, &byte, 1) == 1, "write");
    _exit(0);
}
static void round_trips(int in, int out, long times) {
    char byte = 1;
    COUNT(16, times, CHECK(write(out, &byte, 1) == 1 && read(in, &byte, 1) == 1, "a round trip"));
}

static void pipe_round_trip(void) {
    int there[2], back[2];
    CHECK(!pipe(there) && !pipe(back), "pipe");
    pid_t child = echo(there[0], back[1], there[1], back[0]);
    close(there[0]);
    round_trips(back[0], there[1], 500);
    close(there[1]);
    reap(child);
}
static void pipe_alone(void) {
    int ends[2];
    CHECK(!pipe(ends), "pipe");
    round_trips(ends[0], ends[1], 1000);
}
static void pipe_64KiB(void) {
    int ends[2];
    static char data[64 << 10];
    CHECK(!pipe(ends), "pipe");
    COUNT(4, 100, CHECK(write(ends[1], data, sizeof data) == sizeof data, "write");
          for (size_t got = 0; got < sizeof data;) got += read(ends[0], data, sizeof data));
}
static void pipe_create(void) {
    COUNT(16, 300, int ends[2]; CHECK(!pipe(ends), "pipe"); close(ends[0]); close(ends[1]));
}

static void socket_pair(int type) {
    int ends[2];
    CHECK(!socketpair(AF_UNIX, type, 0, ends), "socketpair");
    pid_t child = echo(ends[1], ends[1], ends[0], -1);
    close(ends[1]);
    round_trips(ends[0], ends[0], 300);
    kill(child, SIGKILL);
}
static void unix_round_trip(void) { socket_pair(SOCK_STREAM); }
static void unix_datagram_round_trip(void) { socket_pair(SOCK_DGRAM); }
static void unix_alone(void) {
    int ends[2];
    CHECK(!socketpair(AF_UNIX, SOCK_STREAM, 0, ends), "socketpair");
    round_trips(ends[0], ends[1], 500);
}
static void socket_create(void) {
    COUNT(16, 300, int ends[2]; CHECK(!socketpair(AF_UNIX, SOCK_STREAM, 0, ends), "socketpair"); close(ends[0]);
        close(ends[1]));
}
static void send_descriptor(void) {
    int ends[2], file = resident_file(PAGE);
    CHECK(!socketpair(AF_UNIX, SOCK_STREAM, 0, ends), "socketpair");
    char byte = 1, room[CMSG_SPACE(sizeof(int))];
    COUNT(16, 300,
          struct iovec part = {&byte, 1};
          struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = room,
              .msg_controllen = sizeof room};
          struct cmsghdr *head = CMSG_FIRSTHDR(&message); head->cmsg_level = SOL_SOCKET; head->cmsg_type = SCM_RIGHTS;
          head->cmsg_len = CMSG_LEN(sizeof(int)); memcpy(CMSG_DATA(head), &file, sizeof file);
          CHECK(sendmsg(ends[0], &message, 0) == 1, "sendmsg");
          message.msg_controllen = sizeof room; CHECK(recvmsg(ends[1], &message, 0) == 1, "recvmsg");
          int got; memcpy(&got, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof got); close(got));
}

static int listener(struct sockaddr_in *at) {
    socklen_t length = sizeof *at;
    *at = (struct sockaddr_in){.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int socket_ = socket(AF_INET, SOCK_STREAM, 0);
    CHECK(socket_ >= 0 && !bind(socket_, (void *)at, sizeof *at) && !listen(socket_, 16), "a listener");
    CHECK(!getsockname(socket_, (void *)at, &length), "getsockname");
    return socket_;
}
static void tcp_pair(int ends[2]) {
    struct sockaddr_in at;
    int one = 1, waits = listener(&at);
    ends[0] = socket(AF_INET, SOCK_STREAM, 0);
    CHECK(!connect(ends[0], (void *)&at, sizeof at), "connect");
    ends[1] = accept(waits, NULL, NULL);
    CHECK(ends[1] >= 0, "accept");
    for (int i = 0; i < 2; i++) setsockopt(ends[i], IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
}
static void tcp_round_trip(void) {
    int ends[2];
    tcp_pair(ends);
    pid_t child = echo(ends[1], ends[1], ends[0], -1);
    close(ends[1]);
    round_trips(ends[0], ends[0], 300);
    kill(child, SIGKILL);
}
static void tcp_alone(void) {
    int ends[2];
    tcp_pair(ends);
    round_trips(ends[0], ends[1], 500);
}
static void tcp_connect(void) {
    struct sockaddr_in at;
    int waits = listener(&at);
    COUNT(16, 100, int out = socket(AF_INET, SOCK_STREAM, 0); CHECK(!connect(out, (void *)&at, sizeof at), "connect");
          int in = accept(waits, NULL, NULL); close(in); close(out));
}
static void udp_alone(void) {
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof at;
    int in = socket(AF_INET, SOCK_DGRAM, 0);
    CHECK(!bind(in, (void *)&at, sizeof at) && !getsockname(in, (void *)&at, &length), "bind");
    char byte = 1;
    COUNT(16, 500, CHECK(sendto(in, &byte, 1, 0, (void *)&at, sizeof at) == 1 && recv(in, &byte, 1, 0) == 1, "udp"));
}
static void receive_nothing(void) {
    int ends[2];
    char byte;
    CHECK(!socketpair(AF_UNIX, SOCK_STREAM, 0, ends), "socketpair");
    COUNT(16, 1000, CHECK(recv(ends[0], &byte, 1, MSG_DONTWAIT) < 0, "recv"));
}
static void socket_option(void) {
    int ends[2], value;
    socklen_t length = sizeof value;
    CHECK(!socketpair(AF_UNIX, SOCK_STREAM, 0, ends), "socketpair");
    COUNT(16, 1000, CHECK(!getsockopt(ends[0], SOL_SOCKET, SO_ERROR, &value, &length), "getsockopt"));
}

// ---- readiness -----------------------------------------------------------------------------------------------------

static void poll_ready(void) {
    int file = eventfd(1, 0);
    struct pollfd one = {file, POLLIN, 0};
    COUNT(16, 1000, CHECK(poll(&one, 1, -1) == 1, "poll"));
}
static void poll_64(void) {
    struct pollfd all[64];
    for (int i = 0; i < 64; i++) all[i] = (struct pollfd){eventfd(i == 63, 0), POLLIN, 0};
    COUNT(16, 200, CHECK(poll(all, 64, -1) == 1, "poll"));
}
static void select_64(void) {
    int last = 0;
    for (int i = 0; i < 64; i++) last = eventfd(1, 0);
    COUNT(16, 200, fd_set set; FD_ZERO(&set); for (int f = last - 63; f <= last; f++) FD_SET(f, &set);
          CHECK(select(last + 1, &set, NULL, NULL, NULL) == 64, "select"));
}
static int epoll_of(int file) {
    int set = epoll_create1(0);
    struct epoll_event event = {.events = EPOLLIN};
    CHECK(set >= 0 && !epoll_ctl(set, EPOLL_CTL_ADD, file, &event), "epoll");
    return set;
}
static void epoll_ready(void) {
    int set = epoll_of(eventfd(1, 0));
    struct epoll_event event;
    COUNT(16, 1000, CHECK(epoll_wait(set, &event, 1, -1) == 1, "epoll_wait"));
}
static void epoll_nothing(void) {
    int set = epoll_of(eventfd(0, 0));
    struct epoll_event event;
    COUNT(16, 1000, CHECK(!epoll_wait(set, &event, 1, 0), "epoll_wait"));
}
static void epoll_add_remove(void) {
    int file = eventfd(0, 0), set = epoll_create1(0);
    struct epoll_event event = {.events = EPOLLIN};
    COUNT(16, 500, CHECK(!epoll_ctl(set, EPOLL_CTL_ADD, file, &event) && !epoll_ctl(set, EPOLL_CTL_DEL, file, NULL),
        "epoll_ctl"));
}
// A byte that wakes an epoll set of another process, which answers.
static void epoll_round_trip(void) {
    int there[2], back[2];
    CHECK(!pipe(there) && !pipe(back), "pipe");
    pid_t child = fork();
    if (!child) {
        int set = epoll_of(there[0]);
        struct epoll_event event;
        char byte;
        for (;;) {
            epoll_wait(set, &event, 1, -1);
            if (read(there[0], &byte, 1) != 1 || write(back[1], &byte, 1) != 1) _exit(0);
        }
    }
    round_trips(back[0], there[1], 300);
    kill(child, SIGKILL);
}
static void event_counter(void) {
    int file = eventfd(0, 0);
    uint64_t value = 1;
    COUNT(16, 1000, CHECK(write(file, &value, 8) == 8 && read(file, &value, 8) == 8, "eventfd"));
}
static void timer_file(void) {
    int file = timerfd_create(CLOCK_MONOTONIC, 0);
    struct itimerspec later = {{0, 0}, {1000, 0}};
    COUNT(16, 500, later.it_value.tv_sec = 1000 + i % 7; CHECK(!timerfd_settime(file, 0, &later, NULL),
        "timerfd_settime"));
}
static void signal_file(void) {
    sigset_t set;
    struct signalfd_siginfo info;
    sigemptyset(&set);
    sigaddset(&set, SIGUSR1);
    sigprocmask(SIG_BLOCK, &set, NULL);
    int file = signalfd(-1, &set, 0);
    pid_t self = getpid();
    COUNT(16, 500, kill(self, SIGUSR1); CHECK(read(file, &info, sizeof info) == sizeof info, "signalfd"));
}

// ---- System V ------------------------------------------------------------------------------------------------------

static void sysv_memory(void) {
    int id = shmget(IPC_PRIVATE, 16 * PAGE, 0600 | IPC_CREAT);
    CHECK(id >= 0, "shmget");
    COUNT(16, 300, char *at = shmat(id, NULL, 0); *(volatile char *)at = 1; CHECK(!shmdt(at), "shmdt"));
    shmctl(id, IPC_RMID, NULL);
}
static void sysv_semaphore(void) {
    int id = semget(IPC_PRIVATE, 1, 0600 | IPC_CREAT);
    struct sembuf up = {0, 1, 0}, down = {0, -1, 0};
    COUNT(16, 500, CHECK(!semop(id, &up, 1) && !semop(id, &down, 1), "semop"));
    semctl(id, 0, IPC_RMID);
}
static void sysv_message(void) {
    int id = msgget(IPC_PRIVATE, 0600 | IPC_CREAT);
    struct {
        long type;
        char text[16];
    } message = {1, "text"};
    COUNT(16, 500, CHECK(!msgsnd(id, &message, 16, 0) && msgrcv(id, &message, 16, 0, 0) == 16, "msgrcv"));
    msgctl(id, IPC_RMID, NULL);
}

static const struct operation message_operations[] = {
    {"pipe_round_trip", pipe_round_trip},
    {"pipe_alone", pipe_alone},
    {"pipe_64KiB", pipe_64KiB},
    {"pipe_create", pipe_create},
    {"unix_round_trip", unix_round_trip},
    {"unix_datagram_round_trip", unix_datagram_round_trip},
    {"unix_alone", unix_alone},
    {"socket_create", socket_create},
    {"send_descriptor", send_descriptor},
    {"tcp_round_trip", tcp_round_trip},
    {"tcp_alone", tcp_alone},
    {"tcp_connect", tcp_connect},
    {"udp_alone", udp_alone},
    {"receive_nothing", receive_nothing},
    {"socket_option", socket_option},
    {"poll_ready", poll_ready},
    {"poll_64", poll_64},
    {"select_64", select_64},
    {"epoll_ready", epoll_ready},
    {"epoll_nothing", epoll_nothing},
    {"epoll_add_remove", epoll_add_remove},
    {"epoll_round_trip", epoll_round_trip},
    {"event_counter", event_counter},
    {"timer_file", timer_file},
    {"signal_file", signal_file},
    {"sysv_memory", sysv_memory},
    {"sysv_semaphore", sysv_semaphore},
    {"sysv_message", sysv_message},
    {NULL, NULL},
};
