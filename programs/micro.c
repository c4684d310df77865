// One operation each: system calls, clocks, faults on shared files, copy-on-write, threads, small mappings, pipes.
#include "report.h"
#include <fcntl.h>
#include <sys/syscall.h>

#define FILE_BYTES (8 * MIB)

static const char *directory = "/tmp";
static int file; // resident, FILE_BYTES long

static void make_file(void) {
    char path[4200];
    snprintf(path, sizeof path, "%s/micro.%d", directory, getpid());
    file = open(path, O_RDWR | O_CREAT | O_TRUNC, 0600);
    CHECK(file >= 0, "cannot create %s", path);
    unlink(path);
    uint64_t page[PAGE / 8];
    for (uint64_t at = 0; at < FILE_BYTES; at += PAGE) {
        for (size_t i = 0; i < PAGE / 8; i++) page[i] = at + i;
        CHECK(write(file, page, PAGE) == PAGE, "write");
    }
}

static char *map(size_t bytes, int protection, int flags, int fd) {
    char *memory = mmap(NULL, bytes, protection, flags, fd, 0);
    CHECK(memory != MAP_FAILED, "mmap");
    return memory;
}

// Only the faults are measured, not mapping and unmapping.
static void file_read_faults(struct worker *w) {
    while (running(w)) {
        char *memory = map(FILE_BYTES, PROT_READ, MAP_SHARED, file);
        uint64_t sum = 0;
        lap_begin(w);
        for (size_t at = 0; at < FILE_BYTES; at += PAGE) sum += *(volatile uint64_t *)(memory + at + 8);
        lap_end(w, FILE_BYTES / PAGE);
        uint64_t pages = FILE_BYTES / PAGE;
        CHECK(sum == pages * (pages - 1) / 2 * PAGE + pages, "the file's contents are wrong");
        munmap(memory, FILE_BYTES);
    }
}

static void file_write_faults(struct worker *w) {
    // Each worker has a word of its own in every page.
    size_t own = 16 + w->index % 400 * 8;
    for (uint64_t round = 1; running(w); round++) {
        char *memory = map(FILE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, file);
        lap_begin(w);
        for (size_t at = 0; at < FILE_BYTES; at += PAGE) *(volatile uint64_t *)(memory + at + own) = round + at;
        lap_end(w, FILE_BYTES / PAGE);
        munmap(memory, FILE_BYTES);
        uint64_t word, at = round * 7 % (FILE_BYTES / PAGE) * PAGE;
        CHECK(pread(file, &word, 8, at + own) == 8 && word == round + at, "a store did not reach the file");
    }
}

static void cow_faults(struct worker *w) {
    size_t bytes = 8 * MIB;
    char *memory = map(bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1);
    while (running(w)) {
        for (size_t at = 0; at < bytes; at += PAGE) *(volatile uint64_t *)(memory + at) = at;
        pid_t child = fork();
        CHECK(child >= 0, "fork");
        if (!child) {
            lap_begin(w);
            for (size_t at = 0; at < bytes; at += PAGE) *(volatile uint64_t *)(memory + at) += 1;
            lap_end(w, bytes / PAGE);
            for (size_t at = 0; at < bytes; at += PAGE)
                if (*(uint64_t *)(memory + at) != at + 1) _exit(1);
            _exit(0);
        }
        int status;
        CHECK(waitpid(child, &status, 0) == child && status == 0, "the child's copy is wrong");
        for (size_t at = 0; at < bytes; at += 17 * PAGE)
            CHECK(*(uint64_t *)(memory + at) == at, "a child's store shows");
    }
    munmap(memory, bytes);
}

static void *nothing(void *arg) { return (char *)arg + 1; }

static void thread_create_join(struct worker *w) {
    while (running(w)) {
        lap_begin(w);
        for (long i = 0; i < 16; i++) {
            pthread_t thread;
            void *result;
            CHECK(!(errno = pthread_create(&thread, NULL, nothing, (void *)i)), "pthread_create");
            CHECK(!(errno = pthread_join(thread, &result)), "pthread_join");
            CHECK(result == (void *)(i + 1), "a thread's result is wrong");
        }
        lap_end(w, 16);
    }
}

static void mmap_munmap(struct worker *w) {
    while (running(w)) {
        lap_begin(w);
        for (int i = 0; i < 64; i++)
            CHECK(!munmap(map(PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1), PAGE), "munmap");
        lap_end(w, 64);
    }
}

