// The kernel's log: each check holds on Quire and on Linux, for a user with CAP_SYSLOG.
#define _GNU_SOURCE
#include "checks.h"
#include <ctype.h>
#include <sys/klog.h>
#include <sys/syscall.h>
#include <sys/utsname.h>

enum { SIZE = 1 << 20 };
static char all[SIZE], last[SIZE];

static bool on_quire(void) {
    struct utsname name;
    return !uname(&name) && strstr(name.release, "quire");
}

static void the_arguments(void) {
    ANSWERS(EINVAL, klogctl(11, NULL, 0));
    ANSWERS(EINVAL, klogctl(-1, NULL, 0));
    for (int action = 2; action <= 4; action++) {
        ANSWERS(EINVAL, klogctl(action, NULL, 10));
        ANSWERS(EINVAL, klogctl(action, all, -1));
        ANSWERS(0, klogctl(action, all, 0));
        ANSWERS(EFAULT, syscall(SYS_syslog, action, 1UL << 62, 10));
    }
    ANSWERS(EFAULT, syscall(SYS_syslog, 3, 8, 4096));
    ANSWERS(0, klogctl(0, NULL, 0));
    ANSWERS(0, klogctl(1, NULL, 0));
    CHECK(klogctl(10, NULL, 0) > 0 && klogctl(9, NULL, 0) >= 0, "sizes");
}

static void the_last_lines(void) {
    int n = klogctl(3, all, SIZE - 1);
    CHECK(n > 0 && all[n - 1] == '\n', "%d bytes", n);
    for (char *line = all; line < all + n; line = strchr(line, '\n') + 1) {
        int level, seconds, micros;
        CHECK(sscanf(line, "<%d>[%d.%d]", &level, &seconds, &micros) == 3, "%.40s", line);
    }
    // A smaller buffer has the last lines, and each is whole.
    int first = strchr(all, '\n') + 1 - all, fewer = klogctl(3, last, n - 1);
    CHECK(fewer == n - first && !memcmp(all + first, last, fewer), "%d of %d", fewer, n);
    CHECK(klogctl(3, last, 1) == 0, "a part of a line");
}

// Takes lines from other readers, so only where there are none.
static void the_reader(void) {
    if (!on_quire()) return;
    int unread = klogctl(9, NULL, 0);
    CHECK(unread > 20, "unread %d", unread);
    CHECK(klogctl(2, last, 5) == 5 && last[0] == '<' && klogctl(9, NULL, 0) == unread - 5, "five bytes");
    CHECK(klogctl(2, last, SIZE) == unread - 5, "the others");
    CHECK(klogctl(9, NULL, 0) == 0, "none");
    // A signal ends the wait for more.
    struct sigaction action = {.sa_sigaction = on, .sa_flags = SA_SIGINFO};
    sigaction(SIGALRM, &action, NULL);
    pid_t child = sender(SIGALRM);
    ANSWERS(EINTR, klogctl(2, last, SIZE));
    ended(child);
    CHECK(caught == SIGALRM, "caught %d", caught);
    int n = klogctl(4, all, SIZE);
    CHECK(n == unread && klogctl(3, all, SIZE) == 0, "cleared %d", n);
    ANSWERS(0, klogctl(5, NULL, 0));
}

static void levels(int *to) {
    FILE *f = fopen("/proc/sys/kernel/printk", "r");
    CHECK(f && fscanf(f, "%d %d %d %d", to, to + 1, to + 2, to + 3) == 4, "printk");
    fclose(f);
}

static void the_levels(void) {
    int first[4], now[4];
    levels(first);
    ANSWERS(EINVAL, klogctl(8, NULL, 0));
    ANSWERS(EINVAL, klogctl(8, NULL, 9));
    ANSWERS(0, klogctl(8, NULL, 5));
    levels(now);
    CHECK(now[0] == 5 && now[1] == first[1] && now[2] == first[2] && now[3] == first[3], "level %d", now[0]);
    ANSWERS(0, klogctl(6, NULL, 0));
    ANSWERS(0, klogctl(6, NULL, 0));
    levels(now);
    CHECK(now[0] == now[2], "off %d", now[0]);
    ANSWERS(0, klogctl(7, NULL, 0));
    levels(now);
    CHECK(now[0] == 5, "on %d", now[0]);
    FILE *f = fopen("/proc/sys/kernel/printk", "w");
    CHECK(f && fprintf(f, "%d %d", first[0], first[1]) > 0 && !fclose(f), "restore");
    levels(now);
    CHECK(!memcmp(first, now, sizeof now), "restored");
}

static void restrict_to(int value) {
    FILE *f = fopen("/proc/sys/kernel/dmesg_restrict", "w");
    CHECK(f && fprintf(f, "%d", value) > 0 && !fclose(f), "dmesg_restrict");
}

static void the_rights(void) {
    for (int hidden = 0; hidden < 2; hidden++) {
        restrict_to(hidden);
        if (!fork()) {
            CHECK(!setuid(1000), "setuid");
            for (int action = -1; action <= 11; action++) {
                if (action == 3 || action == 10) {
                    ANSWERS(hidden ? EPERM : 0, klogctl(action, all, SIZE));
                } else {
                    ANSWERS(EPERM, klogctl(action, all, SIZE));
                }
            }
            _exit(0);
        }
        int status;
        CHECK(wait(&status) > 0 && !status, "child");
    }
    restrict_to(0);
}

int main(int argc, char **argv) {
    parse_options(argc, argv, NULL);
    static const struct check checks[] = {
        {"the_arguments", the_arguments}, {"the_last_lines", the_last_lines}, {"the_levels", the_levels},
        {"the_rights", the_rights},       {"the_reader", the_reader},
    };
    run_checks(checks, sizeof checks / sizeof *checks);
    return 0;
}
