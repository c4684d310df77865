// The registers of a thread: x87, SSE, AVX and AVX-512. Each thread keeps its own through context switches, migrations,
// forks, and signal handlers that overwrite them all. For every model of processor that a machine may have.
//
//   --threads N   how many threads keep state at a time (4)
//   --rounds N    how often each looks at its own (400)
//
// Prints the widest vectors that the kernel lets programs use: `vectors 16 bytes`, 32 or 64.
#include "report.h"
#include <cpuid.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/time.h>

static unsigned width = 16;
static atomic_ulong wrong, handled;
static unsigned rounds = 400;

// The registers that a thread keeps: all bytes of one register of each kind, and x87's top of stack.
struct state {
    _Alignas(64) unsigned char first[64], last[64];
    double x87;
};

static void fill(struct state *state, uint64_t seed) {
    for (int i = 0; i < 64; i++) {
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        state->first[i] = (unsigned char)(seed >> 33);
        state->last[i] = (unsigned char)(seed >> 41);
    }
    state->x87 = (double)(seed >> 12);
}

// How many bytes of vectors CPUID and XCR0 allow together: as every program decides it.
static unsigned find_width(void) {
    unsigned a, b, c, d;
    if (!__get_cpuid(1, &a, &b, &c, &d) || !(c & bit_OSXSAVE)) return 16;
    unsigned low, high;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    if (!(c & bit_AVX) || (low & 6) != 6) return 16;
    if (__get_cpuid_count(7, 0, &a, &b, &c, &d) && (b & bit_AVX512F) && (low & 0xe6) == 0xe6) return 64;
    return 32;
}

// Loads the registers, makes a system call, and stores them: in one piece of assembly, so that the compiler uses none
// of them in between. Returns what the call returned.
#define KEEP(name, load, store)                                                                                       \
    static long name(const struct state *in, struct state *out, long number, long one, long two) {                    \
        __asm__ volatile("fldl %[x]\n\t" load "syscall\n\t" store "fstpl %[y]"                                        \
                         : "+a"(number), [y] "=m"(out->x87)                                                           \
                         : [x] "m"(in->x87), [in] "r"(in->first), [out] "r"(out->first), "D"(one), "S"(two)           \
                         : "rcx", "r11", "memory", "st", "st(7)");                                                    \
        return number;                                                                                                \
    }

KEEP(keep16, "movups (%[in]), %%xmm0\n\tmovups 64(%[in]), %%xmm15\n\t",
     "movups %%xmm0, (%[out])\n\tmovups %%xmm15, 64(%[out])\n\t")
KEEP(keep32, "vmovups (%[in]), %%ymm0\n\tvmovups 64(%[in]), %%ymm15\n\t",
     "vmovups %%ymm0, (%[out])\n\tvmovups %%ymm15, 64(%[out])\n\tvzeroupper\n\t")
KEEP(keep64, "vmovups (%[in]), %%zmm0\n\tvmovups 64(%[in]), %%zmm31\n\t",
     "vmovups %%zmm0, (%[out])\n\tvmovups %%zmm31, 64(%[out])\n\tvzeroupper\n\t")

static long keep(const struct state *in, struct state *out, long number, long one, long two) {
    return (width == 64 ? keep64 : width == 32 ? keep32 : keep16)(in, out, number, one, two);
}

static int same(const struct state *a, const struct state *b) {
    return !memcmp(a->first, b->first, width) && !memcmp(a->last, b->last, width) && a->x87 == b->x87;
}

// Overwrites every register that a thread keeps.
static void on_signal(int number) {
    struct state other, seen;
    fill(&other, 77);
    memset(&seen, 0, sizeof seen);
    keep(&other, &seen, SYS_getpid, 0, 0);
    if (!same(&other, &seen)) atomic_fetch_add(&wrong, 1);
    atomic_fetch_add(&handled, 1);
    (void)number;
}

static void *thread(void *argument) {
    const long calls[] = {SYS_sched_yield, SYS_getppid, SYS_sched_yield, SYS_tkill};
    long self = syscall(SYS_gettid);
    for (unsigned round = 0; round < rounds; round++) {
        struct state mine, seen;
        fill(&mine, (uint64_t)(uintptr_t)argument * 1000003 + round);
        memset(&seen, 0, sizeof seen);
        // The handler of the signal that it sends itself runs before the call returns.
        keep(&mine, &seen, calls[round % 4], self, SIGUSR1);
        if (!same(&mine, &seen)) atomic_fetch_add(&wrong, 1);
    }
    return NULL;
}

// The timer's signal comes where a loop of additions has the registers, and its handler overwrites them.
static void interrupted(void) {
    struct itimerval often = {.it_interval = {.tv_usec = 2000}, .it_value = {.tv_usec = 2000}};
    CHECK(!setitimer(ITIMER_REAL, &often, NULL), "setitimer");
    unsigned long before = atomic_load(&handled);
    while (atomic_load(&handled) < before + 20) {
        double sum = 0;
        for (int i = 1; i <= 1000; i++) sum += (double)i;
        long double wide = 0;
        for (int i = 1; i <= 1000; i++) wide += (long double)i;
        if (sum != 500500.0 || wide != 500500.0L) atomic_fetch_add(&wrong, 1);
    }
    memset(&often, 0, sizeof often);
    CHECK(!setitimer(ITIMER_REAL, &often, NULL), "setitimer");
}

int main(int argc, char **argv) {
    unsigned threads = 4;
    for (int i = 1; i + 1 < argc; i += 2) {
        if (!strcmp(argv[i], "--threads")) threads = (unsigned)atoi(argv[i + 1]);
        if (!strcmp(argv[i], "--rounds")) rounds = (unsigned)atoi(argv[i + 1]);
    }
    CHECK(threads > 0 && threads <= 64, "--threads");
    width = find_width();
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESTART};
    CHECK(!sigaction(SIGUSR1, &action, NULL) && !sigaction(SIGALRM, &action, NULL), "sigaction");
    pthread_t ids[64];
    for (unsigned i = 0; i < threads; i++)
        CHECK(!pthread_create(&ids[i], NULL, thread, (void *)(uintptr_t)(i + 1)), "pthread_create");
    // Meanwhile children: each begins with a copy of its parent's registers, and ends with its own.
    for (int n = 0; n < 8; n++) {
        struct state mine, seen;
        fill(&mine, 1000 + (uint64_t)n);
        memset(&seen, 0, sizeof seen);
        long child = keep(&mine, &seen, SYS_fork, 0, 0);
        CHECK(child >= 0, "fork");
        if (!same(&mine, &seen)) atomic_fetch_add(&wrong, 1);
        if (!child) _exit(same(&mine, &seen) ? 0 : 1);
        int status = -1;
        while (waitpid((pid_t)child, &status, 0) < 0 && errno == EINTR) {}
        CHECK(status == 0, "a child saw other registers than its parent");
    }
    for (unsigned i = 0; i < threads; i++) CHECK(!pthread_join(ids[i], NULL), "pthread_join");
    interrupted();
    CHECK(atomic_load(&handled) >= threads * (rounds / 4), "signals were lost");
    CHECK(!atomic_load(&wrong), "a register changed");
    printf("vectors %u bytes\n", width);
    return 0;
}
