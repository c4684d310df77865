// The permissions of a process on other processes and on files, by its credentials. It prints one line for each
// operation and relation, which must be the same on Linux and on Quire. Starts as root.
//
//   --complete   only fails where /proc has a file that no line is about (of Quire: a Linux has many more)
//
// The actors are `user` (1000, in the groups 1000 and 50), `root`, and `bare` (user 0 without capabilities). A line is
// OPERATION ACTOR TARGET RESULT, where the result is `ok`, a number, or the name of an error.
#include "checks.h"
#include <dirent.h>
#include <grp.h>
#include <sys/auxv.h>
#include <sys/inotify.h>
#include <sys/personality.h>
#include <netinet/in.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/ipc.h>
#include <sys/msg.h>
#include <sys/sem.h>
#include <sys/shm.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <sys/xattr.h>

enum { USER = 1000, OTHER = 2000, EXTRA = 50 };
#define PLACE "/tmp/isolation"

// Two words of a set each, as capset wants them.
static void set_capabilities(uint64_t effective, uint64_t permitted) {
    struct { uint32_t version; int pid; } header = {0x20080522, 0};
    uint32_t data[6] = {effective, permitted, 0, effective >> 32, permitted >> 32, 0};
    CHECK(!syscall(SYS_capset, &header, data), "capset");
}

static void become(unsigned user) {
    gid_t extra = EXTRA;
    CHECK(!setgroups(user == USER, &extra) && !setresgid(user, user, user) && !setresuid(user, user, user), "become %u",
        user);
}
static void user(void) { become(USER); }
static void other(void) { become(OTHER); }
static void root(void) {}
static void bare(void) { set_capabilities(0, 0); }

static const struct actor {
    const char *name;
    void (*become)(void);
} actors[] = {{"user", user}, {"root", root}, {"bare", bare}};
#define COUNT(array) (sizeof(array) / sizeof *(array))

static const char *name_of(int error) {
    static char number[16];
    switch (error) {
    case 0: return "ok";
#define ONE(e) case e: return #e;
    ONE(EPERM) ONE(EACCES) ONE(ESRCH) ONE(EINVAL) ONE(ENOENT) ONE(EXDEV) ONE(ENOTDIR) ONE(ELOOP) ONE(ENOSYS) ONE(EFAULT)
    ONE(EBADF) ONE(EEXIST) ONE(ENXIO) ONE(ENODEV) ONE(EISDIR) ONE(ECHILD) ONE(EOPNOTSUPP) ONE(ENOTEMPTY) ONE(EBUSY)
    }
    snprintf(number, sizeof number, "errno-%d", error);
    return number;
}

// Results: 0 for success, -errno, or a positive number.
static long result(long value) { return value < 0 ? -errno : 0; }

static void line(const char *operation, const char *actor, const char *target, long value) {
    if (value > 0) printf("%s %s %s %lo\n", operation, actor, target, value);
    else printf("%s %s %s %s\n", operation, actor, target, name_of(-value));
}

// ---- processes -----------------------------------------------------------------------------------------------------

static long do_kill(pid_t p) { return result(kill(p, 0)); }
static long do_tkill(pid_t p) { return result(syscall(SYS_tkill, p, 0)); }
static long do_tgkill(pid_t p) { return result(syscall(SYS_tgkill, p, p, 0)); }
static long do_kill_group(pid_t p) { return result(kill(-p, 0)); }
static long do_kill_continue(pid_t p) { return result(kill(p, SIGCONT)); }
static long queue(int call, pid_t p, int code) {
    siginfo_t info = {0};
    info.si_signo = SIGURG;
    info.si_code = code;
    return result(call == SYS_rt_sigqueueinfo ? syscall(call, p, SIGURG, &info) : syscall(call, p, p, SIGURG, &info));
}
static long do_sigqueue(pid_t p) { return queue(SYS_rt_sigqueueinfo, p, SI_QUEUE); }
static long do_sigqueue_as_kernel(pid_t p) { return queue(SYS_rt_sigqueueinfo, p, SI_USER); }
static long do_tgsigqueue(pid_t p) { return queue(SYS_rt_tgsigqueueinfo, p, SI_QUEUE); }
static long limit(pid_t p, int which, bool set, long more) {
    unsigned long now[2], new[2];
    long got = result(syscall(SYS_prlimit64, p, which, NULL, now));
    if (got || !set) return got;
    new[0] = now[0], new[1] = now[1] + more;
    return result(syscall(SYS_prlimit64, p, which, new, NULL));
}
static long do_prlimit_get(pid_t p) { return limit(p, RLIMIT_NOFILE, false, 0); }
static long do_prlimit_set(pid_t p) { return limit(p, RLIMIT_NOFILE, true, 0); }
static long do_prlimit_raise(pid_t p) { return limit(p, RLIMIT_NOFILE, true, 1); }
static long do_prlimit_wrong(pid_t p) { return result(syscall(SYS_prlimit64, p, 99, NULL, NULL)); }
static long do_getpriority(pid_t p) { return result(syscall(SYS_getpriority, PRIO_PROCESS, p)); }
static long do_setpriority(pid_t p) { return result(setpriority(PRIO_PROCESS, p, 5)); }
static long do_setpriority_up(pid_t p) { return result(setpriority(PRIO_PROCESS, p, 4)); }
static long do_ioprio_get(pid_t p) { return result(syscall(SYS_ioprio_get, 1, p)); }
static long do_ioprio_set(pid_t p) { return result(syscall(SYS_ioprio_set, 1, p, 2 << 13)); }
static long do_sched_getaffinity(pid_t p) {
    unsigned long mask[16];
    return result(syscall(SYS_sched_getaffinity, p, sizeof mask, mask));
}
static long do_sched_setaffinity(pid_t p) {
    unsigned long mask = ~0ul;
    return result(syscall(SYS_sched_setaffinity, p, sizeof mask, &mask));
}
static long do_process_vm_readv(pid_t p) {
    static long there;
    long here;
    return result(syscall(SYS_process_vm_readv, p, &(struct iovec){&here, 8}, 1, &(struct iovec){&there, 8}, 1, 0));
}
static long do_process_vm_writev(pid_t p) {
    static long there;
    long here = 0;
    return result(syscall(SYS_process_vm_writev, p, &(struct iovec){&here, 8}, 1, &(struct iovec){&there, 8}, 1, 0));
}
static long do_sched_getscheduler(pid_t p) { return result(syscall(SYS_sched_getscheduler, p)); }
static long do_sched_setscheduler(pid_t p) {
    int priority = 0;
    return result(syscall(SYS_sched_setscheduler, p, 0, &priority));
}
static long do_sched_getparam(pid_t p) {
    int priority;
    return result(syscall(SYS_sched_getparam, p, &priority));
}
static long do_sched_setparam(pid_t p) {
    int priority = 0;
    return result(syscall(SYS_sched_setparam, p, &priority));
}
static long do_sched_rr_get_interval(pid_t p) {
    struct timespec t;
    return result(syscall(SYS_sched_rr_get_interval, p, &t));
}
static long do_get_robust_list(pid_t p) {
    void *head;
    size_t len;
    return result(syscall(SYS_get_robust_list, p, &head, &len));
}
static long do_capget(pid_t p) {
    struct { uint32_t version; int pid; } header = {0x20080522, p};
    uint32_t data[6];
    long got = result(syscall(SYS_capget, &header, data));
    return got ? got : (long)!!data[0] + 1;
}
static long do_capset(pid_t p) {
    struct { uint32_t version; int pid; } header = {0x20080522, p};
    uint32_t data[6] = {0};
    return result(syscall(SYS_capset, &header, data));
}
static long do_setpgid(pid_t p) { return result(setpgid(p, p)); }
static long do_getpgid(pid_t p) { return result(getpgid(p)); }
static long do_getsid(pid_t p) { return result(getsid(p)); }
static long do_wait4(pid_t p) { return result(wait4(p, NULL, WNOHANG, NULL)); }
static long do_waitid(pid_t p) {
    siginfo_t info;
    return result(waitid(P_PID, p, &info, WEXITED | WNOHANG));
}

