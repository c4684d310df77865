// The first program of a Linux guest. It gives Linux the same interface to ./quire as Quire has: it reads /.quire/run,
// connects the program with the ports, reports the program's status on the control port, and ends QEMU through the
// debug-exit port.
//
// Ports (one virtio-serial device): vport0p1 standard input and output, vport0p2 standard error, vport0p3 control
// lines.
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <net/if.h>
#include <sys/io.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { MOST = 4096 };

static char *args[MOST], *envs[MOST], *cwd = "/";
static int nargs, nenvs;

static void power_off(int how) {
    // A write to a port returns as soon as the driver has queued the data. The sleep gives QEMU time to read the data.
    usleep(100000);
    if (ioperm(0xf4, 1, 1) == 0) __asm__ volatile("outb %b0, $0xf4" ::"a"(how));
    for (;;) pause();
}

static void die(const char *what) {
    dprintf(2, "init: %s: %s\n", what, strerror(errno));
    power_off(0x11);
}

static int open_port(const char *name) {
    for (int tries = 0; tries < 500; tries++) {
        int fd = open(name, O_RDWR | O_CLOEXEC);
        if (fd >= 0) return fd;
        usleep(10000);
    }
    die(name);
    return -1;
}

static char *unhex(const char *hex) {
    size_t length = strlen(hex) / 2;
    char *text = malloc(length + 1);
    for (size_t i = 0; i < length; i++) {
        unsigned byte = 0;
        sscanf(hex + 2 * i, "%2x", &byte);
        text[i] = (char)byte;
    }
    text[length] = 0;
    return text;
}

static void read_order(void) {
    FILE *file = fopen("/.quire/run", "r");
    if (!file) die("/.quire/run");
    char *line = NULL;
    size_t size = 0;
    while (getline(&line, &size, file) > 0) {
        line[strcspn(line, "\n")] = 0;
        char *value = strchr(line, ' ');
        if (!value) continue;
        *value++ = 0;
        if (!strcmp(line, "arg") && nargs < MOST - 1) args[nargs++] = unhex(value);
        if (!strcmp(line, "env") && nenvs < MOST - 1) envs[nenvs++] = unhex(value);
        if (!strcmp(line, "cwd")) cwd = unhex(value);
    }
    fclose(file);
}

// Loads all modules of the directory, in the order of their names.
static void load_modules(const char *directory) {
    struct dirent **entries;
    int count = scandir(directory, &entries, NULL, alphasort);
    for (int i = 0; i < count; i++) {
        if (entries[i]->d_name[0] == '.') continue;
        char path[4096];
        snprintf(path, sizeof path, "%s/%s", directory, entries[i]->d_name);
        int fd = open(path, O_RDONLY | O_CLOEXEC);
        if (fd < 0 || syscall(SYS_finit_module, fd, "", 0) < 0) die(path);
        close(fd);
    }
}

static void put(const char *path, const char *text) {
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    if (fd >= 0) {
        if (write(fd, text, strlen(text)) < 0) dprintf(2, "init: %s: %s\n", path, strerror(errno));
        close(fd);
    }
}

// Copies input to the program until `total` bytes were copied, then closes the write end of the pipe.
static void feed(int port, int *writer, uint64_t *passed, uint64_t total) {
    static char bytes[65536];
    if (*passed < total) {
        size_t want = sizeof bytes;
        if (total - *passed < want) want = (size_t)(total - *passed);
        ssize_t n = read(port, bytes, want);
        if (n <= 0) return;
        *passed += (uint64_t)n;
        for (ssize_t at = 0; at < n && *writer >= 0;) {
            ssize_t wrote = write(*writer, bytes + at, (size_t)(n - at));
            if (wrote < 0) {
                close(*writer);
                *writer = -1; // the program does not read any more
            } else {
                at += wrote;
            }
        }
    }
    if (*passed >= total && *writer >= 0) {
        close(*writer);
        *writer = -1;
    }
}

static void run_program(int in, int out, int err) {
    if (setsid() < 0 || chdir(cwd) < 0) die(cwd);
    dup2(in, 0);
    dup2(out, 1);
    dup2(err, 2);
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    signal(SIGPIPE, SIG_DFL);
    execve(args[0], args, envs);
    dprintf(2, "%s: %s\n", args[0], strerror(errno));
    _exit(errno == ENOENT ? 127 : 126);
}

