// System V semaphores: each check holds on Linux and on Quire.
#include "ipc.h"

static int value(int id, int number) { return semctl(id, number, GETVAL); }

static void operations_on_semaphores(void) {
    ANSWERS(EINVAL, semget(IPC_PRIVATE, 0, 0600));
    ANSWERS(EINVAL, semget(IPC_PRIVATE, -1, 0600));
    ANSWERS(EINVAL, semget(IPC_PRIVATE, 32001, 0600));
    int id = semget(KEY, 3, IPC_CREAT | 0600);
    CHECK(semget(KEY, 2, 0) == id, "fewer semaphores");
    ANSWERS(EINVAL, semget(KEY, 4, 0));
    struct semid_ds status;
    CHECK(!semctl(id, 0, IPC_STAT, (union argument){.status = &status}) && status.sem_nsems == 3 && !status.sem_otime &&
        status.sem_ctime, "status");
    ANSWERS(0, semop(id, (struct sembuf[2]){{0, 5, 0}, {2, 1, 0}}, 2));
    CHECK(value(id, 0) == 5 && !value(id, 1) && value(id, 2) == 1, "values");
    CHECK(semctl(id, 0, GETPID) == getpid() && !semctl(id, 1, GETPID), "pids");
    CHECK(!semctl(id, 0, IPC_STAT, (union argument){.status = &status}) && status.sem_otime, "sem_otime");
    // All or nothing.
    ANSWERS(EAGAIN, semop(id, (struct sembuf[2]){{0, -1, 0}, {1, -1, IPC_NOWAIT}}, 2));
    CHECK(value(id, 0) == 5, "a part was done");
    ANSWERS(EAGAIN, semop(id, &(struct sembuf){0, 0, IPC_NOWAIT}, 1));
    ANSWERS(0, semop(id, (struct sembuf[3]){{0, -5, 0}, {0, 0, 0}, {0, 1, 0}}, 3));
    CHECK(value(id, 0) == 1, "in order");
    ANSWERS(EFBIG, semop(id, &(struct sembuf){3, 1, 0}, 1));
    ANSWERS(EINVAL, semop(id, &(struct sembuf){0, 1, 0}, 0));
    ANSWERS(E2BIG, semop(id, &(struct sembuf){0, 1, 0}, 501));
    ANSWERS(EFAULT, semop(id, (struct sembuf *)1, 1));
    ANSWERS(EINVAL, semop(-1, &(struct sembuf){0, 1, 0}, 1));
    ANSWERS(ERANGE, semop(id, &(struct sembuf){0, 32767, 0}, 1));
    ANSWERS(ERANGE, semctl(id, 0, SETVAL, (union argument){.value = 32768}));
    ANSWERS(ERANGE, semctl(id, 0, SETVAL, (union argument){.value = -1}));
    ANSWERS(EINVAL, semctl(id, 3, SETVAL, (union argument){.value = 1}));
    ANSWERS(EINVAL, semctl(id, 3, GETVAL));
    unsigned short values[3] = {7, 8, 32767};
    ANSWERS(0, semctl(id, 0, SETALL, (union argument){.values = values}));
    memset(values, 0, sizeof values);
    ANSWERS(0, semctl(id, 0, GETALL, (union argument){.values = values}));
    CHECK(values[0] == 7 && values[1] == 8 && values[2] == 32767, "GETALL");
    values[1] = 32768;
    ANSWERS(ERANGE, semctl(id, 0, SETALL, (union argument){.values = values}));
    ANSWERS(EFAULT, semctl(id, 0, GETALL, (union argument){.values = NULL}));
    ANSWERS(EINVAL, semctl(id, 0, 99));
    struct seminfo info;
    CHECK(semctl(0, 0, IPC_INFO, (union argument){.info = &info}) >= 0 && info.semmsl == 32000 && info.semopm == 500 &&
        info.semvmx == 32767 && info.semaem == 32767 && info.semusz == 20, "IPC_INFO");
    CHECK(semctl(0, 0, SEM_INFO, (union argument){.info = &info}) >= 0 && info.semusz >= 1 && info.semaem >= 3,
        "SEM_INFO");
    ANSWERS(0, semctl(id, 0, IPC_RMID));
    ANSWERS(EINVAL, semctl(id, 0, GETVAL));
}

