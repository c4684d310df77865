// First touches: every worker maps memory, touches each page, and unmaps it, again and again. From the last page to the
// first each is a fault of its own on every kernel; the other way some make pages ahead.
#include "report.h"

static long megabytes = 64, backward;

static void body(struct worker *w) {
    size_t bytes = megabytes * MIB;
    uint64_t round = 0;
    while (running(w)) {
        lap_begin(w);
        char *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        CHECK(memory != MAP_FAILED, "mmap of %ld MiB", megabytes);
        round++;
        if (backward) for (size_t at = bytes; (at -= PAGE) < bytes;) *(volatile uint64_t *)(memory + at) = round ^ at;
        else for (size_t at = 0; at < bytes; at += PAGE) *(volatile uint64_t *)(memory + at) = round ^ at;
        // The stored words are there, and the rest of a page is zero, whatever process had the frame before.
        for (size_t at = (round % 7) * PAGE; at < bytes; at += 61 * PAGE) {
            CHECK(*(uint64_t *)(memory + at) == (round ^ at), "a stored word is gone at %zu", at);
            CHECK(*(uint64_t *)(memory + at + 8 + round % 500 * 8) == 0, "a fresh page is not zero at %zu", at);
        }
        CHECK(!munmap(memory, bytes), "munmap");
        lap_end(w, bytes / PAGE);
    }
}

int main(int argc, char **argv) {
    struct setting own[] = {{"--megabytes", &megabytes, NULL}, {"--backward", &backward, NULL}, {0}};
    parse_options(argc, argv, own);
    measure("zerofill", body);
}
