// The behaviour of each system call when one of its allocations is refused: each in turn, in a kernel that checks
// itself. Starts as root.
//
//   --only NAME   only rows whose name starts so
//
// A row makes one call. It says how to set the call up, what undoes it, and which errors the call may end with. For n =
// 1, 2, ... until nothing is refused any more, `/proc/sys/vm/quire_refuse` refuses the n-th allocation of the call. The
// call must fail as the row says, leave nothing behind, and succeed when it is made again. A line a row: `name
// allocations=M refused=R`, and how many calls of them did `without` or were `killed`. The whole table runs twice. The
// kernel's objects and frames must be as many after the second time as before it. Descriptors, names and mappings are
// counted after each attempt.
#include "checks.h"
#include <dirent.h>
#include <grp.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/ipc.h>
#include <sys/msg.h>
#include <sys/resource.h>
#include <netinet/in.h>
#include <sys/select.h>
#include <sys/sem.h>
#include <sys/shm.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/mount.h>
#include <sys/uio.h>
#include <sys/un.h>

#ifndef SYS_epoll_pwait2
#define SYS_epoll_pwait2 441
#endif
#ifndef SYS_futex_waitv
#define SYS_futex_waitv 449
#endif
#ifndef SYS_fchmodat2
#define SYS_fchmodat2 452
#endif
#ifndef SYS_mseal
#define SYS_mseal 462
#endif

// Constants that musl's headers leave out.
enum { FUTEX_WAIT = 0, FUTEX_WAKE = 1, FUTEX_REQUEUE = 3, FUTEX_LOCK_PI = 6, FUTEX_PRIVATE_FLAG = 128 };
struct clone_args {
    uint64_t flags, pidfd, child_tid, parent_tid, exit_signal, stack, stack_size, tls, set_tid, set_tid_size, cgroup;
};

#define PLACE "/tmp/refusals"
#define FRESH 0x600000000000ul // where nothing else is mapped
#define AREA 0x610000000000ul
enum {
    REFUSE = 3, // descriptors that every process has
    SHARED = 4,
    SIZE = 5,
    PLACE_FD = 6,
    FILE_FD = 7, // a file of four pages
    DIR_FD = 8,
    MOST = 400, // refusals of a row
    KINDS = 64, // of memory
};

// ---- rows ----------------------------------------------------------------------------------------------------------

struct row {
    const char *name, *shape;
    void (*set_up)(void);
    long (*run)(void); // makes the call, and no other
    void (*undo)(void); // looks at `result`
    int or[4];          // errors that it may end with, beside ENOMEM
    int fails;          // it fails with this error even if nothing is refused
    const char *none;   // why it allocates nothing
    const char *maybe;  // why it may succeed although it was refused something
    int blind;          // nothing can read the number of its allocations: so many are refused
    bool each;          // each attempt has a process of its own
    bool arms;          // `run` arms
    bool kept;          // its objects are kept for the next time: the second time it may need no memory
    int dies;           // dies by this signal, because no error can be returned any more
};

// Rows are put beside one another by the linker.
#define ROW_OF(NAME, SHAPE, ID, SET_UP, RUN, UNDO, ...) \
    static void ID##_set_up(void) { SET_UP; } \
    static void ID##_undo(void) { UNDO; } \
    static const struct row ID##_row = { \
        .name = NAME, .shape = SHAPE, .set_up = ID##_set_up, .run = RUN, .undo = ID##_undo, __VA_ARGS__}; \
    static const struct row *const ID##_entry __attribute__((section("rows"), used, no_reorder)) = &ID##_row;
// A row whose call is made by a function.
#define ROW_BY(NAME, SHAPE, SET_UP, RUN, UNDO, ...) ROW_OF(#NAME, #SHAPE, row_##NAME##SHAPE, SET_UP, RUN, UNDO, \
    __VA_ARGS__)
