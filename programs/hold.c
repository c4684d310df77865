// hold MIB HOW: stores into so much private memory and reads all of it again. Then it ends, or sleeps, or waits for a
// pipe or for a futex that is never written.
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { PAGE = 4096, FUTEX_WAIT = 0 };

int main(int count, char **words) {
    if (count != 3) {
        fprintf(stderr, "usage: hold MIB end|sleep|pipe|futex\n");
        return 2;
    }
    size_t pages = strtoul(words[1], NULL, 10) * 256;
    uint64_t *memory = mmap(NULL, pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1,
        0);
    if (memory == MAP_FAILED) {
        perror("hold: mmap");
        return 3;
    }
    for (size_t n = 0; n < pages; n++)
        memory[n * (PAGE / 8)] = n ^ 0x5bd1e995;
    for (size_t n = 0; n < pages; n++) {
        if (memory[n * (PAGE / 8)] != (n ^ 0x5bd1e995)) {
            fprintf(stderr, "hold: page %zu differs from the stored value\n", n);
            return 4;
        }
    }
    int ends[2];
    char byte;
    static int word;
    if (strcmp(words[2], "sleep") == 0)
        for (;;)
            pause();
    if (strcmp(words[2], "pipe") == 0 && pipe(ends) == 0)
        return read(ends[0], &byte, 1) == 1;
    if (strcmp(words[2], "futex") == 0)
        return syscall(SYS_futex, &word, FUTEX_WAIT, 0, NULL, NULL, 0) != 0;
    return 0;
}
