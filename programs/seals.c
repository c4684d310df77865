// Seals of files in memory: each result is the same on Linux and on Quire.
#include "checks.h"
#include <pthread.h>
#include <sys/mman.h>
#include <sys/stat.h>

#define PAGE 4096ul
#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 16
#endif
#ifndef F_SEAL_EXEC
#define F_SEAL_EXEC 32
#endif
#define NOEXEC_SEAL 8u
#define MAY_EXEC 16u
#define READ_WRITE (PROT_READ | PROT_WRITE)

static char bytes[16 * PAGE];

static int file(unsigned flags, off_t len) {
    int fd = memfd_create("sealed", flags);
    CHECK(fd >= 0 && !ftruncate(fd, len), "memfd_create");
    return fd;
}

static void *map(int fd, int protection, int how) { return mmap(NULL, 2 * PAGE, protection, how, fd, 0); }

static int seals(int fd) { return fcntl(fd, F_GET_SEALS); }

static int seal(int fd, int which) { return fcntl(fd, F_ADD_SEALS, which); }

static unsigned mode(int fd) {
    struct stat s;
    CHECK(!fstat(fd, &s), "fstat");
    return s.st_mode & 07777;
}

// The same file, opened again.
static int again(int fd, int flags) {
    char path[64];
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    return open(path, flags);
}

static void only_some_files_can_be_sealed(void) {
    int plain = file(0, 0), kept = file(NOEXEC_SEAL, 0), open_to_all = file(MFD_ALLOW_SEALING | MAY_EXEC, 0), ends[2];
    CHECK(seals(plain) == F_SEAL_SEAL && mode(plain) == 0777, "a plain file: %d, %o", seals(plain), mode(plain));
    CHECK(seals(kept) == F_SEAL_EXEC && mode(kept) == 0666, "a file that never runs: %d, %o", seals(kept), mode(kept));
    CHECK(seals(open_to_all) == 0 && mode(open_to_all) == 0777, "a file that can be sealed");
    ANSWERS(EPERM, seal(plain, F_SEAL_WRITE));
    ANSWERS(EINVAL, seal(plain, 64));
    ANSWERS(EINVAL, memfd_create("both", NOEXEC_SEAL | MAY_EXEC));
    ANSWERS(EINVAL, memfd_create("unknown", 32));
    int reader = again(open_to_all, O_RDONLY);
    ANSWERS(EPERM, seal(reader, F_SEAL_GROW));
    ANSWERS(EPERM, seal(reader, 64));
    ANSWERS(EINVAL, seal(open_to_all, 64 | F_SEAL_SEAL));
    CHECK(!pipe(ends), "pipe");
    ANSWERS(EINVAL, seals(ends[0]));
    ANSWERS(EPERM, seal(ends[0], F_SEAL_SEAL));
    ANSWERS(EINVAL, seal(ends[1], F_SEAL_SEAL));
    int directory = open("/", O_RDONLY);
    ANSWERS(EINVAL, seals(directory));
    ANSWERS(EPERM, seal(directory, F_SEAL_SEAL));
    ANSWERS(EBADF, seals(open("/", O_PATH)));
    ANSWERS(0, seal(open_to_all, 0));
    ANSWERS(0, seal(open_to_all, F_SEAL_SEAL));
    ANSWERS(EPERM, seal(open_to_all, 0));
    ANSWERS(0, fcntl(reader, F_GET_SEALS) == F_SEAL_SEAL ? 0 : -1);
}

