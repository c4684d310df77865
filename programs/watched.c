// `inotify`, checked one by one; the same on Linux and on Quire. Starts as root.
#include "checks.h"
#include <poll.h>
#include <sys/inotify.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>

#ifndef IN_MASK_CREATE
#define IN_MASK_CREATE 0x10000000
#endif
#define PLACE "/tmp/watched"

static int notifier;

static void fresh_place(void) {
    CHECK(!system("rm -rf " PLACE) && !mkdir(PLACE, 0755) && !chdir(PLACE), "a place");
    notifier = inotify_init1(IN_NONBLOCK | IN_CLOEXEC);
    CHECK(notifier >= 0, "inotify_init1");
}

static int add(const char *path, uint32_t mask) {
    int watch = inotify_add_watch(notifier, path, mask);
    CHECK(watch > 0, "a watch on %s", path);
    return watch;
}

static int make(const char *path) {
    int fd = open(path, O_CREAT | O_RDWR, 0644);
    CHECK(fd >= 0, "%s", path);
    return fd;
}

static char buffer[8192];
static char *at, *end;
static uint32_t last_cookie;

// Expects exactly this event next.
static void expect(int watch, uint32_t mask, const char *name) {
    if (at == end) {
        ssize_t n = read(notifier, buffer, sizeof buffer);
        CHECK(n > 0, "no event, wanted %#x of %d %s", mask, watch, name);
        at = buffer, end = buffer + n;
    }
    struct inotify_event *event = (struct inotify_event *)at;
    const char *got = event->len ? event->name : "";
    CHECK(event->wd == watch && event->mask == mask && !strcmp(got, name), "%#x of %d %s, wanted %#x of %d %s",
        event->mask, event->wd, got, mask,
          watch, name);
    CHECK(event->len % 16 == 0 && (event->len == 0) == !*name, "its length %u", event->len);
    for (size_t i = strlen(got); i < event->len; i++) CHECK(!event->name[i], "zeroes");
    last_cookie = event->cookie;
    at += sizeof *event + event->len;
}

static void expect_none(void) {
    CHECK(at == end, "more events: %#x of %d", ((struct inotify_event *)at)->mask, ((struct inotify_event *)at)->wd);
    ANSWERS(EAGAIN, read(notifier, buffer, sizeof buffer));
}

static void files_are_read_and_written(void) {
    fresh_place();
    close(make("f"));
    int watch = add("f", IN_ALL_EVENTS);
    int fd = open("f", O_RDWR);
    CHECK(write(fd, "abc", 3) == 3 && pread(fd, buffer, 2, 0) == 2 && read(fd, buffer, 5) == 0, "bytes");
    CHECK(!fchmod(fd, 0600) && !fchown(fd, 5, 5) && !ftruncate(fd, 1) && !utimensat(AT_FDCWD, "f", NULL, 0),
        "attributes");
    close(fd);
    expect(watch, IN_OPEN, "");
    expect(watch, IN_MODIFY, "");
    expect(watch, IN_ACCESS, "");
    expect(watch, IN_ATTRIB, "");
    expect(watch, IN_MODIFY, "");
    expect(watch, IN_ATTRIB, "");
    expect(watch, IN_CLOSE_WRITE, "");
    close(open("f", O_RDONLY));
    CHECK(!truncate("f", 0), "truncate");
    close(open("f", O_WRONLY | O_TRUNC));
    expect(watch, IN_OPEN, "");
    expect(watch, IN_CLOSE_NOWRITE, "");
    expect(watch, IN_MODIFY, "");
    expect(watch, IN_OPEN, "");
    expect(watch, IN_MODIFY, "");
    expect(watch, IN_CLOSE_WRITE, "");
    close(open("f", O_PATH));
    expect_none();
    // Equal events in a row become one.
    fd = open("f", O_WRONLY);
    for (int i = 0; i < 5; i++) CHECK(write(fd, "x", 1) == 1, "write");
    expect(watch, IN_OPEN, "");
    expect(watch, IN_MODIFY, "");
    expect_none();
}

