use crate::test_host::script::{Task, run};
use linux_raw_sys::general::*;
use quire_linux_state::Errno;

const MAX: u64 = i64::MAX as u64;
const ALL: u64 = u64::MAX;
const F_OFD_GETLK: u32 = 36;
const F_OFD_SETLK: u32 = 37;

/// Opens `path` for reading and writing, and makes it if it is missing.
fn open(task: &mut Task, path: &str, flags: u32) -> u64 {
    let path = task.text(path);
    task.call(__NR_open, [path, u64::from(O_RDWR | O_CREAT | flags), 0o600]).unwrap()
}

/// A file with ten bytes, whose position is at its start.
fn ten_bytes(task: &mut Task) -> u64 {
    let (file, from) = (open(task, "/tmp/ten", O_TRUNC), task.bytes(b"0123456789"));
    assert_eq!(task.call(__NR_write, [file, from, 10]), Ok(10));
    task.call(__NR_lseek, [file, 0, SEEK_SET.into()]).unwrap();
    file
}

#[test]
fn ranges_beyond_all_offsets_and_addresses_are_refused() {
    run(|task| {
        let (file, at) = (ten_bytes(task), task.room(64));
        for number in [__NR_read, __NR_write] {
            assert_eq!(task.call(number, [file, at, ALL]), Err(Errno::EFAULT), "{number}");
        }
        for number in [__NR_pread64, __NR_pwrite64] {
            assert_eq!(task.call(number, [file, at, ALL, 0]), Err(Errno::EFAULT), "{number}");
            assert_eq!(task.call(number, [file, at, 20, MAX]), Err(Errno::EINVAL), "{number}");
            assert_eq!(task.call(number, [file, at, 20, MAX - 19]), Err(Errno::EINVAL), "{number}");
            assert_eq!(task.call(number, [file, at, 20, ALL]), Err(Errno::EINVAL), "{number}");
            assert_eq!(task.call(number, [file, at, 0, MAX]), Ok(0), "{number}");
        }
        assert_eq!(task.call(__NR_pread64, [file, at, 20, MAX - 20]), Ok(0));
        assert_eq!(task.call(__NR_lseek, [file, MAX - 5, SEEK_SET.into()]), Ok(MAX - 5));
        for number in [__NR_read, __NR_write] {
            assert_eq!(task.call(number, [file, at, 20]), Err(Errno::EINVAL), "{number}");
        }
        // One vector is cut, and of several each must be in user space as a whole.
        let one = task.put([at, MAX, at, MAX]);
        task.call(__NR_lseek, [file, 0, SEEK_SET.into()]).unwrap();
        assert_eq!(task.call(__NR_readv, [file, one, 1]), Ok(10));
        assert_eq!(task.call(__NR_readv, [file, one, 2]), Err(Errno::EFAULT));
    });
}

#[test]
fn ranges_of_copies_between_files_are_checked_before_they_are_cut() {
    run(|task| {
        let (input, output) = (ten_bytes(task), open(task, "/tmp/copy", 0));
        let offset = |task: &mut Task, at: u64| task.put(at);
        assert_eq!(task.call(__NR_sendfile, [output, input, 0, ALL]), Err(Errno::EINVAL));
        let near = offset(task, MAX - 1);
        assert_eq!(task.call(__NR_sendfile, [output, input, near, 20]), Err(Errno::EINVAL));
        assert_eq!(task.call(__NR_copy_file_range, [input, near, output, 0, 20, 0]), Ok(0));
        let start = offset(task, 0);
        assert_eq!(task.call(__NR_copy_file_range, [input, start, output, 0, ALL, 0]), Ok(10));
        let ends = task.room(8);
        task.call(__NR_pipe2, [ends, 0]).unwrap();
        let [reader, writer] = task.get::<[u32; 2]>(ends).map(u64::from);
        let start = offset(task, 0);
        assert_eq!(task.call(__NR_splice, [input, start, writer, 0, ALL, 0]), Err(Errno::EINVAL));
        assert_eq!(task.call(__NR_splice, [input, near, writer, 0, 20, 0]), Err(Errno::EINVAL));
        assert_eq!(task.call(__NR_splice, [input, start, writer, 0, 20, 0]), Ok(10));
        assert_eq!(task.call(__NR_splice, [reader, 0, output, start, ALL, 0]), Err(Errno::EINVAL));
        assert_eq!(task.call(__NR_splice, [reader, 0, output, near, 20, 0]), Err(Errno::EINVAL));
        assert_eq!(task.call(__NR_splice, [reader, 0, output, start, 20, 0]), Ok(10));
    });
}

#[test]
fn both_flags_of_synchronous_writes_are_shown_as_they_were_given() {
    run(|task| {
        for (given, shown) in [(O_SYNC, O_SYNC), (O_DSYNC, O_DSYNC), (O_SYNC & !O_DSYNC, O_SYNC), (0, 0)] {
            let file = open(task, "/tmp/f", given);
            let flags = |task: &mut Task| task.call(__NR_fcntl, [file, F_GETFL.into()]).unwrap() as u32;
            assert_eq!(flags(task) & O_SYNC, shown);
            task.call(__NR_fcntl, [file, F_SETFL.into(), u64::from(O_APPEND)]).unwrap();
            assert_eq!(flags(task) & (O_SYNC | O_APPEND), shown | O_APPEND, "F_SETFL does not change them");
        }
    });
}

#[test]
fn a_query_for_unlocking_finds_the_locks_of_the_open_file_itself() {
    run(|task| {
        let (file, other) = (open(task, "/tmp/f", 0), open(task, "/tmp/f", 0));
        let lock = |kind: u32, start: u64, len: u64| [u64::from(kind), start, len, 0];
        let query = |task: &mut Task, file: u64, command: u32, at: [u64; 4]| {
            let at = task.put(at);
            task.call(__NR_fcntl, [file, command.into(), at])?;
            let [head, start, len, pid] = task.get::<[u64; 4]>(at);
            Ok::<_, Errno>((head as u16, start, len, pid as i32))
        };
        query(task, file, F_OFD_SETLK, lock(F_WRLCK, 10, 5)).unwrap();
        let free = (F_UNLCK as u16, 0, 100, 0);
        assert_eq!(query(task, file, F_OFD_GETLK, lock(F_UNLCK, 0, 100)), Ok((F_WRLCK as u16, 10, 5, -1)));
        assert_eq!(query(task, other, F_OFD_GETLK, lock(F_UNLCK, 0, 100)), Ok(free), "not those of others");
        assert_eq!(query(task, file, F_OFD_GETLK, lock(F_UNLCK, 0, 10)), Ok((F_UNLCK as u16, 0, 10, 0)));
        assert_eq!(query(task, file, F_GETLK, lock(F_UNLCK, 0, 100)), Err(Errno::EINVAL));
    });
}
