// Root's answers while one user (uid 1000) uses up the machine. The user has a fork bomb, processes that fill sockets,
// and a process that takes all memory. Meanwhile root forks, executes and waits for a small program, twenty times a
// second. The program must be process 1, because at its end it ends all other processes.
//
//   --seconds S   how long (default 1).
//   --bombs N     fork bombs (default 1).
//   --floods N    processes that fill sockets (default 20).
//   --hogs N      processes that take memory, one after the other (default 1).
//   --most N      the longest that an answer may take, in milliseconds (default 1000).
//
// Prints `answers N`, `worst_ms N`, and `checks_passed 1` where each answer came in time.
#include "checks.h"
#include <netinet/in.h>
#include <sys/socket.h>

enum { USER = 1000 };

static long bombs = 1, floods = 20, hogs = 1, most = 1000;

static void become_user(void) { CHECK(!setpgid(0, 0) && !setgid(USER) && !setuid(USER), "become the user"); }

static void bomb(void) {
    become_user();
    for (;;) fork();
}

// A connected pair: Unix sockets for odd numbers, TCP sockets for even ones. Returns whether it was made.
static bool connected(int number, int pair[2]) {
    if (number % 2) return !socketpair(AF_UNIX, number % 4 == 1 ? SOCK_STREAM : SOCK_DGRAM, 0, pair);
    struct sockaddr_in at = {.sin_family = AF_INET};
    socklen_t size = sizeof at;
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    pair[0] = socket(AF_INET, SOCK_STREAM, 0);
    bool made = false;
    if (listener >= 0 && pair[0] >= 0 && !bind(listener, (void *)&at, size) && !listen(listener, 5) &&
        !getsockname(listener, (void *)&at, &size)) {
        at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        made = !connect(pair[0], (void *)&at, size) && (pair[1] = accept(listener, NULL, NULL)) >= 0;
    }
    if (!made) close(pair[0]);
    close(listener);
    return made;
}

// Fills sockets until the descriptors are used up, and keeps them.
static void flood(int number) {
    static char bytes[60000];
    become_user();
    for (int buffer = 4 << 20;;) {
        int pair[2];
        if (!connected(number, pair)) {
            usleep(10000);
            continue;
        }
        setsockopt(pair[0], SOL_SOCKET, SO_SNDBUF, &buffer, sizeof buffer);
        setsockopt(pair[1], SOL_SOCKET, SO_RCVBUF, &buffer, sizeof buffer);
        while (send(pair[0], bytes, sizeof bytes, MSG_DONTWAIT | MSG_NOSIGNAL) > 0) {}
    }
}

// Begins again when its child has ended for want of memory.
static void hog(void) {
    become_user();
    for (;;) {
        pid_t child = fork();
        if (!child) {
            for (;;) {
                char *more = mmap(NULL, MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
                if (more != MAP_FAILED) memset(more, 1, MIB);
            }
        }
        if (child > 0) waitpid(child, NULL, 0);
    }
}

static uint64_t answer(void) {
    uint64_t began = now_ns();
    pid_t child = fork();
    CHECK(child >= 0, "root forks");
    if (!child) {
        execl("/bin/busybox", "true", NULL);
        _exit(127);
    }
    int status = ended(child);
    CHECK(WIFEXITED(status) && !WEXITSTATUS(status), "root's program has the status %#x", status);
    return (now_ns() - began) / MS;
}

int main(int argc, char **argv) {
    const struct setting own[] = {{"--bombs", &bombs, NULL}, {"--floods", &floods, NULL}, {"--hogs", &hogs, NULL},
                                  {"--most", &most, NULL},   {0}};
    parse_options(argc, argv, own);
    CHECK(getpid() == 1, "the program must be process 1");
    for (int i = 0; i < floods; i++) {
        if (!fork()) flood(i);
    }
    for (int i = 0; i < bombs; i++) {
        if (!fork()) bomb();
    }
    for (int i = 0; i < hogs; i++) {
        if (!fork()) hog();
    }
    uint64_t worst = 0, until = now_ns() + (uint64_t)(options.seconds * 1e9);
    long answers = 0;
    for (; now_ns() < until; answers++) {
        uint64_t took = answer();
        if (took > worst) worst = took;
        // Processes that ended for want of memory are children of this one by now.
        while (waitpid(-1, NULL, WNOHANG) > 0) {}
        usleep(50000);
    }
    printf("answers %ld\nworst_ms %lu\n", answers, (unsigned long)worst);
    fflush(stdout);
    CHECK(answers >= 10 && worst <= (uint64_t)most, "root's answer took %lu ms", (unsigned long)worst);
    // Children of processes that end become children of this one. A process that was forked while the signal was sent
    // may have missed it on some systems: a second signal ends it.
    while (!kill(-1, SIGKILL)) {
        while (waitpid(-1, NULL, WNOHANG) > 0) {}
        usleep(1000);
    }
    printf("checks_passed 1\n");
    return 0;
}
