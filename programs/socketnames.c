// Names, credentials, options and errors of sockets, and sets of epoll within sets. Each check holds on Linux and on
// Quire.
#define _GNU_SOURCE
#include "sockets.h"
#include <netinet/ip.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/uio.h>

static int has_peer(int fd) {
    struct sockaddr_storage at;
    socklen_t len = sizeof at;
    return getpeername(fd, (void *)&at, &len);
}

// A TCP connection that is over has no peer.
static void connections_that_are_over(void) {
    int ends[2];
    connected(ends);
    CHECK(!setsockopt(ends[1], SOL_SOCKET, SO_LINGER, &(struct linger){1, 0}, sizeof(struct linger)) && !close(ends[1]),
        "reset");
    ANSWERS(ENOTCONN, has_peer(ends[0]));
    ANSWERS(ENOTCONN, shutdown(ends[0], SHUT_RDWR));
    close(ends[0]);
    connected(ends);
    ANSWERS(0, shutdown(ends[0], SHUT_WR));
    ANSWERS(0, has_peer(ends[0]));
    ANSWERS(0, has_peer(ends[1]));
    ANSWERS(0, shutdown(ends[1], SHUT_WR));
    for (int i = 0; i < 2; i++) {
        ANSWERS(ENOTCONN, has_peer(ends[i]));
        ANSWERS(ENOTCONN, shutdown(ends[i], SHUT_RD));
    }
    close(ends[0]);
    close(ends[1]);
}

// Receives a byte and its credentials; false if there are none.
static bool get_credentials(int fd, struct ucred *who, int *flags, size_t room) {
    char byte, control[CMSG_SPACE(sizeof *who)];
    struct iovec to = {&byte, 1};
    struct msghdr message = {.msg_iov = &to, .msg_iovlen = 1, .msg_control = room ? control : NULL,
        .msg_controllen = room};
    CHECK(recvmsg(fd, &message, MSG_DONTWAIT) == 1, "recvmsg");
    *flags = message.msg_flags;
    struct cmsghdr *first = CMSG_FIRSTHDR(&message);
    if (first) memcpy(who, CMSG_DATA(first), sizeof *who);
    return first && first->cmsg_type == SCM_CREDENTIALS;
}

// A reader that asks for credentials gets some with each message, also of senders that sent none.
static void late_credentials(void) {
    static const int kinds[] = {SOCK_STREAM, SOCK_DGRAM, SOCK_SEQPACKET};
    struct ucred who;
    int pair[2], flags;
    for (int i = 0; i < 3; i++) {
        CHECK(!socketpair(AF_UNIX, kinds[i], 0, pair) && write(pair[0], "x", 1) == 1 && write(pair[0], "y", 1) == 1,
            "write");
        CHECK(!setsockopt(pair[1], SOL_SOCKET, SO_PASSCRED, &(int){1}, 4), "SO_PASSCRED");
        CHECK(get_credentials(pair[1], &who, &flags, CMSG_SPACE(sizeof who)) && !(flags & MSG_CTRUNC),
            "credentials without a sender");
        CHECK(who.pid == 0 && who.uid == 65534 && who.gid == 65534, "%d %u %u", who.pid, who.uid, who.gid);
        CHECK(!get_credentials(pair[1], &who, &flags, 0) && (flags & MSG_CTRUNC), "no room");
        CHECK(write(pair[0], "z", 1) == 1 && get_credentials(pair[1], &who, &flags, CMSG_SPACE(sizeof who)) &&
                who.pid == getpid(),
            "asked");
        // The end of a stream brings zeroes, that of packets nothing.
        char byte, control[CMSG_SPACE(sizeof who)];
        struct iovec to = {&byte, 1};
        struct msghdr message = {.msg_iov = &to, .msg_iovlen = 1, .msg_control = control,
            .msg_controllen = sizeof control};
        close(pair[0]);
        if (kinds[i] != SOCK_DGRAM) {
            ANSWERS(0, recvmsg(pair[1], &message, MSG_DONTWAIT));
            CHECK(message.msg_controllen == (kinds[i] == SOCK_STREAM ? sizeof control : 0), "%d",
                (int)message.msg_controllen);
            memcpy(&who, CMSG_DATA((struct cmsghdr *)control), sizeof who);
            CHECK(kinds[i] != SOCK_STREAM || (!who.pid && !who.uid && !who.gid), "%d %u %u", who.pid, who.uid, who.gid);
        }
        close(pair[1]);
    }
    // The program of the accepted socket may ask after the client has sent.
    socklen_t len;
    struct sockaddr_un at = named("late", &len);
    int from = socket(AF_UNIX, SOCK_STREAM, 0), to = socket(AF_UNIX, SOCK_STREAM, 0);
    CHECK(!bind(from, (void *)&at, len) && !listen(from, 1) && !connect(to, (void *)&at, len) && write(to, "x", 1) == 1,
        "connect");
    int got = accept(from, NULL, NULL);
    CHECK(got >= 0 && !setsockopt(got, SOL_SOCKET, SO_PASSCRED, &(int){1}, 4), "accept");
    CHECK(get_credentials(got, &who, &flags, CMSG_SPACE(sizeof who)) && who.pid == getpid() && who.uid == getuid(),
        "%d", who.pid);
    close(from);
    close(to);
    close(got);
}

