// Runs pairs of operations from two CPUs, and marks for `./quire conflicts --guest` when the kernel's accesses count.
//
// Two actors, each pinned to its CPU, take turns: while one executes an operation, the other spins in user mode. So a
// kernel line that both touch is touched by the operations, not by a meeting of the two. A pair is a case if both
// orders give the same results and the same visible state.
#include "conflicts.h"
#include <stdarg.h>
#include <stdatomic.h>

// `nopl` with a displacement of ours: see plugin/src/mark.rs.
#define MARK(word) __asm__ volatile(".byte 0x0f, 0x1f, 0x80; .long 0x51756900 + " #word ::: "memory")
#define ON() MARK(1)
#define OFF() MARK(2)
#define ROUND() MARK(3)
#define CASE() MARK(4)

#define WARM 1
#define SETTLED 160
#define ROUNDS 3

enum step { EQUIP, PREPARE, RUN, RUN_MARKED, FINISH, QUIT, CROWD, LOOK };

// Both actors map this, and no child does.
struct control {
    _Atomic uint32_t ready;
    _Atomic uint32_t asked __attribute__((aligned(64)));
    enum step step;
    int operation;
    _Atomic uint32_t answered __attribute__((aligned(64)));
    long result;
    char log[4 << 20] __attribute__((aligned(4096)));
    size_t logged;
};
static struct control *control;
static struct actor actors[2];

// Kept until the end: the console's accesses would appear in the records.
static void say(const char *format, ...) {
    va_list values;
    va_start(values, format);
    control->logged += vsnprintf(control->log + control->logged, sizeof control->log - control->logged, format, values);
    CHECK(control->logged < sizeof control->log, "the log is full");
    va_end(values);
}

static void pin(int cpu) {
    cpu_set_t set, got;
    CPU_ZERO(&set);
    CPU_SET(cpu, &set);
    CHECK(sched_setaffinity(0, sizeof set, &set) == 0, "CPU %d", cpu);
    CHECK(sched_getaffinity(0, sizeof got, &got) == 0 && CPU_EQUAL(&set, &got), "CPU %d", cpu);
    unsigned here = 99;
    CHECK(syscall(SYS_getcpu, &here, NULL, NULL) == 0 && (int)here == cpu, "on CPU %u instead of %d", here, cpu);
}

// Maps and unmaps, and moves the break, which stays where the process began. CPUs that take turns at that get stretches
// of addresses of their own. Returns the stretch of the mapping.
static long crowd(void) {
    char *memory = map_fresh(1, 0);
    munmap(memory, PAGE);
    long before = syscall(SYS_brk, 0);
    syscall(SYS_brk, before + PAGE);
    syscall(SYS_brk, before);
    return (long)((uint64_t)memory >> 39);
}

// So that both have used the shared files for long.
static void look_at_shared(void) {
    struct stat about;
    CHECK(stat("/tmp/conflicts/file", &about) == 0 && stat("/tmp/conflicts/same", &about) == 0, "stat");
}

static void equip(struct actor *me, int actor, enum state state, char *base);

static long act(struct actor *me, enum step step, int at) {
    const struct operation *operation = at < OPERATIONS ? &operations[at] : NULL;
    long result = 0;
    switch (step) {
    case EQUIP: equip(me, (int)(me - actors), (enum state)at, NULL); break;
    case PREPARE: operation->prepare(me); break;
    case RUN: result = operation->run(me); break;
    case RUN_MARKED:
        ON();
        result = operation->run(me);
        OFF();
        break;
    case FINISH: result = operation->finish(me); break;
    case CROWD: result = crowd(); break;
    case LOOK: look_at_shared(); break;
    case QUIT: break;
    }
    return result;
}

static void ask(enum step step, int operation) {
    control->step = step;
    control->operation = operation;
    atomic_fetch_add(&control->asked, 1);
}

static long answer(void) {
    while (atomic_load(&control->answered) != atomic_load(&control->asked)) __builtin_ia32_pause();
    return control->result;
}

// The second actor does the first one's requests.
static void serve(struct actor *me) {
    for (uint32_t next = 1;; next++) {
        while (atomic_load(&control->asked) != next) __builtin_ia32_pause();
        enum step step = control->step;
        control->result = act(me, step, control->operation);
        atomic_store(&control->answered, next);
        if (step == QUIT) return;
    }
}

