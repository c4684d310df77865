// The network interface and the tables of sockets: each check holds on Quire, and on Linux in a network of its own.
#define _GNU_SOURCE
#include "checks.h"
#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sched.h>
#include <stddef.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

// From Linux's netlink.h and rtnetlink.h, which musl lacks.
struct nlmsghdr {
    unsigned nlmsg_len;
    unsigned short nlmsg_type, nlmsg_flags;
    unsigned nlmsg_seq, nlmsg_pid;
};
struct nlmsgerr {
    int error;
    struct nlmsghdr msg;
};
struct sockaddr_nl {
    unsigned short nl_family, nl_pad;
    unsigned nl_pid, nl_groups;
};
struct rtgenmsg {
    unsigned char rtgen_family;
};
struct rtattr {
    unsigned short rta_len, rta_type;
};
struct rtmsg {
    unsigned char rtm_family, rtm_dst_len, rtm_src_len, rtm_tos, rtm_table, rtm_protocol, rtm_scope, rtm_type;
    unsigned rtm_flags;
};
struct ifinfomsg {
    unsigned char ifi_family, ifi_pad;
    unsigned short ifi_type;
    int ifi_index;
    unsigned ifi_flags, ifi_change;
};
enum { NETLINK_ROUTE = 0, NETLINK_EXT_ACK = 11, NETLINK_GET_STRICT_CHK = 12, RTMGRP_LINK = 1 };
enum { NLM_F_REQUEST = 1, NLM_F_MULTI = 2, NLM_F_ACK = 4, NLM_F_DUMP = 0x300 };
enum { NLMSG_NOOP = 1, NLMSG_ERROR = 2, NLMSG_DONE = 3, IFLA_IFNAME = 3, RTA_DST = 1, RTN_LOCAL = 2 };
enum { RTM_NEWLINK = 16, RTM_GETLINK = 18, RTM_NEWADDR = 20, RTM_GETADDR = 22, RTM_NEWROUTE = 24, RTM_GETROUTE = 26,
    RTM_NEWNEIGH = 28, RTM_GETNEIGH = 30 };
#define NLMSG_LENGTH(len) (16 + (int)(len))
#define NLMSG_DATA(h) ((void *)((char *)(h) + 16))
#define NLMSG_OK(h, len) ((len) >= 16 && (h)->nlmsg_len >= 16 && (h)->nlmsg_len <= (len))
#define NLMSG_NEXT(h, len) ((len) -= ((h)->nlmsg_len + 3) & ~3u, \
    (struct nlmsghdr *)((char *)(h) + (((h)->nlmsg_len + 3) & ~3u)))

static int route(void) {
    int fd = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_ROUTE);
    CHECK(fd >= 0, "socket");
    return fd;
}

// Sends one request of `len` bytes, whose header it fills in.
static void ask(int fd, void *request, int len, int type, int flags) {
    struct nlmsghdr *header = request;
    *header = (struct nlmsghdr){len, type, NLM_F_REQUEST | flags, 7, 0};
    CHECK(send(fd, request, len, 0) == len, "send");
}

static char received[32768];

static struct nlmsghdr *next(int fd, int *len) {
    *len = recv(fd, received, sizeof received, MSG_DONTWAIT);
    CHECK(*len >= (int)sizeof(struct nlmsghdr), "recv: %d, errno %d", *len, errno);
    return (struct nlmsghdr *)received;
}

static int error_of(int fd) {
    int len;
    struct nlmsghdr *header = next(fd, &len);
    CHECK(header->nlmsg_type == NLMSG_ERROR && header->nlmsg_seq == 7, "type %d", header->nlmsg_type);
    return -((struct nlmsgerr *)NLMSG_DATA(header))->error;
}

