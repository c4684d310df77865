// Checks of processes, threads, signals and timers, one by one; the same on Linux and on Quire.
#include "checks.h"
#include <sched.h>
#include <setjmp.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/times.h>
#include <sys/utsname.h>
#include <sys/auxv.h>
#include <sys/stat.h>

// musl brings no linux/futex.h.
enum { FUTEX_WAIT = 0, FUTEX_WAKE = 1, FUTEX_WAIT_PRIVATE = 128, FUTEX_WAKE_PRIVATE = 129,
    FUTEX_CMP_REQUEUE_PRIVATE = 132 };

static const char *self;

static void exit_statuses(void) {
    pid_t child = fork();
    if (!child) _exit(300);
    int status = ended(child);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == (300 & 255), "status %#x", status);
    child = fork();
    if (!child) {
        pause();
        _exit(1);
    }
    CHECK(waitpid(child, &status, WNOHANG) == 0, "WNOHANG finds nothing");
    kill(child, SIGTERM);
    status = ended(child);
    CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGTERM, "status %#x", status);
    CHECK(waitpid(-1, &status, 0) == -1 && errno == ECHILD, "no child is left");
    CHECK(waitpid(child, &status, 0) == -1 && errno == ECHILD, "waited for already");
    CHECK(kill(child, 0) == -1 && errno == ESRCH, "it is gone");
}

static void wait_kinds(void) {
    pid_t child = fork();
    if (!child) {
        setpgid(0, 0);
        _exit(5);
    }
    setpgid(child, child);
    siginfo_t info = {0};
    CHECK(!waitid(P_PGID, child, &info, WEXITED | WNOWAIT), "waitid of the group");
    CHECK(info.si_pid == child && info.si_code == CLD_EXITED && info.si_status == 5, "the report of waitid");
    CHECK(waitpid(0, NULL, WNOHANG) == -1 && errno == ECHILD, "not of the own group");
    struct rusage usage;
    int status;
    CHECK(wait4(-child, &status, 0, &usage) == child && WEXITSTATUS(status) == 5, "wait4 of the group");
    CHECK(usage.ru_minflt > 0, "its usage: %ld faults, %ld KiB", usage.ru_minflt, usage.ru_maxrss);
}

static void orphans(void) {
    int ends[2];
    CHECK(!pipe(ends) && !prctl(PR_SET_CHILD_SUBREAPER, 1), "pipe, subreaper");
    pid_t child = fork();
    if (!child) {
        pid_t parent = getpid();
        if (!fork()) {
            while (getppid() == parent) short_sleep();
            pid_t now = getppid();
            write(ends[1], &now, sizeof now);
            _exit(9);
        }
        _exit(0);
    }
    CHECK(ended(child) == 0, "the child");
    pid_t adopter = 0;
    CHECK(read(ends[0], &adopter, sizeof adopter) == sizeof adopter && adopter == getpid(), "adopted by %d", adopter);
    int status;
    CHECK(wait(&status) > 0 && WEXITSTATUS(status) == 9, "the grandchild is waited for");
    prctl(PR_SET_CHILD_SUBREAPER, 0);
    close(ends[0]), close(ends[1]);
}

// A reaper gets SIGCHLD for orphans, whatever signal their parent had chosen, and for children that an orphan makes as
// its siblings.
static void siblings_of_orphans(void) {
    CHECK(!prctl(PR_SET_CHILD_SUBREAPER, 1), "subreaper");
    handle(SIGUSR2, 0);
    for (int round = 0; round < 300; round++) {
        pid_t parent = fork();
        CHECK(parent >= 0, "fork");
        if (!parent) {
            long child = syscall(SYS_clone, SIGUSR2, 0, 0, 0, 0);
            for (int i = 0; !child && i < 20; i++)
                if (!syscall(SYS_clone, CLONE_PARENT | SIGUSR2, 0, 0, 0, 0)) _exit(0);
            // The parent ends in the midst of that.
            for (volatile int spin = 0; child && spin < round * 200;) spin++;
            _exit(0);
        }
        while (waitpid(-1, NULL, __WALL) > 0) {}
        CHECK(errno == ECHILD && !caught, "round %d: a reaper got an orphan's signal", round);
    }
}

static void vfork_shares_memory(void) {
    static volatile int shared;
    shared = 0;
    pid_t child = vfork();
    if (!child) {
        shared = 7;
        _exit(3);
    }
    CHECK(shared == 7, "the parent sees the child's store, and only after it");
    CHECK(WEXITSTATUS(ended(child)) == 3, "status");
}

static void exec_keeps_and_drops(void) {
    // The program that exec starts checks exec's effects: this one, with --child.
    pid_t child = fork();
    if (!child) {
        int keep = dup2(0, 20), drop = fcntl(0, F_DUPFD_CLOEXEC, 30);
        CHECK(keep == 20 && drop == 30, "descriptors");
        signal(SIGUSR1, SIG_IGN);
        handle(SIGUSR2, 0);
        sigset_t set;
        sigemptyset(&set);
        sigaddset(&set, SIGHUP);
        sigprocmask(SIG_BLOCK, &set, NULL);
        char pid[20];
        snprintf(pid, sizeof pid, "%d", getpid());
        execl(self, "a name", "--child", pid, NULL);
        fail("exec");
    }
    CHECK(ended(child) == 33 << 8, "the program that was started");
}

