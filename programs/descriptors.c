// A descriptor comes before the file. Checks the effects of `open` with a full descriptor table, and the names that a
// file without one can get (O_TMPFILE, then `linkat`). Prints a line for each call; the text is the same on Linux.
#include "report.h"
#include <dirent.h>
#include <sys/resource.h>
#include <sys/stat.h>

static void line(const char *what, long result) {
    if (result < 0) printf("%s: %s\n", what, strerror(errno));
    else printf("%s: ok\n", what);
}

// The same on every kernel: descriptors are closed again, so that the next one is free.
static void opens(const char *what, const char *path, int flags) {
    int fd = open(path, flags, 0644);
    line(what, fd);
    if (fd >= 0) close(fd);
}

static void fill_the_table(void) {
    struct rlimit few = {16, 16};
    CHECK(!setrlimit(RLIMIT_NOFILE, &few), "setrlimit");
    while (dup(0) >= 0) {}
    CHECK(errno == EMFILE, "the table is not full");
}

static void empty_the_table(void) {
    for (int fd = 3; fd < 16; fd++) close(fd);
}

static void show(const char *path) {
    struct stat s;
    if (stat(path, &s)) line(path, -1);
    else printf("%s: %ld bytes, %ld links\n", path, (long)s.st_size, (long)s.st_nlink);
}

static void a_full_table(void) {
    int fd = open("old", O_CREAT | O_WRONLY, 0644);
    CHECK(fd >= 0 && write(fd, "text", 4) == 4 && !close(fd), "old");
    CHECK(!mkfifo("fifo", 0644), "mkfifo");
    fill_the_table();
    opens("create in a full table", "new", O_CREAT | O_RDWR);
    opens("create exclusively in a full table", "new", O_CREAT | O_EXCL | O_RDWR);
    opens("truncate in a full table", "old", O_WRONLY | O_TRUNC);
    opens("truncate or create in a full table", "old", O_CREAT | O_WRONLY | O_TRUNC);
    // Without a free descriptor, the call fails before anything is looked up or waited for.
    opens("open nothing in a full table", "nothing", O_RDONLY);
    opens("open a directory to write in a full table", ".", O_WRONLY);
    opens("open a FIFO in a full table", "fifo", O_RDONLY);
    opens("a file without a name in a full table", ".", O_TMPFILE | O_RDWR);
    line("creat in a full table", creat("new", 0644));
    // Errors of the call itself come first.
    opens("wrong flags in a full table", ".", O_TMPFILE | O_RDONLY);
    line("a bad address in a full table", open((char *)8, O_RDONLY));
    opens("no path in a full table", "", O_RDONLY);
    show("new");
    show("old");
    // A failed open keeps no descriptor.
    close(15);
    for (int i = 0; i < 3; i++) opens("open nothing with one descriptor free", "nothing", O_RDONLY);
    opens("create with one descriptor free", "new", O_CREAT | O_RDWR);
    fd = open("new", O_RDONLY | O_CLOEXEC);
    printf("the free one: %d, closed on exec: %d\n", fd, fcntl(fd, F_GETFD));
    empty_the_table();
    show("new");
}

static int without_a_name(int flags) {
    int fd = open(".", O_TMPFILE | O_RDWR | flags, 0640);
    CHECK(fd >= 0 && write(fd, "words", 5) == 5, "O_TMPFILE");
    return fd;
}

static long through_proc(int fd, const char *name) {
    char path[40];
    sprintf(path, "/proc/self/fd/%d", fd);
    return linkat(AT_FDCWD, path, AT_FDCWD, name, AT_SYMLINK_FOLLOW);
}

// The part of what /proc shows that does not depend on the inode's number.
static void shown(int fd) {
    char path[40], target[512], here[256];
    sprintf(path, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(path, target, sizeof target - 1);
    CHECK(length > 0 && getcwd(here, sizeof here), "readlink");
    target[length] = 0;
    bool below = !strncmp(target, here, strlen(here)) && !strncmp(target + strlen(here), "/#", 2);
    printf("shown below its directory: %d, as deleted: %d\n", below, strstr(target, " (deleted)") != NULL);
}

static void names_for_a_file_without_one(void) {
    struct stat s;
    int fd = without_a_name(0);
    CHECK(!fstat(fd, &s), "fstat");
    printf("a file without a name: %ld links, mode %o\n", (long)s.st_nlink, s.st_mode);
    shown(fd);
    line("a name by the descriptor", linkat(fd, "", AT_FDCWD, "by-fd", AT_EMPTY_PATH));
    show("by-fd");
    line("the same name again", linkat(fd, "", AT_FDCWD, "by-fd", AT_EMPTY_PATH));
    line("a second name by the descriptor", linkat(fd, "", AT_FDCWD, "by-fd-2", AT_EMPTY_PATH));
    line("a third name through /proc", through_proc(fd, "by-fd-3"));
    show("by-fd");
    CHECK(!unlink("by-fd") && !unlink("by-fd-2") && !unlink("by-fd-3"), "unlink");
    line("a name once all names are gone, by the descriptor", linkat(fd, "", AT_FDCWD, "again", AT_EMPTY_PATH));
    line("a name once all names are gone, through /proc", through_proc(fd, "again"));
    close(fd);

    fd = without_a_name(0);
    line("a name through /proc", through_proc(fd, "by-proc"));
    show("by-proc");
    close(fd);
    char text[8] = "";
    fd = open("by-proc", O_RDONLY);
    CHECK(fd >= 0 && read(fd, text, 8) == 5, "read");
    printf("it holds: %s\n", text);
    close(fd);

    fd = without_a_name(O_EXCL);
    line("a name for an exclusive file by the descriptor", linkat(fd, "", AT_FDCWD, "none", AT_EMPTY_PATH));
    line("a name for an exclusive file through /proc", through_proc(fd, "none"));
    close(fd);

    // A file that had a name and lost it stays without one.
    fd = open("gone", O_CREAT | O_RDWR, 0644);
    CHECK(fd >= 0 && !unlink("gone"), "gone");
    line("a name for a removed file by the descriptor", linkat(fd, "", AT_FDCWD, "none", AT_EMPTY_PATH));
    line("a name for a removed file through /proc", through_proc(fd, "none"));
    line("an empty path without the flag", linkat(fd, "", AT_FDCWD, "none", 0));
    close(fd);

    fd = open(".", O_RDONLY | O_DIRECTORY);
    line("a name for a directory", linkat(fd, "", AT_FDCWD, "none", AT_EMPTY_PATH));
    close(fd);
    show("none");
}

int main(void) {
    setvbuf(stdout, NULL, _IOLBF, 0);
    umask(022);
    empty_the_table();
    a_full_table();
    names_for_a_file_without_one();
    return 0;
}
