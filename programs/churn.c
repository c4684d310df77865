// Random memory calls of several processes, whose children touch copies, where memory is short: mmap, munmap, mprotect,
// madvise, mremap, loads, stores and forks. The calls follow from the seed. Each process knows what each of its pages
// holds, and checks what it loads. The system may kill processes for memory; their number is reported.
//
//   --seed N          the sequence (default 1)
//   --processes N     so many processes at once (default 4)
//   --mib N           MiB of addresses of each process (default 64)
//   --calls N         calls of each process (default 1000)
//   --children N      children that a process has at once (default 2)
//   --every N         one call in N is a fork (default 16)
//   --within MS       milliseconds that all of it may take (default: any time)
#include "report.h"
#include <signal.h>

static long seed = 1, mib = 64, calls = 1000, children = 2, every = 16, within;

enum right { NONE, UNREADABLE, READABLE, WRITABLE };
static struct page { uint32_t tag; enum right right; } *pages; // a tag of zero: the page is zeroes
static char *area;
static size_t count;
static uint64_t state;
static struct { _Atomic uint64_t calls, forks, killed, refused; } *shared;

static uint64_t below(uint64_t n) { return (random_next(&state) >> 16) % n; }
static uint32_t *at(size_t page) { return (uint32_t *)(area + page * PAGE); }

// A range of pages; most are short.
struct range { size_t start, len; };
static struct range any(void) {
    size_t most = below(8) ? 64 : count / 8, len = 1 + below(most);
    return (struct range){below(count - len + 1), len};
}

static void set(struct range r, enum right right) {
    for (size_t i = r.start; i < r.start + r.len; i++) pages[i].right = right;
}
static void clear(struct range r) {
    for (size_t i = r.start; i < r.start + r.len; i++) pages[i].tag = 0;
}

// Whether a call was done. The system may refuse it for lack of memory, and changes nothing then.
static bool done(bool ok, const char *call) {
    if (!ok) {
        CHECK(errno == ENOMEM, "%s", call);
        shared->refused++;
    }
    return ok;
}

static bool fresh(struct range r) {
    void *to = at(r.start);
    if (!done(mmap(to, r.len * PAGE, PROT_READ | PROT_WRITE,
                MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1,
                   0) == to, "mmap")) return false;
    set(r, WRITABLE);
    clear(r);
    return true;
}

static void check(size_t i) {
    if (pages[i].right >= READABLE)
        CHECK(*at(i) == pages[i].tag, "page %zu has %#x instead of %#x", i, *at(i), pages[i].tag);
}
static void fill(struct range r) {
    for (size_t i = r.start; i < r.start + r.len; i++)
        if (pages[i].right == WRITABLE) {
            check(i);
            *at(i) = pages[i].tag = random_next(&state) | 1;
        }
}
static void look(struct range r) {
    for (size_t i = r.start; i < r.start + r.len; i++) check(i);
}

static void protect(struct range r) {
    static const int prots[] = {PROT_NONE, PROT_READ, PROT_READ | PROT_WRITE, PROT_READ | PROT_WRITE};
    static const enum right rights[] = {UNREADABLE, READABLE, WRITABLE, WRITABLE};
    for (size_t i = r.start; i < r.start + r.len; i++)
        if (pages[i].right == NONE) return;
    int n = below(4);
    if (done(mprotect(at(r.start), r.len * PAGE, prots[n]) == 0, "mprotect")) set(r, rights[n]);
}

static void discard(struct range r) {
    // Holes in the range are skipped, and reported by ENOMEM.
    CHECK(madvise(at(r.start), r.len * PAGE, MADV_DONTNEED) == 0 || errno == ENOMEM, "madvise");
    clear(r);
}

static void move(struct range from) {
    struct range to = {below(count - from.len + 1), from.len};
    if (to.start < from.start + from.len && from.start < to.start + to.len) return;
    if (!fresh(from)) return;
    fill((struct range){from.start + below(from.len), 1});
    // A refused call may have removed the mapping at the new place, and nothing else.
    void *new = mremap(at(from.start), from.len * PAGE, from.len * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, at(to.start));
    if (!done(new == at(to.start), "mremap")) {
        fresh(to);
        return;
    }
    for (size_t i = 0; i < from.len; i++) {
        pages[to.start + i] = pages[from.start + i];
        pages[from.start + i] = (struct page){0, NONE};
    }
}

static int alive;
static void reap(int most) {
    while (alive > most) {
        int status;
        pid_t child = wait(&status);
        CHECK(child > 0, "wait");
        if (WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) shared->killed++;
        else CHECK(status == 0, "a child ended with %#x", status);
        alive--;
    }
}

static void give_birth(void) {
    reap(children - 1);
    pid_t child = fork();
    if (!done(child >= 0, "fork")) return;
    if (!child) {
        for (int i = 0; i < 4; i++) {
            fill(any());
            look(any());
        }
        _exit(0);
    }
    alive++;
    shared->forks++;
}

__attribute__((noreturn)) static void work(long number) {
    alive = 0;
    state = seed * 1000 + number;
    for (int i = 0; i < 4; i++) random_next(&state);
    count = mib * (MIB / PAGE);
    area = mmap(NULL, count * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    pages = mmap(NULL, count * sizeof *pages, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(area != MAP_FAILED && (void *)pages != MAP_FAILED, "mmap");
    set((struct range){0, count}, UNREADABLE);
    for (long call = 0; call < calls; call++, shared->calls++) {
        struct range r = any();
        if (below(every) == 0) {
            give_birth();
            continue;
        }
        switch (below(12)) {
        case 0: case 1: fresh(r); break;
        case 2: CHECK(munmap(at(r.start), r.len * PAGE) == 0, "munmap"); set(r, NONE); clear(r); break;
        case 3: case 4: protect(r); break;
        case 5: discard(r); break;
        case 6: move(r); break;
        case 7: case 8: case 9: fill(r); break;
        default: look(r);
        }
    }
    reap(0);
    _exit(0);
}

int main(int argc, char **argv) {
    struct setting own[] = {{"--seed", &seed, NULL}, {"--mib", &mib, NULL}, {"--calls", &calls, NULL},
                            {"--children", &children, NULL}, {"--every", &every, NULL},
                            {"--within", &within, NULL}, {0}};
    options.processes = 4;
    parse_options(argc, argv, own);
    CHECK(mib >= 1 && children >= 1 && every >= 1, "an option is too small");
    shared = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK((void *)shared != MAP_FAILED, "mmap");
    uint64_t begin = now_ns();
    for (int i = 0; i < options.processes; i++) {
        pid_t child = fork();
        CHECK(child >= 0, "fork");
        if (!child) work(i);
        alive++;
    }
    reap(0);
    report("churn_calls", shared->calls, "calls");
    report("churn_forks", shared->forks, "calls");
    report("churn_refused", shared->refused, "calls");
    report("churn_killed", shared->killed, "processes");
    long took = (now_ns() - begin) / 1000000;
    report("churn_time", took, "ms");
    CHECK(!within || took <= within, "it took %ld ms", took);
    return 0;
}