// A datagram of a Unix socket without a name comes from no address.
static void unnamed_senders(void) {
    int pair[2];
    CHECK(!socketpair(AF_UNIX, SOCK_DGRAM, 0, pair) && write(pair[0], "x", 1) == 1 && write(pair[0], "y", 1) == 1,
        "write");
    struct sockaddr_un from = {.sun_family = 77};
    socklen_t len = sizeof from;
    char byte;
    CHECK(recvfrom(pair[1], &byte, 1, 0, (void *)&from, &len) == 1 && len == 0 && from.sun_family == 77, "%u", len);
    struct iovec to = {&byte, 1};
    struct msghdr message = {.msg_iov = &to, .msg_iovlen = 1, .msg_name = &from, .msg_namelen = sizeof from};
    CHECK(recvmsg(pair[1], &message, 0) == 1 && message.msg_namelen == 0, "%u", message.msg_namelen);
    close(pair[0]);
    close(pair[1]);
}

// A refused connection leaves a socket as it was: without a port and an address of its own.
static void refused_and_again(void) {
    struct sockaddr_in open_at, shut_at, own;
    int from = listener(&open_at);
    close(listener(&shut_at));
    struct sockaddr_in6 six = {.sin6_family = AF_INET6, .sin6_port = shut_at.sin_port,
        .sin6_addr = IN6ADDR_LOOPBACK_INIT};
    int fd = socket(AF_INET6, SOCK_STREAM, 0);
    ANSWERS(ECONNREFUSED, connect(fd, (void *)&six, sizeof six));
    CHECK(inet_pton(AF_INET6, "::ffff:127.0.0.1", &six.sin6_addr) == 1, "inet_pton");
    six.sin6_port = open_at.sin_port;
    ANSWERS(0, connect(fd, (void *)&six, sizeof six));
    close(fd);
    fd = socket(AF_INET, SOCK_STREAM, 0);
    ANSWERS(ECONNREFUSED, connect(fd, (void *)&shut_at, sizeof shut_at));
    socklen_t len = sizeof own;
    CHECK(!getsockname(fd, (void *)&own, &len) && own.sin_addr.s_addr == htonl(INADDR_ANY), "%x", own.sin_addr.s_addr);
    own = loopback(0);
    ANSWERS(0, bind(fd, (void *)&own, sizeof own));
    ANSWERS(0, connect(fd, (void *)&open_at, sizeof open_at));
    close(fd);
    // An address without a route does not come so far: the port stays.
    struct sockaddr_in nowhere = {.sin_family = AF_INET, .sin_port = htons(9), .sin_addr.s_addr = htonl(0xf0000001)},
        after;
    fd = socket(AF_INET, SOCK_STREAM, 0);
    own = loopback(0);
    CHECK(!bind(fd, (void *)&own, sizeof own) && !getsockname(fd, (void *)&own, &len), "bind");
    CHECK(connect(fd, (void *)&nowhere, sizeof nowhere) < 0, "240.0.0.1");
    CHECK(!listen(fd, 1) && !getsockname(fd, (void *)&after, &len) && after.sin_port == own.sin_port, "another port");
    int again = socket(AF_INET, SOCK_STREAM, 0);
    ANSWERS(EADDRINUSE, bind(again, (void *)&own, sizeof own));
    close(again);
    close(fd);
    close(from);
}

