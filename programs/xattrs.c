// Extended attributes of files in memory, checked one by one; the same on Linux and on Quire. Starts as root.
#include "checks.h"
#include <sys/stat.h>
#include <sys/xattr.h>

#ifndef ENODATA
#define ENODATA 61
#endif
#define PLACE "/dev/shm/xattrs" // a tmpfs, on Linux too

static char data[70000], back[70000];

static void fresh_place(void) {
    CHECK(!system("rm -rf " PLACE) && !mkdir(PLACE, 0777) && !chdir(PLACE), "a place");
    close(open("f", O_CREAT | O_RDWR, 0644));
    CHECK(!mkdir("d", 0755) && !symlink("f", "s") && !mkfifo("p", 0666), "files");
    for (size_t i = 0; i < sizeof data; i++) data[i] = i * 7 + i / 256;
}

static void values_are_set_and_read(void) {
    fresh_place();
    ANSWERS(ENODATA, getxattr("f", "user.a", back, 10));
    CHECK(listxattr("f", back, 10) == 0, "none yet");
    ANSWERS(0, setxattr("f", "user.a", "value", 5, 0));
    CHECK(getxattr("f", "user.a", NULL, 0) == 5 && getxattr("f", "user.a", back, 10) == 5 && !memcmp(back, "value", 5),
        "its value");
    ANSWERS(ERANGE, getxattr("f", "user.a", back, 4));
    ANSWERS(0, setxattr("s", "user.a", "other", 5, 0));
    CHECK(getxattr("f", "user.a", back, 10) == 5 && !memcmp(back, "other", 5), "through a link");
    ANSWERS(0, setxattr("f", "user.empty", NULL, 0, 0));
    CHECK(getxattr("f", "user.empty", back, 10) == 0, "no bytes");
    ANSWERS(0, setxattr("d", "user.big", data, 65536, 0));
    CHECK(getxattr("d", "user.big", back, 65536) == 65536 && !memcmp(back, data, 65536), "a large one");
    ANSWERS(E2BIG, setxattr("d", "user.bigger", data, 65537, 0));
    ANSWERS(EEXIST, setxattr("f", "user.a", "x", 1, XATTR_CREATE));
    ANSWERS(ENODATA, setxattr("f", "user.b", "x", 1, XATTR_REPLACE));
    ANSWERS(0, setxattr("f", "user.b", "x", 1, XATTR_CREATE));
    ANSWERS(0, setxattr("f", "user.b", "yy", 2, XATTR_REPLACE));
    int fd = open("f", O_RDONLY), path = open("f", O_PATH);
    CHECK(fgetxattr(fd, "user.b", back, 10) == 2, "by a descriptor");
    ANSWERS(0, fsetxattr(fd, "user.c", "z", 1, 0));
    ANSWERS(0, fremovexattr(fd, "user.c"));
    ANSWERS(ENODATA, fremovexattr(fd, "user.c"));
    ANSWERS(EBADF, fgetxattr(path, "user.b", back, 10));
    ANSWERS(EBADF, fsetxattr(99, "user.b", "x", 1, 0));
    char names[64] = "";
    ssize_t len = listxattr("f", names, sizeof names);
    CHECK(len == 7 + 11 + 7 && listxattr("f", NULL, 0) == len && flistxattr(fd, names, sizeof names) == len,
        "the names: %zd", len);
    int found = 0;
    for (char *at = names; at < names + len; at += strlen(at) + 1)
        found += !strcmp(at, "user.a") || !strcmp(at, "user.b") || !strcmp(at, "user.empty");
    CHECK(found == 3, "all of them");
    ANSWERS(ERANGE, listxattr("f", names, len - 1));
    ANSWERS(0, removexattr("f", "user.a"));
    ANSWERS(ENODATA, getxattr("f", "user.a", back, 10));
    // They stay with the inode.
    CHECK(!rename("f", "g") && getxattr("g", "user.b", back, 10) == 2, "moved");
    struct stat before, after;
    CHECK(!stat("g", &before), "stat");
    usleep(20000);
    ANSWERS(0, setxattr("g", "user.b", "t", 1, 0));
    CHECK(!stat("g", &after) && (after.st_ctim.tv_sec != before.st_ctim.tv_sec ||
        after.st_ctim.tv_nsec != before.st_ctim.tv_nsec), "its time");
}