static long by_file(int call, pid_t p, int argument) {
    int file = syscall(434 /* pidfd_open */, p, 0);
    if (file < 0) return -errno;
    long got = result(syscall(call, file, argument, 0, 0));
    close(file);
    return got;
}
static long do_pidfd_send_signal(pid_t p) { return by_file(424, p, 0); }
static long do_pidfd_getfd(pid_t p) { return by_file(438, p, 0); }

static const struct operation {
    const char *name;
    long (*run)(pid_t);
} operations[] = {
    {"kill", do_kill}, {"tkill", do_tkill}, {"tgkill", do_tgkill}, {"kill-group", do_kill_group},
    {"kill-continue", do_kill_continue}, {"rt_sigqueueinfo", do_sigqueue},
        {"rt_sigqueueinfo-as-kill", do_sigqueue_as_kernel},
    {"rt_tgsigqueueinfo", do_tgsigqueue}, {"prlimit64", do_prlimit_get}, {"prlimit64-set", do_prlimit_set},
    {"prlimit64-raise", do_prlimit_raise}, {"prlimit64-wrong", do_prlimit_wrong}, {"getpriority", do_getpriority},
    {"setpriority", do_setpriority}, {"setpriority-up", do_setpriority_up},
    {"ioprio_get", do_ioprio_get}, {"ioprio_set", do_ioprio_set}, {"sched_getaffinity", do_sched_getaffinity},
    {"process_vm_readv", do_process_vm_readv}, {"process_vm_writev", do_process_vm_writev},
    {"sched_setaffinity", do_sched_setaffinity}, {"sched_getscheduler", do_sched_getscheduler},
    {"sched_setscheduler", do_sched_setscheduler}, {"sched_getparam", do_sched_getparam},
        {"sched_setparam", do_sched_setparam},
    {"sched_rr_get_interval", do_sched_rr_get_interval}, {"get_robust_list", do_get_robust_list}, {"capget", do_capget},
    {"capset", do_capset}, {"setpgid", do_setpgid}, {"getpgid", do_getpgid}, {"getsid", do_getsid}, {"wait4", do_wait4},
    {"waitid", do_waitid}, {"pidfd_send_signal", do_pidfd_send_signal}, {"pidfd_getfd", do_pidfd_getfd},
};

// Files of /proc/<pid>, and the operation on each.
enum how { READ, WRITE, LINK, ENTER, LIST };
static const struct { const char *name; enum how how; } of_process[] = {
    {"auxv", READ}, {"cgroup", READ}, {"clear_refs", READ}, {"clear_refs", WRITE}, {"cmdline", READ}, {"comm", READ},
        {"comm", WRITE}, {"cwd", LINK}, {"cwd", ENTER},
    {"environ", READ}, {"exe", LINK}, {"exe", ENTER}, {"fd", LIST}, {"fd/0", LINK}, {"fd/0", ENTER}, {"fdinfo", LIST},
        {"fdinfo/0", READ}, {"limits", READ},
    {"loginuid", READ}, {"maps", READ}, {"mem", READ}, {"mountinfo", READ}, {"mounts", READ}, {"net", LIST},
        {"numa_maps", READ},
    {"oom_adj", READ}, {"oom_score", READ}, {"oom_score_adj", READ}, {"oom_score_adj", WRITE}, {"pagemap", READ},
    {"personality", READ}, {"root", LINK}, {"root", ENTER}, {"sessionid", READ}, {"smaps", READ},
        {"smaps_rollup", READ},
    {"stat", READ}, {"statm", READ}, {"status", READ}, {"wchan", READ},
    // Of the process alone.
    {"coredump_filter", READ}, {"map_files", LIST}, {"task", LIST}, {"timerslack_ns", READ}, {"timerslack_ns", WRITE},
};
static const char *const hows[] = {"read", "write", "readlink", "follow", "list"};

static long use(const char *path, enum how how) {
    char byte;
    struct stat status;
    if (how == LINK) {
        char to[256];
        return result(readlink(path, to, sizeof to));
    }
    if (how == ENTER) return result(stat(path, &status));
    int file = open(path, (how == WRITE ? O_WRONLY : O_RDONLY) | (how == LIST ? O_DIRECTORY : 0));
    if (file < 0) return -errno;
    long got = 0;
    if (how == READ) got = result(read(file, &byte, 1));
    if (how == WRITE) got = result(write(file, "7", 1));
    close(file);
    return got;
}

// The text of its own `stat` and of others': whether addresses are shown.
static long shows_addresses(pid_t p) {
    char path[64], text[1024];
    snprintf(path, sizeof path, "/proc/%d/stat", (int)p);
    int file = open(path, O_RDONLY), len = file < 0 ? -1 : read(file, text, sizeof text - 1);
    if (len <= 0) return -errno;
    text[len] = 0;
    close(file);
    unsigned long start_code = 0;
    CHECK(sscanf(strrchr(text, ')'),
        ") %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d %*d %*d %*d %*d %*u "
        "%*u %*d %*u %lu", &start_code) == 1, "stat");
    return start_code > 1 ? 2 : 1;
}

// Mode and owner of a process's file.
static void owner_of(const char *target, pid_t p, const char *name) {
    char path[64];
    struct stat status;
    snprintf(path, sizeof path, "/proc/%d/%s", (int)p, name);
    if (lstat(path, &status)) printf("owner %s %s %s\n", name, target, name_of(errno));
    else printf("owner %s %s %o %u %u\n", name, target, status.st_mode, status.st_uid, status.st_gid);
}

static pid_t wait_for(pid_t child, int ends[2]) {
    close(ends[1]);
    char byte;
    CHECK(read(ends[0], &byte, 1) == 1, "a target is there");
    close(ends[0]);
    return child;
}

static void stay(void) {
    CHECK(write(3, "x", 1) == 1, "say that it is there");
    close(3);
    for (;;) pause();
}

// A process that has taken on credentials, and `then` does something. It sleeps in a session of its own, with a name
// that can be written.
static pid_t target(void (*become)(void), void (*then)(void)) {
    int ends[2];
    CHECK(!pipe(ends), "pipe");
    pid_t child = fork();
    CHECK(child >= 0, "fork");
    if (!child) {
        CHECK(dup2(ends[1], 3) == 3, "dup2");
        setsid();
        setpriority(PRIO_PROCESS, 0, 5);
        become();
        then();
        _exit(127);
    }
    return wait_for(child, ends);
}
static void again(void) { execl(PLACE "/plain", "plain", "--stay", NULL); }
static void with_set_id(void) { execl(PLACE "/set-user", "set-user", "--stay", NULL); }
static void with_group_id(void) { execl(PLACE "/set-group", "set-group", "--stay", NULL); }
static void unreadable(void) { execl(PLACE "/unreadable", "unreadable", "--stay", NULL); }
static void close_up(void) { execl(PLACE "/plain", "plain", "--close", NULL); }