static int child_main(const char *pid) {
    CHECK(getpid() == atoi(pid), "the id stays");
    CHECK(fcntl(20, F_GETFD) == 0 && fcntl(30, F_GETFD) == -1, "descriptors");
    struct sigaction action;
    sigaction(SIGUSR1, NULL, &action);
    CHECK(action.sa_handler == SIG_IGN, "ignored signals stay ignored");
    sigaction(SIGUSR2, NULL, &action);
    CHECK(action.sa_handler == SIG_DFL, "handlers are gone");
    sigset_t set;
    sigprocmask(SIG_BLOCK, NULL, &set);
    CHECK(sigismember(&set, SIGHUP), "the mask stays");
    char name[16];
    prctl(PR_GET_NAME, name);
    CHECK(!strcmp(name, "processes"), "named after the file: %s", name);
    CHECK(getauxval(AT_PAGESZ) == PAGE && getauxval(AT_RANDOM) && getauxval(AT_PHDR), "auxiliary vector");
    CHECK(!strcmp((char *)getauxval(AT_EXECFN), self), "AT_EXECFN");
    return 33;
}

// State that was saved before exec is gone after it.
static int ids_main(void) {
    uid_t real, effective, saved;
    CHECK(!getresuid(&real, &effective, &saved) && effective == 1000 && saved == 1000, "%d %d", effective, saved);
    CHECK(setresuid(-1, 0, -1) == -1 && errno == EPERM, "no way back to the old id");
    CHECK(prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0) == 1, "a child gains no privileges either");
    CHECK(prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 1) == -1 && errno == EINVAL, "an argument too many");
    return 34;
}
static void exec_settles_ids(void) {
    if (geteuid()) return;
    CHECK(!prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "prctl");
    pid_t child = fork();
    if (!child) {
        CHECK(!setresuid(1000, 1000, 0), "setresuid");
        execl(self, self, "--ids", NULL);
        fail("exec");
    }
    CHECK(ended(child) == 34 << 8, "the program that was started");
}

// A parent that has waited for a child has its signal, too.
static void reported_before_waited(void) {
    handle(SIGCHLD, 0);
    sigset_t set, pending;
    sigemptyset(&set);
    sigaddset(&set, SIGCHLD);
    sigprocmask(SIG_BLOCK, &set, NULL);
    for (int i = 0; i < 1000; i++) {
        pid_t child = fork();
        if (!child) _exit(0);
        while (waitpid(child, NULL, WNOHANG) == 0)
            ;
        CHECK(!sigpending(&pending) && sigismember(&pending, SIGCHLD), "round %d", i);
        siginfo_t info;
        CHECK(sigwaitinfo(&set, &info) == SIGCHLD && info.si_pid == child, "the sender of SIGCHLD");
    }
}

static int ends[2];
static void *reads_end(void *unused) {
    (void)unused;
    char byte;
    return (void *)read(ends[0], &byte, 1);
}
static void *writes_end(void *unused) {
    (void)unused;
    static char much[1 << 16];
    ssize_t n;
    while ((n = write(ends[0], much, sizeof much)) > 0)
        ;
    return (void *)(n == -1 && errno == EPIPE ? 7l : 0l);
}
// A shutdown of a socket wakes its waiters.
static void shutting_ends_waits(void) {
    signal(SIGPIPE, SIG_IGN);
    CHECK(!socketpair(AF_UNIX, SOCK_STREAM, 0, ends), "socketpair");
    pthread_t reader, writer;
    void *read_result, *write_result;
    CHECK(!pthread_create(&reader, NULL, reads_end, NULL) && !pthread_create(&writer, NULL, writes_end, NULL),
        "threads");
    until_asleep(0);
    alarm(20);
    CHECK(!shutdown(ends[0], SHUT_RDWR), "shutdown");
    pthread_join(reader, &read_result);
    pthread_join(writer, &write_result);
    CHECK(!read_result && write_result == (void *)7, "%p %p", read_result, write_result);
    alarm(0);
}

// Only the process itself and root may read a process's private files.
static void others_in_proc(void) {
    if (geteuid()) return;
    pid_t root = getpid(), child = fork();
    if (!child) {
        CHECK(!setresgid(1000, 1000, 1000) && !setresuid(1000, 1000, 1000), "setresuid");
        static const char *const hidden[] = {"environ", "auxv", "maps", "fd", "fd/0", "cwd/.", "root/etc", "exe"};
        char path[64], link[64];
        for (size_t i = 0; i < sizeof hidden / sizeof *hidden; i++) {
            snprintf(path, sizeof path, "/proc/%d/%s", root, hidden[i]);
            CHECK(open(path, O_RDONLY) == -1 && errno == EACCES, "%s: %d", path, errno);
        }
        snprintf(path, sizeof path, "/proc/%d/cwd", root);
        CHECK(readlink(path, link, sizeof link) == -1 && errno == EACCES, "%s: %d", path, errno);
        static const char *const seen[] = {"stat", "status", "cmdline", "comm"};
        for (size_t i = 0; i < sizeof seen / sizeof *seen; i++) {
            snprintf(path, sizeof path, "/proc/%d/%s", root, seen[i]);
            CHECK(open(path, O_RDONLY) >= 0, "%s: %d", path, errno);
        }
        CHECK(readlink("/proc/self/cwd", link, sizeof link) > 0, "its own: %d", errno);
        _exit(35);
    }
    CHECK(ended(child) == 35 << 8, "a child of another user");
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/maps", getppid());
    CHECK(open(path, O_RDONLY) >= 0, "root: %d", errno);
}

