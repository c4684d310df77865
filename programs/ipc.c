// System V shared memory, and the rights and limits of all IPC objects: each check holds on Linux and on Quire.
#include "ipc.h"

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
static void become(uid_t user) { CHECK(!setresgid(user, user, user) && !setresuid(user, user, user), "ids"); }

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
    CHECK(status.shm_cpid == getpid() && !status.shm_lpid && !status.shm_nattch && !status.shm_atime &&
        status.shm_ctime, "status");
    status.shm_perm.mode = 0777 | 01000;
    status.shm_perm.uid = 7;
    CHECK(!shmctl(id, IPC_SET, &status), "IPC_SET");
    status = shm_status(id);
    CHECK(status.shm_perm.mode == 0777 && status.shm_perm.uid == 7 && status.shm_perm.cuid == getuid(),
        "IPC_SET changed %o", status.shm_perm.mode);
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
    CHECK(mmap(at, 4 * PAGE, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == at && !attaches(id),
        "mapped over");
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
        if (sscanf(line, "%lx-%lx %4s %*x %*x:%*x %lu", &start, &end, rights, &inode) != 4 || start != (uintptr_t)at)
            continue;
        found = end == start + 2 * PAGE && !strcmp(rights, "rw-s") && inode == (unsigned long)id;
        CHECK(found && strstr(line, wanted), "maps has %s", line);
    }
    fclose(maps);
    CHECK(found, "maps has no segment");
    FILE *list = fopen("/proc/sysvipc/shm", "r");
    CHECK(list && fgets(line, sizeof line, list) && strstr(line, "shmid perms"), "head");
    found = false;
    while (fgets(line, sizeof line, list)) {
        long key, number, mode, size, cpid, lpid, n, uid, gid, cuid, cgid, attached, detached, changed, resident,
            swapped;
        CHECK(sscanf(line, "%ld %ld %lo %ld %ld %ld %ld %ld %ld %ld %ld %ld %ld %ld %ld %ld", &key, &number, &mode,
            &size, &cpid, &lpid, &n,
                     &uid, &gid, &cuid, &cgid, &attached, &detached, &changed, &resident, &swapped) == 16, "line %s",
                         line);
        if (number != id) continue;
        found = key == KEY && mode == 0642 && size == 2 * PAGE && cpid == getpid() && n == 1 && resident == PAGE &&
            attached;
        CHECK(found && strlen(line) == 170, "%zu: %s", strlen(line), line);
    }
    fclose(list);
    CHECK(found, "no line");
    struct shm_info info;
    int highest = shmctl(0, SHM_INFO, (void *)&info);
    CHECK(highest >= 0 && info.used_ids >= 1 && info.shm_tot >= 2 && info.shm_rss >= 1, "SHM_INFO");
    struct shmid_ds status;
    found = false;
    for (int i = 0; i <= highest; i++)
        found |= shmctl(i, SHM_STAT, &status) == id && shmctl(i, SHM_STAT_ANY, &status) == id;
    CHECK(found, "SHM_STAT");
    struct shminfo limits;
    CHECK(shmctl(0, IPC_INFO, (void *)&limits) >= 0 && limits.shmmin == 1 && limits.shmmni == 4096, "IPC_INFO");
    CHECK(!shmctl(id, IPC_RMID, NULL), "IPC_RMID");
}

static void rights_to_objects(void) {
    int id = shmget(KEY, PAGE, IPC_CREAT | 0640), sem = semget(KEY, 1, IPC_CREAT | 0640),
        msg = msgget(KEY, IPC_CREAT | 0604);
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
    CHECK(!shmctl(id, SHM_LOCK, NULL) && !shmctl(id, SHM_UNLOCK, NULL) && shm_status(id).shm_perm.mode == 0600,
        "SHM_UNLOCK");
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
    CHECK(file && fgets(text, sizeof text, file) && !strcmp(text, "32000\t1024000000\t500\t32000\n"), "sem is %s",
        text);
    fclose(file);
    // An id is not used again at once.
    id = segment(PAGE);
    CHECK(!shmctl(id, IPC_RMID, NULL), "IPC_RMID");
    other = segment(PAGE);
    CHECK(id != other && !shmctl(other, IPC_RMID, NULL), "the same id again");
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
};

int main(int argc, char **argv) {
    parse_options(argc, argv, NULL);
    run_checks(checks, sizeof checks / sizeof *checks);
    return 0;
}