static void names_come_and_go(void) {
    fresh_place();
    int watch = add(".", IN_CREATE | IN_DELETE | IN_MOVE | IN_ATTRIB | IN_DELETE_SELF | IN_MOVE_SELF);
    close(make("a"));
    CHECK(!mkdir("d", 0755) && !symlink("a", "s") && !link("a", "b") && !mkfifo("p", 0600), "names");
    expect(watch, IN_CREATE, "a");
    expect(watch, IN_CREATE | IN_ISDIR, "d");
    expect(watch, IN_CREATE, "s");
    expect(watch, IN_CREATE, "b");
    expect(watch, IN_CREATE, "p");
    CHECK(!chmod("a", 0600) && !chmod("d", 0700), "chmod");
    expect(watch, IN_ATTRIB, "a");
    expect(watch, IN_ATTRIB | IN_ISDIR, "d");
    CHECK(!rename("a", "c") && !rename("d", "e"), "rename");
    expect(watch, IN_MOVED_FROM, "a");
    uint32_t cookie = last_cookie;
    expect(watch, IN_MOVED_TO, "c");
    CHECK(cookie && cookie == last_cookie, "one cookie");
    expect(watch, IN_MOVED_FROM | IN_ISDIR, "d");
    CHECK(cookie != last_cookie, "another cookie");
    expect(watch, IN_MOVED_TO | IN_ISDIR, "e");
    CHECK(!unlink("b") && !rmdir("e") && !unlink("s"), "removed");
    expect(watch, IN_DELETE, "b");
    expect(watch, IN_DELETE | IN_ISDIR, "e");
    expect(watch, IN_DELETE, "s");
    ANSWERS(ENOENT, rename("none", "other"));
    ANSWERS(EEXIST, mkdir("c", 0755));
    expect_none();
    CHECK(!rename("../watched", "../moved") && !rename("../moved", "../watched"), "itself");
    expect(watch, IN_MOVE_SELF, "");
    expect_none();
}

static void ends_of_files(void) {
    fresh_place();
    int fd = make("f");
    int watch = add("f", IN_ATTRIB | IN_DELETE_SELF | IN_MODIFY);
    CHECK(!unlink("f"), "unlink");
    expect(watch, IN_ATTRIB, "");
    expect_none();
    CHECK(write(fd, "x", 1) == 1, "write");
    expect(watch, IN_MODIFY, "");
    close(fd);
    expect(watch, IN_DELETE_SELF, "");
    expect(watch, IN_IGNORED, "");
    expect_none();
    ANSWERS(EINVAL, inotify_rm_watch(notifier, watch));
    CHECK(!mkdir("d", 0755), "mkdir");
    int outer = add(".", IN_DELETE), inner = add("d", IN_DELETE_SELF);
    CHECK(inner > watch, "a new number");
    CHECK(!rmdir("d"), "rmdir");
    expect(inner, IN_DELETE_SELF, "");
    expect(inner, IN_IGNORED, "");
    expect(outer, IN_DELETE | IN_ISDIR, "d");
    close(make("g"));
    int file = add("g", IN_ALL_EVENTS);
    CHECK(!unlink("g"), "unlink");
    expect(file, IN_ATTRIB, "");
    expect(file, IN_DELETE_SELF, "");
    expect(file, IN_IGNORED, "");
    expect(outer, IN_DELETE, "g");
    // A file that is replaced.
    close(make("h")), close(make("i"));
    file = add("h", IN_ALL_EVENTS);
    int other = add("i", IN_MOVE_SELF);
    CHECK(!rename("i", "h"), "rename");
    expect(file, IN_ATTRIB, "");
    expect(other, IN_MOVE_SELF, "");
    expect(file, IN_DELETE_SELF, "");
    expect(file, IN_IGNORED, "");
    expect_none();
    // A further name.
    CHECK(!link("h", "j"), "link");
    file = add("h", IN_ATTRIB | IN_DELETE_SELF);
    CHECK(!unlink("h"), "one name");
    expect(other, IN_ATTRIB, "");
    expect(outer, IN_DELETE, "h");
    expect_none();
}

