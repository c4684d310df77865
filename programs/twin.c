// Random file and memory calls, loads and stores: the sequence follows from the seed alone, and a digest of all results
// from the system. Linux and Quire must print the same.
//
// Everything happens on a few files and in one area of addresses. A call's arguments never depend on a result, so that
// both continue with the same calls after a difference. The digest omits the details that Linux leaves open: the
// address that the kernel chooses for a mapping, its resident pages, and the merged lines of /proc/self/maps.
//
//   --seed N     the sequence (default 1).
//   --calls N    how many (default 100000).
//   --trace N    writes each call with its result to standard error, from call N on.
#include "report.h"
#include <dirent.h>
#include <fcntl.h>
#include <ftw.h>
#include <setjmp.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/uio.h>

#define AREA ((char *)0x200000000000)
#define PAGES 96
#define SLOTS 6      // file descriptors in use
#define NAMES 5      // f0, f1, ...
#define MOST 65      // pages that a file may have
#define EVERY 1000   // calls between two digests

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22
#define MADV_POPULATE_WRITE 23
#endif

static long seed = 1, calls = 100000, trace = -1;
static uint64_t state, digest = 0xcbf29ce484222325;
static int files[SLOTS];
static char buffer[16 * PAGE], doing[256];

static uint64_t below(uint64_t n) { return (random_next(&state) >> 16) % n; }
#define ONE_OF(...) ({ \
    static const long all[] = {__VA_ARGS__}; \
    all[below(sizeof all / sizeof *all)]; \
})

// FNV-1a, a word at a time.
static void note(uint64_t word) { digest = (digest ^ word) * 0x100000001b3; digest ^= digest >> 29; }
static void note_bytes(const void *from, size_t count) {
    const unsigned char *bytes = from;
    for (size_t i = 0; i < count; i++) digest = (digest ^ bytes[i]) * 0x100000001b3;
}

// ---- the call in progress ------------------------------------------------------------------------------------------

#define SAY(...) snprintf(doing, sizeof doing, __VA_ARGS__)

// The result of a call, or its error.
static long ended(long result) {
    long value = result == -1 ? -errno : result;
    note(value);
    if (trace >= 0) fprintf(stderr, "%s = %ld\n", doing, value);
    return value;
}

// As an address: within the area, or elsewhere.
static long ended_at(void *result) {
    long value = result == MAP_FAILED ? -errno : (char *)result - AREA;
    if (value < -4095 || value > (long)(PAGES * PAGE)) value = 1l << 40;
    note(value);
    if (trace >= 0) fprintf(stderr, "%s = %#lx\n", doing, value);
    return value;
}

static size_t a_page(void) { return below(4) ? below(24) : below(PAGES); } // some places are busier than others
static size_t a_length(size_t page) {
    size_t most = PAGES - page;
    return 1 + below(below(4) ? (most < 6 ? most : 6) : most);
}
static char *at(size_t page) { return AREA + page * PAGE; }
// Sometimes no page boundary, or no bytes.
static char *roughly(size_t page) { return at(page) + (below(24) ? 0 : below(PAGE)); }
static size_t bytes_of(size_t pages) { return below(24) ? pages * PAGE : below(6) ? pages * PAGE - below(PAGE) : 0; }

static int a_protection(void) {
    return ONE_OF(PROT_READ | PROT_WRITE, PROT_READ | PROT_WRITE, PROT_READ | PROT_WRITE, PROT_READ, PROT_NONE,
                  PROT_READ | PROT_EXEC, PROT_READ | PROT_WRITE | PROT_EXEC);
}
static int a_slot(void) { return below(SLOTS); }
static const char all_names[][12] = {"f0", "f1", "f2", "f3", "f4", "d0/f0", "d1/f0", "d0", "d1", "d0/../f1", "none",
    "f0/x", "s0"};
static const char *a_name(void) {
    return all_names[below(3) ? below(NAMES) : below(sizeof all_names / sizeof *all_names)];
}
static off_t an_offset(void) {
    return below(40) ? (long)below(below(6) ? 20 * PAGE : MOST * PAGE) : -1 - (long)below(9999);
}
static size_t a_size(void) { return below(4) ? below(600) : below(sizeof buffer); }

