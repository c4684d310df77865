// Processes. Measures fork + exit; fork + exec + wait of a static and of a dynamic program, and the same with vfork.
// Also measures fork of a process with much memory, and of a process that maps much and has touched little. The
// executed programs lie beside this one (child, and child-dynamic if it exists) or are named by --static and --dynamic.
// Each takes one argument and ends with status 42. With --copies 1 each process runs a copy of its own (in /tmp), not
// one file for all.
#include "report.h"
#include <fcntl.h>

static const char *program_static, *program_dynamic;
static const char *to_run;
static long copies;

static void collect(struct worker *w, pid_t child, int expected) {
    CHECK(child > 0, "fork");
    int status;
    CHECK(waitpid(child, &status, 0) == child, "waitpid");
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == expected, "a child ended with status %#x", status);
    (void)w;
}

static void fork_exit(struct worker *w) {
    while (running(w)) {
        lap_begin(w);
        pid_t child = fork();
        if (!child) _exit(7);
        collect(w, child, 7);
        lap_end(w, 1);
    }
}

static void execute(const char *program) {
    char *args[] = {(char *)program, "argument", NULL}, *environment[] = {NULL};
    execve(program, args, environment);
    _exit(127);
}

// The program that a worker runs: the common one, or its copy, whose name goes to `path`.
static const char *own_program(struct worker *w, char path[64]) {
    if (!copies) return to_run;
    snprintf(path, 64, "/tmp/forkexec.%d.%d", getpid(), w->index);
    int from = open(to_run, O_RDONLY), to = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0700);
    CHECK(from >= 0 && to >= 0, "a copy of %s as %s", to_run, path);
    char buffer[1 << 14];
    for (ssize_t n; (n = read(from, buffer, sizeof buffer));) CHECK(n > 0 && write(to, buffer, n) == n, "%s", path);
    close(from), close(to);
    return path;
}

static void fork_exec(struct worker *w) {
    char path[64];
    const char *program = own_program(w, path);
    while (running(w)) {
        lap_begin(w);
        pid_t child = fork();
        if (!child) execute(program);
        collect(w, child, 42);
        lap_end(w, 1);
    }
    if (copies) unlink(program);
}

static void vfork_exec(struct worker *w) {
    char path[64];
    const char *program = own_program(w, path);
    while (running(w)) {
        lap_begin(w);
        pid_t child = vfork();
        if (!child) execute(program);
        collect(w, child, 42);
        lap_end(w, 1);
    }
    if (copies) unlink(program);
}

// A fork only write-protects the pages.
static void fork_large(struct worker *w) {
    size_t bytes = 64 * MIB;
    char *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(memory != MAP_FAILED, "mmap");
    uint64_t round = 0;
    while (running(w)) {
        round++;
        for (size_t at = 0; at < bytes; at += PAGE) *(volatile uint64_t *)(memory + at) = round + at;
        lap_begin(w);
        pid_t child = fork();
        if (!child) _exit(*(uint64_t *)(memory + 5 * PAGE) == round + 5 * PAGE ? 7 : 8);
        collect(w, child, 7);
        lap_end(w, 1);
    }
    munmap(memory, bytes);
}

// Mapped and untouched memory costs a fork nothing: 100 pages of 1 GiB are resident, each stored into before each fork.
static void fork_mapped(struct worker *w) {
    size_t bytes = 1024 * MIB, touched = 100, apart = bytes / touched / PAGE * PAGE;
    char *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    CHECK(memory != MAP_FAILED, "mmap");
    uint64_t round = 0;
    while (running(w)) {
        round++;
        for (size_t page = 0; page < touched; page++) *(volatile uint64_t *)(memory + page * apart) = round + page;
        lap_begin(w);
        pid_t child = fork();
        if (!child) _exit(*(uint64_t *)(memory + 99 * apart) == round + 99 ? 7 : 8);
        collect(w, child, 7);
        lap_end(w, 1);
    }
    munmap(memory, bytes);
}

static const char *beside(const char *self, const char *name) {
    static char text[2][4096];
    char *path = text[!!strchr(name, '-')];
    const char *slash = strrchr(self, '/');
    snprintf(path, sizeof text[0], "%.*s%s", (int)(slash ? slash - self + 1 : 0), slash ? self : "", name);
    return access(path, X_OK) ? NULL : path;
}

int main(int argc, char **argv) {
    struct setting own[] = {
        {"--static", NULL, &program_static}, {"--dynamic", NULL, &program_dynamic}, {"--copies", &copies, NULL}, {0}};
    parse_options(argc, argv, own);
    // A thread that forks would pass on another thread's open write descriptor of a program.
    CHECK(!copies || options.threads == 1, "copies are for --processes");
    if (!program_static) program_static = beside(argv[0], "child");
    if (!program_dynamic) program_dynamic = beside(argv[0], "child-dynamic");
    measure("fork_exit", fork_exit);
    measure("fork_64MiB_exit", fork_large);
    measure("fork_1GiB_mapped_exit", fork_mapped);
    if ((to_run = program_static)) {
        measure("fork_exec_static", fork_exec);
        measure("vfork_exec_static", vfork_exec);
    }
    if ((to_run = program_dynamic)) {
        measure("fork_exec_dynamic", fork_exec);
        measure("vfork_exec_dynamic", vfork_exec);
    }
}
