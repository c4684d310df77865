// Files, directories and descriptors.
#pragma once
#include "counts.h"
#include <dirent.h>
#include <sys/eventfd.h>
#include <sys/file.h>
#include <sys/inotify.h>
#include <sys/ioctl.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/uio.h>

// A directory of its own, and the process's current one.
static void in_directory(void) {
    char path[] = "/tmp/counts.XXXXXX";
    CHECK(mkdtemp(path) && !chdir(path), "a directory in /tmp");
}
static void make_file(const char *name) {
    int file = open(name, O_CREAT | O_WRONLY, 0644);
    CHECK(file >= 0 && write(file, "text", 4) == 4 && !close(file), "%s", name);
}

static char bytes[64 << 10];

static void read_zero_device(void) {
    int file = open("/dev/zero", O_RDONLY);
    COUNT(16, 1000, CHECK(read(file, bytes, 1) == 1, "read"));
}
static void read_page(void) {
    int file = resident_file(64 * PAGE);
    COUNT(16, 1000, CHECK(pread(file, bytes, PAGE, i % 64 * PAGE) == PAGE, "pread"));
}
static void read_byte(void) {
    int file = resident_file(64 * PAGE);
    COUNT(16, 1000, CHECK(pread(file, bytes, 1, i % 64 * PAGE) == 1, "pread"));
}
static void read_64KiB(void) {
    int file = resident_file(16 * PAGE);
    COUNT(16, 200, CHECK(pread(file, bytes, sizeof bytes, 0) == sizeof bytes, "pread"));
}
static void write_page(void) {
    int file = resident_file(64 * PAGE);
    COUNT(16, 1000, CHECK(pwrite(file, bytes, PAGE, i % 64 * PAGE) == PAGE, "pwrite"));
}
static void write_byte(void) {
    int file = resident_file(64 * PAGE);
    COUNT(16, 1000, CHECK(pwrite(file, bytes, 1, i % 64 * PAGE) == 1, "pwrite"));
}
static void append_page(void) {
    int file = resident_file(PAGE);
    lseek(file, 0, SEEK_END);
    COUNT(16, 1000, CHECK(write(file, bytes, PAGE) == PAGE, "write"));
}
static void write_vector(void) {
    int file = resident_file(PAGE);
    struct iovec parts[4];
    for (int i = 0; i < 4; i++) parts[i] = (struct iovec){bytes + i * 100, 100};
    COUNT(16, 1000, CHECK(pwritev(file, parts, 4, 0) == 400, "pwritev"));
}
static void write_null_device(void) {
    int file = open("/dev/null", O_WRONLY);
    COUNT(16, 1000, CHECK(write(file, bytes, 1) == 1, "write"));
}
static void seek(void) {
    int file = resident_file(PAGE);
    COUNT(16, 2000, lseek(file, i % 100, SEEK_SET));
}
static void send_file(void) {
    int file = resident_file(16 * PAGE), to = open("/dev/null", O_WRONLY);
    COUNT(16, 200, off_t at = 0; CHECK(sendfile(to, file, &at, 16 * PAGE) == 16 * PAGE, "sendfile"));
}
static void copy_range(void) {
    int file = resident_file(16 * PAGE), to = resident_file(PAGE);
    COUNT(16, 200, off_t from = 0; off_t at = 0; CHECK(copy_file_range(file, &from, to, &at, 16 * PAGE, 0) == 16 * PAGE,
        "copy_file_range"));
}
static void sync_of_file(void) {
    int file = resident_file(PAGE);
    COUNT(16, 500, CHECK(pwrite(file, bytes, 8, 0) == 8 && !fsync(file), "fsync"));
}
static void truncate_16_pages(void) {
    int file = resident_file(PAGE);
    COUNT(4, 100, CHECK(pwrite(file, bytes, 16 * PAGE, 0) == 16 * PAGE && !ftruncate(file, 0), "ftruncate"));
}
static void punch_hole(void) {
    int file = resident_file(32 * PAGE);
    COUNT(4, 200, CHECK(!fallocate(file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 4 * PAGE, 8 * PAGE), "fallocate");
          CHECK(pwrite(file, bytes, 8 * PAGE, 4 * PAGE) == 8 * PAGE, "pwrite"));
}

