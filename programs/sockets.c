// Sockets between processes of one machine: each check holds on Linux and on Quire.
#define _GNU_SOURCE
#include "checks.h"
#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stddef.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

static struct sockaddr_in loopback(int port) {
    return (struct sockaddr_in){.sin_family = AF_INET, .sin_port = htons(port),
        .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
}

static struct sockaddr_un named(const char *name, socklen_t *len) {
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    // '@' stands for the zero of an abstract name.
    memcpy(at.sun_path, name, strlen(name));
    if (*name == '@') at.sun_path[0] = 0;
    *len = offsetof(struct sockaddr_un, sun_path) + strlen(name) + (*name != '@');
    return at;
}

static int tcp(void) {
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    CHECK(fd >= 0, "socket");
    return fd;
}

// A listening TCP socket at a free port, which it stores.
static int listener(struct sockaddr_in *at, int backlog) {
    int fd = tcp();
    socklen_t len = sizeof *at;
    *at = loopback(0);
    CHECK(!bind(fd, (void *)at, len) && !listen(fd, backlog), "listen");
    CHECK(!getsockname(fd, (void *)at, &len) && len == sizeof *at && at->sin_port, "getsockname");
    return fd;
}

static void connected(int ends[2]) {
    struct sockaddr_in at;
    int from = listener(&at, 1);
    ends[0] = tcp();
    CHECK(!connect(ends[0], (void *)&at, sizeof at), "connect");
    ends[1] = accept(from, NULL, NULL);
    CHECK(ends[1] >= 0, "accept");
    close(from);
}

static int events_of(int fd) {
    struct pollfd p = {fd, POLLIN | POLLOUT | POLLRDHUP | POLLPRI, 0};
    CHECK(poll(&p, 1, 0) >= 0, "poll");
    return p.revents;
}

static int error_of(int fd) {
    int error = -1;
    socklen_t len = sizeof error;
    CHECK(!getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &len), "SO_ERROR");
    return error;
}

static int option(int fd, int level, int name) {
    int value = -1;
    socklen_t len = sizeof value;
    CHECK(!getsockopt(fd, level, name, &value, &len) && len == sizeof value, "option %d", name);
    return value;
}

static void families_and_types(void) {
    ANSWERS(EAFNOSUPPORT, socket(45, SOCK_STREAM, 0));
    ANSWERS(EAFNOSUPPORT, socket(4711, SOCK_STREAM, 0));
    ANSWERS(EINVAL, socket(AF_UNIX, 11, 0));
    ANSWERS(EPROTONOSUPPORT, socket(AF_UNIX, SOCK_STREAM, 17));
    ANSWERS(EPROTONOSUPPORT, socket(AF_INET, SOCK_STREAM, IPPROTO_UDP));
    ANSWERS(ESOCKTNOSUPPORT, socket(AF_INET, SOCK_SEQPACKET, 0));
    ANSWERS(EOPNOTSUPP, socketpair(AF_INET, SOCK_STREAM, 0, (int[2]){0}));
    ANSWERS(ENOTSOCK, bind(0, NULL, 0));
    ANSWERS(EBADF, listen(999, 1));
    int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    CHECK(fd >= 0 && fcntl(fd, F_GETFD) == FD_CLOEXEC && fcntl(fd, F_GETFL) == (O_RDWR | O_NONBLOCK), "flags");
    CHECK(option(fd, SOL_SOCKET, SO_TYPE) == SOCK_DGRAM && option(fd, SOL_SOCKET, SO_DOMAIN) == AF_UNIX, "type");
    ANSWERS(EOPNOTSUPP, listen(fd, 1));
    ANSWERS(ENOTCONN, getpeername(fd, (void *)(char[16]){0}, &(socklen_t){16}));
    struct stat s;
    CHECK(!fstat(fd, &s) && S_ISSOCK(s.st_mode), "a socket");
    ANSWERS(ESPIPE, lseek(fd, 0, SEEK_CUR));
    close(fd);
}

static void a_connection_over_tcp(void) {
    int ends[2];
    connected(ends);
    struct sockaddr_in a, b;
    socklen_t len = sizeof a;
    CHECK(!getsockname(ends[0], (void *)&a, &len) && !getpeername(ends[1], (void *)&b, &len), "names");
    CHECK(a.sin_port == b.sin_port && a.sin_addr.s_addr == htonl(INADDR_LOOPBACK) &&
        a.sin_addr.s_addr == b.sin_addr.s_addr, "one address");
    CHECK(events_of(ends[0]) == POLLOUT, "nothing to read");
    char bytes[64];
    CHECK(write(ends[0], "hello", 5) == 5 && events_of(ends[1]) == (POLLIN | POLLOUT), "bytes");
    int n = 0;
    CHECK(!ioctl(ends[1], FIONREAD, &n) && n == 5, "FIONREAD");
    CHECK(recv(ends[1], bytes, 2, MSG_PEEK) == 2 && read(ends[1], bytes, sizeof bytes) == 5 &&
        !memcmp(bytes, "hello", 5), "read");
    ANSWERS(EAGAIN, recv(ends[1], bytes, 1, MSG_DONTWAIT));
    ANSWERS(EISCONN, connect(ends[0], (void *)&b, sizeof b));
    ANSWERS(EINVAL, accept(ends[0], NULL, NULL));
    // Half of it is closed: the other half goes on.
    CHECK(!shutdown(ends[0], SHUT_WR) && events_of(ends[1]) == (POLLIN | POLLOUT | POLLRDHUP), "SHUT_WR");
    CHECK(read(ends[1], bytes, 1) == 0 && write(ends[1], "bye", 3) == 3 && read(ends[0], bytes, 9) == 3, "half-closed");
    signal(SIGPIPE, SIG_IGN);
    ANSWERS(EPIPE, write(ends[0], "x", 1));
    close(ends[1]);
    CHECK(read(ends[0], bytes, 1) == 0 && events_of(ends[0]) & POLLHUP, "closed");
    close(ends[0]);
}