// A reader of packets learns of a reset before it gets the packets that came earlier.
static void resets_of_packets(void) {
    int pair[2];
    char byte;
    CHECK(!socketpair(AF_UNIX, SOCK_SEQPACKET, 0, pair), "socketpair");
    CHECK(write(pair[0], "p", 1) == 1 && write(pair[1], "q", 1) == 1 && !close(pair[0]), "write");
    ANSWERS(ECONNRESET, recv(pair[1], &byte, 1, 0));
    CHECK(recv(pair[1], &byte, 1, 0) == 1 && byte == 'p', "the packet");
    CHECK(recv(pair[1], &byte, 1, 0) == 0, "the end");
    close(pair[1]);
}

// A call with vectors of no bytes does not come to the file. A call without vectors does.
static void nothing_in_vectors(void) {
    int pair[2];
    char bytes[4];
    struct iovec none[2] = {{bytes, 0}, {bytes, 0}};
    CHECK(!socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK, 0, pair), "socketpair");
    ANSWERS(0, writev(pair[0], none, 2));
    ANSWERS(EAGAIN, recv(pair[1], bytes, 1, 0));
    ANSWERS(0, readv(pair[1], none, 2));
    ANSWERS(0, write(pair[0], bytes, 0));
    CHECK(recv(pair[1], bytes, 1, 0) == 0, "an empty packet");
    CHECK(!shutdown(pair[0], SHUT_WR), "shutdown");
    ANSWERS(0, writev(pair[0], none, 2));
    ANSWERS(EBADF, writev(-1, none, 2));
    close(pair[0]);
    close(pair[1]);
}

static int option(int fd, int level, int name) {
    int value = -77;
    socklen_t len = sizeof value;
    CHECK(!getsockopt(fd, level, name, &value, &len), "getsockopt %d %d", level, name);
    return value;
}

static void options_of_ip(void) {
    int udp = socket(AF_INET, SOCK_DGRAM, 0), tcp = socket(AF_INET, SOCK_STREAM, 0),
        six = socket(AF_INET6, SOCK_DGRAM, 0);
    CHECK(!setsockopt(udp, SOL_IP, IP_TTL, &(int){9}, 4) && option(udp, SOL_IP, IP_TTL) == 9, "a time to live");
    CHECK(!setsockopt(udp, SOL_IP, IP_TTL, &(int){-1}, 4) && option(udp, SOL_IP, IP_TTL) == 64, "the usual one");
    ANSWERS(EINVAL, setsockopt(udp, SOL_IP, IP_TTL, &(int){0}, 4));
    ANSWERS(EINVAL, setsockopt(udp, SOL_IP, IP_TTL, &(int){256}, 4));
    ANSWERS(EINVAL, setsockopt(udp, SOL_IP, IP_TTL, &(int){9}, 0));
    CHECK(!setsockopt(udp, SOL_IP, IP_TTL, &(char){7}, 1) && option(udp, SOL_IP, IP_TTL) == 7, "of one byte");
    CHECK(!setsockopt(udp, SOL_IP, IP_TOS, &(int){0x1fe}, 4) && option(udp, SOL_IP, IP_TOS) == 0xfe, "eight bits");
    CHECK(!setsockopt(udp, SOL_IP, IP_TOS, &(char){12}, 1) && option(udp, SOL_IP, IP_TOS) == 12, "of one byte");
    CHECK(!setsockopt(udp, SOL_IP, IP_TOS, &(char){12}, 0) && option(udp, SOL_IP, IP_TOS) == 0, "of none");
    CHECK(!setsockopt(tcp, SOL_IP, IP_TOS, &(int){0xff}, 4) && option(tcp, SOL_IP, IP_TOS) == 0xfc, "of a stream");
    CHECK(!setsockopt(six, SOL_IPV6, IPV6_TCLASS, &(int){9}, 4) && option(six, SOL_IPV6, IPV6_TCLASS) == 9, "a class");
    CHECK(!setsockopt(six, SOL_IPV6, IPV6_TCLASS, &(int){-1}, 4) && option(six, SOL_IPV6, IPV6_TCLASS) == 0,
        "the usual one");
    int stream = socket(AF_INET6, SOCK_STREAM, 0);
    for (int i = 0; i < 2; i++) {
        ANSWERS(EINVAL, setsockopt(i ? stream : six, SOL_IPV6, IPV6_TCLASS, &(int){256}, 4));
        ANSWERS(EINVAL, setsockopt(i ? stream : six, SOL_IPV6, IPV6_TCLASS, &(int){-2}, 4));
    }
    CHECK(!setsockopt(stream, SOL_IPV6, IPV6_TCLASS, &(int){0xff}, 4) && option(stream, SOL_IPV6, IPV6_TCLASS) == 0xfc,
        "of a stream");
    close(stream);
    CHECK(option(six, SOL_IPV6, IPV6_MTU_DISCOVER) == IPV6_PMTUDISC_WANT, "usual search of sizes");
    CHECK(!setsockopt(six, SOL_IPV6, IPV6_MTU_DISCOVER, &(int){IPV6_PMTUDISC_OMIT}, 4), "no search of sizes");
    CHECK(option(six, SOL_IPV6, IPV6_MTU_DISCOVER) == IPV6_PMTUDISC_OMIT, "search of sizes");
    CHECK(!setsockopt(six, SOL_IPV6, IPV6_MTU, &(int){1280}, 4), "size of packets");
    CHECK(!setsockopt(six, SOL_IPV6, IPV6_MTU, &(int){0}, 4), "usual size of packets");
    CHECK(setsockopt(six, SOL_IPV6, IPV6_MTU, &(int){1279}, 4) && errno == EINVAL, "too small packets");
    CHECK(!setsockopt(six, SOL_IPV6, IPV6_UNICAST_HOPS, &(int){-1}, 4), "hops");
    CHECK(option(six, SOL_IPV6, IPV6_UNICAST_HOPS) == 64, "%d", option(six, SOL_IPV6, IPV6_UNICAST_HOPS));
    close(udp);
    close(tcp);
    close(six);
}