// The numbers of messages of a dump, which must end.
static int dumped(int fd, int type) {
    int count = 0, len;
    for (;;) {
        struct nlmsghdr *h = next(fd, &len);
        for (; NLMSG_OK(h, (unsigned)len); h = NLMSG_NEXT(h, len)) {
            CHECK(h->nlmsg_flags & NLM_F_MULTI && h->nlmsg_seq == 7, "flags %#x", h->nlmsg_flags);
            if (h->nlmsg_type == NLMSG_DONE) return count;
            CHECK(h->nlmsg_type == type, "type %d", h->nlmsg_type);
            count++;
        }
    }
}

static void libraries(void) {
    struct ifaddrs *all;
    CHECK(!getifaddrs(&all), "getifaddrs");
    int four = 0, six = 0, packet = 0;
    for (struct ifaddrs *i = all; i; i = i->ifa_next) {
        CHECK(!strcmp(i->ifa_name, "lo"), "%s", i->ifa_name);
        CHECK((i->ifa_flags & (IFF_UP | IFF_LOOPBACK | IFF_RUNNING)) == (IFF_UP | IFF_LOOPBACK | IFF_RUNNING), "flags");
        switch (i->ifa_addr->sa_family) {
        case AF_INET:
            four++;
            CHECK(((struct sockaddr_in *)i->ifa_addr)->sin_addr.s_addr == htonl(INADDR_LOOPBACK), "address");
            CHECK(((struct sockaddr_in *)i->ifa_netmask)->sin_addr.s_addr == htonl(0xff000000), "netmask");
            break;
        case AF_INET6:
            six++;
            CHECK(IN6_IS_ADDR_LOOPBACK(&((struct sockaddr_in6 *)i->ifa_addr)->sin6_addr), "address");
            break;
        default: packet++;
        }
    }
    CHECK(four == 1 && six == 1 && packet == 1, "%d %d %d", four, six, packet);
    freeifaddrs(all);
    struct if_nameindex *names = if_nameindex();
    CHECK(names && names[0].if_index == 1 && !strcmp(names[0].if_name, "lo"), "if_nameindex");
    int count = 0;
    while (names[count].if_index) count++;
    CHECK(count == 1, "%d interfaces", count);
    if_freenameindex(names);
    char name[IF_NAMESIZE];
    CHECK(if_nametoindex("lo") == 1 && if_indextoname(1, name) && !strcmp(name, "lo"), "if_nametoindex");
    CHECK(!if_nametoindex("eth7") && errno == ENODEV, "errno %d", errno);
    CHECK(!if_indextoname(77, name) && errno == ENXIO, "errno %d", errno);
}

static void netlink_names(void) {
    ANSWERS(EPROTONOSUPPORT, socket(AF_NETLINK, SOCK_RAW, 31));
    ANSWERS(EPROTONOSUPPORT, socket(AF_NETLINK, SOCK_RAW, 32));
    ANSWERS(EPROTONOSUPPORT, socket(AF_NETLINK, SOCK_DGRAM, -1));
    ANSWERS(ESOCKTNOSUPPORT, socket(AF_NETLINK, SOCK_STREAM, 0));
    ANSWERS(ESOCKTNOSUPPORT, socket(AF_NETLINK, SOCK_SEQPACKET, 0));
    ANSWERS(EINVAL, socket(AF_NETLINK, 11, 0));
    ANSWERS(EINVAL, socket(AF_NETLINK, SOCK_RAW | 0x100, 0));
    int fd = route(), other = route();
    struct sockaddr_nl at = {.nl_family = AF_NETLINK};
    socklen_t len = sizeof at;
    CHECK(!getsockname(fd, (void *)&at, &len) && len == 12 && at.nl_family == AF_NETLINK && !at.nl_pid, "unbound");
    ANSWERS(EINVAL, bind(fd, (void *)&at, 11));
    at.nl_family = AF_INET;
    ANSWERS(EINVAL, bind(fd, (void *)&at, sizeof at));
    at.nl_family = AF_NETLINK;
    ANSWERS(0, bind(fd, (void *)&at, sizeof at));
    CHECK(!getsockname(fd, (void *)&at, &len) && at.nl_pid == (unsigned)getpid() && !at.nl_groups, "pid %d", at.nl_pid);
    ANSWERS(EADDRINUSE, bind(other, (void *)&at, sizeof at));
    at.nl_pid = 0;
    ANSWERS(0, bind(other, (void *)&at, sizeof at));
    CHECK(!getsockname(other, (void *)&at, &len) && (int)at.nl_pid < 0, "pid %d", at.nl_pid);
    at.nl_pid = 1 << 20;
    ANSWERS(EINVAL, bind(other, (void *)&at, sizeof at));
    close(fd);
    fd = route();
    at.nl_pid = getpid();
    at.nl_groups = RTMGRP_LINK;
    ANSWERS(0, bind(fd, (void *)&at, sizeof at));
    CHECK(!getsockname(fd, (void *)&at, &len) && at.nl_groups == RTMGRP_LINK, "groups %#x", at.nl_groups);
    CHECK(!getpeername(fd, (void *)&at, &len) && !at.nl_pid && !at.nl_groups, "peer");
    at.nl_pid = 12345;
    ANSWERS(ECONNREFUSED, sendto(fd, received, 16, 0, (void *)&at, sizeof at));
    at.nl_pid = 0;
    at.nl_groups = 0;
    ANSWERS(0, connect(fd, (void *)&at, sizeof at));
    ANSWERS(EOPNOTSUPP, listen(fd, 1));
    ANSWERS(EOPNOTSUPP, accept(fd, NULL, NULL));
    ANSWERS(EOPNOTSUPP, shutdown(fd, SHUT_RD));
    ANSWERS(EOPNOTSUPP, socketpair(AF_NETLINK, SOCK_RAW, 0, (int[2]){0}));
}

