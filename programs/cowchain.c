// Generations of forks that each dirty some pages. In `gone` every parent ends once it has a child, so the kernel must
// free the pages that only the parent could reach. In `kept` every parent waits, and must find its own memory
// unchanged. With --count, and one process, both also print the memory held at the end. It is the memory used since
// before the first fork, over the pages that living processes can reach and that the first one does not have.
#include "report.h"

static long pages = 2048, generations = 50, dirty = 64;
static uint64_t *memory;
static uint32_t *last; // the generation that wrote each page last; private, hence copied by fork like the pages

static uint64_t content(uint32_t page, uint32_t generation) {
    return ((uint64_t)generation << 32 | page) * 0x9e3779b97f4a7c15ull;
}
static uint64_t *word(uint32_t page) { return memory + page * (PAGE / 8) + page % (PAGE / 8); }

static void write_some(uint32_t generation, long count) {
    uint64_t seed = generation;
    for (long i = 0; i < count; i++) {
        uint32_t page = generation ? (uint32_t)(random_next(&seed) % pages) : (uint32_t)i;
        *word(page) = content(page, generation);
        last[page] = generation;
    }
}

// The memory measured by the last generation of a chain, if requested.
static struct held {
    bool look;
    uint64_t before, after; // free bytes
    uint64_t pages;         // that a process can reach
} *held;

// Free memory once it hardly changes: an exit, and its waiting parent, free some of it later.
static uint64_t free_in_the_end(void) {
    uint64_t bytes = free_bytes(), before = 0;
    for (int looks = 0; bytes != before && looks < 20; looks++) {
        usleep(100000);
        before = bytes;
        bytes = free_bytes();
    }
    return bytes;
}

static void verify(uint32_t generation) {
    for (long page = 0; page < pages; page++)
        CHECK(*word(page) == content(page, last[page]), "generation %u: page %ld is not of generation %u", generation,
              page, last[page]);
}

static void begin(void) {
    memory = mmap(NULL, pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    last = mmap(NULL, pages * sizeof *last, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(memory != MAP_FAILED && (void *)last != MAP_FAILED, "mmap");
    write_some(0, pages);
}

// Pages of both regions that this generation has of its own, since the one of number `since`.
static uint64_t own_pages(uint32_t since) {
    uint64_t own = 0;
    long in_page = PAGE / sizeof *last;
    for (long first = 0; first < pages; first += in_page) {
        bool any = false;
        for (long page = first; page < pages && page < first + in_page; page++) {
            own += last[page] > since;
            any |= last[page] > since;
        }
        own += any;
    }
    return own;
}

// One more chain, not timed: the memory that it holds.
static void report_held(const char *name, void (*chain)(void)) {
    if (!options.count || options.processes > 1) return;
    *held = (struct held){.look = true, .before = free_in_the_end()};
    chain();
    held->look = false;
    CHECK(held->after, "no generation has reported its frames");
    if (!held->pages) return;
    char line[64];
    snprintf(line, sizeof line, "%s_memory", name);
    report(line, ((double)held->before - held->after) / (held->pages * PAGE), "ratio");
}

static void end(void) {
    munmap(memory, pages * PAGE);
    munmap(last, pages * sizeof *last);
}

// The last generation reports through a pipe, whose end the first process sees when all others are gone.
static void chain_gone(int result) {
    for (uint32_t generation = 1; generation <= generations; generation++) {
        pid_t child = fork();
        CHECK(child >= 0, "fork");
        if (child) _exit(0);
        write_some(generation, dirty);
        if (generation % 8 == 0) verify(generation);
    }
    verify(generations);
    if (held->look) {
        held->pages = own_pages(0);
        held->after = free_in_the_end();
    }
    CHECK(write(result, "k", 1) == 1, "write");
    _exit(0);
}

// Of a lap, where it is one.
static void gone_once(struct worker *w) {
    int ends[2], status;
    CHECK(!pipe(ends), "pipe");
    if (w) lap_begin(w);
    pid_t first = fork();
    CHECK(first >= 0, "fork");
    if (!first) chain_gone(ends[1]);
    close(ends[1]);
    char answer[2];
    CHECK(read(ends[0], answer, 2) == 1, "the chain broke");
    CHECK(read(ends[0], answer, 1) == 0, "a process of the chain is left");
    if (w) lap_end(w, generations);
    CHECK(waitpid(first, &status, 0) == first && status == 0, "the first of the chain failed");
    close(ends[0]);
    verify(0);
}

static void gone_unmeasured(void) { gone_once(NULL); }

static void gone(struct worker *w) {
    begin();
    while (running(w)) gone_once(w);
    report_held("cowchain_gone", gone_unmeasured);
    end();
}

static void chain_kept(uint32_t generation) {
    if (generation > generations) {
        if (held->look) held->after = free_in_the_end();
        return;
    }
    pid_t child = fork();
    CHECK(child >= 0, "fork");
    if (!child) {
        write_some(generation, dirty);
        if (held->look) held->pages += own_pages(generation - 1);
        chain_kept(generation + 1);
        verify(generation);
        _exit(0);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0, "generation %u failed", generation);
}

static void kept_unmeasured(void) { chain_kept(1); }

static void kept(struct worker *w) {
    begin();
    while (running(w)) {
        lap_begin(w);
        chain_kept(1);
        lap_end(w, generations);
        verify(0);
    }
    report_held("cowchain_kept", kept_unmeasured);
    end();
}

// One parent, many children in sequence, each from the parent's changed state, as a shell does. The parent's memory
// must not sink into a deeper chain each time.
static void siblings(struct worker *w) {
    begin();
    for (uint32_t generation = 1; running(w); generation++) {
        write_some(generation, dirty);
        lap_begin(w);
        pid_t child = fork();
        CHECK(child >= 0, "fork");
        if (!child) {
            write_some(generation + 1, dirty);
            verify(generation + 1);
            _exit(0);
        }
        int status;
        CHECK(waitpid(child, &status, 0) == child && status == 0, "child %u failed", generation);
        lap_end(w, 1);
        if (generation % 16 == 0) verify(generation);
    }
    end();
}

int main(int argc, char **argv) {
    struct setting own[] = {
        {"--pages", &pages, NULL}, {"--generations", &generations, NULL}, {"--dirty", &dirty, NULL}, {0}};
    parse_options(argc, argv, own);
    if (options.threads > 1) {
        fprintf(stderr, "cowchain: threads cannot share the forked memory; use --processes\n");
        return 2;
    }
    held = mmap(NULL, sizeof *held, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(held != MAP_FAILED, "mmap");
    measure("cowchain_gone", gone);
    measure("cowchain_kept", kept);
    measure("cowchain_siblings", siblings);
}
