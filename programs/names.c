// Calls on names and attributes by the descriptor of a directory: their flags, their errors, and the order of their
// checks. All by their numbers, because a C library makes some of them of others. The same on Linux.
#include "checks.h"
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>

// Numbers that an older C library lacks.
#ifndef SYS_fchmodat2
#define SYS_fchmodat2 452
#endif

enum { NOFOLLOW = 0x100, REMOVEDIR = 0x200, FOLLOW = 0x400, NO_AUTOMOUNT = 0x800, EMPTY = 0x1000, FORCE_SYNC = 0x2000,
    DONT_SYNC = 0x4000, EACCESS = 0x200 };
enum { NOREPLACE = 1, EXCHANGE = 2, WHITEOUT = 4 };
enum { NOW = 0x3fffffff, OMIT = 0x3ffffffe };
#define BAD_ADDRESS ((void *)8)

// A new working directory, and its descriptor.
static int fresh_directory(void) {
    char path[] = "/tmp/quire-names-XXXXXX";
    CHECK(mkdtemp(path) && !chmod(path, 0777) && !chdir(path), "mkdtemp");
    umask(0);
    int dir = open(".", O_RDONLY | O_DIRECTORY);
    CHECK(dir >= 0, "open");
    return dir;
}

static int made(const char *name, int mode) {
    int fd = open(name, O_CREAT | O_EXCL | O_RDWR, mode);
    CHECK(fd >= 0, "open %s", name);
    return fd;
}

static struct stat of(const char *name) {
    struct stat s;
    CHECK(!lstat(name, &s), "lstat %s", name);
    return s;
}

static void as_user(void) { CHECK(!setgid(1000) && !setuid(1000), "setuid"); }

// Runs `body` as another user.
static void by_user(void (*body)(void)) {
    pid_t child = fork();
    CHECK(child >= 0, "fork");
    if (!child) {
        as_user();
        body();
        _exit(0);
    }
    CHECK(!ended(child), "the other user's checks");
}

static void no_way_in(void) {
    ANSWERS(EACCES, syscall(SYS_fchdir, open("closed", O_PATH)));
    ANSWERS(EACCES, chdir("closed"));
}

static void a_directory_becomes_the_working_one(void) {
    int dir = fresh_directory(), file = made("file", 0600);
    CHECK(!mkdir("in", 0700) && !mkdir("closed", 0700), "mkdir");
    int in = open("in", O_PATH);
    ANSWERS(0, syscall(SYS_fchdir, in));
    CHECK(close(made("new", 0600)) == 0 && !access("../in/new", F_OK), "fchdir");
    ANSWERS(0, syscall(SYS_fchdir, dir));
    CHECK(!access("in/new", F_OK), "back");
    ANSWERS(ENOTDIR, syscall(SYS_fchdir, file));
    ANSWERS(EBADF, syscall(SYS_fchdir, -1));
    ANSWERS(EBADF, syscall(SYS_fchdir, AT_FDCWD));
    by_user(no_way_in);
    // A removed directory can still be entered, and nothing can be made in it.
    CHECK(!unlink("in/new") && !rmdir("in"), "rmdir");
    ANSWERS(0, syscall(SYS_fchdir, in));
    ANSWERS(ENOENT, open("new", O_CREAT | O_RDWR, 0600));
    char path[100];
    ANSWERS(ENOENT, syscall(SYS_getcwd, path, sizeof path));
}

static void users_times(void) {
    struct timespec now[2] = {{0, NOW}, {0, NOW}}, part[2] = {{0, NOW}, {0, OMIT}}, none[2] = {{0, OMIT}, {0, OMIT}};
    // To "now" with the right to write, to any other time as the owner only.
    ANSWERS(0, syscall(SYS_utimensat, AT_FDCWD, "writable", NULL, 0));
    ANSWERS(0, syscall(SYS_utimensat, AT_FDCWD, "writable", now, 0));
    ANSWERS(EPERM, syscall(SYS_utimensat, AT_FDCWD, "writable", part, 0));
    ANSWERS(0, syscall(SYS_utimensat, AT_FDCWD, "writable", none, 0));
    ANSWERS(EACCES, syscall(SYS_utimensat, AT_FDCWD, "file", NULL, 0));
    ANSWERS(EACCES, syscall(SYS_utime, "file", NULL));
    long both[2] = {1, 2};
    ANSWERS(EPERM, syscall(SYS_utime, "writable", both));
    ANSWERS(0, syscall(SYS_utime, "writable", NULL));
}