// A program may seek to any offset in /proc.
static void far_in_proc(void) {
    char buffer[4096];
    int proc = open("/proc", O_RDONLY | O_DIRECTORY);
    CHECK(proc >= 0, "/proc");
    const off_t places[] = {0xffffffff, 0x100000000 + 1001, 1002 + 0xffffffffl, 0x7fffffffffffffff};
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        if (lseek(proc, places[i], SEEK_SET) < 0) continue; // so far there is nothing to seek to
        CHECK(syscall(SYS_getdents64, proc, buffer, sizeof buffer) <= 0, "entries of /proc at %#lx", places[i]);
    }
}

static void scripts(void) {
    char path[64], path2[64], buffer[64] = {0};
    snprintf(path, sizeof path, "/tmp/script.%d", getpid());
    snprintf(path2, sizeof path2, "/tmp/script2.%d", getpid());
    int file = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0755);
    dprintf(file, "#! %s --arguments \nnothing\n", self);
    close(file);
    // A script whose interpreter is a script.
    file = open(path2, O_WRONLY | O_CREAT | O_TRUNC, 0755);
    dprintf(file, "#!%s\n", path);
    close(file);
    int ends[2];
    CHECK(!pipe(ends), "pipe");
    pid_t child = fork();
    if (!child) {
        dup2(ends[1], 1);
        execl(path2, "zero", "one", "two", NULL);
        fail("exec of a script");
    }
    CHECK(ended(child) == 0, "the script");
    read(ends[0], buffer, sizeof buffer - 1);
    CHECK(!strcmp(buffer, "6 one two\n"), "its arguments: %s", buffer);
    file = open(path, O_WRONLY | O_TRUNC);
    dprintf(file, "just text\n");
    close(file);
    CHECK(execl(path, path, NULL) == -1 && errno == ENOEXEC, "text is no program");
    chmod(path, 0644);
    CHECK(execl(path, path, NULL) == -1 && errno == EACCES, "not executable");
    CHECK(execl("/tmp", "x", NULL) == -1 && errno == EACCES, "a directory");
    CHECK(execl("/tmp/none", "x", NULL) == -1 && errno == ENOENT, "no file");
    char *big = malloc(200 << 10);
    memset(big, 'x', 200 << 10);
    big[(200 << 10) - 1] = 0;
    CHECK(execl(self, big, NULL) == -1 && errno == E2BIG, "an argument that is too long");
    free(big);
    unlink(path), unlink(path2);
    close(ends[0]), close(ends[1]);
}

static void signals_arrive(void) {
    handle(SIGUSR1, 0);
    CHECK(!kill(getpid(), SIGUSR1) && caught == SIGUSR1, "at once, to oneself");
    CHECK(caught_code == SI_USER && caught_pid == getpid(), "the sender");
    sigset_t set, old, pending;
    sigemptyset(&set);
    sigaddset(&set, SIGUSR1);
    sigprocmask(SIG_BLOCK, &set, &old);
    caught = 0;
    kill(getpid(), SIGUSR1);
    CHECK(!caught && !sigpending(&pending) && sigismember(&pending, SIGUSR1), "blocked and pending");
    sigprocmask(SIG_SETMASK, &old, NULL);
    CHECK(caught == SIGUSR1, "delivered when unblocked");
    // Ignored meanwhile: gone.
    sigprocmask(SIG_BLOCK, &set, &old);
    kill(getpid(), SIGUSR1);
    signal(SIGUSR1, SIG_IGN);
    handle(SIGUSR1, 0);
    sigprocmask(SIG_SETMASK, &old, NULL);
    CHECK(!caught, "a signal that was ignored while pending is gone");
    CHECK(kill(getpid(), 65) == -1 && errno == EINVAL, "no such signal");
    struct sigaction action = {.sa_handler = SIG_IGN};
    CHECK(sigaction(SIGKILL, &action, NULL) == -1 && errno == EINVAL, "SIGKILL cannot be ignored");
    // One shot.
    handle(SIGUSR2, SA_RESETHAND);
    raise(SIGUSR2);
    sigaction(SIGUSR2, NULL, &action);
    CHECK(caught == SIGUSR2 && action.sa_handler == SIG_DFL, "SA_RESETHAND");
}

static int depth, deepest, entered;
static void nest(int signal) {
    if (++depth > deepest) deepest = depth;
    if (++entered < 3) raise(signal);
    depth--;
}

