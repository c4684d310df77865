// Accesses that must end in a signal do, and in the right one. Each case runs in a child three times. The first run has
// the default action. The second has a handler on an alternate stack, which checks si_code and si_addr. In the third
// the signal is ignored and blocked, which must not help. Then a handler repairs the mapping and returns, many times.
#include "report.h"
#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>

static volatile uintptr_t expected_address; // ANYWHERE: not checked
#define ANYWHERE 1ul
static char *area; // four pages: writable, read-only, none, unmapped
static char *beyond; // the second page of a mapping of a file that ends with the first

// The compiler must not know the address: it would prove that the access cannot be.
#define HIDE(address) __asm__("" : "+r"(address))

static void touch(uintptr_t address) {
    expected_address = address;
    HIDE(address);
    *(volatile char *)address;
}
static void store(uintptr_t address) {
    expected_address = address;
    HIDE(address);
    *(volatile char *)address = 1;
}

static void null_read(void) { touch(0); }
static void null_write(void) { store(24); }
static void null_call(void) {
    expected_address = 0;
    ((void (*)(void))(uintptr_t)expected_address)();
}
static void jump_into_data(void) {
    memset(area, 0xc3, 16); // ret
    expected_address = (uintptr_t)area;
    ((void (*)(void))area)();
}
static void write_to_text(void) { store((uintptr_t)write_to_text); }
static void write_read_only(void) { store((uintptr_t)area + PAGE + 5); }
static void read_none(void) { touch((uintptr_t)area + 2 * PAGE + 9); }
static void read_unmapped(void) { touch((uintptr_t)area + 3 * PAGE); }
static void read_kernel(void) { touch(0xffffffff80000000); }
static void write_kernel(void) { store(0xffff888000001000); }
static void read_noncanonical(void) { touch(0x0000800000000000 + (uintptr_t)MIB); }
static void beyond_end_of_file(void) { touch((uintptr_t)beyond + 8); }
static void write_beyond_end_of_file(void) { store((uintptr_t)beyond + 16); }
__attribute__((noinline)) static int recurse(volatile char *caller) {
    volatile char frame[512];
    frame[0] = caller[0];
    return caller[0] == 77 ? 0 : recurse(frame) + frame[0]; // never 77
}
static void overflow_stack(void) {
    volatile char first = 0;
    expected_address = ANYWHERE;
    recurse(&first);
}
static void divide_by_zero(void) {
    expected_address = ANYWHERE;
    __asm__ volatile("xorl %%ecx, %%ecx; movl $1, %%eax; cltd; idivl %%ecx" ::: "eax", "ecx", "edx");
}
static void illegal_instruction(void) {
    expected_address = ANYWHERE;
    __asm__ volatile("ud2");
}
static void privileged_instruction(void) {
    expected_address = 0;
    __asm__ volatile("hlt");
}
static void breakpoint(void) {
    expected_address = ANYWHERE;
    __asm__ volatile("int3");
}
static void bad_stack_pointer(void) {
    expected_address = ANYWHERE;
    __asm__ volatile("xorl %%esp, %%esp; pushq $1" ::: "memory");
}

static const struct fault {
    const char *name;
    void (*run)(void);
    int signal, code;
} faults[] = {
    {"null_read", null_read, SIGSEGV, SEGV_MAPERR},
    {"null_write", null_write, SIGSEGV, SEGV_MAPERR},
    {"null_call", null_call, SIGSEGV, SEGV_MAPERR},
    {"jump_into_data", jump_into_data, SIGSEGV, SEGV_ACCERR},
    {"write_to_text", write_to_text, SIGSEGV, SEGV_ACCERR},
    {"write_read_only", write_read_only, SIGSEGV, SEGV_ACCERR},
    {"read_none", read_none, SIGSEGV, SEGV_ACCERR},
    {"read_unmapped", read_unmapped, SIGSEGV, SEGV_MAPERR},
    {"read_kernel", read_kernel, SIGSEGV, SEGV_MAPERR},
    {"write_kernel", write_kernel, SIGSEGV, SEGV_MAPERR},
    {"read_noncanonical", read_noncanonical, SIGSEGV, SI_KERNEL},
    {"beyond_end_of_file", beyond_end_of_file, SIGBUS, BUS_ADRERR},
    {"write_beyond_end_of_file", write_beyond_end_of_file, SIGBUS, BUS_ADRERR},
    {"overflow_stack", overflow_stack, SIGSEGV, SEGV_MAPERR},
    {"divide_by_zero", divide_by_zero, SIGFPE, FPE_INTDIV},
    {"illegal_instruction", illegal_instruction, SIGILL, ILL_ILLOPN},
    {"privileged_instruction", privileged_instruction, SIGSEGV, SI_KERNEL},
    {"breakpoint", breakpoint, SIGTRAP, SI_KERNEL},
    {"bad_stack_pointer", bad_stack_pointer, SIGSEGV, SEGV_MAPERR},
};

static const struct fault *running_fault;
static char alternate[16 * PAGE];

static void on_signal(int signal, siginfo_t *info, void *context) {
    (void)context;
    char here;
    const struct fault *f = running_fault;
    if (&here < alternate || &here >= alternate + sizeof alternate) fail("%s: not on the alternate stack", f->name);
    if (signal != f->signal || info->si_signo != signal) fail("%s: signal %d", f->name, signal);
    // A general protection fault has no address. (A bad stack pointer is one, or a stack fault, as the CPU decides.)
    bool stack = f->run == bad_stack_pointer;
    if (info->si_code != f->code && !stack) fail("%s: si_code %d instead of %d", f->name, info->si_code, f->code);
    uintptr_t wanted = f->code == SI_KERNEL ? 0 : expected_address;
    if (expected_address != ANYWHERE && (uintptr_t)info->si_addr != wanted)
        fail("%s: si_addr %p instead of %#lx", f->name, info->si_addr, wanted);
    _exit(33);
}

