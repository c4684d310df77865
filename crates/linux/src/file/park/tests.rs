use crate::test_host::script::{Task, exited, killed, run};
use crate::test_host::steps;
use linux_raw_sys::general::*;
use linux_raw_sys::net::{
    AF_INET, AF_UNIX, MSG_DONTWAIT, MSG_WAITALL, SO_RCVLOWAT, SO_RCVTIMEO_OLD, SOCK_STREAM, SOL_SOCKET,
};
use quire_linux_state::Errno;
use quire_linux_state::signal::Signal;

const MILLISECOND: u64 = 1_000_000;
const AF_UNSPEC: u16 = 0;
const PAGE: u64 = 4096;

/// Makes a call, while a thread of the same process runs `meanwhile` a millisecond later. Returns the call's result,
/// and how often it slept without a stack.
fn during<const N: usize>(
    task: &mut Task,
    number: u32,
    arguments: [u64; N],
    meanwhile: impl FnOnce(&mut Task) + Send + 'static,
) -> (Result<u64, Errno>, u32) {
    let other = move |task: &mut Task| {
        task.sleep(MILLISECOND).unwrap();
        meanwhile(task);
    };
    task.thread(other).unwrap();
    let before = steps::sleeps();
    let result = task.call(number, arguments);
    (result, steps::sleeps() - before)
}

fn pipe(task: &mut Task) -> [u64; 2] {
    let ends = task.room(8);
    task.call(__NR_pipe2, [ends, 0]).unwrap();
    task.get::<[u32; 2]>(ends).map(u64::from)
}

fn pair(task: &mut Task) -> [u64; 2] {
    let ends = task.room(8);
    task.call(__NR_socketpair, [AF_UNIX.into(), SOCK_STREAM.into(), 0, ends]).unwrap();
    task.get::<[u32; 2]>(ends).map(u64::from)
}

fn write(task: &mut Task, file: u64, bytes: &[u8]) {
    let from = task.bytes(bytes);
    assert_eq!(task.call(__NR_write, [file, from, bytes.len() as u64]), Ok(bytes.len() as u64));
}

/// Reads up to two bytes. Returns the call's result and both bytes.
fn read(task: &mut Task, file: u64) -> (Result<u64, Errno>, [u8; 2]) {
    let to = task.room(2);
    (task.call(__NR_read, [file, to, 2]), task.get(to))
}

/// Makes a TCP listener on an automatic port. Returns its descriptor and the user address of its `sockaddr`.
fn listener(task: &mut Task, backlog: u64) -> (u64, u64) {
    let listener = task.call(__NR_socket, [AF_INET.into(), SOCK_STREAM.into(), 0]).unwrap();
    let (at, len) = (task.put([AF_INET as u16, 0, 0x007f, 0x0100, 0, 0, 0, 0]), task.put(16u32));
    task.call(__NR_bind, [listener, at, 16]).unwrap();
    task.call(__NR_listen, [listener, backlog]).unwrap();
    task.call(__NR_getsockname, [listener, at, len]).unwrap();
    (listener, at)
}

fn connect(task: &mut Task, to: u64, flags: u32) -> (u64, Result<u64, Errno>) {
    let client = task.call(__NR_socket, [AF_INET.into(), u64::from(SOCK_STREAM | flags), 0]).unwrap();
    (client, task.call(__NR_connect, [client, to, 16]))
}

#[test]
fn reads_of_every_kind_sleep_without_a_stack_until_bytes_come() {
    run(|task| {
        let [reader, writer] = pipe(task);
        let to = task.room(16);
        let vector = task.put([to, 8]);
        for (number, arguments) in [(__NR_read, [reader, to, 8]), (__NR_readv, [reader, vector, 1])] {
            let (result, sleeps) = during(task, number, arguments, move |task| write(task, writer, b"abc"));
            assert_eq!((result, sleeps, task.get(to)), (Ok(3), 1, *b"abc"));
        }
        let [one, other] = pair(task);
        let header = task.put([0u64, 0, vector, 1, 0, 0, 0]);
        let calls = [
            (__NR_read, [one, to, 8, 0, 0, 0]),
            (__NR_recvfrom, [one, to, 8, 0, 0, 0]),
            (__NR_recvmsg, [one, header, 0, 0, 0, 0]),
        ];
        for (number, arguments) in calls {
            let (result, sleeps) = during(task, number, arguments, move |task| write(task, other, b"xyz"));
            assert_eq!((result, sleeps, task.get(to)), (Ok(3), 1, *b"xyz"));
        }
        let event = task.call(__NR_eventfd2, [0, 0]).unwrap();
        let add = move |task: &mut Task| write(task, event, &5u64.to_le_bytes());
        let (result, sleeps) = during(task, __NR_read, [event, to, 8], add);
        assert_eq!((result, sleeps, task.get(to)), (Ok(8), 1, 5u64));
    });
}