// Brings a network interface up. Otherwise the loopback would transfer nothing.
static void link_up(const char *name) {
    struct ifreq request = {0};
    int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0) return;
    snprintf(request.ifr_name, sizeof request.ifr_name, "%s", name);
    if (ioctl(fd, SIOCGIFFLAGS, &request) == 0) {
        request.ifr_flags |= IFF_UP;
        ioctl(fd, SIOCSIFFLAGS, &request);
    }
    close(fd);
}

int main(void) {
    mkdir("/dev", 0755);
    mount("dev", "/dev", "devtmpfs", 0, NULL);
    mount("proc", "/proc", "proc", 0, NULL);
    mount("sys", "/sys", "sysfs", 0, NULL);
    mkdir("/dev/pts", 0755);
    mkdir("/dev/shm", 01777);
    mount("devpts", "/dev/pts", "devpts", 0, NULL);
    mount("shm", "/dev/shm", "tmpfs", 0, NULL);
    mkdir("/dev/mqueue", 01777);
    mount("mqueue", "/dev/mqueue", "mqueue", 0, NULL);
    symlink("/proc/self/fd", "/dev/fd");
    symlink("/proc/self/fd/0", "/dev/stdin");
    symlink("/proc/self/fd/1", "/dev/stdout");
    symlink("/proc/self/fd/2", "/dev/stderr");
    link_up("lo");
    load_modules("/.quire/modules");
    // These settings make the comparison fair: Quire has neither these limits nor these extra features.
    put("/proc/sys/vm/max_map_count", "16777216");
    put("/proc/sys/vm/overcommit_memory", "1");
    signal(SIGPIPE, SIG_IGN);
    umask(022);
    int io = open_port("/dev/vport0p1"), err = open_port("/dev/vport0p2"), control = open_port("/dev/vport0p3");
    read_order();
    if (nargs == 0) die("nothing to run");
    int input[2];
    if (pipe2(input, O_CLOEXEC) < 0) die("pipe");
    // The program starts after the seconds in this file, so that Linux's own work right after boot is not measured.
    FILE *settle = fopen("/.quire/settle", "r");
    int seconds = 0;
    if (settle && fscanf(settle, "%d", &seconds) == 1) sleep((unsigned)seconds);
    if (settle) fclose(settle);
    sigset_t child_ended;
    sigemptyset(&child_ended);
    sigaddset(&child_ended, SIGCHLD);
    sigprocmask(SIG_BLOCK, &child_ended, NULL);
    int ended = signalfd(-1, &child_ended, SFD_CLOEXEC);
    struct timespec now;
    clock_gettime(CLOCK_BOOTTIME, &now);
    dprintf(control, "ready %lld\n", (long long)now.tv_sec * 1000000000 + now.tv_nsec);
    pid_t program = fork();
    if (program < 0) die("fork");
    if (program == 0) run_program(input[0], io, err);
    close(input[0]);
    int writer = input[1];
    uint64_t passed = 0, total = UINT64_MAX;
    char line[512];
    size_t have = 0;
    for (;;) {
        struct pollfd fds[3] = {
            {.fd = ended, .events = POLLIN},
            {.fd = control, .events = POLLIN},
            {.fd = writer >= 0 ? io : -1, .events = POLLIN},
        };
        if (poll(fds, 3, -1) < 0) continue;
        if (fds[1].revents & POLLIN) {
            ssize_t n = read(control, line + have, sizeof line - 1 - have);
            if (n > 0) have += (size_t)n;
            line[have] = 0;
            for (char *end; (end = strchr(line, '\n'));) {
                *end = 0;
                if (!strncmp(line, "eof ", 4)) total = strtoull(line + 4, NULL, 10);
                if (!strcmp(line, "int")) kill(-program, SIGINT);
                have -= (size_t)(end + 1 - line);
                memmove(line, end + 1, have + 1);
            }
            if (have == sizeof line - 1) have = 0;
            if (total != UINT64_MAX && passed >= total) feed(io, &writer, &passed, total);
        }
        if (fds[2].revents & POLLIN) feed(io, &writer, &passed, total);
        if (fds[0].revents & POLLIN) {
            struct signalfd_siginfo info;
            if (read(ended, &info, sizeof info) < 0) continue;
            int status;
            for (pid_t pid; (pid = waitpid(-1, &status, WNOHANG)) > 0;) {
                if (pid != program) continue;
                if (WIFSIGNALED(status))
                    dprintf(control, "signal %d\n", WTERMSIG(status));
                else
                    dprintf(control, "exit %d\n", WEXITSTATUS(status));
                power_off(0x10);
            }
        }
    }
}
