use crate::process::fork::*;
use crate::test_host::script::{Task, exited, killed, run};
use linux_raw_sys::general::*;

const SECOND: u64 = 1_000_000_000;
const CHLD: u64 = 17;
const THREAD_FLAGS: u64 = VM | FS | FILES | SIGHAND | THREAD | SYSVSEM;

/// The error of a `clone` with these flags.
fn refused(task: &mut Task, flags: u64) -> Errno {
    task.clone(flags, [0, 0, 0, u64::MAX], |_| panic!("a refused clone has no child")).expect_err("a refusal")
}

fn tid(task: &mut Task) -> u64 {
    task.call(__NR_gettid, []).unwrap()
}

#[test]
fn flags_that_do_not_fit_are_refused_and_leave_no_child() {
    run(|task| {
        let threads = task.machine.linux().scheduler.threads();
        for flags in [THREAD, THREAD | VM, SIGHAND, THREAD | SIGHAND, PIDFD | THREAD | SIGHAND | VM, PIDFD | DETACHED] {
            assert_eq!(refused(task, flags), Errno::EINVAL, "{flags:#x}");
        }
        for namespace in [CLONE_NEWNS, CLONE_NEWPID, CLONE_NEWUSER, CLONE_NEWNET, CLONE_NEWIPC, CLONE_NEWUTS] {
            assert_eq!(refused(task, CHLD | u64::from(namespace)), Errno::EINVAL, "{namespace:#x}");
        }
        assert_eq!(refused(task, 65), Errno::EINVAL, "no signal has this number");
        assert_eq!(refused(task, CHLD | SETTLS), Errno::EPERM, "no program's memory lies there");
        assert_eq!(refused(task, THREAD_FLAGS | SETTLS), Errno::EPERM);
        assert_eq!(task.wait(-1, 0), Err(Errno::ECHILD));
        assert_eq!(task.machine.linux().scheduler.threads(), threads);
    });
}

#[test]
fn a_threads_id_is_its_own_and_its_process_is_shared() {
    run(|task| {
        let (pid, seen) = (task.pid(), task.room(24));
        let made = task.thread(move |task| {
            let ids = [task.pid(), tid(task), task.call(__NR_getppid, []).unwrap()];
            task.set(seen, ids);
        });
        let made = made.unwrap();
        assert_ne!(made, pid);
        task.sleep(SECOND).unwrap();
        assert_eq!(task.get::<[u64; 3]>(seen), [pid, made, 1]);
        assert_eq!(tid(task), pid);
        assert_eq!(task.wait(-1, 0), Err(Errno::ECHILD), "a thread is no child");
    });
}

#[test]
fn the_end_of_a_thread_clears_its_word_and_wakes_a_waiter() {
    run(|task| {
        let stack = task.room(4096) + 4096;
        let (word, before) = (task.put(1u64), task.now());
        let flags = THREAD_FLAGS | CHILD_CLEARTID | CHILD_SETTID | PARENT_SETTID;
        let made = task.clone(flags, [stack, word + 4, word, 0], move |task| {
            let id = tid(task) as u32;
            assert_eq!(task.get::<[u32; 2]>(word), [id, id], "both words are set before the first instruction");
            task.sleep(SECOND).unwrap();
        });
        let made = made.unwrap();
        while let now @ 1.. = task.get::<u32>(word) {
            assert!([1, made].contains(&now.into()), "{now}");
            let wait = task.call(__NR_futex, [word, FUTEX_WAIT.into(), now.into(), 0]);
            assert!(matches!(wait, Ok(0) | Err(Errno::EAGAIN)), "{wait:?}");
        }
        assert!(task.now() - before >= SECOND);
        assert_eq!(task.get::<u32>(word + 4), made as u32);
    });
}