static void a_reset(void) {
    int ends[2];
    char bytes[8];
    connected(ends);
    signal(SIGPIPE, SIG_IGN);
    // Unread bytes are lost with the reader, and the writer gets an error.
    CHECK(write(ends[0], "lost", 4) == 4 && !close(ends[1]), "close");
    CHECK(events_of(ends[0]) == (POLLIN | POLLOUT | POLLERR | POLLHUP | POLLRDHUP), "poll reports %x",
        events_of(ends[0]));
    ANSWERS(ECONNRESET, read(ends[0], bytes, 1));
    CHECK(read(ends[0], bytes, 1) == 0, "once");
    ANSWERS(EPIPE, write(ends[0], "x", 1));
    close(ends[0]);
    // A socket that lingers for no time resets too.
    connected(ends);
    CHECK(!setsockopt(ends[1], SOL_SOCKET, SO_LINGER, &(struct linger){1, 0}, sizeof(struct linger)) && !close(ends[1]),
        "SO_LINGER");
    CHECK(error_of(ends[0]) == ECONNRESET && error_of(ends[0]) == 0, "SO_ERROR");
    close(ends[0]);
    // So does a listener with its connections.
    struct sockaddr_in at;
    int from = listener(&at, 8), fd = tcp();
    CHECK(!connect(fd, (void *)&at, sizeof at) && !close(from), "connect");
    ANSWERS(ECONNRESET, read(fd, bytes, 1));
    close(fd);
    ANSWERS(ECONNREFUSED, connect(fd = tcp(), (void *)&at, sizeof at));
    close(fd);
}

static void connects_that_do_not_wait(void) {
    struct sockaddr_in at;
    int from = listener(&at, 4), fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    ANSWERS(EINPROGRESS, connect(fd, (void *)&at, sizeof at));
    struct pollfd p = {fd, POLLOUT, 0};
    CHECK(poll(&p, 1, 5000) == 1 && p.revents == POLLOUT && error_of(fd) == 0, "connected");
    CHECK(!connect(fd, (void *)&at, sizeof at), "reported once");
    ANSWERS(EISCONN, connect(fd, (void *)&at, sizeof at));
    close(from), close(fd);
    fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    ANSWERS(EINPROGRESS, connect(fd, (void *)&at, sizeof at));
    p.fd = fd;
    CHECK(poll(&p, 1, 5000) == 1 && p.revents & POLLERR && error_of(fd) == ECONNREFUSED, "refused");
    close(fd);
}

static void ports_and_addresses(void) {
    struct sockaddr_in at, any = loopback(0);
    int from = listener(&at, 4), fd = tcp();
    ANSWERS(EADDRINUSE, bind(fd, (void *)&at, sizeof at));
    any = at, any.sin_addr.s_addr = 0;
    ANSWERS(EADDRINUSE, bind(fd, (void *)&any, sizeof any));
    any.sin_addr.s_addr = htonl(0x7f000002);
    CHECK(!bind(fd, (void *)&any, sizeof any), "another loopback address");
    ANSWERS(EINVAL, bind(fd, (void *)&any, sizeof any));
    close(fd), fd = tcp();
    any.sin_addr.s_addr = htonl(0xc0000201);
    ANSWERS(EADDRNOTAVAIL, bind(fd, (void *)&any, sizeof any));
    ANSWERS(EINVAL, bind(fd, (void *)&any, 4));
    any.sin_family = AF_UNIX;
    ANSWERS(EAFNOSUPPORT, bind(fd, (void *)&any, sizeof any));
    ANSWERS(ENOTCONN, getpeername(fd, (void *)&any, &(socklen_t){sizeof any}));
    ANSWERS(ENOTCONN, recv(fd, (char[1]){0}, 1, 0));
    ANSWERS(EINVAL, accept(fd, NULL, NULL));
    CHECK(events_of(fd) == (POLLOUT | POLLHUP), "not connected: %x", events_of(fd));
    close(fd), close(from);
    // A group of listeners at one port.
    int two[2];
    at = loopback(0);
    socklen_t len = sizeof at;
    for (int i = 0; i < 2; i++) {
        two[i] = tcp();
        CHECK(!setsockopt(two[i], SOL_SOCKET, SO_REUSEPORT, &(int){1}, 4), "SO_REUSEPORT");
        CHECK(!bind(two[i], (void *)&at, sizeof at) && !listen(two[i], 64) && !getsockname(two[i], (void *)&at, &len),
            "a group");
    }
    int in[2] = {0}, fds[32];
    for (int i = 0; i < 32; i++) CHECK(!connect(fds[i] = tcp(), (void *)&at, sizeof at), "connect");
    for (int i = 0; i < 2; i++) {
        fcntl(two[i], F_SETFL, O_NONBLOCK);
        for (int got; (got = accept(two[i], NULL, NULL)) >= 0; in[i]++) close(got);
    }
    CHECK(in[0] + in[1] == 32 && in[0] && in[1], "%d and %d connections", in[0], in[1]);
    for (int i = 0; i < 32; i++) close(fds[i]);
    close(two[0]), close(two[1]);
}