static void of_processes(void) {
    const struct { const char *name; void (*become)(void), (*then)(void); } kinds[] = {
        {"own", user, again}, {"own-closed", user, close_up}, {"own-dropped", user, stay},
            {"own-set-user", user, with_set_id},
        {"own-set-group", user, with_group_id}, {"own-unreadable", user, unreadable}, {"others", other, again},
        {"roots", root, again}, {"bares", bare, stay},
    };
    for (size_t k = 0; k < COUNT(kinds); k++) {
        pid_t p = target(kinds[k].become, kinds[k].then);
        for (size_t a = 0; a < COUNT(actors); a++) {
            pid_t actor = fork();
            CHECK(actor >= 0, "fork");
            if (!actor) {
                actors[a].become();
                for (size_t o = 0; o < COUNT(operations); o++)
                    line(operations[o].name, actors[a].name, kinds[k].name, operations[o].run(p));
                for (size_t f = 0; f < COUNT(of_process); f++) {
                    char path[64], name[64];
                    snprintf(path, sizeof path, "/proc/%d/%s", (int)p, of_process[f].name);
                    snprintf(name, sizeof name, "/proc/PID/%s:%s", of_process[f].name, hows[of_process[f].how]);
                    line(name, actors[a].name, kinds[k].name, use(path, of_process[f].how));
                    snprintf(path, sizeof path, "/proc/%d/task/%d/%s", (int)p, (int)p, of_process[f].name);
                    snprintf(name, sizeof name, "/proc/PID/task/TID/%s:%s", of_process[f].name,
                        hows[of_process[f].how]);
                    if (strcmp(of_process[f].name, "task") && strcmp(of_process[f].name, "coredump_filter") &&
                        strcmp(of_process[f].name, "map_files") &&
                        strcmp(of_process[f].name, "timerslack_ns")) line(name, actors[a].name, kinds[k].name,
                        use(path, of_process[f].how));
                }
                line("/proc/PID/stat:addresses", actors[a].name, kinds[k].name, shows_addresses(p));
                _exit(0);
            }
            CHECK(!ended(actor), "the actor %s", actors[a].name);
        }
        for (size_t f = 0; f < COUNT(of_process); f++)
            if (f == 0 || strcmp(of_process[f].name, of_process[f - 1].name))
                owner_of(kinds[k].name, p, of_process[f].name);
        kill(p, SIGKILL);
        ended(p);
    }
}

// ---- oneself -------------------------------------------------------------------------------------------------------

static long word(const char *file, const char *key, int base) {
    char text[4096], *at;
    int fd = open(file, O_RDONLY), len = fd < 0 ? -1 : read(fd, text, sizeof text - 1);
    if (fd >= 0) close(fd);
    if (len < 0) return -1;
    text[len] = 0;
    return (at = strstr(text, key)) ? strtol(at + strlen(key), NULL, base) : -1;
}

static void report_identity(const char *label) {
    unsigned ids[6];
    getresuid(&ids[0], &ids[1], &ids[2]);
    getresgid(&ids[3], &ids[4], &ids[5]);
    int death = 0;
    prctl(PR_GET_PDEATHSIG, &death);
    printf("ids %s %u %u %u %u %u %u secure %lu dumpable %d death %d persona %lx", label, ids[0], ids[1], ids[2],
        ids[3], ids[4],
           ids[5], getauxval(AT_SECURE), prctl(PR_GET_DUMPABLE), death, (unsigned long)personality(0xffffffff));
    printf(" auxv %lu %lu %lu %lu", getauxval(AT_UID), getauxval(AT_EUID), getauxval(AT_GID), getauxval(AT_EGID));
    const char *sets[] = {"CapInh:", "CapPrm:", "CapEff:", "CapAmb:"};
    for (size_t i = 0; i < COUNT(sets); i++) printf(" %lx", word("/proc/self/status", sets[i], 16) & 0x1fffffffffl);
    printf("\n");
}

// Runs `file` after `before` in a child, which reports its own credentials.
static void runs(const char *label, void (*become)(void), void (*before)(void), const char *file) {
    pid_t child = fork();
    CHECK(child >= 0, "fork");
    if (!child) {
        become();
        if (before) before();
        execl(file, "program", "--tell", label, NULL);
        printf("ids %s exec %s\n", label, name_of(errno));
        _exit(0);
    }
    CHECK(!ended(child), "%s", label);
}
static void confine(void) { CHECK(!prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "confine"); }
static void weaken(void) {
    personality(ADDR_NO_RANDOMIZE | READ_IMPLIES_EXEC);
    prctl(PR_SET_PDEATHSIG, SIGURG);
}
static void half_root(void) { CHECK(!setresuid(USER, 0, 0), "half root"); }
static void saved_root(void) { CHECK(!setresuid(USER, USER, 0), "saved root"); }
static void bounded(void) {
    CHECK(!prctl(PR_CAPBSET_DROP, 7, 0, 0, 0), "bounded");
    user();
}
static void ambient(void) {
    struct { uint32_t version; int pid; } header = {0x20080522, 0};
    uint32_t data[6] = {1, 1, 1, 0, 0, 0};
    CHECK(!prctl(PR_SET_KEEPCAPS, 1), "keep");
    user();
    CHECK(!syscall(SYS_capset, &header, data) && !prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, 0, 0, 0), "ambient");
}
static int share_and_run(void *file) {
    execl(file, "program", "--tell", "user-set-user-shared", NULL);
    _exit(1);
}

static void of_programs(void) {
    runs("user-plain", user, NULL, PLACE "/plain");
    runs("user-weak-plain", user, weaken, PLACE "/plain");
    runs("user-set-user", user, NULL, PLACE "/set-user");
    runs("user-weak-set-user", user, weaken, PLACE "/set-user");
    runs("user-set-group", user, NULL, PLACE "/set-group");
    runs("user-set-other", user, NULL, PLACE "/set-other");
    runs("user-set-both", user, NULL, PLACE "/set-both");
    runs("user-set-group-no-x", user, NULL, PLACE "/set-group-no-x");
    runs("user-confined-set-user", user, confine, PLACE "/set-user");
    runs("user-unreadable", user, NULL, PLACE "/unreadable");
    runs("user-script", user, NULL, PLACE "/script");
    runs("root-set-other", root, NULL, PLACE "/set-other");
    runs("root-plain", root, NULL, PLACE "/plain");
    runs("bare-plain", bare, NULL, PLACE "/plain");
    runs("bare-confined-plain", bare, confine, PLACE "/plain");
    runs("half-root-plain", half_root, NULL, PLACE "/plain");
    runs("saved-root-plain", saved_root, NULL, PLACE "/plain");
    runs("bounded-set-user", bounded, NULL, PLACE "/set-user");
    runs("ambient-plain", ambient, NULL, PLACE "/plain");
    runs("ambient-set-user", ambient, NULL, PLACE "/set-user");
    pid_t child = fork();
    if (!child) {
        user();
        static char stack[65536] __attribute__((aligned(16)));
        // The parent shares its directories, and lives on.
        pid_t sharer = clone(share_and_run, stack + sizeof stack, CLONE_FS | SIGCHLD, PLACE "/set-user");
        CHECK(sharer > 0 && !ended(sharer), "clone");
        _exit(0);
    }
    CHECK(!ended(child), "sharing directories");
}