static long on(int actor, enum step step, int operation) {
    if (actor == 0) return act(&actors[0], step, operation);
    ask(step, operation);
    return answer();
}

struct outcome {
    long result[2], after[2];
};

// The compared part of the result of `one`. The time of a store into a mapped file is renewed once a tick only, so the
// clock decides whether `stat` shows the store.
static long compared(const struct operation *one, const struct operation *other, long result) {
    int shows = one->run == run_stat || one->run == run_stat_same || one->run == run_fstat;
    return shows && other->states == MEMORY ? result & ~WRITTEN : result;
}

// A round of both operations, the first actor's first or second.
static struct outcome both(const int *pair, int first, enum step run) {
    struct outcome out;
    for (int actor = 0; actor < 2; actor++) on(actor, PREPARE, pair[actor]);
    for (int turn = 0; turn < 2; turn++) {
        int actor = turn ^ first;
        out.result[actor] = on(actor, run, pair[actor]);
    }
    for (int actor = 0; actor < 2; actor++) {
        out.result[actor] = compared(&operations[pair[actor]], &operations[pair[!actor]], out.result[actor]);
        out.after[actor] = on(actor, FINISH, pair[actor]);
    }
    return out;
}

// Whether it links into an object's mapping list, of which CPUs that keep taking turns get shards of their own.
static int lists_mappings(const char *operation) {
    static const char *const all[] = {"mmap-file", "fork", "exec-same"};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        if (strcmp(operation, all[i]) == 0) return 1;
    }
    return 0;
}

static void measure(enum state state, int a, int b) {
    const int pair[2] = {a, b};
    const char *x = operations[a].name, *y = operations[b].name;
    const int warm = lists_mappings(x) && lists_mappings(y) ? SETTLED : WARM;
    struct outcome forth = both(pair, 0, RUN), back = both(pair, 1, RUN);
    int alike = memcmp(forth.result, back.result, sizeof forth.result) == 0;
    alike &= memcmp(forth.after, back.after, sizeof forth.after) == 0;
    if (!alike) {
        say("order %s %s %s %ld %ld %ld %ld\n", state_names[state], x, y, forth.result[0], forth.result[1],
            back.result[0],
            back.result[1]);
        return;
    }
    for (int i = 0; i < warm; i++) both(pair, 0, RUN);
    CASE();
    for (int i = 0; i < ROUNDS; i++) {
        struct outcome out = both(pair, i % 2, RUN_MARKED);
        if (memcmp(out.result, forth.result, sizeof out.result) != 0) {
            say("%s %s %s: results differ between rounds: %ld %ld, before %ld %ld\n", state_names[state], x, y,
                out.result[0], out.result[1], forth.result[0], forth.result[1]);
            _exit(1);
        }
        ROUND();
    }
    say("case %s %s %s\n", state_names[state], x, y);
}

// Repeats until the two have stretches of their own.
static void fan_out(void) {
    long home = (long)((uint64_t)control >> 39);
    for (int i = 0; i < 200; i++) {
        long mine = on(0, CROWD, 0), theirs = on(1, CROWD, 0);
        if (mine != home && theirs != home && mine != theirs) return;
    }
    CHECK(0, "the process does not fan out");
}

static int selected(int count, char **names, int a, int b) {
    // Operations that conflict on purpose are no part of the matrix.
    int all = count == 0 && a < ON_PURPOSE && b < ON_PURPOSE;
    int has[2] = {all, all};
    for (int i = 0; i < count; i++) {
        has[0] |= strcmp(names[i], operations[a].name) == 0;
        has[1] |= strcmp(names[i], operations[b].name) == 0;
    }
    return has[0] && has[1];
}

static void lead(enum state state, int count, char **names) {
    if (state == THREADS) {
        fan_out();
        for (int actor = 0; actor < 2; actor++) on(actor, EQUIP, state);
    }
    for (int i = 0; i < 64; i++) on(i % 2, LOOK, 0);
    for (int a = 0; a < OPERATIONS; a++) {
        for (int b = a; b < OPERATIONS; b++) {
            unsigned both = operations[a].states & operations[b].states;
            if ((both & 1u << state) && selected(count, names, a, b)) {
                if (state == THREADS) fan_out();
                measure(state, a, b);
            }
        }
    }
    ask(QUIT, 0);
    answer();
}

