// Counted operations: what each costs in instructions of the kernel. `./quire test counts` compares the costs with
// lab/counts.toml.
//
//   counts [-k] [WORD...]      the operations whose names contain one of the words, or all
// =WORD is the operation of just that name; +WORD means all, of which a profile has that one;
//                              with -k an operation that this kernel lacks is left out
//   counts begin               the beginning of a stretch that a script counts
//   counts end NAME TIMES      its end
//
// Each operation is a function that marks the stretch that counts. For each the program prints a line
// `counted NAME TIMES`, and the emulator's plugin writes the instructions of that many executions.
#include <sys/personality.h>

#include "counts_files.h"
#include "counts_memory.h"
#include "counts_messages.h"
#include "counts_process.h"

// Between two operations the machine finishes the work that the last one left. With a counted clock that costs nothing.
static void settle(void) {
    struct timespec moment = {0, 300000000};
    nanosleep(&moment, NULL);
}

static void count(const struct operation *operation, bool lenient) {
    *counted_times = 0;
    settle();
    fflush(NULL);
    pid_t child = fork();
    CHECK(child >= 0, "fork");
    if (!child) {
        operation->run();
        fflush(NULL);
        _exit(0);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child, "waitpid");
    if (lenient && status) return;
    CHECK(!status, "%s ended with %#x", operation->name, status);
    CHECK(*counted_times > 0, "%s counted nothing", operation->name);
    printf("counted %s %ld\n", operation->name, *counted_times);
    fflush(stdout);
    // As process 1 it also has orphans.
    while (waitpid(-1, NULL, WNOHANG) > 0);
}

static bool chosen(const char *name, int words, char **word) {
    bool found = words == 0;
    profiled = words == 0 || *word[0] != '+';
    for (int i = 0; i < words; i++) {
        if (*word[i] == '+') {
            found = true;
            profiled |= !strcmp(name, word[i] + 1);
        } else {
            found |= *word[i] == '=' ? !strcmp(name, word[i] + 1) : strstr(name, word[i]) != NULL;
        }
    }
    return found;
}

// A script marks a stretch by `counts begin` and `counts end NAME TIMES`.
static int mark(char **words) {
    if (!strcmp(words[0], "begin")) {
        COUNT_MARK(5);
        return 0;
    }
    COUNT_MARK(6);
    printf("counted %s %s\n", words[1], words[2]);
    return 0;
}

int main(int argc, char **argv) {
    if ((argc == 2 && !strcmp(argv[1], "begin")) || (argc == 4 && !strcmp(argv[1], "end"))) return mark(argv + 1);
    // Costs depend on where memory lies, and a program lies elsewhere each time.
    int persona = personality(0xffffffff);
    if (persona >= 0 && !(persona & ADDR_NO_RANDOMIZE) && personality(persona | ADDR_NO_RANDOMIZE) >= 0) {
        execv(argv[0], argv);
        fail("exec of %s", argv[0]);
    }
    // The kernel allows few mappings at first.
    int limit = open("/proc/sys/vm/max_map_count", O_WRONLY);
    if (limit >= 0) {
        CHECK(write(limit, "300000", 6) == 6, "max_map_count");
        close(limit);
    }
    counted_times = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(counted_times != MAP_FAILED, "mmap");
    bool lenient = argc > 1 && !strcmp(argv[1], "-k");
    const struct operation *const all[] = {memory_operations, process_operations, file_operations, message_operations};
    for (size_t subject = 0; subject < sizeof all / sizeof *all; subject++)
        for (const struct operation *operation = all[subject]; operation->name; operation++)
            if (chosen(operation->name, argc - 1 - lenient, argv + 1 + lenient)) count(operation, lenient);
    return 0;
}