static struct sockaddr_un socket_at(const char *path) {
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    strcpy(at.sun_path, path);
    return at;
}
static int connects(const char *path) {
    struct sockaddr_un at = socket_at(path);
    return connect(socket(AF_UNIX, SOCK_STREAM, 0), (void *)&at, sizeof at);
}
static int binds(const char *path) {
    struct sockaddr_un at = socket_at(path);
    return bind(socket(AF_UNIX, SOCK_STREAM, 0), (void *)&at, sizeof at);
}
static int binds_port(int port) {
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    return bind(socket(AF_INET, SOCK_STREAM, 0), (void *)&at, sizeof at);
}
// A socket of root that listens at `path`.
static void make_socket(const char *path, unsigned mode) {
    struct sockaddr_un at = socket_at(path);
    int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    unlink(path);
    CHECK(fd >= 0 && !bind(fd, (void *)&at, sizeof at) && !listen(fd, 64) && !chmod(path, mode), "%s", path);
}

// Root's shared memory, semaphore and message queue.
enum { KEY = 0x517a };
static int shared_memory, semaphore, message_queue;
static void make_ipc(void) {
    shared_memory = shmget(KEY, 1, IPC_CREAT | 0600);
    semaphore = semget(KEY, 1, IPC_CREAT | 0600);
    message_queue = msgget(KEY, IPC_CREAT | 0600);
    CHECK(syscall(SYS_mq_open, "isolation", O_CREAT | O_RDWR, 0600, NULL) >= 0, "mq_open");
    CHECK(shared_memory >= 0 && semaphore >= 0 && message_queue >= 0, "IPC");
}

#define STEP(label, call) printf("step %s %s\n", label, name_of((call) < 0 ? errno : 0))
static void a_users_steps(void) {
    user();
    STEP("user-setuid-0", setuid(0));
    STEP("user-setuid-own", setuid(USER));
    STEP("user-setgid-0", setgid(0));
    STEP("user-setgid-extra", setgid(EXTRA));
    STEP("user-setreuid", setreuid(-1, 0));
    STEP("user-setregid", setregid(EXTRA, -1));
    STEP("user-setresuid", setresuid(USER, USER, OTHER));
    STEP("user-setresgid", setresgid(-1, OTHER, -1));
    STEP("user-setgroups", setgroups(0, NULL));
    STEP("user-sethostname", sethostname("x", 1));
    STEP("user-setdomainname", setdomainname("x", 1));
    STEP("user-settimeofday", settimeofday(&(struct timeval){1, 0}, NULL));
    STEP("user-clock_settime", clock_settime(CLOCK_REALTIME, &(struct timespec){1, 0}));
    STEP("user-adjtimex", syscall(SYS_adjtimex, &(int[52]){0}));
    STEP("user-adjtimex-set", syscall(SYS_adjtimex, &(int[52]){0x4000 /* ADJ_TICK */}));
    STEP("user-clock_adjtime", syscall(SYS_clock_adjtime, CLOCK_REALTIME, &(int[52]){0x100 /* ADJ_SETOFFSET */}));
    STEP("user-reboot", syscall(SYS_reboot, 0xfee1dead, 672274793, 0, 0));
    STEP("user-mount", mount("none", "/", "tmpfs", 0, NULL));
    STEP("user-mount-bind", mount("/tmp", "/", NULL, MS_BIND, NULL));
    STEP("user-umount2", umount2("/", 0));
    STEP("user-syslog", syscall(SYS_syslog, 5, NULL, 0));
    STEP("user-chroot", chroot("/"));
    STEP("user-chroot-closed", chroot(PLACE "/closed"));
    STEP("user-connect", connects(PLACE "/socket-666"));
    STEP("user-connect-600", connects(PLACE "/socket-600"));
    STEP("user-connect-444", connects(PLACE "/socket-444"));
    STEP("user-bind", binds(PLACE "/open/user-socket"));
    STEP("user-bind-closed", binds(PLACE "/closed/user-socket"));
    STEP("user-bind-again", binds(PLACE "/open/user-socket"));
    STEP("user-bind-port-80", binds_port(80));
    STEP("user-shmget", shmget(KEY, 1, 0400));
    STEP("user-shmat", (intptr_t)shmat(shared_memory, NULL, SHM_RDONLY));
    STEP("user-shmctl", shmctl(shared_memory, IPC_RMID, NULL));
    STEP("user-semget", semget(KEY, 1, 0400));
    STEP("user-semop", semop(semaphore, &(struct sembuf){0, 1, 0}, 1));
    STEP("user-semctl", semctl(semaphore, 0, IPC_RMID));
    STEP("user-msgget", msgget(KEY, 0400));
    STEP("user-msgsnd", msgsnd(message_queue, &(long){1}, 0, IPC_NOWAIT));
    STEP("user-msgrcv", msgrcv(message_queue, &(long){1}, 0, 0, IPC_NOWAIT));
    STEP("user-msgctl", msgctl(message_queue, IPC_RMID, NULL));
    STEP("user-mq_open", syscall(SYS_mq_open, "isolation", O_RDONLY, 0, NULL));
    STEP("user-mq_unlink", syscall(SYS_mq_unlink, "isolation"));
    unlink(PLACE "/open/user-socket");
    STEP("user-chdir", chdir(PLACE));
    STEP("user-chdir-closed", chdir(PLACE "/closed"));
    STEP("user-rmdir", rmdir(PLACE "/closed"));
    STEP("user-capbset", prctl(PR_CAPBSET_DROP, 1, 0, 0, 0));
    STEP("user-securebits", prctl(28, 0, 0, 0, 0));
    STEP("user-keepcaps", prctl(PR_SET_KEEPCAPS, 1));
    STEP("user-keepcaps-2", prctl(PR_SET_KEEPCAPS, 2));
    STEP("user-ambient", prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, 0, 0, 0));
    STEP("user-dumpable-2", prctl(PR_SET_DUMPABLE, 2));
    STEP("user-setpriority", setpriority(PRIO_PROCESS, 0, -1));
    STEP("user-setpriority-user-0", setpriority(PRIO_USER, 1, 5));
    STEP("user-oom-lower", use("/proc/self/oom_score_adj", WRITE));
    report_identity("user-after-steps");
}
static void a_bares_steps(void) {
    bare();
    STEP("bare-setuid", setuid(USER));
    STEP("bare-setgid", setgid(USER));
    STEP("bare-setgroups", setgroups(0, NULL));
    STEP("bare-sethostname", sethostname("x", 1));
    STEP("bare-mount", mount("none", "/", "tmpfs", 0, NULL));
    STEP("bare-syslog", syscall(SYS_syslog, 5, NULL, 0));
    STEP("bare-chroot", chroot("/"));
    STEP("bare-mknod", mknod(PLACE "/device", S_IFCHR | 0600, 0x103));
    STEP("bare-capset", (errno = -do_capset(0)) ? -1 : 0);
    report_identity("bare-after-steps");
}
static void ids_and_dumpable(void) {
    report_identity("root-first");
    CHECK(!setresuid(-1, USER, -1), "act as a user");
    report_identity("root-acts-as-user");
    CHECK(!setresuid(-1, 0, -1), "act as root again");
    report_identity("root-acts-as-root-again");
    CHECK(!prctl(PR_SET_DUMPABLE, 1), "dumpable");
    syscall(SYS_setfsuid, USER);
    report_identity("root-files-as-user");
    syscall(SYS_setfsuid, 0);
    syscall(SYS_setfsgid, 0);
    CHECK(!prctl(PR_SET_KEEPCAPS, 1), "keep capabilities");
    CHECK(!setresuid(USER, USER, USER), "become a user");
    report_identity("user-with-kept-capabilities");
    set_capabilities(1, 1);
    report_identity("user-with-one-capability");
}

