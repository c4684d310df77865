use crate::signal::frame::*;
use crate::test_host::script::{Task, killed, run, stopped};
use linux_raw_sys::general::*;
use proptest::prelude::*;
use quire_linux_state::signal::Signal;

const SECOND: u64 = 1_000_000_000;
/// The offsets of the frame's parts from the handler's stack pointer.
const CONTEXT: u64 = (offset_of!(Frame, user) + offset_of!(UserContext, context)) as u64;
const RIP: u64 = CONTEXT + offset_of!(Context, rip) as u64;
const RBX: u64 = CONTEXT + offset_of!(Context, rbx) as u64;
const FLOAT: u64 = CONTEXT + offset_of!(Context, float) as u64;
const MASK: u64 = (offset_of!(Frame, user) + offset_of!(UserContext, mask)) as u64;
/// An address at which nothing is mapped.
const BAD: u64 = 0x2000_0000;

fn bit(signal: Signal) -> u64 {
    SigSet::of(&[signal]).0
}

/// Adds one to a word of memory.
fn count(task: &mut Task, word: u64) {
    let before: u32 = task.get(word);
    task.set(word, before + 1);
}

/// Sends the process a signal after `nanos` nanoseconds, from a child for which no call waits.
fn send_later(task: &mut Task, nanos: u64, signal: Signal) {
    let me = task.pid() as i64;
    let sender = move |task: &mut Task| {
        task.sleep(nanos).unwrap();
        task.kill(me, signal).unwrap();
    };
    task.fork(sender).unwrap();
}

/// Sets an alternate stack of `size` bytes, and returns its base.
fn alternate(task: &mut Task, size: u64, flags: u32) -> u64 {
    let base = task.room(size);
    let stack = task.put([base, flags.into(), size]);
    task.call(__NR_sigaltstack, [stack, 0]).unwrap();
    base
}

#[test]
fn a_handler_begins_as_a_called_function_with_the_interrupted_registers_in_its_frame() {
    run(|task| {
        let (before, done) = (task.regs, task.put(0u32));
        let handler = task.handler(move |task| {
            let regs = task.regs;
            let frame = regs.rsp;
            assert_eq!(frame % 16, 8, "as behind a call");
            assert!(frame + FRAME_LEN as u64 <= before.rsp - RED_ZONE);
            assert_eq!((regs.rdi, regs.rax), (10, 0));
            assert_eq!(regs.rsi, frame + offset_of!(Frame, info) as u64);
            assert_eq!(regs.rdx, frame + offset_of!(Frame, user) as u64);
            let pid = task.pid() as u32;
            // si_signo, si_errno, si_code, and after a gap si_pid, si_uid.
            let info: [u32; 6] = task.get(regs.rsi);
            assert_eq!((info[0], info[1], info[2] as i32, info[4], info[5]), (10, 0, 0, pid, 0));
            let context: [u64; 18] = task.get(frame + CONTEXT);
            assert_eq!((context[8], context[9]), (u64::from(pid), 10), "the arguments of `kill`");
            assert_eq!((context[13], context[15]), (0, before.rsp), "its result, and the stack");
            count(task, done);
        });
        task.act(Signal::USR1, handler, SA_SIGINFO, 0).unwrap();
        let me = task.pid() as i64;
        assert_eq!(task.kill(me, Signal::USR1), Ok(0));
        assert_eq!((task.get::<u32>(done), task.regs.rsp), (1, before.rsp));
    });
}

#[test]
fn a_handler_changes_the_registers_that_the_program_goes_on_with() {
    run(|task| {
        let handler = task.handler(|task| {
            let frame = task.regs.rsp;
            task.set(frame + RBX, 77u64);
            // The result of the call.
            task.set(frame + CONTEXT + offset_of!(Context, rax) as u64, 5u64);
        });
        task.act(Signal::USR1, handler, 0, 0).unwrap();
        let me = task.pid() as i64;
        assert_eq!(task.kill(me, Signal::USR1), Ok(5));
        assert_eq!(task.regs.rbx, 77);
    });
}

