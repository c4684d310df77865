// Runs one program and reports the resources that it used. It is the first program of a guest that ./quire compare
// starts.
//
//   measure TAG MILLISECONDS PROGRAM ARGS...
//
// The program inherits the streams, the environment and the directory. After its end, measure writes its report to
// standard error: a line `TAG BYTES`, followed by that number of bytes. The report has lines `name value`. Then, for
// each file of /proc, before and after the program, it has a line `file NAME before|after BYTES` and the content. The
// memory in use is sampled every MILLISECONDS. With 0 it is not sampled, because a sample executes instructions too.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { FILES = 4, MOST = 64 << 10, REPORT = 2 * FILES * MOST + 4096 };

static const char *const names[FILES] = {"stat", "vmstat", "interrupts", "meminfo"};
enum { MEMINFO = 3 };

static struct text {
    char bytes[MOST + 1];
    size_t length;
} before[FILES], after[FILES], now;
static char report[REPORT];
static size_t reported;

static _Noreturn void die(const char *what) {
    dprintf(2, "measure: %s: %s\n", what, strerror(errno));
    _exit(99);
}

// A missing file counts as empty, because kernels differ in their files.
static void take(struct text *to, const char *name) {
    char path[64];
    snprintf(path, sizeof path, "/proc/%s", name);
    to->length = 0;
    int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file >= 0) {
        while (to->length < MOST) {
            ssize_t n = read(file, to->bytes + to->length, MOST - to->length);
            if (n < 0 && errno == EINTR) continue;
            if (n <= 0) break;
            to->length += (size_t)n;
        }
        close(file);
    }
    to->bytes[to->length] = 0;
}

static void take_all(struct text *to) {
    for (int i = 0; i < FILES; i++) take(&to[i], names[i]);
}

static uint64_t ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

static long row(const struct text *text, const char *name) {
    const char *at = strstr(text->bytes, name);
    return at ? strtol(at + strlen(name), NULL, 10) : -1;
}

__attribute__((format(printf, 1, 2))) static void put(const char *format, ...) {
    va_list args;
    va_start(args, format);
    int n = vsnprintf(report + reported, sizeof report - reported, format, args);
    va_end(args);
    if (n < 0 || (size_t)n >= sizeof report - reported) die("a report that is too long");
    reported += (size_t)n;
}

static void put_files(const struct text *texts, const char *when) {
    for (int i = 0; i < FILES; i++) {
        put("file %s %s %zu\n", names[i], when, texts[i].length);
        if (texts[i].length >= sizeof report - reported) die("a report that is too long");
        memcpy(report + reported, texts[i].bytes, texts[i].length);
        reported += texts[i].length;
    }
}

static void say(const char *bytes, size_t length) {
    for (size_t at = 0; at < length;) {
        ssize_t n = write(2, bytes + at, length - at);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) _exit(99);
        at += (size_t)n;
    }
}

// A no-operation that marks the start (5) and the end (6) of the measured part for a plugin of the emulator. See
// plugin/src/mark.rs.
#define MARK(what) __asm__ volatile(".byte 0x0f, 0x1f, 0x80; .long 0x51756900 | " #what ::: "memory") // nopl WORD(%rax)

int main(int argc, char **argv) {
    if (argc < 4) {
        dprintf(2, "usage: measure TAG MILLISECONDS PROGRAM ARGS...\n");
        return 2;
    }
    long pause = strtol(argv[2], NULL, 10);
    struct timespec interval = {pause / 1000, pause % 1000 * 1000000};
    sigset_t child_ended, were;
    sigemptyset(&child_ended);
    sigaddset(&child_ended, SIGCHLD);
    sigprocmask(SIG_BLOCK, &child_ended, &were);
    // Touches all memory that this process itself will use. So it has no faults while the program runs, and the faults
    // that are counted are the program's.
    memset(before, 1, sizeof before);
    memset(after, 1, sizeof after);
    memset(&now, 1, sizeof now);
    memset(report, 1, sizeof report);
    take_all(after);
    take_all(before);
    long tables = -1, free_memory = -1, looks = 0;
    uint64_t began = ns();
    MARK(5);
    pid_t child = fork();
    if (child < 0) die("fork");
    if (child == 0) {
        sigprocmask(SIG_SETMASK, &were, NULL);
        execv(argv[3], argv + 3);
        int why = errno;
        dprintf(2, "%s: %s\n", argv[3], strerror(why));
        _exit(why == ENOENT ? 127 : 126);
    }
    int status;
    struct rusage used;
    for (;;) {
        // Process 1 also waits for orphans, so that daemons of the program do not stay as zombies after their end.
        pid_t ended = wait4(-1, &status, pause ? WNOHANG : 0, &used);
        if (ended == child) break;
        if (ended > 0) continue;
        if (ended < 0 && errno != EINTR) die("wait4");
        if (pause && sigtimedwait(&child_ended, NULL, &interval) < 0 && errno == EAGAIN) {
            take(&now, names[MEMINFO]);
            long t = row(&now, "\nPageTables:"), f = row(&now, "\nMemFree:");
            if (t > tables) tables = t;
            if (f >= 0 && (free_memory < 0 || f < free_memory)) free_memory = f;
            looks++;
        }
    }
    MARK(6);
    uint64_t wall = ns() - began;
    take_all(after);
    put("wall_ns %llu\n", (unsigned long long)wall);
    put("user_us %lld\n", used.ru_utime.tv_sec * 1000000LL + used.ru_utime.tv_usec);
    put("system_us %lld\n", used.ru_stime.tv_sec * 1000000LL + used.ru_stime.tv_usec);
    put("minor %ld\nmajor %ld\npeak_kib %ld\n", used.ru_minflt, used.ru_majflt, used.ru_maxrss);
    put("voluntary %ld\ninvoluntary %ld\n", used.ru_nvcsw, used.ru_nivcsw);
    if (looks > 0) put("tables_kib %ld\nfree_kib %ld\n", tables, free_memory);
    if (WIFSIGNALED(status)) put("signal %d\n", WTERMSIG(status));
    else put("exit %d\n", WEXITSTATUS(status));
    put_files(before, "before");
    put_files(after, "after");
    char head[256];
    int n = snprintf(head, sizeof head, "%s %zu\n", argv[1], reported);
    if (n < 0 || (size_t)n >= sizeof head) die("a tag that is too long");
    say(head, (size_t)n);
    say(report, reported);
    return 0;
}
