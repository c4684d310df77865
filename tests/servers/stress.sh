# stress-ng: stressors of memory, processes and the scheduler, each for a short time.
#
# Left out, with the reason:
# - aio, fanotify, io-uring, key, landlock, ptrace, seccomp, swap, userfaultfd and their kind: Quire has no such calls.
# - vm-segv: its child waits until its parent traces it.
# - madvise: it fails on Linux in this machine.
# - mutex, numa: they are skipped on Linux in this machine.
# - mlockmany, oom-pipe, sysinval, watchdog: stress-ng runs them only if it is told that they may hang the machine.
. "$(dirname "$0")/lib.sh"

# stressors OPERATIONS SECONDS NAME...: runs each stressor with two workers until its operations or seconds are over,
# and prints whether its own checks passed.
stressors() {
    local operations=$1 seconds=$2 name before status
    shift 2
    for name in "$@"; do
        before=$SECONDS
        timeout -k 5 90 stress-ng --"$name" 2 --"$name-ops" "$operations" -t "$seconds" --verify --oomable --temp-path /tmp \
            >/tmp/.stress 2>&1 </dev/null
        status=$?
        case $status in
            0) echo "$name pass" ;;
            *)
                echo "$name fail $status"
                tail -20 /tmp/.stress >&2
                ;;
        esac
        figure "$name" $((SECONDS - before)) s
    done
}

# Memory.
stressors 50 1 bad-altstack bigheap brk dev-shm env malloc memfd mincore mlock mmap mmapaddr mmapfixed mmapfork mmapmany \
    mprotect mremap msync munmap pagemove physpage remap rmap shm shm-sysv stack stackmmap tlb-shootdown tmpfs vm vm-addr vm-rw \
    vm-splice
# Processes and the scheduler.
stressors 50 1 affinity clone daemon eventfd exec exit-group fault fifo fork forkheavy futex kill membarrier mq msg nice \
    pipe poll pthread resched sem sem-sysv session spawn switch vfork vforkmany wait yield zombie
# Signals, timers and terminals.
stressors 50 1 itimer pidfd pty ioprio sigabrt sigchld sigfd sigfpe signal signest sigpending sigpipe sigq sigrt sigsegv \
    sigsuspend sigtrap timer timerfd
