// Mounting and unmounting: each check holds on Quire, and on Linux in a set of mounts of its own.
#define _GNU_SOURCE
#include "checks.h"
#include <dirent.h>
#include <poll.h>
#include <sched.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/syscall.h>

static char place[] = "/tmp/quire-mounts-XXXXXX";

// Each check begins in an empty directory.
static void begin(void) {
    CHECK(mkdtemp(place) && !chmod(place, 0755) && !chdir(place), "mkdtemp");
    CHECK(!mkdir("m", 0755) && !mkdir("other", 0755) && !close(creat("m/own", 0644)), "mkdir");
}

static void end(void) {
    CHECK(!unlink("m/own") && !rmdir("m") && !rmdir("other") && !chdir("/") && !rmdir(place), "the end");
}

static long tmpfs(const char *at, int flags, const char *options) { return mount("mine", at, "tmpfs", flags, options); }

static bool listed(const char *path, const char *word) {
    char line[1024];
    FILE *f = fopen(path, "r");
    CHECK(f, "%s", path);
    bool found = false;
    while (!found && fgets(line, sizeof line, f)) found = strstr(line, word) != NULL;
    fclose(f);
    return found;
}

static void a_mount_and_its_end(void) {
    begin();
    ANSWERS(0, tmpfs("m", 0, "size=64k,nr_inodes=5,mode=711"));
    struct stat s;
    struct statfs fs;
    CHECK(!stat("m", &s) && (s.st_mode & 07777) == 0711 && access("m/own", F_OK) < 0, "the root");
    CHECK(!statfs("m", &fs) && fs.f_type == 0x01021994 && fs.f_blocks == 16 && fs.f_files == 5 && fs.f_ffree == 4,
        "space");
    char word[128], bytes[4096] = "";
    snprintf(word, sizeof word, "mine %s/m tmpfs rw", place);
    CHECK(listed("/proc/mounts", word), "mounts");
    snprintf(word, sizeof word, " / %s/m rw", place);
    CHECK(listed("/proc/self/mountinfo", word), "mountinfo");
    int fd = open("m/file", O_CREAT | O_RDWR, 0644);
    for (int i = 0; i < 16; i++) CHECK(write(fd, bytes, 4096) == 4096, "write %d", i);
    ANSWERS(ENOSPC, write(fd, bytes, 4096));
    CHECK(!mkdir("m/a", 0755) && !mkdir("m/a/b", 0755) && !symlink("x", "m/a/b/link"), "four");
    ANSWERS(ENOSPC, mkdir("m/c", 0755));
    ANSWERS(EBUSY, umount("m"));
    close(fd);
    CHECK(!chdir("m/a"), "chdir");
    ANSWERS(EBUSY, umount2(place, 0) ? umount2("..", 0) : 0);
    CHECK(!chdir("../.."), "chdir");
    char *at = mmap(NULL, 4096, PROT_READ, MAP_SHARED, fd = open("m/file", O_RDONLY), 0);
    CHECK(at != MAP_FAILED && !close(fd), "mmap");
    ANSWERS(EBUSY, umount("m"));
    CHECK(!munmap(at, 4096), "munmap");
    ANSWERS(EBUSY, rmdir("m"));
    ANSWERS(EBUSY, rename("m", "n"));
    ANSWERS(0, umount("m"));
    CHECK(!access("m/own", F_OK) && access("m/file", F_OK) < 0, "the hidden directory");
    ANSWERS(EINVAL, umount("m"));
    end();
}

static void a_restricted_mount(void) {
    begin();
    ANSWERS(0, tmpfs("m", MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL));
    char word[128];
    snprintf(word, sizeof word, "mine %s/m tmpfs rw,nosuid,nodev,noexec", place);
    CHECK(listed("/proc/mounts", word), "mounts");
    struct statfs fs;
    CHECK(!statfs("m", &fs) && (fs.f_flags & 0x2f) == 0x2e, "statfs %lx", (long)fs.f_flags);
    CHECK(!mknod("m/null", S_IFCHR | 0666, 0x103), "mknod");
    ANSWERS(EACCES, open("m/null", O_RDONLY));
    int fd = open("m/file", O_CREAT | O_RDWR, 04755);
    CHECK(write(fd, "#!/bin/sh\n", 10) == 10 && !fchmod(fd, 04755), "write");
    char *none[] = {NULL};
    ANSWERS(EACCES, execve("m/file", none, none));
    ANSWERS(EACCES, access("m/file", X_OK));
    ANSWERS(0, access("m", X_OK));
    ANSWERS(EPERM, mmap(NULL, 4096, PROT_READ | PROT_EXEC, MAP_PRIVATE, fd, 0) == MAP_FAILED ? -1 : 0);
    char *at = mmap(NULL, 4096, PROT_READ, MAP_PRIVATE, fd, 0);
    CHECK(at != MAP_FAILED, "mmap");
    ANSWERS(EACCES, mprotect(at, 4096, PROT_READ | PROT_EXEC));
    CHECK(!munmap(at, 4096), "munmap");
    ANSWERS(0, tmpfs("m", MS_REMOUNT | MS_NODEV, NULL));
    at = mmap(NULL, 4096, PROT_READ | PROT_EXEC, MAP_PRIVATE, fd, 0);
    CHECK(at != MAP_FAILED && !munmap(at, 4096) && !access("m/file", X_OK), "executable again");
    ANSWERS(EACCES, open("m/null", O_RDONLY));
    ANSWERS(0, tmpfs("m", MS_REMOUNT, NULL));
    CHECK(!close(open("m/null", O_RDONLY)), "a device again");
    close(fd);
    ANSWERS(0, umount("m"));
    end();
}