static void entries_are_watched_by_their_directory(void) {
    fresh_place();
    close(make("f"));
    int watch = add(".", IN_OPEN | IN_ACCESS | IN_MODIFY | IN_CLOSE);
    int fd = open("f", O_RDWR);
    CHECK(write(fd, "ab", 2) == 2 && pread(fd, buffer, 1, 0) == 1, "bytes");
    CHECK(!unlink("f") && write(fd, "c", 1) == 1, "after the removal");
    close(fd);
    expect(watch, IN_OPEN, "f");
    expect(watch, IN_MODIFY, "f");
    expect(watch, IN_ACCESS, "f");
    expect(watch, IN_MODIFY, "f");
    expect(watch, IN_CLOSE_WRITE, "f");
    // The directory itself.
    fd = open(".", O_RDONLY | O_DIRECTORY);
    CHECK(syscall(SYS_getdents64, fd, buffer, sizeof buffer) > 0, "a listing");
    close(fd);
    expect(watch, IN_OPEN | IN_ISDIR, "");
    expect(watch, IN_ACCESS | IN_ISDIR, "");
    expect(watch, IN_CLOSE_NOWRITE | IN_ISDIR, "");
    expect_none();
    CHECK(add(".", IN_MODIFY | IN_EXCL_UNLINK) == watch, "the same watch");
    fd = make("g");
    CHECK(write(fd, "a", 1) == 1 && !unlink("g") && write(fd, "b", 1) == 1, "removed");
    expect(watch, IN_MODIFY, "g");
    expect_none();
}

static void watches_are_set_and_removed(void) {
    fresh_place();
    close(make("f"));
    CHECK(!symlink("f", "s"), "symlink");
    ANSWERS(EINVAL, inotify_add_watch(notifier, "f", 0));
    ANSWERS(EBADF, inotify_add_watch(99, "f", IN_OPEN));
    ANSWERS(EINVAL, inotify_add_watch(open("f", O_RDONLY), "f", IN_OPEN));
    ANSWERS(ENOENT, inotify_add_watch(notifier, "none", IN_OPEN));
    ANSWERS(EFAULT, inotify_add_watch(notifier, (char *)8, IN_OPEN));
    ANSWERS(ENOTDIR, inotify_add_watch(notifier, "f", IN_OPEN | IN_ONLYDIR));
    ANSWERS(EINVAL, inotify_add_watch(notifier, "f", IN_OPEN | IN_MASK_ADD | IN_MASK_CREATE));
    ANSWERS(EINVAL, inotify_rm_watch(notifier, 77));
    ANSWERS(EBADF, inotify_rm_watch(99, 1));
    ANSWERS(EINVAL, inotify_rm_watch(0, 1));
    ANSWERS(EINVAL, inotify_init1(1));
    ANSWERS(EBADF, write(notifier, "x", 1));
    int watch = add("f", IN_OPEN | IN_MASK_CREATE);
    ANSWERS(EEXIST, inotify_add_watch(notifier, "s", IN_CLOSE | IN_MASK_CREATE));
    CHECK(add("s", IN_CLOSE | IN_MASK_ADD) == watch, "more events");
    close(open("f", O_RDONLY));
    expect(watch, IN_OPEN, "");
    expect(watch, IN_CLOSE_NOWRITE, "");
    CHECK(add("f", IN_CLOSE) == watch, "other events");
    close(open("f", O_RDONLY));
    expect(watch, IN_CLOSE_NOWRITE, "");
    int link = add("s", IN_OPEN | IN_DONT_FOLLOW);
    CHECK(link != watch, "the link itself");
    ANSWERS(0, inotify_rm_watch(notifier, watch));
    close(open("f", O_RDONLY));
    expect(watch, IN_IGNORED, "");
    expect_none();
    watch = add("f", IN_OPEN | IN_ONESHOT);
    close(open("f", O_RDONLY)), close(open("f", O_RDONLY));
    expect(watch, IN_OPEN, "");
    expect(watch, IN_IGNORED, "");
    expect_none();
    ANSWERS(EINVAL, inotify_rm_watch(notifier, watch));
    CHECK(!chmod("f", 0), "chmod");
    CHECK(!setgid(1000) && !setuid(1000), "a user");
    ANSWERS(EACCES, inotify_add_watch(notifier, "f", IN_OPEN));
}

