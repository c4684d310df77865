use crate::process::wait::*;
use crate::test_host::script::{CONTINUED as GOES_ON, Task, exited, killed, run, stopped};
use linux_raw_sys::general::*;

const SECOND: u64 = 1_000_000_000;

/// Makes a child that ends with `code` after `seconds` seconds.
fn child(task: &mut Task, seconds: u64, code: u32) -> u64 {
    let body = move |task: &mut Task| {
        task.sleep(seconds * SECOND).unwrap();
        task.exit_group(code)
    };
    task.fork(body).unwrap()
}

/// Calls `waitid`. Returns the code and the status in its `siginfo`, and the child's id. All are 0 if there is nothing
/// to report.
fn waitid(task: &mut Task, kind: u32, id: u64, options: u32) -> Result<(i32, u32, u32), Errno> {
    let info = task.room(128);
    task.call(__NR_waitid, [kind.into(), id, info, options.into(), 0])?;
    Ok((task.get(info + 8), task.get(info + 24), task.get(info + 16)))
}

#[test]
fn options_and_ids_that_do_not_exist_are_refused() {
    run(|task| {
        assert_eq!(task.wait(-1, 1 << 20), Err(Errno::EINVAL));
        assert_eq!(task.wait(-1, EXITED), Err(Errno::EINVAL), "only `waitid` chooses ends");
        assert_eq!(task.wait(i32::MIN.into(), 0), Err(Errno::ESRCH));
        for options in [0, NOHANG, NOWAIT, EXITED | 1 << 20] {
            assert_eq!(waitid(task, P_ALL, 0, options), Err(Errno::EINVAL), "{options:#x}");
        }
        assert_eq!(waitid(task, 9, 1, EXITED), Err(Errno::EINVAL));
        assert_eq!(waitid(task, P_PID, 0, EXITED), Err(Errno::EINVAL));
        assert_eq!(waitid(task, P_PIDFD, 77, EXITED), Err(Errno::EBADF));
        let me = task.pid();
        for pid in [-1, 0, 1, me as i64, -(me as i64), 77_777] {
            assert_eq!(task.wait(pid, NOHANG), Err(Errno::ECHILD), "{pid}");
        }
    });
}

#[test]
fn a_wait_that_does_not_hang_reports_the_end_once() {
    run(|task| {
        let child = child(task, 1, 3);
        assert_eq!(task.wait(-1, NOHANG), Ok((0, 0)));
        assert_eq!(waitid(task, P_PID, child, EXITED | NOHANG), Ok((0, 0, 0)));
        task.sleep(2 * SECOND).unwrap();
        assert_eq!(task.wait(-1, NOHANG), Ok((child, exited(3))));
        assert_eq!(task.wait(-1, NOHANG), Err(Errno::ECHILD));
    });
}

#[test]
fn a_wait_that_leaves_the_child_reports_it_again() {
    run(|task| {
        let child = child(task, 1, 3);
        let end = (code::CLD_EXITED, 3, child as u32);
        for _ in 0..2 {
            assert_eq!(waitid(task, P_ALL, 0, EXITED | NOWAIT), Ok(end));
        }
        assert_eq!(task.kill(child as i64, Signal::USR1), Ok(0), "a zombie is still there");
        assert_eq!(waitid(task, P_PID, child, EXITED), Ok(end));
        assert_eq!(task.kill(child as i64, Signal::USR1), Err(Errno::ESRCH));
    });
}

#[test]
fn a_wait_for_a_group_takes_its_members_only() {
    run(|task| {
        let (own, other) = (child(task, 1, 1), child(task, 1, 2));
        task.call(__NR_setpgid, [other, other]).unwrap();
        task.sleep(2 * SECOND).unwrap();
        assert_eq!(task.wait(0, 0), Ok((own, exited(1))));
        assert_eq!(task.wait(0, 0), Err(Errno::ECHILD));
        assert_eq!(waitid(task, P_PGID, other, EXITED | NOWAIT), Ok((code::CLD_EXITED, 2, other as u32)));
        assert_eq!(task.wait(-(other as i64), 0), Ok((other, exited(2))));
        assert_eq!(task.wait(-(other as i64), 0), Err(Errno::ECHILD));
    });
}

