// Sockets at the edges of their states: refused, half closed, reset, full. Each check holds on Linux and on Quire.
#define _GNU_SOURCE
#include "sockets.h"
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/select.h>
#include <sys/uio.h>

static int bound(int type, const char *name) {
    socklen_t len;
    struct sockaddr_un at = named(name, &len);
    int fd = socket(AF_UNIX, type, 0);
    CHECK(fd >= 0 && !bind(fd, (void *)&at, len), "bind %s", name);
    return fd;
}

static int joined(int fd, const char *name) {
    socklen_t len;
    struct sockaddr_un at = named(name, &len);
    return connect(fd, (void *)&at, len);
}

static int events_of(int fd) {
    struct pollfd p = {fd, POLLIN | POLLOUT | POLLRDHUP, 0};
    CHECK(poll(&p, 1, 0) >= 0, "poll");
    return p.revents;
}

// Waits until the socket has these events and no others, as a packet may be on its way.
static void has_events(int fd, int events) {
    int now = events_of(fd);
    for (int i = 0; i < 100 && now != events; i++) {
        short_sleep();
        now = events_of(fd);
    }
    CHECK(now == events, "events %#x, not %#x", now, events);
}

static int error_of(int fd) {
    int error = -1;
    socklen_t len = sizeof error;
    CHECK(!getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &len), "SO_ERROR");
    return error;
}

#define REFUSED (POLLIN | POLLOUT | POLLHUP | POLLRDHUP)

// A nonblocking socket whose connection is refused. The address that refused it.
static int refused(struct sockaddr_in *at) {
    close(listener(at));
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    ANSWERS(EINPROGRESS, connect(fd, (void *)at, sizeof *at));
    has_events(fd, REFUSED | POLLERR);
    return fd;
}

static void refused_connections(void) {
    struct sockaddr_in at;
    char byte;
    // The next `connect` gives the error, and the one after it starts again.
    int fd = refused(&at);
    ANSWERS(ECONNREFUSED, connect(fd, (void *)&at, sizeof at));
    CHECK(events_of(fd) == (POLLOUT | POLLHUP), "%#x", events_of(fd));
    ANSWERS(ENOTCONN, recv(fd, &byte, 1, 0));
    ANSWERS(EINPROGRESS, connect(fd, (void *)&at, sizeof at));
    has_events(fd, REFUSED | POLLERR);
    // Other calls take the error.
    CHECK(error_of(fd) == ECONNREFUSED && !error_of(fd), "SO_ERROR");
    CHECK(events_of(fd) == REFUSED, "%#x", events_of(fd));
    CHECK(!recv(fd, &byte, 1, 0), "recv");
    ANSWERS(EPIPE, send(fd, "x", 1, MSG_NOSIGNAL));
    ANSWERS(ENOTCONN, getpeername(fd, (void *)&(struct sockaddr_in){0}, &(socklen_t){16}));
    ANSWERS(ECONNABORTED, connect(fd, (void *)&at, sizeof at));
    CHECK(events_of(fd) == (POLLOUT | POLLHUP), "%#x", events_of(fd));
    close(fd);
    fd = refused(&at);
    ANSWERS(ECONNREFUSED, recv(fd, &byte, 1, 0));
    CHECK(!recv(fd, &byte, 1, 0) && !read(fd, &byte, 1), "recv");
    CHECK(events_of(fd) == REFUSED, "%#x", events_of(fd));
    ANSWERS(ECONNABORTED, connect(fd, (void *)&at, sizeof at));
    ANSWERS(ENOTCONN, recv(fd, &byte, 1, 0));
    // It connects to another listener then.
    int from = listener(&at);
    ANSWERS(EINPROGRESS, connect(fd, (void *)&at, sizeof at));
    has_events(fd, POLLOUT);
    ANSWERS(0, connect(fd, (void *)&at, sizeof at));
    int end = accept(from, NULL, NULL);
    CHECK(end >= 0 && write(fd, "x", 1) == 1 && read(end, &byte, 1) == 1, "accept");
    close(fd), close(end), close(from);
    fd = refused(&at);
    ANSWERS(ECONNREFUSED, send(fd, "x", 1, MSG_NOSIGNAL));
    ANSWERS(EPIPE, send(fd, "x", 1, MSG_NOSIGNAL));
    close(fd);
    fd = refused(&at);
    ANSWERS(EINVAL, listen(fd, 1));
    ANSWERS(ENOTCONN, shutdown(fd, SHUT_RDWR));
    close(fd);
    // A call that waits starts again at once.
    fd = socket(AF_INET, SOCK_STREAM, 0);
    close(listener(&at));
    ANSWERS(ECONNREFUSED, connect(fd, (void *)&at, sizeof at));
    CHECK(events_of(fd) == (POLLOUT | POLLHUP), "%#x", events_of(fd));
    ANSWERS(ENOTCONN, recv(fd, &byte, 1, 0));
    ANSWERS(ECONNREFUSED, connect(fd, (void *)&at, sizeof at));
    close(fd);
}