#[test]
fn a_handler_blocks_its_signal_and_its_mask_until_it_returns() {
    run(|task| {
        for (flags, own) in [(0, bit(Signal::USR1)), (SA_NODEFER, 0)] {
            let runs = task.put([0u32; 2]);
            let second = task.handler(move |task| count(task, runs + 4));
            let first = task.handler(move |task| {
                let me = task.pid() as i64;
                let during = task.mask(SigSet::EMPTY.0);
                assert_eq!(during, bit(Signal::HUP) | own | bit(Signal::USR2));
                task.mask(during);
                task.kill(me, Signal::USR2).unwrap();
                assert_eq!(task.get::<u32>(runs + 4), 0, "a blocked signal waits");
                // The mask in the frame is the mask before the signal.
                let frame = task.regs.rsp;
                assert_eq!(task.get::<u64>(frame + MASK), bit(Signal::HUP));
                count(task, runs);
            });
            task.act(Signal::USR1, first, flags, bit(Signal::USR2)).unwrap();
            task.act(Signal::USR2, second, 0, 0).unwrap();
            task.mask(bit(Signal::HUP));
            let me = task.pid() as i64;
            task.kill(me, Signal::USR1).unwrap();
            assert_eq!(task.get::<[u32; 2]>(runs), [1, 1]);
            assert_eq!(task.mask(0), bit(Signal::HUP));
        }
    });
}

#[test]
fn a_mask_in_the_frame_is_restored_but_cannot_block_kill() {
    run(|task| {
        let handler = task.handler(|task| {
            let frame = task.regs.rsp;
            task.set(frame + MASK, u64::MAX);
        });
        task.act(Signal::USR1, handler, 0, 0).unwrap();
        let me = task.pid() as i64;
        task.kill(me, Signal::USR1).unwrap();
        assert_eq!(task.mask(0), !SigSet::UNBLOCKABLE.0);
    });
}

#[test]
fn a_handler_that_is_reset_runs_once() {
    run(|task| {
        let child = task.fork(|task| {
            let runs = task.put(0u32);
            let handler = task.handler(move |task| count(task, runs));
            task.act(Signal::USR1, handler, SA_RESETHAND, 0).unwrap();
            let me = task.pid() as i64;
            task.kill(me, Signal::USR1).unwrap();
            assert_eq!(task.get::<u32>(runs), 1);
            let _ended = task.kill(me, Signal::USR1);
            panic!("the default action ends the process");
        });
        assert_eq!(task.status(child.unwrap()), killed(Signal::USR1));
    });
}

#[test]
fn an_alternate_stack_is_used_where_the_action_says_so() {
    run(|task| {
        const SIZE: u64 = 8192;
        let base = alternate(task, SIZE, 0);
        for (flags, there) in [(0, false), (SA_ONSTACK, true)] {
            let runs = task.put(0u32);
            let handler = task.handler(move |task| {
                assert_eq!((base..base + SIZE).contains(&task.regs.rsp), there);
                let (old, new) = (task.room(24), task.put([base, 0, SIZE]));
                let change = task.call(__NR_sigaltstack, [new, old]);
                assert_eq!(change, if there { Err(Errno::EPERM) } else { Ok(0) }, "a stack in use stays");
                task.call(__NR_sigaltstack, [0, old]).unwrap();
                let state: [u64; 3] = task.get(old);
                assert_eq!(state, [base, u64::from(there), SIZE]);
                count(task, runs);
            });
            task.act(Signal::USR1, handler, flags, 0).unwrap();
            let me = task.pid() as i64;
            task.kill(me, Signal::USR1).unwrap();
            assert_eq!(task.get::<u32>(runs), 1);
        }
    });
}