static void netlink_dumps(void) {
    int fd = route();
    struct { struct nlmsghdr h; struct rtgenmsg g; } old = {.g.rtgen_family = AF_UNSPEC};
    ask(fd, &old, sizeof old, RTM_GETLINK, NLM_F_DUMP);
    CHECK(dumped(fd, RTM_NEWLINK) == 1, "links");
    ask(fd, &old, sizeof old, RTM_GETADDR, NLM_F_DUMP);
    CHECK(dumped(fd, RTM_NEWADDR) == 2, "addresses");
    old.g.rtgen_family = AF_INET6;
    ask(fd, &old, sizeof old, RTM_GETADDR, NLM_F_DUMP);
    CHECK(dumped(fd, RTM_NEWADDR) == 1, "addresses");
    struct { struct nlmsghdr h; struct rtmsg m; } get = {.m.rtm_family = AF_INET};
    ask(fd, &get, sizeof get, RTM_GETROUTE, NLM_F_DUMP);
    CHECK(dumped(fd, RTM_NEWROUTE) == 3, "routes");
    get.m.rtm_family = AF_INET6;
    ask(fd, &get, sizeof get, RTM_GETROUTE, NLM_F_DUMP);
    CHECK(dumped(fd, RTM_NEWROUTE) >= 1, "routes");
    ask(fd, &old, sizeof old, RTM_GETNEIGH, NLM_F_DUMP);
    CHECK(dumped(fd, RTM_NEWNEIGH) == 0, "neighbours");
    ANSWERS(EAGAIN, recv(fd, received, sizeof received, MSG_DONTWAIT));
    old.g.rtgen_family = AF_UNSPEC;
    // The whole length of a datagram for which there is no room.
    ask(fd, &old, sizeof old, RTM_GETLINK, NLM_F_DUMP);
    struct iovec none = {NULL, 0};
    struct sockaddr_nl from;
    struct msghdr m = {.msg_name = &from, .msg_namelen = sizeof from, .msg_iov = &none, .msg_iovlen = 1};
    ssize_t whole = recvmsg(fd, &m, MSG_PEEK | MSG_TRUNC);
    CHECK(whole > 100 && m.msg_flags == MSG_TRUNC && m.msg_namelen == 12, "%zd %#x", whole, m.msg_flags);
    CHECK(from.nl_family == AF_NETLINK && !from.nl_pid, "from");
    struct pollfd p = {fd, POLLIN | POLLOUT, 0};
    CHECK(poll(&p, 1, 0) == 1 && p.revents == (POLLIN | POLLOUT), "events %#x", p.revents);
    int len;
    next(fd, &len);
    CHECK(len == whole, "%d", len);
    CHECK(next(fd, &len)->nlmsg_type == NLMSG_DONE && len == 20, "done");
    CHECK(poll(&p, 1, 0) == 1 && p.revents == POLLOUT, "events %#x", p.revents);
}