static void signalled(int number) { (void)number; }

// Makes an actor's own things. `base`: memory that both have, if the state says so.
static void equip(struct actor *me, int actor, enum state state, char *base) {
    me->actor = actor;
    me->state = state;
    me->at = actor * OWN * PAGE;
    snprintf(me->program, sizeof me->program, "/tmp/conflicts/%d/child", actor);
    me->directory = open(actor ? "/tmp/conflicts/1" : "/tmp/conflicts/0", O_RDONLY | O_DIRECTORY);
    me->shared = open("/tmp/conflicts/file", O_RDWR);
    me->file = state == SHARED_FILE ? open("/tmp/conflicts/file", O_RDWR) : openat(me->directory, "file", O_RDWR);
    CHECK(me->directory >= 0 && me->file >= 0 && me->shared >= 0, "open");
    me->region = base ? base + actor * OWN * PAGE : map_fresh(OWN, 0);
    if (state == SHARED_FILE) {
        me->region = mmap(NULL, OWN * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, me->shared, me->at);
        CHECK(me->region != MAP_FAILED, "mmap");
    }
    me->readable = mmap(NULL, FILE_PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE, me->file, me->at);
    CHECK(me->readable != MAP_FAILED, "mmap");
    CHECK(pipe(me->pipe) == 0, "pipe");
    CHECK((me->event = eventfd(0, 0)) >= 0, "eventfd");
    equip_sockets(me);
    for (int i = 0; i < 4; i++) me->region[i * PAGE] = 1;
}

static void *second_thread(void *unused) {
    (void)unused;
    pin(1);
    atomic_store(&control->ready, 1);
    serve(&actors[1]);
    return NULL;
}

static void map_control(void) {
    int fd = open("/tmp/conflicts/control", O_RDWR);
    CHECK(fd >= 0, "the control file");
    control = mmap(NULL, sizeof *control, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, 0);
    CHECK(control != MAP_FAILED, "mmap");
    close(fd);
}

// An actor's process: `conflicts actor STATE NUMBER [OPERATION...]`.
static int actor(int count, char **words) {
    enum state state = atoi(words[0]);
    int actor = atoi(words[1]);
    signal(SIGUSR1, signalled);
    map_control();
    // Processes that share nothing have neither a session nor an open file in common.
    setsid();
    for (int fd = 0; fd < 3; fd++) close(fd);
    if (state == SHARED_REGION || state == FAMILY) {
        int kind = state == FAMILY ? MAP_PRIVATE : MAP_SHARED;
        char *base = mmap(NULL, 2 * OWN * PAGE, PROT_READ | PROT_WRITE, MAP_ANONYMOUS | kind, -1, 0);
        CHECK(base != MAP_FAILED, "mmap");
        memset(base, 1, 2 * OWN * PAGE);
        actor = fork() == 0;
        madvise(control, sizeof *control, MADV_DONTFORK);
        pin(actor);
        equip(&actors[actor], actor, state, base);
    } else {
        madvise(control, sizeof *control, MADV_DONTFORK);
        pin(actor);
        // Threads get theirs once both run.
        if (state != THREADS) equip(&actors[actor], actor, state, NULL);
    }
    pthread_t second;
    if (state == THREADS) CHECK(pthread_create(&second, NULL, second_thread, NULL) == 0, "thread");
    if (actor == 1) {
        atomic_store(&control->ready, 1);
        serve(&actors[1]);
        _exit(0);
    }
    while (!atomic_load(&control->ready)) __builtin_ia32_pause();
    lead(state, count - 2, words + 2);
    if (state == THREADS) pthread_join(second, NULL);
    return 0;
}

static void copy(const char *from, const char *to) {
    int in = open(from, O_RDONLY), out = open(to, O_WRONLY | O_CREAT | O_TRUNC, 0700);
    CHECK(in >= 0 && out >= 0, "%s to %s", from, to);
    static char block[1 << 16];
    for (ssize_t got; (got = read(in, block, sizeof block)) > 0;) CHECK(write(out, block, got) == got, "%s", to);
    close(in);
    close(out);
}