static void both_families(void) {
    int six = socket(AF_INET6, SOCK_STREAM, 0), four = tcp();
    struct sockaddr_in6 at = {.sin6_family = AF_INET6};
    socklen_t len = sizeof at;
    CHECK(six >= 0 && !bind(six, (void *)&at, len) && !listen(six, 4) && !getsockname(six, (void *)&at, &len),
        "listen");
    struct sockaddr_in to = loopback(ntohs(at.sin6_port));
    ANSWERS(EADDRINUSE, bind(four, (void *)&to, sizeof to));
    CHECK(!connect(four, (void *)&to, sizeof to), "an old address");
    int got = accept(six, (void *)&at, &len);
    CHECK(got >= 0 && IN6_IS_ADDR_V4MAPPED(&at.sin6_addr) && at.sin6_addr.s6_addr[12] == 127, "mapped");
    close(got), close(four);
    struct sockaddr_in6 self = {.sin6_family = AF_INET6, .sin6_port = to.sin_port, .sin6_addr = IN6ADDR_LOOPBACK_INIT};
    int other = socket(AF_INET6, SOCK_STREAM, 0);
    CHECK(!connect(other, (void *)&self, sizeof self), "::1");
    got = accept(six, (void *)&at, &len);
    CHECK(got >= 0 && !memcmp(&at.sin6_addr, &in6addr_loopback, 16), "::1");
    close(got), close(other), close(six);
    // Alone, it leaves the port of the old family free.
    six = socket(AF_INET6, SOCK_STREAM, 0), four = tcp();
    at = (struct sockaddr_in6){.sin6_family = AF_INET6};
    CHECK(!setsockopt(six, IPPROTO_IPV6, IPV6_V6ONLY, &(int){1}, 4) && !bind(six, (void *)&at, len) &&
        !getsockname(six, (void *)&at, &len), "alone");
    to = loopback(ntohs(at.sin6_port));
    CHECK(!bind(four, (void *)&to, sizeof to), "the old family");
    close(six), close(four);
}

static void datagrams(void) {
    int a = socket(AF_INET, SOCK_DGRAM, 0), b = socket(AF_INET, SOCK_DGRAM | SOCK_NONBLOCK, 0);
    struct sockaddr_in at = loopback(0), from;
    socklen_t len = sizeof at;
    char bytes[70000] = "";
    CHECK(!bind(b, (void *)&at, len) && !getsockname(b, (void *)&at, &len), "bind");
    ANSWERS(EDESTADDRREQ, send(a, "x", 1, 0));
    CHECK(sendto(a, "one", 3, 0, (void *)&at, len) == 3 && sendto(a, "", 0, 0, (void *)&at, len) == 0, "sendto");
    CHECK(sendto(a, bytes, 65507, 0, (void *)&at, len) == 65507, "the largest");
    ANSWERS(EMSGSIZE, sendto(a, bytes, 65508, 0, (void *)&at, len));
    CHECK(recvfrom(b, bytes, 2, MSG_TRUNC | MSG_PEEK, (void *)&from, &len) == 3 &&
        from.sin_addr.s_addr == htonl(INADDR_LOOPBACK), "its length");
    CHECK(recv(b, bytes, 2, 0) == 2 && recv(b, bytes, 9, 0) == 0 && recv(b, bytes, sizeof bytes, 0) == 65507,
        "in order");
    ANSWERS(EAGAIN, recv(b, bytes, 9, 0));
    CHECK(sendto(b, "back", 4, 0, (void *)&from, len) == 4 && recv(a, bytes, 9, 0) == 4, "an answer");
    // Connected, it hears no other, and hears of a port that is gone.
    CHECK(!connect(b, (void *)&from, len), "connect");
    int c = socket(AF_INET, SOCK_DGRAM, 0);
    CHECK(sendto(c, "c", 1, 0, (void *)&at, len) == 1 && send(a, "a", 1, 0) == -1, "send");
    ANSWERS(EAGAIN, recv(b, bytes, 9, 0));
    CHECK(sendto(a, "a", 1, 0, (void *)&at, len) == 1 && recv(b, bytes, 9, 0) == 1 && *bytes == 'a', "from its peer");
    close(a);
    CHECK(send(b, "x", 1, 0) == 1, "send");
    ANSWERS(ECONNREFUSED, send(b, "x", 1, 0));
    close(b), close(c);
}

// A control message of `len` bytes at `data`, sent with one byte from `fd` to `to`.
static ssize_t send_with(int fd, const void *to, socklen_t to_len, int level, int kind, const void *data, size_t len) {
    union {
        char bytes[128];
        struct cmsghdr header;
    } control = {.header = {.cmsg_len = CMSG_LEN(len), .cmsg_level = level, .cmsg_type = kind}};
    memcpy(CMSG_DATA(&control.header), data, len);
    struct iovec one = {"x", 1};
    struct msghdr message = {.msg_name = (void *)to, .msg_namelen = to_len, .msg_iov = &one, .msg_iovlen = 1};
    message.msg_control = control.bytes, message.msg_controllen = CMSG_SPACE(len);
    return sendmsg(fd, &message, 0);
}

// Receives one datagram. The data of its control message of this level and type goes to `data`; the length, or -1.
static int header_field(int fd, int flags, int level, int kind, void *data) {
    _Alignas(8) char control[256], bytes[8];
    struct sockaddr_in6 from;
    struct iovec one = {bytes, sizeof bytes};
    struct msghdr message = {.msg_name = &from, .msg_namelen = sizeof from, .msg_iov = &one, .msg_iovlen = 1};
    message.msg_control = control, message.msg_controllen = sizeof control;
    CHECK(recvmsg(fd, &message, flags) == 1 && !message.msg_flags, "recvmsg");
    for (struct cmsghdr *at = CMSG_FIRSTHDR(&message); at; at = CMSG_NXTHDR(&message, at))
        if (at->cmsg_level == level && at->cmsg_type == kind) {
            memcpy(data, CMSG_DATA(at), at->cmsg_len - CMSG_LEN(0));
            return at->cmsg_len - CMSG_LEN(0);
        }
    return -1;
}