// ---- loads and stores ----------------------------------------------------------------------------------------------

static sigjmp_buf back;
static volatile sig_atomic_t accessing;
static volatile long trouble;

static void on_trouble(int signal, siginfo_t *info, void *context) {
    (void)context;
    if (!accessing) {
        static const char text[] = "failed: a signal that no access explains\n";
        (void)!write(2, text, sizeof text - 1);
        _exit(1);
    }
    trouble = signal << 8 | info->si_code;
    char *where = info->si_addr;
    note(where >= AREA && where < AREA + PAGES * PAGE ? where - AREA : -1);
    siglongjmp(back, 1);
}

static void load(void) {
    char *from = at(a_page()) + below(PAGE / 8) * 8;
    SAY("load %#lx", (long)(from - AREA));
    accessing = 1;
    long value = sigsetjmp(back, 0) ? -trouble : (long)*(volatile uint64_t *)from;
    accessing = 0;
    ended(value == -1 ? -2 : value);
}

static void store(void) {
    char *to = at(a_page()) + below(PAGE / 8) * 8;
    uint64_t value = below(1ul << 40);
    SAY("store %#lx", (long)(to - AREA));
    accessing = 1;
    long result = 0;
    if (sigsetjmp(back, 0)) result = -trouble;
    else *(volatile uint64_t *)to = value;
    accessing = 0;
    ended(result);
}

static void look_at_all(void) {
    volatile uint64_t readable = 0;
    SAY("look at all");
    for (volatile size_t page = 0; page < PAGES; page++) {
        accessing = 1;
        if (!sigsetjmp(back, 0)) {
            volatile uint64_t *from = (uint64_t *)at(page);
            for (size_t i = 0; i < PAGE / 8; i += 8) {
                note(from[i]);
                if (trace >= 0 && from[i]) fprintf(stderr, "  %#zx has %lx\n", page * PAGE + i * 8, from[i]);
            }
            readable++;
        } else {
            note(trouble);
        }
        accessing = 0;
    }
    ended(readable);
}

// ---- memory calls --------------------------------------------------------------------------------------------------

static void map_memory(void) {
    size_t page = a_page(), length = a_length(page);
    int prot = a_protection();
    int flags = ONE_OF(MAP_PRIVATE, MAP_PRIVATE, MAP_PRIVATE, MAP_SHARED) | MAP_ANONYMOUS;
    flags |= ONE_OF(MAP_FIXED, MAP_FIXED, MAP_FIXED_NOREPLACE, MAP_FIXED | MAP_POPULATE, MAP_FIXED | MAP_NORESERVE);
    char *to = roughly(page);
    size_t bytes = bytes_of(length);
    SAY("mmap %#lx %#zx prot %d flags %#x", (long)(to - AREA), bytes, prot, flags);
    ended_at(mmap(to, bytes, prot, flags, -1, 0));
}

static void map_file(void) {
    size_t page = a_page(), length = a_length(page);
    int slot = a_slot(), prot = a_protection();
    int flags = ONE_OF(MAP_PRIVATE, MAP_SHARED, MAP_SHARED) | ONE_OF(MAP_FIXED, MAP_FIXED, MAP_FIXED_NOREPLACE);
    off_t from = below(24) ? (long)(below(MOST) * PAGE) : an_offset();
    char *to = roughly(page);
    size_t bytes = bytes_of(length);
    SAY("mmap %#lx %#zx prot %d flags %#x slot %d from %#lx", (long)(to - AREA), bytes, prot, flags, slot, from);
    ended_at(mmap(to, bytes, prot, flags, files[slot], from));
}

static void map_anywhere(void) {
    size_t bytes = (1 + below(20)) * PAGE;
    int flags = ONE_OF(MAP_PRIVATE, MAP_SHARED) | MAP_ANONYMOUS;
    SAY("mmap anywhere %#zx flags %#x", bytes, flags);
    char *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, flags, -1, 0);
    if (ended_at(memory) < 0) return;
    for (size_t i = 0; i < bytes; i += PAGE) note(memory[i]), memory[i] = i / PAGE + 1;
    for (size_t i = 0; i < bytes; i += PAGE) note(memory[i]);
    ended(munmap(memory, bytes));
}