static void make_file(const char *path, long bytes, int filled) {
    int fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0600);
    CHECK(fd >= 0 && ftruncate(fd, bytes) == 0, "%s", path);
    char page[PAGE] = {1};
    for (long i = 0; filled && i < 2 * FILE_PAGES; i++) {
        long at = (i / FILE_PAGES) * OWN + i % FILE_PAGES;
        if (at * PAGE < bytes) CHECK(pwrite(fd, page, PAGE, at * PAGE) == PAGE, "%s", path);
    }
    close(fd);
}

// The kernel's use of its frames, to name the owners of lines.
static void report_frames(void) {
    FILE *frames = fopen("/proc/sys/vm/quire_frames", "r");
    CHECK(frames, "/proc/sys/vm/quire_frames");
    char line[256];
    while (fgets(line, sizeof line, frames)) printf("frames %s", line);
    fclose(frames);
}

static int known(const char *name) {
    for (int i = 0; i < OPERATIONS; i++) {
        if (strcmp(operations[i].name, name) == 0) return 1;
    }
    return 0;
}

static pid_t start(int actor, enum state state, int count, char **names) {
    char program[64], number[2][8];
    snprintf(program, sizeof program, "/tmp/conflicts/%d/actor", actor);
    snprintf(number[0], sizeof number[0], "%d", state);
    snprintf(number[1], sizeof number[1], "%d", actor);
    char *words[count + 5];
    words[0] = program, words[1] = "actor", words[2] = number[0], words[3] = number[1];
    for (int i = 0; i < count; i++) words[4 + i] = names[i];
    words[4 + count] = NULL;
    pid_t child = fork();
    CHECK(child >= 0, "fork");
    if (child == 0) {
        execv(program, words);
        _exit(127);
    }
    return child;
}

// The child stays a process until this program ends: its structures keep their frames, by which lines get names.
static void wait_for(pid_t child, enum state state) {
    siginfo_t end = {0};
    CHECK(waitid(P_PID, (id_t)child, &end, WEXITED | WNOWAIT) == 0, "waitid");
    // The actors' last line says what failed: their output is closed.
    const char *last = control->log + control->logged;
    while (last > control->log && (last == control->log + control->logged || last[-1] != '\n')) last--;
    CHECK(end.si_code == CLD_EXITED && end.si_status == 0, "%s ended with %x: %s", state_names[state], end.si_status,
        last);
}

int main(int count, char **words) {
    if (count > 1 && strcmp(words[1], "nothing") == 0) return 0;
    if (count > 3 && strcmp(words[1], "actor") == 0) return actor(count - 2, words + 2);
    for (int i = 1; i < count; i++) {
        if (!known(words[i])) return 2;
    }
    mkdir("/tmp/conflicts", 0700);
    for (int actor = 0; actor < 2; actor++) {
        char path[64];
        const char *name[] = {"", "/actor", "/child", "/file"};
        for (int i = 0; i < 4; i++) {
            snprintf(path, sizeof path, "/tmp/conflicts/%d%s", actor, name[i]);
            if (i == 0) mkdir(path, 0700);
            else if (i == 3) make_file(path, 2 * OWN * PAGE, 1);
            else copy("/proc/self/exe", path);
        }
    }
    copy("/proc/self/exe", "/tmp/conflicts/same");
    make_file("/tmp/conflicts/file", 2 * OWN * PAGE, 1);
    make_file("/tmp/conflicts/control", (sizeof *control + PAGE - 1) / PAGE * PAGE, 0);
    map_control();
    for (enum state state = 0; state < STATES; state++) {
        atomic_store(&control->ready, 0);
        atomic_store(&control->asked, 0);
        atomic_store(&control->answered, 0);
        pid_t second = state == APART || state == SHARED_FILE ? start(1, state, 0, NULL) : 0;
        wait_for(start(0, state, count - 1, words + 1), state);
        if (second) wait_for(second, state);
    }
    fwrite(control->log, 1, control->logged, stdout);
    report_frames();
    return 0;
}