static void streams_that_read_no_more(void) {
    int ends[2];
    char bytes[8];
    connected(ends);
    // Only one direction: writes go on.
    CHECK(!shutdown(ends[0], SHUT_RD), "shutdown");
    for (int i = 0; i < 3; i++) CHECK(send(ends[1], "x", 1, MSG_NOSIGNAL) == 1, "send");
    CHECK(!shutdown(ends[0], SHUT_WR), "shutdown");
    close(ends[0]), close(ends[1]);
    connected(ends);
    CHECK(!shutdown(ends[0], SHUT_RDWR), "shutdown");
    has_events(ends[1], POLLIN | POLLOUT | POLLRDHUP);
    CHECK(send(ends[1], "x", 1, MSG_NOSIGNAL) == 1, "send");
    has_events(ends[1], POLLIN | POLLOUT | POLLERR | POLLHUP | POLLRDHUP);
    ANSWERS(EPIPE, send(ends[1], "x", 1, MSG_NOSIGNAL));
    CHECK(!read(ends[1], bytes, 8), "read");
    close(ends[0]), close(ends[1]);
    // A writer that waits for room is notified.
    connected(ends);
    fcntl(ends[1], F_SETFL, O_NONBLOCK);
    static char many[1 << 16];
    while (write(ends[1], many, sizeof many) > 0) {}
    fcntl(ends[1], F_SETFL, 0);
    int child = fork();
    CHECK(child >= 0, "fork");
    if (!child) {
        until_asleep(getppid());
        shutdown(ends[0], SHUT_RDWR);
        _exit(0);
    }
    ssize_t n;
    alarm(20);
    do n = send(ends[1], many, sizeof many, MSG_NOSIGNAL);
    while (n > 0);
    CHECK(errno == EPIPE, "errno %d", errno);
    ended(child);
    alarm(0);
    close(ends[0]), close(ends[1]);
}

static void fill(int fd) {
    static char many[1000];
    while (send(fd, many, sizeof many, MSG_DONTWAIT) > 0) {}
    CHECK(errno == EAGAIN, "errno %d", errno);
}

static void polls_of_datagram_sockets(void) {
    int a = socket(AF_UNIX, SOCK_DGRAM, 0), b = bound(SOCK_DGRAM, "b"), c = bound(SOCK_DGRAM, "c");
    static char many[1000];
    char byte;
    CHECK(!joined(a, "c"), "connect");
    fill(a);
    CHECK(!joined(a, "b"), "connect");
    fill(a);
    socklen_t len;
    struct sockaddr_un at = named("c", &len);
    // A send to another socket must not keep a poll from waiting for the peer.
    ANSWERS(EAGAIN, sendto(a, many, sizeof many, MSG_DONTWAIT, (void *)&at, len));
    int child = fork();
    CHECK(child >= 0, "fork");
    if (!child) {
        usleep(50000);
        while (recv(b, &byte, 1, MSG_DONTWAIT) >= 0) {}
        _exit(0);
    }
    struct pollfd p = {a, POLLOUT, 0};
    CHECK(poll(&p, 1, 10000) == 1 && p.revents == POLLOUT, "poll %#x", p.revents);
    ended(child);
    close(a), close(b), close(c);
}

static void reads_of_nothing(void) {
    const int types[] = {SOCK_STREAM, SOCK_DGRAM, SOCK_SEQPACKET};
    char bytes[8];
    for (int i = 0; i < 3; i++) {
        int ends[2];
        CHECK(!socketpair(AF_UNIX, types[i], 0, ends), "socketpair");
        CHECK(!read(ends[1], bytes, 0), "an empty socket");
        CHECK(write(ends[0], "one", 3) == 3, "write");
        CHECK(!read(ends[1], bytes, 0), "a full socket");
        CHECK(read(ends[1], bytes, 8) == 3, "the message stays");
        CHECK(write(ends[0], "one", 3) == 3 && write(ends[0], "four", 4) == 4, "write");
        CHECK(!recv(ends[1], bytes, 0, 0), "recv");
        int left = types[i] == SOCK_STREAM ? 7 : 4;
        CHECK(read(ends[1], bytes, 8) == left, "recv takes a message");
        close(ends[0]), close(ends[1]);
    }
    int udp = socket(AF_INET, SOCK_DGRAM, 0);
    CHECK(!read(udp, bytes, 0) && !readv(udp, NULL, 0), "udp");
    close(udp);
    int alone = socket(AF_UNIX, SOCK_SEQPACKET, 0);
    CHECK(!read(alone, bytes, 0), "not connected");
    close(alone);
}

static int compare(const void *a, const void *b) { return *(const int *)a - *(const int *)b; }

static void automatic_ports(void) {
    enum { MANY = 900 };
    const int options[] = {SO_REUSEADDR, SO_REUSEPORT};
    for (int o = 0; o < 2; o++) {
        static int ports[MANY], fds[MANY];
        for (int i = 0; i < MANY; i++) {
            struct sockaddr_in at = loopback(0);
            socklen_t len = sizeof at;
            int fd = fds[i] = socket(AF_INET, SOCK_STREAM, 0);
            CHECK(!setsockopt(fd, SOL_SOCKET, options[o], &(int){1}, 4), "setsockopt");
            CHECK(!bind(fd, (void *)&at, len) && !getsockname(fd, (void *)&at, &len), "bind");
            ports[i] = ntohs(at.sin_port);
        }
        qsort(ports, MANY, sizeof *ports, compare);
        for (int i = 1; i < MANY; i++) CHECK(ports[i] != ports[i - 1], "port %d twice", ports[i]);
        for (int i = 0; i < MANY; i++) close(fds[i]);
    }
}