static void unmap(void) {
    size_t page = a_page(), length = a_length(page);
    char *from = roughly(page);
    size_t bytes = bytes_of(length);
    SAY("munmap %#lx %#zx", (long)(from - AREA), bytes);
    ended(munmap(from, bytes));
}

static void protect(void) {
    size_t page = a_page(), length = a_length(page);
    char *from = roughly(page);
    size_t bytes = bytes_of(length);
    int prot = a_protection();
    SAY("mprotect %#lx %#zx prot %d", (long)(from - AREA), bytes, prot);
    ended(mprotect(from, bytes, prot));
}

// One mapping, new or a page of an old one: the kernel version decides whether several can be moved at once.
static size_t one_mapping(size_t page, size_t length) {
    int slot = a_slot(), flags = ONE_OF(MAP_PRIVATE, MAP_PRIVATE, MAP_SHARED);
    off_t from = below(20) * PAGE;
    bool file = !below(3);
    uint64_t value = below(1ul << 40);
    if (below(2)) return 1;
    SAY("mmap %#lx %#zx flags %#x slot %d from %#lx, to be moved", page * PAGE, length * PAGE, flags, file ? slot : -1,
        from);
    void *memory = mmap(at(page), length * PAGE, PROT_READ | PROT_WRITE, flags | MAP_FIXED | (file ? 0 : MAP_ANONYMOUS),
                        file ? files[slot] : -1, file ? from : 0);
    if (ended_at(memory) < 0) return 1;
    if (!file)
        for (size_t i = 0; i < length; i++) *(volatile uint64_t *)at(page + i) = value + i;
    return length;
}

static void remap(void) {
    size_t page = a_page(), length = a_length(page), target = a_page(), wanted = a_length(target);
    length = one_mapping(page, length);
    char *from = roughly(page), *to = roughly(target);
    size_t old = length * PAGE, new = below(2) ? old : wanted * PAGE;
    if (!below(24)) old = below(PAGE);
    if (!below(24)) new = below(PAGE);
    int flags = ONE_OF(0, MREMAP_MAYMOVE | MREMAP_FIXED, MREMAP_MAYMOVE | MREMAP_FIXED, MREMAP_FIXED);
    // Where nothing can be moved, some kernels unmap the target nevertheless.
    unsigned char there;
    if (mincore(at(page), PAGE, &there)) flags &= ~MREMAP_FIXED;
    SAY("mremap %#lx %#zx to %#zx flags %d at %#lx", (long)(from - AREA), old, new, flags, (long)(to - AREA));
    ended_at(mremap(from, old, new, flags, to));
}

// It may move: it is moved back.
static void grow(void) {
    size_t page = a_page(), length = a_length(page);
    volatile size_t more = 1 + below(8);
    length = one_mapping(page, length);
    more += length;
    SAY("mremap %#lx %#zx to %#zx, may move", page * PAGE, length * PAGE, more * PAGE);
    char *volatile now = mremap(at(page), length * PAGE, more * PAGE, MREMAP_MAYMOVE);
    bool moved = now != MAP_FAILED && (now < AREA || now >= AREA + PAGES * PAGE);
    ended(now == MAP_FAILED ? -1 : moved);
    if (!moved) return;
    for (size_t i = length; i < more; i++) {
        accessing = 1;
        if (sigsetjmp(back, 0)) note(trouble);
        else note(now[i * PAGE]), now[i * PAGE] = 1;
        accessing = 0;
    }
    CHECK(!munmap(now + length * PAGE, (more - length) * PAGE), "munmap");
    ended_at(mremap(now, length * PAGE, length * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, at(page)));
}