static void masks_in_handlers(void) {
    struct sigaction action = {.sa_handler = nest};
    deepest = entered = 0;
    sigaction(SIGUSR1, &action, NULL);
    raise(SIGUSR1);
    CHECK(deepest == 1 && entered == 3, "a handler is not interrupted by its own signal");
    action.sa_flags = SA_NODEFER;
    deepest = entered = 0;
    sigaction(SIGUSR1, &action, NULL);
    raise(SIGUSR1);
    CHECK(deepest == 3, "unless it says so");
}

static void queued_values(void) {
    handle(SIGRTMIN + 1, 0);
    sigset_t set, old;
    sigemptyset(&set);
    sigaddset(&set, SIGRTMIN + 1);
    sigprocmask(SIG_BLOCK, &set, &old);
    for (int i = 1; i <= 3; i++) CHECK(!sigqueue(getpid(), SIGRTMIN + 1, (union sigval){.sival_int = i}), "sigqueue");
    siginfo_t info;
    for (int i = 1; i <= 2; i++)
        CHECK(sigwaitinfo(&set, &info) == SIGRTMIN + 1 && info.si_value.sival_int == i && info.si_code == SI_QUEUE,
            "in order");
    sigprocmask(SIG_SETMASK, &old, NULL);
    CHECK(caught == SIGRTMIN + 1 && caught_value == 3, "the last one by its handler");
    sigprocmask(SIG_BLOCK, &set, &old);
    struct timespec wait = {0, 10 * MS};
    uint64_t before = now_ns();
    CHECK(sigtimedwait(&set, &info, &wait) == -1 && errno == EAGAIN, "sigtimedwait ends");
    CHECK(now_ns() - before >= 10 * MS, "not too early");
    sigprocmask(SIG_SETMASK, &old, NULL);
}

static void interrupted_calls(void) {
    int ends[2];
    char byte;
    CHECK(!pipe(ends), "pipe");
    handle(SIGUSR1, 0);
    pid_t child = sender(SIGUSR1);
    CHECK(read(ends[0], &byte, 1) == -1 && errno == EINTR && caught, "a read is interrupted");
    ended(child);
    // With SA_RESTART the call continues: the child writes after the signal.
    handle(SIGUSR1, SA_RESTART);
    child = fork();
    if (!child) {
        until_asleep(getppid());
        kill(getppid(), SIGUSR1);
        until_asleep(getppid());
        write(ends[1], "x", 1);
        _exit(0);
    }
    CHECK(read(ends[0], &byte, 1) == 1 && byte == 'x' && caught, "a read goes on");
    ended(child);
    // A signal without a handler that does nothing does not show.
    child = sender(SIGWINCH);
    struct timespec wait = {0, 60 * MS}, rest;
    uint64_t before = now_ns();
    CHECK(!nanosleep(&wait, &rest) && now_ns() - before >= 60 * MS, "an ignored signal does not end a sleep");
    ended(child);
    handle(SIGUSR1, SA_RESTART);
    child = sender(SIGUSR1);
    wait = (struct timespec){30, 0};
    CHECK(nanosleep(&wait, &rest) == -1 && errno == EINTR, "a sleep is never restarted behind a handler");
    CHECK(rest.tv_sec < 30 && (rest.tv_sec || rest.tv_nsec), "and reports the rest");
    ended(child);
    close(ends[0]), close(ends[1]);
}

static void suspend(void) {
    sigset_t set, none, now;
    sigemptyset(&none);
    sigemptyset(&set);
    sigaddset(&set, SIGUSR1);
    handle(SIGUSR1, 0);
    sigprocmask(SIG_BLOCK, &set, NULL);
    pid_t child = sender(SIGUSR1);
    CHECK(sigsuspend(&none) == -1 && errno == EINTR && caught == SIGUSR1, "sigsuspend");
    sigprocmask(SIG_BLOCK, NULL, &now);
    CHECK(sigismember(&now, SIGUSR1), "the mask is back");
    sigprocmask(SIG_SETMASK, &none, NULL);
    ended(child);
    child = sender(SIGUSR1);
    CHECK(pause() == -1 && errno == EINTR, "pause");
    ended(child);
}