struct wait {
    int id, count;
    struct sembuf operations[3];
    int error;
};

static void *waits(void *of) {
    struct wait *wait = of;
    wait->error = semop(wait->id, wait->operations, wait->count) ? errno : 0;
    return NULL;
}

static void until(int id, int number, int command, int count) {
    while (semctl(id, number, command) != count) usleep(1000);
}

static void sleepers_on_semaphores(void) {
    int id = array(3);
    struct wait more = {id, 1, {{0, -2, 0}}, -1}, zero = {id, 1, {{1, 0, 0}}, -1},
        several = {id, 2, {{0, -1, 0}, {2, -1, 0}}, -1};
    CHECK(!semctl(id, 1, SETVAL, (union argument){.value = 2}), "SETVAL");
    pthread_t one = begin(waits, &more);
    until(id, 0, GETNCNT, 1);
    pthread_t other = begin(waits, &zero);
    until(id, 1, GETZCNT, 1);
    CHECK(!semctl(id, 0, GETZCNT) && !semctl(id, 1, GETNCNT), "counts");
    pthread_t third = begin(waits, &several);
    until(id, 0, GETNCNT, 2);
    // The oldest that can goes on.
    ANSWERS(0, semop(id, &(struct sembuf){0, 3, 0}, 1));
    CHECK(!pthread_join(one, NULL) && !more.error && value(id, 0) == 1, "more: %d", more.error);
    until(id, 2, GETNCNT, 1);
    CHECK(!semctl(id, 0, GETNCNT), "it waits for the other");
    ANSWERS(0, semop(id, &(struct sembuf){2, 1, 0}, 1));
    CHECK(!pthread_join(third, NULL) && !several.error && !value(id, 0) && !value(id, 2), "several: %d", several.error);
    ANSWERS(0, semop(id, &(struct sembuf){1, -2, 0}, 1));
    CHECK(!pthread_join(other, NULL) && !zero.error, "zero: %d", zero.error);
    // A chain: each change lets the next go on.
    struct wait chain[2] = {{id, 2, {{0, -1, 0}, {1, 1, 0}}, -1}, {id, 2, {{1, -1, 0}, {2, 1, 0}}, -1}};
    one = begin(waits, &chain[0]), other = begin(waits, &chain[1]);
    until(id, 0, GETNCNT, 1), until(id, 1, GETNCNT, 1);
    ANSWERS(0, semctl(id, 0, SETVAL, (union argument){.value = 1}));
    CHECK(!pthread_join(one, NULL) && !pthread_join(other, NULL) && !value(id, 0) && !value(id, 1) && value(id, 2) == 1,
        "chain");
    // Time, signals and the end of the array.
    ANSWERS(EAGAIN, semtimedop(id, &(struct sembuf){0, -1, 0}, 1, &(struct timespec){0, 20 * MS}));
    ANSWERS(EINVAL, semtimedop(id, &(struct sembuf){0, -1, 0}, 1, &(struct timespec){0, 1000 * MS}));
    ANSWERS(EFAULT, semtimedop(id, &(struct sembuf){0, -1, 0}, 1, (void *)1));
    handle(SIGUSR1, SA_RESTART);
    pid_t child = sender(SIGUSR1);
    ANSWERS(EINTR, semop(id, &(struct sembuf){0, -1, 0}, 1));
    CHECK(caught == SIGUSR1 && !semctl(id, 0, GETNCNT), "it still waits");
    ended(child);
    more.error = -1;
    one = begin(waits, &more);
    until(id, 0, GETNCNT, 1);
    ANSWERS(0, semctl(id, 0, IPC_RMID));
    CHECK(!pthread_join(one, NULL) && more.error == EIDRM, "EIDRM: %d", more.error);
}

