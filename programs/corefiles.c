// Core files: the memory that the kernel writes when a signal has ended a process.
#include "checks.h"
#include <elf.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/procfs.h>
#include <sys/stat.h>

#define PAGE 4096ul
#define PLACE "/tmp/corefiles"
#define MARK 0x5ca1ab1e0ddba11ul

static char *kept, *unread; // two pages: the first is stored into, and the second was never used
static int hard = -1;

// A child that ends by `signal` in an empty directory, with this limit on core files. Returns its status.
static int dies(int signal, rlim_t limit, void (*before)(void)) {
    mkdir(PLACE, 0700);
    CHECK(!chdir(PLACE), "chdir");
    unlink("core");
    fflush(NULL);
    pid_t child = fork();
    CHECK(child >= 0, "fork");
    if (!child) {
        struct rlimit limits = {limit, RLIM_INFINITY};
        CHECK(!setrlimit(RLIMIT_CORE, &limits), "setrlimit");
        if (before) before();
        raise(signal);
        _exit(99);
    }
    siginfo_t info = {0};
    CHECK(!waitid(P_PID, child, &info, WEXITED | WNOWAIT), "waitid");
    int status = ended(child);
    hard = child;
    CHECK(WIFSIGNALED(status) && WTERMSIG(status) == signal, "%x", status);
    CHECK(info.si_code == (WCOREDUMP(status) ? CLD_DUMPED : CLD_KILLED) && info.si_status == signal, "code %d", info.si_code);
    return status;
}

static char *whole(size_t *len) {
    struct stat status;
    int fd = open("core", O_RDONLY);
    CHECK(fd >= 0 && !fstat(fd, &status), "core");
    CHECK((status.st_mode & 07777) == 0600 && status.st_nlink == 1 && status.st_uid == geteuid(), "%o", status.st_mode);
    *len = status.st_size;
    char *at = mmap(NULL, *len, PROT_READ, MAP_PRIVATE, fd, 0);
    CHECK(at != MAP_FAILED, "mmap");
    close(fd);
    return at;
}

static void prepare(void) {
    kept = mmap(NULL, 2 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(kept != MAP_FAILED, "mmap");
    *(unsigned long *)kept = MARK;
    unread = kept + PAGE;
}

static void its_memory_and_registers(void) {
    prepare();
    int status = dies(SIGABRT, RLIM_INFINITY, NULL);
    CHECK(WCOREDUMP(status), "no core file");
    size_t len;
    char *core = whole(&len);
    Elf64_Ehdr *head = (void *)core;
    CHECK(len > sizeof *head && !memcmp(head->e_ident, ELFMAG, SELFMAG) && head->e_type == ET_CORE && head->e_machine == EM_X86_64, "header");
    Elf64_Phdr *part = (void *)(core + head->e_phoff);
    CHECK(head->e_phnum > 3 && part->p_type == PT_NOTE, "%d parts", head->e_phnum);
    int found = 0, statuses = 0, kinds = 0;
    for (int i = 1; i < head->e_phnum; i++) {
        CHECK(part[i].p_type == PT_LOAD && part[i].p_filesz <= part[i].p_memsz && part[i].p_offset + part[i].p_filesz <= len, "part %d", i);
        unsigned long at = (unsigned long)kept;
        if (at < part[i].p_vaddr || at >= part[i].p_vaddr + part[i].p_memsz) continue;
        CHECK(part[i].p_flags == (PF_R | PF_W) && part[i].p_filesz == part[i].p_memsz, "flags %x", part[i].p_flags);
        unsigned long *copy = (void *)(core + part[i].p_offset + (at - part[i].p_vaddr));
        CHECK(*copy == MARK && copy[PAGE / 8] == 0, "%lx", *copy);
        found++;
    }
    CHECK(found == 1, "%d parts have the memory", found);
    for (size_t at = 0; at + sizeof(Elf64_Nhdr) <= part->p_filesz;) {
        Elf64_Nhdr *note = (void *)(core + part->p_offset + at);
        char *content = (char *)(note + 1) + (note->n_namesz + 3 & ~3u);
        if (note->n_type == NT_PRSTATUS) {
            struct elf_prstatus *is = (void *)content;
            CHECK(note->n_descsz == sizeof *is && is->pr_cursig == SIGABRT && is->pr_pid == hard, "signal %d of %d", is->pr_cursig, is->pr_pid);
            CHECK(is->pr_ppid == getpid() && is->pr_info.si_signo == SIGABRT, "parent %d", is->pr_ppid);
            statuses++;
        }
        if (note->n_type == NT_PRPSINFO) {
            struct elf_prpsinfo *is = (void *)content;
            CHECK(note->n_descsz == sizeof *is && !strncmp(is->pr_fname, "corefiles", 9) && strstr(is->pr_psargs, "corefiles"), "%s", is->pr_fname);
            kinds |= 1;
        }
        if (note->n_type == NT_AUXV) kinds |= 2;
        if (note->n_type == 0x46494c45) kinds |= 4;
        if (note->n_type == NT_FPREGSET && note->n_descsz == 512) kinds |= 8;
        at = content + (note->n_descsz + 3 & ~3u) - (core + part->p_offset);
    }
    CHECK(statuses == 1 && kinds == 15, "%d statuses, kinds %d", statuses, kinds);
}

static void only_some_signals_and_limits(void) {
    CHECK(!WCOREDUMP(dies(SIGTERM, RLIM_INFINITY, NULL)) && access("core", F_OK), "SIGTERM");
    CHECK(!WCOREDUMP(dies(SIGKILL, RLIM_INFINITY, NULL)) && access("core", F_OK), "SIGKILL");
    CHECK(!WCOREDUMP(dies(SIGSEGV, 0, NULL)) && access("core", F_OK), "no limit");
    CHECK(!WCOREDUMP(dies(SIGSEGV, PAGE - 1, NULL)) && access("core", F_OK), "less than a page");
    int all[] = {SIGQUIT, SIGILL, SIGTRAP, SIGABRT, SIGBUS, SIGFPE, SIGSEGV, SIGSYS, SIGXCPU, SIGXFSZ};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        CHECK(WCOREDUMP(dies(all[i], PAGE, NULL)), "signal %d", all[i]);
        struct stat status;
        CHECK(!stat("core", &status) && status.st_size <= (off_t)PAGE, "%ld", (long)status.st_size);
    }
}