static void times_by_all_calls(void) {
    int dir = fresh_directory(), file = made("file", 0644), path = open("file", O_PATH);
    CHECK(close(made("writable", 0666)) == 0 && !symlink("file", "link"), "open");
    long seconds[2] = {1000, -2000};
    ANSWERS(0, syscall(SYS_utime, "file", seconds));
    CHECK(of("file").st_atim.tv_sec == 1000 && of("file").st_mtim.tv_sec == -2000, "utime");
    ANSWERS(EFAULT, syscall(SYS_utime, "file", BAD_ADDRESS));
    ANSWERS(EFAULT, syscall(SYS_utime, NULL, seconds));
    ANSWERS(ENOENT, syscall(SYS_utime, "none", seconds));
    long micros[4] = {3, 999999, 4, 5};
    ANSWERS(0, syscall(SYS_futimesat, dir, "file", micros));
    CHECK(of("file").st_atim.tv_nsec == 999999000 && of("file").st_mtim.tv_nsec == 5000, "futimesat");
    ANSWERS(0, syscall(SYS_futimesat, file, NULL, NULL));
    CHECK(of("file").st_mtim.tv_sec > 1000, "now");
    ANSWERS(EFAULT, syscall(SYS_futimesat, AT_FDCWD, NULL, micros));
    ANSWERS(EFAULT, syscall(SYS_utimes, NULL, micros));
    ANSWERS(EBADF, syscall(SYS_futimesat, 999, NULL, micros));
    micros[1] = 1000000;
    ANSWERS(EINVAL, syscall(SYS_futimesat, dir, "none", micros));
    micros[1] = -1;
    ANSWERS(EINVAL, syscall(SYS_utimes, "file", micros));
    struct timespec at[2] = {{7, 123456789}, {8, 987654321}};
    ANSWERS(0, syscall(SYS_utimensat, dir, "link", at, 0));
    CHECK(of("file").st_mtim.tv_nsec == 987654321 && of("link").st_mtim.tv_sec != 8, "through the link");
    ANSWERS(0, syscall(SYS_utimensat, dir, "link", at, NOFOLLOW));
    CHECK(of("link").st_mtim.tv_nsec == 987654321 && of("link").st_atim.tv_sec == 7, "the link itself");
    struct timespec keep[2] = {{55, OMIT}, {66, 1}};
    ANSWERS(0, syscall(SYS_utimensat, file, NULL, keep, 0));
    CHECK(of("file").st_atim.tv_sec == 7 && of("file").st_mtim.tv_sec == 66, "one of the two");
    ANSWERS(0, syscall(SYS_utimensat, path, "", at, EMPTY));
    CHECK(of("file").st_mtim.tv_sec == 8, "by an empty path");
    ANSWERS(EBADF, syscall(SYS_utimensat, path, NULL, at, 0));
    ANSWERS(EINVAL, syscall(SYS_utimensat, file, NULL, at, NOFOLLOW));
    ANSWERS(EFAULT, syscall(SYS_utimensat, AT_FDCWD, NULL, at, 0));
    ANSWERS(ENOENT, syscall(SYS_utimensat, file, "", at, 0));
    ANSWERS(EINVAL, syscall(SYS_utimensat, dir, "file", at, REMOVEDIR));
    ANSWERS(EFAULT, syscall(SYS_utimensat, dir, "file", BAD_ADDRESS, 0));
    struct timespec bad[2] = {{0, 1000000000}, {0, 0}}, none[2] = {{0, OMIT}, {0, OMIT}};
    ANSWERS(EINVAL, syscall(SYS_utimensat, dir, "file", bad, 0));
    ANSWERS(ENOENT, syscall(SYS_utimensat, dir, "none", bad, 0));
    // With nothing to change, nothing is looked at.
    ANSWERS(0, syscall(SYS_utimensat, dir, "none", none, 0));
    ANSWERS(0, syscall(SYS_utimensat, -1, BAD_ADDRESS, none, -1));
    by_user(users_times);
}

static void users_nodes(void) {
    ANSWERS(EPERM, syscall(SYS_mknodat, AT_FDCWD, "device", S_IFCHR | 0600, makedev(1, 3)));
    ANSWERS(EPERM, syscall(SYS_mknodat, AT_FDCWD, "device", S_IFBLK | 0600, 0));
    // A white-out is a name without a device.
    ANSWERS(0, syscall(SYS_mknodat, AT_FDCWD, "out", S_IFCHR | 0600, 0));
    ANSWERS(ENXIO, open("out", O_RDONLY));
    ANSWERS(0, syscall(SYS_mknodat, AT_FDCWD, "users", S_IFIFO | 0600, 0));
}

