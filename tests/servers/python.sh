# Python's own tests of memory, files, terminals, waiting and threads.
. "$(dirname "$0")/lib.sh"
export LC_ALL=C.UTF-8

# Left out, with the reason:
# - test_fcntl_64_bit asks for signals about the changes of a directory (F_NOTIFY). Quire has inotify instead.
# - test_stress_modifying_handlers takes minutes in an emulated machine, on Linux too.
left_out=(-i test_fcntl_64_bit -i test_stress_modifying_handlers)

# python_tests MODULE...: runs these modules of Python's tests. Prints the tests that failed, and how many each module
# ran and skipped.
python_tests() {
    local module before status
    for module in "$@"; do
        before=$SECONDS
        timeout -k 5 600 python3 -u -m test -v "${left_out[@]}" "test_$module" >/tmp/.tests 2>&1 </dev/null
        status=$?
        grep -aE "^(FAIL|ERROR): " /tmp/.tests | sort -u
        echo "$module: status $status, $(grep -aoE "^Ran [0-9]+ tests" /tmp/.tests | tail -1), $(grep -aE "^(OK|FAILED)" /tmp/.tests | tail -1)"
        if [ $status != 0 ]; then
            grep -avE "\.\.\. (ok|skipped)" /tmp/.tests | tail -100 >&2
        fi
        figure "tests of $module" $((SECONDS - before)) s
    done
}

python_tests mmap select epoll poll fcntl pty posix shutil threading