static void netlink_single(void) {
    int fd = route(), len;
    struct { struct nlmsghdr h; struct ifinfomsg i; struct rtattr a; char name[8]; } link = {.i.ifi_index = 1};
    ask(fd, &link, NLMSG_LENGTH(sizeof link.i), RTM_GETLINK, 0);
    struct nlmsghdr *h = next(fd, &len);
    struct ifinfomsg *found = NLMSG_DATA(h);
    CHECK(h->nlmsg_type == RTM_NEWLINK && !h->nlmsg_flags && h->nlmsg_pid == (unsigned)getpid(), "link");
    CHECK(found->ifi_index == 1 && found->ifi_type == 772 && found->ifi_flags == 0x10049, "flags %#x",
        found->ifi_flags);
    link.i.ifi_index = 99;
    ask(fd, &link, NLMSG_LENGTH(sizeof link.i), RTM_GETLINK, 0);
    CHECK(error_of(fd) == ENODEV, "a wrong index");
    link.i.ifi_index = 0;
    ask(fd, &link, NLMSG_LENGTH(sizeof link.i), RTM_GETLINK, 0);
    CHECK(error_of(fd) == EINVAL, "no name");
    link.a = (struct rtattr){4 + 3, IFLA_IFNAME};
    strcpy(link.name, "lo");
    ask(fd, &link, NLMSG_LENGTH(sizeof link.i) + 8, RTM_GETLINK, NLM_F_ACK);
    CHECK(next(fd, &len)->nlmsg_type == RTM_NEWLINK, "by name");
    CHECK(error_of(fd) == 0, "acknowledged");
    ask(fd, &link, 16, 300, 0);
    CHECK(error_of(fd) == EOPNOTSUPP, "an unknown type");
    ask(fd, &link, 16, NLMSG_NOOP, NLM_F_ACK);
    CHECK(error_of(fd) == 0, "no operation");
    struct { struct nlmsghdr h; struct rtmsg m; struct rtattr a; unsigned to; } get = {.m = {.rtm_family = AF_INET,
        .rtm_dst_len = 32}, .a = {8, RTA_DST}};
    get.to = htonl(INADDR_LOOPBACK);
    ask(fd, &get, sizeof get, RTM_GETROUTE, 0);
    h = next(fd, &len);
    CHECK(h->nlmsg_type == RTM_NEWROUTE && ((struct rtmsg *)NLMSG_DATA(h))->rtm_type == RTN_LOCAL, "a route");
    get.to = htonl(0x08080808);
    ask(fd, &get, sizeof get, RTM_GETROUTE, 0);
    CHECK(error_of(fd) == ENETUNREACH, "no route");
    ANSWERS(EMSGSIZE, send(fd, received, 212992, 0));
    int one = 1, value = 0;
    socklen_t size = sizeof value;
    ANSWERS(0, setsockopt(fd, SOL_NETLINK, NETLINK_EXT_ACK, &one, sizeof one));
    ANSWERS(0, setsockopt(fd, SOL_NETLINK, NETLINK_GET_STRICT_CHK, &one, sizeof one));
    CHECK(!getsockopt(fd, SOL_NETLINK, NETLINK_EXT_ACK, &value, &size) && value == 1, "an option");
    CHECK(!getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &value, &size) && value == AF_NETLINK, "SO_DOMAIN");
    CHECK(!getsockopt(fd, SOL_SOCKET, SO_TYPE, &value, &size) && value == SOCK_RAW, "SO_TYPE");
    ANSWERS(ENOPROTOOPT, setsockopt(fd, SOL_NETLINK, 77, &one, sizeof one));
    ANSWERS(ENOPROTOOPT, setsockopt(fd, SOL_TCP, TCP_NODELAY, &one, sizeof one));
    // A user without rights can change nothing.
    CHECK(!setuid(1000), "setuid");
    ask(fd, &link, NLMSG_LENGTH(sizeof link.i), RTM_NEWLINK, 0);
    CHECK(error_of(fd) == EPERM, "a change");
}