// ---- files ---------------------------------------------------------------------------------------------------------

static long mode_of(const char *path) {
    struct stat status;
    return stat(path, &status) ? -errno : (long)(status.st_mode & 07777);
}
static long opened(const char *path, int flags) {
    int file = open(path, flags, 0666);
    if (file < 0) return -errno;
    close(file);
    return 0;
}
static long after(const char *path, long got) { return got ? got : mode_of(path); }
static long f_read(const char *p) { return opened(p, O_RDONLY); }
static long f_write(const char *p) { return opened(p, O_WRONLY); }
static long f_noatime(const char *p) { return opened(p, O_RDONLY | O_NOATIME); }
static long f_setfl(const char *p) {
    int file = open(p, O_RDONLY);
    if (file < 0) return -errno;
    long got = result(fcntl(file, F_SETFL, O_NOATIME));
    close(file);
    return got;
}
static long f_path(const char *p) { return opened(p, O_PATH); }
static long f_access(const char *p) { return result(access(p, R_OK | W_OK)); }
static long f_access_x(const char *p) { return result(access(p, X_OK)); }
static long f_chmod(const char *p) { return after(p, result(chmod(p, 0640))); }
static long f_chmod_set_ids(const char *p) { return after(p, result(chmod(p, 06755))); }
static long f_fchmod(const char *p) {
    int file = open(p, O_RDONLY);
    if (file < 0) return -errno;
    long got = after(p, result(fchmod(file, 02755)));
    close(file);
    return got;
}
static long f_chown_self(const char *p) { return after(p, result(chown(p, geteuid(), -1))); }
static long f_chown_root(const char *p) { return after(p, result(chown(p, 0, -1))); }
static long f_chown_nothing(const char *p) { return after(p, result(chown(p, -1, -1))); }
static long f_chgrp_own(const char *p) { return after(p, result(chown(p, -1, getegid()))); }
static long f_chgrp_extra(const char *p) { return after(p, result(chown(p, -1, EXTRA))); }
static long f_chgrp_root(const char *p) { return after(p, result(lchown(p, -1, 0))); }
static long f_append(const char *p) {
    int file = open(p, O_WRONLY | O_APPEND);
    if (file < 0) return -errno;
    long got = after(p, result(write(file, "x", 1)));
    close(file);
    return got;
}
static long f_append_nothing(const char *p) {
    int file = open(p, O_WRONLY | O_APPEND);
    if (file < 0) return -errno;
    long got = after(p, result(write(file, "x", 0)));
    close(file);
    return got;
}
static long f_truncate(const char *p) { return after(p, result(truncate(p, 1))); }
static long f_ftruncate(const char *p) {
    int file = open(p, O_WRONLY);
    if (file < 0) return -errno;
    long got = after(p, result(ftruncate(file, 2)));
    close(file);
    return got;
}
static long f_fallocate(const char *p) {
    int file = open(p, O_WRONLY);
    if (file < 0) return -errno;
    long got = after(p, result(syscall(SYS_fallocate, file, 0, 0L, 8192L)));
    close(file);
    return got;
}
static long f_open_truncate(const char *p) { return after(p, opened(p, O_WRONLY | O_TRUNC)); }
static long f_utimes_now(const char *p) { return result(utimes(p, NULL)); }
static long f_utimes_then(const char *p) { return result(utimes(p, (struct timeval[2]){{1, 0}, {1, 0}})); }
static long f_setxattr(const char *p) { return result(setxattr(p, "user.a", "x", 1, 0)); }
static long f_getxattr(const char *p) { return result(getxattr(p, "user.a", NULL, 0)); }
static long f_removexattr(const char *p) { return result(removexattr(p, "user.a")); }
static long f_watch(const char *p) {
    int file = inotify_init();
    long got = result(inotify_add_watch(file, p, IN_OPEN));
    close(file);
    return got;
}
static long f_link(const char *p) {
    long got = result(link(p, PLACE "/open/link"));
    unlink(PLACE "/open/link");
    return got;
}
static long f_rename(const char *p) {
    char to[128];
    snprintf(to, sizeof to, "%s.new", p);
    return result(rename(p, to));
}
static long f_unlink(const char *p) { return result(unlink(p)); }
static long f_exec(const char *p) {
    pid_t child = fork();
    if (!child) {
        execl(p, p, NULL);
        // Anything that starts ends otherwise.
        _exit(errno == ENOEXEC ? 200 : errno);
    }
    int status = ended(child);
    return WEXITSTATUS(status) == 200 ? 0 : -WEXITSTATUS(status);
}
static long f_statfs(const char *p) {
    char space[256];
    return result(syscall(SYS_statfs, p, space));
}
static long f_stat(const char *p) { return mode_of(p); }

static const struct { const char *name; long (*run)(const char *); } file_operations[] = {
    {"open:read", f_read}, {"open:write", f_write}, {"open:noatime", f_noatime}, {"fcntl:noatime", f_setfl},
        {"open:path", f_path},
    {"access", f_access}, {"access:x", f_access_x}, {"chmod", f_chmod}, {"chmod:set-ids", f_chmod_set_ids},
        {"fchmod", f_fchmod},
    {"chown:self", f_chown_self}, {"chown:root", f_chown_root}, {"chown:nothing", f_chown_nothing},
        {"chown:own-group", f_chgrp_own},
    {"chown:extra-group", f_chgrp_extra}, {"lchown:root-group", f_chgrp_root}, {"write", f_append},
        {"write:nothing", f_append_nothing},
    {"truncate", f_truncate}, {"ftruncate", f_ftruncate}, {"fallocate", f_fallocate},
        {"open:truncate", f_open_truncate}, {"utimes:now", f_utimes_now},
    {"utimes:then", f_utimes_then}, {"setxattr", f_setxattr}, {"getxattr", f_getxattr}, {"removexattr", f_removexattr},
    {"inotify_add_watch", f_watch}, {"link", f_link}, {"rename", f_rename}, {"unlink", f_unlink}, {"execve", f_exec},
    {"statfs", f_statfs}, {"stat", f_stat},
};

static void a_file(const char *path, unsigned owner, unsigned group, unsigned mode) {
    unlink(path);
    int file = open(path, O_CREAT | O_WRONLY | O_TRUNC, 0600);
    CHECK(file >= 0 && write(file, "content", 7) == 7, "%s", path);
    CHECK(!fchown(file, owner, group) && !fchmod(file, mode), "%s", path);
    close(file);
}