static void a_tree_that_is_used(void) {
    begin();
    ANSWERS(0, tmpfs("m", 0, NULL));
    CHECK(!mkdir("m/dir", 0755), "mkdir");
    int fd = open("m/dir/file", O_CREAT | O_RDWR, 0644), dir = open("m/dir", O_RDONLY | O_DIRECTORY);
    ANSWERS(0, umount2("m", MNT_DETACH));
    CHECK(!access("m/own", F_OK), "the hidden directory");
    CHECK(write(fd, "hello", 5) == 5 && !faccessat(dir, "file", F_OK, 0), "the detached tree");
    CHECK(!mkdirat(dir, "more", 0755), "mkdirat");
    close(fd), close(dir);
    // Those below end with it.
    ANSWERS(0, tmpfs("m", 0, NULL));
    CHECK(!mkdir("m/below", 0755), "mkdir");
    ANSWERS(0, tmpfs("m/below", 0, NULL));
    ANSWERS(0, tmpfs("m/below", 0, "mode=700"));
    ANSWERS(EBUSY, umount("m"));
    ANSWERS(0, umount("m/below"));
    ANSWERS(0, umount2("m", MNT_DETACH));
    CHECK(!access("m/own", F_OK), "the hidden directory");
    end();
}

static void read_only(void) {
    begin();
    ANSWERS(0, tmpfs("m", 0, NULL));
    int fd = open("m/file", O_CREAT | O_RDWR, 0644);
    CHECK(!mkdir("m/dir", 0755) && !symlink("file", "m/link"), "mkdir");
    ANSWERS(EBUSY, mount(NULL, "m", NULL, MS_REMOUNT | MS_RDONLY, NULL));
    close(fd);
    // A writer by another mount of the file system.
    ANSWERS(0, mount("m", "other", NULL, MS_BIND, NULL));
    fd = open("other/file", O_RDWR);
    ANSWERS(EBUSY, mount(NULL, "m", NULL, MS_REMOUNT | MS_RDONLY, NULL));
    close(fd);
    ANSWERS(0, umount("other"));
    ANSWERS(0, mount(NULL, "m", NULL, MS_REMOUNT | MS_RDONLY, NULL));
    ANSWERS(EROFS, open("m/new", O_CREAT | O_RDWR, 0644));
    ANSWERS(EROFS, open("m/file", O_RDWR));
    ANSWERS(EROFS, open("m/file", O_RDONLY | O_TRUNC));
    ANSWERS(0, open("m/file", O_RDONLY | O_CREAT, 0644));
    ANSWERS(EROFS, mkdir("m/new", 0755));
    ANSWERS(EROFS, unlink("m/file"));
    ANSWERS(EROFS, rmdir("m/dir"));
    ANSWERS(EROFS, rename("m/file", "m/dir/file"));
    ANSWERS(EROFS, link("m/file", "m/second"));
    ANSWERS(EROFS, symlink("x", "m/new"));
    ANSWERS(EROFS, truncate("m/file", 5));
    ANSWERS(EROFS, chmod("m/file", 0600));
    ANSWERS(EROFS, chown("m/file", 1, 1));
    ANSWERS(EROFS, utimensat(AT_FDCWD, "m/file", NULL, 0));
    ANSWERS(EROFS, access("m/file", W_OK));
    ANSWERS(0, access("m/file", R_OK));
    char word[128];
    snprintf(word, sizeof word, "mine %s/m tmpfs ro", place);
    CHECK(listed("/proc/mounts", word), "mounts");
    ANSWERS(0, mount(NULL, "m", NULL, MS_REMOUNT, "size=8k"));
    struct statfs fs;
    CHECK(!statfs("m", &fs) && fs.f_blocks == 2, "blocks %ld", (long)fs.f_blocks);
    ANSWERS(0, unlink("m/file"));
    ANSWERS(0, umount2("m", MNT_DETACH));
    ANSWERS(0, tmpfs("m", MS_RDONLY, NULL));
    ANSWERS(EROFS, mkdir("m/new", 0755));
    ANSWERS(0, umount("m"));
    end();
}

