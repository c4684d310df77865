// Uses more memory than there is. It stores into every page of a mapping, forks, and reads everything back in both
// processes. The pages that do not fit are in swap (`./quire run --memory 128M --append swap=...`).
//
//   --megabytes N   how much (default 64): less than memory and swap together hold
//   --rounds N      how often (default 2)
#include "report.h"

static long megabytes = 64, rounds = 2;

static uint64_t stamp(size_t at, uint64_t round) {
    uint64_t seed = at + round;
    return random_next(&seed);
}

static void look(const char *memory, size_t bytes, uint64_t round, const char *owner) {
    for (size_t at = 0; at < bytes; at += PAGE)
        CHECK(*(volatile uint64_t *)(memory + at) == stamp(at, round), "%s: a stored word is gone at %zu", owner, at);
}

int main(int argc, char **argv) {
    struct setting own[] = {{"--megabytes", &megabytes, NULL}, {"--rounds", &rounds, NULL}, {0}};
    parse_options(argc, argv, own);
    size_t bytes = megabytes * MIB;
    char *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(memory != MAP_FAILED, "mmap of %ld MiB", megabytes);
    for (long round = 1; round <= rounds; round++) {
        for (size_t at = 0; at < bytes; at += PAGE) *(volatile uint64_t *)(memory + at) = stamp(at, round);
        look(memory, bytes, round, "parent");
        pid_t child = fork();
        CHECK(child >= 0, "fork");
        if (!child) {
            look(memory, bytes, round, "child");
            // Every sixteenth page is the child's own.
            for (size_t at = 0; at < bytes; at += 16 * PAGE) *(volatile uint64_t *)(memory + at) = 0;
            _exit(0);
        }
        int status;
        CHECK(waitpid(child, &status, 0) == child && status == 0, "the child ended with %#x", status);
        look(memory, bytes, round, "parent after the child");
    }
    printf("overcommit_pages %zu pages\n", bytes / PAGE);
    return 0;
}