static void reads_and_queues(void) {
    fresh_place();
    CHECK(fcntl(notifier, F_GETFD) == FD_CLOEXEC && fcntl(notifier, F_GETFL) == O_NONBLOCK, "flags %#x",
        fcntl(notifier, F_GETFL));
    int watch = add(".", IN_CREATE), size = -1;
    struct pollfd one = {.fd = notifier, .events = POLLIN};
    CHECK(poll(&one, 1, 0) == 0, "nothing");
    close(make("a")), close(make("a name of some length"));
    CHECK(poll(&one, 1, 0) == 1 && one.revents == POLLIN, "events");
    CHECK(!ioctl(notifier, FIONREAD, &size) && size == 16 + 16 + 16 + 32, "%d bytes", size);
    ANSWERS(EINVAL, read(notifier, buffer, 31));
    CHECK(read(notifier, buffer, 79) == 32, "only the first");
    CHECK(read(notifier, buffer, 48) == 48, "the second");
    CHECK(!ioctl(notifier, FIONREAD, &size) && size == 0, "%d bytes", size);
    fcntl(notifier, F_SETFL, 0);
    pid_t child = fork();
    if (!child) {
        until_asleep(getppid());
        close(make("c"));
        _exit(0);
    }
    expect(watch, IN_CREATE, "c");
    ended(child);
    child = fork();
    if (!child) {
        until_asleep(getppid());
        close(make("e"));
        _exit(0);
    }
    CHECK(poll(&one, 1, 5000) == 1, "a poll");
    expect(watch, IN_CREATE, "e");
    ended(child);
    handle(SIGUSR1, 0);
    child = sender(SIGUSR1);
    ANSWERS(EINTR, read(notifier, buffer, sizeof buffer));
    ended(child);
}

static long setting(const char *name) {
    char path[64], text[32] = "";
    snprintf(path, sizeof path, "/proc/sys/fs/inotify/%s", name);
    int fd = open(path, O_RDONLY);
    CHECK(fd >= 0 && read(fd, text, 31) > 0, "%s", name);
    close(fd);
    return atol(text);
}

static void queues_overflow(void) {
    fresh_place();
    long most = setting("max_queued_events");
    CHECK(most > 0, "a limit");
    close(make("a")), close(make("b"));
    int watch = add(".", IN_ATTRIB);
    for (long i = 0; i < most + 10; i++) CHECK(!chmod(i & 1 ? "a" : "b", 0600), "chmod");
    for (long i = 0; i < most; i++) expect(watch, IN_ATTRIB, i & 1 ? "a" : "b");
    expect(-1, IN_Q_OVERFLOW, "");
    expect_none();
    CHECK(!chmod("a", 0600), "chmod");
    expect(watch, IN_ATTRIB, "a");
}

static void instances_are_limited(void) {
    long most = setting("max_user_instances");
    CHECK(setting("max_user_watches") > 0 && most > 0 && most < 900, "limits");
    CHECK(!setgid(1001) && !setuid(1001), "a user");
    int last = -1;
    for (long i = 0; i < most; i++) CHECK((last = inotify_init()) >= 0, "instance %ld", i);
    ANSWERS(EMFILE, inotify_init());
    close(last);
    CHECK((last = inotify_init()) >= 0, "one more");
}