static void resets_after_the_end(void) {
    int ends[2];
    char bytes[8];
    for (int i = 0; i < 2; i++) {
        connected(ends);
        CHECK(!shutdown(ends[0], SHUT_WR), "shutdown");
        has_events(ends[1], POLLIN | POLLOUT | POLLRDHUP);
        CHECK(write(ends[1], "unread", 6) == 6, "write");
        has_events(ends[0], POLLIN | POLLOUT);
        close(ends[0]);
        has_events(ends[1], POLLIN | POLLOUT | POLLERR | POLLHUP | POLLRDHUP);
        if (i == 0) {
            CHECK(!read(ends[1], bytes, 8) && events_of(ends[1]) & POLLERR, "a reader leaves the error");
            CHECK(error_of(ends[1]) == EPIPE && !error_of(ends[1]), "SO_ERROR");
            ANSWERS(EPIPE, send(ends[1], "x", 1, MSG_NOSIGNAL));
        } else {
            handle(SIGPIPE, 0);
            ANSWERS(EPIPE, write(ends[1], "x", 1));
            CHECK(caught == SIGPIPE, "no signal");
        }
        CHECK(!read(ends[1], bytes, 8), "read");
        close(ends[1]);
    }
    // A connection that both sides have ended is over.
    connected(ends);
    CHECK(!shutdown(ends[0], SHUT_WR), "shutdown");
    has_events(ends[1], POLLIN | POLLOUT | POLLRDHUP);
    CHECK(write(ends[1], "unread", 6) == 6 && !shutdown(ends[1], SHUT_WR), "write");
    has_events(ends[0], POLLIN | POLLOUT | POLLHUP | POLLRDHUP);
    close(ends[0]);
    short_sleep();
    CHECK(events_of(ends[1]) == REFUSED && !error_of(ends[1]), "%#x", events_of(ends[1]));
    close(ends[1]);
    // Without the end before it, it is a reset.
    connected(ends);
    CHECK(write(ends[1], "unread", 6) == 6, "write");
    has_events(ends[0], POLLIN | POLLOUT);
    close(ends[0]);
    has_events(ends[1], POLLIN | POLLOUT | POLLERR | POLLHUP | POLLRDHUP);
    CHECK(error_of(ends[1]) == ECONNRESET, "SO_ERROR");
    close(ends[1]);
}

static void names_of_senders(void) {
    const int types[] = {SOCK_STREAM, SOCK_SEQPACKET};
    for (int i = 0; i < 2; i++) {
        int from = bound(types[i], i ? "packets" : "stream"), client = bound(types[i], i ? "client1" : "client0");
        CHECK(!listen(from, 1) && !joined(client, i ? "packets" : "stream"), "connect");
        int end = accept(from, NULL, NULL);
        CHECK(end >= 0 && write(client, "one", 3) == 3 && write(end, "two", 3) == 3, "write");
        socklen_t own, len = sizeof(struct sockaddr_un);
        struct sockaddr_un at = named(i ? "client1" : "client0", &own), got = {0};
        char bytes[8];
        struct iovec part = {bytes, 3};
        struct msghdr message = {.msg_name = &got, .msg_namelen = len, .msg_iov = &part, .msg_iovlen = 1,
            .msg_flags = -1};
        CHECK(recvmsg(end, &message, MSG_PEEK) == 3, "recvmsg");
        CHECK(message.msg_namelen == own && !memcmp(&got, &at, own), "%d bytes of name", message.msg_namelen);
        CHECK(!message.msg_flags, "flags %#x", message.msg_flags);
        memset(&got, 0, sizeof got);
        CHECK(recvfrom(end, bytes, 8, 0, (void *)&got, &len) == 3, "recvfrom");
        CHECK(len == own && !memcmp(&got, &at, own), "%d bytes of name", len);
        // The name of a pair, which comes late, and which stays when its owner closes.
        int pair[2];
        CHECK(!socketpair(AF_UNIX, types[i], 0, pair) && write(pair[0], "one", 3) == 3, "socketpair");
        at = named(i ? "late1" : "late0", &own), len = sizeof got;
        CHECK(!bind(pair[0], (void *)&at, own), "bind");
        close(pair[0]);
        CHECK(recvfrom(pair[1], bytes, 8, 0, (void *)&got, &len) == 3, "recvfrom");
        CHECK(len == own && !memcmp(&got, &at, own), "%d bytes of a late name", len);
        close(pair[1]);
        at = named(i ? "packets" : "stream", &own), len = sizeof got;
        CHECK(recvfrom(client, bytes, 8, 0, (void *)&got, &len) == 3, "recvfrom");
        CHECK(len == own && !memcmp(&got, &at, own), "%d bytes of the listener's name", len);
        // At the end no message comes, and no name.
        close(client);
        len = sizeof got;
        CHECK(!recvfrom(end, bytes, 8, 0, (void *)&got, &len) && !len, "%d bytes at the end", len);
        close(end), close(from);
        int ends[2];
        CHECK(!socketpair(AF_UNIX, types[i], 0, ends) && write(ends[0], "one", 3) == 3, "socketpair");
        len = sizeof got;
        CHECK(recvfrom(ends[1], bytes, 8, 0, (void *)&got, &len) == 3 && !len, "%d bytes of a pair", len);
        close(ends[0]), close(ends[1]);
    }
}