static void sizes(void) {
    int fd = file(MFD_ALLOW_SEALING, 10000);
    ANSWERS(0, seal(fd, F_SEAL_GROW));
    ANSWERS(EPERM, ftruncate(fd, 10001));
    ANSWERS(EPERM, fallocate(fd, 0, 0, 10001));
    ANSWERS(EPERM, fallocate(fd, FALLOC_FL_KEEP_SIZE, 0, 10001));
    ANSWERS(0, fallocate(fd, FALLOC_FL_KEEP_SIZE | FALLOC_FL_PUNCH_HOLE, 0, 20000));
    ANSWERS(0, fallocate(fd, 0, 0, 10000));
    // Whole pages up to the end are written; no byte of a page beyond it is.
    ANSWERS(EPERM, pwrite(fd, bytes, 2000, 9000));
    ANSWERS(EPERM, pwrite(fd, bytes, 1, 10000));
    // A limit on the size of files cuts the write first.
    struct rlimit old, limit;
    CHECK(!getrlimit(RLIMIT_FSIZE, &old), "getrlimit");
    limit = (struct rlimit){9500, old.rlim_max};
    CHECK(!setrlimit(RLIMIT_FSIZE, &limit), "setrlimit");
    ssize_t cut = pwrite(fd, bytes, 1001, 9000);
    CHECK(!setrlimit(RLIMIT_FSIZE, &old) && cut == 500, "a write up to the limit: %zd", cut);
    CHECK(pwrite(fd, bytes, sizeof bytes, 0) == 2 * PAGE && pwrite(fd, bytes, sizeof bytes, 100) == 2 * PAGE - 100,
        "pwrite");
    CHECK(pwrite(fd, bytes, 10000, 0) == 10000 && pwrite(fd, bytes, 0, 10000) == 0, "pwrite up to the end");
    ANSWERS(0, ftruncate(fd, 9000));
    ANSWERS(0, seal(fd, F_SEAL_SHRINK));
    ANSWERS(EPERM, ftruncate(fd, 8999));
    ANSWERS(EPERM, again(fd, O_RDWR | O_TRUNC));
    ANSWERS(0, ftruncate(fd, 9000));
    CHECK(lseek(fd, 0, SEEK_END) == 9000, "the size");
}

static void writes(void) {
    for (int which = F_SEAL_WRITE; which <= F_SEAL_FUTURE_WRITE; which *= 2) {
        int fd = file(MFD_ALLOW_SEALING, 2 * PAGE), other = file(0, PAGE);
        ANSWERS(0, seal(fd, which));
        ANSWERS(EPERM, write(fd, bytes, 1));
        ANSWERS(EPERM, pwrite(again(fd, O_RDWR), bytes, 1, 0));
        ANSWERS(0, pwrite(fd, bytes, 0, 0));
        ANSWERS(EPERM, copy_file_range(other, NULL, fd, NULL, 1, 0));
        ANSWERS(EPERM, fallocate(fd, FALLOC_FL_KEEP_SIZE | FALLOC_FL_PUNCH_HOLE, 0, PAGE));
        ANSWERS(0, fallocate(fd, 0, 0, 3 * PAGE));
        ANSWERS(EPERM, map(fd, READ_WRITE, MAP_SHARED) == MAP_FAILED ? -1 : 0);
        char *shared = map(fd, PROT_READ, MAP_SHARED), *private = map(fd, READ_WRITE, MAP_PRIVATE);
        CHECK(shared != MAP_FAILED && private != MAP_FAILED, "mmap");
        ANSWERS(EACCES, mprotect(shared, PAGE, READ_WRITE));
        *private = 1;
        CHECK(*shared == 0, "a private store is seen");
        // The size is independent of that.
        ANSWERS(0, ftruncate(fd, PAGE));
    }
}

static void mappings_that_store(void) {
    int fd = file(MFD_ALLOW_SEALING, 2 * PAGE);
    char *at = map(fd, READ_WRITE, MAP_SHARED);
    *at = 1;
    ANSWERS(0, madvise(at, PAGE, MADV_REMOVE));
    CHECK(*at == 0, "a page was not removed");
    ANSWERS(EBUSY, seal(fd, F_SEAL_WRITE));
    CHECK(seals(fd) == 0, "a refused seal is not kept");
    // A part of it, and a copy of that elsewhere.
    munmap(at, PAGE);
    ANSWERS(EBUSY, seal(fd, F_SEAL_WRITE));
    char *moved = mremap(at + PAGE, PAGE, 2 * PAGE, MREMAP_MAYMOVE);
    CHECK(moved != MAP_FAILED, "mremap");
    ANSWERS(EBUSY, seal(fd, F_SEAL_WRITE));
    mprotect(moved, PAGE, PROT_NONE);
    ANSWERS(EBUSY, seal(fd, F_SEAL_WRITE));
    // A mapping from before the seal can still store.
    ANSWERS(0, seal(fd, F_SEAL_FUTURE_WRITE));
    ANSWERS(0, mprotect(moved, 2 * PAGE, READ_WRITE));
    *moved = 7;
    // Other calls cannot change the file either.
    ANSWERS(EPERM, madvise(moved, PAGE, MADV_REMOVE));
    CHECK(*moved == 7, "a page was removed");
    ANSWERS(EBUSY, seal(fd, F_SEAL_WRITE));
    munmap(moved, 2 * PAGE);
    ANSWERS(0, seal(fd, F_SEAL_WRITE));
    ANSWERS(0, seal(fd, F_SEAL_WRITE));
    char *reader = map(fd, PROT_READ, MAP_SHARED);
    CHECK(reader[PAGE] == 7, "the stored value: %d", reader[PAGE]);
    // Read-only mappings do not count, unless their rights may be changed.
    int other = file(MFD_ALLOW_SEALING, 2 * PAGE);
    char *kept = map(other, PROT_READ, MAP_SHARED);
    ANSWERS(EBUSY, seal(other, F_SEAL_WRITE));
    munmap(kept, 2 * PAGE);
    CHECK(map(again(other, O_RDONLY), PROT_READ, MAP_SHARED) != MAP_FAILED, "mmap");
    CHECK(map(other, READ_WRITE, MAP_PRIVATE) != MAP_FAILED, "mmap");
    ANSWERS(0, seal(other, F_SEAL_WRITE));
}