static void advise(void) {
    size_t page = a_page(), length = a_length(page);
    char *from = roughly(page);
    size_t bytes = bytes_of(length);
    int advice = ONE_OF(MADV_DONTNEED, MADV_DONTNEED, MADV_DONTNEED, MADV_WILLNEED, MADV_NORMAL, MADV_RANDOM,
        MADV_SEQUENTIAL,
                        MADV_DONTFORK, MADV_DOFORK, MADV_WIPEONFORK, MADV_KEEPONFORK, MADV_REMOVE, MADV_COLD,
                            MADV_PAGEOUT,
                        MADV_POPULATE_READ, MADV_POPULATE_WRITE, 9999);
    SAY("madvise %#lx %#zx %d", (long)(from - AREA), bytes, advice);
    ended(madvise(from, bytes, advice));
}

// Freed pages have either their old bytes or none, until they are written.
static void advise_free(void) {
    char *from = at(a_page());
    uint64_t value = below(1ul << 40);
    SAY("madvise free %#lx", (long)(from - AREA));
    if (ended(madvise(from, PAGE, MADV_FREE)) != 0) return;
    accessing = 1;
    long result = 0;
    if (sigsetjmp(back, 0)) {
        // It cannot be written: then no call may see which it is.
        result = -trouble;
        accessing = 0;
        ended(mmap(from, PAGE, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == MAP_FAILED);
    } else {
        for (size_t i = 0; i < PAGE / 8; i++) ((volatile uint64_t *)from)[i] = value + i;
    }
    accessing = 0;
    ended(result);
}

static void sync_memory(void) {
    size_t page = a_page(), length = a_length(page);
    char *from = roughly(page);
    size_t bytes = bytes_of(length);
    int flags = ONE_OF(MS_SYNC, MS_ASYNC, MS_SYNC | MS_INVALIDATE, MS_SYNC | MS_ASYNC, 0, 64);
    SAY("msync %#lx %#zx %d", (long)(from - AREA), bytes, flags);
    ended(msync(from, bytes, flags));
}

static void lock_memory(void) {
    // Few pages: any user may lock that many.
    size_t page = a_page();
    char *from = roughly(page);
    size_t bytes = (1 + below(4)) * PAGE;
    SAY("mlock %#lx %#zx", (long)(from - AREA), bytes);
    ended(mlock(from, bytes));
    SAY("madvise of a page that may be locked");
    ended(madvise(at(page), PAGE, MADV_DONTNEED));
    SAY("munlock %#lx %#zx", (long)(from - AREA), bytes);
    ended(munlock(from, bytes));
    SAY("munlockall");
    ended(munlockall());
}

static void resident(void) {
    size_t page = a_page(), length = a_length(page);
    unsigned char which[PAGES];
    SAY("mincore %#lx %#zx", (long)(at(page) - AREA), length * PAGE);
    ended(mincore(at(page), length * PAGE, which));
}

// /proc/self/maps of the area; neighbours that are alike are one.
static void maps(void) {
    static char text[1 << 16];
    SAY("maps");
    int file = open("/proc/self/maps", O_RDONLY);
    CHECK(file >= 0, "/proc/self/maps");
    size_t size = 0;
    for (ssize_t n; (n = read(file, text + size, sizeof text - 1 - size)) > 0;) size += n;
    close(file);
    text[size] = 0;
    unsigned long last_end = 0, last_next = 0;
    char last_rights[8] = "", last_name[128] = "";
    long lines = 0;
    for (char *line = strtok(text, "\n"); line; line = strtok(NULL, "\n")) {
        unsigned long start, end, offset;
        char rights[8], path[128] = "";
        if (sscanf(line, "%lx-%lx %7s %lx %*s %*s %127[^\n]", &start, &end, rights, &offset, path) < 4)
            fail("maps: %s", line);
        if (start < (unsigned long)AREA || start >= (unsigned long)at(PAGES)) continue;
        end = end < (unsigned long)at(PAGES) ? end : (unsigned long)at(PAGES);
        // Which of a file's names it shows, when some are gone, is not compared.
        const char *name = *path == '/' || strstr(path, "(deleted)") ? "file" : path;
        bool alike = start == last_end && !strcmp(rights, last_rights) && !strcmp(name, last_name) &&
                     (!*name || offset == last_next);
        if (!alike) {
            lines++;
            note(last_end), note(start), note_bytes(rights, 4), note(*name ? offset : 0),
                note_bytes(name, strlen(name));
            if (trace >= 0)
                fprintf(stderr, "  -%lx %lx- %s %lx %s\n", last_end, start, rights, *name ? offset : 0, name);
        }
        last_end = end, last_next = offset + end - start;
        strcpy(last_rights, rights), strcpy(last_name, name);
    }
    note(last_end);
    ended(lines);
}

// ---- file calls ----------------------------------------------------------------------------------------------------

static void fill_buffer(size_t bytes) {
    uint64_t value = below(1ul << 40);
    for (size_t i = 0; i < bytes; i++) buffer[i] = value + i * 7 + (i >> 8);
}

static void noted(long count, const char *from) {
    if (ended(count) > 0) note_bytes(from, count);
}

static void open_one(void) {
    int slot = a_slot();
    const char *name = a_name();
    int flags = ONE_OF(O_RDWR | O_CREAT, O_RDWR | O_CREAT, O_RDWR | O_CREAT, O_RDONLY, O_WRONLY, O_RDWR | O_APPEND,
                       O_RDWR | O_CREAT | O_EXCL, O_RDWR | O_TRUNC, O_RDONLY | O_DIRECTORY, O_RDWR | O_NOFOLLOW);
    SAY("open %s %#o as %d", name, flags, slot);
    int file = open(name, flags, 0644);
    ended(file < 0 ? -1 : 0);
    if (file < 0) return;
    struct stat found;
    CHECK(!fstat(file, &found), "fstat");
    // Only expected files and directories are kept.
    CHECK(dup2(file, files[slot]) == files[slot] && !close(file), "dup2");
    note(S_ISDIR(found.st_mode));
}

static void read_some(void) {
    int slot = a_slot();
    size_t size = a_size();
    bool here = below(3);
    off_t from = an_offset();
    if (here) SAY("pread slot %d %zu from %#lx", slot, size, from);
    else SAY("read slot %d %zu", slot, size);
    noted(here ? pread(files[slot], buffer, size, from) : read(files[slot], buffer, size), buffer);
}

// Linux's tmpfs shows bytes that a mapping stored behind a file's end, within its last page, when the file grows; POSIX
// demands zeroes. They are zeroed before the file can grow.
static void zero_behind_end(int file) {
    struct stat found;
    char last;
    if (fstat(file, &found) || !S_ISREG(found.st_mode) || found.st_size % PAGE == 0) return;
    off_t at = found.st_size - 1;
    CHECK(pread(file, &last, 1, at) == 1 && !ftruncate(file, at) && pwrite(file, &last, 1, at) == 1,
        "a file's last byte");
}

static void zero_behind_end_of(const char *name) {
    int file = open(name, O_RDWR);
    if (file < 0) return;
    zero_behind_end(file);
    close(file);
}

static void zero_behind_ends(void) {
    for (int slot = 0; slot < SLOTS; slot++) {
        char name[32];
        snprintf(name, sizeof name, "/proc/self/fd/%d", files[slot]);
        zero_behind_end_of(name);
    }
}

static void write_some(void) {
    int slot = a_slot();
    size_t size = a_size();
    bool here = below(3);
    off_t to = an_offset();
    fill_buffer(size);
    // No file grows without end.
    if (!here && lseek(files[slot], 0, SEEK_CUR) > (off_t)(MOST * PAGE)) lseek(files[slot], 0, SEEK_SET);
    if (here) SAY("pwrite slot %d %zu to %#lx", slot, size, to);
    else SAY("write slot %d %zu", slot, size);
    zero_behind_ends();
    ended(here ? pwrite(files[slot], buffer, size, to) : write(files[slot], buffer, size));
}

// Whether bytes from `from` on are mapped from the place where they would be written: the kernel decides in which order
// they are copied then.
static bool onto_itself(int file, off_t to, const char *from, size_t size) {
    struct stat found;
    if (fstat(file, &found)) return false;
    FILE *maps = fopen("/proc/self/maps", "r");
    CHECK(maps, "/proc/self/maps");
    char line[512];
    bool same = false;
    while (fgets(line, sizeof line, maps)) {
        unsigned long start, end, offset, inode;
        // Shared memory without a file has a number too, from another file system.
        if (sscanf(line, "%lx-%lx %*s %lx %*s %lu", &start, &end, &offset, &inode) != 4 || inode != found.st_ino ||
            !strstr(line, "twin.")) continue;
        // The source of the write, however many lines show its mapping.
        unsigned long first = (unsigned long)from, last = first + size;
        first = first > start ? first : start, last = last < end ? last : end;
        same |= first < last && (off_t)(offset + first - start) < to + (off_t)size &&
            (off_t)(offset + last - start) > to;
    }
    fclose(maps);
    return same;
}

// From and to the area, which may have holes.
static void transfer(void) {
    int slot = a_slot();
    size_t page = a_page(), size = 1 + below(3 * PAGE);
    char *where = at(page) + below(PAGE);
    off_t offset = below(20 * PAGE);
    bool out = below(2);
    // A write beyond the end of which nothing can be read makes the file longer on some kernels and not on others.
    struct stat found;
    if (out && !fstat(files[slot], &found) && offset > found.st_size) offset = found.st_size;
    SAY("%s slot %d %zu bytes at %#lx, area %#lx", out ? "pwrite" : "pread", slot, size, offset, (long)(where - AREA));
    if (out && onto_itself(files[slot], offset, where, size)) return;
    if (out) zero_behind_ends();
    ended(out ? pwrite(files[slot], where, size, offset) : pread(files[slot], where, size, offset));
}

static void vectors(void) {
    int slot = a_slot();
    struct iovec parts[3];
    size_t used = 0;
    bool out = below(2);
    for (int i = 0; i < 3; i++) {
        parts[i] = (struct iovec){buffer + used, below(900)};
        used += parts[i].iov_len;
    }
    off_t offset = an_offset();
    fill_buffer(used);
    SAY("%s slot %d %zu bytes at %#lx", out ? "pwritev" : "preadv", slot, used, offset);
    if (out) zero_behind_ends();
    if (out) ended(pwritev(files[slot], parts, 3, offset));
    else noted(preadv(files[slot], parts, 3, offset), buffer);
}

static void seek(void) {
    int slot = a_slot(), from = ONE_OF(SEEK_SET, SEEK_CUR, SEEK_END, 77);
    off_t offset = from == SEEK_SET ? an_offset() : (long)below(2 * PAGE) - (long)PAGE;
    struct stat found;
    // Offsets in directories are the file system's.
    if (fstat(files[slot], &found) || S_ISDIR(found.st_mode)) return;
    SAY("lseek slot %d %ld %d", slot, offset, from);
    ended(lseek(files[slot], offset, from));
}

static void resize(void) {
    int slot = a_slot();
    off_t size = an_offset();
    zero_behind_ends();
    if (below(2)) {
        SAY("ftruncate slot %d %#lx", slot, size);
        ended(ftruncate(files[slot], size));
    } else {
        const char *name = a_name();
        SAY("truncate %s %#lx", name, size);
        zero_behind_end_of(name);
        ended(truncate(name, size));
    }
}

static void allocate(void) {
    int slot = a_slot();
    int mode = ONE_OF(0, FALLOC_FL_KEEP_SIZE, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, FALLOC_FL_PUNCH_HOLE);
    off_t from = an_offset(), length = an_offset();
    if (from + length > (off_t)(MOST * PAGE)) length = PAGE;
    SAY("fallocate slot %d mode %d %#lx %#lx", slot, mode, from, length);
    zero_behind_ends();
    ended(fallocate(files[slot], mode, from, length));
}

static void sync_file(void) {
    int slot = a_slot();
    SAY("fsync slot %d", slot);
    ended(below(2) ? fsync(files[slot]) : fdatasync(files[slot]));
}

static void status(void) {
    struct stat found;
    const char *name = a_name();
    int slot = a_slot();
    long result;
    switch (below(3)) {
    case 0: SAY("stat %s", name), result = stat(name, &found); break;
    case 1: SAY("lstat %s", name), result = lstat(name, &found); break;
    default: SAY("fstat slot %d", slot), result = fstat(files[slot], &found);
    }
    if (ended(result) < 0) return;
    note(found.st_mode), note(found.st_nlink);
    if (!S_ISDIR(found.st_mode)) note(found.st_size);
    if (trace >= 0)
        fprintf(stderr, "  mode %o links %ld size %ld\n", found.st_mode, (long)found.st_nlink, (long)found.st_size);
}

static void names(void) {
    const char *name = a_name(), *other = a_name();
    char target[64];
    switch (below(9)) {
    case 0: SAY("unlink %s", name), ended(unlink(name)); break;
    case 1: SAY("link %s %s", name, other), ended(link(name, other)); break;
    case 2: SAY("rename %s %s", name, other), ended(rename(name, other)); break;
    case 3: SAY("mkdir %s", name), ended(mkdir(name, 0755)); break;
    case 4: SAY("rmdir %s", name), ended(rmdir(name)); break;
    case 5: SAY("symlink %s s0", name), ended(symlink(name, "s0")); break;
    case 6: SAY("readlink %s", name), noted(readlink(name, target, sizeof target), target); break;
    case 7: SAY("access %s", name), ended(access(name, ONE_OF(F_OK, R_OK, W_OK))); break;
    default: SAY("chmod %s", name), ended(chmod(name, ONE_OF(0744, 0700, 0755)));
    }
}

static int by_name(const void *a, const void *b) { return strcmp(*(char *const *)a, *(char *const *)b); }

static void list(void) {
    char *found[64];
    size_t count = 0;
    SAY("list");
    DIR *directory = opendir(".");
    if (!directory) {
        ended(-1);
        return;
    }
    for (struct dirent *entry; (entry = readdir(directory)) && count < 64;)
        CHECK((found[count++] = strdup(entry->d_name)), "strdup");
    closedir(directory);
    qsort(found, count, sizeof *found, by_name);
    for (size_t i = 0; i < count; i++) note_bytes(found[i], strlen(found[i]) + 1), free(found[i]);
    ended(count);
}

static void between(void) {
    int to = a_slot(), from = a_slot();
    off_t in = below(20 * PAGE), out = below(20 * PAGE);
    size_t size = below(3 * PAGE);
    zero_behind_ends();
    if (below(2)) {
        SAY("sendfile slot %d to %d, %zu from %#lx", from, to, size, in);
        off_t now = lseek(files[to], 0, SEEK_CUR);
        if (now > (off_t)(MOST * PAGE)) now = lseek(files[to], 0, SEEK_SET);
        // Onto itself: the order again.
        struct stat source, target;
        CHECK(!fstat(files[from], &source) && !fstat(files[to], &target), "fstat");
        if (source.st_ino == target.st_ino && now < in + (off_t)size && in < now + (off_t)size) return;
        ended(sendfile(files[to], files[from], &in, size));
    } else {
        SAY("copy_file_range slot %d to %d, %zu from %#lx to %#lx", from, to, size, in, out);
        ended(copy_file_range(files[from], &in, files[to], &out, size, 0));
    }
    note(in);
}

static void through_a_pipe(void) {
    int ends[2], waiting;
    // Within a page: the kernel version decides how much of a buffer arrives that ends in a hole.
    size_t start = below(PAGE), size = below(PAGE - start) + 1;
    char *from = at(a_page()) + start, *to = at(a_page()) + start;
    CHECK(!pipe(ends), "pipe");
    fcntl(ends[0], F_SETFL, O_NONBLOCK), fcntl(ends[1], F_SETFL, O_NONBLOCK);
    SAY("write %zu of %#lx to a pipe", size, (long)(from - AREA));
    ended(write(ends[1], from, size));
    CHECK(!ioctl(ends[0], FIONREAD, &waiting), "FIONREAD");
    note(waiting);
    SAY("read a pipe to %#lx", (long)(to - AREA));
    ended(read(ends[0], to, size));
    close(ends[0]), close(ends[1]);
}

// ---- the sequence --------------------------------------------------------------------------------------------------

static void step(bool child);

// A child runs by itself for a while, on a copy of the memory and the same files, and reports its results.
static void fork_off(void) {
    int ends[2], status, steps = 1 + below(12);
    uint64_t found = 0;
    CHECK(!pipe(ends), "pipe");
    SAY("fork for %d calls", steps);
    fflush(NULL);
    pid_t child = fork();
    CHECK(child >= 0, "fork");
    if (!child) {
        look_at_all();
        maps();
        while (steps--) step(true);
        CHECK(write(ends[1], &digest, sizeof digest) == sizeof digest, "a pipe");
        fflush(NULL);
        _exit(digest & 0x7f);
    }
    close(ends[1]);
    CHECK(read(ends[0], &found, sizeof found) == sizeof found, "the child ended early");
    close(ends[0]);
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status), "waitpid");
    // The parent continues with other calls than its child made.
    state += 77;
    note(found);
    ended(WEXITSTATUS(status));
}

