// Every system call number with random arguments: bad pointers, huge and wrapping lengths, overlapping ranges. Two
// workers make the calls. The parent protects itself: it shares only a page of counters with them. It restarts a worker
// that hangs or that its own calls have killed.
//
// Some calls are left out because they would legitimately end the attacker's world or outlast it: exit, reboot, System
// V objects. Calls that name a process never name the parent. Calls that remove paths see only names in an empty
// directory. Started as root on a real Linux, the workers switch to an unprivileged user.
//
//   --seed N     repeats the sequence of each worker (up to where it dies)
//   --trace 1    writes each call to standard error before it is made
#include "report.h"
#include <grp.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <fcntl.h>
#include <ftw.h>

#define WORKERS 2
#define NUMBERS 512
#define ERRNOS 256

static long seed = 1, trace;

static struct counters {
    _Atomic uint64_t calls, state;
    _Atomic uint8_t number[NUMBERS], error[ERRNOS];
} *shared; // one a worker

static const uint16_t left_out[] = {
    SYS_exit, SYS_exit_group, SYS_rt_sigreturn, SYS_reboot, SYS_shmget, SYS_msgget, SYS_semget, SYS_sync, SYS_syncfs,
    SYS_vhangup,
};
// The argument that names a process, if any.
static const struct {
    uint16_t number, argument;
} names_process[] = {
    {SYS_kill, 0}, {SYS_tkill, 0}, {SYS_tgkill, 0}, {SYS_tgkill, 1}, {SYS_rt_sigqueueinfo, 0},
        {SYS_rt_tgsigqueueinfo, 0},
    {SYS_rt_tgsigqueueinfo, 1}, {SYS_prlimit64, 0}, {SYS_setpriority, 1}, {SYS_sched_setparam, 0}, {SYS_setpgid, 1},
    {SYS_sched_setscheduler, 0}, {SYS_sched_setaffinity, 0}, {SYS_sched_setattr, 0}, {SYS_ptrace, 1},
        {SYS_ioprio_set, 1},
    {SYS_process_vm_writev, 0}, {SYS_pidfd_open, 0}, {SYS_migrate_pages, 0}, {SYS_move_pages, 0},
};
static const uint16_t takes_away[] = {
    SYS_unlink, SYS_unlinkat, SYS_rmdir, SYS_rename, SYS_renameat, SYS_renameat2, SYS_truncate, SYS_chmod, SYS_chown,
        SYS_lchown,
    SYS_fchmodat, SYS_fchownat, SYS_mount, SYS_umount2, SYS_pivot_root, SYS_chroot, SYS_link, SYS_linkat, SYS_symlink,
    SYS_symlinkat, SYS_mknod, SYS_mknodat, SYS_mkdir, SYS_mkdirat, SYS_utime, SYS_utimes, SYS_utimensat, SYS_futimesat,
    SYS_creat, SYS_acct, SYS_swapon, SYS_swapoff, SYS_setxattr, SYS_removexattr,
};

#define LISTED(list, n) ({ \
    bool found = false; \
    for (size_t i = 0; i < sizeof(list) / sizeof *(list); i++) found |= (list)[i] == (n); \
    found; \
})

// No errno, hence no thread-local storage, which the calls may have destroyed.
static long call(long n, const long *a) {
    register long r10 __asm__("r10") = a[3], r8 __asm__("r8") = a[4], r9 __asm__("r9") = a[5];
    long result;
    __asm__ volatile("syscall"
                     : "=a"(result)
                     : "a"(n), "D"(a[0]), "S"(a[1]), "d"(a[2]), "r"(r10), "r"(r8), "r"(r9)
                     : "rcx", "r11", "memory");
    return result;
}

// A few pages of every kind, at one place always, so that ranges overlap across respawns and a repeated seed repeats.
// The calls may write to any address in their arguments, so the attacker relies on nothing elsewhere.
#define playground ((char *)0x600000000000)
#define NAMES (2 * (long)PAGE) // the page that begins with an absolute path and has short names further on
#define NAME(i) (playground + NAMES + 1024 + (i) % 3 * 16)

static void write_names(void) {
    static const char absolute[4][24] = {"/proc/self/maps", "/dev/zero", "/", "/proc/self/exe"};
    memcpy(playground + NAMES, absolute, sizeof absolute);
    memcpy(NAME(0), "a", 2);
    memcpy(NAME(1), "b/../c", 7);
    memcpy(NAME(2), ".", 2);
}