static void refusals(void) {
    begin();
    ANSWERS(ENODEV, mount("mine", "m", "no-such-type", 0, NULL));
    ANSWERS(EINVAL, mount("mine", "m", NULL, 0, NULL));
    ANSWERS(ENOENT, tmpfs("missing", 0, NULL));
    ANSWERS(ENOTDIR, tmpfs("m/own", 0, NULL));
    ANSWERS(EINVAL, tmpfs("m", 0, "what=1"));
    ANSWERS(EINVAL, tmpfs("m", 0, "size=x"));
    ANSWERS(EINVAL, mount(NULL, "m", NULL, MS_REMOUNT, NULL));
    ANSWERS(EFAULT, syscall(SYS_mount, "mine", 8, "tmpfs", 0, NULL));
    ANSWERS(EINVAL, umount2("m", 0x100));
    ANSWERS(ENOENT, umount("missing"));
    ANSWERS(0, mount("proc", "m", "proc", 0, NULL));
    CHECK(!access("m/self/status", R_OK) && !access("m/1/stat", R_OK), "a second proc");
    ANSWERS(0, umount("m"));
    if (!fork()) {
        CHECK(!setuid(1000), "setuid");
        ANSWERS(EPERM, tmpfs("other", 0, NULL));
        ANSWERS(EPERM, umount("other"));
        _exit(0);
    }
    int status;
    CHECK(wait(&status) > 0 && !status, "child");
    end();
}

// Each of these begins with a tree at `m`.
static void begin_tree(void) {
    begin();
    CHECK(!mkdir("m/dir", 0755) && !close(creat("m/dir/file", 0644)) && !close(creat("other.file", 0644)), "the tree");
}

static void end_tree(void) {
    CHECK(!unlink("m/dir/file") && !rmdir("m/dir") && !unlink("other.file"), "the tree's end");
    end();
}

static long bind_mount(const char *from, const char *to, int more) {
    return mount(from, to, NULL, MS_BIND | more, NULL);
}

static const char *cwd_below(const char *path) {
    static char at[256];
    CHECK(getcwd(at, sizeof at) && !strncmp(at, place, strlen(place)), "getcwd %s", path);
    return at + strlen(place);
}

static void a_bind_mount(void) {
    begin_tree();
    ANSWERS(0, bind_mount("m", "other", 0));
    struct stat one, two;
    CHECK(!stat("m/dir", &one) && !stat("other/dir", &two), "stat");
    CHECK(one.st_dev == two.st_dev && one.st_ino == two.st_ino, "one directory");
    CHECK(!stat("m", &one) && !stat("other", &two) && one.st_ino == two.st_ino, "one root");
    CHECK(!chdir("other/dir") && !strcmp(cwd_below("other/dir"), "/other/dir"), "%s", cwd_below(""));
    CHECK(!chdir("..") && !strcmp(cwd_below(".."), "/other") && !chdir("..") && !strcmp(cwd_below(".."), ""), "up");
    CHECK(!close(creat("other/dir/new", 0644)) && !access("m/dir/new", F_OK) && !unlink("m/dir/new"), "a name");
    CHECK(access("other/dir/new", F_OK) < 0, "no name");
    ANSWERS(EXDEV, rename("other/dir/file", "m/dir/x"));
    ANSWERS(EXDEV, link("other/dir/file", "m/dir/x"));
    ANSWERS(0, rename("other/dir/file", "other/dir/x"));
    ANSWERS(0, rename("m/dir/x", "m/dir/file"));
    ANSWERS(EBUSY, rmdir("other"));
    ANSWERS(EBUSY, rename("other", "n"));
    // A directory that is renamed is so at both places.
    CHECK(!chdir("other/dir") && !rename("../../m/dir", "../../m/moved"), "rename");
    CHECK(!strcmp(cwd_below("other/dir"), "/other/moved"), "%s", cwd_below(""));
    ANSWERS(EBUSY, umount("../../other"));
    CHECK(!rename("../../m/moved", "../../m/dir") && !chdir("../.."), "rename back");
    int fd = open("other/dir/file", O_RDONLY);
    char link[64], to[256] = "", word[256];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    CHECK(readlink(link, to, sizeof to - 1) > 0 && !strcmp(to + strlen(place), "/other/dir/file"), "%s", to);
    ANSWERS(EBUSY, umount("other"));
    close(fd);
    snprintf(word, sizeof word, " %s/other ", place);
    CHECK(listed("/proc/mounts", word), "mounts");
    // Where a check runs, its place has a file system of its own or not.
    snprintf(word, sizeof word, "/%s/m %s/other rw", strrchr(place, '/') + 1, place);
    CHECK(listed("/proc/self/mountinfo", word), "mountinfo");
    ANSWERS(0, umount("other"));
    CHECK(access("other/dir", F_OK) < 0, "the hidden directory");
    ANSWERS(EINVAL, umount("other"));
    end_tree();
}