static void low_water_marks(void) {
    int ends[2];
    char bytes[8];
    connected(ends);
    CHECK(!setsockopt(ends[1], SOL_SOCKET, SO_RCVLOWAT, &(int){4}, 4), "SO_RCVLOWAT");
    CHECK(write(ends[0], "ab", 2) == 2, "write");
    struct pollfd p = {ends[1], POLLIN, 0};
    CHECK(!poll(&p, 1, 50), "two bytes: %#x", p.revents);
    CHECK(events_of(ends[1]) == POLLOUT, "%#x", events_of(ends[1]));
    fd_set set;
    FD_ZERO(&set);
    FD_SET(ends[1], &set);
    CHECK(!select(ends[1] + 1, &set, NULL, NULL, &(struct timeval){0, 1000}), "select");
    CHECK(write(ends[0], "cd", 2) == 2, "write");
    has_events(ends[1], POLLIN | POLLOUT);
    CHECK(read(ends[1], bytes, 1) == 1 && events_of(ends[1]) == POLLOUT, "three bytes: %#x", events_of(ends[1]));
    // The mark changes under the bytes.
    CHECK(!setsockopt(ends[1], SOL_SOCKET, SO_RCVLOWAT, &(int){3}, 4), "SO_RCVLOWAT");
    CHECK(events_of(ends[1]) == (POLLIN | POLLOUT), "%#x", events_of(ends[1]));
    CHECK(!setsockopt(ends[1], SOL_SOCKET, SO_RCVLOWAT, &(int){4}, 4), "SO_RCVLOWAT");
    int epoll = epoll_create1(0);
    struct epoll_event event = {EPOLLIN, {0}};
    CHECK(!epoll_ctl(epoll, EPOLL_CTL_ADD, ends[1], &event) && !epoll_wait(epoll, &event, 1, 0), "epoll");
    // A change is announced to polls.
    int child = fork();
    CHECK(child >= 0, "fork");
    if (!child) {
        until_asleep(getppid());
        setsockopt(ends[1], SOL_SOCKET, SO_RCVLOWAT, &(int){1}, 4);
        _exit(0);
    }
    CHECK(epoll_wait(epoll, &event, 1, 10000) == 1 && event.events == EPOLLIN, "epoll");
    ended(child);
    close(epoll);
    // A read that does not wait takes all bytes there are.
    CHECK(recv(ends[1], bytes, 8, MSG_DONTWAIT) == 3, "recv");
    CHECK(write(ends[0], "e", 1) == 1 && !shutdown(ends[0], SHUT_WR), "shutdown");
    has_events(ends[1], POLLIN | POLLOUT | POLLRDHUP);
    close(ends[0]), close(ends[1]);
    // A mark beyond the buffer does not keep a reader from making room.
    connected(ends);
    CHECK(!setsockopt(ends[1], SOL_SOCKET, SO_RCVLOWAT, &(int){1 << 30}, 4), "SO_RCVLOWAT");
    fcntl(ends[0], F_SETFL, O_NONBLOCK);
    static char many[1 << 16];
    for (int i = 0; i < 10; i++) {
        while (write(ends[0], many, sizeof many) > 0) {}
        short_sleep();
    }
    int sent = 0;
    ioctl(ends[1], FIONREAD, &sent);
    CHECK(sent > 0 && events_of(ends[1]) & POLLIN, "%d bytes: %#x", sent, events_of(ends[1]));
    close(ends[0]), close(ends[1]);
    // Unix streams have no mark for polls.
    CHECK(!socketpair(AF_UNIX, SOCK_STREAM, 0, ends), "socketpair");
    CHECK(!setsockopt(ends[1], SOL_SOCKET, SO_RCVLOWAT, &(int){4}, 4), "SO_RCVLOWAT");
    CHECK(write(ends[0], "ab", 2) == 2 && events_of(ends[1]) == (POLLIN | POLLOUT), "%#x", events_of(ends[1]));
    close(ends[0]), close(ends[1]);
}

static int unsent(int fd) {
    int n = -1;
    CHECK(!ioctl(fd, TIOCOUTQ, &n), "SIOCOUTQ");
    return n;
}

static int state_of(int fd) {
    struct tcp_info info;
    socklen_t len = sizeof info;
    CHECK(!getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &len), "TCP_INFO");
    return info.tcpi_state;
}

// The state comes at last, as a packet may be on its way.
static void has_state(int fd, int state) {
    for (int i = 0; i < 100 && state_of(fd) != state; i++) short_sleep();
    CHECK(state_of(fd) == state, "state %d, not %d", state_of(fd), state);
}

static void states_of_tcp(void) {
    int ends[2], n;
    connected(ends);
    CHECK(write(ends[0], "hello", 5) == 5, "write");
    for (int i = 0; i < 100 && unsent(ends[0]); i++) short_sleep();
    CHECK(!unsent(ends[0]) && !ioctl(ends[1], FIONREAD, &n) && n == 5, "acknowledged bytes");
    has_state(ends[0], TCP_ESTABLISHED);
    CHECK(!shutdown(ends[0], SHUT_RD), "shutdown");
    CHECK(state_of(ends[0]) == TCP_ESTABLISHED && state_of(ends[1]) == TCP_ESTABLISHED, "the end of reading");
    CHECK(!shutdown(ends[0], SHUT_WR), "shutdown");
    has_state(ends[0], TCP_FIN_WAIT2);
    has_state(ends[1], TCP_CLOSE_WAIT);
    CHECK(!shutdown(ends[1], SHUT_WR), "shutdown");
    has_state(ends[1], TCP_CLOSE);
    has_state(ends[0], TCP_CLOSE);
    close(ends[0]), close(ends[1]);
    struct sockaddr_in at;
    int fd = listener(&at);
    has_state(fd, TCP_LISTEN);
    close(fd);
    has_state(fd = socket(AF_INET, SOCK_STREAM, 0), TCP_CLOSE);
    close(fd);
    has_state(fd = refused(&at), TCP_CLOSE);
    close(fd);
    // A Unix stream counts the bytes until they are read.
    CHECK(!socketpair(AF_UNIX, SOCK_STREAM, 0, ends) && write(ends[0], "hello", 5) == 5 && unsent(ends[0]) > 0, "unix");
    close(ends[0]), close(ends[1]);
}

#define AWAY (POLLOUT | POLLHUP)

static int disconnected(int fd) {
    return connect(fd, &(struct sockaddr){.sa_family = AF_UNSPEC}, sizeof(struct sockaddr));
}

static struct sockaddr_in name_of(int fd) {
    struct sockaddr_in at;
    CHECK(!getsockname(fd, (void *)&at, &(socklen_t){sizeof at}), "getsockname");
    return at;
}