#[test]
fn a_child_with_its_own_memory_has_its_words_there() {
    run(|task| {
        let words = task.put([7u32; 2]);
        let child = task.clone(CHLD | CHILD_SETTID | PARENT_SETTID, [0, words, words + 4, 0], move |task| {
            let id = task.pid() as u32;
            assert_eq!(task.get::<u32>(words + 4), id);
        });
        let child = child.unwrap();
        assert_eq!(task.status(child), 0);
        assert_eq!(task.get::<[u32; 2]>(words), [child as u32, 7]);
    });
}

#[test]
fn a_vforks_parent_sleeps_until_the_child_ends() {
    run(|task| {
        let word = task.put(0u32);
        let before = task.now();
        let child = task.clone(CHLD | VM | VFORK, [0; 4], move |task| {
            task.set(word, 1u32);
            task.sleep(SECOND).unwrap();
            task.set(word, 2u32);
            task.exit_group(3)
        });
        assert_eq!(task.get::<u32>(word), 2, "the memory is shared, and the parent slept");
        assert!(task.now() - before >= SECOND);
        assert_eq!(task.status(child.unwrap()), exited(3));
    });
}

#[test]
fn a_vforks_parent_goes_on_as_the_child_executes_a_program() {
    run(|task| {
        task.program("/tmp/sleeper", |task| {
            task.sleep(60 * SECOND).unwrap();
            task.exit_group(4)
        });
        let before = task.now();
        let child = task.clone(CHLD | VM | VFORK, [0; 4], |task| {
            let why = task.execute("/tmp/sleeper", &["sleeper"]);
            panic!("{why:?}")
        });
        let child = child.unwrap();
        assert!(task.now() - before < SECOND);
        assert_eq!(task.wait(child as i64, WNOHANG), Ok((0, 0)));
        assert_eq!(task.status(child), exited(4));
        assert!(task.now() - before >= 60 * SECOND);
    });
}

#[test]
fn a_killed_vfork_parent_does_not_wait_for_its_child() {
    run(|task| {
        let middle = task.fork(|task| {
            let child = task.clone(CHLD | VM | VFORK, [0; 4], |task| _ = task.sleep(100 * SECOND));
            panic!("{child:?}")
        });
        let middle = middle.unwrap();
        task.sleep(SECOND).unwrap();
        task.kill(middle as i64, Signal::KILL).unwrap();
        assert_eq!(task.status(middle), killed(Signal::KILL));
        assert!(task.now() < 50 * SECOND);
    });
}

#[test]
fn a_sibling_is_a_child_of_the_parents_parent() {
    run(|task| {
        let (me, word) = (task.pid(), task.put(0u64));
        let flags = u64::from(MAP_SHARED | MAP_ANONYMOUS);
        let shared = task.call(__NR_mmap, [0, 4096, u64::from(PROT_READ | PROT_WRITE), flags, u64::MAX, 0]).unwrap();
        let child = task.fork(move |task| {
            let sibling = task.clone(CHLD | PARENT, [0; 4], move |task| {
                assert_eq!(task.call(__NR_getppid, []), Ok(me));
                task.exit_group(5)
            });
            task.set(shared, sibling.unwrap());
            assert_eq!(task.wait(-1, 0), Err(Errno::ECHILD));
        });
        assert_eq!(task.status(child.unwrap()), 0);
        let sibling = task.get(shared);
        assert_eq!(task.status(sibling), exited(5));
        assert_eq!(task.get::<u64>(word), 0);
    });
}

#[test]
fn descriptors_are_shared_or_copied_as_the_flag_says() {
    run(|task| {
        for (flags, there) in [(CHLD, Errno::EBADF), (CHLD | FILES, Errno::EINVAL)] {
            let child = task.clone(flags, [0; 4], |task| {
                assert_eq!(task.call(__NR_eventfd2, [0, 0]), Ok(3));
            });
            assert_eq!(task.status(child.unwrap()), 0);
            // A read of one byte fails if descriptor 3 is open, because an event file needs a buffer of eight bytes.
            let buffer = task.room(8);
            assert_eq!(task.call(__NR_read, [3, buffer, 1]), Err(there), "{flags:#x}");
        }
    });
}