// A row whose call is `syscall` with the arguments.
#define ARGUMENTS(...) __VA_ARGS__
#define ROW(NAME, SHAPE, SET_UP, CALL, UNDO, ...) \
    static long row_##NAME##SHAPE##_run(void) { return syscall(SYS_##NAME, ARGUMENTS CALL); } \
    ROW_OF(#NAME, #SHAPE, row_##NAME##SHAPE, SET_UP, row_##NAME##SHAPE##_run, UNDO, __VA_ARGS__)
extern const struct row *const __start_rows[], *const __stop_rows[];

#define NOTHING (void)0
// Its result is copied to a page that is not there yet.
#define FAULTS .or = {EFAULT}
#define READS .or = {EFAULT}, .maybe = "it returns the bytes that it had read"
#define NONE(why) .none = why
#define MAYBE(why) .maybe = why
// A file's memory is space of its file system, so a refusal may be ENOSPC.
#define WRITES .or = {ENOSPC}, .maybe = "it returns the bytes that it had written"
#define EACH .each = true

// The outcome of an attempt.
struct outcome {
    long result; // a value, or -errno
    unsigned made, refused;
    bool over; // the attempt has come to its end
};

// The state that processes share.
static struct shared {
    struct outcome outcome; // of an attempt in a process of its own
    unsigned users;         // that there were
    int failures;
    struct census {
        int kinds;
        struct counted {
            char name[24];
            long count;
        } of[KINDS];
    } before, after;
    long more[KINDS]; // after the table than before it, the first time
} *shared;
static long result;       // of the attempt that ran last
static unsigned armed;    // which allocation is refused
static char *fresh;       // four pages that nothing has touched
static char *area;        // sixteen pages
static int one;           // a descriptor of an attempt
static int ends[2];
static pid_t child, me;
static char data[4 * PAGE];
static char path[3000]; // `f` with many steps
static char self[256];
static uint32_t lock_word; // of a lock that process 1 owns
static struct timespec long_ago = {1, 0};

static void arm(unsigned n) {
    char text[16];
    int len = snprintf(text, sizeof text, "%u", n);
    if (pwrite(REFUSE, text, len, 0) != len) fail("arm");
}

static void read_counts(struct outcome *out) {
    char text[64] = "";
    if (pread(REFUSE, text, sizeof text - 1, 0) <= 0 || sscanf(text, "%u %u", &out->made, &out->refused) != 2)
        fail("quire_refuse says %s", text);
}

// ---- helpers of rows: not called between arming and the call -------------------------------------------------------

static int must(long value, const char *what) {
    if (value < 0) fail("%s", what);
    return value;
}
#define MUST(call) must(call, #call)

static void at(int descriptor, int fd) {
    MUST(fd);
    if (fd != descriptor) MUST(dup2(fd, descriptor)), close(fd);
}
static void close_both(void) { close(ends[0]), close(ends[1]); }
static void close_result(void) {
    if (result >= 0) close(result);
}
static void close_pair_of(const int *pair) {
    if (result >= 0) close(pair[0]), close(pair[1]);
}
static void make(const char *name) { close(MUST(open(name, O_CREAT | O_RDWR, 0644))); }
static void a_pipe(void) { MUST(pipe2(ends, O_NONBLOCK)); }
static void a_packet_pipe(void) { MUST(pipe2(ends, O_NONBLOCK | O_DIRECT)); }
static void full_pipe(void) { a_pipe(), MUST(write(ends[1], data, 5000)); }

// Sockets: `one` listens, `ends` are connected or about to be.
static struct sockaddr_in port;
static struct sockaddr_un socket_path = {.sun_family = AF_UNIX, .sun_path = "socket"};
static socklen_t port_len = sizeof port;
static void a_socket(int family, int type) {
    port = (struct sockaddr_in){.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    one = MUST(socket(family, type | SOCK_NONBLOCK, 0));
}
static void a_bound_socket(int type) {
    a_socket(AF_INET, type);
    MUST(bind(one, (void *)&port, sizeof port));
    MUST(getsockname(one, (void *)&port, &port_len));
}
static void a_listener(void) {
    a_bound_socket(SOCK_STREAM), MUST(listen(one, 8)), ends[0] = MUST(socket(AF_INET, SOCK_STREAM, 0));
}
static void a_waiting_connection(void) { a_listener(), MUST(connect(ends[0], (void *)&port, sizeof port)); }
static void a_socket_pair(int type) { MUST(socketpair(AF_UNIX, type | SOCK_NONBLOCK, 0, ends)); }
static char control[CMSG_SPACE(sizeof(int))] __attribute__((aligned(8)));
static struct iovec in_data = {data, 5000};
static struct msghdr message = {.msg_iov = &in_data, .msg_iovlen = 1, .msg_control = control,
    .msg_controllen = sizeof control};
static struct mmsghdr messages;
static void a_message(void) {
    struct cmsghdr *c = (struct cmsghdr *)control;
    *c = (struct cmsghdr){.cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS, .cmsg_len = CMSG_LEN(sizeof(int))};
    *(int *)CMSG_DATA(c) = FILE_FD;
    message.msg_controllen = sizeof control;
    a_socket_pair(SOCK_DGRAM);
}
static void a_sent_message(void) { a_message(), MUST(sendmsg(ends[0], &message, 0)); }
static void a_few_messages(void) { a_message(), messages.msg_hdr = message; }
static void a_few_sent_messages(void) { a_few_messages(), MUST(sendmsg(ends[0], &message, 0)); }
static void close_received(void) {
    if (result >= 0) close(*(int *)CMSG_DATA((struct cmsghdr *)control));
    close_both();
}

static void empty_file(void) { one = MUST(open("new", O_CREAT | O_TRUNC | O_RDWR, 0644)); }
static void no_file(void) { close(one), unlink("new"); }
static void map_area(int protection, int flags, int fd) {
    area = mmap((void *)AREA, 16 * PAGE, protection, MAP_FIXED | flags, fd, 0);
    if (area == MAP_FAILED) fail("mmap");
}
static void private_area(void) { map_area(PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1); }
static void touched_area(void) { private_area(), memset(area, 1, 16 * PAGE); }
static void no_area(void) { MUST(munmap((void *)AREA, 16 * PAGE)); }
static void touched_in_file(void) {
    empty_file(), MUST(ftruncate(one, 16 * PAGE));
    map_area(PROT_READ | PROT_WRITE, MAP_SHARED, one), memset(area, 1, 16 * PAGE);
}
static void block(int signal) {
    sigset_t set;
    sigemptyset(&set), sigaddset(&set, signal), sigprocmask(SIG_BLOCK, &set, NULL);
}
static void take_signal(void) {
    const struct timespec none = {0, 0};
    sigset_t set;
    sigfillset(&set);
    while (sigtimedwait(&set, NULL, &none) > 0);
    sigemptyset(&set), sigprocmask(SIG_SETMASK, &set, NULL);
}
static void queue(int signal) { block(signal), MUST(kill(me, signal)); }
static void many_descriptors(void) { while (MUST(dup(FILE_FD)) < 63); }
static void a_child(void) {
    child = MUST(fork());
    if (!child) _exit(0);
}
static void end_child(void) {
    // The child is gone if the call has reaped it.
    waitpid(child, NULL, 0);
}
static void end_born(void) {
    if (result > 0) MUST(waitpid(result, NULL, 0));
}
// Another process that has the same descriptors and the same directory.
static void sharer(void) {
    child = MUST(syscall(SYS_clone, CLONE_FILES | CLONE_FS | SIGCHLD, 0, 0, 0, 0));
    if (!child) while (true) pause();
}
static void end_sharer(void) { kill(child, SIGKILL), waitpid(child, NULL, 0); }
static void an_epoll(void) { a_pipe(), one = MUST(epoll_create1(0)); }
static struct epoll_event event = {.events = EPOLLOUT};
static void ready_epoll(void) { an_epoll(), MUST(epoll_ctl(one, EPOLL_CTL_ADD, ends[1], &event)); }
static void no_epoll(void) { close(one), close_both(); }
static void a_few(void) { // mappings
    touched_area();
    for (int i = 1; i < 16; i += 2) MUST(mprotect(area + i * PAGE, PAGE, PROT_READ));
}
static gid_t groups[200];
static struct pollfd polled[64];
static void poll_many(void) {
    a_pipe();
    for (int i = 0; i < 64; i++) polled[i] = (struct pollfd){.fd = ends[1], .events = POLLOUT};
}
static fd_set selected;
static void select_many(void) {
    a_pipe(), MUST(dup2(ends[1], 900));
    FD_ZERO(&selected);
    FD_SET(900, &selected);
}
static void select_none(void) { close(900), close_both(); }
static struct timeval no_time, day_now;
static struct timespec now_is;
static struct timespec no_ns, soon = {0, 1000};
static struct iovec vector[40];
static void scattered(char *to) {
    for (int i = 0; i < 40; i++) vector[i] = (struct iovec){to + i * 256, 256};
}
static uint64_t every = ~0ull, none_of; // masks of signals
static struct { void *handler; unsigned long flags; void *restorer; uint64_t mask; } action = {.handler = SIG_IGN};
static siginfo_t queued;
static void queued_info(int signal) {
    block(signal);
    memset(&queued, 0, sizeof queued);
    queued.si_signo = signal, queued.si_code = SI_QUEUE, queued.si_pid = me;
}
static struct rlimit core_limit;
static struct itimerval interval = {.it_value = {1000, 0}};
static struct flock lock = {.l_type = F_WRLCK, .l_start = 100, .l_len = 10};
static struct flock middle = {.l_type = F_UNLCK, .l_start = 1000, .l_len = 10};
// Four locks, for which there is room: a fifth is made when one is split.
static void some_locks(void) {
    empty_file();
    struct flock all = {.l_type = F_WRLCK};
    MUST(fcntl(one, F_SETLK, &all));
    for (int i = 0; i < 3; i++) {
        struct flock part = {.l_type = F_UNLCK, .l_start = i * 100 + 10, .l_len = 10};
        MUST(fcntl(one, F_SETLK, &part));
    }
}
static uint32_t word;
static unsigned long cpus = 1;
static struct { uint32_t version; int pid; } capabilities = {0x20080522, 0};
static char name[] = "refusals";
static unsigned user;
static long brk_at;

// The record of a user stays for the next process of its. So the first time each attempt has a user of its own.
static bool quiet; // the second time
static void a_user(void) { user = quiet ? 1234 : 2000 + ++shared->users; }

// ---- calls that a plain row cannot make ----------------------------------------------------------------------------

// Makes a process or a thread that ends at once, by call `number`. It uses no stack.
static uint32_t alive;
static char thread_stack[256] __attribute__((aligned(16)));
static long born(long number, unsigned long a, unsigned long b, unsigned long c, unsigned long d) {
    long got = number;
    register unsigned long r10 __asm__("r10") = d;
    __asm__ volatile("syscall\n test %%rax, %%rax\n jnz 1f\n mov $60, %%eax\n xor %%edi, %%edi\n syscall\n 1:"
                     : "+a"(got), "+r"(r10) : "D"(a), "S"(b), "d"(c) : "rcx", "r11", "memory");
    if (got >= 0) return got;
    errno = -got;
    return -1;
}
#define THREAD (CLONE_VM | CLONE_FS | CLONE_FILES | CLONE_SIGHAND | CLONE_THREAD | CLONE_SYSVSEM | \
    CLONE_CHILD_SETTID | CLONE_CHILD_CLEARTID)
static void thread_to_be(void) { alive = 0; }
static void end_thread(void) {
    if (result > 0) while (__atomic_load_n(&alive, __ATOMIC_ACQUIRE)) sched_yield();
}
static long run_thread(void) {
    alive = 1;
    return born(SYS_clone, THREAD, (unsigned long)(thread_stack + sizeof thread_stack), 0, (unsigned long)&alive);
}
static long run_process(void) { return born(SYS_clone, SIGCHLD, 0, 0, 0); }
static long run_sharing(void) {
    return born(SYS_clone, CLONE_VM | CLONE_FS | CLONE_FILES | CLONE_SIGHAND | SIGCHLD, 0, 0, 0);
}
static long run_fork(void) { return born(SYS_fork, 0, 0, 0, 0); }
static long run_vfork(void) { return born(SYS_vfork, 0, 0, 0, 0); }
static struct clone_args clone_args;
static void clone3_process(void) {
    memset(&clone_args, 0, sizeof clone_args);
    clone_args.exit_signal = SIGCHLD;
    a_few();
}
static void clone3_thread(void) {
    memset(&clone_args, 0, sizeof clone_args);
    clone_args = (struct clone_args){.flags = THREAD, .child_tid = (unsigned long)&alive,
        .stack = (unsigned long)thread_stack,
                                     .stack_size = sizeof thread_stack};
    alive = 1;
}
static long run_clone3(void) { return born(SYS_clone3, (unsigned long)&clone_args, sizeof clone_args, 0, 0); }

static long run_brk(void) {
    long at = syscall(SYS_brk, brk_at + 3 * PAGE);
    errno = ENOMEM;
    return at == brk_at + 3 * (long)PAGE ? 0 : -1;
}

static char *const after_exec[] = {"refusals", "--told", NULL};
static char *const environment[] = {"A=1", "B=2", NULL};

// The handler's return is the call.
static void arms(int signal) {
    (void)signal;
    arm(armed);
}
static long run_sigreturn(void) { return raise(SIGUSR1); }
static void returns(void) { signal(SIGUSR1, arms); }

static void ticks(int signal) { (void)signal; }
static void tick(void) {
    struct itimerval often = {{0, 20000}, {0, 20000}};
    signal(SIGALRM, ticks), MUST(setitimer(ITIMER_REAL, &often, NULL));
    // The first signal makes the queue for later ones.
    syscall(SYS_pause);
}
static void no_tick(void) {
    struct itimerval never = {0};
    setitimer(ITIMER_REAL, &never, NULL);
}

static void no_cpu_tick(void) {
    struct itimerval never = {0};
    setitimer(ITIMER_PROF, &never, NULL);
}

// A timer, and a timer's file.
static int the_timer;
static struct itimerspec late = {.it_value = {1000, 0}};
static void a_timer(void) { MUST(syscall(SYS_timer_create, CLOCK_MONOTONIC, NULL, &the_timer)); }
// An object of System V IPC.
static int object;
static struct sigevent no_notice = {.sigev_notify = SIGEV_NONE};
static struct sembuf more = {0, 1, 0}, undone = {0, 1, SEM_UNDO}, waits = {0, -1, 0};
static void a_segment(void) { object = MUST(shmget(IPC_PRIVATE, 4 * PAGE, 0600)); }
static void no_segment(void) { shmctl(object, IPC_RMID, NULL); }
static void an_array(void) { object = MUST(semget(IPC_PRIVATE, 3, 0600)); }
static void no_array(void) { semctl(object, 0, IPC_RMID); }
static void a_queue(void) { object = MUST(msgget(IPC_PRIVATE, 0600)); }
static void no_queue(void) { msgctl(object, IPC_RMID, NULL); }
static struct { long type; char text[5000]; } sent = {1, ""};
static void a_sent(void) { a_queue(), MUST(msgsnd(object, &sent, 5000, 0)); }
static void no_new_segment(void) {
    if (result >= 0) shmctl(result, IPC_RMID, NULL);
}
static void no_new_array(void) {
    if (result >= 0) semctl(result, 0, IPC_RMID);
}
static void no_new_queue(void) {
    if (result >= 0) msgctl(result, IPC_RMID, NULL);
}
static void a_posix_queue(void) {
    one = MUST(syscall(SYS_mq_open, "refusals", O_CREAT | O_RDWR | O_NONBLOCK, 0600, NULL));
}
static void a_posix_message(void) { a_posix_queue(), MUST(syscall(SYS_mq_timedsend, one, data, 5000, 0, NULL)); }
static void no_posix_queue(void) { close(one), syscall(SYS_mq_unlink, "refusals"); }
static void no_attach(void) {
    if (result > 0) shmdt((void *)result);
    no_segment();
}
static void no_timer(void) { syscall(SYS_timer_delete, the_timer); }
static void no_new_timer(void) {
    if (result == 0) syscall(SYS_timer_delete, *(int *)fresh);
}
static void a_timer_file(void) { one = MUST(syscall(SYS_timerfd_create, CLOCK_MONOTONIC, 0)); }
static void own_process_file(void) { one = MUST(syscall(434 /* pidfd_open */, me, 0)); }
static void a_notifier(void) { one = MUST(syscall(SYS_inotify_init1, 0)); }
static void an_attribute(void) { MUST(syscall(SYS_fsetxattr, FILE_FD, "user.a", data, 100, 0)); }
static void no_attribute(void) { syscall(SYS_fremovexattr, FILE_FD, "user.a"); }
static int others[2];
static void two_pipes(void) {
    full_pipe();
    MUST(pipe(others));
}
static void no_pipes(void) {
    close_both();
    close(others[0]), close(others[1]);
}
static uint64_t no_signals;
enum { RSEQ_UNREGISTER = 1, RSEQ_MARK = 0x53053053 };

// ---- the table, in the order of the calls' numbers -----------------------------------------------------------------

#define ONLY_USES "it reads and writes only memory of the thread or process, and its result is a number"
#define IN_PLACE "it changes existing memory"
#define ENDS "it ends something"
#define STACKS "idle kernel stacks are freed for its memory"
#define FANS_OUT "a list of mappings that several processors use is divided only where there is memory"
#define ON_STACK "the waiter is on the thread's stack"

ROW(read, , MUST(lseek(FILE_FD, 0, SEEK_SET)), (FILE_FD, fresh, 2 * PAGE), NOTHING, READS)
ROW(read, _pipe, full_pipe(), (ends[0], fresh, 5000), close_both(), READS)
ROW(read, _proc, one = MUST(open("/proc/self/maps", O_RDONLY)), (one, fresh, 4 * PAGE), close(one), FAULTS)
ROW(write, , empty_file(), (one, data, 3 * PAGE), no_file(), WRITES)
ROW(write, _pipe, a_pipe(), (ends[1], data, 3 * PAGE), close_both(), WRITES)
ROW(write, _packet, a_packet_pipe(), (ends[1], data, 3 * PAGE), close_both(), WRITES)
ROW(open, , NOTHING, ("new", O_CREAT | O_EXCL | O_RDWR, 0644), (close_result(), unlink("new")))
ROW(open, _proc, NOTHING, ("/proc/self/maps", O_RDONLY), close_result())
ROW(open, _ptmx, NOTHING, ("/dev/ptmx", O_RDWR | O_NOCTTY), close_result())
ROW(open, _far, NOTHING, (path, O_RDONLY), close_result())
ROW(open, _many, many_descriptors(), ("f", O_RDONLY), close_result(), EACH)
ROW(close, , (empty_file(), MUST(write(one, data, 4 * PAGE)), unlink("new")), (one), NOTHING, NONE(ENDS))
ROW(stat, , NOTHING, (path, fresh), NOTHING, FAULTS)
ROW(fstat, , NOTHING, (FILE_FD, fresh), NOTHING, FAULTS)
ROW(lstat, , NOTHING, ("s", fresh), NOTHING, FAULTS)
ROW(poll, , poll_many(), (polled, 64, 0), close_both())
ROW(lseek, , NOTHING, (FILE_FD, 100, SEEK_SET), NOTHING, NONE(IN_PLACE))
ROW(lseek, _directory, NOTHING, (DIR_FD, 0, SEEK_SET), NOTHING, NONE(IN_PLACE))
ROW(mmap, , NOTHING, (AREA, 16 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0),
    no_area())
ROW(mmap, _shared, NOTHING, (0, 4 * PAGE, PROT_READ, MAP_SHARED, FILE_FD, 0),
    if (result >= 0) munmap((void *)result, 4 * PAGE))
ROW(mmap, _within, touched_area(), (AREA + 4 * PAGE, 4 * PAGE, PROT_READ, MAP_PRIVATE | MAP_FIXED, FILE_FD, 0),
    no_area())
ROW(mmap, _populated, NOTHING, (AREA, 8 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED |
    MAP_POPULATE, -1, 0),
    no_area(), MAYBE("the mapping is there, and later faults fill the missing pages"))
ROW(mprotect, , touched_area(), (AREA + 4 * PAGE, 4 * PAGE, PROT_READ), no_area())
ROW(munmap, , touched_area(), (AREA + 4 * PAGE, 4 * PAGE), no_area())
ROW(munmap, _file, touched_in_file(), (AREA, 16 * PAGE), (no_area(), no_file()))
ROW_BY(brk, , brk_at = syscall(SYS_brk, 0), run_brk, syscall(SYS_brk, brk_at))
ROW(rt_sigaction, , NOTHING, (SIGUSR2, &action, fresh, 8), NOTHING, FAULTS, EACH)
ROW(rt_sigprocmask, , NOTHING, (SIG_BLOCK, &none_of, fresh, 8), NOTHING, FAULTS)
ROW_BY(rt_sigreturn, , returns(), run_sigreturn, signal(SIGUSR1, SIG_DFL), EACH, .arms = true,
    MAYBE("it waits for memory"))
ROW(ioctl, , full_pipe(), (ends[0], 0x541b, fresh), close_both(), FAULTS)
ROW(pread64, , NOTHING, (FILE_FD, fresh, 2 * PAGE, 100), NOTHING, READS)
ROW(pwrite64, , empty_file(), (one, data, 3 * PAGE, 100), no_file(), WRITES)
ROW(readv, , (scattered(fresh), MUST(lseek(FILE_FD, 0, SEEK_SET))), (FILE_FD, vector, 40), NOTHING, READS)
ROW(writev, , (scattered(data), empty_file()), (one, vector, 40), no_file(), WRITES)
ROW(access, , NOTHING, (path, R_OK), NOTHING)
ROW(pipe, , NOTHING, (fresh), close_pair_of((int *)fresh), FAULTS)
ROW(select, , select_many(), (901, NULL, &selected, NULL, &no_time), select_none())
ROW(sched_yield, , NOTHING, (0), NOTHING, NONE(ONLY_USES))
ROW(mremap, , (touched_area(), MUST(munmap(area + 8 * PAGE, 4 * PAGE))), (AREA, 8 * PAGE, 14 * PAGE, MREMAP_MAYMOVE, 0),
    (no_area(), result >= 0 ? munmap((void *)result, 14 * PAGE) : 0))
ROW(mremap, _grows, (touched_area(), MUST(munmap(area + 8 * PAGE, 8 * PAGE))), (AREA, 8 * PAGE, 12 * PAGE, 0, 0),
    no_area())
ROW(mremap, _shrinks, touched_area(), (AREA, 16 * PAGE, 3 * PAGE, 0, 0), no_area())
ROW(msync, , touched_in_file(), (AREA, 16 * PAGE, MS_SYNC), (no_area(), no_file()), NONE("a file is where it stays"))
ROW(mincore, , touched_area(), (AREA, 16 * PAGE, fresh), no_area(), .or = {EFAULT, EAGAIN})
ROW(madvise, , touched_area(), (AREA + 4 * PAGE, 4 * PAGE, MADV_DONTNEED), no_area(), .or = {EAGAIN}, NONE(ENDS))
ROW(madvise, _splits, touched_area(), (AREA + 4 * PAGE, 4 * PAGE, MADV_DONTFORK), no_area(), .or = {EAGAIN})
ROW(shmget, , NOTHING, (IPC_PRIVATE, 4 * PAGE, 0600), no_new_segment())
ROW(shmat, , a_segment(), (object, 0, 0), no_attach())
ROW(shmctl, , a_segment(), (object, IPC_STAT, fresh), no_segment(), FAULTS)
ROW(shmctl, _sums, a_segment(), (object, 14 /* SHM_INFO */, fresh), no_segment(), FAULTS)
ROW(remap_file_pages, , touched_in_file(), (AREA + 4 * PAGE, 4 * PAGE, 0, 1, MAP_NONBLOCK), (no_area(), no_file()))
ROW(dup, , many_descriptors(), (FILE_FD), close_result(), EACH)
ROW(dup2, , NOTHING, (FILE_FD, 700), close_result(), EACH)
ROW(pause, , tick(), (0), no_tick(), .fails = EINTR, NONE(ON_STACK))
ROW(nanosleep, , NOTHING, (&soon, NULL), NOTHING, NONE(ON_STACK))
ROW(getitimer, , NOTHING, (ITIMER_REAL, fresh), NOTHING, FAULTS)
ROW(alarm, , NOTHING, (1000), alarm(0), EACH)
ROW(setitimer, , NOTHING, (ITIMER_REAL, &interval, fresh), no_tick(), FAULTS, EACH)
ROW(setitimer, _prof, NOTHING, (ITIMER_PROF, &interval, fresh), no_cpu_tick(), FAULTS, EACH)
ROW(getpid, , NOTHING, (0), NOTHING, NONE(ONLY_USES))
ROW(sendfile, , (empty_file(), MUST(lseek(FILE_FD, 0, SEEK_SET))), (one, FILE_FD, NULL, 3 * PAGE), no_file(), WRITES)
ROW(socket, , NOTHING, (AF_UNIX, SOCK_STREAM, 0), close_result())
ROW(socket, _inet, NOTHING, (AF_INET, SOCK_DGRAM, 0), close_result())
ROW(connect, , a_listener(), (ends[0], &port, sizeof port), (close(one), close(ends[0])))
ROW(accept, , a_waiting_connection(), (one, NULL, NULL), (close_result(), close(one), close(ends[0])))
ROW(sendto, , a_socket_pair(SOCK_STREAM), (ends[0], data, 3 * PAGE, 0, NULL, 0), close_both(),
    MAYBE("it returns the bytes that it had sent"))
ROW(sendto, _port, a_bound_socket(SOCK_DGRAM), (one, data, 3 * PAGE, 0, &port, sizeof port), close(one))
ROW(recvfrom, , (a_socket_pair(SOCK_DGRAM), MUST(write(ends[0], data, 5000))), (ends[1], fresh, 5000, 0, NULL, NULL),
    close_both(), READS)
ROW(sendmsg, , a_message(), (ends[0], &message, 0), close_both())
ROW(recvmsg, , a_sent_message(), (ends[1], &message, 0), close_received(), MAYBE("the files are lost, as on Linux"))
ROW(shutdown, , a_socket_pair(SOCK_STREAM), (ends[0], 1), close_both(), NONE(IN_PLACE))
ROW(bind, , a_socket(AF_INET, SOCK_STREAM), (one, &port, sizeof port), close(one))
ROW(bind, _path, a_socket(AF_UNIX, SOCK_STREAM), (one, &socket_path, sizeof socket_path),
    (close(one), unlink("socket")))
ROW(listen, , a_bound_socket(SOCK_STREAM), (one, 8), close(one), NONE(IN_PLACE))
ROW(getsockname, , a_bound_socket(SOCK_STREAM), (one, fresh, &port_len), close(one), FAULTS)
ROW(getpeername, , a_waiting_connection(), (ends[0], fresh, &port_len), (close(one), close(ends[0])), FAULTS)
ROW(socketpair, , NOTHING, (1, 1, 0, fresh), close_pair_of((int *)fresh), FAULTS)
ROW(setsockopt, , a_socket(AF_INET, SOCK_STREAM), (one, SOL_SOCKET, SO_KEEPALIVE, &(int){1}, 4), close(one),
    NONE(IN_PLACE))
ROW(getsockopt, , a_socket(AF_INET, SOCK_STREAM), (one, SOL_SOCKET, SO_TYPE, fresh, &(int){4}), close(one), FAULTS)
ROW_BY(clone, , thread_to_be(), run_thread, end_thread(), .or = {EAGAIN}, MAYBE(STACKS))
ROW_BY(clone, _process, a_few(), run_process, (end_born(), no_area()), .or = {EAGAIN}, MAYBE(STACKS))
ROW_BY(clone, _sharing, NOTHING, run_sharing, end_born(), .or = {EAGAIN}, MAYBE(STACKS))
ROW_BY(fork, , a_few(), run_fork, (end_born(), no_area()), .or = {EAGAIN}, MAYBE(STACKS))
ROW_BY(vfork, , NOTHING, run_vfork, end_born(), .or = {EAGAIN}, MAYBE(STACKS))
ROW(execve, , NOTHING, (self, after_exec, environment), NOTHING, EACH, .dies = SIGKILL, MAYBE(FANS_OUT))
ROW(execve, _script, NOTHING, ("script", after_exec, environment), NOTHING, EACH, .dies = SIGKILL, MAYBE(FANS_OUT))
ROW(exit, , NOTHING, (7), NOTHING, EACH, .blind = 8)
ROW(wait4, , a_child(), (child, fresh, 0, fresh + PAGE), end_child(), FAULTS)
ROW(kill, , block(SIGRTMIN), (me, SIGRTMIN), take_signal(), EACH, MAYBE("the signal comes without its sender"))
ROW(uname, , NOTHING, (fresh), NOTHING, FAULTS)
ROW(semget, , NOTHING, (IPC_PRIVATE, 300, 0600), no_new_array())
ROW(semop, , an_array(), (object, &more, 1), no_array())
ROW(semop, _undo, an_array(), (object, &undone, 1), no_array(), EACH)
ROW(semctl, , an_array(), (object, 0, GETALL, fresh), no_array(), FAULTS)
ROW(shmdt, , (a_segment(), MUST(shmat(object, (void *)AREA, 0) == (void *)AREA ? 0 : -1)), (AREA),
    (munmap((void *)AREA, 4 * PAGE), no_segment()))
ROW(msgget, , NOTHING, (IPC_PRIVATE, 0600), no_new_queue())
ROW(msgsnd, , a_queue(), (object, &sent, 5000, 0), no_queue())
ROW(msgrcv, , a_sent(), (object, fresh, 5000, 0, 0), no_queue(), FAULTS)
ROW(msgctl, , a_queue(), (object, IPC_STAT, fresh), no_queue(), FAULTS)
ROW(fcntl, , NOTHING, (FILE_FD, F_DUPFD, 800), close_result(), EACH)
ROW(fcntl, _lock, empty_file(), (one, F_SETLK, &lock), no_file(), .or = {ENOLCK})
ROW(fcntl, _unlock, some_locks(), (one, F_SETLK, &middle), no_file(), .or = {ENOLCK})
ROW(fcntl, _larger_pipe, full_pipe(), (ends[1], F_SETPIPE_SZ, 64 * PAGE), close_both())
ROW(fcntl, _smaller_pipe, full_pipe(), (ends[1], F_SETPIPE_SZ, 2 * PAGE), close_both())
ROW(flock, , empty_file(), (one, 2), no_file(), .or = {ENOLCK})
ROW(fsync, , NOTHING, (FILE_FD), NOTHING, NONE("a file is where it stays"))
ROW(fdatasync, , NOTHING, (FILE_FD), NOTHING, NONE("a file is where it stays"))
ROW(truncate, , (empty_file(), MUST(ftruncate(one, 8 * PAGE)), MUST(pwrite(one, data, 2 * PAGE, 0))), ("new", 100),
    no_file())
ROW(ftruncate, , (empty_file(), MUST(write(one, data, 4 * PAGE))), (one, 5000), no_file(), NONE(ENDS))
ROW(ftruncate, _grows, empty_file(), (one, 1 << 30), no_file(), NONE(IN_PLACE))
ROW(getcwd, , NOTHING, (fresh, PAGE), NOTHING, FAULTS)
ROW(chdir, , NOTHING, ("d"), MUST(fchdir(PLACE_FD)))
ROW(fchdir, , (MUST(fchdir(DIR_FD)), MUST(fchdir(PLACE_FD))), (DIR_FD), NOTHING, EACH)
ROW(rename, , make("new"), ("new", "d/renamed"), (unlink("new"), unlink("d/renamed")))
ROW(rename, _over, (make("new"), make("other")), ("new", "other"), (unlink("new"), unlink("other")))
ROW(mkdir, , NOTHING, ("new", 0755), rmdir("new"))
ROW(rmdir, , MUST(mkdir("new", 0755)), ("new"), rmdir("new"))
ROW(creat, , NOTHING, ("new", 0644), (close_result(), unlink("new")))
ROW(link, , NOTHING, ("f", "new"), unlink("new"))
ROW(unlink, , make("new"), ("new"), unlink("new"))
ROW(symlink, , NOTHING, (path, "new"), unlink("new"))
ROW(readlink, , NOTHING, ("s", fresh, PAGE), NOTHING, FAULTS)
ROW(chmod, , NOTHING, (path, 0644), NOTHING)
ROW(fchmod, , NOTHING, (FILE_FD, 0644), NOTHING, NONE(IN_PLACE))
ROW(chown, , NOTHING, (path, 0, 0), NOTHING)
ROW(fchown, , NOTHING, (FILE_FD, 0, 0), NOTHING, NONE(IN_PLACE))
ROW(lchown, , NOTHING, (path, 0, 0), NOTHING)
ROW(umask, , NOTHING, (022), NOTHING, NONE(ONLY_USES))
ROW(gettimeofday, , NOTHING, (fresh, NULL), NOTHING, FAULTS)
ROW(getrlimit, , NOTHING, (RLIMIT_NOFILE, fresh), NOTHING, FAULTS)
ROW(getrusage, , NOTHING, (RUSAGE_SELF, fresh), NOTHING, FAULTS)
ROW(sysinfo, , NOTHING, (fresh), NOTHING, FAULTS)
ROW(times, , NOTHING, (fresh), NOTHING, FAULTS)
ROW(getuid, , NOTHING, (0), NOTHING, NONE(ONLY_USES))
ROW(getgid, , NOTHING, (0), NOTHING, NONE(ONLY_USES))
ROW(setuid, , a_user(), (user), NOTHING, EACH, .or = {EAGAIN}, .kept = true)
ROW(setgid, , NOTHING, (1234), NOTHING, EACH, NONE(IN_PLACE))
ROW(geteuid, , NOTHING, (0), NOTHING, NONE(ONLY_USES))
ROW(getegid, , NOTHING, (0), NOTHING, NONE(ONLY_USES))
ROW(setpgid, , NOTHING, (0, 0), NOTHING, EACH)
ROW(getppid, , NOTHING, (0), NOTHING, NONE(ONLY_USES))
ROW(getpgrp, , NOTHING, (0), NOTHING, NONE(ONLY_USES))
ROW(setsid, , NOTHING, (0), NOTHING, EACH)
ROW(setreuid, , a_user(), (user, user), NOTHING, EACH, .or = {EAGAIN}, .kept = true)
ROW(setregid, , NOTHING, (1234, 1234), NOTHING, EACH, NONE(IN_PLACE))
ROW(getgroups, , MUST(setgroups(200, groups)), (200, fresh), NOTHING, EACH, FAULTS)
ROW(setgroups, , NOTHING, (200, groups), NOTHING, EACH)
ROW(setresuid, , a_user(), (user, user, user), NOTHING, EACH, .or = {EAGAIN}, .kept = true)
ROW(getresuid, , NOTHING, (fresh, fresh + PAGE, fresh + 2 * PAGE), NOTHING, FAULTS)
ROW(setresgid, , NOTHING, (1234, 1234, 1234), NOTHING, EACH, NONE(IN_PLACE))
ROW(getresgid, , NOTHING, (fresh, fresh + PAGE, fresh + 2 * PAGE), NOTHING, FAULTS)
ROW(getpgid, , NOTHING, (0), NOTHING, NONE(ONLY_USES))
ROW(setfsuid, , NOTHING, (1234), NOTHING, EACH, NONE(IN_PLACE))
ROW(setfsgid, , NOTHING, (1234), NOTHING, EACH, NONE(IN_PLACE))
ROW(getsid, , NOTHING, (0), NOTHING, NONE(ONLY_USES))
ROW(capget, , NOTHING, (&capabilities, fresh), NOTHING, FAULTS)
ROW(capset, , NOTHING, (&capabilities, data), NOTHING, EACH, NONE(IN_PLACE))
ROW(rt_sigpending, , NOTHING, (fresh, 8), NOTHING, FAULTS)
ROW(rt_sigtimedwait, , queue(SIGRTMIN), (&every, fresh, &no_ns, 8), take_signal(), FAULTS)
ROW(rt_sigqueueinfo, , queued_info(SIGRTMIN), (queued.si_pid, SIGRTMIN, &queued), take_signal(), .or = {EAGAIN}, EACH)
ROW(rt_sigsuspend, , (signal(SIGUSR1, ticks), queue(SIGUSR1)), (&none_of, 8), (take_signal(), signal(SIGUSR1, SIG_DFL)),
    .fails = EINTR, NONE(ONLY_USES))
ROW(sigaltstack, , NOTHING, (NULL, fresh), NOTHING, FAULTS)
ROW(utime, , NOTHING, (path, NULL), NOTHING)
ROW(mknod, , NOTHING, ("new", S_IFIFO | 0644, 0), unlink("new"))
ROW(personality, , NOTHING, (0xffffffff), NOTHING, NONE(ONLY_USES))
ROW(statfs, , NOTHING, (path, fresh), NOTHING, FAULTS)
ROW(fstatfs, , NOTHING, (FILE_FD, fresh), NOTHING, FAULTS)
ROW(getpriority, , NOTHING, (PRIO_PROCESS, 0), NOTHING)
ROW(setpriority, , NOTHING, (PRIO_PROCESS, 0, 0), NOTHING)
ROW(ioprio_get, , NOTHING, (1, 0), NOTHING)
ROW(ioprio_set, , NOTHING, (1, 0, 2 << 13), NOTHING)
ROW(sched_setparam, , NOTHING, (0, &none_of), NOTHING, NONE(ONLY_USES))
ROW(sched_getparam, , NOTHING, (0, fresh), NOTHING, FAULTS)
ROW(sched_setscheduler, , NOTHING, (0, 0, &none_of), NOTHING, NONE(ONLY_USES))
ROW(sched_getscheduler, , NOTHING, (0), NOTHING, NONE(ONLY_USES))
ROW(sched_get_priority_max, , NOTHING, (0), NOTHING, NONE(ONLY_USES))
ROW(sched_get_priority_min, , NOTHING, (0), NOTHING, NONE(ONLY_USES))
ROW(sched_rr_get_interval, , NOTHING, (0, fresh), NOTHING, FAULTS)
ROW(mlock, , NOTHING, (fresh, 4 * PAGE), NOTHING, .or = {EAGAIN})
ROW(munlock, , (touched_area(), MUST(mlock(area, 16 * PAGE))), (AREA + 4 * PAGE, 4 * PAGE), no_area(), .or = {EAGAIN})
ROW(mlockall, , NOTHING, (MCL_CURRENT), NOTHING, EACH, .or = {EAGAIN}, MAYBE("the missing pages are brought in later"))
ROW(munlockall, , MUST(mlockall(MCL_CURRENT)), (0), NOTHING, EACH)
ROW(prctl, , NOTHING, (16 /* PR_GET_NAME */, fresh), NOTHING, FAULTS)
ROW(prctl, _slack, NOTHING, (29 /* PR_SET_TIMERSLACK */, 70000), NOTHING, EACH)
ROW(arch_prctl, , NOTHING, (0x1003 /* ARCH_GET_FS */, fresh), NOTHING, FAULTS)
ROW(adjtimex, , NOTHING, (fresh), NOTHING, FAULTS)
ROW(setrlimit, , MUST(getrlimit(RLIMIT_CORE, &core_limit)), (RLIMIT_CORE, &core_limit), NOTHING, EACH)
ROW(mount, , NOTHING, ("none", "d", "tmpfs", 0, "size=1m"), umount2("d", 2),
    MAYBE("where there is no room for the swept ones"))
ROW(mount, _bind, NOTHING, ("d", "d", NULL, MS_BIND, NULL), umount2("d", 2),
    MAYBE("where there is no room for the swept ones"))
ROW(umount2, , MUST(mount("none", "d", "tmpfs", 0, NULL)), ("d", 0), umount2("d", 2),
    MAYBE("it is detached, and swept later"))
ROW(syslog, , NOTHING, (3, fresh, PAGE), NOTHING, FAULTS)
ROW(chroot, , NOTHING, ("d"), NOTHING, EACH)
ROW(sync, , NOTHING, (0), NOTHING, NONE("a file is where it stays"))
ROW(settimeofday, , gettimeofday(&day_now, NULL), (&day_now, NULL), NOTHING, NONE(IN_PLACE))
ROW(reboot, , NOTHING, (0xfee1dead, 672274793, 0, NULL), NOTHING, NONE("a power-off would end this program: "
    "Ctrl-Alt-Del is turned off"))
ROW(sethostname, , NOTHING, (name, sizeof name - 1), NOTHING, NONE(IN_PLACE))
ROW(setdomainname, , NOTHING, (name, sizeof name - 1), NOTHING, NONE(IN_PLACE))
ROW(gettid, , NOTHING, (0), NOTHING, NONE(ONLY_USES))
ROW(readahead, , NOTHING, (FILE_FD, 0, 4 * PAGE), NOTHING, NONE("a file is where it stays"))
ROW(setxattr, , NOTHING, (path, "user.a", data, 100, 0), no_attribute(), .or = {ENOSPC})
ROW(lsetxattr, , NOTHING, (path, "user.a", data, 100, 0), no_attribute(), .or = {ENOSPC})
ROW(fsetxattr, , NOTHING, (FILE_FD, "user.a", data, 100, 0), no_attribute(), .or = {ENOSPC})
ROW(getxattr, , an_attribute(), (path, "user.a", fresh, 100), no_attribute(), FAULTS)
ROW(lgetxattr, , an_attribute(), (path, "user.a", fresh, 100), no_attribute(), FAULTS)
ROW(fgetxattr, , an_attribute(), (FILE_FD, "user.a", fresh, 100), no_attribute(), FAULTS)
ROW(listxattr, , an_attribute(), (path, fresh, 100), no_attribute(), FAULTS)
ROW(llistxattr, , an_attribute(), (path, fresh, 100), no_attribute(), FAULTS)
ROW(flistxattr, , an_attribute(), (FILE_FD, fresh, 100), no_attribute(), FAULTS)
ROW(removexattr, , an_attribute(), (path, "user.a"), no_attribute())
ROW(lremovexattr, , an_attribute(), (path, "user.a"), no_attribute())
ROW(fremovexattr, , an_attribute(), (FILE_FD, "user.a"), no_attribute())
ROW(tkill, , block(SIGRTMIN), (me, SIGRTMIN), take_signal(), .or = {EAGAIN}, EACH)
ROW(time, , NOTHING, (fresh), NOTHING, FAULTS)
ROW(futex, , NOTHING, (fresh, FUTEX_WAIT, 0, &soon), NOTHING, .fails = ETIMEDOUT, FAULTS)
ROW(futex, _private, NOTHING, (fresh, FUTEX_WAIT | FUTEX_PRIVATE_FLAG, 0, &soon), NOTHING, .fails = ETIMEDOUT, FAULTS)
ROW(futex, _wake, NOTHING, (fresh, FUTEX_WAKE, 1), NOTHING, FAULTS)
ROW(futex, _requeue, NOTHING, (fresh, FUTEX_REQUEUE, 1, 1L, fresh + PAGE), NOTHING, FAULTS)
ROW(futex, _shared, touched_in_file(), (AREA, FUTEX_WAIT, 0x01010101, &soon), (no_area(), no_file()),
    .fails = ETIMEDOUT, NONE(ON_STACK))
ROW(futex, _lock_pi, lock_word = 1, (&lock_word, FUTEX_LOCK_PI, 0, &long_ago), NOTHING, .fails = ETIMEDOUT)
ROW(sched_setaffinity, , NOTHING, (0, sizeof cpus, &cpus), NOTHING, NONE(ONLY_USES))
ROW(sched_getaffinity, , NOTHING, (0, 128, fresh), NOTHING, FAULTS)
ROW(epoll_create, , NOTHING, (1), close_result())
ROW(getdents, , MUST(lseek(PLACE_FD, 0, SEEK_SET)), (PLACE_FD, fresh, PAGE), NOTHING, READS)
ROW(getdents64, , MUST(lseek(PLACE_FD, 0, SEEK_SET)), (PLACE_FD, fresh, PAGE), NOTHING, READS)
ROW(getdents64, _proc, one = MUST(open("/proc/self/fd", O_RDONLY | O_DIRECTORY)), (one, fresh, PAGE), close(one), READS)
ROW(getdents64, _tasks, one = MUST(open("/proc/self/task", O_RDONLY | O_DIRECTORY)), (one, fresh, PAGE), close(one),
    READS)
ROW(set_tid_address, , NOTHING, (&word), NOTHING, NONE(ONLY_USES))
ROW(restart_syscall, , NOTHING, (0), NOTHING, .fails = EINTR, NONE(ONLY_USES))
ROW(semtimedop, , an_array(), (object, &waits, 1, &soon), no_array(), .fails = EAGAIN)
ROW(fadvise64, , NOTHING, (FILE_FD, 0, 4 * PAGE, POSIX_FADV_WILLNEED), NOTHING, NONE("a file is where it stays"))
ROW(timer_create, , NOTHING, (CLOCK_MONOTONIC, NULL, fresh), no_new_timer(), FAULTS, EACH)
ROW(timer_create, _cpu, NOTHING, (CLOCK_PROCESS_CPUTIME_ID, NULL, fresh), no_new_timer(), FAULTS, EACH)
ROW(timer_settime, , a_timer(), (the_timer, 0, &late, fresh), no_timer(), FAULTS)
ROW(timer_gettime, , a_timer(), (the_timer, fresh), no_timer(), FAULTS)
ROW(timer_getoverrun, , a_timer(), (the_timer), no_timer(), NONE(ONLY_USES))
ROW(timer_delete, , a_timer(), (the_timer), NOTHING, MAYBE("where the list of freed values has no room it waits for "
    "readers"))
ROW(clock_settime, , clock_gettime(CLOCK_REALTIME, &now_is), (CLOCK_REALTIME, &now_is), NOTHING, NONE(IN_PLACE))
ROW(clock_gettime, , NOTHING, (CLOCK_REALTIME, fresh), NOTHING, FAULTS)
ROW(clock_getres, , NOTHING, (CLOCK_REALTIME, fresh), NOTHING, FAULTS)
ROW(clock_nanosleep, , NOTHING, (CLOCK_MONOTONIC, 0, &soon, NULL), NOTHING, NONE(ON_STACK))
ROW(exit_group, , NOTHING, (7), NOTHING, EACH, .blind = 8)
ROW(epoll_wait, , ready_epoll(), (one, fresh, 8, 0), no_epoll(), FAULTS)
ROW(epoll_ctl, , an_epoll(), (one, EPOLL_CTL_ADD, ends[1], &event), no_epoll(), .or = {ENOSPC})
ROW(epoll_ctl, _removes, ready_epoll(), (one, EPOLL_CTL_DEL, ends[1], &event), no_epoll(), NONE(ENDS))
ROW(tgkill, , block(SIGRTMIN), (me, me, SIGRTMIN), take_signal(), .or = {EAGAIN}, EACH)
ROW(utimes, , NOTHING, (path, NULL), NOTHING)
ROW(mq_open, , NOTHING, ("refusals", O_CREAT | O_RDWR, 0600, NULL),
    (close_result(), syscall(SYS_mq_unlink, "refusals")))
ROW(mq_unlink, , a_posix_queue(), ("refusals"), no_posix_queue())
ROW(mq_timedsend, , a_posix_queue(), (one, data, 5000, 7, NULL), no_posix_queue())
ROW(mq_timedreceive, , a_posix_message(), (one, fresh, 3 * PAGE, NULL, NULL), no_posix_queue(), FAULTS)
ROW(mq_notify, , a_posix_queue(), (one, &no_notice), no_posix_queue())
ROW(mq_getsetattr, , a_posix_queue(), (one, NULL, fresh), no_posix_queue(), FAULTS)
ROW(waitid, , a_child(), (P_PID, child, fresh, WEXITED, fresh + PAGE), end_child(), FAULTS)
ROW(inotify_init, , NOTHING, (0), close_result())
ROW(inotify_add_watch, , a_notifier(), (one, path, 0x20 /* open */), close(one))
ROW(inotify_rm_watch, , (a_notifier(), MUST(syscall(SYS_inotify_add_watch, one, path, 0x20))), (one, 1), close(one),
    MAYBE("the watch leaves its list later"))
ROW(openat, , NOTHING, (DIR_FD, "new", O_CREAT | O_EXCL | O_RDWR, 0644), (close_result(), unlink("d/new")))
ROW(openat, _fd, NOTHING, (AT_FDCWD, "/proc/self/fd/7", O_RDONLY), close_result())
ROW(mkdirat, , NOTHING, (DIR_FD, "new", 0755), rmdir("d/new"))
ROW(mknodat, , NOTHING, (DIR_FD, "new", S_IFIFO | 0644, 0), unlink("d/new"))
ROW(fchownat, , NOTHING, (AT_FDCWD, path, 0, 0, 0), NOTHING)
ROW(futimesat, , NOTHING, (AT_FDCWD, path, NULL), NOTHING)
ROW(newfstatat, , NOTHING, (AT_FDCWD, path, fresh, 0), NOTHING, FAULTS)
ROW(unlinkat, , make("d/new"), (DIR_FD, "new", 0), unlink("d/new"))
ROW(unlinkat, _directory, MUST(mkdir("d/new", 0755)), (DIR_FD, "new", AT_REMOVEDIR), rmdir("d/new"))
ROW(renameat, , MUST(mkdir("new", 0755)), (AT_FDCWD, "new", DIR_FD, "renamed"), (rmdir("new"), rmdir("d/renamed")))
ROW(linkat, , NOTHING, (AT_FDCWD, "f", DIR_FD, "new", 0), unlink("d/new"))
ROW(symlinkat, , NOTHING, ("somewhere", DIR_FD, "new"), unlink("d/new"))
ROW(readlinkat, , NOTHING, (AT_FDCWD, "s", fresh, PAGE), NOTHING, FAULTS)
ROW(readlinkat, _proc, NOTHING, (AT_FDCWD, "/proc/self/exe", fresh, PAGE), NOTHING, FAULTS)
ROW(fchmodat, , NOTHING, (AT_FDCWD, path, 0644), NOTHING)
ROW(faccessat, , NOTHING, (AT_FDCWD, path, R_OK), NOTHING)
ROW(pselect6, , select_many(), (901, NULL, &selected, NULL, &no_ns, NULL), select_none())
ROW(ppoll, , poll_many(), (polled, 64, &no_ns, NULL, 8), close_both())
ROW(unshare, , sharer(), (CLONE_FILES | CLONE_FS), end_sharer(), EACH)
ROW(set_robust_list, , NOTHING, (data, 24), NOTHING, EACH, NONE(ONLY_USES))
ROW(get_robust_list, , NOTHING, (0, fresh, fresh + PAGE), NOTHING, FAULTS)
ROW(splice, , (full_pipe(), empty_file()), (ends[0], NULL, one, NULL, 100, 0), (close_both(), no_file()), WRITES)
ROW(tee, , two_pipes(), (ends[0], others[1], 100, 0), no_pipes())
ROW(sync_file_range, , NOTHING, (FILE_FD, 0, PAGE, 7), NOTHING, NONE("a file is where it stays"))
ROW(vmsplice, , (scattered(data), a_pipe()), (ends[1], vector, 40, 0), close_both(), WRITES)
ROW(utimensat, , NOTHING, (AT_FDCWD, path, NULL, 0), NOTHING)
ROW(epoll_pwait, , ready_epoll(), (one, fresh, 8, 0, NULL, 8), no_epoll(), FAULTS)
ROW(signalfd, , NOTHING, (-1, &no_signals, 8), close_result(), EACH)
ROW(timerfd_create, , NOTHING, (CLOCK_MONOTONIC, 0), close_result())
ROW(eventfd, , NOTHING, (0), close_result())
ROW(fallocate, , empty_file(), (one, 0, 0, 4 * PAGE), no_file(), .or = {ENOSPC})
ROW(timerfd_settime, , a_timer_file(), (one, 0, &late, fresh), close(one), FAULTS)
ROW(timerfd_gettime, , a_timer_file(), (one, fresh), close(one), FAULTS)
ROW(accept4, , a_waiting_connection(), (one, NULL, NULL, 0), (close_result(), close(one), close(ends[0])))
ROW(signalfd4, , NOTHING, (-1, &no_signals, 8, 0), close_result(), EACH)
ROW(eventfd2, , NOTHING, (0, 0), close_result())
ROW(epoll_create1, , NOTHING, (0), close_result())
ROW(dup3, , NOTHING, (FILE_FD, 700, 0), close_result(), EACH)
ROW(pipe2, , NOTHING, (fresh, O_CLOEXEC), close_pair_of((int *)fresh), FAULTS)
ROW(inotify_init1, , NOTHING, (0), close_result())
ROW(preadv, , scattered(fresh), (FILE_FD, vector, 40, 0, 0), NOTHING, READS)
ROW(pwritev, , (scattered(data), empty_file()), (one, vector, 40, 0, 0), no_file(), WRITES)
ROW(rt_tgsigqueueinfo, , queued_info(SIGRTMIN), (queued.si_pid, queued.si_pid, SIGRTMIN, &queued), take_signal(),
    .or = {EAGAIN}, EACH)
ROW(recvmmsg, , a_few_sent_messages(), (ends[1], &messages, 1, 0, NULL), close_received(),
    .maybe = "the files are lost, as on Linux")
ROW(name_to_handle_at, , NOTHING, (AT_FDCWD, path, fresh, fresh + PAGE, 0), NOTHING, .fails = EOPNOTSUPP)
ROW(open_by_handle_at, , NOTHING, (FILE_FD, (&(uint64_t){8 | 1ull << 32}), 0), NOTHING, .fails = ESTALE,
    NONE(ONLY_USES))
ROW(process_vm_readv, , scattered(fresh), (me, vector, 40, &in_data, 1, 0), NOTHING, READS)
ROW(process_vm_writev, , scattered(data), (me, vector, 40, &in_data, 1, 0), NOTHING, .or = {EFAULT},
    MAYBE("the pages are there"))
ROW(sched_setattr, , NOTHING, (0, (&(uint64_t[6]){48}), 0), NOTHING, NONE(ONLY_USES))
ROW(sched_getattr, , NOTHING, (0, fresh, 48, 0), NOTHING, FAULTS)
ROW(membarrier, , NOTHING, (1 /* global */, 0, 0), NOTHING, NONE(ONLY_USES))
ROW(prlimit64, , NOTHING, (0, RLIMIT_NOFILE, NULL, fresh), NOTHING, FAULTS)
ROW(clock_adjtime, , NOTHING, (CLOCK_REALTIME, fresh), NOTHING, FAULTS)
ROW(syncfs, , NOTHING, (FILE_FD), NOTHING, NONE("a file is where it stays"))
ROW(sendmmsg, , a_few_messages(), (ends[0], &messages, 1, 0), close_both())
ROW(getcpu, , NOTHING, (fresh, fresh + PAGE, NULL), NOTHING, FAULTS)
ROW(renameat2, , (make("new"), make("d/renamed")), (AT_FDCWD, "new", DIR_FD, "renamed", 2 /* exchange */),
    (unlink("new"), unlink("d/renamed")))
ROW(renameat2, _new, make("new"), (AT_FDCWD, "new", DIR_FD, "renamed", 1 /* no replacement */),
    (unlink("new"), unlink("d/renamed")))
ROW(getrandom, , NOTHING, (fresh, 2 * PAGE, 0), NOTHING, READS)
ROW(memfd_create, , NOTHING, ("m", 0), close_result())
ROW(execveat, , NOTHING, (AT_FDCWD, self, after_exec, environment, 0), NOTHING, EACH, .dies = SIGKILL, MAYBE(FANS_OUT))
ROW(mlock2, , private_area(), (AREA + 4 * PAGE, 4 * PAGE, 1 /* on fault */), no_area(), .or = {EAGAIN})
ROW(copy_file_range, , empty_file(), (FILE_FD, &(uint64_t){0}, one, NULL, 3 * PAGE, 0), no_file(), WRITES)
ROW(preadv2, , scattered(fresh), (FILE_FD, vector, 40, 0, 0, 0), NOTHING, READS)
ROW(pwritev2, , (scattered(data), empty_file()), (one, vector, 40, 0, 0, 0), no_file(), WRITES)
ROW(statx, , NOTHING, (AT_FDCWD, path, 0, 0xfff, fresh), NOTHING, FAULTS)
ROW(rseq, , NOTHING, (fresh, 32, 0, RSEQ_MARK), syscall(SYS_rseq, fresh, 32, RSEQ_UNREGISTER, RSEQ_MARK), FAULTS, EACH)
ROW(pidfd_send_signal, , (block(SIGRTMIN), own_process_file()), (one, SIGRTMIN, NULL, 0), (take_signal(), close(one)),
    EACH, MAYBE("the signal comes without its sender"))
ROW(pidfd_open, , NOTHING, (me, 0), close_result(), EACH)
ROW_BY(clone3, , clone3_process(), run_clone3, (end_born(), no_area()), .or = {EAGAIN}, MAYBE(STACKS))
ROW_BY(clone3, _thread, clone3_thread(), run_clone3, end_thread(), .or = {EAGAIN}, MAYBE(STACKS))
ROW(close_range, , sharer(), (700, 800, 2 /* unshare */), end_sharer(), EACH)
ROW(pidfd_getfd, , own_process_file(), (one, FILE_FD, 0), (close_result(), close(one)),
    NONE("the file is there, and the table has room"))
ROW(faccessat2, , NOTHING, (AT_FDCWD, path, R_OK, 0x200), NOTHING)
ROW(openat2, , NOTHING, (DIR_FD, "e", &(uint64_t[3]){O_CREAT | O_RDWR, 0644, 8 /* beneath */}, 24),
    (close_result(), unlink("d/e")))
ROW(futex_waitv, , NOTHING, (&(uint64_t[3]){0, (uintptr_t)&word, 2 | 128}, 1, 0, &long_ago, CLOCK_MONOTONIC), NOTHING,
    .fails = ETIMEDOUT)
ROW(epoll_pwait2, , ready_epoll(), (one, fresh, 8, &no_ns, NULL, 8), no_epoll(), FAULTS)
ROW(mseal, , touched_area(), (AREA + 4 * PAGE, 4 * PAGE, 0), NOTHING, EACH)
ROW(fchmodat2, , NOTHING, (AT_FDCWD, path, 0644, 0), NOTHING)

// ---- attempts ------------------------------------------------------------------------------------------------------

__attribute__((format(printf, 2, 3))) static void wrong(const struct row *row, const char *format, ...) {
    va_list args;
    va_start(args, format);
    printf("FAILED %s%s: ", row->name, row->shape);
    vprintf(format, args);
    printf("\n");
    fflush(stdout);
    va_end(args);
    shared->failures++;
}

// Makes the memory present that calls read, because a forked process would have to fault for it, and that would count.
static void touch(void) {
    static void *const all[] = {&action, &capabilities, &cpus, &event, &every, &groups, &core_limit, &interval, &lock,
        &middle, &name,
                                &no_ns, &no_time, &none_of, &polled, &queued, &selected, &soon, &vector, &day_now,
                                    &now_is, &clone_args,
                                data, data + PAGE, data + 2 * PAGE, data + 3 * PAGE, path, path + sizeof path - 1,
                                    self};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) *(volatile char *)all[i] = *(volatile char *)all[i];
}

