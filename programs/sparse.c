// Files of very different sizes with as many resident pages. The cost of unmapping, truncating and synchronising them
// must not depend on the size.
//
//   --pages N        resident pages of each file, spread evenly (default 100)
//
// An operation is one whole unmap, one truncation, one synchronisation: not a page's part of it.
#include "report.h"
#include <fcntl.h>

static long pages = 100;

static const struct {
    const char *name;
    uint64_t bytes;
} sizes[] = {{"1MiB", MIB}, {"64MiB", 64 * MIB}, {"4GiB", 4096 * MIB}, {"64GiB", 65536 * MIB}, {"1TiB", 1048576 * MIB}};

static uint64_t bytes; // of the file that is measured
enum what { UNMAP, SYNC, TRUNCATE };
static enum what what;

static void body(struct worker *w) {
    char path[64];
    snprintf(path, sizeof path, "/tmp/sparse.%d.%d", getpid(), w->index);
    while (running(w)) {
        int file = open(path, O_RDWR | O_CREAT | O_TRUNC, 0600);
        CHECK(file >= 0 && !ftruncate(file, bytes), "a file of %lu bytes", bytes);
        unlink(path);
        char *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, file, 0);
        CHECK(memory != MAP_FAILED, "mmap");
        for (long page = 0; page < pages; page++) memory[bytes / pages / PAGE * PAGE * page] = 1 + page % 100;
        if (what == SYNC) lap_begin(w);
        CHECK(what != SYNC || !msync(memory, bytes, MS_SYNC), "msync");
        if (what == SYNC) lap_end(w, 1);
        if (what == UNMAP) lap_begin(w);
        CHECK(!munmap(memory, bytes), "munmap");
        if (what == UNMAP) lap_end(w, 1);
        if (what == TRUNCATE) lap_begin(w);
        CHECK(!ftruncate(file, 0), "ftruncate");
        if (what == TRUNCATE) lap_end(w, 1);
        close(file);
    }
}

int main(int argc, char **argv) {
    struct setting own[] = {{"--pages", &pages, NULL}, {0}};
    parse_options(argc, argv, own);
    CHECK(pages > 0 && pages <= (long)(MIB / PAGE), "from 1 to %lu pages", MIB / PAGE);
    for (size_t size = 0; size < sizeof sizes / sizeof *sizes; size++) {
        static const char *const names[] = {"unmap", "sync", "truncate"};
        bytes = sizes[size].bytes;
        for (what = UNMAP; what <= TRUNCATE; what++) {
            char name[64];
            snprintf(name, sizeof name, "%s_%s", names[what], sizes[size].name);
            measure(name, body);
        }
    }
}