static void arguments_are_checked(void) {
    fresh_place();
    char *volatile bad = (char *)8;
    char name[300] = "user.";
    memset(name + 5, 'n', 294);
    ANSWERS(ERANGE, setxattr("f", name, "x", 1, 0));
    name[255] = 0;
    ANSWERS(0, setxattr("f", name, "x", 1, 0));
    ANSWERS(ERANGE, setxattr("f", "", "x", 1, 0));
    ANSWERS(EINVAL, setxattr("f", "user.", "x", 1, 0));
    ANSWERS(EOPNOTSUPP, setxattr("f", "other.a", "x", 1, 0));
    ANSWERS(EOPNOTSUPP, setxattr("f", "nothing", "x", 1, 0));
    ANSWERS(EINVAL, setxattr("f", "user.a", "x", 1, 4));
    ANSWERS(EFAULT, setxattr("f", "user.a", bad, 1, 0));
    ANSWERS(EFAULT, setxattr("f", bad, "x", 1, 0));
    ANSWERS(ENOENT, setxattr("none", "user.a", "x", 1, 0));
    ANSWERS(EPERM, setxattr("p", "user.a", "x", 1, 0));
    ANSWERS(ENODATA, getxattr("p", "user.a", back, 1));
    ANSWERS(EPERM, lsetxattr("s", "user.a", "x", 1, 0));
    ANSWERS(0, lsetxattr("s", "trusted.a", "x", 1, 0));
    CHECK(lgetxattr("s", "trusted.a", back, 9) == 1 && llistxattr("s", back, 99) == 10, "of a link");
    ANSWERS(ENODATA, getxattr("f", "trusted.a", back, 9));
    ANSWERS(0, lremovexattr("s", "trusted.a"));
    ANSWERS(EOPNOTSUPP, setxattr("/proc/version", "user.a", "x", 1, 0));
    ANSWERS(EOPNOTSUPP, getxattr("/proc/version", "user.a", back, 9));
}

static void rights_are_checked(void) {
    fresh_place();
    ANSWERS(0, setxattr("f", "user.a", "x", 1, 0));
    ANSWERS(0, setxattr("f", "trusted.a", "x", 1, 0));
    ANSWERS(0, setxattr("f", "security.a", "x", 1, 0));
    CHECK(listxattr("f", back, 99) == 7 + 10 + 11, "all three");
    CHECK(!mkdir("t", 0777) && !chmod("t", 01777) && !mkdir("w", 0777) && !chmod("w", 0777), "directories");
    CHECK(!setgid(1000) && !setuid(1000), "a user");
    CHECK(getxattr("f", "user.a", back, 9) == 1, "readable");
    ANSWERS(EACCES, setxattr("f", "user.a", "y", 1, 0));
    ANSWERS(EACCES, removexattr("f", "user.a"));
    ANSWERS(ENODATA, getxattr("f", "trusted.a", back, 9));
    ANSWERS(EPERM, setxattr("f", "trusted.a", "y", 1, 0));
    ANSWERS(EPERM, removexattr("f", "trusted.a"));
    CHECK(getxattr("f", "security.a", back, 9) == 1, "readable");
    ANSWERS(EPERM, setxattr("f", "security.a", "y", 1, 0));
    CHECK(listxattr("f", back, 99) == 7 + 11, "without the trusted one");
    ANSWERS(EPERM, setxattr("t", "user.a", "x", 1, 0));
    ANSWERS(0, setxattr("w", "user.a", "x", 1, 0));
}

static void many_attributes(void) {
    fresh_place();
    char name[32];
    for (int i = 0; i < 200; i++) {
        snprintf(name, sizeof name, "user.%d", i);
        ANSWERS(0, setxattr("f", name, data, i, 0));
    }
    for (int i = 0; i < 200; i += 2) {
        snprintf(name, sizeof name, "user.%d", i);
        ANSWERS(0, removexattr("f", name));
    }
    for (int i = 0; i < 200; i++) {
        snprintf(name, sizeof name, "user.%d", i);
        if (i & 1) CHECK(getxattr("f", name, back, 999) == i && !memcmp(back, data, i), "value %d", i);
        else ANSWERS(ENODATA, getxattr("f", name, back, 999));
    }
    // Their memory is the file system's, and comes back.
    for (int i = 0; i < 3000; i++) {
        int fd = open("g", O_CREAT | O_EXCL | O_RDWR, 0600);
        CHECK(fd >= 0 && !fsetxattr(fd, "user.a", data, 60000, 0) && !unlink("g") && !close(fd), "file %d", i);
    }
}

int main(int argc, char **argv) {
    parse_options(argc, argv, NULL);
    static const struct check checks[] = {
        {"values_are_set_and_read", values_are_set_and_read},
        {"arguments_are_checked", arguments_are_checked},
        {"rights_are_checked", rights_are_checked},
        {"many_attributes", many_attributes},
    };
    run_checks(checks, sizeof checks / sizeof *checks);
    return 0;
}