static void of_files(void) {
    const struct { const char *name, *directory; unsigned owner, group, mode; } kinds[] = {
        {"own", "open", USER, USER, 0644}, {"own-no-bits", "open", USER, USER, 0},
            {"own-of-roots-group", "open", USER, 0, 0664},
        {"others", "open", OTHER, OTHER, 0644}, {"others-private", "open", OTHER, OTHER, 0600},
        {"others-of-extra-group", "open", OTHER, EXTRA, 0660}, {"others-not-for-extra-group", "open", OTHER, EXTRA,
            0606},
        {"others-sticky", "sticky", OTHER, OTHER, 0666}, {"own-sticky", "sticky", USER, USER, 0644},
        {"own-set-user", "open", USER, USER, 06777}, {"roots-set-user", "open", 0, 0, 06777},
        {"roots-set-group-of-extra", "open", 0, EXTRA, 02775}, {"roots", "open", 0, 0, 0644},
            {"roots-closed", "closed", 0, 0, 0666},
    };
    for (size_t k = 0; k < COUNT(kinds); k++)
        for (size_t a = 0; a < COUNT(actors); a++)
            for (size_t o = 0; o < COUNT(file_operations); o++) {
                char path[128], new[160];
                snprintf(path, sizeof path, PLACE "/%s/file", kinds[k].directory);
                snprintf(new, sizeof new, "%s.new", path);
                unlink(new);
                a_file(path, kinds[k].owner, kinds[k].group, kinds[k].mode);
                fflush(stdout);
                pid_t child = fork();
                if (!child) {
                    actors[a].become();
                    line(file_operations[o].name, actors[a].name, kinds[k].name, file_operations[o].run(path));
                    _exit(0);
                }
                CHECK(!ended(child), "%s", file_operations[o].name);
            }
}

// A made object, and its maker: its owner, group and mode.
static void made(const char *label, const char *actor, const char *path, long got) {
    struct stat status;
    if (got || lstat(path, &status)) printf("made %s %s %s\n", label, actor, name_of(got ? -got : errno));
    else printf("made %s %s %o %u %u\n", label, actor, status.st_mode, status.st_uid, status.st_gid);
    if (!got && remove(path)) CHECK(unlink(path) || true, "unlink");
}
static void open_again(const char *label, const char *actor, int fd, int flags) {
    char path[64];
    struct stat status;
    CHECK(!fstat(fd, &status), "fstat");
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    long got = opened(path, flags);
    printf("nameless %s %s %o %u %u again %s\n", label, actor, status.st_mode & 07777, status.st_uid, status.st_gid,
        name_of(-got));
}
static void of_new_files(void) {
    umask(0);
    for (size_t a = 0; a < COUNT(actors); a++) {
        pid_t child = fork();
        if (!child) {
            const char *actor = actors[a].name;
            actors[a].become();
            const char *places[] = {"open", "group", "closed"};
            for (size_t i = 0; i < COUNT(places); i++) {
                char path[64], label[64];
                snprintf(path, sizeof path, PLACE "/%s/new", places[i]);
#define MADE(what, call) (snprintf(label, sizeof label, "%s:%s", what, places[i]), \
    made(label, actor, path, result(call)))
                MADE("creat", creat(path, 0640));
                MADE("creat-set-ids", creat(path, 06777));
                MADE("mkdir", mkdir(path, 0750));
                MADE("symlink", symlink("nowhere", path));
                MADE("mknod-fifo", mknod(path, S_IFIFO | 0600, 0));
                MADE("mknod-socket", mknod(path, S_IFSOCK | 0600, 0));
                MADE("mknod-char", mknod(path, S_IFCHR | 0600, 0x103));
                MADE("mknod-block", mknod(path, S_IFBLK | 0600, 0x103));
            }
            int ends[2];
            CHECK(!pipe(ends), "pipe");
            open_again("pipe", actor, ends[0], O_RDONLY | O_NONBLOCK);
            open_again("memfd_create", actor, syscall(SYS_memfd_create, "m", 0), O_RDWR);
            _exit(0);
        }
        CHECK(!ended(child), "making files");
    }
    // Links in a directory where any user may make some.
    const struct { const char *name; unsigned owner; } links[] = {{"own", USER}, {"others", OTHER}, {"roots", 0}};
    a_file(PLACE "/open/aim", OTHER, OTHER, 0666);
    for (size_t l = 0; l < COUNT(links); l++)
        for (size_t a = 0; a < COUNT(actors); a++) {
            const char *path = PLACE "/sticky/symlink";
            unlink(path);
            CHECK(!symlink(PLACE "/open/aim", path) && !lchown(path, links[l].owner, links[l].owner), "a link");
            fflush(stdout);
            pid_t child = fork();
            if (!child) {
                actors[a].become();
                line("open:symlink", actors[a].name, links[l].name, opened(path, O_RDONLY));
                line("truncate:symlink", actors[a].name, links[l].name, result(truncate(path, 1)));
                line("readlink:symlink", actors[a].name, links[l].name, use(path, LINK));
                line("lchown:symlink", actors[a].name, links[l].name, result(lchown(path, -1, getegid())));
                line("unlink:symlink", actors[a].name, links[l].name, result(unlink(path)));
                _exit(0);
            }
            CHECK(!ended(child), "links");
        }
    // A file that a process has open passes to another user with the descriptor; its name in /proc does not open it
    // again.
    int ends[2];
    CHECK(!pipe(ends), "pipe");
    int secret = open(PLACE "/closed/file", O_RDWR | O_CREAT | O_TRUNC, 0600);
    CHECK(secret >= 0, "open");
    pid_t child = fork();
    if (!child) {
        user();
        open_again("roots-pipe", "user", ends[0], O_RDONLY | O_NONBLOCK);
        open_again("roots-file", "user", secret, O_RDONLY);
        prctl(PR_SET_DUMPABLE, 1);
        open_again("roots-pipe-dumpable", "user", ends[0], O_RDONLY | O_NONBLOCK);
        open_again("roots-file-dumpable", "user", secret, O_RDONLY);
        _exit(0);
    }
    CHECK(!ended(child), "open again");
}