static void a_childs_mappings(void) {
    int fd = file(MFD_ALLOW_SEALING, 2 * PAGE), go_on[2];
    CHECK(!pipe(go_on), "pipe");
    char *at = map(fd, READ_WRITE, MAP_SHARED);
    pid_t child = fork();
    if (!child) {
        char go;
        close(go_on[1]);
        _exit(read(go_on[0], &go, 1) != 0);
    }
    munmap(at, 2 * PAGE);
    ANSWERS(EBUSY, seal(fd, F_SEAL_WRITE));
    close(go_on[1]);
    CHECK(!ended(child), "child");
    ANSWERS(0, seal(fd, F_SEAL_WRITE));
}

static void execution(void) {
    int never = file(NOEXEC_SEAL, PAGE);
    ANSWERS(EPERM, fchmod(never, 0700));
    ANSWERS(EPERM, fchmod(never, 0667));
    ANSWERS(0, fchmod(never, 0600));
    ANSWERS(0, seal(never, F_SEAL_WRITE));
    CHECK(seals(never) == (F_SEAL_EXEC | F_SEAL_WRITE), "%d", seals(never));
    // A file that stays executable for ever keeps its mode.
    int always = file(MFD_ALLOW_SEALING, PAGE);
    char *at = map(always, READ_WRITE, MAP_SHARED);
    ANSWERS(EBUSY, seal(always, F_SEAL_EXEC));
    munmap(at, 2 * PAGE);
    ANSWERS(0, seal(always, F_SEAL_EXEC));
    CHECK(seals(always) == 62, "%d", seals(always));
    ANSWERS(EPERM, fchmod(always, 0666));
    ANSWERS(0, fchmod(always, 04777));
    ANSWERS(EPERM, write(always, bytes, 1));
    ANSWERS(EPERM, ftruncate(always, 0));
}

static struct {
    pthread_barrier_t both;
    int fd;
    char *mapped;
} race;

static void *mapper(void *nothing) {
    pthread_barrier_wait(&race.both);
    race.mapped = map(race.fd, READ_WRITE, MAP_SHARED);
    return nothing;
}

static void racers(void) {
    CHECK(!pthread_barrier_init(&race.both, NULL, 2), "barrier");
    for (int i = 0; i < 300; i++) {
        race.fd = file(MFD_ALLOW_SEALING, 2 * PAGE);
        pthread_t thread;
        CHECK(!pthread_create(&thread, NULL, mapper, NULL), "pthread_create");
        pthread_barrier_wait(&race.both);
        int sealed = !seal(race.fd, F_SEAL_WRITE);
        CHECK(sealed || errno == EBUSY, "errno %d", errno);
        pthread_join(thread, NULL);
        CHECK(sealed == (race.mapped == MAP_FAILED), "sealed: %d, mapped: %p", sealed, (void *)race.mapped);
        if (!sealed) munmap(race.mapped, 2 * PAGE);
        CHECK(sealed || !seal(race.fd, F_SEAL_WRITE), "a mapping that is gone counts");
        close(race.fd);
    }
}

static const struct check checks[] = {
    {"only_some_files_can_be_sealed", only_some_files_can_be_sealed}, {"sizes", sizes}, {"writes", writes},
        {"mappings_that_store", mappings_that_store},
    {"a_childs_mappings", a_childs_mappings}, {"execution", execution}, {"racers", racers},
};

int main(int argc, char **argv) {
    parse_options(argc, argv, NULL);
    run_checks(checks, sizeof checks / sizeof *checks);
    return 0;
}
