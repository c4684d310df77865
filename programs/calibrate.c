// The speed of the machine itself, under any kernel: a loop, memory, and the two cheapest operations of a kernel. Sides
// that differ here differ by the machine, not by their memory systems.
#include "report.h"

static void spin(struct worker *w) {
    while (running(w)) {
        uint64_t seed = 1;
        lap_begin(w);
        for (int i = 0; i < 100000; i++) {
            random_next(&seed);
            __asm__ volatile("" : "+r"(seed)); // the compiler must not know where this leads
        }
        lap_end(w, 100000);
        CHECK(seed == 1 + 100000 * 0x9e3779b97f4a7c15ull, "the loop went wrong");
    }
}

static void fill(struct worker *w) {
    static char buffer[MIB];
    memset(buffer, 0xff, sizeof buffer); // first touches are the kernel's
    for (unsigned char value = 1; running(w); value++) {
        lap_begin(w);
        memset(buffer, value, sizeof buffer);
        __asm__ volatile("" ::"r"(buffer) : "memory");
        lap_end(w, sizeof buffer / PAGE);
        CHECK((unsigned char)buffer[sizeof buffer - 1] == value, "memory was not filled");
    }
}

static void system_call(struct worker *w) {
    pid_t parent = getppid();
    while (running(w)) {
        lap_begin(w);
        for (int i = 0; i < 1000; i++) CHECK(getppid() == parent, "getppid");
        lap_end(w, 1000);
    }
}

static void through_a_pipe(struct worker *w) {
    int ends[2];
    CHECK(!pipe(ends), "pipe");
    char byte = 'x';
    while (running(w)) {
        lap_begin(w);
        for (int i = 0; i < 256; i++) CHECK(write(ends[1], &byte, 1) == 1 && read(ends[0], &byte, 1) == 1, "a byte");
        lap_end(w, 256);
    }
    close(ends[0]), close(ends[1]);
}

int main(int argc, char **argv) {
    parse_options(argc, argv, NULL);
    measure("spin", spin);
    measure("memset_page", fill);
    measure("system_call", system_call);
    measure("pipe_byte", through_a_pipe);
}