static void headers_of_datagrams(void) {
    int on = 1, sender = socket(AF_INET, SOCK_DGRAM, 0), receiver = socket(AF_INET, SOCK_DGRAM, 0);
    struct sockaddr_in at = {.sin_family = AF_INET};
    socklen_t len = sizeof at;
    CHECK(!bind(receiver, (void *)&at, len) && !getsockname(receiver, (void *)&at, &len), "bind");
    at.sin_addr.s_addr = htonl(0x7f000002);
    unsigned char data[64];
    CHECK(sendto(sender, "x", 1, 0, (void *)&at, len) == 1, "sendto");
    CHECK(header_field(receiver, 0, IPPROTO_IP, IP_PKTINFO, data) == -1, "nothing that was not asked for");
    CHECK(!setsockopt(receiver, IPPROTO_IP, IP_PKTINFO, &on, 4) &&
        !setsockopt(receiver, IPPROTO_IP, IP_RECVTTL, &on, 4) &&
              !setsockopt(receiver, IPPROTO_IP, IP_RECVTOS, &on, 4),
          "options");
    CHECK(sendto(sender, "x", 1, 0, (void *)&at, len) == 1, "sendto");
    struct in_pktinfo info;
    CHECK(header_field(receiver, MSG_PEEK, IPPROTO_IP, IP_PKTINFO, &info) == sizeof info, "in_pktinfo");
    CHECK(info.ipi_ifindex == 1 && info.ipi_addr.s_addr == at.sin_addr.s_addr &&
        info.ipi_spec_dst.s_addr == at.sin_addr.s_addr,
          "interface %d, to %#x", info.ipi_ifindex, ntohl(info.ipi_addr.s_addr));
    CHECK(header_field(receiver, MSG_PEEK, IPPROTO_IP, IP_TOS, data) == 1 && data[0] == 0, "class");
    int hops = 0;
    CHECK(header_field(receiver, 0, IPPROTO_IP, IP_TTL, &hops) == 4 && hops == 64, "%d hops", hops);
    // The sender's options, and its choice for one datagram.
    int value = 9;
    CHECK(!setsockopt(sender, IPPROTO_IP, IP_TTL, &value, 4) && !connect(sender, (void *)&at, len) &&
        write(sender, "x", 1) == 1, "TTL");
    CHECK(header_field(receiver, 0, IPPROTO_IP, IP_TTL, &hops) == 4 && hops == 9, "%d hops", hops);
    value = 7;
    CHECK(send_with(sender, NULL, 0, IPPROTO_IP, IP_TTL, &value, 4) == 1, "IP_TTL");
    CHECK(header_field(receiver, 0, IPPROTO_IP, IP_TTL, &hops) == 4 && hops == 7, "%d hops", hops);
    value = 0x10;
    CHECK(send_with(sender, NULL, 0, IPPROTO_IP, IP_TOS, &value, 4) == 1, "IP_TOS");
    CHECK(header_field(receiver, 0, IPPROTO_IP, IP_TOS, data) == 1 && data[0] == 0x10, "class %#x", data[0]);
    value = 0;
    ANSWERS(EINVAL, send_with(sender, NULL, 0, IPPROTO_IP, IP_TTL, &value, 4));
    value = 256;
    ANSWERS(EINVAL, send_with(sender, NULL, 0, IPPROTO_IP, IP_TTL, &value, 4));
    ANSWERS(EINVAL, send_with(sender, NULL, 0, IPPROTO_IP, IP_TOS, &value, 4));
    ANSWERS(EINVAL, send_with(sender, NULL, 0, IPPROTO_IP, IP_TTL, &value, 2));
    ANSWERS(EINVAL, send_with(sender, NULL, 0, IPPROTO_IP, 200, &value, 4));
    ANSWERS(EINVAL, send_with(sender, NULL, 0, IPPROTO_IP, IP_PKTINFO, &info, sizeof info - 1));
    CHECK(send_with(sender, NULL, 0, IPPROTO_IPV6, IPV6_HOPLIMIT, &value, 1) == 1, "another level");
    CHECK(recv(receiver, data, sizeof data, 0) == 1, "recv");
    // The reply comes from the address that was asked.
    int server = socket(AF_INET, SOCK_DGRAM, 0);
    info = (struct in_pktinfo){.ipi_spec_dst.s_addr = htonl(0x7f000003)};
    CHECK(send_with(server, &at, len, IPPROTO_IP, IP_PKTINFO, &info, sizeof info) == 1, "from another address");
    struct sockaddr_in from;
    CHECK(recvfrom(receiver, data, 1, 0, (void *)&from, &len) == 1 && ntohl(from.sin_addr.s_addr) == 0x7f000003,
        "from %#x",
          ntohl(from.sin_addr.s_addr));
    info.ipi_spec_dst.s_addr = htonl(0x08080808);
    ANSWERS(ENETUNREACH, send_with(server, &at, len, IPPROTO_IP, IP_PKTINFO, &info, sizeof info));
    close(sender), close(receiver), close(server);
    // IPv6, whose sockets also see the headers of IPv4.
    sender = socket(AF_INET6, SOCK_DGRAM, 0), receiver = socket(AF_INET6, SOCK_DGRAM, 0);
    struct sockaddr_in6 six = {.sin6_family = AF_INET6};
    len = sizeof six;
    CHECK(!bind(receiver, (void *)&six, len) && !getsockname(receiver, (void *)&six, &len), "bind");
    six.sin6_addr = in6addr_loopback;
    CHECK(!setsockopt(receiver, IPPROTO_IPV6, IPV6_RECVPKTINFO, &on, 4) &&
              !setsockopt(receiver, IPPROTO_IPV6, IPV6_RECVHOPLIMIT, &on, 4) &&
              !setsockopt(receiver, IPPROTO_IPV6, IPV6_RECVTCLASS, &on, 4),
          "options");
    CHECK(sendto(sender, "x", 1, 0, (void *)&six, len) == 1, "sendto");
    struct in6_pktinfo {
        struct in6_addr to;
        unsigned interface;
    } info6;
    enum { PKTINFO6 = 50 };
    CHECK(header_field(receiver, MSG_PEEK, IPPROTO_IPV6, PKTINFO6, &info6) == sizeof info6, "in6_pktinfo");
    CHECK(info6.interface == 1 && !memcmp(&info6.to, &in6addr_loopback, 16), "interface %u", info6.interface);
    CHECK(header_field(receiver, 0, IPPROTO_IPV6, IPV6_HOPLIMIT, &hops) == 4 && hops == 64, "%d hops", hops);
    value = 3;
    CHECK(send_with(sender, &six, len, IPPROTO_IPV6, IPV6_HOPLIMIT, &value, 4) == 1, "IPV6_HOPLIMIT");
    CHECK(header_field(receiver, 0, IPPROTO_IPV6, IPV6_HOPLIMIT, &hops) == 4 && hops == 3, "%d hops", hops);
    CHECK(send_with(sender, &six, len, IPPROTO_IPV6, IPV6_TCLASS, &value, 4) == 1, "IPV6_TCLASS");
    CHECK(header_field(receiver, 0, IPPROTO_IPV6, IPV6_TCLASS, &value) == 4 && value == 3, "class %d", value);
    value = -1;
    CHECK(send_with(sender, &six, len, IPPROTO_IPV6, IPV6_HOPLIMIT, &value, 4) == 1, "the usual number");
    CHECK(header_field(receiver, 0, IPPROTO_IPV6, IPV6_HOPLIMIT, &hops) == 4 && hops == 64, "%d hops", hops);
    value = 256;
    ANSWERS(EINVAL, send_with(sender, &six, len, IPPROTO_IPV6, IPV6_HOPLIMIT, &value, 4));
    ANSWERS(EINVAL, send_with(sender, &six, len, IPPROTO_IPV6, IPV6_TCLASS, &value, 4));
    ANSWERS(EINVAL, send_with(sender, &six, len, IPPROTO_IPV6, IPV6_HOPLIMIT, &value, 2));
    ANSWERS(EINVAL, send_with(sender, &six, len, IPPROTO_IPV6, 200, &value, 4));
    struct sockaddr_in four = {.sin_family = AF_INET, .sin_port = six.sin6_port,
        .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    close(sender);
    sender = socket(AF_INET, SOCK_DGRAM, 0);
    CHECK(sendto(sender, "x", 1, 0, (void *)&four, sizeof four) == 1, "to IPv4");
    CHECK(header_field(receiver, 0, IPPROTO_IPV6, PKTINFO6, &info6) == sizeof info6 && IN6_IS_ADDR_V4MAPPED(&info6.to),
        "a mapped address");
    // Without room, the flag says so.
    CHECK(sendto(sender, "x", 1, 0, (void *)&four, sizeof four) == 1, "to IPv4");
    char byte;
    struct iovec one = {&byte, 1};
    struct msghdr message = {.msg_iov = &one, .msg_iovlen = 1};
    CHECK(recvmsg(receiver, &message, 0) == 1 && message.msg_flags == MSG_CTRUNC, "no room");
    close(sender), close(receiver);
}

static void names_in_the_tree(void) {
    socklen_t len;
    struct sockaddr_un at = named("socket-here", &len), back;
    unlink("socket-here");
    int from = socket(AF_UNIX, SOCK_STREAM, 0), fd = socket(AF_UNIX, SOCK_STREAM, 0),
        other = socket(AF_UNIX, SOCK_STREAM, 0);
    ANSWERS(ENOENT, connect(fd, (void *)&at, len));
    CHECK(!bind(from, (void *)&at, len), "bind");
    ANSWERS(EADDRINUSE, bind(other, (void *)&at, len));
    ANSWERS(ECONNREFUSED, connect(fd, (void *)&at, len));
    CHECK(!listen(from, 1) && !connect(fd, (void *)&at, len), "connect");
    struct stat s;
    CHECK(!stat("socket-here", &s) && S_ISSOCK(s.st_mode), "a socket in the tree");
    ANSWERS(ENXIO, open("socket-here", O_RDONLY));
    socklen_t size = sizeof back;
    int got = accept(from, (void *)&back, &size);
    CHECK(got >= 0 && size == sizeof(sa_family_t) && back.sun_family == AF_UNIX, "a client without a name");
    size = sizeof back;
    CHECK(!getpeername(fd, (void *)&back, &size) && size == len && !strcmp(back.sun_path, "socket-here"),
        "the listener's name");
    size = sizeof back;
    CHECK(!getsockname(got, (void *)&back, &size) && size == len, "and of what it accepts");
    struct ucred peer;
    size = sizeof peer;
    CHECK(!getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) && peer.pid == getpid() && peer.uid == getuid(),
        "SO_PEERCRED");
    // The name may go. A connection stays.
    CHECK(!unlink("socket-here") && write(fd, "x", 1) == 1 && read(got, (char[1]){0}, 1) == 1, "unlink");
    ANSWERS(ENOENT, connect(other, (void *)&at, len));
    close(from), close(got);
    CHECK(read(fd, (char[1]){0}, 1) == 0, "closed");
    close(fd), close(other);
    int dgram = socket(AF_UNIX, SOCK_DGRAM, 0);
    CHECK(!bind(dgram, (void *)&at, len), "bind");
    ANSWERS(EPROTOTYPE, connect(fd = socket(AF_UNIX, SOCK_STREAM, 0), (void *)&at, len));
    unlink("socket-here"), close(dgram), close(fd);
}