#[test]
fn the_limit_of_a_user_refuses_a_process_and_a_thread() {
    run(|task| {
        let child = task.fork(|task| {
            task.call(__NR_setresuid, [1000; 3]).unwrap();
            let limit = task.put([1u64, 1]);
            task.call(__NR_setrlimit, [RLIMIT_NPROC.into(), limit]).unwrap();
            assert_eq!(task.fork(|_| panic!("refused")), Err(Errno::EAGAIN));
            assert_eq!(task.thread(|_| panic!("refused")), Err(Errno::EAGAIN));
            assert_eq!(task.wait(-1, 0), Err(Errno::ECHILD));
        });
        assert_eq!(task.status(child.unwrap()), 0);
    });
}

#[test]
fn a_fork_without_memory_leaves_nothing() {
    run(|task| {
        let mut refusals = 0;
        for n in 1.. {
            task.machine.linux().current().refuse_allocation(n);
            match task.fork(|task| task.exit_group(6)) {
                Err(why) => assert_eq!(why, Errno::ENOMEM, "allocation {n}"),
                // The call makes fewer than `n` allocations.
                Ok(child) => {
                    assert_eq!(task.status(child), exited(6));
                    break;
                }
            }
            assert_eq!(task.wait(-1, 0), Err(Errno::ECHILD));
            refusals += 1;
        }
        assert!(refusals > 5, "{refusals}");
    });
}

#[test]
fn handlers_are_shared_copied_or_cleared() {
    run(|task| {
        const OLD: u64 = 0;
        let handler = task.handler(|_| {});
        task.act(Signal::USR1, handler, 0, 0).unwrap();
        let got = |task: &mut Task| {
            let old = task.room(32);
            task.call(__NR_rt_sigaction, [10, OLD, old, 8]).unwrap();
            task.get::<u64>(old)
        };
        let child = task.fork(move |task| {
            assert_eq!(got(task), handler);
            task.act(Signal::USR1, 1, 0, 0).unwrap();
        });
        assert_eq!(task.status(child.unwrap()), 0);
        assert_eq!(got(task), handler, "a copy is changed");
        // A struct clone_args, in which only `flags` and `exit_signal` are set.
        let arguments = task.put([CLEAR_SIGHAND, 0, 0, 0, CHLD, 0, 0, 0]);
        let child = task.beget(move |task| assert_eq!(got(task), 0), |task| task.call(__NR_clone3, [arguments, 64]));
        assert_eq!(task.status(child.unwrap()), 0);
        let arguments = task.put([CLEAR_SIGHAND | SIGHAND | VM, 0, 0, 0, CHLD, 0, 0, 0]);
        assert_eq!(task.call(__NR_clone3, [arguments, 64]), Err(Errno::EINVAL));
        assert_eq!(task.call(__NR_clone3, [arguments, 63]), Err(Errno::EINVAL));
        let child = task.clone(CHLD | VM | SIGHAND, [0; 4], move |task| _ = task.act(Signal::USR1, 1, 0, 0).unwrap());
        assert_eq!(task.status(child.unwrap()), 0);
        assert_eq!(got(task), 1, "shared actions are changed");
    });
}

#[test]
fn combinations_that_linux_refuses_are_refused() {
    let check = |flags| Request { flags, exit_signal: 17, ..Request::default() }.check();
    assert_eq!(check(0), Ok(()));
    assert_eq!(check(VM | VFORK), Ok(()));
    assert_eq!(check(VM | SIGHAND | THREAD | FS | FILES), Ok(()));
    assert_eq!(check(THREAD), Err(Errno::EINVAL));
    assert_eq!(check(THREAD | SIGHAND), Err(Errno::EINVAL));
    assert_eq!(check(SIGHAND), Err(Errno::EINVAL));
    assert_eq!(check(u64::from(raw::CLONE_NEWPID)), Err(Errno::EINVAL));
}
