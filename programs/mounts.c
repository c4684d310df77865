// Mounting and unmounting: each check holds on Quire, and on Linux in a set of mounts of its own.
#define _GNU_SOURCE
#include "checks.h"
#include <dirent.h>
#include <sched.h>
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
    CHECK(!statfs("m", &fs) && fs.f_type == 0x01021994 && fs.f_blocks == 16 && fs.f_files == 5 && fs.f_ffree == 4, "space");
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
        {"again_and_again", again_and_again},
    };
    run_checks(checks, sizeof checks / sizeof *checks);
    return 0;
}