static void a_bound_file(void) {
    begin_tree();
    int fd = open("m/own", O_RDWR);
    CHECK(write(fd, "text", 4) == 4 && !close(fd), "write");
    ANSWERS(0, bind_mount("m/own", "other.file", 0));
    struct stat s;
    CHECK(!stat("other.file", &s) && s.st_size == 4, "size %ld", (long)s.st_size);
    ANSWERS(EBUSY, unlink("other.file"));
    ANSWERS(EBUSY, rename("other.file", "x"));
    ANSWERS(EXDEV, link("other.file", "x"));
    ANSWERS(0, mount(NULL, "other.file", NULL, MS_REMOUNT | MS_BIND | MS_RDONLY, NULL));
    ANSWERS(EROFS, open("other.file", O_RDWR));
    ANSWERS(0, open("m/own", O_RDWR));
    ANSWERS(0, umount("other.file"));
    CHECK(!stat("other.file", &s) && s.st_size == 0, "size %ld", (long)s.st_size);
    ANSWERS(ENOTDIR, bind_mount("m", "other.file", 0));
    ANSWERS(ENOTDIR, bind_mount("m/own", "other", 0));
    end_tree();
}

static void a_read_only_bind(void) {
    begin_tree();
    ANSWERS(0, bind_mount("m", "other", 0));
    ANSWERS(EINVAL, mount(NULL, "m", NULL, MS_REMOUNT | MS_BIND | MS_RDONLY, NULL));
    int fd = open("other/dir/file", O_RDWR);
    ANSWERS(EBUSY, mount(NULL, "other", NULL, MS_REMOUNT | MS_BIND | MS_RDONLY, NULL));
    close(fd);
    ANSWERS(0, mount(NULL, "other", NULL, MS_REMOUNT | MS_BIND | MS_RDONLY | MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL));
    struct statfs fs;
    CHECK(!statfs("other", &fs) && (fs.f_flags & 15) == 15, "statfs %lx", (long)fs.f_flags);
    ANSWERS(EROFS, mkdir("other/new", 0755));
    ANSWERS(EROFS, open("other/new", O_CREAT | O_RDWR, 0644));
    ANSWERS(EROFS, open("other/dir/file", O_RDWR));
    ANSWERS(EROFS, unlink("other/dir/file"));
    ANSWERS(EROFS, rename("other/dir/file", "other/file"));
    ANSWERS(EROFS, chmod("other/dir/file", 0600));
    ANSWERS(EROFS, chown("other/dir/file", 1, 1));
    ANSWERS(EROFS, truncate("other/dir/file", 1));
    ANSWERS(EROFS, utimensat(AT_FDCWD, "other/dir/file", NULL, 0));
    ANSWERS(EROFS, symlink("x", "other/new"));
    ANSWERS(EROFS, link("other/dir/file", "other/new"));
    ANSWERS(EROFS, access("other/dir/file", W_OK));
    ANSWERS(0, access("other/dir/file", R_OK));
    CHECK(!chmod("m/dir/file", 0755), "chmod");
    ANSWERS(EACCES, access("other/dir/file", X_OK));
    ANSWERS(0, access("m/dir/file", X_OK));
    fd = open("other/dir/file", O_RDONLY);
    ANSWERS(EROFS, fchmod(fd, 0600));
    close(fd);
    // The source takes changes, and a bind mount of the bind mount does not.
    CHECK(!mkdir("m/new", 0755) && !access("other/new", F_OK), "mkdir");
    CHECK(!mkdir("third", 0755), "mkdir");
    ANSWERS(0, bind_mount("other/new", "third", 0));
    ANSWERS(EROFS, mkdir("third/x", 0755));
    ANSWERS(0, mount(NULL, "third", NULL, MS_REMOUNT | MS_BIND, NULL));
    ANSWERS(0, mkdir("third/x", 0755));
    ANSWERS(0, rmdir("m/new/x"));
    ANSWERS(0, umount("third"));
    ANSWERS(0, umount("other"));
    CHECK(!rmdir("third") && !rmdir("m/new"), "rmdir");
    end_tree();
}

