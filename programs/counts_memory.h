// Faults and map calls.
#pragma once
#include "counts.h"
#include <sys/stat.h>

#define STORE(at) (*(volatile char *)(at) = 1)
#define LOAD(at) ((void)*(volatile char *)(at))
#define ANONYMOUS (MAP_PRIVATE | MAP_ANONYMOUS)
#define READ_WRITE (PROT_READ | PROT_WRITE)

// ---- faults --------------------------------------------------------------------------------------------------------

// The first round takes tables and magazines.
static void touch(size_t pages, size_t stride, bool backward, bool store) {
    char *at = anonymous(pages * stride);
    for (int round = 0; round < 2; round++) {
        if (round) begin();
        for (size_t i = 0; i < pages; i++) {
            char *page = at + (backward ? pages - 1 - i : i) * stride;
            if (store) STORE(page);
            else LOAD(page);
        }
        if (round) end(pages);
        else CHECK(!madvise(at, pages * stride, MADV_DONTNEED), "madvise");
    }
}
static void zero_in_order(void) { touch(8192, PAGE, false, true); }
static void zero_backward(void) { touch(8192, PAGE, true, true); }
static void zero_sparse(void) { touch(1024, 4 * MIB, false, true); }
static void zero_every_eighth(void) { touch(2048, 8 * PAGE, false, true); }
static void zero_read(void) { touch(4096, PAGE, false, false); }
static void zero_cold(void) {
    char *at = anonymous(32 * MIB);
    begin();
    for (size_t i = 0; i < 8192; i++) STORE(at + i * PAGE);
    end(8192);
}
static void zero_random(void) {
    uint64_t seed = 1;
    char *at = anonymous(64 * MIB);
    begin();
    for (int i = 0; i < 4096; i++) STORE(at + random_next(&seed) % 16384 * PAGE);
    end(4096);
}
static void zero_threads(void) {
    with_threads();
    touch(8192, PAGE, true, true);
}
static void populate(void) {
    char *at;
    COUNT(1, 4, at = mmap(NULL, 8 * MIB, READ_WRITE, ANONYMOUS | MAP_POPULATE, -1, 0); STORE(at); munmap(at, 8 * MIB));
}
static void shared_anonymous(void) {
    char *at = mmap(NULL, 32 * MIB, READ_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(at != MAP_FAILED, "mmap");
    begin();
    for (size_t i = 0; i < 8192; i++) STORE(at + i * PAGE);
    end(8192);
}

static void copy_on_write(void) {
    size_t pages = 4096;
    char *at = anonymous(pages * PAGE);
    for (size_t i = 0; i < pages; i++) STORE(at + i * PAGE);
    int ends[2];
    CHECK(!pipe(ends), "pipe");
    pid_t child = fork();
    CHECK(child >= 0, "fork");
    if (!child) {
        close(ends[1]);
        char byte;
        _exit(read(ends[0], &byte, 1) != 0);
    }
    for (size_t i = 0; i < 64; i++) STORE(at + i * PAGE);
    begin();
    for (size_t i = 64; i < pages; i++) STORE(at + i * PAGE);
    end(pages - 64);
    close(ends[1]);
    reap(child);
}
// The stores of a child whose parent keeps its pages.
static void copy_in_child(void) {
    size_t pages = 4096;
    char *at = anonymous(pages * PAGE);
    for (size_t i = 0; i < pages; i++) STORE(at + i * PAGE);
    pid_t child = fork();
    CHECK(child >= 0, "fork");
    if (!child) {
        begin();
        for (size_t i = 0; i < pages; i++) STORE(at + i * PAGE);
        end(pages);
        _exit(0);
    }
    reap(child);
}
// After a child has ended its parent's pages are writable again without a copy.
static void reuse_after_child(void) {
    size_t pages = 4096;
    char *at = anonymous(pages * PAGE);
    for (size_t i = 0; i < pages; i++) STORE(at + i * PAGE);
    pid_t child = fork();
    if (!child) _exit(0);
    reap(child);
    begin();
    for (size_t i = 0; i < pages; i++) STORE(at + i * PAGE);
    end(pages);
}

static void file_faults(int flags, bool store) {
    size_t bytes = 8 * MIB, pages = bytes / PAGE;
    int file = resident_file(bytes);
    for (int round = 0; round < 2; round++) {
        char *at = mapped_file(file, bytes, flags);
        if (round) begin();
        for (size_t i = 0; i < pages; i++) {
            if (store) STORE(at + i * PAGE);
            else LOAD(at + i * PAGE);
        }
        if (round) end(pages);
        munmap(at, bytes);
    }
}
static void file_read(void) { file_faults(MAP_SHARED, false); }
static void file_store(void) { file_faults(MAP_SHARED, true); }
static void file_private_read(void) { file_faults(MAP_PRIVATE, false); }
static void file_private_store(void) { file_faults(MAP_PRIVATE, true); }
// Each of several processes stores into each page of one shared file.
static void file_store_processes(void) {
    size_t bytes = 16 * MIB, pages = bytes / PAGE;
    int file = resident_file(bytes), processes = 10;
    begin();
    for (int p = 0; p < processes; p++) {
        pid_t child = fork();
        CHECK(child >= 0, "fork");
        if (!child) {
            char *at = mapped_file(file, bytes, MAP_SHARED);
            for (size_t i = 0; i < pages; i++) STORE(at + i * PAGE);
            _exit(0);
        }
        reap(child);
    }
    end(processes * (long)pages);
}
static void file_hole_store(void) {
    char path[] = "/tmp/counts.XXXXXX";
    int file = mkstemp(path);
    CHECK(file >= 0 && !unlink(path) && !ftruncate(file, 16 * MIB), "a sparse file");
    char *at = mapped_file(file, 16 * MIB, MAP_SHARED);
    begin();
    for (size_t i = 0; i < 4096; i++) STORE(at + i * PAGE);
    end(4096);
}
// Pages are there, but mapped with too few rights.
static void regain_rights(void) {
    size_t pages = 512;
    char *at = anonymous(pages * PAGE);
    memset(at, 1, pages * PAGE);
    COUNT(1, 8, mprotect(at, pages * PAGE, PROT_READ); mprotect(at, pages * PAGE, READ_WRITE);
          for (size_t p = 0; p < pages; p++) STORE(at + p * PAGE));
}

// ---- map calls -----------------------------------------------------------------------------------------------------

static void map_unmap(void) {
    COUNT(64, 1000, char *at = mmap(NULL, PAGE, READ_WRITE, ANONYMOUS, -1, 0); CHECK(!munmap(at, PAGE), "munmap"));
}
static void map_touch_unmap(void) {
    COUNT(64, 1000, char *at = mmap(NULL, PAGE, READ_WRITE, ANONYMOUS, -1, 0); STORE(at);
          CHECK(!munmap(at, PAGE), "munmap"));
}
static void map_touch_unmap_16(void) {
    COUNT(64, 500, char *at = mmap(NULL, 16 * PAGE, READ_WRITE, ANONYMOUS, -1, 0);
          for (int p = 0; p < 16; p++) STORE(at + p * PAGE); CHECK(!munmap(at, 16 * PAGE), "munmap"));
}
static void unmap_64(void) {
    size_t bytes = 64 * PAGE;
    char *at[64];
    for (int round = 0; round < 2; round++) {
        for (int m = 0; m < 64; m++) {
            at[m] = anonymous(bytes);
            memset(at[m], 1, bytes);
        }
        if (round) begin();
        for (int m = 0; m < 64; m++) munmap(at[m], bytes);
        if (round) end(64);
    }
}
static void map_fixed(void) {
    char *at = anonymous(16 * PAGE);
    COUNT(16, 500, CHECK(mmap(at + 4 * PAGE, PAGE, READ_WRITE, ANONYMOUS | MAP_FIXED, -1, 0) != MAP_FAILED, "mmap"));
}
static void map_file(void) {
    int file = resident_file(16 * PAGE);
    COUNT(16, 500, char *at = mapped_file(file, 16 * PAGE, MAP_SHARED); CHECK(!munmap(at, 16 * PAGE), "munmap"));
}
static void map_file_private(void) {
    int file = resident_file(16 * PAGE);
    COUNT(16, 500, char *at = mapped_file(file, 16 * PAGE, MAP_PRIVATE); CHECK(!munmap(at, 16 * PAGE), "munmap"));
}
static void protect(void) {
    char *at = anonymous(48 * PAGE);
    memset(at, 1, 48 * PAGE);
    COUNT(16, 500, CHECK(!mprotect(at + 16 * PAGE, 16 * PAGE, PROT_READ), "mprotect");
          CHECK(!mprotect(at + 16 * PAGE, 16 * PAGE, READ_WRITE), "mprotect"));
}
static void protect_whole(void) {
    char *at = anonymous(16 * PAGE);
    memset(at, 1, 16 * PAGE);
    COUNT(16, 500, CHECK(!mprotect(at, 16 * PAGE, PROT_READ), "mprotect");
        CHECK(!mprotect(at, 16 * PAGE, READ_WRITE), "mprotect"));
}
static void remap_grow(void) {
    char *at = anonymous(16 * PAGE);
    memset(at, 1, 16 * PAGE);
    munmap(at + 8 * PAGE, 8 * PAGE);
    COUNT(16, 500, CHECK(mremap(at, 8 * PAGE, 12 * PAGE, 0) == at && mremap(at, 12 * PAGE, 8 * PAGE, 0) == at,
        "mremap"));
}
static void remap_move(void) {
    char *at = anonymous(16 * PAGE), *to = anonymous(16 * PAGE), *t;
    memset(at, 1, 16 * PAGE);
    COUNT(16, 300, CHECK(mremap(at, 16 * PAGE, 16 * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, to) == to, "mremap");
          t = at, at = to, to = t);
}
static void dontneed(void) {
    char *at = anonymous(16 * PAGE);
    COUNT(16, 500, for (int p = 0; p < 16; p++) STORE(at + p * PAGE);
        CHECK(!madvise(at, 16 * PAGE, MADV_DONTNEED), "madvise"));
}
static void free_advice(void) {
    char *at = anonymous(16 * PAGE);
    COUNT(16, 500, for (int p = 0; p < 16; p++) STORE(at + p * PAGE);
        CHECK(!madvise(at, 16 * PAGE, MADV_FREE), "madvise"));
}
static void program_break(void) {
    long at = syscall(SYS_brk, 0);
    COUNT(16, 500, syscall(SYS_brk, at + 4 * PAGE); *(volatile char *)(at + PAGE) = 1; syscall(SYS_brk, at));
}
static void lock_pages(void) {
    char *at = anonymous(16 * PAGE);
    memset(at, 1, 16 * PAGE);
    COUNT(16, 500, CHECK(!mlock(at, 16 * PAGE) && !munlock(at, 16 * PAGE), "mlock"));
}
static void look_at_pages(void) {
    char *at = anonymous(16 * PAGE);
    unsigned char in[16];
    memset(at, 1, 16 * PAGE);
    COUNT(16, 500, CHECK(!mincore(at, 16 * PAGE, in) && in[5], "mincore"));
}
static void sync_file(void) {
    int file = resident_file(16 * PAGE);
    char *at = mapped_file(file, 16 * PAGE, MAP_SHARED);
    COUNT(16, 500, STORE(at + 3 * PAGE); CHECK(!msync(at, 16 * PAGE, MS_SYNC), "msync"));
}
static void unmap_sparse(void) {
    size_t bytes = 64ul << 30;
    char *at = anonymous(bytes);
    for (size_t p = 0; p < bytes; p += bytes / 64) STORE(at + p);
    begin();
    munmap(at, bytes);
    end(1);
}
// The large file of which a window is mapped anew for each write.
static void window_of_file(void) {
    int file = resident_file(MIB);
    char *at = mapped_file(file, MIB, MAP_SHARED);
    COUNT(16, 300, CHECK(pwrite(file, &at, 8, i % 256 * PAGE) == 8, "pwrite"); munmap(at, MIB);
          at = mapped_file(file, MIB, MAP_SHARED); STORE(at + i % 256 * PAGE));
}
static void truncate_mapped(void) {
    int file = resident_file(64 * PAGE);
    char *at[50];
    for (int m = 0; m < 50; m++) {
        at[m] = mapped_file(file, 64 * PAGE, MAP_SHARED);
        for (int p = 0; p < 64; p++) LOAD(at[m] + p * PAGE);
    }
    char page[PAGE] = {0};
    for (int round = 0; round < 4; round++) {
        if (round == 1) begin();
        CHECK(!ftruncate(file, 32 * PAGE), "ftruncate");
        for (int p = 32; p < 64; p++) CHECK(pwrite(file, page, PAGE, p * PAGE) == PAGE, "pwrite");
        for (int m = 0; m < 50; m++) LOAD(at[m] + 40 * PAGE);
    }
    end(3);
}

// Mappings that no neighbour can be merged with.
static char *many(int mappings) {
    char *at = mmap(NULL, mappings * PAGE, PROT_NONE, ANONYMOUS | MAP_NORESERVE, -1, 0);
    CHECK(at != MAP_FAILED, "mmap");
    for (int m = 0; m < mappings; m += 2)
        CHECK(!mprotect(at + m * PAGE, PAGE, READ_WRITE), "mprotect of mapping %d", m);
    return at;
}
#define MANY 100000
static void map_among_many(void) {
    char *at = many(MANY);
    uint64_t seed = 7;
    COUNT(100, 2000, char *one = at + random_next(&seed) % (MANY / 2) * 2 * PAGE; CHECK(!munmap(one, PAGE), "munmap");
          CHECK(mmap(one, PAGE, READ_WRITE, ANONYMOUS | MAP_FIXED, -1, 0) == one, "mmap"));
}
static void map_anywhere_among_many(void) {
    many(MANY);
    COUNT(100, 1000, char *at = mmap(NULL, PAGE, READ_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        CHECK(!munmap(at, PAGE), "munmap"));
}
static void protect_among_many(void) {
    char *at = many(MANY);
    uint64_t seed = 7;
    COUNT(100, 2000, char *one = at + random_next(&seed) % (MANY / 2) * 2 * PAGE;
        CHECK(!mprotect(one, PAGE, PROT_READ), "mprotect");
          CHECK(!mprotect(one, PAGE, READ_WRITE), "mprotect"));
}
static void fault_among_many(void) {
    char *at = many(MANY);
    uint64_t seed = 7;
    COUNT(100, 2000, STORE(at + random_next(&seed) % (MANY / 2) * 2 * PAGE));
}

// The same in a process with several threads.
static void threads_map_unmap(void) { with_threads(); map_unmap(); }
static void threads_map_touch_unmap(void) { with_threads(); map_touch_unmap(); }
static void threads_protect(void) { with_threads(); protect(); }
static void threads_dontneed(void) { with_threads(); dontneed(); }
static void threads_window_of_file(void) { with_threads(); window_of_file(); }
// The same by another thread than the first, which may have an arena of its own.
static void *in_thread(void *body) {
    ((void (*)(void))body)();
    return NULL;
}
static void by_thread(void (*body)(void)) {
    with_threads();
    pthread_t thread;
    CHECK(!pthread_create(&thread, NULL, in_thread, (void *)body) && !pthread_join(thread, NULL), "a thread");
}
static void thread_map_unmap(void) { by_thread(map_unmap); }
static void thread_protect(void) { by_thread(protect); }
static void thread_window_of_file(void) { by_thread(window_of_file); }

static const struct operation memory_operations[] = {
    {"zero_in_order", zero_in_order},
    {"zero_cold", zero_cold},
    {"zero_backward", zero_backward},
    {"zero_sparse", zero_sparse},
    {"zero_every_eighth", zero_every_eighth},
    {"zero_random", zero_random},
    {"zero_read", zero_read},
    {"zero_threads", zero_threads},
    {"populate", populate},
    {"shared_anonymous", shared_anonymous},
    {"copy_on_write", copy_on_write},
    {"copy_in_child", copy_in_child},
    {"reuse_after_child", reuse_after_child},
    {"file_read_fault", file_read},
    {"file_store_fault", file_store},
    {"file_private_read_fault", file_private_read},
    {"file_private_store_fault", file_private_store},
    {"file_store_fault_processes", file_store_processes},
    {"file_hole_store_fault", file_hole_store},
    {"regain_rights", regain_rights},
    {"map_unmap", map_unmap},
    {"map_touch_unmap", map_touch_unmap},
    {"map_touch_unmap_16", map_touch_unmap_16},
    {"unmap_64", unmap_64},
    {"map_fixed", map_fixed},
    {"map_file", map_file},
    {"map_file_private", map_file_private},
    {"protect", protect},
    {"protect_whole", protect_whole},
    {"remap_grow", remap_grow},
    {"remap_move", remap_move},
    {"dontneed", dontneed},
    {"free_advice", free_advice},
    {"program_break", program_break},
    {"lock_pages", lock_pages},
    {"look_at_pages", look_at_pages},
    {"sync_file", sync_file},
    {"unmap_sparse", unmap_sparse},
    {"window_of_file", window_of_file},
    {"truncate_mapped", truncate_mapped},
    {"map_among_many", map_among_many},
    {"map_anywhere_among_many", map_anywhere_among_many},
    {"protect_among_many", protect_among_many},
    {"fault_among_many", fault_among_many},
    {"threads_map_unmap", threads_map_unmap},
    {"threads_map_touch_unmap", threads_map_touch_unmap},
    {"threads_protect", threads_protect},
    {"threads_dontneed", threads_dontneed},
    {"threads_window_of_file", threads_window_of_file},
    {"thread_map_unmap", thread_map_unmap},
    {"thread_protect", thread_protect},
    {"thread_window_of_file", thread_window_of_file},
    {NULL, NULL},
};