static void requests(void) {
    int fd = socket(AF_INET, SOCK_DGRAM, 0), local = socket(AF_UNIX, SOCK_DGRAM, 0);
    struct ifreq r[4] = {0};
    struct ifconf list = {.ifc_len = sizeof r, .ifc_req = r};
    CHECK(!ioctl(fd, SIOCGIFCONF, &list) && list.ifc_len == sizeof r[0] && !strcmp(r[0].ifr_name, "lo"), "%d",
        list.ifc_len);
    list = (struct ifconf){.ifc_len = 3};
    CHECK(!ioctl(fd, SIOCGIFCONF, &list) && list.ifc_len == sizeof r[0], "%d", list.ifc_len);
    list = (struct ifconf){.ifc_len = 39, .ifc_req = r};
    CHECK(!ioctl(fd, SIOCGIFCONF, &list) && list.ifc_len == 0, "%d", list.ifc_len);
    struct ifreq one = {.ifr_name = "lo"};
    CHECK(!ioctl(fd, SIOCGIFFLAGS, &one) && one.ifr_flags == 0x49, "flags %#x", one.ifr_flags);
    CHECK(!ioctl(fd, SIOCGIFMTU, &one) && one.ifr_mtu == 65536, "MTU %d", one.ifr_mtu);
    CHECK(!ioctl(local, SIOCGIFINDEX, &one) && one.ifr_ifindex == 1, "index %d", one.ifr_ifindex);
    CHECK(!ioctl(fd, SIOCGIFHWADDR, &one) && one.ifr_hwaddr.sa_family == 772, "family %d", one.ifr_hwaddr.sa_family);
    CHECK(!ioctl(fd, SIOCGIFADDR, &one) &&
        ((struct sockaddr_in *)&one.ifr_addr)->sin_addr.s_addr == htonl(INADDR_LOOPBACK), "address");
    CHECK(!ioctl(fd, SIOCGIFNETMASK, &one) &&
        ((struct sockaddr_in *)&one.ifr_addr)->sin_addr.s_addr == htonl(0xff000000), "netmask");
    one.ifr_ifindex = 1;
    memset(one.ifr_name, 'x', IFNAMSIZ);
    CHECK(!ioctl(fd, SIOCGIFNAME, &one) && !strcmp(one.ifr_name, "lo"), "name");
    one.ifr_ifindex = 8;
    ANSWERS(ENODEV, ioctl(fd, SIOCGIFNAME, &one));
    strcpy(one.ifr_name, "eth7");
    ANSWERS(ENODEV, ioctl(fd, SIOCGIFFLAGS, &one));
    ANSWERS(ENOTTY, ioctl(open("/dev/null", O_RDONLY), SIOCGIFFLAGS, &one));
    ANSWERS(EFAULT, ioctl(fd, SIOCGIFFLAGS, NULL));
}

// The line of `/proc/net/NAME` that has `word`, or an empty one.
static char *line_with(const char *name, const char *word) {
    static char line[512];
    char path[64];
    snprintf(path, sizeof path, "/proc/net/%s", name);
    FILE *f = fopen(path, "r");
    CHECK(f, "%s", path);
    while (fgets(line, sizeof line, f))
        if (strstr(line, word)) break;
    if (feof(f)) *line = 0;
    fclose(f);
    return line;
}

static unsigned long inode_of(int fd) {
    struct stat s;
    CHECK(!fstat(fd, &s), "fstat");
    return s.st_ino;
}