static void job_control(void) {
    int status, ends[2];
    char byte;
    CHECK(!pipe(ends), "pipe");
    handle(SIGCHLD, SA_RESTART);
    pid_t child = fork();
    if (!child) {
        struct timespec wait = {0, 300 * MS};
        uint64_t before = now_ns();
        while (nanosleep(&wait, &wait)) {}
        uint64_t slept = now_ns() - before;
        // The parent may be late, and the child must not end before the stop.
        CHECK(read(ends[0], &byte, 1) == 1, "read");
        _exit(slept >= 300 * MS ? 4 : 1);
    }
    until_asleep(child);
    caught = 0;
    CHECK(!kill(child, SIGSTOP), "kill");
    CHECK(waitpid(child, &status, WUNTRACED) == child && WIFSTOPPED(status) && WSTOPSIG(status) == SIGSTOP, "stopped");
    CHECK(caught == SIGCHLD && caught_code == CLD_STOPPED, "SIGCHLD says so: %d", caught_code);
    CHECK(waitpid(child, &status, WUNTRACED | WNOHANG) == 0, "reported once");
    CHECK(!kill(child, SIGCONT), "kill");
    CHECK(waitpid(child, &status, WCONTINUED) == child && WIFCONTINUED(status), "continued");
    CHECK(write(ends[1], "x", 1) == 1, "write");
    status = ended(child);
    close(ends[0]), close(ends[1]);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 4, "and it ended as it should: %#x", status);
    CHECK(caught_code == CLD_EXITED && caught_pid == child, "SIGCHLD says so");
    // A stopped process dies of SIGKILL at once.
    child = fork();
    if (!child) for (;;) pause();
    kill(child, SIGSTOP);
    CHECK(waitpid(child, &status, WUNTRACED) == child && WIFSTOPPED(status), "stopped");
    kill(child, SIGKILL);
    CHECK(ended(child) == SIGKILL, "killed");
    // The parent ignores the exit: no zombie.
    handle(SIGCHLD, SA_NOCLDWAIT | SA_RESTART);
    child = fork();
    if (!child) _exit(0);
    CHECK(waitpid(child, &status, 0) == -1 && errno == ECHILD, "SA_NOCLDWAIT leaves no zombie");
    signal(SIGCHLD, SIG_DFL);
}

static void groups(void) {
    pid_t child = fork();
    if (!child) {
        CHECK(getpgrp() == getpgid(getppid()), "the group is inherited");
        CHECK(setsid() == getpid() && getsid(0) == getpid() && getpgrp() == getpid(), "setsid");
        CHECK(setsid() == -1 && errno == EPERM, "a leader cannot again");
        CHECK(setpgid(0, 0) == -1 && errno == EPERM, "nor leave");
        pid_t inner = fork();
        if (!inner) {
            setpgid(0, 0);
            for (;;) pause();
        }
        setpgid(inner, inner);
        CHECK(getpgid(inner) == inner, "setpgid of a child");
        CHECK(!kill(-inner, SIGTERM) && ended(inner) == SIGTERM, "a signal to a group");
        CHECK(kill(-inner, 0) == -1 && errno == ESRCH, "the group is gone");
        _exit(0);
    }
    CHECK(ended(child) == 0, "status");
    // A zombie's group stays usable for the next process.
    pid_t first = fork();
    if (!first) _exit(0);
    setpgid(first, first);
    siginfo_t info;
    waitid(P_PID, first, &info, WEXITED | WNOWAIT);
    pid_t second = fork();
    if (!second) {
        for (;;) pause();
    }
    CHECK(!setpgid(second, first), "joining a zombie's group");
    ended(first);
    CHECK(!kill(-first, SIGKILL) && ended(second) == SIGKILL, "the group lives on");
}

static void timers(void) {
    handle(SIGALRM, 0);
    struct itimerval every = {{0, 5000}, {0, 5000}}, none = {{0, 0}, {0, 0}}, left;
    // Before the timer is armed: how late this program runs after that is not the timer's.
    uint64_t before = now_ns();
    CHECK(!setitimer(ITIMER_REAL, &every, NULL), "setitimer");
    for (int i = 0; i < 4; i++) {
        caught = 0;
        while (!caught) pause();
    }
    CHECK(now_ns() - before >= 19 * MS, "four periods of 5 ms in %llu", (unsigned long long)(now_ns() - before));
    // A spinning program is interrupted too.
    caught = 0;
    while (!caught) {}
    CHECK(!setitimer(ITIMER_REAL, &none, &left) && left.it_interval.tv_usec == 5000, "the rest of the interval");
    alarm(100);
    CHECK(alarm(0) >= 99, "alarm returns the rest");
    struct timespec now, until;
    clock_gettime(CLOCK_MONOTONIC, &now);
    until = now;
    until.tv_nsec += 20 * MS;
    if (until.tv_nsec >= 1000000000) until.tv_nsec -= 1000000000, until.tv_sec++;
    CHECK(!clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL), "clock_nanosleep");
    clock_gettime(CLOCK_MONOTONIC, &now);
    CHECK(now.tv_sec > until.tv_sec || now.tv_nsec >= until.tv_nsec, "not too early");
    struct timespec bad = {0, 1000000000};
    CHECK(nanosleep(&bad, NULL) == -1 && errno == EINVAL, "nanoseconds");
}

// Arms the timer; where it goes off once, runs on until about then; leaves.
static void *arm_and_leave(void *arg) {
    struct itimerval *timer = arg;
    CHECK(!setitimer(ITIMER_REAL, timer, NULL), "setitimer");
    uint64_t start = now_ns(), spin = timer->it_interval.tv_usec ? 0 : timer->it_value.tv_usec * 1000ull;
    while (now_ns() - start < spin) {}
    return NULL;
}
static bool alarmed(void) {
    uint64_t start = now_ns();
    while (!caught && now_ns() - start < 5000 * MS) usleep(1000);
    return caught == SIGALRM;
}
static void leave_armed(struct itimerval *timer) {
    sigset_t all, before;
    sigfillset(&all);
    pthread_t thread;
    // A thread inherits the mask of its maker.
    pthread_sigmask(SIG_SETMASK, &all, &before);
    CHECK(!pthread_create(&thread, NULL, arm_and_leave, timer) && !pthread_join(thread, NULL), "a thread");
    pthread_sigmask(SIG_SETMASK, &before, NULL);
}

