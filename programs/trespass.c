// Attacks across users and processes: each races a look at another process against a change of the looker or of the
// process. The look must return the looker's own data, or an error. Starts as root. (Linux fails `leaving_root` now and
// then. A process that exits has no memory any more, and then Linux shows its directories and files without checking
// whether its memory was open.)
//
//   --only NAME     only attacks whose name starts so
#include "checks.h"
#include <sys/auxv.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>

enum { USER = 1000, ROUNDS = 4000 };

static const char *self;
static atomic_int stop;

static void become_user(void) {
    CHECK(!setgid(USER) && !setuid(USER), "become a user");
    // So that its own files in /proc are its own.
    prctl(PR_SET_DUMPABLE, 1);
}

// The content of a file; -errno if it cannot be read.
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
    // Maps and unmaps: the limits of another process would prevent it.
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

// As a user: one thread repeatedly reads the command line of a process of root's, while `body` does something of its
// own.
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
        CHECK(content("/proc/self/auxv", (char *)now, sizeof now) == vector && !memcmp(now, own, vector),
            "another's auxv");
        len = content("/proc/self/maps", text, sizeof text - 1);
        CHECK(len > 0, "its map");
        text[len] = 0;
        char line[32];
        snprintf(line, sizeof line, "%lx-", (unsigned long)look_at_own & ~0xffful);
        // Some mapping holds this function: its first address stands at the start of a line, at or below.
        bool found = false;
        for (char *at = text; at && *at && !found; at = strchr(at, '\n') ? strchr(at, '\n') + 1 : NULL) {
            unsigned long from, to;
            found = sscanf(at, "%lx-%lx", &from, &to) == 2 && from <= (unsigned long)look_at_own &&
                (unsigned long)look_at_own < to;
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

// ---- a set-id program against looks at its process -----------------------------------------------------------------

#define PLACE "/tmp/trespass"
enum { STARTS = 120, OPEN = 16, SECRET_FD = 77 };

// The set-id program: it opens what only root may, ends, or drops its powers and becomes an ordinary program.
static void privileged(void) {
    int secret = open(PLACE "/secret", O_RDONLY);
    CHECK(secret >= 0 && dup2(secret, SECRET_FD) == SECRET_FD, "the secret");
    close(secret);
    for (int i = 0; i < 20; i++) sched_yield();
    close(SECRET_FD);
    uid_t own = getuid();
    CHECK(!setresuid(own, own, own), "drop");
    execl(PLACE "/plain", "plain", "--ordinary", NULL);
    _exit(127);
}

static bool is_secure(const unsigned long *vector, int words) {
    for (int i = 0; i + 1 < words; i += 2)
        if (vector[i] == AT_SECURE) return vector[i + 1];
    return false;
}

// As a user: looks at all files of the process, which runs as its own user at times and as a set-id program at times.
static void *pry(void *unused) {
    (void)unused;
    int files[OPEN], n = 0;
    memset(files, -1, sizeof files);
    char path[64], text[4096];
    unsigned long vector[64];
    while (!stop) {
        snprintf(path, sizeof path, "/proc/%d/%s", (int)looked_at, n % 2 ? "auxv" : "task");
        if (n % 2 == 0) snprintf(path, sizeof path, "/proc/%d/task/%d/auxv", (int)looked_at, (int)looked_at);
        if (files[n % OPEN] >= 0) close(files[n % OPEN]);
        files[n % OPEN] = open(path, O_RDONLY);
        n++;
        for (int i = 0; i < OPEN; i++) {
            if (files[i] < 0) continue;
            int len = pread(files[i], vector, sizeof vector, 0);
            CHECK(len <= 0 || !is_secure(vector, len / 8), "the auxiliary vector of a set-id program");
        }
        snprintf(path, sizeof path, "/proc/%d/maps", (int)looked_at);
        int len = content(path, text, sizeof text);
        CHECK(len <= 0 || !memmem(text, len, "/set-user", 9), "the map of a set-id program");
        snprintf(path, sizeof path, "/proc/%d/fd/%d", (int)looked_at, SECRET_FD);
        int secret = open(path, O_RDONLY);
        CHECK(secret < 0, "a file of a set-id program");
        snprintf(path, sizeof path, "/proc/%d/fd/%d", (int)looked_at, SECRET_FD);
        CHECK(readlink(path, text, sizeof text) < 0, "the name of a file of a set-id program");
        snprintf(path, sizeof path, "/proc/%d/exe", (int)looked_at);
        len = readlink(path, text, sizeof text);
        CHECK(len < 0 || !memmem(text, len, "/set-user", 9), "the program of a set-id process");
    }
    for (int i = 0; i < OPEN; i++) if (files[i] >= 0) close(files[i]);
    return NULL;
}

static void copy_to(const char *to, unsigned mode) {
    char bytes[65536];
    int from = open("/proc/self/exe", O_RDONLY), copy = open(to, O_CREAT | O_WRONLY | O_TRUNC, 0700);
    CHECK(from >= 0 && copy >= 0, "%s", to);
    for (ssize_t n; (n = read(from, bytes, sizeof bytes)) > 0;) CHECK(write(copy, bytes, n) == n, "%s", to);
    CHECK(!fchmod(copy, mode), "%s", to);
    close(from);
    close(copy);
}

static void set_id_programs_beside_looks(void) {
    CHECK(!mkdir(PLACE, 0755) || errno == EEXIST, PLACE);
    copy_to(PLACE "/plain", 0755);
    copy_to(PLACE "/set-user", 04755);
    copy_to(PLACE "/secret", 0600);
    CHECK(!setgid(USER) && !setuid(USER), "become a user");
    execl(PLACE "/plain", "plain", "--pry", NULL);
    fail("exec");
}
// As a user, in a program of its own, whose process may be looked at.
static void pry_all(void) {
    for (int round = 0; round < STARTS; round++) {
        pid_t child = fork();
        CHECK(child >= 0, "fork");
        if (!child) {
            execl(PLACE "/set-user", "set-user", "--privileged", NULL);
            _exit(126);
        }
        looked_at = child;
        stop = 0;
        pthread_t threads[2];
        for (int i = 0; i < 2; i++) CHECK(!pthread_create(&threads[i], NULL, pry, NULL), "a thread");
        int status = ended(child);
        stop = 1;
        for (int i = 0; i < 2; i++) pthread_join(threads[i], NULL);
        CHECK(WIFEXITED(status) && !WEXITSTATUS(status), "the set-id program: status %#x", status);
    }
}

// ---- a process that leaves root against looks at it ----------------------------------------------------------------

static void *drop_in_thread(void *unused) {
    (void)unused;
    // Of this thread alone: the first one stays root.
    CHECK(!syscall(SYS_setresuid, USER, USER, USER), "drop");
    while (!stop) sched_yield();
    return NULL;
}

static void leaving_root_beside_looks(void) {
    volatile atomic_int *shared = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(shared != MAP_FAILED, "mmap");
    pid_t looker = fork();
    CHECK(looker >= 0, "fork");
    if (!looker) {
        become_user();
        while (!shared[1]) {
            int p = shared[0];
            if (!p) continue;
            char path[64], text[256];
            const char *names[] = {"environ", "maps", "auxv", "smaps_rollup"};
            for (int i = 0; i < 4; i++) {
                snprintf(path, sizeof path, "/proc/%d/%s", p, names[i]);
                int len = content(path, text, sizeof text);
                CHECK(len <= 0, "%s of a process that was root's: %d", path, len);
            }
            snprintf(path, sizeof path, "/proc/%d/cwd", p);
            CHECK(readlink(path, text, sizeof text) < 0, "%s", path);
        }
        _exit(0);
    }
    for (int round = 0; round < STARTS; round++) {
        pid_t child = fork();
        CHECK(child >= 0, "fork");
        if (!child) {
            shared[0] = getpid();
            for (int i = 0; i < 5; i++) sched_yield();
            stop = 0;
            pthread_t thread;
            if (round % 2) CHECK(!pthread_create(&thread, NULL, drop_in_thread, NULL), "a thread");
            else CHECK(!setresgid(USER, USER, USER) && !setresuid(USER, USER, USER), "drop");
            for (int i = 0; i < 20; i++) sched_yield();
            _exit(0);
        }
        ended(child);
    }
    shared[1] = 1;
    int status = ended(looker);
    CHECK(!status, "the looker: status %#x", status);
}

static const struct check checks[] = {
    {"set_id_programs_beside_looks", set_id_programs_beside_looks},
    {"leaving_root_beside_looks", leaving_root_beside_looks},
    {"own_memory_beside_a_look", own_memory_beside_a_look},
    {"own_limits_beside_a_look", own_limits_beside_a_look},
};

int main(int argc, char **argv) {
    self = "/proc/self/exe";
    if (argc > 1 && !strcmp(argv[1], "--secretive")) secretive();
    if (argc > 1 && !strcmp(argv[1], "--privileged")) privileged();
    if (argc > 1 && !strcmp(argv[1], "--ordinary")) return 0;
    if (argc > 1 && !strcmp(argv[1], "--pry")) {
        pry_all();
        return 0;
    }
    parse_options(argc, argv, (struct setting[]){{0}});
    CHECK(getuid() == 0, "it starts as root");
    setvbuf(stdout, NULL, _IONBF, 0);
    run_checks(checks, sizeof checks / sizeof *checks);
    return 0;
}