static void open_close(void) {
    in_directory();
    make_file("a");
    COUNT(16, 1000, int file = open("a", O_RDONLY); CHECK(file >= 0 && !close(file), "open"));
}
static void open_deep(void) {
    in_directory();
    CHECK(!mkdir("a", 0755) && !mkdir("a/b", 0755) && !mkdir("a/b/c", 0755), "mkdir");
    make_file("a/b/c/d");
    COUNT(16, 1000, int file = open("a/b/c/d", O_RDONLY); CHECK(file >= 0 && !close(file), "open"));
}
static void open_missing(void) {
    in_directory();
    COUNT(16, 1000, CHECK(open("absent", O_RDONLY) < 0, "open"));
}
static void create_unlink(void) {
    in_directory();
    COUNT(16, 500, int file = open("a", O_RDWR | O_CREAT, 0644); CHECK(file >= 0 && !close(file) && !unlink("a"),
        "create"));
}
static void status_of_path(void) {
    in_directory();
    make_file("a");
    struct stat status;
    COUNT(16, 2000, CHECK(!stat("a", &status), "stat"));
}
static void status_of_file(void) {
    int file = resident_file(PAGE);
    struct stat status;
    COUNT(16, 2000, CHECK(!fstat(file, &status), "fstat"));
}
static void access_path(void) {
    in_directory();
    make_file("a");
    COUNT(16, 2000, CHECK(!access("a", R_OK), "access"));
}
static void list_100(void) {
    in_directory();
    for (int i = 0; i < 100; i++) {
        char name[16];
        snprintf(name, sizeof name, "file%d", i);
        make_file(name);
    }
    int directory = open(".", O_RDONLY | O_DIRECTORY);
    COUNT(4, 50, lseek(directory, 0, SEEK_SET); while (syscall(SYS_getdents64, directory, bytes, 16384) > 0));
}
static void make_directory(void) {
    in_directory();
    COUNT(16, 500, CHECK(!mkdir("a", 0755) && !rmdir("a"), "mkdir"));
}
static void rename_file(void) {
    in_directory();
    make_file("a");
    COUNT(16, 500, CHECK(!rename("a", "b") && !rename("b", "a"), "rename"));
}
static void link_file(void) {
    in_directory();
    make_file("a");
    COUNT(16, 500, CHECK(!link("a", "b") && !unlink("b"), "link"));
}
static void read_link(void) {
    in_directory();
    CHECK(!symlink("a", "b"), "symlink");
    COUNT(16, 1000, CHECK(readlink("b", bytes, 100) == 1, "readlink"));
}
static void change_mode(void) {
    in_directory();
    make_file("a");
    COUNT(16, 1000, CHECK(!chmod("a", 0600 + i % 2), "chmod"));
}
static void change_times(void) {
    in_directory();
    make_file("a");
    COUNT(16, 1000, CHECK(!utimensat(AT_FDCWD, "a", NULL, 0), "utimensat"));
}
static void state_of_file_system(void) {
    struct statfs state;
    COUNT(16, 500, CHECK(!statfs("/tmp", &state), "statfs"));
}
static void duplicate(void) {
    int file = resident_file(PAGE);
    COUNT(16, 1000, int copy = dup(file); CHECK(copy >= 0 && !close(copy), "dup"));
}
static void descriptor_flags(void) {
    int file = resident_file(PAGE);
    COUNT(16, 2000, CHECK(fcntl(file, F_GETFL) >= 0, "fcntl"));
}
static void lock_range(void) {
    int file = resident_file(PAGE);
    struct flock lock = {.l_type = F_WRLCK, .l_len = 10}, none = {.l_type = F_UNLCK, .l_len = 10};
    COUNT(16, 500, CHECK(!fcntl(file, F_SETLK, &lock) && !fcntl(file, F_SETLK, &none), "fcntl"));
}
static void lock_file(void) {
    int file = resident_file(PAGE);
    COUNT(16, 500, CHECK(!flock(file, LOCK_EX) && !flock(file, LOCK_UN), "flock"));
}
static void watch_file(void) {
    in_directory();
    make_file("a");
    int watches = inotify_init();
    COUNT(16, 300, int watch = inotify_add_watch(watches, "a", IN_MODIFY);
        CHECK(watch >= 0 && !inotify_rm_watch(watches, watch), "inotify"));
}
static void memory_file(void) {
    COUNT(16, 300, int file = syscall(SYS_memfd_create, "x", 0); CHECK(file >= 0 && !close(file), "memfd_create"));
}
static void read_proc(const char *path, long times) {
    COUNT(2, times, int file = open(path, O_RDONLY); CHECK(file >= 0, "%s", path);
        while (read(file, bytes, sizeof bytes) > 0); close(file));
}
static void proc_stat(void) { read_proc("/proc/self/stat", 100); }
static void proc_status(void) { read_proc("/proc/self/status", 100); }
static void proc_maps(void) { read_proc("/proc/self/maps", 100); }
static void proc_meminfo(void) { read_proc("/proc/meminfo", 50); }
static void proc_vmstat(void) { read_proc("/proc/vmstat", 50); }
static void proc_statm(void) { read_proc("/proc/self/statm", 100); }
static void proc_smaps(void) { read_proc("/proc/self/smaps", 50); }
static void proc_rollup(void) { read_proc("/proc/self/smaps_rollup", 50); }