static void mounts_below_a_bind(void) {
    begin_tree();
    CHECK(!mkdir("third", 0755), "mkdir");
    ANSWERS(0, tmpfs("m/dir", 0, NULL));
    CHECK(!mkdir("m/dir/inner", 0755), "mkdir");
    ANSWERS(0, bind_mount("m", "other", 0));
    CHECK(!access("other/dir/file", F_OK) && access("other/dir/inner", F_OK) < 0, "below the mount");
    ANSWERS(0, bind_mount("m", "third", MS_REC));
    CHECK(!access("third/dir/inner", F_OK), "the mount");
    ANSWERS(EBUSY, umount("third"));
    ANSWERS(0, umount("m/dir"));
    CHECK(!mkdir("third/dir/inner/more", 0755) && access("m/dir/inner", F_OK) < 0, "the mount's end");
    ANSWERS(0, umount("third/dir"));
    ANSWERS(0, umount("third"));
    // One on a bind mount is seen there only.
    ANSWERS(0, tmpfs("other/dir", 0, NULL));
    CHECK(!mkdir("other/dir/inner", 0755) && access("m/dir/inner", F_OK) < 0, "its own mount");
    ANSWERS(EBUSY, rmdir("m/dir"));
    ANSWERS(EBUSY, rename("m/dir", "m/x"));
    ANSWERS(EBUSY, umount("other"));
    CHECK(!chdir("other/dir/inner") && !strcmp(cwd_below("inner"), "/other/dir/inner"), "%s", cwd_below(""));
    CHECK(!chdir("../../..") && !strcmp(cwd_below("the top"), ""), "%s", cwd_below(""));
    ANSWERS(0, umount2("other", MNT_DETACH));
    CHECK(!rmdir("third"), "rmdir");
    end_tree();
}

static void binds_in_a_circle(void) {
    begin_tree();
    ANSWERS(0, bind_mount("m", "m/dir", MS_REC));
    CHECK(!access("m/dir/dir/file", F_OK) && access("m/dir/dir/dir", F_OK) < 0, "one turn");
    ANSWERS(0, bind_mount("m", "m/dir/dir", MS_REC));
    CHECK(!access("m/dir/dir/dir/dir/file", F_OK), "two turns");
    ANSWERS(EBUSY, umount("m/dir"));
    ANSWERS(0, umount2("m/dir", MNT_DETACH));
    CHECK(!access("m/dir/file", F_OK), "the hidden directory");
    for (int i = 0; i < 40; i++) ANSWERS(0, bind_mount(i % 2 ? "m" : "other", i % 2 ? "other" : "m", 0));
    for (int i = 0; i < 40; i++) ANSWERS(0, umount(i % 2 ? "m" : "other"));
    end_tree();
}

static void a_root_in_a_bind(void) {
    begin_tree();
    ANSWERS(0, bind_mount("m", "other", 0));
    if (!fork()) {
        CHECK(!chdir("other/dir") && !chroot("."), "chroot");
        struct stat here, up;
        CHECK(!stat(".", &here) && !stat("../../..", &up) && here.st_ino == up.st_ino, "the top");
        CHECK(!access("/file", F_OK), "a file");
        _exit(0);
    }
    int status;
    CHECK(wait(&status) > 0 && !status, "child");
    // A directory that has left the source has no way up.
    CHECK(!mkdir("m/a", 0755) && !mkdir("m/a/b", 0755), "mkdir");
    ANSWERS(0, umount("other"));
    ANSWERS(0, bind_mount("m/a", "other", 0));
    CHECK(!chdir("other/b") && !rename("../../m/a/b", "../../m/b"), "rename");
    ANSWERS(ENOENT, open("..", O_RDONLY));
    CHECK(!chdir(place) && !rmdir("m/b"), "rmdir");
    ANSWERS(0, umount("other"));
    CHECK(!rmdir("m/a"), "rmdir");
    end_tree();
}

static void refused_binds(void) {
    begin_tree();
    ANSWERS(ENOENT, bind_mount("missing", "other", 0));
    ANSWERS(ENOENT, bind_mount("m", "missing", 0));
    ANSWERS(EINVAL, bind_mount(NULL, "other", 0));
    ANSWERS(EINVAL, bind_mount("", "other", 0));
    ANSWERS(EFAULT, syscall(SYS_mount, 8, "other", NULL, MS_BIND, NULL));
    int ends[2];
    char link[64];
    CHECK(!pipe(ends), "pipe");
    snprintf(link, sizeof link, "/proc/self/fd/%d", ends[0]);
    ANSWERS(EINVAL, bind_mount(link, "other.file", 0));
    close(ends[0]), close(ends[1]);
    // No part of a tree whose mount has ended.
    ANSWERS(0, bind_mount("m", "other", 0));
    int fd = open("other/dir", O_RDONLY | O_DIRECTORY);
    ANSWERS(0, umount2("other", MNT_DETACH));
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ANSWERS(EINVAL, bind_mount(link, "other", 0));
    // EINVAL, or ENOENT on later Linux.
    CHECK(bind_mount("m", link, 0) < 0, "a mount on it");
    CHECK(!faccessat(fd, "file", F_OK, 0) && !close(fd), "the detached tree");
    if (!fork()) {
        CHECK(!setuid(1000), "setuid");
        ANSWERS(EPERM, bind_mount("m", "other", 0));
        _exit(0);
    }
    int status;
    CHECK(wait(&status) > 0 && !status, "child");
    end_tree();
}