static long random_address(uint64_t *state) {
    uint64_t r = random_next(state), page = (r >> 8) % 16, offset = (r >> 16) % 8 ? 0 : (r >> 24) % PAGE;
    switch (r % 12) {
    case 0: return 0;
    case 1: return -1 - (long)(r >> 8) % 8192;
    case 2: return 0xffffffff80000000 + ((r >> 8) << 12 & 0x3fffffff);
    case 3: return 0xffff800000000000 + ((r >> 8) << 12 & 0x7fffffffffff);
    case 4: return 0x7ffffffff000 - page * PAGE + offset;
    case 5: return (long)NAME(page);
    case 6: return (r >> 8) & 0x7fffffffffff;
    default: return (long)playground + page * PAGE + offset;
    }
}

static long random_argument(uint64_t *state) {
    uint64_t r = random_next(state);
    switch (r % 10) {
    case 0: return 0;
    case 1: return (r >> 8) % 8;
    case 2: return (r >> 8) % 300;
    case 3: return 1l << (r >> 8) % 64;
    case 4: return (1l << (r >> 8) % 64) - 1 - (r >> 16) % 2 * PAGE;
    case 5: return (r >> 8) % 32 * PAGE;
    case 6: return random_next(state) >> (r >> 8) % 64;
    default: return random_address(state);
    }
}

static long random_number(uint64_t *state) {
    uint64_t r = random_next(state);
    switch (r % 64) {
    case 0: return r >> 8;                        // anything
    case 1: return 0x40000000 | (r >> 8) % 600;   // x32
    case 2: return (r >> 8) % 4096;
    default: return (r >> 8) % 470;
    }
}

static void on_alarm(int signal) { (void)signal; }

// A timer interrupts calls that block. It is set anew now and then, because the calls remove it.
static void interrupt_often(void) {
    sigset_t nothing;
    sigemptyset(&nothing);
    struct sigaction action = {.sa_handler = on_alarm};
    struct itimerval tick = {{0, 5000}, {0, 5000}};
    sigaction(SIGALRM, &action, NULL);
    sigprocmask(SIG_SETMASK, &nothing, NULL);
    setitimer(ITIMER_REAL, &tick, NULL);
    signal(SIGXFSZ, SIG_IGN);
    signal(SIGPIPE, SIG_IGN);
}

static void make_playground(void) {
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED;
    if (mmap(playground, 16 * PAGE, PROT_READ | PROT_WRITE, flags, -1, 0) == MAP_FAILED) _exit(1);
    for (int i = 0; i < 8; i++) memset(playground + i * PAGE, i % 2 ? i : 0, PAGE);
    memcpy(playground, "a", 2);
    write_names();
    mprotect(playground + 4 * PAGE, PAGE, PROT_READ);
    mprotect(playground + 5 * PAGE, PAGE, PROT_NONE);
    munmap(playground + 6 * PAGE, PAGE);
}

__attribute__((noreturn)) static void worker(int index, pid_t parent, const char *directory) {
    struct counters *my = &shared[index];
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    setsid();
    if (chdir(directory)) _exit(1);
    // No way to the outside but, when tracing, one for the traces.
    int null = open("/dev/null", O_RDWR), errors = trace ? fcntl(2, F_DUPFD, 1000) : -1;
    for (int fd = 0; fd < 256; fd++) fd < 3 ? dup2(null, fd) : close(fd);
    struct rlimit small = {MIB, MIB}, space = {512 * MIB, 512 * MIB}, few = {256, 256}, none = {0, 0};
    setrlimit(RLIMIT_FSIZE, &small);
    setrlimit(RLIMIT_AS, &space);
    setrlimit(RLIMIT_NPROC, &few);
    setrlimit(RLIMIT_CORE, &none);
    if (getuid() == 0) {
        setgroups(0, NULL);
        if (setresgid(65534, 65534, 65534) || setresuid(65534, 65534, 65534)) _exit(1);
    }
    make_playground();

    const bool tracing = trace;
    long self = syscall(SYS_getpid), none_given[6] = {0};
    for (unsigned turn = 0;; turn++) {
        if (turn % 32 == 0) {
            // If the calls have unmapped the names, the worker dies, and restarts with them.
            write_names();
            interrupt_often();
        }
        uint64_t state = my->state;
        long number = random_number(&state), a[6];
        for (int i = 0; i < 6; i++) a[i] = random_argument(&state);
        my->state = state;
        if (number < 0 || LISTED(left_out, number)) continue;
        for (size_t i = 0; i < sizeof names_process / sizeof *names_process; i++)
            if (names_process[i].number == number) {
                long *id = &a[names_process[i].argument];
                // Only itself, or no process. (Narrowed as the kernel does.)
                if (*id & 1 || (int)*id == 1 || (int)*id == parent) *id = self;
                else *id = 0x3fffffff;
            }
        if (LISTED(takes_away, number))
            for (int i = 0; i < 6; i++)
                if (a[i] >= (long)playground + NAMES && a[i] < (long)playground + NAMES + 1024)
                    a[i] = (long)NAME(i % 2);
        if (tracing) {
            char line[160];
            int length = snprintf(line, sizeof line, "%d: %ld(%#lx, %#lx, %#lx, %#lx, %#lx, %#lx)\n", index, number,
                a[0], a[1],
                                  a[2], a[3], a[4], a[5]);
            long out[6] = {errors, (long)line, length};
            call(SYS_write, out);
        }
        long result = call(number, a);
        // The call may have returned in a child of ours.
        if (call(SYS_getpid, none_given) != self) call(SYS_exit_group, none_given);
        my->calls++;
        if (number < NUMBERS) my->number[number] = 1;
        if (result < 0 && result > -ERRNOS) my->error[-result] = 1;
    }
}