// Files of /proc about the machine, by permitted users.
static const struct { const char *name; enum how how; bool linux_too; } of_machine[] = {
    {"net", LINK, true}, {"buddyinfo", READ, true}, {"kpagecgroup", READ, true}, {"kpagecount", READ, true},
        {"kpageflags", READ, true},
    {"zoneinfo", READ, true}, {"slabinfo", READ, true}, {"meminfo", READ, true}, {"stat", READ, true},
        {"vmstat", READ, true}, {"uptime", READ, true},
    {"version", READ, true}, {"cpuinfo", READ, true}, {"interrupts", READ, true}, {"loadavg", READ, true},
        {"swaps", READ, true},
    {"filesystems", READ, true}, {"cmdline", READ, true}, {"mounts", READ, true}, {"self", LINK, true},
        {"thread-self", LINK, true},
    {"sys/vm/drop_caches", READ, false}, {"sys/vm/drop_caches", WRITE, true}, {"sys/vm/max_map_count", READ, true},
        {"sys/vm/max_map_count", WRITE, true}, {"sys/vm/overcommit_memory", READ, true},
    {"sys/vm/overcommit_ratio", READ, true}, {"sys/vm/swappiness", READ, true}, {"sys/vm/mmap_min_addr", READ, true},
    {"sys/vm/min_free_kbytes", READ, true}, {"sys/vm/quire_frames", READ, false}, {"sys/vm/quire_check", READ, false},
    {"sys/vm/quire_refuse", READ, false}, {"sys/vm/mmap_rnd_bits", READ, false},
    {"sys/fs/epoll/max_user_watches", READ, true}, {"sys/fs/epoll/max_user_watches", WRITE, true},
    {"sys/fs/file-max", READ, true}, {"sys/fs/file-max", WRITE, true}, {"sys/fs/file-nr", READ, true},
        {"sys/fs/nr_open", READ, true}, {"sys/fs/pipe-max-size", READ, true}, {"sys/fs/pipe-max-size", WRITE, true},
    {"sys/fs/pipe-user-pages-hard", READ, true}, {"sys/fs/pipe-user-pages-hard", WRITE, true},
    {"sys/fs/pipe-user-pages-soft", READ, true}, {"sys/fs/pipe-user-pages-soft", WRITE, true},
    {"sys/kernel/cap_last_cap", READ, true}, {"sys/kernel/hostname", READ, true},
        {"sys/kernel/ngroups_max", READ, true},
    {"sys/kernel/osrelease", READ, true}, {"sys/kernel/ostype", READ, true}, {"sys/kernel/overflowgid", READ, true},
    {"sys/kernel/overflowuid", READ, true}, {"sys/kernel/pid_max", READ, true}, {"sys/kernel/pid_max", WRITE, true},
        {"sys/kernel/random/entropy_avail", READ, true},
    {"sys/kernel/random/poolsize", READ, true}, {"sys/kernel/random/uuid", READ, true},
    {"sys/kernel/hung_task_panic", READ, true}, {"sys/kernel/hung_task_timeout_secs", READ, true},
    {"sys/kernel/softlockup_panic", READ, true}, {"sys/kernel/watchdog", READ, true},
        {"sys/kernel/watchdog", WRITE, true},
    {"sys/kernel/watchdog_thresh", READ, true}, {"sys/kernel/randomize_va_space", READ, true},
        {"sys/kernel/threads-max", READ, true}, {"sys/kernel/threads-max", WRITE, true},
        {"sys/kernel/version", READ, true},
    {"sys/fs/aio-nr", READ, true}, {"sys/fs/aio-max-nr", READ, true}, {"sys/fs/mqueue/msg_default", READ, true},
    {"sys/fs/mqueue/msg_max", READ, true}, {"sys/fs/mqueue/msgsize_default", READ, true},
    {"sys/fs/mqueue/msgsize_max", READ, true}, {"sys/fs/mqueue/queues_max", READ, true},
        {"sys/fs/inode-nr", READ, true},
    {"sys/fs/lease-break-time", READ, true}, {"sys/fs/inotify/max_queued_events", READ, true},
    {"sys/fs/inotify/max_user_instances", READ, true}, {"sys/fs/inotify/max_user_watches", READ, true},
    {"sys/fs/overflowgid", READ, true}, {"sys/fs/overflowuid", READ, true}, {"sys/fs/protected_fifos", READ, true},
    {"sys/fs/protected_hardlinks", READ, true}, {"sys/fs/protected_regular", READ, true},
    {"sys/fs/protected_symlinks", READ, true}, {"sys/fs/suid_dumpable", READ, true}, {"sys/kernel/arch", READ, true},
    {"sys/kernel/core_pattern", READ, true}, {"sys/kernel/core_uses_pid", READ, true},
    {"sys/kernel/dmesg_restrict", READ, true}, {"sys/kernel/domainname", READ, true},
    {"sys/kernel/kptr_restrict", READ, true}, {"sys/kernel/msg_next_id", READ, true}, {"sys/kernel/msgmax", READ, true},
    {"sys/kernel/msgmnb", READ, true}, {"sys/kernel/msgmni", READ, true},
        {"sys/kernel/perf_event_paranoid", READ, true},
    {"sys/kernel/printk", READ, true}, {"sys/kernel/pty/max", READ, true}, {"sys/kernel/pty/nr", READ, true},
    {"sys/kernel/random/boot_id", READ, true}, {"sys/kernel/random/urandom_min_reseed_secs", READ, true},
    {"sys/kernel/random/write_wakeup_threshold", READ, true}, {"sys/kernel/sem", READ, true},
    {"sys/kernel/sem_next_id", READ, true}, {"sys/kernel/shm_next_id", READ, true}, {"sys/kernel/shmall", READ, true},
    {"sys/kernel/shmmax", READ, true}, {"sys/kernel/shmmni", READ, true},
    {"sys/kernel/sched_rr_timeslice_ms", READ, true}, {"sys/kernel/sched_rt_period_us", READ, true},
        {"sys/kernel/sched_rt_runtime_us", READ, true}, {"sys/kernel/tainted", READ, true},
    {"sys/net/core/default_qdisc", READ, true}, {"sys/net/core/netdev_max_backlog", READ, true},
    {"sys/net/core/optmem_max", READ, true}, {"sys/net/core/rmem_default", READ, true},
        {"sys/net/core/rmem_max", READ, true},
    {"sys/net/core/somaxconn", READ, true}, {"sys/net/core/wmem_default", READ, true},
        {"sys/net/core/wmem_max", READ, true},
    {"sys/net/ipv4/ip_default_ttl", READ, true}, {"sys/net/ipv4/ip_forward", READ, true},
    {"sys/net/ipv4/ip_local_port_range", READ, true}, {"sys/net/ipv4/ip_unprivileged_port_start", READ, true},
    {"sys/net/ipv4/tcp_allowed_congestion_control", READ, true},
    {"sys/net/ipv4/tcp_available_congestion_control", READ, true}, {"sys/net/ipv4/tcp_congestion_control", READ, true},
    {"sys/net/ipv4/tcp_fastopen", READ, true}, {"sys/net/ipv4/tcp_fin_timeout", READ, true},
    {"sys/net/ipv4/tcp_keepalive_intvl", READ, true}, {"sys/net/ipv4/tcp_keepalive_probes", READ, true},
    {"sys/net/ipv4/tcp_keepalive_time", READ, true}, {"sys/net/ipv4/tcp_max_syn_backlog", READ, true},
    {"sys/net/ipv4/tcp_retries2", READ, true}, {"sys/net/ipv4/tcp_rmem", READ, true},
        {"sys/net/ipv4/tcp_sack", READ, true},
    {"sys/net/ipv4/tcp_slow_start_after_idle", READ, true}, {"sys/net/ipv4/tcp_syn_retries", READ, true},
    {"sys/net/ipv4/tcp_synack_retries", READ, true}, {"sys/net/ipv4/tcp_syncookies", READ, true},
    {"sys/net/ipv4/tcp_timestamps", READ, true}, {"sys/net/ipv4/tcp_tw_reuse", READ, true},
    {"sys/net/ipv4/tcp_window_scaling", READ, true}, {"sys/net/ipv4/tcp_wmem", READ, true},
    {"sys/net/ipv6/bindv6only", READ, true}, {"sys/net/ipv6/conf/all/disable_ipv6", READ, true},
    {"sys/net/ipv6/conf/all/forwarding", READ, true}, {"sys/net/ipv6/conf/default/disable_ipv6", READ, true},
    {"sys/net/ipv6/conf/default/forwarding", READ, true}, {"sys/net/ipv6/conf/lo/disable_ipv6", READ, true},
    {"sys/net/ipv6/conf/lo/forwarding", READ, true}, {"sys/vm/dirty_background_ratio", READ, true},
    {"sys/vm/dirty_expire_centisecs", READ, true}, {"sys/vm/dirty_ratio", READ, true},
    {"sys/vm/dirty_writeback_centisecs", READ, true}, {"sys/vm/legacy_va_layout", READ, true},
    {"sys/vm/nr_hugepages", READ, true}, {"sys/vm/nr_overcommit_hugepages", READ, true},
    {"sys/vm/oom_dump_tasks", READ, true}, {"sys/vm/oom_kill_allocating_task", READ, true},
    {"sys/vm/overcommit_kbytes", READ, true}, {"sys/vm/page-cluster", READ, true}, {"sys/vm/panic_on_oom", READ, true},
    {"sys/vm/vfs_cache_pressure", READ, true}, {"sysvipc/msg", READ, true}, {"sysvipc/sem", READ, true},
    {"sysvipc/shm", READ, true}, {"diskstats", READ, true}, {"modules", READ, true}, {"partitions", READ, true},
};
static void of_the_machine(void) {
    for (size_t a = 0; a < COUNT(actors); a++) {
        pid_t child = fork();
        if (!child) {
            actors[a].become();
            for (size_t f = 0; f < COUNT(of_machine); f++) {
                if (!of_machine[f].linux_too) continue;
                char path[64], name[64];
                snprintf(path, sizeof path, "/proc/%s", of_machine[f].name);
                snprintf(name, sizeof name, "/proc/%s:%s", of_machine[f].name, hows[of_machine[f].how]);
                // A number that leaves the machine as it was.
                long got = of_machine[f].how == WRITE ? opened(path, O_WRONLY) : use(path, of_machine[f].how);
                line(name, actors[a].name, "machine", got);
            }
            _exit(0);
        }
        CHECK(!ended(child), "the machine's files");
    }
}