static void abstract_names(void) {
    socklen_t len, size;
    struct sockaddr_un at = named("@quire-abstract", &len), back;
    int from = socket(AF_UNIX, SOCK_SEQPACKET, 0), fd = socket(AF_UNIX, SOCK_SEQPACKET, 0);
    CHECK(!bind(from, (void *)&at, len) && !listen(from, 0), "listen");
    ANSWERS(EADDRINUSE, bind(fd, (void *)&at, len));
    CHECK(!bind(fd, (void *)&at, sizeof(sa_family_t)), "a name of the kernel's choice");
    size = sizeof back;
    CHECK(!getsockname(fd, (void *)&back, &size) && size == sizeof(sa_family_t) + 6 && !back.sun_path[0],
        "five digits");
    CHECK(!connect(fd, (void *)&at, len), "connect");
    int more = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK, 0);
    ANSWERS(EAGAIN, connect(more, (void *)&at, len));
    int got = accept(from, NULL, NULL);
    char bytes[16];
    CHECK(write(fd, "one", 3) == 3 && write(fd, "three", 5) == 5 && read(got, bytes, 2) == 2 &&
        read(got, bytes, 16) == 5, "packets");
    close(fd);
    CHECK(read(got, bytes, 16) == 0, "the end");
    close(got), close(from);
    ANSWERS(ECONNREFUSED, connect(more, (void *)&at, len));
    close(more);
}