static uint64_t deaths, hangs;

static void bury(pid_t child) {
    kill(-child, SIGKILL); // its group: what it forked goes with it
    kill(child, SIGKILL);
    while (waitpid(child, NULL, 0) < 0 && errno == EINTR) {}
}

static int remove_entry(const char *path, const struct stat *s, int type, struct FTW *ftw) {
    (void)s, (void)type, (void)ftw;
    remove(path);
    return 0;
}

int main(int argc, char **argv) {
    struct setting own[] = {{"--seed", &seed, NULL}, {"--trace", &trace, NULL}, {0}};
    parse_options(argc, argv, own);
    shared = mmap(NULL, WORKERS * sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK((void *)shared != MAP_FAILED, "mmap");
    char directory[64];
    snprintf(directory, sizeof directory, "/tmp/attack.%d", getpid());
    CHECK(!mkdir(directory, 0777) && !chmod(directory, 0777), "cannot make %s", directory);

    prctl(PR_SET_CHILD_SUBREAPER, 1);
    pid_t workers[WORKERS] = {0};
    uint64_t seen[WORKERS] = {0}, since[WORKERS] = {0};
    for (int i = 0; i < WORKERS; i++) shared[i].state = seed * 1000003 + i;
    int status;
    uint64_t end = now_ns() + (uint64_t)(options.seconds * 1e9);
    while (now_ns() < end) {
        // The orphans of workers come to us, too.
        for (pid_t gone; (gone = waitpid(-1, &status, WNOHANG | WUNTRACED)) > 0;)
            for (int i = 0; i < WORKERS; i++)
                if (gone == workers[i]) {
                    deaths++;
                    if (WIFSTOPPED(status)) bury(gone);
                    else kill(-gone, SIGKILL);
                    workers[i] = 0;
                }
        for (int i = 0; i < WORKERS; i++) {
            uint64_t calls = shared[i].calls, now = now_ns();
            if (calls != seen[i] || !workers[i]) seen[i] = calls, since[i] = now;
            if (workers[i] && now - since[i] > 50000000) {
                hangs++;
                bury(workers[i]);
                workers[i] = 0;
            }
            if (!workers[i]) {
                pid_t parent = getpid(), child = fork();
                CHECK(child >= 0, "fork");
                if (!child) worker(i, parent, directory);
                workers[i] = child;
                since[i] = now;
            }
        }
        usleep(500);
    }
    for (int i = 0; i < WORKERS; i++)
        if (workers[i]) bury(workers[i]);

    uint64_t calls = 0, numbers = 0, errors = 0;
    for (int i = 0; i < WORKERS; i++) calls += shared[i].calls;
    for (int n = 0; n < NUMBERS; n++) numbers += shared[0].number[n] | shared[1].number[n];
    for (int e = 0; e < ERRNOS; e++) errors += shared[0].error[e] | shared[1].error[e];
    report("attack_calls", calls, "calls");
    report("attack_numbers", numbers, "numbers");
    report("attack_errnos", errors, "errnos");
    report("attack_deaths", deaths, "workers");
    report("attack_hangs", hangs, "workers");

    // Is the machine still whole?
    pid_t child = fork();
    CHECK(child >= 0, "no process can be made any more");
    if (!child) {
        char *memory = mmap(NULL, MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        CHECK(memory != MAP_FAILED, "no memory can be mapped any more");
        for (size_t at = 0; at < MIB; at++) CHECK(memory[at] == 0, "a fresh page is not zero");
        _exit(0);
    }
    CHECK(waitpid(child, &status, 0) == child && status == 0, "a simple child ended with status %#x", status);
    CHECK(calls > 0 && numbers > 0, "no call returned");
    nftw(directory, remove_entry, 16, FTW_DEPTH | FTW_PHYS);
    return 0;
}