// The algorithm against congestion has a name, and no protocol runs above TCP.
static void names_of_algorithms(void) {
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    char name[20] = "";
    socklen_t len = sizeof name;
    CHECK(!setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, "reno", 4), "reno");
    CHECK(!getsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, name, &len) && len == 16 && !strcmp(name, "reno"), "%s %u", name,
        len);
    ANSWERS(ENOENT, setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, "nothing of this kind", 20));
    ANSWERS(EINVAL, setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, "", 0));
    ANSWERS(ENOENT, setsockopt(fd, IPPROTO_TCP, 31, "nothing", 7)); // TCP_ULP
    ANSWERS(EINVAL, setsockopt(fd, IPPROTO_TCP, 31, "", 0));
    len = sizeof name;
    CHECK(!getsockopt(fd, IPPROTO_TCP, 31, name, &len) && len == 0, "%u", len);
    close(fd);
}

// Linux checks each address as the socket's family does.
static void errors_of_addresses(void) {
    socklen_t len;
    struct sockaddr_un at = named("bound", &len);
    int unix_socket = socket(AF_UNIX, SOCK_DGRAM, 0), udp = socket(AF_INET, SOCK_DGRAM, 0),
        six = socket(AF_INET6, SOCK_STREAM, 0);
    ANSWERS(0, bind(unix_socket, (void *)&at, len));
    ANSWERS(EINVAL, bind(unix_socket, (void *)&at, len - 1));
    ANSWERS(0, bind(unix_socket, (void *)&at, sizeof(sa_family_t)));
    struct sockaddr_un path = {AF_UNIX, "/tmp"};
    ANSWERS(EADDRINUSE, bind(unix_socket, (void *)&path, sizeof path));
    strcpy(path.sun_path, "/tmp/not-there-yet");
    ANSWERS(EINVAL, bind(unix_socket, (void *)&path, sizeof path));
    CHECK(access(path.sun_path, F_OK) < 0, "no file");
    at.sun_family = 99;
    ANSWERS(EINVAL, bind(unix_socket, (void *)&at, len));
    ANSWERS(EINVAL, connect(unix_socket, (void *)&at, len));
    ANSWERS(EINVAL, sendto(unix_socket, "x", 1, 0, (void *)&at, len));
    struct sockaddr_in four = {.sin_family = AF_UNSPEC}, own = loopback(0);
    ANSWERS(0, bind(udp, (void *)&four, sizeof four));
    close(udp);
    udp = socket(AF_INET, SOCK_DGRAM, 0);
    four.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    ANSWERS(EAFNOSUPPORT, bind(udp, (void *)&four, sizeof four));
    ANSWERS(EINVAL, bind(udp, (void *)&four, 8));
    ANSWERS(EINVAL, bind(six, (void *)&own, sizeof own));
    ANSWERS(EINVAL, connect(six, (void *)&own, sizeof own));
    len = sizeof own;
    CHECK(!bind(udp, (void *)&own, len) && !getsockname(udp, (void *)&own, &len) && !connect(udp, (void *)&own, len),
        "connect");
    ANSWERS(EINVAL, sendto(udp, "x", 1, 0, (void *)&own, 0));
    int ends[2];
    connected(ends);
    CHECK(sendto(ends[0], "x", 1, 0, (void *)&at, 8) == 1, "a stream ignores any address");
    ANSWERS(EINVAL, sendto(ends[0], "x", 1, 0, (void *)&at, 129));
    ANSWERS(EFAULT, sendto(ends[0], "x", 1, 0, (void *)8, 16));
    close(unix_socket);
    close(udp);
    close(six);
    close(ends[0]);
    close(ends[1]);
}