static const struct {
    void (*call)(void);
    int weight;
} kinds[] = {
    {load, 16},       {store, 22},    {look_at_all, 1}, {map_memory, 8}, {map_file, 10},  {map_anywhere, 1}, {unmap, 3},
    {protect, 5},     {remap, 4},     {grow, 2},        {advise, 6},     {advise_free, 1}, {sync_memory, 2},
        {lock_memory, 1},
    {resident, 1},    {maps, 1},      {open_one, 3},    {read_some, 8},  {write_some, 8}, {transfer, 5},
        {vectors, 2},
    {seek, 2},        {resize, 4},    {allocate, 2},    {sync_file, 1},  {status, 3},     {names, 4},        {list, 1},
    {between, 2},     {through_a_pipe, 1},
};

static void step(bool child) {
    int sum = child ? 0 : 1; // children have none of their own
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) sum += kinds[i].weight;
    int n = below(sum);
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        if (n < kinds[i].weight) {
            note(i);
            kinds[i].call();
            return;
        }
        n -= kinds[i].weight;
    }
    fork_off();
}

static int remove_one(const char *name, const struct stat *found, int kind, struct FTW *where) {
    (void)found, (void)kind;
    return where->level ? remove(name) : 0;
}

int main(int argc, char **argv) {
    struct setting own[] = {{"--seed", &seed, NULL}, {"--calls", &calls, NULL}, {"--trace", &trace, NULL}, {0}};
    parse_options(argc, argv, own);
    state = seed;
    umask(022);
    // In memory if possible: a file system on a disk grows after some failed writes.
    char home[64];
    snprintf(home, sizeof home, "/dev/shm/twin.%d", getpid());
    if (mkdir(home, 0755))
        CHECK(!mkdir(memmove(home, home + strlen("/dev/shm/"), sizeof home - strlen("/dev/shm/")), 0755),
        "cannot make %s", home);
    CHECK(!chdir(home), "cannot enter %s", home);
    signal(SIGPIPE, SIG_IGN);
    struct sigaction action = {.sa_sigaction = on_trouble, .sa_flags = SA_SIGINFO | SA_NODEFER};
    CHECK(!sigaction(SIGSEGV, &action, NULL) && !sigaction(SIGBUS, &action, NULL), "sigaction");
    for (int i = 0; i < SLOTS; i++) {
        char name[8];
        snprintf(name, sizeof name, "f%d", i % NAMES);
        files[i] = open(name, O_RDWR | O_CREAT, 0644);
        CHECK(files[i] >= 0, "cannot create %s", name);
        // Numbers that no call of the program itself gets.
        CHECK(dup2(files[i], 40 + i) == 40 + i && !close(files[i]), "dup2");
        files[i] = 40 + i;
    }
    long from = trace;
    for (long done = 0; done < calls; done++) {
        trace = from >= 0 && done >= from ? 0 : -1;
        step(false);
        if ((done + 1) % EVERY == 0) printf("twin %ld calls: %016lx\n", done + 1, digest);
    }
    printf("twin: %016lx\n", digest);
    CHECK(!nftw(".", remove_one, 16, FTW_DEPTH | FTW_PHYS), "cannot empty %s", home);
    CHECK(!chdir("..") && !rmdir(strrchr(home, '/') ? strrchr(home, '/') + 1 : home), "cannot remove %s", home);
    return 0;
}