static void undos(void) {
    int id = array(2);
    CHECK(!semctl(id, 0, SETVAL, (union argument){.value = 5}), "SETVAL");
    pid_t child = fork();
    if (!child) {
        ANSWERS(0, semop(id, (struct sembuf[2]){{0, -3, SEM_UNDO}, {1, 4, SEM_UNDO}}, 2));
        ANSWERS(0, semop(id, &(struct sembuf){1, -3, 0}, 1));
        _exit(0);
    }
    CHECK(!ended(child) && value(id, 0) == 5 && !value(id, 1), "undone: %d %d", value(id, 0), value(id, 1));
    CHECK(semctl(id, 0, GETPID) == child, "the process of the undo");
    // A set value is not undone.
    child = fork();
    if (!child) {
        ANSWERS(0, semop(id, &(struct sembuf){0, -3, SEM_UNDO}, 1));
        ANSWERS(0, semctl(id, 0, SETVAL, (union argument){.value = 1}));
        _exit(0);
    }
    CHECK(!ended(child) && value(id, 0) == 1, "SETVAL: %d", value(id, 0));
    // The end of a process lets a sleeper go on.
    child = fork();
    if (!child) {
        ANSWERS(0, semop(id, &(struct sembuf){0, -1, SEM_UNDO}, 1));
        until(id, 0, GETNCNT, 1);
        kill(getpid(), SIGKILL);
    }
    while (value(id, 0)) usleep(1000);
    ANSWERS(0, semop(id, &(struct sembuf){0, -1, 0}, 1));
    CHECK(ended(child) == SIGKILL, "child");
    // Threads share the undos of their process, and exec keeps them.
    ANSWERS(0, semctl(id, 0, SETVAL, (union argument){.value = 5}));
    child = fork();
    if (!child) {
        struct wait wait = {id, 1, {{0, -1, SEM_UNDO}}, -1};
        pthread_join(begin(waits, &wait), NULL);
        CHECK(value(id, 0) == 4, "undone with a thread");
        run_nothing();
    }
    CHECK(!ended(child) && value(id, 0) == 5, "after exec: %d", value(id, 0));
    // A child has none of its parent's.
    ANSWERS(0, semop(id, &(struct sembuf){0, -1, SEM_UNDO}, 1));
    child = fork();
    if (!child) _exit(0);
    CHECK(!ended(child) && value(id, 0) == 4, "undone by a child");
    ANSWERS(ERANGE, semop(id, (struct sembuf[3]){{1, 32767, SEM_UNDO}, {1, -32767, 0}, {1, 2, SEM_UNDO}}, 3));
    ANSWERS(0, semctl(id, 0, IPC_RMID));
}

static atomic_long counted;

static void *counts(void *of) {
    int id = *(int *)of;
    for (int i = 0; i < 2000; i++) {
        if (semop(id, &(struct sembuf){0, -1, SEM_UNDO}, 1)) return (void *)(intptr_t)errno;
        long before = atomic_load_explicit(&counted, memory_order_relaxed);
        atomic_store_explicit(&counted, before + 1, memory_order_relaxed);
        if (semop(id, &(struct sembuf){0, 1, SEM_UNDO}, 1)) return (void *)(intptr_t)errno;
    }
    return NULL;
}

static void threads_race(void) {
    int id = array(1);
    CHECK(!semctl(id, 0, SETVAL, (union argument){.value = 1}), "SETVAL");
    pthread_t threads[4];
    for (int i = 0; i < 4; i++) threads[i] = begin(counts, &id);
    for (int i = 0; i < 4; i++) {
        void *error;
        CHECK(!pthread_join(threads[i], &error) && !error, "semop: %ld", (long)error);
    }
    CHECK(counted == 8000 && value(id, 0) == 1, "%ld", counted);
    // The array is removed under the threads.
    for (int round = 0; round < 50; round++) {
        for (int i = 0; i < 4; i++) threads[i] = begin(counts, &id);
        usleep(random() % 2000);
        ANSWERS(0, semctl(id, 0, IPC_RMID));
        for (int i = 0; i < 4; i++) {
            void *error;
            CHECK(!pthread_join(threads[i], &error), "join");
            CHECK(!error || (intptr_t)error == EIDRM || (intptr_t)error == EINVAL, "semop: %ld", (long)error);
        }
        id = array(1);
        CHECK(!semctl(id, 0, SETVAL, (union argument){.value = 1}), "SETVAL");
    }
    ANSWERS(0, semctl(id, 0, IPC_RMID));
}

static const struct check checks[] = {
    {"operations_on_semaphores", operations_on_semaphores},
    {"sleepers_on_semaphores", sleepers_on_semaphores},
    {"undos", undos},
    {"threads_race", threads_race},
};

int main(int argc, char **argv) {
    parse_options(argc, argv, NULL);
    run_checks(checks, sizeof checks / sizeof *checks);
    return 0;
}
