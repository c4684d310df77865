// Core files: the memory that the kernel writes when a signal has ended a process.
#include "checks.h"
#include <elf.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/procfs.h>
#include <sys/auxv.h>
#include <sys/stat.h>
#include <sys/syscall.h>

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
    CHECK(info.si_code == (WCOREDUMP(status) ? CLD_DUMPED : CLD_KILLED) && info.si_status == signal, "code %d",
        info.si_code);
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
    CHECK(len > sizeof *head && !memcmp(head->e_ident, ELFMAG, SELFMAG) && head->e_type == ET_CORE &&
        head->e_machine == EM_X86_64, "header");
    Elf64_Phdr *part = (void *)(core + head->e_phoff);
    CHECK(head->e_phnum > 3 && part->p_type == PT_NOTE, "%d parts", head->e_phnum);
    int found = 0, statuses = 0, kinds = 0;
    for (int i = 1; i < head->e_phnum; i++) {
        CHECK(part[i].p_type == PT_LOAD && part[i].p_filesz <= part[i].p_memsz &&
            part[i].p_offset + part[i].p_filesz <= len, "part %d", i);
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
            CHECK(note->n_descsz == sizeof *is && is->pr_cursig == SIGABRT && is->pr_pid == hard, "signal %d of %d",
                is->pr_cursig, is->pr_pid);
            CHECK(is->pr_ppid == getpid() && is->pr_info.si_signo == SIGABRT, "parent %d", is->pr_ppid);
            statuses++;
        }
        if (note->n_type == NT_PRPSINFO) {
            struct elf_prpsinfo *is = (void *)content;
            CHECK(note->n_descsz == sizeof *is && !strncmp(is->pr_fname, "corefiles", 9) &&
                strstr(is->pr_psargs, "corefiles"), "%s", is->pr_fname);
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

static void no_file_of_a_closed_process(void) {
    CHECK(!WCOREDUMP(dies(SIGABRT, RLIM_INFINITY, closed)) && access("core", F_OK), "core");
}

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

// The bytes of the memory at `at` in the core file; NULL where it holds none. `part` is set to its part.
static char *held(char *core, void *at, Elf64_Phdr **of) {
    Elf64_Ehdr *head = (void *)core;
    Elf64_Phdr *part = (void *)(core + head->e_phoff);
    for (int i = 1; i < head->e_phnum; i++) {
        unsigned long from = (unsigned long)at - part[i].p_vaddr;
        if ((unsigned long)at < part[i].p_vaddr || from >= part[i].p_memsz) continue;
        if (of) *of = &part[i];
        return from < part[i].p_filesz ? core + part[i].p_offset + from : NULL;
    }
    CHECK(false, "no part has %p", at);
    return NULL;
}

static char *left_out, *taken_back, *of_memory, *of_name;

static void prepare_kinds(void) {
    int memory = syscall(319, "kept", 0), named = open("/tmp/corefiles.named", O_CREAT | O_RDWR, 0600);
    CHECK(memory >= 0 && named >= 0 && !ftruncate(memory, PAGE) && !ftruncate(named, PAGE), "files");
    char **all[] = {&left_out, &taken_back, &of_memory, &of_name};
    for (int i = 0; i < 4; i++) {
        int fd = i == 2 ? memory : i == 3 ? named : -1;
        *all[i] = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, fd < 0 ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED, fd, 0);
        CHECK(*all[i] != MAP_FAILED, "mmap");
        *(unsigned long *)*all[i] = MARK;
        // Neighbours must not become one mapping.
        mmap(NULL, PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    }
    CHECK(!madvise(left_out, PAGE, MADV_DONTDUMP) && !madvise(taken_back, PAGE, MADV_DONTDUMP), "MADV_DONTDUMP");
    CHECK(!madvise(taken_back, PAGE, MADV_DODUMP), "MADV_DODUMP");
    ANSWERS(EINVAL, madvise(left_out + 1, PAGE, MADV_DONTDUMP));
}

static void filter(const char *text) {
    int fd = open("/proc/self/coredump_filter", O_RDWR);
    CHECK(fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text), "coredump_filter");
    close(fd);
}
static void filter_nothing(void) { filter("0"); }
static void filter_named(void) { filter("0x8"); }