static void nodes_of_all_kinds(void) {
    int dir = fresh_directory();
    unsigned kinds[] = {S_IFREG, S_IFIFO, S_IFSOCK, S_IFCHR, S_IFBLK};
    const char *names[] = {"file", "fifo", "socket", "char", "block"};
    umask(022);
    for (int i = 0; i < 5; i++) {
        ANSWERS(0, syscall(SYS_mknodat, dir, names[i], kinds[i] | 0666, makedev(1, 0x103)));
        CHECK(of(names[i]).st_mode == (kinds[i] | 0644), "%s: %#o", names[i], of(names[i]).st_mode);
        CHECK(of(names[i]).st_rdev == (i < 3 ? 0 : makedev(1, 0x103)), "%s: %#lx", names[i],
            (long)of(names[i]).st_rdev);
    }
    ANSWERS(0, syscall(SYS_mknodat, dir, "plain", 0600, 0));
    CHECK(S_ISREG(of("plain").st_mode), "no kind is a file");
    ANSWERS(ENXIO, open("socket", O_RDONLY));
    ANSWERS(EEXIST, syscall(SYS_mknodat, dir, "file", S_IFREG | 0600, 0));
    ANSWERS(EPERM, syscall(SYS_mknodat, dir, "new", S_IFDIR | 0700, 0));
    ANSWERS(EINVAL, syscall(SYS_mknodat, dir, "new", S_IFLNK | 0700, 0));
    ANSWERS(EINVAL, syscall(SYS_mknodat, -1, BAD_ADDRESS, S_IFMT, 0));
    ANSWERS(EBADF, syscall(SYS_mknodat, -1, "new", S_IFREG, 0));
    ANSWERS(ENOTDIR, syscall(SYS_mknodat, open("file", O_RDONLY), "new", S_IFREG, 0));
    ANSWERS(EFAULT, syscall(SYS_mknodat, dir, BAD_ADDRESS, S_IFREG, 0));
    ANSWERS(ENOENT, syscall(SYS_mknodat, dir, "", S_IFREG, 0));
    ANSWERS(ENOENT, syscall(SYS_mknodat, dir, "new/", S_IFREG, 0));
    by_user(users_nodes);
    CHECK(of("users").st_uid == 1000 && of("out").st_rdev == 0, "owner");
}

static void users_owners(void) {
    ANSWERS(EPERM, syscall(SYS_fchownat, AT_FDCWD, "own", 1001, -1, 0));
    ANSWERS(EPERM, syscall(SYS_fchownat, AT_FDCWD, "own", -1, 1001, 0));
    ANSWERS(0, syscall(SYS_fchownat, AT_FDCWD, "own", 1000, 1000, 0));
    ANSWERS(EPERM, syscall(SYS_fchownat, AT_FDCWD, "file", 1000, -1, 0));
    ANSWERS(EPERM, syscall(SYS_fchmodat, AT_FDCWD, "file", 0777));
}

static void owners_and_modes(void) {
    int dir = fresh_directory(), path = (close(made("file", 06755)), open("file", O_PATH));
    CHECK(!symlink("file", "link") && close(made("own", 0600)) == 0, "symlink");
    ANSWERS(0, syscall(SYS_fchownat, dir, "link", 5, 6, NOFOLLOW));
    CHECK(of("link").st_uid == 5 && of("link").st_gid == 6 && of("file").st_uid == 0, "the link itself");
    ANSWERS(0, syscall(SYS_fchownat, dir, "link", 7, -1, 0));
    CHECK(of("file").st_uid == 7 && of("file").st_gid == 0, "the file");
    CHECK(of("file").st_mode == (S_IFREG | 0755), "set-id bits go: %#o", of("file").st_mode);
    ANSWERS(0, syscall(SYS_fchownat, path, "", -1, 8, EMPTY));
    CHECK(of("file").st_uid == 7 && of("file").st_gid == 8, "by an empty path");
    ANSWERS(ENOENT, syscall(SYS_fchownat, path, "", 0, 0, 0));
    ANSWERS(EINVAL, syscall(SYS_fchownat, dir, "file", 0, 0, FOLLOW));
    ANSWERS(EBADF, syscall(SYS_fchownat, 999, "file", 0, 0, 0));
    ANSWERS(0, syscall(SYS_fchownat, dir, "own", 1000, 1000, 0));
    ANSWERS(0, syscall(SYS_fchmodat, dir, "link", 04711));
    CHECK(of("file").st_mode == (S_IFREG | 04711) && of("link").st_mode == (S_IFLNK | 0777), "%#o", of("file").st_mode);
    ANSWERS(0, syscall(SYS_fchmodat2, path, "", 0640, EMPTY));
    ANSWERS(0, syscall(SYS_fchmodat2, dir, "file", S_IFDIR | 0600, NOFOLLOW));
    CHECK(of("file").st_mode == (S_IFREG | 0600), "only the bits of a mode: %#o", of("file").st_mode);
    ANSWERS(EOPNOTSUPP, syscall(SYS_fchmodat2, dir, "link", 0600, NOFOLLOW));
    ANSWERS(EINVAL, syscall(SYS_fchmodat2, dir, "file", 0600, EACCESS));
    ANSWERS(ENOENT, syscall(SYS_fchmodat, path, "", 0600));
    ANSWERS(EBADF, syscall(SYS_fchmod, path, 0600));
    ANSWERS(EFAULT, syscall(SYS_fchmodat, dir, BAD_ADDRESS, 0600));
    by_user(users_owners);
}

