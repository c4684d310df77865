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