static void disconnects(void) {
    int ends[2], on = 1;
    char byte;
    struct sockaddr_in at;
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    ANSWERS(0, disconnected(fd));
    ANSWERS(0, connect(fd, &(struct sockaddr){.sa_family = AF_UNSPEC}, 2));
    ANSWERS(EINVAL, connect(fd, &(struct sockaddr){.sa_family = AF_UNSPEC}, 1));
    CHECK(events_of(fd) == AWAY && !error_of(fd), "%#x", events_of(fd));
    close(fd);
    // A connection is reset. Its port is free, but its name shows it.
    connected(ends);
    CHECK(write(ends[1], "unread", 6) == 6, "write");
    has_events(ends[0], POLLIN | POLLOUT);
    struct sockaddr_in before = name_of(ends[0]);
    ANSWERS(0, disconnected(ends[0]));
    at = name_of(ends[0]);
    CHECK(at.sin_port == before.sin_port && !at.sin_addr.s_addr, "port %d", ntohs(at.sin_port));
    CHECK(events_of(ends[0]) == (AWAY | POLLERR) && state_of(ends[0]) == TCP_CLOSE, "%#x", events_of(ends[0]));
    has_events(ends[1], REFUSED | POLLERR);
    has_state(ends[1], TCP_CLOSE);
    CHECK(error_of(ends[1]) == ECONNRESET, "SO_ERROR");
    ANSWERS(EPIPE, send(ends[1], "x", 1, MSG_NOSIGNAL));
    ANSWERS(ECONNRESET, recv(ends[0], &byte, 1, 0));
    ANSWERS(ENOTCONN, recv(ends[0], &byte, 1, 0));
    ANSWERS(EPIPE, send(ends[0], "x", 1, MSG_NOSIGNAL));
    ANSWERS(ENOTCONN, getpeername(ends[0], (void *)&at, &(socklen_t){sizeof at}));
    // Both ends connect again, and nothing of the first connection comes.
    int from = listener(&at);
    for (int i = 0; i < 2; i++) {
        ANSWERS(0, disconnected(ends[i]));
        ANSWERS(0, connect(ends[i], (void *)&at, sizeof at));
        int end = accept(from, NULL, NULL);
        CHECK(end >= 0 && write(end, "n", 1) == 1 && read(ends[i], &byte, 1) == 1 && byte == 'n', "read");
        CHECK(write(ends[i], "m", 1) == 1 && read(end, &byte, 1) == 1 && byte == 'm', "read");
        close(end);
    }
    // They listen, too.
    ANSWERS(0, disconnected(ends[0]));
    ANSWERS(0, listen(ends[0], 1));
    at = name_of(ends[0]);
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    ANSWERS(0, disconnected(ends[1]));
    ANSWERS(0, connect(ends[1], (void *)&at, sizeof at));
    close(ends[0]), close(ends[1]), close(from);
    // The errors depend on the ends before.
    static const int states[] = {TCP_ESTABLISHED, TCP_FIN_WAIT2, TCP_CLOSE_WAIT, TCP_CLOSE};
    static const int errors[] = {ECONNRESET, EPIPE, ECONNRESET, 0};
    for (int i = 0; i < 4; i++) {
        connected(ends);
        if (i & 1) CHECK(!shutdown(ends[0], SHUT_WR), "shutdown");
        if (i & 1) has_state(ends[1], TCP_CLOSE_WAIT);
        if (i & 2) CHECK(!shutdown(ends[1], SHUT_WR), "shutdown");
        has_state(ends[0], states[i]);
        if (i == 3) has_state(ends[1], TCP_CLOSE);
        ANSWERS(0, disconnected(ends[0]));
        CHECK(error_of(ends[0]) == (i == 3 ? 0 : ECONNRESET) && events_of(ends[0]) == AWAY, "round %d", i);
        has_events(ends[1], REFUSED | (i == 3 ? 0 : POLLERR));
        CHECK(error_of(ends[1]) == errors[i], "round %d", i);
        close(ends[0]), close(ends[1]);
    }
    // A refused connection keeps its error.
    fd = refused(&at);
    ANSWERS(0, disconnected(fd));
    CHECK(events_of(fd) == (AWAY | POLLERR), "%#x", events_of(fd));
    ANSWERS(ECONNREFUSED, recv(fd, &byte, 1, 0));
    ANSWERS(ENOTCONN, recv(fd, &byte, 1, 0));
    close(fd);
    // A listener resets its clients. A port that it has not chosen is free.
    from = listener(&at);
    fd = socket(AF_INET, SOCK_STREAM, 0);
    CHECK(!connect(fd, (void *)&at, sizeof at), "connect");
    ANSWERS(0, disconnected(from));
    CHECK(events_of(from) == AWAY && state_of(from) == TCP_CLOSE && !error_of(from), "%#x", events_of(from));
    has_events(fd, REFUSED | POLLERR);
    CHECK(error_of(fd) == ECONNRESET, "SO_ERROR");
    ANSWERS(EINVAL, accept(from, NULL, NULL));
    int other = socket(AF_INET, SOCK_STREAM, 0);
    ANSWERS(ECONNREFUSED, connect(other, (void *)&at, sizeof at));
    close(other);
    other = socket(AF_INET, SOCK_STREAM, 0);
    CHECK(!setsockopt(other, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on), "SO_REUSEADDR");
    ANSWERS(0, bind(other, (void *)&at, sizeof at));
    ANSWERS(0, listen(from, 1));
    CHECK(name_of(from).sin_port != at.sin_port, "the same port");
    close(from), close(fd);
    // A port that it has chosen stays.
    ANSWERS(0, listen(other, 1));
    ANSWERS(0, disconnected(other));
    fd = socket(AF_INET, SOCK_STREAM, 0);
    ANSWERS(EINVAL, bind(other, (void *)&at, sizeof at));
    ANSWERS(EADDRINUSE, bind(fd, (void *)&at, sizeof at));
    ANSWERS(0, listen(other, 1));
    ANSWERS(0, connect(fd, (void *)&at, sizeof at));
    close(fd), close(other);
    int pair[2];
    const int types[] = {SOCK_STREAM, SOCK_SEQPACKET};
    for (int i = 0; i < 2; i++) {
        CHECK(!socketpair(AF_UNIX, types[i], 0, pair), "socketpair");
        ANSWERS(EINVAL, disconnected(pair[0]));
        close(pair[0]), close(pair[1]);
    }
    fd = socket(AF_INET, SOCK_DGRAM, 0);
    CHECK(!connect(fd, (void *)&at, sizeof at) && name_of(fd).sin_port, "connect");
    ANSWERS(0, disconnected(fd));
    CHECK(!name_of(fd).sin_port, "port %d", ntohs(name_of(fd).sin_port));
    close(fd);
}

