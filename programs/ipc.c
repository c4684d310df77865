// System V shared memory, semaphores and message queues: each check holds on Linux and on Quire.
#include "checks.h"
#include <pthread.h>
#include <sys/ipc.h>
#include <sys/msg.h>
#include <sys/sem.h>
#include <sys/shm.h>
#include <sys/syscall.h>

#define KEY 0x51524950
// Not every library has these.
#define COPY 040000

union argument {
    int value;
    unsigned short *values;
    struct semid_ds *status;
    struct seminfo *info;
};

static void *attach(int id) {
    void *at = shmat(id, NULL, 0);
    CHECK(at != (void *)-1, "shmat");
    return at;
}

static struct shmid_ds shm_status(int id) {
    struct shmid_ds status;
    CHECK(!shmctl(id, IPC_STAT, &status), "IPC_STAT");
    return status;
}

static long attaches(int id) { return shm_status(id).shm_nattch; }

static int segment(size_t size) {
    int id = shmget(IPC_PRIVATE, size, IPC_CREAT | 0600);
    CHECK(id >= 0, "shmget");
    return id;
}

static int array(int n) {
    int id = semget(IPC_PRIVATE, n, IPC_CREAT | 0600);
    CHECK(id >= 0, "semget");
    return id;
}

static int queue(void) {
    int id = msgget(IPC_PRIVATE, IPC_CREAT | 0600);
    CHECK(id >= 0, "msgget");
    return id;
}

static void become(uid_t user) { CHECK(!setresgid(user, user, user) && !setresuid(user, user, user), "ids"); }

static void write_setting(const char *name, const char *value) {
    char path[100];
    snprintf(path, sizeof path, "/proc/sys/kernel/%s", name);
    int fd = open(path, O_WRONLY);
    CHECK(fd >= 0 && write(fd, value, strlen(value)) == (ssize_t)strlen(value), "%s", path);
    close(fd);
}

// Another program, which does nothing.
static void run_nothing(void) {
    dup2(open("/dev/null", O_WRONLY), STDOUT_FILENO);
    execl("/proc/self/exe", "ipc", "--only", "nothing", NULL);
    _exit(1);
}

static void keys_and_flags_of_segments(void) {
    ANSWERS(ENOENT, shmget(KEY, PAGE, 0600));
    int id = shmget(KEY, PAGE + 1, IPC_CREAT | IPC_EXCL | 0640);
    CHECK(id >= 0, "shmget");
    ANSWERS(EEXIST, shmget(KEY, PAGE, IPC_CREAT | IPC_EXCL | 0640));
    CHECK(shmget(KEY, 0, 0) == id && shmget(KEY, PAGE + 1, IPC_CREAT) == id, "the same key, another segment");
    ANSWERS(EINVAL, shmget(KEY, PAGE + 2, 0));
    ANSWERS(EINVAL, shmget(IPC_PRIVATE, 0, IPC_CREAT));
    ANSWERS(EINVAL, shmat(-1, NULL, 0) == (void *)-1 ? -1 : 0);
    struct shmid_ds status = shm_status(id);
    CHECK(status.shm_segsz == PAGE + 1 && status.shm_perm.__key == KEY && status.shm_perm.mode == 0640, "status");
    CHECK(status.shm_cpid == getpid() && !status.shm_lpid && !status.shm_nattch && !status.shm_atime && status.shm_ctime, "status");
    status.shm_perm.mode = 0777 | 01000;
    status.shm_perm.uid = 7;
    CHECK(!shmctl(id, IPC_SET, &status), "IPC_SET");
    status = shm_status(id);
    CHECK(status.shm_perm.mode == 0777 && status.shm_perm.uid == 7 && status.shm_perm.cuid == getuid(), "IPC_SET changed %o", status.shm_perm.mode);
    status.shm_perm.uid = -1;
    ANSWERS(EINVAL, shmctl(id, IPC_SET, &status));
    ANSWERS(EINVAL, shmctl(id, 99, &status));
    ANSWERS(EFAULT, shmctl(id, IPC_STAT, NULL));
    CHECK(!shmctl(id, IPC_RMID, NULL), "IPC_RMID");
    ANSWERS(EINVAL, shmctl(id, IPC_STAT, &status));
    ANSWERS(ENOENT, shmget(KEY, PAGE, 0600));
}