#[test]
fn writes_that_have_moved_nothing_sleep_without_a_stack_and_others_go_on() {
    run(|task| {
        let [reader, writer] = pipe(task);
        task.call(__NR_fcntl, [writer, F_SETPIPE_SZ.into(), PAGE]).unwrap();
        let page = task.bytes(&[7; PAGE as usize]);
        assert_eq!(task.call(__NR_write, [writer, page, PAGE]), Ok(PAGE));
        let empty = move |task: &mut Task| {
            let to = task.room(PAGE);
            assert_eq!(task.call(__NR_read, [reader, to, PAGE]), Ok(PAGE));
        };
        let (result, sleeps) = during(task, __NR_write, [writer, page, 100], empty);
        assert_eq!((result, sleeps), (Ok(100), 1));
        // The call has sent bytes, so it must not begin again.
        let two = task.room(2 * PAGE);
        let drain = move |task: &mut Task| {
            let (to, mut got) = (task.room(PAGE), 0);
            while got < 100 + 2 * PAGE {
                got += task.call(__NR_read, [reader, to, PAGE]).unwrap();
            }
        };
        task.call(__NR_fcntl, [writer, F_SETPIPE_SZ.into(), PAGE]).unwrap();
        let to = task.room(PAGE);
        assert_eq!(task.call(__NR_read, [reader, to, 100]), Ok(100));
        write(task, writer, &[1; 100]);
        let before = task.now();
        let (result, _) = during(task, __NR_write, [writer, two, 2 * PAGE], drain);
        assert!(task.now() > before && result == Ok(2 * PAGE), "{result:?}");

        let [one, other] = pair(task);
        while task.call(__NR_sendto, [one, page, PAGE, MSG_DONTWAIT.into(), 0, 0]).is_ok() {}
        let empty = move |task: &mut Task| {
            let to = task.room(PAGE);
            while task.call(__NR_recvfrom, [other, to, PAGE, MSG_DONTWAIT.into(), 0, 0]).is_ok() {}
        };
        let vector = task.put([page, 10]);
        let header = task.put([0u64, 0, vector, 1, 0, 0, 0]);
        let calls = [
            (__NR_write, [one, page, 10, 0, 0, 0]),
            (__NR_sendto, [one, page, 10, 0, 0, 0]),
            (__NR_sendmsg, [one, header, 0, 0, 0, 0]),
        ];
        for (number, arguments) in calls {
            while task.call(__NR_sendto, [one, page, PAGE, MSG_DONTWAIT.into(), 0, 0]).is_ok() {}
            let (result, sleeps) = during(task, number, arguments, empty);
            assert!(result == Ok(10) && sleeps > 0, "{number}: {result:?}, {sleeps}");
        }
    });
}

#[test]
fn connections_are_accepted_and_made_without_a_stack() {
    run(|task| {
        let (listener, at) = listener(task, 0);
        let come = move |task: &mut Task| {
            connect(task, at, 0).1.unwrap();
        };
        let (result, sleeps) = during(task, __NR_accept4, [listener, 0, 0, 0], come);
        assert!(result.is_ok() && sleeps == 1, "{result:?}");
        // The backlog has one place. The next clients wait for a place.
        assert_eq!(connect(task, at, 0).1, Ok(0));
        let client = task.call(__NR_socket, [AF_INET.into(), SOCK_STREAM.into(), 0]).unwrap();
        let take = move |task: &mut Task| {
            task.call(__NR_accept4, [listener, 0, 0, 0]).unwrap();
        };
        let (result, sleeps) = during(task, __NR_connect, [client, at, 16], take);
        assert_eq!((result, sleeps), (Ok(0), 1));
    });
}

