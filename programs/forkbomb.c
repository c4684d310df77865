// A user's fork bomb beside root's shell: how long root waits, and whether the bomb ends on a signal.
//
//   --limit N     the user may have N processes (default 0: as many as the machine has ids)
//   --rounds N    how often root's shell runs `sleep 1; ls` meanwhile (default 3)
//   --most N      the longest that one may take, in milliseconds (default 3000)
//
// Prints `worst_ms N`, and `checks_passed 1` where all was well.
#include "checks.h"

enum { USER = 1000 };

static long limit, rounds = 3, most = 3000;

// Never returns. Each process of the bomb forks for ever, and retries when a fork fails.
static void bomb(void) {
    CHECK(!setpgid(0, 0), "setpgid");
    if (limit) {
        struct rlimit processes = {limit, limit};
        CHECK(!setrlimit(RLIMIT_NPROC, &processes), "setrlimit");
    }
    CHECK(!setgid(USER) && !setuid(USER), "setuid");
    for (;;) fork();
}

static uint64_t shell(void) {
    uint64_t began = now_ns();
    pid_t child = fork();
    CHECK(child >= 0, "root forks");
    if (!child) {
        int null = open("/dev/null", O_WRONLY);
        CHECK(dup2(null, 1) == 1, "dup2");
        execl("/bin/busybox", "sh", "-c", "sleep 1; ls /", NULL);
        _exit(127);
    }
    int status = ended(child);
    CHECK(WIFEXITED(status) && !WEXITSTATUS(status), "the shell's status is %#x", status);
    return (now_ns() - began) / MS;
}

int main(int argc, char **argv) {
    const struct setting own[] = {{"--limit", &limit, NULL}, {"--rounds", &rounds, NULL}, {"--most", &most, NULL}, {0}};
    parse_options(argc, argv, own);
    pid_t group = fork();
    CHECK(group >= 0, "fork");
    if (!group) bomb();
    // Parent and child both set the group: either may be first.
    setpgid(group, group);
    uint64_t worst = 0;
    for (long i = 0; i < rounds; i++) {
        uint64_t took = shell();
        if (took > worst) worst = took;
    }
    printf("worst_ms %lu\n", (unsigned long)worst);
    fflush(stdout);
    CHECK(worst >= 1000 && worst <= (uint64_t)most, "root's shell took %lu ms", (unsigned long)worst);
    // A process that was forked while the signal was sent may have missed it on some systems: a second signal ends it.
    uint64_t until = now_ns() + 10000 * MS;
    while (!kill(-group, SIGKILL)) {
        CHECK(now_ns() < until, "the bomb does not end");
        while (waitpid(-1, NULL, WNOHANG) > 0) {}
        usleep(10000);
    }
    CHECK(errno == ESRCH, "kill");
    printf("checks_passed 1\n");
    return 0;
}