static void tables(void) {
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons(41234),
        .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int server = socket(AF_INET, SOCK_STREAM, 0), client = socket(AF_INET, SOCK_STREAM, 0);
    CHECK(!bind(server, (void *)&at, sizeof at), "bind");
    CHECK(!*line_with("tcp", "0100007F:A112"), "a bound socket has no row");
    CHECK(!listen(server, 5), "listen");
    unsigned state, rx, uid;
    unsigned long inode;
    const char *row = "%*d: %*x:%*x %*x:%*x %x %*x:%x %*x:%*x %*x %u %*u %lu";
    char *line = line_with("tcp", "0100007F:A112");
    CHECK(strlen(line) == 150, "%zu bytes", strlen(line));
    CHECK(sscanf(line, row, &state, &rx, &uid, &inode) == 4 && state == 10 && !rx && !uid && inode == inode_of(server),
        "%s", line);
    CHECK(!connect(client, (void *)&at, sizeof at), "connect");
    line = line_with("tcp", "0100007F:A112 00000000:0000");
    CHECK(sscanf(line, row, &state, &rx, &uid, &inode) == 4 && state == 10 && rx == 1, "%s", line);
    line = line_with("tcp", " 0100007F:A112 01 ");
    CHECK(sscanf(line, row, &state, &rx, &uid, &inode) == 4 && inode == inode_of(client), "%s", line);
    int end = accept(server, NULL, NULL);
    CHECK(write(client, "hello", 5) == 5, "write");
    line = line_with("tcp", ": 0100007F:A112 0100007F");
    CHECK(sscanf(line, row, &state, &rx, &uid, &inode) == 4 && state == 1 && rx == 5 && inode == inode_of(end), "%s",
        line);
    CHECK(!shutdown(client, SHUT_WR), "shutdown");
    line = line_with("tcp", ": 0100007F:A112 0100007F");
    CHECK(sscanf(line, row, &state, &rx, &uid, &inode) == 4 && state == 8, "%s", line);
    // The acknowledgement may come late on Linux.
    for (int i = 0; i < 50 && !*line_with("tcp", " 0100007F:A112 05 "); i++) short_sleep();
    CHECK(*line_with("tcp", " 0100007F:A112 05 "), "a finished socket");
    close(server);
    CHECK(!*line_with("tcp", "00000000:0000 0A"), "a closed listener");
    int udp = socket(AF_INET6, SOCK_DGRAM, 0);
    struct sockaddr_in6 six = {.sin6_family = AF_INET6, .sin6_port = htons(41235), .sin6_addr = IN6ADDR_LOOPBACK_INIT};
    CHECK(!bind(udp, (void *)&six, sizeof six), "bind");
    line = line_with("udp6", "00000000000000000000000001000000:A113");
    CHECK(sscanf(line, row, &state, &rx, &uid, &inode) == 4 && state == 7 && inode == inode_of(udp), "%s", line);
    int local = socket(AF_UNIX, SOCK_SEQPACKET, 0), ends[2];
    struct sockaddr_un name = {.sun_family = AF_UNIX, .sun_path = "\0quire-network"};
    CHECK(!bind(local, (void *)&name, offsetof(struct sockaddr_un, sun_path) + 14) && !listen(local, 1), "bind");
    unsigned flags, type;
    line = line_with("unix", "@quire-network");
    CHECK(sscanf(line, "%*x: %*x %*x %x %x %x %lu", &flags, &type, &state, &inode) == 4, "%s", line);
    CHECK(flags == 0x10000 && type == 5 && state == 1 && inode == inode_of(local), "%s", line);
    CHECK(!socketpair(AF_UNIX, SOCK_STREAM, 0, ends), "socketpair");
    char word[32];
    snprintf(word, sizeof word, " 0001 03 %5lu\n", inode_of(ends[1]));
    CHECK(*line_with("unix", word), "%s", word);
    CHECK(*line_with("dev", "    lo:"), "dev");
    CHECK(!strcmp(line_with("if_inet6", "lo"), "00000000000000000000000000000001 01 80 10 80       lo\n"), "if_inet6");
    CHECK(strlen(line_with("route", "Iface")) == 128, "route");
    CHECK(*line_with("sockstat", "sockets: used "), "sockstat");
}