// A listener without room for another client.
static int full_listener(struct sockaddr_in *at, int clients[2]) {
    int from = listener(at);
    CHECK(!listen(from, 0), "listen");
    for (int i = 0; i < 2; i++) {
        clients[i] = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
        ANSWERS(EINPROGRESS, connect(clients[i], (void *)at, sizeof *at));
    }
    short_sleep();
    return from;
}

// A socket that waits for a place there.
static int waiting(const struct sockaddr_in *at) {
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    ANSWERS(EINPROGRESS, connect(fd, (void *)at, sizeof *at));
    CHECK(!events_of(fd) && state_of(fd) == TCP_SYN_SENT, "%#x", events_of(fd));
    fcntl(fd, F_SETFL, 0);
    return fd;
}

// Another process disconnects the socket soon, or shuts it down.
static int gives_up(int fd, int shuts) {
    int child = fork();
    CHECK(child >= 0, "fork");
    if (!child) {
        until_asleep(getppid());
        _exit(shuts ? shutdown(fd, SHUT_WR) : disconnected(fd));
    }
    alarm(20);
    return child;
}

static void disconnects_under_calls(void) {
    int ends[2], clients[2], child;
    char bytes[8];
    static char many[1 << 16];
    struct sockaddr_in at;
    connected(ends);
    child = gives_up(ends[0], 0);
    ANSWERS(EPIPE, recv(ends[0], bytes, 8, 0));
    CHECK(!ended(child) && error_of(ends[0]) == ECONNRESET, "the error stays");
    close(ends[0]), close(ends[1]);
    connected(ends);
    child = gives_up(ends[0], 0);
    ANSWERS(EPIPE, read(ends[0], bytes, 8));
    CHECK(!ended(child) && error_of(ends[0]) == ECONNRESET, "the error stays for a read, too");
    close(ends[0]), close(ends[1]);
    connected(ends);
    CHECK(write(ends[1], "hi", 2) == 2, "write");
    child = gives_up(ends[0], 0);
    CHECK(recv(ends[0], bytes, 8, MSG_WAITALL) == 2, "recv");
    CHECK(!ended(child) && error_of(ends[0]) == ECONNRESET, "the error stays");
    close(ends[0]), close(ends[1]);
    connected(ends);
    fcntl(ends[0], F_SETFL, O_NONBLOCK);
    for (int i = 0; i < 10; i++) {
        while (write(ends[0], many, sizeof many) > 0) {}
        short_sleep();
    }
    fcntl(ends[0], F_SETFL, 0);
    child = gives_up(ends[0], 0);
    ssize_t n;
    do n = send(ends[0], many, sizeof many, MSG_NOSIGNAL);
    while (n > 0);
    CHECK(errno == ECONNRESET && !ended(child) && !error_of(ends[0]), "errno %d", errno);
    close(ends[0]), close(ends[1]);
    int from = listener(&at);
    child = gives_up(from, 0);
    ANSWERS(EINVAL, accept(from, NULL, NULL));
    CHECK(!ended(child), "disconnect");
    close(from);
    connected(ends);
    child = gives_up(ends[0], 0);
    struct pollfd p = {ends[0], POLLIN, 0};
    CHECK(poll(&p, 1, 10000) == 1 && p.revents == (POLLERR | POLLHUP), "poll %#x", p.revents);
    CHECK(!ended(child), "disconnect");
    close(ends[0]), close(ends[1]);
    // Attempts to connect.
    from = full_listener(&at, clients);
    for (int shuts = 0; shuts < 2; shuts++) {
        int fd = waiting(&at);
        ANSWERS(0, shuts ? shutdown(fd, SHUT_WR) : disconnected(fd));
        CHECK(events_of(fd) == (AWAY | POLLERR) && error_of(fd) == ECONNRESET, "%#x", events_of(fd));
        close(fd);
        fd = socket(AF_INET, SOCK_STREAM, 0);
        child = gives_up(fd, shuts);
        int error = shuts ? ECONNRESET : EPIPE;
        ANSWERS(error, connect(fd, (void *)&at, sizeof at));
        CHECK(!ended(child) && error_of(fd) == (shuts ? 0 : ECONNRESET), "the error");
        close(fd);
    }
    int fd = waiting(&at);
    child = gives_up(fd, 0);
    ANSWERS(ECONNRESET, send(fd, "x", 1, MSG_NOSIGNAL));
    CHECK(!ended(child) && !error_of(fd), "the error");
    close(fd);
    fd = waiting(&at);
    child = gives_up(fd, 0);
    ANSWERS(EPIPE, recv(fd, bytes, 8, 0));
    CHECK(!ended(child) && error_of(fd) == ECONNRESET, "the error");
    close(fd), close(from), close(clients[0]), close(clients[1]);
    alarm(0);
}

// Another process writes soon, and perhaps ends the connection.
static int writes(int fd, const char *text, int ends) {
    int child = fork();
    CHECK(child >= 0, "fork");
    if (!child) {
        usleep(50000);
        int n = write(fd, text, strlen(text));
        _exit(n < 0 || (ends && shutdown(fd, SHUT_WR)));
    }
    alarm(20);
    return child;
}