// A privileged sender may name any process that exists.
static void credentials_of_an_ended_process(void) {
    int pair[2];
    CHECK(!socketpair(AF_UNIX, SOCK_STREAM, 0, pair), "socketpair");
    pid_t gone = fork();
    if (!gone) _exit(0);
    CHECK(waitpid(gone, NULL, 0) == gone, "waitpid");
    char control[CMSG_SPACE(sizeof(struct ucred))] = "";
    struct iovec from = {"x", 1};
    struct msghdr message = {.msg_iov = &from, .msg_iovlen = 1, .msg_control = control,
        .msg_controllen = sizeof control};
    struct cmsghdr *first = CMSG_FIRSTHDR(&message);
    *first = (struct cmsghdr){.cmsg_level = SOL_SOCKET, .cmsg_type = SCM_CREDENTIALS,
        .cmsg_len = CMSG_LEN(sizeof(struct ucred))};
    memcpy(CMSG_DATA(first), &(struct ucred){gone, 0, 0}, sizeof(struct ucred));
    ANSWERS(ESRCH, sendmsg(pair[0], &message, 0));
    close(pair[0]);
    close(pair[1]);
}

// An ordinary user has at most as many files in messages as it may open, and those of one message more.
static void files_in_flight(void) {
    pid_t child = fork();
    if (!child) {
        int pair[2], sent = 0, error = 0;
        CHECK(!setresgid(1234, 1234, 1234) && !setresuid(1234, 1234, 1234), "setresuid");
        CHECK(!setrlimit(RLIMIT_NOFILE, &(struct rlimit){20, 20}) && !socketpair(AF_UNIX, SOCK_STREAM, 0, pair),
            "limit");
        for (int round = 0; round < 2; round++) {
            for (sent = 0; sent < 100; sent++) {
                int fd = open("/dev/null", O_RDONLY);
                char control[CMSG_SPACE(3 * sizeof fd)] = "";
                struct iovec from = {"x", 1};
                struct msghdr message = {.msg_iov = &from, .msg_iovlen = 1, .msg_control = control,
                    .msg_controllen = sizeof control};
                *CMSG_FIRSTHDR(&message) = (struct cmsghdr){.cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS,
                    .cmsg_len = CMSG_LEN(3 * sizeof fd)};
                memcpy(CMSG_DATA(CMSG_FIRSTHDR(&message)), (int[3]){fd, fd, fd}, 3 * sizeof fd);
                error = sendmsg(pair[0], &message, MSG_DONTWAIT) < 0 ? errno : 0;
                close(fd);
                if (error) break;
            }
            CHECK(error == ETOOMANYREFS && sent == 7, "%d: %d messages, error %d", round, sent, error);
            // Received or dropped, they count no more.
            char byte;
            while (sent--) CHECK(read(pair[1], &byte, 1) == 1, "read");
        }
        _exit(0);
    }
    CHECK(!ended(child), "the user");
}