#[test]
fn a_time_limit_counts_from_the_first_attempt() {
    run(|task| {
        let [one, _other] = pair(task);
        let (limit, to) = (task.put([0u64, 10_000]), task.room(8));
        task.call(__NR_setsockopt, [one, SOL_SOCKET.into(), SO_RCVTIMEO_OLD.into(), limit, 16]).unwrap();
        let low = task.put(1u32);
        // Each change of the option wakes the reader, which finds nothing.
        let disturb = move |task: &mut Task| {
            for _ in 0..5 {
                task.call(__NR_setsockopt, [one, SOL_SOCKET.into(), SO_RCVLOWAT.into(), low, 4]).unwrap();
                task.sleep(MILLISECOND).unwrap();
            }
        };
        let before = task.now();
        let (result, sleeps) = during(task, __NR_recvfrom, [one, to, 8, 0, 0, 0], disturb);
        let waited = task.now() - before;
        assert_eq!(result, Err(Errno::EAGAIN));
        assert!(sleeps >= 3 && (10..12).contains(&(waited / MILLISECOND)), "{sleeps} sleeps, {waited} ns");
    });
}

#[test]
fn a_signal_ends_or_repeats_a_call_that_sleeps() {
    run(|task| {
        let [one, other] = pair(task);
        let (to, me) = (task.room(8), task.pid() as i64);
        let handler = task.handler(|_| {});
        let send = move |task: &mut Task| {
            task.kill(me, Signal::USR1).unwrap();
            task.sleep(MILLISECOND).unwrap();
            write(task, other, b"late");
        };
        let mine = 1 << (Signal::USR1.number() - 1);
        let send = move |task: &mut Task| {
            task.mask(mine);
            send(task);
        };
        task.act(Signal::USR1, handler, 0, 0).unwrap();
        let (result, sleeps) = during(task, __NR_recvfrom, [one, to, 8, 0, 0, 0], send);
        assert_eq!((result, sleeps), (Err(Errno::EINTR), 1));
        assert_eq!(task.call(__NR_recvfrom, [one, to, 4, MSG_WAITALL.into(), 0, 0]), Ok(4));
        task.act(Signal::USR1, handler, SA_RESTART, 0).unwrap();
        let (result, sleeps) = during(task, __NR_recvfrom, [one, to, 8, 0, 0, 0], send);
        assert_eq!((result, sleeps, task.get(to)), (Ok(4), 2, *b"late"));
        // A call with a time limit is not restarted after a signal.
        let limit = task.put([1u64, 0]);
        task.call(__NR_setsockopt, [one, SOL_SOCKET.into(), SO_RCVTIMEO_OLD.into(), limit, 16]).unwrap();
        let (result, sleeps) = during(task, __NR_recvfrom, [one, to, 8, 0, 0, 0], send);
        assert_eq!((result, sleeps), (Err(Errno::EINTR), 1));
    });
}

#[test]
fn a_read_that_sleeps_belongs_to_its_connection() {
    run(|task| {
        let (listener, at) = listener(task, 5);
        let (client, made) = connect(task, at, 0);
        assert_eq!(made, Ok(0));
        task.call(__NR_accept4, [listener, 0, 0, 0]).unwrap();
        let (to, nowhere, served) = (task.room(8), task.put([AF_UNSPEC; 8]), task.room(8));
        let again = move |task: &mut Task| {
            task.call(__NR_connect, [client, nowhere, 16]).unwrap();
            task.call(__NR_connect, [client, at, 16]).unwrap();
            let server = task.call(__NR_accept4, [listener, 0, 0, 0]).unwrap();
            task.set(served, server);
            write(task, server, b"hi");
        };
        let (result, sleeps) = during(task, __NR_recvfrom, [client, to, 8, 0, 0, 0], again);
        assert_eq!((result, sleeps), (Err(Errno::EPIPE), 1));
        // The bytes of the new connection are there for the next read.
        task.sleep(5 * MILLISECOND).unwrap();
        assert_eq!(read(task, client), (Ok(2), *b"hi"));
        let server = task.get(served);
        let (result, sleeps) = during(task, __NR_read, [client, to, 8], move |task| write(task, server, b"ho"));
        assert_eq!((result, sleeps, task.get(to)), (Ok(2), 1, *b"ho"));
    });
}

#[test]
fn a_call_that_sleeps_keeps_its_file_and_its_vectors() {
    run(|task| {
        let [reader, writer] = pipe(task);
        let (to, bad) = (task.room(8), task.put(0u64));
        let vector = task.put([to, 8]);
        let change = move |task: &mut Task| {
            // Another file gets the descriptor, and the vector gets another address.
            task.call(__NR_close, [reader]).unwrap();
            assert_eq!(task.call(__NR_eventfd2, [9, 0]), Ok(reader));
            task.set(vector, [bad, 1]);
            write(task, writer, b"kept");
        };
        let (result, sleeps) = during(task, __NR_readv, [reader, vector, 1], change);
        assert_eq!((result, sleeps, task.get(to), task.get(bad)), (Ok(4), 1, *b"kept", 0u64));
    });
}