// Sends `n` bytes and a file.
static ssize_t give(int to, int file, const char *bytes, size_t n) {
    char room[CMSG_SPACE(sizeof(int))] = "";
    struct iovec v = {(void *)bytes, n};
    struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1, .msg_control = room, .msg_controllen = sizeof room};
    struct cmsghdr *c = CMSG_FIRSTHDR(&m);
    *c = (struct cmsghdr){.cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS, .cmsg_len = CMSG_LEN(sizeof file)};
    memcpy(CMSG_DATA(c), &file, sizeof file);
    return sendmsg(to, &m, 0);
}

// Receives bytes; returns the file that came with them, or -1.
static int take(int from, char *bytes, size_t *n, int *flags) {
    char room[CMSG_SPACE(sizeof(int)) + CMSG_SPACE(sizeof(struct ucred))] = "";
    struct iovec v = {bytes, *n};
    struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1, .msg_control = room, .msg_controllen = sizeof room};
    ssize_t got = recvmsg(from, &m, MSG_CMSG_CLOEXEC);
    CHECK(got >= 0, "recvmsg");
    *n = got, *flags = m.msg_flags;
    for (struct cmsghdr *c = CMSG_FIRSTHDR(&m); c; c = CMSG_NXTHDR(&m, c))
        if (c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_RIGHTS) return *(int *)CMSG_DATA(c);
    return -1;
}

static void files_travel(void) {
    static const int types[] = {SOCK_STREAM, SOCK_DGRAM, SOCK_SEQPACKET};
    for (int i = 0; i < 3; i++) {
        int ends[2], pipe_ends[2], flags;
        char bytes[16];
        CHECK(!socketpair(AF_UNIX, types[i], 0, ends) && !pipe(pipe_ends), "socketpair");
        CHECK(write(ends[0], "ab", 2) == 2 && give(ends[0], pipe_ends[1], "cd", 2) == 2 && write(ends[0], "ef", 2) == 2,
            "sendmsg");
        close(pipe_ends[1]);
        size_t n = sizeof bytes;
        int got = -1;
        if (i) {
            got = take(ends[1], bytes, &n, &flags);
            CHECK(got == -1 && n == 2, "bytes before the file: %zu", n);
            n = sizeof bytes;
        }
        // A stream's read goes on to the end of the bytes that came with a file.
        got = take(ends[1], bytes, &n, &flags);
        CHECK(got >= 0 && !(i ? memcmp(bytes, "cd", n) : memcmp(bytes, "abcd", n)) && n == (i ? 2 : 4),
            "a file and %zu bytes", n);
        CHECK(fcntl(got, F_GETFD) == FD_CLOEXEC && read(ends[1], bytes, sizeof bytes) == 2 && *bytes == 'e',
            "bytes behind it");
        CHECK(write(got, "x", 1) == 1 && read(pipe_ends[0], bytes, 1) == 1, "it is the pipe");
        close(got);
        CHECK(read(pipe_ends[0], bytes, 1) == 0, "no other end is left");
        // A file that is not taken is closed with the socket.
        CHECK(!close(pipe_ends[0]) && !pipe(pipe_ends) && give(ends[0], pipe_ends[1], "x", 1) == 1 &&
            !close(pipe_ends[1]), "a file");
        close(ends[0]), close(ends[1]);
        CHECK(read(pipe_ends[0], bytes, 1) == 0, "it is closed");
        close(pipe_ends[0]);
    }
    int ends[2];
    CHECK(!socketpair(AF_UNIX, SOCK_STREAM, 0, ends), "socketpair");
    ANSWERS(EBADF, give(ends[0], 999, "x", 1));
    close(ends[0]), close(ends[1]);
}

static void files_that_travel_in_each_other(void) {
    // Each round leaves two sockets that only a message holds, which is in one of them.
    for (int i = 0; i < 200; i++) {
        int ends[2];
        CHECK(!socketpair(AF_UNIX, SOCK_DGRAM, 0, ends), "socketpair %d", i);
        CHECK(give(ends[0], ends[1], "x", 1) == 1 && give(ends[1], ends[0], "x", 1) == 1, "sendmsg");
        close(ends[0]), close(ends[1]);
    }
}

static void credentials_travel(void) {
    int ends[2];
    CHECK(!socketpair(AF_UNIX, SOCK_STREAM, 0, ends), "socketpair");
    CHECK(!setsockopt(ends[1], SOL_SOCKET, SO_PASSCRED, &(int){1}, 4), "SO_PASSCRED");
    pid_t child = fork();
    if (!child) _exit(write(ends[0], "x", 1) != 1);
    ended(child);
    char bytes[4], room[CMSG_SPACE(sizeof(struct ucred))];
    struct iovec v = {bytes, 4};
    struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1, .msg_control = room, .msg_controllen = sizeof room};
    CHECK(recvmsg(ends[1], &m, 0) == 1, "recvmsg");
    struct cmsghdr *c = CMSG_FIRSTHDR(&m);
    CHECK(c && c->cmsg_type == SCM_CREDENTIALS && c->cmsg_len == CMSG_LEN(sizeof(struct ucred)), "credentials");
    CHECK(((struct ucred *)CMSG_DATA(c))->pid == child && ((struct ucred *)CMSG_DATA(c))->uid == getuid(),
        "of the sender");
    // Room for no more than a part of them.
    CHECK(write(ends[0], "y", 1) == 1, "write");
    m.msg_controllen = sizeof(struct cmsghdr);
    CHECK(recvmsg(ends[1], &m, 0) == 1 && m.msg_flags & MSG_CTRUNC, "MSG_CTRUNC");
    close(ends[0]), close(ends[1]);
}