static void timers_outlive_threads(void) {
    handle(SIGALRM, 0);
    // The timer expires before, as, and after the thread leaves.
    for (int i = 0; i < 40; i++) {
        struct itimerval once = {{0, 0}, {0, 200 + 50 * (i % 8)}};
        caught = 0;
        leave_armed(&once);
        CHECK(alarmed(), "the timer of a thread that leaves as it runs out, %d", i);
    }
    struct itimerval late = {{0, 900000}, {0, 30000}}, every = {{0, 5000}, {0, 5000}}, none = {{0, 0}, {0, 0}}, left;
    caught = 0;
    leave_armed(&late);
    CHECK(!getitimer(ITIMER_REAL, &left) && left.it_value.tv_usec > 0 && left.it_interval.tv_usec == 900000,
        "it is still armed");
    CHECK(alarmed(), "a timer of a thread that has ended");
    leave_armed(&every);
    for (int i = 0; i < 3; i++) {
        caught = 0;
        CHECK(alarmed(), "its period goes on, %d", i);
    }
    CHECK(!setitimer(ITIMER_REAL, &none, &left) && left.it_interval.tv_usec == 5000, "any thread may stop it");
}

static void usage(void) {
    struct rusage before, after;
    getrusage(RUSAGE_SELF, &before);
    uint64_t start = now_ns();
    while (now_ns() - start < 30 * MS) {}
    char *memory = mmap(NULL, 100 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    // From the last to the first, because no kernel makes pages ahead in that direction.
    for (int i = 100; i-- > 0;) memory[i * PAGE] = 1;
    getrusage(RUSAGE_SELF, &after);
    munmap(memory, 100 * PAGE);
    uint64_t used = (after.ru_utime.tv_sec - before.ru_utime.tv_sec) * 1000000ull + after.ru_utime.tv_usec
        - before.ru_utime.tv_usec
        + (after.ru_stime.tv_sec - before.ru_stime.tv_sec) * 1000000ull + after.ru_stime.tv_usec
        - before.ru_stime.tv_usec;
    CHECK(used >= 3000, "30 ms of spinning count: %llu us", (unsigned long long)used);
    CHECK(after.ru_minflt - before.ru_minflt >= 100, "faults count: %ld", after.ru_minflt - before.ru_minflt);
    CHECK(after.ru_maxrss >= 200, "the peak: %ld KiB", after.ru_maxrss);
    struct tms tms;
    CHECK(times(&tms) != -1, "times");
}

static atomic_int word, ready;
static int futex(atomic_int *at, int operation, int value, void *timeout, void *other, int last) {
    return syscall(SYS_futex, at, operation, value, timeout, other, last);
}

static void *waiter(void *arg) {
    (void)arg;
    atomic_fetch_add(&ready, 1);
    while (atomic_load(&word) == 0) futex(&word, FUTEX_WAIT_PRIVATE, 0, NULL, NULL, 0);
    return (void *)5;
}

static void futexes(void) {
    struct timespec wait = {0, 10 * MS};
    word = 0;
    ready = 0;
    CHECK(futex(&word, FUTEX_WAIT, 1, NULL, NULL, 0) == -1 && errno == EAGAIN, "another value");
    uint64_t before = now_ns();
    CHECK(futex(&word, FUTEX_WAIT, 0, &wait, NULL, 0) == -1 && errno == ETIMEDOUT, "a timeout");
    CHECK(now_ns() - before >= 10 * MS, "not too early");
    CHECK(futex((atomic_int *)1, FUTEX_WAIT, 0, NULL, NULL, 0) == -1 && errno == EINVAL, "misaligned");
    CHECK(futex((atomic_int *)4, FUTEX_WAIT, 0, NULL, NULL, 0) == -1 && errno == EFAULT, "unmapped");
    pthread_t threads[4];
    for (int i = 0; i < 4; i++) CHECK(!pthread_create(&threads[i], NULL, waiter, NULL), "pthread_create");
    while (ready < 4) sched_yield();
    until_asleep(0);
    static atomic_int other;
    int moved = futex(&word, FUTEX_CMP_REQUEUE_PRIVATE, 1, (void *)2l, &other, 0);
    CHECK(moved == 3, "one is woken and two are moved: %d", moved);
    atomic_store(&word, 1);
    CHECK(futex(&other, FUTEX_WAKE_PRIVATE, 10, NULL, NULL, 0) == 2, "the moved ones");
    futex(&word, FUTEX_WAKE_PRIVATE, 10, NULL, NULL, 0);
    for (int i = 0; i < 4; i++) {
        void *result;
        CHECK(!pthread_join(threads[i], &result) && result == (void *)5, "pthread_join");
    }
    // Between processes.
    atomic_int *shared = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    pid_t child = fork();
    if (!child) {
        while (atomic_load(shared) == 0) futex(shared, FUTEX_WAIT, 0, NULL, NULL, 0);
        _exit(6);
    }
    until_asleep(child);
    atomic_store(shared, 1);
    futex(shared, FUTEX_WAKE, 1, NULL, NULL, 0);
    CHECK(WEXITSTATUS(ended(child)) == 6, "a shared futex");
    munmap(shared, PAGE);
}

static void *take_and_die(void *mutex) {
    pthread_mutex_lock(mutex);
    return NULL;
}

static void robust_mutexes(void) {
    pthread_mutexattr_t attributes;
    pthread_mutex_t mutex;
    pthread_mutexattr_init(&attributes);
    pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
    pthread_mutex_init(&mutex, &attributes);
    pthread_t thread;
    CHECK(!pthread_create(&thread, NULL, take_and_die, &mutex) && !pthread_join(thread, NULL), "a thread");
    CHECK(pthread_mutex_lock(&mutex) == EOWNERDEAD, "its owner is dead");
    CHECK(!pthread_mutex_consistent(&mutex) && !pthread_mutex_unlock(&mutex), "repaired");
}

static void *spin(void *arg) {
    (void)arg;
    for (;;) {}
    return NULL;
}
static void *sleeper(void *arg) {
    (void)arg;
    for (;;) pause();
    return NULL;
}
static void many_threads_body(void) {
    pthread_t thread;
    for (int i = 0; i < 3; i++) pthread_create(&thread, NULL, i ? sleeper : spin, NULL);
    short_sleep();
    exit(12);
}
static void *exec_from_thread(void *arg) {
    (void)arg;
    char pid[20];
    snprintf(pid, sizeof pid, "%d", getpid());
    execl(self, self, "--pid", pid, NULL);
    return NULL;
}
static void exec_body(void) {
    pthread_t thread;
    pthread_create(&thread, NULL, spin, NULL);
    pthread_create(&thread, NULL, sleeper, NULL);
    pthread_create(&thread, NULL, exec_from_thread, NULL);
    for (;;) pause();
}
static void die_body(void) {
    pthread_t thread;
    pthread_create(&thread, NULL, sleeper, NULL);
    short_sleep();
    abort();
}
static void *leave(void *arg) {
    short_sleep();
    exit((long)arg);
}
static void leader_leaves(void) {
    pthread_t thread;
    pthread_create(&thread, NULL, leave, (void *)8);
    pthread_exit(NULL);
}

static void threads(void) {
    CHECK(in_child(many_threads_body) == 12 << 8, "exit ends all threads");
    CHECK(in_child(exec_body) == 44 << 8, "exec by a thread ends the others and keeps the id");
    int status = in_child(die_body);
    CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT, "a signal ends all threads: %#x", status);
    CHECK(in_child(leader_leaves) == 8 << 8, "the first thread may end first");
}

