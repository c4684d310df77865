// What tests of sockets share: addresses, listeners, connections.
#pragma once
#include "checks.h"
#include <arpa/inet.h>
#include <netinet/in.h>
#include <stddef.h>
#include <sys/socket.h>
#include <sys/un.h>

static inline struct sockaddr_in loopback(int port) {
    return (struct sockaddr_in){.sin_family = AF_INET, .sin_port = htons(port),
        .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
}

// An abstract name of this process.
static inline struct sockaddr_un named(const char *name, socklen_t *len) {
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    int n = snprintf(at.sun_path + 1, sizeof at.sun_path - 1, "sockets-%d-%s", getpid(), name);
    *len = offsetof(struct sockaddr_un, sun_path) + 1 + n;
    return at;
}

// A listening TCP socket at a free port, which it stores.
static inline int listener(struct sockaddr_in *at) {
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    socklen_t len = sizeof *at;
    *at = loopback(0);
    CHECK(fd >= 0 && !bind(fd, (void *)at, len) && !listen(fd, 4), "listen");
    CHECK(!getsockname(fd, (void *)at, &len) && at->sin_port, "getsockname");
    return fd;
}

// The ends of a TCP connection.
static inline void connected(int ends[2]) {
    struct sockaddr_in at;
    int from = listener(&at);
    ends[0] = socket(AF_INET, SOCK_STREAM, 0);
    CHECK(!connect(ends[0], (void *)&at, sizeof at), "connect");
    ends[1] = accept(from, NULL, NULL);
    CHECK(ends[1] >= 0, "accept");
    close(from);
}