static void longest_messages(void) {
    static const int kinds[] = {SOCK_DGRAM, SOCK_SEQPACKET};
    static char bytes[20000];
    for (int i = 0; i < 2; i++) {
        int pair[2];
        CHECK(!socketpair(AF_UNIX, kinds[i], 0, pair) && !setsockopt(pair[0], SOL_SOCKET, SO_SNDBUF, &(int){5000}, 4),
            "SO_SNDBUF");
        ANSWERS(EMSGSIZE, send(pair[0], bytes, 10000 - 31, MSG_DONTWAIT));
        CHECK(send(pair[0], bytes, 10000 - 32, MSG_DONTWAIT) == 10000 - 32, "the longest");
        CHECK(recv(pair[1], bytes, sizeof bytes, MSG_DONTWAIT) == 10000 - 32, "all of it");
        close(pair[0]);
        close(pair[1]);
    }
}

static void add(int set, int file, unsigned events) {
    struct epoll_event event = {.events = events};
    CHECK(!epoll_ctl(set, EPOLL_CTL_ADD, file, &event), "epoll_ctl");
}

// A set that waits for the edges of another one gets an edge for each change of a file there, in whatever state the
// inner set is.
static void edges_of_nested_sets(void) {
    for (int look = 0; look < 3; look++) {
        int ends[2], inner = epoll_create1(0), outer = epoll_create1(0), outermost = epoll_create1(0);
        struct epoll_event events[4];
        char byte;
        CHECK(!pipe(ends), "pipe");
        if (look == 2) add(outer, inner, EPOLLIN | EPOLLET);
        add(inner, ends[0], EPOLLIN);
        if (look != 2) add(outer, inner, EPOLLIN | EPOLLET);
        add(outermost, outer, EPOLLIN | EPOLLET);
        ANSWERS(0, epoll_wait(outer, events, 4, 0));
        ANSWERS(0, epoll_wait(outermost, events, 4, 0));
        for (int i = 0; i < 3; i++) {
            CHECK(write(ends[1], "a", 1) == 1 && epoll_wait(outermost, events, 4, 1000) == 1, "the outermost %d of %d",
                i, look);
            CHECK(epoll_wait(outer, events, 4, 0) == 1 && epoll_wait(outer, events, 4, 0) == 0, "edge %d of %d", i,
                look);
            if (look) CHECK(epoll_wait(inner, events, 4, 0) == 1, "the inner set");
            CHECK(read(ends[0], &byte, 1) == 1, "read");
        }
        close(inner);
        close(outer);
        close(outermost);
        close(ends[0]);
        close(ends[1]);
    }
}

static void requests_to_random(void) {
    int fd = open("/dev/urandom", O_RDWR), bits = -1;
    struct {
        int bits, len;
        char bytes[3000];
    } more = {24000, 3000, ""};
    CHECK(fd >= 0 && !ioctl(fd, 0x80045200, &bits) && bits == 256, "RNDGETENTCNT: %d", bits);
    CHECK(!ioctl(fd, 0x40085203, &more), "RNDADDENTROPY");
    more.len = -1;
    ANSWERS(EFAULT, ioctl(fd, 0x40085203, &more));
    ANSWERS(EINVAL, ioctl(fd, 0x40045201, &more.len));
    ANSWERS(EFAULT, ioctl(fd, 0x40085203, 8L));
    ANSWERS(EINVAL, ioctl(fd, TIOCGWINSZ, &more));
    CHECK(!setresuid(-1, 1000, 0), "setresuid");
    ANSWERS(EPERM, ioctl(fd, 0x40085203, &more));
    ANSWERS(EPERM, ioctl(fd, 0x5204, 0));
    CHECK(!setresuid(-1, 0, 0) && !close(fd), "setresuid");
}

static const struct check checks[] = {
    {"connections_that_are_over", connections_that_are_over},
    {"late_credentials", late_credentials},
    {"unnamed_senders", unnamed_senders},
    {"refused_and_again", refused_and_again},
    {"resets_of_packets", resets_of_packets},
    {"nothing_in_vectors", nothing_in_vectors},
    {"options_of_ip", options_of_ip},
    {"names_of_algorithms", names_of_algorithms},
    {"errors_of_addresses", errors_of_addresses},
    {"credentials_of_an_ended_process", credentials_of_an_ended_process},
    {"files_in_flight", files_in_flight},
    {"longest_messages", longest_messages},
    {"edges_of_nested_sets", edges_of_nested_sets},
    {"requests_to_random", requests_to_random},
};

int main(int argc, char **argv) {
    parse_options(argc, argv, NULL);
    run_checks(checks, sizeof checks / sizeof *checks);
    return 0;
}