#[test]
fn a_nested_handler_stays_on_the_alternate_stack_below_the_first() {
    run(|task| {
        const SIZE: u64 = 16384;
        let base = alternate(task, SIZE, 0);
        let seen = task.put([0u64; 2]);
        let inner = task.handler(move |task| {
            let rsp = task.regs.rsp;
            task.set(seen + 8, rsp);
        });
        let outer = task.handler(move |task| {
            let (rsp, me) = (task.regs.rsp, task.pid() as i64);
            task.set(seen, rsp);
            task.kill(me, Signal::USR2).unwrap();
        });
        task.act(Signal::USR1, outer, SA_ONSTACK, 0).unwrap();
        task.act(Signal::USR2, inner, SA_ONSTACK, 0).unwrap();
        let me = task.pid() as i64;
        task.kill(me, Signal::USR1).unwrap();
        let [outer, inner] = task.get::<[u64; 2]>(seen);
        assert!(base < inner && inner + FRAME_LEN as u64 <= outer && outer < base + SIZE, "{inner:#x} {outer:#x}");
    });
}

#[test]
fn a_stack_without_room_for_a_frame_ends_the_process() {
    run(|task| {
        let child = task.fork(|task| {
            let handler = task.handler(|_| panic!("no stack"));
            task.act(Signal::USR1, handler, 0, 0).unwrap();
            task.act(Signal::SEGV, handler, 0, 0).unwrap();
            task.regs.rsp = BAD;
            let me = task.pid() as i64;
            let _ended = task.kill(me, Signal::USR1);
            panic!("without a frame the signal of the fault ends the process");
        });
        assert_eq!(task.status(child.unwrap()) & 0x7f, killed(Signal::SEGV));
        // A handler for SIGSEGV on the alternate stack runs.
        let child = task.fork(|task| {
            alternate(task, 8192, 0);
            let handler = task.handler(|task| task.exit_group(0));
            task.act(Signal::USR1, handler, 0, 0).unwrap();
            task.act(Signal::SEGV, handler, SA_ONSTACK, 0).unwrap();
            task.regs.rsp = BAD;
            let me = task.pid() as i64;
            let _ended = task.kill(me, Signal::USR1);
        });
        assert_eq!(task.status(child.unwrap()), 0);
    });
}

#[test]
fn a_return_through_a_bad_frame_is_a_fault() {
    run(|task| {
        let bad: [fn(&mut Task); 4] = [
            // The frame is at an unmapped address.
            |task| task.regs.rsp = BAD,
            |task| task.regs.rsp = u64::MAX - 7,
            // The program would continue outside user space.
            |task| {
                let frame = task.regs.rsp;
                task.set(frame + RIP, 1u64 << 47);
            },
            // The floating-point state is at an unmapped address.
            |task| {
                let frame = task.regs.rsp;
                task.set(frame + FLOAT, BAD);
            },
        ];
        for (n, spoil) in bad.into_iter().enumerate() {
            let child = task.fork(move |task| {
                // The handler makes the call itself, because its `ret` would pop a word that may be unmapped.
                let handler = task.handler(move |task| {
                    spoil(task);
                    task.regs.rsp = task.regs.rsp.wrapping_add(8);
                    task.last_call(__NR_rt_sigreturn, [])
                });
                task.act(Signal::USR1, handler, 0, 0).unwrap();
                let me = task.pid() as i64;
                let _ended = task.kill(me, Signal::USR1);
                panic!("a bad frame is loaded");
            });
            assert_eq!(task.status(child.unwrap()) & 0x7f, killed(Signal::SEGV), "frame {n}");
        }
    });
}

