// Runs many tests in one boot. It is the guest's first program. It reads orders from standard input, or from the file
// that its argument names, and answers on standard output. Orders in a file do not depend on the host's timing. Each
// order is a line of numbers followed by bytes:
//
//   test ARGS INPUT\n         then ARGS times "LENGTH\n" and that many bytes, then INPUT bytes of standard input.
// done KIND N OUT ERR\n     KIND is `exit` or `signal`. Then come OUT bytes of standard output and ERR of standard
// error.
//
// Each test starts in an empty directory without other processes. Everything that it leaves is removed.
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define PLACE "/tmp/test"
#define INPUT "/tmp/.input"
#define OUTPUT "/tmp/.output"
#define ERRORS "/tmp/.errors"

enum { MOST = 256 };

static _Noreturn void die(const char *what) {
    dprintf(2, "testd: %s: %s\n", what, strerror(errno));
    exit(99);
}

// The descriptor from which the orders are read. Tests do not inherit it.
static int orders;

// Reads one line, without its line end. If the input ends between two orders, the run is over.
static int read_line(char *line, size_t size) {
    size_t at = 0;
    for (;;) {
        ssize_t n = read(orders, line + at, 1);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return 0;
        if (line[at] == '\n') break;
        if (++at == size) die("a line without end");
    }
    line[at] = 0;
    return 1;
}

static void read_whole(char *to, size_t length) {
    while (length > 0) {
        ssize_t n = read(orders, to, length);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) die("the order ends early");
        to += n;
        length -= (size_t)n;
    }
}

static void write_whole(int fd, const char *from, size_t length) {
    while (length > 0) {
        ssize_t n = write(fd, from, length);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) die("write");
        from += n;
        length -= (size_t)n;
    }
}

static int create(const char *path) {
    unlink(path);
    int fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (fd < 0) die(path);
    return fd;
}

// Copies `length` bytes from one descriptor to another.
static void copy(int from, int to, size_t length) {
    static char bytes[65536];
    while (length > 0) {
        ssize_t n = read(from, bytes, length < sizeof bytes ? length : sizeof bytes);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) die("copy");
        write_whole(to, bytes, (size_t)n);
        length -= (size_t)n;
    }
}

// Removes the directory `path` with its contents.
static void remove_tree(const char *path) {
    chmod(path, 0700);
    DIR *directory = opendir(path);
    if (!directory) return;
    struct dirent *entry;
    while ((entry = readdir(directory))) {
        if (!strcmp(entry->d_name, ".") || !strcmp(entry->d_name, "..")) continue;
        char inner[4096];
        snprintf(inner, sizeof inner, "%s/%s", path, entry->d_name);
        struct stat st;
        if (lstat(inner, &st) == 0 && S_ISDIR(st.st_mode))
            remove_tree(inner);
        else
            unlink(inner);
    }
    closedir(directory);
    rmdir(path);
}

static int run(char **args, int in, int out, int err) {
    pid_t child = fork();
    if (child < 0) die("fork");
    if (child == 0) {
        setsid();
        if (chdir(PLACE) < 0) _exit(98);
        dup2(in, 0);
        dup2(out, 1);
        dup2(err, 2);
        execv(args[0], args);
        dprintf(2, "%s: %s\n", args[0], strerror(errno));
        _exit(errno == ENOENT ? 127 : 126);
    }
    int status = 0;
    while (waitpid(child, &status, 0) < 0)
        if (errno != EINTR) die("waitpid");
    // Kills the test's remaining processes. The signal spares the sender, process 1. The killed processes are orphans,
    // so process 1 is their parent and waits for them.
    if (getpid() == 1) {
        kill(-1, SIGKILL);
        while (waitpid(-1, NULL, 0) > 0 || errno == EINTR) {}
    }
    return status;
}

int main(int count, char **names) {
    char line[128];
    if (count > 1) {
        orders = open(names[1], O_RDONLY | O_CLOEXEC);
        if (orders < 0 || unlink(names[1]) < 0) die(names[1]);
    }
    signal(SIGPIPE, SIG_DFL);
    umask(022);
    while (read_line(line, sizeof line)) {
        size_t words, input;
        if (sscanf(line, "test %zu %zu", &words, &input) != 2 || words == 0 || words >= MOST) die(line);
        char *args[MOST] = {0};
        for (size_t i = 0; i < words; i++) {
            size_t length;
            if (!read_line(line, sizeof line) || sscanf(line, "%zu", &length) != 1) die(line);
            args[i] = malloc(length + 1);
            if (!args[i]) die("malloc");
            read_whole(args[i], length);
            args[i][length] = 0;
        }
        int in = create(INPUT), out = create(OUTPUT), err = create(ERRORS);
        copy(orders, in, input);
        lseek(in, 0, SEEK_SET);
        mkdir(PLACE, 0755);
        int status = run(args, in, out, err);
        off_t out_length = lseek(out, 0, SEEK_END), err_length = lseek(err, 0, SEEK_END);
        lseek(out, 0, SEEK_SET);
        lseek(err, 0, SEEK_SET);
        if (WIFSIGNALED(status))
            dprintf(1, "done signal %d %ld %ld\n", WTERMSIG(status), (long)out_length, (long)err_length);
        else
            dprintf(1, "done exit %d %ld %ld\n", WEXITSTATUS(status), (long)out_length, (long)err_length);
        copy(out, 1, (size_t)out_length);
        copy(err, 1, (size_t)err_length);
        close(in), close(out), close(err);
        remove_tree(PLACE);
        for (size_t i = 0; i < words; i++) free(args[i]);
    }
    return 0;
}