static void status_by_flags(void) {
    int dir = fresh_directory(), file = made("file", 0640), path;
    CHECK(write(file, "hello", 5) == 5 && !symlink("file", "link"), "write");
    path = open("link", O_PATH | O_NOFOLLOW);
    struct stat s;
    ANSWERS(0, syscall(SYS_newfstatat, dir, "link", &s, 0));
    CHECK(S_ISREG(s.st_mode) && s.st_size == 5 && s.st_nlink == 1, "the file");
    ANSWERS(0, syscall(SYS_newfstatat, dir, "link", &s, NOFOLLOW | NO_AUTOMOUNT));
    CHECK(S_ISLNK(s.st_mode) && s.st_size == 4, "the link");
    ANSWERS(0, syscall(SYS_newfstatat, path, "", &s, EMPTY));
    CHECK(S_ISLNK(s.st_mode), "the link by its descriptor");
    ANSWERS(0, syscall(SYS_newfstatat, file, NULL, &s, EMPTY));
    CHECK(S_ISREG(s.st_mode), "no path is an empty one");
    ANSWERS(0, syscall(SYS_newfstatat, AT_FDCWD, "", &s, EMPTY));
    CHECK(S_ISDIR(s.st_mode), "the working directory");
    ANSWERS(0, syscall(SYS_newfstatat, dir, "file", &s, FORCE_SYNC));
    ANSWERS(0, syscall(SYS_newfstatat, dir, "file", &s, DONT_SYNC));
    ANSWERS(EINVAL, syscall(SYS_newfstatat, dir, "file", &s, REMOVEDIR));
    ANSWERS(EFAULT, syscall(SYS_newfstatat, dir, NULL, &s, 0));
    ANSWERS(EFAULT, syscall(SYS_newfstatat, dir, "file", BAD_ADDRESS, 0));
    ANSWERS(ENOENT, syscall(SYS_newfstatat, dir, "", &s, 0));
    ANSWERS(ENOTDIR, syscall(SYS_newfstatat, file, "x", &s, 0));
    ANSWERS(EBADF, syscall(SYS_newfstatat, -1, "", &s, EMPTY));
    ANSWERS(ENOTDIR, syscall(SYS_newfstatat, dir, "file/", &s, 0));
}

// The parts of `struct statx` that are looked at.
struct status {
    unsigned mask, block_size;
    unsigned long long attributes;
    unsigned links, uid, gid;
    unsigned short mode, spare;
    unsigned long long inode, size, blocks, attributes_mask;
    struct { long long seconds; unsigned nanos; int reserved; } accessed, born, changed, modified;
    unsigned special_major, special_minor, major, minor;
    unsigned long long rest[14];
};