// Whether every file of the directory is in the lists above; `depth` directories further down, too.
static int missing_rows;
static void all_listed(const char *directory, const char *prefix, bool process) {
    DIR *entries = opendir(directory);
    CHECK(entries, "%s", directory);
    for (struct dirent *entry; (entry = readdir(entries));) {
        if (entry->d_name[0] == '.' || strspn(entry->d_name, "0123456789") == strlen(entry->d_name)) continue;
        char name[512], path[1024];
        snprintf(name, sizeof name, "%s%s", prefix, entry->d_name);
        snprintf(path, sizeof path, "%s/%s", directory, entry->d_name);
        // Only Quire has it: it is checked below.
        bool listed = process && !strcmp(name, "quire_memory");
        for (size_t f = 0; f < COUNT(of_process); f++) listed |= process && !strcmp(name, of_process[f].name);
        for (size_t f = 0; f < COUNT(of_machine); f++) listed |= !process && !strcmp(name, of_machine[f].name);
        if (!listed && !process && entry->d_type == DT_DIR) {
            strcat(name, "/");
            all_listed(path, name, false);
        } else if (!listed) {
            fprintf(stderr, "%s has no line\n", path);
            missing_rows++;
        }
    }
    closedir(entries);
}
static void complete(void) {
    all_listed("/proc", "", false);
    all_listed("/proc/self", "", true);
    all_listed("/proc/thread-self", "", true);
    struct stat status;
    CHECK(!stat("/proc/sys/vm/quire_frames", &status) && (status.st_mode & 0777) == 0400,
        "quire_frames is for root alone");
    CHECK(access("/proc/self/quire_memory", F_OK) || (!stat("/proc/self/quire_memory", &status) &&
        (status.st_mode & 0777) == 0400),
          "quire_memory is for its owner alone");
    CHECK(!missing_rows, "%d files without a line", missing_rows);
}

// ---- all -----------------------------------------------------------------------------------------------------------

static void copy_to(const char *to, unsigned owner, unsigned group, unsigned mode) {
    char bytes[65536];
    int from = open("/proc/self/exe", O_RDONLY), copy = open(to, O_CREAT | O_WRONLY | O_TRUNC, 0700);
    CHECK(from >= 0 && copy >= 0, "%s", to);
    for (ssize_t n; (n = read(from, bytes, sizeof bytes)) > 0;) CHECK(write(copy, bytes, n) == n, "%s", to);
    CHECK(!fchown(copy, owner, group) && !fchmod(copy, mode), "%s", to);
    close(from);
    close(copy);
}

static void prepare(void) {
    umask(0);
    // The same descriptor 0 under every way of starting.
    int nothing = open("/dev/null", O_RDONLY);
    CHECK(nothing >= 0 && dup2(nothing, 0) == 0, "/dev/null");
    if (nothing) close(nothing);
    CHECK((!mkdir(PLACE, 0755) || errno == EEXIST), PLACE);
    const struct { const char *name; unsigned group, mode; } directories[] = {
        {"open", 0, 0777}, {"sticky", 0, 01777}, {"closed", 0, 0700}, {"group", OTHER, 02777},
    };
    for (size_t i = 0; i < COUNT(directories); i++) {
        char path[64];
        snprintf(path, sizeof path, PLACE "/%s", directories[i].name);
        CHECK((!mkdir(path, 0700) || errno == EEXIST) && !chown(path, 0, directories[i].group) &&
            !chmod(path, directories[i].mode), "%s", path);
    }
    make_ipc();
    make_socket(PLACE "/socket-666", 0666);
    make_socket(PLACE "/socket-600", 0600);
    make_socket(PLACE "/socket-444", 0444);
    copy_to(PLACE "/plain", 0, 0, 0755);
    copy_to(PLACE "/set-user", 0, 0, 04755);
    copy_to(PLACE "/set-group", 0, 0, 02755);
    copy_to(PLACE "/set-group-no-x", 0, 0, 02745);
    copy_to(PLACE "/set-other", OTHER, 0, 04755);
    copy_to(PLACE "/set-both", OTHER, OTHER, 06755);
    copy_to(PLACE "/unreadable", 0, 0, 0711);
    int script = open(PLACE "/script", O_CREAT | O_WRONLY | O_TRUNC, 0700);
    const char text[] = "#!" PLACE "/plain --script\n";
    CHECK(script >= 0 && write(script, text, sizeof text - 1) == sizeof text - 1 && !fchmod(script, 06755), "script");
    close(script);
}

int main(int argc, char **argv) {
    setvbuf(stdout, NULL, _IOLBF, 1 << 16);
    if (argc > 1 && !strcmp(argv[1], "--stay")) stay();
    if (argc > 1 && !strcmp(argv[1], "--close")) {
        prctl(PR_SET_DUMPABLE, 0);
        stay();
    }
    if (argc > 1 && !strcmp(argv[1], "--script")) argv++, argc--;
    for (int i = 1; i + 1 < argc; i++)
        if (!strcmp(argv[i], "--tell")) {
            report_identity(argv[i + 1]);
            return 0;
        }
    CHECK(!getuid(), "it starts as root");
    prepare();
    signal(SIGURG, SIG_IGN);
    if (argc > 1 && !strcmp(argv[1], "--complete")) {
        complete();
        printf("complete\n");
        return 0;
    }
    void (*const parts[])(void) = {of_processes, of_programs, a_users_steps, a_bares_steps, ids_and_dumpable, of_files,
        of_new_files, of_the_machine};
    for (size_t i = 0; i < COUNT(parts); i++) CHECK(!in_child(parts[i]), "part %zu", i);
    return 0;
}