// Sets the row up, makes its call with the n-th allocation refused (0: none), and undoes it.
static void make_call(const struct row *row, unsigned n, struct outcome *out) {
    // Where the page tables are not there either.
    static unsigned attempts;
    void *place = (void *)(FRESH + (unsigned long)attempts++ % 256 * (1ul << 30));
    fresh = mmap(place, 4 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    if (fresh == MAP_FAILED) fail("mmap");
    me = getpid();
    touch();
    row->set_up();
    armed = n;
    if (!row->arms) arm(n);
    errno = 0;
    result = row->run();
    struct outcome mine = {.result = result < 0 ? -errno : result};
    read_counts(&mine);
    row->undo();
    MUST(munmap(fresh, 4 * PAGE));
    mine.over = true;
    *out = mine;
}

// The things that a row leaves behind in its process and in the directory.
struct left {
    int descriptor; // the eighth that is free
    long pages;
    int names;
};

static struct left left(void) {
    struct left now = {0};
    int taken[8];
    for (int i = 0; i < 8; i++) taken[i] = now.descriptor = MUST(dup(REFUSE));
    for (int i = 0; i < 8; i++) close(taken[i]);
    char text[64] = "", names[4096];
    MUST(pread(SIZE, text, sizeof text - 1, 0));
    now.pages = atol(text);
    const int directories[] = {PLACE_FD, DIR_FD};
    for (int i = 0; i < 2; i++) {
        MUST(lseek(directories[i], 0, SEEK_SET));
        for (long len; (len = MUST(syscall(SYS_getdents64, directories[i], names, sizeof names)));)
            for (long at = 0; at < len; now.names++) at += ((struct dirent *)(names + at))->d_reclen;
    }
    return now;
}

// The attempt in a process of its own, or in this one. The status of the process is returned.
static int attempt(const struct row *row, unsigned n, struct outcome *out) {
    if (!row->each) {
        make_call(row, n, out);
        return 0;
    }
    shared->outcome = (struct outcome){0};
    pid_t process = MUST(fork());
    if (!process) {
        make_call(row, n, &shared->outcome);
        _exit(0);
    }
    int status = ended(process);
    *out = shared->outcome;
    return status;
}

static const char *error_name(long error) {
    static char number[32];
    if (error >= 0) return "success";
    snprintf(number, sizeof number, "%s", strerror(-error));
    return number;
}

static bool allowed(const struct row *row, long result) {
    bool found = result == -ENOMEM;
    for (int i = 0; i < 4; i++) found |= row->or[i] && result == -row->or[i];
    return found;
}

static bool as_unrefused(const struct row *row, long result) {
    return row->fails ? result == -row->fails : result >= 0;
}

// A call that does not return, or not to a place where the number could be read.
static void run_blind(const struct row *row) {
    for (int n = 0; n <= row->blind; n++) {
        struct outcome out;
        int status = attempt(row, n, &out);
        if (status != 7 << 8) wrong(row, "with allocation %d refused it ended with status %#x", n, status);
    }
    if (!quiet) printf("%s%s allocations=? refused=? attempts=%d\n", row->name, row->shape, row->blind);
}

static void run_row(const struct row *row) {
    if (row->blind) return run_blind(row);
    unsigned allocations = 0, refused = 0, without = 0, killed = 0, n;
    struct left before = left();
    for (n = 0; n <= MOST; n++) {
        struct outcome out;
        int status = attempt(row, n, &out);
        struct left after = left();
        if (before.descriptor != after.descriptor || before.pages != after.pages || before.names != after.names)
            wrong(row, "with allocation %u refused (%s) it left: descriptor %d not %d, %ld pages not %ld, %d names not "
                "%d", n,
                  error_name(out.result), after.descriptor, before.descriptor, after.pages, before.pages, after.names,
                      before.names);
        before = after;
        if (!n) {
            if (status || !out.over) wrong(row, "it ended with status %#x", status);
            else if (!as_unrefused(row, out.result)) wrong(row, "%s although nothing was refused",
                error_name(out.result));
            allocations = out.made;
            if (!out.made != !!row->none && !(row->kept && quiet)) wrong(row, "it made %u allocations", out.made);
            continue;
        }
        if (row->dies && WIFSIGNALED(status) && WTERMSIG(status) == row->dies) killed++, refused++;
        else if (status || !out.over) {
            wrong(row, "with allocation %u refused it ended with status %#x", n, status);
            break;
        } else if (!out.refused) {
            if (!as_unrefused(row, out.result)) wrong(row, "%s although nothing was refused", error_name(out.result));
            break;
        } else {
            refused++;
            if (row->none) wrong(row, "it made allocations");
            if (as_unrefused(row, out.result)) without++;
            if (!allowed(row, out.result) && !(row->maybe && as_unrefused(row, out.result)))
                wrong(row, "with allocation %u of %u refused: %s", n, out.made, error_name(out.result));
        }
        // The same call again, with nothing refused.
        status = attempt(row, 0, &out);
        if (status || !out.over) wrong(row, "after refusal %u it ended with status %#x", n, status);
        else if (!as_unrefused(row, out.result)) wrong(row, "after refusal %u: %s", n, error_name(out.result));
    }
    if (n > MOST) wrong(row, "it has no end");
    if (allocations && !refused && !(row->kept && quiet)) wrong(row, "nothing was refused");
    if (!quiet) {
        printf("%s%s allocations=%u refused=%u", row->name, row->shape, allocations, refused);
        if (without) printf(" without=%u", without);
        if (killed) printf(" killed=%u", killed);
        printf("\n");
    }
}

// Each row has a process of its own, so a dead process is one failure.
static void run_apart(const struct row *row) {
    fflush(stdout);
    pid_t process = MUST(fork());
    if (!process) {
        at(SIZE, open("/proc/self/statm", O_RDONLY));
        run_row(row);
        fflush(stdout);
        _exit(0);
    }
    int status = ended(process);
    if (status) wrong(row, "its process ended with status %#x", status);
}

static void run_table(void) {
    for (const struct row *const *row = __start_rows; row < __stop_rows; row++)
        if (wanted((*row)->name)) run_apart(*row);
}

// ---- census --------------------------------------------------------------------------------------------------------

static void count_use(struct census *out, const char *name, long count) {
    struct counted *at = out->of;
    while (at < out->of + out->kinds && strcmp(at->name, name)) at++;
    if (at == out->of + out->kinds) {
        CHECK(++out->kinds <= KINDS, "more than %d kinds", KINDS);
        snprintf(at->name, sizeof at->name, "%s", name);
    }
    at->count += count;
}

// Objects of each slab cache, and frames by use.
static void take_census(struct census *out) {
    memset(out, 0, sizeof *out);
    char line[256], name[32];
    long bytes, frames, count;
    // Cached memory is not in use.
    int caches = open("/proc/sys/vm/drop_caches", O_WRONLY);
    CHECK(caches >= 0 && write(caches, "3", 1) == 1 && !close(caches), "drop_caches");
    FILE *file = fopen("/proc/slabinfo", "r");
    CHECK(file, "/proc/slabinfo");
    while (fgets(line, sizeof line, file))
        if (sscanf(line, "%31s %ld %ld %ld", name, &bytes, &frames, &count) == 4) count_use(out, name, count);
    fclose(file);
    CHECK(out->kinds > 20, "/proc/slabinfo lists %d caches", out->kinds);
    file = fopen("/proc/loadavg", "r");
    CHECK(file && fscanf(file, "%*s %*s %*s %*d/%ld", &count) == 1, "/proc/loadavg");
    fclose(file);
    count_use(out, "threads", count);
    DIR *processes = opendir("/proc");
    CHECK(processes, "/proc");
    for (struct dirent *entry; (entry = readdir(processes));)
        if (atoi(entry->d_name)) count_use(out, "processes", 1);
    closedir(processes);
    file = fopen("/proc/sys/vm/quire_frames", "r");
    CHECK(file, "/proc/sys/vm/quire_frames");
    while (fgets(line, sizeof line, file))
        // An empty cached page table may be either.
        if (sscanf(line, "%*x %lx %31s", &count, name) == 2 && strcmp(name, "slab"))
            count_use(out, strcmp(name, "table") ? name : "kernel", count);
    fclose(file);
}

// An idle processor keeps the page tables and the stack of its last thread. After this they are this process's.
static void visit_processors(void) {
    const unsigned long all = sysconf(_SC_NPROCESSORS_ONLN) < 64 ? (1ul << sysconf(_SC_NPROCESSORS_ONLN)) - 1 : ~0ul;
    for (unsigned long one_of = 1; one_of & all; one_of <<= 1) {
        MUST(syscall(SYS_sched_setaffinity, 0, sizeof one_of, &one_of));
        usleep(2000);
    }
    MUST(syscall(SYS_sched_setaffinity, 0, sizeof all, &all));
}

// The kernel's account once it no longer changes: ended processes free their memory a little later.
static void settle(struct census *out) {
    struct census next;
    for (int same = 0, i = 0; same < 3 && i < 100; i++) {
        visit_processors();
        take_census(&next);
        same = memcmp(&next, out, sizeof next) ? 0 : same + 1;
        *out = next;
    }
}
static void census_before(void) { settle(&shared->before); }
static void census_after(void) { settle(&shared->after); }

static const char *counted; // the work between the two

static void print_left(const char *how, const char *kind, long more) {
    printf("%s %s: %s %+ld\n", how, counted, kind, more);
    fflush(stdout);
}

// The kernel frees an ended thread at a time of its choice. Memory that is left each time is a failure.
static void compare(void) {
    for (int i = 0; i < shared->after.kinds; i++) {
        shared->more[i] = shared->after.of[i].count - shared->before.of[i].count;
        if (shared->more[i]) print_left("ONCE", shared->after.of[i].name, shared->more[i]);
    }
}
static void compare_again(void) {
    for (int i = 0; i < shared->after.kinds; i++) {
        long more = shared->after.of[i].count - shared->before.of[i].count;
        if (more <= 0 || shared->more[i] <= 0) continue;
        print_left("LEFT", shared->after.of[i].name, more);
        shared->failures++;
    }
}
static void compare_row(void) {
    for (int i = 0; i < shared->after.kinds; i++) {
        long more = shared->after.of[i].count - shared->before.of[i].count;
        if (more) print_left("ROW", shared->after.of[i].name, more);
    }
}

// ---- the program ---------------------------------------------------------------------------------------------------

static void prepare(void) {
    memset(path, '.', sizeof path - 2);
    for (size_t i = 1; i < sizeof path - 2; i += 2) path[i] = '/';
    path[sizeof path - 3] = '/', path[sizeof path - 2] = 'f', path[sizeof path - 1] = 0;
    MUST(readlink("/proc/self/exe", self, sizeof self - 1));
    close(REFUSE), close(SHARED), close(SIZE), close(PLACE_FD), close(FILE_FD), close(DIR_FD);
    at(REFUSE, open("/proc/sys/vm/quire_refuse", O_RDWR));
    at(SHARED, memfd_create("shared", 0));
    MUST(ftruncate(SHARED, sizeof *shared));
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED, SHARED, 0);
    CHECK(shared != MAP_FAILED, "mmap");
    memset(shared, 0, sizeof *shared);
    at(SIZE, open("/proc/self/statm", O_RDONLY));
    CHECK(!mkdir(PLACE, 0755) && !chdir(PLACE), "there is " PLACE " already");
    at(PLACE_FD, open(".", O_RDONLY | O_DIRECTORY));
    memset(data, 'd', sizeof data);
    at(FILE_FD, open("f", O_CREAT | O_RDWR, 0644));
    MUST(write(FILE_FD, data, sizeof data));
    memset(data, 0, sizeof data);
    MUST(mkdir("d", 0755));
    at(DIR_FD, open("d", O_RDONLY | O_DIRECTORY));
    MUST(symlink("f", "s"));
    int script = MUST(open("script", O_CREAT | O_WRONLY, 0755));
    CHECK(dprintf(script, "#!%s --told\n", self) > 0, "script");
    close(script);
    int check = MUST(open("/proc/sys/vm/quire_check", O_WRONLY));
    MUST(write(check, "1", 1));
    close(check);
}