static void discarded_and_peeked_bytes(void) {
    int ends[2];
    char bytes[9] = "";
    connected(ends);
    CHECK(write(ends[1], "0123456789", 10) == 10, "write");
    has_events(ends[0], POLLIN | POLLOUT);
    CHECK(recv(ends[0], NULL, 3, MSG_TRUNC) == 3, "recv");
    CHECK(recv(ends[0], NULL, 3, MSG_TRUNC | MSG_PEEK) == 3, "recv");
    CHECK(recv(ends[0], (void *)8, 1, MSG_TRUNC) == 1, "recv");
    CHECK(recv(ends[0], bytes, 2, 0) == 2 && !memcmp(bytes, "45", 2), "%.2s", bytes);
    ANSWERS(EFAULT, recv(ends[0], NULL, 3, 0));
    struct iovec parts[] = {{NULL, 2}, {bytes, 1}};
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = 2, .msg_flags = -1};
    CHECK(recvmsg(ends[0], &message, MSG_TRUNC) == 3 && !message.msg_flags && *bytes == '4', "recvmsg");
    CHECK(recv(ends[0], NULL, 60, MSG_TRUNC) == 1, "recv");
    ANSWERS(EAGAIN, recv(ends[0], NULL, 60, MSG_TRUNC | MSG_DONTWAIT));
    CHECK(write(ends[1], "01", 2) == 2, "write");
    int child = writes(ends[1], "23456", 0);
    CHECK(recv(ends[0], NULL, 5, MSG_TRUNC | MSG_WAITALL) == 5, "recv");
    CHECK(!ended(child) && recv(ends[0], bytes, 8, 0) == 2 && !memcmp(bytes, "56", 2), "%.2s", bytes);
    // A look at all bytes waits for them, and ends with the connection.
    CHECK(write(ends[1], "01", 2) == 2, "write");
    has_events(ends[0], POLLIN | POLLOUT);
    CHECK(recv(ends[0], bytes, 8, MSG_PEEK | MSG_WAITALL | MSG_DONTWAIT) == 2, "recv");
    child = writes(ends[1], "234567", 0);
    CHECK(recv(ends[0], bytes, 8, MSG_PEEK | MSG_WAITALL) == 8 && !strcmp(bytes, "01234567"), "%s", bytes);
    CHECK(!ended(child) && recv(ends[0], bytes, 6, 0) == 6, "recv");
    child = writes(ends[1], "8", 1);
    CHECK(recv(ends[0], bytes, 8, MSG_PEEK | MSG_WAITALL) == 3 && !memcmp(bytes, "678", 3), "%s", bytes);
    CHECK(!ended(child) && recv(ends[0], bytes, 8, 0) == 3, "recv");
    CHECK(!recv(ends[0], bytes, 8, MSG_PEEK | MSG_WAITALL), "at the end");
    close(ends[0]), close(ends[1]);
    connected(ends);
    struct timeval limit = {0, 50000};
    CHECK(!setsockopt(ends[0], SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit), "SO_RCVTIMEO");
    CHECK(write(ends[1], "01", 2) == 2 && recv(ends[0], bytes, 8, MSG_PEEK | MSG_WAITALL) == 2, "recv");
    close(ends[0]), close(ends[1]);
    alarm(0);
    // Unix streams know neither.
    CHECK(!socketpair(AF_UNIX, SOCK_STREAM, 0, ends) && write(ends[1], "01", 2) == 2, "socketpair");
    CHECK(recv(ends[0], bytes, 8, MSG_PEEK | MSG_WAITALL) == 2, "recv");
    ANSWERS(EFAULT, recv(ends[0], NULL, 1, MSG_TRUNC));
    close(ends[0]), close(ends[1]);
}

static void ipv4_of_ipv6_sockets(void) {
    int to = socket(AF_INET, SOCK_DGRAM, 0), fd = socket(AF_INET6, SOCK_DGRAM, 0), on = 1;
    char bytes[8];
    struct sockaddr_in at = loopback(0), none = loopback(0);
    CHECK(to >= 0 && fd >= 0 && !bind(to, (void *)&at, sizeof at), "bind");
    at = name_of(to);
    CHECK(sendto(fd, "one", 3, 0, (void *)&at, sizeof at) == 3 && recv(to, bytes, 8, 0) == 3, "sendto");
    ANSWERS(EINVAL, sendto(fd, "x", 1, 0, (void *)&at, sizeof at - 1));
    ANSWERS(EINVAL, sendto(fd, "x", 1, 0, (void *)&none, sizeof none));
    ANSWERS(EDESTADDRREQ, sendto(fd, "x", 1, 0, &(struct sockaddr){.sa_family = AF_UNSPEC}, 16));
    ANSWERS(EINVAL, connect(fd, (void *)&at, sizeof at - 1));
    ANSWERS(0, connect(fd, (void *)&at, sizeof at));
    struct sockaddr_in6 peer;
    CHECK(!getpeername(fd, (void *)&peer, &(socklen_t){sizeof peer}), "getpeername");
    CHECK(IN6_IS_ADDR_V4MAPPED(&peer.sin6_addr) && peer.sin6_port == at.sin_port, "family %d", peer.sin6_family);
    CHECK(write(fd, "two", 3) == 3 && recv(to, bytes, 8, 0) == 3, "write");
    close(fd);
    fd = socket(AF_INET6, SOCK_DGRAM, 0);
    CHECK(!setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &on, sizeof on), "IPV6_V6ONLY");
    int bound = socket(AF_INET6, SOCK_DGRAM, 0);
    struct sockaddr_in6 own = {.sin6_family = AF_INET6, .sin6_addr = IN6ADDR_LOOPBACK_INIT};
    CHECK(!bind(bound, (void *)&own, sizeof own), "bind");
    const int only[] = {fd, bound};
    for (int i = 0; i < 2; i++) {
        ANSWERS(ENETUNREACH, sendto(only[i], "x", 1, 0, (void *)&at, sizeof at));
        ANSWERS(EAFNOSUPPORT, connect(only[i], (void *)&at, sizeof at));
        close(only[i]);
    }
    close(to);
}

