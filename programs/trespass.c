// Attacks across users and processes: each races a look at another process against a change of the looker or of the process.
// What comes back must be one's own, or an error; the same on Linux and on Quire. Starts as root.
//
//   --only NAME     only attacks whose name starts so
#include "checks.h"
#include <sys/auxv.h>
#include <sys/prctl.h>
#include <sys/stat.h>

enum { USER = 1000, ROUNDS = 4000 };

static const char *self;
static atomic_int stop;

static void become_user(void) {
    CHECK(!setgid(USER) && !setuid(USER), "become a user");
    // So that its own files in /proc are its own.
    prctl(PR_SET_DUMPABLE, 1);
}

// The content of a file; -errno where it cannot be had.
static int content(const char *path, char *to, int size) {
    int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0) return -errno;
    int len = 0, n;
    while (len < size && (n = read(file, to + len, size - len)) > 0) len += n;
    close(file);
    return len;
}

// A process of root's that has a secret in its environment, and sleeps.
static pid_t victim(void) {
    int ends[2];
    CHECK(!pipe(ends), "pipe");
    pid_t child = fork();
    CHECK(child >= 0, "fork");
    if (!child) {
        CHECK(dup2(ends[1], 3) == 3, "dup2");
        char *arguments[] = {(char *)self, "--secretive", NULL}, *environment[] = {"SECRET=of root", NULL};
        execve(self, arguments, environment);
        _exit(127);
    }
    close(ends[1]);
    char byte;
    CHECK(read(ends[0], &byte, 1) == 1, "the victim is there");
    close(ends[0]);
    return child;
}

static void secretive(void) {
    CHECK(write(3, "x", 1) == 1, "say that it is there");
    close(3);
    // Maps and unmaps: what another process's limits would keep it from.
    for (;;) {
        void *memory = mmap(NULL, MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (memory == MAP_FAILED) _exit(9);
        CHECK(!munmap(memory, MIB), "munmap");
        usleep(500);
    }
}

static void end_victim(pid_t victim) {
    int status;
    CHECK(waitpid(victim, &status, WNOHANG) == 0, "the victim has lived on (status %#x)", status);
    kill(victim, SIGKILL);
    ended(victim);
}

static pid_t looked_at;

static void *look_on(void *unused) {
    (void)unused;
    char path[64], text[4096];
    snprintf(path, sizeof path, "/proc/%d/cmdline", (int)looked_at);
    while (!stop) {
        int len = content(path, text, sizeof text);
        CHECK(len > 0 && memmem(text, len, "--secretive", 11), "the command line of another process: %d", len);
    }
    return NULL;
}

// As a user: one thread reads the command line of a process of root's, over and over; `body` does something of its own.
static void beside_a_look(void (*body)(void)) {
    looked_at = victim();
    pid_t user = fork();
    CHECK(user >= 0, "fork");
    if (!user) {
        become_user();
        pthread_t thread;
        stop = 0;
        CHECK(!pthread_create(&thread, NULL, look_on, NULL), "a thread");
        body();
        stop = 1;
        pthread_join(thread, NULL);
        _exit(0);
    }
    int status = ended(user);
    CHECK(!status, "the user's process: status %#x", status);
    end_victim(looked_at);
}

static void look_at_own(void) {
    char text[65536];
    unsigned long own[64] = {0};
    int vector = content("/proc/self/auxv", (char *)own, sizeof own);
    CHECK(vector > 0, "its auxiliary vector: %d", vector);
    for (int i = 0; i < ROUNDS / 8; i++) {
        int len = content("/proc/self/environ", text, sizeof text);
        CHECK(len >= 0 && !memmem(text, len, "SECRET", 6), "the environment of another process");
        unsigned long now[64] = {0};
        CHECK(content("/proc/self/auxv", (char *)now, sizeof now) == vector && !memcmp(now, own, vector), "another's auxv");
        len = content("/proc/self/maps", text, sizeof text - 1);
        CHECK(len > 0, "its map");
        text[len] = 0;
        char line[32];
        snprintf(line, sizeof line, "%lx-", (unsigned long)look_at_own & ~0xffful);
        // Some mapping holds this function: its first address stands at the start of a line, at or below.
        bool found = false;
        for (char *at = text; at && *at && !found; at = strchr(at, '\n') ? strchr(at, '\n') + 1 : NULL) {
            unsigned long from, to;
            found = sscanf(at, "%lx-%lx", &from, &to) == 2 && from <= (unsigned long)look_at_own && (unsigned long)look_at_own < to;
        }
        CHECK(found, "the map of another process");
    }
}

static void limit_own(void) {
    struct rlimit limit;
    CHECK(!getrlimit(RLIMIT_AS, &limit), "getrlimit");
    for (int i = 0; i < ROUNDS; i++) {
        limit.rlim_cur = PAGE;
        CHECK(!setrlimit(RLIMIT_AS, &limit), "setrlimit");
        // It holds at once, and for this process.
        CHECK(mmap(NULL, MIB, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) == MAP_FAILED, "no limit");
        limit.rlim_cur = limit.rlim_max;
        CHECK(!setrlimit(RLIMIT_AS, &limit), "setrlimit");
        void *memory = mmap(NULL, MIB, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        CHECK(memory != MAP_FAILED, "limited");
        munmap(memory, MIB);
    }
}

static void own_memory_beside_a_look(void) { beside_a_look(look_at_own); }
static void own_limits_beside_a_look(void) { beside_a_look(limit_own); }

static const struct check checks[] = {
    {"own_memory_beside_a_look", own_memory_beside_a_look},
    {"own_limits_beside_a_look", own_limits_beside_a_look},
};

int main(int argc, char **argv) {
    self = "/proc/self/exe";
    if (argc > 1 && !strcmp(argv[1], "--secretive")) secretive();
    parse_options(argc, argv, (struct setting[]){{0}});
    CHECK(getuid() == 0, "it starts as root");
    setvbuf(stdout, NULL, _IONBF, 0);
    run_checks(checks, sizeof checks / sizeof *checks);
    return 0;
}