#[test]
fn a_receive_that_waits_for_all_keeps_what_it_has() {
    run(|task| {
        let [one, other] = pair(task);
        let to = task.room(8);
        let twice = move |task: &mut Task| {
            write(task, other, b"ab");
            task.sleep(MILLISECOND).unwrap();
            write(task, other, b"cd");
        };
        let (result, sleeps) = during(task, __NR_recvfrom, [one, to, 4, MSG_WAITALL.into(), 0, 0], twice);
        assert_eq!((result, sleeps, task.get(to)), (Ok(4), 1, *b"abcd"));
    });
}

#[test]
fn a_call_that_sleeps_keeps_its_first_options() {
    run(|task| {
        let [one, _other] = pair(task);
        let (limit, never, to) = (task.put([0u64, 10_000]), task.put([0u64, 0]), task.room(8));
        let limit_to = move |task: &mut Task, time| {
            let done = task.call(__NR_setsockopt, [one, SOL_SOCKET.into(), SO_RCVTIMEO_OLD.into(), time, 16]);
            assert_eq!(done, Ok(0));
        };
        limit_to(task, limit);
        let before = task.now();
        let clear = move |task: &mut Task| limit_to(task, never);
        let (result, sleeps) = during(task, __NR_recvfrom, [one, to, 8, 0, 0, 0], clear);
        assert_eq!((result, (task.now() - before) / MILLISECOND), (Err(Errno::EAGAIN), 10));
        assert!(sleeps > 0);
        // Another thread makes the socket nonblocking, and wakes the reader.
        let [one, other] = pair(task);
        let low = task.put(1u32);
        let change = move |task: &mut Task| {
            task.call(__NR_fcntl, [one, F_SETFL.into(), O_NONBLOCK.into()]).unwrap();
            task.call(__NR_setsockopt, [one, SOL_SOCKET.into(), SO_RCVLOWAT.into(), low, 4]).unwrap();
            task.sleep(MILLISECOND).unwrap();
            write(task, other, b"ok");
        };
        let (result, sleeps) = during(task, __NR_read, [one, to, 8], change);
        assert!(result == Ok(2) && sleeps > 1, "{result:?} after {sleeps}");
        assert_eq!(task.call(__NR_read, [one, to, 8]), Err(Errno::EAGAIN));
        // Another thread makes the listener nonblocking. A connection still ends the wait.
        let (listener, at) = listener(task, 0);
        let low = task.put(1u32);
        let change = move |task: &mut Task| {
            task.call(__NR_fcntl, [listener, F_SETFL.into(), O_NONBLOCK.into()]).unwrap();
            task.call(__NR_setsockopt, [listener, SOL_SOCKET.into(), SO_RCVLOWAT.into(), low, 4]).unwrap();
            task.sleep(MILLISECOND).unwrap();
            connect(task, at, 0).1.unwrap();
        };
        let (result, sleeps) = during(task, __NR_accept4, [listener, 0, 0, 0], change);
        assert!(result.is_ok() && sleeps > 1, "{result:?} after {sleeps}");
    });
}

#[test]
fn a_process_that_is_killed_or_execs_ends_the_calls_that_sleep() {
    run(|task| {
        let [reader, writer] = pipe(task);
        let to = task.room(8);
        let child = task.fork(move |task| panic!("{:?}", task.call(__NR_read, [reader, to, 8]))).unwrap();
        task.sleep(MILLISECOND).unwrap();
        task.kill(child as i64, Signal::KILL).unwrap();
        assert_eq!(task.status(child), killed(Signal::KILL));
        task.program("/tmp/next", |task| task.exit_group(7));
        let child = task.fork(move |task| {
            task.thread(move |task| panic!("{:?}", task.call(__NR_read, [reader, to, 8]))).unwrap();
            task.sleep(MILLISECOND).unwrap();
            panic!("exec fails: {:?}", task.execute("/tmp/next", &[]));
        });
        let child = child.unwrap();
        assert_eq!(task.status(child), exited(7));
        // A process that is stopped and continued during its read continues to read.
        let child = task.fork(move |task| {
            let done = task.call(__NR_read, [reader, to, 8]);
            task.exit_group(done.unwrap_or(9) as u32);
        });
        let child = child.unwrap();
        for signal in [Signal::STOP, Signal::CONT] {
            task.sleep(MILLISECOND).unwrap();
            task.kill(child as i64, signal).unwrap();
        }
        task.sleep(MILLISECOND).unwrap();
        write(task, writer, b"abc");
        assert_eq!(task.status(child), exited(3));
    });
}