#[test]
fn a_fault_reports_where_and_why_to_its_handler() {
    run(|task| {
        let flags = u64::from(MAP_PRIVATE | MAP_ANONYMOUS);
        let read_only = task.call(__NR_mmap, [0, 4096, PROT_READ.into(), flags, u64::MAX, 0]).unwrap();
        let seen = task.put([0u64; 2]);
        let handler = task.handler(move |task| {
            let info = task.regs.rsi;
            let (why, at): (u32, u64) = (task.get(info + 8), task.get(info + 16));
            task.set(seen, [why.into(), at]);
        });
        task.act(Signal::SEGV, handler, SA_SIGINFO, 0).unwrap();
        for (at, why) in [(BAD + 5, SEGV_MAPERR), (read_only + 7, SEGV_ACCERR)] {
            task.touch(at, true);
            assert_eq!(task.get::<[u64; 2]>(seen), [why.into(), at]);
        }
    });
}

#[test]
fn a_fault_whose_signal_is_blocked_or_ignored_ends_the_process() {
    run(|task| {
        for blocked in [false, true] {
            let child = task.fork(move |task| {
                let handler = task.handler(|_| panic!("blocked"));
                task.act(Signal::SEGV, if blocked { handler } else { 1 }, 0, 0).unwrap();
                task.mask(if blocked { bit(Signal::SEGV) } else { 0 });
                task.touch(BAD, false);
                panic!("the program goes on");
            });
            assert_eq!(task.status(child.unwrap()) & 0x7f, killed(Signal::SEGV));
        }
    });
}

#[test]
fn a_read_is_made_again_or_fails_as_the_action_says() {
    run(|task| {
        for (flags, expected) in [(0, Err(Errno::EINTR)), (SA_RESTART, Ok(1))] {
            let runs = task.put(0u32);
            let handler = task.handler(move |task| count(task, runs));
            task.act(Signal::USR1, handler, flags, 0).unwrap();
            let (ends, byte) = (task.room(8), task.room(1));
            task.call(__NR_pipe, [ends]).unwrap();
            let [from, to] = task.get::<[u32; 2]>(ends).map(u64::from);
            send_later(task, SECOND, Signal::USR1);
            task.fork(move |task| {
                task.sleep(2 * SECOND).unwrap();
                assert_eq!(task.call(__NR_write, [to, byte, 1]), Ok(1));
            })
            .unwrap();
            let before = task.now();
            assert_eq!(task.call(__NR_read, [from, byte, 1]), expected);
            assert_eq!(task.get::<u32>(runs), 1);
            assert_eq!(task.now() - before >= 2 * SECOND, flags != 0, "the second time it finds the byte");
            while task.wait(-1, 0).is_ok() {}
        }
    });
}

#[test]
fn a_sleep_reports_the_rest_to_a_handler_and_goes_on_without() {
    run(|task| {
        let runs = task.put(0u32);
        let handler = task.handler(move |task| count(task, runs));
        task.act(Signal::USR1, handler, SA_RESTART, 0).unwrap();
        let (time, rest) = (task.put([10u64, 0]), task.put([0u64; 2]));
        send_later(task, 4 * SECOND, Signal::USR1);
        assert_eq!(task.call(__NR_nanosleep, [time, rest]), Err(Errno::EINTR), "never made again");
        let [seconds, nanos] = task.get::<[u64; 2]>(rest);
        let left = seconds * SECOND + nanos;
        assert!((5 * SECOND..=6 * SECOND).contains(&left), "{left}");
        // A stop and a continue interrupt the sleep without a handler. The sleep is resumed, and ends at its first
        // deadline.
        let child = task.fork(|task| {
            let before = task.now();
            task.sleep(10 * SECOND).unwrap();
            let took = task.now() - before;
            assert!((10 * SECOND..11 * SECOND).contains(&took), "{took}");
        });
        let child = child.unwrap();
        task.sleep(SECOND).unwrap();
        task.kill(child as i64, Signal::STOP).unwrap();
        assert_eq!(task.wait(child as i64, WUNTRACED), Ok((child, stopped(Signal::STOP))));
        task.sleep(2 * SECOND).unwrap();
        task.kill(child as i64, Signal::CONT).unwrap();
        assert_eq!(task.status(child), 0);
        while task.wait(-1, 0).is_ok() {}
    });
}