static void extended_status(void) {
    int dir = fresh_directory(), file = made("file", 0640);
    CHECK(write(file, "hello", 5) == 5 && !symlink("file", "link") && !fchown(file, 3, 4), "write");
    struct status s;
    struct stat old = of("file");
    _Static_assert(sizeof s == 256, "the size of struct statx");
    memset(&s, 0xff, sizeof s);
    ANSWERS(0, syscall(SYS_statx, dir, "link", 0, 0x7ff, &s));
    CHECK((s.mask & 0x7ff) == 0x7ff && s.links == 1 && s.uid == 3 && s.gid == 4 && s.size == 5, "mask %#x", s.mask);
    CHECK(s.mode == (S_IFREG | 0640) && s.inode == old.st_ino && makedev(s.major, s.minor) == old.st_dev, "mode %#o",
        s.mode);
    CHECK(s.modified.seconds == old.st_mtim.tv_sec && s.modified.nanos == old.st_mtim.tv_nsec && !s.modified.reserved,
        "times");
    CHECK(s.blocks == (unsigned long long)old.st_blocks && s.block_size == old.st_blksize && !s.spare, "blocks");
    ANSWERS(0, syscall(SYS_statx, dir, "link", NOFOLLOW, 0, &s));
    CHECK(S_ISLNK(s.mode) && s.size == 4, "the link itself");
    CHECK(!utimensat(dir, "file", (struct timespec[]){{1, 0}, {1, 0}}, 0), "utimensat");
    ANSWERS(0, syscall(SYS_statx, file, "", EMPTY | DONT_SYNC, 0x840, &s));
    CHECK(s.modified.seconds == 1 && (!(s.mask & 0x800) || s.born.seconds > 1),
        "the time of birth stays: %#x %lld %lld", s.mask, s.born.seconds, s.modified.seconds);
    ANSWERS(0, syscall(SYS_statx, file, NULL, EMPTY, 0x7ff, &s));
    ANSWERS(0, syscall(SYS_statx, AT_FDCWD, "/dev/null", FORCE_SYNC | NO_AUTOMOUNT, 0x7ff, &s));
    CHECK(S_ISCHR(s.mode) && s.special_major == 1 && s.special_minor == 3, "%u:%u", s.special_major, s.special_minor);
    ANSWERS(EINVAL, syscall(SYS_statx, dir, "file", FORCE_SYNC | DONT_SYNC, 0x7ff, &s));
    ANSWERS(EINVAL, syscall(SYS_statx, dir, "file", FOLLOW, 0x7ff, &s));
    ANSWERS(EINVAL, syscall(SYS_statx, dir, "file", 0, 0x80000000u, &s));
    ANSWERS(EFAULT, syscall(SYS_statx, dir, NULL, 0, 0x7ff, &s));
    ANSWERS(EFAULT, syscall(SYS_statx, dir, "file", 0, 0x7ff, BAD_ADDRESS));
    ANSWERS(ENOENT, syscall(SYS_statx, dir, "none", 0, 0x7ff, &s));
    ANSWERS(EBADF, syscall(SYS_statx, 999, "", EMPTY, 0x7ff, &s));
}

static void names_are_removed(void) {
    int dir = fresh_directory();
    CHECK(!mkdir("in", 0700) && !mkdir("in/deep", 0700) && close(made("file", 0600)) == 0 && !symlink("in", "link"),
        "mkdir");
    ANSWERS(EISDIR, syscall(SYS_unlinkat, dir, "in", 0));
    ANSWERS(ENOTDIR, syscall(SYS_unlinkat, dir, "file", REMOVEDIR));
    ANSWERS(ENOTDIR, syscall(SYS_unlinkat, dir, "link", REMOVEDIR));
    ANSWERS(ENOTDIR, syscall(SYS_unlinkat, dir, "file/", 0));
    ANSWERS(ENOTEMPTY, syscall(SYS_unlinkat, dir, "in", REMOVEDIR));
    ANSWERS(EINVAL, syscall(SYS_unlinkat, dir, "in/.", REMOVEDIR));
    ANSWERS(ENOTEMPTY, syscall(SYS_unlinkat, dir, "in/..", REMOVEDIR));
    ANSWERS(EBUSY, syscall(SYS_unlinkat, dir, "/", REMOVEDIR));
    ANSWERS(EISDIR, syscall(SYS_unlinkat, dir, ".", 0));
    ANSWERS(EINVAL, syscall(SYS_unlinkat, dir, "file", EMPTY));
    ANSWERS(ENOENT, syscall(SYS_unlinkat, dir, "", 0));
    ANSWERS(ENOENT, syscall(SYS_unlinkat, dir, "none", REMOVEDIR));
    ANSWERS(EBADF, syscall(SYS_unlinkat, 999, "file", 0));
    ANSWERS(0, syscall(SYS_unlinkat, open("in", O_PATH), "deep", REMOVEDIR));
    ANSWERS(0, syscall(SYS_unlinkat, dir, "in/", REMOVEDIR));
    ANSWERS(0, syscall(SYS_unlinkat, dir, "link", 0));
    ANSWERS(0, syscall(SYS_unlinkat, dir, "file", 0));
}