static atomic_int stop;
static void *churn(void *unused) {
    (void)unused;
    for (int i = 0; !atomic_load(&stop); i++) {
        close(make("x"));
        rename("x", "y");
        unlink("y");
    }
    return NULL;
}

static void watches_come_and_go_meanwhile(void) {
    fresh_place();
    pthread_t threads[2];
    for (int i = 0; i < 2; i++) pthread_create(&threads[i], NULL, churn, NULL);
    for (int i = 0; i < 300; i++) {
        int own = inotify_init1(IN_NONBLOCK);
        inotify_add_watch(own, ".", IN_ALL_EVENTS);
        inotify_add_watch(own, "x", IN_ALL_EVENTS);
        inotify_add_watch(own, "y", IN_ALL_EVENTS | IN_ONESHOT);
        read(own, buffer, sizeof buffer);
        if (i & 1) inotify_rm_watch(own, 1);
        close(own);
    }
    atomic_store(&stop, 1);
    for (int i = 0; i < 2; i++) pthread_join(threads[i], NULL);
}

// Expects the next line about a watch, up to the file handle that Linux also prints.
static void expect_watch(FILE *info, int watch, const char *path, uint32_t mask) {
    char line[400];
    int wd;
    unsigned long ino, sdev, seen, ignored;
    struct stat status;
    do CHECK(fgets(line, sizeof line, info), "no line about watch %d", watch);
    while (strncmp(line, "inotify", 7));
    CHECK(sscanf(line, "inotify wd:%x ino:%lx sdev:%lx mask:%lx ignored_mask:%lx ", (unsigned *)&wd, &ino, &sdev, &seen,
        &ignored) == 5, "%s", line);
    CHECK(!stat(path, &status), "%s", path);
    unsigned long device = (unsigned long)major(status.st_dev) << 20 | minor(status.st_dev);
    CHECK(wd == watch && ino == status.st_ino && sdev == device && seen == mask && !ignored, "%d %s %#x: %s", watch,
        path, mask, line);
}

static void watches_are_shown(void) {
    fresh_place();
    CHECK(!mkdir("a", 0755) && !mkdir("b", 0755), "mkdir");
    char path[64], line[400];
    snprintf(path, sizeof path, "/proc/self/fdinfo/%d", notifier);
    int first = add("a", IN_MODIFY | IN_ONESHOT), second = add("b", IN_ALL_EVENTS | IN_EXCL_UNLINK),
        third = add(".", IN_OPEN | IN_ONLYDIR);
    FILE *info = fopen(path, "r");
    CHECK(info, "%s", path);
    expect_watch(info, third, ".", IN_OPEN);
    expect_watch(info, second, "b", IN_ALL_EVENTS | IN_EXCL_UNLINK);
    expect_watch(info, first, "a", IN_MODIFY | IN_ONESHOT);
    CHECK(!fgets(line, sizeof line, info), "more: %s", line);
    fclose(info);
    CHECK(!inotify_rm_watch(notifier, third) && !rmdir("b") && add("a", IN_DELETE) == first, "changes");
    info = fopen(path, "r");
    CHECK(info, "%s", path);
    expect_watch(info, first, "a", IN_DELETE);
    CHECK(!fgets(line, sizeof line, info), "more: %s", line);
    fclose(info);
}

int main(int argc, char **argv) {
    parse_options(argc, argv, NULL);
    static const struct check checks[] = {
        {"files_are_read_and_written", files_are_read_and_written},
        {"names_come_and_go", names_come_and_go},
        {"ends_of_files", ends_of_files},
        {"entries_are_watched_by_their_directory", entries_are_watched_by_their_directory},
        {"watches_are_set_and_removed", watches_are_set_and_removed},
        {"reads_and_queues", reads_and_queues},
        {"queues_overflow", queues_overflow},
        {"instances_are_limited", instances_are_limited},
        {"watches_come_and_go_meanwhile", watches_come_and_go_meanwhile},
        {"watches_are_shown", watches_are_shown},
    };
    run_checks(checks, sizeof checks / sizeof *checks);
    return 0;
}
