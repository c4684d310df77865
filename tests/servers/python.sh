# The tests of Python's own modules, as Debian packages them. A module that fails is listed with its failing tests.
. "$(dirname "$0")/lib.sh"
all="test_mmap test_select test_selectors test_epoll test_poll test_fcntl test_pty test_posix test_shutil test_threading test_subprocess test_socket test_signal test_os test_asyncio test_multiprocessing_fork"
for module in ${MODULES:-test_mmap test_select test_epoll test_poll test_fcntl test_pty test_threadsignals test_pipes test_posix}; do
    [ "$module" = all ] && continue
    timeout 600 python3 -m test -q --timeout 300 "$module" >/tmp/out 2>&1
    status=$?
    echo "$module $status"
    [ $status = 0 ] || { grep -E '^(ERROR|FAIL):' /tmp/out | sort -u; cat /tmp/out >&2; }
done
