# Programs that gcc builds with ThreadSanitizer and with AddressSanitizer: eight threads each, with and without the fault
# that must be found.
. "$(dirname "$0")/lib.sh"
mkdir -p /tmp/sanitize && cd /tmp/sanitize || exit 1
cat >race.c <<'X'
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
static long guarded, racy;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static void *work(void *racing) {
    for (int i = 0; i < 1000; i++) {
        pthread_mutex_lock(&lock);
        guarded++;
        pthread_mutex_unlock(&lock);
        if (racing) racy++;
    }
    return malloc(10);
}
int main(int count, char **words) {
    pthread_t threads[8];
    (void)words;
    for (int i = 0; i < 8; i++) pthread_create(&threads[i], 0, work, count > 1 ? &racy : 0);
    for (int i = 0; i < 8; i++) {
        void *got;
        pthread_join(threads[i], &got);
        free(got);
    }
    printf("%ld\n", guarded);
}
X
cat >bytes.c <<'X'
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
static void *work(void *nothing) {
    for (int size = 1; size < 2000; size++) {
        char *bytes = malloc(size);
        memset(bytes, 1, size);
        free(bytes);
    }
    return nothing;
}
int main(int count, char **words) {
    pthread_t threads[8];
    for (int i = 0; i < 8; i++) pthread_create(&threads[i], 0, work, 0);
    for (int i = 0; i < 8; i++) pthread_join(threads[i], 0);
    volatile char *bytes = malloc(10);
    if (count > 1 && words[1][0] == 'o') bytes[atoi("10")] = 1;
    free((void *)bytes);
    if (count > 1 && words[1][0] == 'u') bytes[3] = 1;
    puts("end");
}
X
check "build with ThreadSanitizer" gcc -g -O1 -fsanitize=thread -o race race.c
same "threads with a lock" "8000" ./race
matches "a race is found" "SUMMARY: ThreadSanitizer: data race" ./race racing
same "its exit status" "66" sh -c './race racing >/dev/null 2>&1; echo $?'
check "build with AddressSanitizer" gcc -g -O1 -fsanitize=address -o bytes bytes.c
# The search for leaks traces the process, which needs ptrace.
export ASAN_OPTIONS=detect_leaks=0
same "threads that allocate" "end" ./bytes
matches "a store behind a block is found" "AddressSanitizer: heap-buffer-overflow" ./bytes o
matches "a store after free is found" "AddressSanitizer: heap-use-after-free" ./bytes u
