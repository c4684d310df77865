// Events for ./quire trace to find, in known numbers: pages that are touched, copied and removed again, a child, and a
// thread on another processor that an unmapping must interrupt. Prints where it happened.
//
//   --calls N   then so many calls of getppid
#include "report.h"

#define PAGES 100ul
#define COPIED 10ul

static atomic_int stage;

// In user mode all the time, so that an unmapping has to interrupt it.
static void *bystander(void *unused) {
    (void)unused;
    atomic_store(&stage, 1);
    while (atomic_load(&stage) != 2) _mm_pause();
    return NULL;
}

int main(int argc, char **argv) {
    long calls = argc == 3 && !strcmp(argv[1], "--calls") ? atol(argv[2]) : 0;
    char *area = mmap(NULL, PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(area != MAP_FAILED, "mmap");
    for (size_t i = 0; i < PAGES; i++) area[i * PAGE] = 1;
    pid_t child = fork();
    CHECK(child >= 0, "fork");
    if (child == 0) {
        for (size_t i = 0; i < COPIED; i++) area[2 * i * PAGE] = 2;
        _exit(0);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0, "waitpid");

    if (sysconf(_SC_NPROCESSORS_ONLN) > 1) {
        pthread_t thread;
        CHECK(!(errno = pthread_create(&thread, NULL, bystander, NULL)), "pthread_create");
        while (atomic_load(&stage) == 0) _mm_pause();
        CHECK(munmap(area, PAGES * PAGE) == 0, "munmap");
        atomic_store(&stage, 2);
        pthread_join(thread, NULL);
    } else {
        CHECK(munmap(area, PAGES * PAGE) == 0, "munmap");
    }
    for (long i = 0; i < calls; i++) getppid();
    printf("area %p %lu child %d\n", (void *)area, PAGES * PAGE, child);
    return 0;
}