static void many_messages_at_once(void) {
    int ends[2];
    CHECK(!socketpair(AF_UNIX, SOCK_DGRAM, 0, ends), "socketpair");
    char bytes[3][8] = {"one", "two", "three"};
    struct iovec v[3];
    struct mmsghdr m[4] = {0};
    for (int i = 0; i < 3; i++)
        v[i] = (struct iovec){bytes[i], strlen(bytes[i])}, m[i].msg_hdr = (struct msghdr){.msg_iov = v + i,
        .msg_iovlen = 1};
    CHECK(sendmmsg(ends[0], m, 3, 0) == 3 && m[2].msg_len == 5, "sendmmsg");
    for (int i = 0; i < 3; i++) v[i].iov_len = 8, memset(bytes[i], 0, 8);
    CHECK(recvmmsg(ends[1], m, 3, MSG_DONTWAIT, NULL) == 3 && !strcmp(bytes[2], "three") && m[0].msg_len == 3,
        "recvmmsg");
    ANSWERS(EAGAIN, recvmmsg(ends[1], m, 3, MSG_DONTWAIT, NULL));
    CHECK(write(ends[0], "x", 1) == 1 && recvmmsg(ends[1], m, 3, MSG_WAITFORONE, NULL) == 1, "MSG_WAITFORONE");
    close(ends[0]), close(ends[1]);
}

static void options_of_sockets(void) {
    int fd = tcp();
    socklen_t len = 4;
    CHECK(option(fd, SOL_SOCKET, SO_PROTOCOL) == IPPROTO_TCP && !option(fd, SOL_SOCKET, SO_ACCEPTCONN), "SO_PROTOCOL");
    CHECK(!setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &(int){10000}, 4) && option(fd, SOL_SOCKET, SO_SNDBUF) == 20000,
        "SO_SNDBUF");
    CHECK(!setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &(int){1}, 4) && option(fd, SOL_SOCKET, SO_RCVBUF) == 2304,
        "SO_RCVBUF: %d", option(fd, SOL_SOCKET, SO_RCVBUF));
    static const int switches[][2] = {{SOL_SOCKET, SO_REUSEADDR}, {SOL_SOCKET, SO_KEEPALIVE},
        {SOL_SOCKET, SO_BROADCAST}, {SOL_SOCKET, SO_OOBINLINE}, {IPPROTO_TCP, TCP_NODELAY}, {IPPROTO_TCP, TCP_CORK}};
    for (size_t i = 0; i < sizeof switches / sizeof *switches; i++) {
        CHECK(!option(fd, switches[i][0], switches[i][1]) && !setsockopt(fd, switches[i][0], switches[i][1], &(int){7},
            4), "%d", switches[i][1]);
        CHECK(option(fd, switches[i][0], switches[i][1]) == 1, "%d is on", switches[i][1]);
    }
    static const int numbers[][2] = {{TCP_KEEPIDLE, 100}, {TCP_KEEPINTVL, 10}, {TCP_KEEPCNT, 5},
        {TCP_USER_TIMEOUT, 3000}};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        CHECK(!setsockopt(fd, IPPROTO_TCP, numbers[i][0], &numbers[i][1], 4) &&
            option(fd, IPPROTO_TCP, numbers[i][0]) == numbers[i][1], "%d", numbers[i][0]);
    ANSWERS(ENOPROTOOPT, getsockopt(fd, SOL_SOCKET, 9999, &(int){0}, &len));
    ANSWERS(ENOPROTOOPT, setsockopt(fd, SOL_SOCKET, 9999, &(int){0}, 4));
    ANSWERS(EINVAL, setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &(int){0}, 2));
    ANSWERS(EFAULT, setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, NULL, 4));
    ANSWERS(EINVAL, setsockopt(fd, IPPROTO_TCP, TCP_INQ, &(int){2}, 4));
    CHECK(!setsockopt(fd, IPPROTO_TCP, TCP_WINDOW_CLAMP, &(int){1}, 4) &&
        option(fd, IPPROTO_TCP, TCP_WINDOW_CLAMP) == 1152, "TCP_WINDOW_CLAMP: %d", option(fd, IPPROTO_TCP,
        TCP_WINDOW_CLAMP));
    ANSWERS(0, setsockopt(fd, IPPROTO_TCP, TCP_WINDOW_CLAMP, &(int){0}, 4));
    // A receive with a time limit.
    int ends[2];
    connected(ends);
    ANSWERS(EINVAL, setsockopt(ends[0], IPPROTO_TCP, TCP_WINDOW_CLAMP, &(int){0}, 4));
    CHECK(!setsockopt(ends[0], SOL_SOCKET, SO_RCVTIMEO, &(struct timeval){0, 20000}, sizeof(struct timeval)),
        "SO_RCVTIMEO");
    uint64_t begin = now_ns();
    ANSWERS(EAGAIN, recv(ends[0], (char[1]){0}, 1, 0));
    CHECK(now_ns() - begin >= 19000000, "it waits");
    close(ends[0]), close(ends[1]), close(fd);
}

// The bytes that remain after one byte was received, as TCP_INQ reports them; -1 without a report.
static int rest_after_a_byte(int fd) {
    char byte, control[64];
    struct iovec part = {&byte, 1};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = control, .msg_controllen = 64};
    CHECK(recvmsg(fd, &message, 0) >= 0, "recvmsg");
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    if (!header) return -1;
    CHECK(header->cmsg_level == IPPROTO_TCP && header->cmsg_type == TCP_INQ && header->cmsg_len == CMSG_LEN(4),
        "the report of level %d", header->cmsg_level);
    return *(int *)CMSG_DATA(header);
}

static void a_receive_reports_the_rest(void) {
    int ends[2];
    connected(ends);
    CHECK(write(ends[1], "abcd", 4) == 4 && rest_after_a_byte(ends[0]) == -1, "a report without a request");
    CHECK(!setsockopt(ends[0], IPPROTO_TCP, TCP_INQ, &(int){1}, 4), "TCP_INQ");
    for (int rest = 2; rest >= 0; rest--) CHECK(rest_after_a_byte(ends[0]) == rest, "the rest is not %d", rest);
    CHECK(write(ends[1], "ef", 2) == 2 && !shutdown(ends[1], SHUT_WR), "shutdown");
    struct pollfd end = {ends[0], POLLRDHUP, 0};
    CHECK(poll(&end, 1, 10000) == 1 && rest_after_a_byte(ends[0]) == 2, "the end of the stream counts as a byte");
    CHECK(rest_after_a_byte(ends[0]) == 1 && rest_after_a_byte(ends[0]) == 1, "the end of the stream stays");
    close(ends[0]), close(ends[1]);
}

