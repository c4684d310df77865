// No process writes to a running program, and a file that is open for writing does not run (ETXTBSY). Prints how many
// checks passed: the same on Linux. Run as `textbusy MODE ...` it is the program that is executed meanwhile.
#include "checks.h"
#include <sys/stat.h>
#include <sys/syscall.h>

#define HOME "/tmp/textbusy"
#define PROGRAM HOME "/program"
#define OTHER HOME "/other"
#define SCRIPT HOME "/script"
#define COUNT(list) (sizeof(list) / sizeof *(list))

#define FAILS(call, number) \
    do { \
        errno = 0; \
        CHECK((call) == -1 && errno == (number), "%s does not fail with " #number, #call); \
    } while (0)

// ---- the executed program ------------------------------------------------------------------------------------------

#define RACE 9 // the descriptor of what racers share

static struct race {
    _Atomic long writers, running, wrote, ran, wrong, stop;
} *shared;

static void show_race(int fd) {
    shared = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    CHECK((void *)shared != MAP_FAILED, "mmap");
}

static void hold(void) {
    char byte;
    CHECK(write(1, "r", 1) == 1, "cannot say that it runs");
    while (read(0, &byte, 1) > 0) {}
}

static void *hold_in_thread(void *argument) {
    (void)argument;
    hold();
    exit(0);
}

static int run_mode(int argc, char **argv) {
    const char *mode = argv[1];
    if (!strcmp(mode, "hold")) {
        hold();
    } else if (!strcmp(mode, "fork")) {
        // The child says that it runs when its parent, which was executed, has ended.
        int ends[2];
        CHECK(!pipe(ends), "pipe");
        if (fork()) return 0;
        close(ends[1]);
        char byte;
        CHECK(read(ends[0], &byte, 1) == 0, "the parent has not ended");
        hold();
    } else if (!strcmp(mode, "thread")) {
        pthread_t other;
        CHECK(!pthread_create(&other, NULL, hold_in_thread, NULL), "pthread_create");
        pthread_exit(NULL);
    } else if (!strcmp(mode, "become") && argc > 2) {
        execl(argv[2], argv[2], "hold", NULL);
        return 1;
    } else if (!strcmp(mode, "race")) {
        show_race(RACE);
        shared->running++;
        for (int i = 0; i < 200; i++)
            if (shared->writers) shared->wrong++;
        shared->ran++;
        shared->running--;
    } else {
        return 2;
    }
    return 0;
}

// ---- helpers -------------------------------------------------------------------------------------------------------

static void copy_to(int to) {
    static char bytes[1 << 16];
    int from = open("/proc/self/exe", O_RDONLY);
    CHECK(from >= 0 && to >= 0, "a copy of this program");
    for (ssize_t n; (n = read(from, bytes, sizeof bytes)) != 0;)
        CHECK(n > 0 && write(to, bytes, n) == n, "a copy of this program");
    close(from);
}

static void make_program(const char *path) {
    unlink(path);
    int to = open(path, O_WRONLY | O_CREAT | O_EXCL, 0755);
    copy_to(to);
    close(to);
}

static void make_file(const char *path, const char *text) {
    unlink(path);
    int to = open(path, O_WRONLY | O_CREAT | O_EXCL, 0755);
    CHECK(to >= 0 && write(to, text, strlen(text)) == (ssize_t)strlen(text), "cannot make %s", path);
    close(to);
}

struct run {
    pid_t pid;
    int in, out;
};

// Executes `path` (or the file of `fd`) with a mode, and waits until it runs.
static struct run start_any(int fd, const char *path, const char *mode, const char *more) {
    int in[2], out[2];
    CHECK(!pipe2(in, O_CLOEXEC) && !pipe2(out, O_CLOEXEC), "pipe2");
    pid_t child = fork();
    CHECK(child >= 0, "fork");
    if (!child) {
        dup2(in[0], 0);
        dup2(out[1], 1);
        const char *arguments[] = {path, mode, more, NULL}, *none[] = {NULL};
        if (fd < 0) execve(path, (char **)arguments, (char **)none);
        else syscall(SYS_execveat, fd, "", arguments, none, AT_EMPTY_PATH);
        _exit(errno);
    }
    close(in[0]);
    close(out[1]);
    char byte;
    ssize_t n = read(out[0], &byte, 1);
    CHECK(n == 1, "%s does not run: %s", path, strerror(WEXITSTATUS(ended(child))));
    return (struct run){child, in[1], out[0]};
}

static struct run start(const char *path, const char *mode, const char *more) {
    return start_any(-1, path, mode, more);
}

// Ends it, and waits until it and its children have ended.
static void finish(struct run r) {
    char byte;
    close(r.in);
    CHECK(read(r.out, &byte, 1) == 0, "it has not ended");
    close(r.out);
    int status = ended(r.pid);
    CHECK(!status, "it ends with %#x", status);
}

// The errno with which an execve of `path` fails; 0 where it runs.
static int refusal(const char *path) {
    pid_t child = fork();
    CHECK(child >= 0, "fork");
    if (!child) {
        const char *arguments[] = {path, "nothing", NULL}, *none[] = {NULL};
        execve(path, (char **)arguments, (char **)none);
        _exit(errno);
    }
    int status = WEXITSTATUS(ended(child));
    // The program does not know the mode.
    return status == 2 ? 0 : status;
}

static void is_busy(const char *path) {
    struct stat before, after;
    CHECK(!stat(path, &before), "stat");
    FAILS(open(path, O_WRONLY), ETXTBSY);
    FAILS(open(path, O_RDWR), ETXTBSY);
    FAILS(open(path, O_WRONLY | O_APPEND), ETXTBSY);
    FAILS(open(path, O_WRONLY | O_TRUNC), ETXTBSY);
    FAILS(open(path, O_RDONLY | O_TRUNC), ETXTBSY);
    FAILS(open(path, O_WRONLY | O_CREAT, 0755), ETXTBSY);
    FAILS(truncate(path, 0), ETXTBSY);
    FAILS(truncate(path, before.st_size), ETXTBSY);
    CHECK(!stat(path, &after) && after.st_size == before.st_size && after.st_mtime == before.st_mtime,
        "a refused call changes the file");
}

static bool may_write(const char *path) {
    int fd = open(path, O_WRONLY);
    if (fd >= 0) close(fd);
    return fd >= 0;
}

// ---- the checks ----------------------------------------------------------------------------------------------------

static void runs(void) {
    make_program(PROGRAM);
    struct run first = start(PROGRAM, "hold", NULL), second = start(PROGRAM, "hold", NULL);
    is_busy(PROGRAM);
    char through[64];
    int path = open(PROGRAM, O_PATH), readable = open(PROGRAM, O_RDONLY);
    CHECK(path >= 0 && readable >= 0, "a descriptor for reads or for the path alone");
    snprintf(through, sizeof through, "/proc/self/fd/%d", path);
    FAILS(open(through, O_WRONLY), ETXTBSY);
    snprintf(through, sizeof through, "/proc/self/fd/%d", readable);
    FAILS(open(through, O_RDWR), ETXTBSY);
    // Its name and attributes are no text.
    CHECK(!chmod(PROGRAM, 0711) && !rename(PROGRAM, OTHER) && !link(OTHER, PROGRAM) && !unlink(OTHER), "names");
    is_busy(PROGRAM);
    finish(first);
    is_busy(PROGRAM);
    finish(second);
    CHECK(may_write(PROGRAM), "no process runs it any more");
    CHECK(!truncate(PROGRAM, 100), "truncate");
}

static void writing(void) {
    make_program(PROGRAM);
    const int how[] = {O_WRONLY, O_RDWR, O_WRONLY | O_APPEND};
    for (size_t i = 0; i < COUNT(how); i++) {
        int fd = open(PROGRAM, how[i]), other = dup(fd);
        CHECK(fd >= 0 && refusal(PROGRAM) == ETXTBSY, "open for writing");
        close(fd);
        CHECK(refusal(PROGRAM) == ETXTBSY, "the other descriptor");
        close(other);
        CHECK(refusal(PROGRAM) == 0, "closed");
    }
    int path = open(PROGRAM, O_PATH), readable = open(PROGRAM, O_RDONLY);
    CHECK(refusal(PROGRAM) == 0, "descriptors for reads or for the path alone exclude no program");
    close(path);
    close(readable);
    // A descriptor that a child has.
    int fd = open(PROGRAM, O_WRONLY), wait[2];
    CHECK(!pipe(wait), "pipe");
    pid_t child = fork();
    if (!child) {
        char byte;
        close(wait[1]);
        _exit(read(wait[0], &byte, 1) == 0 ? 0 : 1);
    }
    close(fd);
    CHECK(refusal(PROGRAM) == ETXTBSY, "the child's descriptor");
    close(wait[1]);
    CHECK(!ended(child) && refusal(PROGRAM) == 0, "the child has ended");
    // A descriptor that closes on exec is open until then.
    fd = open(PROGRAM, O_WRONLY | O_CLOEXEC);
    CHECK(refusal(PROGRAM) == ETXTBSY, "O_CLOEXEC");
    close(fd);
}

static void forked(void) {
    make_program(PROGRAM);
    struct run r = start(PROGRAM, "fork", NULL);
    is_busy(PROGRAM);
    finish(r);
    CHECK(may_write(PROGRAM), "the child has ended, too");
}

static void threads(void) {
    make_program(PROGRAM);
    struct run r = start(PROGRAM, "thread", NULL);
    is_busy(PROGRAM);
    finish(r);
    CHECK(may_write(PROGRAM), "all threads have ended");
}

static void executes_another(void) {
    make_program(PROGRAM);
    make_program(OTHER);
    struct run r = start(PROGRAM, "become", OTHER);
    CHECK(may_write(PROGRAM), "it is another program now");
    is_busy(OTHER);
    finish(r);
    CHECK(may_write(OTHER), "it has ended");
}

static void killed(void) {
    make_program(PROGRAM);
    struct run r = start(PROGRAM, "hold", NULL);
    CHECK(!kill(r.pid, SIGKILL), "kill");
    char byte;
    CHECK(read(r.out, &byte, 1) == 0, "it has not ended");
    siginfo_t info;
    CHECK(!waitid(P_PID, r.pid, &info, WEXITED | WNOWAIT), "waitid");
    CHECK(may_write(PROGRAM), "a zombie runs nothing");
    ended(r.pid);
    close(r.in);
    close(r.out);
}

static void scripts(void) {
    make_program(PROGRAM);
    make_file(SCRIPT, "#!" PROGRAM " hold\n");
    struct run r = start(SCRIPT, "x", NULL);
    is_busy(PROGRAM);
    CHECK(may_write(SCRIPT), "a script is only read");
    finish(r);
    CHECK(may_write(PROGRAM), "it has ended");
    int fd = open(SCRIPT, O_WRONLY);
    CHECK(refusal(SCRIPT) == ETXTBSY && refusal(PROGRAM) == 0, "a script that is open for writing");
    close(fd);
    fd = open(PROGRAM, O_WRONLY);
    CHECK(refusal(SCRIPT) == ETXTBSY, "an interpreter that is open for writing");
    close(fd);
}

static void failures(void) {
    make_program(PROGRAM);
    make_file(OTHER, "\177ELF and nothing else");
    CHECK(refusal(OTHER) == ENOEXEC && may_write(OTHER), "a file that cannot be run is not kept busy");
    int fd = open(OTHER, O_WRONLY);
    CHECK(refusal(OTHER) == ETXTBSY, "before it is looked at");
    close(fd);
    make_file(SCRIPT, "#!" OTHER "\n");
    CHECK(refusal(SCRIPT) == ENOEXEC && may_write(OTHER) && may_write(SCRIPT),
        "nor is a script with such an interpreter");
    CHECK(!chmod(PROGRAM, 0644), "chmod");
    fd = open(PROGRAM, O_WRONLY);
    CHECK(refusal(PROGRAM) == EACCES, "rights come first");
    close(fd);
    CHECK(may_write(PROGRAM), "a refused program is not kept busy");
    // A new file is open for writing as long as it is being made.
    fd = open(HOME "/new", O_WRONLY | O_CREAT | O_EXCL, 0755);
    copy_to(fd);
    CHECK(refusal(HOME "/new") == ETXTBSY, "a file that is being made");
    close(fd);
    CHECK(refusal(HOME "/new") == 0 && !unlink(HOME "/new"), "a file that was made");
}

static void memory_files(void) {
    int fd = memfd_create("program", 0);
    copy_to(fd);
    CHECK(!fchmod(fd, 0755), "fchmod");
    struct run r = start_any(fd, "memory", "hold", NULL);
    char path[64], byte;
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    FAILS(open(path, O_RDWR), ETXTBSY);
    // Its maker's own descriptor was there before.
    CHECK(pread(fd, &byte, 1, 0) == 1 && pwrite(fd, &byte, 1, 0) == 1, "the first descriptor");
    finish(r);
    int again = open(path, O_RDWR);
    CHECK(again >= 0 && refusal(path) == ETXTBSY, "opened again for writing");
    close(again);
    close(fd);
}

static void racers(void) {
    make_program(PROGRAM);
    int memory = memfd_create("race", 0);
    CHECK(!ftruncate(memory, PAGE) && dup2(memory, RACE) == RACE, "memfd_create");
    show_race(memory);
    pid_t writer[2], executor[2];
    for (int i = 0; i < 2; i++) {
        if ((writer[i] = fork())) continue;
        while (!shared->stop) {
            int fd = open(PROGRAM, O_WRONLY);
            CHECK(fd >= 0 || errno == ETXTBSY, "open");
            if (fd < 0) {
                sched_yield();
                continue;
            }
            shared->writers++;
            for (int n = 0; n < 50; n++)
                if (shared->running) shared->wrong++;
            shared->wrote++;
            shared->writers--;
            close(fd);
            // So that executions have a chance, too.
            if (shared->wrote > 20 * shared->ran) usleep(1000);
        }
        _exit(0);
    }
    for (int i = 0; i < 2; i++) {
        if ((executor[i] = fork())) continue;
        while (!shared->stop) {
            pid_t child = fork();
            if (!child) {
                execl(PROGRAM, PROGRAM, "race", NULL);
                _exit(errno);
            }
            int status = ended(child);
            CHECK(status == 0 || status == ETXTBSY << 8, "an execution ends with %#x", status);
        }
        _exit(0);
    }
    while (shared->ran < 100 || shared->wrote < 100) usleep(1000);
    shared->stop = 1;
    for (int i = 0; i < 2; i++) CHECK(!ended(writer[i]) && !ended(executor[i]), "a racer fails");
    CHECK(shared->wrote && shared->ran, "%ld writes and %ld executions", shared->wrote, shared->ran);
    CHECK(!shared->wrong, "written and executed at once: %ld times", shared->wrong);
    CHECK(refusal(PROGRAM) == 0 && may_write(PROGRAM), "a writer or a program is still counted");
}

static const struct check checks[] = {
    {"runs", runs}, {"writing", writing},   {"forked", forked},     {"threads", threads},
        {"executes_another", executes_another},
    {"killed", killed},   {"scripts", scripts},   {"failures", failures}, {"memory_files", memory_files},
        {"racers", racers},
};

int main(int argc, char **argv) {
    if (argc > 1 && argv[1][0] != '-') return run_mode(argc, argv);
    parse_options(argc, argv, NULL);
    CHECK(!mkdir(HOME, 0755) || errno == EEXIST, "mkdir");
    run_checks(checks, COUNT(checks));
    unlink(PROGRAM);
    unlink(OTHER);
    unlink(SCRIPT);
    rmdir(HOME);
    return 0;
}