static void names_are_moved(void) {
    int dir = fresh_directory(), in;
    CHECK(!mkdir("in", 0700) && !mkdir("in/deep", 0700) && !mkdir("empty", 0700), "mkdir");
    CHECK(close(made("a", 0600)) == 0 && close(made("in/b", 0600)) == 0, "open");
    in = open("in", O_PATH);
    ino_t a = of("a").st_ino, b = of("in/b").st_ino;
    ANSWERS(EEXIST, syscall(SYS_renameat2, dir, "a", in, "b", NOREPLACE));
    ANSWERS(0, syscall(SYS_renameat2, dir, "a", in, "b", EXCHANGE));
    CHECK(of("a").st_ino == b && of("in/b").st_ino == a, "exchanged");
    ANSWERS(0, syscall(SYS_renameat2, dir, "a", in, "deep", EXCHANGE));
    CHECK(S_ISDIR(of("a").st_mode) && S_ISREG(of("in/deep").st_mode), "a file and a directory");
    CHECK(of("in").st_nlink == 2 && of(".").st_nlink == 5, "links %ld %ld", (long)of("in").st_nlink,
        (long)of(".").st_nlink);
    ANSWERS(0, syscall(SYS_renameat2, dir, "a", in, "new", NOREPLACE));
    ANSWERS(ENOENT, syscall(SYS_renameat2, dir, "in", dir, "none", EXCHANGE));
    ANSWERS(EINVAL, syscall(SYS_renameat2, dir, "in", in, "new/below", 0));
    ANSWERS(EINVAL, syscall(SYS_renameat2, dir, "in", in, "new", EXCHANGE));
    ANSWERS(ENOTEMPTY, syscall(SYS_renameat2, in, "new", dir, "in", 0));
    ANSWERS(EINVAL, syscall(SYS_renameat2, dir, "a", dir, "c", NOREPLACE | EXCHANGE));
    ANSWERS(EINVAL, syscall(SYS_renameat2, dir, "a", dir, "c", EXCHANGE | WHITEOUT));
    ANSWERS(EINVAL, syscall(SYS_renameat2, dir, "a", dir, "c", 8));
    ANSWERS(EISDIR, syscall(SYS_renameat, in, "b", dir, "empty"));
    ANSWERS(ENOTDIR, syscall(SYS_renameat, dir, "empty", in, "b"));
    ANSWERS(ENOENT, syscall(SYS_renameat, dir, "none", in, "b"));
    ANSWERS(EBADF, syscall(SYS_renameat, 999, "a", in, "b"));
    ANSWERS(EBUSY, syscall(SYS_renameat, dir, ".", dir, "c"));
    ANSWERS(EEXIST, syscall(SYS_renameat2, dir, "in", dir, ".", NOREPLACE));
    ANSWERS(0, syscall(SYS_renameat, in, "b", dir, "c"));
    CHECK(of("c").st_ino == a, "moved");
    ANSWERS(0, syscall(SYS_renameat, in, "new", dir, "empty"));
    // Two names of one file stay.
    CHECK(!link("c", "d"), "link");
    ANSWERS(0, syscall(SYS_renameat, dir, "c", dir, "d"));
    CHECK(of("c").st_nlink == 2 && of("d").st_ino == a, "both names");
}

static void links_are_made_and_read(void) {
    int dir = fresh_directory(), path;
    char text[16] = {0};
    ANSWERS(0, syscall(SYS_symlinkat, "some/target", dir, "link"));
    ANSWERS(EEXIST, syscall(SYS_symlinkat, "x", dir, "link"));
    ANSWERS(ENOENT, syscall(SYS_symlinkat, "", dir, "new"));
    ANSWERS(ENOENT, syscall(SYS_symlinkat, "x", dir, ""));
    ANSWERS(ENOENT, syscall(SYS_symlinkat, "x", dir, "new/"));
    ANSWERS(EBADF, syscall(SYS_symlinkat, "x", -1, "new"));
    ANSWERS(EFAULT, syscall(SYS_symlinkat, BAD_ADDRESS, dir, "new"));
    char longer[4097];
    memset(longer, 'x', 4096), longer[4096] = 0;
    ANSWERS(ENAMETOOLONG, syscall(SYS_symlinkat, longer, dir, "new"));
    CHECK(syscall(SYS_readlinkat, dir, "link", text, 16) == 11 && !strcmp(text, "some/target"), "%s", text);
    memset(text, 0, 16);
    CHECK(syscall(SYS_readlinkat, dir, "link", text, 4) == 4 && !strcmp(text, "some"), "cut: %s", text);
    path = open("link", O_PATH | O_NOFOLLOW);
    CHECK(syscall(SYS_readlinkat, path, "", text, 16) == 11, "by its descriptor");
    ANSWERS(EINVAL, syscall(SYS_readlinkat, dir, "link", text, 0));
    ANSWERS(EINVAL, syscall(SYS_readlinkat, -1, BAD_ADDRESS, text, -1));
    ANSWERS(EINVAL, syscall(SYS_readlinkat, dir, ".", text, 16));
    ANSWERS(ENOENT, syscall(SYS_readlinkat, dir, "", text, 16));
    ANSWERS(EFAULT, syscall(SYS_readlinkat, dir, "link", BAD_ADDRESS, 16));
    ANSWERS(ENOENT, syscall(SYS_readlinkat, dir, "link/", text, 16));
}