static int report_after_exec(void) {
    struct outcome out = {.over = true};
    read_counts(&out);
    MUST(pwrite(SHARED, &out, sizeof out, 0));
    return 0;
}

// The kernel keeps the memory of ids that were used once, and the record of a user. After this all were.
static void use_all_ids(void) {
    char text[16] = "";
    int file = MUST(open("/proc/sys/kernel/pid_max", O_RDONLY));
    MUST(read(file, text, sizeof text - 1));
    close(file);
    for (long i = atol(text); i > 0; i--) {
        thread_to_be();
        result = MUST(run_thread());
        end_thread();
    }
    MUST(setresuid(1234, 1234, 1234));
}

// Runs `body` in a process of its own. This process stores into the same few pages each time, so that its own memory is
// as large at each census.
static void apart(void (*body)(void)) {
    pid_t process = MUST(fork());
    if (!process) {
        body();
        fflush(stdout);
        _exit(0);
    }
    if (ended(process)) shared->failures++;
}

static void nothing(void) {}
// Forks before the census do not count any more.
static void census(void (*which)(void)) {
    for (int i = 0; i < 4; i++) apart(nothing);
    apart(which);
}

static const struct row *row_alone;
static void run_alone(void) { run_apart(row_alone); }

// Finds the rows that leave something.
static void find_leaks(void) {
    for (const struct row *const *row = __start_rows; row < __stop_rows; row++) {
        if (!wanted((*row)->name)) continue;
        static char name[64];
        snprintf(name, sizeof name, "%s%s", (*row)->name, (*row)->shape);
        row_alone = *row, counted = name;
        census(census_before), apart(run_alone), census(census_after), apart(compare_row);
    }
}

int main(int argc, char **argv) {
    if (argc >= 2 && !strcmp(argv[1], "--told")) return report_after_exec();
    parse_options(argc, argv, NULL);
    prepare();
    apart(use_all_ids);
    apart(run_table);
    quiet = true, counted = "the table";
    // The first census includes the memory of processes that have just ended.
    census(census_before), apart(nothing);
    census(census_before), apart(run_table), census(census_after), apart(compare);
    bool grew = false;
    for (int i = 0; i < KINDS; i++) grew |= shared->more[i] > 0;
    if (grew) {
        int failures = shared->failures;
        census(census_before), apart(run_table), census(census_after), apart(compare_again);
        if (shared->failures != failures) find_leaks();
    }
    int failures = shared->failures;
    printf("rows=%ld failures=%d\n", (long)(__stop_rows - __start_rows), failures);
    return failures ? 1 : 0;
}