static void closed(void) { CHECK(!prctl(PR_SET_DUMPABLE, 0), "prctl"); }

static void no_file_of_a_closed_process(void) { CHECK(!WCOREDUMP(dies(SIGABRT, RLIM_INFINITY, closed)) && access("core", F_OK), "core"); }

static void in_the_way(void) {
    int fd = open("core", O_CREAT | O_WRONLY, 0644);
    CHECK(fd >= 0 && write(fd, "old", 3) == 3, "write");
    close(fd);
}
static void directory_in_the_way(void) { CHECK(!mkdir("core", 0700), "mkdir"); }

static void an_older_file_gives_way(void) {
    size_t len;
    CHECK(WCOREDUMP(dies(SIGABRT, RLIM_INFINITY, in_the_way)), "no core file");
    CHECK(!memcmp(whole(&len), ELFMAG, SELFMAG), "old");
    CHECK(!WCOREDUMP(dies(SIGABRT, RLIM_INFINITY, directory_in_the_way)), "a directory");
    rmdir("core");
}

static void *waits(void *nothing) {
    for (;;) pause();
    return nothing;
}

static void threads(void) {
    pthread_t thread;
    for (int i = 0; i < 4; i++) CHECK(!pthread_create(&thread, NULL, waits, NULL), "pthread_create");
}

static void a_process_with_threads(void) {
    size_t len;
    for (int i = 0; i < 20; i++) {
        CHECK(WCOREDUMP(dies(SIGABRT, RLIM_INFINITY, threads)), "no core file");
        CHECK(!memcmp(whole(&len), ELFMAG, SELFMAG), "header");
    }
}

static const struct check checks[] = {
    {"its_memory_and_registers", its_memory_and_registers},
    {"only_some_signals_and_limits", only_some_signals_and_limits},
    {"no_file_of_a_closed_process", no_file_of_a_closed_process},
    {"an_older_file_gives_way", an_older_file_gives_way},
    {"a_process_with_threads", a_process_with_threads},
};

int main(int argc, char **argv) {
    parse_options(argc, argv, NULL);
    run_checks(checks, sizeof checks / sizeof *checks);
    return 0;
}
