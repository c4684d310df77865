//! Tests of the generated files by programs that make real system calls.

use crate::Procfs;
use linux_raw_sys::general::*;
use quire_linux::test_host::script::{Task, run_with};
use quire_linux_state::Errno;

const MILLISECOND: u64 = 1_000_000;

/// Runs `body` as the first process of a machine with `/proc` and `/sys`.
fn run(body: impl FnOnce(&mut Task) + Send + 'static) {
    run_with(&Procfs, body);
}

fn open(task: &mut Task, path: &str, flags: u32) -> Result<u64, Errno> {
    let path = task.text(path);
    task.call(__NR_open, [path, flags.into(), 0])
}

/// `st_nlink` by `stat` and by `fstat`, which agree.
fn links(task: &mut Task, path: &str) -> u64 {
    let (name, to) = (task.text(path), task.room(144));
    task.call(__NR_stat, [name, to]).unwrap();
    let by_stat: u64 = task.get(to + 16);
    let file = open(task, path, O_RDONLY).unwrap();
    task.call(__NR_fstat, [file, to]).unwrap();
    assert_eq!(task.get::<u64>(to + 16), by_stat, "{path}");
    task.call(__NR_close, [file]).unwrap();
    by_stat
}

/// The number of directories that a listing of `path` shows, including `.` and `..`.
fn listed(task: &mut Task, path: &str) -> u64 {
    const ROOM: u64 = 1024;
    let (file, to) = (open(task, path, O_RDONLY | O_DIRECTORY).unwrap(), task.room(ROOM));
    let mut count = 0;
    loop {
        let bytes = task.call(__NR_getdents64, [file, to, ROOM]).unwrap();
        if bytes == 0 {
            task.call(__NR_close, [file]).unwrap();
            return count;
        }
        let mut at = 0;
        while at < bytes {
            count += u64::from(u32::from(task.get::<u8>(to + at + 18)) == DT_DIR);
            at += u64::from(task.get::<u16>(to + at + 16));
        }
    }
}

#[test]
fn link_counts_are_those_of_the_listed_directories() {
    run(|task| {
        let own = "/proc/self/task";
        assert_eq!(links(task, own), 3, "one thread");
        for _ in 0..2 {
            task.thread(|task| assert_eq!(task.sleep(MILLISECOND), Ok(0))).unwrap();
        }
        assert_eq!(links(task, own), 5, "three threads");
        let child = task.fork(|task| assert_eq!(task.sleep(MILLISECOND), Ok(0))).unwrap();
        let directories =
            ["/proc", "/proc/self", own, "/proc/self/fd", "/proc/sys", "/proc/sys/net", "/sys/devices/system"];
        for path in directories {
            assert_eq!(links(task, path), listed(task, path), "{path}");
        }
        task.sleep(2 * MILLISECOND).unwrap();
        assert_eq!(links(task, own), 3, "the threads have ended");
        task.status(child);
    });
}

/// Reads a file of at most 32 bytes.
fn text(task: &mut Task, path: &str) -> String {
    let (file, to) = (open(task, path, O_RDONLY).unwrap(), task.room(32));
    let bytes = task.call(__NR_read, [file, to, 32]).unwrap();
    task.call(__NR_close, [file]).unwrap();
    (0..bytes).map(|at| char::from(task.get::<u8>(to + at))).collect()
}

fn write(task: &mut Task, path: &str, text: &str) -> Result<u64, Errno> {
    let (file, from) = (open(task, path, O_RDWR | O_TRUNC)?, task.bytes(text.as_bytes()));
    let written = task.call(__NR_write, [file, from, text.len() as u64]);
    task.call(__NR_close, [file]).unwrap();
    written
}

const LOGIN: &str = "/proc/self/loginuid";
const SESSION: &str = "/proc/self/sessionid";

#[test]
fn a_login_is_set_once_without_privilege_and_inherited() {
    run(|task| {
        assert_eq!((&text(task, LOGIN)[..], &text(task, SESSION)[..]), ("4294967295", "4294967295"));
        for (bad, why) in [("x", Errno::EINVAL), ("-1", Errno::EINVAL), ("4294967296", Errno::ERANGE)] {
            assert_eq!(write(task, LOGIN, bad), Err(why), "{bad}");
        }
        assert_eq!(write(task, "/proc/1/loginuid", "7"), Err(Errno::EPERM), "the login of another process");
        // PAM truncates the file before it writes the login. The text has no size to change.
        let file = open(task, LOGIN, O_RDWR).unwrap();
        assert_eq!(task.call(__NR_ftruncate, [file, 0]), Ok(0));
        task.call(__NR_close, [file]).unwrap();
        let file = open(task, LOGIN, O_RDONLY).unwrap();
        assert_eq!(task.call(__NR_ftruncate, [file, 0]), Err(Errno::EINVAL), "not open for writing");
        task.call(__NR_close, [file]).unwrap();
        let path = task.text(LOGIN);
        assert_eq!(task.call(__NR_truncate, [path, 0]), Ok(0));
        assert_eq!(write(task, LOGIN, "1000"), Ok(4));
        assert_eq!((&text(task, LOGIN)[..], &text(task, SESSION)[..]), ("1000", "1"));
        task.program("/tmp/next", |task| {
            assert_eq!((&text(task, LOGIN)[..], &text(task, SESSION)[..]), ("1000", "1"), "exec keeps the login");
        });
        let child = task.fork(|task| {
            assert_eq!(write(task, LOGIN, "1001"), Ok(4), "with privilege");
            assert_eq!(text(task, SESSION), "2");
            assert_eq!(write(task, LOGIN, "4294967295"), Ok(10));
            assert_eq!(text(task, SESSION), "4294967295");
            task.call(__NR_setuid, [1002]).unwrap();
            const PR_SET_DUMPABLE: u64 = 4;
            task.call(__NR_prctl, [PR_SET_DUMPABLE, 1]).unwrap();
            assert_eq!(write(task, LOGIN, "1002\n"), Ok(5), "an unset login needs no privilege");
            assert_eq!(text(task, SESSION), "3");
            assert_eq!(write(task, LOGIN, "1003"), Err(Errno::EPERM));
            assert_eq!(text(task, LOGIN), "1002");
        });
        assert_eq!(task.status(child.unwrap()), 0);
        assert_eq!(text(task, LOGIN), "1000", "the parent's login stays");
        let child = task.fork(|task| panic!("{:?}", task.execute("/tmp/next", &[])));
        assert_eq!(task.status(child.unwrap()), 0);
    });
}