static void the_kinds_of_memory(void) {
    prepare_kinds();
    size_t len;
    CHECK(WCOREDUMP(dies(SIGABRT, RLIM_INFINITY, NULL)), "no core file");
    char *core = whole(&len);
    CHECK(!held(core, left_out, NULL), "left out");
    char *there = held(core, taken_back, NULL), *memory = held(core, of_memory, NULL);
    CHECK(there && *(unsigned long *)there == MARK, "taken back");
    CHECK(memory && *(unsigned long *)memory == MARK, "shared memory without a name");
    CHECK(!held(core, of_name, NULL), "a file with a name");
    unsigned long vdso = getauxval(AT_SYSINFO_EHDR);
    char *code = held(core, (void *)vdso, NULL);
    CHECK(code && !memcmp(code, (void *)vdso, PAGE / 2), "vDSO");
    CHECK(WCOREDUMP(dies(SIGABRT, RLIM_INFINITY, filter_nothing)), "no core file");
    core = whole(&len);
    CHECK(!held(core, taken_back, NULL) && !held(core, of_memory, NULL), "nothing");
    CHECK(WCOREDUMP(dies(SIGABRT, RLIM_INFINITY, filter_named)), "no core file");
    core = whole(&len);
    there = held(core, of_name, NULL);
    CHECK(there && *(unsigned long *)there == MARK && !held(core, taken_back, NULL), "the file");
    unlink("/tmp/corefiles.named");
}

static void the_filter_is_inherited(void) {
    char text[32] = "";
    int fd = open("/proc/self/coredump_filter", O_RDWR);
    CHECK(fd >= 0 && read(fd, text, sizeof text) == 9 && !strcmp(text, "00000033\n"), "%s", text);
    filter("0x7f\n");
    CHECK(pread(fd, text, sizeof text, 0) == 9 && !strcmp(text, "0000007f\n"), "%s", text);
    ANSWERS(EINVAL, write(fd, "what", 4));
    pid_t child = fork();
    if (!child) {
        execl("/bin/sh", "sh", "-c", "read f </proc/self/coredump_filter; test $f = 0000007f", NULL);
        _exit(9);
    }
    CHECK(!ended(child), "a program that the child starts");
}

static const char *pattern = "/proc/sys/kernel/core_pattern";
static void set_pattern(const char *text) {
    int fd = open(pattern, O_WRONLY);
    CHECK(fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text), "core_pattern");
    close(fd);
}

static void the_pattern_names_the_file(void) {
    int fd = open(pattern, O_RDWR);
    if (fd < 0) return; // in a container
    set_pattern(PLACE "/of-%p.%s.%e.%%\n");
    int status = dies(SIGBUS, RLIM_INFINITY, NULL);
    set_pattern("core");
    char name[128];
    snprintf(name, sizeof name, PLACE "/of-%d.%d.corefiles.%%", hard, SIGBUS);
    CHECK(WCOREDUMP(status) && !unlink(name) && access("core", F_OK), "%s", name);
    close(fd);
}

#define LARGE (192ul << 20)
static void much_memory(void) {
    char *at = mmap(NULL, LARGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(at != MAP_FAILED, "mmap");
    for (unsigned long i = 0; i < LARGE; i += PAGE) at[i] = 1;
}

static void a_kill_ends_the_writing(void) {
    mkdir(PLACE, 0700);
    CHECK(!chdir(PLACE), "chdir");
    unlink("core");
    pid_t child = fork();
    CHECK(child >= 0, "fork");
    if (!child) {
        struct rlimit limits = {RLIM_INFINITY, RLIM_INFINITY};
        CHECK(!setrlimit(RLIMIT_CORE, &limits), "setrlimit");
        much_memory();
        raise(SIGABRT);
        _exit(99);
    }
    struct stat status;
    for (int i = 0; i < 100000 && (stat("core", &status) || status.st_size < (off_t)PAGE); i++) usleep(200);
    kill(child, SIGKILL);
    int how = ended(child);
    CHECK(WIFSIGNALED(how) && WTERMSIG(how) == SIGABRT, "%x", how);
    CHECK(!stat("core", &status) && status.st_size < (off_t)LARGE, "%ld bytes", (long)status.st_size);
    unlink("core");
}

static const struct check checks[] = {
    {"its_memory_and_registers", its_memory_and_registers},
    {"only_some_signals_and_limits", only_some_signals_and_limits},
    {"no_file_of_a_closed_process", no_file_of_a_closed_process},
    {"an_older_file_gives_way", an_older_file_gives_way},
    {"a_process_with_threads", a_process_with_threads},
    {"the_kinds_of_memory", the_kinds_of_memory},
    {"the_filter_is_inherited", the_filter_is_inherited},
    {"the_pattern_names_the_file", the_pattern_names_the_file},
    {"a_kill_ends_the_writing", a_kill_ends_the_writing},
};

int main(int argc, char **argv) {
    parse_options(argc, argv, NULL);
    run_checks(checks, sizeof checks / sizeof *checks);
    return 0;
}
