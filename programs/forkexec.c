// Processes: fork + exit, fork + exec + wait of a static and of a dynamic program, the same with vfork, and fork of a
// process with much memory. The programs executed lie beside this one (child, and child-dynamic where it is there) or
// are named by --static and --dynamic; each takes one argument and ends with status 42.
#include "report.h"

static const char *program_static, *program_dynamic;
static const char *to_run;

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

static void execute(void) {
    char *args[] = {(char *)to_run, "argument", NULL}, *environment[] = {NULL};
    execve(to_run, args, environment);
    _exit(127);
}

static void fork_exec(struct worker *w) {
    while (running(w)) {
        lap_begin(w);
        pid_t child = fork();
        if (!child) execute();
        collect(w, child, 42);
        lap_end(w, 1);
    }
}

static void vfork_exec(struct worker *w) {
    while (running(w)) {
        lap_begin(w);
        pid_t child = vfork();
        if (!child) execute();
        collect(w, child, 42);
        lap_end(w, 1);
    }
}

// Nothing is to be done for pages at fork but to write-protect them.
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

static const char *beside(const char *self, const char *name) {
    static char text[2][4096];
    char *path = text[!!strchr(name, '-')];
    const char *slash = strrchr(self, '/');
    snprintf(path, sizeof text[0], "%.*s%s", (int)(slash ? slash - self + 1 : 0), slash ? self : "", name);
    return access(path, X_OK) ? NULL : path;
}

int main(int argc, char **argv) {
    struct setting own[] = {{"--static", NULL, &program_static}, {"--dynamic", NULL, &program_dynamic}, {0}};
    parse_options(argc, argv, own);
    if (!program_static) program_static = beside(argv[0], "child");
    if (!program_dynamic) program_dynamic = beside(argv[0], "child-dynamic");
    measure("fork_exit", fork_exit);
    measure("fork_64MiB_exit", fork_large);
    if ((to_run = program_static)) {
        measure("fork_exec_static", fork_exec);
        measure("vfork_exec_static", vfork_exec);
    }
    if ((to_run = program_dynamic)) {
        measure("fork_exec_dynamic", fork_exec);
        measure("vfork_exec_dynamic", vfork_exec);
    }
}