static void users_access(void) {
    ANSWERS(EACCES, syscall(SYS_faccessat, AT_FDCWD, "file", R_OK));
    ANSWERS(EACCES, syscall(SYS_faccessat2, AT_FDCWD, "file", R_OK, EACCESS));
    ANSWERS(0, syscall(SYS_faccessat2, AT_FDCWD, "file", F_OK, 0));
}

static void access_by_real_and_effective_ids(void) {
    int dir = fresh_directory(), path = (close(made("file", 0600)), open("file", O_PATH));
    CHECK(!symlink("none", "link"), "symlink");
    ANSWERS(0, syscall(SYS_faccessat2, dir, "file", R_OK | W_OK, 0));
    ANSWERS(EACCES, syscall(SYS_faccessat2, dir, "file", X_OK, 0));
    ANSWERS(0, syscall(SYS_faccessat2, path, "", R_OK, EMPTY));
    ANSWERS(0, syscall(SYS_faccessat2, dir, "link", F_OK, NOFOLLOW));
    ANSWERS(ENOENT, syscall(SYS_faccessat2, dir, "link", F_OK, 0));
    ANSWERS(EINVAL, syscall(SYS_faccessat2, dir, "file", 8, 0));
    ANSWERS(EINVAL, syscall(SYS_faccessat2, dir, "file", R_OK, FOLLOW));
    ANSWERS(ENOENT, syscall(SYS_faccessat2, path, "", R_OK, 0));
    ANSWERS(EBADF, syscall(SYS_faccessat2, 999, "file", R_OK, 0));
    by_user(users_access);
    CHECK(!seteuid(1000), "seteuid");
    ANSWERS(0, syscall(SYS_faccessat2, dir, "file", R_OK, 0));
    ANSWERS(EACCES, syscall(SYS_faccessat2, dir, "file", R_OK, EACCESS));
}

struct how {
    unsigned long long flags, mode, resolve;
};

static void opening_with_rules(void) {
    int dir = fresh_directory();
    CHECK(close(made("file", 0600)) == 0 && !symlink("file", "link") && !symlink("..", "up"), "open");
    struct how create = {O_CREAT | O_RDWR, 0600, 0x20}, directory = {O_CREAT | O_DIRECTORY, 0600, 0}, plain = {0, 0, 0};
    ANSWERS(EAGAIN, syscall(SYS_openat2, dir, "new", &create, sizeof create));
    create.resolve = 8;
    ANSWERS(EXDEV, syscall(SYS_openat2, dir, "up/new", &create, sizeof create));
    ANSWERS(0, syscall(SYS_openat2, dir, "new", &create, sizeof create));
    ANSWERS(EINVAL, syscall(SYS_openat2, dir, "other", &directory, sizeof directory));
    plain.resolve = 4;
    ANSWERS(ELOOP, syscall(SYS_openat2, dir, "link", &plain, sizeof plain));
    plain.resolve = 1;
    ANSWERS(EXDEV, syscall(SYS_openat2, open("/", O_PATH), "proc/version", &plain, sizeof plain));
    plain.resolve = 16;
    int fd = syscall(SYS_openat2, dir, "up/up/../file", &plain, sizeof plain);
    CHECK(fd >= 0 && !(fcntl(fd, F_GETFD) & FD_CLOEXEC), "as in a root");
    plain = (struct how){O_CLOEXEC | O_PATH, 0, 8};
    fd = syscall(SYS_openat2, dir, "file", &plain, sizeof plain);
    CHECK(fd >= 0 && fcntl(fd, F_GETFD) & FD_CLOEXEC, "closed on exec");
    ANSWERS(EBADF, syscall(SYS_openat2, 999, "file", &plain, sizeof plain));
    ANSWERS(EINVAL, syscall(SYS_openat2, dir, "file", &plain, 0));
}