#[test]
fn stops_and_continuations_are_reported_to_those_who_ask() {
    run(|task| {
        let child = child(task, 10, 3);
        let id = child as i64;
        task.kill(id, Signal::STOP).unwrap();
        assert_eq!(task.wait(id, NOHANG), Ok((0, 0)), "not asked for");
        assert_eq!(task.wait(id, UNTRACED), Ok((child, stopped(Signal::STOP))));
        assert_eq!(task.wait(id, UNTRACED | NOHANG), Ok((0, 0)), "reported once");
        let before = task.now();
        task.sleep(20 * SECOND).unwrap();
        assert_eq!(task.wait(id, NOHANG), Ok((0, 0)), "a stopped process does not go on");
        task.kill(id, Signal::CONT).unwrap();
        assert_eq!(task.wait(id, UNTRACED | NOHANG), Ok((0, 0)));
        assert_eq!(waitid(task, P_PID, child, CONTINUED | NOWAIT), Ok((code::CLD_CONTINUED, 18, child as u32)));
        assert_eq!(task.wait(id, CONTINUED), Ok((child, GOES_ON)));
        assert_eq!(task.wait(id, CONTINUED), Ok((child, exited(3))));
        assert!(task.now() - before < 40 * SECOND, "its sleep had a deadline");
    });
}

#[test]
fn a_wait_for_stops_alone_does_not_count_zombies() {
    run(|task| {
        let zombie = child(task, 0, 3);
        assert_eq!(waitid(task, P_PID, zombie, EXITED | NOWAIT), Ok((code::CLD_EXITED, 3, zombie as u32)));
        for options in [UNTRACED, CONTINUED, UNTRACED | NOHANG, UNTRACED | ALL] {
            for (kind, id) in [(P_ALL, 0), (P_PID, zombie), (P_PGID, 0)] {
                assert_eq!(waitid(task, kind, id, options), Err(Errno::ECHILD), "{kind} {options:#x}");
            }
        }
        // A child that ends while the wait sleeps ends the wait too.
        let living = child(task, 1, 4);
        let before = task.now();
        assert_eq!(waitid(task, P_ALL, 0, UNTRACED | NOHANG), Ok((0, 0, 0)));
        assert_eq!(waitid(task, P_ALL, 0, UNTRACED), Err(Errno::ECHILD));
        assert!(task.now() - before >= SECOND, "it waited for the living child");
        assert_eq!(task.status(zombie), exited(3));
        assert_eq!(task.status(living), exited(4));
    });
}

#[test]
fn a_killed_child_has_its_signal_as_status_also_if_it_is_stopped() {
    run(|task| {
        let child = child(task, 10, 3);
        // The child gets its own group, which is not orphaned, so that SIGTSTP stops it.
        task.call(__NR_setpgid, [child, child]).unwrap();
        task.kill(child as i64, Signal::TSTP).unwrap();
        assert_eq!(task.wait(-1, UNTRACED), Ok((child, stopped(Signal::TSTP))));
        task.kill(child as i64, Signal::TERM).unwrap();
        assert_eq!(task.wait(-1, NOHANG), Ok((0, 0)), "it does not take a signal while it is stopped");
        task.kill(child as i64, Signal::KILL).unwrap();
        assert_eq!(task.status(child), killed(Signal::KILL));
    });
}

#[test]
fn an_orphan_is_a_child_of_process_1_or_of_a_reaper() {
    run(|task| {
        for reaper in [false, true] {
            let flags = u64::from(MAP_SHARED | MAP_ANONYMOUS);
            let prot = u64::from(PROT_READ | PROT_WRITE);
            let shared = task.call(__NR_mmap, [0, 4096, prot, flags, u64::MAX, 0]).unwrap();
            const PR_SET_CHILD_SUBREAPER: u64 = 36;
            task.call(__NR_prctl, [PR_SET_CHILD_SUBREAPER, reaper.into()]).unwrap();
            let me = task.pid();
            let middle = task.fork(move |task| {
                let orphan = task.fork(move |task| {
                    task.sleep(SECOND).unwrap();
                    let parent = task.call(__NR_getppid, []).unwrap();
                    assert_eq!(parent, if reaper { me } else { 1 });
                    task.exit_group(7)
                });
                task.set(shared, orphan.unwrap());
            });
            assert_eq!(task.status(middle.unwrap()), 0);
            let orphan = task.get::<u64>(shared);
            let own = task.wait(orphan as i64, 0);
            assert_eq!(own, if reaper { Ok((orphan, exited(7))) } else { Err(Errno::ECHILD) });
        }
    });
}