static sigjmp_buf again;
static void on_overflow(int signal) {
    (void)signal;
    siglongjmp(again, 1);
}
static void alternate_stack(void) {
    static char memory[64 << 10];
    stack_t stack = {.ss_sp = memory, .ss_size = sizeof memory}, old;
    CHECK(!sigaltstack(&stack, NULL) && !sigaltstack(NULL, &old) && old.ss_sp == memory && old.ss_flags == 0,
        "sigaltstack");
    struct sigaction action = {.sa_handler = on_overflow, .sa_flags = SA_ONSTACK};
    sigaction(SIGSEGV, &action, NULL);
    if (!sigsetjmp(again, 1)) __asm__ volatile("mov $16, %%rsp; push %%rax" ::: "memory");
    stack.ss_flags = SS_DISABLE;
    CHECK(!sigaltstack(&stack, NULL), "off");
    signal(SIGSEGV, SIG_DFL);
}

static void on_float(int signal) {
    (void)signal;
    // Other values in all vector registers, and another rounding.
    __asm__ volatile("pcmpeqd %%xmm0, %%xmm0; movdqa %%xmm0, %%xmm15; fldpi" ::: "xmm0", "xmm15");
}

static uint32_t rounding_in_handler;
static uint16_t stack_in_handler;
static void on_rounding(int signal) {
    (void)signal;
    struct {
        uint16_t control, pad, status;
        uint8_t rest[22];
    } x87;
    __asm__ volatile("stmxcsr %0; fnstenv %1" : "=m"(rounding_in_handler), "=m"(x87));
    stack_in_handler = x87.status >> 11 & 7;
}
// A handler begins with the state of a new program, and the interrupted code continues with its own.
static void handlers_begin_afresh(void) {
    signal(SIGUSR1, on_rounding);
    uint32_t upwards = 0x5f80, after = 0;
    uint16_t status = 0;
    long me = getpid(), result;
    __asm__ volatile("ldmxcsr %3; fld1; fld1; fld1; syscall; fnstsw %1; stmxcsr %2; fstp %%st; fstp %%st; fstp %%st"
                     : "=a"(result), "=m"(status), "=m"(after)
                     : "m"(upwards), "a"((long)SYS_kill), "D"(me), "S"((long)SIGUSR1)
                     : "rcx", "r11", "memory");
    CHECK(!result && (after & 0x6000) == 0x4000 && (status >> 11 & 7) == 5, "after it: %#x %#x", after, status);
    CHECK((rounding_in_handler & 0xffc0) == 0x1f80 && !stack_in_handler, "in it: %#x %d", rounding_in_handler,
        stack_in_handler);
}