#[test]
fn a_temporary_mask_lets_a_signal_in_and_goes_with_the_handler() {
    run(|task| {
        let runs = task.put(0u32);
        let handler = task.handler(move |task| {
            let during = task.mask(0);
            task.mask(during);
            assert_eq!(during, bit(Signal::USR1), "the mask of the wait, and the signal");
            let frame = task.regs.rsp;
            assert_eq!(task.get::<u64>(frame + MASK), bit(Signal::USR1) | bit(Signal::HUP));
            count(task, runs);
        });
        task.act(Signal::USR1, handler, SA_RESTART, 0).unwrap();
        let all = bit(Signal::USR1) | bit(Signal::HUP);
        task.mask(all);
        let me = task.pid() as i64;
        task.kill(me, Signal::USR1).unwrap();
        assert_eq!(task.get::<u32>(runs), 0);
        let open = task.put(0u64);
        assert_eq!(task.call(__NR_rt_sigsuspend, [open, 8]), Err(Errno::EINTR));
        assert_eq!((task.get::<u32>(runs), task.mask(0)), (1, all));
        assert_eq!(task.call(__NR_rt_sigsuspend, [open, 4]), Err(Errno::EINVAL));
    });
}

#[test]
fn an_awaited_signal_that_a_wait_leaves_goes_to_another_thread() {
    run(|task| {
        let (runs, set) = (task.put(0u32), task.put(bit(Signal::USR1) | bit(Signal::HUP)));
        let handler = task.handler(move |task| count(task, runs));
        task.act(Signal::USR1, handler, 0, 0).unwrap();
        // The other thread is made after this thread, so a sender of a signal checks this thread first.
        let other = task.thread(|task| {
            assert_eq!(task.sleep(100 * SECOND), Err(Errno::EINTR));
        });
        other.unwrap();
        task.mask(bit(Signal::USR1) | bit(Signal::HUP));
        let me = task.pid() as i64;
        let sender = task.fork(move |task| {
            // Both signals are pending before the waiting thread runs again.
            task.kill(me, Signal::HUP).unwrap();
            task.kill(me, Signal::USR1).unwrap();
        });
        assert_eq!(task.call(__NR_rt_sigtimedwait, [set, 0, 0, 8]), Ok(1), "the lower number first");
        task.status(sender.unwrap());
        task.sleep(SECOND).unwrap();
        assert_eq!(task.get::<u32>(runs), 1, "the other thread does not block it");
    });
}

proptest! {
    #[test]
    fn frames_are_aligned_and_below_the_top(top in any::<u64>(), float_len in 9usize..128) {
        let float_len = float_len * 64;
        if let Some(at) = place(top, float_len) {
            prop_assert_eq!(at.float % 64, 0);
            prop_assert_eq!(at.frame % 16, 8);
            prop_assert!(at.float + (float_len + MAGIC_2_LEN) as u64 <= top);
            prop_assert!(at.frame + size_of::<Frame>() as u64 <= at.float);
        } else {
            prop_assert!(top < 16 << 10);
        }
    }

    #[test]
    fn no_state_that_the_cpu_would_refuse_passes(
        mut float in proptest::collection::vec(any::<u8>(), 832),
        extended in any::<bool>(),
        tame in any::<bool>(),
    ) {
        if tame {
            float[LEGACY..WITH_HEADER].fill(0);
        }
        let ok = check_float(&mut float, extended, 7, 0xffbf).is_ok();
        prop_assert!(!tame || ok);
        if ok {
            prop_assert!(float[LEGACY] & !7 == 0 && float[LEGACY + 1..WITH_HEADER].iter().all(|b| *b == 0));
            prop_assert_eq!(float[26], 0);
            prop_assert_eq!(float[24] & 0x40, 0);
        }
    }
}
