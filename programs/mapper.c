// Very many anonymous mappings, kept apart by gaps so that no two can merge: created, touched, protected and removed in
// random order. Equal sizes (one page), then mixed ones (1 to 16 pages). `fragmented`: mappings of two sizes lie where
// the kernel puts them, and every third is unmapped. Then random mappings are unmapped, and new ones take some hole,
// again and again.
//
// Linux allows 65,530 mappings unless vm.max_map_count says otherwise: the default stays below.
#include "report.h"

#define SLOT (32 * PAGE) // a mapping of up to 16 pages and a gap

static long mappings = 30000;
static bool mixed;

struct phase {
    uint64_t ticks, ns;
};
static struct phase (*phases)[4]; // of each worker, in shared memory
enum { CREATE, TOUCH, PROTECT, REMOVE };
static const char *const names[] = {"create", "touch", "protect", "remove"};

static size_t size_of(uint32_t i) { return mixed ? (1 + (i * 2654435761u >> 13) % 16) * PAGE : PAGE; }

static void shuffle(uint32_t *order, uint64_t *seed) {
    for (long i = mappings - 1; i > 0; i--) {
        long j = random_next(seed) % (i + 1);
        uint32_t t = order[i];
        order[i] = order[j];
        order[j] = t;
    }
}

static void body(struct worker *w) {
    uint64_t seed = 1 + w->index;
    uint32_t *order = malloc(mappings * sizeof *order);
    CHECK(order, "malloc");
    for (long i = 0; i < mappings; i++) order[i] = i;
    // A terabyte of address space for each worker, far from what libraries, heaps and stacks use.
    char *base = (char *)(0x100000000000 + ((uint64_t)w->index << 40));

    for (uint64_t round = 1; running(w); round++) {
        for (int phase = CREATE; phase <= REMOVE; phase++) {
            shuffle(order, &seed);
            uint64_t ns = now_ns(), ticks = __rdtsc();
            for (long k = 0; k < mappings; k++) {
                uint32_t i = order[k];
                char *at = base + i * SLOT;
                size_t size = size_of(i);
                volatile uint64_t *last = (uint64_t *)(at + size - 8);
                switch (phase) {
                case CREATE: {
                    void *got = mmap(at, size, PROT_READ | PROT_WRITE,
                                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
                    CHECK(got == at, "mapping %ld of %ld (vm.max_map_count?)", k, mappings);
                    break;
                }
                case TOUCH:
                    CHECK(*last == 0, "a fresh page is not zero");
                    *last = round << 32 | i;
                    break;
                case PROTECT:
                    CHECK(!mprotect(at, size, PROT_READ), "mprotect");
                    CHECK(*last == (round << 32 | i), "mapping %u lost its contents", i);
                    break;
                case REMOVE:
                    CHECK(!munmap(at, size), "munmap");
                    break;
                }
            }
            phases[w->index][phase].ticks += __rdtsc() - ticks;
            phases[w->index][phase].ns += now_ns() - ns;
        }
        // Nothing stays mapped.
        unsigned char resident[32];
        for (long i = 0; i < mappings; i += 1 + mappings / 64)
            CHECK(mincore(base + i * SLOT, SLOT, resident) == -1 && errno == ENOMEM, "mapping %ld is still there", i);
        w->ops += mappings;
        w->ns = w->ticks = 0;
        for (int phase = CREATE; phase <= REMOVE; phase++) {
            w->ns += phases[w->index][phase].ns;
            w->ticks += phases[w->index][phase].ticks;
        }
    }
    free(order);
    for (int phase = CREATE; phase <= REMOVE; phase++) { // per operation from here on
        phases[w->index][phase].ns /= w->ops / 1000;
        phases[w->index][phase].ticks /= w->ops / 1000;
    }
}

static void run(const char *name, bool sizes) {
    if (!wanted(name)) return;
    mixed = sizes;
    int workers = options.processes * options.threads;
    memset(phases, 0, workers * sizeof *phases);
    measure(name, body);
    for (int phase = CREATE; phase <= REMOVE; phase++) {
        double rate = 0, ticks = 0;
        for (int i = 0; i < workers; i++) {
            rate += 1e12 / phases[i][phase].ns;
            ticks += phases[i][phase].ticks / 1000. / workers;
        }
        char line[64];
        snprintf(line, sizeof line, "%s_%s_rate", name, names[phase]);
        report(line, rate, "1/s");
        snprintf(line, sizeof line, "%s_%s_%s", name, names[phase], options.count ? "instructions" : "ticks");
        report(line, ticks / (options.count ? 8 : 1), options.count ? "instructions" : "ticks");
    }
}

// Neighbours of one protection become one mapping: with so many protections one in four to eight does.
static int protection(uint64_t any) { return any % 8; }
_Static_assert((PROT_READ | PROT_WRITE | PROT_EXEC) == 7, "any three bits are a protection");

static size_t either(uint64_t any) { return any % 2 ? 4 * PAGE : PAGE; }

static void *anywhere(size_t size, uint64_t any) {
    void *got = mmap(NULL, size, protection(any), MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(got != MAP_FAILED, "mmap (vm.max_map_count?)");
    return got;
}

static void fragmented(struct worker *w) {
    const int lap = 1000;
    uint64_t seed = 1 + w->index;
    struct range {
        char *at;
        size_t size;
    } *ranges = malloc(mappings * sizeof *ranges);
    CHECK(ranges, "malloc");
    long left = 0;
    for (long i = 0; i < mappings; i++) {
        ranges[i].size = either(random_next(&seed));
        ranges[i].at = anywhere(ranges[i].size, i);
    }
    for (long i = 0; i < mappings; i++) {
        if (i % 3 == 0) CHECK(!munmap(ranges[i].at, ranges[i].size), "munmap");
        else ranges[left++] = ranges[i];
    }
    while (running(w)) {
        lap_begin(w);
        for (int i = 0; i < lap; i++) {
            uint64_t any = random_next(&seed);
            struct range *range = &ranges[any % left];
            CHECK(!munmap(range->at, range->size), "munmap");
            range->size = either(any >> 32);
            range->at = anywhere(range->size, any >> 33);
        }
        lap_end(w, lap);
    }
    for (long i = 0; i < left; i++) CHECK(!munmap(ranges[i].at, ranges[i].size), "munmap");
    free(ranges);
}

int main(int argc, char **argv) {
    struct setting own[] = {{"--mappings", &mappings, NULL}, {0}};
    parse_options(argc, argv, own);
    if (mappings < 1000 || (uint64_t)mappings * SLOT > 1ul << 40 || options.processes * options.threads > 64) {
        fprintf(stderr, "mapper: from 1000 to %lu mappings, at most 64 workers\n", (1ul << 40) / SLOT);
        return 2;
    }
    size_t bytes = options.processes * options.threads * sizeof *phases;
    phases = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(phases != MAP_FAILED, "mmap");
    run("mapper_equal", false);
    run("mapper_mixed", true);
    measure("mapper_fragmented", fragmented);
}
