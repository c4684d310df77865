use crate::test_host::script::{Task, run};
use linux_raw_sys::general::*;
use quire_linux_state::Errno;
use std::vec::Vec;

fn set(task: &mut Task) -> u64 {
    task.call(__NR_epoll_create1, [0]).unwrap()
}

fn sets(task: &mut Task, count: usize) -> Vec<u64> {
    (0..count).map(|_| set(task)).collect()
}

fn eventfd(task: &mut Task) -> u64 {
    task.call(__NR_eventfd2, [0, O_NONBLOCK.into()]).unwrap()
}

fn control(task: &mut Task, set: u64, operation: u32, file: u64) -> Result<u64, Errno> {
    let event = task.put([EPOLLIN, file as u32, 0]);
    task.call(__NR_epoll_ctl, [set, operation.into(), file, event])
}

fn put(task: &mut Task, file: u64, set: u64) -> Result<u64, Errno> {
    control(task, set, EPOLL_CTL_ADD, file)
}

/// The number of ready files in a set.
fn ready(task: &mut Task, set: u64) -> u64 {
    let to = task.room(12 * 8);
    task.call(__NR_epoll_wait, [set, to, 8, 0]).unwrap()
}

fn write(task: &mut Task, file: u64) {
    let one = task.put(1u64);
    assert_eq!(task.call(__NR_write, [file, one, 8]), Ok(8));
}

/// Allows as many descriptors as a test needs.
fn allow_descriptors(task: &mut Task) {
    let limit = task.put([4096u64, 4096]);
    task.call(__NR_setrlimit, [RLIMIT_NOFILE.into(), limit]).unwrap();
}

#[test]
fn a_file_has_so_many_paths_over_so_many_sets() {
    for (nests, most) in [(1, 500), (2, 100), (3, 50), (4, 10)] {
        run(move |task| {
            allow_descriptors(task);
            // A chain of `nests` sets watches the file, and many outermost sets watch the last set of the chain. Each
            // path ends in one of the outermost sets.
            let (leaf, line) = (eventfd(task), sets(task, nests));
            put(task, leaf, line[0]).unwrap();
            for pair in line.windows(2) {
                put(task, pair[0], pair[1]).unwrap();
            }
            let last = line[nests - 1];
            let tops = sets(task, most + 1);
            for top in &tops[..most] {
                put(task, last, *top).unwrap();
            }
            let refused = tops[most];
            assert_eq!(put(task, last, refused), Err(Errno::EINVAL));
            // The refused set got no watch, so a change of the file does not reach it. After a path is removed, the set
            // can be added.
            write(task, leaf);
            assert_eq!((ready(task, tops[0]), ready(task, refused)), (1, 0));
            control(task, tops[0], EPOLL_CTL_DEL, last).unwrap();
            put(task, last, refused).unwrap();
            assert_eq!((ready(task, tops[0]), ready(task, refused)), (0, 1));
            // A second file in the first set has the same number of paths. A closed set ends its path.
            let second = eventfd(task);
            put(task, second, line[0]).unwrap();
            task.call(__NR_close, [refused]).unwrap();
            put(task, last, tops[0]).unwrap();
        });
    }
}

#[test]
fn paths_of_one_set_are_free() {
    run(|task| {
        allow_descriptors(task);
        let (leaf, sets) = (eventfd(task), sets(task, 1200));
        for set in &sets {
            put(task, leaf, *set).unwrap();
        }
        write(task, leaf);
        assert!(sets.iter().all(|set| ready(task, *set) == 1));
        // The same file reaches one outer set through 500 sets.
        let top = set(task);
        for set in &sets[..500] {
            put(task, *set, top).unwrap();
        }
        assert_eq!(put(task, sets[500], top), Err(Errno::EINVAL));
    });
}

#[test]
fn a_file_that_comes_last_is_checked() {
    run(|task| {
        // Nested sets without a file: each set of a level is in every set of the next level. A walk visits each set
        // once.
        let levels: Vec<Vec<u64>> = (0..5).map(|_| sets(task, 25)).collect();
        for pair in levels.windows(2) {
            for outer in &pair[1] {
                for inner in &pair[0] {
                    put(task, *inner, *outer).unwrap();
                }
            }
        }
        let leaf = eventfd(task);
        for level in &levels[..3] {
            assert_eq!(put(task, leaf, level[0]), Err(Errno::EINVAL));
        }
        // 25 paths over one set, and none.
        put(task, leaf, levels[3][0]).unwrap();
        put(task, leaf, levels[4][0]).unwrap();
        write(task, leaf);
        assert_eq!((ready(task, levels[4][0]), ready(task, levels[4][1]), ready(task, levels[0][0])), (2, 1, 0));
        // One more set above is too deep, and a loop stays refused.
        let top = set(task);
        assert_eq!(put(task, levels[4][0], top), Err(Errno::ELOOP));
        assert_eq!(put(task, levels[4][0], levels[0][0]), Err(Errno::ELOOP));
    });
}

#[test]
fn a_new_watch_lists_what_is_ready() {
    run(|task| {
        let (set, leaf) = (set(task), eventfd(task));
        write(task, leaf);
        put(task, leaf, set).unwrap();
        assert_eq!(ready(task, set), 1);
        let event = task.put([EPOLLPRI, 0, 0]);
        task.call(__NR_epoll_ctl, [set, EPOLL_CTL_MOD.into(), leaf, event]).unwrap();
        assert_eq!(ready(task, set), 0);
        control(task, set, EPOLL_CTL_MOD, leaf).unwrap();
        assert_eq!(ready(task, set), 1);
    });
}