static void a_moved_mount(void) {
    begin_tree();
    ANSWERS(0, tmpfs("m", 0, NULL));
    CHECK(!mkdir("m/below", 0755), "mkdir");
    ANSWERS(0, tmpfs("m/below", 0, NULL));
    CHECK(!mkdir("m/below/inner", 0755), "mkdir");
    ANSWERS(EINVAL, mount("m/below/inner", "other", NULL, MS_MOVE, NULL));
    ANSWERS(ELOOP, mount("m", "m/below", NULL, MS_MOVE, NULL));
    ANSWERS(EINVAL, mount("m", "other.file", NULL, MS_MOVE, NULL));
    ANSWERS(EINVAL, mount(NULL, "other", NULL, MS_MOVE, NULL));
    ANSWERS(ENOENT, mount("missing", "other", NULL, MS_MOVE, NULL));
    int fd = open("m/below/inner", O_RDONLY | O_DIRECTORY);
    ANSWERS(0, mount("m", "other", NULL, MS_MOVE, NULL));
    CHECK(!access("other/below/inner", F_OK) && !access("m/own", F_OK), "the move");
    CHECK(!fchdir(fd) && !strcmp(cwd_below("inner"), "/other/below/inner") && !close(fd), "%s", cwd_below(""));
    CHECK(!chdir("../../..") && !strcmp(cwd_below("the top"), ""), "%s", cwd_below(""));
    char word[128];
    snprintf(word, sizeof word, "mine %s/other/below tmpfs rw", place);
    CHECK(listed("/proc/mounts", word), "mounts");
    ANSWERS(EBUSY, umount("other"));
    ANSWERS(0, umount("other/below"));
    ANSWERS(0, mount("other", "m", NULL, MS_MOVE, NULL));
    ANSWERS(0, umount("m"));
    // A bind mount moves too, onto what another one shows.
    CHECK(!mkdir("third", 0755), "mkdir");
    ANSWERS(0, bind_mount("m", "third", 0));
    ANSWERS(0, bind_mount("m", "other", 0));
    ANSWERS(0, mount("third", "other/dir", NULL, MS_MOVE, NULL));
    CHECK(!access("other/dir/dir/file", F_OK) && access("m/dir/dir", F_OK) < 0 && access("third/dir", F_OK) < 0,
        "bound");
    ANSWERS(0, umount("other/dir"));
    ANSWERS(0, umount("other"));
    CHECK(!rmdir("third"), "rmdir");
    end_tree();
}

static void terminals(void) {
    begin();
    ANSWERS(0, mount("pts", "m", "devpts", MS_NOSUID | MS_NOEXEC, "mode=620,ptmxmode=666,gid=5"));
    ANSWERS(EINVAL, mount("pts", "other", "devpts", 0, "ptmxmode=9"));
    struct stat s;
    CHECK(!stat("m/ptmx", &s) && S_ISCHR(s.st_mode) && s.st_rdev == 0x502, "ptmx");
    struct statfs fs;
    CHECK(!statfs("m", &fs) && fs.f_type == 0x1cd1 && (fs.f_flags & 15) == 10, "statfs %lx", (long)fs.f_flags);
    char word[128];
    snprintf(word, sizeof word, "pts %s/m devpts rw,nosuid,noexec", place);
    CHECK(listed("/proc/mounts", word), "mounts");
    ANSWERS(0, umount("m"));
    end();
}