static void places_of_attaches(void) {
    int id = segment(3 * PAGE);
    char *at = attach(id);
    CHECK(!at[0] && !at[3 * PAGE - 1], "fresh memory is not zero");
    at[5] = 7;
    char *again = attach(id);
    CHECK(again != at && again[5] == 7, "another attach has other memory");
    ANSWERS(EINVAL, shmat(id, at + 1, 0) == (void *)-1 ? -1 : 0);
    ANSWERS(EINVAL, shmat(id, at, 0) == (void *)-1 ? -1 : 0);
    ANSWERS(EINVAL, shmat(id, at + PAGE, 0) == (void *)-1 ? -1 : 0);
    ANSWERS(EINVAL, shmat(id, NULL, SHM_REMAP) == (void *)-1 ? -1 : 0);
    CHECK(!shmdt(again), "shmdt");
    ANSWERS(EINVAL, shmdt(again));
    ANSWERS(EINVAL, shmdt(at + 1));
    CHECK(shmat(id, again + 100, SHM_RND) == again && !shmdt(again), "SHM_RND");
    char *other = mmap(NULL, 3 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    other[5] = 9;
    CHECK(shmat(id, other, SHM_REMAP) == other && other[5] == 7, "SHM_REMAP");
    CHECK(attaches(id) == 2, "%ld attaches", attaches(id));
    struct shmid_ds status = shm_status(id);
    CHECK(status.shm_lpid == getpid() && status.shm_atime && status.shm_dtime, "times");
    char *read_only = shmat(id, NULL, SHM_RDONLY);
    CHECK(read_only[5] == 7, "SHM_RDONLY");
    ANSWERS(EACCES, mprotect(read_only, PAGE, PROT_READ | PROT_WRITE));
    CHECK(!shmctl(id, IPC_RMID, NULL), "IPC_RMID");
}

static void attaches_are_counted(void) {
    int id = segment(4 * PAGE);
    char *at = attach(id);
    CHECK(attaches(id) == 1, "attach");
    CHECK(!munmap(at + PAGE, PAGE) && attaches(id) == 2, "a hole: %ld", attaches(id));
    CHECK(!munmap(at, PAGE) && attaches(id) == 1, "the first part: %ld", attaches(id));
    CHECK(!mprotect(at + 3 * PAGE, PAGE, PROT_READ) && attaches(id) == 2, "a divided part: %ld", attaches(id));
    char *moved = mremap(at + 2 * PAGE, PAGE, PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, at);
    CHECK(moved == at && attaches(id) == 2, "a moved part: %ld", attaches(id));
    CHECK(!munmap(at, PAGE) && !munmap(at + 3 * PAGE, PAGE) && !attaches(id), "unmapped");
    at = attach(id);
    int ends[2];
    CHECK(!pipe(ends), "pipe");
    pid_t child = fork();
    if (!child) {
        at[0] = 1;
        close(ends[1]);
        _exit(read(ends[0], (char[1]){0}, 1));
    }
    close(ends[0]);
    CHECK(attaches(id) == 2, "after fork: %ld", attaches(id));
    close(ends[1]);
    CHECK(!ended(child) && attaches(id) == 1 && at[0] == 1, "after exit: %ld", attaches(id));
    CHECK(shm_status(id).shm_lpid == child, "the last process is %d", shm_status(id).shm_lpid);
    child = fork();
    if (!child) {
        run_nothing();
    }
    CHECK(!ended(child) && attaches(id) == 1, "after exec: %ld", attaches(id));
    CHECK(mmap(at, 4 * PAGE, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == at && !attaches(id), "mapped over");
    CHECK(!shmctl(id, IPC_RMID, NULL), "IPC_RMID");
}

static void removed_segments_stay_while_mapped(void) {
    int id = shmget(KEY, PAGE, IPC_CREAT | 0600);
    char *at = attach(id);
    CHECK(!shmctl(id, IPC_RMID, NULL) && !shmctl(id, IPC_RMID, NULL), "IPC_RMID");
    ANSWERS(ENOENT, shmget(KEY, PAGE, 0600));
    struct shmid_ds status = shm_status(id);
    CHECK(status.shm_perm.mode == (0600 | SHM_DEST) && !status.shm_perm.__key, "mode %o", status.shm_perm.mode);
    char *again = attach(id);
    at[1] = 5;
    CHECK(again[1] == 5 && attaches(id) == 2, "an attach after the removal");
    CHECK(!shmdt(at) && attaches(id) == 1 && !shmdt(again), "shmdt");
    ANSWERS(EINVAL, shmctl(id, IPC_STAT, &status));
    // The end of the only process with an attach removes it too.
    id = segment(PAGE);
    pid_t child = fork();
    if (!child) {
        attach(id);
        CHECK(!shmctl(id, IPC_RMID, NULL), "IPC_RMID");
        _exit(0);
    }
    CHECK(!ended(child), "child");
    ANSWERS(EINVAL, shmctl(id, IPC_STAT, &status));
}

static void listings_of_segments(void) {
    int id = shmget(KEY, 2 * PAGE, IPC_CREAT | 0642);
    char *at = attach(id);
    at[0] = 1;
    char line[400], wanted[100];
    snprintf(wanted, sizeof wanted, "/SYSV%08x (deleted)\n", KEY);
    FILE *maps = fopen("/proc/self/maps", "r");
    bool found = false;
    while (fgets(line, sizeof line, maps)) {
        unsigned long start, end, inode;
        char rights[5];
        if (sscanf(line, "%lx-%lx %4s %*x %*x:%*x %lu", &start, &end, rights, &inode) != 4 || start != (uintptr_t)at) continue;
        found = end == start + 2 * PAGE && !strcmp(rights, "rw-s") && inode == (unsigned long)id;
        CHECK(found && strstr(line, wanted), "maps has %s", line);
    }
    fclose(maps);
    CHECK(found, "maps has no segment");
    FILE *list = fopen("/proc/sysvipc/shm", "r");
    CHECK(list && fgets(line, sizeof line, list) && strstr(line, "shmid perms"), "head");
    found = false;
    while (fgets(line, sizeof line, list)) {
        long key, number, mode, size, cpid, lpid, n, uid, gid, cuid, cgid, attached, detached, changed, resident, swapped;
        CHECK(sscanf(line, "%ld %ld %lo %ld %ld %ld %ld %ld %ld %ld %ld %ld %ld %ld %ld %ld", &key, &number, &mode, &size, &cpid, &lpid, &n,
                     &uid, &gid, &cuid, &cgid, &attached, &detached, &changed, &resident, &swapped) == 16, "line %s", line);
        if (number != id) continue;
        found = key == KEY && mode == 0642 && size == 2 * PAGE && cpid == getpid() && n == 1 && resident == PAGE && attached;
        CHECK(found && strlen(line) == 170, "%zu: %s", strlen(line), line);
    }
    fclose(list);
    CHECK(found, "no line");
    struct shm_info info;
    int highest = shmctl(0, SHM_INFO, (void *)&info);
    CHECK(highest >= 0 && info.used_ids >= 1 && info.shm_tot >= 2 && info.shm_rss >= 1, "SHM_INFO");
    struct shmid_ds status;
    found = false;
    for (int i = 0; i <= highest; i++) found |= shmctl(i, SHM_STAT, &status) == id && shmctl(i, SHM_STAT_ANY, &status) == id;
    CHECK(found, "SHM_STAT");
    struct shminfo limits;
    CHECK(shmctl(0, IPC_INFO, (void *)&limits) >= 0 && limits.shmmin == 1 && limits.shmmni == 4096, "IPC_INFO");
    CHECK(!shmctl(id, IPC_RMID, NULL), "IPC_RMID");
}

static void rights_to_objects(void) {
    int id = shmget(KEY, PAGE, IPC_CREAT | 0640), sem = semget(KEY, 1, IPC_CREAT | 0640), msg = msgget(KEY, IPC_CREAT | 0604);
    pid_t child = fork();
    if (!child) {
        become(1000);
        struct shmid_ds status;
        struct semid_ds array_status;
        struct msqid_ds queue_status;
        ANSWERS(EACCES, shmget(KEY, PAGE, 0400));
        ANSWERS(0, shmget(KEY, PAGE, 0));
        ANSWERS(EACCES, shmat(id, NULL, SHM_RDONLY) == (void *)-1 ? -1 : 0);
        ANSWERS(EACCES, shmctl(id, IPC_STAT, &status));
        ANSWERS(EPERM, shmctl(id, IPC_RMID, NULL));
        ANSWERS(EPERM, shmctl(id, SHM_LOCK, NULL));
        ANSWERS(EPERM, shmctl(id, IPC_SET, memset(&status, 0, sizeof status)));
        ANSWERS(EACCES, semget(KEY, 1, 0400));
        ANSWERS(EACCES, semop(sem, &(struct sembuf){0, 1, 0}, 1));
        ANSWERS(EACCES, semctl(sem, 0, GETVAL));
        ANSWERS(EACCES, semctl(sem, 0, IPC_STAT, (union argument){.status = &array_status}));
        ANSWERS(EPERM, semctl(sem, 0, IPC_RMID));
        ANSWERS(EACCES, msgget(KEY, 0200));
        ANSWERS(EACCES, msgsnd(msg, &(struct { long type; char c; }){1, 1}, 1, 0));
        ANSWERS(0, msgctl(msg, IPC_STAT, &queue_status));
        ANSWERS(ENOMSG, msgrcv(msg, &(struct { long type; char c; }){1, 1}, 1, 0, IPC_NOWAIT));
        ANSWERS(EPERM, msgctl(msg, IPC_RMID, NULL));
        // An own object, beyond the limit of queues.
        int own = queue();
        CHECK(!msgctl(own, IPC_STAT, &queue_status), "IPC_STAT");
        queue_status.msg_qbytes = 16385;
        ANSWERS(EPERM, msgctl(own, IPC_SET, &queue_status));
        CHECK(!msgctl(own, IPC_RMID, NULL), "IPC_RMID");
        _exit(0);
    }
    CHECK(!ended(child), "child");
    child = fork();
    if (!child) {
        CHECK(!setresgid(1000, 0, 1000) && !setresuid(1000, 1000, 1000), "ids");
        CHECK(shmat(id, NULL, SHM_RDONLY) != (void *)-1, "a group's right");
        ANSWERS(EACCES, shmat(id, NULL, 0) == (void *)-1 ? -1 : 0);
        _exit(0);
    }
    CHECK(!ended(child), "child");
    CHECK(!shmctl(id, IPC_RMID, NULL) && !semctl(sem, 0, IPC_RMID) && !msgctl(msg, IPC_RMID, NULL), "IPC_RMID");
}

static void locked_segments(void) {
    int id = segment(PAGE);
    CHECK(!shmctl(id, SHM_LOCK, NULL) && shm_status(id).shm_perm.mode == (0600 | SHM_LOCKED), "SHM_LOCK");
    CHECK(!shmctl(id, SHM_LOCK, NULL) && !shmctl(id, SHM_UNLOCK, NULL) && shm_status(id).shm_perm.mode == 0600, "SHM_UNLOCK");
    CHECK(!shmctl(id, IPC_RMID, NULL), "IPC_RMID");
    become(1000);
    id = segment(4 * PAGE);
    struct rlimit limit = {3 * PAGE, 3 * PAGE};
    setrlimit(RLIMIT_MEMLOCK, &limit);
    ANSWERS(ENOMEM, shmctl(id, SHM_LOCK, NULL));
    int small = segment(PAGE);
    ANSWERS(0, shmctl(small, SHM_LOCK, NULL));
    CHECK(!shmctl(id, IPC_RMID, NULL) && !shmctl(small, IPC_RMID, NULL), "IPC_RMID");
}

static void limits_have_effect(void) {
    write_setting("shmmax", "8192");
    ANSWERS(EINVAL, shmget(IPC_PRIVATE, 8193, 0600));
    int id = segment(8192);
    struct shm_info info;
    CHECK(shmctl(0, SHM_INFO, (void *)&info) >= 0, "SHM_INFO");
    char text[100];
    snprintf(text, sizeof text, "%lu", info.shm_tot + 1);
    write_setting("shmall", text);
    ANSWERS(ENOSPC, shmget(IPC_PRIVATE, 8192, 0600));
    int other = segment(4096);
    write_setting("shmmax", "18446744073692774399");
    write_setting("shmall", "18446744073692774399");
    snprintf(text, sizeof text, "%d", info.used_ids + 1);
    write_setting("shmmni", text);
    ANSWERS(ENOSPC, shmget(IPC_PRIVATE, 4096, 0600));
    write_setting("shmmni", "4096");
    CHECK(!shmctl(id, IPC_RMID, NULL) && !shmctl(other, IPC_RMID, NULL), "IPC_RMID");
    write_setting("sem", "3 1024000000 2 32000");
    ANSWERS(EINVAL, semget(IPC_PRIVATE, 4, 0600));
    id = array(3);
    ANSWERS(E2BIG, semop(id, (struct sembuf[3]){{0, 1, 0}, {1, 1, 0}, {2, 1, 0}}, 3));
    write_setting("sem", "32000\t1024000000\t500\t32000");
    CHECK(!semctl(id, 0, IPC_RMID), "IPC_RMID");
    write_setting("msgmax", "10");
    id = queue();
    ANSWERS(EINVAL, msgsnd(id, &(struct { long type; char text[11]; }){1, "0123456789"}, 11, 0));
    ANSWERS(0, msgsnd(id, &(struct { long type; char text[11]; }){1, "0123456789"}, 10, 0));
    write_setting("msgmax", "8192");
    CHECK(!msgctl(id, IPC_RMID, NULL), "IPC_RMID");
    FILE *file = fopen("/proc/sys/kernel/sem", "r");
    CHECK(file && fgets(text, sizeof text, file) && !strcmp(text, "32000\t1024000000\t500\t32000\n"), "sem is %s", text);
    fclose(file);
    // An id is not used again at once.
    id = segment(PAGE);
    CHECK(!shmctl(id, IPC_RMID, NULL), "IPC_RMID");
    other = segment(PAGE);
    CHECK(id != other && !shmctl(other, IPC_RMID, NULL), "the same id again");
}

static int value(int id, int number) { return semctl(id, number, GETVAL); }

static void operations_on_semaphores(void) {
    ANSWERS(EINVAL, semget(IPC_PRIVATE, 0, 0600));
    ANSWERS(EINVAL, semget(IPC_PRIVATE, -1, 0600));
    ANSWERS(EINVAL, semget(IPC_PRIVATE, 32001, 0600));
    int id = semget(KEY, 3, IPC_CREAT | 0600);
    CHECK(semget(KEY, 2, 0) == id, "fewer semaphores");
    ANSWERS(EINVAL, semget(KEY, 4, 0));
    struct semid_ds status;
    CHECK(!semctl(id, 0, IPC_STAT, (union argument){.status = &status}) && status.sem_nsems == 3 && !status.sem_otime && status.sem_ctime, "status");
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
    CHECK(semctl(0, 0, IPC_INFO, (union argument){.info = &info}) >= 0 && info.semmsl == 32000 && info.semopm == 500 && info.semvmx == 32767 && info.semaem == 32767 && info.semusz == 20, "IPC_INFO");
    CHECK(semctl(0, 0, SEM_INFO, (union argument){.info = &info}) >= 0 && info.semusz >= 1 && info.semaem >= 3, "SEM_INFO");
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

static pthread_t begin(void *(*run)(void *), void *of) {
    pthread_t thread;
    CHECK(!pthread_create(&thread, NULL, run, of), "thread");
    return thread;
}

static void until(int id, int number, int command, int count) {
    while (semctl(id, number, command) != count) usleep(1000);
}

static void sleepers_on_semaphores(void) {
    int id = array(3);
    struct wait more = {id, 1, {{0, -2, 0}}, -1}, zero = {id, 1, {{1, 0, 0}}, -1}, several = {id, 2, {{0, -1, 0}, {2, -1, 0}}, -1};
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
    CHECK(!pthread_join(one, NULL) && !pthread_join(other, NULL) && !value(id, 0) && !value(id, 1) && value(id, 2) == 1, "chain");
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

struct message {
    long type;
    char text[100];
};

static void send_message(int id, long type, const char *text) {
    struct message message = {.type = type};
    strcpy(message.text, text);
    CHECK(!msgsnd(id, &message, strlen(text), IPC_NOWAIT), "msgsnd");
}

static void receives(int id, long type, int flags, long got, const char *text) {
    struct message message = {0};
    ssize_t len = msgrcv(id, &message, sizeof message.text, type, flags | IPC_NOWAIT);
    CHECK(len == (ssize_t)strlen(text) && message.type == got && !memcmp(message.text, text, len), "got %zd %ld %s", len, message.type, message.text);
}

static void messages(void) {
    int id = msgget(KEY, IPC_CREAT | IPC_EXCL | 0600);
    CHECK(id >= 0 && msgget(KEY, 0) == id, "msgget");
    ANSWERS(EEXIST, msgget(KEY, IPC_CREAT | IPC_EXCL));
    struct message message = {.type = 1};
    ANSWERS(ENOMSG, msgrcv(id, &message, 10, 0, IPC_NOWAIT));
    message.type = 0;
    ANSWERS(EINVAL, msgsnd(id, &message, 10, 0));
    message.type = 1;
    ANSWERS(EINVAL, msgsnd(id, &message, 8193, 0));
    ANSWERS(EINVAL, msgsnd(id, &message, -1, 0));
    ANSWERS(EFAULT, msgsnd(id, NULL, 1, 0));
    ANSWERS(EINVAL, msgsnd(-1, &message, 1, 0));
    send_message(id, 5, "five"), send_message(id, 3, "three"), send_message(id, 4, "four"), send_message(id, 3, "again"), send_message(id, 9, "");
    struct msqid_ds status;
    CHECK(!msgctl(id, IPC_STAT, &status) && status.msg_qnum == 5 && status.__msg_cbytes == 18 && status.msg_qbytes == 16384, "status");
    CHECK(status.msg_lspid == getpid() && !status.msg_lrpid && status.msg_stime && !status.msg_rtime, "status");
    receives(id, 4, 0, 4, "four");
    receives(id, 5, MSG_EXCEPT, 3, "three");
    receives(id, -4, 0, 3, "again");
    ANSWERS(ENOMSG, msgrcv(id, &message, 10, -4, IPC_NOWAIT));
    ANSWERS(E2BIG, msgrcv(id, &message, 3, 5, IPC_NOWAIT));
    CHECK(msgrcv(id, &message, 3, 5, IPC_NOWAIT | MSG_NOERROR) == 3 && !memcmp(message.text, "fiv", 3), "MSG_NOERROR");
    receives(id, 0, 0, 9, "");
    CHECK(!msgctl(id, IPC_STAT, &status) && !status.msg_qnum && !status.__msg_cbytes && status.msg_lrpid == getpid() && status.msg_rtime, "status");
    // A copy leaves the message.
    send_message(id, 1, "first"), send_message(id, 2, "second");
    ANSWERS(EINVAL, msgrcv(id, &message, 10, 0, COPY));
    ANSWERS(EINVAL, msgrcv(id, &message, 10, 0, COPY | MSG_EXCEPT | IPC_NOWAIT));
    receives(id, 1, COPY, 2, "second");
    ANSWERS(ENOMSG, msgrcv(id, &message, 10, 2, COPY | IPC_NOWAIT));
    receives(id, 0, 0, 1, "first");
    struct msginfo info;
    CHECK(msgctl(0, IPC_INFO, (void *)&info) >= 0 && info.msgmax == 8192 && info.msgmnb == 16384 && info.msgmni == 32000 && info.msgssz == 16 && info.msgseg == 0xffff, "IPC_INFO");
    CHECK(msgctl(0, MSG_INFO, (void *)&info) >= 0 && info.msgpool >= 1 && info.msgmap >= 1 && info.msgtql >= 6, "MSG_INFO");
    char line[300];
    FILE *list = fopen("/proc/sysvipc/msg", "r");
    bool found = false;
    while (fgets(line, sizeof line, list)) {
        long key, number, mode, bytes, count;
        if (sscanf(line, "%ld %ld %lo %ld %ld", &key, &number, &mode, &bytes, &count) == 5 && number == id) found = key == KEY && mode == 0600 && bytes == 6 && count == 1;
    }
    fclose(list);
    CHECK(found, "no line");
    ANSWERS(0, msgctl(id, IPC_RMID, NULL));
    ANSWERS(EINVAL, msgsnd(id, &message, 1, 0));
}

struct receive {
    int id;
    long type;
    size_t most;
    int error;
    ssize_t len;
};

static void *receives_late(void *of) {
    struct receive *receive = of;
    struct message message;
    receive->len = msgrcv(receive->id, &message, receive->most, receive->type, 0);
    receive->error = receive->len < 0 ? errno : 0;
    return NULL;
}

static char large[8 + 8192] = {1};

static void *sends_late(void *of) {
    struct receive *send = of;
    send->error = msgsnd(send->id, large, send->most, 0) ? errno : 0;
    return NULL;
}

static void sleepers_at_queues(void) {
    int id = queue();
    struct receive two = {id, 2, 100, -1, 0}, small = {id, 1, 2, -1, 0}, any = {id, 0, 100, -1, 0};
    pthread_t threads[3] = {begin(receives_late, &two)};
    usleep(30000);
    threads[1] = begin(receives_late, &small);
    usleep(30000);
    threads[2] = begin(receives_late, &any);
    usleep(30000);
    // Too long for the first that wants it, which is told; the next gets it.
    send_message(id, 1, "long");
    CHECK(!pthread_join(threads[1], NULL) && small.error == E2BIG, "E2BIG: %d", small.error);
    CHECK(!pthread_join(threads[2], NULL) && !any.error && any.len == 4, "any: %d", any.error);
    send_message(id, 2, "x");
    CHECK(!pthread_join(threads[0], NULL) && !two.error && two.len == 1, "two: %d", two.error);
    // A full queue.
    struct msqid_ds status;
    ANSWERS(0, msgsnd(id, large, 8192, 0));
    ANSWERS(0, msgsnd(id, large, 8000, 0));
    ANSWERS(EAGAIN, msgsnd(id, large, 8192, IPC_NOWAIT));
    struct receive first = {id, 0, 8192, -1, 0};
    threads[0] = begin(sends_late, &first);
    usleep(30000);
    CHECK(first.error == -1 && msgrcv(id, large, 8192, 0, 0) == 8192, "it did not wait");
    CHECK(!pthread_join(threads[0], NULL) && !first.error, "send: %d", first.error);
    CHECK(!msgctl(id, IPC_STAT, &status) && status.msg_qnum == 2 && status.__msg_cbytes == 16192, "status");
    handle(SIGUSR1, SA_RESTART);
    pid_t child = sender(SIGUSR1);
    ANSWERS(EINTR, msgsnd(id, large, 8192, 0));
    ended(child);
    child = sender(SIGUSR1);
    ANSWERS(EINTR, msgrcv(id, large, 8192, 77, 0));
    ended(child);
    // A larger queue lets a sender go on.
    first.error = -1;
    threads[0] = begin(sends_late, &first);
    usleep(30000);
    status.msg_qbytes = 30000;
    write_setting("msgmnb", "30000");
    ANSWERS(0, msgctl(id, IPC_SET, &status));
    write_setting("msgmnb", "16384");
    CHECK(!pthread_join(threads[0], NULL) && !first.error, "send: %d", first.error);
    // The removal tells all.
    struct receive never = {id, 77, 100, -1, 0};
    first.error = -1;
    threads[0] = begin(sends_late, &first), threads[1] = begin(receives_late, &never);
    usleep(30000);
    ANSWERS(0, msgctl(id, IPC_RMID, NULL));
    CHECK(!pthread_join(threads[0], NULL) && !pthread_join(threads[1], NULL), "join");
    CHECK(first.error == EIDRM && never.error == EIDRM, "EIDRM: %d %d", first.error, never.error);
}

static void many_messages(void) {
    int id = queue();
    pid_t children[3];
    for (int i = 0; i < 3; i++) {
        children[i] = fork();
        if (children[i]) continue;
        for (int n = 0; n < 3000; n++) {
            struct { long type; int n; char rest[96]; } message = {i + 1, n, ""};
            CHECK(!msgsnd(id, &message, 4 + n % 97, 0), "msgsnd");
        }
        _exit(0);
    }
    int next[3] = {0};
    for (int n = 0; n < 9000; n++) {
        struct { long type; int n; char rest[96]; } message;
        ssize_t len = msgrcv(id, &message, 100, n % 2 ? 0 : -3, 0);
        CHECK(len >= 4 && message.type >= 1 && message.type <= 3, "msgrcv");
        CHECK(message.n == next[message.type - 1]++ && len == 4 + message.n % 97, "message %d of %ld", message.n, message.type);
    }
    for (int i = 0; i < 3; i++) CHECK(!ended(children[i]), "child");
    ANSWERS(0, msgctl(id, IPC_RMID, NULL));
}

static void memory_of_segments_is_shared(void) {
    int id = segment(MIB);
    atomic_int *words = attach(id);
    pid_t children[4];
    for (int i = 0; i < 4; i++) {
        children[i] = fork();
        if (children[i]) continue;
        if (i % 2) {
            CHECK(!shmdt(words), "shmdt");
            words = attach(id);
        }
        for (int n = 0; n < 20000; n++) words[n % (MIB / 4)]++;
        _exit(0);
    }
    for (int i = 0; i < 4; i++) CHECK(!ended(children[i]), "child");
    for (int n = 0; n < 20000; n++) CHECK(words[n] == 4, "word %d is %d", n, words[n]);
    CHECK(!shmctl(id, IPC_RMID, NULL) && attaches(id) == 1, "%ld attaches", attaches(id));
}

static void segments_are_removed_under_attaches(void) {
    for (int round = 0; round < 200; round++) {
        int id = segment(4 * PAGE);
        pid_t child = fork();
        if (!child) {
            for (int i = 0; i < 20; i++) {
                char *at = shmat(id, NULL, 0);
                if (at == (void *)-1) {
                    CHECK(errno == EINVAL || errno == EIDRM, "shmat");
                    _exit(0);
                }
                at[round % PAGE] = 1;
                CHECK(!shmdt(at), "shmdt");
            }
            _exit(0);
        }
        if (round % 2) usleep(random() % 300);
        ANSWERS(0, shmctl(id, IPC_RMID, NULL));
        CHECK(!ended(child), "child");
        ANSWERS(EINVAL, shmctl(id, IPC_RMID, NULL));
    }
}

static const struct check checks[] = {
    {"keys_and_flags_of_segments", keys_and_flags_of_segments},
    {"places_of_attaches", places_of_attaches},
    {"attaches_are_counted", attaches_are_counted},
    {"removed_segments_stay_while_mapped", removed_segments_stay_while_mapped},
    {"listings_of_segments", listings_of_segments},
    {"rights_to_objects", rights_to_objects},
    {"locked_segments", locked_segments},
    {"limits_have_effect", limits_have_effect},
    {"memory_of_segments_is_shared", memory_of_segments_is_shared},
    {"segments_are_removed_under_attaches", segments_are_removed_under_attaches},
    {"operations_on_semaphores", operations_on_semaphores},
    {"sleepers_on_semaphores", sleepers_on_semaphores},
    {"undos", undos},
    {"threads_race", threads_race},
    {"messages", messages},
    {"sleepers_at_queues", sleepers_at_queues},
    {"many_messages", many_messages},
};

int main(int argc, char **argv) {
    parse_options(argc, argv, NULL);
    run_checks(checks, sizeof checks / sizeof *checks);
    return 0;
}