static long number(const char *name) {
    char path[128], text[32] = "";
    snprintf(path, sizeof path, "/proc/sys/net/%s", name);
    int fd = open(path, O_RDONLY);
    CHECK(fd >= 0 && read(fd, text, sizeof text - 1) > 0, "%s", path);
    close(fd);
    return atol(text);
}

static void set(const char *name, const char *value, int error) {
    char path[128];
    snprintf(path, sizeof path, "/proc/sys/net/%s", name);
    int fd = open(path, O_WRONLY);
    CHECK(fd >= 0, "%s", path);
    ANSWERS(error, write(fd, value, strlen(value)));
    close(fd);
}

static void settings(void) {
    CHECK(number("core/somaxconn") == 4096 && number("ipv4/ip_unprivileged_port_start") == 1024, "first values");
    CHECK(number("ipv4/tcp_fin_timeout") == 60 && number("ipv4/tcp_syncookies") == 1, "first values");
    CHECK(number("ipv6/conf/all/disable_ipv6") == 0, "IPv6");
    set("core/somaxconn", "-1", EINVAL);
    set("core/somaxconn", "x", EINVAL);
    set("ipv4/ip_local_port_range", "40000 40001\n", 0);
    CHECK(number("ipv4/ip_local_port_range") == 40000, "a range");
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int ports = 0;
    for (int i = 0; i < 2; i++) {
        socklen_t len = sizeof at;
        int fd = socket(AF_INET, SOCK_STREAM, 0);
        at.sin_port = 0;
        CHECK(!bind(fd, (void *)&at, sizeof at) && !getsockname(fd, (void *)&at, &len), "bind");
        ports |= 1 << (ntohs(at.sin_port) - 40000);
    }
    CHECK(ports == 3, "ports %#x", ports);
    at.sin_port = 0;
    ANSWERS(EADDRINUSE, bind(socket(AF_INET, SOCK_STREAM, 0), (void *)&at, sizeof at));
    set("ipv4/ip_local_port_range", "0 5\n", EINVAL);
    set("ipv4/ip_local_port_range", "9 5\n", EINVAL);
    set("ipv4/ip_local_port_range", "32768 60999\n", 0);
    set("ipv4/tcp_keepalive_time", "100\n", 0);
    int value;
    socklen_t len = sizeof value;
    CHECK(!getsockopt(socket(AF_INET, SOCK_STREAM, 0), SOL_TCP, TCP_KEEPIDLE, &value, &len) && value == 100, "%d",
        value);
    set("ipv4/tcp_keepalive_time", "7200\n", 0);
    set("ipv4/ip_unprivileged_port_start", "80\n", 0);
    pid_t child = fork();
    if (!child) {
        CHECK(!setuid(1000), "setuid");
        at.sin_port = htons(79);
        ANSWERS(EACCES, bind(socket(AF_INET, SOCK_STREAM, 0), (void *)&at, sizeof at));
        at.sin_port = htons(80);
        ANSWERS(0, bind(socket(AF_INET, SOCK_STREAM, 0), (void *)&at, sizeof at));
        ANSWERS(EACCES, open("/proc/sys/net/core/somaxconn", O_WRONLY));
        _exit(0);
    }
    CHECK(!ended(child), "child");
    set("ipv4/ip_unprivileged_port_start", "1024\n", 0);
}

// The requests that change an interface.
static const int changes[] = {0x8914, 0x8916, 0x8918, 0x891a, 0x891c, 0x891e, 0x8922, 0x8923, 0x8924, 0x8937, 0x8943,
    0x8971};
enum { FLAGS = 0x8914, ADDRESS = 0x8916, NETMASK = 0x891c, METRIC = 0x891e, MTU = 0x8922, HARDWARE = 0x8924,
    QUEUE = 0x8943, MAP = 0x8971 };