// A message has room where the buffer is not full. The last one fills it beyond its size.
static void datagrams_of_half_a_buffer(void) {
    int ends[2], size;
    CHECK(!socketpair(AF_UNIX, SOCK_DGRAM, 0, ends), "socketpair");
    CHECK(!getsockopt(ends[0], SOL_SOCKET, SO_SNDBUF, &size, &(socklen_t){sizeof size}), "SO_SNDBUF");
    char *many = calloc(1, size);
    CHECK(many, "memory");
    for (int i = 0; i < 2; i++) CHECK(send(ends[0], many, size / 2, MSG_DONTWAIT) == size / 2, "message %d", i);
    ANSWERS(EAGAIN, send(ends[0], many, 1, MSG_DONTWAIT));
    CHECK(recv(ends[1], many, size, 0) == size / 2 && send(ends[0], many, 1, MSG_DONTWAIT) == 1, "room again");
    free(many), close(ends[0]), close(ends[1]);
}

static void datagram_sockets_without_peers(void) {
    int ends[2];
    char bytes[8];
    CHECK(!socketpair(AF_UNIX, SOCK_DGRAM, 0, ends) && write(ends[1], "lost", 4) == 4, "socketpair");
    CHECK(!shutdown(ends[1], SHUT_RD), "shutdown");
    ANSWERS(EPIPE, send(ends[0], "x", 1, MSG_NOSIGNAL));
    close(ends[1]);
    CHECK(events_of(ends[0]) == (POLLIN | POLLOUT) && !error_of(ends[0]), "%#x", events_of(ends[0]));
    // The first send learns of it, and takes the peer and the messages away.
    ANSWERS(ECONNREFUSED, send(ends[0], "x", 1, 0));
    ANSWERS(ENOTCONN, send(ends[0], "x", 1, 0));
    ANSWERS(EAGAIN, recv(ends[0], bytes, 8, MSG_DONTWAIT));
    ANSWERS(ENOTCONN, getpeername(ends[0], (void *)&(struct sockaddr_un){0}, &(socklen_t){sizeof(struct sockaddr_un)}));
    CHECK(events_of(ends[0]) == POLLOUT, "%#x", events_of(ends[0]));
    close(ends[0]);
    // A socket of the same name is another peer.
    int a = bound(SOCK_DGRAM, "left"), b = bound(SOCK_DGRAM, "gone");
    CHECK(!joined(a, "gone") && send(a, "x", 1, 0) == 1, "connect");
    close(b);
    b = bound(SOCK_DGRAM, "gone");
    ANSWERS(ECONNREFUSED, send(a, "x", 1, 0));
    ANSWERS(ENOTCONN, send(a, "x", 1, 0));
    CHECK(!joined(a, "gone") && send(a, "x", 1, 0) == 1, "connect");
    // A sender that waits for room.
    fill(a);
    int child = fork();
    CHECK(child >= 0, "fork");
    if (!child) {
        static char many[1000];
        close(b);
        alarm(20);
        ANSWERS(ECONNREFUSED, send(a, many, sizeof many, 0));
        ANSWERS(ENOTCONN, send(a, many, sizeof many, 0));
        _exit(0);
    }
    usleep(50000);
    close(b);
    CHECK(!ended(child) && events_of(a) == POLLOUT, "%#x", events_of(a));
    // A change of the peer drops the messages, and notifies a peer that is connected.
    b = bound(SOCK_DGRAM, "gone");
    int c = bound(SOCK_DGRAM, "third");
    for (int i = 0; i < 2; i++) {
        CHECK(!joined(a, "gone") && !joined(b, "left") && send(b, "lost", 4, 0) == 4, "connect");
        ANSWERS(ECONNREFUSED, joined(a, "nothing"));
        CHECK(recv(a, bytes, 8, MSG_PEEK) == 4, "a failed connect takes nothing");
        ANSWERS(0, i ? disconnected(a) : joined(a, "third"));
        CHECK(events_of(a) == POLLOUT && events_of(b) == (POLLOUT | POLLERR), "%#x, %#x", events_of(a), events_of(b));
        ANSWERS(EAGAIN, recv(a, bytes, 8, MSG_DONTWAIT));
        ANSWERS(ECONNRESET, recv(b, bytes, 8, MSG_DONTWAIT));
        ANSWERS(EAGAIN, recv(b, bytes, 8, MSG_DONTWAIT));
    }
    CHECK(!joined(a, "gone") && send(b, "kept", 4, 0) == 4 && !joined(a, "gone"), "connect");
    CHECK(recv(a, bytes, 8, MSG_DONTWAIT) == 4 && !disconnected(a) && !error_of(b), "the same peer again");
    close(a), close(b), close(c);
}

static const struct check checks[] = {
    {"refused_connections", refused_connections},
    {"streams_that_read_no_more", streams_that_read_no_more},
    {"polls_of_datagram_sockets", polls_of_datagram_sockets},
    {"reads_of_nothing", reads_of_nothing},
    {"automatic_ports", automatic_ports},
    {"resets_after_the_end", resets_after_the_end},
    {"names_of_senders", names_of_senders},
    {"low_water_marks", low_water_marks},
    {"states_of_tcp", states_of_tcp},
    {"disconnects", disconnects},
    {"disconnects_under_calls", disconnects_under_calls},
    {"discarded_and_peeked_bytes", discarded_and_peeked_bytes},
    {"ipv4_of_ipv6_sockets", ipv4_of_ipv6_sockets},
    {"datagrams_of_half_a_buffer", datagrams_of_half_a_buffer},
    {"datagram_sockets_without_peers", datagram_sockets_without_peers},
};

int main(int argc, char **argv) {
    parse_options(argc, argv, NULL);
    run_checks(checks, sizeof checks / sizeof *checks);
    return 0;
}
