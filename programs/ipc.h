// Objects of System V IPC, for the programs that check them.
#pragma once
#include "checks.h"
#include <pthread.h>
#include <sys/ipc.h>
#include <sys/msg.h>
#include <sys/sem.h>
#include <sys/shm.h>

#define KEY 0x51524950

union argument {
    int value;
    unsigned short *values;
    struct semid_ds *status;
    struct seminfo *info;
};

static inline int segment(size_t size) {
    int id = shmget(IPC_PRIVATE, size, IPC_CREAT | 0600);
    CHECK(id >= 0, "shmget");
    return id;
}

static inline int array(int n) {
    int id = semget(IPC_PRIVATE, n, IPC_CREAT | 0600);
    CHECK(id >= 0, "semget");
    return id;
}

static inline int queue(void) {
    int id = msgget(IPC_PRIVATE, IPC_CREAT | 0600);
    CHECK(id >= 0, "msgget");
    return id;
}

static inline void write_setting(const char *name, const char *value) {
    char path[100];
    snprintf(path, sizeof path, "/proc/sys/kernel/%s", name);
    int fd = open(path, O_WRONLY);
    CHECK(fd >= 0 && write(fd, value, strlen(value)) == (ssize_t)strlen(value), "%s", path);
    close(fd);
}

// Another program, which does nothing.
static inline void run_nothing(void) {
    dup2(open("/dev/null", O_WRONLY), STDOUT_FILENO);
    execl("/proc/self/exe", "nothing", "--only", "nothing", NULL);
    _exit(1);
}

static inline pthread_t begin(void *(*run)(void *), void *of) {
    pthread_t thread;
    CHECK(!pthread_create(&thread, NULL, run, of), "thread");
    return thread;
}