static void mmap_touch_munmap(struct worker *w) {
    while (running(w)) {
        lap_begin(w);
        for (int i = 0; i < 64; i++) {
            char *memory = map(PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1);
            CHECK(memory[i * 8]++ == 0, "a fresh page is not zero");
            CHECK(!munmap(memory, PAGE), "munmap");
        }
        lap_end(w, 64);
    }
}

static void mprotect_16(struct worker *w) {
    char *memory = map(48 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1);
    memset(memory, 1, 48 * PAGE);
    while (running(w)) {
        lap_begin(w);
        for (int i = 0; i < 32; i++) {
            CHECK(!mprotect(memory + 16 * PAGE, 16 * PAGE, PROT_READ), "mprotect");
            CHECK(!mprotect(memory + 16 * PAGE, 16 * PAGE, PROT_READ | PROT_WRITE), "mprotect");
        }
        lap_end(w, 64);
        memory[20 * PAGE]++;
    }
    munmap(memory, 48 * PAGE);
}

static void pipe_round_trip(struct worker *w) {
    int there[2], back[2];
    CHECK(!pipe(there) && !pipe(back), "pipe");
    pid_t child = fork();
    CHECK(child >= 0, "fork");
    uint64_t token = 0;
    if (!child) {
        close(there[1]);
        close(back[0]);
        while (read(there[0], &token, 8) == 8)
            if (token++, write(back[1], &token, 8) != 8) break;
        _exit(0);
    }
    close(there[0]);
    close(back[1]);
    while (running(w)) {
        lap_begin(w);
        for (int i = 0; i < 64; i++) {
            uint64_t sent = token;
            CHECK(write(there[1], &token, 8) == 8 && read(back[0], &token, 8) == 8, "the pipe broke");
            CHECK(token == sent + 1, "the answer is wrong");
        }
        lap_end(w, 64);
    }
    close(there[1]);
    close(back[0]);
    CHECK(waitpid(child, NULL, 0) == child, "waitpid");
}

// A mapping of 64 GiB with 64 resident pages: the cost must follow the pages.
static void sparse_munmap(struct worker *w) {
    size_t bytes = 64ul << 30;
    while (running(w)) {
        char *memory = map(bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1);
        for (size_t at = 0; at < bytes; at += bytes / 64) memory[at] = 1;
        lap_begin(w);
        CHECK(!munmap(memory, bytes), "munmap");
        lap_end(w, 1);
    }
}

static void system_call(struct worker *w) {
    pid_t parent = getppid();
    while (running(w)) {
        lap_begin(w);
        for (int i = 0; i < 1000; i++) CHECK(getppid() == parent, "getppid");
        lap_end(w, 1000);
    }
}

// By the C library, which makes no system call where the kernel's shared object computes the clock.
static void clock_gettimes(struct worker *w) {
    struct timespec last = {0}, now;
    while (running(w)) {
        lap_begin(w);
        for (int i = 0; i < 1000; i++) CHECK(!clock_gettime(CLOCK_MONOTONIC, &now), "clock_gettime");
        lap_end(w, 1000);
        CHECK(now.tv_sec >= last.tv_sec, "the clock went back");
        last = now;
    }
}

static void clock_system_calls(struct worker *w) {
    struct timespec now;
    while (running(w)) {
        lap_begin(w);
        for (int i = 0; i < 1000; i++) CHECK(!syscall(SYS_clock_gettime, CLOCK_MONOTONIC, &now), "clock_gettime");
        lap_end(w, 1000);
    }
}

int main(int argc, char **argv) {
    struct setting own[] = {{"--directory", NULL, &directory}, {0}};
    parse_options(argc, argv, own);
    make_file();
    measure("system_call", system_call);
    measure("clock_gettime", clock_gettimes);
    measure("clock_system_call", clock_system_calls);
    measure("file_read_fault", file_read_faults);
    measure("file_write_fault", file_write_faults);
    if (options.threads == 1) measure("cow_fault", cow_faults);
    measure("thread_create_join", thread_create_join);
    measure("mmap_munmap", mmap_munmap);
    measure("mmap_touch_munmap", mmap_touch_munmap);
    measure("mprotect_16_pages", mprotect_16);
    measure("pipe_round_trip", pipe_round_trip);
    measure("sparse_munmap_64GiB", sparse_munmap);
}