static void prepare(void) {
    area = mmap(NULL, 4 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(area != MAP_FAILED, "mmap");
    memset(area, 1, 4 * PAGE);
    CHECK(!mprotect(area + PAGE, PAGE, PROT_READ) && !mprotect(area + 2 * PAGE, PAGE, PROT_NONE), "mprotect");
    char path[64];
    snprintf(path, sizeof path, "/tmp/faults.%d", getpid());
    int file = open(path, O_RDWR | O_CREAT | O_TRUNC, 0600);
    CHECK(file >= 0, "cannot create %s", path);
    unlink(path);
    CHECK(!ftruncate(file, 100), "ftruncate");
    char *memory = mmap(NULL, 2 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    CHECK(memory != MAP_FAILED, "mmap");
    CHECK(memory[50] == 0 && memory[PAGE - 1] == 0, "the rest of the last page reads as zero");
    beyond = memory + PAGE;
    close(file);
    // Last, so that nothing is mapped into the hole.
    CHECK(!munmap(area + 3 * PAGE, PAGE), "munmap");
}

enum { DEFAULT, HANDLED, REFUSED };

static void check_fault(const struct fault *f, int how) {
    pid_t child = fork();
    CHECK(child >= 0, "fork");
    if (!child) {
        running_fault = f;
        if (how == HANDLED) {
            stack_t stack = {.ss_sp = alternate, .ss_size = sizeof alternate};
            struct sigaction action = {.sa_sigaction = on_signal, .sa_flags = SA_SIGINFO | SA_ONSTACK};
            CHECK(!sigaltstack(&stack, NULL) && !sigaction(f->signal, &action, NULL), "sigaction");
        } else if (how == REFUSED) {
            sigset_t set;
            sigemptyset(&set);
            sigaddset(&set, f->signal);
            signal(f->signal, SIG_IGN);
            sigprocmask(SIG_BLOCK, &set, NULL);
        }
        f->run();
        fail("%s: nothing happened", f->name);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child, "waitpid");
    if (how == HANDLED) {
        CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 33, "%s: handler, status %#x", f->name, status);
    } else {
        bool right = WIFSIGNALED(status) && WTERMSIG(status) == f->signal;
        CHECK(right, "%s: status %#x, not signal %d", f->name, status, f->signal);
    }
}

// A handler that makes the page writable and returns: the store is done again.
static volatile int repaired;
static void on_barrier(int signal, siginfo_t *info, void *context) {
    (void)signal, (void)context;
    if (info->si_code != SEGV_ACCERR) fail("barrier: si_code %d", info->si_code);
    repaired++;
    if (mprotect((void *)((uintptr_t)info->si_addr & -PAGE), PAGE, PROT_READ | PROT_WRITE)) fail("mprotect");
}

static void check_repair(int rounds) {
    struct sigaction action = {.sa_sigaction = on_barrier, .sa_flags = SA_SIGINFO};
    CHECK(!sigaction(SIGSEGV, &action, NULL), "sigaction");
    for (int i = 0; i < rounds; i++) {
        CHECK(!mprotect(area, PAGE, PROT_READ), "mprotect");
        volatile int *word = (int *)(area + i % 1000 * 4);
        *word = i;
        CHECK(*word == i && repaired == i + 1, "round %d: the store was lost", i);
    }
    signal(SIGSEGV, SIG_DFL);
}

// Bad pointers in system calls are errors, not signals.
static void check_bad_pointers(void) {
    int ends[2];
    CHECK(!pipe(ends), "pipe");
    char *const bad[] = {NULL, area + 2 * PAGE, area + 3 * PAGE, (char *)0xffffffff80000000, (char *)-1l};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        CHECK(write(ends[1], bad[i], 8) == -1 && errno == EFAULT, "write from %p", (void *)bad[i]);
        CHECK(pipe((int *)bad[i]) == -1 && errno == EFAULT, "pipe to %p", (void *)bad[i]);
    }
    CHECK(write(ends[1], "12345678", 8) == 8, "write");
    CHECK(read(ends[0], area + PAGE, 8) == -1 && errno == EFAULT, "read into read-only memory");
    close(ends[0]);
    close(ends[1]);
}

int main(int argc, char **argv) {
    parse_options(argc, argv, NULL);
    struct rlimit none = {0, 0}, stack;
    setrlimit(RLIMIT_CORE, &none);
    if (!getrlimit(RLIMIT_STACK, &stack) && stack.rlim_cur > 8 * MIB) {
        stack.rlim_cur = 8 * MIB;
        setrlimit(RLIMIT_STACK, &stack);
    }
    prepare();
    int checked = 0;
    for (size_t i = 0; i < sizeof faults / sizeof *faults; i++) {
        if (!wanted(faults[i].name)) continue;
        for (int how = DEFAULT; how <= REFUSED; how++, checked++) check_fault(&faults[i], how);
    }
    check_repair(1000);
    check_bad_pointers();
    report("faults_checked", checked, "faults");
    report("faults_repaired", repaired, "faults");
}