// Code of 32 bits, on a kernel that allows it, ends here as any other does. Its system call is a 32-bit one or does not
// exist; it is never a way into the kernel.
static void narrow_code_body(void) {
    char *code = mmap((void *)0x10000000, PAGE, PROT_READ | PROT_WRITE | PROT_EXEC,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    CHECK(code == (char *)0x10000000, "mmap");
    memcpy(code, "\x0f\x05\x0f\x0b", 4); // syscall, ud2
    struct __attribute__((packed)) {
        uint32_t offset;
        uint16_t selector;
    } target = {0x10000000, 0x23};
    __asm__ volatile("ljmp *%0" ::"m"(target), "a"(20) : "memory"); // getpid, of those calls
}
static void narrow_code(void) {
    int status = in_child(narrow_code_body);
    bool right = WIFSIGNALED(status) && (WTERMSIG(status) == SIGSEGV || WTERMSIG(status) == SIGILL);
    CHECK(right, "status %#x", status);
}

static void registers_survive(void) {
    signal(SIGUSR1, on_float);
    pid_t me = getpid();
    double in = 1.25, out = 0;
    long number = SYS_kill, result;
    __asm__ volatile("movsd %2, %%xmm15; mov $0x1234567890, %%r12; syscall; movsd %%xmm15, %1; cmp $0, %%rax; jne 1f;"
                     "mov $0x1234567890, %%rcx; cmp %%rcx, %%r12; mov $1, %%eax; jne 1f; xor %%eax, %%eax; 1:"
                     : "=a"(result), "=m"(out)
                     : "m"(in), "a"(number), "D"((long)me), "S"((long)SIGUSR1)
                     : "rcx", "r11", "r12", "xmm15", "memory");
    CHECK(result == 0 && out == 1.25, "registers after a handler: %ld %f", result, out);
}

static void limits(void) {
    struct rlimit limit;
    CHECK(!getrlimit(RLIMIT_NOFILE, &limit) && limit.rlim_cur > 3, "getrlimit");
    rlim_t before = limit.rlim_cur;
    limit.rlim_cur = 10;
    CHECK(!setrlimit(RLIMIT_NOFILE, &limit), "setrlimit");
    int last = -1, fd;
    while ((fd = dup(0)) >= 0) last = fd;
    CHECK(errno == EMFILE && last == 9, "ten descriptors: %d", last);
    for (fd = 3; fd < 10; fd++) close(fd);
    limit.rlim_cur = before;
    setrlimit(RLIMIT_NOFILE, &limit);
    CHECK(getrlimit(99, &limit) == -1 && errno == EINVAL, "no such limit");
    struct utsname names;
    CHECK(!uname(&names) && !strcmp(names.sysname, "Linux") && !strcmp(names.machine, "x86_64"), "uname");
}

static const struct check checks[] = {
    {"exit_statuses", exit_statuses},
    {"wait_kinds", wait_kinds},
    {"orphans", orphans},
    {"siblings_of_orphans", siblings_of_orphans},
    {"vfork_shares_memory", vfork_shares_memory},
    {"exec_keeps_and_drops", exec_keeps_and_drops},
    {"exec_settles_ids", exec_settles_ids},
    {"reported_before_waited", reported_before_waited},
    {"shutting_ends_waits", shutting_ends_waits},
    {"others_in_proc", others_in_proc},
    {"far_in_proc", far_in_proc},
    {"scripts", scripts},
    {"signals_arrive", signals_arrive},
    {"masks_in_handlers", masks_in_handlers},
    {"queued_values", queued_values},
    {"interrupted_calls", interrupted_calls},
    {"suspend", suspend},
    {"job_control", job_control},
    {"groups", groups},
    {"timers", timers},
    {"timers_outlive_threads", timers_outlive_threads},
    {"usage", usage},
    {"futexes", futexes},
    {"robust_mutexes", robust_mutexes},
    {"threads", threads},
    {"alternate_stack", alternate_stack},
    {"registers_survive", registers_survive},
    {"handlers_begin_afresh", handlers_begin_afresh},
    {"narrow_code", narrow_code},
    {"limits", limits},
};

int main(int argc, char **argv) {
    static char path[4096];
    ssize_t len = readlink("/proc/self/exe", path, sizeof path - 1);
    CHECK(len > 0, "/proc/self/exe");
    self = path;
    if (argc == 3 && !strcmp(argv[1], "--child")) return child_main(argv[2]);
    if (argc == 2 && !strcmp(argv[1], "--ids")) return ids_main();
    if (argc == 3 && !strcmp(argv[1], "--pid")) return getpid() == atoi(argv[2]) ? 44 : 1;
    if (argc > 1 && !strcmp(argv[1], "--arguments")) {
        printf("%d %s %s\n", argc, argc > 4 ? argv[argc - 2] : "", argc > 4 ? argv[argc - 1] : "");
        return 0;
    }
    parse_options(argc, argv, NULL);
    run_checks(checks, sizeof checks / sizeof *checks);
    return 0;
}
