use crate::exec::*;
use crate::test_host::files;
use crate::test_host::script::{DATA, Task, exited, killed, run};
use linux_raw_sys::general::*;
use quire_linux_state::signal::{SigSet, Signal};
use quire_vm::PAGE_SIZE;

const SECOND: u64 = 1_000_000_000;

/// Reads the arguments on the stack of a new program.
fn arguments(task: &mut Task) -> std::vec::Vec<String> {
    let stack = task.regs.rsp;
    let count: u64 = task.get(stack);
    let end: u64 = task.get(stack + 8 * (count + 1));
    assert_eq!(end, 0, "the list has an end");
    let texts = (0..count).map(|n| {
        let at: u64 = task.get(stack + 8 * (n + 1));
        let bytes = (at..).map(|at| task.get::<u8>(at)).take_while(|byte| *byte != 0);
        String::from_utf8(bytes.collect()).unwrap()
    });
    texts.collect()
}

/// Executes a program in a child, which must succeed. Returns the child's status.
fn executed(task: &mut Task, path: &'static str, arguments: &'static [&'static str]) -> u32 {
    let child = task.fork(move |task| {
        let why = task.execute(path, arguments);
        panic!("{path} is refused: {why:?}")
    });
    task.status(child.unwrap())
}

#[test]
fn a_program_begins_with_its_arguments_and_fresh_memory() {
    run(|task| {
        let old = task.put(77u64);
        let flags = u64::from(MAP_PRIVATE | MAP_ANONYMOUS);
        let mapped = task.call(__NR_mmap, [0, 4096, PROT_READ.into(), flags, u64::MAX, 0]).unwrap();
        task.program("/tmp/program", move |task| {
            assert_eq!(arguments(task), ["one", "", "three"]);
            assert_eq!(task.regs.rsp % 16, 0);
            assert_eq!(task.get::<u64>(old), 0);
            assert_eq!(task.peek::<u64>(mapped), None);
            let (name, mut got) = (task.room(16), [0; 16]);
            const PR_GET_NAME: u64 = 16;
            task.call(__NR_prctl, [PR_GET_NAME, name]).unwrap();
            got[..7].copy_from_slice(b"program");
            assert_eq!(task.get::<[u8; 16]>(name), got);
            task.exit_group(9)
        });
        assert_eq!(executed(task, "/tmp/program", &["one", "", "three"]), exited(9));
        assert_eq!(task.get::<u64>(old), 77);
    });
}

#[test]
fn a_program_without_arguments_has_an_empty_name() {
    run(|task| {
        task.program("/tmp/program", |task| assert_eq!(arguments(task), [""]));
        assert_eq!(executed(task, "/tmp/program", &[]), 0);
    });
}

#[test]
fn a_refused_program_leaves_the_old_one_as_it_was() {
    run(|task| {
        task.file("/tmp/no-rights", 0o644, b"#!/tmp/x\n");
        task.file("/tmp/junk", 0o755, b"junk");
        task.file("/tmp/empty", 0o755, b"");
        task.file("/tmp/orphan", 0o755, b"#!/tmp/nothing\n");
        task.file("/tmp/circle", 0o755, b"#!/tmp/circle\n");
        task.file("/tmp/no-interpreter", 0o755, &files::interpreted(DATA, "/tmp/nothing"));
        task.file("/tmp/bad-interpreter", 0o755, &files::interpreted(DATA, "/tmp/junk"));
        let mut cut = files::elf(DATA, DATA, 1, b"");
        cut.truncate(80);
        task.file("/tmp/cut", 0o755, &cut);
        task.file("/tmp/beyond", 0o755, &files::elf(DATA, quire_linux_state::user::USER_END - 4096, 2, b""));
        let word = task.put(77u64);
        let handler = task.handler(|_| {});
        task.act(Signal::USR1, handler, 0, 0).unwrap();
        let before = task.mappings();
        for (path, why) in [
            ("", Errno::ENOENT),
            ("/tmp/nothing", Errno::ENOENT),
            ("/tmp", Errno::EACCES),
            ("/tmp/junk/x", Errno::ENOTDIR),
            ("/tmp/no-rights", Errno::EACCES),
            ("/tmp/junk", Errno::ENOEXEC),
            ("/tmp/empty", Errno::ENOEXEC),
            ("/tmp/orphan", Errno::ENOENT),
            ("/tmp/circle", Errno::ELOOP),
            ("/tmp/no-interpreter", Errno::ENOENT),
            ("/tmp/bad-interpreter", Errno::ELIBBAD),
            ("/tmp/cut", Errno::ENOEXEC),
            ("/tmp/beyond", Errno::ENOEXEC),
        ] {
            assert_eq!(task.execute(path, &["x"]), why, "{path:?}");
            assert_eq!((task.get::<u64>(word), task.mappings()), (77, before), "{path:?}");
        }
        let old = task.room(32);
        task.call(__NR_rt_sigaction, [10, 0, old, 8]).unwrap();
        assert_eq!(task.get::<u64>(old), handler);
    });
}

#[test]
fn arguments_are_limited_one_by_one_and_together() {
    run(|task| {
        task.program("/tmp/program", |task| {
            let count = arguments(task).len();
            task.exit_group(count as u32)
        });
        let path = task.text("/tmp/program");
        // A string of a little less than 128 KiB, with its terminator.
        const LEN: u64 = 128 << 10;
        let flags = u64::from(MAP_PRIVATE | MAP_ANONYMOUS);
        let prot = u64::from(PROT_READ | PROT_WRITE);
        let text = task.call(__NR_mmap, [0, LEN + 4096, prot, flags, u64::MAX, 0]).unwrap();
        (0..LEN).step_by(4096).for_each(|at| task.poke(text + at, &[b'a'; 4096]));
        let list = task.room(8 * 70);
        let lists = move |task: &mut Task, count: u64| {
            (0..count).for_each(|n| task.set(list + 8 * n, text));
            task.set(list + 8 * count, 0u64);
            task.call(__NR_execve, [path, list, 0])
        };
        assert_eq!(lists(task, 1), Err(Errno::E2BIG), "one string of 128 KiB with its end");
        task.set(text + LEN - 1, 0u8);
        assert_eq!(lists(task, 60), Err(Errno::E2BIG), "more than 6 MiB together");
        let child = task.fork(move |task| {
            let limit = task.put([2 * LEN, u64::MAX]);
            task.call(__NR_setrlimit, [RLIMIT_STACK.into(), limit]).unwrap();
            assert_eq!(lists(task, 2), Err(Errno::E2BIG), "a quarter of the stack, and 128 KiB at least");
        });
        assert_eq!(task.status(child.unwrap()), 0);
        let child = task.fork(move |task| panic!("{:?}", lists(task, 10)));
        assert_eq!(task.status(child.unwrap()), exited(10));
        task.set(list, 0u64);
        for (arguments, environment) in [(1u64 << 46, 0), (list, 1 << 46), (0, 1)] {
            let result = task.call(__NR_execve, [path, arguments, environment]);
            assert_eq!(result, Err(Errno::EFAULT));
        }
        task.set(list, 1u64 << 46);
        assert_eq!(task.call(__NR_execve, [path, list, 0]), Err(Errno::EFAULT));
    });
}

#[test]
fn a_script_runs_its_interpreter_with_its_own_path() {
    run(|task| {
        task.program("/tmp/interpreter", |task| {
            assert_eq!(arguments(task), ["/tmp/interpreter", "two words", "/tmp/script", "x"]);
            task.exit_group(8)
        });
        task.file("/tmp/script", 0o755, b"#! /tmp/interpreter   two words \nrest\n");
        assert_eq!(executed(task, "/tmp/script", &["name", "x"]), exited(8));
    });
}

#[test]
fn the_other_threads_end_and_the_program_has_the_process_id() {
    run(|task| {
        let child = task.fork(|task| {
            let pid = task.pid();
            task.program("/tmp/program", move |task| {
                assert_eq!((task.pid(), task.call(__NR_gettid, []).unwrap()), (pid, pid));
                let process = &task.machine.linux().current().process;
                assert_eq!(process.threads.lock().iter().count(), 1);
                task.sleep(10 * SECOND).unwrap();
                task.exit_group(6)
            });
            // Other threads of the process: one sleeps, one waits on a futex, and one has not run yet.
            task.thread(|task| panic!("{:?}", task.sleep(5 * SECOND))).unwrap();
            let word = task.put(0u32);
            task.thread(move |task| panic!("{:?}", task.call(__NR_futex, [word, 0, 0, 0]))).unwrap();
            task.thread(|task| panic!("{:?}", task.execute("/tmp/program", &["x"]))).unwrap();
            panic!("{:?}", task.sleep(5 * SECOND))
        });
        assert_eq!(task.status(child.unwrap()), exited(6));
        assert!(task.now() >= 10 * SECOND);
    });
}

#[test]
fn of_two_threads_that_execute_one_program_runs() {
    run(|task| {
        let child = task.fork(|task| {
            for (path, code) in [("/tmp/a", 1), ("/tmp/b", 2)] {
                task.program(path, move |task| task.exit_group(code));
            }
            task.thread(|task| panic!("{:?}", task.execute("/tmp/a", &[]))).unwrap();
            panic!("{:?}", task.execute("/tmp/b", &[]))
        });
        let status = task.status(child.unwrap());
        assert!([exited(1), exited(2)].contains(&status), "{status:#x}");
    });
}

#[test]
fn descriptors_close_only_where_they_say_so_and_only_if_the_program_runs() {
    run(|task| {
        task.program("/tmp/program", |task| {
            let open = [3, 4].map(|fd| task.call(__NR_fcntl, [fd, F_GETFD.into()]));
            assert_eq!(open, [Ok(0), Err(Errno::EBADF)]);
        });
        assert_eq!(task.call(__NR_eventfd2, [0, 0]), Ok(3));
        assert_eq!(task.call(__NR_eventfd2, [0, EFD_CLOEXEC.into()]), Ok(4));
        assert_eq!(task.execute("/tmp/nothing", &[]), Errno::ENOENT);
        assert_eq!(task.call(__NR_fcntl, [4, F_GETFD.into()]), Ok(1));
        assert_eq!(executed(task, "/tmp/program", &[]), 0);
        assert_eq!(task.call(__NR_fcntl, [4, F_GETFD.into()]), Ok(1), "the parent's table is another");
    });
}

#[test]
fn handlers_are_reset_and_the_rest_of_the_signals_stays() {
    run(|task| {
        let usr1 = SigSet::of(&[Signal::USR1]).0;
        task.program("/tmp/program", move |task| {
            let handlers = [Signal::USR1, Signal::USR2].map(|signal| {
                let old = task.room(32);
                task.call(__NR_rt_sigaction, [signal.number().into(), 0, old, 8]).unwrap();
                task.get::<u64>(old)
            });
            assert_eq!(handlers, [0, 1]);
            let (stack, pending) = (task.room(24), task.room(8));
            task.call(__NR_sigaltstack, [0, stack]).unwrap();
            assert_eq!(task.get::<[u64; 3]>(stack), [0, SS_DISABLE.into(), 0]);
            task.call(__NR_rt_sigpending, [pending, 8]).unwrap();
            assert_eq!(task.get::<u64>(pending), usr1);
            assert_eq!(task.mask(usr1), usr1);
        });
        let handler = task.handler(|_| panic!("it is blocked"));
        task.act(Signal::USR1, handler, 0, 0).unwrap();
        task.act(Signal::USR2, 1, 0, 0).unwrap();
        let base = task.room(8192);
        let stack = task.put([base, 0, 8192]);
        task.call(__NR_sigaltstack, [stack, 0]).unwrap();
        task.mask(usr1);
        let child = task.fork(|task| {
            let me = task.pid() as i64;
            task.kill(me, Signal::USR1).unwrap();
            panic!("{:?}", task.execute("/tmp/program", &[]))
        });
        assert_eq!(task.status(child.unwrap()), 0);
    });
}

#[test]
fn a_program_that_finds_no_memory_is_refused_and_the_old_one_goes_on() {
    run(|task| {
        task.program("/tmp/program", |task| task.exit_group(5));
        let word = task.put(77u64);
        // A refused allocation before the old memory is left gives an error. A later refusal ends the process. If the
        // call makes fewer than `n` allocations, nothing is refused.
        let (mut refused, mut ended) = (0, 0);
        for n in 1.. {
            let child = task.fork(move |task| {
                task.machine.linux().current().refuse_allocation(n);
                assert_eq!(task.execute("/tmp/program", &["x"]), Errno::ENOMEM, "allocation {n}");
                assert_eq!(task.get::<u64>(word), 77);
                task.exit_group(1)
            });
            match task.status(child.unwrap()) {
                status if status == exited(1) => refused += 1,
                status if status == killed(Signal::KILL) => ended += 1,
                status => {
                    assert_eq!(status, exited(5));
                    break;
                }
            }
            assert!(refused == n || refused + ended == n && ended > 0, "an error behind the end of the old memory");
        }
        assert!(refused > 10, "{refused} errors, {ended} ends");
    });
}

#[test]
fn stack_and_mappings_lie_where_sanitizers_allow_them() {
    run(|task| {
        let begin = |task: &mut Task| {
            let stack = task.regs.rsp;
            let anonymous = [0, 8 * PAGE_SIZE, PROT_READ.into(), (MAP_PRIVATE | MAP_ANONYMOUS).into(), u64::MAX, 0];
            let mapped = task.call(__NR_mmap, anonymous).unwrap();
            assert!(stack >= 0x7e80_0000_0000 && mapped > stack && mapped < 0x8000_0000_0000);
            (stack, mapped)
        };
        let first = begin(task);
        // Each program has places of its own.
        task.program("/tmp/other", move |task| {
            let second = begin(task);
            assert!(second.0 / PAGE_SIZE != first.0 / PAGE_SIZE && second.1 != first.1);
            task.exit(0)
        });
        assert_eq!(executed(task, "/tmp/other", &["other"]), exited(0));
    });
}