// Mappings that no other joins: every second page can only be read.
static void many_mappings(void) {
    char *at = mmap(0, 4000 * 4096L, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    for (int i = 0; i < 4000; i += 2) mprotect(at + i * 4096L, 4096, PROT_READ);
}
static void proc_statm_mapped(void) { many_mappings(); read_proc("/proc/self/statm", 100); }
static void proc_status_mapped(void) { many_mappings(); read_proc("/proc/self/status", 100); }

static const struct operation file_operations[] = {
    {"read_zero_device", read_zero_device},
    {"read_page", read_page},
    {"read_byte", read_byte},
    {"read_64KiB", read_64KiB},
    {"write_page", write_page},
    {"write_byte", write_byte},
    {"append_page", append_page},
    {"write_vector", write_vector},
    {"write_null_device", write_null_device},
    {"seek", seek},
    {"send_file", send_file},
    {"copy_range", copy_range},
    {"sync_of_file", sync_of_file},
    {"truncate_16_pages", truncate_16_pages},
    {"punch_hole", punch_hole},
    {"open_close", open_close},
    {"open_deep", open_deep},
    {"open_missing", open_missing},
    {"create_unlink", create_unlink},
    {"status_of_path", status_of_path},
    {"status_of_file", status_of_file},
    {"access_path", access_path},
    {"list_100", list_100},
    {"make_directory", make_directory},
    {"rename_file", rename_file},
    {"link_file", link_file},
    {"read_link", read_link},
    {"change_mode", change_mode},
    {"change_times", change_times},
    {"state_of_file_system", state_of_file_system},
    {"duplicate", duplicate},
    {"descriptor_flags", descriptor_flags},
    {"lock_range", lock_range},
    {"lock_file", lock_file},
    {"watch_file", watch_file},
    {"memory_file", memory_file},
    {"proc_stat", proc_stat},
    {"proc_status", proc_status},
    {"proc_maps", proc_maps},
    {"proc_meminfo", proc_meminfo},
    {"proc_vmstat", proc_vmstat},
    {"proc_statm", proc_statm},
    {"proc_statm_mapped", proc_statm_mapped},
    {"proc_status_mapped", proc_status_mapped},
    {"proc_smaps", proc_smaps},
    {"proc_rollup", proc_rollup},
    {NULL, NULL},
};