static void *writer(void *of) {
    char block[5000];
    uint64_t state = 1;
    for (size_t sent = 0; sent < 4 * MIB;) {
        size_t n = 1 + random_next(&state) % sizeof block;
        if (n > 4 * MIB - sent) n = 4 * MIB - sent;
        for (size_t i = 0; i < n; i++) block[i] = (sent + i) * 31 >> 3;
        CHECK(write(*(int *)of, block, n) == (ssize_t)n, "write");
        sent += n;
    }
    shutdown(*(int *)of, SHUT_WR);
    return NULL;
}

static void bytes_stay_in_order(void) {
    for (int kind = 0; kind < 2; kind++) {
        int ends[2];
        if (kind) CHECK(!socketpair(AF_UNIX, SOCK_STREAM, 0, ends), "socketpair");
        else connected(ends);
        pthread_t threads[2];
        for (int i = 0; i < 2; i++) CHECK(!pthread_create(threads + i, NULL, writer, ends + i), "thread");
        size_t at[2] = {0};
        static char block[9000];
        for (int open = 2; open;) {
            struct pollfd p[2] = {{at[0] == SIZE_MAX ? -1 : ends[0], POLLIN, 0},
                {at[1] == SIZE_MAX ? -1 : ends[1], POLLIN, 0}};
            CHECK(poll(p, 2, 10000) > 0, "poll");
            for (int i = 0; i < 2; i++) {
                if (!p[i].revents) continue;
                ssize_t n = read(ends[i], block, 1 + at[i] * 7 % sizeof block);
                CHECK(n >= 0, "read");
                for (ssize_t k = 0; k < n; k++, at[i]++) CHECK(block[k] == (char)(at[i] * 31 >> 3), "byte %zu", at[i]);
                if (n) continue;
                CHECK(at[i] == 4 * MIB, "%zu bytes", at[i]);
                at[i] = SIZE_MAX, open--;
            }
        }
        for (int i = 0; i < 2; i++) pthread_join(threads[i], NULL);
        close(ends[0]), close(ends[1]);
    }
}

static void a_full_buffer_makes_the_writer_wait(void) {
    for (int kind = 0; kind < 3; kind++) {
        int ends[2];
        if (kind) CHECK(!socketpair(AF_UNIX, kind == 1 ? SOCK_STREAM : SOCK_DGRAM, 0, ends), "socketpair");
        else connected(ends);
        fcntl(ends[0], F_SETFL, O_NONBLOCK);
        static char block[1000];
        size_t n = 0;
        while (write(ends[0], block, sizeof block) > 0) n++;
        CHECK(errno == EAGAIN && n > 10 && n < 20000, "%zu writes", n);
        CHECK(!(events_of(ends[0]) & POLLOUT), "full");
        int set = epoll_create1(0);
        struct epoll_event event = {.events = EPOLLOUT | EPOLLET};
        CHECK(!epoll_ctl(set, EPOLL_CTL_ADD, ends[0], &event) && epoll_wait(set, &event, 1, 0) == 0, "epoll");
        // All of it, for TCP announces room in large steps.
        while (recv(ends[1], block, sizeof block, MSG_DONTWAIT) > 0) {}
        CHECK(epoll_wait(set, &event, 1, 5000) == 1 && event.events & EPOLLOUT, "room");
        close(ends[0]), close(ends[1]), close(set);
    }
}

static void *accepts(void *of) {
    return (void *)(intptr_t)(accept(*(int *)of, NULL, NULL) < 0 ? errno : 0);
}

static void threads_that_wait_are_notified(void) {
    struct sockaddr_in at;
    int from = listener(&at, 1);
    pthread_t thread;
    void *result;
    CHECK(!pthread_create(&thread, NULL, accepts, &from), "thread");
    usleep(50000);
    CHECK(!shutdown(from, SHUT_RD) && !pthread_join(thread, &result) && (intptr_t)result == EINVAL, "accept gives %ld",
        (long)result);
    close(from);
    int ends[2];
    CHECK(!socketpair(AF_UNIX, SOCK_STREAM, 0, ends), "socketpair");
    pid_t child = fork();
    if (!child) {
        close(ends[0]);
        _exit(read(ends[1], (char[1]){0}, 1) != 0);
    }
    close(ends[1]);
    usleep(50000);
    close(ends[0]);
    ended(child);
}

static const struct check checks[] = {
    {"families_and_types", families_and_types},
    {"a_connection_over_tcp", a_connection_over_tcp},
    {"a_reset", a_reset},
    {"connects_that_do_not_wait", connects_that_do_not_wait},
    {"ports_and_addresses", ports_and_addresses},
    {"both_families", both_families},
    {"datagrams", datagrams},
    {"headers_of_datagrams", headers_of_datagrams},
    {"names_in_the_tree", names_in_the_tree},
    {"abstract_names", abstract_names},
    {"files_travel", files_travel},
    {"files_that_travel_in_each_other", files_that_travel_in_each_other},
    {"credentials_travel", credentials_travel},
    {"many_messages_at_once", many_messages_at_once},
    {"options_of_sockets", options_of_sockets},
    {"a_receive_reports_the_rest", a_receive_reports_the_rest},
    {"bytes_stay_in_order", bytes_stay_in_order},
    {"a_full_buffer_makes_the_writer_wait", a_full_buffer_makes_the_writer_wait},
    {"threads_that_wait_are_notified", threads_that_wait_are_notified},
};

int main(int argc, char **argv) {
    parse_options(argc, argv, NULL);
    run_checks(checks, sizeof checks / sizeof *checks);
    return 0;
}