static void changes_are_checked(void) {
    int fd = socket(AF_INET, SOCK_DGRAM, 0), local = socket(AF_UNIX, SOCK_STREAM, 0);
    struct ifreq none = {.ifr_name = "eth7"}, one = {.ifr_name = "lo"};
    none.ifr_addr.sa_family = AF_INET;
    for (size_t i = 0; i < sizeof changes / sizeof *changes; i++) {
        ANSWERS(EFAULT, ioctl(fd, changes[i], NULL));
        ANSWERS(ENODEV, ioctl(fd, changes[i], &none));
    }
    // The present value is taken.
    const int shown[][2] = {{SIOCGIFFLAGS, FLAGS}, {SIOCGIFADDR, ADDRESS}, {SIOCGIFNETMASK, NETMASK}, {SIOCGIFMTU, MTU},
        {SIOCGIFHWADDR, HARDWARE}, {SIOCGIFTXQLEN, QUEUE}};
    for (size_t i = 0; i < sizeof shown / sizeof *shown; i++) {
        ANSWERS(0, ioctl(fd, shown[i][0], &one));
        ANSWERS(0, ioctl(fd, shown[i][1], &one));
    }
    ANSWERS(0, ioctl(local, SIOCGIFFLAGS, &one));
    ANSWERS(0, ioctl(local, FLAGS, &one));
    ANSWERS(EOPNOTSUPP, ioctl(fd, METRIC, &one));
    ANSWERS(EOPNOTSUPP, ioctl(fd, MAP, &one));
    memset(&one.ifr_addr, 0, sizeof one.ifr_addr);
    ANSWERS(EINVAL, ioctl(fd, ADDRESS, &one));
    ANSWERS(EINVAL, ioctl(fd, HARDWARE, &one));
    ANSWERS(ENOTTY, ioctl(local, ADDRESS, &one));
    ANSWERS(ENOTTY, ioctl(open("/dev/null", O_RDONLY), FLAGS, &one));
    CHECK(!setuid(1000), "setuid");
    for (size_t i = 0; i < sizeof changes / sizeof *changes; i++) {
        ANSWERS(EFAULT, ioctl(fd, changes[i], NULL));
        ANSWERS(EPERM, ioctl(fd, changes[i], &none));
    }
}

static void no_data_is_urgent(void) {
    int mark = 7, tcp = socket(AF_INET, SOCK_STREAM, 0), six = socket(AF_INET6, SOCK_STREAM, 0), pair[2];
    CHECK(!socketpair(AF_UNIX, SOCK_STREAM, 0, pair) && write(pair[0], "x", 1) == 1, "socketpair");
    ANSWERS(0, ioctl(tcp, SIOCATMARK, &mark));
    CHECK(!mark, "%d", mark);
    if (six >= 0) ANSWERS(0, ioctl(six, SIOCATMARK, &mark));
    mark = 7;
    ANSWERS(0, ioctl(pair[1], SIOCATMARK, &mark));
    CHECK(!mark && sockatmark(pair[1]) == 0, "%d", mark);
    ANSWERS(EFAULT, ioctl(tcp, SIOCATMARK, NULL));
    ANSWERS(ENOTTY, ioctl(socket(AF_INET, SOCK_DGRAM, 0), SIOCATMARK, &(struct ifreq){0}));
}

int main(int argc, char **argv) {
    parse_options(argc, argv, NULL);
    // On Linux, a network with the one interface.
    if (!unshare(CLONE_NEWNET)) {
        struct ifreq up = {.ifr_name = "lo", .ifr_flags = IFF_UP | IFF_RUNNING};
        CHECK(!ioctl(socket(AF_INET, SOCK_DGRAM, 0), SIOCSIFFLAGS, &up), "lo");
    }
    static const struct check checks[] = {
        {"libraries", libraries},
        {"netlink_names", netlink_names},
        {"netlink_dumps", netlink_dumps},
        {"netlink_single", netlink_single},
        {"requests", requests},
        {"tables", tables},
        {"settings", settings},
        {"changes_are_checked", changes_are_checked},
        {"no_data_is_urgent", no_data_is_urgent},
    };
    run_checks(checks, sizeof checks / sizeof *checks);
}