static void queues(void) {
    begin();
    ANSWERS(0, mount("queues", "m", "mqueue", 0, NULL));
    struct stat s;
    CHECK(!stat("m", &s) && (s.st_mode & 07777) == 01777, "mode %o", s.st_mode);
    syscall(SYS_mq_unlink, "quire-mounts");
    int queue = syscall(SYS_mq_open, "quire-mounts", O_CREAT | O_RDWR, 0600, NULL);
    CHECK(queue >= 0 && !syscall(SYS_mq_timedsend, queue, "hello", 5, 1, NULL), "a queue");
    CHECK(!stat("m/quire-mounts", &s) && S_ISREG(s.st_mode) && (s.st_mode & 07777) == 0600, "mode %o", s.st_mode);
    char text[128] = "";
    int fd = open("m/quire-mounts", O_RDONLY);
    CHECK(read(fd, text, sizeof text - 1) > 0 && !strncmp(text, "QSIZE:5          NOTIFY:0 ", 25), "%s", text);
    close(fd);
    DIR *dir = opendir("m");
    bool seen = false;
    for (struct dirent *entry; (entry = readdir(dir));) seen |= !strcmp(entry->d_name, "quire-mounts");
    closedir(dir);
    CHECK(seen, "no entry");
    ANSWERS(ENOENT, unlink("m/no-such-queue"));
    if (!fork()) {
        CHECK(!setuid(1000), "setuid");
        ANSWERS(EPERM, unlink("m/quire-mounts"));
        ANSWERS(EACCES, open("m/quire-mounts", O_RDONLY));
        _exit(0);
    }
    int status;
    CHECK(wait(&status) > 0 && !status, "child");
    // A second mount shows the same queues.
    ANSWERS(0, mount("queues", "other", "mqueue", 0, NULL));
    ANSWERS(0, unlink("other/quire-mounts"));
    CHECK(access("m/quire-mounts", F_OK) < 0, "gone");
    ANSWERS(ENOENT, syscall(SYS_mq_open, "quire-mounts", O_RDWR, 0, NULL));
    CHECK(!close(queue), "close");
    ANSWERS(0, umount("other"));
    ANSWERS(0, umount("m"));
    end();
}

// The number of the last mount at `name`, and of the mount that it is on.
struct numbers {
    int own, on;
};

static struct numbers numbers_of(const char *name) {
    struct numbers found = {0, 0};
    char line[1024], word[256];
    snprintf(word, sizeof word, " %s/%s ", place, name);
    FILE *f = fopen("/proc/self/mountinfo", "r");
    CHECK(f, "mountinfo");
    while (fgets(line, sizeof line, f))
        if (strstr(line, word)) CHECK(sscanf(line, "%d %d", &found.own, &found.on) == 2, "%s", line);
    fclose(f);
    return found;
}

static int number_of_file(const char *name) {
    char path[64], line[128];
    int fd = open(name, O_RDONLY | O_CLOEXEC), number = -1;
    snprintf(path, sizeof path, "/proc/self/fdinfo/%d", fd);
    FILE *f = fopen(path, "r");
    CHECK(fd >= 0 && f, "%s", path);
    while (number < 0 && fgets(line, sizeof line, f)) sscanf(line, "mnt_id: %d", &number);
    fclose(f);
    close(fd);
    return number;
}

// A mount keeps its number when others end and when it moves, and names the mount that it is on.
static void numbers(void) {
    begin();
    ANSWERS(0, tmpfs("m", 0, NULL));
    struct numbers first = numbers_of("m");
    ANSWERS(0, tmpfs("other", 0, NULL));
    struct numbers other = numbers_of("other");
    CHECK(other.own != first.own && other.on == first.on, "%d on %d, %d on %d", first.own, first.on, other.own,
        other.on);
    ANSWERS(0, umount("m"));
    CHECK(numbers_of("other").own == other.own && number_of_file("other") == other.own, "it stays %d", other.own);
    // On the same directory again, on a directory there, and a view of that.
    ANSWERS(0, tmpfs("other", 0, NULL));
    struct numbers upper = numbers_of("other");
    CHECK(upper.on == other.own && number_of_file("other") == upper.own, "%d on %d", upper.own, upper.on);
    CHECK(!mkdir("other/d", 0755) && !mkdir("other/e", 0755), "mkdir");
    ANSWERS(0, tmpfs("other/d", 0, NULL));
    struct numbers below = numbers_of("other/d");
    CHECK(below.on == upper.own, "%d on %d", below.own, below.on);
    ANSWERS(0, mount("other/d", "other/e", NULL, MS_BIND, NULL));
    CHECK(!mkdir("other/e/f", 0755), "mkdir");
    ANSWERS(0, tmpfs("other/e/f", 0, NULL));
    CHECK(numbers_of("other/e/f").on == numbers_of("other/e").own, "on the view");
    CHECK(number_of_file("other/e") == numbers_of("other/e").own, "the view");
    ANSWERS(0, mount("other/d", "m", NULL, MS_MOVE, NULL));
    struct numbers moved = numbers_of("m");
    CHECK(moved.own == below.own && moved.on == first.on, "%d on %d", moved.own, moved.on);
    ANSWERS(0, umount("m"));
    ANSWERS(EBUSY, umount("other"));
    ANSWERS(0, umount2("other", MNT_DETACH));
    CHECK(numbers_of("other").own == other.own, "the lower one");
    ANSWERS(0, umount("other"));
    end();
}

static short events_of(struct pollfd *p, int wait) {
    p->revents = 0;
    CHECK(poll(p, 1, wait) >= 0, "poll");
    return p->revents;
}