#[test]
fn children_of_a_process_that_ignores_their_end_leave_no_zombie() {
    run(|task| {
        task.act(Signal::CHLD, 1, 0, 0).unwrap();
        child(task, 1, 0);
        child(task, 2, 0);
        let before = task.now();
        assert_eq!(task.wait(-1, 0), Err(Errno::ECHILD));
        assert!(task.now() - before >= 2 * SECOND, "it waited for the last one");
    });
}

#[test]
fn a_signal_interrupts_a_wait_unless_its_handler_restarts() {
    run(|task| {
        for (flags, expected) in [(0, Err(Errno::EINTR)), (SA_RESTART, Ok(()))] {
            let count = task.put(0u32);
            let handler = task.handler(move |task| {
                let before: u32 = task.get(count);
                task.set(count, before + 1);
            });
            task.act(Signal::USR1, handler, flags, 0).unwrap();
            let (me, child) = (task.pid(), child(task, 3, 5));
            let sender = task.fork(move |task| {
                task.sleep(SECOND).unwrap();
                task.kill(me as i64, Signal::USR1).unwrap();
            });
            assert_eq!(task.wait(child as i64, 0).map(drop), expected);
            assert_eq!(task.get::<u32>(count), 1);
            let left = task.wait(child as i64, 0);
            assert_eq!(left, if flags == 0 { Ok((child, exited(5))) } else { Err(Errno::ECHILD) });
            assert_eq!(task.status(sender.unwrap()), 0);
        }
    });
}

#[test]
fn a_child_with_another_exit_signal_is_waited_for_as_a_clone() {
    run(|task| {
        let child = task.clone(Signal::USR2.number().into(), [0; 4], |task| task.exit_group(2)).unwrap();
        task.act(Signal::USR2, 1, 0, 0).unwrap();
        assert_eq!(task.wait(-1, 0), Err(Errno::ECHILD));
        assert_eq!(task.wait(-1, CLONE | NOWAIT), Err(Errno::EINVAL));
        assert_eq!(task.wait(-1, CLONE), Ok((child, exited(2))));
        let child = task.clone(0, [0; 4], |task| task.exit_group(3)).unwrap();
        assert_eq!(task.wait(child as i64, ALL), Ok((child, exited(3))));
    });
}

#[test]
fn any_thread_waits_for_the_children_of_its_process() {
    run(|task| {
        let child = child(task, 1, 4);
        let seen = task.put([0u64; 2]);
        let waiter = task.thread(move |task| {
            let (pid, status) = task.wait(-1, 0).unwrap();
            task.set(seen, [pid, status.into()]);
        });
        waiter.unwrap();
        task.sleep(2 * SECOND).unwrap();
        assert_eq!(task.get::<[u64; 2]>(seen), [child, exited(4).into()]);
        assert_eq!(task.wait(-1, 0), Err(Errno::ECHILD));
    });
}

#[test]
fn a_bad_address_of_the_status_does_not_keep_the_zombie() {
    run(|task| {
        child(task, 1, 4);
        let bad = quire_linux_state::user::USER_END - 4096;
        assert_eq!(task.call(__NR_wait4, [u64::MAX, bad, 0, 0]), Err(Errno::EFAULT));
        assert_eq!(task.wait(-1, 0), Err(Errno::ECHILD), "as on Linux");
    });
}

#[test]
fn statuses_have_the_layout_of_the_wait_macros() {
    assert_eq!(Event::Ended(3 << 8).info(), (code::CLD_EXITED, 3));
    assert_eq!(Event::Ended(9).info(), (code::CLD_KILLED, 9));
    assert_eq!(Event::Ended(6 | DUMPED).info(), (code::CLD_DUMPED, 6));
    assert_eq!(Event::Living(Report::Stopped(19)).status(), 0x137f);
    assert_eq!(Event::Living(Report::Continued).status(), 0xffff);
}
