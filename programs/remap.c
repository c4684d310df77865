// A 64 MiB file that is unmapped and mapped again for every small write: costly where either works page by page.
#include "report.h"
#include <fcntl.h>

static long megabytes = 64;
static const char *directory = "/tmp";

static void body(struct worker *w) {
    size_t bytes = megabytes * MIB, words = bytes / 512;
    char path[4200];
    snprintf(path, sizeof path, "%s/remap.%d.%d", directory, getpid(), w->index);
    int file = open(path, O_RDWR | O_CREAT | O_TRUNC, 0600);
    CHECK(file >= 0, "cannot create %s", path);
    unlink(path);
    CHECK(!ftruncate(file, bytes), "ftruncate");
    uint32_t *wrote = calloc(words, sizeof *wrote);
    CHECK(wrote, "calloc");
    // All of it resident, as a file that somebody works on.
    char *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    CHECK(memory != MAP_FAILED, "mmap");
    for (size_t at = 0; at < bytes; at += PAGE) *(volatile char *)(memory + at) = 0;
    uint64_t seed = w->index, step = 0;
    while (running(w)) {
        lap_begin(w);
        for (int i = 0; i < 64; i++) {
            CHECK(!munmap(memory, bytes), "munmap");
            memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
            CHECK(memory != MAP_FAILED, "mmap");
            size_t at = random_next(&seed) % words;
            CHECK(*(uint32_t *)(memory + at * 512) == wrote[at], "a written word is gone at %zu", at * 512);
            *(uint32_t *)(memory + at * 512) = wrote[at] = ++step;
        }
        lap_end(w, 64);
    }
    munmap(memory, bytes);
    for (size_t at = 0; at < words; at++) {
        uint32_t word;
        CHECK(pread(file, &word, 4, at * 512) == 4 && word == wrote[at], "the file is wrong at %zu", at * 512);
    }
    close(file);
    free(wrote);
}

int main(int argc, char **argv) {
    struct setting own[] = {{"--megabytes", &megabytes, NULL}, {"--directory", NULL, &directory}, {0}};
    parse_options(argc, argv, own);
    measure("remap", body);
}