// A poll of a table of mounts reports each change of the mounts once, to each open file.
static void polled_tables(void) {
    begin();
    for (int i = 0; i < 2; i++) {
        const char *table = i ? "/proc/self/mountinfo" : "/proc/mounts";
        struct pollfd p = {.fd = open(table, O_RDONLY | O_CLOEXEC), .events = POLLIN | POLLPRI};
        struct pollfd other = {.fd = open(table, O_RDONLY | O_CLOEXEC), .events = POLLPRI};
        CHECK(p.fd >= 0 && other.fd >= 0, "%s", table);
        CHECK(events_of(&p, 0) == POLLIN && events_of(&other, 0) == 0, "no change");
        ANSWERS(0, tmpfs("m", 0, NULL));
        CHECK(events_of(&p, 0) == (POLLIN | POLLPRI | POLLERR) && events_of(&p, 0) == POLLIN, "a mount");
        ANSWERS(0, mount("m", "other", NULL, MS_BIND, NULL));
        CHECK(events_of(&p, 0) == (POLLIN | POLLPRI | POLLERR) && events_of(&p, 0) == POLLIN, "a bind mount");
        ANSWERS(0, mount(NULL, "other", NULL, MS_BIND | MS_REMOUNT | MS_RDONLY, NULL));
        events_of(&p, 0);
        ANSWERS(ENOENT, umount("m/nothing"));
        CHECK(events_of(&p, 0) == POLLIN, "a refusal");
        ANSWERS(0, umount("other"));
        CHECK(events_of(&p, 0) == (POLLIN | POLLPRI | POLLERR), "an end");
        CHECK(events_of(&other, 0) == (POLLPRI | POLLERR) && events_of(&other, 0) == 0, "all changes at once");
        // A sleeper is woken, whenever it begins to wait. An epoll set reports the same.
        int set = epoll_create1(EPOLL_CLOEXEC);
        struct epoll_event wanted = {.events = EPOLLPRI}, found;
        CHECK(set >= 0 && !epoll_ctl(set, EPOLL_CTL_ADD, other.fd, &wanted), "epoll_ctl");
        ANSWERS(0, epoll_wait(set, &found, 1, 0));
        struct pollfd slept = {.fd = open(table, O_RDONLY | O_CLOEXEC), .events = POLLPRI};
        int sleeper = fork();
        if (!sleeper) _exit(events_of(&slept, 1000) == (POLLPRI | POLLERR) ? 0 : 1);
        ANSWERS(0, umount("m"));
        CHECK(epoll_wait(set, &found, 1, 1000) == 1 && found.events == (EPOLLPRI | EPOLLERR), "epoll");
        int status;
        CHECK(waitpid(sleeper, &status, 0) == sleeper && !status, "the sleeper");
        CHECK(!close(set) && !close(p.fd) && !close(other.fd) && !close(slept.fd), "close");
    }
    end();
}

static void again_and_again(void) {
    begin();
    for (int i = 0; i < 300; i++) {
        ANSWERS(0, tmpfs("m", 0, "nr_inodes=20,size=100k"));
        char name[32];
        for (int j = 0; j < 10; j++) {
            snprintf(name, sizeof name, "m/%d", j);
            CHECK(!mkdir(name, 0755), "mkdir");
            strcat(name, "/file");
            int fd = creat(name, 0644);
            CHECK(j == 9 || (fd >= 0 && write(fd, name, 8) == 8), "write %d", j);
            close(fd);
        }
        ANSWERS(0, umount("m"));
    }
    end();
}

int main(int argc, char **argv) {
    parse_options(argc, argv, NULL);
    // On Linux, a set of mounts that nothing else sees.
    if (!unshare(CLONE_NEWNS)) CHECK(!mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL), "private mounts");
    static const struct check checks[] = {
        {"a_mount_and_its_end", a_mount_and_its_end},
        {"a_restricted_mount", a_restricted_mount},
        {"a_tree_that_is_used", a_tree_that_is_used},
        {"read_only", read_only},
        {"refusals", refusals},
        {"a_bind_mount", a_bind_mount},
        {"a_bound_file", a_bound_file},
        {"a_read_only_bind", a_read_only_bind},
        {"mounts_below_a_bind", mounts_below_a_bind},
        {"binds_in_a_circle", binds_in_a_circle},
        {"a_root_in_a_bind", a_root_in_a_bind},
        {"refused_binds", refused_binds},
        {"a_moved_mount", a_moved_mount},
        {"terminals", terminals},
        {"queues", queues},
        {"numbers", numbers},
        {"polled_tables", polled_tables},
        {"again_and_again", again_and_again},
    };
    run_checks(checks, sizeof checks / sizeof *checks);
    return 0;
}