static void handles_of_files(void) {
    int proc = open("/proc", O_RDONLY | O_DIRECTORY), number;
    struct { unsigned bytes; int kind; char of[128]; } handle = {128, 1, {0}};
    // This file system gives none.
    ANSWERS(EOPNOTSUPP, syscall(SYS_name_to_handle_at, proc, "version", &handle, &number, 0));
    ANSWERS(EINVAL, syscall(SYS_name_to_handle_at, proc, "version", &handle, &number, NOFOLLOW));
    ANSWERS(ENOENT, syscall(SYS_name_to_handle_at, proc, "none", &handle, &number, 0));
    ANSWERS(ENOENT, syscall(SYS_name_to_handle_at, proc, "", &handle, &number, 0));
    ANSWERS(EOPNOTSUPP, syscall(SYS_name_to_handle_at, proc, "", &handle, &number, EMPTY));
    ANSWERS(EBADF, syscall(SYS_name_to_handle_at, 999, "version", &handle, &number, FOLLOW));
    handle.bytes = 8;
    ANSWERS(ESTALE, syscall(SYS_open_by_handle_at, proc, &handle, O_RDONLY));
    handle.bytes = 0;
    ANSWERS(EINVAL, syscall(SYS_open_by_handle_at, proc, &handle, O_RDONLY));
    handle.bytes = 129;
    ANSWERS(EINVAL, syscall(SYS_open_by_handle_at, proc, &handle, O_RDONLY));
    ANSWERS(EFAULT, syscall(SYS_open_by_handle_at, proc, BAD_ADDRESS, O_RDONLY));
    handle.bytes = 8;
    ANSWERS(EBADF, syscall(SYS_open_by_handle_at, 999, &handle, O_RDONLY));
    as_user();
    ANSWERS(EPERM, syscall(SYS_open_by_handle_at, open("/sys", O_RDONLY), &handle, O_RDONLY));
}

static void other_users_names(void) {
    // A missing name is reported before a missing right.
    ANSWERS(ENOENT, unlink("closed/none"));
    ANSWERS(ENOENT, rmdir("closed/none"));
    ANSWERS(ENOENT, rename("closed/none", "from/new"));
    ANSWERS(ENOENT, unlink("/proc/none"));
    ANSWERS(ENOENT, rmdir("/proc/none"));
    ANSWERS(EACCES, unlink("closed/file"));
    ANSWERS(EISDIR, unlink("closed/inner/"));
    ANSWERS(EACCES, rmdir("closed/inner"));
    ANSWERS(EACCES, rename("closed/file", "from/new"));
    // A refusal changes nothing, the time of the last change too.
    struct stat was = of("closed/file");
    short_sleep();
    ANSWERS(EPERM, chmod("closed/file", 0111));
    ANSWERS(EPERM, chown("closed/file", 1000, 1000));
    struct stat is = of("closed/file");
    CHECK(!memcmp(&was.st_ctim, &is.st_ctim, sizeof was.st_ctim), "the time of a change");
    // A directory that gets another parent is changed.
    ANSWERS(0, mkdir("from/fixed", 0555));
    ANSWERS(0, mkdir("to/free", 0755));
    ANSWERS(EACCES, rename("from/fixed", "to/fixed"));
    ANSWERS(EACCES, syscall(SYS_renameat2, -100, "from/fixed", -100, "to/free", EXCHANGE));
    ANSWERS(EACCES, syscall(SYS_renameat2, -100, "to/free", -100, "from/fixed", EXCHANGE));
    ANSWERS(0, rename("from/fixed", "from/still"));
    ANSWERS(0, rename("to/free", "from/free"));
}

static void rights_to_names(void) {
    fresh_directory();
    CHECK(!mkdir("closed", 0755) && !mkdir("closed/inner", 0755) && !mkdir("from", 0777) && !mkdir("to", 0777),
        "mkdir");
    close(made("closed/file", 0644));
    by_user(other_users_names);
    ANSWERS(0, rename("from/still", "to/fixed"));
}

static const struct check checks[] = {
    {"a_directory_becomes_the_working_one", a_directory_becomes_the_working_one},
    {"times_by_all_calls", times_by_all_calls},
    {"nodes_of_all_kinds", nodes_of_all_kinds},
    {"owners_and_modes", owners_and_modes},
    {"status_by_flags", status_by_flags},
    {"extended_status", extended_status},
    {"names_are_removed", names_are_removed},
    {"names_are_moved", names_are_moved},
    {"links_are_made_and_read", links_are_made_and_read},
    {"access_by_real_and_effective_ids", access_by_real_and_effective_ids},
    {"opening_with_rules", opening_with_rules},
    {"handles_of_files", handles_of_files},
    {"rights_to_names", rights_to_names},
};

int main(int argc, char **argv) {
    parse_options(argc, argv, NULL);
    run_checks(checks, sizeof checks / sizeof *checks);
    return 0;
}
