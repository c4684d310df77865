// A 64 MiB file that is unmapped and mapped again for every small write: slow if either works page by page.
//
//   --megabytes N    the file's size (default 64)
//   --directory DIR  where it lies (default /tmp)
// --residents N    instead, files of 1 MiB to 1 TiB with so many resident pages each, spread evenly, and writes to
// those alone:
//                    the cost must not depend on the size
#include "report.h"
#include <fcntl.h>

static long megabytes = 64, residents;
static const char *directory = "/tmp";

static void body(struct worker *w) {
    // The distance between written words.
    size_t bytes = megabytes * MIB, apart = residents ? bytes / residents / PAGE * PAGE : 512;
    size_t words = residents ? (size_t)residents : bytes / apart;
    char path[4200];
    snprintf(path, sizeof path, "%s/remap.%d.%d", directory, getpid(), w->index);
    int file = open(path, O_RDWR | O_CREAT | O_TRUNC, 0600);
    CHECK(file >= 0, "cannot create %s", path);
    unlink(path);
    CHECK(!ftruncate(file, bytes), "ftruncate");
    uint32_t *wrote = calloc(words, sizeof *wrote);
    CHECK(wrote, "calloc");
    // All of it resident, as a file in use; or the written pages only.
    char *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, file, 0);
    CHECK(memory != MAP_FAILED, "mmap");
    for (size_t at = 0; at < words * apart; at += residents ? apart : PAGE) *(volatile char *)(memory + at) = 0;
    uint64_t seed = w->index, step = 0;
    while (running(w)) {
        lap_begin(w);
        for (int i = 0; i < 64; i++) {
            CHECK(!munmap(memory, bytes), "munmap");
            memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, file, 0);
            CHECK(memory != MAP_FAILED, "mmap");
            size_t at = random_next(&seed) % words;
            CHECK(*(uint32_t *)(memory + at * apart) == wrote[at], "a written word is gone at %zu", at * apart);
            *(uint32_t *)(memory + at * apart) = wrote[at] = ++step;
        }
        lap_end(w, 64);
    }
    munmap(memory, bytes);
    for (size_t at = 0; at < words; at++) {
        uint32_t word;
        CHECK(pread(file, &word, 4, at * apart) == 4 && word == wrote[at], "the file is wrong at %zu", at * apart);
    }
    close(file);
    free(wrote);
}

int main(int argc, char **argv) {
    struct setting own[] = {{"--megabytes", &megabytes, NULL}, {"--residents", &residents, NULL},
        {"--directory", NULL, &directory}, {0}};
    parse_options(argc, argv, own);
    CHECK(residents >= 0 && residents <= (long)(MIB / PAGE), "from 1 to %lu residents", MIB / PAGE);
    if (!residents) {
        measure("remap", body);
        return 0;
    }
    static const struct {
        const char *name;
        long megabytes;
    } sizes[] = {{"remap_1MiB", 1}, {"remap_64MiB", 64}, {"remap_4GiB", 4096}, {"remap_64GiB", 65536},
        {"remap_1TiB", 1048576}};
    for (size_t size = 0; size < sizeof sizes / sizeof *sizes; size++) {
        megabytes = sizes[size].megabytes;
        measure(sizes[size].name, body);
    }
}
